"""CSV: one header line, comma-separated, quotes around values with commas or newlines.

Arrow splits the bytes into columns of text; the columns are converted afterwards, so that one bad
value costs its row and not the file. Lines without a character are passed over and not counted.
Rows of a stream are split by Python as they come.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import shapely
from pyarrow import csv as arrow_csv

from earshot.errors import InvalidFile, InvalidParameter
from earshot.files.batches import FileBatch
from earshot.files.columns import batch_of_columns
from earshot.files.formats import is_stream, iso_times, open_bytes
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
_END = b"\x00\x01\x00"
# What leaves a quoted value open; a quote at the end may be the first of two.
_WITHIN_QUOTES = re.compile(r'([^"]*+(?:""[^"]*+)*+)("?)')


class Dialect(NamedTuple):
    """What CSV files differ in."""

    delimiter: str = ","
    encoding: str = "utf-8"

    def check(self) -> None:
        """Raise InvalidParameter where there can be no such file."""
        character = self.delimiter
        if not isinstance(character, str) or len(character) != 1 or not character.isascii():
            raise InvalidParameter(f"delimiter is {character!r}; expected one ASCII character")
        if character in '"\r\n\0':
            raise InvalidParameter(f"delimiter is {character!r}, which means something else in CSV")
        try:
            codecs.getincrementaldecoder(self.encoding)
            b"".decode(self.encoding)
        except (LookupError, TypeError):
            raise InvalidParameter(
                f"encoding is {self.encoding!r}; expected a name such as utf-8, latin-1 or cp1252"
            ) from None


def read_csv(
    path: str, layout: Layout, ids: IdKind | None, dialect: Dialect
) -> Iterator[FileBatch]:
    """Yield the rows of a CSV file; see :func:`earshot.files.reading.read_rows`."""
    source = layout.source
    file = _File(path, source, dialect)
    arriving = _arriving_rows(file) if is_stream(path) else None
    names = _header(file) if arriving is None else _names(next(arriving, [[]])[0], file)
    other = next((each for each in ";\t|" if each in names[0]), None)
    if len(names) == 1 and other is not None:
        raise InvalidFile(
            f"{source}: its header {names[0]!r} is one column; if {other!r} stands between the "
            f"values, say so with --delimiter (delimiter=)"
        )
    chosen = choose_columns(layout, names)
    for column in chosen.values():
        if names.count(column) > 1:
            raise InvalidFile(f"{source}: column '{column}' occurs more than once in the header")
    positions = {field: names.index(column) for field, column in chosen.items()}
    kind = ids
    next_row = 0
    wanted = sorted({0, *positions.values()})  # the first column marks the end
    if arriving is None:
        pieces = _pieces(file, len(names), wanted)
    else:
        pieces = _stream_pieces(arriving, len(names), wanted)
    for piece in pieces:
        columns = {
            field: piece.columns[wanted.index(position)].view(pa.string())
            for field, position in positions.items()
        }
        if kind is None and len(columns["id"]):
            kind = _kind_of_ids(columns["id"])
        rejects = [
            Reject(source, row, "", f"has {n} values; the header has {len(names)} columns", raw)
            for row, n, raw in piece.odd_rows
        ]
        odd = [reject.row for reject in rejects]
        n_rows = len(columns["id"]) + len(odd)
        rows = np.arange(next_row, next_row + n_rows, dtype=np.int64)
        next_row += n_rows
        result = batch_of_columns(
            layout._replace(on_error="reject"), columns, kind or "string", np.setdiff1d(rows, odd)
        )
        yield result.with_rejects(rejects, layout.on_error)


class _File(NamedTuple):
    path: str
    name: str  # in errors
    dialect: Dialect

    def open(self) -> _Utf8:
        """Open its bytes, as UTF-8 and without a byte order mark."""
        return _Utf8(self)

    def unclosed(self, row: int) -> InvalidFile:
        """Return what is wrong where a quote swallows the rest."""
        return InvalidFile(
            f"{self.name}: a quote that is opened at or before row {row} is never closed; the file "
            f"may be cut short"
        )


class _Piece(NamedTuple):
    columns: list[pa.Array]  # those wanted, as bytes
    odd_rows: list[tuple[int, int, str]]  # row number, number of values, raw row


def _pieces(file: _File, n_columns: int, wanted: list[int]) -> Iterator[_Piece]:
    """Yield the rows by blocks: as Arrow splits them and, from where it cannot, as Python does.

    Arrow gives up at a row with too many or too few values, and at one longer than a block.
    """
    n_rows = 0
    try:
        reader = arrow_csv.open_csv(
            _WithEnd(file, n_columns),
            read_options=arrow_csv.ReadOptions(
                use_threads=False,
                block_size=BLOCK_BYTES,
                skip_rows=1,
                # Numbered, because Arrow cannot tell two columns of the same name apart.
                column_names=[f"f{i}" for i in range(n_columns)],
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=file.dialect.delimiter, newlines_in_values=True
            ),
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
        yield from _python_pieces(file, n_columns, wanted, n_rows)
        return
    except (OSError, pa.ArrowException) as error:
        raise InvalidFile(f"{file.name} cannot be read after row {n_rows - 1}: {error}") from error
    raise file.unclosed(n_rows - 1)


def _python_pieces(
    file: _File, n_columns: int, wanted: list[int], first_row: int
) -> Iterator[_Piece]:
    """Yield the rows from ``first_row`` on."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_VALUE_BYTES))
    # As Latin-1 every byte is a character, so that broken UTF-8 passes through unchanged.
    stream = io.TextIOWrapper(
        io.BufferedReader(_WithEnd(file, n_columns)), encoding="latin-1", newline=""
    )
    with stream:
        rows = (row for row in csv.reader(stream, delimiter=file.dialect.delimiter) if row)
        next(rows, None)  # the header
        row = -1
        found: list[list[str]] = []
        n_characters = 0
        try:
            for row, values in enumerate(rows):
                if row < first_row:
                    continue
                if values[0].encode("latin-1") == _END:
                    yield _piece(found, row - len(found), n_columns, wanted)
                    return
                found.append(values)
                n_characters += sum(map(len, values))
                if n_characters > BLOCK_BYTES:
                    yield _piece(found, row + 1 - len(found), n_columns, wanted)
                    found, n_characters = [], 0
        except (OSError, pa.ArrowException, csv.Error) as error:
            raise InvalidFile(f"{file.name} cannot be read after row {row}: {error}") from error
        raise file.unclosed(row)


def _arriving_rows(file: _File) -> Iterator[list[list[str]]]:
    """Yield the rows of a stream as they come, all that are whole; the header comes alone."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_VALUE_BYTES))
    end = _END.decode()
    n_rows, is_over = 0, False
    held: list[str] = []  # what makes no whole row so far
    is_open = False  # whether that ends within quotes; else nobody knows
    quote = ""  # one after that, which may be the first of two
    with closing(file.open()) as stream:
        while not is_over:
            data = stream.read(BLOCK_BYTES)
            is_over = not data
            text = quote + (data.decode("latin-1") or "\n")
            within = _WITHIN_QUOTES.fullmatch(text) if is_open else None
            goes_on = within is not None if is_open else "\n" not in text
            if goes_on and not is_over and sum(map(len, held)) <= MAX_VALUE_BYTES:
                # No row ends here, and what is held may be too long to be split at every read.
                held.append(text if within is None else within[1])
                quote = "" if within is None else within[2]
                continue
            pending = "".join([*held, text])
            cut = pending.rfind("\n") + 1
            lines = [*io.StringIO(pending[:cut], newline=""), end]
            reader = csv.reader(lines, delimiter=file.dialect.delimiter)
            rows, n_lines = [], 0
            for row in reader:
                if reader.line_num < len(lines):
                    n_lines = reader.line_num
                    rows += [row] if row else []
            goes_on_with, rest = "".join(lines[n_lines:-1]), pending[cut:]
            n_left = len(goes_on_with) + len(rest)
            if n_left > MAX_VALUE_BYTES or (is_over and n_left):
                raise file.unclosed(n_rows + len(rows) - 1)
            within = _WITHIN_QUOTES.fullmatch(rest) if goes_on_with else None
            is_open = within is not None
            held = [goes_on_with, rest if within is None else within[1]]
            quote = "" if within is None else within[2]
            if rows and not n_rows:
                yield rows[:1]
                n_rows, rows = 1, rows[1:]
            if rows:
                yield rows
                n_rows += len(rows)


def _stream_pieces(
    arriving: Iterator[list[list[str]]], n_columns: int, wanted: list[int]
) -> Iterator[_Piece]:
    n_rows = 0
    for rows in arriving:
        yield _piece(rows, n_rows, n_columns, wanted)
        n_rows += len(rows)


def _piece(rows: list[list[str]], first_row: int, n_columns: int, wanted: list[int]) -> _Piece:
    good = [row for row in rows if len(row) == n_columns]
    odd = [
        (number, len(row), shortened(",".join(map(_decoded, row))))
        for number, row in enumerate(rows, first_row)
        if len(row) != n_columns
    ]
    columns = [
        pa.array([row[position].encode("latin-1") or None for row in good], pa.binary())
        for position in wanted
    ]
    return _Piece(columns, odd)


def _decoded(value: str) -> str:
    return value.encode("latin-1").decode("utf-8", "backslashreplace")


def _header(file: _File) -> list[str]:
    with closing(file.open()) as stream:
        try:
            head = stream.read(_HEADER_BYTES)
        except (OSError, pa.ArrowException) as error:
            raise InvalidFile(f"{file.name} cannot be read: {error}") from error
    line, newline, _ = head.partition(b"\n")
    if not newline and len(head) == _HEADER_BYTES:
        raise InvalidFile(f"{file.name}: the header line is longer than {_HEADER_BYTES} bytes")
    text = io.StringIO(line.decode("latin-1").rstrip("\r"))
    return _names(next(csv.reader(text, delimiter=file.dialect.delimiter), []), file)


def _names(header: list[str], file: _File) -> list[str]:
    """Return the names of the columns."""
    try:
        names = [name.encode("latin-1").decode("utf-8").strip() for name in header]
    except UnicodeDecodeError as error:
        raise InvalidFile(
            f"{file.name}: the header line is not valid UTF-8: {error}; say how it is encoded with "
            f"--encoding, such as latin-1 (encoding=)"
        ) from None
    if not names:
        raise InvalidFile(
            f"{file.name} is empty; expected a header line with the names of the columns"
        )
    return names


def _kind_of_ids(ids: pa.Array) -> IdKind:
    """Ids are integers when all of the first block print as integers do."""
    given = ids.drop_null()
    plain = pc.match_substring_regex(given.view(pa.binary()), r"^(0|-?[1-9][0-9]{0,18})$")
    return "integer" if len(given) and pc.all(plain).as_py() else "string"


class _Utf8:
    """A file's bytes as UTF-8, without a byte order mark; what cannot be decoded stays broken."""

    def __init__(self, file: _File) -> None:
        self._stream = open_bytes(file.path)
        self._name, self._encoding = file.name, file.dialect.encoding
        self._decoder: codecs.IncrementalDecoder | None = None
        if not codecs.lookup(self._encoding).name.startswith("utf-8"):
            self._decoder = codecs.getincrementaldecoder(self._encoding)("surrogateescape")
        self._rest = b""
        self._is_first, self._is_over = True, False

    def read(self, size: int) -> bytes:
        """Return at most so many bytes, none at the end."""
        while not self._rest and not self._is_over:
            data: bytes = self._stream.read(size)
            self._is_over = not data
            self._rest = self._converted(data)
            if self._is_first:
                self._rest, self._is_first = self._rest.removeprefix(b"\xef\xbb\xbf"), False
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def _converted(self, data: bytes) -> bytes:
        if self._decoder is None:
            return data
        try:
            text = self._decoder.decode(data, self._is_over)
            return text.encode("utf-8", "surrogateescape")
        except UnicodeError as error:
            raise InvalidFile(
                f"{self._name} cannot be read as {self._encoding}: {error}; say how it is encoded"
            ) from None

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


class _WithEnd(io.RawIOBase):
    """The file's bytes, and after them the row that marks their end."""

    def __init__(self, file: _File, n_columns: int) -> None:
        self._stream = file.open()
        self._end = _END + file.dialect.delimiter.encode() * (n_columns - 1) + b"\n"
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
            data = self._stream.read(size if size >= 0 else BLOCK_BYTES)
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

    def __init__(self, target: Any, schema: pa.Schema, compression: str | None) -> None:
        self._stream = pa.output_stream(target, compression=compression)
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
