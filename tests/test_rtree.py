"""The trees that change in place: their shape and tables after any changes, orders, pruning."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from changing import changed, check_answers, expected_answers, random_case, slots_between
from earshot.checks.ranked_oracle import delivered, parts_of
from earshot.errors import InvalidInput, InvalidParameter
from earshot.indexes import index_type
from earshot.indexes.contract import Index
from earshot.indexes.kernels.token_tables import EMPTY, ROW_BITS, list_entry_at, list_length
from earshot.indexes.rtree.index import OrderedRtreeParameters, RtreeIndex, RtreeParameters
from earshot.indexes.rtree.kernels import nodes as rtree
from earshot.indexes.rtree.kernels.nodes import (
    INVERTED,
    KIND,
    LEVELS,
    MAX_ENTRIES,
    MIN_ENTRIES,
    ROOT,
    SETS,
    SINGLE,
    entry_clause,
)
from earshot.indexes.rtree.token_orders import TOKEN_ORDERS
from earshot.model.arrays import box_clauses, nbytes
from earshot.workloads.synthetic import find_workload

TREES = ("rt_tree", "rt_plus_tree", "rt_plus_plus_tree", "ir_tree")
SIZES = ((2, 4), (2, 5), (3, 8), (4, 16), (25, 50))
EVERYWHERE = (0.0, 0.0, 1.0, 1.0)


def check_shape(index: Any) -> None:
    """Every node holds what it should, and every table what is below its node."""
    tree, clauses = index.arrays.tree, index.clauses
    root, stride = int(tree.facts[ROOT]), int(tree.facts[MAX_ENTRIES])

    def below(node: int, depth: int) -> list[int]:
        n = int(tree.counts[node])
        assert node == root or tree.facts[MIN_ENTRIES] <= n <= stride
        entries = tree.entries[node * stride : node * stride + n].tolist()
        if tree.levels[node] == 0:
            assert all(tree.leaves[c] == node for c in entries)
            groups = [[c] for c in entries]
        else:
            assert all(tree.parents[child] == node for child in entries)
            assert all(tree.levels[child] == tree.levels[node] - 1 for child in entries)
            groups = [below(child, depth + 1) for child in entries]
        assert tree.n_below[node] == sum(map(len, groups))
        assert _table(tree, node) == _expected_table(index, node, max(depth, 1), groups)
        return [c for group in groups for c in group]

    live = np.flatnonzero(index.alive[clauses.subscriptions])
    assert sorted(below(root, 0)) == live.tolist()


def _table(tree: Any, node: int) -> dict[int, Any]:
    tables = tree.tables
    start, size = int(tables.starts[node]), int(tables.sizes[node])
    found: dict[int, Any] = {}
    for token, value in zip(
        tables.tokens[start : start + size].tolist(),
        tables.values[start : start + size].tolist(),
        strict=True,
    ):
        if token == EMPTY:
            continue
        assert token not in found
        if tree.facts[KIND] == LEVELS and tree.levels[node] > 0:
            entries = [list_entry_at(tree.tables, value, i) for i in range(list_length(value))]
            groups = [entry >> ROW_BITS & 63 for entry in entries]
            assert groups == sorted(groups)
            assert all(
                a != b or entry_clause(y) >= 0
                for (a, b), (_, y) in zip(pairwise(groups), pairwise(entries), strict=True)
            )
            found[token] = {(entry >> ROW_BITS & 63, entry_clause(entry)) for entry in entries}
            assert len(found[token]) == len(entries)
            continue
        found[token] = value
    assert len(found) == tables.used[node]
    return found


def _expected_table(index: Any, node: int, depth: int, groups: list[list[int]]) -> dict[int, Any]:
    tree, clauses = index.arrays.tree, index.clauses
    kind, is_leaf = int(tree.facts[KIND]), tree.levels[node] == 0
    expected: dict[int, Any] = {}
    if node == tree.facts[ROOT] and not is_leaf and kind != INVERTED:
        return expected
    height = max(1, int(tree.levels[tree.facts[ROOT]]))
    for position, group in enumerate(groups):
        for c in group:
            start = int(clauses.token_offsets[c])
            own = clauses.token_ids[start : clauses.token_offsets[c + 1]]
            own = own[own >= 0].tolist()
            if kind in (SETS, INVERTED):
                posted = own
            elif kind == SINGLE:
                posted = [int(tree.ordered[c])]
                assert posted[0] in own
            else:
                ordered = tree.ordered[start : start + len(own)].tolist()
                assert sorted(ordered) == sorted(own)
                at = min(depth, len(own)) - 1
                posted = ordered[at:] if is_leaf else [ordered[at]]
                assert depth == height if is_leaf else depth < height
                prints = [token & 0xFFFF for token in (ordered * 2 if len(own) == 1 else ordered)]
                assert tree.prints[c] == prints[0] | prints[1] << 16
            for token in posted:
                if kind in (SETS, SINGLE):
                    expected[token] = expected.get(token, 0) + 1
                elif kind == INVERTED or is_leaf:
                    expected[token] = expected.get(token, 0) | 1 << position
                else:
                    expected.setdefault(token, set()).add((position, -1 if len(own) == 1 else c))
    return expected


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", TREES)
def test_changes_keep_the_tree_right(name: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(0, 500))
    recipe, case = random_case(random, seed, n)
    kind = index_type(name)
    options: dict[str, Any] = dict(
        zip(("min_entries", "max_entries"), SIZES[seed % 5], strict=True)
    )
    if kind.parameters_type is OrderedRtreeParameters:
        options |= {"token_order": TOKEN_ORDERS[seed % 4], "n_cells": int(random.choice([1, 16]))}
    index = kind.build(
        slots_between(case.clauses, 0, n // 3),
        space=recipe.space,
        parameters=kind.parameters_type(**options),
    )
    check_shape(index)
    expected = expected_answers(recipe, case)
    for live in changed(index, case.clauses, n, random, 30):
        check_shape(index)
        check_answers(index, case, expected, live)


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("name", TREES)
def test_changes_keep_ranked_answers_right(name: str, seed: int) -> None:
    random = np.random.default_rng(1000 + seed)
    n = int(random.integers(0, 220))
    recipe, case = random_case(random, seed, n)
    clauses = case.clauses
    if seed % 3 == 0:
        own = random.choice([np.nan, np.nan, 0.1, 0.5, 1.0], n)
        clauses = clauses._replace(thresholds=own[clauses.subscriptions])
    alpha = float(random.choice([0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0]))
    threshold = float(random.choice([0.1, 0.3, 0.5, 0.6, 0.75, 0.9, 1.0]))
    weights = random.choice([1.0, 1.0, 2.0, 3.5], recipe.n_tokens + 4)
    kind = index_type(name, "ranked")
    options: dict[str, Any] = dict(
        zip(("min_entries", "max_entries"), SIZES[seed % 5], strict=True)
    )
    if "token_order" in kind.parameters_type.__dataclass_fields__:
        options |= {"token_order": TOKEN_ORDERS[seed % 4]}
    parameters = kind.parameters_type(alpha=alpha, threshold=threshold, **options)
    index = kind.build(
        slots_between(clauses, 0, n // 2),
        space=recipe.space,
        parameters=parameters,
        weights=weights,
    )
    parts = parts_of(clauses, case.messages, recipe.space, weights.tolist())
    expected = delivered(parts, clauses, alpha, threshold)
    for live in changed(index, clauses, n, random, 18):
        found = index.match(case.messages)
        assert found.scores is not None
        for row, answers in enumerate(expected):
            rows = slice(found.offsets[row], found.offsets[row + 1])
            slots = found.subscriptions[rows].tolist()
            assert sorted(slots) == sorted(answers.keys() & live)
            scores = [answers[slot] for slot in slots]
            np.testing.assert_allclose(found.scores[rows], scores, rtol=0, atol=1e-12)


@pytest.mark.parametrize("group", ["short_point", "short_range", "long_point", "long_range"])
def test_each_tree_examines_fewer(group: str) -> None:
    workload = find_workload(f"tweets_{group}").scaled(60_000, 60)
    messages = workload.messages()
    work = {}
    for name in TREES[:3]:
        index = index_type(name).build(
            workload.subscriptions(),
            space="planar",
            n_tokens=workload.n_tokens,
            frequencies=workload.frequencies(),
        )
        assert index.arrays.tree.levels[index.arrays.tree.facts[ROOT]] >= 2
        work[name] = index.match(messages).counters
    for less, more in (("rt_plus_plus_tree", "rt_plus_tree"), ("rt_plus_tree", "rt_tree")):
        assert work[less].candidates <= work[more].candidates
        assert work[less].nodes <= work[more].nodes
    assert work["rt_plus_plus_tree"].candidates < work["rt_tree"].candidates


# ---- orders of tokens ---------------------------------------------------------------------------


def _representatives(index: Index) -> list[int]:
    result: list[int] = index.arrays.tree.ordered[: len(index.clauses.subscriptions)].tolist()
    return result


def _plus_tree(tokens: list[list[int]], boxes: Any = None, **options: Any) -> Index:
    offsets = np.cumsum([0] + [len(row) for row in tokens])
    flat = [token for row in tokens for token in row]
    boxes = [EVERYWHERE] * len(tokens) if boxes is None else boxes
    parameters = OrderedRtreeParameters(**options)
    return index_type("rt_plus_tree").build(
        box_clauses(offsets, flat, boxes), space="planar", parameters=parameters
    )


def test_idf_takes_the_rarest_token() -> None:
    index = _plus_tree([[1, 2], [1, 2, 3], [1], [1, 2]], token_order="idf")
    assert _representatives(index) == [2, 3, 1, 2]


def test_df_is_greedy() -> None:
    # Token 1 is in three of five, and only then is 4 in most of what is left, before 2 and 3.
    index = _plus_tree([[1, 2], [1, 2], [1, 3], [2, 4], [3, 4]], token_order="df")
    assert _representatives(index) == [1, 1, 1, 4, 4]


def test_random_depends_on_the_seed_alone() -> None:
    tokens = [[1, 2, 3, 4, 5]] * 60
    first, again, other = (
        _representatives(_plus_tree(tokens, token_order="random", seed=seed)) for seed in (1, 1, 2)
    )
    assert first == again != other
    assert set(first) == {1, 2, 3, 4, 5}


def test_local_takes_what_is_rare_where_the_clause_is() -> None:
    # Token 1 is frequent in the west, 2 in the east; each clause should name the foreign one.
    west = [(x / 100, 0.4, x / 100 + 0.001, 0.6) for x in range(20)]
    east = [(x / 100 + 0.8, 0.4, x / 100 + 0.801, 0.6) for x in range(20)]
    tokens = [[1]] * 19 + [[1, 2]] + [[2]] * 19 + [[1, 2]]
    index = _plus_tree(tokens, west + east, token_order="local", n_cells=4)
    assert _representatives(index)[19] == 2
    assert _representatives(index)[39] == 1


@pytest.mark.parametrize("order", TOKEN_ORDERS)
def test_representatives_stay_while_frequencies_change(order: str) -> None:
    index = _plus_tree([[1, 2], [2, 3], [1, 3]], token_order=order)
    before = _representatives(index)
    more = box_clauses([0, 1, 2, 3], [1, 1, 2], [EVERYWHERE] * 3, [3, 4, 5])
    index.insert(more)
    assert _representatives(index)[:3] == before
    check_shape(index)


def test_later_clauses_follow_the_frequencies_they_find() -> None:
    index = _plus_tree([[1, 2], [1], [1]], token_order="idf")
    index.insert(box_clauses([0, 1, 2, 3, 4], [2, 2, 2, 2], [EVERYWHERE] * 4, [3, 4, 5, 6]))
    index.insert(box_clauses([0, 2], [1, 2], [EVERYWHERE], [7]))
    assert _representatives(index)[0] == 2
    assert _representatives(index)[7] == 1


# ---- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_entries": 3}, "max_entries is 3; expected 4 to 63"),
        ({"max_entries": 64}, "max_entries is 64; expected 4 to 63"),
        ({"min_entries": 1}, "min_entries is 1; expected 2 to 25"),
        ({"min_entries": 26}, "min_entries is 26; expected 2 to 25"),
        ({"max_entries": 50.5}, "max_entries is 50.5; expected a whole number"),
    ],
)
def test_sizes_of_nodes_are_checked(options: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        RtreeParameters(**options)


def test_orders_are_checked() -> None:
    with pytest.raises(InvalidParameter, match="'tf'; expected one of random, df, idf, local"):
        OrderedRtreeParameters(token_order="tf")  # type: ignore[arg-type]
    for wrong in (0, -1, 1_000_001, 2.5, True):
        with pytest.raises(InvalidParameter, match="expected 1 to 1,000,000"):
            OrderedRtreeParameters(n_cells=wrong)  # type: ignore[arg-type]


def test_too_many_clauses_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("earshot.indexes.rtree.index.ROW_MASK", 3)
    tokens = [[1]] * 4
    offsets, boxes = np.arange(5), [EVERYWHERE] * 4
    clauses = box_clauses(offsets, [1] * 4, boxes)
    with pytest.raises(
        InvalidInput, match="4 clauses, removed ones included; this tree takes fewer than 3"
    ):
        index_type("rt_plus_plus_tree").build(clauses)
    assert index_type("rt_tree").build(clauses).n_subscriptions == len(tokens)


@pytest.mark.parametrize("name", TREES)
def test_many_changes_leave_no_heap_of_garbage(name: str) -> None:
    workload = find_workload("tweets_short_point").scaled(1_500)
    index = index_type(name).build(workload.subscriptions(), space="planar")
    assert isinstance(index, RtreeIndex)
    sizes = []
    for start in range(1_500, 25_500, 500):
        index.insert(workload.subscriptions(start, start + 500))
        index.remove(np.arange(start - 1_500, start - 1_000))
        tables = index.arrays.tree.tables
        sizes.append(nbytes((tables.tokens, tables.values, tables.lists)))
    assert index.n_subscriptions == 1_500
    assert max(sizes[24:]) <= 1.5 * max(sizes[:24])
    check_shape(index)


def test_a_list_entry_holds_the_highest_row_and_position() -> None:
    entry = rtree.list_entry(62, (1 << ROW_BITS) - 2)
    assert rtree.entry_clause(entry) == (1 << ROW_BITS) - 2
    assert rtree.entry_bit(entry) == 1 << 62
