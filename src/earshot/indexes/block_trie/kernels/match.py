"""Arrays and matching of :mod:`earshot.indexes.block_trie.index`, which describes the structure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.kernels.blocks import (
    SIGNATURE_WORDS,
    has_token,
    sign_tokens,
    touching_blocks,
    touching_keys,
    unsign_tokens,
)
from earshot.indexes.kernels.delta import append_delta_answers
from earshot.indexes.kernels.matching import SlotScratch, appends_answers
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
from earshot.kernels.searching import first_at_least
from earshot.kernels.shapes import shape_touches_box
from earshot.kernels.verify import box_touches, mark_tokens, tokens_match
from earshot.model.arrays import Int32s, Int64s

# Columns of ``nodes``; the eighth is spare, so that a node never straddles a cache line.
START, N_COMPLETE, N_OPEN, FIRST_CHILD, N_CHILDREN, COMPLETE_SUMMARY, OPEN_SUMMARY = range(7)
NODE_COLUMNS = 8

ROOT_BLOCKS_PER_TOKEN = 5.0
"""Blocks of the root list that cost about as much as following one token of a short message.

A compromise between 2, 4, 8 and 16, tried on ten workloads at 1 M subscriptions and three at 10 M:
at 1 M short messages want 2 to 4 (8 costs them up to 20 %); at 10 M regions of 1e-6 of the space
want 8 or more (4 costs them 50 %).
"""
LONG_MESSAGE = 128.0
"""Tokens at which a message's budget per token has doubled, as each has more others to pair with.

Chosen so that messages of 500 tokens get the 16 blocks a token or more that suited them at 10 M.
"""
PENDING = 1024
"""Entries that are verified together."""

CODE_COLUMNS = 4
"""Tokens, rarest first, that the root list knows of an entry. With 2 of them long messages took a
quarter longer in groups, with 1 twice as long."""
N_CODES = SIGNATURE_WORDS * 64
N_EXACT_CODES = N_CODES // 2
NO_CODE = N_CODES - 1


class BlockTrieArrays(NamedTuple):
    """The trie, its lists and the summaries over the lists."""

    quantizer: Quantizer
    root_nodes: Int32s  # (n_tokens,) node of each first token, -1 where no clause starts with it
    node_tokens: Int32s  # (n_nodes,) last token of the node's path; siblings ascending
    nodes: Int32s  # (n_nodes * NODE_COLUMNS,)
    keys: npt.NDArray[np.uint64]  # (2 * n_clauses + BLOCK,) lists of the nodes, root list, padding
    entry_rows: Int32s  # (2 * n_clauses + BLOCK,) slot in a complete list, clause in the others
    # In an open list, what is left to verify: t >= 0 only the next token t; t < -1 the next token
    # -t - 2 and more; -1 something else than tokens. The root list has none.
    entry_tokens: Int32s  # (n_clauses + BLOCK,)
    # In the root list, codes of the first tokens to verify: of the first token of 16 entries, then
    # of the second, and so on; NO_CODE where there is none.
    root_codes: npt.NDArray[np.uint16]  # (n_blocks * BLOCK * CODE_COLUMNS,)
    root_checks: npt.NDArray[np.uint16]  # (n_blocks,) a bit per entry that codes do not decide
    summary_keys: npt.NDArray[np.uint64]  # (n_summaries + BLOCK,) lowest level first, list by list
    slot_clauses: Int32s  # (n_slots,) a clause of each slot; empty where clause i is slot i
    longest_list: Int64s  # (1,)
    root_summary: Int64s  # (1,) where the summary keys of the root list begin


class BlockTrieScratch(NamedTuple):
    """Working memory of one matching thread."""

    marks: npt.NDArray[np.uint8]  # (n_tokens,)
    signature: npt.NDArray[np.uint64]  # (SIGNATURE_WORDS,) a bit per token, several tokens per bit
    pending: Int32s  # (PENDING,) entries that are still to be verified
    frontier: Int32s  # two halves, each for the blocks of one level of the longest list
    stack: Int32s  # nodes still to visit
    last_seen: Int64s  # (n_slots,) serial of the message that reported it; empty without repeats
    delta_last_seen: Int64s  # (>= slots of the delta,) the same for those
    serial: Int64s  # (1,) number of messages matched with this scratch so far


@inlined_kernel
def code_of(token):
    """Return the code of a token: its own for small ids, which are mostly the frequent words."""
    shared = N_EXACT_CODES | min(token & (N_EXACT_CODES - 1), N_EXACT_CODES - 2)
    return token if token < N_EXACT_CODES else shared


@lean_kernel
def sign_codes(message_tokens, signature):
    """Set the bits of the codes of a message's tokens, and that of no token."""
    for i in range(len(message_tokens)):
        code = code_of(np.int64(message_tokens[i]))
        signature[code >> 6] |= np.uint64(1) << np.uint64(code & 63)
    signature[NO_CODE >> 6] |= np.uint64(1) << np.uint64(NO_CODE & 63)


@lean_kernel
def unsign_codes(message_tokens, signature):
    """Clear what ``sign_codes`` set."""
    for i in range(len(message_tokens)):
        signature[code_of(np.int64(message_tokens[i])) >> 6] = np.uint64(0)
    signature[NO_CODE >> 6] = np.uint64(0)


@lean_kernel
def has_codes(codes, position, signature):
    """Whether the bits of an entry's codes are all set."""
    are_set = np.uint64(1)
    for column in range(CODE_COLUMNS):
        code = np.int64(codes[position + column * BLOCK])
        are_set &= signature[code >> 6] >> np.uint64(code & 63)
    return are_set != 0


@lean_kernel
def _report_complete(arrays, clauses, start, n, blocks, box, limit, answers, n_answers, work):
    """Append the slots of a complete list's touching entries; return their new number, or -1."""
    keys, entry_rows = arrays.keys, arrays.entry_rows
    strict = strict_limit(limit)
    for k in range(len(blocks)):
        position, mask = touching_keys(keys, entry_rows, start, n, blocks, k, limit, work)
        if mask == 0:
            continue
        if n_answers + BLOCK > len(answers):
            return -1
        certain = mask & touching_mask(keys, position, strict)
        uncertain = mask ^ certain
        while certain != 0:
            answers[n_answers] = entry_rows[position + trailing_zeros(certain)]
            n_answers += 1
            certain &= certain - np.uint32(1)
        while uncertain != 0:
            slot = entry_rows[position + trailing_zeros(uncertain)]
            uncertain &= uncertain - np.uint32(1)
            c = slot if len(arrays.slot_clauses) == 0 else arrays.slot_clauses[slot]
            if box_touches(clauses.boxes, c, box[0], box[1], box[2], box[3]):
                answers[n_answers] = slot
                n_answers += 1
    work[0] += len(blocks)
    return n_answers


@lean_kernel
def _report_open(
    arrays, clauses, is_lonlat, start, n, blocks, box, limit, scratch, answers, n_answers, work
):
    """Verify an open list's touching entries and append their slots; return as for complete."""
    keys, entry_rows, entry_tokens = arrays.keys, arrays.entry_rows, arrays.entry_tokens
    marks, signature, pending = scratch.marks, scratch.signature, scratch.pending
    in_order = len(arrays.slot_clauses) == 0
    strict = strict_limit(limit)
    n_pending = 0
    for k in range(len(blocks)):
        position, mask = touching_keys(keys, entry_tokens, start, n, blocks, k, limit, work)
        if mask == 0:
            continue
        if n_answers + n_pending + BLOCK > len(answers):
            return -1
        while mask != 0:
            entry = position + trailing_zeros(mask)
            mask &= mask - np.uint32(1)
            token = entry_tokens[entry]
            if token < 0:
                if token == -1 or has_token(-token - 2, signature, marks):
                    prefetch(entry_rows, entry)
                    pending[n_pending] = entry
                    n_pending += 1
            elif has_token(token, signature, marks):
                c = entry_rows[entry]
                if key_touches(keys[entry], strict) or box_touches(
                    clauses.boxes, c, box[0], box[1], box[2], box[3]
                ):
                    answers[n_answers] = c if in_order else clauses.subscriptions[c]
                    n_answers += 1
        if n_pending + BLOCK > len(pending):
            n_answers = _report_pending(
                arrays, clauses, is_lonlat, n_pending, box, strict, scratch, answers, n_answers
            )
            n_pending = 0
    work[0] += len(blocks)
    return _report_pending(
        arrays, clauses, is_lonlat, n_pending, box, strict, scratch, answers, n_answers
    )


@lean_kernel
def report_root(arrays, clauses, is_lonlat, blocks, box, limit, scratch, answers, n_answers, work):
    """Verify the root list's touching entries and append their slots; return as for complete."""
    n_clauses = np.int64(len(clauses.subscriptions))
    pending, strict = scratch.pending, strict_limit(limit)
    n_pending = 0
    for k in range(len(blocks)):
        position, mask = touching_keys(
            arrays.keys, arrays.entry_rows, n_clauses, n_clauses, blocks, k, limit, work
        )
        codes = np.int64(blocks[k]) * (BLOCK * CODE_COLUMNS)
        while mask != 0:
            e = trailing_zeros(mask)
            mask &= mask - np.uint32(1)
            if has_codes(arrays.root_codes, codes + e, scratch.signature):
                pending[n_pending] = position + e
                n_pending += 1
        if n_pending + BLOCK > len(pending) or k == len(blocks) - 1:
            if n_answers + n_pending > len(answers):
                return -1
            n_answers = _report_pending(
                arrays, clauses, is_lonlat, n_pending, box, strict, scratch, answers, n_answers
            )
            n_pending = 0
    work[0] += len(blocks)
    return n_answers


@lean_kernel
def _report_pending(
    arrays, clauses, is_lonlat, n_pending, box, strict, scratch, answers, n_answers
):
    """Verify the pending entries against their clauses; there must be room for all answers.

    Clauses lie scattered, and a miss of the cache costs as much as a hundred comparisons. Entries
    are therefore verified in steps, each of which only asks for what the next one reads.
    """
    pending = scratch.pending
    for k in range(n_pending):
        c = np.int64(arrays.entry_rows[pending[k]])
        prefetch(clauses.token_offsets, c)
        prefetch(clauses.shape_rows, c)
    for k in range(n_pending):
        c = arrays.entry_rows[pending[k]]
        prefetch(clauses.token_ids, clauses.token_offsets[c])
        if not key_touches(arrays.keys[pending[k]], strict):
            prefetch(clauses.boxes, c)
    for k in range(n_pending):
        c = arrays.entry_rows[pending[k]]
        if not tokens_match(
            clauses.token_ids, clauses.token_offsets[c], clauses.token_offsets[c + 1], scratch.marks
        ):
            continue
        if not key_touches(arrays.keys[pending[k]], strict) and not box_touches(
            clauses.boxes, c, box[0], box[1], box[2], box[3]
        ):
            continue
        shape = clauses.shape_rows[c]
        if shape >= 0 and not shape_touches_box(
            clauses.shapes, shape, is_lonlat, box[0], box[1], box[2], box[3]
        ):
            continue
        slot = clauses.subscriptions[c]
        if len(scratch.last_seen) > 0:
            if scratch.last_seen[slot] == scratch.serial[0]:
                continue
            scratch.last_seen[slot] = scratch.serial[0]
        answers[n_answers] = slot
        n_answers += 1
    return n_answers


@lean_kernel
def _push_children(node_tokens, first, n, message_tokens, scratch, n_stack):
    """Push those of ``n`` children whose token is in the message; return the stack's height."""
    marks, signature, stack = scratch.marks, scratch.signature, scratch.stack
    if n <= 8 * len(message_tokens):
        for child in range(first, first + n):
            if has_token(node_tokens[child], signature, marks):
                stack[n_stack] = child
                n_stack += 1
        return n_stack
    for i in range(len(message_tokens)):
        child = first_at_least(node_tokens, first, first + n, message_tokens[i])
        if child < first + n and node_tokens[child] == message_tokens[i]:
            stack[n_stack] = child
            n_stack += 1
    return n_stack


@lean_kernel
def _descend(
    arrays, clauses, is_lonlat, message_tokens, box, limit, scratch, answers, n_answers, work
):
    """Visit the nodes of the message's tokens and children; return the number of answers, or -1."""
    nodes, stack, frontier = arrays.nodes, scratch.stack, scratch.frontier
    n_stack = 0
    for i in range(len(message_tokens)):
        token = message_tokens[i]
        if token < len(arrays.root_nodes) and arrays.root_nodes[token] >= 0:
            stack[n_stack] = arrays.root_nodes[token]
            prefetch(nodes, np.int64(stack[n_stack]) * NODE_COLUMNS)
            n_stack += 1
    for k in range(n_stack):
        start = np.int64(nodes[np.int64(stack[k]) * NODE_COLUMNS + START])
        prefetch(arrays.keys, start)
        prefetch(arrays.entry_tokens, start)
    everything = np.int64(1) << 40
    while n_stack > 0:
        n_stack -= 1
        node = np.int64(stack[n_stack]) * NODE_COLUMNS
        if nodes[node + N_CHILDREN] > 0:
            n_stack = _push_children(
                arrays.node_tokens, nodes[node + FIRST_CHILD], nodes[node + N_CHILDREN],
                message_tokens, scratch, n_stack,
            )  # fmt: skip
        start, n = np.int64(nodes[node + START]), np.int64(nodes[node + N_COMPLETE])
        if n > 0:
            here, n_blocks = touching_blocks(
                n, arrays.summary_keys, nodes[node + COMPLETE_SUMMARY], limit, frontier,
                everything, work,
            )  # fmt: skip
            n_answers = _report_complete(
                arrays, clauses, start, n, frontier[here : here + n_blocks], box, limit,
                answers, n_answers, work,
            )  # fmt: skip
            if n_answers < 0:
                return n_answers
        start, n = start + n, np.int64(nodes[node + N_OPEN])
        if n > 0:
            here, n_blocks = touching_blocks(
                n, arrays.summary_keys, nodes[node + OPEN_SUMMARY], limit, frontier,
                everything, work,
            )  # fmt: skip
            n_answers = _report_open(
                arrays, clauses, is_lonlat, start, n, frontier[here : here + n_blocks], box, limit,
                scratch, answers, n_answers, work,
            )  # fmt: skip
            if n_answers < 0:
                return n_answers
    return n_answers


@appends_answers(BlockTrieArrays, marks_tokens=False)
@inlined_kernel
def append_block_trie(view, tokens, box, scratch, answers, n_answers, work):
    """Append one message's answers, those of the delta last; most messages mark no token."""
    arrays, clauses, is_lonlat = view.arrays, view.clauses, view.is_lonlat
    frontier = scratch.frontier
    n_clauses = np.int64(len(clauses.subscriptions))
    limit = box_limit(arrays.quantizer, box[0], box[1], box[2], box[3])
    # [CIKM15] chooses per message between text and space by estimated cost; so does this. The
    # walk down the root list is cheap, and says at each level how many blocks are left.
    n_tokens = len(tokens)
    budget = np.int64(ROOT_BLOCKS_PER_TOKEN * n_tokens * (1.0 + n_tokens / LONG_MESSAGE))
    here, n_blocks = touching_blocks(
        n_clauses, arrays.summary_keys, arrays.root_summary[0], limit, frontier, budget, work
    )
    has_delta = len(view.delta.clauses.subscriptions) > 0
    if n_blocks == 0 and not has_delta:
        return n_answers
    mark_tokens(tokens, 0, n_tokens, scratch.marks, 1)
    if n_blocks > 0:
        sign_codes(tokens, scratch.signature)
        n_answers = report_root(
            arrays, clauses, is_lonlat, frontier[here : here + n_blocks], box, limit, scratch,
            answers, n_answers, work,
        )  # fmt: skip
        unsign_codes(tokens, scratch.signature)
    elif n_blocks < 0:
        sign_tokens(tokens, scratch.signature)
        n_answers = _descend(
            arrays, clauses, is_lonlat, tokens, box, limit, scratch, answers, n_answers, work
        )
        unsign_tokens(tokens, scratch.signature)
    if has_delta and n_answers >= 0:
        of_delta = SlotScratch(scratch.marks, scratch.serial, scratch.delta_last_seen)
        n_answers = append_delta_answers(
            view.delta, tokens, box, of_delta, answers, n_answers, work
        )
    mark_tokens(tokens, 0, n_tokens, scratch.marks, 0)
    return n_answers
