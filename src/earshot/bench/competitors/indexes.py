"""Every registered index as a competitor."""

from __future__ import annotations

import time
from pathlib import Path

from earshot.bench.competitors.contract import Competitor, Sizes
from earshot.indexes.answers import Matches
from earshot.indexes.contract import Index
from earshot.model.arrays import ClauseArrays, Int32s, MessageArrays, Space


class IndexCompetitor(Competitor):
    """An index of the registry with its default parameters."""

    can_change = True
    can_thread = True

    def __init__(self, index_type: type[Index]) -> None:
        self.name = index_type.name
        self.index_type = index_type
        self.index: Index | None = None

    def build(self, clauses: ClauseArrays, space: Space, n_tokens: int) -> None:
        """Build the index."""
        self.index = self.index_type.build(clauses, space=space, n_tokens=n_tokens)

    def match(self, messages: MessageArrays, n_threads: int = 1) -> Matches:
        """Return the answers to a batch."""
        return self._built().match(messages, n_threads=n_threads)

    def sizes(self) -> Sizes:
        """Return the bytes of the structure and of the clauses."""
        index = self._built()
        return Sizes(index.nbytes, index.stored_nbytes)

    def save(self, directory: Path) -> bool:
        """Save the index."""
        self._built().save(directory)
        return True

    def open_seconds(self, directory: Path) -> float:
        """Open the saved index, and drop it."""
        began = time.perf_counter()
        self.index_type.open(directory)
        return time.perf_counter() - began

    def insert(self, clauses: ClauseArrays) -> None:
        """Insert into the index."""
        self._built().insert(clauses)

    def remove(self, slots: Int32s) -> None:
        """Remove from the index."""
        self._built().remove(slots)

    def rebuild(self) -> None:
        """Merge the changes into a new index."""
        self.index, _ = self._built().rebuilt()

    def close(self) -> None:
        """Drop the index."""
        self.index = None

    def _built(self) -> Index:
        if self.index is None:
            raise RuntimeError(f"competitor '{self.name}' was asked before it was built")
        return self.index
