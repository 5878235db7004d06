"""Where a subscription listens and where a message was published.

On ``lonlat`` the meridians -180 and 180 are the same line, a rectangle with ``min_x > max_x``
crosses it (the GeoJSON rule), and circles are circles on the sphere of radius
:data:`~earshot.model.arrays.EARTH_RADIUS_M`. The edges of polygons and rectangles are straight in
longitude and latitude; a polygon across the antimeridian is given as two parts, one per side.
Boundaries belong to every region.

The first half of this module handles one region, the second half batches, without a Python loop
over good rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import shapely

from earshot.errors import InvalidRegion
from earshot.model.arrays import EARTH_RADIUS_M, Float64s, Int64s, ShapeArrays, Space

Box: TypeAlias = tuple[float, float, float, float]
Ring: TypeAlias = tuple[tuple[float, float], ...]
Problem: TypeAlias = tuple[int, str, str]
"""Row, field and reason of a value that is wrong; what an ``InvalidRow`` needs."""

HALF_CIRCUMFERENCE_M = math.pi * EARTH_RADIUS_M
"""The greatest distance between two points of the sphere, and so the largest radius."""

LARGEST_POLYGON_COORDINATE = 1e150
"""Products of two polygon coordinates must not overflow, or polygons could not be exact."""

# A point whose distance is computed as <= radius may lie this much (in radians, 0.64 m) outside
# the true circle: the haversine loses half of its digits near the antipode. Boxes are only a
# filter in front of the exact test, so the slack is added everywhere.
_SLACK_RAD = 1e-7
_PLANAR_SLACK = 1.0 + 1e-12

_WORLD: Box = (-180.0, -90.0, 180.0, 90.0)


@dataclass(frozen=True, slots=True)
class Point:
    """A place without extent; only messages have one."""

    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Rectangle:
    """All points between two corners; on lonlat ``min_x > max_x`` crosses the antimeridian."""

    min_x: float
    min_y: float
    max_x: float
    max_y: float


@dataclass(frozen=True, slots=True)
class Circle:
    """All points within ``radius`` of a centre: metres on lonlat, else the coordinates' unit."""

    x: float
    y: float
    radius: float


@dataclass(frozen=True, slots=True)
class Polygon:
    """The points inside an odd number of rings, and all points on the rings.

    Holes and further parts are just more rings. A ring whose last position does not repeat its
    first is closed by the constructor. A single ring may be given as ``Polygon([ring])``.
    """

    rings: tuple[Ring, ...]

    def __init__(self, rings: Iterable[Iterable[Sequence[float]]]) -> None:
        object.__setattr__(self, "rings", tuple(_closed_ring(ring) for ring in rings))


@dataclass(frozen=True, slots=True)
class Everywhere:
    """The whole space."""


Region: TypeAlias = Rectangle | Circle | Polygon | Everywhere
Place: TypeAlias = Point | Rectangle


def validate(region: Region | Point, space: Space) -> None:
    """Raise :class:`InvalidRegion` with the exact reason if the region is not one of the space."""
    reason = _reason(region, space)
    if reason is not None:
        raise InvalidRegion(f"{type(region).__name__.lower()}: {reason}")


def boxes(region: Region | Point, space: Space) -> list[Box]:
    """Return boxes that together cover a valid region, each with ``min <= max``.

    The boxes of a point or a rectangle *are* the region. A region that reaches one of the meridians
    -180 and 180 also gets a box without width on the other, because they are the same line.
    """
    match region:
        case Everywhere():
            return [(-math.inf, -math.inf, math.inf, math.inf)]
        case Point(x, y):
            return _split((x, y, x, y), space)
        case Rectangle(min_x, min_y, max_x, max_y):
            return _split((min_x, min_y, max_x, max_y), space)
        case Circle(x, y, radius):
            return _tuples(circle_boxes([x], [y], [radius], space)[1])
        case Polygon(rings):
            return _polygon_boxes(rings, space)


def _closed_ring(positions: Iterable[Sequence[float]]) -> Ring:
    ring: list[tuple[float, float]] = []
    for position in positions:
        try:
            x, y = position[0], position[1]
            ring.append((float(x), float(y)))
        except (TypeError, ValueError, IndexError) as error:
            raise InvalidRegion(
                f"polygon: {position!r} is not a position; expected rings of (x, y) pairs"
            ) from error
    if ring and ring[0] != ring[-1]:
        ring.append(ring[0])
    return tuple(ring)


def _reason(region: Region | Point, space: Space) -> str | None:
    """Return what is wrong with the region, or None."""
    match region:
        case Everywhere():
            return None
        case Point(x, y):
            xs, ys = _columns(x, y)
            return _first_reason(point_problems(xs, ys, space))
        case Rectangle(min_x, min_y, max_x, max_y):
            row = np.stack(_columns(min_x, min_y, max_x, max_y), axis=1)
            return _first_reason(rectangle_problems(row, space))
        case Circle(x, y, radius):
            xs, ys, radii = _columns(x, y, radius)
            return _first_reason(circle_problems(xs, ys, radii, space))
        case Polygon(rings):
            return _polygon_reason(rings, space)
        case _:
            return (
                f"{region!r} is not a region; "
                "expected a Point, Rectangle, Circle, Polygon or Everywhere"
            )


def _columns(*values: float) -> tuple[Float64s, ...]:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
            raise InvalidRegion(f"{value!r} is not a number")
    return tuple(np.array([value], np.float64) for value in values)


def _first_reason(problems: list[Problem]) -> str | None:
    return problems[0][2] if problems else None


def _tuples(rows: Float64s) -> list[Box]:
    return [(row[0], row[1], row[2], row[3]) for row in rows.tolist()]


def _split(box: Box, space: Space) -> list[Box]:
    return _tuples(split_rectangles(np.array([box], np.float64), space)[1])


# ---- polygons -----------------------------------------------------------------------------------


def _polygon_reason(rings: tuple[Ring, ...], space: Space) -> str | None:
    if not rings:
        return "it has no rings; expected at least one"
    for ring in rings:
        if len(ring) < 4:
            return (
                f"a ring has {len(ring)} positions; "
                f"expected at least 4, of which the last repeats the first"
            )
    positions = np.array([position for ring in rings for position in ring], np.float64)
    reason = _first_reason(point_problems(positions[:, 0], positions[:, 1], space))
    if reason is not None:
        return reason
    largest = float(np.abs(positions).max())
    if largest > LARGEST_POLYGON_COORDINATE:
        return (
            f"a coordinate of size {largest} is too large; "
            f"polygons are exact up to {LARGEST_POLYGON_COORDINATE}"
        )
    parts = shapely.polygons([shapely.linearrings(ring) for ring in rings])
    for part, validity in zip(parts, shapely.is_valid_reason(parts), strict=True):
        if validity != "Valid Geometry":
            return _invalid_ring_reason(part, str(validity))
    if len(rings) > 1:
        return _overlap_reason(parts)
    return None


def _invalid_ring_reason(part: Any, validity: str) -> str:
    if shapely.area(part) == 0.0 and shapely.area(shapely.convex_hull(part)) == 0.0:
        return "a ring encloses no area; all of its positions lie on one line"
    return f"a ring is not valid: {validity}; expected one that neither crosses nor touches itself"


def _overlap_reason(parts: Any) -> str | None:
    """Rings may nest or touch, but a crossing of two is a mistake rather than a region."""
    tree = shapely.STRtree(parts)
    overlaps = _pairs(tree, parts, "overlaps")
    if overlaps:
        return "ring {} crosses ring {}; expected rings that nest or lie apart".format(*overlaps[0])
    covers = _pairs(tree, parts, "covers")
    same = [(a, b) for a, b in covers if a < b and (b, a) in set(covers)]
    if same:
        return "rings {} and {} are the same, so they enclose nothing".format(*same[0])
    return None


def _pairs(tree: Any, parts: Any, predicate: str) -> list[tuple[int, int]]:
    return sorted(zip(*tree.query(parts, predicate=predicate).tolist(), strict=True))


def _polygon_boxes(rings: tuple[Ring, ...], space: Space) -> list[Box]:
    min_xs = [min(x for x, _ in ring) for ring in rings]
    max_xs = [max(x for x, _ in ring) for ring in rings]
    min_y = min(y for ring in rings for _, y in ring)
    max_y = max(y for ring in rings for _, y in ring)
    box = (min(min_xs), min_y, max(max_xs), max_y)
    if space == "lonlat" and box[0] == -180.0 and box[2] == 180.0:
        # Parts on both sides of the antimeridian: leave out the widest gap between them, or the
        # box of a small island group would go around the world.
        spans = sorted(zip(min_xs, max_xs, strict=True))
        reach, gap, west_end, east_start = spans[0][1], 0.0, 180.0, -180.0
        for start, end in spans[1:]:
            if start - reach > gap:
                gap, west_end, east_start = start - reach, reach, start
            reach = max(reach, end)
        if gap > 0.0:
            return [(-180.0, min_y, west_end, max_y), (east_start, min_y, 180.0, max_y)]
    return _split(box, space)


# ---- batches ------------------------------------------------------------------------------------


def point_problems(x: npt.ArrayLike, y: npt.ArrayLike, space: Space) -> list[Problem]:
    """Return what is wrong with points, given as two columns."""
    return _coordinate_problems({"x": x, "y": y}, space)


def rectangle_problems(rectangles: npt.ArrayLike, space: Space) -> list[Problem]:
    """Return what is wrong with rectangles, given as rows of min_x, min_y, max_x, max_y."""
    columns = np.asarray(rectangles, np.float64).reshape(-1, 4)
    min_x, min_y, max_x, max_y = columns.T
    problems = _coordinate_problems(
        {"min_x": min_x, "min_y": min_y, "max_x": max_x, "max_y": max_y}, space
    )
    problems += [
        (row, "min_y", f"min_y {low} is greater than max_y {high}")
        for row, low, high in _where(min_y > max_y, min_y, max_y)
    ]
    if space == "planar":
        problems += [
            (row, "min_x", f"min_x {low} is greater than max_x {high}")
            for row, low, high in _where(min_x > max_x, min_x, max_x)
        ]
    return sorted(problems, key=lambda problem: problem[0])


def circle_problems(
    x: npt.ArrayLike, y: npt.ArrayLike, radius: npt.ArrayLike, space: Space
) -> list[Problem]:
    """Return what is wrong with circles, given as three columns."""
    radii = np.asarray(radius, np.float64)
    problems = point_problems(x, y, space)
    problems += [
        (row, "radius", f"radius {value} is not finite")
        for row, value in _where(~np.isfinite(radii), radii)
    ]
    problems += [
        (row, "radius", f"radius {value} is negative")
        for row, value in _where(np.isfinite(radii) & (radii < 0.0), radii)
    ]
    if space == "lonlat":
        too_large = np.isfinite(radii) & (radii > HALF_CIRCUMFERENCE_M)
        problems += [
            (
                row,
                "radius",
                f"radius {value} m is more than half the Earth's circumference, "
                f"{HALF_CIRCUMFERENCE_M:.1f} m; use Everywhere",
            )
            for row, value in _where(too_large, radii)
        ]
    return sorted(problems, key=lambda problem: problem[0])


def split_rectangles(rectangles: npt.ArrayLike, space: Space) -> tuple[Int64s, Float64s]:
    """Return boxes with ``min <= max`` that cover valid rectangles, and the row each came from.

    On planar these are the rectangles themselves. On lonlat a crossing rectangle is cut into two,
    and one that reaches only one of the meridians -180 and 180 gets a box on the other.
    """
    found = np.array(rectangles, np.float64).reshape(-1, 4)  # a copy
    rows = np.arange(len(found), dtype=np.int64)
    if space == "planar":
        return rows, found
    min_x, max_x = found[:, 0], found[:, 2]
    crossing = min_x > max_x
    at_west = (min_x == -180.0) & (max_x < 180.0)
    at_east = (max_x == 180.0) & (min_x > -180.0) & ~crossing
    # A crossing rectangle reaches both meridians by its two halves.
    at_west &= ~crossing
    more_rows = np.flatnonzero(crossing | at_west | at_east)
    if not len(more_rows):
        return rows, found
    more = found[more_rows]
    more[:, 0] = np.where(at_west[more_rows], 180.0, -180.0)
    more[:, 2] = np.where(
        crossing[more_rows], more[:, 2], np.where(at_west[more_rows], 180.0, -180.0)
    )
    found[crossing, 2] = 180.0
    all_rows = np.concatenate([rows, more_rows])
    order = np.argsort(all_rows, kind="stable")
    return all_rows[order], np.concatenate([found, more])[order]


def circle_boxes(
    x: npt.ArrayLike, y: npt.ArrayLike, radius: npt.ArrayLike, space: Space
) -> tuple[Int64s, Float64s]:
    """Return boxes with ``min <= max`` that cover valid circles, and the row each came from.

    They are a hair too large, so that no point is lost whose distance is rounded to the radius.
    """
    xs, ys, radii = (np.atleast_1d(np.asarray(column, np.float64)) for column in (x, y, radius))
    if space == "planar":
        reach = radii * _PLANAR_SLACK
        with np.errstate(over="ignore"):  # a side beyond the largest number is infinite
            sides = [xs - reach, ys - reach, xs + reach, ys + reach]
        low, high = -np.inf, np.inf
        found = np.stack(
            [
                np.nextafter(side, bound)
                for side, bound in zip(sides, (low, low, high, high), strict=True)
            ],
            axis=1,
        )
        return np.arange(len(found), dtype=np.int64), found
    reach_rad = radii / EARTH_RADIUS_M + _SLACK_RAD
    latitudes_rad = np.radians(ys)
    min_y = np.degrees(latitudes_rad - reach_rad)
    max_y = np.degrees(latitudes_rad + reach_rad)
    holds_pole = (min_y <= -90.0) | (max_y >= 90.0)
    # The circle's easternmost point is where a meridian touches it: sin(dx) = sin(r) / cos(y).
    with np.errstate(invalid="ignore", divide="ignore"):
        sines = np.sin(reach_rad) / np.cos(latitudes_rad)
        reach_x = np.degrees(np.arcsin(np.minimum(sines, 1.0)))
    min_x, max_x = xs - reach_x, xs + reach_x
    around = holds_pole | ~(max_x - min_x < 360.0)
    min_x = np.where(around, -180.0, np.where(min_x < -180.0, min_x + 360.0, min_x))
    max_x = np.where(around, 180.0, np.where(max_x > 180.0, max_x - 360.0, max_x))
    found = np.stack([min_x, np.maximum(min_y, -90.0), max_x, np.minimum(max_y, 90.0)], axis=1)
    return split_rectangles(found, space)


def circle_shape_arrays(x: npt.ArrayLike, y: npt.ArrayLike, radius: npt.ArrayLike) -> ShapeArrays:
    """Return the shape table of circles, given as three columns; row i is circle i."""
    columns = [np.atleast_1d(np.asarray(column, np.float64)) for column in (x, y, radius)]
    circles = np.ascontiguousarray(np.stack(columns, axis=1))
    return ShapeArrays(
        circles,
        np.zeros(len(circles) + 1, np.int64),
        np.zeros(1, np.int64),
        np.empty((0, 2), np.float64),
    )


def shape_arrays(regions: Sequence[Circle | Polygon]) -> ShapeArrays:
    """Return the shape table of valid circles and polygons; row i is region i."""
    circles = np.full((len(regions), 3), (0.0, 0.0, -1.0))
    n_rings = np.zeros(len(regions) + 1, np.int64)
    n_vertices = [0]
    vertices: list[tuple[float, float]] = []
    for row, region in enumerate(regions):
        if isinstance(region, Circle):
            circles[row] = region.x, region.y, region.radius
        else:
            n_rings[row + 1] = len(region.rings)
            for ring in region.rings:
                n_vertices.append(len(ring))
                vertices.extend(ring)
    return ShapeArrays(
        circles,
        np.cumsum(n_rings),
        np.cumsum(np.array(n_vertices, np.int64)),
        np.array(vertices, np.float64).reshape(-1, 2),
    )


def _coordinate_problems(columns: Mapping[str, npt.ArrayLike], space: Space) -> list[Problem]:
    """Return coordinates that are not finite or outside the space; first by row, then by field."""
    problems: list[Problem] = []
    for field, column in columns.items():
        values = np.asarray(column, np.float64)
        good = np.isfinite(values)
        if space == "lonlat":
            good &= np.abs(values) <= (180.0 if field.endswith("x") else 90.0)
        problems += [
            (row, field, _coordinate_reason(field, value, space))
            for row, value in _where(~good, values)
        ]
    return sorted(problems, key=lambda problem: problem[0])


def _coordinate_reason(field: str, value: float, space: Space) -> str:
    if space == "planar":
        return f"{field} {value} is not finite"
    name, limit = ("longitude", 180) if field.endswith("x") else ("latitude", 90)
    if not math.isfinite(value):
        return f"{name} {value} is not finite"
    return f"{name} {value} is outside [-{limit}, {limit}]"


def _where(wrong: npt.NDArray[np.bool_], *columns: Float64s) -> Iterable[tuple[Any, ...]]:
    """Return the row numbers that are wrong, with their values in the given columns."""
    rows = np.flatnonzero(wrong)
    return zip(rows.tolist(), *(column[rows].tolist() for column in columns), strict=True)


# ---- WKT, WKB and GeoJSON -----------------------------------------------------------------------


def parse_geometry(value: str | bytes | Mapping[str, Any]) -> Region | Point:
    """Read a point, polygon or multipolygon given as WKT, WKB or GeoJSON.

    A polygon that is an axis-parallel rectangle becomes a :class:`Rectangle`. A third coordinate
    (altitude) is no part of Earshot's space and is left out. Coordinates are not checked against a
    space; :func:`validate` does that.
    """
    if isinstance(value, Mapping):
        value = json.dumps(value)
    regions, problems = parse_geometries([value])
    if problems:
        raise InvalidRegion(f"{_shortened(value)}: {problems[0][1]}")
    region = regions[0]
    assert region is not None
    return region


def parse_geometries(
    values: Sequence[str | bytes] | npt.NDArray[np.object_], space: Space | None = None
) -> tuple[list[Region | Point | None], list[tuple[int, str]]]:
    """Read many geometries; see :func:`parse_geometry`.

    Args:
        values: WKT, WKB or GeoJSON text in each row.
        space: Where given, coordinates are checked against it, too.

    Returns:
        One region per row, None where it is wrong; and the row and reason of each wrong one.
    """
    geometries, problems = _read_geometries(values)
    problems |= _geometry_problems(geometries, problems)
    good = np.array([row not in problems for row in range(len(geometries))], np.bool_)
    if space is not None:
        coordinates, index = shapely.get_coordinates(geometries, return_index=True)
        for position, _, reason in point_problems(coordinates[:, 0], coordinates[:, 1], space):
            problems.setdefault(int(index[position]), reason)
        good = np.array([row not in problems for row in range(len(geometries))], np.bool_)
    regions: list[Region | Point | None] = [None] * len(geometries)
    types = shapely.get_type_id(geometries)
    points = np.flatnonzero(good & (types == shapely.GeometryType.POINT))
    for row, (x, y) in zip(
        points.tolist(), shapely.get_coordinates(geometries[points]).tolist(), strict=True
    ):
        regions[row] = Point(x, y)
    is_rectangle = np.zeros(len(geometries), np.bool_)
    areas = np.flatnonzero(good & (types != shapely.GeometryType.POINT))
    is_rectangle[areas] = _are_rectangles(geometries[areas])
    rectangles = np.flatnonzero(is_rectangle)
    for row, sides in zip(
        rectangles.tolist(), shapely.bounds(geometries[rectangles]).tolist(), strict=True
    ):
        regions[row] = Rectangle(*sides)
    for row in areas[~is_rectangle[areas]].tolist():
        rings = shapely.get_rings(geometries[row])
        regions[row] = Polygon(shapely.get_coordinates(ring).tolist() for ring in rings)
    return regions, sorted(problems.items())


def _read_geometries(
    values: Sequence[str | bytes] | npt.NDArray[np.object_],
) -> tuple[npt.NDArray[np.object_], dict[int, str]]:
    """Return shapely geometries, None and a reason where a value cannot be read."""
    geometries = np.full(len(values), None, np.object_)
    problems: dict[int, str] = {}
    rows_by_format: dict[str, list[int]] = {"WKB": [], "GeoJSON": [], "WKT": []}
    for row, value in enumerate(values):
        if isinstance(value, bytes):
            rows_by_format["WKB"].append(row)
        elif isinstance(value, str):
            is_json = value.lstrip()[:1] == "{"
            rows_by_format["GeoJSON" if is_json else "WKT"].append(row)
        else:
            problems[row] = f"a {type(value).__name__} is no geometry; expected text or bytes"
    readers = {"WKB": shapely.from_wkb, "GeoJSON": shapely.from_geojson, "WKT": shapely.from_wkt}
    for name, rows in rows_by_format.items():
        if not rows:
            continue
        chosen = np.empty(len(rows), np.object_)
        chosen[:] = [values[row] for row in rows]
        found = readers[name](chosen, on_invalid="ignore")
        geometries[rows] = found
        for position in np.flatnonzero(shapely.is_missing(found)).tolist():
            problems[rows[position]] = _unreadable_reason(name, readers[name], chosen[position])
    return geometries, problems


def _unreadable_reason(name: str, reader: Any, value: str | bytes) -> str:
    try:
        reader(value)
    except shapely.errors.ShapelyError as error:
        return f"cannot be read as {name}: {error}"
    return f"cannot be read as {name}: it holds no geometry"


def _geometry_problems(
    geometries: npt.NDArray[np.object_], known: dict[int, str]
) -> dict[int, str]:
    """Return the rows whose geometry is not a valid point, polygon or multipolygon."""
    types = shapely.get_type_id(geometries)
    names = {kind.value: kind.name for kind in shapely.GeometryType}
    accepted = (
        shapely.GeometryType.POINT,
        shapely.GeometryType.POLYGON,
        shapely.GeometryType.MULTIPOLYGON,
    )
    problems: dict[int, str] = {}
    for row in np.flatnonzero(~np.isin(types, accepted)).tolist():
        if row not in known:
            problems[row] = (
                f"a {names[int(types[row])]} is no region; "
                f"expected a POINT, POLYGON or MULTIPOLYGON"
            )
    for row in np.flatnonzero(shapely.is_empty(geometries)).tolist():
        problems.setdefault(row, "the geometry is empty")
    coordinates, index = shapely.get_coordinates(geometries, return_index=True)
    for row in np.unique(index[~np.isfinite(coordinates).all(axis=1)]).tolist():
        problems.setdefault(row, "a coordinate is not finite")
    checked = np.array(
        [row for row in range(len(geometries)) if row not in problems and row not in known],
        np.int64,
    )
    invalid = checked[~shapely.is_valid(geometries[checked])]
    for row, reason in zip(
        invalid.tolist(), shapely.is_valid_reason(geometries[invalid]).tolist(), strict=True
    ):
        problems[row] = f"the geometry is not valid: {reason}"
    return problems


def _are_rectangles(geometries: npt.NDArray[np.object_]) -> npt.NDArray[np.bool_]:
    """Return which valid polygons are axis-parallel rectangles.

    A valid ring of five positions that are all corners of its bounding box has no other way to go.
    """
    result = (shapely.get_num_coordinates(geometries) == 5) & (
        shapely.get_type_id(geometries) == shapely.GeometryType.POLYGON
    )
    bounds = shapely.bounds(geometries).reshape(-1, 4)
    coordinates, index = shapely.get_coordinates(geometries, return_index=True)
    on_corner = np.ones(len(coordinates), np.bool_)
    for axis in (0, 1):
        values = coordinates[:, axis]
        on_corner &= (values == bounds[index, axis]) | (values == bounds[index, axis + 2])
    result[index[~on_corner]] = False
    return np.asarray(result, np.bool_)


def _shortened(value: str | bytes) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
