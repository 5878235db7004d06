"""What is measured: a table of suites, each with its plan, its procedure, its table and its figure.

A suite is data. Its plan says which workloads or trials of the run's profile are measured, in which
order; its procedure yields a row of results for each; columns and plot say how a report shows them.
Structures are taken from the registries, except where a figure of a paper is about certain ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any

from earshot.bench import (
    adaptive,
    batch_sizes,
    batch_ways,
    choices,
    churn,
    many,
    matching,
    moving,
    moving_rates,
    operations,
    placement,
    points,
    topk,
)
from earshot.bench.context import Context
from earshot.bench.plots import Measure, Plot, Rows, by_field
from earshot.bench.points import (
    BEST_TREE,
    GROUPS,
    LFILTER,
    LFILTER_PARTS,
    MIXTURES,
    PROBINGS,
    TOKEN_ORDERS,
    TREES,
    Variant,
)
from earshot.bench.results import Column, Row, lead
from earshot.bench.topk import GROUP_RULES, Method, default_method, disseminations
from earshot.indexes import default_structure, structures_of
from earshot.semantics.topk.igpt import ALL_RULES, Igpt
from earshot.semantics.topk.reevaluation import Kmax, Reevaluation, Skyband
from earshot.workloads.synthetic import REGION_AREAS, Workload
from earshot.workloads.topk import find_topk_workload

Procedure = Callable[[Context, Iterable[Any]], Iterator[Row]]


@dataclass(frozen=True)
class Suite:
    """One question, and how it is answered."""

    name: str
    measure: Procedure | str  # yields the rows; ``module:name`` where it needs PySpark
    plan: Callable[[Context], Iterable[Any]]  # what is measured in a run, in this order
    columns: tuple[Column, ...] = ()  # of the table; none where it shows the points of the plot
    plot: Plot | None = None
    is_ranked: bool = False  # whether competitors are told in the order of their rates

    def rows(self, context: Context) -> Iterator[Row]:
        """Measure in a run; say so where there is nothing to measure."""
        why = ""
        if self.name.startswith(context.profile.without):
            why = f"it is not part of the profile {context.profile.name}"
        elif isinstance(self.measure, str) and find_spec("pyspark") is None:
            why = "PySpark is not installed: pip install 'earshot[spark]'"
        else:
            why = "there is nothing to measure"
            named = self.measure
            procedure = resolve_name(named) if isinstance(named, str) else named
            for row in procedure(context, self.plan(context)):
                why = ""
                yield row
        if why:
            context.say(f"{self.name}: skipped, {why}")


# ---- plans ---------------------------------------------------------------------------------------

ORACLE = "linear_scan"
"""Looks at everything; where many points are measured, it would take too long."""

ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.9)
THRESHOLDS = (0.3, 0.45, 0.6, 0.75, 0.9)
ALPHA, THRESHOLD = 0.5, 0.6
"""The one of the two that stands still while the other varies."""

RIVALS_DATA = ("tweets", "usa")
RIVALS = (BEST_TREE, *map(Variant, ("keyword_first", "spatial_first", "ir_tree")),
          Variant(default_structure("boolean")))  # fmt: skip

LFILTER_RIVALS = (LFILTER, BEST_TREE, Variant("ir_tree"), Variant(default_structure("boolean")))

MAIN_DATA = "tweets"
"""The data set of most figures of [PVLDB16]."""

GROUP_COUNTS = (5, 10, 20, 30, 40)
KEYWORDS = (1, 2, 3, 4, 5)
KS = (10, 20, 30, 40, 50, 60)
TUNED_KMAX = Kmax(3.0)
"""What the paper found best in Fig. 6: 60 messages for k = 20."""

AP_FANOUTS, AP_LISTS = (50, 100, 200, 400, 800), (5, 10, 20, 40, 100, 400)
AP_DIVERGENCES = (0.0001, 0.001, 0.01, 0.1, 0.5)
AP_BUILT_SHARES = (0.1, 0.2, 0.5, 0.9)
AP_EXPRESSED = (3, 4, 5, 6, 7)

AP_PLUS = ("ap_plus_tree", "ap_plus_k", "ap_plus_s")

WINDOW_DAYS = 120
"""Length of the window by time: the paper's four months."""


def _headline(context: Context) -> list[Workload]:
    return [context.workload("headline")]


def _points_and_words(context: Context) -> Iterator[Workload]:
    """Short and long messages, without an area."""
    for name in ("headline", "long_point"):
        yield context.workload(name)


def _match(context: Context) -> Iterator[Workload]:
    """The headline comes last, for the suites that go on with it."""
    for name in sorted(context.profile.workloads, key=lambda name: name == "headline"):
        yield context.workload(name)


def _trials(
    variants: Iterable[Variant],
    data: tuple[str, ...] = (points.DATA,),
    sizes: Callable[[Context], Iterable[int]] = lambda context: [context.profile.n_subscriptions],
) -> Callable[[Context], Iterator[points.Trial]]:
    def plan(context: Context) -> Iterator[points.Trial]:
        for name in data[: context.profile.figures.most_data]:
            for size in sizes(context):
                for variant in variants:
                    yield points.Trial(name, size, variant)

    return plan


def _ranked(settings: Callable[[], Iterable[tuple[float, float]]]) -> Any:
    def plan(context: Context) -> Iterator[points.Trial]:
        size = min(context.profile.n_subscriptions, context.profile.figures.most_ranked)
        for ranking in settings():
            for name in structures_of("ranked"):
                if name != ORACLE:
                    variant = Variant(name, ranking=ranking)
                    yield points.Trial(points.DATA, size, variant, MIXTURES)

    return plan


def _case(context: Context, data: str = MAIN_DATA) -> topk.Case:
    sizes = context.profile.topk
    workload = replace(find_topk_workload(data), seed=context.seed)
    n_aging = round(sizes.aging * sizes.window)
    return topk.Case(workload, sizes.n_subscriptions, sizes.window, sizes.n_arrivals, n_aging)


def _by_data(methods: Callable[[Context], Iterable[tuple[Method, Row]]], *data: str) -> Any:
    """Return a plan of methods on some data sets, or on every one."""
    return lambda context: (
        topk.Trial(_case(context, name), method, told)
        for name in data or context.profile.topk.datasets
        for method, told in methods(context)
    )


def _structures(_: Context) -> Iterator[tuple[Method, Row]]:
    for dissemination in disseminations():
        yield default_method()._replace(dissemination=dissemination), {}


def _group_counts(_: Context) -> Iterator[tuple[Method, Row]]:
    for n in GROUP_COUNTS:
        yield default_method()._replace(dissemination=Igpt(n_groups=n)), {"n_groups": n}


def _rules(_: Context) -> Iterator[tuple[Method, Row]]:
    """IGPT with all rules, with those for single subscriptions only, without one each."""
    choices = {"all": ALL_RULES, "individual": ALL_RULES - set(GROUP_RULES)}
    choices |= {f"without {rule}": ALL_RULES - {rule} for rule in sorted(ALL_RULES)}
    for name, rules in choices.items():
        yield default_method()._replace(dissemination=Igpt(rules=frozenset(rules))), {"rules": name}


def _factors(kmax: str, skyband: str, context: Context) -> Iterator[tuple[Method, Row]]:
    """The default, and both baselines with the factors that two fields of the profile have."""
    sizes = context.profile.topk
    yield default_method(), {"factor": None}
    baselines: list[tuple[type[Kmax | Skyband], str]] = [(Kmax, kmax), (Skyband, skyband)]
    for baseline, field in baselines:
        for factor in getattr(sizes, field):
            reevaluation: Reevaluation = baseline(factor)
            yield default_method()._replace(reevaluation=reevaluation), {"factor": factor}


def _varied(
    name: str, values: Callable[[Context], Iterable[Any]], change: Callable[[topk.Case, Any], Any]
) -> Callable[[Context], Iterator[topk.Trial]]:
    """Return a plan of the default, of the paper's Skype and of its best rival over some values."""

    def plan(context: Context) -> Iterator[topk.Trial]:
        for value in values(context):
            case = change(_case(context), value)
            for each in disseminations():
                method = default_method()._replace(dissemination=each)
                if each.name == "ciq":
                    if case.n_subscriptions > context.profile.topk.most_ciq:
                        continue
                    method = method._replace(reevaluation=TUNED_KMAX)
                yield topk.Trial(case, method, {name: value})

    return plan


def _by_time(case: topk.Case, k: int) -> topk.Case:
    drawn = case.drawn(messages_per_day=case.window / WINDOW_DAYS, k=k)
    return replace(drawn, is_by_time=True)


# ---- columns -------------------------------------------------------------------------------------


def _rate(row: Row) -> str | None:
    if "messages_per_s" not in row:
        return None
    return f"{row['messages_per_s']:,.0f} ± {row['messages_per_s_std']:,.0f}"


RATE = Column("messages/s", _rate)
LEAD = Column("default is faster by", lambda row: None if (ratio := lead(row)) is None
              else f"{ratio:,.1f} x")  # fmt: skip
WORKLOAD, COMPETITOR = Column("workload", "workload"), Column("competitor", "competitor")
MESSAGES, CHECKSUM = Column("messages", "n_messages"), Column("checksum", "checksum")
ANSWERS, BUILD = Column("answers/s", "answers_per_s"), Column("build s", "build_s", 2)

HEADLINE_COLUMNS = (
    COMPETITOR, RATE, LEAD, Column("p50 µs", "latency_us.p50"), Column("p99 µs", "latency_us.p99"),
    BUILD, Column("open ms", "open_s", 1, 1e3),
    Column("index B/subscription", "index_bytes_per_subscription", 1),
)  # fmt: skip

MATCH_COLUMNS = (
    WORKLOAD, *HEADLINE_COLUMNS[:3], ANSWERS, MESSAGES, *HEADLINE_COLUMNS[3:],
    Column("stored B/subscription", "stored_bytes_per_subscription", 1),
    Column("candidates/message", "counters_per_message.candidates"),
    Column("nodes/message", "counters_per_message.nodes"), CHECKSUM,
)  # fmt: skip

TOPK_COLUMNS = (
    Column("data", "workload"), Column("method", "competitor"),
    Column("subscriptions", "n_subscriptions"), Column("window", "window"), Column("k", "k"),
    Column("keywords", lambda row: "-".join(str(n) for n in dict.fromkeys(row["keywords"]))),
    Column("keywords from", "keywords_from"), Column("arrival µs", "amp_us", 1),
    Column("expiry µs", "emp_us", 1), RATE, Column("buffer", "mean_buffer", 1),
    Column("changes/message", "changes_per_message", 1),
    Column("groups/message", "counters_per_message.groups", 1),
    Column("postings/message", "counters_per_message.postings", 1),
    Column("candidates/message", "counters_per_message.candidates", 1),
    Column("re-evaluations/message", "counters_per_message.reevaluations", 3),
    Column("structure B/subscription", "structure_bytes_per_subscription", 1),
    Column("buffers B/subscription", "buffers_bytes_per_subscription", 1),
    Column("B/message", "bytes_per_message", 1), MESSAGES, Column("fill s", "setup_s", 1), BUILD,
    CHECKSUM,
)  # fmt: skip

WAYS_COLUMNS = (
    WORKLOAD, Column("tokens", "message_tokens"), Column("subscriptions", "n_subscriptions"),
    Column("messages a call", "batch_size"), Column("single µs", "single_us", 2),
    Column("trie µs", "trie_us", 2), Column("groups µs", "groups_us", 2),
    Column("chosen µs", "chosen_us", 2), Column("over single", "over_single", 2),
    Column("best", "best_way"), Column("chosen over best", "chosen_over_best", 2),
    Column("instructions", "instructions"),
    Column("index B/subscription", "index_bytes_per_subscription", 1), CHECKSUM,
)  # fmt: skip

ADAPTIVE_COLUMNS = (
    WORKLOAD, COMPETITOR, Column("subscriptions", "n_subscriptions"),
    Column("fan-out", "fanout"), Column("list", "max_list"), Column("keywords", "n_keywords"),
    Column("region", lambda row: None if (area := row.get("region_area")) is None
           else f"{area:.0e}"),
    Column("θ_KL", "max_divergence", None), Column("built", "built_share", None),
    Column("µs per message", lambda row: f"{1e6 / row['messages_per_s']:,.2f}"),
    Column("answers", "answers_per_message", None),
    Column("candidates", "counters_per_message.candidates", None),
    Column("nodes", "counters_per_message.nodes", None), MESSAGES, Column("build s", "build_s", 2),
    Column("insert µs", "insert_us", 1),
    Column("index B/subscription", "index_bytes_per_subscription", 1), CHECKSUM,
)  # fmt: skip

MOVING_COLUMNS = (
    Column("data", "workload"), COMPETITOR, Column("subscriptions", "n_subscriptions"),
    Column("messages", "n_live"), Column("mobility", "mobility", None),
    Column("velocity", "velocity", None),
    Column("region", lambda row: f"{row['region_area']:.0e}"),
    Column("arrivals", "arrivals"), Column("move µs", "move_us", 2),
    Column("message µs", "message_us", 2), Column("end µs", "end_us", 2),
    Column("insert µs", "insert_us", 2), Column("follow µs", "follow_us", 2),
    Column("changes/move", "changes_per_move", None),
    Column("changes/message", "changes_per_message", None),
    Column("candidates/move", "candidates_per_move", None),
    Column("candidates/message", "candidates_per_message", None),
    Column("timestamps", "n_steps"), Column("reports/timestamp", "reports_per_timestamp"),
    Column("regions sent/timestamp", "regions_sent_per_timestamp"),
    Column("ms/timestamp", "ms_per_timestamp", 1), Column("build s", "build_s", 2),
    Column("structure B/subscription", "structure_bytes", 1),
    Column("B/subscription", "subscription_bytes", 1), Column("B/message", "message_bytes", 1),
    CHECKSUM,
)  # fmt: skip

POINT_FACTS = (
    Column("answers", "answers_per_message", None),
    Column("candidates", "counters_per_message.candidates", None),
    Column("nodes", "counters_per_message.nodes", None), MESSAGES,
    Column("insert µs", "insert_us"), Column("remove µs", "remove_us"),
    Column("match µs", "match_us"), Column("first change s", "first_change_s", 2),
    Column("build s", "build_s", 1),
    Column("index B/subscription", "index_bytes_per_subscription", 1),
)  # fmt: skip
"""Of the rightmost point of a line; sizes are those of the index, without the subscriptions."""

# ---- plots ---------------------------------------------------------------------------------------

MESSAGE_RATE = Measure("messages/s", "messages_per_s")
MESSAGE_TIME = Measure("ms per message", lambda row: 1e3 / float(row["messages_per_s"]))
OPERATION_RATE = Measure("operations/s", "operations_per_s")
ARRIVAL = Measure("µs per message", "amp_us", "arrival")
EXPIRY = Measure("µs per message", "emp_us", "expiry")
TOTAL = Measure("µs per message", "total_us", "arrival and expiry")
BUFFER = Measure("messages per subscription", "mean_buffer", "buffers")
MEMORY = Measure(
    "bytes per subscription",
    lambda row: float(
        row["subscriptions_bytes_per_subscription"] + row["structure_bytes_per_subscription"]
    ),
    "subscription index",
)
BOTH = (ARRIVAL, EXPIRY, TOTAL)
MATCHING = Measure("ms per message", lambda row: 1e3 / float(row["messages_per_s"]), "matching")
BUILDING = Measure("seconds", "build_s", "building")
SIZE = Measure("bytes per subscription", "index_bytes_per_subscription", "size")
MOVE, ARRIVE = Measure("µs per move", "move_us", "a move"), Measure("µs per message", "message_us",
                                                                   "a message")  # fmt: skip
INSERT, FOLLOW = Measure("µs per message", "insert_us", "inserting a message"), Measure(
    "µs per move", "follow_us", "following a subscriber")  # fmt: skip
PROCESSING = Measure("ms per timestamp", "ms_per_timestamp", "processing")
REPORTS = Measure("reports per timestamp", "reports_per_timestamp", "reports")
MOVES = Measure("ms per timestamp", "moves_ms_per_timestamp", "all moves")
STRUCTURE = Measure("MB", "structure_megabytes", "size of the structure")
INSERTING = Measure("µs per subscription", "insert_us", "inserting")


def _groups(rows: Rows) -> dict[str, Rows]:
    """Return the rows of each group of messages."""
    return {group.replace("_", " "): [row for row in rows if row["workload"].endswith(group)]
            for group in GROUPS}  # fmt: skip


def _datasets(rows: Rows) -> dict[str, Rows]:
    return {name: [row for row in rows if row["workload"].startswith(f"{name}_")]
            for name in RIVALS_DATA}  # fmt: skip


def _baselines(rows: Rows) -> dict[str, Rows]:
    """Return the rows of each baseline, with our own as a level line."""
    ours = [row for row in rows if row["factor"] is None]
    theirs = [row for row in rows if row["factor"] is not None]
    return {name: found + ours for name, found in by_field("reevaluation")(theirs).items()}


# ---- the table -----------------------------------------------------------------------------------


def _points(
    name: str, plan: Any, title: str, x: str = "message_tokens",
    x_label: str = "tokens of a message", measure: Measure = MESSAGE_TIME,
    procedure: Procedure = points.measure, **more: Any,
) -> Suite:  # fmt: skip
    more = {"all_sizes": False} | more
    plot = Plot(title, x, x_label, (measure,), panels=_groups, facts=POINT_FACTS, **more)
    return Suite(name, procedure, plan, plot=plot)


def _topk(
    name: str, plan: Any, title: str, x: str, x_label: str, measures: Any, **more: Any
) -> Any:
    plot = Plot(title, x, x_label, measures, **more)
    return Suite(name, topk.measure, plan, TOPK_COLUMNS, plot)


def _adaptive(
    name: str, plan: Any, title: str, x: str, x_label: str, *measures: Measure, **more: Any
) -> Suite:
    more = {"panels": by_field("workload")} | more
    plot = Plot(title, x, x_label, measures or (MATCHING,), **more)
    return Suite(name, adaptive.measure, plan, ADAPTIVE_COLUMNS, plot)


def _of_each(field: str) -> Callable[[Row], float]:
    """Return what gives a field of a row by subscription."""
    return lambda row: row[field] / max(row["n_subscriptions"], 1)


def _moving(
    name: str, plan: Any, title: str, x: str, x_label: str, *measures: Measure, **more: Any
) -> Suite:
    procedure = more.pop("procedure", moving.measure)
    plot = Plot(title, x, x_label, measures, **{"panels": by_field("workload")} | more)
    return Suite(name, procedure, plan, MOVING_COLUMNS, plot)


def _spark(name: str, module: str, *columns: Column) -> Suite:
    # Threads, files and processes are Spark's: what is measured is the headline.
    measure = f"earshot.bench.{module}:measure_{name.partition('_')[2]}"
    return Suite(name, measure, _headline, (WORKLOAD, COMPETITOR, *columns))


# In this order: each goes on with what the one before has built, where it can.
_ALL = (
    Suite("match", matching.measure, _match, MATCH_COLUMNS,
          Plot("All workloads", "workload", "", (MESSAGE_RATE,), all_sizes=False), is_ranked=True),
    Suite("threads", matching.measure_threads, _headline, (
        WORKLOAD, COMPETITOR, Column("threads", "n_threads"), RATE,
        Column("over one", "speedup", 2),
    )),
    Suite("batch_sizes", batch_sizes.measure, _headline, (
        WORKLOAD, COMPETITOR, Column("subscriptions", "n_subscriptions"),
        Column("messages a call", "batch_size"), RATE, ANSWERS,
        Column("default is faster by", lead, 1), CHECKSUM,
    )),
    Suite("batch_ways", batch_ways.measure, _match, WAYS_COLUMNS),
    Suite("batch_ways_ranked", batch_ways.measure_ranked, _points_and_words, (
        WORKLOAD, Column("subscriptions", "n_subscriptions"),
        Column("threshold", "threshold", 1), Column("messages a call", "batch_size"),
        Column("single µs", "single_us", 2), Column("groups µs", "groups_us", 2),
        Column("chosen µs", "chosen_us", 2), Column("over single", "over_single", 2),
        Column("best", "best_way"), Column("chosen over best", "chosen_over_best", 2),
        Column("answers", "answers_per_message", 1),
        Column("index B/subscription", "index_bytes_per_subscription", 1), CHECKSUM,
    )),
    Suite("churn", churn.measure, _headline, (
        WORKLOAD, COMPETITOR, Column("changes per call", "changes_per_call"),
        Column("inserts/s", "inserts_per_s"), Column("removes/s", "removes_per_s"),
        Column("in flux %", "flux_share", 1, 100.0),
        Column("messages/s before", "before_messages_per_s"), Column("messages/s after", _rate),
        Column("slowdown", "slowdown", 3), Column("first change s", "first_change_s", 2),
        Column("merge s", "rebuild_s", 2), Column("publish µs", "publish_us.p50"),
        Column("subscribe µs", "subscribe_us.p50"), CHECKSUM,
    )),
    Suite("growth", matching.measure,
          lambda context: (context.workload("headline", size) for size in context.profile.sizes),
          (Column("subscriptions", "n_subscriptions"), *MATCH_COLUMNS[1:]),
          Plot("Growth", "n_subscriptions", "subscriptions", (MESSAGE_RATE,)), is_ranked=True),
    Suite("many", many.measure,
          lambda context: (context.workload("headline", size) for size in context.profile.many),
          (Column("subscriptions", "n_subscriptions"), Column("build s", "build_s", 0),
           Column("most GB while building", "build_peak_bytes", 1, 1e-9),
           *(Column(f"{part}, bytes each", _of_each(f"{name}_bytes"), 1)
             for part, name in many.PARTS.items()),
           Column("open s", "open_s", 1), Column("GB mapped", "mapped_bytes", 1, 1e-9),
           Column("messages/s", "messages_per_s"), ANSWERS,
           Column("ns per answer", "ns_per_answer", 1),
           Column("over the smallest", "over_smallest", 2),
           Column("first subscribe ms", "first_subscribe_s", 1, 1e3),
           Column("first unsubscribe ms", "first_unsubscribe_s", 1, 1e3),
           Column("MB that changes copy", "changed_bytes", 0, 1e-6), CHECKSUM)),
    Suite("text", matching.measure_text, _headline, (
        WORKLOAD, COMPETITOR, RATE, Column("MB/s", "megabytes_per_s"), Column("words", "n_words"),
        Column("new words/s", "grow_words_per_s"),
    )),
    Suite("real", matching.measure, matching.real_cases, MATCH_COLUMNS, is_ranked=True),
    Suite("command_line", matching.measure_command_line, _headline, (
        WORKLOAD, COMPETITOR, RATE, ANSWERS,
        Column("index alone, messages/s", "index_alone_messages_per_s"),
        Column("share", "share_of_index_rate", 2), BUILD, Column("load s", "load_s", 2),
    )),
    Suite("placement", placement.measure, placement.scenes, (
        WORKLOAD, COMPETITOR, Column("shards", "n_shards"),
        Column("candidates, of one index", "candidates_to_whole", 2),
        Column("shards per message", "shards_per_message", 2),
        Column("busiest: candidates", "balance_of_candidates", 2),
        Column("messages", "balance_of_messages", 2),
        Column("subscriptions", "balance_of_subscriptions", 2),
        Column("time", "balance_of_time", 2),
        Column("routing µs/message", "route_us_per_message", 1), Column("cut s", "cut_s", 1),
        CHECKSUM,
    )),
    # [KDD13] Fig. 6, [TKDE15] Fig. 7
    _points("token_orders",
            _trials([Variant(tree.name, order) for tree in TREES[1:] for order in TOKEN_ORDERS],
                    sizes=lambda context: [min(context.profile.n_subscriptions,
                                               context.profile.figures.most_ordered)]),
            "Orders of tokens", line="token_order", images=by_field("competitor")),
    # [KDD13] Fig. 7, [TKDE15] Fig. 8 and Table 1
    _points("rt_trees", _trials(TREES), "Three R^t trees"),
    # [KDD13] Figs. 8 and 9, [TKDE15] Figs. 9 and 10
    _points("rt_rivals", _trials(RIVALS, RIVALS_DATA), "R^t++ and others", images=_datasets),
    # [TKDE15] Fig. 12
    _points("rt_updates", lambda _: points.CHANGED, "10 % inserts, 10 % deletes",
            measure=OPERATION_RATE, procedure=operations.measure),
    # [KDD13] Fig. 10, [TKDE15] Fig. 11
    _points("rt_growth", _trials([BEST_TREE], sizes=lambda context: context.profile.sizes),
            "R^t++ over subscriptions", "n_subscriptions", "subscriptions", all_sizes=True,
            line=lambda row: f"{row['message_tokens']:,} tokens"),
    # [TKDE15] Figs. 13 and 14
    _points("ranking_alpha", _ranked(lambda: [(alpha, THRESHOLD) for alpha in ALPHAS]),
            "Ranked, by alpha", "alpha", "alpha"),
    _points("ranking_threshold", _ranked(lambda: [(ALPHA, least) for least in THRESHOLDS]),
            "Ranked, by threshold", "threshold", "threshold"),
    # [CIKM15] Figs. 7 to 11 and Table 1
    _points("cikm15_probing", _trials(PROBINGS, RIVALS_DATA), "Probings of the MBRTrie",
            line="probing", images=_datasets, procedure=points.measure_together),
    _points("cikm15_parts", _trials((*LFILTER_PARTS, LFILTER), RIVALS_DATA),
            "LFilter and its parts", images=_datasets, procedure=points.measure_together),
    _points("cikm15_rivals", _trials(LFILTER_RIVALS, RIVALS_DATA), "LFilter and others",
            images=_datasets, procedure=points.measure_together),
    _points("cikm15_growth",
            _trials([LFILTER], sizes=lambda context: context.profile.figures.lfilter_sizes),
            "LFilter over subscriptions", "n_subscriptions", "subscriptions", all_sizes=True,
            line=lambda row: f"{row['message_tokens']:,} tokens"),
    Suite("cikm15_choices", choices.measure, _trials([LFILTER], RIVALS_DATA), (
        WORKLOAD, Column("subscriptions", "n_subscriptions"), Column("tokens", "message_tokens"),
        MESSAGES, Column("by the trie %", "by_trie", 0, 100.0),
        Column("right %", "right", 0, 100.0), Column("time over the best", "time_over_best", 3),
        Column("trie µs", "trie_us", 1),
        Column("quadtree µs", "quadtree_us", 1), Column("chosen µs", "chosen_us", 1),
        Column("lists pruned %", "lists_pruned", 0, 100.0),
        Column("parts pruned %", "nodes_pruned", 0, 100.0),
    )),
    Suite("cikm15_ways", batch_ways.measure_points,
          _trials([Variant(default_structure("boolean"))], RIVALS_DATA), WAYS_COLUMNS),
    # [PVLDB16] Figs. 6 to 16
    _topk("topk_tuning", _by_data(partial(_factors, "tuning_kmax", "tuning_skyband"), MAIN_DATA),
          "Tuning of kmax and Skyband", "factor", "factor",
          (TOTAL, BUFFER), line="reevaluation", panels=_baselines),
    _topk("topk_groups", _by_data(_group_counts), "IGPT, number of groups", "n_groups", "groups",
          (ARRIVAL,), line="workload"),
    _topk("topk_pruning", _by_data(_rules), "IGPT, rules of pruning", "workload", "", (ARRIVAL,),
          line="rules"),
    _topk("topk_dissemination", _by_data(_structures), "How messages find subscriptions",
          "workload", "", (ARRIVAL, MEMORY)),
    _topk("topk_reevaluation", _by_data(partial(_factors, "kmax", "skyband")),
          "How results are kept full", "workload", "", (EXPIRY, BUFFER, TOTAL)),
    _topk("topk_keywords", _varied("n_keywords", lambda _: KEYWORDS, lambda case, n: case.drawn(
        keywords_min=n, keywords_max=n)), "Number of keywords", "n_keywords", "keywords", BOTH),
    _topk("topk_k", _varied("k", lambda _: KS, lambda case, k: case.drawn(k=k)),
          "Number of results", "k", "k", BOTH),
    _topk("topk_subscriptions",
          _varied("n_subscriptions", lambda context: context.profile.topk.sizes,
                  lambda case, n: replace(case, n_subscriptions=n)),
          "Number of subscriptions", "n_subscriptions", "subscriptions", BOTH),
    _topk("topk_window", _varied("window", lambda context: context.profile.topk.windows,
                                 lambda case, n: replace(case, window=n)),
          "Size of the window", "window", "messages", BOTH),
    _topk("topk_zipf", _varied("keywords_from", lambda _: ("messages", "zipf"),
                               lambda case, source: case.drawn(keywords_from=source)),
          "Where keywords are from", "keywords_from", "", BOTH),
    _topk("topk_time", _varied("k", lambda _: KS, _by_time), "Window by time", "k", "k", BOTH),
    # [VLDBJ15] Figs. 10 to 18
    _adaptive("ap_fanout", adaptive.over_parameter("fanout", AP_FANOUTS), "AP-Tree, fan-out",
              "fanout", "f", line="workload", panels=lambda rows: {"": rows}),
    _adaptive("ap_lists", adaptive.over_parameter("max_list", AP_LISTS), "AP-Tree, lists",
              "max_list", "theta_p", line="workload", panels=lambda rows: {"": rows}),
    _adaptive("ap_variants", adaptive.over_kinds(adaptive.VARIANTS, region_area_min=1e-5,
                                                 region_area_max=1e-5),
              "AP-Tree, variants", "workload", "", MATCHING, BUILDING,
              panels=lambda rows: {"": rows}),
    # The paper's dynamic programming takes time by the square of the keywords.
    _adaptive("ap_partitions",
              adaptive.over_kinds(adaptive.PARTITIONS,
                                  lambda context: context.profile.figures.n_partitioned,
                                  region_area_min=1e-5, region_area_max=1e-5),
              "AP-Tree, how keywords are cut", "workload", "", MATCHING, BUILDING,
              panels=lambda rows: {"": rows}),
    _adaptive("ap_rivals", adaptive.over_kinds(adaptive.RIVALS), "AP-Tree and others", "workload",
              "", MATCHING, BUILDING, SIZE, panels=lambda rows: {"": rows}),
    _adaptive("ap_keywords",
              adaptive.over_workload("n_keywords", ("keywords_min", "keywords_max"), KEYWORDS,
                                     adaptive.KINDS[:2]),
              "Number of keywords, AP-Tree", "n_keywords", "keywords"),
    _adaptive("ap_regions",
              adaptive.over_workload("region_area", ("region_area_min", "region_area_max"),
                                     REGION_AREAS, adaptive.KINDS),
              "Size of regions, AP-Tree", "region_area", "share of the space"),
    _adaptive("ap_growth", adaptive.over_sizes(), "Growth, AP-Tree", "n_subscriptions",
              "subscriptions"),
    _adaptive("ap_divergence", adaptive.over_divergence(AP_DIVERGENCES, 0.2),
              "AP-Tree, when to rebuild", "max_divergence", "theta_KL", MATCHING, INSERTING),
    _adaptive("ap_maintenance", adaptive.over_built_share(AP_BUILT_SHARES),
              "AP-Tree, built and inserted", "built_share", "share that is built", MATCHING,
              INSERTING),
    _adaptive("ap_expressions",
              adaptive.over_workload("n_keywords", ("keywords_min", "keywords_max"),
                                     AP_EXPRESSED, ("ap_tweets_expressed",)),
              "Boolean expressions, AP-Tree", "n_keywords", "keywords"),
    _adaptive("ap_expression_growth",
              adaptive.over_sizes("ap_tweets_expressed", keywords_min=5, keywords_max=5),
              "Growth of boolean expressions, AP-Tree", "n_subscriptions", "subscriptions"),
    # [VLDBJ15] Figs. 19 to 25
    _moving("moving_parts", moving.over_data(names=moving.DATA[:1]), "Moving, parts of the work",
            "workload", "", INSERT, FOLLOW, panels=lambda rows: {"": rows},
            procedure=moving.measure_parts),
    _moving("moving_variants", moving.over_data(AP_PLUS), "AP+-Tree, variants", "workload", "",
            ARRIVE, MOVE, panels=lambda rows: {"": rows}),
    _moving("moving_data", moving.over_data(), "Moving subscribers", "workload", "", ARRIVE, MOVE,
            STRUCTURE, panels=lambda rows: {"": rows}),
    _moving("moving_mobility", moving.over("mobility", moving.MOBILITIES), "Mobility", "mobility",
            "share that moves", MOVES),
    _moving("moving_velocity", moving.over("velocity", moving.VELOCITIES), "Velocity", "velocity",
            "times medium", MOVE),
    _moving("moving_regions", moving.over("area"), "Size of regions that move",
            "region_area", "share of the space", MOVE, ARRIVE),
    _moving("moving_growth", moving.over_sizes, "Growth of moving subscribers", "n_subscriptions",
            "subscriptions and messages", MOVE, ARRIVE),
    _moving("moving_arrivals", moving.over_arrivals, "Arrivals in a timestamp", "arrivals",
            "messages", MOVE, ARRIVE),
    Suite("moving_rates", moving_rates.measure, moving_rates.over_sizes, (
        WORKLOAD, Column("subscriptions", "n_subscriptions"), Column("messages", "n_live"),
        Column("in a call", "batch_size"), Column("moves/s", "moves_per_s"),
        Column("ends/move", "ends_per_move", 2), Column("changes/move", "changes_per_move", 2),
        Column("messages/s", "messages_per_s"), Column("B/subscription", "subscription_bytes", 1),
        Column("B/message", "message_bytes", 1),
        Column("structure B/subscription", "structure_bytes", 1), CHECKSUM,
    )),
    # [VLDBJ15] Figs. 26 and 27
    _moving("moving_safe", moving.over_clients, "Safe regions", "n_subscriptions", "subscriptions",
            PROCESSING, REPORTS, procedure=moving.measure_safe),
    _moving("moving_safe_arrivals", moving.over_clients_arrivals, "Safe regions over arrivals",
            "arrivals", "messages", PROCESSING, REPORTS, procedure=moving.measure_safe),
    # First, so that its workers are asked before any has done other work.
    _spark("spark_memory", "spark_memory",
           Column("index MB", "index_bytes", 0, 1e-6), Column("open ms", "open_s", 1, 1e3),
           Column("Rss MB", "rss_bytes", 0, 1e-6), Column("Pss MB", "pss_bytes", 0, 1e-6),
           Column("shared MB", "shared_bytes", 0, 1e-6),
           Column("private dirty MB", "private_dirty_bytes", 0, 1e-6),
           Column("before opening", "before_private_dirty_bytes", 0, 1e-6),
           Column("copied % of the index", "copied_share", 1, 100.0),
           CHECKSUM),
    _spark("spark_batch", "spark", RATE, ANSWERS,
           Column("of the engine", "share_of_engine", 2),
           Column("over Spark SQL", "over_spark_sql", 1), MESSAGES,
           Column("build s", "build_s", 1),
           CHECKSUM),
    _spark("spark_ranked", "spark_ranked", RATE, ANSWERS,
           Column("of the engine", "share_of_engine", 2), MESSAGES, CHECKSUM),
    _spark("spark_stream", "spark_stream", RATE, ANSWERS,
           Column("messages per batch", "messages_per_batch"),
           Column("small batch p50 ms", "small_batch_p50_ms"),
           Column("p90 ms", "small_batch_p90_ms"),
           CHECKSUM),
    _spark("spark_states", "spark_states", Column("events/s", "messages_per_s"),
           Column("updates per event", "answers_per_message", 1),
           Column("of the engine", "share_of_engine", 2), Column("shards", "n_shards"),
           Column("events per batch", "events_per_batch"), CHECKSUM),
)  # fmt: skip

SUITES: dict[str, Suite] = {suite.name: suite for suite in _ALL}
