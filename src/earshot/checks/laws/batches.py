"""Laws about order, batches and threads, and the facts that an index tells of itself."""

from __future__ import annotations

import pickle

import numpy as np

from earshot.checks.generate import Recipe, make_case
from earshot.checks.subjects import Subject
from earshot.model.arrays import take_clauses


def check_many_equal_one_by_one(subject: Subject) -> None:
    """A batch gives what its messages give one by one."""
    case, _ = subject.mixed()
    for setting in subject.settings[:5]:
        index = subject.build(case, setting)
        singles = [subject.answers(index.match(each))[0] for each in case.single_messages()]
        subject.assert_answers(index.match(case.messages), singles)


def check_repeated_batches(subject: Subject) -> None:
    """Matching leaves nothing behind: the same batch always has the same answers."""
    case = subject.case(Recipe(seed=23, n_subscriptions=120, n_messages=25, n_tokens=5, side=1.0))
    mixed, _ = subject.mixed()
    for each, n_times in ((case, 100), (mixed, 10)):
        for setting in subject.settings[::2][:2]:
            index = subject.build(each, setting)
            first = pickle.dumps(index.match(each.messages))
            assert all(pickle.dumps(index.match(each.messages)) == first for _ in range(n_times))


def check_threads_change_nothing(subject: Subject) -> None:
    """Any number of threads gives the answers and counters of one, also while building."""
    index, case, expected, _ = subject.changed()
    for each in (index, subject.build(case)):
        alone = each.match(case.messages)
        for n_threads in (2, 3, 16):
            found = each.match(case.messages, n_threads=n_threads)
            subject.assert_answers(found, subject.answers(alone))
            assert found.counters == alone.counters
    together = subject.build(case, n_threads=3)
    subject.assert_answers(together.match(case.messages), expected)


def check_order_is_irrelevant(subject: Subject) -> None:
    """The order of clauses in the arrays changes no answer."""
    case, expected = subject.mixed()
    rows = np.random.default_rng(24).permutation(len(case.clauses.subscriptions))
    shuffled = case._replace(clauses=take_clauses(case.clauses, rows))
    subject.assert_answers(subject.build(shuffled).match(case.messages), expected)


def check_inputs_are_untouched(subject: Subject) -> None:
    """Building, matching, inserting and removing write to no array of the caller."""
    case, _ = subject.mixed()
    head, tail = case.part(0, 400), case.part(400, case.n_slots)
    before = pickle.dumps((head, tail))
    index = subject.build(head)
    index.insert(tail.clauses)
    index.remove([0, 3, 500])
    index.match(case.messages, n_threads=2)
    index.rebuilt()
    assert pickle.dumps((head, tail)) == before


def check_frequencies_change_no_answer(subject: Subject) -> None:
    """Token frequencies, right, wrong or for other tokens, are advice where weights are given."""
    case, expected = subject.mixed()
    for n, n_tokens in ((0, None), (7, 3), (41, 2000), (5000, 100)):
        frequencies = np.random.default_rng(n).integers(0, 100, n)
        index = subject.build(case, frequencies=frequencies, n_tokens=n_tokens)
        subject.assert_answers(index.match(case.messages), expected)


# ---- facts --------------------------------------------------------------------------------------


def check_counters(subject: Subject) -> None:
    """Counters count the answers delivered, and never fewer candidates than answers."""
    index, case, _, _ = subject.changed()
    found = index.match(case.messages)
    assert found.counters.answers == len(found.subscriptions) == found.offsets[-1]
    # One clause per subscription: those with several are candidates once or more.
    plain = subject.case(Recipe(seed=1, max_keywords=4))
    for setting in subject.settings:
        found = subject.build(plain, setting).match(plain.messages)
        assert found.counters.answers == len(found.subscriptions) == found.offsets[-1]
        assert found.counters.nodes >= 0
        assert found.counters.candidates >= found.counters.answers > 0


def check_sizes_grow(subject: Subject) -> None:
    """The bytes of an index are positive and grow with what is in it."""
    case, _ = subject.mixed()
    small, large = subject.build(case.part(0, 100)), subject.build(case)
    assert 0 < small.nbytes < large.nbytes
    assert 0 < small.stored_nbytes < large.stored_nbytes
    before = small.nbytes
    small.insert(case.part(100, case.n_slots).clauses)
    assert small.nbytes > before


def check_prunes(subject: Subject) -> None:
    """With small regions and rare keywords, few of the clauses are looked at."""
    skew = 0.3 if subject.has_scores else 0.8
    recipe = Recipe(seed=28, n_subscriptions=4000, n_messages=100, n_tokens=400, side=0.05,
                    everywhere=0, max_message_tokens=6, skew=skew)  # fmt: skip
    case = make_case(recipe)
    counters = subject.build(case, (0.5, 0.8)).match(case.messages).counters
    assert counters.nodes > 0
    # Where a part of the text may do, more clauses must be looked at.
    assert counters.candidates < (0.1 if subject.has_scores else 0.05) * 4000 * 100
