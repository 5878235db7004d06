"""Laws of semantics with scores: alpha and thresholds, and the weights of tokens."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from earshot.checks.generate import MIXED, Recipe, case_of
from earshot.checks.laws.answers import CROSSING_REGIONS, LENGTHS, clauses_in_lists
from earshot.checks.subjects import SCORE_ERROR, Setting, Subject
from earshot.model.arrays import EVERYWHERE_TOKEN

ALPHAS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
THRESHOLDS = (1e-12, 0.1, 0.3, 0.5, 0.6, 0.9, 1.0)
GRID: list[Setting] = [(alpha, threshold) for alpha in ALPHAS for threshold in THRESHOLDS]
SQUARE = [0.0, 0.0, 1.0, 1.0]
INSIDE = [0.5, 0.5, 0.5, 0.5]
OUTSIDE = [9.0, 9.0, 9.0, 9.0]


def check_every_alpha_and_threshold(subject: Subject) -> None:
    """Slots and scores are the oracle's for every alpha and threshold, on all kinds of input."""
    subject.assert_recipe(replace(MIXED, n_subscriptions=400, n_messages=60), GRID)


def check_share_of_a_crossing_region(subject: Subject) -> None:
    """A region across the antimeridian is measured as one, on both of its sides."""
    subject.assert_case(CROSSING_REGIONS, GRID)
    found = subject.found(CROSSING_REGIONS, (1.0, 0.1))[1]
    assert abs(found[0] - 100 / 300) < SCORE_ERROR
    assert abs(found[1] - 50 / 100) < SCORE_ERROR


def check_lists_of_one_need(subject: Subject) -> None:
    """Lists of every length are searched to their ends by the place alone, or the text alone."""
    tokens, boxes, rows = clauses_in_lists()
    by_place = case_of(tokens, boxes, [[]] * len(rows), boxes[rows])
    index = subject.build(by_place, (0.5, 0.5))
    assert subject.answers(index.match(by_place.messages)) == [{row: 0.5} for row in rows]
    asked = [[t] for t in range(1, len(LENGTHS) + 1)]
    by_text = case_of([[1]], [SQUARE], asked, [OUTSIDE] * len(asked))
    found = subject.answers(index.match(by_text.messages))
    assert [len(each) for each in found] == LENGTHS


# ---- scores at the threshold --------------------------------------------------------------------


def check_equal_scores_are_delivered(subject: Subject) -> None:
    """A score that equals the threshold in exact arithmetic is delivered, however it is rounded."""
    sizes = range(1, 13)
    tokens = [list(range(1, k + 1)) for k in range(13)]
    case = case_of(
        tokens[1:], [SQUARE] * 12, tokens * 2, [INSIDE] * 13 + [OUTSIDE] * 13, weights=[0.1] * 13
    )
    shares = [(n, k, spatial) for n in sizes for k in range(n + 1) for spatial in (0, 1)]
    for alpha in ALPHAS:
        for n, k, spatial in shares:
            threshold = alpha * spatial + (1 - alpha) * (k / n)
            if not 0.0 < threshold <= 1.0 or (n * 7 + k) % 5:
                continue
            found = subject.found(case, (alpha, threshold))
            assert n - 1 in found[k if spatial else 13 + k], (alpha, threshold, n, k, spatial)


def check_next_threshold_is_missed(subject: Subject) -> None:
    """A threshold that lies a millionth above the score is not reached."""
    case = case_of(
        [[1, 2], [1, 2, 3]], [[0, 0, 2, 2]] * 2, [[1]], [[1, 1, 3, 3]], weights=[1.0] * 4
    )  # the message covers a quarter of the region
    for alpha in ALPHAS:
        for slot, share in ((0, 1 / 2), (1, 1 / 3)):
            score = alpha / 4 + (1 - alpha) * share
            for change, wanted in ((-1e-6, True), (0.0, True), (1e-6, False)):
                assert (slot in subject.found(case, (alpha, score + change))[0]) == wanted


def check_no_common_token(subject: Subject) -> None:
    """Where the threshold is at most alpha, a message qualifies by its place alone."""
    n = 50
    case = case_of(
        [[1 + i % 5, 7] for i in range(n)], [[0.0, 0.0, 1.0, 1.0 + i] for i in range(n)],
        [[], [9], [1]], [[0.5, 30.0, 0.5, 30.0]] * 3, weights=[1.0] * 8,
    )  # fmt: skip
    touching = set(range(29, n))
    settings = [(0.6, 0.6), (0.6, 0.5), (0.9, 0.3), (1.0, 1.0)]
    for setting in settings:
        found = [set(each) for each in subject.found(case, setting)]
        assert found[0] == found[1] == touching
        assert found[2] >= touching
    subject.assert_case(case, settings)


def check_alpha_says_what_counts(subject: Subject) -> None:
    """With alpha 0 a subscription qualifies wherever it is; with alpha 1 whatever it asks for."""
    case = case_of(
        [[1], [2], [1, 2]], [SQUARE, [8, 8, 9, 9], [5, 5, 6, 6]],
        [[1], [1, 2], []], [INSIDE, [99] * 4, [8] * 4], weights=[1.0] * 3,
    )  # fmt: skip
    by_text = [{0: 1.0, 2: 0.5}, {0: 1.0, 1: 1.0, 2: 1.0}, {}]
    assert subject.found(case, (0.0, 0.5)) == by_text
    assert subject.found(case, (1.0, 0.5)) == [{0: 1.0}, {}, {1: 1.0}]


# ---- weights ------------------------------------------------------------------------------------


def check_default_weights(subject: Subject) -> None:
    """Without weights, those of the frequencies count: ln((N + 1) / (df + 1)) + 1."""
    case = subject.case(Recipe(seed=48, max_keywords=4))
    tokens = Counter(case.clauses.token_ids.tolist())
    counted = [tokens[token] for token in range(41)]
    given = np.random.default_rng(48).integers(0, 1000, 41)
    for frequencies, df in ((None, counted), (given, given.tolist())):
        weights = [round((math.log((max(df) + 1) / (n + 1)) + 1) * 2**16) / 2**16 for n in df]
        weights[EVERYWHERE_TOKEN] = 1.0
        weighted = case._replace(weights=np.array(weights))
        index = subject.build(case, (0.5, 0.6), weights=None, frequencies=frequencies)
        subject.assert_answers(index.match(case.messages), subject.truth(weighted, (0.5, 0.6)))


def check_later_tokens(subject: Subject) -> None:
    """Tokens that come by inserting have the later weight, also after a rebuild."""
    both = case_of(
        [[1, 2], [1, 3], [2, 3]], [SQUARE] * 3, [[1], [2], [3], [1, 3]], [INSIDE] * 4,
        weights=[1.0, 2.0, 3.0, 5.0],
    )  # fmt: skip
    base = both.part(0, 1)._replace(weights=both.weights[:3])
    index = subject.build(base, (0.0, 0.4), later_weight=5.0)
    index.insert(both.part(1, 3).clauses)
    expected = subject.truth(both, (0.0, 0.4))
    assert any(expected)
    subject.assert_answers(index.match(both.messages), expected)
    new, _ = index.rebuilt()
    subject.assert_answers(new.match(both.messages), expected)
    assert weights_of(new) == ([1.0, 2.0, 3.0, 5.0], 5.0)


def check_weights_are_kept(subject: Subject) -> None:
    """Inserting, removing and rebuilding change no weight."""
    case, _ = subject.mixed()
    index = subject.build(case.part(0, 500), (0.5, 0.5))
    before = weights_of(index)
    index.insert(case.part(500, case.n_slots).clauses)
    index.remove(np.arange(0, 500, 2))
    new, _ = index.rebuilt()
    newer, _ = new.rebuilt()
    assert weights_of(new) == weights_of(newer) == before


def weights_of(index: Any) -> tuple[list[float], float]:
    """Return the weights that a ranked index scores by."""
    return index.weights.tolist(), index.later_weight
