"""Reading Parquet and GeoParquet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from earshot.errors import InvalidFile
from earshot.files.columns import (
    FileBatch,
    Layout,
    batch_of_columns,
    check_column_type,
    choose_columns,
)
from earshot.model.arrays import Space
from earshot.model.schemas import IdKind, id_kind

_LONLAT = {("OGC", "CRS84"), ("EPSG", "4326")}


def read_parquet(
    path: str, layout: Layout, space: Space, ids: IdKind | None, batch_rows: int
) -> Iterator[FileBatch]:
    """Yield the rows of a Parquet file; see :func:`earshot.files.read_subscriptions`."""
    try:
        file = pq.ParquetFile(path)
        schema = file.schema_arrow
        schema.names  # noqa: B018 - names that are not UTF-8 come to light here
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InvalidFile(f"{path} cannot be read as Parquet: {_first_line(error)}") from error
    with file:
        layout = _geo_layout(layout, schema, space)
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


def _geo_layout(layout: Layout, schema: pa.Schema, space: Space) -> Layout:
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
    if space == "lonlat":
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
