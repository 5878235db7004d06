"""``rt_tree``: the R^t-tree, an R-tree whose nodes know all tokens below them.

[KDD13] §3, [TKDE15] §3. A node is visited if it touches the message and shares a token with it; all
subscriptions in the leaves visited are candidates, and are verified. Each node's token set is
counted, so that a removal takes away just the tokens that nobody below has any more.
"""

from __future__ import annotations

from earshot.indexes.rtree.index import RtreeIndex
from earshot.indexes.rtree.kernels.nodes import SETS


class RtTree(RtreeIndex):
    """Token sets; counters: nodes visited, clauses in the leaves visited."""

    name = "rt_tree"
    kind = SETS
