"""What the laws of indexes are about: a structure, and the semantics that it answers by.

A :class:`Subject` knows how its structure is built, what the oracle answers and how the two
compare. The laws of :mod:`earshot.checks.laws` ask it, and are the same for every semantics.

Answers are the slots of each message with their scores; where a semantics has none, every score
is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias
from unittest import TestCase

import numpy as np

from earshot.checks.generate import MIXED, Case, Recipe, make_case
from earshot.checks.oracle import matches_of
from earshot.checks.ranked_oracle import Parts, delivered, parts_of
from earshot.indexes.answers import Matches
from earshot.indexes.contract import Index

Answers: TypeAlias = list[dict[int, float]]
Setting: TypeAlias = tuple[float, float]
"""Alpha and threshold; a semantics without scores has one setting, which says nothing."""

SCORE_ERROR = 1e-12


class Subject:
    """A structure under boolean matching; subclasses say what another semantics does instead."""

    has_scores: ClassVar[bool] = False
    usual: ClassVar[Setting] = (1.0, 1.0)
    """The setting of laws that are not about settings."""
    strict: ClassVar[Setting] = usual
    """A setting under which a message at a point needs all of the text, and its place."""
    settings: ClassVar[Sequence[Setting]] = (usual,)
    """Settings that a case of any kind is tried with."""

    def __init__(self, index_type: type[Index]) -> None:
        self.index_type = index_type

    def __repr__(self) -> str:
        return f"{self.index_type.name}/{self.semantics}"

    @property
    def semantics(self) -> str:
        """What matching means."""
        return self.index_type.semantics

    @property
    def prunes(self) -> bool:
        """Whether the structure has arrays of its own; a plain scan cannot prune."""
        fields = self.index_type.arrays_type._fields  # type: ignore[attr-defined]
        return not set(fields) <= {"scoring", "first_slot"}  # which any delta has

    @property
    def changes_in_place(self) -> bool:
        """Whether insertions go into the structure itself, instead of a delta beside it."""
        return self.index_type._take_in is not Index._take_in

    # ---- cases and answers

    @staticmethod
    def scaled(recipe: Recipe) -> Recipe:
        """Return a recipe with as many subscriptions and messages as the oracle can bear."""
        return recipe

    def case(self, recipe: Recipe) -> Case:
        """Return the case of a recipe."""
        return make_case(self.scaled(recipe))

    @staticmethod
    def weigh(case: Case) -> Any:
        """Return what the oracle knows of the case before it looks at any setting."""
        return matches_of(case.clauses, case.messages, case.space)

    @staticmethod
    def decide(weighed: Any, case: Case, setting: Setting) -> Answers:
        """Return the oracle's answers under a setting."""
        return [dict.fromkeys(slots, 1.0) for slots in weighed]

    def truth(self, case: Case, setting: Setting | None = None) -> Answers:
        """Return the oracle's answers."""
        return self.decide(self.weigh(case), case, setting or self.usual)

    def expected(self, recipe: Recipe, setting: Setting | None = None) -> Answers:
        """Return the oracle's answers for a recipe's case."""
        return _expected(self.weigh, self.decide, self.scaled(recipe), setting or self.usual)

    def mixed(self) -> tuple[Case, Answers]:
        """Return everything at once, and the oracle's answers under the usual setting."""
        return self.case(MIXED), self.expected(MIXED)

    def options(self, case: Case, setting: Setting) -> dict[str, Any]:
        """Return what the structure is built with, besides the clauses."""
        return {}

    def build(self, case: Case, setting: Setting | None = None, **options: Any) -> Index:
        """Build an index of the case."""
        given = {"space": case.space, **self.options(case, setting or self.usual), **options}
        return self.index_type.build(case.clauses, **given)

    def changed(self) -> tuple[Index, Case, Answers, set[int]]:
        """Return an index of the mixed case that was built, inserted to and removed from by turns.

        With it come the case, the oracle's answers as if all were live, and the live slots. The
        last hundred of the case's subscriptions are left over.
        """
        case, expected = self.mixed()
        n = case.n_slots - 100
        index = self.build(case.part(0, n // 2))
        index.insert(case.part(n // 2, n - 100).clauses)
        early = set(range(n // 2 - 20, n // 2 + 20))
        index.remove(sorted(early))
        index.insert(case.part(n - 100, n).clauses)
        drawn = np.random.default_rng(29).choice(n, n // 6, replace=False).tolist()
        index.remove(sorted(set(drawn) - early))
        return index, case, expected, set(range(n)) - set(drawn) - early

    def found(self, case: Case, setting: Setting | None = None) -> Answers:
        """Return the answers of a fresh index of the case."""
        return self.answers(self.build(case, setting).match(case.messages))

    # ---- comparisons

    def answers(self, found: Matches) -> Answers:
        """Return the answers of each message, after checking that none is repeated."""
        assert found.offsets[0] == 0
        assert found.offsets[-1] == len(found.subscriptions) == found.counters.answers
        scores = self._scores(found)
        slots, answers = found.subscriptions.tolist(), []
        for start, stop in pairwise(found.offsets.tolist()):
            answers.append(dict(zip(slots[start:stop], scores[start:stop], strict=True)))
            assert len(answers[-1]) == stop - start, f"message {len(answers) - 1}: answers repeat"
        return answers

    @staticmethod
    def _scores(found: Matches) -> list[float]:
        """Return the score of each answer, 1 where there are none."""
        assert found.scores is None
        return [1.0] * len(found.subscriptions)

    def assert_answers(self, found: Matches, expected: Answers, where: str = "") -> None:
        """Assert equal slots and scores."""
        for row, (got, wanted) in enumerate(zip(self.answers(found), expected, strict=True)):
            if got.keys() != wanted.keys():
                missing = {slot: wanted[slot] for slot in sorted(wanted.keys() - got.keys())[:5]}
                wrong = {slot: got[slot] for slot in sorted(got.keys() - wanted.keys())[:5]}
                raise AssertionError(f"{where}: message {row}: missing {missing}, wrong {wrong}")
            for slot, score in got.items():
                assert abs(score - wanted[slot]) <= SCORE_ERROR, (
                    f"{where}: message {row}, slot {slot}: score {score}, expected {wanted[slot]}"
                )

    def assert_live(self, index: Index, case: Case, expected: Answers, live: set[int]) -> None:
        """Assert that the index delivers to live subscriptions, as the oracle does, and no other.

        ``expected`` are the answers if all were live: no subscription changes another one's.
        """
        self.assert_answers(index.match(case.messages), only(expected, live))
        assert index.n_subscriptions == len(live)
        slots = np.arange(-1, index.n_slots + 1, dtype=np.int32)
        assert set(slots[index.is_alive(slots)].tolist()) == live

    def assert_case(self, case: Case, settings: Sequence[Setting] | None = None) -> None:
        """Assert that fresh indexes of the case answer as the oracle does."""
        weighed = self.weigh(case)
        for setting in settings or self.settings:
            found = self.build(case, setting).match(case.messages)
            self.assert_answers(found, self.decide(weighed, case, setting), str(setting))

    def assert_recipe(self, recipe: Recipe, settings: Sequence[Setting] | None = None) -> None:
        """The same for the case of a recipe, which must have answers."""
        case, n_answers = self.case(recipe), 0
        for setting in settings or self.settings:
            found, expected = self.build(case, setting), self.expected(recipe, setting)
            self.assert_answers(found.match(case.messages), expected, f"{recipe}, {setting}")
            n_answers += sum(map(len, expected))
        assert n_answers, f"{recipe} has no answers and proves nothing"


class RankedSubject(Subject):
    """A structure whose answers have scores."""

    has_scores = True
    usual = (0.5, 0.4)
    strict = (0.5, 1.0)
    # One or two of each kind: text and place needed, place alone enough, text alone, either.
    settings = (
        (0.5, 0.6), (0.5, 0.9), (0.5, 0.3), (0.3, 0.6), (0.9, 0.6), (0.1, 1.0), (0.0, 0.5),
        (1.0, 0.5),
    )  # fmt: skip

    @staticmethod
    def scaled(recipe: Recipe) -> Recipe:
        """Return the recipe with fewer subscriptions and messages."""
        return replace(
            recipe,
            n_subscriptions=recipe.n_subscriptions // 2,
            n_messages=recipe.n_messages * 2 // 5,
        )

    @staticmethod
    def weigh(case: Case) -> list[dict[int, list[Parts]]]:
        """Return the scores of alternatives; later tokens weigh as much as the heaviest."""
        n_tokens = int(case.clauses.token_ids.max(initial=0)) + 1
        weights = case.weights.tolist()
        weights += [max(weights, default=1.0)] * (n_tokens - len(weights))
        return parts_of(case.clauses, case.messages, case.space, weights)

    @staticmethod
    def decide(weighed: list[dict[int, list[Parts]]], case: Case, setting: Setting) -> Answers:
        """Return the slots whose scores reach their thresholds."""
        return delivered(weighed, case.clauses, *setting)

    def options(self, case: Case, setting: Setting) -> dict[str, Any]:
        """Return the setting and the case's weights."""
        alpha, threshold = setting
        parameters_type: Any = self.index_type.parameters_type
        parameters = parameters_type(alpha=alpha, threshold=threshold)
        return {"parameters": parameters, "weights": case.weights}

    @staticmethod
    def _scores(found: Matches) -> list[float]:
        assert found.scores is not None
        assert found.scores.dtype == np.float64
        scores: list[float] = found.scores.tolist()
        return scores


def subject_of(index_type: type[Index]) -> Subject:
    """Return a structure, under its semantics."""
    return (RankedSubject if index_type.semantics == "ranked" else Subject)(index_type)


# The oracle is slow, and every structure is asked for the same.


@lru_cache(maxsize=1024)
def _expected(
    weigh: Callable[[Case], Any], decide: Callable[..., Answers], recipe: Recipe, setting: Setting
) -> Answers:
    return decide(_weighed(weigh, recipe), make_case(recipe), setting)


@lru_cache(maxsize=64)
def _weighed(weigh: Callable[[Case], Any], recipe: Recipe) -> Any:
    return weigh(make_case(recipe))


# ---- laws ---------------------------------------------------------------------------------------

Law: TypeAlias = Callable[[Subject], None]


def only(answers: Answers, live: set[int]) -> Answers:
    """Return the answers of live slots."""
    return [{slot: score for slot, score in each.items() if slot in live} for each in answers]


assert_raises = TestCase().assertRaises
"""Assert that a call ends with an error."""
