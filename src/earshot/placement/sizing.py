"""How many machines a load needs: what two small indexes cost, carried on to a large one.

Bytes and updates per message grow as a straight line with the number of subscriptions, and CPU time
per message as a power of it. Two sizes tell apart what a message or an index costs in any case and
what subscriptions add.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from earshot.errors import InvalidParameter

WORKER_BYTES = 150 << 20
"""What a Python worker takes beside the index."""
BUSY = 0.7
"""Share of cores and network that is planned for; the rest is for merges and bursts."""
CROSSING_S = 2.7e-6
"""CPU time for a message to go from Spark to a Python worker: 0.75 M rows/s on two cores."""
CPU_POWER = 0.7
"""CPU time per message grows with this power of the number of subscriptions.

Not with the number itself, as the longer lists are, the less an answer costs. With this power, 0.5
and 2 M subscriptions tell 6.3 us at 10 M, where 6.2 were measured, and 26 us at 100 M (24.7); a
straight line tells 8.2 and 68 us, a square root 5.4 and 15.
"""
SHARDS_PER_EXECUTOR = 2
"""So that what a lost executor held is spread over the others."""


class Measured(NamedTuple):
    """What an index of some size costs."""

    n_subscriptions: int
    n_bytes: float
    message_s: float  # CPU time per message
    updates: float  # per message


class Growth(NamedTuple):
    """A quantity that grows with the number of subscriptions, or a power of it."""

    fixed: float
    each: float
    power: float = 1.0

    @classmethod
    def through(
        cls, one: tuple[int, float], other: tuple[int, float], power: float = 1.0
    ) -> Growth:
        """Return the growth that two points tell; what is fixed is not below 0."""
        (n, low), (m, high) = sorted((one, other))
        each = max(0.0, (high - low) / (m**power - n**power))
        return cls(max(0.0, low - each * n**power), each, power)

    def at(self, n: int) -> float:
        """Return the quantity at a number of subscriptions."""
        return float(self.fixed + self.each * n**self.power)


class Costs(NamedTuple):
    """What subscriptions and messages cost, at any size."""

    n_bytes: Growth
    message_s: Growth
    updates: Growth
    message_bytes: float  # of a message on its way to a shard
    update_bytes: float  # of an update on its way to the sink

    @classmethod
    def of(cls, one: Measured, other: Measured, message_bytes: float, update_bytes: float) -> Costs:
        """Return what two measured sizes tell."""
        if one.n_subscriptions == other.n_subscriptions:
            raise InvalidParameter("both measured indexes have the same size; expected two sizes")
        sizes = (one.n_subscriptions, other.n_subscriptions)
        n_bytes, message_s, updates = (
            Growth.through((sizes[0], each), (sizes[1], also), power)
            for each, also, power in zip(one[1:], other[1:], (1.0, CPU_POWER, 1.0), strict=True)
        )
        return cls(n_bytes, message_s, updates, message_bytes, update_bytes)


class Machine(NamedTuple):
    """What an executor may use."""

    n_cores: int
    n_bytes: float
    network_bytes_per_s: float


@dataclass(frozen=True)
class Sizing:
    """What a load needs."""

    placement: str  # replicated, as long as an executor can hold all
    n_executors: int
    n_shards: int
    index_bytes: float
    shard_bytes: float  # of the largest shard
    executor_bytes: float  # of the index and the workers, on the fullest executor
    cores: float  # that are busy
    message_bytes_per_s: float  # from where messages are routed to shards
    update_bytes_per_s: float  # to the sink
    bound_by: str  # what decides on the number of executors


def sized(
    costs: Costs,
    machine: Machine,
    n_subscriptions: int,
    messages_per_s: float,
    *,
    shards_per_message: float = 1.0,
    balance: float = 1.5,
) -> Sizing:
    """Return what a load needs.

    Args:
        costs: What was measured.
        machine: What each executor may use.
        n_subscriptions: How many there will be.
        messages_per_s: How many messages come.
        shards_per_message: Shards that a message goes to on average, if the index is cut.
        balance: Bytes of the largest shard over the mean.
    """
    for name, value in (("n_subscriptions", n_subscriptions), ("messages_per_s", messages_per_s)):
        if not value > 0:
            raise InvalidParameter(f"{name} is {value}; expected more than 0")
    room = machine.n_bytes - machine.n_cores * WORKER_BYTES
    if room <= 0:
        raise InvalidParameter(
            f"{machine.n_cores} workers alone take {machine.n_cores * WORKER_BYTES / 1e9:.1f} GB; "
            f"give an executor more memory or fewer cores"
        )
    index_bytes = costs.n_bytes.at(n_subscriptions)
    is_cut = index_bytes > room
    sent = shards_per_message if is_cut else 0.0
    # Each of them crosses once to be read, and once more for each shard that it goes to.
    message_s = costs.message_s.at(n_subscriptions) + (1 + sent) * CROSSING_S
    cores = messages_per_s * message_s
    routed = messages_per_s * sent * costs.message_bytes
    updates = messages_per_s * costs.updates.at(n_subscriptions) * costs.update_bytes
    needed = {
        "CPU": cores / (BUSY * machine.n_cores),
        "network": (routed + updates) / (BUSY * machine.network_bytes_per_s),
        # Shards are dealt as wholes, and the largest decides.
        "memory": balance * index_bytes / room if is_cut else 0.0,
    }
    bound_by = max(needed, key=lambda name: needed[name])
    n_executors = max(1, math.ceil(needed[bound_by]))
    n_shards = SHARDS_PER_EXECUTOR * n_executors if is_cut else 1
    shard_bytes = balance * index_bytes / n_shards if is_cut else index_bytes
    held = SHARDS_PER_EXECUTOR * shard_bytes if is_cut else index_bytes
    return Sizing(
        "sharded" if is_cut else "replicated", n_executors, n_shards, index_bytes, shard_bytes,
        held + machine.n_cores * WORKER_BYTES, cores, routed, updates, bound_by,
    )  # fmt: skip
