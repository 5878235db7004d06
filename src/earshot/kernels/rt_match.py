"""Matching against the trees of :mod:`earshot.kernels.rtree`: R^t, R^t+, R^t++ and IR-tree.

[TKDE15] figures 3 and 6, with the errata that belong to them: rectangles overlap when their
intervals do on both axes, an entry that fails is skipped without leaving its node, and whether to
descend is decided for each entry by itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.kernels.box_keys import BLOCK, box_limit, touching_mask, trailing_zeros
from earshot.kernels.jit import lean_kernel
from earshot.kernels.rtree import (
    INVERTED,
    KIND,
    LEVELS,
    MAX_ENTRIES,
    ROOT,
    entry_bit,
    entry_clause,
    list_entry,
    node_depth,
    required_stop,
    tree_height,
)
from earshot.kernels.token_tables import EMPTY, find, first_not_below, list_length, list_start
from earshot.kernels.verify import mark_tokens, region_touches, tokens_match
from earshot.model.arrays import Int32s

_DEPTH_BITS = 8
LAST_SERIAL = (1 << (32 - _DEPTH_BITS)) - 1


SCANNED = 16
"""Entries of a list that are read one by one; a longer one is searched for those that touch."""


class RtScratch(NamedTuple):
    """Working memory of one thread."""

    marks: npt.NDArray[np.uint8]  # (n_tokens,) 1 for tokens of the current message
    stack: Int32s  # nodes still to visit
    # LEVELS: (n_clauses,) the message that met the clause last, and down to which depth all its
    # tokens were found. Else empty.
    progress: npt.NDArray[np.uint32]
    hits: Int32s  # (MOST_ENTRIES + 1,) tokens of a leaf that were found, by entry
    serial: npt.NDArray[np.int64]  # (1,) number of the current message, up to LAST_SERIAL


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
def _shares_token(tables, node, message_tokens, marks):
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
        if token != EMPTY and marks[token] != 0:
            return True
    return False


@lean_kernel
def _entries_with(tables, node, message_tokens, marks):
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
        if token != EMPTY and marks[token] != 0:
            bits |= np.int64(tables.values[place])
    return bits


@lean_kernel
def _follow(tables, place, depth, bits, progress, stamp):
    """Count a token of the message for the clauses of a list under the entries ``bits`` (R^t++).

    Returns those entries that have a clause with all its tokens so far.
    """
    value = tables.values[place]
    start = list_start(value)
    stop = start + list_length(value)
    goes_on = np.int64(0)
    before, after = np.uint32(stamp | (depth - 1)), np.uint32(stamp | depth)
    is_long = stop - start > SCANNED
    i = start
    while i < stop:
        entry = tables.lists[i]
        bit = entry_bit(entry)
        if bits & bit == 0:
            if is_long:
                # On to the clauses under the next entry of the node that is wanted.
                higher = bits & -(bit << 1) if bit > 0 else np.int64(0)
                if higher == 0:
                    break
                i = first_not_below(tables.lists, i + 1, stop, list_entry(lowest(higher), 0))
            else:
                i += 1
            continue
        i += 1
        c = entry_clause(entry)
        if depth == 1 or progress[c] == before:
            progress[c] = after
            goes_on |= bit
    return goes_on


@lean_kernel
def _entries_going_on(tree, node, message_tokens, marks, depth, bits, progress, stamp):
    """Return which of the entries ``bits`` of an inner node can still hold an answer (R^t++)."""
    tables = tree.tables
    size = np.int64(tables.sizes[node])
    goes_on = np.int64(0)
    if 2 * len(message_tokens) <= size:
        for i in range(len(message_tokens)):
            place = find(tables, node, message_tokens[i])
            if place >= 0:
                goes_on |= _follow(tables, place, depth, bits, progress, stamp)
            place = find(tables, node, ~message_tokens[i])
            if place >= 0:
                goes_on |= np.int64(tables.values[place])
        return goes_on & bits
    start = tables.starts[node]
    for place in range(start, start + size):
        token = tables.tokens[place]
        if token == EMPTY:
            continue
        if token < 0:
            if marks[~token] != 0:
                goes_on |= np.int64(tables.values[place])
        elif marks[token] != 0:
            goes_on |= _follow(tables, place, depth, bits, progress, stamp)
    return goes_on & bits


@lean_kernel
def _count_hits(tables, leaf, message_tokens, marks, bits, hits):
    """Count the message's tokens that the entries ``bits`` of a leaf have there (R^t++).

    Returns the entries with at least one, and those among them that have no other token.
    """
    size = np.int64(tables.sizes[leaf])
    start = tables.starts[leaf]
    found = lone = np.int64(0)
    by_message = 2 * len(message_tokens) <= size
    for k in range(2 * len(message_tokens) if by_message else size):
        if by_message:
            token = message_tokens[k >> 1]
            place = find(tables, leaf, ~token if k & 1 else token)
            if place < 0:
                continue
            token = tables.tokens[place]
        else:
            place = start + k
            token = tables.tokens[place]
            if token == EMPTY or marks[token if token >= 0 else ~token] == 0:
                continue
        having = np.int64(tables.values[place]) & bits
        found |= having
        if token < 0:
            lone |= having
            continue
        while having != 0:
            hits[lowest(having)] += 1
            having &= having - 1
    return found, lone


@lean_kernel
def _complete(tree, clauses, leaf, bits, hits, progress, stamp):
    """Return the entries among ``bits`` all of whose tokens were found; clear their hits."""
    start = np.int64(leaf) * tree.facts[MAX_ENTRIES]
    height = tree_height(tree)
    complete = np.int64(0)
    while bits != 0:
        i = lowest(bits)
        bits &= bits - 1
        c = tree.entries[start + i]
        n_hits = hits[i]
        hits[i] = 0
        if height > 1 and progress[c] != np.uint32(stamp | (height - 1)):
            continue
        n = required_stop(clauses, c) - clauses.token_offsets[c]
        if n_hits == max(n - height + 1, 1):
            complete |= np.int64(1) << i
    return complete


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
        if scratch.serial[0] == LAST_SERIAL:
            scratch.serial[0] = 0
            for c in range(len(scratch.progress)):
                scratch.progress[c] = 0
        scratch.serial[0] += 1
        stamp = scratch.serial[0] << _DEPTH_BITS
        n_nodes = n_candidates = depth = 0
        if tree.counts[root] > 0 and (
            tree.levels[root] > 0 or kind == LEVELS or _shares_token(tables, root, tokens, marks)
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
                    bits &= _entries_with(tables, node, tokens, marks)
                if kind == LEVELS and node != root:
                    bits = _entries_going_on(
                        tree, node, tokens, marks, node_depth(tree, node), bits,
                        scratch.progress, stamp,
                    )  # fmt: skip
                    n_nodes -= bits == 0  # told by its table, as the other trees do before a visit
                while bits != 0:
                    child = tree.entries[node * stride + lowest(bits)]
                    bits &= bits - 1
                    if kind < LEVELS and not _shares_token(tables, child, tokens, marks):
                        continue
                    stack[depth] = child
                    depth += 1
                continue
            if kind == LEVELS:
                found, lone = _count_hits(tables, node, tokens, marks, bits, scratch.hits)
                n_nodes -= found == 0
                n_candidates += _n_bits(found)
                bits = lone | _complete(
                    tree, clauses, node, found & ~lone, scratch.hits, scratch.progress, stamp
                )
            elif kind == INVERTED:
                found = _entries_with(tables, node, tokens, marks)
                bits &= found
                n_candidates += _n_bits(found)
            else:
                n_candidates += np.int64(tree.counts[node])
            while bits != 0:
                c = tree.entries[node * stride + lowest(bits)]
                bits &= bits - 1
                if kind == LEVELS:
                    matches = _none_forbidden(clauses, c, marks)
                else:
                    matches = tokens_match(
                        clauses.token_ids,
                        clauses.token_offsets[c],
                        clauses.token_offsets[c + 1],
                        marks,
                    )
                if matches and region_touches(clauses, c, is_lonlat, min_x, min_y, max_x, max_y):
                    if n_answers == len(answers):
                        full = True
                        break
                    answers[n_answers] = clauses.subscriptions[c]
                    n_answers += 1
        mark_tokens(messages.token_ids, first, last, marks, 0)
        if full:
            return m - start
        work[0] += n_nodes
        work[1] += n_candidates
        offsets[m - start + 1] = n_answers
    return stop - start


@lean_kernel
def _none_forbidden(clauses, c, marks):
    """Whether no forbidden token of a clause is in the message."""
    i = clauses.token_offsets[c + 1] - 1
    while clauses.token_ids[i] < 0:
        if marks[~clauses.token_ids[i]] != 0:
            return False
        i -= 1
    return True


@lean_kernel
def _n_bits(bits):
    n = 0
    while bits != 0:
        bits &= bits - 1
        n += 1
    return n
