"""A backlog of changes is taken in part by part, and comes to the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from earshot.spark import FileSink, Stream, build, match_stream, stream
from earshot.spark.store import IndexStore

from .events import Feed, expected_updates, json_rows_in, updates_in


def test_a_backlog_is_taken_in_part_by_part(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MOST_CHANGES", 50)
    feed = Feed(tmp_path / "feed")
    build(spark.createDataFrame(feed.subscriptions), tmp_path / "index")
    # One file with many changes, one with few, and what is wrong in either.
    lines = [feed.add_changes(number).read_text() for number in range(4)]
    wrong = json.dumps({"op": "unsubscribe", "id": "nobody"}) + "\n{broken\n"
    for path in sorted(feed.changes.iterdir()):
        path.unlink()
    (feed.changes / "0.ndjson").write_text("".join(lines[:3]) + wrong)
    (feed.changes / "1.ndjson").write_text(lines[3][:40] + "\n" + lines[3])
    feed.add_messages(0)
    pipeline = match_stream(
        Stream.of_files(spark, feed.messages, ids="string"),
        tmp_path / "index",
        FileSink(tmp_path / "out"),
        tmp_path / "checkpoint",
        changes=Stream.of_files(spark, feed.changes),
        change_rejects=FileSink(tmp_path / "rejects", "ndjson"),
        available_now=True,
    )
    assert pipeline.await_end(120)
    version = IndexStore(tmp_path / "index").latest()
    assert version.number == 2, "all changes of a batch at once"
    assert version.step >= 4, "50 at a time"
    assert version.n_subscriptions == feed.n_live
    assert pipeline.status().changes == feed.n_changes
    assert len(json_rows_in(tmp_path / "rejects")) == pipeline.status().rejects == 3
    assert updates_in(tmp_path / "out") == expected_updates(
        feed.subscriptions, tmp_path / "checkpoint"
    )
    assert not (tmp_path / "checkpoint" / "earshot" / "backlog").exists()
