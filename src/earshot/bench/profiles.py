"""How much is measured: seconds, minutes, or the sizes of the papers.

Every field has three values, of the profiles ``smoke``, ``regular`` and ``large``.
"""

# ruff: noqa: RUF009 - calls make fields here, not defaults
from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from earshot.bench.measuring import Effort
from earshot.indexes import default_structure
from earshot.workloads.blocks import named
from earshot.workloads.synthetic import WORKLOADS

_FIGURES = (
    "batch_ways", "token_orders", "rt_", "ranking_", "cikm15_", "ap_", "topk_", "moving_",
)  # fmt: skip
"""Beginnings of the suites that redraw figures of papers, or take as long."""

# The rest belongs to the suites that redraw figures.
_MATCHED = tuple(name for name in WORKLOADS if not name.startswith(("tweets_", "usa_", "ap_")))
_DATA, _DEFAULT = ("tweets", "gn", "yelp"), (default_structure("boolean"),)
_AP_GROWN = ("ap_tweets", "ap_gn")
_KMAX, _SKYBAND = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0), (1.0, 0.99, 0.98, 0.95, 0.9, 0.8)


def _each(smoke: Any, regular: Any, large: Any) -> Any:
    """Return a field with its value in each profile."""
    return field(metadata={"values": (smoke, regular, large)})


def _profiles(kind: Any) -> list[Any]:
    """Return what each profile has of a kind."""
    values = {each.name: each.metadata["values"] for each in fields(kind)}
    return [kind(**{name: of[at] for name, of in values.items()}) for at in range(3)]


@dataclass(frozen=True)
class SparkEffort:
    """Sizes of the Spark suites."""

    n_messages: int = _each(2_000, 2_000_000, 300_000)  # suite spark_batch
    sql_budget_s: float = _each(1.0, 60.0, 60.0)  # for one pass of Spark SQL's join
    n_files: int = _each(10, 30, 30)  # waiting files of the suite spark_stream
    messages_per_file: int = _each(200, 20_000, 20_000)
    files_per_batch: int = _each(2, 4, 4)
    n_small: int = _each(6, 48, 48)  # files that are dropped one at a time
    n_small_warm: int = _each(2, 8, 8)  # of which so many are not counted
    n_shards: int = _each(2, 4, 4)  # of the suite spark_states
    n_state_subscriptions: int = _each(300, 100_000, 100_000)
    state_window: int = _each(200, 100_000, 100_000)  # messages of top-k
    events_per_file: int = _each(100, 20_000, 20_000)  # of top-k; of moving, those of a timestamp
    files_per_state_batch: int = _each(2, 4, 4)
    n_state_batches: int = _each(2, 4, 4)  # that are counted


@dataclass(frozen=True)
class FigureEffort:
    """Sizes of the suites that redraw the papers' figures."""

    n_short: int = _each(32, 1_000, 1_000)  # messages of each number of tokens, of short groups
    n_long: int = _each(8, 200, 200)  # of the long groups
    # Of each index at each point of a figure.
    effort: Effort = _each(Effort(0.05, 1, 0), Effort(0.25, 2, 0), Effort(0.5, 2, 0))
    # The same where structures take turns, for small differences.
    turns: Effort = _each(Effort(0.05, 2, 0), Effort(0.25, 15, 0), Effort(0.25, 5, 0))
    most_data: int = _each(2, 2, 1)  # data sets of figures that have two
    n_judged: int = _each(4, 24, 24)  # messages of each point in the suite cikm15_choices
    n_operations: int = _each(400, 100_000, 100_000)  # of each group in the suite rt_updates
    operations_budget_s: float = _each(0.4, 5.0, 10.0)  # of each index in each group
    most_ordered: int = _each(5_000, 1_000_000, 10_000_000)  # subscriptions of token_orders
    n_adaptive: int = _each(1_000, 200_000, 5_000_000)  # subscriptions of ap_*
    n_partitioned: int = _each(500, 20_000, 20_000)  # of ap_partitions
    adaptive_sizes: tuple[int, ...] = _each(
        (500, 1_000), (100_000, 300_000, 1_000_000), (1_000_000, 5_000_000, 20_000_000)
    )  # of ap_growth and ap_expression_growth
    grown: tuple[str, ...] = _each(_AP_GROWN, _AP_GROWN, _AP_GROWN[:1])  # data sets of ap_growth
    # Subscriptions of cikm15_growth.
    lfilter_sizes: tuple[int, ...] = _each(
        (1_000, 5_000),
        (250_000, 500_000, 1_000_000),
        (2_000_000, 6_000_000, 10_000_000),
    )
    # Of ranking_*. Thresholds are part of a ranked index, so that each point is a build of its own.
    most_ranked: int = _each(2_000, 1_000_000, 1_000_000)


@dataclass(frozen=True)
class TopkEffort:
    """Sizes of the suites of top-k over a window."""

    n_subscriptions: int = _each(300, 20_000, 1_000_000)
    window: int = _each(500, 20_000, 1_000_000)  # messages
    n_arrivals: int = _each(200, 4_000, 100_000)  # messages that are measured
    aging: float = _each(0.0, 1.0, 0.5)  # windows that go by between filling and measuring
    # Numbers of subscriptions of the suite topk_subscriptions, and windows of topk_window.
    sizes: tuple[int, ...] = _each((60, 300), (20_000, 40_000, 100_000), (1_000_000, 5_000_000))
    windows: tuple[int, ...] = _each((100, 500), (20_000, 40_000, 100_000), (1_000_000, 5_000_000))
    datasets: tuple[str, ...] = _each(_DATA, _DATA, _DATA[:1])  # of suites that compare data sets
    # Factors of the suite topk_tuning, then of topk_reevaluation.
    tuning_kmax: tuple[float, ...] = _each((1.0, 3.0), _KMAX, _KMAX)
    tuning_skyband: tuple[float, ...] = _each((1.0, 0.95), _SKYBAND, _SKYBAND)
    kmax: tuple[float, ...] = _each((3.0,), (1.5, 2.0, 2.5, 3.0), (2.0,))
    skyband: tuple[float, ...] = _each((0.95,), (0.99, 0.98, 0.95), (0.995,))
    # Subscriptions with which CIQ takes part where sizes vary, at most.
    most_ciq: int = _each(300, 250_000, 1_000_000)
    repetitions: int = _each(1, 1, 1)  # measurements of each method, at most
    budget_s: float = _each(1.0, 30.0, 120.0)  # of each method; no call is begun after that
    states_kept: int = _each(8, 8, 2)  # saved states that wait for another suite, on disk


@dataclass(frozen=True)
class MovingEffort:
    """Sizes of the suites of moving subscribers; large is [VLDBJ15] Table 3."""

    n_subscriptions: int = _each(300, 20_000, 1_000_000)
    n_messages: int = _each(300, 20_000, 1_000_000)  # at the start
    n_timestamps: int = _each(3, 10, 100)
    arrivals: int = _each(30, 2_000, 100_000)  # in a timestamp
    arrival_rates: tuple[int, ...] = _each(
        (15, 30),
        (2_500, 5_000, 7_500, 10_000, 12_500),
        (50_000, 100_000, 150_000, 200_000, 250_000),
    )
    # Subscriptions, and messages at the start, of the suite moving_growth.
    sizes: tuple[int, ...] = _each(
        (100, 300), (10_000, 20_000, 30_000, 40_000, 50_000),
        (500_000, 1_000_000, 1_500_000, 2_000_000, 2_500_000),
    )  # fmt: skip
    # Of the figures over one thing: the data sets, and regions as shares of the map. With a million
    # messages, each subscription whose region is a tenth of the map would hold some 2,000.
    datasets: tuple[str, ...] = _each(
        ("tweets-city", "gn-city"), ("tweets-city", "gn-city"), ("tweets-city",)
    )
    areas: tuple[float, ...] = _each(
        (1e-8, 1e-6, 1e-4, 1e-2, 1e-1), (1e-8, 1e-6, 1e-4, 1e-2, 1e-1), (1e-8, 1e-6, 1e-4, 1e-2)
    )
    # Of the suites moving_safe: clients, messages at the start, and arrivals in a timestamp.
    clients: tuple[int, ...] = _each(
        (10, 30), (10, 100, 1_000, 10_000), (10, 100, 1_000, 10_000, 100_000, 1_000_000)
    )
    elaps_messages: int = _each(100, 1_000_000, 1_000_000)
    elaps_arrivals: tuple[int, ...] = _each(
        (10, 20), (10_000, 30_000, 50_000), (10_000, 20_000, 30_000, 40_000, 50_000)
    )
    budget_s: float = _each(1.0, 2.0, 8.0)  # of each structure; no timestamp is begun after that


@dataclass(frozen=True)
class Profile:
    """Sizes and time limits of a run."""

    name: str = _each("smoke", "regular", "large")
    effort: Effort = _each(
        Effort(0.5, 2, 20, opens_all=True), Effort(1.0, 3, 1_000), Effort(3.0, 3, 1_000)
    )
    spark: SparkEffort = _each(*_profiles(SparkEffort))
    figures: FigureEffort = _each(*_profiles(FigureEffort))
    topk: TopkEffort = _each(*_profiles(TopkEffort))
    moving: MovingEffort = _each(*_profiles(MovingEffort))
    n_subscriptions: int = _each(5_000, 1_000_000, 10_000_000)
    n_messages: int = _each(200, 10_000, 10_000)  # offered to each competitor
    # Of the suite match.
    workloads: tuple[str, ...] = _each(
        ("headline", "short_range", "long_point"), _MATCHED, _MATCHED[:5]
    )
    # Numbers of subscriptions of the suite growth.
    sizes: tuple[int, ...] = _each(
        (1_000, 5_000), (250_000, 500_000, 1_000_000), (1_000_000, 5_000_000, 10_000_000)
    )
    # Numbers of subscriptions of the suite many.
    many: tuple[int, ...] = _each(
        (2_000,),
        (1_000_000, 5_000_000),
        (10_000_000, 20_000_000, 50_000_000, 100_000_000),
    )
    # Beginnings of the suites that run only where they are asked for, or not even then.
    by_name: tuple[str, ...] = _each(
        (), (*_FIGURES, "many"), (*_FIGURES, "many", "real", "placement", "spark_stream")
    )
    without: tuple[str, ...] = _each(
        (), (), ("topk_tuning", "topk_groups", "topk_pruning", "topk_k", "topk_zipf", "topk_time")
    )
    shard_counts: tuple[int, ...] = _each((8,), (8, 64, 512), (8, 64, 512))  # of placement
    focus: tuple[str, ...] = _each((), _DEFAULT, _DEFAULT)  # of threads and churn; empty for all


PROFILES: dict[str, Profile] = {each.name: each for each in _profiles(Profile)}


def find_profile(name: str) -> Profile:
    """Return the profile of that name."""
    return named("profile", name, PROFILES)
