"""Every ranked index obeys the laws of ``ranked_laws``; small cases are searched by Hypothesis."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earshot.checks import ranked_laws
from earshot.checks.generate import Case, Recipe, ragged
from earshot.checks.ranked_cases import ranked_case
from earshot.checks.ranked_oracle import scores_of
from earshot.errors import InvalidParameter, SavedIndexError
from earshot.indexes import default_structure, index_type, open_index, structures_of
from earshot.indexes.block_lists.index import BlockLists
from earshot.indexes.keyword_first.ranked import RankedKeywordFirst
from earshot.indexes.linear_scan.index import LinearScan
from earshot.indexes.linear_scan.ranked import RankedLinearScan
from earshot.indexes.ranked_contract import RankedIndex
from earshot.model.arrays import EVERYWHERE_TOKEN, MessageArrays, box_clauses, take_clauses

TYPES = list(structures_of("ranked").values())
each_index = pytest.mark.parametrize("tested", TYPES, ids=lambda tested: tested.name)

LAWS = [
    pytest.param(tested, law, id=f"{tested.name}:{law.__name__}")
    for tested in TYPES
    for law in ranked_laws.ranked_laws_for(tested)
]


@pytest.mark.parametrize(("tested", "law"), LAWS)
def test_law(tested: type[RankedIndex], law: ranked_laws.RankedLaw) -> None:
    law(tested)


def test_every_check_is_a_law_of_some_index() -> None:
    checks = {name for name in vars(ranked_laws) if name.startswith("check_")}
    listed = [law.__name__ for tested in TYPES for law in ranked_laws.ranked_laws_for(tested)]
    assert set(listed) == checks
    assert len(ranked_laws.ranked_laws_for(RankedKeywordFirst)) == len(checks)


def test_only_structures_must_prune() -> None:
    assert ranked_laws.check_prunes not in ranked_laws.ranked_laws_for(RankedLinearScan)
    with pytest.raises(AssertionError):
        ranked_laws.check_prunes(RankedLinearScan)


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


@pytest.mark.parametrize("wrong", [Forgetful, Generous])
def test_laws_find_wrong_answers(wrong: type[RankedIndex]) -> None:
    with pytest.raises(AssertionError):
        ranked_laws.check_every_alpha_and_threshold(wrong)


# ---- small cases --------------------------------------------------------------------------------

# Few values and few tokens, so that equal scores, touching and nested things are the rule.
COORDINATES = st.sampled_from([0.0, 1.0, float(np.nextafter(1.0, 2.0)), 2.0, 3.0])
BOUNDS = COORDINATES | st.sampled_from([-np.inf, np.inf])
LONGITUDES = st.sampled_from([-180.0, -179.0, -90.0, 0.0, 179.0, 180.0])
TOKENS = st.sets(st.integers(1, 5), max_size=4)
SHARES = [0.0, 0.1, 0.25, 1 / 3, 0.5, 2 / 3, 0.75, 0.9, 1.0]
ALPHAS = st.sampled_from(SHARES)
THRESHOLDS = st.sampled_from(
    [1e-12, *SHARES[1:], 0.6, 0.1 + 0.9 / 3, 0.5 + 0.5 / 3, 0.25 + 0.75 / 2]
)
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
    slots = np.cumsum([0, *(kind > 1 for kind in kinds[1:])])[: len(rows)].astype(np.int64)
    asked = draw(
        st.lists(st.tuples(TOKENS, boxes(message_xs, COORDINATES)), min_size=1, max_size=5)
    )
    message_boxes = [
        [box[2], box[1], box[0], box[3]] if is_lonlat and draw(st.booleans()) else box
        for _, box in asked
    ]
    clauses = box_clauses(*ragged(tokens), [box for _, box in rows], slots)
    if draw(st.booleans()):
        n_slots = int(slots.max(initial=-1)) + 1
        own = draw(st.lists(THRESHOLDS | st.just(np.nan), min_size=n_slots, max_size=n_slots))
        clauses = clauses._replace(thresholds=np.array(own, np.float64)[slots])
    message_tokens = [[EVERYWHERE_TOKEN, *each] for each, _ in asked]
    messages = MessageArrays(*ragged(message_tokens), np.array(message_boxes))
    return Case("lonlat" if is_lonlat else "planar", clauses, messages)


@settings(max_examples=700, deadline=None)
@given(case=cases(), alpha=ALPHAS, threshold=THRESHOLDS, weights=WEIGHTS)
def test_small_cases_equal_the_oracle(
    case: Case, alpha: float, threshold: float, weights: list[float]
) -> None:
    for tested in TYPES:
        ranked_laws.assert_case(tested, case, (alpha, threshold), np.array(weights))


@each_index
@settings(max_examples=60, deadline=None)
@given(data=st.data(), case=cases(), alpha=ALPHAS, threshold=THRESHOLDS, weights=WEIGHTS)
def test_small_changes_equal_the_oracle(
    tested: type[RankedIndex],
    data: st.DataObject,
    case: Case,
    alpha: float,
    threshold: float,
    weights: list[float],
) -> None:
    slots = case.clauses.subscriptions
    n_slots = int(slots.max(initial=-1)) + 1
    cuts = sorted(data.draw(st.lists(st.integers(0, n_slots), max_size=3), label="cuts"))
    parts = np.searchsorted(cuts, slots, side="right")
    index = tested.build(
        take_clauses(case.clauses, np.flatnonzero(parts == 0)),
        space=case.space,
        parameters=tested.parameters_type(alpha=alpha, threshold=threshold),
        weights=np.array(weights),
    )
    expected = scores_of(case.clauses, case.messages, case.space, alpha, threshold, weights)
    live = set(range(cuts[0] if cuts else n_slots))
    for part, (start, stop) in enumerate(pairwise([*cuts, n_slots]), 1):
        index.insert(take_clauses(case.clauses, np.flatnonzero(parts == part)))
        live |= set(range(start, stop))
        gone = data.draw(st.sets(st.sampled_from(sorted(live))) if live else st.just(set()))
        index.remove(sorted(gone))
        live -= gone
        ranked_laws.assert_live(index, case, expected, live)


# ---- registry -----------------------------------------------------------------------------------


def test_names_lead_to_their_structures() -> None:
    for name, structure in structures_of("ranked").items():
        assert structure.name == name
        assert index_type(name, "ranked") is structure
    assert default_structure("ranked") == BlockLists.name


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InvalidParameter, match=r"'r_tree'.*block_lists.*linear_scan"):
        index_type("r_tree", "ranked")


@each_index
def test_open_index_knows_the_structure(tested: type[RankedIndex], tmp_path: Path) -> None:
    case = ranked_case(Recipe(n_subscriptions=50))
    tested.build(case.clauses, space=case.space).save(tmp_path / "saved")
    assert type(open_index(tmp_path / "saved")) is tested
    with pytest.raises(SavedIndexError, match=f"a ranked index of structure '{tested.name}'"):
        LinearScan.open(tmp_path / "saved")


def test_the_semantics_are_told_apart(tmp_path: Path) -> None:
    case = ranked_case(Recipe(n_subscriptions=50))
    LinearScan.build(case.clauses, space=case.space).save(tmp_path / "saved")
    assert type(open_index(tmp_path / "saved")) is LinearScan
    with pytest.raises(SavedIndexError, match=r"a boolean index of .*'linear_scan'.* is ranked"):
        RankedLinearScan.open(tmp_path / "saved")
    with pytest.raises(InvalidParameter, match="no ranked structure is called 'block_trie'"):
        index_type("block_trie", "ranked")
    with pytest.raises(InvalidParameter, match=r"'fuzzy'; expected one of boolean, ranked"):
        structures_of("fuzzy")


@each_index
def test_options_name_their_ranges(tested: type[RankedIndex]) -> None:
    with pytest.raises(InvalidParameter, match=r"alpha is 1\.5; expected a number from 0 to 1"):
        tested.parameters_type(alpha=1.5)
    with pytest.raises(InvalidParameter, match="threshold is 0; expected a number greater than 0"):
        tested.parameters_type(threshold=0)


# ---- structures ---------------------------------------------------------------------------------


def lists(arrays: Any, kind: str, records: Any) -> dict[int, set[int]]:
    """Return the clauses in each token's list of a kind."""
    offsets = getattr(arrays, f"{kind}_offsets")
    clauses = records[getattr(arrays, f"{kind}_records")]
    return {
        token: set(clauses[start:stop].tolist())
        for token, (start, stop) in enumerate(pairwise(offsets.tolist()))
        if stop > start
    }


def postings(alpha: float, threshold: float) -> list[dict[int, set[int]]]:
    """Return near, sure and far lists of clauses {1}, {1, 2}, {1, 2, 3} with weights 3, 2, 1."""
    clauses = box_clauses(*ragged([[1], [2, 1], [3, 1, 2]]), [[0, 0, 1, 1]] * 3)
    arrays = BlockLists.build(
        clauses,
        parameters=BlockLists.parameters_type(alpha=alpha, threshold=threshold),
        weights=np.array([1.0, 3.0, 2.0, 1.0]),
    ).arrays
    clauses_of_records = arrays.record_heads.reshape(-1, 4)[:, 3]
    return [lists(arrays, kind, clauses_of_records) for kind in ("near", "sure", "far")]


def test_tokens_that_can_decide_are_listed() -> None:
    # Text and place are needed, and of the text a third: 1/3 of {1, 2, 3} are tokens 2 and 3.
    near, sure, far = postings(0.4, 0.6)
    assert near == {1: {0, 1, 2}, 2: {1, 2}}
    assert sure == {1: {0, 1}}  # 0.6 can be had by text alone, by all of it
    assert far == {1: {2}}
    near, sure, far = postings(0.5, 0.6)  # a fifth of the text, and no longer without the place
    assert near == {1: {0, 1, 2}, 2: {1, 2}}
    assert sure == far == {}
    assert postings(0.6, 0.6) == [{}, {}, {}]  # the place alone decides
    near, sure, far = postings(0.0, 0.5)  # text alone
    assert near == {}
    assert sure == {1: {0}}
    assert far == {1: {1, 2}, 2: {2}}
