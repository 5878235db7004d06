"""The suite ``churn``: how fast subscriptions change, and what pending changes cost.

Half a percent of the subscriptions is inserted and half a percent removed in calls of 1,000, then
as many again in calls of 100. The changes stay pending beside the index, and after each of the two
stages matching is timed in turns with an unchanged copy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from earshot.bench.checksums import check_agreement
from earshot.bench.competitors import new_competitor
from earshot.bench.context import Context
from earshot.bench.measuring import Case, Contender, Row, elapsed_s, first_pass, row_of, timed_pass
from earshot.engine.engine import Engine
from earshot.model.arrays import ClauseArrays, Int32s, take_clauses, take_messages
from earshot.workloads.synthetic import Workload, subscription_table

STAGE_SHARE = 0.005
"""Share of the subscriptions that a stage inserts, and share that it removes."""

CHANGES_PER_CALL = (1_000, 100)
"""Of the first stage and of the second."""

LEAST_REPETITIONS = 9
"""A slowdown of a few percent takes more repetitions than a rate."""


class Plan(NamedTuple):
    """Rows to insert and slots to remove, by stage; the first of each are not timed."""

    first_insert: int
    first_remove: Int32s
    inserts: list[range]
    removes: list[Int32s]


def churn_suite(context: Context) -> Iterator[Row]:
    """Changes to the index alone and through the engine; matching with changes pending."""
    names = context.focus(lambda competitor: competitor.can_change)
    if not names:
        context.say("churn: skipped, nobody in this run takes changes")
        return
    workload = context.workload("headline")
    plan = _plan(workload.n_subscriptions, context.seed)
    arena = context.arena(workload, names)
    inserted = workload.subscriptions(plan.first_insert, plan.inserts[-1].stop)
    rows = []
    checksums: dict[int, dict[str, dict[int, int]]] = {}
    for contender in arena.named(names):
        _compile_changes(contender.name, arena.case)
        for stage, (row, sums) in enumerate(
            _index_stages(context, arena.case, contender, plan, inserted)
        ):
            rows.append(row)
            checksums.setdefault(stage, {})[contender.name] = sums
    for stage, by_name in checksums.items():
        check_agreement(f"headline after stage {stage + 1} of the changes", by_name)
    yield from rows
    del arena, inserted
    yield from _engine_stages(context, plan)


def _plan(n: int, seed: int) -> Plan:
    n_stage = max(1, int(n * STAGE_SHARE))
    n_stages = len(CHANGES_PER_CALL)
    removed = np.random.default_rng(seed).permutation(n)[: 1 + n_stages * n_stage].astype(np.int32)
    starts = [n + 1 + stage * n_stage for stage in range(n_stages)]
    return Plan(
        n,
        removed[:1],
        [range(start, start + n_stage) for start in starts],
        np.array_split(removed[1:], n_stages),
    )


def _index_stages(
    context: Context, case: Case, contender: Contender, plan: Plan, inserted: ClauseArrays
) -> Iterator[tuple[Row, dict[int, int]]]:
    """Yield the row and the checksums of each stage; ``contender`` stays as it is."""
    changed = Contender(copy.deepcopy(contender.competitor), contender.build_s, contender.compile_s)
    competitor = changed.competitor
    first = plan.first_insert

    def part(start: int, stop: int) -> ClauseArrays:
        return take_clauses(inserted, np.arange(start - first, stop - first))

    # The first change prepares what all later ones use, such as where each clause stands.
    first_change_s = elapsed_s(competitor.insert, part(first, first + 1))
    first_change_s += elapsed_s(competitor.remove, plan.first_remove)
    n_pending = 1
    for per_call, rows, slots in zip(CHANGES_PER_CALL, plan.inserts, plan.removes, strict=True):
        parts = [part(at, min(at + per_call, rows.stop)) for at in rows[::per_call]]
        rates = _change_rates(
            len(rows), parts, _calls(slots, per_call), competitor.insert, competitor.remove
        )
        n_pending += len(rows)
        first_pass(changed, case.messages, context.profile.effort.budget_s)
        before_s, changed.elapsed_s = [], []
        for _ in range(max(LEAST_REPETITIONS, context.profile.effort.repetitions)):
            before_s.append(timed_pass(contender, case.messages))
            changed.elapsed_s.append(timed_pass(changed, case.messages))
        row = row_of(case, changed)
        row |= rates
        row["changes_per_call"] = per_call
        row["first_change_s"] = first_change_s
        row["n_inserted"] = row["n_removed"] = n_pending
        row["flux_share"] = 2 * n_pending / case.n_subscriptions
        row["before_messages_per_s"] = contender.n_messages / min(before_s)
        row["slowdown"] = row["before_messages_per_s"] / row["messages_per_s"]
        if per_call == CHANGES_PER_CALL[-1]:
            row["rebuild_s"] = elapsed_s(competitor.rebuild)
        yield row, dict(changed.checksums)
    competitor.close()


def _engine_stages(context: Context, plan: Plan) -> Iterator[Row]:
    """Yield the rates of the same changes through the engine."""
    files = context.files()
    engine = Engine.open(files.index_directory)
    engine.warm_up()
    inserted = subscription_table(files.workload, plan.first_insert, plan.inserts[-1].stop)
    inserted = inserted.combine_chunks()

    def insert(batch: pa.Table) -> None:
        engine.subscribe_batch(batch)
        _ = engine.index  # new subscriptions wait for the next message; here they are taken in

    insert(inserted.slice(0, 1))
    engine.unsubscribe_batch(pa.array(plan.first_remove, pa.int64()))
    for per_call, rows, slots in zip(CHANGES_PER_CALL, plan.inserts, plan.removes, strict=True):
        batches = [
            inserted.slice(at - plan.first_insert, min(per_call, rows.stop - at))
            for at in rows[::per_call]
        ]
        ids = [pa.array(part, pa.int64()) for part in _calls(slots, per_call)]
        yield {
            "workload": files.workload.name,
            "competitor": "engine",
            "n_subscriptions": files.workload.n_subscriptions,
            "n_threads": 1,
            "changes_per_call": per_call,
            **_change_rates(len(rows), batches, ids, insert, engine.unsubscribe_batch),
        }


def _calls(slots: Int32s, per_call: int) -> list[Int32s]:
    return [slots[at : at + per_call] for at in range(0, len(slots), per_call)]


def _change_rates(
    n: int,
    inserts: Sequence[Any],
    removes: Sequence[Any],
    insert: Callable[[Any], None],
    remove: Callable[[Any], None],
) -> Row:
    """Insert ``n`` and remove ``n`` subscriptions; return how many of them per second."""
    insert_s = sum(elapsed_s(partial(insert, part)) for part in inserts)
    remove_s = sum(elapsed_s(partial(remove, part)) for part in removes)
    return {
        "inserts_per_s": n / insert_s,
        "removes_per_s": n / remove_s,
        "changes_per_s": 2 * n / (insert_s + remove_s),
    }


def _compile_changes(name: str, case: Case) -> None:
    """Change a small index of the same types, so that nothing is compiled while it is timed."""
    workload = Workload(name="compile", n_subscriptions=200)
    competitor = new_competitor(name)
    competitor.build(workload.subscriptions(), case.space, case.n_tokens)
    competitor.insert(workload.subscriptions(200, 220))
    competitor.remove(np.array([3, 210], np.int32))
    competitor.match(take_messages(case.messages, np.arange(min(4, len(case.messages.boxes)))))
    competitor.close()
