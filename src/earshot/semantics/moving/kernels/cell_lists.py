"""Subscriptions and live messages in lists by cell and word: SS-Index, KK-Index, IQ+, RQ+.

[VLDBJ15] section 5.2.1 describes four rivals of the AP+-Tree in words. A subscription stands in
lists of its *key*, its rarest word, in the cells that cover its region; a message stands in lists
of all its words in all cells in which a subscription of that word could stand. What differs are
two choices:

- *cells*: those of a grid, all that the region touches (SS, KK); or those of a quadtree, which the
  cost model of the IQ-Tree chooses anew at each move (IQ+, RQ+);
- *order*: the lists of a cell form a group (SS, IQ+), or the lists of a word do (KK, RQ+). An empty
  group is passed over. A group of words is gone through where it has fewer lists than the region
  has cells.

Levels of cells are numbered from 0. A grid is one level; a quadtree has level d with 2^d columns.
The cost model divides a cell for a key only where messages with that key verify more than an entry
costs; so a message stands on a level below the first only where its word is that frequent around.

As in Algorithm 6, a cell that lies within both the old and the new region is passed over. Messages
that have ended stay in lists until as many entries are dead as alive; then all are swept. What
would stand in too many lists stands in one list that is always gone through, that of *wide* things.

============== ============== ======= ===========================================================
array          shape          dtype   meaning
============== ============== ======= ===========================================================
facts          N_FACTS        int64   see below
rules          N_RULES        float64 see below
frame          4              float64 see :mod:`earshot.indexes.quadtree.kernels.cells`
level_columns  n_levels       int64   columns of cells, as many as rows
level_firsts   n_levels       int64   number of the first cell
shares         n_tokens       float64 share of messages that have a token, as of the last building
hits           N_HITS or 0    float64 share of messages that touch a cell; the same
list_lengths   n_tokens       int32   alternatives whose key a token is
clause_tokens  n_clauses      int32   key of each alternative
slot_grids     n_slots, 4     int32   columns and rows of the frame that a region touches; the first
                                      is -1 where it stands in the list of wide things
row_entries    n_rows         int32   entries of a message
subscriptions                         lists of alternatives, with bits of their words
messages                              lists of rows
cells          MOST_ENTRIES   int64   working memory: cells of a region
old_cells      MOST_ENTRIES   int64   the same
choice                                working memory of the cost model
============== ============== ======= ===========================================================
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from earshot.indexes.iq_tree.kernels.cost import Choice, cell_number, choose_cells, hit_of
from earshot.indexes.quadtree.kernels.cells import (
    BITS,
    cell_column,
    cell_depth,
    cell_row,
    grid_box,
    pack_cell,
)
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.model.arrays import Float64s, Int32s, Int64s
from earshot.semantics.moving.kernels.arrays import (
    LIVE,
    N_ROWS,
)
from earshot.semantics.moving.kernels.hashed_lists import (
    N_ENTRIES,
    HashedLists,
    add_entry,
    drop_entry,
    has_room_for,
    message_entry,
    pair_key,
    sweep_lists,
)
from earshot.semantics.moving.kernels.lists import rarest_token

IS_BY_WORD, IS_TREE, POSTING_COST, MAX_DEPTH, N_CELL_RULES = range(5)
"""Rules: whether the lists of a word form a group, else those of a cell do; whether cells are those
of a quadtree; and for these, cost of an entry in verifications, depth of the smallest."""

N_DEAD, N_PUT, N_SEEN, N_SEEN_BEFORE, N_CELL_FACTS = range(5)
"""Facts: entries of messages that have ended; alternatives that came and messages seen since all
was built; messages seen by then."""

MOST_ENTRIES = 1024
"""What would have more entries is wide."""
_FEW_DEAD = 1024
WIDE = np.int64(0)
PRINT = np.uint64(0x7FFFFFFF)
_SHIFT = np.uint64(33)


class CellListsArrays(NamedTuple):
    """Two hashes of lists, and which cells there are."""

    facts: Int64s
    rules: Float64s
    frame: Float64s
    level_columns: Int64s
    level_firsts: Int64s
    shares: Float64s
    hits: Float64s
    list_lengths: Int32s
    clause_tokens: Int32s
    slot_grids: Int32s
    row_entries: Int32s
    subscriptions: HashedLists
    messages: HashedLists
    cells: Int64s
    old_cells: Int64s
    choice: Choice


@lean_kernel
def has_room_cells(structure, tables, n):
    """Whether one more message and a subscription have room."""
    n_tokens = len(tables.messages.n_having)
    return (
        has_room_for(structure.subscriptions, MOST_ENTRIES)
        and has_room_for(structure.messages, MOST_ENTRIES)
        and len(structure.shares) >= n_tokens
        and (structure.rules[IS_BY_WORD] == 0 or len(structure.messages.group_heads) > n_tokens)
        and len(structure.clause_tokens) >= len(tables.subscribers.clause_slots)
        and len(structure.slot_grids) >= len(tables.subscribers.flags)
        and len(structure.row_entries) >= len(tables.messages.ends)
    )


# ---- cells ---------------------------------------------------------------------------------------


@inlined_kernel
def list_key(structure, cell, token):
    """Return the key of the list of a cell and a word."""
    if structure.rules[IS_BY_WORD] != 0:
        return pair_key(np.int64(token) + 1, cell)
    return pair_key(cell + 1, np.int64(token))


@inlined_kernel
def region_grid(structure, boxes, at):
    """Return first column, first row, last column and last row of the frame of a region's boxes."""
    min_x, max_x = boxes[at, 0], boxes[at, 2]
    if boxes[at, 4] <= boxes[at, 6]:  # on both sides of the antimeridian
        min_x, max_x = -np.inf, np.inf
    return grid_box(structure.frame, min_x, boxes[at, 1], max_x, boxes[at, 3])


@inlined_kernel
def message_grid(structure, messages, row):
    """Return first column, first row, last column and last row of the frame of a message's box."""
    min_x, max_x = messages.boxes[row, 0], messages.boxes[row, 2]
    if min_x > max_x:  # across the antimeridian
        min_x, max_x = -np.inf, np.inf
    return grid_box(structure.frame, min_x, messages.boxes[row, 1], max_x, messages.boxes[row, 3])


@inlined_kernel
def on_level(grid, n_columns):
    """Return first column, first row, last column and last row of cells."""
    return (
        grid[0] * n_columns >> BITS,
        grid[1] * n_columns >> BITS,
        grid[2] * n_columns >> BITS,
        grid[3] * n_columns >> BITS,
    )


@inlined_kernel
def n_cells_on(span):
    """Return how many cells there are from a first column and row to the last ones."""
    return (span[2] - span[0] + 1) * (span[3] - span[1] + 1)


@inlined_kernel
def is_on(span, column, row):
    """Whether a cell lies from a first column and row to the last ones."""
    return span[0] <= column <= span[2] and span[1] <= row <= span[3]


@inlined_kernel
def may_stand(structure, token, level, column, row):
    """Whether a subscription with that key could stand in a cell: that above may be divided."""
    if level == 0:
        return True
    above = pack_cell(level - 1, column >> 1, row >> 1)
    return structure.shares[token] * hit_of(structure.hits, above) > structure.rules[POSTING_COST]


@lean_kernel
def cells_of(structure, token, grid, cells):
    """Choose the cells of a region for a key; return how many, if need be more than have room."""
    if structure.rules[IS_TREE] == 0:
        n_columns = structure.level_columns[0]
        span = on_level(grid, n_columns)
        n = n_cells_on(span)
        if n <= len(cells):
            at = 0
            for row in range(span[1], span[3] + 1):
                for column in range(span[0], span[2] + 1):
                    cells[at] = row * n_columns + column
                    at += 1
        return n
    rules, choice = structure.rules, structure.choice
    n = choose_cells(
        structure.hits, structure.shares[token], rules[POSTING_COST], np.int64(rules[MAX_DEPTH]),
        grid, choice,
    )  # fmt: skip
    for i in range(n):
        cell = choice.cells[i]
        cells[i] = cell_number(cell_depth(cell), cell_column(cell), cell_row(cell))
    return n


@inlined_kernel
def is_among(structure, cell, grid, cells, n):
    """Whether a cell is one of those of a region, chosen before."""
    if structure.rules[IS_TREE] == 0:
        n_columns = structure.level_columns[0]
        return is_on(on_level(grid, n_columns), cell % n_columns, cell // n_columns)
    for i in range(n):
        if cells[i] == cell:
            return True
    return False


@inlined_kernel
def cell_at(structure, cell):
    """Return columns of its level, column and row of a cell."""
    level = len(structure.level_firsts) - 1
    while structure.level_firsts[level] > cell:
        level -= 1
    n_columns, number = structure.level_columns[level], cell - structure.level_firsts[level]
    return n_columns, number % n_columns, number // n_columns


# ---- subscriptions -------------------------------------------------------------------------------


@inlined_kernel
def print_of(words):
    """Return some of the bits of words, for the upper half of an entry."""
    return np.int64((words | words >> _SHIFT) & PRINT)


@inlined_kernel
def _clause_entry(subscribers, clause):
    return print_of(subscribers.clause_words[clause]) << 32 | clause


@lean_kernel
def _is_wide(structure, subscribers, slot, grid):
    """Whether a subscription would have too many entries."""
    n = 0
    for clause in range(subscribers.clause_offsets[slot], subscribers.clause_offsets[slot + 1]):
        n += cells_of(structure, structure.clause_tokens[clause], grid, structure.cells)
        if n > MOST_ENTRIES:
            return True
    return False


@lean_kernel
def _put_at(structure, subscribers, slot, grid):
    """Let a subscription that stands nowhere stand where it is."""
    is_wide = _is_wide(structure, subscribers, slot, grid)
    for k in range(4):
        structure.slot_grids[slot, k] = grid[k]
    if is_wide:
        structure.slot_grids[slot, 0] = -1
    for clause in range(subscribers.clause_offsets[slot], subscribers.clause_offsets[slot + 1]):
        entry = _clause_entry(subscribers, clause)
        if is_wide:
            add_entry(structure.subscriptions, WIDE, entry)
            continue
        token = structure.clause_tokens[clause]
        for i in range(cells_of(structure, token, grid, structure.cells)):
            key = list_key(structure, structure.cells[i], token)
            add_entry(structure.subscriptions, key, entry)


@inlined_kernel
def _held_grid(structure, slot):
    grids = structure.slot_grids
    return (
        np.int64(grids[slot, 0]),
        np.int64(grids[slot, 1]),
        np.int64(grids[slot, 2]),
        np.int64(grids[slot, 3]),
    )


@lean_kernel
def _take_out(structure, subscribers, slot):
    grid = _held_grid(structure, slot)
    for clause in range(subscribers.clause_offsets[slot], subscribers.clause_offsets[slot + 1]):
        if grid[0] < 0:
            drop_entry(structure.subscriptions, WIDE, clause)
            continue
        token = structure.clause_tokens[clause]
        for i in range(cells_of(structure, token, grid, structure.old_cells)):
            key = list_key(structure, structure.old_cells[i], token)
            drop_entry(structure.subscriptions, key, clause)


@lean_kernel
def put_slot_cells(structure, tables, slot):
    """Take a subscription in."""
    subscribers = tables.subscribers
    for clause in range(subscribers.clause_offsets[slot], subscribers.clause_offsets[slot + 1]):
        token = rarest_token(structure, subscribers, tables.messages, clause)
        structure.clause_tokens[clause] = token
        structure.list_lengths[token] += 1
        structure.facts[N_PUT] += 1
    grid = region_grid(structure, subscribers.regions.boxes, slot)
    _put_at(structure, subscribers, slot, grid)
    return True


@lean_kernel
def drop_slot_cells(structure, tables, slot):
    """Forget a subscription."""
    subscribers = tables.subscribers
    _take_out(structure, subscribers, slot)
    for clause in range(subscribers.clause_offsets[slot], subscribers.clause_offsets[slot + 1]):
        structure.list_lengths[structure.clause_tokens[clause]] -= 1


@lean_kernel
def moved_slot_cells(structure, tables, slot):
    """Choose the cells of a subscription anew, and let it stand in these."""
    subscribers = tables.subscribers
    grid = region_grid(structure, subscribers.regions.boxes, slot)
    old = _held_grid(structure, slot)
    if grid == old:
        return True
    if not has_room_for(structure.subscriptions, MOST_ENTRIES):
        return False
    if old[0] < 0 or _is_wide(structure, subscribers, slot, grid):
        _take_out(structure, subscribers, slot)
        _put_at(structure, subscribers, slot, grid)
        return True
    cells, old_cells, lists = structure.cells, structure.old_cells, structure.subscriptions
    for clause in range(subscribers.clause_offsets[slot], subscribers.clause_offsets[slot + 1]):
        token = structure.clause_tokens[clause]
        n_old = cells_of(structure, token, old, old_cells)
        n = cells_of(structure, token, grid, cells)
        for i in range(n_old):
            if not is_among(structure, old_cells[i], grid, cells, n):
                drop_entry(lists, list_key(structure, old_cells[i], token), clause)
        entry = _clause_entry(subscribers, clause)
        for i in range(n):
            if not is_among(structure, cells[i], old, old_cells, n_old):
                add_entry(lists, list_key(structure, cells[i], token), entry)
    for k in range(4):
        structure.slot_grids[slot, k] = grid[k]
    return True


@inlined_kernel
def foresee_slot_cells(structure, tables, slot, step):
    """Nothing is asked for ahead."""


# ---- messages ------------------------------------------------------------------------------------


@lean_kernel
def _n_entries(structure, messages, row, grid):
    """Return how many lists a message stands in; more than there is room for, if it is wide."""
    start, n = messages.token_starts[row], 0
    for level in range(len(structure.level_columns)):
        span = on_level(grid, structure.level_columns[level])
        if n + n_cells_on(span) > MOST_ENTRIES:
            return MOST_ENTRIES + 1
        before = n
        for cell_y in range(span[1], span[3] + 1):
            for cell_x in range(span[0], span[2] + 1):
                for i in range(start, start + messages.n_tokens[row]):
                    n += may_stand(structure, messages.tokens[i], level, cell_x, cell_y)
        if n > MOST_ENTRIES or n == before:
            break
    return n


@lean_kernel
def put_message_cells(structure, tables, row):
    """Take a message in."""
    messages = tables.messages
    grid = message_grid(structure, messages, row)
    n = _n_entries(structure, messages, row, grid)
    entry = message_entry(messages, row)
    structure.row_entries[row] = n
    if n > MOST_ENTRIES:
        structure.row_entries[row] = 1
        add_entry(structure.messages, WIDE, entry)
        return
    start = messages.token_starts[row]
    for level in range(len(structure.level_columns)):
        span = on_level(grid, structure.level_columns[level])
        before = n
        for cell_y in range(span[1], span[3] + 1):
            for cell_x in range(span[0], span[2] + 1):
                cell = structure.level_firsts[level]
                cell += cell_y * structure.level_columns[level] + cell_x
                for i in range(start, start + messages.n_tokens[row]):
                    token = messages.tokens[i]
                    if may_stand(structure, token, level, cell_x, cell_y):
                        add_entry(structure.messages, list_key(structure, cell, token), entry)
                        n -= 1
        if n == before:
            break


@lean_kernel
def drop_message_cells(structure, tables, row):
    """Forget a message: its entries are dead from now on."""
    facts = structure.facts
    n_alive = structure.messages.list_facts[N_ENTRIES] - facts[N_DEAD]
    if facts[N_DEAD] > max(_FEW_DEAD, n_alive):
        sweep_lists(structure.messages, tables.messages)
        facts[N_DEAD] = 0
    facts[N_DEAD] += structure.row_entries[row]


# ---- building ------------------------------------------------------------------------------------


@lean_kernel
def fill_slots(structure, tables, first):
    """Take the live subscriptions in from a slot on; return the first that has no room."""
    flags = tables.subscribers.flags
    for slot in range(first, len(flags)):
        if flags[slot] & LIVE != 0:
            if not has_room_cells(structure, tables, 0):
                return slot
            put_slot_cells(structure, tables, slot)
    return len(flags)


@lean_kernel
def fill_rows(structure, tables, first):
    """Take the live messages in from a row on; return the first that has no room."""
    messages = tables.messages
    for row in range(first, messages.facts[N_ROWS]):
        if messages.sequences[row] >= 0:
            if not has_room_cells(structure, tables, 0):
                return row
            put_message_cells(structure, tables, row)
    return messages.facts[N_ROWS]
