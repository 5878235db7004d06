"""The figures of CIKM15: structures that take turns, choices that are judged, and targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench_rows import FACTS, measured, target_values
from earshot.bench.points import POINTS
from earshot.workloads import synthetic


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "MESSAGE_BLOCK_ROWS", 64)
    monkeypatch.setattr(synthetic, "BLOCK_ROWS", 1_024)


def test_structures_take_turns_and_choices_are_judged(tmp_path: Path) -> None:
    names = ("cikm15_parts", "cikm15_choices")
    rows, _ = measured(tmp_path, *names, n_subscriptions=600, n_messages=8)
    parts = [row for row in rows if row["suite"] == "cikm15_parts"]
    assert {row["competitor"] for row in parts} == {"mbr_trie", "pt_quadtree", "lfilter"}
    assert len(parts) == 3 * 2 * len(POINTS)
    for row in parts:
        assert len(row["elapsed_s"]) == 2
        assert row["index_bytes_per_subscription"] > 0
    judged = [row for row in rows if row["suite"] == "cikm15_choices"]
    assert len(judged) == 2 * len(POINTS)
    for row in judged:
        assert 0.0 <= row["by_trie"] <= 1.0
        assert 0.0 <= row["right"] <= 1.0
        assert row["time_over_best"] >= 1.0
        assert (row["right"] == 1.0) == (row["time_over_best"] == 1.0)


def test_ways_of_batches_are_compared_at_each_point(tmp_path: Path) -> None:
    rows, _ = measured(tmp_path, "cikm15_ways", n_subscriptions=600, n_messages=8)
    assert {row["message_tokens"] for row in rows} == {point.n_tokens for point in POINTS}
    assert len(rows) == 2 * len(POINTS)  # calls of one message: there are eight
    assert all(row["chosen_over_best"] >= 1.0 for row in rows)


def _told(suite: str, name: str, rate: float, **fields: Any) -> dict[str, Any]:
    return {
        "suite": suite, "competitor": name, "messages_per_s": rate, "checksum": "a",
        "workload": "tweets_short_point", "message_tokens": 6, "n_subscriptions": 1_000,
        "n_threads": 1, "n_messages": 8, "run": FACTS | {"started": "2026-01-01"}, **fields,
    }  # fmt: skip


def test_targets_compare_with_the_better_one() -> None:
    rows = [
        _told("cikm15_probing", "mbr_trie", 100.0, probing="cost"),
        _told("cikm15_probing", "mbr_trie", 120.0, probing="trie"),
        _told("cikm15_probing", "mbr_trie", 10.0, probing="token_set"),
        _told("cikm15_parts", "lfilter", 200.0),
        _told("cikm15_parts", "mbr_trie", 100.0, index_bytes_per_subscription=70.0),
        _told("cikm15_parts", "pt_quadtree", 100.0, index_bytes_per_subscription=200.0),
        _told("cikm15_rivals", "lfilter", 100.0),
        _told("cikm15_rivals", "ir_tree", 50.0),
        _told("cikm15_rivals", "rt_plus_plus_tree", 125.0, token_order="local"),
    ]
    assert target_values(rows) == {
        "time of cost-based probing over the better probing": pytest.approx(1.2),
        "time of `lfilter` over the better of its parts": pytest.approx(0.5),
        "`lfilter` over `ir_tree`: short point": pytest.approx(2.0),
        "`lfilter` over `rt_plus_plus_tree`: short point": pytest.approx(0.8),
        "size at 10 M, `mbr_trie`": pytest.approx(0.7),
        "size at 10 M, `pt_quadtree`": pytest.approx(2.0),
    }
