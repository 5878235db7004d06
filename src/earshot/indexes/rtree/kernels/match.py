"""Matching against the trees of ``nodes.py``: R^t, R^t+, R^t++ and IR-tree.

[TKDE15] figures 3 and 6, with the errata that belong to them: rectangles overlap when their
intervals do on both axes, an entry that fails is skipped without leaving its node, and whether to
descend is decided for each entry by itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.kernels.blocks import passes_print
from earshot.indexes.kernels.matching import appends_answers
from earshot.indexes.kernels.token_tables import (
    first_not_below,
    list_entry_at,
    list_length,
    list_start,
    n_turns,
    place_in_turn,
)
from earshot.indexes.kernels.verifying import append_match
from earshot.indexes.rtree.kernels.nodes import (
    INVERTED,
    KIND,
    LEVELS,
    MAX_ENTRIES,
    ROOT,
    RtreeArrays,
    entry_bit,
    entry_clause,
    list_entry,
)
from earshot.indexes.rtree.kernels.token_orders import TokenOrderArrays
from earshot.kernels.box_keys import BLOCK, box_limit, touching_mask, trailing_zeros
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.model.arrays import Int32s, Int64s

SCANNED = 16
"""Entries of a list that are read one by one; a longer one is searched for those that touch."""


class RtreeIndexArrays(NamedTuple):
    """A tree, and the order of tokens that it was built with."""

    tree: RtreeArrays
    order: TokenOrderArrays


class RtScratch(NamedTuple):
    """Working memory of one thread."""

    marks: npt.NDArray[np.uint8]  # (n_tokens,) 1 for tokens of the current message
    serial: Int64s  # (1,)
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
    """Whether a node's table has a token of the message."""
    for k in range(n_turns(tables, node, message_tokens)):
        if place_in_turn(tables, node, message_tokens, k, scratch) >= 0:
            return True
    return False


@lean_kernel
def _entries_with(tables, node, message_tokens, scratch):
    """Return a bit for each entry of a node that has a token of the message (IR-tree)."""
    bits = np.int64(0)
    for k in range(n_turns(tables, node, message_tokens)):
        place = place_in_turn(tables, node, message_tokens, k, scratch)
        if place >= 0:
            bits |= np.int64(tables.values[place])
    return bits


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
    wanted = bits
    n_looked_at = 0
    for k in range(n_turns(tree.tables, node, message_tokens)):
        if wanted == 0:
            break
        place = place_in_turn(tree.tables, node, message_tokens, k, scratch)
        if place < 0:
            continue
        goes_on, n_more = _follow(tree, place, wanted, scratch.signature)
        wanted &= ~goes_on
        n_looked_at += n_more
    return bits & ~wanted, n_looked_at


@appends_answers(RtreeIndexArrays)
@inlined_kernel
def append_rtree(view, tokens, box, scratch, answers, n_answers, work):
    """Append one message's answers: visit the nodes that may hold some, from the root down."""
    tree = view.arrays.tree
    min_x, min_y, max_x, max_y = box
    stack, tables = scratch.stack, tree.tables
    kind, stride, root = tree.facts[KIND], tree.facts[MAX_ENTRIES], tree.facts[ROOT]
    limit = box_limit(tree.quantizer, min_x, min_y, max_x, max_y)
    depth = 0
    if tree.counts[root] > 0 and (
        tree.levels[root] > 0 or kind == LEVELS or _shares_token(tables, root, tokens, scratch)
    ):
        stack[0] = root
        depth = 1
    while depth > 0:
        depth -= 1
        node = np.int64(stack[depth])
        bits = entries_touching(tree, node, limit)
        work[0] += 1
        if tree.levels[node] > 0:
            if kind == INVERTED and bits != 0:
                bits &= _entries_with(tables, node, tokens, scratch)
            if kind == LEVELS and node != root:
                bits, n_looked_at = _entries_going_on(tree, node, tokens, bits, scratch)
                work[1] += n_looked_at
                work[0] -= bits == 0  # told by its table, as the other trees do before a visit
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
            work[0] -= kind == LEVELS and bits == 0
            work[1] += _n_bits(bits)
        else:
            work[1] += np.int64(tree.counts[node])
        while bits != 0:
            c = tree.entries[node * stride + lowest(bits)]
            bits &= bits - 1
            if kind == LEVELS and not passes_print(tree.prints[c], scratch.signature):
                continue
            n_answers = append_match(
                view, c, min_x, min_y, max_x, max_y, scratch, answers, n_answers
            )
            if n_answers < 0:
                return n_answers
    return n_answers


@lean_kernel
def _n_bits(bits):
    n = 0
    while bits != 0:
        bits &= bits - 1
        n += 1
    return n
