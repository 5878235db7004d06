"""The index over the window: which messages score best for a subscription.

It answers where a buffer has run dry and where a subscription is new. Words of the subscription are
taken rarest first; each list is walked by blocks, and a block is skipped when neither its places
nor its weights can reach the worst score that still counts. A message is scored in the list of the
rarest word that it shares.
"""

from __future__ import annotations

import numpy as np

from earshot.kernels.jit import kernel, lean_kernel
from earshot.kernels.topk_arrays import (
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
    WindowArrays,
)
from earshot.kernels.topk_scoring import combine, distance, nearness
from earshot.model.arrays import Float64s, Int32s, Int64s

SLACK = 1e-9
"""Bounds are computed in another order than scores; this covers the rounding of both."""

UNIT_SQUARE = 1.000001
"""The square of a vector's length is at most this: its weights are rounded to single precision."""

BLOCK = 16
"""Postings under one sphere."""

LEAST_BLOCKED = 32
"""Lists shorter than this have no blocks."""

LOW = np.int64(0xFFFFFFFF)

TOO_MANY = -1


@lean_kernel
def row_of(window: WindowArrays, sequence: int) -> int:
    """Return the row of a message by the low 32 bits of its sequence."""
    return (np.int64(sequence) - window.facts[FIRST_SEQUENCE]) & LOW


@lean_kernel
def is_newer(window: WindowArrays, row: int, other: int) -> bool:
    """Whether a message leaves the window after another one."""
    time, other_time = window.times[row], window.times[other]
    return time > other_time or (time == other_time and row > other)


@lean_kernel
def is_better(
    window: WindowArrays, score: float, row: int, other_score: float, other: int
) -> bool:
    """Whether a message comes before another one in a result."""
    return score > other_score or (score == other_score and is_newer(window, row, other))


@lean_kernel
def _push(
    window: WindowArrays, scratch: SearchScratch, n: int, limit: int, score: float, row: int
) -> int:
    """Offer a message to the heap of the ``limit`` best; return how many it holds."""
    scores, rows = scratch.scores, scratch.rows
    if n < limit:
        at = n
        while at > 0:
            parent = (at - 1) >> 1
            if not is_better(window, scores[parent], rows[parent], score, row):
                break
            scores[at], rows[at] = scores[parent], rows[parent]
            at = parent
        scores[at], rows[at] = score, row
        return n + 1
    _replace_worst(window, scratch, n, score, row)
    return n


@lean_kernel
def _replace_worst(
    window: WindowArrays, scratch: SearchScratch, n: int, score: float, row: int
) -> None:
    """Put a message at the top of the heap and let it sink."""
    scores, rows = scratch.scores, scratch.rows
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
def _sort_heap(window: WindowArrays, scratch: SearchScratch, n: int) -> None:
    """Turn the heap into a list, best first."""
    for last in range(n - 1, 0, -1):
        score, row = scratch.scores[last], scratch.rows[last]
        worst_score, worst_row = scratch.scores[0], scratch.rows[0]
        _replace_worst(window, scratch, last, score, row)
        scratch.scores[last], scratch.rows[last] = worst_score, worst_row


@lean_kernel
def _find_entry(segments: SegmentArrays, segment: int, token: int) -> int:
    """Return the entry of a token in a segment, or -1."""
    low, stop = segments.entry_offsets[segment], segments.entry_offsets[segment + 1]
    high = stop
    while low < high:
        middle = (low + high) >> 1
        if segments.tokens[middle] < token:
            low = middle + 1
        else:
            high = middle
    return low if low < stop and segments.tokens[low] == token else -1


@lean_kernel
def _text_from(
    window: WindowArrays, row: int, subscribers: Subscribers, first: int, stop: int, current: int
) -> float:
    """Return the cosine of a message and the tokens ``first:stop`` of a subscription.

    And -1 where it has one of those before ``current``: it was met there already.
    """
    text = 0.0
    at_message = window.token_offsets[row]
    end = window.token_offsets[row + 1]
    for at in range(at_message, end):
        token = window.tokens[at]
        for i in range(first, stop):
            if subscribers.tokens[i] == token:
                if i < current:
                    return -1.0
                text += np.float64(subscribers.weights[i]) * np.float64(window.weights[at])
                break
    return text


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
    -1 where there is no room for them, and the work that it was.
    """
    counters[SEARCHES] += 1
    first, stop = subscribers.token_offsets[slot], subscribers.token_offsets[slot + 1]
    alpha = subscribers.alphas[slot]
    x, y, z = (
        subscribers.places[slot, 0], subscribers.places[slot, 1], subscribers.places[slot, 2],
    )  # fmt: skip
    n, n_more = 0, 0
    # What a message must score to be of interest: less than this is ignored.
    bar = -1.0
    n_blocks, n_postings, n_candidates = 0, 0, 0
    first_sequence = window.facts[FIRST_SEQUENCE]
    n_rows = window.facts[N_ROWS]
    for position in range(segments.facts[STOP_SEGMENT], segments.facts[FIRST_SEGMENT] - 1, -1):
        # The newest messages, in chains, come first; then the segments, newest first.
        is_chain = position == segments.facts[STOP_SEGMENT]
        base_row = 0
        if not is_chain:
            base_row = segments.first_sequences[position] - first_sequence
        for current in range(first, stop):
            weight = np.float64(subscribers.weights[current])
            rest_square = 0.0
            for i in range(current + 1, stop):
                rest_square += np.float64(subscribers.weights[i]) ** 2
            rest = np.sqrt(rest_square)
            token = subscribers.tokens[current]
            if is_chain:
                if token >= len(segments.chain_heads):
                    continue
                at = np.int64(segments.chain_heads[token])
                block_stop, list_stop, block_at, has_blocks = 0, 0, 0, False
            else:
                entry = _find_entry(segments, position, token)
                if entry < 0:
                    continue
                at = segments.posting_offsets[entry]
                list_stop = segments.posting_offsets[entry + 1]
                block_at = segments.block_offsets[entry]
                has_blocks = segments.block_offsets[entry + 1] > block_at
                block_stop = at
                most = np.float64(segments.largest[entry])
                bound = combine(alpha, 1.0, _text_bound_up_to(weight, rest, most))
                if bound + SLACK < bar:
                    continue
            block_near = 1.0
            while at >= 0:
                if not is_chain:
                    if at >= list_stop:
                        break
                    if has_blocks and at >= block_stop:
                        block_stop = min(at + BLOCK, list_stop)
                        n_blocks += 1
                        apart = distance(
                            x, y, z,
                            np.float64(segments.spheres[block_at, 0]),
                            np.float64(segments.spheres[block_at, 1]),
                            np.float64(segments.spheres[block_at, 2]),
                        ) - np.float64(segments.spheres[block_at, 3])  # fmt: skip
                        most = np.float64(segments.block_largest[block_at])
                        block_at += 1
                        block_near = nearness(max(apart, 0.0), max_distance)
                        bound = combine(alpha, block_near, _text_bound_up_to(weight, rest, most))
                        if bound + SLACK < bar:
                            at = block_stop
                            continue
                    row = base_row + segments.messages[at]
                    message_weight = np.float64(segments.weights[at])
                    at += 1
                else:
                    row = (np.int64(segments.chain_messages[at]) - first_sequence) & LOW
                    message_weight = np.float64(segments.chain_weights[at])
                    at = np.int64(segments.chain_nexts[at])
                n_postings += 1
                text_bound = _text_bound(weight, rest, message_weight)
                if combine(alpha, block_near, text_bound) + SLACK < bar:
                    continue
                # Messages that have left long ago have no row any more.
                if row < 0 or row >= n_rows or window.is_live[row] == 0:
                    continue
                near = nearness(
                    distance(
                        x, y, z, window.places[row, 0], window.places[row, 1], window.places[row, 2]
                    ),
                    max_distance,
                )  # fmt: skip
                if combine(alpha, near, text_bound) + SLACK < bar:
                    continue
                n_candidates += 1
                text = _text_from(window, row, subscribers, first, stop, current)
                if text < 0.0:
                    continue
                score = combine(alpha, near, text)
                if score < bar:
                    continue
                if n < limit or is_better(
                    window, score, row, scratch.scores[0], scratch.rows[0]
                ):
                    if factor < 1.0 and n == limit:
                        if n_more == len(scratch.more_scores):
                            return n, TOO_MANY, 0.0
                        scratch.more_scores[n_more] = scratch.scores[0]
                        scratch.more_rows[n_more] = scratch.rows[0]
                        n_more += 1
                    n = _push(window, scratch, n, limit, score, row)
                    if n == limit:
                        bar = factor * scratch.scores[0]
                elif factor < 1.0:
                    if n_more == len(scratch.more_scores):
                        return n, TOO_MANY, 0.0
                    scratch.more_scores[n_more] = score
                    scratch.more_rows[n_more] = row
                    n_more += 1
    _sort_heap(window, scratch, n)
    counters[SEARCH_BLOCKS] += n_blocks
    counters[SEARCH_POSTINGS] += n_postings
    counters[SEARCH_CANDIDATES] += n_candidates
    return n, n_more, n_blocks + n_postings + 8.0 * n_candidates


@lean_kernel
def _text_bound(weight: float, rest: float, message_weight: float) -> float:
    """Return the most that a cosine can be, given the weights of the rarest shared token.

    ``rest`` is the length of what follows in the subscription.
    """
    bound = weight * message_weight
    if rest > 0.0:
        bound += rest * np.sqrt(max(0.0, UNIT_SQUARE - message_weight * message_weight))
    return bound


@lean_kernel
def _text_bound_up_to(weight: float, rest: float, most: float) -> float:
    """Return the same for all weights in messages up to ``most``."""
    peak = weight / np.sqrt(weight * weight + rest * rest)
    return _text_bound(weight, rest, min(most, peak))


# ---- building ------------------------------------------------------------------------------------


@lean_kernel
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
def sort_by_token(tokens: Int32s) -> Int64s:
    """Return the stable order of tokens."""
    n = len(tokens)
    order = np.arange(n)
    other = np.empty(n, np.int64)
    most = tokens.max() if n else 0
    shift = 0
    while most >> shift:
        counts = np.zeros(2049, np.int64)
        for i in range(n):
            counts[(tokens[i] >> shift & 2047) + 1] += 1
        for digit in range(2048):
            counts[digit + 1] += counts[digit]
        for i in range(n):
            digit = tokens[order[i]] >> shift & 2047
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
def build_segment(
    window: WindowArrays, first: int, stop: int
) -> tuple[Int32s, Int64s, Int64s, Float32s, Int32s, Float32s, Float32s, Float32s]:
    """Return the lists of the messages in rows ``first:stop``; see :class:`SegmentArrays`."""
    order = np.argsort(curve_keys(window.places[first:stop]))
    n_postings = window.token_offsets[stop] - window.token_offsets[first]
    tokens = np.empty(n_postings, np.int32)
    owners = np.empty(n_postings, np.int32)
    sources = np.empty(n_postings, np.int64)
    n = 0
    for i in range(len(order)):
        row = first + order[i]
        for at in range(window.token_offsets[row], window.token_offsets[row + 1]):
            tokens[n], owners[n], sources[n] = window.tokens[at], order[i], at
            n += 1
    by_token = sort_by_token(tokens)
    n_entries = 0
    n_blocks = 0
    length = 0
    for i in range(n):
        length += 1
        if i + 1 == n or tokens[by_token[i + 1]] != tokens[by_token[i]]:
            n_entries += 1
            if length >= LEAST_BLOCKED:
                n_blocks += (length + BLOCK - 1) // BLOCK
            length = 0
    entry_tokens = np.empty(n_entries, np.int32)
    posting_offsets = np.zeros(n_entries + 1, np.int64)
    block_offsets = np.zeros(n_entries + 1, np.int64)
    largest = np.zeros(n_entries, np.float32)
    messages = np.empty(n, np.int32)
    weights = np.empty(n, np.float32)
    spheres = np.empty((n_blocks, 4), np.float32)
    block_largest = np.zeros(n_blocks, np.float32)
    rows = np.empty(n, np.int64)
    entry, block = 0, 0
    for i in range(n):
        source = by_token[i]
        messages[i] = owners[source]
        rows[i] = first + owners[source]
        weights[i] = window.weights[sources[source]]
        largest[entry] = max(largest[entry], weights[i])
        if i + 1 < n and tokens[by_token[i + 1]] == tokens[source]:
            continue
        entry_tokens[entry] = tokens[source]
        posting_offsets[entry + 1] = i + 1
        start = posting_offsets[entry]
        if i + 1 - start >= LEAST_BLOCKED:
            for low in range(start, i + 1, BLOCK):
                high = min(low + BLOCK, i + 1)
                fit_sphere(window.places, rows, low, high, spheres[block])
                block_largest[block] = weights[low:high].max()
                block += 1
        block_offsets[entry + 1] = block
        entry += 1
    return (
        entry_tokens, posting_offsets, block_offsets, largest, messages, weights, spheres,
        block_largest,
    )  # fmt: skip
