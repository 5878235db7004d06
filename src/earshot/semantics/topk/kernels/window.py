"""The index over the window: which messages score best for a subscription.

It answers where a buffer has run dry and where a subscription is new. Words of the subscription are
taken rarest first; their lists are opened group by group of blocks, the most promising first, and
what cannot reach the worst score that still counts, by its places and weights, is left closed. A
message is scored in the list of the rarest word that it shares.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from earshot.kernels.jit import inlined_kernel, kernel, lean_kernel
from earshot.model.arrays import Float64s, Int32s, Int64s
from earshot.semantics.topk.kernels.arrays import (
    FIRST_SEGMENT,
    FIRST_SEQUENCE,
    N_ROWS,
    SEARCH_BLOCKS,
    SEARCH_CANDIDATES,
    SEARCH_POSTINGS,
    SEARCHES,
    STOP_SEGMENT,
    Float32s,
    SearchScratch,
    SegmentArrays,
    Subscribers,
    UInt32s,
    UInt64s,
    WindowArrays,
)
from earshot.semantics.topk.kernels.scoring import combine, distance, nearness

SLACK = 1e-9
"""Bounds are computed in another order than scores; this covers the rounding of both."""

UNIT_SQUARE = 1.000001
"""The square of a vector's length is at most this: its weights are rounded to single precision."""

BLOCK = 16
"""Postings under one sphere."""

GROUP = 16
"""Blocks under one sphere."""

MANY = 16
"""Words from which a subscription is looked up by word, instead of compared with each."""

LEAST_BLOCKED = 32
"""Lists shorter than this have no blocks."""

LOW = np.int64(0xFFFFFFFF)

TOO_MANY = -1


@inlined_kernel
def row_of(window: WindowArrays, sequence: int) -> int:
    """Return the row of a message by the low 32 bits of its sequence."""
    return (np.int64(sequence) - window.facts[FIRST_SEQUENCE]) & LOW


@inlined_kernel
def is_newer(window: WindowArrays, row: int, other: int) -> bool:
    """Whether a message leaves the window after another one."""
    time, other_time = window.times[row], window.times[other]
    return time > other_time or (time == other_time and row > other)


@inlined_kernel
def is_better(window: WindowArrays, score: float, row: int, other_score: float, other: int) -> bool:
    """Whether a message comes before another one in a result."""
    return score > other_score or (score == other_score and is_newer(window, row, other))


@inlined_kernel
def push(
    window: WindowArrays, scores: Float64s, rows: Int64s, n: int, score: float, row: int
) -> None:
    """Add a message to a heap of ``n``, the worst at the top."""
    at = n
    while at > 0:
        parent = (at - 1) >> 1
        if not is_better(window, scores[parent], rows[parent], score, row):
            break
        scores[at], rows[at] = scores[parent], rows[parent]
        at = parent
    scores[at], rows[at] = score, row


@inlined_kernel
def _replace_worst(
    window: WindowArrays, scores: Float64s, rows: Int64s, n: int, score: float, row: int
) -> None:
    """Put a message at the top of a heap in place of the worst, and let it sink."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= n:
            break
        if child + 1 < n and is_better(
            window, scores[child], rows[child], scores[child + 1], rows[child + 1]
        ):
            child += 1
        if not is_better(window, score, row, scores[child], rows[child]):
            break
        scores[at], rows[at] = scores[child], rows[child]
        at = child
    scores[at], rows[at] = score, row


@lean_kernel
def sort_heap(window: WindowArrays, scores: Float64s, rows: Int64s, n: int) -> None:
    """Turn a heap into a list, best first."""
    for last in range(n - 1, 0, -1):
        score, row = scores[last], rows[last]
        worst_score, worst_row = scores[0], rows[0]
        _replace_worst(window, scores, rows, last, score, row)
        scores[last], rows[last] = worst_score, worst_row


@inlined_kernel
def _mixed(token: int) -> int:
    """Return a token id with its bits mixed: evenly spread, so entries are sorted by it."""
    return int(np.uint64(token) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32))


@inlined_kernel
def _find_entry(segments: SegmentArrays, segment: int, token: int) -> int:
    """Return the entry of a token in a segment, or -1."""
    first = segments.bucket_offsets[segment]
    n_buckets = segments.bucket_offsets[segment + 1] - first - 1
    bucket = first + (_mixed(token) * n_buckets >> 32)
    base = segments.entry_offsets[segment]
    for entry in range(base + segments.buckets[bucket], base + segments.buckets[bucket + 1]):
        if segments.tokens[entry] == token:
            return entry
    return -1


class _Query(NamedTuple):
    """A subscription that messages are searched for."""

    slot: int
    first: int  # its tokens are first:stop
    stop: int
    alpha: float
    x: float
    y: float
    z: float
    max_distance: float
    limit: int
    factor: float


@inlined_kernel
def signature_bit(token: int) -> np.uint64:
    """Return the bit that stands for a token in signatures."""
    return np.uint64(1) << (np.uint64(token) * np.uint64(0xD6E8FEB86659FD93) >> np.uint64(58))


@inlined_kernel
def _near_sphere(query: _Query, spheres: Float32s, at: int) -> float:
    """Return the most that a place inside a sphere can count."""
    apart = distance(
        query.x, query.y, query.z,
        np.float64(spheres[at, 0]), np.float64(spheres[at, 1]), np.float64(spheres[at, 2]),
    ) - np.float64(spheres[at, 3])  # fmt: skip
    return nearness(max(apart, 0.0), query.max_distance)


@inlined_kernel
def _offer(
    window: WindowArrays, scratch: SearchScratch, query: _Query, score: float, row: int
) -> bool:
    """Take a scored message if it is good enough; return False where there is no room."""
    found, bar = scratch.found, scratch.bar
    if found[0] < query.limit or is_better(window, score, row, scratch.scores[0], scratch.rows[0]):
        if query.factor < 1.0 and found[0] == query.limit:
            if found[1] == len(scratch.more_scores):
                return False
            scratch.more_scores[found[1]] = scratch.scores[0]
            scratch.more_rows[found[1]] = scratch.rows[0]
            found[1] += 1
        if found[0] < query.limit:
            push(window, scratch.scores, scratch.rows, found[0], score, row)
            found[0] += 1
        else:
            _replace_worst(window, scratch.scores, scratch.rows, found[0], score, row)
        if found[0] == query.limit:
            bar[0] = query.factor * scratch.scores[0]
    elif query.factor < 1.0:
        if found[1] == len(scratch.more_scores):
            return False
        scratch.more_scores[found[1]] = score
        scratch.more_rows[found[1]] = row
        found[1] += 1
    return True


@inlined_kernel
def _walk(
    window: WindowArrays,
    subscribers: Subscribers,
    scratch: SearchScratch,
    query: _Query,
    current: int,
    base_row: int,
    messages: Int32s,
    weights: Float32s,
    signatures: UInt64s,
    cells: UInt32s,
    frame: Float64s,
    start: int,
    stop: int,
    caps_at: int,
    counters: Int64s,
) -> bool:
    """Score the messages of postings under the token at ``current``, if they can be good enough.

    One function for all postings: a call with so many arrays costs more than a posting. Return
    False where there is no room.
    """
    alpha, bar = query.alpha, scratch.bar
    tokens, own_weights = subscribers.tokens, subscribers.weights
    first, last = query.first, query.stop
    weight = np.float64(own_weights[current])
    before, after = scratch.rarer[current - first], scratch.commoner[current - first]
    n_after = last - current - 1
    counters[SEARCH_POSTINGS] += stop - start
    # How much nearer a message must be for one more in the score; a little more than that.
    distance_of_one = (1.0 - 1e-12) * query.max_distance / max(alpha, 1e-300)
    for at in range(start, stop):
        message_weight = np.float64(weights[at])
        text = weight * message_weight
        signature = signatures[at]
        is_sure = signature & (before | after) == 0
        if signature & after:
            square, rest = scratch.rest_squares[current - first], np.inf
            if n_after <= MANY:
                square, rest = 0.0, 0.0
                for i in range(current + 1, last):
                    if signature & signature_bit(tokens[i]):
                        square += np.float64(own_weights[i]) ** 2
                        rest += np.float64(own_weights[i]) * scratch.caps[caps_at + i - first]
            text += min(
                rest,
                np.sqrt(square * max(0.0, UNIT_SQUARE - message_weight * message_weight)),
            )
        lacking = bar[0] - SLACK - (1.0 - alpha) * text  # what the place must bring
        if lacking > alpha:
            continue
        if lacking > 0.0:
            # By the cell that the place is in: reading places themselves is what takes time.
            cell = np.int64(cells[at])
            dx = query.x - (frame[0] + frame[3] * (cell & 2047))
            dy = query.y - (frame[1] + frame[4] * (cell >> 11 & 2047))
            dz = query.z - (frame[2] + frame[5] * (cell >> 22))
            reach = query.max_distance - lacking * distance_of_one + frame[6]
            if dx * dx + dy * dy + dz * dz > reach * reach:
                continue
        # Messages that have left long ago have no row any more.
        row = base_row + messages[at]
        if row < 0 or window.is_live[row] == 0:
            continue
        near = nearness(
            distance(
                query.x, query.y, query.z,
                window.places[row, 0], window.places[row, 1], window.places[row, 2],
            ),
            query.max_distance,
        )  # fmt: skip
        if combine(alpha, near, text) + SLACK < bar[0]:
            continue
        counters[SEARCH_CANDIDATES] += 1
        if not is_sure:
            text = np.float64(0.0)
            for i in range(window.token_offsets[row], window.token_offsets[row + 1]):
                token = window.tokens[i]
                found = -1
                if last - first > MANY:
                    found = first + scratch.positions[token] - 1
                else:
                    for j in range(first, last):
                        if tokens[j] == token:
                            found = j
                            break
                if found < first:
                    continue
                if found < current:
                    text = np.float64(-np.inf)  # it was met under that token already
                text += np.float64(own_weights[found]) * np.float64(window.weights[i])
            if text < 0.0:
                continue
        score = combine(alpha, near, text)
        if score >= bar[0] and not _offer(window, scratch, query, score, row):
            return False
    return True


@inlined_kernel
def _sink_node(scratch: SearchScratch, at: int, n: int) -> None:
    """Let a node of the heap of groups sink to its place."""
    bounds, groups, blocks = scratch.node_bounds, scratch.node_groups, scratch.node_blocks
    entries, tokens = scratch.node_entries, scratch.node_tokens
    numbers = scratch.node_segments
    caps = scratch.node_caps
    while True:
        child = 2 * at + 1
        if child >= n:
            return
        if child + 1 < n and bounds[child + 1] > bounds[child]:
            child += 1
        if bounds[child] <= bounds[at]:
            return
        bounds[at], bounds[child] = bounds[child], bounds[at]
        groups[at], groups[child] = groups[child], groups[at]
        blocks[at], blocks[child] = blocks[child], blocks[at]
        entries[at], entries[child] = entries[child], entries[at]
        tokens[at], tokens[child] = tokens[child], tokens[at]
        numbers[at], numbers[child] = numbers[child], numbers[at]
        caps[at], caps[child] = caps[child], caps[at]
        at = child


@lean_kernel
def search(
    window: WindowArrays,
    segments: SegmentArrays,
    subscribers: Subscribers,
    slot: int,
    max_distance: float,
    limit: int,
    factor: float,
    scratch: SearchScratch,
    counters: Int64s,
) -> tuple[int, int, float]:
    """Find the best messages of the window for a subscription.

    With a factor of 1 these are the ``limit`` best, sorted, in ``scratch``. With a lower one, all
    that score at least that share of the worst of these: the others in no order in
    ``scratch.more_*``, of which some may score less. Return how many there are of both, the second
    TOO_MANY where there is no room, and the work that it was.

    Short lists are walked at once. Groups of blocks of the long ones wait in a heap until the most
    promising of them cannot have anything good enough.
    """
    counters[SEARCHES] += 1
    work = counters[SEARCH_BLOCKS] + counters[SEARCH_POSTINGS] + 8 * counters[SEARCH_CANDIDATES]
    query = _Query(
        slot, subscribers.token_offsets[slot], subscribers.token_offsets[slot + 1],
        subscribers.alphas[slot], subscribers.places[slot, 0], subscribers.places[slot, 1],
        subscribers.places[slot, 2], max_distance, limit, factor,
    )  # fmt: skip
    n_segments = segments.facts[STOP_SEGMENT] - segments.facts[FIRST_SEGMENT]
    if (query.stop - query.first) * (n_segments + 1) > len(scratch.caps):
        return 0, TOO_MANY, 0.0
    _prepare(subscribers, query, scratch)
    has_room = _search(window, segments, subscribers, scratch, query, counters)
    _finish(subscribers, query, scratch)
    done = counters[SEARCH_BLOCKS] + counters[SEARCH_POSTINGS] + 8 * counters[SEARCH_CANDIDATES]
    if not has_room:
        return 0, TOO_MANY, 0.0
    return scratch.found[0], scratch.found[1], np.float64(done - work)


@lean_kernel
def _search(
    window: WindowArrays,
    segments: SegmentArrays,
    subscribers: Subscribers,
    scratch: SearchScratch,
    query: _Query,
    counters: Int64s,
) -> bool:
    """Do what :func:`search` says; return False where there is no room."""
    found, bar = scratch.found, scratch.bar
    found[0], found[1] = 0, 0
    bar[0] = -1.0  # what a message must score to be of interest
    first_sequence = window.facts[FIRST_SEQUENCE]
    n_tokens = query.stop - query.first
    for current in range(query.first, query.stop):
        token = subscribers.tokens[current]
        if token >= len(segments.chain_heads):
            continue
        at = np.int64(segments.chain_heads[token])
        while at >= 0:
            # By parts, as short lists.
            n = 0
            while at >= 0 and n < len(scratch.part_messages):
                row = (np.int64(segments.chain_messages[at]) - first_sequence) & LOW
                if row < window.facts[N_ROWS]:
                    scratch.part_messages[n] = row
                    scratch.part_weights[n] = segments.chain_weights[at]
                    scratch.part_signatures[n] = segments.chain_signatures[at]
                    n += 1
                at = np.int64(segments.chain_nexts[at])
            if not _walk(
                window, subscribers, scratch, query, current, 0, scratch.part_messages,
                scratch.part_weights, scratch.part_signatures, scratch.part_cells,
                scratch.no_frame, 0, n, 0, counters,
            ):  # fmt: skip
                return False
    n_nodes, caps_at = 0, 0
    for segment in range(segments.facts[STOP_SEGMENT] - 1, segments.facts[FIRST_SEGMENT] - 1, -1):
        base_row = segments.first_sequences[segment] - first_sequence
        caps_at += n_tokens
        for i in range(n_tokens):
            entry = _find_entry(segments, segment, subscribers.tokens[query.first + i])
            scratch.entries[i] = entry
            scratch.caps[caps_at + i] = np.float64(segments.largest[entry]) if entry >= 0 else 0.0
        rest = 0.0  # what the less rare tokens can add at most
        for current in range(query.stop - 1, query.first - 1, -1):
            rest_length = np.sqrt(scratch.rest_squares[current - query.first])
            entry = scratch.entries[current - query.first]
            if entry < 0:
                continue
            weight = np.float64(subscribers.weights[current])
            start, stop = segments.posting_offsets[entry], segments.posting_offsets[entry + 1]
            first_group = segments.group_offsets[entry]
            n_groups = segments.group_offsets[entry + 1] - first_group
            if n_groups == 0:
                if not _walk(
                    window, subscribers, scratch, query, current, base_row, segments.messages,
                    segments.weights, segments.signatures, segments.cells,
                    segments.frames[segment], start, stop, caps_at, counters,
                ):  # fmt: skip
                    return False
            else:
                if n_nodes + n_groups > len(scratch.node_bounds):
                    return False
                counters[SEARCH_BLOCKS] += n_groups
                for group in range(n_groups):
                    bound = combine(
                        query.alpha,
                        _near_sphere(query, segments.group_spheres, first_group + group),
                        min(
                            _text_bound_up_to(
                                weight,
                                rest_length,
                                np.float64(segments.group_largest[first_group + group]),
                            ),
                            weight * np.float64(segments.group_largest[first_group + group]) + rest,
                        ),
                    )
                    if bound + SLACK < bar[0]:
                        continue
                    scratch.node_bounds[n_nodes] = bound
                    scratch.node_groups[n_nodes] = group
                    scratch.node_blocks[n_nodes] = segments.block_offsets[entry] + group * GROUP
                    scratch.node_entries[n_nodes] = entry
                    scratch.node_tokens[n_nodes] = current
                    scratch.node_segments[n_nodes] = segment
                    scratch.node_caps[n_nodes] = caps_at
                    n_nodes += 1
            rest += weight * scratch.caps[caps_at + current - query.first]
    for node in range(n_nodes // 2 - 1, -1, -1):
        _sink_node(scratch, node, n_nodes)
    while n_nodes > 0 and scratch.node_bounds[0] + SLACK >= bar[0]:
        if not _open_group(window, segments, subscribers, scratch, query, counters):
            return False
        n_nodes -= 1
        scratch.node_bounds[0] = scratch.node_bounds[n_nodes]
        scratch.node_groups[0] = scratch.node_groups[n_nodes]
        scratch.node_blocks[0] = scratch.node_blocks[n_nodes]
        scratch.node_entries[0] = scratch.node_entries[n_nodes]
        scratch.node_tokens[0] = scratch.node_tokens[n_nodes]
        scratch.node_segments[0] = scratch.node_segments[n_nodes]
        scratch.node_caps[0] = scratch.node_caps[n_nodes]
        _sink_node(scratch, 0, n_nodes)
    sort_heap(window, scratch.scores, scratch.rows, found[0])
    return True


@lean_kernel
def _prepare(subscribers: Subscribers, query: _Query, scratch: SearchScratch) -> None:
    """Set what is known of each token of the subscription and those before and after it."""
    first, stop = query.first, query.stop
    square, signature = 0.0, np.uint64(0)
    for i in range(stop - 1, first - 1, -1):
        scratch.caps[i - first] = 1.0
        scratch.rest_squares[i - first] = square
        scratch.commoner[i - first] = signature
        square += np.float64(subscribers.weights[i]) ** 2
        signature |= signature_bit(subscribers.tokens[i])
    signature = np.uint64(0)
    for i in range(first, stop):
        scratch.rarer[i - first] = signature
        signature |= signature_bit(subscribers.tokens[i])
        if stop - first > MANY:
            scratch.positions[subscribers.tokens[i]] = i - first + 1


@lean_kernel
def _finish(subscribers: Subscribers, query: _Query, scratch: SearchScratch) -> None:
    """Forget the positions of the tokens again."""
    if query.stop - query.first > MANY:
        for i in range(query.first, query.stop):
            scratch.positions[subscribers.tokens[i]] = 0


@lean_kernel
def _open_group(
    window: WindowArrays,
    segments: SegmentArrays,
    subscribers: Subscribers,
    scratch: SearchScratch,
    query: _Query,
    counters: Int64s,
) -> bool:
    """Look into the blocks of the most promising group; return False where there is no room."""
    entry, current = scratch.node_entries[0], scratch.node_tokens[0]
    group, segment = scratch.node_groups[0], scratch.node_segments[0]
    base_row = segments.first_sequences[segment] - window.facts[FIRST_SEQUENCE]
    block, caps_at = scratch.node_blocks[0], scratch.node_caps[0]
    weight = np.float64(subscribers.weights[current])
    rest = np.sqrt(scratch.rest_squares[current - query.first])
    most_rest = 0.0  # what the less rare tokens can add at most
    for i in range(current + 1, query.stop):
        most_rest += np.float64(subscribers.weights[i]) * scratch.caps[caps_at + i - query.first]
    start = segments.posting_offsets[entry] + group * GROUP * BLOCK
    stop = min(start + GROUP * BLOCK, segments.posting_offsets[entry + 1])
    for low in range(start, stop, BLOCK):
        counters[SEARCH_BLOCKS] += 1
        near = _near_sphere(query, segments.block_spheres, block)
        most = np.float64(segments.block_largest[block])
        block += 1
        text = min(_text_bound_up_to(weight, rest, most), weight * most + most_rest)
        bound = combine(query.alpha, near, text)
        if bound + SLACK < scratch.bar[0]:
            continue
        high = min(low + BLOCK, stop)
        if not _walk(
            window, subscribers, scratch, query, current, base_row, segments.messages,
            segments.weights, segments.signatures, segments.cells, segments.frames[segment], low,
            high, caps_at, counters,
        ):  # fmt: skip
            return False
    return True


@inlined_kernel
def _text_bound(weight: float, rest: float, message_weight: float) -> float:
    """Return the most that a cosine can be, given the weights of the rarest shared token.

    ``rest`` is the length of what follows in the subscription.
    """
    bound = weight * message_weight
    if rest > 0.0:
        bound += rest * np.sqrt(max(0.0, UNIT_SQUARE - message_weight * message_weight))
    return bound


@inlined_kernel
def _text_bound_up_to(weight: float, rest: float, most: float) -> float:
    """Return the same for all weights in messages up to ``most``."""
    peak = weight / np.sqrt(weight * weight + rest * rest)
    return _text_bound(weight, rest, min(most, peak))


# ---- building ------------------------------------------------------------------------------------


@inlined_kernel
def _spread(value: int) -> int:
    """Put two zeros between the bits of a number of up to 21 bits."""
    value &= 0x1FFFFF
    value = (value | value << 32) & 0x1F00000000FFFF
    value = (value | value << 16) & 0x1F0000FF0000FF
    value = (value | value << 8) & 0x100F00F00F00F00F
    value = (value | value << 4) & 0x10C30C30C30C30C3
    return (value | value << 2) & 0x1249249249249249


@kernel
def curve_keys(places: Float64s) -> Int64s:
    """Return the positions of places on a space-filling curve through their bounding cube."""
    n = len(places)
    keys = np.zeros(n, np.int64)
    if n == 0:
        return keys
    low = np.empty(3)
    side = 0.0
    for axis in range(3):
        low[axis] = places[:, axis].min()
        side = max(side, places[:, axis].max() - low[axis])
    scale = 2097151.0 / side if side > 0.0 else 0.0
    for i in range(n):
        for axis in range(3):
            cell = np.int64((places[i, axis] - low[axis]) * scale)
            keys[i] |= _spread(cell) << axis
    return keys


@kernel
def stable_order(keys: Any) -> Int64s:
    """Return the order of keys that are not negative, equal ones as they come."""
    n = len(keys)
    order = np.arange(n)
    other = np.empty(n, np.int64)
    most = keys.max() if n else 0
    shift = 0
    while most >> shift:
        counts = np.zeros(2049, np.int64)
        for i in range(n):
            counts[(keys[i] >> shift & 2047) + 1] += 1
        for digit in range(2048):
            counts[digit + 1] += counts[digit]
        for i in range(n):
            digit = keys[order[i]] >> shift & 2047
            other[counts[digit]] = order[i]
            counts[digit] += 1
        order, other = other, order
        shift += 11
    return order


@kernel
def fit_sphere(places: Float64s, rows: Int64s, start: int, stop: int, sphere: Float32s) -> None:
    """Set a sphere, in single precision, that has the places of ``rows[start:stop]`` inside."""
    centre = np.zeros(3)
    for axis in range(3):
        low, high = np.inf, -np.inf
        for i in range(start, stop):
            low = min(low, places[rows[i], axis])
            high = max(high, places[rows[i], axis])
        sphere[axis] = np.float32(0.5 * (low + high))
        centre[axis] = np.float64(sphere[axis])
    radius = 0.0
    for i in range(start, stop):
        apart = distance(
            places[rows[i], 0], places[rows[i], 1], places[rows[i], 2],
            centre[0], centre[1], centre[2],
        )  # fmt: skip
        radius = max(radius, apart)
    # Rounded to single precision, it must not shrink.
    sphere[3] = np.float32(radius * 1.000001)


@kernel
def frame_of(places: Float64s) -> Float64s:
    """Return the frame of cells that places are in: corner, sides of a cell, its half diagonal.

    The corner is the middle of the first cell.
    """
    frame = np.zeros(7)
    square = 0.0
    for axis in range(3):
        low, high = places[:, axis].min(), places[:, axis].max()
        side = (high - low) / (1023.0 if axis == 2 else 2047.0)
        frame[axis] = low
        frame[3 + axis] = side
        square += (0.5 * side) ** 2
        # What rounding may add.
        frame[6] += 1e-12 * max(abs(low), abs(high))
    frame[6] += 1.000001 * np.sqrt(square)
    return frame


@inlined_kernel
def _cell_of(frame: Float64s, places: Float64s, row: int) -> int:
    cell = 0
    for axis in range(3):
        if frame[3 + axis] > 0.0:
            number = int((places[row, axis] - frame[axis]) / frame[3 + axis] + 0.5)
            cell |= min(number, 1023 if axis == 2 else 2047) << 11 * axis
    return cell


class Segment(NamedTuple):
    """The lists of one segment, to be appended to :class:`SegmentArrays`; offsets from 0."""

    tokens: Int32s
    posting_offsets: Int64s
    block_offsets: Int64s
    group_offsets: Int64s
    largest: Float32s
    messages: Int32s
    weights: Float32s
    signatures: UInt64s
    cells: UInt32s
    block_spheres: Float32s
    block_largest: Float32s
    group_spheres: Float32s
    group_largest: Float32s
    buckets: Int32s
    frame: Float64s


@kernel
def _fit_spheres(
    places: Float64s, rows: Int64s, weights: Float32s, start: int, stop: int, step: int,
    first: int, spheres: Float32s, largest: Float32s,
) -> int:  # fmt: skip
    """Set a sphere and the largest weight for every ``step`` postings; return the next number."""
    for low in range(start, stop, step):
        high = min(low + step, stop)
        fit_sphere(places, rows, low, high, spheres[first])
        largest[first] = weights[low:high].max()
        first += 1
    return first


@kernel
def build_segment(window: WindowArrays, first: int, stop: int) -> Segment:
    """Return the lists of the messages in rows ``first:stop``."""
    order = np.argsort(curve_keys(window.places[first:stop]))
    n_postings = window.token_offsets[stop] - window.token_offsets[first]
    tokens = np.empty(n_postings, np.int32)
    owners = np.empty(n_postings, np.int32)
    sources = np.empty(n_postings, np.int64)
    signature_of = np.zeros(stop - first, np.uint64)
    n = 0
    for i in range(len(order)):
        row = first + order[i]
        for at in range(window.token_offsets[row], window.token_offsets[row + 1]):
            tokens[n], owners[n], sources[n] = window.tokens[at], order[i], at
            signature_of[order[i]] |= signature_bit(window.tokens[at])
            n += 1
    keys = np.empty(n_postings, np.int64)
    for i in range(n):
        keys[i] = _mixed(tokens[i])
    by_token = stable_order(keys)
    n_entries, n_blocks, n_groups, length = 0, 0, 0, 0
    for i in range(n):
        length += 1
        if i + 1 == n or tokens[by_token[i + 1]] != tokens[by_token[i]]:
            n_entries += 1
            if length >= LEAST_BLOCKED:
                n_blocks += (length + BLOCK - 1) // BLOCK
                n_groups += (length + GROUP * BLOCK - 1) // (GROUP * BLOCK)
            length = 0
    new = Segment(
        np.empty(n_entries, np.int32),
        np.zeros(n_entries + 1, np.int64),
        np.zeros(n_entries + 1, np.int64),
        np.zeros(n_entries + 1, np.int64),
        np.zeros(n_entries, np.float32),
        np.empty(n, np.int32),
        np.empty(n, np.float32),
        np.empty(n, np.uint64),
        np.empty(n, np.uint32),
        np.empty((n_blocks, 4), np.float32),
        np.zeros(n_blocks, np.float32),
        np.empty((n_groups, 4), np.float32),
        np.zeros(n_groups, np.float32),
        np.zeros(n_entries // 2 + 2, np.int32),
        frame_of(window.places[first:stop]),
    )
    cell_of = np.empty(stop - first, np.uint32)
    for row in range(first, stop):
        cell_of[row - first] = _cell_of(new.frame, window.places, row)
    rows = np.empty(n, np.int64)
    entry, block, group = 0, 0, 0
    for i in range(n):
        source = by_token[i]
        new.messages[i] = owners[source]
        rows[i] = first + owners[source]
        new.weights[i] = window.weights[sources[source]]
        new.signatures[i] = signature_of[owners[source]]
        new.cells[i] = cell_of[owners[source]]
        new.largest[entry] = max(new.largest[entry], new.weights[i])
        if i + 1 < n and tokens[by_token[i + 1]] == tokens[source]:
            continue
        new.tokens[entry] = tokens[source]
        new.posting_offsets[entry + 1] = i + 1
        start = new.posting_offsets[entry]
        if i + 1 - start >= LEAST_BLOCKED:
            block = _fit_spheres(
                window.places, rows, new.weights, start, i + 1, BLOCK, block, new.block_spheres,
                new.block_largest,
            )  # fmt: skip
            group = _fit_spheres(
                window.places, rows, new.weights, start, i + 1, GROUP * BLOCK, group,
                new.group_spheres, new.group_largest,
            )  # fmt: skip
        new.block_offsets[entry + 1] = block
        new.group_offsets[entry + 1] = group
        entry += 1
    n_buckets = len(new.buckets) - 1
    for entry in range(n_entries):
        new.buckets[(_mixed(new.tokens[entry]) * n_buckets >> 32) + 1] += 1
    for bucket in range(n_buckets):
        new.buckets[bucket + 1] += new.buckets[bucket]
    return new
