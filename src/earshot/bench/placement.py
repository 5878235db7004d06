"""What a plan does to the work of matching: every shard built and asked, against one index."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from earshot.indexes import DEFAULT_INDEX, index_type
from earshot.model.arrays import (
    ClauseArrays,
    Float64s,
    Int32s,
    Int64s,
    MessageArrays,
    Space,
    take_clauses,
    take_messages,
)
from earshot.placement import Router, busiest_share, units_of


class Simulation(NamedTuple):
    """Counts of each shard, and of one index over all subscriptions."""

    subscriptions: Int64s  # (n_shards,)
    messages: Int64s  # (n_shards,)
    candidates: Int64s  # (n_shards,)
    answers: Int64s  # (n_shards,)
    elapsed_s: Float64s  # (n_shards,)
    n_messages: int
    n_units: int
    route_s: float
    whole_candidates: int
    whole_answers: int
    whole_s: float

    def facts(self) -> dict[str, float]:
        """Return the figures that tell a good plan from a bad one."""
        return {
            "candidates_to_whole": self.candidates.sum() / max(self.whole_candidates, 1),
            "shards_per_message": self.messages.sum() / max(self.n_messages, 1),
            "balance_of_candidates": busiest_share(self.candidates),
            "balance_of_messages": busiest_share(self.messages),
            "balance_of_answers": busiest_share(self.answers),
            "balance_of_subscriptions": busiest_share(self.subscriptions),
            "balance_of_time": busiest_share(self.elapsed_s),
            "time_to_whole": float(self.elapsed_s.sum()) / max(self.whole_s, 1e-9),
            "units": self.n_units,
            "route_us_per_message": 1e6 * self.route_s / max(self.n_messages, 1),
        }


def simulate(
    clauses: ClauseArrays,
    messages: MessageArrays,
    shards: Int32s,
    n_shards: int,
    frequencies: Int64s,
    *,
    space: Space,
    index: str = DEFAULT_INDEX,
    whole: tuple[int, int, float] | None = None,
) -> Simulation:
    """Build one index per shard, route the messages and match them.

    Args:
        clauses: All subscriptions.
        messages: Messages to match.
        shards: Shard of each slot, from :meth:`earshot.placement.Plan.assign` or any other way.
        n_shards: Number of shards.
        frequencies: How often each token occurs in messages.
        space: What the coordinates are.
        index: Structure to build.
        whole: Candidates, answers and seconds of one index over everything, where they are known.
    """
    build = index_type(index).build
    units = units_of(clauses, shards, frequencies)
    router = Router(units, n_shards)
    router.route(take_messages(messages, np.arange(min(1, len(messages.boxes)))))
    start = time.perf_counter()
    offsets, targets = router.route(messages)
    route_s = time.perf_counter() - start
    rows = np.repeat(np.arange(len(messages.boxes)), np.diff(offsets))
    if whole is None:
        whole = measure_whole(clauses, messages, frequencies, space=space, index=index)
    n_subscriptions, n_messages, candidates, answers = np.zeros((4, n_shards), np.int64)
    elapsed_s = np.zeros(n_shards)
    clause_shards = shards[clauses.subscriptions]
    by_clause = np.argsort(clause_shards, kind="stable")
    clause_bounds = np.searchsorted(clause_shards[by_clause], np.arange(n_shards + 1))
    by_target = np.argsort(targets, kind="stable")
    bounds = np.searchsorted(targets[by_target], np.arange(n_shards + 1))
    for shard in range(n_shards):
        own = take_clauses(clauses, by_clause[clause_bounds[shard] : clause_bounds[shard + 1]])
        slots, numbers = np.unique(own.subscriptions, return_inverse=True)
        own = own._replace(subscriptions=numbers.astype(np.int32))
        routed = take_messages(messages, rows[by_target[bounds[shard] : bounds[shard + 1]]])
        built = build(own, space=space, n_tokens=len(frequencies), frequencies=frequencies)
        start = time.perf_counter()
        found = built.match(routed)
        elapsed_s[shard] = time.perf_counter() - start
        n_subscriptions[shard], n_messages[shard] = len(slots), len(routed.boxes)
        candidates[shard], answers[shard] = found.counters.candidates, found.counters.answers
    n_candidates, n_answers, whole_s = whole
    return Simulation(
        n_subscriptions,
        n_messages,
        candidates,
        answers,
        elapsed_s,
        len(messages.boxes),
        len(units.tokens),
        route_s,
        n_candidates,
        n_answers,
        whole_s,
    )


def measure_whole(
    clauses: ClauseArrays,
    messages: MessageArrays,
    frequencies: Int64s,
    *,
    space: Space,
    index: str = DEFAULT_INDEX,
) -> tuple[int, int, float]:
    """Return candidates, answers and seconds of one index over all subscriptions."""
    built = index_type(index).build(
        clauses, space=space, n_tokens=len(frequencies), frequencies=frequencies
    )
    built.match(take_messages(messages, np.arange(min(1, len(messages.boxes)))))
    start = time.perf_counter()
    found = built.match(messages)
    return found.counters.candidates, found.counters.answers, time.perf_counter() - start
