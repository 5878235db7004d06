"""Lists of entries that are found by a pair of numbers: a *group*, and a member of it.

A hash of open addresses leads from the pair to the list. The lists of a group form a chain. The
only entry of a list stands in the list itself; more than one stand in blocks of eight, of which
only the first is not full. An entry has 64 bits, of which the lower half names what it stands for.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.model.arrays import EVERYWHERE_TOKEN, Int32s, Int64s


class HashedLists(NamedTuple):
    """A hash of lists."""

    list_facts: Int64s  # (N_HASH_FACTS,)
    places: Int64s  # (a power of two, 2) key and list; the key is -1 where there is none
    lists: Int64s  # (n_lists, 2) the only entry or the first block; how many entries
    list_keys: Int64s  # (n_lists,) group << 32 | member, -1 where the list is free
    list_next: Int32s  # (n_lists,) the next one of the group, or of those that are free; -1
    list_before: Int32s  # (n_lists,) the one before
    group_heads: Int32s  # (n_groups,) first list of each, -1
    group_sizes: Int32s  # (n_groups,) lists of each
    block_next: Int32s  # (n_blocks,) next block of the list, or of those that are free; -1
    block_entries: Int64s  # (8 * n_blocks,)
    list_buffer: Int64s  # (8,) working memory


class WordLists(NamedTuple):
    """Lists of messages by word, which need no hash."""

    list_facts: Int64s  # (N_HASH_FACTS,)
    lists: Int64s  # (n_tokens, 2) the only entry or the first block; how many entries, or NOT_KEPT
    block_next: Int32s
    block_entries: Int64s
    list_buffer: Int64s


NOT_KEPT = -1
"""Length of a list that nobody asks for, or that would be too long."""
N_LISTS, N_HELD, FREE_LIST, N_BLOCKS, N_FREE_BLOCKS, FREE_BLOCK, N_ENTRIES, N_HASH_FACTS = range(8)
"""Facts: lists that were handed out, lists held, chain of those that are free, blocks that were
handed out, blocks that are free, chain of these, entries."""

BLOCK = 8
_MIX = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_NAME = np.int64(0xFFFFFFFF)


@inlined_kernel
def pair_key(group, member):
    """Return the key of a list."""
    return group << 32 | member


@inlined_kernel
def entry_name(entry):
    """Return what an entry stands for."""
    return entry & _NAME


@inlined_kernel
def has_room_for(hashed, n):
    """Whether so many entries have room, each in a list of its own."""
    facts = hashed.list_facts
    return (
        facts[N_HELD] + n <= len(hashed.list_keys)
        and 2 * (facts[N_HELD] + n) <= len(hashed.places)
        and facts[N_BLOCKS] - facts[N_FREE_BLOCKS] + n <= len(hashed.block_next)
    )


@inlined_kernel
def _first_place(hashed, key):
    mixed = np.uint64(key) * _MIX
    return np.int64((mixed ^ mixed >> _HALF) & np.uint64(len(hashed.places) - 1))


@lean_kernel
def find_list(hashed, key):
    """Return the list of a key, -1 where there is none."""
    places, last = hashed.places, len(hashed.places) - 1
    place = _first_place(hashed, key)
    while places[place, 0] != key:
        if places[place, 0] < 0:
            return np.int64(-1)
        place = place + 1 & last
    return places[place, 1]


@lean_kernel
def fill_places(hashed):
    """Put all lists into a hash that is empty."""
    last = len(hashed.places) - 1
    for number in range(hashed.list_facts[N_LISTS]):
        key = hashed.list_keys[number]
        if key >= 0:
            place = _first_place(hashed, key)
            while hashed.places[place, 0] >= 0:
                place = place + 1 & last
            hashed.places[place, 0], hashed.places[place, 1] = key, number


@lean_kernel
def _new_list(hashed, key):
    facts, last = hashed.list_facts, len(hashed.places) - 1
    number = facts[FREE_LIST]
    if number >= 0:
        facts[FREE_LIST] = hashed.list_next[number]
    else:
        number = facts[N_LISTS]
        facts[N_LISTS] += 1
    facts[N_HELD] += 1
    place = _first_place(hashed, key)
    while hashed.places[place, 0] >= 0:
        place = place + 1 & last
    hashed.places[place, 0], hashed.places[place, 1] = key, number
    hashed.list_keys[number] = key
    hashed.lists[number, 1] = 0
    group = key >> 32
    head = hashed.group_heads[group]
    hashed.list_next[number], hashed.list_before[number] = head, -1
    if head >= 0:
        hashed.list_before[head] = number
    hashed.group_heads[group] = number
    hashed.group_sizes[group] += 1
    return number


@lean_kernel
def _forget_list(hashed, number):
    """Take an empty list out of hash and chain."""
    facts, places, last = hashed.list_facts, hashed.places, len(hashed.places) - 1
    key = hashed.list_keys[number]
    following, before = hashed.list_next[number], hashed.list_before[number]
    if following >= 0:
        hashed.list_before[following] = before
    if before >= 0:
        hashed.list_next[before] = following
    else:
        hashed.group_heads[key >> 32] = following
    hashed.group_sizes[key >> 32] -= 1
    place = _first_place(hashed, key)
    while places[place, 0] != key:
        place = place + 1 & last
    # What follows up to a free place moves up, unless it is at its first place already.
    other = place
    while True:
        other = other + 1 & last
        if places[other, 0] < 0:
            break
        first = _first_place(hashed, places[other, 0])
        if (other - first & last) >= (other - place & last):
            places[place, 0], places[place, 1] = places[other, 0], places[other, 1]
            place = other
    places[place, 0] = -1
    hashed.list_keys[number] = -1
    hashed.list_next[number] = facts[FREE_LIST]
    facts[FREE_LIST] = number
    facts[N_HELD] -= 1


@inlined_kernel
def _new_block(hashed, following):
    facts = hashed.list_facts
    block = facts[FREE_BLOCK]
    if block >= 0:
        facts[FREE_BLOCK] = hashed.block_next[block]
        facts[N_FREE_BLOCKS] -= 1
    else:
        block = facts[N_BLOCKS]
        facts[N_BLOCKS] += 1
    hashed.block_next[block] = following
    return block


@inlined_kernel
def _free_block(hashed, block):
    facts = hashed.list_facts
    hashed.block_next[block] = facts[FREE_BLOCK]
    facts[FREE_BLOCK] = block
    facts[N_FREE_BLOCKS] += 1


@lean_kernel
def add_entry(hashed, key, entry):
    """Put an entry into the list of a key, which is made if need be; there must be room."""
    number = find_list(hashed, key)
    if number < 0:
        number = _new_list(hashed, key)
    append_entry(hashed, number, entry)


@lean_kernel
def append_entry(hashed, number, entry):
    """Put an entry into a list."""
    lists, entries = hashed.lists, hashed.block_entries
    size = lists[number, 1]
    lists[number, 1] = size + 1
    hashed.list_facts[N_ENTRIES] += 1
    if size == 0:
        lists[number, 0] = entry
        return
    if size == 1:
        block = _new_block(hashed, -1)
        entries[block * BLOCK] = lists[number, 0]
        lists[number, 0] = block
    elif size % BLOCK == 0:
        lists[number, 0] = _new_block(hashed, lists[number, 0])
    entries[lists[number, 0] * BLOCK + size % BLOCK] = entry


@lean_kernel
def _drop_at(hashed, number, at):
    """Take the entry at a place out of a list of several; the last one takes its place."""
    lists, entries = hashed.lists, hashed.block_entries
    size, head = lists[number, 1] - 1, lists[number, 0]
    entries[at] = entries[head * BLOCK + size % BLOCK]
    lists[number, 1] = size
    hashed.list_facts[N_ENTRIES] -= 1
    if size == 1:
        lists[number, 0] = entries[head * BLOCK]
    elif size % BLOCK == 0:
        lists[number, 0] = hashed.block_next[head]
    else:
        return
    _free_block(hashed, head)


@lean_kernel
def drop_entry(hashed, key, name):
    """Take the entry of a name out of the list of a key, where it must be."""
    number = find_list(hashed, key)
    if hashed.lists[number, 1] == 1:
        hashed.list_facts[N_ENTRIES] -= 1
        _forget_list(hashed, number)
        return
    block, in_block = hashed.lists[number, 0], (hashed.lists[number, 1] - 1) % BLOCK + 1
    while block >= 0:
        for at in range(block * BLOCK, block * BLOCK + in_block):
            if entry_name(hashed.block_entries[at]) == name:
                _drop_at(hashed, number, at)
                return
        block, in_block = np.int64(hashed.block_next[block]), BLOCK


# ---- entries of messages -------------------------------------------------------------------------

_AGE = np.int64(0x7FFFFFFF)


@inlined_kernel
def message_entry(messages, row):
    """Return the entry of a message: its row, and which of those that had the row it is."""
    return (messages.sequences[row] & _AGE) << 32 | row


@inlined_kernel
def entry_lives(messages, entry):
    """Whether the message of an entry has not ended."""
    sequence = messages.sequences[entry_name(entry)]
    return sequence >= 0 and sequence & _AGE == entry >> 32


@lean_kernel
def sweep_list(hashed, messages, number):
    """Take the entries of messages that have ended out of a list."""
    lists, facts, buffer = hashed.lists, hashed.list_facts, hashed.list_buffer
    size, block = lists[number, 1], lists[number, 0]
    facts[N_ENTRIES] -= size
    lists[number, 1] = 0
    if size == 1:
        if entry_lives(messages, block):
            append_entry(hashed, number, block)
        return
    in_block = (size - 1) % BLOCK + 1
    while block >= 0:
        for i in range(in_block):
            buffer[i] = hashed.block_entries[block * BLOCK + i]
        following = np.int64(hashed.block_next[block])
        _free_block(hashed, block)
        for i in range(in_block):
            if entry_lives(messages, buffer[i]):
                append_entry(hashed, number, buffer[i])
        block, in_block = following, BLOCK


@lean_kernel
def sweep_lists(hashed, messages):
    """Take the entries of all messages that have ended out of all lists."""
    for number in range(hashed.list_facts[N_LISTS]):
        if hashed.list_keys[number] >= 0:
            sweep_list(hashed, messages, number)
            if hashed.lists[number, 1] == 0:
                _forget_list(hashed, number)


# ---- lists by word -------------------------------------------------------------------------------

MOST_WORDS = 256
"""Words of a message for which there is room."""
_LONGEST = 4096
"""Messages of a word from which no list of them is kept: one is not far away."""


@inlined_kernel
def has_word_blocks(words, n):
    """Whether the lists by word have room for so many more blocks."""
    facts = words.list_facts
    return facts[N_BLOCKS] - facts[N_FREE_BLOCKS] + n <= len(words.block_next)


@lean_kernel
def _keep_no_list(words, token):
    """Have no list of a word any more."""
    block = words.lists[token, 0]
    words.list_facts[N_ENTRIES] -= words.lists[token, 1]
    is_single = words.lists[token, 1] <= 1
    words.lists[token, 1] = NOT_KEPT
    while block >= 0 and not is_single:
        following = np.int64(words.block_next[block])
        _free_block(words, block)
        block = following


@lean_kernel
def list_words(words, messages, row):
    """Put a message into the lists of its words that are kept; False where there is no room.

    A list with more dead messages than live ones is swept.
    """
    start, n = messages.token_starts[row], np.int64(messages.n_tokens[row])
    if not has_word_blocks(words, n):
        return False
    entry = message_entry(messages, row)
    for i in range(start, start + n):
        token = np.int64(messages.tokens[i])
        size = words.lists[token, 1]
        if token == EVERYWHERE_TOKEN or size == NOT_KEPT:
            continue
        if size > BLOCK and size > 2 * messages.n_having[token]:
            sweep_list(words, messages, token)
            size = words.lists[token, 1]
        if size >= _LONGEST or messages.n_having[token] > _LONGEST:
            _keep_no_list(words, token)
        else:
            append_entry(words, token, entry)
    return True
