"""How far a safe region reaches: as far as the messages allow, found with little work."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from earshot import Circle, Engine, Everywhere, Moving, Point, Polygon, Rectangle, Subscription
from earshot.model.arrays import Space
from earshot.semantics.moving.kernels.arrays import N_CANDIDATES, N_NODES

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
EARTH_M = 6_371_008.8
CROWDS = [(0.0, 0.0), (179.9, 10.0), (-60.0, 88.0), (20.0, -30.0)]

Box = tuple[float, float, float, float]


def wrapped(x: float, space: Space) -> float:
    return (x + 180.0) % 360.0 - 180.0 if space == "lonlat" else x


def gap(x: float, low: float, high: float, turn: float) -> float:
    """How far a coordinate is from an interval, the short way around."""
    high += turn * (low > high)
    around = (-turn, 0.0, turn) if turn else (0.0,)
    return min(max(low + shift - x, x - high - shift, 0.0) for shift in around)


def distance(x: float, y: float, box: Box, space: Space) -> float:
    """How far a place is from a box; on lonlat, from the one point that it is."""
    if space == "planar":
        return math.hypot(gap(x, box[0], box[2], 0.0), gap(y, box[1], box[3], 0.0))
    half_x, half_y = math.radians(box[0] - x) / 2, math.radians(box[1] - y) / 2
    cosines = math.cos(math.radians(y)) * math.cos(math.radians(box[1]))
    return (
        2 * EARTH_M * math.asin(math.sqrt(math.sin(half_y) ** 2 + cosines * math.sin(half_x) ** 2))
    )


def longest(region: Any, middle: tuple[float, float], boxes: list[Box], space: Space) -> float:
    """How far a safe region reaches at most, given the messages with the right words."""
    x, y = middle
    if isinstance(region, Circle):
        limits = [abs(distance(x, y, box, space) - region.radius) for box in boxes]
        return min([*limits, 128 * region.radius])
    if isinstance(region, Rectangle):
        sides = region.min_x, region.min_y, region.max_x, region.max_y
    else:
        xs, ys = zip(*region.rings[0], strict=True)
        sides = min(xs), min(ys), max(xs), max(ys)
    width, height = (sides[2] - sides[0]) % 360.0 / 2, (sides[3] - sides[1]) / 2
    turn = 360.0 if space == "lonlat" else 0.0
    most = 128 * max(width, height)
    limits = [min(most, 90.0 - abs(y)) if turn else most]
    for box in boxes:
        beyond = max(gap(x, box[0], box[2], turn) - width, gap(y, box[1], box[3], 0.0) - height)
        limits.append(abs(beyond) if isinstance(region, Rectangle) else max(beyond, 0.0))
    return min(limits)


def is_within(region: Any, x: float, y: float, space: Space) -> bool:
    """Whether a place is within a safe region, or at its edge."""
    x_, y_ = middle_of(region)
    reach = reach_of(region) * (1 + 1e-9) + 1e-9
    if isinstance(region, Circle):
        return distance(x, y, (x_, y_, x_, y_), space) <= reach
    turn = 360.0 if space == "lonlat" else 0.0
    return max(gap(x, x_, x_, turn), abs(y - y_)) <= reach


def reach_of(region: Any) -> float:
    """How far a safe region reaches that was told."""
    if isinstance(region, Point):
        return 0.0
    return region.radius if isinstance(region, Circle) else (region.max_y - region.min_y) / 2


def middle_of(region: Any) -> tuple[float, float]:
    """The middle of a safe region that was told."""
    if not isinstance(region, Rectangle):
        return region.x, region.y
    west, east = region.min_x, region.max_x
    middle = (west + east + 360.0 * (west > east)) / 2
    return middle - 360.0 * (middle > 180.0 and west > east), (region.min_y + region.max_y) / 2


class Town:
    """Clients with regions of all kinds, and messages of frequent and of rare words."""

    def __init__(self, space: Space, structure: str | None) -> None:
        self.space, self.random = space, np.random.default_rng(3)
        self.engine = Engine(Moving(9 * SECOND), space=space, structure=structure)
        self.asked: dict[int, tuple[Any, tuple[float, float], set[str]]] = {}
        self.said: list[tuple[datetime, Box, set[str]]] = []

    def place(self) -> tuple[float, float]:
        x, y = CROWDS[self.random.integers(len(CROWDS))] + self.random.normal(0, 0.4, 2)
        return wrapped(float(x), self.space), float(y)

    def words(self, most: int) -> set[str]:
        ranks = self.random.zipf(1.3, int(self.random.integers(1, most + 1)))
        return {f"w{rank % 300}" for rank in ranks.tolist()}

    def come(self, n: int) -> None:
        """Let clients come."""
        unit = 111_195.0 if self.space == "lonlat" else 1.0
        for key in range(len(self.asked), len(self.asked) + n):
            x, y = self.place()
            size = float(self.random.choice([0.001, 0.03, 0.3]))
            region: Any = Circle(x, y, size * unit)
            if key % 3 == 1:
                west, east = wrapped(x - size, self.space), wrapped(x + size, self.space)
                region = Rectangle(west, y - size / 2, east, y + size / 2)
            elif key % 3 == 2 and abs(x) < 179:
                region = Polygon([[(x - size, y - size), (x + size, y - size), (x, y + size)]])
            self.asked[key] = region, (x, y), self.words(2)
            self.engine.subscribe(Subscription(key, sorted(self.asked[key][2]), region=region))

    def say(self, n: int, time: datetime) -> None:
        """Let messages be said: points, and where distances are simple, boxes."""
        boxes, words = [], []
        for _ in range(n):
            x, y = self.place()
            width = float(self.random.choice([0.0, 0.1])) * (self.space == "planar")
            boxes.append((x, y, x + width, y + width / 2))
            words.append(self.words(5))
            self.said.append((time + 9 * SECOND, boxes[-1], words[-1]))
        columns = dict(zip(("min_x", "min_y", "max_x", "max_y"), zip(*boxes, strict=True),
                           strict=True))  # fmt: skip
        keywords = [sorted(each) for each in words]
        self.engine.publish_batch(pa.table({
            "id": range(n), "keywords": keywords, "time": [time] * n, **columns,
        }))  # fmt: skip

    def check(self, clock: datetime) -> None:
        """Every region reaches as far as it may, and no farther."""
        keys = list(self.asked)
        self.engine.safe_regions(keys)  # that which a structure has kept may be shorter by now
        given = dict(zip(keys, self.engine.safe_regions(keys), strict=True))
        for key, (region, (x, y), words) in self.asked.items():
            boxes = [box for end, box, held in self.said if end > clock and words <= held]
            middle = middle_of(given[key])  # ahead of those who have moved
            expected = longest(region, middle, boxes, self.space)
            assert reach_of(given[key]) == pytest.approx(expected, rel=1e-5, abs=1e-8), key
            assert is_within(given[key], x, y, self.space), key
        self.move_within(given, clock)

    def move_within(self, given: dict[int, Any], clock: datetime) -> None:
        """Nothing changes for a client at the edge of its region, or elsewhere within."""
        for key, (_, at, _) in self.asked.items():
            (x, y), reach = middle_of(given[key]), reach_of(given[key])
            places = [at]
            for share in (1.0, 0.3):
                angle = self.random.uniform(0, 2 * math.pi)
                dx, dy = reach * share * math.cos(angle), reach * share * math.sin(angle)
                if isinstance(given[key], Circle) and self.space == "lonlat":
                    dy *= 0.999 / 111_195.0
                    dx *= 0.999 / 111_195.0 * math.cos(math.radians(min(abs(y) + abs(dy), 90.0)))
                places.insert(0, (wrapped(x + dx, self.space), y + dy))
            for to in places:  # and back
                if is_within(given[key], *to, self.space) and abs(to[1]) <= 90.0:
                    assert len(self.engine.move(key, Point(*to), clock)) == 0, (key, to)


@pytest.mark.parametrize("structure", [None, "ap_plus_tree_safe", "scan"])
@pytest.mark.parametrize("space", ["planar", "lonlat"])
def test_a_safe_region_reaches_as_far_as_messages_allow(
    space: Space, structure: str | None
) -> None:
    """By place or by words, and while messages end and others get their rows."""
    town = Town(space, structure)
    town.come(60)
    town.say(2_000, NOON)
    town.check(NOON)
    town.come(90)  # among their words are some that nobody asked for before
    for step in range(1, 4):
        clock = NOON + 4 * step * SECOND
        town.say(1_000, clock)
        town.check(clock)


def test_everybody_is_safe_where_nothing_is_said() -> None:
    engine = Engine(Moving(9 * SECOND), space="planar")
    engine.subscribe(Subscription(1, ["a"]), Subscription(2, ["a"], region=Circle(0, 0, 1)))
    assert engine.safe_regions([1, 2]) == [Everywhere(), Circle(0, 0, 128 * (1 - 1e-6))]


def test_a_safe_region_is_found_with_little_work() -> None:
    """The nearest of frequent messages stop a walk, and a rare word is found by its list."""
    n, random = 20_000, np.random.default_rng(1)
    engine = Engine(Moving(9 * SECOND), space="planar")
    engine.subscribe(
        Subscription("frequent", ["often"], region=Circle(50, 50, 0.5)),
        Subscription("rare", ["seldom"], region=Circle(50, 50, 0.5)),
    )
    x, y = 100 * random.random((2, n))
    words = [["often", "seldom"] if i % 1_000 == 0 else ["often"] for i in range(n)]
    engine.publish_batch(pa.table({
        "id": range(n), "keywords": words, "x": x, "y": y, "time": [NOON] * n,
    }))  # fmt: skip
    counts = engine.matcher._scratch.counts

    def work(key: str) -> tuple[int, int]:
        counts[[N_NODES, N_CANDIDATES]] = 0
        assert isinstance(engine.safe_region(key), Circle)
        return int(counts[N_NODES]), int(counts[N_CANDIDATES])

    nodes, candidates = work("frequent")
    assert nodes < 30
    assert candidates < 100
    assert work("rare") == (0, n // 1_000)


def test_words_of_later_subscriptions_get_lists_however_often_others_have_ended() -> None:
    """As many come as go, so there are never many more than there were."""
    engine = Engine(Moving(9 * SECOND), space="planar")
    messages = [["often"]] * 400 + [["often", f"seldom{turn}"] for turn in range(9)]
    n, random = len(messages), np.random.default_rng(1)
    x, y = 100 * random.random((2, n))
    engine.publish_batch(pa.table({
        "id": range(n), "keywords": messages, "x": x, "y": y, "time": [NOON] * n,
    }))  # fmt: skip
    gone: list[int] = []
    for turn in range(9):
        new = [1000 * turn + number for number in range(500)]
        engine.subscribe(
            *(Subscription(key, ["often"], region=Circle(50, 50, 0.5)) for key in new),
            Subscription(-turn - 1, [f"seldom{turn}"], region=Circle(50, 50, 0.5)),
        )
        engine.unsubscribe(*gone)
        gone = new
        engine.safe_region(new[0])
    counts = engine.matcher._scratch.counts
    counts[N_NODES] = 0
    engine.safe_region(-9)
    assert counts[N_NODES] == 0
