"""How messages and subscriptions find each other in the AP+-Tree."""

from __future__ import annotations

import numpy as np

from earshot.indexes.ap_tree.kernels.nodes import (
    KEYWORDS,
    LIST,
    N_NODES,
    NO_RANK,
    cells_of,
    contains_region,
    find_cut,
    grid_of,
    rank_at,
)
from earshot.indexes.kernels.blocks import low_bits
from earshot.kernels.box_keys import BLOCK, DEAD_KEY, box_limit, touching_mask, trailing_zeros
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.kernels.processor import prefetch
from earshot.model.arrays import EVERYWHERE_TOKEN
from earshot.semantics.moving.ap_plus.kernels.arrays import (
    GONE,
    INSIDE,
    IS_INCOMPLETE,
    LIST_BLOCK,
    MOST_COPIES,
    MOST_NODES,
    N_DEAD,
    N_GONE,
    N_INNER,
    N_SEEN,
    OUTSIDE,
)
from earshot.semantics.moving.ap_plus.kernels.changes import (
    STAYS,
    change_slot,
    is_at_home,
    region_box,
    stay_slot,
)
from earshot.semantics.moving.ap_plus.kernels.messages import (
    entry_key,
    entry_limit,
    has_blocks,
    has_many_dead,
    is_inside,
    keep_message,
    lives,
    message_box,
    note_words,
    walk_down,
)
from earshot.semantics.moving.kernels.arrays import (
    N_ENTERED,
    N_FOUND,
    N_ROWS,
)
from earshot.semantics.moving.kernels.arrays import N_NODES as N_NODES_VISITED
from earshot.semantics.moving.kernels.cell_lists import (
    drop_message_cells,
    has_room_cells,
    put_message_cells,
)
from earshot.semantics.moving.kernels.cell_search import search_cells
from earshot.semantics.moving.kernels.comparing import note_change, note_entry, note_holder
from earshot.semantics.moving.kernels.hashed_lists import BLOCK as WORD_BLOCK
from earshot.semantics.moving.kernels.hashed_lists import MOST_WORDS, has_word_blocks
from earshot.semantics.moving.kernels.quadtree import (
    drop_from_tree,
    has_room_tree,
    put_in_tree,
)
from earshot.semantics.moving.kernels.reaches import find_reach, find_reach_by_scan


@inlined_kernel
def has_room_plus(structure, tables, n):
    """Whether one more message and a subscription have room, and no lists should be swept."""
    core = structure.core
    tree, n_tokens, most = (
        core.tree,
        len(tables.messages.n_having),
        np.int64(core.rules[MOST_COPIES]),
    )
    return (
        len(tree.ranks) >= n_tokens
        and len(core.words.lists) >= n_tokens
        and len(core.places.boxes) >= len(tables.subscribers.clause_slots)
        and tree.facts[N_NODES] + most <= len(tree.kinds)
        and has_blocks(core.lists, most)
        and has_word_blocks(core.words, MOST_WORDS)
        and not has_many_dead(core.facts, tables.messages)
    )


# ---- a message looks for subscriptions -----------------------------------------------------------


@inlined_kernel
def find_plus(structure, tables, scratch, row):
    """Find the subscriptions that hold a message, whose tokens are marked."""
    core, messages, subscribers = structure.core, tables.messages, tables.subscribers
    tree, walk, counts = core.tree, core.walk, scratch.counts
    counts[N_FOUND] = 0
    core.facts[N_SEEN] += 1
    min_x, min_y, max_x, max_y = message_box(messages, row)
    limit = box_limit(tree.quantizer, min_x, min_y, max_x, max_y)
    n_reached, n_visited = walk_down(core.facts, core.rules, tree, walk, messages, row, np.int64(0))
    counts[N_NODES_VISITED] += n_visited
    for i in range(n_reached):
        node = np.int64(walk.reached[i])
        start, n = tree.starts[node], np.int64(tree.n_below[node])
        for first in range(0, n, BLOCK):
            mask = touching_mask(tree.keys, start + first, limit) & low_bits(n - first)
            while mask != 0:
                clause = np.int64(tree.rows[start + first + trailing_zeros(mask)])
                mask &= mask - np.uint32(1)
                is_met = subscribers.clause_words[clause] & ~messages.words[row] == 0
                if is_met and core.places.states[clause] == INSIDE:
                    note_holder(tables, scratch, row, clause)


@inlined_kernel
def put_message_plus(structure, tables, row):
    """Keep a message where matching it came to."""
    core, messages = structure.core, tables.messages
    keep_message(core.facts, core.tree, core.lists, core.walk, messages, row)
    note_words(core.facts, core.words, messages, row)


@inlined_kernel
def drop_message_plus(structure, tables, row):
    """Forget a message: its entries are dead from now on."""
    structure.core.facts[N_DEAD] += 1


# ---- subscriptions -------------------------------------------------------------------------------


@lean_kernel
def put_slot_plus(structure, tables, slot):
    """Whether a subscription is in the tree: all that come together are put in at once."""
    return structure.core.places.states[tables.subscribers.clause_offsets[slot]] != OUTSIDE


@lean_kernel
def drop_slot_plus(structure, tables, slot):
    """Forget a subscription; it is taken out of the tree later, with others."""
    offsets = tables.subscribers.clause_offsets
    for clause in range(offsets[slot], offsets[slot + 1]):
        structure.core.places.states[clause] = GONE
        structure.core.facts[N_GONE] += 1


@inlined_kernel
def moved_slot_plus(structure, tables, slot):
    """Follow a subscription to where it is now; False where there is no room."""
    return stay_slot(structure.core, tables, slot) or change_slot(
        structure.core, tables, slot, STAYS
    )


@inlined_kernel
def foresee_slot_plus(structure, tables, slot, step):
    """Ask for what a move reads of a subscription, then of its l-nodes, then of their lists."""
    tree, lists, places = structure.core.tree, structure.core.lists, structure.core.places
    clause = tables.subscribers.clause_offsets[slot]
    if step == 0:
        prefetch(places.nodes, clause)
        prefetch(places.bounds, clause)
        prefetch(places.boxes, clause)
        return
    for k in range(MOST_NODES):
        node = np.int64(places.nodes[clause, k])
        if node < 0:
            return
        if step == 1:
            prefetch(tree.starts, node)
            prefetch(lists.node_sizes, node)
            prefetch(lists.node_blocks, node)
        else:
            prefetch(tree.rows, tree.starts[node])
            prefetch(tree.keys, tree.starts[node])
            block = np.int64(lists.node_blocks[node])
            if block >= 0:
                _foresee_block(lists, block)


# ---- a subscription looks for messages -----------------------------------------------------------


@inlined_kernel
def search_plus(structure, tables, scratch, slot):
    """Find the messages that one of the two regions of the query holds, and the other does not."""
    core, counts, subscribers = structure.core, scratch.counts, tables.subscribers
    counts[N_FOUND] = counts[N_ENTERED] = 0
    boxes = scratch.query.regions.boxes
    old, new = region_box(boxes, 0), region_box(boxes, 1)
    if old[0] > old[2]:  # it was nowhere
        old = new
    elif new[0] > new[2]:
        new = old
    within = _held_by_both(scratch.query.inner)
    window = _window(core.lists.frame, old, new, within)
    for clause in range(subscribers.clause_offsets[slot], subscribers.clause_offsets[slot + 1]):
        if is_at_home(core.places, clause, new) and is_at_home(core.places, clause, old):
            _search_at_home(core, tables, scratch, slot, clause, window)
        elif not _search_clause(
            core.tree, core.lists, core.places.homes, core.walk.stack, tables, scratch, slot,
            clause, old, new, within, window,
        ):  # fmt: skip
            is_whole = core.facts[IS_INCOMPLETE] == 0
            _search_word(core.words, is_whole, tables, scratch, slot, clause)


@inlined_kernel
def _held_by_both(inner):
    """Return a box that both regions hold as a whole; it may be empty."""
    return (
        max(inner[0, 0], inner[1, 0]),
        max(inner[0, 1], inner[1, 1]),
        min(inner[0, 2], inner[1, 2]),
        min(inner[0, 3], inner[1, 3]),
    )


@inlined_kernel
def _window(frame, old, new, within):
    """Return the limit of the entries that may change, and the key of where none does."""
    limit = entry_limit(
        frame, min(old[0], new[0]), min(old[1], new[1]), max(old[2], new[2]), max(old[3], new[3])
    )
    is_empty = within[0] > within[2] or within[1] > within[3]
    still = entry_key(frame, within[0], within[1], within[2], within[3])
    return limit, np.uint64(DEAD_KEY) if is_empty else still


@inlined_kernel
def _search_at_home(core, tables, scratch, slot, clause, window):
    """Go through the m-lists of the l-nodes where an alternative was and is."""
    tree, lists = core.tree, core.lists
    for k in range(MOST_NODES):
        node = np.int64(core.places.nodes[clause, k])
        if node < 0:
            return
        scratch.counts[N_NODES_VISITED] += 1
        while node >= 0:
            _look_at_list(lists, tables, scratch, slot, node, window)
            node = np.int64(tree.parents[node]) if core.facts[N_INNER] > 0 else np.int64(-1)


@inlined_kernel
def _search_clause(
    tree, lists, homes, stack, tables, scratch, slot, clause, old, new, within, window
):  # fmt: skip
    """Go through the m-lists of an alternative; return whether the tree has all its messages.

    [VLDBJ15] Algorithm 6. A cell within both regions is passed over (case 1). In the others, each
    message is compared with both regions at once, whether they leave the cell (case 2), share it
    (case 3) or come to it (case 4).
    """
    subscribers = tables.subscribers
    first, stop = subscribers.token_offsets[clause], subscribers.token_offsets[clause + 1]
    depth, n_visited = np.int64(1), 0
    stack[0] = max(0, homes[clause])
    above = np.int64(tree.parents[stack[0]])
    while above >= 0:
        if lists.node_sizes[above] > 0:
            _look_through(lists, tables, scratch, slot, above, window)
        above = np.int64(tree.parents[above])
    while depth > 0:
        depth -= 1
        node = np.int64(stack[depth])
        n_visited += 1
        if lists.node_sizes[node] > 0:
            _look_through(lists, tables, scratch, slot, node, window)
        if tree.kinds[node] == LIST:
            continue
        start = tree.starts[node]
        if tree.kinds[node] == KEYWORDS:
            rank = rank_at(tree.ranks, subscribers.token_ids, first, stop, tree.offsets[node])
            position = np.int64(0)
            if rank != NO_RANK:
                cut = find_cut(tree.firsts, tree.extras[node], tree.sizes[node], rank)
                at, position = tree.extras[node] + cut, cut + 1
                if rank < tree.firsts[at] or rank > tree.lasts[at]:
                    return False
            child = np.int64(tree.children[start + position])
            if child < 0:
                return False
            stack[depth] = child
            depth += 1
            continue
        n_columns, n_rows, x_start, y_start = grid_of(tree.sizes[node], tree.extras[node])
        dummy = np.int64(tree.children[start])
        if dummy >= 0 and (
            contains_region(tree.edges, x_start, n_columns, y_start, n_rows, old)
            or contains_region(tree.edges, x_start, n_columns, y_start, n_rows, new)
        ):
            stack[depth] = dummy
            depth += 1
            continue
        depth = _push_cells(tree, stack, node, old, new, within, depth)
    scratch.counts[N_NODES_VISITED] += n_visited
    return True


@inlined_kernel
def _push_cells(tree, stack, node, old, new, within, depth):
    """Push the cells of an s-node that one of two regions touches and not both hold as a whole."""
    edges = tree.edges
    n_columns, n_rows, x_start, y_start = grid_of(tree.sizes[node], tree.extras[node])
    spans = (
        cells_of(edges, x_start, n_columns, y_start, n_rows, old),
        cells_of(edges, x_start, n_columns, y_start, n_rows, new),
    )
    for which in range(2):
        left, right, bottom, top = spans[which]
        was_left, was_right, was_bottom, was_top = spans[0]
        for y in range(bottom, top + 1):
            for x in range(left, right + 1):
                if which == 1 and was_left <= x <= was_right and was_bottom <= y <= was_top:
                    continue
                child = tree.children[tree.starts[node] + 1 + y * n_columns + x]
                if child < 0:
                    continue
                is_within = (
                    0 < x < n_columns - 1
                    and 0 < y < n_rows - 1
                    and within[0] <= edges[x_start + x]
                    and within[1] <= edges[y_start + y]
                    and within[2] >= edges[x_start + x + 1]
                    and within[3] >= edges[y_start + y + 1]
                )
                if not is_within:
                    stack[depth] = child
                    depth += 1
    return depth


@lean_kernel
def _look_through(lists, tables, scratch, slot, node, window):
    """Do the same where a subscription is seldom."""
    _look_at_list(lists, tables, scratch, slot, node, window)


@inlined_kernel
def _look_at_list(lists, tables, scratch, slot, node, window):
    """Compare the messages of an m-list with the query, if they are near."""
    size, block = lists.node_sizes[node], np.int64(lists.node_blocks[node])
    limit, still = window
    words = tables.subscribers.words[slot]
    in_block = (size - 1) % LIST_BLOCK + 1
    while block >= 0:
        start, following = block * LIST_BLOCK, np.int64(lists.block_next[block])
        if following >= 0:
            _foresee_block(lists, following)
        for first in range(start, start + in_block, BLOCK):
            left = low_bits(start + in_block - first)
            mask = touching_mask(lists.entry_keys, first, limit) & left
            while mask != 0:
                entry = first + trailing_zeros(mask)
                mask &= mask - np.uint32(1)
                if (
                    words & ~lists.entry_words[entry] == 0
                    and not is_inside(lists.entry_keys[entry], still)
                    and lives(lists, tables.messages, entry)
                ):
                    note_change(tables, scratch, slot, np.int64(lists.entry_rows[entry]))
        block, in_block = following, LIST_BLOCK


@inlined_kernel
def _foresee_block(lists, block):
    """Ask for a block of an m-list."""
    prefetch(lists.block_next, block)
    for first in range(block * LIST_BLOCK, (block + 1) * LIST_BLOCK, 8):
        prefetch(lists.entry_keys, first)


@lean_kernel
def _search_word(words, is_whole, tables, scratch, slot, clause):
    """Compare all messages that have the rarest word of an alternative with the query."""
    subscribers = tables.subscribers
    token = np.int64(EVERYWHERE_TOKEN)
    for i in range(subscribers.token_offsets[clause], subscribers.token_offsets[clause + 1]):
        other = np.int64(subscribers.token_ids[i])
        if other > EVERYWHERE_TOKEN and (
            token == EVERYWHERE_TOKEN or words.lists[other, 1] < words.lists[token, 1]
        ):
            token = other
    if token == EVERYWHERE_TOKEN or not is_whole:
        for row in range(tables.messages.facts[N_ROWS]):
            if tables.messages.sequences[row] >= 0:
                note_change(tables, scratch, slot, row)
        return
    size, block = words.lists[token, 1], words.lists[token, 0]
    at, in_block = 0, (size - 1) % WORD_BLOCK + 1
    while at < size:
        for k in range(in_block):
            entry = block if size == 1 else words.block_entries[block * WORD_BLOCK + k]
            note_entry(tables, scratch, slot, entry)
        at += in_block
        if at < size:
            block, in_block = np.int64(words.block_next[block]), WORD_BLOCK


# ---- AP+k and AP+s: messages elsewhere -----------------------------------------------------------


@lean_kernel
def has_room_separate(structure, tables, n):
    """Whether one more message and a subscription have room."""
    return has_room_plus(structure, tables, n) and has_room_cells(structure.cells, tables, n)


@inlined_kernel
def search_separate(structure, tables, scratch, slot):
    """Find the messages that one of the two regions of the query holds, and the other does not."""
    search_cells(structure.cells, tables, scratch, slot)


@inlined_kernel
def put_message_separate(structure, tables, row):
    """Take a message in."""
    put_message_cells(structure.cells, tables, row)


@inlined_kernel
def drop_message_separate(structure, tables, row):
    """Forget a message."""
    drop_message_cells(structure.cells, tables, row)


# ---- AP+-Tree-Safe: messages by place, too -------------------------------------------------------


@lean_kernel
def has_room_safe(structure, tables, n):
    """Whether one more message and a subscription have room."""
    return has_room_tree(structure.messages) and has_room_plus(structure, tables, n)


@inlined_kernel
def put_message_safe(structure, tables, row):
    """Keep a message."""
    put_message_plus(structure, tables, row)
    put_in_tree(structure.messages, tables.messages, row)


@inlined_kernel
def drop_message_safe(structure, tables, row):
    """Forget a message."""
    drop_message_plus(structure, tables, row)
    drop_from_tree(structure.messages, tables.messages, row)


@lean_kernel
def find_reach_safe(structure, tables, scratch, slot, x, y, most, least):
    """Return how far from a place no live message makes a difference."""
    core = structure.core
    has_words = core.facts[IS_INCOMPLETE] == 0
    return find_reach(
        structure.messages, core.words, has_words, tables, scratch, slot, x, y, most, least
    )


KERNELS = (
    has_room_plus, find_plus, search_plus, put_message_plus, drop_message_plus, put_slot_plus,
    drop_slot_plus, moved_slot_plus, foresee_slot_plus, find_reach_by_scan,
)  # fmt: skip
"""In the order of :mod:`earshot.semantics.moving.kernels.structures`."""
SEPARATE_KERNELS = (
    has_room_separate, find_plus, search_separate, put_message_separate, drop_message_separate,
    put_slot_plus, drop_slot_plus, moved_slot_plus, foresee_slot_plus, find_reach_by_scan,
)  # fmt: skip
SAFE_KERNELS = (
    has_room_safe, find_plus, search_plus, put_message_safe, drop_message_safe, put_slot_plus,
    drop_slot_plus, moved_slot_plus, foresee_slot_plus, find_reach_safe,
)  # fmt: skip
