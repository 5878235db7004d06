"""General boolean expressions as [VLDBJ15] section 5.1.1 makes them from the keywords of each row.

The keywords are parted in two, one beside the other. Each part is a conjunction or a disjunction,
and so is the whole: of w1, w2, w3, w4 one gets (w1 or w2) and w3 and w4, for example. All choices
are equally likely. Clauses are those of the disjunctive normal form.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import numpy.typing as npt

from earshot.model.arrays import (
    ClauseArrays,
    Int32s,
    Int64s,
    box_clauses,
    gather_ranges,
    offsets_of,
)

LEAST_KEYWORDS = 3
"""Fewer make no expression of this kind that is worth while."""


def choices_of(seed: int, rows: Int32s, n_keywords: Int64s) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Return the length of each row's first part, and which of both parts and the whole are or.

    They depend on the seed and on the number of the row alone.
    """
    numbers = rows.astype(np.uint64) + np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    firsts = 1 + ((numbers >> np.uint64(8)) % (n_keywords - 1).astype(np.uint64)).astype(np.int64)
    bits = numbers[:, None] >> np.arange(3, dtype=np.uint64) & np.uint64(1)
    return firsts, bits.astype(np.bool_)


def expressed(clauses: ClauseArrays, seed: int) -> ClauseArrays:
    """Return expressions of the keywords of clauses, one of which belongs to each row."""
    lengths = np.diff(clauses.token_offsets)
    firsts, is_or = choices_of(seed, clauses.subscriptions, lengths)
    slots, sizes, tokens, boxes = [], [], [], []
    kinds = np.column_stack([lengths, firsts, is_or])
    for kind in np.unique(kinds, axis=0):
        rows = np.flatnonzero((kinds == kind).all(axis=1))
        _, at = gather_ranges(clauses.token_offsets, rows)
        words = clauses.token_ids[at].reshape(len(rows), -1)
        for positions in normal_form(int(kind[0]), int(kind[1]), *map(bool, kind[2:])):
            slots.append(clauses.subscriptions[rows])
            sizes.append(np.full(len(rows), len(positions)))
            tokens.append(words[:, positions].reshape(-1))
            boxes.append(clauses.boxes[rows])
    if not slots:
        return clauses
    order = np.argsort(all_slots := np.concatenate(slots), kind="stable")
    offsets = offsets_of(np.concatenate(sizes))
    new_offsets, at = gather_ranges(offsets, order)
    return box_clauses(
        new_offsets, np.concatenate(tokens)[at], np.concatenate(boxes)[order], all_slots[order]
    )


def normal_form(
    n: int, first: int, first_is_or: bool, second_is_or: bool, whole_is_or: bool
) -> list[list[int]]:
    """Return the clauses of an expression of ``n`` keywords, as positions of these."""

    def part(positions: range, is_or: bool) -> list[list[int]]:
        return [[position] for position in positions] if is_or else [list(positions)]

    left, right = part(range(first), first_is_or), part(range(first, n), second_is_or)
    return left + right if whole_is_or else [one + other for one, other in product(left, right)]


def spoken(words: list[str], first: int, is_or: npt.NDArray[np.bool_]) -> str:
    """Return an expression as users write it."""
    left_word, right_word, whole_word = ("or" if each else "and" for each in is_or)
    left = f" {left_word} ".join(words[:first])
    right = f" {right_word} ".join(words[first:])
    return f"({left}) {whole_word} ({right})"
