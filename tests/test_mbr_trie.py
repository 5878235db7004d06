"""The trie of [CIKM15]: its nodes after any changes, and the three ways to probe them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from changing import changed, check_answers, expected_answers, random_case, slots_between
from earshot.checks.generate import ragged
from earshot.errors import InvalidParameter
from earshot.indexes.mbr_trie import index as mbr_trie
from earshot.indexes.mbr_trie.index import PROBINGS, MbrTrie, MbrTrieParameters
from earshot.indexes.mbr_trie.kernels.nodes import (
    FIRST_CHILD,
    LABEL,
    N_CHILDREN,
    N_ENTRIES,
    N_NUMBERED,
    N_TOKENS_BELOW,
    OWN_STOP,
    ROOT,
    START,
    TOP_NODE,
)
from earshot.kernels.box_keys import DEAD_KEY, box_key, union_key
from earshot.model.arrays import MessageArrays, box_clauses
from earshot.workloads.synthetic import find_workload


def check_trie(index: Any, trie: Any) -> None:
    """Every node holds what it should: labels, numbers, and the smallest box of what is below."""
    clauses = index.clauses
    n_numbered = int(trie.facts[N_NUMBERED])
    levels: dict[int, int] = {}

    def own_numbers(node: int) -> list[int]:
        start, stop = trie.nodes[node, START], trie.nodes[node, OWN_STOP]
        numbers = [k for k in range(start, stop) if trie.entry_keys[k] != DEAD_KEY]
        number = int(trie.heads[node]) if len(trie.heads) else -1
        while number >= 0:
            assert number >= n_numbered
            numbers.append(number)
            number = int(trie.chains[number - n_numbered])
        return numbers

    def path_of(row: int) -> list[int]:
        own = clauses.token_ids[clauses.token_offsets[row] : clauses.token_offsets[row + 1]]
        return sorted(trie.tokens[own[own >= 0], LABEL].tolist(), reverse=True)

    def check(node: int, path: list[int], end: int) -> list[int]:
        levels[len(path)] = levels.get(len(path), 0) + 1
        first, n = int(trie.nodes[node, FIRST_CHILD]), int(trie.nodes[node, N_CHILDREN])
        start = int(trie.nodes[node, START])
        assert start <= trie.nodes[node, OWN_STOP] <= end
        own = own_numbers(node)
        key = DEAD_KEY
        for number in own:
            row = number
            assert path_of(row) == path
            assert trie.entry_keys[row] == box_key(trie.quantizer, *clauses.boxes[row])
            own_tokens = clauses.token_ids[
                clauses.token_offsets[row] : clauses.token_offsets[row + 1]
            ]
            has_more = (own_tokens < 0).any() or clauses.shape_rows[row] >= 0
            assert trie.has_more[row] == has_more
            key = np.uint64(union_key(key, trie.entry_keys[number]))
        children = range(first, first + n)
        if node != ROOT:
            labels = trie.labels[first : first + n].tolist()
            assert labels == sorted(set(labels), reverse=True)
        numbers = list(own)
        for child in children:
            label = int(trie.labels[child])
            assert not path or label < path[-1]
            child_end = int(trie.nodes[child + 1, START]) if child + 1 < first + n else end
            numbers += check(child, [*path, label], child_end)
            key = np.uint64(union_key(key, trie.keys[child]))
        assert trie.keys[node] == key
        assert all(start <= number < end for number in numbers if number < n_numbered)
        return numbers

    numbers = check(ROOT, [], n_numbered)
    live = np.flatnonzero(index.alive[clauses.subscriptions])
    assert sorted(numbers) == live.tolist()
    assert trie.facts[N_TOKENS_BELOW] == sum(len(path_of(row)) for row in live.tolist())
    assert max(numbers, default=-1) < trie.facts[N_ENTRIES]
    assert trie.level_nodes.tolist() == [levels.get(level, 0) for level in range(16)]
    tops = {int(trie.labels[top]): top for top in _children(trie, ROOT)}
    told = {label: top for label, top in trie.tokens.tolist() if top >= 0}
    assert told == tops


def _children(trie: Any, node: int) -> range:
    first = int(trie.nodes[node, FIRST_CHILD])
    return range(first, first + int(trie.nodes[node, N_CHILDREN]))


@pytest.mark.parametrize("seed", range(24))
def test_changes_keep_the_trie_right(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Some tries stay as they grow, others are built anew time and again.
    monkeypatch.setattr(mbr_trie, "_LEAST_CHANGES", (10_000, 256, 4)[seed // 3 % 3])
    random = np.random.default_rng(seed)
    n = int(random.integers(0, 500))
    recipe, case = random_case(random, seed, n)
    parameters = MbrTrieParameters(PROBINGS[seed % 3])
    first = slots_between(case.clauses, 0, n // 3)
    index = MbrTrie.build(first, space=recipe.space, parameters=parameters)
    check_trie(index, index.arrays)
    expected = expected_answers(recipe, case)
    for live in changed(index, case.clauses, n, random, 30):
        check_trie(index, index.arrays)
        check_answers(index, case, expected, live)


def test_rarest_token_comes_first_and_new_ones_before() -> None:
    rows = [[1, 2], [1, 3], [1], [1, 2, 3]]
    index = MbrTrie.build(box_clauses(*ragged(rows), [[0, 0, 1, 1]] * 4), space="planar")
    trie = index.arrays
    # Token 1 is the most frequent; 2 is as frequent as 3, and the later one counts as rarer.
    assert trie.tokens[[1, 2, 3], LABEL].tolist() == [0, 1, 2]
    assert (trie.tokens[:, TOP_NODE] >= 0).tolist() == [False, True, True, True]
    assert index.clauses.subscriptions.tolist() == [3, 1, 0, 2]  # {3, 2, 1}, {3, 1}, {2, 1}, {1}
    index.insert(box_clauses([0, 2], [1, 9], [[0, 0, 1, 1]], [4]))
    assert index.arrays.tokens[9, TOP_NODE] >= 0
    check_trie(index, index.arrays)


@pytest.mark.parametrize("group", ["short_point", "long_range"])
def test_probings_visit_the_same_nodes_and_choices_are_counted(group: str) -> None:
    workload = find_workload(f"tweets_{group}").scaled(20_000, 40)
    messages = workload.messages()
    work, choices = set(), {}
    for probing in PROBINGS:
        index = MbrTrie.build(
            workload.subscriptions(),
            space="planar",
            n_tokens=workload.n_tokens,
            frequencies=workload.frequencies(),
            parameters=MbrTrieParameters(probing),
        )
        work.add(index.match(messages).counters)
        choices[probing] = index.choices
    assert len(work) == 1
    n_choices = {sum(each.values()) for each in choices.values()}
    assert len(n_choices) == 1
    assert choices["token_set"]["trie"] == choices["trie"]["token_set"] == 0
    assert min(choices["cost"].values()) > 0


def test_a_message_that_comes_again_is_counted_once() -> None:
    # More answers than the first buffer holds.
    n = 5_000
    clauses = box_clauses(*ragged([[1]] * n), [[0, 0, 1, 1]] * n)
    index = MbrTrie.build(clauses, space="planar")
    messages = MessageArrays(*ragged([[0, 1]]), np.array([[0.5, 0.5, 0.5, 0.5]]))
    assert index.match(messages).counters.answers == n
    assert sum(index.choices.values()) == 1


def test_wrong_probing_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="probing is 'both'; expected one of token_set"):
        MbrTrieParameters("both")  # type: ignore[arg-type]
