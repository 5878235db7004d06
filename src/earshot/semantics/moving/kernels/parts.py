"""Parts of the work, one at a time, for those who measure them."""

from __future__ import annotations

from earshot.kernels.jit import kernel
from earshot.kernels.resuming import DONE
from earshot.semantics.moving.kernels.arrays import NEEDS_ROOM, ROW
from earshot.semantics.moving.kernels.events import find_slots, move_region
from earshot.semantics.moving.kernels.structures import (
    drop_message,
    has_room,
    moved_slot,
    put_message,
)


@kernel
def drop_messages(structure, tables, scratch, rows):
    """Let the structure forget live messages."""
    for row in rows:
        drop_message(structure, tables, row)
    return DONE


@kernel
def match_messages(structure, tables, scratch, rows, is_put):
    """Match live messages, which the structure is to take in or not; return what is lacking."""
    counts = scratch.counts
    for at in range(counts[ROW], len(rows)):
        counts[ROW] = at
        if not has_room(structure, tables, 0):
            return NEEDS_ROOM
        find_slots(structure, tables, scratch, rows[at])
        if is_put:
            put_message(structure, tables, rows[at])
    counts[ROW] = 0
    return DONE


@kernel
def follow_slots(structure, tables, scratch, slots, kinds, frames, shape_rows):
    """Let subscriptions be elsewhere without asking what that changes; return what is lacking."""
    counts = scratch.counts
    for at in range(counts[ROW], len(slots)):
        counts[ROW] = at
        slot = slots[at]
        move_region(tables, scratch.query, slot, kinds[at], frames[at], shape_rows[at])
        if not moved_slot(structure, tables, slot):
            return NEEDS_ROOM
    counts[ROW] = 0
    return DONE
