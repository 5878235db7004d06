"""The state of a shard, for semantics that keep messages: an engine, warm in a worker.

A worker keeps the engine of a shard from batch to batch. One that lacks it, because it is new or
because the shard was elsewhere, opens the last snapshot and applies the batches since then from the
log, without telling their updates. A task that is tried again and finds the engine ahead does the
same. Events are applied in the same calls each time, so an engine that was brought up to date is
the one that was lost.

::

    earshot/states/0003/00000016-5f…/  the engine of shard 3 after batch 16
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa

from earshot.encoding import NO_TIME_US
from earshot.engine.changes import waves
from earshot.engine.engine import Engine
from earshot.engine.updates import Updates
from earshot.errors import InvalidInput, InvalidRow, SavedIndexError
from earshot.files import Reject, TableWriter
from earshot.model.batches import instant, time_us
from earshot.model.schemas import (
    OPERATIONS,
    Content,
    IdKind,
    id_type,
    update_fields,
    updates_schema,
)
from earshot.spark.folders import Folder
from earshot.spark.hashed import number_words
from earshot.spark.prepare import located_rejects
from earshot.spark.recorded import EventLog, Run
from earshot.spark.shards import SHARD, warm_up_machine
from earshot.spark.store import IndexSettings, IndexStore, Version

SEQUENCE = "sequence"
"""Column that tells the updates of a batch apart, and the order of those of a subscription."""

SNAPSHOT_EVERY = 16
"""Batches between two snapshots of a shard."""
SNAPSHOTS_KEPT = 2
"""The last one may be of the batch that is tried again; then it takes the one before."""

_MESSAGES_PER_CALL = 1 << 14
_ROWS_PER_BATCH = 1 << 16
_MOST_STATES = 4


@dataclass(frozen=True)
class StateTask:
    """What a worker has to know to take a shard through a batch."""

    pipeline: str  # its name, over all its starts
    checkpoint: str  # URI
    index: str  # URI
    version: Version  # the subscriptions that the pipeline began with
    settings: IndexSettings
    message_ids: IdKind  # kind of the messages' ids
    shard: int
    batch: int
    snapshot_every: int = SNAPSHOT_EVERY
    updates: str = ""  # URI of the directory for the updates
    results: str | None = None  # directory for what subscriptions hold after the batch
    results_format: str = "parquet"

    @property
    def schema(self) -> pa.Schema:
        """The columns of updates."""
        matcher = self.settings.matcher
        fields = updates_schema(
            id_type(self.message_ids),
            id_type(self.settings.ids),
            update_fields(matcher.has_scores, matcher.keeps_results),
        )
        return pa.schema([*fields, (SEQUENCE, pa.int64())])

    @property
    def log(self) -> EventLog:
        """The events of all batches."""
        return EventLog(Folder(self.checkpoint))

    @property
    def snapshots(self) -> Folder:
        """Where the snapshots of the shard are."""
        return Folder(self.checkpoint) / "earshot" / "states" / f"{self.shard:04d}"

    @property
    def is_snapshot_due(self) -> bool:
        """Whether the shard is saved after this batch; shards take turns."""
        return (self.batch + 1 + self.shard) % self.snapshot_every == 0


@dataclass
class ShardState:
    """The engine of a shard after a batch, -1 before the first."""

    engine: Engine
    batch: int


@dataclass
class Report:
    """What a shard did in a batch."""

    updates: int = 0
    messages: int = 0
    changes: int = 0
    positions: int = 0
    rejects: list[tuple[Content, Reject]] = field(default_factory=list)
    n_subscriptions: int = 0
    replayed: int = 0  # batches that had to be applied again before this one


_states: dict[tuple[str, str, int], ShardState] = {}


# ---- tasks --------------------------------------------------------------------------------------


def run_shards(task: StateTask, shards: Iterable[int]) -> Iterator[Report]:
    """Take shards, of which a partition has one, through a batch; yield what they did."""
    for shard in shards:
        yield run_shard(replace(task, shard=shard))


def run_shard(task: StateTask) -> Report:
    """Take a shard through a batch, and write its updates; return what it did."""
    key = (task.checkpoint, task.pipeline, task.shard)
    # Taken out while it is at work: what is left of a task that fails in between is not used.
    state, n_replayed = state_before(task, _states.pop(key, None))
    report = Report(replayed=n_replayed)
    with _file(task.updates, task, task.schema, "parquet") as writer:
        for table in _tables(state, task, report):
            writer.write(table)
    if task.results is not None:
        write_results(state.engine, task, task.results)
    if task.is_snapshot_due:
        save_snapshot(state, task)
    report.n_subscriptions = len(state.engine)
    _states[key] = state
    while len(_states) > _MOST_STATES:
        _states.pop(next(iter(_states)))
    return report


def _tables(state: ShardState, task: StateTask, report: Report) -> Iterator[pa.Table]:
    """Take a state through a batch; yield its updates as tables of some size."""
    tables: list[pa.Table] = []
    for updates in apply_batch(state, task, report):
        tables.append(_table(updates, task, report))
        if sum(each.num_rows for each in tables) >= _ROWS_PER_BATCH:
            yield pa.concat_tables(tables).combine_chunks()
            tables = []
    yield pa.concat_tables([task.schema.empty_table(), *tables]).combine_chunks()


def _table(updates: Updates, task: StateTask, report: Report) -> pa.Table:
    """Return updates in the columns of the task."""
    names = task.schema.names[:-1]
    n, n_shards = len(updates), task.version.base.n_shards
    sequences = (np.arange(report.updates, report.updates + n) * n_shards) + task.shard
    report.updates += n
    table = updates.table(names).append_column(SEQUENCE, pa.array(sequences, pa.int64()))
    return table.cast(task.schema)


def write_results(engine: Engine, task: StateTask, directory: str) -> None:
    """Write what the subscriptions of a shard hold, in place of an earlier file."""
    table = engine.results_table()
    with _file(directory, task, table.schema, task.results_format) as writer:
        writer.write(table)


@contextmanager
def _file(
    directory: str, task: StateTask, schema: pa.Schema, file_format: str
) -> Iterator[TableWriter]:
    """Yield the writer of a shard's file, which appears when it is complete."""
    folder, name = Folder(directory), f"part-{task.shard:05d}.{file_format}"
    if folder.is_local:
        with TableWriter(Path(folder.path, name), schema) as writer:
            yield writer
        return
    with folder.draft() as draft:
        with TableWriter(draft / name, schema) as writer:
            yield writer
        folder.put_file(name, draft / name)


# ---- opening ------------------------------------------------------------------------------------


def state_before(task: StateTask, warm: ShardState | None) -> tuple[ShardState, int]:
    """Return the state of a shard before a batch, and how many batches were applied for that."""
    log = task.log
    state = warm
    if state is not None:
        is_ahead = state.batch >= task.batch
        if is_ahead or not all(log.has(batch) for batch in range(state.batch + 1, task.batch)):
            state = None
    if state is None:
        state = _opened(task)
    first = state.batch + 1
    for batch in range(first, task.batch):
        earlier = replace(task, batch=batch)
        for _ in apply_batch(state, earlier, Report()):
            pass  # they were told when the batch was first taken
    return state, task.batch - first


def _opened(task: StateTask) -> ShardState:
    """Open the last snapshot before a batch, or what the pipeline began with."""
    warm_up_machine(task.settings.semantics, task.settings.structure)
    snapshots = task.snapshots
    for name in sorted(snapshots.names(), reverse=True):
        batch = int(name.partition("-")[0])
        if batch < task.batch:
            with suppress(FileNotFoundError):  # removed by one that has a later one
                return ShardState(_open(snapshots.local(name)), batch)
    store, base = IndexStore(task.index), task.version.base
    path = store.base_folder(base).local(f"shards/{base.shards[task.shard]}")
    return ShardState(_open(path), -1)


def _open(path: Path) -> Engine:
    if not path.exists():
        raise FileNotFoundError(path)
    return Engine.open(path, rebuild_in_background=False)


def save_snapshot(state: ShardState, task: StateTask) -> None:
    """Save a state; it appears when it is whole and on disk. Those before the last two go."""
    snapshots = task.snapshots
    snapshots.add(f"{state.batch:08d}-{uuid4().hex[:8]}", state.engine.save)
    for name in snapshots.names()[:-SNAPSHOTS_KEPT]:
        snapshots.remove(name)
        (snapshots / name).forget()


# ---- events -------------------------------------------------------------------------------------


def apply_batch(state: ShardState, task: StateTask, report: Report) -> Iterator[Updates]:
    """Apply the events of a batch to a state; yield the updates, call by call.

    Each has to be used before the next one is asked for.
    """
    if state.batch != task.batch - 1:
        raise SavedIndexError(
            f"{task.checkpoint}: shard {task.shard} is at batch {state.batch} and cannot take "
            f"batch {task.batch}; remove {task.snapshots.path} to apply the log from its beginning"
        )
    taken = {"messages": _publish, "changes": _change, "positions": _move}
    for run in task.log.read(task.batch).in_order():
        yield from taken[run.kind](state.engine, task, run, report)
    state.batch = task.batch


def _publish(engine: Engine, task: StateTask, run: Run, report: Report) -> Iterator[Updates]:
    """Publish messages, which every shard has; the first one reports them."""
    for start in range(0, run.rows.num_rows, _MESSAGES_PER_CALL):
        rows = run.rows.slice(start, _MESSAGES_PER_CALL)
        found = engine.publish_batch(rows, on_error="reject")
        if task.shard == 0:
            report.messages += found.n_rows
            _note_rejects(report, "messages", found.rejects, rows)
        yield found


def _change(engine: Engine, task: StateTask, run: Run, report: Report) -> Iterator[Updates]:
    """Apply changes, those of this shard; the others only move the clock."""
    shards = run.rows.column(SHARD).to_numpy()
    operations = run.rows.column("op").to_numpy(zero_copy_only=False)
    # At once, for waves are in another order than their rows.
    number_words(engine, run.rows.take(pa.array(np.flatnonzero(operations == "subscribe"))))
    is_reweighing = operations == "reweigh"
    is_apart = is_reweighing | np.append(False, is_reweighing[:-1])
    starts = np.flatnonzero(np.diff(run.clocks, prepend=run.clocks[:1] - 1) | is_apart)
    for start, stop in zip(starts, [*starts[1:], len(run.clocks)], strict=True):
        clock_us = int(run.clocks[start])
        if clock_us != NO_TIME_US:
            yield engine.advance(instant(clock_us))
        rows = run.rows.slice(start, stop - start)
        if is_reweighing[start]:
            yield from _reweigh(engine, rows, report, is_own=shards[start] == task.shard)
            continue
        for wave in waves(rows):
            at = wave + start
            own = at[shards[at] == task.shard]
            for operation in OPERATIONS:
                chosen = run.rows.take(pa.array(own[operations[own] == operation]))
                if chosen.num_rows:
                    found = _apply(engine, operation, chosen)
                    report.changes += found.n_rows
                    _note_rejects(report, "changes", found.rejects, chosen)
                    yield found


def _reweigh(engine: Engine, row: pa.Table, report: Report, *, is_own: bool) -> Iterator[Updates]:
    """Weigh words anew: all shards do, for all have the messages; one reports it."""
    try:
        yield engine.reweigh()
        report.changes += is_own
    except InvalidInput as error:
        if is_own:
            _note_rejects(report, "changes", [InvalidRow("", 0, "op", str(error))], row)


def _apply(engine: Engine, operation: str, rows: pa.Table) -> Updates:
    match operation:
        case "subscribe":
            return engine.subscribe_batch(rows, on_error="reject")
        case "unsubscribe":
            ids = rows.column("id").combine_chunks()
            return engine.unsubscribe_batch(ids, on_error="reject")
        case _:
            return engine.move_batch(rows, on_error="reject")


def _move(engine: Engine, task: StateTask, run: Run, report: Report) -> Iterator[Updates]:
    """Apply positions, those of this shard; the others only move the clock."""
    rows, clocks = run.rows, run.clocks
    if engine.time is not None:
        clocks = np.maximum(clocks, time_us(engine.time))
    is_own = rows.column(SHARD).to_numpy() == task.shard
    is_sorted = "time" in rows.schema.names and bool(
        np.array_equal(rows.column("time").cast(pa.int64()).fill_null(NO_TIME_US), clocks)
    )
    start, n = 0, rows.num_rows
    while start < n:
        clock_us = int(clocks[start])
        if is_sorted:
            # Up to where something is due. That happens at the clock of the row that finds it so,
            # whosever position it is.
            due_us = engine.next_due_us
            stop = n if due_us is None else int(np.searchsorted(clocks, due_us))
        if not is_sorted or stop <= start:
            if clock_us != NO_TIME_US:
                yield engine.advance(instant(clock_us))
            stop = int(np.searchsorted(clocks, clock_us, side="right"))
        own = np.flatnonzero(is_own[start:stop]) + start
        start = stop
        if len(own):
            chosen = rows.take(pa.array(own))
            found = engine.move_batch(chosen, on_error="reject")
            report.positions += found.n_rows
            _note_rejects(report, "positions", found.rejects, chosen)
            yield found
    if clocks[-1] != NO_TIME_US:
        yield engine.advance(instant(int(clocks[-1])))


def _note_rejects(
    report: Report, content: Content, errors: list[InvalidRow], rows: pa.Table
) -> None:
    if errors:
        report.rejects += [(content, each) for each in located_rejects(errors, rows)]
