"""Matching message by message; :mod:`earshot.indexes.block_trie.index` describes the structure.

Nearly all that a message reads lies anywhere in memory, and a miss of the cache costs as much as a
hundred comparisons. So it is read in steps, for all tokens at once, each of which only asks for
what the next one reads: roots of tokens, nodes, summaries, blocks, and clauses.
"""

from __future__ import annotations

import numpy as np

from earshot.indexes.block_trie.kernels.arrays import (
    CODE_COLUMNS,
    COMPLETE_SUMMARY,
    N_CHILDREN,
    NO_CODE,
    NODE_COLUMNS,
    OPEN_SUMMARY,
    ROOT_COLUMNS,
    BlockTrieArrays,
    code_of,
    plain_row,
)
from earshot.indexes.block_trie.kernels.choosing import (
    LONG,
    expect_blocks,
    limit_of,
    single_root_cost,
    single_trie_cost,
)
from earshot.indexes.block_trie.kernels.lists import (
    are_short,
    fetch_lists,
    has_all_tokens,
    has_token,
    keep_once,
    lists_of,
    push_children,
    push_roots,
    report_hits,
    sign_message,
    top_of,
    touching_short,
    walk_down,
)
from earshot.indexes.block_trie.kernels.vectors import (
    HIGH_TOKEN_BIT,
    coded_mask,
    touching_masks,
    twice_signed_mask,
)
from earshot.indexes.kernels.blocks import AHEAD, low_bits, touching_blocks
from earshot.indexes.kernels.delta import append_delta_answers
from earshot.indexes.kernels.matching import SlotScratch, appends_answers
from earshot.kernels.box_keys import BLOCK, key_touches, strict_limit, touching_mask, trailing_zeros
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.kernels.processor import prefetch
from earshot.kernels.shapes import shape_touches_box
from earshot.kernels.verify import box_touches, mark_tokens, tokens_match

PENDING = 1024
"""Entries that are verified together."""
HITS = 1024
"""Room for hits in short lists: two numbers for each."""


@lean_kernel
def _sign_codes(message_tokens, signature):
    """Set the bits of the codes of a message's tokens, and that of no token."""
    for i in range(len(message_tokens)):
        code = code_of(np.int64(message_tokens[i]))
        signature[code >> 5] |= np.uint32(1) << np.uint32(code & 31)
    signature[NO_CODE >> 5] |= np.uint32(1) << np.uint32(NO_CODE & 31)


@lean_kernel
def _unsign_codes(message_tokens, signature):
    """Clear what ``_sign_codes`` set."""
    for i in range(len(message_tokens)):
        signature[code_of(np.int64(message_tokens[i])) >> 5] = np.uint32(0)
    signature[NO_CODE >> 5] = np.uint32(0)


@inlined_kernel
def _has_codes(codes, position, signature):
    """Whether the bits of an entry's last two codes are set."""
    third = np.int64(codes[position + 2 * BLOCK])
    fourth = np.int64(codes[position + 3 * BLOCK])
    return (
        signature[third >> 5] >> np.uint32(third & 31)
        & signature[fourth >> 5] >> np.uint32(fourth & 31)
        & np.uint32(1)
    ) != 0


@lean_kernel
def _report_root(
    arrays, clauses, is_lonlat, tokens, blocks, box, limit, scratch, answers, n_answers, work
):
    """Verify the root list's touching entries and append their slots; return as for complete."""
    n_clauses = np.int64(len(clauses.subscriptions))
    keys, codes, pending = arrays.keys, arrays.root_codes, scratch.pending
    signature, n_pending = scratch.signature, np.int64(0)
    for k in range(len(blocks)):
        if k + AHEAD < len(blocks):
            ahead = np.int64(blocks[k + AHEAD])
            prefetch(keys, n_clauses + ahead * BLOCK)
            prefetch(keys, n_clauses + ahead * BLOCK + 8)
            prefetch(codes, ahead * (BLOCK * CODE_COLUMNS))
            prefetch(codes, ahead * (BLOCK * CODE_COLUMNS) + 2 * BLOCK)
        offset = np.int64(blocks[k]) * BLOCK
        position, at = n_clauses + offset, offset * CODE_COLUMNS
        work[1] += min(BLOCK, n_clauses - offset)
        mask = touching_mask(keys, position, limit) & low_bits(n_clauses - offset)
        if mask != 0:
            mask &= coded_mask(codes, at, signature)
        if mask != 0:
            mask &= coded_mask(codes, at + BLOCK, signature)
        while mask != 0:
            e = trailing_zeros(mask)
            mask &= mask - np.uint32(1)
            if _has_codes(codes, at + e, signature):
                prefetch(arrays.entry_rows, position + e)
                pending[n_pending] = position + e
                n_pending += 1
        if n_pending + BLOCK > len(pending) or k == len(blocks) - 1:
            if n_answers + n_pending > len(answers):
                return np.int64(-1)
            n_answers = _report_pending(
                arrays, clauses, is_lonlat, tokens, True, n_pending, box, limit, scratch, answers,
                n_answers,
            )  # fmt: skip
            n_pending = np.int64(0)
    work[0] += len(blocks)
    return n_answers


@lean_kernel
def _report_pending(
    arrays, clauses, is_lonlat, tokens, is_marked, n_pending, box, limit, scratch, answers,
    n_answers,
):  # fmt: skip
    """Verify the pending entries against their clauses; there must be room for all answers.

    ``is_marked`` says whether the message's tokens are marked; if not, they are few.
    """
    pending, rows, entry_tokens = scratch.pending, arrays.entry_rows, arrays.entry_tokens
    n_clauses, in_order = len(clauses.subscriptions), len(arrays.slot_clauses) == 0
    strict, n_left = strict_limit(limit), np.int64(0)
    for k in range(n_pending):
        pending[n_left] = pending[k]
        n_left += 1 if key_touches(arrays.keys[pending[k]], limit) else 0
    for k in range(n_left):
        entry = np.int64(pending[k])
        c = plain_row(rows[entry])
        if not in_order:
            prefetch(clauses.subscriptions, c)
        if entry >= n_clauses or entry_tokens[entry] < 0:
            prefetch(clauses.token_offsets, c)
            prefetch(clauses.shape_rows, c)
        if not key_touches(arrays.keys[entry], strict):
            prefetch(clauses.boxes, c)
    for k in range(n_left):
        entry = np.int64(pending[k])
        if entry >= n_clauses or entry_tokens[entry] < 0:
            prefetch(clauses.token_ids, clauses.token_offsets[plain_row(rows[entry])])
    for k in range(n_left):
        entry = np.int64(pending[k])
        c = plain_row(rows[entry])
        is_sure = key_touches(arrays.keys[entry], strict)
        if not is_sure and not box_touches(clauses.boxes, c, box[0], box[1], box[2], box[3]):
            continue
        if entry >= n_clauses or entry_tokens[entry] < 0:
            if is_marked:
                start, stop = clauses.token_offsets[c], clauses.token_offsets[c + 1]
                if not tokens_match(clauses.token_ids, start, stop, scratch.marks):
                    continue
            elif not has_all_tokens(clauses, c, tokens):
                continue
            shape = clauses.shape_rows[c]
            if shape >= 0 and not shape_touches_box(
                clauses.shapes, shape, is_lonlat, box[0], box[1], box[2], box[3]
            ):
                continue
        slot = c if in_order else np.int64(clauses.subscriptions[c])
        answers[n_answers] = slot if rows[entry] >= 0 else ~slot
        n_answers += 1
    return n_answers


@inlined_kernel
def _note_block(values, step, start, n, offset, blocks, n_blocks):
    """Note a block of a list that is to be read, and ask for it; return the new number of them."""
    blocks[2 * n_blocks] = start + offset
    blocks[2 * n_blocks + 1] = n - offset
    prefetch(values, start + offset)
    prefetch(values, start + offset + step)
    return n_blocks + 1


@inlined_kernel
def _note_hits(arrays, limit, position, n_left, hits, n_hits):
    """Note which keys of a block of a complete list touch; return the new number of such blocks."""
    masks = touching_masks(arrays.keys, position, limit)
    valid = low_bits(n_left)
    hits[2 * n_hits] = position
    hits[2 * n_hits + 1] = np.int32(masks & (valid | valid << np.uint32(BLOCK)))
    prefetch(arrays.entry_rows, position)
    prefetch(arrays.entry_rows, position + BLOCK - 1)
    return n_hits + (1 if masks & valid != 0 else 0)


@inlined_kernel
def _note_pending(arrays, tokens, limit, position, n_left, scratch, n_pending):
    """Note entries of a block of an open list whose token the message has; return their number.

    Tokens come first: most blocks have no key that is worth fetching. Not those of a message with
    many tokens, whose signature lets nearly all entries pass.
    """
    mask = twice_signed_mask(
        arrays.entry_tokens, position, scratch.low_signature, scratch.high_signature, 0
    ) & low_bits(n_left)
    if mask != 0 and len(tokens) > LONG:
        mask &= touching_mask(arrays.keys, position, limit)
    while mask != 0:
        entry = position + trailing_zeros(mask)
        mask &= mask - np.uint32(1)
        token = arrays.entry_tokens[entry]
        if token == -1 or has_token(tokens, token if token >= 0 else -token - 2):
            prefetch(arrays.keys, entry)
            prefetch(arrays.entry_rows, entry)
            scratch.pending[n_pending] = entry
            n_pending += 1
    return n_pending


@lean_kernel
def _report_noted(
    arrays, clauses, is_lonlat, tokens, noted, box, limit, scratch, answers, n_answers, work
):
    """Append the answers of all that was noted: blocks to read, hits, and pending entries.

    Returns their new number, or -1.
    """
    blocks, open_blocks, hits = scratch.blocks, scratch.open_blocks, scratch.hits
    n_blocks, n_open, n_hits, n_pending = noted
    work[0] += n_blocks + n_open
    for k in range(n_blocks):
        work[1] += min(BLOCK, blocks[2 * k + 1])
        n_hits = _note_hits(arrays, limit, np.int64(blocks[2 * k]), blocks[2 * k + 1], hits, n_hits)
    for k in range(n_open):
        work[1] += min(BLOCK, open_blocks[2 * k + 1])
        n_pending = _note_pending(
            arrays, tokens, limit, np.int64(open_blocks[2 * k]), open_blocks[2 * k + 1], scratch,
            n_pending,
        )  # fmt: skip
        if n_pending + BLOCK > len(scratch.pending):
            if n_answers + n_pending > len(answers):
                return np.int64(-1)
            n_answers = _report_pending(
                arrays, clauses, is_lonlat, tokens, False, n_pending, box, limit, scratch, answers,
                n_answers,
            )  # fmt: skip
            n_pending = np.int64(0)
    for k in range(n_hits):
        if n_answers + BLOCK > len(answers):
            return np.int64(-1)
        masks = np.uint32(hits[2 * k + 1])
        n_answers = report_hits(
            arrays, clauses, box, np.int64(hits[2 * k]), masks, answers, n_answers
        )
    if n_answers + n_pending > len(answers):
        return np.int64(-1)
    return _report_pending(
        arrays, clauses, is_lonlat, tokens, False, n_pending, box, limit, scratch, answers,
        n_answers,
    )  # fmt: skip


@lean_kernel
def _descend(arrays, clauses, is_lonlat, tokens, box, limit, scratch, answers, n_answers, work):
    """Visit what the message's tokens lead to; return the number of answers, or -1."""
    nodes, stack, frontier = arrays.nodes, scratch.stack, scratch.frontier
    blocks, open_blocks, hits = scratch.blocks, scratch.open_blocks, scratch.hits
    n_nodes = np.int64(len(nodes) // NODE_COLUMNS)
    for p in range(len(tokens)):
        prefetch(arrays.roots, np.int64(tokens[p]) * ROOT_COLUMNS)
    sign_message(tokens, 0, scratch.low_signature, 0)
    sign_message(tokens, HIGH_TOKEN_BIT, scratch.high_signature, 0)
    n_stack = push_roots(arrays, tokens, scratch.low_signature, 0, stack)
    k = np.int64(0)
    while k < n_stack:
        number = np.int64(stack[k])
        k += 1
        fetch_lists(arrays, number)
        if number < n_nodes and nodes[number * NODE_COLUMNS + N_CHILDREN] > 0:
            n_stack = push_children(
                arrays, number, tokens, scratch.low_signature, 0, stack, n_stack
            )
    n_blocks = n_open_blocks = n_hits = n_pending = np.int64(0)
    for k in range(n_stack):
        number = np.int64(stack[k])
        start, n, n_open = lists_of(arrays, number)
        if (
            2 * (n_hits + BLOCK) > HITS
            or n_pending + 2 * BLOCK > len(scratch.pending)
            or 2 * (max(n_blocks, n_open_blocks) + BLOCK) + HITS > len(blocks)
        ):
            noted = (n_blocks, n_open_blocks, n_hits, n_pending)
            n_answers = _report_noted(
                arrays, clauses, is_lonlat, tokens, noted, box, limit, scratch, answers, n_answers,
                work,
            )  # fmt: skip
            n_blocks = n_open_blocks = n_hits = n_pending = np.int64(0)
            if n_answers < 0:
                return n_answers
        if 0 < n <= BLOCK:
            n_hits = _note_hits(arrays, limit, start, n, hits, n_hits)
            work[0] += 1
            work[1] += n
        if 0 < n_open <= BLOCK:
            n_pending = _note_pending(arrays, tokens, limit, start + n, n_open, scratch, n_pending)
            work[0] += 1
            work[1] += n_open
        if max(n, n_open) <= BLOCK:
            continue
        if are_short(n, n_open):
            mask, mask_open = touching_short(arrays, number, n, n_open, limit)
            work[0] += 1
            while n > BLOCK and mask != 0:
                offset = trailing_zeros(mask) * BLOCK
                mask &= mask - np.uint32(1)
                n_blocks = _note_block(arrays.keys, 8, start, n, offset, blocks, n_blocks)
            while n_open > BLOCK and mask_open != 0:
                offset = trailing_zeros(mask_open) * BLOCK
                mask_open &= mask_open - np.uint32(1)
                n_open_blocks = _note_block(
                    arrays.entry_tokens, BLOCK - 1, start + n, n_open, offset, open_blocks,
                    n_open_blocks,
                )  # fmt: skip
            continue
        at = number * NODE_COLUMNS
        for column in range(COMPLETE_SUMMARY, OPEN_SUMMARY + 1):
            is_complete = column == COMPLETE_SUMMARY
            n_list = n if is_complete else n_open
            if n_list <= BLOCK:
                continue
            top, n_top, depth = top_of(n_list, np.int64(nodes[at + column]))
            here, n_found = walk_down(
                n_list, arrays.summary_keys, top, n_top, depth, limit, frontier, work
            )
            if 2 * (max(n_blocks, n_open_blocks) + n_found) + HITS > len(blocks):
                noted = (n_blocks, n_open_blocks, n_hits, n_pending)
                n_answers = _report_noted(
                    arrays, clauses, is_lonlat, tokens, noted, box, limit, scratch, answers,
                    n_answers, work,
                )  # fmt: skip
                n_blocks = n_open_blocks = n_hits = n_pending = np.int64(0)
                if n_answers < 0:
                    return n_answers
            for b in range(n_found):
                offset = np.int64(frontier[here + b]) * BLOCK
                if is_complete:
                    n_blocks = _note_block(arrays.keys, 8, start, n, offset, blocks, n_blocks)
                else:
                    n_open_blocks = _note_block(
                        arrays.entry_tokens, BLOCK - 1, start + n, n_open, offset, open_blocks,
                        n_open_blocks,
                    )  # fmt: skip
    noted = (n_blocks, n_open_blocks, n_hits, n_pending)
    return _report_noted(
        arrays, clauses, is_lonlat, tokens, noted, box, limit, scratch, answers, n_answers, work
    )


@appends_answers(BlockTrieArrays, marks_tokens=False)
@inlined_kernel
def append_block_trie(view, tokens, box, scratch, answers, n_answers, work):
    """Append one message's answers, those of the delta last; most messages mark no token."""
    arrays, clauses, is_lonlat = view.arrays, view.clauses, view.is_lonlat
    frontier, n_before = scratch.frontier, n_answers
    n_clauses = np.int64(len(clauses.subscriptions))
    limit = limit_of(arrays, box)
    # [CIKM15] chooses per message between text and space by estimated cost; so does this.
    n_tokens = len(tokens)
    n_expected = expect_blocks(arrays.costs, limit)
    n_blocks, here = np.int64(0 if n_expected == 0.0 else -1), np.int64(0)
    if n_expected > 0.0 and (
        single_root_cost(arrays.costs, n_tokens, n_expected)
        < single_trie_cost(arrays.costs, n_tokens, n_expected)
    ):
        here, n_blocks = touching_blocks(
            n_clauses, arrays.summary_keys, arrays.root_summary[0], limit, frontier,
            np.int64(1) << 40, work,
        )  # fmt: skip
    has_delta = len(view.delta.clauses.subscriptions) > 0
    if n_blocks == 0 and not has_delta:
        return n_answers
    is_marked = has_delta or n_blocks > 0
    if is_marked:
        mark_tokens(tokens, 0, n_tokens, scratch.marks, 1)
    if n_blocks > 0:
        _sign_codes(tokens, scratch.signature)
        n_answers = _report_root(
            arrays, clauses, is_lonlat, tokens, frontier[here : here + n_blocks], box, limit,
            scratch, answers, n_answers, work,
        )  # fmt: skip
        _unsign_codes(tokens, scratch.signature)
    elif n_blocks < 0:
        n_answers = _descend(
            arrays, clauses, is_lonlat, tokens, box, limit, scratch, answers, n_answers, work
        )
    if len(scratch.seen) > 0 and n_answers >= 0:
        n_answers = keep_once(answers, n_before, n_answers, n_before, scratch.seen)
    if has_delta and n_answers >= 0:
        of_delta = SlotScratch(scratch.marks, scratch.serial, scratch.delta_last_seen)
        n_answers = append_delta_answers(
            view.delta, tokens, box, of_delta, answers, n_answers, work
        )
    if is_marked:
        mark_tokens(tokens, 0, n_tokens, scratch.marks, 0)
    return n_answers
