"""Laws about wrong input: it is refused, and a refusal changes nothing."""

from __future__ import annotations

from functools import partial

import numpy as np

from earshot.checks.generate import case_of
from earshot.checks.subjects import Subject, assert_raises
from earshot.errors import InvalidInput
from earshot.model.arrays import ClauseArrays

NAN = np.nan
SQUARE = [0.0, 0.0, 1.0, 1.0]
TWO = case_of([[1], [2]], [SQUARE] * 2, [[1]], [SQUARE])
GOOD = TWO.clauses

assert_rejected = partial(assert_raises, InvalidInput)


def assert_clauses_rejected(subject: Subject, *wrong: ClauseArrays) -> None:
    """Assert that the clauses, of two slots, are neither built in nor inserted."""
    index = subject.build(TWO)
    for bad in wrong:
        assert_rejected(subject.build, TWO._replace(clauses=bad))
        assert_rejected(index.insert, bad._replace(subscriptions=bad.subscriptions + np.int32(2)))
    assert (index.n_slots, index.n_changes) == (2, 0)
    subject.assert_live(index, TWO, subject.truth(TWO), {0, 1})


def check_wrong_boxes_are_rejected(subject: Subject) -> None:
    """NaN and inverted boxes of clauses are refused when building and when inserting."""
    boxes = ([2.0, 0, 1, 1], [0, 2.0, 1, 1], [NAN, 0, 1, 1], [0, NAN, 1, 1], [0, 0, NAN, 1],
             [0, 0, 1, NAN])  # fmt: skip
    wrong = [GOOD._replace(boxes=np.array([SQUARE, box], np.float64)) for box in boxes]
    assert_clauses_rejected(subject, *wrong)


def check_wrong_message_boxes_are_rejected(subject: Subject) -> None:
    """NaN in a message box, and a box upside down, are refused."""
    for space in ("planar", "lonlat"):
        index = subject.build(TWO._replace(space=space))
        for box in ([NAN, 0, 1, 1], [0, NAN, 1, 1], [0, 0, NAN, 1], [0, 0, 1, NAN],
                    [0, 2.0, 1, 1]):  # fmt: skip
            assert_rejected(index.match, case_of([], [], [[1], [1]], [SQUARE, box]).messages)


def check_crossing_planar_messages_are_rejected(subject: Subject) -> None:
    """A plane has no antimeridian: a message box with min_x > max_x is refused there."""
    messages = case_of([], [], [[1]], [[1.0, 0.0, 0.0, 1.0]]).messages
    assert_rejected(subject.build(TWO).match, messages)


def check_wrong_clauses_are_rejected(subject: Subject) -> None:
    """Clauses without a required token, and arrays that disagree, are refused."""
    assert_clauses_rejected(
        subject,
        GOOD._replace(token_offsets=np.array([0, 1, 1])),
        GOOD._replace(token_ids=np.array([1, ~2], np.int32)),
        GOOD._replace(boxes=GOOD.boxes[:1]),
        GOOD._replace(shape_rows=GOOD.shape_rows[:1]),
    )


def check_slots_without_clauses_are_rejected(subject: Subject) -> None:
    """Slots run from 0 without gaps, so that their number tells whether any has several clauses."""
    three = case_of([[1]] * 3, [SQUARE] * 3, [], [])
    for slots in ([0, 0, 2], [1, 2, 3], [-1, 0, 1]):
        clauses = three.clauses._replace(subscriptions=np.array(slots, np.int32))
        assert_rejected(subject.build, three._replace(clauses=clauses))


def check_wrong_slots_are_rejected(subject: Subject) -> None:
    """Slots are inserted in sequence and removed once, while live; a refusal changes nothing."""
    case, expected = subject.mixed()
    n = case.n_slots
    index = subject.build(case.part(0, 400))
    assert_rejected(index.insert, case.part(401, n).clauses)
    assert_rejected(index.insert, case.part(0, 400).clauses)
    assert_rejected(index.remove, [400])
    assert_rejected(index.remove, [-1])
    assert_rejected(index.remove, [7, 8, 7])
    index.insert(case.part(400, n).clauses)
    index.remove([5, 500])
    assert_rejected(index.remove, [4, 5])
    assert_rejected(index.remove, [500])
    subject.assert_live(index, case, expected, set(range(n)) - {5, 500})


def check_wrong_thresholds_are_rejected(subject: Subject) -> None:
    """Thresholds out of range, too few of them, and several of one subscription are refused."""
    one_slot = GOOD._replace(subscriptions=np.zeros(2, np.int32))
    assert_clauses_rejected(
        subject,
        *(
            GOOD._replace(thresholds=np.array(own))
            for own in ([0.5], [0.5, 0.0], [0.5, 1.1], [NAN, -0.5])
        ),
        *(one_slot._replace(thresholds=np.array(own)) for own in ([0.5, 0.6], [NAN, 0.6])),
    )


def check_wrong_settings_are_rejected(subject: Subject) -> None:
    """Weights, alpha and threshold out of their ranges are refused."""
    for weights in ([1.0, 0.0, 1.0], [1.0, NAN, 1.0], [1.0, -1.0, 1.0], [1.0, np.inf, 1.0]):
        assert_rejected(subject.build, TWO._replace(weights=np.array(weights)))
    assert_rejected(subject.build, TWO, later_weight=0.0)
    for setting in ((-0.1, 0.5), (1.1, 0.5), (NAN, 0.5), (0.5, 0.0), (0.5, 1.1), (0.5, NAN)):
        assert_rejected(subject.build, TWO, setting)
