"""The score of a clause or a subscription against one message, shared by all ranked indexes.

[TKDE15] section 6, eq. 3: ``alpha * spatial + (1 - alpha) * textual`` (psi, psi_s, psi_t there).
What the paper leaves open (points, regions without area or bounds, forbidden tokens, several
alternatives, regions cut at the antimeridian) is decided in docs/semantics/ranked.md.

An *alternative* is a conjunction of tokens with a region. Its clauses, one per box of the region,
are its *pieces*: the clauses of one slot whose token lists are equal. A slot of one clause is
*simple*, one of several *compound*: a clause of a compound slot cannot be scored by itself.

A message's box is passed as it is, as an array of four, and may cross the antimeridian
(``min_x > max_x``): it is then one place of two parts. Slots are counted from the first slot of the
arrays that are scored, which a delta's are not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.kernels.jit import kernel, lean_kernel
from earshot.kernels.verify import region_touches
from earshot.model.arrays import ClauseArrays, Float64s, Int32s, Int64s, all_thresholds
from earshot.model.ranking import LEAST_SCORE, SCORE_TOLERANCE

MIN_AREA = 2.2250738585072014e-308
"""Smaller areas, which floats hold only in part, count as none."""

BOUND_SLACK = 1e-9
"""An upper bound of a score this much below the cut proves that it is missed, rounding or not."""


class ScoringArrays(NamedTuple):
    """What scoring needs besides the clauses; the first of every ranked structure's arrays."""

    weights: Float64s  # (n_tokens,) weight of each token, > 0
    later_weight: Float64s  # (1,) weight of tokens beyond
    totals: Float64s  # (n_clauses,) sum of the weights of the required tokens
    areas: Float64s  # (n_clauses,) area of the alternative's region; 0 where touching alone decides
    cuts: Float64s  # (n_clauses,) least score that is delivered, > 0
    alpha: Float64s  # (1,)
    is_compound: npt.NDArray[np.uint8]  # (n_clauses,) 1 where the slot has several clauses
    # Clauses of slot i are piece_rows[piece_starts[i]:piece_starts[i + 1]], those of one
    # alternative together: the first as it is, a further piece as ~row. Both are empty where all
    # slots are simple.
    piece_starts: Int64s  # (n_slots + 1,)
    piece_rows: Int32s  # (n_clauses,)


def build_scoring(
    clauses: ClauseArrays,
    weights: Float64s,
    later_weight: float,
    alpha: float,
    threshold: float,
    first_slot: int = 0,
) -> ScoringArrays:
    """Return the scoring arrays of clauses whose slots run from ``first_slot`` without gaps.

    ``weights`` must cover all tokens of the clauses.
    """
    n = len(clauses.subscriptions)
    n_slots = int(clauses.subscriptions.max(initial=first_slot - 1)) + 1 - first_slot
    own = all_thresholds(clauses)
    piece_starts, piece_rows = np.empty(0, np.int64), np.empty(0, np.int32)
    is_compound = np.zeros(n, np.uint8)
    if n > n_slots:
        slots = clauses.subscriptions - np.int32(first_slot)
        counts = np.bincount(slots, minlength=n_slots)
        piece_starts = np.append(0, np.cumsum(counts)).astype(np.int64)
        piece_rows = np.argsort(slots, kind="stable").astype(np.int32)
        is_compound[:] = counts[slots] > 1
    totals, areas = np.empty(n), np.empty(n)
    fill_totals(clauses.token_offsets, clauses.token_ids, weights, totals)
    fill_areas(clauses.boxes, areas)
    if n > n_slots:
        join_pieces(clauses.token_offsets, clauses.token_ids, piece_starts, piece_rows, areas)
    keep_measurable(areas)
    return ScoringArrays(
        weights,
        np.array([later_weight]),
        totals,
        areas,
        np.maximum(np.where(np.isnan(own), threshold, own) - SCORE_TOLERANCE, LEAST_SCORE),
        np.array([alpha], np.float64),
        is_compound,
        piece_starts,
        piece_rows,
    )


@lean_kernel
def fill_totals(token_offsets, token_ids, weights, totals):
    """Fill the sums of the required tokens' weights."""
    for c in range(len(totals)):
        total = 0.0
        for i in range(token_offsets[c], token_offsets[c + 1]):
            if token_ids[i] >= 0:
                total += weights[token_ids[i]]
        totals[c] = total


@lean_kernel
def fill_areas(boxes, areas):
    """Fill the areas of boxes; infinite or NaN where they have no bounds."""
    for c in range(len(areas)):
        areas[c] = (boxes[c, 2] - boxes[c, 0]) * (boxes[c, 3] - boxes[c, 1])


@lean_kernel
def keep_measurable(areas):
    """Set areas to 0 that no overlap can be measured against."""
    for c in range(len(areas)):
        if not MIN_AREA <= areas[c] < np.inf:  # also true for NaN
            areas[c] = 0.0


@kernel
def join_pieces(token_offsets, token_ids, piece_starts, piece_rows, areas):
    """Bring the pieces of an alternative together, and give each the area of them all."""
    hashes = np.empty(len(token_offsets) - 1, np.int64)
    for c in range(len(hashes)):
        value = np.int64(1)
        for i in range(token_offsets[c], token_offsets[c + 1]):
            value = value * np.int64(1000003) + token_ids[i]
        hashes[c] = value
    for slot in range(len(piece_starts) - 1):
        start, stop = piece_starts[slot], piece_starts[slot + 1]
        k = start
        while k < stop:
            first = piece_rows[k]
            area = areas[first]
            end = k + 1
            for other in range(k + 1, stop):
                c = piece_rows[other]
                if hashes[c] == hashes[first] and _equal_tokens(token_offsets, token_ids, first, c):
                    area += areas[c]
                    for back in range(other, end, -1):  # the others keep their order
                        piece_rows[back] = piece_rows[back - 1]
                    piece_rows[end] = ~c
                    end += 1
            areas[first] = area
            for other in range(k + 1, end):
                areas[~piece_rows[other]] = area
            k = end


@lean_kernel
def _equal_tokens(token_offsets, token_ids, a, b):
    start_a, start_b = token_offsets[a], token_offsets[b]
    n = token_offsets[a + 1] - start_a
    if token_offsets[b + 1] - start_b != n:
        return False
    for i in range(n):
        if token_ids[start_a + i] != token_ids[start_b + i]:
            return False
    return True


# ---- places -------------------------------------------------------------------------------------


@lean_kernel
def message_area(box):
    """Return the area of a message's box, both parts of one that crosses; 0 where it has none."""
    height = box[3] - box[1]
    if box[0] <= box[2]:
        area = (box[2] - box[0]) * height
    else:
        area = (180.0 - box[0]) * height + (box[2] + 180.0) * height
    return area if area >= MIN_AREA else 0.0  # NaN, of an infinite line, is not


@lean_kernel
def box_touches_message(boxes, row, box):
    """Whether a box shares a point with a message's, which may cross the antimeridian."""
    if boxes[row, 1] > box[3] or boxes[row, 3] < box[1]:
        return False
    if box[0] <= box[2]:
        return boxes[row, 0] <= box[2] and boxes[row, 2] >= box[0]
    return (boxes[row, 0] <= 180.0 and boxes[row, 2] >= box[0]) or (
        boxes[row, 0] <= box[2] and boxes[row, 2] >= -180.0
    )


@lean_kernel
def touches_message(clauses, row, is_lonlat, box):
    """Whether a clause's exact region shares a point with a message's box."""
    if box[0] <= box[2]:
        return region_touches(clauses, row, is_lonlat, box[0], box[1], box[2], box[3])
    return region_touches(clauses, row, is_lonlat, box[0], box[1], 180.0, box[3]) or region_touches(
        clauses, row, is_lonlat, -180.0, box[1], box[2], box[3]
    )


@lean_kernel
def overlap_area(boxes, row, box):
    """Return the area that a bounded box shares with a message's, which may cross."""
    height = min(boxes[row, 3], box[3]) - max(boxes[row, 1], box[1])
    if height <= 0.0:
        return 0.0
    low, high = boxes[row, 0], boxes[row, 2]
    if box[0] <= box[2]:
        return max(min(high, box[2]) - max(low, box[0]), 0.0) * height
    west = max(min(high, 180.0) - max(low, box[0]), 0.0) * height
    return west + max(min(high, box[2]) - max(low, -180.0), 0.0) * height


@lean_kernel
def spatial_share(scoring, clauses, c, is_lonlat, box, box_area):
    """Return the spatial score of a simple clause; ``box_area`` is the message's area."""
    if not touches_message(clauses, c, is_lonlat, box):
        return 0.0
    if box_area == 0.0 or scoring.areas[c] == 0.0:
        return 1.0
    return min(overlap_area(clauses.boxes, c, box) / scoring.areas[c], 1.0)


# ---- scores -------------------------------------------------------------------------------------


@lean_kernel
def found_share(token_ids, start, stop, weights, total, marks):
    """Return the share of a clause's weight that is in the message; -1 if a forbidden token is."""
    found = 0.0
    for i in range(start, stop):
        token = token_ids[i]
        if token >= 0:
            if marks[token] != 0:
                found += weights[token]
        elif marks[~token] != 0:
            return -1.0
    return min(found / total, 1.0)


@lean_kernel
def textual_share(scoring, clauses, c, marks):
    """Return the textual score of a clause, or -1 if a forbidden token is in the message.

    ``marks`` is a byte per token (at least ``n_tokens``), 1 for the message's own.
    """
    return found_share(
        clauses.token_ids, clauses.token_offsets[c], clauses.token_offsets[c + 1],
        scoring.weights, scoring.totals[c], marks,
    )  # fmt: skip


@lean_kernel
def clause_score(scoring, clauses, c, marks, is_lonlat, box, box_area):
    """Return the score of the one clause of a simple slot, or -1 if it is out."""
    textual = textual_share(scoring, clauses, c, marks)
    if textual < 0.0:
        return -1.0
    alpha = scoring.alpha[0]
    spatial = spatial_share(scoring, clauses, c, is_lonlat, box, box_area) if alpha > 0.0 else 0.0
    return min(alpha * spatial + (1.0 - alpha) * textual, 1.0)


@lean_kernel
def slot_score(scoring, clauses, slot, marks, is_lonlat, box, box_area):
    """Return the best score of a compound slot's alternatives, or -1 if all are out."""
    alpha = scoring.alpha[0]
    best = -1.0
    k, stop = scoring.piece_starts[slot], scoring.piece_starts[slot + 1]
    while k < stop:
        first = scoring.piece_rows[k]
        touching, overlap = False, 0.0
        end = k
        while end < stop and (end == k or scoring.piece_rows[end] < 0):
            c = first if end == k else ~scoring.piece_rows[end]
            touching = touching or touches_message(clauses, c, is_lonlat, box)
            if scoring.areas[first] > 0.0:
                overlap += overlap_area(clauses.boxes, c, box)
            end += 1
        k = end
        textual = textual_share(scoring, clauses, first, marks)
        if textual < 0.0:
            continue
        spatial = 0.0
        if touching:
            spatial = 1.0
            if box_area > 0.0 and scoring.areas[first] > 0.0:
                spatial = min(overlap / scoring.areas[first], 1.0)
        best = max(best, min(alpha * spatial + (1.0 - alpha) * textual, 1.0))
    return best


@lean_kernel
def _special_score(scoring, clauses, c, slot, marks, is_lonlat, box, box_area, last_seen, serial):
    """Return the score of a compound slot, unless it has been scored, or of a shape."""
    if scoring.is_compound[c] == 0:
        return clause_score(scoring, clauses, c, marks, is_lonlat, box, box_area)
    if last_seen[slot] == serial:
        return -1.0
    last_seen[slot] = serial
    return slot_score(scoring, clauses, slot, marks, is_lonlat, box, box_area)


@lean_kernel
def delivered_score(scoring, clauses, c, slot, marks, is_lonlat, box, box_area, last_seen, serial):
    """Return the score of clause ``c``'s subscription if it is delivered, else -1.

    A compound slot is scored once per message, whichever of its clauses come up: ``last_seen`` has
    the serial number of the last message that it was scored for (it may be empty where all slots
    are simple). Simple slots are for the caller to ask for once.

    What most clauses need is written out with single arrays, so that it becomes part of the
    caller's loop; a call that takes all of them costs more than the score.
    """
    if scoring.is_compound[c] != 0 or clauses.shape_rows[c] >= 0:
        score = _special_score(
            scoring, clauses, c, slot, marks, is_lonlat, box, box_area, last_seen, serial
        )
        return score if score >= scoring.cuts[c] else -1.0
    textual = found_share(
        clauses.token_ids, clauses.token_offsets[c], clauses.token_offsets[c + 1],
        scoring.weights, scoring.totals[c], marks,
    )  # fmt: skip
    if textual < 0.0:
        return -1.0
    spatial = 0.0
    if box_touches_message(clauses.boxes, c, box):
        spatial = 1.0
        if box_area > 0.0 and scoring.areas[c] > 0.0:
            spatial = min(overlap_area(clauses.boxes, c, box) / scoring.areas[c], 1.0)
    alpha = scoring.alpha[0]
    score = min(alpha * spatial + (1.0 - alpha) * textual, 1.0)
    return score if score >= scoring.cuts[c] else -1.0
