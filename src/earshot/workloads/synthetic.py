"""Seeded synthetic workloads: subscriptions and messages straight into flat arrays.

The shape of the papers' Twitter workload: words follow Zipf's law over a vocabulary of 1.7 million
([VLDBJ15] Table 2), subscriptions have 1-5 keywords drawn from the distribution of the messages'
words, short messages have 6-20 tokens and long ones 100-1000 ([KDD13] section 6, [CIKM15]
section 6), and places gather in cities. The space is the unit square. Word ``w1`` is the most
frequent one and its token id is its rank; token 0 is the one every message carries.

Rows are made in blocks with a random generator each, so the first million subscriptions of a
workload of ten million are the workload of one million. Subscriptions beyond the last one can be
had the same way, for suites that insert some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from earshot.model.arrays import (
    EVERYWHERE_TOKEN,
    ClauseArrays,
    Float64s,
    Int32s,
    Int64s,
    MessageArrays,
    Space,
    box_clauses,
    offsets_of,
)
from earshot.workloads.blocks import (
    Block,
    blocks_of,
    check_rules,
    joined,
    log_uniform,
    named,
    sides_of,
)
from earshot.workloads.expressions import LEAST_KEYWORDS, choices_of, expressed, spoken

BLOCK_ROWS = 1 << 15
MESSAGE_BLOCK_ROWS = 1 << 10
"""Messages have up to a thousand tokens, hence the smaller block."""

HEADLINE_REGION_AREA = 5.0e-4
"""Gives about 700 answers per message at 10 M subscriptions, so about 70 at 1 M.

Found by counting, for 2,000 messages against 1 M subscriptions, the answers that regions scaled by
several factors would give (2e-4: 35, 4e-4: 57, 8e-4: 90), interpolating, and correcting with all
10,000 messages (5.5e-4: 75). Messages in big cities have thousands of answers; the median message
has about a quarter of the mean.
"""

_CITIES, _SUBSCRIPTIONS, _MESSAGES, _RENAMINGS = range(4)  # streams of random numbers of a seed

_OTHER_SEED, _TIMES = 7_919, 1_024  # of the orders of words that change with time

_T = TypeVar("_T")
_Draw: TypeAlias = Callable[[np.random.Generator, int], _T]
"""Draws something for each of n rows."""

LOCAL_CELLS_PER_AXIS = 16
"""Cells of the grid whose background places share their local words."""

LOCAL_RANKS = 1 << 15
"""Ranks of a place's own words that :meth:`Workload.frequencies` follows one by one."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A reproducible set of subscriptions and a stream of messages.

    Areas are fractions of the space. Each city, and each cell of a coarse grid for places outside
    of cities, ranks the vocabulary in an order of its own: what is frequent there is rare
    elsewhere. Messages and subscriptions of a place share its order. Words that drift come from an
    order that is another one for every ``BLOCK_ROWS`` subscriptions; messages have that of the last
    subscriptions.
    """

    name: str
    n_subscriptions: int = 1_000_000
    n_messages: int = 10_000
    seed: int = 1
    n_words: int = 1_700_000  # size of the vocabulary
    zipf_exponent: float = 1.0  # a word of rank r is drawn in proportion to r ** -this
    keywords_min: int = 1  # of a subscription; every number in between is equally likely
    keywords_max: int = 5
    tokens_min: int = 6  # distinct ones of a message
    tokens_max: int = 20
    tokens_mean: float | None = None  # of a binomial number; None: all are equally likely
    region_area_min: float = HEADLINE_REGION_AREA  # of a subscription; log-uniform in between
    region_area_max: float = HEADLINE_REGION_AREA
    message_area: float = 0.0  # 0 for points
    n_cities: int = 1_000  # Gaussian clusters of places; their weights follow Zipf's law
    background_share: float = 0.2  # of places that belong to no city and lie anywhere
    locality: float = 0.0  # share of the drawn words that come from the order of the place
    side_ratio: float = 2.0  # most that a region, or a message's, is longer than it is wide
    drift: float = 0.0  # share of the drawn words that come from the order of their time
    is_expressed: bool = False  # whether keywords make boolean expressions; see expressions.py

    def __post_init__(self) -> None:
        """Reject what cannot be generated."""
        mean = self.tokens_min if self.tokens_mean is None else self.tokens_mean
        rules = {
            "n_subscriptions >= 0": self.n_subscriptions >= 0,
            "n_messages >= 0": self.n_messages >= 0,
            "seed >= 0": self.seed >= 0,
            "1 <= keywords_min <= keywords_max": 1 <= self.keywords_min <= self.keywords_max,
            "1 <= tokens_min <= tokens_max": 1 <= self.tokens_min <= self.tokens_max,
            "tokens_min <= tokens_mean <= tokens_max": self.tokens_min <= mean <= self.tokens_max,
            # Distinct words are drawn by rejection, which needs some room.
            "n_words >= 2 * max(keywords_max, tokens_max)": self.n_words
            >= 2 * max(self.keywords_max, self.tokens_max),
            "zipf_exponent >= 0": self.zipf_exponent >= 0,
            "0 < region_area_min <= region_area_max <= 1": (
                0 < self.region_area_min <= self.region_area_max <= 1
            ),
            "0 <= message_area <= 1": 0 <= self.message_area <= 1,
            "n_cities >= 1": self.n_cities >= 1,
            "0 <= background_share <= 1": 0 <= self.background_share <= 1,
            "0 <= locality <= 1": 0 <= self.locality <= 1,
            "1 <= side_ratio < inf": 1 <= self.side_ratio < np.inf,
            "0 <= drift <= 1": 0 <= self.drift <= 1,
            f"keywords_min >= {LEAST_KEYWORDS} for expressions": (
                not self.is_expressed or self.keywords_min >= LEAST_KEYWORDS
            ),
        }
        check_rules(self.name, rules)

    @property
    def space(self) -> Space:
        """Always planar: the unit square."""
        return "planar"

    @property
    def n_tokens(self) -> int:
        """Size of the token space, for :meth:`earshot.indexes.contract.Index.build`."""
        return self.n_words + 1

    def scaled(
        self,
        n_subscriptions: int | None = None,
        n_messages: int | None = None,
        seed: int | None = None,
    ) -> Workload:
        """Return the same workload with other numbers of rows, or another seed."""
        given = {"n_subscriptions": n_subscriptions, "n_messages": n_messages, "seed": seed}
        changed: dict[str, Any] = {name: n for name, n in given.items() if n is not None}
        return replace(self, **changed)

    def subscriptions(self, start: int = 0, stop: int | None = None) -> ClauseArrays:
        """Return subscriptions ``start:stop``; their slots are ``start``, ``start + 1``, ….

        ``stop`` defaults to ``n_subscriptions`` and may lie beyond it.
        """
        stop = self.n_subscriptions if stop is None else stop
        blocks = blocks_of(self.seed, _SUBSCRIPTIONS, BLOCK_ROWS, start, stop)
        rows = self._rows(
            blocks,
            BLOCK_ROWS,
            lambda random, n: random.integers(self.keywords_min, self.keywords_max + 1, n),
            lambda random, n: log_uniform(random, self.region_area_min, self.region_area_max, n),
            first_time=start // BLOCK_ROWS,
        )
        clauses = box_clauses(*rows, np.arange(start, stop, dtype=np.int32))
        return expressed(clauses, self.seed) if self.is_expressed else clauses

    def messages(self, start: int = 0, stop: int | None = None) -> MessageArrays:
        """Return messages ``start:stop``; ``stop`` defaults to ``n_messages``."""
        stop = self.n_messages if stop is None else stop
        blocks = blocks_of(self.seed, _MESSAGES, MESSAGE_BLOCK_ROWS, start, stop)
        offsets, words, boxes = self._rows(
            blocks,
            MESSAGE_BLOCK_ROWS,
            self._message_lengths,
            lambda _, n: np.full(n, self.message_area),
        )
        # Every message carries the token of clauses without keywords.
        tokens = np.insert(words, offsets[:-1], np.int32(EVERYWHERE_TOKEN))
        return MessageArrays(offsets + np.arange(len(offsets)), tokens, boxes)

    def _rows(
        self, blocks: Iterable[Block], n: int, lengths_of: _Draw[Int64s],
        areas_of: _Draw[Float64s], first_time: int | None = None,
    ) -> tuple[Int64s, Int32s, Float64s]:  # fmt: skip
        """Return offsets, words and boxes of the wanted rows of blocks of n rows.

        Each block has a time of its own from the first on; without one, all have the last.
        """
        lengths, words, boxes = [], [], []
        last = max(self.n_subscriptions - 1, 0) // BLOCK_ROWS
        for number, (random, _, wanted) in enumerate(blocks):
            time = last if first_time is None else first_time + number
            drawn = lengths_of(random, n)
            # Words that are local need the place first.
            if self.locality > 0:
                centres, places = self._places(random, n)
                drawn_words = self._distinct_words(random, drawn, places, time)
            else:
                drawn_words = self._distinct_words(random, drawn, None, time)
                centres, _ = self._places(random, n)
            drawn_boxes = _boxes_around(random, centres, areas_of(random, n), self.side_ratio)
            offsets = offsets_of(drawn)
            lengths.append(drawn[wanted])
            words.append(drawn_words[offsets[wanted.start] : offsets[wanted.stop]])
            boxes.append(drawn_boxes[wanted])
        return (
            offsets_of(joined(lengths, np.int64)),
            joined(words, np.int32),
            joined(boxes, np.float64).reshape(-1, 4),
        )

    def frequencies(self) -> Int64s:
        """Return how often each token is expected in 10**12 drawn words.

        With local words this is the mean over all places. The least frequent words of each place,
        those beyond its first ``LOCAL_RANKS``, are taken as spread evenly.
        """
        shares = np.diff(_cumulative_shares(self.n_words, self.zipf_exponent), prepend=0.0)
        if self.locality > 0:
            shares = (1 - self.locality) * shares + self.locality * self._local_shares(shares)
        return np.concatenate([[10**12], np.rint(shares * 1e12)]).astype(np.int64)

    def _local_shares(self, shares: Float64s) -> Float64s:
        """Return how often each word is drawn as a local one, over all places."""
        cities = _cities(self.seed, self.n_cities)
        n_cells = LOCAL_CELLS_PER_AXIS**2
        of_cities = (1 - self.background_share) * np.diff(cities.cumulative_shares, prepend=0.0)
        of_cells = np.full(n_cells, self.background_share / n_cells)
        renamings = _renamings(self.seed, self.n_cities + n_cells, self.n_words)
        ranks = np.arange(min(LOCAL_RANKS, self.n_words))
        frequent = shares[: len(ranks)]
        local = np.full(self.n_words, (1.0 - frequent.sum()) / self.n_words)
        for place, weight in enumerate(np.concatenate([of_cities, of_cells])):
            # Each word once per place, so that the sum may be made in place.
            local[renamings.words(ranks, place) - 1] += weight * frequent
        return local

    def _message_lengths(self, random: np.random.Generator, n: int) -> Int64s:
        room = self.tokens_max - self.tokens_min
        if self.tokens_mean is None or room == 0:
            return random.integers(self.tokens_min, self.tokens_max + 1, n)
        share = (self.tokens_mean - self.tokens_min) / room
        return self.tokens_min + random.binomial(room, share, n)

    def _distinct_words(
        self, random: np.random.Generator, lengths: Int64s, places: Int64s | None, time: int
    ) -> Int32s:
        """Draw ``lengths[i]`` distinct words for each row i; each row is in token order."""
        rows = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
        # A row and its word in one integer: sorting brings repeats together.
        keys = (rows << 32) + self._words(random, rows, places, time)
        keys.sort()
        while len(repeats := 1 + np.flatnonzero(keys[1:] == keys[:-1])):
            rows = keys[repeats] >> 32
            keys[repeats] = (rows << 32) + self._words(random, rows, places, time)
            keys.sort()
        return (keys & 0xFFFFFFFF).astype(np.int32)

    def _words(
        self, random: np.random.Generator, rows: Int64s, places: Int64s | None, time: int
    ) -> Int64s:
        """Draw a Zipf word for each element of ``rows``; ``places`` are those of all rows."""
        shares = _cumulative_shares(self.n_words, self.zipf_exponent)
        ranks = np.searchsorted(shares, random.random(len(rows)), side="right")
        words = 1 + ranks
        if places is not None:
            local = np.flatnonzero(random.random(len(rows)) < self.locality)
            n_places = self.n_cities + LOCAL_CELLS_PER_AXIS**2
            renamings = _renamings(self.seed, n_places, self.n_words)
            words[local] = renamings.words(ranks[local], places[rows[local]])
        if self.drift > 0:
            timely = np.flatnonzero(random.random(len(rows)) < self.drift)
            renamings = _renamings(self.seed + _OTHER_SEED, _TIMES, self.n_words)
            words[timely] = renamings.words(ranks[timely], time % _TIMES)
        return words

    def _places(self, random: np.random.Generator, n: int) -> tuple[Float64s, Int64s]:
        """Draw places; return their centres, and the city of each.

        With local words, places outside of cities have the number n_cities + cell of the grid.
        """
        cities = _cities(self.seed, self.n_cities)
        chosen = np.searchsorted(cities.cumulative_shares, random.random(n), side="right")
        centres = random.normal(size=(n, 2)) * cities.spreads[chosen, None] + cities.centres[chosen]
        # The rim of a city that lies outside of the unit square is folded back into it.
        centres = np.abs(centres)
        centres = 1.0 - np.abs(1.0 - centres)
        background = random.random(n) < self.background_share
        centres[background] = random.random((int(background.sum()), 2))
        if self.locality > 0:
            cells = (centres[background] * LOCAL_CELLS_PER_AXIS).astype(np.int64)
            chosen[background] = self.n_cities + cells @ [LOCAL_CELLS_PER_AXIS, 1]
        return centres, chosen


class _Renamings(NamedTuple):
    """Of each place, which word has which rank: ``rank * factor + shift`` modulo the vocabulary.

    That is a permutation because the factors have no divisor in common with the vocabulary's size.
    """

    factors: Int64s  # (n_places,)
    shifts: Int64s  # (n_places,)
    n_words: int

    def words(self, ranks: Int64s, places: Int64s | int) -> Int64s:
        """Return the words of the given ranks, 0 being the most frequent, at the given places."""
        return 1 + (ranks * self.factors[places] + self.shifts[places]) % self.n_words


@lru_cache(maxsize=4)
def _renamings(seed: int, n_places: int, n_words: int) -> _Renamings:
    random = np.random.default_rng([seed, _RENAMINGS])
    factors = random.integers(1, n_words, n_places)
    while len(wrong := np.flatnonzero(np.gcd(factors, n_words) > 1)):
        factors[wrong] = random.integers(1, n_words, len(wrong))
    return _Renamings(factors, random.integers(0, n_words, n_places), n_words)


class _Cities(NamedTuple):
    centres: Float64s  # (n_cities, 2)
    spreads: Float64s  # (n_cities,) standard deviation on either axis
    cumulative_shares: Float64s  # (n_cities,)


@lru_cache(maxsize=4)
def _cities(seed: int, n_cities: int) -> _Cities:
    random = np.random.default_rng([seed, _CITIES])
    return _Cities(
        random.random((n_cities, 2)),
        # Spreads fall with the root of the shares, so that all cities are equally dense: about 75
        # times the mean of the space at their centres.
        0.015 / np.sqrt(np.arange(1, n_cities + 1, dtype=np.float64)),
        _cumulative_shares(n_cities, 1.0),
    )


@lru_cache(maxsize=4)
def _cumulative_shares(n: int, exponent: float) -> Float64s:
    """Return the cumulative probabilities of ranks 1 to n under Zipf's law."""
    shares = np.cumsum(np.arange(1, n + 1, dtype=np.float64) ** -exponent)
    shares /= shares[-1]
    shares[-1] = 1.0  # so that no draw below 1 falls beyond the last rank
    return shares


def _boxes_around(
    random: np.random.Generator, centres: Float64s, areas: Float64s, side_ratio: float
) -> Float64s:
    """Return boxes of the given areas, up to ``side_ratio`` times as wide as high, or as high."""
    most = 0.5 * np.log2(side_ratio)
    stretches = np.exp2(random.uniform(-most, most, len(areas)))
    sides = np.sqrt(areas)
    halves = 0.5 * np.stack([sides * stretches, sides / stretches], axis=1)
    return np.concatenate([centres - halves, centres + halves], axis=1)


_HEADLINE = Workload(name="headline", tokens_mean=9.0)
_LONG: dict[str, Any] = {"tokens_min": 100, "tokens_max": 1_000}
REGION_AREAS = (1e-8, 1e-6, 1e-4, 1e-2, 1e-1)

RANGE_MESSAGE_AREA = 1e-4
"""Area of the region of a range message: in the unit square, a hundredth of its side."""

TWEETS_REGION_AREA_MAX = 1.4e-3
TWEETS_MESSAGE_AREA = 1.5e-4
"""These two make the answers per message of [TKDE15] section 7, for short messages.

Wanted at 10 M subscriptions are 142 (short point), 431 (short range), 243 (long point) and 912
(long range). Measured, ten times what 1 M subscriptions gave 10,000 short and 2,000 long messages:
142, 425, 1,242 and 3,703; the medians are 40, 100, 545 and 1,345. Areas cannot mend the long ones:
words are drawn independently, and forty times as many of them meet nine times as many
subscriptions, whatever the regions; the papers' long messages, tweets in a row, met only twice as
many. ``usa_*`` gives 2.3, 35, 100 and 1,553; the papers do not tell these.
"""

USA_MESSAGE_AREA = 3e-3

_TWEETS = Workload(
    name="tweets", locality=0.5, region_area_min=1e-7, region_area_max=TWEETS_REGION_AREA_MAX
)
_USA = Workload(
    name="usa", n_words=10_000, zipf_exponent=0.0, n_cities=5_000, side_ratio=16.0,
    region_area_min=1e-7, region_area_max=1e-3,
)  # fmt: skip


_VLDBJ15 = {"tokens_min": 3, "region_area_min": 1e-4, "region_area_max": 1e-2}
_AP_KINDS: dict[str, dict[str, Any]] = {
    "tweets": {"tokens_mean": 9.0, "tokens_max": 30, "locality": 0.5},
    "gn": {"n_words": 208_000, "tokens_mean": 7.0, "tokens_max": 14, "locality": 0.9},
    "cars": {"n_words": 81_000, "tokens_mean": 30.0, "tokens_max": 60, "n_cities": 20,
             "background_share": 0.0},
    "ais": {"n_words": 81_000, "tokens_mean": 50.0, "tokens_max": 100, "n_cities": 200},
}  # fmt: skip
"""The data sets of [VLDBJ15] Table 2: vocabulary, words per message, words that are local.

Half of the words of tweets are local, as in ``tweets_*``;
names of places (gn) are nearly all local; the tags of cars and ships (ais) were given at random.
"""


def _four_groups(workload: Workload, message_area: float) -> Iterator[Workload]:
    """Yield the groups of [KDD13] section 6: short and long messages, points and ranges."""
    for place, area in (("point", 0.0), ("range", message_area)):
        for length, tokens in (("short", {}), ("long", _LONG)):
            yield replace(
                workload, name=f"{workload.name}_{length}_{place}", message_area=area, **tokens
            )


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        # Mean 9 tokens is Twitter's ([VLDBJ15] Table 2); the other short groups are [KDD13]'s.
        _HEADLINE,
        Workload(name="short_point"),
        Workload(name="short_range", message_area=RANGE_MESSAGE_AREA),
        Workload(name="long_point", **_LONG),
        Workload(name="long_range", message_area=RANGE_MESSAGE_AREA, **_LONG),
        *(
            replace(_HEADLINE, name=f"region_{name}", region_area_min=low, region_area_max=high)
            for name, low, high in (
                *((f"{area:.0e}", area, area) for area in REGION_AREAS),
                ("mixed", REGION_AREAS[0], REGION_AREAS[-1]),
            )
        ),
        *(
            replace(_HEADLINE, name=f"keywords_{n}", keywords_min=n, keywords_max=n)
            for n in range(1, 6)
        ),
        *_four_groups(_TWEETS, TWEETS_MESSAGE_AREA),
        *_four_groups(_USA, USA_MESSAGE_AREA),
        *(Workload(name=f"ap_{name}", **_VLDBJ15 | told) for name, told in _AP_KINDS.items()),
        *(
            Workload(name=f"ap_tweets_{name}", **_VLDBJ15 | _AP_KINDS["tweets"] | told)
            for name, told in (
                ("drifting", {"drift": 0.5}),
                ("expressed", {"is_expressed": True, "keywords_min": 3, "keywords_max": 7}),
            )
        ),
    )
}
"""Workloads of the papers by name, at 1 M subscriptions; see :meth:`Workload.scaled`.

``ap_*`` have the shape of the data sets of [VLDBJ15]. ``tweets_*`` and ``usa_*`` have the shape of
the two data sets of [KDD13] and [TKDE15]; the four groups of either are messages to the same
subscriptions. ``tweets_*``: Zipf words of which half are local, regions of four orders of
magnitude. ``usa_*``: uniform words, regions of random width and height around places that gather in
many small towns. The papers do not tell the vocabulary of DBLP's 1.5 million titles, and call its
words uniform. By Heaps' law, 30 * n ** 0.5, twelve million words are about 100,000 different ones,
and by Zipf's law 10,000 of them occur a hundred times or more. These are the vocabulary here: rarer
words would hardly ever meet.
"""


def find_workload(name: str) -> Workload:
    """Return the workload of that name."""
    return named("workload", name, WORKLOADS)


def as_tables(workload: Workload) -> tuple[pa.Table, pa.Table]:
    """Return :func:`subscription_table` and :func:`message_table` of all rows."""
    return subscription_table(workload), message_table(workload)


def subscription_table(workload: Workload, start: int = 0, stop: int | None = None) -> pa.Table:
    """Return subscriptions ``start:stop`` as an Arrow table in the columns that files have.

    These are ``id, keywords, min_x, min_y, max_x, max_y``. Ids are 0, 1, 2, …; token 7 is the word
    ``w7``.
    """
    if workload.is_expressed:
        return _expression_table(workload, start, stop)
    clauses = workload.subscriptions(start, stop)
    ids = pa.array(clauses.subscriptions, pa.int64())
    words = _word_lists(clauses.token_offsets, clauses.token_ids)
    return pa.table({"id": ids, "keywords": words, **sides_of(clauses.boxes)})


def _expression_table(workload: Workload, start: int, stop: int | None) -> pa.Table:
    """Return subscriptions with boolean expressions in the place of keywords."""
    clauses = replace(workload, is_expressed=False).subscriptions(start, stop)
    lengths = np.diff(clauses.token_offsets)
    firsts, is_or = choices_of(workload.seed, clauses.subscriptions, lengths)
    words = _word_lists(clauses.token_offsets, clauses.token_ids).to_pylist()
    said = [spoken(*each) for each in zip(words, firsts.tolist(), is_or, strict=True)]
    ids = pa.array(clauses.subscriptions, pa.int64())
    return pa.table({"id": ids, "expression": said, **sides_of(clauses.boxes)})


def message_table(workload: Workload) -> pa.Table:
    """Return the messages as an Arrow table in the columns that files have.

    These are ``id`` (0, 1, 2, …), the words as a sentence in ``text``, and ``x, y`` when messages
    are points, else the four sides of their boxes.
    """
    batch = workload.messages()
    rows = np.arange(len(batch.boxes) + 1)
    spoken = batch.token_ids != EVERYWHERE_TOKEN
    words = _word_lists(batch.token_offsets - rows, batch.token_ids[spoken])
    places = sides_of(batch.boxes)
    if workload.message_area == 0:
        places = {"x": places["min_x"], "y": places["min_y"]}
    return pa.table({"id": rows[:-1], "text": pc.binary_join(words, " "), **places})


def _word_lists(offsets: Int64s, token_ids: Int32s) -> pa.Array:
    words = pc.binary_join_element_wise("w", pa.array(token_ids).cast(pa.string()), "")
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), words)
