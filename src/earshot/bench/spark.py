"""The suite ``spark_batch``: what is left of the engine's rate on Spark.

The same Parquet files are matched by the engine in this process, by Earshot on Spark and by a join
in Spark SQL. All must give the same answers: an untimed pass of each, which also starts and warms
up its workers, sums up a hash of every pair.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise, starmap
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from earshot.bench.checksums import AnswersDiffer, Pairs, check_agreement, checksum, shown
from earshot.bench.context import Context, open_engine, peak_memory
from earshot.bench.measuring import WALL, elapsed_s, rates, timed
from earshot.bench.results import Row, basics
from earshot.engine.engine import Engine
from earshot.files import read_messages
from earshot.model.schemas import BOX_FIELDS
from earshot.spark import build, local_session, match
from earshot.spark.store import IndexStore, Version
from earshot.workloads.synthetic import Workload, message_table, subscription_table

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


class Answers(NamedTuple):
    """How many pairs there are, and the sum of their hashes."""

    n: int
    checksum: int

    @classmethod
    def total(cls, parts: Iterable[tuple[int, int]]) -> Answers:
        """Return all together."""
        n, checksums = map(sum, zip((0, 0), *parts, strict=True))
        return cls(n, checksums % 2**64)

    @classmethod
    def of_ids(cls, message_ids: pa.Array, subscription_ids: pa.Array) -> Answers:
        """Return the answers of pairs of ids."""
        # Ids of the workloads are row numbers, so this is the checksum of the other suites.
        pairs = Pairs(message_ids.to_numpy(), subscription_ids.to_numpy().astype(np.int32))
        return cls(len(message_ids), checksum(pairs))


class Stage(NamedTuple):
    """Subscriptions in files, and the index that Spark built of them."""

    session: SparkSession
    workload: Workload
    folder: Path  # holds ``subscriptions``, ``index`` and ``small``
    build_s: float
    version: Version  # of ``index``
    small: Version  # of ``small``, an index of few subscriptions

    @property
    def index_folder(self) -> Path:
        """Directory of the index."""
        return self.folder / "index"

    def engine(self, n_threads: int) -> Engine:
        """Open the index in this process."""
        base = self.version.base
        folder = IndexStore(self.index_folder).base_folder(base).local(f"shards/{base.shards[0]}")
        return open_engine(Path(folder), n_threads)

    def basics(self, competitor: str, n_messages: int, n_threads: int = N_CORES) -> Row:
        """Return what every row tells."""
        name, n_subscriptions = self.workload.name, self.workload.n_subscriptions
        return basics(name, competitor, n_subscriptions, n_messages, n_threads)


def stages(context: Context, workloads: Iterable[Workload]) -> Iterator[tuple[Stage, Path]]:
    """Yield a run's stages, made by its first Spark suite, and a folder for a suite's files."""
    for workload in workloads:
        context.release()
        if "spark" not in context.shared:
            made = context.shared["spark"] = _stage(workload, context.folder / "spark")
            context.say(
                f"{workload.n_subscriptions:,} subscriptions, built on Spark in "
                f"{made.build_s:.1f} s; {peak_memory()}"
            )
        with tempfile.TemporaryDirectory(prefix="earshot-bench-") as name:
            yield context.shared["spark"], Path(name)


def _stage(workload: Workload, folder: Path) -> Stage:
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    # Spark's 1 GB is too little for the join; Earshot's workers are processes of their own.
    session = local_session(MASTER, extra={"spark.driver.memory": f"{max(1, int(memory_gb / 3))}g"})
    subscriptions = folder / "subscriptions"
    subscriptions.mkdir(parents=True)
    n = workload.n_subscriptions
    for start, stop in pairwise([*range(0, n, SUBSCRIPTIONS_PER_FILE), n]):
        part = subscription_table(workload, start, stop)
        pq.write_table(part, subscriptions / f"{start:09d}.parquet")
    rows = session.read.parquet(str(subscriptions))
    # Starts the JVM's and the workers' parts of a build.
    replicated = partial(build, placement="replicated", space="planar")
    small = replicated(rows.limit(1_000), folder / "small")
    built, build_s = timed(replicated, rows, folder / "index")
    return Stage(session, workload, folder, build_s, built.version, small.version)


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


def match_files(engine: Engine, paths: Iterable[Path]) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Match files in this process, from Parquet to the users' ids, batch by batch."""
    for path in paths:
        for part in read_messages(path, space=engine.space):
            found = engine.match_batch(part.batch)
            yield found.message_ids, found.subscription_ids


def engine_pass(engine: Engine, paths: Iterable[Path]) -> int:
    """Return the number of the engine's answers."""
    return sum(len(subscription_ids) for _, subscription_ids in match_files(engine, paths))


def engine_answers(engine: Engine, paths: Iterable[Path]) -> Answers:
    """Return the answers of the engine."""
    return Answers.total(starmap(Answers.of_ids, match_files(engine, paths)))


def spark_answers(deliveries: DataFrame) -> Answers:
    """Return the answers of a table in the shape ``rows`` or ``lists``."""
    return Answers.total(deliveries.mapInArrow(_sum_task, "n long, checksum long").collect())


def _sum_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    parts = []
    for batch in batches:
        messages = batch.column("message_id")
        if "subscription_ids" in batch.schema.names:
            lists = batch.column("subscription_ids")
            messages, subscriptions = messages.take(pc.list_parent_indices(lists)), lists.flatten()
        else:
            subscriptions = batch.column("subscription_id")
        parts.append(Answers.of_ids(messages, subscriptions))
    sums = np.array(Answers.total(parts), np.uint64).view(np.int64)
    yield pa.RecordBatch.from_arrays([sums[:1], sums[1:]], ["n", "checksum"])


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

    def timed(self) -> float:
        """Return the seconds of a pass."""
        n, spent_s = timed(self.run)
        check_count(self.name, n, self.answers.n)
        return spent_s


def measure_batch(context: Context, workloads: Iterable[Workload]) -> Iterator[Row]:
    """Files of messages through the engine alone, Earshot on Spark, and a join in Spark SQL."""
    for made, folder in stages(context, workloads):
        workload = made.workload.scaled(n_messages=context.profile.spark.n_messages)
        yield from _batch_rows(context, made, message_table(workload), folder)


def _batch_rows(context: Context, made: Stage, messages: pa.Table, folder: Path) -> Iterator[Row]:
    some = messages.slice(0, max(1, len(messages) // ROWS_SHARE))
    for part in (messages, some):
        write_messages(part, folder / f"first-{len(part)}", N_FILES)
    engine = made.engine(N_CORES)
    jobs = [*_engine_jobs(made, engine, folder, len(messages)),
            *_spark_jobs(made, folder, len(messages), len(some))]  # fmt: skip
    context.say(f"spark_batch: all answered; {peak_memory()}")
    times_s: dict[str, list[float]] = {job.name: [] for job in jobs}
    for _ in range(context.profile.effort.repetitions):
        for job in jobs:
            times_s[job.name].append(job.timed())
    sql, times_s["spark_sql"], plan = _sql_job(context, made, messages, folder)
    jobs.append(sql)
    sums = {job.name: {job.n_messages: job.answers.checksum} for job in jobs}
    for n in {job.n_messages for job in jobs} - {len(messages)}:
        paths = sorted((folder / f"first-{n}").iterdir())
        sums["engine"][n] = engine_answers(engine, paths).checksum
    check_agreement(made.workload.name, sums)
    measured = {
        job.name: rates(times_s[job.name], job.n_messages, job.answers.n, WALL) for job in jobs
    }
    rate = {name: each["messages_per_s"] for name, each in measured.items()}
    for job in jobs:
        yield {
            **made.basics(job.name, job.n_messages),
            "build_s": made.build_s if job.name == "earshot_lists" else None,
            "answers_per_message": job.answers.n / max(job.n_messages, 1),
            "checksum": shown(job.answers.checksum),
            "share_of_engine": rate[job.name] / rate["engine"],
            "over_spark_sql": rate[job.name] / rate["spark_sql"],
            "plan": plan if job is sql else None,
            **measured[job.name],
        }


def _engine_jobs(made: Stage, engine: Engine, folder: Path, n_messages: int) -> Iterator[Job]:
    """Yield the jobs of this process: an engine of several threads, and as many engines of one."""
    paths = sorted((folder / f"first-{n_messages}").iterdir())
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
    session, index = made.session, made.index_folder
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
        yield Job(name, n, partial(consume, deliveries), spark_answers(deliveries))


def consume(deliveries: DataFrame) -> int:
    """Bring all deliveries into Spark's rows; return their number."""
    are_lists = "subscription_ids" in deliveries.columns
    count = F.sum(F.size("subscription_ids")) if are_lists else F.count("subscription_id")
    return int(deliveries.agg(count.alias("n")).collect()[0]["n"] or 0)


# ---- Spark SQL ----------------------------------------------------------------------------------

SQL_PLANS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "as Spark chooses": lambda words: words,
    "messages broadcast": F.broadcast,
    "messages hashed": lambda words: words.hint("shuffle_hash"),
}
"""Hints to Spark. Which is fastest depends on the sizes, so a run tries them all first."""


def _sql_job(
    context: Context, made: Stage, messages: pa.Table, folder: Path
) -> tuple[Job, list[float], str]:
    """Return the join on as many messages as fit its budget, its times, and the plan it took."""
    session = made.session.newSession()  # other settings, the same cores
    session.conf.set("spark.sql.adaptive.enabled", "true")
    session.conf.set("spark.sql.shuffle.partitions", str(SQL_PARTITIONS))
    subscriptions = sql_subscriptions(session.read.parquet(str(made.folder / "subscriptions")))
    subscriptions = subscriptions.repartition(SQL_PARTITIONS, "key").cache()
    subscriptions.count()
    n = min(SQL_FIRST_MESSAGES, len(messages))

    def joined(plan: str) -> DataFrame:
        first = folder / f"first-{n}"
        if not first.is_dir():
            write_messages(messages.slice(0, n), first, min(N_FILES, n))
        return sql_join(session.read.parquet(str(first)), subscriptions, plan)

    try:
        for plan in SQL_PLANS:
            _consume_pairs(joined(plan))
        spent_s = {plan: elapsed_s(_consume_pairs, joined(plan)) for plan in SQL_PLANS}
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
        again = range(context.profile.effort.repetitions - 1)
        return job, [spent_s[plan], *(job.timed() for _ in again)], plan
    finally:
        subscriptions.unpersist()


def _consume_pairs(pairs: DataFrame) -> int:
    count = F.count(F.lit(1)).alias("n")
    return int(pairs.agg(count, F.sum("subscription_id")).collect()[0]["n"])


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
        *BOX_FIELDS,
    )


def sql_join(messages: DataFrame, subscriptions: DataFrame, plan: str) -> DataFrame:
    """Return the pairs: an equi-join on the rarest keyword, then the box, then the other words."""
    tokens = F.split("text", " ")  # the words are plain: text analysis would find the same
    words = messages.select(F.col("id").alias("message_id"), "x", "y", tokens.alias("tokens"))
    words = SQL_PLANS[plan](words.withColumn("word", F.explode("tokens")))
    in_box = F.expr("x between min_x and max_x and y between min_y and max_y")
    # Most boxes are far away, and many subscriptions have one word: both spare looking at lists.
    has_others = (F.size("others") == 0) | (F.size(F.array_except("others", "tokens")) == 0)
    pairs = words.join(subscriptions, (F.col("word") == F.col("key")) & in_box & has_others)
    return pairs.select("message_id", "subscription_id")
