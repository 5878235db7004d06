"""Laws about answers: every kind of input gives what the oracle says."""

from __future__ import annotations

import numpy as np

from earshot.checks.generate import MIXED, Recipe, case_of
from earshot.checks.subjects import Subject
from earshot.model.arrays import EVERYWHERE_TOKEN, Float64s

RECIPES: dict[str, Recipe] = {
    # Messages at points reach exactly the oracle's subscriptions.
    "points": Recipe(seed=1, max_keywords=4),
    # The same on longitude and latitude.
    "points_on_lonlat": Recipe(seed=2, space="lonlat"),
    # Messages with a box reach every region that shares a point with it, crossing ones too.
    "rectangles": Recipe(seed=3, message_side=0.3),
    # Messages larger than regions cover a share of them, or all.
    "large_ranges": Recipe(seed=33, max_keywords=4, side=0.3, message_side=0.6),
    # Where messages are smaller than regions, no region is covered wholly.
    "small_ranges": Recipe(seed=34, max_keywords=5, side=0.6, message_side=0.2),
    # A message box across the antimeridian is one place, and is delivered once.
    "crossing_messages": Recipe(seed=4, space="lonlat", side=0.9, message_side=0.5, crossing=0.5),
    # Planar circles and polygons are touched exactly, not by their boxes.
    "shapes": Recipe(seed=5, shapes=0.7, message_side=0.03),
    # Circles in metres, and polygons in degrees, are touched exactly.
    "shapes_on_lonlat": Recipe(seed=6, space="lonlat", shapes=0.7, message_side=0.03),
    # A forbidden token in a message keeps it from the clause.
    "forbidden_tokens": Recipe(seed=7, forbidden=0.6, everywhere=0.2, n_tokens=12, side=0.5),
    # A subscription is delivered once, however many of its clauses match.
    "several_clauses": Recipe(seed=8, n_subscriptions=800, several=1.5, n_tokens=8, side=0.8,
                              message_side=0.2),
    # Clauses without keywords match any text, and those without bounds any place.
    "everywhere": Recipe(seed=9, everywhere=0.5, unbounded=0.3, message_side=0.2),
    # Tokens that no clause asks for, also beyond the vocabulary, change nothing.
    "unknown_tokens": Recipe(seed=10, n_unknown_tokens=500, skew=0.2),
    # Strongly skewed tokens, in clauses of up to eight, change no answer.
    "skewed_tokens": Recipe(seed=12, n_subscriptions=3000, n_tokens=300, skew=1.6, max_keywords=8,
                            max_message_tokens=40, side=0.5, n_messages=50),
    # Thousands of clauses over three tokens, some forbidden, are all found.
    "long_lists_of_few_tokens": Recipe(seed=14, n_subscriptions=6000, n_tokens=3, max_keywords=3,
                                       forbidden=0.1, max_message_tokens=3, n_messages=30,
                                       message_side=0.1),
}  # fmt: skip
"""Laws that need no more than random cases, under all settings."""

_WEST, _EAST = [170.0, 0.0, 180.0, 10.0], [-180.0, 0.0, -160.0, 10.0]
CROSSING_REGIONS = case_of(
    [[1, 2], [1, 2], [1, 2], [2], [2], [3], [3]],
    [_WEST, _EAST, _WEST, _EAST, [180.0, 0.0, 180.0, 10.0], _EAST, _WEST],
    [[1], [1, 2], [2], [1, 3], [], [3], [1, 2, 3]],
    [
        [165, -5, 175, 5], [175, 0, -175, 10], [-170, 0, -160, 10], [180, 5, 180, 5],
        [160, 0, -150, 10], [-180, 2, -180, 2], [179, 5, -179, 5],
    ],
    slots=[0, 0, 1, 2, 2, 3, 3], space="lonlat", weights=[1.0, 1.0, 2.0, 3.0],
)  # fmt: skip
"""Two thirds of the first region lie east; the second has the west alone."""


def check_crossing_regions(subject: Subject) -> None:
    """A region cut at the antimeridian is one, under any message."""
    subject.assert_case(CROSSING_REGIONS)


def check_overlapping_pieces(subject: Subject) -> None:
    """Pieces that overlap are delivered once; they may cover more than the message has."""
    subject.assert_case(
        case_of([[1], [1]], [[0, 0, 2, 2]] * 2, [[1], []], [[0, 0, 1, 1]] * 2, slots=[0, 0])
    )


def check_large_messages_on_shapes(subject: Subject) -> None:
    """Circles and polygons under messages of their own size, on a plane and on the sphere."""
    subject.assert_recipe(Recipe(seed=38, shapes=0.7, message_side=0.1))
    subject.assert_recipe(Recipe(seed=39, space="lonlat", shapes=0.7, message_side=0.1))


def check_own_thresholds(subject: Subject) -> None:
    """A subscription's own threshold counts instead of the index's, where there are scores."""
    subject.assert_recipe(Recipe(seed=46, max_keywords=4, thresholds=0.7))
    subject.assert_recipe(Recipe(seed=47, max_keywords=4, thresholds=0.7, message_side=0.3))


def check_everything_at_once(subject: Subject) -> None:
    """All kinds of clauses, messages and thresholds in one batch."""
    subject.assert_recipe(MIXED)


def check_long_lists(subject: Subject) -> None:
    """Thousands of clauses under one token, points and boxes, are all found."""
    subject.assert_recipe(
        Recipe(seed=13, n_subscriptions=6000, n_tokens=1, max_keywords=1, everywhere=0,
               max_message_tokens=1, n_messages=30, message_side=0.05),
        subject.settings[:4],
    )  # fmt: skip


def check_many_distinct_coordinates(subject: Subject) -> None:
    """More distinct coordinates than a 16-bit cell number can tell apart are told apart."""
    subject.assert_recipe(
        Recipe(seed=15, n_subscriptions=20_000 * (1 + subject.has_scores), n_tokens=4,
               max_keywords=1, side=0.02, n_messages=25, max_message_tokens=3),
        subject.settings[:1],
    )  # fmt: skip


LENGTHS = [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257, 1025]


def clauses_in_lists() -> tuple[list[list[int]], Float64s, list[int]]:
    """Return tokens and places of clauses in lists of these lengths, and some rows to ask for."""
    tokens = np.repeat(np.arange(1, len(LENGTHS) + 1), LENGTHS)
    places = np.random.default_rng(16).uniform(0, 8, (len(tokens), 2))
    rows = np.unique(np.concatenate([np.cumsum(LENGTHS) - 1, np.arange(0, len(tokens), 7)]))
    return tokens[:, np.newaxis].tolist(), np.concatenate([places, places], axis=1), rows.tolist()


def check_list_lengths(subject: Subject) -> None:
    """Lists of every length around the usual block sizes are searched to their ends."""
    tokens, boxes, rows = clauses_in_lists()
    # Each clause is asked for alone, at its own place.
    case = case_of(tokens, boxes, [tokens[row] for row in rows], boxes[rows])
    assert subject.found(case, subject.strict) == [{row: 1.0} for row in rows]


def check_long_clauses(subject: Subject) -> None:
    """A clause may ask for hundreds of tokens, and forbid as many."""
    sizes = [1, 2, 254, 255, 256, 257, 300, 600]
    token_rows = [list(range(1, size + 1)) for size in sizes]
    token_rows += [[*row, *(~(700 + t) for t in row)] for row in token_rows]
    asked = [list(range(1, size + 1)) for size in (0, 1, 153, 253, 254, 255, 256, 299, 600)]
    asked += [[*row, 700 + len(row)] for row in asked]
    subject.assert_case(
        case_of(token_rows, [[0, 0, 1, 1]] * len(token_rows), asked, [[0.5] * 4] * len(asked))
    )


def check_messages_without_tokens(subject: Subject) -> None:
    """A message with no known keyword has the text of clauses that ask for none."""
    case = case_of(
        [[1], [EVERYWHERE_TOKEN], [EVERYWHERE_TOKEN, ~1]], [[0, 0, 1, 1]] * 3,
        [[], [1]], [[0.5] * 4] * 2,
    )  # fmt: skip
    found = subject.found(case, subject.strict)
    assert [set(each) for each in found] == [{1, 2}, {0, 1}]
    subject.assert_case(case)


def check_single_subscription(subject: Subject) -> None:
    """One subscription is delivered when all of it matches."""
    inside, outside = [0.0, 1.0, 0.0, 1.0], [1.5, 0.5, 1.5, 0.5]
    case = case_of(
        [[2, 5, ~3]], [[0, 0, 1, 1]],
        [[2, 5], [2, 5], [2], [2, 3, 5], [5, 9, 2]], [inside, outside, inside, inside, inside],
    )  # fmt: skip
    found = subject.found(case, subject.strict)
    assert [set(each) for each in found] == [{0}, set(), set(), set(), {0}]
    subject.assert_case(case)


def check_identical_subscriptions(subject: Subject) -> None:
    """Many equal subscriptions are each delivered once; the answer buffer grows as needed."""
    n = 500
    case = case_of([[1, 2]] * n, [[0, 0, 1, 1]] * n, [[1, 2]] * 20 + [[1]] * 20, [[0.5] * 4] * 40)
    found = subject.found(case, subject.strict)
    assert [set(each) for each in found] == [set(range(n))] * 20 + [set()] * 20


def check_growing_answers(subject: Subject) -> None:
    """A single message may have any number of answers; counters count no message twice."""
    n = 5000
    case = case_of(
        [[1 + i % 2, 3] for i in range(n)], [[0, 0, 1, 1]] * n,
        [[1, 3], [1, 2, 3], [9], [1, 2], [1]], [[0.5] * 4] * 5,
    )  # fmt: skip
    weighed = subject.weigh(case)
    for setting in {subject.strict, *subject.settings[:3], *subject.settings[-2:]}:
        inserted = subject.build(case.part(0, 0), setting)
        inserted.insert(case.clauses)
        for index in (subject.build(case, setting), inserted):
            found = index.match(case.messages)
            subject.assert_answers(found, subject.decide(weighed, case, setting))
            singles = [index.match(each).counters for each in case.single_messages()]
            assert found.counters == tuple(sum(each) for each in zip(*singles, strict=True))
