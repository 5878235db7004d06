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
    plain_row,
)
from earshot.indexes.block_trie.kernels.batch_arrays import (
    BLOCKS_QUEUED,
    NO_SLOT,
    PAIRS_NOTED,
    SHORT_OF_FOUND,
    SHORT_OF_PENDING,
)
from earshot.indexes.block_trie.kernels.choosing import TRIE, sort_pairs
from earshot.indexes.block_trie.kernels.lists import (
    are_short,
    fetch_block,
    fetch_lists,
    has_all_tokens,
    has_token,
    lists_of,
    push_children,
    push_roots,
    read_complete,
    sign_message,
    top_of,
    touching_short,
    walk_down,
)
from earshot.indexes.block_trie.kernels.vectors import HIGH_TOKEN_BIT, twice_signed_mask
from earshot.indexes.kernels.blocks import low_bits
from earshot.kernels.box_keys import (
    BLOCK,
    key_touches,
    strict_limit,
    touching_mask,
    trailing_zeros,
)
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.kernels.processor import prefetch
from earshot.kernels.shapes import shape_touches_box
from earshot.kernels.verify import box_touches

NODE_AHEAD, LIST_AHEAD, SHORT_AHEAD, BLOCK_AHEAD = 24, 12, 6, 8
"""How many pairs ahead a node is fetched, what its lists begin with, and the blocks of short ones;
how many blocks ahead a block of a long list is."""

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
        if i + TOKENS_AHEAD < n and paths[i + TOKENS_AHEAD] == TRIE:
            m = first + i + TOKENS_AHEAD
            for p in range(offsets[m], offsets[m + 1]):
                prefetch(roots, np.int64(tokens[p]) * ROOT_COLUMNS)
        if i + ROOTS_AHEAD < n and paths[i + ROOTS_AHEAD] == TRIE:
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
        sign_message(message, HIGH_TOKEN_BIT, scratch.high_signatures, i)
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


@inlined_kernel
def _fetch_short(arrays, start, n, n_open, mask, mask_open):
    """Ask for some blocks of short lists."""
    while n > BLOCK and mask != 0:
        fetch_block(arrays, start + trailing_zeros(mask) * BLOCK)
        mask &= mask - np.uint32(1)
    while n_open > BLOCK and mask_open != 0:
        prefetch(arrays.entry_tokens, start + n + trailing_zeros(mask_open) * BLOCK)
        mask_open &= mask_open - np.uint32(1)


@inlined_kernel
def _open_mask(arrays, scratch, i, position, n_left):
    """Return the entries of a block of an open list whose token message i may have."""
    return twice_signed_mask(
        arrays.entry_tokens, position, scratch.signatures, scratch.high_signatures, i
    ) & low_bits(n_left)


@inlined_kernel
def _note_pending(scratch, i, position, mask, n_pending):
    """Note entries of a block that are still to be verified; return the new number of them."""
    while mask != 0:
        scratch.pending[n_pending] = position + trailing_zeros(mask)
        scratch.pending_rows[n_pending] = i
        n_pending += 1
        mask &= mask - np.uint32(1)
    return n_pending


@inlined_kernel
def _queue_block(arrays, scratch, i, position, n_left, n_queued):
    """Queue a block of an open list if message i may have the token of an entry.

    Its keys are asked for, and compared when they are there. Returns the new number of blocks.
    """
    mask = _open_mask(arrays, scratch, i, position, n_left)
    if mask == 0:
        return n_queued
    at = n_queued & BLOCKS_QUEUED - 1
    scratch.queue_rows[at] = i
    scratch.queue[at] = position
    scratch.queue_masks[at] = mask
    prefetch(arrays.keys, position)
    prefetch(arrays.keys, position + 8)
    return n_queued + 1


@inlined_kernel
def _take_block(arrays, scratch, k, n_pending):
    """Note entries of the k-th queued block that touch; return the new number of pending ones."""
    at = k & BLOCKS_QUEUED - 1
    i, position = np.int64(scratch.queue_rows[at]), np.int64(scratch.queue[at])
    mask = scratch.queue_masks[at] & touching_mask(arrays.keys, position, scratch.limits[i])
    return _note_pending(scratch, i, position, mask, n_pending)


@lean_kernel
def walk_nodes(arrays, clauses, messages, first, n_pairs, scratch, work):
    """Walk the lists of all pairs, node by node.

    Answers of complete lists are found at once; entries of open lists that may be some are pending.
    Returns the number of pending ones, or what there was no room for.
    """
    nodes, tokens = arrays.nodes, arrays.entry_tokens
    summary_keys, frontier, pairs = arrays.summary_keys, scratch.frontier, scratch.pairs
    found, pending = scratch.found, scratch.pending
    half, low = np.uint64(32), np.uint64(0xFFFF_FFFF)
    last = np.int64(-1)
    start = n = n_open = top = n_top = open_top = n_open_top = np.int64(0)
    depth = open_depth = 1
    is_short = has_masks = False
    last_short = np.int64(-1)
    short_start = n_short = n_short_open = np.int64(0)
    n_pending = n_found = n_queued = n_taken = np.int64(0)
    n_blocks_seen = n_candidates = np.int64(0)
    for k in range(-SHORT_AHEAD, n_pairs):
        if k + NODE_AHEAD < n_pairs:
            _fetch_numbered(arrays, np.int64(pairs[k + NODE_AHEAD] >> half))
        if k + LIST_AHEAD < n_pairs:
            coming = np.int64(pairs[k + LIST_AHEAD] >> half)
            if coming != np.int64(pairs[k + LIST_AHEAD - 1] >> half):
                fetch_lists(arrays, coming)
        if k + SHORT_AHEAD < n_pairs:
            coming = np.int64(pairs[k + SHORT_AHEAD] >> half)
            if coming != last_short:
                short_start, n_short, n_short_open = lists_of(arrays, coming)
                has_masks = max(n_short, n_short_open) > BLOCK and are_short(n_short, n_short_open)
            if has_masks:
                i = np.int64(scratch.pair_rows[np.int64(pairs[k + SHORT_AHEAD] & low)])
                mask, mask_open = touching_short(
                    arrays, coming, n_short, n_short_open, scratch.limits[i]
                )
                noted = 2 * (k + SHORT_AHEAD & PAIRS_NOTED - 1)
                scratch.short_masks[noted], scratch.short_masks[noted + 1] = mask, mask_open
                if coming != last_short:  # else most of them were asked for already
                    _fetch_short(arrays, short_start, n_short, n_short_open, mask, mask_open)
            last_short = coming
        if k < 0:
            continue
        pair = np.int64(pairs[k] & low)
        i = np.int64(scratch.pair_rows[pair])
        limit = scratch.limits[i]
        box = messages.boxes[first + i]
        number = np.int64(pairs[k] >> half)
        if number != last:
            last = number
            start, n, n_open = lists_of(arrays, number)
            is_short = are_short(n, n_open)
            at = number * NODE_COLUMNS
            if not is_short and n > BLOCK:
                top, n_top, depth = top_of(n, np.int64(nodes[at + COMPLETE_SUMMARY]))
            if not is_short and n_open > BLOCK:
                open_top, n_open_top, open_depth = top_of(
                    n_open, np.int64(nodes[at + OPEN_SUMMARY])
                )
        scratch.run_starts[pair] = n_found
        if n_found + (BLOCK + 1) * BLOCK > len(found):
            return SHORT_OF_FOUND
        if n_pending + BLOCKS_QUEUED * BLOCK > len(pending):
            return SHORT_OF_PENDING
        while n_queued - n_taken > BLOCKS_QUEUED // 2:
            n_pending = _take_block(arrays, scratch, n_taken, n_pending)
            n_taken += 1
        if is_short:
            mask, mask_open = np.uint32(1 if n > 0 else 0), np.uint32(1 if n_open > 0 else 0)
            if max(n, n_open) > BLOCK:
                noted = 2 * (k & PAIRS_NOTED - 1)
                mask, mask_open = scratch.short_masks[noted], scratch.short_masks[noted + 1]
                n_blocks_seen += 1
            while mask != 0:
                offset = trailing_zeros(mask) * BLOCK
                mask &= mask - np.uint32(1)
                n_found = read_complete(
                    arrays, clauses, box, limit, start + offset, n - offset, found, n_found
                )
                n_candidates += min(BLOCK, n - offset)
                n_blocks_seen += 1
            scratch.run_ends[pair] = n_found
            while mask_open != 0:
                offset = trailing_zeros(mask_open) * BLOCK
                mask_open &= mask_open - np.uint32(1)
                n_queued = _queue_block(
                    arrays, scratch, i, start + n + offset, n_open - offset, n_queued
                )
                n_candidates += min(BLOCK, n_open - offset)
                n_blocks_seen += 1
            continue
        if n > 0:
            here, n_blocks = np.int64(0), np.int64(1)
            frontier[0] = 0
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
                    arrays, clauses, box, limit, start + offset, n - offset, found, n_found
                )
                n_candidates += min(BLOCK, n - offset)
            n_blocks_seen += n_blocks
        scratch.run_ends[pair] = n_found
        if n_open > 0:
            here, n_blocks = np.int64(0), np.int64(1)
            frontier[0] = 0
            if n_open > BLOCK:
                here, n_blocks = walk_down(
                    n_open, summary_keys, open_top, n_open_top, open_depth, limit, frontier, work
                )
                for b in range(min(n_blocks, 2 * BLOCK_AHEAD)):
                    prefetch(tokens, start + n + np.int64(frontier[here + b]) * BLOCK)
            if n_pending + (n_blocks + BLOCKS_QUEUED) * BLOCK > len(pending):
                return SHORT_OF_PENDING
            for b in range(n_blocks):
                offset = np.int64(frontier[here + b]) * BLOCK
                position = start + n + offset
                mask = _open_mask(arrays, scratch, i, position, n_open - offset)
                if mask != 0:
                    mask &= touching_mask(arrays.keys, position, limit)
                    n_pending = _note_pending(scratch, i, position, mask, n_pending)
                n_candidates += min(BLOCK, n_open - offset)
            n_blocks_seen += n_blocks
    for k in range(n_taken, n_queued):
        n_pending = _take_block(arrays, scratch, k, n_pending)
    work[0] += n_blocks_seen
    work[1] += n_candidates
    return n_pending


# ---- verifying -----------------------------------------------------------------------------------


@lean_kernel
def verify_pending(arrays, clauses, is_lonlat, messages, first, n_pending, scratch):
    """Fill the slots of pending entries that are answers; NO_SLOT for the others.

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
            c = plain_row(rows[pending[j]])
            prefetch(clauses.token_offsets, c)
            prefetch(clauses.shape_rows, c)
        j = k - 2 * step
        if 0 <= j < n_pending:
            c = plain_row(rows[pending[j]])
            prefetch(clauses.token_ids, clauses.token_offsets[c])
            if not key_touches(keys[pending[j]], strict_limit(limits[pending_rows[j]])):
                prefetch(clauses.boxes, c)
        j = k - 3 * step
        if j < 0:
            continue
        entry, i = np.int64(pending[j]), np.int64(pending_rows[j])
        m, c = first + i, plain_row(rows[entry])
        tokens = messages.token_ids[messages.token_offsets[m] : messages.token_offsets[m + 1]]
        token = arrays.entry_tokens[entry]
        scratch.pending_slots[j] = NO_SLOT
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
        slot = clauses.subscriptions[c]
        scratch.pending_slots[j] = slot if rows[entry] >= 0 else ~slot


@lean_kernel
def sort_extras(n_pending, n, scratch):
    """Bring the slots of verified entries into the order of their messages."""
    offsets, extras = scratch.extra_offsets, scratch.extras
    for i in range(n + 2):
        offsets[i] = 0
    for k in range(n_pending):
        if scratch.pending_slots[k] != NO_SLOT:
            offsets[scratch.pending_rows[k] + 2] += 1
    for i in range(n):
        offsets[i + 2] += offsets[i + 1]
    for k in range(n_pending):
        if scratch.pending_slots[k] != NO_SLOT:
            row = scratch.pending_rows[k] + 1
            extras[offsets[row]] = scratch.pending_slots[k]
            offsets[row] += 1


@lean_kernel
def sort_by_node(n_pairs, arrays, scratch):
    """Sort the pairs by what they name."""
    high = 32 + 22
    n_numbers = len(arrays.nodes) // NODE_COLUMNS + len(arrays.roots) // ROOT_COLUMNS
    while n_numbers >> (high - 32) > 0:
        high += 11
    sort_pairs(scratch.pairs, scratch.other_pairs, n_pairs, 32, high, scratch.counts)
