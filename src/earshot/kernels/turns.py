"""Processes that need the same kernel: one compiles it, the others wait for it.

Turns are locks on single bytes of one file, far behind its end. The system gives them back when a
process ends, however it does. Whoever waits holds the turns of the callers of what it waits for,
and no kernel calls itself: nobody waits in a circle.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from functools import cache
from pathlib import Path

try:
    import fcntl
except ImportError:  # no turns: everybody compiles
    fcntl = None  # type: ignore[assignment]

PATIENCE_S = 120.0
"""How long to wait for another process, which may have been stopped; the longest takes 30 s."""

_POLL_S = 0.02


def take_turn(name: str) -> None:
    """Take the turn to compile something, once nobody else has it.

    Where there are no locks, or the other one takes too long, this goes on without.
    """
    file = _file()
    end_s = time.monotonic() + PATIENCE_S
    while file is not None and time.monotonic() < end_s:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _place(name))
        except (BlockingIOError, PermissionError):
            time.sleep(_POLL_S)
        except OSError:
            return
        else:
            return


def end_turn(name: str) -> None:
    """Let others have the turn."""
    file = _file()
    if file is not None:
        with contextlib.suppress(OSError):
            fcntl.lockf(file, fcntl.LOCK_UN, 1, _place(name))


def _place(name: str) -> int:
    return int(name, 16) % (1 << 62)


@cache
def _file() -> int | None:
    """Return the file of all turns of this user; it stays open, or its locks would be lost."""
    if fcntl is None:
        return None
    path = Path(tempfile.gettempdir()) / f"earshot-{os.getuid()}.turns"
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
