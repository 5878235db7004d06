"""Whether the executors of a cluster can run Earshot, asked before any work is sent to them.

A task that fails on an executor is tried again, and what Spark tells of it in the end is long. So
the driver first sends a small function that needs nothing but Python, and says in one sentence what
is missing.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from earshot.errors import MissingExtra
from earshot.spark.session import is_local

PACKAGES = ("earshot", "numba", "numpy", "pyarrow", "shapely", "xxhash")
"""What a task imports."""
ADVICE = (
    "let PYSPARK_PYTHON (or spark.pyspark.python) name a Python that every machine has, with "
    "Earshot in it, or send one along: earshot pipeline pack environment.tar.gz"
)

# As text, so that it goes to the executors by value: they may lack this package.
_PROBE = """
def probe(rows):
    import os, platform, socket, sys
    from importlib import metadata, util

    for _ in rows:
        pass
    versions = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "unknown" if util.find_spec(name) else None
    yield {
        "host": socket.gethostname(),
        "python": sys.executable,
        "version": platform.python_version(),
        "versions": versions,
    }
"""
_MISMATCH = re.compile(r"PYTHON_VERSION_MISMATCH.*?(\d+\.\d+).*?(\d+\.\d+)", re.DOTALL)
# A Python too old or too new for PySpark fails before PySpark compares versions.
_RUNNING = re.compile(r"(?:python|pypy)(\d+\.\d+)/runpy\.py")
_LAST_WORDS = re.compile(r"Error from python worker:.*?^ *([^\n]+)\nPYTHONPATH was", re.S | re.M)
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]+)"')

_asked: set[str] = set()
"""Applications whose executors were found to be fit."""


def check_executors(session: SparkSession) -> None:
    """Make sure that the executors of a session can run Earshot; asked once per application.

    Where driver and executors are one process there is nothing to ask.

    Raises:
        MissingExtra: They cannot; says what is missing where, and what to do.
    """
    try:
        context = session.sparkContext
    except PySparkException:  # a client of Spark Connect, which has none
        return
    if is_local(str(context.master)) or context.applicationId in _asked:
        return
    # One task first: Spark tries each four times, with a Python started for each attempt, and of
    # many none has failed for good until nearly all attempts are made.
    for n_tasks in (1, max(2, 2 * int(context.defaultParallelism))):
        try:
            found = context.parallelize(range(n_tasks), n_tasks).mapPartitions(_probe()).collect()
        except (PySparkException, Py4JError) as error:
            raise MissingExtra(_told(str(error))) from None
        problem = judged(found, _own_versions())
        if problem is not None:
            raise MissingExtra(problem)
    _asked.add(context.applicationId)


def _probe() -> Callable[[Iterable[int]], Iterable[dict[str, Any]]]:
    # Functions of a module that is not one are sent as they are.
    space: dict[str, Any] = {"__name__": "__main__", "packages": PACKAGES}
    exec(_PROBE, space)
    probe: Callable[[Iterable[int]], Iterable[dict[str, Any]]] = space["probe"]
    return probe


def _own_versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in PACKAGES}


def judged(found: Sequence[Mapping[str, Any]], own: Mapping[str, str]) -> str | None:
    """Return what is wrong with what executors have, None if nothing is.

    Args:
        found: What each of them said of itself.
        own: The versions of the driver's packages.
    """
    for each in found:
        where = f"the executors' Python ({each['python']} on {each['host']})"
        for name, version in each["versions"].items():
            if version is None:
                return f"{where} has no package {name}: {ADVICE}"
        theirs = each["versions"]["earshot"]
        if theirs not in (own["earshot"], "unknown"):
            return (
                f"{where} has Earshot {theirs}, and the driver has {own['earshot']}: install the "
                f"same version on both"
            )
    return None


def _told(account: str) -> str:
    """Return what an account of Spark's about executors comes to."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    mismatch = _MISMATCH.search(account)
    running = _RUNNING.search(account)
    versions = [*(mismatch.groups() if mismatch else ()), *(running.groups() if running else ())]
    theirs = next((each for each in versions if each != here), None)
    if theirs is not None:
        return (
            f"the executors run Python {theirs}, and the driver runs {here}: let PYSPARK_PYTHON "
            f"(or spark.pyspark.python) name a Python {here} on every machine"
        )
    missing = _NO_PROGRAM.search(account)
    if missing is not None:
        given = os.environ.get("PYSPARK_PYTHON")
        named = f"PYSPARK_PYTHON is {given}" if given else "PYSPARK_PYTHON is not set"
        return f"the executors cannot start {missing.group(1)} ({named}): {ADVICE}"
    last = _LAST_WORDS.search(account)
    lines = [line.strip() for line in account.splitlines() if re.search("Error|Exception", line)]
    said = last.group(1) if last else (lines or [account])[-1]
    return f"the executors cannot run Python: {said[:300]}: {ADVICE}"
