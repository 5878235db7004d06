"""How the rows of a DataFrame become canonical batches, inside the Python workers.

Rows come in one of three forms:

- ``columns``: a table with one column per field, under the user's names;
- ``values``: one JSON object in the column ``value`` of each row, as Kafka and text files give it;
- ``files``: one file in each row, by its ``path``; the worker reads it itself, in any format that
  :mod:`earshot.files` reads, so a broken file is a reject like any other and no row of it crosses
  from Java to Python. Where a worker cannot open the path, ``content`` has the file's bytes.

Every form yields what file readers yield: canonical rows, and rejects with source and row. Rows of
a table have no numbers: they are counted in each partition, whose number goes with the source.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from earshot.encoding import Form
from earshot.errors import InvalidFile, InvalidParameter, InvalidRow
from earshot.files import FileBatch, Reject, read_rows, rejects_of_batch
from earshot.files.batches import only_reject
from earshot.files.columns import batch_of_columns
from earshot.files.layout import (
    Layout,
    PlaceKind,
    check_column_type,
    choose_columns,
    make_layout,
)
from earshot.files.ndjson import batch_of_values
from earshot.model.arrays import Int64s, Space
from earshot.model.schemas import Content, IdKind, id_kind, is_text
from earshot.spark.folders import Folder
from earshot.text import Analyzer

RowForm = Literal["columns", "values", "files"]
FORMS: tuple[RowForm, ...] = get_args(RowForm)

Batches: TypeAlias = Iterator[pa.RecordBatch]
"""What a task gives back for a partition."""

FILE_COLUMNS = ("path", "modificationTime", "content")
VALUE_COLUMNS = ("value", "topic", "partition", "offset", "timestamp")


def arrow_schema(table: DataFrame) -> pa.Schema:
    """Return the Arrow schema of a table; Spark's timestamps are instants.

    Columns that cannot go to Python, such as intervals of months, are left out.
    """
    fields = []
    for each in table.schema:
        with suppress(PySparkException):
            fields += to_arrow_schema(StructType([each]), timezone="UTC")
    return pa.schema(fields)


class Part(NamedTuple):
    """Canonical rows and where they are from."""

    rows: FileBatch
    origin: pa.RecordBatch | None  # the DataFrame's own rows, where rows of it they are
    arrived_us: int | None = None  # when the first of them arrived, if the source tells
    first_row: int = 0  # number of the first row of the origin

    def judged(self, errors: Sequence[InvalidRow]) -> tuple[list[Reject], Int64s]:
        """Return all that was refused when these errors are, and the positions of the others."""
        batch, numbers = self.rows.batch, self.rows.rows
        rejects = self.rows.rejects + rejects_of_batch(errors, batch, numbers)
        return rejects, np.flatnonzero(~np.isin(numbers, [error.row for error in errors]))


@dataclass(frozen=True)
class RowReading:
    """How rows become messages, subscriptions or changes."""

    content: Content
    form: RowForm
    ids: IdKind
    columns: Mapping[str, str] = field(default_factory=dict)  # names by field, where they differ
    space: Space = "lonlat"
    source: str = ""  # name of the table, for rejects
    place: PlaceKind | None = None  # which counts where a message has several; None: refused

    def layout(self, source: str | None = None) -> Layout:
        """Return what columns mean; the source is that of the table unless one is given."""
        source = self.source if source is None else source
        return make_layout(self.content, self.columns, source, "reject", self.space, self.place)

    def parts(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Part]:
        """Yield the canonical rows of a task's batches; what is wrong is among their rejects."""
        convert = {"columns": self._of_columns, "values": self._of_values, "files": self._of_files}
        context = TaskContext.get()
        source = self.source
        if context is not None:
            source += f"/{context.partitionId():05d}"  # so that they sort, as Spark's own files do
        layout = self.layout(source)
        first_row = 0
        for batch in batches:
            yield from convert[self.form](batch, layout, first_row)
            first_row += batch.num_rows

    def _of_columns(self, batch: pa.RecordBatch, layout: Layout, first_row: int) -> Iterator[Part]:
        chosen = choose_columns(layout, batch.schema.names)
        arrays = {name: batch.column(column) for name, column in chosen.items()}
        rows = np.arange(first_row, first_row + batch.num_rows, dtype=np.int64)
        yield Part(batch_of_columns(layout, arrays, self.ids, rows), batch, first_row=first_row)

    def _of_values(self, batch: pa.RecordBatch, layout: Layout, first_row: int) -> Iterator[Part]:
        if not {"topic", "partition", "offset"}.issubset(batch.schema.names):
            rows = np.arange(first_row, first_row + batch.num_rows, dtype=np.int64)
            values = batch_of_values(batch.column("value"), layout, self.ids, rows)
            yield Part(values, None, _first_time(batch, "timestamp"))
            return
        # A batch of Kafka's can have several partitions, each with offsets of its own.
        numbers = batch.column("partition").to_numpy()
        for number in np.unique(numbers).tolist():
            part = batch.filter(pa.array(numbers == number))
            source = f"{part.column('topic')[0].as_py()}/{number}"
            offsets = part.column("offset").to_numpy()
            values = batch_of_values(
                part.column("value"), layout._replace(source=source), self.ids, offsets
            )
            yield Part(values, None, _first_time(part, "timestamp"))

    def _of_files(self, batch: pa.RecordBatch, layout: Layout, first_row: int) -> Iterator[Part]:
        has_content = "content" in batch.schema.names
        for row, location in enumerate(batch.column("path").to_pylist()):
            content = batch.column("content")[row] if has_content else None
            arrived_us = _first_time(batch.slice(row, 1), "modificationTime")
            if location is None:
                reject = Reject(layout.source, first_row + row, "path", "is missing", "")
                yield Part(only_reject(layout, self.ids, reject), None, arrived_us)
                continue
            for rows in self._of_file(location, content, layout):
                yield Part(rows, None, arrived_us)

    def _of_file(
        self, location: str, content: pa.Scalar | None, layout: Layout
    ) -> Iterator[FileBatch]:
        """Yield the rows of a file; damage is a reject after the rows before it."""
        next_row = 0
        with _readable(location, content) as path:
            try:
                for part in read_rows(
                    self.content, path,
                    columns=self.columns, space=self.space, ids=self.ids, on_error="reject",
                    place=self.place,
                ):  # fmt: skip
                    numbers = [int(part.rows[-1])] if len(part.rows) else []
                    numbers += [reject.row for reject in part.rejects]
                    next_row = max(numbers, default=next_row - 1) + 1
                    rejects = [
                        each._replace(source=location) if each.source == str(path) else each
                        for each in part.rejects
                    ]
                    yield part._replace(rejects=rejects, source=location)
            except (InvalidFile, OSError, pa.ArrowException) as error:
                reason = str(error).replace(str(path), location)
                yield only_reject(layout, self.ids, Reject(location, next_row, "", reason, ""))


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Raise InvalidParameter unless a value is one of those there are."""
    if value not in choices:
        raise InvalidParameter(f"{name} is {value!r}; expected one of {', '.join(choices)}")


class RowCheck(NamedTuple):
    """What it takes to see which rows an engine would refuse, whatever it holds."""

    analyzer: Analyzer
    form: Form


def make_reading(
    content: Content,
    schema: pa.Schema,
    *,
    form: RowForm = "columns",
    ids: IdKind | None = None,
    columns: Mapping[str, str] | None = None,
    space: Space = "lonlat",
    place: PlaceKind | None = None,
) -> RowReading:
    """Return how a table with the given schema is read, or say what it lacks.

    The kind of ids is needed unless the rows are columns with a typed id.
    """
    check_choice("form", form, FORMS)
    layout = make_layout(content, columns, content, "reject", space, place)
    if form == "columns":
        chosen = choose_columns(layout, schema.names)
        for name, column in chosen.items():
            check_column_type(layout, name, column, schema.field(column).type)
        ids = ids or id_kind(schema.field(chosen["id"]).type)
    else:
        needed = "path" if form == "files" else "value"
        if needed not in schema.names:
            raise InvalidFile(
                f"{content}: no column '{needed}', which rows in the form '{form}' have; its "
                f"columns are {', '.join(schema.names)}"
            )
        found = schema.field(needed).type
        if not (is_text(found) or (form == "values" and pa.types.is_binary(found))):
            expected = "strings" if form == "files" else "strings or bytes"
            raise InvalidFile(
                f"{content}: column '{needed}' is of type {found}; expected {expected}"
            )
    if ids is None:
        raise InvalidParameter(
            f"{content}: say whether ids are integers or strings (ids='integer' or ids='string'); "
            f"rows in the form '{form}' do not tell beforehand"
        )
    return RowReading(content, form, ids, dict(columns or {}), space, content, place)


def needed_columns(reading: RowReading, schema: pa.Schema, carry: Sequence[str] = ()) -> list[str]:
    """Return the columns of a DataFrame that a reading uses; the others need not be sent."""
    if reading.form == "files":
        return [name for name in FILE_COLUMNS if name in schema.names]
    if reading.form == "values":
        return [name for name in VALUE_COLUMNS if name in schema.names]
    chosen = choose_columns(reading.layout(), schema.names).values()
    return [name for name in schema.names if name in chosen or name in carry]


@contextmanager
def _readable(location: str, content: pa.Scalar | None) -> Iterator[Path]:
    """Yield a path at which a file can be read: its own, or that of a copy."""
    path = _path_of(location)
    if content is None:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="earshot-") as folder:
        copy = Path(folder) / path.name
        copy.write_bytes(content.as_buffer() if content.is_valid else b"")
        yield copy


def _path_of(location: str) -> Path:
    """Return the path that a location means: a path, or a ``file:`` URI.

    Spark spells URIs in two ways: ``path`` of its file source has names as they are, ``file_path``
    of ``_metadata`` has them escaped.
    """
    path = Path(Folder(location).path if location.startswith("file:") else location)
    if location.startswith("file:") and not path.exists():
        plain = Path(unquote(str(path)))
        return plain if plain.exists() else path
    return path


def _first_time(batch: pa.RecordBatch, name: str) -> int | None:
    if name not in batch.schema.names or not pa.types.is_timestamp(batch.schema.field(name).type):
        return None
    first = pc.min(batch.column(name).cast(pa.timestamp("us", "UTC")).cast(pa.int64()))
    return None if first.as_py() is None else int(first.as_py())
