"""Engines in lock-step with their oracles: any order of calls gives the oracle's updates.

One machine drives every semantics, and every structure that changes in place. The world is small,
so that regions and messages touch, ids come again and expiries fall on the clock. The structure is
rebuilt after a few changes, in the background and in the foreground.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import earshot.semantics.contract
import earshot.semantics.index_matcher
from earshot import (
    Engine,
    Event,
    Message,
    Move,
    Moving,
    Publish,
    Ranking,
    Subscribe,
    Subscription,
    TopK,
    Unsubscribe,
)
from earshot.checks.engine_laws import EngineSubject, assert_updates, lines_of
from earshot.checks.engine_oracle import Line, MatchOracle, MovingOracle, TopkOracle, oracle_of
from earshot.checks.stories import EPOCH, Author
from earshot.checks.subjects import subject_of
from earshot.errors import (
    DuplicateSubscription,
    EarshotError,
    InvalidInput,
    InvalidRow,
    LateRow,
    UnknownSubscription,
)
from earshot.indexes import SEMANTICS, structures_of
from earshot.model.arrays import Space
from earshot.model.batches import message_batch, region_batch
from earshot.model.regions import Everywhere, RegionOrPoint
from earshot.model.subscriptions import Id
from earshot.semantics.moving import STRUCTURES as MOVING_STRUCTURES
from earshot.semantics.topk import DISSEMINATIONS, REEVALUATIONS

SPACES: tuple[Space, ...] = ("lonlat", "planar")
RANKINGS = [
    Ranking(alpha, threshold)
    for alpha in (0.0, 0.1, 0.3, 0.5, 0.9, 1.0)
    for threshold in (0.05, 0.3, 0.5, 0.55, 0.6, 1.0)
]
WINDOWS = [
    TopK(1, 1, 0.5, 5e5),
    TopK(5, 2, 0.3, 3e5),
    TopK(12, 3, 0.5, 1e5),
    TopK(timedelta(seconds=2), 2, 0.5, 5e5),
    TopK(timedelta(seconds=3), 2, 1.0, 3e5, timedelta(seconds=1)),
    TopK(timedelta(seconds=1.5), 1, 0.0, 5e5, timedelta(seconds=9)),
]
TOPK_STRUCTURES = [f"{one}+{other}" for one in DISSEMINATIONS for other in REEVALUATIONS]
LIFETIMES = [Moving(timedelta(seconds=seconds)) for seconds in (0.5, 2, 4)]
SETTINGS: dict[str, list[Any]] = {
    "boolean": [None], "ranked": RANKINGS, "topk": WINDOWS, "moving": LIFETIMES,
}  # fmt: skip
# Which structures a machine is run with, and how many examples it is given.
MACHINES: dict[str, tuple[list[str], int]] = {
    "boolean": (list(structures_of("boolean")), 40),
    "ranked": (list(structures_of("ranked")), 40),
    "topk": (TOPK_STRUCTURES, 40),
    "moving": (list(MOVING_STRUCTURES), 40),
} | {
    f"{semantics}-{name}": ([name], 8)
    for semantics in SEMANTICS
    for name, structure in structures_of(semantics).items()
    if subject_of(structure).changes_in_place
}

numbers = st.integers(0, 11)
times = st.integers(0, 12).map(lambda half: EPOCH + timedelta(seconds=half / 2))
randoms = st.randoms(use_true_random=False)


class EngineMachine(RuleBasedStateMachine):
    """What an engine says against what the oracle says, call by call."""

    semantics: str
    structures: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="earshot-machine-"))
        self.patches = pytest.MonkeyPatch()
        self.n_saves = self.n_messages = 0

    def teardown(self) -> None:
        self.patches.undo()
        if hasattr(self, "engine"):
            self.engine.wait()
        shutil.rmtree(self.folder)

    @initialize(
        data=st.data(),
        space=st.sampled_from(SPACES),
        has_text_ids=st.booleans(),
        least=st.sampled_from([2, 6, 20_000]),
        n_threads=st.sampled_from([1, 2]),
    )
    def start(
        self, data: st.DataObject, space: Space, has_text_ids: bool, least: int, n_threads: int
    ) -> None:
        self.settings = data.draw(st.sampled_from(SETTINGS[self.semantics]))
        structure = data.draw(st.sampled_from(self.structures))
        self.subject = EngineSubject(self.settings, structure)
        self.engine = self.subject.engine(space, n_threads=n_threads)
        self.oracle = oracle_of(self.settings, space)
        self.space, self.has_text_ids, self.n_threads = space, has_text_ids, n_threads
        self.patches.setattr(earshot.semantics.index_matcher, "REBUILD_LEAST", least)
        self.patches.setattr(earshot.semantics.index_matcher, "REBUILD_SMALL", least)
        self.patches.setattr(earshot.semantics.contract, "FORGET_LEAST", least)

    # ---- what happens in the small world

    def id(self, number: int) -> Id:
        return f"s{number}-é" if self.has_text_ids else number - 5

    def author(self, random: Random) -> Author:
        return Author(self.settings, self.space, random)

    def subscription(self, number: int, random: Random, end: datetime | None) -> Subscription:
        return replace(self.author(random).subscription(), id=self.id(number), expires=end)

    def messages(self, random: Random, own_times: Sequence[datetime | None]) -> list[Message]:
        self.n_messages += len(own_times)
        first = self.n_messages - len(own_times)
        author = self.author(random)
        return [
            replace(author.message(), id=first + row, time=time)
            for row, time in enumerate(own_times)
        ]

    def check(self, found: Any, expected: Sequence[Line], where: str = "") -> None:
        assert_updates(found, expected, self.subject, where)

    # ---- subscriptions come, go and move

    @rule(
        chosen=st.lists(st.tuples(numbers, st.none() | times), min_size=1, max_size=8,
                        unique_by=lambda pair: pair[0]),
        random=randoms,
        in_one_call=st.booleans(),
        may_be_taken=st.booleans(),
    )  # fmt: skip
    def subscribe(
        self,
        chosen: list[tuple[int, datetime | None]],
        random: Random,
        in_one_call: bool,
        may_be_taken: bool,
    ) -> None:
        made = [self.subscription(number, random, end) for number, end in chosen]
        if not may_be_taken:  # most lists would hold an id that is
            made = [each for each in made if each.id not in self.oracle.live]
        for part in [made] if in_one_call else [[each] for each in made]:
            if any(each.id in self.oracle.live for each in part):
                with pytest.raises(DuplicateSubscription, match="exists already"):
                    self.engine.subscribe(*part)
            else:
                self.check(self.engine.subscribe(*part), self.oracle.subscribe(*part))

    @rule(chosen=st.sets(numbers, min_size=1, max_size=5))
    def unsubscribe(self, chosen: set[int]) -> None:
        live = [self.id(number) for number in chosen if self.id(number) in self.oracle.live]
        self.check(self.engine.unsubscribe(*live), self.oracle.unsubscribe(*live))
        for key in {self.id(number) for number in chosen}.difference(live):
            with pytest.raises(UnknownSubscription, match="no subscription"):
                self.engine.unsubscribe(key)

    @rule(number=numbers, random=randoms)
    def move(self, number: int, random: Random) -> None:
        region, key = self.author(random).region(), self.id(number)
        if key not in self.oracle.live:
            with pytest.raises(UnknownSubscription, match="no subscription"):
                self.engine.move(key, region)
        elif self.asks_for_nothing(key, region):
            with pytest.raises(InvalidInput, match="every message would match"):
                self.engine.move(key, region)
        else:
            self.check(self.engine.move(key, region), self.oracle.move(key, region))

    @precondition(lambda self: isinstance(self.oracle, MovingOracle))
    @rule(
        reports=st.lists(st.tuples(numbers, st.none() | times), min_size=1, max_size=6),
        random=randoms,
        in_one_call=st.booleans(),
    )
    def report(
        self, reports: list[tuple[int, datetime | None]], random: Random, in_one_call: bool
    ) -> None:
        """Positions, some of which come too late or are of nobody, several of one subscription."""
        assert isinstance(self.oracle, MovingOracle)
        author = self.author(random)
        expected, wrong = list[Line](), list[int]()
        points = [author.point() for _ in reports]
        ids = [self.id(number) for number, _ in reports]
        own_times = [time for _, time in reports]
        for row, (key, point, time) in enumerate(zip(ids, points, own_times, strict=True)):
            live = self.oracle.live.get(key)
            clock = max(filter(None, [time, self.oracle.clock]), default=None)
            is_over = live is None or (live.expires and clock and live.expires <= clock)
            if is_over or self.oracle.refuses_move(key, time):
                wrong.append(row)
                if not in_one_call:
                    with pytest.raises((UnknownSubscription, LateRow)):
                        self.engine.move(key, point, time)
                continue
            lines = self.oracle.move(key, point, time)
            if in_one_call:
                expected += lines
            else:
                self.check(self.engine.move(key, point, time), lines)
        if in_one_call:
            batch = region_batch(ids, points, own_times, has_positions=True)
            found = self.engine.move_batch(batch, on_error="reject")
            assert [each.row for each in found.rejects] == wrong
            self.check(found, expected)

    def asks_for_nothing(self, key: Id, region: RegionOrPoint) -> bool:
        return isinstance(region, Everywhere) and self.oracle.live[key].condition is None

    # ---- messages, weights and the clock

    @rule(
        own_times=st.lists(st.none() | times, min_size=1, max_size=6),
        random=randoms,
        in_one_call=st.booleans(),
    )
    def publish(self, own_times: list[datetime | None], random: Random, in_one_call: bool) -> None:
        messages = self.messages(random, own_times)
        expected, late = list[Line](), list[int]()
        for row, message in enumerate(messages):
            if self.oracle.refuses(message):
                late.append(row)
            else:
                expected += self.oracle.publish(message)
        if in_one_call:
            found = self.engine.publish_batch(message_batch(messages), on_error="reject")
            assert [each.row for each in found.rejects] == late
            self.check(found, expected)
            return
        one_by_one = list[Line]()
        for row, message in enumerate(messages):
            if row in late:
                with pytest.raises(InvalidRow, match="time"):
                    self.engine.publish(message)
            else:
                one_by_one += lines_of(self.engine.publish(message))
        self.check(one_by_one, expected)

    @rule(time=times)
    def advance(self, time: datetime) -> None:
        self.check(self.engine.advance(time), self.oracle.advance(time))

    @precondition(lambda self: isinstance(self.settings, Ranking | TopK))
    @rule()
    def reweigh(self) -> None:
        self.check(self.engine.reweigh(), self.oracle.reweigh())

    @precondition(lambda self: isinstance(self.oracle, TopkOracle))
    @rule(random=randoms, n=st.integers(1, 4), forget=st.booleans())
    def learn(self, random: Random, n: int, forget: bool) -> None:
        assert isinstance(self.oracle, TopkOracle)
        messages = self.messages(random, [None] * n)
        assert self.engine.learn(message_batch(messages)).n_rows == n
        self.oracle.learn(*messages)
        if forget:
            self.check(self.engine.reweigh(forget=True), self.oracle.reweigh())
            self.oracle.forget()

    @rule(number=numbers, random=randoms, time=times)
    def process(self, number: int, random: Random, time: datetime) -> None:
        self.advance(time)
        key, oracle = self.id(number), self.oracle
        events, expected = list[Event](), list[Line]()
        if key in oracle.live:
            events.append(Unsubscribe(key, time))
            oracle.unsubscribe(key)
        subscription = self.subscription(number, random, None)
        events.append(Subscribe(subscription, time))
        expected += oracle.subscribe(subscription)
        region = self.author(random).region()
        if not self.asks_for_nothing(key, region):
            events.append(Move(key, region))
            expected += oracle.move(key, region)
        (message,) = self.messages(random, [None])
        message = replace(message, end=None)  # its own may be over
        events.append(Publish(message))
        expected += oracle.publish(message)
        given = events if number % 2 else iter(events)
        self.check(list(self.engine.process(given)), expected)

    # ---- questions

    @rule(number=numbers, random=randoms)
    def ask(self, number: int, random: Random) -> None:
        key = self.id(number)
        assert (key in self.engine) == (key in self.oracle.live)
        if key not in self.oracle.live:
            return
        if isinstance(self.oracle, MatchOracle):
            message = replace(self.author(random).message(), time=None)
            found = self.engine.explain(message, key)
            matched, score = self.oracle.score(message, key)
            assert found.matched == matched
            assert (found.score is None) == (score is None)
            assert (found.score or 0.0) == pytest.approx(score or 0.0, rel=0, abs=1e-12)
        else:
            held = self.oracle.results(key)
            results = self.engine.results(key)
            assert [each.message_id for each in results] == [each for each, _ in held]
            scores = [score or 0.0 for _, score in held]
            found_scores = [each.score or 0.0 for each in results]
            assert found_scores == pytest.approx(scores, rel=0, abs=1e-12)

    @invariant()
    def is_the_same(self) -> None:
        if hasattr(self, "engine"):
            assert len(self.engine) == len(self.oracle.live)
            assert self.engine.time == self.oracle.clock

    # ---- the same engine in another shape

    @rule()
    def save_and_open(self) -> None:
        self.n_saves += 1
        directory = self.folder / str(self.n_saves)
        self.engine.save(directory)
        self.engine.wait()
        self.engine = Engine.open(directory, n_threads=self.n_threads)

    @rule(method=st.sampled_from(["subscribe", "unsubscribe", "move", "publish", "save"]))
    def interrupt(self, method: str) -> None:
        """A call that is interrupted either changed nothing, or ends the engine."""
        self.save_and_open()  # where the engine goes on afterwards
        self.engine.rebuild_in_background = False
        directory = self.folder / str(self.n_saves)
        matcher, here = self.engine.matcher, Author(self.settings, self.space, Random(1)).point()

        def interrupted(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        message = Message(0, "fire bus rain", place=here, time=self.oracle.clock or EPOCH)
        key = next(iter(self.oracle.live), None)
        calls: dict[str, Any] = {
            "subscribe": lambda: self.engine.subscribe(
                Subscription(self.id(99), ["fire"], region=here)
            ),
            "publish": lambda: self.engine.publish(message),
            "save": lambda: self.engine.save(self.folder / f"never-{self.n_saves}"),
        }
        if key is not None:
            calls["unsubscribe"] = lambda: self.engine.unsubscribe(key)
            calls["move"] = lambda: self.engine.move(key, here)
        if method not in calls:
            return
        inner = "contents" if method == "save" else method
        setattr(matcher, inner, interrupted)
        with pytest.raises(KeyboardInterrupt):
            calls[method]()
        delattr(matcher, inner)
        if method == "save" or (method == "publish" and isinstance(self.oracle, MatchOracle)):
            return
        for call in (*calls.values(), lambda: len(self.engine)):
            with pytest.raises(EarshotError, match="an earlier call was interrupted"):
                call()
        self.engine = Engine.open(directory, n_threads=self.n_threads)

    @rule()
    def rebuild(self) -> None:
        n_words = len(self.engine.vocabulary)
        self.engine.rebuild()
        if isinstance(self.oracle, MatchOracle):
            assert self.engine.matcher.index.n_changes == 0
        elif isinstance(self.oracle, TopkOracle) and len(self.engine.vocabulary) < n_words:
            self.oracle.forget_words()
            assert len(self.engine.vocabulary) == len(self.oracle.numbers) + 1

    @rule()
    def wait(self) -> None:
        self.engine.wait()


@pytest.mark.parametrize("name", MACHINES)
def test_any_order_of_calls(name: str) -> None:
    structures, n_examples = MACHINES[name]
    facts = {"semantics": name.partition("-")[0], "structures": structures}
    run_state_machine_as_test(
        type("Machine", (EngineMachine,), facts),
        settings=settings(
            max_examples=n_examples,
            stateful_step_count=30,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
