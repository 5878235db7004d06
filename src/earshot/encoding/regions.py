"""Where subscriptions listen: boxes, circles and polygons."""

from __future__ import annotations

from typing import NamedTuple

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
from earshot.errors import InvalidRegion
from earshot.model.arrays import Float64s, Int32s, Int64s, ShapeArrays, Space, no_shapes
from earshot.model.regions import (
    Circle,
    Point,
    Polygon,
    Rectangle,
    boxes,
    circle_boxes,
    circle_problems,
    parse_geometries,
    rectangle_problems,
    shape_arrays,
    split_rectangles,
    validate,
)
from earshot.model.schemas import BOX_FIELDS, CIRCLE_FIELDS


class Regions(NamedTuple):
    """Boxes of the rows of a batch, in row order; a row without any listens everywhere."""

    counts: Int64s  # (n_rows,) boxes of each row
    boxes: Float64s  # (n_boxes, 4)
    shape_rows: Int32s  # (n_boxes,) row in shapes, -1 where the box is the region
    shapes: ShapeArrays


def row_regions(columns: Columns, space: Space, problems: Problems) -> Regions:
    """Return where each row listens, given in at most one way."""
    n = columns.n
    has_box, sides = column_group(columns, BOX_FIELDS, "a box", problems)
    has_circle, circles = column_group(columns, CIRCLE_FIELDS, "a circle", problems)
    geometries = columns.get("geometry")
    if not len(sides) and not len(circles) and geometries is None:
        nothing = np.empty((0, 4), np.float64)
        return Regions(np.zeros(n, np.int64), nothing, np.empty(0, np.int32), no_shapes())
    has_geometry = np.zeros(n, bool) if geometries is None else is_given(geometries)
    twice = has_box.astype(np.int8) + has_circle + has_geometry > 1
    problems.mark(twice, "geometry", "the region is given in more than one way; give one")

    all_rows: list[Int64s] = []
    all_boxes: list[Float64s] = []
    all_shapes: list[Int32s] = []
    shape_table = no_shapes()

    if has_box.any():
        rows, given = chosen_rows(has_box & ~twice, sides)
        for row, field, reason in rectangle_problems(given, space):
            problems.add(int(rows[row]), field, reason)
        rows, given = _without_problems(rows, given, problems)
        parts, part_boxes = split_rectangles(given, space)
        all_rows.append(rows[parts])
        all_boxes.append(part_boxes)
        all_shapes.append(np.full(len(parts), -1, np.int32))
    shapes: list[Circle | Polygon] = []
    n_circles = 0
    if has_circle.any():
        rows, given = chosen_rows(has_circle & ~twice, circles)
        for row, field, reason in circle_problems(given[:, 0], given[:, 1], given[:, 2], space):
            problems.add(int(rows[row]), field, reason)
        rows, given = _without_problems(rows, given, problems)
        parts, part_boxes = circle_boxes(given[:, 0], given[:, 1], given[:, 2], space)
        all_rows.append(rows[parts])
        all_boxes.append(part_boxes)
        all_shapes.append(parts.astype(np.int32))
        n_circles = len(given)
        shape_table = ShapeArrays(
            np.ascontiguousarray(given),
            np.zeros(n_circles + 1, np.int64),
            *no_shapes()[2:],
        )
    if geometries is not None:
        found = _geometry_regions(geometries, has_geometry & ~twice, space, problems)
        for row, region in found.items():
            region_boxes = np.array(boxes(region, space), np.float64)
            all_rows.append(np.full(len(region_boxes), row, np.int64))
            all_boxes.append(region_boxes)
            shape_row = -1
            if isinstance(region, Polygon):
                shape_row = n_circles + len(shapes)
                shapes.append(region)
            all_shapes.append(np.full(len(region_boxes), shape_row, np.int32))
        if shapes:
            shape_table = _with_polygons(shape_table, shape_arrays(shapes))
    if not all_rows:
        nothing = np.empty((0, 4), np.float64)
        return Regions(np.zeros(n, np.int64), nothing, np.empty(0, np.int32), shape_table)
    box_rows = np.concatenate(all_rows)
    region_boxes = np.concatenate(all_boxes)
    shape_rows = np.concatenate(all_shapes)
    if len(all_rows) > 1:
        order = np.argsort(box_rows, kind="stable")
        box_rows, region_boxes, shape_rows = box_rows[order], region_boxes[order], shape_rows[order]
    counts = np.bincount(box_rows, minlength=n).astype(np.int64)
    return Regions(counts, region_boxes, shape_rows, shape_table)


def _without_problems(
    rows: Int64s, values: Float64s, problems: Problems
) -> tuple[Int64s, Float64s]:
    if not problems.found:
        return rows, values
    good = ~np.isin(rows, list(problems.found))
    return rows[good], values[good]


def _geometry_regions(
    geometries: pa.Array, chosen: Bools, space: Space, problems: Problems
) -> dict[int, Rectangle | Polygon]:
    rows = [row for row in np.flatnonzero(chosen).tolist() if row not in problems.found]
    values = geometries.take(pa.array(rows, pa.int64())).to_pylist()
    regions, wrong = parse_geometries(values, space)
    for position, reason in wrong:
        problems.add(rows[position], "geometry", reason)
    result: dict[int, Rectangle | Polygon] = {}
    for row, region in zip(rows, regions, strict=True):
        if isinstance(region, Point):
            reason = "is a point; expected a polygon, or a point with a radius beside it"
            problems.add(row, "geometry", reason)
        elif isinstance(region, Rectangle | Polygon):
            try:
                if space == "planar":  # sizes that polygons are not exact for
                    validate(region, space)
                result[row] = region
            except InvalidRegion as error:
                problems.add(row, "geometry", str(error))
    return result


def _with_polygons(circles: ShapeArrays, polygons: ShapeArrays) -> ShapeArrays:
    return ShapeArrays(
        np.concatenate([circles.circles, polygons.circles]),
        np.concatenate([circles.ring_offsets[:-1], polygons.ring_offsets]),
        polygons.vertex_offsets,
        polygons.vertices,
    )
