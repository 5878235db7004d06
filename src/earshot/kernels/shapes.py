"""Exact tests of circles and polygons against a message's box.

Circles are defined by a formula in floating point, which the oracle repeats operation by operation:
on lonlat the haversine distance on the sphere of ``EARTH_RADIUS_M``, in metres, on planar the
Euclidean distance; a point is inside when its distance is at most the radius.

Polygons are exact: every decision is the sign of an orientation determinant, which is computed in
floating point when an error bound proves the sign, and else as an unrounded sum. This holds for
vertices of magnitude 0 or 1e-130 to 1e150; below, products may underflow.
"""

from __future__ import annotations

import math

from numba.cpython.unsafe.tuple import tuple_setitem

from earshot.kernels.jit import lean_kernel
from earshot.model.arrays import EARTH_RADIUS_M

_RADIANS = math.pi / 180.0
_DIAMETER_M = 2.0 * EARTH_RADIUS_M
_SHRINK = 2.0**-600
_GROW = 2.0**600
_EPSILON = 2.0**-53
_ORIENTATION_BOUND = (3.0 + 16.0 * _EPSILON) * _EPSILON
_SPLITTER = 2.0**27 + 1.0
_NO_PARTS = (0.0,) * 12


@lean_kernel
def shape_touches_box(shapes, row, is_lonlat, min_x, min_y, max_x, max_y):
    """Whether shape ``row`` shares a point with the closed box (a point when min == max).

    On lonlat the box must not cross the antimeridian, but may reach it: the meridians -180 and 180
    are the same line.
    """
    if shapes.circles[row, 2] >= 0.0:
        x, y, radius = shapes.circles[row]
        if is_lonlat:
            return sphere_distance_m(x, y, min_x, min_y, max_x, max_y) <= radius
        return plane_distance(x, y, min_x, min_y, max_x, max_y) <= radius
    if polygon_touches_box(shapes, row, min_x, min_y, max_x, max_y):
        return True
    if is_lonlat:
        if min_x == -180.0 and max_x < 180.0:
            return polygon_touches_box(shapes, row, 180.0, min_y, 180.0, max_y)
        if max_x == 180.0 and min_x > -180.0:
            return polygon_touches_box(shapes, row, -180.0, min_y, -180.0, max_y)
    return False


# ---- circles ------------------------------------------------------------------------------------


@lean_kernel
def plane_distance(x, y, min_x, min_y, max_x, max_y):
    """Distance from a point to the nearest point of a box."""
    dx = min(max(x, min_x), max_x) - x
    dy = min(max(y, min_y), max_y) - y
    largest = max(abs(dx), abs(dy))
    # Scaling by a power of two is exact; without it squares overflow or vanish.
    if largest > 1e150:
        dx, dy = dx * _SHRINK, dy * _SHRINK
        return math.sqrt(dx * dx + dy * dy) * _GROW
    if largest < 1e-150:
        dx, dy = dx * _GROW, dy * _GROW
        return math.sqrt(dx * dx + dy * dy) * _SHRINK
    return math.sqrt(dx * dx + dy * dy)


@lean_kernel
def sphere_distance_m(x, y, min_x, min_y, max_x, max_y):
    """Distance on the sphere from a point to the nearest point of a longitude/latitude box.

    At any latitude the distance grows with the difference in longitude, so the nearest point lies
    on the meridian of the box that is nearest in longitude. Along a meridian the cosine of the
    distance is ``A sin(lat) + B cos(lat)``: its maximum is at one of the ends, or at the foot of
    the perpendicular ``atan2(A, B)`` where the box holds that latitude.
    """
    dx = 0.0
    if x < min_x or x > max_x:
        dx = min(longitude_difference(x, min_x), longitude_difference(x, max_x))
    if min_y == max_y:
        return haversine_m(dx, y, min_y)
    if dx == 0.0:
        return haversine_m(dx, y, min(max(y, min_y), max_y))
    nearest = min(haversine_m(dx, y, min_y), haversine_m(dx, y, max_y))
    foot = math.atan2(math.sin(y * _RADIANS), math.cos(y * _RADIANS) * math.cos(dx * _RADIANS))
    foot = foot / _RADIANS
    if min_y < foot < max_y:
        nearest = min(nearest, haversine_m(dx, y, foot))
    return nearest


@lean_kernel
def longitude_difference(x, other_x):
    """Difference of two longitudes the short way around, 0 to 180 degrees."""
    difference = abs(x - other_x)
    return 360.0 - difference if difference > 180.0 else difference


@lean_kernel
def haversine_m(dx, y, other_y):
    """Distance in metres between latitudes ``y`` and ``other_y``, ``dx`` degrees apart."""
    half_y = math.sin((other_y - y) * _RADIANS * 0.5)
    half_x = math.sin(dx * _RADIANS * 0.5)
    cosines = math.cos(y * _RADIANS) * math.cos(other_y * _RADIANS)
    square = half_y * half_y + cosines * (half_x * half_x)
    return _DIAMETER_M * math.asin(min(1.0, math.sqrt(square)))


# ---- polygons -----------------------------------------------------------------------------------


@lean_kernel
def polygon_touches_box(shapes, row, min_x, min_y, max_x, max_y):
    """Whether a polygon under the even-odd rule, boundary included, shares a point with a box.

    Either an edge touches the box, or the box lies wholly inside or wholly outside; then one of its
    corners decides, by the number of edges to the right of it.
    """
    inside = False
    for ring in range(shapes.ring_offsets[row], shapes.ring_offsets[row + 1]):
        start, stop = shapes.vertex_offsets[ring], shapes.vertex_offsets[ring + 1]
        for i in range(start, stop - 1):
            ax, ay = shapes.vertices[i, 0], shapes.vertices[i, 1]
            bx, by = shapes.vertices[i + 1, 0], shapes.vertices[i + 1, 1]
            low_y, high_y = min(ay, by), max(ay, by)
            if high_y < min_y or low_y > max_y:
                continue
            low_x, high_x = min(ax, bx), max(ax, bx)
            if high_x < min_x:
                continue
            if low_x <= max_x and edge_touches_box(
                ax,
                ay,
                bx,
                by,
                max(min_x, low_x),
                max(min_y, low_y),
                min(max_x, high_x),
                min(max_y, high_y),
            ):
                return True
            # An edge that ends on the corner's height counts only if the other end is above.
            if (ay > min_y) != (by > min_y):
                if min_x < low_x:
                    inside = not inside
                else:
                    turn = orientation(ax, ay, bx, by, min_x, min_y)
                    inside ^= (turn > 0) == (by > ay)
    return inside


@lean_kernel
def edge_touches_box(ax, ay, bx, by, min_x, min_y, max_x, max_y):
    """Whether the segment a-b touches a box that lies within the segment's own bounding box.

    Two convex sets are apart only if a line along one of their sides separates them. Their extents
    in x and y overlap, so only the segment itself is left: it separates when the two corners
    farthest to its left and right are strictly on one side.
    """
    if (bx >= ax) == (by >= ay):
        first = orientation(ax, ay, bx, by, min_x, max_y)
        second = orientation(ax, ay, bx, by, max_x, min_y)
    else:
        first = orientation(ax, ay, bx, by, min_x, min_y)
        second = orientation(ax, ay, bx, by, max_x, max_y)
    return first * second <= 0


@lean_kernel
def orientation(ax, ay, bx, by, cx, cy):
    """Sign of the turn a-b-c: 1 when c is left of a-b, -1 right, 0 exactly on the line."""
    if (ax == cx or by == cy) and (ay == cy or bx == cx):
        return 0  # both products vanish, as they do along axis-parallel edges
    left = (ax - cx) * (by - cy)
    right = (ay - cy) * (bx - cx)
    determinant = left - right
    # The bound of Shewchuk's "Adaptive Precision Floating-Point Arithmetic and Fast Robust
    # Geometric Predicates" (1997); it does not hold for numbers so small that products underflow.
    bound = _ORIENTATION_BOUND * (abs(left) + abs(right))
    if determinant > bound > 1e-280:
        return 1
    if -determinant > bound > 1e-280:
        return -1
    return exact_orientation(ax, ay, bx, by, cx, cy)


@lean_kernel
def exact_orientation(ax, ay, bx, by, cx, cy):
    """The same sign, from the six products of the determinant summed without rounding."""
    parts = _NO_PARTS  # a tuple, because a lean kernel cannot make an array
    n = 0
    for pair in range(6):
        if pair == 0:
            first, second = ax, by
        elif pair == 1:
            first, second = -ay, bx
        elif pair == 2:
            first, second = bx, cy
        elif pair == 3:
            first, second = -by, cx
        elif pair == 4:
            first, second = cx, ay
        else:
            first, second = -cy, ax
        product = first * second
        # Dekker's product: the rounding error of first * second, itself a number.
        high_a = _SPLITTER * first
        high_a = high_a - (high_a - first)
        low_a = first - high_a
        high_b = _SPLITTER * second
        high_b = high_b - (high_b - second)
        low_b = second - high_b
        error = low_a * low_b - (((product - high_a * high_b) - low_a * high_b) - high_a * low_b)
        parts = add_exactly(parts, n, error)
        parts = add_exactly(parts, n + 1, product)
        n += 2
    # Parts do not overlap and grow in size, so the last one that is not zero has the sign.
    for i in range(n - 1, -1, -1):
        if parts[i] > 0.0:
            return 1
        if parts[i] < 0.0:
            return -1
    return 0


@lean_kernel
def add_exactly(parts, n, value):
    """Add a number to a sum that is kept as ``n`` parts, smallest first; it then has one more."""
    for i in range(n):
        total = value + parts[i]
        virtual = total - value
        parts = tuple_setitem(parts, i, (value - (total - virtual)) + (parts[i] - virtual))
        value = total
    return tuple_setitem(parts, n, value)
