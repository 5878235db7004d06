from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from earshot.errors import InvalidParameter
from earshot.spark.session import (
    SETTINGS,
    check_master,
    command_settings,
    is_local,
    local_session,
    settings_for,
)

from .kafka_broker import consume, create_topic, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def worker_facts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        n_rows = batch.num_rows
        yield pa.RecordBatch.from_pydict(
            {"pid": [os.getpid()] * n_rows, "python": [sys.executable] * n_rows}
        )


def test_workers_run_this_python(spark: SparkSession) -> None:
    rows = spark.range(4).mapInArrow(worker_facts, "pid long, python string").collect()
    assert {row.python for row in rows} == {sys.executable}
    assert os.getpid() not in {row.pid for row in rows}


@pytest.mark.parametrize("thread", ["this", "another"])
def test_a_running_session_is_returned_as_it_is(spark: SparkSession, thread: str) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    start = partial(local_session, extra={"spark.sql.shuffle.partitions": "77"})
    if thread == "this":
        found = start()
    else:
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(start).result()
    assert found is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == before


@pytest.mark.parametrize("name", SETTINGS)
def test_a_session_has_each_setting(spark: SparkSession, name: str) -> None:
    assert spark.conf.get(name) == SETTINGS[name].value


def test_a_stream_goes_on_from_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "source"

    def read_all() -> list[int]:
        seen: list[int] = []
        stream = (
            spark.readStream.schema("id long")
            .parquet(str(source))
            .writeStream.foreachBatch(
                lambda batch, _: seen.extend(row.id for row in batch.collect())
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        stream.awaitTermination()
        return sorted(seen)

    source.mkdir()
    pq.write_table(pa.table({"id": [1, 2]}), source / "a.parquet")
    assert read_all() == [1, 2]
    pq.write_table(pa.table({"id": [3]}), source / "b.parquet")
    assert read_all() == [3]
    assert read_all() == []


class Killer:
    """Kills the first worker that it meets, once."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            self.flag.touch(exist_ok=False)
        except FileExistsError:
            yield from batches
        else:
            os.kill(os.getpid(), 9)


def test_a_killed_worker_is_replaced(spark: SparkSession, tmp_path: Path) -> None:
    flag = tmp_path / "killed"
    assert spark.range(10).mapInArrow(Killer(flag), "id long").count() == 10
    assert flag.exists()


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local", True),
        ("local[*,4]", True),
        ("local-cluster[2,1,1024]", False),
        ("yarn", False),
        ("spark://host:7077", False),
        ("k8s://https://host", False),
    ],
)
def test_local_masters_are_known(master: str, expected: bool) -> None:
    assert is_local(master) is expected


def test_a_cluster_keeps_its_administrators_settings() -> None:
    settings = settings_for("spark://host:7077")
    assert set(settings) == {name for name, each in SETTINGS.items() if not each.local}
    assert not any(name.startswith(("spark.driver", "spark.ui")) for name in settings)


def test_the_callers_settings_win_and_java_options_add_up() -> None:
    extra = {"spark.sql.shuffle.partitions": "3", "spark.a": "b", JAVA_OPTIONS: "-Xss8m"}
    settings = settings_for("local[2]", extra)
    assert settings["spark.sql.shuffle.partitions"] == "3"
    assert settings["spark.a"] == "b"
    assert settings[JAVA_OPTIONS] == settings_for("local[2]")[JAVA_OPTIONS] + " -Xss8m"
    assert settings_for("yarn", extra)[JAVA_OPTIONS] == "-Xss8m"


def test_a_master_that_does_not_answer_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        check_master(f"spark://127.0.0.1:1,{place}")
    with pytest.raises(InvalidParameter, match=f"spark://{place} cannot be reached: {place} "):
        check_master(f"spark://{place}")
    check_master("yarn")


def test_a_command_is_quiet_on_a_cluster(tmp_path: Path) -> None:
    assert command_settings("local[2]", {"spark.a": "b"}) == {"spark.a": "b"}
    settings = command_settings("yarn", {JAVA_OPTIONS: "-Xss8m"}, {})
    assert settings["spark.ui.showConsoleProgress"] == "false"
    option, own = settings[JAVA_OPTIONS].split()
    log = Path(option.removeprefix("-Dlog4j2.configurationFile=file://")).read_text()
    assert "rootLogger.level = warn" in log
    assert "logger.tasks.level = off" in log, "what tasks fail with is told once"
    assert own == "-Xss8m"
    (tmp_path / "log4j2.properties").touch()
    settings = command_settings("yarn", {}, {"SPARK_CONF_DIR": str(tmp_path)})
    assert JAVA_OPTIONS not in settings, "the administrator's own stays"


@pytest.mark.parametrize("name", SETTINGS)
def test_each_setting_has_a_reason(name: str) -> None:
    assert len(SETTINGS[name].reason.split()) > 3


def test_rows_come_back_from_kafka_as_a_stream(
    spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    rows = [(str(number), f"value {number}") for number in range(100)]
    create_topic(spark, kafka, "there-and-back", n_partitions=3)
    produce(spark, kafka, "there-and-back", rows)
    stream = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka)
        .option("subscribe", "there-and-back")
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("partition", "cast(key as string) key", "cast(value as string) value")
        .writeStream.format("memory")
        .queryName("there_and_back")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    stream.awaitTermination()
    found = spark.table("there_and_back").collect()
    assert sorted((row.key, row.value) for row in found) == sorted(rows)
    assert {row.partition for row in found} == {0, 1, 2}
    assert sorted(consume(spark, kafka, "there-and-back")) == sorted(rows)
