"""Matching by LFilter, [CIKM15] §5, Algorithm 3: an MBRTrie and a PT-Quadtree, one numbering.

Step by step:

1. The filter-step cost model (:mod:`earshot.indexes.lfilter.kernels.costs`) chooses between the
   trie alone, which is Algorithm 1, and the quadtree.
2. On the quadtree's way, its filter step finds lists of numbers, Φ_I in the paper. By eqs. 5 and 6
   all of them are verified as they are (PT-QUADTREE-VERIFY), or HYBRIDPRUNE begins.
3. It looks for the children of the trie's root that the message has and touches, its *tops*, and
   takes one list I after the other: again, I is verified, or cut into what lies in the ranges of
   the tops (LISTPRUNING). Each part goes down the trie from its top, with a choice at each node.

The lists of the quadtree ascend by number, and so do the ranges of tops. Where a list is longer
than there are tops, each top is looked up in the list, else each number of the list among the tops.
What was inserted since the trie was built has numbers above all ranges: it stands last in each
list, and is verified there.

What differs from the print. Numbers are rows: clauses are stored in the order of the trie. From the
root on, HYBRIDPRUNE goes through the lists one by one, so that short lists and long ones are told
apart. Costs are in nanoseconds as measured, instead of orders of magnitude.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from earshot.indexes.kernels.blocks import sign_tokens, unsign_tokens
from earshot.indexes.kernels.matching import appends_answers
from earshot.indexes.kernels.token_tables import list_entry_at, list_length
from earshot.indexes.lfilter.kernels.costs import (
    BY_COST,
    DIRECT_STEP,
    LABEL_STEP,
    LOOKUP_STEP,
    NODE_STEP,
    PRUNED,
    VERIFICATION,
    Costs,
    takes_trie,
    visit_cost,
)
from earshot.indexes.mbr_trie.kernels.match import (
    MbrTrieScratch,
    append_by_trie,
    append_entry,
    forget_labels,
    plain_view,
    push_children,
    sort_labels,
)
from earshot.indexes.mbr_trie.kernels.nodes import (
    N_CHILDREN,
    N_NUMBERED,
    OWN_STOP,
    ROOT,
    START,
    MbrTrieArrays,
    range_end,
)
from earshot.indexes.pt_quadtree.kernels.changes import PtQuadtreeArrays
from earshot.indexes.pt_quadtree.kernels.match import PtScratch, find_lists, start
from earshot.indexes.quadtree.kernels.cells import grid_box
from earshot.indexes.quadtree.kernels.nodes import find_number
from earshot.indexes.quadtree.kernels.verifying import append_list, is_reported_here
from earshot.kernels.box_keys import box_limit, key_touches, strict_limit
from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.kernels.verify import mark_tokens
from earshot.model.arrays import Int32s, Int64s

# What is counted in ``choices``.
TRIE_WAY, QUADTREE_WAY, LISTS_PRUNED, LISTS_VERIFIED, NODES_PRUNED, NODES_VERIFIED = range(6)
N_CHOICES = 6

FRAMES = 4096
"""Parts of a list that wait at nodes of the trie; further ones are verified at once."""
FEW_ENTRIES = 3
"""Entries of a list up to which nobody reckons: they are verified."""


class LFilterArrays(NamedTuple):
    """A trie and a quadtree over the same clauses, whose numbers are their rows."""

    trie: MbrTrieArrays
    quadtree: PtQuadtreeArrays
    costs: Costs


class Tops(NamedTuple):
    """Children of the trie's root that a message has and touches, in the order of their ranges."""

    nodes: Int32s  # (>= n_tokens,)
    places: Int32s  # (>= n_tokens,) where in the message's labels those begin that may follow
    starts: Int32s  # (>= n_tokens,) their ranges of numbers
    ends: Int32s  # (>= n_tokens,)


class LFilterScratch(NamedTuple):
    """Working memory of one thread."""

    serial: Int64s  # (1,)
    trie: MbrTrieScratch
    quadtree: PtScratch
    tops: Tops
    frames: Int64s  # (FRAMES, 5) node, place, end of its range, and part of a list, that wait
    choices: Int64s  # (N_CHOICES,)


@lean_kernel
def find_tops(trie, n_labels, limit, scratch):
    """Find the tops of a message, whose labels are in order; return how many."""
    codes, tops = scratch.trie.codes, scratch.tops
    n = 0
    for i in range(n_labels):
        top = np.int64(codes[i] & 0xFFFFFFFF) - 1
        if top < 0 or not key_touches(trie.keys[top], limit):
            continue
        first = np.int64(trie.nodes[top, START])
        end = range_end(trie, ROOT, top, trie.facts[N_NUMBERED])
        if first == end:  # made by a later clause; its empty range is out of order
            continue
        tops.nodes[n] = top
        tops.places[n] = i + 1
        tops.starts[n] = first
        tops.ends[n] = end
        n += 1
    return n


@inlined_kernel
def _cutting_cost(n_tops, n_entries):
    """Return what it costs to cut a list by tops: the fewer are looked up among the others."""
    few, many = min(n_tops, n_entries), max(n_tops, n_entries)
    return LOOKUP_STEP * few * math.log2(np.float64(many + 1))


@inlined_kernel
def _wants_tops(verification, n_tokens, n_found, found):
    """Whether to prune the lists found at all: C_L < C_V for all of them together."""
    if verification != BY_COST:
        return verification == PRUNED
    saved = -LABEL_STEP * n_tokens
    for k in range(n_found):
        saved += DIRECT_STEP * list_length(found.found_values[k])
    if saved <= 0.0:
        return False
    for k in range(n_found):
        n = np.int64(list_length(found.found_values[k]))
        saved -= min(_cutting_cost(np.int64(n_tokens), n), DIRECT_STEP * n)
    return saved > 0.0


@inlined_kernel
def append_found(plain, tree, n_found, box, on_grid, found, answers, n_answers, work):
    """PT-QUADTREE-VERIFY of the lists found; return the number of answers, -1 without room."""
    for k in range(n_found):
        value = found.found_values[k]
        n = np.int64(list_length(value))
        work[1] += n
        n_answers = append_list(
            plain, tree, np.int64(found.found_nodes[k]), value, 0, n, box, on_grid, found, answers,
            n_answers,
        )  # fmt: skip
        if n_answers < 0:
            break
    return n_answers


@lean_kernel
def append_by_lists(
    view, n_labels, n_tops, n_found, limit, box, on_grid, scratch, answers, n_answers, work
):
    """HYBRIDPRUNE at the root for the lists found; return the new number of answers, or -1."""
    trie, tree = view.arrays.trie, view.arrays.quadtree.tree
    plain = plain_view(view)
    found = scratch.quadtree
    verification = view.arrays.costs.rules[VERIFICATION]
    for k in range(n_found):
        node, value = np.int64(found.found_nodes[k]), found.found_values[k]
        length = np.int64(list_length(value))
        n_old = length
        if len(trie.heads) > 0:  # there are later ones
            n_old = np.int64(find_number(tree.lists, value, trie.facts[N_NUMBERED]))
        if verification != PRUNED and (
            n_old <= FEW_ENTRIES or _cutting_cost(n_tops, n_old) >= DIRECT_STEP * n_old
        ):
            scratch.choices[LISTS_VERIFIED] += 1
            n_old = np.int64(0)
        if n_old < length:
            work[1] += length - n_old
            n_answers = append_list(
                plain, tree, node, value, n_old, length, box, on_grid, found, answers, n_answers
            )
        if n_old > 0 and n_answers >= 0:
            scratch.choices[LISTS_PRUNED] += 1
            n_answers = _append_pruned(
                view, n_labels, n_tops, node, value, n_old, limit, box, on_grid, scratch,
                answers, n_answers, work,
            )  # fmt: skip
        if n_answers < 0:
            break
    return n_answers


@lean_kernel
def _append_pruned(
    view, n_labels, n_tops, node, value, n_old, limit, box, on_grid, scratch, answers, n_answers,
    work,
):  # fmt: skip
    """LISTPRUNING of one list by the tops, and what follows below each of them."""
    lists, tops = view.arrays.quadtree.tree.lists, scratch.tops
    by_tops = n_tops <= n_old
    at, top = np.int64(0), np.int64(0)
    while at < n_old and top < n_tops:
        if by_tops:
            at = _first_entry(lists, value, at, n_old, tops.starts[top])
        else:
            number = np.int64(list_entry_at(lists, value, at))
            top = _last_top(tops.starts, top, n_tops, number)
            if tops.starts[top] > number:
                at += 1  # before the first top
                continue
        stop = at
        while stop < n_old and list_entry_at(lists, value, stop) < tops.ends[top]:
            stop += 1
        if stop > at:
            n_answers = _append_below(
                view, tops.nodes[top], tops.places[top], tops.ends[top], n_labels, node, value,
                at, stop, limit, box, on_grid, scratch, answers, n_answers, work,
            )  # fmt: skip
            if n_answers < 0:
                return n_answers
            at = stop
        elif not by_tops:
            at += 1
        top += by_tops
    return n_answers


@inlined_kernel
def _first_entry(lists, value, low, high, number):
    """Return the first entry from ``low`` on that is not below a number, or ``high``."""
    while low < high:
        middle = (low + high) >> 1
        if list_entry_at(lists, value, middle) < number:
            low = middle + 1
        else:
            high = middle
    return low


@inlined_kernel
def _last_top(starts, low, n_tops, number):
    """Return the last top from ``low`` on whose range begins at a number or before, or ``low``."""
    high = n_tops
    while high - low > 1:
        middle = (low + high) >> 1
        if starts[middle] <= number:
            low = middle
        else:
            high = middle
    return low


@lean_kernel
def _append_below(
    view, trie_node, place, end, n_labels, node, value, first, stop, limit, box, on_grid, scratch,
    answers, n_answers, work,
):  # fmt: skip
    """HYBRIDPRUNE below a node of the trie, for a part of a list that lies in its range."""
    trie, tree = view.arrays.trie, view.arrays.quadtree.tree
    plain = plain_view(view)
    verification = view.arrays.costs.rules[VERIFICATION]
    frames, lists = scratch.frames, tree.lists
    strict = strict_limit(limit)
    frames[0, 0], frames[0, 1], frames[0, 2] = trie_node, place, end
    frames[0, 3], frames[0, 4] = first, stop
    n_frames = 1
    while n_frames > 0:
        n_frames -= 1
        trie_node, place, end = frames[n_frames, 0], frames[n_frames, 1], frames[n_frames, 2]
        first, stop = frames[n_frames, 3], frames[n_frames, 4]
        if verification != PRUNED and stop - first <= FEW_ENTRIES:
            scratch.choices[NODES_VERIFIED] += 1
            work[1] += stop - first
            n_answers = append_list(
                plain, tree, node, value, first, stop, box, on_grid, scratch.quadtree, answers,
                n_answers,
            )  # fmt: skip
            if n_answers < 0:
                return n_answers
            continue
        work[0] += 1
        # The clauses that end here: only their regions are left to verify.
        own_stop = trie.nodes[trie_node, OWN_STOP]
        while first < stop:
            number = np.int64(list_entry_at(lists, value, first))
            if number >= own_stop:
                break
            first += 1
            work[1] += 1
            if key_touches(trie.entry_keys[number], limit) and is_reported_here(
                tree, view.clauses, node, number, on_grid
            ):
                n_answers = append_entry(
                    view, trie, number, strict, box, scratch.trie, answers, n_answers
                )
                if n_answers < 0:
                    return n_answers
        n_children = np.int64(trie.nodes[trie_node, N_CHILDREN])
        if first == stop or n_children == 0 or place == n_labels:
            continue
        goes_on = verification == PRUNED or (
            stop - first > FEW_ENTRIES
            and NODE_STEP + visit_cost(n_children, 0, n_labels - place)
            < DIRECT_STEP * (stop - first)
        )
        n_pushed = 0
        if goes_on:
            n_pushed = push_children(trie, trie_node, place, n_labels, limit, scratch.trie, 0)
        if not goes_on or n_frames + n_pushed // 2 >= len(frames):
            scratch.choices[NODES_VERIFIED] += 1
            work[1] += stop - first
            n_answers = append_list(
                plain, tree, node, value, first, stop, box, on_grid, scratch.quadtree, answers,
                n_answers,
            )  # fmt: skip
            if n_answers < 0:
                return n_answers
            continue
        scratch.choices[NODES_PRUNED] += 1
        for k in range(0, n_pushed, 2):
            child = np.int64(scratch.trie.stack[k])
            child_end = range_end(trie, trie_node, child, end)
            low = _first_entry(lists, value, first, stop, trie.nodes[child, START])
            high = _first_entry(lists, value, low, stop, child_end)
            if high > low:
                frames[n_frames, 0], frames[n_frames, 1] = child, scratch.trie.stack[k + 1]
                frames[n_frames, 2], frames[n_frames, 3] = child_end, low
                frames[n_frames, 4] = high
                n_frames += 1
    return n_answers


# What passes on both structures is compiled into its caller: a call with all of their arrays takes
# a fifth of the time of a short message.
@inlined_kernel
def append_by_quadtree(view, tokens, box, scratch, answers, n_answers, work):
    """The quadtree's filter step and verification; return the new number of answers, or -1."""
    trie, quadtree, found = view.arrays.trie, view.arrays.quadtree, scratch.quadtree
    on_grid = grid_box(quadtree.tree.frame, box[0], box[1], box[2], box[3])
    verification = view.arrays.costs.rules[VERIFICATION]
    mark_tokens(tokens, 0, len(tokens), found.marks, 1)
    sign_tokens(tokens, found.signature)
    start(quadtree, on_grid, found)
    n_labels, n_tops, limit = np.int64(-1), np.int64(0), np.uint64(0)
    n_found = np.int64(find_lists(quadtree, tokens, on_grid, found, work))
    while n_found > 0 and n_answers >= 0:
        if n_labels < 0 and _wants_tops(verification, len(tokens), n_found, found):
            limit = box_limit(trie.quantizer, box[0], box[1], box[2], box[3])
            n_labels = np.int64(sort_labels(trie, tokens, scratch.trie))
            n_tops = np.int64(find_tops(trie, n_labels, limit, scratch))
        if n_labels < 0:
            scratch.choices[LISTS_VERIFIED] += n_found
            n_answers = append_found(
                plain_view(view), quadtree.tree, n_found, box, on_grid, found, answers, n_answers,
                work,
            )  # fmt: skip
        else:
            n_answers = append_by_lists(
                view, n_labels, n_tops, n_found, limit, box, on_grid, scratch, answers, n_answers,
                work,
            )  # fmt: skip
        if n_answers >= 0:
            n_found = np.int64(find_lists(quadtree, tokens, on_grid, found, work))
    if n_labels >= 0:
        forget_labels(scratch.trie, n_labels)
    unsign_tokens(tokens, found.signature)
    mark_tokens(tokens, 0, len(tokens), found.marks, 0)
    return n_answers


@appends_answers(LFilterArrays, marks_tokens=False)
@inlined_kernel
def append_lfilter(view, tokens, box, scratch, answers, n_answers, work):
    """Append one message's answers: LFILTER of Algorithm 3."""
    trie, choices = view.arrays.trie, scratch.choices
    before = (choices[0], choices[1], choices[2], choices[3], choices[4], choices[5])
    if takes_trie(view.arrays, len(tokens), box):
        choices[TRIE_WAY] += 1
        work[0] += 1
        limit = box_limit(trie.quantizer, box[0], box[1], box[2], box[3])
        if key_touches(trie.keys[ROOT], limit):
            n_answers = append_by_trie(
                plain_view(view), trie, tokens, limit, box, scratch.trie, answers, n_answers, work
            )
    else:
        choices[QUADTREE_WAY] += 1
        n_answers = append_by_quadtree(view, tokens, box, scratch, answers, n_answers, work)
    if n_answers < 0:  # the message comes again
        for i in range(N_CHOICES):
            choices[i] = before[i]
    return n_answers
