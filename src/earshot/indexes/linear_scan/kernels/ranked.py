"""Kernel of :mod:`earshot.indexes.linear_scan.ranked`; also scans the tail of a ranked delta."""

from __future__ import annotations

from earshot.kernels.jit import lean_kernel
from earshot.kernels.scoring import delivered_score, message_area
from earshot.kernels.verify import mark_tokens


@lean_kernel
def match_ranked_scan(
    scoring, clauses, alive, first_slot, is_lonlat, messages, start, stop, row, scratch,
    answers, offsets, work,
):  # fmt: skip
    """Match messages ``start + row`` to ``stop``; see ``collect_answers`` for the protocol.

    ``alive`` and ``scoring`` count slots from ``first_slot``, the clauses' first.
    """
    marks = scratch.marks
    n_answers = offsets[row]
    for m in range(start + row, stop):
        first, last = messages.token_offsets[m], messages.token_offsets[m + 1]
        box = messages.boxes[m]
        box_area = message_area(box)
        scratch.serial[0] += 1
        mark_tokens(messages.token_ids, first, last, marks, 1)
        full = False
        for c in range(len(clauses.subscriptions)):
            slot = clauses.subscriptions[c] - first_slot
            if alive[slot] == 0:
                continue
            score = delivered_score(
                scoring, clauses, c, slot, marks, is_lonlat, box, box_area,
                scratch.last_seen, scratch.serial[0],
            )  # fmt: skip
            if score >= 0.0:
                if n_answers == len(answers.slots):
                    full = True
                    break
                answers.slots[n_answers] = clauses.subscriptions[c]
                answers.scores[n_answers] = score
                n_answers += 1
        mark_tokens(messages.token_ids, first, last, marks, 0)
        if full:
            return m - start
        work[1] += len(clauses.subscriptions)
        offsets[m - start + 1] = n_answers
    return stop - start
