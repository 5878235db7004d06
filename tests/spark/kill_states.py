"""Kill a pipeline at random moments, many times; its updates must be the engine's.

    python tests/spark/kill_states.py topk --kills 20

Of any semantics: ``boolean``, ``ranked``, ``topk`` or ``moving``.

Runs ``earshot pipeline run`` over a feed of messages, changes and positions, on executors in
processes of their own, and kills the driver, an executor, a daemon of Python workers or a worker.
At the end the updates in the sink are compared with those of one engine that takes the recorded
events: where messages are kept subscription by subscription and in their order.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from earshot import Engine, Ranking
from earshot.files import write_table
from earshot.spark.folders import Folder
from earshot.spark.recorded import EventLog
from earshot.spark.store import IndexStore
from earshot.spark.stream import BatchLog
from spark import events
from spark.state_events import Feed, expected, updates_in
from spark.test_faults import command_of, descendants, wait_until_gone
from spark.test_state import CASES as STATEFUL
from spark.test_state import FILE, POSITIONS

VICTIMS = ("driver", "executor", "daemon", "worker")
CLUSTER = "local-cluster[2,1,1024]"
SPARK = """
[spark]
"spark.driver.memory" = "1g"
"spark.sql.shuffle.partitions" = 2
"spark.executor.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""
SNAPSHOTS = "[snapshots]\nevery = 4\n"
MATCHING = {
    "boolean": (None, 'semantics = "boolean"'),
    "ranked": (Ranking(0.4, 0.5), 'semantics = "ranked"\nalpha = 0.4\nthreshold = 0.5'),
}
CASES = {**STATEFUL, **MATCHING}
# So that shards are renewed thrice, and then cut anew.
N_SUBSCRIPTIONS, MERGE_LEAST = 400, 60


class Soak:
    """A pipeline, what it is fed with, and what was killed."""

    def __init__(self, root: Path, semantics: str, master: str) -> None:
        self.root, self.master = root, master
        self.semantics, text = CASES[semantics]
        self.keeps_messages = semantics in STATEFUL
        n = 60 if self.keeps_messages else N_SUBSCRIPTIONS
        self.feed = Feed(root / "feed", self.semantics, n_subscriptions=n)
        write_table(root / "subscriptions.parquet", self.feed.subscriptions)
        more = POSITIONS if semantics == "moving" else ""
        file = FILE.format(semantics=text, more=more)
        if self.keeps_messages:
            file += SNAPSHOTS
        else:
            file = file.partition("[results]")[0] + f"[merge]\nleast = {MERGE_LEAST}\n"
            file = file.replace("n_shards", 'placement = "sharded"\nn_shards')
        (root / "p.toml").write_text(file + SPARK)
        self.kept = root / "kept" / "earshot" / "events"
        self.kept.mkdir(parents=True)
        self.store = IndexStore(root / "index")
        self.n_rounds = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, once: bool = False) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "earshot", "pipeline", "run", str(self.root / "p.toml")]
        command += ["--master", self.master, "--quiet", *(["--once"] if once else [])]
        log = (self.root / "log").open("ab")
        environ = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        self.process = subprocess.Popen(
            command, env=environ, start_new_session=True, stderr=log, stdout=log
        )
        return self.process

    def feed_on(self) -> None:
        """Add a round where the pipeline has taken the last ones, and keep what it wrote down."""
        if self.n_rounds <= self.n_batches + 3:
            self.feed.add(self.n_rounds, n_messages=40)
            self.n_rounds += 1
        self.keep()

    def keep(self) -> None:
        events = self.root / "checkpoint" / "earshot" / "events"
        for path in sorted(events.glob("[0-9]*")):
            if not (self.kept / path.name).exists():
                shutil.copytree(path, self.kept / path.name)

    @property
    def n_batches(self) -> int:
        """Batches that are done."""
        done = [each.batch for each in BatchLog(self.root / "checkpoint").records() if each.is_done]
        return max(done, default=-1) + 1

    @property
    def n_merges(self) -> int:
        """Merges that were published: bases are numbered."""
        return 0 if self.keeps_messages else int(self.store.latest().base.name.split("-")[0]) - 1

    def compare(self) -> int:
        """Compare all updates with those of an engine; return their number."""
        engine = Engine(self.semantics, space="planar", rebuild_in_background=False)
        if not self.keeps_messages:
            checkpoint, out = self.root / "checkpoint", self.root / "out"
            all_wanted = events.expected_updates(self.feed.subscriptions, checkpoint, engine)
            assert events.updates_in(out) == all_wanted, "updates differ"
            assert all_wanted
            return len(all_wanted)
        log = EventLog(Folder(self.root / "kept"))
        assert log.batches() == list(range(self.n_batches))
        wanted, n = expected(engine, self.feed.subscriptions, log)
        found, n_found = updates_in(self.root / "out")
        assert found == wanted, "updates differ"
        assert n_found == n > 0
        return n

    def log_end(self) -> str:
        return (self.root / "log").read_text()[-20_000:]

    def victims(self, kind: str) -> list[int]:
        assert self.process is not None
        if kind == "driver":
            return [self.process.pid]
        own = descendants(self.process.pid)
        commands = {pid: command_of(pid) for pid, _ in own}
        if kind == "executor":
            return [pid for pid in commands if "CoarseGrainedExecutorBackend" in commands[pid]]
        daemons = {pid for pid in commands if "pyspark.worker" in commands[pid]}
        parents = {pid: int(stat[1]) for pid, stat in own}
        leaders = {pid for pid in daemons if parents[pid] not in daemons}
        return sorted(leaders if kind == "daemon" else daemons - leaders)

    def kill(self, kind: str, random: np.random.Generator) -> bool:
        """Kill one of a kind; return whether there was one."""
        found = self.victims(kind)
        if not found:
            return False
        assert self.process is not None
        others = [pid for pid, _ in descendants(self.process.pid)]
        with suppress(ProcessLookupError):
            os.kill(int(random.choice(found)), signal.SIGKILL)
        if kind == "driver":
            self.process.wait()
            self.process = None
            wait_until_gone(others)
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("semantics", choices=list(CASES))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--master", default=CLUSTER)
    arguments = parser.parse_args()
    random = np.random.default_rng(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="earshot-kills-") as name:
        soak = Soak(Path(name), arguments.semantics, arguments.master)
        killed: Counter[str] = Counter()
        n_starts = 0
        while killed.total() < arguments.kills:
            if soak.process is None:
                soak.start()
                n_starts += 1
            # A batch of progress between two kills, then at any moment.
            first, until = soak.n_batches, math.inf
            while time.monotonic() < until:
                soak.feed_on()
                time.sleep(0.1)
                if until == math.inf and soak.n_batches > first:
                    until = time.monotonic() + float(random.uniform(0.0, 4.0))
                assert soak.process is not None
                assert soak.process.poll() is None, soak.log_end()
            kind = VICTIMS[killed.total() % len(VICTIMS)]
            if soak.kill(kind, random):
                killed[kind] += 1
                done = f"{soak.n_batches} batches, {soak.n_merges} merges"
                print(f"{time.strftime('%X')} {kind} after {done}", flush=True)
        if soak.process is not None:
            soak.kill("driver", random)
        assert soak.start(once=True).wait() == 0, soak.log_end()
        soak.keep()
        n = soak.compare()
        assert soak.keeps_messages or soak.n_merges
        told = ", ".join(f"{n} {kind}s" for kind, n in killed.items())
        print(f"{arguments.semantics}: {told} killed, {n_starts + 1} starts, {soak.n_batches} "
              f"batches, {soak.n_merges} merges, {n:,} updates, all equal")  # fmt: skip


if __name__ == "__main__":
    main()
