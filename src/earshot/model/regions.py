"""Where a subscription listens and where a message was published.

On ``lonlat`` the meridians -180 and 180 are the same line, a rectangle with ``min_x > max_x``
crosses it (the GeoJSON rule), and circles are circles on the sphere of radius
:data:`~earshot.model.arrays.EARTH_RADIUS_M`. The edges of polygons and rectangles are straight in
longitude and latitude, up to the poles; a polygon across the antimeridian is given as two parts,
one per side.
Boundaries belong to every region.

Batches are handled without a Python loop over good rows, but for polygons.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import shapely

from earshot.errors import InvalidRegion, described
from earshot.model.arrays import EARTH_RADIUS_M, Float64s, Int64s, ShapeArrays, Space, no_shapes

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

    def __post_init__(self) -> None:
        _check_numbers(self)


@dataclass(frozen=True, slots=True)
class Rectangle:
    """All points between two corners; on lonlat ``min_x > max_x`` crosses the antimeridian."""

    min_x: float
    min_y: float
    max_x: float
    max_y: float

    def __post_init__(self) -> None:
        _check_numbers(self)


@dataclass(frozen=True, slots=True)
class Circle:
    """All points within ``radius`` of a centre: metres on lonlat, else the coordinates' unit."""

    x: float
    y: float
    radius: float

    def __post_init__(self) -> None:
        _check_numbers(self)


@dataclass(frozen=True, slots=True)
class Polygon:
    """The points inside an odd number of rings, and all points on the rings.

    Holes and further parts are just more rings. A ring whose last position does not repeat its
    first is closed by the constructor.
    """

    rings: tuple[Ring, ...]

    def __init__(self, rings: Iterable[Iterable[Sequence[float]]]) -> None:
        try:
            closed = tuple(_closed_ring(ring) for ring in rings)
        except TypeError:
            raise InvalidRegion(
                f"polygon: {described(rings)} is not a list of rings; expected rings of (x, y) "
                f"pairs, such as [[(0, 0), (1, 0), (1, 1)]]"
            ) from None
        object.__setattr__(self, "rings", closed)


@dataclass(frozen=True, slots=True)
class Everywhere:
    """The whole space."""


Region: TypeAlias = Rectangle | Circle | Polygon | Everywhere
RegionOrPoint: TypeAlias = Region | Point
"""Where a subscription may listen; a point is a circle of radius 0."""
Place: TypeAlias = Point | Rectangle


def boxes(region: RegionOrPoint, space: Space) -> list[Box]:
    """Return boxes that together cover a valid region, each with ``min <= max``.

    The boxes of a point or a rectangle *are* the region. A region that reaches one of the meridians
    -180 and 180 also gets a box without width on the other, because they are the same line.
    """
    match region:
        case Everywhere():
            return [(-math.inf, -math.inf, math.inf, math.inf)]
        case Point(x, y):
            found = split_rectangles([(x, y, x, y)], space)[1]
        case Rectangle():
            found = split_rectangles([astuple(region)], space)[1]
        case Circle():
            found = circle_boxes([astuple(region)], space)[1]
        case Polygon():
            found = polygon_boxes([region], space)[1]
    return [(min_x, min_y, max_x, max_y) for min_x, min_y, max_x, max_y in found.tolist()]


def _check_numbers(place: Any) -> None:
    """Refuse what is no number; whether it is within the space is the encoder's to say."""
    for name in place.__slots__:
        value = getattr(place, name)
        if not _is_number(value):
            kind = type(place).__name__
            raise InvalidRegion(f"{kind}: {name} is {described(value)}; expected a number")


def _is_number(value: object) -> bool:
    """Whether a value is a number that a float can hold; texts and booleans are none."""
    if type(value) is float:
        return True
    if not isinstance(value, numbers.Real) or isinstance(value, bool | np.bool_):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _closed_ring(positions: Iterable[Sequence[float]]) -> Ring:
    ring: list[tuple[float, float]] = []
    for position in positions:
        try:
            x, y = position[0], position[1]
            is_right = _is_number(x) and _is_number(y)
        except (TypeError, LookupError):
            is_right = False
        if not is_right:
            raise InvalidRegion(
                f"polygon: {described(position)} is not a position; expected rings of (x, y) pairs"
            )
        ring.append((float(x), float(y)))
    if ring and ring[0] != ring[-1]:
        ring.append(ring[0])
    return tuple(ring)


# ---- what is wrong ------------------------------------------------------------------------------

# A problem is found for whole columns at once; its words are then written for the wrong rows only.


def point_problem(x: float, y: float, space: Space) -> tuple[str, str] | None:
    """Return the field and the reason of what is wrong with a point, or None."""
    return _coordinate_problem("x", x, space) or _coordinate_problem("y", y, space)


def rectangle_problem(
    min_x: float, min_y: float, max_x: float, max_y: float, space: Space
) -> tuple[str, str] | None:
    """Return the field and the reason of what is wrong with a rectangle, or None."""
    sides = {"min_x": min_x, "min_y": min_y, "max_x": max_x, "max_y": max_y}
    for field, value in sides.items():
        problem = _coordinate_problem(field, value, space)
        if problem is not None:
            return problem
    if min_y > max_y:
        return "min_y", f"min_y {min_y} is greater than max_y {max_y}"
    if min_x > max_x and space == "planar":
        return "min_x", f"min_x {min_x} is greater than max_x {max_x}"
    return None


def circle_problem(x: float, y: float, radius: float, space: Space) -> tuple[str, str] | None:
    """Return the field and the reason of what is wrong with a circle, or None."""
    problem = point_problem(x, y, space)
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


def polygon_problem(polygon: Polygon) -> str | None:
    """Return what is wrong with the sizes of a valid polygon's coordinates, or None."""
    sizes = np.abs([position for ring in polygon.rings for position in ring])
    smallest = float(sizes.min(where=sizes > 0, initial=np.inf))
    if smallest < SMALLEST_POLYGON_COORDINATE:
        return (
            f"polygon: a coordinate of size {smallest} is too small; "
            f"polygons are exact from {SMALLEST_POLYGON_COORDINATE}; give 0"
        )
    largest = float(sizes.max())
    if largest > LARGEST_POLYGON_COORDINATE:
        return (
            f"polygon: a coordinate of size {largest} is too large; "
            f"polygons are exact up to {LARGEST_POLYGON_COORDINATE}"
        )
    return None


def point_problems(points: npt.ArrayLike, space: Space) -> list[Problem]:
    """Return the first problem of each wrong point; rows are x, y."""
    columns = np.asarray(points, np.float64).reshape(-1, 2).T
    xs, ys = columns
    return _problems(_are_inside(xs, ys, space), columns, point_problem, space)


def rectangle_problems(rectangles: npt.ArrayLike, space: Space) -> list[Problem]:
    """Return the first problem of each wrong rectangle; rows are min_x, min_y, max_x, max_y."""
    columns = np.asarray(rectangles, np.float64).reshape(-1, 4).T
    min_x, min_y, max_x, max_y = columns
    good = _are_inside(min_x, min_y, space) & _are_inside(max_x, max_y, space) & (min_y <= max_y)
    if space == "planar":
        good &= min_x <= max_x
    return _problems(good, columns, rectangle_problem, space)


def circle_problems(circles: npt.ArrayLike, space: Space) -> list[Problem]:
    """Return the first problem of each wrong circle; rows are x, y, radius."""
    columns = np.asarray(circles, np.float64).reshape(-1, 3).T
    xs, ys, radii = columns
    largest = HALF_CIRCUMFERENCE_M if space == "lonlat" else np.finfo(np.float64).max
    good = _are_inside(xs, ys, space) & (radii >= 0.0) & (radii <= largest)
    return _problems(good, columns, circle_problem, space)


def _are_inside(x: Float64s, y: Float64s, space: Space) -> npt.NDArray[np.bool_]:
    if space == "planar":
        return np.isfinite(x) & np.isfinite(y)
    return (np.abs(x) <= 180.0) & (np.abs(y) <= 90.0)


def _problems(
    good: npt.NDArray[np.bool_],
    columns: Float64s,
    problem_of: Callable[..., tuple[str, str] | None],
    space: Space,
) -> list[Problem]:
    problems: list[Problem] = []
    for row in np.flatnonzero(~good).tolist():
        problem = problem_of(*columns[:, row].tolist(), space)
        assert problem is not None
        problems.append((row, *problem))
    return problems


# ---- boxes --------------------------------------------------------------------------------------


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


def circle_boxes(circles: npt.ArrayLike, space: Space) -> tuple[Int64s, Float64s]:
    """Return boxes with ``min <= max`` that cover valid circles, and the row each came from.

    They are a hair too large, so that no point is lost whose distance is rounded to the radius.
    """
    xs, ys, radii = np.asarray(circles, np.float64).reshape(-1, 3).T
    if space == "planar":
        reach = radii * _PLANAR_SLACK
        with np.errstate(over="ignore"):  # a side beyond the largest number is infinite
            sides = np.stack([xs - reach, ys - reach, xs + reach, ys + reach], axis=1)
        found = np.nextafter(sides, [-np.inf, -np.inf, np.inf, np.inf])
        return np.arange(len(found), dtype=np.int64), found
    min_y, max_y, reach_x = _reach_of_circles(ys, radii)
    holds_pole = (min_y <= -90.0) | (max_y >= 90.0)
    min_x, max_x = xs - reach_x, xs + reach_x
    around = holds_pole | ~(max_x - min_x < 360.0)
    min_x = np.where(around, -180.0, np.where(min_x < -180.0, min_x + 360.0, min_x))
    max_x = np.where(around, 180.0, np.where(max_x > 180.0, max_x - 360.0, max_x))
    found = np.stack([min_x, np.maximum(min_y, -90.0), max_x, np.minimum(max_y, 90.0)], axis=1)
    return split_rectangles(found, space)


def circle_box(x: float, y: float, radius: float, space: Space) -> tuple[float, ...] | None:
    """Return the one box that :func:`circle_boxes` gives a valid circle, to the last bit.

    None where it reaches a pole or the antimeridian: then there may be several.
    """
    if space == "planar":
        reach = radius * _PLANAR_SLACK
        west, south = (math.nextafter(each - reach, -math.inf) for each in (x, y))
        east, north = (math.nextafter(each + reach, math.inf) for each in (x, y))
        return west, south, east, north
    south, north, reach = map(float, _reach_of_circles(y, radius))
    west, east = x - reach, x + reach
    is_plain = -90.0 < south <= north < 90.0 and -180.0 < west <= east < 180.0
    return (west, south, east, north) if is_plain else None


def _reach_of_circles(y: Any, radius: Any) -> tuple[Any, Any, Any]:
    """Return the lowest and highest latitude of circles, and how far east and west they reach.

    Of arrays, or of a single circle; unless one holds a pole.
    """
    reach_rad = radius / EARTH_RADIUS_M + _SLACK_RAD
    latitude_rad = np.radians(y)
    # The circle's easternmost point is where a meridian touches it: sin(dx) = sin(r) / cos(y).
    with np.errstate(invalid="ignore", divide="ignore"):
        sines = np.sin(reach_rad) / np.cos(latitude_rad)
        reach_x = np.degrees(np.arcsin(np.minimum(sines, 1.0)))
    return np.degrees(latitude_rad - reach_rad), np.degrees(latitude_rad + reach_rad), reach_x


def polygon_boxes(polygons: Sequence[Polygon], space: Space) -> tuple[Int64s, Float64s]:
    """Return boxes with ``min <= max`` that cover valid polygons, and the row each came from."""
    return split_rectangles([polygon_box(polygon.rings, space) for polygon in polygons], space)


def polygon_box(rings: tuple[Ring, ...], space: Space) -> Box:
    """Return the box around a polygon; it may cross the antimeridian."""
    spans = sorted((min(x for x, _ in ring), max(x for x, _ in ring)) for ring in rings)
    min_x, max_x = spans[0][0], max(end for _, end in spans)
    if space == "lonlat" and min_x == -180.0 and max_x == 180.0:
        # Parts on both sides of the antimeridian: leave out the widest gap between them, or the
        # box of a small island group would go around the world.
        reach, gap = spans[0][1], 0.0
        for start, end in spans[1:]:
            if start - reach > gap:
                gap, min_x, max_x = start - reach, start, reach
            reach = max(reach, end)
    ys = [y for ring in rings for _, y in ring]
    return min_x, min(ys), max_x, max(ys)


# ---- shapes -------------------------------------------------------------------------------------


def circle_shape_arrays(circles: Float64s) -> ShapeArrays:
    """Return the shape table of circles, given as rows x, y, radius."""
    no_rings = np.zeros(len(circles) + 1, np.int64)
    return no_shapes()._replace(circles=np.ascontiguousarray(circles), ring_offsets=no_rings)


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


def parse_geometry(value: str | bytes) -> RegionOrPoint:
    """Read a point, polygon or multipolygon given as WKT, WKB or GeoJSON.

    A polygon that is an axis-parallel rectangle becomes a :class:`Rectangle`. A third coordinate
    (altitude) is no part of Earshot's space and is left out. Coordinates are not checked against a
    space.
    """
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
        for position, _, reason in point_problems(coordinates, space):
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
