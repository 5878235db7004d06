"""Every structure obeys the laws under every semantics; Hypothesis searches small cases."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earshot.checks.generate import Case, case_of
from earshot.checks.laws import LAWS, laws_for
from earshot.checks.laws.answers import check_everything_at_once
from earshot.checks.laws.batches import check_prunes
from earshot.checks.laws.scores import check_every_alpha_and_threshold
from earshot.checks.subjects import Law, Setting, Subject, subject_of
from earshot.indexes import SEMANTICS, structures_of
from earshot.indexes.linear_scan.index import LinearScan, RankedLinearScan
from earshot.model.arrays import EVERYWHERE_TOKEN

SUBJECTS = [subject_of(each) for name in SEMANTICS for each in structures_of(name).values()]
each_subject = pytest.mark.parametrize("subject", SUBJECTS, ids=str)


@pytest.mark.parametrize(
    ("subject", "law"),
    [
        pytest.param(subject, law, id=f"{subject}:{law.__name__}")
        for subject in SUBJECTS
        for law in laws_for(subject)
    ],
)
def test_law(subject: Subject, law: Law) -> None:
    law(subject)


def test_every_law_is_some_subjects() -> None:
    assert {law for subject in SUBJECTS for law in laws_for(subject)} == set(LAWS)
    assert len({law.__name__ for law in LAWS}) == len(LAWS)


@pytest.mark.parametrize("scan", [LinearScan, RankedLinearScan])
def test_only_structures_must_prune(scan: Any) -> None:
    subject = subject_of(scan)
    assert check_prunes not in laws_for(subject)
    with pytest.raises(AssertionError):
        check_prunes(subject)


# ---- laws can fail ------------------------------------------------------------------------------


class Forgetful(RankedLinearScan):
    """Loses the answers whose scores are exactly a half."""

    def _match_rows(self, *args: Any) -> Any:
        found = super()._match_rows(*args)
        assert found.scores is not None
        kept = found.scores != 0.5
        counts = np.append(0, np.cumsum(kept))
        return found._replace(
            offsets=counts[found.offsets],
            subscriptions=found.subscriptions[kept],
            scores=found.scores[kept],
            counters=found.counters._replace(answers=int(kept.sum())),
        )


class Generous(RankedLinearScan):
    """Adds a billionth to every score."""

    def _match_rows(self, *args: Any) -> Any:
        found = super()._match_rows(*args)
        assert found.scores is not None
        return found._replace(scores=found.scores + 1e-9)


class Careless(LinearScan):
    """Shrinks the boxes of its messages by a hair."""

    def _match_rows(self, messages: Any, *args: Any) -> Any:
        boxes = messages.boxes.copy()
        boxes[:, 2:] = np.nextafter(boxes[:, 2:], -np.inf)
        return super()._match_rows(messages._replace(boxes=boxes), *args)


@pytest.mark.parametrize("wrong", [Forgetful, Generous, Careless])
def test_laws_find_wrong_answers(wrong: Any) -> None:
    law = check_everything_at_once if wrong is Careless else check_every_alpha_and_threshold
    with pytest.raises(AssertionError):
        law(subject_of(wrong))


# ---- small cases --------------------------------------------------------------------------------

# Few values and few tokens, so that equal scores, touching and nested things are the rule.
COORDINATES = st.sampled_from([0.0, 1.0, float(np.nextafter(1.0, 2.0)), 2.0, 3.0])
BOUNDS = COORDINATES | st.sampled_from([-np.inf, np.inf])
LONGITUDES = st.sampled_from([-180.0, -179.0, -90.0, 0.0, 179.0, 180.0])
TOKENS = st.sets(st.integers(1, 5), max_size=4)
SHARES = [0.0, 0.1, 0.25, 1 / 3, 0.5, 2 / 3, 0.75, 0.9, 1.0]
THRESHOLDS = st.sampled_from(
    [1e-12, *SHARES[1:], 0.6, 0.1 + 0.9 / 3, 0.5 + 0.5 / 3, 0.25 + 0.75 / 2]
)
SETTINGS = st.tuples(st.sampled_from(SHARES), THRESHOLDS)
WEIGHTS = st.lists(st.sampled_from([0.1, 0.5, 1.0, 1.0, 3.0]), min_size=6, max_size=6)


@st.composite
def boxes(
    draw: st.DrawFn, xs: st.SearchStrategy[float], ys: st.SearchStrategy[float]
) -> list[float]:
    (min_x, max_x), (min_y, max_y) = (sorted([draw(side), draw(side)]) for side in (xs, ys))
    return [min_x, min_y, max_x, max_y]


@st.composite
def clause_tokens(draw: st.DrawFn) -> list[int]:
    required, forbidden = draw(TOKENS), draw(TOKENS if draw(st.booleans()) else st.just(set()))
    return [*(required or {EVERYWHERE_TOKEN}), *(~token for token in forbidden - required)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    is_lonlat = draw(st.booleans())
    xs, message_xs = (LONGITUDES, LONGITUDES) if is_lonlat else (BOUNDS, COORDINATES)
    rows = draw(st.lists(st.tuples(clause_tokens(), boxes(xs, BOUNDS)), max_size=30))
    tokens = [each for each, _ in rows]
    kinds = draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    for row in range(1, len(rows)):
        if kinds[row] == 0:  # a further piece of the alternative before
            tokens[row] = tokens[row - 1]
    slots = np.cumsum([0, *(kind > 1 for kind in kinds[1:])])[: len(rows)].tolist()
    asked = draw(
        st.lists(st.tuples(TOKENS, boxes(message_xs, COORDINATES)), min_size=1, max_size=5)
    )
    message_boxes = [
        [box[2], box[1], box[0], box[3]] if is_lonlat and draw(st.booleans()) else box
        for _, box in asked
    ]
    case = case_of(
        tokens, [box for _, box in rows], [sorted(each) for each, _ in asked], message_boxes,
        slots=slots, space="lonlat" if is_lonlat else "planar", weights=draw(WEIGHTS),
    )  # fmt: skip
    if not draw(st.booleans()):
        return case
    n = case.n_slots
    own = draw(st.lists(THRESHOLDS | st.just(np.nan), min_size=n, max_size=n))
    thresholds = np.array(own, np.float64)[case.clauses.subscriptions]
    return case._replace(clauses=case.clauses._replace(thresholds=thresholds))


@settings(max_examples=700, deadline=None)
@given(case=cases(), setting=SETTINGS)
def test_small_cases_equal_the_oracle(case: Case, setting: Setting) -> None:
    expected = {each.semantics: each.truth(case, setting) for each in (SUBJECTS[0], SUBJECTS[-1])}
    for subject in SUBJECTS:
        found = subject.build(case, setting).match(case.messages)
        subject.assert_answers(found, expected[subject.semantics], str(subject))


@each_subject
@settings(max_examples=60, deadline=None)
@given(data=st.data(), case=cases(), setting=SETTINGS)
def test_small_changes_equal_the_oracle(
    subject: Subject, data: st.DataObject, case: Case, setting: Setting
) -> None:
    n = case.n_slots
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=3), label="cuts"))
    first = cuts[0] if cuts else n
    index, live = subject.build(case.part(0, first), setting), set(range(first))
    expected = subject.truth(case, setting)
    for start, stop in pairwise([*cuts, n]):
        index.insert(case.part(start, stop).clauses)
        live |= set(range(start, stop))
        gone = data.draw(st.sets(st.sampled_from(sorted(live))) if live else st.just(set()))
        index.remove(sorted(gone))
        live -= gone
        subject.assert_live(index, case, expected, live)
