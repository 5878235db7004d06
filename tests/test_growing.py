"""Arrays that grow, with limits so low that all ways of growing are taken."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from changing import slots_between
from earshot.checks.generate import MIXED, make_case
from earshot.kernels import growing
from earshot.kernels.growing import CollectedClauses, GrowingArray
from earshot.model import arrays
from earshot.model.arrays import ClauseArrays, gather_ranges, take_clauses, take_ranges


def _assert_equal(found: ClauseArrays, expected: ClauseArrays) -> None:
    left, right = (
        {**each._asdict(), **each.shapes._asdict(), "shapes": np.empty(0)}
        for each in (found, expected)
    )
    for name, array in left.items():
        assert array.dtype == right[name].dtype
        assert np.array_equal(array, right[name], equal_nan=True), name


@pytest.mark.parametrize("columns", [(), (4,)])
def test_a_large_array_grows_where_it_is(
    columns: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing, "_MOVED_BYTES", 1 << 10)
    row = np.ones(columns, np.int64)
    array = GrowingArray(np.empty((0, *columns), np.int64), fill=-1)
    held = None
    for n in range(300):
        array.append(np.full((n % 7, *columns), n))
        if n % 50 == 0:
            held = array.view  # whoever has a view keeps what was there
        if n % 50 == 30:
            assert held is not None
            before = held.copy()
            array.append(np.full((500, *columns), n))
            assert (held == before).all()
            array.resize(len(array) - 500)
            del held
    expected = np.repeat(np.arange(300), np.arange(300) % 7)
    assert (array.view == expected.reshape(-1, *[1] * len(columns)) * row).all()
    array.resize(len(expected) + 5_000)
    assert (array.view[len(expected) :] == -1).all()
    assert len(array) == len(expected) + 5_000
    assert array.nbytes >= array.view.nbytes


@pytest.mark.parametrize("limit", [1, 40, 10**6])
def test_collected_clauses_are_joined_in_their_order(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing, "_COLLECTED", limit)
    monkeypatch.setattr(growing, "_MOVED_BYTES", 1 << 10)
    clauses = make_case(MIXED).clauses
    n_slots = int(clauses.subscriptions[-1]) + 1
    collected, bounds = CollectedClauses(), [0, 1, 2, 30, 31, 90, n_slots]
    for start, stop in pairwise(bounds):
        collected.append(slots_between(clauses, start, stop))
        parts = collected.parts
        assert sum(len(part.subscriptions) for part in parts) == np.searchsorted(
            clauses.subscriptions, stop
        )
    _assert_equal(collected.joined(), slots_between(clauses, 0, n_slots))
    _assert_equal(collected.joined(), slots_between(clauses, 0, n_slots))


def test_many_rows_are_taken_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clauses = make_case(MIXED).clauses
    rows = np.random.default_rng(1).permutation(len(clauses.subscriptions))[:100]
    expected = take_clauses(clauses, rows)
    _, positions = gather_ranges(clauses.token_offsets, rows)
    assert (expected.token_ids == clauses.token_ids[positions]).all()
    monkeypatch.setattr(arrays, "TAKEN_ROWS", 7)
    _assert_equal(take_clauses(clauses, rows), expected)
    offsets, taken = take_ranges(clauses.token_offsets, clauses.token_ids, rows[:0])
    assert (offsets.tolist(), taken.tolist()) == ([0], [])
