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

from earshot.indexes.block_trie.kernels.build import hilbert_index
from earshot.indexes.block_trie.kernels.vectors import GROUP
from earshot.kernels.box_keys import BLOCK, TOP, box_limit
from earshot.kernels.jit import inlined_kernel, kernel, lean_kernel

N_STEPS = 4096
"""Steps that narrow the search for a coordinate's cell: 32 KB, and mostly 8 bounds a step."""

N_CELLS = 256
"""Cells of either axis of the histogram, which takes 1 MB; with 128, tiny regions look larger."""
_ROW = 2 * N_CELLS
_CELL_SHIFT = 7  # of a 15-bit lane

TRIE, ROOT, NOWHERE = range(3)

# Costs in nanoseconds on an Intel Xeon of 2023; only their ratios matter. Fits to 22 workloads of
# 1 M subscriptions.
TOKEN_COST = 50.0
"""Of a token in the trie, without the lists that it opens."""
LIST_BLOCK_COST = 40.0
"""Of a block of such a list."""
FRINGE = 2.0
"""Blocks on either side of those that cover a message."""
GROUP_BLOCK_COST = 70.0
"""Of a block of the root list for a group of messages."""
GROUP_TOKEN_COST = 10.0
"""Of a token of a message in a group."""
GROUP_ANSWER_COST = 6.0
"""Of an answer in a group; in the trie it is next to nothing."""
BLOCK_COST = 40.0
"""Of a block of the root list for a message alone, if it is short."""
ALONE_COST = 700.0
LONG_MESSAGE = 250.0
"""Tokens at which a message alone takes twice as long for a block, as it matches more of it."""
LONG = 64
"""Tokens above which a message is a long one."""


@kernel
def fill_steps(bounds, steps, scales, axis):
    """Fill how many bounds lie below each step.

    Steps are told by the same arithmetic as in ``_cell``, so that rounding does no harm.
    """
    n = len(bounds)
    first = bounds[0] if n > 0 else 0.0
    span = bounds[n - 1] - first if n > 0 else 0.0
    scale = N_STEPS / span if 0.0 < span < np.inf else 0.0
    scales[2 * axis], scales[2 * axis + 1] = first, scale if scale < np.inf else 0.0
    k = 0
    for step in range(N_STEPS):
        while k < n and _step(bounds[k], first, scales[2 * axis + 1]) < step:
            k += 1
        steps[step] = k
    steps[N_STEPS] = n


@inlined_kernel
def _step(value, first, scale):
    return np.int64(min(max((value - first) * scale, 0.0), N_STEPS - 1.0))


@inlined_kernel
def _cell(bounds, steps, first, scale, value):
    """As ``quantize``, for finite values."""
    step = _step(value, first, scale)
    low = np.int64(steps[step])
    length = np.int64(steps[step + 1]) - low
    while length > 0:
        half = length >> 1
        ahead = bounds[low + half] <= value
        low = low + half + 1 if ahead else low
        length = length - half - 1 if ahead else half
    return low + 1


@lean_kernel
def fill_limits(quantizer, tables, boxes, first, n, limits):
    """Fill the limits of ``n`` messages; as ``box_limit``, but faster for points."""
    scales = tables.scales
    has_steps = scales[1] > 0.0 and scales[3] > 0.0
    top_bits = np.uint64(0x8000_8000_8000_8000)
    for i in range(n):
        m = first + i
        x, y = boxes[m, 0], boxes[m, 1]
        is_point = boxes[m, 2] == x and boxes[m, 3] == y
        if has_steps and is_point and abs(x) < np.inf and abs(y) < np.inf:
            column = _cell(quantizer.x_bounds, tables.x_steps, scales[0], scales[1], x)
            row = _cell(quantizer.y_bounds, tables.y_steps, scales[2], scales[3], y)
            limits[i] = (
                np.uint64(column)
                | np.uint64(row) << np.uint64(16)
                | np.uint64(TOP - column) << np.uint64(32)
                | np.uint64(TOP - row) << np.uint64(48)
                | top_bits
            )
        else:
            limits[i] = box_limit(quantizer, x, y, boxes[m, 2], boxes[m, 3])


@kernel
def fill_block_sums(summary_keys, first, n_blocks, sums):
    """Fill the histogram of the root list's blocks.

    A block adds 1 to each cell that it touches, takes 1 from each border between two of them, and
    adds 1 to each corner of four. Summed over any rectangle of cells, that is 1 for each block that
    touches it. ``sums`` are of all up to a place, so four of them tell of any rectangle.
    """
    sums[:] = 0
    lane = np.uint64(0x7FFF)
    for b in range(n_blocks):
        key = summary_keys[first + b]
        left = np.int64(key & lane)
        bottom = np.int64(key >> np.uint64(16) & lane)
        right = TOP - np.int64(key >> np.uint64(32) & lane)
        upper = TOP - np.int64(key >> np.uint64(48) & lane)
        if right < left or upper < bottom:
            continue  # all of it was removed
        x0, x1 = 2 * (left >> _CELL_SHIFT), 2 * (right >> _CELL_SHIFT) + 1
        y0, y1 = 2 * (bottom >> _CELL_SHIFT), 2 * (upper >> _CELL_SHIFT) + 1
        sums[x0 * _ROW + y0] += 1
        sums[x1 * _ROW + y0] -= 1
        sums[x0 * _ROW + y1] -= 1
        sums[x1 * _ROW + y1] += 1
    for _ in range(2):  # to what covers each place, then to the sums of that
        for x in range(_ROW):
            for y in range(1, _ROW):
                sums[x * _ROW + y] += sums[x * _ROW + y - 1]
        for x in range(1, _ROW):
            for y in range(_ROW):
                sums[x * _ROW + y] += sums[(x - 1) * _ROW + y]
        if _ == 0:
            for x in range(_ROW):
                for y in range(_ROW):
                    if (x + y) & 1:
                        sums[x * _ROW + y] = -sums[x * _ROW + y]


@inlined_kernel
def _sum_to(sums, x, y):
    return np.int64(sums[x * _ROW + y]) if x >= 0 and y >= 0 else np.int64(0)


@lean_kernel
def count_blocks(sums, limit):
    """Return how many blocks of the root list touch the cells that a limit touches."""
    lane = np.uint64(0x7FFF)
    x1 = 2 * (np.int64(limit & lane) >> _CELL_SHIFT)
    y1 = 2 * (np.int64(limit >> np.uint64(16) & lane) >> _CELL_SHIFT)
    x0 = 2 * ((TOP - np.int64(limit >> np.uint64(32) & lane)) >> _CELL_SHIFT) - 1
    y0 = 2 * ((TOP - np.int64(limit >> np.uint64(48) & lane)) >> _CELL_SHIFT) - 1
    return (
        _sum_to(sums, x1, y1) - _sum_to(sums, x0, y1) - _sum_to(sums, x1, y0)
        + _sum_to(sums, x0, y0)
    )  # fmt: skip


@kernel
def fill_list_blocks(nodes, root_nodes, tokens, n_columns, n_all, list_blocks):
    """Fill how many blocks of lists a token opens on average; of some tokens, drawn as they occur.

    Returns the mean length of their complete lists.

    The more blocks of the root list touch a message, the more of any list do: ``list_blocks`` is by
    the bits of their number. Of b blocks, each of which covers 1 / b of the space at least, those
    touch that one of the root list's share would, and a fringe. Deeper nodes are left out.
    """
    list_blocks[:] = 0.0
    n_complete = 0
    for i in range(len(tokens)):
        node = np.int64(root_nodes[tokens[i]])
        n_complete += nodes[node * n_columns + 1] if node >= 0 else 0
        for column in range(2):
            n = nodes[node * n_columns + 1 + column] if node >= 0 else 0
            n_blocks = (n + BLOCK - 1) // BLOCK
            if n_blocks <= 1 + 3 * column:
                list_blocks += n_blocks
                continue
            n_above = 0.0
            left = n_blocks
            while left > 1:
                left = (left + BLOCK - 1) // BLOCK
                n_above += 1.0
            for bits in range(len(list_blocks)):
                side = math.sqrt(n_blocks * min(2.0**bits / n_all, 1.0)) + FRINGE
                list_blocks[bits] += n_above + min(side * side, n_blocks)
    list_blocks /= max(len(tokens), 1)
    return n_complete / max(len(tokens), 1)


@inlined_kernel
def trie_cost(tables, n_tokens, n_blocks):
    """Return the cost of a message in the trie, given the root list's blocks that touch it."""
    bits = 0
    while n_blocks >> bits > 1:
        bits += 1
    return n_tokens * (TOKEN_COST + LIST_BLOCK_COST * tables.list_blocks[bits])


@inlined_kernel
def alone_cost(n_tokens, n_blocks):
    """Return the cost of a message that walks the root list alone."""
    return ALONE_COST + BLOCK_COST * n_blocks * (1.0 + n_tokens / LONG_MESSAGE)


@inlined_kernel
def group_cost(tables, n_tokens, n_blocks, n_all, n_batch):
    """Return the cost of a message that walks the root list with others.

    Messages of a batch of ``n_batch`` are taken to lie as the clauses do. Then ``GROUP`` neighbours
    cover ``GROUP / n_batch`` of the space, and where one touches e of b blocks, all of them touch
    the square of sqrt(e) + sqrt(b * GROUP / n_batch).
    """
    n_group = min(GROUP, n_batch)
    side = math.sqrt(n_blocks) + math.sqrt(n_all * n_group / n_batch)
    n_together = min(side * side, n_all, float(n_blocks * n_group))
    # A long message has the frequent words of a short one, once, and then rarer ones.
    n_answers = min(n_tokens, LONG) * tables.list_length[0] * n_blocks / n_all
    return (
        GROUP_TOKEN_COST * n_tokens
        + GROUP_ANSWER_COST * n_answers
        + GROUP_BLOCK_COST * n_together / n_group
    )


@lean_kernel
def plan_batch(quantizer, tables, messages, n_clauses, n_batch, n_sample, paths):
    """Choose the paths of short and of long messages, by a sample of all.

    Returns whether they cost about as little alone: a single message goes down the root list, too,
    and a small batch does better without what a batch costs.
    """
    n_all = max((n_clauses + BLOCK - 1) // BLOCK, 1)
    least = singly = 0.0
    for is_long in range(2):
        trie = together = alone = 0.0
        for k in range(n_sample):
            m = k * len(messages.boxes) // n_sample
            n_tokens = messages.token_offsets[m + 1] - messages.token_offsets[m]
            box = messages.boxes[m]
            if (n_tokens > LONG) != (is_long == 1) or not box[0] <= box[2]:
                continue
            limit = box_limit(quantizer, box[0], box[1], box[2], box[3])
            n_blocks = count_blocks(tables.block_sums, limit)
            if n_blocks > 0:
                trie += trie_cost(tables, n_tokens, n_blocks)
                together += group_cost(tables, n_tokens, n_blocks, n_all, n_batch)
                alone += alone_cost(n_tokens, n_blocks)
        paths[is_long] = TRIE if trie < min(together, alone) else ROOT
        least += min(trie, together, alone)
        singly += alone
    return singly <= 1.5 * least


@lean_kernel
def choose_paths(tables, messages, first, n, paths, scratch):
    """Set the path of each of ``n`` messages; return how many go down the root list.

    Those are sorted along the Hilbert curve. ``paths`` are of short messages and of long ones.
    """
    n_root = 0
    for i in range(n):
        limit = scratch.limits[i]
        n_blocks = count_blocks(tables.block_sums, limit)
        n_tokens = messages.token_offsets[first + i + 1] - messages.token_offsets[first + i]
        scratch.n_blocks[i] = n_blocks
        scratch.paths[i] = paths[1 if n_tokens > LONG else 0] if n_blocks > 0 else NOWHERE
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
