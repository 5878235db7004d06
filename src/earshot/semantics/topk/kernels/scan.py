"""Dissemination without an index: every subscription is scored.

The measure of the others, and how the youngest subscriptions are found before they are indexed.
"""

from __future__ import annotations

from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.model.arrays import Float64s, Int32s, Int64s
from earshot.semantics.topk.kernels.arrays import (
    CANDIDATES,
    POSTINGS,
    Probe,
    ScanArrays,
    Subscribers,
)
from earshot.semantics.topk.kernels.scoring import combine, place_score, text_score


@inlined_kernel
def verify(
    subscribers: Subscribers,
    slot: int,
    probe: Probe,
    max_distance: float,
    found_slots: Int32s,
    found_scores: Float64s,
    n_found: int,
    counters: Int64s,
) -> int:
    """Score a message for one subscription; if it reaches the threshold, write slot and score.

    Return how many are written now.
    """
    counters[CANDIDATES] += 1
    text = text_score(subscribers, slot, probe.weight_of)
    if text == 0.0:
        return n_found
    near = place_score(
        subscribers, slot, probe.place[0], probe.place[1], probe.place[2], max_distance
    )
    score = combine(subscribers.alphas[slot], near, text)
    if score < subscribers.thresholds[slot]:
        return n_found
    found_slots[n_found] = slot
    found_scores[n_found] = score
    return n_found + 1


@lean_kernel
def disseminate_scan(
    component: ScanArrays,
    home: int,
    subscribers: Subscribers,
    probe: Probe,
    max_distance: float,
    found_slots: Int32s,
    found_scores: Float64s,
    n_found: int,
    counters: Int64s,
) -> int:
    """Find the subscriptions of a component whose threshold the message reaches.

    They and the scores are written from ``n_found`` on; return how many are written now.
    """
    for row in range(len(component.slots)):
        slot = component.slots[row]
        if subscribers.homes[slot] == home and subscribers.rows[slot] == row:
            counters[POSTINGS] += 1
            n_found = verify(
                subscribers, slot, probe, max_distance, found_slots, found_scores, n_found,
                counters,
            )  # fmt: skip
    return n_found


@lean_kernel
def set_threshold_scan(component: ScanArrays, subscribers: Subscribers, slot: int) -> None:
    """Nothing is kept by threshold."""
