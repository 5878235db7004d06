"""Top-k over a sliding window: each subscription holds the best messages of the window."""

from __future__ import annotations

from typing import TypeVar

from earshot.errors import InvalidParameter
from earshot.semantics.topk.ciq import Ciq
from earshot.semantics.topk.contract import Dissemination, Scan
from earshot.semantics.topk.igpt import Igpt
from earshot.semantics.topk.reach import Reach
from earshot.semantics.topk.reevaluation import Cskyband, Kmax, Reevaluation, Skyband

DISSEMINATIONS: dict[str, type[Dissemination]] = {
    each.name: each for each in (Reach, Igpt, Ciq, Scan)
}
"""How messages find subscriptions, by name; the default first."""

REEVALUATIONS: dict[str, type[Reevaluation]] = {
    each.name: each for each in (Cskyband, Kmax, Skyband)
}
"""How buffers are filled, by name; the default first."""

DEFAULT_DISSEMINATION = next(iter(DISSEMINATIONS))
DEFAULT_REEVALUATION = next(iter(REEVALUATIONS))

_Found = TypeVar("_Found", Dissemination, Reevaluation)


def _find(what: str, known: dict[str, type[_Found]], chosen: str | _Found | None) -> _Found:
    """Return what is known by a name, with its default parameters; one that is given, as it is."""
    if chosen is not None and not isinstance(chosen, str):
        return chosen
    name = next(iter(known)) if chosen is None else chosen
    if name not in known:
        raise InvalidParameter(f"no {what} {name!r}; expected one of {', '.join(known)}")
    return known[name]()


def find_dissemination(chosen: str | Dissemination | None) -> Dissemination:
    """Return a dissemination by name; by default the first."""
    return _find("dissemination", DISSEMINATIONS, chosen)


def find_reevaluation(chosen: str | Reevaluation | None) -> Reevaluation:
    """Return a re-evaluation by name; by default the first."""
    return _find("re-evaluation", REEVALUATIONS, chosen)


def find_method(name: str) -> tuple[Dissemination, Reevaluation]:
    """Return both by a name such as ``igpt+cskyband``."""
    dissemination, plus, reevaluation = name.partition("+")
    if not plus:
        raise InvalidParameter(
            f"method {name!r}; expected two names with a plus, such as "
            f"{DEFAULT_DISSEMINATION}+{DEFAULT_REEVALUATION}"
        )
    return find_dissemination(dissemination), find_reevaluation(reevaluation)
