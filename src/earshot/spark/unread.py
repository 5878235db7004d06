"""Files that Spark passes over in silence: they are told and counted as rejects.

Spark's file source takes each path once, none whose name begins with an underscore, and nothing of
a file without bytes. So a file that is written again under its old name is not read again, and
``_report.parquet`` is never read.
(Names that begin with a dot are what writers give to files that are not complete yet. They are left
alone.)
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from fnmatch import fnmatch

from earshot.files import Reject
from earshot.spark.folders import Folder

LOOK_S = 5.0
"""How often a directory is looked at, at most."""
MAY_BE_EMPTY = (".ndjson", ".jsonl")
"""Files of no bytes that have no rows; others are broken."""
MARKS = ("_SUCCESS", "_spark_metadata", "_metadata", "_common_metadata")
"""What Spark and others leave beside data."""


class UnreadFiles:
    """What Spark will not read of a directory that it watches.

    Args:
        folder: The directory.
        pattern: Other files are left alone.
    """

    def __init__(self, folder: Folder, pattern: str | None = None) -> None:
        self._folder, self._pattern = folder, pattern
        self._told: set[str] = set()
        self._times_us: dict[str, int] = {}  # when each file was last changed, as far as known
        self._next_look = 0.0

    def remember(self, taken: Folder) -> None:
        """Learn from the log of Spark's source which files it took, and of which time."""
        for name in taken.names():
            with suppress(OSError, ValueError):
                for line in taken.read_text(name).splitlines()[1:]:
                    entry = json.loads(line)
                    file = entry["path"].rpartition("/")[2]
                    self._times_us[file] = 1000 * int(entry["timestamp"])

    def look(self, *, at_once: bool = False) -> list[Reject]:
        """Return what has come since the last look, if it is time for one."""
        now = time.monotonic()
        if now < self._next_look and not at_once:
            return []
        self._next_look = now + LOOK_S
        found = []
        for name, n_bytes, time_us in self._folder.files():
            if self._pattern is not None and not fnmatch(name, self._pattern):
                continue
            if name.startswith("_"):
                if name not in self._told and name not in MARKS:
                    self._told.add(name)
                    found.append(
                        self._reject(name, "has a name that begins with _, so Spark passes it over")
                    )
                continue
            if not n_bytes and not name.endswith(MAY_BE_EMPTY) and name not in self._told:
                self._told.add(name)
                found.append(self._reject(name, "is empty, so there is nothing to read"))
            known_us = self._times_us.setdefault(name, time_us)
            if time_us // 1000 != known_us // 1000:  # Spark keeps milliseconds
                self._times_us[name] = time_us
                found.append(self._reject(name, "was written again, and a name is read once"))
        return found

    def _reject(self, name: str, why: str) -> Reject:
        location = f"{self._folder.path}/{name}"
        return Reject(location, 0, "", f"the file {why}; write it again under another name", "")
