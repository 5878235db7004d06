"""How far a client may go unheard, and which messages end that.

A reach (:mod:`earshot.semantics.moving.kernels.reaches`) is safe while no live message with the
right words lies between what every position within it holds, and what some position holds: the
*impact region*.

[VLDBJ15] section 5.2, note 17, takes the distance to the nearest matching message, less the radius
of the subscription. That is the same where it holds no message; a subscription that holds some has
a safe region here, too. The place lies ahead of a subscriber that moves, if more is safe there.
"""

from __future__ import annotations

import math

import numpy as np

from earshot.kernels.jit import kernel, lean_kernel
from earshot.kernels.resuming import DONE
from earshot.model.arrays import CIRCLE, EARTH_RADIUS_M, EVERYWHERE, POSITION
from earshot.semantics.moving.kernels.arrays import (
    IS_LONLAT,
    N_FOUND,
    NEEDS_ROOM,
    ROW,
    SAFE_POSITION,
)
from earshot.semantics.moving.kernels.events import find_slots
from earshot.semantics.moving.kernels.ordering import order_by_place
from earshot.semantics.moving.kernels.reaches import (
    apart,
    position_of,
    region_size,
    stretch,
    wrapped,
)
from earshot.semantics.moving.kernels.regions import copy_region, holds
from earshot.semantics.moving.kernels.structures import drop_slot, has_room, put_slot, reach_of

FARTHEST = 128.0
"""A safe region reaches so many times as far as the subscription's own region, or less."""
_AHEAD, _TRIES = 0.9, 3
"""How far ahead of a position a place is tried, as a share of the reach so far, and how often."""
_SHARE = 1.0 - 1e-6
_LEAST = 1e-9
"""Shares that rounding cannot reach: of a reach, and of a coordinate."""
_DEGREE_M = math.pi / 180.0 * EARTH_RADIUS_M
WATCHED, _MOVED = 1, 2
"""Flags of slots: they have a safe region; in the batch at hand, they leave it."""


@lean_kernel
def _longest(structure, tables, scratch, slot, x, y, least):
    """Return the longest safe reach around a place, 0 where that is less than the least."""
    most, kind = FARTHEST * region_size(tables, slot), tables.subscribers.regions.kinds[slot]
    if tables.rules[IS_LONLAT] and kind != CIRCLE:
        most = min(most, max(90.0 - abs(y), 0.0))  # neither over a pole nor around the world
    if kind == EVERYWHERE or not most >= least:
        return 0.0
    return reach_of(structure, tables, scratch, slot, x, y, most, least)


@kernel
def measure_areas(structure, tables, scratch, slots, ways, leasts, areas, order):
    """Fill in a place and a safe reach around it for each slot, whose position is within.

    Those near each other come together: what one of them has read is at hand for the next.

    Args:
        structure: Arrays of a structure.
        tables: What there is.
        scratch: Working memory.
        slots: Who asks.
        ways: Where each slot went last, as a difference of positions; 0 where nobody knows.
        leasts: Reaches less than which are of no use to a slot of ``slots``.
        areas: (n, 3) place and reach; the reach is 0 where none was found.
        order: (n,) working memory.
    """
    is_lonlat, kinds = tables.rules[IS_LONLAT] != 0, tables.subscribers.regions.kinds
    order_by_place(tables.subscribers.regions.boxes, slots, order, scratch.stack)
    for i in order:
        slot = np.int64(slots[i])
        x, y = position_of(tables, slot)
        areas[i, 0], areas[i, 1], areas[i, 2] = x, y, 0.0
        if kinds[slot] == EVERYWHERE:
            areas[i, 0] = areas[i, 1] = 0.0
            continue
        reach = _longest(structure, tables, scratch, slot, x, y, leasts[i])
        is_round = kinds[slot] == CIRCLE
        unit = _DEGREE_M if is_round and is_lonlat else 1.0
        least = _LEAST * max(unit * abs(x), unit * abs(y), region_size(tables, slot))
        if not (reach > least and reach < np.inf):
            continue
        areas[i, 2] = reach
        way_x, way_y = ways[slot, 0], ways[slot, 1]
        length = apart(is_round, is_lonlat, x, y, x + way_x, y + way_y)
        if not (length > least and length < np.inf):
            continue
        extent = reach
        for _ in range(_TRIES):
            share = _AHEAD * areas[i, 2] / length
            ahead_x, ahead_y = x + share * way_x, y + share * way_y
            if is_lonlat:
                ahead_x = wrapped(ahead_x)
                if not (abs(ahead_y) < 85.0 and abs(share * way_x) < 90.0):
                    break
            # On a sphere, and by rounding, it is not just the share.
            distance = apart(is_round, is_lonlat, ahead_x, ahead_y, x, y)
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
        x, y = position_of(tables, slot)
        new_x, new_y = frames[i, 0], frames[i, 1]
        way_x = new_x - x
        ways[slot, 0], ways[slot, 1] = wrapped(way_x) if is_lonlat else way_x, new_y - y
        distance = apart(
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
        x, y = position_of(tables, slot)
        lengths[i] = apart(
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
