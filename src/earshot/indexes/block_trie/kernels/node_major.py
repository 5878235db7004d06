"""Short messages, node by node: a list is walked for all messages that reach it, one after another.

A message at a time, nearly every list and block is fetched from memory. Here all pairs of a node
and a message are made first and sorted by node. So a list is in the cache for all but its first
message, and what comes next is known and fetched ahead.
"""

from __future__ import annotations

import numpy as np

from earshot.indexes.block_trie.kernels.batch_arrays import (
    SHORT_OF_FOUND,
    SHORT_OF_PENDING,
    SIGNATURE_WORDS,
)
from earshot.indexes.block_trie.kernels.choosing import TRIE, sort_pairs
from earshot.indexes.block_trie.kernels.match import (
    COMPLETE_SUMMARY,
    FIRST_CHILD,
    N_CHILDREN,
    N_COMPLETE,
    N_OPEN,
    NODE_COLUMNS,
    OPEN_SUMMARY,
    START,
)
from earshot.indexes.block_trie.kernels.vectors import (
    pack_numbers,
    pack_rows,
    signed_mask,
    touching_masks,
)
from earshot.indexes.kernels.blocks import low_bits
from earshot.kernels.box_keys import BLOCK, key_touches, strict_limit, touching_mask, trailing_zeros
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.kernels.processor import prefetch
from earshot.kernels.searching import first_at_least
from earshot.kernels.shapes import shape_touches_box
from earshot.kernels.verify import box_touches

OPEN_DIRECTLY = 64
"""Open lists of up to so many entries are read from end to end: tokens drop most of a block."""

NODE_AHEAD, LIST_AHEAD, BLOCK_AHEAD = 24, 12, 8
"""How many pairs ahead a node is fetched, and its list; how many blocks ahead a block is."""

TOKENS_AHEAD, ROOTS_AHEAD = 4, 2
"""How many messages ahead the roots of tokens are fetched, and the nodes that they name."""


@lean_kernel
def make_pairs(arrays, messages, first, n, scratch):
    """Make the pairs of a node and a message, message by message, and the messages' signatures.

    Returns how many messages got theirs before there was no more room, and the number of pairs.
    """
    nodes, root_nodes, paths = arrays.nodes, arrays.root_nodes, scratch.paths
    offsets, tokens = messages.token_offsets, messages.token_ids
    stack, pairs, signatures = scratch.stack, scratch.pairs, scratch.signatures
    room = len(pairs) - len(stack)
    n_pairs = np.int64(0)
    for i in range(n):
        if i + TOKENS_AHEAD < n:
            for p in range(
                offsets[first + i + TOKENS_AHEAD], offsets[first + i + TOKENS_AHEAD + 1]
            ):
                if tokens[p] < len(root_nodes):
                    prefetch(root_nodes, tokens[p])
                    prefetch(scratch.marks, tokens[p])
        if i + ROOTS_AHEAD < n:
            for p in range(offsets[first + i + ROOTS_AHEAD], offsets[first + i + ROOTS_AHEAD + 1]):
                if tokens[p] < len(root_nodes) and root_nodes[tokens[p]] >= 0:
                    prefetch(nodes, np.int64(root_nodes[tokens[p]]) * NODE_COLUMNS)
        scratch.pair_offsets[i] = n_pairs
        if paths[i] != TRIE:
            continue
        if n_pairs > room:
            return i, n_pairs
        message = tokens[offsets[first + i] : offsets[first + i + 1]]
        n_stack = 0
        for word in range(SIGNATURE_WORDS):
            signatures[i * SIGNATURE_WORDS + word] = 0
        for p in range(len(message)):
            token = message[p]
            word = i * SIGNATURE_WORDS + (token >> 5 & (SIGNATURE_WORDS - 1))
            signatures[word] |= np.uint32(1) << np.uint32(token & 31)
            if token < len(root_nodes):
                scratch.marks[token] = 1
                if root_nodes[token] >= 0:
                    stack[n_stack] = root_nodes[token]
                    n_stack += 1
        while n_stack > 0:
            n_stack -= 1
            node = np.int64(stack[n_stack])
            at = node * NODE_COLUMNS
            if nodes[at + N_COMPLETE] + nodes[at + N_OPEN] > 0:
                pairs[n_pairs] = np.uint64(node) << np.uint64(32) | np.uint64(n_pairs)
                scratch.pair_rows[n_pairs] = i
                n_pairs += 1
            if nodes[at + N_CHILDREN] > 0:
                n_stack = _push_children(
                    arrays.node_tokens, nodes[at + FIRST_CHILD], nodes[at + N_CHILDREN], message,
                    scratch.marks, stack, n_stack,
                )  # fmt: skip
        for p in range(len(message)):
            if message[p] < len(root_nodes):
                scratch.marks[message[p]] = 0
    scratch.pair_offsets[n] = n_pairs
    return n, n_pairs


@inlined_kernel
def _push_children(node_tokens, first, n, message, marks, stack, n_stack):
    """Push those of ``n`` children whose token is in the message; return the stack's height."""
    if n <= 4 * len(message):
        for child in range(first, first + n):
            stack[n_stack] = child
            n_stack += marks[node_tokens[child]]
    else:
        for p in range(len(message)):
            child = first_at_least(node_tokens, first, first + n, message[p])
            if child < first + n and node_tokens[child] == message[p]:
                stack[n_stack] = child
                n_stack += 1
    return n_stack


@inlined_kernel
def _top_of(n, summary):
    """Return where the top level of a list's summaries begins, its length, and the levels."""
    n_top, depth = (n + BLOCK - 1) >> 4, 1
    while n_top > BLOCK:
        summary += n_top
        n_top = (n_top + BLOCK - 1) >> 4
        depth += 1
    return summary, n_top, depth


@inlined_kernel
def _walk_down(n, summary_keys, top, n_top, depth, limit, frontier, work):
    """Write the blocks of a list that may touch; return where they stand, and how many they are.

    As ``touching_blocks``, but what is the same for all messages of a list is known, and blocks are
    packed at once.
    """
    here, there = np.int64(0), np.int64(len(frontier) >> 1)
    frontier[0] = 0
    n_here, n_level, level = np.int64(1), n_top, top
    while depth > 0:
        n_there = np.int64(0)
        for k in range(n_here):
            block = np.int64(frontier[here + k]) * BLOCK
            mask = touching_mask(summary_keys, level + block, limit) & low_bits(n_level - block)
            n_there = pack_numbers(block, mask, frontier, there + n_there) - there
        work[0] += n_here
        here, there = there, here
        n_here = n_there
        depth -= 1
        n_level = n
        for _ in range(depth):
            n_level = (n_level + BLOCK - 1) >> 4
        level -= n_level
    return here, n_here


@inlined_kernel
def _fetch_list(arrays, node):
    """Ask for what the lists of a node begin with."""
    nodes, keys, rows, tokens = arrays.nodes, arrays.keys, arrays.entry_rows, arrays.entry_tokens
    start = np.int64(nodes[node + START])
    n, n_open = np.int64(nodes[node + N_COMPLETE]), np.int64(nodes[node + N_OPEN])
    if n > BLOCK:
        top, _, _ = _top_of(n, np.int64(nodes[node + COMPLETE_SUMMARY]))
        prefetch(arrays.summary_keys, top)
        prefetch(arrays.summary_keys, top + 8)
    elif n > 0:
        prefetch(rows, start)
        prefetch(keys, start)
        if n > 8:
            prefetch(keys, start + 8)
            prefetch(rows, start + 15)
    if n_open > OPEN_DIRECTLY:
        top, _, _ = _top_of(n_open, np.int64(nodes[node + OPEN_SUMMARY]))
        prefetch(arrays.summary_keys, top)
        prefetch(arrays.summary_keys, top + 8)
    elif n_open > 0:
        for k in range(0, n_open, BLOCK):
            prefetch(tokens, start + n + k)
        prefetch(tokens, start + n + n_open - 1)


@inlined_kernel
def _fetch_block(arrays, position):
    prefetch(arrays.keys, position)
    prefetch(arrays.keys, position + 8)
    prefetch(arrays.entry_rows, position)


@lean_kernel
def walk_nodes(arrays, clauses, messages, first, n_pairs, n_found, scratch, work):
    """Walk the lists of all pairs, node by node.

    Answers of complete lists are appended to ``n_found`` others; entries of open lists that may be
    some are pending. Returns the number of pending ones, or what there was no room for.
    """
    nodes, keys, rows, tokens = arrays.nodes, arrays.keys, arrays.entry_rows, arrays.entry_tokens
    summary_keys, frontier, pairs = arrays.summary_keys, scratch.frontier, scratch.pairs
    found, pending, pending_rows = scratch.found, scratch.pending, scratch.pending_rows
    half, low = np.uint64(32), np.uint64(0xFFFF_FFFF)
    last = np.int64(-1)
    start = n = n_open = top = n_top = open_top = n_open_top = np.int64(0)
    depth = open_depth = 1
    n_pending = np.int64(0)
    n_blocks_seen = n_candidates = np.int64(0)
    for k in range(n_pairs):
        if k + NODE_AHEAD < n_pairs:
            prefetch(nodes, np.int64(pairs[k + NODE_AHEAD] >> half) * NODE_COLUMNS)
        if k + LIST_AHEAD < n_pairs:
            coming = np.int64(pairs[k + LIST_AHEAD] >> half)
            if coming != np.int64(pairs[k + LIST_AHEAD - 1] >> half):
                _fetch_list(arrays, coming * NODE_COLUMNS)
        pair = np.int64(pairs[k] & low)
        i = np.int64(scratch.pair_rows[pair])
        limit = scratch.limits[i]
        node = np.int64(pairs[k] >> half)
        if node != last:
            last = node
            at = node * NODE_COLUMNS
            start = np.int64(nodes[at + START])
            n, n_open = np.int64(nodes[at + N_COMPLETE]), np.int64(nodes[at + N_OPEN])
            top, n_top, depth = _top_of(n, np.int64(nodes[at + COMPLETE_SUMMARY]))
            open_top, n_open_top, open_depth = _top_of(n_open, np.int64(nodes[at + OPEN_SUMMARY]))
        scratch.run_starts[pair] = n_found
        if n > 0:
            here, n_blocks = np.int64(0), np.int64(1)
            if n > BLOCK:
                here, n_blocks = _walk_down(
                    n, summary_keys, top, n_top, depth, limit, frontier, work
                )
                for b in range(min(n_blocks, BLOCK_AHEAD)):
                    _fetch_block(arrays, start + np.int64(frontier[here + b]) * BLOCK)
            else:
                frontier[0] = 0
            if n_found + (n_blocks + 1) * BLOCK > len(found):
                return SHORT_OF_FOUND
            for b in range(n_blocks):
                if b + BLOCK_AHEAD < n_blocks:
                    ahead = np.int64(frontier[here + b + BLOCK_AHEAD])
                    _fetch_block(arrays, start + ahead * BLOCK)
                offset = np.int64(frontier[here + b]) * BLOCK
                masks = touching_masks(keys, start + offset, limit)
                valid = low_bits(n - offset)
                sure = masks >> np.uint32(BLOCK) & valid
                ties = masks & valid ^ sure
                n_found = pack_rows(rows, start + offset, sure, found, n_found)
                if ties != 0:
                    n_found = _settle_ties(
                        arrays, clauses, messages.boxes[first + i], start + offset, ties, found,
                        n_found,
                    )  # fmt: skip
                n_candidates += min(BLOCK, n - offset)
            n_blocks_seen += n_blocks
        scratch.run_ends[pair] = n_found
        if n_open > 0:
            here, n_blocks = np.int64(0), (n_open + BLOCK - 1) >> 4
            is_direct = n_open <= OPEN_DIRECTLY
            if not is_direct:
                here, n_blocks = _walk_down(
                    n_open, summary_keys, open_top, n_open_top, open_depth, limit, frontier, work
                )
                for b in range(min(n_blocks, 2 * BLOCK_AHEAD)):
                    prefetch(tokens, start + n + np.int64(frontier[here + b]) * BLOCK)
            if n_pending + n_blocks * BLOCK > len(pending):
                return SHORT_OF_PENDING
            for b in range(n_blocks):
                offset = (b if is_direct else np.int64(frontier[here + b])) * BLOCK
                position = start + n + offset
                mask = signed_mask(tokens, position, scratch.signatures, i) & low_bits(
                    n_open - offset
                )
                n_candidates += min(BLOCK, n_open - offset)
                if mask != 0:
                    mask &= touching_mask(keys, position, limit)
                    while mask != 0:
                        pending[n_pending] = position + trailing_zeros(mask)
                        pending_rows[n_pending] = i
                        n_pending += 1
                        mask &= mask - np.uint32(1)
            n_blocks_seen += n_blocks
    work[0] += n_blocks_seen
    work[1] += n_candidates
    return n_pending


@lean_kernel
def _settle_ties(arrays, clauses, box, position, ties, found, n_found):
    """Append the slots of a complete list's entries that exact coordinates let touch."""
    while ties != 0:
        slot = arrays.entry_rows[position + trailing_zeros(ties)]
        ties &= ties - np.uint32(1)
        c = slot if len(arrays.slot_clauses) == 0 else arrays.slot_clauses[slot]
        if box_touches(clauses.boxes, c, box[0], box[1], box[2], box[3]):
            found[n_found] = slot
            n_found += 1
    return n_found


# ---- verifying -----------------------------------------------------------------------------------


@inlined_kernel
def has_token(messages, m, token):
    """Whether a message has a token; all are compared, several at once."""
    n_found = np.int32(0)
    tokens = messages.token_ids[messages.token_offsets[m] : messages.token_offsets[m + 1]]
    for p in range(len(tokens)):
        n_found += np.int32(1) if tokens[p] == token else np.int32(0)
    return n_found != 0


@inlined_kernel
def _matches_all(clauses, c, messages, m):
    """Whether a message has all required tokens of a clause, and no forbidden one."""
    for p in range(clauses.token_offsets[c], clauses.token_offsets[c + 1]):
        token = clauses.token_ids[p]
        if has_token(messages, m, token if token >= 0 else ~token) != (token >= 0):
            return False
    return True


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
        token = arrays.entry_tokens[entry]
        scratch.pending_slots[j] = -1
        if token >= 0:
            if not has_token(messages, m, token):
                continue
        elif not _matches_all(clauses, c, messages, m):
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
def sort_by_node(n_pairs, n_nodes, scratch):
    """Sort the pairs by their nodes."""
    high = 32 + 22
    while n_nodes >> (high - 32) > 0:
        high += 11
    sort_pairs(scratch.pairs, scratch.other_pairs, n_pairs, 32, high, scratch.counts)
