"""Which way a message of a batch takes: through the trie, or down the root list.

[CIKM15] chooses per message between text and space by estimated cost. A single message does so by
walking (:mod:`earshot.indexes.block_trie.kernels.match`); in a batch the costs are others, and are
told by a histogram of the root list's blocks. A sample of the whole batch chooses for its short
messages and for its long ones, since ways are cheap where many go them. It is the same for all
threads, so that they change no counter.
"""

from __future__ import annotations

import math

import numpy as np

from earshot.indexes.block_trie.kernels.arrays import (
    FIRST_CHILD,
    IS_NODE,
    KIND,
    N_CHILDREN,
    N_CODES,
    N_COMPLETE,
    N_EXACT_CODES,
    N_OPEN,
    NO_ROOT,
    NODE_COLUMNS,
    ROOT_COLUMNS,
    WHERE,
)
from earshot.indexes.block_trie.kernels.build import hilbert_index
from earshot.indexes.block_trie.kernels.lists import are_short, lists_of
from earshot.indexes.block_trie.kernels.vectors import GROUP
from earshot.indexes.kernels.blocks import touching_blocks
from earshot.kernels.box_keys import BLOCK, TOP, box_limit, finite_cell
from earshot.kernels.jit import inlined_kernel, kernel, lean_kernel

N_STEPS = 4096
"""Steps that narrow the search for a coordinate's cell: 32 KB, and mostly 8 bounds a step."""

MOST_CELL_BITS = 8
"""Of either axis of the histogram, which then takes 1 MB; with 7, tiny regions look larger."""
_LANE_BITS = 15

TRIE, ROOT, NOWHERE = range(3)

LONG = 64
"""Tokens above which a message is a long one."""

# Costs in nanoseconds on an AMD EPYC; only their ratios matter. Fits to 192 rows of the suite
# ``batch_ways``, of 1 M subscriptions, compared with rows of 3 M and 10 M.
CALL_COST, GROUPS_CALL_COST = 3_400.0, 43_100.0
"""Of a batch, before its first message: through the trie, and in groups."""
TOKEN_COST = 36.6
"""Of a token in the trie, without the lists that it opens."""
LIST_BLOCK_COST, FIRST_BLOCK_COST = 20.7, 10.5
"""Of a block of such a list; more, if no earlier message of the batch brought it into the cache."""
FEW_TOKENS, DEEPER_ENTRY_COST = 8.0, 0.8
"""Of an entry in lists that only messages with more tokens reach."""
MOST_NEAR = 8
"""Blocks of a list that a message brings into the cache, at most."""
FRINGE, SHORT_FRINGE = 2.0, 0.9
"""Blocks on either side of those that cover a message; those of short lists are of all sizes."""
GROUP_MESSAGE_COST = 563.0
"""Of a message in a group, whatever it is."""
GROUP_TOKEN_COST, GROUP_RARE_TOKEN_COST = 3.78, 9.4
"""Of a token of a message in a group; more, if it shares its code with others."""
GROUP_BLOCK_COST, GROUP_PASSED_COST = 20.1, 0.0101
"""Of a block of the root list for a group; more, by what passes (see ``n_passed``)."""
GROUP_ANSWER_COST, GROUP_SHARED_COST = 0.00423, 0.0353
"""Of a block that touches a message, by what passes; and by the tokens that are compared where
several of a group's have one code."""

# The same of messages one by one.
SINGLE_COST, SINGLE_TOKEN_COST, SINGLE_LIST_BLOCK_COST = 366.0, 10.4, 23.9
SINGLE_MANY_TOKENS = 77.0
"""Tokens at which a message takes twice as long for each in the trie."""
SINGLE_ROOT_COST, SINGLE_BLOCK_COST, SINGLE_PASSED_COST = 1_070.0, 11.8, 0.0195
PASSED_LENGTH, PASSED_TOKENS = 6.95, 135.0
"""See ``n_passed``."""


@inlined_kernel
def limit_of(arrays, box):
    """Return the limit of a message; as ``box_limit``, but faster for points."""
    quantizer, costs, scales = arrays.quantizer, arrays.costs, arrays.costs.scales
    x, y = box[0], box[1]
    has_steps = scales[1] > 0.0 and scales[3] > 0.0
    is_point = box[2] == x and box[3] == y
    if not (has_steps and is_point and abs(x) < np.inf and abs(y) < np.inf):
        return box_limit(quantizer, x, y, box[2], box[3])
    column = finite_cell(quantizer.x_bounds, costs.x_steps, scales[0], scales[1], x)
    row = finite_cell(quantizer.y_bounds, costs.y_steps, scales[2], scales[3], y)
    return (
        np.uint64(column)
        | np.uint64(row) << np.uint64(16)
        | np.uint64(TOP - column) << np.uint64(32)
        | np.uint64(TOP - row) << np.uint64(48)
        | np.uint64(0x8000_8000_8000_8000)
    )


@lean_kernel
def fill_limits(arrays, boxes, first, n, limits):
    """Fill the limits of ``n`` messages."""
    for i in range(n):
        limits[i] = limit_of(arrays, boxes[first + i])


@kernel
def fill_block_sums(summary_keys, first, n_blocks, cell_bits, sums):
    """Fill the histogram of the root list's blocks.

    A block adds 1 to each cell that it touches, takes 1 from each border between two of them, and
    adds 1 to each corner of four. Summed over any rectangle of cells, that is 1 for each block that
    touches it. ``sums`` are of all up to a place, so four of them tell of any rectangle.
    """
    sums[:] = 0
    lane = np.uint64(0x7FFF)
    shift, n_row = _LANE_BITS - cell_bits, np.int64(2) << cell_bits
    for b in range(n_blocks):
        key = summary_keys[first + b]
        left = np.int64(key & lane)
        bottom = np.int64(key >> np.uint64(16) & lane)
        right = TOP - np.int64(key >> np.uint64(32) & lane)
        upper = TOP - np.int64(key >> np.uint64(48) & lane)
        if right < left or upper < bottom:
            continue  # all of it was removed
        x0, x1 = 2 * (left >> shift), 2 * (right >> shift) + 1
        y0, y1 = 2 * (bottom >> shift), 2 * (upper >> shift) + 1
        sums[x0 * n_row + y0] += 1
        sums[x1 * n_row + y0] -= 1
        sums[x0 * n_row + y1] -= 1
        sums[x1 * n_row + y1] += 1
    for _ in range(2):  # to what covers each place, then to the sums of that
        for x in range(n_row):
            for y in range(1, n_row):
                sums[x * n_row + y] += sums[x * n_row + y - 1]
        for x in range(1, n_row):
            for y in range(n_row):
                sums[x * n_row + y] += sums[(x - 1) * n_row + y]
        if _ == 0:
            for x in range(n_row):
                for y in range(n_row):
                    if (x + y) & 1:
                        sums[x * n_row + y] = -sums[x * n_row + y]


@inlined_kernel
def _sum_to(sums, x, y, n_row):
    return np.int64(sums[x * n_row + y]) if x >= 0 and y >= 0 else np.int64(0)


@inlined_kernel
def count_blocks(costs, limit):
    """Return how many blocks of the root list touch the cells that a limit touches."""
    sums, cell_bits = costs.block_sums, costs.cell_bits[0]
    shift, n_row = _LANE_BITS - cell_bits, np.int64(2) << cell_bits
    lane = np.uint64(0x7FFF)
    x1 = 2 * (np.int64(limit & lane) >> shift)
    y1 = 2 * (np.int64(limit >> np.uint64(16) & lane) >> shift)
    x0 = 2 * ((TOP - np.int64(limit >> np.uint64(32) & lane)) >> shift) - 1
    y0 = 2 * ((TOP - np.int64(limit >> np.uint64(48) & lane)) >> shift) - 1
    return (
        _sum_to(sums, x1, y1, n_row) - _sum_to(sums, x0, y1, n_row)
        - _sum_to(sums, x1, y0, n_row) + _sum_to(sums, x0, y0, n_row)
    )  # fmt: skip


@inlined_kernel
def expect_blocks(costs, limit):
    """Return about how many blocks of the root list touch a limit; 0 only if there are none.

    The histogram counts those of whole cells. Of a message within one cell, a share of them.
    """
    n_blocks = count_blocks(costs, limit)
    lane = np.uint64(0x7FFF)
    width = np.int64(limit & lane) + np.int64(limit >> np.uint64(32) & lane) - TOP
    height = np.int64(limit >> np.uint64(16) & lane) + np.int64(limit >> np.uint64(48) & lane) - TOP
    if max(width, height) >> (_LANE_BITS - costs.cell_bits[0]) > 0:
        return np.float64(n_blocks)
    return n_blocks * costs.block_share[0]


@kernel
def sample_places(arrays, n_clauses, boxes, rows, frontier):
    """Return what is typical of places, as the centres of some boxes are.

    That is the share of a cell's blocks that touch a place within it, and the number of the latter.
    """
    n_cell, n_place = 0, 0
    work = np.zeros(2, np.int64)
    for k in range(len(rows)):
        box = boxes[rows[k]]
        x, y = (box[0] + box[2]) / 2.0, (box[1] + box[3]) / 2.0
        if not (abs(x) < np.inf and abs(y) < np.inf):
            continue
        limit = box_limit(arrays.quantizer, x, y, x, y)
        n_cell += count_blocks(arrays.costs, limit)
        n_place += touching_blocks(
            n_clauses, arrays.summary_keys, arrays.root_summary[0], limit, frontier,
            np.int64(1) << 40, work,
        )[1]  # fmt: skip
    return min(max(n_place, 1) / max(n_cell, 1), 1.0), n_place / max(len(rows), 1)


@inlined_kernel
def n_near_of(n):
    """Return how many blocks of a list of n a message brings into the cache, at most."""
    return min((n + BLOCK - 1) // BLOCK, MOST_NEAR)


@kernel
def fill_list_blocks(arrays, tokens, frequencies, n_all, list_blocks, first_blocks, deeper_entries):
    """Fill how many blocks of lists a token opens on average; of some tokens, drawn as they occur.

    Returns the mean length of their complete lists.

    The more blocks of the root list touch a message, the more of any list do: ``list_blocks`` is by
    the bits of their number. Of b blocks, each of which covers 1 / b of the space at least, those
    touch that one of the root list's share would, and a fringe. Short lists share a block of
    summary keys.

    ``first_blocks`` are those that a token of a batch opens first, by the bits of the batch's
    number of tokens: blocks of long lists, which frequent tokens have, are in the cache by then.

    ``deeper_entries`` are those in the lists of a token's children that a message reaches because
    it has more than ``FEW_TOKENS``, by the bits of their number. The deeper the trie, the more.
    """
    list_blocks[:] = 0.0
    first_blocks[:] = 0.0
    deeper_entries[:] = 0.0
    n_occurring = max(frequencies.sum(), 1)
    total = 0
    n_nodes = len(arrays.nodes) // NODE_COLUMNS
    for i in range(len(tokens)):
        at = tokens[i] * ROOT_COLUMNS
        if arrays.roots[at + WHERE] == NO_ROOT:
            continue
        is_node = arrays.roots[at + KIND] == IS_NODE
        number = np.int64(arrays.roots[at + WHERE]) if is_node else n_nodes + tokens[i]
        _, n_complete, n_open = lists_of(arrays, number)
        total += n_complete
        n_near = n_near_of(n_complete) + n_near_of(n_open)
        drawn_share = frequencies[tokens[i]] / n_occurring
        for bits in range(len(first_blocks)):
            n_drawn = drawn_share * 2.0**bits
            first_blocks[bits] += n_near * (1.0 - math.exp(-n_drawn)) / n_drawn
        if is_node:
            node = number * NODE_COLUMNS
            first_child = np.int64(arrays.nodes[node + FIRST_CHILD])
            for child in range(first_child, first_child + arrays.nodes[node + N_CHILDREN]):
                share = frequencies[arrays.node_tokens[child]] / n_occurring
                at = child * NODE_COLUMNS
                n_entries = arrays.nodes[at + N_COMPLETE] + arrays.nodes[at + N_OPEN]
                by_few = math.exp(-share * FEW_TOKENS)
                for bits in range(len(deeper_entries)):
                    by_more = by_few - math.exp(-share * 2.0**bits)
                    deeper_entries[bits] += max(by_more, 0.0) * n_entries
        is_short = are_short(n_complete, n_open)
        if is_short and max(n_complete, n_open) > BLOCK:
            list_blocks += 1.0
        for column in range(2):
            n = n_complete if column == 0 else n_open
            n_blocks = (n + BLOCK - 1) // BLOCK
            if n_blocks <= 1:
                list_blocks += n_blocks
                continue
            n_above = 0.0
            left = 1 if is_short else n_blocks
            while left > 1:
                left = (left + BLOCK - 1) // BLOCK
                n_above += 1.0
            fringe = SHORT_FRINGE if n_blocks <= BLOCK else FRINGE
            for bits in range(len(list_blocks)):
                side = math.sqrt(n_blocks * min(2.0**bits / n_all, 1.0)) + fringe
                list_blocks[bits] += n_above + min(side * side, n_blocks)
    list_blocks /= max(len(tokens), 1)
    first_blocks /= max(len(tokens), 1)
    deeper_entries /= max(len(tokens), 1)
    return total / max(len(tokens), 1)


@inlined_kernel
def _n_bits(n):
    """Return the exponent of the greatest power of 2 that is not above a number; 0 below 2."""
    bits = 0
    while np.int64(n) >> bits > 1:
        bits += 1
    return bits


@inlined_kernel
def _list_blocks(costs, n_blocks):
    """Return the blocks of lists that a token opens, given the root list's blocks that touch."""
    return costs.list_blocks[_n_bits(n_blocks)]


@inlined_kernel
def single_trie_cost(costs, n_tokens, n_blocks):
    """Return the cost of a message by itself in the trie."""
    of_token = SINGLE_TOKEN_COST + SINGLE_LIST_BLOCK_COST * _list_blocks(costs, n_blocks)
    return SINGLE_COST + n_tokens * of_token * (1.0 + n_tokens / SINGLE_MANY_TOKENS)


@inlined_kernel
def single_root_cost(costs, n_tokens, n_blocks):
    """Return the cost of a message by itself down the root list."""
    of_block = SINGLE_BLOCK_COST + SINGLE_PASSED_COST * n_passed(costs, n_tokens)
    return SINGLE_ROOT_COST + n_blocks * of_block


@inlined_kernel
def n_passed(costs, n_tokens):
    """Return a measure of what passes in a block of the root list by a message's tokens.

    That grows with the tokens, less and less, and with the share of clauses that want but one.
    """
    wanted = PASSED_LENGTH + math.sqrt(costs.list_length[0])
    return wanted * n_tokens / (1.0 + n_tokens / PASSED_TOKENS)


@inlined_kernel
def first_blocks_of(costs, n_tokens):
    """Return how many blocks a token of a batch with so many tokens is the first to open."""
    return costs.first_blocks[_n_bits(n_tokens)]


@inlined_kernel
def trie_cost(costs, n_tokens, n_blocks, n_first):
    """Return the cost of a message of a batch in the trie; see ``first_blocks_of``."""
    of_blocks = LIST_BLOCK_COST * _list_blocks(costs, n_blocks) + FIRST_BLOCK_COST * n_first
    deeper = DEEPER_ENTRY_COST * costs.deeper_entries[_n_bits(n_tokens)]
    return n_tokens * (TOKEN_COST + of_blocks + deeper)


@inlined_kernel
def group_cost(costs, n_tokens, n_rare, n_blocks, n_all, n_batch):
    """Return the cost of a message that walks the root list with others.

    ``n_rare`` of its tokens share their codes with others. Messages of a batch of ``n_batch`` are
    taken to lie as the clauses do. Then ``GROUP`` neighbours cover ``GROUP / n_batch`` of the
    space, and where one touches e of b blocks, all of them touch the square of sqrt(e) + sqrt(b *
    GROUP / n_batch).
    """
    n_group = min(GROUP, n_batch)
    side = math.sqrt(n_blocks) + math.sqrt(n_all * n_group / n_batch)
    n_together = min(side * side, n_all, n_blocks * n_group)
    passed = n_passed(costs, n_tokens)
    shared = n_tokens * min(n_rare * n_group / (N_CODES - N_EXACT_CODES), 1.0)
    return (
        GROUP_MESSAGE_COST
        + GROUP_TOKEN_COST * n_tokens
        + GROUP_RARE_TOKEN_COST * n_rare
        + (GROUP_ANSWER_COST * passed + GROUP_SHARED_COST * shared) * n_blocks
        + (GROUP_BLOCK_COST + GROUP_PASSED_COST * passed) * n_together / n_group
    )


@lean_kernel
def fill_least_batches(costs, most, least):
    """Fill the least number of short messages that are matched as a batch through the trie.

    That is by their mean number of tokens, if they lie where clauses do; ``most`` where none is.
    """
    n_blocks = costs.typical_blocks[0]
    for n_tokens in range(len(least)):
        single = min(
            single_trie_cost(costs, n_tokens, n_blocks), single_root_cost(costs, n_tokens, n_blocks)
        )
        n = 1
        while n < most and single * n <= CALL_COST + n * trie_cost(
            costs, n_tokens, n_blocks, first_blocks_of(costs, n * n_tokens)
        ):
            n += 1
        least[n_tokens] = n


@lean_kernel
def plan_batch(arrays, messages, n_clauses, n_batch, n_sample, paths):
    """Choose the paths of short and of long messages, by a sample of all.

    Returns whether they cost less one by one.
    """
    n_all = max((n_clauses + BLOCK - 1) // BLOCK, 1)
    costs, offsets = arrays.costs, messages.token_offsets
    n_all_tokens = len(messages.token_ids) * n_batch / max(len(messages.boxes), 1)
    n_first = first_blocks_of(costs, n_all_tokens)
    batch = singly = 0.0
    for is_long in range(2):
        trie, together = CALL_COST * n_sample / n_batch, GROUPS_CALL_COST * n_sample / n_batch
        n_seen = 0
        for k in range(n_sample):
            m = k * len(messages.boxes) // n_sample
            n_tokens = offsets[m + 1] - offsets[m]
            box = messages.boxes[m]
            if (n_tokens > LONG) != (is_long == 1) or not box[0] <= box[2]:
                continue
            n_blocks = expect_blocks(costs, limit_of(arrays, box))
            if n_blocks > 0.0:
                n_seen += 1
                n_rare = 0
                for p in range(offsets[m], offsets[m + 1]):
                    n_rare += 1 if messages.token_ids[p] >= N_EXACT_CODES else 0
                trie += trie_cost(costs, n_tokens, n_blocks, n_first)
                together += group_cost(costs, n_tokens, n_rare, n_blocks, n_all, n_batch)
                singly += min(
                    single_trie_cost(costs, n_tokens, n_blocks),
                    single_root_cost(costs, n_tokens, n_blocks),
                )
        paths[is_long] = TRIE if trie < together else ROOT
        batch += min(trie, together) if n_seen > 0 else 0.0
    return singly <= batch


@lean_kernel
def choose_paths(costs, messages, first, n, paths, scratch):
    """Set the path of each of ``n`` messages; return how many go down the root list.

    Those are sorted along the Hilbert curve. ``paths`` are of short messages and of long ones.
    """
    n_root = 0
    for i in range(n):
        limit = scratch.limits[i]
        n_tokens = messages.token_offsets[first + i + 1] - messages.token_offsets[first + i]
        is_somewhere = count_blocks(costs, limit) > 0
        scratch.paths[i] = paths[1 if n_tokens > LONG else 0] if is_somewhere else NOWHERE
        if scratch.paths[i] == ROOT:
            x = np.int64(limit >> np.uint64(1) & np.uint64(0x3FFF))
            y = np.int64(limit >> np.uint64(17) & np.uint64(0x3FFF))
            scratch.codes[n_root] = np.uint64(hilbert_index(x, y)) << np.uint64(32) | np.uint64(i)
            n_root += 1
    if n_root > 0:
        sort_pairs(scratch.codes, scratch.other_codes, n_root, 38, 60, scratch.counts)
    return n_root


@lean_kernel
def sort_pairs(pairs, other, n, low_bit, high_bit, counts):
    """Sort pairs by some bits, equal ones in the order they come in; twice 11 bits or more."""
    digit_bits = 11
    mask = np.uint64((1 << digit_bits) - 1)
    source, target = pairs, other
    n_passes = 0
    for shift in range(low_bit, high_bit, digit_bits):
        by = np.uint64(shift)
        for d in range((1 << digit_bits) + 1):
            counts[d] = 0
        for i in range(n):
            counts[np.int64(source[i] >> by & mask) + 1] += 1
        for d in range(1 << digit_bits):
            counts[d + 1] += counts[d]
        for i in range(n):
            digit = np.int64(source[i] >> by & mask)
            target[counts[digit]] = source[i]
            counts[digit] += 1
        source, target = target, source
        n_passes += 1
    if n_passes & 1:
        for i in range(n):
            pairs[i] = other[i]
