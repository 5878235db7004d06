"""Kernels of :mod:`earshot.indexes.linear_scan.index`; no arrays beyond the clauses."""

from __future__ import annotations

from typing import NamedTuple

from earshot.indexes.kernels.matching import appends_answers
from earshot.indexes.kernels.verifying import append_match, append_score
from earshot.kernels.jit import inlined_kernel
from earshot.kernels.scoring import ScoringArrays, message_area
from earshot.model.arrays import Int64s


class LinearScanArrays(NamedTuple):
    """A scan needs no arrays of its own."""


class RankedLinearScanArrays(NamedTuple):
    """A scan needs no arrays of its own; also for the tail of a ranked delta."""

    scoring: ScoringArrays
    first_slot: Int64s  # (1,) from which on ``alive`` and ``scoring`` count slots


@appends_answers(LinearScanArrays)
@inlined_kernel
def append_linear_scan(view, tokens, box, scratch, answers, n_answers, work):
    """Append one message's answers."""
    clauses = view.clauses
    min_x, min_y, max_x, max_y = box
    for c in range(len(clauses.subscriptions)):
        if view.alive[clauses.subscriptions[c]] != 0:
            n_answers = append_match(
                view, c, min_x, min_y, max_x, max_y, scratch, answers, n_answers
            )
            if n_answers < 0:
                return n_answers
    work[1] += len(clauses.subscriptions)
    return n_answers


@appends_answers(RankedLinearScanArrays)
@inlined_kernel
def append_ranked_scan(view, tokens, box, scratch, answers, n_answers, work):
    """Append one message's answers and their scores."""
    scoring, clauses = view.arrays.scoring, view.clauses
    first_slot, box_area = view.arrays.first_slot[0], message_area(box)
    for c in range(len(clauses.subscriptions)):
        slot = clauses.subscriptions[c] - first_slot
        if view.alive[slot] != 0:
            n_answers = append_score(
                scoring, view, c, slot, box, box_area, scratch, answers, n_answers
            )
            if n_answers < 0:
                return n_answers
    work[1] += len(clauses.subscriptions)
    return n_answers
