"""Random cases and random changes for the structures that change in place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from earshot.checks.generate import Case, Recipe, make_case
from earshot.checks.oracle import matches_of
from earshot.indexes.contract import Index
from earshot.model.arrays import ClauseArrays, take_clauses


def random_case(
    random: np.random.Generator, seed: int, n: int, **varied: Any
) -> tuple[Recipe, Case]:
    """Return a recipe and its case; ``varied`` fields are taken as they are given."""
    recipe = Recipe(
        seed=seed,
        space=("lonlat", "planar")[seed % 2],
        n_subscriptions=n,
        n_messages=12,
        max_keywords=int(random.integers(1, 9)),
        n_tokens=int(random.choice([9, 40, 300])),
        message_side=float(random.choice([0.0, 0.3])),
        forbidden=0.2,
        several=float(random.choice([0.0, 0.3])),
        unbounded=0.05,
        shapes=0.1,
        everywhere=0.05,
        n_unknown_tokens=3,
    )
    recipe = replace(recipe, **varied)
    return recipe, make_case(recipe)


def slots_between(clauses: ClauseArrays, start: int, stop: int) -> ClauseArrays:
    slots = clauses.subscriptions
    return take_clauses(clauses, np.flatnonzero((slots >= start) & (slots < stop)))


def changed(
    index: Index, clauses: ClauseArrays, n: int, random: Any, n_steps: int
) -> Iterator[set[int]]:
    """Insert and remove at random; yield the live slots now and then."""
    following = index.n_slots
    live = set(range(following))
    for step in range(n_steps):
        if random.random() < 0.5 and following < n:
            stop = min(n, following + int(random.choice([1, 1, 5, 100])))
            index.insert(slots_between(clauses, following, stop))
            live |= set(range(following, stop))
            following = stop
        elif live:
            n_gone = min(len(live), int(random.choice([1, 1, 7, 120])))
            gone = random.choice(sorted(live), n_gone, replace=False).astype(np.int32)
            index.remove(gone)
            live -= set(gone.tolist())
        if step % 6 == 5 or step == n_steps - 1:
            yield live


def check_answers(index: Index, case: Case, expected: list[set[int]], live: set[int]) -> None:
    """The index answers what the oracle does of the live slots."""
    found = index.match(case.messages)
    for row, answers in enumerate(expected):
        slots = found.subscriptions[found.offsets[row] : found.offsets[row + 1]].tolist()
        assert sorted(slots) == sorted(answers & live)


def expected_answers(recipe: Recipe, case: Case) -> list[set[int]]:
    return matches_of(case.clauses, case.messages, recipe.space)
