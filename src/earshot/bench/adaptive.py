"""The AP-Tree, its variants and its rivals at the points of [VLDBJ15] Figs. 10 to 18.

A point is a workload with something changed, and a structure with parameters. Structures built by a
cost model are given a sample of other messages of the same stream, as in the paper. Where
subscriptions arrive while it runs, an index is built from the first ones and the others are
inserted; messages come after all of them.

The four variants of the paper are names here: ``dp``, ``keywords first`` (KPriority), ``space
first`` (SPriority) and ``no rebuilds`` (AP-Tree-NR); HR is the AP-Tree itself. ``plain dp`` finds
the cuts of ``dp`` in as many steps as the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from earshot.bench.checksums import check_agreement
from earshot.bench.competitors import IndexCompetitor
from earshot.bench.context import Context, peak_memory
from earshot.bench.measuring import (
    Case,
    Contender,
    case_of,
    cpu_s,
    first_pass,
    row_of,
    time_in_turns,
    warm_up_changes,
)
from earshot.bench.results import Row
from earshot.indexes import default_structure, structures_of
from earshot.workloads.synthetic import Workload

KINDS = ("ap_tweets", "ap_gn", "ap_cars", "ap_ais")
"""The data sets of the paper."""

LEAST_SAMPLE = 200
"""Messages of a sample; it has twice as many as are measured if that is more."""

INSERTS_PER_CALL = 1_000


class Choice(NamedTuple):
    """A structure with some of its parameters chosen, and what figures call it."""

    structure: str
    label: str = ""
    parameters: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """Name in tables and figures."""
        return f"{self.structure} {self.label}".strip()


AP = Choice("ap_tree")
DP = Choice("ap_tree", "dp", (("keyword_partition", "dp"),))
PARTITIONS = (AP, DP, Choice("ap_tree", "plain dp", (("keyword_partition", "plain_dp"),)))
VARIANTS = (
    AP,
    DP,
    Choice("ap_tree", "keywords first", (("priority", "keyword"),)),
    Choice("ap_tree", "space first", (("priority", "space"),)),
    Choice("trie_quadtree"),
)
WITHOUT_REBUILDS = Choice("ap_tree", "no rebuilds", (("rebuilds", False),))
CELL_TREES = (Choice("iq_tree"), Choice("rq_tree"))
RIVALS = (AP, *CELL_TREES, Choice("rt_plus_plus_tree"), Choice(default_structure("boolean")))


class Trial(NamedTuple):
    """A structure over a workload in which something is changed."""

    workload: Workload
    choice: Choice
    told: tuple[tuple[str, Any], ...] = ()  # what rows tell of the point
    built_share: float = 1.0  # of the subscriptions; the rest is inserted


def measure(context: Context, trials: Iterable[Trial]) -> Iterator[Row]:
    """Yield a row for each trial; those over the same subscriptions and messages take turns."""
    context.release()
    present = [trial for trial in trials if _is_present(context, trial.choice)]
    for workload, group in groupby(present, key=lambda trial: trial.workload):
        yield from _measured(context, case_of(workload), list(group))


def _is_present(context: Context, choice: Choice) -> bool:
    known = choice.structure in structures_of("boolean")
    if known and choice.structure in context.competitors:
        return True
    context.say(f"{choice.name} left out, it is not among the competitors")
    return False


def _measured(context: Context, case: Case, trials: list[Trial]) -> Iterator[Row]:
    """Build all structures, compare their answers, and measure them in turns."""
    effort = context.profile.figures.turns
    rows: list[tuple[Contender, Row]] = []
    sums: dict[str, dict[int, int]] = {}
    for trial in trials:
        competitor, told = _competitor(trial), dict(trial.told)
        if trial.built_share < 1:
            contender = _grown(context, competitor, trial, case, told)
        else:
            contender = context.built(competitor, case, ("adaptive", trial.choice))
        first_pass(contender, case.messages, effort.budget_s)
        point = ", ".join([trial.choice.name, *(f"{name} {value}" for name, value in trial.told)])
        sums[point] = contender.checksums
        check_agreement(case.name, sums)
        context.say(f"{case.name}, {point}: built in {contender.build_s:.1f} s; {peak_memory()}")
        rows.append((contender, told))
    time_in_turns(case, [contender for contender, _ in rows], effort)
    for contender, told in rows:
        yield row_of(case, contender) | told | {"prefixes": contender.prefixes}
        contender.competitor.close()


def _competitor(trial: Trial) -> IndexCompetitor:
    workload, choice = trial.workload, trial.choice
    index_type = structures_of("boolean")[choice.structure]
    made = IndexCompetitor(index_type, choice.name, dict(choice.parameters))
    n = workload.n_messages
    made.sample = workload.messages(n, n + max(LEAST_SAMPLE, 2 * n))
    return made


def _grown(
    context: Context, competitor: IndexCompetitor, trial: Trial, case: Case, told: Row
) -> Contender:
    """Build an index from the first subscriptions and insert the others."""
    workload, n = trial.workload, case.n_subscriptions
    n_built = max(1, round(trial.built_share * n))
    warm_up_changes(competitor, case)
    first = case._replace(clauses=workload.subscriptions(0, n_built))
    contender = context.built(competitor, first, ("adaptive", trial.choice))
    insert_s = [
        cpu_s(competitor.index.insert, workload.subscriptions(at, min(at + INSERTS_PER_CALL, n)))
        for at in range(n_built, n, INSERTS_PER_CALL)
    ]
    told["insert_us"] = 1e6 * float(np.sum(insert_s)) / max(n - n_built, 1)
    return contender


# ---- plans ---------------------------------------------------------------------------------------


def drawn(context: Context, name: str, size: int | None = None, **changed: Any) -> Workload:
    """Return a workload of the run's profile with something changed."""
    figures = context.profile.figures
    size = figures.n_adaptive if size is None else size
    workload = context.workload(name, size).scaled(n_messages=figures.n_short)
    return replace(workload, **changed)


def over_parameter(field: str, values: tuple[Any, ...], kinds: tuple[str, ...] = KINDS) -> Any:
    """Return a plan of the AP-Tree over one of its parameters (Fig. 10)."""

    def plan(context: Context) -> Iterator[Trial]:
        for kind in kinds:
            workload = drawn(context, kind)
            for value in values:
                yield Trial(workload, Choice("ap_tree", "", ((field, value),)), ((field, value),))

    return plan


def over_kinds(
    choices: tuple[Choice, ...], size: Callable[[Context], int | None] = lambda _: None,
    **changed: Any,
) -> Any:  # fmt: skip
    """Return a plan of several structures over all data sets (Figs. 11 and 12)."""

    def plan(context: Context) -> Iterator[Trial]:
        for kind in KINDS:
            workload = drawn(context, kind, size(context), **changed)
            for choice in choices:
                yield Trial(workload, choice)

    return plan


def over_workload(
    field: str, fields: tuple[str, ...], values: tuple[Any, ...], kinds: tuple[str, ...]
) -> Any:
    """Return a plan of the AP-Tree and rivals over fields of the workload (Figs. 13, 14, 18a)."""

    def plan(context: Context) -> Iterator[Trial]:
        for kind in kinds:
            for value in values:
                workload = drawn(context, kind, **dict.fromkeys(fields, value))
                for choice in RIVALS:
                    yield Trial(workload, choice, ((field, value),))

    return plan


def over_sizes(*kinds: str, **changed: Any) -> Any:
    """Return a plan of the AP-Tree and rivals over numbers of subscriptions (Figs. 15, 18b)."""

    def plan(context: Context) -> Iterator[Trial]:
        for kind in kinds or context.profile.figures.grown:
            for size in context.profile.figures.adaptive_sizes:
                workload = drawn(context, kind, size, **changed)
                for choice in RIVALS:
                    yield Trial(workload, choice)

    return plan


def over_divergence(values: tuple[float, ...], built_share: float) -> Any:
    """Return a plan of the AP-Tree over theta_KL, while subscriptions drift (Fig. 16)."""

    def plan(context: Context) -> Iterator[Trial]:
        workload = drawn(context, "ap_tweets_drifting")
        for value in values:
            field = (("max_divergence", value),)
            yield Trial(workload, Choice("ap_tree", "", field), field, built_share)

    return plan


def over_built_share(values: tuple[float, ...]) -> Any:
    """Return a plan of what takes changes in place over the share that is built (Fig. 17)."""

    def plan(context: Context) -> Iterator[Trial]:
        workload = drawn(context, "ap_tweets_drifting")
        for value in values:
            for choice in (AP, WITHOUT_REBUILDS, *CELL_TREES):
                yield Trial(workload, choice, (("built_share", value),), value)

    return plan
