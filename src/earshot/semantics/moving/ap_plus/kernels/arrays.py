"""The AP+-Tree in flat arrays: an AP-Tree whose nodes have m-lists.

[VLDBJ15] section 4.2.2. The tree is that of :mod:`earshot.indexes.ap_tree.kernels.nodes`; an
l-node's s-list is its list there. Every node may have an m-list, a chain of blocks. Beside the
tree, each word has a list of the messages that have it, by which m-lists are filled later on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.ap_tree.kernels.nodes import ApTreeArrays
from earshot.model.arrays import Float64s, Int32s, Int64s
from earshot.semantics.moving.kernels.cell_lists import CellListsArrays
from earshot.semantics.moving.kernels.hashed_lists import WordLists
from earshot.semantics.moving.kernels.quadtree import MessageTree

MOST_COPIES, IS_SEPARATE, N_PLUS_RULES = range(3)
"""Rules: nodes that keep a message at most; whether messages are in lists by cell and word."""

(
    N_KEPT, CLAUSE, N_WAYS, N_DUE, N_DEAD, N_PUT, N_SEEN, N_SEEN_BEFORE, N_MOVES, MOST_KEYWORDS,
    MOST_CHILDREN, WANTED_PLACES, WANTED_BLOCKS, WANTED_ROWS, IS_INCOMPLETE, N_CUTS, N_GONE,
    N_TAKEN, FIRST_SEQUENCE, WANTED_WORDS, N_INNER, N_HERE, N_PLUS_FACTS,
) = range(23)  # fmt: skip
"""Facts. Of the message at hand: nodes that are to keep it. Of the change at hand: the alternative,
-1 where there is none; nodes still to visit. Nodes to be built anew; messages that ended since all
lists were swept; alternatives that came, messages matched, and moves since all was built; messages
matched by then. Most keywords of an alternative, most children of a node. What was lacking: places
of an s-list, blocks of m-lists, rows. Whether a message had too many words for the lists by word;
cuts that were added; alternatives that have ended and are still in the tree; the first of those
that came since subscriptions were last put in; sequence of the first message after building; words
of a message for which the lists by word lacked room; entries that inner nodes were given; l-nodes
of the alternative at hand so far."""

LIST_BLOCK = 64
"""Entries of an m-list that lie together. A list is a chain of such blocks, and lies anywhere in
memory: with blocks of 16, waiting for the next one took most of a search."""

MOST_NODES = 4
"""l-nodes of an alternative that are remembered (``nodelist(s)`` in the paper)."""


class MessageLists(NamedTuple):
    """The m-lists, chains of blocks of which only the first is not full.

    The paper reads an m-list from end to end. Here sixteen messages are compared at once with where
    those lie that can matter (:mod:`earshot.kernels.box_keys`).
    """

    tree_facts: Int64s
    frame: Float64s  # (4,) least x and y, and steps per unit of each: by these, keys are rounded
    node_blocks: Int32s  # (n_nodes,) first block, -1
    node_sizes: Int32s  # (n_nodes,) entries
    block_next: Int32s  # (n_blocks,) next block of the node, or of those that are free; -1
    entry_keys: npt.NDArray[np.uint64]  # (64 * n_blocks,) key of the message's box
    entry_words: npt.NDArray[np.uint64]  # bits of its words
    entry_rows: Int32s
    entry_ages: Int32s  # lower bits of its sequence: another message may have the row now


class TreeClauses(NamedTuple):
    """What the tree knows of alternatives, under the names of :mod:`earshot.model.arrays`."""

    boxes: Float64s
    token_offsets: Int64s
    token_ids: Int32s
    shape_rows: Int32s  # none is negative: boxes alone do not tell who holds a message


class Places(NamedTuple):
    """Where alternatives are, nodes that are to be built anew, and working memory of changes."""

    boxes: Float64s  # (n_clauses, 4) where the tree has it; all longitudes at 180 degrees
    states: npt.NDArray[np.uint8]  # (n_clauses,) OUTSIDE, INSIDE or GONE
    velocities: npt.NDArray[np.float32]  # (n_clauses, 2) how far it went at its last move
    homes: Int32s  # (n_clauses,) first node on its way that is no k-node, -1 where nobody knows
    # (n_clauses, MOST_NODES) its l-nodes, then -1; -1 at once where they are more, or not known
    nodes: Int32s
    # (n_clauses, 8) these are its l-nodes while each side k of its box is from [k] to below [4 + k]
    bounds: npt.NDArray[np.float32]
    is_noted: npt.NDArray[np.uint8]  # (n_nodes,) whether it is to be built anew
    due: Int32s  # such nodes
    old_box: Float64s  # (4,) where the alternative at hand was
    ways: Int32s  # (.., 2) nodes still to visit; whether it was there, is there now, or both
    found_rows: Int32s  # (n_rows,) messages that a new node is to have


OUTSIDE, INSIDE, GONE = 0, 1, 2
"""States of an alternative: the tree lacks it, has it, or has it still though it has ended."""


class Walk(NamedTuple):
    """Working memory of messages on their way down, and of searches."""

    stack: Int32s  # nodes still to visit
    etas: Int32s  # beside them: first rank of a message that may hit a cut, whether it is kept
    ranks: Int32s  # (n_tokens + 1,) of a message's tokens, ascending
    counting: Int32s
    reached: Int32s  # (n_nodes,) l-nodes that a message comes to
    kept: Int64s  # nodes that are to keep it: node, and above 32 bits a child that is to be made


class ApPlusCore(NamedTuple):
    """The tree and its messages. Kernels take the parts that they need: calls are shorter."""

    facts: Int64s
    rules: Float64s
    tree: ApTreeArrays
    lists: MessageLists
    words: WordLists
    places: Places
    walk: Walk


class ApPlusArrays(NamedTuple):
    """The AP+-Tree."""

    core: ApPlusCore


class ApSafeArrays(NamedTuple):
    """The AP+-Tree, and its messages by place: by these, safe regions are found."""

    core: ApPlusCore
    messages: MessageTree


class ApSeparateArrays(NamedTuple):
    """The tree without messages, and those: AP+k and AP+s."""

    core: ApPlusCore
    cells: CellListsArrays
