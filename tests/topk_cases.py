"""Random cases of top-k over a window: lists of calls from a :class:`TopkRecipe` and its seed.

By default the world is so small that ties are the rule: few words, few places, equal times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from earshot.checks.generate import ragged
from earshot.checks.topk_oracle import Line
from earshot.model.arrays import EARTH_RADIUS_M, CountedMessages, Float64s, Int64s, Space
from earshot.semantics.topk.kernels.arrays import REASONS, Changes


class Call(NamedTuple):
    """A method of a monitor, and what it is called with."""

    method: str
    arguments: tuple[Any, ...]


class TopkCase(NamedTuple):
    """A window, and what happens to it."""

    settings: dict[str, Any]  # what a monitor is made with
    calls: list[Call]


@dataclass(frozen=True)
class TopkRecipe:
    """What a random case looks like; equal recipes give equal cases.

    Attributes:
        seed: Seed of the generator.
        space: Whether places are on a plane or on the sphere.
        window: Number of messages in the window; ``None`` where time decides.
        duration_us: Length of the window; ``None`` where the number of messages decides.
        lateness_us: In a time window messages come up to this much later than others.
        n_subscriptions: Subscriptions at the start; more come and go in between.
        n_messages: Messages that are published in all, at least.
        max_batch: Most messages of one call.
        changes: Share of calls that do not publish.
        n_tokens: Tokens are 1 … ``n_tokens``.
        skew: Exponent of the Zipf distribution of tokens; 0 makes them equally frequent.
        max_keywords: Tokens of a subscription are 1 to this many.
        max_message_tokens: Distinct tokens of a message are 0 to this many.
        max_k: Subscriptions want 1 to this many messages.
        grid: Places are on a grid with this many lines each way; 0 leaves them anywhere.
    """

    seed: int = 1
    space: Space = "planar"
    window: int | None = 6
    duration_us: int | None = None
    lateness_us: int = 0
    n_subscriptions: int = 6
    n_messages: int = 60
    max_batch: int = 5
    changes: float = 0.4
    n_tokens: int = 5
    skew: float = 0.5
    max_keywords: int = 4
    max_message_tokens: int = 5
    max_k: int = 4
    grid: int = 3


def small_recipe(seed: int) -> TopkRecipe:
    """Return a recipe of a small case; seeds go through all kinds of windows."""
    random = np.random.default_rng(seed)
    size = int(random.integers(1, 13))
    return TopkRecipe(
        seed=seed,
        space="lonlat" if seed % 3 == 0 else "planar",
        window=size if seed % 2 else None,
        duration_us=None if seed % 2 else size,
        lateness_us=0 if seed % 4 else int(random.integers(0, 2 * size + 1)),
        max_batch=int(random.integers(1, 9)),
    )


def make_topk_case(recipe: TopkRecipe) -> TopkCase:
    """Return the case of a recipe."""
    return _Author(recipe).case()


def run(monitor: Any, call: Call) -> Any:
    """Make a call and return its changes; unsubscribing changes no results."""
    return getattr(monitor, call.method)(*call.arguments)


def places_of(points: Float64s, space: Space) -> Float64s:
    """Return points as Cartesian coordinates."""
    x, y = points[:, 0], points[:, 1]
    if space == "planar":
        return np.column_stack([x, y, np.zeros(len(x))])
    x, y = np.radians(x), np.radians(y)
    return EARTH_RADIUS_M * np.column_stack(
        [np.cos(y) * np.cos(x), np.cos(y) * np.sin(x), np.sin(y)]
    )


def messages_of(
    counts: list[dict[int, int]], places: Float64s, times: list[int] | Int64s
) -> CountedMessages:
    """Return messages with these counts of tokens."""
    offsets, tokens = ragged([list(each) for each in counts])
    flat = np.array([count for each in counts for count in each.values()], np.uint16)
    return CountedMessages(offsets, tokens, flat, places, np.array(times, np.int64))


CHANGE_TYPES = ("int32", "int8", "int8", "int32", "int64", "float64")


def assert_same_changes(found: Changes, expected: list[Line], where: str = "") -> None:
    """Assert that changes are the oracle's to the last bit, order included."""
    types = tuple(str(each.dtype) for each in found)
    assert types == CHANGE_TYPES, f"{where}: types are {types}"
    left = lines_of(found)
    for number, (got, wanted) in enumerate(zip(left, expected, strict=False)):
        assert got == wanted, f"{where}: change {number} is {got}, expected {wanted}"
        # Equal numbers may still differ in their bits: 0 and -0.
        assert got[-1].hex() == wanted[-1].hex(), f"{where}: bits of score {number} differ"
    assert len(left) == len(expected), (
        f"{where}: {len(left)} changes, expected {len(expected)}; "
        f"too many: {left[len(expected) :][:3]}, missing: {expected[len(left) :][:3]}"
    )


def lines_of(changes: Changes) -> list[Line]:
    """Return changes as rows, with words for signs and reasons."""
    signs = ["-" if sign < 0 else "+" for sign in changes.signs.tolist()]
    reasons = [REASONS[reason] for reason in changes.reasons.tolist()]
    rows, slots = changes.rows.tolist(), changes.slots.tolist()
    sequences, scores = changes.sequences.tolist(), changes.scores.tolist()
    return list(zip(rows, signs, reasons, slots, sequences, scores, strict=True))


class _Author:
    """Writes a case down, call by call, and knows what is live and what time it is."""

    def __init__(self, recipe: TopkRecipe) -> None:
        self.recipe = recipe
        self.random = np.random.default_rng(recipe.seed)
        self.live: list[int] = []
        self.n_slots = 0
        self.clock_us = 0
        shares = np.arange(1, recipe.n_tokens + 1, dtype=np.float64) ** -recipe.skew
        self.shares = shares / shares.sum()

    def case(self) -> TopkCase:
        recipe = self.recipe
        diameter = 2 * EARTH_RADIUS_M if recipe.space == "lonlat" else 4.0
        settings = {
            "window": recipe.window,
            "duration_us": recipe.duration_us,
            # Where it is less than the diameter of the world, many places score 0.
            "max_distance": diameter * (0.4 if recipe.seed % 5 == 0 else 1.0),
        }
        calls = [self.subscribe(recipe.n_subscriptions)]
        n_published = 0
        while n_published < recipe.n_messages:
            if self.random.random() < recipe.changes:
                calls += self.change()
            else:
                n = int(self.random.integers(1, recipe.max_batch + 1))
                calls.append(Call("publish", (self.messages(n),)))
                n_published += n
        return TopkCase(settings, calls)

    def change(self) -> list[Call]:
        kind = self.random.choice(["subscribe", "unsubscribe", "move", "advance", "reweigh"])
        n = int(self.random.integers(1, 4))
        match kind:
            case "subscribe":
                return [self.subscribe(n)]
            case "unsubscribe" if len(self.live) > n:
                return [self.unsubscribe(n)]
            case "move" if self.live:
                n = min(n, len(self.live))
                slots = self.random.choice(self.live, n, replace=False).astype(np.int32)
                return [Call("move", (slots, self.places(n)))]
            case "advance" if self.recipe.duration_us is not None:
                self.clock_us += int(self.random.integers(0, 2 * self.recipe.duration_us))
                return [Call("advance", (self.clock_us,))]
            case "reweigh":
                return [self.reweigh()]
        return []

    def subscribe(self, n: int) -> Call:
        recipe, random = self.recipe, self.random
        lengths = random.integers(1, min(recipe.max_keywords, recipe.n_tokens) + 1, n)
        offsets, tokens = ragged([self.tokens(length) for length in lengths.tolist()])
        alphas = random.choice([0.0, 0.5, 1.0, random.random()], n)
        ks = random.integers(1, recipe.max_k + 1, n).astype(np.int32)
        self.live += range(self.n_slots, self.n_slots + n)
        self.n_slots += n
        return Call("subscribe", (self.places(n), offsets, tokens, alphas, ks))

    def unsubscribe(self, n: int) -> Call:
        slots = self.random.choice(self.live, n, replace=False).astype(np.int32)
        self.live = sorted(set(self.live).difference(slots.tolist()))
        return Call("unsubscribe", (slots,))

    def messages(self, n: int) -> CountedMessages:
        recipe, random = self.recipe, self.random
        lengths = random.integers(0, min(recipe.max_message_tokens, recipe.n_tokens) + 1, n)
        counts = [
            {token: int(random.choice([1, 1, 1, 2, 3])) for token in self.tokens(length)}
            for length in lengths.tolist()
        ]
        return messages_of(counts, self.places(n), [self.time() for _ in range(n)])

    def time(self) -> int:
        """Draw a time that the window still takes, most often the clock's or a little later."""
        duration_us, late_us = self.recipe.duration_us, self.recipe.lateness_us
        if duration_us is None:
            return 0
        if late_us > 0 and self.random.random() < 0.4:
            late_us = int(self.random.integers(0, min(late_us, duration_us - 1) + 1))
            return self.clock_us - late_us
        pace = max(duration_us // 6, 1)
        self.clock_us += int(self.random.choice([0, 0, 0, pace, pace, 2 * pace]))
        if self.random.random() < 0.02:
            self.clock_us += duration_us
        return self.clock_us

    def tokens(self, n: int) -> list[int]:
        drawn = self.random.choice(self.recipe.n_tokens, n, replace=False, p=self.shares) + 1
        return [int(token) for token in drawn]

    def places(self, n: int) -> Float64s:
        """Draw points in a square with sides of 2, or on a sixth of the sphere."""
        grid = self.recipe.grid
        if grid:
            points = self.random.integers(0, grid, (n, 2)) * (2.0 / max(grid - 1, 1))
        else:
            points = self.random.uniform(0.0, 2.0, (n, 2))
        scale = 40.0 if self.recipe.space == "lonlat" else 1.0
        return places_of(points.astype(np.float64) * scale, self.recipe.space)

    def reweigh(self) -> Call:
        # Fewer weights than tokens: the others come later. Equal ones leave the order to the ids.
        n = int(self.random.integers(0, self.recipe.n_tokens + 2))
        weights = self.random.choice([1.0, 1.5, 1.5, math.e, 7.25], n)
        return Call("reweigh", (weights, float(self.random.choice([1.0, 1.5, 8.5]))))
