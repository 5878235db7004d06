"""The suite ``spark_states``: what is left of the engine's rate where messages depend on others.

Top-k over a window and moving subscribers: files of events wait, and a pipeline takes some files of
each kind per batch. The engine in this process reads the same files, once file by file and once as
many in a call as a batch has; the faster way counts. All give tables of updates, whose checksums
must agree. Batches that fill the window, or start workers, are not counted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from earshot.bench.checksums import Pairs, check_agreement, checksum, shown
from earshot.bench.context import Context
from earshot.bench.measuring import WALL, rates
from earshot.bench.profiles import SparkEffort
from earshot.bench.results import Row, basics
from earshot.bench.spark import N_CORES, stages
from earshot.engine.engine import Engine
from earshot.files import read_rows
from earshot.model.moving import Moving
from earshot.model.schemas import Content, schema_of
from earshot.model.topk import TopK
from earshot.semantics import matcher_type
from earshot.spark import FileSink, Stream, build, match_stream
from earshot.spark.stream import Status
from earshot.workloads.moving import Movement, generate, lattice
from earshot.workloads.synthetic import Workload, message_table

WARM_BATCHES = 2
"""Batches that are not counted, beside those that fill a window."""
MAX_KEYWORDS = 3
N_SIDE = 40
"""Junctions on a side of the streets on which subscribers move."""


@dataclass(frozen=True)
class Case:
    """A semantics, subscriptions, and files of events, some of each kind for each batch."""

    semantics: Any
    subscriptions: pa.Table
    folder: Path
    kinds: tuple[Content, ...]
    n_batches: int
    n_warm: int  # batches that are not counted
    files_per_batch: int

    @property
    def name(self) -> str:
        """Name of the semantics."""
        return matcher_type(self.semantics).name

    @property
    def n_files(self) -> int:
        """Files of each kind."""
        return self.n_batches * self.files_per_batch

    def path(self, kind: str, number: int) -> Path:
        """Return a file."""
        return self.folder / kind / f"{number:05d}.parquet"

    def write(self, kind: str, number: int, rows: pa.Table) -> None:
        """Write a file of events."""
        path = self.path(kind, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, path)
        # Spark takes the oldest first, and knows no order among files of one moment.
        second = time.time() - 2 * self.n_files + number
        os.utime(path, (second, second))


class Done(NamedTuple):
    """What was counted, and the checksum of all updates."""

    n_events: int
    n_updates: int
    elapsed_s: float
    checksum: int
    events_per_call: int


def measure_states(context: Context, workloads: Iterable[Workload]) -> Iterator[Row]:
    """Streams of events through one engine, and through shards on Spark."""
    effort = context.profile.spark
    for made, folder in stages(context, workloads):
        for case in (_topk(made.workload, effort, folder), _moving(effort, folder)):
            alone = _engine(case)
            context.say(f"spark_states: {case.name}, {alone.n_events:,} events")
            # Moving subscribers: the default, one for each core.
            n_shards = effort.n_shards if case.name == "topk" else N_CORES
            shared = _pipeline(made.session, case, n_shards)
            check_agreement(
                case.name, {"engine": {0: alone.checksum}, "earshot": {0: shared.checksum}}
            )
            for name, done in (("engine", alone), ("earshot", shared)):
                n = len(case.subscriptions)
                yield {
                    **basics(case.name, name, n, done.n_events, N_CORES),
                    "n_shards": 1 if name == "engine" else n_shards,
                    "events_per_batch": done.events_per_call,
                    "answers_per_message": done.n_updates / max(done.n_events, 1),
                    "share_of_engine": alone.elapsed_s / done.elapsed_s,
                    "checksum": shown(done.checksum),
                    **rates([done.elapsed_s], done.n_events, done.n_updates, WALL),
                }


# ---- cases --------------------------------------------------------------------------------------


def _topk(workload: Workload, effort: SparkEffort, folder: Path) -> Case:
    """A window that fills in the batches before those that count."""
    size, window = effort.events_per_file, effort.state_window
    per_batch = effort.files_per_state_batch
    n_warm = -(-window // (size * per_batch)) + WARM_BATCHES
    n_batches = n_warm + effort.n_state_batches
    n_messages = n_batches * per_batch * size
    drawn = message_table(workload.scaled(n_messages=n_messages + effort.n_state_subscriptions))
    rest = drawn.slice(n_messages)
    # Words come by frequency; a subscriber names some of the rare ones.
    backwards = pc.split_pattern(pc.utf8_reverse(rest["text"].combine_chunks()), " ")
    rare = pc.list_slice(backwards, 0, MAX_KEYWORDS)
    words = pa.ListArray.from_arrays(rare.offsets, pc.utf8_reverse(rare.values))
    subscriptions = pa.table(
        {"id": np.arange(len(rest)), "keywords": words, "x": rest["x"], "y": rest["y"]}
    )
    subscriptions = subscriptions.filter(pc.greater(pc.list_value_length(words), 0))
    semantics = TopK(window, k=10, max_distance=1.0)
    case = Case(
        semantics, subscriptions, folder / "topk", ("messages",), n_batches, n_warm, per_batch
    )
    for number in range(case.n_files):
        case.write("messages", number, drawn.slice(number * size, size))
    return case


def _moving(effort: SparkEffort, folder: Path) -> Case:
    """Subscribers on streets, of which all report at once; then messages arrive."""
    n_batches, per_batch = WARM_BATCHES + effort.n_state_batches, effort.files_per_state_batch
    n = effort.n_state_subscriptions
    movement = Movement(n_subscriptions=n, n_messages=n, n_timestamps=n_batches * per_batch)
    tables = generate(movement, lattice(N_SIDE, movement.seed))
    semantics = Moving(movement.timestamp * round(movement.lifetime))
    kinds: tuple[Content, ...] = ("positions", "messages")
    case = Case(
        semantics, tables.subscriptions, folder / "moving", kinds, n_batches, WARM_BATCHES,
        per_batch,
    )  # fmt: skip
    step_us = movement.timestamp // timedelta(microseconds=1)
    # Both kinds count from the same timestamp, so that a file has one.
    first = min(pc.min(rows["time"]).value for rows in tables[1:]) // step_us
    for kind, rows in zip(kinds, (tables.positions, tables.messages), strict=True):
        times = rows["time"].cast(pa.int64()).to_numpy()
        steps = times // step_us
        at = rows.schema.get_field_index("time")
        # Clocks tick once in a timestamp: events of other times would be calls of their own.
        coarse = rows.set_column(at, "time", pa.array(steps * step_us).cast(rows["time"].type))
        for number in range(case.n_files):
            case.write(kind, number, coarse.filter(pa.array(steps - first == number)))
    return case


# ---- the two ways -------------------------------------------------------------------------------


def _engine(case: Case) -> Done:
    """Take all events in this process, in calls of the better size."""
    found = [_engine_calls(case, per_call) for per_call in sorted({1, case.files_per_batch})]
    check_agreement(case.name, {str(i): {0: done.checksum} for i, done in enumerate(found)})
    return min(found, key=lambda done: done.elapsed_s)


def _engine_calls(case: Case, per_call: int) -> Done:
    """Take so many files of each kind at a time, from files to tables of updates."""
    engine = Engine(case.semantics, space="planar", n_threads=N_CORES, rebuild_in_background=False)
    engine.subscribe_batch(case.subscriptions)
    total = n_events = n_updates = n_calls = 0
    elapsed_s = 0.0
    for first in range(0, case.n_files, per_call):
        started = time.perf_counter()
        tables = {kind: _read(case, kind, range(first, first + per_call)) for kind in case.kinds}
        messages = tables["messages"]
        if "positions" in tables:
            found = engine.take_batch(messages, tables["positions"], on_error="reject")
        else:
            found = engine.publish_batch(messages, on_error="reject")
        updates = found.table()
        spent_s = time.perf_counter() - started
        total += _sum(updates)
        if first >= case.n_warm * case.files_per_batch:
            elapsed_s += spent_s
            n_events += sum(table.num_rows for table in tables.values())
            n_updates += len(updates)
            n_calls += 1
    return Done(n_events, n_updates, elapsed_s, total % 2**64, n_events // n_calls)


def _read(case: Case, kind: Content, numbers: Iterable[int]) -> pa.Table:
    """Return the events of files, which may be none."""
    parts = [
        rows.batch
        for number in numbers
        for rows in read_rows(kind, case.path(kind, number), space="planar", ids="integer")
    ]
    return pa.Table.from_batches(parts, schema_of(kind, pa.int64()))


def _pipeline(session: SparkSession, case: Case, n_shards: int) -> Done:
    """Take all events on Spark."""
    index, out = case.folder / "index", case.folder / "out"
    build(
        session.createDataFrame(case.subscriptions), index,
        semantics=case.semantics, n_shards=n_shards, space="planar",
    )  # fmt: skip
    streams = {
        kind: Stream.of_files(
            session, case.folder / kind, files_per_batch=case.files_per_batch,
            ids="integer" if kind == "messages" else None,
        )
        for kind in case.kinds
    }  # fmt: skip
    ends: list[tuple[float, Status]] = []
    match_stream(
        streams["messages"], index, FileSink(out), case.folder / "checkpoint",
        positions=streams.get("positions"), available_now=True,
        on_batch=lambda status: ends.append((time.monotonic(), status)),
    ).await_end()  # fmt: skip
    (began, first), (ended, last) = ends[case.n_warm - 1], ends[-1]
    n_events = last.messages - first.messages + last.positions - first.positions
    total = 0
    for batch in ds.dataset(out, format="parquet", partitioning="hive").to_batches():
        total += _sum(pa.table(batch))
    per_call = n_events // (case.n_batches - case.n_warm)
    return Done(n_events, last.updates - first.updates, ended - began, total % 2**64, per_call)


def _sum(updates: pa.Table) -> int:
    """Return the sum of hashes of updates: message, sign and subscription."""
    messages = updates["message_id"].to_numpy() * 2
    messages = messages + pc.equal(updates["sign"], "+").cast(pa.int64()).to_numpy()
    return checksum(Pairs(messages, updates["subscription_id"].to_numpy().astype(np.int32)))
