"""The suite ``spark_stream``: files of messages, as they come, through Spark into Parquet.

Many waiting files show how much a pipeline takes in the long run; small files dropped one at a time
show how soon a message is delivered. Spark alone, which reads the same files, passes its rows
through Python and writes them, shows what of that is Spark's own time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from earshot.bench.checksums import shown
from earshot.bench.context import Context
from earshot.bench.measuring import WALL, rates
from earshot.bench.profiles import SparkEffort
from earshot.bench.results import Row
from earshot.bench.spark import (
    Answers,
    Stage,
    check_count,
    engine_answers,
    spark_answers,
    stages,
    write_messages,
)
from earshot.spark import FileSink, Stream, match_stream
from earshot.spark.stream import Pipeline, Status
from earshot.workloads.synthetic import Workload, message_table

WARM_BATCHES = 2
"""Batches of the sustained run that are not counted: the first ones start workers."""
SMALL_MESSAGES = 10
"""Messages of a small batch."""

MESSAGE_SCHEMA = pa.schema(
    [("id", pa.int64()), ("text", pa.string()), ("x", pa.float64()), ("y", pa.float64())]
)


class Sustained(NamedTuple):
    """Messages, answers and seconds of the batches that count."""

    n_messages: int
    n_answers: int
    elapsed_s: float


def measure_stream(context: Context, workloads: Iterable[Workload]) -> Iterator[Row]:
    """A stream of files through Earshot, and through Spark alone."""
    effort = context.profile.spark
    n = effort.n_files * effort.messages_per_file
    for made, folder in stages(context, workloads):
        n_all = n + effort.n_small * SMALL_MESSAGES
        messages = message_table(made.workload.scaled(n_messages=n_all))
        incoming = write_messages(messages.slice(0, n), folder / "incoming", effort.n_files)
        small = write_messages(messages.slice(n), folder / "small", effort.n_small)
        engine = made.engine(1)
        answers, small_answers = (engine_answers(engine, paths) for paths in (incoming, small))
        alone = _drain_alone(made.session, folder, effort)
        matched, found = _drain_matched(made, folder, effort)
        check_count("spark_stream", found.n, answers.n)
        check_count("spark_stream, checksum", found.checksum, answers.checksum)
        context.say(f"spark_stream: {n} messages; now {effort.n_small} small batches")
        alone_ms = _small_alone(made.session, folder, small)
        matched_ms = _small_matched(made, folder, small, small_answers)
        told = {
            "answers_per_message": matched.n_answers / max(matched.n_messages, 1),
            "checksum": shown(answers.checksum),
        }
        for name, done, batches_ms, more in (
            ("earshot", matched, matched_ms, told),
            ("spark_alone", alone, alone_ms, {}),
        ):
            latencies_ms = batches_ms[effort.n_small_warm :]
            p50_ms, p90_ms = np.percentile(latencies_ms, (50, 90)).tolist()
            yield {
                **made.basics(name, done.n_messages),
                "messages_per_batch": effort.files_per_batch * effort.messages_per_file,
                "small_batch_p50_ms": p50_ms,
                "small_batch_p90_ms": p90_ms,
                "n_small_batches": len(latencies_ms),
                **rates([done.elapsed_s], done.n_messages, done.n_answers, WALL),
                **more,
            }


# ---- Earshot and Spark alone --------------------------------------------------------------------


def _start_matched(
    made: Stage, incoming: Path, target: Path, files_per_batch: int | None = None, **options: Any
) -> Pipeline:
    files = Stream.of_files(made.session, incoming, ids="integer", files_per_batch=files_per_batch)
    checkpoint = Path(f"{target}-checkpoint")
    return match_stream(
        files, made.index_folder, FileSink(target), checkpoint, shape="lists", **options
    )


def _start_alone(
    session: SparkSession, incoming: Path, target: Path, files_per_batch: int, **trigger: bool
) -> StreamingQuery:
    reader = session.readStream.schema(from_arrow_schema(MESSAGE_SCHEMA))
    rows = reader.option("maxFilesPerTrigger", files_per_batch).parquet(str(incoming))
    writer = (
        rows.mapInArrow(_pass_task, rows.schema)
        .writeStream.format("parquet")
        .option("path", str(target))
        .option("checkpointLocation", f"{target}-checkpoint")
    )
    return (writer.trigger(**trigger) if trigger else writer).start()


def _pass_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


# ---- sustained ----------------------------------------------------------------------------------


def _drain_matched(made: Stage, folder: Path, effort: SparkEffort) -> tuple[Sustained, Answers]:
    """Match all waiting files; return the rate after the first batches, and all answers."""
    ends: list[tuple[float, Status]] = []
    _start_matched(
        made, folder / "incoming", folder / "matched", effort.files_per_batch, available_now=True,
        on_batch=lambda status: ends.append((time.monotonic(), status)),
    ).await_end()  # fmt: skip
    (began, first), (ended, last) = ends[WARM_BATCHES - 1], ends[-1]
    done = Sustained(last.messages - first.messages, last.updates - first.updates, ended - began)
    written = made.session.read.parquet(str(folder / "matched"))
    return done, spark_answers(written)


def _drain_alone(session: SparkSession, folder: Path, effort: SparkEffort) -> Sustained:
    """Pass all waiting files through Spark; return the rate after the first batches."""
    query = _start_alone(session, folder / "incoming", folder / "alone", effort.files_per_batch,
                         availableNow=True)  # fmt: skip
    query.awaitTermination()
    batches = [each for each in query.recentProgress if each.numInputRows]
    n_messages = sum(each.numInputRows for each in batches)
    check_count("spark_alone", n_messages, effort.n_files * effort.messages_per_file)
    ends = [
        datetime.fromisoformat(each.timestamp).timestamp()
        + each.durationMs["triggerExecution"] / 1e3
        for each in batches
    ]
    counted = sum(each.numInputRows for each in batches[WARM_BATCHES:])
    return Sustained(counted, 0, ends[-1] - ends[WARM_BATCHES - 1])


# ---- small batches ------------------------------------------------------------------------------


def _small_matched(
    made: Stage, folder: Path, paths: Sequence[Path], answers: Answers
) -> list[float]:
    incoming = folder / "small-matched"
    incoming.mkdir()
    others = {query.id for query in made.session.streams.active}
    pipeline = _start_matched(made, incoming, folder / "small-matches")
    (query,) = (query for query in made.session.streams.active if query.id not in others)
    try:
        latencies_ms = _drop(query, paths, incoming, pipeline.await_idle)
        check_count("spark_stream, small batches", pipeline.status().updates, answers.n)
    finally:
        pipeline.stop()
    return latencies_ms


def _small_alone(session: SparkSession, folder: Path, paths: Sequence[Path]) -> list[float]:
    incoming = folder / "small-alone"
    incoming.mkdir()
    query = _start_alone(session, incoming, folder / "small-rows", 1)
    try:
        return _drop(query, paths, incoming, query.processAllAvailable)
    finally:
        query.stop()


def _drop(
    query: StreamingQuery, paths: Sequence[Path], incoming: Path, await_idle: Callable[[], None]
) -> list[float]:
    """Give a query one file at a time; return the milliseconds of each batch."""
    for path in paths:
        (incoming / path.name).hardlink_to(path)  # appears whole
        await_idle()
    batches = [each for each in query.recentProgress if each.numInputRows]
    check_count("spark_stream, small batches: number of them", len(batches), len(paths))
    return [each.durationMs["triggerExecution"] for each in batches]
