"""How far a client may go unheard, and which messages end that.

A *reach* is a distance from a position: in x and in y for a rectangle or polygon, in all directions
for a circle. What every position within reach holds is the region made smaller by it; what some
position holds, the region made larger: the *impact region*. A reach is safe while no live message
with the right words lies between the two.
"""

from __future__ import annotations

import numpy as np

from earshot.kernels.jit import kernel, lean_kernel
from earshot.kernels.resuming import DONE
from earshot.model.arrays import BOX, CIRCLE, EVERYWHERE, POLYGON
from earshot.semantics.moving.kernels.arrays import (
    IS_LONLAT,
    N_ENTERED,
    N_FOUND,
    NEEDS_ROOM,
    ROW,
)
from earshot.semantics.moving.kernels.events import find_slots, search_changes
from earshot.semantics.moving.kernels.regions import copy_region, holds, inner_box, place_region
from earshot.semantics.moving.kernels.structures import drop_slot, has_room, put_slot

_FIRST, _GROWTH = 0.5, 4.0
"""Share of a region's size that is tried first, and by what it grows while that is safe."""
_HALVINGS = 4


@lean_kernel
def _hold_nothing(regions, which):
    regions.kinds[which] = EVERYWHERE
    for k in range(8):
        regions.boxes[which, k] = -np.inf if k % 4 >= 2 else np.inf


@lean_kernel
def stretch(tables, query, slot, x, y, reach):
    """Let the query be between what every position within reach holds, and what some of them do.

    Of a polygon only the box around it is known to be enough.
    """
    regions, polygons = tables.subscribers.regions, tables.subscribers.polygons
    is_lonlat = tables.rules[IS_LONLAT] != 0
    for which in range(2):
        sign = 2 * which - 1
        copy_region(regions, slot, query.regions, which)
        frames, kinds = query.regions.frames, query.regions.kinds
        if kinds[which] == POLYGON:
            spans, shape = polygons.spans, regions.shape_rows[slot]
            width = spans[shape, 2] - spans[shape, 0]
            if width < 0.0:
                width += 360.0
            kinds[which] = BOX
            frames[which, 0] = 0.5 * width if which else -1.0
            frames[which, 1] = 0.5 * (spans[shape, 3] - spans[shape, 1])
        least = np.inf
        for k in range(2, 3) if kinds[which] == CIRCLE else range(2):
            frames[which, k] += sign * reach
            least = min(least, frames[which, k])
        if least < 0.0:  # no place is held wherever it is
            _hold_nothing(query.regions, which)
        else:
            place_region(query.regions, which, is_lonlat, polygons, x, y)
        inner_box(query.regions, which, is_lonlat, query.inner, which)


@lean_kernel
def _is_safe(structure, tables, scratch, slot, x, y, reach):
    """Whether a subscription holds the same wherever it is within reach of a position."""
    stretch(tables, scratch.query, slot, x, y, reach)
    search_changes(structure, tables, scratch, slot)
    return scratch.counts[N_FOUND] + scratch.counts[N_ENTERED] == 0


@kernel
def measure_reaches(structure, tables, scratch, slots, places, sizes, mosts, reaches):
    """Fill in a reach of each slot that is safe, about the longest up to the most."""
    for i in range(len(slots)):
        slot, x, y = np.int64(slots[i]), places[i, 0], places[i, 1]
        safe, unsafe = 0.0, np.inf
        tried = min(_FIRST * sizes[i], mosts[i])
        while safe < mosts[i] and unsafe == np.inf:
            if _is_safe(structure, tables, scratch, slot, x, y, tried):
                safe = tried
            else:
                unsafe = tried
            tried = min(_GROWTH * tried, mosts[i])
        if unsafe < np.inf:
            for _ in range(_HALVINGS):
                middle = 0.5 * (safe + unsafe)
                if _is_safe(structure, tables, scratch, slot, x, y, middle):
                    safe = middle
                else:
                    unsafe = middle
        reaches[i] = safe


@kernel
def watch_slots(impacts, impact_tables, tables, scratch, slots, places, reaches, watched):
    """Note the impact regions of slots that are not watched so far; return what is lacking."""
    counts, regions = scratch.counts, impact_tables.subscribers.regions
    offsets = tables.subscribers.clause_offsets
    for i in range(counts[ROW], len(slots)):
        counts[ROW] = i
        slot = np.int64(slots[i])
        if not has_room(impacts, impact_tables, offsets[slot + 1] - offsets[slot]):
            return NEEDS_ROOM
        stretch(tables, scratch.query, slot, places[i, 0], places[i, 1], reaches[i])
        copy_region(scratch.query.regions, 1, regions, slot)
        if not put_slot(impacts, impact_tables, slot):
            return NEEDS_ROOM
        impact_tables.subscribers.flags[slot] = 1
        watched[slot, 0], watched[slot, 1] = places[i, 0], places[i, 1]
        watched[slot, 2] = reaches[i]
    counts[ROW] = 0
    return DONE


@kernel
def forget_slots(impacts, impact_tables, slots):
    """Watch slots no longer; return how many were watched."""
    n = 0
    for i in range(len(slots)):
        slot = np.int64(slots[i])
        if impact_tables.subscribers.flags[slot] == 1:
            drop_slot(impacts, impact_tables, slot)
            impact_tables.subscribers.flags[slot] = 0
            n += 1
    return n


@kernel
def outdate_slots(impacts, impact_tables, tables, scratch, watched, outdated):
    """Watch those no longer whom messages of a table make unsafe; return how many there are.

    The messages are those of ``impact_tables``.
    """
    messages, flags = impact_tables.messages, impact_tables.subscribers.flags
    query, polygons = scratch.query, tables.subscribers.polygons
    is_lonlat, n = tables.rules[IS_LONLAT] != 0, 0
    for row in range(len(messages.boxes)):
        find_slots(impacts, impact_tables, scratch, row)
        box = messages.boxes[row]
        for i in range(scratch.counts[N_FOUND]):
            slot = scratch.found[i]
            stretch(tables, query, slot, watched[slot, 0], watched[slot, 1], watched[slot, 2])
            always = holds(query.regions, 0, is_lonlat, polygons, box[0], box[1], box[2], box[3])
            ever = holds(query.regions, 1, is_lonlat, polygons, box[0], box[1], box[2], box[3])
            if always != ever:
                drop_slot(impacts, impact_tables, slot)
                flags[slot] = 0
                outdated[n] = slot
                n += 1
    return n
