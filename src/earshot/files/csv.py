"""Reading CSV: one header line, comma-separated, quotes around values with commas or newlines.

Arrow splits the bytes into columns of text; the columns are converted afterwards, so that one bad
value costs its row and not the file.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from earshot.errors import InvalidFile
from earshot.files.columns import FileBatch, Layout, batch_of_columns, choose_columns
from earshot.files.formats import open_bytes
from earshot.files.rejects import Reject, shortened
from earshot.model.arrays import Int64s
from earshot.model.schemas import IdKind

BLOCK_BYTES = 1 << 24
"""Bytes parsed at a time; also the longest row."""

_HEADER_BYTES = 1 << 20
# Stands in the first column of a row appended to the file. If it does not come back as a row of its
# own, a quote was left open before it.
_END = b"\x00end of file\x00"


def read_csv(path: str, layout: Layout, ids: IdKind | None) -> Iterator[FileBatch]:
    """Yield the rows of a CSV file; see :func:`earshot.files.read_subscriptions`."""
    names = _header(path)
    chosen = choose_columns(layout, names)
    for column in chosen.values():
        if names.count(column) > 1:
            raise InvalidFile(f"{path}: column '{column}' occurs more than once in the header")
    # Columns are numbered because Arrow cannot tell two columns of the same name apart.
    positions = {field: f"f{names.index(column)}" for field, column in chosen.items()}
    first = "f0"
    skipped: dict[int, Reject] = {}

    def skip(row: Any) -> str:
        number = row.number - 2  # Arrow counts from 1, and the header
        reason = f"has {row.actual_columns} values; the header has {row.expected_columns} columns"
        skipped[number] = Reject(path, number, "", reason, shortened(row.text))
        return "skip"

    try:
        reader = arrow_csv.open_csv(
            _WithEnd(path, len(names)),
            read_options=arrow_csv.ReadOptions(
                use_threads=False,
                block_size=BLOCK_BYTES,
                skip_rows=1,
                column_names=[f"f{i}" for i in range(len(names))],
            ),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip),
            convert_options=arrow_csv.ConvertOptions(
                check_utf8=False,
                include_columns=sorted({first, *positions.values()}),
                column_types={f"f{i}": pa.binary() for i in range(len(names))},
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
            ),
        )
    except (OSError, pa.ArrowException) as error:
        raise InvalidFile(f"{path} cannot be read as CSV: {error}") from error
    with reader:
        next_row = 0
        kind = ids
        closed = False
        while True:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                break
            except (OSError, pa.ArrowException) as error:
                if "straddles" in str(error):
                    error = InvalidFile(
                        f"a row is longer than {BLOCK_BYTES} bytes, or a quote is never closed"
                    )
                raise InvalidFile(
                    f"{path} cannot be read as CSV after row {next_row - 1}: {error}"
                ) from None
            rows, next_row = _number_rows(len(batch), next_row, skipped)
            if len(batch) and batch.column(first)[-1].as_py() == _END:
                closed = True
                batch, rows = batch.slice(0, len(batch) - 1), rows[:-1]
            columns = {
                field: batch.column(name).view(pa.string()) for field, name in positions.items()
            }
            if kind is None:
                kind = _kind_of_ids(columns["id"])
            rejects = _take_skipped(skipped, next_row, layout)
            result = batch_of_columns(layout, columns, kind, rows)
            rejects = sorted(rejects + result.rejects, key=lambda reject: reject.row)
            yield result._replace(rejects=rejects)
        if not closed:
            raise InvalidFile(
                f"{path}: a quote that is opened at or before row {next_row - 1} is never closed; "
                f"the file may be cut short"
            )


def _header(path: str) -> list[str]:
    with open_bytes(path) as stream:
        try:
            head: bytes = stream.read(_HEADER_BYTES)
        except (OSError, pa.ArrowException) as error:
            raise InvalidFile(f"{path} cannot be read: {error}") from error
    line, newline, _ = head.partition(b"\n")
    if not newline and len(head) == _HEADER_BYTES:
        raise InvalidFile(f"{path}: the header line is longer than {_HEADER_BYTES} bytes")
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidFile(f"{path}: the header line is not valid UTF-8: {error}") from None
    names = next(csv.reader(io.StringIO(text.rstrip("\r"))), [])
    if not names:
        raise InvalidFile(f"{path} is empty; expected a header line with the names of the columns")
    return [name.strip() for name in names]


def _number_rows(n: int, next_row: int, skipped: dict[int, Reject]) -> tuple[Int64s, int]:
    """Number the next n rows, leaving out the numbers of rows that were skipped."""
    stop = next_row + n
    gaps = np.array(sorted(row for row in skipped if row >= next_row), np.int64)
    rows = np.arange(next_row, stop + len(gaps), dtype=np.int64)
    rows = rows[~np.isin(rows, gaps)][:n]
    return rows, int(rows[-1]) + 1 if n else next_row


def _take_skipped(skipped: dict[int, Reject], next_row: int, layout: Layout) -> list[Reject]:
    taken = [skipped.pop(row) for row in sorted(skipped) if row < next_row]
    if taken and layout.on_error == "raise":
        raise taken[0].error()
    return taken


def _kind_of_ids(ids: pa.Array) -> IdKind:
    """Ids are integers when all of the first block print as integers do."""
    given = ids.drop_null()
    plain = pc.match_substring_regex(given.view(pa.binary()), r"^(0|-?[1-9][0-9]{0,18})$")
    return "integer" if len(given) and pc.all(plain).as_py() else "string"


class _WithEnd(io.RawIOBase):
    """The file's bytes without a byte order mark, and after them the row that marks their end."""

    def __init__(self, path: str, n_columns: int) -> None:
        self._stream = open_bytes(path)
        self._end = _END + b"," * (n_columns - 1) + b"\n"
        self._last = b"\n"
        self._n_read = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(size if size >= 0 else None)
        if self._n_read == 0 and data.startswith(b"\xef\xbb\xbf"):
            data = data[3:]
        self._n_read += len(data)
        if data:
            self._last = data[-1:]
        elif self._end:
            data, self._end = (b"" if self._last == b"\n" else b"\n") + self._end, b""
        return data

    def close(self) -> None:
        self._stream.close()
        super().close()
