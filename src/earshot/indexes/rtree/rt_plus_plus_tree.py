"""``rt_plus_plus_tree``: the R^t++-tree, with another token of each subscription on each level.

[KDD13] §5, [TKDE15] §5. On its way down a message follows, from level to level, the subscriptions
that have had all of their tokens so far; a node is visited only while it holds one. See
:mod:`earshot.indexes.rtree.kernels.nodes` for what stands where, and for the three things that
differ from the papers.
"""

from __future__ import annotations

from earshot.indexes.rtree.index import OrderedRtreeParameters, RtreeIndex
from earshot.indexes.rtree.kernels.nodes import LEVELS


class RtPlusPlusTree(RtreeIndex):
    """A token per level; counters: nodes visited, clauses looked at in lists and leaves."""

    name = "rt_plus_plus_tree"
    kind = LEVELS
    parameters_type = OrderedRtreeParameters
    parameters: OrderedRtreeParameters
