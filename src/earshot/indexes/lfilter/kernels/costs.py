"""The cost models of LFilter, [CIKM15] §5.3, in nanoseconds.

**Filter step.** The paper compares eq. 1, for the trie, with eq. 3, for the quadtree, and expects a
message of N tokens to have a token of the trie with probability N / D, whichever it is. Words are
far from equally frequent. Here a message has token t with probability 1 - exp(-N p_t), where p_t is
the token's share of all occurrences. From that, and from the structures, ``expected`` has two sums
for N = 1, 4, 16, …: the work below the root's children of a trie that a message has (L_1 and
L_2 of eq. 1; deeper levels are left out, as in the paper), and the entries of the lists that it
finds in a leaf of the quadtree. For other N the sums are interpolated. So the choice costs nothing
per token. Then

    Cost_T = TRIE_MESSAGE + TRIE_TOKEN N + TRIE_WORK work(N)
    Cost_Q = QUADTREE_MESSAGE + LEVEL_TOKEN H_q min(N, Avg_RT)
             + cand_Q (LEAF_TOKEN min(N, leaf tokens) + LEAF_ENTRY entries(N))

with H_q the mean depth of leaves, and Avg_RT the mean size of an inner node's table. Unlike the
paper's, Cost_Q has the verification of a leaf's lists in it, without which points would always go to
the quadtree. cand_Q is the paper's sum over the nodes of level ``CAND_LEVEL``, of which a range has
one leaf and its share of the borders more: (1 + sqrt(cand))^2.

**Verification.** C_V of eq. 6 is DIRECT_STEP for each entry. C_L of eq. 5 is what it takes to put
the message's labels in order (LABEL_STEP each, once a message), to cut a list by ranges (LOOKUP_STEP
for each halving), and to go down to the children of a node (NODE_STEP and their probing).

**Calibration.** The constants are fitted by least squares of relative errors to CPU times per message
of either way: 64 points, of short and long messages, points and ranges, on the workloads ``tweets``
and ``usa`` with 0.1 and 1 million subscriptions.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from earshot.indexes.mbr_trie.kernels.match import FEW_CHILDREN, SET_STEP, TRIE_STEP
from earshot.indexes.mbr_trie.kernels.nodes import N_CHILDREN, OWN_STOP, START, TOP_NODE
from earshot.indexes.pt_quadtree.kernels.match import estimated_leaves
from earshot.indexes.quadtree.kernels.cells import cell_depth
from earshot.indexes.quadtree.kernels.nodes import N_NODES, NO_CHILDREN
from earshot.indexes.rtree.kernels.token_tables import EMPTY, list_length
from earshot.kernels.jit import inlined_kernel, kernel, lean_kernel
from earshot.model.arrays import EVERYWHERE_TOKEN, Float64s, Int64s

# Rows of ``rules``.
FILTER_STEP, VERIFICATION = range(2)
# Ways of the filter step, and of verification.
BY_TRIE, BY_QUADTREE, BY_COST = range(3)
PRUNED, DIRECT = range(2)
# Rows of ``expected``, and of ``means``.
TRIE_SUM, ENTRIES_SUM = range(2)
MEAN_DEPTH, MEAN_SET, MEAN_LEAF_TOKENS = range(3)

N_SUMS = 8
"""Numbers of tokens that ``expected`` has sums for: 1, 4, …, 16,384."""
CAND_LEVEL = 4
"""Level of the quadtree whose nodes estimate cand_Q, k in the paper."""

TRIE_MESSAGE, TRIE_TOKEN, TRIE_WORK = 1800.0, 64.0, 6.0
QUADTREE_MESSAGE, LEVEL_TOKEN, LEAF_TOKEN, LEAF_ENTRY = 2700.0, 15.0, 50.0, 30.0
DIRECT_STEP, LOOKUP_STEP, LABEL_STEP, NODE_STEP = 30.0, 2.0, 80.0, 30.0


class Costs(NamedTuple):
    """What the cost models know of the structures, and what they are to choose."""

    rules: Int64s  # (2,) filter step and verification
    expected: Float64s  # (2, N_SUMS) work below the tops, and entries of lists in a leaf
    means: Float64s  # (3,) depth of leaves, tokens of an inner node, tokens of a leaf


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


@kernel
def fill_costs(trie, quadtree, frequencies, costs):
    """Fill in what is expected of messages, given how often each token occurs."""
    total = max(np.float64(frequencies[1:].sum()), 1.0)
    expected, means = costs.expected, costs.means
    expected[:] = 0.0
    means[:] = 0.0
    for token in range(len(frequencies)):
        top = trie.tokens[token, TOP_NODE]
        if top < 0:
            continue
        n_own = trie.nodes[top, OWN_STOP] - trie.nodes[top, START]
        for k in range(N_SUMS):
            cost = visit_cost(np.int64(trie.nodes[top, N_CHILDREN]), n_own, math.pow(4.0, k) / 2)
            expected[TRIE_SUM, k] += cost * _chance(token, frequencies[token] / total, k)
    tree = quadtree.tree
    n_leaves = n_inner = n_entries = 0
    for node in range(tree.facts[N_NODES]):
        if tree.children[node] != NO_CHILDREN:
            n_inner += 1
            means[MEAN_SET] += quadtree.sets.used[node]
            continue
        n = np.float64(tree.counts[node])
        n_leaves += 1
        n_entries += n
        # Messages are where subscriptions are.
        means[MEAN_DEPTH] += cell_depth(tree.cells[node])
        means[MEAN_LEAF_TOKENS] += tree.lists.used[node]
        first = tree.lists.starts[node]
        for place in range(first, first + tree.lists.sizes[node]):
            token = tree.lists.tokens[place]
            if token == EMPTY:
                continue
            length = list_length(np.int64(tree.lists.values[place]))
            for k in range(N_SUMS):
                chance = _chance(token, frequencies[token] / total, k)
                expected[ENTRIES_SUM, k] += n * length * chance
    means[MEAN_SET] /= max(n_inner, 1)
    means[MEAN_DEPTH] /= max(n_leaves, 1)
    means[MEAN_LEAF_TOKENS] /= max(n_leaves, 1)
    for k in range(N_SUMS):
        expected[ENTRIES_SUM, k] /= max(n_entries, 1.0)


@inlined_kernel
def _at(sums, n):
    """Return a sum for a message of ``n`` tokens, between those that are known."""
    at = min(0.5 * math.log2(np.float64(max(n, 1))), N_SUMS - 1.001)
    k = np.int64(at)
    return sums[k] + (at - k) * (sums[k + 1] - sums[k])


@lean_kernel
def trie_cost(costs, n):
    """Return Cost_T for a message of ``n`` tokens."""
    return TRIE_MESSAGE + TRIE_TOKEN * n + TRIE_WORK * _at(costs.expected[TRIE_SUM], n)


@lean_kernel
def quadtree_cost(costs, n, n_leaves):
    """Return Cost_Q for a message of ``n`` tokens that touches so many leaves."""
    means = costs.means
    above = LEVEL_TOKEN * means[MEAN_DEPTH] * min(np.float64(n), means[MEAN_SET])
    in_leaf = LEAF_TOKEN * min(np.float64(n), means[MEAN_LEAF_TOKENS])
    entries = LEAF_ENTRY * _at(costs.expected[ENTRIES_SUM], n)
    return QUADTREE_MESSAGE + above + n_leaves * (in_leaf + entries)


@lean_kernel
def leaves_touched(quadtree, on_grid, scratch):
    """Return cand_Q."""
    if on_grid[0] == on_grid[2] and on_grid[1] == on_grid[3]:
        return 1.0
    side = 1.0 + math.sqrt(estimated_leaves(quadtree, CAND_LEVEL, on_grid, scratch))
    return side * side


@lean_kernel
def takes_trie(arrays, n, on_grid, scratch):
    """Whether the trie alone is the cheaper way for a message of ``n`` tokens."""
    way = arrays.costs.rules[FILTER_STEP]
    if way != BY_COST:
        return way == BY_TRIE
    by_trie = trie_cost(arrays.costs, n)
    if by_trie <= quadtree_cost(arrays.costs, n, 1.0):
        return True
    n_leaves = leaves_touched(arrays.quadtree, on_grid, scratch)
    return by_trie <= quadtree_cost(arrays.costs, n, n_leaves)
