"""Figures of a standalone cluster of two executors of one core each: ``cluster_figures.py ROOT``.

Prints JSON: the rate of a batch beside ``local[2]`` in turns, with equal answers; the batches of a
stream, in peace and while changes are merged; how long the batch takes during which an executor is
killed; and which shards each worker has mapped, and the driver. ``--only-memory`` leaves out all
but the last, for more subscriptions than fit the time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))
from spark.standalone import (
    Cluster,
    command_of,
    descendants,
    running_cluster,
    shards_mapped_by,
)

WORKLOAD = "headline"
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.locality.wait": "60s",
}
ROWS_PER_FILE = 250_000
N_PASSES, N_BATCHES, BATCH_MESSAGES, N_CHANGES = 16, 5, 5_000, 2_000
N_MERGES, MERGE_S = 3, 600


# ---- drivers, each in a process of its own ------------------------------------------------------


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def drive_batch(root: Path, master: str) -> None:
    """Match all messages once for each line of the standard input."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    from earshot.spark import build, local_session, match

    session = local_session(master, extra=SETTINGS)
    if not (root / "replicated").exists():
        rows = session.read.parquet(str(root / "subscriptions"))
        build(rows, root / "replicated", placement="replicated", space="planar", unique_ids=True)

    def collected() -> Any:
        # Made anew: a query that was collected before keeps what it has shuffled.
        messages = session.read.parquet(str(root / "messages"))
        lists = messages.transform(match, root / "replicated", shape="lists")
        sums = lists.agg(
            F.sum(F.size("subscription_ids")),
            F.sum(F.xxhash64("message_id", "subscription_ids") % 1000),
        )
        return sums.collect()[0]

    collected()
    tell(ready=True)
    for _ in sys.stdin:
        started = time.monotonic()
        n, checksum = collected()
        tell(elapsed_s=time.monotonic() - started, n=n, checksum=checksum)
    session.stop()


def drive_stream(root: Path, master: str, n_shards: int) -> None:
    """Match what is put into ROOT/feed, and tell of each batch, until ROOT/stop is there."""
    from earshot.spark import FileSink, Stream, build, local_session, match_stream
    from earshot.spark.store import IndexStore

    session = local_session(master, extra=SETTINGS)
    started, index = time.monotonic(), root / "sharded"
    if not index.exists():
        build(
            session.read.parquet(str(root / "subscriptions")), index,
            placement="sharded", n_shards=n_shards, space="planar", unique_ids=True,
            messages=session.read.parquet(str(root / "messages")),
        )  # fmt: skip
    built = IndexStore(index).latest().base
    build_s = time.monotonic() - started
    pipeline = match_stream(
        Stream.of_files(session, root / "feed", files_per_batch=1, ids="integer"),
        index,
        FileSink(root / "out"),
        root / "checkpoint",
        changes=Stream.of_files(session, root / "changes", files_per_batch=1),
        shape="lists",
        merge_share=1e-9,
        merge_least=N_CHANGES,
        on_batch=lambda status: tell(
            batch=status.batch, batch_s=status.batch_s, updates=status.updates,
            is_merging=status.is_merging, merges=status.merges,
        ),
    )  # fmt: skip
    tell(
        build_s=build_s, shard_bytes=built.n_bytes, shard_subscriptions=built.n_subscriptions,
        report=built.report,
    )  # fmt: skip
    while pipeline.is_active and not (root / "stop").exists():
        time.sleep(0.05)
    pipeline.stop()
    session.stop()


# ---- measuring ----------------------------------------------------------------------------------


class Driver:
    """A driver that tells facts, a line each."""

    def __init__(self, root: Path, role: str, *arguments: str) -> None:
        command = [sys.executable, __file__, str(root), "--role", role, *arguments]
        self.process = subprocess.Popen(
            command, env={**os.environ, "PYSPARK_PYTHON": sys.executable}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def told(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the driver ended by itself"
        facts: dict[str, Any] = json.loads(line)
        return facts

    def ask(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("once\n")
        self.process.stdin.flush()
        return self.told()


@contextmanager
def running_driver(root: Path, role: str, *arguments: str) -> Iterator[Driver]:
    driver = Driver(root, role, *arguments)
    try:
        yield driver
    finally:
        driver.process.kill()
        driver.process.wait()


def measure_batch(root: Path, cluster: Cluster) -> dict[str, Any]:
    """Time both masters in turns; answers must be equal."""
    with running_driver(root, "batch", "--master", "local[2]") as local:
        local.told()
        with running_driver(root, "batch", "--master", cluster.url) as remote:
            remote.told()
            passes = [(local.ask(), remote.ask()) for _ in range(N_PASSES)]
    for one, other in passes:
        assert (one["n"], one["checksum"]) == (other["n"], other["checksum"]), "answers differ"
    one_s, other_s = ([each["elapsed_s"] for each in side] for side in zip(*passes, strict=True))
    return {
        "updates": passes[0][0]["n"],
        "local_s": one_s,
        "cluster_s": other_s,
        "share_by_minimum": min(one_s) / min(other_s),
        "share_by_median": median(one_s) / median(other_s),
    }


def measure_stream(
    root: Path, cluster: Cluster, n_shards: int, *, only_memory: bool, has_loss: bool
) -> dict[str, Any]:
    table = pq.read_table(root / "messages").slice(0, BATCH_MESSAGES)
    (root / "feed").mkdir()
    (root / "changes").mkdir()
    numbers = iter(range(1_000_000))

    def put(rows: pa.Table, folder: str) -> None:
        draft = root / "draft.parquet"
        pq.write_table(rows, draft)
        draft.rename(root / folder / f"{next(numbers):06d}.parquet")

    def batch() -> dict[str, Any]:
        put(table, "feed")
        return driver.told()

    with running_driver(
        root, "stream", "--master", cluster.url, "--n-shards", str(n_shards)
    ) as driver:
        facts = driver.told()
        report = facts.pop("report")
        facts |= {name: report[name] for name in ("shards_per_message", "balance_of_bytes")}
        first = batch()
        calm = [batch() for _ in range(N_BATCHES)]
        facts["first_batch_s"] = first["batch_s"]
        facts["batch_s"] = median(each["batch_s"] for each in calm)
        facts["workers"] = [worker_memory(pid) for pid in cluster.executors()]
        facts["driver_maps_shards"] = bool(shards_in(driver.process.pid))
        print(json.dumps(facts), file=sys.stderr, flush=True)  # what follows may fail
        if not only_memory and has_loss:
            started = time.monotonic()
            os.kill(cluster.executors()[0], signal.SIGKILL)
            lost = batch()
            facts["batch_with_loss_s"] = time.monotonic() - started
            facts["after_loss_s"] = [batch()["batch_s"] for _ in range(2)]
            print(json.dumps(facts), file=sys.stderr, flush=True)
            n_each = {each["updates"] - one["updates"] for one, each in pairwise([first, *calm])}
            assert n_each == {lost["updates"] - calm[-1]["updates"]}, "updates were lost"
        if not only_memory:
            facts |= measure_merge(put, batch)
        (root / "stop").touch()
        driver.process.wait(120)
    return facts


def measure_merge(put: Any, batch: Any) -> dict[str, Any]:
    """Time batches in peace and while changes are merged, in turns."""
    calm: list[float] = []
    busy: list[float] = []
    merge_s: list[float] = []
    for number in range(N_MERGES):
        calm += [batch()["batch_s"] for _ in range(N_BATCHES)]
        ids = pa.array(range(number * N_CHANGES, (number + 1) * N_CHANGES))
        put(pa.table({"op": ["unsubscribe"] * N_CHANGES, "id": ids}), "changes")
        started = time.monotonic()
        while time.monotonic() < started + MERGE_S:
            told = batch()
            if told["is_merging"]:
                busy.append(told["batch_s"])
            if told["merges"] > number:
                break
        merge_s.append(time.monotonic() - started)
    return {
        "calm_s": calm,
        "merging_s": busy,
        "merge_s": merge_s,  # with the batch in which it ended
        "merge_slowdown": median(busy) / median(calm) if busy else None,
    }


def worker_memory(executor: int) -> dict[str, Any]:
    """Return what the Python workers of an executor have in memory."""
    pids = [pid for pid in descendants(executor) if "pyspark.daemon" in command_of(pid)]
    rolled: list[dict[str, int]] = []
    for pid in pids:
        with suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            rolled.append(
                {k: 1024 * int(n) for k, n in re.findall(r"^(\w+): +(\d+) kB", text, re.M)}
            )
    shards = shards_mapped_by(executor)
    return {
        "n_processes": len(rolled),
        "pss_bytes": sum(each["Pss"] for each in rolled),
        "most_rss_bytes": max((each["Rss"] for each in rolled), default=0),
        "n_shards": len(shards),
        "shard_rss_bytes": sum(shards.values()),
    }


def shards_in(pid: int) -> list[str]:
    return re.findall(r"/shards/\S+", Path(f"/proc/{pid}/maps").read_text())


def make_data(root: Path, n_subscriptions: int, n_messages: int) -> None:
    from earshot.workloads.synthetic import find_workload, message_table, subscription_table

    workload = find_workload(WORKLOAD).scaled(
        n_subscriptions=n_subscriptions, n_messages=n_messages
    )
    for folder in ("subscriptions", "messages"):
        (root / folder).mkdir(parents=True)
    for start, stop in pairwise([*range(0, n_subscriptions, ROWS_PER_FILE), n_subscriptions]):
        part = subscription_table(workload, start, stop)
        pq.write_table(part, root / "subscriptions" / f"{start:09d}.parquet")
    messages = message_table(workload)
    for start, stop in pairwise([*range(0, n_messages, -(-n_messages // 8)), n_messages]):
        pq.write_table(messages.slice(start, stop - start), root / "messages" / f"{start}.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--n-subscriptions", type=int, default=1_000_000)
    parser.add_argument("--n-messages", type=int, default=200_000)
    parser.add_argument("--n-shards", type=int, default=8)
    parser.add_argument("--executors", type=int, default=2)
    parser.add_argument("--slots", type=int, default=1, help="tasks that an executor runs at once")
    parser.add_argument("--only-memory", action="store_true")
    parser.add_argument("--again", action="store_true", help="with what an earlier run has built")
    parser.add_argument("--without-batch", action="store_true")
    parser.add_argument("--without-loss", action="store_true")
    parser.add_argument("--role", choices=["batch", "stream"], help=argparse.SUPPRESS)
    parser.add_argument("--master", help=argparse.SUPPRESS)
    given = parser.parse_args()
    root = given.root.absolute()
    if given.role == "batch":
        return drive_batch(root, given.master)
    if given.role == "stream":
        return drive_stream(root, given.master, given.n_shards)
    if given.again:
        for name in ("feed", "changes", "out", "checkpoint", "cluster"):
            shutil.rmtree(root / name, ignore_errors=True)
        (root / "stop").unlink(missing_ok=True)
    else:
        make_data(root, given.n_subscriptions, given.n_messages)
    facts: dict[str, Any] = {"n_subscriptions": given.n_subscriptions, "load": os.getloadavg()[0]}
    with running_cluster(
        root / "cluster", given.executors, cores=given.slots, memory="2g"
    ) as cluster:
        if not (given.only_memory or given.without_batch):
            facts["batch"] = measure_batch(root, cluster)
            print(json.dumps(facts["batch"]), file=sys.stderr, flush=True)
        facts["stream"] = measure_stream(
            root, cluster, given.n_shards,
            only_memory=given.only_memory, has_loss=not given.without_loss,
        )  # fmt: skip
    print(json.dumps(facts, indent=1))
    return None


if __name__ == "__main__":
    main()
