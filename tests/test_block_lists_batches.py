"""Batches are matched in groups or one by one, with the same answers and scores."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from earshot.checks.generate import MIXED, Case, Recipe, case_of, make_case
from earshot.indexes.answers import Matches
from earshot.indexes.block_lists import batches
from earshot.indexes.block_lists.batches import WAYS
from earshot.indexes.block_lists.index import BlockLists
from earshot.indexes.block_lists.kernels.match import BARE, OTHER
from earshot.indexes.block_trie.kernels.arrays import N_EXACT_CODES, NO_CODE, code_of
from earshot.indexes.ranked_contract import RankedParameters
from earshot.model.arrays import MessageArrays, take_messages

POINTS = Recipe(seed=12, n_tokens=30, max_keywords=6, side=0.4, forbidden=0.1, several=0.1,
                unbounded=0.05, shapes=0.1, grid=5.0, everywhere=0.05, n_messages=200)  # fmt: skip
CASES = {
    "everything at once": MIXED,
    "points": POINTS,
    "ties": Recipe(seed=5, grid=30.0, n_tokens=6, flat=0.6, max_keywords=6, message_side=0.2),
    "own thresholds": Recipe(seed=13, n_tokens=20, thresholds=0.7, max_keywords=5, several=0.2),
    "long messages": Recipe(seed=6, n_tokens=300, max_message_tokens=200, max_keywords=6,
                            n_unknown_tokens=40, forbidden=0.2, several=0.3, shapes=0.1),
    "few subscriptions": Recipe(seed=8, n_subscriptions=9, n_tokens=3, side=1.0),
    "none": Recipe(seed=9, n_subscriptions=0),
}  # fmt: skip
SETTINGS = ((0.5, 0.6), (0.5, 0.9), (0.4, 0.35), (0.0, 0.5), (1.0, 0.7), (0.5, 1e-12))
"""Alpha and threshold: text and place needed, either enough, text alone, place alone, all."""
each_case = pytest.mark.parametrize("name", CASES)


def _answers(found: Matches) -> list[list[tuple[int, float]]]:
    """Return slots and scores by message; scores must be equal to the last bit."""
    assert found.scores is not None
    both = list(zip(found.subscriptions.tolist(), found.scores.tolist(), strict=True))
    return [sorted(both[a:b]) for a, b in pairwise(found.offsets.tolist())]


def _one_by_one(index: BlockLists, messages: MessageArrays) -> list[list[tuple[int, float]]]:
    rows = range(len(messages.boxes))
    return [_answers(index.match(take_messages(messages, np.array([m]))))[0] for m in rows]


def _changed(case: Case, setting: tuple[float, float] = SETTINGS[0]) -> BlockLists:
    """Return an index of which some was built, some inserted, and some of both removed."""
    n, parameters = case.n_slots, RankedParameters(*setting)
    index = BlockLists.build(
        case.part(0, 2 * n // 3).clauses, space=case.space, parameters=parameters,
        weights=case.weights,
    )  # fmt: skip
    if n > 0:
        index.insert(case.part(2 * n // 3, n).clauses)
        index.remove(np.arange(0, n, 7))
    return index


@each_case
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_batch_gives_what_its_messages_give(
    name: str, setting: tuple[float, float], tmp_path: Path
) -> None:
    case = make_case(CASES[name])
    index = _changed(case, setting)
    expected = _one_by_one(index, case.messages)
    index.save(tmp_path / "saved")
    opened = BlockLists.open(tmp_path / "saved")
    for each in (index, opened):
        for way in WAYS:
            each.way = way
            found = each.match(case.messages)
            assert _answers(found) == expected
            assert found.counters.answers == sum(map(len, expected))
            again = each.match(case.messages, n_threads=3)
            assert _answers(again) == expected
            assert again.counters == found.counters


@pytest.mark.parametrize("setting", SETTINGS[:3])
def test_a_batch_that_finds_no_room_goes_on(
    setting: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make_case(POINTS)
    index = _changed(case, setting)
    expected = _one_by_one(index, case.messages)
    index.way = "groups"
    plain = index.match(case.messages)
    for name, size in (("CHUNK", 90), ("FIRST_ROOM", 4), ("CHUNK_TOKENS", 400)):
        monkeypatch.setattr(batches, name, size)
    index._batches = None
    found = index.match(case.messages)
    assert _answers(found) == expected
    assert found.counters == plain.counters


def test_records_know_the_tokens_that_can_decide() -> None:
    """A code for each of up to four near lists; with more, any message may reach the record."""
    keywords = [[1], [1, 2, 3], [1, 2, 3, 4, 5, 6]]
    case = case_of(keywords, [[0, 0, 1, 1]] * 3, [[1]], [[0.5] * 4])
    weights = np.ones(7)
    index = BlockLists.build(
        case.clauses, space="planar", parameters=RankedParameters(0.5, 0.55), weights=weights
    )
    arrays = index.arrays
    assert arrays.group_starts.tolist() == [0, 0, 0, 3]
    heads = index._heads
    codes = arrays.record_codes.reshape(4, 16)
    by_clause = {int(heads[r, 3]): codes[:, r].tolist() for r in range(3)}
    assert by_clause[0] == [code_of(1)] * 4
    assert by_clause[1] == [code_of(t) for t in (1, 2, 3, 1)]
    assert NO_CODE in by_clause[2]
    assert (codes[:, 3:] == NO_CODE).all()


def test_tokens_that_share_a_code() -> None:
    same = [N_EXACT_CODES + 5, 2 * N_EXACT_CODES + 5]
    last = 2 * N_EXACT_CODES - 1
    tokens = [5, *same, last, last - 1]
    case = case_of(
        [[t] for t in tokens], [[0, 0, 1, 1]] * 5, [[t] for t in tokens] * 20, [[0.5] * 4] * 100
    )
    index = BlockLists.build(case.clauses, space="planar")
    index.way = "groups"
    found = _answers(index.match(case.messages))
    assert [[slot for slot, _ in each] for each in found] == [[0], [1], [2], [3], [4]] * 20


def test_settings_reach_all_groups_of_records() -> None:
    case = make_case(POINTS)
    starts = {s: _changed(case, s).arrays.group_starts.tolist() for s in SETTINGS}
    assert starts[0.5, 1e-12][BARE] > 0
    assert starts[0.4, 0.35][BARE] < starts[0.4, 0.35][OTHER]
    assert starts[0.5, 0.6][OTHER] == 0 < starts[0.5, 0.6][3]


def test_small_batches_load_nothing_more() -> None:
    case = make_case(Recipe(n_messages=63))
    index = BlockLists.build(case.clauses, space=case.space)
    index.match(case.messages)
    assert index._batches is None
    index.way = "groups"
    index.match(case.messages)
    assert index._batches is not None
