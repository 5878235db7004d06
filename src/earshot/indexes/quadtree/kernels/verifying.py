"""Verification: the clauses of a list are tested exactly, and appended where they match."""

from __future__ import annotations

from earshot.indexes.kernels.blocks import passes_print
from earshot.indexes.kernels.token_tables import list_entry_at
from earshot.indexes.quadtree.kernels.cells import is_first_meeting
from earshot.indexes.quadtree.kernels.nodes import clause_of, clause_on_grid
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.kernels.processor import prefetch
from earshot.kernels.verify import region_touches, tokens_match

AHEAD = 8
"""How many clauses ahead prints are asked for."""


@inlined_kernel
def is_reported_here(tree, clauses, node, c, on_grid):
    """Whether a clause that touches the message is reported from the lists of this node."""
    if on_grid[0] == on_grid[2] and on_grid[1] == on_grid[3]:
        return True  # a message in one grid square visits one leaf
    return is_first_meeting(tree.cells[node], clause_on_grid(tree, clauses, c), on_grid)


@lean_kernel
def append_list(view, tree, node, value, first, stop, box, on_grid, scratch, answers, n_answers):
    """Append what matches of a stretch of a list; return the new number, -1 without room.

    PT-QUADTREE-VERIFY of [CIKM15] figure 5.
    """
    clauses = view.clauses
    min_x, min_y, max_x, max_y = box
    for i in range(first, stop):
        if i + AHEAD < stop:
            prefetch(tree.prints, clause_of(tree, list_entry_at(tree.lists, value, i + AHEAD)))
        c = clause_of(tree, list_entry_at(tree.lists, value, i))
        if (
            passes_print(tree.prints[c], scratch.signature)
            and region_touches(clauses, c, view.is_lonlat, min_x, min_y, max_x, max_y)
            and tokens_match(
                clauses.token_ids,
                clauses.token_offsets[c],
                clauses.token_offsets[c + 1],
                scratch.marks,
            )
            and is_reported_here(tree, clauses, node, c, on_grid)
        ):
            if n_answers == len(answers):
                return -1
            answers[n_answers] = clauses.subscriptions[c]
            n_answers += 1
    return n_answers
