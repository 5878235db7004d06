"""The shape of what matching gives back to Spark.

Two shapes: ``rows``, one row per update, and ``lists``, one row per message with the list of its
subscribers. Rows that cross from Python to Java are what costs, so a list is about as fast as its
message, however many subscribers it names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from earshot.engine.updates import Updates
from earshot.model.schemas import IdKind, id_type, update_fields, updates_schema
from earshot.spark.notes import NOTE, batch_of_notes

Shape = Literal["rows", "lists"]

MOST_BYTES_PER_BATCH = 1 << 27
"""Bytes of updates that go to Java at a time, as far as their mean tells.

A column of Arrow's strings ends at 2 GB, which texts that go along reach soon.
"""


@dataclass(frozen=True)
class Shaping:
    """How updates become Arrow batches."""

    shape: Shape  # one row per update, or one per message
    message_ids: IdKind
    subscription_ids: IdKind
    carried: pa.Schema  # columns of the messages that go along
    has_scores: bool = False
    keep_unmatched: bool = False  # whether lists has messages that reach nobody
    has_notes: bool = False

    @property
    def own(self) -> pa.Schema:
        """The columns of updates; lists have each but the message's id as a list."""
        # Semantics that keep results keep messages, and those do not run here.
        fields = updates_schema(
            id_type(self.message_ids),
            id_type(self.subscription_ids),
            update_fields(self.has_scores, keeps_results=False),
        )
        if self.shape == "rows":
            return fields
        lists = [pa.field(f"{each.name}s", pa.list_(each.type)) for each in list(fields)[1:]]
        return pa.schema([fields[0], *lists])

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches."""
        notes = [pa.field(NOTE, pa.string())] if self.has_notes else []
        return pa.schema([*self.own, *self.carried, *notes])

    def batches(self, found: Updates, carried: list[pa.Array]) -> Iterator[pa.RecordBatch]:
        """Yield the updates, few enough at a time."""
        first, n = 0, found.n_rows
        values = [found.subscription_ids]
        if found.scores is not None:
            values.append(pa.array(found.scores))
        bytes_each = sum(each.nbytes for each in values) / max(1, len(found))
        if self.shape == "rows":
            bytes_each += sum(column.nbytes for column in (found.event_ids, *carried)) / max(1, n)
        n_most = max(1, int(MOST_BYTES_PER_BATCH / max(1, bytes_each)))
        while first < n:
            most = int(found.offsets[first]) + n_most
            last = int(np.searchsorted(found.offsets, most, side="right")) - 1
            last = min(max(last, first + 1), n)
            yield self._batch(found, values, carried, first, last)
            first = last

    def _batch(
        self,
        found: Updates,
        values: list[pa.Array],
        carried: list[pa.Array],
        first: int,
        last: int,
    ) -> pa.RecordBatch:
        offsets = found.offsets[first : last + 1]
        start, n_updates = int(offsets[0]), int(offsets[-1] - offsets[0])
        # Cast only now: ids of all may be more than a column of strings holds.
        ids = values[0].slice(start, n_updates).cast(id_type(self.subscription_ids))
        values = [ids, *(each.slice(start, n_updates) for each in values[1:])]
        counts = np.diff(offsets)
        messages: npt.NDArray[Any] = np.arange(first, last)
        if self.shape == "rows":
            messages = np.repeat(messages, counts)
        else:
            if not self.keep_unmatched:
                messages, counts = messages[counts > 0], counts[counts > 0]
            ends = pa.array(np.append(0, np.cumsum(counts)).astype(np.int32))
            values = [pa.ListArray.from_arrays(ends, each) for each in values]
        chosen = pa.array(messages)
        message_ids, *rest = [column.take(chosen) for column in (found.event_ids, *carried)]
        no_notes = [pa.nulls(len(chosen), pa.string())] if self.has_notes else []
        return pa.RecordBatch.from_arrays(
            [message_ids, *values, *rest, *no_notes], schema=self.schema
        )

    def notes(self, notes: pa.Array) -> Iterator[pa.RecordBatch]:
        """Yield notes among the rows, where they are wanted."""
        if self.has_notes and len(notes):
            yield batch_of_notes(self.schema, notes)
