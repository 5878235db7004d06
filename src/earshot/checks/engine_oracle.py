"""The truth of engines: what each call must answer, from plain subscriptions and messages.

An oracle takes the events of an engine, ids, words, regions and times as a person writes them, and
answers with the updates that they cause. There is one per semantics; nothing is shared with what
they judge. Texts are read in the simplest way, so ask with plain words.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, ClassVar, TypeAlias

import numpy as np

from earshot.checks.moving_oracle import LiveMessage, OracleField, Subscriber
from earshot.checks.oracle import EARTH_RADIUS_M, touches
from earshot.checks.ranked_oracle import is_delivered, score_of, spatial_score, textual_score
from earshot.checks.topk_oracle import Line as Change
from earshot.checks.topk_oracle import OracleMonitor
from earshot.model.arrays import CountedMessages, Space
from earshot.model.boolean import Boolean
from earshot.model.expressions import And, Keyword, Not, Or
from earshot.model.messages import Message
from earshot.model.moving import Moving
from earshot.model.ranking import Ranking
from earshot.model.regions import Circle, Point, Region, RegionOrPoint
from earshot.model.subscriptions import Id, Subscription
from earshot.model.topk import TopK

Clause: TypeAlias = tuple[frozenset[str], frozenset[str]]
"""Words that must be there, and words that must not."""
Line: TypeAlias = tuple[Id, Id, str, float | None, str, datetime | None]
"""Message, subscription, sign, score, reason and time of an update."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class EngineOracle(ABC):
    """Subscriptions in a dict, and a clock; subclasses say what a delivery means."""

    settings_type: ClassVar[type]

    def __init__(self, settings: Any, space: Space) -> None:
        self.settings = settings
        self.space = space
        self.clock: datetime | None = None
        self.live: dict[Id, Subscription] = {}
        self.weights: dict[str, float] = {}
        self.later_weight = 1.0

    def subscribe(self, *subscriptions: Subscription) -> list[Line]:
        """Add subscriptions; one that is over already gets nothing and is gone at once."""
        lines = []
        for each in subscriptions:
            if each.id in self.live:
                raise ValueError(f"{each.id!r} is already subscribed")
            if each.expires is None or self.clock is None or each.expires > self.clock:
                self.live[each.id] = each
                lines += self._begin(each)
        return lines

    def unsubscribe(self, *ids: Id) -> list[Line]:
        """End subscriptions; nobody is told."""
        for each in ids:
            del self.live[each]
            self._end(each)
        return []

    def move(self, subscription_id: Id, region: RegionOrPoint) -> list[Line]:
        """Give a subscription another region."""
        self.live[subscription_id] = replace(self.live[subscription_id], region=region)
        return self._moved(self.live[subscription_id])

    def advance(self, time: datetime) -> list[Line]:
        """Move the clock, which never goes back: subscriptions end, then messages leave."""
        self._set_clock(time)
        return self._passed()

    def publish(self, *messages: Message) -> list[Line]:
        """Publish messages, each at its own time."""
        lines = []
        for each in messages:
            self._set_clock(each.time)
            lines += self._deliver(each)
        return lines

    def reweigh(self) -> list[Line]:
        """Weigh words anew, by how rare they are."""
        counts, n = self._count_words()
        self.weights = {word: idf(n, count) for word, count in counts.items()}
        self.later_weight = idf(n, 0)
        return self._reweighed()

    def weight(self, word: str) -> float:
        """Return the weight of a word."""
        return self.weights.get(word, self.later_weight)

    def _set_clock(self, time: datetime | None) -> None:
        if time is not None and (self.clock is None or time > self.clock):
            self.clock = time
            over = [each.id for each in self.live.values() if each.expires and each.expires <= time]
            self.unsubscribe(*over)

    # ---- what the semantics says

    def refuses(self, message: Message) -> bool:
        """Whether a message comes too late, now."""
        return False

    def results(self, subscription_id: Id) -> Sequence[tuple[Id, float | None]]:
        """Return the messages that a subscription holds, best first."""
        raise NotImplementedError(f"{type(self).__name__} holds none")

    def _begin(self, subscription: Subscription) -> list[Line]:
        return []

    def _end(self, subscription_id: Id) -> None:
        return

    def _moved(self, subscription: Subscription) -> list[Line]:
        return []

    def _passed(self) -> list[Line]:
        return []

    @abstractmethod
    def _deliver(self, message: Message) -> list[Line]:
        """Return what a message causes as it arrives."""

    def _count_words(self) -> tuple[Counter[str], int]:
        """Return how many have each word, and how many there are."""
        raise NotImplementedError(f"{type(self).__name__} weighs no words")

    def _reweighed(self) -> list[Line]:
        return []


class MatchOracle(EngineOracle):
    """A message is delivered once, or not at all."""

    @abstractmethod
    def score(self, message: Message, subscription_id: Id) -> tuple[bool, float | None]:
        """Return whether a message would be delivered now, and its score, if it has one."""

    def _deliver(self, message: Message) -> list[Line]:
        scores = {key: self.score(message, key) for key in self.live}
        return [
            (message.id, key, "+", score, "match", message.time)
            for key, (is_delivered, score) in scores.items()
            if is_delivered
        ]


class BooleanOracle(MatchOracle):
    """A message is delivered where its words meet the condition and its place the region."""

    settings_type = Boolean

    def score(self, message: Message, subscription_id: Id) -> tuple[bool, float | None]:
        """Return whether a message is delivered; there are no scores."""
        subscription, found = self.live[subscription_id], frozenset(words_of(message))
        is_met = any(
            required <= found and not forbidden & found
            for required, forbidden in clauses_of(subscription)
        )
        return is_met and touches(area(subscription), message.place, self.space), None


class RankedOracle(MatchOracle):
    """A message is delivered where its score reaches the threshold."""

    settings: Ranking
    settings_type = Ranking

    def score(self, message: Message, subscription_id: Id) -> tuple[bool, float | None]:
        """Return whether a score reaches its threshold; None where every alternative is out."""
        subscription, found = self.live[subscription_id], frozenset(words_of(message))
        spatial = spatial_score(area(subscription), message.place, self.space)
        parts = [
            (spatial, textual_score(required, found, self.weight))
            for required, forbidden in clauses_of(subscription)
            if not forbidden & found
        ]
        score, own = score_of(parts, self.settings.alpha), subscription.threshold
        return is_delivered(score, self.settings.threshold if own is None else own), score

    def _count_words(self) -> tuple[Counter[str], int]:
        required = (
            {word for clause, _ in clauses_of(each) for word in clause}
            for each in self.live.values()
        )
        return Counter(word for words in required for word in words), len(self.live)


class TopkOracle(EngineOracle):
    """A subscription holds the best messages of a window."""

    settings: TopK
    settings_type = TopK

    def __init__(self, settings: TopK, space: Space) -> None:
        super().__init__(settings, space)
        window = settings.window
        self.duration = None if isinstance(window, int) else window
        self.monitor = OracleMonitor(
            window=window if isinstance(window, int) else None,
            duration_us=None if isinstance(window, int) else microseconds(window),
            max_distance=settings.max_distance or 2 * EARTH_RADIUS_M,
        )
        self.slots: dict[Id, int] = {}
        self.messages: list[Message] = []  # by sequence
        self.numbers: dict[str, int] = {}  # of the words, in the order in which they came
        self.n_numbers = 0
        self.counts: Counter[str] = Counter()
        self.n_counted = 0

    def learn(self, *messages: Message) -> None:
        """Count the words of messages without publishing them."""
        for each in messages:
            words = dict.fromkeys(words_of(each))
            self.counts.update(words.keys())
            self.n_counted += 1
            for word in words:  # what was learned has a weight of its own at the next reweighing
                self._number(word)

    def forget(self) -> None:
        """Count from 0 again."""
        self.counts.clear()
        self.n_counted = 0

    def forget_words(self) -> None:
        """Let the words leave that nobody has, now, and that have no weight of their own."""
        held = (self.messages[each.sequence] for each in self.monitor.messages)
        used = {word for each in held for word in words_of(each)}
        used |= {
            word for each in self.live.values() for key in each.keywords for word in words_in(key)
        }
        used |= {word for word, weight in self.weights.items() if weight != self.later_weight}
        for word in set(self.numbers) - used:
            del self.numbers[word]
            self.counts.pop(word, None)

    def refuses(self, message: Message) -> bool:
        """Whether a message is too late for the window, or has no time where one is needed."""
        if self.duration is None:
            return False
        if message.time is None or self.clock is None:
            return message.time is None and self.clock is None
        late_by = self.clock - message.time
        return late_by > self.settings.lateness or late_by >= self.duration

    def results(self, subscription_id: Id) -> list[tuple[Id, float]]:
        """Return the messages that a subscription holds, best first."""
        (found,) = self.monitor.results([self.slots[subscription_id]])
        return [(self.messages[sequence].id, score) for sequence, score in found]

    def _begin(self, subscription: Subscription) -> list[Line]:
        settings = self.settings
        words = dict.fromkeys(word for each in subscription.keywords for word in words_in(each))
        self.slots[subscription.id] = self.monitor.n_slots
        alpha = settings.alpha if subscription.alpha is None else subscription.alpha
        changes = self.monitor.subscribe(
            self._places(subscription.region), np.array([0, len(words)]),
            np.array([self._number(word) for word in words], np.int32),
            np.array([alpha]), np.array([subscription.k or settings.k], np.int32),
        )  # fmt: skip
        return self._lines(changes, self.clock)

    def _end(self, subscription_id: Id) -> None:
        self.monitor.unsubscribe(np.array([self.slots.pop(subscription_id)], np.int32))

    def _moved(self, subscription: Subscription) -> list[Line]:
        slot = np.array([self.slots[subscription.id]], np.int32)
        return self._lines(self.monitor.move(slot, self._places(subscription.region)), self.clock)

    def _passed(self) -> list[Line]:
        if self.clock is None:
            return []
        return self._lines(self.monitor.advance(microseconds(self.clock - EPOCH)), self.clock)

    def _deliver(self, message: Message) -> list[Line]:
        self.messages.append(message)
        words = Counter(words_of(message))
        time = message.time or self.clock or EPOCH
        counted = CountedMessages(
            np.array([0, len(words)]),
            np.array([self._number(word) for word in words], np.int32),
            np.array(list(words.values()), np.uint16),
            self._places(message.place),
            np.array([microseconds(time - EPOCH)]),
        )
        self.learn(message)
        return self._lines(self.monitor.publish(counted), message.time)

    def _count_words(self) -> tuple[Counter[str], int]:
        return self.counts, self.n_counted

    def _reweighed(self) -> list[Line]:
        weights = [1.0] * (self.n_numbers + 1)
        for word, number in self.numbers.items():
            weights[number] = self.weight(word)
        return self._lines(self.monitor.reweigh(np.array(weights), self.later_weight), self.clock)

    def _number(self, word: str) -> int:
        if word not in self.numbers:
            self.n_numbers += 1
            self.numbers[word] = self.n_numbers
        return self.numbers[word]

    def _places(self, place: Any) -> Any:
        """Return a point in space: on the plane, or on the sphere."""
        if self.space == "planar":
            return np.array([[place.x, place.y, 0.0]])
        # Among equal scores age decides, so a place is one triple under each of its names: -180 and
        # 180 are one meridian, and all meridians meet at the poles.
        x, y = np.radians([180.0 if place.x == -180.0 else place.x]), np.radians([place.y])
        from_axis = 0.0 if abs(place.y) == 90.0 else np.cos(y)
        circle = [from_axis * np.cos(x), from_axis * np.sin(x), np.sin(y)]
        return EARTH_RADIUS_M * np.array(circle).reshape(1, 3)

    def _lines(self, changes: Iterable[Change], time: datetime | None) -> list[Line]:
        names = {slot: key for key, slot in self.slots.items()}
        return [
            (self.messages[sequence].id, names[slot], sign, score, reason, time)
            for _, sign, reason, slot, sequence, score in changes
        ]


class MovingOracle(EngineOracle):
    """A subscription holds the live messages that match where it is."""

    settings: Moving
    settings_type = Moving

    def __init__(self, settings: Moving, space: Space) -> None:
        super().__init__(settings, space)
        self.field = OracleField(space)
        self.messages: list[Message] = []  # by number

    def refuses(self, message: Message) -> bool:
        """Whether a message has ended before it arrives, or nobody knows when it does."""
        time = message.time or self.clock
        if time is None:
            return True
        return self._end_of(message, time) <= max(time, self.clock or time)

    def refuses_move(self, subscription_id: Id, time: datetime | None) -> bool:
        """Whether a position is older than the last one of its subscription."""
        return self.field.is_late(subscription_id, time)

    def move(
        self, subscription_id: Id, region: RegionOrPoint, time: datetime | None = None
    ) -> list[Line]:
        """Let a subscription be at a point, or give it another region."""
        self._set_clock(time)
        lines = self._lines(self.field.pass_time(self.clock)) if self.clock else []
        if subscription_id in self.live:
            lines += self._lines(self.field.move(subscription_id, region, time))
        return lines

    def results(self, subscription_id: Id) -> list[tuple[Id, float | None]]:
        """Return the messages that a subscription holds, in the order of arrival."""
        return [(self.messages[each].id, None) for each in self.field.results(subscription_id)]

    def _begin(self, subscription: Subscription) -> list[Line]:
        subscriber = Subscriber(
            clauses_of(subscription),
            area(subscription),
            subscription.dwell or timedelta(0),
            subscription.cooldown or timedelta(0),
            subscription.leaving is not False,
        )
        return self._lines(self.field.subscribe(subscription.id, subscriber))

    def _end(self, subscription_id: Id) -> None:
        self.field.unsubscribe(subscription_id)

    def _passed(self) -> list[Line]:
        return self._lines(self.field.pass_time(self.clock)) if self.clock else []

    def _deliver(self, message: Message) -> list[Line]:
        lines = self._passed()
        self.messages.append(message)
        number = len(self.messages) - 1
        live = LiveMessage(
            number,
            frozenset(words_of(message)),
            message.place,
            self._end_of(message, message.time or self.clock or EPOCH),
        )
        lines += self._lines(self.field.publish(live))
        return [(*line[:5], message.time) for line in lines]

    def _end_of(self, message: Message, time: datetime) -> datetime:
        return message.end or time + self.settings.lifetime

    def _lines(self, changes: Iterable[Any]) -> list[Line]:
        found = list(changes)
        return [
            (self.messages[number].id, key, sign, None, reason, self.clock)
            for number, key, sign, reason in found
        ]


ORACLES: tuple[type[EngineOracle], ...] = (BooleanOracle, RankedOracle, TopkOracle, MovingOracle)


def oracle_of(settings: Any, space: Space) -> EngineOracle:
    """Return the oracle of a semantics; None is boolean matching."""
    chosen = Boolean() if settings is None else settings
    return next(each for each in ORACLES if isinstance(chosen, each.settings_type))(chosen, space)


# ---- words --------------------------------------------------------------------------------------


def words_in(text: str) -> list[str]:
    """Return the words of a text of letters and digits."""
    return re.findall(r"\w+", text.casefold())


def words_of(message: Message) -> list[str]:
    """Return the words of a message, in order."""
    texts = message.keywords or () if message.text is None else (message.text,)
    return [word for text in texts for word in words_in(text)]


def idf(n: int, n_having: int) -> float:
    """Return the weight of a word that some of n have."""
    return round((math.log((max(n, 1) + 1) / (n_having + 1)) + 1) * 2**16) / 2**16


def clauses_of(subscription: Subscription) -> list[Clause]:
    """Return the alternatives of a condition."""
    if subscription.expression is None:
        words = frozenset(word for each in subscription.keywords for word in words_in(each))
        return [(words, frozenset())]
    found = {each for each in _clauses(subscription.expression, True) if not each[0] & each[1]}
    # What another clause asks for less of is superfluous.
    return [a for a in found if not any(b != a and b[0] <= a[0] and b[1] <= a[1] for b in found)]


def _clauses(expression: Any, is_true: bool) -> list[Clause]:
    """Return the clauses of an expression, or of its negation."""
    nothing: frozenset[str] = frozenset()
    match expression:
        case Keyword(text):
            words = words_in(text)
            if is_true:
                return [(frozenset(words), nothing)]
            return [(nothing, frozenset({word})) for word in words]
        case Not(operand):
            return _clauses(operand, not is_true)
        case And(operands) | Or(operands):
            parts = [_clauses(each, is_true) for each in operands]
            if isinstance(expression, Or) == is_true:
                return [clause for part in parts for clause in part]
            return [
                (nothing.union(*(c[0] for c in chosen)), nothing.union(*(c[1] for c in chosen)))
                for chosen in product(*parts)
            ]
    raise TypeError(f"{expression!r} is not an expression")


# ---- places and times ---------------------------------------------------------------------------


def area(subscription: Subscription) -> Region:
    """Return a subscription's region; a point is a circle of radius 0."""
    region = subscription.region
    return Circle(region.x, region.y, 0.0) if isinstance(region, Point) else region


def microseconds(duration: timedelta) -> int:
    """Return a duration in microseconds."""
    return duration // timedelta(microseconds=1)
