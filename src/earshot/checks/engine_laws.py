"""The laws of engines: one small ``check_*`` function each, the same for every semantics.

A semantics and a structure prove themselves with::

    subject = EngineSubject(Ranking(0.5, 0.6), "my_structure")
    for check in engine_laws_for(subject):
        check(subject)

Each check raises ``AssertionError`` when its law is broken. Updates are compared with the oracle of
the semantics (:mod:`earshot.checks.engine_oracle`).
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeAlias

from earshot.checks.engine_oracle import Line, oracle_of
from earshot.checks.stories import EPOCH, SECOND, Author, Call
from earshot.checks.subjects import SCORE_ERROR, assert_raises
from earshot.engine.engine import Engine
from earshot.errors import EarshotError, InvalidInput, UnknownSubscription
from earshot.model.arrays import Space
from earshot.model.batches import id_array, message_batch, region_batch, subscription_batch
from earshot.model.events import Event, Move, Publish, Subscribe, Unsubscribe
from earshot.model.messages import Message
from earshot.model.moving import Moving
from earshot.model.regions import Point
from earshot.model.subscriptions import Subscription
from earshot.semantics import matcher_type

SPACES: tuple[Space, ...] = ("lonlat", "planar")


class EngineSubject(NamedTuple):
    """A semantics, given by its settings, over a structure."""

    settings: Any
    structure: str

    def __str__(self) -> str:
        return f"{self.structure}/{matcher_type(self.settings).name}"

    def engine(self, space: Space = "lonlat", **options: Any) -> Engine:
        """Return a new engine."""
        return Engine(self.settings, structure=self.structure, space=space, **options)

    def author(self, space: Space, seed: int = 1) -> Author:
        """Return who tells a story for this semantics."""
        return Author(self.settings, space, Random(seed))

    def story(self, space: Space, seed: int = 1) -> list[Call]:
        """Return the calls of a story."""
        return self.author(space, seed).story()

    def told(self, space: Space, seed: int = 1) -> list[tuple[Call, list[Line]]]:
        """Return each call of a story with the oracle's updates."""
        return _told(self.settings, space, seed)

    @property
    def keeps_results(self) -> bool:
        """Whether subscriptions hold results."""
        return matcher_type(self.settings).keeps_results


EngineLaw: TypeAlias = Callable[[EngineSubject], None]


@lru_cache(maxsize=64)  # every structure is asked for the same
def _told(settings: Any, space: Space, seed: int) -> list[tuple[Call, list[Line]]]:
    oracle, calls = oracle_of(settings, space), Author(settings, space, Random(seed)).story()
    return [(call, getattr(oracle, call.method)(*call.arguments)) for call in calls]


def engine_laws_for(subject: EngineSubject) -> list[EngineLaw]:
    """Return the laws that an engine of this kind must obey."""
    excluded = _OF_MATCHES if subject.keeps_results else _OF_RESULTS
    return [
        law for name, law in globals().items() if name.startswith("check_") and law not in excluded
    ]


# ---- updates ------------------------------------------------------------------------------------


def check_equals_the_oracle(subject: EngineSubject) -> None:
    """Every call of a story gives the oracle's updates."""
    for space in SPACES:
        told = subject.told(space)
        assert sum(len(expected) for _, expected in told) > 50, "this proves little"
        engine = subject.engine(space)
        for call, expected in told:
            assert_updates(run(engine, call), expected, subject, str(call))


def check_batches_equal_one_by_one(subject: EngineSubject) -> None:
    """Batches give what their rows give one by one, with one thread and with several."""
    engines = [subject.engine("planar", n_threads=n) for n in (1, 3)]
    single = subject.engine("planar")
    for call, expected in subject.told("planar", 3):
        for engine in engines:
            assert_updates(run_batch(engine, call), expected, subject, str(call))
        found = [each for part in parts_of(call) for each in run(single, part)]
        assert_updates(found, expected, subject, str(call))


def check_processing_equals_single_events(subject: EngineSubject) -> None:
    """A list of events, which is taken in runs, gives what the events give one by one.

    What is wrong in the middle of a run is refused, or raised, as by itself.
    """
    settings, n_updates = subject.settings, 0
    for space in SPACES:
        events = _events(subject.author(space, 8), settings)
        together, single = subject.engine(space), subject.engine(space)
        found, refused = _processed(together, events)
        expected, alone = _processed(single, iter(events))
        assert_updates(found, expected, subject, f"{space}, {len(events)} events")
        assert refused == alone
        assert len(refused) >= 3
        assert together.time == single.time
        n_updates += len(expected)
        engine = subject.engine(space)
        before = lines_of(engine.process(events[: events.index(refused[0])]))
        engine, told = subject.engine(space), list[Any]()
        try:
            for update in engine.process(events):
                told.append(update)
        except (InvalidInput, UnknownSubscription):
            pass
        else:
            raise AssertionError("what is wrong is raised")
        assert_updates(told, before, subject, "before what is raised")
    assert n_updates > 50, "this proves little"


def _processed(engine: Engine, events: Iterable[Event]) -> tuple[list[Line], list[Event]]:
    """Return the updates of events, and those that are refused."""
    refused: list[Event] = []
    found = engine.process(events, on_reject=lambda event, _: refused.append(event))
    return lines_of(found), refused


def _events(author: Author, settings: Any) -> list[Event]:
    """Return runs of like events, and of messages and moves, some of them wrong."""
    random = author.random
    events: list[Event] = [Subscribe(each) for each in author.subscriptions(24)]
    events += [Publish(each) for each in author.messages(12)]
    for _ in range(4):
        run: list[Event] = [Publish(each) for each in author.messages(8)]
        for key in random.sample(list(author.live), 12):
            region = author.point() if author.is_point else author.rectangle()
            if isinstance(settings, Moving):
                run.append(Move(*author.report(key, region).arguments))
            else:
                run.append(Move(key, region))
        if isinstance(settings, Moving):
            run.sort(key=lambda event: event.time or EPOCH)
        events += run
        new = author.subscriptions(9)
        events += [Subscribe(each, author.clock) for each in new]
        events.append(Subscribe(new[3]))
        gone = [each.id for each in new]
        events += [Unsubscribe(each, author.clock) for each in [*gone, gone[2]]]
        author.live = {key: each for key, each in author.live.items() if key not in gone}
    return events


def check_updates_agree_with_themselves(subject: EngineSubject) -> None:
    """Rows, ids, scores, table and offsets of updates are different views of one list."""
    engine = subject.engine("planar")
    for call in subject.story("planar"):
        updates = run_batch(engine, call)
        lines = lines_of(updates)
        assert len(updates) == len(lines) == updates.table().num_rows
        assert lines == [tuple(row.values()) for row in updates.table().to_pylist()]
        assert updates.message_ids.to_pylist() == [line[0] for line in lines]
        assert updates.subscription_ids.to_pylist() == [line[1] for line in lines]
        assert (updates.scores is None) == (not engine.matcher.has_scores)
        if updates.scores is not None:
            assert updates.scores.tolist() == [line[3] for line in lines]
        assert updates.offsets[-1] == len(lines)
        assert updates.rejects == []
        if call.method in ("subscribe", "publish"):
            assert updates.event_ids.to_pylist() == [each.id for each in call.arguments]
            assert updates.n_rows == len(call.arguments) == len(updates.offsets) - 1
            times = [getattr(each, "time", None) or EPOCH for each in call.arguments]
            assert call.method == "subscribe" or (updates.latest or EPOCH) == max(times)


def check_order_of_subscriptions_is_irrelevant(subject: EngineSubject) -> None:
    """Whoever came first, a message reaches the same."""
    author = subject.author("lonlat", 4)
    subscriptions, messages = author.subscriptions(60), author.messages(30)
    engine, other = subject.engine(), subject.engine()
    engine.subscribe(*subscriptions)
    other.subscribe(*Random(4).sample(subscriptions, 60))
    assert_updates(other.publish(*messages), lines_of(engine.publish(*messages)), subject)


def check_move_is_unsubscribe_and_subscribe(subject: EngineSubject) -> None:
    """A moved subscription gets what one gets that leaves and comes again elsewhere."""
    author = subject.author("planar", 5)
    author.is_plain = True  # who leaves and comes again has not dwelled
    subscriptions, messages = author.subscriptions(30), author.messages(40)
    moved, again = subject.engine("planar"), subject.engine("planar")
    for engine in (moved, again):
        engine.subscribe(*subscriptions)
        engine.publish(*messages[:20])
    for each in subscriptions[::2]:
        elsewhere = replace(
            each, region=author.rectangle() if not author.is_point else author.point()
        )
        moved.move(each.id, elsewhere.region)
        again.unsubscribe(each.id)
        again.subscribe(elsewhere)
    for message in messages[20:]:
        found, expected = lines_of(moved.publish(message)), lines_of(again.publish(message))
        if subject.keeps_results:  # slots, and so the order, are others
            found, expected = sorted(found, key=str), sorted(expected, key=str)
            assert found == expected
        assert_updates(found, expected, subject)
    if subject.keeps_results:
        for each in subscriptions:
            assert moved.results(each.id) == again.results(each.id)


def check_inputs_are_untouched(subject: EngineSubject) -> None:
    """No call writes to the batch that it is given."""
    author = subject.author("lonlat", 6)
    subscriptions, messages = author.subscriptions(20), author.messages(20)
    batches = subscription_batch(subscriptions), message_batch(messages)
    ids = id_array([each.id for each in subscriptions])
    moves = _regions((key, author.point()) for key in author.live)
    before = pickle.dumps((batches, ids, moves))
    engine = subject.engine(n_threads=2)
    engine.subscribe_batch(batches[0])
    engine.publish_batch(batches[1])
    engine.move_batch(moves)
    engine.unsubscribe_batch(ids)
    assert pickle.dumps((batches, ids, moves)) == before


def check_results_are_the_fold_of_updates(subject: EngineSubject) -> None:
    """What came and did not go is what a subscription holds, best first, as the oracle says."""
    engine, oracle = subject.engine("planar"), oracle_of(subject.settings, "planar")
    held: dict[Any, set[Any]] = {}
    for call in subject.story("planar", 7):
        getattr(oracle, call.method)(*call.arguments)
        for message_id, key, sign, *_ in lines_of(run(engine, call)):
            if oracle.live[key].leaving is not False:
                assert (message_id in held.setdefault(key, set())) == (sign == "-")
                held[key] ^= {message_id}
        for key in oracle.live:
            found, expected = engine.results(key), oracle.results(key)
            if oracle.live[key].leaving is not False:
                assert {each.message_id for each in found} == held.get(key, set())
            assert [each.message_id for each in found] == [each for each, _ in expected]
            errors = [
                abs((a.score or 0.0) - (b or 0.0))
                for a, (_, b) in zip(found, expected, strict=True)
            ]
            assert max(errors, default=0.0) <= SCORE_ERROR
        rows = engine.results_table().to_pylist()
        assert [row["subscription_id"] for row in rows] == [
            key for key in dict.fromkeys(row["subscription_id"] for row in rows)
            for _ in oracle.results(key)
        ]  # fmt: skip
        ranks = [
            [row["rank"] for row in group]
            for _, group in groupby(rows, lambda r: r["subscription_id"])
        ]
        assert all(each == list(range(1, len(each) + 1)) for each in ranks)


def check_explanations_agree_with_deliveries(subject: EngineSubject) -> None:
    """What is explained as delivered is delivered, with that score; other messages are not."""
    for space in SPACES:
        author = subject.author(space, 8)
        engine, subscriptions = subject.engine(space), author.subscriptions(10)
        engine.subscribe(*subscriptions)
        for message in author.messages(15):
            found = {each.id: engine.explain(message, each.id) for each in subscriptions}
            scores = {
                each.subscription_id: each.score
                for each in engine.publish(message)
                if (each.message_id, each.sign) == (message.id, "+")
            }
            for key, explanation in found.items():
                assert (explanation.message_id, explanation.subscription_id) == (message.id, key)
                if explanation.matched:
                    assert scores[key] == explanation.score
                elif key in scores:  # what leaves as it arrives may make room
                    assert subject.keeps_results
                    assert explanation.score is not None
                    assert " leave" in explanation.reasons[-1]


# ---- wrong rows ---------------------------------------------------------------------------------


def check_rejects_are_what_raises(subject: EngineSubject) -> None:
    """A wrong row raises and changes nothing; rejected, it is told and the others are taken."""
    author = subject.author("lonlat", 9)
    good, messages, later = author.subscriptions(10), author.messages(10), author.messages(10)
    wrong = replace(good[0], id="wrong", region=Point(0.0, 91.0))
    lost = [replace(messages[0], id=99, place=Point(181.0, 0.0))]
    engine, clean = subject.engine(), subject.engine()
    for each in (engine, clean):
        each.subscribe(*good[:3])
    rows = [*good[3:6], wrong, *good[6:], good[0], good[4]]
    nowhere = [(each.id, Point(0.0, 0.0)) for each in good[:4]]
    attempts: list[tuple[Callable[..., Any], Any, Any, list[int]]] = [
        (Engine.subscribe_batch, subscription_batch(rows), subscription_batch(good[3:]), [3, 8, 9]),
        (Engine.publish_batch, message_batch(messages[:5] + lost + messages[5:]),
         message_batch(messages), [5]),
        (Engine.move_batch, _regions([*nowhere, ("nobody", Point(0, 0)), ("s5-é", Point(0, 99))]),
         _regions(nowhere), [4, 5]),
        (Engine.unsubscribe_batch, id_array([good[1].id, "nobody", good[2].id, good[1].id]),
         id_array([good[1].id, good[2].id]), [1, 3]),
    ]  # fmt: skip
    for call, mixed, pure, bad_rows in attempts:
        before = (len(engine), engine.time, engine.n_messages)
        assert_raises(InvalidInput, call, engine, mixed)
        assert (len(engine), engine.time, engine.n_messages) == before
        found = call(engine, mixed, on_error="reject", source="file", first_row=100)
        assert [each.row for each in found.rejects] == [100 + row for row in bad_rows]
        assert all(each.source == "file" and each.reason for each in found.rejects)
        assert_updates(found, lines_of(call(clean, pure)), subject, str(call))
        numbered = call(engine, mixed.slice(bad_rows[0], 1), on_error="reject", rows=[77])
        assert [each.row for each in numbered.rejects] == [77]
        assert_raises(InvalidInput, call, engine, mixed, on_error="drop")
    assert_updates(engine.publish(*later), lines_of(clean.publish(*later)), subject)


def check_nothing_is_taken_of_what_raises(subject: EngineSubject) -> None:
    """A call that raises leaves the engine to go on as if it had not been made."""
    engine = subject.engine("planar")
    here, nowhere = Point(0, 0), Point(float("nan"), 0)
    for call, expected in subject.told("planar", 10):
        assert_updates(run(engine, call), expected, subject, str(call))
        assert_raises(UnknownSubscription, engine.unsubscribe, "nobody")
        assert_raises(UnknownSubscription, engine.move, "nobody", here)
        assert_raises(InvalidInput, engine.subscribe, Subscription(5, ["fire"], region=here))
        assert_raises(InvalidInput, engine.publish, Message(0, "fire", place=nowhere))


# ---- time ---------------------------------------------------------------------------------------


def check_expiry(subject: EngineSubject) -> None:
    """A subscription with an end gets what finds the clock before it, and its id is free then."""
    noon = EPOCH + 60 * SECOND
    for space in SPACES:
        engine = subject.engine(space)
        lunch = Subscription("lunch", ["soup"], region=Point(0, 0), expires=noon)
        engine.subscribe(lunch, replace(lunch, id="ever", expires=None))

        def reached(number: int, seconds: float, engine: Engine = engine) -> list[Any]:
            time = EPOCH + seconds * SECOND
            found = engine.publish(Message(number, "soup", place=Point(0, 0), time=time))
            return sorted(each.subscription_id for each in found if each.reason == "match")

        assert engine.next_expiry == noon
        assert reached(1, 0) == reached(2, 59.999999) == ["ever", "lunch"]
        assert reached(3, 60) == ["ever"]
        assert ("lunch" in engine, len(engine)) == (False, 1)
        assert engine.next_expiry is None
        engine.subscribe(lunch)  # over before it begins
        assert ("lunch" in engine, len(engine), engine.time) == (False, 1, noon)
        engine.subscribe(replace(lunch, expires=noon + SECOND))
        assert lines_of(engine.advance(noon)) == []
        assert "lunch" in engine
        engine.advance(noon + SECOND)
        assert "lunch" not in engine
        assert reached(4, 62) == ["ever"]


def check_expiry_in_stories(subject: EngineSubject) -> None:
    """Where subscriptions end within a batch, each message finds those that are live."""
    author = subject.author("planar", 11)
    some = [
        replace(each, expires=EPOCH + (n % 9) * SECOND)
        for n, each in enumerate(author.subscriptions(40))
    ]
    engine, oracle = subject.engine("planar"), oracle_of(subject.settings, "planar")
    assert_updates(engine.subscribe(*some), oracle.subscribe(*some), subject)
    while oracle.live:
        messages = author.messages(12)
        assert_updates(engine.publish(*messages), oracle.publish(*messages), subject)
        assert (len(engine), engine.time) == (len(oracle.live), oracle.clock)
    assert engine.next_expiry is None


# ---- the same engine in another shape -----------------------------------------------------------


def check_empty_engine(subject: EngineSubject) -> None:
    """An engine without subscriptions takes every call, saves, and opens."""
    author = subject.author("lonlat", 12)
    engine = subject.engine()
    with tempfile.TemporaryDirectory() as parent:
        engine.save(Path(parent) / "saved")
        opened = Engine.open(Path(parent) / "saved")
    for each in (engine, opened):
        assert (len(each), each.time, "s1" in each) == (0, None, False)
        assert list(each.publish()) == list(each.subscribe()) == list(each.unsubscribe()) == []
        assert lines_of(each.advance(author.clock)) == []
        assert lines_of(each.publish(*author.messages(3))) == []
        each.rebuild()
        each.warm_up()
        assert each.memory().keys() >= {"vocabulary", "subscription_ids", "expiry"}
        assert each.facts()["structure"] == subject.structure


def check_saved_goes_on(subject: EngineSubject) -> None:
    """An opened engine goes on as the saved one does, and neither touches the other."""
    engine = subject.engine("planar")
    known: list[Any] = []
    with tempfile.TemporaryDirectory() as parent:
        for number, (call, expected) in enumerate(subject.told("planar", 13)):
            assert_updates(run(engine, call), expected, subject, str(call))
            known += [each.id for each in call.arguments if call.method == "subscribe"]
            if number % 10 == 5:
                engine.save(Path(parent) / str(number))
                saved = engine
                engine = Engine.open(Path(parent) / str(number), n_threads=2)
                assert (engine.semantics, engine.structure) == (saved.semantics, subject.structure)
                assert (len(engine), engine.time) == (len(saved), saved.time)
                saved.unsubscribe(next(each for each in known if each in saved))


def check_rebuilding_changes_nothing(subject: EngineSubject) -> None:
    """Rebuilding, in the foreground whenever one likes, changes no update."""
    engine = subject.engine("planar")
    for number, (call, expected) in enumerate(subject.told("planar", 14)):
        if number % 3 == 0:
            engine.rebuild()
        assert_updates(run(engine, call), expected, subject, str(call))


def check_interrupted_changes_end_the_engine(subject: EngineSubject) -> None:
    """A change that is interrupted leaves an engine that refuses to go on, and says so."""
    calls: dict[str, Callable[[Engine], object]] = {
        "subscribe": lambda engine: engine.subscribe(
            Subscription("x", ["bus"], region=Point(0, 0))
        ),
        "unsubscribe": lambda engine: engine.unsubscribe("s1-é"),
        "move": lambda engine: engine.move("s1-é", Point(0, 0)),
        "publish": lambda engine: engine.publish(Message(0, "bus fire", place=Point(0, 0))),
    }
    for method, make in calls.items():
        for error in (KeyboardInterrupt, MemoryError):
            author = subject.author("planar", 15)
            engine = subject.engine("planar")
            engine.subscribe(*author.subscriptions(5))
            engine.publish(*author.messages(5))
            matcher = engine.matcher
            whole = getattr(matcher, method)

            def interrupted(*arguments: Any, whole: Any = whole, error: Any = error) -> None:
                whole(*arguments)
                raise error

            setattr(matcher, method, interrupted)
            assert_raises(error, make, engine)
            delattr(matcher, method)
            if method == "publish" and not subject.keeps_results:
                make(engine)  # it only matched
                continue
            with tempfile.TemporaryDirectory() as parent:
                for call in (*calls.values(), len, lambda each: each.save(Path(parent) / "saved")):
                    assert_raises(EarshotError, call, engine)
                assert not (Path(parent) / "saved").exists()


_OF_MATCHES = [check_order_of_subscriptions_is_irrelevant]
"""Laws of semantics that keep no results: where scores tie, who came first decides the order."""
_OF_RESULTS = [check_results_are_the_fold_of_updates]


# ---- how laws are checked -----------------------------------------------------------------------


def run(engine: Engine, call: Call) -> Any:
    """Make a call."""
    return getattr(engine, call.method)(*call.arguments)


def run_batch(engine: Engine, call: Call) -> Any:
    """Make a call by its batch method, where it has one."""
    match call.method:
        case "subscribe":
            return engine.subscribe_batch(subscription_batch(call.arguments))
        case "unsubscribe":
            return engine.unsubscribe_batch(id_array(call.arguments))
        case "move":
            key, region, *times = call.arguments
            has_positions = engine.matcher.form.moves_by_position
            batch = region_batch([key], [region], times, has_positions=has_positions)
            return engine.move_batch(batch)
        case "publish":
            return engine.publish_batch(message_batch(call.arguments))
    return run(engine, call)


def parts_of(call: Call) -> list[Call]:
    """Return a call of several rows as several calls."""
    if call.method in ("subscribe", "unsubscribe", "publish"):
        return [Call(call.method, (each,)) for each in call.arguments]
    return [call]


def lines_of(updates: Iterable[Any]) -> list[Line]:
    """Return updates as plain rows."""
    return [each if isinstance(each, tuple) else astuple(each) for each in updates]


def assert_updates(
    found: Any, expected: Sequence[Line], subject: EngineSubject, where: str = ""
) -> None:
    """Assert equal updates; within a message they are a set, unless the order is promised."""
    got, wanted = lines_of(found), list(expected)
    if not subject.keeps_results:
        # Messages come in their order, and all updates of one together.
        assert list(dict.fromkeys(line[0] for line in wanted)) == [
            message for message, _ in groupby(line[0] for line in got)
        ], where
        got, wanted = sorted(got, key=_key), sorted(wanted, key=_key)
    for number, (a, b) in enumerate(zip(got, wanted, strict=False)):
        is_close = a[3] == b[3] or abs((a[3] or 0.0) - (b[3] or 0.0)) <= SCORE_ERROR
        is_same = is_close and (*a[:3], *a[4:]) == (*b[:3], *b[4:])
        assert is_same, f"{where}: update {number} is {a}, expected {b}"
    assert len(got) == len(wanted), f"{where}: {len(got)} updates, expected {len(wanted)}"


def _key(line: Line) -> tuple[str, str]:
    return str(line[0]), str(line[1])


def _regions(moves: Iterable[Any]) -> Any:
    ids, regions = zip(*moves, strict=True)
    return region_batch(list(ids), list(regions))
