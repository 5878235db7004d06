"""Subscriptions that ask for words around a point: their points, k and alpha."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from earshot.encoding.columns import (
    Bools,
    Columns,
    chosen_rows,
    column_group,
    is_given,
    own_numbers,
)
from earshot.encoding.conditions import accepted_tokens, lacks_keywords, row_keywords
from earshot.model.arrays import Float64s, Int32s, PointArrays, Space, gather_ranges
from earshot.model.regions import Point, cartesian, parse_geometries, point_problems
from earshot.model.schemas import BOX_FIELDS, POINT_FIELDS
from earshot.model.topk import MAX_COORDINATE, MAX_K
from earshot.text import Analyzer, Vocabulary

_POINTS = f"top-k over a window needs a point; give {' and '.join(POINT_FIELDS)}"
_LEAVE_OUT = "top-k over a window needs a point alone; with --place point (place='point') it counts"
_COORDINATES = f"coordinates from -{MAX_COORDINATE:g} to {MAX_COORDINATE:g}"


def row_points(
    columns: Columns, analyzer: Analyzer, vocabulary: Vocabulary, space: Space
) -> Callable[[Bools | None], PointArrays]:
    """Read subscriptions at points; the words of good ones are added to the vocabulary.

    Returns what gives the accepted rows, all of them for None.
    """
    ks = _ks(columns)
    alphas = own_numbers(
        columns, "alpha", lambda values: (values >= 0) & (values <= 1), "a number from 0 to 1"
    )
    keywords = row_keywords(columns, analyzer)
    reason = "are missing; give at least one word"
    columns.problems.mark(lacks_keywords(columns), "keywords", reason)
    places = cartesian(listening_points(columns, space), space)
    tokens = accepted_tokens(keywords, columns, analyzer, vocabulary)
    if not len(alphas):
        alphas = np.full(columns.n, np.nan)
    points = PointArrays(*tokens, places, alphas, ks)

    def taken(accepted: Bools | None) -> PointArrays:
        if accepted is None:
            return points
        offsets, positions = gather_ranges(points.token_offsets, np.flatnonzero(accepted))
        return PointArrays(
            offsets, points.tokens[positions], places[accepted], alphas[accepted], ks[accepted]
        )

    return taken


def _ks(columns: Columns) -> Int32s:
    """Return how many messages each row wants, 0 where it does not say."""
    array = columns.get("k")
    if array is None:
        return np.zeros(columns.n, np.int32)
    values = array.fill_null(0).to_numpy(zero_copy_only=False)
    wrong = is_given(array) & ~((values >= 1) & (values <= MAX_K))
    reason = f"is {{}}; expected an integer from 1 to {MAX_K:,}"
    columns.problems.mark(wrong, "k", reason, values)
    ks: Int32s = np.where(wrong, 0, values).astype(np.int32)
    return ks


def listening_points(columns: Columns, space: Space) -> Float64s:
    """Return the point of each subscription: x and y, or a geometry; a radius of 0 is none."""
    problems = columns.problems
    has_point, points = _given_points(columns)
    radii = columns.floats("radius")
    if radii is not None:
        values, given = radii
        wrong = given & (values != 0.0)  # NaN too
        problems.mark(wrong, "radius", f"is {{}}; {_POINTS} without a radius", values)
    geometries = columns.get("geometry")
    if geometries is not None:
        has_geometry = is_given(geometries)
        twice = has_geometry & has_point
        problems.mark(twice, "geometry", "the place is given in more than one way; give one")
        rows = np.flatnonzero(has_geometry & ~twice)
        found, wrong_ones = parse_geometries(geometries.take(pa.array(rows)).to_pylist(), space)
        problems.add_found(rows, ((at, "geometry", reason) for at, reason in wrong_ones))
        for row, place in zip(rows.tolist(), found, strict=True):
            if isinstance(place, Point):
                points[row] = place.x, place.y
            elif place is not None:
                problems.add(row, "geometry", f"is a polygon; {_POINTS}, or a point")
        has_point = has_point | has_geometry
    return _checked_points(columns, has_point, points, space)


def message_points(columns: Columns, space: Space) -> Float64s:
    """Return the point of each message: x and y."""
    has_point, points = _given_points(columns)
    return _checked_points(columns, has_point, points, space)


def _given_points(columns: Columns) -> tuple[Bools, Float64s]:
    """Return which rows have x and y, and their points; refuse boxes."""
    has_point, points = column_group(columns, POINT_FIELDS, "a point")
    for field in BOX_FIELDS:
        sides = columns.floats(field)
        if sides is not None:
            both = sides[1] & has_point
            columns.problems.mark(both, field, f"a box is given beside a point; {_LEAVE_OUT}")
            columns.problems.mark(sides[1], field, f"a box is given; {_POINTS} instead")
    return has_point, points if len(points) else np.zeros((columns.n, 2))


def _checked_points(columns: Columns, has_point: Bools, points: Float64s, space: Space) -> Float64s:
    """Return the points, 0 in refused rows, so that all are somewhere in space."""
    problems = columns.problems
    problems.mark(~has_point, "x", f"no place; {_POINTS}")
    rows, given = chosen_rows(has_point, points)
    problems.add_found(rows, point_problems(given, space))
    if space == "planar":
        reason = f"is {{}}; top-k over a window takes {_COORDINATES}"
        for at, field in enumerate(POINT_FIELDS):
            wrong = has_point & (np.abs(points[:, at]) > MAX_COORDINATE)
            problems.mark(wrong, field, reason, points[:, at])
    points[list(problems.found)] = 0.0
    return points
