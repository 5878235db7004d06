"""The oracle of top-k over a window, against examples that were worked out by hand."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from earshot.checks.generate import ragged
from earshot.checks.topk_oracle import Line, OracleMonitor
from earshot.semantics.topk.kernels.arrays import REASONS, Changes
from topk_cases import (
    assert_same_changes,
    lines_of,
    make_topk_case,
    messages_of,
    places_of,
    run,
    small_recipe,
)

WORDS = ("coffee", "fire", "noodles", "pizza", "smoke")
TOKENS = {word: token for token, word in enumerate(WORDS, 1)}
HALF = float(np.float32(1 / math.sqrt(2)))  # weight of each of two words that weigh the same


def points(*pairs: tuple[float, float]) -> np.ndarray:
    return places_of(np.array(pairs, np.float64).reshape(-1, 2), "planar")


class World:
    """An oracle on the plane that is spoken to in words; distances count up to 10."""

    def __init__(self, *, window: int | None = None, duration: int | None = None) -> None:
        self.oracle = OracleMonitor(window=window, duration_us=duration, max_distance=10.0)

    def subscribe(
        self, words: str, x: float = 0.0, y: float = 0.0, *, alpha: float = 0.5, k: int = 1
    ) -> list[Line]:
        offsets, tokens = ragged([[TOKENS[word] for word in words.split()]])
        return self.oracle.subscribe(
            points((x, y)), offsets, tokens, np.array([alpha]), np.array([k], np.int32)
        )

    def publish(self, words: str, x: float = 0.0, y: float = 0.0, time: int = 0) -> list[Line]:
        counts = Counter(TOKENS[word] for word in words.split())
        return self.oracle.publish(messages_of([dict(counts)], points((x, y)), [time]))

    def move(self, slot: int, x: float, y: float) -> list[Line]:
        return self.oracle.move(np.array([slot], np.int32), points((x, y)))

    def reweigh(self, later: float = 1.0, **weights: float) -> list[Line]:
        known = [later] * (max(TOKENS[word] for word in weights) + 1)
        for word, weight in weights.items():
            known[TOKENS[word]] = weight
        return self.oracle.reweigh(np.array(known), later)

    def result(self, slot: int = 0) -> list[tuple[int, float]]:
        (found,) = self.oracle.results([slot])
        return found


def test_coupons_of_the_paper() -> None:
    """[PVLDB16] example 1, with places and words of our own: the figure's scores are lost."""
    world = World(window=4)
    world.subscribe("pizza", 0, 0)
    world.subscribe("noodles", 4, 0)
    world.subscribe("coffee", 0, 4)
    assert world.publish("pizza", 0, 0) == [(0, "+", "match", 0, 0, 1.0)]
    assert world.publish("noodles", 4, 0) == [(0, "+", "match", 1, 1, 1.0)]
    assert world.publish("pizza", 3, 4) == []  # 5 away: 0.75, and the first is better
    assert world.publish("coffee", 6, 12) == [(0, "+", "match", 2, 3, 0.5)]  # 10 away
    assert world.publish("coffee", 0, 4) == [
        (0, "-", "expired", 0, 0, 1.0),
        (0, "+", "refill", 0, 2, 0.75),
        (0, "-", "displaced", 2, 3, 0.5),
        (0, "+", "match", 2, 4, 1.0),
    ]
    assert [world.result(slot) for slot in range(3)] == [[(2, 0.75)], [(1, 1.0)], [(4, 1.0)]]


def test_of_equal_scores_the_newer_is_better() -> None:
    world = World(window=3)
    world.subscribe("fire", k=2)
    for _ in range(2):
        world.publish("fire")
    assert world.result() == [(1, 1.0), (0, 1.0)]
    assert world.publish("fire") == [
        (0, "-", "displaced", 0, 0, 1.0),
        (0, "+", "match", 0, 2, 1.0),
    ]
    assert world.result() == [(2, 1.0), (1, 1.0)]


def test_of_equal_scores_the_later_time_is_better_however_it_arrived() -> None:
    world = World(duration=10)
    world.subscribe("fire")
    world.publish("fire", time=5)
    assert world.publish("fire", time=4) == []
    assert world.publish("fire", time=5) == [
        (0, "-", "displaced", 0, 0, 1.0),
        (0, "+", "match", 0, 2, 1.0),
    ]


def test_a_shared_word_is_needed_whatever_alpha_is() -> None:
    world = World(window=5)
    world.subscribe("fire", alpha=1.0, k=2)
    world.subscribe("fire", alpha=0.0, k=2)
    assert world.publish("smoke", 0, 0) == []
    assert world.publish("", 0, 0) == []
    # Far away: relevant with a score of 0.
    assert world.publish("fire", 30, 0) == [
        (0, "+", "match", 0, 2, 0.0),
        (0, "+", "match", 1, 2, 1.0),
    ]


def test_alpha_1_is_the_place_alone_and_alpha_0_the_text() -> None:
    world = World(window=5)
    world.subscribe("fire smoke", alpha=1.0, k=3)
    world.subscribe("fire smoke", alpha=0.0, k=3)
    world.publish("fire", 0, 0)
    world.publish("fire smoke", 6, 8)
    world.publish("smoke pizza", 3, 4)
    assert world.result(0) == [(0, 1.0), (2, 0.5), (1, 0.0)]
    assert world.result(1) == [(1, HALF * HALF + HALF * HALF), (0, HALF), (2, HALF * HALF)]


def test_distances_are_straight_lines_in_space() -> None:
    radius_m = 6_371_008.8
    oracle = OracleMonitor(window=5, max_distance=2 * radius_m)
    sphere = places_of(np.array([[0.0, 0.0], [0.0, 0.0], [90.0, 0.0], [180.0, 0.0]]), "lonlat")
    oracle.subscribe(sphere[:1], *ragged([[1]]), np.array([1.0]), np.array([3], np.int32))
    oracle.publish(messages_of([{1: 1}] * 3, sphere[1:], [0, 0, 0]))
    scores = [score for _, score in oracle.results([0])[0]]
    assert scores == pytest.approx([1.0, 1 - math.sqrt(0.5), 0.0], abs=1e-15)


def test_fewer_relevant_than_wanted() -> None:
    world = World(window=2)
    assert world.subscribe("fire", k=3) == []
    assert world.publish("fire") == [(0, "+", "match", 0, 0, 1.0)]
    assert world.publish("pizza") == []
    assert world.publish("pizza") == [(0, "-", "expired", 0, 0, 1.0)]
    assert world.result() == []


def test_a_new_subscription_gets_what_is_in_the_window_best_first() -> None:
    world = World(window=3)
    for x in (0, 5, 10, 5):
        world.publish("fire", x, 0)
    assert world.subscribe("fire", k=2) == [
        (0, "+", "subscribe", 0, 3, 0.75),
        (0, "+", "subscribe", 0, 1, 0.75),
    ]


def test_a_window_of_one() -> None:
    world = World(window=1)
    world.subscribe("fire")
    world.publish("fire", 0, 0)
    assert world.publish("fire", 5, 0) == [
        (0, "-", "expired", 0, 0, 1.0),
        (0, "+", "match", 0, 1, 0.75),
    ]


def test_slots_come_in_order_within_a_step() -> None:
    world = World(window=2)
    world.subscribe("fire")
    world.subscribe("fire", 5, 0)
    world.publish("fire", 5, 0)
    world.publish("fire", 0, 0)
    assert world.publish("pizza") == [
        (0, "-", "expired", 1, 0, 1.0),
        (0, "+", "refill", 1, 1, 0.75),
    ]
    assert world.publish("fire", 5, 0) == [
        (0, "-", "expired", 0, 1, 1.0),
        (0, "-", "expired", 1, 1, 0.75),
        (0, "+", "match", 0, 3, 0.75),
        (0, "+", "match", 1, 3, 1.0),
    ]


# ---- time ---------------------------------------------------------------------------------------


def test_a_jump_in_time_empties_the_window_message_by_message() -> None:
    world = World(duration=10)
    world.subscribe("fire")
    for x, time in ((0, 1), (4, 2), (8, 2)):
        world.publish("fire", x, 0, time)
    near, middle, far = 1.0, 0.5 * (1 - 4 / 10) + 0.5, 0.5 * (1 - 8 / 10) + 0.5
    assert world.publish("fire", 8, 0, 100) == [
        (0, "-", "expired", 0, 0, near),
        (0, "+", "refill", 0, 1, middle),
        (0, "-", "expired", 0, 1, middle),
        (0, "+", "refill", 0, 2, far),
        (0, "-", "expired", 0, 2, far),
        (0, "+", "match", 0, 3, far),
    ]
    assert (world.oracle.n_messages, world.oracle.first_sequence) == (1, 3)


def test_a_message_is_in_the_window_for_less_than_its_length() -> None:
    world = World(duration=10)
    world.subscribe("fire")
    world.publish("fire", time=5)
    assert world.oracle.advance(14) == []
    assert world.oracle.advance(3) == []  # the clock does not go back
    assert world.oracle.advance(15) == [(0, "-", "expired", 0, 0, 1.0)]
    assert world.oracle.advance(1000) == []


def test_a_late_message_expires_before_those_that_arrived_before_it() -> None:
    world = World(duration=10)
    world.subscribe("fire", k=2)
    world.publish("fire", 0, 0, time=10)
    assert world.publish("fire", 5, 0, time=5) == [(0, "+", "match", 0, 1, 0.75)]
    assert world.oracle.advance(15) == [(0, "-", "expired", 0, 1, 0.75)]
    assert world.result() == [(0, 1.0)]
    with pytest.raises(ValueError, match="outside the window at clock 15"):
        world.publish("fire", time=5)


def test_a_count_window_has_no_clock() -> None:
    world = World(window=2)
    world.subscribe("fire", k=2)
    world.publish("fire", time=100)
    world.publish("fire", time=1)
    assert world.result() == [(1, 1.0), (0, 1.0)]
    assert world.oracle.advance(10**15) == []
    assert world.publish("pizza", time=0) == [(0, "-", "expired", 0, 0, 1.0)]


def test_rows_say_which_message_of_the_call_it_was() -> None:
    oracle = OracleMonitor(window=1, max_distance=10.0)
    offsets, tokens = ragged([[1]])
    oracle.subscribe(points((0, 0)), offsets, tokens, np.array([0.0]), np.array([1], np.int32))
    batch = messages_of([{1: 1}, {2: 1}, {1: 1}], points(*[(0, 0)] * 3), [0, 0, 0])
    assert oracle.publish(batch) == [
        (0, "+", "match", 0, 0, 1.0),
        (1, "-", "expired", 0, 0, 1.0),
        (2, "+", "match", 0, 2, 1.0),
    ]


# ---- subscriptions and weights change -----------------------------------------------------------


def test_moving_changes_only_what_enters_and_leaves() -> None:
    world = World(window=5)
    world.subscribe("fire", 0, 0, k=2)
    for x in (0, 4, 10):
        world.publish("fire", x, 0)
    assert [sequence for sequence, _ in world.result()] == [0, 1]
    assert world.move(0, 10, 0) == [(0, "-", "move", 0, 0, 1.0), (0, "+", "move", 0, 2, 1.0)]
    assert world.result() == [(2, 1.0), (1, 0.5 * (1 - 6 / 10) + 0.5)]
    assert world.move(0, 7, 0) == []  # both stay, with other scores
    assert world.result()[1] == (1, 0.5 * (1 - 3 / 10) + 0.5)


def test_what_leaves_and_enters_by_a_move_is_best_first() -> None:
    world = World(window=5)
    world.subscribe("fire", 0, 0, alpha=1.0, k=2)
    for x in (5, 0, 30, 25):
        world.publish("fire", x, 0)
    assert world.move(0, 30, 0) == [
        (0, "-", "move", 0, 1, 1.0),
        (0, "-", "move", 0, 0, 0.5),
        (0, "+", "move", 0, 2, 1.0),
        (0, "+", "move", 0, 3, 0.5),
    ]


def test_reweighing_weighs_the_window_anew() -> None:
    world = World(window=5)
    world.subscribe("fire smoke", alpha=0.0)
    world.publish("fire")
    world.publish("smoke")
    assert world.result() == [(1, HALF)]
    heavy = float(np.float32(3 / math.sqrt(10)))
    assert world.reweigh(fire=3.0, smoke=1.0) == [
        (0, "-", "reweigh", 0, 1, HALF),
        (0, "+", "reweigh", 0, 0, heavy),
    ]
    assert world.reweigh(fire=9.0, smoke=3.0) == []  # the same vectors
    assert world.result() == [(0, heavy)]


def test_occurrences_and_later_words_count() -> None:
    world = World(window=5)
    world.subscribe("fire", alpha=0.0)
    assert world.publish("fire smoke fire") == [
        (0, "+", "match", 0, 0, float(np.float32(2 / math.sqrt(5))))
    ]
    # The weights know tokens up to fire's; smoke comes later.
    assert world.reweigh(fire=1.0, later=2.0) == []
    assert world.result() == [(0, HALF)]


def test_slots_are_not_used_again_unless_renumbered() -> None:
    world = World(window=5)
    for x in (0, 5, 10):
        world.subscribe("fire", x, 0)
    world.publish("fire", 0, 0)
    world.oracle.unsubscribe(np.array([1], np.int32))
    world.subscribe("fire", 10, 0)
    assert (world.oracle.slots, world.oracle.n_slots) == ([0, 2, 3], 4)
    with pytest.raises(ValueError, match=r"expected the live ones, \[0, 2, 3\]"):
        world.oracle.renumber(np.array([0, 3, 2], np.int32))
    world.oracle.renumber(np.array([0, 2, 3], np.int32))
    assert (world.oracle.slots, world.oracle.n_slots) == ([0, 1, 2], 3)
    assert world.publish("fire", 10, 0) == [
        (0, "-", "displaced", 1, 0, 0.5),
        (0, "+", "match", 1, 1, 1.0),
        (0, "-", "displaced", 2, 0, 0.5),
        (0, "+", "match", 2, 1, 1.0),
    ]


def test_a_window_is_by_count_or_by_time() -> None:
    with pytest.raises(ValueError, match="exactly one"):
        OracleMonitor(max_distance=1.0)
    with pytest.raises(ValueError, match="exactly one"):
        OracleMonitor(window=1, duration_us=1, max_distance=1.0)


# ---- random cases -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(1, 13))
def test_changes_add_up_to_the_results(seed: int) -> None:
    case = make_topk_case(small_recipe(seed))
    oracle = OracleMonitor(**case.settings)
    held: dict[int, set[int]] = {}
    for call in case.calls:
        for _, sign, _, slot, sequence, _ in run(oracle, call) or []:
            result = held.setdefault(slot, set())
            assert (sequence in result) == (sign == "-")
            result ^= {sequence}
        for slot, kept in zip(oracle.slots, oracle.results(oracle.slots), strict=True):
            assert {sequence for sequence, _ in kept} == held.get(slot, set())
            assert all(better >= worse for (_, better), (_, worse) in pairwise(kept))
        assert oracle.n_messages <= (oracle.window or 10**9)


def test_random_cases_reach_every_reason_and_are_full_of_ties() -> None:
    reasons, n_equal, n_pairs = Counter[str](), 0, 0
    for seed in range(1, 13):
        case = make_topk_case(small_recipe(seed))
        oracle = OracleMonitor(**case.settings)
        for call in case.calls:
            reasons.update(line[2] for line in run(oracle, call) or [])
            for result in oracle.results(oracle.slots):
                pairs = [better == worse for (_, better), (_, worse) in pairwise(result)]
                n_equal += sum(pairs)
                n_pairs += len(pairs)
    assert set(reasons) == set(REASONS)
    assert n_equal > 0.1 * n_pairs > 0


def test_random_cases_are_the_same_each_time() -> None:
    for first, second in zip(
        make_topk_case(small_recipe(4)).calls, make_topk_case(small_recipe(4)).calls, strict=True
    ):
        assert first.method == second.method
        np.testing.assert_equal(first.arguments, second.arguments)


def test_differences_are_told() -> None:
    changes = Changes(
        np.zeros(1, np.int32),
        np.ones(1, np.int8),
        np.zeros(1, np.int8),
        np.zeros(1, np.int32),
        np.zeros(1, np.int64),
        np.ones(1, np.float64),
    )
    line: Line = (0, "+", "match", 0, 0, 1.0)
    assert lines_of(changes) == [line]
    assert_same_changes(changes, [line])
    with pytest.raises(AssertionError, match="1 changes, expected 0"):
        assert_same_changes(changes, [])
    with pytest.raises(AssertionError, match="change 0 is"):
        assert_same_changes(changes._replace(scores=np.nextafter(changes.scores, 2.0)), [line])
    with pytest.raises(AssertionError, match="types are"):
        assert_same_changes(changes._replace(slots=changes.slots.astype(np.int64)), [line])
    with pytest.raises(AssertionError, match="bits of score"):
        assert_same_changes(changes._replace(scores=0.0 * changes.scores), [(*line[:-1], -0.0)])
