"""Matching a batch at a time: neighbours walk the records together.

:mod:`earshot.indexes.block_lists.batches` describes it. A set of messages is a word, a bit for each
of up to 64. Each block of records that some of them may touch is read once. Records are dropped
whose keys touch none, or whose deciding tokens nobody has, sixteen at a time; of the rest, the sets
of messages that have one of them and touch the box are found by words. Then each token parts the
set in two, those that have it and those that do not. What is left of a record is at most one set
for each part of its text, and all messages of a set have the same score.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.block_lists.kernels.match import (
    ALL,
    ALWAYS,
    BARE,
    BY_PLACE,
    CODE_COLUMNS,
    COMPOUND,
    FLAG_BITS,
    HEAD_COLUMNS,
    MAY_TOUCH,
    MORE,
    N_FLAGS,
    NO_TOKEN,
    OTHER,
    PENDING,
    SLOT,
    START,
    append_block_lists,
    cut_of,
    push,
    report_message,
    report_pending,
)
from earshot.indexes.block_trie.kernels.build import hilbert_index
from earshot.indexes.block_trie.kernels.choosing import sort_pairs
from earshot.indexes.block_trie.kernels.root_groups import (
    BLOCKS_AHEAD,
    clear_tokens,
    enter_limits,
    enter_tokens,
    n_visits,
    senders_of,
    tally_sent,
    touching_blocks_of_group,
)
from earshot.indexes.block_trie.kernels.vectors import (
    GROUP,
    coded_mask,
    first_member,
    n_members,
    touched_limits,
)
from earshot.indexes.kernels.blocks import low_bits, sign_tokens, unsign_tokens
from earshot.indexes.kernels.matching import ScoredAnswers
from earshot.kernels.box_keys import BLOCK, box_limit, touching_mask, trailing_zeros
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.kernels.processor import prefetch
from earshot.kernels.scoring import BOUND_SLACK, message_area
from earshot.kernels.verify import mark_tokens
from earshot.model.arrays import Float64s, Int32s, Int64s

Bits = npt.NDArray[np.uint64]

LOT = 64
"""Records that are scored together, once their tokens are on their way."""
LONG = 64
"""Tokens above which a message is a long one."""
CODES_OF_BLOCK = CODE_COLUMNS * BLOCK

# What there must be more room of before a kernel that is not done is called again.
SHORT_OF_FOUND, SHORT_OF_SENT, SHORT_OF_CHECKS, SHORT_OF_CHECKED = -1, -2, -3, -4


class GroupsScratch(NamedTuple):
    """Working memory of one thread, for up to ``len(limits)`` messages at a time."""

    limits: Bits  # (n,) by row
    codes: Bits  # (n,) Hilbert codes, rows in the low half
    other_codes: Bits  # (n,)
    counts: Int64s  # of digits, for sorting
    single_rows: Int32s  # (n,) rows that are matched one by one
    group_rows: Int32s  # (n,) and in groups, group by group
    # A group; as in the batches of the block trie.
    group_limits: Bits  # (GROUP,)
    frontier: Int32s  # two halves, each for the blocks of one level of all records
    block_senders: Bits  # as long as the frontier
    senders: Bits  # (N_CODES,)
    is_sent: npt.NDArray[np.uint32]  # (N_CODES / 32,)
    owners: Int32s  # (N_CODES / 2,)
    tallies: npt.NDArray[np.uint8]  # (GROUP,)
    cursors: Int64s  # (GROUP,)
    # Records that are about to be scored.
    lot: Int32s  # (LOT,)
    lot_senders: Bits  # (LOT,) messages that may reach each
    lot_sure: Bits  # (LOT,) messages that surely touch it
    sets: Bits  # (GROUP,) messages by what they have of a record's tokens
    shares: Float64s  # (GROUP,) weight of that
    # Answers of groups.
    sent: Int32s  # slots that some of a group get
    sent_to: Bits  # which
    sent_scores: Float64s
    group_ends: Int64s  # (n,) where those of each group end
    group_counts: Int64s  # (n,) answers of each message by row
    # What is left to verify message by message.
    checks: Int32s  # records
    check_senders: Bits  # messages of a group
    check_ends: Int64s  # (n,) where those of each group end
    checked: Int32s  # records, message by message
    checked_offsets: Int64s  # (n + 2,)
    # Answers of single messages, and of what was left to verify.
    found_slots: Int32s
    found_scores: Float64s
    run_starts: Int64s  # (n,) by row
    run_ends: Int64s  # (n,)


# ---- order ---------------------------------------------------------------------------------------


@inlined_kernel
def can_be_grouped(box):
    """Whether a message has no area, so that it touches a region or does not."""
    return box[0] <= box[2] and message_area(box) == 0.0


@lean_kernel
def enter_places(arrays, boxes, first, step, n, scratch):
    """Fill limits of messages ``first``, ``first + step`` …, and sort rows along a curve."""
    for i in range(n):
        box = boxes[first + i * step]
        # One that is not grouped has a limit to be sorted by, and no other use for it.
        limit = box_limit(arrays.quantizer, box[0], box[1], max(box[0], box[2]), box[3])
        scratch.limits[i] = limit
        x = np.int64(limit >> np.uint64(1) & np.uint64(0x3FFF))
        y = np.int64(limit >> np.uint64(17) & np.uint64(0x3FFF))
        scratch.codes[i] = np.uint64(hilbert_index(x, y)) << np.uint64(32) | np.uint64(i)
    sort_pairs(scratch.codes, scratch.other_codes, n, 38, 60, scratch.counts)


@lean_kernel
def _part(messages, first, n, are_grouped, scratch):
    """Part the rows into single and grouped ones, in order; return how many are grouped.

    ``are_grouped`` tells of short messages and of long ones.
    """
    n_single, n_grouped = 0, 0
    for k in range(n):
        i = np.int64(scratch.codes[k] & np.uint64(0xFFFF_FFFF))
        n_tokens = messages.token_offsets[first + i + 1] - messages.token_offsets[first + i]
        is_grouped = are_grouped[1 if n_tokens > LONG else 0] != 0
        if is_grouped and can_be_grouped(messages.boxes[first + i]):
            scratch.group_rows[n_grouped] = i
            n_grouped += 1
        else:
            scratch.single_rows[n_single] = i
            n_single += 1
    return n_grouped


# ---- groups --------------------------------------------------------------------------------------


@lean_kernel
def _score_lot(arrays, messages, first, rows, n_lot, n_sent, n_checks, scratch):
    """Score the records of a lot; return the numbers of answers sent and of checks.

    Both are counted further where there is no room for them.
    """
    heads, data = arrays.record_heads, arrays.record_data
    sets, shares, alpha = scratch.sets, scratch.shares, arrays.scoring.alpha[0]
    for k in range(n_lot):
        at = 2 * np.int64(heads[np.int64(scratch.lot[k]) * HEAD_COLUMNS + START])
        prefetch(data, at)
        prefetch(data, at + 5)
    for k in range(n_lot):
        r, some, sure = np.int64(scratch.lot[k]), scratch.lot_senders[k], scratch.lot_sure[k]
        head = r * HEAD_COLUMNS
        flags = heads[head + N_FLAGS]
        if flags & COMPOUND != 0:
            n_checks = _check(r, some, n_checks, scratch)
            continue
        if flags & MORE != 0:
            sure = np.uint64(0)
        at = 2 * np.int64(heads[head + START])
        stop = at + 2 * np.int64(flags >> FLAG_BITS)
        n_sets = 1
        sets[0], shares[0] = some, 0.0
        total = 0.0
        while at < stop:
            # In the order of a single message, so that sums are equal to the last bit.
            weight = data[at + 1]
            total += weight
            having = senders_of(np.int32(data[at]), some, messages, first, rows, scratch)
            at += 2
            if having == 0:
                continue
            for j in range(n_sets):
                those, others = sets[j] & having, sets[j] & ~having
                if those == 0:
                    continue
                if others != 0:
                    sets[n_sets], shares[n_sets] = others, shares[j]
                    n_sets += 1
                sets[j] = those
                shares[j] += weight
        cut = cut_of(arrays.record_cuts, r)
        for j in range(n_sets):
            textual = min(shares[j] / total, 1.0)
            # Those that the text alone qualifies are reported from far lists.
            if (1.0 - alpha) * textual >= cut > BOUND_SLACK:
                continue
            score = min(alpha * 1.0 + (1.0 - alpha) * textual, 1.0)
            if score < cut:
                continue
            unsure = sets[j] & ~sure
            if unsure != 0:
                n_checks = _check(r, unsure, n_checks, scratch)
            if unsure != sets[j]:
                if n_sent < len(scratch.sent):
                    scratch.sent[n_sent] = heads[head + SLOT]
                    scratch.sent_to[n_sent] = sets[j] & sure
                    scratch.sent_scores[n_sent] = score
                n_sent += 1
    return n_sent, n_checks


@inlined_kernel
def _check(r, some, n_checks, scratch):
    if n_checks < len(scratch.checks):
        scratch.checks[n_checks] = r
        scratch.check_senders[n_checks] = some
    return n_checks + 1


@lean_kernel
def _walk_together(arrays, messages, first, rows, phase, union, n_sent, n_checks, scratch, work):
    """Match a group with the records of one group of them; return as ``_score_lot``."""
    start, n = arrays.group_starts[phase], arrays.group_starts[phase + 1]
    n -= start
    keys, codes, heads = arrays.record_keys, arrays.record_codes, arrays.record_heads
    frontier, senders, is_sent = scratch.frontier, scratch.senders, scratch.is_sent
    here, n_blocks = touching_blocks_of_group(
        n, arrays.summary_keys, arrays.record_summaries[phase], len(rows), union, scratch, work
    )
    has_codes = phase == OTHER
    n_lot, n_candidates = 0, np.int64(0)
    for k in range(n_blocks):
        if k + BLOCKS_AHEAD < n_blocks:
            ahead = np.int64(frontier[here + k + BLOCKS_AHEAD])
            prefetch(keys, start + ahead * BLOCK)
            prefetch(keys, start + ahead * BLOCK + 8)
            if has_codes:
                prefetch(codes, ahead * CODES_OF_BLOCK)
                prefetch(codes, ahead * CODES_OF_BLOCK + 2 * BLOCK)
        block, above = np.int64(frontier[here + k]), scratch.block_senders[here + k]
        position, at = start + block * BLOCK, block * CODES_OF_BLOCK
        n_candidates += n_members(above) * min(BLOCK, n - block * BLOCK)
        mask = touching_mask(keys, position, union) & low_bits(n - block * BLOCK)
        if has_codes:
            mask &= (
                coded_mask(codes, at, is_sent)
                | coded_mask(codes, at + BLOCK, is_sent)
                | coded_mask(codes, at + 2 * BLOCK, is_sent)
                | coded_mask(codes, at + 3 * BLOCK, is_sent)
            )
        while mask != 0:
            e = trailing_zeros(mask)
            mask &= mask - np.uint32(1)
            some = above
            if has_codes:
                some &= (
                    senders[codes[at + e]]
                    | senders[codes[at + BLOCK + e]]
                    | senders[codes[at + 2 * BLOCK + e]]
                    | senders[codes[at + 3 * BLOCK + e]]
                )
                if some == 0:
                    continue
            touched, sure = touched_limits(scratch.group_limits, keys[position + e])
            some &= touched
            if some == 0:
                continue
            prefetch(heads, (position + e) * HEAD_COLUMNS)
            scratch.lot[n_lot] = position + e
            scratch.lot_senders[n_lot] = some
            scratch.lot_sure[n_lot] = sure
            n_lot += 1
            if n_lot == LOT:
                n_sent, n_checks = _score_lot(
                    arrays, messages, first, rows, n_lot, n_sent, n_checks, scratch
                )
                n_lot = 0
    work[0] += n_visits(scratch.block_senders, here, n_blocks)
    work[1] += n_candidates
    return _score_lot(arrays, messages, first, rows, n_lot, n_sent, n_checks, scratch)


@lean_kernel
def is_walked(arrays, phase):
    """Whether groups have something to find among the records of a group of them."""
    has_records = arrays.group_starts[phase] < arrays.group_starts[phase + 1]
    return has_records and (phase != OTHER or len(arrays.near_records) > 0)


@lean_kernel
def _walk_groups(arrays, messages, first, n_grouped, scratch, work):
    """Match grouped messages; return the number of checks, or what there was no room for."""
    n_sent, n_checks = np.int64(0), np.int64(0)
    for start in range(0, n_grouped, GROUP):
        rows = scratch.group_rows[start : min(start + GROUP, n_grouped)]
        for k in range(len(rows)):
            scratch.group_counts[rows[k]] = 0
        union = enter_limits(rows, scratch)
        enter_tokens(messages, first, rows, scratch)
        first_sent = n_sent
        for phase in (BARE, OTHER):
            if is_walked(arrays, phase):
                n_sent, n_checks = _walk_together(
                    arrays, messages, first, rows, phase, union, n_sent, n_checks, scratch, work
                )
        clear_tokens(messages, first, rows, scratch)
        if n_sent > len(scratch.sent):
            return np.int64(SHORT_OF_SENT)
        if n_checks > len(scratch.checks):
            return np.int64(SHORT_OF_CHECKS)
        tally_sent(rows, first_sent, n_sent, scratch)
        scratch.group_ends[start // GROUP] = n_sent
        scratch.check_ends[start // GROUP] = n_checks
    return n_checks


@lean_kernel
def _deal_checks(n, n_grouped, scratch):
    """Bring the records that are left to verify into the order of messages; return their number.

    They are not written where there is no room for them.
    """
    offsets, group_rows, one = scratch.checked_offsets, scratch.group_rows, np.uint64(1)
    for i in range(n + 2):
        offsets[i] = 0
    for is_counting in (True, False):
        start = np.int64(0)
        for row in range(0, n_grouped, GROUP):
            stop = scratch.check_ends[row // GROUP]
            for k in range(start, stop):
                left = scratch.check_senders[k]
                while left != 0:
                    i = group_rows[row + first_member(left)]
                    left &= left - one
                    if is_counting:
                        offsets[i + 2] += 1
                    else:
                        scratch.checked[offsets[i + 1]] = scratch.checks[k]
                        offsets[i + 1] += 1
            start = stop
        if is_counting:
            for i in range(n):
                offsets[i + 2] += offsets[i + 1]
            if offsets[n + 1] > len(scratch.checked):
                break
    return offsets[n + 1]


# ---- messages one by one -------------------------------------------------------------------------


@lean_kernel
def _verify_checks(view, records, box, single, answers, n_answers):
    """Verify records that a message of a group may touch; return as ``_report_rest``."""
    n_pending = np.int64(0)
    for k in range(len(records)):
        n_pending = push(single, n_pending, records[k], MAY_TOUCH, NO_TOKEN)
        if n_pending == PENDING or k + 1 == len(records):
            if n_answers + n_pending > len(answers.slots):
                return np.int64(-1)
            n_answers = report_pending(
                view.arrays, view.clauses, view.is_lonlat, n_pending, box, 0.0, single, answers,
                n_answers,
            )  # fmt: skip
            n_pending = np.int64(0)
    return n_answers


@lean_kernel
def _report_rest(view, tokens, box, records, has_rest, single, answers, n_answers, work):
    """Append what the walk of its group left to a message; return as ``append_block_lists``."""
    if len(records) == 0 and not has_rest:
        return n_answers
    mark_tokens(tokens, 0, len(tokens), single.marks, 1)
    sign_tokens(tokens, single.signature)
    n_answers = _verify_checks(view, records, box, single, answers, n_answers)
    if n_answers >= 0 and has_rest:
        n_answers = report_message(
            view.arrays, view.clauses, view.is_lonlat, tokens, box, ALL & ~BY_PLACE, single,
            answers, n_answers, work,
        )  # fmt: skip
    mark_tokens(tokens, 0, len(tokens), single.marks, 0)
    unsign_tokens(tokens, single.signature)
    return n_answers


@lean_kernel
def find_answers(view, messages, first, n, are_grouped, scratch, single, offsets, work):
    """Find the answers of ``n`` messages from ``first`` on, but leave them where they are.

    Sets ``offsets`` beyond the first, which must be set. Returns how many of the messages are in
    groups, or what there was no room for; then nothing is left behind, and the call may be made
    again. ``single`` is the scratch of single messages.
    """
    arrays = view.arrays
    n_nodes, n_candidates = work[0], work[1]
    enter_places(arrays, messages.boxes, first, 1, n, scratch)
    n_grouped = _part(messages, first, n, are_grouped, scratch)
    for i in range(n):
        scratch.group_counts[i] = 0
    status = _walk_groups(arrays, messages, first, n_grouped, scratch, work)
    if status >= 0 and _deal_checks(n, n_grouped, scratch) > len(scratch.checked):
        status = np.int64(SHORT_OF_CHECKED)
    has_rest = (
        arrays.group_starts[ALWAYS] < arrays.group_starts[BARE]
        or len(arrays.sure_records) > 0
        or len(arrays.far_records) > 0
    )
    found = ScoredAnswers(scratch.found_slots, scratch.found_scores)
    n_found = np.int64(0)
    for k in range(n if status >= 0 else 0):
        is_grouped = k < n_grouped
        i = np.int64(scratch.group_rows[k] if is_grouped else scratch.single_rows[k - n_grouped])
        tokens = messages.token_ids[
            messages.token_offsets[first + i] : messages.token_offsets[first + i + 1]
        ]
        box = messages.boxes[first + i]
        scratch.run_starts[i] = n_found
        single.serial[0] += 1
        if is_grouped:
            records = scratch.checked[scratch.checked_offsets[i] : scratch.checked_offsets[i + 1]]
            n_found = _report_rest(
                view, tokens, box, records, has_rest, single, found, n_found, work
            )
        else:
            n_found = append_block_lists(view, tokens, box, single, found, n_found, work)
        if n_found < 0:
            status = np.int64(SHORT_OF_FOUND)
            break
        scratch.run_ends[i] = n_found
    if status < 0:
        work[0], work[1] = n_nodes, n_candidates
        return status
    for i in range(n):
        n_run = scratch.run_ends[i] - scratch.run_starts[i]
        offsets[i + 1] = offsets[i] + scratch.group_counts[i] + n_run
    return np.int64(n_grouped)


@lean_kernel
def place_answers(n, n_grouped, scratch, offsets, answers):
    """Copy the answers of ``n`` messages to where the offsets say."""
    for i in range(n):
        at = offsets[i + 1]
        for k in range(scratch.run_ends[i] - 1, scratch.run_starts[i] - 1, -1):
            at -= 1
            answers.slots[at] = scratch.found_slots[k]
            answers.scores[at] = scratch.found_scores[k]
    cursors, one = scratch.cursors, np.uint64(1)
    start = np.int64(0)
    for row in range(0, n_grouped, GROUP):
        for k in range(min(GROUP, n_grouped - row)):
            cursors[k] = offsets[scratch.group_rows[row + k]]
        stop = scratch.group_ends[row // GROUP]
        for k in range(start, stop):
            slot, score, left = scratch.sent[k], scratch.sent_scores[k], scratch.sent_to[k]
            while left != 0:
                member = first_member(left)
                left &= left - one
                answers.slots[cursors[member]] = slot
                answers.scores[cursors[member]] = score
                cursors[member] += 1
        start = stop
