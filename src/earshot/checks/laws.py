"""The laws of boolean indexes: one small ``check_*`` function each, the same for every structure.

A new structure proves itself with::

    for check in laws_for(MyIndex):
        check(MyIndex)

Each check raises ``AssertionError`` when its law is broken. Answers are compared with the oracle
(:mod:`earshot.checks.oracle`), which shares no code with the indexes.
"""

from __future__ import annotations

import hashlib
import pickle
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from earshot.checks.generate import Case, Recipe, make_case, ragged
from earshot.checks.oracle import matches_of
from earshot.errors import InvalidInput
from earshot.indexes.answers import Matches
from earshot.indexes.contract import Index
from earshot.model.arrays import (
    EVERYWHERE_TOKEN,
    ClauseArrays,
    Float64s,
    MessageArrays,
    box_clauses,
    take_clauses,
    take_messages,
)

Law = Callable[[type[Index]], None]
Boxes = Sequence[Sequence[float]] | Float64s

MIXED = Recipe(
    seed=11, space="lonlat", message_side=0.1, n_unknown_tokens=5, forbidden=0.2, several=0.4,
    unbounded=0.05, shapes=0.2, crossing=0.2, grid=0.5,
)  # fmt: skip
"""Everything at once; the case of the laws that are not about one kind of input."""


def laws_for(index_type: type[Index]) -> list[Law]:
    """Return the laws that an index of this type must obey."""
    laws = list(_LAWS)
    if index_type.arrays_type._fields:  # type: ignore[attr-defined]
        laws += _LAWS_OF_STRUCTURES
    return laws


# ---- answers equal the oracle's -----------------------------------------------------------------


def check_points(index_type: type[Index]) -> None:
    """Messages at points reach exactly the oracle's subscriptions."""
    assert_equals_oracle(index_type, Recipe(seed=1))


def check_points_on_lonlat(index_type: type[Index]) -> None:
    """The same on longitude and latitude."""
    assert_equals_oracle(index_type, Recipe(seed=2, space="lonlat"))


def check_rectangles(index_type: type[Index]) -> None:
    """Messages with a box reach every region that shares a point with it, crossing ones too."""
    assert_equals_oracle(index_type, Recipe(seed=3, message_side=0.3))


def check_crossing_messages(index_type: type[Index]) -> None:
    """A message box across the antimeridian is matched on both sides and delivered once."""
    assert_equals_oracle(
        index_type, Recipe(seed=4, space="lonlat", side=0.5, message_side=0.4, crossing=0.5)
    )


def check_shapes(index_type: type[Index]) -> None:
    """Planar circles and polygons are matched exactly, not by their boxes."""
    assert_equals_oracle(index_type, Recipe(seed=5, shapes=0.7, message_side=0.03))


def check_shapes_on_lonlat(index_type: type[Index]) -> None:
    """Circles in metres, and polygons in degrees, are matched exactly."""
    assert_equals_oracle(index_type, Recipe(seed=6, space="lonlat", shapes=0.7, message_side=0.03))


def check_forbidden_tokens(index_type: type[Index]) -> None:
    """A forbidden token in a message keeps it from the clause."""
    assert_equals_oracle(
        index_type, Recipe(seed=7, forbidden=0.6, everywhere=0.2, n_tokens=12, side=0.5)
    )


def check_several_clauses(index_type: type[Index]) -> None:
    """A subscription is delivered once, however many of its clauses match."""
    assert_equals_oracle(
        index_type, Recipe(seed=8, n_subscriptions=500, several=1.5, n_tokens=8, side=0.8)
    )


def check_everywhere(index_type: type[Index]) -> None:
    """Clauses without keywords match any text, and those without bounds any place."""
    assert_equals_oracle(index_type, Recipe(seed=9, everywhere=0.5, unbounded=0.3))


def check_unknown_tokens(index_type: type[Index]) -> None:
    """Tokens that no clause asks for, also beyond the vocabulary, change nothing."""
    assert_equals_oracle(index_type, Recipe(seed=10, n_unknown_tokens=500, skew=0.2))


def check_everything_at_once(index_type: type[Index]) -> None:
    """All kinds of clauses and messages in one batch reach exactly the oracle's subscriptions."""
    assert_equals_oracle(index_type, MIXED)


def check_skewed_tokens(index_type: type[Index]) -> None:
    """Strongly skewed tokens, in clauses of up to eight, change no answer."""
    assert_equals_oracle(
        index_type,
        Recipe(seed=12, n_subscriptions=3000, n_tokens=300, skew=1.6, max_keywords=8,
               max_message_tokens=40, side=0.5, n_messages=50),
    )  # fmt: skip


def check_long_lists(index_type: type[Index]) -> None:
    """Thousands of clauses under one token, points and boxes, are all found."""
    assert_equals_oracle(
        index_type,
        Recipe(seed=13, n_subscriptions=6000, n_tokens=1, max_keywords=1, everywhere=0,
               max_message_tokens=1, n_messages=30, message_side=0.05),
    )  # fmt: skip


def check_long_lists_of_pairs(index_type: type[Index]) -> None:
    """Thousands of clauses over three tokens, some forbidden, are all found."""
    assert_equals_oracle(
        index_type,
        Recipe(seed=14, n_subscriptions=6000, n_tokens=3, max_keywords=2, forbidden=0.1,
               max_message_tokens=3, n_messages=30),
    )  # fmt: skip


def check_many_distinct_coordinates(index_type: type[Index]) -> None:
    """More distinct coordinates than a 16-bit cell number can tell apart are told apart."""
    assert_equals_oracle(
        index_type,
        Recipe(seed=15, n_subscriptions=20_000, n_tokens=4, max_keywords=1, side=0.02,
               n_messages=25, max_message_tokens=3),
    )  # fmt: skip


def check_list_lengths(index_type: type[Index]) -> None:
    """Lists of every length around the usual block sizes are searched to their ends."""
    lengths = [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257, 1025]
    tokens = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    n = len(tokens)
    places = np.random.default_rng(16).uniform(0, 10, (n, 2))
    clauses = box_clauses(np.arange(n + 1), tokens, np.concatenate([places, places], axis=1))
    # Each clause is asked for alone, at its own place.
    rows = np.unique(np.concatenate([np.cumsum(lengths) - 1, np.arange(0, n, 7)]))
    messages = _messages([[int(tokens[row])] for row in rows], clauses.boxes[rows])
    found = index_type.build(clauses, space="planar").match(messages)
    assert found.offsets.tolist() == list(range(len(rows) + 1))
    assert found.subscriptions.tolist() == rows.tolist()


def check_long_clauses(index_type: type[Index]) -> None:
    """A clause may ask for hundreds of tokens, and forbid as many."""
    sizes = [1, 2, 254, 255, 256, 257, 300, 600]
    token_rows = [list(range(1, size + 1)) for size in sizes]
    token_rows += [[*row, *(~(700 + t) for t in row)] for row in token_rows]
    clauses = _clauses(token_rows, [[0.0, 0.0, 1.0, 1.0]] * len(token_rows))
    message_tokens = [list(range(1, size + 1)) for size in (0, 1, 253, 254, 255, 256, 299, 600)]
    message_tokens += [[*row, 700 + len(row)] for row in message_tokens]
    messages = _messages(message_tokens, [[0.5, 0.5, 0.5, 0.5]] * len(message_tokens))
    assert_case(index_type, Case("planar", clauses, messages))


# ---- places at their limits ---------------------------------------------------------------------


def check_touching_counts(index_type: type[Index]) -> None:
    """Boundaries are closed: a shared edge or corner is a match, a gap of one ulp is not."""
    low, high = 1.0, 2.0
    below, above = np.nextafter(low, -np.inf), np.nextafter(high, np.inf)
    sides = [(below, below), (below, low), (low, low), (1.5, 1.5), (high, high), (high, above),
             (above, above), (below, above), (0.0, below), (above, 3.0)]  # fmt: skip
    boxes = [[x[0], y[0], x[1], y[1]] for x in sides for y in sides]
    clauses = _clauses([[1]] * 3, [[low, low, high, high], [low, low, low, low], [1, 1, 2, 1]])
    messages = _messages([[1]] * len(boxes), boxes)
    assert_case(index_type, Case("planar", clauses, messages))
    # The other way round: many regions, one message.
    clauses = _clauses([[1]] * len(boxes), boxes)
    messages = _messages([[1]] * 3, [[low, low, high, high], [low, low, low, low], [1, 1, 2, 1]])
    assert_case(index_type, Case("planar", clauses, messages))


def check_shared_coordinates(index_type: type[Index]) -> None:
    """Where most sides fall on the same few values, touching is still told from missing."""
    assert_equals_oracle(
        index_type,
        Recipe(seed=17, extent=(0, 0, 8, 8), grid=1.0, side=0.4, message_side=0.3, n_messages=60),
    )


def check_zero_area_boxes(index_type: type[Index]) -> None:
    """Regions that are points or segments are matched by messages that touch them."""
    assert_equals_oracle(
        index_type,
        Recipe(seed=18, extent=(0, 0, 6, 6), grid=1.0, side=0.0, message_side=0.2, n_messages=60),
    )


def check_neighbouring_floats(index_type: type[Index]) -> None:
    """Coordinates one ulp apart are different, wherever they lie."""
    for magnitude in (1.0, -7.3, 1e-300, 1e300, 179.99999999999997):
        steps = [magnitude]
        for _ in range(40):
            steps.append(float(np.nextafter(steps[-1], np.inf)))
        boxes = [[a, 0.0, b, 1.0] for a, b in zip(steps[:-3], steps[3:], strict=True)]
        clauses = _clauses([[1]] * len(boxes), boxes)
        messages = _messages([[1]] * len(steps), [[x, 0.5, x, 0.5] for x in steps])
        assert_case(index_type, Case("planar", clauses, messages))


def check_huge_coordinates(index_type: type[Index]) -> None:
    """Coordinates near the largest float neither overflow nor lose an answer."""
    assert_equals_oracle(
        index_type,
        Recipe(seed=19, extent=(-8e307, -8e307, 8e307, 8e307), side=0.5, message_side=0.2),
    )


def check_tiny_coordinates(index_type: type[Index]) -> None:
    """Coordinates that are subnormal numbers neither underflow nor lose an answer."""
    assert_equals_oracle(
        index_type, Recipe(seed=20, extent=(0.0, 0.0, 1e-320, 1e-320), side=0.5, message_side=0.2)
    )


def check_mixed_magnitudes(index_type: type[Index]) -> None:
    """One far-away region does not blur the near ones."""
    near = make_case(Recipe(seed=21, extent=(0, 0, 1e-6, 1e-6)))
    boxes = near.clauses.boxes.copy()
    boxes[0] = 1e300, 1e300, 1e301, 1e301
    boxes[1] = -1e300, -1e300, -1e299, -1e299
    assert_case(index_type, near._replace(clauses=near.clauses._replace(boxes=boxes)))


def check_infinite_boxes(index_type: type[Index]) -> None:
    """Infinite sides reach every message, and infinite messages every region."""
    inf = np.inf
    sides = [(-inf, inf), (-inf, 0.0), (0.0, inf), (0.0, 0.0), (1.0, 2.0), (-inf, -inf), (inf, inf)]
    boxes = [[x[0], y[0], x[1], y[1]] for x in sides for y in sides]
    clauses = _clauses([[1]] * len(boxes), boxes)
    messages = _messages([[1]] * len(boxes), boxes)
    assert_case(index_type, Case("planar", clauses, messages))
    assert_equals_oracle(index_type, Recipe(seed=22, unbounded=0.8, message_side=0.1))


# ---- sizes at their limits ----------------------------------------------------------------------


def check_empty_index(index_type: type[Index]) -> None:
    """An index of nothing delivers nothing, and takes subscriptions."""
    case = make_case(MIXED)
    nothing = take_clauses(case.clauses, np.empty(0, np.int64))
    for empty in (nothing, box_clauses([0], [], [])):
        index = index_type.build(empty, space="lonlat")
        assert index.n_subscriptions == 0
        assert _answers(index.match(case.messages)) == [set()] * len(case.messages.boxes)
        index.insert(case.clauses)
        _assert_answers(index.match(case.messages), _expected(MIXED))


def check_empty_batch(index_type: type[Index]) -> None:
    """A batch of no messages has no answers, with one thread or many."""
    case = make_case(MIXED)
    index = _build(index_type, case)
    nothing = take_messages(case.messages, np.empty(0, np.int64))
    for n_threads in (1, 3):
        found = index.match(nothing, n_threads=n_threads)
        assert found.offsets.tolist() == [0]
        assert len(found.subscriptions) == 0


def check_messages_without_tokens(index_type: type[Index]) -> None:
    """A message with no known keyword reaches only clauses that ask for none."""
    clauses = _clauses(
        [[1], [EVERYWHERE_TOKEN], [EVERYWHERE_TOKEN, ~1]], [[0.0, 0.0, 1.0, 1.0]] * 3
    )
    index = index_type.build(clauses, space="planar")
    found = index.match(_messages([[], [1]], [[0.5, 0.5, 0.5, 0.5]] * 2))
    assert _answers(found) == [{1, 2}, {0, 1}]


def check_single_subscription(index_type: type[Index]) -> None:
    """One subscription is delivered when all of it matches, and else not."""
    clauses = _clauses([[2, 5, ~3]], [[0.0, 0.0, 1.0, 1.0]])
    index = index_type.build(clauses, space="planar")
    inside, outside = [0.0, 1.0, 0.0, 1.0], [1.5, 0.5, 1.5, 0.5]
    found = index.match(
        _messages([[2, 5], [2, 5], [2], [2, 3, 5], [5, 9, 2]], [inside, outside, *[inside] * 3])
    )
    assert _answers(found) == [{0}, set(), set(), set(), {0}]


def check_identical_subscriptions(index_type: type[Index]) -> None:
    """Many equal subscriptions are each delivered once; the answer buffer grows as needed."""
    n = 500
    clauses = _clauses([[1, 2]] * n, [[0.0, 0.0, 1.0, 1.0]] * n)
    index = index_type.build(clauses, space="planar")
    found = index.match(_messages([[1, 2]] * 20 + [[1]] * 20, [[0.5, 0.5, 0.5, 0.5]] * 40))
    _assert_answers(found, [set(range(n))] * 20 + [set()] * 20)


def check_growing_answers(index_type: type[Index]) -> None:
    """A single message may have any number of answers; counters count no message twice."""
    n = 5000
    clauses = _clauses([[1 + i % 2] for i in range(n)], [[0.0, 0.0, 1.0, 1.0]] * n)
    messages = _messages([[1], [1, 2], [3], [1, 2]], [[0.5, 0.5, 0.5, 0.5]] * 4)
    built = index_type.build(clauses, space="planar")
    inserted = index_type.build(_part(clauses, 0, 0), space="planar")
    inserted.insert(clauses)
    for index in (built, inserted):
        found = index.match(messages)
        _assert_answers(found, [set(range(0, n, 2)), set(range(n)), set(), set(range(n))])
        rows = [take_messages(messages, np.array([row])) for row in range(4)]
        singles = [index.match(row).counters for row in rows]
        assert found.counters == tuple(sum(each) for each in zip(*singles, strict=True))


# ---- order, batches, threads --------------------------------------------------------------------


def check_many_equal_one_by_one(index_type: type[Index]) -> None:
    """A batch gives what its messages give one by one."""
    case = make_case(MIXED)
    index = _build(index_type, case)
    rows = range(len(case.messages.boxes))
    singles = [index.match(take_messages(case.messages, np.array([row]))) for row in rows]
    _assert_answers(index.match(case.messages), [_answers(found)[0] for found in singles])


def check_repeated_batches(index_type: type[Index]) -> None:
    """Matching leaves nothing behind: the same batch always has the same answers."""
    case = make_case(Recipe(seed=23, n_subscriptions=60, n_messages=10, n_tokens=5, side=1.0))
    index = _build(index_type, case)
    first = index.match(case.messages)
    for _ in range(100):
        again = index.match(case.messages)
        assert again.offsets.tobytes() == first.offsets.tobytes()
        assert again.subscriptions.tobytes() == first.subscriptions.tobytes()
        assert again.counters == first.counters


def check_threads_change_nothing(index_type: type[Index]) -> None:
    """Any number of threads gives the answers and counters of one, also while building."""
    case = make_case(MIXED)
    index = _build(index_type, case)
    alone = index.match(case.messages)
    for n_threads in (2, 3, 16):
        found = index.match(case.messages, n_threads=n_threads)
        _assert_answers(found, _answers(alone))
        assert found.counters == alone.counters
    together = index_type.build(case.clauses, space=case.space, n_threads=3)
    _assert_answers(together.match(case.messages), _answers(alone))


def check_order_is_irrelevant(index_type: type[Index]) -> None:
    """The order of clauses in the arrays changes no answer."""
    case = make_case(MIXED)
    rows = np.random.default_rng(24).permutation(len(case.clauses.subscriptions))
    shuffled = case._replace(clauses=take_clauses(case.clauses, rows))
    _assert_answers(_build(index_type, shuffled).match(case.messages), _expected(MIXED))


def check_inputs_are_untouched(index_type: type[Index]) -> None:
    """Building, matching, inserting and removing write to no array of the caller."""
    case = make_case(MIXED)
    head, tail = _split(case.clauses, 400)
    before = pickle.dumps((head, tail, case.messages))
    index = index_type.build(head, space=case.space)
    index.insert(tail)
    index.remove([0, 3, 500])
    index.match(case.messages, n_threads=2)
    index.rebuilt()
    assert pickle.dumps((head, tail, case.messages)) == before


def check_frequencies_change_no_answer(index_type: type[Index]) -> None:
    """Token frequencies, right, wrong or for other tokens, are advice only."""
    case = make_case(MIXED)
    for n, n_tokens in ((0, None), (7, 3), (41, 2000), (5000, 100)):
        frequencies = np.random.default_rng(n).integers(0, 100, n)
        index = index_type.build(
            case.clauses, space=case.space, frequencies=frequencies, n_tokens=n_tokens
        )
        _assert_answers(index.match(case.messages), _expected(MIXED))


# ---- wrong input --------------------------------------------------------------------------------


def check_wrong_boxes_are_rejected(index_type: type[Index]) -> None:
    """NaN and inverted boxes of clauses are refused when building and when inserting."""
    good = _clauses([[1]], [[0.0, 0.0, 1.0, 1.0]])
    index = index_type.build(good, space="planar")
    nan = np.nan
    for box in ([2.0, 0, 1, 1], [0, 2.0, 1, 1], [nan, 0, 1, 1], [0, nan, 1, 1], [0, 0, nan, 1],
                [0, 0, 1, nan]):  # fmt: skip
        bad = good._replace(boxes=np.array([box], np.float64))
        _assert_rejected(index_type.build, bad, space="planar")
        _assert_rejected(index.insert, bad._replace(subscriptions=bad.subscriptions + 1))
    assert index.n_slots == 1


def check_wrong_message_boxes_are_rejected(index_type: type[Index]) -> None:
    """NaN in a message box, and a box upside down, are refused."""
    case = make_case(MIXED)
    index = _build(index_type, case)
    for box in ([np.nan, 0, 1, 1], [0, np.nan, 1, 1], [0, 0, np.nan, 1], [0, 0, 1, np.nan],
                [0, 2.0, 1, 1]):  # fmt: skip
        _assert_rejected(index.match, _messages([[1], [1]], [[0, 0, 1, 1], box]))


def check_crossing_planar_messages_are_rejected(index_type: type[Index]) -> None:
    """A plane has no antimeridian: a message box with min_x > max_x is refused there."""
    index = index_type.build(_clauses([[1]], [[0.0, 0.0, 1.0, 1.0]]), space="planar")
    _assert_rejected(index.match, _messages([[1]], [[1.0, 0.0, 0.0, 1.0]]))


def check_wrong_clauses_are_rejected(index_type: type[Index]) -> None:
    """Clauses without a required token, and arrays that disagree, are refused."""
    good = _clauses([[1], [2]], [[0.0, 0.0, 1.0, 1.0]] * 2)
    for bad in (
        good._replace(token_offsets=np.array([0, 1, 1])),
        good._replace(token_ids=np.array([1, ~2], np.int32)),
        good._replace(boxes=good.boxes[:1]),
        good._replace(shape_rows=good.shape_rows[:1]),
    ):
        _assert_rejected(index_type.build, bad, space="planar")


def check_wrong_slots_are_rejected(index_type: type[Index]) -> None:
    """Slots are inserted in sequence and removed once, while live; a refusal changes nothing."""
    case = make_case(MIXED)
    head, tail = _split(case.clauses, 400)
    index = index_type.build(head, space=case.space)
    _assert_rejected(index.insert, _split(case.clauses, 401)[1])
    _assert_rejected(index.insert, head)
    _assert_rejected(index.remove, [400])
    _assert_rejected(index.remove, [-1])
    _assert_rejected(index.remove, [7, 8, 7])
    index.insert(tail)
    index.remove([5, 600])
    _assert_rejected(index.remove, [4, 5])
    _assert_rejected(index.remove, [600])
    assert_live(index, case, _expected(MIXED), set(range(1200)) - {5, 600})


def check_slots_without_clauses_are_rejected(index_type: type[Index]) -> None:
    """Slots run from 0 without gaps, so that their number tells whether any has several clauses."""
    good = _clauses([[1]] * 3, [[0.0, 0.0, 1.0, 1.0]] * 3)
    for slots in ([0, 0, 2], [1, 2, 3], [-1, 0, 1]):
        bad = good._replace(subscriptions=np.array(slots, np.int32))
        _assert_rejected(index_type.build, bad, space="planar")


# ---- changes ------------------------------------------------------------------------------------


def check_insert_equals_build(index_type: type[Index]) -> None:
    """Subscriptions inserted in any portions match like those that were built in."""
    case = make_case(MIXED)
    for cuts in ([0, 1200], [0, 1, 2, 1200], [600, 601, 1200], [1000, 1100, 1200]):
        index = index_type.build(_part(case.clauses, 0, cuts[0]), space=case.space)
        for start, stop in pairwise(cuts):
            index.insert(_part(case.clauses, start, stop))
        assert_live(index, case, _expected(MIXED), set(range(1200)))


def check_insert_order_is_irrelevant(index_type: type[Index]) -> None:
    """Clauses of one inserted batch may stand in any order."""
    case = make_case(MIXED)
    head, tail = _split(case.clauses, 600)
    index = index_type.build(head, space=case.space)
    rows = np.random.default_rng(25).permutation(len(tail.subscriptions))
    index.insert(take_clauses(tail, rows))
    index.remove([700, 1100])
    assert_live(index, case, _expected(MIXED), set(range(1200)) - {700, 1100})


def check_insert_of_new_tokens_and_places(index_type: type[Index]) -> None:
    """Inserted clauses may bring tokens and places that the index has never seen."""
    base = _clauses([[1]], [[0.0, 0.0, 1.0, 1.0]])
    index = index_type.build(base, space="planar")
    more = _clauses(
        [[5000], [1, ~6000], [1]], [[1e9, 0, 1e9, 9], [-5, -5, 0, 0], [7, 7, np.inf, 8]]
    )
    index.insert(more._replace(subscriptions=more.subscriptions + 1))
    found = index.match(
        _messages(
            [[5000], [1, 5000], [1, 6000], [1]],
            [[1e9, 5, 1e9, 5], [-1, -1, 2, 2], [0, 0, 0, 0], [1e12, 7.5, 1e12, 7.5]],
        )
    )
    assert _answers(found) == [{1}, {0, 2}, {0}, {3}]


def check_remove_undoes_insert(index_type: type[Index]) -> None:
    """After removing what was inserted, all answers are as before."""
    case = make_case(MIXED)
    head, tail = _split(case.clauses, 500)
    index = index_type.build(head, space=case.space)
    before = _answers(index.match(case.messages))
    index.insert(tail)
    assert _answers(index.match(case.messages)) != before
    index.remove(np.arange(500, 1200))
    assert _answers(index.match(case.messages)) == before
    assert index.n_subscriptions == 500
    assert index.n_slots == 1200


def check_remove_everything(index_type: type[Index]) -> None:
    """An index whose subscriptions were all removed delivers nothing."""
    case = make_case(MIXED)
    head, tail = _split(case.clauses, 700)
    index = index_type.build(head, space=case.space)
    index.insert(tail)
    index.remove(np.random.default_rng(26).permutation(1200))
    assert_live(index, case, _expected(MIXED), set())
    assert index.rebuilt()[0].n_subscriptions == 0


def check_move_is_remove_and_insert(index_type: type[Index]) -> None:
    """A subscription moved to a new slot and place is found there, and only there."""
    recipe = Recipe(seed=27, n_subscriptions=600, message_side=0.1)
    case = make_case(recipe)
    head, tail = _split(case.clauses, 300)
    index = index_type.build(head, space=case.space)
    # Slot 300 + i is what slot i becomes.
    for start in range(0, 300, 50):
        index.remove(np.arange(start, start + 50))
        index.insert(_part(tail, 300 + start, 350 + start))
        live = set(range(start + 50, 350 + start))
        assert_live(index, case, _expected(recipe), live)


def check_interleavings(index_type: type[Index]) -> None:
    """Any sequence of inserts, removals, rebuilds and matches agrees with the oracle throughout."""
    case = make_case(MIXED)
    for seed in range(3):
        random = np.random.default_rng(seed)
        n_known = int(random.integers(0, 600))
        index = index_type.build(_part(case.clauses, 0, n_known), space=case.space)
        live = set(range(n_known))
        while n_known < 1200:
            step = min(int(random.integers(0, 150)), 1200 - n_known)
            index.insert(_part(case.clauses, n_known, n_known + step))
            live |= set(range(n_known, n_known + step))
            n_known += step
            gone = random.choice(sorted(live), int(random.integers(0, 1 + len(live) // 6)), False)
            index.remove(gone)
            live -= set(gone.tolist())
            if random.random() < 0.7:
                rows = random.choice(len(case.messages.boxes), 25, replace=False)
                expected = [_expected(MIXED)[row] for row in rows]
                some = case._replace(messages=take_messages(case.messages, rows))
                assert_live(index, some, expected, live)


def check_rebuilt_equals(index_type: type[Index]) -> None:
    """Rebuilding renumbers the live subscriptions and changes no answer, and not the original."""
    case = make_case(MIXED)
    index, live = _changed_index(index_type, case)
    new, old_slots = index.rebuilt()
    assert old_slots.tolist() == sorted(live)
    assert new.n_changes == 0
    assert new.n_subscriptions == new.n_slots == len(live)
    found = [set(old_slots[sorted(slots)].tolist()) for slots in _answers(new.match(case.messages))]
    assert found == [slots & live for slots in _expected(MIXED)]
    assert index.n_changes > 0
    assert_live(index, case, _expected(MIXED), live)


# ---- saving -------------------------------------------------------------------------------------


def check_saved_equals_opened(index_type: type[Index]) -> None:
    """An opened index answers like the saved one, changes included, and tells the same facts."""
    case = make_case(MIXED)
    for index, live in (
        (_build(index_type, case), set(range(1200))),
        _changed_index(index_type, case),
    ):
        with tempfile.TemporaryDirectory() as parent:
            directory = Path(parent) / "saved"
            index.save(directory)
            opened = index_type.open(directory)
            assert_live(opened, case, _expected(MIXED), live)
            assert opened.parameters == index.parameters
            assert opened.space == index.space
            assert (opened.n_slots, opened.n_changes) == (index.n_slots, index.n_changes)
            assert_live(index, case, _expected(MIXED), live)


def check_changes_stay_out_of_the_directory(index_type: type[Index]) -> None:
    """Changes to an opened index reach neither the directory nor the index that was saved."""
    case = make_case(MIXED)
    index, live = _changed_index(index_type, case, n_inserted=500)
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent) / "saved"
        index.save(directory)
        before = _digest(directory)
        opened = index_type.open(directory)
        opened.insert(_part(case.clauses, 1100, 1200))
        gone = sorted(live)[::3]
        opened.remove(gone)
        assert_live(opened, case, _expected(MIXED), (live | set(range(1100, 1200))) - set(gone))
        assert _digest(directory) == before
        assert_live(index, case, _expected(MIXED), live)
        assert_live(index_type.open(directory), case, _expected(MIXED), live)
        # And what was changed after opening can be saved in turn.
        opened.save(Path(parent) / "again")
        again = index_type.open(Path(parent) / "again")
        assert_live(again, case, _expected(MIXED), (live | set(range(1100, 1200))) - set(gone))


def check_empty_index_is_saved(index_type: type[Index]) -> None:
    """An index of nothing is saved and opened like any other."""
    case = make_case(MIXED)
    index = index_type.build(_part(case.clauses, 0, 0), space=case.space)
    with tempfile.TemporaryDirectory() as parent:
        index.save(Path(parent) / "saved")
        opened = index_type.open(Path(parent) / "saved")
        assert _answers(opened.match(case.messages)) == [set()] * len(case.messages.boxes)
        opened.insert(case.clauses)
        assert_live(opened, case, _expected(MIXED), set(range(1200)))


def check_pickle_equals(index_type: type[Index]) -> None:
    """A pickled index answers like the original, on its own, and leaves the original as it was."""
    case = make_case(MIXED)
    index, live = _changed_index(index_type, case)
    index.match(case.messages)
    copy = pickle.loads(pickle.dumps(index))
    assert_live(copy, case, _expected(MIXED), live)
    gone = sorted(live)[::2]
    copy.remove(gone)
    assert_live(copy, case, _expected(MIXED), live - set(gone))
    assert_live(index, case, _expected(MIXED), live)


# ---- facts --------------------------------------------------------------------------------------


def check_counters(index_type: type[Index]) -> None:
    """Counters count the answers delivered, and never fewer candidates than answers."""
    case = make_case(MIXED)
    index, _ = _changed_index(index_type, case)
    found = index.match(case.messages)
    assert found.counters.answers == len(found.subscriptions) == found.offsets[-1]
    plain = make_case(Recipe(seed=1))
    found = _build(index_type, plain).match(plain.messages)
    assert found.counters.nodes >= 0
    assert found.counters.candidates >= found.counters.answers > 0


def check_sizes_grow(index_type: type[Index]) -> None:
    """The bytes of an index are positive and grow with what is in it."""
    case = make_case(MIXED)
    small = index_type.build(_part(case.clauses, 0, 100), space=case.space)
    large = _build(index_type, case)
    assert 0 < small.nbytes < large.nbytes
    assert 0 < small.stored_nbytes < large.stored_nbytes
    before = small.nbytes
    small.insert(_part(case.clauses, 100, 1200))
    assert small.nbytes > before


def check_prunes(index_type: type[Index]) -> None:
    """With small regions and rare keywords, few of the clauses are looked at."""
    recipe = Recipe(seed=28, n_subscriptions=4000, n_messages=100, n_tokens=400, side=0.05,
                    everywhere=0, max_message_tokens=6)  # fmt: skip
    case = make_case(recipe)
    counters = _build(index_type, case).match(case.messages).counters
    assert counters.nodes > 0
    assert counters.candidates < 0.05 * 4000 * 100


_LAWS: list[Law] = [
    check_points,
    check_points_on_lonlat,
    check_rectangles,
    check_crossing_messages,
    check_shapes,
    check_shapes_on_lonlat,
    check_forbidden_tokens,
    check_several_clauses,
    check_everywhere,
    check_unknown_tokens,
    check_everything_at_once,
    check_skewed_tokens,
    check_long_lists,
    check_long_lists_of_pairs,
    check_many_distinct_coordinates,
    check_list_lengths,
    check_long_clauses,
    check_touching_counts,
    check_shared_coordinates,
    check_zero_area_boxes,
    check_neighbouring_floats,
    check_huge_coordinates,
    check_tiny_coordinates,
    check_mixed_magnitudes,
    check_infinite_boxes,
    check_empty_index,
    check_empty_batch,
    check_messages_without_tokens,
    check_single_subscription,
    check_identical_subscriptions,
    check_growing_answers,
    check_many_equal_one_by_one,
    check_repeated_batches,
    check_threads_change_nothing,
    check_order_is_irrelevant,
    check_inputs_are_untouched,
    check_frequencies_change_no_answer,
    check_wrong_boxes_are_rejected,
    check_wrong_message_boxes_are_rejected,
    check_crossing_planar_messages_are_rejected,
    check_wrong_clauses_are_rejected,
    check_wrong_slots_are_rejected,
    check_slots_without_clauses_are_rejected,
    check_insert_equals_build,
    check_insert_order_is_irrelevant,
    check_insert_of_new_tokens_and_places,
    check_remove_undoes_insert,
    check_remove_everything,
    check_move_is_remove_and_insert,
    check_interleavings,
    check_rebuilt_equals,
    check_saved_equals_opened,
    check_changes_stay_out_of_the_directory,
    check_empty_index_is_saved,
    check_pickle_equals,
    check_counters,
    check_sizes_grow,
]

_LAWS_OF_STRUCTURES: list[Law] = [check_prunes]
"""Laws of indexes that have arrays of their own; a plain scan cannot prune."""


# ---- how laws are checked -----------------------------------------------------------------------


def assert_equals_oracle(index_type: type[Index], recipe: Recipe) -> None:
    """Assert that a fresh index of the recipe's case answers as the oracle does."""
    case = make_case(recipe)
    expected = _expected(recipe)
    assert any(expected), f"{recipe} has no answers and proves nothing"
    _assert_answers(_build(index_type, case).match(case.messages), expected)


@lru_cache(maxsize=64)
def _expected(recipe: Recipe) -> list[set[int]]:
    """Return the oracle's answers; it is slow, and every index is asked for the same."""
    case = make_case(recipe)
    return matches_of(case.clauses, case.messages, case.space)


def assert_case(index_type: type[Index], case: Case) -> None:
    """Assert that a fresh index of the case answers as the oracle does."""
    expected = matches_of(case.clauses, case.messages, case.space)
    _assert_answers(_build(index_type, case).match(case.messages), expected)


def _assert_answers(found: Matches, expected: list[set[int]]) -> None:
    """Assert equal answers, each subscription at most once per message."""
    answers = _answers(found)
    for row, (got, wanted) in enumerate(zip(answers, expected, strict=True)):
        assert got == wanted, (
            f"message {row}: missing {sorted(wanted - got)[:5]}, wrong {sorted(got - wanted)[:5]}"
        )
    assert found.counters.answers == len(found.subscriptions)


def assert_live(index: Index, case: Case, expected: list[set[int]], live: set[int]) -> None:
    """Assert that the index delivers to the live subscriptions, as the oracle does, and no other.

    ``expected`` are answers if all were live: no subscription changes another one's answers.
    """
    _assert_answers(index.match(case.messages), [slots & live for slots in expected])
    assert index.n_subscriptions == len(live)
    slots = np.arange(-1, index.n_slots + 1, dtype=np.int32)
    assert set(slots[index.is_alive(slots)].tolist()) == live


def _assert_rejected(action: Callable[..., object], *args: object, **options: object) -> None:
    try:
        action(*args, **options)
    except InvalidInput:
        return
    raise AssertionError("wrong input was accepted")


def _answers(found: Matches) -> list[set[int]]:
    """Return the answers of each message as a set, after checking that nothing is repeated."""
    assert found.offsets[0] == 0
    assert found.offsets[-1] == len(found.subscriptions)
    answers = []
    for start, stop in zip(found.offsets[:-1], found.offsets[1:], strict=True):
        slots = found.subscriptions[start:stop].tolist()
        answers.append(set(slots))
        assert len(answers[-1]) == len(slots), f"message {len(answers) - 1}: answers repeat"
    return answers


def _build(index_type: type[Index], case: Case) -> Index:
    return index_type.build(case.clauses, space=case.space)


def _changed_index(
    index_type: type[Index], case: Case, n_inserted: int = 600
) -> tuple[Index, set[int]]:
    """Return an index of which half was built and half inserted, some of both removed since."""
    index = index_type.build(_part(case.clauses, 0, 600), space=case.space)
    index.insert(_part(case.clauses, 600, 600 + n_inserted))
    gone = np.random.default_rng(29).choice(600 + n_inserted, 150, replace=False)
    index.remove(gone)
    return index, set(range(600 + n_inserted)) - set(gone.tolist())


def _part(clauses: ClauseArrays, start: int, stop: int) -> ClauseArrays:
    """Return the clauses of slots ``start`` to ``stop - 1``."""
    slots = clauses.subscriptions
    return take_clauses(clauses, np.flatnonzero((slots >= start) & (slots < stop)))


def _split(clauses: ClauseArrays, slot: int) -> tuple[ClauseArrays, ClauseArrays]:
    return _part(clauses, 0, slot), _part(clauses, slot, int(clauses.subscriptions.max()) + 1)


def _clauses(token_rows: list[list[int]], boxes: Boxes) -> ClauseArrays:
    return box_clauses(*ragged(token_rows), boxes)


def _messages(token_rows: list[list[int]], boxes: Boxes) -> MessageArrays:
    """Return messages with the given tokens; every message carries the reserved one besides."""
    offsets, tokens = ragged([[EVERYWHERE_TOKEN, *row] for row in token_rows])
    return MessageArrays(offsets, tokens, np.array(boxes, np.float64).reshape(-1, 4))


def _digest(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }
