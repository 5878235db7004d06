"""A run: suites one after the other, every row written as soon as it is there."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

from earshot.bench.competitors import competitor_names, new_competitor
from earshot.bench.context import Context, peak_memory
from earshot.bench.profiles import find_profile
from earshot.bench.results import RESULTS
from earshot.bench.suites import SUITES
from earshot.workloads.blocks import named
from earshot.workloads.synthetic import find_workload

PACKAGES = ("earshot", "numba", "numpy", "pyarrow", "duckdb", "pyspark")


say_at_once = partial(print, flush=True)
"""Prints, also where the output is a file that somebody watches."""


def run(
    profile: str = "smoke",
    *,
    suites: Sequence[str] | None = None,
    competitors: Sequence[str] | None = None,
    workloads: Sequence[str] | None = None,
    n_subscriptions: int | None = None,
    n_messages: int | None = None,
    budget_s: float | None = None,
    seed: int = 1,
    results: str | Path = RESULTS,
    data: str | Path | None = None,
    say: Callable[[str], None] = say_at_once,
) -> Path:
    """Run a profile and return the file of its results.

    Args:
        profile: ``smoke`` (seconds), ``regular`` (1 M subscriptions) or ``large`` (10 M).
        suites: Suites to run, in the order of ``SUITES``; by default those of the profile.
        competitors: Who takes part; by default every index and rival.
        workloads: Workloads of the suite ``match``; by default those of the profile.
        n_subscriptions: Other number of subscriptions than the profile's.
        n_messages: Other number of messages than the profile's; not of the suite ``spark_stream``.
        budget_s: Other seconds of a structure for moving subscribers at each point; no timestamp is
            begun after that.
        seed: Seed of all workloads.
        results: Directory for the results; a new file is made, none is overwritten.
        data: Directory of real datasets, for the suites ``real`` and ``placement``.
        say: Told what is going on.

    Raises:
        AnswersDiffer: Two competitors disagree. Rows written before that stay.
    """
    chosen = find_profile(profile)
    if n_subscriptions is not None:
        sizes = tuple(size for size in chosen.sizes if size < n_subscriptions)
        many = tuple(sorted({min(chosen.many[0], n_subscriptions), n_subscriptions}))
        chosen = replace(
            chosen, n_subscriptions=n_subscriptions, sizes=(*sizes, n_subscriptions), many=many
        )
    if n_messages is not None:
        spark = replace(chosen.spark, n_messages=n_messages)
        chosen = replace(chosen, n_messages=n_messages, spark=spark)
    if budget_s is not None:
        chosen = replace(chosen, moving=replace(chosen.moving, budget_s=budget_s))
    if workloads is not None:
        chosen = replace(chosen, workloads=tuple(workloads))
    if suites is None:
        suites = [name for name in SUITES if not name.startswith(chosen.by_name)]
    for suite in suites:
        named("suite", suite, SUITES)
    names = list(competitor_names() if competitors is None else competitors)
    for name in names:
        new_competitor(name).close()  # a wrong name or a missing package is told before the work
    for workload in chosen.workloads:
        find_workload(workload)
    context = Context(chosen, names, seed, data, say)
    facts = run_facts(profile, seed)
    try:
        with _new_file(Path(results), profile) as file:
            for suite in [name for name in SUITES if name in suites]:
                began = time.perf_counter()
                for row in SUITES[suite].rows(context):
                    file.write(json.dumps({"suite": suite, **row, "run": facts}) + "\n")
                    file.flush()
                say(f"suite {suite}: {time.perf_counter() - began:.0f} s, {peak_memory()}")
            say(f"results in {file.name}")
            return Path(file.name)
    finally:
        context.close()


def run_facts(profile: str, seed: int) -> dict[str, Any]:
    """Return what a row needs to be judged later: when, where and with what it was measured."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "profile": profile,
        "seed": seed,
        "commit": _commit(),
        "machine": {
            "processor": _processor(),
            "n_cores": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "system": platform.platform(),
        },
        "versions": {"python": platform.python_version(), **{p: _version(p) for p in PACKAGES}},
    }


def _new_file(results: Path, profile: str) -> TextIO:
    results.mkdir(parents=True, exist_ok=True)
    stem = f"{datetime.now(UTC):%Y-%m-%d}-{profile}"
    attempt = 1
    while True:
        name = f"{stem}.jsonl" if attempt == 1 else f"{stem}-{attempt}.jsonl"
        try:
            return (results / name).open("x", encoding="utf-8")
        except FileExistsError:
            attempt += 1


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the commit of the checkout that the package is in, if it is in one."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        describe = [*git, "describe", "--always", "--dirty", "--abbrev=12"]
        return subprocess.run(describe, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
