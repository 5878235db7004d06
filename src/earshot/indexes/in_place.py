"""What a structure needs that takes changes in place, instead of having a delta beside it.

Inserted clauses are appended to the stored ones, whose arrays have room to grow, and then find
their place in the structure; removed ones leave it, and their rows stay behind. A structure
supplies :meth:`InPlaceIndex._insert_rows` and :meth:`InPlaceIndex._remove_rows`; where it ranks,
it is a :class:`RankedInPlaceIndex`. Appending, which rows belong to a slot, working memory that
grows with the index, copying and saving are here.

Lists that grow move to the end of the array they are in, and leave garbage behind:
:func:`is_worth_packing` says when to clear that away, :func:`more_places` how large such an array
is to be.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from earshot.indexes.contract import Index, RowsBySlot
from earshot.indexes.ranked_contract import RankedIndex
from earshot.kernels.growing import GrowingArray, GrowingClauses, GrowingScoring
from earshot.model.arrays import ClauseArrays, Int32s, Int64s, largest_token

LEAST_PLACES = 4096
"""Places that an array of lists has at the least, and is to have free."""

_GROWTH = 1.3
_LEAST_FREE = 0.2
_MOST_GARBAGE = 0.15


class InPlaceIndex(Index):
    """An index whose structure changes in place."""

    scratch_type: ClassVar[type[tuple[Any, ...]]]
    """NamedTuple type of the working memory."""

    # Where clauses are appended; made when the first ones are.
    _growing: GrowingClauses | None = None
    _growing_alive: GrowingArray
    _growing_frequencies: GrowingArray
    _n_built: tuple[int, int] = (-1, -1)
    """Clauses and slots that there were before anything was appended."""

    @abstractmethod
    def _insert_rows(self, first: int, stop: int) -> None:
        """Let clauses ``first`` to ``stop``, which are stored already, find their places."""

    @abstractmethod
    def _remove_rows(self, rows: Int64s) -> None:
        """Take clauses out of the structure."""

    @abstractmethod
    def _scratch_arrays(self) -> dict[str, tuple[int, npt.DTypeLike]]:
        """Return least length and type of each array of the working memory, all of zeros."""

    def _check_number(self, n_clauses: int) -> None:
        """Refuse more clauses, removed ones included, than the structure can hold."""

    def _take_in(self, clauses: ClauseArrays) -> None:
        first = len(self.clauses.subscriptions)
        stop = first + len(clauses.subscriptions)
        self._check_number(stop)
        self._append(clauses)
        self._insert_rows(first, stop)

    def _append(self, clauses: ClauseArrays) -> None:
        """Append clauses to those stored, and their slots to the live ones."""
        if self._growing is None:
            self._n_built = (len(self.clauses.subscriptions), self.n_base_slots)
            self._growing = GrowingClauses(self.clauses)
            self._growing_alive = GrowingArray(self.alive)
            self._growing_frequencies = GrowingArray(self.frequencies)
        n_new = len(np.unique(clauses.subscriptions))
        self._growing.append(clauses)
        self._growing_alive.append(np.ones(n_new, np.uint8))
        self.clauses = self._growing.view
        self.alive = self._growing_alive.view
        self.n_base_slots += n_new
        self.has_repeats |= len(clauses.subscriptions) > n_new
        self._growing_frequencies.resize(max(self.n_tokens, largest_token(clauses) + 1))
        self.frequencies = self._growing_frequencies.view
        np.add.at(self.frequencies, clauses.token_ids[clauses.token_ids >= 0], 1)

    def _bury(self, slots: Int32s) -> None:
        """Take the slots' clauses out of the structure, the latest first.

        Where lists ascend by row and all of one goes, nothing in it has to move up.
        """
        self._remove_rows(np.sort(self.base_rows(slots).astype(np.int64))[::-1].copy())

    def base_rows(self, slots: Int32s) -> npt.NDArray[Any]:
        """Return the rows of the clauses that belong to the slots."""
        if self._growing is None:
            return super().base_rows(slots)
        n_rows, n_slots = self._n_built
        if self._rows_by_slot is None:
            self._rows_by_slot = RowsBySlot.of(self.clauses.subscriptions[:n_rows], n_slots)
        # What was appended is in the order of the slots.
        appended = self.clauses.subscriptions[n_rows:]
        new = slots[slots >= n_slots]
        starts = np.searchsorted(appended, new)
        lengths = np.searchsorted(appended, new, side="right") - starts
        firsts = np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
        rows = firsts + np.arange(len(firsts)) + n_rows
        return np.concatenate([self._rows_by_slot.rows(slots[slots < n_slots]), rows])

    def _new_scratch(self) -> Any:
        # Some more than is needed, so that growth does not need new ones each time.
        arrays = self._scratch_arrays().items()
        return self.scratch_type(**{name: np.zeros(n + n // 8, kind) for name, (n, kind) in arrays})

    def _fits(self, scratch: Any) -> bool:
        sizes = self._scratch_arrays().items()
        return all(len(getattr(scratch, name)) >= n for name, (n, _) in sizes)

    def __getstate__(self) -> dict[str, Any]:
        # Appending starts anew from the stored clauses.
        made = {"_growing_alive", "_growing_frequencies"}
        kept = {name: value for name, value in self.__dict__.items() if name not in made}
        return {**kept, "_growing": None, "_rows_by_slot": None}


class RankedInPlaceIndex(InPlaceIndex, RankedIndex):
    """An index that ranks, whose structure changes in place."""

    _growing_scoring: GrowingScoring | None = None

    def _append(self, clauses: ClauseArrays) -> None:
        if len(clauses.subscriptions):
            if self._growing_scoring is None:
                self._growing_scoring = GrowingScoring(
                    self.arrays.scoring, self.clauses.subscriptions, self.parameters.threshold
                )
            self._growing_scoring.append(clauses)
            self.arrays = self.arrays._replace(scoring=self._growing_scoring.view)
        super()._append(clauses)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_growing_scoring": None}


# ---- arrays of lists ----------------------------------------------------------------------------


def is_worth_packing(n_garbage: int, n_used: int) -> bool:
    """Whether so much of the places in use is garbage that the lists should be packed."""
    return n_garbage > _MOST_GARBAGE * n_used


def is_short(n_places: int, n_used: int) -> bool:
    """Whether an array of lists has few places left."""
    return n_places - n_used < _LEAST_FREE * n_places + LEAST_PLACES


def more_places(n_places: int) -> int:
    """Return how many places an array of lists that is too short should have."""
    return int(n_places * _GROWTH) + LEAST_PLACES


def packed_places(n_used: int, n_garbage: int, spare: float = _LEAST_FREE) -> int:
    """Return how many places packed lists should have, with a share to spare."""
    return int((n_used - n_garbage) * (1 + spare)) + 1
