"""What tasks told in notes, read on the driver."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from earshot.files import Reject
from earshot.model.schemas import REJECTS
from earshot.spark.output import NOTE, Note
from earshot.spark.schemas import spark_schema

_EXTREMES = {"latest_us": F.max, "arrived_us": F.min}


def note_sums() -> list[Column]:
    """Return the aggregates that add up the notes of all tasks."""

    def number(name: str) -> Column:
        return F.get_json_object(F.col(NOTE), f"$.{name}").cast("long")

    return [_EXTREMES.get(name, F.sum)(number(name)).alias(name) for name in Note._fields]


def note_of_sums(sums: Mapping[str, Any]) -> Note:
    """Return what all tasks did together."""
    return Note(
        **{name: sums[name] if name in _EXTREMES else sums[name] or 0 for name in Note._fields}
    )


def rejects_in(noted: DataFrame) -> DataFrame:
    """Return the rejects among the notes of a table."""
    schema = spark_schema(pa.schema([("reject", pa.struct(list(REJECTS)))]))
    told = F.from_json(F.col(NOTE), schema)
    found = noted.where(F.col(NOTE).isNotNull()).select(told["reject"].alias("reject"))
    return found.where(F.col("reject").isNotNull()).select("reject.*")


def rejects_of_notes(notes: pa.ChunkedArray) -> list[Reject]:
    """Return the rejects that notes tell of."""
    return [Reject(**json.loads(note)["reject"]) for note in notes.to_pylist()]
