"""Trying everything once, so that it is compiled before it is needed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from earshot.model.messages import Message
from earshot.model.regions import Circle, Point, Polygon, Rectangle, RegionOrPoint
from earshot.model.subscriptions import Subscription

if TYPE_CHECKING:
    from earshot.engine.engine import Engine

TEXT = "wärm up"
"""Not ASCII, so that the tables of other characters are there as well."""
HERE = Point(0, 0)

_SHAPES = (Rectangle(0, 0, 1, 1), Circle(0, 0, 1), Polygon([[(0, 0), (1, 0), (0, 1)]]))
_START = datetime(2000, 1, 1, tzinfo=UTC)
_N_COMING = 1_100
"""Subscriptions that come and go: enough for every structure to be built anew."""


def rehearse(engine: Engine, identity: type[int | str] = str) -> None:
    """Let everything happen once to an empty engine, with ids of one type."""
    matcher = engine.matcher
    places: tuple[RegionOrPoint, ...] = (HERE,) if matcher.form.is_point else _SHAPES
    ids = [identity(n) for n in range(_N_COMING)]
    first, *others = ids
    engine.subscribe(Subscription(first, ("wärm", "up"), region=places[0]))
    _publish(engine, first, 0)
    end = _START + timedelta(hours=1)
    if "expression" in matcher.form.columns:
        asked = "up and not down or wärm"
        engine.subscribe(Subscription(others[0], expression=asked, region=places[0], expires=end))
        engine.unsubscribe(others[0])
    engine.move(first, places[-1])
    if matcher.form.moves_by_position:
        engine.move(first, HERE, time=_START + timedelta(minutes=1))
    if matcher.weighs_words_by is not None:
        engine.reweigh()
    if matcher.keeps_results:
        engine.results(first)
    for hour, place in enumerate(places, start=1):
        engine.subscribe(*(Subscription(name, ("up",), region=place) for name in others))
        _publish(engine, first, hour)
        engine.unsubscribe(*others)
    _publish(engine, first, len(places) + 1)
    engine.advance(_START + timedelta(days=1))
    engine.unsubscribe(first)


def _publish(engine: Engine, message_id: int | str, hour: int) -> None:
    for second in range(3):
        time = _START + timedelta(hours=hour, seconds=second)
        engine.publish(Message(message_id, TEXT, place=HERE, time=time)).table()
