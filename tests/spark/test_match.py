"""Building an index on Spark and matching against it give what the engine gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from earshot import Engine
from earshot.errors import InvalidInput
from earshot.files import write_table
from earshot.spark import FileSink, Stream, build, match, match_stream, prepare
from earshot.spark.rows import RowReading
from earshot.spark.store import Base, IndexSettings, Version
from earshot.spark.workers import MatchTask
from earshot.workloads.datasets import bundled_messages, draw_subscriptions

from .events import pairs_of, updates_in

N_SUBSCRIPTIONS = 3_000
N_MESSAGES = 1_200
VERSION = Version(1, Base("base", "replicated", (0,), (0,), ("shard",)))


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
    return set(pairs_of(engine.publish_batch(messages).table()))


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


def test_rows_are_the_engines_updates(
    spark: SparkSession, index: str, messages: pa.Table, expected: set[tuple[Any, Any]]
) -> None:
    found = spark.createDataFrame(messages).repartition(2).transform(match, index)
    assert found.columns == ["message_id", "subscription_id"]
    found_pairs = pairs_of(found.toArrow())
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


# ---- without Spark ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["rows", "lists"])
@pytest.mark.parametrize("most", [1, 100, 2_000, 1 << 27])
def test_many_deliveries_go_in_several_batches(
    monkeypatch: pytest.MonkeyPatch,
    subscriptions: pa.Table,
    messages: pa.Table,
    shape: Any,
    most: int,
) -> None:
    some = messages.slice(0, 60)
    engine = Engine()
    engine.subscribe_batch(subscriptions)
    found = engine.match_batch(some)
    carried = pa.schema([("text", pa.string())])
    reading = RowReading("messages", "columns", "string")
    whole = MatchTask("", VERSION, IndexSettings("string"), reading, shape, carried)
    monkeypatch.setattr("earshot.spark.workers.MOST_BYTES_PER_BATCH", most)
    batches = list(whole.batches(found, [some["text"].combine_chunks()]))
    assert (len(batches) > 1) == (most < 1 << 20)
    table = pa.Table.from_batches(batches)
    name = "subscription_id"
    if shape == "lists":
        lists = table["subscription_ids"].combine_chunks()
        assert lists.value_lengths().to_pylist() == [n for n in np.diff(found.offsets) if n]
        table = pa.table(
            {
                name: lists.flatten(),
                **{
                    each: table[each].take(lists.value_parent_indices())
                    for each in ("message_id", "text")
                },
            }
        )
    updates = found.table()
    assert table[name].to_pylist() == updates[name].to_pylist()
    assert table["message_id"].to_pylist() == updates["message_id"].to_pylist()
    texts = dict(zip(some["id"].to_pylist(), some["text"].to_pylist(), strict=True))
    assert [texts[each] for each in table["message_id"].to_pylist()] == table["text"].to_pylist()


# ---- columns that go along ----------------------------------------------------------------------


def test_columns_of_all_types_and_names_go_along(
    spark: SparkSession, index: str, messages: pa.Table
) -> None:
    """A message's own column may be called like one of ours, and times are instants anywhere."""
    rows = spark.createDataFrame(messages.slice(0, 40)).selectExpr(
        "id AS m", "text AS words", "x AS lon", "y AS lat", "id", "time",
        "map('a', 1, 'b', NULL) AS text", "struct(1 AS a, array('q', NULL) AS b) AS x",
        "cast(time AS timestamp_ntz) AS ntz", "cast(time AS date) AS day", "array(time) AS times",
        "cast(1.25 AS decimal(20, 3)) AS dec", "cast('ab' AS binary) AS geometry",
        "interval 1 day AS d", "NULL AS nothing", "cast(1 AS tinyint) AS small", "true AS yes",
        "interval 1 month AS left_out",
    )  # fmt: skip
    names = [name for name in rows.columns if name not in ("m", "words", "lon", "lat", "left_out")]
    columns = {"id": "m", "text": "words", "x": "lon", "y": "lat"}
    columns["geometry"] = columns["keywords"] = ""  # none of them is
    wanted = {row["m"]: row for row in rows.drop("left_out").collect()}
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        for shape in ("rows", "lists"):
            found = match(rows, index, columns=columns, carry=names, shape=shape)
            assert found.columns[-len(names) :] == names
            collected = found.collect()
            assert len(collected) > 10
            for row in collected:
                assert row[-len(names) :] == tuple(wanted[row["message_id"]][n] for n in names)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    with pytest.raises(InvalidInput, match="left_out"):
        match(rows, index, columns=columns, carry=["left_out"])
    with pytest.raises(InvalidInput, match="more than once"):
        match(rows, index, columns=columns, carry=["day", "day"])
    with pytest.raises(InvalidInput, match="rename"):
        match(rows.withColumnRenamed("day", "sign"), index, columns=columns, carry=["sign"])


@pytest.mark.parametrize("place", ["point", "box"])
def test_of_two_places_the_chosen_one_counts(
    spark: SparkSession, messages: pa.Table, subscriptions: pa.Table, tmp_path: Path, place: Any
) -> None:
    some = messages.slice(0, 200).drop_columns(["kind"])
    x, y = (some.column(name).to_numpy() for name in ("x", "y"))
    sides = {"min_x": x + 0.5, "min_y": y - 1, "max_x": x + 1, "max_y": y - 0.5}
    both = some
    for name, side in sides.items():
        both = both.append_column(name, pa.array(side))
    engine = Engine()
    engine.subscribe_batch(subscriptions)
    counts = some if place == "point" else both.drop_columns(["x", "y"])
    expected = pairs_of(engine.publish_batch(counts).table())
    table, index = spark.createDataFrame(both), str(tmp_path / "index")
    # Shards are cut by messages that are read in the same way.
    build(
        spark.createDataFrame(subscriptions), index,
        placement="sharded", n_shards=2, messages=table, place=place,
    )  # fmt: skip
    assert pairs_of(table.transform(match, index, place=place).toArrow()) == expected
    prepared = prepare(table, "messages", place=place)
    kept = "x" if place == "point" else "min_x"
    assert prepared.rows.where(f"{kept} IS NOT NULL").count() == some.num_rows
    with pytest.raises(PythonException, match=r"row 0, field 'x': .* with --place point"):
        table.transform(match, index).count()
    if place == "box":
        (tmp_path / "in").mkdir()
        write_table(tmp_path / "in" / "1.ndjson", both)
        stream = Stream.of_files(spark, tmp_path / "in", ids="string", place=place)
        sink, checkpoint = FileSink(tmp_path / "out"), tmp_path / "checkpoint"
        assert match_stream(stream, index, sink, checkpoint, available_now=True).await_end(120)
        assert updates_in(tmp_path / "out") == expected


def test_no_messages_give_no_updates(spark: SparkSession, index: str, messages: pa.Table) -> None:
    nothing = spark.createDataFrame(messages.slice(0, 0))
    for shape in ("rows", "lists"):
        assert match(nothing, index, shape=shape).collect() == []
