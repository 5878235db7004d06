"""Taking changes into an index: each batch of them becomes a delta, and a new version.

All of it runs on the driver, which decides in one place what a change means: it knows who is
subscribed (:mod:`earshot.spark.roster`), judges changes as the engine does, and writes down what
was accepted. Workers apply exactly that. Shards are not opened here, but to count their words where
these are weighed anew. That is a change as well: what was counted goes into its delta, and every
shard weighs by that, whenever it applies it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.pandas.types import from_arrow_schema

from earshot import storage
from earshot.encoding import NO_TIME_US
from earshot.engine.changes import apply_changes, spans_of
from earshot.errors import InUse, InvalidParameter, InvalidRow, SavedIndexError
from earshot.files import Reject
from earshot.model.batches import instant, time_us
from earshot.model.ranking import WordCounts
from earshot.model.schemas import (
    BOX_FIELDS,
    CIRCLE_FIELDS,
    TIME,
    id_type,
    subscriptions_schema,
)
from earshot.placement.routing import merge_units
from earshot.spark.build import base_counts, build_base, sampled_messages
from earshot.spark.notes import NOTE
from earshot.spark.prepare import ROW, SOURCE, located_rejects
from earshot.spark.roster import Roster, close_roster, open_roster
from earshot.spark.shards import (
    ANY_SHARD,
    COUNTS,
    SHARD,
    STEP,
    changes_since,
    counted_words,
    read_delta,
    write_counts,
)
from earshot.spark.store import Delta, IndexStore, Version, latest_us
from earshot.spark.territory import read_units

FOLDED = 8
"""So many deltas of as many steps become one."""
MOST_FOLDED_CHANGES = 50_000
"""Deltas that hold more together stay apart: they are few, and a merge is due soon."""
REGION_FIELDS = (*BOX_FIELDS, *CIRCLE_FIELDS, "geometry")


CountWords: TypeAlias = Callable[[Callable[[int], WordCounts], Sequence[int]], Iterable[WordCounts]]
"""Calls a function of a shard's number for each of some shards, where they are."""


class Intake(NamedTuple):
    """What became of a batch of changes."""

    version: Version
    rejects: list[InvalidRow]
    n_rows: int


def take_in(
    store: IndexStore,
    changes: pa.Table | Iterable[pa.Table],
    *,
    stream: str = "",
    batch: int | None = None,
    clock_us: int | None = None,
    on_rejects: Callable[[list[Reject]], None] | None = None,
    count_words: CountWords | None = None,
) -> Intake:
    """Apply canonical changes, in order, to the current version; return the version that has them.

    They may come with the columns :data:`SOURCE` and :data:`ROW`, which tell where each is from,
    and in several parts, of which one is looked at at a time.

    A batch of a stream that was taken in before is not again. The clock is that of the messages, if
    it is ahead of the changes' own times. ``on_rejects`` is told what was refused before the
    version appears, so that what it writes is there whenever the version is. ``count_words`` counts
    the words of all shards where they are to be weighed anew; by default in this process.
    """
    version = store.latest()
    if version.base.placement == "hashed":
        raise InvalidParameter(
            f"{store.folder.path} is for {store.settings.form.noun}: its subscriptions live in the "
            f"pipelines that run over it; bring changes in through their [changes]"
        )
    if is_taken_in(version, stream, batch):
        return Intake(version, [], 0)
    try:
        new, n_rows = version, 0
        errors: list[InvalidRow] = []
        rejects: list[Reject] = []
        for part in [changes] if isinstance(changes, pa.Table) else changes:
            names = [name for name in part.column_names if name not in (SOURCE, ROW)]
            plain = part.select(names).combine_chunks()
            new, wrong = _all_taken_in(
                store, new, version, plain, from_us=clock_us, count_words=count_words
            )
            rejects += located_rejects(wrong, part)
            errors += [InvalidRow("", n_rows + each.row, each.field, each.reason) for each in wrong]
            n_rows += part.num_rows
        if on_rejects is not None:
            on_rejects(rejects)
        if new is version and batch is None:
            return Intake(version, errors, n_rows)
        if batch is not None:
            taken_in = {**version.taken_in, stream: batch}
            new = replace(new, number=version.number + 1, taken_in=taken_in)
        store.publish(new)
    except BaseException:
        close_roster(store.folder.uri)  # it may have the changes
        raise
    return Intake(new, errors, n_rows)


def is_taken_in(version: Version, stream: str, batch: int | None) -> bool:
    """Whether a version has a batch of a stream of changes already."""
    return batch is not None and version.taken_in.get(stream, -1) >= batch


def in_order(changes: pa.Table, *, by_origin: bool) -> pa.Table:
    """Return changes in the order in which they are applied.

    By time where all have one; among equals, and without times, by their origin or as they are.
    """
    keys = [(SOURCE, "ascending"), (ROW, "ascending")] if by_origin else []
    if changes.num_rows and changes.column("time").null_count == 0:
        keys = [("time", "ascending"), *keys]
    numbered = changes.append_column("position", pa.array(np.arange(changes.num_rows)))
    return numbered.sort_by([*keys, ("position", "ascending")]).drop_columns(["position"])


def _all_taken_in(
    store: IndexStore,
    base: Version,
    latest: Version,
    changes: pa.Table,
    *,
    from_us: int | None = None,
    count_words: CountWords | None = None,
) -> tuple[Version, list[InvalidRow]]:
    """Take changes in as :func:`_taken_in` does, with steps of their own for reweighings."""
    new, errors = base, []
    if COUNTS not in changes.schema.names:  # else they were taken in before, on another base
        nothing = pa.nulls(changes.num_rows, pa.binary())
        changes = changes.append_column(COUNTS, nothing)
    if store.settings.matcher.weighs_words_by is None:  # and reweighings are refused
        return _taken_in(store, base, latest, changes, from_us=from_us)
    for start, stop, is_reweighing in spans_of(changes):
        part = changes.slice(start, stop - start)
        if is_reweighing:
            part = _counted(store, new, part, from_us, count_words)
        new, wrong = _taken_in(store, new, latest, part, from_us=from_us)
        errors += [InvalidRow("", start + each.row, each.field, each.reason) for each in wrong]
    return new, errors


def _counted(
    store: IndexStore,
    version: Version,
    reweighing: pa.Table,
    from_us: int | None,
    count_words: CountWords | None,
) -> pa.Table:
    """Return a row that asks for words to be weighed, with how many subscriptions ask for each."""
    if reweighing.column(COUNTS).null_count == 0:
        return reweighing
    times_us = reweighing.column("time").cast(pa.int64()).to_pylist()
    clock_us = latest_us(version.clock_us, from_us, *times_us)
    count = partial(counted_words, store.folder.uri, version, clock_us)
    shards = range(version.base.n_shards)
    parts = map(count, shards) if count_words is None else count_words(count, shards)
    data = pa.array([write_counts(WordCounts.total(parts))], pa.binary())
    at = reweighing.schema.get_field_index(COUNTS)
    return reweighing.set_column(at, COUNTS, data)


def weights_of(store: IndexStore, version: Version) -> bytes | None:
    """Return the counts by which the words of a version were weighed last, None for never."""
    for delta in reversed(version.deltas):
        counts = read_delta(store, delta)[0].column(COUNTS).drop_null()
        if len(counts):
            data: bytes = counts[-1].as_py()
            return data
    return base_counts(store.base_folder(version.base))


def _taken_in(
    store: IndexStore,
    base: Version,
    latest: Version,
    changes: pa.Table,
    *,
    from_us: int | None = None,
    until_us: int | None = None,
) -> tuple[Version, list[InvalidRow]]:
    """Write changes to ``base`` as a delta; return the version after ``latest``, with that delta.

    Where nothing came of them, not even a later clock, ``base`` itself is returned. The clock is
    ``from_us`` before them and ``until_us`` after them, where it would otherwise be earlier.
    """
    roster = open_roster(store, base)
    for clock_us in (base.clock_us, from_us):
        if clock_us is not None:
            roster.advance(instant(clock_us))
    roster.look_up(changes.column("id").combine_chunks())
    clocks = _clocks(changes, roster.time)
    numbered = changes.append_column(ROW, pa.array(np.arange(changes.num_rows)))
    errors = apply_changes(roster, numbered)
    if until_us is not None:
        roster.advance(instant(until_us))
    clock_us = None if roster.time is None else time_us(roster.time)
    version = replace(
        base,
        number=latest.number + 1,
        n_subscriptions=len(roster),
        clock_us=clock_us,
        taken_in=latest.taken_in,
    )
    if len(errors) == changes.num_rows:
        return base if clock_us == base.clock_us else version, errors
    kept = np.delete(np.arange(changes.num_rows), [error.row for error in errors])
    numbers = np.full(changes.num_rows, ANY_SHARD, np.int32)
    for rows, assigned in roster.assigned:
        numbers[rows] = assigned
    # Each with the clock that it found: a shard does not see the times of others' changes.
    timed = changes.set_column(changes.schema.get_field_index("time"), "time", clocks)
    accepted = timed.append_column(SHARD, pa.array(numbers)).take(pa.array(kept))
    deltas = _write_delta(store, base, accepted, roster, clock_us)
    roster.step = deltas[-1].last
    return replace(version, deltas=deltas), errors


def _clocks(changes: pa.Table, clock: datetime | None) -> pa.Array:
    """Return the clock at each change, null before any time."""
    start_us = NO_TIME_US if clock is None else time_us(clock)
    times = changes.column("time").cast(pa.int64()).fill_null(NO_TIME_US).to_numpy()
    clocks = np.maximum.accumulate(np.maximum(times, start_us))
    return pa.array(clocks, mask=clocks == NO_TIME_US).cast(TIME)


def _write_delta(
    store: IndexStore, base: Version, changes: pa.Table, roster: Roster, clock_us: int | None
) -> tuple[Delta, ...]:
    """Write the next step of a version; return its deltas with that step.

    Where many small deltas have come together, it is written together with their steps.
    """
    step = base.step + 1
    kept, folded = _tail_to_fold(base.deltas, changes.num_rows)
    all_changes = changes.append_column(STEP, pa.array(np.full(changes.num_rows, step)))
    units, words = [roster.units], roster.words
    if folded:
        earlier = pa.concat_tables([read_delta(store, delta)[0] for delta in folded])
        all_changes = pa.concat_tables([earlier, all_changes])
    if folded and roster.is_cut:
        read = [read_units(store, delta) for delta in folded]
        units = [*(each for each, _ in read), *units]
        words = [*(word for _, some in read for word in some), *words]
    folder = store.delta_folder(store.next_name("deltas"))

    def write_changes(directory: Path) -> None:
        directory.mkdir()
        pq.write_table(all_changes, directory / "changes.parquet")

    folder.add("changes", write_changes)
    if roster.is_cut:
        contents = storage.Contents({}, {"units": merge_units(units)})
        folder.add("units", lambda path: storage.save(path, contents))
    facts = {"n_changes": all_changes.num_rows, "clock_us": clock_us, "words": words}
    folder.write_json("delta.json", facts)
    first = folded[0].first if folded else step
    name = folder.uri.rpartition("/")[2]
    return (*kept, Delta(name, first, step, all_changes.num_rows))


def _tail_to_fold(
    deltas: tuple[Delta, ...], n_changes: int
) -> tuple[tuple[Delta, ...], tuple[Delta, ...]]:
    """Return the deltas that stay as they are, and the last ones to be joined by the next step.

    As in a number of base :data:`FOLDED`, there are fewer than so many deltas of 1 step, of 8, of
    64 and so on, and a change is written once for each of these sizes.
    """
    n_steps, n_kept = 1, len(deltas)
    while True:
        first = n_kept - (FOLDED - 1)
        if first < 0 or any(delta.n_steps != n_steps for delta in deltas[first:n_kept]):
            break
        n_changes += sum(delta.n_changes for delta in deltas[first:n_kept])
        if n_changes > MOST_FOLDED_CHANGES:
            break
        n_kept, n_steps = first, n_steps * FOLDED
    return deltas[:n_kept], deltas[n_kept:]


# ---- merging ------------------------------------------------------------------------------------


def subscriptions(session: SparkSession, store: IndexStore, version: Version) -> DataFrame:
    """Return the subscriptions of a version as a table in canonical columns.

    *On the driver*: the deltas, which hold only what changed since the base. *In each task*: the
    rows of the base, without those that are gone, with those that moved in their new place.
    """
    schema = subscriptions_schema(id_type(store.settings.ids))
    folder = store.base_folder(version.base)
    paths = [f"{folder.uri}/rows/{name}" for name in version.base.shards]
    rows = session.read.schema(from_arrow_schema(schema)).parquet(*paths)
    if version.deltas:
        folded = _folded([read_delta(store, delta)[0] for delta in version.deltas])
        touched = session.createDataFrame(pa.table({"id": folded.replaced}))
        rows = rows.join(F.broadcast(touched), "id", "left_anti").select(*schema.names)
        if folded.moved.num_rows:
            moved = session.createDataFrame(folded.moved)
            places = F.struct(*(F.col(name) for name in REGION_FIELDS)).alias("place")
            joined = rows.join(F.broadcast(moved.select("id", places)), "id", "left")
            rows = joined.withColumns(
                {
                    name: F.when(F.col("place").isNull(), F.col(name)).otherwise(
                        F.col(f"place.{name}")
                    )
                    for name in REGION_FIELDS
                }
            ).select(*schema.names)
        if folded.new.num_rows:
            rows = rows.unionByName(session.createDataFrame(folded.new.select(schema.names)))
    if version.clock_us is not None:
        clock = F.lit(instant(version.clock_us))
        rows = rows.where(F.col("expires").isNull() | (F.col("expires") > clock))
    return rows


class _Folded(NamedTuple):
    replaced: pa.Array  # ids whose row of the base does not count any more
    moved: pa.Table  # ids whose row of the base counts, in another place
    new: pa.Table  # rows that the base does not have


def _folded(deltas: Sequence[pa.Table]) -> _Folded:
    """Return what deltas come to in the end."""
    changes = pa.concat_tables(deltas)
    changes = changes.filter(pc.not_equal(changes.column("op"), "reweigh"))
    ids = changes.column("id").combine_chunks()
    codes = pc.dictionary_encode(ids)
    numbers = codes.indices.to_numpy(zero_copy_only=False)
    operations = changes.column("op").to_numpy(zero_copy_only=False)
    rows = np.arange(len(numbers))
    last_set, last_move = np.full((2, len(codes.dictionary)), -1, np.int64)
    is_move = operations == "move"
    # Rows ascend, so of several the last one stays.
    last_set[numbers[~is_move]] = rows[~is_move]
    last_move[numbers[is_move]] = rows[is_move]
    is_set = last_set >= 0
    is_subscribed = is_set & (operations[last_set] == "subscribe")
    moved = ~is_set & (last_move >= 0)
    new = changes.take(pa.array(last_set[is_subscribed]))
    moves = last_move[is_subscribed]
    has_moved = moves > last_set[is_subscribed]
    if has_moved.any():
        # The region of the move, the rest of the subscription.
        regions = changes.take(pa.array(np.where(has_moved, moves, last_set[is_subscribed])))
        for name in REGION_FIELDS:
            new = new.set_column(new.schema.get_field_index(name), name, regions.column(name))
    return _Folded(
        codes.dictionary.filter(pa.array(is_set)),
        changes.take(pa.array(last_move[moved])).select(["id", *REGION_FIELDS]),
        new,
    )


def merge(
    session: SparkSession,
    store: IndexStore,
    *,
    lock: AbstractContextManager[Any],
    n_tasks: int | None = None,
) -> Version:
    """Build the current version anew, without deltas, and make that current.

    Changes may be taken in meanwhile; they come on top of the new base. Matching goes on with the
    versions that it has. The lock is held while versions are published; whoever takes in changes
    holds it as well. With ``n_tasks``, no more tasks than that run at a time.
    """
    before = store.latest()
    assert before.base.placement != "hashed"  # whose changes are not taken in here
    noted = subscriptions(session, store, before).withColumn(NOTE, F.lit(None).cast("string"))
    base, _ = build_base(
        noted, store, store.settings,
        placement=before.base.placement,
        n_shards=before.base.n_shards if before.base.placement == "sharded" else None,
        messages=sampled_messages(store, before.base),
        stop_at_rejects=True, unique_ids=True, n_tasks=n_tasks, counts=weights_of(store, before),
    )  # fmt: skip
    with lock:
        latest = store.latest()
        if latest.base != before.base or latest.step < before.step:
            raise InUse(
                f"{store.folder.path} was built anew while changes were merged; the merge is given "
                f"up"
            )
        merged = replace(
            latest,
            number=latest.number + 1,
            base=base,
            deltas=(),
            n_subscriptions=sum(base.n_subscriptions),
            clock_us=before.clock_us,
        )
        if latest.step == before.step:
            merged = replace(merged, clock_us=latest.clock_us)
        else:
            # Shards may be cut elsewhere now: what came meanwhile is taken in again.
            changes = changes_since(store, latest, before.step)[0].drop_columns([SHARD, STEP])
            merged, errors = _all_taken_in(store, merged, latest, changes)
            nothing = changes.slice(0, 0)
            merged, _ = _taken_in(store, merged, latest, nothing, until_us=latest.clock_us)
            if errors:
                raise SavedIndexError(
                    f"{store.folder.path}: changes do not fit the merged base: {errors[0]}; the "
                    f"index stays as it was"
                )
        store.publish(merged)
    return merged
