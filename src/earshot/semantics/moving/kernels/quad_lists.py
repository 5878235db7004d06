"""Subscriptions in lists by their rarest word, live messages in a quadtree.

============== ============== ======= ===========================================================
array          shape          dtype   meaning
============== ============== ======= ===========================================================
list_facts     N_LIST_FACTS   int64   see :mod:`earshot.semantics.moving.kernels.lists`
list_free      FULL_CLASS + 1 int64   by class of chunks, chain of free room, -1 at its end
list_heads     n_tokens       int32   first chunk of the list, -1 where it is empty
list_tails     n_tokens       int32   last chunk
list_lengths   n_tokens       int32   entries
list_vain      n_tokens       int32   blocks that messages opened in vain since it was sorted
list_loosened  n_tokens       int32   entries that came, or loosened a sum, since then
chunk_starts   n_chunks       int32   where its entries are in the pool
chunk_counts   n_chunks       int32   how many there are
chunk_classes  n_chunks       int8    2 ** class have room
chunk_next     n_chunks       int32   the next one of the list, or of those that are free; -1
chunk_before   n_chunks       int32   the one before
pool_keys      n_pool         uint64  key of the region's box
pool_words     n_pool         uint64  bits of the words
pool_rows      n_pool         int32   alternative; in the first entry of free room, the next such
pool_sums      n_pool / 16    uint64  key of the box around 16 entries, or around more
pool_tops      n_pool / 256   uint64  the same of 256
clause_tokens  n_clauses      int32   the list in which it is
clause_places  n_clauses      int32   and where in the pool, -1 where nowhere
sort_room      ..             int64   working memory, for the longest list
noted          N_NOTED + 1    int64   working memory; at its end, how many are noted
x_bounds       n_cells        float64 cells of keys
y_bounds       n_cells        float64
x_steps        n_steps + 1    int32   bounds below equal steps (:mod:`earshot.kernels.box_keys`)
y_steps        n_steps + 1    int32
scales         4              float64 where steps begin, and how many to a unit, on each axis
tree_facts     N_TREE_FACTS   int64   see :mod:`earshot.semantics.moving.kernels.quadtree`
node_boxes     n_nodes, 4     float64 box around all messages below; node 0 is the root
node_splits    n_nodes, 2     float64 where it is cut
node_children  n_nodes        int32   first of four, -1 in a leaf; in a free group, the next such
node_counts    n_nodes        int32   entries below
node_blocks    n_nodes        int32   first block of its own entries, -1
node_sizes     n_nodes        int32   own entries
node_limits    n_nodes        int32   own entries beyond which a leaf is cut
quad_words     n_quads, 512   uint8   which of four nodes may have a word; two words a byte
node_stale     n_nodes        int32   messages that left since the bit set was made
block_next     n_blocks       int32   next block of the node, or of those that are free; -1
entry_words    16 * n_blocks  uint64  bits of the message's words
entry_rows     16 * n_blocks  int32   row of the message, ~row for its half west of -180 degrees
entry_boxes    .., 4          float32 its box, rounded outwards
samples        2, 64          float64 working memory
path           256            int64   working memory
words          ..             ..      messages by word, where safe regions are asked for, of
                                      :class:`~earshot.semantics.moving.kernels.hashed_lists.WordLists`
============== ============== ======= ===========================================================
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.model.arrays import Float64s, Int32s, Int64s
from earshot.semantics.moving.kernels.arrays import N_ROWS
from earshot.semantics.moving.kernels.hashed_lists import (
    MOST_WORDS,
    WordLists,
    has_word_blocks,
    list_words,
)
from earshot.semantics.moving.kernels.lists import (
    drop_from_lists,
    find_in_lists,
    foresee_in_lists,
    has_room_lists,
    move_in_lists,
    put_in_lists,
)
from earshot.semantics.moving.kernels.quadtree import (
    TREE_HAS_WORDS,
    drop_from_tree,
    has_room_tree,
    put_in_tree,
    search_tree,
    tree_of,
)
from earshot.semantics.moving.kernels.reaches import find_reach

UInt64s = npt.NDArray[np.uint64]


class QuadListsArrays(NamedTuple):
    """Lists of subscriptions, and a tree of messages."""

    list_facts: Int64s
    list_free: Int64s
    list_heads: Int32s
    list_tails: Int32s
    list_lengths: Int32s
    list_vain: Int32s
    list_loosened: Int32s
    chunk_starts: Int32s
    chunk_counts: Int32s
    chunk_classes: npt.NDArray[np.int8]
    chunk_next: Int32s
    chunk_before: Int32s
    pool_keys: UInt64s
    pool_words: UInt64s
    pool_rows: Int32s
    pool_sums: UInt64s
    pool_tops: UInt64s
    clause_tokens: Int32s
    clause_places: Int32s
    sort_room: Int64s
    noted: Int64s
    x_bounds: Float64s
    y_bounds: Float64s
    x_steps: Int32s
    y_steps: Int32s
    scales: Float64s
    tree_facts: Int64s
    node_boxes: Float64s
    node_splits: Float64s
    node_children: Int32s
    node_counts: Int32s
    node_blocks: Int32s
    node_sizes: Int32s
    node_limits: Int32s
    quad_words: npt.NDArray[np.uint8]
    node_stale: Int32s
    block_next: Int32s
    entry_words: UInt64s
    entry_rows: Int32s
    entry_boxes: npt.NDArray[np.float32]
    samples: Float64s
    path: Int64s
    words: WordLists


@inlined_kernel
def has_room(structure, tables, n):
    """Whether one more message and ``n`` alternatives of a subscription have room."""
    return (
        has_room_tree(structure)
        and has_room_lists(structure, tables, n)
        and (structure.tree_facts[TREE_HAS_WORDS] == 0 or _has_room_words(structure, tables))
    )


@inlined_kernel
def _has_room_words(structure, tables):
    words = structure.words
    return len(words.lists) >= len(tables.messages.n_having) and has_word_blocks(words, MOST_WORDS)


@inlined_kernel
def put_message(structure, tables, row):
    """Take a message in."""
    put_in_tree(tree_of(structure), tables.messages, row)
    facts = structure.tree_facts
    if facts[TREE_HAS_WORDS] and not list_words(structure.words, tables.messages, row):
        facts[TREE_HAS_WORDS] = 0  # it has more words than anybody expects


@lean_kernel
def list_messages(structure, tables, first):
    """Put live messages from a row on into lists by word; return the first without room."""
    messages = tables.messages
    for row in range(first, messages.facts[N_ROWS]):
        if messages.sequences[row] >= 0 and not list_words(structure.words, messages, row):
            return row
    return messages.facts[N_ROWS]


@inlined_kernel
def drop_message(structure, tables, row):
    """Forget a message."""
    drop_from_tree(tree_of(structure), tables.messages, row)


@lean_kernel
def find_reach_by_tree(structure, tables, scratch, slot, x, y, most, least):
    """Return how far from a place no live message makes a difference."""
    has_words = structure.tree_facts[TREE_HAS_WORDS] != 0
    return find_reach(
        structure, structure.words, has_words, tables, scratch, slot, x, y, most, least
    )


KERNELS = (
    has_room, find_in_lists, search_tree, put_message, drop_message, put_in_lists, drop_from_lists,
    move_in_lists, foresee_in_lists, find_reach_by_tree,
)  # fmt: skip
"""In the order of :mod:`earshot.semantics.moving.kernels.structures`."""
