"""Shards: every subscription in one, every message to those that can match it, and no further."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earshot import storage
from earshot.bench.placement import Scene, measure_whole, simulate
from earshot.checks.generate import Case, Recipe, make_case, ragged
from earshot.errors import InvalidInput, InvalidParameter
from earshot.indexes.block_trie.index import BlockTrie
from earshot.model.arrays import (
    EVERYWHERE_TOKEN,
    ClauseArrays,
    Float64s,
    Int32s,
    Int64s,
    MessageArrays,
    box_clauses,
    take_clauses,
    take_messages,
)
from earshot.placement.cutting import busiest_share, cut_plan
from earshot.placement.plan import ShardPlan
from earshot.placement.routing import Router, UnitArrays, merge_units, units_of

INF = math.inf

RECIPES = {
    "plain": Recipe(),
    "crossing": Recipe(
        seed=2, space="lonlat", n_unknown_tokens=5, several=0.3, unbounded=0.1, crossing=0.3,
        message_side=0.2,
    ),
    "shapes": Recipe(seed=3, space="lonlat", shapes=0.5, forbidden=0.3, message_side=0.1),
    "touching": Recipe(seed=4, grid=10.0, message_side=0.1, several=0.5, everywhere=0.2),
    "few": Recipe(seed=5, n_subscriptions=3),
    "none": Recipe(seed=6, n_subscriptions=0, n_messages=7),
    "silent": Recipe(seed=7, n_messages=0),
    "one token": Recipe(seed=8, n_tokens=1, max_keywords=1, everywhere=0.0),
    "one place": Recipe(seed=9, side=0.0, extent=(5.0, 5.0, 5.0, 5.0)),
    "everywhere": Recipe(seed=10, everywhere=1.0, unbounded=1.0),
}  # fmt: skip


def counted(case: Case) -> Int64s:
    """Return the frequencies of tokens in the messages; some tokens of clauses are beyond them."""
    return np.bincount(case.messages.token_ids, minlength=20).astype(np.int64)


def n_slots_of(clauses: ClauseArrays) -> int:
    return int(clauses.subscriptions.max(initial=-1)) + 1


def half(case: Case) -> tuple[ClauseArrays, MessageArrays]:
    """Return every second subscription and message, as a sample."""
    return (
        take_clauses(case.clauses, np.flatnonzero(case.clauses.subscriptions % 2 == 0)),
        take_messages(case.messages, np.arange(0, len(case.messages.boxes), 2)),
    )


def plan_of(case: Case, n_shards: int) -> ShardPlan:
    clauses, messages = half(case)
    return cut_plan(
        clauses,
        messages,
        n_shards,
        frequencies=counted(case),
        n_subscriptions=n_slots_of(case.clauses),
    )[0]


def filed_token(row: list[int], frequencies: Int64s) -> int:
    known = [token for token in row if 0 < token < len(frequencies)]
    return min(known, key=lambda token: (frequencies[token], token), default=EVERYWHERE_TOKEN)


def units_by_hand(
    clauses: ClauseArrays, shards: Int32s, frequencies: Int64s
) -> dict[tuple[int, int], list[float]]:
    units: dict[tuple[int, int], list[float]] = {}
    for c, slot in enumerate(clauses.subscriptions.tolist()):
        row = clauses.token_ids[clauses.token_offsets[c] : clauses.token_offsets[c + 1]].tolist()
        low_x, low_y, high_x, high_y = clauses.boxes[c].tolist()
        unit = units.setdefault(
            (filed_token(row, frequencies), int(shards[slot])), [INF, INF, -INF, -INF]
        )
        unit[:] = [
            min(unit[0], low_x),
            min(unit[1], low_y),
            max(unit[2], high_x),
            max(unit[3], high_y),
        ]
    return units


def as_dict(units: UnitArrays) -> dict[tuple[int, int], list[float]]:
    rows = zip(units.tokens.tolist(), units.pieces.tolist(), units.boxes.tolist(), strict=True)
    return {(token, shard): box for token, shard, box in rows}


def meets(box: list[float], other: list[float]) -> bool:
    return box[0] <= other[2] and other[0] <= box[2] and box[1] <= other[3] and other[1] <= box[3]


def routes_by_hand(
    units: dict[tuple[int, int], list[float]], messages: MessageArrays
) -> list[list[int]]:
    routes = []
    for m, (min_x, min_y, max_x, max_y) in enumerate(messages.boxes.tolist()):
        start, stop = messages.token_offsets[m : m + 2]
        tokens = set(messages.token_ids[start:stop].tolist())
        boxes = [[min_x, min_y, max_x, max_y]]
        if min_x > max_x:
            boxes = [[min_x, min_y, 180.0, max_y], [-180.0, min_y, max_x, max_y]]
        hit = {
            shard
            for (token, shard), unit in units.items()
            if token in tokens and any(meets(unit, box) for box in boxes)
        }
        routes.append(sorted(hit))
    return routes


def as_lists(offsets: Int64s, values: Int32s) -> list[list[int]]:
    return [part.tolist() for part in np.split(values, offsets[1:-1])] if len(offsets) > 1 else []


def matched(case: Case, rows: Int64s, slots: Int64s, frequencies: Int64s) -> set[tuple[int, int]]:
    """Return pairs of message and slot, from an index of some slots asked with some messages."""
    chosen = take_clauses(case.clauses, np.flatnonzero(np.isin(case.clauses.subscriptions, slots)))
    numbers = np.searchsorted(slots, chosen.subscriptions).astype(np.int32)
    index = BlockTrie.build(
        chosen._replace(subscriptions=numbers), space=case.space, frequencies=frequencies
    )
    found = index.match(take_messages(case.messages, rows))
    messages = np.repeat(rows, np.diff(found.offsets))
    return set(zip(messages.tolist(), slots[found.subscriptions].tolist(), strict=True))


@pytest.mark.parametrize("n_shards", [1, 2, 7])
@pytest.mark.parametrize("recipe", [pytest.param(r, id=name) for name, r in RECIPES.items()])
def test_shards_answer_what_one_index_answers(recipe: Recipe, n_shards: int) -> None:
    case = make_case(recipe)
    check_case(case, plan_of(case, n_shards))


@settings(max_examples=25, deadline=None)
@given(
    st.builds(
        Recipe,
        seed=st.integers(0, 10**6),
        space=st.sampled_from(["lonlat", "planar"]),
        n_subscriptions=st.integers(0, 40),
        n_messages=st.integers(0, 20),
        n_tokens=st.integers(1, 30),
        n_unknown_tokens=st.integers(0, 3),
        side=st.sampled_from([0.0, 0.1, 1.0]),
        message_side=st.sampled_from([0.0, 0.1]),
        grid=st.sampled_from([0.0, 30.0]),
        everywhere=st.sampled_from([0.0, 0.3]),
        forbidden=st.sampled_from([0.0, 0.3]),
        several=st.sampled_from([0.0, 1.0]),
        unbounded=st.sampled_from([0.0, 0.5]),
    ),
    st.integers(1, 12),
)
def test_shards_answer_what_one_index_answers_in_any_case(recipe: Recipe, n_shards: int) -> None:
    case = make_case(recipe)
    check_case(case, plan_of(case, n_shards))


def check_case(case: Case, plan: ShardPlan) -> None:
    frequencies = counted(case)
    n_slots = n_slots_of(case.clauses)
    shards = plan.assign(case.clauses, frequencies)
    assert shards.shape == (n_slots,)
    assert ((shards >= 0) & (shards < plan.n_shards)).all()

    units = units_of(case.clauses, shards, frequencies)
    assert as_dict(units) == units_by_hand(case.clauses, shards, frequencies)

    offsets, targets = Router(units, plan.n_shards).route(case.messages)
    assert as_lists(offsets, targets) == routes_by_hand(as_dict(units), case.messages)

    rows = np.repeat(np.arange(len(case.messages.boxes)), np.diff(offsets))
    every_row, every_slot = np.arange(len(case.messages.boxes)), np.arange(n_slots)
    parts = [
        matched(case, rows[targets == shard], np.flatnonzero(shards == shard), frequencies)
        for shard in range(plan.n_shards)
    ]
    whole = matched(case, every_row, every_slot, frequencies)
    assert set().union(*parts) == whole
    assert sum(map(len, parts)) == len(whole)


def test_an_assignment_does_not_depend_on_the_others() -> None:
    case = make_case(RECIPES["crossing"])
    plan, frequencies = plan_of(case, 7), counted(case)
    shards = plan.assign(case.clauses, frequencies)
    assert len(set(shards.tolist())) == 7
    slots = np.array([3, 500, 1100])
    some = take_clauses(case.clauses, np.flatnonzero(np.isin(case.clauses.subscriptions, slots)))
    assert plan.assign(some, frequencies)[slots].tolist() == shards[slots].tolist()
    assert plan.assign(some, frequencies)[4] == -1


def test_tokens_unknown_to_the_plan_are_ignored() -> None:
    case = make_case(RECIPES["plain"])
    plan, frequencies = plan_of(case, 4), counted(case)
    boxes = np.array([[0.0, 0.0, 1.0, 1.0]] * 4)
    known = box_clauses([0, 1, 3, 4, 5], [3, 3, 900, EVERYWHERE_TOKEN, 901], boxes)
    shards = plan.assign(known, frequencies)
    assert shards[0] == shards[1]
    assert (shards >= 0).all()
    units = as_dict(units_of(known, shards, frequencies))
    assert {token for token, _ in units} == {3, EVERYWHERE_TOKEN}


def test_the_order_of_tokens_does_not_matter() -> None:
    tokens = np.arange(1, 13).reshape(4, 3)
    boxes = np.zeros((400, 4))
    offsets = 3 * np.arange(401)
    straight = box_clauses(offsets, np.tile(tokens, (100, 1)).reshape(-1), boxes)
    turned = box_clauses(offsets, np.tile(tokens[:, ::-1], (100, 1)).reshape(-1), boxes)
    frequencies = np.full(13, 5)
    plan, _ = cut_plan(straight, points([], []), 3, frequencies=frequencies)
    shards = plan.assign(straight, frequencies)
    assert (shards == plan.assign(turned, frequencies)).all()


def test_units_merge_to_the_units_of_all() -> None:
    case = make_case(RECIPES["touching"])
    frequencies = counted(case)
    shards = plan_of(case, 5).assign(case.clauses, frequencies)
    n = len(case.clauses.subscriptions)
    parts = [
        units_of(take_clauses(case.clauses, rows), shards, frequencies)
        for rows in (np.arange(0, n, 3), np.arange(1, n, 3), np.arange(2, n, 3), np.arange(0))
    ]
    whole = units_of(case.clauses, shards, frequencies)
    merged = merge_units(parts)
    for got, expected in zip(merged, whole, strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(expected), strict=True)
    assert len(merge_units([]).tokens) == 0


def test_an_edge_and_a_corner_meet() -> None:
    units = UnitArrays(
        np.array([0, 1], np.int32),
        np.array([1, 0], np.int32),
        np.array([[0.0, 0.0, 1.0, 1.0], [-INF, 2.0, INF, 3.0]]),
    )
    places = np.array([[1.0, 1.0], [np.nextafter(1.0, 2.0), 1.0], [9.0, 3.0], [1.0, -1e-300]])
    messages = points([[0], [0, 1], [0, 1], [0]], places)
    assert as_lists(*Router(units, 2).route(messages)) == [[1], [], [0], []]


def test_many_shards_come_in_order() -> None:
    n = 3000
    shards = np.random.default_rng(1).permutation(n).astype(np.int32)
    order = np.arange(n, dtype=np.int32)
    boxes = np.tile([0.0, 0.0, 1.0, 1.0], (n, 1))
    router = Router(UnitArrays(order // 10, shards, boxes), n)
    messages = points([list(range(300)), [0], list(range(5))], np.full((3, 2), 0.5))
    found = as_lists(*router.route(messages))
    assert found == [list(range(n)), sorted(shards[:10].tolist()), sorted(shards[:50].tolist())]


def points(tokens: list[list[int]], places: Float64s | list[list[float]]) -> MessageArrays:
    places = np.asarray(places, np.float64).reshape(-1, 2)
    return MessageArrays(*ragged(tokens), np.concatenate([places, places], axis=1))


def test_a_frequent_token_is_cut_in_space() -> None:
    random = np.random.default_rng(1)
    centres = random.random((2000, 2))
    clauses = box_clauses(
        np.arange(2001), np.ones(2000), np.concatenate([centres, centres + 0.01], axis=1)
    )
    messages = points([[0, 1]] * 500, random.random((500, 2)))
    _, report = cut_plan(clauses, messages, 8, frequencies=np.array([500, 500]))
    assert report.cuts["x"] + report.cuts["y"] == 7
    assert report.replication < 1.5
    assert report.balance < 1.3


def test_a_crowded_place_is_cut_by_token() -> None:
    random = np.random.default_rng(1)
    tokens = random.integers(1, 101, 2000)
    clauses = box_clauses(np.arange(2001), tokens, np.tile([0.0, 0.0, 1.0, 1.0], (2000, 1)))
    messages = points([[0, int(t)] for t in random.integers(1, 101, 500)], np.full((500, 2), 0.5))
    frequencies = np.bincount(messages.token_ids, minlength=101)
    plan, report = cut_plan(clauses, messages, 8, frequencies=frequencies)
    assert report.cuts["token"] == 7
    assert report.replication <= 1.0
    assert report.balance < 1.3
    assert len(np.unique(plan.assign(clauses, frequencies))) == 8


def test_words_of_one_topic_stay_together() -> None:
    random = np.random.default_rng(1)
    tokens = random.integers(1, 41, 4000)
    clauses = box_clauses(np.arange(4001), tokens, np.tile([0.0, 0.0, 1.0, 1.0], (4000, 1)))
    topics = random.integers(0, 4, 500)  # tokens 1, 5, 9, … are one topic
    rows = [[0, *(1 + topic + 4 * random.permutation(10)[:5])] for topic in topics.tolist()]
    frequencies = np.bincount(np.concatenate(rows), minlength=41)
    _, report = cut_plan(clauses, points(rows, np.full((500, 2), 0.5)), 4, frequencies=frequencies)
    assert report.replication < 1.6  # by hash: about 3


def test_large_regions_are_kept_away_from_small_ones() -> None:
    random = np.random.default_rng(1)
    centres = random.random((4000, 2))
    halves = np.where(np.arange(4000) % 2, 0.5, 0.005)[:, None]
    boxes = np.concatenate([centres - halves, centres + halves], axis=1)
    clauses = box_clauses(np.arange(4001), np.ones(4000), boxes)
    messages = points([[0, 1]] * 500, random.random((500, 2)))
    _, report = cut_plan(clauses, messages, 8, frequencies=np.array([500, 500]))
    assert report.cuts["size"] >= 1
    assert report.replication < 7


def test_clauses_that_differ_in_nothing_else_are_cut_by_content() -> None:
    tokens = np.stack([np.ones(1000), np.arange(2, 1002)], axis=1).reshape(-1)
    clauses = box_clauses(2 * np.arange(1001), tokens, np.tile([0.0, 0.0, 1.0, 1.0], (1000, 1)))
    frequencies = np.append([10, 1], np.full(1000, 5))
    plan, report = cut_plan(clauses, points([[0, 1]], [[0.5, 0.5]]), 4, frequencies=frequencies)
    assert report.cuts["content"] == 3
    counts = np.bincount(plan.assign(clauses, frequencies))
    assert busiest_share(counts) < 1.1


def test_a_crowd_of_one_token_at_one_place_is_cut_in_spite_of_an_outlier() -> None:
    tokens = np.stack([np.ones(1000), np.arange(2, 1002)], axis=1).reshape(-1)
    boxes = np.tile([0.0, 0.0, 1.0, 1.0], (1000, 1))
    boxes[0] += 5.0
    clauses = box_clauses(2 * np.arange(1001), tokens, boxes)
    frequencies = np.append([10, 1], np.full(1000, 5))
    messages = points([[0, 1]] * 10, np.full((10, 2), 0.5))
    plan, _ = cut_plan(clauses, messages, 2, frequencies=frequencies)
    assert busiest_share(np.bincount(plan.assign(clauses, frequencies))) < 1.1


def test_shards_are_even_in_bytes_where_work_lies_elsewhere() -> None:
    """Half of the subscriptions are where nothing happens; half of the messages are in one town."""
    random = np.random.default_rng(1)
    centres = np.concatenate([random.random((8_000, 2)), 5 + 5 * random.random((8_000, 2))])
    boxes = np.concatenate([centres, centres + 0.02], axis=1)
    # Some of those where nothing happens are wordy.
    lengths = np.where(np.arange(16_000) < 12_000, 1, 4)
    tokens = random.integers(1, 201, lengths.sum())
    offsets = np.append(0, np.cumsum(lengths))
    clauses = box_clauses(offsets, tokens, boxes)
    places = np.concatenate([0.2 * random.random((1_000, 2)), random.random((1_000, 2))])
    rows = [[0, *random.permutation(200)[:8] + 1] for _ in range(2_000)]
    messages = points(rows, places)
    frequencies = np.bincount(messages.token_ids, minlength=201)
    plan, report = cut_plan(clauses, messages, 8, frequencies=frequencies)
    assert report.balance < 1.5
    assert report.balance_of_bytes < 1.5
    assert report.replication < 4
    shards = plan.assign(clauses, frequencies)
    assert np.bincount(shards, minlength=8).tolist() == report.subscriptions.tolist()
    assert busiest_share(np.bincount(shards, 100 + 8 * lengths)) < 1.5
    units = units_of(clauses, plan.pieces(clauses, frequencies), frequencies)
    router = Router(units, 8, plan.arrays.piece_shards)
    assert np.bincount(router.route(messages)[1]).tolist() == report.messages.tolist()


def test_what_a_sample_did_not_show_is_spread_all_the_same() -> None:
    case = make_case(RECIPES["plain"])
    nothing, silence = take_clauses(case.clauses, np.arange(0)), points([], [])
    for sample in (nothing, take_clauses(case.clauses, np.array([7]))):
        plan, report = cut_plan(sample, silence, 6, frequencies=counted(case))
        assert report.replication == 0.0
        counts = np.bincount(plan.assign(case.clauses, counted(case)), minlength=6)
        assert counts.min() > 0.5 * counts.mean()
        check_case(case, plan)


def test_identical_subscriptions_share_a_shard() -> None:
    clauses = box_clauses(np.arange(101), np.ones(100), np.zeros((100, 4)))
    frequencies = np.array([3, 3])
    plan, report = cut_plan(
        clauses, points([[0, 1]] * 3, np.zeros((3, 2))), 4, frequencies=frequencies
    )
    assert len(np.unique(plan.assign(clauses, frequencies))) == 1
    assert sorted(report.subscriptions.tolist()) == [0, 0, 0, 100]


def test_the_report_counts_what_the_plan_does() -> None:
    case = make_case(RECIPES["touching"])
    frequencies = counted(case)
    plan, report = cut_plan(case.clauses, case.messages, 6, frequencies=frequencies)
    shards = plan.assign(case.clauses, frequencies)
    assert report.subscriptions.tolist() == np.bincount(shards, minlength=6).tolist()
    router = Router(units_of(case.clauses, shards, frequencies), 6)
    _, targets = router.route(case.messages)
    assert report.messages.tolist() == np.bincount(targets, minlength=6).tolist()
    assert report.replication == len(targets) / len(case.messages.boxes)
    facts = json.loads(json.dumps(report.facts()))
    assert facts["n_shards"] == 6
    assert facts["shards_per_message"] == report.replication
    assert sum(report.cuts.values()) == 5


def test_a_simulation_loses_and_repeats_nothing() -> None:
    case = make_case(RECIPES["shapes"])
    plan, frequencies = plan_of(case, 5), counted(case)
    shards = plan.assign(case.clauses, frequencies)
    messages = case.messages
    scene = Scene("shapes", case.clauses, messages, messages, frequencies, case.space)
    done, whole = simulate(scene, shards, 5), measure_whole(scene)
    assert done.by_shard["answers"].sum() == whole.answers > 0
    assert done.by_shard["subscriptions"].sum() == n_slots_of(case.clauses)
    assert done.facts(whole, len(messages.boxes))["shards_per_message"] <= 5


def test_a_plan_is_saved_and_opened(tmp_path: Path) -> None:
    case = make_case(RECIPES["plain"])
    plan, frequencies = plan_of(case, 6), counted(case)
    storage.save(tmp_path / "plan", plan.contents())
    opened = ShardPlan.open(storage.Saved.open(tmp_path / "plan"))
    assert opened.n_shards == 6
    shards = plan.assign(case.clauses, frequencies)
    assert (opened.assign(case.clauses, frequencies) == shards).all()


def test_wrong_parameters_are_named() -> None:
    case = make_case(RECIPES["few"])
    frequencies = counted(case)
    with pytest.raises(InvalidParameter, match="n_shards is 0"):
        cut_plan(case.clauses, case.messages, 0, frequencies=frequencies)
    with pytest.raises(InvalidParameter, match="n_subscriptions is 2, but the sample has 3"):
        cut_plan(case.clauses, case.messages, 2, frequencies=frequencies, n_subscriptions=2)
    with pytest.raises(InvalidParameter, match="message_cost"):
        cut_plan(case.clauses, case.messages, 2, frequencies=frequencies, message_cost=-1.0)
    shards = np.full(3, 2, np.int32)
    with pytest.raises(InvalidInput, match="piece 2; expected pieces 0 to 1"):
        Router(units_of(case.clauses, shards, frequencies), 2)
