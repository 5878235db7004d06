"""Matching against the AP-Tree.

[VLDBJ15] section 3.2.3, Algorithm 1, with a stack in the place of recursion. ``eta`` is the first
keyword of the message, in the order of keywords, that may hit a cut. A cut hit by several keywords
is visited once, with the smallest: its clauses may have any of them.

A cut covers many keywords, and a cell much space, so reaching a list proves little. Its clauses
are compared with the message's box sixteen at a time, then by two of their keywords. A clause that
has no others, and whose key says that it surely touches the box, matches: only its number is looked
up. Those that are left are verified exactly.

A message at a point is in one cell of each grid, so it finds a clause once. One with an extent may
find a clause in several cells; it is reported in the cell that has the lower left corner of what
the two have in common.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.ap_tree.kernels.nodes import (
    KEYWORDS,
    SPACE,
    TELLS_ALL,
    TOKEN,
    ApTreeArrays,
    cells_of,
    fill_region,
    grid_of,
    n_not_above,
)
from earshot.indexes.ap_tree.kernels.partition import sort_few
from earshot.indexes.kernels.blocks import low_bits, passes_print
from earshot.indexes.kernels.matching import appends_answers
from earshot.indexes.kernels.verifying import append_match
from earshot.kernels.box_keys import (
    BLOCK,
    box_limit,
    key_touches,
    strict_limit,
    touching_mask,
    trailing_zeros,
)
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.model.arrays import Float64s, Int32s, Int64s

_LEAST_COUNTED, MOST_COUNTED = 24, 128
"""Tokens that are put in order by counting: 50 take 0.28 µs, and 0.41 µs by Shell's method."""


class ApScratch(NamedTuple):
    """Working memory of one thread."""

    marks: npt.NDArray[np.uint8]  # (n_tokens,) 1 for tokens of the current message
    serial: Int64s  # (1,)
    signature: npt.NDArray[np.uint64]  # (SIGNATURE_WORDS,) a bit per low half of a token
    ranks: Int32s  # (n_tokens,) of the message's tokens, ascending
    counting: Int32s  # (2 * MOST_COUNTED,) for putting them in order
    stack: Int32s  # nodes still to visit
    etas: Int32s  # beside them, the first rank that may hit a cut
    region: Float64s  # (4,) of the list in hand, for a message with an extent


@lean_kernel
def rank_tokens(ranks_of, tokens, ranks, counting):
    """Write the ranks of a message's tokens, ascending; return how many the tree knows."""
    n = np.int64(0)
    for i in range(len(tokens)):
        if tokens[i] < len(ranks_of):
            ranks[n] = ranks_of[tokens[i]]
            n += 1
    if not _LEAST_COUNTED <= n <= MOST_COUNTED:
        sort_few(ranks, np.int64(0), n)
        return n
    # To count those below each takes n^2 steps, but sixteen at once and without a branch.
    unsorted, n_below = counting[:MOST_COUNTED], counting[MOST_COUNTED:]
    for i in range(n):
        unsorted[i] = ranks[i]
    whole = (n + BLOCK - 1) & -BLOCK
    n_below[:whole] = 0
    for i in range(n):
        rank = unsorted[i]
        for j in range(whole):
            n_below[j] += rank < unsorted[j]
    for i in range(n):
        ranks[n_below[i]] = unsorted[i]
    return n


@inlined_kernel
def _n_below(values, start, n, value):
    """Return how many of ``n`` ascending values from ``start`` on are < ``value``."""
    return n_not_above(values, start, n, value - 1)


@lean_kernel
def push_cuts(tree, node, eta, ranks, n_ranks, stack, etas, depth):
    """Push the children of a k-node that a message visits; return the new depth of the stack."""
    start, first, n = tree.starts[node], tree.extras[node], np.int64(tree.sizes[node])
    child = tree.children[start]
    if child >= 0:
        stack[depth], etas[depth] = child, eta
        depth += 1
    i, cut = eta, np.int64(0)
    if n < n_ranks - eta:  # each cut is looked for among the keywords
        while cut < n and i < n_ranks:
            i += _n_below(ranks, i, n_ranks - i, tree.firsts[first + cut])
            if i < n_ranks and ranks[i] <= tree.lasts[first + cut]:
                child = tree.children[start + cut + 1]
                if child >= 0:
                    stack[depth] = child
                    etas[depth] = i + (tree.firsts[first + cut] == tree.lasts[first + cut])
                    depth += 1
            cut += 1
        return depth
    while i < n_ranks:
        rank = ranks[i]
        cut += n_not_above(tree.firsts, first + cut, n - cut, rank)  # one beyond the one it is in
        if cut > 0 and rank <= tree.lasts[first + cut - 1]:
            child = tree.children[start + cut]
            if child >= 0:
                # The same keyword may tell clauses of a cut of several apart once more.
                stack[depth] = child
                etas[depth] = i + (tree.firsts[first + cut - 1] == tree.lasts[first + cut - 1])
                depth += 1
        if cut == n and rank > tree.lasts[first + n - 1]:
            break
        # On to the next keyword that can hit another cut.
        last = tree.lasts[first + cut - 1] if cut > 0 else rank
        i += 1
        while i < n_ranks and ranks[i] <= last:
            i += 1
    return depth


@lean_kernel
def push_cells(tree, node, eta, box, stack, etas, depth):
    """Push the children of an s-node that a message visits; return the new depth of the stack."""
    start = tree.starts[node]
    n_columns, n_rows, x_start, y_start = grid_of(tree.sizes[node], tree.extras[node])
    child = tree.children[start]
    if child >= 0:
        stack[depth], etas[depth] = child, eta
        depth += 1
    left, right, bottom, top = cells_of(tree.edges, x_start, n_columns, y_start, n_rows, box)
    for y in range(bottom, top + 1):
        for x in range(left, right + 1):
            child = tree.children[start + 1 + y * n_columns + x]
            if child >= 0:
                stack[depth], etas[depth] = child, eta
                depth += 1
    return depth


@lean_kernel
def _is_first_cell(region, box, min_x, min_y):
    """Whether a region has the lower left corner of what a clause and a message have in common."""
    x, y = max(box[0], min_x), max(box[1], min_y)
    return (
        region[0] <= x
        and region[1] <= y
        and (x < region[2] or region[2] == np.inf)
        and (y < region[3] or region[3] == np.inf)
    )


@inlined_kernel
def _may_have(print_, signature):
    """Whether the message may have the two tokens of a print."""
    halves = print_ & np.uint64(0xFFFF) | print_ >> np.uint64(16) & np.uint64(0xFFFF0000)
    return passes_print(np.uint32(halves), signature)


@inlined_kernel
def _has(print_, marks):
    """Whether the message has the two tokens of a print."""
    one, other = np.int64(print_ & TOKEN), np.int64(print_ >> np.uint64(32) & TOKEN)
    return marks[one] & marks[other] != 0


@appends_answers(ApTreeArrays)
@inlined_kernel
def append_ap_tree(view, tokens, box, scratch, answers, n_answers, work):
    """Append one message's answers: visit the nodes that may hold some, from the root down."""
    tree, stack, etas = view.arrays, scratch.stack, scratch.etas
    min_x, min_y, max_x, max_y = box
    is_point = min_x == max_x and min_y == max_y
    limit = box_limit(tree.quantizer, min_x, min_y, max_x, max_y)
    strict = strict_limit(limit)
    n_ranks = np.int64(-1)  # not ranked yet
    depth = 1
    stack[0], etas[0] = 0, 0
    while depth > 0:
        depth -= 1
        node, eta = np.int64(stack[depth]), np.int64(etas[depth])
        work[0] += 1
        kind = tree.kinds[node]
        if kind == KEYWORDS:
            if n_ranks < 0:
                n_ranks = rank_tokens(tree.ranks, tokens, scratch.ranks, scratch.counting)
            depth = push_cuts(tree, node, eta, scratch.ranks, n_ranks, stack, etas, depth)
            continue
        if kind == SPACE:
            depth = push_cells(tree, node, eta, box, stack, etas, depth)
            continue
        start, n = tree.starts[node], np.int64(tree.n_below[node])
        work[1] += n
        if not is_point:
            fill_region(tree, node, scratch.region, True)
        for first in range(0, n, BLOCK):
            mask = touching_mask(tree.keys, start + first, limit) & low_bits(n - first)
            while mask != 0:
                place = start + first + trailing_zeros(mask)
                mask &= mask - np.uint32(1)
                print_ = tree.prints[place]
                if not _may_have(print_, scratch.signature):
                    continue
                c = tree.rows[place]
                if not is_point and not _is_first_cell(
                    scratch.region, view.clauses.boxes[c], min_x, min_y
                ):
                    continue
                if print_ & TELLS_ALL != 0 and key_touches(tree.keys[place], strict):
                    if _has(print_, scratch.marks):
                        if n_answers == len(answers):
                            return -1
                        answers[n_answers] = view.clauses.subscriptions[c]
                        n_answers += 1
                    continue
                n_answers = append_match(
                    view, c, min_x, min_y, max_x, max_y, scratch, answers, n_answers
                )
                if n_answers < 0:
                    return n_answers
    return n_answers
