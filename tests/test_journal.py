"""The journal: every call that returned is there after a crash, bit for bit."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from earshot import Circle, Engine, Message, Moving, Point, Subscription, Updates, storage
from earshot.engine import journal
from earshot.engine.journal import Record, merged, read_records, replay
from earshot.errors import EarshotError, InvalidParameter, SavedIndexError
from earshot.model.batches import message_batch, subscription_batch
from earshot.storage import Saved
from saved_states import DEFAULTS, KINDS, NOON, WORDS, message, subscription

DICTIONARY = pa.dictionary(pa.int32(), pa.string())


@pytest.fixture(params=DEFAULTS)
def kind(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


def journaled(kind: str, directory: Path) -> Engine:
    KINDS[kind]().save(directory)
    engine = Engine.open(directory, journal=True)
    OPENED.append(engine)
    return engine


OPENED: list[Engine] = []


@pytest.fixture(autouse=True)
def _closing() -> Iterator[None]:
    yield
    while OPENED:
        with contextlib.suppress(SavedIndexError):
            OPENED.pop().close()


def after_a_crash(directory: Path) -> Engine:
    """Return what is there if the machine stops now."""
    copy = directory.parent / f"{directory.name}-{random.random()}"
    shutil.copytree(directory, copy)
    return Engine.open(copy)


def state_of(engine: Engine) -> list[object]:
    words = engine.vocabulary.arrays
    told: list[object] = [len(engine), engine.time, engine.next_expiry]
    told += [words.token_bytes.tobytes(), words.frequencies.tolist()]
    if engine.matcher.keeps_results:
        return [*told, engine.results_table().to_pydict()]
    found = engine.match_batch(message_batch([message(number) for number in range(200, 206)]))
    return [*told, sorted(map(repr, found))]


def positions(rng: random.Random, first: int) -> pa.Table:
    """Return positions of some subscriptions, many of each; one is late, one of nobody."""
    seconds = [*(first + number // 40 for number in range(80)), first, first + 2]
    return pa.table({
        "id": [*(first + rng.randrange(3) for _ in range(80)), first, -1],
        "x": [rng.uniform(-1, 1.5) for _ in seconds],
        "y": [rng.uniform(-1, 1.5) for _ in seconds],
        "time": [NOON + timedelta(seconds=each) for each in seconds],
    })  # fmt: skip


def calls(kind: str) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Yield one call of each kind after the other, wrong ones among them."""
    rng = random.Random(kind)
    is_topk = kind.startswith("topk")
    for turn in range(12):
        first = 100 * turn
        made = [subscription(kind, first + number) for number in range(8)]
        yield "subscribe", tuple(made), {}
        # The second half is taken already.
        again = [*(subscription(kind, first + 20 + number) for number in range(3)), *made]
        yield "subscribe_batch", (subscription_batch(again),), {"on_error": "reject"}
        word = Subscription(first + 50, [f"word{turn}"], region=Point(0, 0))
        yield "subscribe_batch", (subscription_batch([word, word]),), {}
        late = [
            Message(-turn, f"late {turn} fire", place=Point(0, 0), time=NOON - timedelta(days=1)),
            Message(turn, f"{' '.join(rng.sample(WORDS, 3))} new{turn}", place=Point(0.1, 0.1),
                    time=NOON + timedelta(seconds=first)),
        ]  # fmt: skip
        yield "publish_batch", (message_batch(late),), {"on_error": "reject"}
        yield "publish", tuple(late), {}
        yield "publish", (message(first), message(first + 1)), {}
        place = Point(0.2, 0.3) if is_topk else Circle(0.2, 0.3, 1000)
        yield "move", (first + 2, place), {}
        if kind == "moving":
            yield "move_batch", (positions(rng, first),), {"on_error": "reject"}
        yield "unsubscribe", (first + 3, first + 4), {}
        yield "unsubscribe", (first + 3,), {}
        yield "advance", (NOON + timedelta(seconds=first + 30),), {}
        if is_topk:
            yield "learn", (message_batch(late),), {}
            yield "reweigh", (), {"forget": turn % 2 == 0}
        elif kind.startswith("ranked"):
            yield "reweigh", (), {}


def told(kind: str, updates: Updates) -> str:
    """Return updates as text; some semantics promise no order within a message."""
    found = [repr(each) for each in updates]
    return repr(sorted(found) if kind.startswith(("boolean", "ranked")) else found)


def test_a_crash_after_any_call_loses_none(kind: str, tmp_path: Path) -> None:
    engine, twin = journaled(kind, tmp_path / "own"), KINDS[kind]()
    for number, (name, arguments, options) in enumerate(calls(kind)):
        outcomes = []
        for each in (engine, twin):
            try:
                outcomes.append(told(kind, getattr(each, name)(*arguments, **options)))
            except EarshotError as error:
                outcomes.append(repr(error))
        assert outcomes[0] == outcomes[1]
        if number % 5 == 0:
            assert state_of(after_a_crash(tmp_path / "own")) == state_of(twin)
        if number == 40:
            engine.save(tmp_path / "own")
    assert state_of(after_a_crash(tmp_path / "own")) == state_of(twin)


def test_safe_regions_outlive_a_crash(tmp_path: Path) -> None:
    """Who was given one is watched as before, and who was named outdated is not named again."""
    Engine(Moving(timedelta(minutes=9)), space="planar").save(tmp_path / "own")
    engine = Engine.open(tmp_path / "own", journal=True)
    OPENED.append(engine)
    engine.subscribe(
        *(Subscription(number, ["fire"], region=Circle(1000 * number, 0, 1)) for number in range(6))
    )
    given = engine.safe_regions([0, 1, 2])
    engine.publish(*(Message(x, "fire", place=Point(x, 2), time=NOON) for x in (0, 1000)))
    again = after_a_crash(tmp_path / "own")
    assert again.outdated_safe_regions() == [0, 1]
    assert again.safe_region(2) == given[2]
    assert engine.outdated_safe_regions() == [0, 1]
    again = after_a_crash(tmp_path / "own")
    assert again.outdated_safe_regions() == []
    smaller = engine.safe_regions([0, 3])
    assert smaller[0] != given[0]
    engine.move(3, Point(3001, 0), NOON)  # it reports, and is not watched any more
    told = []
    for each in (engine, after_a_crash(tmp_path / "own")):
        each.publish(
            *(
                Message(500 + x, "fire", place=Point(x, 1.5), time=NOON)
                for x in (0, 1000, 2000, 3000)
            )
        )
        told.append(each.outdated_safe_regions())
        assert each.safe_regions([4, 5]) == engine.safe_regions([4, 5])
    assert told == [[0, 2], [0, 2]]


def test_safe_regions_outlive_a_crash_as_they_were_given(tmp_path: Path) -> None:
    """Where a client was heading before the engine was saved is not known after a crash."""
    Engine(Moving(timedelta(minutes=9)), space="planar").save(tmp_path / "own")
    engine = Engine.open(tmp_path / "own", journal=True)
    OPENED.append(engine)
    engine.subscribe(Subscription(1, ["fire"], region=Circle(0, 0, 1)))
    engine.safe_region(1)
    engine.move(1, Point(1, 0), NOON)
    engine.save(tmp_path / "own")
    given = engine.safe_region(1)
    assert isinstance(given, Circle)
    assert given.x > 100  # ahead of the client
    again = after_a_crash(tmp_path / "own")
    again.publish(Message(1, "fire", place=Point(given.x + given.radius, 0), time=NOON))
    assert again.outdated_safe_regions() == [1]


def test_saving_begins_a_new_journal(kind: str, tmp_path: Path) -> None:
    engine = journaled(kind, tmp_path / "own")
    engine.subscribe(subscription(kind, 1))
    before = {path.name for path in (tmp_path / "own").glob("journal-*")}
    engine.save(tmp_path / "elsewhere")
    assert {path.name for path in (tmp_path / "own").glob("journal-*")} == before
    engine.save(tmp_path / "own")
    (new,) = (tmp_path / "own").glob("journal-*")
    assert new.name not in before
    assert new.stat().st_size == 0
    engine.subscribe(subscription(kind, 2))
    assert len(after_a_crash(tmp_path / "own")) == 2
    assert len(Engine.open(tmp_path / "elsewhere")) == 1


def last_record(directory: Path) -> tuple[Path, int, int]:
    """Return a journal, where its last record begins, and its size."""
    (path,) = directory.glob("journal-*.log")
    ends = [end for _, end in journal._read(path)]
    return path, ([0, *ends])[-2], path.stat().st_size


def test_a_torn_record_is_dropped_and_written_over(tmp_path: Path) -> None:
    engine = journaled("boolean-block_trie", tmp_path / "own")
    for number in range(3):
        engine.subscribe(subscription("boolean", number))
    engine.close()
    path, start, size = last_record(tmp_path / "own")
    content = path.read_bytes()
    assert content[-8:] != bytes(8)
    for length in range(start, size):
        path.write_bytes(content[:length])
        assert len(Engine.open(tmp_path / "own")) == 2
    torn = (content[:-9], content[:-9] + b"\xff" * 9, content[:start] + bytes(size - start))
    for ending in torn:
        path.write_bytes(ending)
        engine = Engine.open(tmp_path / "own", journal=True)
        assert len(engine) == 2
        engine.subscribe(subscription("boolean", 7))
        engine.close()
        assert 7 in Engine.open(tmp_path / "own")


def test_damage_before_the_last_record_is_refused(tmp_path: Path) -> None:
    engine = journaled("boolean-block_trie", tmp_path / "own")
    for number in range(3):
        engine.subscribe(subscription("boolean", number))
    engine.close()
    path, start, _ = last_record(tmp_path / "own")
    content = path.read_bytes()
    (first, *_) = (end for _, end in journal._read(path))
    for at in [*range(0, 48), *range(48, start, 7)]:
        damaged = bytearray(content)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        record, byte = (0, 0) if at < first else (1, first)
        try:
            opened = Engine.open(tmp_path / "own")
        except SavedIndexError as error:
            assert f"damaged at byte {byte}, in record {record}" in str(error)  # noqa: PT017
        else:  # between records, or in bytes of the header that say nothing
            assert len(opened) == 3
    path.write_bytes(content[:first] + content[start:])  # one is gone
    with pytest.raises(SavedIndexError, match="in record 1"):
        Engine.open(tmp_path / "own")


def test_one_engine_at_a_time_keeps_the_journal(tmp_path: Path) -> None:
    engine = journaled("boolean-block_trie", tmp_path / "own")
    with pytest.raises(SavedIndexError, match="in use by an engine that keeps a journal"):
        Engine.open(tmp_path / "own", journal=True)
    with pytest.raises(SavedIndexError, match="in use by an engine that keeps a journal"):
        Engine().save(tmp_path / "own")
    engine.subscribe(subscription("boolean", 1))
    assert len(Engine.open(tmp_path / "own")) == 1  # reading is free
    engine.close()
    engine.subscribe(subscription("boolean", 2))  # of which nobody takes note
    again = Engine.open(tmp_path / "own", journal=True)
    assert len(again) == 1
    again.close()
    Engine().save(tmp_path / "own")
    assert len(Engine.open(tmp_path / "own")) == 0


def test_a_journal_needs_a_saved_engine(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("nothing", "empty"):
        with pytest.raises(SavedIndexError, match="is not a saved index"):
            Engine.open(tmp_path / name, journal=True)
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.parametrize("call", ["write", "sync"])
def test_what_cannot_be_noted_ends_the_engine(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = journaled("boolean-block_trie", tmp_path / "own")
    engine.subscribe(subscription("boolean", 1))
    (path,) = (tmp_path / "own").glob("journal-*")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if call == "sync":
        monkeypatch.setattr(os, "fdatasync", no_space)
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 9, limits[1]))
    try:
        with pytest.raises(SavedIndexError, match=r"the journal in .*: (No space|File too large)"):
            engine.subscribe(subscription("boolean", 2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    monkeypatch.undo()  # the system says once that something is wrong
    with pytest.raises(EarshotError, match="an earlier call was interrupted"):
        engine.subscribe(subscription("boolean", 3))
    left = after_a_crash(tmp_path / "own")
    assert 1 in left
    assert 3 not in left
    with contextlib.suppress(SavedIndexError):
        engine.close()
    Engine.open(tmp_path / "own", journal=True).close()  # it is free again


def no_space(*_: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_failure_in_the_background_is_told_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Engine().save(tmp_path / "own")
    engine = Engine.open(tmp_path / "own", journal=timedelta(milliseconds=5))
    monkeypatch.setattr(os, "fdatasync", no_space)
    engine.subscribe(subscription("boolean", 1))
    time.sleep(0.2)
    with pytest.raises(EarshotError, match="may not be on disk"):
        len(engine)
    monkeypatch.undo()
    with pytest.raises(SavedIndexError, match="may not be on disk"):
        engine.close()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_save_that_fails_does_not_lose_the_journal(
    is_replaced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = journaled("boolean-block_trie", tmp_path / "own")
    engine.subscribe(subscription("boolean", 1))
    if is_replaced:
        sync, calls = storage.sync, list[Path]()

        def fail_the_second_time(directory: Path) -> None:
            calls.append(directory)
            if len(calls) == 2:
                no_space()
            sync(directory)

        monkeypatch.setattr(storage, "sync", fail_the_second_time)
    else:
        monkeypatch.setattr(storage, "_write_array", no_space)
    with pytest.raises(SavedIndexError, match="No space left"):
        engine.save(tmp_path / "own")
    monkeypatch.undo()
    if is_replaced:  # and nobody would read what is noted now
        with pytest.raises(EarshotError, match="an earlier call was interrupted"):
            engine.subscribe(subscription("boolean", 2))
    else:
        engine.subscribe(subscription("boolean", 2))
    assert len(after_a_crash(tmp_path / "own")) == (1 if is_replaced else 2)


def test_a_journal_waits_for_a_save_that_is_under_way(tmp_path: Path) -> None:
    Engine().save(tmp_path / "own")
    with ThreadPoolExecutor(1) as pool:
        with storage._locked(tmp_path / "own"):
            opening = pool.submit(Engine.open, tmp_path / "own", journal=True)
            with pytest.raises(TimeoutError):
                opening.result(0.2)
        opening.result().close()


def test_a_reader_finds_what_was_acknowledged_before_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = journaled("boolean-block_trie", tmp_path / "own")
    owner.subscribe(subscription("boolean", 1))
    play, n_played = replay, list[int]()

    def save_meanwhile(*arguments: Any) -> None:
        if not n_played:
            owner.save(tmp_path / "own")
        n_played.append(1)
        play(*arguments)

    monkeypatch.setattr("earshot.engine.durable.replay", save_meanwhile)
    assert 1 in Engine.open(tmp_path / "own")
    assert len(n_played) == 2


def test_an_id_that_comes_again_is_replayed_in_order(tmp_path: Path) -> None:
    engine = journaled("boolean-block_trie", tmp_path / "own")
    engine.advance(NOON)
    hour = timedelta(hours=1)
    engine.subscribe(Subscription(1, ["fire"], expires=NOON - hour))  # and is gone at once
    engine.subscribe(Subscription(1, ["fire"], expires=NOON + hour))
    for _ in range(3):
        engine.unsubscribe(1)
        engine.subscribe(Subscription(1, ["fire"], expires=NOON + hour))
    assert 1 in after_a_crash(tmp_path / "own")


@pytest.mark.parametrize("id_type", [pa.string(), pa.large_string(), DICTIONARY])
def test_ids_of_any_type_are_replayed(id_type: pa.DataType, tmp_path: Path) -> None:
    engine = journaled("boolean-block_trie", tmp_path / "own")
    for name in ("a", "b", "c"):
        table = pa.table(
            {"id": pa.array([name]).cast(id_type), "keywords": [["fire"]], "other": [1]}
        )
        engine.subscribe_batch(table)
        engine.subscribe(Subscription(f"{name}2", ["fire"]))
    engine.unsubscribe("a")
    assert len(after_a_crash(tmp_path / "own")) == 5


def test_what_begins_and_ends_is_replayed_without_building_anything(tmp_path: Path) -> None:
    engine = journaled("boolean-block_trie", tmp_path / "own")
    for number in range(6):
        engine.subscribe(subscription("boolean", number))
    engine.unsubscribe(1)
    engine.unsubscribe(4)
    again = after_a_crash(tmp_path / "own")
    assert again._state.matcher.index.n_slots == 0  # type: ignore[attr-defined]
    assert [number in again for number in range(6)] == [True, False, True, True, False, True]
    assert state_of(again) == state_of(engine)


def test_words_of_a_refused_message_are_replayed(tmp_path: Path) -> None:
    engine = journaled("topk-count", tmp_path / "own")
    engine.publish(message(1))
    with pytest.raises(EarshotError):
        engine.publish(Message("other", "never heard words", place=Point(0, 0)))
    engine.publish(message(2))
    assert state_of(after_a_crash(tmp_path / "own")) == state_of(engine)


@pytest.mark.parametrize("wrong", [None, 0, 1.5, "yes", timedelta(0), timedelta(-1)])
def test_what_is_no_journal_is_refused(wrong: Any, tmp_path: Path) -> None:
    Engine().save(tmp_path / "own")
    with pytest.raises(InvalidParameter, match=r"journal is .*; expected True, False, or a timed"):
        Engine.open(tmp_path / "own", journal=wrong)


def test_a_forked_process_cannot_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = journaled("boolean-block_trie", tmp_path / "own")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(SavedIndexError, match="is that of another process"):
        engine.subscribe(subscription("boolean", 1))


def test_a_call_returns_when_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda file: synced.append(os.fstat(file).st_size))
    engine = journaled("topk-count", tmp_path / "own")
    (path,) = (tmp_path / "own").glob("journal-*")
    for number in range(3):
        engine.subscribe(subscription("topk", number))
        engine.publish(message(number))
        assert synced[-1] == path.stat().st_size > 0
    n_synced = len(synced)
    engine.results(1)
    with pytest.raises(EarshotError):
        engine.unsubscribe(99)
    assert len(synced) == n_synced
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: engine.subscribe(subscription("topk", n)), range(100, 180)))
    assert synced[-1] == path.stat().st_size
    assert len(synced) <= n_synced + 80
    assert len(after_a_crash(tmp_path / "own")) == 83


def test_now_and_then_is_enough_for_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Engine().save(tmp_path / "own")
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    engine = Engine.open(tmp_path / "own", journal=timedelta(milliseconds=20))
    for number in range(50):
        engine.subscribe(subscription("boolean", number))
    engine.close()
    assert 1 <= len(synced) < 50
    assert len(Engine.open(tmp_path / "own")) == 50


KILLED = """
import sys
sys.path.insert(0, sys.argv[1])
from saved_states import message, subscription
from earshot import Engine
engine, number = Engine.open(sys.argv[3], journal=True), 0
while True:
    engine.subscribe(subscription(sys.argv[2], number))
    print(number, flush=True)
    number += 1
    if number % 7 == 0:
        engine.publish(message(number))
    if number % 20 == 0:
        engine.save(sys.argv[3])
"""


def test_what_was_acknowledged_survives_a_kill(kind: str, tmp_path: Path) -> None:
    KINDS[kind]().save(tmp_path / "own")
    command = [sys.executable, "-c", KILLED, str(Path(__file__).parent), kind]
    with subprocess.Popen([*command, str(tmp_path / "own")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(45):
            acknowledged = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
    acknowledged = int(rest[-1]) if rest else acknowledged
    opened = Engine.open(tmp_path / "own", journal=True)
    assert len(opened) in (acknowledged + 1, acknowledged + 2)
    assert all(number in opened for number in range(acknowledged + 1))
    opened.close()


def test_neighbours_are_put_together_only_where_that_is_the_same(tmp_path: Path) -> None:
    engine = journaled("boolean-block_trie", tmp_path / "own")
    for number in range(4):
        engine.subscribe(Subscription(number, ["fire"], region=Circle(0, 0, 10)))
    engine.subscribe_batch(
        subscription_batch([Subscription(1, ["fire"]), Subscription(9, ["fire"])]),
        on_error="reject",
    )
    engine.unsubscribe(0)
    engine.unsubscribe(1)
    engine.advance(NOON)
    engine.subscribe(Subscription(10, ["fire"], region=Circle(0, 0, 10)))
    records = list(read_records(tmp_path / "own", Saved.open(tmp_path / "own").state))
    assert [each.kind for each in records] == [
        *["subscribe"] * 5, "unsubscribe", "unsubscribe", "advance", "subscribe",
    ]  # fmt: skip
    joined = list(merged(iter(records)))
    assert [(each.kind, each.rows.num_rows if each.rows else 0) for each in joined] == [
        ("subscribe", 4), ("subscribe", 2), ("unsubscribe", 2), ("advance", 0), ("subscribe", 1),
    ]  # fmt: skip


def test_beginning_and_ending_subscriptions_go_together_unless_it_is_the_same_one(
    tmp_path: Path,
) -> None:
    def table(*ids: int) -> pa.Table:
        return pa.table({"id": pa.array(ids, pa.int64())})

    apart = [
        Record("subscribe", table(1, 2)),
        Record("unsubscribe", table(3)),
        Record("subscribe", table(4)),
        Record("unsubscribe", table(5)),
    ]
    assert [(each.kind, each.rows["id"].to_pylist()) for each in merged(iter(apart))] == [
        ("unsubscribe", [3, 5]),
        ("subscribe", [1, 2, 4]),
    ]
    same = [*apart, *(Record("unsubscribe", table(n)) for n in (1, 4)), *apart[:1]]
    assert [(each.kind, each.rows["id"].to_pylist()) for each in merged(iter(same))] == [
        ("unsubscribe", [3]), ("subscribe", [1, 2, 4]),
        ("unsubscribe", [5, 1, 4]), ("subscribe", [1, 2]),
    ]  # fmt: skip
    short_lived = [
        Record("unsubscribe", table(1)),
        *apart,
        *(Record("unsubscribe", table(n)) for n in (6, 2, 1)),
    ]
    assert [(each.kind, each.rows["id"].to_pylist()) for each in merged(iter(short_lived))] == [
        ("unsubscribe", [1, 3, 5, 6]), ("subscribe", [1, 2, 4]), ("unsubscribe", [2, 1]),
    ]  # fmt: skip
