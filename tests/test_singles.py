"""One event at a time gives what a batch of one row gives, whatever is in it and wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from earshot import (
    Analyzer,
    Circle,
    Engine,
    Everywhere,
    Message,
    Point,
    Polygon,
    Ranking,
    Rectangle,
    Subscription,
    Updates,
)
from earshot.encoding import (
    Form,
    encode_message,
    encode_messages,
    encode_region,
    encode_subscription,
    encode_subscriptions,
)
from earshot.engine.rejects import by_name
from earshot.errors import DuplicateSubscription, EarshotError
from earshot.indexes.contract import SPACES
from earshot.model.arrays import Space
from earshot.model.batches import (
    check_kind,
    id_array,
    message_batch,
    region_batch,
    subscription_batch,
)
from earshot.model.events import Move
from earshot.model.subscriptions import checked_id
from earshot.semantics.index_matcher import BooleanMatcher, RankedMatcher
from earshot.text import Vocabulary

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)

# ---- what people say, and what they should not --------------------------------------------------


def mostly(usual: st.SearchStrategy[Any], *others: st.SearchStrategy[Any]) -> Any:
    """Draw what is usual, and now and then something else."""
    return st.integers(0, 5).flatmap(lambda n: usual if n else st.one_of(*others))


def _built(kind: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    try:
        return kind(*arguments, **named)
    except EarshotError:
        return arguments  # no region, no message, no subscription


def built(kind: Callable[..., Any], *parts: st.SearchStrategy[Any]) -> Any:
    """Draw an object, or something else where it cannot be made."""
    return st.tuples(*parts).map(lambda values: _built(kind, *values))


words = st.sampled_from(["fire", "Fire", "fire brigade", "Straße", "東京", "#fire", "☃"])
wordless = st.sampled_from(["'", "-", "half \ud800 pair"])
texts = mostly(
    st.lists(words, max_size=30).map(" ".join),
    st.sampled_from(["", "long " * 30]), st.text(max_size=20), wordless,
)  # fmt: skip
keywords = st.lists(mostly(words, wordless, st.text(min_size=1, max_size=8)), max_size=4)
ids = mostly(
    st.integers(0, 5), st.sampled_from(["a", "ä", "\ud800", ""]),
    st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1]),
)  # fmt: skip
edges = [-180.0, 180.0, -90.0, 90.0, 0.0, -0.0, 2.5, 179.0, -179.0, 1e-300, 1e300]
hostile = [float("nan"), float("inf"), 2**53 + 1, 10**400, True, None, "1", b"1"]
numbers = mostly(
    st.integers(-3, 3), st.sampled_from(edges), st.floats(-90, 90), st.sampled_from(hostile),
    st.sampled_from([np.float64(1.5), np.int32(2)]),
)  # fmt: skip
points = built(Point, numbers, numbers)
boxes = st.tuples(st.integers(-9, 9), st.integers(-9, 9), st.integers(0, 5)).map(
    lambda sides: Rectangle(sides[0], sides[1], sides[0] + sides[2], sides[1] + sides[2])
)
wide_boxes = built(
    Rectangle, st.sampled_from(edges), st.integers(-9, 0), st.sampled_from(edges), numbers
)
circles = built(Circle, numbers, numbers, mostly(st.just(1e5), numbers, st.just(2e7)))
regions = mostly(
    boxes, wide_boxes, circles, points, st.just(Everywhere()),
    st.just(Polygon([[(0, 0), (4, 0), (0, 4)]])),
)  # fmt: skip
times = mostly(
    st.one_of(st.none(), st.integers(0, 9).map(lambda s: EPOCH + timedelta(seconds=s))),
    st.sampled_from([
        datetime.min.replace(tzinfo=timezone(timedelta(hours=5))),
        datetime.max.replace(tzinfo=timezone(-timedelta(hours=5))),
        datetime.max.replace(tzinfo=UTC),
    ]),
)  # fmt: skip
thresholds = mostly(st.none(), st.sampled_from([0.1, 0.5, 1]))


@st.composite
def messages(draw: st.DrawFn) -> Any:
    """Draw what may be published: mostly a message."""
    said = {"text": draw(texts)} if draw(st.booleans()) else {"keywords": draw(keywords)}
    place = draw(mostly(points, boxes, wide_boxes))
    return _built(Message, draw(ids), **said, place=place, time=draw(times))


@st.composite
def subscriptions(draw: st.DrawFn) -> Any:
    """Draw what may be subscribed: mostly a subscription."""
    said: dict[str, Any] = {"keywords": draw(keywords)}
    if draw(st.integers(0, 5)) == 0:
        said = {"expression": draw(st.sampled_from(["fire or flood", "not fire", "fire and '"]))}
    own = draw(mostly(st.just({}), st.sampled_from([{"k": 3}, {"alpha": 0.5}])))
    region, expires = draw(regions), draw(times)
    return _built(
        Subscription, draw(ids), **said, region=region, expires=expires,
        threshold=draw(thresholds), **own,
    )  # fmt: skip


# ---- two ways in --------------------------------------------------------------------------------


def publish_in_batch(engine: Engine, message: Any) -> Updates:
    check_kind((message,), Message, "publish")
    return engine.publish_batch(message_batch([message]))


def subscribe_in_batch(engine: Engine, subscription: Any) -> Updates:
    check_kind((subscription,), Subscription, "subscribe")
    taken = engine.contains_batch(id_array([subscription.id]))
    if taken.any():
        raise DuplicateSubscription(
            f"subscription {subscription.id!r} exists already; unsubscribe it first or choose "
            f"another id"
        )
    return engine.subscribe_batch(subscription_batch([subscription]))


def unsubscribe_in_batch(engine: Engine, key: Any) -> Updates:
    with by_name():
        return engine.unsubscribe_batch(id_array([checked_id(key, "subscription")]))


def move_in_batch(engine: Engine, move: tuple[Any, Any]) -> Updates:
    event = Move(*move)
    with by_name():
        return engine.move_batch(region_batch([event.id], [event.region]))


SINGLE: dict[str, Callable[[Engine, Any], Updates]] = {
    "publish": Engine.publish,
    "subscribe": Engine.subscribe,
    "unsubscribe": Engine.unsubscribe,
    "move": lambda engine, move: engine.move(*move),
}
IN_BATCH: dict[str, Callable[[Engine, Any], Updates]] = {
    "publish": publish_in_batch,
    "subscribe": subscribe_in_batch,
    "unsubscribe": unsubscribe_in_batch,
    "move": move_in_batch,
}
calls = st.one_of(
    st.tuples(st.just("subscribe"), subscriptions()),
    st.tuples(st.just("subscribe"), subscriptions()),
    st.tuples(st.just("publish"), messages()),
    st.tuples(st.just("publish"), messages()),
    st.tuples(st.just("unsubscribe"), ids),
    st.tuples(st.just("move"), st.tuples(ids, regions)),
)
ENGINES: dict[str, Callable[[], Engine]] = {
    "lonlat": lambda: Engine(analyzer=Analyzer(max_text_bytes=100)),
    "planar": lambda: Engine(space="planar"),
    "language": lambda: Engine(analyzer=Analyzer("de", stop_words=True, stem=True)),
    "ranked": lambda: Engine(Ranking(0.5, 0.2)),
}


def outcome(call: Callable[[Engine, Any], Updates], engine: Engine, argument: Any) -> Any:
    """Return all that a call says, and what is in the engine then."""
    try:
        updates = call(engine, argument)
        said: Any = (
            updates.event_ids, updates.table(), updates.offsets.tolist(), updates.latest,
            updates.rejects, updates.n_rows, list(updates), updates.counters,
        )  # fmt: skip
    except Exception as error:  # whatever it is, both ways raise it
        fields = {name: getattr(error, name, None) for name in ("source", "row", "field", "reason")}
        said = type(error), str(error), fields
    vocabulary = engine.vocabulary  # both engines put in what is pending, so that they work alike
    words = vocabulary.tokens(np.arange(len(vocabulary)))
    counts, kind = vocabulary.frequencies.tolist(), engine._state.ids.kind
    return said, len(engine), engine.time, engine.next_expiry, words, counts, kind


@pytest.mark.parametrize("name", ENGINES)
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(story=st.lists(calls, min_size=1, max_size=14))
def test_a_single_call_equals_a_batch_of_one(name: str, story: list[tuple[str, Any]]) -> None:
    single, batch = ENGINES[name](), ENGINES[name]()
    for method, argument in story:
        found = outcome(SINGLE[method], single, argument)
        assert found == outcome(IN_BATCH[method], batch, argument), (method, argument)


FORMS = [BooleanMatcher.form, RankedMatcher.form]


def equal(single: Any, batch: Any) -> bool:
    """Whether two bundles hold the same arrays, of the same types."""
    if isinstance(batch, tuple):
        return len(single) == len(batch) and all(map(equal, single, batch))
    if isinstance(batch, np.ndarray):
        same = single.dtype == batch.dtype and single.shape == batch.shape
        return same and np.array_equal(single, batch, equal_nan=True)
    return bool(single == batch)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    asked=subscriptions(), said=messages(), space=st.sampled_from(SPACES),
    form=st.sampled_from(FORMS),
)  # fmt: skip
def test_the_arrays_are_those_of_a_batch(asked: Any, said: Any, space: Space, form: Form) -> None:
    analyzer = Analyzer(max_text_bytes=100)
    known = Vocabulary(), Vocabulary()
    for each in known:
        each.add(["brigade", "fire"])
    single: Any = encode_subscription(asked, analyzer, known[0], space, form, takes=lambda _: True)
    if single is not None:
        batch: Any = encode_subscriptions(
            subscription_batch([asked]), analyzer, known[1], space, form=form
        )
        assert equal(single[1:], batch[1:])
        assert list(single.ids) == batch.ids.to_pylist()
        tokens = [each.tokens(np.arange(len(each))) for each in known]
        assert tokens[0] == tokens[1]
    single = encode_message(said, analyzer, known[0], space, form)
    if single is not None:
        batch = encode_messages(message_batch([said]), analyzer, known[0], space, form=form)
        assert equal(single[1:], batch[1:])
        assert list(single.ids) == batch.ids.to_pylist()


def test_what_is_usual_takes_the_short_way() -> None:
    """Else the law above would prove nothing."""
    engine = Engine()
    form, space = engine.matcher.form, engine.space
    vocabulary = engine.vocabulary
    for place in (Point(1, 2.5), Rectangle(-1, -1, 1, 1), Rectangle(170, 0, -170, 5)):
        for said in ({"text": "Fire in der Straße"}, {"keywords": ("fire",)}, {"keywords": ()}):
            message: Any = Message("ä", **said, place=place, time=EPOCH)
            assert encode_message(message, engine.analyzer, vocabulary, space, form) is not None
    for region in (Rectangle(0, 0, 1, 1), Circle(1, 1, 5e3), Point(1, 1), Everywhere()):
        asked = Subscription(1, ("fire", "Straße"), region=region, expires=EPOCH)
        assert encode_subscription(
            asked, engine.analyzer, vocabulary, space, form, takes=lambda _: True
        )


@pytest.mark.parametrize(
    "region",
    [
        Rectangle(-180, 0, 0, 1), Rectangle(0, 0, 180, 1), Rectangle(170, 0, -170, 5),
        Circle(180, 0, 1e5), Circle(-180, 0, 0), Point(180, 0), Circle(0, 90, -1.0),
        Polygon([[(0, 0), (4, 0), (0, 4)]]), Rectangle(0, 1, 1, 0), None,
    ],
)  # fmt: skip
def test_regions_that_take_a_batch(region: Any) -> None:
    """Those of two boxes, of shapes that are parsed, and wrong ones."""
    assert encode_region(region, "lonlat", BooleanMatcher.form) is None


def test_updates_of_a_single_message_make_no_arrow_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    engine.subscribe(Subscription(1, ("fire",)), Subscription(2, ("flood",)))
    engine.publish(Message(0, "warm up", place=Point(0, 0)))

    class NoArrow:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"pyarrow.{name} is used")

    import earshot.encoding.columns
    import earshot.engine.ids
    import earshot.engine.updates
    import earshot.model.batches

    for module in (
        earshot.encoding.columns, earshot.engine.ids, earshot.engine.updates, earshot.model.batches
    ):  # fmt: skip
        monkeypatch.setattr(module, "pa", NoArrow())
    engine.subscribe(Subscription(3, ("fire",)))
    updates = engine.publish(Message("m", "Fire!", place=Point(0, 0), time=EPOCH))
    assert [(each.message_id, each.subscription_id, each.time) for each in updates] == [
        ("m", 1, EPOCH), ("m", 3, EPOCH)
    ]  # fmt: skip


def test_single_calls_are_in_the_journal(tmp_path: Path) -> None:
    Engine().save(tmp_path)
    with Engine.open(tmp_path, journal=True) as engine:
        engine.subscribe(Subscription(1, ("fire",)))
        with pytest.raises(EarshotError):
            engine.subscribe(Subscription(2, ("new", "-")))
        engine.publish(Message(1, "Fire!", place=Point(0, 0), time=EPOCH))
        engine.move(1, Rectangle(0, 0, 1, 1))
        words = engine.vocabulary.tokens(np.arange(len(engine.vocabulary)))
    again = Engine.open(tmp_path)
    assert again.vocabulary.tokens(np.arange(len(again.vocabulary))) == words
    assert again.time == EPOCH
    assert len(again.publish(Message(1, "fire", place=Point(5, 5)))) == 0
    assert again.publish(Message(1, "fire", place=Point(1, 1))).subscription_ids == pa.array([1])
