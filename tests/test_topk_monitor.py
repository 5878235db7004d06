"""Every way to monitor top-k results, in lock-step with the oracle.

The world is small, so that scores and times are equal, windows are empty and full, and
subscriptions want more messages than there are. Changes are compared bit for bit, their order
included.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import earshot.semantics.topk.monitor
import earshot.semantics.topk.window
from earshot import storage
from earshot.checks.generate import ragged
from earshot.checks.topk_oracle import Line, OracleMonitor
from earshot.model.arrays import Float64s, Int32s
from earshot.semantics.topk import DISSEMINATIONS, REEVALUATIONS
from earshot.semantics.topk.kernels.arrays import (
    FIRST_SEGMENT,
    FIRST_SEQUENCE,
    N_ENTRIES,
    STOP_SEGMENT,
    Changes,
)
from earshot.semantics.topk.monitor import Counters, Monitor
from earshot.semantics.topk.window import Window
from topk_cases import (
    TopkCase,
    TopkRecipe,
    assert_same_changes,
    lines_of,
    make_topk_case,
    messages_of,
    places_of,
    run,
    small_recipe,
)

SMALL_DISSEMINATIONS: dict[str, list[dict[str, Any]]] = {
    "igpt": [{"cell_capacity": 2, "n_groups": 2}],
}
SMALL_REEVALUATIONS: dict[str, list[dict[str, Any]]] = {
    "kmax": [{"factor": 1.0}, {"factor": 3.0}],
    "skyband": [{"factor": 1.0}, {"factor": 0.5}],
    "cskyband": [{"search_weight": 0.01}, {"search_weight": 1000.0}],
}


class Way(NamedTuple):
    """How a monitor works inside."""

    dissemination: Any
    reevaluation: Any


def choices(
    registry: Mapping[str, type], unusual: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    """Return the names of a registry, and what some of them are with unusual parameters."""
    chosen: dict[str, Any] = {name: name for name in registry}
    for name, each in unusual.items():
        if name in registry:
            chosen |= {f"{name} {parameters}": registry[name](**parameters) for parameters in each}
    return chosen


DISSEMINATION_CHOICES = choices(DISSEMINATIONS, SMALL_DISSEMINATIONS)
REEVALUATION_CHOICES = choices(REEVALUATIONS, SMALL_REEVALUATIONS)
WAYS = {
    f"{first} + {second}": Way(one, other)
    for first, one in DISSEMINATION_CHOICES.items()
    for second, other in REEVALUATION_CHOICES.items()
}
PLAIN = {name: way for name, way in WAYS.items() if {str} == set(map(type, way))}
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
each_plain_way = pytest.mark.parametrize("way", PLAIN.values(), ids=PLAIN)


class Limits(NamedTuple):
    """Sizes from which a monitor works otherwise than before, so that small cases pass them too."""

    pending_most: int = 1024
    young_share: int = 8
    least_segment: int = 256
    few_segments: int = 4
    least_shared: int = 1024

    def set(self, patches: pytest.MonkeyPatch) -> None:
        patches.setattr(earshot.semantics.topk.monitor, "PENDING_MOST", self.pending_most)
        patches.setattr(earshot.semantics.topk.monitor, "YOUNG_SHARE", self.young_share)
        patches.setattr(earshot.semantics.topk.window, "LEAST_SEGMENT", self.least_segment)
        patches.setattr(earshot.semantics.topk.window, "FEW_SEGMENTS", self.few_segments)
        patches.setattr(earshot.semantics.topk.monitor, "LEAST_SHARED", self.least_shared)


SMALL_LIMITS = Limits(
    pending_most=6, young_share=8, least_segment=70, few_segments=1, least_shared=2
)


def monitor_of(way: Way, settings_: dict[str, Any]) -> Monitor:
    return Monitor(
        dissemination=way.dissemination, reevaluation=way.reevaluation, n_threads=2, **settings_
    )


# ---- seeded cases -------------------------------------------------------------------------------

LONG = {
    "count": TopkRecipe(
        seed=21,
        window=60,
        n_subscriptions=200,
        n_messages=400,
        n_tokens=20,
        max_keywords=5,
        max_message_tokens=8,
        changes=0.1,
        max_batch=20,
        grid=4,
    ),
    "time": TopkRecipe(
        seed=22,
        space="lonlat",
        window=None,
        duration_us=90,
        lateness_us=40,
        n_subscriptions=200,
        n_messages=400,
        n_tokens=20,
        max_keywords=5,
        max_message_tokens=8,
        changes=0.1,
        max_batch=20,
        grid=4,
    ),
}
LONG["many messages"] = TopkRecipe(
    seed=24,
    window=300,
    n_subscriptions=20,
    n_messages=500,
    n_tokens=3,
    max_keywords=3,
    max_message_tokens=3,
    changes=0.3,
    max_k=12,
    grid=0,
)
MERGED = TopkRecipe(
    seed=25,
    window=80,
    n_subscriptions=20,
    n_messages=800,
    n_tokens=6,
    changes=0.1,
    max_k=8,
    grid=0,
)
LARGE = TopkRecipe(
    seed=23,
    window=500,
    n_subscriptions=2000,
    n_messages=3000,
    n_tokens=150,
    skew=0.8,
    max_message_tokens=8,
    max_k=20,
    changes=0.05,
    max_batch=100,
    grid=0,
)


def changes_of(
    monitor: Monitor | OracleMonitor, case: TopkCase, folder: Path | None = None
) -> list[Any]:
    """Return the changes of each call; where there is a folder, go on from there now and then."""
    found = []
    for number, call in enumerate(case.calls):
        changes = run(monitor, call)
        if changes is not None:
            found.append(changes)
        if folder is not None and number % 5 == 4:
            assert isinstance(monitor, Monitor)
            storage.save(folder / str(number), monitor.contents())
            monitor = Monitor.open(storage.Saved.open(folder / str(number)))
    return found


@lru_cache(maxsize=64)
def expected_changes(recipe: TopkRecipe) -> list[list[Line]]:
    case = make_topk_case(recipe)
    return changes_of(OracleMonitor(**case.settings), case)


def assert_same_run(found: list[Changes], expected: list[list[Line]]) -> None:
    assert len(found) == len(expected)
    for number, (left, right) in enumerate(zip(found, expected, strict=True)):
        assert_same_changes(left, right, f"call {number}")


@each_way
def test_small_cases(way: Way) -> None:
    for seed in range(1, 13):
        case = make_topk_case(small_recipe(seed))
        found = changes_of(monitor_of(way, case.settings), case)
        assert_same_run(found, expected_changes(small_recipe(seed)))


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@each_plain_way
def test_saved_and_opened_monitors_go_on(way: Way, tmp_path: Path) -> None:
    for seed in range(1, 5):
        case = make_topk_case(small_recipe(seed))
        found = changes_of(monitor_of(way, case.settings), case, made(tmp_path / str(seed)))
        assert_same_run(found, expected_changes(small_recipe(seed)))


@each_way
@pytest.mark.parametrize("recipe", LONG.values(), ids=LONG)
def test_longer_cases(way: Way, recipe: TopkRecipe, monkeypatch: pytest.MonkeyPatch) -> None:
    SMALL_LIMITS.set(monkeypatch)
    case = make_topk_case(recipe)
    found = changes_of(monitor_of(way, case.settings), case)
    assert_same_run(found, expected_changes(recipe))


def test_longer_cases_reach_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    SMALL_LIMITS.set(monkeypatch)
    work: dict[str, int] = dict.fromkeys(Counters._fields, 0)
    for recipe in LONG.values():
        case = make_topk_case(recipe)
        monitor = Monitor(**case.settings, reevaluation="skyband")
        changes_of(monitor, case)
        for name, count in monitor.counters._asdict().items():
            work[name] += count
    parts = ("evicted", "visits", "reevaluations", "searches", "search_blocks", "search_postings")
    assert all(work[name] > 50 for name in parts), work


@pytest.mark.parametrize("reevaluation", REEVALUATIONS)
def test_segments_are_merged_before_many_searches(
    reevaluation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Limits(least_segment=10, few_segments=2).set(monkeypatch)
    monkeypatch.setattr(earshot.semantics.topk.monitor, "MESSAGES_PER_SEARCH", 1_000_000)
    merged = []
    merge = Window.merge_segments

    def counted(window: Window) -> None:
        n_before = n_segments(window)
        merge(window)
        merged.append((n_before, n_segments(window)))

    monkeypatch.setattr(Window, "merge_segments", counted)
    case = make_topk_case(MERGED)
    monitor = Monitor(**case.settings, reevaluation=reevaluation)
    assert_same_run(changes_of(monitor, case), expected_changes(MERGED))
    assert sum(before > after for before, after in merged) > 3, merged
    assert all(after in (before, 2) for before, after in merged), merged


def n_segments(window: Window) -> int:
    facts = window.segments.facts
    return int(facts[STOP_SEGMENT] - facts[FIRST_SEGMENT])


@pytest.mark.parametrize("first", [2**31, 2**32, 2**32 + 2**31])
@pytest.mark.parametrize("reevaluation", REEVALUATIONS)
def test_sequences_may_be_large(
    first: int, reevaluation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    SMALL_LIMITS.set(monkeypatch)
    first -= 150  # so that low bits begin anew within the run
    for recipe in LONG.values():
        case = make_topk_case(recipe)
        monitor = Monitor(**case.settings, reevaluation=reevaluation)
        monitor._messages.arrays.facts[FIRST_SEQUENCE] = first
        monitor._messages.segments.first_sequences[0] = first
        found = [
            changes._replace(sequences=changes.sequences - first)
            for changes in changes_of(monitor, case)
        ]
        assert_same_run(found, expected_changes(recipe))


@pytest.mark.parametrize("n_threads", [1, 3])
def test_entries_that_were_given_back_are_used_again(
    n_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    SMALL_LIMITS.set(monkeypatch)
    case = make_topk_case(LONG["many messages"])
    monitor = Monitor(**case.settings, n_threads=n_threads)
    changes_of(monitor, case)
    held = []
    for weight in range(1, 20):
        monitor.reweigh(np.array([1.0, weight]), 1.0)
        held.append(int(monitor._buffers.facts[N_ENTRIES]))
    assert monitor.n_buffered > 100
    assert held[-1] < 1.5 * held[0], held


@lru_cache(maxsize=1)
def large_case() -> tuple[TopkCase, list[list[Line]]]:
    case = make_topk_case(LARGE)
    found = changes_of(monitor_of(next(iter(PLAIN.values())), case.settings), case)
    return case, [lines_of(changes) for changes in found]


@each_plain_way
def test_all_ways_agree(way: Way) -> None:
    case, expected = large_case()
    assert sum(map(len, expected)) > 10_000
    assert_same_run(changes_of(monitor_of(way, case.settings), case), expected)


# ---- any order of calls -------------------------------------------------------------------------

Row = tuple[tuple[int, int], list[int], float, int]  # place, tokens, alpha, k
Post = tuple[tuple[int, int], dict[int, int], int]  # place, counts of tokens, how much later

spots = st.tuples(st.integers(0, 2), st.integers(0, 2))
tokens = st.integers(1, 5)
rows = st.tuples(
    spots,
    st.lists(tokens, min_size=1, max_size=4, unique=True),
    st.sampled_from([0.5, 0.0, 1.0, 0.3]),
    st.integers(1, 4),
)
posts = st.tuples(
    spots,
    st.dictionaries(tokens, st.sampled_from([1, 1, 2]), max_size=4),
    st.sampled_from([0, 0, 0, 1, 1, 2, -1, -3, 5, 20]),
)
weights = st.sampled_from([1.0, 1.5, 2.71828, 7.25])


def places(chosen: list[tuple[int, int]]) -> Float64s:
    return places_of(np.array(chosen, np.float64).reshape(-1, 2), "planar")


class MonitorMachine(RuleBasedStateMachine):
    """What a monitor says against what the oracle says, call by call."""

    dissemination: Any

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="earshot-topk-"))
        self.n_saves = 0
        self.clock = 0
        self.patches = pytest.MonkeyPatch()

    def teardown(self) -> None:
        self.patches.undo()
        shutil.rmtree(self.folder)

    @initialize(
        reevaluation=st.sampled_from(list(REEVALUATION_CHOICES.values())),
        size=st.integers(1, 12),
        is_timed=st.booleans(),
        max_distance=st.sampled_from([3.0, 1.5]),
        limits=st.sampled_from(
            [Limits(), Limits(0, 8, 1, 1, 1), Limits(2, 0, 3, 1, 3), Limits(1, 4, 5, 2, 2)]
        ),
        rows=st.lists(rows, min_size=1, max_size=5),
        posts=st.lists(posts, min_size=1, max_size=10),
    )
    def start(
        self,
        reevaluation: Any,
        size: int,
        is_timed: bool,
        max_distance: float,
        limits: Limits,
        rows: list[Row],
        posts: list[Post],
    ) -> None:
        limits.set(self.patches)
        self.duration = size if is_timed else None
        chosen = {
            "window": None if is_timed else size,
            "duration_us": self.duration,
            "max_distance": max_distance,
        }
        self.monitor = monitor_of(Way(self.dissemination, reevaluation), chosen)
        self.oracle = OracleMonitor(**chosen)  # type: ignore[arg-type]
        self.subscribe(rows)
        self.publish(posts)

    def both(self, method: str, *arguments: Any) -> None:
        """Call a method of both and compare what they return."""
        found = getattr(self.monitor, method)(*arguments)
        expected = getattr(self.oracle, method)(*arguments)
        if expected is not None:
            assert_same_changes(found, expected, method)

    def slots(self, data: st.DataObject) -> Int32s:
        live = st.sampled_from(self.oracle.slots)
        return np.array(data.draw(st.lists(live, min_size=1, max_size=4, unique=True)), np.int32)

    @rule(rows=st.lists(rows, min_size=1, max_size=3))
    def subscribe_some(self, rows: list[Row]) -> None:
        self.subscribe(rows)

    def subscribe(self, rows: list[Row]) -> None:
        where, words, alphas, ks = zip(*rows, strict=True)
        self.both(
            "subscribe",
            places(list(where)),
            *ragged(list(words)),
            np.array(alphas),
            np.array(ks, np.int32),
        )

    @precondition(lambda self: self.oracle.n_subscriptions)
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        self.both("unsubscribe", self.slots(data))

    @precondition(lambda self: self.oracle.n_subscriptions)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        slots = self.slots(data)
        where = data.draw(st.lists(spots, min_size=len(slots), max_size=len(slots)))
        self.both("move", slots, places(where))

    @rule(post=posts)
    def publish_one(self, post: Post) -> None:
        self.publish([post])

    @rule(posts=st.lists(posts, min_size=2, max_size=5))
    def publish_many(self, posts: list[Post]) -> None:
        self.publish(posts)

    def publish(self, posts: list[Post]) -> None:
        where, counts, _ = zip(*posts, strict=True)
        times = [self.time(later) for _, _, later in posts]
        self.both("publish", messages_of(list(counts), places(list(where)), times))

    def time(self, later: int) -> int:
        """Return a time for a message; late ones are not so late that the window is over."""
        if self.duration is not None:
            later = max(later, 1 - self.duration)
        time = self.clock + later
        self.clock = max(self.clock, time)
        return time

    @rule(later=st.sampled_from([0, 1, 3, 8, 50, -5]))
    def advance(self, later: int) -> None:
        self.both("advance", self.clock + later)
        self.clock += max(later, 0)

    @rule(chosen=st.lists(weights, max_size=5), later_weight=weights)
    def reweigh(self, chosen: list[float], later_weight: float) -> None:
        self.both("reweigh", np.array(chosen, np.float64), later_weight)

    @rule()
    def save_and_open(self) -> None:
        self.n_saves += 1
        directory = self.folder / str(self.n_saves)
        storage.save(directory, self.monitor.contents())
        self.monitor = Monitor.open(storage.Saved.open(directory), n_threads=2)

    @rule()
    def compact(self) -> None:
        old_slots = self.monitor.compacted()
        if old_slots is not None:
            self.oracle.renumber(old_slots)

    @invariant()
    def is_the_same(self) -> None:
        if not hasattr(self, "monitor"):
            return
        monitor, oracle = self.monitor, self.oracle
        assert monitor.n_slots == oracle.n_slots
        assert monitor.n_subscriptions == oracle.n_subscriptions
        assert monitor.n_messages == oracle.n_messages
        assert monitor.next_sequence == oracle.next_sequence
        assert monitor.first_sequence <= oracle.first_sequence
        slots = np.array(oracle.slots[::-1], np.int32)
        found = monitor.results(slots)
        assert [str(each.dtype) for each in found] == ["int64", "int64", "float64"]
        pairs = list(
            zip(found.sequences.tolist(), map(float.hex, found.scores.tolist()), strict=True)
        )
        for (start, stop), expected in zip(
            pairwise(found.offsets.tolist()), oracle.results(slots), strict=True
        ):
            assert pairs[start:stop] == [(sequence, score.hex()) for sequence, score in expected]


@pytest.mark.parametrize("dissemination", DISSEMINATION_CHOICES.values(), ids=DISSEMINATION_CHOICES)
def test_any_order_of_calls(dissemination: Any) -> None:
    machine = type("Machine", (MonitorMachine,), {"dissemination": dissemination})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=20,
            stateful_step_count=40,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
