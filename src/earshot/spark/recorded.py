"""What a batch of a stateful pipeline consists of, written down before it is matched.

::

    earshot/events/00000012/  facts.json, and per kind of event changes.arrow, positions.arrow,
                              messages.arrow (absent where there are none), runs.arrow

A directory appears when it is complete and on disk, and is never changed. It is the log from which
a shard that has lost its state is brought up to date, and what a batch that runs again sees.

**Order.** The rows of each kind are in the order of their times where all have one; otherwise, and
among equal times, by their origin. Then the kinds are merged: a row stands at the latest time that
its kind has carried up to there, and at the same time changes come before positions and positions
before messages. ``runs.arrow`` has the result: so many rows of one kind, so many of the next.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from earshot import storage
from earshot.encoding import NO_TIME_US
from earshot.model.arrays import Int64s
from earshot.model.schemas import Content
from earshot.spark.arrivals import read_arrow, write_arrow
from earshot.spark.folders import Folder

KINDS: tuple[Content, ...] = ("changes", "positions", "messages")
"""Kinds of events, in the order in which they happen at the same time."""


class Run(NamedTuple):
    """Neighbours of one kind."""

    kind: Content
    rows: pa.Table
    clocks: Int64s  # latest time of all events of the batch up to each row, NO_TIME_US before any


class Events(NamedTuple):
    """The events of a batch."""

    tables: Mapping[Content, pa.Table]  # rows of each kind that there is, in their order
    runs: pa.Table  # kind (position in KINDS), n

    def in_order(self) -> Iterator[Run]:
        """Yield all events, as runs of one kind."""
        starts = dict.fromkeys(self.tables, 0)
        clock_us = NO_TIME_US
        for number, n in zip(*(self.runs[name].to_pylist() for name in ("kind", "n")), strict=True):
            kind = KINDS[number]
            rows = self.tables[kind].slice(starts[kind], n)
            starts[kind] += n
            clocks = np.maximum(_clocks(rows), clock_us)
            clock_us = int(clocks[-1])
            yield Run(kind, rows, clocks)


def merged(tables: Mapping[Content, pa.Table]) -> Events:
    """Return the rows of all kinds, which are in order, as the events of a batch."""
    present = {kind: tables[kind] for kind in KINDS if kind in tables and tables[kind].num_rows}
    clocks = [_clocks(rows) for rows in present.values()]
    numbers = [np.full(len(each), KINDS.index(kind), np.int8)
               for kind, each in zip(present, clocks, strict=True)]  # fmt: skip
    nothing = np.empty(0, np.int64)
    kinds = np.concatenate([nothing.astype(np.int8), *numbers])
    kinds = kinds[np.lexsort((kinds, np.concatenate([nothing, *clocks])))]
    ends = np.append(np.flatnonzero(kinds[1:] != kinds[:-1]), len(kinds) - 1)[: len(kinds)]
    counts = np.diff(ends, prepend=-1)
    return Events(present, pa.table({"kind": pa.array(kinds[ends]), "n": pa.array(counts)}))


def _clocks(rows: pa.Table) -> Int64s:
    if "time" not in rows.schema.names:
        return np.full(rows.num_rows, NO_TIME_US, np.int64)
    times = rows.column("time").cast(pa.int64()).fill_null(NO_TIME_US).to_numpy()
    clocks: Int64s = np.maximum.accumulate(times)
    return clocks


class EventLog:
    """The events of a pipeline's batches, in its checkpoint."""

    def __init__(self, checkpoint: Folder) -> None:
        self._folder = checkpoint / "earshot" / "events"

    def batches(self) -> list[int]:
        """Return the numbers of the batches that are there, ascending."""
        return [int(name) for name in self._folder.names()]

    def has(self, batch: int) -> bool:
        """Whether a batch was written down."""
        return self._folder.exists(_name(batch))

    def facts(self, batch: int) -> dict[str, Any]:
        """Return what was noted of a batch."""
        facts: dict[str, Any] = (self._folder / _name(batch)).read_json("facts.json")
        return facts

    def write(self, batch: int, events: Events, facts: Mapping[str, Any]) -> None:
        """Write down a batch, which must not be there yet."""

        def write(directory: Path) -> None:
            directory.mkdir()
            for name, table in (*events.tables.items(), ("runs", events.runs)):
                write_arrow(directory / f"{name}.arrow", table)
            Folder(directory).write_json("facts.json", dict(facts))
            for path in directory.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            storage.sync(directory)

        self._folder.add(_name(batch), write)
        if self._folder.is_local:
            storage.sync(Path(self._folder.path))

    def read(self, batch: int) -> Events:
        """Return the events of a batch, memory-mapped."""
        directory = self._folder.local(_name(batch))
        tables = {path.stem: read_arrow(path) for path in directory.glob("*.arrow")}
        runs = tables.pop("runs")
        return Events({kind: tables[kind] for kind in KINDS if kind in tables}, runs)

    def remove_before(self, batch: int) -> None:
        """Remove the batches before a given one."""
        for number in self.batches():
            if number < batch:
                self._folder.remove(_name(number))


def _name(batch: int) -> str:
    return f"{batch:08d}"
