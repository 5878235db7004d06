"""Laws about changes: whatever is inserted, removed and rebuilt, the live ones are answered."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from earshot.checks.generate import MIXED, Recipe, case_of
from earshot.checks.subjects import Subject, only
from earshot.model.arrays import take_clauses, take_messages


def check_insert_equals_build(subject: Subject) -> None:
    """Subscriptions inserted in any portions match like those that were built in."""
    case, expected = subject.mixed()
    n = case.n_slots
    for cuts in ([0, n], [0, 1, 2, n // 3, n], [n // 2, n // 2 + 1, n], [n - 100, n - 50, n],
                 [0, *range(10, n, 89), n]):  # fmt: skip
        index = subject.build(case.part(0, cuts[0]))
        for start, stop in pairwise(cuts):
            index.insert(case.part(start, stop).clauses)
        subject.assert_live(index, case, expected, set(range(n)))


def check_insert_order_is_irrelevant(subject: Subject) -> None:
    """Clauses of one inserted batch may stand in any order."""
    case, expected = subject.mixed()
    n = case.n_slots
    tail = case.part(n // 2, n).clauses
    index = subject.build(case.part(0, n // 2))
    rows = np.random.default_rng(25).permutation(len(tail.subscriptions))
    index.insert(take_clauses(tail, rows))
    index.remove([n // 2 + 100, n - 10])
    subject.assert_live(index, case, expected, set(range(n)) - {n // 2 + 100, n - 10})


def check_insert_of_new_tokens_and_places(subject: Subject) -> None:
    """Inserted clauses may bring tokens and places that the index has never seen."""
    case = case_of(
        [[1], [5000], [1, ~6000], [1]],
        [[0, 0, 1, 1], [1e9, 0, 1e9, 9], [-5, -5, 0, 0], [7, 7, np.inf, 8]],
        [[5000], [1, 5000], [1, 6000], [1], [1]],
        [[1e9, 5, 1e9, 5], [0, 0, 0, 0], [0, 0, 0, 0], [1e12, 7.5, 1e12, 7.5], [-1, -1, 2, 2]],
        weights=[1.0, 2.0],
    )
    for setting in {subject.strict, *subject.settings}:
        index = subject.build(case.part(0, 1), setting)
        index.insert(case.part(1, 4).clauses)
        subject.assert_live(index, case, subject.truth(case, setting), {0, 1, 2, 3})
        if setting == subject.strict:
            found = subject.answers(index.match(case.messages))[:4]
            assert [set(each) for each in found] == [{1}, {0, 2}, {0}, {3}]


def check_remove_undoes_insert(subject: Subject) -> None:
    """After removing what was inserted, all answers are as before."""
    case, _ = subject.mixed()
    n = case.n_slots
    for first in (200, n - 100):
        index = subject.build(case.part(0, first))
        before = subject.answers(index.match(case.messages))
        index.insert(case.part(first, n).clauses)
        assert subject.answers(index.match(case.messages)) != before
        index.remove(np.arange(first, n))
        assert subject.answers(index.match(case.messages)) == before
        assert (index.n_subscriptions, index.n_slots) == (first, n)


def check_remove_everything(subject: Subject) -> None:
    """An index whose subscriptions were all removed delivers nothing."""
    case, expected = subject.mixed()
    n = case.n_slots
    index = subject.build(case.part(0, n // 2))
    index.insert(case.part(n // 2, n).clauses)
    index.remove(np.random.default_rng(26).permutation(n))
    subject.assert_live(index, case, expected, set())
    assert index.rebuilt()[0].n_subscriptions == 0


def check_move_is_remove_and_insert(subject: Subject) -> None:
    """A subscription moved to a new slot and place is found there, and only there."""
    recipe = Recipe(seed=27, n_subscriptions=600, message_side=0.1)
    case, expected = subject.case(recipe), subject.expected(recipe)
    half = case.n_slots // 2
    index = subject.build(case.part(0, half))
    # Slot half + i is what slot i becomes.
    for start in range(0, half, 50):
        index.remove(np.arange(start, start + 50))
        index.insert(case.part(half + start, half + start + 50).clauses)
        subject.assert_live(index, case, expected, set(range(start + 50, half + start + 50)))


def check_interleavings(subject: Subject) -> None:
    """Any sequence of inserts, removals and matches agrees with the oracle throughout."""
    case, _ = subject.mixed()
    n = case.n_slots
    for seed in range(3):
        setting = subject.settings[seed * 3 % len(subject.settings)]
        expected = subject.expected(MIXED, setting)
        random = np.random.default_rng(seed)
        n_known = int(random.integers(0, n // 2))
        index = subject.build(case.part(0, n_known), setting)
        live = set(range(n_known))
        while n_known < n:
            step = min(int(random.integers(0, 150)), n - n_known)
            index.insert(case.part(n_known, n_known + step).clauses)
            live |= set(range(n_known, n_known + step))
            n_known += step
            gone = random.choice(sorted(live), int(random.integers(0, 1 + len(live) // 6)), False)
            index.remove(gone)
            live -= set(gone.tolist())
            if random.random() < 0.7:
                rows = random.choice(len(expected), 15, replace=False)
                some = case._replace(messages=take_messages(case.messages, rows))
                subject.assert_live(index, some, [expected[row] for row in rows], live)


def check_rebuilt_equals(subject: Subject) -> None:
    """Rebuilding renumbers the live subscriptions and changes no answer, and not the original."""
    index, case, expected, live = subject.changed()
    n_changes = index.n_changes
    new, old_slots = index.rebuilt()
    assert old_slots.tolist() == sorted(live)
    assert new.n_changes == 0
    assert new.n_subscriptions == new.n_slots == len(live)
    new_slots = {old: slot for slot, old in enumerate(sorted(live))}
    renumbered = [
        {new_slots[slot]: score for slot, score in each.items()} for each in only(expected, live)
    ]
    subject.assert_answers(new.match(case.messages), renumbered)
    assert index.n_changes == n_changes > 0
    subject.assert_live(index, case, expected, live)


def check_changes_leave_no_delta(subject: Subject) -> None:
    """A structure that changes in place holds what was inserted itself, and forgets the removed."""
    index, _, _, live = subject.changed()
    assert index.delta is None
    assert index.n_changes == index.n_slots - len(live)
