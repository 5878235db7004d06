"""Merging changes into a new base."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from earshot.spark.intake import merge, subscriptions, weights_of

from .test_intake import RANKINGS, Both, Events, Worker, at, expected, live_in


@pytest.mark.parametrize(
    ("n_shards", "semantics"),
    [(None, None), (2, None), (2, RANKINGS["either part is not enough"])],
)
def test_a_merge_changes_nothing(
    spark: SparkSession, tmp_path: Path, n_shards: int | None, semantics: Any
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
    merged = merge(spark, both.store, lock=while_changes_come())
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
