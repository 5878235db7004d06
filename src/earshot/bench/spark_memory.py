"""The suite ``spark_memory``: what an index costs in each Python worker of a machine.

The index is opened in two workers at once; the system tells what each of them has to itself.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark import BarrierTaskContext
from pyspark.sql import SparkSession

from earshot.bench.checksums import check_agreement, shown
from earshot.bench.context import Context
from earshot.bench.measuring import timed
from earshot.bench.results import Row
from earshot.bench.spark import N_CORES, Answers, engine_answers, stages, write_messages
from earshot.engine.engine import Engine
from earshot.spark.shards import close_shards, open_shard, warm_up_machine
from earshot.spark.store import Version
from earshot.workloads.synthetic import Workload, message_table

MOST_MESSAGES = 2_000

FRESH_WORKERS = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
"""Part of the workers' environment: with another value, Spark starts other processes."""


def measure_memory(context: Context, workloads: Iterable[Workload]) -> Iterator[Row]:
    """Memory of each worker with the index open, and how long opening takes."""
    for made, folder in stages(context, workloads):
        n = min(MOST_MESSAGES, context.profile.spark.n_messages)
        messages = message_table(made.workload.scaled(n_messages=n))
        (path,) = write_messages(messages, folder / "messages", 1)
        answers = engine_answers(made.engine(1), [path])
        gc.collect()  # whatever this process has mapped would look shared
        small = ((made.folder / "small").as_uri(), made.small)
        task = partial(_task, small, (made.index_folder.as_uri(), made.version), path)
        workers = made.session.range(0, N_CORES, 1, N_CORES)
        with fresh_workers(made.session):
            rows = workers.mapInArrow(task, "told string", True).collect()
        told = {f"worker {number}": json.loads(row["told"]) for number, row in enumerate(rows)}
        sums = {worker: {n: facts.pop("checksum")} for worker, facts in told.items()}
        check_agreement(made.workload.name, {"engine": {n: answers.checksum}, **sums})
        index_bytes = made.version.base.n_bytes[0]
        for worker, facts in told.items():
            grown = facts["private_dirty_bytes"] - facts["before_private_dirty_bytes"]
            yield {
                **made.basics(worker, n, n_threads=1),
                "answers_per_message": answers.n / max(n, 1),
                "checksum": shown(answers.checksum),
                "index_bytes": index_bytes,
                **facts,
                "copied_share": grown / index_bytes,
            }


@contextmanager
def fresh_workers(session: SparkSession) -> Iterator[None]:
    """Let jobs have Python workers that have done nothing before."""
    before = str(session.conf.get(FRESH_WORKERS))
    session.conf.set(FRESH_WORKERS, "false" if before == "true" else "true")
    try:
        yield
    finally:
        session.conf.set(FRESH_WORKERS, before)


def _task(
    small: tuple[str, Version],
    index: tuple[str, Version],
    path: Path,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Open the index, match with it, and tell what this process has in memory before and after.

    The same is done with a small index first, so that what any matching takes is there before.
    """
    others = BarrierTaskContext.get()
    for _ in batches:
        pass
    warm_up_machine()
    _use(open_shard(*small, 0).engine, path)
    close_shards(small[0])
    before = _memory_bytes()
    others.barrier()
    shard, open_s = timed(open_shard, *index, 0)
    opened = _memory_bytes()
    answers = _use(shard.engine, path)
    others.barrier()  # all have all pages now
    after = _memory_bytes()
    others.barrier()
    told = {
        **after,
        **{f"before_{name}": value for name, value in before.items()},
        "opened_rss_bytes": opened["rss_bytes"],
        "open_s": open_s,
        "checksum": answers.checksum,
    }
    yield pa.RecordBatch.from_arrays([pa.array([json.dumps(told)])], ["told"])


def _use(engine: Engine, path: Path) -> Answers:
    """Touch every page of an engine, and match."""
    engine.warm_up()
    return engine_answers(engine, [path])


def _memory_bytes() -> dict[str, int]:
    """Return what the system says of the memory of this process, garbage left out."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]
    fields = (line.replace(":", " ").split() for line in lines)
    found = {field[0].lower(): 1024 * int(field[1]) for field in fields}
    names = ("rss", "pss", "private_dirty", "private_clean")
    told = {f"{name}_bytes": found[name] for name in names}
    return told | {"shared_bytes": found["shared_clean"] + found["shared_dirty"]}
