"""Taking changes into an index: each batch of them becomes a delta, and a new version.

All of it runs on the driver, which decides in one place what a change means: it knows who is
subscribed (:mod:`earshot.spark.roster`), judges changes as the engine does, and writes down what
was accepted. Workers apply exactly that. Shards are not opened here, but to count their words where
these are weighed anew. That is a change as well: what was counted goes into its delta, and every
shard weighs by that, whenever it applies it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from earshot import storage
from earshot.encoding import NO_TIME_US
from earshot.engine.changes import apply_changes, spans_of
from earshot.errors import InvalidParameter, InvalidRow
from earshot.files import Reject
from earshot.model.batches import instant, time_us
from earshot.model.ranking import WordCounts
from earshot.model.schemas import (
    TIME,
)
from earshot.placement.routing import merge_units
from earshot.spark.prepare import ROW, SOURCE, located_rejects
from earshot.spark.roster import Roster, close_roster, open_roster
from earshot.spark.shards import (
    ANY_SHARD,
    COUNTS,
    SHARD,
    STEP,
    AtShards,
    at_shards_here,
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
    at_shards: AtShards = at_shards_here,
) -> Intake:
    """Apply canonical changes, in order, to the current version; return the version that has them.

    They may come with the columns :data:`SOURCE` and :data:`ROW`, which tell where each is from,
    and in several parts, of which one is looked at at a time.

    A batch of a stream that was taken in before is not again. The clock is that of the messages, if
    it is ahead of the changes' own times. ``on_rejects`` is told what was refused before the
    version appears, so that what it writes is there whenever the version is. ``at_shards`` is
    for the words of all shards, where these are to be weighed anew; by default in this process.
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
            new, wrong = with_changes(
                store, new, version, plain, from_us=clock_us, at_shards=at_shards
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


def with_changes(
    store: IndexStore,
    base: Version,
    latest: Version,
    changes: pa.Table,
    *,
    from_us: int | None = None,
    at_shards: AtShards = at_shards_here,
) -> tuple[Version, list[InvalidRow]]:
    """Take changes in as :func:`with_delta` does, with steps of their own for reweighings."""
    new, errors = base, []
    if COUNTS not in changes.schema.names:  # else they were taken in before, on another base
        nothing = pa.nulls(changes.num_rows, pa.binary())
        changes = changes.append_column(COUNTS, nothing)
    if store.settings.matcher.weighs_words_by is None:  # and reweighings are refused
        return with_delta(store, base, latest, changes, from_us=from_us)
    for start, stop, is_reweighing in spans_of(changes):
        part = changes.slice(start, stop - start)
        if is_reweighing:
            part = _counted(store, new, part, from_us, at_shards)
        new, wrong = with_delta(store, new, latest, part, from_us=from_us)
        errors += [InvalidRow("", start + each.row, each.field, each.reason) for each in wrong]
    return new, errors


def _counted(
    store: IndexStore,
    version: Version,
    reweighing: pa.Table,
    from_us: int | None,
    at_shards: AtShards,
) -> pa.Table:
    """Return a row that asks for words to be weighed, with how many subscriptions ask for each."""
    if reweighing.column(COUNTS).null_count == 0:
        return reweighing
    times_us = reweighing.column("time").cast(pa.int64()).to_pylist()
    clock_us = latest_us(version.clock_us, from_us, *times_us)
    count = partial(counted_words, store.folder.uri, version, clock_us)
    parts = at_shards(count, range(version.base.n_shards))
    data = pa.array([write_counts(WordCounts.total(parts))], pa.binary())
    at = reweighing.schema.get_field_index(COUNTS)
    return reweighing.set_column(at, COUNTS, data)


def with_delta(
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
