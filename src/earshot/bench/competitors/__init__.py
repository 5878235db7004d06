"""Who competes: every registered structure by one adapter, and each rival in a file of its own.

To add a rival, write a module here with a subclass of :class:`Competitor` and name it in
:data:`RIVALS`. A new index needs nothing here: its line in the registry is enough.
"""

from __future__ import annotations

from importlib import import_module

from earshot.bench.competitors.contract import Competitor, IndexCompetitor
from earshot.errors import InvalidParameter
from earshot.indexes import structures_of

RIVALS: dict[str, str] = {
    "duckdb": "earshot.bench.competitors.duckdb_join:DuckDBJoin",
    "duckdb_grid": "earshot.bench.competitors.duckdb_grid:DuckDBGrid",
}
"""Rivals by name, imported when asked for: they need optional packages."""


def competitor_names() -> list[str]:
    """Return the names of all indexes and rivals."""
    return [*structures_of("boolean"), *RIVALS]


def new_competitor(name: str) -> Competitor:
    """Return a fresh competitor of that name."""
    structure = structures_of("boolean").get(name)
    if structure is not None:
        return IndexCompetitor(structure, name)
    if name not in RIVALS:
        known = ", ".join(competitor_names())
        raise InvalidParameter(f"no competitor '{name}'; expected one of {known}")
    module, _, attribute = RIVALS[name].partition(":")
    competitor: Competitor = getattr(import_module(module), attribute)()
    return competitor


__all__ = ["RIVALS", "Competitor", "IndexCompetitor", "competitor_names", "new_competitor"]
