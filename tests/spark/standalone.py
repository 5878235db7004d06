"""A standalone cluster of Spark on this machine: a master and workers in processes of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyspark

from earshot.spark.java import use_java

START_S = 300.0
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For code that runs too briefly to be worth Java's slow compiler."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster."""

    url: str
    workers: list[subprocess.Popen[bytes]]

    def executors(self) -> list[int]:
        """Return the processes of the executors, oldest first."""
        return sorted(
            pid
            for worker in self.workers
            for pid in descendants(worker.pid)
            if "CoarseGrainedExecutorBackend" in command_of(pid)
        )


@contextmanager
def running_cluster(
    root: Path,
    n_workers: int = 2,
    *,
    cores: int = 1,
    memory: str = "1g",
    environ: Mapping[str, str] = os.environ,
) -> Iterator[Cluster]:
    """Start a cluster that listens on loopback only, in an environment, and end it."""
    environ = dict(environ)
    use_java(environ)
    home = Path(pyspark.__file__).parent
    environ |= {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    environ |= {"SPARK_LOG_DIR": str(root), "SPARK_DAEMON_MEMORY": "300m"}
    environ |= {"SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA}
    root.mkdir(parents=True, exist_ok=True)
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, role: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}"]
        command += ["--host", "127.0.0.1", "--webui-port", "0", *arguments]
        with (root / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
        started.append(process)
        return process

    try:
        start("master", "master.Master", "--port", str(port))
        wait_for_port(port)
        limits = ("--cores", str(cores), "--memory", memory)
        workers = [
            start(
                f"worker-{n}", "worker.Worker", *limits, "--work-dir", str(root / f"work-{n}"), url
            )
            for n in range(n_workers)
        ]
        for number in range(n_workers):
            wait_for_line(root / f"worker-{number}.log", "registered with master")
        yield Cluster(url, workers)
    finally:
        # Java is started so that it does not heed SIGTERM; executors end when their worker does.
        for process in reversed(started):
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def wait_for_port(port: int) -> None:
    until = time.monotonic() + START_S
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert time.monotonic() < until, "the master does not start"
        time.sleep(0.1)


def wait_for_line(log: Path, told: str) -> None:
    until = time.monotonic() + START_S
    while told not in log.read_text(errors="replace"):
        assert time.monotonic() < until, f"{log} does not say {told!r}"
        time.sleep(0.1)


def descendants(root: int) -> list[int]:
    """Return the processes that a process and those have started."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(") ")[2].split()[1])

    def descends(pid: int) -> bool:
        while pid in parents and pid != root:
            pid = parents[pid]
        return pid == root

    return [pid for pid in parents if pid != root and descends(pid)]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def shards_mapped_by(process: int) -> dict[str, int]:
    """Return the shards that the Python workers of an executor have mapped.

    With each comes the number of its bytes in memory, in the worker that has most of them.
    """
    mapped: dict[str, int] = {}
    for pid in descendants(process):
        resident: dict[str, int] = {}
        name = None
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
                words = line.split()
                if "-" in words[0] and not words[0].endswith(":"):
                    _, _, after = line.partition("/shards/")
                    name = after.partition("/")[0] or None
                elif name is not None and words[0] == "Rss:":
                    resident[name] = resident.get(name, 0) + 1024 * int(words[1])
        for name, n_bytes in resident.items():
            mapped[name] = max(mapped.get(name, 0), n_bytes)
    return mapped
