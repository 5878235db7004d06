"""Messages and changes for the tests of pipelines, and what the engine makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from earshot import Engine
from earshot.engine.changes import apply_changes
from earshot.files import read_changes, read_messages, write_table
from earshot.spark.intake import in_order
from earshot.spark.stream import BatchLog
from earshot.workloads.datasets import bundled_messages, draw_subscriptions

ROUND_MESSAGES = 150
ROUND_CHANGES = 60


class Feed:
    """Directories into which messages and changes are put, round by round."""

    def __init__(self, root: Path, n_subscriptions: int = 800) -> None:
        self.messages, self.changes = root / "messages", root / "changes"
        self._drafts = root / "drafts"
        for folder in (self.messages, self.changes, self._drafts):
            folder.mkdir(parents=True)
        self._all_messages = bundled_messages()
        drawn = draw_subscriptions(self._all_messages, n_subscriptions + 1_000, seed=7)
        self.subscriptions = drawn.slice(0, n_subscriptions)
        self._new = drawn.slice(n_subscriptions).to_pylist()
        self._live: list[str] = self.subscriptions["id"].to_pylist()
        self._random = np.random.default_rng(5)
        self.n_changes = 0

    @property
    def n_live(self) -> int:
        return len(self._live)

    def add_messages(self, number: int, name: str | None = None) -> Path:
        rows = self._all_messages.slice(number * ROUND_MESSAGES, ROUND_MESSAGES)
        return self._put(rows, self.messages / (name or f"{number:04d}.ndjson"))

    def add_changes(self, number: int) -> Path:
        """Subscribe some, end some, move some, and some of these twice."""
        rows: list[dict[str, Any]] = []
        for _ in range(ROUND_CHANGES // 3):
            new = self._new.pop()
            rows.append({"op": "subscribe", **new})
            self._live.append(new["id"])
            gone = self._live.pop(int(self._random.integers(len(self._live))))
            moved = self._live[int(self._random.integers(len(self._live)))]
            x, y = self._random.uniform([148, -36], [152, -30])
            rows.append({"op": "unsubscribe", "id": gone})
            rows.append(
                {"op": "move", "id": moved, "min_x": x - 2, "min_y": y - 2, "max_x": x + 2,
                 "max_y": y + 2}
            )  # fmt: skip
        self.n_changes += len(rows)
        path = self.changes / f"{number:04d}.ndjson"
        draft = self._drafts / path.name
        draft.write_text("".join(json.dumps(row) + "\n" for row in rows))
        draft.rename(path)
        return path

    def _put(self, rows: pa.Table, path: Path) -> Path:
        draft = self._drafts / path.name
        write_table(draft, rows)
        draft.rename(path)
        return path


def files_of_batches(checkpoint: Path, query: str) -> dict[int, list[Path]]:
    """Return the files of each batch, as Spark wrote them down.

    The source notes a file before the query notes its batch. A query that ends in between takes the
    file together with the next one, so the numbers in the source's log are not those of batches.
    """
    folder, noted = checkpoint / query, {}
    for log in (folder / "sources" / "0").glob("[0-9]*"):
        for line in log.read_text().splitlines()[1:]:
            entry = json.loads(line)
            noted[Path(entry["path"].removeprefix("file://"))] = entry["batchId"]
    batches: dict[int, list[Path]] = {}
    first = 0
    for log in sorted((folder / "offsets").glob("[0-9]*"), key=lambda log: int(log.name)):
        last = json.loads(log.read_text().splitlines()[-1])["logOffset"]
        batches[int(log.name)] = sorted(path for path, at in noted.items() if first <= at <= last)
        first = last + 1
    return batches


def expected_updates(
    subscriptions: pa.Table, checkpoint: Path, engine: Engine | None = None
) -> list[tuple[Any, ...]]:
    """Return what the engine gives for the events in the order that the pipeline wrote down."""
    engine = Engine() if engine is None else engine
    engine.subscribe_batch(subscriptions)
    changes = files_of_batches(checkpoint, "changes")
    messages = files_of_batches(checkpoint, "messages")
    n_seen = 0
    found: list[tuple[Any, ...]] = []
    for record in BatchLog(checkpoint).records():
        for batch in range(n_seen, record.change_batch + 1):
            for path in sorted(changes[batch]):
                parts = read_changes(path, ids="string", space=engine.space, on_error="reject")
                rows = pa.Table.from_batches([part.batch for part in parts])
                apply_changes(engine, in_order(rows, by_origin=False))
        n_seen = max(n_seen, record.change_batch + 1)
        for path in messages[record.batch]:
            for part in read_messages(path, ids="string", space=engine.space, on_error="reject"):
                found += pairs_of(engine.publish_batch(part.batch, on_error="reject").table())
    return sorted(found)


def updates_in(folder: Path) -> list[tuple[Any, ...]]:
    """Return the updates of all finished batches, as any reader of Parquet sees them."""
    return pairs_of(ds.dataset(folder, format="parquet", partitioning="hive").to_table())


def json_rows_in(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of all NDJSON files that Spark wrote below a directory."""
    # Those whose names begin with _ are not data, but say whose the directory is.
    texts = (path.read_text() for path in sorted(folder.rglob("*.json")) if path.name[0] != "_")
    return [json.loads(line) for text in texts for line in text.splitlines()]


def pairs_of(updates: pa.Table) -> list[tuple[Any, ...]]:
    """Return message and subscription of each update, and the score if it has one, sorted."""
    names = ["message_id", "subscription_id"]
    if "score" in updates.schema.names and updates["score"].null_count < len(updates):
        names.append("score")
    return sorted(zip(*(updates[name].to_pylist() for name in names), strict=True))
