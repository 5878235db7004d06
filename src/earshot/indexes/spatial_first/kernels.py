"""Kernels of :mod:`earshot.indexes.spatial_first.index`: a packed R-tree over the clauses' boxes.

[KDD13] §2.2 (spatial-first method). The tree is packed bottom-up, ``fan_out`` children to a node,
from clauses in Hilbert order of their boxes' centres. What differs from a textbook packing:

* Centres are replaced by their ranks on each axis before the curve is drawn (equal values share a
  rank). So crowded places get as fine an order as empty ones, and coordinates of any size, up to
  the largest float, need no scaling that could overflow.
* Boxes with an infinite side come last, away from the others, whose nodes they would blow up.
* A leaf entry carries the rarest token of its clause, so that most clauses whose box touches the
  message are refused by their text without a look at the clause itself.

Ranked ([TKDE15] §6), the clauses that touch are scored, and those that text alone can qualify.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.kernels.matching import appends_answers
from earshot.indexes.kernels.verifying import append_match, append_score
from earshot.kernels.jit import inlined_kernel, kernel
from earshot.kernels.scoring import ScoringArrays, message_area
from earshot.kernels.verify import box_touches
from earshot.model.arrays import Float64s, Int32s, Int64s

_CURVE_BITS = 16
_UNBOUNDED = np.int64(1) << (2 * _CURVE_BITS)


class SpatialFirstArrays(NamedTuple):
    """The tree, level after level: level 0 are the clauses in curve order, the last is the root.

    Node ``i`` of level ``k`` has children ``i * fan_out`` to ``(i + 1) * fan_out - 1`` of level
    ``k - 1``, as far as that level goes.
    """

    fan_out: Int64s  # (1,)
    level_offsets: Int64s  # (n_levels + 1,) boxes of level k are [k]:[k+1]
    boxes: Float64s  # (n_clauses + n_nodes, 4) min_x, min_y, max_x, max_y
    entry_clauses: Int32s  # (n_clauses,) clause of each entry of level 0
    entry_tokens: Int32s  # (n_clauses,) rarest required token of that clause


class RankedSpatialFirstArrays(NamedTuple):
    """The tree as in SpatialFirstArrays, and what is in no tree."""

    scoring: ScoringArrays
    fan_out: Int64s
    level_offsets: Int64s
    boxes: Float64s
    entry_clauses: Int32s
    placeless: Int32s  # clauses that can qualify by text alone, in clause order


class SpatialFirstScratch(NamedTuple):
    """Working memory of one thread."""

    marks: npt.NDArray[np.uint8]  # (n_tokens,) 1 for tokens of the current message
    serial: Int64s  # (1,)
    last_seen: Int64s  # (n_slots,) as in SlotScratch, if it ranks
    stack_levels: Int64s  # (n_levels * fan_out,) nodes still to visit: their levels …
    stack_nodes: Int64s  # (n_levels * fan_out,) … and their numbers within the level


@kernel
def hilbert_position(x, y):
    """Return the position on the Hilbert curve through a grid of 2^16 by 2^16 cells."""
    position = np.int64(0)
    for bit in range(_CURVE_BITS - 1, -1, -1):
        right = (x >> bit) & 1
        upper = (y >> bit) & 1
        position = (position << 2) | ((3 * right) ^ upper)
        if upper == 0:
            # The lower quadrants hold the curve mirrored at a diagonal.
            if right == 1:
                x, y = ~x, ~y
            x, y = y, x
    return position


@kernel
def rank_cells(centres, order, cells):
    """Set ``cells`` to the centres' ranks scaled to 16 bits; equal centres share a cell."""
    n = len(order)
    rank = 0
    for i in range(n):
        if i > 0 and centres[order[i]] != centres[order[i - 1]]:
            rank = i
        cells[order[i]] = (rank << _CURVE_BITS) // n


@kernel
def curve_keys(boxes, x_cells, y_cells):
    """Return sort keys: the curve position of bounded boxes; unbounded ones after all others."""
    keys = np.empty(len(boxes), np.int64)
    for i in range(len(boxes)):
        keys[i] = hilbert_position(x_cells[i], y_cells[i])
        if (
            boxes[i, 0] == -np.inf
            or boxes[i, 1] == -np.inf
            or boxes[i, 2] == np.inf
            or boxes[i, 3] == np.inf
        ):
            keys[i] += _UNBOUNDED
    return keys


@kernel
def build_spatial_first(clauses, frequencies, order, fan_out, level_offsets):
    """Return boxes of all levels, and each entry's clause and rarest token."""
    token_offsets, token_ids = clauses.token_offsets, clauses.token_ids
    n = len(order)
    boxes = np.empty((level_offsets[-1], 4), np.float64)
    entry_clauses = np.empty(n, np.int32)
    entry_tokens = np.empty(n, np.int32)
    for e in range(n):
        c = order[e]
        entry_clauses[e] = c
        boxes[e] = clauses.boxes[c]
        rarest = token_ids[token_offsets[c]]
        for i in range(token_offsets[c] + 1, token_offsets[c + 1]):
            token = token_ids[i]
            if token >= 0 and frequencies[token] < frequencies[rarest]:
                rarest = token
        entry_tokens[e] = rarest
    for level in range(1, len(level_offsets) - 1):
        below, here = level_offsets[level - 1], level_offsets[level]
        for node in range(level_offsets[level + 1] - here):
            child = below + node * fan_out
            boxes[here + node] = boxes[child]
            for k in range(child + 1, min(child + fan_out, here)):
                boxes[here + node, 0] = min(boxes[here + node, 0], boxes[k, 0])
                boxes[here + node, 1] = min(boxes[here + node, 1], boxes[k, 1])
                boxes[here + node, 2] = max(boxes[here + node, 2], boxes[k, 2])
                boxes[here + node, 3] = max(boxes[here + node, 3], boxes[k, 3])
    return boxes, entry_clauses, entry_tokens


@inlined_kernel
def _touches(boxes, row, min_x, min_y, max_x, max_y):
    """Whether a box touches the message's, which has two parts where it crosses."""
    if min_x <= max_x:
        return box_touches(boxes, row, min_x, min_y, max_x, max_y)
    return box_touches(boxes, row, min_x, min_y, 180.0, max_y) or box_touches(
        boxes, row, -180.0, min_y, max_x, max_y
    )


@inlined_kernel
def _start(arrays, min_x, min_y, max_x, max_y, scratch):
    """Put the root on the stack, if there is one that touches; return the stack's height."""
    levels = arrays.level_offsets
    root_level = len(levels) - 2
    if root_level < 1 or not _touches(arrays.boxes, levels[root_level], min_x, min_y, max_x, max_y):
        return 0
    scratch.stack_levels[0], scratch.stack_nodes[0] = root_level, 0
    return 1


@inlined_kernel
def _visit(arrays, min_x, min_y, max_x, max_y, scratch, depth):
    """Take a node off the stack, and put those of its children on it that touch.

    Returns the stack's height, and the first and last of the entries in the node if it is a leaf.
    """
    levels, boxes, fan_out = arrays.level_offsets, arrays.boxes, arrays.fan_out[0]
    depth -= 1
    level, node = scratch.stack_levels[depth] - 1, scratch.stack_nodes[depth]
    first = levels[level] + node * fan_out
    last = min(first + fan_out, levels[level + 1])
    if level == 0:
        return depth, first, last
    for k in range(first, last):
        if _touches(boxes, k, min_x, min_y, max_x, max_y):
            scratch.stack_levels[depth], scratch.stack_nodes[depth] = level, k - levels[level]
            depth += 1
    return depth, first, first


@appends_answers(SpatialFirstArrays)
@inlined_kernel
def append_spatial_first(view, tokens, box, scratch, answers, n_answers, work):
    """Append one message's answers."""
    arrays = view.arrays
    min_x, min_y, max_x, max_y = box
    depth = _start(arrays, min_x, min_y, max_x, max_y, scratch)
    while depth > 0:
        work[0] += 1
        depth, first, last = _visit(arrays, min_x, min_y, max_x, max_y, scratch, depth)
        for k in range(first, last):
            if not box_touches(arrays.boxes, k, min_x, min_y, max_x, max_y):
                continue
            work[1] += 1
            if scratch.marks[arrays.entry_tokens[k]] == 0:
                continue
            c = arrays.entry_clauses[k]
            if view.alive[view.clauses.subscriptions[c]] != 0:
                n_answers = append_match(
                    view, c, min_x, min_y, max_x, max_y, scratch, answers, n_answers
                )
                if n_answers < 0:
                    return n_answers
    return n_answers


@appends_answers(RankedSpatialFirstArrays)
@inlined_kernel
def append_ranked_spatial_first(view, tokens, box, scratch, answers, n_answers, work):
    """Append one message's answers and their scores."""
    arrays, box_area = view.arrays, message_area(box)
    min_x, min_y, max_x, max_y = box
    depth = _start(arrays, min_x, min_y, max_x, max_y, scratch)
    n_placeless = len(arrays.placeless)
    while depth > 0 or n_placeless > 0:
        # Those that have no place in the tree come as if they were a leaf behind it.
        is_placed = depth > 0
        first, last = 0, n_placeless
        if is_placed:
            work[0] += 1
            depth, first, last = _visit(arrays, min_x, min_y, max_x, max_y, scratch, depth)
        else:
            n_placeless = 0
        for k in range(first, last):
            if is_placed and not _touches(arrays.boxes, k, min_x, min_y, max_x, max_y):
                continue
            work[1] += 1
            c = arrays.entry_clauses[k] if is_placed else arrays.placeless[k]
            slot = view.clauses.subscriptions[c]
            if view.alive[slot] != 0:
                n_answers = append_score(
                    arrays.scoring, view, c, slot, box, box_area, scratch, answers, n_answers
                )
                if n_answers < 0:
                    return n_answers
    return n_answers
