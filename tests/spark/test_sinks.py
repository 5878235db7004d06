"""Where updates go: a row has the same number whenever it is written, a batch the same name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from earshot.spark import DeltaSink, Stream, build, match_stream
from earshot.spark.connectors import numbered
from earshot.spark.owners import Owner

from .events import Feed


def test_rows_have_the_same_numbers_however_they_come(spark: SparkSession) -> None:
    rows = [(f"m{i % 70}", f"s{i}") for i in range(300)]
    names = "message_id string, subscription_id string"

    def numbers(table: DataFrame) -> dict[tuple[str, str], int]:
        with numbered(table) as (ordered, sequence):
            found = ordered.select("*", sequence.alias("sequence")).collect()
        return {(row.message_id, row.subscription_id): row.sequence for row in found}

    first = numbers(spark.createDataFrame(rows, names).repartition(3))
    second = numbers(spark.createDataFrame(rows[::-1], names).repartition(5))
    assert first == second
    assert sorted(first.values()) == list(range(300))
    with numbered(spark.createDataFrame([], names)) as (nothing, sequence):
        assert nothing.select(sequence).collect() == []


class FakeTable:
    """Stands for a DataFrame whose writer keeps what it is told, as Delta Lake is not there."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}

    def withColumn(self, name: str, _: object) -> FakeTable:  # noqa: N802 - Spark's
        return self

    @property
    def write(self) -> FakeTable:
        return self

    def format(self, name: str) -> FakeTable:
        self.told["format"] = name
        return self

    def mode(self, name: str) -> FakeTable:
        self.told["mode"] = name
        return self

    def options(self, **options: str) -> FakeTable:
        self.told |= options
        return self

    def save(self, location: str) -> None:
        self.told["location"] = location


def test_a_batch_has_one_name_in_a_delta_table(spark: SparkSession, tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "table", {"overwriteSchema": "false"})
    table: Any = FakeTable()
    sink.owned_by(Owner("p", "checkpoint"))(table, 7)
    assert table.told == {
        "format": "delta", "mode": "append", "txnAppId": "earshot-p-updates", "txnVersion": "7",
        "mergeSchema": "true", "overwriteSchema": "false", "location": f"file://{tmp_path}/table",
    }  # fmt: skip


def test_a_function_of_the_users_own_is_a_sink(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "feed")
    build(spark.createDataFrame(feed.subscriptions), tmp_path / "index")
    for number in range(2):
        feed.add_messages(number)
    batches: dict[int, int] = {}

    def count(rows: DataFrame, batch: int) -> None:
        batches[batch] = rows.count()

    pipeline = match_stream(
        Stream.of_files(spark, feed.messages, files_per_batch=1, ids="string"),
        tmp_path / "index",
        count,
        tmp_path / "checkpoint",
        available_now=True,
    )
    assert pipeline.await_end(120)
    assert list(batches) == [0, 1]
    assert sum(batches.values()) == pipeline.status().updates > 0
