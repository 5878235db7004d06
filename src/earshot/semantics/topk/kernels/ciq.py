"""Dissemination by CIQ, the rival of [PVLDB16] section 2.2.

Space is halved along each axis in which places have an extent, ``levels`` times. For a subscription
it falls into disjoint cells: at each level the siblings of the cell that has its place, and at the
last level this cell too. In each of them the subscription is a *member* with a textual bound

    MinT = (threshold - alpha x nearness of the cell) / (1 - alpha)

that a message there must reach. A cell has inverted lists by token, ordered by subscription. A
message goes through the lists of its tokens in the cells that have its place, one per level,
document-at-a-time, and scores the members whose bound its text reaches.

Outermost cells reach to infinity, so a message is in exactly one cell of each level wherever it is.
The largest distance is only known when messages come: bounds are set when the first one does.

Cell ``code`` of level l is number ``2^d + 2^2d + ... + 2^(l-1)d + code`` of d axes; a code has d
bits per level, the first level highest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from earshot.kernels.jit import kernel, lean_kernel
from earshot.kernels.searching import first_at_least
from earshot.model.arrays import Float64s, Int32s, Int64s
from earshot.semantics.topk.kernels.arrays import (
    CELLS,
    POSTINGS,
    Dispatch,
    Float32s,
    Probe,
    Subscribers,
)
from earshot.semantics.topk.kernels.curves import stable_order
from earshot.semantics.topk.kernels.igpt import LEAST_SHARE, SLACK, round_down
from earshot.semantics.topk.kernels.scan import verify_row
from earshot.semantics.topk.kernels.scoring import nearness

MAX_LEVELS = 6


class CiqArrays(NamedTuple):
    """A component; what a posting says counts while its slot names it as its home."""

    frame: Float64s  # by the names below
    axes: Int32s  # (d,) those in which places have an extent
    levels: Int64s  # (n_levels + 2,) first cell of each level from 1 on, and the end; [0] unused
    slots: Int32s  # (n_rows,)
    codes: Int32s  # (n_rows,) the cell of the last level that has the place
    member_offsets: Int64s  # (n_cells + 1,)
    member_rows: Int32s  # (n_members,) ascending within a cell
    least_texts: Float32s  # (n_members,) MinT
    entry_offsets: Int64s  # (n_cells + 1,) lists of a cell
    entry_tokens: Int32s  # (n_entries,) ascending within a cell
    posting_offsets: Int64s  # (n_entries + 1,)
    posting_members: Int32s  # (n_postings,) number within the cell's members, ascending in a list
    posting_weights: Float32s  # (n_postings,) of the token in the subscription
    # working memory, by list of the cell at hand
    cursors: Int64s
    stops: Int64s
    weights: Float64s  # of the token in the message
    heap: Int64s  # member << 32 | list, the least first


LOW_X, LOW_Y, LOW_Z, SIDE, BOUND_DISTANCE, N_FRAME = range(6)
"""Corner and side of the cube; the largest distance that bounds were set by, 0: not yet."""


# ---- cells ---------------------------------------------------------------------------------------


@lean_kernel
def cell_code(
    frame: Float64s, axes: Int32s, n_levels: int, x: float, y: float, z: float
) -> np.int64:
    """Return the cell of the last level that has a place."""
    code = np.int64(0)
    n_parts = 1 << n_levels
    for i in range(len(axes)):
        axis = axes[i]
        at = (x if axis == 0 else (y if axis == 1 else z)) - frame[axis]
        part = np.int64(min(max(at / frame[SIDE] * n_parts, 0.0), n_parts - 1.0))
        for bit in range(n_levels):
            code |= (part >> bit & 1) << (bit * len(axes) + i)
    return code


@lean_kernel
def _cell_distance(
    component: CiqArrays, level: int, code: int, x: float, y: float, z: float
) -> float:
    """Return a lower bound of the distance from a place to what is in a cell."""
    frame, axes = component.frame, component.axes
    square = 0.0
    width = frame[SIDE] / (1 << level)
    for i in range(len(axes)):
        axis = axes[i]
        at = (x if axis == 0 else (y if axis == 1 else z)) - frame[axis]
        part = 0
        for bit in range(level):
            part |= (code >> (bit * len(axes) + i) & 1) << bit
        apart = 0.0
        if part > 0 and at < part * width:
            apart = part * width - at
        elif part + 1 < 1 << level and at > (part + 1) * width:
            apart = at - (part + 1) * width
        # A message at the side of a cell may be in either by rounding.
        apart = max(0.0, apart - 1e-12 * frame[SIDE])
        square += apart * apart
    whole: float = np.sqrt(square)
    return whole


@lean_kernel
def _set_least_text(
    component: CiqArrays, subscribers: Subscribers, slot: int, level: int, code: int, member: int
) -> None:
    """Set the bound of a member of a cell."""
    places = subscribers.places
    apart = _cell_distance(
        component, level, code, places[slot, 0], places[slot, 1], places[slot, 2]
    )
    near = nearness(apart, component.frame[BOUND_DISTANCE])
    alpha = subscribers.alphas[slot]
    share = max(1.0 - alpha, LEAST_SHARE)
    least = (subscribers.thresholds[slot] - alpha * near) / share
    component.least_texts[member] = round_down(least - SLACK * (1.0 + alpha / share))


@lean_kernel
def _set_all_bounds(component: CiqArrays, subscribers: Subscribers, max_distance: float) -> None:
    component.frame[BOUND_DISTANCE] = max_distance
    for level in range(1, len(component.levels) - 1):
        for cell in range(component.levels[level], component.levels[level + 1]):
            for member in range(component.member_offsets[cell], component.member_offsets[cell + 1]):
                slot = component.slots[component.member_rows[member]]
                code = cell - component.levels[level]
                _set_least_text(component, subscribers, slot, level, code, member)


@lean_kernel
def set_threshold_ciq(component: CiqArrays, subscribers: Subscribers, slot: int) -> None:
    """Follow the threshold of a slot of this component, which has changed."""
    row = np.int64(subscribers.rows[slot])
    if row < 0 or row >= len(component.slots) or component.slots[row] != slot:
        return
    if component.frame[BOUND_DISTANCE] == 0.0:
        return
    n_levels, n_axes = len(component.levels) - 2, len(component.axes)
    for level in range(1, n_levels + 1):
        own = component.codes[row] >> n_axes * (n_levels - level)
        for child in range(1 << n_axes):
            code = own >> n_axes << n_axes | child
            if level < n_levels and code == own:
                continue
            cell = component.levels[level] + code
            first, stop = component.member_offsets[cell], component.member_offsets[cell + 1]
            member = first_at_least(component.member_rows, first, stop, row)
            _set_least_text(component, subscribers, slot, level, code, member)


# ---- messages ------------------------------------------------------------------------------------


@lean_kernel
def _open_lists(component: CiqArrays, cell: int, probe: Probe) -> int:
    """Find the lists of the message's tokens in a cell; return their number."""
    n = 0
    first, stop = component.entry_offsets[cell], component.entry_offsets[cell + 1]
    for i in range(probe.length[0]):
        entry = first_at_least(component.entry_tokens, first, stop, probe.tokens[i])
        if entry < stop and component.entry_tokens[entry] == probe.tokens[i]:
            component.cursors[n] = component.posting_offsets[entry]
            component.stops[n] = component.posting_offsets[entry + 1]
            component.weights[n] = np.float64(probe.weights[i])
            n += 1
    return n


@lean_kernel
def _sift_down(heap: Int64s, n: int, at: int, key: int) -> None:
    """Put a key at a place of a heap, or below."""
    while True:
        child = 2 * at + 1
        if child >= n:
            break
        if child + 1 < n and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = key


@lean_kernel
def disseminate_ciq(component: CiqArrays, home: int, dispatch: Dispatch, n_found: int) -> int:
    """Find the subscriptions of a component whose threshold the message reaches.

    They and the scores are written from ``n_found`` on, in no order; return how many are written
    now. A subscription has one cell with the message's place, so it is met at most once.
    """
    if len(component.slots) == 0:
        return n_found
    probe, counters = dispatch.probe, dispatch.counters
    if component.frame[BOUND_DISTANCE] != dispatch.max_distance:
        _set_all_bounds(component, dispatch.subscribers, dispatch.max_distance)
    n_levels = len(component.levels) - 2
    path = cell_code(
        component.frame, component.axes, n_levels, probe.place[0], probe.place[1], probe.place[2]
    )
    cursors, stops, heap = component.cursors, component.stops, component.heap
    members, weights = component.posting_members, component.posting_weights
    n_postings = 0
    for level in range(1, n_levels + 1):
        cell = component.levels[level] + (path >> len(component.axes) * (n_levels - level))
        first_member = component.member_offsets[cell]
        if component.member_offsets[cell + 1] == first_member:
            continue
        counters[CELLS] += 1
        n = _open_lists(component, cell, probe)
        for i in range(n):
            heap[i] = np.int64(members[cursors[i]]) << 32 | i
        for i in range(n // 2 - 1, -1, -1):
            _sift_down(heap, n, i, heap[i])
        while n > 0:
            member = heap[0] >> 32
            text = 0.0
            while n > 0 and heap[0] >> 32 == member:
                i = heap[0] & 0xFFFFFFFF
                at = cursors[i]
                text += np.float64(weights[at]) * component.weights[i]
                n_postings += 1
                at += 1
                cursors[i] = at
                if at < stops[i]:
                    _sift_down(heap, n, 0, np.int64(members[at]) << 32 | i)
                else:
                    n -= 1
                    _sift_down(heap, n, 0, heap[n])
            if text < np.float64(component.least_texts[first_member + member]):
                continue
            row = component.member_rows[first_member + member]
            n_found = verify_row(dispatch, component.slots, home, row, n_found)
    counters[POSTINGS] += n_postings
    return n_found


# ---- building ------------------------------------------------------------------------------------


@kernel
def place_members(
    codes: Int32s, n_axes: int, levels: Int64s, offsets: Int64s, rows: Int32s, is_counting: bool
) -> None:
    """Fill the members of all cells, in the order of rows, or only count them.

    ``offsets`` are those of cells; when counting, cell i's number is put at i + 1.
    """
    n_levels = len(levels) - 2
    cursors = offsets[:-1].copy()
    for row in range(len(codes)):
        for level in range(1, n_levels + 1):
            own = np.int64(codes[row]) >> n_axes * (n_levels - level)
            for child in range(1 << n_axes):
                code = own >> n_axes << n_axes | child
                if level < n_levels and code == own:
                    continue
                cell = levels[level] + code
                if is_counting:
                    offsets[cell + 1] += 1
                else:
                    rows[cursors[cell]] = row
                    cursors[cell] += 1


@kernel
def count_lists(
    subscribers: Subscribers, slots: Int32s, member_offsets: Int64s, member_rows: Int32s
) -> tuple[int, int, int]:
    """Return the numbers of lists, of postings, and of lists in the cell that has most."""
    largest = np.int64(-1)
    for slot in slots:
        for at in range(subscribers.token_offsets[slot], subscribers.token_offsets[slot + 1]):
            largest = max(largest, np.int64(subscribers.tokens[at]))
    last_cells = np.full(largest + 1, -1, np.int64)
    n_entries, n_postings, most = 0, 0, 0
    for cell in range(len(member_offsets) - 1):
        before = n_entries
        for member in range(member_offsets[cell], member_offsets[cell + 1]):
            slot = slots[member_rows[member]]
            for at in range(subscribers.token_offsets[slot], subscribers.token_offsets[slot + 1]):
                n_postings += 1
                token = subscribers.tokens[at]
                if last_cells[token] != cell:
                    last_cells[token] = cell
                    n_entries += 1
        most = max(most, n_entries - before)
    return n_entries, n_postings, most


@kernel
def fill_member_lists(component: CiqArrays, subscribers: Subscribers) -> None:
    """Fill the inverted lists of all cells."""
    n_entries, n_postings = 0, 0
    component.entry_offsets[0] = 0
    component.posting_offsets[0] = 0
    for cell in range(len(component.member_offsets) - 1):
        first, stop = component.member_offsets[cell], component.member_offsets[cell + 1]
        n = 0
        for member in range(first, stop):
            slot = component.slots[component.member_rows[member]]
            n += subscribers.token_offsets[slot + 1] - subscribers.token_offsets[slot]
        tokens, owners = np.empty(n, np.int32), np.empty(n, np.int32)
        weights = np.empty(n, np.float32)
        n = 0
        for member in range(first, stop):
            slot = component.slots[component.member_rows[member]]
            for at in range(subscribers.token_offsets[slot], subscribers.token_offsets[slot + 1]):
                tokens[n], owners[n] = subscribers.tokens[at], member - first
                weights[n] = subscribers.weights[at]
                n += 1
        by_token = stable_order(tokens)
        for i in range(n):
            source = by_token[i]
            component.posting_members[n_postings] = owners[source]
            component.posting_weights[n_postings] = weights[source]
            n_postings += 1
            if i + 1 == n or tokens[by_token[i + 1]] != tokens[source]:
                component.entry_tokens[n_entries] = tokens[source]
                n_entries += 1
                component.posting_offsets[n_entries] = n_postings
        component.entry_offsets[cell + 1] = n_entries


@kernel
def fill_codes(
    places: Float64s, frame: Float64s, axes: Int32s, n_levels: int, codes: Int32s
) -> None:
    """Fill the cell of the last level of each place."""
    for row in range(len(places)):
        codes[row] = cell_code(
            frame, axes, n_levels, places[row, 0], places[row, 1], places[row, 2]
        )
