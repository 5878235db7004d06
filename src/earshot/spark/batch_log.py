"""What each batch of a pipeline saw and did, written down in its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from earshot.spark.folders import Folder

KEPT_RECORDS = 100
"""Batches whose records are kept; Spark asks again only for the last one."""


class BatchRecord(NamedTuple):
    """What a batch of messages sees, and what it did."""

    batch: int  # its number
    version: int  # the version of the index that it sees
    change_batch: int  # last batch of the pipeline's changes in that version, -1 for none
    clock_us: int | None  # the clock when it began, in microseconds since 1970
    messages: int | None = None  # accepted ones; None until it is done, like all that follow
    updates: int | None = None
    rejects: int | None = None
    clock_after_us: int | None = None

    @property
    def is_done(self) -> bool:
        """Whether it was finished at least once."""
        return self.messages is not None


class BatchLog:
    """The records of a pipeline's batches, in its checkpoint."""

    def __init__(self, checkpoint: str | Path) -> None:
        self._folder = Folder(checkpoint) / "earshot" / "batches"

    def record(self, batch: int) -> BatchRecord | None:
        """Return the record of a batch, if it has begun."""
        try:
            return BatchRecord(**self._folder.read_json(f"{batch:08d}.json"))
        except FileNotFoundError:
            return None

    @property
    def clock_us(self) -> int | None:
        """The clock after the last batch, or when it began if it has not finished."""
        names = self._folder.names()
        if not names:
            return None
        last = BatchRecord(**self._folder.read_json(names[-1]))
        return last.clock_after_us if last.is_done else last.clock_us

    def records(self) -> list[BatchRecord]:
        """Return all records that are kept, oldest first."""
        return [BatchRecord(**self._folder.read_json(name)) for name in self._folder.names()]

    def write(self, record: BatchRecord) -> None:
        """Write a record, in place of an earlier one of its batch."""
        self._folder.write_json(f"{record.batch:08d}.json", record._asdict())
        if record.is_done and record.batch >= KEPT_RECORDS:
            self._folder.remove(f"{record.batch - KEPT_RECORDS:08d}.json")
