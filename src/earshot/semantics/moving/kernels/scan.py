"""The structure that has none: everything is compared with everything.

========== ====== ===== ==========================
array      shape  dtype meaning
========== ====== ===== ==========================
nothing    0      int64 a kernel wants some array
========== ====== ===== ==========================
"""

from __future__ import annotations

from typing import NamedTuple

from earshot.kernels.jit import lean_kernel
from earshot.model.arrays import Int64s
from earshot.semantics.moving.kernels.arrays import (
    IS_LONLAT,
    LIVE,
    N_CANDIDATES,
    N_ENTERED,
    N_FOUND,
    N_ROWS,
)
from earshot.semantics.moving.kernels.reaches import find_reach_by_scan
from earshot.semantics.moving.kernels.regions import holds
from earshot.semantics.moving.kernels.words import clause_is_met, row_has_words


class ScanArrays(NamedTuple):
    """No structure."""

    nothing: Int64s


@lean_kernel
def has_room_scan(structure, tables, n):
    """There is nothing to run out of."""
    return True


@lean_kernel
def find_scan(structure, tables, scratch, row):
    """Find the subscriptions that hold a message, whose tokens are marked."""
    subscribers, messages, counts = tables.subscribers, tables.messages, scratch.counts
    is_lonlat = tables.rules[IS_LONLAT] != 0
    box = messages.boxes[row]
    n = 0
    for slot in range(len(subscribers.flags)):
        if subscribers.flags[slot] & LIVE == 0:
            continue
        counts[N_CANDIDATES] += 1
        for clause in range(subscribers.clause_offsets[slot], subscribers.clause_offsets[slot + 1]):
            if clause_is_met(subscribers, clause, scratch.marks):
                if holds(
                    subscribers.regions, slot, is_lonlat, subscribers.polygons, box[0], box[1],
                    box[2], box[3],
                ):  # fmt: skip
                    scratch.found[n] = slot
                    n += 1
                break
    counts[N_FOUND] = n


@lean_kernel
def put_message_scan(structure, tables, row):
    """Nothing is kept of a message."""


@lean_kernel
def drop_message_scan(structure, tables, row):
    """Nothing was kept of a message."""


@lean_kernel
def put_slot_scan(structure, tables, slot):
    """Nothing is kept of a subscription."""
    return True


@lean_kernel
def drop_slot_scan(structure, tables, slot):
    """Nothing was kept of a subscription."""


@lean_kernel
def moved_slot_scan(structure, tables, slot):
    """Nothing is kept of where a subscription is."""
    return True


@lean_kernel
def foresee_slot_scan(structure, tables, slot, step):
    """Nothing is kept of a subscription."""


@lean_kernel
def search_scan(structure, tables, scratch, slot):
    """Find the messages that one of the two regions of the query holds, and the other does not."""
    subscribers, messages, counts = tables.subscribers, tables.messages, scratch.counts
    is_lonlat, regions = tables.rules[IS_LONLAT] != 0, scratch.query.regions
    n_left = n_entered = 0
    for row in range(messages.facts[N_ROWS]):
        if messages.sequences[row] < 0:
            continue
        counts[N_CANDIDATES] += 1
        box, polygons = messages.boxes[row], subscribers.polygons
        was = holds(regions, 0, is_lonlat, polygons, box[0], box[1], box[2], box[3])
        now = holds(regions, 1, is_lonlat, polygons, box[0], box[1], box[2], box[3])
        if was == now or not row_has_words(subscribers, slot, messages, row):
            continue
        if was:
            scratch.found[n_left] = messages.sequences[row]
            n_left += 1
        else:
            scratch.entered[n_entered] = messages.sequences[row]
            n_entered += 1
    counts[N_FOUND], counts[N_ENTERED] = n_left, n_entered


KERNELS = (
    has_room_scan, find_scan, search_scan, put_message_scan, drop_message_scan, put_slot_scan,
    drop_slot_scan, moved_slot_scan, foresee_slot_scan, find_reach_by_scan,
)  # fmt: skip
"""In the order of :mod:`earshot.semantics.moving.kernels.structures`."""
