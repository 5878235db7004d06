"""Stories for the laws of engines: random calls with plain subscriptions, messages and times.

The world is small, so that places touch, ids come again, scores tie and expiries fall on the clock.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, NamedTuple

from earshot.model.arrays import Space
from earshot.model.messages import Message
from earshot.model.moving import Moving
from earshot.model.ranking import Ranking
from earshot.model.regions import (
    Circle,
    Everywhere,
    Place,
    Point,
    Polygon,
    Rectangle,
    RegionOrPoint,
)
from earshot.model.subscriptions import Id, Subscription
from earshot.model.topk import TopK

EPOCH = datetime(2026, 5, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
WORDS = ("bus", "fire", "märz", "rain", "smoke")
EXPRESSIONS = (
    "fire or rain",
    "fire and not rain",
    "(fire and rain) or bus",
    "bus and (fire or not rain)",
    "bus and not (fire or märz)",
    "fire and rain or fire and bus",
)


class Call(NamedTuple):
    """A method of an engine, and what it is called with."""

    method: str
    arguments: tuple[Any, ...]


class Author:
    """Writes stories for engines of one semantics, and knows who is live and what time it is."""

    def __init__(self, settings: Any, space: Space, random: Random) -> None:
        self.settings = settings
        self.space = space
        self.random = random
        self.live: dict[Id, Subscription] = {}
        self.n_ids = self.n_messages = 0
        self.clock = EPOCH
        self.has_clock = False  # else a message needs a time of its own, where time decides
        self.is_point = isinstance(settings, TopK)
        self.is_plain = False  # whether subscriptions have neither dwell nor cooldown
        self.xs, self.ys = [-2.0, -1.0, 0.0, 1.0, 2.0], [-2.0, -1.0, 0.0, 1.0, 2.0]
        if space == "lonlat":
            self.xs, self.ys = [-180.0, -179.0, -1.0, 0.0, 1.0, 179.0, 180.0], [-90.0, *self.ys]
        if self.is_point:
            # On the sphere no two distances are equal but for rounding, which is not promised.
            self.xs = [-2.13, -1.07, 0.0, 0.91, 1.88]
            if space == "planar":
                self.xs = self.ys = [-2e5, -1e5, 0.0, 1e5, 2e5]

    def story(self, n_calls: int = 24) -> list[Call]:
        """Return calls: many subscribe first, then anything happens."""
        calls = [Call("subscribe", tuple(self.subscriptions(20)))]
        calls.append(Call("publish", tuple(self.messages(8))))
        while len(calls) < n_calls:
            calls += self.change() if self.random.random() < 0.5 else [self.publication()]
        return calls

    def publication(self) -> Call:
        """Return the publication of a few messages."""
        return Call("publish", tuple(self.messages(self.random.randint(1, 6))))

    def change(self) -> list[Call]:
        """Return what happens between messages."""
        kind = self.random.choice(
            ["subscribe", "unsubscribe", "move", "move", "advance", "reweigh"]
        )
        if kind == "subscribe":
            return [Call(kind, tuple(self.subscriptions(self.random.randint(1, 4))))]
        if kind == "unsubscribe":
            gone = self.random.sample(list(self.live), min(2, len(self.live)))
            self.live = {key: each for key, each in self.live.items() if key not in gone}
            return [Call(kind, tuple(gone))]
        if kind == "move" and self.live:
            key = self.random.choice(list(self.live))
            region = self.region()
            if isinstance(region, Everywhere) and self.live[key].condition is None:
                region = self.rectangle()  # else it would ask for nothing
            if isinstance(self.settings, Moving):
                return [self.report(key, region)]
            return [Call(kind, (key, region))]
        if kind == "advance":
            self.clock += self.random.choice([0, 1, 1, 4]) * SECOND
            self.has_clock = True
            return [Call(kind, (self.clock,))]
        return [Call("reweigh", ())] if isinstance(self.settings, Ranking | TopK) else []

    def report(self, key: Id, region: RegionOrPoint) -> Call:
        """Return that a moving subscriber is somewhere, most often at a point."""
        if self.random.random() < 0.6:
            region = self.point()
        if self.random.random() < 0.5:
            return Call("move", (key, region))
        self.clock += self.random.choice([0, 0, 1]) * SECOND
        self.has_clock = True
        return Call("move", (key, region, self.clock))

    def subscriptions(self, n: int) -> list[Subscription]:
        """Return new subscriptions of every kind that the semantics takes."""
        return [self.subscription() for _ in range(n)]

    def subscription(self) -> Subscription:
        """Return a new subscription without an end."""
        self.n_ids += 1
        made = self._subscription(f"s{self.n_ids}-é")
        self.live[made.id] = made
        return made

    def _subscription(self, key: Id) -> Subscription:
        words = tuple(self.random.sample(WORDS, self.random.randint(1, 2)))
        if self.is_point:
            k, alpha = self.random.choice([None, 1, 3]), self.random.choice([None, 0.0, 1.0])
            return Subscription(key, words, region=self.region(), k=k, alpha=alpha)
        own = None
        if isinstance(self.settings, Ranking):
            own = self.random.choice([None, None, 0.05, 0.5, 1.0])
        kind = self.random.random()
        if kind < 0.3:
            expression = self.random.choice(EXPRESSIONS)
            made = Subscription(key, expression=expression, region=self.region(), threshold=own)
        elif kind < 0.4:
            made = Subscription(key, region=self.rectangle(), threshold=own)
        else:
            made = Subscription(key, words, region=self.region(), threshold=own)
        if isinstance(self.settings, Moving) and not self.is_plain:
            made = self._timed(made)
        return made

    def _timed(self, subscription: Subscription) -> Subscription:
        """Return a subscription of which many ask for a dwell, a cooldown, or less updates."""
        return replace(
            subscription,
            dwell=self.random.choice([None, None, None, SECOND, 2 * SECOND]),
            cooldown=self.random.choice([None, None, None, SECOND, 3 * SECOND]),
            leaving=self.random.choice([None, None, True, False]),
        )

    def messages(self, n: int) -> list[Message]:
        """Return new messages; time passes slowly."""
        return [self.message() for _ in range(n)]

    def message(self) -> Message:
        """Return a new message, as text or as keywords, some without a time."""
        self.n_messages += 1
        self.clock += self.random.choice([0, 0, 0, 1]) * SECOND
        words = self.random.sample((*WORDS, "unknown"), self.random.randint(0, 4))
        time = None if self.has_clock and self.random.random() < 0.2 else self.clock
        self.has_clock = True
        end = None
        if isinstance(self.settings, Moving) and self.random.random() < 0.3:
            end = self.clock + self.random.choice([1, 2, 9]) * SECOND
        if self.random.random() < 0.5:
            text = " ".join(words).upper()
            return Message(self.n_messages, text, place=self.place(), time=time, end=end)
        return Message(self.n_messages, keywords=words, place=self.place(), time=time, end=end)

    # ---- places

    def point(self) -> Point:
        """Return a point."""
        return Point(self.random.choice(self.xs), self.random.choice(self.ys))

    def rectangle(self) -> Rectangle:
        """Return a closed box; on lonlat many cross the antimeridian."""
        x, y, other = self.random.choice(self.xs), self.point(), self.point()
        low, high = sorted((y.y, other.y))
        if self.space == "planar":
            return Rectangle(min(x, other.x), low, max(x, other.x), high)
        return Rectangle(x, low, other.x, high)

    def place(self) -> Place:
        """Return where a message is."""
        if self.is_point or self.random.random() < 0.5:
            return self.point()
        return self.rectangle()

    def region(self) -> RegionOrPoint:
        """Return where a subscription listens."""
        point = self.point()
        if self.is_point:
            return point
        kind = self.random.random()
        if kind < 0.5:
            return self.rectangle()
        if kind < 0.7:
            radius = self.random.choice([0.0, 1.0, 1.5])
            return Circle(point.x, point.y, radius * (111_195.5 if self.space == "lonlat" else 1))
        if kind < 0.8:
            return point
        if kind < 0.9:
            return Polygon([[(0, 0), (2, 0), (0, 2)], [(0.5, 0.5), (1, 0.5), (0.5, 1)]])
        return Everywhere()
