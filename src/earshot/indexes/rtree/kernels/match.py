"""Matching against the trees of ``nodes.py``: R^t, R^t+, R^t++ and IR-tree.

[TKDE15] figures 3 and 6, with the errata that belong to them: rectangles overlap when their
intervals do on both axes, an entry that fails is skipped without leaving its node, and whether to
descend is decided for each entry by itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.kernels.blocks import has_token, sign_tokens, unsign_tokens
from earshot.indexes.rtree.kernels.nodes import (
    INVERTED,
    KIND,
    LEVELS,
    MAX_ENTRIES,
    ROOT,
    entry_bit,
    entry_clause,
    list_entry,
)
from earshot.indexes.rtree.kernels.token_tables import (
    EMPTY,
    find,
    first_not_below,
    list_entry_at,
    list_length,
    list_start,
)
from earshot.kernels.box_keys import BLOCK, box_limit, touching_mask, trailing_zeros
from earshot.kernels.jit import lean_kernel
from earshot.kernels.verify import mark_tokens, region_touches, tokens_match
from earshot.model.arrays import Int32s

SCANNED = 16
"""Entries of a list that are read one by one; a longer one is searched for those that touch."""


class RtScratch(NamedTuple):
    """Working memory of one thread."""

    marks: npt.NDArray[np.uint8]  # (n_tokens,) 1 for tokens of the current message
    stack: Int32s  # nodes still to visit
    signature: npt.NDArray[np.uint64]  # (SIGNATURE_WORDS,) a bit per low half of a token


@lean_kernel
def entries_touching(tree, node, limit):
    """Return a bit for each entry of a node whose key touches the limit."""
    start = np.int64(node) * tree.facts[MAX_ENTRIES]
    n = np.int64(tree.counts[node])
    bits = np.int64(0)
    for first in range(0, n, BLOCK):
        mask = np.int64(touching_mask(tree.keys, start + first, limit))
        if n - first < BLOCK:
            mask &= (np.int64(1) << (n - first)) - 1
        bits |= mask << first
    return bits


@lean_kernel
def lowest(bits):
    """Return the position of the lowest bit that is set; there must be one."""
    low = np.uint32(bits & 0xFFFFFFFF)
    if low != 0:
        return trailing_zeros(low)
    return 32 + trailing_zeros(np.uint32(bits >> 32 & 0xFFFFFFFF))


@lean_kernel
def _shares_token(tables, node, message_tokens, scratch):
    """Whether a node's table has a token of the message; the shorter of the two is gone through."""
    size = np.int64(tables.sizes[node])
    if len(message_tokens) <= size:
        for i in range(len(message_tokens)):
            if find(tables, node, message_tokens[i]) >= 0:
                return True
        return False
    start = tables.starts[node]
    for place in range(start, start + size):
        token = tables.tokens[place]
        if token != EMPTY and has_token(token, scratch.signature, scratch.marks):
            return True
    return False


@lean_kernel
def _entries_with(tables, node, message_tokens, scratch):
    """Return a bit for each entry of a node that has a token of the message (IR-tree)."""
    size = np.int64(tables.sizes[node])
    bits = np.int64(0)
    if len(message_tokens) <= size:
        for i in range(len(message_tokens)):
            place = find(tables, node, message_tokens[i])
            if place >= 0:
                bits |= np.int64(tables.values[place])
        return bits
    start = tables.starts[node]
    for place in range(start, start + size):
        token = tables.tokens[place]
        if token != EMPTY and has_token(token, scratch.signature, scratch.marks):
            bits |= np.int64(tables.values[place])
    return bits


@lean_kernel
def passes_print(print_, signature):
    """Whether the message may have the two tokens that a print was made of."""
    one, other = np.int64(print_ & np.uint32(0xFFFF)), np.int64(print_ >> np.uint32(16))
    return (
        signature[one >> 6] >> np.uint64(one & 63)
        & signature[other >> 6] >> np.uint64(other & 63)
        & np.uint64(1)
    ) != 0


@lean_kernel
def _follow(tree, place, bits, signature):
    """Look among the entries ``bits`` of a node for clauses to go on for, by one token (R^t++).

    Returns the entries that have one, and how many clauses were looked at.
    """
    tables = tree.tables
    value = np.int64(tables.values[place])
    stop = list_length(value)
    is_long = stop > SCANNED
    start = list_start(value) if is_long else np.int64(0)
    goes_on = np.int64(0)
    n_looked_at = 0
    i = np.int64(0)
    while i < stop and bits != 0:
        entry = list_entry_at(tables, value, i)
        bit = entry_bit(entry)
        if bits & bit != 0:
            c = entry_clause(entry)
            n_looked_at += 1
            if c < 0 or passes_print(tree.prints[c], signature):
                goes_on |= bit
                bits &= ~bit
            i += 1
        elif is_long:
            # On to the clauses under the next entry that is wanted.
            higher = bits & -(bit << 1)
            if higher == 0:
                break
            wanted = list_entry(lowest(higher), -1)
            i = first_not_below(tables.lists, start + i + 1, start + stop, wanted) - start
        else:
            i += 1
    return goes_on, n_looked_at


@lean_kernel
def _entries_going_on(tree, node, message_tokens, bits, scratch):
    """Return which of the entries ``bits`` of an inner node can still hold an answer (R^t++).

    Also returns how many clauses were looked at.
    """
    tables = tree.tables
    size = np.int64(tables.sizes[node])
    wanted = bits
    n_looked_at = 0
    by_message = len(message_tokens) <= size
    start = tables.starts[node]
    for k in range(len(message_tokens) if by_message else size):
        if wanted == 0:
            break
        if by_message:
            place = find(tables, node, message_tokens[k])
            if place < 0:
                continue
        else:
            place = start + k
            token = tables.tokens[place]
            if token == EMPTY or not has_token(token, scratch.signature, scratch.marks):
                continue
        goes_on, n_more = _follow(tree, place, wanted, scratch.signature)
        wanted &= ~goes_on
        n_looked_at += n_more
    return bits & ~wanted, n_looked_at


@lean_kernel
def match_rtree(
    tree, clauses, is_lonlat, messages, start, stop, row, scratch, answers, offsets, work
):
    """Match messages ``start + row`` to ``stop``; see ``collect_answers`` for the protocol."""
    marks, stack, tables = scratch.marks, scratch.stack, tree.tables
    kind, stride = tree.facts[KIND], tree.facts[MAX_ENTRIES]
    root = tree.facts[ROOT]
    n_answers = offsets[row]
    for m in range(start + row, stop):
        first, last = messages.token_offsets[m], messages.token_offsets[m + 1]
        min_x, min_y, max_x, max_y = messages.boxes[m]
        limit = box_limit(tree.quantizer, min_x, min_y, max_x, max_y)
        tokens = messages.token_ids[first:last]
        mark_tokens(messages.token_ids, first, last, marks, 1)
        sign_tokens(tokens, scratch.signature)
        n_nodes = n_candidates = depth = 0
        if tree.counts[root] > 0 and (
            tree.levels[root] > 0 or kind == LEVELS or _shares_token(tables, root, tokens, scratch)
        ):
            stack[0] = root
            depth = 1
        full = False
        while depth > 0 and not full:
            depth -= 1
            node = np.int64(stack[depth])
            bits = entries_touching(tree, node, limit)
            n_nodes += 1
            if tree.levels[node] > 0:
                if kind == INVERTED and bits != 0:
                    bits &= _entries_with(tables, node, tokens, scratch)
                if kind == LEVELS and node != root:
                    bits, n_looked_at = _entries_going_on(tree, node, tokens, bits, scratch)
                    n_candidates += n_looked_at
                    n_nodes -= bits == 0  # told by its table, as the other trees do before a visit
                while bits != 0:
                    child = tree.entries[node * stride + lowest(bits)]
                    bits &= bits - 1
                    if kind < LEVELS and not _shares_token(tables, child, tokens, scratch):
                        continue
                    stack[depth] = child
                    depth += 1
                continue
            if kind >= LEVELS:
                bits &= _entries_with(tables, node, tokens, scratch)
                n_nodes -= kind == LEVELS and bits == 0
                n_candidates += _n_bits(bits)
            else:
                n_candidates += np.int64(tree.counts[node])
            while bits != 0:
                c = tree.entries[node * stride + lowest(bits)]
                bits &= bits - 1
                if kind == LEVELS and not passes_print(tree.prints[c], scratch.signature):
                    continue
                if tokens_match(
                    clauses.token_ids,
                    clauses.token_offsets[c],
                    clauses.token_offsets[c + 1],
                    marks,
                ) and region_touches(clauses, c, is_lonlat, min_x, min_y, max_x, max_y):
                    if n_answers == len(answers):
                        full = True
                        break
                    answers[n_answers] = clauses.subscriptions[c]
                    n_answers += 1
        mark_tokens(messages.token_ids, first, last, marks, 0)
        unsign_tokens(tokens, scratch.signature)
        if full:
            return m - start
        work[0] += n_nodes
        work[1] += n_candidates
        offsets[m - start + 1] = n_answers
    return stop - start


@lean_kernel
def _n_bits(bits):
    n = 0
    while bits != 0:
        bits &= bits - 1
        n += 1
    return n
