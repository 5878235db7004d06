"""Batches that run again, rows and files that are wrong, and merges that fail.

Batches are handed to a pipeline here as Spark hands them over, without a stream.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from earshot.model.schemas import Content, messages_schema, subscriptions_schema
from earshot.spark import FileSink, build
from earshot.spark.connectors import Sink
from earshot.spark.folders import Folder
from earshot.spark.match import match_task
from earshot.spark.rows import RowReading
from earshot.spark.store import IndexStore
from earshot.spark.stream import BatchLog, MatchingPipeline

BOX = {"min_x": 0.0, "min_y": 0.0, "max_x": 1.0, "max_y": 1.0}
PLACE = {"x": 0.5, "y": 0.5}
NINE, TEN, NOON = (f"2026-05-01T{hour:02d}:00:00Z" for hour in (9, 10, 12))


@pytest.fixture(scope="module")
def built(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index that tests copy: "a" for fire, "b" for fire until ten."""
    index = tmp_path_factory.mktemp("built") / "index"
    rows = [{"id": "a", "keywords": ["fire"], **BOX}, {"id": "b", "keywords": ["fire"], **BOX}]
    table = pa.Table.from_pylist(rows, subscriptions_schema(pa.string()))
    expires = pa.array([None, TEN]).cast(pa.timestamp("us", "UTC"))
    table = table.set_column(table.schema.get_field_index("expires"), "expires", expires)
    build(spark.createDataFrame(table), index, placement="replicated")
    return index


class Bench:
    """A pipeline with all that it writes in one directory."""

    def __init__(self, spark: SparkSession, built: Path, root: Path) -> None:
        shutil.copytree(built, root / "index")
        self.spark, self.root = spark, root
        self.store = IndexStore(root / "index")

    def pipeline(self, *, form: Any = "values", merge_least: int = 1_000_000) -> MatchingPipeline:
        """Return a pipeline as after a start, which has forgotten all but its checkpoint."""
        messages = self.values([]) if form == "values" else self.files([])
        task = match_task(
            messages, self.store, None,
            shape="rows", form=form, ids="string", stop_at_rejects=False, has_notes=True,
        )  # fmt: skip
        changes = RowReading("changes", "values", "string", source="changes")
        rejects: dict[Content, Sink | None] = {
            "messages": FileSink(self.root / "rejects"),
            "changes": FileSink(self.root / "change-rejects"),
        }
        return MatchingPipeline(
            self.spark, self.store, Folder(self.root / "checkpoint"), FileSink(self.root / "out"),
            rejects, None, messages, task, self.values([]), changes, 1e-9, merge_least,
        )  # fmt: skip

    def values(self, records: list[Any]) -> DataFrame:
        texts = [each if isinstance(each, str) else json.dumps(each) for each in records]
        rows = self.spark.createDataFrame(pa.table({"value": pa.array(texts, pa.string())}))
        return rows.coalesce(1)

    def files(self, paths: list[Path]) -> DataFrame:
        names = pa.array([str(path) for path in paths], pa.string())
        return self.spark.createDataFrame(pa.table({"path": names})).coalesce(1)

    def rows(self, name: str) -> list[dict[str, Any]]:
        if not (self.root / name).exists():
            return []
        found = ds.dataset(self.root / name, format="parquet", partitioning="hive").to_table()
        rows: list[dict[str, Any]] = found.to_pylist()
        return rows

    def updates(self) -> list[tuple[int, str, str]]:
        rows = self.rows("out")
        return sorted((row["batch"], row["message_id"], row["subscription_id"]) for row in rows)


@pytest.fixture
def bench(spark: SparkSession, built: Path, tmp_path: Path) -> Bench:
    return Bench(spark, built, tmp_path)


def message(name: str, **rest: Any) -> dict[str, Any]:
    return {"id": name, "text": "fire", **PLACE, **rest}


def subscribe(name: str, **rest: Any) -> dict[str, Any]:
    return {"op": "subscribe", "id": name, "keywords": ["fire"], **BOX, **rest}


def test_a_batch_that_runs_again_sees_what_it_saw(bench: Bench) -> None:
    first = bench.pipeline()
    rows = bench.values([message("m", time=NINE), "{"])
    first._match_batch(rows, 0)
    wanted = [(0, "m", "a"), (0, "m", "b")]
    assert bench.updates() == wanted
    record = BatchLog(bench.root / "checkpoint").record(0)
    assert record is not None
    assert (record.version, record.messages, record.updates, record.rejects) == (1, 1, 2, 1)
    # Subscriptions change, versions are cleaned away, the driver dies, its output is lost.
    for batch in range(4):
        first._change_batch(bench.values([subscribe(f"new{batch}", time=NOON)]), batch)
    assert bench.store.version_numbers() == [1, 2, 3, 4, 5], "the batch may run again"
    shutil.rmtree(bench.root / "out")
    again = bench.pipeline()
    again._match_batch(rows, 0)
    assert bench.updates() == wanted
    assert BatchLog(bench.root / "checkpoint").record(0) == record
    assert len(bench.rows("rejects")) == 1
    again._match_batch(bench.values([message("n")]), 1)
    news = [(1, "n", f"new{batch}") for batch in range(4)]
    assert bench.updates() == [*wanted, (1, "n", "a"), *news], "b is over by the changes' clock"
    again._change_batch(bench.values([]), 4)
    assert bench.store.version_numbers() == [5, 6]


def test_the_clock_goes_on_over_batches_and_starts(bench: Bench) -> None:
    bench.pipeline()._match_batch(bench.values([message("m", time=TEN)]), 0)
    pipeline = bench.pipeline()
    # By the messages' clock b is over, so its id is free, also for a driver that was just started.
    pipeline._change_batch(bench.values([subscribe("b"), subscribe("a")]), 0)
    assert pipeline.status().rejects == 1
    pipeline._match_batch(bench.values([message("n", time=NINE)]), 1)
    assert bench.updates() == [(0, "m", "a"), (1, "n", "a"), (1, "n", "b")]
    clocks = [record.clock_us for record in BatchLog(bench.root / "checkpoint").records()]
    assert clocks[0] is None
    assert clocks[1] == bench.store.latest().clock_us is not None


def test_a_batch_of_changes_is_taken_in_once(bench: Bench) -> None:
    changes = bench.values([subscribe("c"), {"op": "unsubscribe", "id": "nobody"}, "?"])
    pipeline = bench.pipeline()
    for _ in range(2):
        pipeline._change_batch(changes, 0)
    status = pipeline.status()
    assert (status.changes, status.rejects) == (1, 2)
    again = bench.pipeline()
    again._change_batch(changes, 0)
    assert (again.status().changes, again.status().rejects) == (0, 0)
    assert bench.store.version_numbers() == [1, 2]
    rejects = sorted(bench.rows("change-rejects"), key=lambda row: row["row"])
    assert [(row["row"], row["field"]) for row in rejects] == [(1, "id"), (2, "")]
    assert json.loads(rejects[0]["raw"]) == {"op": "unsubscribe", "id": "nobody"}
    assert {row["source"] for row in rejects} == {"changes/00000"}


def test_bad_files_never_stop_a_stream(bench: Bench) -> None:
    good, empty, corrupt, odd = (
        bench.root / name for name in ("go od#1.ndjson", "empty.csv", "x.parquet", "y.docx")
    )
    good.write_text("\n".join([json.dumps(message("m")), "[]", json.dumps(message("n", x=900))]))
    empty.touch()
    corrupt.write_bytes(b"PAR1")
    odd.touch()
    pipeline = bench.pipeline(form="files")
    pipeline._match_batch(bench.files([empty, good, corrupt, odd, bench.root / "gone.csv"]), 0)
    assert bench.updates() == [(0, "m", "a"), (0, "m", "b")]
    rejects = {(Path(row["source"]).name, row["row"]) for row in bench.rows("rejects")}
    assert rejects == {
        (empty.name, 0), (good.name, 1), (good.name, 2), (corrupt.name, 0), (odd.name, 0),
        ("gone.csv", 0),
    }  # fmt: skip
    assert pipeline.status().rejects == len(rejects)
    # Nothing comes of this one, not even a reject.
    pq.write_table(messages_schema(pa.string()).empty_table(), bench.root / "nothing.parquet")
    pipeline._match_batch(bench.files([bench.root / "nothing.parquet"]), 1)
    record = BatchLog(bench.root / "checkpoint").record(1)
    assert record is not None
    assert (record.messages, record.updates, record.rejects) == (0, 0, 0)


def test_a_merge_that_fails_is_told_and_stops_nothing(bench: Bench) -> None:
    base = Path(bench.store.base_folder(bench.store.latest().base).path)
    (base / "rows").rename(base / "lost")
    pipeline = bench.pipeline(merge_least=1)
    pipeline._change_batch(bench.values([subscribe("c")]), 0)
    while pipeline._merge is not None:
        pipeline._merge.join()
    status = pipeline.status()
    assert status.merges == 0
    assert status.merge_error
    (base / "lost").rename(base / "rows")
    # The next try waits for twice as many.
    pipeline._change_batch(bench.values([subscribe("d"), subscribe("e")]), 1)
    while (merging := pipeline._merge) is not None:
        merging.join()
    status = pipeline.status()
    assert (status.merges, status.merge_error, status.changes) == (1, None, 3)
    latest = bench.store.latest()
    assert (latest.deltas, latest.n_subscriptions) == ((), 5)
    pipeline._match_batch(bench.values([message("m")]), 0)
    assert {update[2] for update in bench.updates()} == set("abcde")
