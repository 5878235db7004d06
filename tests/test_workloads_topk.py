from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from earshot.errors import InvalidParameter
from earshot.workloads import topk
from earshot.workloads.topk import (
    BLOCK_ROWS,
    DAY_US,
    FIRST_DRAWN,
    TOPK_WORKLOADS,
    TopkWorkload,
    find_topk_workload,
)

SMALL = TopkWorkload(
    name="small", n_words=2_000, tokens_min=6, tokens_max=20, tokens_mean=9, k=7,
    messages_per_day=1_000.0,
)  # fmt: skip


def rows_of(offsets: Any, tokens: Any) -> list[list[int]]:
    return [part.tolist() for part in np.split(tokens, offsets[1:-1])]


@pytest.mark.parametrize(("name", "n_words", "mean"), [
    ("tweets", 1_700_000, 9), ("gn", 208_000, 7), ("yelp", 85_000, 37),
])  # fmt: skip
def test_data_sets_have_the_papers_shapes(name: str, n_words: int, mean: float) -> None:
    workload = find_topk_workload(name)
    messages = workload.messages(0, 2_000)
    assert len(messages.tokens) / 2_000 == pytest.approx(mean, rel=0.02)
    assert messages.tokens.min() >= 1
    assert n_words / 2 < messages.tokens.max() <= n_words
    assert len(workload.frequencies()) == n_words + 1
    assert set(messages.counts.tolist()) == {1}
    assert messages.places.shape == (2_000, 3)
    assert messages.places[:, :2].min() >= 0
    assert messages.places[:, :2].max() <= 1
    assert not messages.places[:, 2].any()
    assert all(len(row) == len(set(row)) for row in rows_of(*messages[:2]))


def test_subscriptions_are_drawn_from_messages() -> None:
    n = 3_000
    subscriptions = SMALL.subscriptions(0, n)
    lengths = np.diff(subscriptions.token_offsets)
    assert np.bincount(lengths)[1:] == pytest.approx([n / 5] * 5, rel=0.15)
    offsets, words, places = SMALL._spoken(FIRST_DRAWN, FIRST_DRAWN + n)
    assert np.array_equal(subscriptions.places, places)
    said, asked = rows_of(offsets, words), rows_of(*subscriptions[1:3])
    assert all(set(few) <= set(all_) for few, all_ in zip(asked, said, strict=True))
    assert all(len(set(few)) == len(few) for few in asked)
    # Not always the first ones, which are the most frequent.
    assert any(few[0] != all_[0] for few, all_ in zip(asked, said, strict=True))
    assert subscriptions.ks.tolist() == [7] * n
    assert 0 < subscriptions.alphas.min() < 0.01
    assert 0.99 < subscriptions.alphas.max() < 1


def test_keywords_by_zipfs_law_are_not_those_of_the_place() -> None:
    n = 2_000
    zipf = replace(SMALL, keywords_from="zipf")
    drawn, ours = zipf.subscriptions(0, n), SMALL.subscriptions(0, n)
    assert np.array_equal(drawn.places, ours.places)
    assert np.array_equal(drawn.alphas, ours.alphas)
    lengths = np.diff(drawn.token_offsets)
    assert set(lengths.tolist()) == {1, 2, 3, 4, 5}
    said = rows_of(*SMALL._spoken(FIRST_DRAWN, FIRST_DRAWN + n)[:2])
    asked = rows_of(*drawn[1:3])
    assert sum(set(few) <= set(all_) for few, all_ in zip(asked, said, strict=True)) < n / 2
    # The most frequent word has 1/8.2 of the draws over 2,000 words.
    assert (drawn.tokens == 1).mean() == pytest.approx(0.11, abs=0.03)


@pytest.mark.parametrize("source", ["messages", "zipf"])
def test_a_piece_is_the_same_whatever_is_around_it(source: Any) -> None:
    workload = replace(SMALL, keywords_from=source)
    start, stop = BLOCK_ROWS - 5, BLOCK_ROWS + 7
    whole, piece = workload.subscriptions(0, stop), workload.subscriptions(start, stop)
    for name in ("places", "alphas", "ks"):
        assert np.array_equal(getattr(whole, name)[start:], getattr(piece, name)), name
    assert rows_of(*whole[1:3])[start:] == rows_of(*piece[1:3])
    said, some = workload.messages(0, stop), workload.messages(start, stop)
    assert rows_of(*said[:2])[start:] == rows_of(*some[:2])
    for name in ("places", "times"):
        assert np.array_equal(getattr(said, name)[start:], getattr(some, name)), name
    assert len(workload.subscriptions(3, 3).places) == len(workload.messages(3, 3).places) == 0
    other = replace(workload, seed=2).subscriptions(0, 12)
    assert not np.array_equal(other.alphas, whole.alphas[:12])


def test_messages_come_by_day() -> None:
    n = 4 * BLOCK_ROWS
    times = SMALL.messages(0, n).times
    assert (np.diff(times) >= 0).all()
    assert times[-1] == pytest.approx(SMALL.duration_us(n), rel=0.05)
    assert SMALL.duration_us(1_000) == DAY_US
    hours = np.bincount(times % DAY_US * 24 // DAY_US, minlength=24)
    expected = n / 24 * (1 - topk.DAILY_SWING * np.cos(2 * np.pi * (np.arange(24) + 0.5) / 24))
    assert hours == pytest.approx(expected, rel=0.2)
    gaps = np.diff(times[: n // 2]) / DAY_US * 1_000
    assert gaps.std() > 0.9 * gaps.mean()  # as of arrivals at random; even ones would have none


def test_what_cannot_be_drawn_is_refused() -> None:
    wrong: list[dict[str, Any]] = [
        {"keywords_max": 7},
        {"keywords_from": "dice"},
        {"k": 0},
        {"messages_per_day": 0.0},
        {"keywords_min": 6},
        {"tokens_mean": 3.0},
    ]
    for fields in wrong:
        with pytest.raises(InvalidParameter, match="small"):
            replace(SMALL, **fields)
    with pytest.raises(InvalidParameter, match="start <= stop"):
        SMALL.subscriptions(2, 1)
    with pytest.raises(InvalidParameter, match="subscriptions"):
        SMALL.messages(FIRST_DRAWN - 1, FIRST_DRAWN + 1)
    with pytest.raises(InvalidParameter, match="tweets, gn, yelp"):
        find_topk_workload("posts")
    assert all(name == workload.name for name, workload in TOPK_WORKLOADS.items())
