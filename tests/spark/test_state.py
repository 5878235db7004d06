"""Semantics that keep messages on Spark: shards with a state give what one engine gives."""

from __future__ import annotations

import os
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from earshot import Engine, Moving, TopK
from earshot.cli import main as command_line
from earshot.files import write_table
from earshot.spark import state
from earshot.spark.config import read_config
from earshot.spark.folders import Folder
from earshot.spark.hashed import number_words
from earshot.spark.recorded import EventLog, merged
from earshot.spark.state import StateTask
from earshot.spark.store import Base, IndexSettings, IndexStore, Version

from .state_events import Feed, expected, update_of, updates_in
from .test_faults import busy_workers

FILE = """
{semantics}
index = "index"
checkpoint = "checkpoint"
[subscriptions]
path = "subscriptions.parquet"
space = "planar"
n_shards = 3
[messages]
source = "files"
path = "feed/messages"
files_per_batch = 1
[changes]
source = "files"
path = "feed/changes"
files_per_batch = 1
{more}
[sink]
kind = "files"
path = "out"
[rejects]
path = "rejects"
[results]
path = "results"
every = 2
"""
POSITIONS = '[positions]\nsource = "files"\npath = "feed/positions"\nfiles_per_batch = 1'
CASES = {
    "topk": (
        TopK(50, k=3, max_distance=10),
        'semantics = "topk"\nwindow = 50\nk = 3\nmax_distance = 10',
    ),
    "moving": (Moving(timedelta(seconds=12)), 'semantics = "moving"\nlifetime = "12s"'),
}


@pytest.mark.parametrize("name", CASES)
def test_a_pipeline_gives_what_the_engine_gives(
    spark: SparkSession, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from earshot.spark.commands import run_pipeline
    from earshot.spark.view import View

    lags = set()

    class Watch(View):
        def show(self, status: Any, *, is_stopping: bool = False) -> None:
            if status.batches:
                lags.add(status.lag_s)

    monkeypatch.setattr("earshot.spark.commands.view_for", lambda **_: Watch())
    semantics, text = CASES[name]
    feed = Feed(tmp_path / "feed", semantics)
    write_table(tmp_path / "subscriptions.parquet", feed.subscriptions)
    file = tmp_path / "p.toml"
    file.write_text(FILE.format(semantics=text, more=POSITIONS if name == "moving" else ""))
    for start in range(2):
        for number in range(2):
            feed.add(2 * start + number)
        with killing_workers(start * 3) as killed:
            facts, stopped_by = run_pipeline(read_config(file), once=True, is_quiet=True)
        assert bool(killed) == bool(start)
        # A window of so many messages knows no late ones; nor does a clock that has not begun.
        n_late = 0 if name == "topk" else 2 - (start == 0)
        assert (facts["batches"], facts["messages"], stopped_by) == (2, 2 * 81 - n_late, None)
    assert lags
    assert None not in lags
    log = EventLog(Folder(tmp_path / "checkpoint"))
    engine = Engine(semantics, space="planar")
    wanted, n = expected(engine, feed.subscriptions, log)
    found, n_found = updates_in(tmp_path / "out")
    assert found == wanted
    assert n_found == n > 300
    held = results_of(engine)
    assert held == rows_in(tmp_path / "results" / "batch=00000003")
    assert len(list((tmp_path / "results").glob("batch=*"))) == 2
    command_line(["pipeline", "results", str(file), "--out", str(tmp_path / "now"), "--quiet"])
    assert held == rows_in(tmp_path / "now")


@contextmanager
def killing_workers(most: int) -> Iterator[list[int]]:
    """Kill so many Python workers while they are at work."""
    killed: list[int] = []
    is_over = threading.Event()

    def run() -> None:
        while len(killed) < most and not is_over.wait(0.002):
            for pid in busy_workers()[:1]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    killer = threading.Thread(target=run)
    killer.start()
    try:
        yield killed
    finally:
        is_over.set()
        killer.join()


def words_in(engine: Engine) -> list[str]:
    return engine.vocabulary.tokens(range(1, len(engine.vocabulary)))


def results_of(engine: Engine) -> set[tuple[Any, ...]]:
    return {tuple(row.values()) for row in engine.results_table().to_pylist()}


def rows_in(folder: Path) -> set[tuple[Any, ...]]:
    table = ds.dataset(folder, format="parquet").to_table()
    return {tuple(row.values()) for row in table.to_pylist()}


# ---- shards without Spark -----------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_shards_that_lose_their_states_give_what_the_engine_gives(
    tmp_path: Path, name: str
) -> None:
    """States are lost, left behind, or ahead of a task that is tried again."""
    semantics, _ = CASES[name]
    feed = Feed(tmp_path / "feed", semantics)
    task = begun(tmp_path, feed)
    random = np.random.default_rng(11)
    told: Any = defaultdict(list)
    n = n_replayed = 0
    for batch in range(N_BATCHES):
        feed.add(batch, n_messages=30)
        task.log.write(batch, merged(feed.tables(batch)), {})
        for shard in range(N_SHARDS):
            own = replace(task, shard=shard, batch=batch, updates=str(tmp_path / "out"))
            for _ in range(int(random.integers(1, 3))):
                if random.random() < 0.3:
                    state._states.clear()
                report = state.run_shard(own)
                found = pq.read_table(tmp_path / "out" / f"part-{shard:05d}.parquet")
                assert report.updates == found.num_rows
                n_replayed += report.replayed
            for row in found.sort_by(state.SEQUENCE).to_pylist():
                told[row["subscription_id"]].append(update_of(row))
            n += found.num_rows
    engine = Engine(semantics, space="planar", rebuild_in_background=False)
    wanted, n_wanted = expected(engine, feed.subscriptions, task.log)
    assert told == wanted
    if engine.matcher.has_scores:  # which are sums in the order of words
        shards = (replace(task, shard=shard, batch=N_BATCHES) for shard in range(N_SHARDS))
        numbered = [words_in(state.state_before(each, None)[0].engine) for each in shards]
        assert numbered == [words_in(engine)] * N_SHARDS
    assert n == n_wanted > 400
    assert n_replayed > 10
    assert all(len(replace(task, shard=shard).snapshots.names()) == 2 for shard in range(N_SHARDS))


N_SHARDS, N_BATCHES = 3, 8


def begun(root: Path, feed: Feed) -> StateTask:
    """Return the task of a pipeline over an index without Spark; each shard has some rows."""
    settings = IndexSettings("string", feed.semantics, "planar")
    store = IndexStore(root / "index")
    folder = store.base_folder("base")
    Path(folder.path, "shards").mkdir(parents=True)
    for shard in range(N_SHARDS):
        engine = settings.engine()
        number_words(engine, feed.subscriptions)
        engine.subscribe_batch(feed.subscriptions.filter(feed.is_of(shard, feed.subscriptions)))
        engine.save(Path(folder.path, "shards", str(shard)))
    names = tuple(map(str, range(N_SHARDS)))
    base = Base("base", "hashed", (0,) * N_SHARDS, (0,) * N_SHARDS, names)
    for name in ("checkpoint", "out"):
        (root / name).mkdir()
    return StateTask(
        "test", Folder(root / "checkpoint").uri, store.folder.uri, Version(1, base), settings,
        "string", 0, 0, snapshot_every=4,
    )  # fmt: skip
