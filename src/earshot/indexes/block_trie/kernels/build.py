"""Building of :mod:`earshot.indexes.block_trie.index`, which describes the structure."""

from __future__ import annotations

import numpy as np

from earshot.indexes.block_trie.kernels.arrays import (
    CODE_COLUMNS,
    COMPLETE_SUMMARY,
    FIRST_CHILD,
    FIRST_TOKEN_BIT,
    HAS_TOKENS,
    IS_NODE,
    KIND,
    N_CHILDREN,
    N_COMPLETE,
    N_EXACT_CODES,
    N_OPEN,
    NO_ROOT,
    NODE_COLUMNS,
    OPEN_SUMMARY,
    ROOT_COLUMNS,
    SECOND_TOKEN_BIT,
    SEVERAL,
    SIMPLE,
    START,
    TOKEN_MASK,
    WHERE,
    code_of,
)
from earshot.indexes.block_trie.kernels.lists import kind_of, lists_of
from earshot.indexes.kernels.blocks import fill_summaries, n_summary_keys
from earshot.kernels.box_keys import BLOCK, TOP
from earshot.kernels.copying import copy_part
from earshot.kernels.jit import kernel, lean_kernel

SIZE_BIT = 28
"""Of spatial codes: from there on they tell the class of size, below it the place."""


@kernel
def sort_tokens_by_frequency(clauses, frequencies, sorted_tokens, n_required):
    """Fill each clause's required tokens, rarest first, at its own offset; count them."""
    for c in range(len(clauses.subscriptions)):
        start, stop = clauses.token_offsets[c], clauses.token_offsets[c + 1]
        n = 0
        for i in range(start, stop):
            token = clauses.token_ids[i]
            if token < 0:
                break
            frequency = frequencies[token]
            j = start + n
            while j > start and (
                frequencies[sorted_tokens[j - 1]] > frequency
                or (frequencies[sorted_tokens[j - 1]] == frequency and sorted_tokens[j - 1] > token)
            ):
                sorted_tokens[j] = sorted_tokens[j - 1]
                j -= 1
            sorted_tokens[j] = token
            n += 1
        n_required[c] = n


@kernel
def find_kinds(clauses, n_required, n_slots, kinds):
    """Fill which clauses are SIMPLE: a box and required tokens; and which are one of SEVERAL.

    Those of several are kinds only if the clauses of each slot stand together, in the order of
    slots, and have the same box: then any clause of the slot tells where it is. Returns whether
    clause i is that of slot i throughout.
    """
    n, slots, boxes = len(clauses.subscriptions), clauses.subscriptions, clauses.boxes
    in_order, are_sorted = n == n_slots, True
    for c in range(n):
        in_order &= slots[c] == c
        are_sorted &= c == 0 or slots[c - 1] <= slots[c]
    of_slots = np.full(0 if in_order else n_slots, SIMPLE, np.uint8)
    firsts = np.full(len(of_slots), -1, np.int32)
    for c in range(0 if in_order else n):
        slot = slots[c]
        first = firsts[slot]
        if first < 0:
            firsts[slot] = c
            continue
        of_slots[slot] |= SEVERAL
        for side in range(4):
            if not are_sorted or boxes[c, side] != boxes[first, side]:
                of_slots[slot] = SEVERAL
    for c in range(n):
        n_tokens = clauses.token_offsets[c + 1] - clauses.token_offsets[c]
        kinds[c] = SIMPLE if in_order else of_slots[slots[c]]
        if clauses.shape_rows[c] >= 0 or n_required[c] < n_tokens:
            kinds[c] &= SEVERAL
    return in_order


@kernel
def build_roots(token_offsets, sorted_tokens, n_tokens, order):
    """Fill ``order`` with the clauses by their rarest token; return where each token's begin."""
    n = len(token_offsets) - 1
    starts = np.zeros(n_tokens + 1, np.int64)
    for c in range(n):
        starts[sorted_tokens[token_offsets[c]] + 1] += 1
    for t in range(n_tokens):
        starts[t + 1] += starts[t]
    ends = starts[:-1].copy()
    for c in range(n):
        token = sorted_tokens[token_offsets[c]]
        order[ends[token]] = c
        ends[token] += 1
    return starts


@kernel
def _grown(rows, n):
    larger = np.zeros((2 * n, rows.shape[1]), rows.dtype)
    for row in range(n):
        copy_part(rows[row], 0, rows.shape[1], larger[row], 0)
    return larger


@kernel
def sort_codes(codes, n):
    """Sort the first ``n`` codes by their high halves, equal ones in the order they come in.

    A radix sort, because Numba's quicksort is quadratic on lists that are nearly in order.
    """
    if n <= 64:
        for i in range(1, n):
            code = codes[i]
            j = i
            while j > 0 and codes[j - 1] >> 32 > code >> 32:
                codes[j] = codes[j - 1]
                j -= 1
            codes[j] = code
        return
    source, target = codes[:n], np.empty(n, np.int64)
    counts = np.empty(257, np.int64)
    for shift in range(32, 64, 8):
        for digit in range(257):
            counts[digit] = 0
        for i in range(n):
            counts[((source[i] >> shift) & 255) + 1] += 1
        if counts[((source[0] >> shift) & 255) + 1] == n:
            continue
        for digit in range(256):
            counts[digit + 1] += counts[digit]
        for i in range(n):
            digit = (source[i] >> shift) & 255
            target[counts[digit]] = source[i]
            counts[digit] += 1
        source, target = target, source
    for i in range(n):  # a copy onto itself after an even number of passes
        codes[i] = source[i]


@kernel
def _set_range(ranges, node, start, stop, depth, token):
    ranges[node, 0] = start
    ranges[node, 1] = stop
    ranges[node, 2] = depth
    ranges[node, 3] = token


@kernel
def _complete_first(order, start, stop, n_required, kinds):
    """Bring the clauses of one token that it completes before the others; return their number."""
    n_complete = 0
    for k in range(start, stop):
        c = order[k]
        if n_required[c] > 1 or kinds[c] & SIMPLE == 0:
            continue
        for j in range(k, start + n_complete, -1):
            order[j] = order[j - 1]
        order[start + n_complete] = c
        n_complete += 1
    return n_complete


@kernel
def build_nodes(
    order, root_starts, token_offsets, sorted_tokens, n_required, kinds, split_above, min_child
):
    """Split long lists by their clauses' next token, breadth first.

    ``order`` is rearranged so that each node's clauses are its complete list, its open list and
    then its children's, in turn. Returns ``roots``, ``node_tokens``, ``nodes`` (without summaries)
    and their depths.
    """
    n_tokens = len(root_starts) - 1
    roots = np.full(n_tokens * ROOT_COLUMNS, NO_ROOT, np.int32)
    most = min(BLOCK, split_above)
    n_nodes = 0
    for t in range(n_tokens):
        start, stop = root_starts[t], root_starts[t + 1]
        if stop - start > most:
            roots[t * ROOT_COLUMNS + WHERE] = n_nodes
            roots[t * ROOT_COLUMNS + KIND] = IS_NODE
            n_nodes += 1
        elif stop > start:
            n_complete = _complete_first(order, start, stop, n_required, kinds)
            roots[t * ROOT_COLUMNS + WHERE] = start
            roots[t * ROOT_COLUMNS + KIND] = kind_of(n_complete, stop - start - n_complete)
    # Working columns: start, stop, depth, token; then the final ones.
    ranges = np.zeros((n_nodes + 16, 4), np.int32)
    nodes = np.zeros((n_nodes + 16, NODE_COLUMNS), np.int32)
    for t in range(n_tokens):
        if root_starts[t + 1] - root_starts[t] > most:
            node = roots[t * ROOT_COLUMNS + WHERE]
            _set_range(ranges, node, root_starts[t], root_starts[t + 1], 1, t)
    node = 0
    while node < n_nodes:
        start, stop, depth = ranges[node, 0], ranges[node, 1], ranges[node, 2]
        nodes[node, START] = start
        n = stop - start
        # Sort key: 0 for complete, 1 for "all tokens on the path but more to verify", else 2 + the
        # next token. The clause in the low bits makes the order definite.
        codes = np.empty(n, np.int64)
        n_complete, n_last = 0, 0
        for k in range(n):
            c = order[start + k]
            code = np.int64(0)
            if n_required[c] > depth:
                code = np.int64(2) + sorted_tokens[token_offsets[c] + depth]
            elif kinds[c] & SIMPLE == 0:
                code = np.int64(1)
                n_last += 1
            else:
                n_complete += 1
            codes[k] = (code << 32) | np.int64(c)
        sort_codes(codes, n)
        nodes[node, N_COMPLETE] = n_complete
        n_open = n - n_complete
        n_stay = n_open
        if n_open > split_above:
            # Groups of at least min_child become children; the others stay in the open list.
            n_stay = n_last
            nodes[node, FIRST_CHILD] = n_nodes
            kept = codes[:n].copy()
            write = n_complete + n_last
            k = write
            while k < n:  # first pass: what stays
                g = k
                while g < n and codes[g] >> 32 == codes[k] >> 32:
                    g += 1
                if g - k < min_child:
                    copy_part(codes, k, g, kept, write)
                    write += g - k
                    n_stay += g - k
                k = g
            k = n_complete + n_last
            while k < n:  # second pass: what descends
                g = k
                while g < n and codes[g] >> 32 == codes[k] >> 32:
                    g += 1
                if g - k >= min_child:
                    if n_nodes == len(nodes):
                        nodes = _grown(nodes, n_nodes)
                        ranges = _grown(ranges, n_nodes)
                    token = (codes[k] >> 32) - 2
                    _set_range(
                        ranges, n_nodes, start + write, start + write + g - k, depth + 1, token
                    )
                    n_nodes += 1
                    copy_part(codes, k, g, kept, write)
                    write += g - k
                k = g
            nodes[node, N_CHILDREN] = n_nodes - nodes[node, FIRST_CHILD]
            codes = kept
        nodes[node, N_OPEN] = n_stay
        for k in range(n):
            order[start + k] = np.int32(codes[k] & 0xFFFFFFFF)
        node += 1
    node_tokens = np.full(n_nodes + BLOCK, -1, np.int32)
    node_tokens[:n_nodes] = ranges[:n_nodes, 3]
    return roots, node_tokens, nodes[:n_nodes].copy(), ranges[:n_nodes, 2].copy()


@kernel
def place_summaries(nodes):
    """Give each list its place among the summary keys; return their number and the longest list."""
    total, longest = 0, 0
    for node in range(len(nodes)):
        nodes[node, COMPLETE_SUMMARY] = total
        total += n_summary_keys(nodes[node, N_COMPLETE])
        nodes[node, OPEN_SUMMARY] = total
        total += n_summary_keys(nodes[node, N_OPEN])
        longest = max(longest, nodes[node, N_COMPLETE], nodes[node, N_OPEN])
    return total, longest


@lean_kernel
def hilbert_index(x, y):
    """Return the position of a cell (14 bits each) on the Hilbert curve."""
    index = np.int64(0)
    side = np.int64(1) << 13
    while side > 0:
        right = np.int64(1) if x & side else np.int64(0)
        upper = np.int64(1) if y & side else np.int64(0)
        index += side * side * ((3 * right) ^ upper)
        if upper == 0:
            if right == 1:
                x = 16383 - x
                y = 16383 - y
            x, y = y, x
        side >>= 1
    return index


@kernel
def spatial_code(key):
    """Return a 32-bit sort code of a box key: size class, then Hilbert position of its centre.

    Boxes of very different sizes in one block would blow its summary up; a class spans a factor of
    four in the longer side, in quantised units.
    """
    min_x = np.int64(key & np.uint64(0x7FFF))
    min_y = np.int64(key >> np.uint64(16) & np.uint64(0x7FFF))
    max_x = TOP - np.int64(key >> np.uint64(32) & np.uint64(0x7FFF))
    max_y = TOP - np.int64(key >> np.uint64(48) & np.uint64(0x7FFF))
    side = max(max_x - min_x, max_y - min_y)
    size_class = np.int64(0)
    while side > 3:
        side >>= 2
        size_class += 1
    return (size_class << SIZE_BIT) | hilbert_index((min_x + max_x) >> 2, (min_y + max_y) >> 2)


@kernel
def order_mask(n):
    """Return the bits of spatial codes that bring the list of a node into order, by its length.

    The blocks of a short one are wider than its boxes: classes of size would only widen them more.
    With uniform words, a point touched 2.6 of 5.5 blocks of an open list, and 0.9 without classes.
    """
    return np.int64((1 << SIZE_BIT) - 1 if n <= BLOCK * BLOCK else -1)


@kernel
def fill_codes(clause_keys, start, codes):
    """Fill sort codes of clauses from ``start`` on: spatial code, then clause in the low half."""
    for k in range(len(codes)):
        codes[k] = (spatial_code(clause_keys[start + k]) << 32) | np.int64(start + k)


@kernel
def _fill_list(order, start, n, clause_codes, clause_keys, codes, keys):
    """Bring one list into spatial order, and fill its keys."""
    if n > 1:
        mask = order_mask(n) << 32 | 0xFFFFFFFF
        for k in range(n):
            codes[k] = clause_codes[order[start + k]] & mask
        sort_codes(codes, n)
        for k in range(n):
            order[start + k] = np.int32(codes[k] & 0xFFFFFFFF)
    for k in range(n):
        keys[start + k] = clause_keys[order[start + k]]


@kernel
def _left_to_verify(c, depth, token_offsets, sorted_tokens, n_required, kinds):
    """Return what is left to verify of a clause whose first ``depth`` tokens are known to match."""
    if n_required[c] <= depth:
        return np.int32(-1)
    token = sorted_tokens[token_offsets[c] + depth]
    return token if kinds[c] & SIMPLE != 0 and n_required[c] == depth + 1 else -token - 2


@kernel
def _row(named, kind):
    """Return the row of an entry for the slot or clause that it names."""
    return np.int32(named if kind & SEVERAL == 0 else ~named)


@kernel
def fill_lists(
    arrays, depths, order, clause_codes, clause_keys, token_offsets, sorted_tokens, n_required,
    kinds, subscriptions, first_number, last_number,
):  # fmt: skip
    """Fill keys, rows and tokens of the lists of a range of nodes and tokens, and summaries."""
    n_nodes = len(depths)
    codes = np.empty(max(arrays.longest_list[0], BLOCK), np.int64)
    for number in range(first_number, last_number):
        t = number - n_nodes
        if t >= 0 and (
            arrays.roots[t * ROOT_COLUMNS + WHERE] == NO_ROOT
            or arrays.roots[t * ROOT_COLUMNS + KIND] == IS_NODE
        ):
            continue
        start, n_complete, n_open = lists_of(arrays, number)
        middle, stop = start + n_complete, start + n_complete + n_open
        depth = 1 if t >= 0 else depths[number]
        _fill_list(order, start, n_complete, clause_codes, clause_keys, codes, arrays.keys)
        _fill_list(order, middle, n_open, clause_codes, clause_keys, codes, arrays.keys)
        for k in range(start, middle):
            c = order[k]  # which may be where its row goes
            arrays.entry_rows[k] = _row(subscriptions[c], kinds[c])
            arrays.entry_tokens[k] = -1
        for k in range(middle, stop):
            c = order[k]
            arrays.entry_rows[k] = _row(c, kinds[c])
            arrays.entry_tokens[k] = _left_to_verify(
                c, depth, token_offsets, sorted_tokens, n_required, kinds
            )
        if t >= 0:
            if n_complete == 0 and n_open <= 2:
                arrays.roots[t * ROOT_COLUMNS + KIND] |= _named_tokens(
                    arrays.entry_tokens[start], arrays.entry_tokens[stop - 1]
                )
            continue
        at = number * NODE_COLUMNS
        for is_open in range(2):
            fill_summaries(
                arrays.keys, middle if is_open else start, n_open if is_open else n_complete,
                arrays.summary_keys,
                arrays.nodes[at + (OPEN_SUMMARY if is_open else COMPLETE_SUMMARY)],
            )  # fmt: skip


@kernel
def _named_tokens(first, second):
    """Return what ``roots`` tells of tokens one of which a message must have; 0 for none."""
    if first == -1 or second == -1:
        return np.int32(0)
    first, second = max(first, -first - 2), max(second, -second - 2)
    return np.int32(
        HAS_TOKENS
        | (first & TOKEN_MASK) << FIRST_TOKEN_BIT
        | (second & TOKEN_MASK) << SECOND_TOKEN_BIT
    )


@kernel
def fill_root_list(
    arrays, sorted_codes, clause_keys, token_offsets, sorted_tokens, n_required, kinds,
    first, last,
):  # fmt: skip
    """Fill a part of the root list: clauses in spatial order, each with codes of its rarest tokens.

    The part begins with a block. ``sorted_codes`` may be where its keys go.
    """
    n = len(sorted_codes)
    for k in range(first, last):
        c = np.int32(sorted_codes[k] & 0xFFFFFFFF)
        arrays.keys[n + k] = clause_keys[c]
        arrays.entry_rows[n + k] = _row(c, kinds[c])
        is_checked = kinds[c] != SIMPLE or n_required[c] > CODE_COLUMNS
        block, e = k // BLOCK, k % BLOCK
        for column in range(min(CODE_COLUMNS, n_required[c])):
            code = code_of(np.int64(sorted_tokens[token_offsets[c] + column]))
            arrays.root_codes[(block * CODE_COLUMNS + column) * BLOCK + e] = code
            is_checked |= code >= N_EXACT_CODES
        if is_checked:
            arrays.root_checks[block] |= np.uint16(1 << e)
