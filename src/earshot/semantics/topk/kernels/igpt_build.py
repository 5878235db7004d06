"""Building of :mod:`earshot.semantics.topk.kernels.igpt`, which describes the arrays."""

from __future__ import annotations

import numpy as np

from earshot.kernels.jit import kernel
from earshot.kernels.searching import first_at_least
from earshot.model.arrays import Float64s, Int32s, Int64s
from earshot.semantics.topk.kernels.arrays import Float32s, Subscribers
from earshot.semantics.topk.kernels.igpt import (
    ALPHA,
    BAND_BITS,
    INNER,
    KEY,
    NEXT,
    REST,
    WEIGHT,
    IgptArrays,
    key_of,
    need_of,
    refresh_cell,
    refresh_group,
    round_down,
    star,
)

CURVE_BITS = 21
"""Bits by axis of :func:`.window.curve_keys`, hence levels of the tree."""


@kernel
def find_leaves(keys: Int64s, capacity: int) -> tuple[Int64s, Int64s]:
    """Return the first place of each leaf, and the end; and the levels of the leaves.

    ``keys`` are places on the curve, ascending. A node with more than ``capacity`` of them is
    split, unless it is of the lowest level. Leaves without any are left out.
    """
    n = len(keys)
    starts = np.empty(n + 1, np.int64)
    levels = np.empty(n, np.int64)
    n_leaves = 0
    # A node pushes at most 8 children, and one of them is popped at once.
    stack = np.empty((7 * CURVE_BITS + 8, 3), np.int64)
    stack[0] = (0, n, 0)
    height = 1 if n else 0
    while height > 0:
        height -= 1
        start, stop, level = stack[height, 0], stack[height, 1], stack[height, 2]
        if stop - start <= capacity or level == CURVE_BITS:
            starts[n_leaves] = start
            levels[n_leaves] = level
            n_leaves += 1
            continue
        shift = 3 * (CURVE_BITS - 1 - level)
        # The last child first, so that leaves come in the order of the curve.
        while stop > start:
            first = first_at_least(keys, start, stop - 1, keys[stop - 1] >> shift << shift)
            stack[height, 0], stack[height, 1], stack[height, 2] = first, stop, level + 1
            height += 1
            stop = first
    starts[n_leaves] = n
    return starts[: n_leaves + 1].copy(), levels[:n_leaves].copy()


@kernel
def _gather(key: int, axis: int) -> int:
    """Return the coordinate of an axis out of a place on the curve."""
    value = 0
    for bit in range(CURVE_BITS):
        value |= (key >> (3 * bit + axis) & 1) << bit
    return value


@kernel
def fill_cells(
    places: Float64s,
    keys: Int64s,
    order: Int64s,
    starts: Int64s,
    levels: Int64s,
    boxes: Float64s,
    row_cells: Int64s,
    inner: Float32s,
) -> None:
    """Fill boxes of cells, and for each row its cell and the distance to the cell's nearest side.

    ``places`` and ``keys`` are by row; ``order`` sorts rows by keys. Along an axis in which the
    places have no extent, cells have no sides: messages may be anywhere.
    """
    if len(places) == 0:
        return
    lows = np.empty(3)
    side = 0.0
    has_extent = np.zeros(3, np.bool_)
    for axis in range(3):
        lows[axis] = places[:, axis].min()
        extent = places[:, axis].max() - lows[axis]
        has_extent[axis] = extent > 0.0
        side = max(side, extent)
    scale = 2097151.0 / side if side > 0.0 else 0.0
    for cell in range(len(levels)):
        start, stop = starts[cell], starts[cell + 1]
        shift = CURVE_BITS - levels[cell]
        for axis in range(3):
            low, high = -np.inf, np.inf
            if has_extent[axis]:
                corner = _gather(keys[order[start]], axis) >> shift << shift
                low = lows[axis] + corner / scale
                high = lows[axis] + (corner + (1 << shift)) / scale
                for i in range(start, stop):  # a place may be outside by rounding
                    low = min(low, places[order[i], axis])
                    high = max(high, places[order[i], axis])
            boxes[cell, axis], boxes[cell, axis + 3] = low, high
        for i in range(start, stop):
            row = order[i]
            nearest = np.inf
            for axis in range(3):
                at = places[row, axis]
                nearest = min(nearest, at - boxes[cell, axis], boxes[cell, axis + 3] - at)
            row_cells[row] = cell
            # A cell without any side has no message outside.
            inner[row] = round_down(nearest) if nearest < np.inf else 0.0


@kernel
def fill_rows(
    subscribers: Subscribers, slots: Int32s, keys: Float32s, stars: Float32s, needs: Float32s
) -> None:
    """Fill the key, alpha* and need of each row."""
    for row in range(len(slots)):
        slot = slots[row]
        alpha, threshold = subscribers.alphas[slot], subscribers.thresholds[slot]
        keys[row] = key_of(threshold, alpha)
        stars[row] = star(alpha)
        needs[row] = need_of(threshold, alpha)


@kernel
def largest_token(subscribers: Subscribers, slots: Int32s) -> tuple[np.int64, int]:
    """Return the largest token of slots, -1 where there is none, and the number of all."""
    largest, n = np.int64(-1), 0
    for slot in slots:
        first, stop = subscribers.token_offsets[slot], subscribers.token_offsets[slot + 1]
        n += stop - first
        for at in range(first, stop):
            largest = max(largest, np.int64(subscribers.tokens[at]))
    return largest, n


@kernel
def count_groups(
    subscribers: Subscribers,
    slots: Int32s,
    order: Int64s,
    row_codes: Int32s,
    posting_offsets: Int64s,
    group_offsets: Int32s,
) -> int:
    """Fill where the postings and groups of tokens begin; return the number of tokens.

    ``order`` is that of cells, bands and keys.
    """
    n_tokens = len(group_offsets) - 1
    last_codes = np.full(n_tokens, -1, np.int32)
    for row in order:
        slot, code = slots[row], row_codes[row]
        for at in range(subscribers.token_offsets[slot], subscribers.token_offsets[slot + 1]):
            token = subscribers.tokens[at]
            posting_offsets[token + 1] += 1
            if last_codes[token] != code:
                last_codes[token] = code
                group_offsets[token + 1] += 1
    n_distinct = 0
    for token in range(n_tokens):
        n_distinct += posting_offsets[token + 1] > 0
        posting_offsets[token + 1] += posting_offsets[token]
        group_offsets[token + 1] += group_offsets[token]
    return n_distinct


@kernel
def fill_lists(
    component: IgptArrays,
    subscribers: Subscribers,
    order: Int64s,
    posting_offsets: Int64s,
    keys: Float32s,
    stars: Float32s,
    inner: Float32s,
) -> None:
    """Fill the postings and groups of all tokens, and the cells' needs."""
    n_tokens = len(component.group_offsets) - 1
    next_postings = posting_offsets[:n_tokens].copy()
    next_groups = component.group_offsets[:n_tokens].copy()
    postings = component.postings
    for row in order:
        slot, code = component.slots[row], component.row_codes[row]
        rest, following = 0.0, np.float32(0.0)
        first, stop = subscribers.token_offsets[slot], subscribers.token_offsets[slot + 1]
        for source in range(stop - 1, first - 1, -1):
            token = subscribers.tokens[source]
            weight = subscribers.weights[source]
            group = next_groups[token]
            if group == component.group_offsets[token] or component.group_codes[group - 1] != code:
                component.group_codes[group] = code
                component.group_starts[group] = next_postings[token]
                next_groups[token] += 1
            at = next_postings[token]
            next_postings[token] += 1
            component.posting_rows[at] = row
            postings[at, KEY] = keys[row]
            postings[at, ALPHA] = stars[row]
            postings[at, INNER] = inner[row]
            postings[at, WEIGHT] = weight
            postings[at, REST] = np.float32(rest * 1.0000002)
            postings[at, NEXT] = following
            rest += np.float64(weight)
            following = max(following, weight)
    n_groups = len(component.group_codes)
    component.group_starts[n_groups] = len(component.posting_rows)
    for group in range(n_groups):
        refresh_group(component, group)
    for cell in range(len(component.cell_needs)):
        refresh_cell(component, cell)


@kernel
def codes_of(row_cells: Int64s, bands: Int64s, keys: Float32s, row_codes: Int32s) -> Int64s:
    """Fill rows' codes; return numbers in whose order rows are by cell, band and key."""
    n = len(keys)
    bits = keys.view(np.int32)
    numbers = np.empty(n, np.int64)
    for row in range(n):
        row_codes[row] = row_cells[row] << BAND_BITS | bands[row]
        # Bits of floats ascend as integers do, but for negative ones, which descend.
        low = np.int64(bits[row])
        if low < 0:
            low = -(low & 0x7FFFFFFF)
        numbers[row] = (np.int64(row_codes[row]) << 32) + low + 0x80000000
    return numbers
