"""The journal: what happened to an engine since it was saved.

An engine that is opened with a journal writes every call that changes it to a file beside the saved
state, and has it on disk before the call returns. After a crash the saved state and the journal
give the engine as it was after its last call. Saving the engine where it came from begins a new
journal.

A record is a header, and an Arrow stream with the rows of the call. Opening makes the same calls
again, in the same order. Words are numbered in the order in which they came, and scores are sums in
that order. So calls that were refused are noted as well, where they left words in the vocabulary,
and when it is that words leave it.

A record that was not written to its end is dropped, with what follows: none of those calls
returned. A damaged record that was on disk for certain, as a later one says, is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import struct
import threading
import typing
import weakref
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from earshot import storage
from earshot.engine.changes import Rejecting
from earshot.errors import InvalidInput, InvalidParameter, SavedIndexError
from earshot.model.batches import instant
from earshot.model.schemas import COLUMN_TYPES, id_kind

Kind: TypeAlias = Literal[
    "subscribe", "unsubscribe", "move", "publish", "learn", "advance", "reweigh", "rebuild",
    "give_safe_regions", "name_outdated",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)

_MAGIC = b"EVNT"
# Magic, kind, flags, number of the record, how many before it are on disk for certain, argument,
# bytes of rows, checksum of all else.
_HEADER = struct.Struct("<4sBBxxQQqQQ")
_CHECKSUM_BYTES = 8
_CLEAN, _REJECTS = 1, 2
_ALIGNMENT = 8
_MERGED_ROWS = 200_000
_MERGED_BYTES = 1 << 28


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

    Attributes:
        state: Name of the saved state that the records follow.
    """

    def __init__(self, directory: Path, sync_every: timedelta | None = None) -> None:
        self.directory = directory
        self.state = ""
        self._lock = storage.lock_journal(directory)
        self._process = os.getpid()
        self._file: io.FileIO | None = None
        self._n_records = self._n_synced = 0  # in the file
        self._error: SavedIndexError | None = None  # after which nothing is certain
        self._syncing = threading.Lock()
        self._sync_every = sync_every
        self._is_closed = threading.Event()
        if sync_every is not None:
            own = weakref.ref(self)  # so that a forgotten journal ends
            arguments = (own, self._is_closed, sync_every.total_seconds())
            threading.Thread(target=_sync_now_and_then, args=arguments, daemon=True).start()

    def follow(self, state: str) -> Iterator[Record]:
        """Go on in the file of a saved state; yield what is in it.

        What is not whole at its end is dropped. What went to another file before is in that state.
        """
        path = storage.journal_path(self.directory, state)
        with self._syncing:
            if self._file is not None:
                self._file.close()
            self._file = path.open("ab", buffering=0)
            self._n_records = self._n_synced = 0
        end = n = 0
        for record, ends_at in _read(path):
            end, n = ends_at, n + 1
            yield record
        self._file.truncate(end)
        os.fsync(self._file.fileno())
        storage.sync(self.directory)
        self._n_records = self._n_synced = n
        self.state = state

    def append(self, record: Record) -> None:
        """Write a record; it is on disk after the next :meth:`commit`."""
        assert self._file is not None
        if os.getpid() != self._process:
            raise SavedIndexError(
                f"the journal in {self.directory} is that of another process, which this one was "
                f"forked from; open the directory anew"
            )
        rows = b"" if record.rows is None else _stream_of(record.rows)
        flags = _CLEAN * record.is_clean | _REJECTS * record.rejects
        numbers = (self._n_records, self._n_synced, record.argument, len(rows), 0)
        header = _HEADER.pack(_MAGIC, KINDS.index(record.kind), flags, *numbers)
        header = header[:-_CHECKSUM_BYTES]
        checksum = _checksum(header, rows).to_bytes(_CHECKSUM_BYTES, "little")
        content = memoryview(b"".join((header, checksum, rows, bytes(-len(rows) % _ALIGNMENT))))
        with self._failing("cannot be written"):
            while content:
                content = content[self._file.write(content) :]
        self._n_records += 1

    def commit(self) -> None:
        """Have all records on disk that were appended before, unless that is done now and then."""
        if self._sync_every is None:
            self.sync()
        elif self._error is not None:
            raise self._error

    def sync(self) -> None:
        """Have all records on disk that were appended before."""
        wanted = self._n_records
        if self._n_synced >= wanted and self._error is None:
            return
        with self._syncing:
            if self._file is None or self._file.closed:
                return
            with self._failing("may not be on disk"):
                if self._n_synced < wanted:  # else another thread has done it for this one
                    n_records = self._n_records
                    os.fdatasync(self._file.fileno())
                    self._n_synced = n_records

    def close(self) -> None:
        """Have everything on disk, and let others have the directory."""
        self._is_closed.set()
        try:
            self.sync()
        finally:
            with self._syncing:
                if self._file is not None:
                    self._file.close()
                if os.getpid() == self._process:
                    fcntl.flock(self._lock, fcntl.LOCK_UN)
                self._lock.close()

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Remember what went wrong: a system reports it once, and says that all is well then."""
        if self._error is not None:
            raise self._error
        try:
            yield
        except OSError as error:
            self._error = SavedIndexError(
                f"the journal in {self.directory} {what}: {error.strerror or error}"
            )
            raise self._error from error


def _sync_now_and_then(
    own: weakref.ref[Journal], is_closed: threading.Event, seconds: float
) -> None:
    while not is_closed.wait(seconds):
        journal = own()
        if journal is None:
            return
        with contextlib.suppress(SavedIndexError):  # which the next call says
            journal.sync()
        del journal


def new_journal(directory: Path, wanted: bool | timedelta) -> Journal | None:
    """Return the journal that the option of an engine asks for, if any."""
    if isinstance(wanted, bool):
        return Journal(directory) if wanted else None
    if not isinstance(wanted, timedelta) or wanted <= timedelta(0):
        raise InvalidParameter(
            f"journal is {wanted!r}; expected True, False, or a timedelta greater than 0"
        )
    return Journal(directory, wanted)


def rows_of(batch: pa.RecordBatch | pa.Table) -> pa.Table:
    """Return the columns of a batch that engines read, with ids of one type."""
    names = batch.schema.names
    chosen = [at for at, name in enumerate(names) if name == "id" or name in COLUMN_TYPES]
    table = pa.table(batch) if isinstance(batch, pa.RecordBatch) else batch
    table = table.select(chosen)
    kind = pa.int64() if id_kind(table.schema.field("id").type) == "integer" else pa.large_string()
    return table.set_column(table.schema.get_field_index("id"), "id", table["id"].cast(kind))


def read_records(directory: Path, state: str) -> Iterator[Record]:
    """Yield the records that follow a saved state, which another engine may be writing."""
    for record, _ in _read(storage.journal_path(directory, state)):
        yield record


def merged(records: Iterator[Record]) -> Iterator[Record]:
    """Yield records with the same effect, of which neighbours are put together where that may be.

    Different subscriptions do not depend on each other.
    """
    for _, group in groupby(_numbered(records), key=lambda pair: pair[0]):
        yield from _joined([record for _, record in group])


def _joined(neighbours: list[Record]) -> Iterator[Record]:
    """Yield what ends, what begins, and what of that ends, as a record each; else by halves."""
    if len(neighbours) == 1:
        yield neighbours[0]
        return
    tables = [each.rows for each in neighbours]
    if neighbours[0].kind == "publish":
        yield neighbours[0]._replace(rows=pa.concat_tables(tables))
        return
    n_rows = [len(rows) for rows in tables]
    numbers = np.repeat(np.arange(len(neighbours)), n_rows)  # record that each row is in
    is_end = np.repeat([each.kind == "unsubscribe" for each in neighbours], n_rows)
    ids = pa.chunked_array([chunk for rows in tables for chunk in rows["id"].chunks])
    begun, ended = (ids.filter(pa.array(rows)) for rows in (~is_end, is_end))
    if len(pc.unique(begun)) < len(begun):
        middle = len(neighbours) // 2
        yield from _joined(neighbours[:middle])
        yield from _joined(neighbours[middle:])
        return
    begins_at = pc.index_in(ended, value_set=begun).fill_null(len(begun)).to_numpy()
    is_late = np.append(numbers[~is_end], len(neighbours))[begins_at] < numbers[is_end]
    begins = [each for each in neighbours if each.kind != "unsubscribe"]
    ends = [each for each in neighbours if each.kind == "unsubscribe"]
    early, late = (ended.filter(pa.array(rows)) for rows in (~is_late, is_late))
    if len(early):
        yield ends[0]._replace(rows=pa.table({"id": early}))
    if begins:
        rows = pa.concat_tables([each.rows for each in begins])
        yield begins[0]._replace(rows=rows)
    if len(late):
        yield ends[0]._replace(rows=pa.table({"id": late}))


def _numbered(records: Iterator[Record]) -> Iterator[tuple[int, Record]]:
    """Yield records with numbers, which are equal for neighbours that may go together."""
    number = n_rows = n_bytes = 0
    schemas: dict[Kind, pa.Schema] = {}
    id_type = None
    for record in records:
        may_join = record.is_clean and record.kind in ("subscribe", "unsubscribe", "publish")
        # Words of texts are numbered before keywords, batch by batch.
        if record.kind == "publish" and {"text", "keywords"}.issubset(record.rows.schema.names):
            may_join = False
        fits = (
            may_join
            and n_rows + record.rows.num_rows <= _MERGED_ROWS
            and n_bytes + record.rows.nbytes <= _MERGED_BYTES
            and schemas.get(record.kind, record.rows.schema) == record.rows.schema
            and (record.kind == "publish") == ("publish" in schemas)
            # Those of either kind never live together: some end before others begin.
            and id_type == record.rows.schema.field("id").type
        )
        if not fits or not schemas:
            number += 1
            n_rows = n_bytes = 0
            schemas = {}
        if may_join:
            id_type = record.rows.schema.field("id").type
            n_rows += record.rows.num_rows
            n_bytes += record.rows.nbytes
            schemas[record.kind] = record.rows.schema
        yield number, record


def _stream_of(rows: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return sink.getvalue()


def _checksum(header: bytes, rows: Any) -> int:
    digest = xxhash.xxh3_64(header)
    digest.update(rows)
    return digest.intdigest()


def _read(path: Path) -> Iterator[tuple[Record, int]]:
    """Yield each record and where it ends, up to one that is not whole."""
    try:
        content = path.read_bytes()  # not mapped: its writer may cut it off
    except FileNotFoundError:
        return
    at = number = 0
    while (found := _record_at(content, at)) is not None and found.number == number:
        yield found.record, found.end
        at, number = found.end, number + 1
    for later in _records_after(content, at):
        if later.n_synced > number:
            raise SavedIndexError(
                f"{path} is damaged at byte {at}, in record {number}, which was on disk before "
                f"later ones came: this is not what a crash leaves. Restore it from a copy"
            )


class _Found(NamedTuple):
    record: Record
    number: int
    n_synced: int
    end: int


def _record_at(content: bytes, at: int) -> _Found | None:
    """Return the record that begins at a byte, if there is a whole one."""
    start = at + _HEADER.size
    if start > len(content):
        return None
    header = content[at:start]
    magic, kind, flags, number, n_synced, argument, n_bytes, checksum = _HEADER.unpack(header)
    end = start + n_bytes
    if magic != _MAGIC or kind >= len(KINDS) or end > len(content):
        return None
    rows = memoryview(content)[start:end]
    if _checksum(header[:-_CHECKSUM_BYTES], rows) != checksum:
        return None
    table = pa.ipc.open_stream(pa.py_buffer(rows)).read_all() if n_bytes else None
    record = Record(KINDS[kind], table, argument, bool(flags & _CLEAN), bool(flags & _REJECTS))
    return _Found(record, number, n_synced, end + -n_bytes % _ALIGNMENT)


def _records_after(content: bytes, at: int) -> Iterator[_Found]:
    """Yield the whole records that begin at a byte or later."""
    at -= 1
    while (at := content.find(_MAGIC, at + 1)) >= 0:
        found = _record_at(content, at) if at % _ALIGNMENT == 0 else None
        if found is not None:
            yield found


# ---- again --------------------------------------------------------------------------------------


class Replayable(typing.Protocol):
    """What records can be played to: an engine."""

    def subscribe_batch(self, batch: pa.Table, *, on_error: Any) -> Rejecting: ...  # noqa: D102
    def unsubscribe_batch(self, ids: pa.Array, *, on_error: Any) -> Rejecting: ...  # noqa: D102
    def move_batch(self, batch: pa.Table, *, on_error: Any) -> Rejecting: ...  # noqa: D102
    def publish_batch(self, batch: pa.Table, *, on_error: Any) -> Rejecting: ...  # noqa: D102
    def learn(self, batch: pa.Table, *, on_error: Any) -> Rejecting: ...  # noqa: D102
    def advance(self, time: datetime) -> Rejecting: ...  # noqa: D102
    def reweigh(self, *, forget: bool) -> Rejecting: ...  # noqa: D102
    def rebuild(self) -> None: ...  # noqa: D102
    def _give_again(self, given: pa.Table) -> None: ...
    def outdated_safe_regions(self) -> object: ...  # noqa: D102


def replay(engine: Replayable, records: Iterator[Record]) -> None:
    """Make the calls of a journal again."""
    for kind, rows, argument, is_clean, rejects in merged(records):
        on_error = "reject" if is_clean or rejects else "raise"
        try:
            match kind:
                case "subscribe":
                    found = engine.subscribe_batch(rows, on_error=on_error)
                case "unsubscribe":
                    ids = rows.column("id").combine_chunks()
                    found = engine.unsubscribe_batch(ids, on_error=on_error)
                case "move":
                    found = engine.move_batch(rows, on_error=on_error)
                case "publish":
                    found = engine.publish_batch(rows, on_error=on_error)
                case "learn":
                    found = engine.learn(rows, on_error=on_error)
                case "advance":
                    found = engine.advance(instant(argument))
                case "reweigh":
                    found = engine.reweigh(forget=bool(argument))
                case "rebuild":
                    engine.rebuild()
                    continue
                case "give_safe_regions":
                    engine._give_again(rows)
                    continue
                case "name_outdated":
                    engine.outdated_safe_regions()
                    continue
        except InvalidInput:
            if is_clean or rejects:
                raise
            continue  # it was refused then, too
        if is_clean and found.rejects:
            raise SavedIndexError(
                f"the journal does not follow the saved state: {found.rejects[0]}"
            )
