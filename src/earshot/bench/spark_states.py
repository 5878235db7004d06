"""The suite ``spark_states``: what is left of the engine's rate where messages depend on others.

Top-k over a window and moving subscribers: files of events wait, and a pipeline takes one file of
each kind per batch. The engine in this process reads the same files. Both give tables of updates,
whose checksums must agree. Batches that fill the window, or start workers, are not counted.
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
from earshot.model.schemas import Content
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
    """A semantics, subscriptions, and files of events, one of each kind for each batch."""

    semantics: Any
    subscriptions: pa.Table
    folder: Path
    kinds: tuple[Content, ...]
    n_batches: int
    n_warm: int  # batches that are not counted

    @property
    def name(self) -> str:
        """Name of the semantics."""
        return matcher_type(self.semantics).name

    def path(self, kind: str, batch: int) -> Path:
        """Return the file of a batch."""
        return self.folder / kind / f"{batch:05d}.parquet"

    def write(self, kind: str, batch: int, rows: pa.Table) -> None:
        """Write the events of a batch."""
        self.path(kind, batch).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, self.path(kind, batch))
        # Spark takes the oldest first, and knows no order among files of one moment.
        second = time.time() - 2 * self.n_batches + batch
        os.utime(self.path(kind, batch), (second, second))


class Done(NamedTuple):
    """What was counted, and the checksum of all updates."""

    n_events: int
    n_updates: int
    elapsed_s: float
    checksum: int


def measure_states(context: Context, workloads: Iterable[Workload]) -> Iterator[Row]:
    """Streams of events through one engine, and through shards on Spark."""
    effort = context.profile.spark
    for made, folder in stages(context, workloads):
        for case in (_topk(made.workload, effort, folder), _moving(effort, folder)):
            alone = _engine(case)
            shared = _pipeline(made.session, case, effort.n_shards)
            check_agreement(
                case.name, {"engine": {0: alone.checksum}, "earshot": {0: shared.checksum}}
            )
            context.say(f"spark_states: {case.name}, {alone.n_events:,} events")
            for name, done in (("engine", alone), ("earshot", shared)):
                n = len(case.subscriptions)
                yield {
                    **basics(case.name, name, n, done.n_events, N_CORES),
                    "n_shards": 1 if name == "engine" else effort.n_shards,
                    "events_per_batch": done.n_events // (case.n_batches - case.n_warm),
                    "answers_per_message": done.n_updates / max(done.n_events, 1),
                    "share_of_engine": alone.elapsed_s / done.elapsed_s,
                    "checksum": shown(done.checksum),
                    **rates([done.elapsed_s], done.n_events, done.n_updates, WALL),
                }


# ---- cases --------------------------------------------------------------------------------------


def _topk(workload: Workload, effort: SparkEffort, folder: Path) -> Case:
    """A window that fills in the batches before those that count."""
    size, window = effort.events_per_batch, effort.state_window
    n_warm = -(-window // size) + WARM_BATCHES
    n_batches = n_warm + effort.n_state_batches
    n_messages = n_batches * size
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
    case = Case(semantics, subscriptions, folder / "topk", ("messages",), n_batches, n_warm)
    for batch in range(n_batches):
        case.write("messages", batch, drawn.slice(batch * size, size))
    return case


def _moving(effort: SparkEffort, folder: Path) -> Case:
    """Subscribers on streets, of which all report at once; then messages arrive."""
    n_batches = WARM_BATCHES + effort.n_state_batches
    n = effort.n_state_subscriptions
    movement = Movement(n_subscriptions=n, n_messages=n, n_timestamps=n_batches)
    tables = generate(movement, lattice(N_SIDE, movement.seed))
    semantics = Moving(movement.timestamp * round(movement.lifetime))
    kinds: tuple[Content, ...] = ("positions", "messages")
    case = Case(semantics, tables.subscriptions, folder / "moving", kinds, n_batches, WARM_BATCHES)
    step_us = movement.timestamp // timedelta(microseconds=1)
    # Both kinds count from the same timestamp, so that a batch has one.
    first = min(pc.min(rows["time"]).value for rows in tables[1:]) // step_us
    for kind, rows in zip(kinds, (tables.positions, tables.messages), strict=True):
        times = rows["time"].cast(pa.int64()).to_numpy()
        steps = times // step_us
        at = rows.schema.get_field_index("time")
        # Clocks tick once in a timestamp: events of other times would be calls of their own.
        coarse = rows.set_column(at, "time", pa.array(steps * step_us).cast(rows["time"].type))
        for batch in range(n_batches):
            case.write(kind, batch, coarse.filter(pa.array(steps - first == batch)))
    return case


# ---- the two ways -------------------------------------------------------------------------------


def _engine(case: Case) -> Done:
    """Take all events in this process, from files to tables of updates."""
    engine = Engine(case.semantics, space="planar", n_threads=N_CORES, rebuild_in_background=False)
    engine.subscribe_batch(case.subscriptions)
    parts = []
    n_events = n_updates = 0
    elapsed_s = 0.0
    for batch in range(case.n_batches):
        started = time.perf_counter()
        n = 0
        for kind in case.kinds:
            take = engine.move_batch if kind == "positions" else engine.publish_batch
            for rows in read_rows(kind, case.path(kind, batch), space="planar"):
                table = take(rows.batch, on_error="reject").table()
                parts.append(_sum(table))
                n += rows.batch.num_rows
                if batch >= case.n_warm:
                    n_updates += len(table)
        if batch >= case.n_warm:
            elapsed_s += time.perf_counter() - started
            n_events += n
    return Done(n_events, n_updates, elapsed_s, sum(parts) % 2**64)


def _pipeline(session: SparkSession, case: Case, n_shards: int) -> Done:
    """Take all events on Spark."""
    index, out = case.folder / "index", case.folder / "out"
    build(
        session.createDataFrame(case.subscriptions), index,
        semantics=case.semantics, n_shards=n_shards, space="planar",
    )  # fmt: skip
    streams = {
        kind: Stream.of_files(
            session, case.folder / kind, files_per_batch=1,
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
    return Done(n_events, last.updates - first.updates, ended - began, total % 2**64)


def _sum(updates: pa.Table) -> int:
    """Return the sum of hashes of updates: message, sign and subscription."""
    messages = updates["message_id"].to_numpy() * 2
    messages = messages + pc.equal(updates["sign"], "+").cast(pa.int64()).to_numpy()
    return checksum(Pairs(messages, updates["subscription_id"].to_numpy().astype(np.int32)))
