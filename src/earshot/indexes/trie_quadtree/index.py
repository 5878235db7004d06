"""Trie-Qd, a straightforward rival of the AP-Tree: an ordered keyword trie over quadtrees.

The trie comes first: a message reaches a set of keywords only if it has all of them. Subscriptions
with the same keywords share a quadtree, to whose cells the cost model of the IQ-Tree attaches them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from earshot import storage
from earshot.indexes.ap_tree.building import ranks_of
from earshot.indexes.ap_tree.kernels.match import MOST_COUNTED
from earshot.indexes.consistency import checking, demand
from earshot.indexes.contract import BuildInput
from earshot.indexes.iq_tree.index import IqTree, filled, new_arrays, sampled
from earshot.indexes.quadtree.checking import check_quadtree
from earshot.indexes.quadtree.index import prepare_quadtree
from earshot.indexes.quadtree.kernels.nodes import N_NODES, Quadtree
from earshot.indexes.trie_quadtree.kernels import (
    DEEPEST,
    EMPTY,
    N_TRIE_NODES,
    KeywordTrie,
    TrieQuadtreeArrays,
    TrieQuadtreeScratch,
    add_clauses,
    forget_clauses,
    rehash,
)
from earshot.kernels.growing import with_room
from earshot.kernels.resuming import run_until_done
from earshot.model.arrays import ClauseArrays, Int32s, Int64s

_LEAST_KEYS = 64


class TrieQuadtree(IqTree):
    """Trie, then quadtrees; counters: nodes of both visited, clauses in the lists visited."""

    name = "trie_quadtree"
    arrays_type = TrieQuadtreeArrays
    scratch_type = TrieQuadtreeScratch

    _is_forest = True

    @classmethod
    def _build_arrays(cls, given: BuildInput) -> TrieQuadtreeArrays:
        clauses = given.clauses
        n = len(clauses.subscriptions)
        trie = _with_clauses(_new_trie(ranks_of(given.known, "frequent")), clauses, 0, n)
        tree = prepare_quadtree(clauses, given.known)
        cells = new_arrays(tree, given.parameters, *sampled(given.sample))
        arrays = TrieQuadtreeArrays(*cells, trie)
        return _filled(arrays, clauses, np.arange(n, dtype=np.int32))

    @classmethod
    def open(cls, directory: str | Path | storage.Saved) -> Self:
        """Open a saved index by memory-mapping its arrays; changes stay in this process."""
        index = super().open(directory)
        arrays, n_clauses = index.arrays, len(index.clauses.subscriptions)
        with checking(directory):
            check_quadtree(arrays.tree, n_clauses)
            _check_trie(arrays.trie, n_clauses, index.n_tokens)
            n = int(arrays.tree.facts[N_NODES])
            demand("roots", arrays.roots >= -1, arrays.roots < n)
        return index

    def _insert_rows(self, first: int, stop: int) -> None:
        trie = self.arrays.trie
        if len(trie.ranks) < self.n_tokens:
            new = np.arange(len(trie.ranks), self.n_tokens + self.n_tokens // 8, dtype=np.int32)
            trie = trie._replace(ranks=np.concatenate([trie.ranks, new]))
        self.arrays = self.arrays._replace(trie=_with_clauses(trie, self.clauses, first, stop))
        super()._insert_rows(first, stop)

    def _remove_rows(self, rows: Int64s) -> None:
        super()._remove_rows(rows)
        forget_clauses(self.arrays.trie, rows)

    def _keyed_clauses(self) -> ClauseArrays:
        return _keyed(self.arrays.trie, self.clauses)

    def _n_keys(self) -> int:
        return int(self.arrays.trie.facts[N_TRIE_NODES])

    def _refill(self, tree: Quadtree, rows: Int32s) -> TrieQuadtreeArrays:
        old = self.arrays
        cells = new_arrays(tree, self.parameters, old.sample_boxes, old.sample_words)
        return _filled(TrieQuadtreeArrays(*cells, old.trie), self.clauses, rows)

    def _scratch_arrays(self) -> dict[str, tuple[int, npt.DTypeLike]]:
        trie = self.arrays.trie
        deepest = int(trie.facts[DEEPEST]) + 2
        return super()._scratch_arrays() | {
            "ranks": (len(trie.ranks) + 1, np.int32),
            "counting": (2 * MOST_COUNTED, np.int32),
            "path": (deepest, np.int32),
            "nexts": (deepest, np.int32),
            "key": (1, np.int32),
        }

    def _new_scratch(self) -> Any:
        scratch = super()._new_scratch()
        return scratch._replace(key=scratch.key[:1])  # as many keys as it is long


def _check_trie(trie: KeywordTrie, n_clauses: int, n_tokens: int) -> None:
    """Refuse a trie whose numbers lead out of its arrays, before a kernel follows them."""
    demand("facts", len(trie.facts) == 2, len(trie.ranks) >= n_tokens)
    n, n_keys = int(trie.facts[N_TRIE_NODES]), len(trie.keys)
    demand("trie nodes", 1 <= n <= min(len(trie.parents), len(trie.below)))
    demand("keys", n_keys > 0, n_keys & (n_keys - 1) == 0, len(trie.nodes) == n_keys)
    is_taken = trie.keys != EMPTY
    keys, nodes = trie.keys[is_taken], trie.nodes[is_taken]
    # A search ends at a free place.
    demand("keys", len(keys) == n - 1, len(keys) < n_keys, keys >= 0)
    demand("nodes", np.array_equal(np.sort(nodes), np.arange(1, n)))
    parents = trie.parents[:n]
    demand("parents", parents[0] == 0, parents[1:] >= 0, parents[1:] < np.arange(1, n))
    demand("parents", parents[nodes] == keys >> 32)
    depth, above = 1, np.arange(n, dtype=np.int32)
    while (above := parents[above]).any():
        depth += 1
    demand("depths", depth <= trie.facts[DEEPEST])
    numbers = trie.numbers[:n_clauses]
    demand("numbers", len(numbers) == n_clauses, numbers >= 0, numbers < n)


def _keyed(trie: KeywordTrie, clauses: ClauseArrays) -> ClauseArrays:
    """Return the clauses with their node of the trie as their one token."""
    n = len(clauses.subscriptions)
    offsets = np.arange(n + 1, dtype=np.int64)
    return clauses._replace(token_offsets=offsets, token_ids=trie.numbers[:n])


def _filled(arrays: TrieQuadtreeArrays, clauses: ClauseArrays, rows: Int32s) -> TrieQuadtreeArrays:
    """Attach clauses to the cells of the trees of their keywords."""
    trie = arrays.trie
    frequencies = np.bincount(trie.numbers[rows], minlength=int(trie.facts[N_TRIE_NODES]))
    keyed = _keyed(trie, clauses)
    found: TrieQuadtreeArrays = filled(arrays, keyed, frequencies, rows, is_forest=True)
    return found


def _new_trie(ranks: Int32s) -> KeywordTrie:
    return KeywordTrie(
        facts=np.array([1, 1], np.int64),
        ranks=ranks,
        keys=np.full(_LEAST_KEYS, EMPTY, np.int64),
        nodes=np.zeros(_LEAST_KEYS, np.int32),
        parents=np.zeros(1, np.int32),
        below=np.zeros(1, np.int32),
        numbers=np.zeros(0, np.int32),
    )


def _with_clauses(trie: KeywordTrie, clauses: ClauseArrays, first: int, stop: int) -> KeywordTrie:
    """Return the trie with clauses ``first`` to ``stop`` in it."""
    trie = trie._replace(numbers=with_room(trie.numbers, stop))

    def add() -> int:
        nonlocal first
        first = int(add_clauses(trie, clauses, first, stop))
        return stop - first  # DONE after the last

    def make_room(_: int) -> None:
        nonlocal trie
        start, end = clauses.token_offsets[first : first + 2].tolist()
        n_nodes = int(trie.facts[N_TRIE_NODES]) + end - start
        parents, below = (with_room(each, n_nodes) for each in (trie.parents, trie.below))
        keys, nodes = trie.keys, trie.nodes
        if 2 * n_nodes > len(keys):
            n_keys = 1 << (4 * n_nodes - 1).bit_length()
            keys, nodes = np.full(n_keys, EMPTY, np.int64), np.zeros(n_keys, np.int32)
            rehash(trie.keys, trie.nodes, keys, nodes)
        trie = trie._replace(parents=parents, below=below, keys=keys, nodes=nodes)

    run_until_done(add, make_room)
    return trie
