"""The trees of the registry: what the nodes of each know about the tokens below them.

* ``rt_tree``, the R^t-tree ([KDD13] §3, [TKDE15] §3): all tokens below a node. A node is visited if
  it touches the message and shares a token with it; all subscriptions in the leaves visited are
  candidates, and are verified. Each node's token set is counted, so that a removal takes away just
  the tokens that nobody below has any more.
* ``rt_plus_tree``, the R^t+-tree ([KDD13] §4, [TKDE15] §4): one representative token of each
  subscription. A message that lacks it cannot match, so one token per clause is enough to prune by:
  sets are smaller than the R^t-tree's and share fewer tokens with messages. Which token represents
  a clause is up to the order of tokens; it stays the same for as long as the clause does, however
  frequencies change. Ranked, a clause has the few tokens that a score needs, its *prefix*.
* ``rt_plus_plus_tree``, the R^t++-tree ([KDD13] §5, [TKDE15] §5): another token of each
  subscription on each level. On its way down a message follows, from level to level, the
  subscriptions that have had all of their tokens so far; a node is visited only while it holds
  one. See :mod:`earshot.indexes.rtree.kernels.nodes` for what stands where, and for the three
  things that differ from the papers.
* ``ir_tree``, the IR-tree, a rival of the papers as [KDD13] §2.2 and [TKDE15] §2.3 put it to use:
  a child is visited if it touches the message and the node's inverted file lists it under some
  token of the message. An inverted list is a bit per entry of the node.
"""

from __future__ import annotations

from earshot.indexes.rtree.index import OrderedRtreeParameters, RtreeIndex
from earshot.indexes.rtree.kernels.nodes import INVERTED, LEVELS, PREFIXES, SETS, SINGLE
from earshot.indexes.rtree.ranked import RankedOrderedRtreeParameters, RankedRtree


class RtTree(RtreeIndex):
    """Token sets; counters: nodes visited, clauses in the leaves visited."""

    name = "rt_tree"
    kind = SETS


class RtPlusTree(RtreeIndex):
    """Representative tokens; counters: nodes visited, clauses in the leaves visited."""

    name = "rt_plus_tree"
    kind = SINGLE
    parameters_type = OrderedRtreeParameters
    parameters: OrderedRtreeParameters


class RtPlusPlusTree(RtreeIndex):
    """A token per level; counters: nodes visited, clauses looked at in lists and leaves."""

    name = "rt_plus_plus_tree"
    kind = LEVELS
    parameters_type = OrderedRtreeParameters
    parameters: OrderedRtreeParameters


class IrTree(RtreeIndex):
    """Inverted files; counters: nodes visited, clauses in leaves that share a token."""

    name = "ir_tree"
    kind = INVERTED


class RankedRtTree(RankedRtree):
    """Token sets; counters: nodes visited, clauses scored."""

    name = "rt_tree"
    kind = SETS


class RankedRtPlusTree(RankedRtree):
    """Prefixes of tokens; counters: nodes visited, clauses scored."""

    name = "rt_plus_tree"
    kind = PREFIXES
    parameters_type = RankedOrderedRtreeParameters


class RankedRtPlusPlusTree(RankedRtree):
    """A token per level; counters: nodes visited, clauses scored."""

    name = "rt_plus_plus_tree"
    kind = LEVELS
    parameters_type = RankedOrderedRtreeParameters


class RankedIrTree(RankedRtree):
    """Inverted files; counters: nodes visited, clauses scored."""

    name = "ir_tree"
    kind = INVERTED
