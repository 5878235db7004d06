"""Encoding: canonical batches become clauses and messages, bad rows become reasons."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st

from earshot.encoding import (
    NEVER_US,
    NO_TIME_US,
    encode_messages,
    encode_moves,
    encode_subscriptions,
)
from earshot.encoding.kernels import merge_tokens
from earshot.errors import InvalidInput, InvalidRegion
from earshot.model.arrays import EVERYWHERE_TOKEN, ClauseArrays, Space
from earshot.model.batches import id_array, message_batch, subscription_batch
from earshot.model.messages import Message
from earshot.model.regions import Circle, Everywhere, Point, Polygon, Rectangle, boxes, shape_arrays
from earshot.model.schemas import (
    BOX_FIELDS,
    MESSAGES,
    SUBSCRIPTIONS,
    messages_schema,
    subscriptions_schema,
)
from earshot.model.subscriptions import Subscription
from earshot.semantics.index_matcher import RankedMatcher
from earshot.text import Analyzer, Vocabulary

SQUARE = shapely.to_wkb(shapely.box(0, 0, 2, 2))
TRIANGLE = shapely.to_wkb(shapely.Polygon([(0, 0), (4, 0), (0, 4)]))
INFINITE = [-np.inf, -np.inf, np.inf, np.inf]
MOON = datetime(2026, 5, 1, tzinfo=UTC)


def box(*sides: float) -> dict[str, float]:
    return dict(zip(BOX_FIELDS, sides, strict=True))


def encoded(
    encode: Callable[..., Any], schema: pa.Schema, rows: list[dict[str, Any]],
    vocabulary: Vocabulary | None = None, /, *, space: Space = "lonlat", **options: Any,
) -> Any:  # fmt: skip
    batch = pa.RecordBatch.from_pylist(rows, schema)
    return encode(batch, Analyzer(), vocabulary or Vocabulary(), space, **options)


subscriptions = partial(encoded, encode_subscriptions, SUBSCRIPTIONS)
messages = partial(encoded, encode_messages, MESSAGES)


def tokens_of_rows(offsets: Any, ids: Any, vocabulary: Vocabulary) -> list[list[str]]:
    """Return the tokens of each row; forbidden ones with a minus."""
    found = []
    for i in range(len(offsets) - 1):
        row = ids[offsets[i] : offsets[i + 1]].tolist()
        found.append(["-" * (t < 0) + vocabulary.tokens([t if t >= 0 else ~t])[0] for t in row])
    return found


def clause_tokens(clauses: ClauseArrays, vocabulary: Vocabulary) -> list[list[str]]:
    return tokens_of_rows(clauses.token_offsets, clauses.token_ids, vocabulary)


# ---- subscriptions ------------------------------------------------------------------------------


def test_keywords_and_boxes() -> None:
    vocabulary = Vocabulary()
    rows: list[dict[str, Any]] = [
        {"id": 5, "keywords": ["Fire", "New York", "york"], **box(0, 1, 2, 3)},
        {"id": 3, "keywords": ["fire"], "expires": MOON},
        {"id": 4, **box(5, 5, 5, 5)},
    ]
    found = subscriptions(rows, vocabulary)
    assert found.ids.to_pylist() == [5, 3, 4]
    assert found.rejects == []
    assert clause_tokens(found.asked, vocabulary) == [["fire", "new", "york"], ["fire"], [""]]
    assert found.asked.token_ids[-1] == EVERYWHERE_TOKEN
    assert found.asked.boxes.tolist() == [[0, 1, 2, 3], INFINITE, [5, 5, 5, 5]]
    assert found.asked.subscriptions.tolist() == [0, 1, 2]
    assert found.asked.shape_rows.tolist() == [-1, -1, -1]
    assert found.expires.tolist() == [NEVER_US, int(MOON.timestamp()) * 1_000_000, NEVER_US]


def test_dtypes_are_those_of_the_arrays() -> None:
    cases: list[list[dict[str, Any]]] = [
        [{"id": 1, "keywords": ["a"]}],
        [{"id": 1, "expression": "a"}],
        [],
    ]
    for rows in cases:
        clauses = subscriptions(rows).asked
        assert [a.dtype for a in clauses[:5]] == [
            np.int32,
            np.int64,
            np.int32,
            np.float64,
            np.int32,
        ]
        assert clauses.boxes.shape == (len(rows), 4)
        found = messages([{"id": 1, "text": "a", "x": 1, "y": 1}] if rows else []).messages
        assert [a.dtype for a in found] == [np.int64, np.int32, np.float64]
        assert found.boxes.shape == (len(rows), 4)


def test_a_box_across_the_antimeridian_gives_two_clauses() -> None:
    found = subscriptions([{"id": 1, **box(170, 0, -170, 5)}, {"id": 2, **box(0, 0, 180, 1)}])
    assert found.asked.subscriptions.tolist() == [0, 0, 1, 1]
    assert found.asked.boxes.tolist() == [
        [170, 0, 180, 5],
        [-180, 0, -170, 5],
        [0, 0, 180, 1],
        [-180, 0, -180, 1],
    ]
    planar = subscriptions([{"id": 1, **box(500, 0, 600, 5)}], space="planar")
    assert planar.asked.boxes.tolist() == [[500, 0, 600, 5]]


def test_expressions_become_clauses() -> None:
    vocabulary = Vocabulary()
    rows = [
        {"id": 1, "keywords": ["x"]},
        {"id": 2, "expression": '(a or "b c") and not d', **box(170, 0, -170, 5)},
        {"id": 3, "expression": "a and a"},
        {"id": 4, "keywords": ["y"]},
        {"id": 5, "expression": "a and a"},
    ]
    found = subscriptions(rows, vocabulary)
    assert found.rejects == []
    assert found.asked.subscriptions.tolist() == [0, 1, 1, 1, 1, 2, 3, 4]
    tokens = clause_tokens(found.asked, vocabulary)
    assert tokens[0] == ["x"]
    assert tokens[1] == tokens[2]
    assert tokens[3] == tokens[4]
    assert sorted([tokens[1], tokens[3]]) == [["a", "-d"], ["b", "c", "-d"]]
    assert tokens[5:] == [["a"], ["y"], ["a"]]
    assert found.asked.boxes[1:5, 0].tolist() == [170, -180, 170, -180]


def test_circles_and_polygons_carry_shapes() -> None:
    hole = Polygon([[(0, 0), (9, 0), (9, 9), (0, 9)], [(1, 1), (2, 1), (2, 2), (1, 2)]])
    triangle = Polygon([[(0, 0), (4, 0), (0, 4)]])
    regions: list[Polygon | Circle | Rectangle] = [
        hole,
        Circle(5, 5, 1000.0),
        Rectangle(0, 0, 1, 1),
        triangle,
        Circle(180, 0, 10.0),
    ]
    batch = subscription_batch([Subscription(i, ("a",), region=r) for i, r in enumerate(regions)])
    found = encode_subscriptions(batch, Analyzer(), Vocabulary(), "lonlat")
    assert found.rejects == []
    clauses = found.asked
    for slot, region in enumerate(regions):
        chosen = clauses.subscriptions == slot
        assert clauses.boxes[chosen].tolist() == [list(each) for each in boxes(region, "lonlat")]
        (row,) = set(clauses.shape_rows[chosen].tolist())
        if isinstance(region, Rectangle):
            assert row == -1
            continue
        alone = shape_arrays([region])
        assert clauses.shapes.circles[row].tolist() == alone.circles[0].tolist()
        rings = range(clauses.shapes.ring_offsets[row], clauses.shapes.ring_offsets[row + 1])
        ends = clauses.shapes.vertex_offsets
        vertices = [clauses.shapes.vertices[ends[ring] : ends[ring + 1]].tolist() for ring in rings]
        if isinstance(region, Polygon):
            assert vertices == [[list(position) for position in ring] for ring in region.rings]
        else:
            assert vertices == []


def test_rings_in_any_order_stay_one_region() -> None:
    # An island in a lake, the island first, and a second part.
    island = [(4, 4), (5, 4), (5, 5), (4, 5)]
    land = [(0, 0), (9, 0), (9, 9), (0, 9)]
    lake = [(2, 2), (7, 2), (7, 7), (2, 7)]
    other = [(20, 0), (21, 0), (21, 1)]
    subscription = Subscription(1, region=Polygon([island, lake, other, land]))
    wkb = subscription_batch([subscription]).column("geometry")[0].as_py()
    expected = shapely.MultiPolygon([(land, [lake]), (island, []), (other, [])])
    assert shapely.from_wkb(wkb).equals(expected)
    found = encode_subscriptions(
        subscription_batch([subscription]), Analyzer(), Vocabulary(), "lonlat"
    )
    assert found.rejects == []
    assert np.diff(found.asked.shapes.ring_offsets).tolist() == [4]


BAD_SUBSCRIPTIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"id": None, "keywords": ["a"]}, "id", "every row needs an id"),
    ({"keywords": ["a", "!!!"]}, "keywords", "keyword '!!!' has no letters or digits; give a word"),
    ({"keywords": ["a", ""]}, "keywords", "keyword '' has no letters or digits"),
    ({"keywords": ["a", None]}, "keywords", "a keyword is null"),
    ({}, "keywords", "neither keywords nor a region"),
    ({"keywords": []}, "keywords", "neither keywords nor a region"),
    ({"keywords": ["a"], "expression": "b"}, "expression", "expected one of the two"),
    ({"expression": "a b"}, "expression", "stand side by side"),
    ({"expression": "not a"}, "expression", "none of its keywords"),
    ({"expression": "a and '!!!'"}, "expression", "no letters or digits"),
    (box(np.nan, 0, 1, 1), "min_x", "longitude nan is not finite"),
    (box(0, 0, 200, 1), "max_x", "longitude 200.0 is outside [-180, 180]"),
    (box(0, 0, 1, np.inf), "max_y", "not finite"),
    (box(0, 5, 1, 4), "min_y", "min_y 5.0 is greater than max_y 4.0"),
    ({"min_x": 1.0, "min_y": 1.0, "max_x": 2.0}, "max_y", "is missing; a box needs min_x"),
    ({"x": 1.0, "y": 1.0}, "radius", "is missing; a circle needs x, y, radius"),
    ({"x": 1.0, "y": 1.0, "radius": -1.0}, "radius", "radius -1.0 is negative"),
    ({"x": 1.0, "y": 91.0, "radius": 1.0}, "y", "latitude 91.0 is outside [-90, 90]"),
    (
        {"keywords": ["a"], "threshold": 0.5},
        "threshold",
        "but for ranked matching; use Engine(Ranking(",
    ),
    ({"keywords": ["a"], "k": 5}, "k", "but for top-k over a window; use Engine(TopK("),
    ({"keywords": ["a"], "alpha": 0.5}, "alpha", "but for top-k over a window; use Engine(TopK("),
    ({"geometry": SQUARE, **box(0, 0, 1, 1)}, "geometry", "more than one way"),
    ({"geometry": b"zz"}, "geometry", "WKB"),
    ({"geometry": shapely.to_wkb(shapely.Point(1, 1))}, "geometry", "is a point"),
    ({"geometry": shapely.to_wkb(shapely.LineString([(0, 0), (1, 1)]))}, "geometry", "LINESTRING"),
    ({"geometry": shapely.to_wkb(shapely.box(0, 0, 300, 1))}, "geometry", "longitude 300.0"),
    (
        {"geometry": shapely.to_wkb(shapely.Polygon([(0, 0), (1, 1), (1, 0), (0, 1)]))},
        "geometry",
        "Self-intersection",
    ),
]


@pytest.mark.parametrize(("bad", "field", "reason"), BAD_SUBSCRIPTIONS)
def test_bad_subscriptions_are_set_aside(bad: dict[str, Any], field: str, reason: str) -> None:
    vocabulary = Vocabulary()
    rows = [
        {"id": 1, "keywords": ["first"], **box(0, 0, 1, 1)},
        {"id": 2, **bad},
        {"id": 3, "keywords": ["last"], "geometry": TRIANGLE},
    ]
    found = subscriptions(rows, vocabulary, source="file.csv", first_row=100)
    (error,) = found.rejects
    assert (error.source, error.row, error.field) == ("file.csv", 101, field)
    assert reason in error.reason
    assert found.ids.to_pylist() == [1, 3]
    assert found.asked.subscriptions.tolist() == [0, 1]
    assert clause_tokens(found.asked, vocabulary) == [["first"], ["last"]]
    assert found.asked.boxes.tolist() == [[0, 0, 1, 1], [0, 0, 4, 4]]
    assert len(found.asked.thresholds) == 0
    assert found.expires.tolist() == [NEVER_US] * 2
    numbered = subscriptions(rows, rows=np.array([4, 6, 9]))
    assert [each.row for each in numbered.rejects] == [6]


@pytest.mark.parametrize("wrong", [0.0, -0.5, 1.0000001, np.inf, np.nan])
def test_thresholds_out_of_range_are_set_aside(wrong: float) -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "keywords": ["a"], "threshold": wrong},
        {"id": 2, "keywords": ["a"]},
    ]
    found = subscriptions(rows, form=RankedMatcher.form)
    (error,) = found.rejects
    assert (error.row, error.field) == (0, "threshold")
    assert error.reason == f"is {wrong}; expected a number greater than 0 and at most 1"
    assert len(found.asked.thresholds) == 0  # the row that names one is gone


def test_each_clause_has_the_threshold_of_its_subscription() -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "keywords": ["a"], "threshold": 1.0},
        {"id": 2, "keywords": ["!!!"], "threshold": 0.9},
        {"id": 3, "expression": "a or b", **box(179, 0, -179, 1), "threshold": 0.25},
        {"id": 4, "keywords": ["a"]},
    ]
    found = subscriptions(rows, form=RankedMatcher.form)
    assert [each.row for each in found.rejects] == [1]
    assert found.asked.subscriptions.tolist() == [0, 1, 1, 1, 1, 2]
    np.testing.assert_array_equal(found.asked.thresholds, [1.0, *[0.25] * 4, np.nan])
    plain = subscriptions([rows[0], rows[3]], form=RankedMatcher.form)
    np.testing.assert_array_equal(plain.asked.thresholds, [1.0, np.nan])
    assert len(subscriptions([rows[3]], form=RankedMatcher.form).asked.thresholds) == 0


def test_inverted_boxes_on_the_plane() -> None:
    (error,) = subscriptions([{"id": 1, **box(5, 0, 4, 1)}], space="planar").rejects
    assert error.reason == "min_x 5.0 is greater than max_x 4.0"


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_repeated_ids_are_refused(kind: pa.DataType) -> None:
    ids = pa.array([7, 8, 7, 9, 8]).cast(kind)
    keywords = pa.array([["!!!"], ["a"], ["a"], ["a"], ["a"]])
    batch = pa.RecordBatch.from_arrays([ids, keywords], ["id", "keywords"])
    found = encode_subscriptions(batch, Analyzer(), Vocabulary(), "lonlat")
    # The first 7 was refused for its keyword, so the second is the first one.
    assert [(each.row, each.field) for each in found.rejects] == [(0, "keywords"), (4, "id")]
    assert "already used, 3 rows before" in found.rejects[1].reason
    assert found.ids.to_pylist() == pa.array([8, 7, 9]).cast(kind).to_pylist()


def test_broken_utf8_is_refused() -> None:
    def text(values: list[bytes | None]) -> pa.Array:
        return pa.array(values, pa.binary()).view(pa.string())

    keywords = pa.ListArray.from_arrays([0, 1, 2, 3], text([b"ok", b"\xff\xfe", b"caf\xc3\xa9"]))
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2, 3]), keywords], ["id", "keywords"])
    vocabulary = Vocabulary()
    found = encode_subscriptions(batch, Analyzer(), vocabulary, "lonlat")
    assert [(each.row, each.field) for each in found.rejects] == [(1, "keywords")]
    assert "not valid UTF-8" in found.rejects[0].reason
    assert clause_tokens(found.asked, vocabulary) == [["ok"], ["café"]]
    expressions = pa.RecordBatch.from_arrays(
        [pa.array([1, 2]), text([b"\xe9", b"ok"])], ["id", "expression"]
    )
    found = encode_subscriptions(expressions, Analyzer(), vocabulary, "lonlat")
    assert [(each.row, each.field) for each in found.rejects] == [(0, "expression")]
    batch = pa.RecordBatch.from_arrays(
        [text([b"a", b"\x80"]), text([b"\xc3", b"ok"]), *[pa.array([1.0, 1.0])] * 2],
        ["id", "text", "x", "y"],
    )
    found_messages = encode_messages(batch, Analyzer(), vocabulary, "lonlat")
    assert [(each.row, each.field) for each in found_messages.rejects] == [(0, "text"), (1, "id")]


def test_stop_words_are_no_keywords() -> None:
    batch = pa.RecordBatch.from_pylist([{"id": 1, "keywords": ["the"]}], SUBSCRIPTIONS)
    analyzer = Analyzer(language="en", stop_words=True)
    (error,) = encode_subscriptions(batch, analyzer, Vocabulary(), "lonlat").rejects
    assert "only stop words" in error.reason


def test_regions_alone() -> None:
    rows = [
        {"id": 1, **box(170, 0, -170, 5)},
        {"id": 2},
        {"id": 3, **box(0, 0, 200, 1)},
        {"id": 4, "geometry": TRIANGLE},
        {"id": 1, "x": 0.0, "y": 0.0, "radius": 5.0},
        {"id": 5, "x": 9.0, "y": 9.0, "radius": 5.0},
    ]
    found = encode_moves(pa.RecordBatch.from_pylist(rows, SUBSCRIPTIONS), "lonlat", first_row=10)
    assert found.ids.to_pylist() == [1, 2, 4, 5]
    assert found.places.offsets.tolist() == [0, 2, 3, 4, 5]
    assert found.places.boxes[:4].tolist() == [
        [170, 0, 180, 5],
        [-180, 0, -170, 5],
        INFINITE,
        [0, 0, 4, 4],
    ]
    circles = found.places.shapes.circles[found.places.shape_rows[3:]]
    assert circles[:, 2].tolist() == [-1, 5]  # a polygon, then the circle of the last row
    assert circles[1].tolist() == [9, 9, 5]
    assert found.places.shape_rows[:3].tolist() == [-1, -1, -1]
    assert [(each.row, each.field) for each in found.rejects] == [(12, "max_x"), (14, "id")]


# ---- messages -----------------------------------------------------------------------------------


def test_texts_keywords_and_places() -> None:
    vocabulary = Vocabulary()
    subscriptions([{"id": 1, "keywords": ["fire", "york", "new"]}], vocabulary)
    size = len(vocabulary)
    rows = [
        {"id": 1, "text": "Fire! FIRE in New Haven", "x": 1, "y": 2, "time": MOON},
        {"id": 2, "keywords": ["new york", "york", "unknown"], **box(170, 0, -170, 1)},
        {"id": 3, "text": "", "x": 180, "y": -90},
        {"id": 4, "keywords": [], "x": 0, "y": 0},
    ]
    found = messages(rows, vocabulary)
    assert found.rejects == []
    assert found.ids.to_pylist() == [1, 2, 3, 4]
    tokens = tokens_of_rows(found.messages.token_offsets, found.messages.token_ids, vocabulary)
    assert tokens == [["", "fire", "new"], ["", "new", "york"], [""], [""]]
    assert found.messages.boxes.tolist() == [
        [1, 2, 1, 2],
        [170, 0, -170, 1],
        [180, -90, 180, -90],
        [0, 0, 0, 0],
    ]
    assert found.times.tolist() == [int(MOON.timestamp()) * 1_000_000] + [NO_TIME_US] * 3
    assert len(vocabulary) == size  # unknown tokens cost nothing


@pytest.mark.parametrize(
    ("bad", "field", "reason"),
    [
        ({"id": None, "text": "a", "x": 1, "y": 1}, "id", "every row needs an id"),
        ({"text": "a", "keywords": ["b"], "x": 1, "y": 1}, "keywords", "expected one"),
        ({"x": 1, "y": 1}, "text", "neither text nor keywords"),
        ({"text": "a"}, "x", "no place"),
        ({"text": "a", "x": 1}, "y", "is missing; a point needs x, y"),
        ({"text": "a", "x": 1, "y": 1, **box(0, 0, 1, 1)}, "x", "beside a box"),
        ({"text": "a", "x": 200, "y": 1}, "x", "longitude 200.0 is outside"),
        ({"text": "a", "x": np.nan, "y": 1}, "x", "longitude nan is not finite"),
        ({"text": "a", **box(0, 2, 1, 1)}, "min_y", "greater than max_y"),
        ({"keywords": [""], "x": 1, "y": 1}, "keywords", "empty"),
        ({"text": "x" * 10_000_000, "x": 1, "y": 1}, "text", "10000000 bytes; at most 1000000"),
    ],
)
def test_bad_messages_are_set_aside(bad: dict[str, Any], field: str, reason: str) -> None:
    good = {"text": "a", "x": 5.0, "y": 5.0}
    found = messages([{"id": 1, **good}, {"id": 2, **bad}, {"id": 3, **good}], source="f")
    (error,) = found.rejects
    assert (error.source, error.row, error.field) == ("f", 1, field)
    assert reason in error.reason
    assert found.ids.to_pylist() == [1, 3]
    assert found.messages.boxes.tolist() == [[5, 5, 5, 5]] * 2
    assert found.messages.token_offsets.tolist() == [0, 1, 2]


# ---- laws ---------------------------------------------------------------------------------------


def test_slices_chunks_and_absent_columns_make_no_difference() -> None:
    rows: list[dict[str, Any]] = [
        {"id": i, "keywords": [f"k{i}", "z"] if i % 3 else None, **box(i, 0, i + 1, 1)}
        for i in range(20)
    ]
    batch = pa.RecordBatch.from_pylist(rows, SUBSCRIPTIONS)
    narrow = batch.select(["id", "keywords", *BOX_FIELDS])
    chunked = pa.Table.from_batches([batch.slice(0, 7), batch.slice(7, 5), batch.slice(12)])
    padded = pa.concat_batches([batch, batch]).slice(20 - 0, 20)
    expected = encode_subscriptions(batch, Analyzer(), Vocabulary(), "lonlat")
    for other in (narrow, chunked, padded, pa.Table.from_batches([batch])):
        found = encode_subscriptions(other, Analyzer(), Vocabulary(), "lonlat")
        assert found.ids.to_pylist() == expected.ids.to_pylist()
        assert as_parts(found.asked) == as_parts(expected.asked)


row_strategy = st.fixed_dictionaries(
    {
        "id": st.integers(0, 3) | st.none(),
        "keywords": st.none() | st.lists(st.sampled_from(["a", "B", "a b", "!!"]), max_size=3),
        "expression": st.none() | st.sampled_from(["a or b", "c and not a", "not c", "a b"]),
        "geometry": st.none() | st.sampled_from([TRIANGLE, SQUARE, b"x"]),
    }
    | {name: st.none() | st.just(0.0) | st.just(180.0) for name in ("min_x", "max_x")}
    | {name: st.none() | st.just(1.0) for name in ("min_y", "max_y")}
    | {name: st.none() | st.just(5.0) for name in ("x", "y", "radius")}
)


@settings(max_examples=60, deadline=None)
@given(st.lists(row_strategy, max_size=6))
def test_many_rows_are_encoded_like_one_by_one(rows: list[dict[str, Any]]) -> None:
    vocabulary = Vocabulary()
    together = subscriptions(rows, vocabulary)
    ids: list[int] = []
    reasons: list[tuple[int, str]] = []
    parts: list[tuple[int, list[int], list[float], bool]] = []
    for number, row in enumerate(rows):
        alone = subscriptions([row], vocabulary, first_row=number)
        if alone.rejects:
            reasons += [(each.row, each.reason) for each in alone.rejects]
        elif row["id"] in ids:
            reasons.append((number, "repeated"))
        else:
            first = np.int32(len(ids))
            ids.append(row["id"])
            slots = alone.asked.subscriptions + first
            parts += as_parts(alone.asked._replace(subscriptions=slots))
    assert together.ids.to_pylist() == ids
    assert as_parts(together.asked) == parts
    found = [
        (e.row, "repeated" if "already used" in e.reason else e.reason) for e in together.rejects
    ]
    assert found == reasons


def as_parts(clauses: ClauseArrays) -> list[tuple[int, list[int], list[float], bool]]:
    offsets = clauses.token_offsets
    return [
        (
            int(slot),
            clauses.token_ids[offsets[i] : offsets[i + 1]].tolist(),
            clauses.boxes[i].tolist(),
            bool(clauses.shape_rows[i] >= 0),
        )
        for i, slot in enumerate(clauses.subscriptions)
    ]


def test_the_batch_is_left_as_it_was() -> None:
    rows = [{"id": 1, "keywords": ["a"], **box(170, 0, -170, 5)}, {"id": 1, "keywords": ["!"]}]
    batch = pa.RecordBatch.from_pylist(rows, SUBSCRIPTIONS)
    before = batch.to_pylist()
    encode_subscriptions(batch, Analyzer(), Vocabulary(), "lonlat")
    assert batch.to_pylist() == before


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.lists(st.integers(1, 40), unique=True, max_size=30), max_size=4)),
    st.booleans(),
)
def test_merged_tokens_are_distinct_and_in_order(rows: list[list[list[int]]], always: bool) -> None:
    row_ends = np.cumsum([0, *(len(row) for row in rows)]).astype(np.int64)
    texts = [text for row in rows for text in row]
    offsets = np.cumsum([0, *(len(text) for text in texts)]).astype(np.int64)
    ids = np.array([token for text in texts for token in text], np.int32)
    found_offsets, found = merge_tokens(row_ends, offsets, ids, 41, always)
    for i, row in enumerate(rows):
        distinct = list(dict.fromkeys(token for text in row for token in text))
        expected = [EVERYWHERE_TOKEN, *distinct] if always or not distinct else distinct
        assert found[found_offsets[i] : found_offsets[i + 1]].tolist() == expected


# ---- single objects -----------------------------------------------------------------------------


def test_subscriptions_become_canonical_rows() -> None:
    paris = datetime(2026, 5, 1, 2, tzinfo=UTC).astimezone(tz=None)
    batch = subscription_batch(
        [
            Subscription("a", ("k", "two words")),
            Subscription("b", expression="x and (y or z)", region=Circle(1, 2, 3)),
            Subscription("c", ("k",), region=Rectangle(0, 1, 2, 3), expires=paris, threshold=1),
        ]
    )
    canonical = subscriptions_schema(pa.string())
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        assert column.type == canonical.field(name).type
    rows = batch.to_pylist()
    assert [row["id"] for row in rows] == ["a", "b", "c"]
    assert rows[0]["keywords"] == ["k", "two words"]
    assert (rows[1]["x"], rows[1]["y"], rows[1]["radius"]) == (1, 2, 3)
    assert rows[2]["expires"] == paris
    assert [row["threshold"] for row in rows] == [None, None, 1.0]
    found = encode_subscriptions(batch, Analyzer(), Vocabulary(), "lonlat", form=RankedMatcher.form)
    assert found.rejects == []
    assert found.asked.subscriptions.tolist() == [0, 1, 1, 2]


def test_messages_become_canonical_rows() -> None:
    time = MOON + timedelta(microseconds=1)
    batch = message_batch(
        [
            Message(1, "hi", place=Point(1, 2), time=time),
            Message(2, keywords=("a",), place=Rectangle(0, 0, 1, 1)),
        ]
    )
    canonical = messages_schema(pa.int64())
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        assert column.type == canonical.field(name).type
    found = encode_messages(batch, Analyzer(), Vocabulary(), "planar")
    assert found.messages.boxes.tolist() == [[1, 2, 1, 2], [0, 0, 1, 1]]
    assert found.times.tolist() == [int(MOON.timestamp()) * 1_000_000 + 1, NO_TIME_US]


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ([1, "a"], "all integers or all strings"),
        (["a", 1], "all integers or all strings"),
        ([2**63], "outside the range of 64-bit integers"),
        (["\ud800"], "surrogate"),
    ],
)
def test_ids_that_do_not_fit(ids: list[int | str], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        id_array(ids)


def test_half_a_surrogate_is_no_text() -> None:
    with pytest.raises(InvalidInput, match="text: half a surrogate pair"):
        message_batch([Message(1, "\ud800", place=Point(0, 0))])


def test_degenerate_polygons_are_refused() -> None:
    batch = subscription_batch([Subscription(1, region=Polygon([[(0, 0), (1, 1)]]))])
    (error,) = encode_subscriptions(batch, Analyzer(), Vocabulary(), "lonlat").rejects
    assert (error.row, error.field) == (0, "geometry")
    with pytest.raises(InvalidRegion, match="polygon"):
        subscription_batch([Subscription(1, region=Polygon([[(0, 0)]]))])


def test_everywhere_needs_no_column() -> None:
    batch = subscription_batch([Subscription(1, ("a",), region=Everywhere())])
    assert batch.schema.names == ["id", "keywords"]


def test_columns_of_other_widths_are_taken() -> None:
    wide = pa.table(
        {
            "id": pa.array(["a"], pa.large_string()),
            "keywords": pa.array([["k"]], pa.large_list(pa.large_string())),
            "x": pa.array([1], pa.int32()),
            "y": pa.array([2.5], pa.float32()),
            "radius": pa.array([3], pa.uint8()),
            "expires": pa.array([1], pa.timestamp("s", "Asia/Tokyo")),
            "noise": pa.array([b"x"]),
        }
    )
    found = encode_subscriptions(wide, Analyzer(), Vocabulary(), "lonlat")
    assert found.ids.to_pylist() == ["a"]
    assert found.asked.shapes.circles.tolist() == [[1, 2.5, 3]]
    assert found.expires.tolist() == [1_000_000]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("x", pa.array(["1"])),
        ("time", pa.array([1], pa.timestamp("us"))),
        ("time", pa.array([1])),
        ("text", pa.array([1])),
        ("keywords", pa.array([[1.5]])),
        ("keywords", pa.array(["a"])),
        ("id", pa.array([2**63], pa.uint64())),
    ],
)
def test_columns_of_other_kinds_are_refused(column: str, values: pa.Array) -> None:
    columns = {"id": pa.array([1]), "text": pa.array(["a"]), column: values}
    with pytest.raises(InvalidInput, match=f"column '{column}'"):
        encode_messages(pa.record_batch(columns), Analyzer(), Vocabulary(), "lonlat")


def test_a_batch_without_ids_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no column 'id'"):
        encode_messages(pa.record_batch({"text": ["a"]}), Analyzer(), Vocabulary(), "lonlat")
    with pytest.raises(InvalidInput, match="of type double; expected int64 or string"):
        encode_messages(pa.record_batch({"id": [1.5]}), Analyzer(), Vocabulary(), "lonlat")
