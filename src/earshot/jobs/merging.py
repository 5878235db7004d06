"""Messages and positions of two files as one sequence, in the order of their times."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from earshot.encoding import NO_TIME_US
from earshot.files import FileBatch
from earshot.model.arrays import Int64s


class _Queue:
    """What is left of a file, and the clock that each row stands at."""

    def __init__(self, parts: Iterator[FileBatch]) -> None:
        self._parts = parts
        self._part: FileBatch | None = None
        self._clock_us = NO_TIME_US
        self.clocks: Int64s = np.empty(0, np.int64)
        self.next_part()

    def next_part(self) -> None:
        """Read on until there are rows, or the end."""
        while not len(self.clocks):
            self._part = next(self._parts, None)
            if self._part is None:
                return
            times = self._part.batch.column("time").cast(pa.int64()).fill_null(NO_TIME_US)
            clocks = np.maximum.accumulate(np.maximum(times.to_numpy(), self._clock_us))
            self.clocks = clocks
            if len(clocks):
                self._clock_us = int(clocks[-1])
            elif self._part.rejects:
                return

    @property
    def is_empty(self) -> bool:
        """Whether the file is at its end."""
        return self._part is None

    def take(self, n: int) -> FileBatch:
        """Return the first rows."""
        assert self._part is not None
        batch, rows, rejects, source = self._part
        self._part = FileBatch(batch.slice(n), rows[n:], [], source)
        self.clocks = self.clocks[n:]
        taken = FileBatch(batch.slice(0, n), rows[:n], rejects, source)
        self.next_part()
        return taken


def merged_by_time(
    messages: Iterator[FileBatch], positions: Iterator[FileBatch]
) -> Iterator[tuple[bool, FileBatch]]:
    """Yield runs of either, and whether they are positions; at the same time, positions first.

    A row without a time stands where the row before it does. Each file keeps its own order.
    """
    said, moved = _Queue(messages), _Queue(positions)
    while not (said.is_empty and moved.is_empty):
        if moved.is_empty or said.is_empty:
            queue = said if moved.is_empty else moved
            yield queue is moved, queue.take(len(queue.clocks))
            continue
        n = int(np.searchsorted(moved.clocks, said.clocks[:1], side="right")[:1].sum())
        if n or not len(moved.clocks):
            yield True, moved.take(n)
            continue
        n = int(np.searchsorted(said.clocks, moved.clocks[:1], side="left")[:1].sum())
        yield False, said.take(n)
