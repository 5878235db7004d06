"""The AP-Tree in flat arrays: k-nodes, s-nodes and l-nodes, and what stands in them.

[VLDBJ15] section 3.2.2. All keywords are in one order: ``ranks`` says where each token stands. A
node (``N``) is one of three kinds:

* ``KEYWORDS``, a k-node: keyword number ``offsets[node]`` (``N_l``) tells its clauses apart. Each
  child but the first is an ordered cut, the ranks ``firsts[c]`` to ``lasts[c]``. A clause with
  fewer keywords is in the *dummy cut*, child 0. In the paper, k-nodes below go on with a later
  keyword, so that a cut of many keywords is never divided. Here they take the same keyword again,
  unless the cut has one only.
* ``SPACE``, an s-node: its region (``N_r``) is a grid of columns and rows. Each child but the first
  is a cell; a clause is in every cell that its box touches. A clause whose box contains the whole
  region is in the *dummy cell*, child 0.
* ``LIST``, an l-node: box key, print and row of each clause (its s-list).

The root is node 0. Children, cuts, edges and lists stand in arrays of their own, each node's in one
piece; a piece that is given up is garbage until the tree is packed.

Cells are open at their upper edges: the cell of a coordinate is the number of inner edges that are
<= it. So a point is in one cell, a clause is found in it if it touches the point, and the cells at
the rim have no outer edge. The outermost edges are kept too: they are the region that a box must
contain to be in the dummy cell.

A k-node stands for ranks between its cuts, too: a keyword that comes later and is in no cut joins
the one below it, whose ``lasts`` rises. Only ``firsts`` decide where a clause goes, ``lasts`` save
visits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.kernels.box_keys import Quantizer, box_key
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.model.arrays import Float64s, Int32s, Int64s

FREE, LIST, KEYWORDS, SPACE = 0, 1, 2, 3
"""Kinds of nodes."""

# Places in ``facts``.
N_NODES = 0  # nodes in use or in the chain of free ones
FREE_NODE = 1  # first of the chain of free nodes, which goes on in their parents; -1 at its end
N_CLAUSES = 2  # clauses in the tree
CHILD_END, CHILD_GARBAGE = 3, 4
CUT_END, CUT_GARBAGE = 5, 6
EDGE_END, EDGE_GARBAGE = 7, 8
LIST_END, LIST_GARBAGE = 9, 10
N_SPLITS, N_COLLAPSES, N_REBUILDS = 11, 12, 13  # since it was built
N_MOVED = 14  # clauses that nodes were built anew from
N_VISITED = 15  # nodes that changes have visited
N_FACTS = 16

# Places in ``rules``, which are the parameters.
FANOUT, MOST_IN_LIST, LEAST_DIVERGENCE, LEAST_SHARE, PARTITION, PRIORITY, IS_RARE_FIRST = range(7)
N_RULES = 7
HEURISTIC, DYNAMIC, PLAIN = 0, 1, 2
BY_COST, KEYWORDS_FIRST, SPACE_FIRST = 0, 1, 2

NO_RANK = np.int32(0x7FFFFFFF)
"""In place of the rank of a keyword that a clause lacks."""

TELLS_ALL = np.uint64(1 << 63)
"""Flag of a print: a message that has its two tokens and touches the clause's box matches it."""

TOKEN = np.uint64(0x7FFF_FFFF)
"""One token of a print; the other is 32 bits higher."""

MAY_KEYWORDS, MAY_SPACE = 1, 2
"""Flags of a node: what may tell its clauses apart (``kP``, ``sP``)."""

MOST_REPEATS = 3
"""k-nodes on a path from the root beyond one for each keyword."""

MOST_SPACE_LEVELS = 8
"""s-nodes on a path from the root, so that copies of a clause stay few."""

_SMOOTHED = 0.5
"""Added to each weight, so that a child without clauses does not make a divergence infinite."""


class ApTreeArrays(NamedTuple):
    """The tree."""

    facts: Int64s  # (N_FACTS,)
    rules: Float64s  # (N_RULES,)
    extent: Float64s  # (4,) region of the root: the box around the finite coordinates
    quantizer: Quantizer  # of the box keys
    ranks: Int32s  # (>= n_tokens,) place of each token in the order of keywords

    # by node
    kinds: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int16]  # KEYWORDS: which keyword decides, from 1 on
    positions: npt.NDArray[np.int16]  # which child of its parent it is; 0 is the dummy
    parents: Int32s  # -1 at the root; FREE: the next free node
    n_below: Int32s  # clauses in or below the node, each once
    n_changes: Int32s  # inner: changes since it was built; LIST: length at which to try a split
    sizes: Int32s  # LIST: places; KEYWORDS: cuts; SPACE: columns | rows << 16
    starts: Int64s  # LIST: first place; inner: first child
    extras: Int64s  # KEYWORDS: first cut; SPACE: first edge, those of x before those of y
    totals: Int32s  # inner: sum of the children's n_below
    fixed: Float64s  # inner: sum of s log s over the shares s that the children were built with
    moving: Float64s  # inner: sum of s log(w + 1/2) over the children's weights w now

    # by child
    children: Int32s  # node, or -1 where there is no clause
    shares: npt.NDArray[np.float32]  # smoothed share of the parent's clauses when it was built

    firsts: Int32s  # by cut: its lowest rank
    lasts: Int32s  # by cut: its highest rank
    edges: Float64s

    # by place of a list
    keys: npt.NDArray[np.uint64]  # (n_places + BLOCK,)
    rows: Int32s  # clauses
    prints: npt.NDArray[np.uint64]  # two tokens that a message must have, and TELLS_ALL

    # A sample of messages at points, for the hit probabilities; may be empty.
    sample_offsets: Int64s  # (n_sampled + 1,)
    sample_ranks: Int32s  # ascending in each message
    sample_places: Float64s  # (n_sampled, 2)


# ---- clauses -------------------------------------------------------------------------------------


@lean_kernel
def rank_at(ranks, token_ids, start, stop, n):
    """Return the rank of a clause's n-th keyword, n from 1 on, or ``NO_RANK``."""
    last = np.int64(-0x80000001)
    for _ in range(n):
        best = np.int64(NO_RANK)
        for i in range(start, stop):
            token = token_ids[i]
            if token < 0:
                break
            rank = np.int64(ranks[token])
            if last < rank < best:
                best = rank
        if best == NO_RANK:
            return NO_RANK
        last = best
    return np.int32(last)


@lean_kernel
def print_of(ranks, sign, token_ids, start, stop, has_shape):
    """Return a clause's two rarest tokens (largest sign * rank), and whether that is all of it."""
    one, other = np.int64(-1), np.int64(-1)  # the rarest, and the next
    for i in range(start, stop):
        token = np.int64(token_ids[i])
        if token < 0:
            break
        rank = sign * ranks[token]
        if one < 0 or rank > sign * ranks[one]:
            one, other = token, one
        elif other < 0 or rank > sign * ranks[other]:
            other = token
    other = one if other < 0 else other
    tells_all = stop - start <= 1 + (other != one) and not has_shape
    flag = TELLS_ALL if tells_all else np.uint64(0)
    return np.uint64(one) | np.uint64(other) << np.uint64(32) | flag


@inlined_kernel
def write_entry(tree, clauses, place, c):
    """Write a clause to a place of a list."""
    box = clauses.boxes[c]
    tree.keys[place] = box_key(tree.quantizer, box[0], box[1], box[2], box[3])
    tree.rows[place] = c
    start, stop = clauses.token_offsets[c], clauses.token_offsets[c + 1]
    sign = np.int64(-1) if tree.rules[IS_RARE_FIRST] > 0 else np.int64(1)
    has_shape = clauses.shape_rows[c] >= 0
    tree.prints[place] = print_of(tree.ranks, sign, clauses.token_ids, start, stop, has_shape)


# ---- where a clause goes -------------------------------------------------------------------------


@lean_kernel
def n_not_above(values, start, n, value):
    """Return how many of ``n`` ascending values from ``start`` on are <= ``value``."""
    low = np.int64(0)
    while n > 0:
        half = n >> 1
        ahead = values[start + low + half] <= value
        low = low + half + 1 if ahead else low
        n = n - half - 1 if ahead else half
    return low


@lean_kernel
def find_cut(firsts, start, n, rank):
    """Return which of the ``n`` cuts from ``start`` on a rank belongs to, from 0 on."""
    return max(np.int64(0), n_not_above(firsts, start, np.int64(n), rank) - 1)


@lean_kernel
def grid_of(size, start):
    """Return columns, rows, where the edges of x start and where those of y start."""
    n_columns, n_rows = np.int64(size & 0xFFFF), np.int64(size >> 16)
    return n_columns, n_rows, start, start + n_columns + 1


@lean_kernel
def cell_of(edges, start, n, value):
    """Return the column or row, of ``n``, that a coordinate is in."""
    return n_not_above(edges, start + 1, n - 1, value)


@lean_kernel
def contains_region(edges, x_start, n_columns, y_start, n_rows, box):
    """Whether a box contains the whole region of a grid."""
    return (
        box[0] <= edges[x_start]
        and box[1] <= edges[y_start]
        and box[2] >= edges[x_start + n_columns]
        and box[3] >= edges[y_start + n_rows]
    )


@lean_kernel
def cells_of(edges, x_start, n_columns, y_start, n_rows, box):
    """Return the first and last column, and the first and last row, that a box touches."""
    left = cell_of(edges, x_start, n_columns, box[0])
    bottom = cell_of(edges, y_start, n_rows, box[1])
    right = left if box[2] == box[0] else cell_of(edges, x_start, n_columns, box[2])
    top = bottom if box[3] == box[1] else cell_of(edges, y_start, n_rows, box[3])
    return left, right, bottom, top


@lean_kernel
def n_children(kind, size):
    """Return how many children an inner node can have, the dummy included."""
    if kind == KEYWORDS:
        return np.int64(size) + 1
    return np.int64(size & 0xFFFF) * np.int64(size >> 16) + 1


# ---- nodes ---------------------------------------------------------------------------------------


@lean_kernel
def new_list(tree, parent, position):
    """Return a new l-node without places; there must be room for a node."""
    facts = tree.facts
    node = facts[FREE_NODE]
    if node >= 0:
        facts[FREE_NODE] = tree.parents[node]
    else:
        node = facts[N_NODES]
        facts[N_NODES] += 1
    tree.parents[node] = parent
    tree.positions[node] = position
    tree.n_below[node] = 0
    _be_empty_list(tree, node)
    return node


@lean_kernel
def _be_empty_list(tree, node):
    tree.kinds[node] = LIST
    tree.n_changes[node] = 0
    tree.sizes[node] = 0
    tree.starts[node] = 0


@lean_kernel
def give_up_pieces(tree, node):
    """Leave a node's pieces behind as garbage; it is an l-node without places afterwards."""
    facts = tree.facts
    size = np.int64(tree.sizes[node])
    if tree.kinds[node] == LIST:
        facts[LIST_GARBAGE] += size
    else:
        facts[CHILD_GARBAGE] += n_children(tree.kinds[node], tree.sizes[node])
        if tree.kinds[node] == KEYWORDS:
            facts[CUT_GARBAGE] += size
        else:
            facts[EDGE_GARBAGE] += (size & 0xFFFF) + (size >> 16) + 2
    _be_empty_list(tree, node)


@lean_kernel
def free_node(tree, node):
    """Give up a node and its pieces."""
    give_up_pieces(tree, node)
    tree.kinds[node] = FREE
    tree.parents[node] = tree.facts[FREE_NODE]
    tree.facts[FREE_NODE] = node


@lean_kernel
def has_places(tree, n):
    """Whether there is room for lists of ``n`` more places."""
    return tree.facts[LIST_END] + n <= len(tree.rows)


@lean_kernel
def take_places(tree, node, n):
    """Give an l-node a new piece of ``n`` places, with what it has; there must be room."""
    facts = tree.facts
    start, old = facts[LIST_END], tree.starts[node]
    if tree.sizes[node] > 0:
        for k in range(tree.n_below[node]):
            tree.keys[start + k] = tree.keys[old + k]
            tree.rows[start + k] = tree.rows[old + k]
            tree.prints[start + k] = tree.prints[old + k]
    facts[LIST_GARBAGE] += tree.sizes[node]
    facts[LIST_END] += n
    tree.starts[node] = start
    tree.sizes[node] = n


# ---- divergence ----------------------------------------------------------------------------------


@lean_kernel
def start_divergence(tree, node):
    """Take the weights of an inner node's children as those that it was built with."""
    start, n = tree.starts[node], n_children(tree.kinds[node], tree.sizes[node])
    total = np.int64(0)
    for k in range(n):
        child = tree.children[start + k]
        if child >= 0:
            total += tree.n_below[child]
    whole = total + _SMOOTHED * n
    fixed, moving = 0.0, 0.0
    for k in range(n):
        child = tree.children[start + k]
        weight = _SMOOTHED + (np.float64(tree.n_below[child]) if child >= 0 else 0.0)
        share = np.float32(weight / whole)
        tree.shares[start + k] = share
        fixed += share * np.log(np.float64(share))
        moving += share * np.log(weight)
    tree.totals[node] = total
    tree.fixed[node] = fixed
    tree.moving[node] = moving
    tree.n_changes[node] = 0


@inlined_kernel
def follow_weight(tree, node, place, old, new):
    """Follow a child's weight from ``old`` to ``new``; ``place`` is the child's."""
    share = np.float64(tree.shares[place])
    tree.moving[node] += share * (np.log(new + _SMOOTHED) - np.log(old + _SMOOTHED))
    tree.totals[node] += np.int32(new - old)


@inlined_kernel
def divergence(tree, node):
    """Return the KL divergence of a node's weights now from those that it was built with.

    [VLDBJ15] section 3.3.5, ``D_KL(w_old | w)``. Both are smoothed: half a clause more for each
    child. Kept up to date by one term per change, as the sum falls apart into what is fixed and
    what moves.
    """
    n = n_children(tree.kinds[node], tree.sizes[node])
    whole = tree.totals[node] + _SMOOTHED * n
    return tree.fixed[node] - tree.moving[node] + np.log(whole)


# ---- where a node is -----------------------------------------------------------------------------


@lean_kernel
def offset_below(tree, node, position, n_keyword_levels):
    """Return which keyword is next in a child of a k-node with so many k-nodes down to it.

    That is the same one again where a cut has several keywords, but ``MOST_REPEATS`` times at most.
    """
    offset = np.int64(tree.offsets[node])
    if position > 0:
        cut = tree.extras[node] + position - 1
        if tree.firsts[cut] != tree.lasts[cut] and n_keyword_levels - offset < MOST_REPEATS:
            return offset
    return offset + 1


@lean_kernel
def where_is(tree, node):
    """Return which keyword is next at a node, its flags, and how many k- and s-nodes are above."""
    flags, n_space, n_keyword_levels = MAY_KEYWORDS | MAY_SPACE, np.int64(0), np.int64(0)
    nearest, position = np.int64(-1), np.int64(0)
    while tree.parents[node] >= 0:
        parent = np.int64(tree.parents[node])
        is_dummy = tree.positions[node] == 0
        if tree.kinds[parent] == KEYWORDS:
            n_keyword_levels += 1
            if nearest < 0:
                nearest, position = parent, np.int64(tree.positions[node])
            if is_dummy:
                flags &= ~MAY_KEYWORDS
        else:
            n_space += 1
            if is_dummy:
                flags &= ~MAY_SPACE
        node = parent
    offset = np.int64(1)
    if nearest >= 0:
        offset = offset_below(tree, nearest, position, n_keyword_levels)
    return offset, flags, n_keyword_levels, n_space


@lean_kernel
def fill_region(tree, node, region, is_open):
    """Write the region of a node; where it is open, edges at the rim of all space are infinite."""
    region[0] = region[1] = -np.inf
    region[2] = region[3] = np.inf
    while tree.parents[node] >= 0:
        parent = np.int64(tree.parents[node])
        if tree.kinds[parent] == SPACE:
            n_columns, n_rows, x_start, y_start = grid_of(tree.sizes[parent], tree.extras[parent])
            left, right, bottom, top = np.int64(0), n_columns, np.int64(0), n_rows
            if tree.positions[node] > 0:
                cell = np.int64(tree.positions[node]) - 1
                left, bottom = cell % n_columns, cell // n_columns
                right, top = left + 1, bottom + 1
            if left > 0 or not is_open:
                region[0] = max(region[0], tree.edges[x_start + left])
            if right < n_columns or not is_open:
                region[2] = min(region[2], tree.edges[x_start + right])
            if bottom > 0 or not is_open:
                region[1] = max(region[1], tree.edges[y_start + bottom])
            if top < n_rows or not is_open:
                region[3] = min(region[3], tree.edges[y_start + top])
        node = parent
    if not is_open:
        for k in range(2):
            region[k] = max(region[k], tree.extent[k])
            region[2 + k] = min(region[2 + k], tree.extent[2 + k])
