"""From batches of subscriptions to clauses, and from batches of moves to boxes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from earshot.encoding.anchored import row_moving, row_positions
from earshot.encoding.columns import (
    NEVER_US,
    NO_TIME_US,
    Bools,
    Columns,
    check_ids,
    check_repeats,
    check_times,
    find_taken,
    own_numbers,
    refuse_taken,
    row_numbers,
)
from earshot.encoding.conditions import Conditions, row_conditions
from earshot.encoding.forms import REGIONS, Form, refuse_columns
from earshot.encoding.points import listening_points, row_points
from earshot.encoding.regions import row_regions
from earshot.errors import InvalidRow
from earshot.model.arrays import (
    ClauseArrays,
    Float64s,
    Int64s,
    RegionArrays,
    Space,
    gather_ranges,
    offsets_of,
    take_places,
)
from earshot.model.regions import cartesian
from earshot.text import Analyzer, Vocabulary


class EncodedSubscriptions(NamedTuple):
    """The accepted subscriptions of a batch."""

    ids: Any  # Arrow array of the id of each accepted row, or a tuple of that of a single one
    asked: Any  # ClauseArrays in which row i has slot i, PointArrays or MovingArrays
    expires: Int64s  # microseconds since 1970, NEVER_US where there is no end
    rejects: list[InvalidRow]


class EncodedMoves(NamedTuple):
    """The places of a batch of moves."""

    ids: Any  # Arrow array
    places: Any  # RegionArrays, AnchoredRegions, or (n, 3) Cartesian points
    times: Int64s  # when, NO_TIME_US where nobody says or asks
    rows: Int64s  # number of each at its source
    rejects: list[InvalidRow]


def encode_subscriptions(
    batch: pa.RecordBatch | pa.Table,
    analyzer: Analyzer,
    vocabulary: Vocabulary,
    space: Space,
    *,
    form: Form = REGIONS,
    source: str = "",
    first_row: int = 0,
    rows: Int64s | None = None,
    is_taken: Callable[[pa.Array], Bools] | None = None,
) -> EncodedSubscriptions:
    """Encode a batch of subscriptions; their tokens are added to the vocabulary.

    So are those of rows whose id is taken. Where scores depend on the order of words, those of rows
    that are wrong in themselves are not.

    Args:
        batch: Columns of :data:`earshot.model.schemas.SUBSCRIPTIONS`; absent ones count as null.
        analyzer: Splits keywords into tokens.
        vocabulary: Gives tokens their ids; grows.
        space: What the coordinates are.
        form: What the semantics takes; rows that give more are refused.
        source: File that the rows came from, for the rejects.
        first_row: Row number of the first row, for the rejects.
        rows: Row number of each row instead, where they do not follow one another.
        is_taken: Tells which ids are in use; rows with one are refused.
    """
    columns = Columns(batch)
    check_ids(columns)
    # Asked before the vocabulary grows, and noted after it: where ids are in parts, as on Spark,
    # each part numbers the words of rows that another will find taken.
    taken_rows = find_taken(columns, is_taken)
    check_times(columns, "expires")
    refuse_columns(columns, form)
    read: Callable[..., Callable[[Bools | None], Any]] = _row_clauses
    if form.is_point:
        read = row_points
    elif form.moves_by_position:
        read = row_moving
    taken = read(columns, analyzer, vocabulary, space)
    refuse_taken(columns, taken_rows)
    check_repeats(columns)
    accepted = columns.problems.accepted()
    ids, expires = columns.ids, columns.times("expires", NEVER_US)
    if accepted is not None:
        ids, expires = ids.filter(pa.array(accepted)), expires[accepted]
    rejects = columns.problems.errors(source, row_numbers(columns.n, first_row, rows))
    return EncodedSubscriptions(ids, taken(accepted), expires, rejects)


def encode_moves(
    batch: pa.RecordBatch | pa.Table,
    space: Space,
    *,
    form: Form = REGIONS,
    source: str = "",
    first_row: int = 0,
    rows: Int64s | None = None,
) -> EncodedMoves:
    """Encode the ids and places of a batch of subscriptions; other columns are ignored.

    A row without a region listens everywhere. Where subscriptions report positions, these have
    times, and there may be several of one subscription. The arguments are as for subscriptions.
    """
    columns = Columns(batch)
    check_ids(columns)
    places: Any
    times = np.full(columns.n, NO_TIME_US, np.int64)
    if form.moves_by_position:
        check_times(columns, "time")
        places, times = row_positions(columns, space), columns.times("time", NO_TIME_US)
    elif form.is_point:
        places = cartesian(listening_points(columns, space), space)
    else:
        places, _ = row_regions(columns, space)
    if not form.moves_by_position:
        check_repeats(columns)
    numbers = row_numbers(columns.n, first_row, rows)
    rejects = columns.problems.errors(source, numbers)
    accepted = columns.problems.accepted()
    if accepted is None:
        return EncodedMoves(columns.ids, places, times, numbers, rejects)
    chosen = np.flatnonzero(accepted)
    ids = columns.ids.take(pa.array(chosen))
    places = take_places(places, chosen)
    return EncodedMoves(ids, places, times[chosen], numbers[chosen], rejects)


# ---- clauses ------------------------------------------------------------------------------------


def _row_clauses(
    columns: Columns, analyzer: Analyzer, vocabulary: Vocabulary, space: Space
) -> Callable[[Bools | None], ClauseArrays]:
    """Read subscriptions with regions; return what gives the accepted rows, all for None."""
    thresholds = own_numbers(
        columns, "threshold", lambda values: (values > 0) & (values <= 1),
        "a number greater than 0 and at most 1",
    )  # fmt: skip
    conditions = row_conditions(columns, analyzer, vocabulary)
    regions, has_region = row_regions(columns, space)
    columns.problems.mark(
        conditions.is_empty & ~has_region,
        "keywords",
        "neither keywords nor a region, so every message would match",
    )
    return partial(_clause_arrays, conditions, regions, thresholds)


def _clause_arrays(
    conditions: Conditions,
    regions: RegionArrays,
    thresholds: Float64s,
    accepted: Bools | None,
) -> ClauseArrays:
    """Return one clause for each pair of a token clause and a box of an accepted row."""
    n_rows = len(regions.offsets) - 1
    if accepted is None and conditions.counts is None and len(regions.boxes) == n_rows:
        slots = np.arange(n_rows, dtype=np.int32)
        return ClauseArrays(slots, conditions.offsets, conditions.ids, *regions[1:], thresholds)
    if accepted is not None and np.isnan(thresholds[accepted[: len(thresholds)]]).all():
        thresholds = thresholds[:0]  # those that name one were refused
    n_token_clauses = np.ones(n_rows, np.int64) if conditions.counts is None else conditions.counts
    token_starts, n_boxes = offsets_of(n_token_clauses), np.diff(regions.offsets)
    chosen = np.arange(n_rows) if accepted is None else np.flatnonzero(accepted)
    n_clauses = (n_token_clauses * n_boxes)[chosen]
    rows = np.repeat(chosen, n_clauses)
    within = np.arange(len(rows)) - np.repeat(offsets_of(n_clauses)[:-1], n_clauses)
    token_clauses = token_starts[rows] + within // n_boxes[rows]
    boxes = regions.offsets[rows] + within % n_boxes[rows]
    offsets, positions = gather_ranges(conditions.offsets, token_clauses)
    return ClauseArrays(
        np.repeat(np.arange(len(chosen), dtype=np.int32), n_clauses),
        offsets,
        conditions.ids[positions],
        regions.boxes[boxes],
        regions.shape_rows[boxes],
        regions.shapes,
        thresholds[rows] if len(thresholds) else thresholds,
    )
