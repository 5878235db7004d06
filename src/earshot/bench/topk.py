"""Methods of top-k over a sliding window, measured as [PVLDB16] section 7 does.

A method is a way in which messages find subscriptions (``dissemination``) and a way in which
results are kept full (``reevaluation``). Filling the results of new subscriptions takes far longer
than what is measured, and does not depend on the dissemination: a case is filled once for each
re-evaluation, saved, and opened anew for every measurement, since messages change the state. What
was measured is kept for the suites that show it again. See also ``bench/README.md``.
"""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from earshot import storage
from earshot.bench.checksums import Digest, check_agreement, shown
from earshot.bench.context import Context, peak_memory
from earshot.bench.measuring import CPU, cpu_s, cpu_timed, elapsed_s, rates, timed
from earshot.bench.results import Row, basics
from earshot.model.arrays import CountedMessages, Float64s, Int64s, take_messages
from earshot.model.ranking import idf_weights
from earshot.semantics.topk import DISSEMINATIONS, find_dissemination, find_reevaluation
from earshot.semantics.topk.contract import Dissemination, Scan
from earshot.semantics.topk.igpt import ALL_RULES, Igpt
from earshot.semantics.topk.monitor import Counters, Monitor
from earshot.semantics.topk.reevaluation import Kmax, Reevaluation, Skyband
from earshot.workloads.topk import MAX_DISTANCE, TopkWorkload, find_topk_workload

FIRST_ARRIVAL = 1 << 24
"""The first message that is measured, whatever the size of the window before it."""

SUBSCRIPTIONS_PER_CALL, MESSAGES_PER_CALL = 50_000, 50_000
CALLS = 10
"""Calls that the arrivals are cut into."""

MARGIN = 1.25
"""A window by time is filled from so many times its mean number of messages."""

GROUP_RULES = ("cells", "groups", "early")
"""Rules of [PVLDB16] section 5.3, for many subscriptions at once; IPT has none of them."""


class Method(NamedTuple):
    """How messages find subscriptions, and how results are kept full."""

    dissemination: Dissemination
    reevaluation: Reevaluation

    @property
    def label(self) -> str:
        """Name in reports."""
        return f"{part_label(self.dissemination)}+{part_label(self.reevaluation)}"

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of both, as JSON takes them."""
        both = asdict(self.dissemination) | asdict(self.reevaluation)
        return {name: sorted(value) if isinstance(value, frozenset) else value
                for name, value in both.items()}  # fmt: skip


def part_label(part: Dissemination | Reevaluation) -> str:
    """Return the name of one half of a method, with the parameters that are not the default's."""
    default = asdict(type(part)())
    changed = {name: value for name, value in asdict(part).items() if value != default[name]}
    if isinstance(part, Igpt) and changed.pop("rules", None) is not None:
        is_individual = part.rules == ALL_RULES - set(GROUP_RULES)
        left_out = " ".join(f"-{rule}" for rule in sorted(ALL_RULES - part.rules))
        changed["rules"] = "individual" if is_individual else left_out
    # A factor is what these two are about, so it is told even where it is the default's.
    if isinstance(part, Kmax | Skyband):
        changed["factor"] = part.factor
    shown = ", ".join(f"{name}={value}" for name, value in changed.items())
    return f"{part.name}({shown})" if shown else part.name


def default_method() -> Method:
    """Return the method that an engine has when nothing is said."""
    return Method(find_dissemination(None), find_reevaluation(None))


def disseminations() -> list[Dissemination]:
    """Return every registered way in which messages find subscriptions, the default first."""
    return [each() for each in DISSEMINATIONS.values() if each is not Scan]


# ---- cases ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Subscriptions, a window that is full, and what arrives then.

    Without aging all buffers are as full as a search makes them, and hardly any runs dry soon.
    """

    workload: TopkWorkload
    n_subscriptions: int
    window: int  # messages; of a window by time, their mean number
    n_arrivals: int
    n_aging: int = 0  # messages that have come since all subscriptions were filled
    is_by_time: bool = False  # whether messages leave by their age

    def drawn(self, **fields: Any) -> Case:
        """Return the same case with some attributes of the workload changed."""
        return replace(self, workload=replace(self.workload, **fields))

    @property
    def label(self) -> str:
        """Name in messages."""
        return (
            f"{self.workload.name}, {self.n_subscriptions:,} subscriptions, k {self.workload.k}, "
            f"window {self.window:,}{' by time' if self.is_by_time else ''}"
        )

    def told(self) -> Row:
        """Return what only rows of top-k tell."""
        workload = self.workload
        return {
            "window": self.window,
            "is_by_time": self.is_by_time,
            "k": workload.k,
            "keywords": [workload.keywords_min, workload.keywords_max],
            "keywords_from": workload.keywords_from,
            "n_messages_offered": self.n_arrivals,
            "n_aging": self.n_aging,
        }

    def monitor(self, method: Method) -> Monitor:
        """Return a monitor with nothing in it, and without the structure that is measured."""
        return Monitor(
            window=None if self.is_by_time else self.window,
            duration_us=self.workload.duration_us(self.window) if self.is_by_time else None,
            max_distance=MAX_DISTANCE,
            dissemination=Scan(),
            reevaluation=method.reevaluation,
            n_threads=os.cpu_count() or 1,
        )


class Trial(NamedTuple):
    """A method on a case, and where in a figure it stands."""

    case: Case
    method: Method
    told: Row


def measure(context: Context, trials: Iterable[Trial]) -> Iterator[Row]:
    """Yield the row of each trial."""
    context.release()
    store: Store = context.shared.setdefault("topk", Store(context))
    for case, method, told in trials:
        yield store.row_of(case, method) | told


class State(NamedTuple):
    """A monitor whose window and results are full, in a file."""

    directory: Path
    setup_s: float
    checksum: int  # of the results that subscriptions began with


@dataclass
class Store:
    """What the suites of one run keep for each other."""

    context: Context
    states: dict[tuple[Case, Reevaluation], State] = field(default_factory=dict)  # latest use last
    rows: dict[tuple[Case, Method], Row] = field(default_factory=dict)
    checksums: dict[Case, dict[str, dict[int, int]]] = field(default_factory=dict)
    compile_s: dict[str, float] = field(default_factory=dict)

    @cached_property
    def folder(self) -> Path:
        """A directory for the states."""
        return Path(tempfile.mkdtemp(dir=self.context.folder))

    def row_of(self, case: Case, method: Method) -> Row:
        """Return the row of a method, measured when first asked for."""
        if (case, method) not in self.rows:
            name = method.dissemination.name
            if name not in self.compile_s:
                self.compile_s[name] = elapsed_s(_compile, name)
            state = self.state(case, method)
            effort = self.context.profile.topk
            passes: list[Row] = []
            while len(passes) < effort.repetitions and (
                sum(each["elapsed_s"] for each in passes) <= effort.budget_s
            ):
                passes.append(self._measure(case, method, state, effort.budget_s))
            n = max(each["n_messages"] for each in passes)
            whole = [each for each in passes if each["n_messages"] == n]
            best = min(whole, key=lambda each: float(each["elapsed_s"]))
            rated = rates([each["elapsed_s"] for each in whole], n, best.pop("n_changes"), CPU)
            self.rows[case, method] = row = best | rated | {"compile_s": self.compile_s[name]}
            self.context.say(
                f"{case.label}: {method.label}, {n:,} messages, "
                f"{row['messages_per_s']:,.0f}/s; {peak_memory()}"
            )
        return self.rows[case, method]

    def state(self, case: Case, method: Method) -> State:
        """Return a saved state, made when first asked for; those used last are kept."""
        key = (case, method.reevaluation)
        if key not in self.states:
            while len(self.states) >= self.context.profile.topk.states_kept:
                shutil.rmtree(self.states.pop(next(iter(self.states))).directory)
            (monitor, digest), setup_s = timed(_filled, case, method)
            directory = Path(tempfile.mkdtemp(dir=self.folder))
            storage.save(directory, monitor.contents())
            self.states[key] = State(directory, setup_s, digest)
            told = part_label(method.reevaluation)
            self.context.say(f"{case.label}: {told} filled in {setup_s:.1f} s")
        self.states[key] = self.states.pop(key)
        return self.states[key]

    def _measure(self, case: Case, method: Method, state: State, budget_s: float) -> Row:
        """Let messages arrive over a fresh copy of a state; return a row but for the rates."""
        # Copied, as opened arrays are mapped and every first touch of a page would be measured.
        monitor = copy.deepcopy(Monitor.open(storage.Saved.open(state.directory)))
        build_s = cpu_s(monitor.restructure, method.dissemination)
        messages = _arrivals(case.workload, stop=case.n_arrivals)
        before: Int64s = np.array(monitor.counters, np.int64)
        ticks: Int64s = np.array(monitor.ticks, np.int64)
        first_sequence = monitor.next_sequence
        digest, n_changes, spent_s, n = Digest(), 0, 0.0, 0
        prefixes, buffered = dict[str, Row](), list[float]()
        sums = {0: state.checksum}  # of the results to begin with
        stops = np.unique(np.linspace(0, case.n_arrivals, CALLS + 1).astype(int)).tolist()
        for start, n in pairwise(stops):
            part = take_messages(messages, np.arange(start, n))
            changes, part_s = cpu_timed(monitor.publish, part)
            spent_s += part_s
            # Counted from the first arrival, whatever has come before it.
            digest.add(changes._replace(sequences=changes.sequences - first_sequence))
            n_changes += len(changes.rows)
            sums[n] = digest.value
            buffered.append(monitor.n_buffered / max(monitor.n_subscriptions, 1))
            prefixes[str(n)] = _costs(np.array(monitor.ticks) - ticks, spent_s, n)
            if spent_s > budget_s:
                break
        of_case = self.checksums.setdefault(case, {})
        of_case[method.label] = sums
        check_agreement(case.label, of_case)
        work = Counters(*(np.array(monitor.counters) - before).tolist())._asdict()
        memory = monitor.memory()
        told = {str(length): shown(value) for length, value in sums.items() if length}
        return {
            **basics(case.workload.name, method.label, case.n_subscriptions, n),
            **case.told(),
            "dissemination": method.dissemination.name,
            "reevaluation": method.reevaluation.name,
            "parameters": method.parameters,
            **prefixes[str(n)],
            "prefixes": prefixes,
            "elapsed_s": spent_s,
            "n_changes": n_changes,
            "changes_per_message": n_changes / n,
            "mean_buffer": float(np.mean(buffered)),
            "counters_per_message": {name: value / n for name, value in work.items()},
            **{
                f"{part}_bytes_per_subscription": memory[part] / max(case.n_subscriptions, 1)
                for part in ("subscriptions", "structure", "buffers")
            },
            "bytes_per_message": (memory["messages"] + memory["message_index"]) / case.window,
            "setup_s": state.setup_s,
            "build_s": build_s,
            "checksum": told[str(n)],
            "checksums": told,
        }


def _filled(case: Case, method: Method) -> tuple[Monitor, int]:
    """Return a monitor with all subscriptions over a full window, and what they began with."""
    # Without structure: each measurement builds the one that it is about.
    monitor = case.monitor(method)
    monitor.reweigh(*_weights(case.workload))
    n = round(MARGIN * case.window) if case.is_by_time else case.window
    monitor.publish(_messages(case.workload, -n - case.n_aging, -case.n_aging))
    digest = Digest()
    n = case.n_subscriptions
    for start, stop in pairwise([*range(0, n, SUBSCRIPTIONS_PER_CALL), n]):
        digest.add(monitor.subscribe(*case.workload.subscriptions(start, stop)))
    if case.n_aging:
        monitor.restructure(default_method().dissemination)
        for start, stop in pairwise([*range(-case.n_aging, 0, MESSAGES_PER_CALL), 0]):
            digest.add(monitor.publish(_messages(case.workload, start, stop)))
        monitor.restructure("scan")
    return monitor, digest.value


def _compile(name: str) -> None:
    """Compile what a dissemination needs, so that it is not measured."""
    workload = replace(find_topk_workload("gn"), messages_per_day=100.0)
    for is_by_time in (False, True):
        monitor = _filled(Case(workload, 200, 100, 100, is_by_time=is_by_time), default_method())[0]
        monitor.restructure(name)
        monitor.publish(_messages(workload, 0, 100))


@lru_cache(maxsize=1)
def _weights(workload: TopkWorkload) -> tuple[Float64s, float]:
    return idf_weights(workload.frequencies())


def _messages(workload: TopkWorkload, start: int, stop: int) -> CountedMessages:
    """Return messages, counted from the first that is measured."""
    return CountedMessages(*workload.messages(FIRST_ARRIVAL + start, FIRST_ARRIVAL + stop))


_arrivals = lru_cache(maxsize=1)(partial(_messages, start=0))


def _costs(ticks: Int64s, spent_s: float, n_messages: int) -> Row:
    """Return the microseconds of an arrival and of an expiry, by message that arrived.

    What a call does for both, such as ordering words, is shared out by what they took themselves.
    """
    total_us = 1e6 * spent_s / n_messages
    if not ticks.sum():  # no clock
        return {"total_us": total_us, "amp_us": None, "emp_us": None}
    amp_us, emp_us = (total_us * ticks / ticks.sum()).tolist()
    return {"total_us": total_us, "amp_us": amp_us, "emp_us": emp_us}
