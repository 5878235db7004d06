"""How much is measured: seconds, minutes, or the sizes of the papers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from earshot.bench.measuring import Effort
from earshot.errors import InvalidParameter
from earshot.indexes import DEFAULT_INDEX, INDEXES
from earshot.workloads.synthetic import WORKLOADS


class SparkEffort(NamedTuple):
    """Sizes of the Spark suites."""

    n_messages: int  # suite spark_batch
    sql_budget_s: float  # for one pass of Spark SQL's join
    n_files: int  # waiting files of the suite spark_stream
    messages_per_file: int
    files_per_batch: int
    n_small: int  # files that are dropped one at a time
    n_small_warm: int  # of which so many are not counted


@dataclass(frozen=True)
class Profile:
    """Sizes and time limits of a run.

    Attributes:
        name: Name on the command line and in the name of the results.
        n_subscriptions: Subscriptions of each workload.
        n_messages: Messages offered to each competitor.
        workloads: Names of the workloads of the suite ``match``.
        sizes: Numbers of subscriptions of the suite ``growth``.
        suites: Names of the suites that are run.
        effort: How long to measure.
        spark: Sizes of the Spark suites.
        shard_counts: Numbers of shards of the suite ``placement``.
        focus: Competitors of the suites ``threads`` and ``churn``; all who are able if empty.
    """

    name: str
    n_subscriptions: int
    n_messages: int
    workloads: tuple[str, ...]
    sizes: tuple[int, ...]
    suites: tuple[str, ...]
    effort: Effort
    spark: SparkEffort
    shard_counts: tuple[int, ...]
    focus: tuple[str, ...] = ()


_IN_PROCESS = ("match", "threads", "churn", "growth", "text", "command_line")
_SPARK = ("spark_memory", "spark_batch")

PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            name="smoke",
            n_subscriptions=5_000,
            n_messages=200,
            workloads=("headline", "short_range", "long_point"),
            sizes=(1_000, 5_000),
            suites=(*_IN_PROCESS, "real", "placement", *_SPARK, "spark_stream"),
            effort=Effort(budget_s=0.5, repetitions=2, n_latency=20, opened=tuple(INDEXES)),
            spark=SparkEffort(
                n_messages=2_000,
                sql_budget_s=1.0,
                n_files=10,
                messages_per_file=200,
                files_per_batch=2,
                n_small=6,
                n_small_warm=2,
            ),
            shard_counts=(8,),
        ),
        Profile(
            name="regular",
            n_subscriptions=1_000_000,
            n_messages=10_000,
            workloads=tuple(WORKLOADS),
            sizes=(250_000, 500_000, 1_000_000),
            suites=(*_IN_PROCESS, "real", "placement", *_SPARK, "spark_stream"),
            effort=Effort(budget_s=1.0, repetitions=3, n_latency=1_000, opened=(DEFAULT_INDEX,)),
            spark=SparkEffort(
                n_messages=2_000_000,
                sql_budget_s=60.0,
                n_files=30,
                messages_per_file=20_000,
                files_per_batch=4,
                n_small=48,
                n_small_warm=8,
            ),
            shard_counts=(8, 64, 512),
            focus=(DEFAULT_INDEX,),
        ),
        Profile(
            name="large",
            n_subscriptions=10_000_000,
            n_messages=10_000,
            workloads=("headline", "short_point", "short_range", "long_point", "long_range"),
            sizes=(1_000_000, 5_000_000, 10_000_000),
            suites=(*_IN_PROCESS, *_SPARK),
            effort=Effort(budget_s=3.0, repetitions=3, n_latency=1_000, opened=(DEFAULT_INDEX,)),
            spark=SparkEffort(
                n_messages=300_000,
                sql_budget_s=60.0,
                n_files=30,
                messages_per_file=20_000,
                files_per_batch=4,
                n_small=48,
                n_small_warm=8,
            ),
            shard_counts=(8, 64, 512),
            focus=(DEFAULT_INDEX,),
        ),
    )
}


def find_profile(name: str) -> Profile:
    """Return the profile of that name."""
    try:
        return PROFILES[name]
    except KeyError:
        known = ", ".join(PROFILES)
        raise InvalidParameter(f"no profile '{name}'; expected one of {known}") from None
