"""Batches of changes: subscribe, unsubscribe and move, mixed, in the order in which they came.

A batch has the columns of :func:`earshot.model.schemas.changes_schema`. Applying it has the same
effect as the single calls in that order, at the speed of batches: changes of different
subscriptions do not depend on each other, so the first change of every subscription is applied
together with the others', then the second ones, and so on. Where a subscription expires between
two changes, those before and those after it are applied apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from earshot.encoding import NEVER_US, NO_TIME_US
from earshot.engine.rejects import OnError
from earshot.errors import InvalidInput, InvalidRow
from earshot.model.arrays import Int64s
from earshot.model.batches import instant, time_us
from earshot.model.schemas import OPERATIONS


class Changeable(Protocol):
    """What changes can be applied to: an engine, or several that act as one."""

    @property
    def next_expiry(self) -> datetime | None: ...  # noqa: D102 - as Engine's

    def advance(self, time: datetime) -> object: ...  # noqa: D102

    def subscribe_batch(self, batch: pa.Table, *, on_error: OnError) -> Rejecting: ...  # noqa: D102

    def unsubscribe_batch(self, ids: pa.Array, *, on_error: OnError) -> Rejecting: ...  # noqa: D102

    def move_batch(self, batch: pa.Table, *, on_error: OnError) -> Rejecting: ...  # noqa: D102

    def reweigh(self) -> object: ...  # noqa: D102


class Rejecting(Protocol):
    """What a batch of changes answers with."""

    @property
    def rejects(self) -> list[InvalidRow]: ...  # noqa: D102 - as that of Updates


def apply_changes(
    engine: Changeable, changes: pa.Table, *, reweigh: Callable[[int], object] | None = None
) -> list[InvalidRow]:
    """Apply what can be applied; return what is wrong with the other rows.

    The engine's clock goes on to the latest time of the rows, row by row.

    Args:
        engine: What changes.
        changes: Rows in order; ids of the kind that the engine's subscriptions have.
        reweigh: What to do at a row, given its number, that asks for words to be weighed anew; by
            default what the engine does.
    """
    errors: list[InvalidRow] = []
    for first, last, is_reweighing in spans_of(changes):
        part = changes.slice(first, last - first)
        for start, stop, clock_us in _spans(engine, part):
            if clock_us != NO_TIME_US:
                engine.advance(instant(clock_us))
            if is_reweighing:
                try:
                    engine.reweigh() if reweigh is None else reweigh(first)
                except InvalidInput as error:
                    errors.append(InvalidRow("", first, "op", str(error)))
                continue
            for rows in waves(part.slice(start, stop - start)):
                errors += _apply_wave(engine, changes, rows + start + first)
    return sorted(errors, key=lambda error: error.row)


def spans_of(changes: pa.Table) -> Iterator[tuple[int, int, bool]]:
    """Yield ranges of rows that can be applied together; a reweighing is one by itself."""
    is_reweighing = pc.equal(changes.column("op"), "reweigh").to_numpy()
    start = 0
    for at in [*np.flatnonzero(is_reweighing).tolist(), len(is_reweighing)]:
        if start < at:
            yield start, at, False
        if at < len(is_reweighing):
            yield at, at + 1, True
        start = at + 1


def waves(changes: pa.Table) -> Iterator[Int64s]:
    """Yield the rows that are the first change of their subscription, then the second ones, ….

    An id occurs at most once in each.
    """
    ids = changes.column("id").combine_chunks()
    codes = pc.dictionary_encode(ids).indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    is_first = np.append(True, codes[order][1:] != codes[order][:-1])[: len(codes)]
    starts = np.flatnonzero(is_first)
    occurrences = np.empty(len(codes), np.int64)
    occurrences[order] = np.arange(len(codes)) - starts[np.cumsum(is_first) - 1]
    for n in range(int(occurrences.max(initial=-1)) + 1):
        yield np.flatnonzero(occurrences == n)


def _apply_wave(engine: Changeable, changes: pa.Table, rows: Int64s) -> list[InvalidRow]:
    wave = changes.take(pa.array(rows))
    operations = wave.column("op")
    errors = []
    for operation in OPERATIONS:
        chosen = np.flatnonzero(pc.equal(operations, operation).to_numpy())
        if not len(chosen):
            continue
        part = wave.take(pa.array(chosen))
        match operation:
            case "subscribe":
                found = engine.subscribe_batch(part, on_error="reject")
            case "unsubscribe":
                ids = part.column("id").combine_chunks()
                found = engine.unsubscribe_batch(ids, on_error="reject")
            case "move":
                found = engine.move_batch(part, on_error="reject")
            case "reweigh":
                raise AssertionError("a reweighing is not part of a wave")
        errors += [
            InvalidRow("", int(rows[chosen[each.row]]), each.field, each.reason)
            for each in found.rejects
        ]
    return errors


def _spans(engine: Changeable, changes: pa.Table) -> Iterator[tuple[int, int, int]]:
    """Yield ranges of rows between which no subscription expires, each with its clock."""
    n = changes.num_rows
    times = _microseconds(changes, "time", NO_TIME_US)
    clocks = np.maximum.accumulate(times)
    # A row's own expiry matters to the rows after it.
    expiries = np.sort(_microseconds(changes, "expires", NEVER_US))
    start = 0
    while start < n:
        clock_us = int(clocks[start])
        if clock_us != NO_TIME_US:
            engine.advance(instant(clock_us))
        later = expiries[np.searchsorted(expiries, clock_us, side="right") :]
        next_us = int(later[0]) if len(later) else NEVER_US
        if engine.next_expiry is not None:
            next_us = min(next_us, time_us(engine.next_expiry))
        stop = max(start + 1, int(np.searchsorted(clocks, next_us)))
        yield start, stop, int(clocks[stop - 1])
        start = stop


def _microseconds(changes: pa.Table, name: str, default: int) -> Int64s:
    if name not in changes.schema.names:
        return np.full(changes.num_rows, default, np.int64)
    column = changes.column(name).cast(pa.int64()).fill_null(default)
    values: Int64s = column.to_numpy()
    return values
