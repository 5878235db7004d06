"""Integer ids that ascend from slot to slot: found without a hash table.

Row numbers and keys of a database are such ids. Where each is one more than the one before, not
even the ids are stored.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from earshot.kernels.growing import GrowingArray
from earshot.model.arrays import Int32s, Int64s

_SMALL = 1 << 16
_MOST_STORED = 8
"""How many ids in sequence are written down, for each one that comes and does not follow."""


class AscendingIds:
    """Ids of the slots 0, 1, …, each greater than the one before.

    Args:
        bounds: The first id, and how many there are.
        values: All of them; empty where they are ``first``, ``first + 1``, ….
        gone: A byte for each slot, 1 where its id is free again; empty where none is.
    """

    def __init__(self, bounds: Int64s, values: Int64s, gone: npt.NDArray[np.uint8]) -> None:
        self._first: int
        self._n: int
        self._first, self._n = bounds.tolist()
        self._values = GrowingArray(values) if len(values) else None
        self._gone = GrowingArray(gone) if len(gone) else None
        self._is_own = not len(values)  # what was opened is not copied to be enlarged

    @classmethod
    def none(cls) -> AscendingIds:
        """Return that no slot has an id."""
        return cls(np.zeros(2, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8))

    def __len__(self) -> int:
        return self._n

    @property
    def bounds(self) -> Int64s:
        """The first id, and how many there are."""
        return np.array([self._first, self._n], np.int64)

    @property
    def values(self) -> Int64s:
        """All ids; empty where they are in sequence."""
        values = self._values  # at once: another thread may be adding
        return np.empty(0, np.int64) if values is None else values.view

    @property
    def gone(self) -> npt.NDArray[np.uint8]:
        """A byte for each slot, 1 where its id is free again; empty where none is."""
        return np.empty(0, np.uint8) if self._gone is None else self._gone.view

    @property
    def nbytes(self) -> int:
        """Bytes of memory, including the room to grow."""
        return sum(each.nbytes for each in (self._values, self._gone) if each is not None)

    def extend(self, ids: Int64s) -> bool:
        """Give the next slots these ids, if they ascend; return whether they do."""
        first, last, n = int(ids[0]), int(ids[-1]), len(ids)
        if n > 1 and not bool((ids[1:] > ids[:-1]).all()):
            return False
        is_sequence = last - first == n - 1
        if self._n == 0:
            self._first = first
            self._values = None if is_sequence else GrowingArray(ids)
        elif first <= self._last:
            return False
        elif self._values is not None:
            if not self._is_own:
                return False
            self._values.append(ids)
        elif not is_sequence or first != self._last + 1:
            if self._n > max(_SMALL, _MOST_STORED * n):
                return False
            values = GrowingArray(np.arange(self._first, self._last + 1))
            values.append(ids)
            self._values = values
        self._n += n
        if self._gone is not None:
            self._gone.resize(self._n)
        return True

    def find(self, ids: Int64s) -> Int64s:
        """Return the slot of each id, -1 where it is free."""
        if len(ids) == 1:
            return np.array([self._find_one(int(ids[0]))], np.int64)
        if self._n == 0 or ids.min(initial=self._last) > self._last:
            return np.full(len(ids), -1, np.int64)
        is_there = (ids >= self._first) & (ids <= self._last)
        if self._values is None:
            slots = np.where(is_there, ids - np.int64(self._first), -1)
        else:
            values = self._values.view
            slots = np.minimum(np.searchsorted(values, ids), self._n - 1)
            slots = np.where(is_there & (values[slots] == ids), slots, -1)
        if self._gone is not None:
            slots[self._gone.view[slots] != 0] = -1
        return slots

    def free(self, slots: Int32s) -> None:
        """Free the ids of slots."""
        if self._gone is None:
            self._gone = GrowingArray(np.zeros(self._n, np.uint8))
        self._gone.view[slots] = 1

    def live_slots(self) -> Int32s:
        """Return the slots whose ids are not free."""
        if self._gone is None:
            return np.arange(self._n, dtype=np.int32)
        return np.flatnonzero(self._gone.view == 0).astype(np.int32)

    @property
    def _last(self) -> int:
        return self._first + self._n - 1 if self._values is None else int(self._values.view[-1])

    def _find_one(self, integer: int) -> int:
        """Return the slot of an id as many would be found, in a tenth of the time."""
        if self._n == 0 or not self._first <= integer <= self._last:
            return -1
        slot = integer - self._first
        if self._values is not None:
            values = self._values.view
            slot = int(values.searchsorted(integer))
            if values[slot] != integer:
                return -1
        return -1 if self._gone is not None and self._gone.view[slot] else slot
