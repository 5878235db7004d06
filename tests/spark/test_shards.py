"""What a worker has open: the shards that it serves, and no others."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from earshot.spark import shards
from earshot.spark.shards import IDLE_TURNS, open_shard
from earshot.spark.store import Version
from earshot.workloads.datasets import bundled_messages, draw_subscriptions

from .test_intake import build_here, table_of


@pytest.fixture(autouse=True)
def _a_new_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_opened", {})


def test_a_worker_closes_shards_that_it_no_longer_serves(tmp_path: Path) -> None:
    rows = draw_subscriptions(bundled_messages(), 400).to_pylist()
    store = build_here(tmp_path / "index", table_of(rows, "subscriptions"), 4)
    index, version = store.folder.uri, store.latest()

    def mapped() -> set[int]:
        gc.collect()
        maps = Path("/proc/self/maps").read_text()
        return {n for n, name in enumerate(version.base.shards) if f"/shards/{name}/" in maps}

    for shard in range(4):
        open_shard(index, version, shard)
    assert mapped() == {0, 1, 2, 3}
    for _ in range(5 * IDLE_TURNS):  # many batches of one shard are one turn
        open_shard(index, version, 2)
    assert mapped() == {0, 1, 2, 3}
    for _ in range(4 * IDLE_TURNS):
        open_shard(index, version, 0)
        open_shard(index, version, 2)
    assert mapped() == {0, 2}
    assert len(open_shard(index, version, 3).engine) == version.base.n_subscriptions[3]


def _looked_at_task(
    index: str, version: Version, _: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    open_shard(index, version, 0)
    found = {"looked_at": [len(gc.get_objects())], "passed_over": [gc.get_freeze_count()]}
    yield pa.RecordBatch.from_pydict(found)


def test_collections_after_tasks_pass_over_what_is_loaded(
    tmp_path: Path, spark: SparkSession
) -> None:
    rows = draw_subscriptions(bundled_messages(), 40).to_pylist()
    store = build_here(tmp_path / "index", table_of(rows, "subscriptions"), None)
    task = partial(_looked_at_task, store.folder.uri, store.latest())
    told = spark.range(2).mapInArrow(task, "looked_at long, passed_over long").collect()
    # A worker that had shards open when it loaded more looks at that.
    assert all(row.looked_at < row.passed_over / 2 > 50_000 for row in told), told
    open_shard(store.folder.uri, store.latest(), 0)
    assert gc.get_freeze_count() == 0, "this process is the user's own"
