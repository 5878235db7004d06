from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from earshot.model.arrays import EVERYWHERE_TOKEN, Float64s, Int32s, Int64s
from earshot.workloads import synthetic
from earshot.workloads.synthetic import WORKLOADS, Workload, find_workload

LOCAL = Workload(
    name="local", n_subscriptions=6_000, n_messages=1_500, n_words=5_000, n_cities=4,
    background_share=0.0, locality=1.0, keywords_min=1, keywords_max=1,
)  # fmt: skip

GROUPS = ("short_point", "long_point", "short_range", "long_range")


def weighted(values: Any) -> int:
    """Return a sum that depends on the order."""
    values = np.floor(values).astype(np.int64)
    return int((values * np.arange(1, len(values) + 1)).sum())


def counts_by_city(tokens: Int32s, rows: Int64s, places: Float64s) -> Int64s:
    """Return how often each city, the nearest one, has each word."""
    centres = synthetic._cities(LOCAL.seed, LOCAL.n_cities).centres
    nearest = np.argmin(((places[:, None] - centres[None]) ** 2).sum(axis=2), axis=1)
    counts = np.zeros((LOCAL.n_cities, LOCAL.n_words + 1), np.int64)
    np.add.at(counts, (nearest[rows], tokens), 1)
    return counts


def test_words_that_know_no_place_are_drawn_as_ever() -> None:
    # The sums of the first release: results of different times are compared by their checksums.
    workload = find_workload("short_range").scaled(500, 300)
    clauses, messages = workload.subscriptions(), workload.messages()
    assert weighted(clauses.token_ids) == 146808635078
    assert weighted(messages.token_ids) == 986426155551
    assert weighted(clauses.boxes[:, 0] * 1e9) == pytest.approx(59358753387050, rel=1e-9)
    assert weighted(messages.boxes[:, 3] * 1e9) == pytest.approx(25907334391919, rel=1e-9)


def test_places_have_words_of_their_own_and_share_them() -> None:
    clauses, messages = LOCAL.subscriptions(), LOCAL.messages()
    centres = (clauses.boxes[:, :2] + clauses.boxes[:, 2:]) / 2
    asked = counts_by_city(clauses.token_ids, np.arange(len(centres)), centres)
    rows = np.repeat(np.arange(len(messages.boxes)), np.diff(messages.token_offsets))
    said = counts_by_city(messages.token_ids, rows, messages.boxes[:, :2])
    said[:, EVERYWHERE_TOKEN] = 0
    favourites = asked.argmax(axis=1)
    assert len(set(favourites.tolist())) == LOCAL.n_cities
    assert favourites.tolist() == said.argmax(axis=1).tolist()
    for city, word in enumerate(favourites):
        share = asked[:, word] / asked.sum(axis=1)
        assert share[city] > 0.05
        assert np.delete(share, city).max() < 0.02


def test_places_outside_of_cities_share_words_by_cell() -> None:
    workload = replace(LOCAL, background_share=1.0, n_subscriptions=30_000)
    clauses = workload.subscriptions()
    centres = (clauses.boxes[:, :2] + clauses.boxes[:, 2:]) / 2
    cells = (centres * synthetic.LOCAL_CELLS_PER_AXIS).astype(int) @ [
        synthetic.LOCAL_CELLS_PER_AXIS, 1,
    ]  # fmt: skip
    counts = np.zeros((synthetic.LOCAL_CELLS_PER_AXIS**2, LOCAL.n_words + 1))
    np.add.at(counts, (cells, clauses.token_ids), 1)
    shares = counts.max(axis=1) / counts.sum(axis=1)
    assert shares.mean() > 0.08  # Zipf's first of 5,000 words has 11 %
    assert counts.sum(axis=0).max() < 0.02 * counts.sum()  # no word is frequent everywhere


@pytest.mark.parametrize("locality", [0.5, 1.0])
def test_frequencies_are_the_mean_over_all_places(
    locality: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = replace(
        LOCAL, locality=locality, background_share=0.3, n_words=1_000, n_subscriptions=120_000
    )
    counts = np.bincount(workload.subscriptions().token_ids, minlength=1_001)[1:]
    expected = workload.frequencies()[1:] / 1e12
    assert expected.sum() == pytest.approx(1.0, abs=1e-6)
    frequent = expected > 0.003
    assert frequent.sum() > 20
    np.testing.assert_allclose(counts[frequent] / 120_000, expected[frequent], rtol=0.2)
    monkeypatch.setattr(synthetic, "LOCAL_RANKS", 50)
    rough = workload.frequencies()[1:] / 1e12
    assert rough.sum() == pytest.approx(1.0, abs=1e-6)
    most = expected.argmax()
    assert rough[most] == pytest.approx(expected[most], rel=0.1)


def test_rows_are_distinct_seeded_and_a_part_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "BLOCK_ROWS", 1_000)
    workload = replace(LOCAL, locality=0.5, keywords_max=5, n_words=60, n_subscriptions=3_000)
    whole, part = workload.subscriptions(), workload.subscriptions(900, 2_100)
    rows = [whole.token_ids[a:b].tolist() for a, b in pairwise(whole.token_offsets)]
    assert all(row == sorted(set(row)) for row in rows)
    assert {len(row) for row in rows} == {1, 2, 3, 4, 5}
    assert whole.token_ids.min() >= 1
    assert whole.token_ids.max() <= 60
    first, last = whole.token_offsets[[900, 2_100]]
    np.testing.assert_array_equal(whole.token_ids[first:last], part.token_ids)
    np.testing.assert_array_equal(whole.boxes[900:2_100], part.boxes)
    other = workload.scaled(seed=2).subscriptions()
    assert not np.array_equal(whole.token_ids[:500], other.token_ids[:500])


def test_regions_are_as_long_as_they_may_be() -> None:
    boxes = WORKLOADS["usa_short_point"].scaled(5_000, 0).subscriptions().boxes
    sides = boxes[:, 2:] - boxes[:, :2]
    ratios = sides[:, 0] / sides[:, 1]
    assert 14 < ratios.max() <= 16.001
    assert 1 / 16.001 <= ratios.min() < 1 / 14
    areas = sides.prod(axis=1)
    assert 0.99e-7 < areas.min() < areas.max() < 1.01e-3


@pytest.mark.parametrize("data", ["tweets", "usa"])
def test_four_groups_have_the_same_subscriptions(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthetic, "MESSAGE_BLOCK_ROWS", 64)
    workloads = [find_workload(f"{data}_{group}").scaled(400, 60) for group in GROUPS]
    first = workloads[0].subscriptions()
    for group, workload in zip(GROUPS, workloads, strict=True):
        clauses, messages = workload.subscriptions(), workload.messages()
        np.testing.assert_array_equal(clauses.token_ids, first.token_ids)
        np.testing.assert_array_equal(clauses.boxes, first.boxes)
        lengths = np.diff(messages.token_offsets) - 1
        few, many = (6, 20) if group.startswith("short") else (100, 1_000)
        assert few <= lengths.min() < lengths.max() <= many
        is_point = (messages.boxes[:, :2] == messages.boxes[:, 2:]).all()
        assert is_point == group.endswith("point")


def test_tweets_have_frequent_words_and_usa_has_none() -> None:
    shares = {}
    for data in ("tweets", "usa"):
        tokens = WORKLOADS[f"{data}_short_point"].scaled(20_000, 0).subscriptions().token_ids
        shares[data] = np.bincount(tokens).max() / len(tokens)
    assert shares["tweets"] > 0.02
    assert shares["usa"] < 0.0005
