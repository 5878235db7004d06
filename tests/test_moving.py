"""Moving subscribers: structures large enough to be cut, sorted and cleared up; dwell; saving."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from dataclasses import astuple, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from earshot import (
    Circle,
    Engine,
    Everywhere,
    Message,
    Moving,
    Point,
    Polygon,
    Rectangle,
    Subscription,
)
from earshot.checks.engine_oracle import oracle_of
from earshot.engine.mixed_batches import order_by_time
from earshot.errors import EarshotError, InvalidInput, LateRow, UnknownSubscription
from earshot.model.arrays import Space
from earshot.semantics.moving import STRUCTURES
from earshot.semantics.moving.kernels.quadtree import LEAF_MOST, TREE_QUADS

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


class World:
    """Batches of subscriptions, messages and positions at random, of a few words and places."""

    def __init__(self, space: Space, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.space = space
        self.clock = 0.0
        self.n_messages = 0

    def places(self, n: int) -> Any:
        """Places in some crowds; on lonlat one lies across the antimeridian, one at a pole."""
        middles = np.array([(0.0, 0.0), (179.9, 10.0), (-60.0, 89.5), (20.0, -30.0)])
        chosen = middles[self.random.integers(0, len(middles), n)]
        points = chosen + self.random.normal(0, 0.4, (n, 2))
        if self.space == "lonlat":
            points[:, 0] = (points[:, 0] + 180.0) % 360.0 - 180.0
            points[:, 1] = np.clip(points[:, 1], -90.0, 90.0)
        return points

    def words(self, n: int, most: int) -> list[list[str]]:
        ranks = self.random.zipf(1.5, (n, most)) % 60
        return [[f"w{rank}" for rank in row[: 1 + i % most]] for i, row in enumerate(ranks)]

    def times(self, n: int) -> list[datetime]:
        steps = self.random.exponential(0.02, n)
        self.clock, times = self.clock + steps.sum(), self.clock + np.cumsum(steps)
        return [NOON + timedelta(seconds=float(each)) for each in times]

    def subscriptions(self, first: int, n: int) -> list[Subscription]:
        made = []
        for i, ((x, y), words) in enumerate(
            zip(self.places(n).tolist(), self.words(n, 3), strict=True)
        ):
            size = float(self.random.choice([0.05, 0.3, 2.0]))
            radius = size * (111_000 if self.space == "lonlat" else 1)
            box = Rectangle(x - size, y - size, x + size, y + size)
            if self.space == "lonlat":
                low, high = max(y - size, -90.0), min(y + size, 90.0)
                box = Rectangle(max(x - size, -180.0), low, min(x + size, 180.0), high)
            corner = Polygon([[(0, 0), (size, 0), (0, size)]])
            region: Any = [box, Circle(x, y, radius), corner][i % 3]
            made.append(Subscription(first + i, words, region=region))
        return made

    def messages(self, n: int) -> pa.Table:
        points, times = self.places(n), self.times(n)
        ids = np.arange(self.n_messages, self.n_messages + n)
        self.n_messages += n
        has_box = self.random.random(n) < 0.3
        size = self.random.choice([0.01, 0.5, 30.0], n)
        boxes = np.concatenate([points - size[:, None], points + size[:, None]], axis=1)
        if self.space == "lonlat":
            boxes[:, [0, 2]] = (boxes[:, [0, 2]] + 180.0) % 360.0 - 180.0
            boxes[:, [1, 3]] = np.clip(boxes[:, [1, 3]], -90.0, 90.0)
        columns = {
            name: pa.array(boxes[:, at], mask=~has_box)
            for at, name in enumerate(("min_x", "min_y", "max_x", "max_y"))
        }
        columns |= {name: pa.array(points[:, at], mask=has_box) for at, name in enumerate("xy")}
        keywords = pa.array(self.words(n, 6))
        return pa.table({"id": ids, "keywords": keywords, "time": times, **columns})

    def positions(self, ids: Any) -> pa.Table:
        points = self.places(len(ids))
        times = self.times(len(ids))
        return pa.table({"id": ids, "x": points[:, 0], "y": points[:, 1], "time": times})


def rows_of(updates: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = updates.table().to_pylist()
    return found


@pytest.mark.parametrize("space", ["lonlat", "planar"])
def test_structures_agree_while_they_are_cut_and_sorted(
    space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default says what comparing everything with everything says, through all its changes."""
    monkeypatch.setattr("earshot.semantics.moving.quad_lists._LEAST", 300)
    world, settings = World(space, 1), Moving(30 * SECOND)
    engines = [Engine(settings, structure=name, space=space) for name in STRUCTURES]
    live: list[Any] = list(range(1200))
    first = world.subscriptions(0, len(live))
    n_updates = 0

    def compare(call: Any) -> None:
        nonlocal n_updates
        expected, *others = (rows_of(call(engine)) for engine in engines)
        n_updates += len(expected)
        assert all(each == expected for each in others)

    compare(lambda engine: engine.subscribe(*first))
    for step in range(14):
        messages = world.messages(250 if step < 10 else 3)
        compare(lambda engine, batch=messages: engine.publish_batch(batch))
        moved = world.random.choice(live, 150)  # some of them twice
        positions = world.positions(moved)
        compare(lambda engine, batch=positions: engine.move_batch(batch))
        gone = [int(each) for each in world.random.choice(live, 40, replace=False)]
        live = [each for each in live if each not in gone]
        compare(lambda engine, ids=gone: engine.unsubscribe_batch(pa.array(ids)))
        new = world.subscriptions(2000 + 100 * step, 30)
        live += [each.id for each in new]
        compare(lambda engine, made=new: engine.subscribe(*made))
        if step == 4:
            assert engines[0].matcher._arrays.tree_facts[TREE_QUADS] > 800 // LEAF_MOST
        if step == 6:
            for at, engine in enumerate(engines):
                engine.save(tmp_path / str(at))
                engines[at] = Engine.open(tmp_path / str(at))
        if step == 8:
            for engine in engines:
                engine.rebuild()
    for key in live[::9]:
        first_results, *others = (engine.results(key) for engine in engines)
        assert all(each == first_results for each in others)
    assert n_updates > 5_000


def test_a_batch_of_moves_is_told_as_one_by_one() -> None:
    """Moves are looked at by place between the ends of messages, and told in their order."""
    world = World("planar", 3)
    subscriptions = world.subscriptions(0, 200)
    subscriptions.append(Subscription(999, ["w1"]))
    together, single = (Engine(Moving(3 * SECOND), space="planar") for _ in range(2))
    n_updates = n_expired = 0
    for engine in (together, single):
        engine.subscribe(*subscriptions)
    for _ in range(3):
        messages = world.messages(150)
        assert rows_of(together.publish_batch(messages)) == rows_of(single.publish_batch(messages))
        ids = world.random.integers(0, 30, 120).tolist()  # most several times
        positions = world.positions([*ids, 999])
        starts = [positions["time"][at - at % 50] for at in range(len(positions))]
        at_once = positions.set_column(3, "time", pa.array([each.as_py() for each in starts]))
        found = rows_of(together.move_batch(at_once))
        expected = []
        for row in at_once.to_pylist():
            moved = single.move(row["id"], Point(row["x"], row["y"]), row["time"])
            expected += rows_of(moved)
        assert found == expected
        n_updates += len(found)
        n_expired += sum(row["reason"] == "expired" for row in found)
    assert n_expired > 20
    assert n_updates > n_expired + 200


def test_messages_and_moves_together_are_told_as_one_by_one(tmp_path: Path) -> None:
    """A batch is taken by kind: who holds what is mended by moves before a message comes or ends.

    Some messages come and end within one batch, some subscribers are not told what leaves, wait for
    a while, or end.
    """
    world = World("planar", 4)
    subscriptions = [
        replace(
            each,
            leaving=False if i % 5 == 0 else None,
            dwell=SECOND if i % 7 == 0 else None,
            cooldown=SECOND if i % 11 == 0 else None,
            expires=NOON + i * SECOND if i % 13 == 1 else None,
        )
        for i, each in enumerate(world.subscriptions(0, 160))
    ]
    together, single = (Engine(Moving(3 * SECOND), space="planar") for _ in range(2))
    for engine in (together, single):
        engine.subscribe(*subscriptions)
    together.save(tmp_path)
    together = Engine.open(tmp_path, journal=True)
    reasons: Counter[str] = Counter()
    n_rejects = 0
    for step in range(6):
        messages = world.messages(120)
        times = messages["time"].to_pylist()
        ends = [each + float(world.random.exponential(1.0)) * SECOND for each in times]
        messages = messages.append_column("end", pa.array(ends))
        positions = world.positions(world.random.integers(0, 175, 150))  # some of nobody
        shift = positions["time"][0].as_py() - times[0]
        moved_at = [each - shift for each in positions["time"].to_pylist()]
        if step == 3:
            moved_at[7] += 20 * SECOND  # what was sent before then is late
        positions = positions.set_column(3, "time", pa.array(moved_at))
        is_move = order_by_time(messages["time"], positions["time"])
        found = together.take_batch(
            messages, positions, is_move=is_move if step % 2 else None, on_error="reject"
        )
        rows = {True: iter(positions.to_pylist()), False: iter(messages.to_pylist())}
        expected, n_wrong = [], 0
        for each in is_move.tolist():
            row = next(rows[each])
            try:
                if each:
                    told = single.move(row["id"], Point(row["x"], row["y"]), row["time"])
                else:
                    place = (
                        Point(row["x"], row["y"])
                        if row["x"] is not None
                        else Rectangle(
                            *(row[name] for name in ("min_x", "min_y", "max_x", "max_y"))
                        )
                    )
                    told = single.publish(
                        Message(row["id"], keywords=row["keywords"], place=place,
                                time=row["time"], end=row["end"])
                    )  # fmt: skip
            except EarshotError:
                n_wrong += 1
            else:
                expected += rows_of(told)
        assert rows_of(found) == expected
        assert len(found.rejects) == n_wrong
        n_rejects += n_wrong
        reasons.update(row["reason"] for row in expected)
        assert found.n_rows == 270 - n_wrong
    assert together.results_table().equals(single.results_table())
    assert min(reasons[name] for name in ("match", "entered", "left", "expired", "dwelled")) > 10
    assert n_rejects > 50
    # The journal has the same.
    again = Engine.open(tmp_path)
    assert again.results_table().equals(single.results_table())
    together.close()


def test_single_events_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A position and a message go without Arrow; what is unusual or wrong is for batches."""
    engine = Engine(Moving(3 * SECOND), space="planar")
    engine.subscribe(Subscription(1, ["road"], region=Circle(0, 0, 1), expires=NOON + 9 * SECOND))
    engine.publish(Message(0, "road", place=Point(0, 0), time=NOON))
    with monkeypatch.context() as patched:
        for name in ("message_batch", "region_batch"):
            patched.setattr(f"earshot.engine.engine.{name}", None)
        told = [
            *engine.publish(Message(1, "Road", place=Point(5, 0), time=NOON, end=NOON + SECOND)),
            *engine.move(1, Point(4.5, 0), NOON),
            *engine.publish(Message(2, keywords=["new", "road"], place=Rectangle(3, 0, 5, 1))),
            *engine.move(1, Point(9, 0), NOON + SECOND),
        ]
    assert [(each.sign, each.message_id, each.reason) for each in told] == [
        ("-", 0, "left"), ("+", 1, "entered"), ("+", 2, "match"), ("-", 1, "expired"),
        ("-", 2, "left"),
    ]  # fmt: skip
    engine.move(1, Circle(4, 0, 2))
    assert [each.message_id for each in engine.results(1)] == [2]
    with pytest.raises(LateRow, match="before the last position"):
        engine.move(1, Point(0, 0), NOON)
    with pytest.raises(LateRow, match="too late"):
        engine.publish(Message(3, "road", place=Point(0, 0), time=NOON - 9 * SECOND))
    with pytest.raises(InvalidInput, match="not after its time"):
        engine.publish(Message(3, "road", place=Point(0, 0), time=NOON, end=NOON))
    with pytest.raises(UnknownSubscription):
        engine.move(1, Point(0, 0), NOON + 9 * SECOND)


@pytest.mark.parametrize("with_messages", [False, True])
def test_a_move_that_is_refused_does_not_move_the_clock(with_messages: bool) -> None:
    """Its time ends no message and no subscription, and makes no later row late."""
    engine = Engine(Moving(10 * SECOND), space="planar")
    here = Circle(0, 0, 1)
    engine.subscribe(
        Subscription("all", region=here),
        Subscription("bus", ["bus"], region=here),
        Subscription("soon", ["bus"], region=here, expires=NOON + 50 * SECOND),
    )
    engine.publish(Message(1, "bus", place=Point(0, 0), time=NOON))
    seconds = [100, 1, 2, 3]
    moves = pa.table({
        "id": ["all", "all", "bus", "soon"], "x": [None, 0.0, 5.0, 5.0], "y": [None, 0.0, 5.0, 5.0],
        "time": [NOON + each * SECOND for each in seconds],
    })  # fmt: skip
    if with_messages:
        said = pa.table({"id": [2], "text": ["bus"], "x": [5.0], "y": [5.0], "time": [NOON]})
        order = np.array([True, True, True, True, False])
        updates = engine.take_batch(said, moves, is_move=order, on_error="reject")
    else:
        updates = engine.move_batch(moves, on_error="reject")
    assert [(each.row, each.field) for each in updates.rejects] == [(0, "id")]
    told = [(each.sign, each.message_id, each.subscription_id, each.reason) for each in updates]
    assert told[:2] == [("-", 1, "bus", "left"), ("-", 1, "soon", "left")]
    assert len(told) == 2 + 2 * with_messages
    assert engine.time == NOON + 3 * SECOND
    assert len(engine) == 3


@pytest.mark.parametrize("structure", STRUCTURES)
def test_places_may_be_as_far_apart_as_floats_go(structure: str) -> None:
    """The width of all there is overflows then."""
    engine = Engine(Moving(10 * SECOND), space="planar", structure=structure)
    places = [Point(-1e308, 0), Point(1e308, 0), Point(0, 0)]
    regions = [Circle(each.x, each.y, 1) for each in places]
    engine.subscribe(*(Subscription(i, ["bus"], region=each) for i, each in enumerate(regions)))
    engine.rebuild()
    engine.publish(*(Message(i, "bus", place=each, time=NOON) for i, each in enumerate(places)))
    for i in range(3):
        assert [each.message_id for each in engine.results(i)] == [i]
    for i in (1, 0, 2):
        engine.move(0, places[i])
        assert [each.message_id for each in engine.results(0)] == [i]


def test_half_a_position_is_refused() -> None:
    engine = Engine(Moving(3 * SECOND), space="planar")
    engine.subscribe(Subscription(1, ["road"], region=Circle(0, 0, 1)))
    for columns in ({"x": [1.0]}, {"x": [None], "y": [1.0]}, {"x": [1.0], "y": pa.nulls(1)}):
        with pytest.raises(InvalidInput, match=r"'[xy]': is missing; a position needs x and y"):
            engine.move_batch(pa.table({"id": [1], **columns, "time": [NOON]}))
    with pytest.raises(InvalidInput, match="a circle needs x, y, radius"):
        engine.move_batch(pa.table({"id": [1], "x": [1.0], "radius": [2.0], "time": [NOON]}))


def test_a_position_with_a_box_beside_it_is_refused() -> None:
    engine = Engine(Moving(3 * SECOND), space="planar")
    engine.subscribe(*(Subscription(i, ["road"], region=Circle(0, 0, 1)) for i in range(2)))
    box = dict(zip(("min_x", "min_y", "max_x", "max_y"), (0.0, 0.0, 1.0, 1.0), strict=True))
    rows = [{"id": 0, "x": 5.0, "y": 5.0, **box}, {"id": 1, **box}]
    for chosen in (rows[:1], rows):
        updates = engine.move_batch(pa.Table.from_pylist(chosen), on_error="reject")
        assert [(each.row, each.reason) for each in updates.rejects] == [
            (0, "the region is given in more than one way; give one")
        ]
    half = {"id": 0, "x": 5.0, "y": 5.0, "min_x": 0.0}
    with pytest.raises(InvalidInput, match="a box needs min_x, min_y, max_x, max_y"):
        engine.move_batch(pa.Table.from_pylist([half]))


def test_moves_that_change_nothing_cost_no_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of functions and objects allocated are as many for 4,000 moves as for 100."""
    random = np.random.default_rng(6)
    engine = Engine(Moving(1000 * SECOND), space="planar", rebuild_in_background=False)
    n = 4000
    engine.subscribe_batch(pa.table({
        "id": np.arange(n), "keywords": [["road"]] * n, "x": random.random(n),
        "y": random.random(n), "radius": np.full(n, 0.001),
    }))  # fmt: skip
    engine.publish_batch(pa.table({
        "id": np.arange(200), "keywords": [["road"]] * 200, "x": 2 + random.random(200),
        "y": random.random(200), "time": [NOON] * 200,
    }))  # fmt: skip
    monkeypatch.setattr("earshot.semantics.moving.quad_lists._LEAST", 10**6)  # nothing is sorted

    def n_calls(n_moves: int, seconds: int) -> tuple[int, int]:
        batch = pa.table({
            "id": np.arange(n_moves), "x": random.random(n_moves), "y": random.random(n_moves),
            "time": pa.array([NOON + seconds * SECOND] * n_moves),
        })  # fmt: skip
        calls = 0

        def count(*_: Any) -> None:
            nonlocal calls
            calls += 1

        gc.disable()
        sys.setprofile(count)
        before = sys.getallocatedblocks()
        try:
            updates = engine.move_batch(batch)
            n_blocks = sys.getallocatedblocks() - before
        finally:
            sys.setprofile(None)
            gc.enable()
        assert len(updates) == 0
        return calls, n_blocks

    n_calls(50, 1)
    n_calls(n, 2)  # working memory grows
    for many, few in zip(n_calls(n, 3), n_calls(100, 4), strict=True):
        assert abs(many - few) < 20


def test_polygons_at_the_antimeridian_move_as_the_oracle_says() -> None:
    """One in two parts moves from the middle of both; a place at 180 degrees has one name."""
    parts = Polygon(
        [[(179, 9), (180, 9), (180, 11)], [(-180, 9), (-178, 10), (-180, 11)]]
    )  # its middle is 180.5, or -179.5
    # Moved to (179.5, 89), its right side passes (180, 89), but for rounding.
    beside = Polygon([[
        (-1.6623741786487671, -0.8270646703682791), (0.33762582135123287, -0.8270646703682791),
        (-0.6623741786487671, 1.1729353296317209),
    ]])  # fmt: skip
    engine, oracle = Engine(Moving(9 * SECOND)), oracle_of(Moving(9 * SECOND), "lonlat")
    n_updates = 0
    for each in (engine, oracle):
        each.subscribe(Subscription(1, ["a"], region=parts), Subscription(2, ["a"], region=beside))
    for number, x in enumerate((-180.0, -179.0, 0.0, 179.5, 180.0)):
        for y in (10.0, 89.0):
            message = Message(100 * number + int(y), "a", place=Point(x, y), time=NOON)
            found = [astuple(each) for each in engine.publish(message)]
            assert found == oracle.publish(message)
            n_updates += len(found)
    for x, y in ((-179.5, 10.0), (0.0, 10.0), (179.5, 89.0), (-179.9, 89.5), (180.0, 10.0)):
        for key in (1, 2):
            found = [astuple(each) for each in engine.move(key, Point(x, y))]
            assert found == oracle.move(key, Point(x, y)), (key, x, y)
            n_updates += len(found)
    assert n_updates > 20


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_messages_and_moves_are_merged_by_time_whatever_its_unit(unit: str) -> None:
    times = pa.array([NOON - SECOND, NOON, NOON + SECOND])
    for message_unit, move_unit in (("us", unit), (unit, "us")):
        engine = Engine(Moving(9 * SECOND), space="planar")
        engine.subscribe(Subscription(1, ["road"], region=Circle(0, 0, 1)))
        said_at, moved_at = (
            times.take(pa.array(rows)).cast(pa.timestamp(each, "UTC"))
            for rows, each in (([1], message_unit), ([0, 2], move_unit))
        )
        said = pa.table({"id": [1], "text": ["road"], "x": [5.0], "y": [5.0], "time": said_at})
        moves = pa.table({"id": [1, 1], "x": [5.0, 0.0], "y": [5.0, 0.0], "time": moved_at})
        assert [each.reason for each in engine.take_batch(said, moves)] == ["match", "left"]


def test_an_order_that_does_not_fit_is_refused() -> None:
    world = World("planar", 5)
    engine = Engine(Moving(3 * SECOND), space="planar")
    engine.subscribe(*world.subscriptions(0, 2))
    messages, positions = world.messages(3), world.positions([0, 1])
    with pytest.raises(InvalidInput, match="expected a NumPy array of 5 booleans, of which 2"):
        engine.take_batch(messages, positions, is_move=np.ones(5, np.bool_))
    with pytest.raises(InvalidInput, match="takes no positions"):
        Engine().take_batch(messages, positions)
    assert engine.n_messages == 0


def test_what_has_ended_gives_its_memory_back() -> None:
    """Ids, words and rows are kept from the oldest live message on, whichever ends first."""
    engine = Engine(Moving(2 * SECOND), space="planar")
    engine.subscribe(Subscription(1, ["road"], region=Circle(0, 0, 1)))
    n, sizes = 2000, []

    def batch(step: int, lifetime: int) -> pa.Table:
        time = NOON + step * SECOND
        return pa.table({
            "id": [f"message {step * n + number:06}" for number in range(n)],
            "keywords": [["road", f"word {number % 7}"] for number in range(n)],
            "x": [5.0] * (n - 1) + [0.0],
            "y": [0.0] * n,
            "time": [time] * n,
            "end": [time + lifetime * SECOND] * n,
        })  # fmt: skip

    def held() -> list[int]:
        return [engine.memory()[part] for part in ("message_ids", "structure", "messages")]

    for step in range(24):
        engine.publish_batch(batch(step, 1 + step % 2))
        assert engine.results(1)[-1].message_id == f"message {step * n + n - 1:06}"
        sizes.append(held())
    (ids, structure, rows), later = np.max(sizes[:12], axis=0), np.max(sizes[12:], axis=0)
    assert later[0] <= ids
    assert later[1] <= structure
    assert later[2] <= 1.05 * rows  # words are packed now and then, a bit sooner or later
    for each in engine.advance(NOON + 60 * SECOND):
        assert each.message_id == f"message {24 * n - 1:06}"
    engine.publish(Message("last", "road", place=Point(0, 0), time=NOON + 61 * SECOND))
    engine.rebuild()
    assert engine.n_messages == 1
    ids, structure, rows = held()
    assert ids + rows < 1000
    assert structure < sizes[-1][1]


def test_one_long_life_keeps_no_other_ids(tmp_path: Path) -> None:
    """Ids of messages that have ended go, though an older message lives on."""
    engine = Engine(Moving(2 * SECOND), space="planar")
    engine.subscribe(Subscription(1, ["road"], region=Circle(0, 0, 1)))
    n, end = 3000, NOON + 1000 * SECOND
    first = Message("first", "road", place=Point(0, 0), time=NOON, end=end)
    engine.publish(first)
    for step in range(1, 15):
        engine.publish_batch(pa.table({
            "id": [f"message {step * n + number:06}" for number in range(n)],
            "keywords": [["road"]] * n,
            "x": [5.0] * (n - 1) + [0.0],
            "y": [0.0] * n,
            "time": [NOON + step * SECOND] * n,
        }))  # fmt: skip
        last = f"message {step * n + n - 1:06}"
        assert [engine.results(1)[at].message_id for at in (0, -1)] == ["first", last]
        assert engine.memory()["message_ids"] < 20 * 6 * n
    engine.save(tmp_path)
    for each in (engine, Engine.open(tmp_path)):
        gone = [update.message_id for update in each.advance(NOON + 60 * SECOND)]
        assert gone == [f"message {step * n + n - 1:06}" for step in (13, 14)]
        each.publish(replace(first, id="second", time=NOON + 61 * SECOND))
        assert [result.message_id for result in each.results(1)] == ["first", "second"]
        assert [update.message_id for update in each.advance(end)] == ["first", "second"]


def is_within(region: Any, x: float, y: float, space: Space) -> bool:
    """Whether a client that knows its safe region may stay silent."""
    match region:
        case Rectangle(min_x, min_y, max_x, max_y):
            is_beside = min_x <= x <= max_x if min_x <= max_x else x >= min_x or x <= max_x
            return bool(is_beside and min_y <= y <= max_y)
        case Circle(centre_x, centre_y, radius):
            if space == "planar":
                return bool(np.hypot(x - centre_x, y - centre_y) <= radius)
            a, b = np.radians([[centre_x, centre_y], [x, y]])
            h = np.sin((b - a) / 2) ** 2 @ [np.cos(a[1]) * np.cos(b[1]), 1]
            return bool(2 * 6_371_008.8 * np.arcsin(np.sqrt(h)) <= radius)
        case Point(at_x, at_y):
            return (x, y) == (at_x, at_y)
    return True


@pytest.mark.parametrize("structure", [None, "ap_plus_tree_safe"])
@pytest.mark.parametrize("space", ["planar", "lonlat"])
def test_clients_that_report_only_when_they_must_hold_the_same(
    space: Space, structure: str | None, tmp_path: Path
) -> None:
    """Within a safe region a client stays silent, and gets what one gets that always reports.

    It does so whatever its region is, after saving, after others have ended, and after a rebuild.
    """
    random = np.random.default_rng(5)
    always, rarely = (
        Engine(Moving(9 * SECOND), space=space, structure=structure) for _ in range(2)
    )
    n, unit = 32, 111_195.0 if space == "lonlat" else 1.0
    places = 0.3 * random.random((n, 2)) + (179.9, 10.0)
    places[1::4, 0] -= 0.5  # a polygon lies on one side when it is given
    others = [Subscription(n + i, ["c"], region=Circle(0, 0, 1)) for i in range(90)]

    def region(i: int, x: float, y: float) -> Any:
        if i % 4 == 0:
            return Rectangle(wrapped(x - 0.03), y - 0.05, wrapped(x + 0.03), y + 0.05)
        if i % 4 == 1:
            return Polygon([[(x - 0.04, y - 0.04), (x + 0.04, y - 0.04), (x, y + 0.04)]])
        return Circle(wrapped(x), y, 0.05 * unit)

    def wrapped(x: float) -> float:
        return x - 360 * (x > 180) if space == "lonlat" else x

    subscriptions = [
        Subscription(i, ["a", "b"][: 1 + i % 3 % 2], region=region(i, x, y))
        for i, (x, y) in enumerate(places.tolist())
    ]
    for engine in (always, rarely):
        engine.subscribe(*others, *subscriptions)
    safe = dict(enumerate(rarely.safe_regions(range(n))))
    n_reports, n_held, n_outdated = np.zeros(4, np.int64), 0, 0

    def report(i: int, time: datetime) -> None:
        n_reports[i % 4] += 1
        x, y = places[i].tolist()
        rarely.move(i, Point(wrapped(x), y), time)
        safe[i] = rarely.safe_region(i)

    for step in range(60):
        time = NOON + step * SECOND
        places += random.normal(0, 0.004, (n, 2))
        for i, (x, y) in enumerate(places.tolist()):
            always.move(i, Point(wrapped(x), y), time)
            if not is_within(safe[i], wrapped(x), y, space):
                report(i, time)
        x, y = (0.6 * random.random(2) + (179.6, 9.9)).tolist()
        words = [f"word {step}", *["a", "b"][: int(random.integers(0, 3))]]
        message = Message(step, keywords=words, place=Point(wrapped(x), y), time=time)
        always.publish(message)
        rarely.publish(message)
        outdated = list(map(int, rarely.outdated_safe_regions()))
        n_outdated += len(outdated)
        for key, found in zip(outdated, rarely.safe_regions(outdated), strict=True):
            safe[key] = found
            at_x, at_y = places[key].tolist()
            if not is_within(found, wrapped(at_x), at_y, space):
                report(key, time)
        for i in range(n):
            assert always.results(i) == rarely.results(i)
            n_held += len(always.results(i))
        if step == 15:
            rarely.unsubscribe(*(each.id for each in others))  # slots are numbered anew
        if step == 30:
            rarely.save(tmp_path)
            rarely = Engine.open(tmp_path)
        if step == 45:
            rarely.rebuild()
    assert (n_reports < 60 * n / 4 * np.array([0.34, 0.9, 0.34, 0.34])).all()
    assert n_held > 50
    assert n_outdated > 30


def test_safe_regions_of_one_named_twice_are_refused() -> None:
    engine = Engine(Moving(9 * SECOND), space="planar")
    engine.subscribe(Subscription(1, ["a"], region=Circle(0, 0, 1)), Subscription(2, ["a"]))
    with pytest.raises(InvalidInput, match="named twice"):
        engine.safe_regions([1, 1])
    with pytest.raises(UnknownSubscription):
        engine.safe_regions([1, 3])
    for ids in (1, "12", None):
        with pytest.raises(InvalidInput, match="expected a list of ids"):
            engine.safe_regions(ids)  # type: ignore[arg-type]
    assert engine.safe_regions([2, 1]) == [Everywhere(), Circle(0, 0, 128 * (1 - 1e-6))]
    with pytest.raises(InvalidInput, match="no safe regions"):
        Engine().safe_regions([])


def test_a_safe_region_holds_the_last_position_of_whom_no_longitude_matters_to() -> None:
    """A rectangle around the world is the same wherever in x its subscriber is."""
    engine = Engine(Moving(9 * SECOND))
    engine.subscribe(Subscription(1, ["a"], region=Rectangle(-180, -5, 180, 5)))
    engine.publish(Message(1, "a", place=Point(10, 40), time=NOON))
    engine.move(1, Point(120, 10), NOON)
    safe = engine.safe_region(1)
    assert isinstance(safe, Rectangle)
    assert (safe.min_x, safe.max_x) == (-180, 180)
    assert safe.min_y < 10 < safe.max_y < 35


@pytest.mark.parametrize(
    ("region", "x", "y", "dx", "dy"),
    [
        (Polygon([[(176, 3), (178, 3), (177, 5.5)]]), 177.64665328045473, 1.2474708083805297, 0, 0),
        (Rectangle(-177, 3, -174, 5), -180.0, -89.3, 1.5, 0.0),
        (Rectangle(-180, -90, 180, 90), 0.0, 11.600082914409729, 0.0, -90.0),
    ],
)
def test_a_safe_region_without_extent_is_the_last_position(
    region: Any, x: float, y: float, dx: float, dy: float
) -> None:
    """Every digit of it, or a client that stands still would report."""
    engine = Engine(Moving(9 * SECOND))
    engine.subscribe(Subscription(1, ["a"], region=region))
    engine.move(1, Point(x, y), NOON)
    engine.publish(Message(1, "a", place=Point(x + dx, y + dy), time=NOON))  # at the edge
    is_around = region == Rectangle(-180, -90, 180, 90)
    assert engine.safe_region(1) == (Rectangle(-180, y, 180, y) if is_around else Point(x, y))


def test_no_safe_region_is_smaller_than_what_rounding_may_change() -> None:
    """Coordinates are degrees, and a reach is metres: one tenth of a micrometre is no distance."""
    engine, radius = Engine(Moving(9 * SECOND)), 0.33183968125354363
    place = Point(-179.999998176504, 10.000002306037205)
    x, y = 179.9999999, 10.0
    engine.subscribe(Subscription(1, ["a"], region=Circle(x, y, radius)))
    engine.publish(Message(1, "a", place=place, time=NOON))
    assert engine.safe_region(1) == Point(x, y)


def test_saved_safe_regions_are_looked_through_once(tmp_path: Path) -> None:
    """Not with each report, were there a million of them."""
    engine = Engine(Moving(9 * SECOND), space="planar")
    engine.subscribe(*(Subscription(i, ["a"], region=Circle(i, 0, 1)) for i in range(3)))
    engine.safe_regions([0, 1])
    engine.save(tmp_path)
    opened = Engine.open(tmp_path)
    opened.move(0, Point(5, 0), NOON)
    assert opened.matcher._safety._saved is None
    opened.publish(Message(1, "a", place=Point(3, 0), time=NOON))
    assert opened.outdated_safe_regions() == [1]


def test_the_first_batch_of_subscriptions_is_sorted_before_messages_come() -> None:
    """An engine that was empty knows no places; its lists are made anew for those that came."""
    random = np.random.default_rng(8)
    n = 6000
    engine = Engine(Moving(9 * SECOND), space="planar")
    places = random.random((n, 2))
    engine.subscribe_batch(
        pa.table(
            {
                "id": np.arange(n),
                "keywords": [["road"]] * n,
                "x": places[:, 0],
                "y": places[:, 1],
                "radius": np.full(n, 0.001),
            }
        )
    )
    message = Message(1, "road", place=Point(0.5, 0.5), time=NOON)
    assert engine.publish(message).counters.candidates < n / 100
