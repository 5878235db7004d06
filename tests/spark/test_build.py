"""Building an index from tables of all sorts."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from earshot import Engine
from earshot.errors import InvalidInput, InvalidParameter, SavedIndexError
from earshot.model.schemas import REJECTS, changes_schema, messages_schema, subscriptions_schema
from earshot.spark import build, match
from earshot.spark.build import BuildTask, _build_shard, sampled_messages
from earshot.spark.folders import Folder
from earshot.spark.intake import take_in
from earshot.spark.notes import NOTE
from earshot.spark.prepare import ROW, SOURCE
from earshot.spark.store import IndexSettings, IndexStore
from earshot.text import Analyzer

BOX = {"min_x": 0.0, "min_y": 0.0, "max_x": 1.0, "max_y": 1.0}
LATER = datetime(2030, 1, 1, tzinfo=UTC)


def subscriptions_of(*records: dict[str, Any], ids: pa.DataType | None = None) -> pa.Table:
    return pa.Table.from_pylist(list(records), subscriptions_schema(ids or pa.int64()))


def messages_of(*records: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(records), messages_schema(pa.string()))


def pairs(rows: Any) -> set[tuple[Any, Any]]:
    return {(row["message_id"], row["subscription_id"]) for row in rows}


ALL_KINDS = subscriptions_of(
    {"id": 1, "keywords": ["fire"], **BOX},
    {"id": 2, "expression": "(fire OR smoke) AND NOT drill", **BOX},
    {"id": 3, "keywords": ["fire"], "x": 0.5, "y": 0.5, "radius": 200_000.0},
    {"id": 4, "keywords": ["fire"], "min_x": 179.0, "min_y": 0, "max_x": -179.0, "max_y": 1},
    {"id": 5, **BOX},
    {"id": 6, "keywords": ["fire"]},
    {"id": 7, "keywords": ["fire"], "expires": LATER, **BOX},
    {"id": 8, "keywords": ["fires"], **BOX},
)
MESSAGES = messages_of(
    {"id": "a", "text": "fire", "x": 0.5, "y": 0.5},
    {"id": "b", "text": "Smoke drill", "x": 0.5, "y": 0.5},
    {"id": "c", "text": "fire", "x": 180.0, "y": 0.5},
    {"id": "d", "text": "fire", "min_x": 179.5, "min_y": 0, "max_x": -179.5, "max_y": 1},
    {"id": "e", "text": "fire", "x": 0.5, "y": 0.5, "time": LATER},
)


@pytest.mark.parametrize("placement", ["replicated", "sharded"])
def test_subscriptions_of_all_kinds_in_more_shards_than_rows(
    spark: SparkSession, tmp_path: Path, placement: Any
) -> None:
    index = tmp_path / "an index#1"  # Spark's and Arrow's URIs differ in what is escaped
    analyzer = Analyzer(language="english")
    n_shards = 9 if placement == "sharded" else None
    built = build(
        spark.createDataFrame(ALL_KINDS), index,
        placement=placement, n_shards=n_shards, analyzer=analyzer,
    )  # fmt: skip
    assert sum(built.version.base.n_subscriptions) == len(ALL_KINDS)
    assert built.version.base.n_shards == (n_shards or 1)
    assert [path.name for path in tmp_path.iterdir()] == [index.name]
    engine = Engine(analyzer=analyzer)
    engine.subscribe_batch(ALL_KINDS)
    wanted = pairs(engine.match_batch(MESSAGES).table().to_pylist())
    assert len(wanted) == 6 + 1 + 2 + 2 + 5
    assert pairs(match(spark.createDataFrame(MESSAGES), index).collect()) == wanted
    lists = match(
        spark.createDataFrame(MESSAGES), index, shape="lists", at=LATER, keep_unmatched=True
    ).collect()
    assert {row["message_id"]: set(row["subscription_ids"]) for row in lists} == {
        message: {s for m, s in wanted if m == message and s != 7} for message in "abcde"
    }


def test_bad_rows_are_told_with_where_they_are_from(spark: SparkSession, tmp_path: Path) -> None:
    lines = [
        '{"id": "a", "keywords": ["x"]}',
        '{"id": "b", "keywords": ["x"], "min_x": 5, "min_y": 0, "max_x": 6, "max_y": -1}',
        '{"id": "c"}',
        "{",
        '{"id": "d", "keywords": ["y"]}',
        '{"id": "d", "keywords": ["z"]}',
        '{"id": 7, "keywords": ["z"]}',
    ]
    path = tmp_path / "some.ndjson"
    path.write_text("\n".join(lines))
    files = spark.createDataFrame(pa.table({"path": [str(path)]}))
    built = build(
        files, tmp_path / "index",
        form="files", ids="string", on_error="reject", placement="sharded", n_shards=2,
    )  # fmt: skip
    assert (built.version.n_subscriptions, built.n_rejects) == (1, 6)
    assert built.rejects.columns == REJECTS.names
    rejects = {row["row"]: row for row in built.rejects.collect()}
    assert sorted(rejects) == [1, 2, 3, 4, 5, 6]
    assert {row["source"] for row in rejects.values()} == {str(path)}
    assert "2 rows" in rejects[4]["reason"]
    assert '"c"' in rejects[2]["raw"]
    assert "earshot_" not in rejects[2]["raw"]
    with pytest.raises(InvalidInput, match=r"some\.ndjson, row 4, field 'id'.*2 rows"):
        build(files, tmp_path / "other", form="files", ids="string")
    assert not IndexStore(tmp_path / "other").version_numbers()


def test_bad_messages_are_no_sample(spark: SparkSession, tmp_path: Path) -> None:
    some = spark.createDataFrame(
        subscriptions_of(*({"id": i, "keywords": ["x"]} for i in range(9)))
    )
    path = tmp_path / "feed.ndjson"
    path.write_text('{"id": "m", "text": "x", "x": 1, "y": 2}\n{"id": "n", "text": "x", "x": 1}\n')
    options: dict[str, Any] = {
        "messages": spark.createDataFrame(pa.table({"path": [str(path)]})),
        "message_form": "files", "message_ids": "string", "placement": "sharded", "n_shards": 2,
    }  # fmt: skip
    with pytest.raises(InvalidInput, match=r"feed\.ndjson, row 1, field 'y'"):
        build(some, tmp_path / "index", **options)
    assert not (tmp_path / "index").exists()
    built = build(some, tmp_path / "index", on_error="reject", **options)
    assert (built.version.n_subscriptions, built.n_rejects) == (9, 1)
    assert built.message_rejects is not None
    assert [row["row"] for row in built.message_rejects.collect()] == [1]
    sampled = sampled_messages(IndexStore(tmp_path / "index"), built.version.base)
    assert sampled is not None
    assert sampled["id"].to_pylist() == ["m"]


def test_an_index_is_built_anew_in_its_place(spark: SparkSession, tmp_path: Path) -> None:
    index = tmp_path / "index"
    planar: dict[str, Any] = {"space": "planar", "placement": "replicated"}
    some = spark.createDataFrame(subscriptions_of({"id": 1, "keywords": ["fire"]}))
    messages = spark.createDataFrame(MESSAGES.filter(pc.field("min_x").is_null()))
    build(some, index, **planar)
    store = IndexStore(index)
    gone = pa.Table.from_pylist([{"op": "unsubscribe", "id": 1}], changes_schema(pa.int64()))
    took = take_in(store, gone, stream="s", batch=3)
    assert took.version.n_subscriptions == 0
    first = match(messages, index, version=1)
    assert pairs(first.collect()) == {(each, 1) for each in "ace"}
    assert match(messages, index).count() == 0
    none = spark.createDataFrame(subscriptions_of())
    third = build(none, index, **planar).version
    assert (third.number, third.n_subscriptions, third.n_changes) == (3, 0, 0)
    assert third.taken_in == {"s": 3}, "a batch of changes that runs again is not taken in again"
    assert match(messages, index).count() == 0
    with pytest.raises(SavedIndexError, match="other settings"):
        build(some, index)
    # Workers that had the old one open do not take it for the new one.
    shutil.rmtree(index)
    two = spark.createDataFrame(subscriptions_of({"id": 2, "keywords": ["fire"]}))
    build(two, index, **planar)
    assert pairs(match(messages, index).collect()) == {(each, 2) for each in "ace"}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"placement": "replicated", "n_shards": 2}, "n_shards is 2"),
        ({"placement": "both"}, "auto, replicated, sharded"),
        ({"n_shards": 0}, "1 or more"),
        ({"on_error": "ignore"}, "reject"),
        ({"form": "values"}, "value"),
    ],
)
def test_wrong_options_are_refused(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], match: str
) -> None:
    with pytest.raises(InvalidInput, match=match) as error:
        build(spark.createDataFrame(ALL_KINDS), tmp_path / "index", **options)
    assert isinstance(error.value, InvalidParameter) or options == {"form": "values"}


# ---- one task -----------------------------------------------------------------------------------


def test_a_task_that_is_tried_again_does_not_meet_its_remains(tmp_path: Path) -> None:
    settings = IndexSettings("integer")
    task = BuildTask(Folder(tmp_path).uri, settings, None, stop_at_rejects=False)
    n = len(ALL_KINDS)
    batch = (
        ALL_KINDS.append_column(SOURCE, pa.repeat("file", n))
        .append_column(ROW, pa.array(np.arange(100, 100 + n)))
        .append_column(NOTE, pa.nulls(n, pa.string()))
        .combine_chunks().to_batches()[0]
    )  # fmt: skip

    def killed() -> Any:
        yield batch
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _build_shard(task, 0, killed())
    assert Folder(tmp_path).names() == []
    about, *notes = _build_shard(task, 0, [batch, batch])
    assert about.to_pylist()[0]["n_subscriptions"] == n
    assert len(notes[0]) == n, "the ids come twice"
    assert '"row": 100' in notes[0].column(NOTE)[0].as_py()
    again, *_ = _build_shard(task, 0, [batch])
    names = [each.to_pylist()[0]["directory"] for each in (about, again)]
    assert sorted(names) == Folder(tmp_path / "shards").names()
    assert len(set(names)) == 2
