"""The engine: what its calls promise, one by one."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import earshot.semantics.index_matcher
from earshot import (
    Circle,
    Engine,
    Event,
    Everywhere,
    Message,
    Move,
    Point,
    Polygon,
    Publish,
    Rectangle,
    Subscribe,
    Subscription,
    Unsubscribe,
    Update,
    Updates,
)
from earshot.errors import (
    DuplicateSubscription,
    InvalidInput,
    InvalidParameter,
    InvalidRow,
    SavedIndexError,
    UnknownSubscription,
)
from earshot.indexes import structures_of
from earshot.indexes.block_trie.index import BlockTrie
from earshot.model.batches import message_batch, subscription_batch
from earshot.model.regions import Region
from earshot.model.schemas import BOX_FIELDS, SUBSCRIPTIONS, UPDATE_FIELDS
from earshot.model.subscriptions import Id

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HERE = Point(0, 0)
TOWN = Rectangle(-1, -1, 1, 1)
FAR = Rectangle(50, 50, 60, 60)
TURNS = 25


def post(text: str = "fire", place: Point | Rectangle = HERE, **options: Any) -> Message:
    return Message(options.pop("id", 1), text, place=place, **options)


def receivers(engine: Engine, message: Message | None = None) -> list[Id]:
    return sorted((update.subscription_id for update in engine.publish(message or post())), key=str)


def fire(subscription_id: Id, region: Region = TOWN, **options: Any) -> Subscription:
    return Subscription(subscription_id, ("fire",), region=region, **options)


def keyword_table(n: int, first: int = 0, word: str = "fire") -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(range(first, first + n)), pa.array([[word]] * n), *[pa.array([0.0] * n)] * 4],
        ["id", "keywords", *BOX_FIELDS],
    )


# ---- events in, updates out ---------------------------------------------------------------------


def test_a_message_gives_an_update_per_subscription_it_concerns() -> None:
    engine = Engine()
    engine.subscribe(fire(1), fire(2, FAR), Subscription(3, ("fire", "rain"), region=TOWN))
    assert list(engine.publish(post())) == [Update(1, 1, "+")]
    assert set(engine.publish(post("Rain stops FIRE!", id="m"))) == {
        Update("m", 1, "+"),
        Update("m", 3, "+"),
    }


def test_changes_take_effect_before_the_next_message() -> None:
    engine = Engine()
    assert receivers(engine) == []
    engine.subscribe(fire(1))
    assert receivers(engine) == [1]
    engine.subscribe(fire(2))
    assert receivers(engine) == [1, 2]
    engine.unsubscribe(1)
    assert receivers(engine) == [2]
    engine.move(2, FAR)
    assert receivers(engine) == []
    engine.subscribe(fire(1))
    assert receivers(engine) == [1]


def test_batches_and_single_calls_give_equal_updates() -> None:
    random = np.random.default_rng(5)
    words = ["fire", "rain", "bus", "tram"]

    def drawn_words() -> tuple[str, ...]:
        return tuple(random.choice(words, random.integers(1, 4), replace=False).tolist())

    def drawn_box() -> Rectangle:
        x, y = random.integers(-180, 175), random.integers(-80, 70)
        return Rectangle(float(x), float(y), float(x + 60 if x < 120 else x - 300), float(y + 10))

    subscriptions = [Subscription(i, drawn_words(), region=drawn_box()) for i in range(80)]
    messages = [
        Message(i, keywords=drawn_words(), place=drawn_box(), time=NOON + i * SECOND)
        for i in range(60)
    ]
    at_once, one_by_one, threaded = Engine(), Engine(), Engine(n_threads=3)
    for engine in (at_once, threaded):
        engine.subscribe_batch(subscription_batch(subscriptions))
    for each in subscriptions:
        one_by_one.subscribe(each)
    single = [update for message in messages for update in one_by_one.publish(message)]
    assert len(single) > 50
    assert len(set(single)) == len(single)
    for engine in (at_once, threaded):
        assert set(engine.publish_batch(message_batch(messages))) == set(single)
    assert set(one_by_one.publish(*messages)) == set(single)


def test_process_takes_events_in_order() -> None:
    events: list[Event] = [
        Subscribe(fire("a"), NOON),
        Publish(post(id="m1")),
        Publish(post(id="m2", time=NOON + SECOND)),
        Move("a", FAR),
        Publish(post(id="m3")),
        Subscribe(fire("b", expires=NOON + 5 * SECOND)),
        Publish(post(id="m4")),
        Unsubscribe("a", NOON + 5 * SECOND),
        Publish(post(id="m5")),
        Subscribe(fire("a")),
        Publish(post(id="m6")),
    ]
    engine = Engine()
    updates = [(u.message_id, u.subscription_id) for u in engine.process(events)]
    assert updates == [("m1", "a"), ("m2", "a"), ("m4", "b"), ("m6", "a")]
    assert engine.time == NOON + 5 * SECOND
    assert len(engine) == 1


def test_process_yields_before_it_reads_the_events_that_follow() -> None:
    engine = Engine()
    engine.subscribe(fire(1))

    def events() -> Any:
        yield Publish(post())
        yield Unsubscribe(1)
        raise AssertionError("read too far")

    updates = engine.process(events())
    assert next(updates) == Update(1, 1, "+")
    assert 1 in engine


@pytest.mark.parametrize("wrong", [42, "subscribe", None, fire(1)])
def test_process_refuses_what_is_not_an_event(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="is not an event"):
        list(Engine().process([wrong]))


def test_nothing_in_gives_nothing_out() -> None:
    for engine in (Engine(), Engine()):
        engine.subscribe()
        engine.unsubscribe()
        assert list(engine.publish()) == []
        assert list(engine.process([])) == []
        assert len(engine) == 0
        engine.subscribe(fire("a"))  # with ids of either kind
        engine.subscribe()
        engine.subscribe_batch(subscription_batch([]))
        assert list(engine.publish()) == []
        assert list(engine.publish_batch(message_batch([]))) == []
        assert len(engine) == 1


def test_deliveries_are_updates_in_a_table() -> None:
    engine = Engine()
    engine.subscribe(fire("a"), fire("b"))
    found = engine.publish_batch(message_batch([post(id=7), post("rain", id=8), post(id=9)]))
    assert isinstance(found, Updates)
    assert found.offsets.tolist() == [0, 2, 2, 4]
    assert found.counters.answers == 4
    table = found.table()
    assert table.column_names == list(UPDATE_FIELDS)
    rows = [Update(**row) for row in table.to_pylist()]
    assert rows == list(found)
    assert {row.message_id for row in rows} == {7, 9}


# ---- ids ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ids",
    [
        [0, -1, 2**63 - 1, -(2**63)],
        ["a", "", "A", "ä", "a\u0308", "  ", "0", "日本", "x" * 1000, "a\x00b"],
    ],
)
def test_ids_come_back_unchanged(ids: list[Id], tmp_path: Path) -> None:
    engine = Engine()
    engine.subscribe(*map(fire, ids[:2]))
    assert receivers(engine) == sorted(ids[:2], key=str)
    engine.subscribe(*map(fire, ids[2:]))
    expected = sorted(ids, key=str)
    assert receivers(engine) == expected
    assert {type(each) for each in receivers(engine)} == {type(ids[0])}
    engine.rebuild()
    assert receivers(engine) == expected
    engine.save(tmp_path / "saved")
    assert receivers(Engine.open(tmp_path / "saved")) == expected


def test_ids_of_two_kinds_do_not_mix() -> None:
    engine = Engine()
    engine.subscribe(fire(1))
    with pytest.raises(InvalidInput, match="all integers or all strings"):
        engine.subscribe(fire("1"))
    with pytest.raises(InvalidInput, match="all integers or all strings"):
        engine.subscribe(fire(2), fire("3"))
    with pytest.raises(UnknownSubscription, match="no subscription '1'"):
        engine.unsubscribe("1")
    assert len(engine) == 1


@pytest.mark.parametrize(
    "other", ["1", True, 1.0, None, 10**30, 2**63, -(2**63) - 1, "\ud800", b"1", [1]]
)
def test_what_cannot_be_an_id_is_not_contained(other: object) -> None:
    engine = Engine()
    assert other not in engine
    engine.subscribe(fire(1))
    assert 1 in engine
    assert other not in engine


def test_a_duplicate_is_refused_and_changes_nothing() -> None:
    engine = Engine()
    engine.subscribe(fire(1))
    for refused in ([fire(1, FAR)], [fire(2), fire(1, FAR), fire(3)]):
        with pytest.raises(DuplicateSubscription, match="subscription 1 exists already"):
            engine.subscribe(*refused)
    with pytest.raises(InvalidRow, match=r"row 1, field 'id'.*already subscribed"):
        engine.subscribe_batch(subscription_batch([fire(2), fire(1)]))
    with pytest.raises(
        InvalidInput, match="row 1, field 'id': id 2 was already used, 1 row before"
    ):
        engine.subscribe(fire(2), fire(2))
    assert receivers(engine) == [1]
    assert len(engine) == 1
    assert 2 not in engine
    engine.subscribe(fire(2))
    assert receivers(engine) == [1, 2]


def test_an_unknown_id_is_refused_and_changes_nothing() -> None:
    engine = Engine()
    with pytest.raises(UnknownSubscription, match="no subscription 'x'"):
        engine.unsubscribe("x")
    engine.subscribe(fire(1), fire(2))
    with pytest.raises(UnknownSubscription, match="no subscription 9"):
        engine.unsubscribe(1, 9)
    with pytest.raises(UnknownSubscription, match="no subscription 9"):
        engine.move(9, FAR)
    with pytest.raises(UnknownSubscription, match="no subscription 9"):
        engine.explain(post(), 9)
    with pytest.raises(UnknownSubscription):
        engine.move_batch(subscription_batch([fire(1, FAR), fire(9, FAR)]))
    with pytest.raises(UnknownSubscription):
        engine.unsubscribe(1, 1)
    assert receivers(engine) == [1, 2]
    engine.unsubscribe(1)
    with pytest.raises(UnknownSubscription, match="no subscription 1"):
        engine.unsubscribe(1)


# ---- batches with something wrong ---------------------------------------------------------------

MIXED = pa.RecordBatch.from_pylist(
    [
        {"id": 1, "keywords": ["fire"]},
        {"id": 2, "keywords": ["fire"], **dict(zip(BOX_FIELDS, (0, 9, 1, 3), strict=True))},
        {"id": 3, "keywords": ["fire"], "x": 200.0, "y": 0.0, "radius": 1.0},
        {"id": 4, "expression": "fire or rain"},
        {"id": 1, "keywords": ["rain"]},
        {"id": 6},
        {"id": 7, "expression": "not fire"},
    ],
    SUBSCRIPTIONS,
)


def test_a_refused_batch_changes_nothing() -> None:
    engine = Engine()
    engine.subscribe(fire(50))
    with pytest.raises(InvalidRow, match=r"a\.csv, row 101, field 'min_y'") as caught:
        engine.subscribe_batch(MIXED, source="a.csv", first_row=100)
    assert (caught.value.row, caught.value.field) == (101, "min_y")
    assert len(engine) == 1
    assert 1 not in engine
    assert receivers(engine) == [50]


def test_try_subscribe_batch_takes_the_good_rows() -> None:
    engine = Engine()
    engine.subscribe(fire(50))
    rejects = engine.subscribe_batch(
        MIXED, source="b.csv", rows=np.arange(7) * 10, on_error="reject"
    ).rejects
    assert [(each.row, each.field) for each in rejects] == [
        (10, "min_y"),
        (20, "x"),
        (40, "id"),
        (50, "keywords"),
        (60, "expression"),
    ]
    assert {each.source for each in rejects} == {"b.csv"}
    assert receivers(engine) == [1, 4, 50]
    assert receivers(engine, post("rain")) == [4]


def test_a_refused_move_changes_nothing() -> None:
    engine = Engine()
    engine.subscribe(fire(1), fire(2))
    with pytest.raises(InvalidInput, match="latitude 95"):
        engine.move(1, Rectangle(0, 0, 1, 95))
    with pytest.raises(InvalidInput, match="row 1"):
        engine.move_batch(subscription_batch([fire(1, FAR), fire(2, Circle(0, 0, -1))]))
    with pytest.raises(InvalidInput, match="already used"):
        engine.move_batch(subscription_batch([fire(1, FAR), fire(1, TOWN)]))
    with pytest.raises(InvalidInput, match=r"field 'geometry'.*Too few points"):
        engine.move(1, Polygon([[(0, 0), (1, 1)]]))
    assert receivers(engine) == [1, 2]


def test_a_refused_message_publishes_nothing() -> None:
    engine = Engine()
    engine.subscribe(fire(1, expires=NOON))
    batch = message_batch([post(id=1), post(place=Point(0, 91), id=2, time=NOON), post(id=3)])
    with pytest.raises(InvalidRow, match="row 1, field 'y': latitude 91"):
        engine.publish_batch(batch)
    assert engine.time is None
    assert len(engine) == 1
    found = engine.publish_batch(batch, on_error="reject", source="m", rows=np.array([4, 6, 8]))
    assert [(u.message_id, u.subscription_id) for u in list(found)] == [(1, 1), (3, 1)]
    assert [(each.source, each.row, each.field) for each in found.rejects] == [("m", 6, "y")]
    assert engine.time is None  # the clock does not believe refused messages


def test_options_outside_their_range_are_refused() -> None:
    with pytest.raises(
        InvalidParameter, match="no boolean structure is called 'best'; expected one of"
    ):
        Engine(structure="best")
    with pytest.raises(InvalidParameter, match="space is 'round'"):
        Engine(space="round")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="on_error is 'ignore'"):
        Engine().publish_batch(message_batch([post()]), on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="n_threads is 0"):
        Engine(n_threads=0).publish(post())


# ---- time ---------------------------------------------------------------------------------------


def test_a_subscription_is_live_while_the_clock_is_before_its_expiry() -> None:
    moment = timedelta(microseconds=1)
    engine = Engine()
    engine.subscribe(fire(1, expires=NOON), fire(2, expires=NOON + moment), fire(3))
    assert receivers(engine, post(time=NOON - moment)) == [1, 2, 3]
    assert receivers(engine, post(time=NOON)) == [2, 3]
    assert 1 not in engine
    assert len(engine) == 2
    assert receivers(engine, post(time=NOON + moment)) == [3]


def test_expiry_is_decided_message_by_message() -> None:
    engine = Engine()
    engine.subscribe(fire(1, expires=NOON + 2 * SECOND))
    found = engine.publish(*(post(id=i, time=NOON + i * SECOND) for i in range(4)))
    assert [update.message_id for update in found] == [0, 1]


def test_the_clock_never_goes_back() -> None:
    engine = Engine()
    engine.subscribe(fire(1, expires=NOON))
    found = engine.publish(
        post(id=1, time=NOON - SECOND), post(id=2, time=NOON), post(id=3, time=NOON - SECOND)
    )
    assert [update.message_id for update in found] == [1]
    assert engine.time == NOON
    engine.advance(NOON - SECOND)
    assert engine.time == NOON
    engine.subscribe(fire(1, expires=NOON))  # the id is free; over before it begins
    assert receivers(engine, post(time=NOON - SECOND)) == []
    assert len(engine) == 0


def test_times_are_instants_in_any_zone() -> None:
    engine = Engine()
    east = timezone(timedelta(hours=5))
    engine.subscribe(fire(1, expires=NOON.astimezone(east)))
    assert receivers(engine, post(time=NOON - SECOND)) == [1]
    engine.advance(NOON.astimezone(timezone(-timedelta(hours=9))))
    assert engine.time == NOON
    assert len(engine) == 0


def test_messages_without_a_time_find_the_clock_as_it_is() -> None:
    engine = Engine()
    assert engine.time is None
    engine.subscribe(fire(1, expires=NOON), fire(2))
    assert receivers(engine) == [1, 2]
    assert engine.time is None
    engine.advance(NOON)
    assert receivers(engine) == [2]


def test_expiry_survives_rebuild_save_and_move(tmp_path: Path) -> None:
    engine = Engine()
    engine.subscribe(fire(0), fire(1, expires=NOON), fire(2, expires=NOON + SECOND))
    engine.unsubscribe(0)
    engine.rebuild()
    engine.subscribe(fire(3), fire(4, expires=NOON))
    engine.move(1, Circle(0, 0, 10))
    engine.advance(NOON - SECOND)
    engine.save(tmp_path / "saved")
    for each in (engine, Engine.open(tmp_path / "saved")):
        assert each.time == NOON - SECOND
        assert receivers(each) == [1, 2, 3, 4]
        assert receivers(each, post(time=NOON)) == [2, 3]
        assert receivers(each, post(time=NOON + SECOND)) == [3]
        assert len(each) == 1


def test_the_clock_goes_on_when_all_that_would_expire_are_gone() -> None:
    engine = Engine()
    engine.subscribe(fire(1, expires=NOON), fire(2))
    engine.unsubscribe(1)
    engine.rebuild()
    engine.advance(NOON)
    assert receivers(engine) == [2]


# ---- moves --------------------------------------------------------------------------------------

EVERY_REGION: list[Region] = [
    TOWN,
    Rectangle(170, -5, -170, 5),
    Rectangle(-180, -5, -170, 5),
    Circle(179.9, 0, 50_000),
    Polygon([[(0, 0), (3, 0), (0, 3)]]),
    Polygon([[(178, -1), (180, -1), (180, 1)], [(-180, -1), (-178, -1), (-180, 1)]]),
    Everywhere(),
]


@pytest.mark.parametrize("old", EVERY_REGION, ids=repr)
@pytest.mark.parametrize("has_base", [False, True])
def test_a_moved_subscription_equals_a_new_one_there(old: Region, has_base: bool) -> None:
    conditions: list[dict[str, Any]] = [
        {"keywords": ("fire",)},
        {"keywords": ("fire", "rain")},
        {"expression": "fire and not rain or bus"},
        {"expression": "(fire or bus) and (rain or tram)"},
    ]
    places = [HERE, Point(2, 0.5), Point(180, 0), Point(-179.5, 0.2), Point(50, 50)]
    texts = ["fire", "fire rain", "bus", "bus tram", "rain", "fire bus rain tram"]
    messages = [
        Message(10 * i + j, text, place=place)
        for i, text in enumerate(texts)
        for j, place in enumerate(places)
    ]
    moved, fresh = Engine(), Engine()
    if has_base:
        for engine in (moved, fresh):
            engine.subscribe(Subscription(99, ("tram",), region=TOWN))
            assert len(engine) == 1
    numbered = list(enumerate(conditions))
    moved.subscribe(
        *(Subscription(i, region=old, expires=NOON, **condition) for i, condition in numbered)
    )
    for new in EVERY_REGION:
        for i, _ in numbered:
            moved.move(i, new)
        fresh.subscribe(
            *(Subscription(i, region=new, expires=NOON, **condition) for i, condition in numbered)
        )
        found = fresh.publish(*messages)
        assert found
        assert set(moved.publish(*messages)) == set(found)
        assert len(moved.publish(*messages)) == len(found)
        fresh.unsubscribe(*range(len(conditions)))
    moved.advance(NOON)
    assert len(moved) == has_base


def test_a_move_of_several_in_any_order() -> None:
    engine = Engine()
    engine.subscribe(*(fire(i, FAR) for i in range(6)))
    assert len(engine) == 6
    engine.subscribe(fire(6, FAR), Subscription(7, expression="fire or rain", region=FAR))
    engine.move_batch(subscription_batch([fire(7, TOWN), fire(2, TOWN), fire(6, Everywhere())]))
    assert receivers(engine) == [2, 6, 7]
    assert receivers(engine, post(place=Point(55, 55))) == [0, 1, 3, 4, 5, 6]
    assert receivers(engine, post("rain")) == [7]


# ---- growth -------------------------------------------------------------------------------------


def test_a_large_first_load_is_built_and_not_left_to_the_delta() -> None:
    engine = Engine()
    for first in range(0, 200_000, 50_000):
        engine.subscribe_batch(keyword_table(50_000, first, f"w{first % 7}"))
    assert engine.matcher.index.n_subscriptions == 200_000
    assert engine.matcher.index.delta is None
    assert engine.matcher.index.n_changes == 0
    engine.subscribe(fire(200_000))
    assert engine.matcher.index.n_changes == 1
    assert receivers(engine) == [200_000]


def test_a_load_larger_than_the_index_is_built_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earshot.semantics.index_matcher, "REBUILD_LEAST", 10)
    engine = Engine()
    engine.subscribe(fire(0))
    assert len(engine) == 1
    engine.subscribe_batch(keyword_table(100, 1))
    assert engine.matcher.index.n_changes == 0
    assert receivers(engine) == list(map(int, sorted(map(str, range(101)))))


@pytest.fixture
def due(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Return an engine whose next use rebuilds its index, which renumbers the slots."""
    monkeypatch.setattr(earshot.semantics.index_matcher, "REBUILD_LEAST", 5)
    engine = Engine()
    engine.subscribe(fire(0), fire(1), fire(2, expires=NOON))
    assert engine.matcher.index.n_slots == 3
    engine.unsubscribe(0)
    engine.subscribe_batch(keyword_table(10, 10))
    engine.subscribe(fire(20, expires=NOON + SECOND))
    return engine


def test_unsubscribe_finds_the_right_one_while_slots_are_renumbered(due: Engine) -> None:
    due.unsubscribe(12)
    assert 12 not in due
    assert receivers(due) == [1, 10, 11, 13, 14, 15, 16, 17, 18, 19, 2, 20]


def test_move_finds_the_right_one_while_slots_are_renumbered(due: Engine) -> None:
    due.move(12, FAR)
    assert receivers(due, post(place=Point(55, 55))) == [12]
    due.move(20, FAR)
    assert receivers(due, post(place=Point(55, 55))) == [12, 20]
    assert receivers(due, post(place=Point(55, 55), time=NOON + SECOND)) == [12]


def test_explain_finds_the_right_one_while_slots_are_renumbered(due: Engine) -> None:
    due.subscribe(Subscription(30, ("rain",)))
    explanation = due.explain(post("rain"), 30)
    assert explanation.matched, explanation


def test_expiry_finds_the_right_one_while_slots_are_renumbered(due: Engine) -> None:
    due.advance(NOON)
    assert 2 not in due
    assert receivers(due) == [1, *range(10, 20), 20]
    due.advance(NOON + SECOND)
    assert receivers(due) == [1, *range(10, 20)]


def test_saving_while_slots_are_renumbered(due: Engine, tmp_path: Path) -> None:
    due.save(tmp_path / "saved")
    opened = Engine.open(tmp_path / "saved")
    assert receivers(opened) == receivers(due)
    opened.unsubscribe(12)
    opened.advance(NOON)
    assert receivers(opened) == [1, 10, 11, 13, 14, 15, 16, 17, 18, 19, 20]


def test_an_engine_that_was_emptied_and_rebuilt_takes_new_subscriptions(tmp_path: Path) -> None:
    for ids in ([1, 2], ["a", "b"]):
        engine = Engine()
        engine.subscribe(*map(fire, ids))
        engine.unsubscribe(*ids)
        engine.rebuild()
        engine.save(tmp_path / str(ids[0]))
        for each in (engine, Engine.open(tmp_path / str(ids[0]))):
            each.subscribe(*map(fire, ids))
            assert receivers(each) == ids
            each.unsubscribe(ids[0])
            assert receivers(each) == ids[1:]


# ---- rebuilding in the background ---------------------------------------------------------------


class Pause:
    """Holds the build of an index in another thread until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_building, self.may_go_on = threading.Event(), threading.Event()
        rebuilt_of = BlockTrie.rebuilt_of

        def held(index: Any, *arguments: Any, **options: Any) -> Any:
            result = rebuilt_of(index, *arguments, **options)
            if threading.current_thread().name == "earshot-rebuild":
                self.is_building.set()
                assert self.may_go_on.wait(30)
            return result

        monkeypatch.setattr(BlockTrie, "rebuilt_of", held)
        monkeypatch.setattr(earshot.semantics.index_matcher, "REBUILD_LEAST", 20)


@pytest.fixture
def pause(monkeypatch: pytest.MonkeyPatch) -> Pause:
    return Pause(monkeypatch)


def rebuilding(pause: Pause, ids: list[Id]) -> Engine:
    engine = Engine()
    engine.subscribe(*map(fire, ids[:60]))
    assert engine.matcher.index.n_slots == 60
    engine.unsubscribe(*ids[:25])
    assert pause.is_building.wait(30)
    assert engine.matcher.index.n_changes == 25
    return engine


@pytest.mark.parametrize("kind", [int, str])
def test_changes_during_a_rebuild_are_kept(pause: Pause, kind: type) -> None:
    ids: list[Id] = [kind(i) for i in range(100)]
    engine = rebuilding(pause, ids)
    engine.subscribe(*map(fire, ids[:5]))  # ids that the snapshot knows as gone
    engine.subscribe(fire(ids[70], expires=NOON), fire(ids[71]))
    engine.unsubscribe(ids[30], ids[71], ids[0])
    engine.move(ids[40], FAR)
    assert len(engine) == 39
    engine.subscribe(fire(ids[72]), fire(ids[30]))  # pending while the new index takes over
    expected = sorted(ids[1:5] + ids[25:40] + ids[41:60] + [ids[70], ids[72]], key=str)
    before = engine.matcher.index
    pause.may_go_on.set()
    engine.wait()
    assert engine.matcher.index is not before
    assert engine.matcher.index.n_changes < 25
    assert receivers(engine) == expected
    assert receivers(engine, post(place=Point(55, 55))) == [ids[40]]
    engine.advance(NOON)
    expected.remove(ids[70])
    assert receivers(engine) == expected
    engine.unsubscribe(*expected)
    assert receivers(engine) == []
    assert len(engine) == 1


def test_a_large_load_while_the_rebuilt_index_takes_over(pause: Pause) -> None:
    ids: list[Id] = list(range(60))
    engine = rebuilding(pause, ids)
    engine.subscribe_batch(keyword_table(100, 1000))  # pending; would cause a rebuild by itself
    pause.may_go_on.set()
    engine.wait()
    expected = sorted([*range(25, 60), *range(1000, 1100)], key=str)
    assert receivers(engine) == expected
    engine.unsubscribe(1050, 59)
    assert receivers(engine) == [each for each in expected if each not in (1050, 59)]


def test_ids_of_the_other_kind_may_come_during_a_rebuild(pause: Pause) -> None:
    engine = rebuilding(pause, list(range(60)))
    engine.unsubscribe(*range(25, 60))
    engine.subscribe(fire("a"), fire("b"))
    pause.may_go_on.set()
    engine.wait()
    assert receivers(engine) == ["a", "b"]
    engine.unsubscribe("a")
    assert receivers(engine) == ["b"]


def test_a_rebuild_in_the_foreground_comes_first(pause: Pause) -> None:
    ids: list[Id] = list(range(60))
    engine = rebuilding(pause, ids)
    engine.unsubscribe(50)
    engine.rebuild()
    index = engine.matcher.index
    pause.may_go_on.set()
    engine.wait()
    assert engine.matcher.index is index
    assert receivers(engine) == [*range(25, 50), *range(51, 60)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_wait_raises_what_went_wrong_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **options: Any) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr(earshot.semantics.index_matcher, "REBUILD_LEAST", 2)
    engine = Engine()
    engine.subscribe(*map(fire, range(10)))
    assert engine.matcher.index.n_subscriptions == 10
    with monkeypatch.context() as patched:
        patched.setattr(BlockTrie, "rebuilt_of", broken)
        engine.unsubscribe(1, 2, 3)
        with pytest.raises(MemoryError, match="no room"):
            engine.wait()
        for thread in threading.enumerate():  # until it has told the world, too
            if thread.name == "earshot-rebuild":
                thread.join()
    assert receivers(engine) == [0, 4, 5, 6, 7, 8, 9]
    engine.wait()
    engine.unsubscribe(4)
    engine.wait()
    assert engine.matcher.index.n_changes == 4  # not tried again at every change
    engine.unsubscribe(5, 6)
    engine.wait()
    assert engine.matcher.index.n_changes == 0
    assert receivers(engine) == [0, 7, 8, 9]


def test_threads_publish_while_others_subscribe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earshot.semantics.index_matcher, "REBUILD_LEAST", 50)
    engine = Engine(n_threads=2)
    engine.subscribe(*(fire(i) for i in range(100)))
    errors: list[BaseException] = []
    is_over = threading.Event()
    messages = [post(id=i) for i in range(4)]

    def publish() -> None:
        try:
            while not is_over.is_set():
                found = engine.publish(*messages)
                per_message = [
                    {u.subscription_id for u in found if u.message_id == each.id}
                    for each in messages
                ]
                assert sum(map(len, per_message)) == len(found)
                assert all(set(range(50)) <= each for each in per_message)  # these always stay
                # A batch sees one state, whatever the other threads do.
                assert all(each == per_message[0] for each in per_message)
        except BaseException as error:
            errors.append(error)

    def change(first: int) -> None:
        try:
            for turn in range(TURNS):
                new = range(first + 10 * turn, first + 10 * turn + 10)
                engine.subscribe(*map(fire, new))
                engine.unsubscribe(*new[:5])
                engine.move(new[6], FAR)
        except BaseException as error:
            errors.append(error)

    publishers = [threading.Thread(target=publish) for _ in range(3)]
    changers = [threading.Thread(target=change, args=[first]) for first in (1000, 5000)]
    for thread in publishers + changers:
        thread.start()
    engine.unsubscribe(*range(50, 100))
    for thread in changers:
        thread.join()
    is_over.set()
    for thread in publishers:
        thread.join()
    engine.wait()
    assert errors == []
    stayed = {
        first + 10 * turn + k
        for first in (1000, 5000)
        for turn in range(TURNS)
        for k in (5, 7, 8, 9)
    }
    assert {u.subscription_id for u in engine.publish(post())} == stayed | set(range(50))
    assert len(engine) == 50 + 2 * TURNS * 5


# ---- saving -------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", ["block_trie", "keyword_first"])
def test_an_opened_engine_goes_on_where_the_saved_one_was(index: str, tmp_path: Path) -> None:
    assert index in structures_of("boolean")
    engine = Engine(structure=index)
    engine.subscribe(fire("a"), fire("b"), Subscription("c", expression="fire and not rain"))
    assert len(engine) == 3
    engine.subscribe(fire("d", EVERY_REGION[5]), fire("e", Circle(0, 0, 1)))
    engine.unsubscribe("a", "e")
    engine.save(tmp_path / "one")
    opened = Engine.open(tmp_path / "one")
    assert opened.matcher.index.name == index
    opened.subscribe(fire("a"), Subscription("new", ("snow",)))
    opened.unsubscribe("b")
    assert receivers(opened) == ["a", "c"]
    assert receivers(engine) == ["b", "c"]
    assert receivers(Engine.open(tmp_path / "one")) == ["b", "c"]
    opened.save(tmp_path / "two")
    assert receivers(Engine.open(tmp_path / "two"), post("snow, fire")) == ["a", "c", "new"]
    assert receivers(Engine.open(tmp_path / "two"), post(place=Point(-179, 0))) == ["c", "d"]


def test_an_empty_engine_can_be_saved(tmp_path: Path) -> None:
    Engine(space="planar").save(tmp_path / "saved")
    opened = Engine.open(tmp_path / "saved")
    assert (len(opened), opened.space, opened.time) == (0, "planar", None)
    opened.subscribe(fire(1, Rectangle(1e6, 1e6, 1e7, 1e7)))
    assert receivers(opened, post(place=Point(2e6, 1e6))) == [1]


def test_an_index_alone_is_not_an_engine(tmp_path: Path) -> None:
    engine = Engine()
    engine.subscribe(fire(1))
    engine.matcher.index.save(tmp_path / "index")
    with pytest.raises(SavedIndexError, match="does not hold an engine"):
        Engine.open(tmp_path / "index")
    with pytest.raises(SavedIndexError, match="is not a saved index"):
        Engine.open(tmp_path / "nowhere")


# ---- explaining ---------------------------------------------------------------------------------


def test_explain_a_match() -> None:
    engine = Engine()
    engine.subscribe(fire("s"))
    found = engine.explain(post("A fire"), "s")
    assert found.matched
    assert (found.message_id, found.subscription_id) == (1, "s")
    assert found.reasons == (
        "✓ the text has 'fire'",
        "✓ the message's point (0, 0) touches the region (-1.0, -1.0, 1.0, 1.0)",
    )
    assert str(found).splitlines()[0] == "Message 1 is delivered to subscription 's':"


@pytest.mark.parametrize(
    ("subscription", "message", "reason"),
    [
        (Subscription(1, ("fire", "rain")), post(), "✗ the text has 'fire', the text lacks 'rain'"),
        (fire(1, FAR), post(), "✗ the message's point (0, 0) does not touch the region (50.0,"),
        (fire(1, Circle(0, 3, 5)), post(), "does not touch the circle of radius 5 m around (0.0,"),
        (fire(1, EVERY_REGION[4]), post(place=Point(5, 5)), "not touch the polygon of 4 vertices"),
        (fire(1, expires=NOON), post(time=NOON), "✗ the subscription expired at 2026-05-01T12:00"),
        (
            Subscription(1, expression="fire and not rain"),
            post("fire, rain"),
            "✗ the text has 'fire', the text has 'rain', which it must not",
        ),
        (
            Subscription(1, expression="snow or (fire and not rain)"),
            post("rain"),
            "alternative 2: ✗ the text lacks 'fire', the text has 'rain', which it must not",
        ),
        (Subscription(1, region=TOWN), post(place=Rectangle(3, 3, 4, 4)), "✓ it asks for no keyw"),
    ],
)
def test_explain_no_match(subscription: Subscription, message: Message, reason: str) -> None:
    engine = Engine()
    engine.subscribe(subscription)
    found = engine.explain(message, 1)
    assert not found.matched
    assert reason in str(found)
    assert "is not delivered to" in str(found)
    assert engine.time is None  # asking changes nothing
    assert receivers(engine, message) == []


def test_explain_agrees_with_publish() -> None:
    engine = Engine()
    words = ("fire", "rain")
    conditions: list[dict[str, Any]] = [
        {"keywords": words},
        {"expression": "fire or rain"},
        {"expression": "fire and not rain"},
    ]
    wishes = [
        Subscription(10 * i + j, region=region, **condition)
        for i, region in enumerate(EVERY_REGION)
        for j, condition in enumerate(conditions)
    ]
    engine.subscribe(*wishes)
    outcomes = set()
    for place in (HERE, Point(180, 0), Point(-179.5, 0.2), Rectangle(179, 0, -179, 0)):
        for text in ("fire", "rain", "fire rain", "snow"):
            message = post(text, place)
            reached = receivers(engine, message)
            for each in wishes:
                found = engine.explain(message, each.id)
                assert found.matched == (each.id in reached), found
                outcomes.add(found.matched)
    assert outcomes == {True, False}


# ---- bugs that were ------------------------------------------------------------------------------


def test_shapes_of_the_dead_are_dropped_by_rebuilds() -> None:
    engine = Engine()
    engine.subscribe(*(fire(i, Circle(0, 0, 1000)) for i in range(30)))
    for turn in range(6):
        for i in range(30):
            engine.move(i, Circle(0.001 * turn, 0, 1000))
        engine.rebuild()
    assert len(engine.matcher.index.clauses.shapes.circles) == 30
    assert receivers(engine) == sorted(range(30), key=str)


def test_a_build_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    engine.subscribe(fire(1))
    build = BlockTrie._build_arrays

    def fail(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(BlockTrie, "_build_arrays", fail)
    with pytest.raises(MemoryError):
        engine.publish(post())
    monkeypatch.setattr(BlockTrie, "_build_arrays", build)
    assert receivers(engine) == [1]


def test_a_small_engine_that_grows_is_rebuilt_on_the_spot() -> None:
    engine = Engine()
    engine.subscribe(fire(-1))
    assert len(engine) == 1
    engine.subscribe_batch(keyword_table(earshot.semantics.index_matcher.REBUILD_SMALL + 1))
    assert engine.matcher.index.n_changes == 0
