"""Reading subscriptions, messages and changes from files of any known format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypedDict, Unpack

from earshot.errors import InvalidFile, InvalidParameter
from earshot.files.batches import FileBatch
from earshot.files.csv import read_csv
from earshot.files.formats import Format, format_of, open_bytes
from earshot.files.geojson import read_geojson
from earshot.files.layout import make_layout
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


def read_rows(
    content: Content,
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    space: Space = "lonlat",
    ids: IdKind | None = None,
    on_error: OnError = "raise",
    batch_rows: int = BATCH_ROWS,
) -> Iterator[FileBatch]:
    """Yield the rows of a file in batches with canonical columns.

    Args:
        content: Whether they are ``subscriptions``, ``messages`` or ``changes``.
        path: A ``.parquet``, ``.ndjson``, ``.jsonl``, ``.json``, ``.geojson`` or ``.csv`` file.
        columns: Names of the file's columns by field, where they differ: ``{"id": "key"}``.
        space: ``lonlat`` refuses files in another coordinate system.
        ids: Whether ids are integers or strings; by default as the first ones look.
        on_error: ``raise`` the first bad row, or ``reject`` bad rows into the batches' ``rejects``.
        batch_rows: Most rows per batch of Parquet and GeoJSON; the others are read by blocks.

    Raises:
        InvalidRow: A row is wrong and ``on_error`` is ``raise``.
        InvalidFile: The file as a whole is.
    """
    check_on_error(on_error)
    if batch_rows < 1:
        raise InvalidParameter(f"batch_rows is {batch_rows}; expected at least 1")
    source = str(path)
    if not Path(path).is_file():
        raise InvalidFile(f"{source} is not a file")
    layout = make_layout(content, columns, source, on_error)
    file_format = format_of(path)
    if file_format == "json":
        file_format = _json_format(source)
    if file_format == "parquet":
        return read_parquet(source, layout, space, ids, batch_rows)
    if file_format == "csv":
        return read_csv(source, layout, ids)
    if file_format == "geojson":
        return read_geojson(source, layout, space, ids, batch_rows)
    return read_ndjson(source, layout, ids)


def _json_format(path: str) -> Format:
    """Tell lines of JSON from one JSON value: does the first line end where its object does?"""
    with open_bytes(path) as stream:
        head: bytes = stream.read(1 << 16)
    line = head.lstrip(b"\xef\xbb\xbf \t\r\n").partition(b"\n")[0].rstrip()
    is_lines = line.startswith(b"{") and line.endswith(b"}") and b"FeatureCollection" not in line
    return "ndjson" if is_lines else "geojson"
