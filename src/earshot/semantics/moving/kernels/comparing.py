"""A message beside a subscription, or beside the two regions of a query."""

from __future__ import annotations

import numpy as np

from earshot.kernels.jit import inlined_kernel
from earshot.semantics.moving.kernels.arrays import (
    IS_LONLAT,
    N_CANDIDATES,
    N_ENTERED,
    N_FOUND,
    STAMP,
)
from earshot.semantics.moving.kernels.hashed_lists import entry_lives, entry_name
from earshot.semantics.moving.kernels.regions import boxes_touch, holds
from earshot.semantics.moving.kernels.words import clause_is_met, row_has_words


@inlined_kernel
def note_change(tables, scratch, slot, row):
    """Note a live message that one region of the query holds alone, if it is not noted yet."""
    subscribers, messages, query = tables.subscribers, tables.messages, scratch.query
    counts, regions = scratch.counts, query.regions
    counts[N_CANDIDATES] += 1
    is_lonlat, polygons = tables.rules[IS_LONLAT] != 0, subscribers.polygons
    min_x, min_y = messages.boxes[row, 0], messages.boxes[row, 1]
    max_x, max_y = messages.boxes[row, 2], messages.boxes[row, 3]
    if min_x <= max_x and not (
        boxes_touch(regions.boxes, 0, min_x, min_y, max_x, max_y)
        or boxes_touch(regions.boxes, 1, min_x, min_y, max_x, max_y)
    ):
        return
    was = holds(regions, 0, is_lonlat, polygons, min_x, min_y, max_x, max_y)
    now = holds(regions, 1, is_lonlat, polygons, min_x, min_y, max_x, max_y)
    if was == now or scratch.stamps[row] == counts[STAMP]:
        return
    if not row_has_words(subscribers, slot, messages, row):
        return
    scratch.stamps[row] = counts[STAMP]
    if was:
        scratch.found[counts[N_FOUND]] = messages.sequences[row]
        counts[N_FOUND] += 1
    else:
        scratch.entered[counts[N_ENTERED]] = messages.sequences[row]
        counts[N_ENTERED] += 1


@inlined_kernel
def note_holder(tables, scratch, row, clause):
    """Note the subscription of an alternative if it holds a message and is not noted yet."""
    subscribers, counts = tables.subscribers, scratch.counts
    counts[N_CANDIDATES] += 1
    slot = np.int64(subscribers.clause_slots[clause])
    if scratch.stamps[slot] == counts[STAMP]:
        return
    box = tables.messages.boxes[row]
    if clause_is_met(subscribers, clause, scratch.marks) and holds(
        subscribers.regions, slot, tables.rules[IS_LONLAT] != 0, subscribers.polygons, box[0],
        box[1], box[2], box[3],
    ):  # fmt: skip
        scratch.stamps[slot] = counts[STAMP]
        scratch.found[counts[N_FOUND]] = slot
        counts[N_FOUND] += 1


@inlined_kernel
def note_entry(tables, scratch, slot, entry):
    """Note the change of a message by its entry in a list, if it lives and may have the words."""
    row = entry_name(entry)
    lacks_words = tables.subscribers.words[slot] & ~tables.messages.words[row]
    if not lacks_words and entry_lives(tables.messages, entry):
        note_change(tables, scratch, slot, row)
