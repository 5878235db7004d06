"""Suites that redraw the figures of [KDD13] section 6 and [TKDE15] section 7.

Both papers ask the same question of each index: the mean time per message, in four groups of
messages (short and long, points and ranges), over the number of tokens of a message. A point of a
figure is therefore a group and a number of tokens, and one index answers all points of a data set
before the next is built. What was measured is kept for the suites that show it again, and the
trees for the suite that changes them; no other index stays in memory.

Answers of all indexes to a point are compared by checksums, as in :mod:`earshot.bench.measuring`.
A slow index answers fewer messages. As the cost of messages differs widely, each row also tells
nodes, candidates and milliseconds of the first 8, 32, 128, … messages: see :func:`shared_prefix`.

An index that is not registered is left out, and said so.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from earshot.bench.checksums import check_agreement, prefix_lengths
from earshot.bench.competitors import IndexCompetitor
from earshot.bench.context import Context, peak_memory
from earshot.bench.measuring import (
    Case,
    Contender,
    Effort,
    Row,
    elapsed_s,
    first_pass,
    row_of,
    time_in_turns,
)
from earshot.indexes import default_structure, index_type, structures_of
from earshot.indexes.answers import Counters, Matches
from earshot.indexes.contract import Index
from earshot.model.arrays import ClauseArrays, MessageArrays, Space, take_clauses
from earshot.workloads.synthetic import Workload

GROUPS = ("short_point", "long_point", "short_range", "long_range")
MESSAGE_TOKENS = {"short": (6, 10, 15, 20), "long": (100, 250, 500, 1_000)}
"""Numbers of tokens of a message, by the first word of the group."""

ORDERS = ("random", "df", "idf", "local")
ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.9)
THRESHOLDS = (0.3, 0.45, 0.6, 0.75, 0.9)
ALPHA, THRESHOLD = 0.5, 0.6
"""The one of the two that stands still while the other varies."""


class Variant(NamedTuple):
    """An index, and the order of its tokens if it has the choice."""

    name: str
    token_order: str | None = None

    @property
    def label(self) -> str:
        """Name in messages."""
        return self.name if self.token_order is None else f"{self.name} {self.token_order}"


TREES = (
    Variant("rt_tree"),
    Variant("rt_plus_tree", "local"),
    Variant("rt_plus_plus_tree", "local"),
)
BEST_TREE = TREES[-1]
CHANGED = (*TREES, Variant(default_structure("boolean")))
"""Who takes part in the suite ``rt_updates``."""
OTHERS = tuple(Variant(name) for name in ("keyword_first", "spatial_first", "ir_tree"))


class Point(NamedTuple):
    """What a figure has on its horizontal axis, in one of its four panels."""

    group: str
    n_tokens: int | None  # of every message; None for the group's own mixture


POINTS = tuple(
    Point(group, n_tokens)
    for group in GROUPS
    for n_tokens in MESSAGE_TOKENS[group.partition("_")[0]]
)
MIXTURES = tuple(Point(group, None) for group in GROUPS)


# ---- suites --------------------------------------------------------------------------------------


def token_orders_suite(context: Context) -> Iterator[Row]:
    """[KDD13] Fig. 6, [TKDE15] Fig. 7: four orders of tokens on R^t+ and on R^t++."""
    size = min(context.profile.n_subscriptions, context.profile.figures.most_ordered)
    orders = (Variant(tree.name, order) for tree in TREES[1:] for order in ORDERS)
    yield from _measured(context, "token_orders", "tweets", size, orders)


def rt_trees_suite(context: Context) -> Iterator[Row]:
    """[KDD13] Fig. 7, [TKDE15] Fig. 8 and Table 1: R^t, R^t+ and R^t++, and their sizes."""
    yield from _measured(context, "rt_trees", "tweets", context.profile.n_subscriptions, TREES)


def rt_rivals_suite(context: Context) -> Iterator[Row]:
    """[KDD13] Figs. 8 and 9, [TKDE15] Figs. 9 and 10: R^t++ against the others, and the default."""
    rivals = (BEST_TREE, *OTHERS, Variant(default_structure("boolean")))
    for data in ("tweets", "usa"):
        yield from _measured(context, "rt_rivals", data, context.profile.n_subscriptions, rivals)


def rt_growth_suite(context: Context) -> Iterator[Row]:
    """[KDD13] Fig. 10, [TKDE15] Fig. 11: R^t++ from few subscriptions to many."""
    for size in context.profile.sizes:
        yield from _measured(context, "rt_growth", "tweets", size, [BEST_TREE])


def ranking_alpha_suite(context: Context) -> Iterator[Row]:
    """[TKDE15] Fig. 13: ranked indexes over the weight of the place."""
    yield from _ranked(context, "ranking_alpha", [(alpha, THRESHOLD) for alpha in ALPHAS])


def ranking_threshold_suite(context: Context) -> Iterator[Row]:
    """[TKDE15] Fig. 14: ranked indexes over the least score that is delivered."""
    yield from _ranked(context, "ranking_threshold", [(ALPHA, least) for least in THRESHOLDS])


def _measured(
    context: Context, suite: str, data: str, size: int, variants: Iterable[Variant]
) -> Iterator[Row]:
    context.release()
    store = store_of(context)
    for variant in present(context, suite, variants):
        yield from store.rows_of(context, data, size, variant)


def present(context: Context, suite: str, variants: Iterable[Variant]) -> Iterator[Variant]:
    """Yield those that are registered and take part in this run."""
    for variant in variants:
        if variant.name not in structures_of("boolean"):
            context.say(f"{suite}: {variant.label} left out, there is no index of that name")
        elif variant.name not in context.competitors:
            context.say(f"{suite}: {variant.label} left out, it is not among the competitors")
        else:
            yield variant


# ---- what takes part -----------------------------------------------------------------------------


class Call(NamedTuple):
    """One batch that was answered."""

    counters: Counters
    elapsed_s: float


class FigureIndex(IndexCompetitor):
    """An index with chosen parameters; keeps account of its calls."""

    def __init__(self, name: str, index_type: type[Index], chosen: dict[str, Any]) -> None:
        super().__init__(index_type)
        self.name = name
        self.parameters = index_type.parameters_type(**chosen)
        self.calls: list[Call] = []

    def build(self, clauses: ClauseArrays, space: Space, n_tokens: int) -> None:
        """Build the index."""
        self.index = self.index_type.build(
            clauses, space=space, n_tokens=n_tokens, parameters=self.parameters
        )

    def match(self, messages: MessageArrays, n_threads: int = 1) -> Matches:
        """Return the answers to a batch."""
        began = time.perf_counter()
        found = super().match(messages, n_threads)
        self.calls.append(Call(found.counters, time.perf_counter() - began))
        return found


def variant_index(variant: Variant) -> FigureIndex:
    """Return a boolean index, to be built."""
    order = variant.token_order
    chosen = {} if order is None else {"token_order": order}
    return FigureIndex(variant.name, index_type(variant.name), chosen)


def _ranked(context: Context, suite: str, settings: Iterable[tuple[float, float]]) -> Iterator[Row]:
    context.release()
    names = [name for name in structures_of("ranked") if name != "linear_scan"]
    if not names:
        context.say(f"{suite}: skipped, there is no ranked index but linear_scan")
        return
    size = min(context.profile.n_subscriptions, context.profile.figures.most_ranked)
    store = store_of(context)
    for alpha, threshold in settings:
        for name in names:
            yield from store.ranked_rows(context, size, name, alpha, threshold)


# ---- measuring -----------------------------------------------------------------------------------


@dataclass
class Store:
    """What the suites of one run keep for each other."""

    clauses: dict[str, ClauseArrays] = field(default_factory=dict)  # of the last size, by data set
    messages: dict[tuple[str, Point], MessageArrays] = field(default_factory=dict)
    trees: dict[tuple[int, Variant], Contender] = field(default_factory=dict)  # of ``CHANGED``
    rows: dict[tuple[Any, ...], list[Row]] = field(default_factory=dict)
    checksums: dict[tuple[Any, ...], dict[str, dict[int, int]]] = field(default_factory=dict)
    warm: set[Any] = field(default_factory=set)

    def rows_of(self, context: Context, data: str, size: int, variant: Variant) -> list[Row]:
        """Return the rows of one index at all points, measured when first asked for."""
        key = (data, size, variant)
        if key not in self.rows:
            contender = self.built(context, data, size, variant)
            told = {"token_order": variant.token_order}
            self.rows[key] = [
                self._row(context, data, size, point, contender, variant.label, told)
                for point in POINTS
            ]
            context.say(f"{data}, {size:,}: {variant.label} measured; {peak_memory()}")
            if data != "tweets" or variant not in CHANGED or size < context.profile.n_subscriptions:
                contender.competitor.close()
            else:
                self.trees[size, variant] = contender
        return self.rows[key]

    def built(self, context: Context, data: str, size: int, variant: Variant) -> Contender:
        """Return an index, either kept from another suite or built now."""
        if data == "tweets" and (size, variant) in self.trees:
            return self.trees[size, variant]
        return self._build(context, data, size, variant_index(variant), variant)

    def ranked_rows(
        self, context: Context, size: int, name: str, alpha: float, threshold: float
    ) -> list[Row]:
        """Return the rows of one ranked index in all groups, measured when first asked for."""
        key = ("ranked", size, name, alpha, threshold)
        if key not in self.rows:
            told = {"alpha": alpha, "threshold": threshold}
            competitor = FigureIndex(name, index_type(name, "ranked"), told)
            contender = self._build(context, "tweets", size, competitor, ("ranked", name))
            self.rows[key] = [
                self._row(context, "tweets", size, point, contender, name, told)
                for point in MIXTURES
            ]
            context.say(f"alpha {alpha}, threshold {threshold}: {name} measured")
            competitor.close()
        return self.rows[key]

    def case(self, context: Context, data: str, size: int, point: Point) -> Case:
        """Return the subscriptions of a data set, and the messages of a point."""
        workload = point_workload(context, data, point).scaled(size)
        clauses = self.clauses.get(data)
        if clauses is None or len(clauses.subscriptions) != size:
            self.clauses.pop(data, None)
            clauses = self.clauses[data] = workload.subscriptions()
        if (data, point) not in self.messages:
            self.messages[data, point] = workload.messages()
        messages = self.messages[data, point]
        return Case(workload.name, clauses, messages, workload.space, workload.n_tokens)

    def _build(
        self,
        context: Context,
        data: str,
        size: int,
        competitor: FigureIndex,
        kernels: Any,
    ) -> Contender:
        case = self.case(context, data, size, MIXTURES[0])
        contender = Contender(competitor)
        if kernels not in self.warm:
            contender.compile_s = elapsed_s(partial(_warm_up, competitor, case))
            self.warm.add(kernels)
        contender.build_s = elapsed_s(competitor.build, case.clauses, case.space, case.n_tokens)
        context.say(f"{data}, {size:,}: {competitor.name} built in {contender.build_s:.1f} s")
        return contender

    def _row(
        self,
        context: Context,
        data: str,
        size: int,
        point: Point,
        contender: Contender,
        label: str,
        told: Row,
    ) -> Row:
        case = self.case(context, data, size, point)
        row = measure_point(case, contender, context.profile.figures.effort)
        # Answers depend on the ranking, not on the order of an index's tokens.
        key = (data, size, point, told.get("alpha"), told.get("threshold"))
        self.checksums.setdefault(key, {})[label] = contender.checksums
        check_agreement(f"{case.name}, {point.n_tokens or 'mixed'} tokens", self.checksums[key])
        return row | told | {"message_tokens": point.n_tokens}


def store_of(context: Context) -> Store:
    """Return the store of a run, which its suites share."""
    store: Store = context.shared.setdefault("figures", Store())
    return store


def point_workload(context: Context, data: str, point: Point) -> Workload:
    """Return the workload of a point, with as many messages as the profile wants."""
    workload = context.workload(f"{data}_{point.group}")
    figures = context.profile.figures
    wanted = figures.n_short if point.group.startswith("short") else figures.n_long
    workload = workload.scaled(n_messages=min(wanted, workload.n_messages))
    if point.n_tokens is None:
        return workload
    return replace(workload, tokens_min=point.n_tokens, tokens_max=point.n_tokens)


def measure_point(case: Case, contender: Contender, effort: Effort) -> Row:
    """Answer the messages within the budget, time them again if they kept it, return a row."""
    competitor: Any = contender.competitor
    contender.checksums, contender.elapsed_s = {}, []
    competitor.calls.clear()
    first_pass(contender, case.messages, effort.budget_s)
    prefixes = _prefixes(len(case.messages.boxes), competitor.calls)
    spent_s = sum(call.elapsed_s for call in competitor.calls)
    if spent_s > effort.budget_s:
        contender.elapsed_s = [spent_s]  # even the fewest messages took too long for a second pass
    else:
        time_in_turns(case, [contender], effort)
    competitor.calls.clear()
    return row_of(case, contender) | {"prefixes": prefixes}


def _prefixes(n_messages: int, calls: list[Call]) -> dict[str, Row]:
    """Return nodes, candidates and milliseconds of the first 8, 32, 128, … messages, of each."""
    told, nodes, candidates, spent_s = {}, 0, 0, 0.0
    for length, call in zip(prefix_lengths(n_messages), calls, strict=False):
        nodes += call.counters.nodes
        candidates += call.counters.candidates
        spent_s += call.elapsed_s
        n = max(length, 1)
        told[str(length)] = {
            "nodes": nodes / n,
            "candidates": candidates / n,
            "ms": 1e3 * spent_s / n,
        }
    return told


def shared_prefix(rows: Iterable[Row]) -> str | None:
    """Return the longest prefix of the messages that all rows have the same answers to."""
    rows = list(rows)
    shared: set[str] = set.intersection(*(set(row["prefixes"]) for row in rows)) if rows else set()
    for length in sorted(shared, key=int, reverse=True):
        if len({row["checksums"][length] for row in rows}) == 1:
            return length
    return None


def _warm_up(competitor: FigureIndex, case: Case) -> None:
    """Build and match a few rows of the same types, so that nothing is compiled while timed."""
    few = np.arange(min(1_000, len(case.clauses.subscriptions)))
    clauses = take_clauses(case.clauses, few)
    competitor.build(clauses, case.space, case.n_tokens)
    competitor.match(case.messages)
    competitor.close()
