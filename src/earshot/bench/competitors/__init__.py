"""Who competes: every registered structure by one adapter, and each rival in a file of its own.

To add a rival, write a module here with a subclass of :class:`Competitor` and name it in
:data:`RIVALS`. A new index needs nothing here: its line in the registry is enough.
"""

from __future__ import annotations

from pkgutil import resolve_name

from earshot.bench.competitors.contract import Competitor, IndexCompetitor
from earshot.indexes import structures_of
from earshot.indexes.contract import Index
from earshot.workloads.blocks import named

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
    known: dict[str, type[Index] | str] = {**structures_of("boolean"), **RIVALS}
    found = named("competitor", name, known)
    if not isinstance(found, str):
        return IndexCompetitor(found, name)
    rival: Competitor = resolve_name(found)()
    return rival


__all__ = ["RIVALS", "Competitor", "IndexCompetitor", "competitor_names", "new_competitor"]
