"""Short messages, node by node: a list is walked for all messages that reach it, one after another.

A message at a time, nearly every list and block is fetched from memory. Here all pairs of a node
and a message are made first and sorted by node. So a list is in the cache for all but its first
message, and what comes next is known and fetched ahead.
"""

from __future__ import annotations

import numpy as np

from earshot.indexes.block_trie.kernels.arrays import (
    COMPLETE_SUMMARY,
    IS_NODE,
    KIND,
    N_CHILDREN,
    NODE_COLUMNS,
    OPEN_SUMMARY,
    ROOT_COLUMNS,
    WHERE,
)
from earshot.indexes.block_trie.kernels.batch_arrays import SHORT_OF_FOUND, SHORT_OF_PENDING
from earshot.indexes.block_trie.kernels.choosing import TRIE, sort_pairs
from earshot.indexes.block_trie.kernels.lists import (
    fetch_block,
    fetch_lists,
    has_all_tokens,
    has_token,
    lists_of,
    open_mask,
    push_children,
    push_roots,
    read_complete,
    sign_message,
    top_of,
    walk_down,
)
from earshot.kernels.box_keys import BLOCK, key_touches, strict_limit, trailing_zeros
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.kernels.processor import prefetch
from earshot.kernels.shapes import shape_touches_box
from earshot.kernels.verify import box_touches

NODE_AHEAD, LIST_AHEAD, BLOCK_AHEAD = 24, 12, 8
"""How many pairs ahead a node is fetched, and its list; how many blocks ahead a block is."""

TOKENS_AHEAD, ROOTS_AHEAD = 4, 2
"""How many messages ahead the roots of tokens are fetched, and the nodes that they name."""


@lean_kernel
def make_pairs(arrays, messages, first, n, scratch):
    """Make the pairs of a node and a message, message by message, and the messages' signatures.

    Returns how many messages got theirs before there was no more room, and the number of pairs.
    """
    nodes, roots, paths = arrays.nodes, arrays.roots, scratch.paths
    offsets, tokens = messages.token_offsets, messages.token_ids
    stack, pairs, signatures = scratch.stack, scratch.pairs, scratch.signatures
    n_nodes = np.int64(len(nodes) // NODE_COLUMNS)
    room = len(pairs) - len(stack)
    n_pairs = np.int64(0)
    for i in range(n):
        if i + TOKENS_AHEAD < n:
            m = first + i + TOKENS_AHEAD
            for p in range(offsets[m], offsets[m + 1]):
                prefetch(roots, np.int64(tokens[p]) * ROOT_COLUMNS)
        if i + ROOTS_AHEAD < n:
            m = first + i + ROOTS_AHEAD
            for p in range(offsets[m], offsets[m + 1]):
                at = np.int64(tokens[p]) * ROOT_COLUMNS
                if at < len(roots) and roots[at + KIND] == IS_NODE:
                    prefetch(nodes, np.int64(roots[at + WHERE]) * NODE_COLUMNS)
        scratch.pair_offsets[i] = n_pairs
        if paths[i] != TRIE:
            continue
        if n_pairs > room:
            return i, n_pairs
        message = tokens[offsets[first + i] : offsets[first + i + 1]]
        sign_message(message, 0, signatures, i)
        n_stack = push_roots(arrays, message, signatures, i, stack)
        while n_stack > 0:
            n_stack -= 1
            number = np.int64(stack[n_stack])
            _, n_complete, n_open = lists_of(arrays, number)
            if n_complete + n_open > 0:
                pairs[n_pairs] = np.uint64(number) << np.uint64(32) | np.uint64(n_pairs)
                scratch.pair_rows[n_pairs] = i
                n_pairs += 1
            if number < n_nodes and nodes[number * NODE_COLUMNS + N_CHILDREN] > 0:
                n_stack = push_children(arrays, number, message, signatures, i, stack, n_stack)
    scratch.pair_offsets[n] = n_pairs
    return n, n_pairs


@inlined_kernel
def _fetch_numbered(arrays, number):
    """Ask for what a number of a pair names."""
    n_nodes = np.int64(len(arrays.nodes) // NODE_COLUMNS)
    if number < n_nodes:
        prefetch(arrays.nodes, number * NODE_COLUMNS)
    else:
        prefetch(arrays.roots, (number - n_nodes) * ROOT_COLUMNS)


@lean_kernel
def walk_nodes(arrays, clauses, messages, first, n_pairs, scratch, work):
    """Walk the lists of all pairs, node by node.

    Answers of complete lists are found at once; entries of open lists that may be some are pending.
    Returns the number of pending ones, or what there was no room for.
    """
    nodes, tokens = arrays.nodes, arrays.entry_tokens
    summary_keys, frontier, pairs = arrays.summary_keys, scratch.frontier, scratch.pairs
    found, pending, pending_rows = scratch.found, scratch.pending, scratch.pending_rows
    half, low = np.uint64(32), np.uint64(0xFFFF_FFFF)
    last = np.int64(-1)
    start = n = n_open = top = n_top = open_top = n_open_top = np.int64(0)
    depth = open_depth = 1
    n_pending = n_found = np.int64(0)
    n_blocks_seen = n_candidates = np.int64(0)
    for k in range(n_pairs):
        if k + NODE_AHEAD < n_pairs:
            _fetch_numbered(arrays, np.int64(pairs[k + NODE_AHEAD] >> half))
        if k + LIST_AHEAD < n_pairs:
            coming = np.int64(pairs[k + LIST_AHEAD] >> half)
            if coming != np.int64(pairs[k + LIST_AHEAD - 1] >> half):
                fetch_lists(arrays, coming)
        pair = np.int64(pairs[k] & low)
        i = np.int64(scratch.pair_rows[pair])
        limit = scratch.limits[i]
        number = np.int64(pairs[k] >> half)
        if number != last:
            last = number
            start, n, n_open = lists_of(arrays, number)
            at = number * NODE_COLUMNS
            if n > BLOCK:
                top, n_top, depth = top_of(n, np.int64(nodes[at + COMPLETE_SUMMARY]))
            if n_open > BLOCK:
                open_top, n_open_top, open_depth = top_of(
                    n_open, np.int64(nodes[at + OPEN_SUMMARY])
                )
        scratch.run_starts[pair] = n_found
        if n > 0:
            here, n_blocks = np.int64(0), (n + BLOCK - 1) >> 4
            frontier[0], frontier[1] = 0, 1
            if n > BLOCK:
                here, n_blocks = walk_down(
                    n, summary_keys, top, n_top, depth, limit, frontier, work
                )
                for b in range(min(n_blocks, BLOCK_AHEAD)):
                    fetch_block(arrays, start + np.int64(frontier[here + b]) * BLOCK)
            if n_found + (n_blocks + 1) * BLOCK > len(found):
                return SHORT_OF_FOUND
            for b in range(n_blocks):
                if b + BLOCK_AHEAD < n_blocks:
                    ahead = np.int64(frontier[here + b + BLOCK_AHEAD])
                    fetch_block(arrays, start + ahead * BLOCK)
                offset = np.int64(frontier[here + b]) * BLOCK
                n_found = read_complete(
                    arrays, clauses, messages.boxes[first + i], limit, start + offset, n - offset,
                    found, n_found,
                )  # fmt: skip
                n_candidates += min(BLOCK, n - offset)
            n_blocks_seen += n_blocks
        scratch.run_ends[pair] = n_found
        if n_open > 0:
            here, n_blocks = np.int64(0), (n_open + BLOCK - 1) >> 4
            is_direct = n_open <= BLOCK
            if not is_direct:
                here, n_blocks = walk_down(
                    n_open, summary_keys, open_top, n_open_top, open_depth, limit, frontier, work
                )
                for b in range(min(n_blocks, 2 * BLOCK_AHEAD)):
                    prefetch(tokens, start + n + np.int64(frontier[here + b]) * BLOCK)
            if n_pending + n_blocks * BLOCK > len(pending):
                return SHORT_OF_PENDING
            for b in range(n_blocks):
                offset = (b if is_direct else np.int64(frontier[here + b])) * BLOCK
                position = start + n + offset
                mask = open_mask(arrays, scratch.signatures, i, limit, position, n_open - offset)
                n_candidates += min(BLOCK, n_open - offset)
                while mask != 0:
                    pending[n_pending] = position + trailing_zeros(mask)
                    pending_rows[n_pending] = i
                    n_pending += 1
                    mask &= mask - np.uint32(1)
            n_blocks_seen += n_blocks
    work[0] += n_blocks_seen
    work[1] += n_candidates
    return n_pending


# ---- verifying -----------------------------------------------------------------------------------


@lean_kernel
def verify_pending(arrays, clauses, is_lonlat, messages, first, n_pending, scratch):
    """Fill the slots of pending entries that are answers; -1 for the others.

    Clauses lie anywhere in memory. Each step reads what an earlier one has asked for.
    """
    keys, rows = arrays.keys, arrays.entry_rows
    pending, pending_rows, limits = scratch.pending, scratch.pending_rows, scratch.limits
    step = 16
    for k in range(n_pending + 3 * step):
        if k < n_pending:
            prefetch(rows, pending[k])
            prefetch(messages.token_ids, messages.token_offsets[first + pending_rows[k]])
        j = k - step
        if 0 <= j < n_pending:
            prefetch(clauses.token_offsets, rows[pending[j]])
            prefetch(clauses.shape_rows, rows[pending[j]])
        j = k - 2 * step
        if 0 <= j < n_pending:
            c = np.int64(rows[pending[j]])
            prefetch(clauses.token_ids, clauses.token_offsets[c])
            if not key_touches(keys[pending[j]], strict_limit(limits[pending_rows[j]])):
                prefetch(clauses.boxes, c)
        j = k - 3 * step
        if j < 0:
            continue
        entry, i = np.int64(pending[j]), np.int64(pending_rows[j])
        m, c = first + i, np.int64(rows[entry])
        tokens = messages.token_ids[messages.token_offsets[m] : messages.token_offsets[m + 1]]
        token = arrays.entry_tokens[entry]
        scratch.pending_slots[j] = -1
        if token >= 0:
            if not has_token(tokens, token):
                continue
        elif not has_all_tokens(clauses, c, tokens):
            continue
        box = messages.boxes[m]
        is_sure = key_touches(keys[entry], strict_limit(limits[i]))
        if not is_sure and not box_touches(clauses.boxes, c, box[0], box[1], box[2], box[3]):
            continue
        shape = clauses.shape_rows[c]
        if shape >= 0 and not shape_touches_box(
            clauses.shapes, shape, is_lonlat, box[0], box[1], box[2], box[3]
        ):
            continue
        scratch.pending_slots[j] = clauses.subscriptions[c]


@lean_kernel
def sort_extras(n_pending, n, scratch):
    """Bring the slots of verified entries into the order of their messages, repeats dropped."""
    offsets, extras, seen = scratch.extra_offsets, scratch.extras, scratch.seen
    for i in range(n + 2):
        offsets[i] = 0
    for k in range(n_pending):
        if scratch.pending_slots[k] >= 0:
            offsets[scratch.pending_rows[k] + 2] += 1
    for i in range(n):
        offsets[i + 2] += offsets[i + 1]
    for k in range(n_pending):
        if scratch.pending_slots[k] >= 0:
            row = scratch.pending_rows[k] + 1
            extras[offsets[row]] = scratch.pending_slots[k]
            offsets[row] += 1
    if len(seen) == 0:
        return
    n_kept = np.int64(0)
    start = np.int64(0)
    for i in range(n):
        stop, first_kept = offsets[i + 1], n_kept
        for k in range(start, stop):
            slot = extras[k]
            if seen[slot] == 0:
                seen[slot] = 1
                extras[n_kept] = slot
                n_kept += 1
        for k in range(first_kept, n_kept):
            seen[extras[k]] = 0
        start = stop
        offsets[i + 1] = n_kept


@lean_kernel
def sort_by_node(n_pairs, arrays, scratch):
    """Sort the pairs by what they name."""
    high = 32 + 22
    n_numbers = len(arrays.nodes) // NODE_COLUMNS + len(arrays.roots) // ROOT_COLUMNS
    while n_numbers >> (high - 32) > 0:
        high += 11
    sort_pairs(scratch.pairs, scratch.other_pairs, n_pairs, 32, high, scratch.counts)
