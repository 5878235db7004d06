"""The suite ``rt_updates``: operations per second while subscriptions come and go.

[TKDE15] section 7.5 and Fig. 12: of 100,000 operations 10 % insert a subscription, 10 % delete one
and 80 % are messages, in random order. Here, too, they come one at a time. Each group of messages
has its operations in four stages, one for each number of tokens; a stage ends early when its time
is over, and its other changes are then made in one call that is not timed, so that all indexes
enter the next stage with the same subscriptions. Messages are those of the other suites, over and
over, since an index forgets them at once.

Answers of all indexes are compared after the same operations. After the last stage some messages of
each stage are asked again and compared with a fresh index of the subscriptions that are left.

For the default index this is not the whole price: its changes are pending beside the index, and the
engine merges them by a rebuild when they are many, which is no part of this suite; see ``churn``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.bench.checksums import check_agreement, checksum, shown
from earshot.bench.competitors import IndexCompetitor
from earshot.bench.context import Context
from earshot.bench.measuring import CPU, cpu_s, warm_up_changes
from earshot.bench.points import (
    DATA,
    MESSAGE_TOKENS,
    MIXTURES,
    POINTS,
    Point,
    Variant,
    is_present,
    point_workload,
    store_of,
)
from earshot.bench.results import Row
from earshot.indexes import default_structure, index_type
from earshot.indexes.answers import Counters, Matches, concat_matches
from earshot.indexes.contract import Index
from earshot.model.arrays import ClauseArrays, Int32s, MessageArrays, take_clauses, take_messages

INSERT, REMOVE, MATCH = range(3)
CHANGE_SHARE = 0.1
"""Share of the operations that insert, and share that delete."""

OPERATIONS_PER_LOOK = 100
"""Operations between two looks at the clock, and between two checksums."""

N_LAST = 16
"""Messages of each stage that are asked again at the end."""

Sums = dict[str, dict[int, int]]  # checksums by index, and by number of operations or messages


class Stage(NamedTuple):
    """Operations with messages of one group and one number of tokens."""

    point: Point
    workload: str
    kinds: npt.NDArray[np.int8]  # (n_operations,)
    inserts: ClauseArrays
    removes: Int32s
    messages: MessageArrays

    @property
    def label(self) -> str:
        """Name in messages."""
        return f"{self.workload}, {self.point.n_tokens} tokens"

    @property
    def last_messages(self) -> MessageArrays:
        """Messages that are asked again at the end."""
        n = len(self.messages.boxes)
        return take_messages(self.messages, np.arange(max(0, n - N_LAST), n))


class Plan(NamedTuple):
    """All operations, the same for every index; the first changes may prepare what others use."""

    first_insert: ClauseArrays
    first_removes: Int32s
    stages: list[Stage]


def measure(context: Context, variants: Iterable[Variant]) -> Iterator[Row]:
    """Inserts, deletes and messages one at a time, on the trees and on the default index."""
    context.release()
    present = [variant for variant in variants if is_present(context, variant)]
    if not present:
        return
    store, size = store_of(context), context.profile.n_subscriptions
    case = store.case(DATA, size, MIXTURES[0])
    plan = _plan(context)
    rows: list[Row] = []
    sums: list[Sums] = [{} for _ in plan.stages]
    last: list[Sums] = [{} for _ in plan.stages]
    budget_s = context.profile.figures.operations_budget_s / len(MESSAGE_TOKENS["short"])
    for variant in present:
        warm_up_changes(variant.competitor(), case)
        competitor = store.built(DATA, size, variant).competitor
        assert isinstance(competitor, IndexCompetitor)
        first_change_s = cpu_s(competitor.index.insert, plan.first_insert)
        first_change_s += cpu_s(competitor.index.remove, plan.first_removes)
        facts = {
            "competitor": variant.name,
            "token_order": variant.token_order,
            "n_subscriptions": size,
            "first_change_s": first_change_s,
        }
        for at, stage in enumerate(plan.stages):
            row, sums[at][variant.label] = _operate(competitor.index, stage, budget_s)
            check_agreement(f"{stage.label}, operations", sums[at])
            rows.append({"workload": stage.workload, **facts, **row})
        for at, stage in enumerate(plan.stages):
            last[at][variant.label] = {N_LAST: checksum(competitor.match(stage.last_messages))}
        rates = [row["operations_per_s"] for row in rows[-len(plan.stages) :]]
        context.say(f"rt_updates: {variant.label} {min(rates):,.0f} to {max(rates):,.0f} per s")
        # Changed, and of no use to another suite.
        store.kept.pop((size, variant), None)
        competitor.close()
    removed = np.concatenate([plan.first_removes, *(stage.removes for stage in plan.stages)])
    n_inserted = sum(len(stage.removes) for stage in plan.stages) + 1
    every = point_workload(context, DATA, POINTS[0]).subscriptions(0, size + n_inserted)
    slots = np.delete(every.subscriptions, removed)
    live = take_clauses(every, slots)
    live = live._replace(subscriptions=np.arange(len(slots), dtype=np.int32))  # without gaps
    structure = index_type(default_structure("boolean"))
    fresh = structure.build(live, space=case.space, n_tokens=case.n_tokens)
    for stage, of_stage in zip(plan.stages, last, strict=True):
        found = fresh.match(stage.last_messages)
        found = found._replace(subscriptions=slots[found.subscriptions])
        of_stage["fresh index"] = {N_LAST: checksum(found)}
        check_agreement(f"{stage.label}, after all operations", of_stage)
    yield from rows


def _plan(context: Context) -> Plan:
    size = context.profile.n_subscriptions
    n_operations = context.profile.figures.n_operations // len(MESSAGE_TOKENS["short"])
    n_changes = min(int(CHANGE_SHARE * n_operations), (size - 1) // len(POINTS))
    random = np.random.default_rng(context.seed)
    removes = random.permutation(size)[: 1 + n_changes * len(POINTS)].astype(np.int32)
    workload = point_workload(context, DATA, POINTS[0])
    kinds = np.full(n_operations, MATCH, np.int8)
    kinds[:n_changes] = INSERT
    kinds[n_changes : 2 * n_changes] = REMOVE
    stages = []
    for at, point in enumerate(POINTS):
        start, stop = 1 + at * n_changes, 1 + (at + 1) * n_changes
        inserts = workload.subscriptions(size + start, size + stop)
        order, case = random.permutation(kinds), store_of(context).case(DATA, size, point)
        own = removes[start:stop]
        stages.append(Stage(point, case.name, order, inserts, own, case.messages))
    first_removes = np.append(removes[:1], np.int32(size))
    return Plan(workload.subscriptions(size, size + 1), first_removes, stages)


def _operate(index: Index, stage: Stage, budget_s: float) -> tuple[Row, dict[int, int]]:
    """Run the operations of a stage, as many as the budget allows, and make the other changes.

    Returned are a row, and the checksums of the answers by number of operations.
    """
    n_messages, n_changes = len(stage.messages.boxes), len(stage.removes)
    calls = (index.insert, index.remove, index.match)
    arguments = (
        [take_clauses(stage.inserts, np.array([row])) for row in range(n_changes)],
        [stage.removes[row : row + 1] for row in range(n_changes)],
        [take_messages(stage.messages, np.array([row])) for row in range(n_messages)],
    )
    done, spent_ns = [0, 0, 0], [0, 0, 0]
    work = np.zeros(3, np.int64)
    checksums: dict[int, int] = {}
    total = 0
    for start in range(0, len(stage.kinds), OPERATIONS_PER_LOOK):
        kinds = stage.kinds[start : start + OPERATIONS_PER_LOOK].tolist()
        found: list[Matches] = []
        first = done[MATCH]
        for kind in kinds:
            call, argument = calls[kind], arguments[kind][done[kind] % len(arguments[kind])]
            began = time.process_time_ns()
            answers = call(argument)
            spent_ns[kind] += time.process_time_ns() - began
            done[kind] += 1
            if answers is not None:
                found.append(answers)
        if found:
            joined = concat_matches(found)
            total = (total + checksum(joined, first)) % 2**64
            work += np.array(joined.counters)
        checksums[start + len(kinds)] = total
        if sum(spent_ns) > budget_s * 1e9:
            break
    index.insert(take_clauses(stage.inserts, np.arange(done[INSERT], n_changes)))
    index.remove(stage.removes[done[REMOVE] :])
    counters = Counters(*(work / max(done[MATCH], 1)).tolist())
    row = {
        "message_tokens": stage.point.n_tokens,
        "n_threads": 1,
        "clock": CPU,
        "n_operations": sum(done),
        "n_messages": done[MATCH],
        "operations_per_s": sum(done) / max(sum(spent_ns) / 1e9, 1e-9),
        **{
            f"{kind}_us": spent / 1e3 / max(n, 1)
            for kind, spent, n in zip(("insert", "remove", "match"), spent_ns, done, strict=True)
        },
        "answers_per_message": counters.answers,
        "counters_per_message": counters._asdict(),
        "checksum": shown(total),
    }
    return row, checksums
