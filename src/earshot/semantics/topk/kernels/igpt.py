"""Dissemination by IGPT, the inverted lists of [PVLDB16] section 5 in the leaves of a quadtree.

Subscriptions lie in *cells*, the leaves of a quadtree (an octree on the sphere) over their places.
Those of a cell that have a token form a list, which is cut into *groups* by the share of the place
in the score. Groups of a token lie one after the other, by cell and *band* (of alphas); postings of
a group are in ascending order of their key.

======================  =========================================================================
paper                   here
======================  =========================================================================
s.theta, kScore(s)      the threshold of a slot (remark under eq. 13)
kScore*(s)              key, threshold / (1 - alpha)
s.alpha*                alpha*, alpha / (1 - alpha)
lambda_T(s, m)          key - alpha* x nearness
lambda_S(s)             ``needs``, the nearness that a subscription needs at the least
wtsum(s.w), maxwt(s.w)  WEIGHT + REST, WEIGHT (a subscription's weights fall from token to token)
wtsum(m.w), maxwt(m.w)  ``sums``, ``maxima``
G[s]                    a posting and those after it in its group
======================  =========================================================================

1 - alpha is taken to be at least ``LEAST_SHARE``: a larger one only raises the bounds. Keys and
inner distances are rounded down and alphas* up, as they are kept in single precision.

What differs from Algorithm 1: it goes through all cells and looks the tokens up in each; here a
token leads to its groups, and a cell is looked at when the first of its groups is met. Candidates
are scored from scratch, because group pruning leaves its sum of shared tokens incomplete
(and a later use of Theorem 2 would then be wrong). Tokens of the message that no subscription has
do not count in its sums, and a group's bound is also held below the length of the rest of the
message's vector (Cauchy-Schwarz).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from earshot.kernels.jit import lean_kernel
from earshot.kernels.searching import first_at_least
from earshot.model.arrays import Float64s, Int32s, Int64s
from earshot.semantics.topk.kernels.arrays import (
    CELLS,
    GROUPS,
    POSTINGS,
    Dispatch,
    Float32s,
    Probe,
    Subscribers,
    UInt32s,
)
from earshot.semantics.topk.kernels.scan import verify_row
from earshot.semantics.topk.kernels.scoring import nearness

UNIT = 1.000001
"""The most that a cosine can be: vectors are rounded to single precision."""
SLACK = 1e-9
LEAST_SHARE = 1e-6
BAND_BITS = 8
MAX_BANDS = 1 << BAND_BITS
MAX_CELLS = 1 << 31 - BAND_BITS

N_COLUMNS = 8
(
    KEY,  # threshold / (1 - alpha), ascending within a group
    SUFFIX_WEIGHT,  # largest weight of this posting and those after it
    SUFFIX_ALPHA,  # largest alpha* of them
    ALPHA,  # alpha*
    INNER,  # distance to the nearest side of the cell
    WEIGHT,  # of the token in the subscription
    REST,  # sum of the weights of the tokens after it
    NEXT,  # largest of them
) = range(N_COLUMNS)

RULES = ("cells", "groups", "early", "prefix", "max_weight", "inner", "outer", "unseen")
"""What may be switched off; a component keeps it as bits in this order."""
BY_CELLS, BY_GROUPS, EARLY, PREFIX, MAX_WEIGHT, INNER_BOUND, OUTER_BOUND, UNSEEN = range(len(RULES))


class IgptArrays(NamedTuple):
    """A component; what a posting says counts while its slot names it as its home."""

    facts: Int64s  # RULE_BITS, NOW
    slots: Int32s  # (n_rows,)
    row_codes: Int32s  # (n_rows,) cell << BAND_BITS | band
    needs: Float32s  # (n_rows,) nearness that the subscription needs, -1: none
    cell_offsets: Int64s  # (n_cells + 1,) rows of a cell, in cell_rows
    cell_rows: Int32s  # (n_rows,)
    cell_boxes: Float64s  # (n_cells, 6) min_x, min_y, min_z, max_x, max_y, max_z
    cell_needs: Float64s  # (n_cells,) least of the rows' needs
    group_offsets: Int32s  # (largest token + 2,) groups of a token
    group_codes: Int32s  # (n_groups,) as row_codes, ascending within a token
    group_starts: Int32s  # (n_groups + 1,) postings of a group
    group_heads: Float32s  # (n_groups, 3) the first three columns of its first posting
    postings: Float32s  # (n_postings, N_COLUMNS)
    posting_rows: Int32s  # (n_postings,)
    # working memory
    row_stamps: UInt32s  # (n_rows,) message for which it was a candidate
    cell_stamps: UInt32s  # (n_cells,) message for which nears and shrinks hold
    cell_nears: Float64s  # (n_cells,) the outer bound, -1 where no row can be reached
    cell_shrinks: Float64s  # (n_cells,) what a unit of inner distance takes from it
    candidates: Int32s  # (n_rows,) rows to be scored
    places: Int32s  # (n_tokens,) places in the message of the tokens that have groups
    sums: Float64s  # (n_tokens + 1,) weights of a token of the message and those after it
    maxima: Float64s  # (n_tokens + 1,) the largest of them
    lengths: Float64s  # (n_tokens + 1,) square root of the sum of their squares


RULE_BITS, NOW, N_IGPT_FACTS = range(3)


# ---- one subscription ----------------------------------------------------------------------------


@lean_kernel
def round_down(value: float) -> np.float32:
    """Return a number of single precision that is not above a value."""
    return np.float32(value - 1.2e-7 * abs(value))


@lean_kernel
def star(alpha: float) -> np.float32:
    """Return alpha*, rounded up."""
    return np.float32(1.0000002 * alpha / max(1.0 - alpha, LEAST_SHARE))


@lean_kernel
def key_of(threshold: float, alpha: float) -> np.float32:
    """Return the key of a subscription, rounded down."""
    key: np.float32 = round_down(threshold / max(1.0 - alpha, LEAST_SHARE))
    return key


@lean_kernel
def need_of(threshold: float, alpha: float) -> np.float32:
    """Return the nearness without which a subscription is not reached by any text, or -1.

    [PVLDB16] eq. 8.
    """
    missing = threshold - SLACK - (1.0 - alpha) * UNIT
    if missing <= 0.0:
        return np.float32(-1.0)
    need: np.float32 = round_down(missing / max(alpha, LEAST_SHARE))
    return need


# ---- messages ------------------------------------------------------------------------------------


@lean_kernel
def _known_tokens(component: IgptArrays, probe: Probe) -> int:
    """Fill places, sums, maxima and lengths of the tokens that have groups; return their number."""
    n = 0
    for i in range(probe.length[0]):
        token = probe.tokens[i]
        if (
            token + 1 < len(component.group_offsets)
            and component.group_offsets[token + 1] > component.group_offsets[token]
        ):
            component.places[n] = i
            n += 1
    total, largest, square = 0.0, 0.0, 0.0
    component.sums[n] = component.maxima[n] = component.lengths[n] = 0.0
    for known in range(n - 1, -1, -1):
        weight = np.float64(probe.weights[component.places[known]])
        total += weight
        largest = max(largest, weight)
        square += weight * weight
        component.sums[known] = total
        component.maxima[known] = largest
        component.lengths[known] = np.sqrt(square) * UNIT
    return n


@lean_kernel
def _look_at_cell(
    component: IgptArrays, cell: int, probe: Probe, max_distance: float, rules: int
) -> bool:
    """Set the outer bound of a cell for a message; return whether it can reach any row."""
    square, error = 0.0, 0.0
    for axis in range(3):
        at = probe.place[axis]
        error += 4e-16 * abs(at)
        low, high = component.cell_boxes[cell, axis], component.cell_boxes[cell, axis + 3]
        apart = max(low - at, at - high)
        if apart > 0.0:
            square += apart * apart
    apart = np.sqrt(square)
    # Sides of cells are rounded; where the largest distance is tiny, that can be much of it.
    sure = max(apart * (1.0 - 1e-15) - error, 0.0)
    near = nearness(sure, max_distance) if rules >> OUTER_BOUND & 1 else 1.0
    is_inner = rules >> INNER_BOUND & 1 and apart > 0.0
    component.cell_shrinks[cell] = 1.0 / max_distance if is_inner else 0.0
    if rules >> BY_CELLS & 1 and near + SLACK < component.cell_needs[cell]:  # [PVLDB16] Lemma 6
        near = -1.0
    component.cell_nears[cell] = near
    return near >= 0.0


@lean_kernel
def disseminate_igpt(component: IgptArrays, home: int, dispatch: Dispatch, n_found: int) -> int:
    """Find the subscriptions of a component whose threshold the message reaches.

    [PVLDB16] Algorithm 1. They and the scores are written from ``n_found`` on, in no order; return
    how many are written now.

    A subscription is bounded where its rarest shared token is met. The bounds at its other tokens
    are lower, so one that is left out there is not a candidate at them either.
    """
    probe, max_distance, counters = dispatch.probe, dispatch.max_distance, dispatch.counters
    rules = component.facts[RULE_BITS]
    by_groups, early = rules >> BY_GROUPS & 1, rules >> EARLY & 1
    prefix, unseen = rules >> PREFIX & 1, rules >> UNSEEN & 1
    now = component.facts[NOW] + 1
    if now > 0xFFFFFFFF:
        component.row_stamps[:] = 0
        component.cell_stamps[:] = 0
        now = 1
    component.facts[NOW] = now
    codes, starts, heads = component.group_codes, component.group_starts, component.group_heads
    postings, rows = component.postings, component.posting_rows
    n_cells, n_groups, n_postings, n_candidates = 0, 0, 0, 0
    for known in range(_known_tokens(component, probe)):
        place = component.places[known]
        token = probe.tokens[place]
        message_weight = np.float64(probe.weights[place])
        sum_here, length_here = component.sums[known], component.lengths[known]
        sum_after, most_after = component.sums[known + 1], component.maxima[known + 1]
        most = component.maxima[known] if rules >> MAX_WEIGHT & 1 else UNIT
        for group in range(component.group_offsets[token], component.group_offsets[token + 1]):
            cell = codes[group] >> BAND_BITS
            if component.cell_stamps[cell] != now:
                component.cell_stamps[cell] = now
                n_cells += _look_at_cell(component, cell, probe, max_distance, rules)
            near = component.cell_nears[cell]
            if near < 0.0:
                continue
            if by_groups:  # [PVLDB16] Theorem 3
                alpha = np.float64(heads[group, SUFFIX_ALPHA])
                text = min(np.float64(heads[group, SUFFIX_WEIGHT]) * sum_here, length_here)
                if text + SLACK * (1.0 + alpha) < np.float64(heads[group, KEY]) - alpha * near:
                    continue
            n_groups += 1
            shrink = component.cell_shrinks[cell]
            for at in range(starts[group], starts[group + 1]):
                key = np.float64(postings[at, KEY])
                if early:  # [PVLDB16] Theorem 4
                    alpha = np.float64(postings[at, SUFFIX_ALPHA])
                    text = min(np.float64(postings[at, SUFFIX_WEIGHT]) * sum_here, length_here)
                    if text + SLACK * (1.0 + alpha) < key - alpha * near:
                        break
                n_postings += 1
                alpha = np.float64(postings[at, ALPHA])
                row_near = max(0.0, near - np.float64(postings[at, INNER]) * shrink)
                least = key - alpha * row_near - SLACK * (1.0 + alpha)
                weight, rest = np.float64(postings[at, WEIGHT]), np.float64(postings[at, REST])
                if prefix and most * (weight + rest) < least:  # [PVLDB16] Theorem 1
                    continue
                if unseen:  # [PVLDB16] Theorem 2
                    more = min(rest * most_after, np.float64(postings[at, NEXT]) * sum_after)
                    if weight * message_weight + more < least:
                        continue
                row = rows[at]
                if component.row_stamps[row] != now:
                    component.row_stamps[row] = now
                    component.candidates[n_candidates] = row
                    n_candidates += 1
    counters[CELLS] += n_cells
    counters[GROUPS] += n_groups
    counters[POSTINGS] += n_postings
    for i in range(n_candidates):
        n_found = verify_row(dispatch, component.slots, home, component.candidates[i], n_found)
    return n_found


# ---- thresholds ----------------------------------------------------------------------------------


@lean_kernel
def refresh_group(component: IgptArrays, group: int) -> None:
    """Set the suffix maxima of a group and its head, by its postings."""
    postings = component.postings
    first = component.group_starts[group]
    weight, alpha = np.float32(0.0), np.float32(0.0)
    for at in range(component.group_starts[group + 1] - 1, first - 1, -1):
        # One whole vector may be in the list's token and those after it, never in those before.
        weight = max(weight, postings[at, WEIGHT], postings[at, NEXT])
        alpha = max(alpha, postings[at, ALPHA])
        postings[at, SUFFIX_WEIGHT] = weight
        postings[at, SUFFIX_ALPHA] = alpha
    component.group_heads[group, KEY] = postings[first, KEY]
    component.group_heads[group, SUFFIX_WEIGHT] = weight
    component.group_heads[group, SUFFIX_ALPHA] = alpha


@lean_kernel
def _find_group(component: IgptArrays, token: int, code: int) -> int:
    """Return the group of a token in a cell and band, or -1."""
    if token + 1 >= len(component.group_offsets):
        return -1
    first, stop = component.group_offsets[token], component.group_offsets[token + 1]
    group = first_at_least(component.group_codes, first, stop, code)
    return group if group < stop and component.group_codes[group] == code else -1


@lean_kernel
def _move_posting(component: IgptArrays, group: int, row: int, key: float) -> None:
    """Give a row's posting in a group another key, and the place that goes with it."""
    postings, rows = component.postings, component.posting_rows
    first, stop = component.group_starts[group], component.group_starts[group + 1]
    at = first
    while at < stop and rows[at] != row:
        at += 1
    if at == stop:
        return
    alpha, inner = postings[at, ALPHA], postings[at, INNER]
    weight, rest, following = postings[at, WEIGHT], postings[at, REST], postings[at, NEXT]
    to = at
    while to + 1 < stop and postings[to + 1, KEY] < key:
        _copy_posting(component, to + 1, to)
        to += 1
    while to > first and postings[to - 1, KEY] > key:
        _copy_posting(component, to - 1, to)
        to -= 1
    postings[to, KEY], postings[to, ALPHA], postings[to, INNER] = key, alpha, inner
    postings[to, WEIGHT], postings[to, REST], postings[to, NEXT] = weight, rest, following
    rows[to] = row
    refresh_group(component, group)


@lean_kernel
def _copy_posting(component: IgptArrays, source: int, target: int) -> None:
    for column in range(N_COLUMNS):
        component.postings[target, column] = component.postings[source, column]
    component.posting_rows[target] = component.posting_rows[source]


@lean_kernel
def set_threshold_igpt(component: IgptArrays, subscribers: Subscribers, slot: int) -> None:
    """Follow the threshold of a slot of this component, which has changed."""
    row = np.int64(subscribers.rows[slot])
    if row < 0 or row >= len(component.slots) or component.slots[row] != slot:
        return
    alpha, threshold = subscribers.alphas[slot], subscribers.thresholds[slot]
    key = key_of(threshold, alpha)
    code = component.row_codes[row]
    for at in range(subscribers.token_offsets[slot], subscribers.token_offsets[slot + 1]):
        group = _find_group(component, subscribers.tokens[at], code)
        if group >= 0:
            _move_posting(component, group, row, key)
    cell = code >> BAND_BITS
    before = np.float64(component.needs[row])
    need = need_of(threshold, alpha)
    component.needs[row] = need
    if need <= component.cell_needs[cell]:
        component.cell_needs[cell] = need
    elif before <= component.cell_needs[cell]:  # it was the least
        refresh_cell(component, cell)


@lean_kernel
def refresh_cell(component: IgptArrays, cell: int) -> None:
    """Set what a message needs to reach any row of a cell."""
    least = np.inf
    for i in range(component.cell_offsets[cell], component.cell_offsets[cell + 1]):
        least = min(least, np.float64(component.needs[component.cell_rows[i]]))
    component.cell_needs[cell] = least
