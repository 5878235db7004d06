"""The MBRTrie of [CIKM15] §3.1: its arrays, and how they are built.

Each token has a *label*. The most frequent token has label 0 and the rarest the highest one; tokens
that come later get higher labels still, since they are rare as yet. A clause's *path* is its
required tokens by falling label: rarest first, the order "idf" of the paper's experiments. Clauses
with equal beginnings of their paths share nodes.

Clauses are numbered in the order of their paths, the paper's token-set order. So the clauses below
a node have consecutive numbers, and those whose path ends at the node come first: the leaf that the
paper hangs there, with an inverted list, is a range of numbers here. A node's range ends where its
next sibling's begins, and that of a last child where its parent's does.

Clauses are also stored in that order, so that a number is a row, and what is found together lies
together in memory. Where the paper reserves numbers for later insertions, later clauses get the
next rows here, and stand in a chain at their node. The ranges stay exact for the clauses that were
there when the trie was built; when a quarter has come or gone since, all are put in order again.

Children of a node stand side by side, in the order of falling labels. The root's stand in any
order, since they are looked up by token. A block of children follows its node in memory, so that
the branches of single nodes in which most paths end lie in one cache line.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.block_trie.kernels.build import sort_codes
from earshot.kernels.box_keys import DEAD_KEY, Quantizer, box_key, union_key
from earshot.kernels.jit import inlined_kernel, kernel, lean_kernel
from earshot.model.arrays import Int32s, Int64s

# Columns of ``nodes``.
FIRST_CHILD, N_CHILDREN, START, OWN_STOP = range(4)
# Columns of ``tokens``.
LABEL, TOP_NODE = range(2)
# Rows of ``facts``.
N_NODES, N_BUILT, N_NUMBERED, N_ENTRIES, TOP_ROOM, N_DEAD, N_TOKENS_BELOW, PROBING = range(8)
N_FACTS = 8

ROOT = 0
N_LEVELS = 16
"""Levels whose nodes are counted apart; deeper ones count with the last."""


class MbrTrieArrays(NamedTuple):
    """The trie and the clauses in the order of their numbers."""

    quantizer: Quantizer
    facts: Int64s  # (N_FACTS,)
    level_nodes: Int64s  # (N_LEVELS,) nodes on each level, the root's first: L_i of the paper
    tokens: Int32s  # (>= n_tokens, 2) label, and the child of the root with it, or -1
    labels: Int32s  # (>= n_nodes,) of the token that leads to the node; -1 for the root
    keys: npt.NDArray[np.uint64]  # (>= n_nodes + BLOCK,) MBR of what is below, as a box key
    nodes: Int32s  # (>= n_nodes, 4) first child, children, first number, end of the node's own
    entry_keys: npt.NDArray[np.uint64]  # (>= n_entries + BLOCK,) by number; dead ones DEAD_KEY
    # (>= n_entries,) by number: 1 where more than required tokens and box is to be verified
    has_more: npt.NDArray[np.uint8]
    heads: Int32s  # (>= n_nodes,) latest of a node's later numbers, or -1; empty without any
    chains: Int32s  # (>= n_entries - n_numbered,) number before each later one, or -1


@inlined_kernel
def has_more_than(clauses, row, n_required):
    """Whether a clause has more than so many tokens, or a shape."""
    n_tokens = clauses.token_offsets[row + 1] - clauses.token_offsets[row]
    return n_required != n_tokens or clauses.shape_rows[row] >= 0


@lean_kernel
def fill_path(clauses, tokens, row, path, at):
    """Fill in a clause's labels from ``at`` on, falling; return how many they are."""
    n = 0
    for i in range(clauses.token_offsets[row], clauses.token_offsets[row + 1]):
        token = clauses.token_ids[i]
        if token < 0:
            break
        label = tokens[token, LABEL]
        j = at + n
        while j > at and path[j - 1] < label:
            path[j] = path[j - 1]
            j -= 1
        path[j] = label
        n += 1
    return n


@kernel
def fill_paths(clauses, tokens, rows, paths, lengths):
    """Fill in the paths of clauses, each where its tokens stand; return all lengths together."""
    total = 0
    for k in range(len(rows)):
        row = rows[k]
        lengths[row] = fill_path(clauses, tokens, row, paths, clauses.token_offsets[row])
        total += lengths[row]
    return total


@kernel
def build_nodes(order, offsets, paths, lengths, tokens_of, tokens, labels, nodes, level_nodes):
    """Put clauses in the order of their paths and make the nodes; return how many nodes.

    ``order`` has the rows, and is put in order. ``tokens_of`` has the token of each label. A node
    is made with its siblings, and its subtree before that of the next sibling.
    """
    n = len(order)
    nodes[ROOT, FIRST_CHILD], nodes[ROOT, N_CHILDREN] = 1, 0
    nodes[ROOT, START], nodes[ROOT, OWN_STOP] = 0, 0
    labels[ROOT] = -1
    n_nodes = 1
    codes = np.empty(n, np.int64)
    ends = np.empty(len(labels), np.int32)
    stack = np.empty(len(labels), np.int32)
    depths = np.empty(len(labels), np.int32)
    ends[ROOT], stack[0], depths[0] = n, ROOT, 0
    n_stack = 1
    while n_stack > 0:
        n_stack -= 1
        node, depth = stack[n_stack], depths[n_stack]
        start, stop = nodes[node, START], ends[node]
        level_nodes[min(depth, len(level_nodes) - 1)] += 1
        # Sort by what comes next on the paths: 0 where they end here, then labels as they fall.
        for k in range(start, stop):
            row = order[k]
            follows = np.int64(0)
            if lengths[row] > depth:
                follows = np.int64(0x7FFFFFFF) - paths[offsets[row] + depth]
            codes[k - start] = follows << 32 | np.int64(row)
        if stop - start > 1:
            sort_codes(codes, stop - start)
        k = start
        for i in range(stop - start):
            order[start + i] = codes[i] & 0xFFFFFFFF
        while k < stop and codes[k - start] >> 32 == 0:
            k += 1
        nodes[node, OWN_STOP] = k
        nodes[node, FIRST_CHILD] = n_nodes
        first = n_nodes
        while k < stop:
            follows = codes[k - start] >> 32
            labels[n_nodes] = np.int32(0x7FFFFFFF - follows)
            nodes[n_nodes, START] = k
            while k < stop and codes[k - start] >> 32 == follows:
                k += 1
            ends[n_nodes] = k
            if node == ROOT:
                tokens[tokens_of[labels[n_nodes]], TOP_NODE] = n_nodes
            n_nodes += 1
        nodes[node, N_CHILDREN] = n_nodes - first
        for child in range(n_nodes - 1, first - 1, -1):
            stack[n_stack], depths[n_stack] = child, depth + 1
            n_stack += 1
    return n_nodes


@kernel
def fill_keys(trie, clauses, n, lengths):
    """Fill in what is told of the first ``n`` numbers and, from the last to the first, of nodes."""
    boxes = clauses.boxes
    for row in range(n):
        trie.entry_keys[row] = box_key(
            trie.quantizer, boxes[row, 0], boxes[row, 1], boxes[row, 2], boxes[row, 3]
        )
        trie.has_more[row] = has_more_than(clauses, row, lengths[row])
    for node in range(trie.facts[N_NODES] - 1, -1, -1):
        trie.keys[node] = key_below(trie, node, np.uint64(0))


@lean_kernel
def key_below(trie, node, known):
    """Return the key of all that is below a node; looks no further once it is ``known``."""
    nodes = trie.nodes
    key = DEAD_KEY
    first = nodes[node, FIRST_CHILD]
    for child in range(first, first + nodes[node, N_CHILDREN]):
        key = union_key(key, trie.keys[child])
        if key == known:
            return key
    for k in range(nodes[node, START], nodes[node, OWN_STOP]):
        key = union_key(key, trie.entry_keys[k])
        if key == known:
            return key
    if len(trie.heads) > 0:
        number = trie.heads[node]
        while number >= 0:
            key = union_key(key, trie.entry_keys[number])
            number = trie.chains[number - trie.facts[N_NUMBERED]]
    return key


@lean_kernel
def find_child(trie, node, label):
    """Return where a label stands, or would stand, among the children of a node; not the root."""
    low = np.int64(trie.nodes[node, FIRST_CHILD])
    high = low + trie.nodes[node, N_CHILDREN]
    while low < high:
        middle = (low + high) >> 1
        if trie.labels[middle] > label:
            low = middle + 1
        else:
            high = middle
    return low


@inlined_kernel
def range_end(trie, node, child, end):
    """Return where the range of a child's numbers ends, given the ``end`` of its parent's."""
    if child + 1 < np.int64(trie.nodes[node, FIRST_CHILD]) + trie.nodes[node, N_CHILDREN]:
        return np.int64(trie.nodes[child + 1, START])
    return end
