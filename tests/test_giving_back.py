"""What is gone gives its memory back: words, buffers, and what kind of ids there were."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import earshot.engine.state
import earshot.semantics.contract
from earshot import (
    Engine,
    Everywhere,
    Message,
    Point,
    Ranking,
    Rectangle,
    Subscription,
    TopK,
)
from earshot.errors import InvalidInput
from earshot.model.batches import message_batch

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
LEAST = 64
REGIONS: dict[str, tuple[Any, Any]] = {
    "boolean": (None, Rectangle(0, 0, 1, 1)),
    "ranked": (Ranking(0.5, 0.6), Rectangle(0, 0, 1, 1)),
    "topk": (TopK(50, 5, 0.5, 1e6), Point(0.5, 0.5)),
}


@pytest.fixture(autouse=True)
def _few_words_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earshot.semantics.contract, "FORGET_LEAST", LEAST)
    monkeypatch.setattr(earshot.engine.state, "FORGET_LEAST", LEAST)
    monkeypatch.setattr("earshot.semantics.index_matcher.REBUILD_LEAST", 100)
    monkeypatch.setattr("earshot.semantics.index_matcher.REBUILD_SMALL", 40)


def message(number: int, *words: str, x: float = 0.5) -> Message:
    return Message(number, " ".join(words), place=Point(x, 0.5))


def lines(updates: Any) -> list[str]:
    return sorted(map(repr, updates))


def come_and_go(engine: Engine, region: Any, n: int, first: int = 0) -> None:
    """Let subscriptions for words come that nobody has named before, and go."""
    for number in range(first, first + n, 20):
        ids = range(number, number + 20)
        engine.subscribe(*(Subscription(each, [f"w{each}"], region=region) for each in ids))
        engine.publish(message(number, f"w{number}"))
        engine.unsubscribe(*ids)
    engine.wait()


@pytest.mark.parametrize("kind", REGIONS)
def test_words_that_nobody_names_leave(kind: str) -> None:
    settings, region = REGIONS[kind]
    engine, plain = Engine(settings), Engine(settings, rebuild_in_background=False)
    staying = [
        Subscription(-number, [f"stays{number}", "fire"], region=region) for number in range(1, 9)
    ]
    for each in (engine, plain):
        each.subscribe(*staying[:4])
        come_and_go(each, region, 400)
        each.subscribe(*staying[4:])
        come_and_go(each, region, 400, first=400)
    engine.rebuild()
    assert len(engine.vocabulary) <= 4 * LEAST
    asked = message(10_000, "stays2", "stays7", "fire", "w20", x=0.7)
    assert lines(engine.publish(asked)) == lines(plain.publish(asked)) != []


@pytest.mark.parametrize("has_others", [False, True])
@pytest.mark.parametrize("kind", ["boolean", "ranked"])
def test_what_ends_before_the_first_message_costs_nothing(kind: str, has_others: bool) -> None:
    semantics, region = REGIONS[kind]
    engine = Engine(semantics)
    if has_others:
        engine.subscribe(Subscription(-2, ["fire"], region=region))
        engine.publish(message(1, "fire"))
    engine.subscribe(Subscription(-1, ["fire"], region=region))
    for first in range(0, 4000, 20):
        ids = range(first, first + 20)
        engine.subscribe(*(Subscription(each, [f"w{each}"], region=region) for each in ids))
        engine.unsubscribe(*ids)
        assert len(engine) == 1 + has_others
    engine.wait()
    assert len(engine._state.ids) < 400
    assert len(engine._state.vocabulary) < 400
    engine.subscribe(Subscription(5000, ["w4001"], region=region))
    engine.unsubscribe(-1)
    found = engine.publish(message(2, "fire", "w4001", "w3999"))
    assert {each.subscription_id for each in found} == {5000, -2} - {-2 * (not has_others)}


def test_what_has_ended_is_not_weighed() -> None:
    engines = [Engine(Ranking(0.2, 0.3)), Engine(Ranking(0.2, 0.3))]
    for is_built, engine in enumerate(engines):
        words = ["fire", "fire", "flood", "smoke", "fire"]
        engine.subscribe(
            *(Subscription(n, [word], region=Everywhere()) for n, word in enumerate(words))
        )
        if is_built:
            engine.publish(message(1, "fire"))
        engine.unsubscribe(0, 4)
        engine.reweigh()
    first, second = (engine.publish(message(2, "fire", "flood", "rain")) for engine in engines)
    assert len(first) == 2
    assert lines(first) == lines(second)


@pytest.mark.parametrize("kind", ["boolean", "ranked"])
def test_words_that_come_while_the_structure_is_rebuilt(kind: str) -> None:
    settings, region = REGIONS[kind]
    engine = Engine(settings, rebuild_in_background=False)
    engine.subscribe(*(Subscription(n, [f"w{n}"], region=region) for n in range(200)))
    engine.publish(message(0, "w0"))
    engine.unsubscribe(*range(5, 200))
    rebuild, ids = engine.matcher.rebuild(is_forced=True), engine._state.ids
    rebuild.build()
    assert len(rebuild.old_tokens) == 6
    # A word that the rebuild has forgotten, a new one, and one that stays.
    engine.subscribe(Subscription(1000, ["w77", "new", "w3"], region=region))
    engine.unsubscribe(4)
    engine._take_over(rebuild, ids)
    assert len(engine.vocabulary) == 8
    found = engine.publish(message(1, "w77", "new", "w3", "w4", "w9"))
    assert sorted(each.subscription_id for each in found) == [3, 1000]
    assert engine.explain(message(1, "w77", "new", "w3"), 1000).matched


def test_a_word_keeps_its_weight_for_ranked() -> None:
    engine = Engine(Ranking(0.0, 0.01), rebuild_in_background=False)
    region = Everywhere()
    engine.subscribe(*(Subscription(n, ["common", f"w{n}"], region=region) for n in range(5)))
    engine.reweigh()
    engine.unsubscribe(0)
    engine.subscribe(*(Subscription(n, [f"w{n}"], region=region) for n in range(1000, 1200)))
    engine.unsubscribe(*range(1000, 1200))
    engine.subscribe(Subscription(0, ["common", "w0"], region=region))
    before = lines(engine.publish(message(1, "w0", "w1100")))
    engine.rebuild()
    assert len(engine.vocabulary) < 20
    assert lines(engine.publish(message(1, "w0", "w1100"))) == before
    engine.subscribe(Subscription(7, ["w1100", "w0"], region=region))  # comes later, as n = 0
    (score,) = [
        each.score for each in engine.publish(message(2, "w1100")) if each.subscription_id == 7
    ]
    later, own = np.log(6) + 1, np.log(6 / 2) + 1
    assert score == pytest.approx(later / (later + own), abs=1e-4)


@pytest.mark.parametrize("weighed_at", [-1, 20])
def test_the_journal_says_when_words_left(weighed_at: int, tmp_path: Path) -> None:
    Engine(TopK(20, 3, 0.3, 1e6)).save(tmp_path / "saved")
    with Engine.open(tmp_path / "saved", journal=True) as engine:
        rng = np.random.default_rng(7)
        engine.subscribe(
            *(
                Subscription(n, [f"w{each}" for each in rng.integers(0, 300, 6)],
                             region=Point(0, 0))
                for n in range(10)
            )
        )  # fmt: skip
        for number in range(600):
            words = [f"w{each}" for each in rng.integers(0, 300, 5)] + [f"x{number}"]
            engine.publish(message(number, *words))
            if number == weighed_at:
                engine.reweigh()
        n_words = len(engine.vocabulary)
        assert n_words < 700
        expected = engine.results_table()
    opened = Engine.open(tmp_path / "saved")
    assert len(opened.vocabulary) == n_words
    assert opened.results_table() == expected
    assert [opened.vocabulary.tokens(range(n_words))] == [engine.vocabulary.tokens(range(n_words))]


def test_learned_words_stay_until_they_are_weighed_and_then_as_long_as_they_weigh() -> None:
    engine = Engine(TopK(2, 1, 0.0, 1e6))
    learned = [message(n, *(f"w{each}" for each in range(n, n + 5))) for n in range(200)]
    engine.learn(message_batch(learned))
    for number in range(5):
        engine.publish(message(number, "fire"))
    engine.rebuild()
    assert len(engine.vocabulary) == 206
    engine.reweigh(forget=True)
    engine.rebuild()
    assert len(engine.vocabulary) == 206
    for number in range(5):
        engine.learn(message_batch([message(number, "fire", "water")]))
    engine.reweigh(forget=True)  # of the others none was counted since
    engine.rebuild()
    assert len(engine.vocabulary) == 3
    weights = engine.matcher.monitor.word_weights(4)
    assert weights[3] > weights[1] == weights[2]


def test_a_word_that_comes_back_has_been_counted_0_times() -> None:
    engine = Engine(TopK(2, 1, 0.0, 1e6))
    for number in range(2 * LEAST):
        engine.publish(message(number, "often", f"w{number}"))
    assert len(engine.vocabulary) < 2 * LEAST
    for number in range(2 * LEAST):
        engine.publish(message(number, f"x{number}"))
    engine.rebuild()
    engine.publish(message(4, "often"))
    engine.reweigh()
    tokens = engine.vocabulary.ids_of(["often"])
    counted = engine.vocabulary.frequencies[tokens]
    assert counted.tolist() == [1]
    assert engine.vocabulary.frequencies[0] == 4 * LEAST + 1


def test_a_saved_engine_has_the_words_that_are_left(tmp_path: Path) -> None:
    for kind, (settings, region) in REGIONS.items():
        engine = Engine(settings)
        engine.subscribe(Subscription(-1, ["fire", "w7"], region=region))
        come_and_go(engine, region, 400)
        engine.rebuild()
        engine.save(tmp_path / kind)
        opened = Engine.open(tmp_path / kind)
        assert len(opened.vocabulary) == len(engine.vocabulary) < 2 * LEAST
        assert lines(opened.publish(message(1, "fire", "w7"))) == lines(
            engine.publish(message(1, "fire", "w7"))
        )


@pytest.mark.parametrize("n_threads", [1, 2])
def test_buffers_are_packed(n_threads: int, tmp_path: Path) -> None:
    engine = Engine(TopK(500, 10, 0.5, 1e6), n_threads=n_threads)
    plain = Engine(TopK(500, 10, 0.5, 1e6), structure="scan+kmax")
    rng = np.random.default_rng(1)
    subscriptions = [
        Subscription(n, [f"w{rng.integers(20)}", f"w{rng.integers(20)}"],
                     region=Point(*rng.uniform(0, 1, 2)))
        for n in range(2000)
    ]  # fmt: skip
    for each in (engine, plain):
        each.subscribe(*subscriptions)
    number = 0
    for step in range(12):
        batch = [
            Message(number + n, " ".join(f"w{each}" for each in rng.integers(0, 20, 4)),
                    place=Point(*rng.uniform(0, 1, 2)))
            for n in range(250)
        ]  # fmt: skip
        number += 250
        assert lines(engine.publish(*batch)) == lines(plain.publish(*batch))
        if step == 6:
            for each in (engine, plain):
                each.unsubscribe(*range(0, 2000, 2))
        if step % 4 == 3:
            engine.rebuild()
            monitor = engine.matcher.monitor
            held = len(monitor._buffers.scores)
            assert held <= 1.3 * monitor.n_buffered
            engine.save(tmp_path / "saved")
            engine = Engine.open(tmp_path / "saved", n_threads=n_threads)
    assert engine.results_table() == plain.results_table()


# ---- ids ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", REGIONS)
def test_an_empty_engine_takes_ids_of_either_kind(kind: str, tmp_path: Path) -> None:
    settings, region = REGIONS[kind]
    Engine(settings).save(tmp_path / "saved")
    with Engine.open(tmp_path / "saved", journal=True) as engine:
        engine.subscribe(Subscription(1, ["fire"], region=region))
        with pytest.raises(InvalidInput, match="ids must be all integers or all strings"):
            engine.subscribe(Subscription("b", ["fire"], region=region))
        first = engine.publish(message(1, "fire"))
        engine.unsubscribe(1)
        engine.subscribe(Subscription("b", ["fire"], region=region))
        assert 1 not in engine
        assert "b" in engine
        assert [each.subscription_id for each in first] == [1]
        found = engine.publish(message(2, "fire"))
        assert {each.subscription_id for each in found} == {"b"}
        with pytest.raises(InvalidInput, match="ids must be all integers or all strings"):
            engine.subscribe(Subscription(2, ["fire"], region=region))
        engine.unsubscribe("b")
        engine.subscribe(Subscription(3, ["fire"], region=region))
        engine.rebuild()
    opened = Engine.open(tmp_path / "saved")
    assert 3 in opened
    assert len(opened) == 1
    assert {each.subscription_id for each in opened.publish(message(3, "fire"))} == {3}


def test_an_empty_window_takes_message_ids_of_either_kind(tmp_path: Path) -> None:
    Engine(TopK(timedelta(minutes=1), 2, 0.5, 1e6)).save(tmp_path / "saved")
    with Engine.open(tmp_path / "saved", journal=True) as engine:
        engine.subscribe(Subscription(1, ["fire"], region=Point(0, 0)))

        def publish(number: Any, minute: float) -> list[Any]:
            time = NOON + timedelta(minutes=minute)
            updates = engine.publish(Message(number, "fire", place=Point(0, 0), time=time))
            return [(each.sign, each.message_id) for each in updates]

        assert publish(1, 0) == [("+", 1)]
        with pytest.raises(InvalidInput, match="ids must be all integers or all strings"):
            publish("a", 5)
        engine.advance(NOON + timedelta(minutes=2))
        assert publish("a", 3) == [("+", "a")]
        assert publish("b", 5) == [("-", "a"), ("+", "b")]
        expected = engine.results(1)
    opened = Engine.open(tmp_path / "saved")
    assert opened.results(1) == expected
