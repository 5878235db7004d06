"""Cases for the laws of ranked indexes, the oracle's answers, and how answers are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from earshot.checks.generate import Case, Recipe, make_case, ragged
from earshot.checks.ranked_oracle import Parts, delivered, parts_of
from earshot.errors import InvalidInput
from earshot.indexes.answers import Matches
from earshot.model.arrays import (
    EVERYWHERE_TOKEN,
    ClauseArrays,
    Float64s,
    MessageArrays,
    box_clauses,
    take_clauses,
)

Scores: TypeAlias = list[dict[int, float]]
Setting: TypeAlias = tuple[float, float]
"""Alpha and threshold."""

SCORE_ERROR = 1e-12

MIXED = Recipe(
    seed=31, space="lonlat", n_subscriptions=900, n_messages=40, n_tokens=25, n_unknown_tokens=5,
    max_keywords=5, side=0.4, message_side=0.4, forbidden=0.15, several=0.4, unbounded=0.05,
    shapes=0.2, crossing=0.2, grid=0.5, everywhere=0.05,
)  # fmt: skip
"""Everything at once; the case of the laws that are not about one kind of input."""


def ranked_case(recipe: Recipe) -> Case:
    """Return the case of a recipe with what ranking needs besides.

    Some regions and messages lose a dimension or two, and some clauses of a slot become pieces of
    one alternative, by having the same tokens.
    """
    case = make_case(recipe)
    random = np.random.default_rng(recipe.seed + 1000)
    clauses, messages = case.clauses, case.messages
    boxes = clauses.boxes.copy()
    plain = np.flatnonzero(clauses.shape_rows < 0)
    flat = plain[random.random(len(plain)) < 0.1]
    boxes[flat, 2 + flat % 2] = boxes[flat, flat % 2]
    message_boxes = messages.boxes.copy()
    kinds = random.random(len(message_boxes))
    message_boxes[kinds < 0.2, 3] = message_boxes[kinds < 0.2, 1]
    message_boxes[kinds < 0.1, 2] = message_boxes[kinds < 0.1, 0]
    rows = [
        clauses.token_ids[start:stop].tolist() for start, stop in pairwise(clauses.token_offsets)
    ]
    slots = clauses.subscriptions.tolist()
    for row in range(1, len(rows)):
        if slots[row] == slots[row - 1] and random.random() < 0.5:
            rows[row] = rows[row - 1]
    offsets, tokens = ragged(rows)
    return Case(
        case.space,
        clauses._replace(token_offsets=offsets, token_ids=tokens, boxes=boxes),
        messages._replace(boxes=message_boxes),
    )


def weights_of(case: Case) -> Float64s:
    """Return weights for the tokens of a case; a few pairs are equal."""
    tokens = case.clauses.token_ids
    n = int(max(tokens.max(initial=0), (~tokens).max(initial=0))) + 1
    return np.random.default_rng(n).integers(2, 30, n) / 4.0


def with_thresholds(case: Case, seed: int, share: float) -> Case:
    """Return the case with thresholds of their own for a share of the subscriptions."""
    random = np.random.default_rng(seed)
    slots = case.clauses.subscriptions
    n = int(slots.max(initial=-1)) + 1
    own = random.choice([1e-10, 0.05, 0.2, 0.4, 0.5, 0.75, 0.95, 1.0], n)
    own[random.random(n) >= share] = np.nan
    return case._replace(clauses=case.clauses._replace(thresholds=own[slots]))


@lru_cache(maxsize=1)
def mixed() -> Case:
    """Return everything at once, own thresholds too."""
    return with_thresholds(ranked_case(MIXED), 31, 0.3)


def expected_mixed(setting: Setting) -> Scores:
    """Return the oracle's answers for everything at once."""
    return expected_scores(mixed, (), setting)


def own_thresholds(seed: int) -> Case:
    """Return a case where most subscriptions name a threshold."""
    recipe = Recipe(seed=seed, max_keywords=4, message_side=0.3 * (seed - 46), n_messages=40)
    return with_thresholds(ranked_case(replace(recipe, n_subscriptions=500)), seed, 0.7)


def mixed_sizes() -> Case:
    """Return regions from a thousandth of a message to a hundred times its size."""
    near = ranked_case(
        Recipe(seed=51, n_subscriptions=500, n_messages=40, message_side=0.3, max_keywords=3)
    )
    random = np.random.default_rng(51)
    boxes = near.clauses.boxes
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    halves = (boxes[:, 2:] - boxes[:, :2]) / 2 * 10.0 ** random.uniform(-3, 2, (len(boxes), 1))
    boxes = np.concatenate([centres - halves, centres + halves], axis=1)
    return near._replace(clauses=near.clauses._replace(boxes=boxes))


# The oracle is slow, and every index is asked for the same.


@lru_cache(maxsize=64)
def made_case(make: Callable[..., Case], args: tuple[Any, ...]) -> Case:
    """Return the case that a function makes."""
    return make(*args)


@lru_cache(maxsize=64)
def _parts(make: Callable[..., Case], args: tuple[Any, ...]) -> list[dict[int, list[Parts]]]:
    case = made_case(make, args)
    return parts_of(case.clauses, case.messages, case.space, weights_of(case).tolist())


@lru_cache(maxsize=512)
def expected_scores(make: Callable[..., Case], args: tuple[Any, ...], setting: Setting) -> Scores:
    """Return the oracle's answers for the case that a function makes."""
    return delivered(_parts(make, args), made_case(make, args).clauses, *setting)


# ---- parts of cases, and answers ----------------------------------------------------------------


def assert_answers(found: Matches, expected: Scores, where: str = "") -> None:
    """Assert equal slots and scores, each subscription at most once per message."""
    answers = answers_of(found)
    assert len(answers) == len(expected)
    for row, (got, wanted) in enumerate(zip(answers, expected, strict=True)):
        if got.keys() != wanted.keys():
            missing = {slot: wanted[slot] for slot in sorted(wanted.keys() - got.keys())[:5]}
            wrong = {slot: got[slot] for slot in sorted(got.keys() - wanted.keys())[:5]}
            raise AssertionError(f"{where}: message {row}: missing {missing}, wrong {wrong}")
        for slot, score in got.items():
            assert abs(score - wanted[slot]) <= SCORE_ERROR, (
                f"{where}: message {row}, slot {slot}: score {score}, expected {wanted[slot]}"
            )
    assert found.counters.answers == len(found.subscriptions)


def answers_of(found: Matches) -> Scores:
    """Return the scores of each message's answers, after checking that nothing is repeated."""
    assert found.scores is not None
    assert found.scores.dtype == np.float64
    assert found.offsets[0] == 0
    assert found.offsets[-1] == len(found.subscriptions) == len(found.scores)
    answers = []
    slots, scores = found.subscriptions.tolist(), found.scores.tolist()
    for start, stop in pairwise(found.offsets.tolist()):
        answers.append(dict(zip(slots[start:stop], scores[start:stop], strict=True)))
        assert len(answers[-1]) == stop - start, f"message {len(answers) - 1}: answers repeat"
    return answers


def assert_rejected(action: Callable[..., object], *args: object, **options: object) -> None:
    """Assert that a call refuses its input."""
    try:
        action(*args, **options)
    except InvalidInput:
        return
    raise AssertionError("wrong input was accepted")


def part_of(clauses: ClauseArrays, start: int, stop: int) -> ClauseArrays:
    """Return the clauses of slots ``start`` to ``stop - 1``."""
    slots = clauses.subscriptions
    return take_clauses(clauses, np.flatnonzero((slots >= start) & (slots < stop)))


def split_at(clauses: ClauseArrays, slot: int) -> tuple[ClauseArrays, ClauseArrays]:
    """Return the clauses of the slots before one, and the others."""
    return part_of(clauses, 0, slot), part_of(clauses, slot, int(clauses.subscriptions.max()) + 1)


def clauses_of(token_rows: list[list[int]], boxes: Sequence[Sequence[float]]) -> ClauseArrays:
    """Return clauses of boxes, one per subscription."""
    return box_clauses(*ragged(token_rows), boxes)


def messages_of(
    token_rows: list[list[int]], boxes: Sequence[Sequence[float]] | Float64s
) -> MessageArrays:
    """Return messages with the given tokens; every message carries the reserved one besides."""
    offsets, tokens = ragged([[EVERYWHERE_TOKEN, *row] for row in token_rows])
    return MessageArrays(offsets, tokens, np.array(boxes, np.float64).reshape(-1, 4))
