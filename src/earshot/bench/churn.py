"""The suite ``churn``: how fast subscriptions change, and what pending changes cost.

Half a percent of the subscriptions is inserted and half a percent removed in calls of 1,000, then
as many again in calls of 100. The changes stay pending beside the index, and after each of the two
stages matching is timed in turns with an unchanged copy. Then the engine is called with one message
at a time, one subscription, one id.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from earshot.bench.checksums import check_agreement
from earshot.bench.competitors import IndexCompetitor
from earshot.bench.context import Context, open_engine
from earshot.bench.measuring import (
    CPU,
    WALL,
    Case,
    Contender,
    cpu_s,
    elapsed_s,
    first_pass,
    latencies_ns,
    latency_us,
    row_of,
    timed_pass,
    warm_up_changes,
)
from earshot.bench.results import Row
from earshot.engine.engine import Engine
from earshot.model.arrays import Int32s, take_clauses
from earshot.model.messages import Message
from earshot.model.regions import Point, Rectangle
from earshot.model.schemas import BOX_FIELDS
from earshot.model.subscriptions import Subscription
from earshot.workloads.synthetic import Workload, message_table, subscription_table

STAGE_SHARE = 0.005
"""Share of the subscriptions that a stage inserts, and share that it removes."""

CHANGES_PER_CALL = (1_000, 100)
"""Of the first stage and of the second."""

LEAST_REPETITIONS = 9
"""A slowdown of a few percent takes more repetitions than a rate."""


class Stage(NamedTuple):
    """New rows to insert and slots to remove, so many a call; the first stage is not timed."""

    per_call: int
    inserts: range
    removes: Int32s


def measure(context: Context, workloads: Iterable[Workload]) -> Iterator[Row]:
    """Changes to the index alone and through the engine; matching with changes pending."""
    names = context.focus()
    for workload in workloads if names else ():
        stages = _stages(workload.n_subscriptions, context.seed)
        yield from _index_rows(context, workload, stages, names)
        yield from _engine_rows(context, workload, stages)


def _stages(n: int, seed: int) -> list[Stage]:
    n_stage = max(1, int(n * STAGE_SHARE))
    bounds = [0, *range(1, 2 + n_stage * len(CHANGES_PER_CALL), n_stage)]
    removed = np.random.default_rng(seed).permutation(n).astype(np.int32)
    return [
        Stage(per_call, range(start, stop), removed[start:stop])
        for per_call, (start, stop) in zip((1, *CHANGES_PER_CALL), pairwise(bounds), strict=True)
    ]


def _rates(
    stage: Stage,
    insert: Callable[[Any], object],
    remove: Callable[[Any], object],
    rows_of: Callable[[range], Any],
    slots_of: Callable[[Int32s], Any],
    clock: str,
) -> Row:
    """Insert and remove what is made of rows and slots before; return subscriptions per second."""
    spent_s = cpu_s if clock == CPU else elapsed_s
    per_call, inserts, removes = stage
    n = len(inserts)
    starts = range(0, n, per_call)
    added = [rows_of(inserts[at : at + per_call]) for at in starts]
    left = [slots_of(removes[at : at + per_call]) for at in starts]
    insert_s = sum(spent_s(insert, part) for part in added)
    remove_s = sum(spent_s(remove, part) for part in left)
    return {
        "clock": clock,
        "changes_per_call": per_call,
        "inserts_per_s": n / insert_s,
        "removes_per_s": n / remove_s,
        "changes_per_s": 2 * n / (insert_s + remove_s),
    }


def _index_rows(
    context: Context, workload: Workload, stages: list[Stage], names: list[str]
) -> list[Row]:
    """Return the rows of all indexes, once their answers agree."""
    case, contenders = context.arena(workload, names)
    rows = []
    checksums: dict[str, dict[str, dict[int, int]]] = {}
    for contender in contenders:
        for row, sums in _index_stages(context, case, contender, workload, stages):
            rows.append(row)
            stage = f"headline, changes in calls of {row['changes_per_call']}"
            checksums.setdefault(stage, {})[contender.name] = sums
            check_agreement(stage, checksums[stage])
    return rows


def _index_stages(
    context: Context, case: Case, contender: Contender, workload: Workload, stages: list[Stage]
) -> Iterator[tuple[Row, dict[int, int]]]:
    """Yield the row and the checksums of each stage; ``contender`` stays as it is."""
    changed = Contender(copy.deepcopy(contender.competitor), contender.build_s, contender.compile_s)
    competitor = changed.competitor
    assert isinstance(competitor, IndexCompetitor)
    warm_up_changes(IndexCompetitor(competitor.index_type), case)
    n = workload.n_subscriptions
    inserted = workload.subscriptions(n, n + stages[-1].inserts.stop)
    index = competitor.index
    rows_of, slots_of = lambda rows: take_clauses(inserted, np.array(rows)), lambda slots: slots
    measured = (
        _rates(stage, index.insert, index.remove, rows_of, slots_of, CPU) for stage in stages
    )
    # The first change prepares what all later ones use, such as where each clause stands.
    first_change_s = 2 / next(measured)["changes_per_s"]
    n_pending = 1
    for stage, rates in zip(stages[1:], measured, strict=True):
        n_pending += len(stage.inserts)
        first_pass(changed, case.messages, context.profile.effort.budget_s)
        before_s, changed.elapsed_s = [], []
        for _ in range(max(LEAST_REPETITIONS, context.profile.effort.repetitions)):
            before_s.append(timed_pass(contender, case.messages))
            changed.elapsed_s.append(timed_pass(changed, case.messages))
        row = row_of(case, changed) | rates
        row["first_change_s"] = first_change_s
        row["n_inserted"] = row["n_removed"] = n_pending
        row["flux_share"] = 2 * n_pending / case.n_subscriptions
        row["before_messages_per_s"] = contender.n_messages / min(before_s)
        row["slowdown"] = row["before_messages_per_s"] / row["messages_per_s"]
        if stage is stages[-1]:
            row["rebuild_s"] = cpu_s(competitor.index.rebuilt)
        yield row, dict(changed.checksums)
    competitor.close()


def _engine_rows(context: Context, workload: Workload, stages: list[Stage]) -> Iterator[Row]:
    """Yield the rates of the same changes through the engine."""
    files = context.files(workload)
    engine = open_engine(files.index_directory)
    n = workload.n_subscriptions
    inserted = subscription_table(files.workload, n, n + stages[-1].inserts.stop).combine_chunks()

    def insert(batch: pa.Table) -> None:
        engine.subscribe_batch(batch)
        _ = engine.matcher.index  # new subscriptions wait for the next use; not so here

    facts = {"workload": workload.name, "competitor": "engine", "n_subscriptions": n}
    for stage in stages:
        rates = _rates(
            stage,
            insert,
            engine.unsubscribe_batch,
            lambda rows: inserted.slice(rows.start, len(rows)),
            lambda slots: pa.array(slots, pa.int64()),
            WALL,  # it may rebuild in a thread of its own
        )
        if stage is not stages[0]:
            yield {**facts, "n_threads": 1, **rates}
    single = _single_calls(context, engine, files.workload, n + stages[-1].inserts.stop)
    yield {**facts, "n_threads": 1, **single}


def _single_calls(context: Context, engine: Engine, workload: Workload, first: int) -> Row:
    """Return how long single calls of the engine take, with messages and new subscriptions."""
    effort = context.profile.effort
    n, budget_s = effort.n_latency, effort.budget_s / 4
    messages = [
        Message(row["id"], row["text"], place=Point(row["x"], row["y"]))
        for row in message_table(workload.scaled(n_messages=n)).to_pylist()
    ]
    subscriptions = [
        Subscription(row["id"], row["keywords"], region=Rectangle(*map(row.get, BOX_FIELDS)))
        for row in subscription_table(workload, first, first + n).to_pylist()
    ]
    engine.publish(messages[0])  # what is pending goes in
    published = latencies_ns(engine.publish, messages, budget_s)
    added = latencies_ns(engine.subscribe, subscriptions, budget_s)
    taken = (each.id for each in subscriptions[: len(added)])
    removed = latencies_ns(engine.unsubscribe, taken, budget_s)
    return {
        "clock": WALL,
        "changes_per_call": 1,
        "inserts_per_s": 1e9 * len(added) / sum(added),
        "removes_per_s": 1e9 * len(removed) / sum(removed),
        "changes_per_s": 1e9 * (len(added) + len(removed)) / (sum(added) + sum(removed)),
        "publish_us": latency_us(published),
        "subscribe_us": latency_us(added),
        "unsubscribe_us": latency_us(removed),
    }
