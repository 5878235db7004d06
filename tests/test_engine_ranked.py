"""The ranked engine: scores worked out by hand, and the oracle in lock-step."""

from __future__ import annotations

import json
import math
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import xxhash

import earshot.semantics.index_matcher
from earshot import (
    Boolean,
    Circle,
    Engine,
    Event,
    Everywhere,
    Message,
    Point,
    Publish,
    Ranking,
    Rectangle,
    Subscribe,
    Subscription,
    Unsubscribe,
    Update,
)
from earshot.errors import InvalidInput, InvalidParameter, InvalidRow, SavedIndexError
from earshot.indexes import default_structure, index_type, structures_of
from earshot.indexes.contract import Parameters
from earshot.model.batches import message_batch, subscription_batch
from earshot.model.regions import Place, Region
from earshot.model.subscriptions import Id
from earshot.storage import Saved

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
SQUARE = Rectangle(0, 0, 2, 2)
HERE = Point(1, 1)
FAR = Point(50, 50)


def ranked(alpha: float = 0.5, threshold: float = 0.6, **options: Any) -> Engine:
    return Engine(Ranking(alpha, threshold), **options)


def scores(engine: Engine, text: str, place: Place = HERE, **options: Any) -> dict[Id, float]:
    """Return whom a message reaches, with which score."""
    updates = engine.publish(Message("m", text, place=place, **options))
    found = {update.subscription_id: update.score for update in updates}
    assert len(found) == len(updates)
    return {key: score for key, score in found.items() if score is not None}


# ---- scores worked out by hand -------------------------------------------------------------------


def test_place_and_text_add_up() -> None:
    engine = ranked(0.5, 0.6)
    engine.subscribe(Subscription("s", ("fire", "smoke"), region=SQUARE))
    assert scores(engine, "fire and smoke") == {"s": 1.0}
    assert scores(engine, "fire") == {"s": 0.75}  # all of the place, half of the text
    assert scores(engine, "nothing") == {}  # 0.5
    assert scores(engine, "fire and smoke", FAR) == {}  # 0.5
    quarter = Rectangle(1, 1, 9, 9)
    assert scores(engine, "fire and smoke", quarter) == {"s": 0.625}  # 0.5 / 4 + 0.5
    assert scores(engine, "fire", quarter) == {}


@pytest.mark.parametrize("index", structures_of("ranked"))
def test_alpha_says_what_counts(index: str) -> None:
    text_only, place_only = ranked(0, 0.5, structure=index), ranked(1, 0.5, structure=index)
    for engine in (text_only, place_only):
        engine.subscribe(
            Subscription("s", ("fire", "smoke"), region=SQUARE),
            Subscription("not", expression="fire and not smoke", region=SQUARE),
        )
    assert scores(text_only, "fire", FAR) == {"s": 0.5, "not": 1.0}
    assert scores(place_only, "", HERE) == {"s": 1.0, "not": 1.0}
    assert scores(place_only, "smoke", HERE) == {"s": 1.0}  # a forbidden word rules out
    assert scores(place_only, "fire", FAR) == {}


@pytest.mark.parametrize("index", structures_of("ranked"))
def test_a_score_equal_to_the_threshold_is_delivered(index: str) -> None:
    words = [f"w{i}" for i in range(9)]
    engine = ranked(0.1, 0.6, structure=index)
    engine.subscribe(Subscription(1, words, region=SQUARE))
    assert scores(engine, " ".join(words[:5])) == {1: pytest.approx(0.6)}  # 0.1 + 0.9 * 5 / 9
    assert scores(engine, " ".join(words[:4])) == {}
    thirds = ranked(0, 1 / 3, structure=index)
    thirds.subscribe(Subscription(1, ("a", "b", "c")))
    assert scores(thirds, "b", FAR) == {1: pytest.approx(1 / 3)}


def test_subscriptions_may_name_their_own_threshold() -> None:
    engine = ranked(0.5, 0.6)
    engine.subscribe(
        Subscription("engine's", ("fire", "smoke"), region=SQUARE),
        Subscription("less", ("fire", "smoke"), region=SQUARE, threshold=0.4),
        Subscription("all", ("fire", "smoke"), region=SQUARE, threshold=1),
    )
    assert scores(engine, "") == {"less": 0.5}
    assert scores(engine, "fire") == {"engine's": 0.75, "less": 0.75}
    assert set(scores(engine, "fire smoke")) == {"engine's", "less", "all"}
    engine.move("less", Circle(50, 50, 10))
    engine.move("engine's", Circle(50, 50, 10))
    assert scores(engine, "", FAR) == {"less": 0.5}
    assert scores(engine, "fire", FAR) == {"engine's": 0.75, "less": 0.75}


def test_the_best_alternative_counts() -> None:
    engine = ranked(0.5, 0.1)
    engine.subscribe(
        Subscription("s", expression="(fire and smoke) or (rain and not drill)", region=SQUARE),
        Subscription("place", region=SQUARE),
    )
    assert scores(engine, "fire") == {"s": 0.75, "place": 1.0}
    assert scores(engine, "rain") == {"s": 1.0, "place": 1.0}
    assert scores(engine, "rain drill") == {"s": 0.5, "place": 1.0}


def test_a_region_across_the_antimeridian_is_one() -> None:
    engine = ranked(1, 0.1)
    engine.subscribe(Subscription("fiji", ("storm",), region=Rectangle(170, 0, -170, 10)))
    assert scores(engine, "", Rectangle(175, 0, -175, 10)) == {"fiji": pytest.approx(0.5)}
    assert scores(engine, "", Rectangle(160, 0, 175, 10)) == {"fiji": pytest.approx(0.25)}
    assert scores(engine, "", Point(180, 5)) == {"fiji": 1.0}
    engine.move("fiji", Rectangle(0, 0, 10, 10))
    assert scores(engine, "", Rectangle(0, 0, 10, 5)) == {"fiji": pytest.approx(0.5)}


def test_expiry_drops_scores_with_their_answers() -> None:
    engine = ranked(0.5, 0.1)
    engine.subscribe(
        Subscription(1, ("fire",), region=SQUARE, expires=NOON),
        Subscription(2, ("fire", "smoke"), region=SQUARE),
        Subscription(3, ("fire",), expires=NOON + timedelta(hours=1)),
    )
    before, at, after = (NOON + timedelta(minutes=m) for m in (-1, 0, 60))
    texts = [("fire", before), ("fire", at), ("", at), ("fire", after)]
    messages = [Message(i, text, place=HERE, time=t) for i, (text, t) in enumerate(texts)]
    found = engine.publish_batch(message_batch(messages))
    assert found.counters.answers == 3 + 2 + 2 + 1
    assert {(u.message_id, u.subscription_id): u.score for u in list(found)} == {
        (0, 1): 1.0, (0, 2): 0.75, (0, 3): 1.0, (1, 2): 0.75, (1, 3): 1.0,
        (2, 2): 0.5, (2, 3): 0.5, (3, 2): 0.75,
    }  # fmt: skip


def test_tables_have_the_scores() -> None:
    engine = ranked(0.5, 0.6)
    engine.subscribe(Subscription(7, ("fire", "smoke"), region=SQUARE))
    batch = message_batch([Message(1, "rain", place=FAR), Message(2, "fire", place=HERE)])
    found = engine.match_batch(batch)
    assert found.scores is not None
    assert found.scores.tolist() == [0.75]
    assert found.table().to_pylist() == [
        {
            "message_id": 2,
            "subscription_id": 7,
            "sign": "+",
            "score": 0.75,
            "reason": "match",
            "time": None,
        }
    ]
    boolean = Engine()
    boolean.subscribe(Subscription(7, ("fire",)))
    found = boolean.match_batch(batch)
    assert found.scores is None
    assert found.table().column("score").to_pylist() == [None]


# ---- weights -------------------------------------------------------------------------------------


def idf(n: int, df: int) -> float:
    return round((math.log((n + 1) / (df + 1)) + 1) * 2**16) / 2**16


def test_words_weigh_the_same_until_they_are_weighed() -> None:
    engine = ranked(0, 0.01)
    engine.subscribe(
        Subscription(1, ("fire", "smoke")),
        Subscription(2, ("fire",)),
        Subscription(3, expression="fire or (fire and rain)"),  # asks for fire once
        Subscription(4, ("fire",), region=Rectangle(170, 0, -170, 1)),  # two boxes
        Subscription(6, region=SQUARE),  # asks for no word, but is one of five
    )
    assert scores(engine, "fire")[1] == 0.5
    engine.reweigh()
    fire, smoke = idf(5, 4), idf(5, 1)
    assert scores(engine, "fire")[1] == pytest.approx(fire / (fire + smoke))
    assert scores(engine, "smoke")[1] == pytest.approx(smoke / (fire + smoke))
    # What comes or goes later changes no weight; a new word weighs as one that nobody asks for.
    engine.unsubscribe(2, 3)
    engine.subscribe(Subscription(5, ("fire", "new")))
    for _ in range(2):
        assert scores(engine, "fire") == {
            1: pytest.approx(fire / (fire + smoke)),
            4: 1.0,
            5: pytest.approx(fire / (fire + idf(5, 0))),
            6: 1.0,
        }
        engine.rebuild()
    engine.reweigh()
    assert scores(engine, "fire")[5] == pytest.approx(idf(4, 3) / (idf(4, 3) + idf(4, 1)))


def test_weighing_a_first_load_is_weighing_it_later() -> None:
    wishes = [Subscription(i, (f"w{i % 3}", f"w{i % 7}", "x")) for i in range(40)]
    messages = [Message(i, f"w{i % 7} w{i % 5} x", place=HERE) for i in range(20)]

    def found(engine: Engine) -> set[tuple[Id, Id, float | None]]:
        return {(u.message_id, u.subscription_id, u.score) for u in engine.publish(*messages)}

    at_once, one_by_one = ranked(0.2, 0.5), ranked(0.2, 0.5)
    at_once.subscribe_batch(subscription_batch(wishes))
    at_once.reweigh()
    assert at_once.matcher.index.n_changes == 0
    for each in wishes:
        one_by_one.subscribe(each)
        one_by_one.publish(messages[0])
    assert found(one_by_one) != found(at_once)
    one_by_one.reweigh()
    assert found(one_by_one) == found(at_once)  # to the last bit: both are built as a whole


def test_weighing_nobody_and_boolean_engines() -> None:
    engine = ranked(0, 0.5)
    engine.reweigh()
    engine.subscribe(Subscription(1, ("a", "b")))
    assert scores(engine, "a") == {1: 0.5}
    engine.unsubscribe(1)
    engine.reweigh()
    assert scores(engine, "a") == {}
    with pytest.raises(
        InvalidInput, match="reweigh is for semantics that weigh words, not for boolean"
    ):
        Engine().reweigh()


@pytest.mark.parametrize("index", structures_of("ranked"))
def test_when_an_index_is_built_changes_nothing(
    index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same events: one by one, in batches, and with rebuilds in the background.

    Scores are equal up to the last bits: a structure may add weights up in an order of its own.
    """
    monkeypatch.setattr(earshot.semantics.index_matcher, "REBUILD_LEAST", 3)
    regions: list[Region] = [SQUARE, Circle(1, 1, 90_000), Everywhere(), Rectangle(1, 1, 1, 1)]
    wishes = [
        Subscription(
            i, [f"w{k}" for k in {i % 5, i % 7, i % 11}], region=regions[i % 4],
            threshold=None if i % 3 else 0.3,
        )
        for i in range(60)
    ]  # fmt: skip
    messages = [
        Message(i, f"w{i % 5} w{i % 11}", place=HERE if i % 2 else Rectangle(0.5, 0.5, 3, 3))
        for i in range(30)
    ]

    def events(engine: Engine, *, in_batches: bool) -> dict[Any, float | None]:
        found: list[Update] = []
        for part in range(3):
            some = wishes[20 * part : 20 * part + 20]
            if in_batches:
                engine.subscribe(*some)
                found += engine.publish(*messages)
                engine.unsubscribe(*(each.id for each in some[:5]))
            else:
                happened: list[Event] = [Subscribe(each) for each in some]
                happened += [Publish(each) for each in messages]
                happened += [Unsubscribe(each.id) for each in some[:5]]
                found += engine.process(happened)
            if part == 1:
                engine.reweigh()
        engine.wait()
        # A message comes three times, and a subscription may get it more than once.
        times_seen: Counter[Any] = Counter()
        result = {}
        for update in found:
            pair = (update.message_id, update.subscription_id)
            times_seen[pair] += 1
            result[*pair, times_seen[pair]] = update.score
        return result

    options = {"structure": index, "rebuild_in_background": False}
    plain = events(ranked(0.4, 0.5, **options), in_batches=False)
    assert len(plain) > 100
    assert events(ranked(0.4, 0.5, structure=index), in_batches=False) == plain
    assert events(ranked(0.4, 0.5, structure=index, n_threads=2), in_batches=True) == plain


@pytest.mark.parametrize("index", sorted(structures_of("ranked")))
def test_explanations_follow_words_that_come_later(index: str) -> None:
    engine = ranked(0.5, 0.3, structure=index)
    message = Message(1, "tea milk", place=Point(0.5, 0.5))
    engine.subscribe(Subscription(1, ("coffee", "tea"), region=SQUARE))
    engine.publish(message)
    engine.subscribe(Subscription(2, ("milk", "sugar", "bread"), region=SQUARE))
    by_id = {update.subscription_id: update.score for update in engine.publish(message)}
    explanation = engine.explain(message, 2)
    assert explanation.matched == (2 in by_id)
    assert explanation.score == by_id.get(2, explanation.score)


def test_a_score_of_0_is_explained_as_not_delivered() -> None:
    engine = ranked(0.5, 1e-10)
    engine.subscribe(Subscription(1, ("coffee",), region=SQUARE))
    far = Message(1, "tea", place=Point(50, 50))
    assert list(engine.publish(far)) == []
    assert not engine.explain(far, 1).matched


# ---- what an engine is made of -------------------------------------------------------------------


@pytest.mark.parametrize("index", structures_of("ranked"))
def test_saved_and_opened(tmp_path: Path, index: str) -> None:
    engine = ranked(0.3, 0.7, structure=index)
    engine.subscribe(
        Subscription("a", ("fire", "smoke"), region=SQUARE),
        Subscription("b", ("fire",), region=SQUARE, threshold=0.2, expires=NOON),
    )
    engine.reweigh()
    engine.subscribe(Subscription("c", ("late", "fire"), threshold=0.1))
    expected = [scores(engine, text) for text in ("fire", "smoke", "late")]
    engine.save(tmp_path / "saved")
    assert Saved.open(tmp_path / "saved").facts["engine"] == "ranked"
    opened = Engine.open(tmp_path / "saved")
    assert opened.semantics == Ranking(0.3, 0.7)
    assert opened.structure == index
    assert [scores(opened, text) for text in ("fire", "smoke", "late")] == expected
    opened.subscribe(Subscription("d", ("later", "fire"), threshold=0.1))
    assert scores(opened, "late")["c"] == scores(opened, "later")["d"]
    opened.rebuild()
    assert scores(opened, "fire").items() >= expected[0].items()
    assert set(scores(opened, "fire", time=NOON)) == {"c", "d"}


def test_a_saved_engine_of_another_kind_is_refused(tmp_path: Path) -> None:
    ranked().save(tmp_path / "saved")
    path = tmp_path / "saved" / "facts.json"
    header = json.loads(path.read_text())
    del header["checksum"]
    for claimed, reason in (("boolean", "a ranked index, not boolean"), ("guessed", "not hold an")):
        header["facts"]["own"]["engine"] = claimed
        checksum = xxhash.xxh3_64_hexdigest(json.dumps(header, sort_keys=True).encode())
        path.write_text(json.dumps({**header, "checksum": checksum}))
        with pytest.raises(SavedIndexError, match=reason):
            Engine.open(tmp_path / "saved")


def test_options() -> None:
    assert ranked().structure == default_structure("ranked")
    assert Engine().semantics == Boolean()
    for name in structures_of("ranked"):
        kind = index_type(name, "ranked")
        engine = ranked(0.2, 0.9, structure=name, parameters=kind.parameters_type())
        assert engine.semantics == Ranking(0.2, 0.9)
    with pytest.raises(InvalidParameter, match="expected one of"):
        ranked(structure="no_such_index")
    with pytest.raises(
        InvalidParameter, match=r"True is no semantics; expected one of Boolean, Ranking"
    ):
        Engine(True)
    with pytest.raises(InvalidParameter, match="parameters of index"):
        ranked(parameters=Parameters())


@pytest.mark.parametrize("wrong", [0, -0.1, 1.1, math.nan, "0.5", True])
def test_thresholds_out_of_range(wrong: Any) -> None:
    with pytest.raises(InvalidParameter, match=r"subscription 7: threshold is .*at most 1"):
        Subscription(7, ("fire",), threshold=wrong)


def test_boolean_engines_refuse_thresholds() -> None:
    engine = Engine()
    rows = subscription_batch(
        [Subscription(1, ("a",)), Subscription(2, ("b",), threshold=0.5), Subscription(3, ("c",))]
    )
    with pytest.raises(InvalidRow, match=r"row 1, field 'threshold': is not for boolean matching"):
        engine.subscribe_batch(rows)
    (reject,) = engine.subscribe_batch(rows, on_error="reject").rejects
    assert (reject.row, reject.field) == (1, "threshold")
    assert len(engine) == 2
    assert ranked().subscribe_batch(rows, on_error="reject").rejects == []


def test_wrong_thresholds_in_a_batch_are_set_aside() -> None:
    table = pa.table(
        {
            "id": range(5),
            "keywords": [["a", "b"]] * 5,
            "threshold": [0.5, 0.0, None, 1.5, float("nan")],
        }
    )
    engine = ranked(0, 0.6)
    rejects = engine.subscribe_batch(table, on_error="reject").rejects
    assert [(each.row, each.field) for each in rejects] == [(row, "threshold") for row in (1, 3, 4)]
    assert rejects[1].reason == "is 1.5; expected a number greater than 0 and at most 1"
    assert scores(engine, "a") == {0: 0.5}
    assert set(scores(engine, "a b")) == {0, 2}


# ---- explanations --------------------------------------------------------------------------------


def reasons(engine: Engine, text: str, subscription_id: Id, place: Place = HERE) -> list[str]:
    message = Message("m", text, place=place)
    found = engine.explain(message, subscription_id)
    delivered = scores(engine, text, place)
    assert found.matched == (subscription_id in delivered)
    if found.matched:
        assert found.score == pytest.approx(delivered[subscription_id], abs=1e-12)
    return list(found.reasons)


def test_an_explanation_shows_both_parts_and_the_sum() -> None:
    engine = ranked(0.5, 0.6)
    engine.subscribe(Subscription("s", ("fire", "smoke"), region=SQUARE))
    assert reasons(engine, "fire", "s") == [
        "place 1: the message's point (1, 1) touches the region (0.0, 0.0, 2.0, 2.0)",
        "text 0.5: the text has 'fire' (weight 1), the text lacks 'smoke' (weight 1)",
        "✓ score 0.75 = 0.5 * 1 + 0.5 * 0.5 reaches the engine's threshold 0.6",
    ]
    assert reasons(engine, "fire smoke", "s", FAR) == [
        "place 0: the message's point (50, 50) does not touch the region (0.0, 0.0, 2.0, 2.0)",
        "text 1: the text has 'fire' (weight 1), 'smoke' (weight 1)",
        "✗ score 0.5 = 0.5 * 0 + 0.5 * 1 is below the engine's threshold 0.6",
    ]
    place, text, verdict = reasons(engine, "fire smoke", "s", Rectangle(1, 1, 9, 9))
    assert place.startswith("place 0.25: the message's box (1, 1, 9, 9) covers 0.25 of the region")
    assert verdict.startswith("✓ score 0.625 = 0.5 * 0.25 + 0.5 * 1 reaches")
    engine.subscribe(Subscription("t", ("fire",), threshold=0.9))
    engine.reweigh()
    place, text, verdict = reasons(engine, "fire", "s")
    assert text == (
        "text 0.415719: the text has 'fire' (weight 1), the text lacks 'smoke' (weight 1.40547)"
    )
    assert reasons(engine, "", "t")[-1].endswith("is below the subscription's threshold 0.9")


def test_an_explanation_of_alternatives_and_forbidden_words() -> None:
    engine = ranked(0.5, 0.6)
    engine.subscribe(
        Subscription("s", expression="(fire and smoke) or (rain and not drill)", region=SQUARE),
        Subscription("near", region=Circle(1, 1, 1000)),
    )
    assert reasons(engine, "fire drill", "s")[1:] == [
        "alternative 1: text 0.5: the text has 'fire' (weight 1), "
        "the text lacks 'smoke' (weight 1)",
        "alternative 2: ✗ the text has 'drill', which it must not",
        "✓ alternative 1: score 0.75 = 0.5 * 1 + 0.5 * 0.5 reaches the engine's threshold 0.6",
    ]
    engine.subscribe(Subscription("one", expression="rain and not drill", region=SQUARE))
    found = engine.explain(Message("m", "rain drill", place=HERE), "one")
    assert (found.matched, found.score) == (False, None)
    assert found.reasons[1:] == ("✗ the text has 'drill', which it must not",)
    assert reasons(engine, "rain", "near")[1] == "text 1: it asks for no keyword"
    (place, *_) = reasons(engine, "rain", "near", Rectangle(1, 0, 9, 9))
    assert "of the box around the circle of radius 1000 m around (1.0, 1.0)" in place


def test_an_explanation_of_an_expired_one() -> None:
    engine = ranked()
    engine.subscribe(Subscription("s", ("fire",), region=SQUARE, expires=NOON))
    found = engine.explain(Message("m", "fire", place=HERE, time=NOON), "s")
    assert (found.matched, found.score) == (False, 1.0)
    assert found.reasons[-2].startswith("✓ score 1 = ")
    assert found.reasons[-1] == "✗ the subscription expired at 2026-05-01T12:00:00+00:00"


def test_an_explanation_tells_a_score_from_the_threshold() -> None:
    engine = ranked(0, 0.5 + 2e-9)
    engine.subscribe(Subscription("s", ("a", "b")))
    assert "score 0.5 = 0 * 1 + 1 * 0.5 is below" in reasons(engine, "a", "s")[-1]
    assert reasons(engine, "a", "s")[-1].endswith("threshold 0.500000002")
