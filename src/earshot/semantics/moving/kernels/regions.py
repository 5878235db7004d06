"""Where regions are after a move, and which places they hold.

Boxes and circles are computed anew from a position. A polygon keeps its outline: the place of a
message is moved back by as much as the polygon has moved on, so a move writes two numbers. The
boxes around circles and polygons are a filter in front of the exact test, hence a hair too large.
docs/semantics/moving.md states every operation that decides.
"""

from __future__ import annotations

import math

import numpy as np

from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.kernels.shapes import plane_distance, polygon_touches_box, sphere_distance_m
from earshot.model.arrays import BOX, CIRCLE, EARTH_RADIUS_M, EVERYWHERE, POLYGON

_SLACK_RAD = 1e-7  # as in earshot.model.regions
_SLACK_DEGREES = 1e-9
_ROUNDING = 4e-16
_LEAST = 5e-324
_RADIANS = math.pi / 180.0
_AROUND = 360.0
_INSCRIBED = math.sqrt(0.5) * (1.0 - 1e-6)


@inlined_kernel
def set_box(boxes, at, first, min_x, min_y, max_x, max_y):
    """Write the first or the second box of a region."""
    start = 0 if first else 4
    boxes[at, start] = min_x
    boxes[at, start + 1] = min_y
    boxes[at, start + 2] = max_x
    boxes[at, start + 3] = max_y


@inlined_kernel
def set_boxes(boxes, at, is_lonlat, min_x, min_y, max_x, max_y):
    """Write the boxes of a rectangle; on lonlat ``min_x > max_x`` crosses the antimeridian.

    -180 and 180 are one meridian: whatever reaches one of them reaches the other.
    """
    set_box(boxes, at, True, min_x, min_y, max_x, max_y)
    set_box(boxes, at, False, np.inf, np.inf, -np.inf, -np.inf)
    if not is_lonlat:
        return
    if min_x > max_x:
        set_box(boxes, at, True, min_x, min_y, 180.0, max_y)
        set_box(boxes, at, False, -180.0, min_y, max_x, max_y)
    elif min_x == -180.0 and max_x < 180.0:
        set_box(boxes, at, False, 180.0, min_y, 180.0, max_y)
    elif max_x == 180.0 and min_x > -180.0:
        set_box(boxes, at, False, -180.0, min_y, -180.0, max_y)


@inlined_kernel
def place_box(regions, at, is_lonlat, x, y):
    """Let a rectangle lie around a position."""
    half_width, half_height = regions.frames[at, 0], regions.frames[at, 1]
    regions.frames[at, 2], regions.frames[at, 3] = x, y
    min_x, max_x = x - half_width, x + half_width
    if is_lonlat:
        if 2.0 * half_width >= _AROUND:
            min_x, max_x = -180.0, 180.0
        elif min_x < -180.0:
            min_x += _AROUND
        elif max_x > 180.0:
            max_x -= _AROUND
    set_boxes(regions.boxes, at, is_lonlat, min_x, y - half_height, max_x, y + half_height)


@inlined_kernel
def place_circle(regions, at, is_lonlat, x, y):
    """Let a circle lie around a position."""
    frames = regions.frames
    frames[at, 0], frames[at, 1] = x, y
    radius = frames[at, 2]
    if not is_lonlat:
        reach = radius * (1.0 + 1e-12)
        set_boxes(
            regions.boxes, at, False, _below(x - reach), _below(y - reach), _above(x + reach),
            _above(y + reach),
        )  # fmt: skip
        return
    reach = radius / EARTH_RADIUS_M + _SLACK_RAD
    latitude = y * _RADIANS
    min_y, max_y = (latitude - reach) / _RADIANS, (latitude + reach) / _RADIANS
    min_x, max_x = -180.0, 180.0
    if min_y > -90.0 and max_y < 90.0:
        # The easternmost point is where a meridian touches the circle: sin(dx) = sin(r) / cos(y).
        reach_x = math.asin(min(1.0, math.sin(reach) / math.cos(latitude))) / _RADIANS
        if 2.0 * reach_x < _AROUND:
            min_x, max_x = x - reach_x, x + reach_x
            if min_x < -180.0:
                min_x += _AROUND
            elif max_x > 180.0:
                max_x -= _AROUND
    set_boxes(regions.boxes, at, True, min_x, min_y, max_x, max_y)


@lean_kernel
def place_polygon(regions, at, is_lonlat, polygons, x, y):
    """Let the middle of a polygon lie at a position."""
    shape = regions.shape_rows[at]
    dx, dy = x - polygons.middles[shape, 0], y - polygons.middles[shape, 1]
    regions.frames[at, 0], regions.frames[at, 1] = dx, dy
    regions.frames[at, 2], regions.frames[at, 3] = x, y
    box_polygon(regions, at, is_lonlat, polygons)


@lean_kernel
def box_polygon(regions, at, is_lonlat, polygons):
    """Write the boxes around a polygon that has moved."""
    shape = regions.shape_rows[at]
    dx, dy = regions.frames[at, 0], regions.frames[at, 1]
    min_x, max_x = polygons.spans[shape, 0], polygons.spans[shape, 2]
    slack_y = _ROUNDING * (
        abs(dy) + max(abs(polygons.spans[shape, 1]), abs(polygons.spans[shape, 3]))
    )
    min_y = _below(polygons.spans[shape, 1] + dy - slack_y)
    max_y = _above(polygons.spans[shape, 3] + dy + slack_y)
    if not is_lonlat:
        slack = _ROUNDING * (abs(dx) + max(abs(min_x), abs(max_x)))
        min_x, max_x = _below(min_x + dx - slack), _above(max_x + dx + slack)
        set_boxes(regions.boxes, at, False, min_x, min_y, max_x, max_y)
        return
    if min_x > max_x:
        max_x += _AROUND
    min_x, max_x = min_x + dx - _SLACK_DEGREES, max_x + dx + _SLACK_DEGREES
    min_y, max_y = min_y - _SLACK_DEGREES, max_y + _SLACK_DEGREES
    if max_x - min_x >= _AROUND:
        set_boxes(regions.boxes, at, True, -180.0, min_y, 180.0, max_y)
        return
    while min_x < -180.0:
        min_x, max_x = min_x + _AROUND, max_x + _AROUND
    while min_x > 180.0:
        min_x, max_x = min_x - _AROUND, max_x - _AROUND
    if max_x > 180.0:
        max_x -= _AROUND
    set_boxes(regions.boxes, at, True, min_x, min_y, max_x, max_y)


@inlined_kernel
def place_region(regions, at, is_lonlat, polygons, x, y):
    """Let a region follow a position."""
    kind = regions.kinds[at]
    if kind == BOX:
        place_box(regions, at, is_lonlat, x, y)
    elif kind == CIRCLE:
        place_circle(regions, at, is_lonlat, x, y)
    elif kind == POLYGON:
        place_polygon(regions, at, is_lonlat, polygons, x, y)


@lean_kernel
def set_region(regions, at, is_lonlat, polygons, kind, frame, shape_row):
    """Give a slot a region as it was given."""
    regions.kinds[at] = kind
    regions.shape_rows[at] = shape_row
    for k in range(4):
        regions.frames[at, k] = 0.0
    if kind == EVERYWHERE:
        set_boxes(regions.boxes, at, False, -np.inf, -np.inf, np.inf, np.inf)
    elif kind == BOX:
        width = frame[2] - frame[0]
        if is_lonlat and frame[0] > frame[2]:
            width += _AROUND
        regions.frames[at, 0] = width * 0.5
        regions.frames[at, 1] = (frame[3] - frame[1]) * 0.5
        set_boxes(regions.boxes, at, is_lonlat, frame[0], frame[1], frame[2], frame[3])
    elif kind == CIRCLE:
        regions.frames[at, 2] = frame[2]
        place_circle(regions, at, is_lonlat, frame[0], frame[1])
    else:
        box_polygon(regions, at, is_lonlat, polygons)


@inlined_kernel
def copy_region(source, at, target, to):
    """Copy a region from one table to another."""
    target.kinds[to] = source.kinds[at]
    target.shape_rows[to] = source.shape_rows[at]
    for k in range(4):
        target.frames[to, k] = source.frames[at, k]
    for k in range(8):
        target.boxes[to, k] = source.boxes[at, k]


@inlined_kernel
def _below(value):
    return value - abs(value) * _ROUNDING - _LEAST


@inlined_kernel
def _above(value):
    return value + abs(value) * _ROUNDING + _LEAST


@inlined_kernel
def inner_box(regions, at, is_lonlat, inner, to):
    """Write a box that the region holds as a whole, or one that holds nothing."""
    inner[to, 0] = inner[to, 1] = np.inf
    inner[to, 2] = inner[to, 3] = -np.inf
    kind, boxes = regions.kinds[at], regions.boxes
    if kind == EVERYWHERE or (kind == BOX and boxes[at, 4] > boxes[at, 6]):
        for k in range(4):
            inner[to, k] = boxes[at, k]
    elif kind == CIRCLE and not is_lonlat:
        x, y, half = (
            regions.frames[at, 0],
            regions.frames[at, 1],
            regions.frames[at, 2] * _INSCRIBED,
        )
        inner[to, 0], inner[to, 1] = _above(x - half), _above(y - half)
        inner[to, 2], inner[to, 3] = _below(x + half), _below(y + half)


# ---- which places a region holds ----------------------------------------------------------------


@inlined_kernel
def boxes_touch(boxes, at, min_x, min_y, max_x, max_y):
    """Whether one of the boxes of a region shares a point with a closed box."""
    if boxes[at, 1] > max_y or boxes[at, 3] < min_y:  # both boxes are as high
        return False
    return (boxes[at, 0] <= max_x and boxes[at, 2] >= min_x) or (
        boxes[at, 4] <= max_x and boxes[at, 6] >= min_x
    )


@lean_kernel
def _holds_piece(regions, at, is_lonlat, polygons, min_x, min_y, max_x, max_y):
    if not boxes_touch(regions.boxes, at, min_x, min_y, max_x, max_y):
        return False
    kind = regions.kinds[at]
    if kind == CIRCLE:
        x, y, radius = regions.frames[at, 0], regions.frames[at, 1], regions.frames[at, 2]
        if is_lonlat:
            return sphere_distance_m(x, y, min_x, min_y, max_x, max_y) <= radius
        return plane_distance(x, y, min_x, min_y, max_x, max_y) <= radius
    if kind != POLYGON:
        return True
    shape = regions.shape_rows[at]
    dx, dy = regions.frames[at, 0], regions.frames[at, 1]
    low_y, high_y = min_y - dy, max_y - dy
    if not is_lonlat:
        return polygon_touches_box(polygons, shape, min_x - dx, low_y, max_x - dx, high_y)
    for turn in range(-1, 2):
        shift = turn * _AROUND
        low_x, high_x = (min_x - dx) + shift, (max_x - dx) + shift
        is_near = low_x <= 180.0 and high_x >= -180.0
        if is_near and polygon_touches_box(polygons, shape, low_x, low_y, high_x, high_y):
            return True
    return False


@inlined_kernel
def holds(regions, at, is_lonlat, polygons, min_x, min_y, max_x, max_y):
    """Whether a region shares a point with a message's box, which may cross the antimeridian."""
    if regions.kinds[at] <= BOX and min_x <= max_x:  # a rectangle, or everywhere
        return boxes_touch(regions.boxes, at, min_x, min_y, max_x, max_y)
    return _holds(regions, at, is_lonlat, polygons, min_x, min_y, max_x, max_y)


@lean_kernel
def _holds(regions, at, is_lonlat, polygons, min_x, min_y, max_x, max_y):
    if min_x <= max_x:
        return _holds_piece(regions, at, is_lonlat, polygons, min_x, min_y, max_x, max_y)
    return _holds_piece(
        regions, at, is_lonlat, polygons, min_x, min_y, 180.0, max_y
    ) or _holds_piece(regions, at, is_lonlat, polygons, -180.0, min_y, max_x, max_y)


@lean_kernel
def set_regions(regions, polygons, is_lonlat, first, kinds, frames, shape_rows):
    """Give the slots from ``first`` on regions as they were given."""
    for i in range(len(kinds)):
        set_region(regions, first + i, is_lonlat, polygons, kinds[i], frames[i], shape_rows[i])
