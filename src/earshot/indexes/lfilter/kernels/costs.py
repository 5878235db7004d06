"""The cost models of LFilter, [CIKM15] §5.3, in nanoseconds.

**Filter step.** The paper compares eq. 1, for the trie, with eq. 3, for the quadtree, and expects a
message of N tokens to have any token of the trie with probability N / D. Words are far from equally
frequent. Here a message has token t with probability 1 - exp(-N p_t), where p_t is the token's
share of all occurrences. From that, and from the structures, ``expected`` has four sums for N = 1,
4, 16, …; for other N they are interpolated. So the choice costs nothing per token.

* ``TRIE_SUM``, of eq. 1: the work of visiting the children of the root that a message has, by the
  cheaper probing. Deeper levels are left out, as in the paper.
* ``PROBES_SUM``, of eq. 3: min(N, |sets of n|) over the nodes n from the root to a leaf, which is
  H_q times the mean; a table is asked for each token of the message, or goes through its own.
* ``LEAF_SUM``, the same for the table of a leaf's lists.
* ``ENTRIES_SUM``: the entries of the lists of a leaf that a message has the tokens of. Without
  their verification in Cost_Q, points would always go to the quadtree.

Then

    Cost_T = TRIE_MESSAGE + TRIE_TOKEN N + TRIE_WORK TRIE_SUM
    Cost_Q = QUADTREE_MESSAGE + PROBE_STEP PROBES_SUM
             + cand_Q (LEAF_STEP LEAF_SUM + ENTRY_STEP ENTRIES_SUM)

cand_Q is the paper's sum over the nodes of level ``CAND_LEVEL``. ``leaves`` has, for each corner of
that level's cells, the leaves to the left of it and below, so that the sum takes four looks instead
of a walk (which took a third of the time of a short message). As a range also touches leaves that
it hardly covers, (1 + sqrt(cand_Q))^2 are counted.

**Verification.** C_V of eq. 6 is DIRECT_STEP for each entry. C_L of eq. 5 is what it takes to put
the message's labels in order (LABEL_STEP each, once a message), to cut a list by ranges
(LOOKUP_STEP for each halving), and to go down to the children of a node (NODE_STEP and probing).

**Calibration.** CPU times per message of either way were measured at 64 points: 6 to 1,000 tokens,
points and ranges, on the workloads ``tweets`` and ``usa`` with 0.1 and 1 million subscriptions. The
constants of a message were set by least squares of relative errors, the others by a search for the
least time lost to wrong choices, and then for the least errors. None of the 64 choices was wrong
then, with cand_Q of level 4; other data and larger sizes have not been tried.
An entry costs more than its verification takes, since words of a place meet messages of that place
more often than by chance. The steps of probing were measured on a trie of one node with 32 to
65,536 children and messages of 10 to 1,000 tokens; those of verification by forcing it either way.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from earshot.indexes.kernels.token_tables import EMPTY, list_length
from earshot.indexes.mbr_trie.kernels.match import FEW_CHILDREN, SET_STEP, TRIE_STEP
from earshot.indexes.mbr_trie.kernels.nodes import N_CHILDREN, OWN_STOP, START, TOP_NODE
from earshot.indexes.pt_quadtree.kernels.match import UNASKED
from earshot.indexes.quadtree.kernels.cells import (
    BITS,
    cell_column,
    cell_depth,
    cell_row,
    grid_box,
)
from earshot.indexes.quadtree.kernels.nodes import N_NODES, NO_CHILDREN
from earshot.kernels.jit import inlined_kernel, kernel, lean_kernel
from earshot.model.arrays import EVERYWHERE_TOKEN, Float64s, Int64s

# Rows of ``rules``.
FILTER_STEP, VERIFICATION = range(2)
# Ways of the filter step, and of verification.
BY_TRIE, BY_QUADTREE, BY_COST = range(3)
PRUNED, DIRECT = range(2)
# Rows of ``expected``.
TRIE_SUM, PROBES_SUM, LEAF_SUM, ENTRIES_SUM = range(4)

N_SUMS = 8
"""Numbers of tokens that ``expected`` has sums for: 1, 4, …, 16,384."""
CAND_LEVEL = 3
"""Level of the quadtree whose nodes estimate cand_Q, k in the paper."""
CAND_SIDE = 1 << CAND_LEVEL
_CAND_SHIFT = BITS - CAND_LEVEL

TRIE_MESSAGE, TRIE_TOKEN, TRIE_WORK = 1900.0, 40.0, 7.0
QUADTREE_MESSAGE, PROBE_STEP, LEAF_STEP, ENTRY_STEP = 2100.0, 10.0, 30.0, 80.0
DIRECT_STEP, LOOKUP_STEP, LABEL_STEP, NODE_STEP = 30.0, 2.0, 80.0, 30.0


class Costs(NamedTuple):
    """What the cost models know of the structures, and what they are to choose."""

    rules: Int64s  # (2,) filter step and verification
    expected: Float64s  # (4, N_SUMS)
    leaves: Float64s  # (CAND_SIDE + 1, CAND_SIDE + 1) below each row and left of each column


@inlined_kernel
def visit_cost(n_children, n_own, n_left):
    """Return what it costs to visit a node of the trie: its children, its own clauses."""
    cost = SET_STEP * n_children
    if n_children > FEW_CHILDREN:
        cost = min(cost, TRIE_STEP * n_left * math.log2(np.float64(n_children)))
    return cost + SET_STEP * n_own


@lean_kernel
def _chance(token, share, k):
    """Return the probability that a message of 4^k tokens has a token."""
    if token == EVERYWHERE_TOKEN:
        return 1.0
    return -math.expm1(-share * math.pow(4.0, np.float64(k)))


@lean_kernel
def _fill_leaves(tree, leaves):
    """Count the leaves to the left of each corner of the cells and below; all is 0 before."""
    for node in range(tree.facts[N_NODES]):
        if tree.children[node] != NO_CHILDREN:
            continue
        # A leaf above the level is spread evenly over its cells.
        cell = tree.cells[node]
        depth = np.int64(cell_depth(cell))
        shift, n = max(depth - CAND_LEVEL, 0), np.int64(1) << max(CAND_LEVEL - depth, 0)
        x, y = (cell_column(cell) >> shift) * n, (cell_row(cell) >> shift) * n
        for row in range(y + 1, y + n + 1):
            for column in range(x + 1, x + n + 1):
                leaves[row, column] += 1.0 / (n * n)
    for row in range(1, CAND_SIDE + 1):
        for column in range(1, CAND_SIDE + 1):
            leaves[row, column] += (
                leaves[row - 1, column] + leaves[row, column - 1] - leaves[row - 1, column - 1]
            )


@kernel
def fill_costs(tokens, nodes, tree, n_in_sets, frequencies, expected, leaves):
    """Add what is expected of messages, given how often each token occurs; all is 0 before.

    ``tokens`` and ``nodes`` are the trie's, ``tree`` is the quadtree, whose nodes have sets of
    ``n_in_sets`` tokens.
    """
    _fill_leaves(tree, leaves)
    total = 0.0
    for token in range(1, len(frequencies)):
        total += frequencies[token]
    total = max(total, 1.0)
    for token in range(len(frequencies)):
        top = tokens[token, TOP_NODE]
        if top < 0:
            continue
        n_own = nodes[top, OWN_STOP] - nodes[top, START]
        for k in range(N_SUMS):
            cost = visit_cost(np.int64(nodes[top, N_CHILDREN]), n_own, math.pow(4.0, k) / 2)
            expected[TRIE_SUM, k] += cost * _chance(token, frequencies[token] / total, k)
    lists = tree.lists
    n_entries = 0.0
    for node in range(tree.facts[N_NODES]):
        if tree.children[node] != NO_CHILDREN or tree.counts[node] == 0:
            continue
        n = np.float64(tree.counts[node])  # messages are where subscriptions are
        n_entries += n
        for k in range(N_SUMS):
            most = math.pow(4.0, np.float64(k))
            expected[LEAF_SUM, k] += n * min(most, np.float64(lists.used[node]))
            above = np.int64(tree.parents[node])
            while above >= 0:
                expected[PROBES_SUM, k] += n * min(most, np.float64(n_in_sets[above]))
                above = np.int64(tree.parents[above])
        first = lists.starts[node]
        for place in range(first, first + lists.sizes[node]):
            token = lists.tokens[place]
            if token == EMPTY:
                continue
            length = list_length(np.int64(lists.values[place]))
            for k in range(N_SUMS):
                chance = _chance(token, frequencies[token] / total, k)
                expected[ENTRIES_SUM, k] += n * length * chance
    for row in range(PROBES_SUM, ENTRIES_SUM + 1):
        for k in range(N_SUMS):
            expected[row, k] /= max(n_entries, 1.0)


@inlined_kernel
def _at(sums, k, share):
    return sums[k] + share * (sums[k + 1] - sums[k])


@inlined_kernel
def expected_costs(expected, n):
    """Return Cost_T for a message of ``n`` tokens, and of Cost_Q what each leaf adds.

    Between them, what Cost_Q is without a leaf: if nodes above leaves are asked, and if not.
    """
    k, known = np.int64(0), np.int64(1)
    while n >= 4 * known and k < N_SUMS - 2:
        k += 1
        known *= 4
    share = min(max(n - known, 0) / (3.0 * known), 1.0)
    trie = TRIE_MESSAGE + TRIE_TOKEN * n + TRIE_WORK * _at(expected[TRIE_SUM], k, share)
    above = PROBE_STEP * _at(expected[PROBES_SUM], k, share)
    leaf = LEAF_STEP * _at(expected[LEAF_SUM], k, share)
    leaf += ENTRY_STEP * _at(expected[ENTRIES_SUM], k, share)
    return trie, QUADTREE_MESSAGE + above, QUADTREE_MESSAGE, leaf


@inlined_kernel
def _leaves_before(leaves, x, y):
    """Return the leaves below a row and left of a column of the grid."""
    column, row = min(x >> _CAND_SHIFT, CAND_SIDE - 1), min(y >> _CAND_SHIFT, CAND_SIDE - 1)
    across = (x - (column << _CAND_SHIFT)) * (1.0 / (1 << _CAND_SHIFT))
    up = (y - (row << _CAND_SHIFT)) * (1.0 / (1 << _CAND_SHIFT))
    low = leaves[row, column] + across * (leaves[row, column + 1] - leaves[row, column])
    row += 1
    high = leaves[row, column] + across * (leaves[row, column + 1] - leaves[row, column])
    return low + up * (high - low)


@inlined_kernel
def leaves_touched(leaves, on_grid):
    """Return cand_Q: 1 for a message within one grid square."""
    if on_grid[0] == on_grid[2] and on_grid[1] == on_grid[3]:
        return 1.0
    right, top = on_grid[2] + 1, on_grid[3] + 1
    covered = (
        _leaves_before(leaves, right, top)
        - _leaves_before(leaves, on_grid[0], top)
        - _leaves_before(leaves, right, on_grid[1])
        + _leaves_before(leaves, on_grid[0], on_grid[1])
    )
    side = 1.0 + math.sqrt(max(covered, 0.0))
    return side * side


@inlined_kernel
def takes_trie(arrays, n, box):
    """Whether the trie alone is the cheaper way for a message of ``n`` tokens."""
    way = arrays.costs.rules[FILTER_STEP]
    if way != BY_COST:
        return way == BY_TRIE
    trie, asking, unasked, leaf = expected_costs(arrays.costs.expected, n)
    if trie <= unasked + leaf:
        return True
    on_grid = grid_box(arrays.quadtree.tree.frame, box[0], box[1], box[2], box[3])
    n_leaves = leaves_touched(arrays.costs.leaves, on_grid)
    # A message that touches few leaves does not ask the nodes above.
    return trie <= (asking if n_leaves > UNASKED else unasked) + n_leaves * leaf
