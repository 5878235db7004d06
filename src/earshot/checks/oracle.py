"""The truth: what every index must answer, in plain Python.

Nothing here is shared with what it judges. Texts are sets of tokens, and geometry is written down a
second time:

- A rectangle or point is a list of plain boxes, cut at the antimeridian and repeated where it
  touches one of its two names, -180 and 180.
- A circle holds the points whose distance from its centre is at most its radius. Distances are
  defined by one formula in floating point (see :func:`sphere_distance_m`), the same, operation by
  operation, as the kernels'; there is no other way to agree about points on a circle's edge.
- A polygon is decided in rational numbers, without any rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, TypeAlias

from earshot.model.arrays import EVERYWHERE_TOKEN, ClauseArrays, MessageArrays, ShapeArrays, Space
from earshot.model.regions import Circle, Everywhere, Place, Point, Polygon, Rectangle, Region

Box: TypeAlias = tuple[float, float, float, float]
Rings: TypeAlias = Sequence[Sequence[tuple[float, float]]]

EARTH_RADIUS_M = 6_371_008.8


def matches_of(
    clauses: ClauseArrays, messages: MessageArrays, space: Space = "lonlat"
) -> list[set[int]]:
    """Return the slots that each message is delivered to, straight from the arrays.

    A clause's box is taken as it stands: a region that reaches the antimeridian has a clause on
    each side of it. A message's box is cut where it crosses.
    """
    is_lonlat = space == "lonlat"
    slots = clauses.subscriptions.tolist()
    clause_tokens = rows_of(clauses.token_offsets, clauses.token_ids)
    required = [{t for t in tokens if t >= 0} for tokens in clause_tokens]
    forbidden = [{~t for t in tokens if t < 0} for tokens in clause_tokens]
    boxes: list[Box] = [tuple(row) for row in clauses.boxes.tolist()]
    shapes = [shape_of(clauses.shapes, row) for row in clauses.shape_rows.tolist()]
    result: list[set[int]] = []
    message_tokens = rows_of(messages.token_offsets, messages.token_ids)
    for tokens, box in zip(message_tokens, messages.boxes.tolist(), strict=True):
        found = {EVERYWHERE_TOKEN, *tokens}
        pieces = cut(tuple(box))
        answers = set()
        for c, slot in enumerate(slots):
            if required[c] <= found and not forbidden[c] & found:
                for piece in pieces:
                    if boxes_touch(boxes[c], piece) and shape_touches(shapes[c], piece, is_lonlat):
                        answers.add(slot)
        result.append(answers)
    return result


def rows_of(offsets: Any, values: Any) -> list[list[int]]:
    """Return the rows of a ragged array."""
    ends, flat = offsets.tolist(), values.tolist()
    return [flat[start:end] for start, end in pairwise(ends)]


def shape_of(shapes: ShapeArrays, row: int) -> Circle | Polygon | None:
    """Return the shape of a row; none is the whole space."""
    if row < 0:
        return None
    x, y, radius = shapes.circles[row].tolist()
    if radius >= 0:
        return Circle(x, y, radius)
    first, last = shapes.ring_offsets[row : row + 2].tolist()
    ends = shapes.vertex_offsets[first : last + 1].tolist()
    return Polygon(shapes.vertices[start:end].tolist() for start, end in pairwise(ends))


# ---- regions ------------------------------------------------------------------------------------


def touches(region: Region, place: Place, space: Space) -> bool:
    """Whether a region and a message's place share a point."""
    is_lonlat = space == "lonlat"
    places = pieces_of(place, is_lonlat)
    match region:
        case Everywhere():
            return True
        case Rectangle():
            return any(boxes_touch(a, b) for a in pieces_of(region, is_lonlat) for b in places)
        case Circle() | Polygon():
            return any(shape_touches(region, box, is_lonlat) for box in places)


def pieces_of(place: Place, is_lonlat: bool) -> list[Box]:
    """Return the boxes of a point or rectangle, under both names of the antimeridian."""
    if isinstance(place, Point):
        box = (place.x, place.y, place.x, place.y)
    else:
        box = (place.min_x, place.min_y, place.max_x, place.max_y)
    if not is_lonlat:
        return [box]
    return [named for piece in cut(box) for named in both_names(piece)]


def cut(box: Box) -> list[Box]:
    """Return the box, or its two halves where it crosses the antimeridian."""
    min_x, min_y, max_x, max_y = box
    if min_x <= max_x:
        return [box]
    return [(min_x, min_y, 180.0, max_y), (-180.0, min_y, max_x, max_y)]


def both_names(box: Box) -> list[Box]:
    """Return the box, and where it touches the antimeridian that under both of its names."""
    min_x, min_y, max_x, max_y = box
    if min_x != -180.0 and max_x != 180.0:
        return [box]
    return [box, (-180.0, min_y, -180.0, max_y), (180.0, min_y, 180.0, max_y)]


def boxes_touch(a: Box, b: Box) -> bool:
    """Whether two closed boxes share a point."""
    return a[0] <= b[2] and b[0] <= a[2] and a[1] <= b[3] and b[1] <= a[3]


def shape_touches(shape: Circle | Polygon | None, box: Box, is_lonlat: bool) -> bool:
    """Whether a shape shares a point with a box; no shape is the whole space."""
    if shape is None:
        return True
    if isinstance(shape, Circle):
        distance = sphere_distance_m if is_lonlat else plane_distance
        return distance(shape.x, shape.y, box) <= shape.radius
    pieces = both_names(box) if is_lonlat else [box]
    return any(polygon_touches(shape.rings, piece) for piece in pieces)


# ---- circles ------------------------------------------------------------------------------------


def plane_distance(x: float, y: float, box: Box) -> float:
    """Euclidean distance from a point to the nearest point of a box."""
    dx = min(max(x, box[0]), box[2]) - x
    dy = min(max(y, box[1]), box[3]) - y
    largest = max(abs(dx), abs(dy))
    scale = 1.0
    if largest > 1e150:
        scale = 2.0**-600
    if largest < 1e-150:
        scale = 2.0**600
    return math.sqrt(dx * scale * (dx * scale) + dy * scale * (dy * scale)) * (1.0 / scale)


def sphere_distance_m(x: float, y: float, box: Box) -> float:
    """Distance on the sphere from a point to the nearest point of a box, in metres.

    The least of the haversine distances to the candidates on the box's nearest meridian: its two
    ends, and the foot of the great circle from the point that meets the meridian at a right angle.
    """
    min_x, min_y, max_x, max_y = box
    dx = 0.0 if min_x <= x <= max_x else min(_apart(x, min_x), _apart(x, max_x))
    if dx == 0.0:
        return haversine_m(0.0, y, min(max(y, min_y), max_y))
    candidates = [min_y, max_y]
    radians = math.pi / 180.0
    foot = math.atan2(math.sin(y * radians), math.cos(y * radians) * math.cos(dx * radians))
    if min_y < foot / radians < max_y:
        candidates.append(foot / radians)
    return min(haversine_m(dx, y, candidate) for candidate in candidates)


def _apart(x: float, other_x: float) -> float:
    around = abs(x - other_x)
    return 360.0 - around if around > 180.0 else around


def haversine_m(dx: float, y: float, other_y: float) -> float:
    """Distance in metres between two latitudes on meridians ``dx`` degrees apart."""
    radians = math.pi / 180.0
    half_y = math.sin((other_y - y) * radians * 0.5)
    half_x = math.sin(dx * radians * 0.5)
    cosines = math.cos(y * radians) * math.cos(other_y * radians)
    square = half_y * half_y + cosines * (half_x * half_x)
    return 2.0 * EARTH_RADIUS_M * math.asin(min(1.0, math.sqrt(square)))


# ---- polygons -----------------------------------------------------------------------------------


def polygon_touches(rings: Rings, box: Box) -> bool:
    """Whether a polygon under the even-odd rule, with its boundary, shares a point with a box."""
    edges = [(a, b) for ring in rings for a, b in pairwise(ring)]
    if any(segment_touches(a, b, box) for a, b in edges):
        return True
    # No part of the boundary is in the box: it is inside or outside as a whole.
    if not all(map(math.isfinite, box)):
        return False
    return sum(_is_right_of(a, b, box[0], box[1]) for a, b in edges) % 2 == 1


def segment_touches(a: tuple[float, float], b: tuple[float, float], box: Box) -> bool:
    """Whether a segment shares a point with a box: some a + t (b - a), 0 <= t <= 1, is in it."""
    first, last = Fraction(0), Fraction(1)
    for axis in (0, 1):
        low, high = box[axis], box[axis + 2]
        if max(a[axis], b[axis]) < low or min(a[axis], b[axis]) > high:
            return False
        if a[axis] == b[axis]:
            continue
        start, slope = Fraction(a[axis]), Fraction(b[axis]) - Fraction(a[axis])
        entry, exit_ = (low, high) if slope > 0 else (high, low)
        # An infinite side bounds nothing.
        if math.isfinite(entry):
            first = max(first, (Fraction(entry) - start) / slope)
        if math.isfinite(exit_):
            last = min(last, (Fraction(exit_) - start) / slope)
    return first <= last


def _is_right_of(a: tuple[float, float], b: tuple[float, float], x: float, y: float) -> bool:
    """Whether the edge a-b is crossed by the ray from (x, y) to the right; upper ends excluded."""
    if (a[1] > y) == (b[1] > y):
        return False
    t = (Fraction(y) - Fraction(a[1])) / (Fraction(b[1]) - Fraction(a[1]))
    return Fraction(a[0]) + t * (Fraction(b[0]) - Fraction(a[0])) > Fraction(x)
