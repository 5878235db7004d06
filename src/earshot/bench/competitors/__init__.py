"""Who competes: every registered structure by one adapter, and each rival in a file of its own.

To add a rival, write a module here with a subclass of :class:`Competitor` and name it in
:data:`RIVALS`. A new index needs nothing here: its line in the registry is enough.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from earshot.bench.checksums import Pairs
from earshot.indexes import structures_of
from earshot.indexes.answers import Matches
from earshot.indexes.contract import Index
from earshot.model.arrays import ClauseArrays, MessageArrays, Space
from earshot.workloads.blocks import named

RIVALS: dict[str, str] = {
    "duckdb": "earshot.bench.competitors.duckdb_joins:DuckDBJoin",
    "duckdb_grid": "earshot.bench.competitors.duckdb_joins:DuckDBGrid",
}
"""Rivals by name, imported when asked for: they need optional packages."""


class Competitor(ABC):
    """One way of matching: built once from subscriptions, then asked batch by batch."""

    name: str

    @abstractmethod
    def build(self, clauses: ClauseArrays, space: Space, n_tokens: int) -> None:
        """Take the subscriptions in; whatever helps matching may be prepared here."""

    @abstractmethod
    def match(self, messages: MessageArrays, n_threads: int = 1) -> Matches | Pairs:
        """Return the answers to a batch."""

    def sizes(self) -> dict[str, int | None]:
        """Return the bytes of the index over and above the stored subscriptions, and of these."""
        return {"index": None, "stored": None}

    @abstractmethod
    def close(self) -> None:
        """Let go of memory."""


class IndexCompetitor(Competitor):
    """A structure of the registry, with its default parameters or chosen ones."""

    index: Index
    """Once built; it can also be changed, saved and asked on several threads."""

    def __init__(
        self, index_type: type[Index], name: str = "", chosen: Mapping[str, Any] | None = None
    ) -> None:
        self.name = name or index_type.name
        self.index_type = index_type
        self.parameters = index_type.parameters_type(**chosen or {})
        self.sample: MessageArrays | None = None  # for structures built by a cost model

    def build(self, clauses: ClauseArrays, space: Space, n_tokens: int) -> None:
        """Build the index."""
        self.index = self.index_type.build(
            clauses,
            space=space,
            n_tokens=n_tokens,
            parameters=self.parameters,
            sample=self.sample,
        )

    def match(self, messages: MessageArrays, n_threads: int = 1) -> Matches:
        """Return the answers to a batch."""
        return self.index.match(messages, n_threads=n_threads)

    def sizes(self) -> dict[str, int | None]:
        """Return the bytes of the structure and of the clauses."""
        return {"index": self.index.nbytes, "stored": self.index.stored_nbytes}

    def close(self) -> None:
        """Drop the index."""
        vars(self).pop("index", None)


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
