"""Structures at the points of the figures of [KDD13] §6, [CIKM15] §6 and [TKDE15] §7.

The papers ask the same question of each index: the mean time per message, in four groups of
messages (short and long, points and ranges), over the number of tokens of a message. A point of a
figure is therefore a group and a number of tokens, and one index answers all points of a data set
before the next is built. What was measured is kept for the suites that show it again, and the
trees for the suite that changes them; no other index stays in memory.

Where a figure is about small differences, its structures are all built first and then measured in
turns (:func:`measure_together`).

A slow index answers fewer messages. As the cost of messages differs widely, each row also tells
nodes, candidates and milliseconds of the first 8, 32, 128, … messages. An index that is not
registered is left out, and said so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from earshot.bench.checksums import check_agreement
from earshot.bench.competitors import IndexCompetitor
from earshot.bench.context import Context, peak_memory
from earshot.bench.measuring import Case, Contender, first_pass, row_of, time_in_turns
from earshot.bench.results import Row
from earshot.indexes import default_structure, structures_of
from earshot.model.arrays import ClauseArrays, MessageArrays, take_messages
from earshot.workloads.synthetic import Workload

DATA = "tweets"
"""The data set of all figures but one."""

GROUPS = ("short_point", "long_point", "short_range", "long_range")
MESSAGE_TOKENS = {"short": (6, 10, 15, 20), "long": (100, 250, 500, 1_000)}
"""Numbers of tokens of a message, by the first word of the group."""

TOKEN_ORDERS = ("random", "df", "idf", "local")


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


class Variant(NamedTuple):
    """A structure with some of its parameters chosen."""

    name: str
    token_order: str | None = None
    ranking: tuple[float, float] | None = None  # alpha and threshold; None for boolean matching
    options: tuple[tuple[str, str], ...] = ()  # other parameters, by name

    @property
    def semantics(self) -> str:
        """What matching means."""
        return "boolean" if self.ranking is None else "ranked"

    @property
    def told(self) -> Row:
        """What rows tell of the choice."""
        if self.ranking is None:
            return {"token_order": self.token_order, **dict(self.options)}
        return dict(zip(("alpha", "threshold"), self.ranking, strict=True))

    @property
    def label(self) -> str:
        """Name in messages."""
        chosen = [value for _, value in self.options]
        return " ".join(filter(None, (self.name, self.token_order, *chosen)))

    def competitor(self) -> IndexCompetitor:
        """Return the structure, to be built."""
        chosen = {name: value for name, value in self.told.items() if value is not None}
        return IndexCompetitor(structures_of(self.semantics)[self.name], self.name, chosen)


TREES = (
    Variant("rt_tree"),
    Variant("rt_plus_tree", "local"),
    Variant("rt_plus_plus_tree", "local"),
)
BEST_TREE = TREES[-1]
PROBINGS = tuple(Variant("mbr_trie", options=(("probing", probing),))
                 for probing in ("token_set", "trie", "cost"))  # fmt: skip
LFILTER, LFILTER_PARTS = Variant("lfilter"), (Variant("mbr_trie"), Variant("pt_quadtree"))
CHANGED = (*TREES, Variant(default_structure("boolean")))
"""Those that are kept, to be changed by the suite ``rt_updates``."""


class Trial(NamedTuple):
    """A structure over a data set, asked at some points."""

    data: str
    size: int
    variant: Variant
    points: tuple[Point, ...] = POINTS


def measure(context: Context, trials: Iterable[Trial]) -> Iterator[Row]:
    """Yield the rows of all points of each trial."""
    context.release()
    for trial in trials:
        if is_present(context, trial.variant):
            yield from store_of(context).rows_of(trial)


def measure_together(context: Context, trials: Iterable[Trial]) -> Iterator[Row]:
    """Yield the rows of all points; the structures over a data set are measured in turns."""
    context.release()
    present = [trial for trial in trials if is_present(context, trial.variant)]
    for (data, size), group in groupby(present, key=lambda trial: (trial.data, trial.size)):
        yield from store_of(context).rows_together(data, size, list(group))


def indexes_and_cases(
    context: Context, trials: Iterable[Trial]
) -> Iterator[tuple[Any, Point, Case]]:
    """Yield the index of each trial with each of its points: for suites that measure themselves."""
    context.release()
    for trial in trials:
        if not is_present(context, trial.variant):
            continue
        store = store_of(context)
        competitor = store.built(trial.data, trial.size, trial.variant).competitor
        assert isinstance(competitor, IndexCompetitor)
        for point in trial.points:
            yield competitor.index, point, store.case(trial.data, trial.size, point)
        context.say(f"{trial.data}, {trial.size:,}: {trial.variant.label} done; {peak_memory()}")
        competitor.close()


def is_present(context: Context, variant: Variant) -> bool:
    """Return whether a structure is registered and takes part in this run; if not, say so."""
    if variant.name not in structures_of(variant.semantics):
        context.say(f"{variant.label} left out, there is no index of that name")
    elif variant.semantics == "boolean" and variant.name not in context.competitors:
        context.say(f"{variant.label} left out, it is not among the competitors")
    else:
        return True
    return False


@dataclass
class Store:
    """What the suites of one run keep for each other."""

    context: Context
    clauses: dict[str, ClauseArrays] = field(default_factory=dict)  # of the last size, by data set
    messages: dict[tuple[str, Point], MessageArrays] = field(default_factory=dict)
    kept: dict[tuple[int, Variant], Contender] = field(default_factory=dict)
    rows: dict[Trial, list[Row]] = field(default_factory=dict)
    checksums: dict[tuple[Any, ...], dict[str, dict[int, int]]] = field(default_factory=dict)

    def rows_of(self, trial: Trial) -> list[Row]:
        """Return the rows of a trial, measured when first asked for."""
        if trial not in self.rows:
            data, size, variant, points = trial
            contender = self.built(data, size, variant)
            self.rows[trial] = [self._row(trial, point, contender) for point in points]
            told = ", ".join(f"{name} {value}" for name, value in variant.told.items() if value)
            self.context.say(f"{data}, {size:,}: {variant.name} {told} measured; {peak_memory()}")
            is_largest = size >= self.context.profile.n_subscriptions
            if data == DATA and variant in CHANGED and is_largest:
                self.kept[size, variant] = contender
            else:
                contender.competitor.close()
        return self.rows[trial]

    def rows_together(self, data: str, size: int, trials: list[Trial]) -> Iterator[Row]:
        """Yield the rows of trials over one data set, whose structures take turns at each point."""
        built = [(trial, self.built(data, size, trial.variant)) for trial in trials]
        effort = self.context.profile.figures.turns
        for point in trials[0].points:
            case = self.case(data, size, point)
            for _, contender in built:
                contender.elapsed_s, contender.default_s = [], []
                first_pass(contender, case.messages, effort.budget_s)
            # The slowest decides how many messages all are timed on.
            n = min(contender.n_messages for _, contender in built)
            some = take_messages(case.messages, np.arange(n))
            for _, contender in built:
                if contender.n_messages > n:
                    first_pass(contender, some, math.inf)
            time_in_turns(case, [contender for _, contender in built], effort)
            for trial, contender in built:
                yield self._told(trial, point, case, contender)
        self.context.say(f"{data}, {size:,}: {len(built)} structures measured; {peak_memory()}")
        for _, contender in built:
            contender.competitor.close()

    def built(self, data: str, size: int, variant: Variant) -> Contender:
        """Return an index, either kept from another suite or built now."""
        if data == DATA and (size, variant) in self.kept:
            return self.kept[size, variant]
        case, kernels = self.case(data, size, MIXTURES[0]), (variant.semantics, variant.label)
        contender = self.context.built(variant.competitor(), case, kernels)
        told = f"{data}, {size:,}: {variant.label} built in {contender.build_s:.1f} s"
        self.context.say(told)
        return contender

    def case(self, data: str, size: int, point: Point) -> Case:
        """Return the subscriptions of a data set, and the messages of a point."""
        workload = point_workload(self.context, data, point).scaled(size)
        clauses = self.clauses.get(data)
        if clauses is None or len(clauses.subscriptions) != size:
            self.clauses.pop(data, None)
            clauses = self.clauses[data] = workload.subscriptions()
        if (data, point) not in self.messages:
            self.messages[data, point] = workload.messages()
        messages = self.messages[data, point]
        return Case(workload.name, clauses, messages, workload.space, workload.n_tokens)

    def _row(self, trial: Trial, point: Point, contender: Contender) -> Row:
        """Answer the messages of a point within the budget; time them again if they kept it."""
        effort = self.context.profile.figures.effort
        case = self.case(trial.data, trial.size, point)
        contender.elapsed_s = []
        first_pass(contender, case.messages, effort.budget_s)
        if contender.first_s > effort.budget_s:
            # Even the fewest messages took too long for a second pass.
            contender.elapsed_s = [contender.first_s]
        else:
            time_in_turns(case, [contender], effort)
        return self._told(trial, point, case, contender)

    def _told(self, trial: Trial, point: Point, case: Case, contender: Contender) -> Row:
        """Return the row of a point that was measured; its answers must be those of the others."""
        variant = trial.variant
        # Answers depend on the ranking, not on the order of an index's tokens.
        sums = self.checksums.setdefault((trial.data, trial.size, point, variant.ranking), {})
        sums[variant.label] = contender.checksums
        check_agreement(f"{case.name}, {point.n_tokens or 'mixed'} tokens", sums)
        told = {"prefixes": contender.prefixes, "message_tokens": point.n_tokens}
        return row_of(case, contender) | variant.told | told


def store_of(context: Context) -> Store:
    """Return the store of a run, which its suites share."""
    store: Store = context.shared.setdefault("points", Store(context))
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
