"""How much is measured: seconds, minutes, or the sizes of the papers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from earshot.bench.measuring import Effort
from earshot.indexes import default_structure
from earshot.workloads.blocks import named


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


@dataclass(frozen=True)
class Profile:
    """Sizes and time limits of a run."""

    name: str
    effort: Effort
    spark: SparkEffort
    figures: FigureEffort
    topk: TopkEffort
    n_subscriptions: int
    n_messages: int  # offered to each competitor
    workloads: tuple[str, ...]  # of the suite match
    sizes: tuple[int, ...]  # numbers of subscriptions of the suite growth
    suites: tuple[str, ...]  # that are run
    shard_counts: tuple[int, ...]  # of the suite placement
    without: tuple[str, ...]  # suites that are skipped even where they are asked for
    focus: tuple[str, ...]  # competitors of the suites threads and churn; empty for all


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
_TOPK_LARGE = ("topk_dissemination", "topk_reevaluation", "topk_subscriptions", "topk_window")

# The rest of WORKLOADS belongs to the suites that redraw figures.
_MATCHED = (
    "headline", "short_point", "short_range", "long_point", "long_range", "region_1e-08",
    "region_1e-06", "region_1e-04", "region_1e-02", "region_1e-01", "region_mixed", "keywords_1",
    "keywords_2", "keywords_3", "keywords_4", "keywords_5",
)  # fmt: skip

_DATA, _DEFAULT = ("tweets", "gn", "yelp"), (default_structure("boolean"),)
_LATER_SUITES = (*_IN_PROCESS, "real", "placement", *_SPARK, "spark_stream")
_KMAX, _SKYBAND = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0), (1.0, 0.99, 0.98, 0.95, 0.9, 0.8)

_NAMES = ("smoke", "regular", "large")
_TABLE: dict[Any, dict[str, tuple[Any, Any, Any]]] = {
    Profile: {
        "n_subscriptions": (5_000, 1_000_000, 10_000_000),
        "n_messages": (200, 10_000, 10_000),
        "workloads": (("headline", "short_range", "long_point"), _MATCHED, _MATCHED[:5]),
        "sizes": ((1_000, 5_000), (250_000, 500_000, 1_000_000),
                  (1_000_000, 5_000_000, 10_000_000)),
        "suites": ((*_LATER_SUITES, *_FIGURES, *_TOPK), _LATER_SUITES, (*_IN_PROCESS, *_SPARK)),
        "shard_counts": ((8,), (8, 64, 512), (8, 64, 512)),
        "without": ((), (), tuple(name for name in _TOPK if name not in _TOPK_LARGE)),
        "focus": ((), _DEFAULT, _DEFAULT),
    },
    Effort: {
        "budget_s": (0.5, 1.0, 3.0),
        "repetitions": (2, 3, 3),
        "n_latency": (20, 1_000, 1_000),
        "opens_all": (True, False, False),
    },
    SparkEffort: {
        "n_messages": (2_000, 2_000_000, 300_000),
        "sql_budget_s": (1.0, 60.0, 60.0),
        "n_files": (10, 30, 30),
        "messages_per_file": (200, 20_000, 20_000),
        "files_per_batch": (2, 4, 4),
        "n_small": (6, 48, 48),
        "n_small_warm": (2, 8, 8),
    },
    FigureEffort: {
        "n_short": (32, 1_000, 1_000),
        "n_long": (8, 200, 200),
        "effort": (Effort(0.05, 1, 0), Effort(0.25, 2, 0), Effort(0.5, 2, 0)),
        "n_operations": (400, 100_000, 100_000),
        "operations_budget_s": (0.4, 5.0, 10.0),
        "most_ordered": (5_000, 1_000_000, 10_000_000),
        # Thresholds are part of a ranked index, so that each point is a build of its own.
        "most_ranked": (2_000, 1_000_000, 1_000_000),
    },
    TopkEffort: {
        "n_subscriptions": (300, 20_000, 1_000_000),
        "window": (500, 20_000, 1_000_000),
        "n_arrivals": (200, 4_000, 100_000),
        "aging": (0.0, 1.0, 0.5),
        "sizes": ((60, 300), (20_000, 40_000, 100_000), (1_000_000, 5_000_000)),
        "windows": ((100, 500), (20_000, 40_000, 100_000), (1_000_000, 5_000_000)),
        "datasets": (_DATA, _DATA, _DATA[:1]),
        "tuning_kmax": ((1.0, 3.0), _KMAX, _KMAX),
        "tuning_skyband": ((1.0, 0.95), _SKYBAND, _SKYBAND),
        "kmax": ((3.0,), (1.5, 2.0, 2.5, 3.0), (2.0,)),
        "skyband": ((0.95,), (0.99, 0.98, 0.95), (0.995,)),
        "most_ciq": (300, 250_000, 1_000_000),
        "repetitions": (1, 1, 1),
        "budget_s": (1.0, 30.0, 120.0),
        "states_kept": (8, 8, 2),
    },
}  # fmt: skip
"""Every field of every profile, by what it belongs to."""


def _profile(at: int) -> Profile:
    of = {kind: {name: values[at] for name, values in fields.items()}
          for kind, fields in _TABLE.items()}  # fmt: skip
    kinds: tuple[Any, ...] = (Effort, SparkEffort, FigureEffort, TopkEffort)
    return Profile(_NAMES[at], *(kind(**of[kind]) for kind in kinds), **of[Profile])


PROFILES: dict[str, Profile] = {name: _profile(at) for at, name in enumerate(_NAMES)}


def find_profile(name: str) -> Profile:
    """Return the profile of that name."""
    return named("profile", name, PROFILES)
