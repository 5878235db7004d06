"""Clusters that lack something, and one that lacks all but an archive: ``broken_clusters.py ROOT``.

``--other-python PATH`` names a Python of another version. Each cluster is a real one of two
executors on this machine. Says for each what the command told and how long that took, and fails
where it is not what it should be. ``--runs N`` tells instead how many seconds pass between the
executors being there and the sentence, the median of N times.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from earshot.files import write_table
from earshot.workloads.datasets import bundled_messages, draw_subscriptions

sys.path.insert(0, str(Path(__file__).parents[1]))
from spark.standalone import free_port, running_cluster

N_SUBSCRIPTIONS, N_MESSAGES = 5_000, 1_000
CONFIG = """
index = "index"
checkpoint = "checkpoint"

[subscriptions]
path = "{root}/subscriptions.parquet"
placement = "sharded"
n_shards = 4

[messages]
source = "files"
path = "{root}/incoming"

[sink]
kind = "files"
path = "updates"

[spark]
"spark.driver.host" = "127.0.0.1"
"spark.executor.memory" = "512m"
"spark.ui.enabled" = "false"
"""
ARCHIVE = """
"spark.archives" = "{root}/environment.tar.gz#environment"
"spark.pyspark.python" = "environment/bin/python"
"spark.pyspark.driver.python" = "python"
"spark.executorEnv.XDG_CACHE_HOME" = "{cache}"
"""
# As on a machine on which nobody has installed anything.
BARE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
DONE = f"{N_MESSAGES:,} messages"


class Trial:
    """A directory with something to match."""

    def __init__(self, root: Path, slowness: float) -> None:
        self.root, self.slowness = root, slowness
        (root / "incoming").mkdir(parents=True)
        reports = bundled_messages()
        write_table(root / "subscriptions.parquet", draw_subscriptions(reports, N_SUBSCRIPTIONS))
        write_table(root / "incoming" / "first.ndjson", reports.slice(0, N_MESSAGES))

    def run(
        self,
        name: str,
        told: str,
        *,
        within_s: float,
        cluster: dict[str, str],
        driver: dict[str, str] | None = None,
        master: str | None = None,
        more: str = "",
    ) -> None:
        """Run the pipeline on a cluster with an environment; see what the command tells."""
        folder = self.root / name
        folder.mkdir()
        (folder / "pipeline.toml").write_text(CONFIG.format(root=self.root) + more)
        environ = {key: value for key, value in os.environ.items() if key != "PYSPARK_PYTHON"}
        environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        with running_cluster(folder / "cluster", environ=cluster) as running:
            command = [sys.executable, "-m", "earshot", "pipeline", "run", "pipeline.toml"]
            command += ["--once", "--quiet", "--master", master or running.url]
            started = time.monotonic()
            done = subprocess.run(
                command, cwd=folder, env=environ | (driver or {}), check=False,
                capture_output=True, text=True, timeout=600,
            )  # fmt: skip
            elapsed_s = time.monotonic() - started
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        # Java says this before any setting counts.
        own = [line for line in said if "WARNING: Using incubator" not in line]
        print(f"{name}: {elapsed_s:.0f} s\n  " + "\n  ".join(own), flush=True)
        assert any(told in line for line in own), f"{name}: {told!r} is not told"
        assert elapsed_s < within_s * self.slowness, f"{name} took {elapsed_s:.0f} s"
        if told != DONE:
            assert len(own) == 1, f"{name}: more than a sentence is told"


def time_sentences(root: Path, n_runs: int, other_python: str | None) -> None:
    """Ask the same executors with one Python after another, in turns."""
    from earshot.errors import MissingExtra
    from earshot.spark.preflight import _asked, check_executors
    from earshot.spark.session import local_session

    programs = {"no-package": "/usr/bin/python3", "no-program": "/nowhere/python"}
    if other_python is not None:
        programs["other-version"] = other_python
    programs["fit"] = sys.executable
    settings = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
    settings |= {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spent_s: dict[str, list[float]] = {name: [] for name in programs}
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with running_cluster(root / "cluster", environ=BARE) as running:
        session = local_session(running.url, extra=settings | {"spark.log.level": "OFF"})
        context = session.sparkContext
        tracker = context._jsc.sc().statusTracker()
        while len(tracker.getExecutorInfos()) < 3:  # with the driver
            time.sleep(0.05)
        for _ in range(n_runs):
            for name, program in programs.items():
                context.pythonExec = program
                _asked.clear()
                started = time.monotonic()
                told = None
                try:
                    check_executors(session)
                except MissingExtra as problem:
                    told = str(problem)
                spent_s[name].append(time.monotonic() - started)
                assert (told is None) == (name == "fit"), told
        session.stop()
    for name, each in spent_s.items():
        print(f"{name}: {median(each):.1f} s, at first {each[0]:.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--other-python")
    parser.add_argument("--slowness", type=float, default=1.0, help="of a busy machine")
    parser.add_argument("--runs", type=int, default=0, help="time sentences so many times")
    given = parser.parse_args()
    if given.runs:
        time_sentences(given.root.absolute(), given.runs, given.other_python)
        sys.exit()
    trial = Trial(given.root.absolute(), given.slowness)
    here = {"PYSPARK_PYTHON": sys.executable}
    with_package = BARE | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    trial.run("no-package", "has no package earshot", within_s=30, cluster=BARE)
    trial.run(
        "no-program", "cannot start /nowhere/python (PYSPARK_PYTHON is /nowhere/python)",
        within_s=30, cluster=BARE, driver={"PYSPARK_PYTHON": "/nowhere/python"},
    )  # fmt: skip
    if given.other_python is not None:
        trial.run(
            "other-version", f"and the driver runs {sys.version_info.major}.",
            within_s=30, cluster=BARE, driver={"PYSPARK_PYTHON": given.other_python},
        )  # fmt: skip
    nobody = f"spark://127.0.0.1:{free_port()}"
    trial.run("no-master", "cannot be reached", within_s=15, cluster=BARE, master=nobody)
    trial.run(
        "no-home", DONE, within_s=120, cluster=with_package | {"HOME": "/dev/null"}, driver=here
    )
    out, cache = trial.root / "environment.tar.gz", trial.root / "cache"
    subprocess.run([sys.executable, "-m", "earshot", "pipeline", "pack", str(out)], check=True)
    more = ARCHIVE.format(root=trial.root, cache=cache)
    trial.run("archive", DONE, within_s=120, cluster=BARE, more=more)
    compiled = sorted(path.name for path in cache.rglob("*.kernel"))
    assert not compiled, f"executors compiled {compiled}"
