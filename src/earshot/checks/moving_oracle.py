"""The truth of moving subscribers: who holds which live messages, in plain Python.

Nothing here is shared with what it judges. After each event, what every subscription matches is
found anew among all live messages; the updates are the difference from before, less what dwelling
and cooling down hold back. docs/semantics/moving.md states the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from earshot.checks.oracle import cut, polygon_touches, touches
from earshot.model.arrays import Space
from earshot.model.regions import Circle, Everywhere, Place, Point, Polygon, Rectangle, Region

Clauses: TypeAlias = Iterable[tuple[frozenset[str], frozenset[str]]]
Change: TypeAlias = tuple[int, Any, str, str]
"""Number of the message, subscription, ``+`` or ``-``, reason."""

ZERO = timedelta(0)


@dataclass
class LiveMessage:
    """A message that has not ended."""

    number: int  # of its arrival
    words: frozenset[str]
    place: Place
    end: datetime


@dataclass
class Pair:
    """What is between a subscription and a message."""

    since: datetime | None = None  # it has matched, without a break
    is_given: bool = False
    left: datetime | None = None  # when it last went after it had been given


@dataclass
class Subscriber:
    """A subscription, and where it is."""

    clauses: Clauses
    region: Region
    dwell: timedelta
    cooldown: timedelta
    is_told: bool  # whether it hears what leaves
    dx: float = 0.0  # how far its polygon has moved
    dy: float = 0.0
    halves: tuple[float, float] | None = None  # of its rectangle, once that has moved
    last: datetime | None = None  # when it reported last
    pairs: dict[int, Pair] = field(default_factory=dict)

    def due(self, pair: Pair) -> datetime | None:
        """Return when a message is to be given, None where it does not match, or has been."""
        if pair.since is None or pair.is_given:
            return None
        due = pair.since + self.dwell
        return due if pair.left is None else max(due, pair.left + self.cooldown)


class OracleField:
    """Subscribers by key, in the order in which they came, and live messages by number."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.clock: datetime | None = None
        self.subscribers: dict[Any, Subscriber] = {}
        self.messages: dict[int, LiveMessage] = {}

    # ---- events

    def subscribe(self, key: Any, subscriber: Subscriber) -> Iterator[Change]:
        """Add a subscription; it is given what lives."""
        self.subscribers[key] = subscriber
        yield from self._compare(key, "entered", "")

    def unsubscribe(self, key: Any) -> None:
        """End a subscription; nobody is told."""
        del self.subscribers[key]

    def move(self, key: Any, region: Region | Point, time: datetime | None) -> Iterator[Change]:
        """Let a subscription be at a point, or have another region."""
        subscriber = self.subscribers[key]
        subscriber.last = time or self.clock or subscriber.last
        if isinstance(region, Point):
            self._place(subscriber, region)
        else:
            subscriber.region, subscriber.dx, subscriber.dy = region, 0.0, 0.0
            subscriber.halves = None
        yield from self._compare(key, "entered", "left")

    def is_late(self, key: Any, time: datetime | None) -> bool:
        """Whether a position is older than the last one."""
        last = self.subscribers[key].last
        time = time or self.clock
        return last is not None and time is not None and time < last

    def publish(self, message: LiveMessage) -> Iterator[Change]:
        """Let a message arrive."""
        self.messages[message.number] = message
        for key in self.subscribers:
            yield from self._compare(key, "match", "")

    def pass_time(self, clock: datetime) -> Iterator[Change]:
        """Let what is due happen, in the order of instants; at one, messages end first."""
        while True:
            ends = [(each.end, 0, each.number, 0) for each in self.messages.values()]
            dues = [
                (due, 1, number, order)
                for order, subscriber in enumerate(self.subscribers.values())
                for number, pair in subscriber.pairs.items()
                if (due := subscriber.due(pair)) is not None
            ]
            time, phase, number, order = min(ends + dues, default=(clock, 2, 0, 0))
            if phase == 2 or time > clock:
                break
            self.clock = time
            if phase == 0:
                del self.messages[number]
                for key, subscriber in self.subscribers.items():
                    yield from self._compare(key, "", "expired")
                    subscriber.pairs.pop(number, None)
            else:
                key = list(self.subscribers)[order]
                subscriber = self.subscribers[key]
                subscriber.pairs[number].is_given = True
                yield number, key, "+", "dwelled" if subscriber.dwell else "entered"
        self.clock = clock

    def results(self, key: Any) -> list[int]:
        """Return the messages that a subscription holds, in the order of arrival."""
        pairs = self.subscribers[key].pairs
        return sorted(number for number, pair in pairs.items() if pair.is_given)

    # ---- what matches

    def _compare(self, key: Any, came: str, went: str) -> Iterator[Change]:
        """Find anew what a subscription matches; yield in what that differs from before."""
        subscriber, now = self.subscribers[key], self.clock
        after = {number for number, each in self.messages.items() if self.matches(subscriber, each)}
        before = {n for n, pair in subscriber.pairs.items() if pair.since is not None}
        for number in sorted(before - after):
            pair = subscriber.pairs[number]
            if pair.is_given and subscriber.is_told:
                yield number, key, "-", went
            pair.left = now if pair.is_given else pair.left
            pair.since, pair.is_given = None, False
        for number in sorted(after - before):
            pair = subscriber.pairs.setdefault(number, Pair())
            pair.since = now
            due = subscriber.due(pair)
            assert due is not None
            assert now is not None
            if due <= now:
                pair.is_given = True
                yield number, key, "+", came

    def matches(self, subscriber: Subscriber, message: LiveMessage) -> bool:
        """Whether a message matches where a subscription is now."""
        is_met = any(
            required <= message.words and not forbidden & message.words
            for required, forbidden in subscriber.clauses
        )
        return is_met and self._holds(subscriber, message.place)

    def _holds(self, subscriber: Subscriber, place: Place) -> bool:
        region = subscriber.region
        if not isinstance(region, Polygon):
            return touches(region, place, self.space)
        box = (place.x, place.y) * 2 if isinstance(place, Point) else _sides(place)
        is_lonlat = self.space == "lonlat"
        pieces = cut(box) if is_lonlat else [box]
        dx, dy = subscriber.dx, subscriber.dy
        return any(
            polygon_touches(
                region.rings,
                ((piece[0] - dx) + turn, piece[1] - dy, (piece[2] - dx) + turn, piece[3] - dy),
            )
            for piece in pieces
            for turn in ((-360.0, 0.0, 360.0) if is_lonlat else (0.0,))
        )

    def _place(self, subscriber: Subscriber, at: Point) -> None:
        """Let a region follow a position."""
        is_lonlat = self.space == "lonlat"
        match subscriber.region:
            case Circle(_, _, radius):
                subscriber.region = Circle(at.x, at.y, radius)
            case Rectangle(min_x, min_y, max_x, max_y):
                if subscriber.halves is None:  # else it was moved, and its sides were rounded
                    width = max_x - min_x
                    if is_lonlat and min_x > max_x:
                        width += 360.0
                    subscriber.halves = width * 0.5, (max_y - min_y) * 0.5
                half_width, half_height = subscriber.halves
                low, high = at.x - half_width, at.x + half_width
                if is_lonlat and 2 * half_width >= 360.0:
                    low, high = -180.0, 180.0
                elif is_lonlat and low < -180.0:
                    low += 360.0
                elif is_lonlat and high > 180.0:
                    high -= 360.0
                subscriber.region = Rectangle(low, at.y - half_height, high, at.y + half_height)
            case Polygon(rings):
                (x, y) = self._middle(rings)
                subscriber.dx, subscriber.dy = at.x - x, at.y - y
            case Everywhere():
                pass

    def _middle(self, rings: Any) -> tuple[float, float]:
        """Return the middle of the box around a polygon, which may cross the antimeridian."""
        ys = [y for ring in rings for _, y in ring]
        spans = sorted((min(xs), max(xs)) for xs in ([x for x, _ in ring] for ring in rings))
        west, east = spans[0][0], max(end for _, end in spans)
        # Of parts on both sides, the widest gap between them is not in the box.
        gaps = [
            (spans[at][0] - reach, reach, spans[at][0])
            for at in range(1, len(spans))
            if (reach := max(end for _, end in spans[:at])) < spans[at][0]
        ]
        x = west / 2 + east / 2
        if self.space == "lonlat" and (west, east) == (-180.0, 180.0) and gaps:
            _, before, behind = max(gaps, key=lambda gap: gap[0])
            x = (behind + before + 360.0) / 2
            x -= 360.0 * (x > 180.0)
        return x, min(ys) / 2 + max(ys) / 2


def _sides(place: Rectangle) -> tuple[float, float, float, float]:
    return place.min_x, place.min_y, place.max_x, place.max_y
