"""Trie-Qd: trie and quadtrees after any changes, and what is refused when it is opened."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from changing import changed, check_answers, expected_answers, random_case, slots_between
from earshot.errors import SavedIndexError
from earshot.indexes.iq_tree.index import IqTreeParameters
from earshot.indexes.quadtree.kernels.nodes import N_NODES
from earshot.indexes.trie_quadtree.index import TrieQuadtree
from earshot.indexes.trie_quadtree.kernels import DEEPEST, EMPTY, N_TRIE_NODES, child_of
from test_quadtree import check_cell_tree


def check_trie_quadtree(index: Any) -> None:
    """Each live clause is counted along its keywords, and in the quadtree of its node."""
    trie, clauses = index.arrays.trie, index.clauses
    n_nodes = int(trie.facts[N_TRIE_NODES])
    below: Counter[int] = Counter()
    for c in np.flatnonzero(index.alive[clauses.subscriptions]).tolist():
        tokens = clauses.token_ids[clauses.token_offsets[c] : clauses.token_offsets[c + 1]]
        ranks = sorted(trie.ranks[tokens[tokens >= 0]].tolist())
        node = 0
        below[0] += 1
        for rank in ranks:
            parent, node = node, int(child_of(trie, node, rank))
            assert 0 < node < n_nodes
            assert trie.parents[node] == parent
            below[node] += 1
        assert trie.numbers[c] == node
        assert trie.facts[DEEPEST] > len(ranks)
    assert trie.below[:n_nodes].tolist() == [below[node] for node in range(n_nodes)]
    assert (trie.keys != EMPTY).sum() == n_nodes - 1
    keyed = index._keyed_clauses()
    check_cell_tree(SimpleNamespace(arrays=index.arrays, clauses=keyed, alive=index.alive))


@pytest.mark.parametrize("seed", range(10))
def test_changes_keep_trie_and_quadtrees_right(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(0, 400))
    recipe, case = random_case(random, seed, n)
    index = TrieQuadtree.build(
        slots_between(case.clauses, 0, n // 3),
        space=recipe.space,
        parameters=IqTreeParameters(
            posting_cost=float(random.choice([1e-6, 1e-3, 0.03])),
            max_depth=int(random.choice([2, 6])),
        ),
    )
    check_trie_quadtree(index)
    expected = expected_answers(recipe, case)
    for live in changed(index, case.clauses, n, random, 24):
        check_trie_quadtree(index)
        check_answers(index, case, expected, live)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("trie.parents", 1 << 20), ("trie.numbers", -5), ("trie.ranks", None),
        ("trie.facts", 1 << 40), ("trie.keys", 7), ("trie.nodes", -1), ("roots", 1 << 20),
        ("tree.children", 1 << 20), ("tree.facts", 1 << 40), ("tree.cells", 200),
        ("tree.lists.starts", 1 << 40), ("tree.lists.sizes", 30_000),
        ("tree.lists.values", 1 << 40), ("tree.lists.lists", -1), ("tree.lists.ends", 1 << 40),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused(tmp_path: Path, path: str, value: int | None) -> None:
    _, case = random_case(np.random.default_rng(5), 5, 300)
    index = TrieQuadtree.build(case.clauses, space="planar")
    index.save(tmp_path / "whole")
    assert TrieQuadtree.open(tmp_path / "whole").arrays.tree.facts[N_NODES] > 1
    if value is None:
        trie = index.arrays.trie
        index.arrays = index.arrays._replace(trie=trie._replace(ranks=trie.ranks[:1]))
    else:
        array = index.arrays
        for name in path.split("."):
            array = getattr(array, name)
        array[:] = value
    index.save(tmp_path / "damaged")
    with pytest.raises(SavedIndexError, match="contradicts itself"):
        TrieQuadtree.open(tmp_path / "damaged")
