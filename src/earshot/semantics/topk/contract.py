"""What a dissemination structure is: how the subscriptions that a message concerns are found.

A structure is built over a set of slots as one *component*, a NamedTuple of arrays. Kernels of the
same kind find the slots whose threshold a message reaches (``disseminate``), and follow a threshold
that has changed (``set_threshold``); they are chosen by the type of the component in
:mod:`earshot.semantics.topk.kernels.publish`. A component is never told of subscriptions that come,
move or go: what it says of a slot counts only while ``homes`` and ``rows`` of the slot name it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from earshot.model.arrays import Int32s
from earshot.semantics.topk.kernels.arrays import ScanArrays, Subscribers


@dataclass(frozen=True)
class Dissemination(ABC):
    """A structure with its parameters."""

    name: ClassVar[str]

    @abstractmethod
    def build(
        self, subscribers: Subscribers, slots: Int32s, max_distance: float
    ) -> tuple[Any, ...]:
        """Return a component of these slots; row i of it is ``slots[i]``."""


@dataclass(frozen=True)
class Scan(Dissemination):
    """No structure: every subscription is scored."""

    name: ClassVar[str] = "scan"

    def build(self, subscribers: Subscribers, slots: Int32s, max_distance: float) -> ScanArrays:
        """Return the slots as they are."""
        return ScanArrays(slots.copy())
