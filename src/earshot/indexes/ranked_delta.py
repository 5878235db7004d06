"""The delta of a ranked index: clauses inserted since it was built, matched beside it.

Most of them stand in an index of the same structure, *inner*, and those inserted last in a *tail*
that is scanned. When the tail has more than ``TAIL`` clauses and ``TAIL_SHARE`` of the inner
index's, that one is built again with the tail in it; as both grow together, each clause is built in
a bounded number of times on average.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from earshot.indexes.answers import Matches, merge_matches
from earshot.indexes.delta import Delta
from earshot.indexes.kernels.matching import View
from earshot.indexes.linear_scan.kernels import RankedLinearScanArrays
from earshot.kernels.growing import GrowingScoring
from earshot.kernels.scoring import build_scoring
from earshot.model.arrays import (
    ClauseArrays,
    Float64s,
    Int32s,
    MessageArrays,
    Space,
    box_clauses,
    take_clauses,
)

if TYPE_CHECKING:
    from earshot.indexes.ranked_contract import RankedIndex, RankedParameters

TAIL = 256
TAIL_SHARE = 0.1


class RankedDelta(Delta):
    """An index over most clauses of the delta, and a scan of those that came last."""

    def __init__(
        self,
        index_type: type[RankedIndex],
        parameters: RankedParameters,
        space: Space,
        first_slot: int,
        weights: Float64s,
        later_weight: float,
    ) -> None:
        super().__init__(space, first_slot)
        self._index_type = index_type
        self._parameters = parameters
        self._later_weight = later_weight
        self._inner: RankedIndex | None = None
        self._tail = self._new_tail(weights)

    def _new_tail(self, weights: Float64s) -> GrowingScoring:
        nothing = box_clauses([0], [], np.empty((0, 4)))
        alpha, threshold = self._parameters.alpha, self._parameters.threshold
        scoring = build_scoring(nothing, weights, self._later_weight, alpha, threshold)
        return GrowingScoring(scoring, nothing.subscriptions, threshold)

    @property
    def n_tokens(self) -> int:
        """Number of tokens that have a weight."""
        return self._tail.n_tokens

    @property
    def nbytes(self) -> int:
        """Bytes allocated, the clauses' own included."""
        return super().nbytes + (0 if self._inner is None else self._inner.nbytes)

    def match_rows(self, messages: MessageArrays, start: int, stop: int) -> Matches:
        """Match messages ``start:stop``; slots are the delta's own."""
        inner = None
        if self._inner is not None:
            found = self._inner._match_chunk(messages, start, stop)
            inner = found._replace(subscriptions=found.subscriptions + np.int32(self.first_slot))
            if self._tail.n_slots == 0:
                return inner
        tail = self._match_view(messages, start, stop, self._tail.n_slots, has_scores=True)
        return tail if inner is None else merge_matches(inner, tail)

    def _new_view(self) -> View:
        """Return what the scan of the tail matches against."""
        n_slots = self.n_slots - self._tail.n_slots
        n_clauses = 0 if self._inner is None else len(self._inner.clauses.subscriptions)
        first_slot = np.array([self.first_slot + n_slots], np.int64)
        return View(
            RankedLinearScanArrays(self._tail.view, first_slot),
            _rest(self.clauses(), n_clauses),
            self.alive()[n_slots:],
            self.space == "lonlat",
        )

    def _take_in(self, clauses: ClauseArrays) -> None:
        n_inner = 0 if self._inner is None else len(self._inner.clauses.subscriptions)
        if len(self._clauses) - n_inner > TAIL + TAIL_SHARE * n_inner:
            self._build_inner()
        else:
            self._tail.append(clauses)

    def _build_inner(self) -> None:
        clauses = self.clauses()
        # A copy, because the arrays behind the views are written to when the delta grows.
        own = take_clauses(clauses, np.arange(len(clauses.subscriptions)))
        own = own._replace(subscriptions=own.subscriptions - np.int32(self.first_slot))
        self._inner = self._index_type.build(
            own, space=self.space, parameters=self._parameters,
            weights=self._tail.view.weights.copy(), later_weight=self._later_weight,
        )  # fmt: skip
        self._inner.remove(np.flatnonzero(self.alive() == 0))
        self._tail = self._new_tail(self._inner.weights)

    def _bury(self, slots: Int32s) -> None:
        """Remove the slots from the inner index; the scan looks at who is alive."""
        rows = slots - self.first_slot
        if self._inner is not None:
            self._inner.remove(rows[rows < self._inner.n_slots])


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
