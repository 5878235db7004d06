"""The delta: clauses inserted since an index was built, matched beside it.

Each clause hangs in the chain of its rarest required token; a chain is a list of blocks of sixteen
box keys, so a message tests sixteen clauses at a time. Chains are in order of arrival, without a
spatial order, which is fast enough while the delta is a few percent of the index.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from earshot.indexes.answers import Counters, run_kernel
from earshot.indexes.kernels.delta import (
    DeltaArrays,
    DeltaScratch,
    DeltaState,
    insert_clauses,
    match_delta,
)
from earshot.kernels.box_keys import BLOCK, DEAD_KEY, Quantizer
from earshot.kernels.growing import GrowingArray, GrowingClauses
from earshot.model.arrays import (
    ClauseArrays,
    Int32s,
    Int64s,
    MessageArrays,
    Space,
    gather_ranges,
)


class ClauseLog:
    """Clauses that were inserted since an index was built, in the order of their slots.

    Attributes:
        first_slot: Slot of the first one; the slots follow on those of the index.
    """

    def __init__(self, first_slot: int) -> None:
        self.first_slot = first_slot
        self._clauses = GrowingClauses()
        self._slot_clauses = GrowingArray(np.zeros(1, np.int64))  # where each slot's end
        self._alive = GrowingArray(np.empty(0, np.uint8))
        self._n_dead = 0

    @property
    def n_slots(self) -> int:
        """Number of slots handed out, dead ones included."""
        return len(self._alive)

    @property
    def n_subscriptions(self) -> int:
        """Number of live subscriptions."""
        return self.n_slots - self._n_dead

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

    def _log(self, clauses: ClauseArrays) -> None:
        """Append clauses; those of one slot stand together, slots ascending."""
        first_clause, n = len(self._clauses), len(clauses.subscriptions)
        self._clauses.append(clauses)
        starts = np.flatnonzero(np.diff(clauses.subscriptions, prepend=-1))
        self._slot_clauses.append((np.append(starts[1:], n) + first_clause)[: len(starts)])
        self._alive.append(np.ones(len(starts), np.uint8))

    def _strike(self, slots: Int32s) -> None:
        """Make slots dead."""
        self._alive.view[slots - self.first_slot] = 0
        self._n_dead += len(slots)


class Delta(ClauseLog):
    """A growing set of clauses; slots follow on those of the index it belongs to."""

    def __init__(
        self, space: Space, first_slot: int, quantizer: Quantizer, frequencies: Int64s
    ) -> None:
        super().__init__(first_slot)
        self.space = space
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
        self._scratches: list[DeltaScratch | None] = []

    @property
    def n_tokens(self) -> int:
        """One more than the largest token of any clause."""
        return len(self._heads)

    @property
    def nbytes(self) -> int:
        """Bytes of clauses and chains, room to grow included."""
        growing = (GrowingArray, GrowingClauses)
        return sum(v.nbytes for v in self.__dict__.values() if isinstance(v, growing))

    def insert(self, clauses: ClauseArrays) -> None:
        """Add clauses; those of one slot stand together, slots ascending."""
        first_clause = len(self._clauses)
        n = len(clauses.subscriptions)
        self._log(clauses)
        tokens = clauses.token_ids
        largest = int(max(tokens.max(initial=-1), (~tokens).max(initial=-1)))
        self._heads.resize(max(len(self._heads), largest + 1))
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

    def remove(self, slots: Int32s) -> None:
        """Make slots dead: their keys stop touching anything."""
        self._keys.view[self._clause_positions.view[self.rows(slots)]] = DEAD_KEY
        self._strike(slots)

    def state(self) -> DeltaState:
        """Return what kernels match against; valid until the next insertion."""
        return DeltaState(self._arrays(), self.clauses(), np.array([self.first_slot], np.int64))

    def match_rows(
        self, messages: MessageArrays, start: int, stop: int
    ) -> tuple[Int64s, Int32s, Counters]:
        """Match messages ``start:stop``; return offsets, slots and counters."""
        scratch = self._scratch()
        head = (self.state(), self.space == "lonlat")
        found = run_kernel(match_delta, head, messages, start, stop, scratch)
        self._scratches.append(scratch)
        return found

    def _scratch(self) -> DeltaScratch:
        try:
            scratch = self._scratches.pop()
        except IndexError:
            scratch = None
        n_tokens, n_slots = self.n_tokens, self.n_slots
        if scratch and len(scratch.marks) >= n_tokens and len(scratch.last_seen) >= n_slots:
            return scratch
        return DeltaScratch(
            np.zeros(n_tokens + n_tokens // 4, np.uint8),
            np.zeros(2 * n_slots, np.int64),
            np.zeros(1, np.int64),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_scratches": []}  # working memory is not part of the delta

    def _arrays(self) -> DeltaArrays:
        return DeltaArrays(
            self._quantizer,
            self._heads.view,
            self._block_next.view,
            self._block_counts.view,
            self._keys.view,
            self._key_clauses.view,
            self._key_tokens.view,
        )

    def _resize_blocks(self, n_blocks: int) -> None:
        self._block_next.resize(n_blocks)
        self._block_counts.resize(n_blocks)
        self._keys.resize(n_blocks * BLOCK)
        self._key_clauses.resize(n_blocks * BLOCK)
        self._key_tokens.resize(n_blocks * BLOCK)
