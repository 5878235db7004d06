"""The laws of ranked indexes: one small ``check_*`` function each, the same for every structure.

A new structure proves itself with::

    for check in ranked_laws_for(MyRankedIndex):
        check(MyRankedIndex)

Each check raises ``AssertionError`` when its law is broken. Answers, slots and scores, are compared
with the oracle (:mod:`earshot.checks.ranked_oracle`), which shares no code with the indexes.
"""

from __future__ import annotations

import math
import pickle
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from earshot.checks.generate import Case, Recipe, make_case, ragged
from earshot.checks.ranked_cases import (
    MIXED,
    SCORE_ERROR,
    Scores,
    Setting,
    answers_of,
    assert_answers,
    assert_rejected,
    clauses_of,
    expected_mixed,
    expected_scores,
    made_case,
    messages_of,
    mixed,
    mixed_sizes,
    own_thresholds,
    part_of,
    ranked_case,
    split_at,
    weights_of,
)
from earshot.checks.ranked_oracle import scores_of
from earshot.indexes.ranked_contract import RankedIndex
from earshot.model.arrays import (
    EVERYWHERE_TOKEN,
    Float64s,
    box_clauses,
    concat_clauses,
    take_clauses,
    take_messages,
)

RankedLaw: TypeAlias = Callable[[type[RankedIndex]], None]

ALPHAS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
THRESHOLDS = (1e-12, 0.1, 0.3, 0.5, 0.6, 0.9, 1.0)
GRID: list[Setting] = [(alpha, threshold) for alpha in ALPHAS for threshold in THRESHOLDS]
SOME: list[Setting] = [
    (0.5, 0.6), (0.5, 0.9), (0.5, 0.3), (0.3, 0.6), (0.9, 0.6), (0.1, 1.0), (0.0, 0.5), (1.0, 0.5),
]  # fmt: skip
"""One or two of each kind: text and place needed, place alone enough, text alone, either."""


def ranked_laws_for(index_type: type[RankedIndex]) -> list[RankedLaw]:
    """Return the laws that a ranked index of this type must obey."""
    laws = list(_LAWS)
    if len(index_type.arrays_type._fields) > 1:  # type: ignore[attr-defined]
        laws += _LAWS_OF_STRUCTURES
    return laws


# ---- answers equal the oracle's -----------------------------------------------------------------


def check_every_alpha_and_threshold(index_type: type[RankedIndex]) -> None:
    """Slots and scores are the oracle's for every alpha and threshold, on all kinds of input."""
    recipe = replace(MIXED, n_subscriptions=200, n_messages=25)
    _check(index_type, recipe, GRID)


def check_points(index_type: type[RankedIndex]) -> None:
    """A point covers a region wholly or not at all."""
    _check(index_type, _recipe(32, max_keywords=4))


def check_ranges(index_type: type[RankedIndex]) -> None:
    """A range covers a share of a region, large ones wholly."""
    _check(index_type, _recipe(33, max_keywords=4, side=0.3, message_side=0.6))


def check_small_ranges(index_type: type[RankedIndex]) -> None:
    """Where messages are smaller than regions, no region is covered wholly."""
    _check(index_type, _recipe(34, max_keywords=5, side=0.6, message_side=0.2))


def check_equal_sides(index_type: type[RankedIndex]) -> None:
    """Shared sides and corners touch, but cover nothing of a region that has an area."""
    _check(index_type, _recipe(35, extent=(0, 0, 8, 8), grid=1.0, side=0.4, message_side=0.4))


def check_regions_without_area(index_type: type[RankedIndex]) -> None:
    """Regions that are points or lines are covered wholly where they are touched."""
    _check(index_type, _recipe(36, extent=(0, 0, 6, 6), grid=1.0, side=0.1, message_side=0.3))


def check_crossing_messages(index_type: type[RankedIndex]) -> None:
    """A message across the antimeridian is one place; its overlaps on both sides add up."""
    _check(index_type, _recipe(37, space="lonlat", side=0.9, message_side=0.5, crossing=0.6))


def check_crossing_regions(index_type: type[RankedIndex]) -> None:
    """A region cut at the antimeridian is measured as one, under any message."""
    west, east = [170.0, 0.0, 180.0, 10.0], [-180.0, 0.0, -160.0, 10.0]
    clauses = box_clauses(
        *ragged([[1, 2], [1, 2], [1, 2], [2], [2], [3], [3]]),
        [west, east, west, east, [180.0, 0.0, 180.0, 10.0], east, west],
        [0, 0, 1, 2, 2, 3, 3],
    )
    # Two thirds of the first region lie east; the second has the west alone.
    boxes: list[list[float]] = [
        [165, -5, 175, 5], [175, 0, -175, 10], [-170, 0, -160, 10], [180, 5, 180, 5],
        [160, 0, -150, 10], [-180, 2, -180, 2], [179, 5, -179, 5],
    ]  # fmt: skip
    messages = messages_of([[1], [1, 2], [2], [1, 3], [], [3], [1, 2, 3]], boxes)
    case = Case("lonlat", clauses, messages)
    for setting in GRID:
        assert_case(index_type, case, setting, np.array([1.0, 1.0, 2.0, 3.0]))
    index = _build(index_type, case, (1.0, 0.1), np.ones(4))
    found = answers_of(index.match(messages))[1]
    assert abs(found[0] - 100 / 300) < SCORE_ERROR
    assert abs(found[1] - 50 / 100) < SCORE_ERROR


def check_shapes(index_type: type[RankedIndex]) -> None:
    """Planar circles and polygons are measured by their boxes, but only where they touch."""
    _check(index_type, _recipe(38, shapes=0.7, message_side=0.1))


def check_shapes_on_lonlat(index_type: type[RankedIndex]) -> None:
    """The same for circles in metres and polygons in degrees."""
    _check(index_type, _recipe(39, space="lonlat", shapes=0.7, message_side=0.1))


def check_forbidden_tokens(index_type: type[RankedIndex]) -> None:
    """An alternative with a forbidden token in the message is out, whatever its score."""
    _check(index_type, _recipe(40, forbidden=0.6, everywhere=0.2, n_tokens=12, side=0.5))


def check_several_alternatives(index_type: type[RankedIndex]) -> None:
    """The best alternative counts, and a subscription is delivered once."""
    _check(
        index_type,
        _recipe(
            41,
            n_subscriptions=400,
            several=1.5,
            n_tokens=8,
            side=0.8,
            message_side=0.2,
            n_messages=50,
        ),
    )
    # Pieces that overlap cover more of their region than the message has.
    twice = box_clauses(*ragged([[1], [1]]), [[0.0, 0.0, 2.0, 2.0]] * 2, [0, 0])
    case = Case("planar", twice, messages_of([[1]], [[0.0, 0.0, 1.0, 1.0]]))
    assert_case(index_type, case, (0.5, 0.6), np.ones(2))


def check_everywhere(index_type: type[RankedIndex]) -> None:
    """Without keywords all of the text is there; regions without bounds are covered wholly."""
    _check(index_type, _recipe(42, everywhere=0.5, unbounded=0.4, message_side=0.2))


def check_unknown_tokens(index_type: type[RankedIndex]) -> None:
    """Tokens that no clause asks for, also beyond the vocabulary, change nothing."""
    _check(index_type, _recipe(43, n_unknown_tokens=500, skew=0.2))


def check_skewed_tokens(index_type: type[RankedIndex]) -> None:
    """Strongly skewed tokens, in clauses of up to eight, change no answer."""
    _check(
        index_type,
        _recipe(
            44,
            n_subscriptions=1500,
            n_tokens=300,
            skew=1.6,
            max_keywords=8,
            max_message_tokens=40,
            side=0.5,
            n_messages=30,
        ),
    )


def check_long_lists(index_type: type[RankedIndex]) -> None:
    """Thousands of clauses over three tokens, some forbidden, are all found."""
    _check(
        index_type,
        _recipe(
            45,
            n_subscriptions=4000,
            n_tokens=3,
            max_keywords=3,
            forbidden=0.1,
            max_message_tokens=3,
            n_messages=15,
            message_side=0.1,
        ),
    )


def check_own_thresholds(index_type: type[RankedIndex]) -> None:
    """A subscription's own threshold counts instead of the index's, from tiny to 1."""
    for seed in (46, 47):
        _check_made(index_type, own_thresholds, seed)


def check_everything_at_once(index_type: type[RankedIndex]) -> None:
    """All kinds of clauses, messages and thresholds in one batch."""
    _check_made(index_type, mixed)


# ---- scores at the threshold --------------------------------------------------------------------


def check_equal_scores_are_delivered(index_type: type[RankedIndex]) -> None:
    """A score that equals the threshold in exact arithmetic is delivered, however it is rounded."""
    sizes = range(1, 13)
    clauses = clauses_of([list(range(1, n + 1)) for n in sizes], [[0.0, 0.0, 1.0, 1.0]] * 12)
    tokens = [list(range(1, k + 1)) for k in range(13)]
    inside = messages_of(tokens, [[0.5, 0.5, 0.5, 0.5]] * 13)
    outside = messages_of(tokens, [[5.0, 5.0, 5.0, 5.0]] * 13)
    for alpha in ALPHAS:
        for n in sizes:
            for k in range(n + 1):
                for spatial, messages in ((1.0, inside), (0.0, outside)):
                    threshold = alpha * spatial + (1 - alpha) * (k / n)
                    if not 0.0 < threshold <= 1.0 or (n * 7 + k) % 5:
                        continue
                    index = _build(
                        index_type, Case("planar", clauses, messages), (alpha, threshold),
                        np.full(13, 0.1),
                    )  # fmt: skip
                    found = answers_of(index.match(messages))
                    assert n - 1 in found[k], (alpha, threshold, n, k, spatial)


def check_next_threshold_is_missed(index_type: type[RankedIndex]) -> None:
    """A threshold that lies a millionth above the score is not reached."""
    clauses = clauses_of([[1, 2], [1, 2, 3]], [[0.0, 0.0, 2.0, 2.0]] * 2)
    messages = messages_of([[1]], [[1.0, 1.0, 3.0, 3.0]])  # a quarter of the region
    case = Case("planar", clauses, messages)
    for alpha in ALPHAS:
        for slot, share in ((0, 1 / 2), (1, 1 / 3)):
            score = alpha / 4 + (1 - alpha) * share
            for change, wanted in ((-1e-6, True), (0.0, True), (1e-6, False)):
                index = _build(index_type, case, (alpha, score + change), np.ones(4))
                assert (slot in answers_of(index.match(messages))[0]) == wanted


def check_no_common_token(index_type: type[RankedIndex]) -> None:
    """Where the threshold is at most alpha, a message qualifies by its place alone."""
    n = 50
    clauses = clauses_of(
        [[1 + i % 5, 7] for i in range(n)], [[0.0, 0.0, 1.0, 1.0 + i] for i in range(n)]
    )
    messages = messages_of([[], [9], [1]], [[0.5, 30.0, 0.5, 30.0]] * 3)
    case = Case("planar", clauses, messages)
    touching = set(range(29, n))
    for alpha, threshold in ((0.6, 0.6), (0.6, 0.5), (0.9, 0.3), (1.0, 1.0)):
        index = _build(index_type, case, (alpha, threshold), np.ones(8))
        found = [set(each) for each in answers_of(index.match(messages))]
        assert found[0] == found[1] == touching
        assert found[2] >= touching
        assert_case(index_type, case, (alpha, threshold), np.ones(8))


def check_place_is_irrelevant_without_alpha(index_type: type[RankedIndex]) -> None:
    """With alpha 0 a subscription qualifies wherever it is; with alpha 1 whatever it asks for."""
    clauses = clauses_of(
        [[1], [2], [1, 2]], [[0.0, 0.0, 1.0, 1.0], [8.0, 8.0, 9.0, 9.0], [5.0, 5, 6, 6]]
    )
    messages = messages_of(
        [[1], [1, 2], []], [[0.5, 0.5, 0.5, 0.5], [99, 99, 99, 99], [8, 8, 8, 8]]
    )
    case = Case("planar", clauses, messages)
    text = _build(index_type, case, (0.0, 0.5), np.ones(3)).match(messages)
    assert answers_of(text) == [{0: 1.0, 2: 0.5}, {0: 1.0, 1: 1.0, 2: 1.0}, {}]
    place = _build(index_type, case, (1.0, 0.5), np.ones(3)).match(messages)
    assert answers_of(place) == [{0: 1.0}, {}, {1: 1.0}]


# ---- weights ------------------------------------------------------------------------------------


def check_default_weights(index_type: type[RankedIndex]) -> None:
    """Without weights, those of the frequencies count: ln((N + 1) / (df + 1)) + 1."""
    case = ranked_case(Recipe(seed=48, n_subscriptions=400, n_messages=40, max_keywords=4))
    clauses = case.clauses
    counted = np.bincount(clauses.token_ids[clauses.token_ids >= 0], minlength=41)
    given = np.random.default_rng(48).integers(0, 1000, 41)
    for frequencies in (None, given):
        df = [int(each) for each in (counted if frequencies is None else given)]
        weights = [round((math.log((max(df) + 1) / (each + 1)) + 1) * 2**16) / 2**16 for each in df]
        weights[EVERYWHERE_TOKEN] = 1.0
        index = index_type.build(
            clauses, space=case.space, frequencies=frequencies,
            parameters=index_type.parameters_type(alpha=0.5, threshold=0.6),
        )  # fmt: skip
        expected = scores_of(clauses, case.messages, case.space, 0.5, 0.6, weights)
        assert_answers(index.match(case.messages), expected)


def check_later_tokens(index_type: type[RankedIndex]) -> None:
    """Tokens that come by inserting have the later weight, also after a rebuild."""
    base = clauses_of([[1, 2]], [[0.0, 0.0, 1.0, 1.0]])
    more = clauses_of([[1, 3], [2, 3]], [[0.0, 0.0, 1.0, 1.0]] * 2)
    more = more._replace(subscriptions=more.subscriptions + np.int32(1))
    messages = messages_of([[1], [2], [3], [1, 3]], [[0.5, 0.5, 0.5, 0.5]] * 4)
    index = index_type.build(
        base, space="planar", parameters=_parameters(index_type, (0.0, 0.4)),
        weights=np.array([1.0, 2.0, 3.0]), later_weight=5.0,
    )  # fmt: skip
    index.insert(more)
    both = concat_clauses([base, more])
    expected = scores_of(both, messages, "planar", 0.0, 0.4, [1.0, 2.0, 3.0, 5.0])
    assert_answers(index.match(messages), expected)
    assert any(expected)
    new, _ = index.rebuilt()
    assert_answers(new.match(messages), expected)
    assert new.weights.tolist() == [1.0, 2.0, 3.0, 5.0]
    assert new.later_weight == 5.0


def check_weights_are_kept(index_type: type[RankedIndex]) -> None:
    """Inserting, removing and rebuilding change no weight and no score."""
    case = mixed()
    index = _build(index_type, case, (0.5, 0.5))
    weights, later = index.weights.copy(), index.later_weight
    index.remove(np.arange(0, 900, 2))
    new, _ = index.rebuilt()
    newer, _ = new.rebuilt()
    for each in (new, newer):
        assert each.weights.tolist() == weights.tolist()
        assert each.later_weight == later


# ---- places and sizes at their limits -----------------------------------------------------------


def check_huge_coordinates(index_type: type[RankedIndex]) -> None:
    """An area beyond the largest float counts as unbounded, and loses no answer."""
    for half in (8e307, 1e154):
        _check(
            index_type,
            _recipe(
                49,
                extent=(-half, -half, half, half),
                side=0.5,
                message_side=0.2,
            ),
            SOME[:4],
        )


def check_tiny_coordinates(index_type: type[RankedIndex]) -> None:
    """An area below the smallest normal float counts as none, and loses no answer."""
    for side in (1e-320, 1e-154, 1e-150):
        _check(
            index_type,
            _recipe(
                50,
                extent=(0.0, 0.0, side, side),
                side=0.5,
                message_side=0.2,
            ),
            SOME[:4],
        )


def check_mixed_sizes(index_type: type[RankedIndex]) -> None:
    """Regions from a thousandth of a message to a thousand times its size are measured alike."""
    _check_made(index_type, mixed_sizes)


def check_infinite_boxes(index_type: type[RankedIndex]) -> None:
    """Infinite sides, of regions and of messages, are covered wholly where they touch."""
    inf = np.inf
    sides = [(-inf, inf), (-inf, 0.0), (0.0, inf), (0.0, 0.0), (1.0, 2.0), (-inf, -inf), (inf, inf)]
    boxes = [[x[0], y[0], x[1], y[1]] for x in sides for y in sides]
    clauses = clauses_of([[1, 2]] * len(boxes), boxes)
    messages = messages_of([[1]] * len(boxes), boxes)
    for setting in SOME:
        assert_case(index_type, Case("planar", clauses, messages), setting, np.ones(3))


def check_long_clauses(index_type: type[RankedIndex]) -> None:
    """A clause may ask for hundreds of tokens, and forbid as many."""
    sizes = [1, 2, 254, 255, 256, 257, 300, 600]
    token_rows = [list(range(1, size + 1)) for size in sizes]
    token_rows += [[*row, *(~(700 + t) for t in row)] for row in token_rows]
    clauses = clauses_of(token_rows, [[0.0, 0.0, 1.0, 1.0]] * len(token_rows))
    message_tokens = [list(range(1, size + 1)) for size in (0, 1, 153, 254, 255, 256, 299, 600)]
    message_tokens += [[*row, 700 + len(row)] for row in message_tokens]
    messages = messages_of(message_tokens, [[0.5, 0.5, 0.5, 0.5]] * len(message_tokens))
    case = Case("planar", clauses, messages)
    for setting in SOME:
        assert_case(index_type, case, setting, weights_of(case))


def check_list_lengths(index_type: type[RankedIndex]) -> None:
    """Lists of every length around the usual block sizes are searched to their ends."""
    lengths = [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257, 1025]
    tokens = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    n = len(tokens)
    places = np.random.default_rng(16).uniform(0, 10, (n, 2))
    clauses = box_clauses(np.arange(n + 1), tokens, np.concatenate([places, places], axis=1))
    rows = np.unique(np.concatenate([np.cumsum(lengths) - 1, np.arange(0, n, 7)]))
    messages = messages_of([[int(tokens[row])] for row in rows], clauses.boxes[rows])
    # Each clause is asked for alone, at its own place; then by its place, then by its text.
    index = _build(index_type, Case("planar", clauses, messages), (0.5, 0.9), np.ones(99))
    assert answers_of(index.match(messages)) == [{int(row): 1.0} for row in rows]
    nobody = messages_of([[]] * len(rows), clauses.boxes[rows])
    index = _build(index_type, Case("planar", clauses, messages), (0.5, 0.5), np.ones(99))
    assert answers_of(index.match(nobody)) == [{int(row): 0.5} for row in rows]
    nowhere = messages_of([[k + 1] for k in range(len(lengths))], [[99.0] * 4] * len(lengths))
    assert [len(each) for each in answers_of(index.match(nowhere))] == lengths


def check_empty_index(index_type: type[RankedIndex]) -> None:
    """An index of nothing delivers nothing, and takes subscriptions."""
    case = mixed()
    index = index_type.build(
        part_of(case.clauses, 0, 0), space=case.space, weights=weights_of(case),
        parameters=_parameters(index_type, (0.5, 0.4)),
    )  # fmt: skip
    assert index.n_subscriptions == 0
    found = index.match(case.messages)
    assert answers_of(found) == [{}] * len(case.messages.boxes)
    assert found.scores is not None
    index.insert(case.clauses)
    assert_answers(index.match(case.messages), expected_mixed((0.5, 0.4)))


def check_empty_batch(index_type: type[RankedIndex]) -> None:
    """A batch of no messages has no answers, with one thread or many."""
    case = mixed()
    index = _build(index_type, case, (0.5, 0.4))
    nothing = take_messages(case.messages, np.empty(0, np.int64))
    for n_threads in (1, 3):
        found = index.match(nothing, n_threads=n_threads)
        assert found.offsets.tolist() == [0]
        assert found.scores is not None
        assert len(found.subscriptions) == len(found.scores) == 0


def check_growing_answers(index_type: type[RankedIndex]) -> None:
    """A single message may have any number of answers; counters count no message twice."""
    n = 5000
    clauses = clauses_of([[1 + i % 2, 3] for i in range(n)], [[0.0, 0.0, 1.0, 1.0]] * n)
    messages = messages_of([[1], [1, 2], [9], [1, 2]], [[0.5, 0.5, 0.5, 0.5]] * 4)
    case = Case("planar", clauses, messages)
    for setting in ((0.5, 0.7), (0.5, 0.4), (0.0, 0.4)):
        built = _build(index_type, case, setting, np.ones(4))
        inserted = _build(
            index_type, case._replace(clauses=part_of(clauses, 0, 0)), setting, np.ones(4)
        )
        inserted.insert(clauses)
        expected = scores_of(clauses, messages, "planar", *setting, [1.0] * 4)
        for index in (built, inserted):
            found = index.match(messages)
            assert_answers(found, expected)
            rows = [take_messages(messages, np.array([row])) for row in range(4)]
            singles = [index.match(row).counters for row in rows]
            assert found.counters == tuple(sum(each) for each in zip(*singles, strict=True))


# ---- order, batches, threads --------------------------------------------------------------------


def check_many_equal_one_by_one(index_type: type[RankedIndex]) -> None:
    """A batch gives what its messages give one by one."""
    case = mixed()
    for setting in SOME[:5]:
        index = _build(index_type, case, setting)
        rows = range(len(case.messages.boxes))
        singles = [index.match(take_messages(case.messages, np.array([row]))) for row in rows]
        assert_answers(index.match(case.messages), [answers_of(found)[0] for found in singles])


def check_repeated_batches(index_type: type[RankedIndex]) -> None:
    """Matching leaves nothing behind: the same batch always has the same answers."""
    case = mixed()
    for setting in ((0.5, 0.6), (0.5, 0.3)):
        index = _build(index_type, case, setting)
        first = index.match(case.messages)
        for _ in range(20):
            again = index.match(case.messages)
            assert again.offsets.tobytes() == first.offsets.tobytes()
            assert again.subscriptions.tobytes() == first.subscriptions.tobytes()
            assert again.scores is not None
            assert first.scores is not None
            assert again.scores.tobytes() == first.scores.tobytes()
            assert again.counters == first.counters


def check_threads_change_nothing(index_type: type[RankedIndex]) -> None:
    """Any number of threads gives the answers and counters of one, also while building."""
    case = mixed()
    index, _ = _changed_index(index_type, case)
    alone = index.match(case.messages)
    for n_threads in (2, 3, 16):
        found = index.match(case.messages, n_threads=n_threads)
        assert_answers(found, answers_of(alone))
        assert found.counters == alone.counters
    together = index_type.build(
        case.clauses, space=case.space, parameters=_parameters(index_type, (0.5, 0.4)),
        weights=weights_of(case), n_threads=3,
    )  # fmt: skip
    assert_answers(together.match(case.messages), expected_mixed((0.5, 0.4)))


def check_order_is_irrelevant(index_type: type[RankedIndex]) -> None:
    """The order of clauses in the arrays changes no answer."""
    case = mixed()
    rows = np.random.default_rng(24).permutation(len(case.clauses.subscriptions))
    shuffled = case._replace(clauses=take_clauses(case.clauses, rows))
    index = _build(index_type, shuffled, (0.5, 0.4))
    assert_answers(index.match(case.messages), expected_mixed((0.5, 0.4)))


def check_inputs_are_untouched(index_type: type[RankedIndex]) -> None:
    """Building, matching, inserting and removing write to no array of the caller."""
    case = mixed()
    head, tail = split_at(case.clauses, 400)
    weights = weights_of(case)
    before = pickle.dumps((head, tail, case.messages, weights))
    index = index_type.build(head, space=case.space, weights=weights)
    index.insert(tail)
    index.remove([0, 3, 500])
    index.match(case.messages, n_threads=2)
    index.rebuilt()
    assert pickle.dumps((head, tail, case.messages, weights)) == before


# ---- wrong input --------------------------------------------------------------------------------


def check_wrong_input_is_rejected(index_type: type[RankedIndex]) -> None:
    """Boxes, clauses, slots, thresholds, weights and messages that are none are refused."""
    good = clauses_of([[1], [2]], [[0.0, 0.0, 1.0, 1.0]] * 2)
    index = index_type.build(good, space="planar")
    nan = np.nan
    wrong = [
        good._replace(boxes=np.array([[0, 0, 1, 1], [2.0, 0, 1, 1]])),
        good._replace(boxes=np.array([[0, 0, 1, 1], [0, nan, 1, 1]])),
        good._replace(boxes=good.boxes[:1]),
        good._replace(token_offsets=np.array([0, 1, 1])),
        good._replace(token_ids=np.array([1, ~2], np.int32)),
        good._replace(thresholds=np.array([0.5])),
        good._replace(thresholds=np.array([0.5, 0.0])),
        good._replace(thresholds=np.array([0.5, 1.1])),
        good._replace(thresholds=np.array([nan, -0.5])),
        good._replace(subscriptions=np.zeros(2, np.int32), thresholds=np.array([0.5, 0.6])),
        good._replace(subscriptions=np.zeros(2, np.int32), thresholds=np.array([nan, 0.6])),
    ]
    for bad in wrong:
        assert_rejected(index_type.build, bad, space="planar")
        assert_rejected(index.insert, bad._replace(subscriptions=bad.subscriptions + np.int32(2)))
    assert_rejected(index.insert, good)
    assert_rejected(index.remove, [2])
    assert_rejected(index.remove, [0, 0])
    for weights in ([1.0, 0.0, 1.0], [1.0, nan, 1.0], [1.0, -1.0, 1.0], [1.0, np.inf, 1.0]):
        assert_rejected(index_type.build, good, weights=np.array(weights))
    assert_rejected(index_type.build, good, weights=np.ones(3), later_weight=0.0)
    for setting in ((-0.1, 0.5), (1.1, 0.5), (nan, 0.5), (0.5, 0.0), (0.5, 1.1), (0.5, nan)):
        assert_rejected(_parameters, index_type, setting)
    for box in ([nan, 0, 1, 1], [0, 0, 1, nan], [0, 2.0, 1, 1], [1.0, 0.0, 0.0, 1.0]):
        assert_rejected(index.match, messages_of([[1]], [box]))
    assert index.n_slots == 2


# ---- changes ------------------------------------------------------------------------------------


def check_insert_equals_build(index_type: type[RankedIndex]) -> None:
    """Subscriptions inserted in any portions match like those that were built in."""
    case = mixed()
    expected = expected_mixed((0.5, 0.4))
    for cuts in ([0, 900], [0, 1, 2, 300, 900], [450, 451, 900], [800, 850, 900],
                 [0, *range(10, 901, 89)]):  # fmt: skip
        index = _build(
            index_type, case._replace(clauses=part_of(case.clauses, 0, cuts[0])), (0.5, 0.4),
            weights_of(case),
        )  # fmt: skip
        for start, stop in pairwise(cuts):
            index.insert(part_of(case.clauses, start, stop))
        assert_live(index, case, expected, set(range(900)))


def check_insert_order_is_irrelevant(index_type: type[RankedIndex]) -> None:
    """Clauses of one inserted batch may stand in any order."""
    case = mixed()
    head, tail = split_at(case.clauses, 700)
    index = _build(index_type, case._replace(clauses=head), (0.5, 0.4), weights_of(case))
    rows = np.random.default_rng(25).permutation(len(tail.subscriptions))
    index.insert(take_clauses(tail, rows))
    index.remove([700, 890])
    assert_live(index, case, expected_mixed((0.5, 0.4)), set(range(900)) - {700, 890})


def check_remove_undoes_insert(index_type: type[RankedIndex]) -> None:
    """After removing what was inserted, all answers are as before."""
    case = mixed()
    for first in (200, 800):
        head, tail = split_at(case.clauses, first)
        index = _build(index_type, case._replace(clauses=head), (0.5, 0.4), weights_of(case))
        before = answers_of(index.match(case.messages))
        index.insert(tail)
        assert answers_of(index.match(case.messages)) != before
        index.remove(np.arange(first, 900))
        assert answers_of(index.match(case.messages)) == before
        assert (index.n_subscriptions, index.n_slots) == (first, 900)
        index.remove(np.arange(first))
        assert answers_of(index.match(case.messages)) == [{}] * len(before)
        assert index.rebuilt()[0].n_subscriptions == 0


def check_interleavings(index_type: type[RankedIndex]) -> None:
    """Any sequence of inserts, removals and matches agrees with the oracle throughout."""
    case = mixed()
    settings = [(0.5, 0.6), (0.5, 0.3), (0.1, 0.5)]
    for seed, setting in enumerate(settings):
        random = np.random.default_rng(seed)
        n_known = int(random.integers(0, 400))
        index = _build(
            index_type, case._replace(clauses=part_of(case.clauses, 0, n_known)), setting,
            weights_of(case),
        )  # fmt: skip
        live = set(range(n_known))
        while n_known < 900:
            step = min(int(random.integers(0, 150)), 900 - n_known)
            index.insert(part_of(case.clauses, n_known, n_known + step))
            live |= set(range(n_known, n_known + step))
            n_known += step
            gone = random.choice(sorted(live), int(random.integers(0, 1 + len(live) // 6)), False)
            index.remove(gone)
            live -= set(gone.tolist())
            if random.random() < 0.7:
                rows = random.choice(len(case.messages.boxes), 15, replace=False)
                expected = [expected_mixed(setting)[row] for row in rows]
                some = case._replace(messages=take_messages(case.messages, rows))
                assert_live(index, some, expected, live)


def check_rebuilt_equals(index_type: type[RankedIndex]) -> None:
    """Rebuilding renumbers the live subscriptions and changes no score, and not the original."""
    case = mixed()
    index, live = _changed_index(index_type, case)
    new, old_slots = index.rebuilt()
    assert old_slots.tolist() == sorted(live)
    assert new.n_changes == 0
    expected = expected_mixed((0.5, 0.4))
    new_slots = {old: new_slot for new_slot, old in enumerate(sorted(live))}
    renumbered = [
        {new_slots[slot]: score for slot, score in each.items() if slot in live}
        for each in expected
    ]
    assert_answers(new.match(case.messages), renumbered)
    assert index.n_changes > 0
    assert_live(index, case, expected, live)


# ---- saving -------------------------------------------------------------------------------------


def check_saved_equals_opened(index_type: type[RankedIndex]) -> None:
    """An opened index answers like the saved one, changes included, and stays apart from it."""
    case = mixed()
    expected = expected_mixed((0.5, 0.4))
    for index, live in (
        (_build(index_type, case, (0.5, 0.4)), set(range(900))),
        _changed_index(index_type, case),
    ):
        with tempfile.TemporaryDirectory() as parent:
            index.save(Path(parent) / "saved")
            opened = index_type.open(Path(parent) / "saved")
            assert_live(opened, case, expected, live)
            assert opened.parameters == index.parameters
            assert opened.weights.tolist() == index.weights.tolist()
            assert opened.later_weight == index.later_weight
            assert (opened.n_slots, opened.n_changes) == (index.n_slots, index.n_changes)
            gone = sorted(live)[::3]
            opened.remove(gone)
            assert_live(opened, case, expected, live - set(gone))
            assert_live(index, case, expected, live)
            assert_live(index_type.open(Path(parent) / "saved"), case, expected, live)


def check_pickle_equals(index_type: type[RankedIndex]) -> None:
    """A pickled index answers like the original, on its own, and leaves the original as it was."""
    case = mixed()
    expected = expected_mixed((0.5, 0.4))
    index, live = _changed_index(index_type, case)
    index.match(case.messages)
    copy = pickle.loads(pickle.dumps(index))
    assert_live(copy, case, expected, live)
    gone = sorted(live)[::2]
    copy.remove(gone)
    assert_live(copy, case, expected, live - set(gone))
    assert_live(index, case, expected, live)


# ---- facts --------------------------------------------------------------------------------------


def check_counters(index_type: type[RankedIndex]) -> None:
    """Counters count the answers delivered, and never fewer candidates than answers."""
    case = ranked_case(Recipe(seed=32, n_subscriptions=500, max_keywords=4))
    for setting in SOME:
        found = _build(index_type, case, setting).match(case.messages)
        assert found.counters.answers == len(found.subscriptions) == found.offsets[-1]
        assert found.counters.nodes >= 0
        assert found.counters.candidates >= found.counters.answers > 0


def check_sizes_grow(index_type: type[RankedIndex]) -> None:
    """The bytes of an index are positive and grow with what is in it."""
    case = mixed()
    small = _build(
        index_type,
        case._replace(clauses=part_of(case.clauses, 0, 100)),
        (0.5, 0.4),
        weights_of(case),
    )
    large = _build(index_type, case, (0.5, 0.4))
    assert 0 < small.nbytes < large.nbytes
    assert 0 < small.stored_nbytes < large.stored_nbytes
    before = small.nbytes
    small.insert(part_of(case.clauses, 100, 900))
    assert small.nbytes > before


def check_prunes(index_type: type[RankedIndex]) -> None:
    """Where text and place are both needed, few of the clauses are looked at."""
    recipe = Recipe(seed=52, n_subscriptions=4000, n_messages=100, n_tokens=400, side=0.05,
                    everywhere=0, max_message_tokens=6, skew=0.3)  # fmt: skip
    case = make_case(recipe)
    counters = _build(index_type, case, (0.5, 0.8)).match(case.messages).counters
    assert counters.nodes > 0
    assert counters.candidates < 0.1 * 4000 * 100


_LAWS: list[RankedLaw] = [
    check_every_alpha_and_threshold,
    check_points,
    check_ranges,
    check_small_ranges,
    check_equal_sides,
    check_regions_without_area,
    check_crossing_messages,
    check_crossing_regions,
    check_shapes,
    check_shapes_on_lonlat,
    check_forbidden_tokens,
    check_several_alternatives,
    check_everywhere,
    check_unknown_tokens,
    check_skewed_tokens,
    check_long_lists,
    check_own_thresholds,
    check_everything_at_once,
    check_equal_scores_are_delivered,
    check_next_threshold_is_missed,
    check_no_common_token,
    check_place_is_irrelevant_without_alpha,
    check_default_weights,
    check_later_tokens,
    check_weights_are_kept,
    check_huge_coordinates,
    check_tiny_coordinates,
    check_mixed_sizes,
    check_infinite_boxes,
    check_long_clauses,
    check_list_lengths,
    check_empty_index,
    check_empty_batch,
    check_growing_answers,
    check_many_equal_one_by_one,
    check_repeated_batches,
    check_threads_change_nothing,
    check_order_is_irrelevant,
    check_inputs_are_untouched,
    check_wrong_input_is_rejected,
    check_insert_equals_build,
    check_insert_order_is_irrelevant,
    check_remove_undoes_insert,
    check_interleavings,
    check_rebuilt_equals,
    check_saved_equals_opened,
    check_pickle_equals,
    check_counters,
    check_sizes_grow,
]

_LAWS_OF_STRUCTURES: list[RankedLaw] = [check_prunes]
"""Laws of indexes that have more than scoring arrays; a plain scan cannot prune."""


# ---- how laws are checked -----------------------------------------------------------------------


def _check(
    index_type: type[RankedIndex], recipe: Recipe, settings: Sequence[Setting] = SOME
) -> None:
    """Assert that fresh indexes of the recipe's case answer as the oracle does."""
    _check_made(index_type, ranked_case, recipe, settings=settings)


def _recipe(seed: int, **options: Any) -> Recipe:
    return replace(Recipe(seed=seed, n_subscriptions=500, n_messages=40), **options)


def _check_made(
    index_type: type[RankedIndex],
    make: Callable[..., Case],
    *args: Any,
    settings: Sequence[Setting] = SOME,
) -> None:
    """The same for the case that a function makes."""
    case = made_case(make, args)
    for setting in settings:
        expected = expected_scores(make, args, setting)
        found = _build(index_type, case, setting).match(case.messages)
        assert_answers(found, expected, f"{args} with {setting}")
    assert any(any(expected_scores(make, args, setting)) for setting in settings), (
        "this proves nothing"
    )


def assert_case(
    index_type: type[RankedIndex], case: Case, setting: Setting, weights: Float64s
) -> None:
    """Assert that a fresh index of the case answers as the oracle does."""
    expected = scores_of(case.clauses, case.messages, case.space, *setting, weights.tolist())
    index = _build(index_type, case, setting, weights)
    assert_answers(index.match(case.messages), expected, str(setting))


def assert_live(index: RankedIndex, case: Case, expected: Scores, live: set[int]) -> None:
    """Assert that the index delivers to live subscriptions, as the oracle does, and no other."""
    assert_answers(
        index.match(case.messages),
        [{slot: score for slot, score in each.items() if slot in live} for each in expected],
    )
    assert index.n_subscriptions == len(live)
    slots = np.arange(-1, index.n_slots + 1, dtype=np.int32)
    assert set(slots[index.is_alive(slots)].tolist()) == live


def _parameters(index_type: type[RankedIndex], setting: Setting) -> Any:
    return index_type.parameters_type(alpha=setting[0], threshold=setting[1])


def _build(
    index_type: type[RankedIndex], case: Case, setting: Setting, weights: Float64s | None = None
) -> RankedIndex:
    return index_type.build(
        case.clauses,
        space=case.space,
        parameters=_parameters(index_type, setting),
        weights=weights_of(case) if weights is None else weights,
    )


def _changed_index(index_type: type[RankedIndex], case: Case) -> tuple[RankedIndex, set[int]]:
    """Return an index of which half was built and half inserted, some of both removed since."""
    index = _build(
        index_type,
        case._replace(clauses=part_of(case.clauses, 0, 400)),
        (0.5, 0.4),
        weights_of(case),
    )
    index.insert(part_of(case.clauses, 400, 800))
    index.remove(np.arange(390, 420))
    index.insert(part_of(case.clauses, 800, 900))
    gone = np.setdiff1d(
        np.random.default_rng(29).choice(900, 150, replace=False), np.arange(390, 420)
    )
    index.remove(gone)
    return index, set(range(900)) - set(gone.tolist()) - set(range(390, 420))
