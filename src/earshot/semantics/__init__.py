"""What a delivery means: one matcher per semantics, and the engine's choice among them."""

from __future__ import annotations

from typing import Any

from earshot.errors import InvalidParameter, described
from earshot.model.boolean import Boolean
from earshot.registry import Registry
from earshot.semantics.contract import Matcher

SEMANTICS: Registry[type[Matcher]] = Registry(
    {
        "boolean": "earshot.semantics.index_matcher.BooleanMatcher",
        "ranked": "earshot.semantics.index_matcher.RankedMatcher",
        "topk": "earshot.semantics.topk.matcher.TopkMatcher",
        "moving": "earshot.semantics.moving.matcher.MovingMatcher",
    }
)
"""Every semantics by its name; a new one needs a line here."""


def matches_tables(matcher: type[Matcher]) -> bool:
    """Whether a semantics matches tables of messages, which have no order."""
    return not matcher.keeps_messages


def matcher_type(settings: Any) -> type[Matcher]:
    """Return the semantics that settings choose; None chooses boolean matching."""
    chosen = Boolean() if settings is None else settings
    for matcher in SEMANTICS.values():
        if isinstance(chosen, matcher.settings_type):
            return matcher
    expected = ", ".join(matcher.settings_type.__name__ for matcher in SEMANTICS.values())
    raise InvalidParameter(
        f"{described(settings)} is no semantics; expected one of {expected}, or None"
    )
