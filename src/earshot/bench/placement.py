"""The suite ``placement``: every shard built and asked, against one index over everything.

Plans are cut from samples of subscriptions and messages, and asked with other messages; of real
ones, with later ones. Two ways of cutting that look at one property only stand beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np

from earshot.bench.checksums import AnswersDiffer, Pairs, as_pairs, checksum, shown
from earshot.bench.context import Context
from earshot.bench.matching import real_case, real_tables
from earshot.bench.measuring import cpu_timed, timed
from earshot.bench.results import Row, basics
from earshot.indexes import default_structure, index_type
from earshot.indexes.answers import Matches
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
from earshot.placement.cutting import MESSAGE_COST, Cut, Cutter, Node, busiest_share, cut_plan
from earshot.placement.kernels import CUT_X, CUT_Y
from earshot.placement.routing import Router, units_of
from earshot.placement.samples import Samples
from earshot.workloads.synthetic import Workload, find_workload

SAMPLED_SUBSCRIPTIONS = 200_000
"""Subscriptions that plans are cut from, as on Spark."""
MOST_MESSAGES = 20_000
"""Messages that plans are cut from, and as many that they are asked with."""
REAL_DATASETS = ("nsw", "boston")


Spread: TypeAlias = tuple[Int32s, Int32s | None]
"""The piece of each slot, and the shard of each piece, where that is not its own number."""


class Scene(NamedTuple):
    """Subscriptions to spread, messages to cut a plan from, and messages to ask it with."""

    name: str
    clauses: ClauseArrays
    sampled: MessageArrays
    asked: MessageArrays
    frequencies: Int64s  # how often each token occurs in messages
    space: Space


class Whole(NamedTuple):
    """One index over all subscriptions: what matching took, and what it gave."""

    candidates: int
    answers: int
    elapsed_s: float
    checksum: int


class Simulation(NamedTuple):
    """What was done by shards, and on the way to them."""

    by_shard: dict[str, Float64s]  # (n_shards,) each
    n_units: int
    route_s: float
    checksum: int

    def facts(self, whole: Whole, n_messages: int) -> Row:
        """Return the figures that tell a good plan from a bad one."""
        totals = {name: float(each.sum()) for name, each in self.by_shard.items()}
        return {
            "candidates_to_whole": totals["candidates"] / max(whole.candidates, 1),
            "shards_per_message": totals["messages"] / max(n_messages, 1),
            **{f"balance_of_{name}": busiest_share(each) for name, each in self.by_shard.items()},
            "time_to_whole": totals["time"] / max(whole.elapsed_s, 1e-9),
            "units": float(self.n_units),
            "route_us_per_message": 1e6 * self.route_s / max(n_messages, 1),
        }


def simulate(
    scene: Scene, pieces: Int32s, n_shards: int, piece_shards: Int32s | None = None
) -> Simulation:
    """Build one index of the default structure per shard, route the messages and match them.

    ``pieces`` has the piece of each slot. Unless the shards of pieces are given, each piece is one.
    """
    clauses, messages = scene.clauses, scene.asked
    units = units_of(clauses, pieces, scene.frequencies)
    router = Router(units, n_shards, piece_shards)
    shards = pieces if piece_shards is None else piece_shards[pieces]
    router.route(_first(messages))
    (offsets, targets), route_s = cpu_timed(router.route, messages)
    rows = np.repeat(np.arange(len(messages.boxes)), np.diff(offsets))
    done, total = [], 0
    clauses_of = _members(shards[clauses.subscriptions], n_shards)
    messages_of = _members(targets, n_shards)
    for own_clauses, own_messages in zip(clauses_of, messages_of, strict=True):
        own, slots = _renumbered(take_clauses(clauses, own_clauses))
        sent = rows[own_messages]
        found, spent_s = _matched(scene, own, take_messages(messages, sent))
        work = found.counters
        done.append((len(slots), len(sent), work.candidates, work.answers, spent_s))
        pairs = as_pairs(found)
        total += checksum(Pairs(sent[pairs.messages], slots[pairs.slots]))
    names = ("subscriptions", "messages", "candidates", "answers", "time")
    by_shard = dict(zip(names, np.array(done).T, strict=True))
    return Simulation(by_shard, len(units.tokens), route_s, total % 2**64)


def measure_whole(scene: Scene) -> Whole:
    """Build one index over all subscriptions, and match."""
    found, spent_s = _matched(scene, scene.clauses, scene.asked)
    counters = found.counters
    return Whole(counters.candidates, counters.answers, spent_s, checksum(found))


def _matched(scene: Scene, clauses: ClauseArrays, messages: MessageArrays) -> tuple[Matches, float]:
    """Build an index of the default structure; return its answers, and the seconds they took."""
    frequencies = scene.frequencies
    index = index_type(default_structure("boolean")).build(
        clauses, space=scene.space, n_tokens=len(frequencies), frequencies=frequencies
    )
    index.match(_first(messages))
    return cpu_timed(index.match, messages)


def _first(messages: MessageArrays) -> MessageArrays:
    """Return one message, to start with before time is taken."""
    return take_messages(messages, np.arange(min(1, len(messages.boxes))))


def _members(shards: Int32s, n_shards: int) -> list[Int64s]:
    """Return the rows of each shard, in their order."""
    order = np.argsort(shards, kind="stable")
    return np.split(order, np.searchsorted(shards[order], np.arange(1, n_shards)))


def _renumbered(clauses: ClauseArrays) -> tuple[ClauseArrays, Int32s]:
    """Return clauses of slots 0, 1, …, and the slots that they had."""
    slots, numbers = np.unique(clauses.subscriptions, return_inverse=True)
    return clauses._replace(subscriptions=numbers.astype(np.int32)), slots


# ---- the suite ----------------------------------------------------------------------------------


def measure(context: Context, scenes: Iterable[Scene]) -> Iterator[Row]:
    """Shards by the cost model, by keyword alone and by place alone."""
    context.release()
    _compile()
    for scene in scenes:
        whole = measure_whole(scene)
        n_subscriptions = len(np.unique(scene.clauses.subscriptions))
        n_messages = len(scene.asked.boxes)
        context.say(f"placement: {scene.name}, {whole.candidates / n_messages:,.0f} candidates "
                    f"per message in one index")  # fmt: skip
        for n_shards, (name, cut) in product(context.profile.shard_counts, WAYS.items()):
            (pieces, piece_shards), cut_s = timed(cut, scene, n_shards, context.seed)
            done = simulate(scene, pieces, n_shards, piece_shards)
            n_answers = int(done.by_shard["answers"].sum())
            if (n_answers, done.checksum) != (whole.answers, whole.checksum):
                raise AnswersDiffer(
                    f"{scene.name}, {n_shards} shards by {name}: {n_answers} answers "
                    f"({shown(done.checksum)}), one index {whole.answers} ({shown(whole.checksum)})"
                )
            yield {
                **basics(scene.name, name, n_subscriptions, n_messages),
                "n_shards": n_shards,
                "cut_s": cut_s,
                "answers_per_message": whole.answers / n_messages,
                "candidates_per_message": whole.candidates / n_messages,
                "checksum": shown(done.checksum),
                **done.facts(whole, n_messages),
            }


def _compile() -> None:
    """Use all kernels once, so that none is compiled where time is taken."""
    scene = _synthetic(find_workload("headline").scaled(1_000), 100)
    for cut in WAYS.values():
        pieces, piece_shards = cut(scene, 4, 1)
        simulate(scene, pieces, 4, piece_shards)


def scenes(context: Context) -> Iterator[Scene]:
    """Yield the headline, and real messages where there are some."""
    n = min(MOST_MESSAGES, 10 * context.profile.n_messages)
    yield _synthetic(context.workload("headline"), n)
    for name, messages in real_tables(context, REAL_DATASETS):
        case = real_case(context, name, messages, np.arange(len(messages)))
        # Rows are in the order of time: a plan has to serve messages that come after its samples.
        random = np.random.default_rng(context.seed)
        half = len(case.messages.boxes) // 2
        earlier = random.permutation(half)[:n]
        later = half + random.permutation(len(case.messages.boxes) - half)[:n]
        sampled = take_messages(case.messages, np.sort(earlier))
        asked = take_messages(case.messages, np.sort(later))
        frequencies = np.bincount(sampled.token_ids, minlength=case.n_tokens).astype(np.int64)
        yield Scene(name, case.clauses, sampled, asked, frequencies, case.space)


def _synthetic(workload: Workload, n: int) -> Scene:
    """Return ``n`` messages to cut a plan from, and as many others."""
    sampled, asked = workload.messages(0, n), workload.messages(n, 2 * n)
    clauses, frequencies = workload.subscriptions(), workload.frequencies()
    return Scene(workload.name, clauses, sampled, asked, frequencies, workload.space)


def _sampled_clauses(scene: Scene, seed: int) -> ClauseArrays:
    slots = np.unique(scene.clauses.subscriptions)
    chosen = np.random.default_rng(seed).permutation(slots)[:SAMPLED_SUBSCRIPTIONS]
    is_chosen = np.isin(scene.clauses.subscriptions, chosen)
    return take_clauses(scene.clauses, np.flatnonzero(is_chosen))


def _cut_by_cost(scene: Scene, n_shards: int, seed: int) -> Spread:
    n_subscriptions = len(np.unique(scene.clauses.subscriptions))
    plan, _ = cut_plan(
        _sampled_clauses(scene, seed), scene.sampled, n_shards,
        frequencies=scene.frequencies, n_subscriptions=n_subscriptions,
    )  # fmt: skip
    return plan.pieces(scene.clauses, scene.frequencies), plan.arrays.piece_shards


def _cut_by_keyword(scene: Scene, n_shards: int, seed: int) -> Spread:
    """Spread subscriptions by a hash of their rarest keyword."""
    clauses = scene.clauses
    rarities = scene.frequencies[np.maximum(clauses.token_ids, 0)] << 32 | clauses.token_ids
    rarest = np.minimum.reduceat(rarities, clauses.token_offsets[:-1]) & 0xFFFFFFFF
    hashes = rarest.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)
    shards = np.full(int(clauses.subscriptions.max(initial=-1)) + 1, -1, np.int32)
    shards[clauses.subscriptions] = (hashes % np.uint64(n_shards)).astype(np.int32)
    return shards, None


class _SpatialCutter(Cutter):
    """Balances the work as a plan does, but by place alone: a k-d tree."""

    def best_cut(self, node: Node) -> Cut:
        found = [self.key_cut(node, kind) for kind in (CUT_X, CUT_Y)]
        cuts = [cut for cut in found if cut is not None]
        return min(cuts, key=lambda cut: cut.cost) if cuts else self.content_cut(node)


def _cut_by_place(scene: Scene, n_shards: int, seed: int) -> Spread:
    sample, _ = _renumbered(_sampled_clauses(scene, seed))
    n_subscriptions = len(np.unique(scene.clauses.subscriptions))
    samples = Samples(sample, scene.sampled, scene.frequencies, n_subscriptions)
    cutter = _SpatialCutter(samples, MESSAGE_COST)
    plan, _ = cutter.cut(n_shards, cutter.tree(n_shards))
    return plan.pieces(scene.clauses, scene.frequencies), plan.arrays.piece_shards


WAYS: dict[str, Callable[[Scene, int, int], Spread]] = {
    "plan": _cut_by_cost,
    "keyword_hash": _cut_by_keyword,
    "kd_tree": _cut_by_place,
}
