"""The oracle against the papers' example, and against itself on arrays."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import shapely
from hypothesis import assume, given
from hypothesis import strategies as st

from earshot.checks.engine_oracle import BooleanOracle, clauses_of
from earshot.checks.oracle import matches_of, touches
from earshot.model.arrays import EARTH_RADIUS_M, ClauseArrays, MessageArrays, Space
from earshot.model.messages import Message
from earshot.model.regions import (
    Circle,
    Everywhere,
    Place,
    Point,
    Polygon,
    Rectangle,
    Region,
    boxes,
    shape_arrays,
)
from earshot.model.subscriptions import Id, Subscription


class World:
    """An oracle on the plane that is spoken to in words."""

    def __init__(self) -> None:
        self.oracle = BooleanOracle(None, "planar")

    def subscribe(self, key: Id, words: str, region: Region) -> None:
        self.oracle.subscribe(Subscription(key, words.split(), region=region))

    def match(self, words: str, place: Place) -> set[Id]:
        return {line[1] for line in self.oracle.publish(Message("m", words, place=place))}


def test_example_1_of_kdd13() -> None:
    """[KDD13] Examples 1 and 3, as far as the text gives tokens and answers.

    Subscriptions s8, s10, s11 and s12 with a point message m_p and range messages. The figure's
    coordinates are lost; these keep what the text says about them.
    """
    truth = World()
    truth.subscribe("s8", "AT&T ipad2 iphone4s", Rectangle(0, 0, 4, 4))
    truth.subscribe("s10", "32GB AT&T iphone4s", Rectangle(4, 4, 8, 8))
    truth.subscribe("s11", "AT&T iphone4s", Rectangle(5, 5, 8, 8))
    truth.subscribe("s12", "AT&T ipad2", Rectangle(6, 4, 9, 8))
    # s10 has a token that m_p lacks, s8 does not overlap it.
    assert truth.match("iphone4s ipad2 AT&T 64GB", Point(7, 7)) == {"s11", "s12"}
    around = Rectangle(3, 3, 7, 7)
    assert truth.match("iphone4s ipad2 AT&T 64GB", around) == {"s8", "s11", "s12"}
    # Example 3: s8, s10 and s11 have iphone4s, which the message lacks.
    assert truth.match("ipad2 AT&T 32GB 64GB", around) == {"s12"}


def test_subscriptions_come_go_and_move() -> None:
    truth = World()
    oracle = truth.oracle
    oracle.subscribe(
        Subscription(1, expression="a and not b or c", region=Rectangle(0, 0, 1, 1)),
        Subscription(2, region=Circle(5, 5, 1)),
    )
    truth.subscribe(3, "a", Everywhere())
    assert truth.match("a", Point(1, 1)) == {1, 3}
    assert truth.match("a b", Point(1, 1)) == {3}
    assert truth.match("a b c", Point(1, 1)) == {1, 3}
    assert truth.match("", Point(5, 6)) == {2}
    oracle.move(1, Rectangle(5, 5, 6, 6))
    assert truth.match("a", Point(1, 1)) == {3}
    assert truth.match("a", Point(5, 6)) == {1, 2, 3}
    oracle.unsubscribe(3)
    assert truth.match("a", Point(5, 6)) == {1, 2}
    with pytest.raises(ValueError, match="2 is already subscribed"):
        truth.subscribe(2, "a", Everywhere())


@pytest.mark.parametrize(
    ("expression", "clauses"),
    [
        ("fire or rain", [("fire", ""), ("rain", "")]),
        ("fire and not rain", [("fire", "rain")]),
        ("(fire and rain) or bus", [("fire rain", ""), ("bus", "")]),
        ("bus and (fire or not rain)", [("bus fire", ""), ("bus", "rain")]),
        ("bus and not (fire or märz)", [("bus", "fire märz")]),
        ("fire and rain or fire and bus", [("fire rain", ""), ("fire bus", "")]),
        ("fire or fire and rain", [("fire", "")]),
        ("fire and not 'new york'", [("fire", "new"), ("fire", "york")]),
    ],
)
def test_clauses_by_hand(expression: str, clauses: list[tuple[str, str]]) -> None:
    expected = {(frozenset(a.split()), frozenset(b.split())) for a, b in clauses}
    assert set(clauses_of(Subscription(1, expression=expression))) == expected


def test_subscriptions_end_with_the_clock() -> None:
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    oracle = BooleanOracle(None, "planar")
    oracle.subscribe(Subscription(1, ["a"], expires=noon), Subscription(2, ["a"]))
    message = Message("m", "A!", place=Point(0, 0))
    assert [line[1] for line in oracle.publish(message)] == [1, 2]
    assert oracle.publish(replace(message, time=noon)) == [("m", 2, "+", None, "match", noon)]
    assert oracle.advance(noon - timedelta(1)) == []
    assert oracle.clock == noon
    oracle.subscribe(Subscription(1, ["a"], expires=noon))
    assert set(oracle.live) == {2}


@pytest.mark.parametrize(
    ("region", "place", "expected"),
    [
        (Rectangle(170, 0, -170, 5), Point(175, 1), True),
        (Rectangle(170, 0, -170, 5), Point(-175, 1), True),
        (Rectangle(170, 0, -170, 5), Point(0, 1), False),
        (Rectangle(170, 0, 180, 5), Point(-180, 1), True),
        (Rectangle(170, 0, 180, 5), Point(-179.9, 1), False),
        (Rectangle(-180, 0, -170, 5), Point(180, 1), True),
        (Rectangle(-180, 0, -170, 5), Rectangle(179, -1, -179.5, 1), True),
        (Rectangle(-175, 0, -170, 5), Rectangle(179, -1, -179.5, 1), False),
        (Rectangle(-170, 0, 170, 5), Rectangle(179, -1, -179.5, 1), False),
        (Rectangle(-180, 0, -170, 5), Rectangle(170, -1, 180, 0), True),
        (Circle(179.9, 0, 50_000), Point(-179.9, 0), True),
        (Circle(180, 0, 0), Point(-180, 0), True),
        (Polygon([[(170, 0), (180, 0), (180, 5)]]), Point(-180, 5), True),
        (Polygon([[(170, 0), (180, 0), (180, 5)]]), Point(-180, 5.1), False),
        (Polygon([[(-180, 0), (-170, 0), (-170, 5)]]), Rectangle(175, -5, -179, 5), True),
        (Everywhere(), Point(0, 0), True),
    ],
)
def test_the_antimeridian_is_one_line(region: Region, place: Place, expected: bool) -> None:
    assert touches(region, place, "lonlat") is expected


small = st.integers(-5, 5).map(float)
longitudes = st.sampled_from([-180.0, -179.0, -90.0, 0.0, 45.5, 179.0, 180.0])
latitudes = st.sampled_from([-90.0, -45.0, 0.0, 1.0, 89.0, 90.0])


@given(st.lists(st.tuples(small, small), min_size=3, max_size=6), small, small, small, small)
def test_polygons_agree_with_shapely(
    shell: list[tuple[float, float]], a: float, b: float, c: float, d: float
) -> None:
    geometry = shapely.Polygon(shell)
    assume(geometry.is_valid)
    region = Polygon([shell])
    assert touches(region, Point(a, b), "planar") == geometry.intersects(shapely.Point(a, b))
    rectangle = Rectangle(min(a, c), min(b, d), max(a, c), max(b, d))
    assume(rectangle.min_x < rectangle.max_x and rectangle.min_y < rectangle.max_y)
    box = shapely.box(rectangle.min_x, rectangle.min_y, rectangle.max_x, rectangle.max_y)
    assert touches(region, rectangle, "planar") == geometry.intersects(box)


def rectangles(
    x: st.SearchStrategy[float], y: st.SearchStrategy[float], may_cross: bool
) -> st.SearchStrategy[Rectangle]:
    def rectangle(a: float, b: float, c: float, d: float) -> Rectangle:
        low, high = (a, c) if may_cross else (min(a, c), max(a, c))
        return Rectangle(low, min(b, d), high, max(b, d))

    return st.builds(rectangle, x, y, x, y)


def regions(space: Space) -> st.SearchStrategy[Region]:
    x, y = (longitudes, latitudes) if space == "lonlat" else (small, small)
    largest = math.pi * EARTH_RADIUS_M if space == "lonlat" else 5.0
    ring = st.lists(st.tuples(x, y), min_size=3, max_size=5)
    return st.one_of(
        rectangles(x, y, space == "lonlat"),
        st.builds(Circle, x, y, st.floats(0, largest)),
        st.builds(Polygon, st.lists(ring, min_size=1, max_size=3)),
        st.just(Everywhere()),
    )


def places(space: Space) -> st.SearchStrategy[Place]:
    x, y = (longitudes, latitudes) if space == "lonlat" else (small, small)
    return st.one_of(st.builds(Point, x, y), rectangles(x, y, space == "lonlat"))


def clause_arrays(
    subscriptions: list[tuple[list[list[int]], Region]], space: Space
) -> ClauseArrays:
    """Return one clause per clause and box; tokens are required, or forbidden as ~t."""
    slots, tokens, found, shape_rows = [], [], [], []
    shapes = [region for _, region in subscriptions if isinstance(region, (Circle, Polygon))]
    n_shapes = 0
    for slot, (clauses, region) in enumerate(subscriptions):
        is_shape = isinstance(region, (Circle, Polygon))
        for box in boxes(region, space):
            for clause in clauses:
                slots.append(slot)
                tokens.append(clause)
                found.append(box)
                shape_rows.append(n_shapes if is_shape else -1)
        n_shapes += is_shape
    return ClauseArrays(
        np.array(slots, np.int32),
        np.cumsum([0] + [len(each) for each in tokens]),
        np.array([token for each in tokens for token in each], np.int32),
        np.array(found, np.float64).reshape(-1, 4),
        np.array(shape_rows, np.int32),
        shape_arrays(shapes),
    )


@pytest.mark.parametrize("space", ["lonlat", "planar"])
@given(data=st.data())
def test_arrays_and_regions_give_the_same_answers(space: Space, data: st.DataObject) -> None:
    """Also that boxes lose nothing: in the arrays every region stands behind its boxes."""
    tokens = st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True)
    clause = st.one_of(st.just([0]), tokens, tokens.map(lambda t: [*t[:1], *(~x for x in t[1:])]))
    subscription = st.tuples(st.lists(clause, min_size=1, max_size=2), regions(space))
    subscriptions = data.draw(st.lists(subscription, min_size=1, max_size=5))
    messages = data.draw(
        st.lists(st.tuples(st.sets(st.integers(1, 5)), places(space)), min_size=1, max_size=4)
    )

    def is_met(clauses: list[list[int]], found: set[int]) -> bool:
        return any(
            all((t >= 0) == ((t if t >= 0 else ~t) in {0, *found}) for t in each)
            for each in clauses
        )

    place_boxes = [
        (p.x, p.y, p.x, p.y) if isinstance(p, Point) else (p.min_x, p.min_y, p.max_x, p.max_y)
        for _, p in messages
    ]
    arrays = MessageArrays(
        np.cumsum([0] + [1 + len(found) for found, _ in messages]),
        np.array([t for found, _ in messages for t in (0, *found)], np.int32),
        np.array(place_boxes),
    )
    found = matches_of(clause_arrays(subscriptions, space), arrays, space)
    assert found == [
        {
            slot
            for slot, (clauses, region) in enumerate(subscriptions)
            if is_met(clauses, tokens) and touches(region, place, space)
        }
        for tokens, place in messages
    ]


def test_empty_arrays() -> None:
    clauses = clause_arrays([], "planar")
    no_messages = MessageArrays(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty((0, 4)))
    assert matches_of(clauses, no_messages, "planar") == []
    one = MessageArrays(np.array([0, 1]), np.zeros(1, np.int32), np.zeros((1, 4)))
    assert matches_of(clauses, one, "planar") == [set()]
