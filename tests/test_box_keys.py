"""Box keys: the laws of the module's description, against plain comparisons."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from earshot.indexes.quantizing import quantizer_of
from earshot.kernels import box_keys
from earshot.kernels.box_keys import (
    BLOCK,
    DEAD_KEY,
    MAX_CELL_BOUNDS,
    TOP,
    Quantizer,
    cell_by_steps,
    fill_steps,
    quantize,
)
from earshot.kernels.jit import kernel

INF = math.inf
relaxed = settings(deadline=None)  # the first call may compile
Box = tuple[float, float, float, float]


@kernel
def mask_at(keys, position, limit):  # type: ignore[no-untyped-def]  # typed by Numba
    return box_keys.touching_mask(keys, position, limit)


@kernel
def lowest_bit(mask):  # type: ignore[no-untyped-def]  # typed by Numba
    return box_keys.trailing_zeros(mask)


# Numba hands unsigned integers back as ints, which it would take for signed ones.


def box_key(quantizer: Quantizer, *box: float) -> np.uint64:
    return np.uint64(box_keys.box_key(quantizer, *box))


def box_limit(quantizer: Quantizer, *box: float) -> np.uint64:
    return np.uint64(box_keys.box_limit(quantizer, *box))


def strict_limit(limit: np.uint64) -> np.uint64:
    return np.uint64(box_keys.strict_limit(limit))


def union_key(a: np.uint64, b: np.uint64) -> np.uint64:
    return np.uint64(box_keys.union_key(a, b))


def key_touches(key: np.uint64, limit: np.uint64) -> bool:
    return bool(box_keys.key_touches(key, limit))


def mask_of(keys: Any, position: int, limit: np.uint64) -> int:
    return int(mask_at(np.array(keys, np.uint64), position, limit))


def touch(a: Box, b: Box) -> bool:
    return a[0] <= b[2] and b[0] <= a[2] and a[1] <= b[3] and b[1] <= a[3]


def lanes(key: np.uint64) -> list[int]:
    return [int(key) >> shift & 0x7FFF for shift in (0, 16, 32, 48)]


# Coordinates on the cells' edges and one step beside them, so that lanes are often equal.
near = [np.nextafter(v, d) for v in (-1.0, 0.0, 1.0) for d in (-INF, INF)]
coordinates = st.one_of(
    st.sampled_from([-INF, INF, -1.0, -0.0, 0.0, 1.0, 5e-324, 1.7e308, *map(float, near)]),
    st.floats(-2, 2),
    st.floats(allow_nan=False),
)
pairs = st.tuples(coordinates, coordinates).map(sorted)
boxes = st.tuples(pairs, pairs).map(lambda p: (p[0][0], p[1][0], p[0][1], p[1][1]))
bounds = st.lists(
    st.one_of(st.sampled_from([-1.0, 0.0, 1.0]), st.floats(-2, 2)), max_size=6, unique=True
).map(lambda values: np.unique(np.array(values, np.float64)))
quantizers = st.builds(Quantizer, bounds, bounds)
NO_CELLS = Quantizer(np.empty(0), np.empty(0))


@relaxed
@given(bounds, coordinates, coordinates)
def test_cells_keep_order(bounds: Any, a: float, b: float) -> None:
    cell_a, cell_b = quantize(bounds, a), quantize(bounds, b)
    if a <= b:
        assert cell_a <= cell_b
    if math.isfinite(a):
        assert cell_a == 1 + np.count_nonzero(bounds <= a)
        assert 0 < cell_a < TOP
    else:
        assert cell_a == (0 if a < 0 else TOP)


@relaxed
@given(quantizers, boxes, boxes)
@example(NO_CELLS, (0.0, 0.0, 0.0, 0.0), (5.0, 5.0, 5.0, 5.0))
@example(NO_CELLS, (-INF, -INF, INF, INF), (5.0, 5.0, 5.0, 5.0))
def test_a_key_within_the_limit_could_touch_and_below_it_surely_does(
    quantizer: Quantizer, clause: Box, message: Box
) -> None:
    key, limit = box_key(quantizer, *clause), box_limit(quantizer, *message)
    could = key_touches(key, limit)
    surely = key_touches(key, strict_limit(limit))
    if touch(clause, message):
        assert could, "a match would be missed"
    if surely:
        assert could
        assert touch(clause, message), "a match would be made up"
    # What the lanes say, one by one.
    limits = lanes(limit)
    assert could == all(k <= m for k, m in zip(lanes(key), limits, strict=True))
    assert surely == all(k < m for k, m in zip(lanes(key), limits, strict=True))


@relaxed
@given(boxes.filter(lambda box: all(map(math.isfinite, box))))
def test_a_box_without_bounds_is_never_uncertain(message: Box) -> None:
    for quantizer in (NO_CELLS, Quantizer(np.array([0.0]), np.array([0.0, 1.0]))):
        key = box_key(quantizer, -INF, -INF, INF, INF)
        assert key == 0
        assert key_touches(key, strict_limit(box_limit(quantizer, *message)))


def test_without_cells_only_infinities_tell_anything() -> None:
    key = box_key(NO_CELLS, 0.0, 0.0, 1.0, 1.0)
    far = box_limit(NO_CELLS, 5.0, 5.0, 6.0, 6.0)
    assert key_touches(key, far)
    assert not key_touches(key, strict_limit(far))


@pytest.mark.parametrize("edge", [-1.0, 0.0, 1.0, 180.0])
def test_neighbours_one_step_apart(edge: float) -> None:
    quantizer = Quantizer(np.array([edge]), np.array([0.0]))
    below = float(np.nextafter(edge, -INF))
    left = box_key(quantizer, -500.0, 0.0, below, 0.0)
    right_of_edge = box_limit(quantizer, edge, 0.0, edge, 0.0)
    left_of_edge = box_limit(quantizer, below, 0.0, below, 0.0)
    assert not key_touches(left, right_of_edge)
    assert key_touches(left, left_of_edge)
    assert key_touches(box_key(quantizer, -500.0, 0.0, edge, 0.0), right_of_edge)


@relaxed
@given(quantizers, boxes, boxes, boxes)
def test_the_key_of_a_union_touches_what_either_does(
    quantizer: Quantizer, a: Box, b: Box, message: Box
) -> None:
    key_a, key_b = box_key(quantizer, *a), box_key(quantizer, *b)
    union = union_key(key_a, key_b)
    around = (min(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3]))
    assert union == box_key(quantizer, *around)
    assert union_key(key_b, key_a) == union
    assert union_key(key_a, key_a) == key_a
    assert union_key(key_a, DEAD_KEY) == key_a
    limit = box_limit(quantizer, *message)
    if key_touches(key_a, limit) or key_touches(key_b, limit):
        assert key_touches(union, limit)


@relaxed
@given(quantizers, boxes)
def test_dead_keys_touch_nothing(quantizer: Quantizer, message: Box) -> None:
    assert not key_touches(DEAD_KEY, box_limit(quantizer, *message))
    everything = box_limit(quantizer, -INF, -INF, INF, INF)
    assert not key_touches(DEAD_KEY, everything)
    assert mask_of([DEAD_KEY] * BLOCK, 0, everything) == 0


@relaxed
@given(quantizers, st.lists(boxes, min_size=1, max_size=40), boxes, st.data())
def test_sixteen_keys_at_a_time_equal_one_at_a_time(
    quantizer: Quantizer, clauses: list[Box], message: Box, data: st.DataObject
) -> None:
    limit = box_limit(quantizer, *message)
    keys = np.full(len(clauses) + BLOCK, DEAD_KEY, np.uint64)
    box_keys.build_keys(quantizer, np.array(clauses), 0, keys[: len(clauses)])
    assert keys[: len(clauses)].tolist() == [box_key(quantizer, *box) for box in clauses]
    keys[data.draw(st.integers(0, len(clauses) - 1))] = DEAD_KEY
    start = data.draw(st.integers(0, len(clauses)))
    for bound in (limit, strict_limit(limit)):
        expected = [bool(key_touches(key, bound)) for key in keys[start : start + BLOCK]]
        mask = mask_of(keys, start, bound)
        assert [bool(mask >> i & 1) for i in range(32)] == expected + [False] * 16


@relaxed
@given(st.integers(1, 2**32 - 1))
def test_trailing_zeros(mask: int) -> None:
    assert lowest_bit(np.uint32(mask)) == (mask & -mask).bit_length() - 1


# ---- choosing the cells --------------------------------------------------------------------------


def test_cells_of_no_boxes() -> None:
    nothing = np.empty((0, 4))
    planar = quantizer_of(nothing, "planar")
    assert (len(planar.x_bounds), len(planar.y_bounds)) == (0, 0)
    lonlat = quantizer_of(nothing, "lonlat")
    assert (lonlat.x_bounds[0], lonlat.x_bounds[-1]) == (-180.0, 180.0)
    assert (lonlat.y_bounds[0], lonlat.y_bounds[-1]) == (-90.0, 90.0)


@relaxed
@given(st.lists(boxes, min_size=1, max_size=50))
def test_cells_begin_at_the_edges_of_the_boxes(boxes: list[Box]) -> None:
    quantizer = quantizer_of(np.array(boxes), "planar")
    for axis, found in enumerate(quantizer):
        edges = {box[axis] for box in boxes} | {box[axis + 2] for box in boxes}
        assert found.tolist() == sorted(edge for edge in edges if math.isfinite(edge))


def test_cells_are_few_enough_for_fifteen_bits() -> None:
    random = np.random.default_rng(1)
    corners = random.normal(size=(40_000, 2))
    many = np.hstack([corners, corners + random.random((40_000, 2))])
    quantizer = quantizer_of(many, "planar")
    for axis, found in enumerate(quantizer):
        assert len(found) <= MAX_CELL_BOUNDS
        assert (np.diff(found) > 0).all()
        highest = many[:, axis + 2].max()
        assert quantize(found, highest) < TOP
        assert quantize(found, 1e300) < TOP
        cells = np.searchsorted(found, many[:, axis], side="right")
        assert np.bincount(cells).max() < 20  # about equally many everywhere


@pytest.mark.parametrize("n_steps", [1, 7, 4096])
@relaxed
@given(
    bounds=st.lists(st.floats(-1e308, 1e308), max_size=40, unique=True),
    value=st.floats(allow_nan=False),
)
def test_cells_by_steps_are_those_of_a_search(
    n_steps: int, bounds: list[float], value: float
) -> None:
    ascending, steps, scales = np.sort(bounds), np.zeros(n_steps + 1, np.int32), np.zeros(4)
    fill_steps(ascending, steps, scales, 1)
    for each in (value, *bounds[:5]):
        found = cell_by_steps(ascending, steps, scales[2], scales[3], each)
        assert found == quantize(ascending, each)
