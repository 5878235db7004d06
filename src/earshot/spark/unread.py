"""Files that Spark passes over in silence: they are told and counted as rejects.

Spark's file source takes each path once, none in which a name begins with an underscore, and
nothing of a file without bytes. So a file that is written again under its old name is not read
again, and ``_report.parquet`` is never read. Each is told once, whenever the pipeline is started
again: its checkpoint remembers what was told.
(Names that begin with a dot are what writers give to files that are not complete yet. They are left
alone.)
"""

from __future__ import annotations

import json
import posixpath
import time
from contextlib import suppress
from fnmatch import fnmatch
from urllib.parse import unquote

from earshot.files import Reject
from earshot.spark.folders import Folder

LOOK_S = 5.0
"""How often a directory is looked at, at most."""
MAY_BE_EMPTY = (".ndjson", ".jsonl")
"""Files of no bytes that have no rows; others are broken."""
_MARKS = {
    "_SUCCESS", "_temporary", "_spark_metadata", "_metadata", "_common_metadata", "_delta_log",
}  # fmt: skip
"""What Spark and others leave beside data."""
_NUMBERED_MARKS = ("_committed_", "_started_")


def is_beside_data(name: str) -> bool:
    """Whether what wrote the data left a file there that is none, by its path in the directory."""
    parts = name.split("/")
    return not _MARKS.isdisjoint(parts) or parts[-1].startswith(_NUMBERED_MARKS)


def is_passed_over(name: str) -> bool:
    """Whether Spark never reads a file, because of its path in a directory."""
    # Spark takes _a=1 for the directory of a partition.
    return any(part.startswith("_") and "=" not in part for part in name.split("/"))


class UnreadFiles:
    """What Spark will not read of a directory that it watches, and those below it.

    Args:
        folder: The directory.
        pattern: Other files are left alone.
    """

    def __init__(self, folder: Folder, pattern: str | None = None) -> None:
        self._folder, self._pattern = folder, pattern
        # Time of each file that was told, the time known before, and the batch that told it.
        self._told: dict[str, tuple[int, int, int]] = {}
        self._times_us: dict[str, int] = {}  # when each file was last changed, as far as known
        self._memory: tuple[Folder, str] | None = None  # where what was told is kept
        self._next_look = 0.0

    def remember(self, query: Folder, memory: Folder, name: str) -> None:
        """Learn what earlier starts knew, and keep what is told from now on.

        Args:
            query: Checkpoint of the query; the logs of its sources say which files Spark took, and
                of which time.
            memory: Where what was told is kept,
            name: and under which name.
        """
        root = f"{posixpath.normpath(self._folder.uri.partition(':')[2]).lstrip('/')}/"
        for source in (query / "sources").names():
            log = query / "sources" / source
            for part in log.names():
                with suppress(OSError, ValueError, LookupError):
                    for line in log.read_text(part).splitlines()[1:]:
                        entry = json.loads(line)
                        path = unquote(entry["path"]).partition(":")[2].lstrip("/")
                        if path.startswith(root):
                            file = path.removeprefix(root)
                            self._times_us[file] = 1000 * int(entry["timestamp"])
        with suppress(FileNotFoundError):
            for file, (time_us, known_us, batch) in memory.read_json(name).items():
                self._told[file] = time_us, known_us, batch
                self._times_us[file] = time_us
        self._memory = memory, name

    def look(self, batch: int, *, at_once: bool = False) -> list[Reject]:
        """Return what has come since the last look, if it is time for one; a batch tells it."""
        now = time.monotonic()
        if now < self._next_look and not at_once:
            return []
        self._next_look = now + LOOK_S
        found = []
        for name, n_bytes, time_us in self._folder.files():
            if self._pattern is not None and not fnmatch(posixpath.basename(name), self._pattern):
                continue
            if is_beside_data(name):
                continue
            known_us = self._times_us.setdefault(name, time_us)
            why = None
            if is_passed_over(name):
                if name not in self._told:
                    why = "has a name that begins with _, so Spark passes it over"
            elif time_us // 1000 != known_us // 1000:  # Spark keeps milliseconds
                why = "was written again, and a name is read once"
            elif not n_bytes and not name.endswith(MAY_BE_EMPTY) and name not in self._told:
                why = "is empty, so there is nothing to read"
            if why is not None:
                self._told[name], self._times_us[name] = (time_us, known_us, batch), time_us
                found.append(self._reject(name, why))
        return found

    def keep(self) -> None:
        """Keep what was told over starts, now that the rejects are written."""
        if self._memory is not None:
            folder, name = self._memory
            folder.write_json(name, self._told)

    def forget(self, batch: int) -> bool:
        """Tell anew what a batch told that runs again; return whether there is any."""
        gone = [name for name, (_, _, told_by) in self._told.items() if told_by == batch]
        for name in gone:
            _, self._times_us[name], _ = self._told.pop(name)
            self._next_look = 0.0
        return bool(gone)

    def _reject(self, name: str, why: str) -> Reject:
        location = f"{self._folder.path}/{name}"
        return Reject(location, 0, "", f"the file {why}; write it again under another name", "")
