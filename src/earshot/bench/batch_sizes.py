"""The suite ``batch_sizes``: rates by the number of messages that come in one call.

Everybody gains from many messages at once: the default shares walks between them, and a join in SQL
is planned once. So a ratio holds at a batch size, and a rival is judged at its best one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from earshot.bench.checksums import as_pairs, check_agreement, checksum, shown
from earshot.bench.context import Context
from earshot.bench.measuring import CPU, Case, Contender, Effort, cpu_s, rates
from earshot.bench.results import Row, basics
from earshot.indexes import default_structure
from earshot.model.arrays import MessageArrays, take_messages
from earshot.workloads.synthetic import Workload

SIZES = (1, 100, 512, 1_000, 2_000, 10_000)
RIVAL = "duckdb_grid"


def measure(context: Context, workloads: Iterable[Workload]) -> Iterator[Row]:
    """Measure the default index and DuckDB's grid join, with batches of each size."""
    default = default_structure("boolean")
    names = [name for name in (default, RIVAL) if name in context.competitors]
    for workload in workloads if names else ():
        case, contenders = context.arena(workload, names)
        rows: list[Row] = []
        for size in SIZES:
            if size <= len(case.messages.boxes):
                rows += _rows_of_size(case, contenders, size, context.profile.effort)
        context.say(f"batch_sizes: {len(rows)} rows")
        yield from _with_leads(rows, default)


def _rows_of_size(
    case: Case, contenders: list[Contender], size: int, effort: Effort
) -> Iterator[Row]:
    """Time all competitors in turns, on as many batches as the slowest takes within its budget."""
    first = [batch_of(case, 0, size)]
    slowest_s = max(_spent_s(contender, first) for contender in contenders)
    n_batches = int(np.clip(effort.budget_s / slowest_s, 1, len(case.messages.boxes) // size))
    batches = [batch_of(case, at * size, (at + 1) * size) for at in range(n_batches)]
    n_messages, sums, n_answers = n_batches * size, {}, 0
    times_s: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for contender in contenders:
        total = n_answers = 0
        for at, batch in enumerate(batches):
            answers = contender.competitor.match(batch)
            total = (total + checksum(answers, at * size)) % 2**64
            n_answers += len(as_pairs(answers).slots)
        sums[contender.name] = {n_messages: total}
    check_agreement(f"{case.name}, batches of {size}", sums)
    for _ in range(effort.repetitions):
        for contender in contenders:
            times_s[contender.name].append(_spent_s(contender, batches))
    for contender in contenders:
        yield {
            **basics(case.name, contender.name, case.n_subscriptions, n_messages),
            "batch_size": size,
            "answers_per_message": n_answers / n_messages,
            "checksum": shown(sums[contender.name][n_messages]),
            **rates(times_s[contender.name], n_messages, n_answers, CPU),
        }


def _with_leads(rows: list[Row], default: str) -> list[Row]:
    """Tell each rival's row how many times faster the default is, and whether it is its best."""
    ours = {
        row["batch_size"]: row["messages_per_s"] for row in rows if row["competitor"] == default
    }
    best = max((row["messages_per_s"] for row in rows if row["competitor"] != default), default=0.0)
    for row in rows:
        if row["competitor"] != default and ours:
            row["default_messages_per_s"] = ours[row["batch_size"]]
            row["is_best_size"] = row["messages_per_s"] == best
    return rows


def _spent_s(contender: Contender, batches: list[MessageArrays]) -> float:
    return sum(cpu_s(contender.competitor.match, batch) for batch in batches)


def batch_of(case: Case, start: int, stop: int) -> MessageArrays:
    """Return some of the messages of a case."""
    return take_messages(case.messages, np.arange(start, stop))
