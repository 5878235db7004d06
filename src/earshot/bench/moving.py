"""Structures for moving subscribers, measured as [VLDBJ15] section 5.2 does.

A case is a workload on a road network. Its subscriptions and first messages are taken in once, by
the default structure; every structure is built over a copy of them, and then lives through the same
timestamps. In each, messages that are due end, then subscribers report positions, then messages
arrive; the three are timed apart, by processor time. The paper calls the time of an arrival IMM and
that of a move MSP. All updates must be the same, in the same order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from earshot.bench.checksums import Digest, check_agreement, shown
from earshot.bench.context import Context, peak_memory
from earshot.bench.results import Row, basics
from earshot.model.arrays import (
    BOX,
    CIRCLE,
    EVERYWHERE_TOKEN,
    POSITION,
    AnchoredRegions,
    Float64s,
    Int32s,
    Int64s,
    LivingMessages,
    MovingArrays,
    Reports,
    no_shapes,
    offsets_of,
)
from earshot.model.moving import Moving
from earshot.semantics.contract import Changes
from earshot.semantics.moving import STRUCTURES, find_structure
from earshot.semantics.moving.contract import Scan
from earshot.semantics.moving.kernels.parts import drop_messages, follow_slots, match_messages
from earshot.semantics.moving.matcher import MovingMatcher
from earshot.workloads.moving import Movement, Network, Said, Traffic, Words, lattice

DEFAULT = next(iter(STRUCTURES))
ROADS = {"city": 100, "county": 300}
"""Networks by name: how many streets run along a side of the map."""

WORDS: dict[str, dict[str, Any]] = {
    "tweets": {"n_words": 100_000, "tokens": (3, 15)},
    "gn": {"n_words": 208_000, "tokens": (3, 11)},
}
"""Vocabulary and words per message of the data sets of [VLDBJ15] Table 2."""

DATA = tuple(f"{words}-{roads}" for words in WORDS for roads in ROADS)
"""As the paper's TWEETS-ODB, TWEETS-SAN, GN-ODB and GN-SAN."""

MOBILITIES = (0.1, 0.2, 0.4, 0.6, 0.8)
VELOCITIES = (0.5, 1.0, 2.0, 3.0, 4.0)

_LIFETIME = Moving(timedelta(days=1))  # every message says when it ends
_SUBSCRIPTIONS_PER_CALL = 100_000
_PARTS_MOST = 10_000


class Case(NamedTuple):
    """A workload, and what it is called."""

    name: str
    movement: Movement
    is_round: bool = False  # whether regions are circles

    @property
    def label(self) -> str:
        """Name in messages."""
        told = self.movement
        return (
            f"{self.name}, {told.n_subscriptions:,} x {told.n_messages:,}, mobility "
            f"{told.mobility:g}, velocity {told.velocity:g}, regions {told.area:g}, arrivals "
            f"{told.arrivals:,}"
        )

    def told(self) -> Row:
        """Return what only rows of moving subscribers tell."""
        told = self.movement
        return {
            "n_live": told.n_messages,
            "mobility": told.mobility,
            "velocity": told.velocity,
            "arrivals": told.arrivals,
            "region_area": told.area,
            "n_timestamps": told.n_timestamps,
        }

    def traffic(self) -> Traffic:
        """Return the workload from its start."""
        return Traffic(self.movement, _network(self.name.partition("-")[2]))


@lru_cache
def _network(name: str) -> Network:
    return lattice(ROADS[name], 1)


class Trial(NamedTuple):
    """A structure on a case."""

    case: Case
    structure: str


def structures() -> list[str]:
    """Return the structures that Figs. 19 to 25 compare, the default first.

    Safe regions are for clients that report seldom, as in Figs. 26 and 27. Here everybody reports.
    """
    return [
        name
        for name, each in STRUCTURES.items()
        if each is not Scan and not each.keeps_safe_regions
    ]


def measure(context: Context, trials: Iterable[Trial]) -> Iterator[Row]:
    """Yield the row of each trial."""
    context.release()
    store: Store = context.shared.setdefault("moving", Store(context))
    for trial in trials:
        yield store.row_of(trial)


def measure_parts(context: Context, trials: Iterable[Trial]) -> Iterator[Row]:
    """Yield how long it takes to insert a message, and to follow a subscriber, of each trial."""
    context.release()
    store: Store = context.shared.setdefault("moving", Store(context))
    for case, name in trials:
        matcher = store.started(case).matcher.restructured(find_structure(name))
        yield {
            **basics(case.name, name, case.movement.n_subscriptions, case.movement.n_messages),
            **case.told(),
            **_parts(matcher, case.traffic()),
        }


class SafeTrial(NamedTuple):
    """A structure on a case in which clients report every move, or only from unsafe places."""

    case: Case
    structure: str
    is_safe: bool

    @property
    def name(self) -> str:
        """Name in tables and figures."""
        keeps = STRUCTURES[self.structure].keeps_safe_regions
        return f"{self.structure}_safe" if self.is_safe and not keeps else self.structure


def measure_safe(context: Context, trials: Iterable[SafeTrial]) -> Iterator[Row]:
    """Yield reports and processing time of each trial; in the end all hold the same."""
    context.release()
    store: Store = context.shared.setdefault("moving", Store(context))
    held: dict[Case, dict[str, dict[int, int]]] = {}
    for trial in trials:
        case = trial.case
        if trial.name not in store.warm:  # nothing is compiled while it is timed
            small = _small(case)
            _heard(_started(small).matcher.restructured(find_structure(trial.structure)),
                   trial._replace(case=small), 60.0)  # fmt: skip
            store.warm.add(trial.name)
        matcher = store.started(case).matcher.restructured(find_structure(trial.structure))
        # Those who wait for others are compared after as many timestamps.
        row, sums = _heard(matcher, trial, context.profile.moving.budget_s)
        held.setdefault(case, {})[trial.name] = sums
        check_agreement(case.label, held[case])
        context.say(
            f"{case.label}: {trial.name}, {row['reports_per_timestamp']:,.0f} reports and "
            f"{row['ms_per_timestamp']:,.1f} ms a timestamp; {peak_memory()}"
        )
        n = case.movement.n_subscriptions
        yield basics(case.name, trial.name, n, case.movement.n_messages) | case.told() | row


def _heard(matcher: MovingMatcher, trial: SafeTrial, budget_s: float) -> tuple[Row, dict[int, int]]:
    """Let clients report when they must; return what that took, and what they held at times."""
    case, n_reports, n_needed, n_sent, number = trial.case, 0, 0, 0, 0
    seconds, sums = 0.0, dict[int, int]()
    n = case.movement.n_subscriptions
    traffic = case.traffic()
    everybody, at = np.arange(n, dtype=np.int32), traffic.places.copy()
    centres, reaches = np.zeros((n, 2)), np.zeros(n)

    def timed(call: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal seconds
        began = time.thread_time()
        found = call(*arguments)
        matcher.settle()
        seconds += time.thread_time() - began
        return found

    def send(slots: Int32s) -> None:
        nonlocal n_sent
        n_sent += len(slots)
        _, centres[slots], reaches[slots] = timed(matcher.safe_areas, slots)

    def hear(slots: Int32s, clock_us: int) -> None:
        nonlocal n_reports, n_needed
        n_reports += len(slots)
        if len(slots):
            changes = timed(matcher.move, slots, reports_of(at[slots], clock_us))
            n_needed += len(np.unique(changes.slots))
            if trial.is_safe:
                send(slots)

    def outside(slots: Int32s) -> Int32s:
        if not trial.is_safe:
            return slots
        away = np.linalg.norm(at[slots] - centres[slots], axis=1) > reaches[slots]
        found: Int32s = slots[away]
        return found

    if trial.is_safe:
        send(everybody)
    for number, step in enumerate(traffic.steps(), 1):
        clock_us = int(step.times[0]) // 1_000_000 * 1_000_000
        at[step.who] = step.places
        timed(matcher.advance, clock_us)
        hear(outside(everybody), clock_us)
        timed(matcher.publish, messages_of(step.said, clock_us))
        if trial.is_safe:
            outdated = timed(matcher.outdated_safe_regions)
            send(outdated)
            hear(outside(outdated), clock_us)
        digest = Digest()
        digest.add(each for each in matcher.results(everybody[:_PARTS_MOST])[:2])
        sums[number] = digest.value
        if seconds > budget_s:
            break
    return {
        "n_steps": number,
        "reports_per_timestamp": n_reports / number,
        # Those that changed anything: of clients that always report, the fewest there can be.
        "needed_per_timestamp": n_needed / number,
        "regions_sent_per_timestamp": n_sent / number,
        "ms_per_timestamp": 1e3 * seconds / number,
        "checksum": shown(sums[number]),
        "checksums": {str(step): shown(value) for step, value in sums.items()},
    }, sums


# ---- arrays --------------------------------------------------------------------------------------


def subscriptions_of(case: Case, traffic: Traffic, start: int, stop: int) -> MovingArrays:
    """Return some of the subscriptions."""
    width, height = traffic.sides
    places, n = traffic.places[start:stop], stop - start
    frames = np.zeros((n, 4))
    if case.is_round:
        kind = CIRCLE
        frames[:, :2], frames[:, 2] = places, width / 2
    else:
        kind, halves = BOX, np.array([width / 2, height / 2])
        frames[:, :2], frames[:, 2:] = places - halves, places + halves
    offsets, ranks = traffic.keywords
    none = np.zeros(n, np.int64)
    return MovingArrays(
        np.arange(n + 1), offsets[start : stop + 1] - offsets[start],
        ranks[offsets[start] : offsets[stop]],
        _anchored(kind, frames), none, none, np.zeros(n, np.bool_),
    )  # fmt: skip


def messages_of(said: Said, clock_us: int | None = None) -> LivingMessages:
    """Return messages, all of them said at the clock, if there is one."""
    times = said.times if clock_us is None else np.full(len(said.times), clock_us)
    offsets, tokens = _with_everywhere(said.words)
    boxes = np.concatenate([said.places, said.places], axis=1)
    return LivingMessages(offsets, tokens, boxes, times, said.ends - said.times + times)


def reports_of(places: Float64s, clock_us: int) -> Reports:
    """Return positions, all of them reported at the clock."""
    frames = np.zeros((len(places), 4))
    frames[:, :2] = places
    clocks = np.full(len(places), clock_us)
    return Reports(_anchored(POSITION, frames), clocks, clocks)


def _anchored(kind: int, frames: Float64s) -> AnchoredRegions:
    n = len(frames)
    kinds, rows = np.full(n, kind, np.int8), np.full(n, -1, np.int32)
    return AnchoredRegions(kinds, frames, rows, no_shapes(), np.empty((0, 4)))


def _with_everywhere(words: Words) -> tuple[Int64s, Int32s]:
    """Return the words of messages as tokens, the one that all have among them."""
    counts = np.diff(words.offsets)
    offsets = offsets_of(counts + 1)
    tokens = np.full(offsets[-1], EVERYWHERE_TOKEN, np.int32)
    tokens[np.arange(len(words.ranks)) + np.repeat(np.arange(1, len(counts) + 1), counts)] = (
        words.ranks
    )
    return offsets, tokens


# ---- measuring -----------------------------------------------------------------------------------


class Started(NamedTuple):
    """A case at its start."""

    matcher: MovingMatcher
    checksum: int  # of what subscriptions were given to begin with


@dataclass
class Tally:
    """Processor time and work of one kind of event."""

    n: int = 0
    seconds: float = 0.0
    n_changes: int = 0
    counters: Int64s = field(default_factory=lambda: np.zeros(4, np.int64))

    def add(self, n: int, call: Callable[[], Changes], settle: Callable[[], Any]) -> Changes:
        """Time a call, and what it put off."""
        began = time.thread_time()
        changes = call()
        settle()
        self.seconds += time.thread_time() - began
        self.n += n
        self.n_changes += len(changes.slots)
        self.counters += np.array(changes.counters, np.int64)
        return changes

    @property
    def us(self) -> float:
        """Microseconds per event."""
        return 1e6 * self.seconds / max(self.n, 1)


@dataclass
class Store:
    """What the suites of one run keep for each other."""

    context: Context
    rows: dict[Trial, Row] = field(default_factory=dict)
    checksums: dict[Case, dict[str, dict[int, int]]] = field(default_factory=dict)
    warm: set[str] = field(default_factory=set)
    latest: tuple[Case, Started] | None = None

    def started(self, case: Case) -> Started:
        """Return a case at its start; the last one is kept."""
        if self.latest is None or self.latest[0] != case:
            self.latest = None
            self.latest = case, _started(case)
            self.context.say(f"{case.label}: started; {peak_memory()}")
        return self.latest[1]

    def row_of(self, trial: Trial) -> Row:
        """Return the row of a structure, measured when first asked for."""
        if trial not in self.rows:
            if trial.structure not in self.warm:  # nothing is compiled while it is timed
                _compile(trial)
                self.warm.add(trial.structure)
            row = self.rows[trial] = self._measure(trial)
            self.context.say(
                f"{trial.case.label}: {trial.structure}, {row['n_steps']} timestamps, "
                f"{row['move_us']:,.2f} µs a move, {row['message_us']:,.1f} µs a message; "
                f"{peak_memory()}"
            )
        return self.rows[trial]

    def _measure(self, trial: Trial) -> Row:
        case, name = trial
        started, budget_s = self.started(case), self.context.profile.moving.budget_s
        began = time.thread_time()
        matcher = started.matcher.restructured(find_structure(name))
        build_s = time.thread_time() - began
        sums, prefixes, tallies = lived(matcher, case, budget_s, started.checksum)
        ends, moves, arrivals = tallies
        of_case = self.checksums.setdefault(case, {})
        of_case[name] = sums
        check_agreement(case.label, of_case)
        n_steps, memory = max(sums), matcher.memory()
        told = {str(step): shown(value) for step, value in sums.items()}
        n = max(matcher.n_subscriptions, 1)
        return {
            **basics(case.name, name, case.movement.n_subscriptions, arrivals.n),
            **case.told(),
            "n_steps": n_steps,
            "n_moves": moves.n,
            "n_ends": ends.n,
            **prefixes[str(n_steps)],
            "prefixes": prefixes,
            "moves_per_s": 1e6 / max(moves.us, 1e-9),
            "messages_per_s": 1e6 / max(arrivals.us, 1e-9),
            "changes_per_move": moves.n_changes / max(moves.n, 1),
            "changes_per_message": arrivals.n_changes / max(arrivals.n, 1),
            "nodes_per_move": int(moves.counters[0]) / max(moves.n, 1),
            "candidates_per_move": int(moves.counters[1]) / max(moves.n, 1),
            "candidates_per_message": int(arrivals.counters[1]) / max(arrivals.n, 1),
            "subscription_bytes": memory["subscriptions"] / n,
            "message_bytes": memory["messages"] / max(matcher.n_messages, 1),
            "structure_bytes": memory["structure"] / n,
            "structure_megabytes": memory["structure"] / 1e6,
            "build_s": build_s,
            "checksum": told[str(n_steps)],
            "checksums": told,
        }


def _started(case: Case) -> Started:
    """Return a matcher with the messages and subscriptions of a case's start."""
    traffic, n = case.traffic(), case.movement.n_subscriptions
    matcher = MovingMatcher.create(
        _LIFETIME, structure=None, parameters=None, space="planar", n_threads=1
    )
    matcher.publish(messages_of(traffic.said))
    digest = Digest()
    for start in range(0, n, _SUBSCRIPTIONS_PER_CALL):
        stop = min(start + _SUBSCRIPTIONS_PER_CALL, n)
        add_changes(digest, matcher.subscribe(subscriptions_of(case, traffic, start, stop)))
        matcher.settle()
    return Started(matcher, digest.value)


def lived(
    matcher: MovingMatcher, case: Case, budget_s: float, checksum: int = 0
) -> tuple[dict[int, int], dict[str, Row], tuple[Tally, Tally, Tally]]:
    """Let a matcher live through the timestamps of a case, as many as there is time for.

    Return the checksum of all updates after each timestamp, the costs up to it, and the work of
    ends, moves and arrivals.
    """
    ends, moves, arrivals = tallies = Tally(), Tally(), Tally()
    digest, sums, prefixes = Digest(), {0: checksum}, dict[str, Row]()
    traffic = case.traffic()
    for number, step in enumerate(traffic.steps(), 1):
        clock_us = int(step.times[0]) // 1_000_000 * 1_000_000
        reports, given = reports_of(step.places, clock_us), messages_of(step.said, clock_us)
        before = matcher.n_messages
        slots = step.who.astype(np.int32)
        found = [ends.add(0, partial(matcher.advance, clock_us), matcher.settle)]
        ends.n += before - matcher.n_messages
        found.append(moves.add(len(slots), partial(matcher.move, slots, reports), matcher.settle))
        n_said = len(given.times)
        found.append(arrivals.add(n_said, partial(matcher.publish, given), matcher.settle))
        for changes in found:
            add_changes(digest, changes)
        sums[number] = digest.value
        prefixes[str(number)] = {
            "end_us": ends.us,
            "move_us": moves.us,
            "message_us": arrivals.us,
            "moves_ms_per_timestamp": 1e3 * moves.seconds / number,
        }
        if sum(each.seconds for each in tallies) > budget_s:
            break
    return sums, prefixes, tallies


def add_changes(digest: Digest, changes: Changes) -> None:
    """Take changes into a checksum."""
    digest.add(each for each in changes if isinstance(each, np.ndarray))


def _compile(trial: Trial) -> None:
    """Let a structure do everything once on a small case."""
    case = _small(trial.case)
    matcher = _started(case).matcher.restructured(find_structure(trial.structure))
    if STRUCTURES[trial.structure].keeps_safe_regions:  # not everybody would find one
        matcher.safe_areas(np.arange(case.movement.n_subscriptions, dtype=np.int32))
    lived(matcher, case, 60.0)


def _small(case: Case) -> Case:
    movement = replace(
        case.movement, n_subscriptions=200, n_messages=200, n_timestamps=2, arrivals=50,
        n_words=500,
    )  # fmt: skip
    return case._replace(movement=movement)


def _parts(matcher: MovingMatcher, traffic: Traffic) -> Row:
    """Return the time to insert a message, beyond matching it, and to follow a subscriber."""
    random = np.random.default_rng(1)
    rows = random.permutation(matcher.message_rows)[:_PARTS_MOST]
    step = next(traffic.steps())
    slots = step.who[:_PARTS_MOST].astype(np.int32)
    regions = reports_of(step.places[: len(slots)], 0).regions
    places = regions.kinds, regions.frames, regions.shape_rows

    def part_s(*part: Any) -> float:
        began = time.thread_time()
        matcher.run_part(*part)
        return time.thread_time() - began

    # At first few, so that nothing is compiled while it is timed.
    for n in (1, len(rows)):
        matcher.run_part(drop_messages, rows[:n])
        both_s = part_s(match_messages, rows[:n], True)
        match_s = part_s(match_messages, rows[:n], False)
    for n in (1, len(slots)):
        follow_s = part_s(follow_slots, slots[:n], *(each[:n] for each in places))
    return {
        "insert_us": 1e6 * max(both_s - match_s, 0.0) / len(rows),
        "match_us": 1e6 * match_s / len(rows),
        "follow_us": 1e6 * follow_s / len(slots),
    }


# ---- plans ---------------------------------------------------------------------------------------


def case_of(context: Context, name: str = DATA[0], **changed: Any) -> Case:
    """Return a case of the run's profile with something changed."""
    sizes = context.profile.moving
    movement = Movement(
        sizes.n_subscriptions, sizes.n_messages, sizes.n_timestamps, arrivals=sizes.arrivals,
        seed=context.seed, **WORDS[name.partition("-")[0]],
    )  # fmt: skip
    return Case(name, replace(movement, **changed))


def over_data(chosen: tuple[str, ...] = (), names: tuple[str, ...] = DATA) -> Any:
    """Return a plan of some structures, or of all, over data sets (Figs. 19 to 21)."""

    def plan(context: Context) -> Iterator[Trial]:
        for name in names:
            for structure in structures():
                if not chosen or structure in chosen:
                    yield Trial(case_of(context, name), structure)

    return plan


def over(name: str, values: tuple[float, ...] = ()) -> Any:
    """Return a plan of all structures over a field of the movement (Figs. 22 to 24).

    Without values, the profile has them.
    """

    def plan(context: Context) -> Iterator[Trial]:
        sizes = context.profile.moving
        for each in sizes.datasets:
            for value in values or sizes.areas:
                for structure in structures():
                    yield Trial(case_of(context, each, **{name: value}), structure)

    return plan


def over_sizes(context: Context) -> Iterator[Trial]:
    """Yield all structures over the number of subscriptions and messages (Fig. 25)."""
    sizes = context.profile.moving
    for data in sizes.datasets:
        for n in sizes.sizes:
            arrivals = round(sizes.arrivals * n / sizes.n_subscriptions)
            case = case_of(context, data, n_subscriptions=n, n_messages=n, arrivals=arrivals)
            for structure in structures():
                yield Trial(case, structure)


def over_arrivals(context: Context) -> Iterator[Trial]:
    """Yield all structures over the number of arrivals in a timestamp (Table 3)."""
    for arrivals in context.profile.moving.arrival_rates:
        for structure in structures():
            yield Trial(case_of(context, arrivals=arrivals), structure)


def _elaps(context: Context, n: int, arrivals: int) -> Case:
    """Return a case of the paper's comparison with Elaps: circles, and everybody moves.

    Messages live as long as keeps their number; at ten timestamps, most would end at once.
    """
    n_messages = context.profile.moving.elaps_messages
    return case_of(
        context, n_subscriptions=n, n_messages=n_messages, arrivals=arrivals, mobility=1.0,
        lifetime=n_messages / arrivals,
    )._replace(is_round=True)  # fmt: skip


def _safe_trials(case: Case) -> Iterator[SafeTrial]:
    for name, safe_name in ((DEFAULT, DEFAULT), ("ap_plus_tree", "ap_plus_tree_safe")):
        yield SafeTrial(case, name, False)
        yield SafeTrial(case, safe_name, True)


def over_clients(context: Context) -> Iterator[SafeTrial]:
    """Yield safe regions over the number of clients (Fig. 26)."""
    sizes = context.profile.moving
    for n in sizes.clients:
        yield from _safe_trials(_elaps(context, n, sizes.elaps_arrivals[0]))


def over_clients_arrivals(context: Context) -> Iterator[SafeTrial]:
    """Yield safe regions over the number of arrivals in a timestamp (Fig. 27)."""
    sizes = context.profile.moving
    for arrivals in sizes.elaps_arrivals:
        yield from _safe_trials(_elaps(context, sizes.clients[-1], arrivals))
