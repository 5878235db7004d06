"""What it costs to divide space where subscriptions move, for the AP+-Tree.

[VLDBJ15] section 4.3.1 gives s-nodes two penalties (eq. 15): what location updates cost (eqs. 8 and
9), and what building anew does (eqs. 10 to 13). The paper counts a timestamp. Here costs are those
of a message, so both are divided by the messages ``r_m`` that come to the node in the time in which
each subscription reports once, which makes ``T_upd`` 1. What differs:

- ``zeta_s`` counts edges of cells of the grid that is tried, and not regions of the node: to leave
  a cell is what costs, and to come to one.
- ``l_path`` goes down to the lists, by the height of eq. 11. A step costs ``log f`` and
  what was measured, ``STEP``.
- Each report looks into all lists of the subscription, whether it leaves one or not. The paper
  leaves that out. So it does with the messages of their m-lists: as these cost the same wherever
  the node is, and whatever it becomes, they make all other costs weigh less.
- ``|V|`` is taken to be the number of clauses.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.ap_tree.kernels.nodes import FANOUT, LEAST_DIVERGENCE, MOST_IN_LIST, N_CLAUSES
from earshot.kernels.jit import lean_kernel
from earshot.model.arrays import Float64s

VISIT = 32.0
"""What it costs to visit a node, in clauses of a list."""

LOOK = 32.0
"""What it costs to let a clause be elsewhere in a list, in clauses that a message passes."""

STEP = 4096.0
"""What it costs to take a clause one step down to another list, as :data:`LOOK`. With 500,000
subscriptions, a move within its l-nodes takes 1.5 µs, and one across a cell's edge 4. With half of
this, trees that were built anew while many messages came had cells so small that moves took five
times as long; between 3,000 and 8,000 it makes no difference."""

UNKNOWN = 0.25
"""How often a clause is taken to leave a cell at a report before it has made any."""

_MOST_MEASURED = 256
_MOST_STEPS = 32
"""Reports after which Algorithm 8 gives up (``T_max``)."""
_SMOOTHED = 0.5
_LEAST_SAMPLE = 32


class Motion(NamedTuple):
    """How subscriptions move."""

    reports: Float64s  # (1,) reports of a subscription per message; 0 where nothing moves
    velocities: npt.NDArray[np.float32]  # (n_clauses, 2) ways between two reports; empty if unknown
    counts: Float64s  # (2, >= cells) working memory


@lean_kernel
def _crossings(motion, clause, width, height):
    """Return how often a clause leaves cells or comes to others at a report (``zeta_s``), up to 1.

    Both of its sides do so on each axis.
    """
    if len(motion.velocities) <= clause:
        return UNKNOWN
    way_x, way_y = abs(motion.velocities[clause, 0]), abs(motion.velocities[clause, 1])
    return min(1.0, 2.0 * way_x / max(width, 1e-300) + 2.0 * way_y / max(height, 1e-300))


@lean_kernel
def _cell_at(boxes, motion, clause, step, region, n_columns, n_rows):
    """Return the cell of an even grid in which a clause is after so many reports.

    What leaves the region comes back on the other side, as others do.
    """
    cell = np.int64(0)
    for axis in range(2):
        n = n_columns if axis == 0 else n_rows
        low, side = region[axis], region[2 + axis] - region[axis]
        middle = 0.5 * (max(boxes[clause, axis], low) + min(boxes[clause, 2 + axis], low + side))
        share = (middle - low + step * motion.velocities[clause, axis]) / max(side, 1e-300)
        at = min(np.int64((share - np.floor(share)) * n), n - 1) if np.isfinite(share) else 0
        cell = cell * n + at
    return cell


@lean_kernel
def next_rebuild(tree, boxes, rows, motion, region, n_columns, n_rows):
    """Return after how many reports an s-node would be built anew (``T_delta``).

    [VLDBJ15] Algorithm 8, of some of the clauses; as in the tree, half of them must have changed.
    """
    if len(motion.velocities) == 0:
        return np.int64(1)
    n_cells, step_by = n_columns * n_rows, max(np.int64(1), len(rows) // _MOST_MEASURED)
    old, new = motion.counts[0], motion.counts[1]
    old[:n_cells] = 0.0
    n = np.int64(0)
    for i in range(0, len(rows), step_by):
        old[_cell_at(boxes, motion, rows[i], 0, region, n_columns, n_rows)] += 1.0
        n += 1
    whole, n_changes = n + _SMOOTHED * n_cells, np.int64(0)
    for step in range(1, _MOST_STEPS):
        new[:n_cells] = 0.0
        for i in range(0, len(rows), step_by):
            at = _cell_at(boxes, motion, rows[i], step, region, n_columns, n_rows)
            before = _cell_at(boxes, motion, rows[i], step - 1, region, n_columns, n_rows)
            new[at] += 1.0
            n_changes += 2 * np.int64(at != before)
        divergence = 0.0
        for k in range(n_cells):
            share = (old[k] + _SMOOTHED) / whole
            divergence += share * np.log(share / ((new[k] + _SMOOTHED) / whole))
        if divergence > tree.rules[LEAST_DIVERGENCE] and 2 * n_changes >= n:
            return np.int64(step)
    return np.int64(_MOST_STEPS)


@lean_kernel
def moving_cost(tree, boxes, rows, messages, n_copies, depth, motion, region, n_columns, n_rows):
    """Return what moves cost more at an s-node than at a list, per message that comes to it."""
    if motion.reports[0] == 0.0:
        return 0.0
    n, fanout = np.float64(len(rows)), tree.rules[FANOUT]
    log_fanout = np.log2(fanout)
    height = max(0.0, np.log(n / tree.rules[MOST_IN_LIST]) / np.log(fanout))  # eq. 11
    path = (depth + height) * (STEP + log_fanout)
    width = (region[2] - region[0]) / n_columns
    tall = (region[3] - region[1]) / n_rows
    crossings, step = 0.0, max(np.int64(1), len(rows) // _MOST_MEASURED)
    for i in range(0, len(rows), step):
        crossings += step * _crossings(motion, rows[i], width, tall)
    update = LOOK * (n_copies - n) + 2.0 * crossings * path  # eq. 9
    rebuild = n * log_fanout + (n * np.sqrt(fanout) + fanout * n) * (height + 1.0)  # eq. 12
    rebuild /= next_rebuild(tree, boxes, rows, motion, region, n_columns, n_rows)  # eq. 13
    # Of all messages, this share comes to the node; if too few of the sample do, as of clauses.
    share = len(messages) / max(len(tree.sample_places), 1)
    if len(messages) < _LEAST_SAMPLE:
        share = n / max(n, np.float64(tree.facts[N_CLAUSES]))
    return motion.reports[0] * (update + rebuild) / share
