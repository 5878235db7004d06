"""Measuring what small indexes of one's own data cost, to say what a large load needs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from earshot.engine.engine import Engine
from earshot.errors import InvalidParameter
from earshot.files import FileBatch, read_messages, read_subscriptions
from earshot.jobs.rows import MESSAGE_BATCH_ROWS
from earshot.model.arrays import Space
from earshot.placement.sizing import Costs, Measured

MOST_SUBSCRIPTIONS, LEAST_SUBSCRIPTIONS = 2_000_000, 1_000
SMALL_SHARE = 4
"""The smaller index has one in so many of the subscriptions."""
LEAST_PASSES, PASSES_S = 3, 1.0
"""The fastest of so many passes over the messages counts, and of as many as there is time for."""


class Trial(NamedTuple):
    """Two sizes that were measured, smaller first, and what they tell."""

    small: Measured
    large: Measured
    costs: Costs


def measure_costs(
    subscriptions: str | Path, messages: str | Path, *, space: Space = "lonlat"
) -> Trial:
    """Build two indexes of a file's subscriptions, and match a file's messages with both.

    The CPU time of this thread is measured, so other work on the machine does little harm.
    """
    rows = _table(read_subscriptions(subscriptions, space=space), MOST_SUBSCRIPTIONS)
    sent = _table(read_messages(messages, space=space), 5 * MESSAGE_BATCH_ROWS)
    if rows.num_rows < LEAST_SUBSCRIPTIONS or not sent.num_rows:
        raise InvalidParameter(
            f"{rows.num_rows:,} subscriptions and {sent.num_rows:,} messages tell too little; "
            f"expected at least {LEAST_SUBSCRIPTIONS:,} subscriptions and a message"
        )
    sizes = (rows.num_rows // SMALL_SHARE, rows.num_rows)
    # Each with subscriptions from everywhere in the file: it may be in some order.
    small, large = (_measured(_spread(rows, n), sent, space) for n in sizes)
    ids = rows.column("id").nbytes / rows.num_rows
    update_bytes = ids + sent.column("id").nbytes / sent.num_rows
    return Trial(small, large, Costs.of(small, large, sent.nbytes / sent.num_rows, update_bytes))


def _table(parts: Iterable[FileBatch], most: int) -> pa.Table:
    batches, n = [], 0
    for part in parts:
        batches.append(part.batch)
        n += part.batch.num_rows
        if n >= most:
            break
    return pa.Table.from_batches(batches).slice(0, most) if batches else pa.table({})


def _spread(rows: pa.Table, n: int) -> pa.Table:
    step = rows.num_rows / n
    return rows.take(pa.array([int(number * step) for number in range(n)]))


def _measured(rows: pa.Table, messages: pa.Table, space: Space) -> Measured:
    engine = Engine(space=space, rebuild_in_background=False)
    engine.subscribe_batch(rows)
    engine.rebuild()
    batches = [
        messages.slice(start, MESSAGE_BATCH_ROWS)
        for start in range(0, messages.num_rows, MESSAGE_BATCH_ROWS)
    ]
    spent_s: list[float] = []
    n_updates = 0
    while len(spent_s) < LEAST_PASSES or sum(spent_s) < PASSES_S:
        started = time.thread_time()
        n_updates = sum(len(engine.match_batch(each).subscription_ids) for each in batches)
        spent_s.append(time.thread_time() - started)
    n = messages.num_rows
    return Measured(rows.num_rows, sum(engine.memory().values()), min(spent_s) / n, n_updates / n)
