"""``ir_tree``: the IR-tree, an R-tree with an inverted file in each node; a rival of the papers.

As [KDD13] §2.2 and [TKDE15] §2.3 put it to use: a child is visited if it touches the message and
the node's inverted file lists it under some token of the message. An inverted list is a bit per
entry of the node.
"""

from __future__ import annotations

from earshot.indexes.rtree.index import RtreeIndex
from earshot.indexes.rtree.kernels.nodes import INVERTED


class IrTree(RtreeIndex):
    """Inverted files; counters: nodes visited, clauses in leaves that share a token."""

    name = "ir_tree"
    kind = INVERTED
