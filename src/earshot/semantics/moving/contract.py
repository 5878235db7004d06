"""What a structure for moving subscribers is: how messages find them, and they find messages.

Regions, words, live messages and the order in which they end are the same for every structure
(:class:`~earshot.semantics.moving.kernels.arrays.Tables`). A structure has arrays of its own, a
NamedTuple, and kernels that are chosen by its type in
:mod:`earshot.semantics.moving.kernels.events`:

- ``find``: the slots that hold a message;
- ``search``: the messages that a slot holds at one of two places alone;
- ``put_message``, ``drop_message``, ``put_slot``, ``drop_slot``, ``moved_slot``: follow what
  happens;
- ``reach_of``: how far from a place nothing changes for a slot; a structure that has no messages by
  place compares with all of them;
- ``has_room``: whether the arrays are large enough for what comes next. A structure that cannot
  know before answers ``put_slot`` and ``moved_slot`` with False, having changed nothing, and is
  asked again after ``with_room``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from earshot.model.arrays import Space
from earshot.semantics.moving.kernels.arrays import Tables
from earshot.semantics.moving.kernels.scan import ScanArrays


@dataclass(frozen=True)
class Structure(ABC):
    """A structure with its parameters."""

    name: ClassVar[str]
    arrays_type: ClassVar[type]
    keeps_safe_regions: ClassVar[bool] = False
    """Whether a move within a subscription's safe region is followed without looking for changes;
    see :mod:`earshot.semantics.moving.safety`."""

    @abstractmethod
    def build(self, tables: Tables, space: Space, held: Any = None) -> Any:
        """Return arrays with every live subscription and message of the tables, and some room.

        Args:
            tables: What there is.
            space: Coordinates and metric.
            held: Arrays in use, where messages have kept their rows: what they say of these holds.
        """

    @abstractmethod
    def with_room(self, arrays: Any, tables: Tables) -> Any:
        """Return arrays with more room."""

    def with_words(self, arrays: Any, tables: Tables) -> Any:
        """Return arrays that know which messages have a word, for those who look for safe regions.

        It costs memory, and time for each message from then on.
        """
        return arrays

    def is_due(self, arrays: Any, tables: Tables) -> bool:
        """Whether to build anew would make it faster."""
        return False


@dataclass(frozen=True)
class Scan(Structure):
    """No structure: everything is compared with everything."""

    name = "scan"
    arrays_type = ScanArrays

    def build(self, tables: Tables, space: Space, held: ScanArrays | None = None) -> ScanArrays:
        """Return no structure."""
        return ScanArrays(np.empty(0, np.int64))

    def with_room(self, arrays: ScanArrays, tables: Tables) -> ScanArrays:
        """Return no structure."""
        return arrays
