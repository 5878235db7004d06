"""Geometries of files: from WKT and GeoJSON, as regions and places, and back again."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import shapely

from earshot.errors import InvalidInput
from earshot.files.layout import Layout, PlaceKind
from earshot.files.rejects import Problems, add_problems
from earshot.model.regions import (
    Point,
    Polygon,
    Rectangle,
    parse_geometry,
    polygon_box,
    read_geometries,
)
from earshot.model.schemas import BOX_FIELDS, POINT_FIELDS, WHICH_PLACE

_POINT_HEAD = struct.pack("<BI", 1, 1)
_POLYGON_HEAD = struct.pack("<BI", 1, 3)
_NUMBER_TYPES = frozenset((int, float))
_POLYGON = (
    "is a polygon; a message is at a point or in an axis-parallel rectangle: give one of these, or "
    "take the box around it with --place box (place='box')"
)
_PLACE_COLUMNS = frozenset((*BOX_FIELDS, *POINT_FIELDS, "geometry"))


# ---- as they are read ---------------------------------------------------------------------------


def wkb_of_texts(texts: Sequence[str | None], problems: Problems) -> pa.Array:
    """Return WKB of WKT, or of GeoJSON where a text begins with a brace."""
    given = [i for i, text in enumerate(texts) if text is not None and text.strip()]
    shapes = np.full(len(texts), None, object)
    values = np.array(texts, object)
    shapes[given], wrong = read_geometries(values[given])
    for i, reason in wrong.items():
        problems.setdefault(given[i], ("geometry", f"{values[given[i]][:80]!r} {reason}"))
    return pa.array(shapely.to_wkb(shapes), pa.binary())


def wkb_of_geojson(value: dict[str, Any]) -> bytes | None:
    """Return the WKB of a plain point or polygon; None leaves all else to the full reader.

    Half of the time of reading GeoJSON went into writing geometries as text again for that one.
    """
    kind, coordinates = value.get("type"), value.get("coordinates")
    try:
        if kind == "Point":
            x, y = coordinates  # type: ignore[misc]  # this is the check
            return _POINT_HEAD + _packed((x, y))
        if kind == "Polygon":
            parts = [_POLYGON_HEAD, struct.pack("<I", len(coordinates))]  # type: ignore[arg-type]
            for ring in coordinates:  # type: ignore[union-attr]
                if len(ring) < 4 or ring[0] != ring[-1]:
                    return None
                parts.append(struct.pack("<I", len(ring)))
                parts.append(_packed([side for x, y in ring for side in (x, y)]))
            return b"".join(parts) if len(parts) > 2 else None
    except (TypeError, ValueError, struct.error):
        pass
    return None


def _packed(values: Sequence[Any]) -> bytes:
    if not _NUMBER_TYPES.issuperset(map(type, values)):
        raise TypeError
    return struct.pack(f"<{len(values)}d", *values)


def settle_geometries(
    arrays: dict[str, pa.Array], problems: Problems, n: int, layout: Layout
) -> None:
    """Turn the geometries of messages into points and boxes."""
    geometry = arrays.pop("geometry")
    given = ~nulls_of(geometry)
    if not given.any():
        return
    shapes = shapely.from_wkb(geometry.to_numpy(zero_copy_only=False), on_invalid="ignore")
    columns = {field: floats_of(arrays.get(field), n) for field in (*POINT_FIELDS, *BOX_FIELDS)}
    has_point, has_box = (
        ~np.logical_and.reduce([np.isnan(columns[field]) for field in fields])
        for fields in (POINT_FIELDS, BOX_FIELDS)
    )
    is_point = given & (shapely.get_type_id(shapes) == 0) & ~shapely.is_empty(shapes)
    if layout.place is None:
        is_twice = given & (has_point | has_box)
        reason = f"is given beside another place; give one, or {WHICH_PLACE}"
    else:
        is_twice = given & np.where(is_point, has_point, has_box)
        reason = "is given beside another place of its kind; give one"
        if layout.place == "point":
            given &= is_point | ~has_point  # the others do not count
    add_problems(problems, is_twice, "geometry", lambda _: reason)
    points = is_point & ~is_twice
    columns["x"][points] = shapely.get_x(shapes[points])
    columns["y"][points] = shapely.get_y(shapes[points])
    for position in np.flatnonzero(given & ~points & ~is_twice).tolist():
        try:
            place = parse_geometry(geometry[position].as_py())
        except InvalidInput as error:
            problems.setdefault(position, ("geometry", str(error)))
            continue
        if isinstance(place, Point):
            columns["x"][position], columns["y"][position] = place.x, place.y
        elif isinstance(place, Rectangle):
            for field in BOX_FIELDS:
                columns[field][position] = getattr(place, field)
        elif isinstance(place, Polygon) and layout.place == "box":
            for field, side in zip(BOX_FIELDS, polygon_box(place.rings, layout.space), strict=True):
                columns[field][position] = side
        else:
            problems.setdefault(position, ("geometry", _POLYGON))
    # A field that was given as NaN stays NaN for the encoder to refuse; only nulls were filled.
    for field, column in columns.items():
        was_null = nulls_of(arrays.get(field), n)
        arrays[field] = pa.array(column, mask=was_null & np.isnan(column))


def keep_place(arrays: dict[str, pa.Array], n: int, place: PlaceKind) -> None:
    """Where a message has a point and a box, leave the other one out."""
    kept, left = (POINT_FIELDS, BOX_FIELDS) if place == "point" else (BOX_FIELDS, POINT_FIELDS)
    dropped = ~np.logical_or.reduce([nulls_of(arrays.get(field), n) for field in kept])
    for field in left:
        if field in arrays:
            nothing = pa.scalar(None, arrays[field].type)
            arrays[field] = pc.if_else(pa.array(dropped), nothing, arrays[field])


def settle_circles(arrays: dict[str, pa.Array], problems: Problems, n: int) -> None:
    """A point geometry with a radius is a circle."""
    geometry = arrays["geometry"]
    given = ~nulls_of(geometry) & ~nulls_of(arrays["radius"])
    if not given.any():
        return
    values = geometry.to_numpy(zero_copy_only=False)
    shapes = np.full(n, None, object)
    shapes[given] = shapely.from_wkb(values[given], on_invalid="ignore")
    points = given & (shapely.get_type_id(shapes) == 0) & ~shapely.is_empty(shapes)
    for field in POINT_FIELDS:
        points &= nulls_of(arrays.get(field), n)
    for field, get in (("x", shapely.get_x), ("y", shapely.get_y)):
        column = floats_of(arrays.get(field), n)
        column[points] = get(shapes[points])
        arrays[field] = pa.array(column, mask=nulls_of(arrays.get(field), n) & ~points)
    arrays["geometry"] = pc.if_else(pa.array(points), pa.scalar(None, pa.binary()), geometry)


def nulls_of(array: pa.Array | None, n: int = 0) -> npt.NDArray[np.bool_]:
    """Return which values are null; all ``n`` where there is no column."""
    if array is None:
        return np.ones(n, bool)
    nulls: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return nulls


def floats_of(array: pa.Array | None, n: int) -> npt.NDArray[np.float64]:
    """Return a copy of the numbers, NaN where they are null or there is no column."""
    if array is None:
        return np.full(n, np.nan)
    return np.array(array.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)


# ---- as they are written ------------------------------------------------------------------------


def with_geometry(table: pa.Table) -> pa.Table:
    """Replace the columns of boxes, circles and points by one of geometries."""
    n = len(table)
    names = set(table.column_names)
    shapes = np.full(n, None, object)
    if "geometry" in names:
        shapes = shapes_of(table.column("geometry"))
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


def _box_shapes(min_x: Any, min_y: Any, max_x: Any, max_y: Any) -> npt.NDArray[np.object_]:
    """Return polygons; a box across the antimeridian becomes two parts, as GeoJSON asks."""
    shapes: npt.NDArray[np.object_] = np.asarray(shapely.box(min_x, min_y, max_x, max_y), object)
    for i in np.flatnonzero(min_x > max_x):
        west = shapely.box(min_x[i], min_y[i], 180.0, max_y[i])
        east = shapely.box(-180.0, min_y[i], max_x[i], max_y[i])
        shapes[i] = shapely.MultiPolygon([west, east])
    return shapes


def shapes_of(array: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.object_]:
    """Return the shapes of WKB."""
    values = np.empty(len(array), object)
    values[:] = array.to_pylist()
    shapes: npt.NDArray[np.object_] = shapely.from_wkb(values)
    return shapes
