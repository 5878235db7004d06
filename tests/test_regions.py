"""Regions: exact reasons, covering boxes, batches that equal single regions, reading geometry."""

from __future__ import annotations

import math
import pickle
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
import shapely
from hypothesis import example, given
from hypothesis import strategies as st

from earshot.checks import oracle
from earshot.errors import InvalidRegion
from earshot.model.arrays import EARTH_RADIUS_M, Space
from earshot.model.regions import (
    HALF_CIRCUMFERENCE_M,
    Circle,
    Everywhere,
    Point,
    Polygon,
    Rectangle,
    Region,
    boxes,
    circle_box,
    circle_boxes,
    circle_problems,
    circle_shape_arrays,
    parse_geometries,
    parse_geometry,
    point_problems,
    polygon_problem,
    rectangle_problems,
    shape_arrays,
    split_rectangles,
)

NAN, INF = math.nan, math.inf
TRIANGLE = [(0.0, 0.0), (4.0, 0.0), (0.0, 3.0)]

longitudes = st.one_of(st.sampled_from([-180.0, 180.0, 179.9999]), st.floats(-180, 180))
latitudes = st.one_of(st.sampled_from([-90.0, 90.0, 89.9999]), st.floats(-90, 90))
radii_m = st.one_of(
    st.sampled_from([0.0, 1.0, 11_000.0, HALF_CIRCUMFERENCE_M]), st.floats(0, HALF_CIRCUMFERENCE_M)
)


# ---- validity -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("region", "space", "reason"),
    [
        (Point(200.0, 0), "lonlat", "longitude 200.0 is outside [-180, 180]"),
        (Point(0, -90.5), "lonlat", "latitude -90.5 is outside [-90, 90]"),
        (Point(NAN, 0), "lonlat", "longitude nan is not finite"),
        (Point(0, INF), "planar", "y inf is not finite"),
        (Rectangle(0, 5, 1, 4), "lonlat", "min_y 5.0 is greater than max_y 4.0"),
        (Rectangle(2, 0, 1, 4), "planar", "min_x 2.0 is greater than max_x 1.0"),
        (Rectangle(0, 0, 181, 4), "lonlat", "longitude 181.0 is outside [-180, 180]"),
        (Rectangle(0, 0, NAN, 4), "planar", "max_x nan is not finite"),
        (Circle(0, 0, -1), "lonlat", "radius -1.0 is negative"),
        (Circle(0, 0, NAN), "planar", "radius nan is not finite"),
        (
            Circle(0, 0, 2.1e7),
            "lonlat",
            "radius 21000000.0 m is more than half the Earth's circumference, "
            "20015114.4 m; use Everywhere",
        ),
        (Circle(0, 91, 1), "lonlat", "latitude 91.0 is outside [-90, 90]"),
        (Point(180, -90), "lonlat", None),
        (Point(1e300, -1e300), "planar", None),
        (Rectangle(170, 0, -170, 0), "lonlat", None),
        (Rectangle(1, 2, 1, 2), "planar", None),
        (Circle(0, 0, 0), "planar", None),
        (Circle(0, 90, HALF_CIRCUMFERENCE_M), "lonlat", None),
    ],
)
def test_wrong_region_is_refused_with_the_reason(
    region: Point | Rectangle | Circle, space: Space, reason: str | None
) -> None:
    problems_of = {Point: point_problems, Rectangle: rectangle_problems, Circle: circle_problems}
    problems = problems_of[type(region)]([astuple(region)], space)
    assert [each[2] for each in problems] == ([] if reason is None else [reason])


def test_polygons_that_are_not_exact_are_refused() -> None:
    assert polygon_problem(Polygon([TRIANGLE])) is None
    assert polygon_problem(Polygon([[(0, 0), (1e160, 0), (0, 1e160)]])) == (
        "polygon: a coordinate of size 1e+160 is too large; polygons are exact up to 1e+150"
    )
    assert polygon_problem(Polygon([[(0, 0), (1e-200, 0), (0, 1e-200)]])) == (
        "polygon: a coordinate of size 1e-200 is too small; polygons are exact from 1e-130; give 0"
    )
    with pytest.raises(InvalidRegion, match="5 is not a position"):
        Polygon([[5]])  # type: ignore[list-item]


def test_regions_are_values() -> None:
    open_ring, closed_ring = Polygon([TRIANGLE]), Polygon([[*TRIANGLE, TRIANGLE[0]]])
    assert open_ring == closed_ring
    assert len(open_ring.rings[0]) == 4
    for region in (Point(1, 2), Rectangle(1, 2, 3, 4), Circle(1, 2, 3), open_ring, Everywhere()):
        assert pickle.loads(pickle.dumps(region)) == region
        assert hash(region) == hash(pickle.loads(pickle.dumps(region)))


# ---- boxes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("region", "expected"),
    [
        (Rectangle(1, 2, 3, 4), [(1, 2, 3, 4)]),
        (Rectangle(170, 0, -170, 5), [(170, 0, 180, 5), (-180, 0, -170, 5)]),
        (Rectangle(170, 0, 180, 5), [(170, 0, 180, 5), (-180, 0, -180, 5)]),
        (Rectangle(-180, 0, -170, 5), [(-180, 0, -170, 5), (180, 0, 180, 5)]),
        (Rectangle(-180, 0, 180, 5), [(-180, 0, 180, 5)]),
        (Rectangle(180, 0, -180, 5), [(180, 0, 180, 5), (-180, 0, -180, 5)]),
        (Rectangle(170, 0, -180, 5), [(170, 0, 180, 5), (-180, 0, -180, 5)]),
        (Point(180, 5), [(180, 5, 180, 5), (-180, 5, -180, 5)]),
        (Everywhere(), [(-INF, -INF, INF, INF)]),
        (Polygon([TRIANGLE]), [(0, 0, 4, 3)]),
        (Polygon([[(170, 0), (180, 1), (180, 2)]]), [(170, 0, 180, 2), (-180, 0, -180, 2)]),
        (  # Parts on both sides of the antimeridian do not make a box around the world.
            Polygon(
                [
                    [(178, 0), (180, 0), (180, 1)],
                    [(-180, 0), (-179, 0), (-180, 3)],
                    [(-178, -2), (-177, 0), (-178, 0)],
                ]
            ),
            [(178, -2, 180, 3), (-180, -2, -177, 3)],
        ),
        (  # No gap to leave out.
            Polygon([[(-180, 0), (10, 0), (10, 1)], [(5, 5), (180, 5), (180, 6)]]),
            [(-180, 0, 180, 6)],
        ),
    ],
)
def test_boxes_on_lonlat(region: Region, expected: list[tuple[float, ...]]) -> None:
    assert boxes(region, "lonlat") == expected


def test_planar_has_no_antimeridian() -> None:
    assert boxes(Rectangle(-180, 0, 5, 5), "planar") == [(-180, 0, 5, 5)]
    assert boxes(Polygon([[(170, 0), (180, 1), (180, 2)]]), "planar") == [(170, 0, 180, 2)]


@pytest.mark.parametrize("space", ["lonlat", "planar"])
def test_a_single_circle_has_the_box_that_many_have(space: Space) -> None:
    rng = np.random.default_rng(5)
    circles = np.stack(
        [rng.uniform(-180, 180, 500), rng.uniform(-90, 90, 500), 10.0 ** rng.uniform(-9, 7.2, 500)],
        axis=1,
    )
    rows, boxes = circle_boxes(circles, space)
    n_single = 0
    for row, circle in enumerate(circles.tolist()):
        box = circle_box(circle[0], circle[1], circle[2], space)
        if box is not None:
            assert boxes[rows == row].tolist() == [list(box)]
            n_single += 1
    assert n_single > 300


def test_circle_boxes_are_tight() -> None:
    degree_m = EARTH_RADIUS_M * math.pi / 180
    [box] = boxes(Circle(10, 60, degree_m), "lonlat")
    # On 60 degrees north a degree of longitude is half as long; the widest point is a bit farther.
    reach = math.degrees(math.asin(math.sin(math.radians(1)) / math.cos(math.radians(60))))
    assert box == pytest.approx((10 - reach, 59, 10 + reach, 61), abs=1e-4)
    assert box[0] < 10 - reach
    assert box[3] > 61
    [near, far] = boxes(Circle(179.5, 0, degree_m), "lonlat")
    assert near == pytest.approx((178.5, -1, 180, 1), abs=1e-4)
    assert far == pytest.approx((-180, -1, -179.5, 1), abs=1e-4)
    [polar] = boxes(Circle(33, -89.5, degree_m), "lonlat")
    assert polar == pytest.approx((-180, -90, 180, -88.5), abs=1e-4)
    [plane] = boxes(Circle(1, 2, 3), "planar")
    assert plane == pytest.approx((-2, -1, 4, 5))
    assert plane[0] < -2
    assert plane[2] > 4
    [huge] = boxes(Circle(1e308, 0, 1e308), "planar")
    assert huge[2] == INF


@given(longitudes, latitudes, radii_m, st.floats(0, 360), st.sampled_from([1.0, 1 - 1e-12, 0.5]))
@example(x=0.0, y=90.0, radius=HALF_CIRCUMFERENCE_M * (1 - 1e-9), bearing=0.0, share=1.0)
@example(x=180.0, y=0.0, radius=0.0, bearing=90.0, share=1.0)
def test_circle_boxes_lose_no_point(
    x: float, y: float, radius: float, bearing: float, share: float
) -> None:
    """Walk from the centre to the circle's edge: the box must hold whatever the circle holds."""
    angle, course, lat = share * radius / EARTH_RADIUS_M, math.radians(bearing), math.radians(y)
    sine = math.sin(lat) * math.cos(angle) + math.cos(lat) * math.sin(angle) * math.cos(course)
    other_y = math.degrees(math.asin(max(-1.0, min(1.0, sine))))
    other_x = x + math.degrees(
        math.atan2(
            math.sin(course) * math.sin(angle) * math.cos(lat),
            math.cos(angle) - math.sin(lat) * sine,
        )
    )
    other_x = max(-180.0, min(180.0, (other_x + 180) % 360 - 180))
    point = (other_x, other_y, other_x, other_y)
    if oracle.sphere_distance_m(x, y, point) <= radius:
        assert any(oracle.boxes_touch(box, point) for box in boxes(Circle(x, y, radius), "lonlat"))


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9), st.floats(0, 2 * math.pi))
def test_planar_circle_boxes_lose_no_point(x: float, radius: float, angle: float) -> None:
    px, py = x + radius * math.cos(angle), radius * math.sin(angle)
    point = (px, py, px, py)
    if oracle.plane_distance(x, 0.0, point) <= radius:
        assert any(oracle.boxes_touch(box, point) for box in boxes(Circle(x, 0, radius), "planar"))


# ---- batches ------------------------------------------------------------------------------------


@given(st.lists(st.tuples(longitudes, latitudes, longitudes, latitudes), max_size=6))
def test_batch_of_rectangles_equals_one_by_one(rows: list[tuple[float, ...]]) -> None:
    rectangles = [Rectangle(a, min(b, d), c, max(b, d)) for a, b, c, d in rows]
    given_boxes = np.array([astuple(each) for each in rectangles]).reshape(-1, 4)
    before = given_boxes.copy()
    row_numbers, found = split_rectangles(given_boxes, "lonlat")
    expected = [(i, box) for i, each in enumerate(rectangles) for box in boxes(each, "lonlat")]
    assert list(zip(row_numbers.tolist(), map(tuple, found.tolist()), strict=True)) == expected
    assert (found[:, 0] <= found[:, 2]).all()
    assert np.array_equal(given_boxes, before)


@given(st.lists(st.tuples(longitudes, latitudes, radii_m), min_size=1, max_size=6))
def test_batch_of_circles_equals_one_by_one(rows: list[tuple[float, float, float]]) -> None:
    spaces: tuple[Space, ...] = ("lonlat", "planar")
    for space in spaces:
        row_numbers, found = circle_boxes(rows, space)
        expected = [(i, box) for i, row in enumerate(rows) for box in boxes(Circle(*row), space)]
        assert list(zip(row_numbers.tolist(), map(tuple, found.tolist()), strict=True)) == expected


def test_problems_name_row_field_and_reason() -> None:
    assert point_problems([(0.0, 0.0), (200.0, 0.0), (0.0, NAN)], "lonlat") == [
        (1, "x", "longitude 200.0 is outside [-180, 180]"),
        (2, "y", "latitude nan is not finite"),
    ]
    rows = np.array([[0, 1, 0, 0], [0, 0, 1, 1], [5, 0, 4, INF]])
    assert rectangle_problems(rows, "planar") == [
        (0, "min_y", "min_y 1.0 is greater than max_y 0.0"),
        (2, "max_y", "max_y inf is not finite"),
    ]
    assert rectangle_problems(rows[[1, 1]] - [[0, 0, 0, 0], [0, 0, 2, 0]], "planar") == [
        (1, "min_x", "min_x 0.0 is greater than max_x -1.0"),
    ]
    assert circle_problems([[0, 0, -2], [0, -91, 1]], "lonlat") == [
        (0, "radius", "radius -2.0 is negative"),
        (1, "y", "latitude -91.0 is outside [-90, 90]"),
    ]
    assert rectangle_problems(np.empty((0, 4)), "lonlat") == []


def test_shape_arrays_hold_rings_in_order() -> None:
    hole = [(0.5, 0.5), (1.0, 0.5), (1.0, 1.0)]
    shapes = shape_arrays([Circle(1, 2, 3), Polygon([TRIANGLE, hole]), Polygon([hole])])
    assert shapes.circles.tolist() == [[1, 2, 3], [0, 0, -1], [0, 0, -1]]
    assert shapes.ring_offsets.tolist() == [0, 0, 2, 3]
    assert shapes.vertex_offsets.tolist() == [0, 4, 8, 12]
    assert shapes.vertices[3].tolist() == list(TRIANGLE[0])
    assert shape_arrays([]).circles.shape == (0, 3)


def test_circle_shape_arrays_equal_shape_arrays() -> None:
    columns = circle_shape_arrays(np.array([[1.0, 2, 3], [4, 5, 6]]))
    for ours, theirs in zip(columns, shape_arrays([Circle(1, 2, 3), Circle(4, 5, 6)]), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.flags.c_contiguous
        assert np.array_equal(ours, theirs)


# ---- reading ------------------------------------------------------------------------------------

SQUARE_JSON = '{"type": "Polygon", "coordinates": [[[0, 0], [2, 0], [2, 1], [0, 1], [0, 0]]]}'


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("POINT (1 2)", Point(1, 2)),
        ("point z (1 2 3)", Point(1, 2)),
        (shapely.Point(1, 2).wkb, Point(1, 2)),
        (' {"type": "Point", "coordinates": [1, 2, 30]}', Point(1, 2)),
        (
            f'{{"type": "Feature", "properties": {{}}, "geometry": {SQUARE_JSON}}}',
            Rectangle(0, 0, 2, 1),
        ),
        (SQUARE_JSON, Rectangle(0, 0, 2, 1)),
        ("POLYGON ((2 1, 2 0, 0 0, 0 1, 2 1))", Rectangle(0, 0, 2, 1)),
        ("MULTIPOLYGON (((2 1, 2 0, 0 0, 0 1, 2 1)))", Rectangle(0, 0, 2, 1)),
        ("POLYGON ((0 0, 4 0, 0 3, 0 0))", Polygon([TRIANGLE])),
        (
            "POLYGON ((0 0, 4 0, 0 3, 0 0), (0.5 0.5, 1 0.5, 1 1, 0.5 0.5))",
            Polygon([TRIANGLE, [(0.5, 0.5), (1, 0.5), (1, 1)]]),
        ),
        (
            "MULTIPOLYGON (((0 0, 4 0, 0 3, 0 0)), ((9 9, 10 9, 10 10, 9 9)))",
            Polygon([TRIANGLE, [(9, 9), (10, 9), (10, 10)]]),
        ),
        (  # Five positions on the bounding box, but not a rectangle.
            "POLYGON ((0 0, 2 0, 2 2, 1 2, 0 0))",
            Polygon([[(0, 0), (2, 0), (2, 2), (1, 2)]]),
        ),
    ],
)
def test_geometry_is_read(value: Any, expected: Region | Point) -> None:
    assert parse_geometry(value) == expected


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("LINESTRING (0 0, 1 1)", "a LINESTRING is no region; expected a POINT, POLYGON or"),
        ("POLYGON EMPTY", "the geometry is empty"),
        ("POINT (nan 1)", "a coordinate is not finite"),
        ("POLYGON ((0 0, 1 1, 1 0, 0 1, 0 0))", "the geometry is not valid: Self-intersection"),
        ("somewhere", "cannot be read as WKT: "),
        (b"\x01\x02", "cannot be read as WKB: "),
        ('{"type": "Circle"}', "cannot be read as GeoJSON: "),
        ("", "cannot be read as WKT: "),
        (5, "a int is no geometry; expected text or bytes"),
    ],
)
def test_other_geometry_is_refused_with_the_reason(value: Any, reason: str) -> None:
    with pytest.raises(InvalidRegion) as error:
        parse_geometry(value)
    assert reason in str(error.value)


def test_many_geometries_keep_their_rows() -> None:
    values = ["POINT (1 2)", "nowhere", SQUARE_JSON, shapely.Point(200, 0).wkb, None]
    array = np.array(values, np.object_)
    regions, problems = parse_geometries(array, "lonlat")
    assert regions == [Point(1, 2), None, Rectangle(0, 0, 2, 1), None, None]
    assert [row for row, _ in problems] == [1, 3, 4]
    assert problems[1] == (3, "longitude 200.0 is outside [-180, 180]")
    assert parse_geometries(array)[0][3] == Point(200, 0)
    assert parse_geometries([]) == ([], [])


@given(st.integers(0, 2), st.booleans())
def test_wkt_wkb_and_geojson_say_the_same(kind: int, is_wkb: bool) -> None:
    geometry = [
        shapely.Point(1.5, -2.25),
        shapely.box(0, 0, 3, 1),
        shapely.Polygon(TRIANGLE, [[(0.5, 0.5), (1, 0.5), (1, 1)]]),
    ][kind]
    value = shapely.to_wkb(geometry) if is_wkb else shapely.to_geojson(geometry)
    assert parse_geometry(value) == parse_geometry(shapely.to_wkt(geometry))
