"""Suites that redraw the figures of [PVLDB16] section 7: top-k over a sliding window.

A method is a way in which messages find subscriptions (``dissemination``) and a way in which
results are kept full (``reevaluation``). All methods of a case must give the same changes, in the
same order and with the same bits, while a window that is full goes on by some arrivals.

Filling the results of new subscriptions takes far longer than what is measured. It does not depend
on the dissemination, so a case is filled once for each re-evaluation, saved, and opened anew for
every measurement: messages change the state. What was measured is kept for the suites that show
it again.

Arrivals come in calls of a tenth of them each. A slow method ends with the call that is beyond its
time; each row tells the figures after every call (``prefixes``), so that methods are compared on
the messages that both have seen.
"""

from __future__ import annotations

import copy
import hashlib
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from earshot.bench.checksums import check_agreement
from earshot.bench.context import Context, peak_memory
from earshot.bench.measuring import Row, elapsed_s, rates
from earshot.model.arrays import CountedMessages, Int64s
from earshot.model.ranking import idf_weights
from earshot.semantics.topk import (
    DEFAULT_DISSEMINATION,
    DEFAULT_REEVALUATION,
    find_dissemination,
    find_reevaluation,
)
from earshot.semantics.topk.contract import Dissemination
from earshot.semantics.topk.igpt import ALL_RULES, Igpt
from earshot.semantics.topk.kernels.arrays import Changes
from earshot.semantics.topk.monitor import Counters, Monitor
from earshot.semantics.topk.reevaluation import Kmax, Reevaluation, Skyband
from earshot.workloads.topk import TopkWorkload, find_topk_workload

MAIN_DATA = "tweets"
GROUP_COUNTS = (5, 10, 20, 30, 40)
"""Fig. 7."""

GROUP_RULES = ("cells", "groups", "early")
"""Rules of [PVLDB16] section 5.3, for many subscriptions at once; IPT has none of them."""

KEYWORDS = (1, 2, 3, 4, 5)
"""Fig. 11."""

KS = (10, 20, 30, 40, 50, 60)
"""Figs. 12 and 16."""

TUNED_KMAX, TUNED_SKYBAND = Kmax(3.0), Skyband(0.95)
"""What the paper found best in Fig. 6: 60 messages for k = 20, and 0.95 of the k-th score."""

WINDOW_DAYS = 120
"""Length of the window by time: the paper's four months."""

FIRST_ARRIVAL = 1 << 24
"""The first message that is measured, whatever the size of the window before it."""

SUBSCRIPTIONS_PER_CALL, MESSAGES_PER_CALL = 50_000, 50_000
CALLS = 10
"""Calls that the arrivals are cut into."""

MARGIN = 1.25
"""A window by time is filled from so many times its mean number of messages."""


# ---- methods -------------------------------------------------------------------------------------


class Method(NamedTuple):
    """How messages find subscriptions, and how results are kept full."""

    dissemination: Dissemination
    reevaluation: Reevaluation

    @property
    def label(self) -> str:
        """Name in reports."""
        return f"{part_label(self.dissemination)}+{part_label(self.reevaluation)}"


def part_label(part: Dissemination | Reevaluation) -> str:
    """Return the name of one half of a method, with the parameters that are not the default's."""
    default = asdict(type(part)())
    changed = {name: value for name, value in asdict(part).items() if value != default[name]}
    if isinstance(part, Igpt) and "rules" in changed:
        changed.pop("rules")
        if part.rules == ALL_RULES - set(GROUP_RULES):
            told = "individual"
        else:
            told = " ".join(f"-{rule}" for rule in sorted(ALL_RULES - part.rules))
        changed["rules"] = told
    # A factor is what these two are about, so it is told even where it is the default's.
    if isinstance(part, Kmax | Skyband):
        changed["factor"] = part.factor
    shown = ", ".join(f"{name}={value}" for name, value in changed.items())
    return f"{part.name}({shown})" if shown else part.name


def default_method() -> Method:
    """Return the method that an engine has when nothing is said."""
    return Method(find_dissemination(None), find_reevaluation(None))


def _disseminations() -> list[Dissemination]:
    names = dict.fromkeys((DEFAULT_DISSEMINATION, "igpt", "ciq"))
    return [find_dissemination(name) for name in names]


def _rivals() -> list[Method]:
    """Return the default, the paper's Skype, and the best of its baselines."""
    cskyband = find_reevaluation(DEFAULT_REEVALUATION)
    ours = [Method(each, cskyband) for each in _disseminations() if each.name != "ciq"]
    return [*ours, Method(find_dissemination("ciq"), TUNED_KMAX)]


# ---- suites --------------------------------------------------------------------------------------


class Point(NamedTuple):
    """A method on a case, and where in a figure it stands."""

    case: Case
    method: Method
    told: Row


def tuning_suite(context: Context) -> Iterator[Row]:
    """Fig. 6: kmax and Skyband over their factors, beside cSkyband."""
    case = _case(context)
    topk = context.profile.topk
    baselines: list[Reevaluation] = [Kmax(factor) for factor in topk.tuning_kmax]
    baselines += [Skyband(factor) for factor in topk.tuning_skyband]
    yield from _measured(context, "topk_tuning", _reevaluations(case, baselines))


def groups_suite(context: Context) -> Iterator[Row]:
    """Fig. 7: IGPT over the number of groups, by data set."""
    reevaluation = find_reevaluation(None)
    yield from _measured(context, "topk_groups", (
        Point(_case(context, data), Method(Igpt(n_groups=n), reevaluation), {"n_groups": n})
        for data in context.profile.topk.datasets
        for n in GROUP_COUNTS
    ))  # fmt: skip


def pruning_suite(context: Context) -> Iterator[Row]:
    """Fig. 8: IGPT with all rules, with those for single subscriptions only, without one each."""
    reevaluation = find_reevaluation(None)
    choices = {"all": ALL_RULES, "individual": ALL_RULES - set(GROUP_RULES)}
    choices |= {f"without {rule}": ALL_RULES - {rule} for rule in sorted(ALL_RULES)}
    yield from _measured(context, "topk_pruning", (
        Point(_case(context, data), Method(Igpt(rules=frozenset(rules)), reevaluation),
              {"rules": name})
        for data in context.profile.topk.datasets
        for name, rules in choices.items()
    ))  # fmt: skip


def dissemination_suite(context: Context) -> Iterator[Row]:
    """Fig. 9: the default, IGPT and CIQ, time and memory, by data set."""
    reevaluation = find_reevaluation(None)
    yield from _measured(context, "topk_dissemination", (
        Point(_case(context, data), Method(dissemination, reevaluation), {})
        for data in context.profile.topk.datasets
        for dissemination in _disseminations()
    ))  # fmt: skip


def reevaluation_suite(context: Context) -> Iterator[Row]:
    """Fig. 10 and Table 2: cSkyband, kmax and Skyband, expiry and buffers, by data set."""
    topk = context.profile.topk
    baselines: list[Reevaluation] = [Kmax(factor) for factor in topk.kmax]
    baselines += [Skyband(factor) for factor in topk.skyband]
    for data in topk.datasets:
        points = _reevaluations(_case(context, data), baselines)
        yield from _measured(context, "topk_reevaluation", points)


def keywords_suite(context: Context) -> Iterator[Row]:
    """Fig. 11: over the number of keywords."""
    case = _case(context)
    cases = {n: case.drawn(keywords_min=n, keywords_max=n) for n in KEYWORDS}
    yield from _compared(context, "topk_keywords", "n_keywords", cases)


def k_suite(context: Context) -> Iterator[Row]:
    """Fig. 12: over the number of results."""
    case = _case(context)
    yield from _compared(context, "topk_k", "k", {k: case.drawn(k=k) for k in KS})


def subscriptions_suite(context: Context) -> Iterator[Row]:
    """Fig. 13: over the number of subscriptions."""
    case, sizes = _case(context), context.profile.topk.sizes
    cases = {size: replace(case, n_subscriptions=size) for size in sizes}
    yield from _compared(context, "topk_subscriptions", "n_subscriptions", cases)


def window_suite(context: Context) -> Iterator[Row]:
    """Fig. 14: over the size of the window."""
    case, windows = _case(context), context.profile.topk.windows
    cases = {size: replace(case, window=size) for size in windows}
    yield from _compared(context, "topk_window", "window", cases)


def zipf_suite(context: Context) -> Iterator[Row]:
    """Fig. 15: keywords from messages, and by Zipf's law."""
    case = _case(context)
    cases = {source: case.drawn(keywords_from=source) for source in ("messages", "zipf")}
    yield from _compared(context, "topk_zipf", "keywords_from", cases)


def time_suite(context: Context) -> Iterator[Row]:
    """Fig. 16: a window by time, over the number of results."""
    case = _case(context)
    per_day = case.window / WINDOW_DAYS
    case = replace(case.drawn(messages_per_day=per_day), is_by_time=True)
    yield from _compared(context, "topk_time", "k", {k: case.drawn(k=k) for k in KS})


def _case(context: Context, data: str = MAIN_DATA) -> Case:
    topk = context.profile.topk
    workload = replace(find_topk_workload(data), seed=context.seed)
    n_aging = round(topk.aging * topk.window)
    return Case(workload, topk.n_subscriptions, topk.window, topk.n_arrivals, n_aging)


def _reevaluations(case: Case, baselines: Iterable[Reevaluation]) -> Iterator[Point]:
    ours, dissemination = find_reevaluation(None), find_dissemination(None)
    yield Point(case, Method(dissemination, ours), {"factor": None})
    for each in baselines:
        yield Point(case, Method(dissemination, each), {"factor": asdict(each)["factor"]})


def _compared(context: Context, suite: str, name: str, cases: dict[Any, Case]) -> Iterator[Row]:
    most = context.profile.topk.most_ciq
    yield from _measured(context, suite, (
        Point(case, method, {name: value})
        for value, case in cases.items()
        for method in _rivals()
        if method.dissemination.name != "ciq" or case.n_subscriptions <= most
    ))  # fmt: skip


def _measured(context: Context, suite: str, points: Iterable[Point]) -> Iterator[Row]:
    if suite not in context.profile.topk.suites:
        context.say(f"{suite}: skipped, it is not part of the profile {context.profile.name}")
        return
    context.release()
    store: Store = context.shared.setdefault("topk", Store())
    for point in points:
        yield store.row_of(context, point.case, point.method) | point.told


TOPK_SUITES: dict[str, Callable[[Context], Iterator[Row]]] = {
    "topk_tuning": tuning_suite,
    "topk_groups": groups_suite,
    "topk_pruning": pruning_suite,
    "topk_dissemination": dissemination_suite,
    "topk_reevaluation": reevaluation_suite,
    "topk_keywords": keywords_suite,
    "topk_k": k_suite,
    "topk_subscriptions": subscriptions_suite,
    "topk_window": window_suite,
    "topk_zipf": zipf_suite,
    "topk_time": time_suite,
}


# ---- measuring -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Subscriptions, a window that is full, and what arrives then.

    Attributes:
        workload: What they are drawn from.
        n_subscriptions: Number of subscriptions.
        window: Messages of the window; of one by time, their mean number.
        n_arrivals: Messages that arrive.
        n_aging: Messages that have come since all subscriptions were filled. With 0 all buffers
            are as full as a search makes them, and hardly any runs dry soon.
        is_by_time: Whether messages leave by their age.
    """

    workload: TopkWorkload
    n_subscriptions: int
    window: int
    n_arrivals: int
    n_aging: int = 0
    is_by_time: bool = False

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

    def monitor(self, method: Method) -> Monitor:
        """Return a monitor with nothing in it."""
        duration = self.workload.duration_us(self.window) if self.is_by_time else None
        return Monitor(
            window=None if self.is_by_time else self.window,
            duration_us=duration,
            max_distance=self.workload.max_distance,
            dissemination=method.dissemination,
            reevaluation=method.reevaluation,
            n_threads=os.cpu_count() or 1,
        )


class Pass(NamedTuple):
    """One measurement of a method."""

    prefixes: dict[int, Row]  # by number of messages
    checksums: dict[int, int]
    counters: Counters
    n_changes: int
    mean_buffer: float
    memory: dict[str, int]
    build_s: float
    elapsed_s: float


class State(NamedTuple):
    """A monitor whose window and results are full, in a file."""

    directory: Path
    setup_s: float
    checksum: int  # of the results that subscriptions began with


@dataclass
class Store:
    """What the suites of one run keep for each other."""

    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="earshot-bench-")))
    states: dict[tuple[Case, Reevaluation], State] = field(default_factory=dict)  # latest use last
    n_states: int = 0
    rows: dict[tuple[Case, Method], Row] = field(default_factory=dict)
    checksums: dict[Case, dict[str, dict[int, int]]] = field(default_factory=dict)
    messages: tuple[Any, CountedMessages] | None = None  # arrivals of the last case
    weights: dict[TopkWorkload, Any] = field(default_factory=dict)
    compile_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Have the folder removed together with the store."""
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def row_of(self, context: Context, case: Case, method: Method) -> Row:
        """Return the row of a method, measured when first asked for."""
        if (case, method) not in self.rows:
            compile_s = self.warm_up(method)
            state = self.state(context, case, method)
            effort = context.profile.topk
            passes: list[Pass] = []
            for _ in range(effort.repetitions):
                passes.append(self._measure(case, method, state, effort.budget_s))
                self._check(case, method, passes[-1], state)
                if sum(each.elapsed_s for each in passes) > effort.budget_s:
                    break
            row = _row(case, method, state, passes) | {"compile_s": compile_s}
            self.rows[case, method] = row
            context.say(
                f"{case.label}: {method.label}, {row['n_messages']:,} messages, "
                f"{row['messages_per_s']:,.0f}/s; {peak_memory()}"
            )
        return self.rows[case, method]

    def warm_up(self, method: Method) -> float:
        """Compile what a method needs, so that it is not measured."""
        name = method.dissemination.name
        if name not in self.compile_s:
            workload = replace(find_topk_workload("gn"), messages_per_day=100.0)
            few = Case(workload, 200, 100, 100)
            self.compile_s[name] = elapsed_s(lambda: self._compile(few, method))
        return self.compile_s[name]

    def _compile(self, few: Case, method: Method) -> None:
        for case in (few, replace(few, is_by_time=True)):
            monitor = self._filled(case, method)[0]
            monitor.restructure(method.dissemination)
            monitor.publish(_messages(case, 0, case.n_arrivals))

    def state(self, context: Context, case: Case, method: Method) -> State:
        """Return a saved state, made when first asked for."""
        key = (case, method.reevaluation)
        if key not in self.states:
            self.forget_states(context.profile.topk.states_kept - 1)
            began = time.perf_counter()
            monitor, digest = self._filled(case, method)
            setup_s = time.perf_counter() - began
            self.n_states += 1
            directory = self.folder / str(self.n_states)
            monitor.save(directory)
            self.states[key] = State(directory, setup_s, digest)
            told = part_label(method.reevaluation)
            context.say(f"{case.label}: {told} filled in {setup_s:.1f} s")
        self.states[key] = self.states.pop(key)
        return self.states[key]

    def forget_states(self, n: int) -> None:
        """Keep the ``n`` states that were used last."""
        for key in list(self.states)[: max(len(self.states) - n, 0)]:
            shutil.rmtree(self.states.pop(key).directory)

    def _filled(self, case: Case, method: Method) -> tuple[Monitor, int]:
        """Return a monitor with all subscriptions over a full window, and what they began with."""
        if case.workload not in self.weights:
            self.weights = {case.workload: idf_weights(case.workload.frequencies())}
        # Without structure: each measurement builds the one that it is about.
        monitor = case.monitor(method._replace(dissemination=find_dissemination("scan")))
        monitor.reweigh(*self.weights[case.workload])
        n = round(MARGIN * case.window) if case.is_by_time else case.window
        monitor.publish(_messages(case, -n - case.n_aging, -case.n_aging))
        digest = Digest()
        for start in range(0, case.n_subscriptions, SUBSCRIPTIONS_PER_CALL):
            stop = min(start + SUBSCRIPTIONS_PER_CALL, case.n_subscriptions)
            digest.add(monitor.subscribe(*case.workload.subscriptions(start, stop)))
        if case.n_aging:
            monitor.restructure(find_dissemination(None))
            for start in range(-case.n_aging, 0, MESSAGES_PER_CALL):
                stop = min(start + MESSAGES_PER_CALL, 0)
                digest.add(monitor.publish(_messages(case, start, stop)))
            monitor.restructure("scan")
        return monitor, digest.value

    def _measure(self, case: Case, method: Method, state: State, budget_s: float) -> Pass:
        """Let messages arrive over a fresh copy of a state."""
        # Copied, as opened arrays are mapped and every first touch of a page would be measured.
        monitor = copy.deepcopy(Monitor.open(state.directory))
        build_s = elapsed_s(monitor.restructure, method.dissemination)
        messages = self._arrivals(case)
        before: Int64s = np.array(monitor.counters, np.int64)
        ticks: Int64s = np.array(monitor.ticks, np.int64)
        first_sequence = monitor.next_sequence
        digest, n_changes, spent_s = Digest(), 0, 0.0
        prefixes, checksums, buffered = dict[int, Row](), dict[int, int](), list[float]()
        stops = np.unique(np.linspace(0, case.n_arrivals, CALLS + 1).astype(int)).tolist()
        for start, stop in pairwise(stops):
            part = _rows_of(messages, start, stop)
            began = time.perf_counter()
            changes = monitor.publish(part)
            spent_s += time.perf_counter() - began
            # Counted from the first arrival, whatever has come before it.
            digest.add(changes._replace(sequences=changes.sequences - first_sequence))
            n_changes += len(changes.rows)
            checksums[stop] = digest.value
            buffered.append(monitor.n_buffered / max(monitor.n_subscriptions, 1))
            prefixes[stop] = _costs(np.array(monitor.ticks) - ticks, spent_s, stop)
            if spent_s > budget_s:
                break
        return Pass(
            prefixes,
            checksums,
            Counters(*(np.array(monitor.counters) - before).tolist()),
            n_changes,
            float(np.mean(buffered)),
            monitor.memory(),
            build_s,
            spent_s,
        )

    def _arrivals(self, case: Case) -> CountedMessages:
        key = (case.workload, case.n_arrivals)
        if self.messages is None or self.messages[0] != key:
            self.messages = (key, _messages(case, 0, case.n_arrivals))
        return self.messages[1]

    def _check(self, case: Case, method: Method, measured: Pass, state: State) -> None:
        """Compare the results to begin with (0 messages), and all changes since."""
        of_case = self.checksums.setdefault(case, {})
        of_case[method.label] = {0: state.checksum} | measured.checksums
        check_agreement(case.label, of_case)


class Digest:
    """A checksum of changes, which depends on their order."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)

    def add(self, changes: Changes) -> None:
        """Take more changes."""
        for array in changes:
            self._hash.update(np.ascontiguousarray(array).data)

    @property
    def value(self) -> int:
        """The checksum of all changes so far."""
        return int.from_bytes(self._hash.digest(), "big")


def _messages(case: Case, start: int, stop: int) -> CountedMessages:
    """Return messages, counted from the first that is measured."""
    return CountedMessages(*case.workload.messages(FIRST_ARRIVAL + start, FIRST_ARRIVAL + stop))


def _rows_of(messages: CountedMessages, start: int, stop: int) -> CountedMessages:
    offsets = messages.token_offsets[start : stop + 1]
    tokens = slice(int(offsets[0]), int(offsets[-1]))
    return CountedMessages(
        offsets - offsets[0],
        messages.tokens[tokens],
        messages.counts[tokens],
        messages.places[start:stop],
        messages.times[start:stop],
    )


def _costs(ticks: Int64s, spent_s: float, n_messages: int) -> Row:
    """Return the microseconds of an arrival and of an expiry, by message that arrived.

    What a call does for both, such as ordering words, is shared out by what they took themselves.
    """
    total_us = 1e6 * spent_s / n_messages
    if not ticks.sum():  # no clock
        return {"total_us": total_us, "amp_us": None, "emp_us": None}
    amp_us, emp_us = (total_us * ticks / ticks.sum()).tolist()
    return {"total_us": total_us, "amp_us": amp_us, "emp_us": emp_us}


def _row(case: Case, method: Method, state: State, passes: list[Pass]) -> Row:
    workload = case.workload
    n = max(max(each.prefixes) for each in passes)
    whole = [each for each in passes if n in each.prefixes]
    best = min(whole, key=lambda each: each.elapsed_s)
    n_subscriptions = max(case.n_subscriptions, 1)
    memory = best.memory
    return {
        "workload": workload.name,
        "competitor": method.label,
        "dissemination": method.dissemination.name,
        "reevaluation": method.reevaluation.name,
        "parameters": _plain(asdict(method.dissemination) | asdict(method.reevaluation)),
        "n_subscriptions": case.n_subscriptions,
        "window": case.window,
        "is_by_time": case.is_by_time,
        "k": workload.k,
        "keywords": [workload.keywords_min, workload.keywords_max],
        "keywords_from": workload.keywords_from,
        "n_messages": n,
        "n_messages_offered": case.n_arrivals,
        "n_aging": case.n_aging,
        "n_threads": 1,
        **best.prefixes[n],
        "prefixes": {str(length): costs for length, costs in best.prefixes.items()},
        **rates([each.elapsed_s for each in whole], n, best.n_changes),
        "changes_per_message": best.n_changes / n,
        "mean_buffer": best.mean_buffer,
        "counters_per_message": {
            name: value / n for name, value in best.counters._asdict().items()
        },
        **{
            f"{part}_bytes_per_subscription": memory[part] / n_subscriptions
            for part in ("subscriptions", "structure", "buffers")
        },
        "bytes_per_message": (memory["messages"] + memory["message_index"]) / case.window,
        "setup_s": state.setup_s,
        "build_s": best.build_s,
        "checksum": f"{best.checksums[n]:016x}",
        "checksums": {str(length): f"{value:016x}" for length, value in best.checksums.items()},
    }


def _plain(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return parameters as JSON takes them."""
    return {
        name: sorted(value) if isinstance(value, frozenset) else value
        for name, value in parameters.items()
    }


def shared_costs(row: Row, other: Row) -> tuple[Row, Row] | None:
    """Return the costs of two rows on the most messages that both have seen."""
    shared = set(row["prefixes"]) & set(other["prefixes"])
    if not shared:
        return None
    length = max(shared, key=int)
    return row["prefixes"][length], other["prefixes"][length]
