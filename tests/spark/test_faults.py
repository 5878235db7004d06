"""Real processes, really killed: no update is missing and none is there twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pyspark.sql import SparkSession

from earshot.files import write_table
from earshot.spark import FileSink, Stream, build, match_stream
from earshot.spark.stream import BatchLog
from earshot.workloads.datasets import bundled_messages

from .conftest import TEST_SETTINGS
from .events import Feed, expected_updates, updates_in
from .pipeline_process import start

N_ROUNDS = 4


def test_a_killed_driver(spark: SparkSession, tmp_path: Path) -> None:
    """Kill -9 in mid-batch, first driver and JVM together, then the driver alone."""
    feed = Feed(tmp_path / "feed")
    build(spark.createDataFrame(feed.subscriptions), tmp_path / "index")
    log = BatchLog(tmp_path / "checkpoint")
    for number in range(2):
        feed.add_changes(number)
        feed.add_messages(number)
    first = launch(tmp_path)
    wait_for(lambda: is_in_batch(log, 0), first)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    for number in range(2, N_ROUNDS):
        feed.add_changes(number)
        feed.add_messages(number)
    second = launch(tmp_path)
    wait_for(lambda: is_in_batch(log, 1), second)
    helpers = [pid for pid, _ in descendants(second.pid)]
    os.kill(second.pid, signal.SIGKILL)
    second.wait()
    wait_until_gone(helpers)  # its JVM ends by itself, a moment later
    assert start(spark, tmp_path, available_now=True).await_end(120)
    records = log.records()
    assert [record.batch for record in records] == list(range(N_ROUNDS))
    assert all(record.is_done for record in records)
    expected = expected_updates(feed.subscriptions, tmp_path / "checkpoint")
    assert expected
    assert updates_in(tmp_path / "out") == expected


def launch(root: Path) -> subprocess.Popen[bytes]:
    script = Path(__file__).with_name("pipeline_process.py")
    command = [sys.executable, str(script), str(root), json.dumps(TEST_SETTINGS)]
    return subprocess.Popen(command, start_new_session=True)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, "the pipeline ended by itself"
        assert time.monotonic() < until, "the pipeline hangs"
        time.sleep(0.002)


def wait_until_gone(pids: list[int]) -> None:
    until = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < until, "what the driver started outlives it"
        time.sleep(0.02)


def is_in_batch(log: BatchLog, batch: int) -> bool:
    """Whether a batch has begun and is not done: its record is there, without results."""
    record = log.record(batch)
    return record is not None and not record.is_done


def test_killed_python_workers(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "feed")
    index = str(tmp_path / "index")
    build(spark.createDataFrame(feed.subscriptions), index)
    messages = bundled_messages()
    for part in range(6):  # large enough that workers are busy for a while
        write_table(feed.messages / f"{part}.ndjson", messages)
    killed: list[int] = []
    is_over = threading.Event()

    def kill_some() -> None:
        # At most three: the fourth attempt at a task is the last.
        while len(killed) < 3 and not is_over.is_set():
            for pid in busy_workers():
                with suppress(ProcessLookupError):  # it ended meanwhile
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                break
            time.sleep(0.1)

    killer = threading.Thread(target=kill_some)
    pipeline = match_stream(
        Stream.of_files(spark, feed.messages, ids="string"),
        index,
        FileSink(tmp_path / "out"),
        tmp_path / "checkpoint",
        available_now=True,
    )
    wait_for_begin(BatchLog(tmp_path / "checkpoint"))
    killer.start()
    assert pipeline.await_end(120)
    is_over.set()
    killer.join()
    assert killed, "no worker was caught at work"
    assert updates_in(tmp_path / "out") == expected_updates(
        feed.subscriptions, tmp_path / "checkpoint"
    )


def wait_for_begin(log: BatchLog) -> None:
    until = time.monotonic() + 60
    while log.record(0) is None:
        assert time.monotonic() < until
        time.sleep(0.002)


def busy_workers() -> list[int]:
    """Return Python workers that are running right now; they are children of Spark's daemon."""
    own = descendants(os.getpid())
    parents = {pid: int(stat[1]) for pid, stat in own if "python" in command_of(pid)}
    daemons = {pid for pid in parents if "pyspark.worker" in command_of(pid)}
    leaders = {pid for pid in daemons if parents[pid] not in daemons}
    return [pid for pid, stat in own if int(stat[1]) in leaders and stat[0] == "R"]


def descendants(root: int) -> list[tuple[int, list[str]]]:
    """Return state, parent and more of the processes that a process and those have started."""
    found: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        found[int(path.parent.name)] = text.rpartition(") ")[2].split()

    def descends(pid: int) -> bool:
        while pid in found and pid != root:
            pid = int(found[pid][1])
        return pid == root

    return [(pid, stat) for pid, stat in found.items() if pid != root and descends(pid)]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
