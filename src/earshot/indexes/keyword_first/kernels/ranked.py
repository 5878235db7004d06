"""Kernels of :mod:`earshot.indexes.keyword_first.ranked`: inverted lists that add up weights.

[TKDE15] section 2.3 (keyword-first method), extended to section 6: a clause stands in the list of
each of its required tokens, and a message adds the weight of each of its tokens to all clauses of
its list. A clause whose sum cannot reach the threshold at any place is dropped; the others are
scored.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.kernels.jit import kernel, lean_kernel
from earshot.kernels.scoring import BOUND_SLACK, ScoringArrays, delivered_score, message_area
from earshot.kernels.verify import mark_tokens
from earshot.model.arrays import Float64s, Int32s, Int64s


class RankedKeywordFirstArrays(NamedTuple):
    """Inverted lists, each in clause order."""

    scoring: ScoringArrays
    list_offsets: Int64s  # (n_tokens + 1,) list of token t is [t]:[t+1]
    entries: Int32s  # (n_entries,) clauses
    wordless: Int32s  # clauses that can qualify without any common token, in clause order


class RankedKeywordFirstScratch(NamedTuple):
    """Working memory of one thread."""

    marks: npt.NDArray[np.uint8]  # (n_tokens,) 1 for tokens of the current message
    last_seen: Int64s  # (n_slots,) as in RankedScratch
    serial: Int64s  # (1,)
    sums: Float64s  # (n_clauses,) weights found so far; 0 between messages
    touched: Int32s  # (n_clauses,) clauses whose sum is not 0


@kernel
def build_lists(token_offsets, token_ids, is_listed, n_tokens):
    """Return offsets and clauses of the inverted lists over required tokens."""
    list_offsets = np.zeros(n_tokens + 1, np.int64)
    for c in range(len(token_offsets) - 1):
        if is_listed[c]:
            for i in range(token_offsets[c], token_offsets[c + 1]):
                if token_ids[i] >= 0:
                    list_offsets[token_ids[i] + 1] += 1
    for t in range(n_tokens):
        list_offsets[t + 1] += list_offsets[t]
    entries = np.empty(list_offsets[n_tokens], np.int32)
    ends = list_offsets[:-1].copy()
    for c in range(len(token_offsets) - 1):
        if is_listed[c]:
            for i in range(token_offsets[c], token_offsets[c + 1]):
                token = token_ids[i]
                if token >= 0:
                    entries[ends[token]] = c
                    ends[token] += 1
    return list_offsets, entries


@lean_kernel
def match_ranked_keyword_first(
    arrays, clauses, alive, is_lonlat, messages, start, stop, row, scratch, answers, offsets, work
):
    """Match messages ``start + row`` to ``stop``; see ``collect_answers`` for the protocol."""
    scoring, marks, sums, touched = arrays.scoring, scratch.marks, scratch.sums, scratch.touched
    alpha = scoring.alpha[0]
    n_answers = offsets[row]
    for m in range(start + row, stop):
        first, last = messages.token_offsets[m], messages.token_offsets[m + 1]
        box = messages.boxes[m]
        box_area = message_area(box)
        scratch.serial[0] += 1
        mark_tokens(messages.token_ids, first, last, marks, 1)
        n_lists = n_candidates = n_touched = 0
        for i in range(first, last):
            token = messages.token_ids[i]
            if token >= len(marks) or arrays.list_offsets[token] == arrays.list_offsets[token + 1]:
                continue
            n_lists += 1
            weight = scoring.weights[token]
            for e in range(arrays.list_offsets[token], arrays.list_offsets[token + 1]):
                c = arrays.entries[e]
                if sums[c] == 0.0:
                    touched[n_touched] = c
                    n_touched += 1
                sums[c] += weight
        full = False
        for k in range(n_touched + len(arrays.wordless)):
            if k < n_touched:
                c = touched[k]
                bound = alpha + (1.0 - alpha) * sums[c] / scoring.totals[c]
                sums[c] = 0.0
                if full or bound < scoring.cuts[c] - BOUND_SLACK:
                    continue
            else:
                c = arrays.wordless[k - n_touched]
            slot = clauses.subscriptions[c]
            if full or alive[slot] == 0:
                continue
            n_candidates += 1
            score = delivered_score(
                scoring, clauses, c, slot, marks, is_lonlat, box, box_area,
                scratch.last_seen, scratch.serial[0],
            )  # fmt: skip
            if score < 0.0:
                continue
            if n_answers == len(answers.slots):
                full = True
                continue
            answers.slots[n_answers] = slot
            answers.scores[n_answers] = score
            n_answers += 1
        mark_tokens(messages.token_ids, first, last, marks, 0)
        if full:
            return m - start
        work[0] += n_lists
        work[1] += n_candidates
        offsets[m - start + 1] = n_answers
    return stop - start
