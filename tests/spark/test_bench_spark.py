"""The benchmark's Spark suites: they run, agree with the engine, and notice when they do not."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from earshot.bench import report, run
from earshot.bench.checksums import AnswersDiffer
from earshot.bench.profiles import PROFILES
from earshot.bench.results import read_rows
from earshot.workloads.synthetic import find_workload, message_table, subscription_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANY_PLAN = "as Spark chooses"
SUITES = ["spark_memory", "spark_batch", "spark_ranked", "spark_stream", "spark_states"]


@pytest.fixture(scope="module")
def results(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of all suites in small."""
    from earshot.bench.spark import SQL_PLANS

    folder = tmp_path_factory.mktemp("results")
    smoke = PROFILES["smoke"]
    effort = replace(
        smoke.spark, n_files=3, messages_per_file=50, files_per_batch=1, n_small=2, n_small_warm=1,
        sql_budget_s=0.0, n_shards=1, n_state_subscriptions=2_000, state_window=20,
        events_per_file=15, n_state_batches=1, files_per_state_batch=2,
    )  # fmt: skip
    quick = replace(smoke, spark=effort, effort=smoke.effort._replace(repetitions=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PROFILES, "smoke", quick)
        patch.setattr("earshot.bench.spark.N_FILES", 2)
        patch.setattr("earshot.bench.spark.SQL_FIRST_MESSAGES", 60)
        patch.setattr("earshot.bench.spark.SQL_PARTITIONS", 2)
        patch.setattr("earshot.bench.spark.SQL_PLANS", {ANY_PLAN: SQL_PLANS[ANY_PLAN]})
        # Starting other ones takes seconds.
        patch.setattr("earshot.bench.spark_memory.fresh_workers", nullcontext)
        run("smoke", n_subscriptions=2_000, n_messages=400, suites=SUITES, competitors=[],
            results=folder)  # fmt: skip
    return folder


def rows_of(results: Path, suite: str) -> dict[str, dict[str, Any]]:
    (path,) = results.glob("*.jsonl")
    return {row["competitor"]: row for row in read_rows(path) if row["suite"] == suite}


def test_all_ways_of_a_batch_agree(results: Path) -> None:
    rows = rows_of(results, "spark_batch")
    engine = rows["engine"]
    assert engine["answers_per_message"] > 0
    for name in ("engine_per_core", "earshot_lists", "earshot_files"):
        assert rows[name]["checksum"] == engine["checksum"]
        assert rows[name]["n_messages"] == 400
    assert rows["earshot_rows"]["n_messages"] == 20
    assert rows["spark_sql"]["n_messages"] == 60
    lists = rows["earshot_lists"]
    assert lists["share_of_engine"] == pytest.approx(
        lists["messages_per_s"] / engine["messages_per_s"]
    )
    assert lists["over_spark_sql"] == pytest.approx(
        lists["messages_per_s"] / rows["spark_sql"]["messages_per_s"]
    )


def test_ranked_batches_agree(results: Path) -> None:
    rows = rows_of(results, "spark_ranked")
    assert set(rows) == {"engine", "earshot_lists", "earshot_files"}
    assert len({row["checksum"] for row in rows.values()}) == 1
    assert {row["n_messages"] for row in rows.values()} == {40}
    assert rows["engine"]["answers_per_message"] > 0
    assert rows["engine"]["share_of_engine"] == 1.0


def test_states_are_measured_beside_the_engine(results: Path) -> None:
    (path,) = results.glob("*.jsonl")
    rows = [row for row in read_rows(path) if row["suite"] == "spark_states"]
    found = {(row["workload"], row["competitor"]): row for row in rows}
    for name in ("topk", "moving"):
        engine, earshot = found[name, "engine"], found[name, "earshot"]
        assert engine["checksum"] == earshot["checksum"]
        assert engine["n_messages"] == earshot["n_messages"] > 0
        assert engine["answers_per_message"] == earshot["answers_per_message"] > 0
        assert engine["share_of_engine"] == 1.0 > earshot["share_of_engine"]


def test_a_stream_is_measured_beside_spark_alone(results: Path) -> None:
    rows = rows_of(results, "spark_stream")
    assert set(rows) == {"earshot", "spark_alone"}
    for row in rows.values():
        assert row["n_messages"] == 50  # the first two of three batches do not count
        assert row["n_small_batches"] == 1
        assert row["small_batch_p50_ms"] > 0
        assert row["messages_per_s"] == pytest.approx(50 / row["elapsed_s"][0])


def test_two_workers_tell_of_their_memory(results: Path) -> None:
    rows = rows_of(results, "spark_memory")
    assert set(rows) == {"worker 0", "worker 1"}
    for row in rows.values():
        assert row["rss_bytes"] >= row["pss_bytes"] > row["private_dirty_bytes"] > 0
        assert row["rss_bytes"] >= row["shared_bytes"] + row["private_dirty_bytes"]
        assert row["open_s"] > 0


def test_the_suites_are_in_the_report(results: Path) -> None:
    told = report(results).read_text()
    for suite in SUITES:
        assert f"### {suite} (2,000 subscriptions)" in told
    assert "| batch on Spark over Spark SQL | ≥ 30 x |" in told
    assert "| headline | spark_alone |" in told


def test_the_join_finds_what_the_engine_finds(spark: SparkSession) -> None:
    from earshot.bench.spark import SQL_PLANS, spark_answers, sql_join, sql_subscriptions
    from earshot.engine.engine import Engine

    workload = find_workload("region_1e-01").scaled(500, 40)
    messages = message_table(workload)
    engine = Engine(space="planar")
    engine.subscribe_batch(subscription_table(workload))
    found = engine.match_batch(messages).table(["message_id", "subscription_id"])
    engine_answers = spark_answers(spark.createDataFrame(found))
    assert engine_answers.n == found.num_rows > 20
    subscriptions = sql_subscriptions(spark.createDataFrame(subscription_table(workload)))
    for plan in SQL_PLANS:
        pairs = sql_join(spark.createDataFrame(messages), subscriptions, plan)
        assert spark_answers(pairs) == engine_answers


def test_a_job_that_loses_answers_fails_the_run() -> None:
    from earshot.bench.spark import Answers, Job

    assert Job("honest", 1, lambda: 3, Answers(3, 0)).timed() >= 0
    with pytest.raises(AnswersDiffer, match=r"'forgetful' found 2 matches.*expected 3"):
        Job("forgetful", 1, lambda: 2, Answers(3, 0)).timed()
