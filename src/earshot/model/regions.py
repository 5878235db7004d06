"""Where a subscription listens and where a message was published.

On ``lonlat`` the meridians -180 and 180 are the same line, a rectangle with ``min_x > max_x``
crosses it (the GeoJSON rule), and circles are circles on the sphere of radius
:data:`~earshot.model.arrays.EARTH_RADIUS_M`. The edges of polygons and rectangles are straight in
longitude and latitude, up to the poles; a polygon across the antimeridian is given as two parts,
one per side.
Boundaries belong to every region.

The first half of this module handles one region, the second half batches, without a Python loop
over good rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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
SMALLEST_POLYGON_COORDINATE = 1e-130
"""Products of two polygon coordinates must not over- or underflow, or polygons were not exact."""

# A point whose distance is computed as <= radius may lie this much (in radians, 0.64 m) outside
# the true circle: the haversine loses half of its digits near the antipode. Boxes are only a
# filter in front of the exact test, so the slack is added everywhere.
_SLACK_RAD = 1e-7
_PLANAR_SLACK = 1.0 + 1e-12


@dataclass(frozen=True, slots=True)
class Point:
    """A place without extent; as a region, a circle of radius 0."""

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
    first is closed by the constructor.
    """

    rings: tuple[Ring, ...]

    def __init__(self, rings: Iterable[Iterable[Sequence[float]]]) -> None:
        object.__setattr__(self, "rings", tuple(_closed_ring(ring) for ring in rings))


@dataclass(frozen=True, slots=True)
class Everywhere:
    """The whole space."""


Region: TypeAlias = Rectangle | Circle | Polygon | Everywhere
RegionOrPoint: TypeAlias = Region | Point
"""Where a subscription may listen; a point is a circle of radius 0."""
Place: TypeAlias = Point | Rectangle


def validate(region: RegionOrPoint, space: Space) -> None:
    """Raise :class:`InvalidRegion` with the exact reason if the region is not one of the space."""
    reason = _reason(region, space)
    if reason is not None:
        raise InvalidRegion(f"{type(region).__name__.lower()}: {reason}")


def boxes(region: RegionOrPoint, space: Space) -> list[Box]:
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
            found = circle_boxes(x, y, radius, space)[1]
            return [(row[0], row[1], row[2], row[3]) for row in found.tolist()]
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


def _reason(region: RegionOrPoint, space: Space) -> str | None:
    """Return what is wrong with the region, or None."""
    problem: tuple[str, str] | None
    match region:
        case Everywhere():
            return None
        case Point(x, y):
            problem = _point_problem(_number(x), _number(y), space)
        case Rectangle(min_x, min_y, max_x, max_y):
            problem = _rectangle_problem(
                _number(min_x), _number(min_y), _number(max_x), _number(max_y), space
            )
        case Circle(x, y, radius):
            problem = _circle_problem(_number(x), _number(y), _number(radius), space)
        case Polygon(rings):
            return _polygon_reason(rings, space)
        case _:
            return (
                f"{region!r} is not a region; "
                f"expected a Point, Rectangle, Circle, Polygon or Everywhere"
            )
    return None if problem is None else problem[1]


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise InvalidRegion(f"{value!r} is not a number")
    return float(value)


def _point_problem(x: float, y: float, space: Space) -> tuple[str, str] | None:
    """Return the field and the reason of what is wrong with a point, or None."""
    return _coordinate_problem("x", x, space) or _coordinate_problem("y", y, space)


def _rectangle_problem(
    min_x: float, min_y: float, max_x: float, max_y: float, space: Space
) -> tuple[str, str] | None:
    problem = (
        _coordinate_problem("min_x", min_x, space)
        or _coordinate_problem("min_y", min_y, space)
        or _coordinate_problem("max_x", max_x, space)
        or _coordinate_problem("max_y", max_y, space)
    )
    if problem is None and min_y > max_y:
        return "min_y", f"min_y {min_y} is greater than max_y {max_y}"
    if problem is None and min_x > max_x and space == "planar":
        return "min_x", f"min_x {min_x} is greater than max_x {max_x}"
    return problem


def _circle_problem(x: float, y: float, radius: float, space: Space) -> tuple[str, str] | None:
    problem = _point_problem(x, y, space)
    if problem is not None:
        return problem
    if not math.isfinite(radius):
        return "radius", f"radius {radius} is not finite"
    if radius < 0.0:
        return "radius", f"radius {radius} is negative"
    if space == "lonlat" and radius > HALF_CIRCUMFERENCE_M:
        return "radius", (
            f"radius {radius} m is more than half the Earth's circumference, "
            f"{HALF_CIRCUMFERENCE_M:.1f} m; use Everywhere"
        )
    return None


def _coordinate_problem(field: str, value: float, space: Space) -> tuple[str, str] | None:
    if space == "planar":
        return None if math.isfinite(value) else (field, f"{field} {value} is not finite")
    name, limit = ("longitude", 180) if field.endswith("x") else ("latitude", 90)
    if -limit <= value <= limit:
        return None
    if not math.isfinite(value):
        return field, f"{name} {value} is not finite"
    return field, f"{name} {value} is outside [-{limit}, {limit}]"


def _split(box: Box, space: Space) -> list[Box]:
    """Cut one box at the antimeridian; :func:`split_rectangles` does the same for many."""
    min_x, min_y, max_x, max_y = box
    if space == "planar":
        return [box]
    if min_x > max_x:
        return [(min_x, min_y, 180.0, max_y), (-180.0, min_y, max_x, max_y)]
    if (min_x == -180.0) == (max_x == 180.0):
        return [box]
    twin_x = 180.0 if min_x == -180.0 else -180.0
    return [box, (twin_x, min_y, twin_x, max_y)]


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
    problems = point_problems(positions[:, 0], positions[:, 1], space)
    if problems:
        return problems[0][2]
    sizes = np.abs(positions)
    smallest = float(sizes.min(where=sizes > 0, initial=np.inf))
    if smallest < SMALLEST_POLYGON_COORDINATE:
        return (
            f"a coordinate of size {smallest} is too small; "
            f"polygons are exact from {SMALLEST_POLYGON_COORDINATE}; give 0"
        )
    largest = float(sizes.max())
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


# A problem is found for whole columns at once; its words are then written for the wrong rows only.


def point_problems(x: npt.ArrayLike, y: npt.ArrayLike, space: Space) -> list[Problem]:
    """Return the first problem of each wrong point; points are given as two columns."""
    xs, ys = _columns(x, y)
    return _problems(_are_inside(xs, ys, space), [xs, ys], _point_problem, space)


def rectangle_problems(rectangles: npt.ArrayLike, space: Space) -> list[Problem]:
    """Return the first problem of each wrong rectangle; rows are min_x, min_y, max_x, max_y."""
    columns = _columns(*np.asarray(rectangles, np.float64).reshape(-1, 4).T)
    min_x, min_y, max_x, max_y = columns
    good = _are_inside(min_x, min_y, space) & _are_inside(max_x, max_y, space) & (min_y <= max_y)
    if space == "planar":
        good &= min_x <= max_x
    return _problems(good, columns, _rectangle_problem, space)


def circle_problems(
    x: npt.ArrayLike, y: npt.ArrayLike, radius: npt.ArrayLike, space: Space
) -> list[Problem]:
    """Return the first problem of each wrong circle; circles are given as three columns."""
    columns = _columns(x, y, radius)
    xs, ys, radii = columns
    largest = HALF_CIRCUMFERENCE_M if space == "lonlat" else np.finfo(np.float64).max
    good = _are_inside(xs, ys, space) & (radii >= 0.0) & (radii <= largest)
    return _problems(good, columns, _circle_problem, space)


def _columns(*columns: npt.ArrayLike) -> list[Float64s]:
    return [np.atleast_1d(np.asarray(column, np.float64)) for column in columns]


def _are_inside(x: Float64s, y: Float64s, space: Space) -> npt.NDArray[np.bool_]:
    if space == "planar":
        return np.isfinite(x) & np.isfinite(y)
    return (np.abs(x) <= 180.0) & (np.abs(y) <= 90.0)


def _problems(
    good: npt.NDArray[np.bool_],
    columns: Sequence[Float64s],
    problem_of: Callable[..., tuple[str, str] | None],
    space: Space,
) -> list[Problem]:
    problems: list[Problem] = []
    for row in np.flatnonzero(~good).tolist():
        problem = problem_of(*(float(column[row]) for column in columns), space)
        assert problem is not None
        problems.append((row, *problem))
    return problems


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
    crossing = min_x > max_x  # reaches both meridians, by its two halves
    at_west = ~crossing & (min_x == -180.0) & (max_x < 180.0)
    at_east = ~crossing & (max_x == 180.0) & (min_x > -180.0)
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
    xs, ys, radii = _columns(x, y, radius)
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
    circles = np.ascontiguousarray(np.stack(_columns(x, y, radius), axis=1))
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


# ---- distances ----------------------------------------------------------------------------------


def cartesian(points: npt.ArrayLike, space: Space) -> Float64s:
    """Return valid points as rows of three coordinates, between which distances are straight.

    On planar these are ``x, y, 0``. On lonlat they are in metres from the centre of the earth, on
    the sphere of radius :data:`~earshot.model.arrays.EARTH_RADIUS_M`. A point has the same
    coordinates, to the last bit, in whatever batch it comes, and under each of its names: -180 and
    180 are one meridian, and all meridians meet at the poles.
    """
    given = np.asarray(points, np.float64).reshape(-1, 2)
    result = np.zeros((len(given), 3), np.float64)
    if space == "planar":
        result[:, :2] = given
        return result
    # Copies without gaps: NumPy may take another way, with other roundings, through gaps.
    longitudes = np.radians(np.where(given[:, 0] == -180.0, 180.0, given[:, 0]))
    latitudes = np.radians(given[:, 1].copy())
    from_axis = np.where(np.abs(given[:, 1]) == 90.0, 0.0, np.cos(latitudes))
    result[:, 0] = EARTH_RADIUS_M * (from_axis * np.cos(longitudes))
    result[:, 1] = EARTH_RADIUS_M * (from_axis * np.sin(longitudes))
    result[:, 2] = EARTH_RADIUS_M * np.sin(latitudes)
    return result


# ---- WKT, WKB and GeoJSON -----------------------------------------------------------------------


def parse_geometry(value: str | bytes | Mapping[str, Any]) -> RegionOrPoint:
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
) -> tuple[list[RegionOrPoint | None], list[tuple[int, str]]]:
    """Read many geometries; see :func:`parse_geometry`.

    Args:
        values: WKT, WKB or GeoJSON text in each row.
        space: Where given, coordinates are checked against it, too.

    Returns:
        One region per row, None where it is wrong; and the row and reason of each wrong one.
    """
    geometries, problems = read_geometries(values)
    problems |= _geometry_problems(geometries, problems)
    if space is not None:
        coordinates, index = shapely.get_coordinates(geometries, return_index=True)
        for position, _, reason in point_problems(coordinates[:, 0], coordinates[:, 1], space):
            problems.setdefault(int(index[position]), reason)
    is_good = _others(len(geometries), problems)
    is_point = shapely.get_type_id(geometries) == shapely.GeometryType.POINT
    regions: list[RegionOrPoint | None] = [None] * len(geometries)
    rows = np.flatnonzero(is_good & is_point)
    for row, (x, y) in _zip_rows(rows, shapely.get_coordinates(geometries[rows])):
        regions[row] = Point(x, y)
    rows = np.flatnonzero(is_good & ~is_point)
    are_rectangles = _are_rectangles(geometries[rows])
    for row, sides in _zip_rows(
        rows[are_rectangles], shapely.bounds(geometries[rows[are_rectangles]])
    ):
        regions[row] = Rectangle(*sides)
    rows = rows[~are_rectangles]
    for row, rings in zip(rows.tolist(), _rings_of(geometries[rows]), strict=True):
        regions[row] = Polygon(rings)
    return regions, sorted(problems.items())


def _rings_of(geometries: npt.NDArray[np.object_]) -> Iterable[list[list[list[float]]]]:
    """Return the rings of each polygon or multipolygon."""
    parts, part_rows = shapely.get_parts(geometries, return_index=True)
    rings, ring_parts = shapely.get_rings(parts, return_index=True)
    positions = shapely.get_coordinates(rings).tolist()
    ends = np.cumsum(shapely.get_num_coordinates(rings)).tolist()
    result: list[list[list[list[float]]]] = [[] for _ in geometries]
    start = 0
    for row, end in zip(part_rows[ring_parts].tolist(), ends, strict=True):
        result[row].append(positions[start:end])
        start = end
    return result


def _others(n: int, rows: Iterable[int]) -> npt.NDArray[np.bool_]:
    """Return a mask of ``n`` rows that leaves out the given ones."""
    mask = np.ones(n, np.bool_)
    mask[np.fromiter(rows, np.int64)] = False
    return mask


def _zip_rows(rows: npt.NDArray[Any], values: Float64s) -> Iterable[tuple[int, list[float]]]:
    return zip(rows.tolist(), values.tolist(), strict=True)


def read_geometries(
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
    except (shapely.errors.ShapelyError, ValueError) as error:
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
    checked = np.flatnonzero(_others(len(geometries), [*problems, *known]))
    invalid = checked[~shapely.is_valid(geometries[checked])]
    for row, reason in zip(
        invalid.tolist(), shapely.is_valid_reason(geometries[invalid]).tolist(), strict=True
    ):
        problems[row] = f"the geometry is not valid: {reason}"
    return problems


def _are_rectangles(geometries: npt.NDArray[np.object_]) -> npt.NDArray[np.bool_]:
    """Return which valid polygons and multipolygons are axis-parallel rectangles.

    A valid ring of five positions that are all corners of its bounding box has no other way to go.
    """
    result = shapely.get_num_coordinates(geometries) == 5
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
