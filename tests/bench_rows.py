"""What tests of the benchmark share: small runs, and what a report makes of rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from earshot.bench import run
from earshot.bench.plots import Image, images_of
from earshot.bench.results import read_rows
from earshot.bench.suites import SUITES
from earshot.bench.targets import TARGETS, evaluate

Rows = list[dict[str, Any]]

FACTS: dict[str, Any] = {"commit": None, "seed": 1, "versions": {}, "profile": "regular",
         "machine": {"processor": "p", "n_cores": 1, "memory_bytes": 0}}  # fmt: skip


def measured(results: Path, *suites: str, **options: Any) -> tuple[Rows, list[str]]:
    """Run suites of the smoke profile; return the rows, and what was said."""
    heard: list[str] = []
    path = run("smoke", suites=suites, results=results, say=heard.append, **options)
    return read_rows(path), heard


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def target_values(rows: Rows) -> dict[str, float]:
    """Return the value of each target that was measured."""
    found = {target.name: evaluate(target, rows) for target in TARGETS}
    return {name: each.value for name, each in found.items() if each is not None}


def images_of_suite(name: str, rows: Rows) -> list[Image]:
    plot = SUITES[name].plot
    assert plot is not None
    return images_of(name, plot, rows)
