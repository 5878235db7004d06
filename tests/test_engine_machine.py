"""The engine in lock-step with the oracle: any order of events gives the oracle's updates.

The world is small, so that regions and messages touch, ids come again and expiries fall on the
clock. The index is rebuilt after a few changes, in the background and in the foreground.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import earshot.semantics.index_matcher
from earshot import (
    Circle,
    Engine,
    Event,
    Everywhere,
    Message,
    Move,
    Point,
    Polygon,
    Publish,
    Rectangle,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from earshot.checks.oracle import Oracle
from earshot.errors import DuplicateSubscription, InvalidInput, UnknownSubscription
from earshot.model.arrays import Space
from earshot.model.regions import Place, Region
from earshot.model.subscriptions import Id

EPOCH = datetime(2026, 5, 1, tzinfo=UTC)
WORDS = ("bus", "fire", "märz", "rain")
SPACES: tuple[Space, ...] = ("lonlat", "planar")
Condition = list[tuple[tuple[str, ...], tuple[str, ...]]]  # clauses: required, forbidden

# ---- what happens in the small world ------------------------------------------------------------

numbers = st.integers(0, 11)
times = st.integers(0, 12).map(lambda half: EPOCH + timedelta(seconds=half / 2))
x_lonlat = st.sampled_from([-180.0, -179.0, -1.0, 0.0, 1.0, 179.0, 180.0])
y_lonlat = st.sampled_from([-90.0, -1.0, 0.0, 1.0, 90.0])
planar = st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0])

EXPRESSIONS: list[tuple[str, Condition]] = [
    ("fire or rain", [(("fire",), ()), (("rain",), ())]),
    ("fire and not rain", [(("fire",), ("rain",))]),
    ("(fire and rain) or bus", [(("fire", "rain"), ()), (("bus",), ())]),
    ("bus and (fire or not rain)", [(("bus", "fire"), ()), (("bus",), ("rain",))]),
    ("bus and not (fire or märz)", [(("bus",), ("fire", "märz"))]),
    ("fire and rain or fire and bus", [(("fire", "rain"), ()), (("fire", "bus"), ())]),
]


def boxes(space: Space) -> st.SearchStrategy[Rectangle]:
    """Return closed boxes; on lonlat many cross the antimeridian."""
    if space == "planar":
        sides = st.tuples(planar, planar, planar, planar)
        return sides.map(
            lambda s: Rectangle(min(s[0], s[2]), min(s[1], s[3]), max(s[0], s[2]), max(s[1], s[3]))
        )
    sides = st.tuples(x_lonlat, y_lonlat, x_lonlat, y_lonlat)
    return sides.map(lambda s: Rectangle(s[0], min(s[1], s[3]), s[2], max(s[1], s[3])))


def polygons(space: Space) -> st.SearchStrategy[Polygon]:
    triangle = [(0, 0), (2, 0), (0, 2)]
    ring_with_hole = [[(-2, -2), (2, -2), (2, 2), (-2, 2)], [(-1, -1), (1, -1), (1, 1), (-1, 1)]]
    chosen = [Polygon([triangle]), Polygon(ring_with_hole)]
    if space == "lonlat":
        west = [(178, -1), (180, -1), (180, 1), (178, 1)]
        east = [(-180, -1), (-179, 0), (-180, 1)]
        chosen += [Polygon([west]), Polygon([west, east])]
    return st.sampled_from(chosen)


def regions(space: Space) -> st.SearchStrategy[Region]:
    centres = st.tuples(x_lonlat, y_lonlat) if space == "lonlat" else st.tuples(planar, planar)
    radii = [0.0, 111_195.0, 111_196.0, 2e7] if space == "lonlat" else [0.0, 1.0, 1.5]
    circles = st.tuples(centres, st.sampled_from(radii)).map(lambda c: Circle(*c[0], c[1]))
    return st.one_of(boxes(space), boxes(space), circles, polygons(space), st.just(Everywhere()))


def places(space: Space) -> st.SearchStrategy[Place]:
    centres = st.tuples(x_lonlat, y_lonlat) if space == "lonlat" else st.tuples(planar, planar)
    return st.one_of(centres.map(lambda c: Point(*c)), boxes(space))


class Wish:
    """A subscription, and what its condition means in clauses."""

    def __init__(self, number: int, condition: object, region: Region, expires: datetime | None):
        self.number, self.region, self.expires = number, region, expires
        self.keywords: tuple[str, ...] = ()
        self.expression: str | None = None
        self.clauses: Condition
        if isinstance(condition, int):
            self.expression, self.clauses = EXPRESSIONS[condition]
        elif isinstance(condition, tuple):
            self.keywords, self.clauses = condition, [(condition, ())]
            if not condition and isinstance(region, Everywhere):  # refused: it says nothing
                self.region = Rectangle(-1, -1, 1, 1)

    def subscription(self, subscription_id: Id) -> Subscription:
        return Subscription(
            subscription_id, self.keywords, self.expression, self.region, self.expires
        )

    def __repr__(self) -> str:
        return f"Wish({self.number}, {self.clauses}, {self.region}, {self.expires})"


def wishes(space: Space) -> st.SearchStrategy[Wish]:
    keywords = st.lists(st.sampled_from(WORDS), max_size=2, unique=True).map(tuple)
    condition = st.one_of(keywords, keywords, st.integers(0, len(EXPRESSIONS) - 1))
    return st.builds(Wish, numbers, condition, regions(space), st.none() | times)


Post = tuple[tuple[str, ...], bool, Place, datetime | None]


def posts(space: Space) -> st.SearchStrategy[Post]:
    words = st.lists(st.sampled_from((*WORDS, "unknown")), max_size=4, unique=True).map(tuple)
    return st.tuples(words, st.booleans(), places(space), st.none() | times)


WORLDS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    space: {
        "wish": wishes(space),
        "wishes": st.lists(wishes(space), min_size=1, max_size=8, unique_by=lambda w: w.number),
        "post": posts(space),
        "posts": st.lists(posts(space), min_size=1, max_size=6),
        "region": regions(space),
    }
    for space in SPACES
}


# ---- the machine --------------------------------------------------------------------------------


class EngineMachine(RuleBasedStateMachine):
    """What the engine says against what the oracle says, event by event."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="earshot-machine-"))
        self.least = earshot.semantics.index_matcher.REBUILD_LEAST
        self.n_saves = self.n_messages = 0

    def teardown(self) -> None:
        earshot.semantics.index_matcher.REBUILD_LEAST = self.least
        if hasattr(self, "engine"):
            self.engine.wait()
        shutil.rmtree(self.folder)

    @initialize(
        space=st.sampled_from(SPACES),
        index=st.sampled_from(["block_trie", "spatial_first"]),
        has_text_ids=st.booleans(),
        least=st.sampled_from([2, 6, 20_000]),
        n_threads=st.sampled_from([1, 2]),
    )
    def start(
        self, space: Space, index: str, has_text_ids: bool, least: int, n_threads: int
    ) -> None:
        self.engine = Engine(space=space, structure=index, n_threads=n_threads)
        self.space, self.has_text_ids, self.n_threads = space, has_text_ids, n_threads
        self.oracle: Oracle[Id] = Oracle(space)
        self.expires: dict[Id, datetime] = {}
        self.clock: datetime | None = None
        earshot.semantics.index_matcher.REBUILD_LEAST = least

    def id(self, number: int) -> Id:
        return f"s{number}-é" if self.has_text_ids else number - 5

    # ---- the model: the oracle, with a clock

    def model_subscribe(self, wish: Wish) -> None:
        key = self.id(wish.number)
        self.oracle.subscribe(key, wish.clauses, wish.region)
        if wish.expires is not None:
            self.expires[key] = wish.expires
        self.model_advance(None)  # it may be over before it begins

    def model_remove(self, key: Id) -> None:
        self.oracle.remove(key)
        self.expires.pop(key, None)

    def model_advance(self, time: datetime | None) -> None:
        if time is not None:
            self.clock = time if self.clock is None else max(self.clock, time)
        if self.clock is not None:
            for key in [key for key, end in self.expires.items() if end <= self.clock]:
                self.model_remove(key)

    def model_publish(self, posts: Sequence[Post]) -> list[set[Id]]:
        found = []
        for words, _, place, time in posts:
            self.model_advance(time)
            found.append(self.oracle.match(words, place))
        return found

    # ---- subscriptions come, go and move

    def subscribe(self, wishes: Sequence[Wish], in_one_call: bool) -> None:
        taken = [wish for wish in wishes if self.id(wish.number) in self.oracle.subscriptions]
        made = [wish.subscription(self.id(wish.number)) for wish in wishes]
        if taken and in_one_call:
            with pytest.raises(DuplicateSubscription, match="exists already"):
                self.engine.subscribe(*made)
            return
        if in_one_call:
            self.engine.subscribe(*made)
        for wish, subscription in zip(wishes, made, strict=True):
            if wish in taken:
                with pytest.raises(DuplicateSubscription):
                    self.engine.subscribe(subscription)
                continue
            if not in_one_call:
                self.engine.subscribe(subscription)
            self.model_subscribe(wish)

    @rule(data=st.data())
    def subscribe_one(self, data: st.DataObject) -> None:
        self.subscribe([data.draw(WORLDS[self.space]["wish"])], True)

    @rule(data=st.data(), in_one_call=st.booleans())
    def subscribe_many(self, data: st.DataObject, in_one_call: bool) -> None:
        wishes = data.draw(WORLDS[self.space]["wishes"])
        if in_one_call:  # most lists would hold an id that is taken
            live = self.oracle.subscriptions
            wishes = [w for w in wishes if self.id(w.number) not in live] or wishes
        self.subscribe(wishes, in_one_call)

    @rule(chosen=st.sets(numbers, min_size=1, max_size=5))
    def unsubscribe(self, chosen: set[int]) -> None:
        live = [n for n in chosen if self.id(n) in self.oracle.subscriptions]
        if live:
            self.engine.unsubscribe(*map(self.id, live))
            for number in live:
                self.model_remove(self.id(number))
        for number in chosen.difference(live):
            with pytest.raises(UnknownSubscription, match="no subscription"):
                self.engine.unsubscribe(self.id(number))

    @rule(data=st.data(), number=numbers)
    def move(self, data: st.DataObject, number: int) -> None:
        region = data.draw(WORLDS[self.space]["region"])
        key = self.id(number)
        if key not in self.oracle.subscriptions:
            with pytest.raises(UnknownSubscription, match="no subscription"):
                self.engine.move(key, region)
        elif self.asks_for_nothing(key, region):
            with pytest.raises(InvalidInput, match="every message would match"):
                self.engine.move(key, region)
        else:
            self.engine.move(key, region)
            self.oracle.move(key, region)

    def asks_for_nothing(self, key: Id, region: Region) -> bool:
        clauses, _ = self.oracle.subscriptions[key]
        return isinstance(region, Everywhere) and clauses == [(frozenset(), frozenset())]

    # ---- messages and the clock

    def message(self, post: Post) -> Message:
        words, is_text, place, time = post
        self.n_messages += 1
        if is_text:
            return Message(self.n_messages, " ".join(words).upper(), place=place, time=time)
        return Message(self.n_messages, keywords=words, place=place, time=time)

    def publish(self, posts: Sequence[Post], *, in_one_call: bool) -> None:
        messages = [self.message(post) for post in posts]
        if in_one_call:
            updates = list(self.engine.publish(*messages))
        else:
            updates = [update for each in messages for update in self.engine.publish(each)]
        found = defaultdict(list)
        for update in updates:
            found[update.message_id].append(update.subscription_id)
        for message, expected in zip(messages, self.model_publish(posts), strict=True):
            answers = found.pop(message.id, [])
            assert sorted(map(str, answers)) == sorted(map(str, expected)), message
            assert set(answers) == expected
        assert not found

    @rule(data=st.data())
    def publish_one(self, data: st.DataObject) -> None:
        self.publish([data.draw(WORLDS[self.space]["post"])], in_one_call=True)

    @rule(data=st.data(), in_one_call=st.booleans())
    def publish_many(self, data: st.DataObject, in_one_call: bool) -> None:
        self.publish(data.draw(WORLDS[self.space]["posts"]), in_one_call=in_one_call)

    @rule(time=times)
    def advance(self, time: datetime) -> None:
        self.engine.advance(time)
        self.model_advance(time)

    @rule(data=st.data(), number=numbers, time=st.none() | times)
    def process(self, data: st.DataObject, number: int, time: datetime | None) -> None:
        world = WORLDS[self.space]
        self.engine.advance(time or EPOCH)
        self.model_advance(time or EPOCH)
        wish, post, region = (data.draw(world[each]) for each in ("wish", "post", "region"))
        events: list[Event] = []
        key = self.id(wish.number)
        if key in self.oracle.subscriptions:
            events.append(Unsubscribe(key, time))
            self.model_remove(key)
        events.append(Subscribe(wish.subscription(key), time))
        self.model_subscribe(wish)
        if key in self.oracle.subscriptions and not self.asks_for_nothing(key, region):
            events.append(Move(key, region))
            self.oracle.move(key, region)
        message = self.message(post)
        events.append(Publish(message))
        updates = list(self.engine.process(iter(events)))
        assert {update.message_id for update in updates} <= {message.id}
        assert {u.subscription_id for u in updates} == self.model_publish([post])[0]

    # ---- the same engine in another shape

    @rule()
    def save_and_open(self) -> None:
        self.n_saves += 1
        directory = self.folder / str(self.n_saves)
        self.engine.save(directory)
        self.engine.wait()
        self.engine = Engine.open(directory, n_threads=self.n_threads)

    @rule()
    def rebuild(self) -> None:
        self.engine.rebuild()
        assert self.engine.matcher.index.n_changes == 0

    @rule()
    def wait(self) -> None:
        self.engine.wait()

    @rule()
    def count(self) -> None:
        assert len(self.engine) == len(self.oracle.subscriptions)
        assert self.engine.time == self.clock

    @rule(number=numbers)
    def contains(self, number: int) -> None:
        assert (self.id(number) in self.engine) == (self.id(number) in self.oracle.subscriptions)


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
