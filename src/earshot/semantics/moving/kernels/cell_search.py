"""How messages and subscriptions find each other in lists by cell and word."""

from __future__ import annotations

import numpy as np

from earshot.indexes.quadtree.kernels.cells import grid_box
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.semantics.moving.kernels.arrays import (
    N_ENTERED,
    N_FOUND,
    N_NODES,
)
from earshot.semantics.moving.kernels.cell_lists import (
    IS_BY_WORD,
    IS_TREE,
    N_SEEN,
    PRINT,
    WIDE,
    cell_at,
    cells_of,
    drop_message_cells,
    drop_slot_cells,
    foresee_slot_cells,
    has_room_cells,
    is_among,
    is_on,
    list_key,
    may_stand,
    message_grid,
    moved_slot_cells,
    n_cells_on,
    on_level,
    print_of,
    put_message_cells,
    put_slot_cells,
    region_grid,
)
from earshot.semantics.moving.kernels.comparing import note_entry, note_holder
from earshot.semantics.moving.kernels.hashed_lists import (
    BLOCK,
    entry_name,
    find_list,
)
from earshot.semantics.moving.kernels.reaches import find_reach_by_scan

# ---- a message looks for subscriptions -----------------------------------------------------------


@inlined_kernel
def find_cells(structure, tables, scratch, row):
    """Find the subscriptions that hold a message, whose tokens are marked."""
    messages, lists = tables.messages, structure.subscriptions
    scratch.counts[N_FOUND] = 0
    structure.facts[N_SEEN] += 1
    grid = message_grid(structure, messages, row)
    _verify_list(structure, tables, scratch, row, find_list(lists, WIDE))
    start = messages.token_starts[row]
    stop = start + messages.n_tokens[row]
    if structure.rules[IS_BY_WORD] == 0:
        _find_in_cells(structure, tables, scratch, row, grid, start, stop)
        return
    n_cells = 0
    for level in range(len(structure.level_columns)):
        n_cells += n_cells_on(on_level(grid, structure.level_columns[level]))
    for i in range(start, stop):
        group = np.int64(messages.tokens[i]) + 1
        if lists.group_sizes[group] > n_cells:
            _find_in_cells(structure, tables, scratch, row, grid, i, i + 1)
            continue
        number = np.int64(lists.group_heads[group])
        while number >= 0:
            n_columns, x, y = cell_at(structure, entry_name(lists.list_keys[number]))
            if is_on(on_level(grid, n_columns), x, y):
                _verify_list(structure, tables, scratch, row, number)
            number = np.int64(lists.list_next[number])


@lean_kernel
def _find_in_cells(structure, tables, scratch, row, grid, start, stop):
    """Go through the lists of some tokens of a message in all cells that it touches."""
    messages, lists = tables.messages, structure.subscriptions
    is_by_word = structure.rules[IS_BY_WORD] != 0
    for level in range(len(structure.level_columns)):
        n_columns = structure.level_columns[level]
        span = on_level(grid, n_columns)
        for cell_y in range(span[1], span[3] + 1):
            for cell_x in range(span[0], span[2] + 1):
                cell = structure.level_firsts[level] + cell_y * n_columns + cell_x
                if not is_by_word and lists.group_sizes[cell + 1] == 0:
                    continue
                for i in range(start, stop):
                    token = messages.tokens[i]
                    if may_stand(structure, token, level, cell_x, cell_y):
                        number = find_list(lists, list_key(structure, cell, token))
                        _verify_list(structure, tables, scratch, row, number)


@inlined_kernel
def _verify_list(structure, tables, scratch, row, number):
    """Compare a message with the alternatives of a list."""
    if number < 0:
        return
    lists = structure.subscriptions
    scratch.counts[N_NODES] += 1
    lacking = print_of(tables.messages.words[row]) ^ np.int64(PRINT)
    size, block, at = lists.lists[number, 1], lists.lists[number, 0], np.int64(0)
    in_block = (size - 1) % BLOCK + 1
    while at < size:
        for k in range(in_block):
            entry = block if size == 1 else lists.block_entries[block * BLOCK + k]
            if entry >> 32 & lacking == 0:
                note_holder(tables, scratch, row, entry_name(entry))
        at += in_block
        if at < size:
            block, in_block = np.int64(lists.block_next[block]), BLOCK


# ---- a subscription looks for messages -----------------------------------------------------------


@inlined_kernel
def search_cells(structure, tables, scratch, slot):
    """Find the messages that one of the two regions of the query holds, and the other does not."""
    subscribers, counts, lists = tables.subscribers, scratch.counts, structure.messages
    counts[N_FOUND] = counts[N_ENTERED] = 0
    boxes, inner = scratch.query.regions.boxes, scratch.query.inner
    new, old = region_grid(structure, boxes, 1), region_grid(structure, boxes, 0)
    if boxes[0, 0] > boxes[0, 2]:
        old = new  # it was nowhere
    elif boxes[1, 0] > boxes[1, 2]:
        new = old
    # What touches a cell between these columns and rows touches what both regions hold as a whole.
    both = grid_box(
        structure.frame, max(inner[0, 0], inner[1, 0]), max(inner[0, 1], inner[1, 1]),
        min(inner[0, 2], inner[1, 2]), min(inner[0, 3], inner[1, 3]),
    )  # fmt: skip
    _look_through(structure, tables, scratch, slot, find_list(lists, WIDE))
    for clause in range(subscribers.clause_offsets[slot], subscribers.clause_offsets[slot + 1]):
        token = np.int64(structure.clause_tokens[clause])
        if structure.rules[IS_BY_WORD] != 0 and lists.group_sizes[token + 1] == 0:
            continue
        if structure.rules[IS_TREE] != 0:
            _search_tree(structure, tables, scratch, slot, token, new, old, both)
        else:
            _search_grid(structure, tables, scratch, slot, token, new, old, both)


@lean_kernel
def _search_grid(structure, tables, scratch, slot, token, new, old, both):
    """Go through the lists of a word in the cells of two regions."""
    lists, n_columns = structure.messages, structure.level_columns[0]
    new_cells, old_cells = on_level(new, n_columns), on_level(old, n_columns)
    within = on_level(both, n_columns)
    n_lists = lists.group_sizes[token + 1] if structure.rules[IS_BY_WORD] != 0 else 0
    if n_lists > 0 and n_lists < n_cells_on(new_cells):
        number = np.int64(lists.group_heads[token + 1])
        while number >= 0:
            cell = entry_name(lists.list_keys[number])
            x, y = cell % n_columns, cell // n_columns
            if (is_on(new_cells, x, y) or is_on(old_cells, x, y)) and not _is_inside(within, x, y):
                _look_through(structure, tables, scratch, slot, number)
            number = np.int64(lists.list_next[number])
        return
    for which in range(2):
        cells = new_cells if which == 0 else old_cells
        for y in range(cells[1], cells[3] + 1):
            for x in range(cells[0], cells[2] + 1):
                if _is_inside(within, x, y) or (which == 1 and is_on(new_cells, x, y)):
                    continue
                cell = y * n_columns + x
                number = find_list(lists, list_key(structure, cell, token))
                _look_through(structure, tables, scratch, slot, number)
        if old == new:
            break


@inlined_kernel
def _is_inside(within, x, y):
    """Whether a cell lies between columns and rows."""
    return within[0] < x < within[2] and within[1] < y < within[3]


@lean_kernel
def _search_tree(structure, tables, scratch, slot, token, new, old, both):
    """Go through the lists of a word in the cells that two regions are attached to."""
    lists, cells, old_cells = structure.messages, structure.cells, structure.old_cells
    n = cells_of(structure, token, new, cells)
    n_old = 0 if old == new else cells_of(structure, token, old, old_cells)
    for i in range(n + n_old):
        cell = cells[i] if i < n else old_cells[i - n]
        if i >= n and is_among(structure, cell, new, cells, n):
            continue
        n_columns, x, y = cell_at(structure, cell)
        if not _is_inside(on_level(both, n_columns), x, y):
            number = find_list(lists, list_key(structure, cell, token))
            _look_through(structure, tables, scratch, slot, number)


@lean_kernel
def _look_through(structure, tables, scratch, slot, number):
    """Compare the messages of a list with the query."""
    if number < 0:
        return
    lists = structure.messages
    scratch.counts[N_NODES] += 1
    size, block, at = lists.lists[number, 1], lists.lists[number, 0], np.int64(0)
    in_block = (size - 1) % BLOCK + 1
    while at < size:
        for k in range(in_block):
            entry = block if size == 1 else lists.block_entries[block * BLOCK + k]
            note_entry(tables, scratch, slot, entry)
        at += in_block
        if at < size:
            block, in_block = np.int64(lists.block_next[block]), BLOCK


KERNELS = (
    has_room_cells, find_cells, search_cells, put_message_cells, drop_message_cells, put_slot_cells,
    drop_slot_cells, moved_slot_cells, foresee_slot_cells, find_reach_by_scan,
)  # fmt: skip
"""In the order of :mod:`earshot.semantics.moving.kernels.structures`."""
