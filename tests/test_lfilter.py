"""LFilter: both structures after any changes, the choices it makes and how they are counted."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

from changing import changed, check_answers, expected_answers, random_case, slots_between
from earshot.errors import InvalidParameter
from earshot.indexes.lfilter.index import FilterStep, LFilter, LFilterParameters, Verification
from earshot.indexes.lfilter.kernels.costs import ENTRIES_SUM, PROBES_SUM, TRIE_SUM
from earshot.indexes.mbr_trie import index as mbr_trie
from earshot.indexes.mbr_trie.kernels.nodes import N_ENTRIES
from earshot.indexes.quadtree.kernels.nodes import N_NODES, copy_numbers
from earshot.workloads.synthetic import find_workload
from test_mbr_trie import check_trie

FILTER_STEPS, VERIFICATIONS = get_args(FilterStep), get_args(Verification)


def check_both(index: Any) -> None:
    """The trie is right, and the quadtree's lists hold the live clauses by the same numbers."""
    check_trie(index, index.arrays.trie)
    assert index.arrays.trie.facts[N_ENTRIES] == len(index.clauses.subscriptions)
    tree = index.arrays.quadtree.tree
    numbers = np.zeros(int(tree.counts[: tree.facts[N_NODES]].sum()), np.int32)
    end = 0
    for node in range(int(tree.facts[N_NODES])):
        before, end = end, int(copy_numbers(tree.lists, node, numbers, end))
        assert end - before == tree.counts[node] or tree.counts[node] == 0
    live = np.flatnonzero(index.alive[index.clauses.subscriptions])
    assert np.unique(numbers[:end]).tolist() == live.tolist()


@pytest.mark.parametrize("seed", range(18))
def test_changes_keep_both_right(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mbr_trie, "_LEAST_CHANGES", (10_000, 64)[seed % 2])
    random = np.random.default_rng(seed)
    n = int(random.integers(0, 400))
    recipe, case = random_case(random, seed, n)
    parameters = LFilterParameters(
        placement=("leaves", "mx_cif")[seed // 2 % 2],
        tau_num=(8, 32, 128)[seed // 4 % 3],
        filter_step=FILTER_STEPS[seed % 3],
        verification=VERIFICATIONS[seed // 3 % 3],
    )
    first = slots_between(case.clauses, 0, n // 3)
    index = LFilter.build(first, space=recipe.space, parameters=parameters)
    check_both(index)
    expected = expected_answers(recipe, case)
    for live in changed(index, case.clauses, n, random, 24):
        check_both(index)
        check_answers(index, case, expected, live)
        for way in ("trie", "quadtree"):
            check_answers(index.forced(filter_step=way), case, expected, live)


def _index(group: str, n: int, **chosen: Any) -> tuple[LFilter, Any]:
    workload = find_workload(f"tweets_{group}").scaled(n, 30)
    index = LFilter.build(
        workload.subscriptions(),
        space="planar",
        n_tokens=workload.n_tokens,
        parameters=LFilterParameters(**chosen),
    )
    return index, workload.messages()


def test_choices_are_counted_and_pruning_saves_candidates() -> None:
    index, messages = _index("short_point", 20_000)
    candidates = {}
    for verification in VERIFICATIONS:
        chosen = index.forced(filter_step="quadtree", verification=verification)
        candidates[verification] = chosen.match(messages).counters.candidates
        choices = chosen.choices
        assert (choices["trie"], choices["quadtree"]) == (0, 30)
        lists = choices["lists_pruned"], choices["lists_verified"]
        assert sum(lists) > 0
        if verification != "cost":
            assert lists[verification == "pruned"] == 0
    assert candidates["pruned"] < candidates["cost"] < candidates["direct"]
    index.match(messages, n_threads=2)
    assert index.choices["trie"] + index.choices["quadtree"] == 30


def test_expected_work_grows_with_the_message() -> None:
    index, _ = _index("short_point", 5_000)
    expected = index.arrays.costs.expected
    for row in (TRIE_SUM, PROBES_SUM, ENTRIES_SUM):
        assert (np.diff(expected[row]) >= 0).all()
        assert expected[row, 0] < expected[row, -1]
    # A message of all words finds the lists of whole leaves, weighed by their lengths.
    tree = index.arrays.quadtree.tree
    counts = tree.counts[: tree.facts[N_NODES]].astype(float)
    assert expected[ENTRIES_SUM, -1] <= (counts**2).sum() / counts.sum()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filter_step": "both"}, "filter_step is 'both'; expected one of trie, quadtree, cost"),
        ({"verification": "none"}, "verification is 'none'; expected one of pruned, direct, cost"),
        ({"probing": "x"}, "probing is 'x'; expected one of token_set, trie, cost"),
        ({"tau_num": 1}, "tau_num is 1"),
    ],
)
def test_wrong_parameters_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        LFilterParameters(**options)
