"""The engine of top-k: worked examples, lateness, ids, expiry, and going on after saving."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from earshot import (
    Analyzer,
    Boolean,
    Circle,
    Engine,
    Event,
    Everywhere,
    Message,
    Move,
    Point,
    Publish,
    Ranking,
    Rectangle,
    Result,
    Subscribe,
    Subscription,
    TopK,
    Unsubscribe,
    Update,
    Updates,
)
from earshot.engine.message_ids import MessageIds
from earshot.errors import (
    DuplicateSubscription,
    EarshotError,
    InvalidInput,
    InvalidParameter,
    InvalidRow,
    LateRow,
    SavedIndexError,
    UnknownSubscription,
)
from earshot.model.batches import id_array, message_batch, subscription_batch
from earshot.model.schemas import updates_schema
from earshot.model.subscriptions import Id
from earshot.semantics.topk.monitor import Monitor

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
HERE = Point(0, 0)
MINUTE = timedelta(minutes=1)


def plane(window: int | timedelta, k: int = 1, alpha: float = 0.5, **options: Any) -> Engine:
    """Return an engine on a plane in which the place scores 0 from a distance of 10 on."""
    topk = TopK(window, k, alpha, max_distance=10, **options)
    return Engine(topk, space="planar")


def fire(number: Id, distance: float = 0, minutes: float | None = None) -> Message:
    time = None if minutes is None else NOON + minutes * MINUTE
    return Message(number, "fire", place=Point(distance, 0), time=time)


def said(updates: Iterable[Update]) -> list[str]:
    """Return updates as texts such as ``+1 ann match``."""
    return [
        f"{each.sign}{each.message_id} {each.subscription_id} {each.reason}" for each in updates
    ]


def late_of(updates: Updates) -> int:
    return sum(isinstance(each, LateRow) for each in updates.rejects)


def ids_of(engine: Engine, subscription_id: Id) -> list[Id]:
    return [result.message_id for result in engine.results(subscription_id)]


# ---- one at a time ------------------------------------------------------------------------------


def test_the_best_of_the_last_messages() -> None:
    engine = plane(3, alpha=1)
    assert list(engine.subscribe(Subscription("ann", ["fire"], region=HERE))) == []
    assert list(engine.publish(fire(1, 2))) == [Update(1, "ann", "+", 0.8, "match")]
    assert list(engine.publish(fire(2, 5))) == []
    assert said(engine.publish(fire(3, 1))) == ["-1 ann displaced", "+3 ann match"]
    assert list(engine.publish(Message(4, "rain", place=HERE), fire(5, 7))) == []
    assert list(engine.publish(Message(6, "rain", place=HERE))) == [
        Update(3, "ann", "-", 0.9, "expired"),
        Update(5, "ann", "+", 1 - 0.7, "refill"),
    ]
    assert engine.results("ann") == [Result(5, 1 - 0.7)]
    assert (len(engine), engine.n_messages, engine.time) == (1, 3, None)


def test_subscribing_moving_and_leaving() -> None:
    engine = plane(5, k=2, alpha=1)
    engine.publish(fire(1, 1), fire(2, 2), fire(3, 3))
    found = engine.subscribe(
        Subscription("ann", ["fire"], region=HERE), Subscription("ben", ["fire"], region=HERE, k=1)
    )
    assert said(found) == ["+1 ann subscribe", "+2 ann subscribe", "+1 ben subscribe"]
    assert said(engine.move("ann", Point(4, 0))) == ["-1 ann move", "+3 ann move"]
    assert said(engine.move("ann", Circle(4, 0, 0))) == []
    assert ids_of(engine, "ann") == [3, 2]
    engine.unsubscribe("ann")
    assert "ann" not in engine
    assert "ben" in engine
    assert 5 not in engine
    with pytest.raises(UnknownSubscription, match="no subscription 'ann'"):
        engine.results("ann")
    # The slot of "ann" may be taken over; what is left keeps its name.
    assert said(engine.publish(fire(4))) == ["-1 ben displaced", "+4 ben match"]


def test_subscriptions_have_their_own_alpha() -> None:
    engine = plane(5, alpha=0)
    engine.subscribe(
        Subscription("words", ["fire", "smoke"], region=HERE),
        Subscription("place", ["fire", "smoke"], region=HERE, alpha=1),
    )
    scores = [update.score for update in engine.publish(fire(1, 5))]
    assert scores == pytest.approx([math.sqrt(0.5), 0.5])


def test_on_the_sphere_distance_is_straight_through_the_earth() -> None:
    engine = Engine(TopK(5, alpha=1))
    engine.subscribe(Subscription("pole", ["fire"], region=Point(0, 90)))
    scores = [update.score for update in engine.publish(
        Message(1, "fire", place=Point(77, 90)),
        Message(2, "fire", place=Point(180, 0)),
        Message(3, "fire", place=Point(3, -90)),
    )]  # fmt: skip
    assert scores == pytest.approx([1, 1 - math.sqrt(0.5), 0], abs=1e-9)


def test_events_and_the_clock() -> None:
    engine = plane(10 * MINUTE, alpha=1)
    near = Point(1, 0)
    events: list[Event] = [
        Subscribe(Subscription("ann", ["fire"], region=HERE)),
        Publish(fire(1, 0, minutes=0)),
        Publish(fire(2, 1, minutes=1)),
        Publish(fire(3, 5, minutes=5)),
        Move("ann", near, NOON + 6 * MINUTE),
        Subscribe(Subscription("ben", ["fire"], region=HERE), NOON + 10 * MINUTE),
        Unsubscribe("ann", NOON + 11 * MINUTE),
        Publish(fire(4, 9, minutes=16)),
    ]
    assert said(list(engine.process(events))) == [
        "+1 ann match",
        "-1 ann move", "+2 ann move",
        "+2 ben subscribe",  # 1 has left at this time
        "-2 ann expired", "+3 ann refill",
        "-2 ben expired", "+3 ben refill",
        "-3 ben expired",
        "+4 ben match",
    ]  # fmt: skip
    assert engine.time == NOON + 16 * MINUTE
    assert said(engine.advance(NOON + 60 * MINUTE)) == ["-4 ben expired"]
    assert list(engine.advance(NOON)) == []
    assert engine.time == NOON + 60 * MINUTE
    with pytest.raises(InvalidInput, match="is not an event"):
        list(engine.process(["fire"]))  # type: ignore[list-item]


def test_a_count_window_knows_no_late_messages() -> None:
    engine = plane(2)
    engine.subscribe(Subscription(1, ["fire"], region=HERE))
    assert said(engine.publish(fire(1, minutes=5), fire(2, minutes=0), fire(3))) == [
        "+1 1 match", "-1 1 displaced", "+2 1 match", "-2 1 displaced", "+3 1 match",
    ]  # fmt: skip
    assert engine.time == NOON + 5 * MINUTE


def test_refused_events_may_be_passed_over() -> None:
    engine = plane(10 * MINUTE, k=5, alpha=1)
    late, unknown = Publish(fire(2, minutes=0)), Unsubscribe("nobody", NOON + 12 * MINUTE)
    again = Subscribe(Subscription("ann", ["rain"], region=HERE))
    events: list[Event] = [
        Subscribe(Subscription("ann", ["fire"], region=HERE)),
        Publish(fire(1, minutes=1)),
        late,
        again,
        unknown,  # the clock moves all the same
        Publish(fire(3, minutes=13)),
    ]
    refused = list[tuple[Event, EarshotError]]()
    updates = engine.process(events, on_reject=lambda event, error: refused.append((event, error)))
    assert said(list(updates)) == ["+1 ann match", "-1 ann expired", "+3 ann match"]
    assert [event for event, _ in refused] == [late, again, unknown]
    errors = [type(error) for _, error in refused]
    assert errors == [LateRow, DuplicateSubscription, UnknownSubscription]
    with pytest.raises(InvalidRow, match="is before"):
        list(engine.process([late]))
    with pytest.raises(InvalidInput, match="is not an event"):
        list(engine.process([late, "fire"], on_reject=lambda *_: None))  # type: ignore[list-item]


# ---- lateness -----------------------------------------------------------------------------------


def test_late_messages_are_refused_with_the_clock_and_the_bound() -> None:
    engine = plane(10 * MINUTE, k=9, lateness=2 * MINUTE)
    engine.subscribe(Subscription("ann", ["fire"], region=HERE))
    with pytest.raises(InvalidRow, match="field 'time': is missing, and no event before had one"):
        engine.publish(fire(0))
    batch = message_batch(
        [
            fire(0),  # no clock yet
            fire(1, minutes=0),
            fire(2, minutes=5),
            fire(3, minutes=3),  # exactly as late as allowed
            fire(4, minutes=2.5),
            fire(5),  # happens at the clock
            Message(6, "fire", place=Rectangle(0, 0, 1, 1)),
        ]
    )
    with pytest.raises(InvalidRow, match=r"a\.csv, row 10, field 'time': is missing"):
        engine.publish_batch(batch, source="a.csv", first_row=10)
    assert (engine.n_messages, engine.time) == (0, None)
    found = engine.publish_batch(batch, on_error="reject", rows=np.arange(7) * 2)
    assert [(each.row, each.field) for each in found.rejects] == [
        (0, "time"), (8, "time"), (12, "min_x"),
    ]  # fmt: skip
    assert found.rejects[1].reason.startswith(
        "2026-05-01T12:02:30+00:00 is before 2026-05-01T12:03:00+00:00: the clock is at "
        "2026-05-01T12:05:00+00:00, and a message may be late by 0:02:00"
    )
    assert (found.n_rows, late_of(found)) == (4, 2)
    assert ids_of(engine, "ann") == [5, 2, 3, 1]  # of equal score, the latest is best
    assert said(engine.advance(NOON + 13 * MINUTE)) == ["-1 ann expired", "-3 ann expired"]


def test_what_the_window_has_left_behind_is_late_too() -> None:
    engine = plane(MINUTE, lateness=5 * MINUTE)
    found = engine.publish_batch(
        message_batch([fire(1, minutes=3), fire(2, minutes=2), fire(3, minutes=2.1)]),
        on_error="reject",
    )
    (error,) = found.rejects
    assert error.row == 1
    assert error.reason == (
        "2026-05-01T12:02:00+00:00 is not after 2026-05-01T12:02:00+00:00, where the window of "
        "2026-05-01T12:03:00+00:00 begins"
    )


def test_refused_messages_are_not_counted() -> None:
    engine = plane(MINUTE)
    engine.publish_batch(message_batch([fire(1, minutes=3), fire(2, minutes=2)]), on_error="reject")
    assert engine.vocabulary.frequencies.tolist() == [1, 1]


# ---- batches ------------------------------------------------------------------------------------


def test_updates_as_a_table() -> None:
    engine = plane(2)
    engine.subscribe(Subscription(7, ["fire"], region=HERE))
    found = engine.publish_batch(message_batch([fire("a"), fire("b"), fire("c")]))
    assert isinstance(found, Updates)
    table = found.table()
    assert table.schema == updates_schema(pa.large_string(), pa.int64())
    assert [Update(**row) for row in table.to_pylist()] == list(found)
    assert said(list(found))[1:3] == ["-a 7 displaced", "+b 7 match"]
    assert len(found) == len(table) == 5
    none = engine.publish_batch(message_batch([]))
    assert (len(none), none.table().num_rows, list(none)) == (0, 0, [])


def test_results_of_many() -> None:
    engine = plane(9, k=2, alpha=1)
    assert engine.results_table().num_rows == 0
    for name in ("ann", "ben", "cho"):
        engine.subscribe(Subscription(name, ["fire"], region=HERE))
    engine.publish(fire(1, 1), fire(2, 2), fire(3, 3))
    engine.unsubscribe("ben")
    assert engine.results_table().to_pylist() == [
        {"subscription_id": name, "rank": rank, "message_id": rank, "score": 1 - rank / 10}
        for name in ("ann", "cho")
        for rank in (1, 2)
    ]
    chosen = engine.results_table(pa.array(["cho"]))
    assert chosen["subscription_id"].to_pylist() == ["cho", "cho"]


def test_all_or_nothing_and_what_can_be_done() -> None:
    engine = plane(9)
    engine.subscribe(Subscription("ann", ["fire"], region=HERE))
    engine.publish(fire(1))
    batch = subscription_batch(
        [
            Subscription("ben", ["fire"], region=HERE),
            Subscription("box", ["fire"], region=Rectangle(0, 0, 1, 1)),
            Subscription("ann", ["fire"], region=HERE),
            Subscription("cho", ["rain"], region=Everywhere()),
        ]
    )
    with pytest.raises(InvalidRow, match="row 1"):
        engine.subscribe_batch(batch)
    assert len(engine) == 1
    done = engine.subscribe_batch(batch, source="s.csv", on_error="reject")
    assert [error.row for error in done.rejects] == [1, 2, 3]
    assert (done.n_rows, said(list(done))) == (1, ["+1 ben subscribe"])
    with pytest.raises(DuplicateSubscription, match="'ben' exists already"):
        engine.subscribe(Subscription("ben", ["fire"], region=HERE))
    with pytest.raises(InvalidInput, match="kind"):
        engine.subscribe(Subscription(5, ["fire"], region=HERE))

    moves = subscription_batch(
        [
            Subscription("ben", ["x"], region=Point(3, 3)),
            Subscription("nobody", ["x"], region=HERE),
            Subscription("ann", ["x"], region=Circle(3, 3, 1)),
        ]
    )
    with pytest.raises(UnknownSubscription, match="row 1, field 'id': no subscription 'nobody'"):
        engine.move_batch(moves)
    moved = engine.move_batch(moves, on_error="reject")
    assert [(error.row, error.field) for error in moved.rejects] == [(1, "id"), (2, "radius")]
    assert moved.n_rows == 1
    with pytest.raises(InvalidRow, match="no place"):
        engine.move("ann", Everywhere())

    with pytest.raises(UnknownSubscription):
        engine.unsubscribe("ann", "nobody")
    with pytest.raises(UnknownSubscription, match="no subscription 'ann'"):
        engine.unsubscribe("ann", "ann")
    assert len(engine) == 2
    (error,) = engine.unsubscribe_batch(id_array(["ann", "nobody"]), on_error="reject").rejects
    assert (error.row, error.reason) == (1, "no subscription 'nobody'")
    assert engine.contains_batch(id_array(["ann", "ben"])).tolist() == [False, True]

    strangers = engine.unsubscribe_batch(id_array([1, 2]), on_error="reject").rejects
    assert [each.reason for each in strangers] == ["no subscription 1", "no subscription 2"]
    moved = engine.move_batch(
        subscription_batch([Subscription(1, ["x"], region=HERE)]), on_error="reject"
    )
    assert [each.reason for each in moved.rejects] == ["no subscription 1"]
    twice = subscription_batch([Subscription("ben", ["x"], region=Point(n, 0)) for n in (1, 2)])
    (error,) = engine.move_batch(twice, on_error="reject").rejects
    assert (error.row, error.reason) == (1, "id 'ben' was already used, 1 row before")
    with pytest.raises(InvalidRow, match="already used"):
        engine.move_batch(twice)
    engine.subscribe(Subscription("cho", ["fire"], region=HERE))
    rejects = engine.unsubscribe_batch(
        id_array(["cho", "ben", "cho", "nobody", "ben"]), on_error="reject"
    ).rejects
    assert [(each.row, each.reason) for each in rejects] == [
        (2, "no subscription 'cho'"), (3, "no subscription 'nobody'"), (4, "no subscription 'ben'"),
    ]  # fmt: skip
    assert len(engine) == 0
    with pytest.raises(InvalidParameter, match="on_error is 'drop'"):
        engine.publish_batch(message_batch([fire(1)]), on_error="drop")  # type: ignore[arg-type]


def test_ids_of_messages_are_of_one_kind() -> None:
    engine = plane(9)
    engine.publish(fire("a"))
    with pytest.raises(InvalidInput, match="kind integer, those before are of kind string"):
        engine.publish(fire(1))
    assert engine.n_messages == 1


@pytest.mark.parametrize("kind", ["integer", "string"])
@pytest.mark.parametrize("short_run", [1, 50])
def test_ids_of_a_window_follow_it(
    kind: str, short_run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("earshot.engine.message_ids._SHORT_RUN", short_run)
    draw = random.Random(1)
    ids, names, first = MessageIds(), list[Id](), 0
    for _ in range(200):
        n = draw.choice([0, 1, 1, 2, 30])
        numbers = range(len(names), len(names) + n)
        new: list[Id] = [k * 3 if kind == "integer" else f"m{k * 3}" for k in numbers]
        names += new
        ids.append(id_array(new))
        first = max(first, len(names) - 100)
        ids.forget_before(first)
        asked = [draw.randrange(first, len(names)) for _ in range(5 * (len(names) > first))]
        assert ids.ids_of(np.array(asked, np.int64)).to_pylist() == [names[at] for at in asked]
        assert len(ids) == len(names) - first
        assert ids.nbytes < 10_000
    again = MessageIds(ids.kind, ids.next, ids.arrays)
    last = np.arange(first, len(names))
    assert again.ids_of(last).to_pylist() == ids.ids_of(last).to_pylist() == names[first:]


# ---- random histories ---------------------------------------------------------------------------


def random_message(draw: random.Random, number: int, minute: float) -> Message:
    words = draw.choices(["fire", "smoke", "rain", "bus"], k=draw.randrange(4))
    time = draw.choice([None, NOON + (minute + draw.choice([0, 0, -1, -3])) * MINUTE])
    place = Point(draw.randrange(4), draw.randrange(3))
    return Message(f"m{number}", " ".join(words), place=place, time=time)


def random_subscription(draw: random.Random, number: int, minute: float) -> Subscription:
    return Subscription(
        number,
        draw.sample(["fire", "smoke", "rain", "bus"], k=draw.choice([1, 2])),
        region=Point(draw.randrange(4), draw.randrange(3)),
        expires=draw.choice([None, None, NOON + (minute + draw.randrange(-1, 8)) * MINUTE]),
        k=draw.choice([None, 1, 3]),
        alpha=draw.choice([None, 0, 1]),
    )


@pytest.mark.parametrize("window", [5, 4 * MINUTE], ids=["count", "time"])
def test_a_batch_is_its_messages_one_by_one(window: int | timedelta, tmp_path: Path) -> None:
    """Also when subscriptions end within it, when messages are late, and after saving."""
    draw = random.Random(4)
    many, single = (plane(window, k=2, lateness=MINUTE) for _ in range(2))
    n_updates = n_rejects = minute = n_ended = 0
    for turn in range(25):
        new = [random_subscription(draw, 100 * turn + n, minute) for n in range(draw.randrange(4))]
        assert list(single.subscribe(*new)) == list(many.subscribe(*new))
        messages = [random_message(draw, 100 * turn + n, minute + n / 4) for n in range(7)]
        minute += 2
        found = many.publish_batch(message_batch(messages), on_error="reject")
        updates, late = list[Update](), list[tuple[int, str]]()
        for row, message in enumerate(messages):
            try:
                updates += single.publish(message)
            except InvalidRow as error:
                late.append((row, error.reason))
        assert list(found) == updates
        assert [(each.row, each.reason) for each in found.rejects] == late
        assert late_of(found) == len(late)
        n_updates, n_rejects = n_updates + len(updates), n_rejects + len(late)
        assert len(many) == len(single)
        n_ended += len(new)
        live = [slot for slot in range(100 * turn) if slot in many]
        if live and draw.random() < 0.5:
            chosen = draw.choice(live)
            if draw.random() < 0.5:
                many.unsubscribe(chosen)
                single.unsubscribe(chosen)
            else:
                assert list(many.move(chosen, Point(1, 1))) == list(
                    single.move(chosen, Point(1, 1))
                )
        if turn % 10 == 5:
            assert list(many.reweigh()) == list(single.reweigh())
            many.save(tmp_path / str(turn))
            many = Engine.open(tmp_path / str(turn))
        assert many.results_table() == single.results_table()
        assert many.time == single.time
        assert many.next_expiry == single.next_expiry
    assert n_updates > 100
    assert n_ended > len(many)
    assert (n_rejects > 10) == (window != 5)


# ---- subscriptions that end ---------------------------------------------------------------------


def test_subscriptions_end_before_messages_come_and_go() -> None:
    engine = plane(5 * MINUTE, k=2)
    engine.subscribe(
        Subscription("stays", ["fire"], region=HERE),
        Subscription("ends", ["fire"], region=HERE, expires=NOON + 3 * MINUTE),
    )
    assert engine.next_expiry == NOON + 3 * MINUTE
    found = engine.publish_batch(
        message_batch([fire(1, minutes=0), fire(2, minutes=2), fire(3, minutes=3)])
    )
    assert said(list(found)) == [
        "+1 stays match", "+1 ends match", "+2 stays match", "+2 ends match",
        "-1 stays displaced", "+3 stays match",
    ]  # fmt: skip
    assert "ends" not in engine
    assert engine.next_expiry is None
    over = Subscription("over", ["fire"], region=HERE, expires=NOON)
    assert list(engine.subscribe(over)) == []
    assert len(engine) == 1
    assert engine.subscribe(Subscription("over", ["fire"], region=HERE)) != []


def test_many_subscriptions_come_and_end() -> None:
    """Those that are left keep their names when the slots are numbered anew."""
    engine = plane(9, alpha=1)
    ends = [NOON, NOON + MINUTE, NOON + 2 * MINUTE, None]
    places = [Point(n % 10, 0) for n in range(2_000)]
    engine.subscribe_batch(
        subscription_batch(
            [
                Subscription(n, ["fire"], region=place, expires=ends[n % 4])
                for n, place in enumerate(places)
            ]
        )
    )
    found = engine.publish_batch(
        message_batch([fire("a"), fire("b", 1, minutes=0), fire("c", 9, minutes=1)])
    )
    by_message: dict[Id, set[Id]] = {}
    for update in list(found):
        by_message.setdefault(update.message_id, set()).add(update.subscription_id)
    assert by_message["a"] == set(range(2_000))
    assert by_message["b"] == {n for n in range(2_000) if n % 4 and n % 10 > 0}
    # From 5 both are equally far, and the newer is better.
    assert by_message["c"] == {n for n in range(2_000) if n % 4 > 1 and n % 10 >= 5}
    assert len(engine) == 1_000
    engine.advance(NOON + 2 * MINUTE)
    engine.unsubscribe(3, 7)
    left = [n for n in range(2_000) if n % 4 == 3 and n not in (3, 7)]
    assert engine.results_table()["subscription_id"].to_pylist() == left
    assert engine.next_expiry is None
    engine.subscribe(Subscription(3, ["fire"], region=HERE, expires=NOON + 3 * MINUTE))
    assert ids_of(engine, 3) == ["a"]
    assert said(engine.publish(fire("d", -5)))[:2] == []
    engine.advance(NOON + 3 * MINUTE)
    assert 3 not in engine
    assert ids_of(engine, 19) == ["c"]


# ---- weights ------------------------------------------------------------------------------------


def test_words_weigh_by_the_messages_counted() -> None:
    engine = plane(9, k=5, alpha=0)
    engine.subscribe(Subscription("ann", ["fire", "smoke"], region=HERE))
    learned = [Message(n, "fire", place=HERE) for n in range(3)]
    learned.append(Message(4, "smoke", place=HERE))
    assert engine.learn(message_batch(learned)).rejects == []
    assert engine.n_messages == 0
    first, second = engine.publish(
        Message(5, "fire", place=HERE), Message(6, "smoke smoke rain", place=HERE)
    )
    assert first.score == pytest.approx(math.sqrt(1 / 2))
    assert second.score == pytest.approx(2 / math.sqrt(5) * math.sqrt(1 / 2))
    assert list(engine.reweigh()) == []  # the scores change, the results do not
    fire_weight, smoke, rain = (math.log(7 / (1 + n)) + 1 for n in (4, 2, 1))
    norm = math.hypot(fire_weight, smoke)
    expected = {
        5: fire_weight / norm,
        6: smoke / norm * 2 * smoke / math.hypot(2 * smoke, rain),
    }
    found = {each.message_id: each.score for each in engine.results("ann")}
    assert found == pytest.approx(expected, abs=1e-4)
    bad = message_batch([Message(7, "fire", place=Rectangle(0, 0, 1, 1))])
    with pytest.raises(InvalidRow, match="a box"):
        engine.learn(bad)
    assert [each.row for each in engine.learn(bad, on_error="reject").rejects] == [0]


def test_reweighing_may_change_results() -> None:
    engine = plane(9, alpha=0)
    engine.subscribe(Subscription("ann", ["fire", "smoke"], region=HERE))
    engine.publish(Message(1, "smoke", place=HERE), Message(2, "fire", place=HERE))
    assert ids_of(engine, "ann") == [2]
    engine.learn(message_batch([Message(n, "fire", place=HERE) for n in range(5)]))
    assert said(engine.reweigh()) == ["-2 ann reweigh", "+1 ann reweigh"]
    assert engine.reweigh().table().num_rows == 0


def test_what_was_learned_may_be_forgotten() -> None:
    engine = plane(9, k=5, alpha=0)
    engine.subscribe(Subscription("ann", ["fire", "smoke"], region=HERE))
    batch = message_batch([Message(1, "fire", place=HERE), Message(2, "rain fire", place=HERE)])
    engine.learn(batch)
    engine.reweigh(forget=True)
    assert engine.vocabulary.frequencies.tolist() == [0, 0, 0, 0]
    found = [update.score for update in list(engine.publish_batch(batch))]
    words, counts = engine.vocabulary, engine.vocabulary.frequencies
    assert dict(zip(words.tokens([1, 2, 3]), counts[1:4].tolist(), strict=True)) == {
        "fire": 2, "smoke": 0, "rain": 1,
    }  # fmt: skip
    assert counts[0] == 2
    fire_weight, smoke = 1, math.log(3) + 1  # the weights are those that were learned
    assert found[0] == pytest.approx(fire_weight / math.hypot(fire_weight, smoke), abs=1e-4)


def test_explain() -> None:
    engine = plane(9, alpha=0.25)
    engine.subscribe(Subscription("ann", ["fire", "smoke"], region=HERE))
    message = Message("m", "Fire and fire", place=Point(3, 4))
    found = engine.explain(message, "ann")
    (update,) = engine.publish(message)
    assert found.matched
    assert found.score == update.score
    assert str(found) == (
        "Message 'm' is delivered to subscription 'ann':\n"
        "  - place 0.5: the message's point (3, 4) is 5 away, of 10\n"
        "  - text 0.632456: the text has 'fire' (0.707107 * 0.894427), the text lacks 'smoke'\n"
        "  - score 0.599342 = 0.25 * 0.5 + 0.75 * 0.632456\n"
        "  - ✓ 0 of 1 places are taken"
    )
    worse = engine.explain(Message("n", "fire and more", place=Point(9, 0)), "ann")
    assert not worse.matched
    assert worse.reasons[-1].startswith("✗ it is below the last of the best 1, which has 0.599")
    other = engine.explain(Message("n", "rain", place=HERE), "ann")
    assert (other.matched, other.score) == (False, None)
    assert other.reasons[1] == "✗ the text lacks 'fire', 'smoke'"
    assert engine.explain(message, "ann").matched  # of equal score, the newer is better
    assert "more" not in engine.vocabulary.tokens(range(len(engine.vocabulary)))


def test_explain_what_leaves_first() -> None:
    engine = plane(2, alpha=1)
    engine.subscribe(
        Subscription("one", ["fire"], region=HERE),
        Subscription("two", ["fire"], region=HERE, k=2),
        Subscription("many", ["fire"], region=HERE, k=3),
    )
    engine.publish(fire(1, 1), fire(2, 5))
    new = fire(3, 4)
    reasons = {each: engine.explain(new, each).reasons[-1] for each in ("one", "two", "many")}
    assert reasons == {
        "one": "✗ it is below the last of the best 1, which has 0.9; one of these leaves before it "
        "arrives, and it enters only if no better message of the window takes that place",
        "two": "✓ it reaches the last of the best 2, which has 0.5",
        "many": "✓ 1 of 3 places are taken",
    }
    worse = engine.explain(fire(3, 6), "two")
    assert not worse.matched
    assert "one of these leaves" in worse.reasons[-1]
    engine.publish(fire(3, 2), Message(4, "rain", place=HERE))  # the oldest is 3 now
    assert "one of these leaves" in engine.explain(fire(5, 9), "one").reasons[-1]
    engine.publish(fire(5, 2), fire(6, 1))
    engine.publish(fire(7, 3))
    assert engine.explain(fire(8, 3), "one").reasons[-1].endswith("takes that place")


def test_explain_in_a_window_of_time() -> None:
    engine = plane(10 * MINUTE, alpha=1, lateness=5 * MINUTE)
    engine.subscribe(Subscription("ann", ["fire"], region=HERE))
    engine.publish(fire(1, 2, minutes=0))
    outcomes = {
        (distance, minutes): (found.matched, found.reasons[-1].split(", which has 0.8")[1])
        for distance, minutes in ((2, 0), (2, -1), (1, -1), (3, 0), (3, 20))
        for found in [engine.explain(fire(2, distance, minutes=minutes), "ann")]
    }
    assert outcomes == {
        (2, 0): (True, ""),
        (2, -1): (False, ", and enters only if it is the more recent"),
        (1, -1): (True, ""),
        (3, 0): (False, ""),
        (3, 20): (False, " now; what leaves with its time may make room"),
    }


def test_explain_what_is_late_or_over() -> None:
    engine = plane(10 * MINUTE)
    ends = NOON + MINUTE
    engine.subscribe(Subscription("ann", ["fire"], region=HERE, expires=ends))
    engine.advance(NOON)
    assert engine.explain(fire(1), "ann").matched
    late = engine.explain(fire(1, minutes=-1), "ann")
    assert not late.matched
    assert "is before 2026-05-01T12:00:00+00:00" in late.reasons[-1]
    over = engine.explain(fire(1, minutes=1), "ann")
    assert not over.matched
    assert over.reasons[-1] == "✗ the subscription expired at 2026-05-01T12:01:00+00:00"


# ---- saving -------------------------------------------------------------------------------------


def test_an_opened_engine_goes_on(tmp_path: Path) -> None:
    topk = TopK(10 * MINUTE, 2, 0.5, 1e6, 2 * MINUTE)
    engine = Engine(topk, analyzer=Analyzer(max_text_bytes=500))
    engine.subscribe(
        Subscription("ann", ["fire"], region=HERE),
        Subscription("gone", ["fire"], region=HERE),
        Subscription("ends", ["fire"], region=HERE, expires=NOON + 7 * MINUTE),
    )
    engine.unsubscribe("gone")
    engine.publish(fire("é", minutes=0), fire("b", 0.5, minutes=3), fire("c", 1, minutes=4))
    engine.reweigh()
    engine.save(tmp_path / "saved")
    opened = Engine.open(tmp_path / "saved")
    opened.warm_up()
    assert (opened.semantics, opened.space, opened.analyzer) == (topk, "lonlat", engine.analyzer)
    assert (opened.id_type, opened.message_id_type) == (pa.large_string(), pa.large_string())
    later = [
        fire("d", 1, minutes=2),
        Message("e", "fire fire smoke", place=HERE, time=NOON + 7 * MINUTE),
        fire("f", minutes=13),
    ]
    expected = list(engine.publish(*later))
    assert {"-é ann expired", "-b ann expired", "+f ann match"} <= set(said(expected))
    assert not any(update.subscription_id == "ends" for update in expected[-3:])
    assert list(opened.publish(*later)) == expected
    assert list(opened.reweigh()) == list(engine.reweigh())
    with pytest.raises(InvalidInput, match="kind"):
        opened.publish(fire(1, minutes=13))


@pytest.mark.parametrize("window", [5, MINUTE], ids=["count", "time"])
def test_warming_up_does_what_is_rare(
    window: int | timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    compacted, advance = Monitor.compacted, Monitor.advance
    done = list[str]()

    def compacting(monitor: Monitor) -> Any:
        old_slots = compacted(monitor)
        if old_slots is not None:
            done.append("compacted")
        return old_slots

    def advancing(monitor: Monitor, clock_us: int) -> Any:
        changes = advance(monitor, clock_us)
        if len(changes.signs):
            done.append("advanced")
        return changes

    monkeypatch.setattr(Monitor, "compacted", compacting)
    monkeypatch.setattr(Monitor, "advance", advancing)
    engine = plane(window)
    engine.warm_up()
    assert done == (["compacted"] if window == 5 else ["compacted", "advanced"])
    assert (len(engine), engine.n_messages, engine.time) == (0, 0, None)


def test_engines_are_opened_as_what_they_are(tmp_path: Path) -> None:
    for semantics in (Boolean(), Ranking(0.25, 0.5), TopK(5)):
        name = type(semantics).__name__
        Engine(semantics).save(tmp_path / name)
        assert Engine.open(tmp_path / name).semantics == semantics
    with pytest.raises(SavedIndexError, match="not a saved index"):
        Engine.open(tmp_path)


# ---- interrupted calls --------------------------------------------------------------------------


CALLS: dict[str, Callable[[Engine], object]] = {
    "publish": lambda engine: engine.publish(fire("b", minutes=1)),
    "subscribe": lambda engine: engine.subscribe(Subscription("ben", ["fire"], region=HERE)),
    "move": lambda engine: engine.move("ann", Point(1, 1)),
    "unsubscribe": lambda engine: engine.unsubscribe("ann"),
    "advance": lambda engine: engine.advance(NOON + 60 * MINUTE),
    "reweigh": lambda engine: engine.reweigh(),
}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("name", CALLS)
def test_an_interrupted_engine_refuses_to_go_on(
    name: str,
    error: type[BaseException],
    after: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = plane(10 * MINUTE)
    engine.subscribe(Subscription("ann", ["fire"], region=HERE))
    engine.publish(fire("a", minutes=0))
    whole = getattr(Monitor, name)

    def interrupted(*arguments: Any) -> None:
        if after:
            whole(*arguments)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Monitor, name, interrupted)
        with pytest.raises(error):
            CALLS[name](engine)
    calls: list[Callable[[Engine], object]] = [
        *CALLS.values(),
        len,
        lambda engine: engine.results("ann"),
        lambda engine: engine.save(tmp_path / "saved"),
    ]
    for call in calls:
        with pytest.raises(EarshotError, match="an earlier call was interrupted"):
            call(engine)
    assert not (tmp_path / "saved").exists()


def test_an_interrupt_while_words_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = plane(9)

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Analyzer, "count", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.publish(fire(1))
    with pytest.raises(EarshotError, match="interrupted"):
        engine.publish(fire(1))


def test_errors_of_the_caller_leave_the_engine_as_it_was() -> None:
    engine = plane(9)
    for wrong in (pa.table({"text": ["a"]}), pa.table({"id": [1], "x": ["a"]}), "no batch"):
        for call in (engine.publish_batch, engine.subscribe_batch, engine.learn, engine.move_batch):
            with pytest.raises((InvalidInput, AttributeError)):
                call(wrong)
    engine.subscribe(Subscription("ann", ["fire"], region=HERE))
    assert said(engine.publish(fire(1))) == ["+1 ann match"]


def test_updates_keep_their_ids_when_the_engine_goes_on() -> None:
    engine = plane(9)
    engine.subscribe(Subscription("ann", ["fire"], region=HERE))
    found = engine.publish_batch(message_batch([fire(1)]))
    engine.unsubscribe("ann")
    names = [f"s{n}" for n in range(3_000)]
    engine.subscribe(*(Subscription(name, ["rain"], region=HERE) for name in names))
    engine.unsubscribe(*names[1:])
    assert said(list(found)) == ["+1 ann match"]


# ---- settings -----------------------------------------------------------------------------------


def test_settings_are_checked() -> None:
    with pytest.raises(
        InvalidParameter, match=r"5 is no semantics; expected one of Boolean, Ranking, TopK"
    ):
        Engine(5)
    with pytest.raises(InvalidParameter, match="space is 'moon'"):
        Engine(TopK(5), space="moon")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="max_distance is not given; a plane has no end"):
        Engine(TopK(5), space="planar")
    with pytest.raises(InvalidParameter, match="n_threads is 0; expected 1 or more"):
        Engine(TopK(5), n_threads=0)


def test_memory_is_told_by_part() -> None:
    engine = plane(9)
    engine.subscribe(Subscription("ann", ["fire"], region=HERE, expires=NOON))
    engine.publish(fire(1))
    memory = engine.memory()
    assert {"vocabulary", "subscription_ids", "message_ids", "expiry"} <= memory.keys()
    assert all(n_bytes > 0 for n_bytes in memory.values())
