"""Subscriptions that move: their regions follow their positions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from earshot.encoding.columns import Bools, Columns, chosen_rows, own_numbers
from earshot.encoding.conditions import row_conditions
from earshot.encoding.regions import given_regions
from earshot.model.arrays import (
    BOX,
    CIRCLE,
    EVERYWHERE,
    POLYGON,
    POSITION,
    AnchoredRegions,
    Float64s,
    Int64s,
    MovingArrays,
    Space,
    gather_ranges,
    offsets_of,
    take_places,
)
from earshot.model.regions import point_problems, polygon_box, shape_arrays
from earshot.model.schemas import BOX_FIELDS, LACKS_PLACE, POINT_FIELDS
from earshot.model.topk import MAX_DURATION
from earshot.text import Analyzer, Vocabulary

_MAX_SECONDS = MAX_DURATION.total_seconds()
_ASKS_FOR_ALL = "neither keywords nor a region, so every message would match"


def row_moving(
    columns: Columns, analyzer: Analyzer, vocabulary: Vocabulary, space: Space
) -> Callable[[Bools | None], MovingArrays]:
    """Read subscriptions that move; return what gives the accepted rows, all for None."""
    dwells_us, cooldowns_us = _durations_us(columns, "dwell"), _durations_us(columns, "cooldown")
    leaving = columns.get("leaving")
    is_silent = np.zeros(columns.n, np.bool_)
    if leaving is not None:
        is_silent = ~leaving.fill_null(True).to_numpy(zero_copy_only=False)
    conditions = row_conditions(columns, analyzer, vocabulary)
    regions = _anchored(columns, space, None)
    everywhere = regions.kinds == EVERYWHERE
    columns.problems.mark(conditions.is_empty & everywhere, "keywords", _ASKS_FOR_ALL)
    counts = np.ones(columns.n, np.int64) if conditions.counts is None else conditions.counts
    clause_offsets = offsets_of(counts)
    whole = MovingArrays(
        clause_offsets, conditions.offsets, conditions.ids, regions, dwells_us, cooldowns_us,
        is_silent,
    )  # fmt: skip

    def taken(accepted: Bools | None) -> MovingArrays:
        if accepted is None:
            return whole
        rows = np.flatnonzero(accepted)
        new_offsets, clauses = gather_ranges(clause_offsets, rows)
        token_offsets, positions = gather_ranges(conditions.offsets, clauses)
        return MovingArrays(
            new_offsets, token_offsets, conditions.ids[positions], take_places(regions, rows),
            dwells_us[rows], cooldowns_us[rows], is_silent[rows],
        )  # fmt: skip

    return taken


def row_positions(columns: Columns, space: Space) -> AnchoredRegions:
    """Return where each row moves to: ``x`` and ``y`` alone are a position, all else a region."""
    given = [columns.floats(field) for field in (*POINT_FIELDS, "radius")]
    xs, ys, radii = given
    has_x, has_y, has_radius = (
        np.zeros(columns.n, bool) if each is None else each[1] for each in given
    )
    for field, has_it, has_other in (("x", has_x, has_y), ("y", has_y, has_x)):
        columns.problems.mark(has_other & ~has_it & ~has_radius, field, LACKS_PLACE)
    if xs is None or ys is None:
        return _anchored(columns, space, None)
    are_positions = xs[1] & ys[1]
    if radii is not None:
        are_positions &= ~radii[1]
    return _anchored(columns, space, are_positions)


def _anchored(columns: Columns, space: Space, positions: Bools | None) -> AnchoredRegions:
    n = columns.n
    has_others = any(columns.get(each) is not None for each in (*BOX_FIELDS, "geometry"))
    if positions is not None and positions.all() and not has_others:
        points = _points(columns)
        columns.problems.add_found(np.arange(n), point_problems(points, space))
        frames = np.zeros((n, 4))
        frames[:, :2] = points
        return _without_polygons(np.full(n, POSITION, np.int8), frames)
    given = given_regions(columns, space, positions=positions)
    kinds, frames = np.full(n, EVERYWHERE, np.int8), np.zeros((n, 4))
    shape_rows = np.full(n, -1, np.int32)
    kinds[given.rectangle_rows], frames[given.rectangle_rows] = BOX, given.rectangles
    kinds[given.circle_rows] = CIRCLE
    frames[given.circle_rows, :3] = given.circles
    kinds[given.polygon_rows] = POLYGON
    shape_rows[given.polygon_rows] = np.arange(len(given.polygons))
    spans = np.array([polygon_box(each.rings, space) for each in given.polygons]).reshape(-1, 4)
    if positions is not None:
        rows, points = chosen_rows(positions, _points(columns))
        columns.problems.add_found(rows, point_problems(points, space))
        kinds[rows] = POSITION
        frames[rows, :2] = points
    return AnchoredRegions(kinds, frames, shape_rows, shape_arrays(given.polygons), spans)


def _points(columns: Columns) -> Float64s:
    found = [columns.floats(field) for field in POINT_FIELDS]
    return np.stack([values for values, _ in filter(None, found)], axis=1)


def _without_polygons(kinds: np.typing.NDArray[np.int8], frames: Float64s) -> AnchoredRegions:
    rows = np.full(len(kinds), -1, np.int32)
    return AnchoredRegions(kinds, frames, rows, shape_arrays([]), np.empty((0, 4)))


def _durations_us(columns: Columns, name: str) -> Int64s:
    """Return the time that each row names, in microseconds, 0 where it names none."""
    seconds = own_numbers(
        columns, name, lambda values: (values > 0) & (values <= _MAX_SECONDS),
        f"seconds, more than 0 and at most {_MAX_SECONDS:,.0f}",
    )  # fmt: skip
    if not len(seconds):
        return np.zeros(columns.n, np.int64)
    is_good = (seconds > 0) & (seconds <= _MAX_SECONDS)
    return np.maximum(np.rint(np.where(is_good, seconds, 0.0) * 1e6), is_good).astype(np.int64)
