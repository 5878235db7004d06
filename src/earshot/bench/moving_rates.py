"""The suite ``moving_rates``: moves/s where messages end among them, by the moves of a call.

Subscribers report one by one, each at a time of its own, and messages end at theirs: about one for
every nine moves, as many as arrive. Those arrive at the end of a timestamp, in calls of the same
size. Both are timed apart, in processor time. Whatever the size of a call, the updates are the same
in the same order, or the run fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from earshot.bench.checksums import Digest, check_agreement, shown
from earshot.bench.context import Context, peak_memory
from earshot.bench.moving import (
    DEFAULT,
    Case,
    Store,
    Tally,
    case_of,
    messages_of,
    reports_of,
)
from earshot.bench.results import Row, basics
from earshot.model.arrays import take_messages
from earshot.semantics.contract import Changes
from earshot.semantics.moving import find_structure
from earshot.semantics.moving.matcher import MovingMatcher

MOBILITY = 0.9
N_STEPS = 2
_SMALL: dict[str, Any] = {
    "n_subscriptions": 300,
    "n_messages": 300,
    "arrivals": 100,
    "n_words": 500,
}


class Trial(NamedTuple):
    """A case, and how many moves or messages come in a call."""

    case: Case
    batch_size: int


def over_sizes(context: Context) -> Iterator[Trial]:
    """Yield calls of a thousandth, a fiftieth and a fifth of all subscribers."""
    case = case_of(context, mobility=MOBILITY)
    for share in (1000, 50, 5):
        yield Trial(case, max(1, case.movement.n_subscriptions // share))


def measure(context: Context, trials: Iterable[Trial]) -> Iterator[Row]:
    """Yield the row of each size of calls."""
    context.release()
    store: Store = context.shared.setdefault("moving", Store(context))
    sums: dict[str, dict[int, int]] = {}
    small = case_of(context, mobility=MOBILITY, **_SMALL)
    _lived(Store(context).started(small).matcher, Trial(small, 90))  # compiles
    for trial in trials:
        case, size = trial
        matcher = store.started(case).matcher.restructured(find_structure(DEFAULT))
        row, sums[f"{size:,} a call"] = _lived(matcher, trial)
        check_agreement(case.label, sums)
        context.say(
            f"{case.label}: {size:,} a call, {row['moves_per_s']:,.0f} moves/s, "
            f"{row['messages_per_s']:,.0f} messages/s; {peak_memory()}"
        )
        n = case.movement.n_subscriptions
        yield basics(case.name, DEFAULT, n, row["n_said"]) | case.told() | row


def _lived(matcher: MovingMatcher, trial: Trial) -> tuple[Row, dict[int, int]]:
    """Let a matcher live through some timestamps; return the rates, and checksums of updates."""
    (case, size), digest, sums = trial, Digest(), dict[int, int]()
    moves, arrivals, n_ends, number = Tally(), Tally(), 0, 0
    for number, step in enumerate(case.traffic().steps(), 1):
        found: list[Changes] = [matcher.advance(int(step.times[0]))]
        slots, clock_us = step.who.astype(np.int32), int(step.times[-1])
        before = matcher.n_messages
        for part in _parts(len(slots), size):
            times = step.times[part]
            reports = reports_of(step.places[part], 0)._replace(times=times, clocks=times)
            call = partial(matcher.move, slots[part], reports)
            found.append(moves.add(len(times), call, matcher.settle))
        n_ends += before - matcher.n_messages
        given = messages_of(step.said, clock_us)
        for part in _parts(len(given.times), size):
            call = partial(matcher.publish, take_messages(given, np.arange(part.start, part.stop)))
            found.append(arrivals.add(part.stop - part.start, call, matcher.settle))
        # Not as they come: calls of another size cut them elsewhere.
        for name in ("slots", "signs", "reasons", "sequences"):
            digest.add([np.concatenate([getattr(changes, name) for changes in found])])
        sums[number] = digest.value
        if number == N_STEPS:
            break
    memory = matcher.memory()
    return {
        "batch_size": size,
        "n_steps": number,
        "n_moves": moves.n,
        "n_said": arrivals.n,
        "n_ends": n_ends,
        "ends_per_move": n_ends / max(moves.n, 1),
        "moves_per_s": 1e6 / max(moves.us, 1e-9),
        "messages_per_s": 1e6 / max(arrivals.us, 1e-9),
        "changes_per_move": moves.n_changes / max(moves.n, 1),
        "changes_per_message": arrivals.n_changes / max(arrivals.n, 1),
        "subscription_bytes": memory["subscriptions"] / max(matcher.n_subscriptions, 1),
        "message_bytes": memory["messages"] / max(matcher.n_messages, 1),
        "structure_bytes": memory["structure"] / max(matcher.n_subscriptions, 1),
        "checksum": shown(sums[number]),
    }, sums


def _parts(n: int, size: int) -> Iterator[slice]:
    """Yield so many rows at a time."""
    for start, stop in pairwise([*range(0, n, size), n]):
        yield slice(start, stop)
