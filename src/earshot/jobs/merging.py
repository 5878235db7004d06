"""Messages and positions of two files as one sequence, in the order of their times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from earshot.encoding import NO_TIME_US
from earshot.encoding.columns import Bools
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


class Merged(NamedTuple):
    """Events that follow one another."""

    messages: FileBatch | None
    positions: FileBatch | None
    is_move: Bools  # of each event, in order


def merged_by_time(
    messages: Iterator[FileBatch], positions: Iterator[FileBatch]
) -> Iterator[Merged]:
    """Yield the events of both, as many at a time as are known; at one time, positions first.

    A row without a time stands where the row before it does. Each file keeps its own order.
    """
    said, moved = _Queue(messages), _Queue(positions)
    while not (said.is_empty and moved.is_empty):
        alone = said if moved.is_empty else moved if said.is_empty else None
        for queue in (said, moved):
            if not queue.is_empty and not len(queue.clocks):
                alone = queue  # no rows but rejects
        if alone is not None:
            n, is_moved = len(alone.clocks), alone is moved
            taken = alone.take(n)
            said_now, moved_now = (None, taken) if is_moved else (taken, None)
            yield Merged(said_now, moved_now, np.full(n, is_moved))
            continue
        until_us = min(int(queue.clocks[-1]) for queue in (said, moved))
        is_last = moved.clocks[-1] == until_us  # so that more of that time may come
        n_moved = int(np.searchsorted(moved.clocks, until_us, side="right"))
        n_said = int(np.searchsorted(said.clocks, until_us, side="left" if is_last else "right"))
        clocks = np.concatenate([moved.clocks[:n_moved], said.clocks[:n_said]])
        is_move = np.argsort(clocks, kind="stable") < n_moved
        yield Merged(said.take(n_said), moved.take(n_moved), is_move)
