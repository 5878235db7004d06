"""Leases: one process at a time writes to a directory.

A lease is a file ``lease.json`` that names its holder and that the holder writes anew every few
seconds. Beside it lies a lock of the operating system, which goes with the process: on the same
machine the lease of a killed process is over at once. That of another machine is over when nobody
has renewed it for a while, watched by one's own clock, as clocks of machines differ.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Self
from uuid import uuid4

from earshot.errors import InUse
from earshot.spark.folders import Folder

RENEWAL_S = 4.0
"""How often a holder renews its lease."""
PATIENCE_S = 20.0
"""A lease of another machine that was not renewed for so long is over."""
SETTLING_S = 0.5
"""Where two take over a lease at once, both see after this time which of them has it."""
NAME = "lease.json"
_LOCK = ".lease-lock"


class Lease:
    """The right to write to a directory, for as long as the ``with`` block lasts.

    Args:
        folder: The directory.
        purpose: What for, as others are told: ``a build``.
    """

    def __init__(self, folder: Folder, purpose: str) -> None:
        self._folder, self._purpose = folder, purpose
        self._holder = uuid4().hex
        self._lock: IO[str] | None = None
        self._ending: threading.Event | None = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def is_held(self) -> bool:
        """Whether it was acquired, and not released since."""
        return self._ending is not None

    def acquire(self) -> None:
        """Take it.

        Raises:
            InUse: Another process has it; says which.
        """
        self._take_lock()
        try:
            self._take()
        except BaseException:
            self._drop_lock()
            raise
        self._ending = threading.Event()
        renewing = threading.Thread(target=self._renew, args=(self._ending,), daemon=True)
        renewing.start()

    def release(self) -> None:
        """Give it back; fine if it is not held."""
        if self._ending is None:
            return
        self._ending.set()
        self._ending = None
        with suppress(OSError):  # a directory that is gone needs no lease
            if self._found().get("holder") == self._holder:
                self._folder.remove(NAME)
        self._drop_lock()

    def check(self) -> None:
        """Raise InUse if it went to another process, as when this one stood still for long."""
        found = self._found()
        if self._ending is not None and found.get("holder") != self._holder:
            raise InUse(
                f"{self._folder.path} went to another process ({_told(found)}) while this one "
                f"stood still; start again when that one has ended"
            )

    # ---- inside -------------------------------------------------------------------------------

    def _take(self) -> None:
        try:
            self._folder.create_json(NAME, self._facts())
        except FileExistsError:
            self._wait_for_end()
            self._folder.write_json(NAME, self._facts())
        else:
            if self._folder.is_local:
                return
        time.sleep(SETTLING_S)
        found = self._found()
        if found.get("holder") != self._holder:
            self._refuse(found)

    def _wait_for_end(self) -> None:
        """Return when the lease that is there is over."""
        known = self._found()
        if self._lock is not None and known.get("machine") == _machine():
            return  # its lock is ours now
        until = time.monotonic() + PATIENCE_S
        while self._folder.exists(NAME) and time.monotonic() < until:
            time.sleep(min(0.5, PATIENCE_S / 4))
            found = self._found()
            if found and known and found != known:
                self._refuse(found)
            known = known or found

    def _take_lock(self) -> None:
        if not self._folder.is_local:
            return
        path = Path(self._folder.path) / _LOCK
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            self._refuse(self._found())
        except OSError:  # a mounted store without locks: the file alone has to do
            lock.close()
        else:
            self._lock = lock

    def _drop_lock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _renew(self, ending: threading.Event) -> None:
        while not ending.wait(RENEWAL_S):
            with suppress(OSError):  # the next renewal may succeed; if none does, others take over
                if self._found().get("holder") != self._holder:
                    return
                if not ending.is_set():
                    self._folder.write_json(NAME, self._facts())

    def _found(self) -> dict[str, Any]:
        """Return what the lease says, nothing where there is none or it is being written."""
        try:
            found: dict[str, Any] = self._folder.read_json(NAME)
        except (FileNotFoundError, ValueError):
            return {}
        return found

    def _facts(self) -> dict[str, Any]:
        return {
            "holder": self._holder,
            "purpose": self._purpose,
            "machine": _machine(),
            "host": socket.gethostname(),
            "process": os.getpid(),
            "renewed": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }

    def _refuse(self, found: dict[str, Any]) -> None:
        raise InUse(
            f"{self._folder.path} is in use by {_told(found)}; stop that one, or wait until it "
            f"has ended"
        )


def _told(found: dict[str, Any]) -> str:
    if not found:
        return "a process that has just begun"
    return f"{found['purpose']}: process {found['process']} on {found['host']}"


def _machine() -> str:
    """Return what tells this machine, and this start of it, from others."""
    with suppress(OSError):
        started = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {started}"
    return socket.gethostname()
