"""Ranked matching against the trees of :mod:`earshot.indexes.rtree.kernels.nodes` ([TKDE15] §6).

A node's *bounds* limit what any clause below it can score, so a node is visited only if its bound
reaches the lowest threshold below it. The spatial bound is the area that the node shares with the
message over the smallest region below (1 where touching alone decides). The textual one depends on
the kind of tables:

* ``SETS``: weight of the tokens shared with the node over the least weight of a clause (§6.1);
* ``PREFIXES``: whether a token is shared that answers must share, another for nodes that touch and
  for those that do not (§6.2);
* ``LEVELS``: the largest share that tokens not looked up so far have in a clause (§6.3, eq. 7).
  A clause that one of its tokens has been found of is scored in its leaf, however that bound turns
  out: finding it notes the nodes on the way there. So a clause whose first tokens are missing is
  still found by its later ones;
* ``INVERTED``: as for SETS, from the inverted file of the node above.

Bounds are compared with slack: a clause that just reaches its threshold is never lost.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.kernels.blocks import has_token
from earshot.indexes.kernels.matching import appends_answers
from earshot.indexes.kernels.token_tables import (
    EMPTY,
    ROW_BITS,
    find,
    list_entry_at,
    list_length,
    n_turns,
    place_in_turn,
)
from earshot.indexes.kernels.verifying import append_score
from earshot.indexes.rtree.kernels.match import entries_touching, lowest
from earshot.indexes.rtree.kernels.nodes import (
    INVERTED,
    KIND,
    LEVELS,
    MAX_ENTRIES,
    N_NODES,
    PREFIXES,
    ROOT,
    SETS,
    RtreeArrays,
    entry_bit,
    entry_clause,
    has_table,
    node_depth,
    required_stop,
)
from earshot.indexes.rtree.kernels.token_orders import TokenOrderArrays
from earshot.kernels.box_keys import TOP, box_limit
from earshot.kernels.jit import inlined_kernel, kernel, lean_kernel
from earshot.kernels.scoring import BOUND_SLACK, ScoringArrays, message_area
from earshot.model.arrays import Float64s, Int32s, Int64s

N_SUFFIXES = 8
"""Depths that a node's bound is kept for; deeper ones share the last."""
# Columns of ``bounds``: least weight, area and cut of a clause below, and from FIRST_SUFFIX on the
# largest share of a clause's weight that its tokens from the 1st, 2nd, … on have.
LEAST_WEIGHT, LEAST_AREA, LEAST_CUT, FIRST_SUFFIX = range(4)
N_BOUNDS = FIRST_SUFFIX + N_SUFFIXES

LAST_SERIAL = (1 << 32) - 1


class RankedRtreeArrays(NamedTuple):
    """A tree, the order of its tokens, and what bounds the scores below each node."""

    scoring: ScoringArrays
    tree: RtreeArrays
    order: TokenOrderArrays
    bounds: Float64s  # (n_nodes, N_BOUNDS)


class RankedRtScratch(NamedTuple):
    """Working memory of one thread."""

    marks: npt.NDArray[np.uint8]  # (n_tokens,)
    serial: Int64s  # (1,)
    last_seen: Int64s  # (n_slots,) of compound slots; see ``delivered_score``
    signature: npt.NDArray[np.uint64]  # (SIGNATURE_WORDS,)
    stack: Int32s  # nodes still to visit
    found: npt.NDArray[np.uint32]  # LEVELS: (n_clauses,) message that shared a token last
    wanted: npt.NDArray[np.uint32]  # LEVELS: (n_nodes,) message that has such a clause below
    sums: Float64s  # (MOST_ENTRIES + 1,) weight of shared tokens, by entry


# ---- bounds -------------------------------------------------------------------------------------


@kernel
def renew_bounds(tree, bounds, scoring, clauses):
    """Compute the bounds of nodes that have changed, and of those above them."""
    for level in range(tree.levels[tree.facts[ROOT]] + 1):
        for node in range(tree.facts[N_NODES]):
            if tree.is_changed[node] == 0 or tree.levels[node] != level:
                continue
            tree.is_changed[node] = 0
            if tree.counts[node] > 0:
                _renew(tree, bounds, scoring, clauses, node)
                if tree.parents[node] >= 0:
                    tree.is_changed[tree.parents[node]] = 1


@lean_kernel
def _renew(tree, bounds, scoring, clauses, node):
    start = np.int64(node) * tree.facts[MAX_ENTRIES]
    for k in range(FIRST_SUFFIX):
        bounds[node, k] = np.inf
    for k in range(FIRST_SUFFIX, N_BOUNDS):
        bounds[node, k] = 0.0
    for i in range(start, start + tree.counts[node]):
        entry = tree.entries[i]
        if tree.levels[node] > 0:
            for k in range(FIRST_SUFFIX):
                bounds[node, k] = min(bounds[node, k], bounds[entry, k])
            for k in range(FIRST_SUFFIX, N_BOUNDS):
                bounds[node, k] = max(bounds[node, k], bounds[entry, k])
            continue
        total = scoring.totals[entry]
        # Pieces of a region are only part of what a message can share with it.
        area = 0.0 if scoring.is_compound[entry] != 0 else scoring.areas[entry]
        bounds[node, LEAST_WEIGHT] = min(bounds[node, LEAST_WEIGHT], total)
        bounds[node, LEAST_AREA] = min(bounds[node, LEAST_AREA], area)
        bounds[node, LEAST_CUT] = min(bounds[node, LEAST_CUT], scoring.cuts[entry])
        if tree.facts[KIND] != LEVELS:
            continue
        first, stop = clauses.token_offsets[entry], required_stop(clauses, entry)
        suffix = 0.0
        for j in range(stop - 1, first - 1, -1):
            suffix += scoring.weights[tree.ordered[j]]
            k = FIRST_SUFFIX + min(j - first, N_SUFFIXES - 1)
            bounds[node, k] = max(bounds[node, k], suffix / total)


@lean_kernel
def fill_prefixes(tree, scoring, clauses, first, stop):
    """Make of the ordered tokens of clauses ``first`` to ``stop`` what they post (PREFIXES).

    An answer that touches the message needs the textual share ``(cut - alpha) / (1 - alpha)``, one
    that does not ``cut / (1 - alpha)``. Where all tokens after a prefix together weigh less, the
    message must share one of the prefix.
    """
    alpha = scoring.alpha[0]
    for c in range(first, stop):
        start, end = clauses.token_offsets[c], required_stop(clauses, c)
        cut = scoring.cuts[c] - BOUND_SLACK
        near = cut - alpha
        suffix = 0.0
        n_near = n_far = np.int64(0)
        for j in range(end - 1, start - 1, -1):
            suffix += scoring.weights[tree.ordered[j]] / scoring.totals[c]
            reach = (1.0 - alpha) * suffix
            # The share of j and all after it reaches what is needed: j is the last of the prefix,
            # unless a token before it was met already from the back.
            if n_near == 0 and near > 0.0 and reach >= near:
                n_near = j - start + 1
            if n_far == 0 and reach >= cut:
                n_far = j - start + 1
        for j in range(end - start):
            if j < n_far:
                tree.ordered[start + j] = ~tree.ordered[start + j]
            elif j >= n_near:
                tree.ordered[start + j] = EMPTY


@lean_kernel
def _spatial_bound(quantizer, key, is_touching, box, box_area, least_area):
    """Return how much of a region below a node the message can cover at most."""
    if not is_touching:
        return 0.0
    if box_area == 0.0 or not 0.0 < least_area < np.inf or box[0] > box[2]:
        return 1.0
    width = _shared(
        quantizer.x_bounds, key & np.uint64(0x7FFF), key >> np.uint64(32) & np.uint64(0x7FFF),
        box[0], box[2],
    )  # fmt: skip
    height = _shared(
        quantizer.y_bounds, key >> np.uint64(16) & np.uint64(0x7FFF), key >> np.uint64(48),
        box[1], box[3],
    )  # fmt: skip
    shared = width * height
    if not shared < least_area:  # also for NaN
        return 1.0
    return shared / least_area


@lean_kernel
def _shared(cell_bounds, low_lane, high_lane, low, high):
    """Return the most that a side of a key, as two lanes, can share with an interval."""
    low_cell, high_cell = np.int64(low_lane), TOP - np.int64(high_lane)
    # A value in cell q has q - 1 bounds at or below it.
    if 2 <= low_cell <= len(cell_bounds) + 1:
        low = max(low, cell_bounds[low_cell - 2])
    if 1 <= high_cell <= len(cell_bounds):
        high = min(high, cell_bounds[high_cell - 1])
    return max(high - low, 0.0)


# ---- tables -------------------------------------------------------------------------------------


@lean_kernel
def _shared_weight(tables, node, message_tokens, weights, enough, scratch):
    """Return the weight of the tokens that a message shares with a node's table, or ``enough``."""
    size = np.int64(tables.sizes[node])
    weight = 0.0
    if len(message_tokens) <= size:
        for i in range(len(message_tokens)):
            token = message_tokens[i]
            if find(tables, node, token) >= 0:
                weight += weights[token]
                if weight >= enough:
                    break
        return weight
    start = tables.starts[node]
    for place in range(start, start + size):
        token = tables.tokens[place]
        if token != EMPTY and has_token(token, scratch.signature, scratch.marks):
            weight += weights[token]
            if weight >= enough:
                break
    return weight


@lean_kernel
def _shares_prefix(tables, node, message_tokens, is_touching, scratch):
    """Whether a message has a token of a node that answers must share (PREFIXES)."""
    size = np.int64(tables.sizes[node])
    if 2 * len(message_tokens) <= size:
        for i in range(len(message_tokens)):
            token = message_tokens[i]
            if find(tables, node, ~token) >= 0:
                return True
            if is_touching and find(tables, node, token) >= 0:
                return True
        return False
    start = tables.starts[node]
    for place in range(start, start + size):
        token = tables.tokens[place]
        if token == EMPTY or (token >= 0 and not is_touching):
            continue
        if has_token(token if token >= 0 else ~token, scratch.signature, scratch.marks):
            return True
    return False


@lean_kernel
def _sum_weights(tables, node, message_tokens, weights, n, scratch):
    """Fill the weights of the tokens shared, by entry of a node (INVERTED)."""
    for i in range(n):
        scratch.sums[i] = 0.0
    for k in range(n_turns(tables, node, message_tokens)):
        place = place_in_turn(tables, node, message_tokens, k, scratch)
        if place < 0:
            continue
        weight = weights[tables.tokens[place]]
        bits = np.int64(tables.values[place])
        while bits != 0:
            scratch.sums[lowest(bits)] += weight
            bits &= bits - 1


@lean_kernel
def _note_found(tree, node, message_tokens, bits, stamp, scratch):
    """Note the clauses under the entries ``bits`` that share a token here (LEVELS)."""
    tables, stride = tree.tables, tree.facts[MAX_ENTRIES]
    for k in range(n_turns(tables, node, message_tokens)):
        place = place_in_turn(tables, node, message_tokens, k, scratch)
        if place < 0:
            continue
        value = np.int64(tables.values[place])
        for i in range(list_length(value)):
            entry = list_entry_at(tables, value, i)
            if entry_bit(entry) & bits == 0:
                continue
            c = entry_clause(entry)
            if c < 0:
                position = np.int64(entry) >> ROW_BITS & 63
                scratch.wanted[tree.entries[node * stride + position]] = stamp
            elif scratch.found[c] != stamp:
                scratch.found[c] = stamp
                above = np.int64(tree.leaves[c])
                while above != node and scratch.wanted[above] != stamp:
                    scratch.wanted[above] = stamp
                    above = np.int64(tree.parents[above])


# ---- matching -----------------------------------------------------------------------------------


@lean_kernel
def _push_children(
    tree, bounds, scoring, node, message_tokens, box, box_area, touching, stamp, scratch, depth
):
    """Put the children of a node that may hold an answer on the stack; return its new height."""
    tables, kind, stride = tree.tables, tree.facts[KIND], tree.facts[MAX_ENTRIES]
    alpha = scoring.alpha[0]
    n = np.int64(tree.counts[node])
    if kind == INVERTED:
        _sum_weights(tables, node, message_tokens, scoring.weights, n, scratch)
    if kind == LEVELS and has_table(tree, node):
        # Under an entry that does not touch, a clause must make it by its text alone.
        bits = touching
        for i in range(n):
            child = tree.entries[node * stride + i]
            if 1.0 - alpha >= bounds[child, LEAST_CUT] - BOUND_SLACK:
                bits |= np.int64(1) << i
        _note_found(tree, node, message_tokens, bits, stamp, scratch)
    for i in range(n):
        child = tree.entries[node * stride + i]
        is_touching = touching >> i & 1 != 0
        cut = bounds[child, LEAST_CUT] - BOUND_SLACK
        key = tree.keys[node * stride + i]
        spatial = alpha * _spatial_bound(
            tree.quantizer, key, is_touching, box, box_area, bounds[child, LEAST_AREA]
        )
        if spatial + (1.0 - alpha) < cut:
            continue
        if spatial < cut:
            textual = 1.0
            if kind == SETS:
                enough = (cut - spatial) / (1.0 - alpha) * bounds[child, LEAST_WEIGHT]
                weight = _shared_weight(
                    tables, child, message_tokens, scoring.weights, enough, scratch
                )
                textual = weight / bounds[child, LEAST_WEIGHT]
            elif kind == INVERTED:
                textual = scratch.sums[i] / bounds[child, LEAST_WEIGHT]
            elif kind == PREFIXES:
                if not (is_touching and cut <= alpha) and not _shares_prefix(
                    tables, child, message_tokens, is_touching, scratch
                ):
                    continue
            elif scratch.wanted[child] != stamp:
                at = min(node_depth(tree, child), N_SUFFIXES) - 1
                textual = bounds[child, FIRST_SUFFIX + at]
            if spatial + (1.0 - alpha) * min(textual, 1.0) < cut:
                continue
        scratch.stack[depth] = child
        depth += 1
    return depth


@lean_kernel
def _eligible(tree, bounds, scoring, leaf, message_tokens, touching, stamp, scratch):
    """Return the entries of a leaf that have to be scored."""
    tables, kind, stride = tree.tables, tree.facts[KIND], tree.facts[MAX_ENTRIES]
    alpha = scoring.alpha[0]
    n = np.int64(tree.counts[leaf])
    cut = bounds[leaf, LEAST_CUT] - BOUND_SLACK
    bits = (np.int64(1) << n) - 1
    if 1.0 - alpha < cut:
        bits &= touching
    if kind < LEVELS or bits == 0:
        return bits
    shared = np.int64(0)
    for k in range(n_turns(tables, leaf, message_tokens)):
        place = place_in_turn(tables, leaf, message_tokens, k, scratch)
        if place >= 0:
            shared |= np.int64(tables.values[place])
    if kind == LEVELS:
        for i in range(n):
            if scratch.found[tree.entries[leaf * stride + i]] == stamp:
                shared |= np.int64(1) << i
    if cut <= alpha:
        shared |= touching
    return bits & shared


@appends_answers(RankedRtreeArrays)
@inlined_kernel
def append_ranked_rtree(view, tokens, box, scratch, answers, n_answers, work):
    """Append one message's answers: visit the nodes that may hold some, from the root down."""
    tree, bounds, scoring = view.arrays.tree, view.arrays.bounds, view.arrays.scoring
    stride, root = tree.facts[MAX_ENTRIES], tree.facts[ROOT]
    box_area = message_area(box)
    crosses = box[0] > box[2]
    limit = box_limit(tree.quantizer, box[0], box[1], 180.0 if crosses else box[2], box[3])
    stamp = np.uint32(scratch.serial[0] & LAST_SERIAL)
    if stamp == 0:  # after four thousand million messages
        scratch.found[:] = 0
        scratch.wanted[:] = 0
        scratch.serial[0] += 1
        stamp = np.uint32(1)
    depth = 0
    if tree.counts[root] > 0:
        scratch.stack[0] = root
        depth = 1
    while depth > 0:
        depth -= 1
        node = np.int64(scratch.stack[depth])
        work[0] += 1
        touching = entries_touching(tree, node, limit)
        if crosses:
            east = box_limit(tree.quantizer, -180.0, box[1], box[2], box[3])
            touching |= entries_touching(tree, node, east)
        if tree.levels[node] > 0:
            depth = _push_children(
                tree, bounds, scoring, node, tokens, box, box_area, touching, stamp, scratch, depth
            )
            continue
        bits = _eligible(tree, bounds, scoring, node, tokens, touching, stamp, scratch)
        while bits != 0:
            c = tree.entries[node * stride + lowest(bits)]
            bits &= bits - 1
            work[1] += 1
            slot = view.clauses.subscriptions[c]
            n_answers = append_score(
                scoring, view, c, slot, box, box_area, scratch, answers, n_answers
            )
            if n_answers < 0:
                return n_answers
    return n_answers
