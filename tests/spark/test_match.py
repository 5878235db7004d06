"""Building an index on Spark and matching against it give what the engine gives."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from earshot import Engine
from earshot.spark import build, match
from earshot.workloads.datasets import bundled_messages, draw_subscriptions

N_SUBSCRIPTIONS = 3_000
N_MESSAGES = 1_200


@pytest.fixture(scope="module")
def messages() -> pa.Table:
    return bundled_messages().slice(0, N_MESSAGES)


@pytest.fixture(scope="module")
def subscriptions() -> pa.Table:
    return draw_subscriptions(bundled_messages(), N_SUBSCRIPTIONS)


@pytest.fixture(scope="module")
def expected(subscriptions: pa.Table, messages: pa.Table) -> set[tuple[Any, Any]]:
    engine = Engine()
    engine.subscribe_batch(subscriptions)
    table = engine.publish_batch(messages).table()
    return set(
        zip(*(table[name].to_pylist() for name in ("message_id", "subscription_id")), strict=True)
    )


@pytest.fixture(scope="module", params=["replicated", "sharded"])
def index(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    subscriptions: pa.Table,
    messages: pa.Table,
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    location = str(tmp_path_factory.mktemp("index") / request.param)
    table = spark.createDataFrame(subscriptions).repartition(3)
    shards = 4 if request.param == "sharded" else None
    built = build(
        table, location, placement=request.param, n_shards=shards,
        messages=spark.createDataFrame(messages),
    )  # fmt: skip
    assert built.version.n_subscriptions == N_SUBSCRIPTIONS
    assert built.version.base.n_shards == (shards or 1)
    assert built.n_rejects == 0
    return location


def pairs(found: DataFrame) -> list[tuple[Any, Any]]:
    return [(row["message_id"], row["subscription_id"]) for row in found.collect()]


def test_rows_are_the_engines_updates(
    spark: SparkSession, index: str, messages: pa.Table, expected: set[tuple[Any, Any]]
) -> None:
    found = spark.createDataFrame(messages).repartition(2).transform(match, index)
    assert found.columns == ["sign", "message_id", "subscription_id", "score", "reason"]
    found_pairs = pairs(found)
    assert len(found_pairs) == len(set(found_pairs))
    assert set(found_pairs) == expected


def test_lists_are_the_rows(
    spark: SparkSession, index: str, messages: pa.Table, expected: set[tuple[Any, Any]]
) -> None:
    table = spark.createDataFrame(messages).repartition(2)
    found = table.transform(match, index, shape="lists", carry=["kind"]).collect()
    assert len(found) == len({row["message_id"] for row in found})
    assert {
        (row["message_id"], each) for row in found for each in row["subscription_ids"]
    } == expected
    kinds = dict(zip(*(messages[name].to_pylist() for name in ("id", "kind")), strict=True))
    assert all(row["kind"] == kinds[row["message_id"]] for row in found)
    everything = table.transform(match, index, shape="lists", keep_unmatched=True)
    assert everything.count() == N_MESSAGES
