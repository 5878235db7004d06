# Wrong types are what is tested.
# mypy: disable-error-code="arg-type, list-item"
"""Wrong arguments from Python: every error says what was given and what was expected."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from earshot import (
    Analyzer,
    Circle,
    Engine,
    Message,
    Move,
    Point,
    Polygon,
    Publish,
    Ranking,
    Rectangle,
    Subscribe,
    Subscription,
    TopK,
    Unsubscribe,
)
from earshot.errors import EarshotError, InvalidInput

HERE = Point(0, 0)
BATCH = pa.table({"id": [5], "text": ["a"], "x": [0.0], "y": [0.0]})
NAIVE = datetime(2026, 5, 1)  # this is the mistake
WRONG: list[Any] = [
    None, "a", "", 1, -1, 2**63, 10**400, 10**5000, 1.5, math.nan, math.inf, 1.8e308, True, b"a",
    [1], {"a": 1}, {1}, object(), NAIVE, NAIVE.date(), int, np.float64(3), np.bool_(True),
    np.zeros(2), "\ud800", "a\0b", timedelta(seconds=-1),
]  # fmt: skip
"""Each is wrong somewhere; where it is right, nothing is raised."""


def message(**given: Any) -> Message:
    return Message(**{"id": 1, "text": "a", "place": HERE, **given})


def subscription(**given: Any) -> Subscription:
    return Subscription(**{"id": 1, "keywords": ["a"], **given})


CONSTRUCTORS: dict[str, Callable[[Any], object]] = {
    "Point": lambda value: Point(value, 0),
    "Rectangle": lambda value: Rectangle(0, 0, 0, value),
    "Circle": lambda value: Circle(0, 0, value),
    "Polygon": Polygon,
    "Polygon, ring": lambda value: Polygon([value]),
    "Polygon, position": lambda value: Polygon([[value, (0, 1), (1, 1)]]),
    "Polygon, coordinate": lambda value: Polygon([[(value, 0), (0, 1), (1, 1)]]),
    "Ranking, alpha": lambda value: Ranking(alpha=value),
    "Ranking, threshold": lambda value: Ranking(threshold=value),
    "TopK, window": TopK,
    "TopK, k": lambda value: TopK(5, k=value),
    "TopK, max_distance": lambda value: TopK(5, max_distance=value),
    "TopK, lateness": lambda value: TopK(5, lateness=value),
    "Analyzer, language": lambda value: Analyzer(value, stem=True),
    "Analyzer, stem": lambda value: Analyzer("en", stem=value),
    "Analyzer, stop_words": lambda value: Analyzer("en", stop_words=value),
    "Analyzer, max_text_bytes": lambda value: Analyzer(max_text_bytes=value),
    "Subscribe": Subscribe,
    "Unsubscribe": Unsubscribe,
    "Publish": Publish,
    "Move, id": lambda value: Move(value, HERE),
    "Move, region": lambda value: Move(1, value),
    "Move, time": lambda value: Move(1, HERE, value),
    **{
        f"Message, {name}": lambda value, name=name: message(**{name: value})  # type: ignore[misc]
        for name in ("id", "text", "keywords", "place", "time")
    },
    **{
        f"Subscription, {name}": lambda value, name=name: subscription(**{name: value})  # type: ignore[misc]
        for name in (
            "id", "keywords", "expression", "region", "expires", "threshold", "k", "alpha"
        )
    },
    **{
        f"Engine, {name}": lambda value, name=name: Engine(**{name: value})  # type: ignore[misc]
        for name in ("semantics", "structure", "parameters", "space", "analyzer", "n_threads")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_constructors_refuse_in_words(name: str) -> None:
    for value in WRONG:
        refuses_in_words(CONSTRUCTORS[name], value)


def refuses_in_words(call: Callable[[Any], object], value: Any) -> None:
    reason = "it is right there"
    try:
        call(value)
    except EarshotError as error:
        reason = str(error)
    assert 0 < len(reason) < 300  # the value, shortened, and what was expected


CALLS: dict[str, Callable[[Engine, Any], object]] = {
    "process": lambda engine, value: list(engine.process(value)),
    "process one": lambda engine, value: list(engine.process([value])),
    "move": lambda engine, value: engine.move(value, HERE),
    "move to": lambda engine, value: engine.move(1, value),
    "explain": lambda engine, value: engine.explain(value, 1),
    "explain for": lambda engine, value: engine.explain(message(), value),
    "match_batch at": lambda engine, value: engine.match_batch(BATCH, at=value),
    "first_row": lambda engine, value: engine.publish_batch(BATCH, first_row=value),
    "rows": lambda engine, value: engine.publish_batch(BATCH, rows=value),
    "in": lambda engine, value: value in engine,
    **{
        name: lambda engine, value, name=name: getattr(engine, name)(value)  # type: ignore[misc]
        for name in (
            "subscribe", "unsubscribe", "publish", "advance", "subscribe_batch", "move_batch",
            "unsubscribe_batch", "publish_batch", "match_batch", "learn", "results",
            "results_table", "contains_batch",
        )
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=[None, TopK(5)], ids=["boolean", "top-k"])
def engine(request: pytest.FixtureRequest) -> Engine:
    made = Engine(request.param)
    made.subscribe(subscription(region=HERE))
    return made


@pytest.mark.parametrize("name", CALLS)
def test_engines_refuse_in_words(name: str, engine: Engine) -> None:
    for value in WRONG:
        refuses_in_words(lambda given: CALLS[name](engine, given), value)


@pytest.mark.parametrize("value", [None, 1, b"a", object(), "a\0b", "\ud800"])
def test_places_for_engines_are_paths(value: Any, tmp_path: Path, engine: Engine) -> None:
    Engine().save(tmp_path / "saved")
    if isinstance(value, bytes):
        return  # a path on some systems
    for call in (engine.save, Engine.open):
        with pytest.raises(InvalidInput, match=r"directory is .*; expected a path"):
            call(value)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: Subscription(1, None), "keywords is None; expected a list of texts"),
        (lambda: Subscription(1, {"a": 1}), "keywords is {'a': 1}; expected a list of texts"),
        (lambda: Subscription(1, "fire"), "keywords is the text 'fire'; expected ['fire']"),
        (lambda: Point("1", 2), "Point: x is '1'; expected a number"),
        (lambda: Rectangle(0, True, 1, 1), "Rectangle: min_y is True; expected a number"),
        (lambda: Polygon([[("0", "0"), (0, 1), (1, 1)]]), "('0', '0') is not a position"),
        (lambda: Polygon([1]), "[1] is not a list of rings"),
        (lambda: message(time=NAIVE), "has no time zone"),
        (lambda: Engine().advance(None), "time is None; expected a datetime"),
        (lambda: Engine().advance(NAIVE), "has no time zone"),
        (lambda: Engine().publish([message()]), "for several, publish(*messages)"),
        (lambda: Engine().publish({"id": 1}), "publish: {'id': 1} is not a Message"),
        (lambda: Engine().publish_batch({"id": [1]}), "expected a table of Arrow"),
        (lambda: Engine().publish_batch([{"id": 1}]), "pa.Table.from_pylist"),
        (lambda: Engine().unsubscribe_batch([1]), "expected an Arrow array, as pa.array"),
        (lambda: Engine().unsubscribe(np.bool_(True)), "is an int or a str"),
        (lambda: Engine().match_batch(BATCH, at=NAIVE), "has no time zone"),
        (lambda: Engine().publish_batch(BATCH, rows=[1, 2]), "expected 1 integers"),
        (lambda: Engine(n_threads="2"), "n_threads is '2'; expected 1 or more"),
        (lambda: Engine(analyzer="en"), "analyzer is 'en'; expected an Analyzer"),
        (lambda: Analyzer(["en"]), "language is ['en']; expected an ISO code"),
        (lambda: Ranking(alpha=10**400), "expected a number from 0 to 1"),
        (lambda: Engine().subscribe(subscription(region=Circle(0, 0, 1.8e308))),
         "radius inf is not finite"),
        (lambda: Engine(space="planar").subscribe(subscription(region=Circle(0, 0, 1.8e308))),
         "radius inf is not finite"),
        (lambda: Engine().subscribe(subscription(region=Circle(math.nan, 0, 1))),
         "longitude nan is not finite"),
    ],
)  # fmt: skip
def test_what_was_given_and_what_was_expected(call: Callable[[], object], reason: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        call()
    assert reason in str(caught.value)


def test_columns_of_tables_are_ids() -> None:
    engine = Engine()
    engine.subscribe(subscription())
    ids = pa.table({"id": [1, 2]})["id"]
    assert engine.contains_batch(ids).tolist() == [True, False]
