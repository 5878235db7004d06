"""Moving subscribers: each holds the live messages that match where it is now."""

from __future__ import annotations

from typing import Any

from earshot.errors import InvalidParameter
from earshot.semantics.moving.ap_plus.structure import ApPlusK, ApPlusS, ApPlusSafe, ApPlusTree
from earshot.semantics.moving.cell_lists import IqPlus, KkIndex, RqPlus, SsIndex
from earshot.semantics.moving.contract import Scan, Structure
from earshot.semantics.moving.quad_lists import QuadLists

_ALL = (
    QuadLists, ApPlusTree, ApPlusSafe, ApPlusK, ApPlusS, IqPlus, RqPlus, SsIndex, KkIndex, Scan,
)  # fmt: skip
STRUCTURES: dict[str, type[Structure]] = {each.name: each for each in _ALL}
"""How messages and subscribers find each other, by name; the default first."""


def find_structure(chosen: str | None, **parameters: Any) -> Structure:
    """Return a structure by name, with its parameters; by default the first."""
    name = next(iter(STRUCTURES)) if chosen is None else chosen
    if name not in STRUCTURES:
        raise InvalidParameter(
            f"no structure {name!r} for moving subscribers; expected one of {', '.join(STRUCTURES)}"
        )
    return STRUCTURES[name](**parameters)
