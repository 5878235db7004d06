"""How much is measured: seconds, minutes, or the sizes of the papers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from earshot.bench.measuring import Effort
from earshot.errors import InvalidParameter
from earshot.indexes import default_structure, structures_of

DEFAULT = default_structure("boolean")


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


class TopkEffort(NamedTuple):
    """Sizes of the suites of top-k over a window."""

    n_subscriptions: int
    window: int  # messages
    n_arrivals: int  # messages that are measured
    aging: float  # windows that go by between filling and measuring
    sizes: tuple[int, ...]  # numbers of subscriptions of the suite topk_subscriptions
    windows: tuple[int, ...]  # of the suite topk_window
    datasets: tuple[str, ...]  # of the suites that compare data sets
    tuning_kmax: tuple[float, ...]  # factors of the suite topk_tuning
    tuning_skyband: tuple[float, ...]
    kmax: tuple[float, ...]  # factors of the suite topk_reevaluation
    skyband: tuple[float, ...]
    most_ciq: int  # subscriptions with which CIQ takes part where sizes vary, at most
    repetitions: int  # measurements of each method, at most
    budget_s: float  # of each method; no call is begun after that
    states_kept: int  # saved states that wait for another suite, on disk
    suites: tuple[str, ...]  # those that can be run


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
        figures: Sizes of the suites that redraw the figures of the R^t papers.
        topk: Sizes of the suites ``topk_*``.
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
    topk: TopkEffort
    shard_counts: tuple[int, ...]
    focus: tuple[str, ...] = ()


_IN_PROCESS = ("match", "threads", "churn", "growth", "text", "command_line")
_SPARK = ("spark_memory", "spark_batch")
_FIGURES = (
    "token_orders", "rt_trees", "rt_rivals", "rt_updates", "rt_growth", "ranking_alpha",
    "ranking_threshold",
)  # fmt: skip

_TOPK = (
    "topk_tuning", "topk_groups", "topk_pruning", "topk_dissemination", "topk_reevaluation",
    "topk_keywords", "topk_k", "topk_subscriptions", "topk_window", "topk_zipf", "topk_time",
)  # fmt: skip
_TOPK_DATA = ("tweets", "gn", "yelp")
_KMAX_FACTORS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0)
_SKYBAND_FACTORS = (1.0, 0.99, 0.98, 0.95, 0.9, 0.8)

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
            suites=(*_IN_PROCESS, "real", "placement", *_FIGURES, *_TOPK, *_SPARK, "spark_stream"),
            effort=Effort(
                budget_s=0.5, repetitions=2, n_latency=20, opened=tuple(structures_of("boolean"))
            ),
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
            topk=TopkEffort(
                n_subscriptions=300,
                window=500,
                n_arrivals=200,
                aging=0.0,
                sizes=(60, 300),
                windows=(100, 500),
                datasets=_TOPK_DATA,
                tuning_kmax=(1.0, 3.0),
                tuning_skyband=(1.0, 0.95),
                kmax=(3.0,),
                skyband=(0.95,),
                most_ciq=300,
                repetitions=1,
                budget_s=1.0,
                states_kept=8,
                suites=_TOPK,
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
            effort=Effort(budget_s=1.0, repetitions=3, n_latency=1_000, opened=(DEFAULT,)),
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
            topk=TopkEffort(
                n_subscriptions=20_000,
                window=20_000,
                n_arrivals=4_000,
                aging=1.0,
                sizes=(20_000, 40_000, 100_000),
                windows=(20_000, 40_000, 100_000),
                datasets=_TOPK_DATA,
                tuning_kmax=_KMAX_FACTORS,
                tuning_skyband=_SKYBAND_FACTORS,
                kmax=(1.5, 2.0, 2.5, 3.0),
                skyband=(0.99, 0.98, 0.95),
                most_ciq=250_000,
                repetitions=1,
                budget_s=30.0,
                states_kept=8,
                suites=_TOPK,
            ),
            shard_counts=(8, 64, 512),
            focus=(DEFAULT,),
        ),
        Profile(
            name="large",
            n_subscriptions=10_000_000,
            n_messages=10_000,
            workloads=("headline", "short_point", "short_range", "long_point", "long_range"),
            sizes=(1_000_000, 5_000_000, 10_000_000),
            suites=(*_IN_PROCESS, *_SPARK),
            effort=Effort(budget_s=3.0, repetitions=3, n_latency=1_000, opened=(DEFAULT,)),
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
            topk=TopkEffort(
                n_subscriptions=1_000_000,
                window=1_000_000,
                n_arrivals=100_000,
                aging=0.5,
                sizes=(1_000_000, 5_000_000),
                windows=(1_000_000, 5_000_000),
                datasets=("tweets",),
                tuning_kmax=_KMAX_FACTORS,
                tuning_skyband=_SKYBAND_FACTORS,
                kmax=(2.0,),
                skyband=(0.995,),
                most_ciq=1_000_000,
                repetitions=1,
                budget_s=120.0,
                states_kept=2,
                suites=(
                    "topk_dissemination",
                    "topk_reevaluation",
                    "topk_subscriptions",
                    "topk_window",
                ),
            ),
            shard_counts=(8, 64, 512),
            focus=(DEFAULT,),
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
