"""Changes that are taken into an index, and merged, give what the engine gives.

The functions of the workers are called here directly, with tables of opened shards of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely

from earshot import Engine, Ranking
from earshot.encoding import encode_subscriptions
from earshot.engine.changes import apply_changes
from earshot.files.layout import make_layout
from earshot.files.records import batch_of_records
from earshot.model.batches import time_us
from earshot.model.boolean import Boolean
from earshot.model.schemas import BOX_FIELDS
from earshot.placement.cutting import cut_plan
from earshot.placement.routing import UnitArrays
from earshot.spark import intake, shards, territory
from earshot.spark.build import BuildTask, _build_shard, _messages_like
from earshot.spark.intake import (
    FOLDED,
    MOST_FOLDED_CHANGES,
    _tail_to_fold,
    take_in,
)
from earshot.spark.merging import all_changes, net_changes
from earshot.spark.notes import NOTE
from earshot.spark.rows import RowReading
from earshot.spark.shards import read_delta
from earshot.spark.store import Base, Delta, IndexSettings, IndexStore, Version
from earshot.spark.territory import Territory, open_territory
from earshot.spark.workers import (
    CARRIED,
    KEY,
    MatchTask,
    match_replicated,
    match_sharded,
    send_to_shards,
    with_key,
)
from earshot.storage import Saved
from earshot.text import Analyzer, Vocabulary

RANKINGS = {
    "either part is not enough": Ranking(0.5, 0.6),
    "the place is enough": Ranking(0.7, 0.6),
    "the text is enough": Ranking(0.3, 0.6),
    "either part is enough": Ranking(0.5, 0.4),
}
START = datetime(2026, 1, 1, tzinfo=UTC)
WORDS = [f"w{i}" for i in range(12)]


def at(seconds: float | None) -> str | None:
    return None if seconds is None else (START + timedelta(seconds=seconds)).isoformat()


def table_of(
    records: list[dict[str, Any]], content: Any = "changes", ids: Any = "string"
) -> pa.Table:
    layout = make_layout(content, None, "", "raise")
    batch = batch_of_records(layout, records, ids, np.arange(len(records))).batch
    return pa.Table.from_batches([batch])


# ---- random events ------------------------------------------------------------------------------


class Events:
    """Random subscriptions, changes and messages around a small world, by their seed."""

    def __init__(self, seed: int, *, is_ranked: bool = False) -> None:
        self.random = np.random.default_rng(seed)
        self.now = 0.0
        self.is_ranked = is_ranked
        self.words = WORDS.copy()  # changes bring more

    def region(self) -> dict[str, Any]:
        random = self.random
        x, y = random.uniform([-185, -60], [175, 60])
        w, h = random.uniform(1, 60, 2)
        match int(random.integers(6)):
            case 0:
                return {}  # everywhere
            case 1:
                return {"x": max(x, -180.0), "y": y, "radius": float(random.uniform(1e4, 5e6))}
            case 2:
                low, high = np.clip([x, x + w], -180, 180)
                shape = shapely.Polygon([(low, y), (high, y), (high, y + h / 4)])
                return {"geometry": shape.wkt}
            case 3:  # across the antimeridian
                return {"min_x": 180 - w, "min_y": y, "max_x": -180 + w, "max_y": y + h / 4}
            case _:
                low, high = np.clip([x, x + w], -180, 180)
                return {"min_x": low, "min_y": y, "max_x": high, "max_y": y + h / 4}

    def subscription(self, name: str) -> dict[str, Any]:
        random = self.random
        record: dict[str, Any] = {"id": name, **self.region()}
        words = random.choice(self.words, 3, replace=False).tolist()
        kind = random.random()
        if kind < 0.2:
            record["expression"] = f"({words[0]} OR {words[1]}) AND NOT {words[2]}"
        elif kind < 0.9 or len(record) == 1:
            record["keywords"] = words[: random.integers(1, 3)]
        if random.random() < 0.3:
            record["expires"] = at(self.now + float(random.uniform(-5, 60)))
        if self.is_ranked and random.random() < 0.3:
            record["threshold"] = float(random.choice([0.2, 0.5, 0.7, 1.0]))
        return record

    def changes(self, n: int, n_ids: int) -> list[dict[str, Any]]:
        """Return changes of few ids, so that many are refused and many come several times."""
        records = []
        self.words += [f"w{len(self.words) + i}" for i in range(2)]
        for _ in range(n):
            self.now += float(self.random.choice([0, 0, 1, 5]))
            op = str(self.random.choice(["subscribe", "subscribe", "unsubscribe", "move"]))
            if self.random.random() < 0.05:
                op = "reweigh"
            name = f"s{self.random.integers(n_ids)}"
            record: dict[str, Any] = {"op": op, "id": name}
            if op == "subscribe":
                record |= self.subscription(name)
            elif op == "move":
                record |= self.region()
            if self.random.random() < 0.5:
                record["time"] = at(self.now - float(self.random.choice([0, 0, 20])))
            records.append(record)
        return records

    def messages(self, n: int) -> pa.Table:
        records = []
        for i in range(n):
            words = self.random.choice([*self.words, "unknown"], 5, replace=False)
            x, y = self.random.uniform([-180, -65], [180, 65])
            record: dict[str, Any] = {"id": f"m{i}", "text": " ".join(words)}
            if self.random.random() < 0.2:
                x = 180 if x > 150 else x  # some boxes cross the antimeridian
                end = x + 20 if x + 20 <= 180 else x + 20 - 360
                record |= {"min_x": x, "min_y": y, "max_x": end, "max_y": y + 5}
            else:
                record |= {"x": x, "y": y}
            if self.random.random() < 0.3:
                record["time"] = at(self.now + float(self.random.uniform(-30, 30)))
            records.append(record)
        return table_of(records, "messages")


# ---- an index without Spark ---------------------------------------------------------------------


def build_here(
    location: Path, rows: pa.Table, n_shards: int | None, semantics: Any = None
) -> IndexStore:
    """Build an index as the tasks of Spark do, in this process."""
    store = IndexStore(location)
    settings = IndexSettings("string", semantics or Boolean())
    store.begin(settings)
    folder = store.base_folder(store.next_name("bases"))
    shard_of = np.zeros(rows.num_rows, np.int32)
    cut = None
    if n_shards is not None:
        vocabulary = Vocabulary()
        clauses = encode_subscriptions(
            rows, settings.analyzer, vocabulary, "lonlat", form=settings.form
        ).asked
        frequencies = np.bincount(np.maximum(clauses.token_ids, 0), minlength=len(vocabulary))
        plan, _ = cut_plan(
            clauses, _messages_like(clauses), n_shards,
            frequencies=frequencies, n_subscriptions=rows.num_rows,
        )  # fmt: skip
        cut = Territory(plan, vocabulary, frequencies, (), settings)
        folder.add("plan", cut.save)
        shard_of = cut.assign(rows)[0]
    task = BuildTask(folder.uri, settings, n_shards, stop_at_rejects=True)
    noted = rows.append_column(NOTE, pa.nulls(rows.num_rows, pa.string()))
    built = []
    for shard in range(n_shards or 1):
        mine = noted.filter(pa.array(shard_of == shard)).combine_chunks().to_batches()
        built.append(_build_shard(task, shard, mine)[0].to_pylist()[0])
    names = tuple(each["directory"] for each in built)
    if cut is not None:
        units = [
            Saved.open(folder.local(f"units/{name}")).group("units", UnitArrays) for name in names
        ]
        folder.add("territory", replace(cut, parts=tuple(units)).save)
    base = Base(
        folder.uri.rpartition("/")[2],
        "replicated" if n_shards is None else "sharded",
        tuple(each["n_subscriptions"] for each in built),
        tuple(each["n_bytes"] for each in built),
        names,
    )
    store.publish(Version(1, base, n_subscriptions=sum(base.n_subscriptions)))
    return store


class Worker:
    """A process of Spark's, as far as it keeps shards open."""

    def __init__(self) -> None:
        self._opened: Any = {}
        self._territories: Any = {}

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        drivers = shards._opened, territory._territories
        shards._opened, territory._territories = self._opened, self._territories
        try:
            yield
        finally:
            shards._opened, territory._territories = drivers

    def at_shards(self, work: Callable[[int], Any], numbers: Sequence[int]) -> list[Any]:
        with self.working():
            return [work(number) for number in numbers]

    def match(
        self, store: IndexStore, version: Version, messages: pa.Table, clock_us: int | None = None
    ) -> set[tuple[str, str, float | None]]:
        reading = RowReading("messages", "columns", "string")
        clocks = [each for each in (clock_us, version.clock_us) if each is not None]
        task = MatchTask(
            store.folder.uri,
            version,
            store.settings,
            reading,
            "rows",
            pa.schema([]),
            clock_us=max(clocks, default=None),
        )
        batches = messages.to_batches(max_chunksize=37)
        with self.working():
            if version.base.placement == "replicated":
                found = list(match_replicated(task, batches))
            else:
                found = list(match_sharded(task, send_to_shards(task, batches)))
        rows = [row for batch in found for row in batch.to_pylist()]
        assert len(rows) == len({(row["message_id"], row["subscription_id"]) for row in rows})
        return {(row["message_id"], row["subscription_id"], row.get("score")) for row in rows}


def expected(engine: Engine, messages: pa.Table, clock_us: int | None = None) -> set[Any]:
    clock = None if clock_us is None else START + timedelta(microseconds=clock_us - time_us(START))
    updates = engine.match_batch(messages, at=clock)
    return {(update.message_id, update.subscription_id, update.score) for update in updates}


def live_in(engine: Engine, n_ids: int) -> set[str]:
    return {f"s{i}" for i in range(n_ids) if f"s{i}" in engine}


class Both:
    """An index and an engine that get the same changes."""

    def __init__(
        self,
        root: Path,
        first: list[dict[str, Any]],
        n_shards: int | None,
        semantics: Any = None,
    ) -> None:
        rows = table_of(first, "subscriptions")
        self.store = build_here(root / "index", rows, n_shards, semantics)
        self.engine = Engine(semantics)
        self.engine.subscribe_batch(rows)
        self.worker = Worker()  # in which words are counted

    def apply(self, records: list[dict[str, Any]], clock_us: int | None = None) -> Version:
        changes = table_of(records)
        if clock_us is not None:
            self.engine.advance(START + timedelta(microseconds=clock_us - time_us(START)))
        wanted = [error.row for error in apply_changes(self.engine, changes)]
        took = take_in(self.store, changes, clock_us=clock_us, at_shards=self.worker.at_shards)
        assert [error.row for error in took.rejects] == wanted
        assert took.version.n_subscriptions == len(self.engine)
        assert not shards._opened, "the driver opens no shard"
        return took.version


@pytest.mark.parametrize("n_shards", [None, 3])
def test_what_ends_and_what_has_no_keywords_is_known_without_its_shard(
    tmp_path: Path, n_shards: int | None
) -> None:
    box = {"min_x": 0.0, "min_y": 0.0, "max_x": 1.0, "max_y": 1.0}
    soon, later = ((START + timedelta(hours=n)).isoformat() for n in (1, 2))
    ends = {"expires": soon}
    first = [{"id": f"s{i}", "keywords": ["crash"]} for i in range(20)]
    both = Both(
        tmp_path,
        [*first, {"id": "bound", **box}, {"id": "brief", "keywords": ["fire"], **ends},
         {"id": "short", "keywords": ["fire"], **ends}],
        n_shards,
    )  # fmt: skip
    anywhere = [{"op": "move", "id": each} for each in ("bound", "s3", "nobody")]
    version = both.apply(
        [
            *anywhere,
            {"op": "move", "id": "brief", "time": START.isoformat(), **box},
            {"op": "subscribe", "id": "brief", "keywords": ["crash"], "time": START.isoformat()},
            # By now the first one has ended.
            {"op": "subscribe", "id": "brief", "keywords": ["crash"], "time": later},
        ]
    )  # fmt: skip
    assert version.n_changes == 3
    assert len(both.engine) == 22
    assert both.apply([{"op": "unsubscribe", "id": "short"}]).n_subscriptions == 22


@pytest.mark.parametrize(
    ("n_shards", "semantics"),
    [
        *((n_shards, None) for n_shards in (None, 1, 4)),
        (None, RANKINGS["either part is not enough"]),
        *(pytest.param(4, ranking, id=f"4-{name}") for name, ranking in RANKINGS.items()),
    ],
)
def test_any_changes_give_what_the_engine_gives(
    tmp_path: Path, n_shards: int | None, semantics: Any
) -> None:
    events = Events(3, is_ranked=semantics is not None)
    n_ids = 60
    first = [events.subscription(f"s{i}") for i in range(0, n_ids, 2)]
    both = Both(tmp_path, first, n_shards, semantics)
    old_hand = Worker()
    seen = []
    for number in range(12):
        clock_us = None
        if number % 3 == 2:  # the clock of messages is ahead of the changes'
            clock_us = time_us(START + timedelta(seconds=events.now + 15))
        version = both.apply(events.changes(25, n_ids), clock_us)
        messages = events.messages(60)
        wanted = expected(both.engine, messages)
        seen.append((version, messages, wanted))
        assert old_hand.match(both.store, version, messages) == wanted
        if number % 4 == 3:
            assert Worker().match(both.store, version, messages) == wanted
    assert sum(len(wanted) for _, _, wanted in seen) > 300
    for version, messages, wanted in seen[::4]:  # what a batch that runs again asks for
        assert old_hand.match(both.store, version, messages) == wanted


@pytest.mark.parametrize("n_shards", [None, 3])
def test_many_small_batches_leave_few_deltas(tmp_path: Path, n_shards: int | None) -> None:
    """Small deltas are joined, also under the eyes of workers that have some of their steps."""
    events = Events(8)
    both = Both(tmp_path, [events.subscription(f"s{i}") for i in range(0, 40, 2)], n_shards)
    workers = {every: Worker() for every in (1, 5, 13)}
    early = None
    for number in range(1, 2 * 64 + 1):
        version = both.apply(events.changes(1, 40))
        assert len(version.deltas) <= 3 * (FOLDED - 1)
        for every, worker in workers.items():
            if number % every == 0 and number % 3 == 0:
                messages = events.messages(10)
                wanted = expected(both.engine, messages)
                assert worker.match(both.store, version, messages) == wanted
                if early is None and len(wanted) > 3:
                    early = version, messages, wanted
    assert 40 < version.n_changes == version.step < number, "some were refused"
    assert sum(delta.n_steps for delta in version.deltas) == version.step
    messages = events.messages(60)
    assert Worker().match(both.store, version, messages) == expected(both.engine, messages)
    assert early is not None
    assert workers[1].match(both.store, *early[:2]) == early[2], "an earlier version is asked for"


@pytest.mark.parametrize("n_shards", [None, 3])
def test_a_small_batch_costs_as_much_after_many_as_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_shards: int | None
) -> None:
    """By what is read, not by the clock; ``small_changes.py`` has the times of 1,000 batches."""
    events = Events(9)
    store = build_here(
        tmp_path / "index",
        table_of([events.subscription(f"s{i}") for i in range(20)], "subscriptions"),
        n_shards,
    )
    read_here: list[int] = []  # changes in each delta that is read

    def reading(store: IndexStore, delta: Delta) -> tuple[pa.Table, int | None]:
        table, clock_us = read_delta(store, delta)
        read_here.append(table.num_rows)
        return table, clock_us

    for module in (intake, shards):
        monkeypatch.setattr(module, "read_delta", reading)
    n_batches = FOLDED**2 + FOLDED - 1
    for number in range(n_batches):
        record = {"op": "subscribe", **events.subscription(f"t{number}"), "expires": None}
        version = take_in(store, table_of([record]), stream="changes", batch=number).version
        store.clean()
    assert sum(read_here) <= 2 * n_batches, "a change is read again each time it is joined"
    assert max(read_here) < FOLDED**2
    left = [path for path in (tmp_path / "index" / "deltas").iterdir() if path.is_dir()]
    assert len(left) <= 2 * FOLDED, "of the last two versions"
    assert len(list((tmp_path / "index" / "versions").iterdir())) == 2

    read_here.clear()
    Worker().match(store, version, events.messages(5))  # opens all shards
    n_opened = n_shards or 1
    assert sum(read_here) == n_opened * n_batches, "each change once"
    assert len(read_here) == n_opened * len(version.deltas) <= n_opened * FOLDED


def test_deltas_are_joined_by_number_unless_they_are_large() -> None:
    deltas: tuple[Delta, ...] = ()
    most = n_written = 0
    for step in range(1, 1_001):
        kept, folded = _tail_to_fold(deltas, 1)
        n_changes = 1 + sum(delta.n_changes for delta in folded)
        first = folded[0].first if folded else step
        deltas = (*kept, Delta("", first, step, n_changes))
        most, n_written = max(most, len(deltas)), n_written + n_changes
    assert most <= 4 * (FOLDED - 1)
    assert n_written < 4 * 1_000, "each change is written once for each size"
    large = tuple(Delta("", step, step, MOST_FOLDED_CHANGES // 4) for step in range(1, 20))
    assert _tail_to_fold(large, 1) == (large, ())


def test_changes_find_the_clock_that_they_found_on_the_driver(tmp_path: Path) -> None:
    """A worker's shard does not see the times of the other shards' changes, nor of messages."""
    box = {"min_x": 0, "min_y": 0, "max_x": 1, "max_y": 1}
    a = {"op": "subscribe", "id": "s0", "keywords": ["w1"], **box}
    both = Both(tmp_path, [{"id": "s0", "keywords": ["w0"], "expires": at(10), **box}], None)
    # It is over by the clock of the messages, so the id is free.
    version = both.apply([a], clock_us=time_us(START + timedelta(seconds=20)))
    messages = table_of([{"id": "m", "text": "w0 w1", "x": 0.5, "y": 0.5}], "messages")
    assert Worker().match(both.store, version, messages) == {("m", "s0", None)}
    assert read_delta(both.store, version.deltas[-1])[0]["time"].to_pylist() == [
        START + timedelta(seconds=20)
    ]


def test_refused_changes_move_the_clock_as_well(tmp_path: Path) -> None:
    box = {"min_x": 0, "min_y": 0, "max_x": 1, "max_y": 1}
    both = Both(tmp_path, [{"id": "s0", "keywords": ["w0"], "expires": at(10), **box}], None)
    messages = table_of([{"id": "m", "text": "w0", "x": 0.5, "y": 0.5}], "messages")
    assert Worker().match(both.store, both.store.latest(), messages) == {("m", "s0", None)}
    version = both.apply([{"op": "unsubscribe", "id": "nobody", "time": at(11)}])
    assert version.number == 2
    assert version.deltas == ()
    assert Worker().match(both.store, version, messages) == set()
    assert Worker().match(both.store, both.store.version(1), messages) == {("m", "s0", None)}
    again = both.apply([{"op": "unsubscribe", "id": "nobody"}])
    assert again.number == 2, "nothing came of that"


def test_a_batch_is_taken_in_once(tmp_path: Path) -> None:
    both = Both(tmp_path, [{"id": "s0", "keywords": ["w0"]}], None)
    changes = table_of([{"op": "subscribe", "id": "s1", "keywords": ["w1"]}])
    first = take_in(both.store, changes, stream="a", batch=4)
    assert first.version.taken_in == {"a": 4}
    for batch in (3, 4):
        again = take_in(both.store, changes, stream="a", batch=batch)
        assert (again.version, again.rejects) == (first.version, [])
    other = take_in(both.store, changes, stream="b", batch=0)
    assert [error.row for error in other.rejects] == [0]
    assert other.version.taken_in == {"a": 4, "b": 0}
    nothing = take_in(both.store, changes.slice(0, 0), stream="a", batch=5)
    assert nothing.version.taken_in == {"a": 5, "b": 0}
    assert nothing.version.deltas == first.version.deltas


def test_what_fails_midway_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = Both(tmp_path, [{"id": "s0", "keywords": ["w0"]}], None)
    change = {"op": "subscribe", "id": "s1", "keywords": ["w1"]}
    with monkeypatch.context() as patch:
        patch.setattr(IndexStore, "publish", _fail)
        with pytest.raises(OSError, match="disk is full"):
            take_in(both.store, table_of([change]))
    assert both.store.version_numbers() == [1]
    version = both.apply([change])  # the driver's shards do not have it already
    messages = table_of([{"id": "m", "text": "w1 w0", "x": 0, "y": 0}], "messages")
    assert Worker().match(both.store, version, messages) == {("m", "s0", None), ("m", "s1", None)}


def _fail(*_: object) -> None:
    raise OSError("the disk is full")


def test_deltas_come_to_what_the_engine_holds(tmp_path: Path) -> None:
    events = Events(11)
    n_ids = 30
    both = Both(tmp_path, [events.subscription(f"s{i}") for i in range(10)], None)
    held = {f"s{i}" for i in range(10)}
    for _ in range(20):
        version = both.apply(events.changes(10, n_ids))
        net = net_changes(all_changes(both.store, version))
        replaced, moved, new = (
            set(part.to_pylist()) for part in (net.replaced, net.moved["id"], net.new["id"])
        )
        assert moved.isdisjoint(replaced | new)
        assert moved <= held
        # What has expired is left to the clock.
        assert live_in(both.engine, n_ids) <= (held - replaced) | new


# ---- several shards --------------------------------------------------------------------


def test_parts_of_a_list_share_a_key(tmp_path: Path) -> None:
    """Message ids may repeat; what belongs together is told by the key."""
    events = Events(5)
    store = build_here(
        tmp_path / "index",
        table_of([events.subscription(f"s{i}") for i in range(80)], "subscriptions"),
        4,
    )
    messages = events.messages(40)
    same_id = messages.set_column(0, "id", pa.repeat("same", 40)).append_column(
        "text2", messages["id"]
    )
    task = MatchTask(
        store.folder.uri, store.latest(), store.settings,
        RowReading("messages", "columns", "string"), "lists",
        pa.schema([("text2", pa.string())]), keep_unmatched=True,
    )  # fmt: skip
    with Worker().working():
        sent = list(send_to_shards(task, same_id.to_batches(max_chunksize=7)))
        found = list(match_sharded(task, sent))
    names = ["id", "tokens", *BOX_FIELDS, "time_us"]
    assert sent[0].schema.names == ["earshot_shard", KEY, *names, f"{CARRIED}text2", NOTE]
    lists: dict[int, set[str]] = {}
    for batch in found:
        assert batch.schema == with_key(task).schema
        for row in batch.to_pylist():
            assert row["message_id"] == "same"
            assert row["text2"] == f"m{row[KEY]}"
            some = lists.setdefault(row[KEY], set())
            assert some.isdisjoint(row["subscription_ids"])
            some |= set(row["subscription_ids"])
    engine = Engine()
    engine.subscribe_batch(subscription_rows(store))
    wanted = expected(engine, messages)
    assert sorted(lists) == list(range(40)), "nobody is left out"
    assert {(f"m{key}", each, None) for key, some in lists.items() for each in some} == wanted


def test_a_message_is_analysed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is routed; the shards that it goes to get its tokens."""
    events = Events(6)
    first = [events.subscription(f"s{i}") for i in range(120)]
    both = Both(tmp_path, first, 4)
    version = both.apply(events.changes(40, 150))
    messages = events.messages(90)
    task = MatchTask(
        both.store.folder.uri, version, both.store.settings,
        RowReading("messages", "columns", "string"),
        "rows", pa.schema([]), clock_us=version.clock_us,
    )  # fmt: skip
    analysed: list[str] = []
    analyze = Analyzer.analyze

    def counting(self: Analyzer, texts: pa.Array, *rest: Any, **options: Any) -> Any:
        analysed.extend(texts.to_pylist())
        return analyze(self, texts, *rest, **options)

    with Worker().working():
        opened = open_territory(task.index, version, task.settings)
        for shard in range(4):
            shards.open_shard(task.index, version, shard)
        monkeypatch.setattr(Analyzer, "analyze", counting)
        sent = list(send_to_shards(task, messages.to_batches(max_chunksize=20)))
        assert sorted(analysed) == sorted(messages["text"].to_pylist())
        found = list(match_sharded(task, sent))
    assert len(analysed) == 90, "each once"
    assert sum(len(batch) for batch in sent) > 2 * 90, "most go to several shards"
    assert "unknown" not in opened.vocabulary.tokens(range(len(opened.vocabulary)))
    monkeypatch.undo()
    rows = {(row["message_id"], row["subscription_id"], None)
            for batch in found for row in batch.to_pylist()}  # fmt: skip
    assert rows == expected(both.engine, messages)


def subscription_rows(store: IndexStore) -> pa.Table:
    base = store.latest().base
    folder = Path(store.base_folder(base).path)
    return pa.concat_tables(
        pq.read_table(folder / "rows" / name / "rows.parquet") for name in base.shards
    )
