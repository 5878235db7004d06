"""The AP-Tree: every node after any changes, partitions, rebuilding, and the work of a change."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from changing import changed, check_answers, expected_answers, random_case, slots_between
from earshot.checks.generate import ragged
from earshot.errors import InvalidParameter, SavedIndexError
from earshot.indexes.ap_tree import building
from earshot.indexes.ap_tree.index import ApTree
from earshot.indexes.ap_tree.kernels import motion, nodes, partition
from earshot.indexes.ap_tree.kernels.nodes import FREE, KEYWORDS, LIST, NO_RANK, SPACE
from earshot.indexes.ap_tree.parameters import ApTreeParameters
from earshot.kernels.box_keys import box_key
from earshot.model.arrays import ClauseArrays, MessageArrays, box_clauses, take_clauses
from earshot.workloads.synthetic import Workload, find_workload

VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"priority": "keyword"},
    {"priority": "space"},
    {"keyword_partition": "dp"},
    {"keyword_order": "frequent"},
    {"rebuilds": False},
)


def check_shape(index: ApTree) -> None:
    """Every node counts what is below it, and every clause is where it belongs and nowhere else."""
    tree, clauses, facts = index.arrays, index.clauses, index.arrays.facts
    ranks = [sorted(tree.ranks[_required(clauses, c)].tolist()) for c in range(len(clauses.boxes))]
    used = {nodes.CHILD_END: 0, nodes.CUT_END: 0, nodes.EDGE_END: 0, nodes.LIST_END: 0}
    seen = set()

    def expected_children(node: int, c: int) -> set[int]:
        size, extra, box = int(tree.sizes[node]), int(tree.extras[node]), clauses.boxes[c]
        if tree.kinds[node] == KEYWORDS:
            at = int(tree.offsets[node])
            if len(ranks[c]) < at:
                return {0}
            rank = ranks[c][at - 1]
            (cut,) = np.flatnonzero(
                (tree.firsts[extra : extra + size] <= rank)
                & (rank <= tree.lasts[extra : extra + size])
            )
            return {1 + int(cut)}
        n_columns, n_rows = size & 0xFFFF, size >> 16
        xs = tree.edges[extra : extra + n_columns + 1]
        ys = tree.edges[extra + n_columns + 1 : extra + n_columns + n_rows + 2]
        if box[0] <= xs[0] and box[1] <= ys[0] and box[2] >= xs[-1] and box[3] >= ys[-1]:
            return {0}
        columns = np.searchsorted(xs[1:-1], box[[0, 2]], side="right")
        rows = np.searchsorted(ys[1:-1], box[[1, 3]], side="right")
        return {
            1 + y * n_columns + x
            for y in range(rows[0], rows[1] + 1)
            for x in range(columns[0], columns[1] + 1)
        }

    def below(node: int, offset: int) -> set[int]:
        assert node not in seen
        seen.add(node)
        start, size = int(tree.starts[node]), int(tree.sizes[node])
        if tree.kinds[node] == LIST:
            n = int(tree.n_below[node])
            used[nodes.LIST_END] += size
            rows = tree.rows[start : start + n].tolist()
            assert len(set(rows)) == len(rows) == n <= size
            for place, c in enumerate(rows, start):
                assert tree.keys[place] == box_key(tree.quantizer, *clauses.boxes[c])
                told, required = int(tree.prints[place]), set(_required(clauses, c))
                pair = {told & 0x7FFFFFFF, told >> 32 & 0x7FFFFFFF}
                assert pair <= required
                n_tokens = clauses.token_offsets[c + 1] - clauses.token_offsets[c]
                is_all = n_tokens == len(pair) and clauses.shape_rows[c] < 0
                assert (told >> 63 == 1) == is_all
            limit = max(tree.rules[nodes.MOST_IN_LIST], int(tree.n_changes[node]))
            assert n <= limit
            return set(rows)
        if tree.kinds[node] == KEYWORDS:
            # The next keyword, or the same again in a cut of several.
            assert tree.offsets[node] in (offset, offset - 1)
            used[nodes.CUT_END] += size
            n_children = size + 1
        else:
            used[nodes.EDGE_END] += (size & 0xFFFF) + (size >> 16) + 2
            n_children = (size & 0xFFFF) * (size >> 16) + 1
        used[nodes.CHILD_END] += n_children
        next_offset = int(tree.offsets[node]) + 1 if tree.kinds[node] == KEYWORDS else offset
        weights = np.zeros(n_children)
        found: dict[int, set[int]] = {}
        for position, child in enumerate(tree.children[start : start + n_children].tolist()):
            if child < 0:
                continue
            assert tree.parents[child] == node
            assert tree.positions[child] == position
            weights[position] = tree.n_below[child]
            for c in below(child, next_offset):
                found.setdefault(c, set()).add(position)
        for c, positions in found.items():
            assert positions == expected_children(node, c)
        assert tree.n_below[node] == len(found) > tree.rules[nodes.MOST_IN_LIST] // 2
        assert tree.totals[node] == weights.sum()
        shares = tree.shares[start : start + n_children].astype(np.float64)
        now = (weights + 0.5) / (weights + 0.5).sum()
        divergence = float((shares * np.log(shares / now)).sum())
        assert nodes.divergence(tree, node) == pytest.approx(divergence, abs=1e-5)
        return set(found)

    live = np.flatnonzero(index.alive[clauses.subscriptions])
    assert sorted(below(0, 1)) == live.tolist()
    assert facts[nodes.N_CLAUSES] == len(live)
    assert all(tree.kinds[n] == FREE for n in range(facts[nodes.N_NODES]) if n not in seen)
    for end, n in used.items():
        assert facts[end] - facts[end + 1] == n  # what is not in use is counted as garbage


def _required(clauses: ClauseArrays, c: int) -> Any:
    tokens = clauses.token_ids[clauses.token_offsets[c] : clauses.token_offsets[c + 1]]
    return tokens[tokens >= 0]


@pytest.mark.parametrize("seed", range(18))
def test_changes_keep_the_tree_right(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(0, 500))
    recipe, case = random_case(random, seed, n)
    parameters = ApTreeParameters(
        fanout=int(random.choice([2, 9, 30])),
        max_list=int(random.choice([4, 9, 40])),
        max_divergence=float(random.choice([1e-9, 1e-3, 0.1])),
        **VARIANTS[seed % len(VARIANTS)],
    )
    index = ApTree.build(
        slots_between(case.clauses, 0, n // 3),
        space=recipe.space,
        parameters=parameters,
        sample=case.messages if seed % 3 == 0 else None,
    )
    expected = expected_answers(recipe, case)
    for live in changed(index, case.clauses, n, random, 30):
        check_shape(index)
        check_answers(index, case, expected, live)


# ---- partitions ----------------------------------------------------------------------------------


def _scratch(weights: list[float], chances: list[float], n_cuts: int) -> Any:
    n = len(weights)
    scratch = building.partition_scratch(n_cuts, n, n + 1, n_cuts * (n + 1))
    scratch.weights[:] = np.append(0, np.cumsum(weights))
    scratch.chances[:] = np.append(0, np.cumsum(chances))
    return scratch


def _cost(weights: list[float], chances: list[float], cuts: Any) -> float:
    return sum(sum(weights[a:b]) * sum(chances[a:b]) for a, b in pairwise(cuts))


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_dynamic_programming_is_optimal(seed: int, is_plain: bool) -> None:
    random = np.random.default_rng(seed)
    n, n_cuts = int(random.integers(3, 11)), int(random.integers(2, 5))
    weights = random.integers(1, 30, n).astype(float).tolist()
    chances = random.choice([0.0, 0.1, 1.0, 5.0], n).tolist()
    scratch = _scratch(weights, chances, n_cuts)
    n_made = partition.partition_optimally(n, n_cuts, is_plain, scratch)
    best = min(
        _cost(weights, chances, (0, *inner, n)) for inner in combinations(range(1, n), n_made - 1)
    )
    assert n_made == min(n, n_cuts)
    assert _cost(weights, chances, scratch.cuts[: n_made + 1]) == pytest.approx(best)


def test_heuristic_improves_on_even_cuts() -> None:
    random = np.random.default_rng(3)
    ratios = []
    for _ in range(20):
        weights = (1 + random.zipf(1.5, 60).clip(max=500)).astype(float).tolist()
        chances = random.random(60).tolist()
        costs = []
        for method in (
            partition.partition_evenly,
            partition.partition_heuristically,
            lambda n, n_cuts, scratch: partition.partition_optimally(n, n_cuts, False, scratch),
        ):
            scratch = _scratch(weights, chances, 12)
            n = method(60, 12, scratch)
            assert (np.diff(scratch.cuts[: n + 1]) > 0).all()
            costs.append(_cost(weights, chances, scratch.cuts[: n + 1]))
        assert costs[0] >= costs[1] >= costs[2] - 1e-9
        ratios.append(costs[1] / costs[2])
    assert np.mean(ratios) < 1.25


def test_what_cannot_be_split_is_a_list() -> None:
    # Algorithm 4 as printed would go on for ever.
    clauses = box_clauses(
        np.arange(0, 601, 2), np.tile([1, 2], 300), np.tile([0, 0, 1, 1], (300, 1))
    )
    index = ApTree.build(clauses, space="planar")
    assert index.arrays.kinds.tolist() == [LIST]
    index.insert(clauses._replace(subscriptions=clauses.subscriptions + 300))
    assert index.arrays.kinds[0] == LIST
    assert index.arrays.facts[nodes.N_SPLITS] <= 1
    index.remove(np.arange(600))
    assert index.arrays.n_below[0] == 0


def _kinds(clauses: ClauseArrays, **options: Any) -> set[int]:
    index = ApTree.build(clauses, space="planar", parameters=ApTreeParameters(**options))
    return {int(index.arrays.kinds[0])}


def test_the_cost_model_adapts() -> None:
    # [VLDBJ15] Fig. 2: the same place and many words, or the same words and many places.
    random = np.random.default_rng(1)
    n = 2000
    words, corners = random.permutation(n) + 1, random.random((n, 2))
    here = box_clauses(np.arange(n + 1), words, np.tile([0.4, 0.4, 0.6, 0.6], (n, 1)))
    small = np.hstack([corners, corners + 0.001])
    there = box_clauses(np.arange(n + 1), np.ones(n), small)
    assert _kinds(here) == _kinds(here, priority="space") == {KEYWORDS}
    assert _kinds(there) == _kinds(there, priority="keyword") == {SPACE}
    both = box_clauses(np.arange(n + 1), words, small)
    assert _kinds(both, priority="keyword") == {KEYWORDS}
    assert _kinds(both, priority="space") == {SPACE}


def test_a_sample_of_messages_decides() -> None:
    # Many words in many places: messages with every word are told apart by place only.
    random = np.random.default_rng(2)
    n, n_words = 3000, 150
    corners = random.random((n, 2))
    clauses = box_clauses(
        np.arange(n + 1), 1 + np.arange(n) % n_words, np.hstack([corners, corners + 0.05])
    )
    places = random.random((200, 2))
    boxes = np.hstack([places, places])
    full = MessageArrays(*ragged([list(range(n_words + 1))] * 200), boxes)
    short = MessageArrays(*ragged([[0, 1 + i % n_words] for i in range(200)]), boxes)
    kinds = [
        int(ApTree.build(clauses, space="planar", sample=sample).arrays.kinds[0])
        for sample in (full, short)
    ]
    assert kinds == [SPACE, KEYWORDS]
    index = ApTree.build(clauses, space="planar", sample=full)
    again, _ = index.rebuilt()
    assert again.arrays.sample_ranks.tolist() == index.arrays.sample_ranks.tolist()
    assert again.arrays.kinds[0] == SPACE


# ---- maintenance ---------------------------------------------------------------------------------

WORKLOAD = Workload(
    name="drift", n_subscriptions=6000, n_messages=200, n_words=3000, region_area_max=0.01
)


@pytest.mark.parametrize(
    "options", [{}, {"fanout": 9, "max_list": 6, "max_divergence": 1e-9}, {"rebuilds": False}]
)
def test_work_of_changes_is_bounded(options: dict[str, Any]) -> None:
    index = ApTree.build(
        WORKLOAD.subscriptions(0, 500), space="planar", parameters=ApTreeParameters(**options)
    )
    facts, random = index.arrays.facts, np.random.default_rng(4)
    index.insert(WORKLOAD.subscriptions(500, 6000))
    n_inserted = int(facts[nodes.N_VISITED])
    assert facts[nodes.N_MOVED] <= 3 * n_inserted
    index.remove(random.permutation(6000)[:5998])
    assert facts[nodes.N_MOVED] <= 3 * facts[nodes.N_VISITED]
    assert facts[nodes.N_SPLITS] > 0
    assert facts[nodes.N_COLLAPSES if "rebuilds" in options else nodes.N_REBUILDS] > 0
    check_shape(index)


def test_rebuilding_follows_drift() -> None:
    # Half of the words are others from one 32,768 subscriptions to the next.
    workload = replace(find_workload("ap_tweets_drifting"), n_words=50_000).scaled(70_000, 200)
    messages, work, rebuilds = workload.messages(), [], []
    for parameters in (ApTreeParameters(), ApTreeParameters(rebuilds=False)):
        index = ApTree.build(
            workload.subscriptions(0, 14_000),
            space="planar",
            n_tokens=workload.n_tokens,
            parameters=parameters,
        )
        before = index.arrays.ranks.tolist()
        index.insert(workload.subscriptions(14_000, 70_000))
        counters = index.match(messages).counters
        work.append(motion.VISIT * counters.nodes + counters.candidates)
        rebuilds.append(int(index.arrays.facts[nodes.N_REBUILDS]))
        assert (index.arrays.ranks.tolist() == before) != parameters.rebuilds
    assert rebuilds[0] > 0 == rebuilds[1]
    assert work[0] < 0.75 * work[1]


def test_garbage_is_packed() -> None:
    index = ApTree.build(WORKLOAD.subscriptions(0, 4000), space="planar")
    sizes = []
    for turn in range(12):
        index.insert(WORKLOAD.subscriptions(4000 + 500 * turn, 4500 + 500 * turn))
        index.remove(np.arange(500 * turn, 500 * turn + 500))
        sizes.append(sum(int(getattr(index.arrays, name).nbytes) for name in ("rows", "children")))
    assert sizes[-1] <= 1.5 * sizes[2]
    check_shape(index)


# ---- edges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fanout": 1}, "fanout is 1"),
        ({"max_list": True}, "max_list is True"),
        ({"keyword_partition": "best"}, "expected one of heuristic, dp, plain_dp"),
        ({"priority": "none"}, "expected one of cost, keyword, space"),
        ({"rebuilds": 1}, "rebuilds is 1"),
        ({"max_divergence": 0.0}, "max_divergence is 0.0"),
        ({"min_share": 2}, "min_share is 2"),
    ],
)
def test_wrong_parameters_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidParameter, match=words):
        ApTreeParameters(**options)


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [("children", 1, 1 << 20), ("rows", 0, -5), ("starts", 0, 1 << 40), ("sizes", 0, 30_000),
     ("parents", 1, 99_999), ("facts", nodes.LIST_END, 1 << 40), ("kinds", 0, 9),
     ("sample_offsets", 0, 3)],
)  # fmt: skip
def test_a_tree_that_contradicts_itself_is_refused(
    tmp_path: Path, name: str, place: int, value: int
) -> None:
    index = ApTree.build(WORKLOAD.subscriptions(0, 2000), space="planar")
    ApTree.open(_saved(index, tmp_path / "whole"))
    getattr(index.arrays, name)[place] = value
    with pytest.raises(SavedIndexError, match="contradicts itself"):
        ApTree.open(_saved(index, tmp_path / "damaged"))


def _saved(index: ApTree, directory: Path) -> Path:
    index.save(directory)
    return directory


def test_no_rank_is_beyond_all() -> None:
    ranks = np.array([5, 2, 9], np.int32)
    tokens = np.array([0, 1, 2, ~1], np.int32)
    found = [nodes.rank_at(ranks, tokens, 0, 4, n) for n in (1, 2, 3, 4)]
    assert found == [2, 5, 9, NO_RANK]


def test_a_long_list_is_not_packed_at_each_insertion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clauses that nothing tells apart stand in one list, however long."""
    n = 6000
    packings: list[int] = []
    same = box_clauses(
        np.arange(n + 301), np.ones(n + 300), np.tile([0.0, 0.0, 1.0, 1.0], (n + 300, 1))
    )
    index = ApTree.build(take_clauses(same, np.arange(n)))
    pack = building.packed_tree

    def pack_and_count(*given: Any) -> Any:
        packings.append(1)
        return pack(*given)

    monkeypatch.setattr(building, "packed_tree", pack_and_count)
    index.insert(take_clauses(same, np.arange(n, n + 300)))
    assert len(packings) <= 2
    check_shape(index)
