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
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.bench.checksums import AnswersDiffer, Pairs, check_agreement, checksum
from earshot.bench.context import Context
from earshot.bench.measuring import Row, case_of
from earshot.bench.rt_figures import (
    CHANGED,
    MESSAGE_TOKENS,
    POINTS,
    Point,
    Store,
    Variant,
    point_workload,
    present,
    store_of,
    variant_index,
)
from earshot.indexes import default_structure, index_type
from earshot.indexes.answers import Matches
from earshot.indexes.contract import Index
from earshot.model.arrays import (
    ClauseArrays,
    Int32s,
    MessageArrays,
    Space,
    concat_clauses,
    take_clauses,
    take_messages,
)
from earshot.workloads.synthetic import Workload

INSERT, REMOVE, MATCH = range(3)
CHANGE_SHARE = 0.1
"""Share of the operations that insert, and share that delete."""

OPERATIONS_PER_LOOK = 100
"""Operations between two looks at the clock, and between two checksums."""

N_LAST = 16
"""Messages of each stage that are asked again at the end."""


class Stage(NamedTuple):
    """Operations with messages of one group and one number of tokens."""

    point: Point
    workload: str
    kinds: npt.NDArray[np.int8]  # (n_operations,)
    inserts: ClauseArrays
    removes: Int32s
    messages: MessageArrays


class Plan(NamedTuple):
    """All operations of all stages; the same for every index."""

    clauses: ClauseArrays
    first_insert: ClauseArrays  # one, not timed; see _first_change
    first_removes: Int32s
    stages: list[Stage]
    space: Space
    n_tokens: int

    def live_clauses(self) -> tuple[ClauseArrays, Int32s]:
        """Return what is left after all stages, renumbered 0, 1, …, and the old slots."""
        inserts = [self.first_insert, *(stage.inserts for stage in self.stages)]
        every = concat_clauses([self.clauses, *inserts])
        alive = np.ones(len(every.subscriptions), np.bool_)
        alive[self.first_removes] = False
        alive[np.concatenate([stage.removes for stage in self.stages])] = False
        live = take_clauses(every, np.flatnonzero(alive))
        slots = live.subscriptions
        return live._replace(subscriptions=np.arange(len(slots), dtype=np.int32)), slots


class Outcome(NamedTuple):
    """What one index did in one stage."""

    row: Row
    checksums: dict[int, int]  # by number of operations


def rt_updates_suite(context: Context) -> Iterator[Row]:
    """Inserts, deletes and messages one at a time, on the trees and on the default index."""
    context.release()
    variants = list(present(context, "rt_updates", CHANGED))
    if not variants:
        return
    store = store_of(context)
    size = context.profile.n_subscriptions
    plan = _plan(context, store)
    outcomes: dict[str, list[Outcome]] = {}
    last: dict[str, list[int]] = {}
    budget_s = context.profile.figures.operations_budget_s / len(MESSAGE_TOKENS["short"])
    for variant in variants:
        _warm_up(variant)
        contender = store.built(context, "tweets", size, variant)
        competitor: Any = contender.competitor
        index: Index = competitor.index
        facts = {
            "competitor": variant.name,
            "token_order": variant.token_order,
            "n_subscriptions": size,
            "first_change_s": _first_change(index, plan),
        }
        outcomes[variant.label] = [_outcome(index, stage, budget_s, facts) for stage in plan.stages]
        last[variant.label] = [checksum(index.match(part)) for part in _last_messages(plan)]
        rates = [outcome.row["operations_per_s"] for outcome in outcomes[variant.label]]
        context.say(f"rt_updates: {variant.label} {min(rates):,.0f} to {max(rates):,.0f} per s")
        # Changed, and of no use to another suite.
        store.trees.pop((size, variant), None)
        del index
        competitor.close()
    for at, stage in enumerate(plan.stages):
        sums = {label: found[at].checksums for label, found in outcomes.items()}
        check_agreement(f"{stage.workload}, {stage.point.n_tokens} tokens, operations", sums)
    check_last_answers(plan, last)
    for found in outcomes.values():
        for outcome in found:
            yield outcome.row


def _plan(context: Context, store: Store) -> Plan:
    size = context.profile.n_subscriptions
    cases = [store.case(context, "tweets", size, point) for point in POINTS]
    n_operations = context.profile.figures.n_operations // len(MESSAGE_TOKENS["short"])
    n_changes = min(int(CHANGE_SHARE * n_operations), (size - 1) // len(POINTS))
    random = np.random.default_rng(context.seed)
    removes = random.permutation(size)[: 1 + n_changes * len(POINTS)].astype(np.int32)
    kinds = np.full(n_operations, MATCH, np.int8)
    kinds[:n_changes] = INSERT
    kinds[n_changes : 2 * n_changes] = REMOVE
    stages = []
    for at, (point, case) in enumerate(zip(POINTS, cases, strict=True)):
        first = size + 1 + at * n_changes
        stages.append(
            Stage(
                point,
                case.name,
                random.permutation(kinds),
                point_workload(context, "tweets", point).subscriptions(first, first + n_changes),
                removes[1 + at * n_changes :][:n_changes],
                case.messages,
            )
        )
    return Plan(
        cases[0].clauses,
        point_workload(context, "tweets", POINTS[0]).subscriptions(size, size + 1),
        np.append(removes[:1], np.int32(size)),
        stages,
        cases[0].space,
        cases[0].n_tokens,
    )


def _first_change(index: Index, plan: Plan) -> float:
    """Make the first changes, which may prepare what all later ones use; return their seconds."""
    began = time.perf_counter()
    index.insert(plan.first_insert)
    index.remove(plan.first_removes)
    return time.perf_counter() - began


def _outcome(index: Index, stage: Stage, budget_s: float, facts: Row) -> Outcome:
    """Run the operations of a stage, as many as the budget allows, and make the other changes."""
    n_messages = len(stage.messages.boxes)
    pool = [take_messages(stage.messages, np.array([row])) for row in range(n_messages)]
    inserts = [take_clauses(stage.inserts, np.array([row])) for row in range(len(stage.removes))]
    removes = [stage.removes[row : row + 1] for row in range(len(stage.removes))]
    done = [0, 0, 0]
    spent_ns = [0, 0, 0]
    work = np.zeros(3, np.int64)
    checksums: dict[int, int] = {}
    total = 0
    for start in range(0, len(stage.kinds), OPERATIONS_PER_LOOK):
        kinds = stage.kinds[start : start + OPERATIONS_PER_LOOK].tolist()
        found: list[Matches] = []
        first = done[MATCH]
        for kind in kinds:
            n = done[kind]
            began = time.perf_counter_ns()
            if kind == MATCH:
                found.append(index.match(pool[n % n_messages]))
            elif kind == INSERT:
                index.insert(inserts[n])
            else:
                index.remove(removes[n])
            spent_ns[kind] += time.perf_counter_ns() - began
            done[kind] += 1
        total = (total + checksum(_joined(found), first)) % 2**64
        checksums[start + len(kinds)] = total
        for each in found:
            work += np.array(each.counters)
        if sum(spent_ns) > budget_s * 1e9:
            break
    rest = np.arange(done[INSERT], len(inserts))
    if len(rest):
        index.insert(take_clauses(stage.inserts, rest))
    if done[REMOVE] < len(removes):
        index.remove(stage.removes[done[REMOVE] :])
    nodes, candidates, answers = (work / max(done[MATCH], 1)).tolist()
    insert_us, remove_us, match_us = (
        spent / 1e3 / max(n, 1) for spent, n in zip(spent_ns, done, strict=True)
    )
    row = {
        "workload": stage.workload,
        **facts,
        "message_tokens": stage.point.n_tokens,
        "n_threads": 1,
        "n_operations": sum(done),
        "n_messages": done[MATCH],
        "operations_per_s": sum(done) / max(sum(spent_ns) / 1e9, 1e-9),
        "insert_us": insert_us,
        "remove_us": remove_us,
        "match_us": match_us,
        "answers_per_message": answers,
        "counters_per_message": {"nodes": nodes, "candidates": candidates, "answers": answers},
        "checksum": f"{total:016x}",
    }
    return Outcome(row, checksums)


def _joined(found: Sequence[Matches]) -> Pairs:
    """Return the answers to messages that came one at a time."""
    lengths = [len(each.subscriptions) for each in found]
    slots = [each.subscriptions for each in found]
    return Pairs(
        np.repeat(np.arange(len(found)), lengths),
        np.concatenate(slots) if slots else np.empty(0, np.int32),
    )


def _last_messages(plan: Plan) -> Iterator[MessageArrays]:
    for stage in plan.stages:
        n = len(stage.messages.boxes)
        yield take_messages(stage.messages, np.arange(max(0, n - N_LAST), n))


def check_last_answers(plan: Plan, last: dict[str, list[int]]) -> None:
    """Compare the answers after all stages with those of a fresh index.

    Args:
        plan: The operations.
        last: Of each index, the checksums of its answers to the last messages of each stage.

    Raises:
        AnswersDiffer: An index has other answers than one built of the live subscriptions.
    """
    clauses, slots = plan.live_clauses()
    fresh = index_type(default_structure("boolean")).build(
        clauses, space=plan.space, n_tokens=plan.n_tokens
    )
    for at, messages in enumerate(_last_messages(plan)):
        found = fresh.match(messages)
        wanted = checksum(found._replace(subscriptions=slots[found.subscriptions]))
        wrong = [label for label, sums in last.items() if sums[at] != wanted]
        if wrong:
            stage = plan.stages[at]
            raise AnswersDiffer(
                f"workload '{stage.workload}', {stage.point.n_tokens} tokens: after all operations "
                f"{', '.join(wrong)} gives other answers than a fresh index of the live "
                f"subscriptions; nothing of this suite is reported"
            )


def _warm_up(variant: Variant) -> None:
    """Change a small index of the same types, so that nothing is compiled while it is timed."""
    workload = Workload(name="compile", n_subscriptions=200, n_messages=4)
    case = case_of(workload)
    competitor = variant_index(variant)
    competitor.build(case.clauses, case.space, case.n_tokens)
    competitor.insert(workload.subscriptions(200, 201))
    competitor.remove(np.array([3], np.int32))
    competitor.match(case.messages)
    competitor.close()
