"""The cost models of LFilter, [CIKM15] §5.3, in nanoseconds.

TODO
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from earshot.indexes.mbr_trie.kernels.match import FEW_CHILDREN, SET_STEP, TRIE_STEP
from earshot.indexes.pt_quadtree.kernels.match import estimated_leaves
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.model.arrays import Float64s, Int64s

# Rows of ``rules``.
FILTER_STEP, VERIFICATION = range(2)
# Ways of the filter step, and of verification.
BY_TRIE, BY_QUADTREE, BY_COST = range(3)
PRUNED, DIRECT = range(2)

DIRECT_STEP = 40.0
"""Nanoseconds to verify an entry of a list, |S_avg| log |T_n| in the paper."""
LOOKUP_STEP = 1.5
"""Nanoseconds for a step of a search among tops or in a list, log |I| in the paper."""
NODE_STEP = 30.0
"""Nanoseconds to go down to the children of a node, whatever their number."""


class Costs(NamedTuple):
    """What the cost models know of the structures, and what they are to choose."""

    rules: Int64s  # (2,) filter step and verification
    facts: Float64s  # (4,)


@inlined_kernel
def top_cost(n_children, n_own, n_left):
    """Return what it costs to visit a node of the trie: its children, its own clauses."""
    cost = SET_STEP * n_children
    if n_children > FEW_CHILDREN:
        cost = min(cost, TRIE_STEP * n_left * math.log2(np.float64(n_children)))
    return cost + SET_STEP * n_own


@lean_kernel
def takes_trie(arrays, trie_cost, n_labels, n_tops, on_grid, scratch):
    """Whether the trie alone is the cheaper way, Cost_Q > Cost_T."""
    way = arrays.costs.rules[FILTER_STEP]
    if way != BY_COST:
        return way == BY_TRIE
    n_leaves = estimated_leaves(arrays.quadtree, 4, on_grid, scratch)
    return trie_cost < 100.0 * n_leaves * n_labels
