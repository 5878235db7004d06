"""The index over the window: which messages score best for a subscription.

It answers where a buffer has run dry and where a subscription is new. Words of the subscription are
taken rarest first; their lists are opened group by group of blocks, the most promising first, and
what cannot reach the worst score that still counts, by its places and weights, is left closed. A
message is scored in the list of the rarest word that it shares.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.model.arrays import Float64s, Int32s, Int64s
from earshot.semantics.topk.kernels.arrays import (
    FIRST_SEGMENT,
    FIRST_SEQUENCE,
    N_NODE_COLUMNS,
    N_ROWS,
    NODE_BLOCK,
    NODE_CAPS,
    NODE_ENTRY,
    NODE_GROUP,
    NODE_SEGMENT,
    NODE_TOKEN,
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
from earshot.semantics.topk.kernels.segments import BLOCK, GROUP, find_entry
from earshot.semantics.topk.kernels.window import (
    LOW,
    is_better,
    push,
    replace_worst,
    signature_bit,
    sort_heap,
)

SLACK = 1e-9
"""Bounds are computed in another order than scores; this covers the rounding of both."""

UNIT_SQUARE = 1.000001
"""The square of a vector's length is at most this: its weights are rounded to single precision."""

MANY = 16
"""Words from which a subscription is looked up by word, instead of compared with each."""

TOO_MANY = -1


class Searching(NamedTuple):
    """What a search works on."""

    window: WindowArrays
    segments: SegmentArrays
    subscribers: Subscribers
    scratch: SearchScratch
    counters: Int64s


class _Postings(NamedTuple):
    """Lists of postings, of segments or of a part of a chain."""

    messages: Int32s
    weights: Float32s
    signatures: UInt64s
    cells: UInt32s


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
            replace_worst(window, scratch.scores, scratch.rows, found[0], score, row)
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
    on: Searching, query: _Query, current: int, base_row: int, postings: _Postings,
    frame: Float64s, start: int, stop: int, caps_at: int,
) -> bool:  # fmt: skip
    """Score the messages of postings under the token at ``current``, if they can be good enough.

    One function for all postings: a call with so many arrays costs more than a posting. Return
    False where there is no room.
    """
    window, subscribers, scratch, counters = on.window, on.subscribers, on.scratch, on.counters
    messages, weights, signatures, cells = postings
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
    bounds, nodes = scratch.node_bounds, scratch.nodes
    while True:
        child = 2 * at + 1
        if child >= n:
            return
        if child + 1 < n and bounds[child + 1] > bounds[child]:
            child += 1
        if bounds[child] <= bounds[at]:
            return
        bounds[at], bounds[child] = bounds[child], bounds[at]
        for column in range(N_NODE_COLUMNS):
            nodes[at, column], nodes[child, column] = nodes[child, column], nodes[at, column]
        at = child


@lean_kernel
def search(
    on: Searching, slot: int, max_distance: float, limit: int, factor: float
) -> tuple[int, int, float]:
    """Find the best messages of the window for a subscription.

    With a factor of 1 these are the ``limit`` best, sorted, in ``scratch``. With a lower one, all
    that score at least that share of the worst of these: the others in no order in
    ``scratch.more_*``, of which some may score less. Return how many there are of both, the second
    TOO_MANY where there is no room, and the work that it was.

    Short lists are walked at once. Groups of blocks of the long ones wait in a heap until the most
    promising of them cannot have anything good enough.
    """
    segments, subscribers, scratch, counters = on.segments, on.subscribers, on.scratch, on.counters
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
    has_room = _search(on, query)
    _finish(subscribers, query, scratch)
    done = counters[SEARCH_BLOCKS] + counters[SEARCH_POSTINGS] + 8 * counters[SEARCH_CANDIDATES]
    if not has_room:
        return 0, TOO_MANY, 0.0
    return scratch.found[0], scratch.found[1], np.float64(done - work)


@lean_kernel
def _search(on: Searching, query: _Query) -> bool:
    """Do what :func:`search` says; return False where there is no room."""
    window, segments, subscribers = on.window, on.segments, on.subscribers
    scratch, counters = on.scratch, on.counters
    lists = _Postings(segments.messages, segments.weights, segments.signatures, segments.cells)
    part = _Postings(
        scratch.part_messages, scratch.part_weights, scratch.part_signatures, scratch.part_cells
    )
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
            if not _walk(on, query, current, 0, part, scratch.no_frame, 0, n, 0):
                return False
    n_nodes, caps_at = 0, 0
    for segment in range(segments.facts[STOP_SEGMENT] - 1, segments.facts[FIRST_SEGMENT] - 1, -1):
        base_row = segments.first_sequences[segment] - first_sequence
        caps_at += n_tokens
        for i in range(n_tokens):
            entry = find_entry(segments, segment, subscribers.tokens[query.first + i])
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
                frame = segments.frames[segment]
                if not _walk(on, query, current, base_row, lists, frame, start, stop, caps_at):
                    return False
            else:
                if n_nodes + n_groups > len(scratch.node_bounds):
                    return False
                counters[SEARCH_BLOCKS] += n_groups
                for group in range(n_groups):
                    near = _near_sphere(query, segments.group_spheres, first_group + group)
                    most = np.float64(segments.group_largest[first_group + group])
                    text = min(_text_bound_up_to(weight, rest_length, most), weight * most + rest)
                    bound = combine(query.alpha, near, text)
                    if bound + SLACK < bar[0]:
                        continue
                    scratch.node_bounds[n_nodes] = bound
                    scratch.nodes[n_nodes, NODE_GROUP] = group
                    scratch.nodes[n_nodes, NODE_BLOCK] = (
                        segments.block_offsets[entry] + group * GROUP
                    )
                    scratch.nodes[n_nodes, NODE_ENTRY] = entry
                    scratch.nodes[n_nodes, NODE_TOKEN] = current
                    scratch.nodes[n_nodes, NODE_SEGMENT] = segment
                    scratch.nodes[n_nodes, NODE_CAPS] = caps_at
                    n_nodes += 1
            rest += weight * scratch.caps[caps_at + current - query.first]
    for node in range(n_nodes // 2 - 1, -1, -1):
        _sink_node(scratch, node, n_nodes)
    while n_nodes > 0 and scratch.node_bounds[0] + SLACK >= bar[0]:
        if not _open_group(on, query, lists):
            return False
        n_nodes -= 1
        scratch.node_bounds[0] = scratch.node_bounds[n_nodes]
        for column in range(N_NODE_COLUMNS):
            scratch.nodes[0, column] = scratch.nodes[n_nodes, column]
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
def _open_group(on: Searching, query: _Query, lists: _Postings) -> bool:
    """Look into the blocks of the most promising group; return False where there is no room."""
    segments, subscribers, scratch, node = on.segments, on.subscribers, on.scratch, on.scratch.nodes
    entry, current = node[0, NODE_ENTRY], node[0, NODE_TOKEN]
    group, segment = node[0, NODE_GROUP], node[0, NODE_SEGMENT]
    block, caps_at = node[0, NODE_BLOCK], node[0, NODE_CAPS]
    base_row = segments.first_sequences[segment] - on.window.facts[FIRST_SEQUENCE]
    weight = np.float64(subscribers.weights[current])
    rest = np.sqrt(scratch.rest_squares[current - query.first])
    most_rest = 0.0  # what the less rare tokens can add at most
    for i in range(current + 1, query.stop):
        most_rest += np.float64(subscribers.weights[i]) * scratch.caps[caps_at + i - query.first]
    start = segments.posting_offsets[entry] + group * GROUP * BLOCK
    stop = min(start + GROUP * BLOCK, segments.posting_offsets[entry + 1])
    for low in range(start, stop, BLOCK):
        on.counters[SEARCH_BLOCKS] += 1
        near = _near_sphere(query, segments.block_spheres, block)
        most = np.float64(segments.block_largest[block])
        block += 1
        text = min(_text_bound_up_to(weight, rest, most), weight * most + most_rest)
        bound = combine(query.alpha, near, text)
        if bound + SLACK < scratch.bar[0]:
            continue
        high, frame = min(low + BLOCK, stop), segments.frames[segment]
        if not _walk(on, query, current, base_row, lists, frame, low, high, caps_at):
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
