"""Pipelines: batches see the version that was written down for them, and nothing is lost."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from earshot.spark import FileSink, Stream, build, match_stream
from earshot.spark.store import IndexStore
from earshot.spark.stream import BatchLog, Pipeline

from .events import Feed, expected_updates, updates_in


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path / "feed")


def start(spark: SparkSession, feed: Feed, index: str, root: Path, **options: Any) -> Pipeline:
    return match_stream(
        Stream.of_files(spark, feed.messages, files_per_batch=1, ids="string"),
        index,
        FileSink(root / "out"),
        root / "checkpoint",
        changes=Stream.of_files(spark, feed.changes),
        rejects=FileSink(root / "rejects" / "messages"),
        change_rejects=FileSink(root / "rejects" / "changes"),
        **{"available_now": True, **options},
    )


@pytest.mark.parametrize("placement", ["replicated", "sharded"])
def test_a_pipeline_gives_what_the_engine_gives(
    spark: SparkSession, feed: Feed, tmp_path: Path, placement: Any
) -> None:
    index = str(tmp_path / "index")
    n_shards = 3 if placement == "sharded" else None
    build(spark.createDataFrame(feed.subscriptions), index, placement=placement, n_shards=n_shards)
    for number in range(3):
        feed.add_changes(number)
        feed.add_messages(number)
        # The second start merges what came before into a new base.
        options = {"merge_least": 1} if number == 1 else {}
        pipeline = start(spark, feed, index, tmp_path, **options)
        assert pipeline.await_end(120)
        status = pipeline.status()
        assert (status.merges, status.merge_error) == (number == 1, None)
    records = BatchLog(tmp_path / "checkpoint").records()
    assert [record.change_batch for record in records] == [0, 1, 2]
    assert sum(record.updates or 0 for record in records) > 0
    assert updates_in(tmp_path / "out") == expected_updates(
        feed.subscriptions, tmp_path / "checkpoint"
    )
    store = IndexStore(index)
    assert store.latest().n_subscriptions == feed.n_live
    assert len((store.folder / "bases").names()) <= 2, "old bases are removed"


def test_a_stop_does_not_wait_for_a_merge(
    spark: SparkSession, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless_merge(*_: Any, at_shards: Any, **__: Any) -> None:
        at_shards(lambda _: time.sleep(600), [0])

    monkeypatch.setattr("earshot.spark.stream.merge", endless_merge)
    index = str(tmp_path / "index")
    build(spark.createDataFrame(feed.subscriptions), index, placement="replicated")
    feed.add_changes(0)
    pipeline = start(spark, feed, index, tmp_path, merge_least=1, available_now=False)
    pipeline.await_idle()
    assert pipeline.status().is_merging
    started = time.monotonic()
    pipeline.stop()
    assert time.monotonic() - started < 60
