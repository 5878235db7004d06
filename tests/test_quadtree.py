"""Quadtrees that change in place: cells, lists and sets after any changes, placements, limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from changing import changed, check_answers, expected_answers, random_case, slots_between
from earshot.checks.generate import Case, Recipe
from earshot.errors import InvalidParameter
from earshot.indexes.contract import Index
from earshot.indexes.iq_tree.index import IqTree, IqTreeParameters
from earshot.indexes.iq_tree.kernels.changes import new_choice
from earshot.indexes.iq_tree.kernels.cost import choose_cells
from earshot.indexes.kernels.token_tables import EMPTY, list_entry_at, list_length
from earshot.indexes.pt_quadtree.index import PtQuadtree, PtQuadtreeParameters
from earshot.indexes.pt_quadtree.kernels.changes import LEAVES, MAX_DEPTH, PLACEMENT
from earshot.indexes.quadtree.kernels.cells import (
    BITS,
    cell_column,
    cell_depth,
    cell_row,
    child_cell,
)
from earshot.indexes.quadtree.kernels.nodes import (
    N_POSTINGS,
    NO_CHILDREN,
    clause_of,
    clause_on_grid,
)
from earshot.indexes.rq_tree.index import RqTree


def table_of(tables: Any, node: int) -> dict[int, int]:
    """Return a node's table: values by token."""
    start, size = int(tables.starts[node]), int(tables.sizes[node])
    tokens = tables.tokens[start : start + size].tolist()
    values = tables.values[start : start + size].tolist()
    found = {t: v for t, v in zip(tokens, values, strict=True) if t != EMPTY}
    assert len(found) == tables.used[node] == sum(t != EMPTY for t in tokens)
    return found


def lists_of(tree: Any, node: int) -> dict[int, list[int]]:
    """Return a node's lists: clauses by token, in the order of their numbers."""
    found = {}
    for token, value in table_of(tree.lists, node).items():
        numbers = [list_entry_at(tree.lists, value, i) for i in range(list_length(value))]
        assert numbers == sorted(set(numbers)) != []
        found[token] = [int(clause_of(tree, number)) for number in numbers]
    assert sum(map(len, found.values())) == tree.counts[node]
    return found


def touches(cell: int, on_grid: Any) -> bool:
    """Whether a cell touches a grid box, told without the kernels' bits."""
    side = 1 << (BITS - cell_depth(cell))
    west, south = cell_column(cell) * side, cell_row(cell) * side
    return bool(
        on_grid[0] < west + side
        and on_grid[2] >= west
        and on_grid[1] < south + side
        and on_grid[3] >= south
    )


def holds(cell: int, on_grid: Any) -> bool:
    """Whether a grid box lies within a cell."""
    side = 1 << (BITS - cell_depth(cell))
    west, south = cell_column(cell) * side, cell_row(cell) * side
    return bool(
        on_grid[0] >= west
        and on_grid[2] < west + side
        and on_grid[1] >= south
        and on_grid[3] < south + side
    )


def check_pt_quadtree(index: Any) -> None:
    """Every clause is where it belongs, and every table tells what is below its node."""
    arrays, clauses = index.arrays, index.clauses
    tree, rules = arrays.tree, arrays.rules
    live = np.flatnonzero(index.alive[clauses.subscriptions]).tolist()
    on_grid = {c: clause_on_grid(tree, clauses, c) for c in live}
    n_postings = 0

    def check(node: int) -> tuple[set[int], set[int], int]:
        """Return the tokens of a node, those that cover it, and the number of leaves."""
        nonlocal n_postings
        lists, cell = lists_of(tree, node), int(tree.cells[node])
        n_postings += int(tree.counts[node])
        held = sorted(c for some in lists.values() for c in some)
        first = int(tree.children[node])
        is_leaf = first == NO_CHILDREN
        if rules[PLACEMENT] == LEAVES:
            expected = [c for c in live if is_leaf and touches(cell, on_grid[c])]
        else:
            quarters = [child_cell(cell, i) for i in range(4)]
            expected = [
                c for c in live
                if holds(cell, on_grid[c])
                and (is_leaf or not any(holds(quarter, on_grid[c]) for quarter in quarters))
            ]  # fmt: skip
        assert held == expected
        for token, some in lists.items():
            for c in some:
                own = clauses.token_ids[clauses.token_offsets[c] : clauses.token_offsets[c + 1]]
                assert token in own.tolist()
        if is_leaf:
            assert arrays.sets.sizes[node] == 0
            assert arrays.n_leaves[node] == 1
            assert tree.counts[node] < arrays.limits[node]
            return set(lists), set(lists), 1
        assert cell_depth(cell) < rules[MAX_DEPTH]
        found = []
        for i in range(4):
            assert tree.parents[first + i] == node
            assert tree.cells[first + i] == child_cell(cell, i)
            found.append(check(first + i))
        tokens = set(lists).union(*(each[0] for each in found))
        covers = set.intersection(*(each[1] for each in found))
        bits = {
            token: sum(
                (token in found[i][0]) << i | (token in found[i][1]) << (i + 4) for i in range(4)
            )
            for token in tokens
        }
        is_root = tree.parents[node] < 0
        assert table_of(arrays.sets, node) == {
            token: value for token, value in bits.items()
            if value and (is_root or token not in covers)
        }  # fmt: skip
        n_leaves = sum(each[2] for each in found)
        assert arrays.n_leaves[node] == n_leaves
        return tokens, covers, n_leaves

    check(0)
    assert tree.facts[N_POSTINGS] == n_postings


def sized_case(random: np.random.Generator, seed: int, n: int) -> tuple[Recipe, Case]:
    """Return a recipe and its case, of sizes from points to half of the space."""
    side = float(random.choice([0.0, 0.02, 0.1, 0.5]))
    return random_case(random, seed, n, side=side, max_keywords=int(random.integers(1, 6)))


def run_changes(index: Index, recipe: Recipe, case: Case, random: Any, check: Any) -> None:
    """Insert and remove at random; the structure and its answers are right all the time."""
    expected = expected_answers(recipe, case)
    for live in changed(index, case.clauses, case.n_slots, random, 30):
        check(index)
        check_answers(index, case, expected, live)


@pytest.mark.parametrize("seed", range(16))
def test_changes_keep_the_pt_quadtree_right(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(0, 500))
    recipe, case = sized_case(random, seed, n)
    index = PtQuadtree.build(
        slots_between(case.clauses, 0, n // 3),
        space=recipe.space,
        parameters=PtQuadtreeParameters(
            placement=("leaves", "mx_cif")[seed // 2 % 2],
            tau_num=int(random.choice([2, 5, 20])),
            tau_area=float(random.choice([0.0, 0.01])),
            pivotal_tokens=("greedy", "rarest")[seed // 4 % 2],
        ),
    )
    check_pt_quadtree(index)
    run_changes(index, recipe, case, random, check_pt_quadtree)


def check_cell_tree(index: Any) -> None:
    """Every clause is attached to disjoint cells that cover its box, by its key; no node idles."""
    arrays, clauses = index.arrays, index.clauses
    tree = arrays.tree
    live = np.flatnonzero(index.alive[clauses.subscriptions]).tolist()
    cells: dict[int, list[int]] = {c: [] for c in live}

    def check(node: int, key: int | None) -> int:
        lists, first = lists_of(tree, node), int(tree.children[node])
        assert key is None or set(lists) <= {key}
        for token, some in lists.items():
            for c in some:
                cells[c].append(int(tree.cells[node]))
                own = clauses.token_ids[clauses.token_offsets[c] : clauses.token_offsets[c + 1]]
                shares = arrays.shares[own[own >= 0]]
                assert (arrays.shares[token], token) == min(zip(shares, own[own >= 0], strict=True))
        n = int(tree.counts[node])
        if first == NO_CHILDREN:
            return n
        assert [tree.parents[first + i] for i in range(4)] == [node] * 4
        assert [tree.cells[first + i] for i in range(4)] == [
            child_cell(tree.cells[node], i) for i in range(4)
        ]
        below = sum(check(first + i, key) for i in range(4))
        assert below > 0
        return n + below

    if len(arrays.roots):
        keys = np.flatnonzero(arrays.roots >= 0).tolist()
        n_postings = sum(check(int(arrays.roots[key]), key) for key in keys)
    else:
        n_postings = check(0, None)
    assert tree.facts[N_POSTINGS] == n_postings
    for c in live:
        on_grid = clause_on_grid(tree, clauses, c)
        assert cells[c]
        assert all(touches(cell, on_grid) for cell in cells[c])
        # Cells cover the box if their parts of it have its size together, being disjoint.
        assert sum(_shared(cell, on_grid) for cell in cells[c]) == _shared(0, on_grid)
        for one in cells[c]:
            assert sum(_is_within(other, one) for other in cells[c]) == 1


def _shared(cell: int, on_grid: Any) -> int:
    """Return how many squares of the grid a cell and a grid box share."""
    side = 1 << (BITS - cell_depth(cell))
    west, south = cell_column(cell) * side, cell_row(cell) * side
    width = min(on_grid[2], west + side - 1) - max(on_grid[0], west) + 1
    height = min(on_grid[3], south + side - 1) - max(on_grid[1], south) + 1
    return int(width) * int(height)


def _is_within(one: int, other: int) -> bool:
    shift = cell_depth(one) - cell_depth(other)
    return bool(
        shift >= 0
        and cell_column(one) >> shift == cell_column(other)
        and cell_row(one) >> shift == cell_row(other)
    )


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("structure", [IqTree, RqTree])
def test_changes_keep_cell_trees_right(structure: type[IqTree], seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(0, 500))
    recipe, case = sized_case(random, seed, n)
    index = structure.build(
        slots_between(case.clauses, 0, n // 3),
        space=recipe.space,
        parameters=IqTreeParameters(
            posting_cost=float(random.choice([1e-6, 1e-3, 0.03])),
            max_depth=int(random.choice([2, 6])),
        ),
        sample=case.messages if seed % 3 else None,
    )
    check_cell_tree(index)
    run_changes(index, recipe, case, random, check_cell_tree)


def _least_cost(arrays: Any, share: float, on_grid: Any, cell: int) -> float:
    """Return the least cost of covering a box within a cell, by trying all divisions."""
    if not touches(cell, on_grid):
        return 0.0
    rules = arrays.rules
    undivided = share * arrays.hits[_place(cell)] + rules[0]
    if cell_depth(cell) == rules[1]:
        return float(undivided)
    quarters = (child_cell(cell, i) for i in range(4))
    divided = sum(_least_cost(arrays, share, on_grid, quarter) for quarter in quarters)
    return float(min(undivided, rules[0] + divided))


@pytest.mark.parametrize("seed", range(6))
def test_the_cells_of_a_clause_have_least_cost(seed: int) -> None:
    random = np.random.default_rng(seed)
    _, case = sized_case(random, seed, 60)
    parameters = IqTreeParameters(posting_cost=float(10.0 ** -random.integers(1, 5)), max_depth=4)
    index = IqTree.build(case.clauses, parameters=parameters, sample=case.messages)
    arrays, clauses = index.arrays, index.clauses
    choice = new_choice()
    for c in range(len(clauses.subscriptions)):
        on_grid = clause_on_grid(arrays.tree, clauses, c)
        for share in (1.0, 0.1, 0.001):
            n = choose_cells(arrays.hits, share, parameters.posting_cost, 4, on_grid, choice)
            cells = choice.cells[:n].tolist()
            divided = {above for cell in cells for above in _ancestors(cell)}
            hits = sum(arrays.hits[_place(cell)] for cell in cells)
            cost = share * hits + (n + len(divided)) * parameters.posting_cost
            assert cost == pytest.approx(_least_cost(arrays, share, on_grid, 0), rel=1e-9)


def _place(cell: int) -> int:
    depth = cell_depth(cell)
    return int((4**depth - 1) // 3 + (cell_row(cell) << depth | cell_column(cell)))


def _ancestors(cell: int) -> list[int]:
    """Return the cells that are divided on the way to a cell."""
    depth, column, row = cell_depth(cell), cell_column(cell), cell_row(cell)
    return [
        (column >> depth - above) << 32 | (row >> depth - above) << 8 | above
        for above in range(depth)
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau_num": 1}, "tau_num is 1; expected a whole number from 2 to 1,000,000"),
        ({"tau_num": 2.5}, "tau_num is 2.5; expected a whole number"),
        ({"tau_area": 1.5}, "tau_area is 1.5; expected 0 to 1"),
        ({"most_copies": 0.5}, "most_copies is 0.5; expected 1 to 4"),
        ({"placement": "nodes"}, "placement is 'nodes'; expected one of leaves, mx_cif"),
        ({"pivotal_tokens": "idf"}, "pivotal_tokens is 'idf'; expected one of greedy, rarest"),
    ],
)
def test_options_of_the_pt_quadtree_are_checked(options: Any, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        PtQuadtreeParameters(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"posting_cost": 0}, "posting_cost is 0; expected 1e-12 to 1e"),
        ({"max_depth": 21}, "max_depth is 21; expected a whole number from 1 to 20"),
    ],
)
def test_options_of_the_iq_tree_are_checked(options: Any, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        IqTreeParameters(**options)
