"""The suite ``placement``: every shard built and asked, against one index over everything.

Plans are cut from samples of subscriptions and messages, and asked with other messages; of real
ones, with later ones. Two ways of cutting that look at one property only stand beside them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from earshot.bench.checksums import AnswersDiffer, Pairs, as_pairs, checksum
from earshot.bench.context import Context
from earshot.bench.measuring import Row
from earshot.encoding import encode_messages, encode_subscriptions
from earshot.indexes import default_structure, index_type
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
from earshot.placement.cutting import MESSAGE_COST, Cut, Cutter, Node, cut_plan
from earshot.placement.kernels import CUT_X, CUT_Y
from earshot.placement.report import busiest_share
from earshot.placement.routing import Router, units_of
from earshot.placement.samples import Samples
from earshot.text import Analyzer, Vocabulary
from earshot.workloads import datasets
from earshot.workloads.synthetic import find_workload

SAMPLED_SUBSCRIPTIONS = 200_000
"""Subscriptions that plans are cut from, as on Spark."""
MOST_MESSAGES = 20_000
"""Messages that plans are cut from, and as many that they are asked with."""
REAL_DATASETS = ("nsw", "boston")


class Whole(NamedTuple):
    """One index over all subscriptions: what matching took, and what it gave."""

    candidates: int
    answers: int
    elapsed_s: float
    checksum: int


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
    checksum: int
    whole: Whole

    @property
    def whole_answers(self) -> int:
        """Answers of the one index."""
        return self.whole.answers

    def facts(self) -> dict[str, float]:
        """Return the figures that tell a good plan from a bad one."""
        return {
            "candidates_to_whole": self.candidates.sum() / max(self.whole.candidates, 1),
            "shards_per_message": self.messages.sum() / max(self.n_messages, 1),
            "balance_of_candidates": busiest_share(self.candidates),
            "balance_of_messages": busiest_share(self.messages),
            "balance_of_answers": busiest_share(self.answers),
            "balance_of_subscriptions": busiest_share(self.subscriptions),
            "balance_of_time": busiest_share(self.elapsed_s),
            "time_to_whole": float(self.elapsed_s.sum()) / max(self.whole.elapsed_s, 1e-9),
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
    index: str = default_structure("boolean"),
    whole: Whole | None = None,
) -> Simulation:
    """Build one index per shard, route the messages and match them.

    Args:
        clauses: All subscriptions.
        messages: Messages to match.
        shards: Shard of each slot, from :meth:`~earshot.placement.plan.ShardPlan.assign` or else.
        n_shards: Number of shards.
        frequencies: How often each token occurs in messages.
        space: What the coordinates are.
        index: Structure to build.
        whole: What one index over everything does, where that is known.
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
    total = 0
    clause_shards = shards[clauses.subscriptions]
    by_clause = np.argsort(clause_shards, kind="stable")
    clause_bounds = np.searchsorted(clause_shards[by_clause], np.arange(n_shards + 1))
    by_target = np.argsort(targets, kind="stable")
    bounds = np.searchsorted(targets[by_target], np.arange(n_shards + 1))
    for shard in range(n_shards):
        own = take_clauses(clauses, by_clause[clause_bounds[shard] : clause_bounds[shard + 1]])
        slots, numbers = np.unique(own.subscriptions, return_inverse=True)
        own = own._replace(subscriptions=numbers.astype(np.int32))
        sent = rows[by_target[bounds[shard] : bounds[shard + 1]]]
        routed = take_messages(messages, sent)
        built = build(own, space=space, n_tokens=len(frequencies), frequencies=frequencies)
        start = time.perf_counter()
        found = built.match(routed)
        elapsed_s[shard] = time.perf_counter() - start
        n_subscriptions[shard], n_messages[shard] = len(slots), len(routed.boxes)
        candidates[shard], answers[shard] = found.counters.candidates, found.counters.answers
        pairs = as_pairs(found)
        total += checksum(Pairs(sent[pairs.messages], slots[pairs.slots]))
    return Simulation(
        n_subscriptions,
        n_messages,
        candidates,
        answers,
        elapsed_s,
        len(messages.boxes),
        len(units.tokens),
        route_s,
        total % 2**64,
        whole,
    )


def measure_whole(
    clauses: ClauseArrays,
    messages: MessageArrays,
    frequencies: Int64s,
    *,
    space: Space,
    index: str = default_structure("boolean"),
) -> Whole:
    """Build one index over all subscriptions, and match."""
    built = index_type(index).build(
        clauses, space=space, n_tokens=len(frequencies), frequencies=frequencies
    )
    built.match(take_messages(messages, np.arange(min(1, len(messages.boxes)))))
    start = time.perf_counter()
    found = built.match(messages)
    elapsed_s = time.perf_counter() - start
    counters = found.counters
    return Whole(counters.candidates, counters.answers, elapsed_s, checksum(found))


# ---- the suite ----------------------------------------------------------------------------------


class Scene(NamedTuple):
    """Subscriptions to spread, messages to cut a plan from, and messages to ask it with."""

    name: str
    clauses: ClauseArrays
    sampled: MessageArrays
    asked: MessageArrays
    frequencies: Int64s
    space: Space


def placement_suite(context: Context) -> Iterator[Row]:
    """Shards by the cost model, by keyword alone and by place alone."""
    context.release()
    _compile()
    for scene in _scenes(context):
        whole = measure_whole(scene.clauses, scene.asked, scene.frequencies, space=scene.space)
        n_subscriptions = len(np.unique(scene.clauses.subscriptions))
        n_messages = len(scene.asked.boxes)
        context.say(f"placement: {scene.name}, {whole.candidates / n_messages:,.0f} candidates "
                    f"per message in one index")  # fmt: skip
        for n_shards in context.profile.shard_counts:
            for name, cut in WAYS.items():
                began = time.perf_counter()
                shards = cut(scene, n_shards, context.seed)
                cut_s = time.perf_counter() - began
                done = simulate(
                    scene.clauses, scene.asked, shards, n_shards, scene.frequencies,
                    space=scene.space, whole=whole,
                )  # fmt: skip
                if (int(done.answers.sum()), done.checksum) != (whole.answers, whole.checksum):
                    raise AnswersDiffer(
                        f"{scene.name}, {n_shards} shards by {name}: {done.answers.sum()} answers "
                        f"({done.checksum:016x}), one index {whole.answers} "
                        f"({whole.checksum:016x})"
                    )
                yield {
                    "workload": scene.name,
                    "competitor": name,
                    "n_subscriptions": n_subscriptions,
                    "n_messages": n_messages,
                    "n_threads": 1,
                    "n_shards": n_shards,
                    "cut_s": cut_s,
                    "answers_per_message": whole.answers / n_messages,
                    "candidates_per_message": whole.candidates / n_messages,
                    "checksum": f"{done.checksum:016x}",
                    **{key: float(value) for key, value in done.facts().items()},
                }


def _compile() -> None:
    """Use all kernels once, so that none is compiled where time is taken."""
    workload = find_workload("headline").scaled(1_000, 100)
    clauses, messages = workload.subscriptions(), workload.messages()
    scene = Scene("", clauses, messages, messages, workload.frequencies(), workload.space)
    for cut in WAYS.values():
        shards = cut(scene, 4, 1)
        simulate(clauses, messages, shards, 4, scene.frequencies, space=scene.space)


def _scenes(context: Context) -> Iterator[Scene]:
    n = min(MOST_MESSAGES, 10 * context.profile.n_messages)
    workload = context.workload("headline")
    yield Scene(
        workload.name,
        workload.subscriptions(),
        workload.messages(0, n),
        workload.messages(n, 2 * n),
        workload.frequencies(),
        workload.space,
    )
    if context.data is None and not os.environ.get(datasets.DATA_VARIABLE):
        context.say(f"placement: no real messages; {datasets.DATA_VARIABLE} names no directory")
        return
    available = datasets.available_datasets(context.data)
    for name in [each for each in REAL_DATASETS if each in available]:
        yield _real_scene(context, name, datasets.read_messages(name, context.data), n)


def _real_scene(context: Context, name: str, messages: pa.Table, n: int) -> Scene:
    drawn = datasets.draw_subscriptions(
        messages, context.profile.n_subscriptions, seed=context.seed
    )
    messages = messages.set_column(0, "id", pa.array(np.arange(len(messages))))
    analyzer, vocabulary = Analyzer(), Vocabulary()
    clauses = encode_subscriptions(drawn, analyzer, vocabulary, "lonlat").clauses
    encoded = encode_messages(messages, analyzer, vocabulary, "lonlat").messages
    # Rows are in the order of time: a plan has to serve messages that come after its samples.
    random = np.random.default_rng(context.seed)
    half = len(encoded.boxes) // 2
    earlier = random.permutation(half)[:n]
    later = half + random.permutation(len(encoded.boxes) - half)[:n]
    sampled = take_messages(encoded, np.sort(earlier))
    frequencies = np.bincount(sampled.token_ids, minlength=len(vocabulary)).astype(np.int64)
    asked = take_messages(encoded, np.sort(later))
    return Scene(name, clauses, sampled, asked, frequencies, "lonlat")


def _sampled_clauses(scene: Scene, seed: int) -> ClauseArrays:
    slots = np.unique(scene.clauses.subscriptions)
    chosen = np.random.default_rng(seed).permutation(slots)[:SAMPLED_SUBSCRIPTIONS]
    is_chosen = np.zeros(int(slots.max(initial=-1)) + 1, np.bool_)
    is_chosen[chosen] = True
    return take_clauses(scene.clauses, np.flatnonzero(is_chosen[scene.clauses.subscriptions]))


def _cut_by_cost(scene: Scene, n_shards: int, seed: int) -> Int32s:
    n_subscriptions = len(np.unique(scene.clauses.subscriptions))
    plan, _ = cut_plan(
        _sampled_clauses(scene, seed), scene.sampled, n_shards,
        frequencies=scene.frequencies, n_subscriptions=n_subscriptions,
    )  # fmt: skip
    return plan.assign(scene.clauses, scene.frequencies)


def _cut_by_keyword(scene: Scene, n_shards: int, seed: int) -> Int32s:
    """Spread subscriptions by a hash of their rarest keyword."""
    clauses = scene.clauses
    rarities = scene.frequencies[np.maximum(clauses.token_ids, 0)] << 32 | clauses.token_ids
    rarest = np.minimum.reduceat(rarities, clauses.token_offsets[:-1]) & 0xFFFFFFFF
    hashes = rarest.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)
    shards = np.full(int(clauses.subscriptions.max(initial=-1)) + 1, -1, np.int32)
    shards[clauses.subscriptions] = (hashes % np.uint64(n_shards)).astype(np.int32)
    return shards


class _SpatialCutter(Cutter):
    """Balances the work as a plan does, but by place alone: a k-d tree."""

    def best_cut(self, node: Node) -> Cut:
        found = [self.key_cut(node, kind) for kind in (CUT_X, CUT_Y)]
        cuts = [cut for cut in found if cut is not None]
        return min(cuts, key=lambda cut: cut.cost) if cuts else self.content_cut(node)


def _cut_by_place(scene: Scene, n_shards: int, seed: int) -> Int32s:
    sample = _sampled_clauses(scene, seed)
    _, numbers = np.unique(sample.subscriptions, return_inverse=True)
    samples = Samples(
        sample._replace(subscriptions=numbers.astype(np.int32)),
        scene.sampled,
        scene.frequencies,
        len(np.unique(scene.clauses.subscriptions)),
    )
    cutter = _SpatialCutter(samples, MESSAGE_COST)
    plan, _ = cutter.cut(n_shards, cutter.tree(n_shards))
    return plan.assign(scene.clauses, scene.frequencies)


WAYS: dict[str, Callable[[Scene, int, int], Int32s]] = {
    "plan": _cut_by_cost,
    "keyword_hash": _cut_by_keyword,
    "kd_tree": _cut_by_place,
}
