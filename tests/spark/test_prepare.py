"""Preparing tables: what the engine would take, and what the rows are like."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from earshot.encoding import REGIONS
from earshot.errors import InvalidParameter
from earshot.model.schemas import REJECTS, messages_schema, subscriptions_schema
from earshot.spark import prepare
from earshot.spark.notes import NOTE, split_notes
from earshot.spark.prepare import (
    ROW,
    SOURCE,
    Bounds,
    _count_task,
    _read_task,
    bounds,
    sample,
    token_frequencies,
)
from earshot.spark.rows import RowCheck, RowReading
from earshot.text import Analyzer


def test_good_rows_and_bad_rows_are_told_apart(spark: SparkSession) -> None:
    table = pa.table(
        {
            "name of it": ["a", "b", None, "d"],
            "text": ["x"] * 4,
            "lon": [1.0, 500.0, 1.0, 2.0],
            "lat": [1.0] * 4,
        }
    )
    rows = spark.createDataFrame(table).selectExpr("*", "interval 1 month AS unknown_to_arrow")
    found = prepare(rows.coalesce(1), "messages", columns={"id": "name of it"})
    assert found.rows.columns == messages_schema(pa.string()).names
    assert [(row["id"], row["x"]) for row in found.rows.collect()] == [("a", 1.0), ("d", 2.0)]
    assert found.rejects.columns == REJECTS.names
    rejects = found.rejects.collect()
    assert [(row["source"], row["row"], row["field"]) for row in rejects] == [
        ("messages/00000", 2, "id"),
        ("messages/00000", 1, "x"),
    ]
    with pytest.raises(InvalidParameter, match="subscriptions, messages, changes"):
        prepare(rows, "rows")  # type: ignore[arg-type]


def test_what_rows_are_like(spark: SparkSession) -> None:
    schema = subscriptions_schema(pa.int64())
    rows = spark.createDataFrame(
        pa.Table.from_pylist(
            [
                {"id": 1, "keywords": ["a b", "c"], "min_x": 1, "min_y": 2, "max_x": 3, "max_y": 4},
                {"id": 2, "expression": "(a OR d) AND NOT e", "x": -5.0, "y": 9.0, "radius": 5.0},
                {"id": 3, "keywords": ["c"]},
            ],
            schema,
        )
    )
    counts = {row["token"]: row["documents"] for row in token_frequencies(rows).collect()}
    assert counts == {"a": 2, "b": 1, "c": 2, "d": 1, "e": 2}, "e is forbidden in two clauses"
    assert bounds(rows) == Bounds(-5.0, 2.0, 3.0, 9.0)
    crossing = {"id": 4, "min_x": 170, "min_y": 0, "max_x": -170, "max_y": 1}
    more = spark.createDataFrame(pa.Table.from_pylist([crossing], schema))
    assert bounds(rows.unionByName(more)) == Bounds(-180.0, 0.0, 180.0, 9.0)
    assert bounds(rows.limit(0)) == Bounds(None, None, None, None)
    assert sample(rows, 10, n_rows=3).num_rows == 3
    assert sample(rows, 2).num_rows <= 2


# ---- one task -----------------------------------------------------------------------------------


def test_changes_are_checked_each_by_itself() -> None:
    """Whether an id is taken is not known here; whether a region is one is."""
    records = [
        {"op": "subscribe", "id": 1, "keywords": ["a"]},
        {"op": "subscribe", "id": 1},
        {"op": "move", "id": 1, "x": 0, "y": 0, "radius": -1},
        {"op": "move", "id": 1},
        {"op": "go", "id": 1},
        {"op": "unsubscribe", "id": 2},
    ]
    batch = pa.record_batch({"value": [json.dumps(record) for record in records]})
    reading = RowReading("changes", "values", "integer", source="c")
    rows: list[tuple[str, int]] = []
    notes: list[dict[str, Any]] = []
    for found in _read_task(reading, RowCheck(Analyzer(), REGIONS), True, False, [batch, batch]):
        good, told = split_notes(found)
        rows += zip(good.column(SOURCE).to_pylist(), good.column(ROW).to_pylist(), strict=True)
        notes += [json.loads(note)["reject"] for note in told.to_pylist()]
        assert found.schema.names[-1] == NOTE
    assert rows == [("c", row) for row in (0, 3, 5, 6, 9, 11)]
    assert sorted(note["row"] for note in notes) == [1, 2, 4, 7, 8, 10]


def test_messages_count_text_and_keywords() -> None:
    batch = pa.RecordBatch.from_pylist(
        [
            {"id": "m", "text": "The rain, the RAIN"},
            {"id": "n", "text": None, "keywords": ["rain", "sun"]},
        ],
        messages_schema(pa.string()),
    )
    (counted,) = _count_task(Analyzer(), True, [batch])
    assert {row["token"]: row["documents"] for row in counted.to_pylist()} == {
        "the": 1, "rain": 2, "sun": 1,
    }  # fmt: skip


def test_nothing_has_no_tokens() -> None:
    (counted,) = _count_task(Analyzer(), True, [])
    assert counted.num_rows == 0
