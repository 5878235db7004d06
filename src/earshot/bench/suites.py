"""What is measured: one function per suite, each yielding rows of results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from earshot.bench.checksums import AnswersDiffer
from earshot.bench.churn import churn_suite
from earshot.bench.context import Context, SavedFiles, run_command
from earshot.bench.measuring import Case, Row, elapsed_s, rates, row_of, timed_pass
from earshot.bench.placement import placement_suite
from earshot.bench.rt_figures import (
    ranking_alpha_suite,
    ranking_threshold_suite,
    rt_growth_suite,
    rt_rivals_suite,
    rt_trees_suite,
    token_orders_suite,
)
from earshot.bench.rt_updates import rt_updates_suite
from earshot.bench.topk_figures import TOPK_SUITES
from earshot.encoding import encode_messages, encode_subscriptions
from earshot.engine.engine import Engine
from earshot.files import read_messages
from earshot.indexes.contract import Index
from earshot.jobs import MESSAGE_BATCH_ROWS
from earshot.model.arrays import MessageArrays
from earshot.text import Analyzer, Vocabulary
from earshot.workloads import datasets
from earshot.workloads.synthetic import as_tables

TEXT_REPEATS = 5
"""The analyzer is fast: it gets so many times the messages of the other suites."""

TEXT_REPETITIONS = 7


def match_suite(context: Context) -> Iterator[Row]:
    """All competitors on each workload; the headline last, for the suites that go on with it."""
    for name in sorted(context.profile.workloads, key=lambda name: name == "headline"):
        yield from context.measure(context.workload(name))


def growth_suite(context: Context) -> Iterator[Row]:
    """The headline workload, from few subscriptions to many."""
    for size in context.profile.sizes:
        yield from context.measure(context.workload("headline", size))


def threads_suite(context: Context) -> Iterator[Row]:
    """The headline workload on one thread and on all cores."""
    names = context.focus(lambda competitor: competitor.can_thread)
    if not names:
        context.say("threads: skipped, nobody in this run takes several threads")
        return
    arena = context.arena(context.workload("headline"), names)
    case, contenders = arena.case, arena.named(names)
    counts = sorted({1, 2, os.cpu_count() or 1})
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
            yield {
                **row_of(case, contender),
                "n_threads": n_threads,
                "speedup": best_s[1] / best_s[n_threads],
            }


def text_suite(context: Context) -> Iterator[Row]:
    """Text into tokens: the vocabulary of the subscriptions, sentences of the messages."""
    context.release()
    workload = context.workload("headline")
    workload = workload.scaled(
        min(workload.n_subscriptions, 1_000_000), TEXT_REPEATS * workload.n_messages
    )
    subscriptions, messages = as_tables(workload)
    texts = {"headline": messages["text"], "bundled": datasets.bundled_messages()["text"]}
    analyzer, vocabulary = Analyzer(), Vocabulary()
    words = subscriptions["keywords"].combine_chunks().flatten()
    grow_s = elapsed_s(partial(analyzer.analyze, words, vocabulary, grow=True))
    for name, column in texts.items():
        analyzer.analyze(column, vocabulary, grow=False)
        times_s = [
            elapsed_s(partial(analyzer.analyze, column, vocabulary, grow=False))
            for _ in range(TEXT_REPETITIONS)
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
        yield from context.measure_case(_real_case(context, name, messages))


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
    """``earshot match`` from file to file, against the index alone on the same batches."""
    files = context.files()
    matches = files.messages_file.with_name("matches.parquet")
    index, batches = _file_batches(files)
    n_messages = files.workload.n_messages
    n_answers = sum(len(index.match(batch).subscriptions) for batch in batches)
    command = ["match", str(files.index_directory), str(files.messages_file), "--out", str(matches)]
    alone_s, facts = [], []
    for _ in range(context.profile.effort.repetitions + 1):  # the first fills the page cache
        alone_s.append(sum(elapsed_s(index.match, batch) for batch in batches))
        facts.append(run_command(command))
        matches.unlink()
    told = facts[-1]["n_matches"]
    if told != n_answers or facts[-1]["n_messages"] != n_messages:
        raise AnswersDiffer(
            f"'earshot match' found {told} matches of {facts[-1]['n_messages']} messages, "
            f"the index {n_answers} of {n_messages}"
        )
    measured = rates([fact["match_s"] for fact in facts[1:]], n_messages, n_answers)
    alone = n_messages / min(alone_s[1:])
    yield {
        "workload": files.workload.name,
        "competitor": "command line",
        "n_subscriptions": files.workload.n_subscriptions,
        "n_messages": n_messages,
        "n_threads": 1,
        "build_s": files.build_s,
        "load_s": min(fact["load_s"] for fact in facts[1:]),
        "answers_per_message": n_answers / n_messages,
        "index_alone_messages_per_s": alone,
        "share_of_index_rate": measured["messages_per_s"] / alone,
        **measured,
    }


def _file_batches(files: SavedFiles) -> tuple[Index, list[MessageArrays]]:
    """Return the saved index, and the messages of the file as the command line cuts them."""
    engine = Engine.open(files.index_directory)
    parts = read_messages(files.messages_file, space=engine.space, batch_rows=MESSAGE_BATCH_ROWS)
    batches = [
        encode_messages(part.batch, engine.analyzer, engine.vocabulary, engine.space).messages
        for part in parts
    ]
    return engine.index, batches


def _spark_suite(name: str, module: str, function: str) -> Callable[[Context], Iterator[Row]]:
    """Return a suite whose module is imported when it runs, as it needs PySpark."""

    def suite(context: Context) -> Iterator[Row]:
        if find_spec("pyspark") is None:
            context.say(f"{name}: skipped, PySpark is not installed: pip install 'earshot[spark]'")
            return
        yield from getattr(import_module(module), function)(context)

    return suite


# In this order: each goes on with what the one before has built, where it can.
SUITES: dict[str, Callable[[Context], Iterator[Row]]] = {
    "match": match_suite,
    "threads": threads_suite,
    "churn": churn_suite,
    "growth": growth_suite,
    "text": text_suite,
    "real": real_suite,
    "command_line": command_line_suite,
    "placement": placement_suite,
    "token_orders": token_orders_suite,
    "rt_trees": rt_trees_suite,
    "rt_rivals": rt_rivals_suite,
    "rt_updates": rt_updates_suite,
    "rt_growth": rt_growth_suite,
    "ranking_alpha": ranking_alpha_suite,
    "ranking_threshold": ranking_threshold_suite,
    **TOPK_SUITES,
    # First, so that its workers are asked before any has done other work.
    "spark_memory": _spark_suite("spark_memory", "earshot.bench.spark", "memory_suite"),
    "spark_batch": _spark_suite("spark_batch", "earshot.bench.spark", "batch_suite"),
    "spark_stream": _spark_suite("spark_stream", "earshot.bench.spark_stream", "stream_suite"),
}
