"""One Spark for all tests: a JVM takes seconds to start, and a process can have only one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from earshot.errors import MissingExtra

from .kafka_broker import running_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEST_SETTINGS = {
    # Code runs too briefly here to be worth the slow compilers, Java's and Spark's.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # Functions of test modules are looked up by name in the workers.
    "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[1]),
    "spark.python.daemon.module": "spark.ready_workers",
}


@pytest.fixture(scope="session")
def kafka_connector() -> list[Path] | str:
    """The jars that connect Spark to Kafka, or why they cannot be had."""
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    from earshot.spark.kafka import connector_jars

    try:
        return connector_jars()
    except MissingExtra as problem:
        return str(problem)


@pytest.fixture(scope="session")
def spark(
    tmp_path_factory: pytest.TempPathFactory, kafka_connector: list[Path] | str
) -> Iterator[SparkSession]:
    """A session on two cores whose tasks are tried up to four times."""
    from earshot.spark.session import local_session

    scratch = tmp_path_factory.mktemp("spark")
    settings = TEST_SETTINGS | {
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    if isinstance(kafka_connector, list):  # a session cannot be given more jars later
        settings["spark.jars"] = ",".join(map(str, kafka_connector))
    session = local_session("local[2,4]", extra=settings)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka(
    tmp_path_factory: pytest.TempPathFactory, kafka_connector: list[Path] | str
) -> Iterator[str]:
    """The address of a real Kafka broker; tests use topics with names of their own."""
    if isinstance(kafka_connector, str):
        pytest.skip(kafka_connector)
    with ExitStack() as stack:
        try:
            address = stack.enter_context(running_broker(tmp_path_factory.mktemp("kafka")))
        except MissingExtra as problem:
            pytest.skip(str(problem))
        yield address
