"""Merging changes into a new base, beside matching.

Each shard is *renewed* by a short task of its own: its engine is opened, gets its changes and is
saved anew, and so are its rows. Nothing goes from shard to shard; who has moved stays. Between
tasks the executors are left to matching for a while. When so much has changed since shards were cut
that they no longer fit, all are cut anew instead, from all rows, which takes longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.pandas.types import from_arrow_schema

from earshot.errors import InUse, SavedIndexError
from earshot.model.batches import instant
from earshot.model.schemas import (
    BOX_FIELDS,
    CIRCLE_FIELDS,
    TIME,
    changes_schema,
    id_type,
    subscriptions_schema,
)
from earshot.placement.routing import UnitArrays
from earshot.spark.build import (
    add_counts,
    add_sample,
    base_counts,
    build_base,
    put_shard,
    sampled_messages,
)
from earshot.spark.folders import Folder
from earshot.spark.intake import with_changes, with_delta
from earshot.spark.notes import NOTE
from earshot.spark.shards import (
    ANY_SHARD,
    COUNTS,
    SHARD,
    STEP,
    AtShards,
    at_shards_here,
    changes_since,
    open_apart,
    read_delta,
)
from earshot.spark.store import Base, IndexStore, Version, new_shard_name
from earshot.spark.territory import renewed_territory

MOST_MERGED = 0.5
"""Shards are cut anew when so many changes, as a share of the subscriptions, came since the cut,"""
MOST_UNBALANCED = 1.5
"""or when the largest one is so many times larger, beside the mean, than it was then."""
REGION_FIELDS = (*BOX_FIELDS, *CIRCLE_FIELDS, "geometry")


@dataclass(frozen=True)
class Pace:
    """How much a merge takes at most of what it shares with matching."""

    n_tasks: int = 1  # at a time
    rest: float = 0.0  # between tasks, as a multiple of how long the last ones took
    is_given_up: Callable[[], bool] = lambda: False

    def wait(self, elapsed_s: float) -> None:
        """Rest after tasks that took so long.

        Raises:
            InterruptedError: The merge is given up.
        """
        until = time.monotonic() + self.rest * elapsed_s
        while not self.is_given_up():
            left_s = until - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(left_s, 0.1))
        raise InterruptedError("the merge is given up")


def merge(
    session: SparkSession,
    store: IndexStore,
    *,
    lock: AbstractContextManager[Any],
    at_shards: AtShards = at_shards_here,
    pace: Pace | None = None,
    is_cut: bool | None = None,
) -> Version:
    """Make a base of the current version and its deltas, and publish that.

    Changes may be taken in meanwhile; they come on top of the new base. Matching goes on with the
    versions that it has. The lock is held while versions are published; whoever takes in changes
    holds it as well. Shards are cut anew where that is due, or as ``is_cut`` says.
    """
    pace = pace or Pace()
    with store.keeping_latest() as before:
        try:
            if needs_cutting(before) if is_cut is None else is_cut:
                base = _cut_base(session, store, before, pace)
            else:
                base = _renewed_base(store, before, at_shards, pace)
            with lock:
                merged = _rebased(store, before, base)
                store.publish(merged)
        except BaseException:
            with suppress(Exception):  # else at the next attempt
                store.remove_abandoned()
            raise
    return merged


def _rebased(store: IndexStore, before: Version, base: Base) -> Version:
    """Return the version that is current, on a base in which an earlier version was merged."""
    latest = store.latest()
    if latest.base != before.base or latest.step < before.step:
        raise InUse(
            f"{store.folder.path} was built anew while changes were merged; the merge is given up"
        )
    merged = replace(
        latest,
        number=latest.number + 1,
        base=base,
        deltas=(),
        n_subscriptions=sum(base.n_subscriptions),
        clock_us=before.clock_us,
    )
    if latest.step > before.step:
        # What came meanwhile is taken in again: shards may be cut elsewhere now.
        changes = changes_since(store, latest, before.step)[0].drop_columns([SHARD, STEP])
        merged, errors = with_changes(store, merged, latest, changes)
        if errors:
            raise SavedIndexError(
                f"{store.folder.path}: changes do not fit the merged base: {errors[0]}; the index "
                f"stays as it was"
            )
    if latest.clock_us != merged.clock_us:
        nothing = changes_schema(id_type(store.settings.ids)).empty_table()
        merged, _ = with_delta(store, merged, latest, nothing, until_us=latest.clock_us)
    return merged


def needs_cutting(version: Version) -> bool:
    """Whether shards no longer fit what is in them."""
    base = version.base
    if not version.deltas or base.placement == "replicated":  # a single shard fits anything
        return not version.deltas
    n_changed = base.n_merged + version.n_changes
    return (
        n_changed > MOST_MERGED * sum(base.n_subscriptions)
        or base.balance > MOST_UNBALANCED * (base.cut_balance or base.balance)
    )  # fmt: skip


def weights_of(store: IndexStore, version: Version) -> bytes | None:
    """Return the counts by which the words of a version were weighed last, None for never."""
    for delta in reversed(version.deltas):
        counts = read_delta(store, delta)[0].column(COUNTS).drop_null()
        if len(counts):
            data: bytes = counts[-1].as_py()
            return data
    return base_counts(store.base_folder(version.base))


# ---- cutting shards anew ------------------------------------------------------------------------


def _cut_base(session: SparkSession, store: IndexStore, before: Version, pace: Pace) -> Base:
    """Build all shards from all rows."""
    placement = before.base.placement
    assert placement != "hashed"  # whose changes are not taken in here
    noted = subscriptions(session, store, before).withColumn(NOTE, F.lit(None).cast("string"))
    base, _ = build_base(
        noted, store, store.settings,
        placement=placement,
        n_shards=before.base.n_shards if placement == "sharded" else None,
        messages=sampled_messages(store, before.base),
        stop_at_rejects=True, unique_ids=True,
        n_tasks=pace.n_tasks, counts=weights_of(store, before),
    )  # fmt: skip
    return base


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
        net = net_changes(all_changes(store, version))
        touched = session.createDataFrame(pa.table({"id": net.replaced}))
        rows = rows.join(F.broadcast(touched), "id", "left_anti").select(*schema.names)
        if net.moved.num_rows:
            moved = session.createDataFrame(net.moved)
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
        if net.new.num_rows:
            rows = rows.unionByName(session.createDataFrame(net.new.select(schema.names)))
    if version.clock_us is not None:
        clock = F.lit(instant(version.clock_us))
        rows = rows.where(F.col("expires").isNull() | (F.col("expires") > clock))
    return rows


class NetChanges(NamedTuple):
    """What changes come to in the end."""

    replaced: pa.Array  # ids whose row of the base does not count any more
    moved: pa.Table  # ids whose row of the base counts, in another place
    new: pa.Table  # rows that the base does not have


def net_changes(changes: pa.Table) -> NetChanges:
    """Return what changes come to in the end."""
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
    return NetChanges(
        codes.dictionary.filter(pa.array(is_set)),
        changes.take(pa.array(last_move[moved])).select(["id", *REGION_FIELDS]),
        new,
    )


# ---- renewing shards ----------------------------------------------------------------------------


@dataclass(frozen=True)
class RenewTask:
    """What a worker has to know to renew a shard."""

    index: str  # URI of the index
    version: Version  # whose changes are merged
    base: str  # URI of the new base's directory


class RenewedShard(NamedTuple):
    """What a task tells of its shard."""

    name: str
    n_subscriptions: int
    n_bytes: int
    units: UnitArrays | None  # of subscriptions that are new or have moved, where shards are cut
    elapsed_s: float


def _renewed_base(store: IndexStore, before: Version, at_shards: AtShards, pace: Pace) -> Base:
    """Renew all shards, a few at a time.

    *On the driver*: the words of the deltas. *In each task*: one shard, beside what is open.
    """
    old = before.base
    folder = store.new_base()
    work = partial(renew_shard, RenewTask(store.folder.uri, before, folder.uri))
    renewed: list[RenewedShard] = []
    for start in range(0, old.n_shards, pace.n_tasks):
        pace.wait(max((each.elapsed_s for each in renewed[-pace.n_tasks :]), default=0.0))
        renewed += at_shards(work, range(start, min(start + pace.n_tasks, old.n_shards)))
    units = [each.units for each in renewed if each.units is not None]
    if units:
        territory = renewed_territory(store, before)
        folder.add("territory", replace(territory, parts=(*territory.parts, *units)).save)
        sample = sampled_messages(store, old)
        if sample is not None:
            add_sample(folder, sample)
    counts = weights_of(store, before)
    if counts is not None:
        add_counts(folder, counts)
    return replace(
        old,
        name=folder.uri.rpartition("/")[2],
        n_subscriptions=tuple(each.n_subscriptions for each in renewed),
        n_bytes=tuple(each.n_bytes for each in renewed),
        shards=tuple(each.name for each in renewed),
        n_merged=old.n_merged + before.n_changes,
        cut_balance=old.cut_balance or old.balance,
    )


def renew_shard(task: RenewTask, shard: int) -> RenewedShard:
    """Write a shard anew, with its changes, into a new base."""
    started = time.monotonic()
    store, version, folder = IndexStore(task.index), task.version, Folder(task.base)
    engine = open_apart(task.index, version, shard)
    if version.clock_us is not None:
        engine.advance(instant(version.clock_us))
    engine.rebuild()
    changes = all_changes(store, version)
    numbers = changes.column(SHARD)
    mine = changes.filter(pc.or_(pc.equal(numbers, shard), pc.equal(numbers, ANY_SHARD)))
    rows = store.base_folder(version.base).local(f"rows/{version.base.shards[shard]}")
    name = new_shard_name(shard)
    with folder.draft() as draft:
        (draft / "rows").mkdir()
        n_rows, touched = _renew_rows(
            rows / "rows.parquet", draft / "rows" / "rows.parquet",
            subscriptions_schema(id_type(store.settings.ids)), net_changes(mine), version.clock_us,
        )  # fmt: skip
        if n_rows != len(engine):
            raise SavedIndexError(
                f"{store.folder.path}: shard {shard} of base {version.base.name} has {n_rows} rows "
                f"after the changes of version {version.number} and {len(engine)} subscriptions; "
                f"build the index again"
            )
        n_bytes = put_shard(folder, name, engine, draft)
    units = None
    if version.base.placement == "sharded":
        units = renewed_territory(store, version).units_in(shard, touched)
    return RenewedShard(name, n_rows, n_bytes, units, time.monotonic() - started)


def _renew_rows(
    source: Path, target: Path, schema: pa.Schema, net: NetChanges, clock_us: int | None
) -> tuple[int, pa.Table]:
    """Write rows with what changed; return their number, and those that are new or have moved."""
    touched = [_live(net.new.select(schema.names).cast(schema), clock_us)]
    regions = net.moved.select(REGION_FIELDS).combine_chunks()
    n_rows = 0
    with pq.ParquetFile(source) as file, pq.ParquetWriter(target, schema) as writer:
        for batch in file.iter_batches(columns=schema.names):
            rows = pa.Table.from_batches([batch]).cast(schema)
            rows = rows.filter(pc.invert(pc.is_in(rows["id"], value_set=net.replaced)))
            rows = _live(rows, clock_us)
            at = pc.index_in(rows["id"], value_set=net.moved["id"].combine_chunks())
            has_moved = pc.is_valid(at)
            for name in REGION_FIELDS:
                moved = pc.if_else(has_moved, regions[name].take(at), rows[name])
                rows = rows.set_column(schema.get_field_index(name), schema.field(name), moved)
            writer.write_table(rows)
            n_rows += rows.num_rows
            touched.append(rows.filter(has_moved))
        writer.write_table(touched[0])
    return n_rows + touched[0].num_rows, pa.concat_tables(touched)


def _live(rows: pa.Table, clock_us: int | None) -> pa.Table:
    """Return the rows that have not ended at a time."""
    if clock_us is None:
        return rows
    is_over = pc.less_equal(rows["expires"], pa.scalar(clock_us, TIME))
    return rows.filter(pc.invert(pc.fill_null(is_over, False)))


def all_changes(store: IndexStore, version: Version) -> pa.Table:
    """Return the changes of all deltas of a version, which has some."""
    return pa.concat_tables([read_delta(store, delta)[0] for delta in version.deltas])
