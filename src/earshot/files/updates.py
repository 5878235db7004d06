"""Writing what matching causes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from earshot.errors import InvalidInput
from earshot.files.formats import StreamFormat, format_of, is_stream
from earshot.files.parquet import ROW_GROUP_ROWS
from earshot.files.writing import Draft, TableWriter
from earshot.model.schemas import id_kind, id_type, is_text, updates_schema

_MAX_PENDING = 2


class Updates(Protocol):
    """What a call caused, as :class:`earshot.engine.updates.Updates` has it."""

    @property
    def event_ids(self) -> pa.Array:
        """Id of each published message."""

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Updates of message i are ``[offsets[i]:offsets[i + 1]]``."""

    @property
    def subscription_ids(self) -> pa.Array:
        """Subscription of each update."""

    @property
    def scores(self) -> npt.NDArray[np.float64] | None:
        """Score of each update, where they have one."""

    def __len__(self) -> int: ...

    def table(self, columns: Sequence[str]) -> pa.Table:
        """Return one row per update."""


class UpdateWriter(Draft):
    """Writes updates in its own thread while the caller matches on.

    Those of many calls make one row group. Ids are looked up in the thread, since that takes time
    as well; where each update is a message and whom it reaches, no table is made before that.

    In Parquet, integer ids are delta-encoded: 42 M rows/s on one core at 3.2 bytes a row, against
    37 M rows/s at 16 bytes for plain values and 28 M rows/s at 5.1 bytes for LZ4 over them. String
    ids of messages are dictionaries, those of subscriptions plain under LZ4: 16 M rows/s at 6.4
    bytes, against 12 M rows/s at 3.6 bytes with Zstandard.

    Args:
        path: Where to; its name gives the format.
        message_id_type: Type of the messages' ids; None: of those that come first.
        subscription_id_type: Type of the subscriptions' ids.
        fields: Columns to write, by :func:`earshot.model.schemas.update_fields`.
        stream_format: Format of a stream, to which the updates of a call go at once.
    """

    def __init__(
        self,
        path: str | Path,
        message_id_type: pa.DataType | None,
        subscription_id_type: pa.DataType,
        fields: Sequence[str],
        stream_format: StreamFormat | None = None,
    ) -> None:
        self.path, self.fields = Path(path), tuple(fields)
        self._stream_format, self._is_stream = stream_format, is_stream(path)
        self.n_rows = 0
        self._is_ragged = {"message_id", "subscription_id", "score"}.issuperset(fields)
        self._has_dictionaries = format_of(path, stream_format) == "parquet" and self._is_ragged
        self._subscription_id_type = subscription_id_type
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="update-writer")
        self._pending: deque[Future[None]] = deque()
        self._waiting: list[Updates] = []
        self._n_waiting = 0
        self._writer: TableWriter | None = None
        if message_id_type is not None:
            self._open(message_id_type)

    def write(self, updates: Updates) -> None:
        """Append what a call caused."""
        n_rows = len(updates)
        if self._is_ragged:
            self._check(updates, n_rows)
            if self._writer is None and len(updates.event_ids):
                self._open(updates.event_ids.type)
        if not n_rows:
            return
        if self._writer is None:
            self._open(updates.table(("message_id",)).schema.field(0).type)
        self.n_rows += n_rows
        if self._is_stream:
            self._write_all([updates])
            return
        self._waiting.append(updates)
        self._n_waiting += n_rows
        if self._n_waiting >= ROW_GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        """Complete the file and give it its name."""
        try:
            if self._writer is None:
                self._open(pa.int64())
            self._flush()
            while self._pending:
                self._pending.popleft().result()
        except BaseException:
            self.discard()
            raise
        self._thread.shutdown()
        assert self._writer is not None
        self._writer.close()

    def discard(self) -> None:
        """Remove what was written."""
        self._thread.shutdown(cancel_futures=True)
        if self._writer is not None:
            self._writer.discard()

    def _open(self, message_id_type: pa.DataType) -> None:
        # A window's ids are large strings; in a file they are strings, or nothing at all.
        ids = id_type(id_kind(message_id_type) or "integer")
        schema = updates_schema(ids, self._subscription_id_type, self.fields)
        if self._has_dictionaries and is_text(ids):
            dictionary = pa.dictionary(pa.int32(), ids)
            schema = schema.set(self.fields.index("message_id"), pa.field("message_id", dictionary))
        self._schema = schema
        self._writer = TableWriter(
            self.path, schema, is_fast=self._is_ragged, stream_format=self._stream_format
        )

    def _check(self, updates: Updates, n_rows: int) -> None:
        n_messages, offsets = len(updates.event_ids), updates.offsets
        if len(offsets) != n_messages + 1 or offsets[-1] != n_rows:
            raise InvalidInput(
                f"{n_messages} message ids, {len(offsets)} offsets and {n_rows} updates do not "
                f"belong together"
            )
        n_scores = 0 if updates.scores is None else len(updates.scores)
        if n_scores != (n_rows if "score" in self.fields else 0):
            raise InvalidInput(f"{n_scores} scores for {n_rows} updates")

    def _flush(self) -> None:
        waiting, self._waiting, self._n_waiting = self._waiting, [], 0
        if not waiting:
            return
        # The caller waits when the disk is slower than the matching, so memory stays bounded.
        while len(self._pending) >= _MAX_PENDING:
            self._pending.popleft().result()
        self._pending.append(self._thread.submit(self._write_all, waiting))

    def _write_all(self, waiting: list[Updates]) -> None:
        assert self._writer is not None
        if self._is_ragged:
            table = pa.concat_tables([self._ragged_table(each) for each in waiting])
        else:
            table = pa.concat_tables([each.table(self.fields) for each in waiting])
        if self._has_dictionaries:  # each part has its own; Parquet wants one per row group
            table = table.unify_dictionaries()
        if table.schema != self._schema:
            table = table.cast(self._schema)
        self._writer.write(table)

    def _ragged_table(self, updates: Updates) -> pa.Table:
        message_ids, counts = updates.event_ids, np.diff(updates.offsets)
        messages: pa.Array
        if pa.types.is_integer(message_ids.type):
            values = message_ids.to_numpy(zero_copy_only=False)
            messages = pa.array(np.repeat(values, counts), pa.int64())
        else:
            positions = np.repeat(np.arange(len(message_ids), dtype=np.int32), counts)
            messages = pa.DictionaryArray.from_arrays(positions, message_ids)
        subscriptions = updates.subscription_ids
        if len(subscriptions) != len(messages):
            raise InvalidInput(f"{len(subscriptions)} subscription ids for {len(messages)} updates")
        columns = {"message_id": messages, "subscription_id": subscriptions}
        if updates.scores is not None:
            columns["score"] = pa.array(updates.scores)
        return pa.table([columns[name] for name in self.fields], names=self.fields)
