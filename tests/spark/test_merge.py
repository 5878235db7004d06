"""Merging changes into a new base."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from earshot.spark.match import run_at_shards
from earshot.spark.merging import Pace, merge, needs_cutting, subscriptions, weights_of
from earshot.spark.store import Base, Delta, Version

from .test_intake import RANKINGS, Both, Events, Worker, at, expected, live_in

RANKING = RANKINGS["either part is not enough"]
CASES = [(None, None), (2, None), (2, RANKING)]


@pytest.mark.parametrize(("n_shards", "semantics"), CASES)
@pytest.mark.parametrize("is_cut", [True, False])
def test_a_merge_changes_nothing(
    spark: SparkSession, tmp_path: Path, is_cut: bool, n_shards: int | None, semantics: Any
) -> None:
    events = Events(8, is_ranked=semantics is not None)
    n_ids = 40
    both = Both(tmp_path, [events.subscription(f"s{i}") for i in range(20)], n_shards, semantics)
    for _ in range(6):
        version = both.apply(events.changes(15, n_ids))

    @contextlib.contextmanager
    def while_changes_come() -> Iterator[None]:
        """As if they had come while the base was being built; some expire, some come again."""
        for _ in range(3):
            both.apply(events.changes(15, n_ids))
        yield

    rows = subscriptions(spark, both.store, version).toArrow()
    assert sorted(rows["id"].to_pylist()) == sorted(live_in(both.engine, n_ids))
    merged = merge(
        spark, both.store,
        lock=while_changes_come(), at_shards=partial(run_at_shards, spark, None), is_cut=is_cut,
    )  # fmt: skip
    assert merged.base.name != version.base.name
    before = both.store.version(merged.number - 1)
    # What came meanwhile is one step; with a semantics that weighs words, so is each reweighing.
    assert len(merged.deltas) == 1 if semantics is None else len(merged.deltas) > 1
    assert (weights_of(both.store, before) is None) == (semantics is None)
    assert merged.n_subscriptions == len(both.engine)
    assert merged.clock_us == before.clock_us
    messages = events.messages(150)
    wanted = expected(both.engine, messages)
    assert len(wanted) > 20
    rows = subscriptions(spark, both.store, replace(version, base=merged.base, deltas=())).toArrow()
    assert len(rows) == sum(merged.base.n_subscriptions)
    worker = Worker()
    assert worker.match(both.store, before, messages) == wanted
    assert worker.match(both.store, merged, messages) == wanted
    # And it goes on: the clock has not gone back, though a new base begins without one.
    nothing_due = both.apply(
        [{"op": "subscribe", "id": "new", "keywords": ["w0"], "expires": at(0)}]
    )
    assert nothing_due.clock_us == merged.clock_us
    assert "new" not in both.engine
    version = both.apply(events.changes(20, n_ids))
    assert worker.match(both.store, version, messages) == expected(both.engine, messages)


NO_SESSION: Any = None


@pytest.mark.parametrize(("n_shards", "semantics"), CASES)
def test_shards_can_be_renewed_again_and_again(
    tmp_path: Path, n_shards: int | None, semantics: Any
) -> None:
    events = Events(9, is_ranked=semantics is not None)
    n_ids = 40
    both = Both(tmp_path, [events.subscription(f"s{i}") for i in range(20)], n_shards, semantics)
    worker = Worker()
    for number in range(6):
        for _ in range(3):
            both.apply(events.changes(10, n_ids))
        before = both.store.latest()
        merged = merge(
            NO_SESSION, both.store,
            lock=contextlib.nullcontext(), at_shards=both.worker.at_shards, is_cut=False,
        )  # fmt: skip
        assert not merged.deltas
        assert merged.n_subscriptions == len(both.engine)
        assert merged.base.n_merged == before.base.n_merged + before.n_changes
        both.store.clean()
        messages = events.messages(60)
        wanted = expected(both.engine, messages)
        assert len(wanted) > 5
        assert worker.match(both.store, merged, messages) == wanted
        base = both.store.base_folder(merged.base)
        rows = [
            each
            for name in merged.base.shards
            for each in pq.read_table(base.local(f"rows/{name}"))["id"].to_pylist()
        ]
        assert sorted(rows) == sorted(live_in(both.engine, n_ids)), number


def test_a_merge_rests_between_tasks_and_can_be_given_up() -> None:
    pace = Pace(rest=3.0)
    started = time.monotonic()
    pace.wait(0.05)
    assert 0.15 <= time.monotonic() - started < 1
    with pytest.raises(InterruptedError):
        replace(pace, is_given_up=lambda: True).wait(100)
    Pace().wait(1e9)  # without rest


def test_when_shards_are_cut_anew() -> None:
    base = Base("b", "sharded", (50, 50), (10, 30), ("x", "y"))
    delta = Delta("d", 1, 1, 10)
    version = Version(1, base, (delta,))
    assert base.balance == 1.5
    assert not needs_cutting(version)
    assert needs_cutting(replace(version, deltas=()))  # a merge of nothing
    assert not needs_cutting(replace(version, base=replace(base, n_merged=40)))
    assert needs_cutting(replace(version, base=replace(base, n_merged=41)))
    assert not needs_cutting(replace(version, base=replace(base, cut_balance=1.0)))
    assert needs_cutting(replace(version, base=replace(base, n_bytes=(9, 30), cut_balance=1.0)))
