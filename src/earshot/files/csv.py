"""CSV: one header line, comma-separated, quotes around values with commas or newlines.

Arrow splits the bytes into columns of text; the columns are converted afterwards, so that one bad
value costs its row and not the file. Lines without a character are passed over and not counted.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import shapely
from pyarrow import csv as arrow_csv

from earshot.errors import InvalidFile
from earshot.files.batches import FileBatch
from earshot.files.columns import batch_of_columns
from earshot.files.formats import iso_times, open_bytes
from earshot.files.geometries import shapes_of
from earshot.files.layout import Layout, choose_columns
from earshot.files.rejects import Reject, shortened
from earshot.model.schemas import IdKind

BLOCK_BYTES = 1 << 24
"""Bytes parsed at a time."""
MAX_VALUE_BYTES = 1 << 26
"""A longer value is refused, with the file: most likely a quote was never closed."""

_HEADER_BYTES = 1 << 20
# Stands in the first column of a row appended to the file. If it does not come back as a row of its
# own, a quote was left open before it.
_END = b"\x00end of file\x00"


def read_csv(path: str, layout: Layout, ids: IdKind | None) -> Iterator[FileBatch]:
    """Yield the rows of a CSV file; see :func:`earshot.files.reading.read_rows`."""
    names = _header(path)
    chosen = choose_columns(layout, names)
    for column in chosen.values():
        if names.count(column) > 1:
            raise InvalidFile(f"{path}: column '{column}' occurs more than once in the header")
    positions = {field: names.index(column) for field, column in chosen.items()}
    kind = ids
    next_row = 0
    wanted = sorted({0, *positions.values()})  # the first column marks the end
    for piece in _pieces(path, len(names), wanted):
        columns = {
            field: piece.columns[wanted.index(position)].view(pa.string())
            for field, position in positions.items()
        }
        if kind is None:
            kind = _kind_of_ids(columns["id"])
        rejects = [
            Reject(path, row, "", f"has {n} values; the header has {len(names)} columns", raw)
            for row, n, raw in piece.odd_rows
        ]
        odd = [reject.row for reject in rejects]
        n_rows = len(columns["id"]) + len(odd)
        rows = np.arange(next_row, next_row + n_rows, dtype=np.int64)
        next_row += n_rows
        result = batch_of_columns(
            layout._replace(on_error="reject"), columns, kind, np.setdiff1d(rows, odd)
        )
        yield result.with_rejects(rejects, layout.on_error)


class _Piece(NamedTuple):
    columns: list[pa.Array]  # those wanted, as bytes
    odd_rows: list[tuple[int, int, str]]  # row number, number of values, raw row


def _pieces(path: str, n_columns: int, wanted: list[int]) -> Iterator[_Piece]:
    """Yield the rows by blocks: as Arrow splits them and, from where it cannot, as Python does.

    Arrow gives up at a row with too many or too few values, and at one longer than a block.
    """
    n_rows = 0
    try:
        reader = arrow_csv.open_csv(
            _WithEnd(path, n_columns),
            read_options=arrow_csv.ReadOptions(
                use_threads=False,
                block_size=BLOCK_BYTES,
                skip_rows=1,
                # Numbered, because Arrow cannot tell two columns of the same name apart.
                column_names=[f"f{i}" for i in range(n_columns)],
            ),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                check_utf8=False,
                include_columns=[f"f{i}" for i in wanted],
                column_types={f"f{i}": pa.binary() for i in wanted},
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
        with reader:
            for batch in reader:
                if len(batch) and batch.column(0)[-1].as_py() == _END:
                    yield _Piece(batch.slice(0, len(batch) - 1).columns, [])
                    return
                n_rows += len(batch)
                yield _Piece(batch.columns, [])
    except pa.ArrowInvalid:
        yield from _python_pieces(path, n_columns, wanted, n_rows)
        return
    except (OSError, pa.ArrowException) as error:
        raise InvalidFile(f"{path} cannot be read after row {n_rows - 1}: {error}") from error
    raise _unclosed(path, n_rows - 1)


def _python_pieces(
    path: str, n_columns: int, wanted: list[int], first_row: int
) -> Iterator[_Piece]:
    """Yield the rows from ``first_row`` on."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_VALUE_BYTES))
    # As Latin-1 every byte is a character, so that broken UTF-8 passes through unchanged.
    stream = io.TextIOWrapper(
        io.BufferedReader(_WithEnd(path, n_columns)), encoding="latin-1", newline=""
    )
    with stream:
        rows = (values for values in csv.reader(stream) if values)
        next(rows, None)  # the header
        row = -1
        good: list[list[str]] = []
        odd: list[tuple[int, int, str]] = []
        n_characters = 0
        try:
            for row, values in enumerate(rows):
                if row < first_row:
                    continue
                if values[0].encode("latin-1") == _END:
                    yield _Piece(_byte_columns(good, wanted), odd)
                    return
                if len(values) == n_columns:
                    good.append(values)
                else:
                    raw = ",".join(values).encode("latin-1").decode("utf-8", "backslashreplace")
                    odd.append((row, len(values), shortened(raw)))
                n_characters += sum(map(len, values))
                if n_characters > BLOCK_BYTES:
                    yield _Piece(_byte_columns(good, wanted), odd)
                    good, odd, n_characters = [], [], 0
        except (OSError, pa.ArrowException, csv.Error) as error:
            raise InvalidFile(f"{path} cannot be read after row {row}: {error}") from error
        raise _unclosed(path, row)


def _byte_columns(rows: list[list[str]], wanted: list[int]) -> list[pa.Array]:
    return [
        pa.array([row[position].encode("latin-1") or None for row in rows], pa.binary())
        for position in wanted
    ]


def _unclosed(path: str, row: int) -> InvalidFile:
    return InvalidFile(
        f"{path}: a quote that is opened at or before row {row} is never closed; the file may be "
        f"cut short"
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
        self._is_first = True
        self._is_over = False
        self._last = b"\n"

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        if not self._is_over:
            data: bytes = self._stream.read(size if size >= 0 else None)
            if self._is_first:
                data, self._is_first = data.removeprefix(b"\xef\xbb\xbf"), False
            if data:
                self._last = data[-1:]
                return data
            self._is_over = True
            if self._last != b"\n":
                self._end = b"\n" + self._end
        size = len(self._end) if size < 0 else size
        data, self._end = self._end[:size], self._end[size:]
        return data

    def close(self) -> None:
        self._stream.close()
        super().close()


class CsvSink:
    """Writes tables to a file."""

    def __init__(self, path: str, schema: pa.Schema, compression: str | None) -> None:
        self._stream = pa.output_stream(path, compression=compression)
        self._schema = pa.schema([(field.name, _csv_type(field.type)) for field in schema])
        self._writer = arrow_csv.CSVWriter(
            self._stream, self._schema, write_options=arrow_csv.WriteOptions(quoting_style="needed")
        )

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        columns = [
            _csv_column(column).cast(field.type)
            for column, field in zip(table.columns, self._schema, strict=True)
        ]
        self._writer.write_table(pa.table(columns, schema=self._schema))

    def close(self) -> None:
        """Complete the file."""
        self._writer.close()
        self._stream.close()


def _csv_type(data_type: pa.DataType) -> pa.DataType:
    is_number = pa.types.is_integer(data_type) or pa.types.is_floating(data_type)
    return data_type if is_number else pa.string()


def _csv_column(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    data_type = column.type
    if pa.types.is_list(data_type):
        return pc.binary_join(column, ",")
    if pa.types.is_timestamp(data_type):
        return iso_times(column)
    if pa.types.is_binary(data_type):
        return pa.array(shapely.to_wkt(shapes_of(column), rounding_precision=-1), pa.string())
    return column
