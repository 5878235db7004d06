"""``rt_plus_plus_tree``: the R^t++-tree, with another token of each subscription on each level.

[KDD13] §5, [TKDE15] §5. On its way down a message follows, from level to level, the subscriptions
that have had all of their tokens so far; a node is visited only while it holds one. See
:mod:`earshot.kernels.rtree` for what stands where, and for the three things that differ from the
papers.
"""

from __future__ import annotations

from earshot.indexes.rtree import OrderedRtreeParameters, RtreeIndex
from earshot.kernels.rtree import LEVELS


class RtPlusPlusTree(RtreeIndex):
    """A token per level; counters: nodes visited, clauses looked at in lists and leaves."""

    name = "rt_plus_plus_tree"
    kind = LEVELS
    parameters_type = OrderedRtreeParameters
    parameters: OrderedRtreeParameters
