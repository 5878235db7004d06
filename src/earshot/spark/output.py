"""What matching gives back to Spark: Arrow batches in the shape that was asked for.

Two shapes: ``rows``, one row per update, and ``lists``, one row per message with the list of its
subscribers. Rows that cross from Python to Java are what costs, so a list is about as fast as its
message, however many subscribers it names.

Tasks that report what they did send *notes* among their rows: a reject, or counts, as JSON in a
column of their own. Counted that way, a task that is tried again counts once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from earshot.engine.deliveries import Deliveries
from earshot.files import Reject
from earshot.model.arrays import Int64s
from earshot.model.batches import time_us
from earshot.model.schemas import IdKind, id_type

Shape = Literal["rows", "lists"]
SHAPES: tuple[Shape, ...] = ("rows", "lists")

NOTE = "earshot_note"
"""Column of notes."""

MOST_BYTES_PER_BATCH = 1 << 27
"""Bytes of deliveries that go to Java at a time, as far as their mean tells.

A column of Arrow's strings ends at 2 GB, which texts that go along reach soon.
"""


class Note(NamedTuple):
    """What a task did with some messages."""

    messages: int = 0  # accepted ones
    updates: int = 0
    rejects: int = 0
    latest_us: int | None = None  # latest event time of an accepted message
    arrived_us: int | None = None  # when the first row arrived, if the source tells
    nodes: int = 0
    candidates: int = 0


@dataclass(frozen=True)
class Output:
    """The shape of the output.

    Attributes:
        shape: One row per update, or one per message.
        message_ids: Kind of the messages' ids.
        subscription_ids: Kind of the subscriptions' ids.
        carried: Columns of the messages that go along.
        keep_unmatched: Whether lists has messages that reach nobody.
        has_notes: Whether there is a column of notes.
    """

    shape: Shape
    message_ids: IdKind
    subscription_ids: IdKind
    carried: pa.Schema
    keep_unmatched: bool = False
    has_notes: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches."""
        subscribers = id_type(self.subscription_ids)
        fields = [
            pa.field("message_id", id_type(self.message_ids)),
            pa.field("subscription_id", subscribers)
            if self.shape == "rows"
            else pa.field("subscription_ids", pa.list_(subscribers)),
            *self.carried,
        ]
        return pa.schema([*fields, *([pa.field(NOTE, pa.string())] if self.has_notes else [])])

    def deliveries(self, found: Deliveries, carried: list[pa.Array]) -> Iterator[pa.RecordBatch]:
        """Yield the deliveries, few enough at a time."""
        first, n = 0, len(found.message_ids)
        bytes_each = found.subscription_ids.nbytes / max(1, len(found.subscription_ids))
        if self.shape == "rows":
            bytes_each += sum(column.nbytes for column in (found.message_ids, *carried)) / max(1, n)
        n_most = max(1, int(MOST_BYTES_PER_BATCH / max(1, bytes_each)))
        while first < n:
            most = int(found.offsets[first]) + n_most
            last = int(np.searchsorted(found.offsets, most, side="right")) - 1
            last = min(max(last, first + 1), n)
            yield self._batch(found, carried, first, last)
            first = last

    def _batch(
        self, found: Deliveries, carried: list[pa.Array], first: int, last: int
    ) -> pa.RecordBatch:
        offsets = found.offsets[first : last + 1]
        start, n_ids = int(offsets[0]), int(offsets[-1] - offsets[0])
        ids = found.subscription_ids.slice(start, n_ids).cast(id_type(self.subscription_ids))
        counts = np.diff(offsets)
        messages: npt.NDArray[Any] = np.arange(first, last)
        if self.shape == "rows":
            messages, subscribers = np.repeat(messages, counts), ids
        else:
            if not self.keep_unmatched:
                messages, counts = messages[counts > 0], counts[counts > 0]
            ends = np.append(0, np.cumsum(counts)).astype(np.int32)
            subscribers = pa.ListArray.from_arrays(pa.array(ends), ids)
        chosen = pa.array(messages)
        columns = [found.message_ids, *carried]
        message_ids, *rest = [column.take(chosen) for column in columns]
        no_notes = [pa.nulls(len(chosen), pa.string())] if self.has_notes else []
        return pa.RecordBatch.from_arrays(
            [message_ids, subscribers, *rest, *no_notes], schema=self.schema
        )

    def notes(self, notes: pa.Array) -> Iterator[pa.RecordBatch]:
        """Yield notes among the rows, where they are wanted."""
        if self.has_notes and len(notes):
            yield batch_of_notes(self.schema, notes)


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


def note_of(found: Deliveries, arrived_us: int | None = None) -> Note:
    """Return what matching a batch took."""
    latest_us = None if found.latest is None else time_us(found.latest)
    counters = found.counters
    return Note(
        len(found.message_ids),
        int(found.offsets[-1]),
        0,
        latest_us,
        arrived_us,
        counters.nodes,
        counters.candidates,
    )


def accepted_positions(rows: Int64s, refused: list[int]) -> Int64s:
    """Return the positions of the rows that are not refused; both are ascending row numbers."""
    if not refused:
        return np.arange(len(rows), dtype=np.int64)
    return np.flatnonzero(~np.isin(rows, refused))


def split_notes(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array]:
    """Return the rows that are no notes, and the notes."""
    notes = batch.column(NOTE)
    return batch.filter(pc.is_null(notes)), notes.drop_null()
