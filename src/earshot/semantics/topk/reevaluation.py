"""How buffers of results are filled, so that they seldom run dry ([PVLDB16] section 6)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from earshot.errors import InvalidParameter
from earshot.semantics.topk.kernels.arrays import CSKYBAND, KMAX, SKYBAND, Policy


@dataclass(frozen=True)
class Reevaluation(ABC):
    """A way to fill buffers, with its parameters."""

    name: ClassVar[str]

    @abstractmethod
    def policy(self) -> Policy:
        """Return what the kernels need to know."""


@dataclass(frozen=True)
class Kmax(Reevaluation):
    """Between k and ``factor * k`` of the best messages, whatever their age.

    Attributes:
        factor: Most messages of a buffer, by k; at least 1.
    """

    name: ClassVar[str] = "kmax"
    factor: float = 3.0

    def __post_init__(self) -> None:
        if not 1.0 <= self.factor <= 1000.0:
            raise InvalidParameter(f"kmax: factor is {self.factor!r}; expected 1 to 1,000")

    def policy(self) -> Policy:
        """Return what the kernels need to know."""
        return Policy(KMAX, float(self.factor), 0.0, 0.0)


@dataclass(frozen=True)
class Skyband(Reevaluation):
    """The skyband of all messages that score at least a share of the k-th best.

    Attributes:
        factor: That share, greater than 0 and at most 1.
    """

    name: ClassVar[str] = "skyband"
    factor: float = 0.95

    def __post_init__(self) -> None:
        if not 0.0 < self.factor <= 1.0:
            raise InvalidParameter(
                f"skyband: factor is {self.factor!r}; expected more than 0, at most 1"
            )

    def policy(self) -> Policy:
        """Return what the kernels need to know."""
        return Policy(SKYBAND, float(self.factor), 0.0, 0.0)


@dataclass(frozen=True)
class Cskyband(Reevaluation):
    """The skyband of a number of messages that a cost model sets for each subscription.

    Attributes:
        search_weight: Cost of a step of a search, by that of an entry that a message passes in a
            buffer; more makes larger buffers and fewer searches.
    """

    name: ClassVar[str] = "cskyband"
    search_weight: float = 8.0

    def __post_init__(self) -> None:
        if not 0.0 < self.search_weight <= 1e6:
            raise InvalidParameter(
                f"cskyband: search_weight is {self.search_weight!r}; expected more than 0, at most "
                f"1,000,000"
            )

    def policy(self) -> Policy:
        """Return what the kernels need to know."""
        return Policy(CSKYBAND, 1.0, float(self.search_weight), 5000.0)
