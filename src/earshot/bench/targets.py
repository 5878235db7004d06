"""What the default index is meant to reach, and what was measured of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from earshot.bench.churn import CHANGES_PER_CALL
from earshot.indexes import default_structure, structures_of

DEFAULT = default_structure("boolean")

Row = dict[str, Any]

GROUPS: dict[str, Callable[[Row], bool]] = {
    "headline": lambda row: row["workload"] == "headline",
    "short and long, point and range": lambda row: row["workload"].startswith(("short_", "long_")),
    "regions": lambda row: row["workload"].startswith("region_"),
    "keywords": lambda row: row["workload"].startswith("keywords_"),
    "real messages": lambda row: row["suite"] == "real",
}
"""Groups of workloads of the suites ``match`` and ``real``."""


class Measured(NamedTuple):
    """A figure, what it is made of, and the row it was measured in."""

    value: float
    note: str
    row: Row


class Target(NamedTuple):
    """One thing to reach."""

    name: str
    wanted: float | None  # None where only the figure is told
    at_least: bool  # whether more is better
    digits: int
    unit: str
    measure: Callable[[list[Row]], Measured | None]

    def is_met(self, measured: Measured) -> bool | None:
        """Return whether the figure is good enough, if that can be said."""
        if self.wanted is None:
            return None
        if self.at_least:
            return measured.value >= self.wanted
        return measured.value <= self.wanted

    def shown(self, value: float) -> str:
        """Return a figure with its unit."""
        return f"{value:,.{self.digits}f}{self.unit}"


def largest(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of the most subscriptions, the newest first."""
    rows = sorted(rows, key=lambda row: row["run"]["started"], reverse=True)
    size = max((row["n_subscriptions"] for row in rows), default=0)
    return [row for row in rows if row["n_subscriptions"] == size]


def lead(row: Row) -> float | None:
    """Return how many times faster the default index is than this row, on the same messages."""
    default: float | None = row.get("default_messages_per_s")
    return None if default is None else default / row["messages_per_s"]


def _of(rows: list[Row], suite: str, competitor: str, workload: str = "headline") -> list[Row]:
    return largest(
        row
        for row in rows
        if (row["suite"], row["competitor"], row["workload"]) == (suite, competitor, workload)
    )


def _over_rival(rival: str) -> Callable[[list[Row]], Measured | None]:
    def measure(rows: list[Row]) -> Measured | None:
        for row in _of(rows, "match", rival):
            ratio = lead(row)
            if ratio is not None:
                return Measured(
                    ratio,
                    f"{row['default_messages_per_s']:,.0f} against {row['messages_per_s']:,.0f} "
                    f"messages/s on the same {row['n_messages']:,} messages",
                    row,
                )
        return None

    return measure


def _latency_over_rival(rival: str) -> Callable[[list[Row]], Measured | None]:
    """How many times sooner the default answers a message that comes alone, in the median."""

    def measure(rows: list[Row]) -> Measured | None:
        default = {row["run"]["started"]: row for row in _of(rows, "match", DEFAULT)}
        for row in _of(rows, "match", rival):
            own = default.get(row["run"]["started"])
            if own is not None and own.get("latency_us") and row.get("latency_us"):
                ours, theirs = own["latency_us"]["p50"], row["latency_us"]["p50"]
                note = f"{ours:,.0f} against {theirs:,.0f} µs for one message"
                return Measured(theirs / ours, note, row)
        return None

    return measure


def _over_indexes(is_member: Callable[[Row], bool]) -> Callable[[list[Row]], Measured | None]:
    """The least lead over any other index on any workload of a group."""

    def measure(rows: list[Row]) -> Measured | None:
        others = set(structures_of("boolean")) - {DEFAULT}
        members = [
            row
            for row in rows
            if row["suite"] in ("match", "real")
            and is_member(row)
            and row["competitor"] in others
            and lead(row) is not None
        ]
        newest: dict[tuple[str, str], Row] = {}
        for row in largest(members):
            newest.setdefault((row["workload"], row["competitor"]), row)
        if not newest:
            return None
        ratio, row = min(((lead(row) or 0.0, row) for row in newest.values()), key=itemgetter(0))
        return Measured(ratio, f"{row['competitor']} on {row['workload']}", row)

    return measure


def _field(
    name: str, suite: str, competitor: str, workload: str = "headline", **where: Any
) -> Callable[[list[Row]], Measured | None]:
    """A field of the default's row, where it has the given other fields."""

    def measure(rows: list[Row]) -> Measured | None:
        for row in _of(rows, suite, competitor, workload):
            fits = all(row.get(key) == value for key, value in where.items())
            if fits and row.get(name) is not None:
                return Measured(row[name], "", row)
        return None

    return measure


def _growth(rows: list[Row]) -> Measured | None:
    """Growth of the cost of a message over the growth of its answers, from fewest to most."""
    own = [row for row in rows if row["suite"] == "growth" and row["competitor"] == DEFAULT]
    top = largest(own)
    if not top:
        return None
    # Sizes of one run belong together; a smoke run's few thousand say nothing about millions.
    own = [row for row in own if row["run"]["profile"] == top[0]["run"]["profile"]]
    small, large = min(own, key=lambda row: row["n_subscriptions"]), top[0]
    if small["n_subscriptions"] == large["n_subscriptions"] or not small["answers_per_message"]:
        return None
    cost = small["messages_per_s"] / large["messages_per_s"]
    answers = large["answers_per_message"] / small["answers_per_message"]
    return Measured(
        cost / answers,
        f"{cost:.2f} times the cost, {answers:.2f} times the answers, from "
        f"{small['n_subscriptions']:,} to {large['n_subscriptions']:,}",
        large,
    )


def _flux(stage: int) -> Callable[[list[Row]], Measured | None]:
    return _field("slowdown", "churn", DEFAULT, changes_per_call=CHANGES_PER_CALL[stage])


def _changes(competitor: str, stage: int) -> Callable[[list[Row]], Measured | None]:
    return _field("changes_per_s", "churn", competitor, changes_per_call=CHANGES_PER_CALL[stage])


def _default(name: str) -> Callable[[list[Row]], Measured | None]:
    return _field(name, "match", DEFAULT)


_INDEX_BYTES = "index_bytes_per_subscription"

TARGETS: tuple[Target, ...] = (
    Target("rate over `duckdb`", 1500.0, True, 0, " x", _over_rival("duckdb")),
    Target("rate over `duckdb_grid`", None, True, 1, " x", _over_rival("duckdb_grid")),
    Target("one message at a time over `duckdb`", None, True, 0, " x",
           _latency_over_rival("duckdb")),
    # The default has to be the fastest index on every workload.
    *(
        Target(f"rate over the best other index: {group}", 0.95, True, 2, " x",
               _over_indexes(is_member))
        for group, is_member in GROUPS.items()
    ),
    Target("messages/s", None, True, 0, "", _default("messages_per_s")),
    Target("index size", 45.0, False, 1, " B/subscription", _default(_INDEX_BYTES)),
    Target("build", 120.0, False, 1, " s", _default("build_s")),
    Target("open", 1.0, False, 3, " s", _default("open_s")),
    Target("growth of the cost over growth of the answers", 1.0, False, 2, "", _growth),
    Target("two threads over one", 1.7, True, 2, " x",
           _field("speedup", "threads", DEFAULT, n_threads=2)),
    Target("text, short messages", 300_000.0, True, 0, " messages/s",
           _field("messages_per_s", "text", "analyzer")),
    Target("text, bundled messages", None, True, 0, " messages/s",
           _field("messages_per_s", "text", "analyzer", "bundled")),
    Target("command line over the index alone", 0.6, True, 2, "",
           _field("share_of_index_rate", "command_line", "command line")),
    Target("changes to the index, 1,000 a call", 50_000.0, True, 0, "/s",
           _changes(DEFAULT, 0)),
    Target("changes to the index, 100 a call", None, True, 0, "/s", _changes(DEFAULT, 1)),
    Target("changes through the engine, 1,000 a call", None, True, 0, "/s", _changes("engine", 0)),
    Target("changes through the engine, 100 a call", None, True, 0, "/s", _changes("engine", 1)),
    Target("cost of matching with 1 % in flux", 1.2, False, 3, " x", _flux(0)),
    Target("cost of matching with 2 % in flux", None, False, 3, " x", _flux(1)),
    Target("batch on Spark over the engine alone", 0.5, True, 2, "",
           _field("share_of_engine", "spark_batch", "earshot_lists")),
    Target("batch on Spark over Spark SQL", 30.0, True, 0, " x",
           _field("over_spark_sql", "spark_batch", "earshot_lists")),
    Target("stream on Spark", 20_000.0, True, 0, " messages/s",
           _field("messages_per_s", "spark_stream", "earshot")),
    Target("small batch of a stream", 600.0, False, 0, " ms",
           _field("small_batch_p50_ms", "spark_stream", "earshot")),
    Target("memory of a worker that opens the index", None, False, 3, " of its size",
           _field("copied_share", "spark_memory", "worker 0")),
    *(
        Target(f"8 shards, {name}: {what}", wanted, False, 2, " x",
               _field(field, "placement", "plan", name, n_shards=8))
        for name in ("headline", "nsw", "boston")
        for what, wanted, field in (
            ("candidates over one index", 1.3, "candidates_to_whole"),
            ("busiest over the mean", 1.5, "balance_of_candidates"),
        )
    ),
)  # fmt: skip
"""In the order of the report. The second field is what is wanted; see :class:`Target`."""


def target_table(rows: list[Row], targets: Sequence[Target] = TARGETS) -> str:
    """Return one line per target that was measured, as a Markdown table."""
    lines = ["| target | wanted | measured | reached | subscriptions | how |", "| --- " * 6 + "|"]
    for target in targets:
        measured = target.measure(rows)
        if measured is None:
            continue
        met = target.is_met(measured)
        sign = "≥" if target.at_least else "≤"
        cells = (
            target.name,
            "" if target.wanted is None else f"{sign} {target.shown(target.wanted)}",
            target.shown(measured.value),
            {True: "yes", False: "**no**", None: ""}[met],
            f"{measured.row['n_subscriptions']:,}",
            measured.note,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
