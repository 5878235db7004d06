"""What tasks tell the driver: notes among their rows, and what made them fail.

A note is a reject, or counts, as JSON in a column of its own. Counted that way, a task that is
tried again counts once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.pandas.types import from_arrow_schema

from earshot import errors
from earshot.engine.updates import Updates
from earshot.errors import EarshotError, InvalidInput
from earshot.files import Reject
from earshot.model.batches import time_us
from earshot.model.schemas import REJECTS

NOTE = "earshot_note"
"""Column of notes."""


class Note(NamedTuple):
    """What a task did with some messages."""

    messages: int = 0  # accepted ones
    updates: int = 0
    rejects: int = 0
    latest_us: int | None = None  # latest event time of an accepted message
    arrived_us: int | None = None  # when the first row arrived, if the source tells


_EXTREMES = {"latest_us": F.max, "arrived_us": F.min}


# ---- in tasks -----------------------------------------------------------------------------------


def note_of(found: Updates, arrived_us: int | None = None) -> Note:
    """Return what matching a batch did."""
    latest_us = None if found.latest is None else time_us(found.latest)
    return Note(found.n_rows, len(found), 0, latest_us, arrived_us)


def notes_on(rejects: list[Reject], note: Note) -> pa.Array:
    """Return the notes on some messages: one for each reject, and one with the counts."""
    counts = json.dumps(note._replace(rejects=len(rejects))._asdict())
    return pa.concat_arrays([reject_notes(rejects), pa.array([counts], pa.string())])


def reject_notes(rejects: list[Reject]) -> pa.Array:
    """Return a note for each reject."""
    return pa.array([json.dumps({"reject": each._asdict()}) for each in rejects], pa.string())


def batch_of_notes(schema: pa.Schema, notes: pa.Array) -> pa.RecordBatch:
    """Return rows that have nothing but a note."""
    columns = [
        notes if field.name == NOTE else pa.nulls(len(notes), field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def split_notes(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array]:
    """Return the rows that are no notes, and the notes."""
    notes = batch.column(NOTE)
    return batch.filter(pc.is_null(notes)), notes.drop_null()


# ---- on the driver ------------------------------------------------------------------------------


def note_sums() -> list[Column]:
    """Return the aggregates that add up the notes of all tasks."""

    def number(name: str) -> Column:
        return F.get_json_object(F.col(NOTE), f"$.{name}").cast("long")

    return [_EXTREMES.get(name, F.sum)(number(name)).alias(name) for name in Note._fields]


def note_of_sums(sums: Mapping[str, Any]) -> Note:
    """Return what all tasks did together."""
    told = ((name, sums[name]) for name in Note._fields)
    return Note(**{name: value for name, value in told if value is not None})


def without_notes(noted: DataFrame) -> DataFrame:
    """Return the rows of a table that are no notes."""
    return noted.where(F.col(NOTE).isNull()).drop(NOTE)


def rejects_in(noted: DataFrame) -> DataFrame:
    """Return the rejects among the notes of a table."""
    schema = from_arrow_schema(pa.schema([("reject", pa.struct(list(REJECTS)))]))
    told = noted.select(F.from_json(F.col(NOTE), schema)["reject"].alias("reject"))
    return told.where("reject IS NOT NULL").select("reject.*")


def rejects_of_notes(notes: pa.Array | pa.ChunkedArray) -> list[Reject]:
    """Return the rejects that notes tell of."""
    told = map(json.loads, notes.to_pylist())
    return [Reject(**each["reject"]) for each in told if "reject" in each]


def arrival_of_notes(notes: pa.Array | pa.ChunkedArray) -> int | None:
    """Return when the first row arrived, if notes tell."""
    told = (json.loads(note).get("arrived_us") for note in notes.to_pylist())
    return min((each for each in told if each is not None), default=None)


# ---- failures -----------------------------------------------------------------------------------

_RAISED = re.compile(r"^earshot\.errors\.(\w+): (.+)$", re.MULTILINE)


@contextmanager
def plain_failures() -> Iterator[None]:
    """Raise the error of a task instead of Spark's account of it, where it is one of ours."""
    try:
        yield
    except PySparkException as error:
        plain = plain_failure(error)
        if plain is None:
            raise
        raise plain from None


def plain_failure(error: BaseException) -> EarshotError | None:
    """Return the error of ours that failed a task, None where it was something else."""
    found = _RAISED.search(str(error))
    if found is None:
        return None
    kind: Any = getattr(errors, found.group(1), None)
    is_ours = isinstance(kind, type) and issubclass(kind, EarshotError)
    if not is_ours or issubclass(kind, errors.InvalidRow):
        kind = InvalidInput  # its parts cannot be told from its text
    failure: EarshotError = kind(found.group(2))
    return failure
