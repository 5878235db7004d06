"""How far a subscription can be from a place until a live message begins to make a difference.

A *reach* is a distance from a place: in x and in y for a rectangle or polygon, in all directions
for a circle. What every position within reach holds is the region made smaller by it; what some
position holds, the region made larger. Each message has a *limit*: up to there, it lies within
both or within neither. The least limit of the messages with the right words is what is looked for,
in one of two ways:

- *By place*, through the quadtree of messages, the nearest part first. Whatever is found makes the
  two regions narrower, between which the others are looked for. A walk goes no farther than four
  times as far as the one before, so its work depends on how far it has to go.
- *By words*, through the lists of the rarest words, wherever their messages are; once walking took
  about as long as that will.
"""

from __future__ import annotations

import numpy as np

from earshot.indexes.kernels.blocks import low_bits
from earshot.kernels.box_keys import trailing_zeros
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.kernels.processor import prefetch
from earshot.kernels.shapes import plane_distance, sphere_distance_m
from earshot.model.arrays import BOX, CIRCLE, EVERYWHERE, EVERYWHERE_TOKEN, POLYGON
from earshot.semantics.moving.kernels.arrays import IS_LONLAT, N_CANDIDATES, N_NODES, N_ROWS
from earshot.semantics.moving.kernels.hashed_lists import BLOCK as LIST_BLOCK
from earshot.semantics.moving.kernels.hashed_lists import NOT_KEPT, entry_lives, entry_name
from earshot.semantics.moving.kernels.quadtree import (
    BLOCK,
    NOTED,
    having_children,
    hull_of,
    prefetch_block,
    touches_one,
)
from earshot.semantics.moving.kernels.regions import (
    boxes_touch,
    copy_region,
    inner_box,
    place_region,
)
from earshot.semantics.moving.kernels.vectors import having_mask, open_mask
from earshot.semantics.moving.kernels.words import row_has_words

_FIRST, _GROWTH = 0.5, 4.0
"""Share of a region's size up to which is walked first, and by what that grows."""
_MOST_NODES = 1 << 15
"""Nodes after which nobody walks any farther: what is known to be safe by then is."""
_ENTRIES_PER_NODE, _FEW_NODES = 16, 8
"""Entries of lists that are looked at sooner than the next walk is begun, per node of those before,
and as many nodes to begin with: an entry takes 20 ns, a node 100."""
_NEVER = np.int64(1) << 60
_MARGIN = 1e-12
"""Share of coordinates and sizes that rounding cannot reach."""
_NOTED_FEW = 12
"""Messages that are looked at together, so as to wait for memory once."""


# ---- places --------------------------------------------------------------------------------------


@lean_kernel
def wrapped(x):
    """Return a longitude that passed 180 degrees by less than a turn."""
    return x - 360.0 if x > 180.0 else (x + 360.0 if x < -180.0 else x)


@lean_kernel
def position_of(tables, slot):
    """Return the last position of a subscription; its middle, but for rounding, if it has none.

    Rectangles around the world lie at the longitude 0.
    """
    regions, polygons = tables.subscribers.regions, tables.subscribers.polygons
    kind, is_lonlat = regions.kinds[slot], tables.rules[IS_LONLAT] != 0
    x, y = regions.frames[slot, 0], regions.frames[slot, 1]
    at_x, at_y = regions.frames[slot, 2], regions.frames[slot, 3]
    # At (0, 0) the sums below are exact.
    is_known = (kind in (BOX, POLYGON)) and (at_x != 0.0 or at_y != 0.0)
    if kind == BOX and is_lonlat and 2.0 * x >= 360.0:
        return 0.0, at_y if is_known else y + regions.boxes[slot, 1]
    if is_known:
        return at_x, at_y
    if kind == BOX:
        x, y = x + regions.boxes[slot, 0], y + regions.boxes[slot, 1]
    elif kind == POLYGON:
        shape = regions.shape_rows[slot]
        x, y = x + polygons.middles[shape, 0], y + polygons.middles[shape, 1]
    return (wrapped(x), y) if is_lonlat else (x, y)


@lean_kernel
def half_sides(tables, slot):
    """Return half the width and height of a rectangle, or of the box around a polygon."""
    regions, spans = tables.subscribers.regions, tables.subscribers.polygons.spans
    if regions.kinds[slot] != POLYGON:
        return regions.frames[slot, 0], regions.frames[slot, 1]
    shape = regions.shape_rows[slot]
    width = spans[shape, 2] - spans[shape, 0]
    return 0.5 * (width + 360.0 if width < 0.0 else width), 0.5 * (
        spans[shape, 3] - spans[shape, 1]
    )


@lean_kernel
def region_size(tables, slot):
    """Return how far a region reaches from its position, about."""
    if tables.subscribers.regions.kinds[slot] == CIRCLE:
        return tables.subscribers.regions.frames[slot, 2]
    half_width, half_height = half_sides(tables, slot)
    return max(half_width, half_height)


@lean_kernel
def apart(is_round, is_lonlat, x, y, other_x, other_y):
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
            half_width, half_height = half_sides(tables, slot)
            kinds[which] = BOX
            frames[which, 0] = half_width if which else -1.0
            frames[which, 1] = half_height
        least = np.inf
        for k in range(2, 3) if kinds[which] == CIRCLE else range(2):
            frames[which, k] += sign * reach
            least = min(least, frames[which, k])
        if least < 0.0:  # no place is held wherever it is
            _hold_nothing(query.regions, which)
        else:
            place_region(query.regions, which, is_lonlat, polygons, x, y)
        inner_box(query.regions, which, is_lonlat, query.inner, which)


# ---- limits --------------------------------------------------------------------------------------


@lean_kernel
def _gap(is_lonlat, x, low, high):
    """Return how far a coordinate is from an interval; ``low > high`` crosses 180 degrees."""
    if low <= high:
        gap = max(low - x, x - high, 0.0)
        return max(min(gap, 360.0 + low - x, 360.0 + x - high), 0.0) if is_lonlat else gap
    return max(min(low - x, x - high), 0.0)


@lean_kernel
def limit_of(tables, slot, x, y, row):
    """Return the limit of a message around a place, whatever its words are."""
    regions, box = tables.subscribers.regions, tables.messages.boxes[row]
    is_lonlat, kind = tables.rules[IS_LONLAT] != 0, regions.kinds[slot]
    if kind == CIRCLE:
        radius = regions.frames[slot, 2]
        if not is_lonlat:
            return abs(plane_distance(x, y, box[0], box[1], box[2], box[3]) - radius)
        if box[0] <= box[2]:
            return abs(sphere_distance_m(x, y, box[0], box[1], box[2], box[3]) - radius)
        west = sphere_distance_m(x, y, -180.0, box[1], box[2], box[3])
        return abs(min(sphere_distance_m(x, y, box[0], box[1], 180.0, box[3]), west) - radius)
    half_width, half_height = half_sides(tables, slot)
    gap_x = _gap(is_lonlat, x, box[0], box[2]) - half_width
    gap_y = max(box[1] - y, y - box[3], 0.0) - half_height
    # Of a polygon, nothing says which messages around it are within.
    return max(gap_x, gap_y, 0.0) if kind == POLYGON else abs(max(gap_x, gap_y))


@inlined_kernel
def _bounds(tables, query, slot, x, y, reach):
    """Stretch the query; return the box to be touched, whether that is not all, what is inside."""
    stretch(tables, query, slot, x, y, reach)
    inner = query.inner
    low_x, low_y, high_x, high_y, is_far = hull_of(query.regions.boxes)
    within = (
        max(inner[0, 0], inner[1, 0]), max(inner[0, 1], inner[1, 1]),
        min(inner[0, 2], inner[1, 2]), min(inner[0, 3], inner[1, 3]),
    )  # fmt: skip
    return (low_x, low_y, high_x, high_y), within, is_far


@inlined_kernel
def _is_within(box, within):
    return (
        within[0] <= box[0] and within[1] <= box[1] and within[2] >= box[2] and within[3] >= box[3]
    )


@inlined_kernel
def _note_block(tree, tables, scratch, slot, block, n_entries, within, n):
    """Note the messages of a block that may make a difference; return how many are noted."""
    messages, stack, boxes = tables.messages, scratch.stack, scratch.query.regions.boxes
    first = block * BLOCK
    mask = having_mask(tree.entry_words, first, tables.subscribers.words[slot])
    mask &= low_bits(n_entries)
    while mask != 0:
        entry = first + trailing_zeros(mask)
        mask &= mask - np.uint32(1)
        if _is_within(tree.entry_boxes[entry], within) or not touches_one(tree, entry, boxes):
            continue
        row = np.int64(tree.entry_rows[entry])
        row = ~row if row < 0 else row
        stack[NOTED + n] = row
        n += 1
        prefetch(messages.boxes, row)
        prefetch(messages.words, row)
        prefetch(messages.token_starts, row)
        prefetch(messages.n_tokens, row)
    return n


@lean_kernel
def _least_of_noted(tables, scratch, slot, x, y, n, best):
    """Return the least limit of the messages that were noted, or the best so far."""
    messages, noted = tables.messages, scratch.stack
    for i in range(NOTED, NOTED + n):
        prefetch(messages.tokens, messages.token_starts[noted[i]])
    scratch.counts[N_CANDIDATES] += n
    for i in range(NOTED, NOTED + n):
        limit = limit_of(tables, slot, x, y, noted[i])
        if limit < best and row_has_words(tables.subscribers, slot, messages, noted[i]):
            best = limit
    return best


# ---- by place ------------------------------------------------------------------------------------


@lean_kernel
def _walk(tree, tables, scratch, slot, x, y, most, least):
    """Return the least limit up to ``most``, by the tree; less than ``least`` if that is so."""
    counts, stack, best, bounded = scratch.counts, scratch.stack, most, most
    probes, boxes = tables.subscribers.probes, scratch.query.regions.boxes
    hull, within, is_far = _bounds(tables, scratch.query, slot, x, y, best)
    stack[0] = 0
    top, n_noted, block, n_entries = 1, 0, np.int64(-1), 0
    while top > 0 or n_noted > 0 or block >= 0:
        if n_noted > _NOTED_FEW or (top == 0 and block < 0):
            best = _least_of_noted(tables, scratch, slot, x, y, n_noted, best)
            n_noted = 0
            if best < least:
                return best
            if best < bounded:
                hull, within, is_far = _bounds(tables, scratch.query, slot, x, y, best)
                bounded = best
            continue
        if block >= 0:
            n_noted = _note_block(tree, tables, scratch, slot, block, n_entries, within, n_noted)
            block, n_entries = np.int64(tree.block_next[block]), BLOCK
            continue
        top -= 1
        node = stack[top]
        if not _is_open(tree.node_boxes[node], hull, within):  # any more
            continue
        counts[N_NODES] += 1
        block = np.int64(tree.node_blocks[node])
        n_entries = (tree.node_sizes[node] - 1) % BLOCK + 1
        first = np.int64(tree.node_children[node])
        if first < 0:
            continue
        mask = open_mask(tree.node_boxes, first, hull, within)
        if mask != 0:
            mask &= having_children(tree, first, probes, slot)
        nearest = np.int64(x > tree.node_splits[node, 0]) + 2 * np.int64(
            y > tree.node_splits[node, 1]
        )
        for k in range(3, -1, -1):  # the nearest is visited first
            child = first + (k ^ nearest)
            if mask >> np.uint32(4 * (k ^ nearest)) & np.uint32(1) == 0:
                continue
            if is_far and not _touches_either(boxes, tree.node_boxes[child]):
                continue
            prefetch_block(tree, np.int64(tree.node_blocks[child]))
            stack[top] = child
            top += 1
    return best


@inlined_kernel
def _is_open(box, hull, within):
    is_touched = box[0] <= hull[2] and box[1] <= hull[3] and box[2] >= hull[0] and box[3] >= hull[1]
    return is_touched and not _is_within(box, within)


@inlined_kernel
def _touches_either(boxes, box):
    return boxes_touch(boxes, 0, box[0], box[1], box[2], box[3]) or boxes_touch(
        boxes, 1, box[0], box[1], box[2], box[3]
    )


# ---- by words ------------------------------------------------------------------------------------


@inlined_kernel
def _rarest(words, subscribers, messages, clause):
    """Return the word of an alternative whose list is the shortest, and how long; -1 for none."""
    token, shortest = np.int64(-1), _NEVER
    for i in range(subscribers.token_offsets[clause], subscribers.token_offsets[clause + 1]):
        other = np.int64(subscribers.token_ids[i])
        if other > EVERYWHERE_TOKEN:
            size = words.lists[other, 1] if other < len(words.lists) else NOT_KEPT
            if messages.n_having[other] == 0:
                size = 0
            if 0 <= size < shortest:
                token, shortest = other, size
    return token, shortest


@lean_kernel
def _n_listed(words, subscribers, messages, slot):
    """Return the length of lists that have all messages a subscription may match."""
    n = np.int64(0)
    for clause in range(subscribers.clause_offsets[slot], subscribers.clause_offsets[slot + 1]):
        n = min(n + _rarest(words, subscribers, messages, clause)[1], _NEVER)
    return n


@lean_kernel
def _least_listed(words, tables, scratch, slot, x, y, clause, best):
    """Return the least limit of messages in the shortest list of an alternative, or the best."""
    subscribers, messages = tables.subscribers, tables.messages
    token, size = _rarest(words, subscribers, messages, clause)
    if size == 0:
        return best
    scratch.counts[N_CANDIDATES] += size
    at, block, in_block = np.int64(0), words.lists[token, 0], (size - 1) % LIST_BLOCK + 1
    while at < size:
        if size > 1:
            for entry in words.block_entries[block * LIST_BLOCK : block * LIST_BLOCK + in_block]:
                prefetch(messages.boxes, entry_name(entry))
        for k in range(in_block):
            entry = block if size == 1 else words.block_entries[block * LIST_BLOCK + k]
            row = entry_name(entry)
            limit = limit_of(tables, slot, x, y, row)
            # Another message may have the row by now; its own entry is elsewhere.
            if (
                limit < best
                and entry_lives(messages, entry)
                and row_has_words(subscribers, slot, messages, row)
            ):
                best = limit
        at += in_block
        if at < size:
            block, in_block = np.int64(words.block_next[block]), LIST_BLOCK
    return best


# ---- what structures choose from -----------------------------------------------------------------


@lean_kernel
def _margin(tables, slot, x, y, most):
    """Return what rounding cannot reach."""
    return _MARGIN * (max(abs(x), abs(y)) + region_size(tables, slot) + most)


@inlined_kernel
def _told(limit, beyond, margin, most, least):
    """Return the reach that a limit leaves, 0 where it is less than the least."""
    reach = most if limit >= beyond else limit - margin
    return reach if reach >= max(least, 0.0) else 0.0


@lean_kernel
def find_reach(tree, words, has_lists, tables, scratch, slot, x, y, most, least):
    """Return how far from a place no live message makes a difference.

    Args:
        tree: Messages by place.
        words: Messages by word.
        has_lists: Whether all live messages are in the lists of words.
        tables: What there is.
        scratch: Working memory.
        slot: Who asks.
        x: The place.
        y: The same.
        most: How far is looked.
        least: A reach that is less is of no use: then 0 is returned.
    """
    subscribers, counts = tables.subscribers, scratch.counts
    margin = _margin(tables, slot, x, y, most)
    beyond, before = most + margin, counts[N_NODES]
    n_listed = _n_listed(words, subscribers, tables.messages, slot) if has_lists else _NEVER
    tried, limit = min(max(_FIRST * region_size(tables, slot), least) + margin, beyond), 0.0
    while n_listed > _ENTRIES_PER_NODE * (counts[N_NODES] - before + _FEW_NODES):
        limit = _walk(tree, tables, scratch, slot, x, y, tried, least)
        if limit < tried or tried == beyond or counts[N_NODES] - before > _MOST_NODES:
            return _told(limit, beyond, margin, most, least)
        tried = min(_GROWTH * tried, beyond)
    limit = beyond
    for clause in range(subscribers.clause_offsets[slot], subscribers.clause_offsets[slot + 1]):
        limit = _least_listed(words, tables, scratch, slot, x, y, clause, limit)
    return _told(limit, beyond, margin, most, least)


@lean_kernel
def find_reach_by_scan(structure, tables, scratch, slot, x, y, most, least):
    """Return the same by comparing with every message."""
    messages, subscribers = tables.messages, tables.subscribers
    margin, words = _margin(tables, slot, x, y, most), subscribers.words[slot]
    limit = beyond = most + margin
    for row in range(messages.facts[N_ROWS]):
        if words & ~messages.words[row] == 0 and messages.sequences[row] >= 0:
            found = limit_of(tables, slot, x, y, row)
            if found < limit and row_has_words(subscribers, slot, messages, row):
                limit = found
                if limit < least:
                    break
    return _told(limit, beyond, margin, most, least)
