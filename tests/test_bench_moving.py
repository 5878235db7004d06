"""The suites of moving subscribers: rows of every figure, equal updates, targets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench_rows import FACTS, images_of_suite, measured, target_values
from earshot.bench import moving, moving_rates
from earshot.bench.checksums import AnswersDiffer
from earshot.bench.moving import Case, messages_of, structures
from earshot.bench.profiles import PROFILES
from earshot.bench.suites import SUITES
from earshot.model.arrays import EVERYWHERE_TOKEN
from earshot.semantics.moving import STRUCTURES
from earshot.semantics.moving.contract import Scan
from earshot.semantics.moving.matcher import MovingMatcher
from earshot.workloads.moving import Movement

MOVING = [name for name in SUITES if name.startswith("moving_")]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small sizes, and scans under two names: real structures take long to compile."""
    smoke = PROFILES["smoke"]
    sizes = replace(smoke.moving, n_subscriptions=40, n_messages=40, arrivals=10, sizes=(20, 40),
                    arrival_rates=(5, 10), clients=(5, 20), elaps_messages=30,
                    elaps_arrivals=(4,))  # fmt: skip
    monkeypatch.setitem(PROFILES, "smoke", replace(smoke, moving=sizes))
    for words in moving.WORDS.values():
        monkeypatch.setitem(words, "n_words", 30)
    monkeypatch.setattr(moving, "ROADS", {"city": 6, "county": 8})
    moving._network.cache_clear()
    monkeypatch.setattr(moving, "structures", lambda: ["quad_lists", "ap_plus_tree"])
    for module in (moving, moving_rates):
        monkeypatch.setattr(module, "find_structure", lambda name: Scan())
    monkeypatch.setattr(moving, "MOBILITIES", (0.2, 0.8))


def test_every_suite_gives_the_rows_of_its_figure(tmp_path: Path) -> None:
    rows, _ = measured(tmp_path, *MOVING)
    counts = {name: sum(row["suite"] == name for row in rows) for name in MOVING}
    assert counts["moving_data"] == 4 * 2
    assert counts["moving_parts"] == 2
    assert counts["moving_variants"] == 4
    assert counts["moving_velocity"] == counts["moving_regions"] == 2 * 5 * 2
    assert counts["moving_growth"] == 2 * 2 * 2
    assert counts["moving_arrivals"] == 2 * 2
    for row in (row for row in rows if "move_us" in row):
        assert row["n_steps"] == row["n_timestamps"] == 3
        assert row["n_moves"] == 3 * round(row["mobility"] * row["n_subscriptions"])
        assert row["n_messages"] == 3 * row["arrivals"]
        assert row["prefixes"]["3"]["move_us"] == row["move_us"]
        assert min(row[name] for name in ("move_us", "message_us", "structure_bytes")) >= 0
    shown = [row for row in rows if row["suite"] == "moving_regions"]
    assert 4 < len({row["checksum"] for row in shown}) <= 2 * 5  # equal for equal points
    assert sum(row["changes_per_move"] for row in shown) > 0
    heard = [row for row in rows if row["suite"] == "moving_safe" and row["n_subscriptions"] == 20]
    assert [row["competitor"] for row in heard] == [
        "quad_lists", "quad_lists_safe", "ap_plus_tree", "ap_plus_tree_safe"
    ]  # fmt: skip
    assert len({row["checksum"] for row in heard}) == 1
    assert heard[0]["reports_per_timestamp"] == 20 > heard[1]["reports_per_timestamp"]
    assert heard[0]["needed_per_timestamp"] <= heard[1]["reports_per_timestamp"]
    for row in rows:
        row["run"] = FACTS | {"started": "2026"}
    values = target_values(rows)
    assert {"default over the best other, a move: data", "memory of a subscription",
            "reports saved by safe regions, by clients"} <= set(values)  # fmt: skip
    assert len(images_of_suite("moving_mobility", shown)) == 1


def test_calls_of_any_size_give_the_same_updates(tmp_path: Path) -> None:
    rates, _ = measured(tmp_path, "moving_rates")
    assert [row["batch_size"] for row in rates] == [1, 1, 8]
    assert len({row["checksum"] for row in rates}) == 1
    assert all(row["n_moves"] == 2 * 36 and row["n_said"] == 20 for row in rates)
    assert min(row["n_ends"] for row in rates) > 0


def test_a_wrong_structure_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move = MovingMatcher.move
    calls = iter(range(1000))

    def forgetful(self: MovingMatcher, *rows: Any) -> Any:
        changes = move(self, *rows)
        return changes._replace(slots=changes.slots + (next(calls) > 7))

    monkeypatch.setattr(MovingMatcher, "move", forgetful)
    with pytest.raises(AnswersDiffer, match=r"tweets-city.*ap_plus_tree"):
        measured(tmp_path, "moving_data")


def test_every_registered_structure_takes_part() -> None:
    assert moving.structures is not structures
    assert structures() == [
        name for name, each in STRUCTURES.items() if name != "scan" and not each.keeps_safe_regions
    ]


def test_messages_have_the_token_of_all_and_their_own() -> None:
    movement = Movement(5, 20, 1, n_words=9, tokens=(1, 4), arrivals=3)
    traffic = Case("tweets-city", movement).traffic()
    given = messages_of(traffic.said, 7)
    words = traffic.said.words
    for row in range(20):
        own = words.ranks[words.offsets[row] : words.offsets[row + 1]].tolist()
        tokens = given.tokens[given.token_offsets[row] : given.token_offsets[row + 1]].tolist()
        assert tokens == [EVERYWHERE_TOKEN, *own]
        assert own == sorted(set(own))
    assert np.array_equal(given.ends - given.times, traffic.said.ends - traffic.said.times)
    assert (given.times == 7).all()
