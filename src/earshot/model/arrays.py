"""The flat arrays that indexes and kernels work on.

A subscription is stored as one or more *clauses*: a clause is a conjunction of keywords inside one
box. Most subscriptions have exactly one; a disjunction gives one clause per branch, and a region
across the antimeridian one per side. A subscription is delivered once however many of its clauses
match. Subscriptions are known by their *slot*, a small integer that the engine hands out; user ids
live in the engine.

Boxes are ``min_x, min_y, max_x, max_y``, closed on every side. Infinite sides are allowed, NaN is
not. In these arrays ``min_x <= max_x`` always holds for clauses; a *message* box with
``min_x > max_x`` crosses the antimeridian (longitude/latitude only).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

Space = Literal["lonlat", "planar"]
"""``lonlat``: x is longitude in [-180, 180], y latitude in [-90, 90], radii in metres on a sphere.
``planar``: any finite coordinates, radii in the same unit."""

EVERYWHERE_TOKEN = 0
"""Token id that every message carries; a clause without keywords asks for this one."""

EARTH_RADIUS_M = 6_371_008.8
"""Radius of the sphere on which longitude/latitude distances are computed (haversine)."""


TAKEN_ROWS = 1 << 20
"""Rows of a ragged array that are taken at a time."""


class ShapeArrays(NamedTuple):
    """Regions that are not boxes; checked exactly behind their bounding boxes.

    A shape is a circle when its radius is >= 0, else a polygon given by rings under the even-odd
    rule (holes and several parts are just more rings). Rings are closed: the last vertex repeats
    the first.
    """

    circles: Float64s  # (n_shapes, 3) x, y, radius; radius is -1 for a polygon
    ring_offsets: Int64s  # (n_shapes + 1,) rings of shape i are [i]:[i+1]
    vertex_offsets: Int64s  # (n_rings + 1,) vertices of ring j are [j]:[j+1]
    vertices: Float64s  # (n_vertices, 2) x, y


_NO_THRESHOLDS = np.empty(0, np.float64)


class ClauseArrays(NamedTuple):
    """Clauses of subscriptions, one row each."""

    subscriptions: Int32s  # (n_clauses,) slot of the clause's subscription
    token_offsets: Int64s  # (n_clauses + 1,) tokens of clause i are [i]:[i+1]
    token_ids: Int32s  # required tokens t >= 0 (at least one, distinct), then forbidden ones as ~t
    boxes: Float64s  # (n_clauses, 4) min_x, min_y, max_x, max_y
    shape_rows: Int32s  # (n_clauses,) row in shapes, -1 where the box is the region
    shapes: ShapeArrays
    # (n_clauses,) score that the subscription asks for, NaN where the engine's counts; empty where
    # no subscription names one
    thresholds: Float64s = _NO_THRESHOLDS


class MessageArrays(NamedTuple):
    """Messages, one row each."""

    token_offsets: Int64s  # (n_messages + 1,)
    token_ids: Int32s  # distinct known tokens of each message, EVERYWHERE_TOKEN always among them
    boxes: Float64s  # (n_messages, 4); a point has min == max; min_x > max_x crosses 180 degrees


class CountedMessages(NamedTuple):
    """Messages at points with how often each word occurs, for semantics that weigh words."""

    token_offsets: Int64s  # (n_messages + 1,)
    tokens: Int32s  # distinct within a message, in any order
    counts: npt.NDArray[np.uint16]  # occurrences of each token, at least 1
    places: Float64s  # (n_messages, 3) Cartesian
    times: Int64s  # (n_messages,) in microseconds since 1970


class LivingMessages(NamedTuple):
    """Messages that live for a while, for moving subscribers."""

    token_offsets: Int64s  # (n_messages + 1,)
    tokens: Int32s  # distinct within a message, EVERYWHERE_TOKEN always among them
    boxes: Float64s  # (n_messages, 4); as those of MessageArrays
    times: Int64s  # (n_messages,) in microseconds since 1970
    ends: Int64s  # (n_messages,) the same; the least number where the lifetime counts


class PointArrays(NamedTuple):
    """Subscriptions that ask for words around a point, one row each."""

    token_offsets: Int64s  # (n_subscriptions + 1,)
    tokens: Int32s  # distinct within a row, at least one, never EVERYWHERE_TOKEN
    places: Float64s  # (n_subscriptions, 3) Cartesian
    alphas: Float64s  # share of the place in the score, NaN where the engine's counts
    ks: Int32s  # messages wanted, 0 where the engine's number counts


class RegionArrays(NamedTuple):
    """Regions, each in one or more boxes."""

    offsets: Int64s  # (n_regions + 1,) boxes of region i are [i]:[i+1]
    boxes: Float64s  # (n_boxes, 4)
    shape_rows: Int32s  # (n_boxes,) row in shapes, -1 where the box is the region
    shapes: ShapeArrays


class AnchoredRegions(NamedTuple):
    """Regions that move with a position, one a row, or positions alone."""

    kinds: npt.NDArray[np.int8]  # EVERYWHERE, BOX, CIRCLE, POLYGON; POSITION: the region stays
    # (n, 4) a box as it was given, crossing 180 degrees where min_x > max_x; x, y and radius of a
    # circle; x and y of a position; nothing of a polygon
    frames: Float64s
    shape_rows: Int32s  # (n,) row in shapes, -1 where there is no polygon
    shapes: ShapeArrays
    spans: Float64s  # (n_shapes, 4) the box around each polygon; it may cross 180 degrees


EVERYWHERE, BOX, CIRCLE, POLYGON, POSITION = range(5)
"""Kinds of regions that move."""


class Reports(NamedTuple):
    """Where subscriptions are, and when, one report a row."""

    regions: AnchoredRegions
    times: Int64s  # in microseconds since 1970; that of the clock where nobody says
    clocks: Int64s  # the clock that each finds, ascending


class Order(NamedTuple):
    """Moves and arrivals of a batch as one sequence of events."""

    clocks: Int64s  # (n,) the clock of each event, ascending
    moves: Int64s  # (n_moves,) events that are moves
    arrivals: Int64s  # (n_arrivals,) events that are arrivals


class MovingArrays(NamedTuple):
    """Subscriptions that move, one row each."""

    clause_offsets: Int64s  # (n_subscriptions + 1,) alternatives of row i are [i]:[i+1]
    token_offsets: Int64s  # (n_clauses + 1,)
    token_ids: Int32s  # as those of ClauseArrays
    regions: AnchoredRegions
    dwells_us: Int64s  # 0 where there is none
    cooldowns_us: Int64s  # 0 where there is none
    is_silent: npt.NDArray[np.bool_]  # whether nobody is told what leaves


def no_living() -> LivingMessages:
    """Return no messages."""
    none = np.empty(0, np.int64)
    return LivingMessages(
        np.zeros(1, np.int64), np.empty(0, np.int32), np.empty((0, 4)), none, none
    )


def no_shapes() -> ShapeArrays:
    """Return the shape table of subscriptions whose regions are all boxes."""
    return ShapeArrays(
        np.empty((0, 3), np.float64),
        np.zeros(1, np.int64),
        np.zeros(1, np.int64),
        np.empty((0, 2), np.float64),
    )


def box_clauses(
    token_offsets: npt.ArrayLike,
    token_ids: npt.ArrayLike,
    boxes: npt.ArrayLike,
    subscriptions: npt.ArrayLike | None = None,
) -> ClauseArrays:
    """Return clauses whose regions are plain boxes; slots default to 0, 1, 2, …."""
    offsets = np.ascontiguousarray(token_offsets, np.int64)
    n = len(offsets) - 1
    slots = np.arange(n, dtype=np.int32) if subscriptions is None else subscriptions
    return ClauseArrays(
        np.ascontiguousarray(slots, np.int32),
        offsets,
        np.ascontiguousarray(token_ids, np.int32),
        np.ascontiguousarray(boxes, np.float64).reshape(n, 4),
        np.full(n, -1, np.int32),
        no_shapes(),
    )


def largest_token(clauses: ClauseArrays) -> int:
    """Return the largest token of any clause, forbidden ones included; -1 if there is none."""
    tokens = clauses.token_ids
    return int(max(tokens.max(initial=-1), (~tokens).max(initial=-1)))


def with_tokens(clauses: ClauseArrays, tokens: Int32s) -> ClauseArrays:
    """Return clauses whose tokens have other numbers: token i was ``tokens[i]``."""
    numbers = numbers_of(tokens, largest_token(clauses) + 1)
    old = clauses.token_ids
    new = numbers[np.maximum(old, ~old)]
    return clauses._replace(token_ids=np.where(old < 0, ~new, new))


def numbers_of(kept: Int32s, n: int) -> Int32s:
    """Return the new number of each of ``n`` old ones, given the old ones of the new; else -1."""
    numbers = np.full(max(n, int(kept.max(initial=-1)) + 1), -1, np.int32)
    numbers[kept] = np.arange(len(kept), dtype=np.int32)
    return numbers


def take_clauses(clauses: ClauseArrays, rows: npt.NDArray[Any]) -> ClauseArrays:
    """Return the given rows of ``clauses``, in that order, with the shapes that they use."""
    offsets, token_ids = take_ranges(clauses.token_offsets, clauses.token_ids, rows)
    shape_rows = clauses.shape_rows[rows]
    has_shape = shape_rows >= 0
    used, numbers = np.unique(shape_rows[has_shape], return_inverse=True)
    shape_rows[has_shape] = numbers
    return ClauseArrays(
        clauses.subscriptions[rows],
        offsets,
        token_ids,
        clauses.boxes[rows],
        shape_rows,
        _take_shapes(clauses.shapes, used),
        clauses.thresholds[rows] if len(clauses.thresholds) else clauses.thresholds,
    )


def _take_shapes(shapes: ShapeArrays, rows: npt.NDArray[Any]) -> ShapeArrays:
    ring_offsets, rings = gather_ranges(shapes.ring_offsets, rows)
    vertex_offsets, vertices = gather_ranges(shapes.vertex_offsets, rings)
    return ShapeArrays(
        shapes.circles[rows], ring_offsets, vertex_offsets, shapes.vertices[vertices]
    )


Messages = TypeVar("Messages", MessageArrays, CountedMessages, LivingMessages)


def take_messages(messages: Messages, rows: npt.NDArray[Any]) -> Messages:
    """Return the given rows of ``messages``, in that order."""
    offsets, positions = gather_ranges(messages.token_offsets, rows)
    if isinstance(messages, MessageArrays):
        return MessageArrays(offsets, messages.token_ids[positions], messages.boxes[rows])
    if isinstance(messages, LivingMessages):
        by_row = (each[rows] for each in (messages.boxes, messages.times, messages.ends))
        return LivingMessages(offsets, messages.tokens[positions], *by_row)
    return CountedMessages(
        offsets,
        messages.tokens[positions],
        messages.counts[positions],
        messages.places[rows],
        messages.times[rows],
    )


def take_places(places: Any, rows: npt.NDArray[Any]) -> Any:
    """Return the given regions, or points one a row, in that order."""
    if isinstance(places, Reports):
        regions = take_places(places.regions, rows)
        return Reports(regions, places.times[rows], places.clocks[rows])
    if isinstance(places, AnchoredRegions):
        return places._replace(
            kinds=places.kinds[rows],
            frames=places.frames[rows],
            shape_rows=places.shape_rows[rows],
        )
    if not isinstance(places, RegionArrays):
        return places[rows]
    offsets, positions = gather_ranges(places.offsets, rows)
    return RegionArrays(
        offsets, places.boxes[positions], places.shape_rows[positions], places.shapes
    )


def concat_clauses(parts: Sequence[ClauseArrays]) -> ClauseArrays:
    """Return the rows of all parts, one after the other; there must be at least one part."""
    if len(parts) == 1:
        return parts[0]
    shape_rows = []
    n_shapes = 0
    for part in parts:
        rows = part.shape_rows
        shape_rows.append(np.where(rows >= 0, rows + np.int32(n_shapes), rows))
        n_shapes += len(part.shapes.circles)
    return ClauseArrays(
        np.concatenate([part.subscriptions for part in parts]),
        concat_offsets([part.token_offsets for part in parts]),
        np.concatenate([part.token_ids for part in parts]),
        np.concatenate([part.boxes for part in parts]),
        np.concatenate(shape_rows),
        concat_shapes([part.shapes for part in parts]),
        np.concatenate([all_thresholds(part) for part in parts])
        if any(len(part.thresholds) for part in parts)
        else _NO_THRESHOLDS,
    )


def concat_shapes(parts: Sequence[ShapeArrays]) -> ShapeArrays:
    """Return the shapes of all parts, one after the other."""
    circles, ring_offsets, vertex_offsets, vertices = zip(*parts, strict=True)
    return ShapeArrays(
        np.concatenate(circles),
        concat_offsets(ring_offsets),
        concat_offsets(vertex_offsets),
        np.concatenate(vertices),
    )


def all_thresholds(clauses: ClauseArrays) -> Float64s:
    """Return a threshold for each clause, NaN where its subscription names none."""
    if len(clauses.thresholds):
        return clauses.thresholds
    return np.full(len(clauses.subscriptions), np.nan)


def offsets_of(lengths: npt.NDArray[Any]) -> Int64s:
    """Return where rows of these lengths begin, one after the other, and where the last ends."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def gather_ranges(offsets: Int64s, rows: npt.NDArray[Any]) -> tuple[Int64s, Int64s]:
    """Return the offsets and element positions of the chosen rows of a ragged array."""
    starts = offsets[rows]
    lengths = offsets[rows + 1] - starts
    new_offsets = offsets_of(lengths)
    shifts = np.repeat(starts - new_offsets[:-1], lengths)
    positions = np.arange(new_offsets[-1], dtype=np.int64) + shifts
    return new_offsets, positions


def take_ranges(
    offsets: Int64s, values: npt.NDArray[Any], rows: npt.NDArray[Any]
) -> tuple[Int64s, npt.NDArray[Any]]:
    """Return the offsets and elements of the chosen rows of a ragged array.

    Rows are taken a part at a time, so that little memory is needed beside what comes out.
    """
    n = len(rows)
    parts = [slice(start, min(start + TAKEN_ROWS, n)) for start in range(0, n, TAKEN_ROWS)]
    new_offsets = np.zeros(n + 1, np.int64)
    for part in parts:
        new_offsets[1:][part] = offsets[rows[part] + 1] - offsets[rows[part]]
    np.cumsum(new_offsets, out=new_offsets)
    taken = np.empty(new_offsets[-1], values.dtype)
    for part in parts:
        _, positions = gather_ranges(offsets, rows[part])
        taken[new_offsets[part.start] : new_offsets[part.stop]] = values[positions]
    return new_offsets, taken


def concat_offsets(parts: Sequence[Int64s]) -> Int64s:
    """Return the offsets of one or more ragged arrays that are laid one after the other."""
    ends = np.cumsum([0] + [part[-1] for part in parts])
    shifted = [part[1:] + end for part, end in zip(parts, ends[:-1], strict=True)]
    return np.concatenate([parts[0][:1], *shifted])


def nbytes(arrays: tuple[Any, ...]) -> int:
    """Return the bytes of all arrays of a (nested) NamedTuple."""
    return sum(nbytes(a) if isinstance(a, tuple) else int(a.nbytes) for a in arrays)
