"""The RQ-Tree of [VLDBJ15] §5.1.1: the keyword-first variant of the IQ-Tree.

Clauses are parted by their least frequent token; those of each token have a quadtree of their own,
to whose cells the cost model of the IQ-Tree attaches them.
"""

from __future__ import annotations

from earshot.indexes.iq_tree.index import IqTree


class RqTree(IqTree):
    """A quadtree for each key; counters: nodes visited, clauses in lists of the message's cells."""

    name = "rq_tree"
    _is_forest = True
