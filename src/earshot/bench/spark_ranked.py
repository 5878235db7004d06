"""The suite ``spark_ranked``: what is left of the engine's rate where messages are scored.

As in ``spark_batch``, the same Parquet files are matched by the engine in this process and by
Earshot on Spark, in turns, with the same answers. Words are weighed by a change of the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from earshot.bench.checksums import check_agreement, shown
from earshot.bench.context import Context, peak_memory
from earshot.bench.measuring import WALL, rates
from earshot.bench.results import Row
from earshot.bench.spark import (
    N_CORES,
    N_FILES,
    Job,
    Stage,
    consume,
    engine_answers,
    engine_pass,
    spark_answers,
    stages,
    write_messages,
)
from earshot.engine.engine import Engine
from earshot.files.layout import make_layout
from earshot.files.records import batch_of_records
from earshot.model.ranking import Ranking
from earshot.spark import build, match
from earshot.spark.intake import take_in
from earshot.spark.shards import close_shards, open_shard
from earshot.spark.store import IndexStore
from earshot.workloads.synthetic import Workload, message_table

MESSAGES_SHARE = 10
"""Scores take longer than matches, so this suite has one in so many of their messages."""


def measure_ranked(context: Context, workloads: Iterable[Workload]) -> Iterator[Row]:
    """Files of messages through the ranked engine alone, and through Earshot on Spark."""
    for made, folder in stages(context, workloads):
        n = max(1, context.profile.spark.n_messages // MESSAGES_SHARE)
        paths = write_messages(
            message_table(made.workload.scaled(n_messages=n)), folder / "messages", N_FILES
        )
        engine = _weighed(made, folder / "index")
        jobs = [
            Job("engine", n, partial(engine_pass, engine, paths), engine_answers(engine, paths))
        ]
        jobs += _spark_jobs(made, folder, n)
        context.say(f"spark_ranked: all answered; {peak_memory()}")
        check_agreement("spark_ranked", {job.name: {n: job.answers.checksum} for job in jobs})
        times_s: dict[str, list[float]] = {job.name: [] for job in jobs}
        for _ in range(context.profile.effort.repetitions):
            for job in jobs:
                times_s[job.name].append(job.timed())
        measured = {job.name: rates(times_s[job.name], n, job.answers.n, WALL) for job in jobs}
        rate = {name: each["messages_per_s"] for name, each in measured.items()}
        for job in jobs:
            yield {
                **made.basics(job.name, n),
                "answers_per_message": job.answers.n / n,
                "checksum": shown(job.answers.checksum),
                "share_of_engine": rate[job.name] / rate["engine"],
                **measured[job.name],
            }


def _weighed(made: Stage, index: Path) -> Engine:
    """Build an index and let its words be weighed; return it as an engine of this process."""
    rows = made.session.read.parquet(str(made.folder / "subscriptions"))
    build(rows, index, semantics=Ranking(), placement="replicated", space="planar")
    layout = make_layout("changes", None, "", "raise")
    asked = batch_of_records(layout, [{"op": "reweigh", "id": 0}], "integer", np.arange(1)).batch
    store = IndexStore(index)
    version = take_in(store, pa.Table.from_batches([asked])).version
    engine = open_shard(store.folder.uri, version, 0).engine
    # Only now with all threads: shards are opened for one.
    engine.save(index.parent / "engine")
    close_shards(store.folder.uri)
    opened = Engine.open(index.parent / "engine", n_threads=N_CORES)
    opened.warm_up()
    return opened


def _spark_jobs(made: Stage, folder: Path, n: int) -> Iterator[Job]:
    session, index, everything = made.session, folder / "index", str(folder / "messages")
    files = session.read.format("binaryFile").load(everything).drop("content")
    found = {
        "earshot_lists": session.read.parquet(everything).transform(match, index, shape="lists"),
        "earshot_files": files.transform(match, index, shape="lists", form="files", ids="integer"),
    }
    for name, updates in found.items():
        yield Job(name, n, partial(consume, updates), spark_answers(updates))
