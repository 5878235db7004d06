"""One message, subscription or region into arrays, without an Arrow batch in between.

A batch of one row takes as long as one of a hundred. What is usual and has nothing wrong with it is
encoded here. Anything else, in whatever respect, gives None: it is for the encoder of batches,
which knows all rules, and the words for what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np

from earshot.encoding.columns import NEVER_US, NO_TIME_US
from earshot.encoding.forms import Form
from earshot.encoding.messages import EncodedMessages
from earshot.encoding.subscriptions import EncodedMoves, EncodedSubscriptions
from earshot.model.arrays import (
    EVERYWHERE_TOKEN,
    POSITION,
    AnchoredRegions,
    ClauseArrays,
    Int32s,
    LivingMessages,
    MessageArrays,
    RegionArrays,
    Space,
    no_shapes,
)
from earshot.model.batches import time_us
from earshot.model.messages import Message
from earshot.model.regions import (
    Circle,
    Everywhere,
    Point,
    Rectangle,
    circle_box,
    circle_problem,
    circle_shape_arrays,
    point_problem,
    rectangle_problem,
)
from earshot.model.schemas import FIRST_US, LAST_US
from earshot.model.subscriptions import Id, Subscription
from earshot.text import Analyzer, Vocabulary

_EXACT = 2**53  # integers up to here are the same as floats
_EVERYWHERE_BOX = (-np.inf, -np.inf, np.inf, np.inf)
_ONE_BOX = np.array([0, 1], np.int64)
_NO_THRESHOLDS = np.empty(0, np.float64)
_NO_SHAPES = no_shapes()
_POSITIONS = np.array([POSITION], np.int8)
_NO_ROWS = np.array([-1], np.int32)
_NO_SPANS = np.empty((0, 4))
_ONE_CIRCLE = circle_shape_arrays(np.zeros((1, 3)))


def encode_message(
    message: Message, analyzer: Analyzer, vocabulary: Vocabulary, space: Space, form: Form
) -> EncodedMessages | None:
    """Encode a message as :func:`~earshot.encoding.messages.encode_messages` does.

    Its ``ids`` are a tuple.
    """
    if type(message) is not Message or form.is_point or not is_usual_id(message.id):
        return None
    if message.end is not None and not form.moves_by_position:
        return None
    box = _message_box(message.place, space)
    time, end = _time_us(message.time, NO_TIME_US), _time_us(message.end, NO_TIME_US)
    said = _utf8(message.keywords if message.text is None else (message.text,), analyzer)
    if box is None or time is None or end is None or said is None:
        return None
    if message.end is not None and message.time is not None and end <= time:
        return None
    found = analyzer.analyze_utf8(said, vocabulary, grow=form.keeps_words).ids
    ids = found if message.keywords is None else _distinct(found)
    tokens = np.empty(len(ids) + 1, np.int32)
    tokens[0] = EVERYWHERE_TOKEN
    tokens[1:] = ids
    offsets, boxes, times = np.array([0, len(tokens)]), np.array([box]), np.array([time])
    arrays: Any = MessageArrays(offsets, tokens, boxes)
    if form.moves_by_position:
        arrays = LivingMessages(offsets, tokens, boxes, times, np.array([end]))
    return EncodedMessages((message.id,), arrays, times, np.zeros(1, np.int64), [])


def encode_position(place: Any, time: datetime | None, space: Space) -> EncodedMoves | None:
    """Encode where a moving subscriber is as the encoder of batches does; without ids."""
    if type(place) is not Point or not _are_numbers((place.x, place.y)):
        return None
    us = _time_us(time, NO_TIME_US)
    if us is None or point_problem(place.x, place.y, space) is not None:
        return None
    frames = np.array([[place.x, place.y, 0.0, 0.0]])
    regions = AnchoredRegions(_POSITIONS, frames, _NO_ROWS, _NO_SHAPES, _NO_SPANS)
    return EncodedMoves((), regions, np.array([us]), np.zeros(1, np.int64), [])


def encode_subscription(
    subscription: Subscription,
    analyzer: Analyzer,
    vocabulary: Vocabulary,
    space: Space,
    form: Form,
    *,
    takes: Callable[[tuple[Id]], bool],
) -> EncodedSubscriptions | None:
    """Encode a subscription as :func:`~earshot.encoding.subscriptions.encode_subscriptions` does.

    Its ``ids`` are a tuple. Its words are added to the vocabulary; that is so, too, where a keyword
    without any word makes the result None.

    Args:
        subscription: What is asked for.
        analyzer: Splits keywords into tokens.
        vocabulary: Gives tokens their ids; grows.
        space: What the coordinates are.
        form: What the semantics takes.
        takes: Tells whether the id is one that can be added.
    """
    if type(subscription) is not Subscription or not is_usual_id(subscription.id):
        return None
    if not takes((subscription.id,)):
        return None
    threshold = subscription.threshold
    if threshold is not None and "threshold" not in form.columns:
        return None
    unusual = (
        subscription.expression, subscription.k, subscription.alpha, subscription.dwell,
        subscription.cooldown, subscription.leaving,
    )  # fmt: skip
    if any(each is not None for each in unusual):
        return None
    end = _time_us(subscription.expires, NEVER_US)
    regions = encode_region(subscription.region, space, form)
    said = _utf8(subscription.keywords, analyzer)
    if end is None or regions is None or said is None:
        return None
    tokens = np.array([EVERYWHERE_TOKEN], np.int32)
    if said:
        lists = analyzer.analyze_utf8(said, vocabulary, grow=True)
        ends = lists.offsets.tolist()
        if any(start == stop for start, stop in pairwise(ends)):  # a keyword without a word
            return None
        tokens = _distinct(lists.ids)
    thresholds = _NO_THRESHOLDS if threshold is None else np.array([threshold])
    asked = ClauseArrays(
        np.zeros(1, np.int32), np.array([0, len(tokens)]), tokens, *regions[1:], thresholds
    )
    return EncodedSubscriptions((subscription.id,), asked, np.array([end]), [])


def encode_region(region: Any, space: Space, form: Form) -> RegionArrays | None:
    """Encode a region of one box as the encoder of batches does."""
    if form.is_point or form.moves_by_position:
        return None
    box: Sequence[float] | None = None
    shapes = _NO_SHAPES
    match region:
        case Rectangle(min_x, min_y, max_x, max_y):
            sides = min_x, min_y, max_x, max_y
            if _are_numbers(sides) and rectangle_problem(*sides, space) is None:
                # One that reaches the antimeridian has a second box.
                box = sides if space == "planar" or -180.0 < min_x <= max_x < 180.0 else None
        case Everywhere():
            box = _EVERYWHERE_BOX
        case Circle() | Point():
            radius = region.radius if isinstance(region, Circle) else 0.0
            circle = region.x, region.y, radius
            if _are_numbers(circle) and circle_problem(*circle, space) is None:
                box = circle_box(*circle, space)
                shapes = _ONE_CIRCLE._replace(circles=np.array([circle], np.float64))
    if box is None:
        return None
    shape_rows = np.array([len(shapes.circles) - 1], np.int32)
    return RegionArrays(_ONE_BOX, np.array([box], np.float64), shape_rows, shapes)


def is_usual_id(value: Any) -> bool:
    """Whether an id is one that every engine can hold."""
    if type(value) is int:
        return -(2**63) <= value < 2**63
    return type(value) is str and _encoded(value) is not None


def _message_box(place: Any, space: Space) -> Sequence[float] | None:
    if type(place) is Point:
        x, y = place.x, place.y
        is_good = _are_numbers((x, y)) and point_problem(x, y, space) is None
        return (float(x), float(y), float(x), float(y)) if is_good else None
    if type(place) is not Rectangle:
        return None
    sides = place.min_x, place.min_y, place.max_x, place.max_y
    is_good = _are_numbers(sides) and rectangle_problem(*sides, space) is None
    return tuple(map(float, sides)) if is_good else None


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(
        type(value) is float or (type(value) is int and -_EXACT <= value <= _EXACT)
        for value in values
    )


def _time_us(time: datetime | None, default: int) -> int | None:
    """Return a time in microseconds, the default for none, None for one that nobody can tell."""
    if time is None:
        return default
    us = time_us(time)
    return us if FIRST_US <= us <= LAST_US else None


def _utf8(texts: Any, analyzer: Analyzer) -> list[bytes] | None:
    """Return texts in UTF-8, None where one cannot be analysed."""
    encoded = [_encoded(text) for text in texts]
    is_good = all(each is not None and len(each) <= analyzer.max_text_bytes for each in encoded)
    return encoded if is_good else None  # type: ignore[return-value]  # none of them is None


def _encoded(text: Any) -> bytes | None:
    try:
        return text.encode() if type(text) is str else None
    except UnicodeEncodeError:  # half a surrogate pair
        return None


def _distinct(ids: Int32s) -> Int32s:
    return np.array(list(dict.fromkeys(ids.tolist())), np.int32)
