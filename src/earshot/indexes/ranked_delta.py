"""The delta of a ranked index: clauses inserted since it was built, matched beside it.

Most of them stand in an index of the same structure, *inner*, and those inserted last in a *tail*
that is scanned. When the tail has more than ``TAIL`` clauses and ``TAIL_SHARE`` of the inner
index's, that one is built again with the tail in it; as both grow together, each clause is built in
a bounded number of times on average.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from earshot.indexes.answers import Matches, merge_matches, run_scored_kernel
from earshot.indexes.delta import ClauseLog
from earshot.indexes.linear_scan.kernels.ranked import match_ranked_scan
from earshot.kernels.growing import GrowingArray
from earshot.kernels.scoring import RankedScratch, ScoringArrays, build_scoring
from earshot.model.arrays import (
    ClauseArrays,
    Float64s,
    Int32s,
    MessageArrays,
    Space,
    take_clauses,
)

if TYPE_CHECKING:
    from earshot.indexes.ranked_contract import RankedIndex, RankedParameters

TAIL = 256
TAIL_SHARE = 0.1


class RankedDelta(ClauseLog):
    """A growing set of clauses; slots follow on those of the index it belongs to."""

    def __init__(
        self,
        index_type: type[RankedIndex],
        parameters: RankedParameters,
        space: Space,
        first_slot: int,
        weights: Float64s,
        later_weight: float,
    ) -> None:
        super().__init__(first_slot)
        self.space = space
        self._index_type = index_type
        self._parameters = parameters
        self._weights = GrowingArray(weights, fill=later_weight)
        self._later_weight = later_weight
        self._inner: RankedIndex | None = None
        self._tail = _GrowingScoring()
        self._scratches: list[RankedScratch | None] = []

    @property
    def n_tokens(self) -> int:
        """Number of tokens that have a weight."""
        return len(self._weights)

    @property
    def nbytes(self) -> int:
        """Bytes allocated, the clauses' own included."""
        inner = 0 if self._inner is None else self._inner.nbytes
        own = (self._weights, self._clauses, self._slot_clauses, self._alive, self._tail)
        return inner + sum(part.nbytes for part in own)

    def insert(self, clauses: ClauseArrays) -> None:
        """Add clauses; those of one slot stand together, slots ascending."""
        if len(clauses.subscriptions) == 0:
            return
        self._log(clauses)
        tokens = clauses.token_ids
        largest = int(max(tokens.max(initial=-1), (~tokens).max(initial=-1)))
        self._weights.resize(max(len(self._weights), largest + 1))
        n_inner = 0 if self._inner is None else len(self._inner.clauses.subscriptions)
        if len(self._clauses) - n_inner > TAIL + TAIL_SHARE * n_inner:
            self._build_inner()
            return
        self._tail.append(
            build_scoring(
                clauses, self._weights.view, self._later_weight, self._parameters.alpha,
                self._parameters.threshold, int(clauses.subscriptions[0]),
            )
        )  # fmt: skip

    def _build_inner(self) -> None:
        clauses = self.clauses()
        # A copy, because the arrays behind the views are written to when the delta grows.
        own = take_clauses(clauses, np.arange(len(clauses.subscriptions)))
        own = own._replace(subscriptions=own.subscriptions - np.int32(self.first_slot))
        inner = self._index_type.build(
            own, space=self.space, parameters=self._parameters,
            weights=self._weights.view.copy(), later_weight=self._later_weight,
        )  # fmt: skip
        inner.remove(np.flatnonzero(self._alive.view == 0))
        self._inner = inner
        self._tail = _GrowingScoring()
        self._scratches.clear()

    def remove(self, slots: Int32s) -> None:
        """Make slots dead."""
        rows = slots - self.first_slot
        self._strike(slots)
        if self._inner is not None:
            self._inner.remove(rows[rows < self._inner.n_slots])

    def match_rows(self, messages: MessageArrays, start: int, stop: int) -> Matches:
        """Match messages ``start:stop``; slots are the delta's own."""
        inner = None
        n_slots = n_clauses = 0
        if self._inner is not None:
            n_slots, n_clauses = self._inner.n_slots, len(self._inner.clauses.subscriptions)
            found = self._inner._match_chunk(messages, start, stop)
            inner = found._replace(subscriptions=found.subscriptions + np.int32(self.first_slot))
            if n_slots == self.n_slots:
                return inner
        scratch = self._scratch()
        head = (
            self._tail.view(self._weights.view, self._later_weight, self._parameters.alpha),
            _rest(self.clauses(), n_clauses),
            self._alive.view[n_slots:],
            self.first_slot + n_slots,
            self.space == "lonlat",
        )
        tail = run_scored_kernel(match_ranked_scan, head, messages, start, stop, scratch)
        self._scratches.append(scratch)
        return tail if inner is None else merge_matches(inner, tail)

    def _scratch(self) -> RankedScratch:
        n_tokens, n_slots = self.n_tokens, self._tail.n_slots
        try:
            scratch = self._scratches.pop()
        except IndexError:
            scratch = None
        if scratch and len(scratch.marks) >= n_tokens and len(scratch.last_seen) >= n_slots:
            return scratch
        return RankedScratch(
            np.zeros(n_tokens + n_tokens // 4, np.uint8),
            np.zeros(2 * n_slots, np.int64),
            np.zeros(1, np.int64),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_scratches": []}  # working memory is not part of the delta


class _GrowingScoring:
    """Scoring arrays that more can be appended to, slot by slot."""

    def __init__(self) -> None:
        self._totals = GrowingArray(np.empty(0, np.float64))
        self._areas = GrowingArray(np.empty(0, np.float64))
        self._cuts = GrowingArray(np.empty(0, np.float64))
        self._is_compound = GrowingArray(np.empty(0, np.uint8))
        self._piece_starts = GrowingArray(np.zeros(1, np.int64))
        self._piece_rows = GrowingArray(np.empty(0, np.int32))

    @property
    def n_slots(self) -> int:
        return len(self._piece_starts) - 1

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.__dict__.values())

    def append(self, scoring: ScoringArrays) -> None:
        """Add the clauses of further slots."""
        n_before, n = len(self._totals), len(scoring.totals)
        starts, rows = scoring.piece_starts, scoring.piece_rows
        if len(starts) == 0:  # all slots are simple
            starts, rows = np.arange(n + 1, dtype=np.int64), np.arange(n, dtype=np.int32)
        self._piece_starts.append(starts[1:] + n_before)
        self._piece_rows.append(
            np.where(rows < 0, rows - np.int32(n_before), rows + np.int32(n_before))
        )
        self._totals.append(scoring.totals)
        self._areas.append(scoring.areas)
        self._cuts.append(scoring.cuts)
        self._is_compound.append(scoring.is_compound)

    def view(self, weights: Float64s, later_weight: float, alpha: float) -> ScoringArrays:
        """Return the arrays; valid until the next slot is appended."""
        return ScoringArrays(
            weights,
            np.array([later_weight]),
            self._totals.view,
            self._areas.view,
            self._cuts.view,
            np.array([alpha], np.float64),
            self._is_compound.view,
            self._piece_starts.view,
            self._piece_rows.view,
        )


def _rest(clauses: ClauseArrays, start: int) -> ClauseArrays:
    """Return the clauses from ``start`` on, without copying; their offsets do not begin at 0."""
    return ClauseArrays(
        clauses.subscriptions[start:],
        clauses.token_offsets[start:],
        clauses.token_ids,
        clauses.boxes[start:],
        clauses.shape_rows[start:],
        clauses.shapes,
        clauses.thresholds[start:],
    )
