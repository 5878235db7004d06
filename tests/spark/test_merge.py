"""Merging changes into a new base."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from earshot.errors import InUse
from earshot.model.batches import time_us
from earshot.spark.intake import FOLDED
from earshot.spark.match import run_at_shards
from earshot.spark.merging import Pace, merge, needs_cutting, subscriptions, weights_of
from earshot.spark.store import Base, Delta, Version

from .test_intake import RANKINGS, START, Both, Events, Worker, at, expected, live_in, table_of

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


@pytest.mark.parametrize("n_shards", [None, 3])
def test_small_changes_may_come_all_the_while(tmp_path: Path, n_shards: int | None) -> None:
    """Their deltas are joined, and those that the merge reads would be gone."""
    events = Events(10)
    both = Both(tmp_path, [events.subscription(f"s{i}") for i in range(20)], n_shards)
    for _ in range(3):
        both.apply(events.changes(5, 40))

    def at_shards_while_changes_come(work: Any, numbers: Any) -> list[Any]:
        for _ in range(3 * FOLDED):
            both.apply([{"op": "subscribe", **events.subscription(f"t{next(new)}")}])
            both.store.clean()
        return both.worker.at_shards(work, numbers)

    new = itertools.count()
    merged = merge(
        NO_SESSION, both.store,
        lock=contextlib.nullcontext(), at_shards=at_shards_while_changes_come, is_cut=False,
    )  # fmt: skip
    messages = events.messages(60)
    assert Worker().match(both.store, merged, messages) == expected(both.engine, messages)
    both.store.clean()
    assert len(both.store.version_numbers()) == 2, "nothing is kept any more"


def test_refused_changes_that_come_meanwhile_move_the_clock(tmp_path: Path) -> None:
    box = {"min_x": 0, "min_y": 0, "max_x": 1, "max_y": 1}
    both = Both(tmp_path, [{"id": "s0", "keywords": ["w0"], "expires": at(10), **box}], None)
    both.apply([{"op": "subscribe", "id": "s1", "keywords": ["w0"], **box}])

    @contextlib.contextmanager
    def while_time_goes_by() -> Iterator[None]:
        both.apply([{"op": "unsubscribe", "id": "nobody", "time": at(11)}])
        yield

    merged = merge(
        NO_SESSION, both.store,
        lock=while_time_goes_by(), at_shards=both.worker.at_shards, is_cut=False,
    )  # fmt: skip
    assert merged.clock_us == time_us(START + timedelta(seconds=11))
    assert (merged.base.n_subscriptions, merged.n_subscriptions) == ((2,), 1)
    messages = table_of([{"id": "m", "text": "w0", "x": 0.5, "y": 0.5}], "messages")
    assert Worker().match(both.store, merged, messages) == {("m", "s1", None)}


def test_a_merge_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    events = Events(12)
    both = Both(tmp_path, [events.subscription(f"s{i}") for i in range(20)], 3)
    before = both.apply(events.changes(5, 40))
    bases = both.store.folder / "bases"

    def at_two_shards(work: Any, numbers: Any) -> list[Any]:
        if 2 in numbers:
            raise OSError("the disk is full")
        return both.worker.at_shards(work, numbers)

    with pytest.raises(OSError, match="disk is full"):
        merge(
            NO_SESSION, both.store,
            lock=contextlib.nullcontext(), at_shards=at_two_shards, is_cut=False,
        )  # fmt: skip
    assert bases.names() == [before.base.name]
    (bases / "00000077-of-a-killed-driver").write_json("x.json", 0)
    merged = merge(
        NO_SESSION, both.store,
        lock=contextlib.nullcontext(), at_shards=both.worker.at_shards, is_cut=False,
    )  # fmt: skip
    assert bases.names() == [before.base.name, merged.base.name]


def test_who_lost_the_index_removes_nothing(tmp_path: Path) -> None:
    both = Both(tmp_path, [{"id": "s0", "keywords": ["w0"]}], None)
    other = both.store.folder / "bases" / "00000077-of-another-writer"

    def losing(work: Any, numbers: Any) -> list[Any]:
        other.write_json("x.json", 0)
        both.store.folder.write_json(
            "lease.json", {**both.store.folder.read_json("lease.json"), "holder": "another"}
        )
        return both.worker.at_shards(work, numbers)

    both.apply([{"op": "subscribe", "id": "s1", "keywords": ["w1"]}])
    with both.store.lease("a test"), pytest.raises(InUse):
        merge(
            NO_SESSION, both.store,
            lock=contextlib.nullcontext(), at_shards=losing, is_cut=False,
        )  # fmt: skip
    assert other.exists()


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
    changed = replace(version, base=replace(base, n_merged=41))
    assert needs_cutting(changed)
    whole = replace(changed.base, placement="replicated")
    assert not needs_cutting(replace(changed, base=whole)), "there is nothing to cut"
    assert not needs_cutting(replace(version, base=replace(base, cut_balance=1.0)))
    assert needs_cutting(replace(version, base=replace(base, n_bytes=(9, 30), cut_balance=1.0)))
