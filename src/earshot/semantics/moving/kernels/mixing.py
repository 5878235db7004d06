"""A batch of moves, arrivals and ends, each kind as a whole.

One after the other, every event would find another part of the structure, out of the cache. Here
messages that arrive in the batch are taken in at once, those that end in it are left in until the
end, and both find the slots that hold them where these are at the start. Then all moves follow by
place, and note what they change. A message is told to whom it was found for, less or more those
whose moves changed that an odd number of times by then.
"""

from __future__ import annotations

import numpy as np

from earshot.kernels.jit import inlined_kernel, kernel, lean_kernel
from earshot.kernels.resuming import DONE
from earshot.semantics.moving.kernels.arrays import (
    CLOCK,
    ENTERED,
    HIDDEN,
    LEFT,
    MATCH,
    N_ENDED,
    N_ENTERED,
    N_FOUND,
    N_LIVE,
    NEEDS_OUTPUT,
    NEEDS_ROOM,
    NEEDS_ROWS,
    NEXT,
    PHASE,
    ROW,
    SILENT,
)
from earshot.semantics.moving.kernels.events import (
    ARRIVING,
    WAITING,
    emit,
    find_slots,
    follow_move,
    foresee_moves,
    forget_message,
    free_row,
    write_message,
)
from earshot.semantics.moving.kernels.ordering import order_by_place, pop_end, push_end
from earshot.semantics.moving.kernels.structures import has_room, put_message


@kernel
def write_arrivals(structure, tables, scratch, output, given, rows):
    """Give messages rows that are free; return what is lacking."""
    counts = scratch.counts
    for at in range(counts[ROW], len(rows)):
        counts[ROW] = at
        row = write_message(tables.messages, given, at)
        if row < 0:
            return NEEDS_ROWS
        rows[at] = row
    counts[ROW] = 0
    return DONE


@kernel
def find_arrivals(structure, tables, scratch, output, rows, order):
    """Find who holds messages that arrive, and take these in; return what is lacking.

    The row of a change is the position of its message in ``rows``.
    """
    messages, counts = tables.messages, scratch.counts
    for at in range(counts[ROW], len(order)):
        counts[ROW] = at
        number = order[at]
        row = np.int64(rows[number])
        if counts[PHASE] != ARRIVING:
            if not has_room(structure, tables, 0):
                return NEEDS_ROOM
            find_slots(structure, tables, scratch, row)
            put_message(structure, tables, row)
            push_end(messages, row)
            counts[PHASE] = ARRIVING
        if not _note_slots(scratch, output, number):
            return NEEDS_OUTPUT
    counts[ROW] = 0
    return DONE


@lean_kernel
def take_due(messages, clock, rows):
    """Take the messages out of the heap that end by the clock; return how many there are."""
    n = 0
    while messages.facts[N_LIVE] > 0 and messages.ends[messages.heap[0]] <= clock:
        rows[n] = messages.heap[0]
        pop_end(messages)
        n += 1
    return n


@kernel
def find_due(structure, tables, scratch, output, rows, order, first_sequence, first_number):
    """Find who holds messages that will end, unless they have just come; return what is lacking."""
    messages, counts = tables.messages, scratch.counts
    for at in range(counts[ROW], len(order)):
        counts[ROW] = at
        number = order[at]
        row = np.int64(rows[number])
        if messages.sequences[row] >= first_sequence:
            continue
        if counts[PHASE] != ARRIVING:
            find_slots(structure, tables, scratch, row)
            counts[PHASE] = ARRIVING
        if not _note_slots(scratch, output, first_number + number):
            return NEEDS_OUTPUT
    counts[ROW] = 0
    return DONE


@inlined_kernel
def _note_slots(scratch, output, number):
    counts = scratch.counts
    for i in range(counts[NEXT], counts[N_FOUND]):
        if not emit(output, number, 1, MATCH, scratch.found[i], 0, 0):
            counts[NEXT] = i
            return False
    counts[PHASE] = WAITING
    return True


@lean_kernel
def order_rows(tables, rows, order, stack):
    """Let ``order`` be the positions in ``rows``, those of messages near each other together."""
    order_by_place(tables.messages.boxes, rows, order, stack)


@lean_kernel
def order_slots(tables, slots, order, stack):
    """Let ``order`` be the positions in ``slots``, those near each other together."""
    order_by_place(tables.subscribers.regions.boxes, slots, order, stack)


@inlined_kernel
def _reason(sequence, reason, event, clock, is_silent, given):
    """Return why a change is told, HIDDEN if only its message needs to know, -1 if nobody does."""
    is_new = sequence >= given.first_sequence
    if is_new and event < given.arrivals[sequence - given.first_sequence]:
        return HIDDEN
    at = np.searchsorted(given.due_sequences, sequence)
    is_due = at < len(given.due_sequences) and given.due_sequences[at] == sequence
    if is_due and given.due_ends[at] <= clock:
        return -1
    if not is_silent:
        return reason
    return HIDDEN if is_new or is_due else -1


@inlined_kernel
def _emit_known(scratch, output, event, slot, clock, is_silent, given):
    """Tell what a move changes, of what lives then; return whether all had room."""
    counts = scratch.counts
    n_left = counts[N_FOUND]
    for i in range(counts[NEXT], n_left + counts[N_ENTERED]):
        if i < n_left:
            sequence, sign = scratch.found[i], -1
            reason = _reason(sequence, LEFT, event, clock, is_silent, given)
        else:
            sequence, sign = scratch.entered[i - n_left], 1
            reason = _reason(sequence, ENTERED, event, clock, False, given)
        if reason >= 0 and not emit(output, event, sign, reason, slot, sequence, clock):
            counts[NEXT] = i
            return False
    counts[PHASE] = WAITING
    return True


@kernel
def move_all(structure, tables, scratch, output, slots, kinds, frames, shape_rows, order, given):
    """Let subscriptions be elsewhere; return what is lacking."""
    counts, flags = scratch.counts, tables.subscribers.flags
    for at in range(counts[ROW], len(slots)):
        counts[ROW] = at
        foresee_moves(structure, tables, slots, order, at, len(slots))
        number = order[at]
        slot, event = np.int64(slots[number]), np.int64(given.moves[number])
        if not follow_move(
            structure, tables, scratch, slot, kinds[number], frames[number], shape_rows[number]
        ):
            return NEEDS_ROOM
        is_silent = flags[slot] & SILENT != 0
        if not _emit_known(scratch, output, event, slot, given.clocks[event], is_silent, given):
            return NEEDS_OUTPUT
    counts[ROW] = 0
    return DONE


@kernel
def drop_due(structure, tables, scratch, output, rows, order, clock):
    """Forget messages that have ended."""
    facts = tables.messages.facts
    for at in range(len(order)):
        row = np.int64(rows[order[at]])
        forget_message(structure, tables, row)
        free_row(tables.messages, row)
    scratch.counts[N_ENDED] += len(order)
    facts[CLOCK] = max(facts[CLOCK], clock)
    return DONE
