"""The last step of most structures: a candidate is tested exactly, and appended if it is one.

Both return the new number of answers, or -1 if there is no room. They are compiled into the loops
that they stand in.
"""

from __future__ import annotations

from earshot.kernels.jit import inlined_kernel
from earshot.kernels.scoring import delivered_score
from earshot.kernels.verify import region_touches, tokens_match


@inlined_kernel
def append_match(view, c, min_x, min_y, max_x, max_y, scratch, answers, n_answers):
    """Append the subscription of clause ``c`` if the message, whose box is given, matches it."""
    clauses = view.clauses
    if not tokens_match(
        clauses.token_ids, clauses.token_offsets[c], clauses.token_offsets[c + 1], scratch.marks
    ) or not region_touches(clauses, c, view.is_lonlat, min_x, min_y, max_x, max_y):
        return n_answers
    if n_answers == len(answers):
        return -1
    answers[n_answers] = clauses.subscriptions[c]
    return n_answers + 1


@inlined_kernel
def append_score(scoring, view, c, slot, box, box_area, scratch, answers, n_answers):
    """Append the subscription of clause ``c`` and its score if that is enough.

    ``slot`` counts from the first that ``scoring`` knows.
    """
    score = delivered_score(
        scoring, view.clauses, c, slot, scratch.marks, view.is_lonlat, box, box_area,
        scratch.last_seen, scratch.serial[0],
    )  # fmt: skip
    if score < 0.0:
        return n_answers
    if n_answers == len(answers.slots):
        return -1
    answers.slots[n_answers] = view.clauses.subscriptions[c]
    answers.scores[n_answers] = score
    return n_answers + 1
