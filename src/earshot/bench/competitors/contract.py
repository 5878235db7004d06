"""What a competitor can do; the harness knows nothing else about it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import NamedTuple

from earshot.bench.checksums import Pairs
from earshot.indexes.answers import Matches
from earshot.model.arrays import ClauseArrays, Int32s, MessageArrays, Space


class Sizes(NamedTuple):
    """Memory taken, in bytes; ``None`` where the competitor cannot tell."""

    structure: int | None  # the structure over and above the subscriptions
    stored: int | None  # the subscriptions themselves


class Competitor(ABC):
    """One way of matching: built once from subscriptions, then asked batch by batch."""

    name: str
    can_change = False
    """Whether :meth:`insert`, :meth:`remove` and :meth:`rebuild` work."""
    can_thread = False
    """Whether :meth:`match` can use several threads."""

    @abstractmethod
    def build(self, clauses: ClauseArrays, space: Space, n_tokens: int) -> None:
        """Take the subscriptions in; whatever helps matching may be prepared here."""

    @abstractmethod
    def match(self, messages: MessageArrays, n_threads: int = 1) -> Matches | Pairs:
        """Return the answers to a batch."""

    def sizes(self) -> Sizes:
        """Return the memory taken."""
        return Sizes(None, None)

    def save(self, directory: Path) -> bool:
        """Write what was built to a directory; return whether the competitor can do so."""
        return False

    def open_seconds(self, directory: Path) -> float:
        """Return how long opening what :meth:`save` wrote takes."""
        raise NotImplementedError

    def insert(self, clauses: ClauseArrays) -> None:
        """Add subscriptions, effective at once."""
        raise NotImplementedError

    def remove(self, slots: Int32s) -> None:
        """Remove subscriptions, effective at once."""
        raise NotImplementedError

    def rebuild(self) -> None:
        """Merge all changes; slots may be renumbered."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027 - nothing to do is a good default
        """Let go of memory."""
