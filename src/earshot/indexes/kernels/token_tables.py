"""Hash tables of tokens, one per node of a tree, in shared arrays; and lists that hang off them.

A node's table is a stretch of ``tokens`` and ``values``, probed linearly from the token's home. One
that outgrows its stretch moves to the end of the arrays; what it leaves is garbage until the owner
of the arrays packs them. Nothing here allocates: callers see to it that there is room.

A value is whatever the tree makes of it: a count, a bit per entry of a leaf, or a *list*, whose
start in ``lists`` and length are packed into one integer; a single entry stands in the value
itself. An entry of a list is a row in its low bits and a group above them; lists are in the order
of the groups, and a row 0 comes first in its group. The room of a list follows from its length, in
steps of about a fifth, so nothing need be stored about it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.kernels.blocks import has_token
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.model.arrays import Int32s, Int64s

EMPTY = np.int32(-(2**31))
"""Marks a free place of a table; no token, and no complement of one, is that."""

# Places of ``ends``.
TABLE_END, TABLE_GARBAGE, LIST_END, LIST_GARBAGE = range(4)

ROW_BITS = 26
"""Bits of the row in an entry of a list; the group has the others."""
ROW_MASK = np.int64((1 << ROW_BITS) - 1)

FIRST_LIST = 1
"""Where the first list begins, so that the value 0 is no list."""

_LENGTH = np.int64(0xFFFFFFFF)
_SINGLE = np.int64(1) << 62
_GOLDEN = np.uint64(2654435769)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


class TokenTables(NamedTuple):
    """Tables of all nodes, and the lists that their values may point to."""

    starts: Int64s  # (n_nodes,) first place of the node's table
    sizes: Int32s  # (n_nodes,) places of it
    used: Int32s  # (n_nodes,) places taken
    tokens: Int32s  # (n_places,) EMPTY where a place is free
    values: npt.NDArray[Any]  # (n_places,) 32-bit where they are counts, else 64-bit integers
    lists: Int32s  # (n_list_places,)
    ends: Int64s  # (4,) places in use so far, garbage among them; the same of the lists


@lean_kernel
def table_size(n):
    """Return the places of a new table for ``n`` tokens: four fifths full, never all full."""
    return n + n // 4 + 1 if n > 0 else 0


@lean_kernel
def _home(token, size):
    mixed = np.uint64(np.uint32(token)) * _GOLDEN & _LOW_HALF
    return np.int64(mixed * np.uint64(size) >> _HALF)


@lean_kernel
def probe(tokens, start, size, token):
    """Return the place of a token in a table, or ``~place`` of the free one where it would go."""
    place = _home(token, size)
    while True:
        found = tokens[start + place]
        if found == token:
            return start + place
        if found == EMPTY:
            return ~(start + place)
        place += 1
        if place == size:
            place = np.int64(0)


@lean_kernel
def find(tables, node, token):
    """Return the place of a token in a node's table, negative where it has none."""
    size = np.int64(tables.sizes[node])
    if size == 0:
        return np.int64(-1)
    return probe(tables.tokens, tables.starts[node], size, token)


@lean_kernel
def new_table(tables, node, n):
    """Give a node an empty table for ``n`` tokens, at the end of the arrays."""
    drop_table(tables, node)
    start, size = tables.ends[TABLE_END], table_size(n)
    tables.starts[node] = start
    tables.sizes[node] = size
    tables.ends[TABLE_END] += size
    for place in range(start, start + size):
        tables.tokens[place] = EMPTY


@lean_kernel
def drop_table(tables, node):
    """Take a node's table away; its lists must be dropped before."""
    tables.ends[TABLE_GARBAGE] += tables.sizes[node]
    tables.sizes[node] = 0
    tables.used[node] = 0


@lean_kernel
def find_or_add(tables, node, token):
    """Return the place of a token in a node's table; a new one has the value 0."""
    size = np.int64(tables.sizes[node])
    start = tables.starts[node]
    place = np.int64(-1)
    if size > 0:
        place = probe(tables.tokens, start, size, token)
        if place >= 0:
            return place
    n_used = np.int64(tables.used[node])
    if n_used + 2 + size // 8 > size:
        _move_table(tables, node, n_used + n_used // 4 + 2)
        place = probe(tables.tokens, tables.starts[node], np.int64(tables.sizes[node]), token)
    place = ~place
    tables.tokens[place] = token
    tables.values[place] = 0
    tables.used[node] += 1
    return place


@lean_kernel
def _move_table(tables, node, n):
    """Move a table to the end of the arrays, with room for ``n`` tokens."""
    old_start, old_size = tables.starts[node], np.int64(tables.sizes[node])
    n_used = tables.used[node]
    new_table(tables, node, n)
    start, size = tables.starts[node], np.int64(tables.sizes[node])
    for old in range(old_start, old_start + old_size):
        token = tables.tokens[old]
        if token != EMPTY:
            place = ~probe(tables.tokens, start, size, token)
            tables.tokens[place] = token
            tables.values[place] = tables.values[old]
    tables.used[node] = n_used


@lean_kernel
def forget(tables, node, place):
    """Free a place of a node's table; later tokens of the same run close up."""
    start, size = tables.starts[node], np.int64(tables.sizes[node])
    hole = place - start
    place = hole
    while True:
        place += 1
        if place == size:
            place = np.int64(0)
        token = tables.tokens[start + place]
        if token == EMPTY:
            break
        home = _home(token, size)
        # The token stays if its home lies cyclically after the hole, up to where it stands.
        if (home - hole - 1) % size < (place - hole) % size:
            continue
        tables.tokens[start + hole] = token
        tables.values[start + hole] = tables.values[start + place]
        hole = place
    tables.tokens[start + hole] = EMPTY
    tables.used[node] -= 1


# ---- lists --------------------------------------------------------------------------------------


@lean_kernel
def list_room(length):
    """Return the places of a list of that length: 0 for 1, then the next of 2, …, 8, 10, 12, …."""
    if length < 2:
        return np.int64(0)
    step = np.int64(1)
    while step * 8 < length:
        step *= 2
    return (length + step - 1) // step * step


@lean_kernel
def list_start(value):
    """Return where a list of several entries begins."""
    return np.int64(value) >> 32


@lean_kernel
def list_length(value):
    """Return how many entries a list has."""
    return np.int64(1) if value & _SINGLE != 0 else np.int64(value) & _LENGTH


@lean_kernel
def list_entry_at(tables, value, i):
    """Return the i-th entry of a list."""
    if value & _SINGLE != 0:
        return np.int32(value & _LENGTH)
    return tables.lists[list_start(value) + i]


@lean_kernel
def new_list(tables, length):
    """Return the value of an empty list with room for ``length`` entries."""
    if length < 2:
        return np.int64(0)
    start = tables.ends[LIST_END]
    tables.ends[LIST_END] += list_room(length)
    return start << 32


@lean_kernel
def append_to_list(tables, place, entry):
    """Add an entry at the end of a list that was made with room for it."""
    value = np.int64(tables.values[place])
    if value == 0:
        tables.values[place] = _single(entry)
        return
    tables.lists[list_start(value) + list_length(value)] = entry
    tables.values[place] = value + 1


@lean_kernel
def _single(entry):
    return _SINGLE | (np.int64(entry) & _LENGTH)


@lean_kernel
def first_not_below(lists, start, stop, entry):
    """Return the first place of a stretch of a list whose entry is not below another, unsigned.

    That tells groups apart; within a group entries have no order.
    """
    wanted = np.uint32(entry)
    while start < stop:
        middle = (start + stop) >> 1
        if np.uint32(lists[middle]) < wanted:
            start = middle + 1
        else:
            stop = middle
    return start


@lean_kernel
def _place_in_list(tables, value, entry):
    """Return how many entries of a list come before one that is added or is there."""
    is_first = np.int64(entry) & ROW_MASK == 0
    wanted = np.int64(entry) if is_first else np.int64(entry) | ROW_MASK
    length = list_length(value)
    if length < 2:
        before = length == 1 and np.uint32(list_entry_at(tables, value, 0)) < np.uint32(wanted)
        return np.int64(before)
    start = list_start(value)
    return first_not_below(tables.lists, start, start + length, wanted) - start


@lean_kernel
def add_to_list(tables, place, entry):
    """Add an entry to the list of a place, which may have none yet."""
    value = np.int64(tables.values[place])
    if list_length(value) == 0:
        tables.values[place] = _single(entry)
    else:
        insert_into_list(tables, place, _place_in_list(tables, value, entry), entry)


@lean_kernel
def insert_into_list(tables, place, at, entry):
    """Put an entry behind the first ``at`` of the list of a place, which has some."""
    value = np.int64(tables.values[place])
    length, start = list_length(value), list_start(value)
    if list_room(length + 1) > list_room(length):
        start = list_start(new_list(tables, length + 1))
        tables.ends[LIST_GARBAGE] += list_room(length)
        for i in range(at):
            tables.lists[start + i] = list_entry_at(tables, value, i)
    for i in range(length - 1, at - 1, -1):
        tables.lists[start + i + 1] = list_entry_at(tables, value, i)
    tables.lists[start + at] = entry
    tables.values[place] = (start << 32) | (length + 1)


@lean_kernel
def take_from_list(tables, place, entry):
    """Remove an entry from the list of a place."""
    value = np.int64(tables.values[place])
    length, start = list_length(value), list_start(value)
    tables.ends[LIST_GARBAGE] += list_room(length) - list_room(length - 1)
    if length == 1:
        tables.values[place] = 0
        return
    at = first_not_below(tables.lists, start, start + length, np.int64(entry) & ~ROW_MASK)
    while tables.lists[at] != entry:
        at += 1
    for i in range(at, start + length - 1):
        tables.lists[i] = tables.lists[i + 1]
    if length == 2:
        tables.values[place] = _single(tables.lists[start])
    else:
        tables.values[place] = (start << 32) | (length - 1)


# ---- looking for the tokens of a message ---------------------------------------------------------


@inlined_kernel
def place_in_turn(tables, node, message_tokens, k, scratch):
    """Return the k-th place of a node's table that may hold a token of the message, or -1.

    Goes through the message's tokens, or through the table if that is shorter; :func:`n_turns`
    says up to which ``k``.
    """
    size = np.int64(tables.sizes[node])
    if len(message_tokens) <= size:
        return find(tables, node, message_tokens[k])
    place = tables.starts[node] + k
    token = tables.tokens[place]
    if token != EMPTY and has_token(token, scratch.signature, scratch.marks):
        return place
    return np.int64(-1)


@inlined_kernel
def n_turns(tables, node, message_tokens):
    """Return how many places there are to look at."""
    return min(len(message_tokens), np.int64(tables.sizes[node]))
