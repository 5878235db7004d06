"""Kernel of :mod:`earshot.indexes.linear_scan.index`; no arrays beyond the clauses."""

from __future__ import annotations

from earshot.kernels.jit import lean_kernel
from earshot.kernels.verify import mark_tokens, region_touches, tokens_match


@lean_kernel
def match_linear_scan(
    clauses, alive, is_lonlat, messages, start, stop, row, marks, answers, offsets, work
):
    """Match messages ``start + row`` to ``stop``; see ``collect_answers`` for the protocol."""
    n_answers = offsets[row]
    for m in range(start + row, stop):
        first, last = messages.token_offsets[m], messages.token_offsets[m + 1]
        min_x, min_y, max_x, max_y = messages.boxes[m]
        mark_tokens(messages.token_ids, first, last, marks, 1)
        full = False
        for c in range(len(clauses.subscriptions)):
            slot = clauses.subscriptions[c]
            if (
                alive[slot] != 0
                and tokens_match(
                    clauses.token_ids, clauses.token_offsets[c], clauses.token_offsets[c + 1], marks
                )
                and region_touches(clauses, c, is_lonlat, min_x, min_y, max_x, max_y)
            ):
                if n_answers == len(answers):
                    full = True
                    break
                answers[n_answers] = slot
                n_answers += 1
        mark_tokens(messages.token_ids, first, last, marks, 0)
        if full:
            return m - start
        work[1] += len(clauses.subscriptions)
        offsets[m - start + 1] = n_answers
    return stop - start
