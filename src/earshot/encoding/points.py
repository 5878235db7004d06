"""Subscriptions that ask for words around a point: their points, k and alpha."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from earshot.encoding.columns import (
    Bools,
    Columns,
    Problems,
    chosen_rows,
    column_group,
    is_given,
)
from earshot.encoding.conditions import lacks_keywords, wanted_tokens
from earshot.model.arrays import Float64s, Int32s, PointArrays, Space, gather_ranges
from earshot.model.regions import Point, cartesian, parse_geometries, point_problems
from earshot.model.schemas import BOX_FIELDS, POINT_FIELDS
from earshot.model.topk import MAX_COORDINATE, MAX_K
from earshot.text import Analyzer, Vocabulary

_POINTS = f"top-k over a window needs a point; give {' and '.join(POINT_FIELDS)}"
_COORDINATES = f"coordinates from -{MAX_COORDINATE:g} to {MAX_COORDINATE:g}"


class PointRows:
    """The rows of a batch of subscriptions at points.

    Their words are added to the vocabulary.
    """

    def __init__(
        self,
        columns: Columns,
        analyzer: Analyzer,
        vocabulary: Vocabulary,
        space: Space,
        problems: Problems,
    ) -> None:
        self._space = space
        self._ks, self._alphas = _ks(columns, problems), _alphas(columns, problems)
        self._tokens = wanted_tokens(columns, analyzer, vocabulary, problems)
        problems.mark(lacks_keywords(columns), "keywords", "are missing; give at least one word")
        self._points = listening_points(columns, space, problems)

    def arrays(self, accepted: Bools | None) -> PointArrays:
        """Return the accepted rows, all of them for None."""
        (offsets, tokens), points = self._tokens, self._points
        alphas, ks = self._alphas, self._ks
        if accepted is not None:
            offsets, positions = gather_ranges(offsets, np.flatnonzero(accepted))
            tokens, points = tokens[positions], points[accepted]
            alphas, ks = alphas[accepted], ks[accepted]
        return PointArrays(offsets, tokens, cartesian(points, self._space), alphas, ks)


def _ks(columns: Columns, problems: Problems) -> Int32s:
    """Return how many messages each row wants, 0 where it does not say."""
    array = columns.get("k")
    if array is None:
        return np.zeros(columns.n, np.int32)
    values = array.fill_null(0).to_numpy(zero_copy_only=False)
    wrong = is_given(array) & ~((values >= 1) & (values <= MAX_K))
    for row in np.flatnonzero(wrong).tolist():
        problems.add(row, "k", f"is {values[row]}; expected an integer from 1 to {MAX_K:,}")
    ks: Int32s = np.where(wrong, 0, values).astype(np.int32)
    return ks


def _alphas(columns: Columns, problems: Problems) -> Float64s:
    """Return the share of the place of each row, NaN where it does not say."""
    found = columns.floats("alpha")
    if found is None:
        return np.full(columns.n, np.nan)
    values, given = found
    for row in np.flatnonzero(given & ~((values >= 0) & (values <= 1))).tolist():  # NaN too
        problems.add(row, "alpha", f"is {values[row]}; expected a number from 0 to 1")
    return np.where(given, values, np.nan)


def listening_points(columns: Columns, space: Space, problems: Problems) -> Float64s:
    """Return the point of each subscription: x and y, or a geometry; a radius of 0 is none."""
    has_point, points = _given_points(columns, problems)
    radii = columns.floats("radius")
    if radii is not None:
        values, given = radii
        for row in np.flatnonzero(given & (values != 0.0)).tolist():  # NaN too
            problems.add(row, "radius", f"is {values[row]}; {_POINTS} without a radius")
    geometries = columns.get("geometry")
    if geometries is not None:
        has_geometry = is_given(geometries)
        twice = has_geometry & has_point
        problems.mark(twice, "geometry", "the place is given in more than one way; give one")
        rows = np.flatnonzero(has_geometry & ~twice)
        found, wrong = parse_geometries(geometries.take(pa.array(rows)).to_pylist(), space)
        for position, reason in wrong:
            problems.add(int(rows[position]), "geometry", reason)
        for row, place in zip(rows.tolist(), found, strict=True):
            if isinstance(place, Point):
                points[row] = place.x, place.y
            elif place is not None:
                problems.add(row, "geometry", f"is a polygon; {_POINTS}, or a point")
        has_point = has_point | has_geometry
    return _checked_points(has_point, points, space, problems)


def message_points(columns: Columns, space: Space, problems: Problems) -> Float64s:
    """Return the point of each message: x and y."""
    has_point, points = _given_points(columns, problems)
    return _checked_points(has_point, points, space, problems)


def _given_points(columns: Columns, problems: Problems) -> tuple[Bools, Float64s]:
    """Return which rows have x and y, and their points; refuse boxes."""
    for field in BOX_FIELDS:
        sides = columns.floats(field)
        if sides is not None:
            problems.mark(sides[1], field, f"a box is given; {_POINTS} instead")
    has_point, points = column_group(columns, POINT_FIELDS, "a point", problems)
    return has_point, points if len(points) else np.zeros((columns.n, 2))


def _checked_points(
    has_point: Bools, points: Float64s, space: Space, problems: Problems
) -> Float64s:
    problems.mark(~has_point, "x", f"no place; {_POINTS}")
    rows, given = chosen_rows(has_point, points)
    for row, field, reason in point_problems(given[:, 0], given[:, 1], space):
        problems.add(int(rows[row]), field, reason)
    if space == "planar":
        for at, field in enumerate(POINT_FIELDS):
            for row in np.flatnonzero(np.abs(given[:, at]) > MAX_COORDINATE).tolist():
                reason = f"is {given[row, at]}; top-k over a window takes {_COORDINATES}"
                problems.add(int(rows[row]), field, reason)
    return points
