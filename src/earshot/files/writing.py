"""Writing matches, updates, rejects, subscriptions and messages.

A file is written under a temporary name beside its place and renamed when it is complete, so a file
that has its final name is whole. The format follows from the name.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import shapely
from pyarrow import csv as arrow_csv

from earshot.errors import InvalidFile, InvalidInput
from earshot.files.formats import compression_of, format_of
from earshot.model.schemas import BOX_FIELDS, id_kind, id_type, is_text, updates_schema

ROW_GROUP_ROWS = 1 << 20
_MAX_PENDING = 2


class _Sink(Protocol):
    def write(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        compression = compression_of(path)
        self.n_rows = 0
        self._draft = self.path.with_name(f".{self.path.name}.{os.getpid()}.draft")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            target = str(self._draft)
            if file_format == "parquet":
                is_geo = self.path.suffix.lower() == ".geoparquet"
                self._sink: _Sink = _ParquetSink(target, schema, is_geo, is_fast)
            elif file_format == "csv":
                self._sink = _CsvSink(target, schema, compression)
            elif file_format == "geojson":
                self._sink = _GeoJsonSink(target, schema, compression)
            else:
                self._sink = _NdjsonSink(target, schema, compression)
        except OSError as error:
            raise InvalidFile(f"{path} cannot be written: {error}") from error
        self._schema = schema

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Append the rows of a batch."""
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        try:
            self._sink.write(table)
        except OSError as error:
            raise InvalidFile(f"{self.path} cannot be written: {error}") from error
        self.n_rows += len(table)

    def close(self) -> None:
        """Complete the file and give it its name."""
        try:
            self._sink.close()
            self._draft.replace(self.path)
        except OSError as error:
            raise InvalidFile(f"{self.path} cannot be written: {error}") from error

    def discard(self) -> None:
        """Remove what was written."""
        try:
            self._sink.close()
        finally:
            self._draft.unlink(missing_ok=True)


class Updates(Protocol):
    """What a call caused, as :class:`earshot.engine.updates.Updates` has it."""

    @property
    def event_ids(self) -> pa.Array:
        """Id of each published message."""

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Updates of message i are ``[offsets[i]:offsets[i + 1]]``."""

    @property
    def subscription_ids(self) -> pa.Array:
        """Subscription of each update."""

    @property
    def scores(self) -> npt.NDArray[np.float64] | None:
        """Score of each update, where they have one."""

    def __len__(self) -> int: ...

    def table(self, columns: Sequence[str]) -> pa.Table:
        """Return one row per update."""


class UpdateWriter(Draft):
    """Writes updates in its own thread while the caller matches on.

    Those of many calls make one row group. Ids are looked up in the thread, since that takes time
    as well; where each update is a message and whom it reaches, no table is made before that.

    In Parquet, integer ids are delta-encoded: 42 M rows/s on one core at 3.2 bytes a row, against
    37 M rows/s at 16 bytes for plain values and 28 M rows/s at 5.1 bytes for LZ4 over them. String
    ids of messages are dictionaries, those of subscriptions plain under LZ4: 16 M rows/s at 6.4
    bytes, against 12 M rows/s at 3.6 bytes with Zstandard.

    Args:
        path: Where to; its name gives the format.
        message_id_type: Type of the messages' ids; None: of those that come first.
        subscription_id_type: Type of the subscriptions' ids.
        fields: Columns to write, by :func:`earshot.model.schemas.update_fields`.
    """

    def __init__(
        self,
        path: str | Path,
        message_id_type: pa.DataType | None,
        subscription_id_type: pa.DataType,
        fields: Sequence[str],
    ) -> None:
        self.path, self.fields = Path(path), tuple(fields)
        self.n_rows = 0
        self._has_dictionaries = format_of(path) == "parquet"
        self._is_ragged = {"message_id", "subscription_id", "score"}.issuperset(fields)
        self._subscription_id_type = subscription_id_type
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="update-writer")
        self._pending: deque[Future[None]] = deque()
        self._waiting: list[Updates] = []
        self._n_waiting = 0
        self._writer: TableWriter | None = None
        if message_id_type is not None:
            self._open(message_id_type)

    def write(self, updates: Updates) -> None:
        """Append what a call caused."""
        n_rows = len(updates)
        if self._is_ragged:
            self._check(updates, n_rows)
            if self._writer is None:
                self._open(updates.event_ids.type)
        if not n_rows:
            return
        if self._writer is None:
            self._open(updates.table(("message_id",)).schema.field(0).type)
        self._waiting.append(updates)
        self._n_waiting += n_rows
        self.n_rows += n_rows
        if self._n_waiting >= ROW_GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        """Complete the file and give it its name."""
        try:
            if self._writer is None:
                self._open(pa.int64())
            self._flush()
            while self._pending:
                self._pending.popleft().result()
        except BaseException:
            self.discard()
            raise
        self._thread.shutdown()
        assert self._writer is not None
        self._writer.close()

    def discard(self) -> None:
        """Remove what was written."""
        self._thread.shutdown(cancel_futures=True)
        if self._writer is not None:
            self._writer.discard()

    def _open(self, message_id_type: pa.DataType) -> None:
        # A window's ids are large strings; in a file they are strings, or nothing at all.
        ids = id_type(id_kind(message_id_type) or "integer")
        schema = updates_schema(ids, self._subscription_id_type, self.fields)
        self._plain = schema
        if self._has_dictionaries:
            for position, field in enumerate(schema):
                if is_text(field.type) and field.name != "subscription_id":
                    dictionary = pa.dictionary(pa.int32(), field.type)
                    schema = schema.set(position, field.with_type(dictionary))
        self._schema = schema
        self._writer = TableWriter(self.path, schema, is_fast=True)

    def _check(self, updates: Updates, n_rows: int) -> None:
        n_messages, offsets = len(updates.event_ids), updates.offsets
        if len(offsets) != n_messages + 1 or offsets[-1] != n_rows:
            raise InvalidInput(
                f"{n_messages} message ids, {len(offsets)} offsets and {n_rows} updates do not "
                f"belong together"
            )
        n_scores = 0 if updates.scores is None else len(updates.scores)
        if n_scores != (n_rows if "score" in self.fields else 0):
            raise InvalidInput(f"{n_scores} scores for {n_rows} updates")

    def _flush(self) -> None:
        waiting, self._waiting, self._n_waiting = self._waiting, [], 0
        if not waiting:
            return
        # The caller waits when the disk is slower than the matching, so memory stays bounded.
        while len(self._pending) >= _MAX_PENDING:
            self._pending.popleft().result()
        self._pending.append(self._thread.submit(self._write_all, waiting))

    def _write_all(self, waiting: list[Updates]) -> None:
        assert self._writer is not None
        if self._is_ragged:
            # Each part has a dictionary of its own; Parquet wants one per row group.
            table = pa.concat_tables([self._ragged_table(each) for each in waiting])
            table = table.unify_dictionaries() if self._has_dictionaries else table
        else:
            table = pa.concat_tables([each.table(self.fields) for each in waiting])
            table = self._encoded(table.cast(self._plain))
        if table.schema != self._schema:
            table = table.cast(self._schema)
        self._writer.write(table)

    def _ragged_table(self, updates: Updates) -> pa.Table:
        message_ids, counts = updates.event_ids, np.diff(updates.offsets)
        messages: pa.Array
        if pa.types.is_integer(message_ids.type):
            values = message_ids.to_numpy(zero_copy_only=False)
            messages = pa.array(np.repeat(values, counts), pa.int64())
        else:
            positions = np.repeat(np.arange(len(message_ids), dtype=np.int32), counts)
            messages = pa.DictionaryArray.from_arrays(positions, message_ids)
        subscriptions = updates.subscription_ids
        if len(subscriptions) != len(messages):
            raise InvalidInput(f"{len(subscriptions)} subscription ids for {len(messages)} updates")
        columns = {"message_id": messages, "subscription_id": subscriptions}
        if updates.scores is not None:
            columns["score"] = pa.array(updates.scores)
        return pa.table([columns[name] for name in self.fields], names=self.fields)

    def _encoded(self, table: pa.Table) -> pa.Table:
        for position, field in enumerate(self._schema):
            if pa.types.is_dictionary(field.type):
                column = table.column(position).dictionary_encode()
                table = table.set_column(position, field, column)
        return table


def write_table(path: str | Path, table: pa.Table | pa.RecordBatch) -> None:
    """Write a table of subscriptions, messages, updates or rejects; columns of nulls are left out.

    In GeoJSON, and in Parquet named ``.geoparquet``, regions and places become geometries; a circle
    is a point with a ``radius``.
    """
    table = pa.table(table) if isinstance(table, pa.RecordBatch) else table
    if len(table):
        table = table.select(
            [
                name
                for name, column in zip(table.column_names, table.columns, strict=True)
                if column.null_count < len(column)
            ]
        )
    with TableWriter(path, table.schema) as writer:
        writer.write(table)


# ---- Parquet ------------------------------------------------------------------------------------


class _ParquetSink:
    def __init__(self, path: str, schema: pa.Schema, is_geo: bool, is_fast: bool) -> None:
        self._is_geo = is_geo
        self._schema = _geo_schema(schema) if is_geo else schema
        if "geometry" in self._schema.names:
            about = {"encoding": "WKB", "geometry_types": []}
            geo = {
                "version": "1.1.0",
                "primary_column": "geometry",
                "columns": {"geometry": about},
            }
            self._schema = self._schema.with_metadata({"geo": json.dumps(geo)})
        integers = [field.name for field in self._schema if _is_counted(field.type)]
        others = [field.name for field in self._schema if not _is_counted(field.type)]
        self._options: dict[str, Any] = {
            "use_dictionary": [
                field.name
                for field in self._schema
                if field.name in others and (not is_fast or pa.types.is_dictionary(field.type))
            ],
            "write_statistics": self._schema.names[:1] if is_fast else True,
            "column_encoding": dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
            # Delta-encoded integers do not shrink further; LZ4 made writing them slower.
            "compression": {
                **dict.fromkeys(integers, "none"),
                **{
                    _leaf(field): "lz4" if is_fast else "zstd"
                    for field in self._schema
                    if field.name in others
                },
            },
            "store_schema": False,
        }
        self._path = path
        self._writer = pq.ParquetWriter(path, self._schema, **self._options)

    def write(self, table: pa.Table) -> None:
        if self._is_geo:
            table = _with_geometry(table)
        if table.schema.names == self._schema.names:
            table = table.replace_schema_metadata(self._schema.metadata)
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)

    def close(self) -> None:
        self._writer.close()


def _is_counted(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(data_type) or pa.types.is_timestamp(data_type))


def _leaf(field: pa.Field) -> str:
    return f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name


# ---- CSV ----------------------------------------------------------------------------------------


class _CsvSink:
    def __init__(self, path: str, schema: pa.Schema, compression: str | None) -> None:
        self._stream = pa.output_stream(path, compression=compression)
        plain = pa.schema([(field.name, _csv_type(field.type)) for field in schema])
        self._schema = plain
        self._writer = arrow_csv.CSVWriter(
            self._stream, plain, write_options=arrow_csv.WriteOptions(quoting_style="needed")
        )

    def write(self, table: pa.Table) -> None:
        columns = [
            _csv_column(column).cast(field.type)
            for column, field in zip(table.columns, self._schema, strict=True)
        ]
        self._writer.write_table(pa.table(columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()
        self._stream.close()


def _csv_type(data_type: pa.DataType) -> pa.DataType:
    if pa.types.is_integer(data_type) or pa.types.is_floating(data_type):
        return data_type
    return pa.string()


def _csv_column(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    data_type = column.type
    if pa.types.is_list(data_type):
        return pc.binary_join(column, ",")
    if pa.types.is_timestamp(data_type):
        return _iso(column)
    if pa.types.is_binary(data_type):
        shapes = shapely.from_wkb(_objects(column))
        return pa.array(shapely.to_wkt(shapes, rounding_precision=-1), pa.string())
    return column


# ---- NDJSON and GeoJSON -------------------------------------------------------------------------


class _NdjsonSink:
    def __init__(self, path: str, schema: pa.Schema, compression: str | None) -> None:
        self._stream = pa.output_stream(path, compression=compression)

    def write(self, table: pa.Table) -> None:
        for batch in table.combine_chunks().to_batches(max_chunksize=1 << 16):
            _write_lines(self._stream, _json_objects(_fields(batch)))

    def close(self) -> None:
        self._stream.close()


class _GeoJsonSink:
    def __init__(self, path: str, schema: pa.Schema, compression: str | None) -> None:
        if "id" not in schema.names:
            raise InvalidFile(
                f"only subscriptions and messages can be written as GeoJSON, not a table of "
                f"{', '.join(schema.names)}"
            )
        self._stream = pa.output_stream(path, compression=compression)
        self._stream.write(b'{"type":"FeatureCollection","features":[')
        self._is_first = True

    def write(self, table: pa.Table) -> None:
        for batch in _with_geometry(table).combine_chunks().to_batches(max_chunksize=1 << 16):
            fields = _fields(batch)
            kind = pa.array(['"Feature"'] * len(batch), pa.string())
            properties = {
                name: values for name, values in fields.items() if name not in ("id", "geometry")
            }
            features = _json_objects(
                {
                    "type": kind,
                    "id": fields["id"],
                    "geometry": pc.fill_null(fields["geometry"], "null"),
                    "properties": _json_objects(properties)
                    if properties
                    else pa.array(["{}"] * len(batch), pa.string()),
                }
            )
            self._stream.write(b"\n" if self._is_first else b",\n")
            _write_list(self._stream, features)
            self._is_first = False

    def close(self) -> None:
        self._stream.write(b"\n]}\n")
        self._stream.close()


def _write_lines(stream: Any, texts: pa.Array) -> None:
    if len(texts):
        stream.write(pc.binary_join_element_wise(texts, "\n", "").buffers()[2])


def _write_list(stream: Any, texts: pa.Array) -> None:
    if len(texts):
        lists = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
        stream.write(pc.binary_join(lists, ",\n")[0].as_buffer())


def _fields(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return {
        name: _json_values(column, name)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }


def _json_objects(fields: dict[str, pa.Array]) -> pa.Array:
    """Return JSON objects of columns of JSON values; nulls are left out."""
    members = [
        pc.binary_join_element_wise(f"{json.dumps(name)}:", values, "")
        for name, values in fields.items()
    ]
    inner = pc.binary_join_element_wise(*members, ",", null_handling="skip")
    return pc.binary_join_element_wise("{", inner, "}", "")


def _json_values(array: pa.Array, name: str) -> pa.Array:
    """Return each value as JSON text."""
    data_type = array.type
    if pa.types.is_dictionary(data_type):
        return _json_values(array.dictionary, name).take(array.indices)
    if pa.types.is_integer(data_type):
        return array.cast(pa.string())
    if pa.types.is_floating(data_type):
        if not pc.all(pc.is_finite(array), min_count=0).as_py():
            raise InvalidInput(f"column '{name}' holds NaN or infinity, which JSON cannot express")
        return array.cast(pa.string())
    if pa.types.is_timestamp(data_type):
        return _quoted(_iso(array))
    if pa.types.is_binary(data_type):
        shapes = shapely.from_wkb(_objects(array))
        return pa.array(shapely.to_geojson(shapes), pa.string())
    if pa.types.is_list(data_type):
        # A slice of a longer array: Arrow wants its offsets to begin at 0.
        offsets = array.offsets.to_numpy()
        values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
        lists = pa.ListArray.from_arrays(
            pa.array(offsets - offsets[0]), _json_values(values, name), mask=array.is_null()
        )
        return pc.binary_join_element_wise("[", pc.binary_join(lists, ","), "]", "")
    return _quoted(array.cast(pa.string()))


def _quoted(array: pa.Array) -> pa.Array:
    special = pc.match_substring_regex(array, r'["\\\x00-\x1f]')
    if pc.any(special).as_py():
        return pa.array(
            [
                None if text is None else json.dumps(text, ensure_ascii=False)
                for text in array.to_pylist()
            ],
            pa.string(),
        )
    return pc.binary_join_element_wise('"', array, '"', "")


def _iso(array: Any) -> Any:
    return pc.strftime(array, "%Y-%m-%dT%H:%M:%SZ")


def _objects(array: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.object_]:
    values = np.empty(len(array), object)
    values[:] = array.to_pylist()
    return values


# ---- regions as geometries ----------------------------------------------------------------------


def _geo_schema(schema: pa.Schema) -> pa.Schema:
    return _with_geometry(schema.empty_table()).schema


def _with_geometry(table: pa.Table) -> pa.Table:
    """Replace the columns of boxes, circles and points by one of geometries."""
    n = len(table)
    names = set(table.column_names)
    shapes = np.full(n, None, object)
    if "geometry" in names:
        shapes = shapely.from_wkb(_objects(table.column("geometry")))
    if set(BOX_FIELDS) <= names:
        sides = [table.column(name).to_numpy() for name in BOX_FIELDS]
        boxed = ~np.isnan(sides[0])
        shapes[boxed] = _box_shapes(*(side[boxed] for side in sides))
    if {"x", "y"} <= names:
        x, y = table.column("x").to_numpy(), table.column("y").to_numpy()
        placed = ~np.isnan(x)
        shapes[placed] = shapely.points(x[placed], y[placed])
    kept = table.select([name for name in table.column_names if name not in _PLACE_COLUMNS])
    return kept.append_column("geometry", pa.array(shapely.to_wkb(shapes), pa.binary()))


_PLACE_COLUMNS = frozenset((*BOX_FIELDS, "x", "y", "geometry"))


def _box_shapes(min_x: Any, min_y: Any, max_x: Any, max_y: Any) -> npt.NDArray[np.object_]:
    """Return polygons; a box across the antimeridian becomes two parts, as GeoJSON asks."""
    shapes: npt.NDArray[np.object_] = np.asarray(shapely.box(min_x, min_y, max_x, max_y), object)
    for i in np.flatnonzero(min_x > max_x):
        west = shapely.box(min_x[i], min_y[i], 180.0, max_y[i])
        east = shapely.box(-180.0, min_y[i], max_x[i], max_y[i])
        shapes[i] = shapely.MultiPolygon([west, east])
    return shapes
