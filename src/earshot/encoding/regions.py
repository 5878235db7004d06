"""Where subscriptions listen: boxes, circles and polygons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from earshot.encoding.columns import Bools, Columns, chosen_rows, column_group, is_given
from earshot.model.arrays import (
    Float64s,
    Int64s,
    RegionArrays,
    ShapeArrays,
    Space,
    concat_shapes,
    gather_ranges,
    no_shapes,
    offsets_of,
)
from earshot.model.regions import (
    Point,
    Polygon,
    Problem,
    Rectangle,
    circle_boxes,
    circle_problems,
    circle_shape_arrays,
    parse_geometries,
    polygon_boxes,
    polygon_problem,
    rectangle_problems,
    shape_arrays,
    split_rectangles,
)
from earshot.model.schemas import BOX_FIELDS, CIRCLE_FIELDS

_EVERYWHERE_BOX = (-np.inf, -np.inf, np.inf, np.inf)


class _Part(NamedTuple):
    """The regions of some rows of a batch, all given in the same way."""

    rows: Int64s  # (n_regions,)
    numbers: Int64s  # (n_boxes,) region that each box came from
    boxes: Float64s  # (n_boxes, 4)
    shapes: ShapeArrays  # one for each region, or none where the boxes are the regions


class GivenRegions(NamedTuple):
    """Where the rows of a batch listen, as they say it; the others, everywhere."""

    rectangle_rows: Int64s
    rectangles: Float64s  # (n, 4) on lonlat, min_x > max_x crosses the antimeridian
    circle_rows: Int64s
    circles: Float64s  # (n, 3) x, y, radius
    polygon_rows: Int64s
    polygons: list[Polygon]


def given_regions(
    columns: Columns, space: Space, *, positions: Bools | None = None
) -> GivenRegions:
    """Return the regions of the rows, each given in at most one way, of which nothing is wrong.

    Args:
        columns: The batch.
        space: What the coordinates are.
        positions: Rows whose ``x`` and ``y`` are no part of a circle.
    """
    has_box, sides = column_group(columns, BOX_FIELDS, "a box")
    has_circle, circles = column_group(columns, CIRCLE_FIELDS, "a circle", positions)
    geometries = columns.get("geometry")
    has_geometry = np.zeros(columns.n, bool) if geometries is None else is_given(geometries)
    n_ways = has_box.astype(np.int8) + has_circle + has_geometry
    if positions is not None:
        n_ways += positions
    twice = n_ways > 1
    reason = "the region is given in more than one way; give one"
    columns.problems.mark(twice, "geometry", reason)
    none = np.empty(0, np.int64)
    rectangle_rows, rectangles = none, np.empty((0, 4))
    circle_rows, found_circles = none, np.empty((0, 3))
    polygon_rows, polygons = none, list[Polygon]()
    if has_box.any():
        rectangle_rows, rectangles = _good_rows(
            columns, has_box & ~twice, sides, rectangle_problems, space
        )
    if has_circle.any():
        circle_rows, found_circles = _good_rows(
            columns, has_circle & ~twice, circles, circle_problems, space
        )
    if geometries is not None:
        more, polygon_rows, polygons = _geometries(
            columns, geometries, has_geometry & ~twice, space
        )
        rectangle_rows = np.concatenate([rectangle_rows, np.array([*more], np.int64)])
        corners = np.array([astuple(each) for each in more.values()]).reshape(-1, 4)
        rectangles = np.concatenate([rectangles, corners])
    return GivenRegions(
        rectangle_rows, rectangles, circle_rows, found_circles, polygon_rows, polygons
    )


def row_regions(columns: Columns, space: Space) -> tuple[RegionArrays, Bools]:
    """Return where each row listens, and which rows say so.

    The others, and those that are refused, listen everywhere.
    """
    given = given_regions(columns, space)
    parts = []
    if len(given.rectangles):
        pieces = split_rectangles(given.rectangles, space)
        parts.append(_Part(given.rectangle_rows, *pieces, no_shapes()))
    if len(given.circles):
        boxes, shapes = circle_boxes(given.circles, space), circle_shape_arrays(given.circles)
        parts.append(_Part(given.circle_rows, *boxes, shapes))
    if given.polygons:
        boxes, shapes = polygon_boxes(given.polygons, space), shape_arrays(given.polygons)
        parts.append(_Part(given.polygon_rows, *boxes, shapes))
    return _joined(parts, columns.n)


def _good_rows(
    columns: Columns,
    chosen: Bools,
    values: Float64s,
    problems_of: Callable[[Float64s, Space], list[Problem]],
    space: Space,
) -> tuple[Int64s, Float64s]:
    """Return the chosen rows in which nothing is wrong, and their values."""
    rows, given = chosen_rows(chosen, values)
    columns.problems.add_found(rows, problems_of(given, space))
    if not columns.problems.found:
        return rows, given
    good = ~np.isin(rows, list(columns.problems.found))
    return rows[good], given[good]


def _geometries(
    columns: Columns, geometries: pa.Array, chosen: Bools, space: Space
) -> tuple[dict[int, Rectangle], Int64s, list[Polygon]]:
    """Return the rectangles by row, and the rows of polygons with these."""
    problems = columns.problems
    rows = [row for row in np.flatnonzero(chosen).tolist() if row not in problems.found]
    values = geometries.take(pa.array(rows, pa.int64())).to_pylist()
    regions, wrong = parse_geometries(values, space)
    for position, reason in wrong:
        problems.add(rows[position], "geometry", reason)
    rectangles: dict[int, Rectangle] = {}
    polygons: dict[int, Polygon] = {}
    for row, region in zip(rows, regions, strict=True):
        if isinstance(region, Point):
            expected = "expected a polygon, or a point with a radius beside it"
            problems.add(row, "geometry", f"is a point; {expected}")
        elif isinstance(region, Rectangle):
            rectangles[row] = region
        elif isinstance(region, Polygon):
            problem = polygon_problem(region) if space == "planar" else None
            if problem is None:
                polygons[row] = region
            else:
                problems.add(row, "geometry", problem)
    return rectangles, np.array([*polygons], np.int64), list(polygons.values())


def _joined(parts: Sequence[_Part], n: int) -> tuple[RegionArrays, Bools]:
    """Return the regions of ``n`` rows, everywhere for those that are in no part."""
    counts = np.zeros(n, np.int64)
    for part in parts:
        counts += np.bincount(part.rows[part.numbers], minlength=n)
    offsets = offsets_of(np.maximum(counts, 1))
    boxes = np.empty((offsets[-1], 4))
    shape_rows = np.full(len(boxes), -1, np.int32)
    boxes[offsets[:-1][counts == 0]] = _EVERYWHERE_BOX
    n_shapes = 0
    for part in parts:
        _, places = gather_ranges(offsets, part.rows)
        boxes[places] = part.boxes
        if len(part.shapes.circles):
            shape_rows[places] = part.numbers + n_shapes
            n_shapes += len(part.shapes.circles)
    shapes = concat_shapes([no_shapes(), *(part.shapes for part in parts)])
    return RegionArrays(offsets, boxes, shape_rows, shapes), counts > 0
