"""The laws of indexes: one small ``check_*`` function each, the same for every structure.

A new structure proves itself with::

    subject = subject_of(MyIndex)
    for check in laws_for(subject):
        check(subject)

Each check raises ``AssertionError`` when its law is broken. Answers are compared with the oracle
of the subject's semantics, which shares no code with the indexes. Laws stand in files by theme;
those that a random case decides are rows of a table of recipes.
"""

from __future__ import annotations

from itertools import starmap
from types import ModuleType

from earshot.checks.generate import Recipe
from earshot.checks.laws import answers, bad_input, batches, changes, limits, saving, scores
from earshot.checks.subjects import Law, Subject


def _recipe_law(name: str, recipe: Recipe) -> Law:
    def check(subject: Subject) -> None:
        subject.assert_recipe(recipe)

    check.__name__ = f"check_{name}"
    return check


def _laws_in(theme: ModuleType) -> list[Law]:
    of_recipes = getattr(theme, "RECIPES", {}).items()
    written = [law for name, law in vars(theme).items() if name.startswith("check_")]
    return [*starmap(_recipe_law, of_recipes), *written]


THEMES = (answers, limits, scores, batches, bad_input, changes, saving)
LAWS: list[Law] = [law for theme in THEMES for law in _laws_in(theme)]
"""Every law, by theme, in the order in which they are written."""

NEEDS: dict[Law, str] = {
    **dict.fromkeys(_laws_in(scores), "has_scores"),
    bad_input.check_wrong_thresholds_are_rejected: "has_scores",
    bad_input.check_wrong_settings_are_rejected: "has_scores",
    batches.check_prunes: "prunes",
    changes.check_changes_leave_no_delta: "changes_in_place",
}
"""Laws that make sense only for subjects with a capability, an attribute of theirs."""


def laws_for(subject: Subject) -> list[Law]:
    """Return the laws that a subject must obey."""
    return [law for law in LAWS if law not in NEEDS or getattr(subject, NEEDS[law])]
