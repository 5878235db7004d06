"""The suites ``match``, ``growth``, ``real``, ``threads``, ``text`` and ``command_line``."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from earshot.bench.checksums import AnswersDiffer
from earshot.bench.context import Context, open_engine, run_command
from earshot.bench.measuring import (
    CPU,
    WALL,
    Case,
    cpu_s,
    elapsed_s,
    first_pass,
    rates,
    row_of,
)
from earshot.bench.results import Row, basics
from earshot.encoding import encode_messages, encode_subscriptions
from earshot.files import read_messages
from earshot.jobs import MESSAGE_BATCH_ROWS
from earshot.model.arrays import Int64s
from earshot.text import Analyzer, Vocabulary
from earshot.workloads import datasets
from earshot.workloads.synthetic import Workload, as_tables

TEXT_SUBSCRIPTIONS = 1_000_000
"""Subscriptions whose words the vocabulary gets, at most."""

TEXT_REPEATS, TEXT_REPETITIONS = 5, 7
"""The analyzer is fast: it gets so many times the messages of the other suites, so often."""


def measure(context: Context, cases: Iterable[Workload | Case]) -> Iterator[Row]:
    """Measure all competitors on each workload, or case that is none."""
    for case in cases:
        yield from context.measure(case)


def measure_threads(context: Context, workloads: Iterable[Workload]) -> Iterator[Row]:
    """Measure structures on one thread and on all cores, all messages in one call."""
    names = context.focus()
    counts = sorted({1, 2, os.cpu_count() or 1})
    for workload in workloads if names else ():
        case, contenders = context.arena(workload, names)
        for contender in contenders:  # all messages, whatever the first ones took
            first_pass(contender, case.messages, math.inf)
        times_s: dict[tuple[str, int], list[float]] = {}
        for _ in range(context.profile.effort.repetitions + 1):  # the first starts the threads
            for contender in contenders:
                for n_threads in counts:
                    match = partial(contender.competitor.match, n_threads=n_threads)
                    spent_s = elapsed_s(match, case.messages)
                    times_s.setdefault((contender.name, n_threads), []).append(spent_s)
        for contender in contenders:
            best_s = {count: min(times_s[contender.name, count][1:]) for count in counts}
            for n_threads in counts:
                contender.elapsed_s = times_s[contender.name, n_threads][1:]
                row = row_of(case, contender) | {"n_threads": n_threads, "clock": WALL}
                yield row | {"speedup": best_s[1] / best_s[n_threads]}


def measure_text(context: Context, workloads: Iterable[Workload]) -> Iterator[Row]:
    """Text into tokens: the vocabulary of the subscriptions, sentences of the messages."""
    context.release()
    for workload in workloads:
        size = min(workload.n_subscriptions, TEXT_SUBSCRIPTIONS)
        workload = workload.scaled(size, TEXT_REPEATS * workload.n_messages)  # noqa: PLW2901
        subscriptions, messages = as_tables(workload)
        analyzer, vocabulary = Analyzer(), Vocabulary()
        words = subscriptions["keywords"].combine_chunks().flatten()
        grow_s = cpu_s(partial(analyzer.analyze, words, vocabulary, grow=True))
        bundled = datasets.bundled_messages()["text"]
        for name, column in {workload.name: messages["text"], "bundled": bundled}.items():
            analyze = partial(analyzer.analyze, column, vocabulary, grow=False)
            analyze()
            times_s = [cpu_s(analyze) for _ in range(TEXT_REPETITIONS)]
            yield {
                **basics(name, "analyzer", size, len(column)),
                "n_words": len(vocabulary),
                "grow_words_per_s": len(words) / grow_s,
                "megabytes_per_s": pc.sum(pc.binary_length(column)).as_py() / 1e6 / min(times_s),
                **rates(times_s, len(column), 0, CPU),
            }


def measure_command_line(context: Context, workloads: Iterable[Workload]) -> Iterator[Row]:
    """``earshot match`` from file to file, against the index alone on the same batches."""
    for headline in workloads:
        files = context.files(headline)
        workload, n_messages = files.workload, files.workload.n_messages
        matches = files.messages.with_name("matches.parquet")
        engine = open_engine(files.index_directory)
        index, encoding = engine.matcher.index, (engine.analyzer, engine.vocabulary, engine.space)
        # Cut and encoded as the command line does.
        parts = read_messages(files.messages, space=engine.space, batch_rows=MESSAGE_BATCH_ROWS)
        batches = [encode_messages(part.batch, *encoding).messages for part in parts]
        n_answers = sum(len(index.match(batch).subscriptions) for batch in batches)
        arguments = [files.index_directory, files.messages, "--out", matches]
        alone_s, facts = [], []
        for _ in range(context.profile.effort.repetitions + 1):  # the first fills the page cache
            alone_s.append(sum(elapsed_s(index.match, batch) for batch in batches))
            facts.append(run_command(["match", *map(str, arguments)]))
            matches.unlink()
        told = (facts[-1]["n_updates"], facts[-1]["n_messages"])
        if told != (n_answers, n_messages):
            raise AnswersDiffer(
                f"'earshot match' found {told[0]} matches of {told[1]} messages, "
                f"the index {n_answers} of {n_messages}"
            )
        measured = rates([fact["match_s"] for fact in facts[1:]], n_messages, n_answers, WALL)
        alone = n_messages / min(alone_s[1:])
        yield {
            **basics(workload.name, "command line", workload.n_subscriptions, n_messages),
            "build_s": files.build_s,
            "load_s": min(fact["load_s"] for fact in facts[1:]),
            "answers_per_message": n_answers / n_messages,
            "index_alone_messages_per_s": alone,
            "share_of_index_rate": measured["messages_per_s"] / alone,
            **measured,
        }


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
