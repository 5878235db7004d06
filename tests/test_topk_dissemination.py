"""Dissemination structures find what a scan finds, whatever they leave out."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

from earshot.errors import InvalidParameter
from earshot.semantics.topk.ciq import Ciq
from earshot.semantics.topk.contract import Dissemination, Scan
from earshot.semantics.topk.igpt import ALL_RULES, Igpt
from earshot.semantics.topk.kernels.arrays import (
    BASE,
    CANDIDATES,
    CELLS,
    COUNTERS,
    GROUPS,
    NO_HOME,
    NOTHING_LOST,
    POSTINGS,
    YOUNG,
    Dispatch,
    Probe,
    Subscribers,
)
from earshot.semantics.topk.kernels.ciq import disseminate_ciq, set_threshold_ciq
from earshot.semantics.topk.kernels.igpt import RULES, disseminate_igpt, set_threshold_igpt
from earshot.semantics.topk.kernels.reach import disseminate_reach, set_threshold_reach
from earshot.semantics.topk.kernels.scan import disseminate_scan, set_threshold_scan
from earshot.semantics.topk.kernels.scoring import unit_vectors
from earshot.semantics.topk.reach import Reach

KERNELS: dict[str, Any] = {
    "scan": (disseminate_scan, set_threshold_scan),
    "igpt": (disseminate_igpt, set_threshold_igpt),
    "ciq": (disseminate_ciq, set_threshold_ciq),
    "reach": (disseminate_reach, set_threshold_reach),
}
STRUCTURES = [
    Igpt(),
    Igpt(cell_capacity=1, n_groups=1),
    Igpt(cell_capacity=7, n_groups=3),
    *[Igpt(cell_capacity=5, n_groups=4, rules=ALL_RULES - {rule}) for rule in RULES],
    *[Igpt(cell_capacity=5, n_groups=4, rules=frozenset({rule})) for rule in RULES],
    Igpt(cell_capacity=5, rules=frozenset()),
    Reach(),
    Ciq(),
    Ciq(levels=1),
    Ciq(levels=4),
]

Found = list[tuple[int, float]]


class Case(NamedTuple):
    """Subscriptions, all at home in BASE, and messages."""

    subscribers: Subscribers
    probes: list[Probe]
    max_distance: float


def name_of(structure: Any) -> str:
    if not isinstance(structure, Igpt):
        return str(structure)
    off = sorted(ALL_RULES - structure.rules)
    rules = "+".join(sorted(structure.rules)) if len(off) > 1 else f"all but {off}"
    return f"{structure.cell_capacity}/{structure.n_groups} {rules}"


def places_of(rng: Any, n: int, space: str) -> Any:
    """Return places with many ties, in the plane, on a line or on a sphere of radius 1."""
    if space == "sphere":
        lon, lat = rng.integers(-18, 19, n) * np.pi / 18, rng.integers(-9, 10, n) * np.pi / 18
        return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], 1)
    places = np.round(rng.normal(size=(n, 3)), 1)
    places[:, {"plane": [2], "line": [0, 2], "point": [0, 1, 2]}[space]] = 3.0
    return places


def vectors_of(rng: Any, n: int, n_tokens: int, most: int, idf: Any) -> tuple[Any, Any, Any]:
    """Return offsets, tokens and weights of random vectors, with few tokens often."""
    rows = [
        1 + rng.choice(n_tokens, min(n_tokens, rng.integers(1, most + 1)), replace=False)
        for _ in range(n)
    ]
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    tokens = np.concatenate([*rows, []]).astype(np.int32)
    counts = np.ones(len(tokens), np.uint16)
    sorted_tokens, weights = tokens.copy(), np.empty(len(tokens), np.float32)
    unit_vectors(offsets, tokens, counts, idf, 1.0, sorted_tokens, weights, counts.copy())
    return offsets, sorted_tokens, weights


def probes_of(places: Any, vectors: tuple[Any, Any, Any], n_weights: int) -> list[Probe]:
    probes = []
    offsets, tokens, weights = vectors
    for i, place in enumerate(places):
        mine = slice(offsets[i], offsets[i + 1])
        weight_of = np.zeros(n_weights, np.float32)
        weight_of[tokens[mine]] = weights[mine]
        n = np.array([mine.stop - mine.start])
        # More room than tokens: what is behind them must not count.
        padded = np.append(tokens[mine], [1]).astype(np.int32)
        probes.append(
            Probe(place.copy(), padded, np.append(weights[mine], np.float32(1)), n, weight_of)
        )
    return probes


def subscribers_of(rng: Any, places: Any, vectors: tuple[Any, Any, Any]) -> Subscribers:
    n = len(places)
    alphas = rng.random(n)
    alphas[rng.random(n) < 0.2] = 0.0
    alphas[rng.random(n) < 0.2] = 1.0
    alphas[rng.random(n) < 0.1] = 0.5
    return Subscribers(
        places,
        alphas,
        np.ones(n, np.int32),
        *vectors,
        thresholds=np.full(n, NOTHING_LOST),
        homes=np.full(n, BASE, np.int8),
        rows=np.arange(n, dtype=np.int32),
    )


def random_case(
    seed: int, n: int = 60, space: str = "plane", n_messages: int = 12, n_tokens: int = 12
) -> Case:
    rng = np.random.default_rng(seed)
    idf = np.round(rng.random(n_tokens + 5) * 3 + 0.5, int(rng.integers(0, 3)))
    idf = np.maximum(idf, 0.5)
    subscribers = subscribers_of(
        rng, places_of(rng, n, space), vectors_of(rng, n, n_tokens, 4, idf)
    )
    places = places_of(rng, n_messages, space)
    if space != "sphere":
        places[::3] *= 10.0  # outside of where subscriptions are, also in the axes they do not use
    # Messages have tokens that no subscription has.
    vectors = vectors_of(rng, n_messages, n_tokens + 4, 6, idf)
    case = Case(subscribers, probes_of(places, vectors, n_tokens + 5), [0.5, 2.0, 9.0][seed % 3])
    for slot in range(n):
        subscribers.thresholds[slot] = random_threshold(rng, case, slot)
    return case


@cache
def shared_case(seed: int, space: str) -> Case:
    """Return a case that no test changes."""
    return random_case(seed, space=space)


def random_threshold(rng: Any, case: Case, slot: int) -> float:
    """Return one that anything reaches, or that exactly one message does, or any."""
    kind = int(rng.integers(0, 6))
    if kind < 2:
        return [NOTHING_LOST, 0.0][kind]
    if kind == 2:
        return float(rng.random() * 1.2)
    probe = case.probes[rng.integers(0, len(case.probes))]
    alone = case.subscribers._replace(thresholds=np.full(len(case.subscribers.ks), NOTHING_LOST))
    alone.rows[slot], row = 0, alone.rows[slot]
    component = Scan().build(alone, np.array([slot], np.int32), case.max_distance)
    found, _ = find(Scan(), component, BASE, case._replace(subscribers=alone), probe)
    alone.rows[slot] = row
    score = found[0][1] if found else 0.7
    scores = [score, float(np.nextafter(score, 0)), float(np.nextafter(score, 2))]
    return scores[int(rng.integers(0, 3))]


def find(
    structure: Dissemination, component: Any, home: int, case: Case, probe: Probe
) -> tuple[Found, Any]:
    """Return what a component finds, behind what was found before, and the counters."""
    n = len(case.subscribers.ks)
    slots, scores = np.full(n + 2, -7, np.int32), np.full(n + 2, -7.0)
    counters = np.zeros(len(COUNTERS), np.int64)
    disseminate = KERNELS[structure.name][0]
    dispatch = Dispatch(case.subscribers, probe, case.max_distance, slots, scores, counters)
    n_found = disseminate(component, home, dispatch, 1)
    assert slots[0] == -7
    assert scores[0] == -7.0
    found = sorted(zip(slots[1:n_found].tolist(), scores[1:n_found].tolist(), strict=True))
    return found, counters


def check(structure: Dissemination, component: Any, case: Case) -> int:
    """Compare with a scan for all messages; return the number of answers."""
    n_found = 0
    scan = Scan().build(case.subscribers, component.slots, case.max_distance)
    for probe in case.probes:
        found, counters = find(structure, component, BASE, case, probe)
        expected, _ = find(Scan(), scan, BASE, case, probe)
        assert found == expected
        assert counters[CANDIDATES] <= len(component.slots)
        n_found += len(found)
    return n_found


def every_slot(case: Case) -> Any:
    return np.arange(len(case.subscribers.ks), dtype=np.int32)


@pytest.mark.parametrize("structure", STRUCTURES, ids=name_of)
@pytest.mark.parametrize("space", ["plane", "sphere", "line", "point"])
def test_it_finds_what_a_scan_finds(structure: Dissemination, space: str) -> None:
    n_found = 0
    for seed in range(6):
        case = shared_case(seed, space)
        n_found += check(
            structure, structure.build(case.subscribers, every_slot(case), case.max_distance), case
        )
    assert n_found > 100


@pytest.mark.parametrize("structure", STRUCTURES, ids=name_of)
@pytest.mark.parametrize("space", ["plane", "sphere"])
def test_it_follows_thresholds(structure: Dissemination, space: str) -> None:
    rng = np.random.default_rng(7)
    set_threshold = KERNELS[structure.name][1]
    for seed in range(3):
        case = random_case(seed + 40, space=space, n_messages=6)
        component: Any = structure.build(case.subscribers, every_slot(case), case.max_distance)
        for _ in range(4):
            for slot in rng.integers(0, len(component.slots), 25):
                case.subscribers.thresholds[slot] = random_threshold(rng, case, slot)
                set_threshold(component, case.subscribers, slot)
            check(structure, component, case)


@pytest.mark.parametrize("structure", [Igpt(cell_capacity=5, n_groups=3), Ciq()], ids=name_of)
def test_after_changes_it_is_as_if_built_anew(structure: Dissemination) -> None:
    rng = np.random.default_rng(3)
    case = random_case(5, n=200)
    component: Any = structure.build(case.subscribers, every_slot(case), case.max_distance)
    find(structure, component, BASE, case, case.probes[0])  # what is made at first use, is made
    for slot in rng.integers(0, 200, 400):
        case.subscribers.thresholds[slot] = rng.random()
        KERNELS[structure.name][1](component, case.subscribers, slot)
    rebuilt = structure.build(case.subscribers, every_slot(case), case.max_distance)
    for probe in case.probes:
        found, counters = find(structure, component, BASE, case, probe)
        expected, counters_anew = find(structure, rebuilt, BASE, case, probe)
        assert found == expected
        assert counters.tolist() == counters_anew.tolist()


@pytest.mark.parametrize("structure", [Igpt(cell_capacity=5), Igpt(), Ciq(), Reach()], ids=name_of)
def test_what_has_another_home_does_not_count(structure: Dissemination) -> None:
    rng = np.random.default_rng(1)
    case = random_case(11, n=80)
    slots = rng.permutation(80).astype(np.int32)[:60]
    case.subscribers.rows[slots] = np.arange(60)
    component: Any = structure.build(case.subscribers, slots, case.max_distance)
    whole = check(structure, component, case)
    gone, moved, other = slots[:10], slots[10:20], slots[20:30]
    case.subscribers.homes[gone] = NO_HOME
    case.subscribers.homes[moved] = YOUNG
    case.subscribers.rows[other] = 55
    case.subscribers.thresholds[slots[:30]] = NOTHING_LOST
    case.subscribers.places[slots[:30]] += 5.0
    assert 0 < check(structure, component, case) < whole
    for slot in other:  # the row it names is another's
        KERNELS[structure.name][1](component, case.subscribers, slot)
    check(structure, component, case)


@pytest.mark.parametrize("structure", [Igpt(), Ciq(), Reach()], ids=name_of)
def test_none_and_one(structure: Dissemination) -> None:
    case = random_case(2)
    assert (
        check(
            structure,
            structure.build(case.subscribers, every_slot(case)[:0], case.max_distance),
            case,
        )
        == 0
    )
    n_found = 0
    for slot in every_slot(case):
        case.subscribers.rows[slot] = 0
        component: Any = structure.build(
            case.subscribers, np.array([slot], np.int32), case.max_distance
        )
        n_found += check(structure, component, case)
    assert n_found > 0


@pytest.mark.parametrize("structure", [Igpt(cell_capacity=5), Ciq(), Reach()], ids=name_of)
def test_stamps_may_wrap(structure: Dissemination) -> None:
    case = random_case(3)
    component: Any = structure.build(case.subscribers, every_slot(case), case.max_distance)
    if isinstance(structure, Igpt):
        component.facts[1] = 0xFFFFFFFF - 3
    check(structure, component, case)


def test_equal_scores_of_equal_vectors_are_kept() -> None:
    """A message with the very words of a subscription, at its place, is worth 1 or a bit more."""
    rng = np.random.default_rng(0)
    idf = rng.random(40) + 0.1
    vectors = vectors_of(rng, 50, 39, 9, idf)
    places = rng.random((50, 3))
    subscribers = subscribers_of(rng, places, vectors)
    case = Case(subscribers, probes_of(places, vectors, 40), 1.0)
    for slot in range(50):
        own, _ = find(
            Scan(),
            Scan().build(subscribers, every_slot(case), case.max_distance),
            BASE,
            case,
            case.probes[slot],
        )
        subscribers.thresholds[slot] = dict(own)[slot]
    for structure in STRUCTURES:
        component = structure.build(subscribers, every_slot(case), case.max_distance)
        assert check(structure, component, case) >= 50


# ---- what is left out ----------------------------------------------------------------------------


def large_case(least: float = 0.55) -> Case:
    rng = np.random.default_rng(9)
    n, n_tokens, n_messages = 20_000, 2_000, 20
    popularity = 1.0 / np.arange(1, n_tokens + 1)
    popularity /= popularity.sum()
    idf = np.append(1.0, np.log(1.0 / popularity))

    def vectors(n_rows: int, length: int) -> tuple[Any, Any, Any]:
        drawn = 1 + rng.choice(n_tokens, (n_rows, length), p=popularity)
        rows = [np.unique(row) for row in drawn]
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        tokens = np.concatenate(rows).astype(np.int32)
        ones, weights = np.ones(len(tokens), np.uint16), np.empty(len(tokens), np.float32)
        out = tokens.copy()
        unit_vectors(offsets, tokens, ones, idf, 1.0, out, weights, ones.copy())
        return offsets, out, weights

    places, message_places = rng.random((n, 3)), rng.random((n_messages, 3))
    places[:, 2] = message_places[:, 2] = 0.0
    subscribers = subscribers_of(rng, places, vectors(n, 4))
    subscribers.alphas[:] = 0.3 + 0.4 * rng.random(n)
    subscribers.thresholds[:] = least + (0.9 - least) * rng.random(n)
    return Case(subscribers, probes_of(message_places, vectors(n_messages, 10), n_tokens + 1), 1.0)


def totals(structure: Dissemination, case: Case) -> tuple[int, dict[str, int]]:
    component: Any = structure.build(case.subscribers, every_slot(case), case.max_distance)
    total, n_found = np.zeros(len(COUNTERS), np.int64), 0
    for probe in case.probes:
        found, counters = find(structure, component, BASE, case, probe)
        total += counters
        n_found += len(found)
    return n_found, dict(zip(COUNTERS, total.tolist(), strict=True))


def test_structures_look_at_less() -> None:
    case = large_case()
    n_found, scan = totals(Scan(), case)
    n_igpt, igpt = totals(Igpt(), case)
    n_ciq, ciq = totals(Ciq(), case)
    assert n_found == n_igpt == n_ciq > 100
    assert igpt["postings"] < 0.1 * ciq["postings"]
    assert ciq["postings"] < scan["postings"]
    assert max(igpt["candidates"], ciq["candidates"]) < 0.02 * scan["candidates"]


@pytest.mark.parametrize(
    ("without", "rule", "counter"),
    [
        ("outer", "cells", CELLS),
        ("", "groups", GROUPS),
        ("outer", "early", POSTINGS),
        ("outer", "prefix", CANDIDATES),
        ("outer prefix", "max_weight", CANDIDATES),
        ("outer unseen", "inner", CANDIDATES),
        ("cells", "outer", CELLS),
        ("outer prefix", "unseen", CANDIDATES),
    ],
)
def test_each_rule_spares_work(without: str, rule: str, counter: int) -> None:
    rules = frozenset(without.split())
    case = large_case(least=0.7)
    n_without, before = totals(Igpt(cell_capacity=100, rules=rules), case)
    n_with, after = totals(Igpt(cell_capacity=100, rules=rules | {rule}), case)
    assert n_without == n_with > 0
    assert after[COUNTERS[counter]] < 0.95 * before[COUNTERS[counter]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell_capacity": 0}, "cell_capacity is 0"),
        ({"n_groups": 0}, "n_groups is 0"),
        ({"n_groups": 256}, "1 to 255"),
        ({"rules": frozenset({"cells", "cell"})}, "unknown rules cell;"),
    ],
)
def test_wrong_parameters_are_named(options: Any, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        Igpt(**options)


@pytest.mark.parametrize("levels", [0, 7])
def test_levels_have_a_range(levels: int) -> None:
    with pytest.raises(InvalidParameter, match="1 to 6"):
        Ciq(levels=levels)
