"""Subscriptions, messages, events and updates: what they accept and what they refuse, and why."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from earshot.errors import InvalidExpression, InvalidInput
from earshot.model.events import Move, Publish, Subscribe, Unsubscribe
from earshot.model.expressions import And, Keyword, parse
from earshot.model.messages import Message
from earshot.model.regions import Circle, Everywhere, Point, Rectangle
from earshot.model.subscriptions import Subscription
from earshot.model.updates import Update

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
NAIVE = datetime(2026, 1, 2, 12)
HERE = Point(1, 2)
AREA = Rectangle(0, 0, 1, 1)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            lambda: Subscription(True, ("a",)),
            "the id of a subscription is an int or a str, got True",
        ),
        (lambda: Subscription(1.5, ("a",)), "the id of a subscription is an int or a str, got 1.5"),  # type: ignore[arg-type]
        (
            lambda: Subscription("s", ("a",), "b"),
            "subscription 's' has keywords and an expression; expected one of the two",
        ),
        (
            lambda: Subscription("s"),
            "subscription 's' has neither keywords nor a region, so every message would match; "
            "give at least one",
        ),
        (lambda: Subscription("s", "coffee"), "keywords is the text 'coffee'; expected ['coffee']"),
        (lambda: Subscription("s", ("a", " ")), "keyword ' ' is not a text with something in it"),
        (lambda: Subscription("s", ("a", 5)), "keyword 5 is not a text with something in it"),  # type: ignore[arg-type]
        (lambda: Subscription("s", expression=5), "subscription 's': expression 5 is not text"),  # type: ignore[arg-type]
        (
            lambda: Subscription("s", ("a",), region=(1, 2)),  # type: ignore[arg-type]
            "region (1, 2) is not a Point, Rectangle, Circle, Polygon or Everywhere",
        ),
        (
            lambda: Subscription("s", ("a",), expires=NAIVE),
            "subscription 's': expires 2026-01-02T12:00:00 has no time zone; add one, for example "
            ".replace(tzinfo=datetime.UTC)",
        ),
        (lambda: Subscription("s", ("a",), expires="now"), "expires 'now' is not a datetime"),  # type: ignore[arg-type]
        (
            lambda: Message(None, "hi", place=HERE),  # type: ignore[arg-type]
            "the id of a message is an int or a str, got None",
        ),
        (lambda: Message(1, place=HERE), "message 1 has neither text nor keywords"),
        (lambda: Message(1, "hi", ("a",), place=HERE), "message 1 has text and keywords"),
        (lambda: Message(1, 5, place=HERE), "message 1: text 5 is not a str"),  # type: ignore[arg-type]
        (lambda: Message(1, keywords="a", place=HERE), "keywords is the text 'a'"),
        (lambda: Message(1, "hi", place=(1, 2)), "place (1, 2) is not a Point or a Rectangle"),  # type: ignore[arg-type]
        (
            lambda: Message(1, "hi", place=HERE, time=NAIVE),
            "message 1: time 2026-01-02T12:00:00 has",
        ),
        (lambda: Subscribe("s"), "subscribe: 's' is not a Subscription"),  # type: ignore[arg-type]
        (lambda: Unsubscribe(False), "the id of a subscription is an int or a str, got False"),
        (lambda: Unsubscribe("s", NAIVE), "unsubscribe 's': time 2026-01-02T12:00:00 has no time"),
        (lambda: Move("s", "here"), "move 's': region 'here' is not a Point, Rectangle"),  # type: ignore[arg-type]
        (lambda: Publish("hi"), "publish: 'hi' is not a Message"),  # type: ignore[arg-type]
    ],
)
def test_wrong_values_are_refused_with_the_reason(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(InvalidInput) as error:
        make()
    assert reason in str(error.value)


def test_expression_is_read_on_construction() -> None:
    subscription = Subscription("s", expression="a and not b")
    assert subscription.expression == parse("a and not b")
    assert subscription == Subscription("s", expression=parse("a and not b"))
    with pytest.raises(InvalidExpression, match="side by side"):
        Subscription("s", expression="a b")


def test_condition_is_keywords_or_expression() -> None:
    assert Subscription(1, ("a", "b")).condition == And((Keyword("a"), Keyword("b")))
    assert Subscription(1, ("a",)).condition == Keyword("a")
    assert Subscription(1, expression="a or b").condition == parse("a or b")
    assert Subscription(1, region=AREA).condition is None


def test_values_are_normalised() -> None:
    subscription = Subscription(np.int64(7), ["a", "b"], region=AREA)  # type: ignore[arg-type]
    assert subscription.id == 7
    assert type(subscription.id) is int
    assert subscription.keywords == ("a", "b")
    assert Subscription(7, ("a",)).region == Everywhere()
    assert Message(7, keywords=[], place=HERE).keywords == ()


def test_records_are_values() -> None:
    subscription = Subscription("s", ("a",), region=Circle(1, 2, 3), expires=NOON)
    message = Message("m", "hello", place=HERE, time=NOON)
    records = [
        Subscribe(subscription, NOON),
        Unsubscribe("s"),
        Move("s", AREA, NOON),
        Move("s", HERE),
        Publish(message),
        Update("m", "s", "+", 0.5),
    ]
    for record in records:
        assert pickle.loads(pickle.dumps(record)) == record
        assert hash(record) == hash(pickle.loads(pickle.dumps(record)))
    assert Publish(message).time == NOON
    assert Update("m", "s").reason == "match"
