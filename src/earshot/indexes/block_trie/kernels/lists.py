"""Lists of the trie's nodes: finding those of a message, fetching them, and reading their blocks.

What a token leads to is named by a number: that of a node, or, for short lists, the number of nodes
plus the token.
"""

from __future__ import annotations

import numpy as np

from earshot.indexes.block_trie.kernels.arrays import (
    COMPLETE_SUMMARY,
    COUNT_BITS,
    COUNT_MASK,
    FIRST_CHILD,
    FIRST_TOKEN_BIT,
    HAS_TOKENS,
    IS_NODE,
    KIND,
    N_CHILDREN,
    N_COMPLETE,
    N_OPEN,
    NO_ROOT,
    NODE_COLUMNS,
    OPEN_SUMMARY,
    ROOT_COLUMNS,
    SECOND_TOKEN_BIT,
    START,
    TOKEN_MASK,
    WHERE,
    plain_row,
)
from earshot.indexes.block_trie.kernels.vectors import (
    SIGNATURE_BITS,
    pack_numbers,
    pack_rows,
    signed_mask,
    touching_masks,
)
from earshot.indexes.kernels.blocks import low_bits
from earshot.kernels.box_keys import BLOCK, touching_mask, trailing_zeros
from earshot.kernels.copying import copy_part
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.kernels.processor import prefetch
from earshot.kernels.searching import first_at_least
from earshot.kernels.verify import box_touches

MESSAGE_WORDS = SIGNATURE_BITS // 32

CHILDREN_PER_TOKEN = 32
"""Children up to which all are compared, sixteen at a time, instead of searching each token."""


# ---- tokens of a message -------------------------------------------------------------------------


@inlined_kernel
def sign_message(tokens, low_bit, signatures, row):
    """Set the bits of a message's tokens in its signature, by nine of their bits."""
    at = row * MESSAGE_WORDS
    for word in range(MESSAGE_WORDS):
        signatures[at + word] = 0
    for p in range(len(tokens)):
        token = tokens[p] >> low_bit
        signatures[at + (token >> 5 & (MESSAGE_WORDS - 1))] |= np.uint32(1) << np.uint32(token & 31)


@inlined_kernel
def is_signed(signatures, row, token):
    """Whether the bit of a token is set in a message's signature."""
    word = signatures[row * MESSAGE_WORDS + (token >> 5 & (MESSAGE_WORDS - 1))]
    return word >> np.uint32(token & 31) & np.uint32(1) != 0


@inlined_kernel
def has_token(tokens, token):
    """Whether a message has a token; all are compared, several at once."""
    n_found = np.int32(0)
    for p in range(len(tokens)):
        n_found += np.int32(1) if tokens[p] == token else np.int32(0)
    return n_found != 0


@inlined_kernel
def has_all_tokens(clauses, c, tokens):
    """Whether a message has all required tokens of a clause, and no forbidden one."""
    for p in range(clauses.token_offsets[c], clauses.token_offsets[c + 1]):
        token = clauses.token_ids[p]
        if has_token(tokens, token if token >= 0 else ~token) != (token >= 0):
            return False
    return True


# ---- nodes ---------------------------------------------------------------------------------------


@inlined_kernel
def kind_of(n_complete, n_open):
    """Return what ``roots`` tells of short lists, without tokens."""
    return np.int32(n_complete | n_open << COUNT_BITS)


@inlined_kernel
def may_match(kind, signatures, row):
    """Whether short lists may match a message, by the tokens that the entries of both want."""
    if kind & HAS_TOKENS == 0:
        return True
    first, second = kind >> FIRST_TOKEN_BIT & TOKEN_MASK, kind >> SECOND_TOKEN_BIT & TOKEN_MASK
    return is_signed(signatures, row, first) or is_signed(signatures, row, second)


@inlined_kernel
def push_roots(arrays, tokens, signatures, row, stack):
    """Push what the tokens of a message lead to; return the height of the stack."""
    roots, n_nodes = arrays.roots, np.int64(len(arrays.nodes) // NODE_COLUMNS)
    n_stack = np.int64(0)
    for p in range(len(tokens)):
        at = np.int64(tokens[p]) * ROOT_COLUMNS
        if at >= len(roots):
            continue
        where = np.int64(roots[at + WHERE])
        if where == NO_ROOT:
            continue
        if roots[at + KIND] == IS_NODE:
            prefetch(arrays.nodes, where * NODE_COLUMNS)
            stack[n_stack] = where
            n_stack += 1
        elif may_match(roots[at + KIND], signatures, row):
            stack[n_stack] = n_nodes + tokens[p]
            n_stack += 1
    return n_stack


@inlined_kernel
def push_children(arrays, node, tokens, signatures, row, stack, n_stack):
    """Push those children of a node whose token is in the message; return the stack's height."""
    node_tokens = arrays.node_tokens
    first = np.int64(arrays.nodes[node * NODE_COLUMNS + FIRST_CHILD])
    n = np.int64(arrays.nodes[node * NODE_COLUMNS + N_CHILDREN])
    if n <= CHILDREN_PER_TOKEN * len(tokens):
        for child in range(first, first + n, BLOCK):
            mask = signed_mask(node_tokens, child, signatures, row) & low_bits(first + n - child)
            while mask != 0:
                each = child + trailing_zeros(mask)
                mask &= mask - np.uint32(1)
                if has_token(tokens, node_tokens[each]):
                    prefetch(arrays.nodes, each * NODE_COLUMNS)
                    stack[n_stack] = each
                    n_stack += 1
        return n_stack
    for p in range(len(tokens)):
        child = first_at_least(node_tokens, first, first + n, tokens[p])
        if child < first + n and node_tokens[child] == tokens[p]:
            prefetch(arrays.nodes, child * NODE_COLUMNS)
            stack[n_stack] = child
            n_stack += 1
    return n_stack


@inlined_kernel
def lists_of(arrays, number):
    """Return where the lists of a node or of a token start, and their lengths."""
    n_nodes = np.int64(len(arrays.nodes) // NODE_COLUMNS)
    if number < n_nodes:
        at = number * NODE_COLUMNS
        return (
            np.int64(arrays.nodes[at + START]), np.int64(arrays.nodes[at + N_COMPLETE]),
            np.int64(arrays.nodes[at + N_OPEN]),
        )  # fmt: skip
    at = (number - n_nodes) * ROOT_COLUMNS
    kind = np.int64(arrays.roots[at + KIND])
    start = np.int64(arrays.roots[at + WHERE])
    return start, kind & COUNT_MASK, kind >> COUNT_BITS & COUNT_MASK


@inlined_kernel
def fetch_lists(arrays, number):
    """Ask for what lists begin with."""
    keys, rows, tokens = arrays.keys, arrays.entry_rows, arrays.entry_tokens
    start, n, n_open = lists_of(arrays, number)
    at = number * NODE_COLUMNS
    if n > BLOCK:
        top, _, _ = top_of(n, np.int64(arrays.nodes[at + COMPLETE_SUMMARY]))
        prefetch(arrays.summary_keys, top)
        prefetch(arrays.summary_keys, top + 8)
    elif n > 0:
        for k in range(0, n, 8):
            prefetch(keys, start + k)
        prefetch(rows, start)
        prefetch(rows, start + n - 1)
    if n_open > BLOCK:
        top, _, _ = top_of(n_open, np.int64(arrays.nodes[at + OPEN_SUMMARY]))
        prefetch(arrays.summary_keys, top)
        prefetch(arrays.summary_keys, top + 8)
    elif n_open > 0:
        prefetch(tokens, start + n)
        prefetch(tokens, start + n + n_open - 1)


# ---- blocks --------------------------------------------------------------------------------------


@inlined_kernel
def top_of(n, summary):
    """Return where the top level of a list's summaries begins, its length, and the levels."""
    n_top, depth = (n + BLOCK - 1) >> 4, 1
    while n_top > BLOCK:
        summary += n_top
        n_top = (n_top + BLOCK - 1) >> 4
        depth += 1
    return summary, n_top, depth


@inlined_kernel
def are_short(n, n_open):
    """Whether the lists of a node have a block of summary keys at most, both together."""
    return _n_above(n) + _n_above(n_open) <= BLOCK


@inlined_kernel
def _n_above(n):
    return (n + BLOCK - 1) >> 4 if n > BLOCK else np.int64(0)


@inlined_kernel
def touching_short(arrays, number, n, n_open, limit):
    """Return which blocks of either list may touch, a bit for each; see ``are_short``."""
    n_above, n_open_above = _n_above(n), _n_above(n_open)
    mask = np.uint32(0)
    if n_above + n_open_above > 0:
        summary = np.int64(arrays.nodes[number * NODE_COLUMNS + COMPLETE_SUMMARY])
        mask = touching_mask(arrays.summary_keys, summary, limit)
        mask &= low_bits(n_above + n_open_above)
    complete = mask & low_bits(n_above) if n > BLOCK else np.uint32(1 if n > 0 else 0)
    is_open = mask >> np.uint32(n_above) if n_open > BLOCK else np.uint32(1 if n_open > 0 else 0)
    return complete, is_open


@inlined_kernel
def walk_down(n, summary_keys, top, n_top, depth, limit, frontier, work):
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
def fetch_block(arrays, position):
    """Ask for a block of a complete list."""
    prefetch(arrays.keys, position)
    prefetch(arrays.keys, position + 8)
    prefetch(arrays.entry_rows, position)


@inlined_kernel
def read_complete(arrays, clauses, box, limit, position, n_left, found, n_found):
    """Append the rows of a block of a complete list; there must be room for 16 more."""
    masks = touching_masks(arrays.keys, position, limit)
    valid = low_bits(n_left)
    masks &= valid | valid << np.uint32(BLOCK)
    return report_hits(arrays, clauses, box, position, masks, found, n_found)


@inlined_kernel
def report_hits(arrays, clauses, box, position, masks, found, n_found):
    """Append the rows of entries that touch; ``masks`` are as of ``touching_masks``."""
    sure = masks >> np.uint32(BLOCK)
    ties = masks & np.uint32(0xFFFF) ^ sure
    n_found = pack_rows(arrays.entry_rows, position, sure, found, n_found)
    if ties != 0:
        n_found = _settle_ties(arrays, clauses, box, position, ties, found, n_found)
    return n_found


@lean_kernel
def _settle_ties(arrays, clauses, box, position, ties, found, n_found):
    """Append the rows of a complete list's entries that exact coordinates let touch."""
    while ties != 0:
        row = arrays.entry_rows[position + trailing_zeros(ties)]
        ties &= ties - np.uint32(1)
        c = any_clause(arrays, row)
        if box_touches(clauses.boxes, c, box[0], box[1], box[2], box[3]):
            found[n_found] = row
            n_found += 1
    return n_found


@inlined_kernel
def any_clause(arrays, row):
    """Return a clause of the slot that a complete list names; see ``entry_rows``."""
    slot = plain_row(row)
    return slot if len(arrays.slot_clauses) == 0 else arrays.slot_clauses[slot]


@lean_kernel
def keep_once(answers, start, stop, n_kept, seen):
    """Move a message's answers to where ``n_kept`` says, each slot once; return the new number.

    Only slots that are complemented can come twice. A bit for each stays in the second-level cache,
    where a word for each slot would be a miss for each answer.
    """
    signs = np.int32(0)
    for k in range(start, stop):
        signs |= answers[k]
    if signs >= 0:
        if n_kept < start:
            copy_part(answers, start, stop, answers, n_kept)
        return n_kept + stop - start
    first = n_kept
    for k in range(start, stop):
        slot = np.int64(answers[k])
        is_new = True
        if slot < 0:
            slot = ~slot
            word, bit = slot >> 6, np.uint64(1) << np.uint64(slot & 63)
            is_new = seen[word] & bit == 0
            seen[word] |= bit
        answers[n_kept] = slot
        n_kept += 1 if is_new else 0
    for k in range(first, n_kept):
        seen[answers[k] >> 6] = 0
    return n_kept
