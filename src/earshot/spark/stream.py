"""Matching a stream of messages, while subscriptions change.

A pipeline is one streaming query over messages and, if subscriptions change while it runs, one over
changes. The driver takes each batch of changes into the index as a new version. When a batch of
messages begins, the driver writes down which version it sees and what the clock is; if the batch
has to run again after a crash, that record decides, so it gives the same updates. Changes take
effect in the next batch. When many have come together, they are merged into a new base by short
tasks beside the stream.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from earshot.files import Reject, reject_table
from earshot.model.schemas import Content
from earshot.spark.backlog import Backlog, Spool, split_spooled
from earshot.spark.connectors import FileSink, Sink, owned
from earshot.spark.folders import Folder
from earshot.spark.intake import in_order, is_taken_in, take_in
from earshot.spark.leases import Lease
from earshot.spark.match import run_at_shards, run_match, shard_homes
from earshot.spark.merging import Pace, merge
from earshot.spark.notes import (
    NOTE,
    Note,
    note_of_sums,
    note_sums,
    plain_failure,
    rejects_in,
    rejects_of_notes,
    without_notes,
)
from earshot.spark.owners import claim_checkpoint
from earshot.spark.preflight import check_executors
from earshot.spark.prepare import ROW, SOURCE, canonical_rows
from earshot.spark.rows import RowReading
from earshot.spark.session import SPARK_IS_GONE
from earshot.spark.shards import warm_up_machine
from earshot.spark.store import IndexStore, Version, latest_us
from earshot.spark.unread import UnreadFiles
from earshot.spark.workers import MatchTask, Shape

MERGE_SHARE, MERGE_LEAST = 0.05, 20_000
"""Changes after which deltas are merged: a share of the subscriptions, and at least so many."""
MOST_CHANGES = 50_000
"""Changes that a task hands to the driver, and that the driver takes in at a time."""
MERGE_CORES = 0.25
"""Share of the cores that a merge takes at most, and at least one, which then rests the more."""
KEPT_DURATIONS = 10_000
"""Batches whose durations are kept."""
KEPT_RECORDS = 100
"""Batches whose records are kept; Spark asks again only for the last one."""
RATE_S = 10.0
"""Rates are means over so many seconds."""

T = TypeVar("T")

StartQuery: TypeAlias = Callable[[DataFrame, str, Callable[[DataFrame, int], None]], None]
"""Starts a query over rows, under a name, with what is done with each batch."""


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

    @property
    def last_batch(self) -> int:
        """The last batch that has begun, -1 before any."""
        names = self._folder.names()
        return int(names[-1].partition(".")[0]) if names else -1

    def records(self) -> list[BatchRecord]:
        """Return all records that are kept, oldest first."""
        return [BatchRecord(**self._folder.read_json(name)) for name in self._folder.names()]

    def write(self, record: BatchRecord) -> None:
        """Write a record, in place of an earlier one of its batch."""
        self._folder.write_json(f"{record.batch:08d}.json", record._asdict())
        if record.is_done and record.batch >= KEPT_RECORDS:
            self._folder.remove(f"{record.batch - KEPT_RECORDS:08d}.json")


@dataclass(frozen=True)
class Status:
    """What a pipeline is doing."""

    batch: int = -1  # number of the last finished batch of messages, -1 before any
    batches: int = 0  # finished ones since the pipeline started
    messages: int = 0  # accepted messages since the pipeline started
    updates: int = 0
    rejects: int = 0  # rows refused since then, of messages and changes
    changes: int = 0
    positions: int = 0
    messages_per_s: float = 0.0  # over the last seconds
    updates_per_s: float = 0.0
    batch_s: float = 0.0  # how long the last batch took
    busy_s: float = 0.0  # how long all batches took
    # How long its oldest row had waited when its updates were out, if the source tells.
    lag_s: float | None = None
    first_version: int = 0  # version of the index that the first batch saw
    version: int = 0  # that the last one saw
    n_subscriptions: int = 0  # in that version
    merges: int = 0
    is_merging: bool = False
    merge_error: str | None = None  # what went wrong in the last one, if anything


@dataclass(eq=False)
class Pipeline:
    """A running pipeline; made by :func:`earshot.spark.match_stream`."""

    _session: SparkSession
    _store: IndexStore
    _checkpoint: Folder
    _sink: Sink
    _rejects: dict[Content, Sink | None]  # by what was refused
    _on_batch: Callable[[Status], None] | None

    def __post_init__(self) -> None:
        self._unread: dict[Content, UnreadFiles] = {}  # by what the files hold
        self._log = BatchLog(self._checkpoint.uri)
        self._owner = claim_checkpoint(self._checkpoint, self._store)
        self._name = self._owner.pipeline
        # Held while it runs: that of its checkpoint and, if it takes in changes, of the index.
        self._leases: list[Lease] = []
        self._queries: list[StreamingQuery] = []
        self._starting: Callable[[], None] | None = None
        # Held while a batch runs, one for messages and one for changes.
        self._matching, self._changing = threading.Lock(), threading.Lock()
        self._is_stopping = False
        self._status = Status()
        self._telling = threading.Lock()  # held while the status is changed
        self._recent: list[tuple[float, int, int]] = []  # start, messages, updates of batches
        self.durations_s: deque[float] = deque(maxlen=KEPT_DURATIONS)  # of the last batches

    # ---- what kinds of pipelines differ in ------------------------------------------------------

    @property
    def _writes_index(self) -> bool:
        """Whether it takes changes into the index."""
        return False

    @property
    def _shape(self) -> Shape:
        """What a row of the updates is."""
        return "rows"

    def _start_queries(self, query: StartQuery, available_now: bool) -> None:
        """Start the queries, or leave some for when the first one has ended."""
        raise NotImplementedError

    @property
    def _background(self) -> threading.Thread | None:
        """What is still going on beside the queries."""
        return None

    # ---- life -----------------------------------------------------------------------------------

    def watch_files(self, content: Content, unread: UnreadFiles | None) -> None:
        """Tell files that Spark passes over among the rejects."""
        if unread is not None:
            query = self._checkpoint / self._query_of(content)
            unread.remember(query, self._checkpoint / "earshot", f"unread-{content}.json")
            self._unread[content] = unread

    def _query_of(self, content: Content) -> str:
        """Return the name of the query that takes rows of a kind."""
        return content

    def _last_batch(self, content: Content) -> int:
        """Return the last batch that took rows of a kind, -1 for none."""
        return self._log.last_batch

    def start(self, interval: str | None, available_now: bool) -> None:
        """Start the queries.

        Raises:
            InUse: The checkpoint, the index or a sink belongs to another process or pipeline.
        """
        check_executors(self._session)
        self._own()
        trigger: dict[str, Any] = (
            {"availableNow": True} if available_now else {"processingTime": interval or "0 seconds"}
        )

        def query(rows: DataFrame, name: str, work: Callable[[DataFrame, int], None]) -> None:
            writer = rows.writeStream.foreachBatch(work).trigger(**trigger)
            location = f"{self._checkpoint.uri}/{name}"
            self._queries.append(writer.option("checkpointLocation", location).start())

        try:
            settings = self._store.settings
            # Before workers do it all at once.
            warm_up_machine(settings.semantics, settings.structure)
            self._start_queries(query, available_now)
        except BaseException:
            self._disown()
            raise

    def _own(self) -> None:
        """Take hold of all that the pipeline writes to."""
        told = f"the pipeline with checkpoint {self._checkpoint.path}"
        leases = [Lease(self._checkpoint / "earshot", told)]
        if self._writes_index:
            leases.append(self._store.lease(told))
        try:
            for lease in leases:
                lease.acquire()
                self._leases.append(lease)
            self._own_sinks()
        except BaseException:
            self._disown()
            raise

    def _own_sinks(self) -> None:
        sink = owned(self._sink, self._owner._replace(form=self._shape), "updates")
        assert sink is not None
        self._sink = sink
        self._rejects = {
            content: owned(sink, self._owner, f"rejected {content}")
            for content, sink in self._rejects.items()
        }

    def _disown(self) -> None:
        for lease in self._leases:
            lease.release()

    def status(self) -> Status:
        """Return what the pipeline is doing."""
        now = time.monotonic()
        recent = [each for each in self._recent if each[0] > now - RATE_S]
        span = max(now - recent[0][0], self._status.batch_s, 1e-3) if recent else 1.0
        return replace(
            self._status,
            messages_per_s=sum(each[1] for each in recent) / span,
            updates_per_s=sum(each[2] for each in recent) / span,
            is_merging=self._background is not None,
        )

    @property
    def is_active(self) -> bool:
        """Whether it still runs; raises what went wrong if something did."""
        if self._starting is not None and not self._queries[0].isActive:
            self._raise_failure()
            self._start_messages()
        if any(not query.isActive for query in self._queries):
            self._raise_failure()
        if self._starting is not None or any(query.isActive for query in self._queries):
            self._tell_unread_between()
            return True
        if self._background is None:
            self._tell_unread_between(at_end=True)
            self._disown()
        return False

    def await_end(self, timeout_s: float | None = None) -> bool:
        """Wait until it ends, by itself or with an error; return whether it has."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while self.is_active:
            if until is not None and time.monotonic() > until:
                return False
            time.sleep(0.05)
        background = self._background
        if background is not None:
            background.join()
        self._disown()
        return True

    def await_idle(self) -> None:
        """Wait until all that has arrived by now is done."""
        while self._starting is not None and self.is_active:
            time.sleep(0.05)
        for query in self._queries:
            query.processAllAvailable()

    def stop(self, patience_s: float = 30.0) -> None:
        """Stop after the batch that is going on; a start with the same checkpoint goes on there.

        A batch that takes longer than the patience is cut off, and runs again later.
        """
        self._is_stopping = True
        self._starting = None
        for working in (self._matching, self._changing):
            if working.acquire(timeout=patience_s):
                working.release()
        self._end()

    def _end(self) -> None:
        """End what is running."""
        self._is_stopping = True
        try:
            for query in self._queries:
                query.stop()
            self._end_background()
        finally:
            self._disown()

    def _end_background(self) -> None:
        """End what is going on beside the queries."""

    # ---- inside ---------------------------------------------------------------------------------

    @contextmanager
    def _working(self, lock: threading.Lock) -> Iterator[None]:
        with lock:
            if self._is_stopping:
                raise InterruptedError(
                    "the pipeline is stopping; this batch runs at the next start"
                )
            yield

    def _tell(self, counts: Mapping[str, float], **facts: Any) -> None:
        """Add to the counts of the status, and set what else there is to say."""
        with self._telling:
            sums = {name: getattr(self._status, name) + n for name, n in counts.items()}
            self._status = replace(self._status, **sums, **facts)

    def _tell_batch(
        self,
        batch: int,
        started: float,
        counts: Mapping[str, int],
        arrived_us: int | None,
        **facts: Any,
    ) -> None:
        """Add a finished batch to the status, and say so to whoever asked."""
        now = time.monotonic()
        self._recent = [each for each in self._recent if each[0] > now - RATE_S]
        self._recent.append((started, counts["messages"], counts["updates"]))
        waited_s = None if arrived_us is None else time.time() - arrived_us / 1e6
        self.durations_s.append(now - started)
        self._tell(
            {**counts, "batches": 1, "busy_s": now - started},
            batch=batch,
            batch_s=now - started,
            lag_s=None if waited_s is None else max(0.0, waited_s),
            **facts,
        )
        if self._on_batch is not None:
            self._on_batch(self.status())

    def _tell_unread(self, content: Content, batch: int, *, at_once: bool = False) -> None:
        """Count files that Spark passes over, and add them to the rejects of a batch."""
        unread, sink = self._unread.get(content), self._rejects.get(content)
        if unread is None:
            return
        found = unread.look(batch, at_once=at_once)
        if not found:
            return
        self._tell({"rejects": len(found)})
        if isinstance(sink, FileSink):
            sink.add(self._session.createDataFrame(reject_table(found)), batch)
        unread.keep()

    def _tell_unread_between(self, *, at_end: bool = False) -> None:
        """Tell files that Spark passes over while no batch runs; they go with the last one."""
        with ExitStack() as stack:
            for working in (self._matching, self._changing):
                if not working.acquire(blocking=False):
                    return
                stack.callback(working.release)
            for content in self._unread:
                batch = self._last_batch(content)
                if batch >= 0 or at_end:
                    self._tell_unread(content, max(batch, 0), at_once=at_end)

    def _untell_unread(self, content: Content, batch: int) -> None:
        """Remove what was told as that of a batch which only begins, or runs again."""
        unread, sink = self._unread.get(content), self._rejects.get(content)
        if unread is not None and unread.forget(batch) and isinstance(sink, FileSink):
            sink.remove(batch)

    def _start_messages(self) -> None:
        start, self._starting = self._starting, None
        if start is not None:
            start()

    def _raise_failure(self) -> None:
        for query in self._queries:
            error = None if query.isActive else query.exception()
            if error is not None and not self._is_stopping:
                self._end()  # one query without the other is no pipeline
                raise plain_failure(error) or error


@dataclass(eq=False)
class MatchingPipeline(Pipeline):
    """A pipeline whose messages do not depend on those before."""

    _messages: DataFrame
    _task: MatchTask
    _changes: DataFrame | None
    _change_reading: RowReading | None
    _merge_share: float
    _merge_least: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._publishing = threading.Lock()  # held by whoever writes versions
        self._merge: threading.Thread | None = None
        self._merge_tag = f"earshot-merge-{self._name}"
        self._n_changes_at_failure = 0
        self._held = -1
        self._homes: tuple[int, DataFrame | None] = 0, None  # and their number
        self._clock_us = self._log.clock_us

    @property
    def _writes_index(self) -> bool:
        return self._changes is not None

    @property
    def _shape(self) -> Shape:
        return self._task.shape

    @property
    def _background(self) -> threading.Thread | None:
        return self._merge

    def _last_batch(self, content: Content) -> int:
        if content == "changes":
            return self._store.latest().taken_in.get(self._name, -1)
        return super()._last_batch(content)

    def _start_queries(self, query: StartQuery, available_now: bool) -> None:
        if not self._store.is_held(self._name):
            # Before anything is cleaned away between the look at the current version and its use.
            self._hold(self._store.latest().number)
        if self._changes is not None:
            query(self._changes, "changes", self._change_batch)
        self._starting = partial(query, self._messages, "messages", self._match_batch)
        if self._changes is None or not available_now:  # else when the changes are in
            self._start_messages()

    def _end_background(self) -> None:
        """Give up a merge, which is begun anew when it is due again."""
        merging = self._merge
        while merging is not None and merging.is_alive():
            # Again and again: a job may be about to begin.
            self._session.sparkContext.cancelJobsWithTag(self._merge_tag)
            merging.join(0.2)

    def _hold(self, number: int) -> None:
        """Keep the version that a batch sees, and later ones."""
        if number != self._held:
            self._store.hold(self._name, number)
            self._held = number

    # ---- messages -------------------------------------------------------------------------------

    def _match_batch(self, rows: DataFrame, batch: int) -> None:
        with self._working(self._matching):
            started = time.monotonic()
            self._untell_unread("messages", batch)
            record = self._begin(batch)
            version = self._store.version(record.version)
            task = replace(self._task, version=version, clock_us=record.clock_us)
            note = self._run(rows, task, batch)
            reject_sink = self._rejects["messages"]
            if note.rejects and reject_sink is not None:
                refused = rejects_in(canonical_rows(rows, task.reading, task.settings.row_check))
                reject_sink(refused, batch)
            self._tell_unread("messages", batch)
            self._clock_us = latest_us(record.clock_us, note.latest_us)
            counts = {name: getattr(note, name) for name in ("messages", "updates", "rejects")}
            self._log.write(record._replace(**counts, clock_after_us=self._clock_us))
            self._tell_batch(
                batch,
                started,
                counts,
                note.arrived_us,
                first_version=self._status.first_version or version.number,
                version=version.number,
                n_subscriptions=version.n_subscriptions,
            )

    def _begin(self, batch: int) -> BatchRecord:
        """Return the record of a batch: the one it has, or a new one."""
        record = self._log.record(batch)
        if record is not None:
            self._hold(record.version)
            return record
        previous = self._log.record(batch - 1)
        version = self._store.latest()
        clock_us = latest_us(version.clock_us, previous and previous.clock_after_us)
        change_batch = version.taken_in.get(self._name, -1)
        self._hold(version.number)
        record = BatchRecord(batch, version.number, change_batch, clock_us)
        self._log.write(record)
        return record

    def _run(self, rows: DataFrame, task: MatchTask, batch: int) -> Note:
        """Match a batch and write its updates; return what was done."""
        found = run_match(rows, task, self._homes_of(task.version))
        if isinstance(self._sink, FileSink):
            did = Observation()
            self._sink(without_notes(found.observe(did, *note_sums())), batch)
            return note_of_sums(did.get)
        # Other sinks may run a plan in ways that Spark does not observe, or several times.
        found = found.persist()
        try:
            sums = found.agg(*note_sums()).collect()[0].asDict()
            self._sink(without_notes(found), batch)
        finally:
            found.unpersist()
        return note_of_sums(sums)

    def _homes_of(self, version: Version) -> DataFrame | None:
        """Return what keeps the tasks of shards in their places; None where there is one shard."""
        base = version.base
        if base.placement == "replicated":
            return None
        n_shards, homes = self._homes
        if homes is None or n_shards != base.n_shards:
            self._leave_homes()
            homes = shard_homes(self._session, base.n_shards)
            self._homes = base.n_shards, homes
        return homes

    def _leave_homes(self) -> None:
        _, homes = self._homes
        self._homes = 0, None
        if homes is not None:
            with suppress(*SPARK_IS_GONE):
                homes.unpersist()

    def _disown(self) -> None:
        self._leave_homes()
        super()._disown()

    # ---- changes --------------------------------------------------------------------------------

    def _change_batch(self, rows: DataFrame, batch: int) -> None:
        assert self._change_reading is not None
        with self._working(self._changing), self._publishing:
            if is_taken_in(self._store.latest(), self._name, batch):
                return
            self._untell_unread("changes", batch)
            (self._checkpoint / "earshot").remove("backlog")
            spool = Spool(f"{self._checkpoint.uri}/earshot/backlog", MOST_CHANGES)
            noted = canonical_rows(
                rows, self._change_reading, self._task.settings.row_check,
                with_origin=True, spool=spool,
            ).toArrow()  # fmt: skip
            noted, spooled = split_spooled(noted)
            refused = rejects_of_notes(noted.column(NOTE).drop_null())
            # Rows of a table come as Spark delivers them; others have their place at their source.
            changes: pa.Table | Iterator[pa.Table] = in_order(
                noted.filter(pc.is_null(noted.column(NOTE))).drop_columns([NOTE]),
                by_origin=self._change_reading.form != "columns",
            )
            if spooled:
                backlog = Backlog(rows.sparkSession, spool, spooled, noted)
                refused = rejects_of_notes(backlog.notes())
                changes = backlog.parts([SOURCE, ROW])

            def write_rejects(rejects: list[Reject]) -> None:
                refused.extend(rejects)
                reject_sink = self._rejects["changes"]
                if refused and reject_sink is not None:
                    table = rows.sparkSession.createDataFrame(reject_table(refused))
                    reject_sink(table, batch)

            took = take_in(
                self._store, changes,
                stream=self._name, batch=batch, clock_us=self._clock_us, on_rejects=write_rejects,
                at_shards=self._at_shards,
            )  # fmt: skip
            n_changes = took.n_rows - len(took.rejects)
            if spooled:
                (self._checkpoint / "earshot").remove("backlog")
            self._tell({"changes": n_changes, "rejects": len(refused)})
            self._tell_unread("changes", batch)
            self._store.clean()
        self._merge_if_due(took.version)

    def _at_shards(self, work: Callable[[int], T], shards: Sequence[int]) -> list[T]:
        _, homes = self._homes
        return run_at_shards(self._session, homes, work, shards)

    def _merge_pace(self) -> Pace:
        context = self._session.sparkContext
        n_slots = context.defaultParallelism
        n_executors = max(1, len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1)
        return Pace(
            max(1, int(MERGE_CORES * n_slots)),
            # Of an executor's slots a task takes one, for which all messages to its shards wait.
            rest=max(0.0, n_executors / (MERGE_CORES * n_slots) - 1),
            is_given_up=lambda: self._is_stopping,
        )

    def _merge_if_due(self, version: Version) -> None:
        due = max(
            self._merge_least,
            self._merge_share * sum(version.base.n_subscriptions),
            2 * self._n_changes_at_failure,
        )
        if version.n_changes < due or self._merge is not None or self._is_stopping:
            return

        def run() -> None:
            context = self._session.sparkContext
            context.addJobTag(self._merge_tag)  # that of a session is not on jobs of its RDDs
            # A pool of its own has a fair share, where Spark's scheduler is told to be fair.
            context.setLocalProperty("spark.scheduler.pool", "earshot-merge")
            try:
                merge(
                    self._session, self._store, lock=self._publishing,
                    at_shards=self._at_shards, pace=self._merge_pace(),
                )  # fmt: skip
                with self._publishing:
                    self._store.clean()
                self._tell({"merges": 1}, merge_error=None)
                self._n_changes_at_failure = 0
            except Exception as error:
                told = str(plain_failure(error) or error).splitlines() or [repr(error)]
                self._tell({}, merge_error=told[0])
                self._n_changes_at_failure = version.n_changes
            finally:
                self._merge = None

        self._merge = threading.Thread(target=run, name="earshot-merge", daemon=True)
        self._merge.start()
