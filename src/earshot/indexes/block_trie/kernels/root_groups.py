"""Long messages down the root list: up to 64 neighbours share one walk.

A set of messages is a word, a bit for each. Each block that some of them may touch is read once.
For each of its entries, the sets of messages that have its tokens are intersected first
(``narrow_senders``), as long messages have most tokens in common with few; then its key is compared
with the limits of all of them at once. Tokens are told by their codes (``code_of``), whose table of
512 KB stays in the second-level cache.

Messages that would share few blocks walk alone; their entries are verified with those of the trie.
"""

from __future__ import annotations

import numpy as np

from earshot.indexes.block_trie.kernels.batch_arrays import SHORT_OF_PENDING, SHORT_OF_SENT
from earshot.indexes.block_trie.kernels.choosing import (
    BLOCK_COST,
    GROUP_BLOCK_COST,
    count_blocks,
)
from earshot.indexes.block_trie.kernels.match import (
    CODE_COLUMNS,
    N_EXACT_CODES,
    code_of,
    has_codes,
    sign_codes,
    unsign_codes,
)
from earshot.indexes.block_trie.kernels.vectors import (
    GROUP,
    first_member,
    n_members,
    narrow_senders,
    tally,
    touched_limits,
)
from earshot.indexes.kernels.blocks import low_bits, touching_blocks, touching_keys
from earshot.kernels.box_keys import BLOCK, touching_mask, trailing_zeros
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.kernels.processor import prefetch
from earshot.kernels.shapes import shape_touches_box
from earshot.kernels.verify import box_touches

EVERYTHING = np.int64(1) << 40
NO_LIMIT = np.uint64(0x8000_8000_8000_8000)
"""A limit that no key touches but one with 0 in every lane; the bits of it are masked out."""
ONE = np.uint64(1)
BLOCKS_AHEAD = 6
CODES_OF_BLOCK = CODE_COLUMNS * BLOCK


@lean_kernel
def walk_roots(
    arrays, clauses, is_lonlat, tables, messages, first, n_root, is_grouped, scratch, work
):
    """Match the messages whose Hilbert codes are in order, in groups or alone.

    ``is_grouped`` is 1 or 0 for all groups, or -1. Returns the number of pending entries, or what
    there was no room for, and the number of messages in groups; only the last group may be smaller.
    """
    n_clauses = np.int64(len(clauses.subscriptions))
    low, lane = np.uint64(0xFFFF_FFFF), np.uint64(0x7FFF)
    n_pending = n_sent = n_groups = n_rows = np.int64(0)
    for start in range(0, n_root, GROUP):
        size = min(GROUP, n_root - start)
        # The limit of the box around all of them.
        union, n_alone = NO_LIMIT, np.int64(0)
        for k in range(size):
            i = np.int64(scratch.codes[start + k] & low)
            limit = scratch.limits[i]
            scratch.group_limits[k] = limit
            n_alone += scratch.n_blocks[i]
            widest = NO_LIMIT
            for shift in range(0, 64, 16):
                s = np.uint64(shift)
                widest |= max(union >> s & lane, limit >> s & lane) << s
            union = widest
        shared = GROUP_BLOCK_COST * count_blocks(tables.block_sums, union)
        if is_grouped == 0 or (is_grouped < 0 and shared > BLOCK_COST * n_alone):
            for k in range(size):
                i = np.int64(scratch.codes[start + k] & low)
                n_pending = _walk_alone(arrays, n_clauses, messages, first, i, n_pending, scratch, work)
                if n_pending < 0:
                    return n_pending, n_rows
            continue
        for k in range(size, GROUP):
            scratch.group_limits[k] = NO_LIMIT
        for k in range(size):
            scratch.group_rows[n_rows + k] = np.int64(scratch.codes[start + k] & low)
        n_sent = _walk_together(
            arrays, clauses, is_lonlat, messages, first, n_rows, size, union, n_sent, scratch, work
        )
        if n_sent < 0:
            return n_sent, n_rows
        scratch.group_ends[n_groups] = n_sent
        n_groups += 1
        n_rows += size
    return n_pending, n_rows


@lean_kernel
def _walk_alone(arrays, n_clauses, messages, first, i, n_pending, scratch, work):
    """Let entries of the root list that may be answers of one message pend; return their number."""
    limit, pending, signature = scratch.limits[i], scratch.pending, scratch.signature
    here, n_blocks = touching_blocks(
        n_clauses, arrays.summary_keys, arrays.root_summary[0], limit, scratch.frontier,
        EVERYTHING, work,
    )  # fmt: skip
    if n_pending + n_blocks * BLOCK > len(pending):
        return np.int64(SHORT_OF_PENDING)
    if n_blocks == 0:
        return n_pending
    offsets = messages.token_offsets
    tokens = messages.token_ids[offsets[first + i] : offsets[first + i + 1]]
    sign_codes(tokens, signature)
    blocks = scratch.frontier[here : here + n_blocks]
    for k in range(n_blocks):
        position, mask = touching_keys(
            arrays.keys, arrays.root_codes, n_clauses, n_clauses, blocks, k, limit, work
        )
        codes = np.int64(blocks[k]) * CODES_OF_BLOCK
        if k + BLOCKS_AHEAD < n_blocks:
            prefetch(arrays.root_codes, np.int64(blocks[k + BLOCKS_AHEAD]) * CODES_OF_BLOCK)
            prefetch(arrays.root_codes, np.int64(blocks[k + BLOCKS_AHEAD]) * CODES_OF_BLOCK + 32)
        while mask != 0:
            e = trailing_zeros(mask)
            mask &= mask - np.uint32(1)
            if has_codes(arrays.root_codes, codes + e, signature):
                pending[n_pending] = position + e
                scratch.pending_rows[n_pending] = i
                n_pending += 1
    unsign_codes(tokens, signature)
    work[0] += n_blocks
    return n_pending


# ---- groups --------------------------------------------------------------------------------------


@lean_kernel
def _set_senders(messages, first, rows, senders, exact_senders, value):
    """Enter the tokens of a group's messages into the tables, or take all of them out (0)."""
    for k in range(len(rows)):
        m = first + rows[k]
        bit = ONE << np.uint64(k)
        for p in range(messages.token_offsets[m], messages.token_offsets[m + 1]):
            token = np.int64(messages.token_ids[p])
            code = code_of(token)
            senders[code] = senders[code] | bit if value else np.uint64(0)
            if N_EXACT_CODES <= token < len(exact_senders):
                exact_senders[token] = exact_senders[token] | bit if value else np.uint64(0)


@inlined_kernel
def _senders_of(token, senders, exact_senders):
    return senders[token] if token < N_EXACT_CODES else exact_senders[token]


@lean_kernel
def _touching_blocks_of_group(arrays, n_clauses, valid, union, scratch, work):
    """Write the root list's blocks that some of a group may touch, and who; return as alone."""
    summary_keys, frontier, members = arrays.summary_keys, scratch.frontier, scratch.block_senders
    limits = scratch.group_limits
    here, there = np.int64(0), np.int64(len(frontier) >> 1)
    frontier[0], members[0] = 0, valid
    if n_clauses <= BLOCK:
        return here, np.int64(1)
    n_level, level, depth = (n_clauses + BLOCK - 1) // BLOCK, arrays.root_summary[0], 1
    while n_level > BLOCK:
        level += n_level
        n_level = (n_level + BLOCK - 1) // BLOCK
        depth += 1
    n_here = np.int64(1)
    while depth > 0:
        n_there = np.int64(0)
        for k in range(n_here):
            if k + BLOCKS_AHEAD < n_here:
                ahead = level + np.int64(frontier[here + k + BLOCKS_AHEAD]) * BLOCK
                prefetch(summary_keys, ahead)
                prefetch(summary_keys, ahead + 8)
            block = np.int64(frontier[here + k]) * BLOCK
            above = members[here + k]
            work[0] += n_members(above)
            mask = touching_mask(summary_keys, level + block, union) & low_bits(n_level - block)
            while mask != 0:
                e = block + trailing_zeros(mask)
                mask &= mask - np.uint32(1)
                some, _ = touched_limits(limits, summary_keys[level + e])
                some &= above
                frontier[there + n_there] = e
                members[there + n_there] = some
                n_there += 1 if some != 0 else 0
        here, there = there, here
        n_here = n_there
        depth -= 1
        n_level = n_clauses
        for _ in range(depth):
            n_level = (n_level + BLOCK - 1) // BLOCK
        level -= n_level
    return here, n_here


@lean_kernel
def _walk_together(
    arrays, clauses, is_lonlat, messages, first, first_row, size, union, n_sent, scratch, work
):
    """Match a group; return the number of slots sent so far, or that there was no room."""
    n_clauses = np.int64(len(clauses.subscriptions))
    rows = scratch.group_rows[first_row : first_row + size]
    valid = ~np.uint64(0) if size == GROUP else (ONE << np.uint64(size)) - ONE
    frontier, senders, codes = scratch.frontier, scratch.senders, arrays.root_codes
    here, n_blocks = _touching_blocks_of_group(arrays, n_clauses, valid, union, scratch, work)
    for k in range(size):
        scratch.group_counts[rows[k]] = 0
    if n_blocks == 0:
        return n_sent
    _set_senders(messages, first, rows, senders, scratch.exact_senders, True)
    first_sent, n_checks, n_tallied = n_sent, np.int64(0), 0
    n_candidates = np.int64(0)
    for k in range(n_blocks):
        if k + BLOCKS_AHEAD < n_blocks:
            ahead = np.int64(frontier[here + k + BLOCKS_AHEAD])
            prefetch(codes, ahead * CODES_OF_BLOCK)
            prefetch(codes, ahead * CODES_OF_BLOCK + 2 * BLOCK)
            prefetch(arrays.keys, n_clauses + ahead * BLOCK)
            prefetch(arrays.keys, n_clauses + ahead * BLOCK + 8)
            prefetch(arrays.entry_rows, n_clauses + ahead * BLOCK)
        block = np.int64(frontier[here + k])
        above = scratch.block_senders[here + k]
        n_candidates += n_members(above) * min(BLOCK, n_clauses - block * BLOCK)
        for e in range(BLOCK):
            scratch.narrowed[e] = above
        mask = narrow_senders(senders, codes, block * CODES_OF_BLOCK, scratch.narrowed)
        if mask == 0:
            continue
        mask = narrow_senders(
            senders, codes, block * CODES_OF_BLOCK + 2 * BLOCK, scratch.narrowed
        ) & low_bits(n_clauses - block * BLOCK)
        to_check = arrays.root_checks[block]
        while mask != 0:
            e = trailing_zeros(mask)
            mask &= mask - np.uint32(1)
            entry = n_clauses + block * BLOCK + e
            some, sure = touched_limits(scratch.group_limits, arrays.keys[entry])
            some &= scratch.narrowed[e]
            if some == 0:
                continue
            ties = some & ~sure
            if ties != 0 or to_check >> np.uint16(e) & np.uint16(1) != 0:
                scratch.checks[n_checks] = entry
                scratch.check_senders[n_checks] = some
                scratch.check_ties[n_checks] = ties
                n_checks += 1
                if n_checks == len(scratch.checks):
                    n_sent = _check(
                        arrays, clauses, is_lonlat, messages, first, rows, n_checks, n_sent, scratch
                    )
                    n_checks = 0
                continue
            if n_sent < len(scratch.sent):
                scratch.sent[n_sent] = _slot_of(arrays, clauses, arrays.entry_rows[entry])
                scratch.sent_to[n_sent] = some
            n_sent += 1
    n_sent = _check(arrays, clauses, is_lonlat, messages, first, rows, n_checks, n_sent, scratch)
    work[0] += _n_visits(scratch.block_senders, here, n_blocks)
    work[1] += n_candidates
    _set_senders(messages, first, rows, senders, scratch.exact_senders, False)
    senders[len(senders) - 1] = ~np.uint64(0)
    n_written = min(n_sent, len(scratch.sent))
    if len(scratch.seen) > 0:
        for k in range(first_sent, n_written):
            scratch.seen[scratch.sent[k]] = 0
    if n_sent > n_written:
        return np.int64(SHORT_OF_SENT)
    for k in range(first_sent, n_sent):
        tally(scratch.sent_to[k], scratch.tallies)
        n_tallied += 1
        if n_tallied == 255:
            _add_tallies(rows, scratch)
            n_tallied = 0
    _add_tallies(rows, scratch)
    return n_sent


@lean_kernel
def _n_visits(members, here, n_blocks):
    n = np.int64(0)
    for k in range(here, here + n_blocks):
        n += n_members(members[k])
    return n


@lean_kernel
def _add_tallies(rows, scratch):
    for k in range(len(rows)):
        scratch.group_counts[rows[k]] += scratch.tallies[k]
    for k in range(GROUP):
        scratch.tallies[k] = 0


@inlined_kernel
def _slot_of(arrays, clauses, c):
    return c if len(arrays.slot_clauses) == 0 else clauses.subscriptions[c]


@lean_kernel
def _check(arrays, clauses, is_lonlat, messages, first, rows, n_checks, n_sent, scratch):
    """Verify entries of the root list for those of a group that they may match; return as above.

    Clauses lie anywhere in memory. Each step reads what an earlier one has asked for.
    """
    checks, entry_rows, seen = scratch.checks, arrays.entry_rows, scratch.seen
    step = 16
    for k in range(n_checks + 2 * step):
        if k < n_checks:
            c = np.int64(entry_rows[checks[k]])
            prefetch(clauses.token_offsets, c)
            prefetch(clauses.shape_rows, c)
            if scratch.check_ties[k] != 0:
                prefetch(clauses.boxes, c)
        j = k - step
        if 0 <= j < n_checks:
            c = np.int64(entry_rows[checks[j]])
            prefetch(clauses.token_ids, clauses.token_offsets[c])
        j = k - 2 * step
        if j < 0:
            continue
        c = np.int64(entry_rows[checks[j]])
        some = scratch.check_senders[j]
        for p in range(clauses.token_offsets[c], clauses.token_offsets[c + 1]):
            token = clauses.token_ids[p]
            if token >= 0:
                some &= _senders_of(token, scratch.senders, scratch.exact_senders)
            else:
                some &= ~_senders_of(~token, scratch.senders, scratch.exact_senders)
        slot = clauses.subscriptions[c]
        if len(seen) > 0:
            some &= ~seen[slot]
        shape = clauses.shape_rows[c]
        left = some if shape >= 0 else some & scratch.check_ties[j]
        while left != 0:
            member = first_member(left)
            left &= left - ONE
            box = messages.boxes[first + rows[member]]
            touches = box_touches(clauses.boxes, c, box[0], box[1], box[2], box[3])
            if touches and shape >= 0:
                touches = shape_touches_box(
                    clauses.shapes, shape, is_lonlat, box[0], box[1], box[2], box[3]
                )
            if not touches:
                some &= ~(ONE << np.uint64(member))
        if some == 0:
            continue
        if n_sent < len(scratch.sent):
            scratch.sent[n_sent] = slot
            scratch.sent_to[n_sent] = some
            if len(seen) > 0:
                seen[slot] |= some
        n_sent += 1
    return n_sent
