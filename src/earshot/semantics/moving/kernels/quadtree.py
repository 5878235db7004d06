"""Live messages in a quadtree, through which a subscriber looks for what enters and leaves.

A node that has too many messages is cut at the median of their middles, in x and in y, so the tree
needs no bounds and follows the crowd. A message lies in the leaf of its middle; a large one that
holds the point where a node is cut stays in that node. Each node knows the box around all that lies
below: loosened as messages come, tightened as they go. One that crosses the antimeridian has an
entry on each side.

A move from region A to region B goes through the nodes that touch one of them, and past those that
lie within both: for a small move, nodes along the edges. Entries of a node are blocks of 16. First
their words are compared, by the bits that stand for them, then their boxes, rounded outwards to 32
bits: what lies within both regions stays. Only what is left is looked up in the table of messages.
A leaf has a set of 1,024 bits, in which the words of its messages are marked, and so has a node
whose four children are leaves; most lack a word and are not opened at all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.kernels.blocks import low_bits
from earshot.kernels.box_keys import trailing_zeros
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.kernels.processor import prefetch
from earshot.model.arrays import Float64s, Int32s, Int64s
from earshot.semantics.moving.kernels.arrays import (
    IS_LONLAT,
    N_CANDIDATES,
    N_ENTERED,
    N_FOUND,
    N_NODES,
    N_PROBES,
    N_ROWS,
    STAMP,
)
from earshot.semantics.moving.kernels.regions import boxes_touch, holds
from earshot.semantics.moving.kernels.vectors import having_mask, open_mask
from earshot.semantics.moving.kernels.words import row_has_words, word_place

BLOCK = 16
LEAF_MOST = 48
LEAF_FEW = 12
"""A leaf with more messages is cut; a node with so few takes its leaves back."""
DEEPEST = 200
SPARE_BLOCKS, SPARE_QUADS = 32, 8
HALF_PLACES = 512
"""Bytes of the bit sets of four nodes: in each, two places of a word with a bit a node."""

(
    TREE_QUADS, TREE_FREE_QUAD, TREE_BLOCKS, TREE_FREE_BLOCK, TREE_N_FREE, TREE_WANTED,
    TREE_HAS_WORDS, TREE_ASKED, N_TREE_FACTS,
) = range(9)  # fmt: skip
"""Facts: groups of four nodes, chain of those that are free, blocks, chain of those that are free,
how many of these there are, blocks that a cut was short of. Where safe regions are asked for:
whether there are lists of messages by word, and how many alternatives of subscriptions there were
as they were made."""


class MessageTree(NamedTuple):
    """The tree by itself; :mod:`earshot.semantics.moving.kernels.quad_lists` tells of its arrays.

    The default structure has the same among its own arrays.
    """

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
    entry_words: npt.NDArray[np.uint64]
    entry_rows: Int32s
    entry_boxes: npt.NDArray[np.float32]
    samples: Float64s
    path: Int64s


@inlined_kernel
def tree_of(structure):
    """Return the tree among the arrays of a structure: to pass all of them takes longer."""
    return MessageTree(
        structure.tree_facts, structure.node_boxes, structure.node_splits,
        structure.node_children, structure.node_counts, structure.node_blocks,
        structure.node_sizes, structure.node_limits, structure.quad_words, structure.node_stale,
        structure.block_next, structure.entry_words, structure.entry_rows, structure.entry_boxes,
        structure.samples, structure.path,
    )  # fmt: skip


_LARGEST = np.float32(3.4028235e38)
_ULP = np.float32(1.2e-7)
_TINY = np.float32(1e-45)
_SAMPLE = 64
NOTED, _NOTED_MOST = 2048, 64
"""Where messages to look at together are noted in the stack, far above any walk, and how many."""
_ONE, _TWICE = np.uint8(1), np.uint8(0x11)
_CHILDREN = np.uint32(0x1111)


@inlined_kernel
def lower(value):
    """Return a 32-bit number that is not greater."""
    rounded = np.float32(value)
    if rounded > _LARGEST:
        return _LARGEST
    if rounded < -_LARGEST:
        return rounded
    return rounded - abs(rounded) * _ULP - _TINY


@inlined_kernel
def upper(value):
    """Return a 32-bit number that is not less."""
    rounded = np.float32(value)
    if rounded < -_LARGEST:
        return -_LARGEST
    if rounded > _LARGEST:
        return rounded
    return rounded + abs(rounded) * _ULP + _TINY


@inlined_kernel
def has_room_tree(tree):
    """Whether a message can be taken in, and a leaf be cut."""
    facts = tree.tree_facts
    n_blocks = facts[TREE_N_FREE] + len(tree.block_next) - facts[TREE_BLOCKS]
    n_quads = len(tree.node_counts) // 4 - facts[TREE_QUADS]
    return n_blocks >= SPARE_BLOCKS + facts[TREE_WANTED] and n_quads >= SPARE_QUADS


@lean_kernel
def clear_node(tree, node):
    """Let a node be a leaf without messages."""
    tree.node_children[node] = -1
    tree.node_counts[node] = 0
    tree.node_blocks[node] = -1
    tree.node_sizes[node] = 0
    tree.node_limits[node] = LEAF_MOST
    _clear_words(tree, node)
    _empty_box(tree, node)


@inlined_kernel
def _clear_words(tree, node):
    """Let a node lack every word."""
    tree.node_stale[node] = 0
    quad, others = node >> 2, np.uint8(255) ^ (_TWICE << np.uint8(node & 3))
    for k in range(HALF_PLACES):
        tree.quad_words[quad, k] &= others


@inlined_kernel
def _have_all_words(tree, node):
    """Let a node have every word: there is more than leaves below it."""
    quad, own = node >> 2, _TWICE << np.uint8(node & 3)
    for k in range(HALF_PLACES):
        tree.quad_words[quad, k] |= own


@inlined_kernel
def _add_words(tree, messages, node, name):
    """Put the words of an entry into the bit set of a node."""
    row = ~name if name < 0 else name
    start = messages.token_starts[row]
    for i in range(start, start + messages.n_tokens[row]):
        place = word_place(messages.tokens[i])
        tree.quad_words[node >> 2, place >> 1] |= _ONE << np.uint8((place & 1) << 2 | node & 3)


@inlined_kernel
def _has_leaves(tree, node):
    """Whether the four children of a node that is cut are leaves."""
    children, first = tree.node_children, tree.node_children[node]
    return children[first] & children[first + 1] & children[first + 2] & children[first + 3] < 0


@lean_kernel
def _gather_words(tree, messages, node):
    """Make the bit set of a node above four leaves anew, of theirs and its own entries."""
    _find_words(tree, messages, node)
    below = tree.quad_words[tree.node_children[node] >> 2]
    own = tree.quad_words[node >> 2]
    low, high = _ONE << np.uint8(node & 3), _ONE << np.uint8(4 | node & 3)
    for k in range(HALF_PLACES):
        own[k] |= low * np.uint8(below[k] & 15 != 0) | high * np.uint8(below[k] >> 4 != 0)


@inlined_kernel
def _empty_box(tree, node):
    boxes = tree.node_boxes
    boxes[node, 0] = boxes[node, 1] = np.inf
    boxes[node, 2] = boxes[node, 3] = -np.inf


@inlined_kernel
def _loosen(tree, node, min_x, min_y, max_x, max_y):
    boxes = tree.node_boxes
    boxes[node, 0] = min(boxes[node, 0], min_x)
    boxes[node, 1] = min(boxes[node, 1], min_y)
    boxes[node, 2] = max(boxes[node, 2], max_x)
    boxes[node, 3] = max(boxes[node, 3], max_y)


@inlined_kernel
def _new_block(tree):
    facts = tree.tree_facts
    block = facts[TREE_FREE_BLOCK]
    if block >= 0:
        facts[TREE_FREE_BLOCK] = tree.block_next[block]
        facts[TREE_N_FREE] -= 1
        return block
    block = facts[TREE_BLOCKS]
    facts[TREE_BLOCKS] += 1
    return block


@inlined_kernel
def free_block(tree, block):
    """Put a block into the chain of those that are free."""
    facts = tree.tree_facts
    tree.block_next[block] = facts[TREE_FREE_BLOCK]
    facts[TREE_FREE_BLOCK] = block
    facts[TREE_N_FREE] += 1


@inlined_kernel
def new_entry(tree, node, in_block):
    """Return where the next entry of a node goes. Of its blocks, only the first is not full."""
    size = tree.node_sizes[node]
    if size % in_block == 0:
        block = _new_block(tree)
        tree.block_next[block] = tree.node_blocks[node]
        tree.node_blocks[node] = block
    tree.node_sizes[node] = size + 1
    return np.int64(tree.node_blocks[node]) * in_block + size % in_block


@inlined_kernel
def _copy_entry(tree, source, target):
    tree.entry_words[target] = tree.entry_words[source]
    tree.entry_rows[target] = tree.entry_rows[source]
    for k in range(4):
        tree.entry_boxes[target, k] = tree.entry_boxes[source, k]


@inlined_kernel
def _next_node(tree, node, min_x, min_y, max_x, max_y):
    """Return the child in which a box lies, -1 where it stays in the node."""
    first = tree.node_children[node]
    if first < 0:
        return np.int64(-1)
    x, y = tree.node_splits[node, 0], tree.node_splits[node, 1]
    is_extended = min_x < max_x or min_y < max_y
    if is_extended and min_x <= x and x <= max_x and min_y <= y and y <= max_y:
        return np.int64(-1)
    return first + np.int64(_middle(min_x, max_x) > x) + 2 * np.int64(_middle(min_y, max_y) > y)


@inlined_kernel
def _middle(low, high):
    return low if low == high else low * 0.5 + high * 0.5


@lean_kernel
def _put_piece(tree, messages, row, name, min_x, min_y, max_x, max_y):
    node, above, depth = np.int64(0), np.int64(-1), 0
    while True:
        _loosen(tree, node, min_x, min_y, max_x, max_y)
        tree.node_counts[node] += 1
        child = _next_node(tree, node, min_x, min_y, max_x, max_y)
        if child < 0:
            break
        above, node = node, child
        depth += 1
    entry = new_entry(tree, node, BLOCK)
    tree.entry_words[entry] = messages.words[row]
    tree.entry_rows[entry] = name
    tree.entry_boxes[entry, 0] = lower(min_x)
    tree.entry_boxes[entry, 1] = lower(min_y)
    tree.entry_boxes[entry, 2] = upper(max_x)
    tree.entry_boxes[entry, 3] = upper(max_y)
    if tree.node_children[node] >= 0:
        if _has_leaves(tree, node):
            _add_words(tree, messages, node, np.int64(name))
        return
    _add_words(tree, messages, node, np.int64(name))
    is_low = above >= 0 and _has_leaves(tree, above)
    if tree.node_sizes[node] > tree.node_limits[node] and depth < DEEPEST:
        _cut(tree, messages, node)
    if is_low:
        if tree.node_children[node] < 0:
            _add_words(tree, messages, above, np.int64(name))
        else:
            _have_all_words(tree, above)


@inlined_kernel
def put_in_tree(tree, messages, row):
    """Take a message in."""
    box = messages.boxes[row]
    if box[0] <= box[2]:
        _put_piece(tree, messages, row, row, box[0], box[1], box[2], box[3])
    else:
        _put_piece(tree, messages, row, row, box[0], box[1], 180.0, box[3])
        _put_piece(tree, messages, row, ~row, -180.0, box[1], box[2], box[3])


@inlined_kernel
def _piece(tree, messages, entry):
    """Return the box of an entry: that of its message, or the half on the entry's side."""
    name = np.int64(tree.entry_rows[entry])
    if name < 0:
        box = messages.boxes[~name]
        return -180.0, box[1], box[2], box[3]
    box = messages.boxes[name]
    return box[0], box[1], box[2] if box[0] <= box[2] else 180.0, box[3]


# ---- cutting -------------------------------------------------------------------------------------


@lean_kernel
def _cut_at(values, n):
    """Return the median of values, but less than the largest; that where all are equal."""
    for i in range(1, n):
        value = values[i]
        j = i
        while j > 0 and values[j - 1] > value:
            values[j] = values[j - 1]
            j -= 1
        values[j] = value
    at = (n - 1) >> 1
    while at > 0 and values[at] == values[n - 1]:
        at -= 1
    return values[at]


@lean_kernel
def _cut(tree, messages, node):
    """Give a leaf four children, and them its messages."""
    facts, size = tree.tree_facts, tree.node_sizes[node]
    n_needed = size // BLOCK + 5 + SPARE_BLOCKS
    if facts[TREE_N_FREE] + len(tree.block_next) - facts[TREE_BLOCKS] < n_needed:
        facts[TREE_WANTED] = n_needed
        return
    step = (size + _SAMPLE - 1) // _SAMPLE
    n = at = 0
    block = np.int64(tree.node_blocks[node])
    in_block = (size - 1) % BLOCK + 1
    while block >= 0:
        for i in range(in_block):
            if at % step == 0:
                min_x, min_y, max_x, max_y = _piece(tree, messages, block * BLOCK + i)
                tree.samples[0, n] = _middle(min_x, max_x)
                tree.samples[1, n] = _middle(min_y, max_y)
                n += 1
            at += 1
        in_block = BLOCK
        block = np.int64(tree.block_next[block])
    x, y = _cut_at(tree.samples[0], n), _cut_at(tree.samples[1], n)
    if x == tree.samples[0, n - 1] and y == tree.samples[1, n - 1]:
        tree.node_limits[node] = 2 * size  # all are at one place, as far as one can see
        return
    quad = facts[TREE_FREE_QUAD]
    if quad >= 0:
        facts[TREE_FREE_QUAD] = tree.node_children[4 * quad]
    else:
        quad = facts[TREE_QUADS]
        facts[TREE_QUADS] += 1
    for child in range(4 * quad, 4 * quad + 4):
        clear_node(tree, child)
    tree.node_children[node] = 4 * quad
    tree.node_splits[node, 0], tree.node_splits[node, 1] = x, y
    block, in_block = np.int64(tree.node_blocks[node]), (size - 1) % BLOCK + 1
    tree.node_blocks[node], tree.node_sizes[node] = -1, 0
    while block >= 0:
        for i in range(in_block):
            entry = block * BLOCK + i
            min_x, min_y, max_x, max_y = _piece(tree, messages, entry)
            target = _next_node(tree, node, min_x, min_y, max_x, max_y)
            if target < 0:
                target = node
            else:
                tree.node_counts[target] += 1
                _loosen(tree, target, min_x, min_y, max_x, max_y)
                _add_words(tree, messages, target, np.int64(tree.entry_rows[entry]))
            _copy_entry(tree, entry, new_entry(tree, target, BLOCK))
        in_block = BLOCK
        done = block
        block = np.int64(tree.block_next[block])
        free_block(tree, done)


# ---- leaving -------------------------------------------------------------------------------------


@lean_kernel
def _drop_piece(tree, messages, name, min_x, min_y, max_x, max_y):
    node, depth = np.int64(0), 0
    while True:
        tree.path[depth] = node
        tree.node_counts[node] -= 1
        child = _next_node(tree, node, min_x, min_y, max_x, max_y)
        if child < 0:
            break
        node = child
        depth += 1
    size = tree.node_sizes[node]
    first = np.int64(tree.node_blocks[node])
    last = first * BLOCK + (size - 1) % BLOCK
    block, in_block = first, (size - 1) % BLOCK + 1
    is_found = False
    while block >= 0 and not is_found:
        for i in range(in_block):
            entry = block * BLOCK + i
            if tree.entry_rows[entry] == name:
                _copy_entry(tree, last, entry)
                is_found = True
                break
        in_block = BLOCK
        block = np.int64(tree.block_next[block])
    tree.node_sizes[node] = size - 1
    tree.node_stale[node] += 1
    if (size - 1) % BLOCK == 0:
        tree.node_blocks[node] = tree.block_next[first]
        free_block(tree, first)
    # A share of a leaf, so that what is looked at again is bounded by what was dropped.
    is_stale = tree.node_stale[node] > max(LEAF_MOST, size) // 3
    if is_stale and tree.node_children[node] < 0:
        _find_words(tree, messages, node)
        if depth > 0:
            above = np.int64(tree.path[depth - 1])
            if _has_leaves(tree, above) and tree.node_sizes[above] <= 2 * LEAF_MOST:
                _gather_words(tree, messages, above)
    for at in range(depth, -1, -1):
        node = np.int64(tree.path[at])
        if tree.node_children[node] >= 0 and tree.node_counts[node] <= LEAF_FEW:
            _take_back(tree, messages, node)
        boxes = tree.node_boxes
        is_within = (
            boxes[node, 0] < min_x
            and boxes[node, 1] < min_y
            and boxes[node, 2] > max_x
            and boxes[node, 3] > max_y
        )
        if is_within or tree.node_sizes[node] > 2 * LEAF_MOST:
            continue  # it did not bound the box; or to look at all others would take too long
        _tighten(tree, messages, node)


@lean_kernel
def _find_words(tree, messages, node):
    """Make the bit set of a node anew, of its own entries."""
    _clear_words(tree, node)
    size, block = tree.node_sizes[node], np.int64(tree.node_blocks[node])
    in_block = (size - 1) % BLOCK + 1
    while block >= 0:
        for i in range(in_block):
            _add_words(tree, messages, node, np.int64(tree.entry_rows[block * BLOCK + i]))
        in_block = BLOCK
        block = np.int64(tree.block_next[block])


@lean_kernel
def _tighten(tree, messages, node):
    """Find the box around a node's own messages and its children anew."""
    _empty_box(tree, node)
    size, block = tree.node_sizes[node], np.int64(tree.node_blocks[node])
    in_block = (size - 1) % BLOCK + 1
    while block >= 0:
        for i in range(in_block):
            min_x, min_y, max_x, max_y = _piece(tree, messages, block * BLOCK + i)
            _loosen(tree, node, min_x, min_y, max_x, max_y)
        in_block = BLOCK
        block = np.int64(tree.block_next[block])
    first = tree.node_children[node]
    if first >= 0:
        for child in range(first, first + 4):
            box = tree.node_boxes[child]
            _loosen(tree, node, box[0], box[1], box[2], box[3])


@lean_kernel
def _take_back(tree, messages, node):
    """Let a node with few messages be a leaf again, if its children are leaves."""
    first = np.int64(tree.node_children[node])
    for child in range(first, first + 4):
        if tree.node_children[child] >= 0:
            return
    tree.node_children[node] = -1
    tree.node_limits[node] = LEAF_MOST
    for child in range(first, first + 4):
        size, block = tree.node_sizes[child], np.int64(tree.node_blocks[child])
        in_block = (size - 1) % BLOCK + 1
        while block >= 0:
            following = np.int64(tree.block_next[block])
            for i in range(in_block):
                _copy_entry(tree, block * BLOCK + i, new_entry(tree, node, BLOCK))
            free_block(tree, block)
            in_block = BLOCK
            block = following
    quad = first // 4
    tree.node_children[first] = tree.tree_facts[TREE_FREE_QUAD]
    tree.tree_facts[TREE_FREE_QUAD] = quad
    _find_words(tree, messages, node)


@inlined_kernel
def drop_from_tree(tree, messages, row):
    """Forget a message."""
    box = messages.boxes[row]
    if box[0] <= box[2]:
        _drop_piece(tree, messages, row, box[0], box[1], box[2], box[3])
    else:
        _drop_piece(tree, messages, row, box[0], box[1], 180.0, box[3])
        _drop_piece(tree, messages, ~row, -180.0, box[1], box[2], box[3])


@lean_kernel
def fill_tree(tree, messages, first):
    """Take the live messages in from a row on; return the first for which there is no room."""
    for row in range(first, messages.facts[N_ROWS]):
        if messages.sequences[row] >= 0:
            if not has_room_tree(tree):
                return row
            put_in_tree(tree, messages, row)
    return messages.facts[N_ROWS]


# ---- searching -----------------------------------------------------------------------------------


@inlined_kernel
def hull_of(boxes):
    """Return the box around two regions, and whether there is more to compare than that."""
    low_x, high_x = min(boxes[0, 0], boxes[1, 0]), max(boxes[0, 2], boxes[1, 2])
    low_y, high_y = min(boxes[0, 1], boxes[1, 1]), max(boxes[0, 3], boxes[1, 3])
    is_split = boxes[0, 4] <= boxes[0, 6] or boxes[1, 4] <= boxes[1, 6]
    if is_split:  # at the antimeridian
        low_x, high_x = -np.inf, np.inf
    width, height = boxes[1, 2] - boxes[1, 0], boxes[1, 3] - boxes[1, 1]
    is_far = is_split or not (high_x - low_x <= 1.5 * width and high_y - low_y <= 1.5 * height)
    return low_x, low_y, high_x, high_y, is_far


@inlined_kernel
def having_children(tree, first, probes, slot):
    """Return which of four nodes may have the words of a subscription: bit 4 k for the k-th.

    Of nodes with more than leaves below, all may.
    """
    having = np.uint32(15)
    for k in range(N_PROBES):
        place = np.int64(probes[slot, k])
        if place < 0:
            break
        having &= np.uint32(tree.quad_words[first >> 2, place >> 1]) >> np.uint32((place & 1) << 2)
    return (having | having << np.uint32(3) | having << np.uint32(6) | having << np.uint32(9)) & (
        _CHILDREN
    )


@inlined_kernel
def prefetch_block(tree, block):
    """Ask for the first block of a node, which is read after the nodes pushed behind it."""
    if block >= 0:
        prefetch(tree.entry_words, block * BLOCK)
        prefetch(tree.entry_words, block * BLOCK + 8)
        prefetch(tree.block_next, block)


@inlined_kernel
def search_tree(tree, tables, scratch, slot):
    """Find the messages that one of the two regions of the query holds, and the other does not."""
    counts, query, stack, messages = scratch.counts, scratch.query, scratch.stack, tables.messages
    boxes, inner = query.regions.boxes, query.inner
    words, probes = tables.subscribers.words[slot], tables.subscribers.probes
    low_x, low_y, high_x, high_y, is_far = hull_of(boxes)
    # What lies within both regions.
    in_low_x, in_high_x = max(inner[0, 0], inner[1, 0]), min(inner[0, 2], inner[1, 2])
    in_low_y, in_high_y = max(inner[0, 1], inner[1, 1]), min(inner[0, 3], inner[1, 3])
    counts[N_FOUND] = counts[N_ENTERED] = 0
    n_nodes = n_noted = 0
    stack[0] = 0
    top = 1
    while top > 0:
        top -= 1
        node = stack[top]
        n_nodes += 1
        size, block = tree.node_sizes[node], np.int64(tree.node_blocks[node])
        in_block = (size - 1) % BLOCK + 1
        while block >= 0:
            first = block * BLOCK
            mask = having_mask(tree.entry_words, first, words) & low_bits(in_block)
            while mask != 0:
                entry = first + trailing_zeros(mask)
                mask &= mask - np.uint32(1)
                is_within = (
                    in_low_x <= tree.entry_boxes[entry, 0]
                    and in_low_y <= tree.entry_boxes[entry, 1]
                    and in_high_x >= tree.entry_boxes[entry, 2]
                    and in_high_y >= tree.entry_boxes[entry, 3]
                )
                if is_within or not touches_one(tree, entry, boxes):
                    continue
                if n_noted == _NOTED_MOST:
                    _look_at_noted(tables, scratch, slot, n_noted)
                    n_noted = 0
                row = np.int64(tree.entry_rows[entry])
                row = ~row if row < 0 else row
                stack[NOTED + n_noted] = row
                n_noted += 1
                prefetch(messages.boxes, row)
                prefetch(messages.words, row)
                prefetch(messages.token_starts, row)
                prefetch(messages.n_tokens, row)
                prefetch(messages.sequences, row)
            in_block = BLOCK
            block = np.int64(tree.block_next[block])
        first = np.int64(tree.node_children[node])
        if first < 0:
            continue
        mask = open_mask(
            tree.node_boxes, first, (low_x, low_y, high_x, high_y),
            (in_low_x, in_low_y, in_high_x, in_high_y),
        )  # fmt: skip
        if mask != 0:
            mask &= having_children(tree, first, probes, slot)
        while mask != 0:
            child = first + (trailing_zeros(mask) >> 2)
            mask &= mask - np.uint32(1)
            if is_far:
                box = tree.node_boxes[child]
                if not boxes_touch(boxes, 0, box[0], box[1], box[2], box[3]) and not boxes_touch(
                    boxes, 1, box[0], box[1], box[2], box[3]
                ):
                    continue
            prefetch_block(tree, np.int64(tree.node_blocks[child]))
            stack[top] = child
            top += 1
    counts[N_NODES] += n_nodes
    if n_noted > 0:
        _look_at_noted(tables, scratch, slot, n_noted)


@inlined_kernel
def touches_one(tree, entry, boxes):
    """Whether the box of an entry, as far as 32 bits tell, touches one of the two regions."""
    min_x, min_y = np.float64(tree.entry_boxes[entry, 0]), np.float64(tree.entry_boxes[entry, 1])
    max_x, max_y = np.float64(tree.entry_boxes[entry, 2]), np.float64(tree.entry_boxes[entry, 3])
    return boxes_touch(boxes, 0, min_x, min_y, max_x, max_y) or boxes_touch(
        boxes, 1, min_x, min_y, max_x, max_y
    )


@inlined_kernel
def _look_at_noted(tables, scratch, slot, n):
    """Compare the messages that were noted with both regions."""
    messages, noted = tables.messages, scratch.stack
    for i in range(NOTED, NOTED + n):
        prefetch(messages.tokens, messages.token_starts[noted[i]])
    for i in range(NOTED, NOTED + n):
        _look_at_row(tables, scratch, slot, noted[i])


@inlined_kernel
def _look_at_row(tables, scratch, slot, row):
    subscribers, messages, query = tables.subscribers, tables.messages, scratch.query
    scratch.counts[N_CANDIDATES] += 1
    is_lonlat, polygons = tables.rules[IS_LONLAT] != 0, subscribers.polygons
    box = messages.boxes[row]
    was = holds(query.regions, 0, is_lonlat, polygons, box[0], box[1], box[2], box[3])
    now = holds(query.regions, 1, is_lonlat, polygons, box[0], box[1], box[2], box[3])
    if was == now or not row_has_words(subscribers, slot, messages, row):
        return
    if box[0] > box[2]:  # that one has two entries
        if scratch.stamps[row] == scratch.counts[STAMP]:
            return
        scratch.stamps[row] = scratch.counts[STAMP]
    if was:
        scratch.found[scratch.counts[N_FOUND]] = messages.sequences[row]
        scratch.counts[N_FOUND] += 1
    else:
        scratch.entered[scratch.counts[N_ENTERED]] = messages.sequences[row]
        scratch.counts[N_ENTERED] += 1
