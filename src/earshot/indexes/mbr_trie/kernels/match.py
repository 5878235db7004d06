"""Matching against the MBRTrie of ``nodes.py``, [CIKM15] §3.2-3.3, Algorithm 1.

The paper's letters: T is ``scratch.labels``, the message's labels as they fall; T_n, what of T
comes after a node's own token, is the part of it from the node's ``place`` on; |n| is the number of
children of a node, N the number of tokens of the message.

What differs from the print: SELECTPAIR keeps a child whose MBR *does* overlap the message (the
print says that it does not). A child's label is looked up in an array by label, behind a signature
in the first-level cache, instead of by binary search in T. MBRs are box keys, and sixteen children
are compared at once. The children of the root are looked up by token. So the two probings do not
cost |n| log |T_n| and |T_n| log |n| steps: see ``SET_STEP`` and ``TRIE_STEP``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.kernels.blocks import (
    SIGNATURE_WORDS,
    low_bits,
    sign_tokens,
    unsign_tokens,
)
from earshot.indexes.kernels.matching import View, appends_answers
from earshot.indexes.mbr_trie.kernels.nodes import (
    FIRST_CHILD,
    LABEL,
    N_CHILDREN,
    N_NUMBERED,
    OWN_STOP,
    PROBING,
    ROOT,
    START,
    TOP_NODE,
    MbrTrieArrays,
)
from earshot.kernels.box_keys import (
    BLOCK,
    box_limit,
    key_touches,
    strict_limit,
    touching_mask,
    trailing_zeros,
)
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.kernels.processor import prefetch
from earshot.kernels.verify import box_touches, region_touches
from earshot.model.arrays import Int32s, Int64s

# Ways to find the children of a node that a message has, by number in ``facts[PROBING]``.
PROBE_TOKEN_SET, PROBE_TRIE, PROBE_BY_COST = range(3)

SET_STEP = 0.25
"""Nanoseconds that ProbeTokenSet takes for a child of a node.

Measured, as ``TRIE_STEP``, on a trie of one node with 32 to 65,536 children: 0.2 ns in the cache.
"""
TRIE_STEP = 5.0
"""Nanoseconds that ProbeTrie takes for a token and a halving of the children: 2 to 9, most where
children are many and tokens few."""
FEW_CHILDREN = 32
"""Children up to which nobody reckons: the message's tokens are looked up."""

_SORTED_IN_PLACE = 48
_AHEAD = 12


class MbrTrieScratch(NamedTuple):
    """Working memory of one thread."""

    serial: Int64s  # (1,)
    labels: Int32s  # (>= n_tokens,) the message's labels, falling
    codes: Int64s  # (>= 2 * n_tokens,) two halves: label and child of the root, for sorting
    places: Int32s  # (>= n_tokens,) by label: one more than where it stands in labels, 0 if not
    signature: npt.NDArray[np.uint64]  # (SIGNATURE_WORDS,) a bit per label
    stack: Int32s  # (>= 2 * n_nodes,) nodes still to visit, and their places in the labels
    choices: Int64s  # (>= 2,) nodes whose children were found by either probing


@inlined_kernel
def plain_view(view):
    """Return the view without the structure: what is passed on takes time in each call."""
    return View((), view.clauses, view.alive, view.is_lonlat, ())


@lean_kernel
def sort_labels(trie, tokens, scratch):
    """Put the labels of a message in order, sign them and note their places; return the number.

    With each label goes the child of the root that it leads to: ``scratch.codes`` has both.
    """
    codes = scratch.codes
    n = 0
    for i in range(len(tokens)):
        if i + _AHEAD < len(tokens) and tokens[i + _AHEAD] < len(trie.tokens):
            prefetch(trie.tokens, tokens[i + _AHEAD])
        token = tokens[i]
        if token < len(trie.tokens):
            label = np.int64(trie.tokens[token, LABEL])
            codes[n] = label << 32 | np.int64(trie.tokens[token, TOP_NODE] + 1)
            n += 1
    if n <= _SORTED_IN_PLACE:
        for i in range(1, n):
            code = codes[i]
            j = i
            while j > 0 and codes[j - 1] < code:
                codes[j] = codes[j - 1]
                j -= 1
            codes[j] = code
    else:
        _sort_falling(codes, n, len(trie.tokens), scratch.labels)
    labels, places = scratch.labels, scratch.places
    for i in range(n):
        labels[i] = np.int32(codes[i] >> 32)
        places[labels[i]] = i + 1
        top = np.int64(codes[i] & 0xFFFFFFFF)
        if top > 0:
            prefetch(trie.keys, top - 1)
            prefetch(trie.nodes, top - 1)
    sign_tokens(labels[:n], scratch.signature)
    return n


@lean_kernel
def _sort_falling(codes, n, n_labels, counts):
    """Sort codes by their labels, bytes from the lowest to the highest, from half to half.

    ``counts`` has room for a number per byte, if there are as many labels.
    """
    half = len(codes) >> 1
    source, target = np.int64(0), np.int64(half)
    shift = 32
    while n_labels >> (shift - 32) > 0:
        for digit in range(256):
            counts[digit] = 0
        for i in range(n):
            counts[codes[source + i] >> shift & 255] += 1
        total = 0
        for digit in range(255, -1, -1):
            count = counts[digit]
            counts[digit] = total
            total += count
        for i in range(n):
            digit = codes[source + i] >> shift & 255
            codes[target + counts[digit]] = codes[source + i]
            counts[digit] += 1
        source, target = target, source
        shift += 8
    if source > 0:
        for i in range(n):
            codes[i] = codes[source + i]


@lean_kernel
def forget_labels(scratch, n):
    """Clear what ``sort_labels`` set."""
    unsign_tokens(scratch.labels[:n], scratch.signature)
    for i in range(n):
        scratch.places[scratch.labels[i]] = 0


@inlined_kernel
def place_of(label, scratch):
    """Return one more than where a label stands among the message's, or 0."""
    word = scratch.signature[(label >> 6) & (SIGNATURE_WORDS - 1)]
    if word >> np.uint64(label & 63) & np.uint64(1) == 0:
        return np.int32(0)
    return scratch.places[label]


@inlined_kernel
def append_entry(view, trie, number, strict, box, scratch, answers, n_answers):
    """Append an entry whose path the message has and whose key touches it; -1 without room."""
    clauses = view.clauses
    if trie.has_more[number] != 0:
        if not _rest_matches(view, trie, number, box, scratch):
            return n_answers
    elif not key_touches(trie.entry_keys[number], strict) and not box_touches(
        clauses.boxes, number, box[0], box[1], box[2], box[3]
    ):
        return n_answers
    if n_answers == len(answers):
        return -1
    answers[n_answers] = clauses.subscriptions[number]
    return n_answers + 1


@lean_kernel
def _rest_matches(view, trie, row, box, scratch):
    """Whether the message has no forbidden token of a clause, and touches its region."""
    clauses = view.clauses
    for i in range(clauses.token_offsets[row], clauses.token_offsets[row + 1]):
        token = ~clauses.token_ids[i]
        if token >= 0 and scratch.places[trie.tokens[token, LABEL]] > 0:
            return False
    return region_touches(clauses, row, view.is_lonlat, box[0], box[1], box[2], box[3])


@lean_kernel
def append_own(view, trie, node, limit, box, scratch, answers, n_answers, work):
    """MBRTrie-VERIFY: append what ends at a node and touches the message; -1 without room."""
    start, stop = np.int64(trie.nodes[node, START]), np.int64(trie.nodes[node, OWN_STOP])
    strict = strict_limit(limit)
    work[1] += stop - start
    for first in range(start, stop, BLOCK):
        if stop - first == 1:
            mask = np.uint32(key_touches(trie.entry_keys[first], limit))
        else:
            mask = touching_mask(trie.entry_keys, first, limit) & low_bits(stop - first)
        while mask != 0:
            number = first + trailing_zeros(mask)
            mask &= mask - np.uint32(1)
            n_answers = append_entry(view, trie, number, strict, box, scratch, answers, n_answers)
            if n_answers < 0:
                return n_answers
    if len(trie.heads) > 0:
        number = np.int64(trie.heads[node])
        while number >= 0:
            work[1] += 1
            if key_touches(trie.entry_keys[number], limit):
                n_answers = append_entry(
                    view, trie, number, strict, box, scratch, answers, n_answers
                )
                if n_answers < 0:
                    return n_answers
            number = np.int64(trie.chains[number - trie.facts[N_NUMBERED]])
    return n_answers


@inlined_kernel
def probes_trie(probing, n_children, n_left):
    """Whether to look the message's tokens up among the children, SELECTPAIR l. 2."""
    if probing != PROBE_BY_COST:
        return probing == PROBE_TRIE
    return n_children > FEW_CHILDREN and (
        TRIE_STEP * n_left * math.log2(np.float64(n_children)) < SET_STEP * n_children
    )


@lean_kernel
def push_children(trie, node, place, n_labels, limit, scratch, n_stack):
    """SELECTPAIR: push the children that touch the message and that it has the token of.

    ``place`` is where in the message's labels those begin that may follow. Returns the new height
    of the stack.
    """
    stack, labels, keys = scratch.stack, trie.labels, trie.keys
    first, n = np.int64(trie.nodes[node, FIRST_CHILD]), np.int64(trie.nodes[node, N_CHILDREN])
    if probes_trie(trie.facts[PROBING], n, n_labels - place):
        scratch.choices[PROBE_TRIE] += 1
        low, stop = first, first + n
        for i in range(place, n_labels):
            label = scratch.labels[i]
            high = stop
            while low < high:
                middle = (low + high) >> 1
                if labels[middle] > label:
                    low = middle + 1
                else:
                    high = middle
            if low == stop:
                break
            if labels[low] == label and key_touches(keys[low], limit):
                stack[n_stack] = low
                stack[n_stack + 1] = i + 1
                n_stack += 2
        return n_stack
    scratch.choices[PROBE_TOKEN_SET] += 1
    return _push_touching(trie, first, first + n, limit, scratch, n_stack)


@lean_kernel
def _push_touching(trie, first, stop, limit, scratch, n_stack):
    """Push those of some nodes that touch the message and that it has the token of."""
    stack, labels, keys = scratch.stack, trie.labels, trie.keys
    for start in range(first, stop, BLOCK):
        if stop - start == 1:
            mask = np.uint32(key_touches(keys[start], limit))
        else:
            mask = touching_mask(keys, start, limit) & low_bits(stop - start)
        while mask != 0:
            child = start + trailing_zeros(mask)
            mask &= mask - np.uint32(1)
            place = place_of(labels[child], scratch)
            if place > 0:
                prefetch(trie.nodes, child)
                stack[n_stack] = child
                stack[n_stack + 1] = place
                n_stack += 2
    return n_stack


@lean_kernel
def push_top(trie, n_labels, limit, scratch):
    """Push the children of the root that touch the message and that it has the token of."""
    n = np.int64(trie.nodes[ROOT, N_CHILDREN])
    first = np.int64(trie.nodes[ROOT, FIRST_CHILD])
    probing = trie.facts[PROBING]
    # The children of the tokens are known already, so nothing need be searched for.
    if probing == PROBE_TOKEN_SET or (probing == PROBE_BY_COST and n < n_labels):
        scratch.choices[PROBE_TOKEN_SET] += 1
        return _push_touching(trie, first, first + n, limit, scratch, 0)
    scratch.choices[PROBE_TRIE] += 1
    stack, codes = scratch.stack, scratch.codes
    n_stack = 0
    for i in range(n_labels):
        top = np.int64(codes[i] & 0xFFFFFFFF) - 1
        if top >= 0 and key_touches(trie.keys[top], limit):
            prefetch(trie.entry_keys, trie.nodes[top, START])
            prefetch(trie.keys, trie.nodes[top, FIRST_CHILD])
            stack[n_stack] = top
            stack[n_stack + 1] = i + 1
            n_stack += 2
    return n_stack


@inlined_kernel
def append_by_trie(view, trie, tokens, limit, box, scratch, answers, n_answers, work):
    """MBRTrie-FILTER and -VERIFY of Algorithm 1 below the root; -1 without room."""
    stack = scratch.stack
    n_labels = sort_labels(trie, tokens, scratch)
    n_stack = push_top(trie, n_labels, limit, scratch)
    while n_stack > 0:
        n_stack -= 2
        node, place = np.int64(stack[n_stack]), np.int64(stack[n_stack + 1])
        work[0] += 1
        if trie.nodes[node, N_CHILDREN] > 0 and place < n_labels:
            n_stack = push_children(trie, node, place, n_labels, limit, scratch, n_stack)
        n_answers = append_own(view, trie, node, limit, box, scratch, answers, n_answers, work)
        if n_answers < 0:
            break
    forget_labels(scratch, n_labels)
    return n_answers


@appends_answers(MbrTrieArrays, marks_tokens=False)
@inlined_kernel
def append_mbr_trie(view, tokens, box, scratch, answers, n_answers, work):
    """Append one message's answers: MBRTrie of Algorithm 1."""
    trie, choices = view.arrays, scratch.choices
    limit = box_limit(trie.quantizer, box[0], box[1], box[2], box[3])
    work[0] += 1
    if not key_touches(trie.keys[ROOT], limit):
        return n_answers
    n_sets, n_tries = choices[PROBE_TOKEN_SET], choices[PROBE_TRIE]
    n_answers = append_by_trie(
        plain_view(view), trie, tokens, limit, box, scratch, answers, n_answers, work
    )
    if n_answers < 0:  # the message comes again
        choices[PROBE_TOKEN_SET], choices[PROBE_TRIE] = n_sets, n_tries
    return n_answers
