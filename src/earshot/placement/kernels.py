"""Kernels of plans, of their cutting and of routing; :mod:`earshot.placement` describes them.

``tokens`` of clauses here are the tokens that they are filed under. While a plan is cut, tokens are
*numbers* 0, 1, … of the tokens that some sampled clause is filed under, and messages are reduced to
those.
"""

from __future__ import annotations

import numpy as np

from earshot.kernels.box_keys import BLOCK
from earshot.kernels.jit import kernel, lean_kernel
from earshot.kernels.searching import first_at_least
from earshot.model.arrays import EVERYWHERE_TOKEN

ROOT_BLOCKS_PER_TOKEN = 5.0
"""Blocks of the root list that cost about as much as following one token of a short message."""
LONG_MESSAGE = 128.0
"""Tokens at which a message's budget per token has doubled: each has more others to pair with."""

# What a node of a plan cuts by; the first four are columns of a subscription's keys.
CUT_X, CUT_Y, CUT_SIZE, CUT_CONTENT, CUT_TOKEN, LEAF = range(6)
N_KEYS = 4

LEFT, RIGHT = 0, 1


# ---- keys ---------------------------------------------------------------------------------------


@lean_kernel
def _mixed(value):
    """Return 64 well mixed bits (the finalizer of splitmix64)."""
    value += np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@lean_kernel
def _share(bits):
    """Return a number in [0, 1) from 64 mixed bits."""
    return np.float64(bits >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@lean_kernel
def _middle(low, high):
    """Return the centre of an interval, its finite end if it has one, or 0."""
    if np.isinf(low):
        return 0.0 if np.isinf(high) else high
    return low if np.isinf(high) else 0.5 * low + 0.5 * high


@lean_kernel
def file_clauses(clauses, frequencies, tokens, next_tokens):
    """Fill each clause's rarest known token and the next rarest one (-1 where there is none).

    Ties go to the smaller token. The token that every message carries is only taken where a clause
    has no other that is known.
    """
    n_known = len(frequencies)
    for c in range(len(clauses.subscriptions)):
        rarest, second = -1, -1
        for i in range(clauses.token_offsets[c], clauses.token_offsets[c + 1]):
            token = clauses.token_ids[i]
            if token < 0:
                break
            if token >= n_known or token == EVERYWHERE_TOKEN:
                continue
            if rarest < 0 or (frequencies[token], token) < (frequencies[rarest], rarest):
                rarest, second = token, rarest
            elif second < 0 or (frequencies[token], token) < (frequencies[second], second):
                second = token
        tokens[c] = EVERYWHERE_TOKEN if rarest < 0 else rarest
        next_tokens[c] = second


@lean_kernel
def key_slots(clauses, filed_tokens, n_known, box_bits, keys, tokens):
    """Fill what a plan looks at of each slot, from its first clause; the token is -1 without one.

    ``box_bits`` are the clauses' boxes as unsigned integers.
    """
    tokens[:] = -1
    for c in range(len(clauses.subscriptions)):
        slot = clauses.subscriptions[c]
        if tokens[slot] >= 0:
            continue
        tokens[slot] = filed_tokens[c]
        box = clauses.boxes[c]
        keys[slot, CUT_X] = _middle(box[0], box[2])
        keys[slot, CUT_Y] = _middle(box[1], box[3])
        keys[slot, CUT_SIZE] = max(box[2] - box[0], box[3] - box[1])
        bits = np.uint64(0)
        for i in range(clauses.token_offsets[c], clauses.token_offsets[c + 1]):
            token = clauses.token_ids[i]
            if max(token, ~token) < n_known:  # a sum, so the order of tokens does not matter
                bits += _mixed(np.uint64(np.uint32(token)))
        for side in range(4):
            bits = _mixed(bits ^ box_bits[c, side])
        keys[slot, CUT_CONTENT] = _share(bits)


# ---- assignment ---------------------------------------------------------------------------------


@lean_kernel
def _token_side(plan, node, token):
    """Return the side of a token: as listed, else by a hash of its own for each node."""
    start, stop = plan.token_starts[node], plan.token_starts[node + 1]
    at = first_at_least(plan.tokens, start, stop, token)
    if at < stop and plan.tokens[at] == token:
        return np.int64(plan.token_sides[at])
    bits = _mixed(np.uint64(token) | (np.uint64(node) << np.uint64(32)))
    return LEFT if _share(bits) < plan.thresholds[node] else RIGHT


@lean_kernel
def assign_slots(plan, keys, tokens, pieces):
    """Fill the piece of each slot; -1 where its token is -1."""
    for slot in range(len(tokens)):
        if tokens[slot] < 0:
            pieces[slot] = -1
            continue
        node = np.int64(0)
        while plan.kinds[node] != LEAF:
            kind = plan.kinds[node]
            if kind == CUT_TOKEN:
                side = _token_side(plan, node, tokens[slot])
            else:
                side = LEFT if keys[slot, kind] < plan.thresholds[node] else RIGHT
            node = np.int64(plan.children[node, side])
        pieces[slot] = plan.children[node, LEFT]


# ---- routing ------------------------------------------------------------------------------------


@lean_kernel
def _meets(boxes, row, box):
    """Whether a closed box shares a point with that of a message, which may cross 180 degrees."""
    if boxes[row, 1] > box[3] or boxes[row, 3] < box[1]:
        return False
    if box[0] > box[2]:
        return boxes[row, 2] >= box[0] or boxes[row, 0] <= box[2]
    return boxes[row, 0] <= box[2] and boxes[row, 2] >= box[0]


@lean_kernel
def route_messages(starts, shards, boxes, messages, row, last_seen, answers, offsets):
    """Append the shards of messages from ``row`` on; see ``AnswerKernel`` for the protocol.

    ``starts`` says where the units of each token begin; ``last_seen`` has a row per shard.
    """
    n_answers = offsets[row]
    n_shards = len(last_seen)
    for m in range(row, len(messages.boxes)):
        if n_answers + n_shards > len(answers):
            return m
        box = messages.boxes[m]
        first = n_answers
        for i in range(messages.token_offsets[m], messages.token_offsets[m + 1]):
            token = messages.token_ids[i]
            if token >= len(starts) - 1:
                continue
            for unit in range(starts[token], starts[token + 1]):
                shard = shards[unit]
                if last_seen[shard] != m and _meets(boxes, unit, box):
                    last_seen[shard] = m
                    answers[n_answers] = shard
                    n_answers += 1
        if (n_answers - first) * (n_answers - first) > 4 * n_shards:
            n_answers = first
            for shard in range(n_shards):
                if last_seen[shard] == m:
                    answers[n_answers] = shard
                    n_answers += 1
        else:
            for k in range(first + 1, n_answers):
                shard = answers[k]
                j = k
                while j > first and answers[j - 1] > shard:
                    answers[j] = answers[j - 1]
                    j -= 1
                answers[j] = shard
        offsets[m + 1] = n_answers
    return len(messages.boxes)


# ---- loads --------------------------------------------------------------------------------------


@lean_kernel
def count_hits(
    lists, messages, rows, n_message_tokens, blocks_each, first_groups, marks, list_hits, root_hits
):
    """Count how often each block of the lists, and of the root list, is examined by messages.

    ``lists`` is a :class:`earshot.placement.plans.SampleLists`, one block of which stands for
    ``blocks_each`` of the index. ``first_groups`` is -1, and ``marks`` 0, for every token; both are
    left so. Returns how many entries were examined.
    """
    n_groups = len(lists.group_tokens)
    for g in range(n_groups - 1, -1, -1):
        first_groups[lists.group_tokens[g]] = g
    n_examined = 0
    n_root = len(lists.root_boxes)
    for k in range(len(rows)):
        m = rows[k]
        box = messages.boxes[m]
        start, stop = messages.token_offsets[m], messages.token_offsets[m + 1]
        # As the index does: where few blocks of the root list touch the message, those are taken.
        n_tokens = n_message_tokens[m]
        budget = ROOT_BLOCKS_PER_TOKEN * n_tokens * (1.0 + n_tokens / LONG_MESSAGE) / blocks_each
        n_touching = 0
        for upper in range(len(lists.upper_boxes)):
            if _meets(lists.upper_boxes, upper, box):
                for b in range(upper * BLOCK, min(n_root, upper * BLOCK + BLOCK)):
                    n_touching += _meets(lists.root_boxes, b, box)
            if n_touching > budget:
                break
        if n_touching <= budget:
            for upper in range(len(lists.upper_boxes)):
                if _meets(lists.upper_boxes, upper, box):
                    for b in range(upper * BLOCK, min(n_root, upper * BLOCK + BLOCK)):
                        if _meets(lists.root_boxes, b, box):
                            root_hits[b] += 1
                            n_examined += lists.root_starts[b + 1] - lists.root_starts[b]
            continue
        for i in range(start, stop):
            marks[messages.token_ids[i]] = 1
        for i in range(start, stop):
            token = messages.token_ids[i]
            g = first_groups[token]
            if g < 0:
                continue
            while g < n_groups and lists.group_tokens[g] == token:
                first, last = lists.group_starts[g], lists.group_starts[g + 1]
                if lists.next_tokens[g] < 0 or marks[lists.next_tokens[g]] != 0:
                    for b in range(first, last):
                        # A list of one block is examined without a look at its box.
                        if last == first + 1 or _meets(lists.block_boxes, b, box):
                            list_hits[b] += 1
                            n_examined += lists.block_starts[b + 1] - lists.block_starts[b]
                g += 1
        for i in range(start, stop):
            marks[messages.token_ids[i]] = 0
    for g in range(n_groups):
        first_groups[lists.group_tokens[g]] = -1
    return n_examined


# ---- cuts ---------------------------------------------------------------------------------------


@lean_kernel
def _widen(units, row, boxes, c):
    for axis in range(2):
        units[row, axis] = min(units[row, axis], boxes[c, axis])
        units[row, axis + 2] = max(units[row, axis + 2], boxes[c, axis + 2])


@lean_kernel
def _clear(units, row):
    units[row, 0] = units[row, 1] = np.inf
    units[row, 2] = units[row, 3] = -np.inf


@lean_kernel
def route_sides(sample, messages, rows, sides, message_rows, units, flags):
    """Fill which sides each message goes to (1 left, 2 right, 3 both); return how many on either.

    ``units`` are two empty boxes per token, left and right, and are left empty.
    """
    for k in range(len(rows)):
        for c in range(sample.clause_starts[rows[k]], sample.clause_starts[rows[k] + 1]):
            _widen(units, 2 * sample.clause_tokens[c] + sides[k], sample.boxes, c)
    n_left, n_right = 0, 0
    for k in range(len(message_rows)):
        m = message_rows[k]
        box = messages.boxes[m]
        flag = 0
        for i in range(messages.token_offsets[m], messages.token_offsets[m + 1]):
            unit = 2 * np.int64(messages.token_ids[i])
            if flag & 1 == 0 and _meets(units, unit, box):
                flag |= 1
            if flag & 2 == 0 and _meets(units, unit + 1, box):
                flag |= 2
            if flag == 3:
                break
        flags[k] = flag
        n_left += flag & 1
        n_right += flag >> 1
    for k in range(len(rows)):
        for c in range(sample.clause_starts[rows[k]], sample.clause_starts[rows[k] + 1]):
            _clear(units, 2 * sample.clause_tokens[c] + sides[k])
    return n_left, n_right


@kernel
def node_tokens(sample, rows, weights, numbers):
    """Return the distinct tokens of some subscriptions and the weight of each.

    ``numbers`` is -1 for every token, and is filled with each one's place in the result.
    """
    tokens = np.empty(len(rows), np.int32)
    sums = np.zeros(len(rows), np.float64)
    n = 0
    for k in range(len(rows)):
        token = sample.tokens[rows[k]]
        if numbers[token] < 0:
            numbers[token] = n
            tokens[n] = token
            n += 1
        sums[numbers[token]] += weights[rows[k]]
    return tokens[:n].copy(), sums[:n].copy()


@kernel
def token_messages(sample, messages, rows, message_rows, units, numbers, n_numbers):
    """Return the messages that meet each token of a node: starts, and places in the node's list."""
    for k in range(len(rows)):
        for c in range(sample.clause_starts[rows[k]], sample.clause_starts[rows[k] + 1]):
            _widen(units, 2 * sample.clause_tokens[c], sample.boxes, c)
    starts = np.zeros(n_numbers + 1, np.int64)
    n = 0
    for k in range(len(message_rows)):
        n += messages.token_offsets[message_rows[k] + 1] - messages.token_offsets[message_rows[k]]
    pairs = np.empty((n, 2), np.int32)
    n = 0
    for k in range(len(message_rows)):
        m = message_rows[k]
        for i in range(messages.token_offsets[m], messages.token_offsets[m + 1]):
            token = np.int64(messages.token_ids[i])
            number = numbers[token]
            if number >= 0 and _meets(units, 2 * token, messages.boxes[m]):
                pairs[n, 0] = number
                pairs[n, 1] = k
                starts[number + 1] += 1
                n += 1
    for number in range(n_numbers):
        starts[number + 1] += starts[number]
    ends = starts[:-1].copy()
    places = np.empty(n, np.int32)
    for p in range(n):
        number = pairs[p, 0]
        places[ends[number]] = pairs[p, 1]
        ends[number] += 1
    for k in range(len(rows)):
        for c in range(sample.clause_starts[rows[k]], sample.clause_starts[rows[k] + 1]):
            _clear(units, 2 * sample.clause_tokens[c])
    return starts, places


@kernel
def side_tokens(order, sums, share, slack, n_rounds, starts, places, n_messages):
    """Return a side for each token, so that few messages go to both and the weights are in share.

    Tokens come in the given order to the side where they bring fewer new messages, as in streaming
    graph partitioning; in further rounds each may change sides where that saves messages. No side
    takes more than its share and the slack, as long as the other one has room.
    """
    total = sums.sum()
    room = np.array([share * (1.0 + slack) * total, (1.0 - share) * (1.0 + slack) * total])
    sides = np.full(len(sums), -1, np.int8)
    counts = np.zeros((n_messages, 2), np.int32)
    new = np.zeros(2, np.int64)
    for _ in range(1 + n_rounds):
        n_changes = 0
        for k in range(len(order)):
            token = order[k]
            old = sides[token]
            start, stop = starts[token], starts[token + 1]
            if old >= 0:
                if start == stop:
                    continue
                room[old] += sums[token]
                for p in range(start, stop):
                    counts[places[p], old] -= 1
            new[:] = 0
            for p in range(start, stop):
                new[LEFT] += counts[places[p], LEFT] == 0
                new[RIGHT] += counts[places[p], RIGHT] == 0
            fits_left, fits_right = room[LEFT] >= sums[token], room[RIGHT] >= sums[token]
            if fits_left and fits_right and new[LEFT] != new[RIGHT]:
                side = LEFT if new[LEFT] < new[RIGHT] else RIGHT
            elif old >= 0 and fits_left == fits_right:
                side = old
            elif fits_left != fits_right:
                side = LEFT if fits_left else RIGHT
            else:
                side = LEFT if room[LEFT] * (1.0 - share) >= room[RIGHT] * share else RIGHT
            n_changes += side != old
            sides[token] = side
            room[side] -= sums[token]
            for p in range(start, stop):
                counts[places[p], side] += 1
        if n_changes == 0:
            break
    return sides
