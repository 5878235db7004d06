"""What runs in Spark's Python workers: one function per kind of task.

Each takes the Arrow batches of a partition and yields Arrow batches, never a row at a time. Updates
come in two shapes: ``rows``, one row per update, and ``lists``, one row per message with the list
of its subscribers. Rows that cross from Python to Java are what costs, so a list is about as fast
as its message, however many subscribers it names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import TaskContext

from earshot.encoding import NO_TIME_US, EncodedMessages
from earshot.engine.updates import Updates
from earshot.files import Reject
from earshot.model.arrays import Int32s, Int64s, MessageArrays
from earshot.model.batches import instant
from earshot.model.schemas import BOX_FIELDS, id_type, update_fields, updates_schema
from earshot.spark.notes import (
    NOTE,
    Note,
    batch_of_notes,
    note_of,
    notes_on,
    split_notes,
)
from earshot.spark.rows import Batches, Part, RowReading
from earshot.spark.shards import SHARD, Shard, open_shard
from earshot.spark.store import IndexSettings, Version
from earshot.spark.territory import open_territory
from earshot.text import Vocabulary

Shape = Literal["rows", "lists"]

MOST_BYTES_PER_BATCH = 1 << 27
"""Bytes of updates that go to Java at a time, as far as their mean tells.

A column of Arrow's strings ends at 2 GB, which texts that go along reach soon.
"""

KEY = "earshot_key"
"""Column that tells the messages of a sharded match apart, whatever their ids."""
CARRIED = "earshot_carried_"
"""Before the names of columns that go along with a message."""

MOST_SENT_ROWS = 1 << 16
"""Rows in a batch of messages on their way to their shards."""


@dataclass(frozen=True)
class MatchTask:
    """What a worker has to know to match, and how updates become Arrow batches."""

    index: str  # URI of the index
    version: Version  # which subscriptions there are
    settings: IndexSettings
    reading: RowReading  # how rows become messages
    shape: Shape  # one row per update, or one per message
    carried: pa.Schema  # columns of the messages that go along
    keep_unmatched: bool = False  # whether lists has messages that reach nobody
    has_notes: bool = False
    clock_us: int | None = None  # subscriptions that end at or before this time are over
    stop_at_rejects: bool = True  # whether a bad row fails the task

    @property
    def at(self) -> datetime | None:
        """The clock as an instant."""
        return None if self.clock_us is None else instant(self.clock_us)

    def check(self, rejects: list[Reject]) -> None:
        """Fail at a reject, if that is wanted."""
        if rejects and self.stop_at_rejects:
            raise rejects[0].error()

    @property
    def own(self) -> pa.Schema:
        """The columns of updates; lists have each but the message's id as a list."""
        # Semantics that keep results keep messages, and those do not run here.
        fields = updates_schema(
            id_type(self.reading.ids),
            id_type(self.settings.ids),
            update_fields(self.settings.matcher.has_scores, keeps_results=False),
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
        ids = values[0].slice(start, n_updates).cast(id_type(self.settings.ids))
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


# ---- replicated ---------------------------------------------------------------------------------


def match_replicated(task: MatchTask, batches: Iterable[pa.RecordBatch]) -> Batches:
    """Match messages against the only shard."""
    engine = open_shard(task.index, task.version, 0).engine
    for part in task.reading.parts(batches):
        rows = part.rows
        found = engine.match_batch(
            rows.batch, at=task.at, on_error="reject", source=rows.source, rows=rows.rows
        )
        rejects, positions = part.judged(found.rejects)
        task.check(rejects)
        yield from task.batches(found, _carried(task, part, positions))
        yield from task.notes(notes_on(rejects, note_of(found, part.arrived_us)))


def _carried(task: MatchTask, part: Part, positions: Int64s) -> list[pa.Array]:
    """Return the columns that go along, of the accepted messages."""
    if not task.carried.names:
        return []
    origin, chosen = part.rows.batch, positions
    if part.origin is not None:
        origin, chosen = part.origin, part.rows.rows[positions] - part.first_row
    taken = origin.select(task.carried.names).take(pa.array(chosen))
    return [
        column.cast(field.type) for column, field in zip(taken.columns, task.carried, strict=True)
    ]


# ---- sharded ------------------------------------------------------------------------------------


def sent_schema(task: MatchTask) -> pa.Schema:
    """Return the schema of messages on their way to their shards: encoded, without their text."""
    return pa.schema(
        [
            (SHARD, pa.int32()),
            (KEY, pa.int64()),
            ("id", id_type(task.reading.ids)),
            # Of the territory, 32 bits each: a row of bytes costs Java less than a list.
            ("tokens", pa.binary()),
            *((name, pa.float64()) for name in BOX_FIELDS),
            ("time_us", pa.int64()),
            # Under other names: a message's own column may be called like one of these.
            *(field.with_name(CARRIED + field.name) for field in task.carried),
            (NOTE, pa.string()),
        ]
    )


def with_key(task: MatchTask) -> MatchTask:
    """Return the task of a single shard, in whose output a message's parts have the same key."""
    key = pa.field(KEY, pa.int64())
    return replace(task, carried=pa.schema([key, *task.carried]))


def send_to_shards(task: MatchTask, batches: Iterable[pa.RecordBatch]) -> Batches:
    """Yield each message once for every shard that can match it."""
    territory = open_territory(task.index, task.version, task.settings)
    schema = sent_schema(task)
    context = TaskContext.get()
    key = (0 if context is None else context.partitionId()) << 40
    for part in task.reading.parts(batches):
        encoded, offsets, shards = territory.route(part.rows)
        rejects, positions = part.judged(encoded.rejects)
        task.check(rejects)
        if task.keep_unmatched:
            offsets, shards = _at_least_one(offsets, shards)
        messages = np.repeat(np.arange(len(positions)), np.diff(offsets))
        columns = [*_sent_columns(encoded), *_carried(task, part, positions)]
        for start in range(0, len(messages), MOST_SENT_ROWS):
            chosen = messages[start : start + MOST_SENT_ROWS]
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(shards[start : start + MOST_SENT_ROWS]),
                    pa.array(key + chosen),
                    *(column.take(pa.array(chosen)) for column in columns),
                    pa.nulls(len(chosen), pa.string()),
                ],
                schema=schema,
            )
        key += len(positions)
        if task.has_notes:
            latest_us = int(encoded.times.max(initial=NO_TIME_US))
            note = Note(
                len(positions),
                latest_us=None if latest_us == NO_TIME_US else latest_us,
                arrived_us=part.arrived_us,
            )
            notes = batch_of_notes(schema, notes_on(rejects, note))
            first_shard = pa.array(np.zeros(len(notes), np.int32))
            yield notes.set_column(0, schema.field(0), first_shard)


def _sent_columns(encoded: EncodedMessages) -> list[pa.Array]:
    """Return messages as columns of :func:`sent_schema`, ``id`` to ``time_us``."""
    messages: MessageArrays = encoded.messages
    ends = (4 * messages.token_offsets).astype(np.int32)
    tokens = pa.Array.from_buffers(
        pa.binary(),
        len(ends) - 1,
        [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(messages.token_ids))],
    )
    boxes = (pa.array(np.ascontiguousarray(side)) for side in messages.boxes.T)
    return [encoded.ids, tokens, *boxes, pa.array(encoded.times)]


def _received(sent: pa.RecordBatch, shard: Shard, shared: Vocabulary) -> EncodedMessages:
    """Return messages that were sent to a shard, with the shard's own tokens."""
    n, column = sent.num_rows, sent.column("tokens")
    _, ends, data = column.buffers()
    bounds = np.frombuffer(ends, np.int32)[column.offset : column.offset + n + 1] // 4
    tokens = np.frombuffer(data, np.int32, int(bounds[-1]))[bounds[0] :]
    boxes = np.stack([sent.column(name).to_numpy() for name in BOX_FIELDS], axis=1)
    messages = MessageArrays(
        *shard.own_tokens(shared, (bounds - bounds[0]).astype(np.int64), tokens),
        np.ascontiguousarray(boxes),
    )
    times = sent.column("time_us").to_numpy()
    return EncodedMessages(sent.column("id"), messages, times, np.arange(n), [])


def _at_least_one(offsets: Int64s, shards: Int32s) -> tuple[Int64s, Int32s]:
    """Send messages that no shard can match to the first one, so that they are not lost."""
    counts = np.diff(offsets)
    lonely = np.flatnonzero(counts == 0)
    counts[lonely] = 1
    return np.append(0, np.cumsum(counts)), np.insert(shards, offsets[lonely], 0)


def match_sharded(task: MatchTask, batches: Iterable[pa.RecordBatch]) -> Batches:
    """Match messages that were sent to shards; a partition may hold several shards' messages."""
    carried = [CARRIED + name for name in task.carried.names]
    keyed = with_key(task)
    shared = open_territory(task.index, task.version, task.settings).vocabulary
    for sent in batches:
        messages, notes = split_notes(sent)
        yield from keyed.notes(notes)
        shards = messages.column(SHARD).to_numpy()
        for number in np.unique(shards).tolist():
            chosen = messages.filter(pa.array(shards == number))
            shard = open_shard(task.index, task.version, number)
            found = shard.engine.match_encoded(_received(chosen, shard, shared), at=task.at)
            yield from keyed.batches(found, chosen.select([KEY, *carried]).columns)
            # The messages themselves, and their times, were counted before they were sent.
            note = note_of(found)._replace(messages=0, latest_us=None)
            yield from keyed.notes(notes_on([], note))
