"""``rt_plus_plus_tree``: the R^t++-tree, with another token of each subscription on each level.

[KDD13] §5, [TKDE15] §5. On its way down a message counts, for each subscription, how many of its
tokens it has met; a node is visited only while some subscription below has had all of its tokens so
far, and one that has had all is checked for its region alone. See :mod:`earshot.kernels.rtree` for
what stands where, and for the two things that differ from the papers.
"""

from __future__ import annotations

from earshot.indexes.rtree import OrderedRtreeParameters, RtreeIndex
from earshot.kernels.rtree import LEVELS


class RtPlusPlusTree(RtreeIndex):
    """A token per level; counters: nodes visited, clauses whose tokens are all in the message."""

    name = "rt_plus_plus_tree"
    kind = LEVELS
    parameters_type = OrderedRtreeParameters
    parameters: OrderedRtreeParameters
