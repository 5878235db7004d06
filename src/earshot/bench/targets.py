"""What is meant to be reached: one table of targets, and one function that evaluates any of them.

A target has rows that are judged and a value of each. Where it compares, it also has rows that each
of those is compared with, and the value is of the two. Only the newest of equal rows counts, and of
these the ones with the most subscriptions; of several values the worst one is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from earshot.bench.churn import CHANGES_PER_CALL
from earshot.bench.moving import DEFAULT as MOVING_DEFAULT
from earshot.bench.points import (
    BEST_TREE,
    GROUPS,
    LFILTER,
    LFILTER_PARTS,
    TOKEN_ORDERS,
    TREES,
    Variant,
)
from earshot.bench.results import (
    KIND,
    Row,
    key_of,
    lead,
    markdown,
    newest_first,
    shared_costs,
    value_of,
)
from earshot.bench.suites import AP_PLUS, MAIN_DATA, RIVALS_DATA
from earshot.bench.topk import default_method
from earshot.indexes import default_structure, structures_of
from earshot.workloads.topk import TOPK_WORKLOADS

Found = float | tuple[float, str] | None
"""A value, with a note on what it is made of where that says more; ``None`` if not measured."""

SECTIONS = {
    "index": "The default index, at the largest size measured. Rates are compared on the same "
    "messages in the same run; of a group of workloads, the worst one is shown.",
    "figures": "What the figures of the R^t papers and of CIKM15 should show again. Work is "
    "compared on the same messages; of all points of a figure, the worst one is shown.",
    "adaptive": "The AP-Tree, in the figures of VLDBJ15. Structures are compared on the same "
    "messages of one run; of all points of a figure, the worst one is shown.",
    "top-k": "Top-k over a window. Methods are compared on the same messages; kmax and Skyband "
    "have the factor that made a message cheapest.",
    "moving": "Moving subscribers, in the figures of VLDBJ15. Structures are compared on the "
    "same timestamps, in CPU time; of all points of a figure, the worst one is shown.",
}
"""Introductions to the parts of the table."""


class Wish(NamedTuple):
    """What a value should be, and how it is written."""

    wanted: float | None  # None where only the figure is told
    digits: int
    unit: str = ""
    more_is_better: bool = True


at_least, at_most = Wish, partial(Wish, more_is_better=False)


class Target(NamedTuple):
    """One thing to reach."""

    section: str
    name: str
    wish: Wish
    of: Callable[[Row], bool]  # whether a row is judged
    value: str | Callable[..., Found]  # a field; made of a row, or of a row and another one
    over: Callable[[list[Row], Row], list[Row]] | None = None  # what a row is compared with

    def is_met(self, value: float) -> bool | None:
        """Return whether a figure is good enough, if that can be said."""
        if self.wish.wanted is None:
            return None
        return value >= self.wish.wanted if self.wish.more_is_better else value <= self.wish.wanted

    def shown(self, value: float) -> str:
        """Return a figure with its unit."""
        return f"{value:,.{self.wish.digits}f}{self.wish.unit}"


class Measured(NamedTuple):
    """A figure, what it is made of, and the row it was measured in."""

    value: float
    note: str
    row: Row


def evaluate(target: Target, rows: list[Row]) -> Measured | None:
    """Return what was measured of a target."""
    rows = newest_first(rows)
    measured: dict[tuple[Any, ...], Measured] = {}
    for row in filter(target.of, rows):
        others = [()] if target.over is None else [(other,) for other in target.over(rows, row)]
        for pair in ((row, *other) for other in others):
            made_of = target.value
            found = value_of(row, made_of) if isinstance(made_of, str) else made_of(*pair)
            if found is not None:
                value, note = found if isinstance(found, tuple) else (found, "")
                kinds = tuple(_kind(each) for each in pair)
                measured.setdefault(kinds, Measured(float(value), note, row))
    size = max((each.row["n_subscriptions"] for each in measured.values()), default=0)
    largest = [each for each in measured.values() if each.row["n_subscriptions"] == size]
    worst = min if target.wish.more_is_better else max
    return worst(largest, key=lambda each: each.value) if largest else None


def target_table(rows: list[Row], section: str) -> str:
    """Return one line per target that was measured, as a Markdown table; empty if none was."""
    lines = []
    for target in (each for each in TARGETS if each.section == section):
        measured = evaluate(target, rows)
        if measured is None:
            continue
        wanted, sign = target.wish.wanted, "≥" if target.wish.more_is_better else "≤"
        lines.append((
            target.name,
            "" if wanted is None else f"{sign} {target.shown(wanted)}",
            target.shown(measured.value),
            {True: "yes", False: "**no**", None: ""}[target.is_met(measured.value)],
            f"{measured.row['n_subscriptions']:,}",
            measured.note,
        ))  # fmt: skip
    head = ("target", "wanted", "measured", "reached", "subscriptions", "how")
    return markdown(head, lines, all_columns=True) if lines else ""


# ---- rows ----------------------------------------------------------------------------------------


def _kind(row: Row) -> tuple[Any, ...]:
    """Return what tells rows apart, whatever suite shows them."""
    return key_of(row, KIND[1:])


def where(**wanted: Any) -> Callable[[Row], bool]:
    """Return a selection of rows: by a value, by one of several, or by a condition on a field."""

    def fits(value: Any, wish: Any) -> bool:
        if callable(wish):
            return bool(wish(value))
        return value in wish if isinstance(wish, tuple) else bool(value == wish)

    return lambda row: all(fits(row.get(field), wish) for field, wish in wanted.items())


def beside(*fields: str, **wanted: Any) -> Callable[[list[Row], Row], list[Row]]:
    """Return a selection of rows as large as a given one that share some fields with it."""
    is_selected = where(**wanted)
    shared = ("suite", "n_subscriptions", *fields)
    return lambda rows, own: [
        row for row in rows
        if row is not own and is_selected(row) and key_of(row, shared) == key_of(own, shared)
    ]  # fmt: skip


def _chosen_over_best(row: Row) -> Found:
    note = f"{row['workload']}, {row['batch_size']:,} a call, {row['instructions']}"
    return row["chosen_over_best"], note


def _smaller(rows: list[Row], own: Row) -> list[Row]:
    """Return the smaller rows of a profile; a smoke run's few thousand say nothing of millions."""
    shared = ("run.profile", "suite", "competitor")
    return [row for row in rows if row["n_subscriptions"] < own["n_subscriptions"]
            and key_of(row, shared) == key_of(own, shared)]  # fmt: skip


def _smallest(rows: list[Row], own: Row) -> list[Row]:
    smaller = _smaller(rows, own)
    least = min((row["n_subscriptions"] for row in smaller), default=0)
    return [row for row in smaller if row["n_subscriptions"] == least]


def _a_fifth(rows: list[Row], own: Row) -> list[Row]:
    return [row for row in _smaller(rows, own)
            if row["n_subscriptions"] * GROWTH == own["n_subscriptions"]]  # fmt: skip


def _tuned(rows: list[Row], own: Row) -> list[Row]:
    """Return, of kmax and of Skyband, the row with the least cost of a message; none without both.

    Costs must be known on messages that our own row has seen too.
    """
    shared = ("workload", "n_subscriptions", "dissemination")
    newest: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if row["suite"] in REEVALUATION and key_of(row, shared) == key_of(own, shared):
            newest.setdefault(_kind(row), row)
    tuned = []
    for name in ("kmax", "skyband"):
        of_name = [row for row in newest.values()
                   if row["reevaluation"] == name and row["emp_us"] is not None]  # fmt: skip
        best = min(of_name, key=lambda row: float(row["total_us"]), default=None)
        if best is None or shared_costs(own, best) is None:
            return []
        tuned.append(best)
    return tuned


# ---- values --------------------------------------------------------------------------------------


def _rate_lead(row: Row) -> Found:
    ratio = lead(row)
    return None if ratio is None else (
        ratio, f"{row['default_messages_per_s']:,.0f} against {row['messages_per_s']:,.0f} "
               f"messages/s on the same {row['n_messages']:,} messages"
    )  # fmt: skip


def _batch_lead(row: Row) -> Found:
    ratio = lead(row)
    return None if ratio is None else (
        ratio, f"{row['default_messages_per_s']:,.0f} against {row['messages_per_s']:,.0f} "
               f"messages/s, both with {row['batch_size']:,} messages a call"
    )  # fmt: skip


def _index_lead(row: Row) -> Found:
    ratio = lead(row)
    return None if ratio is None else (ratio, f"{row['competitor']} on {row['workload']}")


def _latency_lead(own: Row, other: Row) -> Found:
    ours, theirs = (value_of(row, "latency_us.p50") for row in (own, other))
    if ours is None or theirs is None:
        return None
    return theirs / ours, f"{ours:,.0f} against {theirs:,.0f} µs for one message"


def _growth(large: Row, small: Row) -> Found:
    """Growth of the cost of a message over the growth of its answers."""
    if not small["answers_per_message"]:
        return None
    cost = small["messages_per_s"] / large["messages_per_s"]
    answers = large["answers_per_message"] / small["answers_per_message"]
    return cost / answers, (
        f"{cost:.2f} times the cost, {answers:.2f} times the answers, from "
        f"{small['n_subscriptions']:,} to {large['n_subscriptions']:,}"
    )


def _most_memory(row: Row) -> Found:
    built, matched = (row[f"{step}_peak_bytes"] / 1e9 for step in ("build", "match"))
    return max(built, matched), f"{built:.1f} GB while building, {matched:.1f} GB while matching"


def _place(row: Row) -> str:
    told = [row["workload"]]
    told += [f"{row[name]:,} tokens" for name in ("message_tokens",) if row.get(name) is not None]
    told += [f"{name} {row[name]}" for name in ("alpha", "threshold") if row.get(name) is not None]
    return ", ".join(told)


def _work(*names: str) -> Callable[[Row, Row], tuple[float, str] | None]:
    """The work of a row over that of another one, on the same messages."""

    def ratio(row: Row, other: Row) -> tuple[float, str] | None:
        costs = shared_costs(row, other)
        if costs is None:
            return None
        own, others = (sum(each[name] for name in names) for each in costs)
        who = " ".join(filter(None, (other["competitor"], other.get("token_order"))))
        value = own / others if others else 1.0 if own == 0 else math.inf
        return value, f"over {who}: {_place(row)}"

    return ratio


def _adaptive_lead(own: Row, other: Row) -> Found:
    """How many times faster a row is than another one, and where."""
    found = _ranked_lead(own, other)
    ratio = found[0] if isinstance(found, tuple) else found
    return None if ratio is None else (ratio, _adaptive_place(own))


def _build_lead(own: Row, other: Row) -> Found:
    return other["build_s"] / max(own["build_s"], 1e-9), _adaptive_place(own)


def _adaptive_place(row: Row) -> str:
    told = [f"{name} {row[name]}" for name in ADAPTIVE_PLACE[1:] if row.get(name) is not None]
    return ", ".join([row["workload"], *told])


def _ranked_lead(own: Row, row: Row) -> Found:
    """How many times faster a row is than another one; best times if both took all messages."""
    if own["checksum"] == row["checksum"] and own["n_messages"] == row["n_messages"]:
        ratio = own["messages_per_s"] / row["messages_per_s"]
    else:
        found = _work("ms")(row, own)
        if found is None:
            return None
        ratio = found[0]
    return ratio, f"{row['competitor']}: {_place(row)}"


def _time_share(own: Row, row: Row) -> Found:
    """The time of a row over that of another one."""
    found = _ranked_lead(own, row)
    if not isinstance(found, tuple):
        return None
    who = " ".join(filter(None, (row["competitor"], row.get("probing"))))
    return 1.0 / found[0], f"over {who}: {_place(row)}"


def _arrival_lead(own: Row, other: Row) -> Found:
    costs = shared_costs(own, other)
    if costs is None or not costs[0]["amp_us"] or not costs[1]["amp_us"]:
        return None
    ours, theirs = (each["amp_us"] for each in costs)
    return theirs / ours, f"{ours:,.0f} against {theirs:,.0f} µs per arrival"


def _expiry_lead(own: Row, other: Row) -> Found:
    costs = shared_costs(own, other)
    if costs is None or costs[0]["emp_us"] is None:
        return None
    ours, theirs = costs
    return theirs["emp_us"] / max(ours["emp_us"], 1e-9), (
        f"{ours['emp_us']:,.1f} against {theirs['emp_us']:,.1f} µs per expiry of "
        f"`{other['competitor']}`; total {ours['total_us']:,.0f} against "
        f"{theirs['total_us']:,.0f} µs"
    )


def _buffer_share(own: Row, other: Row) -> Found:
    ours, theirs = own["mean_buffer"], other["mean_buffer"]
    note = f"{ours:,.1f} against {theirs:,.1f} messages of `{other['competitor']}`"
    return ours / max(theirs, 1e-9), note


def _cost_growth(large: Row, small: Row) -> Found:
    costs = shared_costs(large, small, same_answers=False)
    if costs is None:
        return None
    most, least = (each["total_us"] for each in costs)
    return most / least, (
        f"{least:,.0f} and {most:,.0f} µs per message with "
        f"{small['n_subscriptions']:,} and {large['n_subscriptions']:,} subscriptions"
    )


def _moving_lead(name: str, what: str) -> Callable[[Row, Row], Found]:
    """How many times less time a row takes than another one, on the same timestamps."""

    def ratio(own: Row, other: Row) -> Found:
        costs = shared_costs(own, other)
        if costs is None:
            return None
        ours, theirs = (each[name] for each in costs)
        place = ", ".join(f"{field} {own[field]:g}" for field in MOVING_PLACE[2:])
        return theirs / max(ours, 1e-9), (
            f"{ours:,.2f} against {theirs:,.2f} µs {what} of `{other['competitor']}`: "
            f"{own['workload']}, {place}"
        )

    return ratio


def _reports_saved(own: Row, other: Row) -> Found:
    ours, theirs = (row["reports_per_timestamp"] for row in (own, other))
    note = f"{ours:,.1f} instead of {theirs:,.1f} in a timestamp, {own['arrivals']:,} arrivals"
    return theirs / max(ours, 1e-9), note


def _tree_gb(row: Row) -> Found:
    size = row.get("index_bytes_per_subscription")
    return None if size is None else (
        size * PAPERS_SUBSCRIPTIONS / 1e9, f"{size:,.1f} B/subscription; stored subscriptions apart"
    )  # fmt: skip


# ---- the table -----------------------------------------------------------------------------------

PLACE = ("workload", "message_tokens", "alpha", "threshold")
"""Fields that tell points of a figure apart."""

ADAPTIVE_PLACE = ("workload", "n_subscriptions", "n_keywords", "region_area", "built_share")
"""The same of the figures of VLDBJ15."""

MOVING_PLACE = ("workload", "n_live", "mobility", "velocity", "region_area", "arrivals")
"""The same of moving subscribers."""

PAPERS_SUBSCRIPTIONS = 10_000_000
TREE_SIZES_GB = (1.63, 0.79, 0.89)
"""Of the trees over 10 M subscriptions, [TKDE15] Table 1."""

LFILTER_SIZES_GB = (1.33, 1.28)
"""Of MBRTrie and PT-Quadtree over 10 M subscriptions of tweets, [CIKM15] Table 1."""

SHORT_MESSAGE_MS = 2.0
"""Of R^t++ at 10 M subscriptions, [TKDE15] section 7.2."""

GROWTH = 5
"""Times as many subscriptions, with which a message should cost less than so many times as much."""

DEFAULT, METHOD = default_structure("boolean"), default_method().label
REEVALUATION = ("topk_reevaluation", "topk_tuning")
MOVING_SUITES = ("moving_data", "moving_mobility", "moving_velocity", "moving_regions",
                 "moving_growth", "moving_arrivals")  # fmt: skip


def _of(suite: str, competitor: str, workload: str = "headline", **more: Any) -> Any:
    return where(suite=suite, competitor=competitor, workload=workload, **more)


def _tree(tree: Variant) -> dict[str, Any]:
    return {"competitor": tree.name, "token_order": tree.token_order}


def _begins(*prefixes: str) -> Callable[[str], bool]:
    return lambda name: name.startswith(prefixes)


WORKLOADS: dict[str, dict[str, Any]] = {
    "headline": {"suite": "match", "workload": "headline"},
    "short and long, point and range": {"suite": "match", "workload": _begins("short_", "long_")},
    "regions": {"suite": "match", "workload": _begins("region_")},
    "keywords": {"suite": "match", "workload": _begins("keywords_")},
    "real messages": {"suite": "real"},
}
"""Groups of workloads; the default has to be the fastest index on each of them."""

OF_THE_INDEX: tuple[tuple[Any, ...], ...] = (
    ("rate over `duckdb`", at_least(1500.0, 0, " x"), _of("match", "duckdb"), _rate_lead),
    ("rate over `duckdb_grid`", at_least(None, 1, " x"), _of("match", "duckdb_grid"), _rate_lead),
    *(
        (f"rate over `duckdb_grid` at its best batch size, {size // 10**6} M",
         at_least(wanted, 1, " x"),
         _of("batch_sizes", "duckdb_grid", n_subscriptions=size, is_best_size=True), _batch_lead)
        for size, wanted in ((1_000_000, 10.0), (10_000_000, 15.0))
    ),
    *(
        (f"{words} messages, 10,000 a call over one by one, {size // 10**6} M, {instructions}",
         at_least(None, 2, " x"),
         _of("batch_ways", DEFAULT, workload, n_subscriptions=size, batch_size=10_000,
             instructions=instructions), "over_single")
        for instructions in ("avx512", "avx2")
        for words, workload in (("short", "headline"), ("long", "long_point"))
        for size in (1_000_000, 10_000_000)
    ),
    *(
        (f"way chosen for a batch over the best one, {size // 10**6} M", at_most(1.05, 3, " x"),
         where(suite="batch_ways", competitor=DEFAULT, n_subscriptions=size), _chosen_over_best)
        for size in (1_000_000, 10_000_000)
    ),
    ("one message at a time over `duckdb`", at_least(None, 0, " x"), _of("match", DEFAULT),
     _latency_lead, beside("workload", "run.started", competitor="duckdb")),
    *(
        (f"rate over the best other index: {group}", at_least(0.95, 2, " x"),
         where(competitor=lambda name: name != DEFAULT and name in structures_of("boolean"),
               **fields), _index_lead)
        for group, fields in WORKLOADS.items()
    ),
    ("messages/s", at_least(None, 0), _of("match", DEFAULT), "messages_per_s"),
    ("index size", at_most(45.0, 1, " B/subscription"), _of("match", DEFAULT),
     "index_bytes_per_subscription"),
    ("build", at_most(120.0, 1, " s"), _of("match", DEFAULT), "build_s"),
    ("open", at_most(1.0, 3, " s"), _of("match", DEFAULT), "open_s"),
    ("growth of the cost over growth of the answers", at_most(1.0, 2), _of("growth", DEFAULT),
     _growth, _smallest),
    ("most memory to build, open and match", at_most(22.0, 1, " GB"), _of("many", DEFAULT),
     _most_memory),
    ("cost of an answer over that at 10 M", at_most(1.5, 2, " x"), _of("many", DEFAULT),
     "over_smallest"),
    ("index size at 1 M", at_most(60.0, 1, " B/subscription"),
     _of("match", DEFAULT, n_subscriptions=1_000_000), "index_bytes_per_subscription"),
    ("two threads over one", at_least(1.8, 2, " x"), _of("threads", DEFAULT, n_threads=2),
     "speedup"),
    ("text, short messages", at_least(300_000.0, 0, " messages/s"), _of("text", "analyzer"),
     "messages_per_s"),
    ("text, bundled messages", at_least(None, 0, " messages/s"), _of("text", "analyzer", "bundled"),
     "messages_per_s"),
    ("command line over the index alone", at_least(0.6, 2), _of("command_line", "command line"),
     "share_of_index_rate"),
    ("command line, Parquet to Parquet, 1 M", at_least(208_000.0, 0, " messages/s"),
     _of("command_line", "command line", n_subscriptions=1_000_000), "messages_per_s"),
    *(
        (f"changes {place}, {n:,} a call", at_least(wanted, 0, "/s"),
         _of("churn", who, changes_per_call=n), "changes_per_s")
        for place, who, least in (("to the index", DEFAULT, 50_000.0),
                                  ("through the engine", "engine", None))
        for n, wanted in zip(CHANGES_PER_CALL, (least, None), strict=True)
    ),
    *(
        (f"cost of matching with {percent} % in flux", at_most(wanted, 3, " x"),
         _of("churn", DEFAULT, changes_per_call=n), "slowdown")
        for n, percent, wanted in zip(CHANGES_PER_CALL, (1, 2), (1.2, None), strict=True)
    ),
    *(
        (f"a single call of the engine: {call}", at_most(wanted, 0, " µs"),
         _of("churn", "engine", changes_per_call=1), f"{call}_us.p50")
        for call, wanted in (("publish", 80.0), ("subscribe", 100.0))
    ),
    ("batch on Spark over the engine alone", at_least(0.6, 2), _of("spark_batch", "earshot_lists"),
     "share_of_engine"),
    ("batch on Spark over Spark SQL", at_least(30.0, 0, " x"), _of("spark_batch", "earshot_lists"),
     "over_spark_sql"),
    ("ranked batch on Spark over the engine alone", at_least(0.5, 2),
     _of("spark_ranked", "earshot_lists"), "share_of_engine"),
    ("stream on Spark", at_least(20_000.0, 0, " messages/s"), _of("spark_stream", "earshot"),
     "messages_per_s"),
    ("small batch of a stream", at_most(600.0, 0, " ms"), _of("spark_stream", "earshot"),
     "small_batch_p50_ms"),
    *(
        (f"{semantics} on Spark over the engine alone", at_least(0.4, 2),
         _of("spark_states", "earshot", semantics), "share_of_engine")
        for semantics in ("topk", "moving")
    ),
    ("memory of a worker that opens the index", at_most(None, 3, " of its size"),
     _of("spark_memory", "worker 0"), "copied_share"),
    *(
        (f"8 shards, {data}: {what}", at_most(wanted, 2, " x"),
         _of("placement", "plan", data, n_shards=8), name)
        for data in ("headline", "nsw", "boston")
        for what, wanted, name in (
            ("candidates over one index", 1.3, "candidates_to_whole"),
            ("busiest over the mean", 1.5, "balance_of_candidates"),
        )
    ),
)  # fmt: skip

OF_FIGURES: tuple[tuple[Any, ...], ...] = (
    *(
        (f"candidates of `{better.name}` over `{worse.name}`", at_most(1.0, 3, " x"),
         where(suite="rt_trees", **_tree(better)), _work("candidates"),
         beside(*PLACE, **_tree(worse)))
        for worse, better in pairwise(TREES)
    ),
    *(
        (f"order local over the best other, `{tree.name}`: {' + '.join(work)}",
         at_most(1.0, 3, " x"), where(suite="token_orders", **_tree(tree)), _work(*work),
         beside("competitor", *PLACE, token_order=tuple(
             order for order in TOKEN_ORDERS if order != tree.token_order)))
        for tree, work in zip(TREES[1:], (("candidates",), ("nodes", "candidates")), strict=True)
    ),
    (f"short message, `{BEST_TREE.name}`", at_most(SHORT_MESSAGE_MS, 3, " ms"),
     where(suite="rt_trees", workload=lambda name: "_short_" in name, **_tree(BEST_TREE)),
     lambda row: (1e3 / row["messages_per_s"], _place(row))),
    *(
        (f"size at 10 M, `{tree.name}`", at_most(size_gb, 2, " GB"),
         where(suite="rt_trees", **_tree(tree)), _tree_gb)
        for tree, size_gb in zip(TREES, TREE_SIZES_GB, strict=True)
    ),
    ("time of cost-based probing over the better probing", at_most(1.05, 3, " x"),
     where(suite="cikm15_probing", probing="cost"), _time_share, beside(*PLACE)),
    ("time of `lfilter` over the better of its parts", at_most(1.05, 3, " x"),
     where(suite="cikm15_parts", competitor=LFILTER.name), _time_share, beside(*PLACE)),
    *(
        (f"`lfilter` over `{rival}`: {group.replace('_', ' ')}", at_least(1.0, 2, " x"),
         where(suite="cikm15_rivals", competitor=LFILTER.name,
               workload=tuple(f"{data}_{group}" for data in RIVALS_DATA)),
         _ranked_lead, beside(*PLACE, competitor=rival))
        for rival in (BEST_TREE.name, "ir_tree")
        for group in GROUPS
    ),
    *(
        (f"size at 10 M, `{part.name}`", at_most(size_gb, 2, " GB"),
         where(suite="cikm15_parts", competitor=part.name), _tree_gb)
        for part, size_gb in zip(LFILTER_PARTS, LFILTER_SIZES_GB, strict=True)
    ),
    ("choices of `lfilter`: time over the better way", at_most(None, 3, " x"),
     where(suite="cikm15_choices"), "time_over_best"),
    *(
        (f"ranked default over the best other: {group.replace('_', ' ')}", at_least(1.0, 2, " x"),
         where(suite=("ranking_alpha", "ranking_threshold"), workload=f"tweets_{group}",
               competitor=default_structure("ranked")), _ranked_lead, beside(*PLACE))
        for group in GROUPS
    ),
)  # fmt: skip

OF_ADAPTIVE: tuple[tuple[Any, ...], ...] = (
    *(
        (f"AP-Tree over `{rival}`: {what}", at_least(1.0, 2, " x"),
         where(suite=suite, competitor="ap_tree"), _adaptive_lead,
         beside("suite", *ADAPTIVE_PLACE, competitor=rival))
        for rival in ("iq_tree", "rq_tree", "rt_plus_plus_tree")
        for what, suite in (("data kinds", "ap_rivals"), ("sizes of regions", "ap_regions"))
    ),
    ("AP-Tree (HR): time over dynamic programming", at_most(1.2, 2, " x"),
     where(suite="ap_variants", competitor="ap_tree dp"), _adaptive_lead,
     beside("suite", *ADAPTIVE_PLACE, competitor="ap_tree")),
    *(
        (f"AP-Tree (HR): build of {what} over its own", at_least(wanted, 1, " x"),
         where(suite=suite, competitor="ap_tree"), _build_lead,
         beside("suite", *ADAPTIVE_PLACE, competitor=f"ap_tree {rival}"))
        for what, wanted, suite, rival in (
            ("the paper's dynamic programming", 10.0, "ap_partitions", "plain dp"),
            ("our dynamic programming", None, "ap_variants", "dp"),
        )
    ),
    *(
        (f"AP-Tree over `{variant}`", at_least(1.0, 2, " x"),
         where(suite="ap_variants", competitor="ap_tree"), _adaptive_lead,
         beside("suite", *ADAPTIVE_PLACE, competitor=variant))
        for variant in ("ap_tree keywords first", "ap_tree space first", "trie_quadtree")
    ),
    ("AP-Tree over itself without rebuilds, 20 % built", at_least(1.0, 2, " x"),
     where(suite="ap_maintenance", competitor="ap_tree", built_share=0.2), _adaptive_lead,
     beside("suite", *ADAPTIVE_PLACE, competitor="ap_tree no rebuilds")),
    ("AP-Tree, one inserted subscription", at_most(120.0, 1, " µs"),
     where(suite="ap_maintenance", competitor="ap_tree"), "insert_us"),
    ("AP-Tree, one tweet at 20 M", at_most(0.4, 3, " ms"),
     where(suite="ap_growth", competitor="ap_tree", workload="ap_tweets"),
     lambda row: 1e3 / row["messages_per_s"]),
)  # fmt: skip

OF_TOPK: tuple[tuple[Any, ...], ...] = (
    *(
        (f"{what}: {data}", wish, where(suite=suite, competitor=METHOD, workload=data), value, over)
        for what, wish, suite, value, over in (
            ("arrival over CIQ", at_least(10.0, 1, " x"), "topk_dissemination", _arrival_lead,
             beside("workload", dissemination="ciq")),
            ("expiry of cSkyband over the better of tuned kmax and Skyband",
             at_least(4.0, 1, " x"), REEVALUATION, _expiry_lead, _tuned),
            ("buffers of cSkyband over the smaller of these", at_most(1.0, 2, " x"), REEVALUATION,
             _buffer_share, _tuned),
        )
        for data in TOPK_WORKLOADS
    ),
    ("top-k, messages/s", at_least(1_000.0, 0),
     where(suite=("topk_dissemination", "topk_reevaluation"), competitor=METHOD,
           workload=MAIN_DATA),
     lambda row: (row["messages_per_s"], f"window {row['window']:,}, "
                  f"{row['changes_per_message']:,.1f} changes per message")),
    (f"cost of a message with {GROWTH} times the subscriptions", at_most(float(GROWTH), 2, " x"),
     where(suite="topk_subscriptions", competitor=METHOD), _cost_growth, _a_fifth),
)  # fmt: skip

OF_MOVING: tuple[tuple[Any, ...], ...] = (
    *(
        (f"moving, {what}/s with ends among moves, 1 M x 1 M", at_least(least, 0),
         where(suite="moving_rates", n_subscriptions=1_000_000, batch_size=20_000),
         lambda row, field=f"{what}_per_s": (
             row[field], f"{row['ends_per_move']:.2f} ends per move, calls of 20,000"))
        for what, least in (("moves", 200_000.0), ("messages", 20_000.0))
    ),
    *(
        (f"default over the best other, {what}: {name.partition('_')[2]}", at_least(1.0, 2, " x"),
         where(suite=name, competitor=MOVING_DEFAULT), _moving_lead(field, what),
         beside(*MOVING_PLACE))
        for what, field in (("a move", "move_us"), ("a message", "message_us"))
        for name in MOVING_SUITES
    ),
    *(
        (f"AP+-Tree over `{rival}`, a move", at_least(1.0, 2, " x"),
         where(suite=MOVING_SUITES, competitor=AP_PLUS[0]), _moving_lead("move_us", "a move"),
         beside(*MOVING_PLACE, competitor=rival))
        for rival in ("iq_plus", "rq_plus", "ss_index", "kk_index")
    ),
    *(
        (f"AP+-Tree over `{variant}`, a move", at_least(5.0, 1, " x"),
         where(suite="moving_variants", competitor=AP_PLUS[0]), _moving_lead("move_us", "a move"),
         beside(*MOVING_PLACE, competitor=variant))
        for variant in AP_PLUS[1:]
    ),
    *(
        (f"reports saved by safe regions, {what}", at_least(5.0, 1, " x"),
         where(suite=suite, competitor=f"{MOVING_DEFAULT}_safe"), _reports_saved,
         beside(*MOVING_PLACE, competitor=MOVING_DEFAULT))
        for what, suite in (("by clients", "moving_safe"), ("by arrivals", "moving_safe_arrivals"))
    ),
    *(
        (f"time of `{name}_safe` over `{name}`", at_most(3.0, 2, " x"),
         where(suite=("moving_safe", "moving_safe_arrivals"), competitor=f"{name}_safe"),
         lambda row, other: row["ms_per_timestamp"] / max(other["ms_per_timestamp"], 1e-9),
         beside(*MOVING_PLACE, competitor=name))
        for name in (MOVING_DEFAULT, AP_PLUS[0])
    ),
    ("memory of a subscription", at_most(None, 0, " B"),
     where(suite=MOVING_SUITES, competitor=MOVING_DEFAULT),
     lambda row: row["subscription_bytes"] + row["structure_bytes"]),
    ("memory of a live message, without the structure", at_most(None, 0, " B"),
     where(suite=MOVING_SUITES, competitor=MOVING_DEFAULT), "message_bytes"),
)  # fmt: skip

TARGETS: tuple[Target, ...] = tuple(
    Target(section, *target)
    for section, targets in zip(
        SECTIONS, (OF_THE_INDEX, OF_FIGURES, OF_ADAPTIVE, OF_TOPK, OF_MOVING), strict=True
    )
    for target in targets
)
"""In the order of the report."""
