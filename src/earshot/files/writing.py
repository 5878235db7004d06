"""Writing tables: updates, rejects, results, subscriptions and messages.

A file is written under a temporary name beside its place and renamed when it is complete, so a file
that has its final name is whole. The format follows from the name.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, Self

import pyarrow as pa

from earshot.errors import InvalidFile
from earshot.files.csv import CsvSink
from earshot.files.formats import compression_of, format_of
from earshot.files.geojson import GeoJsonSink
from earshot.files.ndjson import NdjsonSink
from earshot.files.parquet import ParquetSink


class _Sink(Protocol):
    def write(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


_TEXT_SINKS: dict[str, Callable[[str, pa.Schema, str | None], _Sink]] = {
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
    """Writes batches of one schema to a file.

    Args:
        path: Where to; its name gives the format.
        schema: Columns of the batches.
        is_fast: In Parquet, favour speed over size: strings plain (unless they come as
            dictionaries) under LZ4, and statistics for the first column only.
    """

    def __init__(self, path: str | Path, schema: pa.Schema, *, is_fast: bool = False) -> None:
        self.path = Path(path)
        file_format = format_of(path)
        self._draft = self.path.with_name(f".{self.path.name}.{os.getpid()}.draft")
        with self._writing():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            target = str(self._draft)
            if file_format == "parquet":
                is_geo = self.path.suffix.lower() == ".geoparquet"
                self._sink: _Sink = ParquetSink(target, schema, is_geo, is_fast)
            else:
                self._sink = _TEXT_SINKS[file_format](target, schema, compression_of(path))

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Append the rows of a batch."""
        table = pa.table(batch) if isinstance(batch, pa.RecordBatch) else batch
        with self._writing():
            self._sink.write(table)

    def close(self) -> None:
        """Complete the file and give it its name."""
        with self._writing():
            self._sink.close()
            self._draft.replace(self.path)

    def discard(self) -> None:
        """Remove what was written."""
        try:
            self._sink.close()
        finally:
            self._draft.unlink(missing_ok=True)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InvalidFile(f"{self.path} cannot be written: {error}") from error


def write_table(path: str | Path, table: pa.Table | pa.RecordBatch) -> None:
    """Write a table of subscriptions, messages, updates or rejects; columns of nulls are left out.

    In GeoJSON, and in Parquet named ``.geoparquet``, regions and places become geometries; a circle
    is a point with a ``radius``.
    """
    table = pa.table(table) if isinstance(table, pa.RecordBatch) else table
    if len(table):
        empty = [name for name in table.column_names if table[name].null_count == len(table)]
        table = table.drop_columns(empty)
    with TableWriter(path, table.schema) as writer:
        writer.write(table)
