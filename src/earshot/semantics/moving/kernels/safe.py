"""How far a client may go unheard, and which messages end that.

A *reach* is a distance from a place: in x and in y for a rectangle or polygon, in all directions
for a circle. What every position within reach holds is the region made smaller by it; what some
position holds, the region made larger: the *impact region*. A reach is safe while no live message
with the right words lies between the two.

[VLDBJ15] section 5.2, note 17, takes the distance to the nearest matching message, less the radius
of the subscription. That is the same where it holds no message; a subscription that holds some has
a safe region here, too. The place lies ahead of a subscriber that moves, if more is safe there.
"""

from __future__ import annotations

import numpy as np

from earshot.kernels.jit import kernel, lean_kernel
from earshot.kernels.resuming import DONE
from earshot.kernels.shapes import plane_distance, sphere_distance_m
from earshot.model.arrays import BOX, CIRCLE, EVERYWHERE, POLYGON, POSITION
from earshot.semantics.moving.kernels.arrays import (
    IS_LONLAT,
    N_ENTERED,
    N_FOUND,
    NEEDS_ROOM,
    ROW,
    SAFE_POSITION,
)
from earshot.semantics.moving.kernels.events import find_slots, search_changes
from earshot.semantics.moving.kernels.regions import copy_region, holds, inner_box, place_region
from earshot.semantics.moving.kernels.structures import drop_slot, has_room, put_slot

FARTHEST = 128.0
"""A safe region reaches so many times as far as the subscription's own region, or less."""
_FIRST, _GROWTH = 0.5, 4.0
"""Share of a region's size that is tried first, and by what it grows while that is safe."""
_HALVINGS = 6
_AHEAD, _TRIES = 0.9, 3
"""How far ahead of a position a place is tried, as a share of the reach so far, and how often."""
_SHARE = 1.0 - 1e-6
_LEAST = 1e-9
"""Shares that rounding cannot reach: of a reach, and of a coordinate."""
WATCHED, _MOVED = 1, 2
"""Flags of slots: they have a safe region; in the batch at hand, they leave it."""


# ---- places --------------------------------------------------------------------------------------


@lean_kernel
def _wrapped(x):
    return x - 360.0 if x > 180.0 else (x + 360.0 if x < -180.0 else x)


@lean_kernel
def _position(tables, slot):
    """Return where a subscription is, but for rounding."""
    regions, polygons = tables.subscribers.regions, tables.subscribers.polygons
    kind, is_lonlat = regions.kinds[slot], tables.rules[IS_LONLAT] != 0
    x, y = regions.frames[slot, 0], regions.frames[slot, 1]
    if kind == BOX:
        if is_lonlat and 2.0 * x >= 360.0:
            x = 0.0
        else:
            x += regions.boxes[slot, 0]
        y += regions.boxes[slot, 1]
    elif kind == POLYGON:
        shape = regions.shape_rows[slot]
        x, y = x + polygons.middles[shape, 0], y + polygons.middles[shape, 1]
    return (_wrapped(x), y) if is_lonlat else (x, y)


@lean_kernel
def _size(tables, slot):
    """Return how far a region reaches from its position, about."""
    regions, spans = tables.subscribers.regions, tables.subscribers.polygons.spans
    kind = regions.kinds[slot]
    if kind == CIRCLE:
        return regions.frames[slot, 2]
    if kind == POLYGON:
        shape = regions.shape_rows[slot]
        width = spans[shape, 2] - spans[shape, 0]
        return 0.5 * max(width + 360.0 if width < 0.0 else width, spans[shape, 3] - spans[shape, 1])
    return max(regions.frames[slot, 0], regions.frames[slot, 1]) if kind == BOX else 0.0


@lean_kernel
def _apart(is_round, is_lonlat, x, y, other_x, other_y):
    """Return the distance of two places, by which a reach is measured."""
    if is_round and is_lonlat:
        return sphere_distance_m(x, y, other_x, other_y, other_x, other_y)
    if is_round:
        return plane_distance(x, y, other_x, other_y, other_x, other_y)
    dx = abs(x - other_x)
    return max(min(dx, 360.0 - dx) if is_lonlat else dx, abs(y - other_y))


# ---- reaches -------------------------------------------------------------------------------------


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


@lean_kernel
def _longest(structure, tables, scratch, slot, x, y, least):
    """Return about the longest safe reach around a place, 0 where that is less than the least."""
    size, is_lonlat = _size(tables, slot), tables.rules[IS_LONLAT] != 0
    most, kind = FARTHEST * size, tables.subscribers.regions.kinds[slot]
    if is_lonlat and kind != CIRCLE:
        most = min(most, max(90.0 - abs(y), 0.0))  # neither over a pole nor around the world
    if kind == EVERYWHERE or not most >= least:
        return 0.0
    safe, unsafe = 0.0, np.inf
    tried = min(max(_FIRST * size, least), most)
    while safe < most and unsafe == np.inf:
        if _is_safe(structure, tables, scratch, slot, x, y, tried):
            safe = tried
        else:
            unsafe = tried
        tried = min(_GROWTH * tried, most)
    if safe < least:
        return 0.0
    if unsafe < np.inf:
        for _ in range(_HALVINGS):
            middle = 0.5 * (safe + unsafe)
            if _is_safe(structure, tables, scratch, slot, x, y, middle):
                safe = middle
            else:
                unsafe = middle
    return safe


@kernel
def measure_areas(structure, tables, scratch, slots, ways, leasts, areas):
    """Fill in a place and a safe reach around it for each slot, whose position is within.

    Args:
        structure: Arrays of a structure.
        tables: What there is.
        scratch: Working memory.
        slots: Who asks.
        ways: Where each slot went last, as a difference of positions; 0 where nobody knows.
        leasts: Reaches less than which are of no use to a slot of ``slots``.
        areas: (n, 3) place and reach; the reach is 0 where none was found.
    """
    is_lonlat, kinds = tables.rules[IS_LONLAT] != 0, tables.subscribers.regions.kinds
    for i in range(len(slots)):
        slot = np.int64(slots[i])
        x, y = _position(tables, slot)
        areas[i, 0], areas[i, 1], areas[i, 2] = x, y, 0.0
        if kinds[slot] == EVERYWHERE:
            areas[i, 0] = areas[i, 1] = 0.0
            continue
        reach = _longest(structure, tables, scratch, slot, x, y, leasts[i])
        least = _LEAST * max(abs(x), abs(y), _size(tables, slot))
        if not (reach > least and reach < np.inf):
            continue
        areas[i, 2] = reach
        is_round = kinds[slot] == CIRCLE
        way_x, way_y = ways[slot, 0], ways[slot, 1]
        length = _apart(is_round, is_lonlat, x, y, x + way_x, y + way_y)
        if not (length > least and length < np.inf):
            continue
        extent = reach
        for _ in range(_TRIES):
            share = _AHEAD * areas[i, 2] / length
            ahead_x, ahead_y = x + share * way_x, y + share * way_y
            if is_lonlat:
                ahead_x = _wrapped(ahead_x)
                if not (abs(ahead_y) < 85.0 and abs(share * way_x) < 90.0):
                    break
            # On a sphere, and by rounding, it is not just the share.
            distance = _apart(is_round, is_lonlat, ahead_x, ahead_y, x, y)
            reach = _longest(
                structure, tables, scratch, slot, ahead_x, ahead_y, distance / _SHARE / _SHARE
            )
            if not (reach > 0.0 and reach < np.inf and distance + reach > extent):
                break
            extent = distance + reach
            areas[i, 0], areas[i, 1], areas[i, 2] = ahead_x, ahead_y, reach


@lean_kernel
def mark_reports(tables, flags, watched, ways, slots, kinds, frames, marked):
    """Note where subscriptions went; mark the reports of those that stay where they are safe."""
    is_lonlat, regions = tables.rules[IS_LONLAT] != 0, tables.subscribers.regions
    for i in range(len(slots)):
        slot = np.int64(slots[i])
        marked[i] = kinds[i]
        if kinds[i] != POSITION:
            flags[slot] |= _MOVED
            continue
        x, y = _position(tables, slot)
        new_x, new_y = frames[i, 0], frames[i, 1]
        way_x = new_x - x
        ways[slot, 0], ways[slot, 1] = _wrapped(way_x) if is_lonlat else way_x, new_y - y
        distance = _apart(
            regions.kinds[slot] == CIRCLE, is_lonlat, watched[slot, 0], watched[slot, 1], new_x,
            new_y,
        )  # fmt: skip
        if not distance <= watched[slot, 2] * _SHARE:
            flags[slot] |= _MOVED
    for i in range(len(slots)):
        if flags[slots[i]] == WATCHED:
            marked[i] = SAFE_POSITION
    for i in range(len(slots)):
        flags[slots[i]] &= WATCHED


@lean_kernel
def way_lengths(tables, slots, ways, lengths):
    """Fill in how far each slot went last."""
    is_lonlat, kinds = tables.rules[IS_LONLAT] != 0, tables.subscribers.regions.kinds
    for i in range(len(slots)):
        slot = np.int64(slots[i])
        x, y = _position(tables, slot)
        lengths[i] = _apart(
            kinds[slot] == CIRCLE, is_lonlat, x, y, x - ways[slot, 0], y - ways[slot, 1]
        )


# ---- who is watched ------------------------------------------------------------------------------


@kernel
def watch_slots(impacts, impact_tables, tables, scratch, slots, areas, watched):
    """Note the impact regions of slots that are not watched so far; return what is lacking."""
    counts, regions = scratch.counts, impact_tables.subscribers.regions
    offsets = tables.subscribers.clause_offsets
    for i in range(counts[ROW], len(slots)):
        counts[ROW] = i
        slot = np.int64(slots[i])
        if not has_room(impacts, impact_tables, offsets[slot + 1] - offsets[slot]):
            return NEEDS_ROOM
        stretch(tables, scratch.query, slot, areas[i, 0], areas[i, 1], areas[i, 2])
        copy_region(scratch.query.regions, 1, regions, slot)
        if not put_slot(impacts, impact_tables, slot):
            return NEEDS_ROOM
        impact_tables.subscribers.flags[slot] = WATCHED
        for k in range(3):
            watched[slot, k] = areas[i, k]
    counts[ROW] = 0
    return DONE


@kernel
def forget_slots(impacts, impact_tables, slots):
    """Watch slots no longer; return how many were watched."""
    n = 0
    for i in range(len(slots)):
        slot = np.int64(slots[i])
        if impact_tables.subscribers.flags[slot] & WATCHED:
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
