"""The suites ``match``, ``growth``, ``real`` and ``threads``: all competitors, in turns."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from earshot.bench.context import Context
from earshot.bench.measuring import Case, row_of, timed_pass
from earshot.bench.results import Row
from earshot.encoding import encode_messages, encode_subscriptions
from earshot.model.arrays import Int64s
from earshot.text import Analyzer, Vocabulary
from earshot.workloads import datasets
from earshot.workloads.synthetic import Workload


def measure(context: Context, cases: Iterable[Workload | Case]) -> Iterator[Row]:
    """Measure all competitors on each workload, or case that is none."""
    for case in cases:
        yield from context.measure(case)


def measure_threads(context: Context, workloads: Iterable[Workload]) -> Iterator[Row]:
    """Measure structures on one thread and on all cores."""
    names = context.focus()
    counts = sorted({1, 2, os.cpu_count() or 1})
    for workload in workloads if names else ():
        case, contenders = context.arena(workload, names)
        times_s: dict[tuple[str, int], list[float]] = {}
        for _ in range(context.profile.effort.repetitions + 1):  # the first starts the threads
            for contender in contenders:
                for n_threads in counts:
                    spent_s = timed_pass(contender, case.messages, n_threads)
                    times_s.setdefault((contender.name, n_threads), []).append(spent_s)
        for contender in contenders:
            best_s = {count: min(times_s[contender.name, count][1:]) for count in counts}
            for n_threads in counts:
                contender.elapsed_s = times_s[contender.name, n_threads][1:]
                row = row_of(case, contender) | {"n_threads": n_threads}
                yield row | {"speedup": best_s[1] / best_s[n_threads]}


# ---- real messages -------------------------------------------------------------------------------


def real_cases(context: Context) -> Iterator[Case]:
    """Yield real messages, and subscriptions drawn from them as the papers do."""
    for name, messages in [("bundled", datasets.bundled_messages()), *real_tables(context)]:
        order = np.random.default_rng(context.seed).permutation(len(messages))
        yield real_case(context, name, messages, order[: context.profile.n_messages])


def real_tables(
    context: Context, wanted: Sequence[str] | None = None
) -> Iterator[tuple[str, pa.Table]]:
    """Yield the real datasets of a run, or those of some names, if there is a directory of them."""
    if context.data is None and not os.environ.get(datasets.DATA_VARIABLE):
        context.say(f"no real messages; {datasets.DATA_VARIABLE} names no directory")
        return
    available = datasets.available_datasets(context.data)
    for name in [each for each in wanted or available if each in available]:
        yield name, datasets.read_messages(name, context.data)


def real_case(context: Context, name: str, messages: pa.Table, chosen: Int64s) -> Case:
    """Return some of real messages, and subscriptions drawn from all."""
    n = context.profile.n_subscriptions
    drawn = datasets.draw_subscriptions(messages, n, seed=context.seed)
    some = messages.take(chosen)
    # Later reports about an incident repeat its id; here every row is a message of its own.
    some = some.set_column(0, "id", pa.array(np.arange(len(some))))
    analyzer, vocabulary = Analyzer(), Vocabulary()
    subscriptions = encode_subscriptions(drawn, analyzer, vocabulary, "lonlat")
    encoded = encode_messages(some, analyzer, vocabulary, "lonlat")
    rejects = [*subscriptions.rejects, *encoded.rejects]
    if rejects:
        context.say(f"{name}: {len(rejects)} rows cannot be used, first: {rejects[0]}")
    return Case(name, subscriptions.asked, encoded.messages, "lonlat", len(vocabulary))
