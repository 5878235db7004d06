"""Files that Spark would pass over in silence are read, or are among the rejects."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import SparkSession

from earshot.spark import FileSink, Stream, build, match_stream
from earshot.spark.stream import Pipeline

from .events import ROUND_MESSAGES, Feed, json_rows_in


def test_no_file_is_passed_over_in_silence(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "feed")
    build(spark.createDataFrame(feed.subscriptions), tmp_path / "index")

    def run() -> Pipeline:
        pipeline = match_stream(
            Stream.of_files(spark, feed.messages, ids="string"),
            tmp_path / "index",
            FileSink(tmp_path / "out"),
            tmp_path / "checkpoint",
            rejects=FileSink(tmp_path / "rejects", "ndjson"),
            available_now=True,
        )
        assert pipeline.await_end(120)
        return pipeline

    def told() -> dict[str, str]:
        rows = json_rows_in(tmp_path / "rejects")
        return {Path(row["source"]).name: row["reason"] for row in rows}

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
    assert run().status().rejects >= 1
    assert "was written again" in told()["0000.ndjson"]
