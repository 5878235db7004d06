"""What a competitor can do, and every registered structure as one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from earshot.bench.checksums import Pairs
from earshot.indexes.answers import Matches
from earshot.indexes.contract import Index
from earshot.model.arrays import ClauseArrays, MessageArrays, Space


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

    def close(self) -> None:  # noqa: B027 - nothing to do is a good default
        """Let go of memory."""


class IndexCompetitor(Competitor):
    """A structure of the registry, with its default parameters or chosen ones."""

    def __init__(
        self, index_type: type[Index], name: str = "", chosen: Mapping[str, Any] | None = None
    ) -> None:
        self.name = name or index_type.name
        self.index_type = index_type
        self.parameters = index_type.parameters_type(**chosen or {})
        self._index: Index | None = None

    @property
    def index(self) -> Index:
        """The index that was built; it can also be changed, saved and asked on several threads."""
        if self._index is None:
            raise RuntimeError(f"competitor '{self.name}' was asked before it was built")
        return self._index

    def build(self, clauses: ClauseArrays, space: Space, n_tokens: int) -> None:
        """Build the index."""
        self._index = self.index_type.build(
            clauses, space=space, n_tokens=n_tokens, parameters=self.parameters
        )

    def match(self, messages: MessageArrays, n_threads: int = 1) -> Matches:
        """Return the answers to a batch."""
        return self.index.match(messages, n_threads=n_threads)

    def sizes(self) -> dict[str, int | None]:
        """Return the bytes of the structure and of the clauses."""
        return {"index": self.index.nbytes, "stored": self.index.stored_nbytes}

    def close(self) -> None:
        """Drop the index."""
        self._index = None
