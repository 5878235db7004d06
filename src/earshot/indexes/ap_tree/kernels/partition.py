"""Dividing the clauses of a node by keyword or by place, at the least expected cost.

[VLDBJ15] sections 3.3.1 to 3.3.3. The cost of a partition (eq. 1) is the sum, over its cuts or
cells ``B``, of their clauses ``w(B)`` times the probability ``p(B)`` that a message visits them.
The dummy is always visited. To this we add what a visit costs by itself, and what it costs to look
for each of a message's words among the cuts; to find a cell costs next to nothing. The paper leaves
both out, divides nodes where the gain is smaller than the way to their children, and takes keywords
where messages have many words and place alone would tell.

Probabilities are shares of the messages of the sample that come to the node, where there are
enough, with a few messages' worth of the subscriptions' own distribution mixed in, so that nothing
unseen counts as impossible. Without a sample, the subscriptions stand for the messages: a keyword
is hit as often as clauses have it here, a cell as often as clauses have their centres in it. The
paper takes places to be uniform then; they are not, where subscriptions gather.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from earshot.indexes.ap_tree.kernels.motion import VISIT, Motion, moving_cost
from earshot.indexes.ap_tree.kernels.nodes import (
    FANOUT,
    HEURISTIC,
    NO_RANK,
    PARTITION,
    PLAIN,
    cell_of,
    cells_of,
    contains_region,
    n_not_above,
    rank_at,
)
from earshot.kernels.jit import lean_kernel
from earshot.model.arrays import Float64s, Int32s, Int64s

LEAST_SAMPLE = 32
"""Messages of the sample that must come to a node, for them to count."""

PRIOR = 8.0
"""Messages' worth of the subscriptions' distribution that is mixed with the sample."""

MOST_MEASURED = 1024
"""Clauses of a node by which its space is divided; a larger node's are taken at even steps."""

MOST_TRIED = 16
"""Places tried for an edge, of each kind; the paper tries all."""

WORD = 1.0
"""What it costs to look for a word among cuts, in clauses of a list; a visit costs ``VISIT``.

A clause of a list costs little, as sixteen are compared at once. With 8 and 0, messages of ais took
three times as long where regions are 1e-8 of the space, and a fifth longer with the paper's.
"""

MOST_COPIES = 1.6
"""Copies of a clause, on the average, that columns may make, and that rows may make."""

LEAST_PER_CHILD = 4
"""Clauses that a child is to have on the average; small nodes have fewer children for it."""

_FEW = 96
"""Numbers that are sorted by shifting; more are sorted by their bytes."""


class PartitionScratch(NamedTuple):
    """Working memory for dividing a node of n clauses."""

    ranks: Int32s  # (n,) of each clause, the keyword that decides
    sorted_ranks: Int32s  # (n,)
    spare: Int32s  # (n,) for sorting
    distinct: Int32s  # (n,) ranks that occur, ascending
    weights: Float64s  # (n + 1,) clauses with a rank before the i-th
    chances: Float64s  # (n + 1,) probabilities of the ranks before the i-th, added up
    counts: Int64s  # (2048,) for sorting
    cuts: Int64s  # (fanout + 1,) where in ``distinct`` each cut begins
    costs: Float64s  # (2, ranks + 1) of the dynamic programme; empty for the heuristic
    choices: Int32s  # (cuts * (ranks + 1),) best last cut of each part of the dynamic programme
    lows: Float64s  # (MOST_MEASURED,) of the boxes on an axis, ascending
    highs: Float64s  # (MOST_MEASURED,)
    middles: Float64s  # (MOST_MEASURED,)
    seen: Float64s  # (MOST_MEASURED,) places of the sample's messages on an axis, ascending
    edges: Float64s  # (2 * (fanout + 1),) of columns, then of rows
    grid: Float64s  # (2, 4 * (fanout + 1)) clauses of each cell, messages of each cell
    motion: Motion  # of subscriptions; none where they stay where they are


# ---- sorting -------------------------------------------------------------------------------------


@lean_kernel
def sort_few(values, start, n):
    """Sort ``n`` values from ``start`` on, by Shell's method."""
    gap = np.int64(1)
    while gap < n // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(start + gap, start + n):
            value = values[i]
            k = i
            while k >= start + gap and values[k - gap] > value:
                values[k] = values[k - gap]
                k -= gap
            values[k] = value
        gap //= 3


@lean_kernel
def sort_integers(values, n, spare, counts):
    """Sort the first ``n`` values; both arrays have room for them, ``counts`` for 2,048 numbers."""
    if n <= _FEW:
        sort_few(values, np.int64(0), np.int64(n))
        return
    source, target = values, spare
    for turn in range(4):
        shift = np.int64(8 * turn)
        counts[:257] = 0
        for i in range(n):
            counts[1 + ((np.int64(source[i]) + 0x80000000) >> shift & 0xFF)] += 1
        for digit in range(256):
            counts[digit + 1] += counts[digit]
        for i in range(n):
            digit = (np.int64(source[i]) + 0x80000000) >> shift & 0xFF
            target[counts[digit]] = source[i]
            counts[digit] += 1
        source, target = target, source


# ---- keywords ------------------------------------------------------------------------------------


@lean_kernel
def n_parts_of(tree, n):
    """Return into how many parts ``n`` clauses are to be divided at most (``f``)."""
    return max(np.int64(2), min(np.int64(tree.rules[FANOUT]), n // LEAST_PER_CHILD))


@lean_kernel
def count_ranks(tree, clauses, rows, offset, scratch):
    """Find the keywords of rank number ``offset``: their ranks and weights.

    Returns how many different ones there are, and how many clauses have none.
    """
    n = np.int64(0)
    for i in range(len(rows)):
        c = rows[i]
        start, stop = clauses.token_offsets[c], clauses.token_offsets[c + 1]
        rank = rank_at(tree.ranks, clauses.token_ids, start, stop, offset)
        scratch.ranks[i] = rank
        if rank != NO_RANK:
            scratch.sorted_ranks[n] = rank
            n += 1
    sort_integers(scratch.sorted_ranks, n, scratch.spare, scratch.counts)
    m = np.int64(0)
    scratch.weights[0] = 0.0
    for i in range(n):
        if i == 0 or scratch.sorted_ranks[i] != scratch.sorted_ranks[i - 1]:
            scratch.distinct[m] = scratch.sorted_ranks[i]
            m += 1
        scratch.weights[m] = i + 1.0
    return m, len(rows) - n


@lean_kernel
def fill_chances(tree, messages, etas, n_distinct, scratch):
    """Add up the hit probabilities of the keywords, in their order."""
    chances, weights, m = scratch.chances, scratch.weights, n_distinct
    whole = weights[m]
    if len(messages) < LEAST_SAMPLE:
        for j in range(m + 1):
            chances[j] = weights[j] / whole
        return
    chances[: m + 1] = 0.0
    n_hits = np.int64(0)
    for i in range(len(messages)):
        stop = tree.sample_offsets[messages[i] + 1]
        for k in range(tree.sample_offsets[messages[i]] + etas[i], stop):
            rank = tree.sample_ranks[k]
            j = n_not_above(scratch.distinct, np.int64(0), m, rank)
            if j > 0 and scratch.distinct[j - 1] == rank:
                chances[j] += 1.0
                n_hits += 1
    each = max(1.0, np.float64(n_hits)) / len(messages)
    total = len(messages) + PRIOR
    for j in range(1, m + 1):
        own = PRIOR * each * (weights[j] - weights[j - 1]) / whole
        chances[j] = chances[j - 1] + (chances[j] + own) / total


@lean_kernel
def _cost(scratch, first, stop):
    """Return the cost of one cut (eq. 3)."""
    return (scratch.weights[stop] - scratch.weights[first]) * (
        scratch.chances[stop] - scratch.chances[first]
    )


@lean_kernel
def partition_evenly(n_distinct, n_cuts, scratch):
    """Cut the keywords into parts of about equal weight; return how many."""  # Alg. 3, l. 1
    cuts, weights = scratch.cuts, scratch.weights
    whole = weights[n_distinct]
    cuts[0] = 0
    n = np.int64(1)
    for j in range(1, n_distinct):
        left = n_cuts - n  # cuts that may still be begun
        if left <= 0:
            break
        begun = weights[cuts[n - 1]]
        share = (whole - begun) / (left + 1)
        # With or without the next keyword, whichever is closer.
        if (
            weights[j] - begun + 0.5 * (weights[j + 1] - weights[j]) >= share
            or n_distinct - j <= left
        ):
            cuts[n] = j
            n += 1
    cuts[n] = n_distinct
    return n


@lean_kernel
def partition_heuristically(n_distinct, n_cuts, scratch):
    """Cut the keywords into even parts, and move each border to its best place in turn.

    [VLDBJ15] Algorithm 3: ``c_i`` is ``cuts[i]:cuts[i + 1]``. Returns the number of cuts.
    """
    n = partition_evenly(n_distinct, n_cuts, scratch)
    cuts = scratch.cuts
    for i in range(1, n):
        first, stop = cuts[i - 1], cuts[i + 1]
        best, best_cost = cuts[i], _cost(scratch, first, cuts[i]) + _cost(scratch, cuts[i], stop)
        for j in range(first + 1, stop):
            cost = _cost(scratch, first, j) + _cost(scratch, j, stop)
            if cost < best_cost:
                best, best_cost = j, cost
        cuts[i] = best
    return n


@lean_kernel
def partition_optimally(n_distinct, n_cuts, is_plain, scratch):
    """Cut the keywords into ``n_cuts`` parts at the least cost.

    [VLDBJ15] Algorithm 2 (eqs. 2 and 3), from the other end: the best ``c`` cuts of the first ``j``
    keywords. The cost of a cut is the product of two sums, for which the best begin of the last
    cut never moves back as ``j`` grows. So each ``j`` is looked for between its neighbours only,
    every second one first, which takes f |V| log |V| steps in place of f |V|^2. ``is_plain`` looks
    everywhere, as the paper does.
    """
    m, width = n_distinct, n_distinct + 1
    n_cuts = min(n_cuts, m)
    before, after = scratch.costs[0], scratch.costs[1]
    for j in range(m + 1):
        before[j] = _cost(scratch, 0, j) if j > 0 else np.inf
    for c in range(2, n_cuts + 1):
        row = (c - 2) * width
        choices = scratch.choices[row : row + width]
        after[:width] = np.inf
        step = np.int64(1)
        while 2 * step <= m:
            step *= 2
        while step > 0:
            for j in range(step, m + 1, 2 * step):
                low = np.int64(choices[j - step]) if j - step > 0 else c - 1
                high = np.int64(choices[j + step]) if j + step <= m else j - 1
                low, high = max(low, c - 1), min(high, j - 1)
                if is_plain:
                    low, high = c - 1, j - 1
                best, best_cost = max(low, c - 1), np.inf
                for i in range(low, high + 1):
                    cost = before[i] + _cost(scratch, i, j)
                    if cost < best_cost:
                        best, best_cost = i, cost
                choices[j] = best
                after[j] = best_cost
            step //= 2
        before, after = after, before
    j = m
    scratch.cuts[n_cuts] = m
    for c in range(n_cuts, 1, -1):
        j = np.int64(scratch.choices[(c - 2) * width + j])
        scratch.cuts[c - 1] = j
    scratch.cuts[0] = 0
    return n_cuts


@lean_kernel
def _mean_words(tree, messages, etas):
    """Return how many words of a message are looked for among cuts; 0 if nobody knows."""
    n = np.int64(0)
    for i in range(len(messages)):
        message = np.int64(messages[i])
        n += tree.sample_offsets[message + 1] - tree.sample_offsets[message] - etas[i]
    return n / max(1, len(messages))


@lean_kernel
def partition_keywords(tree, messages, etas, n_distinct, n_without, n_clauses, scratch):
    """Cut the keywords of a node; return the cost and the number of cuts."""
    n_cuts = min(n_parts_of(tree, n_clauses), n_distinct)
    if n_cuts == n_distinct:
        for j in range(n_cuts + 1):
            scratch.cuts[j] = j
    elif tree.rules[PARTITION] == HEURISTIC:
        n_cuts = partition_heuristically(n_distinct, n_cuts, scratch)
    else:
        is_plain = tree.rules[PARTITION] == PLAIN
        n_cuts = partition_optimally(n_distinct, n_cuts, is_plain, scratch)
    cost = np.float64(n_without) + VISIT * scratch.chances[n_distinct]
    cost += WORD * _mean_words(tree, messages, etas)
    for i in range(n_cuts):
        cost += _cost(scratch, scratch.cuts[i], scratch.cuts[i + 1])
    return cost, n_cuts


# ---- space ---------------------------------------------------------------------------------------


@lean_kernel
def _measure_axis(tree, clauses, rows, messages, region, axis, scratch):
    """Write where boxes and messages are on an axis, each ascending; return how many there are.

    Boxes are cut off at the region; those that contain all of it are left out.
    """
    low_side, high_side = region[axis], region[2 + axis]
    step = max(np.int64(1), -(-len(rows) // MOST_MEASURED))
    n = np.int64(0)
    for i in range(0, len(rows), step):
        box = clauses.boxes[rows[i]]
        if (
            box[0] <= region[0] and box[1] <= region[1]
            and box[2] >= region[2] and box[3] >= region[3]
        ):  # fmt: skip
            continue
        low = min(max(box[axis], low_side), high_side)
        high = min(max(box[2 + axis], low_side), high_side)
        scratch.lows[n], scratch.highs[n] = low, high
        scratch.middles[n] = low + 0.5 * (high - low)
        n += 1
    n_seen = np.int64(0)
    if len(messages) >= LEAST_SAMPLE:
        skip = max(np.int64(1), -(-len(messages) // MOST_MEASURED))
        for i in range(0, len(messages), skip):
            scratch.seen[n_seen] = tree.sample_places[messages[i], axis]
            n_seen += 1
    sort_few(scratch.lows, np.int64(0), n)
    sort_few(scratch.highs, np.int64(0), n)
    sort_few(scratch.middles, np.int64(0), n)
    sort_few(scratch.seen, np.int64(0), n_seen)
    return n, n_seen


@lean_kernel
def _n_below(values, n, value):
    """Return how many of the first ``n`` ascending values are < ``value``."""
    low = np.int64(0)
    while n > 0:
        half = n >> 1
        ahead = values[low + half] < value
        low = low + half + 1 if ahead else low
        n = n - half - 1 if ahead else half
    return low


@lean_kernel
def _strip_weight(scratch, n, low, high):
    """Return how many boxes touch a strip that is open at its upper edge."""
    return _n_below(scratch.lows, n, high) - _n_below(scratch.highs, n, low)


@lean_kernel
def _strip_cost(scratch, n, n_seen, low, high):
    own = np.float64(_n_below(scratch.middles, n, high) - _n_below(scratch.middles, n, low)) / n
    if n_seen > 0:
        seen = _n_below(scratch.seen, n_seen, high) - _n_below(scratch.seen, n_seen, low)
        own = (seen + PRIOR * own) / (n_seen + PRIOR)
    return own * _strip_weight(scratch, n, low, high)


@lean_kernel
def _best_edge(scratch, n, n_seen, low, edge, high):
    """Return where between two edges the one between them costs least."""
    best = edge
    best_cost = _strip_cost(scratch, n, n_seen, low, edge) + _strip_cost(
        scratch, n, n_seen, edge, high
    )
    for is_end in range(2):
        values = scratch.highs if is_end else scratch.lows
        first, stop = n_not_above(values, np.int64(0), n, low), _n_below(values, n, high)
        step = max(np.int64(1), (stop - first) // MOST_TRIED)
        for i in range(first, stop, step):
            tried = np.nextafter(values[i], np.inf) if is_end else values[i]
            if not low < tried < high:
                continue
            cost = _strip_cost(scratch, n, n_seen, low, tried) + _strip_cost(
                scratch, n, n_seen, tried, high
            )
            if cost < best_cost:
                best, best_cost = tried, cost
    return best


@lean_kernel
def _cut_axis(scratch, n, n_seen, n_strips, start, low_side, high_side):
    """Cut an axis into strips of about as many centres, and move each edge to its best place.

    Halves the number of strips while they make too many copies. Writes the edges from ``start`` on
    and returns the number of strips.
    """
    edges = scratch.edges
    while n_strips > 1 and n > 0:
        edges[start] = low_side
        k = np.int64(1)
        for i in range(1, n_strips):
            edge = scratch.middles[i * n // n_strips]
            if edge > edges[start + k - 1] and edge < high_side:
                edges[start + k] = edge
                k += 1
        edges[start + k] = high_side
        for i in range(1, k):
            edges[start + i] = _best_edge(
                scratch, n, n_seen,
                edges[start + i - 1], edges[start + i], edges[start + i + 1],
            )  # fmt: skip
        copies = np.int64(0)
        for i in range(k):
            low = -np.inf if i == 0 else edges[start + i]
            high = np.inf if i == k - 1 else edges[start + i + 1]
            copies += _strip_weight(scratch, n, low, high)
        if k == 1 or copies <= MOST_COPIES * n:
            return k
        n_strips = min(n_strips, k) // 2
    edges[start] = low_side
    edges[start + 1] = high_side
    return np.int64(1)


@lean_kernel
def partition_space(tree, clauses, rows, messages, region, depth, scratch):
    """Divide the region of a node into a grid; return the cost, columns and rows.

    [VLDBJ15] section 3.3.3: columns first, then rows, evenly by the centres of the boxes, with each
    edge moved to its best place after that. What differs: a large node is divided by a part of its
    clauses; some of the places for an edge are tried; and there are fewer columns and rows where
    boxes are so large that a clause would have many copies.
    """
    n_parts = n_parts_of(tree, len(rows))
    n_columns = np.int64(np.sqrt(np.float64(n_parts)))
    n, n_seen = _measure_axis(tree, clauses, rows, messages, region, 0, scratch)
    if n == 0:
        return np.inf, np.int64(1), np.int64(1)
    n_columns = _cut_axis(
        scratch, n, n_seen, max(np.int64(2), n_columns), np.int64(0), region[0], region[2]
    )
    y_start = n_columns + 1
    _measure_axis(tree, clauses, rows, messages, region, 1, scratch)
    n_rows = _cut_axis(scratch, n, n_seen, n_parts // n_columns, y_start, region[1], region[3])
    if n_columns == 1 and n_rows == 1:
        return np.inf, n_columns, n_rows
    cost, n_copies = _grid_cost(tree, clauses, rows, messages, n_columns, n_rows, scratch)
    cost += moving_cost(
        tree, clauses.boxes, rows, messages, n_copies, depth, scratch.motion, region, n_columns,
        n_rows,
    )  # fmt: skip
    return cost, n_columns, n_rows


@lean_kernel
def _grid_cost(tree, clauses, rows, messages, n_columns, n_rows, scratch):
    """Return the cost of a grid (eq. 1), from the clauses that it was made by, and their copies."""
    edges, y_start = scratch.edges, n_columns + 1
    stride = n_columns + 1
    touched, hit = scratch.grid[0], scratch.grid[1]
    touched[: stride * (n_rows + 1)] = 0.0
    hit[: stride * (n_rows + 1)] = 0.0
    step = max(np.int64(1), -(-len(rows) // MOST_MEASURED))
    n_everywhere, n = np.int64(0), np.int64(0)
    for i in range(0, len(rows), step):
        box = clauses.boxes[rows[i]]
        if contains_region(edges, np.int64(0), n_columns, y_start, n_rows, box):
            n_everywhere += 1
            continue
        n += 1
        left, right, bottom, top = cells_of(edges, np.int64(0), n_columns, y_start, n_rows, box)
        # Corners of what it touches; summed up below.
        touched[bottom * stride + left] += 1.0
        touched[bottom * stride + right + 1] -= 1.0
        touched[(top + 1) * stride + left] -= 1.0
        touched[(top + 1) * stride + right + 1] += 1.0
        x = 0.5 * (max(box[0], edges[0]) + min(box[2], edges[n_columns]))
        y = 0.5 * (max(box[1], edges[y_start]) + min(box[3], edges[y_start + n_rows]))
        x, y = cell_of(edges, np.int64(0), n_columns, x), cell_of(edges, y_start, n_rows, y)
        hit[y * stride + x] += 1.0
    has_sample = len(messages) >= LEAST_SAMPLE
    own = (PRIOR if has_sample else 1.0) / max(n, 1)
    total = np.float64(len(messages)) + PRIOR if has_sample else 1.0
    for k in range(stride * n_rows):
        hit[k] *= own
    if has_sample:
        for i in range(len(messages)):
            place = tree.sample_places[messages[i]]
            x = cell_of(edges, np.int64(0), n_columns, place[0])
            hit[cell_of(edges, y_start, n_rows, place[1]) * stride + x] += 1.0
    cost = n_copies = np.float64(n_everywhere)  # of some clauses
    for y in range(n_rows):
        for x in range(n_columns):
            k = y * stride + x
            if x > 0:
                touched[k] += touched[k - 1]
            if y > 0:
                touched[k] += touched[k - stride]
                if x > 0:
                    touched[k] -= touched[k - stride - 1]
            cost += touched[k] * hit[k] / total
            n_copies += touched[k]
    return cost * step + VISIT, n_copies * step
