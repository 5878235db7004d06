"""Long messages down the root list: up to 64 neighbours share one walk.

A set of messages is a word, a bit for each. Each block that some of them may touch is read once.
Its entries are dropped whose keys touch none, and those whose two rarest tokens nobody has, sixteen
at a time; of the rest, the sets of messages that have each token are intersected, and the key is
compared with the limits of all messages at once. Tokens are told by their codes (``code_of``): a
bit for each stays in the first-level cache, a set for each, 512 KB, in the second.
"""

from __future__ import annotations

import numpy as np

from earshot.indexes.block_trie.kernels.arrays import (
    CODE_COLUMNS,
    N_EXACT_CODES,
    NO_CODE,
    code_of,
    plain_row,
)
from earshot.indexes.block_trie.kernels.batch_arrays import SHORT_OF_SENT
from earshot.indexes.block_trie.kernels.lists import has_token
from earshot.indexes.block_trie.kernels.vectors import (
    GROUP,
    coded_mask,
    first_member,
    n_members,
    tally,
    touched_limits,
)
from earshot.indexes.kernels.blocks import low_bits
from earshot.kernels.box_keys import BLOCK, touching_mask, trailing_zeros
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.kernels.processor import prefetch
from earshot.kernels.shapes import shape_touches_box
from earshot.kernels.verify import box_touches

NO_LIMIT = np.uint64(0x8000_8000_8000_8000)
"""A limit that no key touches but one with 0 in every lane; the bits of it are masked out."""
ONE = np.uint64(1)
BLOCKS_AHEAD = 6
SEVERAL = -1
"""In place of the token that a code stands for."""
MANY_TOKENS = 4096
"""Tokens of a group above which it is faster to clear the tables from end to end."""
CODES_OF_BLOCK = CODE_COLUMNS * BLOCK


@lean_kernel
def walk_roots(view, messages, first, n_root, scratch, work):
    """Match the messages whose Hilbert codes are in order, group by group.

    Returns 0, or what there was no room for.
    """
    low = np.uint64(0xFFFF_FFFF)
    n_sent = np.int64(0)
    for start in range(0, n_root, GROUP):
        size = min(GROUP, n_root - start)
        for k in range(start, start + size):
            scratch.group_rows[k] = np.int64(scratch.codes[k] & low)
        union = enter_limits(scratch.group_rows[start : start + size], scratch)
        n_sent = _walk_together(
            view.arrays, view.clauses, view.is_lonlat, messages, first, start, size, union, n_sent,
            scratch, work,
        )  # fmt: skip
        if n_sent < 0:
            return n_sent
        scratch.group_ends[start // GROUP] = n_sent
    return np.int64(0)


# ---- groups --------------------------------------------------------------------------------------

# Any structure that has a list of all clauses can walk it in groups. What its scratch needs for
# that: limits, group_limits, frontier, block_senders, senders, is_sent and owners; and to count
# answers: sent_to, tallies and group_counts.


@lean_kernel
def enter_limits(rows, scratch):
    """Enter the limits of a group's messages; return that of the box around all of them."""
    lane, union = np.uint64(0x7FFF), NO_LIMIT
    for k in range(GROUP):
        scratch.group_limits[k] = NO_LIMIT
    for k in range(len(rows)):
        limit = scratch.limits[rows[k]]
        scratch.group_limits[k] = limit
        widest = NO_LIMIT
        for shift in range(0, 64, 16):
            s = np.uint64(shift)
            widest |= max(union >> s & lane, limit >> s & lane) << s
        union = widest
    return union


@lean_kernel
def enter_tokens(messages, first, rows, scratch):
    """Enter the tokens of a group's messages into the tables.

    A code that tokens share knows the one that has been entered, or that there are several.
    """
    senders, is_sent, owners = scratch.senders, scratch.is_sent, scratch.owners
    for k in range(len(rows)):
        m = first + np.int64(rows[k])
        bit = ONE << np.uint64(k)
        for p in range(messages.token_offsets[m], messages.token_offsets[m + 1]):
            token = np.int64(messages.token_ids[p])
            code = code_of(token)
            before = senders[code]
            senders[code] = before | bit
            is_sent[code >> 5] |= np.uint32(1) << np.uint32(code & 31)
            if token >= N_EXACT_CODES:
                owner = owners[code - N_EXACT_CODES]
                is_alone = before == 0 or owner == token
                owners[code - N_EXACT_CODES] = token if is_alone else SEVERAL


@lean_kernel
def clear_tokens(messages, first, rows, scratch):
    """Clear what ``enter_tokens`` entered; no code is everybody's."""
    senders, is_sent, offsets = scratch.senders, scratch.is_sent, messages.token_offsets
    n_tokens = np.int64(0)
    for k in range(len(rows)):
        m = first + np.int64(rows[k])
        n_tokens += offsets[m + 1] - offsets[m]
    if n_tokens > MANY_TOKENS:
        senders[:] = 0
        is_sent[:] = 0
    else:
        for k in range(len(rows)):
            m = first + np.int64(rows[k])
            for p in range(offsets[m], offsets[m + 1]):
                code = code_of(np.int64(messages.token_ids[p]))
                senders[code] = 0
                is_sent[code >> 5] = 0
    senders[NO_CODE] = ~np.uint64(0)
    is_sent[NO_CODE >> 5] = np.uint32(1) << np.uint32(NO_CODE & 31)


@lean_kernel
def senders_of(token, some, messages, first, rows, scratch):
    """Return which of some messages have a token; read are only those that a code cannot tell."""
    code = code_of(np.int64(token))
    maybe = some & scratch.senders[code]
    if token < N_EXACT_CODES or maybe == 0:
        return maybe
    owner = scratch.owners[code - N_EXACT_CODES]
    if owner == token:
        return maybe
    if owner != SEVERAL:
        return np.uint64(0)
    left = maybe
    while left != 0:
        member = first_member(left)
        left &= left - ONE
        m = first + np.int64(rows[member])
        tokens = messages.token_ids[messages.token_offsets[m] : messages.token_offsets[m + 1]]
        if not has_token(tokens, token):
            maybe &= ~(ONE << np.uint64(member))
    return maybe


@lean_kernel
def touching_blocks_of_group(n, summary_keys, summary, size, union, scratch, work):
    """Write the blocks of a list that some of a group may touch, and who.

    Otherwise as ``touching_blocks``.
    """
    frontier, members, limits = scratch.frontier, scratch.block_senders, scratch.group_limits
    valid = ~np.uint64(0) if size == GROUP else (ONE << np.uint64(size)) - ONE
    here, there = np.int64(0), np.int64(len(frontier) >> 1)
    frontier[0], members[0] = 0, valid
    if n <= BLOCK:
        return here, np.int64(1)
    n_level, level, depth = (n + BLOCK - 1) // BLOCK, np.int64(summary), 1
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
        n_level = n
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
    frontier, senders, codes = scratch.frontier, scratch.senders, arrays.root_codes
    here, n_blocks = touching_blocks_of_group(
        n_clauses, arrays.summary_keys, arrays.root_summary[0], size, union, scratch, work
    )
    for k in range(size):
        scratch.group_counts[rows[k]] = 0
    if n_blocks == 0:
        return n_sent
    enter_tokens(messages, first, rows, scratch)
    first_sent, n_checks = n_sent, np.int64(0)
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
        position, at = n_clauses + block * BLOCK, block * CODES_OF_BLOCK
        n_candidates += n_members(above) * min(BLOCK, n_clauses - block * BLOCK)
        mask = touching_mask(arrays.keys, position, union) & low_bits(n_clauses - block * BLOCK)
        mask &= coded_mask(codes, at, scratch.is_sent)
        mask &= coded_mask(codes, at + BLOCK, scratch.is_sent)
        to_check = arrays.root_checks[block]
        while mask != 0:
            e = trailing_zeros(mask)
            mask &= mask - np.uint32(1)
            some = above & senders[codes[at + e]] & senders[codes[at + BLOCK + e]]
            if some == 0:
                continue
            some &= senders[codes[at + 2 * BLOCK + e]] & senders[codes[at + 3 * BLOCK + e]]
            if some == 0:
                continue
            entry = position + e
            touched, sure = touched_limits(scratch.group_limits, arrays.keys[entry])
            some &= touched
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
    work[0] += n_visits(scratch.block_senders, here, n_blocks)
    work[1] += n_candidates
    clear_tokens(messages, first, rows, scratch)
    n_written = min(n_sent, len(scratch.sent))
    if len(scratch.seen) > 0:
        for k in range(first_sent, n_written):
            scratch.seen[scratch.sent[k]] = 0
    if n_sent > n_written:
        return np.int64(SHORT_OF_SENT)
    tally_sent(rows, first_sent, n_sent, scratch)
    return n_sent


@lean_kernel
def n_visits(members, here, n_blocks):
    """Return how often blocks are looked at, by each of their messages."""
    n = np.int64(0)
    for k in range(here, here + n_blocks):
        n += n_members(members[k])
    return n


@lean_kernel
def tally_sent(rows, start, stop, scratch):
    """Add what was sent to a group to the counts of its messages."""
    n_tallied = 0
    for k in range(start, stop):
        tally(scratch.sent_to[k], scratch.tallies)
        n_tallied += 1
        if n_tallied == 255:
            _add_tallies(rows, scratch)
            n_tallied = 0
    _add_tallies(rows, scratch)


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
            c = plain_row(entry_rows[checks[k]])
            prefetch(clauses.token_offsets, c)
            prefetch(clauses.shape_rows, c)
            if entry_rows[checks[k]] < 0:
                prefetch(clauses.subscriptions, c)
            if scratch.check_ties[k] != 0:
                prefetch(clauses.boxes, c)
        j = k - step
        if 0 <= j < n_checks:
            c = plain_row(entry_rows[checks[j]])
            prefetch(clauses.token_ids, clauses.token_offsets[c])
            if entry_rows[checks[j]] < 0:
                prefetch(seen, clauses.subscriptions[c])
        j = k - 2 * step
        if j < 0:
            continue
        c, is_several = plain_row(entry_rows[checks[j]]), entry_rows[checks[j]] < 0
        some = scratch.check_senders[j]
        for p in range(clauses.token_offsets[c], clauses.token_offsets[c + 1]):
            token = clauses.token_ids[p]
            named = token if token >= 0 else ~token
            having = senders_of(named, some, messages, first, rows, scratch)
            some &= having if token >= 0 else ~having
            if some == 0:
                break
        slot = _slot_of(arrays, clauses, c)
        if is_several:
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
            if is_several:
                seen[slot] |= some
        n_sent += 1
    return n_sent
