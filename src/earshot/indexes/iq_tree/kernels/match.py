"""Matching against IQ-Trees and RQ-Trees.

[VLDBJ15] §3.1: of the cells that the message touches, the lists of its tokens are retrieved, and
what is in them is verified. A clause of several cells is reported in that of the first grid square
that it shares with the message. An RQ-Tree does so in the tree of each token of the message.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.iq_tree.kernels.changes import CellTreeArrays
from earshot.indexes.kernels.matching import appends_answers
from earshot.indexes.kernels.token_tables import list_length, n_turns, place_in_turn
from earshot.indexes.quadtree.kernels.cells import BITS, grid_box, quarters_touched
from earshot.indexes.quadtree.kernels.nodes import NO_CHILDREN
from earshot.indexes.quadtree.kernels.verifying import append_list
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.model.arrays import Int32s, Int64s

STACK = 4 * BITS + 4


class CellTreeScratch(NamedTuple):
    """Working memory of one thread."""

    marks: npt.NDArray[np.uint8]  # (n_tokens,) 1 for tokens of the current message
    serial: Int64s  # (1,)
    signature: npt.NDArray[np.uint64]  # (SIGNATURE_WORDS,) a bit per low half of a token
    stack: Int32s  # (STACK,) nodes still to visit


@lean_kernel
def append_tree(view, root, tokens, box, on_grid, scratch, answers, n_answers, work):
    """Append what matches in one quadtree, by the lists of some tokens."""
    tree, stack = view.arrays.tree, scratch.stack
    tables = tree.lists
    stack[0], depth = root, 1
    while depth > 0:
        depth -= 1
        node = np.int64(stack[depth])
        work[0] += 1
        if tree.counts[node] > 0:
            for k in range(n_turns(tables, node, tokens)):
                place = place_in_turn(tables, node, tokens, k, scratch)
                if place < 0:
                    continue
                value = np.int64(tables.values[place])
                length = list_length(value)
                work[1] += length
                n_answers = append_list(
                    view, tree, node, value, 0, length, box, on_grid, scratch, answers, n_answers
                )
                if n_answers < 0:
                    return n_answers
        first = tree.children[node]
        if first == NO_CHILDREN:
            continue
        bits = quarters_touched(tree.cells[node], on_grid)
        for i in range(4):
            child = first + i
            is_empty = tree.counts[child] == 0 and tree.children[child] == NO_CHILDREN
            if bits >> i & 1 != 0 and not is_empty:
                stack[depth] = child
                depth += 1
    return n_answers


@appends_answers(CellTreeArrays)
@inlined_kernel
def append_cell_tree(view, tokens, box, scratch, answers, n_answers, work):
    """Append one message's answers."""
    roots = view.arrays.roots
    frame = view.arrays.tree.frame
    on_grid = grid_box(frame, box[0], box[1], box[2], box[3])
    is_forest = len(roots) > 0
    for k in range(len(tokens) if is_forest else 1):
        root, some = np.int32(0), tokens
        if is_forest:
            root = roots[tokens[k]] if tokens[k] < len(roots) else np.int32(-1)
            some = tokens[k : k + 1]
        if root >= 0:
            n_answers = append_tree(
                view, root, some, box, on_grid, scratch, answers, n_answers, work
            )
            if n_answers < 0:
                return n_answers
    return n_answers
