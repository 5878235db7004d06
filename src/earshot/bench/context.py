"""What the suites of a run share: workloads generated once, competitors built once, files once."""

from __future__ import annotations

import gc
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from earshot.bench.checksums import check_agreement
from earshot.bench.competitors import Competitor, IndexCompetitor, new_competitor
from earshot.bench.measuring import (
    Case,
    Contender,
    case_of,
    compile_seconds,
    cpu_s,
    elapsed_s,
    first_pass,
    open_seconds,
    row_of,
    time_in_turns,
)
from earshot.bench.profiles import Profile
from earshot.bench.results import Row
from earshot.engine.engine import Engine
from earshot.errors import EarshotError
from earshot.indexes import default_structure, structures_of
from earshot.workloads.synthetic import Workload, find_workload, message_table, subscription_table

SUBSCRIPTIONS_PER_WRITE = 500_000
"""Rows that are held as words at a time while a file of subscriptions is written."""


class SavedFiles(NamedTuple):
    """A workload in files, and the index that the command line built of them."""

    workload: Workload
    messages: Path
    index_directory: Path
    build_s: float


@dataclass
class Context:
    """What a suite needs to know about the run it belongs to."""

    profile: Profile
    competitors: list[str]
    seed: int
    data: str | Path | None
    say: Callable[[str], None]
    shared: dict[str, Any] = field(default_factory=dict)  # what suites keep for each other, by name
    _compile_s: dict[object, float] = field(default_factory=dict)
    _arena: tuple[Case, list[Contender]] | None = None
    _rows: dict[tuple[str, int], list[Row]] = field(default_factory=dict)
    _at_end: ExitStack = field(default_factory=ExitStack)

    @cached_property
    def folder(self) -> Path:
        """A directory that goes with this run."""
        made = tempfile.TemporaryDirectory(prefix="earshot-bench-")
        return Path(self._at_end.enter_context(made))

    def workload(self, name: str, n_subscriptions: int | None = None) -> Workload:
        """Return a workload in the profile's size."""
        size = self.profile.n_subscriptions if n_subscriptions is None else n_subscriptions
        return find_workload(name).scaled(size, self.profile.n_messages, self.seed)

    def focus(self) -> list[str]:
        """Return the structures of the suites that look closer."""
        taking_part = self.profile.focus or structures_of("boolean")
        return [name for name in self.competitors if name in taking_part]

    def arena(self, given: Workload | Case, names: Sequence[str]) -> tuple[Case, list[Contender]]:
        """Return a case with competitors built; the last one is kept for the next suite."""
        if self._arena is not None:
            case, built = self._arena
            chosen = [each for each in built if each.name in names]
            is_same = (case.name, case.n_subscriptions) == (given.name, given.n_subscriptions)
            if is_same and len(chosen) == len(names):
                return case, chosen
        self.release()
        case = given if isinstance(given, Case) else case_of(given)
        self._arena = (case, self._prepare(case, names))
        return self._arena

    def measure(self, given: Workload | Case) -> list[Row]:
        """Measure all competitors of this run, or return what was measured before."""
        key = (given.name, given.n_subscriptions)
        if key not in self._rows:
            case, contenders = self.arena(given, self.competitors)
            time_in_turns(case, contenders, self.profile.effort)
            self.say(f"{given.name}: measured; {peak_memory()}")
            self._rows[key] = [row_of(case, contender) for contender in contenders]
        return self._rows[key]

    def files(self, workload: Workload) -> SavedFiles:
        """Return the headline in files, written and indexed when first asked for."""
        if "files" not in self.shared:
            self.release()
            # Enough that the rate is measured, not the start of a process.
            workload = workload.scaled(n_messages=10 * workload.n_messages)
            made = self.shared["files"] = _write_files(workload, self.folder)
            self.say(f"files: index built in {made.build_s:.1f} s; {peak_memory()}")
        files: SavedFiles = self.shared["files"]
        return files

    def built(self, competitor: Competitor, case: Case, kernels: object) -> Contender:
        """Build a competitor; the kernels that it uses are compiled before, once by that name."""
        if kernels not in self._compile_s:
            self._compile_s[kernels] = compile_seconds(competitor, case)
        build_s = cpu_s(competitor.build, case.clauses, case.space, case.n_tokens)
        return Contender(competitor, build_s, self._compile_s[kernels])

    def release(self) -> None:
        """Let go of the last arena."""
        if self._arena is not None:
            for contender in self._arena[1]:
                contender.competitor.close()
            self._arena = None
            gc.collect()

    def close(self) -> None:
        """Let go of everything."""
        self.release()
        self._at_end.close()

    def _prepare(self, case: Case, names: Sequence[str]) -> list[Contender]:
        """Build all competitors, let each answer within its budget, and compare the answers."""
        effort, contenders = self.profile.effort, []
        for name in names:
            contender = self.built(new_competitor(name), case, name)
            competitor = contender.competitor
            is_opened = effort.opens_all or name == default_structure("boolean")
            if is_opened and isinstance(competitor, IndexCompetitor):
                contender.open_s = open_seconds(competitor)
            first_pass(contender, case.messages, effort.budget_s)
            self.say(
                f"{case.name}: {name} built in {contender.build_s:.1f} s, answered "
                f"{contender.n_messages} of {len(case.messages.boxes)} messages"
            )
            contenders.append(contender)
        check_agreement(case.name, {each.name: each.checksums for each in contenders})
        return contenders


def run_command(arguments: Sequence[str]) -> dict[str, Any]:
    """Run one command of the command line as a person would; return the JSON that it prints."""
    command = [sys.executable, "-m", "earshot", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EarshotError(f"'earshot {' '.join(arguments)}' failed: {done.stderr.strip()}")
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def open_engine(directory: Path, n_threads: int = 1) -> Engine:
    """Open a saved engine; nothing is compiled or read in later."""
    engine = Engine.open(directory, n_threads=n_threads)
    engine.warm_up()
    return engine


def peak_memory() -> str:
    """Return the largest memory of this process so far, in words."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return f"peak memory {kilobytes / 2**20:.1f} GB"


def _write_files(workload: Workload, folder: Path) -> SavedFiles:
    subscriptions, messages = folder / "subscriptions.parquet", folder / "messages.parquet"
    pq.write_table(message_table(workload), messages)
    schema, n = subscription_table(workload, 0, 0).schema, workload.n_subscriptions
    with pq.ParquetWriter(subscriptions, schema) as writer:
        for start, stop in pairwise([*range(0, n, SUBSCRIPTIONS_PER_WRITE), n]):
            writer.write_table(subscription_table(workload, start, stop))
    index = folder / "index"
    build = ["index", "build", str(subscriptions), "--space", workload.space, "--out", str(index)]
    build_s = elapsed_s(run_command, build)
    subscriptions.unlink()
    return SavedFiles(workload, messages, index, build_s)
