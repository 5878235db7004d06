"""Arrays and matching of the block lists, which ``index.py`` beside this folder describes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.kernels.blocks import (
    has_token,
    low_bits,
    sign_tokens,
    touching_blocks,
    touching_keys,
    unsign_tokens,
)
from earshot.indexes.kernels.matching import appends_answers
from earshot.kernels.box_keys import (
    BLOCK,
    Quantizer,
    box_limit,
    key_touches,
    strict_limit,
    touching_mask,
    trailing_zeros,
)
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.kernels.processor import prefetch
from earshot.kernels.scoring import (
    BOUND_SLACK,
    ScoringArrays,
    box_touches_message,
    delivered_score,
    message_area,
    overlap_area,
)
from earshot.kernels.searching import first_at_least
from earshot.kernels.verify import mark_tokens
from earshot.model.arrays import Float64s, Int32s, Int64s

# Columns of ``record_heads``: where its tokens begin in ``record_data`` (counted in tokens), how
# many they are above the bits of the flags, the slot, the clause.
START, N_FLAGS, SLOT, CLAUSE = range(4)
HEAD_COLUMNS = 4
CODE_COLUMNS = 4
FLAG_BITS = 4
# Flags.
COMPOUND = 1  # the slot has several clauses
MORE = 2  # forbidden tokens, or a shape
UNMEASURED = 4  # touching alone decides
DEAD = 8

APART, MAY_TOUCH, TOUCHES = range(3)
"""What keys can tell of a box and a message's."""
TOUCH_BITS = 3
FAR = 4  # in pending_touch: found in a sure or far list

ALWAYS, BARE, OTHER = range(3)
"""Groups of records: those that any message reaches, any that touches, and the others.

They are also the first phases of matching; OTHER by the records or by near lists."""
SURE, N_PHASES = 3, 5
ALL = (1 << N_PHASES) - 1
BY_PLACE = 1 << BARE | 1 << OTHER
"""Sets of phases."""

PENDING = 256
"""Entries that are verified together; their cache lines fit the second-level cache, and nearly the
first."""
RECORD_BLOCKS_PER_TOKEN = 1.0
"""Blocks of the others' records that cost about as much as the near list of one token.

Tried 0, 1, 2, 5, 10, 20 and 50 on six workloads at 1 M subscriptions with alpha 0.5: a threshold of
0.9 wants 0 or 1 (5 costs short messages up to 40 %), one of 0.6 wants 1 to 5.
"""
LONG_MESSAGE = 128.0
"""Tokens at which a message's budget per token has doubled."""
NO_TOKEN = np.int32(-1)


class BlockListsArrays(NamedTuple):
    """Records in spatial order, lists of them per token, and summaries over both."""

    scoring: ScoringArrays
    quantizer: Quantizer
    # Records: clauses, group by group, each group in spatial order.
    group_starts: Int64s  # (4,) records of group g are [g]:[g+1]
    record_heads: Int32s  # (n_clauses * HEAD_COLUMNS,)
    record_cuts: Float64s  # (n_clauses,) as in scoring, or (1,) where all are equal
    record_boxes: Float64s  # (n_clauses, 4)
    # For each required token, heaviest first: its id, and its weight divided by the clause's total.
    # Both as floats in one array, so that a record's tokens take one miss of the cache, not two.
    record_data: Float64s  # (2 * n_required,)
    record_keys: npt.NDArray[np.uint64]  # (n_clauses + BLOCK,)
    record_summaries: Int64s  # (3,) where the summary keys of each group begin
    # Codes (``code_of``) of the tokens of near lists that the group OTHER stands in, block by
    # block: of the first tokens, then of the second, and so on. Where a record has fewer, that of
    # its first again; where it has more, NO_CODE is among them.
    record_codes: npt.NDArray[np.uint16]  # (n_blocks * BLOCK * CODE_COLUMNS,)
    group_needed: Float64s  # (3,) area that a range message must have to reach any of a group
    # Near lists: what a message that touches the box finds by a token.
    near_offsets: Int64s  # (n_tokens + 1,) list of token t is [t]:[t+1]
    near_summaries: Int64s  # (n_tokens,) where its summary keys begin
    near_keys: npt.NDArray[np.uint64]  # (n_near + BLOCK,)
    near_records: Int32s  # (n_near,)
    near_tokens: Int32s  # (n_near,) another token that the message must have, or -1
    near_needed: npt.NDArray[np.float32]  # (n_near,) area that a range message must have
    near_least: npt.NDArray[np.float32]  # (n_tokens,) smallest of them in each list
    # Sure lists: what any message with the token, and the other one if there is one, matches by
    # all of its text.
    sure_offsets: Int64s  # (n_tokens + 1,)
    sure_keys: npt.NDArray[np.uint64]  # (n_sure + BLOCK,)
    sure_records: Int32s  # (n_sure,)
    sure_slots: Int32s  # (n_sure,) -1 once it is removed
    sure_tokens: Int32s  # (n_sure,) the other token, or -1; ascending in each list
    # Far lists: what else any message finds by a token.
    far_offsets: Int64s  # (n_tokens + 1,)
    far_keys: npt.NDArray[np.uint64]  # (n_far,)
    far_records: Int32s  # (n_far,)
    far_tokens: Int32s  # (n_far,) as for near lists; ascending in each list
    summary_keys: npt.NDArray[np.uint64]  # (n_summaries + BLOCK,) lowest level first, list by list
    longest_list: Int64s  # (1,) of near lists and groups


class BlockListsScratch(NamedTuple):
    """Working memory of one matching thread."""

    marks: npt.NDArray[np.uint8]  # (n_tokens,)
    serial: Int64s  # (1,)
    last_seen: Int64s  # (n_slots,) as in SlotScratch
    signature: npt.NDArray[np.uint64]  # (SIGNATURE_WORDS,)
    pending: Int32s  # (PENDING,) records to verify
    pending_touch: npt.NDArray[np.uint8]  # (PENDING,) what their keys tell, and FAR
    pending_tokens: Int32s  # (PENDING,) token that led to each, -1 for none
    cursor: Int64s  # (4,) where collecting goes on
    frontier: Int32s  # two halves, each for the blocks of one level of the longest list
    n_verified: Int64s  # (1,) pending records that were verified so far


# ---- one record ---------------------------------------------------------------------------------


@lean_kernel
def cut_of(cuts, r):
    """Return the least score of a record that is delivered."""
    return cuts[r] if len(cuts) > 1 else cuts[0]


@lean_kernel
def _textual_share(data, start, n, token, signature, marks):
    """Return a record's textual score; -1 if ``token`` >= 0 is not its first in the message."""
    found = total = 0.0
    is_first = True
    for i in range(2 * start, 2 * (start + n), 2):
        mine = np.int32(data[i])
        total += data[i + 1]
        if has_token(mine, signature, marks):
            if is_first and token >= 0 and mine != token:
                return -1.0
            is_first = False
            found += data[i + 1]
    return min(found / total, 1.0)


@lean_kernel
def _spatial_share(boxes, r, flags, touch, box, box_area):
    """Return the spatial score of a record that is a plain box and its slot's only clause."""
    if touch == APART or (touch == MAY_TOUCH and not box_touches_message(boxes, r, box)):
        return 0.0
    if box_area == 0.0 or flags & UNMEASURED != 0:
        return 1.0
    area = (boxes[r, 2] - boxes[r, 0]) * (boxes[r, 3] - boxes[r, 1])
    return min(overlap_area(boxes, r, box) / area, 1.0)


# ---- verifying ----------------------------------------------------------------------------------


@lean_kernel
def push(scratch, n_pending, r, touch, token):
    """Put a record among the pending ones; return how many they are."""
    scratch.pending[n_pending] = r
    scratch.pending_touch[n_pending] = touch
    scratch.pending_tokens[n_pending] = token
    return n_pending + 1


@lean_kernel
def _special_score(arrays, clauses, is_lonlat, head, box, box_area, scratch):
    """Return the score of a record with more than tokens and a box; -1 if it is not delivered."""
    clause, slot = arrays.record_heads[head + CLAUSE], arrays.record_heads[head + SLOT]
    return delivered_score(
        arrays.scoring, clauses, clause, slot, scratch.marks, is_lonlat, box, box_area,
        scratch.last_seen, scratch.serial[0],
    )  # fmt: skip


@lean_kernel
def report_pending(
    arrays, clauses, is_lonlat, n_pending, box, box_area, scratch, answers, n_answers
):
    """Verify the pending records; return the number of answers. There must be room for all.

    Records lie scattered, and a miss of the cache costs as much as a hundred comparisons. They are
    therefore verified in steps, each of which only asks for what the next one reads. What most
    records need is written out here: a call that takes all the arrays costs about 100 ns.
    """
    pending, touches, tokens = scratch.pending, scratch.pending_touch, scratch.pending_tokens
    heads, boxes, data, cuts = (
        arrays.record_heads, arrays.record_boxes, arrays.record_data, arrays.record_cuts,
    )  # fmt: skip
    alpha = arrays.scoring.alpha[0]
    cut = cuts[0] if len(cuts) > 0 else 0.0
    for k in range(n_pending):
        r = np.int64(pending[k])
        prefetch(heads, r * HEAD_COLUMNS)
        touch = touches[k] & TOUCH_BITS
        if touch == MAY_TOUCH or (touch == TOUCHES and box_area > 0.0):
            prefetch(boxes, r)
    for k in range(n_pending):
        start = np.int64(heads[np.int64(pending[k]) * HEAD_COLUMNS + START])
        prefetch(data, 2 * start)
        prefetch(data, 2 * start + 5)
    for k in range(n_pending):
        r = np.int64(pending[k])
        head = r * HEAD_COLUMNS
        flags = heads[head + N_FLAGS]
        if flags & (COMPOUND | DEAD) != 0:
            score = -1.0
            if flags & DEAD == 0:
                score = _special_score(arrays, clauses, is_lonlat, head, box, box_area, scratch)
        else:
            textual = _textual_share(
                data, np.int64(heads[head + START]), np.int64(flags >> FLAG_BITS), tokens[k],
                scratch.signature, scratch.marks,
            )  # fmt: skip
            if len(cuts) > 1:
                cut = cuts[r]
            # Those that the text alone qualifies are reported from far lists, the others not.
            is_alone = (1.0 - alpha) * textual >= cut
            if textual < 0.0 or (is_alone != (touches[k] & FAR != 0) and cut > BOUND_SLACK):
                continue
            if flags & MORE != 0:
                score = _special_score(arrays, clauses, is_lonlat, head, box, box_area, scratch)
            else:
                spatial = _spatial_share(boxes, r, flags, touches[k] & TOUCH_BITS, box, box_area)
                score = min(alpha * spatial + (1.0 - alpha) * textual, 1.0)
                if score < cut:
                    continue
        if score >= 0.0:
            answers.slots[n_answers] = heads[head + SLOT]
            answers.scores[n_answers] = score
            n_answers += 1
    return n_answers


# ---- collecting ---------------------------------------------------------------------------------

# Each of these puts what a message may match among the pending records, from where the cursor is
# until there is no room for a block more. It leaves the cursor where to go on; cursor[0] is -1 when
# nothing is left. Returns the number of pending records.


@lean_kernel
def _collect_always(n, scratch, n_pending, work):
    """Collect the records that any message reaches unless they are out."""
    cursor = scratch.cursor
    first = cursor[0]
    last = min(n, first + PENDING - n_pending)
    for r in range(first, last):
        n_pending = push(scratch, n_pending, r, MAY_TOUCH, NO_TOKEN)
    work[1] += last - first
    cursor[0] = last if last < n else -1
    return n_pending


@lean_kernel
def _collect_blocks(
    arrays, start, n, blocks, box, limit, strict, box_area, scratch, n_pending, work
):
    """Collect the touching records of some blocks of a group."""
    keys, heads, boxes = arrays.record_keys, arrays.record_heads, arrays.record_boxes
    alpha, cursor = arrays.scoring.alpha[0], scratch.cursor
    for k in range(cursor[0], len(blocks)):
        if n_pending + BLOCK > PENDING:
            cursor[0] = k
            return n_pending
        work[0] += 1
        first, mask = touching_keys(keys, keys, start, n, blocks, k, limit, work)
        while mask != 0:
            r = first + trailing_zeros(mask)
            mask &= mask - np.uint32(1)
            touch = TOUCHES if key_touches(keys[r], strict) else MAY_TOUCH
            if box_area > 0.0:
                flags = heads[r * HEAD_COLUMNS + N_FLAGS]
                if flags & (COMPOUND | MORE) == 0:
                    spatial = _spatial_share(boxes, r, flags, touch, box, box_area)
                    if (
                        alpha * spatial + (1.0 - alpha)
                        < cut_of(arrays.record_cuts, r) - BOUND_SLACK
                    ):
                        continue
            n_pending = push(scratch, n_pending, r, touch, NO_TOKEN)
    cursor[0] = -1
    return n_pending


@lean_kernel
def _collect_near(arrays, message_tokens, limit, strict, box_area, scratch, n_pending, work):
    """Collect what the near lists of the message's tokens lead to."""
    keys, near_tokens, needed = arrays.near_keys, arrays.near_tokens, arrays.near_needed
    marks, signature, frontier = scratch.marks, scratch.signature, scratch.frontier
    cursor = scratch.cursor
    everything = np.int64(1) << 40
    for i in range(cursor[0], len(message_tokens)):
        token = message_tokens[i]
        if token >= len(arrays.near_summaries):
            continue
        start = arrays.near_offsets[token]
        n = arrays.near_offsets[token + 1] - start
        if n == 0 or (box_area > 0.0 and box_area < arrays.near_least[token]):
            continue
        here, n_blocks = touching_blocks(
            n, arrays.summary_keys, arrays.near_summaries[token], limit, frontier, everything, work
        )
        blocks = frontier[here : here + n_blocks]
        for k in range(cursor[1], n_blocks):
            if n_pending + BLOCK > PENDING:
                cursor[0], cursor[1] = i, k
                return n_pending
            work[0] += 1
            first, mask = touching_keys(keys, near_tokens, start, n, blocks, k, limit, work)
            while mask != 0:
                entry = first + trailing_zeros(mask)
                mask &= mask - np.uint32(1)
                other = near_tokens[entry]
                if other >= 0 and not has_token(other, signature, marks):
                    continue
                if box_area > 0.0 and box_area < needed[entry]:
                    continue
                touch = TOUCHES if key_touches(keys[entry], strict) else MAY_TOUCH
                n_pending = push(scratch, n_pending, arrays.near_records[entry], touch, token)
        cursor[1] = 0
    cursor[0] = -1
    return n_pending


@lean_kernel
def _find_run(tokens, start, stop, message_tokens, cursor, signature, marks):
    """Set the cursor to the next run of entries whose other token is in the message.

    ``tokens`` ascend from ``start`` to ``stop``; -1, for no other token, comes first. Entries
    cursor[1] to cursor[2] are the run, empty when there is none left. cursor[3] counts rounds: a
    long list is asked once for -1 and once for each of the message's tokens, a short one is gone
    through.
    """
    if stop - start > 16 * len(message_tokens):
        while cursor[3] <= len(message_tokens):
            wanted = NO_TOKEN if cursor[3] == 0 else message_tokens[cursor[3] - 1]
            cursor[3] += 1
            first = first_at_least(tokens, start, stop, wanted)
            last = first_at_least(tokens, first, stop, wanted + 1)
            if first < last:
                cursor[1], cursor[2] = first, last
                return
        cursor[1], cursor[2] = stop, stop
        return
    first = start if cursor[3] == 0 else cursor[2]
    cursor[3] = 1
    while first < stop and tokens[first] >= 0 and not has_token(tokens[first], signature, marks):
        first += 1
    last = first
    while last < stop and tokens[last] == tokens[first]:
        last += 1
    cursor[1], cursor[2] = first, last


@lean_kernel
def _has_run(tokens, start, stop, message_tokens, scratch, work):
    """Whether the cursor is in a run, or has been set to the next one."""
    cursor = scratch.cursor
    if cursor[1] == cursor[2]:
        work[0] += 1
        _find_run(tokens, start, stop, message_tokens, cursor, scratch.signature, scratch.marks)
    return cursor[1] != stop


@lean_kernel
def _collect_far(
    offsets, tokens, keys, records, message_tokens, limit, strict, scratch, n_pending, work
):
    """Collect what the far lists of the message's tokens lead to."""
    cursor = scratch.cursor
    for i in range(cursor[0], len(message_tokens)):
        token = message_tokens[i]
        if token + 1 >= len(offsets) or offsets[token] == offsets[token + 1]:
            continue
        start, stop = offsets[token], offsets[token + 1]
        while _has_run(tokens, start, stop, message_tokens, scratch, work):
            last = min(cursor[2], cursor[1] + PENDING - n_pending)
            work[1] += last - cursor[1]
            for entry in range(cursor[1], last):
                touch = APART
                if key_touches(keys[entry], limit):
                    touch = TOUCHES if key_touches(keys[entry], strict) else MAY_TOUCH
                n_pending = push(scratch, n_pending, records[entry], touch | FAR, token)
            cursor[1] = last
            if last < cursor[2]:
                cursor[0] = i
                return n_pending
        cursor[1:4] = 0
    cursor[0] = -1
    return n_pending


@lean_kernel
def _report_sure(arrays, message_tokens, limit, scratch, n_pending, answers, n_answers, work):
    """Report what the sure lists hold far from the message, and collect what may touch it.

    Returns the number of answers, or -1 if there is no room for them, and that of pending records.
    """
    keys, slots, tokens = arrays.sure_keys, arrays.sure_slots, arrays.sure_tokens
    offsets, cursor = arrays.sure_offsets, scratch.cursor
    score = 1.0 - arrays.scoring.alpha[0]
    for i in range(cursor[0], len(message_tokens)):
        token = message_tokens[i]
        if token + 1 >= len(offsets) or offsets[token] == offsets[token + 1]:
            continue
        start, stop = offsets[token], offsets[token + 1]
        while _has_run(tokens, start, stop, message_tokens, scratch, work):
            last = cursor[2]
            if n_answers + n_pending + last - cursor[1] > len(answers.slots):
                return np.int64(-1), n_pending
            for block in range(cursor[1], last, BLOCK):
                if n_pending + BLOCK > PENDING:
                    cursor[0], cursor[1] = i, block
                    return n_answers, n_pending
                work[1] += min(BLOCK, last - block)
                mask = touching_mask(keys, block, limit) & low_bits(last - block)
                for entry in range(block, min(block + BLOCK, last)):
                    # Written first, and kept only if it is one; a branch would cost more.
                    answers.slots[n_answers] = slots[entry]
                    answers.scores[n_answers] = score
                    is_apart = ~(mask >> np.uint32(entry - block)) & np.uint32(1)
                    n_answers += np.int64(is_apart) & np.int64(slots[entry] >= 0)
                while mask != 0:
                    r = arrays.sure_records[block + trailing_zeros(mask)]
                    n_pending = push(scratch, n_pending, r, MAY_TOUCH | FAR, NO_TOKEN)
                    mask &= mask - np.uint32(1)
            cursor[1] = last
        cursor[1:4] = 0
    cursor[0] = -1
    return n_answers, n_pending


# ---- one message --------------------------------------------------------------------------------


@lean_kernel
def report_message(
    arrays, clauses, is_lonlat, message_tokens, box, phases, scratch, answers, n_answers, work
):
    """Append one message's answers; return their new number, or -1 when there is no room.

    ``phases`` has a bit for each that is wanted.
    """
    starts, frontier, cursor = arrays.group_starts, scratch.frontier, scratch.cursor
    box_area = message_area(box)
    if box[0] <= box[2]:
        limit = box_limit(arrays.quantizer, box[0], box[1], box[2], box[3])
        strict = strict_limit(limit)
    else:
        # The band around the world holds both parts, but what touches it need not touch them.
        limit = box_limit(arrays.quantizer, -180.0, box[1], 180.0, box[3])
        strict = box_limit(arrays.quantizer, np.inf, np.inf, -np.inf, -np.inf)
    n_pending = np.int64(0)
    phase = 0
    cursor[:] = 0
    here, n_blocks = np.int64(0), np.int64(-2)
    while phase < N_PHASES:
        if phases >> phase & 1 == 0:
            cursor[0] = -1
        elif phase == ALWAYS:
            n_pending = _collect_always(starts[BARE], scratch, n_pending, work)
        elif phase <= OTHER:
            start, n = starts[phase], starts[phase + 1] - starts[phase]
            is_too_small = box_area > 0.0 and box_area < arrays.group_needed[phase]
            is_empty = n == 0 or (phase == OTHER and len(arrays.near_records) == 0)
            if is_empty or is_too_small:
                cursor[0] = -1
            elif n_blocks == -2:
                # By place or by text, whichever is cheaper, as [CIKM15] chooses per message. Bare
                # records are only found by their place.
                n_tokens = len(message_tokens)
                budget = np.int64(
                    RECORD_BLOCKS_PER_TOKEN * n_tokens * (1.0 + n_tokens / LONG_MESSAGE)
                )
                here, n_blocks = touching_blocks(
                    n, arrays.summary_keys, arrays.record_summaries[phase], limit, frontier,
                    budget if phase == OTHER else np.int64(1) << 40, work,
                )  # fmt: skip
            if n_blocks >= 0 and cursor[0] >= 0:
                n_pending = _collect_blocks(
                    arrays, start, n, frontier[here : here + n_blocks], box, limit, strict,
                    box_area, scratch, n_pending, work,
                )  # fmt: skip
            elif cursor[0] >= 0:
                n_pending = _collect_near(
                    arrays, message_tokens, limit, strict, box_area, scratch, n_pending, work
                )
        elif phase == SURE:
            n_answers, n_pending = _report_sure(
                arrays, message_tokens, limit, scratch, n_pending, answers, n_answers, work
            )
            if n_answers < 0:
                return n_answers
        else:
            n_pending = _collect_far(
                arrays.far_offsets, arrays.far_tokens, arrays.far_keys, arrays.far_records,
                message_tokens, limit, strict, scratch, n_pending, work,
            )  # fmt: skip
        if cursor[0] < 0:
            phase += 1
            cursor[:] = 0
            n_blocks = np.int64(-2)
        if n_pending + BLOCK > PENDING or phase == N_PHASES:
            if n_answers + n_pending > len(answers.slots):
                return -1
            n_answers = report_pending(
                arrays, clauses, is_lonlat, n_pending, box, box_area, scratch, answers, n_answers
            )
            scratch.n_verified[0] += n_pending
            n_pending = np.int64(0)
    return n_answers


@appends_answers(BlockListsArrays, marks_tokens=False)
@inlined_kernel
def append_block_lists(view, tokens, box, scratch, answers, n_answers, work):
    """Append one message's answers; one that is too small for all regions marks no token."""
    arrays = view.arrays
    # Where text alone decides nothing, a range message can be too small for all regions.
    if len(arrays.sure_records) == 0 and len(arrays.far_records) == 0:
        needed = arrays.group_needed
        if 0.0 < message_area(box) < min(needed[ALWAYS], needed[BARE], needed[OTHER]):
            return n_answers
    mark_tokens(tokens, 0, len(tokens), scratch.marks, 1)
    sign_tokens(tokens, scratch.signature)
    n_answers = report_message(
        arrays, view.clauses, view.is_lonlat, tokens, box, ALL, scratch, answers, n_answers, work
    )
    mark_tokens(tokens, 0, len(tokens), scratch.marks, 0)
    unsign_tokens(tokens, scratch.signature)
    return n_answers
