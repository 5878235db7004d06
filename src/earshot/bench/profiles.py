"""How much is measured: seconds, minutes, or the sizes of the papers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from earshot.bench.measuring import Effort
from earshot.errors import InvalidParameter
from earshot.indexes import DEFAULT_INDEX, INDEXES


class SparkEffort(NamedTuple):
    """Sizes of the Spark suites."""

    n_messages: int  # suite spark_batch
    sql_budget_s: float  # for one pass of Spark SQL's join
    n_files: int  # waiting files of the suite spark_stream
    messages_per_file: int
    files_per_batch: int
    n_small: int  # files that are dropped one at a time
    n_small_warm: int  # of which so many are not counted


class FigureEffort(NamedTuple):
    """Sizes of the suites that redraw the papers' figures."""

    n_short: int  # messages of each number of tokens, of the short groups
    n_long: int  # of the long groups
    effort: Effort  # of each index at each point of a figure
    n_operations: int  # of each group in the suite rt_updates
    operations_budget_s: float  # of each index in each group
    most_ordered: int  # subscriptions of the suite token_orders, at most
    most_ranked: int  # subscriptions of the suites ranking_*, at most


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
        figures: Sizes of the suites that redraw figures.
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
    figures: FigureEffort
    shard_counts: tuple[int, ...]
    focus: tuple[str, ...] = ()


_IN_PROCESS = ("match", "threads", "churn", "growth", "text", "command_line")
_SPARK = ("spark_memory", "spark_batch")
_FIGURES = (
    "token_orders", "rt_trees", "rt_rivals", "rt_updates", "rt_growth", "ranking_alpha",
    "ranking_threshold",
)  # fmt: skip

# The rest of WORKLOADS belongs to the suites that redraw figures.
_MATCHED = (
    "headline", "short_point", "short_range", "long_point", "long_range", "region_1e-08",
    "region_1e-06", "region_1e-04", "region_1e-02", "region_1e-01", "region_mixed", "keywords_1",
    "keywords_2", "keywords_3", "keywords_4", "keywords_5",
)  # fmt: skip

PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            name="smoke",
            n_subscriptions=5_000,
            n_messages=200,
            workloads=("headline", "short_range", "long_point"),
            sizes=(1_000, 5_000),
            suites=(*_IN_PROCESS, "real", "placement", *_FIGURES, *_SPARK, "spark_stream"),
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
            figures=FigureEffort(
                n_short=32,
                n_long=8,
                effort=Effort(budget_s=0.05, repetitions=1, n_latency=0, opened=()),
                n_operations=400,
                operations_budget_s=0.4,
                most_ordered=5_000,
                most_ranked=2_000,
            ),
            shard_counts=(8,),
        ),
        Profile(
            name="regular",
            n_subscriptions=1_000_000,
            n_messages=10_000,
            workloads=_MATCHED,
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
            figures=FigureEffort(
                n_short=1_000,
                n_long=200,
                effort=Effort(budget_s=0.25, repetitions=2, n_latency=0, opened=()),
                n_operations=100_000,
                operations_budget_s=5.0,
                most_ordered=1_000_000,
                most_ranked=1_000_000,
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
            figures=FigureEffort(
                n_short=1_000,
                n_long=200,
                effort=Effort(budget_s=0.5, repetitions=2, n_latency=0, opened=()),
                n_operations=100_000,
                operations_budget_s=10.0,
                most_ordered=10_000_000,
                # Thresholds are part of a ranked index, so that each point is a build of its own.
                most_ranked=1_000_000,
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
