"""How a workload is measured: build, agree on the answers, then time in turns.

What runs on one thread of this process is measured in CPU time: other work on the machine takes
the processor away, and a wall clock counts that. Threads, other processes and single calls are
measured by the wall clock; rows say which (``clock``). Turns let a disturbance of the caches hit
all competitors alike. Checksums are computed outside of the timed part. ``bench/README.md`` has the
whole procedure.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from earshot.bench.checksums import as_pairs, checksum, prefix_lengths, shown
from earshot.bench.competitors import Competitor, IndexCompetitor
from earshot.bench.results import Row, basics
from earshot.indexes import default_structure
from earshot.indexes.answers import Counters, Matches
from earshot.model.arrays import ClauseArrays, MessageArrays, Space, take_messages
from earshot.workloads.synthetic import Workload

T = TypeVar("T")

CPU, WALL = "cpu", "wall"
"""Clocks, as rows name them."""

ANSWERS_PER_CALL = 50_000_000
"""A timed call is cut where its answers would take more than 200 MB."""


class Case(NamedTuple):
    """Subscriptions and messages to measure with."""

    name: str
    clauses: ClauseArrays
    messages: MessageArrays
    space: Space
    n_tokens: int

    @property
    def n_subscriptions(self) -> int:
        """Number of subscriptions."""
        return int(self.clauses.subscriptions.max(initial=-1)) + 1


class Effort(NamedTuple):
    """How long to measure."""

    budget_s: float  # for the first pass of a competitor; twice that for its timed passes
    repetitions: int  # timed passes, at most
    n_latency: int  # single-message calls, at most
    opens_all: bool = False  # whether all are saved, to see how fast they are opened


@dataclass
class Contender:
    """A competitor while it is measured."""

    competitor: Competitor
    build_s: float = 0.0
    compile_s: float = 0.0
    open_s: float | None = None
    n_messages: int = 0
    n_answers: int = 0
    counters: Counters | None = None
    checksums: dict[int, int] = field(default_factory=dict)
    prefixes: dict[str, Row] = field(default_factory=dict)  # work per message after each of these
    first_s: float = 0.0  # of the first pass
    elapsed_s: list[float] = field(default_factory=list)
    default_s: list[float] = field(default_factory=list)  # the default index, on the same messages
    latencies_ns: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the competitor."""
        return self.competitor.name


def case_of(workload: Workload) -> Case:
    """Generate a workload."""
    clauses, messages = workload.subscriptions(), workload.messages()
    return Case(workload.name, clauses, messages, workload.space, workload.n_tokens)


def time_in_turns(case: Case, contenders: list[Contender], effort: Effort) -> None:
    """Time all competitors on the messages of their first passes, one after the other, in rounds.

    A slow competitor answers fewer messages than the default index, so the default index is timed
    on those as well, right after it: only such rates are fit to be compared.
    """
    default = next((c for c in contenders if c.name == default_structure("boolean")), None)
    for repetition in range(effort.repetitions):
        for contender in contenders:
            spent_s = sum(contender.elapsed_s)
            if repetition and spent_s + spent_s / repetition > 2 * effort.budget_s:
                continue
            contender.elapsed_s.append(timed_pass(contender, case.messages))
            if default not in (None, contender) and default.n_messages >= contender.n_messages:
                n_messages, n_answers = contender.n_messages, contender.n_answers
                few = replace(default, n_messages=n_messages, n_answers=n_answers)
                contender.default_s.append(timed_pass(few, case.messages))
    for contender in contenders:
        contender.latencies_ns = _latencies(contender, case.messages, effort)


def first_pass(contender: Contender, messages: MessageArrays, budget_s: float) -> None:
    """Answer longer and longer prefixes until the next would leave the budget."""
    contender.n_answers, contender.checksums, contender.prefixes = 0, {}, {}
    spent_s, last_s_per_message = 0.0, 0.0
    start, total, work = 0, 0, np.zeros(3, np.int64)
    for length in prefix_lengths(len(messages.boxes)):
        # The last rate, not the mean: small batches are slow where each costs a scan.
        if start and spent_s + last_s_per_message * (length - start) > budget_s:
            break
        answers, part_s = cpu_timed(contender.competitor.match, _part(messages, start, length))
        spent_s += part_s
        last_s_per_message = part_s / max(length - start, 1)
        total = (total + checksum(answers, start)) % 2**64
        contender.checksums[length] = total
        contender.n_answers += len(as_pairs(answers).slots)
        if isinstance(answers, Matches):
            work += np.array(answers.counters)
            nodes, candidates, _ = (work / max(length, 1)).tolist()
            costs = {"nodes": nodes, "candidates": candidates, "ms": 1e3 * spent_s / max(length, 1)}
            contender.prefixes[str(length)] = costs
        start = length
    contender.n_messages, contender.first_s = start, spent_s
    contender.counters = Counters(*work.tolist()) if contender.prefixes else None


def timed_pass(contender: Contender, messages: MessageArrays) -> float:
    """Return the CPU seconds for all messages of the contender's first pass, on one thread."""
    return sum(cpu_s(contender.competitor.match, part) for part in calls_of(contender, messages))


def calls_of(contender: Contender, messages: MessageArrays) -> list[MessageArrays]:
    """Return the messages of the contender's first pass in few large parts."""
    n = contender.n_messages
    per_call = max(1, int(ANSWERS_PER_CALL * n / max(contender.n_answers, 1)))
    return [_part(messages, at, min(at + per_call, n)) for at in range(0, n, per_call)]


def timed(call: Callable[..., T], *arguments: Any) -> tuple[T, float]:
    """Return what a call gives, and the seconds until it did."""
    began = time.perf_counter()
    found = call(*arguments)
    return found, time.perf_counter() - began


def elapsed_s(call: Callable[..., Any], *arguments: Any) -> float:
    """Return the seconds until a call is done."""
    return timed(call, *arguments)[1]


def cpu_timed(call: Callable[..., T], *arguments: Any) -> tuple[T, float]:
    """Return what a call gives, and the CPU seconds of this process that it takes.

    Those of the process, not of the thread: a library may have work done by another thread.
    """
    began = time.process_time()
    found = call(*arguments)
    return found, time.process_time() - began


def cpu_s(call: Callable[..., Any], *arguments: Any) -> float:
    """Return the CPU seconds of this process that a call takes."""
    return cpu_timed(call, *arguments)[1]


def row_of(case: Case, contender: Contender) -> Row:
    """Return the result of one competitor on one case."""
    n, n_subscriptions = contender.n_messages, max(case.n_subscriptions, 1)
    row = basics(case.name, contender.name, case.n_subscriptions, n) | {
        "n_messages_offered": len(case.messages.boxes),
        "compile_s": contender.compile_s,
        "build_s": contender.build_s,
        "open_s": contender.open_s,
        **{
            f"{part}_bytes_per_subscription": None if size is None else size / n_subscriptions
            for part, size in contender.competitor.sizes().items()
        },
        "answers_per_message": contender.n_answers / max(n, 1),
        "counters_per_message": None
        if contender.counters is None
        else {key: value / max(n, 1) for key, value in contender.counters._asdict().items()},
        "checksum": shown(contender.checksums[n]),
        "checksums": {str(k): shown(value) for k, value in contender.checksums.items()},
        **rates(contender.elapsed_s, n, contender.n_answers, CPU),
    }
    if contender.default_s:
        row["default_messages_per_s"] = n / max(min(contender.default_s), 1e-9)
    if contender.latencies_ns:
        row["latency_us"] = latency_us(contender.latencies_ns)
    return row


def latency_us(latencies_ns: list[int]) -> Row:
    """Return how long single calls took."""
    p50, p99 = (np.percentile(latencies_ns, (50, 99)) / 1e3).tolist()
    return {"p50": p50, "p99": p99, "n": len(latencies_ns)}


def rates(times_s: list[float], n_messages: int, n_answers: int, clock: str) -> Row:
    """Return best, mean and standard deviation of the rates of repeated passes."""
    each = n_messages / np.maximum(np.array(times_s), 1e-9)
    return {
        "clock": clock,
        "elapsed_s": times_s,
        "messages_per_s": float(each.max()),
        "messages_per_s_mean": float(each.mean()),
        "messages_per_s_std": float(each.std()),
        "answers_per_s": n_answers / max(min(times_s), 1e-9),
    }


def compile_seconds(competitor: Competitor, case: Case) -> float:
    """Return the time of a first build and match of a few rows: nearly all of it is compilation.

    The rows have the array types of the case, so that nothing is compiled while it is timed.
    """
    clauses = Workload(name="compile", n_subscriptions=1_000).subscriptions()
    n_tokens = max(case.n_tokens, int(clauses.token_ids.max()) + 1)
    build_s = elapsed_s(competitor.build, clauses, case.space, n_tokens)
    return build_s + elapsed_s(competitor.match, _part(case.messages, 0, 4))


def warm_up_changes(competitor: IndexCompetitor, case: Case) -> None:
    """Change a small index of the same types, so that nothing is compiled while it is timed."""
    workload = Workload(name="compile", n_subscriptions=200)
    competitor.build(workload.subscriptions(), case.space, case.n_tokens)
    competitor.index.insert(workload.subscriptions(200, 220))
    competitor.index.remove(np.array([3, 210], np.int32))
    competitor.match(_part(case.messages, 0, 4))
    competitor.close()


def open_seconds(competitor: IndexCompetitor) -> float:
    """Save, then measure opening; the competitor goes on with what it had built."""
    with tempfile.TemporaryDirectory(prefix="earshot-bench-") as directory:
        target = Path(directory) / "saved"
        competitor.index.save(target)
        return elapsed_s(competitor.index_type.open, target)


def _latencies(contender: Contender, messages: MessageArrays, effort: Effort) -> list[int]:
    """Return the nanoseconds of single-message calls, at most for a quarter of the budget."""
    rows = range(min(effort.n_latency, len(messages.boxes)))
    each = (_part(messages, row, row + 1) for row in rows)
    return latencies_ns(contender.competitor.match, each, effort.budget_s / 4)


def latencies_ns(
    call: Callable[[Any], Any], arguments: Iterable[Any], budget_s: float
) -> list[int]:
    """Return the nanoseconds of a call with each argument, until the time is over."""
    latencies: list[int] = []
    deadline = time.perf_counter() + budget_s
    for argument in arguments:
        began = time.perf_counter_ns()
        call(argument)
        latencies.append(time.perf_counter_ns() - began)
        if time.perf_counter() > deadline:
            break
    return latencies


def _part(messages: MessageArrays, start: int, stop: int) -> MessageArrays:
    return take_messages(messages, np.arange(start, min(stop, len(messages.boxes))))
