"""Matching against a pivotal-token quadtree: a filter step, then verification.

[CIKM15] §4.2, Algorithm 2 (figure 5). The filter step descends to the nodes that the message
touches and that have a pivotal token of it; verification walks their lists. What differs:

* Lists are kept by pivotal token, so only those of the message's tokens are walked, where the paper
  verifies all clauses of a leaf. With MX_CIF, inner nodes have lists, too.
* A message that goes on in a child is told by the bits of the node's table (see ``sets.py``);
  children are not asked one by one. Where a token covers a child, nothing below is asked.
* A message that touches few leaves does not ask the sets on its way: to look for its tokens in a
  table costs as much there as in a leaf.
* A clause in the lists of several leaves is reported in the leaf of the first grid square that it
  shares with the message; no memory of what was reported is needed.

For a structure that uses this filter step, such as LFilter ([CIKM15] §5):

1. ``on_grid = grid_box(tree.frame, min_x, min_y, max_x, max_y)``, then :func:`start` with the
   working memory (:class:`PtScratch`; any NamedTuple with these fields will do).
2. :func:`find_lists` writes the next lists of the message's tokens to ``found_nodes`` and
   ``found_values`` and returns how many; with 0 there are none left. If the buffer holds them all,
   ``descent[0]`` is 0 after the first call. ``list_length(value)`` is |I|.
3. Lists hold numbers in ascending order. ``find_number(tree.lists, value, number)`` of
   :mod:`earshot.indexes.quadtree.kernels.nodes` tells where the numbers of a trie node begin and
   end in a list: at that of n_l, and at that of n_u + 1.
4. ``append_list`` of :mod:`earshot.indexes.quadtree.kernels.verifying` verifies a stretch of a list
   in full; a structure that knows the texts to match asks ``is_reported_here`` and
   ``region_touches`` instead.
5. The letters of equation 3: H_q is ``rules[MAX_DEPTH]`` at most, Avg_RT the mean of ``sets.used``
   over inner nodes.

Numbers are the rows of the clauses unless ``tree.numbers`` and ``tree.rows`` say otherwise; see
:class:`~earshot.indexes.pt_quadtree.index.PtQuadtree`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.kernels.matching import appends_answers
from earshot.indexes.kernels.token_tables import list_length, n_turns, place_in_turn
from earshot.indexes.pt_quadtree.kernels.changes import PtQuadtreeArrays
from earshot.indexes.quadtree.kernels.cells import (
    BITS,
    cell_column,
    cell_depth,
    cell_row,
    grid_box,
    quarters_touched,
)
from earshot.indexes.quadtree.kernels.nodes import NO_CHILDREN
from earshot.indexes.quadtree.kernels.verifying import append_list
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.model.arrays import Int32s, Int64s

FOUND = 4096
"""Lists that the filter step finds before they are verified."""
STACK = 4 * BITS + 4
UNASKED = 4.0
"""Leaves, about, up to which a message does not ask the sets of nodes: its leaves tell as much."""


class PtScratch(NamedTuple):
    """Working memory of one thread."""

    marks: npt.NDArray[np.uint8]  # (n_tokens,) 1 for tokens of the current message
    serial: Int64s  # (1,)
    signature: npt.NDArray[np.uint64]  # (SIGNATURE_WORDS,) a bit per low half of a token
    stack: Int32s  # (STACK,) nodes still to visit, ~node where a token covers it
    descent: Int64s  # (2,) nodes on the stack, and tokens of the last one that are done
    found_nodes: Int32s  # (FOUND,)
    found_values: Int64s  # (FOUND,) list of a token in the node


@lean_kernel
def _n_leaves_touched(arrays, on_grid):
    """Return about how many leaves a message touches, from the smallest node that holds it."""
    tree = arrays.tree
    node = np.int64(0)
    while tree.children[node] != NO_CHILDREN:
        bits = quarters_touched(tree.cells[node], on_grid)
        if bits & (bits - 1) != 0:
            return arrays.n_leaves[node] * _share_touched(tree.cells[node], on_grid)
        node = np.int64(tree.children[node]) + (bits & 12 != 0) * 2 + (bits & 10 != 0)
    return 1.0


@lean_kernel
def _share_touched(cell, on_grid):
    """Return the share of a cell that a grid box covers; they must touch."""
    shift = BITS - cell_depth(cell)
    side = np.int64(1) << shift
    west, south = cell_column(cell) << shift, cell_row(cell) << shift
    width = min(on_grid[2], west + side - 1) - max(on_grid[0], west) + 1
    height = min(on_grid[3], south + side - 1) - max(on_grid[1], south) + 1
    return (width / side) * (height / side)


@lean_kernel
def start(arrays, on_grid, scratch):
    """Begin the filter step of a message at the root."""
    asks = _n_leaves_touched(arrays, on_grid) > UNASKED
    scratch.stack[0] = 0 if asks else ~0
    scratch.descent[0] = 1
    scratch.descent[1] = 0


@lean_kernel
def find_lists(arrays, tokens, on_grid, scratch, work):
    """Find the next lists that may hold answers; return their number, 0 if there are none left.

    PT-QUADTREE-FILTER of [CIKM15] figure 5. Nodes visited are added to ``work[0]``.
    """
    tree, lists, sets = arrays.tree, arrays.tree.lists, arrays.sets
    stack, descent = scratch.stack, scratch.descent
    n_found, depth = 0, descent[0]
    while depth > 0:
        is_covered = stack[depth - 1] < 0
        node = np.int64(~stack[depth - 1] if is_covered else stack[depth - 1])
        if tree.counts[node] > 0:
            for k in range(descent[1], n_turns(lists, node, tokens)):
                place = place_in_turn(lists, node, tokens, k, scratch)
                if place < 0:
                    continue
                if n_found == len(scratch.found_nodes):
                    descent[0], descent[1] = depth, k
                    return n_found
                scratch.found_nodes[n_found] = node
                scratch.found_values[n_found] = lists.values[place]
                n_found += 1
        descent[1] = 0
        work[0] += 1
        depth -= 1
        first = tree.children[node]
        if first == NO_CHILDREN:
            continue
        bits = quarters_touched(tree.cells[node], on_grid)
        known = np.int64(0xFF)
        if not is_covered:
            # Lines 3 to 8: the cover set and the non-cover set at once.
            known = np.int64(0)
            for k in range(n_turns(sets, node, tokens)):
                place = place_in_turn(sets, node, tokens, k, scratch)
                if place >= 0:
                    known |= np.int64(sets.values[place])
                    if known >> 4 & bits == bits:
                        break
            bits &= known
        while bits != 0:
            low = bits & -bits
            i = (low & 12 != 0) * 2 + (low & 10 != 0)
            bits ^= low
            stack[depth] = ~(first + i) if known >> (4 + i) & 1 != 0 else first + i
            depth += 1
    descent[0] = 0
    return n_found


@appends_answers(PtQuadtreeArrays)
@inlined_kernel
def append_pt_quadtree(view, tokens, box, scratch, answers, n_answers, work):
    """Append one message's answers ([CIKM15] Algorithm 2)."""
    arrays = view.arrays
    tree = arrays.tree
    on_grid = grid_box(tree.frame, box[0], box[1], box[2], box[3])
    start(arrays, on_grid, scratch)
    while True:
        n_found = find_lists(arrays, tokens, on_grid, scratch, work)
        if n_found == 0:
            return n_answers
        for k in range(n_found):
            node, value = scratch.found_nodes[k], scratch.found_values[k]
            length = list_length(value)
            work[1] += length
            n_answers = append_list(
                view, tree, node, value, 0, length, box, on_grid, scratch, answers, n_answers
            )
            if n_answers < 0:
                return n_answers
