"""The model of what a load needs: lines through two measured sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from earshot.errors import InvalidParameter
from earshot.files import write_table
from earshot.jobs.sizing import measure_costs
from earshot.placement.sizing import (
    SHARDS_PER_EXECUTOR,
    WORKER_BYTES,
    Costs,
    Growth,
    Machine,
    Measured,
    sized,
)
from earshot.workloads.datasets import bundled_messages, draw_subscriptions

# As the benchmark's suite `many` has measured them, on one core.
TEN_MILLION = Measured(10_000_000, 1.433e9, 6.206e-6, 702.6)
HUNDRED_MILLION = Measured(100_000_000, 10.528e9, 24.696e-6, 7011.1)
MACHINE = Machine(4, 16e9, 1.25e9)


def costs_of(*measured: Measured) -> Costs:
    one, other = measured
    return Costs.of(one, other, 100.0, 16.0)


def test_a_line_goes_through_both_points() -> None:
    line = Growth.through((10, 7.0), (30, 11.0))
    assert line.at(10) == 7
    assert line.at(30) == 11
    assert Growth.through((30, 11.0), (10, 7.0)) == line
    assert Growth.through((10, 1.0), (30, 9.0)).fixed == 0, "nothing costs less than nothing"
    assert Growth.through((10, 5.0), (30, 4.0)) == Growth(5.0, 0.0)


def test_small_sizes_tell_large_ones() -> None:
    # As `earshot pipeline plan` measures them.
    small = Measured(500_000, 86.75e6, 1.915e-6, 34.14)
    costs = costs_of(small, Measured(2_000_000, 267.2e6, 2.913e-6, 138.3))
    for measured in (TEN_MILLION, HUNDRED_MILLION):
        n = measured.n_subscriptions
        assert costs.message_s.at(n) == pytest.approx(measured.message_s, rel=0.1)
        assert costs.updates.at(n) == pytest.approx(measured.updates, rel=0.02)
        assert costs.n_bytes.at(n) == pytest.approx(measured.n_bytes, rel=0.2)


def test_a_small_index_is_not_cut() -> None:
    found = sized(costs_of(TEN_MILLION, HUNDRED_MILLION), MACHINE, 50_000_000, 1_000)
    assert (found.placement, found.n_shards, found.n_executors) == ("replicated", 1, 1)
    assert found.message_bytes_per_s == 0
    assert found.index_bytes == pytest.approx(5.48e9, rel=0.01)


def test_what_runs_short_decides() -> None:
    costs = costs_of(TEN_MILLION, HUNDRED_MILLION)
    updates = sized(costs, MACHINE, 100_000_000, 100_000)
    assert updates.bound_by == "network", "7,011 updates a message are what costs"
    memory = sized(costs, MACHINE._replace(n_bytes=2e9), 100_000_000, 10, shards_per_message=3)
    assert memory.bound_by == "memory"
    assert memory.n_shards == SHARDS_PER_EXECUTOR * memory.n_executors
    assert memory.executor_bytes <= 2e9
    assert memory.message_bytes_per_s == pytest.approx(10 * 3 * 100)
    few = Costs(costs.n_bytes, costs.message_s, Growth(1.0, 0.0), 100.0, 16.0)
    assert sized(few, MACHINE, 100_000_000, 1_000_000).bound_by == "CPU"


def test_what_makes_no_sense_is_refused() -> None:
    costs = costs_of(TEN_MILLION, HUNDRED_MILLION)
    with pytest.raises(InvalidParameter, match="expected two sizes"):
        costs_of(TEN_MILLION, TEN_MILLION)
    with pytest.raises(InvalidParameter, match="messages_per_s is 0"):
        sized(costs, MACHINE, 1, 0)
    with pytest.raises(InvalidParameter, match=r"4 workers alone take 0\.6 GB"):
        sized(costs, MACHINE._replace(n_bytes=4 * WORKER_BYTES), 1, 1)


def test_costs_are_measured_from_files(tmp_path: Path) -> None:
    reports = bundled_messages()
    write_table(tmp_path / "messages.parquet", reports.slice(0, 500))
    write_table(tmp_path / "subscriptions.parquet", draw_subscriptions(reports, 4_000))
    trial = measure_costs(tmp_path / "subscriptions.parquet", tmp_path / "messages.parquet")
    assert (trial.small.n_subscriptions, trial.large.n_subscriptions) == (1_000, 4_000)
    assert 2 < trial.large.updates / trial.small.updates < 8, "as many times the subscriptions"
    assert trial.costs.n_bytes.each > 0
    assert trial.costs.message_bytes > 10
    write_table(tmp_path / "few.parquet", draw_subscriptions(reports, 10))
    with pytest.raises(InvalidParameter, match="10 subscriptions and 500 messages tell too little"):
        measure_costs(tmp_path / "few.parquet", tmp_path / "messages.parquet")
