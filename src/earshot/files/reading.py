"""Reading subscriptions, messages and changes from files of any known format."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypedDict, Unpack

from earshot.errors import InvalidFile, InvalidParameter
from earshot.files.batches import FileBatch
from earshot.files.csv import Dialect, read_csv
from earshot.files.formats import STANDARD, Format, StreamFormat, format_of, is_stream, open_bytes
from earshot.files.geojson import read_geojson
from earshot.files.layout import PlaceKind, make_layout
from earshot.files.ndjson import read_ndjson
from earshot.files.parquet import read_parquet
from earshot.files.rejects import OnError, check_on_error
from earshot.model.arrays import Space
from earshot.model.schemas import Content, IdKind

BATCH_ROWS = 1 << 16


class ReadOptions(TypedDict, total=False):
    """How a file is read; see :func:`read_rows`."""

    columns: Mapping[str, str] | None
    space: Space
    ids: IdKind | None
    on_error: OnError
    batch_rows: int
    place: PlaceKind | None
    delimiter: str
    encoding: str
    stream_format: StreamFormat | None


def read_subscriptions(path: str | Path, **options: Unpack[ReadOptions]) -> Iterator[FileBatch]:
    """Yield the subscriptions of a file in batches; the options are those of ``read_rows``."""
    return read_rows("subscriptions", path, **options)


def read_messages(path: str | Path, **options: Unpack[ReadOptions]) -> Iterator[FileBatch]:
    """Yield the messages of a file in batches; the options are those of ``read_rows``."""
    return read_rows("messages", path, **options)


def read_changes(path: str | Path, **options: Unpack[ReadOptions]) -> Iterator[FileBatch]:
    """Yield the changes of a file in batches; the options are those of ``read_rows``.

    Each row says in its column ``op`` what happens: ``subscribe``, ``unsubscribe`` or ``move``.
    """
    return read_rows("changes", path, **options)


def read_positions(path: str | Path, **options: Unpack[ReadOptions]) -> Iterator[FileBatch]:
    """Yield the positions of a file in batches; the options are those of ``read_rows``.

    Each row says where a moving subscriber was, and when.
    """
    return read_rows("positions", path, **options)


def read_rows(
    content: Content,
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    space: Space = "lonlat",
    ids: IdKind | None = None,
    on_error: OnError = "raise",
    batch_rows: int = BATCH_ROWS,
    place: PlaceKind | None = None,
    delimiter: str = ",",
    encoding: str = "utf-8",
    stream_format: StreamFormat | None = None,
) -> Iterator[FileBatch]:
    """Yield the rows of a file in batches with canonical columns.

    Args:
        content: Whether they are ``subscriptions``, ``messages``, ``changes`` or ``positions``.
        path: A ``.parquet``, ``.ndjson``, ``.jsonl``, ``.json``, ``.geojson`` or ``.csv`` file; or
            ``-``, standard input, whose rows are yielded as they come.
        columns: Names of the file's columns by field, where they differ: ``{"id": "key"}``.
        space: ``lonlat`` refuses files in another coordinate system.
        ids: Whether ids are integers or strings; by default as the first ones look.
        on_error: ``raise`` the first bad row, or ``reject`` bad rows into the batches' ``rejects``.
        batch_rows: Most rows per batch of Parquet and GeoJSON; the others are read by blocks.
        place: Which place counts where a message has a ``point`` and a ``box``; ``box`` also reads
            a polygon as the box around it. By default such messages are refused.
        delimiter: Character between the values of CSV.
        encoding: Encoding of CSV, such as ``latin-1``.
        stream_format: Format of standard input, and of a named pipe; by default NDJSON, and what
            the name of a pipe says.

    Raises:
        InvalidRow: A row is wrong and ``on_error`` is ``raise``.
        InvalidFile: The file as a whole is.
    """
    check_on_error(on_error)
    if batch_rows < 1:
        raise InvalidParameter(f"batch_rows is {batch_rows}; expected at least 1")
    source = "standard input" if str(path) == STANDARD else str(path)
    layout = make_layout(content, columns, source, on_error, space, place)
    dialect = Dialect(delimiter, encoding)
    dialect.check()
    if not is_stream(path):
        check_readable(path)
    path, file_format = str(path), format_of(path, stream_format)
    if file_format == "json":
        file_format = _json_format(path)
    if file_format == "parquet":
        return read_parquet(path, layout, ids, batch_rows)
    if file_format == "csv":
        return read_csv(path, layout, ids, dialect)
    if file_format == "geojson":
        return read_geojson(path, layout, ids, batch_rows)
    return read_ndjson(path, layout, ids)


def check_readable(path: str | Path) -> None:
    """Raise InvalidFile where there is no file, or one that may not be read."""
    path = Path(path)
    if path.is_dir():
        raise InvalidFile(f"{path} is a directory; expected a file")
    if not path.exists():
        raise InvalidFile(f"{path} does not exist")
    if not os.access(path, os.R_OK):
        raise InvalidFile(f"{path} may not be read by this user; change its permissions")


def _json_format(path: str) -> Format:
    """Tell lines of JSON from one JSON value: does the first line end where its object does?"""
    with open_bytes(path) as stream:
        head: bytes = stream.read(1 << 16)
    line = head.lstrip(b"\xef\xbb\xbf \t\r\n").partition(b"\n")[0].rstrip()
    is_lines = line.startswith(b"{") and line.endswith(b"}") and b"FeatureCollection" not in line
    return "ndjson" if is_lines else "geojson"
