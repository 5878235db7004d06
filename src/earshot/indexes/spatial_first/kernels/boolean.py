"""Kernels of :mod:`earshot.indexes.spatial_first.index`: a packed R-tree over the clauses' boxes.

[KDD13] §2.2 (spatial-first method). The tree is packed bottom-up, ``fan_out`` children to a node,
from clauses in Hilbert order of their boxes' centres. What differs from a textbook packing:

* Centres are replaced by their ranks on each axis before the curve is drawn (equal values share a
  rank). So crowded places get as fine an order as empty ones, and coordinates of any size, up to
  the largest float, need no scaling that could overflow.
* Boxes with an infinite side come last, away from the others, whose nodes they would blow up.
* A leaf entry carries the rarest token of its clause, so that most clauses whose box touches the
  message are refused by their text without a look at the clause itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.kernels.jit import kernel, lean_kernel
from earshot.kernels.verify import box_touches, mark_tokens, region_touches, tokens_match
from earshot.model.arrays import Float64s, Int32s, Int64s

_CURVE_BITS = 16
_UNBOUNDED = np.int64(1) << (2 * _CURVE_BITS)


class SpatialFirstArrays(NamedTuple):
    """The tree, level after level: level 0 are the clauses in curve order, the last is the root.

    Node ``i`` of level ``k`` has children ``i * fan_out`` to ``(i + 1) * fan_out - 1`` of level
    ``k - 1``, as far as that level goes.
    """

    level_offsets: Int64s  # (n_levels + 1,) boxes of level k are [k]:[k+1]
    boxes: Float64s  # (n_clauses + n_nodes, 4) min_x, min_y, max_x, max_y
    entry_clauses: Int32s  # (n_clauses,) clause of each entry of level 0
    entry_tokens: Int32s  # (n_clauses,) rarest required token of that clause


class SpatialFirstScratch(NamedTuple):
    """Working memory of one thread."""

    marks: npt.NDArray[np.uint8]  # (n_tokens,) 1 for tokens of the current message
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
def build_spatial_first(
    clause_boxes, token_offsets, token_ids, frequencies, order, fan_out, level_offsets
):
    """Return boxes of all levels, and each entry's clause and rarest token."""
    n = len(order)
    boxes = np.empty((level_offsets[-1], 4), np.float64)
    entry_clauses = np.empty(n, np.int32)
    entry_tokens = np.empty(n, np.int32)
    for e in range(n):
        c = order[e]
        entry_clauses[e] = c
        boxes[e] = clause_boxes[c]
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


@lean_kernel
def match_spatial_first(
    arrays, fan_out, clauses, alive, is_lonlat, messages, start, stop, row, scratch,
    answers, offsets, work,
):  # fmt: skip
    """Match messages ``start + row`` to ``stop``; see ``collect_answers`` for the protocol."""
    marks = scratch.marks
    stack_levels, stack_nodes = scratch.stack_levels, scratch.stack_nodes
    levels, boxes = arrays.level_offsets, arrays.boxes
    root_level = len(levels) - 2
    n_answers = offsets[row]
    for m in range(start + row, stop):
        first, last = messages.token_offsets[m], messages.token_offsets[m + 1]
        min_x, min_y, max_x, max_y = messages.boxes[m]
        mark_tokens(messages.token_ids, first, last, marks, 1)
        n_nodes = n_candidates = depth = 0
        if root_level > 0 and box_touches(boxes, levels[root_level], min_x, min_y, max_x, max_y):
            stack_levels[0], stack_nodes[0] = root_level, 0
            depth = 1
        full = False
        while depth > 0 and not full:
            depth -= 1
            level, node = stack_levels[depth] - 1, stack_nodes[depth]
            n_nodes += 1
            child = levels[level] + node * fan_out
            for k in range(child, min(child + fan_out, levels[level + 1])):
                if not box_touches(boxes, k, min_x, min_y, max_x, max_y):
                    continue
                if level > 0:
                    stack_levels[depth], stack_nodes[depth] = level, k - levels[level]
                    depth += 1
                    continue
                n_candidates += 1
                if marks[arrays.entry_tokens[k]] == 0:
                    continue
                c = arrays.entry_clauses[k]
                slot = clauses.subscriptions[c]
                if (
                    alive[slot] != 0
                    and tokens_match(
                        clauses.token_ids,
                        clauses.token_offsets[c],
                        clauses.token_offsets[c + 1],
                        marks,
                    )
                    and region_touches(clauses, c, is_lonlat, min_x, min_y, max_x, max_y)
                ):
                    if n_answers == len(answers):
                        full = True
                        break
                    answers[n_answers] = slot
                    n_answers += 1
        mark_tokens(messages.token_ids, first, last, marks, 0)
        if full:
            return m - start
        work[0] += n_nodes
        work[1] += n_candidates
        offsets[m - start + 1] = n_answers
    return stop - start
