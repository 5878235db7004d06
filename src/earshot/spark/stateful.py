"""Pipelines for semantics that keep messages: top-k over a window, and moving subscribers.

One streaming query takes messages, changes and positions together. The driver writes the events of
a batch down, in their order, before anything is matched (:mod:`earshot.spark.recorded`). Then each
shard applies them to its engine (:mod:`earshot.spark.state`), one task per shard.

**Where a shard runs.** Its engine is warm in the Python worker that served it last. Spark hands out
Python workers by their environment, so a variable with the shard's number brings a shard back to
its own worker; and a cached row per shard brings it back to the executor of that worker.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import RDD
from pyspark.sql import DataFrame

from earshot.encoding import NO_TIME_US
from earshot.errors import InUse, InvalidFile, InvalidParameter
from earshot.files import Reject, reject_table
from earshot.model.schemas import Content, id_type, schema_of
from earshot.spark.arrivals import Arrivals
from earshot.spark.connectors import FileFormat, FileSink, batch_directory, drafted, owned
from earshot.spark.folders import Folder
from earshot.spark.intake import in_order
from earshot.spark.notes import NOTE, arrival_of_notes, rejects_of_notes
from earshot.spark.prepare import ROW, SOURCE, arrived_rows
from earshot.spark.recorded import KINDS, EventLog, merged
from earshot.spark.rows import RowReading
from earshot.spark.session import SPARK_IS_GONE
from earshot.spark.shards import SHARD
from earshot.spark.state import (
    SNAPSHOTS_KEPT,
    Report,
    ShardState,
    StateTask,
    run_shards,
    state_before,
    write_results,
)
from earshot.spark.store import IndexStore, Version, latest_us
from earshot.spark.stream import BatchLog, BatchRecord, Pipeline, StartQuery

PATIENCE = 5
"""How often a state is opened anew that a running pipeline removes meanwhile."""
BEGAN = "began.json"
"""File in a checkpoint that names the version that the pipeline began with, and what it takes."""
EVENTS = "events"
"""The one query, over rows of all kinds."""
VARIABLE = "EARSHOT_SHARD"
"""Variable in the environment of Python workers, by which Spark tells those of shards apart."""
_environment = threading.Lock()  # held while the variable is set


@dataclass(eq=False)
class StatefulPipeline(Pipeline):
    """A pipeline whose messages depend on those before."""

    _streams: dict[Content, DataFrame]  # rows as they come, of each kind
    _readings: dict[Content, RowReading]
    _snapshot_every: int
    _results: FileSink | None
    _results_every: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._events = EventLog(self._checkpoint)
        self._settings = self._store.settings
        self._homes: list[RDD[int]] = []

    def _begin_version(self) -> Version:
        """Return the subscriptions that the pipeline began with, which later builds do not change.

        Raises:
            InUse: The index was built anew since, or other kinds of events come.
        """
        folder, latest = self._checkpoint / "earshot", self._store.latest()
        kinds = list(self._streams)
        try:
            began = folder.read_json(BEGAN)
        except FileNotFoundError:
            self._store.hold(self._name, latest.number)
            folder.create_json(BEGAN, {"version": latest.number, "kinds": kinds})
            return latest
        number = began["version"]
        # Spark numbers the sources of a query.
        if began.get("kinds", kinds) != kinds:
            raise InUse(
                f"checkpoint {self._checkpoint.path} has taken {' and '.join(began['kinds'])} from "
                f"the start, and now {' and '.join(kinds)} are to come; take the same, or start "
                f"with a new checkpoint and a new sink"
            )
        if number != latest.number:
            raise InUse(
                f"checkpoint {self._checkpoint.path} has results of version {number} of "
                f"{self._store.folder.path}, which was built anew since; bring subscriptions in as "
                f"changes, or start with a new checkpoint and a new sink"
            )
        return latest

    # ---- life -----------------------------------------------------------------------------------

    def _query_of(self, content: Content) -> str:
        return EVENTS

    def _own_sinks(self) -> None:
        super()._own_sinks()
        if self._results is not None:
            owned(self._results, self._owner, "results")

    def _start_queries(self, query: StartQuery, available_now: bool) -> None:
        self._version = self._begin_version()  # now that it owns all that it writes to
        self._n_shards = self._version.base.n_shards
        self._arrivals = Arrivals(f"{self._checkpoint.uri}/earshot/arrivals", self._n_shards)
        context = self._session.sparkContext
        self._homes = [context.parallelize([shard], 1).persist() for shard in range(self._n_shards)]
        query(self._all_events(), EVENTS, self._take_batch)

    def _disown(self) -> None:
        super()._disown()
        homes, self._homes = self._homes, []
        for home in homes:
            with suppress(*SPARK_IS_GONE):
                home.unpersist()

    def _all_events(self) -> DataFrame:
        """Return as one stream where tasks put the rows of all kinds."""
        check = self._settings.row_check
        parts = [
            arrived_rows(rows, self._readings[kind], check, self._arrivals)
            for kind, rows in self._streams.items()
        ]
        return reduce(DataFrame.union, parts)

    # ---- batches --------------------------------------------------------------------------------

    def _take_batch(self, rows: DataFrame, batch: int) -> None:
        with self._working(self._matching):
            started = time.monotonic()
            for kind in self._streams:
                self._untell_unread(kind, batch)
            if not self._events.has(batch):
                self._write_down(rows, batch)
            facts = self._events.facts(batch)
            record = self._log.record(batch)
            if record is None:
                record = BatchRecord(batch, self._version.number, -1, facts["clock_us"])
                self._log.write(record)
            reports = self._run(batch)
            rejects = [(kind, Reject(**each)) for kind, each in facts["rejects"]]
            rejects += [each for report in reports for each in report.rejects]
            self._write_rejects(rejects, batch)
            for kind in self._streams:
                self._tell_unread(kind, batch)
            counts = {
                name: sum(getattr(report, name) for report in reports)
                for name in ("messages", "updates", "changes", "positions")
            }
            counts["rejects"] = len(rejects)
            self._log.write(
                record._replace(
                    messages=counts["messages"],
                    updates=counts["updates"],
                    rejects=counts["rejects"],
                    clock_after_us=facts["clock_after_us"],
                )
            )
            self._clean(batch)
            self._tell_batch(
                batch,
                started,
                counts,
                facts["arrived_us"],
                first_version=self._version.number,
                version=self._version.number,
                n_subscriptions=sum(report.n_subscriptions for report in reports),
            )

    def _write_down(self, rows: DataFrame, batch: int) -> None:
        """Put the events of a batch in order, and write them to the log."""
        self._arrivals.clear()
        arrived = rows.toArrow()
        tables: dict[Content, pa.Table] = {}
        rejects: list[tuple[Content, dict[str, Any]]] = []
        arrivals_us = []
        for kind in KINDS:
            noted = self._arrivals.read(arrived, kind)
            if noted is None:
                continue
            notes = noted.column(NOTE)
            told = notes.drop_null()
            rejects += [(kind, each._asdict()) for each in rejects_of_notes(told)]
            arrivals_us.append(arrival_of_notes(told))
            own = noted.filter(pc.is_null(notes))
            by_origin = self._readings[kind].form != "columns"
            tables[kind] = in_order(self._columns_of(kind, own), by_origin=by_origin)
        events = merged(tables)
        before = self._events.facts(batch - 1) if self._events.has(batch - 1) else {}
        clock_us = before.get("clock_after_us")
        latest = [int(run.clocks[-1]) for run in events.in_order()]
        times = [each for each in latest if each != NO_TIME_US]
        n_messages = tables["messages"].num_rows if "messages" in tables else 0
        first_message = before.get("first_message", 0) + before.get("n_messages", 0)
        facts = {
            "clock_us": clock_us,
            "clock_after_us": latest_us(clock_us, *times),
            "first_message": first_message,
            "n_messages": n_messages,
            "rejects": rejects,
            "arrived_us": min((each for each in arrivals_us if each is not None), default=None),
        }
        self._events.write(batch, events, facts)
        self._arrivals.clear()

    def _columns_of(self, kind: Content, rows: pa.Table) -> pa.Table:
        """Return rows with the columns of their kind that have anything in them, and the origin."""
        reading = self._readings[kind]
        schema = schema_of(kind, id_type(reading.ids))
        names = schema.names
        kept = [name for name in names if name == "time" or rows[name].null_count < rows.num_rows]
        kept += [SOURCE, ROW, *([SHARD] if kind != "messages" else [])]
        return rows.select(kept)

    def _run(self, batch: int) -> list[Report]:
        """Let all shards take a batch, and write its updates."""
        name = batch_directory(batch)
        results = self._results if (batch + 1) % self._results_every == 0 else None
        with ExitStack() as drafts:
            task = self._task(batch)
            if results is not None:
                place = drafts.enter_context(drafted(results.folder, name))
                task = replace(task, results=place, results_format=results.format)
            # Shards write their files: through Spark's rows it takes as long as matching.
            if isinstance(self._sink, FileSink) and self._sink.format == "parquet":
                place = drafts.enter_context(drafted(self._sink.folder, name))
                return self._reports(replace(task, updates=place))
            folder = self._checkpoint / "earshot"
            with drafted(folder, "updates") as place:
                reports = self._reports(replace(task, updates=place))
            self._sink(self._session.read.parquet(f"{folder.uri}/updates"), batch)
            folder.remove("updates")
            return reports

    def _task(self, batch: int) -> StateTask:
        return StateTask(
            self._name,
            self._checkpoint.uri,
            self._store.folder.uri,
            self._version,
            self._settings,
            self._readings["messages"].ids,
            0,
            batch,
            self._snapshot_every,
        )

    def _reports(self, task: StateTask) -> list[Report]:
        """Let all shards write their updates; return what they did."""
        # Not a table: to plan one takes Spark longer than to run its tasks.
        context = self._session.sparkContext
        parts = []
        with _environment:
            try:
                for shard, home in enumerate(self._homes):
                    context.environment[VARIABLE] = str(shard)
                    part = home.mapPartitions(partial(run_shards, task))
                    part.id()  # as it is asked for, the environment is noted
                    parts.append(part)
            finally:
                context.environment.pop(VARIABLE, None)
        return context.union(parts).collect()

    def _write_rejects(self, rejects: list[tuple[Content, Reject]], batch: int) -> None:
        for kind in self._streams:
            refused = [each for content, each in rejects if content == kind]
            sink = self._rejects.get(kind)
            if refused and sink is not None:
                sink(self._session.createDataFrame(reject_table(refused)), batch)

    def _clean(self, batch: int) -> None:
        """Remove what no shard can need any more to be brought up to date."""
        if (batch + 1) % self._snapshot_every:
            return
        states = self._checkpoint / "earshot" / "states"
        oldest = []
        for shard in range(self._n_shards):
            names = (states / f"{shard:04d}").names()
            # A shard that was saved once may have to go back to where the pipeline began.
            known = len(names) >= SNAPSHOTS_KEPT
            oldest.append(int(names[-SNAPSHOTS_KEPT].partition("-")[0]) if known else -1)
        self._events.remove_before(min(min(oldest) + 1, batch))


def write_results_of(
    index: str | Path, checkpoint: str | Path, target: Folder, file_format: FileFormat
) -> int:
    """Write what subscriptions hold after the last finished batch of a pipeline, shard by shard.

    Returns the number of the batch, -1 where none has finished.
    """
    store, folder = IndexStore(index), Folder(checkpoint)
    settings = store.settings
    if not settings.keeps_messages:
        raise InvalidParameter(f"{settings.form.noun} keeps no results")
    try:
        number = (folder / "earshot").read_json(BEGAN)["version"]
    except FileNotFoundError:
        raise InvalidFile(
            f"{folder.path} is not the checkpoint of a pipeline that has run"
        ) from None
    done = [each.batch for each in BatchLog(checkpoint).records() if each.is_done]
    batch = max(done, default=-1)
    version = store.version(number)
    for shard in range(version.base.n_shards):
        task = StateTask(
            "", folder.uri, store.folder.uri, version, settings, "string", shard, batch + 1,
            results_format=file_format,
        )  # fmt: skip
        write_results(_opened_results(task).engine, task, target.uri)
    return batch


def _opened_results(task: StateTask) -> ShardState:
    for attempt in range(PATIENCE):
        try:
            return state_before(task, None)[0]
        except FileNotFoundError:  # a later snapshot took the place of those that were there
            if attempt == PATIENCE - 1:
                raise
    raise AssertionError
