"""Dissemination without an index: every subscription is scored.

The measure of the others, and how the youngest subscriptions are found before they are indexed.
"""

from __future__ import annotations

from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.model.arrays import Int32s
from earshot.semantics.topk.kernels.arrays import (
    CANDIDATES,
    POSTINGS,
    Dispatch,
    ScanArrays,
    Subscribers,
)
from earshot.semantics.topk.kernels.scoring import combine, place_score, text_score


@inlined_kernel
def verify(dispatch: Dispatch, slot: int, n_found: int) -> int:
    """Score a message for one subscription; if it reaches the threshold, write slot and score.

    Return how many are written now.
    """
    subscribers, place = dispatch.subscribers, dispatch.probe.place
    dispatch.counters[CANDIDATES] += 1
    text = text_score(subscribers, slot, dispatch.probe.weight_of)
    if text == 0.0:
        return n_found
    near = place_score(subscribers, slot, place[0], place[1], place[2], dispatch.max_distance)
    score = combine(subscribers.alphas[slot], near, text)
    if score < subscribers.thresholds[slot]:
        return n_found
    dispatch.slots[n_found] = slot
    dispatch.scores[n_found] = score
    return n_found + 1


@inlined_kernel
def verify_row(
    dispatch: Dispatch, component_slots: Int32s, home: int, row: int, n_found: int
) -> int:
    """Do so for a row of a component, if that is still where the subscription is."""
    slot = component_slots[row]
    subscribers = dispatch.subscribers
    if subscribers.homes[slot] != home or subscribers.rows[slot] != row:
        return n_found
    return verify(dispatch, slot, n_found)


@lean_kernel
def disseminate_scan(component: ScanArrays, home: int, dispatch: Dispatch, n_found: int) -> int:
    """Find the subscriptions of a component whose threshold the message reaches.

    They and the scores are written from ``n_found`` on; return how many are written now.
    """
    subscribers = dispatch.subscribers
    for row in range(len(component.slots)):
        slot = component.slots[row]
        if subscribers.homes[slot] == home and subscribers.rows[slot] == row:
            dispatch.counters[POSTINGS] += 1
            n_found = verify(dispatch, slot, n_found)
    return n_found


@lean_kernel
def set_threshold_scan(component: ScanArrays, subscribers: Subscribers, slot: int) -> None:
    """Nothing is kept by threshold."""
