"""Dissemination by reach: where a message must be to concern a subscription.

Given how much of a message's vector is left from a word on, a subscription that has the word is
concerned only by messages within some distance: its *reach*. A list of the subscriptions with a
word is cut into blocks, and these into groups, of subscriptions with similar reach near one
another. A block has a centre and, for each of 16 lengths of the rest of a message's vector, the
radius of the ball that has all places that its subscriptions reach.

With words rarest first, a subscription is met under the rarest word that it shares with a message.
From there on both vectors are known by their lengths alone, and the cosine is at most the product
of the two.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from earshot.kernels.jit import inlined_kernel, kernel, lean_kernel
from earshot.kernels.processor import prefetch
from earshot.model.arrays import Float64s, Int32s, Int64s
from earshot.semantics.topk.kernels.arrays import (
    CANDIDATES,
    CELLS,
    GROUPS,
    POSTINGS,
    Dispatch,
    Float32s,
    Subscribers,
    UInt8s,
    UInt64s,
)
from earshot.semantics.topk.kernels.curves import curve_keys, stable_order
from earshot.semantics.topk.kernels.scoring import combine, place_score
from earshot.semantics.topk.kernels.window import signature_bit

WAITING = 64
"""Subscriptions that are scored together, once all that is needed for it is on its way."""

BLOCK, GROUP = 16, 16
"""Postings of a block, blocks of a group."""

N_LENGTHS = 16
STEP = 2.0**-0.25
"""Lengths that are told apart: 1 and so on by this factor; shorter ones count as the last."""

N_CODES = 256
NOWHERE, EVERYWHERE = 0, N_CODES - 1
LEAST_RADIUS = 1e-6
"""The smallest radius that a code stands for, by the largest distance that counts."""

SLACK = 1e-6
"""Postings are in single precision: no bound may lose by that."""

X, Y, Z, ALPHA, WEIGHT, REST, THRESHOLD, N_FACTS = range(8)

_WIDE = 0.25


class ReachArrays(NamedTuple):
    """Lists of subscriptions by word, in blocks and groups."""

    slots: Int32s  # by row
    row_offsets: Int64s  # (n_rows + 1,)
    row_postings: Int32s  # the postings of each row
    keys: Int32s  # hash table: tokens, or -1
    lists: Int32s  # hash table: their lists
    list_offsets: Int64s  # (n_lists + 1,) postings
    block_offsets: Int64s  # (n_lists + 1,)
    group_offsets: Int64s  # (n_lists + 1,)
    posting_lists: Int32s  # by posting: its list
    rows: Int32s  # by posting: its row
    facts: Float32s  # by posting: (n, 7) place, alpha, weight, length of what follows, threshold
    signatures: UInt64s  # by posting: (n, 2) in each, a bit for each token that follows
    block_centres: Float32s  # (n_blocks, 3)
    block_codes: UInt8s  # (n_blocks, 16) radius by length
    group_centres: Float32s
    group_codes: UInt8s
    squares: Float64s  # (256,) square of the radius that a code stands for
    scale: Float64s  # (4,) largest distance, error of places, logarithm of the ratio of two codes,
    # radius from which on a ball is everywhere
    waiting: Int32s  # (WAITING, 2) row and shared token of what is to be scored


@inlined_kernel
def _length_of(number: int) -> float:
    """Return the longest rest of a message that has this number."""
    return 1.000001 * STEP**number


@inlined_kernel
def _number_of(length: float) -> int:
    """Return the number of a length: the shortest one that is no shorter."""
    number = 0
    limit = 1.000001 * STEP
    while number + 1 < N_LENGTHS and length <= limit * 0.999999999:
        number += 1
        limit *= STEP
    return number


@inlined_kernel
def _reach(
    alpha: float, length: float, threshold: float, rest: float, max_distance: float
) -> float:
    """Return how far away a message may be: infinite, or -1 where it is too little everywhere.

    ``length`` is that of the subscription's vector from the shared word on, ``rest`` that of the
    message's.
    """
    lacking = threshold - SLACK - (1.0 - alpha) * length * rest
    if lacking <= 0.0:
        return np.inf
    if lacking > alpha:
        return -1.0
    return max_distance * (1.0 - lacking / alpha)


@inlined_kernel
def _code_of(radius: float, scale: Float64s) -> int:
    """Return the smallest code for a radius."""
    if radius < 0.0:
        return NOWHERE
    if radius >= scale[3]:
        return EVERYWHERE
    steps = np.log(max(radius / scale[0], LEAST_RADIUS) / LEAST_RADIUS) / scale[2]
    return min(int(np.ceil(steps + 1e-9)) + 1, EVERYWHERE)


@inlined_kernel
def _hash(token: int, mask: int) -> int:
    return int(np.uint64(token) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)) & mask


@inlined_kernel
def _other_bit(token: int) -> np.uint64:
    """Return the bit for a token in the second signature.

    Two in which a bit is wrong by chance for one token in eight are both so for one in sixty.
    """
    return np.uint64(1) << (np.uint64(token) * np.uint64(0xA0761D6478BD642F) >> np.uint64(58))


@inlined_kernel
def _find_list(component: ReachArrays, token: int) -> int:
    mask = len(component.keys) - 1
    at = _hash(token, mask)
    while component.keys[at] >= 0:
        if component.keys[at] == token:
            return component.lists[at]
        at = (at + 1) & mask
    return -1


@inlined_kernel
def _square_from(centres: Float32s, at: int, x: float, y: float, z: float) -> float:
    """Return the square of how far a place is from a centre."""
    dx = x - np.float64(centres[at, 0])
    dy = y - np.float64(centres[at, 1])
    dz = z - np.float64(centres[at, 2])
    return dx * dx + dy * dy + dz * dz


@lean_kernel
def disseminate_reach(component: ReachArrays, home: int, dispatch: Dispatch, n_found: int) -> int:
    """Find the subscriptions of a component whose threshold the message reaches.

    They and the scores are written from ``n_found`` on; return how many are written now.
    """
    subscribers, probe = dispatch.subscribers, dispatch.probe
    max_distance, counters = dispatch.max_distance, dispatch.counters
    x, y, z = probe.place[0], probe.place[1], probe.place[2]
    signature, other_signature = np.uint64(0), np.uint64(0)
    for i in range(probe.length[0]):
        signature |= signature_bit(probe.tokens[i])
        other_signature |= _other_bit(probe.tokens[i])
    facts, squares = component.facts, component.squares
    error = component.scale[1]
    n_waiting = 0
    rest_square = 0.0
    for i in range(probe.length[0] - 1, -1, -1):
        # From the most frequent token on, so that the squares of what follows add up.
        weight = np.float64(probe.weights[i])
        rest = np.sqrt(rest_square)
        rest_square += weight * weight
        number = _find_list(component, probe.tokens[i])
        if number < 0:
            continue
        length = _number_of(np.sqrt(rest_square))
        start, stop = component.list_offsets[number], component.list_offsets[number + 1]
        base, stop_block = component.block_offsets[number], component.block_offsets[number + 1]
        first_group = component.group_offsets[number]
        stop_group = component.group_offsets[number + 1]
        counters[GROUPS] += stop_group - first_group
        for group in range(first_group, stop_group):
            square = _square_from(component.group_centres, group, x, y, z)
            if square > squares[component.group_codes[group, length]]:
                continue
            first_block = base + (group - first_group) * GROUP
            last_block = min(first_block + GROUP, stop_block)
            counters[CELLS] += last_block - first_block
            for block in range(first_block, last_block):
                square = _square_from(component.block_centres, block, x, y, z)
                if square > squares[component.block_codes[block, length]]:
                    continue
                first = start + (block - base) * BLOCK
                last = min(first + BLOCK, stop)
                counters[POSTINGS] += last - first
                for posting in range(first, last):
                    alpha = np.float64(facts[posting, ALPHA])
                    least = np.float64(facts[posting, THRESHOLD]) - SLACK
                    own = (1.0 - alpha) * np.float64(facts[posting, WEIGHT]) * weight
                    lacking = least - own - (1.0 - alpha) * np.float64(facts[posting, REST]) * rest
                    if lacking > alpha:
                        continue
                    dx = x - np.float64(facts[posting, X])
                    dy = y - np.float64(facts[posting, Y])
                    dz = z - np.float64(facts[posting, Z])
                    # Multiplied by alpha, to save the division.
                    square = (dx * dx + dy * dy + dz * dz) * alpha * alpha
                    reach = max_distance * (alpha - lacking) + error * alpha
                    if lacking > 0.0 and square > reach * reach:
                        continue
                    common = component.signatures[posting, 0] & signature
                    if common == 0 or component.signatures[posting, 1] & other_signature == 0:
                        # None of the tokens that follow is in the message.
                        lacking = least - own
                        if lacking > alpha:
                            continue
                        reach = max_distance * (alpha - lacking) + error * alpha
                        if lacking > 0.0 and square > reach * reach:
                            continue
                    if n_waiting == WAITING:
                        n_found = _verify(component, home, dispatch, signature, n_waiting, n_found)
                        n_waiting = 0
                    row = component.rows[posting]
                    slot = component.slots[row]
                    prefetch(subscribers.homes, slot)
                    prefetch(subscribers.rows, slot)
                    prefetch(subscribers.token_offsets, slot)
                    prefetch(subscribers.alphas, slot)
                    prefetch(subscribers.places, slot)
                    prefetch(subscribers.thresholds, slot)
                    component.waiting[n_waiting, 0] = row
                    component.waiting[n_waiting, 1] = probe.tokens[i]
                    n_waiting += 1
    return _verify(component, home, dispatch, signature, n_waiting, n_found)


@inlined_kernel
def _verify(
    component: ReachArrays,
    home: int,
    dispatch: Dispatch,
    signature: np.uint64,
    n_waiting: int,
    n_found: int,
) -> int:
    """Score the message for the subscriptions that wait; return how many are found now."""
    subscribers, probe = dispatch.subscribers, dispatch.probe
    x, y, z = probe.place[0], probe.place[1], probe.place[2]
    offsets, tokens = subscribers.token_offsets, subscribers.tokens
    for i in range(n_waiting):
        at = offsets[component.slots[component.waiting[i, 0]]]
        prefetch(tokens, at)
        prefetch(subscribers.weights, at)
    for i in range(n_waiting):
        row = component.waiting[i, 0]
        slot = component.slots[row]
        if subscribers.homes[slot] != home or subscribers.rows[slot] != row:
            continue
        # Under a rarer word it is met as well, and taken there.
        at, stop = offsets[slot], offsets[slot + 1]
        while tokens[at] != component.waiting[i, 1] and (
            signature & signature_bit(tokens[at]) == 0 or probe.weight_of[tokens[at]] == 0.0
        ):
            at += 1
        if tokens[at] != component.waiting[i, 1]:
            continue
        dispatch.counters[CANDIDATES] += 1
        text = 0.0
        for j in range(at, stop):
            if signature & signature_bit(tokens[j]):
                weight = np.float64(probe.weight_of[tokens[j]])
                text += np.float64(subscribers.weights[j]) * weight
        near = place_score(subscribers, slot, x, y, z, dispatch.max_distance)
        score = combine(subscribers.alphas[slot], near, text)
        if score >= subscribers.thresholds[slot]:
            dispatch.slots[n_found] = slot
            dispatch.scores[n_found] = score
            n_found += 1
    return n_found


# ---- thresholds ----------------------------------------------------------------------------------


@lean_kernel
def _fit_codes(component: ReachArrays, block: int, first: int, last: int) -> None:
    """Set the radii of a block from its postings."""
    facts, scale = component.facts, component.scale
    for number in range(N_LENGTHS):
        radius = -1.0
        rest = _length_of(number)
        for posting in range(first, last):
            weight = np.float64(facts[posting, WEIGHT])
            after = np.float64(facts[posting, REST])
            reach = _reach(
                np.float64(facts[posting, ALPHA]), np.sqrt(weight * weight + after * after),
                np.float64(facts[posting, THRESHOLD]), rest, scale[0],
            )  # fmt: skip
            if reach < 0.0:
                continue
            dx = np.float64(facts[posting, X] - component.block_centres[block, 0])
            dy = np.float64(facts[posting, Y] - component.block_centres[block, 1])
            dz = np.float64(facts[posting, Z] - component.block_centres[block, 2])
            radius = max(radius, np.sqrt(dx * dx + dy * dy + dz * dz) + reach + scale[1])
        component.block_codes[block, number] = _code_of(radius, scale)


@lean_kernel
def _fit_group(component: ReachArrays, group: int, first: int, last: int) -> None:
    """Set the radii of a group from those of its blocks."""
    scale = component.scale
    for number in range(N_LENGTHS):
        radius = -1.0
        for block in range(first, last):
            code = component.block_codes[block, number]
            if code == NOWHERE:
                continue
            if code == EVERYWHERE:
                radius = np.inf
                break
            dx = np.float64(component.group_centres[group, 0] - component.block_centres[block, 0])
            dy = np.float64(component.group_centres[group, 1] - component.block_centres[block, 1])
            dz = np.float64(component.group_centres[group, 2] - component.block_centres[block, 2])
            apart = np.sqrt(dx * dx + dy * dy + dz * dz)
            radius = max(radius, apart + np.sqrt(component.squares[code]) + scale[1])
        component.group_codes[group, number] = _code_of(radius, scale)


@lean_kernel
def set_threshold_reach(component: ReachArrays, subscribers: Subscribers, slot: int) -> None:
    """Follow a changed threshold in the postings of a slot, their blocks and groups."""
    row = subscribers.rows[slot]
    for at in range(component.row_offsets[row], component.row_offsets[row + 1]):
        posting = np.int64(component.row_postings[at])
        component.facts[posting, THRESHOLD] = np.float32(subscribers.thresholds[slot])
        number = component.posting_lists[posting]
        start, stop = component.list_offsets[number], component.list_offsets[number + 1]
        within = (posting - start) // BLOCK
        block = component.block_offsets[number] + within
        first = start + within * BLOCK
        _fit_codes(component, block, first, min(first + BLOCK, stop))
        group = component.group_offsets[number] + within // GROUP
        first_block = component.block_offsets[number] + within // GROUP * GROUP
        last_block = min(first_block + GROUP, component.block_offsets[number + 1])
        _fit_group(component, group, first_block, last_block)


# ---- building ------------------------------------------------------------------------------------


@lean_kernel
def _class_of(alpha: float, length: float, threshold: float) -> int:
    """Return the class of reach, by which a list is sorted before the places.

    Those that reach far from some length on, by that length; then the others by how far they reach
    at most.
    """
    for number in range(N_LENGTHS):
        if _reach(alpha, length, threshold, _length_of(number), 1.0) < _WIDE:
            if number > 0:
                return N_LENGTHS - number
            break
        if number + 1 == N_LENGTHS:
            return 0
    most = _reach(alpha, length, threshold, _length_of(0), 1.0)
    if most > _WIDE / 8:
        return N_LENGTHS
    if most > _WIDE / 64:
        return N_LENGTHS + 1
    return N_LENGTHS + 2


@kernel
def _centres(facts: Float32s, start: int, stop: int, step: int, first: int, out: Float32s) -> int:
    """Set the middle of every ``step`` postings; return the next number."""
    for low in range(start, stop, step):
        high = min(low + step, stop)
        for axis in range(3):
            out[first, axis] = np.float32(0.5) * (
                facts[low:high, axis].min() + facts[low:high, axis].max()
            )
        first += 1
    return first


@kernel
def build_reach(subscribers: Subscribers, slots: Int32s, max_distance: float) -> ReachArrays:
    """Build a component; row i of it is ``slots[i]``."""
    n_rows = len(slots)
    places = np.empty((n_rows, 3))
    row_offsets = np.zeros(n_rows + 1, np.int64)
    for row in range(n_rows):
        slot = slots[row]
        places[row] = subscribers.places[slot]
        row_offsets[row + 1] = (
            row_offsets[row] + subscribers.token_offsets[slot + 1] - subscribers.token_offsets[slot]
        )
    n = row_offsets[-1]
    largest, spread = 0.0, 0.0
    for axis in range(3):
        if n_rows:
            low, high = places[:, axis].min(), places[:, axis].max()
            largest = max(largest, -low, high)
            spread = max(spread, high - low)
    # Farther than this from any centre is out of reach, or nothing is.
    most = 4.0 * (max_distance + spread)
    scale = np.array(
        [
            max_distance,
            4e-7 * largest,
            np.log(most / (LEAST_RADIUS * max_distance)) / (N_CODES - 2),
            most,
        ]
    )
    squares = np.empty(N_CODES)
    squares[NOWHERE] = -1.0
    squares[EVERYWHERE] = np.inf
    for code in range(1, N_CODES - 1):
        squares[code] = (max_distance * LEAST_RADIUS * np.exp(scale[2] * (code - 1))) ** 2
    # Rows along a curve, then stably by class and by token.
    tokens = np.empty(n, np.int32)
    sources = np.empty(n, np.int64)  # position of the token in its slot's, and the row
    owners = np.empty(n, np.int32)
    classes = np.empty(n, np.int32)
    at = 0
    for row in np.argsort(curve_keys(places)):
        slot = slots[row]
        length_square = 0.0
        first, stop = subscribers.token_offsets[slot], subscribers.token_offsets[slot + 1]
        for source in range(stop - 1, first - 1, -1):
            length_square += np.float64(subscribers.weights[source]) ** 2
            tokens[at], owners[at], sources[at] = subscribers.tokens[source], row, source
            classes[at] = _class_of(
                subscribers.alphas[slot], np.sqrt(length_square), subscribers.thresholds[slot]
            )
            at += 1
    order = stable_order(classes)
    order = order[stable_order(tokens[order])]
    n_lists, n_blocks, n_groups, length = 0, 0, 0, 0
    for i in range(n):
        length += 1
        if i + 1 == n or tokens[order[i + 1]] != tokens[order[i]]:
            n_lists += 1
            n_blocks += (length + BLOCK - 1) // BLOCK
            n_groups += (length + GROUP * BLOCK - 1) // (GROUP * BLOCK)
            length = 0
    n_keys = 16
    while n_keys < 2 * n_lists:
        n_keys *= 2
    component = ReachArrays(
        slots.copy(),
        row_offsets,
        np.empty(n, np.int32),
        np.full(n_keys, -1, np.int32),
        np.full(n_keys, -1, np.int32),
        np.zeros(n_lists + 1, np.int64),
        np.zeros(n_lists + 1, np.int64),
        np.zeros(n_lists + 1, np.int64),
        np.empty(n, np.int32),
        np.empty(n, np.int32),
        np.empty((n, N_FACTS), np.float32),
        np.zeros((n, 2), np.uint64),
        np.empty((n_blocks, 3), np.float32),
        np.empty((n_blocks, N_LENGTHS), np.uint8),
        np.empty((n_groups, 3), np.float32),
        np.empty((n_groups, N_LENGTHS), np.uint8),
        squares,
        scale,
        np.empty((WAITING, 2), np.int32),
    )
    facts = component.facts
    filled = row_offsets[:-1].copy()
    number, block, group = 0, 0, 0
    for i in range(n):
        row, source = owners[order[i]], sources[order[i]]
        slot = slots[row]
        component.rows[i] = row
        component.posting_lists[i] = number
        component.row_postings[filled[row]] = i
        filled[row] += 1
        for axis in range(3):
            facts[i, axis] = np.float32(places[row, axis])
        facts[i, ALPHA] = np.float32(subscribers.alphas[slot])
        facts[i, WEIGHT] = subscribers.weights[source]
        facts[i, THRESHOLD] = np.float32(subscribers.thresholds[slot])
        square = 0.0
        for after in range(source + 1, subscribers.token_offsets[slot + 1]):
            square += np.float64(subscribers.weights[after]) ** 2
            component.signatures[i, 0] |= signature_bit(subscribers.tokens[after])
            component.signatures[i, 1] |= _other_bit(subscribers.tokens[after])
        facts[i, REST] = np.float32(np.sqrt(square))
        if i + 1 < n and tokens[order[i + 1]] == tokens[order[i]]:
            continue
        token = tokens[order[i]]
        at = _hash(token, n_keys - 1)
        while component.keys[at] >= 0:
            at = (at + 1) & (n_keys - 1)
        component.keys[at], component.lists[at] = token, number
        start = component.list_offsets[number]
        component.list_offsets[number + 1] = i + 1
        first_block, first_group = block, group
        block = _centres(facts, start, i + 1, BLOCK, block, component.block_centres)
        group = _centres(facts, start, i + 1, GROUP * BLOCK, group, component.group_centres)
        for each in range(first_block, block):
            low = start + (each - first_block) * BLOCK
            _fit_codes(component, each, low, min(low + BLOCK, i + 1))
        for each in range(first_group, group):
            low = first_block + (each - first_group) * GROUP
            _fit_group(component, each, low, min(low + GROUP, block))
        number += 1
        component.block_offsets[number] = block
        component.group_offsets[number] = group
    return component
