"""``rt_plus_tree``: the R^t+-tree, whose nodes know one representative token of each subscription.

[KDD13] §4, [TKDE15] §4. A message that lacks the representative token cannot match, so one token
per clause is enough to prune by: sets are smaller than the R^t-tree's and share fewer tokens with
messages. Which token represents a clause is up to the order of tokens; it stays the same for as
long as the clause does, however frequencies change.
"""

from __future__ import annotations

from earshot.indexes.rtree.index import OrderedRtreeParameters, RtreeIndex
from earshot.indexes.rtree.kernels.nodes import SINGLE


class RtPlusTree(RtreeIndex):
    """Representative tokens; counters: nodes visited, clauses in the leaves visited."""

    name = "rt_plus_tree"
    kind = SINGLE
    parameters_type = OrderedRtreeParameters
    parameters: OrderedRtreeParameters
