"""The suites ``batch_ways``: how the defaults match a batch, and whether they choose the best way.

The default can match a batch through the trie, down the root list in groups, or message by message;
it chooses by estimated costs (``batch_ways``, and ``cikm15_ways`` at the points of figures). The
ranked default can match it in groups or message by message (``batch_ways_ranked``). All ways take
turns on the same batches, by the processor's time of the thread, and of each batch the shortest
time counts, so that other work on the machine counts little. The order of the ways is another in
each turn: what a way leaves in the caches helps or hinders the next. A way that takes far longer
than another on a first batch takes no further turns.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import numpy as np

from earshot.bench.batch_sizes import batch_of
from earshot.bench.checksums import check_agreement, checksum, shown
from earshot.bench.competitors import IndexCompetitor
from earshot.bench.context import Context
from earshot.bench.measuring import Case, case_of
from earshot.bench.points import Trial, Variant, indexes_and_cases
from earshot.bench.results import Row, basics
from earshot.indexes import default_structure
from earshot.indexes.block_lists.batches import WAYS as RANKED_WAYS
from earshot.indexes.block_lists.index import BlockLists
from earshot.indexes.block_trie.batches import WAYS
from earshot.indexes.block_trie.index import BlockTrie
from earshot.indexes.block_trie.kernels.vectors import level_here
from earshot.model.arrays import MessageArrays
from earshot.workloads.synthetic import Workload

ALPHA, THRESHOLDS = 0.5, (0.6, 0.9)
SIZES = (1, 32, 100, 1_000, 10_000)
TURNS = 5
FAR_LONGER = 3.0
N_SINGLE_CALLS = 1_000
"""Calls with one message each: more would measure the same call again and again."""


def measure(context: Context, workloads: Iterable[Workload]) -> Iterator[Row]:
    """Yield a row for each workload and size of batches."""
    name = default_structure("boolean")
    for workload in workloads if name in context.competitors else ():
        case, contenders = context.arena(workload, [name])
        competitor = contenders[0].competitor
        assert isinstance(competitor, IndexCompetitor)
        index = competitor.index
        assert isinstance(index, BlockTrie)
        yield from _rows(case, index, context.profile.effort.budget_s)
        context.say(f"batch_ways: {workload.name}")


def measure_points(context: Context, trials: Iterable[Trial]) -> Iterator[Row]:
    """Yield a row for each point of a figure and size of batches."""
    for index, point, case in indexes_and_cases(context, trials):
        assert isinstance(index, BlockTrie)
        for row in _rows(case, index, context.profile.figures.effort.budget_s):
            yield row | {"message_tokens": point.n_tokens}


def _rows(case: Case, index: BlockTrie, budget_s: float) -> Iterator[Row]:
    for size in SIZES:
        if size <= len(case.messages.boxes):
            yield _row(case, index, ("single", *WAYS, "chosen"), size, budget_s)
    index.way = "chosen"


def measure_ranked(context: Context, workloads: Iterable[Workload]) -> Iterator[Row]:
    """Yield a row for each workload, threshold and size of batches."""
    context.release()
    name, most = default_structure("ranked"), context.profile.figures.most_ranked
    for workload in workloads:
        case = case_of(workload.scaled(n_subscriptions=min(workload.n_subscriptions, most)))
        for threshold in THRESHOLDS:
            variant = Variant(name, ranking=(ALPHA, threshold))
            competitor = variant.competitor()
            context.built(competitor, case, (variant.semantics, variant.label))
            index = competitor.index
            assert isinstance(index, BlockLists)
            for size in SIZES:
                if size <= len(case.messages.boxes):
                    row = _row(case, index, RANKED_WAYS, size, context.profile.effort.budget_s)
                    yield row | variant.told
            competitor.close()
            context.say(f"batch_ways_ranked: {workload.name}, threshold {threshold}")


def _row(
    case: Case, index: BlockTrie | BlockLists, all_ways: Iterable[str], size: int, budget_s: float
) -> Row:
    first = batch_of(case, 0, size)
    tried = {way: _spent_s(index, way, [first]) for way in all_ways}
    tried = {way: _spent_s(index, way, [first]) for way in tried}  # compiled, and room made
    longest_s = FAR_LONGER * min(tried.values())
    ways = [way for way, spent_s in tried.items() if spent_s < longest_s or way == "chosen"]
    if size == 1:
        ways = ["single", "chosen"]
    n_batches = min(len(case.messages.boxes) // size, N_SINGLE_CALLS if size == 1 else size)
    n_batches = int(np.clip(budget_s / max(tried["chosen"], 1e-9), 1, n_batches))
    batches = [batch_of(case, at * size, (at + 1) * size) for at in range(n_batches)]
    sums, n_answers, n = {}, 0, n_batches * size
    for way in ways:
        index.way = way
        found = [index.match(batch) for batch in batches]
        n_answers = sum(len(each.subscriptions) for each in found)
        total = sum(checksum(each, at * size) for at, each in enumerate(found))
        sums[way] = {n: total % 2**64}
    check_agreement(f"{case.name}, batches of {size}", sums)
    times_s = {way: np.full(n_batches, np.inf) for way in ways}
    random = np.random.default_rng(0)
    for _ in range(TURNS):
        for way in random.permutation(ways).tolist():
            spent_s = [_spent_s(index, way, [batch]) for batch in batches]
            times_s[way] = np.minimum(times_s[way], spent_s)
    best_s = {way: float(spent_s.sum()) for way, spent_s in times_s.items()}
    fastest_s = min(best_s.values())
    over_single = tried["single"] / times_s["chosen"][0]  # of the first batch alone
    if "single" in ways:
        over_single = best_s["single"] / best_s["chosen"]
    return {
        **basics(case.name, index.name, case.n_subscriptions, n),
        "batch_size": size,
        "instructions": level_here(),
        "answers_per_message": n_answers / n,
        "index_bytes_per_subscription": index.nbytes / max(case.n_subscriptions, 1),
        "best_way": min(best_s, key=lambda way: best_s[way]),
        "chosen_over_best": best_s["chosen"] / fastest_s,
        "over_single": over_single,
        "messages_per_s": n / best_s["chosen"],
        **{f"{way}_us": 1e6 * spent_s / n for way, spent_s in best_s.items()},
        "checksum": shown(sums["chosen"][n]),
    }


def _spent_s(index: BlockTrie | BlockLists, way: str, batches: list[MessageArrays]) -> float:
    index.way = way
    began = time.thread_time()
    for batch in batches:
        index.match(batch)
    return time.thread_time() - began
