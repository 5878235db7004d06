"""The course of events: messages end and arrive, subscriptions come and move.

A kernel stops where some array is full and says so; called again with more room it goes on where it
was, which ``scratch.counts`` says.

No result is stored. What a subscription holds is a function of what lives and where it is. A move
from region A to region B looks for what is in one of them alone; a message that ends is matched
once more, as on its arrival.
"""

from __future__ import annotations

import numpy as np

from earshot.kernels.jit import inlined_kernel, kernel, lean_kernel
from earshot.kernels.processor import prefetch
from earshot.kernels.resuming import DONE
from earshot.kernels.verify import mark_tokens
from earshot.model.arrays import EVERYWHERE, POSITION
from earshot.semantics.moving.kernels.arrays import (
    CLOCK,
    ENTERED,
    EXPIRED,
    IS_LONLAT,
    LEFT,
    LIVE,
    MATCH,
    N_ENDED,
    N_ENTERED,
    N_FOUND,
    N_FREE,
    N_LIVE,
    N_ROWS,
    N_TOKENS_LIVE,
    N_TOKENS_USED,
    NEEDS_OUTPUT,
    NEEDS_ROOM,
    NEEDS_ROWS,
    NEXT,
    NEXT_SEQUENCE,
    PHASE,
    ROW,
    SAFE_POSITION,
    SILENT,
    STAMP,
    STOP,
)
from earshot.semantics.moving.kernels.ordering import (
    order_by_place,
    pop_end,
    push_end,
    sort_numbers,
)
from earshot.semantics.moving.kernels.regions import (
    copy_region,
    inner_box,
    place_region,
    set_region,
)
from earshot.semantics.moving.kernels.structures import (
    drop_message,
    drop_slot,
    find,
    foresee_slot,
    has_room,
    moved_slot,
    put_message,
    put_slot,
    search,
)
from earshot.semantics.moving.kernels.words import bits_of

WAITING, ENDING, ARRIVING, MOVING, PLACED = range(5)
"""Phases of an event: nothing is found so far; what was found is being told. At the last, a
subscription is elsewhere, but the structure, which was short of room, has not followed."""
_NEVER = np.iinfo(np.int64).max
_FEW_MOVES = 32
_AHEAD = 2
"""Moves before one for which its entry in a list is asked for."""

# ---- what comes out ------------------------------------------------------------------------------


@inlined_kernel
def emit(output, event, sign, reason, slot, sequence, time):
    """Note a change; return whether there was room for it."""
    n = output.length[0]
    if n == len(output.rows):
        return False
    output.rows[n] = event
    output.signs[n] = sign
    output.reasons[n] = reason
    output.slots[n] = slot
    output.sequences[n] = sequence
    output.times[n] = time
    output.length[0] = n + 1
    return True


@inlined_kernel
def _emit_slots(tables, scratch, output, event, sign, reason, sequence, time):
    """Tell the slots that were found of a message; return whether there was room for all."""
    counts, flags = scratch.counts, tables.subscribers.flags
    for i in range(counts[NEXT], counts[N_FOUND]):
        slot = scratch.found[i]
        is_told = sign > 0 or flags[slot] & SILENT == 0
        if is_told and not emit(output, event, sign, reason, slot, sequence, time):
            counts[NEXT] = i
            return False
    counts[PHASE] = WAITING
    return True


@inlined_kernel
def _emit_messages(tables, scratch, output, event, slot, time):
    """Tell a slot the messages that leave, then those that enter; return whether all had room."""
    counts = scratch.counts
    n_left = counts[N_FOUND]
    is_silent = tables.subscribers.flags[slot] & SILENT != 0
    for i in range(counts[NEXT], n_left + counts[N_ENTERED]):
        if i < n_left:
            is_done = is_silent or emit(output, event, -1, LEFT, slot, scratch.found[i], time)
        else:
            sequence = scratch.entered[i - n_left]
            is_done = emit(output, event, 1, ENTERED, slot, sequence, time)
        if not is_done:
            counts[NEXT] = i
            return False
    counts[PHASE] = WAITING
    return True


# ---- messages ------------------------------------------------------------------------------------


@inlined_kernel
def find_slots(structure, tables, scratch, row):
    """Find the slots that hold a message, in their order."""
    messages = tables.messages
    start = messages.token_starts[row]
    stop = start + messages.n_tokens[row]
    scratch.counts[STAMP] += 1
    mark_tokens(messages.tokens, start, stop, scratch.marks, 1)
    find(structure, tables, scratch, row)
    mark_tokens(messages.tokens, start, stop, scratch.marks, 0)
    sort_numbers(scratch.found, scratch.counts[N_FOUND], scratch.stack)
    scratch.counts[NEXT] = 0


@inlined_kernel
def _is_due(messages, counts, clock):
    """Whether a message ends by the clock, which is noted where none does."""
    facts = messages.facts
    is_due = counts[PHASE] == ENDING or (
        facts[N_LIVE] > 0 and messages.ends[messages.heap[0]] <= clock
    )
    if not is_due:
        facts[CLOCK] = max(facts[CLOCK], clock)
    return is_due


@inlined_kernel
def forget_message(structure, tables, row):
    """Let the structure and the counts of words forget a message that has ended."""
    messages = tables.messages
    drop_message(structure, tables, row)
    start = messages.token_starts[row]
    for i in range(start, start + messages.n_tokens[row]):
        messages.n_having[messages.tokens[i]] -= 1
    messages.facts[N_TOKENS_LIVE] -= messages.n_tokens[row]


@inlined_kernel
def free_row(messages, row):
    """Let another message have a row."""
    messages.sequences[row] = -1
    messages.free[messages.facts[N_FREE]] = row
    messages.facts[N_FREE] += 1


@lean_kernel
def _pass_time(structure, tables, scratch, output, event, clock):
    """Let the messages end that are due, the first first; return what is lacking."""
    messages, counts = tables.messages, scratch.counts
    facts = messages.facts
    while True:
        if counts[PHASE] == ENDING:
            row = messages.heap[0]
            if not _emit_slots(
                tables, scratch, output, event, -1, EXPIRED, messages.sequences[row],
                messages.ends[row],
            ):  # fmt: skip
                return NEEDS_OUTPUT
            pop_end(messages)
            free_row(messages, row)
        if facts[N_LIVE] == 0 or messages.ends[messages.heap[0]] > clock:
            break
        row = messages.heap[0]
        find_slots(structure, tables, scratch, row)
        forget_message(structure, tables, row)
        counts[N_ENDED] += 1
        counts[PHASE] = ENDING
    facts[CLOCK] = max(facts[CLOCK], clock)
    return DONE


@lean_kernel
def write_message(messages, given, at):
    """Give a message a row that is free, and return that; -1 where there is no room."""
    facts = messages.facts
    start, stop = given.token_offsets[at], given.token_offsets[at + 1]
    used = facts[N_TOKENS_USED]
    has_row = facts[N_FREE] > 0 or facts[N_ROWS] < len(messages.ends)
    if not has_row or used + stop - start > len(messages.tokens):
        return -1
    if facts[N_FREE] > 0:
        facts[N_FREE] -= 1
        row = np.int64(messages.free[facts[N_FREE]])
    else:
        row = facts[N_ROWS]
        facts[N_ROWS] += 1
    for i in range(stop - start):
        token = given.tokens[start + i]
        messages.tokens[used + i] = token
        messages.n_having[token] += 1
    messages.token_starts[row] = used
    messages.n_tokens[row] = stop - start
    messages.words[row] = bits_of(messages.tokens, used, used + stop - start)
    facts[N_TOKENS_USED] += stop - start
    facts[N_TOKENS_LIVE] += stop - start
    for k in range(4):
        messages.boxes[row, k] = given.boxes[at, k]
    messages.ends[row] = given.ends[at]
    messages.sequences[row] = facts[NEXT_SEQUENCE]
    facts[NEXT_SEQUENCE] += 1
    return row


@kernel
def publish_messages(structure, tables, scratch, output, given, clocks):
    """Let messages arrive, each after what has ended by then; return what is lacking."""
    messages, counts = tables.messages, scratch.counts
    for event in range(counts[ROW], len(clocks)):
        counts[ROW] = event
        if counts[PHASE] != ARRIVING:
            if _is_due(tables.messages, counts, clocks[event]):
                status = _pass_time(structure, tables, scratch, output, event, clocks[event])
                if status != DONE:
                    return status
            if not has_room(structure, tables, 0):
                return NEEDS_ROOM
            row = write_message(messages, given, event)
            if row < 0:
                return NEEDS_ROWS
            find_slots(structure, tables, scratch, row)
            put_message(structure, tables, row)
            push_end(messages, row)
            counts[PHASE] = ARRIVING
        sequence = messages.facts[NEXT_SEQUENCE] - 1
        time = clocks[event]
        if not _emit_slots(tables, scratch, output, event, 1, MATCH, sequence, time):
            return NEEDS_OUTPUT
    counts[ROW] = 0
    return DONE


@kernel
def pass_time(structure, tables, scratch, output, clock):
    """Let time pass; return what is lacking."""
    return _pass_time(structure, tables, scratch, output, 0, clock)


# ---- subscriptions -------------------------------------------------------------------------------


@inlined_kernel
def search_changes(structure, tables, scratch, slot):
    """Find what leaves and what enters by the query, each in the order of arrival."""
    counts = scratch.counts
    counts[STAMP] += 1
    search(structure, tables, scratch, slot)
    sort_numbers(scratch.found, counts[N_FOUND], scratch.stack)
    sort_numbers(scratch.entered, counts[N_ENTERED], scratch.stack)
    counts[NEXT] = 0


@lean_kernel
def _ask_for_all(tables, scratch, slot):
    """Let the query be between nowhere and where a slot is."""
    regions, inner = scratch.query.regions, scratch.query.inner
    copy_region(tables.subscribers.regions, slot, regions, 1)
    regions.kinds[0] = EVERYWHERE
    for k in range(8):
        regions.boxes[0, k] = -np.inf if k % 4 >= 2 else np.inf
    for to in range(2):
        for k in range(4):
            inner[to, k] = -np.inf if k >= 2 else np.inf


@kernel
def begin_slots(structure, tables, scratch, output, first, stop, is_told):
    """Take subscriptions in, and give them what lives; return what is lacking."""
    counts = scratch.counts
    for event in range(counts[ROW], stop - first):
        counts[ROW] = event
        slot = first + event
        if counts[PHASE] != MOVING:
            offsets = tables.subscribers.clause_offsets
            if not has_room(structure, tables, offsets[slot + 1] - offsets[slot]):
                return NEEDS_ROOM
            if not put_slot(structure, tables, slot):
                return NEEDS_ROOM
            counts[N_FOUND] = counts[N_ENTERED] = 0
            if is_told:
                _ask_for_all(tables, scratch, slot)
                search_changes(structure, tables, scratch, slot)
            counts[NEXT] = 0
            counts[PHASE] = MOVING
        time = tables.messages.facts[CLOCK]
        if not _emit_messages(tables, scratch, output, event, slot, time):
            return NEEDS_OUTPUT
    counts[ROW] = 0
    return DONE


@kernel
def end_slots(structure, tables, slots):
    """Forget subscriptions; nobody is told."""
    for slot in slots:
        drop_slot(structure, tables, slot)
        tables.subscribers.flags[slot] &= ~np.uint8(LIVE)


@lean_kernel
def _order_moves(tables, counts, slots, clocks, order, stack):
    """Choose the order of the moves up to the next message that ends.

    In between, a move changes nothing for other subscriptions. Neighbours walk through the same
    part of a tree, which is at hand from the second one on.
    """
    messages, first = tables.messages, counts[ROW]
    end = messages.ends[messages.heap[0]] if messages.facts[N_LIVE] > 0 else _NEVER
    stop = first + 1
    while stop < len(slots) and clocks[stop] < end:
        stop += 1
    counts[STOP] = stop
    part = order[first:stop]
    if stop - first < _FEW_MOVES:
        for i in range(stop - first):
            part[i] = i
    else:
        order_by_place(tables.subscribers.regions.boxes, slots[first:stop], part, stack)
    for i in range(stop - first):
        part[i] += first


@inlined_kernel
def _foresee(subscribers, slot):
    """Ask for what a move reads of a slot."""
    regions = subscribers.regions
    prefetch(regions.boxes, slot)
    prefetch(regions.boxes, slot + 1)
    prefetch(regions.frames, slot)
    prefetch(regions.kinds, slot)
    prefetch(regions.shape_rows, slot)
    prefetch(subscribers.words, slot)
    prefetch(subscribers.probes, slot)
    prefetch(subscribers.clause_offsets, slot)


@inlined_kernel
def foresee_moves(structure, tables, slots, order, at, stop):
    """Ask for what moves behind the one at hand read."""
    if at + 5 * _AHEAD < stop:
        _foresee(tables.subscribers, slots[order[at + 5 * _AHEAD]])
        foresee_slot(structure, tables, slots[order[at + 3 * _AHEAD]], 0)
        foresee_slot(structure, tables, slots[order[at + 2 * _AHEAD]], 1)
        foresee_slot(structure, tables, slots[order[at + _AHEAD]], 2)


@inlined_kernel
def move_region(tables, query, slot, kind, frame, shape_row):
    """Let a subscription be elsewhere, and the query between where it was and is."""
    regions, polygons = tables.subscribers.regions, tables.subscribers.polygons
    is_lonlat = tables.rules[IS_LONLAT] != 0
    copy_region(regions, slot, query.regions, 0)
    if kind in (POSITION, SAFE_POSITION):
        place_region(regions, slot, is_lonlat, polygons, frame[0], frame[1])
    else:
        set_region(regions, slot, is_lonlat, polygons, kind, frame, shape_row)
    copy_region(regions, slot, query.regions, 1)
    inner_box(query.regions, 0, is_lonlat, query.inner, 0)
    inner_box(query.regions, 1, is_lonlat, query.inner, 1)


@inlined_kernel
def follow_move(structure, tables, scratch, slot, kind, frame, shape_row):
    """Let a subscription be elsewhere, and find what that changes; False where there is no room."""
    counts = scratch.counts
    if counts[PHASE] == MOVING:  # done, but not all has been told
        return True
    if counts[PHASE] != PLACED:
        move_region(tables, scratch.query, slot, kind, frame, shape_row)
        counts[PHASE] = PLACED
    if not moved_slot(structure, tables, slot):
        return False
    if kind == SAFE_POSITION:
        counts[N_FOUND] = counts[N_ENTERED] = counts[NEXT] = 0
    else:
        search_changes(structure, tables, scratch, slot)
    counts[PHASE] = MOVING
    return True


@kernel
def move_slots(structure, tables, scratch, output, slots, clocks, kinds, frames, shape_rows, order):
    """Let subscriptions be elsewhere, each after what has ended by then; return what is lacking.

    Changes come by place where no message ends in between: sort them by the row of the event.
    ``order`` is working memory, as long as the slots.
    """
    counts = scratch.counts
    for at in range(counts[ROW], len(slots)):
        counts[ROW] = at
        if counts[PHASE] != MOVING and at >= counts[STOP]:
            if _is_due(tables.messages, counts, clocks[at]):
                status = _pass_time(structure, tables, scratch, output, at, clocks[at])
                if status != DONE:
                    return status
            _order_moves(tables, counts, slots, clocks, order, scratch.stack)
        foresee_moves(structure, tables, slots, order, at, counts[STOP])
        event = order[at]
        slot = np.int64(slots[event])
        if not follow_move(
            structure, tables, scratch, slot, kinds[event], frames[event], shape_rows[event]
        ):
            return NEEDS_ROOM
        if not _emit_messages(tables, scratch, output, event, slot, clocks[event]):
            return NEEDS_OUTPUT
    if len(slots) > 0:
        facts = tables.messages.facts
        facts[CLOCK] = max(facts[CLOCK], clocks[-1])
    counts[ROW] = counts[STOP] = 0
    return DONE


@kernel
def held_by(structure, tables, scratch, slot):
    """Find the messages that a subscription holds, in the order of arrival."""
    _ask_for_all(tables, scratch, slot)
    search_changes(structure, tables, scratch, slot)


@lean_kernel
def late_reports(slots, times, lasts, before, is_late):
    """Mark the reports that are older than the last one of their subscription before.

    ``lasts`` are as they were afterwards; ``before`` is room to remember them.
    """
    n = len(slots)
    for i in range(n):
        last = lasts[slots[i]]
        before[i] = last
        is_late[i] = times[i] < last
        lasts[slots[i]] = max(last, times[i])
    for i in range(n - 1, -1, -1):
        lasts[slots[i]] = before[i]


@lean_kernel
def note_reports(slots, times, lasts):
    """Remember when each subscription reported last."""
    for i in range(len(slots)):
        lasts[slots[i]] = max(lasts[slots[i]], times[i])


@lean_kernel
def weigh_messages(messages):
    """Find the bits of the words of all messages anew."""
    for row in range(messages.facts[N_ROWS]):
        start = messages.token_starts[row]
        messages.words[row] = bits_of(messages.tokens, start, start + messages.n_tokens[row])
