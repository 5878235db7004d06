"""The suite ``batch_ways``: the default's ways of matching a batch, and whether it chose the best.

The default can match a batch through the trie, down the root list in groups or one by one, or
message by message; it chooses by estimated costs. All ways take turns on the same batches, by the
processor's time of the thread, so that other work on the machine counts little. A way that takes
far longer than another on a first batch is left out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator

import numpy as np

from earshot.bench.batch_sizes import batch_of
from earshot.bench.checksums import check_agreement, checksum, shown
from earshot.bench.competitors import IndexCompetitor
from earshot.bench.context import Context
from earshot.bench.measuring import Case
from earshot.bench.results import Row, basics
from earshot.indexes import default_structure
from earshot.indexes.block_trie.batches import WAYS
from earshot.indexes.block_trie.index import BlockTrie
from earshot.model.arrays import MessageArrays
from earshot.workloads.synthetic import Workload

SIZES = (1, 100, 1_000, 10_000)
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
        for size in SIZES:
            if size <= len(case.messages.boxes):
                yield _row(case, index, size, context.profile.effort.budget_s)
        index.way = "chosen"
        context.say(f"batch_ways: {workload.name}")


def _row(case: Case, index: BlockTrie, size: int, budget_s: float) -> Row:
    first = batch_of(case, 0, size)
    tried = {way: _spent_s(index, way, [first]) for way in ("single", *WAYS, "chosen")}
    tried = {way: _spent_s(index, way, [first]) for way in tried}  # compiled, and room made
    ways = [way for way, spent_s in tried.items() if spent_s < FAR_LONGER * min(tried.values())]
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
    best_s = dict.fromkeys(ways, math.inf)
    for _ in range(TURNS):
        for way in ways:
            best_s[way] = min(best_s[way], _spent_s(index, way, batches))
    fastest_s = min(best_s.values())
    return {
        **basics(case.name, index.name, case.n_subscriptions, n),
        "batch_size": size,
        "answers_per_message": n_answers / n,
        "index_bytes_per_subscription": index.nbytes / max(case.n_subscriptions, 1),
        "best_way": min(best_s, key=lambda way: best_s[way]),
        "chosen_over_best": best_s["chosen"] / fastest_s,
        "over_single": None if "single" not in ways else best_s["single"] / best_s["chosen"],
        "messages_per_s": n / best_s["chosen"],
        **{f"{way}_us": 1e6 * spent_s / n for way, spent_s in best_s.items()},
        "checksum": shown(sums["chosen"][n]),
    }


def _spent_s(index: BlockTrie, way: str, batches: list[MessageArrays]) -> float:
    index.way = way
    began = time.thread_time()
    for batch in batches:
        index.match(batch)
    return time.thread_time() - began
