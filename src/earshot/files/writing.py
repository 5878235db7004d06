"""Writing tables: updates, rejects, results, subscriptions and messages.

A file is written under a temporary name beside its place and renamed when it is complete, so a file
that has its final name is whole, and an interrupted run leaves the old one as it was. Streams are
written to as they are. The format follows from the name.
"""

from __future__ import annotations

import fcntl
import glob
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, Self

import pyarrow as pa

from earshot.errors import InvalidFile
from earshot.files.csv import CsvSink
from earshot.files.formats import (
    OutputStream,
    StreamFormat,
    compression_of,
    format_of,
    is_stream,
)
from earshot.files.geojson import GeoJsonSink
from earshot.files.ndjson import NdjsonSink
from earshot.files.parquet import ParquetSink


class _Sink(Protocol):
    def write(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


_TEXT_SINKS: dict[str, Callable[[Any, pa.Schema, str | None], _Sink]] = {
    "csv": CsvSink, "geojson": GeoJsonSink, "json": NdjsonSink, "ndjson": NdjsonSink,
}  # fmt: skip


class Draft(ABC):
    """Something that ``close`` completes and ``discard`` removes; a context manager.

    Leaving the ``with`` block by an exception removes what was written.
    """

    @abstractmethod
    def close(self) -> None:
        """Complete it."""

    @abstractmethod
    def discard(self) -> None:
        """Remove what was written."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


class TableWriter(Draft):
    """Writes batches of one schema to a file, or to a stream as they come.

    Args:
        path: Where to; its name gives the format.
        schema: Columns of the batches.
        is_fast: In Parquet, favour speed over size: strings plain (unless they come as
            dictionaries) under LZ4, and statistics for the first column only.
        stream_format: Format of standard output (``-``) or of a named pipe.
    """

    def __init__(
        self,
        path: str | Path,
        schema: pa.Schema,
        *,
        is_fast: bool = False,
        stream_format: StreamFormat | None = None,
    ) -> None:
        file_format = format_of(path, stream_format)
        self._is_stream = is_stream(path)
        self.path = Path(path)
        self._place = self.path.resolve()  # of a link, the file that it leads to; the link stays
        self._draft = self._place.with_name(f".{self._place.name}.{secrets.token_hex(8)}.draft")
        self._lock: int | None = None
        target: Any = None
        with self._writing():
            if self._is_stream:
                target = OutputStream(path)
            else:
                self._place.parent.mkdir(parents=True, exist_ok=True)
                self._take_draft()
                target = str(self._draft)
            try:
                if file_format == "parquet":
                    is_geo = self.path.suffix.lower() == ".geoparquet"
                    self._sink: _Sink = ParquetSink(target, schema, is_geo, is_fast)
                else:
                    self._sink = _TEXT_SINKS[file_format](target, schema, compression_of(path))
            except BaseException:
                self._let_go(remove=True)
                raise

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Append the rows of a batch."""
        table = pa.table(batch) if isinstance(batch, pa.RecordBatch) else batch
        with self._writing():
            self._sink.write(table)

    def close(self) -> None:
        """Complete the file and give it its name."""
        try:
            with self._writing():
                self._sink.close()
                if not self._is_stream:
                    self._draft.replace(self._place)
        except BaseException:
            self._let_go(remove=True)
            raise
        self._let_go()

    def discard(self) -> None:
        """Remove what was written; what went to a stream is gone."""
        if not self._is_stream:
            with suppress(OSError, pa.ArrowException):  # something else has gone wrong already
                self._sink.close()
            self._let_go(remove=True)

    def _take_draft(self) -> None:
        """Lock the draft, and remove those that nobody holds: their processes were killed."""
        for other in self._place.parent.glob(f".{glob.escape(self._place.name)}.*.draft"):
            with suppress(OSError), other.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                other.unlink()
        while True:
            self._lock = os.open(self._draft, os.O_RDWR | os.O_CREAT, 0o666)
            with suppress(OSError):  # not every file system can
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            if self._draft.exists():
                return
            os.close(self._lock)  # another process has taken it for one that nobody holds

    def _let_go(self, *, remove: bool = False) -> None:
        if self._lock is not None:
            if remove:
                self._draft.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:  # whoever reads the stream wants no more of it
            raise
        except (OSError, pa.ArrowException) as error:
            reason = getattr(error, "strerror", None) or error
            raise InvalidFile(f"{self.path} cannot be written: {reason}") from error


def check_place(path: str | Path | None) -> None:
    """Raise where a file cannot be written, before the work for it begins."""
    if path is None or is_stream(path):
        return
    format_of(path)
    path = Path(path)
    if path.is_dir():
        raise InvalidFile(f"{path} is a directory; expected the name of a file")
    parent = next(each for each in path.absolute().parents if each.exists())
    if not parent.is_dir():
        raise InvalidFile(f"{path} cannot be written: {parent} is not a directory")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InvalidFile(f"{path} cannot be written: this user may not write to {parent}")


def write_table(
    path: str | Path,
    table: pa.Table | pa.RecordBatch,
    *,
    stream_format: StreamFormat | None = None,
) -> None:
    """Write a table of subscriptions, messages, updates or rejects; columns of nulls are left out.

    In GeoJSON, and in Parquet named ``.geoparquet``, regions and places become geometries; a circle
    is a point with a ``radius``.
    """
    table = pa.table(table) if isinstance(table, pa.RecordBatch) else table
    if len(table):
        empty = [name for name in table.column_names if table[name].null_count == len(table)]
        table = table.drop_columns(empty)
    with TableWriter(path, table.schema, stream_format=stream_format) as writer:
        writer.write(table)
