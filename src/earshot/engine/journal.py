"""The journal: what happened to an engine since it was saved.

An engine that is opened with a journal writes every call that changes it to a file beside the saved
state, and has it on disk before the call returns. After a crash the saved state and the journal
give the engine as it was after its last call. Saving the engine where it came from begins a new
journal.

A record is a header, and an Arrow stream with the rows of the call. Opening makes the same calls
again, in the same order. So calls that were refused are noted as well, where they left words in the
vocabulary: words are numbered in the order in which they came, and scores are sums in that order.

A record that was not written to its end is the last one, and is dropped: its call never returned.
Where others follow a damaged one, the journal is refused.
"""

from __future__ import annotations

import os
import struct
import threading
import typing
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from earshot import storage
from earshot.errors import InvalidInput, SavedIndexError
from earshot.model.batches import instant

Kind: TypeAlias = Literal[
    "subscribe", "unsubscribe", "move", "publish", "learn", "advance", "reweigh"
]
KINDS: tuple[Kind, ...] = get_args(Kind)

_MAGIC = b"EVNT"
# Magic, kind, flags, number of the record, argument, bytes of rows, checksum of all else.
_HEADER = struct.Struct("<4sBBxxQqQQ")
_CHECKSUM_BYTES = 8
_CLEAN, _REJECTS = 1, 2
_ALIGNMENT = 8
_MERGED_ROWS = 200_000


class Record(NamedTuple):
    """A call that changed an engine, or may have."""

    kind: Kind
    rows: Any = None  # a table, for a batch
    argument: int = 0  # clock of "advance" in microseconds; whether "reweigh" forgets
    is_clean: bool = True  # whether all rows were taken
    rejects: bool = False  # whether wrong rows were rejected, else raised


class Journal:
    """Appends records to the file beside a saved state, for one process at a time.

    Args:
        directory: Where the state is saved; others can neither save there nor keep a journal.
        sync_every: How often records go to disk. By default before the call returns that they are
            of; all that come together, from several threads, go at once.
    """

    def __init__(self, directory: Path, sync_every: timedelta | None = None) -> None:
        self.directory = directory
        self._lock = storage.lock_journal(directory)
        self._file: typing.BinaryIO | None = None
        self._n_records = 0  # in the file
        self._n_written = self._n_synced = 0  # by this object
        self._syncing = threading.Lock()
        self._sync_every = sync_every
        self._is_closed = threading.Event()
        if sync_every is not None:
            threading.Thread(target=self._sync_now_and_then, daemon=True).start()

    def follow(self, state: str) -> Iterator[Record]:
        """Go on in the file of a saved state; yield what is in it.

        A last record that is not whole is dropped. What went to another file before is in that
        state.
        """
        path = storage.journal_path(self.directory, state)
        with self._syncing:
            if self._file is not None:
                self._file.close()
            self._file = path.open("ab")
            self._n_records, self._n_synced = 0, self._n_written
        end = 0
        for record, ends_at in _read(path):
            end = ends_at
            self._n_records += 1
            yield record
        self._file.truncate(end)
        os.fsync(self._file.fileno())
        storage.sync(self.directory)

    def append(self, record: Record) -> None:
        """Write a record; it is on disk after the next :meth:`commit`."""
        assert self._file is not None
        rows = b"" if record.rows is None else _stream_of(record.rows)
        flags = _CLEAN * record.is_clean | _REJECTS * record.rejects
        facts = (_MAGIC, KINDS.index(record.kind), flags, self._n_records, record.argument)
        header = _HEADER.pack(*facts, len(rows), 0)[:-_CHECKSUM_BYTES]
        checksum = _checksum(header, rows).to_bytes(_CHECKSUM_BYTES, "little")
        try:
            self._file.write(b"".join((header, checksum, rows, bytes(-len(rows) % _ALIGNMENT))))
            self._file.flush()
        except OSError as error:
            raise SavedIndexError(
                f"the journal in {self.directory} cannot be written: {error.strerror or error}"
            ) from error
        self._n_records += 1
        self._n_written += 1

    def commit(self) -> None:
        """Have all records on disk that were appended before, unless that is done now and then."""
        if self._sync_every is None:
            self._sync()

    def close(self) -> None:
        """Have everything on disk, and let others have the directory."""
        self._is_closed.set()
        try:
            self._sync()
        finally:
            with self._syncing:
                if self._file is not None:
                    self._file.close()
                self._lock.close()

    def _sync(self) -> None:
        wanted = self._n_written
        if self._n_synced >= wanted:
            return
        with self._syncing:
            # Another thread may have done it for this one.
            if self._n_synced >= wanted or self._file is None or self._file.closed:
                return
            n_written = self._n_written
            try:
                os.fdatasync(self._file.fileno())
            except OSError as error:
                raise SavedIndexError(
                    f"the journal in {self.directory} may not be on disk: {error.strerror or error}"
                ) from error
            self._n_synced = n_written

    def _sync_now_and_then(self) -> None:
        assert self._sync_every is not None
        while not self._is_closed.wait(self._sync_every.total_seconds()):
            self._sync()


def read_records(directory: Path, state: str) -> Iterator[Record]:
    """Yield the records that follow a saved state, which another engine may be writing."""
    for record, _ in _read(storage.journal_path(directory, state)):
        yield record


def merged(records: Iterator[Record]) -> Iterator[Record]:
    """Yield records with the same effect, of which neighbours are put together where that may be.

    Subscriptions that begin and others that end do not depend on each other.
    """
    for _, group in groupby(_numbered(records), key=lambda pair: pair[0]):
        yield from _joined([record for _, record in group])


def _joined(neighbours: list[Record]) -> Iterator[Record]:
    """Yield one record for those that begin and one for those that end; else do so by halves."""
    ends = [each for each in neighbours if each.kind == "unsubscribe"]
    others = [each for each in neighbours if each.kind != "unsubscribe"]
    if ends and others:
        columns = [each.rows.column("id") for each in neighbours]
        ids = pa.chunked_array([chunk for column in columns for chunk in column.chunks])
        if len(pc.unique(ids)) < len(ids):
            middle = len(neighbours) // 2
            yield from _joined(neighbours[:middle])
            yield from _joined(neighbours[middle:])
            return
    for part in (ends, others):
        if len(part) > 1:
            yield part[0]._replace(rows=pa.concat_tables([each.rows for each in part]))
        else:
            yield from part


def _numbered(records: Iterator[Record]) -> Iterator[tuple[int, Record]]:
    """Yield records with numbers, which are equal for neighbours that may go together."""
    number = n_rows = 0
    schemas: dict[Kind, pa.Schema] = {}
    for record in records:
        may_join = record.is_clean and record.kind in ("subscribe", "unsubscribe", "publish")
        fits = (
            may_join
            and n_rows + record.rows.num_rows <= _MERGED_ROWS
            and schemas.get(record.kind, record.rows.schema) == record.rows.schema
            and (record.kind == "publish") == ("publish" in schemas)
        )
        if not fits or not schemas:
            number += 1
            n_rows, schemas = 0, {}
        if may_join:
            n_rows += record.rows.num_rows
            schemas[record.kind] = record.rows.schema
        yield number, record


def _stream_of(rows: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return sink.getvalue()


def _checksum(header: bytes, rows: bytes | pa.Buffer) -> int:
    digest = xxhash.xxh3_64(header)
    digest.update(rows)
    return digest.intdigest()


def _read(path: Path) -> Iterator[tuple[Record, int]]:
    """Yield each whole record and where it ends; the last may be torn, none before it."""
    try:
        content = pa.memory_map(str(path)).read_buffer() if path.stat().st_size else b""
    except FileNotFoundError:
        return
    content = pa.py_buffer(content)
    at = number = 0
    while at < content.size:
        found = _record_at(content, at)
        if found is None or found[1] != number:
            later = _next_record(content, at + _ALIGNMENT)
            if found is None and later is None:
                return
            raise SavedIndexError(
                f"{path} is damaged at byte {at}, in record {number}; records follow it, so "
                f"it is not what a crash left. Restore it from a copy"
            )
        record, _, at = found
        number += 1
        yield record, at


def _record_at(content: pa.Buffer, at: int) -> tuple[Record, int, int] | None:
    """Return the record that begins at a byte, its number and its end, if there is a whole one."""
    start = at + _HEADER.size
    if start > content.size:
        return None
    header = content[at:start].to_pybytes()
    magic, kind, flags, number, argument, n_bytes, checksum = _HEADER.unpack(header)
    end = start + n_bytes
    if magic != _MAGIC or kind >= len(KINDS) or end > content.size:
        return None
    rows = content[start:end]
    if _checksum(header[:-_CHECKSUM_BYTES], rows) != checksum:
        return None
    table = pa.ipc.open_stream(rows).read_all() if n_bytes else None
    record = Record(KINDS[kind], table, argument, bool(flags & _CLEAN), bool(flags & _REJECTS))
    return record, number, end + -n_bytes % _ALIGNMENT


def _next_record(content: pa.Buffer, at: int) -> int | None:
    """Return where the next whole record begins."""
    view = memoryview(content)
    for start in range(at, content.size - _HEADER.size + 1, _ALIGNMENT):
        if view[start : start + 4] == _MAGIC and _record_at(content, start) is not None:
            return start
    return None


# ---- again --------------------------------------------------------------------------------------


class Replayable(typing.Protocol):
    """What records can be played to: an engine."""

    def subscribe_batch(self, batch: pa.Table, *, on_error: Any) -> object: ...  # noqa: D102
    def unsubscribe_batch(self, ids: pa.Array) -> object: ...  # noqa: D102
    def move_batch(self, batch: pa.Table, *, on_error: Any) -> object: ...  # noqa: D102
    def publish_batch(self, batch: pa.Table, *, on_error: Any) -> object: ...  # noqa: D102
    def learn(self, batch: pa.Table, *, on_error: Any) -> object: ...  # noqa: D102
    def advance(self, time: datetime) -> object: ...  # noqa: D102
    def reweigh(self, *, forget: bool) -> object: ...  # noqa: D102


def replay(engine: Replayable, records: Iterator[Record]) -> None:
    """Make the calls of a journal again."""
    for kind, rows, argument, _, rejects in merged(records):
        on_error = "reject" if rejects else "raise"
        try:
            match kind:
                case "subscribe":
                    engine.subscribe_batch(rows, on_error=on_error)
                case "unsubscribe":
                    engine.unsubscribe_batch(rows.column("id").combine_chunks())
                case "move":
                    engine.move_batch(rows, on_error=on_error)
                case "publish":
                    engine.publish_batch(rows, on_error=on_error)
                case "learn":
                    engine.learn(rows, on_error=on_error)
                case "advance":
                    engine.advance(instant(argument))
                case "reweigh":
                    engine.reweigh(forget=bool(argument))
        except InvalidInput:
            continue  # as it was then
