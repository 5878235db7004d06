"""Building and changing IQ-Trees and RQ-Trees: clauses are attached to cells, in lists of keys.

The *key* of a clause is its least frequent token, as of when the tree was filled; so the same key
and the same cells are found again when the clause is removed. An IQ-Tree has one quadtree with a
table of keys in each node. An RQ-Tree has a quadtree for each key; the nodes of one have that key
alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from earshot.indexes.iq_tree.kernels.cost import MOST_CELLS, Choice, choose_cells
from earshot.indexes.kernels.token_tables import (
    append_to_list,
    find,
    find_or_add,
    forget,
    list_length,
    new_list,
    new_table,
)
from earshot.indexes.quadtree.kernels.cells import BITS, cell_column, cell_depth, cell_row
from earshot.indexes.quadtree.kernels.nodes import (
    N_NODES,
    N_POSTINGS,
    NO_CHILDREN,
    Quadtree,
    add_number,
    are_leaves,
    clause_on_grid,
    drop_lists,
    free_children,
    has_places,
    new_nodes,
    number_of,
    places_to_add,
    rarest_token,
    split_node,
    take_number,
)
from earshot.kernels.jit import lean_kernel
from earshot.kernels.resuming import DONE
from earshot.model.arrays import Float64s, Int32s

# Places of ``rules``.
POSTING_COST, MAX_DEPTH, N_RULES = range(3)

# What kernels are short of.
NODES, LIST_PLACES, POSTINGS = range(1, 4)


class CellTreeArrays(NamedTuple):
    """A quadtree, or one for each key, and the model by which clauses are attached to cells."""

    tree: Quadtree
    rules: Float64s  # (N_RULES,) cost of an entry in verifications, depth of the smallest cells
    shares: Float64s  # (n_tokens at the last filling,) share of messages that have a token
    hits: Float64s  # (N_HITS,) share of messages that touch a cell; see cost.py
    roots: Int32s  # (as shares) root of each key's tree, -1 for none; empty where one tree has all
    sample_boxes: Float64s  # (n_sampled, 4) boxes of messages; none where clauses stand for them
    sample_words: Float64s  # (1,) tokens of a message on average


class Postings(NamedTuple):
    """Nodes that clauses are attached to, one row each."""

    nodes: Int32s
    rows: Int32s


@lean_kernel
def key_of(arrays, clauses, c):
    """Return the key of a clause."""
    return rarest_token(clauses.token_offsets, clauses.token_ids, c, arrays.shares)


@lean_kernel
def _cells_of(arrays, clauses, c, key, choice):
    """Choose the cells of a clause; return how many."""
    rules = arrays.rules
    on_grid = clause_on_grid(arrays.tree, clauses, c)
    share = arrays.shares[key]
    return choose_cells(
        arrays.hits, share, rules[POSTING_COST], np.int64(rules[MAX_DEPTH]), on_grid, choice
    )


@lean_kernel
def _quarter_towards(cell, depth):
    """Return which quarter of its ancestor of a depth a cell is in."""
    shift = cell_depth(cell) - depth - 1
    return (cell_column(cell) >> shift & 1) | (cell_row(cell) >> shift & 1) << 1


@lean_kernel
def _find_node(arrays, key, cell):
    """Return the node of a cell, or -1."""
    tree = arrays.tree
    node = np.int64(arrays.roots[key]) if len(arrays.roots) > 0 else np.int64(0)
    for depth in range(cell_depth(cell)):
        if node < 0 or tree.children[node] == NO_CHILDREN:
            return np.int64(-1)
        node = np.int64(tree.children[node]) + _quarter_towards(cell, depth)
    return node


@lean_kernel
def _make_node(arrays, key, cell):
    """Return the node of a cell, made if need be; there must be room."""
    tree = arrays.tree
    node = np.int64(0)
    if len(arrays.roots) > 0:
        node = np.int64(arrays.roots[key])
        if node < 0:
            node = new_nodes(tree, 1)
            tree.cells[node], tree.parents[node] = 0, -1
            arrays.roots[key] = node
    for depth in range(cell_depth(cell)):
        if tree.children[node] == NO_CHILDREN:
            split_node(tree, node)
        node = np.int64(tree.children[node]) + _quarter_towards(cell, depth)
    return node


@lean_kernel
def _has_nodes(tree):
    """Whether there is room for all nodes on the way to a cell."""
    return tree.facts[N_NODES] + 4 * BITS + 1 <= len(tree.children)


# ---- building -----------------------------------------------------------------------------------


@lean_kernel
def post_clauses(arrays, clauses, rows, done, n_posted, postings, choice):
    """Make the nodes of clauses ``rows[done:]`` and note which they are.

    Returns how far that got, the number of postings, and what it is short of.
    """
    for k in range(done, len(rows)):
        c = rows[k]
        key = key_of(arrays, clauses, c)
        n = _cells_of(arrays, clauses, c, key, choice)
        if n_posted + n > len(postings.rows):
            return k, n_posted, POSTINGS
        for i in range(n):
            if not _has_nodes(arrays.tree):
                return k, n_posted, NODES
            postings.nodes[n_posted + i] = _make_node(arrays, key, choice.cells[i])
            postings.rows[n_posted + i] = c
        n_posted += n
    return len(rows), n_posted, DONE


@lean_kernel
def find_keys(shares, token_offsets, token_ids, keys):
    """Write the key of each clause."""
    for c in range(len(keys)):
        keys[c] = rarest_token(token_offsets, token_ids, c, shares)


@lean_kernel
def fill_lists(tree, nodes, keys, rows):
    """Make all lists of a tree without any, from postings by node, key and row.

    There must be room.
    """
    tables = tree.lists
    n, first = len(rows), 0
    while first < n:
        node = nodes[first]
        last, n_keys = first, 0
        while last < n and nodes[last] == node:
            n_keys += last == first or keys[last] != keys[last - 1]
            last += 1
        new_table(tables, node, n_keys)
        tree.counts[node] = last - first
        while first < last:
            stop = first
            while stop < last and keys[stop] == keys[first]:
                stop += 1
            place = find_or_add(tables, node, keys[first])
            tables.values[place] = new_list(tables, stop - first)
            for i in range(first, stop):
                append_to_list(tables, place, number_of(tree, rows[i]))
            first = stop
    tree.facts[N_POSTINGS] = n


# ---- changes ------------------------------------------------------------------------------------


@lean_kernel
def insert_clauses(arrays, clauses, first, stop, done, choice):
    """Insert clauses ``first`` to ``stop``, of the first of which ``done`` cells are done.

    Returns how far that got, cells of the next clause that are done, and what it is short of.
    """
    tree = arrays.tree
    for c in range(first, stop):
        key = key_of(arrays, clauses, c)
        n = _cells_of(arrays, clauses, c, key, choice)
        for i in range(done, n):
            if not _has_nodes(tree):
                return c, i, NODES
            node = _make_node(arrays, key, choice.cells[i])
            place = find(tree.lists, node, key)
            length = list_length(np.int64(tree.lists.values[place])) if place >= 0 else np.int64(0)
            if not has_places(tree.lists, places_to_add(tree.lists, node, 1), length + 16):
                return c, i, LIST_PLACES
            add_number(tree.lists, find_or_add(tree.lists, node, key), number_of(tree, c))
            tree.counts[node] += 1
            tree.facts[N_POSTINGS] += 1
        done = 0
    return stop, 0, DONE


@lean_kernel
def _prune(tree, node):
    """Take children away that hold nothing, from a node upwards."""
    if tree.children[node] == NO_CHILDREN:
        node = np.int64(tree.parents[node])
    while node >= 0:
        first = np.int64(tree.children[node])
        if not are_leaves(tree, first):
            return
        for child in range(first, first + 4):
            if tree.counts[child] > 0:
                return
        for child in range(first, first + 4):
            drop_lists(tree.lists, child)
        free_children(tree, node)
        node = np.int64(tree.parents[node]) if tree.counts[node] == 0 else np.int64(-1)


@lean_kernel
def remove_clauses(arrays, clauses, rows, choice):
    """Remove clauses from the cells they are attached to, where they are."""
    tree = arrays.tree
    for k in range(len(rows)):
        c = rows[k]
        key = key_of(arrays, clauses, c)
        for i in range(_cells_of(arrays, clauses, c, key, choice)):
            node = _find_node(arrays, key, choice.cells[i])
            if node < 0:
                continue
            place = find(tree.lists, node, key)
            if place < 0 or not take_number(tree.lists, place, number_of(tree, c)):
                continue
            tree.counts[node] -= 1
            tree.facts[N_POSTINGS] -= 1
            if tree.lists.values[place] == 0:
                forget(tree.lists, node, place)
            if tree.counts[node] == 0:
                _prune(tree, node)


def new_choice() -> Choice:
    """Return working memory for choosing cells."""
    path, quarters, firsts = (np.zeros(BITS + 1, np.int64) for _ in range(3))
    return Choice(np.zeros(MOST_CELLS, np.int64), path, quarters, firsts, np.zeros(BITS + 1))
