"""Workloads for top-k over a window, in the shapes of the data sets of [PVLDB16] Table 1.

Words and places of messages are those of :mod:`earshot.workloads.synthetic`. Subscriptions are
drawn from messages of the same stream, far behind all that are ever published: the place of the
message and some of its words ([PVLDB16] section 7.1). Rows are made in blocks with a random
generator each, so any piece of a workload is the same whatever was asked for before.

In time, messages come more often by day than by night. Within a block they are spread at random
over the time that as many take on average, as a Poisson process is once its number is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from earshot.errors import InvalidParameter
from earshot.model.arrays import (
    EVERYWHERE_TOKEN,
    CountedMessages,
    Float64s,
    Int32s,
    Int64s,
    offsets_of,
)
from earshot.workloads.blocks import (
    Block,
    blocks_of,
    check_rules,
    joined,
    named,
    some_of_each,
)
from earshot.workloads.synthetic import Workload

BLOCK_ROWS = 1 << 12

FIRST_DRAWN = 1 << 30
"""The message that the first subscription is drawn from; those before are for publishing."""

MAX_DISTANCE = math.sqrt(2.0)
"""Where a place counts nothing: the diagonal of the unit square, in which all places are."""

DAY_US = 24 * 60 * 60 * 1_000_000
DAILY_SWING = 0.8
"""The busiest moment of a day has (1 + this) times the mean rate, the quietest (1 - this)."""

_SUBSCRIPTIONS, _TIMES = 10, 11  # streams of random numbers, beside those of the synthetic module


class SubscriptionRows(NamedTuple):
    """Subscriptions, in the order of the arguments of ``Monitor.subscribe``."""

    places: Float64s  # (n, 3) Cartesian
    token_offsets: Int64s  # (n + 1,)
    tokens: Int32s  # distinct within a subscription
    alphas: Float64s  # (n,)
    ks: Int32s  # (n,)


@dataclass(frozen=True, kw_only=True)
class TopkWorkload:
    """A reproducible stream of messages, and subscriptions drawn from it.

    Fields that :class:`Workload` has too mean the same. Keywords are words of the message that
    gives the place, or drawn by Zipf's law, whatever that message says.
    """

    name: str
    n_words: int
    tokens_min: int
    tokens_max: int
    tokens_mean: float
    seed: int = 1
    keywords_min: int = 1
    keywords_max: int = 5
    keywords_from: Literal["messages", "zipf"] = "messages"
    k: int = 20  # messages that a subscription wants
    messages_per_day: float = 100_000.0  # on average

    def __post_init__(self) -> None:
        """Reject what cannot be generated."""
        rules = {
            # So that a subscription has as many keywords as were drawn for it.
            "keywords_max <= tokens_min": self.keywords_max <= self.tokens_min,
            "keywords_from 'messages' or 'zipf'": self.keywords_from in ("messages", "zipf"),
            "k >= 1": self.k >= 1,
            "messages_per_day > 0": 0 < self.messages_per_day < math.inf,
        }
        check_rules(self.name, rules)
        _ = self._stream  # which has rules of its own

    def frequencies(self) -> Int64s:
        """Return how often each token is expected, for ``idf_weights``."""
        return self._stream.frequencies()

    def duration_us(self, n_messages: int) -> int:
        """Return how long so many messages take on average."""
        return round(n_messages / self.messages_per_day * DAY_US)

    def subscriptions(self, start: int, stop: int) -> SubscriptionRows:
        """Return subscriptions ``start:stop``."""
        blocks = blocks_of(self.seed, _SUBSCRIPTIONS, BLOCK_ROWS, start, stop)
        parts = [self._rows(block) for block in blocks]
        lengths, tokens, places, alphas = (
            joined([part[i] for part in parts], dtype)
            for i, dtype in enumerate((np.int64, np.int32, np.float64, np.float64))
        )
        ks = np.full(stop - start, self.k, np.int32)
        return SubscriptionRows(places.reshape(-1, 3), offsets_of(lengths), tokens, alphas, ks)

    def messages(self, start: int, stop: int) -> CountedMessages:
        """Return messages ``start:stop``."""
        if stop > FIRST_DRAWN:
            raise InvalidParameter(
                f"messages {start}:{stop} asked for; from {FIRST_DRAWN} on they are subscriptions"
            )
        offsets, tokens, places = self._spoken(start, stop)
        counts = np.ones(len(tokens), np.uint16)
        return CountedMessages(offsets, tokens, counts, places, self._times(start, stop))

    @cached_property
    def _stream(self) -> Workload:
        own = {field.name for field in fields(self)}
        shared = [each.name for each in fields(Workload) if each.name in own]
        return Workload(**{name: getattr(self, name) for name in shared})

    def _spoken(self, start: int, stop: int) -> tuple[Int64s, Int32s, Float64s]:
        """Return offsets, words and places of messages, without the token that all carry."""
        rows = self._stream.messages(start, stop)
        n = stop - start
        places = np.zeros((n, 3))
        places[:, :2] = rows.boxes[:, :2]  # messages are points
        tokens = rows.token_ids[rows.token_ids != EVERYWHERE_TOKEN]
        return rows.token_offsets - np.arange(n + 1), tokens, places

    def _rows(self, block: Block) -> tuple[Int64s, Int32s, Float64s, Float64s]:
        """Return numbers of keywords, keywords, places and alphas of the wanted rows."""
        random, first, rows = block
        alphas = random.random(BLOCK_ROWS)
        offsets, words, places = self._spoken(FIRST_DRAWN + first, FIRST_DRAWN + first + BLOCK_ROWS)
        if self.keywords_from == "zipf":
            drawn = self._stream.subscriptions(first, first + BLOCK_ROWS)
            offsets, tokens = drawn.token_offsets, drawn.token_ids
            lengths = np.diff(offsets)
        else:
            lengths = random.integers(self.keywords_min, self.keywords_max + 1, BLOCK_ROWS)
            tokens = some_of_each(random, offsets, words, lengths)
            offsets = offsets_of(lengths)
        tokens = tokens[offsets[rows.start] : offsets[rows.stop]]
        return lengths[rows], tokens, places[rows], alphas[rows]

    def _times(self, start: int, stop: int) -> Int64s:
        parts = []
        for random, first, rows in blocks_of(self.seed, _TIMES, BLOCK_ROWS, start, stop):
            at = np.sort(random.random(BLOCK_ROWS)) * BLOCK_ROWS + first
            parts.append(at[rows])
        return _by_day(joined(parts, np.float64) / self.messages_per_day)


def _by_day(days: Float64s) -> Int64s:
    """Return when, in microseconds, a share of the messages has come, given in mean days of them.

    The rate is ``1 - DAILY_SWING * cos(2 pi t)`` of its mean, so midnight is the quietest.
    """
    moments = np.linspace(0.0, 1.0, 24 * 60 + 1)
    shares = moments - DAILY_SWING / (2 * np.pi) * np.sin(2 * np.pi * moments)
    whole = np.floor(days)
    times = whole + np.interp(days - whole, shares, moments)
    return np.rint(times * DAY_US).astype(np.int64)


TOPK_WORKLOADS: dict[str, TopkWorkload] = {
    workload.name: workload
    for workload in (
        TopkWorkload(name="tweets", n_words=1_700_000, tokens_min=6, tokens_max=20, tokens_mean=9),
        TopkWorkload(name="gn", n_words=208_000, tokens_min=5, tokens_max=15, tokens_mean=7),
        TopkWorkload(name="yelp", n_words=85_000, tokens_min=10, tokens_max=150, tokens_mean=37),
    )
}
"""By the names of the data sets; sizes of vocabularies and mean lengths are those of Table 1."""


def find_topk_workload(name: str) -> TopkWorkload:
    """Return the workload of that name."""
    return named("workload", name, TOPK_WORKLOADS)
