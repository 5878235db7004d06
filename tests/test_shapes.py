"""Kernels of circles and polygons against rational arithmetic, shapely and dense sampling."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import shapely
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from earshot.checks import oracle
from earshot.kernels.shapes import orientation, shape_touches_box, sphere_distance_m
from earshot.model.arrays import EARTH_RADIUS_M, Float64s
from earshot.model.regions import SMALLEST_POLYGON_COORDINATE, Circle, Polygon, shape_arrays

Box = tuple[float, float, float, float]
DEGREE_M = EARTH_RADIUS_M * math.pi / 180

compiled = settings(deadline=None, max_examples=200)  # the first call compiles


def touches(shape: Circle | Polygon, box: Box, *, is_lonlat: bool = False) -> bool:
    return bool(shape_touches_box(shape_arrays([shape]), 0, is_lonlat, *map(float, box)))


def point(x: float, y: float) -> Box:
    return (x, y, x, y)


def boxes_of(x: st.SearchStrategy[float], y: st.SearchStrategy[float]) -> st.SearchStrategy[Box]:
    """Boxes, of which about half are points."""

    def box(a: float, b: float, c: float, d: float, is_point: bool) -> Box:
        return (a, b, a, b) if is_point else (min(a, c), min(b, d), max(a, c), max(b, d))

    return st.builds(box, x, y, x, y, st.booleans())


small = st.integers(-6, 6).map(float)
longitudes = st.one_of(st.sampled_from([-180.0, 180.0, 179.5, 0.0, 90.0]), st.floats(-180, 180))
latitudes = st.one_of(st.sampled_from([-90.0, 90.0, 89.5, 0.0]), st.floats(-90, 90))
rings = st.lists(st.tuples(small, small), min_size=3, max_size=7)


# ---- polygons -----------------------------------------------------------------------------------

SQUARE = [(0, 0), (4, 0), (4, 4), (0, 4)]
HOLE = [(1, 1), (3, 1), (3, 3), (1, 3)]
ISLAND = [(6, 0), (8, 0), (8, 2)]
PARTS = Polygon([SQUARE, HOLE, ISLAND])


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        (point(0.5, 0.5), True),
        (point(2, 2), False),  # in the hole
        (point(1, 2), True),  # on the hole's edge
        (point(3, 3), True),  # on its corner
        (point(0, 4), True),  # on the outer corner
        (point(4.0000001, 2), False),
        (point(7, 1), True),  # on the island's slanted edge
        (point(7, 1 + 1e-12), False),
        (point(7, 1 - 1e-12), True),
        ((1.5, 1.5, 2.5, 2.5), False),  # a box in the hole
        ((1.5, 1.5, 3, 2.5), True),  # touches the hole's edge from inside
        ((1.5, 1.5, 3.5, 2.5), True),
        ((0.2, 0.2, 0.4, 0.4), True),  # a box inside, away from all edges
        ((-1, -1, 9, 9), True),  # a box around everything
        ((-1, 1.5, 9, 2.5), True),  # a bar across, no vertex in it
        ((4.5, 0, 5.5, 4), False),  # between the parts
        ((4, 4, 5, 5), True),  # corner to corner
        ((-1, -1, 0, 9), True),  # side to side
        ((6, 1, 6.5, 2), False),  # in the island's bounding box, beside it
        ((6, 1, 7, 2), True),  # its corner on the slanted edge
        ((-math.inf, 2, math.inf, 2), True),
        ((-math.inf, 5, math.inf, math.inf), False),
        ((-math.inf, -math.inf, -1, 3), False),
        ((5, -math.inf, 5.5, math.inf), False),
    ],
)
def test_polygon_with_hole_and_second_part(box: Box, expected: bool) -> None:
    assert touches(PARTS, box) is expected
    assert oracle.polygon_touches(PARTS.rings, box) is expected


@given(rings=st.lists(rings, min_size=1, max_size=3), box=boxes_of(small, small))
@example(rings=[[(0, 0), (2, 2), (2, 0), (0, 2)]], box=(1, 1, 1, 1))
@example(rings=[[(0, 0), (0, 0), (0, 0)]], box=(0, 0, 0, 0))
@compiled
def test_any_rings_agree_with_rational_arithmetic(
    rings: list[list[tuple[float, float]]], box: Box
) -> None:
    polygon = Polygon(rings)
    assert touches(polygon, box) is oracle.polygon_touches(polygon.rings, box)


@given(
    ring=st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=3, max_size=6),
    edge=st.integers(0, 5),
    share=st.floats(0, 1),
    size=st.sampled_from([0.0, 1e-16, 1e-9, 0.5]),
)
@compiled
def test_boxes_on_an_edge_agree_with_rational_arithmetic(
    ring: list[tuple[float, float]], edge: int, share: float, size: float
) -> None:
    polygon = Polygon([ring])
    (ax, ay), (bx, by) = ring[edge % len(ring)], ring[(edge + 1) % len(ring)]
    x, y = ax + share * (bx - ax), ay + share * (by - ay)
    box = (x, y, x + size, y + size)
    # Below, products underflow; validation refuses such polygons.
    values = [*box, *(value for position in ring for value in position)]
    assume(all(value == 0 or abs(value) >= SMALLEST_POLYGON_COORDINATE for value in values))
    assert touches(polygon, box) is oracle.polygon_touches(polygon.rings, box)


@given(shell=rings, box=boxes_of(small, small))
@compiled
def test_valid_polygons_agree_with_shapely(shell: list[tuple[float, float]], box: Box) -> None:
    geometry = shapely.Polygon(shell)
    assume(geometry.is_valid)
    other = shapely.Point(box[:2]) if box[:2] == box[2:] else shapely.box(*box)
    assert touches(Polygon([shell]), box) is bool(shapely.intersects(geometry, other))


@given(
    st.lists(st.floats(-10, 10), min_size=4, max_size=4),
    st.floats(-1, 2),
    st.sampled_from([1.0, 1e-60, 1e75]),
)
@compiled
def test_orientation_is_exact_on_almost_straight_lines(
    ends: list[float], share: float, scale: float
) -> None:
    ax, ay, bx, by = (end * scale for end in ends)
    cx, cy = ax + share * (bx - ax), ay + share * (by - ay)
    values = [ax, ay, bx, by, cx, cy]
    assume(all(value == 0 or SMALLEST_POLYGON_COORDINATE <= abs(value) < 1e150 for value in values))
    a, b, c, d, e, f = map(Fraction, values)
    determinant = (c - a) * (f - b) - (d - b) * (e - a)
    assert orientation(*values) == (determinant > 0) - (determinant < 0)


def test_orientation_where_rounding_gives_the_wrong_sign() -> None:
    # Almost on the line y = x, so that the rounded determinant is 0 or of the wrong sign for some.
    signs, exact_signs = [], []
    for i in range(64):
        values = [12.0, 12.0, 24.0, 24.0, 0.5 + i * 2.0**-53, 0.5]
        signs.append(orientation(*values))
        cx = Fraction(values[4])
        exact_signs.append((cx < Fraction(1, 2)) - (cx > Fraction(1, 2)))
    assert signs == exact_signs
    assert signs[0] == 0
    assert signs[1:] == [-1] * 63


def test_polygon_at_the_antimeridian_counts_under_both_names() -> None:
    east = Polygon([[(170, 0), (180, 0), (180, 10), (170, 10)]])
    west = Polygon([[(-180, 0), (-170, 0), (-170, 10)]])
    assert touches(east, point(-180, 5), is_lonlat=True)
    assert touches(east, (-180, 5, -175, 6), is_lonlat=True)
    assert not touches(east, (-179.9, 5, -175, 6), is_lonlat=True)
    assert not touches(east, point(-180, 11), is_lonlat=True)
    assert not touches(east, point(-180, 5), is_lonlat=False)
    assert touches(west, point(180, 0), is_lonlat=True)
    assert not touches(west, point(180, 1), is_lonlat=True)  # it has only a corner there
    assert touches(west, (179, -1, 180, 1), is_lonlat=True)


# ---- circles ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        (point(3, 4), True),  # exactly on the circle
        (point(3.0000001, 4), False),
        ((3, 4, 9, 9), True),
        ((3, 4.0000001, 9, 9), False),
        ((5, -9, 9, 9), True),  # side touches
        ((-1, -1, 1, 1), True),  # inside
        ((-9, -9, 9, 9), True),  # around
        ((-math.inf, 5, math.inf, math.inf), True),
        ((-math.inf, 5.1, math.inf, math.inf), False),
    ],
)
def test_circle_in_the_plane(box: Box, expected: bool) -> None:
    assert touches(Circle(0, 0, 5), box) is expected
    assert oracle.shape_touches(Circle(0, 0, 5), box, False) is expected


@pytest.mark.parametrize("unit", [1e-310, 1e-200, 1e-160, 1e200, 1e300])
def test_circle_in_the_plane_at_any_magnitude(unit: float) -> None:
    assert touches(Circle(0, 0, 5 * unit), point(3 * unit, 3 * unit))
    assert not touches(Circle(0, 0, 4 * unit), point(3 * unit, 3 * unit))
    assert not touches(Circle(0, 0, 0), point(unit, 0))


@given(
    x=longitudes,
    y=latitudes,
    radius=st.one_of(
        st.sampled_from([0.0, 1.0, 1e5, math.pi * EARTH_RADIUS_M]),
        st.floats(0, math.pi * EARTH_RADIUS_M),
    ),
    box=boxes_of(longitudes, latitudes),
)
@compiled
def test_circle_on_the_sphere_agrees_with_the_oracle(
    x: float, y: float, radius: float, box: Box
) -> None:
    circle = Circle(x, y, radius)
    assert touches(circle, box, is_lonlat=True) is oracle.shape_touches(circle, box, True)


@given(x=longitudes, y=latitudes, box=boxes_of(longitudes, latitudes))
@compiled
def test_sphere_distance_is_the_same_number_in_the_oracle(x: float, y: float, box: Box) -> None:
    # Bit for bit: a radius that is exactly this distance must be decided alike.
    assert sphere_distance_m(x, y, *box) == oracle.sphere_distance_m(x, y, box)


@given(x=small, y=small, radius=st.floats(0, 9), box=boxes_of(st.floats(-9, 9), st.floats(-9, 9)))
@compiled
def test_circle_in_the_plane_agrees_with_the_oracle(
    x: float, y: float, radius: float, box: Box
) -> None:
    assert touches(Circle(x, y, radius), box) is oracle.shape_touches(
        Circle(x, y, radius), box, False
    )


def sampled_distance_m(x: float, y: float, box: Box, n: int = 400) -> float:
    """Smallest distance to a grid of points in the box, by unit vectors instead of haversines."""

    def vectors(lon: Float64s, lat: Float64s) -> Float64s:
        lon, lat = np.radians(lon), np.radians(lat)
        return np.stack(
            [np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=-1
        )

    lon, lat = np.meshgrid(np.linspace(box[0], box[2], n), np.linspace(box[1], box[3], n))
    difference = vectors(lon, lat) - vectors(np.array(x), np.array(y))
    chord = np.sqrt((difference**2).sum(axis=-1)).min()
    return float(2 * EARTH_RADIUS_M * np.arcsin(min(1.0, chord / 2)))


@given(x=longitudes, y=latitudes, box=boxes_of(longitudes, latitudes))
@example(x=0.0, y=60.0, box=(80.0, -30.0, 120.0, 89.0))  # the foot lies inside the meridian edge
@example(x=0.0, y=60.0, box=(100.0, -80.0, 260.0 - 100.0, 80.0))  # over the pole
@example(x=-179.0, y=10.0, box=(170.0, -5.0, 179.0, 5.0))  # across the antimeridian
@settings(deadline=None, max_examples=60)
def test_sphere_distance_to_a_box_is_the_minimum_over_its_points(
    x: float, y: float, box: Box
) -> None:
    distance = sphere_distance_m(x, y, *box)
    sampled = sampled_distance_m(x, y, box)
    step_m = math.hypot(box[2] - box[0], box[3] - box[1]) / 399 * DEGREE_M
    assert sampled - step_m - 1 <= distance <= sampled + 1


def test_sphere_distance_known_values() -> None:
    assert sphere_distance_m(0.0, 0.0, *point(0.0, 1.0)) == pytest.approx(DEGREE_M)
    assert sphere_distance_m(179.5, 0.0, *point(-179.5, 0.0)) == pytest.approx(DEGREE_M)
    assert sphere_distance_m(0.0, 0.0, *point(180.0, 0.0)) == math.pi * EARTH_RADIUS_M
    assert sphere_distance_m(180.0, 7.0, *point(-180.0, 7.0)) == 0.0
    assert sphere_distance_m(30.0, 90.0, *point(-60.0, 0.0)) == pytest.approx(90 * DEGREE_M)
    # From 60 degrees north the nearest point of the meridian 60 degrees east is farther north.
    foot = math.degrees(math.atan2(math.sin(math.pi / 3), math.cos(math.pi / 3) ** 2))
    to_edge = sphere_distance_m(0.0, 60.0, 60.0, 0.0, 70.0, 90.0)
    assert foot == pytest.approx(73.8979, abs=1e-4)
    assert to_edge == pytest.approx(sphere_distance_m(0.0, 60.0, *point(60.0, foot)))
    assert to_edge < sphere_distance_m(0.0, 60.0, *point(60.0, 60.0)) - 100_000


def test_circle_across_the_antimeridian_and_over_the_pole() -> None:
    near_line = Circle(179.9, 0, 50_000)
    assert touches(near_line, point(-179.9, 0), is_lonlat=True)
    assert touches(near_line, (-180, -1, -170, 1), is_lonlat=True)
    assert not touches(near_line, (-179, -1, -170, 1), is_lonlat=True)
    over_pole = Circle(0, 89.9, 50_000)
    assert touches(over_pole, point(180, 89.9), is_lonlat=True)
    assert not touches(over_pole, point(180, 89.6), is_lonlat=True)
