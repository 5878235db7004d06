"""Insertion into and removal from the trees of :mod:`earshot.indexes.rtree.kernels.nodes`.

[TKDE15] §3.1, §4.1 and §5.1 (updates). Insertion descends by least enlargement. A full node is
split before anything is added below it; one that has become too small is merged with the sibling
that it enlarges least, or shares its entries with it. So a clause never leaves the subtrees it is
in, except by a split or merge of the node itself, and the tables above are right as they are.

Kernels do one change at a time and stop, saying why, when the arrays have no room for the next one
or when the height has changed.
"""

from __future__ import annotations

import numpy as np

from earshot.indexes.kernels.token_tables import (
    EMPTY,
    add_to_list,
    drop_table,
    find,
    find_or_add,
    forget,
    list_entry_at,
    list_length,
    table_size,
    take_from_list,
)
from earshot.indexes.rtree.kernels.nodes import (
    FREE_NODE,
    INVERTED,
    KIND,
    LEVELS,
    MAX_ENTRIES,
    MIN_ENTRIES,
    N_NODES,
    ROOT,
    drop_lists,
    entry_position,
    fill_table,
    has_lone,
    has_room,
    has_table,
    is_lone,
    key_area,
    key_centre,
    list_entry,
    most_tokens,
    node_depth,
    posted,
    posted_range,
    required_stop,
    tree_height,
    union_of,
)
from earshot.kernels.box_keys import DEAD_KEY, TOP, box_key, union_key
from earshot.kernels.copying import copy_part
from earshot.kernels.jit import kernel, lean_kernel
from earshot.kernels.resuming import DONE

# Why a kernel stopped that was not done: no room in the arrays, or a height that LEVELS must
# follow before anything else happens.
NO_ROOM, NEW_HEIGHT = 1, 2


# ---- tables follow ------------------------------------------------------------------------------


@lean_kernel
def _post(tree, clauses, node, c, position):
    """Add what a clause posts to the table of a node, under whose entry ``position`` it is."""
    kind, tables = tree.facts[KIND], tree.tables
    has_bits = kind >= LEVELS and tree.levels[node] == 0
    first, last = posted_range(tree, clauses, c, node_depth(tree, node), tree_height(tree))
    for i in range(first, last):
        place = find_or_add(tables, node, posted(tree, clauses, i))
        if has_bits:
            tables.values[place] |= np.int64(1) << position
        elif kind == LEVELS:
            add_to_list(tables, place, list_entry(position, c))
        else:
            tables.values[place] += 1


@lean_kernel
def _unpost(tree, clauses, node, c, position):
    """Take back what :func:`_post` did."""
    kind, tables = tree.facts[KIND], tree.tables
    has_bits = kind >= LEVELS and tree.levels[node] == 0
    first, last = posted_range(tree, clauses, c, node_depth(tree, node), tree_height(tree))
    for i in range(first, last):
        place = find(tables, node, posted(tree, clauses, i))
        if has_bits:
            tables.values[place] &= ~(np.int64(1) << position)
        elif kind == LEVELS:
            take_from_list(tables, place, list_entry(position, c))
        else:
            tables.values[place] -= 1
        if tables.values[place] == 0:
            forget(tables, node, place)


@lean_kernel
def _post_above(tree, clauses, leaf, c):
    """Post a clause to the tables above its leaf, which has it already."""
    if tree.facts[KIND] == INVERTED:
        for i in range(clauses.token_offsets[c], required_stop(clauses, c)):
            _set_bits_above(tree, leaf, clauses.token_ids[i])
        return
    alone = is_lone(tree, clauses, c)
    node, child = np.int64(tree.parents[leaf]), leaf
    while node >= 0 and has_table(tree, node):
        position = entry_position(tree, node, child)
        if alone:
            place = find_or_add(tree.tables, node, tree.ordered[clauses.token_offsets[c]])
            if _has_alone(tree, place, position):
                return
            add_to_list(tree.tables, place, list_entry(position, -1))
        else:
            _post(tree, clauses, node, c, position)
        node, child = np.int64(tree.parents[node]), node


@lean_kernel
def _unpost_above(tree, clauses, leaf, c):
    """Take a clause back from the tables above its leaf, which has lost it already."""
    if tree.facts[KIND] == INVERTED:
        for i in range(clauses.token_offsets[c], required_stop(clauses, c)):
            if find(tree.tables, leaf, clauses.token_ids[i]) < 0:
                _clear_bits_above(tree, leaf, clauses.token_ids[i])
        return
    alone = is_lone(tree, clauses, c)
    token = tree.ordered[clauses.token_offsets[c]] if alone else np.int32(0)
    node, child = np.int64(tree.parents[leaf]), leaf
    while node >= 0 and has_table(tree, node):
        position = entry_position(tree, node, child)
        if alone:
            place = find(tree.tables, child, token)
            if place >= 0 and has_lone(tree, clauses, child, place):
                return  # another one there
            place = find(tree.tables, node, token)
            take_from_list(tree.tables, place, list_entry(position, -1))
            if tree.tables.values[place] == 0:
                forget(tree.tables, node, place)
        else:
            _unpost(tree, clauses, node, c, position)
        node, child = np.int64(tree.parents[node]), node


@lean_kernel
def _has_alone(tree, place, position):
    """Whether a list knows of clauses under an entry that have the token alone."""
    value = np.int64(tree.tables.values[place])
    for i in range(list_length(value)):
        if list_entry_at(tree.tables, value, i) == list_entry(position, -1):
            return True
    return False


@lean_kernel
def _set_bits_above(tree, node, token):
    """Let the nodes above one know that it has a token, where they hold a bit per entry."""
    parent = np.int64(tree.parents[node])
    while parent >= 0 and has_table(tree, parent):
        place = find_or_add(tree.tables, parent, token)
        bit = np.int64(1) << entry_position(tree, parent, node)
        if tree.tables.values[place] & bit != 0:
            return
        tree.tables.values[place] |= bit
        node, parent = parent, np.int64(tree.parents[parent])


@lean_kernel
def _clear_bits_above(tree, node, token):
    """Let the nodes above one know that it has lost a token."""
    parent = np.int64(tree.parents[node])
    while parent >= 0 and has_table(tree, parent):
        place = find(tree.tables, parent, token)
        tree.tables.values[place] &= ~(np.int64(1) << entry_position(tree, parent, node))
        if tree.tables.values[place] != 0:
            return
        forget(tree.tables, parent, place)
        node, parent = parent, np.int64(tree.parents[parent])


@lean_kernel
def _move_bits(tree, clauses, leaf, c, old, new):
    """Follow a clause of a leaf from one position to another, where tables hold positions."""
    tables = tree.tables
    height = tree_height(tree)
    first, last = posted_range(tree, clauses, c, height, height)
    for i in range(first, last):
        place = find(tables, leaf, posted(tree, clauses, i))
        tables.values[place] &= ~(np.int64(1) << old)
        tables.values[place] |= np.int64(1) << new


@kernel
def _refill(tree, clauses, node):
    """Fill one table, with working memory of its own."""
    if has_table(tree, node):
        size = table_size(most_tokens(tree, clauses, node))
        fill_table(tree, clauses, node, np.full(size, EMPTY, np.int32), np.empty(size, np.int64))
    else:
        drop_lists(tree, node)
        drop_table(tree.tables, node)


@lean_kernel
def _overlap_area(a, b):
    """Return the number of cells that two keys share."""
    area = np.int64(1)
    for axis in range(2):
        low = np.uint64(16 * axis)
        high = low + np.uint64(32)
        start = max(np.int64(a >> low & np.uint64(0x7FFF)), np.int64(b >> low & np.uint64(0x7FFF)))
        stop = TOP - max(
            np.int64(a >> high & np.uint64(0x7FFF)), np.int64(b >> high & np.uint64(0x7FFF))
        )
        if stop < start:
            return np.int64(0)
        area *= stop - start + 1
    return area


# ---- insertion ----------------------------------------------------------------------------------


@lean_kernel
def _choose_leaf(tree, key):
    """Descend to the leaf that grows least by the key, the smaller where that is equal."""
    stride = tree.facts[MAX_ENTRIES]
    node = tree.facts[ROOT]
    while tree.levels[node] > 0:
        start = node * stride
        best, least_growth, least_area = start, np.int64(-1), np.int64(0)
        for i in range(start, start + tree.counts[node]):
            area = key_area(tree.keys[i])
            growth = key_area(union_key(tree.keys[i], key)) - area
            if (
                least_growth < 0
                or growth < least_growth
                or (growth == least_growth and area < least_area)
            ):
                best, least_growth, least_area = i, growth, area
        node = np.int64(tree.entries[best])
    return node


@lean_kernel
def _new_node(tree, level, parent):
    """Take a node from the free ones, or the next that was never used."""
    node = tree.facts[FREE_NODE]
    if node >= 0:
        tree.facts[FREE_NODE] = tree.parents[node]
    else:
        node = tree.facts[N_NODES]
        tree.facts[N_NODES] += 1
        tree.tables.sizes[node] = 0
        tree.tables.used[node] = 0
        tree.tables.starts[node] = 0
    tree.counts[node] = 0
    tree.levels[node] = level
    tree.parents[node] = parent
    tree.n_below[node] = 0
    return node


@lean_kernel
def _free_node(tree, node):
    drop_lists(tree, node)
    drop_table(tree.tables, node)
    tree.counts[node] = 0
    tree.parents[node] = tree.facts[FREE_NODE]
    tree.facts[FREE_NODE] = node


@lean_kernel
def _add_entry(tree, node, entry, key):
    """Add an entry to a node that has room; return its position."""
    position = np.int64(tree.counts[node])
    at = np.int64(node) * tree.facts[MAX_ENTRIES] + position
    tree.entries[at] = entry
    tree.keys[at] = key
    tree.counts[node] += 1
    tree.is_changed[node] = 1
    if tree.levels[node] == 0:
        tree.leaves[entry] = node
        tree.n_below[node] += 1
    else:
        tree.parents[entry] = node
        tree.n_below[node] += tree.n_below[entry]
    return position


@lean_kernel
def _renew_keys_above(tree, node):
    """Bring the keys on the way from a node to the root up to date."""
    stride = tree.facts[MAX_ENTRIES]
    while tree.parents[node] >= 0:
        parent = np.int64(tree.parents[node])
        at = parent * stride + entry_position(tree, parent, node)
        key = union_of(tree.keys, np.int64(node) * stride, tree.counts[node])
        if tree.keys[at] == key:
            return
        tree.keys[at] = key
        node = parent


@kernel
def _deal(tree, entries, keys, left, right):
    """Deal entries out to two empty nodes: by the cut along an axis that overlaps least.

    Each side gets at least MIN_ENTRIES; ties are decided by the areas.
    """
    n, least = len(entries), tree.facts[MIN_ENTRIES]
    most = tree.facts[MAX_ENTRIES]
    best_order = np.empty(n, np.int64)
    best_cut = -1
    best_overlap = best_area = np.int64(0)
    after = np.empty(n + 1, np.uint64)
    for axis in range(2):
        centres = np.empty(n, np.int64)
        for i in range(n):
            centres[i] = key_centre(keys[i], axis)
        order = np.argsort(centres, kind="mergesort")
        after[n] = DEAD_KEY
        for i in range(n - 1, -1, -1):
            after[i] = union_key(after[i + 1], keys[order[i]])
        before = DEAD_KEY
        for i in range(1, n):
            before = union_key(before, keys[order[i - 1]])
            if i < least or n - i < least or i > most or n - i > most:
                continue
            overlap = _overlap_area(before, after[i])
            area = key_area(before) + key_area(after[i])
            if (
                best_cut < 0
                or overlap < best_overlap
                or (overlap == best_overlap and area < best_area)
            ):
                best_cut, best_overlap, best_area = i, overlap, area
                copy_part(order, 0, n, best_order, 0)
    for i in range(n):
        k = best_order[i]
        _add_entry(tree, left if i < best_cut else right, entries[k], keys[k])


@kernel
def _split(tree, clauses, node):
    """Split a full node whose parent, if any, has room; return whether the height has changed."""
    stride = tree.facts[MAX_ENTRIES]
    start = node * stride
    n = np.int64(tree.counts[node])
    entries = tree.entries[start : start + n].copy()
    keys = tree.keys[start : start + n].copy()
    level = tree.levels[node]
    parent = np.int64(tree.parents[node])
    is_root = parent < 0
    height = tree_height(tree)
    if is_root:
        parent = _new_node(tree, level + 1, -1)
        tree.facts[ROOT] = parent
    sibling = _new_node(tree, level, parent)
    drop_lists(tree, node)
    drop_table(tree.tables, node)
    tree.counts[node] = 0
    tree.n_below[node] = 0
    _deal(tree, entries, keys, node, sibling)
    own_key = union_of(tree.keys, start, tree.counts[node])
    sibling_key = union_of(tree.keys, sibling * stride, tree.counts[sibling])
    if is_root:
        _add_entry(tree, parent, node, own_key)
    else:
        at = parent * stride + entry_position(tree, parent, node)
        tree.keys[at] = own_key
        tree.n_below[parent] -= tree.n_below[sibling]  # which adding it counts again
    _add_entry(tree, parent, sibling, sibling_key)
    _refill(tree, clauses, node)
    _refill(tree, clauses, sibling)
    if tree.facts[KIND] >= LEVELS:  # positions in the parent have changed
        _refill(tree, clauses, parent)
    return tree_height(tree) != height


@lean_kernel
def _has_room_to_split(tree, clauses, node):
    """Whether the arrays have room for the two halves of a node, and a new parent's table."""
    n = 2 * most_tokens(tree, clauses, node) + 2 * np.int64(tree.tables.used[node])
    n_list = 2 * np.int64(tree.n_below[node])
    parent = tree.parents[node]
    if parent >= 0 and tree.facts[KIND] >= LEVELS:
        n += most_tokens(tree, clauses, parent)
        n_list += np.int64(tree.n_below[parent])
    return tree.facts[N_NODES] + 2 <= len(tree.counts) and has_room(tree, 2 * n, n_list)


@lean_kernel
def _has_room_to_post(tree, clauses, leaf, c):
    """Whether the tables on the way to the root have room for one more clause."""
    n_tokens = clauses.token_offsets[c + 1] - clauses.token_offsets[c]
    n = n_list = np.int64(0)
    node = leaf
    while node >= 0:
        # A table that fills up moves to one a quarter larger, several times if need be.
        n += 2 * np.int64(tree.tables.used[node]) + 8 * n_tokens + 64
        n_list += np.int64(tree.n_below[node]) + 8
        node = np.int64(tree.parents[node])
    return has_room(tree, n, n_list)


@kernel
def insert_clauses(tree, clauses, first, stop):
    """Insert clauses ``first`` to ``stop``; return how far that got, and why it stopped."""
    for c in range(first, stop):
        box = clauses.boxes[c]
        key = box_key(tree.quantizer, box[0], box[1], box[2], box[3])
        leaf = _choose_leaf(tree, key)
        while tree.counts[leaf] == tree.facts[MAX_ENTRIES]:
            # Split the topmost of the full nodes in a row, so that its parent has room.
            node = leaf
            parent = np.int64(tree.parents[node])
            while parent >= 0 and tree.counts[parent] == tree.facts[MAX_ENTRIES]:
                node = parent
                parent = np.int64(tree.parents[node])
            if not _has_room_to_split(tree, clauses, node):
                return c, NO_ROOM
            if _split(tree, clauses, node) and tree.facts[KIND] == LEVELS:
                return c, NEW_HEIGHT
            leaf = _choose_leaf(tree, key)
        if not _has_room_to_post(tree, clauses, leaf, c):
            return c, NO_ROOM
        _insert_into(tree, clauses, leaf, c, key)
    return stop, DONE


@lean_kernel
def _insert_into(tree, clauses, leaf, c, key):
    position = _add_entry(tree, leaf, c, key)
    _renew_keys_above(tree, leaf)
    node = np.int64(tree.parents[leaf])
    while node >= 0:
        tree.n_below[node] += 1
        node = np.int64(tree.parents[node])
    _post(tree, clauses, leaf, c, position)
    _post_above(tree, clauses, leaf, c)


# ---- removal ------------------------------------------------------------------------------------


@kernel
def remove_clauses(tree, clauses, rows, first):
    """Remove the clauses ``rows[first:]``; return how far that got, and why it stopped.

    A clause is removed even if there is no room to merge the leaf that it leaves too small; also
    returned is the node from which :func:`condense` has to go on.
    """
    for k in range(first, len(rows)):
        leaf = np.int64(tree.leaves[rows[k]])
        _remove_from(tree, clauses, leaf, rows[k])
        node, why = condense(tree, clauses, leaf)
        if why != DONE:
            return k + 1, node, why
    return len(rows), np.int64(-1), DONE


@lean_kernel
def _remove_from(tree, clauses, leaf, c):
    kind, stride = tree.facts[KIND], tree.facts[MAX_ENTRIES]
    position = entry_position(tree, leaf, c)
    _unpost(tree, clauses, leaf, c, position)
    _unpost_above(tree, clauses, leaf, c)
    node = np.int64(tree.parents[leaf])
    while node >= 0:
        tree.n_below[node] -= 1
        node = np.int64(tree.parents[node])
    last = np.int64(tree.counts[leaf]) - 1
    if position != last:
        moved = tree.entries[leaf * stride + last]
        if kind >= LEVELS:
            _move_bits(tree, clauses, leaf, moved, last, position)
        tree.entries[leaf * stride + position] = moved
        tree.keys[leaf * stride + position] = tree.keys[leaf * stride + last]
    tree.counts[leaf] = last
    tree.n_below[leaf] -= 1
    tree.leaves[c] = -1
    _renew_keys_above(tree, leaf)


@kernel
def condense(tree, clauses, node):
    """Merge a node that has become too small, and then its parent if need be.

    Returns the node to go on from, and why it stopped.
    """
    while tree.parents[node] >= 0 and tree.counts[node] < tree.facts[MIN_ENTRIES]:
        parent = np.int64(tree.parents[node])
        sibling = _nearest_sibling(tree, node, parent)
        if not _has_room_to_merge(tree, clauses, node, sibling, parent):
            return node, NO_ROOM
        _merge(tree, clauses, node, sibling, parent)
        node = parent
    root = tree.facts[ROOT]
    if tree.levels[root] > 0 and tree.counts[root] == 1:
        height = tree_height(tree)
        child = np.int64(tree.entries[root * tree.facts[MAX_ENTRIES]])
        tree.facts[ROOT] = child
        tree.parents[child] = -1
        _free_node(tree, root)
        if not has_table(tree, child):
            drop_lists(tree, child)
            drop_table(tree.tables, child)
        if tree_height(tree) != height and tree.facts[KIND] == LEVELS:
            return child, NEW_HEIGHT
    return node, DONE


@lean_kernel
def _has_room_to_merge(tree, clauses, node, sibling, parent):
    n = 2 * (most_tokens(tree, clauses, node) + most_tokens(tree, clauses, sibling))
    n_list = 2 * np.int64(tree.n_below[node] + tree.n_below[sibling])
    if tree.facts[KIND] >= LEVELS:
        n += 2 * most_tokens(tree, clauses, parent)
        n_list += np.int64(tree.n_below[parent])
    return has_room(tree, 2 * n, n_list)


@lean_kernel
def _nearest_sibling(tree, node, parent):
    """Return the sibling that grows least when it takes the node's entries."""
    start = parent * tree.facts[MAX_ENTRIES]
    key = tree.keys[start + entry_position(tree, parent, node)]
    best, least = np.int64(-1), np.int64(0)
    for i in range(start, start + tree.counts[parent]):
        if tree.entries[i] == node:
            continue
        growth = key_area(union_key(tree.keys[i], key)) - key_area(tree.keys[i])
        if best < 0 or growth < least:
            best, least = np.int64(tree.entries[i]), growth
    return best


@kernel
def _merge(tree, clauses, node, sibling, parent):
    """Put the entries of two children of a node into one, or share them out if they are many."""
    stride = tree.facts[MAX_ENTRIES]
    own = np.int64(tree.counts[node])
    others = np.int64(tree.counts[sibling])
    entries = np.empty(own + others, np.int32)
    keys = np.empty(own + others, np.uint64)
    for each, n, at in ((node, own, 0), (sibling, others, own)):
        copy_part(tree.entries, each * stride, each * stride + n, entries, at)
        copy_part(tree.keys, each * stride, each * stride + n, keys, at)
    for each in (node, sibling):
        drop_lists(tree, each)
        drop_table(tree.tables, each)
        tree.counts[each] = 0
        tree.n_below[each] = 0
    if own + others > stride:
        _deal(tree, entries, keys, node, sibling)
        _refill(tree, clauses, node)
        at = parent * stride + entry_position(tree, parent, node)
        tree.keys[at] = union_of(tree.keys, node * stride, tree.counts[node])
    else:
        for i in range(own + others):
            _add_entry(tree, sibling, entries[i], keys[i])
        position = entry_position(tree, parent, node)
        last = np.int64(tree.counts[parent]) - 1
        tree.entries[parent * stride + position] = tree.entries[parent * stride + last]
        tree.keys[parent * stride + position] = tree.keys[parent * stride + last]
        tree.counts[parent] = last
        _free_node(tree, node)
    _refill(tree, clauses, sibling)
    at = parent * stride + entry_position(tree, parent, sibling)
    tree.keys[at] = union_of(tree.keys, sibling * stride, tree.counts[sibling])
    _renew_keys_above(tree, parent)
    if tree.facts[KIND] >= LEVELS:  # positions in the parent have changed
        _refill(tree, clauses, parent)
