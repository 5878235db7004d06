"""The truth of ranked matching: what every ranked index must answer, in plain Python.

Nothing here is shared with what it judges. Overlaps and areas are rational numbers, sums of weights
are rounded once. Only whether an area counts at all is decided in floating point, by one product,
because that is how it is defined.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple
from fractions import Fraction
from typing import TypeAlias

from earshot.checks.oracle import (
    EARTH_RADIUS_M,
    Box,
    boxes_touch,
    cut,
    rows_of,
    shape_of,
    shape_touches,
    touches,
)
from earshot.model.arrays import EVERYWHERE_TOKEN, ClauseArrays, MessageArrays, Space
from earshot.model.regions import Circle, Everywhere, Place, Point, Polygon, Rectangle, Region

Parts: TypeAlias = tuple[float, float]
"""Spatial and textual score of one alternative."""

TOLERANCE = 1e-9
HAIR, HAIR_RAD = 1e-12, 1e-7
"""By how much the box around a circle is larger: a share of the radius; on the sphere an angle."""


def score_of(parts: Iterable[Parts], alpha: float) -> float | None:
    """Return the score of a subscription from those of its alternatives that are not out."""
    scores = [alpha * spatial + (1.0 - alpha) * textual for spatial, textual in parts]
    return max(scores, default=None)


def is_delivered(score: float | None, threshold: float) -> bool:
    """Whether a score reaches a threshold."""
    return score is not None and score > 0 and score >= threshold - TOLERANCE


def textual_score(
    required: frozenset[str], found: frozenset[str], weight: Callable[[str], float]
) -> float:
    """Return the share of the required weight that was found; all of it where nothing is asked."""
    if not required:
        return 1.0
    return math.fsum(map(weight, required & found)) / math.fsum(map(weight, required))


def spatial_score(region: Region, place: Place, space: Space) -> float:
    """Return the share of a region that a message covers."""
    if not touches(region, place, space):
        return 0.0
    message = [(place.x, place.y) * 2] if isinstance(place, Point) else cut(astuple(place))
    return _share(boxes_around(region, space), message)


# ---- boxes around regions -----------------------------------------------------------------------


def boxes_around(region: Region, space: Space) -> list[Box]:
    """Return the boxes that a region is measured by, those across the antimeridian cut."""
    match region:
        case Everywhere():
            return [(-math.inf, -math.inf, math.inf, math.inf)]
        case Rectangle():
            return cut(astuple(region))
        case Circle(x, y, radius) if space == "planar":
            reach = radius * (1.0 + HAIR)
            low, high = -math.inf, math.inf
            sides = ((x - reach, low), (y - reach, low), (x + reach, high), (y + reach, high))
            min_x, min_y, max_x, max_y = (math.nextafter(*side) for side in sides)
            return [(min_x, min_y, max_x, max_y)]
        case Circle():
            return _around_circle(region)
        case Polygon():
            return _around_polygon(region, space)


def _around_circle(circle: Circle) -> list[Box]:
    """Return the box between the parallels and meridians that touch a circle on the sphere."""
    reach, y = circle.radius / EARTH_RADIUS_M + HAIR_RAD, math.radians(circle.y)
    low, high = math.degrees(y - reach), math.degrees(y + reach)
    if low <= -90.0 or high >= 90.0:  # a pole is inside, and with it every longitude
        return [(-180.0, max(low, -90.0), 180.0, min(high, 90.0))]
    # The circle's easternmost point is where a meridian touches it: sin(dx) = sin(r) / cos(y).
    reach_x = math.degrees(math.asin(min(math.sin(reach) / math.cos(y), 1.0)))
    west, east = circle.x - reach_x, circle.x + reach_x
    return cut((west + 360.0 if west < -180.0 else west, low,
                east - 360.0 if east > 180.0 else east, high))  # fmt: skip


def _around_polygon(polygon: Polygon, space: Space) -> list[Box]:
    """Return the smallest box; where it goes around the world, less its widest empty stripe."""
    xs = [[x for x, _ in ring] for ring in polygon.rings]
    ys = [y for ring in polygon.rings for _, y in ring]
    spans = sorted((min(each), max(each)) for each in xs)
    west, east = min(first for first, _ in spans), max(last for _, last in spans)
    box = (west, min(ys), east, max(ys))
    if space == "planar" or west > -180.0 or east < 180.0:
        return [box]
    stripes = [
        (start - end, end, start)
        for _, end in spans
        for start, _ in spans
        if end < start and not any(first < start and end < last for first, last in spans)
    ]
    if not stripes:
        return [box]
    _, end, start = max(stripes, key=lambda stripe: stripe[0])
    return [(-180.0, min(ys), end, max(ys)), (start, min(ys), 180.0, max(ys))]


# ---- areas --------------------------------------------------------------------------------------


def _share(region: Sequence[Box], message: Sequence[Box]) -> float:
    """Return the score of a region that a message touches, both given as boxes."""
    if not _counts(message) or not _counts(region):
        return 1.0
    if any(math.isinf(side) for box in region for side in box) or math.isinf(_area(region)):
        return 1.0
    whole = sum(
        (Fraction(b[2]) - Fraction(b[0])) * (Fraction(b[3]) - Fraction(b[1])) for b in region
    )
    common = sum((_overlap(a, b) for a in region for b in message), Fraction(0))
    return min(float(common / whole), 1.0)


def _counts(boxes: Sequence[Box]) -> bool:
    """Whether boxes have an area that floats can hold."""
    return _area(boxes) >= sys.float_info.min  # NaN, of an infinite line, is not


def _area(boxes: Sequence[Box]) -> float:
    return sum((max_x - min_x) * (max_y - min_y) for min_x, min_y, max_x, max_y in boxes)


def _overlap(a: Box, b: Box) -> Fraction:
    """Return the area of the intersection of a bounded box with any box."""
    sides = []
    for axis in (0, 1):
        low, high = max(a[axis], b[axis]), min(a[axis + 2], b[axis + 2])
        if low >= high:
            return Fraction(0)
        sides.append(Fraction(high) - Fraction(low))
    return sides[0] * sides[1]


# ---- the same from arrays -----------------------------------------------------------------------


def parts_of(
    clauses: ClauseArrays, messages: MessageArrays, space: Space, weights: Sequence[float]
) -> list[dict[int, list[Parts]]]:
    """Return the scores of each slot's alternatives that are not out, for each message.

    The clauses of one slot with equal token lists are one alternative: their overlaps and areas are
    added up. What depends on alpha and the thresholds is left to :func:`delivered`.
    """
    alternatives: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    token_rows = rows_of(clauses.token_offsets, clauses.token_ids)
    for row, slot in enumerate(clauses.subscriptions.tolist()):
        alternatives.setdefault((slot, tuple(token_rows[row])), []).append(row)
    boxes: list[Box] = [tuple(row) for row in clauses.boxes.tolist()]
    shapes = [shape_of(clauses.shapes, row) for row in clauses.shape_rows.tolist()]
    totals = {tokens: math.fsum(weights[t] for t in tokens if t >= 0) for _, tokens in alternatives}
    result: list[dict[int, list[Parts]]] = []
    message_tokens = rows_of(messages.token_offsets, messages.token_ids)
    for row_tokens, message_box in zip(message_tokens, messages.boxes.tolist(), strict=True):
        found = {EVERYWHERE_TOKEN, *row_tokens}
        places = cut(tuple(message_box))
        scores: dict[int, list[Parts]] = {}
        for (slot, tokens), rows in alternatives.items():
            if any(~t in found for t in tokens if t < 0):
                continue
            common = [weights[t] for t in tokens if t in found]
            textual = math.fsum(common) / totals[tokens] if common else 0.0
            touching = any(
                boxes_touch(boxes[row], place)
                and shape_touches(shapes[row], place, space == "lonlat")
                for row in rows
                for place in places
            )
            spatial = _share([boxes[row] for row in rows], places) if touching else 0.0
            scores.setdefault(slot, []).append((spatial, textual))
        result.append(scores)
    return result


def delivered(
    parts: list[dict[int, list[Parts]]],
    clauses: ClauseArrays,
    alpha: float,
    threshold: float,
) -> list[dict[int, float]]:
    """Return the slots that each message is delivered to, with their scores."""
    thresholds = {}
    if len(clauses.thresholds):
        named = zip(clauses.subscriptions.tolist(), clauses.thresholds.tolist(), strict=True)
        thresholds = {slot: own for slot, own in named if not math.isnan(own)}
    result = []
    for scores in parts:
        answers = {}
        for slot, each in scores.items():
            score = score_of(each, alpha)
            if score is not None and is_delivered(score, thresholds.get(slot, threshold)):
                answers[slot] = score
        result.append(answers)
    return result
