"""From batches of subscriptions to clauses, and from batches of moves to boxes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from earshot.encoding.columns import (
    NEVER_US,
    Bools,
    Columns,
    Problems,
    accepted_rows,
    check_ids,
    check_repeats,
    check_taken,
    check_times,
)
from earshot.encoding.conditions import (
    Conditions,
    row_conditions,
    row_thresholds,
)
from earshot.encoding.forms import REGIONS, Form, refuse_columns
from earshot.encoding.points import PointRows, listening_points
from earshot.encoding.regions import Regions, row_regions
from earshot.errors import InvalidRow
from earshot.model.arrays import (
    ClauseArrays,
    Float64s,
    Int64s,
    RegionArrays,
    Space,
    gather_ranges,
)
from earshot.model.regions import cartesian
from earshot.text import Analyzer, Vocabulary

_EVERYWHERE_BOX = (-np.inf, -np.inf, np.inf, np.inf)


class EncodedSubscriptions(NamedTuple):
    """The accepted subscriptions of a batch."""

    ids: pa.Array  # id of each accepted row
    asked: Any  # ClauseArrays in which row i has slot i, or PointArrays
    expires: Int64s  # microseconds since 1970, NEVER_US where there is no end
    rejects: list[InvalidRow]


class EncodedMoves(NamedTuple):
    """The places of a batch of moves."""

    ids: pa.Array
    places: Any  # RegionArrays, or (n, 3) Cartesian points
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
    problems = Problems(columns.n)
    check_ids(columns, problems)
    check_taken(columns, is_taken, problems)
    check_times(columns, "expires", problems)
    refuse_columns(columns, form, problems)
    kind = PointRows if form.is_point else _ClauseRows
    asked = kind(columns, analyzer, vocabulary, space, problems)
    check_repeats(columns, problems)
    accepted = problems.accepted()
    return EncodedSubscriptions(
        columns.accepted_ids(accepted),
        asked.arrays(accepted),
        columns.times("expires", NEVER_US, accepted),
        problems.errors(source, first_row, rows),
    )


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

    A row without a region listens everywhere. The arguments are as for subscriptions.
    """
    columns = Columns(batch)
    problems = Problems(columns.n)
    check_ids(columns, problems)
    places: Any
    if form.is_point:
        points = listening_points(columns, space, problems)
        check_repeats(columns, problems)
        accepted = problems.accepted()
        places = cartesian(points if accepted is None else points[accepted], space)
    else:
        regions = row_regions(columns, space, problems)
        check_repeats(columns, problems)
        accepted = problems.accepted()
        places = _region_arrays(regions, accepted)
    return EncodedMoves(
        columns.accepted_ids(accepted),
        places,
        accepted_rows(columns.n, accepted, first_row, rows),
        problems.errors(source, first_row, rows),
    )


def _region_arrays(regions: Regions, accepted: Bools | None) -> RegionArrays:
    n = len(regions.counts)
    chosen = np.arange(n) if accepted is None else np.flatnonzero(accepted)
    counts = np.maximum(regions.counts, 1)
    offsets = np.append(0, np.cumsum(counts))
    boxes = np.tile(np.array(_EVERYWHERE_BOX), (int(offsets[-1]), 1))
    shape_rows = np.full(len(boxes), -1, np.int32)
    bounded = np.repeat(regions.counts > 0, counts)
    boxes[bounded], shape_rows[bounded] = regions.boxes, regions.shape_rows
    new_offsets, positions = gather_ranges(offsets, chosen)
    return RegionArrays(new_offsets, boxes[positions], shape_rows[positions], regions.shapes)


# ---- clauses ------------------------------------------------------------------------------------


class _ClauseRows:
    """The rows of a batch of subscriptions with regions."""

    def __init__(
        self,
        columns: Columns,
        analyzer: Analyzer,
        vocabulary: Vocabulary,
        space: Space,
        problems: Problems,
    ) -> None:
        self._thresholds = row_thresholds(columns, problems)
        self._conditions = row_conditions(columns, analyzer, vocabulary, problems)
        self._regions = row_regions(columns, space, problems)
        problems.mark(
            self._conditions.is_empty & (self._regions.counts == 0),
            "keywords",
            "neither keywords nor a region, so every message would match",
        )

    def arrays(self, accepted: Bools | None) -> ClauseArrays:
        """Return the accepted rows, all of them for None."""
        return _clause_arrays(self._conditions, self._regions, self._thresholds, accepted)


def _clause_arrays(
    conditions: Conditions,
    regions: Regions,
    thresholds: Float64s,
    accepted: Bools | None,
) -> ClauseArrays:
    """Return one clause for each pair of a token clause and a box of an accepted row."""
    if accepted is not None and np.isnan(thresholds[accepted[: len(thresholds)]]).all():
        thresholds = thresholds[:0]  # those that name one were refused
    n_rows = len(regions.counts)
    n_accepted = n_rows if accepted is None else int(accepted.sum())
    slots = np.arange(n_accepted, dtype=np.int32)
    if accepted is None and conditions.counts is None and regions.counts.max(initial=0) <= 1:
        clause_boxes, shape_rows = regions.boxes, regions.shape_rows
        if len(clause_boxes) < n_rows:
            bounded = regions.counts == 1
            clause_boxes = np.full((n_rows, 4), _EVERYWHERE_BOX, np.float64)
            clause_boxes[bounded] = regions.boxes
            shape_rows = np.full(n_rows, -1, np.int32)
            shape_rows[bounded] = regions.shape_rows
        return ClauseArrays(
            slots,
            conditions.offsets,
            conditions.ids,
            clause_boxes,
            shape_rows,
            regions.shapes,
            thresholds,
        )
    n_token_clauses = np.ones(n_rows, np.int64) if conditions.counts is None else conditions.counts
    # One more box, at the end, is that of rows without any.
    all_boxes = np.concatenate([regions.boxes, np.array([_EVERYWHERE_BOX])])
    all_shape_rows = np.append(regions.shape_rows, np.int32(-1))
    n_boxes = np.maximum(regions.counts, 1)
    token_starts = np.cumsum(n_token_clauses) - n_token_clauses
    box_starts = np.where(
        regions.counts > 0, np.cumsum(regions.counts) - regions.counts, len(regions.boxes)
    )
    chosen = np.arange(n_rows) if accepted is None else np.flatnonzero(accepted)
    n_clauses = (n_token_clauses * n_boxes)[chosen]
    rows = np.repeat(chosen, n_clauses)
    firsts = np.cumsum(n_clauses) - n_clauses
    within = np.arange(len(rows), dtype=np.int64) - np.repeat(firsts, n_clauses)
    token_clauses = token_starts[rows] + within // n_boxes[rows]
    box_positions = box_starts[rows] + within % n_boxes[rows]
    offsets, positions = gather_ranges(conditions.offsets, token_clauses)
    return ClauseArrays(
        np.repeat(slots, n_clauses),
        offsets,
        conditions.ids[positions],
        all_boxes[box_positions],
        all_shape_rows[box_positions],
        regions.shapes,
        thresholds[rows] if len(thresholds) else thresholds,
    )
