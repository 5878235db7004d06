"""What runs in Spark's Python workers: one function per kind of task.

Each takes the Arrow batches of a partition and yields Arrow batches, never a row at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from earshot.encoding import NO_TIME_US
from earshot.engine.engine import Engine
from earshot.files import Reject, rejects_of_batch
from earshot.model.arrays import Int32s, Int64s
from earshot.model.batches import instant
from earshot.model.schemas import id_type, messages_schema
from earshot.spark.output import (
    NOTE,
    Note,
    Output,
    accepted_positions,
    batch_of_notes,
    note_of,
    notes_on,
    split_notes,
)
from earshot.spark.reading import Part, RowReader
from earshot.spark.shards import SHARD, open_shard, open_territory
from earshot.spark.store import IndexSettings, Version

Batches = Iterator[pa.RecordBatch]

KEY = "earshot_key"
"""Column that tells the messages of a sharded match apart, whatever their ids."""
CARRIED = "earshot_carried_"
"""Before the names of columns that go along with a message."""

MOST_SENT_ROWS = 1 << 16
"""Rows in a batch of messages on their way to their shards."""


@dataclass(frozen=True)
class MatchTask:
    """What a worker has to know to match.

    Attributes:
        index: URI of the index.
        version: Which subscriptions there are.
        settings: Those of the index.
        reading: How rows become messages.
        output: What becomes of the deliveries.
        clock_us: Subscriptions that end at or before this time are over.
        stop_at_rejects: Whether a bad row fails the task.
    """

    index: str
    version: Version
    settings: IndexSettings
    reading: RowReader
    output: Output
    clock_us: int | None = None
    stop_at_rejects: bool = True

    @property
    def at(self) -> datetime | None:
        """The clock as an instant."""
        return None if self.clock_us is None else instant(self.clock_us)

    def check(self, rejects: list[Reject]) -> None:
        """Fail at a reject, if that is wanted."""
        if rejects and self.stop_at_rejects:
            raise rejects[0].error()


def match_replicated(task: MatchTask, batches: Iterable[pa.RecordBatch]) -> Batches:
    """Match messages against the only shard."""
    engine = open_shard(task.index, task.version, 0)
    for part in task.reading.parts(batches):
        yield from _match_part(task, engine, part)


def _match_part(task: MatchTask, engine: Engine, part: Part) -> Batches:
    rows = part.rows
    found = engine.match_batch(
        rows.batch,
        at=task.at,
        on_error="reject",
        source=rows.source,
        rows=rows.rows,
    )
    rejects = rows.rejects + rejects_of_batch(found.rejects, rows.batch, rows.rows)
    task.check(rejects)
    positions = accepted_positions(rows.rows, [each.row for each in found.rejects])
    yield from task.output.deliveries(found, _carried(task.output, part, positions))
    yield from task.output.notes(notes_on(rejects, note_of(found, part.arrived_us)))


def _carried(output: Output, part: Part, positions: Int64s) -> list[pa.Array]:
    """Return the columns that go along, of the accepted messages."""
    if not output.carried.names:
        return []
    origin, chosen = part.rows.batch, positions
    if part.origin is not None:
        origin, chosen = part.origin, part.rows.rows[positions] - part.first_row
    taken = origin.select(output.carried.names).take(pa.array(chosen))
    return [
        column.cast(field.type) for column, field in zip(taken.columns, output.carried, strict=True)
    ]


# ---- sharded ------------------------------------------------------------------------------------


def sent_schema(output: Output) -> pa.Schema:
    """Return the schema of messages on their way to their shards."""
    messages = messages_schema(id_type(output.message_ids))
    return pa.schema(
        [
            (SHARD, pa.int32()),
            (KEY, pa.int64()),
            *messages,
            # Under other names: a message's own column may be called like a canonical one.
            *(field.with_name(CARRIED + field.name) for field in output.carried),
            (NOTE, pa.string()),
        ]
    )


def with_key(output: Output) -> Output:
    """Return the output of a single shard, in which a message's parts have the same key."""
    key = pa.field(KEY, pa.int64())
    return replace(output, carried=pa.schema([key, *output.carried]))


def send_to_shards(task: MatchTask, batches: Iterable[pa.RecordBatch]) -> Batches:
    """Yield each message once for every shard that can match it."""
    territory = open_territory(task.index, task.version, task.settings)
    schema = sent_schema(task.output)
    context = TaskContext.get()
    key = (0 if context is None else context.partitionId()) << 40
    for part in task.reading.parts(batches):
        rows = part.rows
        encoded, offsets, shards = territory.route(rows)
        rejects = rows.rejects + rejects_of_batch(encoded.rejects, rows.batch, rows.rows)
        task.check(rejects)
        if task.output.keep_unmatched:
            offsets, shards = _at_least_one(offsets, shards)
        positions = accepted_positions(rows.rows, [each.row for each in encoded.rejects])
        messages = np.repeat(np.arange(len(positions)), np.diff(offsets))
        columns = [
            *rows.batch.take(pa.array(positions)).columns,
            *_carried(task.output, part, positions),
        ]
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
        if task.output.has_notes:
            latest_us = int(encoded.times.max(initial=NO_TIME_US))
            note = Note(
                len(positions),
                latest_us=None if latest_us == NO_TIME_US else latest_us,
                arrived_us=part.arrived_us,
            )
            yield _to_shard(0, batch_of_notes(schema, notes_on(rejects, note)))


def _to_shard(shard: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    shards = pa.array(np.full(batch.num_rows, shard, np.int32))
    return batch.set_column(0, batch.schema.field(0), shards)


def _at_least_one(offsets: Int64s, shards: Int32s) -> tuple[Int64s, Int32s]:
    """Send messages that no shard can match to the first one, so that they are not lost."""
    counts = np.diff(offsets)
    lonely = np.flatnonzero(counts == 0)
    counts[lonely] = 1
    return np.append(0, np.cumsum(counts)), np.insert(shards, offsets[lonely], 0)


def match_sharded(task: MatchTask, batches: Iterable[pa.RecordBatch]) -> Batches:
    """Match messages that were sent to shards; a partition may hold several shards' messages."""
    names = messages_schema(id_type(task.output.message_ids)).names
    carried = [CARRIED + name for name in task.output.carried.names]
    output = with_key(task.output)
    for sent in batches:
        messages, notes = split_notes(sent)
        yield from output.notes(notes)
        shards = messages.column(SHARD).to_numpy()
        for shard in np.unique(shards).tolist():
            chosen = messages.filter(pa.array(shards == shard))
            engine = open_shard(task.index, task.version, shard)
            found = engine.match_batch(chosen.select(names), at=task.at)
            yield from output.deliveries(found, chosen.select([KEY, *carried]).columns)
            # The messages themselves, and their times, were counted before they were sent.
            note = note_of(found)._replace(messages=0, latest_us=None)
            yield from output.notes(notes_on([], note))
