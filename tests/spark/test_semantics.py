"""Whatever semantics and structure an index has goes one way through Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from earshot import Engine, Ranking, TopK
from earshot.errors import InvalidFile, InvalidParameter
from earshot.files import write_table
from earshot.model.schemas import changes_schema, update_fields
from earshot.spark import build, match
from earshot.spark.config import SubscriptionsConfig, read_config
from earshot.spark.intake import take_in
from earshot.spark.store import IndexStore
from earshot.workloads.datasets import bundled_messages, draw_subscriptions

from .events import json_rows_in

Scored = set[tuple[Any, Any, float | None]]


@pytest.fixture(scope="module")
def messages() -> pa.Table:
    return bundled_messages().slice(0, 300).drop_columns(["kind"])


@pytest.fixture(scope="module")
def subscriptions() -> pa.Table:
    return draw_subscriptions(bundled_messages(), 400)


@pytest.fixture
def toys() -> Iterator[Any]:
    from . import worker_toys as toys

    toys.register()
    yield toys
    toys.forget()


def scored(rows: Any) -> Scored:
    return {(row["message_id"], row["subscription_id"], row.get("score")) for row in rows}


def expected(subscriptions: pa.Table, messages: pa.Table, semantics: Any) -> Scored:
    engine = Engine(semantics)
    engine.subscribe_batch(subscriptions)
    return scored(engine.publish_batch(messages).table().to_pylist())


def with_thresholds(subscriptions: pa.Table) -> pa.Table:
    own = [(0.3, 0.9, None)[i % 3] for i in range(len(subscriptions))]
    return subscriptions.append_column("threshold", pa.array(own, pa.float64()))


@pytest.mark.parametrize("n_shards", [None, 3])
def test_ranked_rows_and_lists_have_the_engines_scores(
    spark: SparkSession,
    tmp_path: Path,
    subscriptions: pa.Table,
    messages: pa.Table,
    n_shards: int | None,
) -> None:
    ranking = Ranking(alpha=0.4, threshold=0.7)
    rows = with_thresholds(subscriptions)
    built = build(
        spark.createDataFrame(rows), tmp_path / "index", semantics=ranking,
        placement="sharded" if n_shards else "replicated", n_shards=n_shards,
    )  # fmt: skip
    assert (built.version.n_subscriptions, built.version.base.n_shards) == (400, n_shards or 1)
    wanted = expected(rows, messages, ranking)
    assert len({score for _, _, score in wanted}) > 5
    table = spark.createDataFrame(messages).repartition(2)
    found = match(table, tmp_path / "index")
    assert found.columns == list(update_fields(has_scores=True, keeps_results=False))
    found_rows = [row.asDict() for row in found.collect()]
    assert len(found_rows) == len(wanted)
    assert scored(found_rows) == wanted
    lists = match(table, tmp_path / "index", shape="lists")
    assert lists.columns == ["message_id", "subscription_ids", "scores"]
    assert {
        (row["message_id"], *each)
        for row in lists.collect()
        for each in zip(row["subscription_ids"], row["scores"], strict=True)
    } == wanted
    settings = IndexStore(tmp_path / "index").settings
    assert (settings.semantics, settings.structure) == (ranking, "block_lists")


def test_boolean_matching_refuses_what_is_for_ranking(
    spark: SparkSession, tmp_path: Path, subscriptions: pa.Table
) -> None:
    built = build(
        spark.createDataFrame(with_thresholds(subscriptions)), tmp_path / "index",
        on_error="reject", placement="replicated",
    )  # fmt: skip
    assert built.n_rejects == 267
    assert {row["field"] for row in built.rejects.collect()} == {"threshold"}


def test_tables_have_no_order_for_semantics_that_keep_messages(
    spark: SparkSession, tmp_path: Path, messages: pa.Table
) -> None:
    rows = pa.table({"id": ["a", "b"], "keywords": [["crash"], ["fire"]], "x": [150.0, 151.0],
                     "y": [-33.0, -34.0]})  # fmt: skip
    index = tmp_path / "index"
    built = build(spark.createDataFrame(rows), index, semantics=TopK(window=10), n_shards=2)
    assert (built.version.base.placement, sum(built.version.base.n_subscriptions)) == ("hashed", 2)
    assert IndexStore(index).settings.semantics == TopK(window=10)
    with pytest.raises(InvalidParameter, match="depends on the messages before"):
        match(spark.createDataFrame(messages), index)
    with pytest.raises(InvalidParameter, match="bring changes in through their"):
        take_in(IndexStore(index), changes_schema(pa.string()).empty_table())
    with pytest.raises(InvalidParameter, match="shards are cut by the ids"):
        build(spark.createDataFrame(rows), tmp_path / "other", semantics=TopK(window=10),
              placement="replicated")  # fmt: skip


@pytest.mark.parametrize("n_shards", [None, 3])
def test_a_semantics_of_somebody_elses(
    spark: SparkSession,
    tmp_path: Path,
    toys: Any,
    subscriptions: pa.Table,
    messages: pa.Table,
    n_shards: int | None,
) -> None:
    """It needs nothing here; all messages go to all shards, as nobody says which would do."""
    some = messages.slice(0, 40)
    build(
        spark.createDataFrame(subscriptions), tmp_path / "index", semantics=toys.Loud(0.25),
        placement="sharded" if n_shards else "replicated", n_shards=n_shards,
    )  # fmt: skip
    found = match(spark.createDataFrame(some), tmp_path / "index").collect()
    wanted = expected(subscriptions, some, toys.Loud(0.25))
    assert len(found) == len(wanted) == 40 * 400
    assert scored([row.asDict() for row in found]) == wanted
    assert IndexStore(tmp_path / "index").settings.semantics == toys.Loud(0.25)


def test_a_structure_of_somebody_elses(
    spark: SparkSession, tmp_path: Path, toys: Any, subscriptions: pa.Table, messages: pa.Table
) -> None:
    index = tmp_path / "index"
    parameters = toys.ToyParameters("blue")
    build(spark.createDataFrame(subscriptions), index, structure="toy_scan", parameters=parameters)
    found = match(spark.createDataFrame(messages), index).collect()
    assert scored([row.asDict() for row in found]) == expected(subscriptions, messages, None)
    settings = IndexStore(index).settings
    assert (settings.structure, settings.parameters) == ("toy_scan", parameters)
    with pytest.raises(InvalidParameter, match="no boolean structure is called 'scan'"):
        build(spark.createDataFrame(subscriptions), tmp_path / "other", structure="scan")


# ---- by name ------------------------------------------------------------------------------------


FILE = """
{semantics}
index = "index"
checkpoint = "checkpoint"
[subscriptions]
path = "subscriptions.parquet"
[messages]
source = "files"
path = "messages"
[sink]
kind = "files"
path = "out"
format = "ndjson"
"""


def test_a_ranked_pipeline_from_its_file(
    spark: SparkSession, tmp_path: Path, subscriptions: pa.Table, messages: pa.Table
) -> None:
    from earshot.spark.commands import run_pipeline

    rows = with_thresholds(subscriptions)
    write_table(tmp_path / "subscriptions.parquet", rows)
    (tmp_path / "messages").mkdir()
    write_table(tmp_path / "messages" / "1.ndjson", messages)
    file = tmp_path / "p.toml"
    file.write_text(FILE.format(semantics='semantics = "ranked"\nalpha = 0.4\nthreshold = 0.7'))
    facts, signal = run_pipeline(read_config(file), once=True, is_quiet=True)
    assert (facts["messages"], facts["rejects"], signal) == (300, 0, None)
    lines = json_rows_in(tmp_path / "out")
    assert scored(lines) == expected(rows, messages, Ranking(0.4, 0.7))
    assert facts["updates"] == len(lines)
    file.write_text(FILE.format(semantics='semantics = "boolean"'))
    with pytest.raises(InvalidFile, match=r'is "boolean", and .* holds a ranked index'):
        run_pipeline(read_config(file), once=True, is_quiet=True)


def test_a_file_names_any_semantics(tmp_path: Path, toys: Any) -> None:
    file = tmp_path / "p.toml"
    file.write_text(FILE.format(semantics='semantics = "megaphone"'))
    subscriptions = read_config(file).subscriptions
    assert isinstance(subscriptions, SubscriptionsConfig)
    assert subscriptions.semantics == toys.Loud()
