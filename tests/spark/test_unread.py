"""Files that Spark would pass over in silence are read, or are among the rejects."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from earshot import Boolean, Moving
from earshot.spark import FileSink, Stream, build, match_stream
from earshot.spark.folders import Folder
from earshot.spark.stream import Pipeline
from earshot.spark.unread import UnreadFiles, is_beside_data, is_passed_over

from .events import ROUND_MESSAGES, Feed, json_rows_in


@pytest.mark.parametrize("semantics", [Boolean(), Moving(timedelta(days=10_000))])
def test_no_file_is_passed_over_in_silence(
    spark: SparkSession, tmp_path: Path, semantics: Any
) -> None:
    feed = Feed(tmp_path / "feed")
    build(spark.createDataFrame(feed.subscriptions), tmp_path / "index", semantics=semantics)

    def start(*, available_now: bool) -> Pipeline:
        return match_stream(
            Stream.of_files(spark, feed.messages, ids="string"),
            tmp_path / "index",
            FileSink(tmp_path / "out"),
            tmp_path / "checkpoint",
            rejects=FileSink(tmp_path / "rejects", "ndjson"),
            available_now=available_now,
        )

    def run() -> Pipeline:
        pipeline = start(available_now=True)
        assert pipeline.await_end(120)
        return pipeline

    def told() -> dict[str, str]:
        rows = json_rows_in(tmp_path / "rejects")
        found = {Path(row["source"]).name: row["reason"] for row in rows}
        assert len(found) == len(rows), "each is told once"
        return found

    feed.add_messages(0)
    assert run().status().messages == ROUND_MESSAGES
    old = feed.add_messages(1)
    os.utime(old, (1_000_000_000, 1_000_000_000))  # years before the first
    feed.add_messages(2, "_hidden.ndjson")
    (feed.messages / "_SUCCESS").touch()
    (feed.messages / "empty.parquet").touch()
    status = run().status()
    assert status.messages == ROUND_MESSAGES, "however old a file is"
    assert set(told()) == {"_hidden.ndjson", "empty.parquet"}
    assert status.rejects == 2
    assert "is empty" in told()["empty.parquet"]
    assert "under another name" in told()["_hidden.ndjson"]

    feed.add_messages(3, "0000.ndjson")  # again, with other messages
    assert run().status().rejects == 1, "what was told before is not told again"
    assert "was written again" in told()["0000.ndjson"]

    below = feed.messages / "day=1"
    below.mkdir()
    feed.add_messages(4).rename(below / "0004.ndjson")
    feed.add_messages(5, "_below.ndjson").rename(below / "_below.ndjson")
    status = run().status()
    assert (status.messages, status.rejects) == (ROUND_MESSAGES, 1), "directories are looked into"

    pipeline = start(available_now=False)
    feed.add_messages(6, "_late.ndjson")
    wait_until(lambda: pipeline.is_active and pipeline.status().rejects == 1)
    pipeline.stop()
    assert set(told()) == {
        "_hidden.ndjson", "empty.parquet", "0000.ndjson", "_below.ndjson", "_late.ndjson"
    }  # fmt: skip


def wait_until(happened: Callable[[], bool]) -> None:
    for _ in range(300):
        if happened():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen")


def test_what_a_batch_told_is_told_once_when_it_runs_again(tmp_path: Path) -> None:
    incoming, memory = tmp_path / "a b", Folder(tmp_path / "checkpoint")
    incoming.mkdir()
    (incoming / "_hidden.ndjson").write_text("{}")
    (incoming / "_temporary").mkdir()
    (incoming / "_temporary" / "1.ndjson").touch()
    written = incoming / "a b.ndjson"
    written.write_text("{}")
    log = memory / "messages" / "sources" / "0"
    Path(log.path).mkdir(parents=True)
    Path(log.path, "0").write_text(
        'v1\n{"path": "' + written.as_uri() + '", "timestamp": 1000, "batchId": 0}\n'
    )

    def watching() -> UnreadFiles:
        unread = UnreadFiles(Folder(incoming))
        unread.remember(memory / "messages", memory, "unread.json")
        return unread

    first = watching()
    assert [Path(each.source).name for each in first.look(7)] == ["_hidden.ndjson", "a b.ndjson"]
    first.keep()
    second = watching()
    assert second.look(8) == []
    assert second.forget(7)
    assert [Path(each.source).name for each in second.look(7)] == ["_hidden.ndjson", "a b.ndjson"]
    assert not watching().forget(8)


def test_marks_are_no_data_and_partitions_are() -> None:
    names = ["_SUCCESS", "_delta_log/0.json", "a/_started_7", "_a.csv", "_a/b.csv", "_a=1/b.csv"]
    assert [is_beside_data(name) for name in names] == [True, True, True, False, False, False]
    assert [is_passed_over(name) for name in names] == [True, True, True, True, True, False]
