"""Quadtrees under masses of alike, wide and thin regions: entries, work and places are bounded."""

from __future__ import annotations

from time import process_time
from typing import Any

import numpy as np
import pytest

from earshot.errors import InvalidInput
from earshot.indexes.contract import Index
from earshot.indexes.iq_tree.index import IqTree
from earshot.indexes.lfilter.index import LFilter
from earshot.indexes.pt_quadtree.index import PtQuadtree, PtQuadtreeParameters
from earshot.indexes.pt_quadtree.kernels.changes import MOST_COPIES_IN_ALL
from earshot.indexes.quadtree import tables
from earshot.indexes.quadtree.kernels.nodes import N_POSTINGS
from earshot.indexes.rq_tree.index import RqTree
from earshot.indexes.trie_quadtree.index import TrieQuadtree
from earshot.indexes.trie_quadtree.kernels import N_TRIE_NODES
from earshot.model.arrays import (
    ClauseArrays,
    Int64s,
    MessageArrays,
    box_clauses,
    concat_clauses,
)
from test_quadtree import check_pt_quadtree


def same_clauses(n: int, tokens: list[int], box: tuple[float, ...]) -> ClauseArrays:
    """Return ``n`` subscriptions to the same tokens and box."""
    ids, offsets = np.tile(np.array(tokens, np.int32), n), np.arange(n + 1) * len(tokens)
    return box_clauses(offsets, ids, np.tile(np.array(box), (n, 1)))


def test_copies_of_thin_regions_do_not_multiply() -> None:
    """Each division doubles the entries of a line from south to north, down to any depth."""
    lines = same_clauses(200, [1], (3.0, 0.0, 3.0, 100.0))
    frame = same_clauses(1, [1], (0.0, 0.0, 100.0, 100.0))
    clauses = concat_clauses([lines, frame._replace(subscriptions=np.array([200], np.int32))])
    # Without a bound these would be 16 times as many.
    parameters = PtQuadtreeParameters(tau_area=4.0**-8)
    index = PtQuadtree.build(clauses, parameters=parameters)
    assert 0 < index.arrays.tree.facts[N_POSTINGS] <= MOST_COPIES_IN_ALL * 201
    check_pt_quadtree(index)


@pytest.mark.parametrize("at_once", [400, 1])
@pytest.mark.parametrize("structure", [PtQuadtree, LFilter])
def test_wide_regions_that_come_later_are_not_copied_to_all_leaves(
    structure: type[Index], at_once: int
) -> None:
    random = np.random.default_rng(1)
    n, n_wide = 2000, 400
    corners = random.random((n, 2)) * 99.0
    small = box_clauses(np.arange(n + 1), np.ones(n), np.hstack([corners, corners + 0.01]))
    options = structure.parameters_type(tau_num=4)  # type: ignore[call-arg]
    index = structure.build(small, parameters=options)
    assert quadtree_of(index).n_leaves[0] > 400
    for first in range(n, n + n_wide, at_once):
        wide = same_clauses(at_once, [1], (0.0, 0.0, 100.0, 100.0))
        index.insert(wide._replace(subscriptions=np.arange(first, first + at_once, dtype=np.int32)))
    n_entries = quadtree_of(index).tree.facts[N_POSTINGS]
    assert n_entries <= 2 * MOST_COPIES_IN_ALL * (n + n_wide)
    message = MessageArrays(np.array([0, 1]), np.ones(1, np.int32), np.array([[99.9] * 4]))
    assert sorted(index.match(message).subscriptions.tolist()) == list(range(n, n + n_wide))


def quadtree_of(index: Index) -> Any:
    """Return the arrays of an index's PT-Quadtree."""
    return index.arrays.quadtree if isinstance(index, LFilter) else index.arrays


@pytest.mark.parametrize("structure", [PtQuadtree, IqTree, RqTree, TrieQuadtree])
def test_clauses_that_go_together_go_from_the_ends_of_lists(structure: type[Index]) -> None:
    index: Any = structure.build(same_clauses(600, [1, 2], (0.0, 0.0, 1.0, 1.0)))
    removed: list[int] = []
    remove_rows = index._remove_rows

    def remove_and_note(rows: Int64s) -> None:
        removed.extend(rows.tolist())
        remove_rows(rows)

    index._remove_rows = remove_and_note
    index.remove(np.arange(100, 500))
    assert removed == list(range(499, 99, -1))
    assert index.arrays.tree.facts[N_POSTINGS] == 200


def test_places_of_lists_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    clauses = same_clauses(600, [1], (0.0, 0.0, 1.0, 1.0))
    monkeypatch.setattr(tables, "MOST_LIST_PLACES", 500)
    with pytest.raises(InvalidInput, match=r"the lists need 814 places; .* fewer than 500"):
        IqTree.build(clauses)


def test_long_sets_of_keywords_take_square_time() -> None:
    """With a third power, these 3,000 keywords would take some 10 s."""
    TrieQuadtree.build(same_clauses(1, [1, 2], (0.0, 0.0, 1.0, 1.0)))
    clauses = same_clauses(1, list(range(1, 3001)), (0.0, 0.0, 1.0, 1.0))
    start = process_time()
    index = TrieQuadtree.build(clauses)
    assert process_time() - start < 1.0
    assert index.arrays.trie.facts[N_TRIE_NODES] == 3001
