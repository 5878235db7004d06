"""Events for pipelines that keep messages, and what the engine makes of them."""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from earshot import Engine, Moving, TopK
from earshot.errors import InvalidInput
from earshot.files import read_rows
from earshot.model.batches import time_us
from earshot.model.schemas import Content
from earshot.spark.intake import in_order
from earshot.spark.prepare import ROW, SOURCE
from earshot.spark.recorded import KINDS, EventLog
from earshot.spark.shards import SHARD

START = datetime(2026, 5, 1, 12, tzinfo=UTC)
WORDS = [f"w{number}" for number in range(40)]


class Feed:
    """Directories into which events of all kinds are put, round by round."""

    def __init__(self, root: Path, semantics: Any, *, n_subscriptions: int = 60, seed: int = 3):
        self.root, self.semantics = root, semantics
        self.has_positions = isinstance(semantics, Moving)
        self._has_regions = not isinstance(semantics, TopK)
        self._drafts = root / "drafts"
        for name in ("messages", "changes", "positions", "drafts"):
            (root / name).mkdir(parents=True)
        self._random = np.random.default_rng(seed)
        self._next = 0
        self._live: list[str] = []
        self.subscriptions = pa.Table.from_pylist(
            [self._subscription() for _ in range(n_subscriptions)]
        )

    def _subscription(self) -> dict[str, Any]:
        name = f"s{self._next}"
        self._next += 1
        self._live.append(name)
        random = self._random
        words = random.choice(WORDS[:12], size=int(random.integers(1, 6)), replace=False).tolist()
        x, y = random.uniform(0, 10, 2).tolist()
        if not self._has_regions:
            return {"id": name, "keywords": words, "x": x, "y": y}
        if not self.has_positions:
            return {"id": name, "keywords": words[:2], "x": x, "y": y, "radius": 3.0}
        row = {"id": name, "keywords": words[:1], "x": x, "y": y, "radius": 3.0}
        expires = START + timedelta(seconds=int(random.integers(20, 400)))
        row["expires"] = expires if random.random() < 0.2 else None
        row["dwell"] = 2.0 if random.random() < 0.2 else None
        return row

    def add(self, number: int, *, n_messages: int = 80, n_changes: int = 12) -> None:
        """Put a file of each kind; times go on from round to round."""
        random = self._random
        times = [self._time(number, at / n_messages) for at in range(n_messages)]
        messages = [
            {"id": f"m{number}-{at}",
             "text": " ".join(random.choice(WORDS, size=int(random.integers(2, 9))).tolist()),
             "x": float(random.uniform(0, 10)), "y": float(random.uniform(0, 10)), "time": time}
            for at, time in enumerate(times)
        ]  # fmt: skip
        messages.insert(7, {"id": f"bad{number}", "text": "w1", "x": 1.0})
        messages.append({**messages[0], "id": f"late{number}",
                         "time": self._time(number - 30, 0.0)})  # fmt: skip
        changes: list[dict[str, Any]] = []
        for at in range(n_changes // 3):
            time = {"time": self._time(number, at / n_changes)}
            changes.append({"op": "subscribe", **self._subscription(), **time})
            gone = self._live.pop(int(random.integers(len(self._live))))
            changes.append({"op": "unsubscribe", "id": gone, **time})
            moved = self._live[int(random.integers(len(self._live)))]
            x, y = random.uniform(0, 10, 2).tolist()
            place = {"x": x, "y": y, **({"radius": 2.0} if self._has_regions else {})}
            changes.append({"op": "move", "id": moved, **place, **time})
        # New words at one time: of an id that ends and comes again, of another, of a taken one.
        changes += [
            {"op": "unsubscribe", "id": moved, **time},
            {"op": "subscribe", "id": moved, "keywords": [f"back{number}", "w2"], **place, **time},
            {
                "op": "subscribe",
                "id": f"new{number}",
                "keywords": [f"new{number}"],
                **place,
                **time,
            },
        ]
        changes.insert(4, {"op": "reweigh", "id": "words", "time": changes[4]["time"]})
        again = {"op": "subscribe", "id": self._live[0], "keywords": [f"again{number}"],
                 "x": 1.0, "y": 1.0}  # fmt: skip
        changes += [again, {"op": "unsubscribe", "id": "nobody"}]
        if self._has_regions:
            changes[-2]["radius"] = 1.0
        if self.has_positions:
            self._put("positions", number, self._positions(number))
        for each in changes:
            each.setdefault("time", changes[-3]["time"])
        self._put("changes", number, changes)
        self._put("messages", number, messages)

    def tables(self, number: int) -> dict[Content, pa.Table]:
        """Return a round as a pipeline would write it down; good rows only, in order."""
        found: dict[Content, pa.Table] = {}
        for kind in KINDS:
            path = self.root / kind / f"{number:04d}.ndjson"
            if not path.exists():
                continue
            parts = read_rows(kind, path, space="planar", ids="string", on_error="reject")
            rows = pa.Table.from_batches([part.batch for part in parts])
            rows = in_order(rows, by_origin=False)
            rows = rows.append_column(SOURCE, pa.repeat("", len(rows)))
            rows = rows.append_column(ROW, pa.array(range(len(rows))))
            found[kind] = rows.append_column(SHARD, self._shards(rows))
        return found

    def is_of(self, shard: int, rows: pa.Table) -> pa.Array:
        """Return which rows are of a shard."""
        return pc.equal(self._shards(rows), shard)

    def _shards(self, rows: pa.Table) -> pa.Array:
        return pa.array([sum(map(ord, each)) % 3 for each in rows["id"].to_pylist()], pa.int32())

    def _positions(self, number: int) -> list[dict[str, Any]]:
        random, rows = self._random, []
        for at in range(60):
            name = self._live[int(random.integers(len(self._live)))] if at % 20 else "nobody"
            x, y = random.uniform(0, 10, 2).tolist()
            time = self._time(number, (at - at % 3 + 0.5) / 60)
            rows.append({"id": name, "x": x, "y": y, "time": time})
        rows.append({**rows[1], "time": self._time(number - 1, 0.1)})
        return rows

    def _time(self, number: int, share: float) -> str:
        return (START + timedelta(seconds=10 * (number + share))).isoformat()

    def _put(self, kind: str, number: int, rows: list[dict[str, Any]]) -> None:
        draft = self._drafts / f"{number:04d}.ndjson"
        draft.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows))
        draft.rename(self.root / kind / draft.name)


class Told(NamedTuple):
    """An update, but for whose it is."""

    message: str
    sign: str
    score: float | None
    reason: str
    time: int | None  # in microseconds since 1970


Streams = dict[str, list[Told]]
"""The updates of each subscription, in order."""


def updates_in(folder: Path) -> tuple[Streams, int]:
    """Return the updates of each subscription, as any reader of Parquet sees them."""
    table = ds.dataset(folder, format="parquet", partitioning="hive").to_table()
    at = table.schema.get_field_index("time")
    times = table["time"].cast(pa.timestamp("us")).cast(pa.int64())
    keys = [("batch", "ascending"), ("sequence", "ascending")]
    rows = table.set_column(at, "time", times).sort_by(keys).to_pylist()
    assert len({(row["batch"], row["sequence"]) for row in rows}) == len(rows)
    found: Streams = defaultdict(list)
    for row in rows:
        found[row["subscription_id"]].append(update_of(row))
    return found, len(rows)


def update_of(row: dict[str, Any]) -> Told:
    """Return an update of a table."""
    time = row["time"]
    us = time_us(time) if isinstance(time, datetime) else time
    return Told(row["message_id"], row["sign"], row.get("score"), row["reason"], us)


def expected(engine: Engine, subscriptions: pa.Table, events: EventLog) -> tuple[Streams, int]:
    """Return what one engine makes of the events that a pipeline wrote down, one after another."""
    engine.subscribe_batch(subscriptions)
    found: Streams = defaultdict(list)
    n = 0
    for batch in events.batches():
        for run in events.read(batch).in_order():
            for at in range(run.rows.num_rows):
                for told in _one(engine, run.kind, run.rows.slice(at, 1)):
                    found[told.subscription_id].append(update_of(asdict(told)))
                    n += 1
    return found, n


def _one(engine: Engine, kind: str, row: pa.Table) -> list[Any]:
    """Return the updates of one event, which moves the clock first."""
    told: list[Any] = []
    time = row["time"][0].as_py()
    if kind != "messages" and time is not None:
        told += engine.advance(time)
    if kind == "messages":
        return told + list(engine.publish_batch(row, on_error="reject"))
    operation = row["op"][0].as_py() if kind == "changes" else "move"
    if operation == "reweigh":
        with suppress(InvalidInput):  # moving subscribers have no words that weigh more
            told += engine.reweigh()
        return told
    if operation == "subscribe":
        return told + list(engine.subscribe_batch(row, on_error="reject"))
    if operation == "unsubscribe":
        ids = row["id"].combine_chunks()
        return told + list(engine.unsubscribe_batch(ids, on_error="reject"))
    return told + list(engine.move_batch(row, on_error="reject"))
