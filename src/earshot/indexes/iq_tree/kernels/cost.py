"""The cost model of the IQ-Tree: which cells a clause is attached to.

[VLDBJ15] §3.1 and §5.1.1 describe it in words: a subscription is attached to one or more cells of a
quadtree by a cost model that weighs matching against updates, with the message workload known. The
formulas here are ours. A clause in the list of its key costs, for each cell it is attached to,

* ``share * hit``: how many times a message verifies it, the share of messages that have its key
  times the share of messages that touch the cell;
* ``posting_cost``: what another entry of a list costs to store and to keep, in verifications;
* ``posting_cost`` again for each cell that is divided on the way, whose quarters are nodes to keep.

Of all sets of disjoint cells that cover the clause's box, the one of least cost is taken. Quarters
that the box does not touch cost nothing, so a division gains where a box touches a cell's corner.

Shares of messages come from a sample; without one, the centres of the clauses' boxes stand for the
places of messages. They are counted for cells down to depth COUNTED; smaller cells have an equal
part of what is above them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from earshot.indexes.quadtree.kernels.cells import (
    BITS,
    cell_column,
    cell_depth,
    cell_row,
    child_cell,
    grid_box,
    quarters_touched,
)
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.model.arrays import Float64s, Int64s

COUNTED = 8
N_HITS = (4 ** (COUNTED + 1) - 1) // 3

MOST_CELLS = 256
"""Cells of one clause; where more would be chosen, entries are taken to cost four times as much."""


class Choice(NamedTuple):
    """Cells of a clause, and what is on the way to the next."""

    cells: Int64s  # (MOST_CELLS,) chosen so far
    path: Int64s  # (BITS + 1,) by depth: cells that are being divided
    quarters: Int64s  # (BITS + 1,) bits of their quarters still to visit
    firsts: Int64s  # (BITS + 1,) cells chosen before them
    costs: Float64s  # (BITS + 1,) of their division so far


@lean_kernel
def cell_number(depth, column, row):
    """Return the number of a cell, those of smaller depths first."""
    return ((np.int64(1) << 2 * depth) - 1) // 3 + (row << depth | column)


@lean_kernel
def count_hits(frame, boxes, hits):
    """Set the share of boxes that touch each cell; one more is spread evenly over all cells."""
    hits[:] = 0.0
    for i in range(len(boxes)):
        on_grid = grid_box(frame, boxes[i, 0], boxes[i, 1], boxes[i, 2], boxes[i, 3])
        for depth in range(COUNTED + 1):
            shift = BITS - depth
            for row in range(on_grid[1] >> shift, (on_grid[3] >> shift) + 1):
                for column in range(on_grid[0] >> shift, (on_grid[2] >> shift) + 1):
                    hits[cell_number(depth, column, row)] += 1.0
    for depth in range(COUNTED + 1):
        first = cell_number(depth, 0, 0)
        for i in range(first, first + (np.int64(1) << 2 * depth)):
            hits[i] = (hits[i] + 0.25**depth) / (len(boxes) + 1)


@lean_kernel
def hit_of(hits, cell):
    """Return the share of messages that touch a cell."""
    depth = cell_depth(cell)
    above = max(depth - COUNTED, 0)
    place = cell_number(depth - above, cell_column(cell) >> above, cell_row(cell) >> above)
    return np.float64(hits[place]) * 0.25**above


@inlined_kernel
def _may_gain(cell, on_grid, quarters, verified, posting_cost, max_depth):
    """Whether a division can lower the cost: each quarter that is touched needs an entry."""
    depth = cell_depth(cell)
    if depth >= max_depth:
        return False
    n = (quarters & 1) + (quarters >> 1 & 1) + (quarters >> 2 & 1) + (quarters >> 3)
    if verified <= n * posting_cost:
        return False
    if n < 4:
        return True
    # Nothing is gained in a cell that the box covers.
    shift = BITS - depth
    west, south = cell_column(cell) << shift, cell_row(cell) << shift
    last = (np.int64(1) << shift) - 1
    return not (
        on_grid[0] <= west
        and on_grid[1] <= south
        and on_grid[2] >= west + last
        and on_grid[3] >= south + last
    )


@lean_kernel
def choose_cells(hits, share, posting_cost, max_depth, on_grid, choice):
    """Choose the cells of least cost for a grid box; return how many."""
    n = -1
    while n < 0:
        n = _choose(hits, share, posting_cost, max_depth, on_grid, choice)
        posting_cost *= 4.0
    return n


@lean_kernel
def _choose(hits, share, posting_cost, max_depth, on_grid, choice):
    """Choose cells, from the whole grid down; return how many, -1 if they are too many."""
    n, depth, cell = 0, 0, np.int64(0)
    while True:
        verified = share * hit_of(hits, cell)
        quarters = quarters_touched(cell, on_grid) if depth < BITS else np.int64(0)
        if _may_gain(cell, on_grid, quarters, verified, posting_cost, max_depth):
            choice.path[depth], choice.quarters[depth] = cell, quarters
            choice.firsts[depth], choice.costs[depth] = n, posting_cost
        else:
            if n == len(choice.cells):
                return -1
            choice.cells[n] = cell
            n += 1
            cost = verified + posting_cost
            while True:
                if depth == 0:
                    return n
                depth -= 1
                choice.costs[depth] += cost
                if choice.quarters[depth] != 0:
                    break
                # All quarters are done: they, or the cell as a whole.
                cost = choice.costs[depth]
                undivided = share * hit_of(hits, choice.path[depth]) + posting_cost
                if undivided <= cost:
                    cost, n = undivided, choice.firsts[depth]
                    choice.cells[n] = choice.path[depth]
                    n += 1
        low = choice.quarters[depth] & -choice.quarters[depth]
        choice.quarters[depth] ^= low
        cell = child_cell(choice.path[depth], (low & 12 != 0) * 2 + (low & 10 != 0))
        depth += 1
