"""Parquet and GeoParquet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa

from earshot.errors import InvalidFile
from earshot.files.batches import FileBatch
from earshot.files.columns import batch_of_columns
from earshot.files.geometries import with_geometry
from earshot.files.layout import Layout, check_column_type, choose_columns
from earshot.model.schemas import IdKind, id_kind

ROW_GROUP_ROWS = 1 << 20

_LONLAT = {("OGC", "CRS84"), ("EPSG", "4326")}


def _arrow_parquet() -> Any:
    """Return Arrow's module, whose import would take 25 ms of every start."""
    return import_module("pyarrow.parquet")


def read_parquet(
    path: str, layout: Layout, ids: IdKind | None, batch_rows: int
) -> Iterator[FileBatch]:
    """Yield the rows of a Parquet file; see :func:`earshot.files.reading.read_rows`."""
    try:
        file = _arrow_parquet().ParquetFile(path)
        schema = file.schema_arrow
        schema.names  # noqa: B018 - names that are not UTF-8 come to light here
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InvalidFile(
            f"{path} cannot be read as Parquet: {_first_line(error)}; it may be cut short, or be "
            f"something else"
        ) from error
    with file:
        layout = _geo_layout(layout, schema)
        chosen = choose_columns(layout, schema.names)
        for field, column in chosen.items():
            if schema.names.count(column) > 1:
                raise InvalidFile(f"{path}: column '{column}' occurs more than once")
            check_column_type(layout, field, column, schema.field(column).type)
        kind = ids or id_kind(schema.field(chosen["id"]).type) or "integer"
        next_row = 0
        # A list column "keywords" is the leaf "keywords.list.element"; its root name selects it.
        batches = file.iter_batches(batch_rows, columns=list(chosen.values()), use_threads=False)
        while True:
            try:
                batch = next(batches, None)
            except (OSError, pa.ArrowException) as error:
                raise InvalidFile(
                    f"{path} is damaged after row {next_row - 1}: {_first_line(error)}"
                ) from error
            if batch is None:
                return
            rows = np.arange(next_row, next_row + len(batch), dtype=np.int64)
            next_row += len(batch)
            columns = {field: batch.column(column) for field, column in chosen.items()}
            yield batch_of_columns(layout, columns, kind, rows)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]


def _geo_layout(layout: Layout, schema: pa.Schema) -> Layout:
    """Take the geometry column from GeoParquet's metadata, after checking what it says."""
    raw = (schema.metadata or {}).get(b"geo")
    if raw is None:
        return layout
    try:
        facts = json.loads(raw)
        columns: dict[str, Any] = facts["columns"]
        primary: str = facts["primary_column"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidFile(f"{layout.source}: GeoParquet metadata cannot be read: {error}") from None
    names = layout.names["geometry"]
    column = next((name for name in names if name in columns), primary)
    if names != ("geometry",) and column not in names:
        return layout  # the caller chose another column
    about = columns.get(column, {})
    if about.get("encoding", "WKB") != "WKB":
        raise InvalidFile(
            f"{layout.source}: geometry column '{column}' is encoded as {about['encoding']}; "
            f"expected WKB"
        )
    if layout.space == "lonlat":
        if about.get("edges", "planar") != "planar":
            raise InvalidFile(
                f"{layout.source}: geometry column '{column}' has {about['edges']} edges; expected "
                f"planar ones (straight in longitude and latitude)"
            )
        _check_crs(layout.source, column, about)
    return layout._replace(names={**layout.names, "geometry": (column,)})


def _check_crs(source: str, column: str, about: dict[str, Any]) -> None:
    crs = about.get("crs")  # absent means OGC:CRS84, null means unknown
    if crs is None:
        return
    identity = crs.get("id", {}) if isinstance(crs, dict) else {}
    found = (str(identity.get("authority")), str(identity.get("code")))
    if found not in _LONLAT:
        name = crs.get("name", crs) if isinstance(crs, dict) else crs
        raise InvalidFile(
            f"{source}: geometry column '{column}' has coordinate system {name!r}; expected "
            f"longitude/latitude (OGC:CRS84 or EPSG:4326); convert it, or read it as planar"
        )


class ParquetSink:
    """Writes tables to a file."""

    def __init__(self, path: str, schema: pa.Schema, is_geo: bool, is_fast: bool) -> None:
        self._is_geo = is_geo
        self._schema = with_geometry(schema.empty_table()).schema if is_geo else schema
        if "geometry" in self._schema.names:
            columns = {"geometry": {"encoding": "WKB", "geometry_types": []}}
            geo = {"version": "1.1.0", "primary_column": "geometry", "columns": columns}
            self._schema = self._schema.with_metadata({"geo": json.dumps(geo)})
        integers = [field.name for field in self._schema if _is_counted(field.type)]
        others = [field for field in self._schema if not _is_counted(field.type)]
        self._writer = _arrow_parquet().ParquetWriter(
            path,
            self._schema,
            use_dictionary=[
                field.name for field in others if not is_fast or pa.types.is_dictionary(field.type)
            ],
            write_statistics=self._schema.names[:1] if is_fast else True,
            column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
            # Delta-encoded integers do not shrink further; LZ4 made writing them slower.
            compression={
                **dict.fromkeys(integers, "none"),
                **dict.fromkeys(map(_leaf, others), "lz4" if is_fast else "zstd"),
            },
            store_schema=False,
        )

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        if self._is_geo:
            table = with_geometry(table)
        if table.schema.names == self._schema.names:
            table = table.replace_schema_metadata(self._schema.metadata)
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)

    def close(self) -> None:
        """Complete the file."""
        self._writer.close()


def _is_counted(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(data_type) or pa.types.is_timestamp(data_type))


def _leaf(field: pa.Field) -> str:
    return f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name
