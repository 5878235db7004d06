"""Subscriptions in lists by their rarest word, in which messages look for them.

An alternative of a subscription lies in the list of one word that it requires, the one that the
fewest live messages have. A list is a chain of chunks of up to 4,096 entries, all of them full but
the last. An entry is the key of the region's box (:mod:`earshot.kernels.box_keys`), the bits of the
words, and the alternative. Sixteen keys have a *sum*, the key of the box around them, and sixteen
sums have a *top*; each is compared sixteen at a time.

A move overwrites a key, and loosens its sums at once. A sum is tightened when it lets a message
through that finds nothing behind it. As subscribers scatter, sums grow, and more are opened in
vain. Each list counts these; once they have cost more than it takes to sort the list along a curve
through space, and moves have loosened it since it was last sorted, it is sorted on the spot. So
long lists of frequent words are sorted often, and most lists never.
"""

from __future__ import annotations

import numpy as np

from earshot.kernels.box_keys import (
    BLOCK,
    DEAD_KEY,
    TOP,
    Quantizer,
    box_key,
    box_limit,
    touching_mask,
    trailing_zeros,
    union_key,
)
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.kernels.processor import prefetch
from earshot.semantics.moving.kernels.arrays import (
    IS_LONLAT,
    N_CANDIDATES,
    N_FOUND,
    N_NODES,
    STAMP,
)
from earshot.semantics.moving.kernels.ordering import on_curve, sort_numbers
from earshot.semantics.moving.kernels.regions import holds
from earshot.semantics.moving.kernels.vectors import union_of_block
from earshot.semantics.moving.kernels.words import clause_is_met

TOP_SIZE = 256
LEAST_CLASS, TOP_CLASS, FULL_CLASS = 2, 8, 12
"""Chunks have room for 4 to 4,096 entries, powers of two; a top is over 256."""
FULL = 1 << FULL_CLASS
N_NOTED = 64
"""Entries that are looked at together."""

LIST_POOL, LIST_CHUNKS, LIST_FREE_CHUNK, LIST_ENTRIES, LIST_SORTED, LIST_PUT, LIST_SEEN = range(7)
LIST_BUILT, LIST_SEEN_BEFORE, LIST_LONGEST, LIST_LARGEST, N_LIST_FACTS = range(7, 12)
"""Facts: entries of the pool that were handed out, chunks, chain of those that are free, entries,
those that were sorted list by list, that came, and messages seen, since all was built; entries and
messages seen by then; most entries that a list has had, largest class of chunks in use."""

_ALL = np.uint32(0xFFFF)
_LANE = np.uint64(0x7FFF)
_INDEX = 0xFFFFFFFF
_SORT_LEAST = 64
_VAIN_PER_ENTRY = 2
_LOOSE_SHARE = 4
"""A list is sorted if it has so many entries, so many blocks were opened in vain for each, and one
in so many has loosened a sum. To open a block in vain takes about 60 ns, to sort an entry 150."""


@inlined_kernel
def has_room_lists(lists, tables, n):
    """Whether ``n`` entries have room."""
    facts = lists.list_facts
    return (
        len(lists.clause_places) >= len(tables.subscribers.clause_slots)
        and len(lists.list_heads) >= len(tables.messages.n_having)
        and facts[LIST_POOL] + n * largest_room(facts) <= len(lists.pool_rows) - TOP_SIZE
        and facts[LIST_CHUNKS] + n <= len(lists.chunk_starts)
        and sorting_room(facts[LIST_LONGEST] + n) <= len(lists.sort_room)
    )


@inlined_kernel
def largest_room(facts):
    """Return the entries of the pool that a new entry may take."""
    return 1 << max(min(facts[LIST_LARGEST] + 1, FULL_CLASS), TOP_CLASS)


@inlined_kernel
def sorting_room(n):
    """Return the working memory for sorting a list: its entries, and the starts of its chunks."""
    return n + (n >> FULL_CLASS) + 1


@inlined_kernel
def slot_key(lists, boxes, slot):
    """Return the key of the box around a region."""
    quantizer = Quantizer(lists.x_bounds, lists.y_bounds)
    min_x, max_x = boxes[slot, 0], boxes[slot, 2]
    if boxes[slot, 4] <= boxes[slot, 6]:  # on both sides of the antimeridian
        min_x, max_x = -np.inf, np.inf
    return box_key(quantizer, min_x, boxes[slot, 1], max_x, boxes[slot, 3])


# ---- chunks --------------------------------------------------------------------------------------


@lean_kernel
def _new_room(lists, size_class):
    """Return where a chunk of a class may lie in the pool."""
    free, rows = lists.list_free, lists.pool_rows
    start = free[size_class]
    if start >= 0:
        free[size_class] = rows[start]
        return start
    start, size = lists.list_facts[LIST_POOL], 1 << size_class
    handed_out = max(size, TOP_SIZE)
    lists.list_facts[LIST_POOL] += handed_out
    lists.list_facts[LIST_LARGEST] = max(lists.list_facts[LIST_LARGEST], size_class)
    for other in range(start + handed_out - size, start, -size):
        rows[other] = free[size_class]
        free[size_class] = other
    return start


@lean_kernel
def _free_room(lists, start, size_class):
    lists.pool_rows[start] = lists.list_free[size_class]
    lists.list_free[size_class] = start


@lean_kernel
def new_chunk(lists, token, size_class):
    """Give a list one more chunk, at its end."""
    facts = lists.list_facts
    chunk = facts[LIST_FREE_CHUNK]
    if chunk >= 0:
        facts[LIST_FREE_CHUNK] = lists.chunk_next[chunk]
    else:
        chunk = facts[LIST_CHUNKS]
        facts[LIST_CHUNKS] += 1
    start = _new_room(lists, size_class)
    lists.chunk_starts[chunk] = start
    lists.chunk_classes[chunk] = size_class
    lists.chunk_counts[chunk] = 0
    lists.chunk_next[chunk] = -1
    lists.chunk_before[chunk] = lists.list_tails[token]
    _clear_sums(lists, start, size_class)
    if lists.list_tails[token] < 0:
        lists.list_heads[token] = chunk
    else:
        lists.chunk_next[lists.list_tails[token]] = chunk
    lists.list_tails[token] = chunk
    return chunk


@inlined_kernel
def _clear_sums(lists, start, size_class):
    size = 1 << size_class
    if size >= BLOCK:
        for at in range(start >> 4, (start + size) >> 4):
            lists.pool_sums[at] = DEAD_KEY
    for at in range(start >> 8, (start + size) >> 8):
        lists.pool_tops[at] = DEAD_KEY


@lean_kernel
def _enlarge(lists, chunk):
    """Give the only chunk of a list twice the room."""
    size_class, start = lists.chunk_classes[chunk], lists.chunk_starts[chunk]
    new_start = _new_room(lists, size_class + 1)
    _clear_sums(lists, new_start, size_class + 1)
    for i in range(lists.chunk_counts[chunk]):
        _write(
            lists, new_start + i, lists.pool_keys[start + i], lists.pool_words[start + i],
            lists.pool_rows[start + i],
        )  # fmt: skip
    lists.chunk_starts[chunk] = new_start
    lists.chunk_classes[chunk] = size_class + 1
    _free_room(lists, start, size_class)


@inlined_kernel
def _write(lists, place, key, words, clause):
    _put(lists, place, key, words, clause)
    _loosen(lists, place, key)


@inlined_kernel
def _put(lists, place, key, words, clause):
    lists.pool_keys[place] = key
    lists.pool_words[place] = words
    lists.pool_rows[place] = clause
    lists.clause_places[clause] = place


@inlined_kernel
def _loosen(lists, place, key):
    """Let the sums over an entry hold its key; return whether one did not."""
    total = lists.pool_sums[place >> 4]
    looser = union_key(total, key)
    if looser == total:
        return False
    lists.pool_sums[place >> 4] = looser
    lists.pool_tops[place >> 8] = union_key(lists.pool_tops[place >> 8], looser)
    return True


@lean_kernel
def append_entry(lists, token, key, words, clause):
    """Put an entry at the end of a list."""
    chunk = np.int64(lists.list_tails[token])
    if chunk < 0:
        chunk = new_chunk(lists, token, LEAST_CLASS)
    elif lists.chunk_counts[chunk] == 1 << lists.chunk_classes[chunk]:
        if lists.chunk_classes[chunk] < FULL_CLASS:
            _enlarge(lists, chunk)
        else:
            chunk = new_chunk(lists, token, LEAST_CLASS)
    count = lists.chunk_counts[chunk]
    lists.chunk_counts[chunk] = count + 1
    _write(lists, lists.chunk_starts[chunk] + count, key, words, clause)
    lists.clause_tokens[clause] = token
    lists.list_lengths[token] += 1
    lists.list_facts[LIST_ENTRIES] += 1
    lists.list_facts[LIST_LONGEST] = max(lists.list_facts[LIST_LONGEST], lists.list_lengths[token])


@lean_kernel
def _drop_entry(lists, clause):
    """Take an entry out; the last one of the list takes its place."""
    token, place = np.int64(lists.clause_tokens[clause]), np.int64(lists.clause_places[clause])
    chunk = np.int64(lists.list_tails[token])
    count = lists.chunk_counts[chunk] - 1
    last = np.int64(lists.chunk_starts[chunk]) + count
    if last != place:
        _write(lists, place, lists.pool_keys[last], lists.pool_words[last], lists.pool_rows[last])
    lists.chunk_counts[chunk] = count
    lists.clause_places[clause] = -1
    lists.list_lengths[token] -= 1
    lists.list_facts[LIST_ENTRIES] -= 1
    if count == 0:
        _free_room(lists, lists.chunk_starts[chunk], lists.chunk_classes[chunk])
        before = lists.chunk_before[chunk]
        lists.list_tails[token] = before
        if before < 0:
            lists.list_heads[token] = -1
        else:
            lists.chunk_next[before] = -1
        lists.chunk_next[chunk] = lists.list_facts[LIST_FREE_CHUNK]
        lists.list_facts[LIST_FREE_CHUNK] = chunk


# ---- subscriptions -------------------------------------------------------------------------------


@lean_kernel
def rarest_token(lists, subscribers, messages, clause):
    """Return the required token that the fewest live messages have; of equals, the shortest list's.

    A list is as often gone through as there are messages with its word.
    """
    best = np.int64(-1)
    for i in range(subscribers.token_offsets[clause], subscribers.token_offsets[clause + 1]):
        token = np.int64(subscribers.token_ids[i])
        if token < 0:
            break
        if (
            best < 0
            or messages.n_having[token] < messages.n_having[best]
            or (
                messages.n_having[token] == messages.n_having[best]
                and lists.list_lengths[token] < lists.list_lengths[best]
            )
        ):
            best = token
    return best


@lean_kernel
def put_in_lists(lists, tables, slot):
    """Take the alternatives of a subscription in."""
    subscribers = tables.subscribers
    key = slot_key(lists, subscribers.regions.boxes, slot)
    for clause in range(subscribers.clause_offsets[slot], subscribers.clause_offsets[slot + 1]):
        token = rarest_token(lists, subscribers, tables.messages, clause)
        append_entry(lists, token, key, subscribers.clause_words[clause], clause)
        lists.list_loosened[token] += 1
        lists.list_facts[LIST_PUT] += 1
    return True


@lean_kernel
def drop_from_lists(lists, tables, slot):
    """Take the alternatives of a subscription out."""
    subscribers = tables.subscribers
    for clause in range(subscribers.clause_offsets[slot], subscribers.clause_offsets[slot + 1]):
        _drop_entry(lists, clause)


@inlined_kernel
def foresee_in_lists(lists, tables, slot, step):
    """Ask for where the entry of a subscription that moves soon is, for it, and for its sum."""
    clause = tables.subscribers.clause_offsets[slot]
    if step == 0:
        prefetch(lists.clause_places, clause)
    elif step == 1:
        prefetch(lists.pool_keys, lists.clause_places[clause])
    else:
        prefetch(lists.pool_sums, lists.clause_places[clause] >> 4)


@inlined_kernel
def move_in_lists(lists, tables, slot):
    """Let the alternatives of a subscription be where it is now."""
    subscribers = tables.subscribers
    key = slot_key(lists, subscribers.regions.boxes, slot)
    for clause in range(subscribers.clause_offsets[slot], subscribers.clause_offsets[slot + 1]):
        place = np.int64(lists.clause_places[clause])
        if lists.pool_keys[place] == key:
            break
        lists.pool_keys[place] = key
        if _loosen(lists, place, key):
            lists.list_loosened[lists.clause_tokens[clause]] += 1
    return True


# ---- messages ------------------------------------------------------------------------------------


@inlined_kernel
def _first_lanes(n):
    """Return a mask of the first lanes of a block."""
    return _ALL if n >= BLOCK else np.uint32((1 << n) - 1)


@inlined_kernel
def find_in_lists(lists, tables, scratch, row):
    """Find the subscriptions that hold a message, whose tokens are marked."""
    messages = tables.messages
    box = messages.boxes[row]
    min_x, max_x = box[0], box[2]
    if min_x > max_x:
        min_x, max_x = -np.inf, np.inf
    quantizer = Quantizer(lists.x_bounds, lists.y_bounds)
    limit = box_limit(quantizer, min_x, box[1], max_x, box[3])
    scratch.counts[N_FOUND] = 0
    lists.list_facts[LIST_SEEN] += 1
    start = messages.token_starts[row]
    stop = start + messages.n_tokens[row]
    _foresee_lists(lists, messages.tokens, start, stop)
    for i in range(start, stop):
        token = np.int64(messages.tokens[i])
        if token >= len(lists.list_heads):
            continue
        chunk = np.int64(lists.list_heads[token])
        n_vain = 0
        while chunk >= 0:
            n_vain += _walk_chunk(lists, tables, scratch, row, limit, chunk)
            chunk = np.int64(lists.chunk_next[chunk])
        if n_vain > 0:
            lists.list_vain[token] += n_vain
            if _is_worth_sorting(lists, token):
                _verify_early(lists, tables, scratch, row)  # what is noted by its place
                _sort_list(lists, token, scratch.stack)
    _verify(lists, tables, scratch, row)


@inlined_kernel
def _foresee_lists(lists, tokens, start, stop):
    """Ask for the first entries of all lists of a message, each step for what the next reads."""
    for i in range(start, stop):
        prefetch(lists.list_heads, tokens[i])
    for i in range(start, stop):
        if tokens[i] < len(lists.list_heads):
            chunk = np.int64(lists.list_heads[tokens[i]])
            if chunk >= 0:
                prefetch(lists.chunk_starts, chunk)
                prefetch(lists.chunk_counts, chunk)
                prefetch(lists.chunk_classes, chunk)
                prefetch(lists.chunk_next, chunk)
    for i in range(start, stop):
        if tokens[i] < len(lists.list_heads):
            chunk = np.int64(lists.list_heads[tokens[i]])
            if chunk >= 0:
                first, count = np.int64(lists.chunk_starts[chunk]), lists.chunk_counts[chunk]
                if count > TOP_SIZE:
                    prefetch(lists.pool_tops, first >> 8)
                elif count > BLOCK:
                    prefetch(lists.pool_sums, first >> 4)
                    prefetch(lists.pool_sums, (first >> 4) + 8)
                else:
                    prefetch(lists.pool_keys, first)
                    prefetch(lists.pool_keys, first + 8)


@inlined_kernel
def _walk_chunk(lists, tables, scratch, row, limit, chunk):
    """Compare a message with the entries of a chunk; return how many blocks it opened in vain."""
    start, count = np.int64(lists.chunk_starts[chunk]), np.int64(lists.chunk_counts[chunk])
    n_vain, n_nodes, tops = np.int64(0), 1, np.uint32(1)
    if count > TOP_SIZE:
        n_tops = (count + TOP_SIZE - 1) >> 8
        tops = touching_mask(lists.pool_tops, start >> 8, limit) & _first_lanes(n_tops)
    while tops:
        top = start + trailing_zeros(tops) * TOP_SIZE
        tops &= tops - np.uint32(1)
        n_here, blocks = min(start + count - top, TOP_SIZE), np.uint32(1)
        n_nodes += 1
        if n_here > BLOCK:
            n_blocks = (n_here + BLOCK - 1) >> 4
            blocks = touching_mask(lists.pool_sums, top >> 4, limit) & _first_lanes(n_blocks)
            if blocks == 0 and count > TOP_SIZE:
                _tighten_top(lists, top, n_blocks)
                n_vain += 1
        while blocks:
            first = top + trailing_zeros(blocks) * BLOCK
            blocks &= blocks - np.uint32(1)
            n = min(top + n_here - first, BLOCK)
            hits = touching_mask(lists.pool_keys, first, limit) & _first_lanes(n)
            if hits:
                _note_hits(lists, tables, scratch, row, first, hits)
            elif count > BLOCK:
                _tighten_sum(lists, first, n)
                n_vain += 1
    scratch.counts[N_NODES] += n_nodes
    return n_vain


@inlined_kernel
def _tighten_sum(lists, first, n):
    lists.pool_sums[first >> 4] = union_of_block(lists.pool_keys, first, n)


@inlined_kernel
def _tighten_top(lists, start, n_blocks):
    lists.pool_tops[start >> 8] = union_of_block(lists.pool_sums, start >> 4, n_blocks)


@inlined_kernel
def _note_hits(lists, tables, scratch, row, first, hits):
    """Note the entries of a block whose boxes touch a message, to be looked at together."""
    noted = lists.noted
    while hits:
        place = first + trailing_zeros(hits)
        hits &= hits - np.uint32(1)
        prefetch(lists.pool_words, place)
        prefetch(lists.pool_rows, place)
        if noted[N_NOTED] == N_NOTED:
            _verify_early(lists, tables, scratch, row)
        noted[noted[N_NOTED]] = place
        noted[N_NOTED] += 1


@inlined_kernel
def _verify(lists, tables, scratch, row):
    """Note the subscriptions among the entries noted that really hold a message, each once.

    What an entry leads to lies anywhere in memory. Each step asks for what the next one reads.
    """
    subscribers, messages, counts = tables.subscribers, tables.messages, scratch.counts
    regions, noted = subscribers.regions, lists.noted
    is_lonlat, lacking = tables.rules[IS_LONLAT] != 0, ~messages.words[row]
    n = 0
    for i in range(noted[N_NOTED]):
        if lists.pool_words[noted[i]] & lacking == 0:
            clause = lists.pool_rows[noted[i]]
            prefetch(subscribers.clause_slots, clause)
            prefetch(subscribers.token_offsets, clause)
            noted[n] = clause
            n += 1
    noted[N_NOTED] = 0
    counts[N_CANDIDATES] += n
    for i in range(n):
        clause = noted[i]
        slot = subscribers.clause_slots[clause]
        prefetch(scratch.stamps, slot)
        prefetch(regions.boxes, slot)
        prefetch(regions.kinds, slot)
        prefetch(regions.frames, slot)
        prefetch(subscribers.token_ids, subscribers.token_offsets[clause])
    box = messages.boxes[row]
    for i in range(n):
        clause = noted[i]
        slot = np.int64(subscribers.clause_slots[clause])
        if scratch.stamps[slot] == counts[STAMP]:
            continue
        if clause_is_met(subscribers, clause, scratch.marks) and holds(
            regions, slot, is_lonlat, subscribers.polygons, box[0], box[1], box[2], box[3]
        ):
            scratch.stamps[slot] = counts[STAMP]
            scratch.found[counts[N_FOUND]] = slot
            counts[N_FOUND] += 1


@lean_kernel
def _verify_early(lists, tables, scratch, row):
    """Do the same before all entries are noted, which is rare."""
    _verify(lists, tables, scratch, row)


# ---- sorting -------------------------------------------------------------------------------------


@inlined_kernel
def _is_worth_sorting(lists, token):
    """Whether blocks opened in vain have cost as much as sorting, which moves made useful."""
    length = np.int64(lists.list_lengths[token])
    return (
        lists.list_vain[token] > _VAIN_PER_ENTRY * length
        and length >= _SORT_LEAST
        and lists.list_loosened[token] * _LOOSE_SHARE >= length
    )


@lean_kernel
def _sort_list(lists, token, stack):
    """Sort the entries of a list along a curve through space, and find its sums anew."""
    room, n = lists.sort_room, np.int64(lists.list_lengths[token])
    chunk, i, n_chunks = np.int64(lists.list_heads[token]), 0, 0
    while chunk >= 0:
        start = np.int64(lists.chunk_starts[chunk])
        room[n + n_chunks] = start
        n_chunks += 1
        for place in range(start, start + lists.chunk_counts[chunk]):
            room[i] = curve_of(lists.pool_keys[place]) << 32 | i
            i += 1
        chunk = np.int64(lists.chunk_next[chunk])
    sort_numbers(room, n, stack)
    for first in range(n):  # each cycle of the permutation in turn
        if room[first] < 0:
            continue
        place = _place(room, n, first)
        key, words, clause = lists.pool_keys[place], lists.pool_words[place], lists.pool_rows[place]
        at = np.int64(first)
        while True:
            source = room[at] & _INDEX
            room[at] = -1
            place = _place(room, n, at)
            if source == first:
                _put(lists, place, key, words, clause)
                break
            other = _place(room, n, source)
            _put(lists, place, lists.pool_keys[other], lists.pool_words[other],
                 lists.pool_rows[other])  # fmt: skip
            at = source
    for number in range(n_chunks):
        start = room[n + number]
        count = min(n - number * FULL, FULL)
        for first in range(start, start + count, BLOCK):
            _tighten_sum(lists, first, min(start + count - first, BLOCK))
        for first in range(start, start + count, TOP_SIZE):
            n_blocks = (min(start + count - first, TOP_SIZE) + BLOCK - 1) >> 4
            _tighten_top(lists, first, n_blocks)
    lists.list_vain[token] = lists.list_loosened[token] = 0
    lists.list_facts[LIST_SORTED] += n


@inlined_kernel
def _place(room, n, at):
    """Return where an entry of a list is in the pool; the starts of chunks lie behind entries."""
    return room[n + (at >> FULL_CLASS)] + (at & (FULL - 1))


@inlined_kernel
def curve_of(key):
    """Return where the middle of a key's box is on a curve through space."""
    x = (_lane(key, 0) + TOP - _lane(key, 2)) >> 1
    y = (_lane(key, 1) + TOP - _lane(key, 3)) >> 1
    return on_curve(x, y)


# ---- building ------------------------------------------------------------------------------------


@lean_kernel
def choose_tokens(lists, subscribers, messages, clauses, tokens):
    """Fill ``tokens`` with the list in which each alternative is to lie."""
    for i in range(len(clauses)):
        tokens[i] = rarest_token(lists, subscribers, messages, clauses[i])


@lean_kernel
def find_keys(lists, subscribers, clauses, keys, curve):
    """Fill in the key of each alternative, and where its middle is on a curve through space."""
    boxes = subscribers.regions.boxes
    for i in range(len(clauses)):
        key = slot_key(lists, boxes, subscribers.clause_slots[clauses[i]])
        keys[i] = key
        curve[i] = curve_of(key)


@inlined_kernel
def _lane(key, number):
    return np.int64(key >> np.uint64(16 * number) & _LANE)


@lean_kernel
def fill_lists(lists, subscribers, clauses, tokens, keys, order):
    """Put alternatives into lists, in an order in which each list is together."""
    n = len(order)
    i = 0
    while i < n:
        token = np.int64(tokens[order[i]])
        stop = i
        while stop < n and tokens[order[stop]] == token:
            stop += 1
        while i < stop:
            n_here, size_class = min(stop - i, FULL), LEAST_CLASS
            while n_here > 1 << size_class:
                size_class += 1
            new_chunk(lists, token, size_class)
            for j in range(i, i + n_here):
                clause = np.int64(clauses[order[j]])
                words = subscribers.clause_words[clause]
                append_entry(lists, token, keys[order[j]], words, clause)
            i += n_here
