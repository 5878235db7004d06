"""Trying everything once, so that it is compiled before it is needed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from earshot.model.messages import Message
from earshot.model.regions import Point
from earshot.model.subscriptions import Subscription

if TYPE_CHECKING:
    from earshot.engine.engine import Engine

TEXT = "wärm up"
"""Not ASCII, so that the tables of other characters are there as well."""
HERE = Point(0, 0)

_N_COMING = 1_100
"""Subscriptions that come and go: enough for every structure to be built anew."""


def rehearse(engine: Engine) -> None:
    """Let everything happen once to an empty engine that keeps messages."""
    start = datetime(2000, 1, 1, tzinfo=UTC)
    engine.subscribe(Subscription("a", ("wärm", "up"), region=HERE))
    for second in range(3):
        time = start + timedelta(seconds=second)
        engine.publish(Message("m", TEXT, place=HERE, time=time))
    engine.move("a", HERE)
    engine.reweigh()
    engine.results("a")
    names = [str(n) for n in range(_N_COMING)]
    engine.subscribe(*(Subscription(name, ("up",), region=HERE) for name in names))
    engine.unsubscribe(*names)
    engine.advance(start + timedelta(days=1))
    engine.unsubscribe("a")
