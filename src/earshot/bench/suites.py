"""What is measured: one function per suite, each yielding rows of results."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from earshot.bench.checksums import check_agreement
from earshot.bench.competitors import Competitor, new_competitor
from earshot.bench.measuring import (
    Case,
    Contender,
    Row,
    case_of,
    elapsed_s,
    first_pass,
    measure,
    prepare,
    rates,
    row_of,
    timed_pass,
)
from earshot.bench.profiles import Profile
from earshot.encoding import encode_messages, encode_subscriptions
from earshot.indexes import DEFAULT_INDEX
from earshot.model.arrays import take_messages
from earshot.text import Analyzer, Vocabulary
from earshot.workloads import datasets
from earshot.workloads.synthetic import Workload, as_tables, find_workload

CHANGED_SHARE = 0.01
"""Share of the subscriptions that the suite ``churn`` inserts, and of those that it removes."""

CHANGES_PER_CALL = 100


@dataclass
class Context:
    """What a suite needs to know about the run it belongs to."""

    profile: Profile
    competitors: list[str]
    seed: int
    data: str | Path | None
    say: Callable[[str], None]
    compile_s: dict[str, float] = field(default_factory=dict)

    def workload(self, name: str, n_subscriptions: int | None = None) -> Workload:
        """Return a workload in the profile's size."""
        return find_workload(name).scaled(
            self.profile.n_subscriptions if n_subscriptions is None else n_subscriptions,
            self.profile.n_messages,
            self.seed,
        )

    def fresh(self, wanted: Callable[[Competitor], bool] = lambda _: True) -> list[Competitor]:
        """Return new competitors of this run that can do what is wanted."""
        return [c for c in map(new_competitor, self.competitors) if wanted(c)]

    def measure(self, case: Case) -> Iterator[Row]:
        """Measure all competitors of this run on a case."""
        return measure(case, self.fresh(), self.profile.effort, self.compile_s, self.say)

    def prepare(self, case: Case, wanted: Callable[[Competitor], bool]) -> list[Contender]:
        """Build the competitors that can do what is wanted, and compare their answers."""
        return prepare(case, self.fresh(wanted), self.profile.effort, self.compile_s, self.say)


def match_suite(context: Context) -> Iterator[Row]:
    """All competitors on each workload."""
    for name in context.profile.workloads:
        yield from context.measure(case_of(context.workload(name)))


def growth_suite(context: Context) -> Iterator[Row]:
    """The headline workload, from few subscriptions to many."""
    for size in context.profile.sizes:
        yield from context.measure(case_of(context.workload("headline", size)))


def threads_suite(context: Context) -> Iterator[Row]:
    """The headline workload on one thread and on all cores."""
    case = case_of(context.workload("headline"))
    contenders = context.prepare(case, lambda competitor: competitor.can_thread)
    counts = sorted({1, 2, os.cpu_count() or 1})
    times_s: dict[tuple[str, int], list[float]] = {}
    for _ in range(context.profile.effort.repetitions + 1):  # the first starts the threads
        for contender in contenders:
            for n_threads in counts:
                spent_s = timed_pass(contender, case.messages, n_threads)
                times_s.setdefault((contender.name, n_threads), []).append(spent_s)
    for contender in contenders:
        for n_threads in counts:
            contender.elapsed_s = times_s[contender.name, n_threads][1:]
            yield {**row_of(case, contender), "n_threads": n_threads}


def churn_suite(context: Context) -> Iterator[Row]:
    """Insert and remove one percent; matching before, after, and after merging the changes."""
    workload = context.workload("headline")
    case = case_of(workload)
    contenders = context.prepare(case, lambda competitor: competitor.can_change)
    n = case.n_subscriptions
    n_changed = max(1, int(n * CHANGED_SHARE))
    inserts = [
        workload.subscriptions(at, min(at + CHANGES_PER_CALL, n + n_changed))
        for at in range(n, n + n_changed, CHANGES_PER_CALL)
    ]
    removed = np.random.default_rng(context.seed).permutation(n)[:n_changed].astype(np.int32)
    removals = np.array_split(removed, -(-n_changed // CHANGES_PER_CALL))
    rows, checksums = [], {}
    for contender in contenders:
        competitor = contender.competitor
        repetitions = range(context.profile.effort.repetitions)
        contender.elapsed_s = [timed_pass(contender, case.messages) for _ in repetitions]
        before = row_of(case, contender)
        _compile_changes(competitor.name, case)
        insert_s = sum(elapsed_s(competitor.insert, clauses) for clauses in inserts)
        remove_s = sum(elapsed_s(competitor.remove, slots) for slots in removals)
        changed = Contender(competitor, contender.build_s, contender.compile_s)
        first_pass(changed, case.messages, context.profile.effort.budget_s)
        changed.elapsed_s = [timed_pass(changed, case.messages) for _ in repetitions]
        checksums[changed.name] = changed.checksums
        rebuild_s = elapsed_s(competitor.rebuild)
        after = row_of(case, changed)
        after["before_messages_per_s"] = before["messages_per_s"]
        after["slowdown"] = before["messages_per_s"] / after["messages_per_s"]
        after["n_inserted"] = after["n_removed"] = n_changed
        after["inserts_per_s"] = n_changed / insert_s
        after["removes_per_s"] = n_changed / remove_s
        after["rebuild_s"] = rebuild_s
        rows.append(after)
        competitor.close()
    check_agreement("headline after changes", checksums)
    yield from rows


def _compile_changes(name: str, case: Case) -> None:
    """Change a small index of the same types, so that nothing is compiled while it is timed."""
    workload = Workload(name="compile", n_subscriptions=200)
    competitor = new_competitor(name)
    competitor.build(workload.subscriptions(), case.space, case.n_tokens)
    competitor.insert(workload.subscriptions(200, 220))
    competitor.remove(np.array([3, 210], np.int32))
    competitor.match(take_messages(case.messages, np.arange(min(4, len(case.messages.boxes)))))
    competitor.close()


def text_suite(context: Context) -> Iterator[Row]:
    """Text into tokens: the vocabulary of the subscriptions, sentences of the messages."""
    workload = context.workload("headline").scaled(min(context.profile.n_subscriptions, 1_000_000))
    subscriptions, messages = as_tables(workload)
    texts = {"headline": messages["text"], "bundled": datasets.bundled_messages()["text"]}
    analyzer, vocabulary = Analyzer(), Vocabulary()
    words = subscriptions["keywords"].combine_chunks().flatten()
    grow_s = elapsed_s(partial(analyzer.analyze, words, vocabulary, grow=True))
    for name, column in texts.items():
        analyzer.analyze(column, vocabulary, grow=False)
        times_s = [
            elapsed_s(partial(analyzer.analyze, column, vocabulary, grow=False))
            for _ in range(context.profile.effort.repetitions)
        ]
        yield {
            "workload": name,
            "competitor": "analyzer",
            "n_subscriptions": workload.n_subscriptions,
            "n_messages": len(column),
            "n_threads": 1,
            "n_words": len(vocabulary),
            "grow_words_per_s": len(words) / grow_s,
            "megabytes_per_s": pc.sum(pc.binary_length(column)).as_py() / 1e6 / min(times_s),
            **rates(times_s, len(column), 0),
        }


def real_suite(context: Context) -> Iterator[Row]:
    """Real messages, and subscriptions drawn from them as the papers do."""
    sets = {"bundled": datasets.bundled_messages()}
    if context.data is None and not os.environ.get(datasets.DATA_VARIABLE):
        context.say(f"real: only the bundled sample; {datasets.DATA_VARIABLE} names no directory")
    else:
        for name in datasets.available_datasets(context.data):
            sets[name] = datasets.read_messages(name, context.data)
    for name, messages in sets.items():
        yield from context.measure(_real_case(context, name, messages))


def _real_case(context: Context, name: str, messages: pa.Table) -> Case:
    drawn = datasets.draw_subscriptions(
        messages, context.profile.n_subscriptions, seed=context.seed
    )
    order = np.random.default_rng(context.seed).permutation(len(messages))
    some = messages.take(order[: context.profile.n_messages])
    # Later reports about an incident repeat its id; here every row is a message of its own.
    some = some.set_column(0, "id", pa.array(np.arange(len(some))))
    analyzer, vocabulary = Analyzer(), Vocabulary()
    subscriptions = encode_subscriptions(drawn, analyzer, vocabulary, "lonlat")
    encoded = encode_messages(some, analyzer, vocabulary, "lonlat")
    rejects = [*subscriptions.rejects, *encoded.rejects]
    if rejects:
        context.say(f"{name}: {len(rejects)} rows cannot be used, first: {rejects[0]}")
    return Case(name, subscriptions.clauses, encoded.messages, "lonlat", len(vocabulary))


def command_line_suite(context: Context) -> Iterator[Row]:
    """``earshot build`` and ``earshot match`` on files, against the rate of the index alone."""
    try:
        cli = import_module("earshot.cli")  # late, because the command line imports this package
    except ImportError as error:
        context.say(f"command_line: skipped, there is no command line: {error}")
        return
    workload = context.workload("headline")
    case = case_of(workload)
    (contender,) = context.prepare(case, lambda competitor: competitor.name == DEFAULT_INDEX)
    alone_s = min(
        timed_pass(contender, case.messages) for _ in range(context.profile.effort.repetitions)
    )
    contender.competitor.close()
    del contender
    gc.collect()
    with tempfile.TemporaryDirectory(prefix="earshot-bench-") as directory:
        folder = Path(directory)
        for name, table in zip(("subscriptions", "messages"), as_tables(workload), strict=True):
            pq.write_table(table, folder / f"{name}.parquet")
        build = ["build", str(folder / "subscriptions.parquet"), str(folder / "index")]
        match = ["match", str(folder / "index"), str(folder / "messages.parquet")]
        build_s = elapsed_s(cli.main, [*build, "--space", "planar"])
        times_s = []
        for repetition in range(context.profile.effort.repetitions + 1):
            target = folder / f"matches-{repetition}.parquet"
            times_s.append(elapsed_s(cli.main, [*match, "--output", str(target)]))
        n_answers = pq.read_metadata(target).num_rows
    yield {
        "workload": case.name,
        "competitor": "command line",
        "n_subscriptions": case.n_subscriptions,
        "n_messages": workload.n_messages,
        "n_threads": 1,
        "build_s": build_s,
        "answers_per_message": n_answers / workload.n_messages,
        "index_alone_messages_per_s": workload.n_messages / alone_s,
        "share_of_index_rate": alone_s / min(times_s[1:]),
        **rates(times_s[1:], workload.n_messages, n_answers),
    }


SUITES: dict[str, Callable[[Context], Iterator[Row]]] = {
    "match": match_suite,
    "growth": growth_suite,
    "threads": threads_suite,
    "churn": churn_suite,
    "text": text_suite,
    "real": real_suite,
    "command_line": command_line_suite,
}
