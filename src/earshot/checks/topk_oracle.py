"""The truth of top-k over a window: what every monitor must answer, in plain Python.

Nothing here is shared with what it judges, except the arrays that go in. The window is a list of
messages, and after each step the result of every subscription is sorted out of it anew;
the changes of a step are the difference from what the results were before.
docs/semantics/topk.md says what a step, a score and the order of messages are.

Weights, sums and distances are the floating-point operations of the definition, one by one, so that
scores can be compared bit for bit: there is no other way to agree about messages of equal scores.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from earshot.model.arrays import CountedMessages, Float64s, Int32s, Int64s

Line: TypeAlias = tuple[int, str, str, int, int, float]
"""A change: row of the call, ``+`` or ``-``, reason, slot, sequence of the message, score."""


class Scored(NamedTuple):
    """A message of a result. A greater one is better: by score, then the more recent one."""

    score: float
    time: int  # 0 in a count window, where arrival alone decides
    sequence: int


@dataclass
class _Subscription:
    tokens: list[int]
    place: list[float]
    alpha: float
    k: int
    vector: dict[int, float]
    # By sequence. A score depends on places and weights alone; all are forgotten when those change.
    scored: dict[int, Scored | None] = field(default_factory=dict)


@dataclass
class _Message:
    sequence: int
    time: int
    counts: dict[int, int]
    place: list[float]
    vector: dict[int, float]


class OracleMonitor:
    """Subscriptions by slot, and the messages of the window, compared with each other at each step.

    The window is of so many messages or of so much time. From ``max_distance`` on a place scores 0.
    """

    def __init__(
        self, *, window: int | None = None, duration_us: int | None = None, max_distance: float
    ) -> None:
        if (window is None) == (duration_us is None):
            raise ValueError(
                f"window is {window} and duration_us is {duration_us}; expected exactly one of them"
            )
        self.window = window
        self.duration_us = duration_us
        self.max_distance = max_distance
        self.clock_us: int | None = None
        self.n_slots = 0
        self.next_sequence = 0
        self._weights: list[float] = []
        self._later_weight = 1.0
        self._subscriptions: dict[int, _Subscription] = {}  # by slot, ascending
        self.messages: list[_Message] = []  # those in the window, by arrival
        self._results: dict[int, list[Scored]] = {}

    @property
    def n_subscriptions(self) -> int:
        """Number of live subscriptions."""
        return len(self._subscriptions)

    @property
    def slots(self) -> list[int]:
        """Slots of the live subscriptions, ascending."""
        return list(self._subscriptions)

    @property
    def n_messages(self) -> int:
        """Number of messages in the window."""
        return len(self.messages)

    @property
    def first_sequence(self) -> int:
        """Least sequence in the window; that of the next message where it is empty."""
        return min((each.sequence for each in self.messages), default=self.next_sequence)

    # ---- subscriptions

    def subscribe(
        self,
        places: Float64s,
        token_offsets: Int64s,
        tokens: Int32s,
        alphas: Float64s,
        ks: Int32s,
    ) -> list[Line]:
        """Add subscriptions, to the slots from ``n_slots`` on; one step each."""
        steps: list[Line] = []
        ends, flat = token_offsets.tolist(), tokens.tolist()
        settings = zip(places.tolist(), alphas.tolist(), ks.tolist(), strict=True)
        for row, (place, alpha, k) in enumerate(settings):
            words = flat[ends[row] : ends[row + 1]]
            vector = self._vector(dict.fromkeys(words, 1))
            self._subscriptions[self.n_slots] = _Subscription(words, place, alpha, k, vector)
            self._results[self.n_slots] = []
            self.n_slots += 1
            self._step(steps, row, came="subscribe")
        return steps

    def unsubscribe(self, slots: Int32s) -> None:
        """Remove subscriptions; their slots stay empty."""
        for slot in slots.tolist():
            del self._subscriptions[slot]
            del self._results[slot]

    def move(self, slots: Int32s, places: Float64s) -> list[Line]:
        """Give subscriptions other places, one step each."""
        steps: list[Line] = []
        for row, (slot, place) in enumerate(zip(slots.tolist(), places.tolist(), strict=True)):
            subscription = self._subscriptions[slot]
            subscription.place = place
            subscription.scored.clear()
            self._step(steps, row, came="move", went="move")
        return steps

    def renumber(self, old_slots: Int32s) -> None:
        """Follow a monitor that renumbered its slots: the new slots were these, in this order."""
        old = old_slots.tolist()
        if old != self.slots:
            raise ValueError(f"slots {old} were kept; expected the live ones, {self.slots}")
        self._subscriptions = dict(enumerate(self._subscriptions.values()))
        self._results = {new: self._results[slot] for new, slot in enumerate(old)}
        self.n_slots = len(old)

    # ---- messages and time

    def publish(self, messages: CountedMessages) -> list[Line]:
        """Take messages, one after the other: what is due expires, then the message arrives."""
        steps: list[Line] = []
        ends, tokens = messages.token_offsets.tolist(), messages.tokens.tolist()
        counts = messages.counts.tolist()
        times = [0] * len(messages.times) if self.window is not None else messages.times.tolist()
        for row, (place, time) in enumerate(zip(messages.places.tolist(), times, strict=True)):
            start, stop = ends[row], ends[row + 1]
            words = dict(zip(tokens[start:stop], counts[start:stop], strict=True))
            if self.window is not None:
                if len(self.messages) == self.window:
                    self._expire(steps, row, self.messages[0])
            else:
                self._advance(steps, row, time)
                if self._is_over(time):
                    raise ValueError(
                        f"message {row} has time {time}, which is outside the window at clock "
                        f"{self.clock_us}; expected late messages to be dropped before"
                    )
            message = _Message(self.next_sequence, time, words, place, self._vector(words))
            self.messages.append(message)
            self.next_sequence += 1
            self._step(steps, row, came="match", went="displaced")
        return steps

    def advance(self, clock_us: int) -> list[Line]:
        """Move the clock; it never goes back, and a count window does not look at it."""
        steps: list[Line] = []
        if self.duration_us is not None:
            self._advance(steps, 0, clock_us)
        return steps

    def _advance(self, steps: list[Line], row: int, time: int) -> None:
        self.clock_us = time if self.clock_us is None else max(self.clock_us, time)
        due = [message for message in self.messages if self._is_over(message.time)]
        for message in sorted(due, key=lambda each: (each.time, each.sequence)):
            self._expire(steps, row, message)

    def _is_over(self, time: int) -> bool:
        assert self.clock_us is not None
        assert self.duration_us is not None
        return time <= self.clock_us - self.duration_us

    def _expire(self, steps: list[Line], row: int, message: _Message) -> None:
        self.messages.remove(message)
        self._step(steps, row, came="refill", went="expired")

    # ---- scores and results

    def reweigh(self, weights: Float64s, later_weight: float) -> list[Line]:
        """Give words other weights, by token; those beyond the array have the later weight."""
        self._weights = weights.tolist()
        self._later_weight = later_weight
        for message in self.messages:
            message.vector = self._vector(message.counts)
        for subscription in self._subscriptions.values():
            subscription.vector = self._vector(dict.fromkeys(subscription.tokens, 1))
            subscription.scored.clear()
        # One step per subscription is one step for all: its changes are in the slots' order.
        steps: list[Line] = []
        self._step(steps, 0, came="reweigh", went="reweigh")
        return steps

    def results(self, slots: Iterable[int]) -> list[list[tuple[int, float]]]:
        """Return the results of live subscriptions: sequences and scores, best first."""
        return [
            [(each.sequence, each.score) for each in self._results[int(slot)]] for slot in slots
        ]

    def _step(self, steps: list[Line], row: int, *, came: str, went: str = "") -> None:
        """Find all results anew and note in what they differ from those before."""
        for slot, subscription in self._subscriptions.items():
            before, after = self._results[slot], self._result(subscription)
            for sign, reason, scored in (
                ("-", went, _without(before, after)),
                ("+", came, _without(after, before)),
            ):
                steps += [(row, sign, reason, slot, each.sequence, each.score) for each in scored]
            self._results[slot] = after

    def _result(self, subscription: _Subscription) -> list[Scored]:
        known, relevant = subscription.scored, []
        for message in self.messages:
            if message.sequence not in known:
                known[message.sequence] = self._scored(subscription, message)
            scored = known[message.sequence]
            if scored is not None:
                relevant.append(scored)
        return sorted(relevant, reverse=True)[: subscription.k]

    def _scored(self, subscription: _Subscription, message: _Message) -> Scored | None:
        """Return a message with its score; ``None`` where it shares no word."""
        shared = [token for token in subscription.vector if token in message.vector]
        if not shared:
            return None
        text = 0.0
        for token in shared:
            text += subscription.vector[token] * message.vector[token]
        dx, dy, dz = (a - b for a, b in zip(subscription.place, message.place, strict=True))
        distance = math.sqrt(dx * dx + dy * dy + dz * dz)
        place = max(0.0, 1.0 - distance / self.max_distance)
        score = subscription.alpha * place + (1.0 - subscription.alpha) * text
        return Scored(score, message.time, message.sequence)

    def _vector(self, counts: dict[int, int]) -> dict[int, float]:
        """Return the weights of a unit vector, rounded to 32 bits, with the rarest word first."""
        rarest_first = sorted(counts, key=lambda token: (-self._weight(token), token))
        raw = {token: counts[token] * self._weight(token) for token in rarest_first}
        square = 0.0
        for weight in raw.values():
            square += weight * weight
        norm = math.sqrt(square)
        return {token: rounded_to_32_bits(weight / norm) for token, weight in raw.items()}

    def _weight(self, token: int) -> float:
        return self._weights[token] if token < len(self._weights) else self._later_weight


def rounded_to_32_bits(number: float) -> float:
    """Return the nearest 32-bit float."""
    nearest: float = struct.unpack("f", struct.pack("f", number))[0]
    return nearest


def _without(scored: list[Scored], others: list[Scored]) -> list[Scored]:
    """Return the messages that are not among others, whatever their scores."""
    sequences = {other.sequence for other in others}
    return [each for each in scored if each.sequence not in sequences]
