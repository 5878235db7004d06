"""Seeded movement on a road network: subscribers that drive, and messages beside the roads.

In the manner of Brinkhoff's generator, which [VLDBJ15] section 5.2 uses: objects follow routes
between junctions, at a speed that depends on the class of the road and of the object. At every
timestamp, a share of them (the *mobility*) reports a position, and so many messages arrive, each of
which lives for a while.

A route is greedy: at each junction an object takes the road whose end is nearest to where it wants
to go, and not the one it came by unless there is no other; once there, or after many junctions, it
wants to go elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from earshot.errors import InvalidFile, InvalidParameter
from earshot.model.arrays import Float64s, Int32s, Int64s, offsets_of
from earshot.model.schemas import TIME

START = datetime(2026, 5, 1, tzinfo=UTC)
_START_US = int(START.timestamp() * 1_000_000)
_N_CLASSES = 3
_CLASS_SPEEDS = np.array([0.5, 1.0, 2.0])
"""Speeds of roads and of objects by class, in multiples of the medium one."""
_FAST_ROADS = ("motorway", "trunk", "primary")
_PATIENCE = 60
"""Junctions after which an object wants to go elsewhere."""


class Network(NamedTuple):
    """Junctions and roads; a road goes both ways."""

    places: Float64s  # (n_junctions, 2)
    offsets: Int64s  # (n_junctions + 1,) roads from junction i are [i]:[i+1]
    ends: Int64s  # junction at which each ends
    classes: Int64s  # class of each road


@dataclass(frozen=True)
class Movement:
    """A workload of [VLDBJ15] section 5.2, Table 3.

    Attributes:
        n_subscriptions: Subscribers.
        n_messages: Messages that live at the start.
        n_timestamps: How often positions are reported.
        timestamp: Time between two of these.
        mobility: Share of subscribers that report at each.
        velocity: Medium speed, in sides of the network's box in an hour.
        arrivals: Messages that arrive in a timestamp; None: as many as keep their number.
        lifetime: Mean life of a message, in timestamps.
        area: Area of a region, as a share of that of the network's box.
        n_words: Words that there are; their frequencies follow Zipf's law.
        keywords: Least and most words that a subscription draws.
        tokens: Least and most words that a message draws.
        seed: Of all random numbers.
    """

    n_subscriptions: int = 10_000
    n_messages: int = 10_000
    n_timestamps: int = 20
    timestamp: timedelta = timedelta(seconds=30)
    mobility: float = 0.4
    velocity: float = 1.0
    arrivals: int | None = None
    lifetime: float = 10.0
    area: float = 1e-4
    n_words: int = 20_000
    keywords: tuple[int, int] = (1, 3)
    tokens: tuple[int, int] = (3, 11)
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("n_subscriptions", "n_messages", "n_timestamps", "n_words"):
            if getattr(self, name) < 1:
                raise InvalidParameter(f"{name} is {getattr(self, name)}; expected 1 or more")
        if not 0 < self.mobility <= 1:
            raise InvalidParameter(f"mobility is {self.mobility}; expected more than 0, at most 1")
        for name in ("velocity", "lifetime", "area"):
            if not getattr(self, name) > 0:
                raise InvalidParameter(f"{name} is {getattr(self, name)}; expected more than 0")


def lattice(n_side: int, seed: int) -> Network:
    """Return a network of streets in the unit square, some of which are missing."""
    random = np.random.default_rng([seed, 1])
    rows, columns = np.divmod(np.arange(n_side * n_side), n_side)
    places = np.stack([columns, rows], axis=1) + random.uniform(-0.3, 0.3, (n_side * n_side, 2))
    places = (places + 0.5) / n_side
    nodes = np.arange(n_side * n_side)
    east = nodes[columns < n_side - 1]
    north = nodes[rows < n_side - 1]
    starts = np.concatenate([east, north])
    ends = np.concatenate([east + 1, north + n_side])
    # Every eighth street is fast; the others are medium or slow.
    is_fast = np.concatenate([rows[east] % 8 == 0, columns[north] % 8 == 0])
    classes = np.where(is_fast, 2, random.integers(0, 2, len(starts)))
    is_kept = is_fast | (random.random(len(starts)) < 0.9)
    return _network(places, starts[is_kept], ends[is_kept], classes[is_kept])


def read_network(nodes: str | Path, edges: str | Path) -> Network:
    """Read a network from Parquet: ``node, lon, lat`` and ``from_node, to_node, highway``."""
    try:
        junctions = pq.read_table(nodes, columns=["node", "lon", "lat"])
        roads = pq.read_table(edges, columns=["from_node", "to_node", "highway"])
    except (OSError, pa.ArrowInvalid) as error:
        raise InvalidFile(f"{nodes} and {edges} hold no road network: {error}") from None
    names = junctions["node"].to_numpy()
    order = np.argsort(names)
    places = np.stack([junctions[name].to_numpy() for name in ("lon", "lat")], axis=1)
    starts, ends = (
        order[np.searchsorted(names[order], roads[name].to_numpy())]
        for name in ("from_node", "to_node")
    )
    kinds = roads["highway"].to_pylist()
    classes = np.array([2 if str(kind).startswith(_FAST_ROADS) else 1 for kind in kinds])
    return _network(places, starts, ends, classes)


def _network(places: Float64s, starts: Any, ends: Any, classes: Any) -> Network:
    both_starts, both_ends = np.concatenate([starts, ends]), np.concatenate([ends, starts])
    order = np.argsort(both_starts, kind="stable")
    counts = np.bincount(both_starts, minlength=len(places))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    # Junctions without roads are no places to be.
    return Network(places, offsets, both_ends[order], np.tile(classes, 2)[order])


class Tables(NamedTuple):
    """A workload as tables."""

    subscriptions: pa.Table
    messages: pa.Table  # in the order of their times
    positions: pa.Table  # the same


class Words(NamedTuple):
    """Words of several rows, by rank: 1 is the most frequent."""

    offsets: Int64s  # (n_rows + 1,)
    ranks: Int32s  # distinct and ascending within a row


class Said(NamedTuple):
    """Messages in the order of their times."""

    words: Words
    places: Float64s  # (n, 2)
    times: Int64s
    ends: Int64s


class Step(NamedTuple):
    """What happens from one timestamp to the next."""

    who: Int64s  # subscribers that report, in the order of their reports
    places: Float64s  # (n, 2) where they are
    times: Int64s  # when they report
    said: Said


class Traffic:
    """Who moves where, and what is said beside the roads, timestamp by timestamp.

    Two with equal arguments tell the same.

    Attributes:
        keywords: What subscribers ask for.
        places: Where they are to begin with.
        sides: Width and height of a region.
        said: The messages that live at the start.
    """

    def __init__(self, movement: Movement, network: Network) -> None:
        self._movement, self._network = movement, network
        self._random = random = np.random.default_rng([movement.seed, 2])
        low, high = network.places.min(axis=0), network.places.max(axis=0)
        self._travellers = _Travellers(movement, network, random, float((high - low).max()))
        self._step_us = movement.timestamp // timedelta(microseconds=1)
        self.places = self._travellers.places()
        self.sides: tuple[float, float] = tuple((np.sqrt(movement.area) * (high - low)).tolist())
        self.keywords = self._words(movement.n_subscriptions, movement.keywords)
        self.said = self._messages(np.full(movement.n_messages, _START_US))

    @property
    def start_us(self) -> int:
        """When the messages at the start are said."""
        return _START_US

    def steps(self) -> Iterator[Step]:
        """Yield what happens in each timestamp; once."""
        movement, random, step_us = self._movement, self._random, self._step_us
        n = max(1, round(movement.mobility * movement.n_subscriptions))
        arrivals = movement.arrivals
        if arrivals is None:
            arrivals = max(1, round(movement.n_messages / movement.lifetime))
        for step in range(1, movement.n_timestamps + 1):
            chosen = np.sort(random.choice(movement.n_subscriptions, n, replace=False))
            self._travellers.go(chosen, movement.timestamp.total_seconds())
            who = random.permutation(chosen)
            times, said_at = (
                _START_US + step * step_us + np.sort(random.integers(0, step_us, each))
                for each in (n, arrivals)
            )
            yield Step(who, self._travellers.places()[who], times, self._messages(said_at))

    def _messages(self, times: Int64s) -> Said:
        random, network, n = self._random, self._network, len(times)
        life_us = self._movement.lifetime * self._step_us
        ends = times + 1 + random.exponential(life_us, n).astype(np.int64)
        roads = random.integers(0, len(network.ends), n)
        starts = np.searchsorted(network.offsets, roads, side="right") - 1
        from_, to = network.places[starts], network.places[network.ends[roads]]
        places = from_ + (to - from_) * random.random((n, 1))
        return Said(self._words(n, self._movement.tokens), places, times, ends)

    def _words(self, n: int, least_and_most: tuple[int, int]) -> Words:
        random, (least, most) = self._random, least_and_most
        counts = random.integers(least, most + 1, n)
        shares = np.cumsum(1.0 / np.arange(1, self._movement.n_words + 1))
        drawn = np.searchsorted(shares / shares[-1], random.random(int(counts.sum())))
        ranks = np.minimum(drawn, self._movement.n_words - 1) + 1
        keys = np.repeat(np.arange(n, dtype=np.int64) << 32, counts) | ranks
        # NumPy finds distinct numbers by hashing, which takes five times as long as sorting these.
        keys.sort()
        keys = keys[np.diff(keys, prepend=-1) != 0]
        offsets = offsets_of(np.bincount(keys >> 32, minlength=n))
        return Words(offsets, (keys & 0xFFFFFFFF).astype(np.int32))


def generate(movement: Movement, network: Network) -> Tables:
    """Return who moves where, and what is said beside the roads, as tables."""
    traffic = Traffic(movement, network)
    width, height = traffic.sides
    xs, ys = traffic.places.T
    subscriptions = pa.table(
        {
            "id": np.arange(movement.n_subscriptions),
            "keywords": _named(movement, traffic.keywords),
            "min_x": xs - width / 2,
            "min_y": ys - height / 2,
            "max_x": xs + width / 2,
            "max_y": ys + height / 2,
        }
    )
    steps = list(traffic.steps())
    places = np.concatenate([step.places for step in steps])
    positions = pa.table(
        {
            "id": np.concatenate([step.who for step in steps]),
            "x": places[:, 0],
            "y": places[:, 1],
            "time": _times(np.concatenate([step.times for step in steps])),
        }
    )
    first, messages = 0, []
    for said in (traffic.said, *(step.said for step in steps)):
        messages.append(message_table(movement, said, first))
        first += len(said.times)
    return Tables(subscriptions, pa.concat_tables(messages).combine_chunks(), positions)


def message_table(movement: Movement, said: Said, first_id: int) -> pa.Table:
    """Return messages as a table; their ids count from the first."""
    return pa.table(
        {
            "id": np.arange(first_id, first_id + len(said.times)),
            "keywords": _named(movement, said.words),
            "x": said.places[:, 0],
            "y": said.places[:, 1],
            "time": _times(said.times),
            "end": _times(said.ends),
        }
    )


class _Travellers:
    """Where everybody is, and wants to go."""

    def __init__(
        self, movement: Movement, network: Network, random: np.random.Generator, side: float
    ) -> None:
        n = movement.n_subscriptions
        self._network, self._random = network, random
        junctions = np.flatnonzero(np.diff(network.offsets) > 0)
        self._junctions = junctions
        self.starts = random.choice(junctions, n)
        self.goals = random.choice(junctions, n)
        self.roads = self._next_roads(np.arange(n), np.full(n, -1))
        self.done = random.random(n) * self._lengths(np.arange(n))
        self.patience = np.full(n, _PATIENCE)
        speeds = _CLASS_SPEEDS[random.integers(0, _N_CLASSES, n)]
        self._speeds = speeds * movement.velocity * side / 3600.0

    def places(self) -> Float64s:
        """Return where everybody is."""
        network = self._network
        from_, to = network.places[self.starts], network.places[network.ends[self.roads]]
        share = self.done / np.maximum(self._lengths(np.arange(len(self.starts))), 1e-12)
        places: Float64s = from_ + (to - from_) * np.minimum(share, 1.0)[:, None]
        return places

    def go(self, who: Int64s, seconds: float) -> None:
        """Let some travel for a while."""
        left = np.full(len(who), seconds)
        for _ in range(200):
            speeds = self._speeds[who] * _CLASS_SPEEDS[self._network.classes[self.roads[who]]]
            lengths = self._lengths(who)
            needed = (lengths - self.done[who]) / np.maximum(speeds, 1e-12)
            arrives = needed <= left
            self.done[who] = np.where(arrives, lengths, self.done[who] + speeds * left)
            left, who = (left - needed)[arrives], who[arrives]
            if not len(who):
                return
            before = self.starts[who]
            self.starts[who] = self._network.ends[self.roads[who]]
            self.patience[who] -= 1
            is_there = (self.starts[who] == self.goals[who]) | (self.patience[who] <= 0)
            elsewhere = self._random.choice(self._junctions, len(who))
            self.goals[who] = np.where(is_there, elsewhere, self.goals[who])
            self.patience[who] = np.where(is_there, _PATIENCE, self.patience[who])
            self.roads[who] = self._next_roads(who, before)
            self.done[who] = 0.0

    def _lengths(self, who: Int64s) -> Float64s:
        network = self._network
        to = network.places[network.ends[self.roads[who]]]
        lengths: Float64s = np.linalg.norm(to - network.places[self.starts[who]], axis=1)
        return lengths

    def _next_roads(self, who: Int64s, before: Int64s) -> Int64s:
        """Return the road that leads nearest to where each wants to go."""
        network, at = self._network, self.starts[who]
        first, degrees = network.offsets[at], np.diff(network.offsets)[at]
        goals = network.places[self.goals[who]]
        best: Int64s = first.copy()
        distances = np.full(len(who), np.inf)
        for k in range(int(degrees.max(initial=0))):
            roads = first + np.minimum(k, degrees - 1)
            ends = network.ends[roads]
            away = np.linalg.norm(network.places[ends] - goals, axis=1)
            away = np.where(ends == before, away + 1e6, away)
            is_better = (k < degrees) & (away < distances)
            best, distances = np.where(is_better, roads, best), np.minimum(distances, away)
        return best


def _named(movement: Movement, words: Words) -> pa.Array:
    values = _names(movement.n_words).take(pa.array(words.ranks - 1))
    return pa.ListArray.from_arrays(pa.array(words.offsets.astype(np.int32)), values)


@lru_cache(maxsize=1)
def _names(n_words: int) -> pa.Array:
    return pa.array([f"w{rank + 1}" for rank in range(n_words)])


def _times(times_us: Int64s) -> pa.Array:
    return pa.array(times_us).cast(TIME)
