"""The delta: clauses inserted since an index was built, matched beside it.

One clause log serves every semantics. How the clauses of the log are found is up to the semantics:
boolean ones hang in chains (:class:`ChainedDelta`), ranked ones stand in a smaller index
(:class:`~earshot.indexes.ranked_delta.RankedDelta`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from earshot.indexes.answers import Matches, match_rows
from earshot.indexes.kernels.delta import DeltaArrays, insert_clauses
from earshot.indexes.kernels.matching import SlotScratch, View
from earshot.indexes.threads import Scratches
from earshot.kernels.box_keys import BLOCK, DEAD_KEY, Quantizer
from earshot.kernels.growing import GrowingArray, GrowingClauses, GrowingScoring
from earshot.kernels.steady import SteadyCalls
from earshot.model.arrays import (
    ClauseArrays,
    Int32s,
    Int64s,
    MessageArrays,
    Space,
    gather_ranges,
    largest_token,
)


class Delta(ABC):
    """A growing set of clauses, in the order of their slots.

    Attributes:
        first_slot: Slot of the first one; the slots follow on those of the index.
    """

    def __init__(self, space: Space, first_slot: int) -> None:
        self.space = space
        self.first_slot = first_slot
        self._clauses = GrowingClauses()
        self._slot_clauses = GrowingArray(np.zeros(1, np.int64))  # where each slot's end
        self._alive = GrowingArray(np.empty(0, np.uint8))
        self._n_dead = 0
        self._scratches = Scratches()
        self._calls = SteadyCalls()
        self._view: View | None = None  # made when it is asked for

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_view": None}

    @property
    def n_slots(self) -> int:
        """Number of slots handed out, dead ones included."""
        return len(self._alive)

    @property
    def n_subscriptions(self) -> int:
        """Number of live subscriptions."""
        return self.n_slots - self._n_dead

    @property
    @abstractmethod
    def n_tokens(self) -> int:
        """One more than the largest token of any clause, at least."""

    @property
    def nbytes(self) -> int:
        """Bytes of the clauses and what leads to them, room to grow included."""
        growing = (GrowingArray, GrowingClauses, GrowingScoring)
        return sum(v.nbytes for v in self.__dict__.values() if isinstance(v, growing))

    def clauses(self) -> ClauseArrays:
        """Return all clauses ever inserted, dead ones included; valid until the next insertion."""
        return self._clauses.view

    def alive(self) -> npt.NDArray[np.uint8]:
        """Return a byte per slot of the delta: 1 while it is live."""
        return self._alive.view

    def is_alive(self, slots: Int32s) -> npt.NDArray[np.bool_]:
        """Return which of the slots are live."""
        alive: npt.NDArray[np.bool_] = self._alive.view[slots - self.first_slot] != 0
        return alive

    def rows(self, slots: Int32s) -> Int64s:
        """Return the rows of the clauses that belong to the slots."""
        _, rows = gather_ranges(self._slot_clauses.view, slots - self.first_slot)
        return rows

    def insert(self, clauses: ClauseArrays) -> None:
        """Add clauses; those of one slot stand together, slots ascending."""
        first_clause, n = len(self._clauses), len(clauses.subscriptions)
        if n == 0:
            return
        self._clauses.append(clauses)
        starts = np.flatnonzero(np.diff(clauses.subscriptions, prepend=-1))
        self._slot_clauses.append((np.append(starts[1:], n) + first_clause)[: len(starts)])
        self._alive.append(np.ones(len(starts), np.uint8))
        self._take_in(clauses)
        self._view = None

    def remove(self, slots: Int32s) -> None:
        """Make slots dead."""
        self._bury(slots)
        self._alive.view[slots - self.first_slot] = 0
        self._n_dead += len(slots)

    @abstractmethod
    def match_rows(self, messages: MessageArrays, start: int, stop: int) -> Matches:
        """Match messages ``start:stop``; slots are the delta's own."""

    def view(self) -> View:
        """Return what a kernel matches against; valid until the next insertion."""
        if self._view is None:
            self._view = self._new_view()
        return self._view

    @abstractmethod
    def _new_view(self) -> View:
        """Return what a kernel matches against."""

    @abstractmethod
    def _take_in(self, clauses: ClauseArrays) -> None:
        """Let clauses that were logged last be found."""

    @abstractmethod
    def _bury(self, slots: Int32s) -> None:
        """Let no clause of the slots be found any more."""

    def _match_view(
        self, messages: MessageArrays, start: int, stop: int, n_slots: int, has_scores: bool
    ) -> Matches:
        """Match with a kernel that remembers slots."""
        n_tokens = self.n_tokens
        scratch = self._scratches.take(
            lambda old: len(old.marks) >= n_tokens and len(old.last_seen) >= n_slots,
            lambda: SlotScratch(
                np.zeros(n_tokens + n_tokens // 4, np.uint8),
                np.zeros(1, np.int64),
                np.zeros(2 * n_slots, np.int64),
            ),
        )
        found = match_rows(self.view(), messages, start, stop, scratch, has_scores, self._calls)
        self._scratches.give_back(scratch)
        return found


class ChainedDelta(Delta):
    """The delta of a boolean index.

    Each clause hangs in the chain of its rarest required token; a chain is a list of blocks of
    sixteen box keys, so a message tests sixteen clauses at a time. Chains are in order of arrival,
    without a spatial order, which is fast enough while the delta is a few percent of the index.
    """

    def __init__(
        self, space: Space, first_slot: int, quantizer: Quantizer, frequencies: Int64s
    ) -> None:
        super().__init__(space, first_slot)
        self._quantizer = quantizer
        self._frequencies = frequencies
        # The chains, field by field as in DeltaArrays.
        self._heads = GrowingArray(np.empty(0, np.int32), fill=-1)
        self._block_next = GrowingArray(np.empty(0, np.int32), fill=-1)
        self._block_counts = GrowingArray(np.empty(0, np.int32))
        self._keys = GrowingArray(np.empty(0, np.uint64), fill=DEAD_KEY)
        self._key_clauses = GrowingArray(np.empty(0, np.int32), fill=-1)
        self._key_tokens = GrowingArray(np.empty(0, np.int32), fill=-1)
        # Where things are, for removal.
        self._clause_positions = GrowingArray(np.empty(0, np.int64))

    @property
    def n_tokens(self) -> int:
        """One more than the largest token of any clause."""
        return len(self._heads)

    def match_rows(self, messages: MessageArrays, start: int, stop: int) -> Matches:
        """Match messages ``start:stop``."""
        return self._match_view(messages, start, stop, self.n_slots, has_scores=False)

    def _new_view(self) -> View:
        """Return what kernels match against."""
        return View(self._arrays(), self.clauses(), self.alive(), self.space == "lonlat")

    def _take_in(self, clauses: ClauseArrays) -> None:
        n = len(clauses.subscriptions)
        first_clause = len(self._clauses) - n
        self._heads.resize(max(len(self._heads), largest_token(clauses) + 1))
        # A clause opens a block where its token has none or a full one; what is too much is given
        # back below.
        n_blocks = len(self._block_next)
        self._resize_blocks(n_blocks + n // BLOCK + min(n, len(self._heads)) + 1)
        self._clause_positions.resize(first_clause + n)
        n_blocks = insert_clauses(
            self._arrays(), self.clauses(), first_clause, n_blocks,
            self._frequencies, self._clause_positions.view,
        )  # fmt: skip
        self._resize_blocks(n_blocks)

    def _bury(self, slots: Int32s) -> None:
        """Let the keys of the slots' clauses touch nothing."""
        self._keys.view[self._clause_positions.view[self.rows(slots)]] = DEAD_KEY

    def _arrays(self) -> DeltaArrays:
        return DeltaArrays(
            self._quantizer,
            self._heads.view,
            self._block_next.view,
            self._block_counts.view,
            self._keys.view,
            self._key_clauses.view,
            self._key_tokens.view,
            np.array([self.first_slot], np.int64),
        )

    def _resize_blocks(self, n_blocks: int) -> None:
        self._block_next.resize(n_blocks)
        self._block_counts.resize(n_blocks)
        self._keys.resize(n_blocks * BLOCK)
        self._key_clauses.resize(n_blocks * BLOCK)
        self._key_tokens.resize(n_blocks * BLOCK)
