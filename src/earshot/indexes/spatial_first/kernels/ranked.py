"""Kernels of :mod:`earshot.indexes.spatial_first.ranked`: a packed R-tree over the clauses' boxes.

The tree is that of :mod:`earshot.indexes.spatial_first.kernels.boolean`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.kernels.jit import lean_kernel
from earshot.kernels.scoring import (
    ScoringArrays,
    box_touches_message,
    delivered_score,
    message_area,
)
from earshot.kernels.verify import mark_tokens
from earshot.model.arrays import Float64s, Int32s, Int64s


class RankedSpatialFirstArrays(NamedTuple):
    """The tree as in SpatialFirstArrays, and what is in no tree."""

    scoring: ScoringArrays
    level_offsets: Int64s  # (n_levels + 1,) boxes of level k are [k]:[k+1]
    boxes: Float64s  # (n_entries + n_nodes, 4) min_x, min_y, max_x, max_y
    entry_clauses: Int32s  # (n_entries,) clause of each entry of level 0
    placeless: Int32s  # clauses that can qualify by text alone, in clause order


class RankedSpatialFirstScratch(NamedTuple):
    """Working memory of one thread."""

    marks: npt.NDArray[np.uint8]  # (n_tokens,) 1 for tokens of the current message
    last_seen: Int64s  # (n_slots,) as in RankedScratch
    serial: Int64s  # (1,)
    stack_levels: Int64s  # (n_levels * fan_out,) nodes still to visit: their levels …
    stack_nodes: Int64s  # (n_levels * fan_out,) … and their numbers within the level
    found: Int32s  # (n_clauses,) clauses to score


@lean_kernel
def _find_touching(arrays, fan_out, box, scratch):
    """Write the clauses whose boxes touch the message to ``found``; return them and the nodes."""
    levels, boxes = arrays.level_offsets, arrays.boxes
    stack_levels, stack_nodes = scratch.stack_levels, scratch.stack_nodes
    root_level = len(levels) - 2
    n_nodes = n_found = depth = 0
    if root_level > 0 and box_touches_message(boxes, levels[root_level], box):
        stack_levels[0], stack_nodes[0] = root_level, 0
        depth = 1
    while depth > 0:
        depth -= 1
        level, node = stack_levels[depth] - 1, stack_nodes[depth]
        n_nodes += 1
        child = levels[level] + node * fan_out
        for k in range(child, min(child + fan_out, levels[level + 1])):
            if not box_touches_message(boxes, k, box):
                continue
            if level > 0:
                stack_levels[depth], stack_nodes[depth] = level, k - levels[level]
                depth += 1
            else:
                scratch.found[n_found] = arrays.entry_clauses[k]
                n_found += 1
    return n_found, n_nodes


@lean_kernel
def match_ranked_spatial_first(
    arrays, fan_out, clauses, alive, is_lonlat, messages, start, stop, row, scratch,
    answers, offsets, work,
):  # fmt: skip
    """Match messages ``start + row`` to ``stop``; see ``collect_answers`` for the protocol."""
    marks = scratch.marks
    n_answers = offsets[row]
    for m in range(start + row, stop):
        first, last = messages.token_offsets[m], messages.token_offsets[m + 1]
        box = messages.boxes[m]
        box_area = message_area(box)
        scratch.serial[0] += 1
        mark_tokens(messages.token_ids, first, last, marks, 1)
        n_found, n_nodes = _find_touching(arrays, fan_out, box, scratch)
        full = False
        for k in range(n_found + len(arrays.placeless)):
            c = scratch.found[k] if k < n_found else arrays.placeless[k - n_found]
            slot = clauses.subscriptions[c]
            if alive[slot] == 0:
                continue
            score = delivered_score(
                arrays.scoring, clauses, c, slot, marks, is_lonlat, box, box_area,
                scratch.last_seen, scratch.serial[0],
            )  # fmt: skip
            if score >= 0.0:
                if n_answers == len(answers.slots):
                    full = True
                    break
                answers.slots[n_answers] = slot
                answers.scores[n_answers] = score
                n_answers += 1
        mark_tokens(messages.token_ids, first, last, marks, 0)
        if full:
            return m - start
        work[0] += n_nodes
        work[1] += n_found + len(arrays.placeless)
        offsets[m - start + 1] = n_answers
    return stop - start
