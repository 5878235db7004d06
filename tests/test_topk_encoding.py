"""Top-k over a window: its settings, its columns, and the arrays that batches become."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import shapely

from earshot.encoding import (
    NEVER_US,
    NO_TIME_US,
    REGIONS,
    EncodedMessages,
    EncodedSubscriptions,
    Form,
    encode_messages,
    encode_moves,
    encode_subscriptions,
)
from earshot.errors import InvalidInput, InvalidParameter
from earshot.files import read_subscriptions
from earshot.files.rejects import Reject
from earshot.model.arrays import EARTH_RADIUS_M, Space
from earshot.model.batches import message_batch, subscription_batch
from earshot.model.messages import Message
from earshot.model.regions import Circle, Point, Rectangle, cartesian
from earshot.model.schemas import BOX_FIELDS, MESSAGES, SUBSCRIPTIONS, subscriptions_schema
from earshot.model.subscriptions import Subscription
from earshot.model.topk import TopK
from earshot.semantics.index_matcher import RankedMatcher
from earshot.semantics.topk.matcher import TopkMatcher
from earshot.text import Analyzer, Vocabulary

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
NOON_US = int(NOON.timestamp()) * 1_000_000
BOX = dict(zip(BOX_FIELDS, (0.0, 0.0, 1.0, 1.0), strict=True))
POINT = shapely.to_wkb(shapely.Point(3, 4))
TOPK = TopkMatcher.form
SQUARE = shapely.to_wkb(shapely.box(0, 0, 2, 2))


def subscriptions(
    rows: list[dict[str, Any]], vocabulary: Vocabulary | None = None, /, **options: Any
) -> EncodedSubscriptions:
    batch = pa.RecordBatch.from_pylist(rows, SUBSCRIPTIONS)
    space: Space = options.pop("space", "planar")
    return encode_subscriptions(
        batch, Analyzer(), vocabulary or Vocabulary(), space, form=TOPK, **options
    )


def messages(
    rows: list[dict[str, Any]], vocabulary: Vocabulary | None = None, /, **options: Any
) -> EncodedMessages:
    batch = pa.RecordBatch.from_pylist(rows, MESSAGES)
    analyzer = options.pop("analyzer", Analyzer())
    return encode_messages(
        batch, analyzer, vocabulary or Vocabulary(), "planar", form=TOPK, **options
    )


def counts_of_rows(found: EncodedMessages, vocabulary: Vocabulary) -> list[dict[str, int]]:
    offsets, tokens, counts = found.messages[:3]
    words = vocabulary.tokens(tokens)
    return [dict(zip(words[a:b], counts[a:b].tolist(), strict=True)) for a, b in pairwise(offsets)]


# ---- settings -----------------------------------------------------------------------------------


def test_settings_are_normalised() -> None:
    settings = TopK(np.int64(5), k=np.int32(3), alpha=1, max_distance=7)  # type: ignore[arg-type]
    assert settings == TopK(5, 3, 1.0, 7.0, timedelta(0))
    assert [type(each) for each in (settings.window, settings.k)] == [int, int]
    assert [type(each) for each in (settings.alpha, settings.max_distance)] == [float, float]
    assert TopK(timedelta(hours=1)).window == timedelta(hours=1)
    assert (TopK(1).k, TopK(1).alpha, TopK(1).max_distance) == (20, 0.5, None)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: TopK(0), "window is 0; expected a number of messages from 1 to 2,147,483,647, or"),
        (lambda: TopK(True), "window is True; expected a number of messages"),
        (lambda: TopK(1.5), "window is 1.5; expected a number of messages"),  # type: ignore[arg-type]
        (lambda: TopK(2**31), "window is 2147483648; expected"),
        (lambda: TopK("1h"), "window is '1h'; expected"),  # type: ignore[arg-type]
        (lambda: TopK(timedelta(0)), "or a timedelta greater than 0 and at most 3,652,058 days"),
        (lambda: TopK(timedelta(microseconds=-1)), "window is datetime.timedelta(days=-1"),
        (lambda: TopK(timedelta.max), "timedelta greater than 0"),  # too many microseconds
        (lambda: TopK(9, k=0), "k is 0; expected an integer from 1 to 10,000"),
        (lambda: TopK(9, k=10_001), "k is 10001; expected"),
        (lambda: TopK(9, k=True), "k is True; expected"),
        (lambda: TopK(9, k=2.0), "k is 2.0; expected"),  # type: ignore[arg-type]
        (lambda: TopK(9, alpha=1.5), "alpha is 1.5; expected a number from 0 to 1"),
        (lambda: TopK(9, alpha=float("nan")), "alpha is nan; expected"),
        (lambda: TopK(9, alpha=False), "alpha is False; expected"),
        (lambda: TopK(9, max_distance=0), "max_distance is 0; expected a number from 1e-09 to"),
        (lambda: TopK(9, max_distance=9e-10), "max_distance is 9e-10; expected a number from"),
        (lambda: TopK(9, max_distance=1.1e15), "expected a number from 1e-09 to 1e+15, or None"),
        (lambda: TopK(9, max_distance=float("inf")), "max_distance is inf; expected"),
        (lambda: TopK(9, lateness=timedelta(-1)), "expected a timedelta of at least 0"),
        (lambda: TopK(9, lateness=30), "lateness is 30; expected a timedelta"),  # type: ignore[arg-type]
        (lambda: Subscription("s", ("a",), k=0), "subscription 's': k is 0; expected an integer"),
        (lambda: Subscription("s", ("a",), k=True), "subscription 's': k is True; expected"),
        (
            lambda: Subscription("s", ("a",), alpha=-0.1),
            "subscription 's': alpha is -0.1; expected a number from 0 to 1",
        ),
    ],
)
def test_wrong_settings_are_refused(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(InvalidParameter) as error:
        make()
    assert reason in str(error.value)


# ---- distances ----------------------------------------------------------------------------------


def test_points_of_the_plane_stay_where_they_are() -> None:
    assert cartesian([[1.5, -2.0], [3.0, 4.0]], "planar").tolist() == [[1.5, -2, 0], [3, 4, 0]]
    assert cartesian(np.empty((0, 2)), "planar").shape == (0, 3)
    assert cartesian(np.empty((0, 2)), "lonlat").shape == (0, 3)


def test_points_of_the_earth_are_on_its_sphere() -> None:
    found = cartesian([[0, 0], [90, 0], [0, 90], [45, -30]], "lonlat") / EARTH_RADIUS_M
    half = 0.75**0.5 * 0.5**0.5
    expected = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [half, half, -0.5]]
    np.testing.assert_allclose(found, expected, atol=1e-15)
    # The straight line from Paris to London is a little shorter than the way, 343.6 km.
    paris, london = cartesian([[2.3522, 48.8566], [-0.1276, 51.5072]], "lonlat")
    assert 343_000 < np.linalg.norm(paris - london) < 344_000


def test_a_point_has_one_place_under_all_its_names_and_in_all_batches() -> None:
    dateline = cartesian([[180.0, 12.3], [-180.0, 12.3]], "lonlat")
    assert dateline[0].tolist() == dateline[1].tolist()
    for pole in (-90.0, 90.0):
        places = cartesian([[-180.0, pole], [0.0, pole], [77.7, pole]], "lonlat")
        assert len({tuple(each) for each in places.tolist()}) == 1
    random = np.random.default_rng(5)
    points = random.uniform([-180, -90], [180, 90], (999, 2))
    together = cartesian(points, "lonlat")
    alone = np.concatenate([cartesian(point, "lonlat") for point in points])
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(together[::3], cartesian(points[::3], "lonlat"))


# ---- subscriptions ------------------------------------------------------------------------------


def test_subscriptions() -> None:
    vocabulary = Vocabulary()
    rows: list[dict[str, Any]] = [
        {"id": 7, "keywords": ["New York", "york", "Fire"], "x": 1, "y": 2, "k": 5, "alpha": 0.25},
        {"id": 5, "keywords": ["fire"], "x": 3, "y": 4, "radius": 0, "expires": NOON},
        {"id": 6, "keywords": ["fire"], "geometry": POINT, "k": 10_000, "alpha": 0},
    ]
    found = subscriptions(rows, vocabulary)
    assert found.rejects == []
    assert found.ids.to_pylist() == [7, 5, 6]
    assert found.asked.token_offsets.tolist() == [0, 3, 4, 5]
    assert vocabulary.tokens(found.asked.tokens) == ["new", "york", "fire", "fire", "fire"]
    assert found.asked.places.tolist() == [[1, 2, 0], [3, 4, 0], [3, 4, 0]]
    assert found.asked.ks.tolist() == [5, 0, 10_000]
    np.testing.assert_array_equal(found.asked.alphas, [0.25, np.nan, 0.0])
    assert found.expires.tolist() == [NEVER_US, NOON_US, NEVER_US]
    on_earth = subscriptions(rows[:1], space="lonlat")
    np.testing.assert_array_equal(on_earth.asked.places, cartesian([[1, 2]], "lonlat"))


def test_dtypes_are_those_of_the_arrays() -> None:
    for n in (0, 1):
        rows = [{"id": 1, "keywords": ["a"], "x": 1, "y": 1}][:n]
        found = subscriptions(rows)
        assert [each.dtype for each in found.asked] == [
            np.int64,
            np.int32,
            np.float64,
            np.float64,
            np.int32,
        ]
        assert found.expires.dtype == np.int64
        assert found.asked.places.shape == (n, 3)
        assert (found.asked.alphas.shape, found.asked.ks.shape, found.expires.shape) == (
            (n,),
            (n,),
            (n,),
        )
        for kind in ({"text": "a"}, {"keywords": ["a"]}):
            sent = messages([{"id": 1, "x": 1, "y": 1, **kind}][:n]).messages
            assert [each.dtype for each in sent] == [
                np.int64,
                np.int32,
                np.uint16,
                np.float64,
                np.int64,
            ]
            assert (sent.places.shape, sent.times.shape) == ((n, 3), (n,))


HERE = {"x": 1.0, "y": 1.0}
BAD_SUBSCRIPTIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"id": None, "keywords": ["a"], **HERE}, "id", "every row needs an id"),
    ({"id": 9, "keywords": ["a"], **HERE}, "id", "id 9 is already subscribed"),
    ({"id": 1, "keywords": ["a"], **HERE}, "id", "id 1 was already used, 1 row before"),
    (HERE, "keywords", "are missing; give at least one word"),
    ({"keywords": [], **HERE}, "keywords", "are missing; give at least one word"),
    ({"keywords": ["a", "!!!"], **HERE}, "keywords", "keyword '!!!' has no letters or digits"),
    ({"keywords": ["a", None], **HERE}, "keywords", "a keyword is null"),
    (
        {"expression": "a or b", **HERE},
        "expression",
        "but for boolean and ranked matching; give the words as keywords",
    ),
    (
        {"keywords": ["a"], "threshold": 0.5, **HERE},
        "threshold",
        "is not for top-k over a window but for ranked",
    ),
    ({"keywords": ["a"], "k": 0, **HERE}, "k", "is 0; expected an integer from 1 to 10,000"),
    ({"keywords": ["a"], "k": 10_001, **HERE}, "k", "is 10001; expected an integer"),
    ({"keywords": ["a"], "k": 2**40 + 1, **HERE}, "k", "is 1099511627777; expected an integer"),
    ({"keywords": ["a"], "alpha": 1.5, **HERE}, "alpha", "is 1.5; expected a number from 0 to 1"),
    ({"keywords": ["a"], "alpha": np.nan, **HERE}, "alpha", "is nan; expected a number"),
    ({"keywords": ["a"]}, "x", "no place; top-k over a window needs a point; give x and y"),
    ({"keywords": ["a"], "x": 1.0}, "y", "is missing; a point needs x, y"),
    ({"keywords": ["a"], "radius": 0.0}, "x", "no place"),
    ({"keywords": ["a"], **BOX}, "min_x", "a box is given; top-k over a window needs a point"),
    ({"keywords": ["a"], "max_x": 5.0, **HERE}, "max_x", "a box is given"),
    ({"keywords": ["a"], "radius": 5.0, **HERE}, "radius", "is 5.0; top-k over a window needs"),
    ({"keywords": ["a"], "radius": np.nan, **HERE}, "radius", "is nan; top-k"),
    ({"keywords": ["a"], "geometry": SQUARE}, "geometry", "is a polygon; top-k over a window"),
    ({"keywords": ["a"], "geometry": POINT, **HERE}, "geometry", "more than one way"),
    ({"keywords": ["a"], "geometry": b"zz"}, "geometry", "WKB"),
    ({"keywords": ["a"], "x": np.inf, "y": 1.0}, "x", "x inf is not finite"),
]


@pytest.mark.parametrize(("bad", "field", "reason"), BAD_SUBSCRIPTIONS)
def test_bad_subscriptions_are_set_aside(bad: dict[str, Any], field: str, reason: str) -> None:
    vocabulary = Vocabulary()
    rows = [
        {"id": 1, "keywords": ["first"], **HERE, "k": 3},
        {"id": 2, **bad},
        {"id": 3, "keywords": ["last"], "x": 3, "y": 4, "alpha": 0.5, "expires": NOON},
    ]

    def is_taken(ids: pa.Array) -> Any:
        return np.array([each == 9 for each in ids.to_pylist()])

    found = subscriptions(rows, vocabulary, source="s.csv", first_row=10, is_taken=is_taken)
    (error,) = found.rejects
    assert (error.source, error.row, error.field) == ("s.csv", 11, field)
    assert reason in error.reason
    assert found.ids.to_pylist() == [1, 3]
    assert found.asked.token_offsets.tolist() == [0, 1, 2]
    assert vocabulary.tokens(found.asked.tokens) == ["first", "last"]
    # Scores are sums in the order of words: who refuses wrong rows before numbers the same ones.
    is_good_alone = "already" in reason
    assert vocabulary.tokens(range(1, len(vocabulary))) == ["first", *"a" * is_good_alone, "last"]
    assert found.asked.places.tolist() == [[1, 1, 0], [3, 4, 0]]
    assert found.asked.ks.tolist() == [3, 0]
    np.testing.assert_array_equal(found.asked.alphas, [np.nan, 0.5])
    assert found.expires.tolist() == [NEVER_US, NOON_US]
    numbered = subscriptions(rows, rows=np.array([4, 6, 9]), is_taken=is_taken)
    assert [each.row for each in numbered.rejects] == [6]


@pytest.mark.parametrize("form", [REGIONS, RankedMatcher.form])
@pytest.mark.parametrize("field", ["k", "alpha"])
def test_other_engines_refuse_what_is_for_topk(field: str, form: Form) -> None:
    rows = [{"id": 1, "keywords": ["a"], field: 1}, {"id": 2, "keywords": ["a"]}]
    batch = pa.RecordBatch.from_pylist(rows, SUBSCRIPTIONS)
    found = encode_subscriptions(batch, Analyzer(), Vocabulary(), "lonlat", form=form)
    (error,) = found.rejects
    assert (error.row, error.field) == (0, field)
    assert "use Engine(TopK(" in error.reason
    assert found.ids.to_pylist() == [2]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("k", pa.array([True])),
        ("k", pa.array([1.5])),
        ("k", pa.array(["1"])),
        ("k", pa.array([1], pa.timestamp("us", "UTC"))),
        ("alpha", pa.array([False])),
        ("alpha", pa.array(["0.5"])),
    ],
)
def test_columns_of_other_kinds_are_refused(column: str, values: pa.Array) -> None:
    batch = pa.record_batch({"id": pa.array([1]), column: values})
    with pytest.raises(InvalidInput, match=f"column '{column}'"):
        encode_subscriptions(batch, Analyzer(), Vocabulary(), "planar", form=TOPK)


def test_whole_floats_are_numbers_of_messages() -> None:
    columns = {"id": [1, 2], "keywords": [["a"], ["a"]], "x": [1, 2], "y": [1, 2]}
    batch = pa.table({**columns, "k": pa.array([3.0, None], pa.float64())})
    found = encode_subscriptions(batch, Analyzer(), Vocabulary(), "planar", form=TOPK)
    assert found.asked.ks.tolist() == [3, 0]


# ---- single objects -----------------------------------------------------------------------------


def test_a_point_is_a_region_for_every_engine() -> None:
    batch = subscription_batch(
        [
            Subscription(1, ("a",), region=Point(1, 2), k=7),
            Subscription(2, ("a",), region=Circle(1, 2, 0), alpha=1),
        ]
    )
    canonical = subscriptions_schema(pa.int64())
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        assert column.type == canonical.field(name).type
    found = encode_subscriptions(batch, Analyzer(), Vocabulary(), "lonlat", form=TOPK)
    assert found.rejects == []
    np.testing.assert_array_equal(found.asked.places, cartesian([[1, 2], [1, 2]], "lonlat"))
    assert found.asked.ks.tolist() == [7, 0]
    np.testing.assert_array_equal(found.asked.alphas, [np.nan, 1.0])
    regions = encode_moves(batch, "lonlat")
    assert regions.rejects == []
    assert regions.places.shapes.circles.tolist() == [[1, 2, 0], [1, 2, 0]]
    wide = subscription_batch([Subscription(1, ("a",), region=Circle(1, 2, 3))])
    (error,) = encode_subscriptions(wide, Analyzer(), Vocabulary(), "lonlat", form=TOPK).rejects
    assert error.field == "radius"


def test_moves() -> None:
    rows: list[dict[str, Any]] = [
        {"id": "a", "x": 1, "y": 2},
        {"id": "b", "x": 1, "y": 2, "radius": 9},
        {"id": "c", "geometry": POINT},
        {"id": "a", "x": 5, "y": 6},
        {"id": "d"},
    ]
    batch = pa.RecordBatch.from_pylist(rows, subscriptions_schema(pa.string()))
    found = encode_moves(batch, "lonlat", form=TOPK, source="m.csv", first_row=100)
    assert found.ids.to_pylist() == ["a", "c"]
    np.testing.assert_array_equal(found.places, cartesian([[1, 2], [3, 4]], "lonlat"))
    assert [(each.row, each.field) for each in found.rejects] == [
        (101, "radius"),
        (103, "id"),
        (104, "x"),
    ]


# ---- messages -----------------------------------------------------------------------------------


def test_messages() -> None:
    vocabulary = Vocabulary()
    rows: list[dict[str, Any]] = [
        {"id": 1, "text": "Fire! fire, FIRE in town", "x": 1, "y": 2, "time": NOON},
        {"id": 1, "keywords": ["fire", "Fire brigade", "fire"], "x": 3, "y": 4},
        {"id": 2, "text": "... !", "x": 5, "y": 6},
        {"id": 3, "keywords": [], "x": 7, "y": 8},
        {"id": 4, "text": "#Fire town", "x": 9, "y": 9},
    ]
    found = messages(rows, vocabulary)
    assert found.rejects == []
    assert found.ids.to_pylist() == [1, 1, 2, 3, 4]
    assert counts_of_rows(found, vocabulary) == [
        {"fire": 3, "in": 1, "town": 1},
        {"fire": 3, "brigade": 1},
        {},
        {},
        {"#fire": 1, "fire": 1, "town": 1},
    ]
    assert found.messages.places.tolist() == [[1, 2, 0], [3, 4, 0], [5, 6, 0], [7, 8, 0], [9, 9, 0]]
    assert found.messages.times.tolist() == [NOON_US, *[NO_TIME_US] * 4]
    for kind in (rows[:1], rows[1:2]):  # all texts, all keywords
        assert counts_of_rows(messages(kind, vocabulary), vocabulary)[0]["fire"] == 3


def test_words_of_messages_are_found_by_later_subscriptions() -> None:
    vocabulary = Vocabulary()
    sent = messages([{"id": 1, "text": "some fire", **HERE}], vocabulary)
    found = subscriptions([{"id": 1, "keywords": ["fire"], **HERE}], vocabulary)
    assert set(found.asked.tokens.tolist()) < set(sent.messages.tokens.tolist())
    assert len(vocabulary) == 3


def test_stems_count_together() -> None:
    vocabulary = Vocabulary()
    english = Analyzer("en", stop_words=True, stem=True)
    rows = [
        {"id": 1, "text": "the burning floods burned, burn the flood", **HERE},
        {"id": 2, "keywords": ["floods", "the flood"], **HERE},
    ]
    found = messages(rows, vocabulary, analyzer=english)
    assert counts_of_rows(found, vocabulary) == [{"burn": 3, "flood": 2}, {"flood": 2}]


BAD_MESSAGES: list[tuple[dict[str, Any], str, str]] = [
    ({"id": None, "text": "a", **HERE}, "id", "every row needs an id"),
    (HERE, "text", "neither text nor keywords"),
    ({"text": "a", "keywords": ["a"], **HERE}, "keywords", "given beside a text"),
    ({"keywords": ["a", ""], **HERE}, "keywords", "a keyword is empty"),
    ({"text": "a"}, "x", "no place; top-k over a window needs a point"),
    ({"text": "a", **BOX}, "min_x", "a box is given; top-k over a window needs a point"),
    ({"text": "a", "x": 1.0}, "y", "is missing; a point needs x, y"),
    ({"text": "a", "x": 1.0, "y": np.nan}, "y", "y nan is not finite"),
    ({"text": "a " * 65_536, **HERE}, "text", "holds a word more than 65,535 times"),
    ({"keywords": ["a b"] * 65_536, **HERE}, "keywords", "holds a word more than 65,535 times"),
    ({"keywords": ["a " * 70_000, "b"], **HERE}, "keywords", "holds a word more than 65,535 times"),
]


@pytest.mark.parametrize(
    ("bad", "field", "reason"), BAD_MESSAGES, ids=[reason for _, _, reason in BAD_MESSAGES]
)
def test_bad_messages_are_set_aside(bad: dict[str, Any], field: str, reason: str) -> None:
    vocabulary = Vocabulary()
    rows = [
        {"id": 1, "text": "first first", **HERE},
        {"id": 2, **bad},
        {"id": 3, "text": "last", "x": 3, "y": 4, "time": NOON},
    ]
    found = messages(rows, vocabulary, source="m.csv", first_row=10)
    (error,) = found.rejects
    assert (error.source, error.row, error.field) == ("m.csv", 11, field)
    assert reason in error.reason
    assert found.ids.to_pylist() == [1, 3]
    assert counts_of_rows(found, vocabulary) == [{"first": 2}, {"last": 1}]
    assert found.messages.places.tolist() == [[1, 1, 0], [3, 4, 0]]
    assert found.messages.times.tolist() == [NO_TIME_US, NOON_US]


@pytest.mark.parametrize("field", ["x", "y"])
def test_coordinates_of_a_plane_have_a_bound(field: str) -> None:
    points = pa.table(
        {
            "id": [1, 2, 3],
            "keywords": [["new"], ["far"], ["wide"]],
            "x": [1e15, 0.0, 0.0],
            "y": [0.0, -1e15, 0.0],
        }
    )
    column = points.schema.get_field_index(field)
    points = points.set_column(column, field, pa.array([0.0, -1.1e15, float("inf")]))
    listening = encode_subscriptions(points, Analyzer(), Vocabulary(), "planar", form=TOPK)
    speaking = encode_messages(points, Analyzer(), Vocabulary(), "planar", form=TOPK)
    moving = encode_moves(points, "planar", form=TOPK)
    for ids, rejects in (
        (listening.ids, listening.rejects),
        (speaking.ids, speaking.rejects),
        (moving.ids, moving.rejects),
    ):
        first, second = rejects
        assert (first.row, first.field) == (1, field)
        assert first.reason == (
            "is -1100000000000000.0; top-k over a window takes coordinates from -1e+15 to 1e+15"
        )
        assert (second.row, second.field) == (2, field)
        assert ids.to_pylist() == [1]


def test_words_of_refused_messages_are_not_kept() -> None:
    vocabulary = Vocabulary()
    batch = pa.table(
        {
            "id": [1, 2, 3, 4],
            "text": ["good text", "bad text", None, None],
            "keywords": [None, None, ["fine words", "here"], ["wrong", "words"]],
            "x": [0.0, None, 0.0, 500.0],
            "y": [0.0, None, 0.0, 0.0],
        }
    )
    found = encode_messages(batch, Analyzer(), vocabulary, "lonlat", form=TOPK)
    assert [(each.row, each.field) for each in found.rejects] == [(1, "x"), (3, "x")]
    assert vocabulary.tokens(range(1, len(vocabulary))) == [
        "good", "text", "fine", "words", "here",
    ]  # fmt: skip
    assert counts_of_rows(found, vocabulary) == [
        {"good": 1, "text": 1},
        {"fine": 1, "words": 1, "here": 1},
    ]


def test_a_word_may_occur_65535_times() -> None:
    vocabulary = Vocabulary()
    rows: list[dict[str, Any]] = [
        {"id": 1, "text": "a " * 65_535, **HERE},
        {"id": 2, "keywords": ["a " * 65_000, "a " * 535, "b"], **HERE},
    ]
    found = messages(rows, vocabulary)
    assert found.rejects == []
    assert counts_of_rows(found, vocabulary) == [{"a": 65_535}, {"a": 65_535, "b": 1}]


def test_messages_as_objects() -> None:
    batch = message_batch(
        [
            Message(1, "a b a", place=Point(1, 2), time=NOON),
            Message(2, "a", place=Rectangle(0, 0, 0, 0)),
        ]
    )
    found = encode_messages(batch, Analyzer(), Vocabulary(), "planar", form=TOPK)
    assert [(each.row, each.field) for each in found.rejects] == [(1, "min_x")]
    assert found.messages.counts.tolist() == [2, 1]
    assert found.messages.times.tolist() == [NOON_US]


# ---- files --------------------------------------------------------------------------------------


def read(path: Path) -> tuple[pa.Table, list[Reject]]:
    parts = list(read_subscriptions(path, on_error="reject"))
    table = pa.Table.from_batches([part.batch for part in parts])
    return table, [reject for part in parts for reject in part.rejects]


@pytest.mark.parametrize("suffix", ["csv", "ndjson", "json", "parquet"])
def test_files_have_the_columns(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"s.{suffix}"
    if suffix == "csv":
        path.write_text("id,keywords,lon,lat,k,alpha\n1,fire,1,2,5,0.5\n2,fire,3,4,,\n")
    elif suffix == "parquet":
        import pyarrow.parquet as pq

        columns = {"id": [1, 2], "keywords": [["fire"]] * 2, "x": [1, 3], "y": [2, 4]}
        few = pa.array([5, None], pa.int16())
        pq.write_table(pa.table({**columns, "k": few, "alpha": [0.5, None]}), path)
    else:
        lines = [
            '{"id": 1, "keywords": ["fire"], "x": 1, "y": 2, "k": 5, "alpha": 0.5}',
            '{"id": 2, "keywords": ["fire"], "x": 3, "y": 4}',
        ]
        path.write_text("\n".join(lines) if suffix == "ndjson" else f"[{','.join(lines)}]")
    table, rejects = read(path)
    assert table.schema == SUBSCRIPTIONS
    found = encode_subscriptions(table, Analyzer(), Vocabulary(), "lonlat", form=TOPK)
    assert rejects == []
    assert found.rejects == []
    np.testing.assert_array_equal(found.asked.places, cartesian([[1, 2], [3, 4]], "lonlat"))
    assert found.asked.ks.tolist() == [5, 0]
    np.testing.assert_array_equal(found.asked.alphas, [0.5, np.nan])


@pytest.mark.parametrize("number", ["2.5", "1e400", "nan"])
def test_numbers_of_messages_are_whole_in_files(tmp_path: Path, number: str) -> None:
    path = tmp_path / "s.csv"
    path.write_text(f"id,keywords,x,y,k\n1,fire,1,2,3.0\n2,fire,1,2,{number}\n3,fire,1,2,\n")
    table, (reject,) = read(path)
    assert table.column("k").to_pylist() == [3, None]
    assert (reject.row, reject.field) == (1, "k")
    assert reject.reason == f"is {float(number)}; expected an integer"


def test_points_of_geojson(tmp_path: Path) -> None:
    path = tmp_path / "s.geojson"
    path.write_text(
        '{"type": "FeatureCollection", "features": [{"type": "Feature", "id": 1, "geometry": '
        '{"type": "Point", "coordinates": [3, 4]}, "properties": {"keywords": ["a"], "k": 2}}]}'
    )
    table, _ = read(path)
    found = encode_subscriptions(table, Analyzer(), Vocabulary(), "lonlat", form=TOPK)
    assert (found.rejects, found.asked.ks.tolist()) == ([], [2])
    np.testing.assert_array_equal(found.asked.places, cartesian([[3, 4]], "lonlat"))
