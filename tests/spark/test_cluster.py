"""A standalone cluster of two executors: shards stay where they are, and survive their executor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from earshot.files import write_table
from earshot.spark.stream import BatchLog

from .events import Feed, expected_updates, updates_in
from .standalone import Cluster, running_cluster, shards_mapped_by

N_SHARDS = 6
N_BATCHES = 3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path / "cluster") as cluster:
        yield cluster


def test_shards_stay_where_they_are(cluster: Cluster, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "feed")
    write_table(tmp_path / "subscriptions.parquet", feed.subscriptions)
    for number in range(N_BATCHES):
        feed.add_changes(number)
        feed.add_messages(number)
    script = Path(__file__).with_name("cluster_process.py")
    command = [sys.executable, str(script), str(tmp_path), cluster.url, str(N_SHARDS)]
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    driver = subprocess.Popen(command, env=environ)
    log = BatchLog(tmp_path / "checkpoint")
    try:
        wait_for(lambda: is_done(log, N_BATCHES - 1), driver)
        first, second = (set(shards_mapped_by(pid)) for pid in cluster.executors())
        assert max(len(first), len(second)) <= N_SHARDS // 2 + 1, "each executor has its share"
        assert not first & second, "a shard is open on one executor only"
        assert len(first | second) == N_SHARDS
        os.kill(cluster.executors()[0], signal.SIGKILL)
        feed.add_messages(N_BATCHES)
        wait_for(lambda: is_done(log, N_BATCHES), driver)
        (tmp_path / "stop").touch()
        assert driver.wait(60) == 0
    finally:
        driver.kill()
        driver.wait()
    assert updates_in(tmp_path / "out") == expected_updates(
        feed.subscriptions, tmp_path / "checkpoint"
    )


def is_done(log: BatchLog, batch: int) -> bool:
    record = log.record(batch)
    return record is not None and record.is_done


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 500
    while not condition():
        assert process.poll() is None, "the driver ended by itself"
        assert time.monotonic() < until, "the pipeline hangs"
        time.sleep(0.1)
