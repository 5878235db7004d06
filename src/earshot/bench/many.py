"""The suite ``many``: what tens of millions of subscriptions take on one machine.

Each step has a process of its own, so that the memory it is told to have had is that of the step.
*Building* gets subscriptions in batches, as from a file, and saves the engine. *Matching* opens it
by memory-mapping, matches, and then changes it: one subscription comes, another goes, and messages
find it so. *Checking* matches the first messages against all subscriptions one by one, part by
part, and never holds them all. Rates, subscribing and building are in CPU time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from earshot.bench.checksums import Pairs, check_agreement, checksum, shown
from earshot.bench.context import Context
from earshot.bench.measuring import cpu_s, elapsed_s, timed
from earshot.bench.results import Row, basics
from earshot.engine.engine import Engine
from earshot.engine.updates import Updates
from earshot.indexes import default_structure, index_type
from earshot.model.arrays import take_messages
from earshot.workloads.synthetic import Workload, message_table, subscription_table

BATCH_ROWS = 1 << 16
"""Subscriptions of a batch, as many as files are read by."""
MESSAGES_PER_CALL = 1_000
"""A message against 100 M subscriptions has some 7,000 answers."""
PARTS = {"structure": "structure", "clauses": "subscriptions", "ids": "subscription_ids",
         "words": "vocabulary"}  # fmt: skip
"""Parts of an engine's memory, by what a report calls them."""
N_CHECKED = 8
CHECKED_ROWS = 1 << 20
"""Messages that are checked, and subscriptions at a time."""


def measure(context: Context, workloads: Iterable[Workload]) -> Iterator[Row]:
    """Build, open, match, change and check engines of each size; none is in this process."""
    first_ns: float | None = None
    for workload in workloads:
        folder, repetitions = context.folder / "many", context.profile.effort.repetitions
        built = _apart(_build, workload, folder)
        context.say(f"many: {workload.n_subscriptions:,} built in {built['build_s']:.0f} s")
        matched = _apart(_match, workload, folder, repetitions)
        shutil.rmtree(folder)
        sums = {"engine": {N_CHECKED: matched.pop("first_checksum")}}
        sums["one by one"] = {N_CHECKED: _apart(_check, workload)}
        check_agreement(f"{workload.n_subscriptions:,} subscriptions", sums)
        n, default = workload.n_subscriptions, default_structure("boolean")
        first_ns = first_ns or matched["ns_per_answer"]
        yield {
            **basics(workload.name, default, n, workload.n_messages),
            **built,
            **matched,
            "over_smallest": matched["ns_per_answer"] / first_ns,
        }


def _apart(step: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a step gives in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(step, *arguments).result()


def _build(workload: Workload, folder: Path) -> Row:
    engine = Engine(space=workload.space, rebuild_in_background=False)
    engine.warm_up()
    n = workload.n_subscriptions
    started, _, _ = _memory_bytes()
    subscribe_s = 0.0
    for start, stop in pairwise([*range(0, n, BATCH_ROWS), n]):
        batch = subscription_table(workload, start, stop)  # is no part of the time
        subscribe_s += cpu_s(engine.subscribe_batch, batch)
    settle_s = cpu_s(engine.warm_up)
    resident, _, _ = _memory_bytes()
    save_s = elapsed_s(engine.save, folder)
    _, peak, _ = _memory_bytes()
    parts = {f"{name}_bytes": n_bytes for name, n_bytes in engine.memory().items()}
    return {
        "subscribe_s": subscribe_s,
        "settle_s": settle_s,
        "save_s": save_s,
        "build_s": subscribe_s + settle_s + save_s,
        "start_bytes": started,
        "built_bytes": resident,
        "build_peak_bytes": peak,
        **parts,
    }


def _match(workload: Workload, folder: Path, repetitions: int) -> Row:
    _warm_up(workload)
    engine, open_s = timed(lambda: Engine.open(folder, rebuild_in_background=False))
    table = message_table(workload)
    rows = [*range(0, table.num_rows, MESSAGES_PER_CALL)]
    batches = [table.slice(row, MESSAGES_PER_CALL) for row in rows]
    warm_s = elapsed_s(engine.warm_up)
    n_answers = total = 0
    for batch in batches:
        found = engine.match_batch(batch)
        n_answers += len(found)
        total = (total + _checksum(found)) % 2**64
    match_s = min(
        sum(cpu_s(engine.match_batch, batch) for batch in batches) for _ in range(repetitions)
    )
    n, first = workload.n_subscriptions, table.slice(0, N_CHECKED)
    first_checksum = _checksum(engine.match_batch(first))
    resident, _, private = _memory_bytes()
    one_more = subscription_table(workload, n, n + 1)
    subscribe_s = elapsed_s(engine.subscribe_batch, one_more)
    unsubscribe_s = elapsed_s(engine.unsubscribe, 0)
    publish_s = elapsed_s(engine.match_batch, first)
    _, _, changed = _memory_bytes()
    ids = set(engine.match_batch(table).subscription_ids.unique().to_pylist())
    assert 0 not in ids, "who has left gets nothing"
    _, peak, _ = _memory_bytes()
    return {
        "open_s": open_s,
        "warm_up_s": warm_s,
        "answers_per_message": n_answers / max(table.num_rows, 1),
        "messages_per_s": table.num_rows / match_s,
        "ns_per_answer": match_s * 1e9 / max(n_answers, 1),
        "checksum": shown(total),
        "first_checksum": first_checksum,
        "mapped_bytes": resident,
        "match_peak_bytes": peak,
        "changed_bytes": changed - private,
        "first_subscribe_s": subscribe_s,
        "first_unsubscribe_s": unsubscribe_s,
        "next_match_s": publish_s,
    }


def _warm_up(workload: Workload) -> None:
    """Have everything compiled that matching and changing need."""
    small = workload.scaled(1_000, 100)
    engine = Engine(space=workload.space, rebuild_in_background=False)
    engine.subscribe_batch(subscription_table(small))
    engine.match_batch(message_table(small))
    engine.subscribe_batch(subscription_table(small, 1_000, 1_001))
    engine.unsubscribe(0)
    engine.match_batch(message_table(small))


def _check(workload: Workload) -> int:
    """Return the checksum of the answers to the first messages, by looking at everything."""
    structure, n = index_type("linear_scan"), workload.n_subscriptions
    messages = take_messages(workload.messages(), np.arange(min(N_CHECKED, workload.n_messages)))
    total = 0
    for start, stop in pairwise([*range(0, n, CHECKED_ROWS), n]):
        clauses = workload.subscriptions(start, stop)
        clauses = clauses._replace(subscriptions=clauses.subscriptions - np.int32(start))
        found = structure.build(clauses, space=workload.space).match(messages)
        slots = found.subscriptions + np.int32(start)
        total = (total + checksum(found._replace(subscriptions=slots))) % 2**64
    return total


def _checksum(found: Updates) -> int:
    """Return the checksum of updates; ids are row numbers, of subscriptions and of messages."""
    rows, slots = (each.to_numpy() for each in (found.message_ids, found.subscription_ids))
    return checksum(Pairs(rows, slots.astype(np.int32)))


def _memory_bytes() -> tuple[int, int, int]:
    """Return the memory of this process: now, at most so far, and what it shares with no file."""
    pa.default_memory_pool().release_unused()
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    found = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    now, most, private = (1024 * int(found[name][0]) for name in ("VmRSS", "VmHWM", "RssAnon"))
    return now, most, private
