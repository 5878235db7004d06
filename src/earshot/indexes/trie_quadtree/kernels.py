"""The keyword trie of Trie-Qd, and matching against it.

[VLDBJ15] section 5.1.2 names Trie-Qd: the ordered keyword trie (section 3.1, Fig. 4c), and a
quadtree for subscriptions with the same keywords. A node of the trie is a set of keywords in their
order; it is found by the node above it and the rank of its last keyword, in one hash table. The
quadtrees are those of the RQ-Tree, with nodes of the trie in the place of tokens as keys.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.ap_tree.kernels.match import rank_tokens
from earshot.indexes.ap_tree.kernels.nodes import NO_RANK
from earshot.indexes.iq_tree.kernels.match import append_tree
from earshot.indexes.kernels.matching import appends_answers
from earshot.indexes.quadtree.kernels.cells import grid_box
from earshot.indexes.quadtree.kernels.nodes import Quadtree
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.model.arrays import Float64s, Int32s, Int64s

# Places of ``facts``.
N_TRIE_NODES, DEEPEST = 0, 1

EMPTY = -1


class KeywordTrie(NamedTuple):
    """The trie; node 0 is its root."""

    facts: Int64s  # (2,) nodes, and keywords of the largest set
    ranks: Int32s  # (>= n_tokens,) place of each token in the order of keywords
    keys: Int64s  # (a power of two,) node << 32 | rank of the next keyword; EMPTY where free
    nodes: Int32s  # beside them, the node that this leads to
    parents: Int32s  # (>= n_nodes,)
    below: Int32s  # (>= n_nodes,) clauses with these keywords, and perhaps more
    numbers: Int32s  # (>= n_clauses,) node of each clause


class TrieQuadtreeArrays(NamedTuple):
    """A trie, and a forest of quadtrees with its nodes as keys (see ``CellTreeArrays``)."""

    tree: Quadtree
    rules: Float64s
    shares: Float64s
    hits: Float64s
    roots: Int32s
    sample_boxes: Float64s
    sample_words: Float64s
    trie: KeywordTrie


class TrieQuadtreeScratch(NamedTuple):
    """Working memory of one thread."""

    marks: npt.NDArray[np.uint8]  # (n_tokens,) 1 for tokens of the current message
    serial: Int64s  # (1,)
    signature: npt.NDArray[np.uint64]  # (SIGNATURE_WORDS,) a bit per low half of a token
    stack: Int32s  # (STACK,) nodes of a quadtree still to visit
    ranks: Int32s  # (n_tokens,) of the message's tokens, ascending
    counting: Int32s  # (2 * MOST_COUNTED,) for putting them in order
    path: Int32s  # (DEEPEST + 2,) nodes from the trie's root to the one in hand
    nexts: Int32s  # beside them, the keyword of the message to go on with
    key: Int32s  # (1,) node in hand, as a key


@lean_kernel
def _place_of(keys, key):
    """Return where a key is, or could be."""
    mask = np.int64(len(keys) - 1)
    at = np.int64((np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)) & mask
    while keys[at] != EMPTY and keys[at] != key:
        at = (at + 1) & mask
    return at


@lean_kernel
def child_of(trie, node, rank):
    """Return the node that a keyword leads to, or -1."""
    key = np.int64(node) << 32 | np.int64(rank)
    at = _place_of(trie.keys, key)
    return np.int64(trie.nodes[at]) if trie.keys[at] == key else np.int64(-1)


@lean_kernel
def _rank_after(ranks, token_ids, start, end, last):
    """Return the next rank of a clause's keywords after the ``last``, or ``NO_RANK``."""
    following = np.int64(NO_RANK)
    for i in range(start, end):
        if token_ids[i] < 0:
            break
        rank = np.int64(ranks[token_ids[i]])
        if last < rank < following:
            following = rank
    return following


@lean_kernel
def add_clauses(trie, clauses, first, stop):
    """Let clauses ``first`` to ``stop`` find their nodes; return the first that had no room."""
    facts = trie.facts
    for c in range(first, stop):
        start, end = clauses.token_offsets[c], clauses.token_offsets[c + 1]
        n_nodes = facts[N_TRIE_NODES] + end - start
        if n_nodes > len(trie.parents) or 2 * n_nodes > len(trie.keys):
            return c
        node, depth = np.int64(0), np.int64(1)
        rank = _rank_after(trie.ranks, clauses.token_ids, start, end, np.int64(-1))
        while rank != NO_RANK:
            key = node << 32 | rank
            at = _place_of(trie.keys, key)
            if trie.keys[at] == EMPTY:
                trie.keys[at] = key
                trie.nodes[at] = facts[N_TRIE_NODES]
                trie.parents[facts[N_TRIE_NODES]] = node
                trie.below[facts[N_TRIE_NODES]] = 0
                facts[N_TRIE_NODES] += 1
            node = np.int64(trie.nodes[at])
            depth += 1
            rank = _rank_after(trie.ranks, clauses.token_ids, start, end, rank)
        trie.numbers[c] = node
        facts[DEEPEST] = max(facts[DEEPEST], depth)
        count_at(trie, node, 1)
    return stop


@lean_kernel
def count_at(trie, node, step):
    """Count a clause more, or less, at a node and at those above it."""
    while node > 0:
        trie.below[node] += step
        node = np.int64(trie.parents[node])
    trie.below[0] += step


@lean_kernel
def forget_clauses(trie, rows):
    """Count clauses that are removed."""
    for k in range(len(rows)):
        count_at(trie, np.int64(trie.numbers[rows[k]]), -1)


@lean_kernel
def rehash(old_keys, old_nodes, keys, nodes):
    """Put all keys into a larger table, which is empty."""
    for k in range(len(old_keys)):
        if old_keys[k] != EMPTY:
            at = _place_of(keys, old_keys[k])
            keys[at] = old_keys[k]
            nodes[at] = old_nodes[k]


@appends_answers(TrieQuadtreeArrays)
@inlined_kernel
def append_trie_quadtree(view, tokens, box, scratch, answers, n_answers, work):
    """Append one message's answers: look into the quadtree of each set of keywords that it has.

    The sets are the nodes of the trie that are reached by keywords of the message, in their order.
    """
    trie, roots = view.arrays.trie, view.arrays.roots
    on_grid = grid_box(view.arrays.tree.frame, box[0], box[1], box[2], box[3])
    n_ranks = rank_tokens(trie.ranks, tokens, scratch.ranks, scratch.counting)
    path, nexts = scratch.path, scratch.nexts
    path[0], nexts[0], depth = 0, 0, 0
    while depth >= 0:
        i = np.int64(nexts[depth])
        if i == n_ranks:
            depth -= 1
            continue
        nexts[depth] += 1
        node = child_of(trie, path[depth], scratch.ranks[i])
        if node < 0 or trie.below[node] == 0:
            continue
        work[0] += 1
        root = roots[node] if node < len(roots) else np.int32(-1)
        if root >= 0:
            scratch.key[0] = node
            n_answers = append_tree(
                view, root, scratch.key, box, on_grid, scratch, answers, n_answers, work
            )
            if n_answers < 0:
                return n_answers
        depth += 1
        path[depth], nexts[depth] = node, i + 1
    return n_answers
