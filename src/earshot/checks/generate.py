"""Cases for the laws: random ones from a :class:`Recipe` and its seed, and small ones by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np

from earshot.model.arrays import (
    EARTH_RADIUS_M,
    EVERYWHERE_TOKEN,
    ClauseArrays,
    Float64s,
    Int32s,
    Int64s,
    MessageArrays,
    ShapeArrays,
    Space,
    box_clauses,
    no_shapes,
    offsets_of,
    take_clauses,
    take_messages,
)

Boxes: TypeAlias = Sequence[Sequence[float]] | Float64s

THRESHOLDS = (1e-10, 0.05, 0.2, 0.4, 0.5, 0.75, 0.95, 1.0)


class Case(NamedTuple):
    """Subscriptions and messages to match against each other."""

    space: Space
    clauses: ClauseArrays
    messages: MessageArrays
    weights: Float64s  # of the tokens, for semantics that weigh them

    @property
    def n_slots(self) -> int:
        """Number of subscriptions."""
        return int(self.clauses.subscriptions.max(initial=-1)) + 1

    def part(self, start: int, stop: int) -> Case:
        """Return the case with the subscriptions ``start`` to ``stop - 1`` alone."""
        slots = self.clauses.subscriptions
        rows = np.flatnonzero((slots >= start) & (slots < stop))
        return self._replace(clauses=take_clauses(self.clauses, rows))

    def single_messages(self) -> list[MessageArrays]:
        """Return each message as a batch of its own."""
        return [
            take_messages(self.messages, np.array([m])) for m in range(len(self.messages.boxes))
        ]


@dataclass(frozen=True)
class Recipe:
    """What a random case looks like; equal recipes give equal cases."""

    seed: int = 1
    space: Space = "planar"
    n_subscriptions: int = 1200
    n_messages: int = 100
    n_tokens: int = 40  # tokens that clauses ask for are 1 … n_tokens
    n_unknown_tokens: int = 0  # messages also carry tokens above n_tokens, this many
    skew: float = 0.8  # exponent of the Zipf distribution of tokens; 0: equally frequent
    max_keywords: int = 3  # required tokens of a clause are 1 to this many
    max_message_tokens: int = 10  # tokens of a message are 0 to this many
    # Where the centres of regions and messages lie.
    extent: tuple[float, float, float, float] = (-180.0, -90.0, 180.0, 90.0)
    side: float = 0.2  # longest side of a region, as a share of the extent
    message_side: float = 0.0  # the same of a message; 0 makes points
    grid: float = 0.0  # sides are multiples of this, so that many touch exactly; 0 leaves them
    everywhere: float = 0.02  # share of clauses without keywords
    forbidden: float = 0.0  # share of clauses with one or two forbidden tokens
    several: float = 0.0  # clauses beyond one per subscription, as a share of the subscriptions
    expressions: float = 0.0  # share of subscriptions whose clauses all have the same region
    unbounded: float = 0.0  # share of clauses with one or more infinite sides
    shapes: float = 0.0  # share of clauses whose region is a circle or a polygon
    crossing: float = 0.0  # share of messages whose box crosses the antimeridian
    flat: float = 0.1  # share of plain regions, and of messages, that lose a dimension or two
    pieces: float = 0.5  # share of further clauses with the tokens before: pieces of a region
    thresholds: float = 0.0  # share of subscriptions with a threshold of their own
    spread: float = 0.0  # sizes of regions differ by factors of up to ten to this power


MIXED = Recipe(
    seed=11, space="lonlat", n_tokens=30, n_unknown_tokens=5, max_keywords=4, side=0.4,
    message_side=0.3, forbidden=0.2, several=0.4, expressions=0.5, unbounded=0.05, shapes=0.2,
    crossing=0.2, grid=0.5, everywhere=0.05, thresholds=0.3,
)  # fmt: skip
"""Everything at once; the case of the laws that are not about one kind of input."""


@lru_cache(maxsize=64)
def make_case(recipe: Recipe) -> Case:
    """Return the case of a recipe; the arrays are shared, so copy what you change."""
    random = np.random.default_rng(recipe.seed)
    clauses, messages = _clauses(recipe, random), _messages(recipe, random)
    return Case(recipe.space, clauses, messages, weights_for(clauses))


def case_of(
    token_rows: Sequence[Sequence[int]],
    boxes: Boxes,
    message_tokens: Sequence[Sequence[int]],
    message_boxes: Boxes,
    *,
    slots: Sequence[int] | None = None,
    space: Space = "planar",
    weights: Sequence[float] | None = None,
) -> Case:
    """Return a case written down by hand: clauses of boxes, one per slot unless slots are given.

    Every message carries the reserved token besides its own.
    """
    clauses = box_clauses(*ragged(token_rows), boxes, slots)
    offsets, tokens = ragged([[EVERYWHERE_TOKEN, *row] for row in message_tokens])
    messages = MessageArrays(offsets, tokens, np.array(message_boxes, np.float64).reshape(-1, 4))
    given = weights_for(clauses) if weights is None else np.array(weights, np.float64)
    return Case(space, clauses, messages, given)


def weights_for(clauses: ClauseArrays) -> Float64s:
    """Return weights for the tokens of clauses; a few pairs are equal."""
    tokens = clauses.token_ids
    n = int(max(tokens.max(initial=0), (~tokens).max(initial=0))) + 1
    return np.random.default_rng(n).integers(2, 30, n) / 4.0


def _clauses(recipe: Recipe, random: np.random.Generator) -> ClauseArrays:
    n_slots = recipe.n_subscriptions
    extra = random.integers(0, max(n_slots, 1), round(recipe.several * n_slots))
    slots = np.sort(np.concatenate([np.arange(n_slots), extra])).astype(np.int32)
    n = len(slots)
    is_everywhere = random.random(n) < recipe.everywhere
    n_required = random.integers(1, recipe.max_keywords + 1, n)
    n_forbidden = random.integers(1, 3, n) * (random.random(n) < recipe.forbidden)
    drawn = _tokens(random, n_required + n_forbidden, recipe.n_tokens, recipe.skew)
    tokens = [
        [*([EVERYWHERE_TOKEN] if everywhere else row[:k]), *(~token for token in row[k:])]
        for row, k, everywhere in zip(drawn, n_required.tolist(), is_everywhere, strict=True)
    ]
    is_piece = np.append(False, slots[1:] == slots[:-1])[:n] & (random.random(n) < recipe.pieces)
    for row in np.flatnonzero(is_piece).tolist():
        tokens[row] = tokens[row - 1]
    boxes = _boxes(recipe, random, n, recipe.side)
    if recipe.spread:
        centres, halves = boxes[:, :2] / 2 + boxes[:, 2:] / 2, boxes[:, 2:] / 2 - boxes[:, :2] / 2
        halves = halves * 10.0 ** random.uniform(1 - recipe.spread, recipe.spread, (n, 1))
        boxes = np.concatenate([centres - halves, centres + halves], axis=1)
    kinds = random.random(n)
    shaped = np.flatnonzero(kinds < recipe.shapes)
    shape_rows = np.full(n, -1, np.int32)
    shape_rows[shaped] = np.arange(len(shaped))
    shapes, boxes[shaped] = _shapes(recipe, random, boxes[shaped])
    flat = np.flatnonzero((shape_rows < 0) & (random.random(n) < recipe.flat))
    boxes[flat, 2 + flat % 2] = boxes[flat, flat % 2]
    unbounded = np.flatnonzero(kinds > 1 - recipe.unbounded)
    infinities = np.array([-np.inf, -np.inf, np.inf, np.inf])
    is_open = random.random((len(unbounded), 4)) < 0.5
    boxes[unbounded] = np.where(is_open, infinities, boxes[unbounded])
    if recipe.expressions:
        firsts = np.searchsorted(slots, slots)
        is_same = random.random(n_slots)[slots] < recipe.expressions
        rows = np.where(is_same, firsts, np.arange(n))
        boxes, shape_rows = boxes[rows], shape_rows[rows]
    clauses = ClauseArrays(slots, *ragged(tokens), boxes, shape_rows, shapes)
    if recipe.thresholds == 0.0:
        return clauses
    own = random.choice(THRESHOLDS, n_slots)
    own[random.random(n_slots) >= recipe.thresholds] = np.nan
    return clauses._replace(thresholds=own[slots])


def _messages(recipe: Recipe, random: np.random.Generator) -> MessageArrays:
    lengths = random.integers(0, recipe.max_message_tokens + 1, recipe.n_messages)
    n_tokens = recipe.n_tokens + recipe.n_unknown_tokens
    drawn = _tokens(random, lengths, n_tokens, recipe.skew)
    tokens = [[EVERYWHERE_TOKEN, *row] for row in drawn]
    boxes = _boxes(recipe, random, recipe.n_messages, recipe.message_side)
    kinds = random.random(recipe.n_messages)
    boxes[kinds < 2 * recipe.flat, 3] = boxes[kinds < 2 * recipe.flat, 1]
    boxes[kinds < recipe.flat, 2] = boxes[kinds < recipe.flat, 0]
    crossing = random.random(recipe.n_messages) < recipe.crossing
    boxes[crossing] = boxes[crossing][:, [2, 1, 0, 3]]
    return MessageArrays(*ragged(tokens), boxes)


def _tokens(
    random: np.random.Generator, lengths: Int64s, n_tokens: int, skew: float
) -> list[list[int]]:
    """Draw distinct tokens from 1 … ``n_tokens``, as many for each row as its length says."""
    # The largest of weighted random numbers are a weighted sample without replacement.
    weights = np.arange(1, n_tokens + 1, dtype=np.float64) ** -skew
    numbers = np.log(random.random((len(lengths), n_tokens))) / weights
    order = np.argsort(-numbers, axis=1) + 1
    return [row[:length] for row, length in zip(order.tolist(), lengths.tolist(), strict=True)]


def _boxes(recipe: Recipe, random: np.random.Generator, n: int, side: float) -> Float64s:
    """Draw boxes around centres in the extent; a side of 0 gives points."""
    low, high = np.array(recipe.extent[:2]), np.array(recipe.extent[2:])
    centres = random.uniform(low, high, (n, 2))
    halves = (high / 2 - low / 2) * side * random.random((n, 2))
    boxes = np.concatenate([centres - halves, centres + halves], axis=1)
    if recipe.grid > 0:
        boxes = np.round(boxes / recipe.grid) * recipe.grid
    if recipe.space == "lonlat":
        boxes = np.clip(boxes, [-180.0, -90.0, -180.0, -90.0], [180.0, 90.0, 180.0, 90.0])
    return boxes


def _shapes(
    recipe: Recipe, random: np.random.Generator, boxes: Float64s
) -> tuple[ShapeArrays, Float64s]:
    """Return circles and polygons near the given boxes, and the boxes around them.

    On longitude/latitude they are kept away from the poles and the antimeridian, where one region
    has several boxes.
    """
    n = len(boxes)
    if n == 0:
        return no_shapes(), boxes
    centres = boxes[:, :2] / 2 + boxes[:, 2:] / 2
    if recipe.space == "lonlat":
        centres = np.clip(centres, [-150.0, -60.0], [150.0, 60.0])
    radii = np.minimum((boxes[:, 2] - boxes[:, 0]) / 2, 15.0)
    is_circle = random.random(n) < 0.5
    circles = np.full((n, 3), -1.0)
    rings: list[Float64s] = []
    n_rings = np.zeros(n, np.int64)
    around = np.empty((n, 4))
    for i, (x, y) in enumerate(centres):
        if is_circle[i]:
            half_x = half_y = radii[i]
            circles[i] = x, y, radii[i]
            if recipe.space == "lonlat":
                angle = math.radians(half_y)
                circles[i, 2] = angle * EARTH_RADIUS_M
                half_x = math.degrees(math.asin(math.sin(angle) / math.cos(math.radians(y))))
            # A little wider than computed, because the box must not cut the circle.
            half_x, half_y = half_x * (1 + 1e-9), half_y * (1 + 1e-9)
            around[i] = x - half_x, y - half_y, x + half_x, y + half_y
            continue
        outer = _star(random, x, y, radii[i])
        rings.append(outer)
        if random.random() < 0.3:
            rings.append((outer - (x, y)) * 0.5 + (x, y))  # a hole
        n_rings[i] = 1 if rings[-1] is outer else 2
        around[i] = *outer.min(axis=0), *outer.max(axis=0)
    ring_offsets, vertex_offsets = (
        offsets_of(n_rings),
        offsets_of(np.array([len(r) for r in rings], np.int64)),
    )
    vertices = np.concatenate([np.empty((0, 2)), *rings])
    return ShapeArrays(circles, ring_offsets, vertex_offsets, vertices), around


def _star(random: np.random.Generator, x: float, y: float, radius: float) -> Float64s:
    """Return a closed ring around a point, with three to nine corners."""
    n = int(random.integers(3, 10))
    angles = (np.arange(n) + random.uniform(0, 0.9, n)) * (2 * math.pi / n)
    radii = radius * random.uniform(0.3, 1.0, n)
    ring = np.column_stack([x + radii * np.cos(angles), y + radii * np.sin(angles)])
    return np.concatenate([ring, ring[:1]])


def ragged(rows: Sequence[Sequence[int]]) -> tuple[Int64s, Int32s]:
    """Return lists of tokens as offsets and token ids."""
    lengths = np.array([len(row) for row in rows], np.int64)
    return offsets_of(lengths), np.array([t for row in rows for t in row], np.int32)
