"""The suites ``spark_batch`` and ``spark_memory``: what is left of the engine's rate on Spark.

``spark_batch`` matches the same Parquet files by the engine in this process, by Earshot on Spark
and by a join in Spark SQL. All must give the same answers: an untimed pass of each, which also
starts and warms up its workers, sums up a hash of every pair. ``spark_memory`` opens the index in
two Python workers at once and asks the system what each of them has to itself.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import BarrierTaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from earshot.bench.checksums import AnswersDiffer, Pairs, check_agreement, checksum
from earshot.bench.context import Context, peak_memory
from earshot.bench.measuring import Row, elapsed_s, rates
from earshot.engine.engine import Engine
from earshot.files import read_messages
from earshot.spark import IndexStore, Version, build, local_session, match
from earshot.spark.shards import close_shards, open_shard, warm_up_machine
from earshot.workloads.synthetic import Workload, find_workload, message_table, subscription_table

N_CORES = 2
MASTER = f"local[{N_CORES}]"

N_FILES = 16
"""Files that messages are cut into: several for each core, so that none waits long."""
ROWS_SHARE = 20
"""One row per delivery is slow, so that shape gets one in so many of the messages."""
SUBSCRIPTIONS_PER_FILE = 250_000

SQL_FIRST_MESSAGES = 1_000
SQL_GROWTH = 4
"""The join gets so many times the messages again, until its time budget is used."""
SQL_PARTITIONS = 8

MEMORY_MESSAGES = 2_000

FRESH_WORKERS = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
"""Part of the workers' environment: with another value, Spark starts other processes."""


class Answers(NamedTuple):
    """How many pairs there are, and the sum of their hashes."""

    n: int
    checksum: int

    def plus(self, other: Answers) -> Answers:
        """Return both together."""
        return Answers(self.n + other.n, (self.checksum + other.checksum) % 2**64)


NO_ANSWERS = Answers(0, 0)


@dataclass(frozen=True, eq=False)
class Stage:
    """The headline's subscriptions in files, and the index that Spark built of them.

    Attributes:
        session: Where everything runs.
        workload: The subscriptions.
        folder: Goes with this object.
        build_s: How long building took.
        version: The version that was built.
        small: Another index, of few subscriptions, in the directory ``small``.
    """

    session: SparkSession
    workload: Workload
    folder: Path
    build_s: float
    version: Version
    small: Version

    @property
    def subscriptions(self) -> Path:
        """Directory of the subscriptions."""
        return self.folder / "subscriptions"

    @property
    def index(self) -> Path:
        """Directory of the index."""
        return self.folder / "index"

    def engine(self, n_threads: int) -> Engine:
        """Open the index in this process."""
        base = self.version.base
        folder = IndexStore(self.index).base_folder(base).local(f"shards/{base.shards[0]}")
        engine = Engine.open(folder, n_threads=n_threads)
        engine.warm_up()
        return engine


def stage(context: Context) -> Stage:
    """Return the stage of a run: made by its first Spark suite, and used by the others."""
    context.release()
    made = _stage(context.profile.n_subscriptions, context.seed)
    context.say(
        f"{made.workload.n_subscriptions:,} subscriptions, built on Spark in {made.build_s:.1f} s; "
        f"{peak_memory()}"
    )
    return made


@lru_cache(maxsize=1)
def _stage(n_subscriptions: int, seed: int) -> Stage:
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    # Spark's 1 GB is too little for the join; Earshot's workers are processes of their own.
    session = local_session(MASTER, extra={"spark.driver.memory": f"{max(1, int(memory_gb / 3))}g"})
    workload = find_workload("headline").scaled(n_subscriptions, 0, seed)
    folder = Path(tempfile.mkdtemp(prefix="earshot-bench-"))
    subscriptions = folder / "subscriptions"
    subscriptions.mkdir()
    for start in range(0, n_subscriptions, SUBSCRIPTIONS_PER_FILE):
        stop = min(start + SUBSCRIPTIONS_PER_FILE, n_subscriptions)
        part = subscription_table(workload, start, stop)
        pq.write_table(part, subscriptions / f"{start:09d}.parquet")
    # Starts the JVM's and the workers' parts of a build.
    few = session.read.parquet(str(subscriptions)).limit(1_000)
    small = build(few, folder / "small", placement="replicated", space="planar")
    began = time.perf_counter()
    rows = session.read.parquet(str(subscriptions))
    built = build(rows, folder / "index", placement="replicated", space="planar")
    build_s = time.perf_counter() - began
    made = Stage(session, workload, folder, build_s, built.version, small.version)
    weakref.finalize(made, shutil.rmtree, folder, ignore_errors=True)
    return made


def write_messages(messages: pa.Table, folder: Path, n_files: int) -> list[Path]:
    """Write messages to files of a new directory, in order."""
    folder.mkdir()
    bounds = np.linspace(0, len(messages), n_files + 1).astype(int)
    paths = []
    for number, (start, stop) in enumerate(pairwise(bounds)):
        paths.append(folder / f"{number:05d}.parquet")
        pq.write_table(messages.slice(start, stop - start), paths[-1])
    return paths


# ---- answers ------------------------------------------------------------------------------------


def engine_pass(engine: Engine, paths: Sequence[Path]) -> int:
    """Match files in this process, from Parquet to the users' ids; return the number of answers."""
    n = 0
    for path in paths:
        for part in read_messages(path, space=engine.space):
            n += len(engine.match_batch(part.batch).subscription_ids)
    return n


def engine_answers(engine: Engine, paths: Sequence[Path]) -> Answers:
    """Return the answers of the engine."""
    total = NO_ANSWERS
    for path in paths:
        for part in read_messages(path, space=engine.space):
            found = engine.match_batch(part.batch)
            message_ids = np.repeat(found.message_ids.to_numpy(), np.diff(found.offsets))
            total = total.plus(_answers(message_ids, found.subscription_ids.to_numpy()))
    return total


def spark_answers(deliveries: DataFrame) -> Answers:
    """Return the answers of a table in the shape ``rows`` or ``lists``."""
    sums = deliveries.mapInArrow(_sum_task, "n long, checksum long").collect()
    total = NO_ANSWERS
    for row in sums:
        total = total.plus(Answers(row["n"], row["checksum"] % 2**64))
    return total


def _sum_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    total = NO_ANSWERS
    for batch in batches:
        messages = batch.column("message_id").to_numpy()
        if "subscription_ids" in batch.schema.names:
            lists = batch.column("subscription_ids")
            messages = np.repeat(messages, pc.list_value_length(lists).to_numpy())
            subscriptions = lists.flatten()
        else:
            subscriptions = batch.column("subscription_id")
        total = total.plus(_answers(messages, subscriptions.to_numpy()))
    sums = np.array([total.n, total.checksum], np.uint64).view(np.int64)
    yield pa.RecordBatch.from_arrays([sums[:1], sums[1:]], ["n", "checksum"])


def _answers(
    message_ids: np.ndarray[tuple[int], np.dtype[np.int64]],
    subscription_ids: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> Answers:
    # Ids of the workloads are row numbers, so this is the checksum of the other suites.
    return Answers(
        len(message_ids), checksum(Pairs(message_ids, subscription_ids.astype(np.int32)))
    )


def check_count(name: str, n: int, wanted: int) -> None:
    """Raise unless a timed job gave as many answers as it should."""
    if n != wanted:
        raise AnswersDiffer(f"'{name}' found {n} matches in a timed pass; expected {wanted}")


# ---- batch --------------------------------------------------------------------------------------


class Job(NamedTuple):
    """One way of matching: a timed pass returns its number of answers."""

    name: str
    n_messages: int
    run: Callable[[], int]
    answers: Answers


def batch_suite(context: Context) -> Iterator[Row]:
    """Files of messages through the engine alone, Earshot on Spark, and a join in Spark SQL."""
    made = stage(context)
    effort = context.profile.spark
    workload = made.workload.scaled(n_messages=effort.n_messages)
    with tempfile.TemporaryDirectory(prefix="earshot-bench-") as name:
        folder = Path(name)
        messages = message_table(workload)
        some = messages.slice(0, max(1, len(messages) // ROWS_SHARE))
        paths = {
            len(part): write_messages(part, folder / f"first-{len(part)}", N_FILES)
            for part in (messages, some)
        }
        engine = made.engine(N_CORES)
        jobs = list(_engine_jobs(made, engine, paths[len(messages)], len(messages)))
        jobs += _spark_jobs(made, folder, len(messages), len(some))
        context.say(f"spark_batch: all answered; {peak_memory()}")
        times_s: dict[str, list[float]] = {job.name: [] for job in jobs}
        for _ in range(context.profile.effort.repetitions):
            for job in jobs:
                times_s[job.name].append(_timed(job))
        sql, sql_s, plan = _sql_job(context, made, messages, folder)
        jobs.append(sql)
        times_s[sql.name] = sql_s
        sums = {job.name: {job.n_messages: job.answers.checksum} for job in jobs}
        for job in jobs:
            own = sorted((folder / f"first-{job.n_messages}").iterdir())
            known = sums["engine"].get(job.n_messages)
            if known is None:
                sums["engine"][job.n_messages] = engine_answers(engine, own).checksum
        check_agreement("headline", sums)
        measured = {
            job.name: rates(times_s[job.name], job.n_messages, job.answers.n) for job in jobs
        }
        for job in jobs:
            yield {
                "workload": workload.name,
                "competitor": job.name,
                "n_subscriptions": workload.n_subscriptions,
                "n_messages": job.n_messages,
                "n_threads": N_CORES,
                "build_s": made.build_s if job.name == "earshot_lists" else None,
                "answers_per_message": job.answers.n / max(job.n_messages, 1),
                "checksum": f"{job.answers.checksum:016x}",
                "share_of_engine": _ratio(measured, job.name, "engine"),
                "over_spark_sql": _ratio(measured, job.name, "spark_sql"),
                "plan": plan if job is sql else None,
                **measured[job.name],
            }


def _ratio(measured: dict[str, Row], name: str, other: str) -> float:
    return float(measured[name]["messages_per_s"] / measured[other]["messages_per_s"])


def _timed(job: Job) -> float:
    began = time.perf_counter()
    n = job.run()
    spent_s = time.perf_counter() - began
    check_count(job.name, n, job.answers.n)
    return spent_s


def _engine_jobs(made: Stage, engine: Engine, paths: list[Path], n_messages: int) -> Iterator[Job]:
    """Yield the jobs of this process: an engine of several threads, and as many engines of one."""
    answers = engine_answers(engine, paths)
    yield Job("engine", n_messages, partial(engine_pass, engine, paths), answers)
    engines = [made.engine(1) for _ in range(N_CORES)]
    shares = [paths[number::N_CORES] for number in range(N_CORES)]

    def run() -> int:
        # Kernels release the interpreter's lock, and most of the time is theirs.
        with ThreadPoolExecutor(N_CORES) as pool:
            return sum(pool.map(engine_pass, engines, shares))

    run()
    yield Job("engine_per_core", n_messages, run, answers)


def _spark_jobs(made: Stage, folder: Path, n_messages: int, n_some: int) -> Iterator[Job]:
    """Yield Earshot's jobs; each has run once when it is yielded."""
    session, index = made.session, made.index
    everything, some = str(folder / f"first-{n_messages}"), str(folder / f"first-{n_some}")
    files = session.read.format("binaryFile").load(everything).drop("content")
    found = {
        "earshot_lists": session.read.parquet(everything).transform(match, index, shape="lists"),
        "earshot_files": files.transform(
            match, index, shape="lists", form="files", ids="integer"
        ),
        "earshot_rows": session.read.parquet(some).transform(match, index, shape="rows"),
    }  # fmt: skip
    for name, deliveries in found.items():
        n = n_some if name == "earshot_rows" else n_messages
        yield Job(name, n, partial(_consume, deliveries), spark_answers(deliveries))


def _consume(deliveries: DataFrame) -> int:
    """Bring all deliveries into Spark's rows; return their number."""
    if "subscription_ids" in deliveries.columns:
        count = F.sum(F.size("subscription_ids"))
    else:
        count = F.count("subscription_id")
    row = deliveries.agg(count.alias("n")).collect()[0]
    return int(row["n"] or 0)


# ---- Spark SQL ----------------------------------------------------------------------------------

SQL_PLANS: dict[str, Callable[[DataFrame, DataFrame], tuple[DataFrame, DataFrame]]] = {
    "as Spark chooses": lambda words, subscriptions: (words, subscriptions),
    "messages broadcast": lambda words, subscriptions: (F.broadcast(words), subscriptions),
    "messages hashed": lambda words, subscriptions: (words.hint("shuffle_hash"), subscriptions),
}
"""Hints to Spark. Which is fastest depends on the sizes, so a run tries them all first."""


def _sql_job(
    context: Context, made: Stage, messages: pa.Table, folder: Path
) -> tuple[Job, list[float], str]:
    """Return the join on as many messages as fit its budget, its times, and the plan it took."""
    session = made.session.newSession()  # other settings, the same cores
    session.conf.set("spark.sql.adaptive.enabled", "true")
    session.conf.set("spark.sql.shuffle.partitions", str(SQL_PARTITIONS))
    subscriptions = sql_subscriptions(session.read.parquet(str(made.subscriptions)))
    subscriptions = subscriptions.repartition(SQL_PARTITIONS, "key").cache()
    subscriptions.count()
    n = min(SQL_FIRST_MESSAGES, len(messages))

    def joined(plan: str) -> DataFrame:
        first = folder / f"first-{n}"
        if not first.is_dir():
            write_messages(messages.slice(0, n), first, min(N_FILES, n))
        return sql_join(session.read.parquet(str(first)), subscriptions, plan)

    try:
        spent_s = {}
        for plan in SQL_PLANS:
            _consume_pairs(joined(plan))
            spent_s[plan] = elapsed_s(_consume_pairs, joined(plan))
        budget_s = context.profile.spark.sql_budget_s
        while n < len(messages) and SQL_GROWTH * min(spent_s.values()) <= budget_s:
            n = min(SQL_GROWTH * n, len(messages))
            # What is best for few messages need not be so for many.
            close = [plan for plan in spent_s if spent_s[plan] < 1.5 * min(spent_s.values())]
            spent_s = {plan: elapsed_s(_consume_pairs, joined(plan)) for plan in close}
        plan = min(spent_s, key=lambda each: spent_s[each])
        context.say(f"spark_sql: {plan}, {n} messages in {spent_s[plan]:.2f} s")
        pairs = joined(plan)
        job = Job("spark_sql", n, partial(_consume_pairs, pairs), spark_answers(pairs))
        times_s = [spent_s[plan]]
        while len(times_s) < context.profile.effort.repetitions:
            times_s.append(_timed(job))
        return job, times_s, plan
    finally:
        subscriptions.unpersist()


def sql_subscriptions(subscriptions: DataFrame) -> DataFrame:
    """Return subscriptions with their rarest keyword, and the others.

    Words of the workload are numbered from the most frequent on; ``w7`` is the seventh.
    """
    rank = F.array_max(F.transform("keywords", lambda word: F.substring(word, 2, 10).cast("int")))
    key = F.concat(F.lit("w"), rank)
    return subscriptions.select(
        F.col("id").alias("subscription_id"),
        key.alias("key"),
        F.array_remove("keywords", key).alias("others"),
        *("min_x", "min_y", "max_x", "max_y"),
    )


def sql_join(messages: DataFrame, subscriptions: DataFrame, plan: str) -> DataFrame:
    """Return the pairs: an equi-join on the rarest keyword, then the box, then the other words."""
    tokens = F.split("text", " ")  # the words are plain: text analysis would find the same
    words = messages.select(F.col("id").alias("message_id"), "x", "y", tokens.alias("tokens"))
    words = words.withColumn("word", F.explode("tokens"))
    left, right = SQL_PLANS[plan](words, subscriptions)
    in_box = (
        (F.col("x") >= F.col("min_x"))
        & (F.col("x") <= F.col("max_x"))
        & (F.col("y") >= F.col("min_y"))
        & (F.col("y") <= F.col("max_y"))
    )
    # Most boxes are far away, and many subscriptions have one word: both spare looking at lists.
    has_others = (F.size("others") == 0) | (F.size(F.array_except("others", "tokens")) == 0)
    pairs = left.join(right, (F.col("word") == F.col("key")) & in_box & has_others)
    return pairs.select("message_id", "subscription_id")


def _consume_pairs(pairs: DataFrame) -> int:
    row = pairs.agg(F.count(F.lit(1)).alias("n"), F.sum("subscription_id")).collect()[0]
    return int(row["n"])


# ---- memory -------------------------------------------------------------------------------------


def memory_suite(context: Context) -> Iterator[Row]:
    """What an index costs in each Python worker of a machine, and how long it takes to open."""
    made = stage(context)
    session = made.session
    workload = made.workload.scaled(
        n_messages=min(MEMORY_MESSAGES, context.profile.spark.n_messages)
    )
    with tempfile.TemporaryDirectory(prefix="earshot-bench-") as name:
        (path,) = write_messages(message_table(workload), Path(name) / "messages", 1)
        answers = engine_answers(made.engine(1), [path])
        gc.collect()  # whatever this process has mapped would look shared
        small = ((made.folder / "small").as_uri(), made.small)
        task = partial(_memory_task, small, (made.index.as_uri(), made.version), path)
        workers = session.range(0, N_CORES, 1, N_CORES).mapInArrow(task, "told string", True)
        with fresh_workers(session):
            told = [json.loads(row["told"]) for row in workers.collect()]
    checksums = {"engine": {workload.n_messages: answers.checksum}}
    index_bytes = made.version.base.n_bytes[0]
    for number, facts in enumerate(told):
        checksums[f"worker {number}"] = {workload.n_messages: facts.pop("checksum")}
        grown = facts["private_dirty_bytes"] - facts["before_private_dirty_bytes"]
        facts["copied_share"] = grown / index_bytes
    check_agreement("headline", checksums)
    for number, facts in enumerate(told):
        yield {
            "workload": workload.name,
            "competitor": f"worker {number}",
            "n_subscriptions": workload.n_subscriptions,
            "n_messages": workload.n_messages,
            "n_threads": 1,
            "answers_per_message": answers.n / max(workload.n_messages, 1),
            "checksum": f"{answers.checksum:016x}",
            "index_bytes": index_bytes,
            **facts,
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


def _memory_task(
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
    _use(open_shard(*small, 0), path)
    close_shards(small[0])
    before = _memory_bytes()
    others.barrier()
    began = time.perf_counter()
    engine = open_shard(*index, 0)
    open_s = time.perf_counter() - began
    opened = _memory_bytes()
    answers = _use(engine, path)
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
    kilobytes = {field[0]: int(field[1]) for field in fields}
    return {
        "rss_bytes": 1024 * kilobytes["Rss"],
        "pss_bytes": 1024 * kilobytes["Pss"],
        "private_dirty_bytes": 1024 * kilobytes["Private_Dirty"],
        "private_clean_bytes": 1024 * kilobytes["Private_Clean"],
        "shared_bytes": 1024 * (kilobytes["Shared_Clean"] + kilobytes["Shared_Dirty"]),
    }
