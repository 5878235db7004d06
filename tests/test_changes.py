"""A batch of changes has the effect of the single calls in its order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earshot import Engine, Everywhere, Message, Point, Ranking, Rectangle, Subscription, TopK
from earshot.engine.changes import apply_changes
from earshot.errors import EarshotError, InvalidInput
from earshot.files.layout import make_layout
from earshot.files.records import batch_of_records
from earshot.model.ranking import WordCounts
from earshot.model.schemas import changes_schema

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
PLACES = [Point(x + 0.5, 0.5) for x in range(4)]


def change(
    op: str, name: str, *, at: int | None = None, ends: int | None = None, **rest: Any
) -> dict[str, Any]:
    return {
        "op": op,
        "id": name,
        "time": None if at is None else (EPOCH + timedelta(seconds=at)).isoformat(),
        "expires": None if ends is None else (EPOCH + timedelta(seconds=ends)).isoformat(),
        **rest,
    }


def box(x: int, width: int = 1) -> dict[str, Any]:
    return {"min_x": x, "min_y": 0, "max_x": x + width, "max_y": 1}


def table_of(records: list[dict[str, Any]]) -> pa.Table:
    layout = make_layout("changes", None, "", "raise")
    batch = batch_of_records(layout, records, "string", np.arange(len(records)))
    return pa.Table.from_batches([batch.batch])


def one_by_one(engine: Engine, records: list[dict[str, Any]]) -> list[int]:
    """Apply with the engine's single calls; return which were refused."""
    refused = []
    for row, record in enumerate(records):
        if record["time"]:
            engine.advance(datetime.fromisoformat(record["time"]))
        region = (
            Rectangle(*(record[side] for side in ("min_x", "min_y", "max_x", "max_y")))
            if "min_x" in record
            else Everywhere()
        )
        try:
            match record["op"]:
                case "subscribe":
                    expires = record["expires"]
                    engine.subscribe(
                        Subscription(
                            record["id"],
                            tuple(record.get("keywords") or ()),
                            region=region,
                            expires=None if expires is None else datetime.fromisoformat(expires),
                        )
                    )
                case "unsubscribe":
                    engine.unsubscribe(record["id"])
                case "move":
                    engine.move(record["id"], region)
        except EarshotError:
            refused.append(row)
    return refused


def answers(engine: Engine) -> list[tuple[Any, Any]]:
    engine_answers = []
    for number, place in enumerate(PLACES):
        found = engine.publish(Message(number, "fire water", place=place))
        engine_answers += [(each.message_id, each.subscription_id) for each in found]
    return sorted(engine_answers)


records = st.builds(
    lambda op, name, at, ends, x, width, words: change(
        op, name, at=at, ends=ends if op == "subscribe" else None, **box(x, width),
        keywords=list(words) if op == "subscribe" else None,
    ),
    st.sampled_from(["subscribe", "subscribe", "unsubscribe", "move"]),
    st.sampled_from("abcd"),
    st.none() | st.integers(0, 12),
    st.none() | st.integers(0, 12),
    st.integers(0, 3),
    st.integers(0, 2),
    st.sets(st.sampled_from(["fire", "water"]), max_size=2),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(records, max_size=14), st.lists(records, max_size=6))
def test_a_batch_is_its_rows_one_by_one(first: list[Any], then: list[Any]) -> None:
    batched, single = Engine(), Engine()
    for part in (first, then):
        if not part:
            continue
        refused = [error.row for error in apply_changes(batched, table_of(part))]
        assert refused == one_by_one(single, part)
    assert batched.time == single.time
    assert len(batched) == len(single)
    assert answers(batched) == answers(single)


def test_refused_rows_say_why() -> None:
    engine = Engine()
    engine.subscribe(Subscription("quiet", (), region=Rectangle(0, 0, 1, 1)))
    changes = table_of(
        [
            change("unsubscribe", "ghost"),
            change("move", "ghost", **box(1)),
            change("subscribe", "quiet", keywords=["fire"]),
            change("move", "quiet"),
            change("subscribe", "all"),
            change("subscribe", "good", keywords=["fire"]),
        ]
    )
    reasons = {error.row: error.reason for error in apply_changes(engine, changes)}
    assert sorted(reasons) == [0, 1, 2, 3, 4]
    assert reasons[0] == reasons[1] == "no subscription 'ghost'"
    assert "already subscribed" in reasons[2]
    assert "without a region every message would match" in reasons[3]
    assert "every message would match" in reasons[4]
    assert len(engine) == 2


def test_words_are_weighed_where_a_change_says_so() -> None:
    """By the subscriptions that are there then, neither earlier nor later ones."""
    first = [
        change("subscribe", "a", keywords=["fire"], ends=4),
        change("subscribe", "b", keywords=["fire"]),
        change("subscribe", "c", keywords=["water", "fire"]),
    ]
    last = [change("subscribe", "d", keywords=["water"]), change("unsubscribe", "b")]
    engine, single = Engine(Ranking(0.5, 0.3)), Engine(Ranking(0.5, 0.3))
    changes = table_of([*first, change("reweigh", "b", at=5), *last])
    assert apply_changes(engine, changes) == []
    apply_changes(single, table_of(first))
    single.advance(EPOCH + timedelta(seconds=5))
    counts = single.word_counts()
    assert (counts.n_subscriptions, dict(zip(counts.words, counts.counts, strict=True))) == (
        2,
        {"fire": 2, "water": 1},
    )
    single.reweigh()
    apply_changes(single, table_of(last))
    message = Message(1, "water", place=PLACES[0])
    found = [(each.subscription_id, each.score) for each in engine.publish(message)]
    assert found == [(each.subscription_id, each.score) for each in single.publish(message)]
    (error,) = apply_changes(Engine(), table_of([change("reweigh", "any")]))
    assert (error.field, "weigh words" in error.reason) == ("op", True)


def test_counts_of_several_engines_weigh_as_those_of_one() -> None:
    """Also for words that an engine sees only later."""
    whole, parts = Engine(Ranking(0.5, 0.3)), [Engine(Ranking(0.5, 0.3)) for _ in range(2)]
    words = ["fire", "water", "smoke", "fire water", "crash"]
    for number, text in enumerate(words):
        each = Subscription(number, tuple(text.split()), region=Rectangle(0, 0, 9, 9))
        whole.subscribe(each)
        parts[number % 2].subscribe(each)
    whole.reweigh()
    counts = WordCounts.total(part.word_counts() for part in parts)
    for part in parts:
        part.reweigh(counts=counts)
    late = Subscription(9, ("water", "crash", "flood"), region=Rectangle(0, 0, 9, 9))
    whole.subscribe(late)
    parts[0].subscribe(late)  # it has not had "water"
    message = Message(1, "water fire flood", place=PLACES[0])
    wanted = {(each.subscription_id, each.score) for each in whole.publish(message)}
    found = {(each.subscription_id, each.score) for part in parts for each in part.publish(message)}
    assert found == wanted
    assert len({score for _, score in wanted}) > 2
    with pytest.raises(InvalidInput, match="counts are for words"):
        Engine(TopK(window=3)).reweigh(counts=counts)


def test_no_changes() -> None:
    engine = Engine()
    assert apply_changes(engine, changes_schema(pa.string()).empty_table()) == []
    assert len(engine) == 0


def test_thresholds_of_changes() -> None:
    rows = [
        {"op": "subscribe", "id": 1, "keywords": ["fire", "smoke"], "threshold": 0.5},
        {"op": "subscribe", "id": 2, "keywords": ["fire", "smoke"], "threshold": 1.5},
        {"op": "subscribe", "id": 3, "keywords": ["fire", "smoke"]},
        {"op": "move", "id": 1, "x": 0.0, "y": 0.0, "radius": 9.0},
    ]
    changes = pa.Table.from_pylist(rows, changes_schema(pa.int64()))
    engine = Engine(Ranking(alpha=0.0, threshold=0.9))
    (wrong,) = apply_changes(engine, changes)
    assert (wrong.row, wrong.field) == (1, "threshold")
    (update,) = engine.publish(Message(1, "fire", place=Point(50, 50)))
    assert (update.subscription_id, update.score) == (1, 0.5)
