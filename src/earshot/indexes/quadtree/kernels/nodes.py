"""Nodes of a quadtree, each with a table of tokens and a sorted list of numbers for each of them.

A node is a leaf, or has the four quarters of its cell as children, one after the other. What
stands in the list of a token is a clause's *number*, and lists ascend by it. A number is the row of
the clause, or whatever another structure makes of it (see ``rows`` of :class:`Quadtree`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.kernels.token_tables import (
    EMPTY,
    LIST_END,
    LIST_GARBAGE,
    TABLE_END,
    TokenTables,
    append_to_list,
    drop_table,
    first_not_below,
    insert_into_list,
    list_entry_at,
    list_length,
    list_room,
    list_start,
)
from earshot.indexes.quadtree.kernels.cells import child_cell, grid_box
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.model.arrays import Float64s, Int32s, Int64s

# Places of ``facts``.
N_NODES, FREE_NODES, N_POSTINGS, N_FACTS = range(4)

NO_CHILDREN = -1


class Quadtree(NamedTuple):
    """A quadtree; node 0 is its root."""

    frame: Float64s  # (4,) a quarter of min_x and min_y, and grid squares per quarter, of the grid
    facts: Int64s  # (N_FACTS,) nodes in use so far; the first of four free nodes, -1 if none; …
    cells: Int64s  # (n_nodes,)
    children: Int32s  # (n_nodes,) first of the four children, NO_CHILDREN for a leaf
    parents: Int32s  # (n_nodes,) -1 for a root; the next free one where a node is free
    counts: Int32s  # (n_nodes,) numbers in the lists of the node itself
    lists: TokenTables  # the lists of each node, by token
    rows: Int32s  # (>= largest number + 1,) clause of each number; empty where it is the number
    numbers: Int32s  # (>= n_clauses,) number of each clause; empty where it is the clause
    prints: npt.NDArray[np.uint32]  # (>= n_clauses,) low halves of a clause's two rarest tokens


@inlined_kernel
def clause_of(tree, number):
    """Return the clause of a number."""
    return np.int64(number) if len(tree.rows) == 0 else np.int64(tree.rows[number])


@inlined_kernel
def number_of(tree, c):
    """Return the number of a clause."""
    return np.int32(c) if len(tree.numbers) == 0 else tree.numbers[c]


@lean_kernel
def clause_on_grid(tree, clauses, c):
    """Return the grid box of a clause."""
    boxes = clauses.boxes
    return grid_box(tree.frame, boxes[c, 0], boxes[c, 1], boxes[c, 2], boxes[c, 3])


@lean_kernel
def n_required(token_offsets, token_ids, c):
    """Return how many required tokens a clause has; they stand first."""
    start, stop = token_offsets[c], token_offsets[c + 1]
    while token_ids[stop - 1] < 0:
        stop -= 1
    return stop - start


@lean_kernel
def rarest_token(token_offsets, token_ids, c, frequencies):
    """Return the required token of a clause that is least frequent, the smallest of several."""
    start = token_offsets[c]
    best = token_ids[start]
    for i in range(start + 1, start + n_required(token_offsets, token_ids, c)):
        token = token_ids[i]
        if frequencies[token] < frequencies[best] or (
            frequencies[token] == frequencies[best] and token < best
        ):
            best = token
    return best


@lean_kernel
def fill_prints(prints, token_offsets, token_ids, frequencies, first, stop):
    """Make the prints of clauses: what a message must have is told by 4 bytes for most of them."""
    for c in range(first, stop):
        one = rarest_token(token_offsets, token_ids, c, frequencies)
        other, start = one, token_offsets[c]
        for i in range(start, start + n_required(token_offsets, token_ids, c)):
            token = token_ids[i]
            if token != one and (other == one or frequencies[token] < frequencies[other]):
                other = token
        prints[c] = np.uint32(one & 0xFFFF) | np.uint32(other & 0xFFFF) << np.uint32(16)


# ---- nodes --------------------------------------------------------------------------------------


@lean_kernel
def new_nodes(tree, n):
    """Return the first of ``n`` new nodes, which nobody has used; there must be room."""
    first = tree.facts[N_NODES]
    tree.facts[N_NODES] += n
    for node in range(first, first + n):
        tree.children[node] = NO_CHILDREN
        tree.counts[node] = 0
        tree.lists.starts[node] = 0
        tree.lists.sizes[node] = 0
        tree.lists.used[node] = 0
    return first


@lean_kernel
def split_node(tree, node):
    """Give a leaf four children, which are leaves without lists; there must be room."""
    first = tree.facts[FREE_NODES]
    if first >= 0:
        tree.facts[FREE_NODES] = tree.parents[first]
    else:
        first = new_nodes(tree, 4)
    tree.children[node] = first
    for i in range(4):
        tree.cells[first + i] = child_cell(tree.cells[node], i)
        tree.parents[first + i] = node


@lean_kernel
def free_children(tree, node):
    """Make a leaf of a node whose children are leaves without lists."""
    first = tree.children[node]
    tree.children[node] = NO_CHILDREN
    tree.parents[first] = tree.facts[FREE_NODES]
    tree.facts[FREE_NODES] = first


@lean_kernel
def has_room_to_split(tree):
    """Whether there is room for four more nodes."""
    return tree.facts[FREE_NODES] >= 0 or tree.facts[N_NODES] + 4 <= len(tree.children)


@lean_kernel
def are_leaves(tree, first):
    """Whether four children are all leaves."""
    for child in range(first, first + 4):
        if tree.children[child] != NO_CHILDREN:
            return False
    return True


# ---- lists of numbers ---------------------------------------------------------------------------


@lean_kernel
def find_number(tables, value, number):
    """Return how many entries of a list are smaller than a number."""
    length = list_length(value)
    if length < 2:
        return np.int64(length == 1 and list_entry_at(tables, value, 0) < number)
    start = list_start(value)
    return first_not_below(tables.lists, start, start + length, number) - start


@lean_kernel
def add_number(tables, place, number):
    """Add a number to the list of a place, which may have none yet."""
    value = np.int64(tables.values[place])
    if list_length(value) == 0:
        append_to_list(tables, place, number)
    else:
        insert_into_list(tables, place, find_number(tables, value, number), number)


@lean_kernel
def take_number(tables, place, number):
    """Take a number out of the list of a place; return whether it was there."""
    value = np.int64(tables.values[place])
    length, start = list_length(value), list_start(value)
    at = find_number(tables, value, number)
    if at == length or list_entry_at(tables, value, at) != number:
        return False
    tables.ends[LIST_GARBAGE] += list_room(length) - list_room(length - 1)
    if length == 1:
        tables.values[place] = 0
        return True
    for i in range(start + at, start + length - 1):
        tables.lists[i] = tables.lists[i + 1]
    if length == 2:
        last = tables.lists[start]
        tables.values[place] = 0
        append_to_list(tables, place, last)
    else:
        tables.values[place] = (start << 32) | (length - 1)
    return True


@lean_kernel
def drop_lists(tables, node):
    """Take all lists of a node away, and its table."""
    start = tables.starts[node]
    for place in range(start, start + tables.sizes[node]):
        if tables.tokens[place] != EMPTY:
            tables.ends[LIST_GARBAGE] += list_room(list_length(np.int64(tables.values[place])))
    drop_table(tables, node)


@lean_kernel
def copy_numbers(tables, node, into, at):
    """Copy the numbers of all lists of a node; return where they end."""
    start = tables.starts[node]
    for place in range(start, start + tables.sizes[node]):
        if tables.tokens[place] == EMPTY:
            continue
        value = np.int64(tables.values[place])
        for i in range(list_length(value)):
            into[at] = list_entry_at(tables, value, i)
            at += 1
    return at


# ---- room ---------------------------------------------------------------------------------------


@lean_kernel
def places_to_add(tables, node, n):
    """Return how many places of the arrays a node's table may take if it gets ``n`` more tokens."""
    size, used = np.int64(tables.sizes[node]), np.int64(tables.used[node])
    if used + n + 2 + size // 8 <= size:
        return np.int64(0)
    return 2 * used + 8 * n + 64  # it moves to one a quarter larger, several times if need be


@lean_kernel
def has_places(tables, n_places, n_list):
    """Whether the arrays have that many places left, for tables and for lists."""
    return tables.ends[TABLE_END] + n_places <= len(tables.tokens) and (
        n_list == 0 or tables.ends[LIST_END] + n_list + n_list // 4 + 16 <= len(tables.lists)
    )


@lean_kernel
def pack_tables(tables, n_nodes, tokens, values, lists):
    """Copy tables and their lists, if they have any, to new arrays without garbage."""
    end, list_end = np.int64(0), np.int64(1)
    has_lists = len(lists) > 0
    for node in range(n_nodes):
        size, start = np.int64(tables.sizes[node]), tables.starts[node]
        tables.starts[node] = end
        for place in range(start, start + size):
            token = tables.tokens[place]
            value = tables.values[place]
            if has_lists and token != EMPTY and list_length(np.int64(value)) > 1:
                length, at = list_length(np.int64(value)), list_start(np.int64(value))
                for i in range(length):
                    lists[list_end + i] = tables.lists[at + i]
                values[end] = (list_end << 32) | length
                list_end += list_room(length)
            else:
                values[end] = value
            tokens[end] = token
            end += 1
    tables.ends[0], tables.ends[1] = end, 0
    tables.ends[2], tables.ends[3] = list_end, 0
