"""Building and changing a pivotal-token quadtree: both settle clauses in nodes.

[CIKM15] §4.1. A cell is divided while it holds ``tau_num`` clauses or more and is not smaller than
``tau_area``. In the placement LEAVES a clause is in every leaf that its box touches; in MX_CIF it
is in the smallest node that holds its box. Insertion and removal find these nodes again.

What the paper leaves open:

* A division must gain something, or regions that cover a cell would be copied to its quarters down
  to the smallest: with LEAVES the quarters hold at most ``most_copies`` times the clauses of the
  cell, with MX_CIF at least a quarter of the clauses moves down. A leaf that cannot be divided
  tries again when it has twice as many clauses.
* Nor may copies multiply from level to level, as those of long, thin regions would: all divisions
  on the way to a leaf together make at most ``MOST_COPIES_IN_ALL`` entries of a clause, on average.
  So a tree has at most that many times the entries that it was built from.
* Removed clauses leave their lists at once, where the paper marks them. Four leaves with fewer
  than half of ``tau_num`` clauses become one.
* An inserted clause joins the shortest list that one of its tokens has in the node. If there is
  none, its rarest token becomes pivotal there.

Kernels stop and say what they are short of; nothing is half done then.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from earshot.indexes.kernels.token_tables import (
    EMPTY,
    TokenTables,
    append_to_list,
    drop_table,
    find,
    find_or_add,
    forget,
    list_entry_at,
    list_length,
    list_start,
    new_list,
    new_table,
    table_size,
)
from earshot.indexes.pt_quadtree.kernels.pivots import choose_pivots
from earshot.indexes.pt_quadtree.kernels.sets import (
    announce,
    is_known,
    places_above,
    retract,
)
from earshot.indexes.quadtree.kernels.cells import cell_depth, quarters_touched
from earshot.indexes.quadtree.kernels.nodes import (
    N_NODES,
    N_POSTINGS,
    NO_CHILDREN,
    Quadtree,
    add_number,
    are_leaves,
    clause_of,
    clause_on_grid,
    copy_numbers,
    drop_lists,
    free_children,
    has_places,
    has_room_to_split,
    n_required,
    number_of,
    places_to_add,
    rarest_token,
    split_node,
    take_number,
)
from earshot.kernels.jit import kernel, lean_kernel
from earshot.kernels.resuming import DONE
from earshot.model.arrays import Float64s, Int32s, Int64s

LEAVES, MX_CIF = 0, 1

# Places of ``rules``.
PLACEMENT, TAU_NUM, MAX_DEPTH, MOST_COPIES, PIVOTS = range(5)

# What kernels are short of; SETTLE says that the queue has clauses to be sorted and settled.
NODES, LIST_PLACES, SET_PLACES, QUEUE_PLACES, SETTLE = range(1, 6)


MOST_COPIES_IN_ALL = 16.0


class PtQuadtreeArrays(NamedTuple):
    """A quadtree with lists of pivotal tokens, and the sets of its inner nodes."""

    tree: Quadtree
    rules: Float64s  # (5,) see the places above
    limits: Int32s  # (n_nodes,) clauses at which a leaf is to be divided
    n_leaves: Int32s  # (n_nodes,) leaves under a node, 1 for a leaf
    copies: Float64s  # (n_nodes,) entries per clause that the divisions above a node have made
    sets: TokenTables  # bits of each token for each inner node; see sets.py


class Queue(NamedTuple):
    """Nodes whose clauses are to be settled, the last first."""

    nodes: Int32s
    starts: Int64s  # (>= n_nodes + 1,) numbers of the k-th node are [k]:[k + 1], ascending
    numbers: Int32s
    ends: Int64s  # (1,) nodes in use


# ---- settling -----------------------------------------------------------------------------------


@lean_kernel
def quarters_of(arrays, cell, on_grid):
    """Return a bit for each child of a node that a clause goes to; none if it stays."""
    bits = quarters_touched(cell, on_grid)
    if arrays.rules[PLACEMENT] == LEAVES or bits & (bits - 1) == 0:
        return bits
    return np.int64(0)


@lean_kernel
def _divide(arrays, clauses, node, numbers, bits):
    """Write the quarters that each clause of a node goes to.

    Returns the entries per clause that its quarters would have, 0 if it is not to be divided.
    """
    tree, rules = arrays.tree, arrays.rules
    n = len(numbers)
    if n < rules[TAU_NUM] or cell_depth(tree.cells[node]) >= rules[MAX_DEPTH]:
        return 0.0
    n_copies = n_moved = 0
    for k in range(n):
        on_grid = clause_on_grid(tree, clauses, clause_of(tree, numbers[k]))
        some = quarters_of(arrays, tree.cells[node], on_grid)
        bits[k] = some
        n_moved += some != 0
        n_copies += (some & 1) + (some >> 1 & 1) + (some >> 2 & 1) + (some >> 3)
    if rules[PLACEMENT] == LEAVES:
        copies = n_copies / n
        is_too_much = arrays.copies[node] * copies > MOST_COPIES_IN_ALL
        return 0.0 if copies > rules[MOST_COPIES] or is_too_much else copies
    return 1.0 if 4 * n_moved >= n else 0.0


@lean_kernel
def _fill(arrays, node, numbers, order):
    """Make the lists of a node that has none, and let the nodes above know its tokens.

    ``order`` has the pivotal token of each clause and its place in ``numbers``, ascending.
    """
    tree = arrays.tree
    n = len(order)
    tree.counts[node] = n
    tree.facts[N_POSTINGS] += n
    n_tokens = 0
    for k in range(n):
        n_tokens += k == 0 or order[k] >> 32 != order[k - 1] >> 32
    new_table(tree.lists, node, n_tokens)
    is_leaf = tree.children[node] == NO_CHILDREN
    first = 0
    for k in range(1, n + 1):
        if k < n and order[k] >> 32 == order[first] >> 32:
            continue
        token = np.int32(order[first] >> 32)
        if is_leaf or not is_known(tree, arrays.sets, node, token):
            announce(tree, arrays.sets, node, token, is_leaf)
        place = find_or_add(tree.lists, node, token)
        tree.lists.values[place] = new_list(tree.lists, k - first)
        for i in range(first, k):
            append_to_list(tree.lists, place, numbers[order[i] & 0xFFFFFFFF])
        first = k


@lean_kernel
def _has_room(arrays, node, start, n, queue):
    """Return what there is no room for if ``n`` clauses of a node are settled."""
    tree, sets = arrays.tree, arrays.sets
    if not has_room_to_split(tree):
        return NODES
    if not has_places(tree.lists, table_size(n) + 16, n):
        return LIST_PLACES
    if not has_places(sets, places_above(tree, sets, node, n), 0):
        return SET_PLACES
    if start + 4 * n > len(queue.numbers) or queue.ends[0] + 6 > len(queue.nodes):
        return QUEUE_PLACES
    return DONE


@lean_kernel
def _enqueue_quarters(arrays, node, numbers, bits, copies, queue):
    """Give a node four children and enqueue these with their clauses, of so many copies each."""
    tree = arrays.tree
    last = queue.ends[0]
    start = queue.starts[last]
    split_node(tree, node)
    _count_leaves(arrays, node, 3)
    for i in range(4):
        child = np.int64(tree.children[node]) + i
        arrays.limits[child] = arrays.rules[TAU_NUM]
        arrays.n_leaves[child] = 1
        arrays.copies[child] = arrays.copies[node] * copies
        arrays.sets.sizes[child] = arrays.sets.used[child] = 0
        stop = start
        for k in range(len(numbers)):
            if bits[k] >> i & 1 != 0:
                queue.numbers[stop] = numbers[k]
                stop += 1
        if stop > start:
            queue.nodes[last] = child
            last, start = last + 1, stop
            queue.starts[last] = stop
    queue.ends[0] = last


@kernel
def settle(arrays, clauses, frequencies, queue):
    """Settle the clauses of all nodes in the queue, dividing nodes as needed."""
    while queue.ends[0] > 0:
        last = queue.ends[0] - 1
        node, start, stop = np.int64(queue.nodes[last]), queue.starts[last], queue.starts[last + 1]
        n = stop - start
        short_of = _has_room(arrays, node, start, n, queue)
        if short_of != DONE:
            return short_of
        numbers = queue.numbers[start:stop].copy()
        bits = np.zeros(n, np.uint8)
        queue.ends[0] = last
        copies = _divide(arrays, clauses, node, numbers, bits)
        if copies > 0.0:
            _enqueue_quarters(arrays, node, numbers, bits, copies, queue)
            numbers = numbers[bits == 0]
        else:
            arrays.limits[node] = arrays.rules[TAU_NUM] if n < arrays.rules[TAU_NUM] else 2 * n
        if len(numbers) > 0:
            rows = np.empty(len(numbers), np.int64)
            for k in range(len(numbers)):
                rows[k] = clause_of(arrays.tree, numbers[k])
            order = choose_pivots(
                clauses.token_offsets, clauses.token_ids, rows, arrays.rules[PIVOTS], frequencies
            )
            _fill(arrays, node, numbers, order)
    return DONE


@lean_kernel
def _count_leaves(arrays, node, n):
    """Let a node and those above it know of ``n`` more leaves."""
    while node >= 0:
        arrays.n_leaves[node] += n
        node = np.int64(arrays.tree.parents[node])


@lean_kernel
def _empty(arrays, node):
    """Take a node's lists away; the nodes above forget its tokens."""
    tree, tables = arrays.tree, arrays.tree.lists
    start = tables.starts[node]
    is_leaf = tree.children[node] == NO_CHILDREN
    tree.facts[N_POSTINGS] -= tree.counts[node]
    tree.counts[node] = 0
    for place in range(start, start + tables.sizes[node]):
        token = tables.tokens[place]
        if token != EMPTY and (is_leaf or not is_known(tree, arrays.sets, node, token)):
            retract(tree, arrays.sets, node, token)
    drop_lists(tables, node)


@lean_kernel
def _enqueue_leaf(arrays, node, queue):
    """Empty a leaf into the queue; return SETTLE, or what there is no room for."""
    n = np.int64(arrays.tree.counts[node])
    sets = arrays.sets
    if n > len(queue.numbers):
        return QUEUE_PLACES
    if not has_places(sets, places_above(arrays.tree, sets, node, n), 0):
        return SET_PLACES
    copy_numbers(arrays.tree.lists, node, queue.numbers, 0)
    queue.nodes[0], queue.starts[0], queue.starts[1] = node, 0, n
    queue.ends[0] = 1
    _empty(arrays, node)
    return SETTLE


# ---- insertion ----------------------------------------------------------------------------------


@lean_kernel
def _choose_list(arrays, clauses, frequencies, node, c):
    """Return the pivotal token of a new clause of a node."""
    tables, start = arrays.tree.lists, clauses.token_offsets[c]
    best, shortest = np.int32(-1), np.int64(0)
    for i in range(start, start + n_required(clauses.token_offsets, clauses.token_ids, c)):
        token = clauses.token_ids[i]
        place = find(tables, node, token)
        if place >= 0:
            length = list_length(np.int64(tables.values[place]))
            if best < 0 or length < shortest:
                best, shortest = token, length
    if best >= 0:
        return best
    return rarest_token(clauses.token_offsets, clauses.token_ids, c, frequencies)


@lean_kernel
def _add(arrays, clauses, frequencies, node, c):
    """Add a clause to a node, which is its place."""
    tree, sets = arrays.tree, arrays.sets
    token = _choose_list(arrays, clauses, frequencies, node, c)
    if find(tree.lists, node, token) < 0:
        is_leaf = tree.children[node] == NO_CHILDREN
        if is_leaf or not is_known(tree, sets, node, token):
            announce(tree, sets, node, token, is_leaf)
    add_number(tree.lists, find_or_add(tree.lists, node, token), number_of(tree, c))
    tree.counts[node] += 1
    tree.facts[N_POSTINGS] += 1


@lean_kernel
def _next_place(arrays, on_grid, stack, depth):
    """Return the next node that a clause belongs to, or -1, and the new depth of the stack."""
    tree = arrays.tree
    while depth > 0:
        depth -= 1
        node = np.int64(stack[depth])
        if tree.children[node] == NO_CHILDREN:
            return node, depth
        bits = quarters_of(arrays, tree.cells[node], on_grid)
        if bits == 0:
            return node, depth
        for i in range(4):
            if bits >> i & 1 != 0:
                stack[depth] = tree.children[node] + i
                depth += 1
    return np.int64(-1), depth


@lean_kernel
def _insert_clause(arrays, clauses, frequencies, c, work):
    """Insert a clause; return what there is no room for.

    ``work`` is the stack of the descent, its depth in the last place; it is 0 before and after.
    Where the kernel stops short, it goes on. Leaves that are now to be divided are left to
    :func:`_next_full_leaf`.
    """
    tree = arrays.tree
    on_grid = clause_on_grid(tree, clauses, c)
    depth = work[len(work) - 1]
    if depth == 0:
        work[0], depth = 0, 1
    while depth > 0:
        node, left = _next_place(arrays, on_grid, work, depth)
        if node < 0:
            break
        n_list = np.int64(tree.counts[node])
        short_of = DONE
        if not has_places(tree.lists, places_to_add(tree.lists, node, 1), 2 * n_list + 16):
            short_of = LIST_PLACES
        elif not has_places(arrays.sets, places_above(tree, arrays.sets, node, 1), 0):
            short_of = SET_PLACES
        if short_of != DONE:
            work[left] = node
            work[len(work) - 1] = left + 1
            return short_of
        _add(arrays, clauses, frequencies, node, c)
        depth = left
    work[len(work) - 1] = 0
    return DONE


@lean_kernel
def _next_full_leaf(arrays, clauses, c, work):
    """Return a leaf of a clause that has reached its limit, or -1."""
    tree = arrays.tree
    on_grid = clause_on_grid(tree, clauses, c)
    work[0], depth = 0, 1
    node = np.int64(0)
    while node >= 0:
        node, depth = _next_place(arrays, on_grid, work, depth)
        if (
            node >= 0
            and tree.children[node] == NO_CHILDREN
            and tree.counts[node] >= arrays.limits[node]
        ):
            return node
    return np.int64(-1)


@lean_kernel
def insert_clauses(arrays, clauses, frequencies, first, stop, queue, work):
    """Insert clauses ``first`` to ``stop``; return how far that got, and what it is short of."""
    for c in range(first, stop):
        # Whether the clause is in its lists already is told by the place before the last.
        if work[len(work) - 2] == 0:
            short_of = _insert_clause(arrays, clauses, frequencies, c, work)
            if short_of != DONE:
                return c, short_of
            work[len(work) - 2] = 1
        leaf = _next_full_leaf(arrays, clauses, c, work)
        if leaf >= 0:
            return c, _enqueue_leaf(arrays, leaf, queue)
        work[len(work) - 2] = 0
    return stop, DONE


# ---- removal ------------------------------------------------------------------------------------


@lean_kernel
def _take(arrays, clauses, node, c):
    """Take a clause out of a node."""
    tree, sets = arrays.tree, arrays.sets
    number, start = number_of(tree, c), clauses.token_offsets[c]
    for i in range(start, start + n_required(clauses.token_offsets, clauses.token_ids, c)):
        token = clauses.token_ids[i]
        place = find(tree.lists, node, token)
        if place < 0 or not take_number(tree.lists, place, number):
            continue
        tree.counts[node] -= 1
        tree.facts[N_POSTINGS] -= 1
        if tree.lists.values[place] == 0:
            forget(tree.lists, node, place)
            if tree.children[node] == NO_CHILDREN or not is_known(tree, sets, node, token):
                retract(tree, sets, node, token)
        return


@lean_kernel
def _n_in_family(arrays, node):
    """Return how many numbers are in the lists of a node and its children, all leaves, or -1."""
    tree = arrays.tree
    first = np.int64(tree.children[node])
    if not are_leaves(tree, first):
        return np.int64(-1)
    n = np.int64(tree.counts[node])
    for child in range(first, first + 4):
        n += tree.counts[child]
    return n


@lean_kernel
def _merge(arrays, node, queue):
    """Empty a node and its children, all leaves, into the queue; the node becomes a leaf."""
    tree = arrays.tree
    first = np.int64(tree.children[node])
    n = copy_numbers(tree.lists, node, queue.numbers, 0)
    _empty(arrays, node)
    for child in range(first, first + 4):
        n = copy_numbers(tree.lists, child, queue.numbers, n)
        _empty(arrays, child)
    drop_table(arrays.sets, node)
    free_children(tree, node)
    _count_leaves(arrays, node, -3)
    queue.nodes[0], queue.starts[0], queue.starts[1] = node, 0, n
    queue.ends[0] = 1


@lean_kernel
def _merge_if_small(arrays, node, queue):
    """Merge the family of a node if few clauses are left in it.

    Returns SETTLE if so, DONE if not, or what there is no room for.
    """
    tree, sets = arrays.tree, arrays.sets
    if tree.children[node] == NO_CHILDREN:
        node = np.int64(tree.parents[node])
    if node < 0:
        return DONE
    n = _n_in_family(arrays, node)
    if n < 0 or 2 * n >= arrays.rules[TAU_NUM]:
        return DONE
    if n > len(queue.numbers):
        return QUEUE_PLACES
    if not has_places(sets, 5 * places_above(tree, sets, node, n) + 64 * n, 0):
        return SET_PLACES
    _merge(arrays, node, queue)
    return SETTLE


@lean_kernel
def remove_clauses(arrays, clauses, rows, done, queue, work):
    """Remove clauses ``rows[done:]``; return how far that got, and what it is short of."""
    tree, sets = arrays.tree, arrays.sets
    for k in range(done, len(rows)):
        c = rows[k]
        on_grid = clause_on_grid(tree, clauses, c)
        # After a merge the descent begins anew; where nothing is left, nothing is taken.
        work[0], depth = 0, 1
        while True:
            node, depth = _next_place(arrays, on_grid, work, depth)
            if node < 0:
                break
            if not has_places(sets, places_above(tree, sets, node, 1), 0):
                return k, SET_PLACES
            _take(arrays, clauses, node, c)
            short_of = _merge_if_small(arrays, node, queue)
            if short_of != DONE:
                return k, short_of
    return len(rows), DONE


@kernel
def renumber(tree, new_numbers):
    """Replace number i of all lists by ``new_numbers[i]``, and sort the lists anew.

    The caller puts ``rows`` and ``numbers`` of the tree right.
    """
    tables = tree.lists
    for node in range(tree.facts[N_NODES]):
        start = tables.starts[node]
        for place in range(start, start + tables.sizes[node]):
            if tables.tokens[place] == EMPTY:
                continue
            value = np.int64(tables.values[place])
            if list_length(value) == 1:
                number = new_numbers[list_entry_at(tables, value, 0)]
                tables.values[place] = 0
                append_to_list(tables, place, number)
                continue
            part = tables.lists[list_start(value) : list_start(value) + list_length(value)]
            for i in range(len(part)):
                part[i] = new_numbers[part[i]]
            part.sort()
