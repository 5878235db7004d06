"""``linear_scan``: every clause is checked against every message; the baseline and the fallback."""

from __future__ import annotations

from typing import Any

import numpy as np

from earshot.indexes.contract import Index
from earshot.indexes.linear_scan.kernels import LinearScanArrays, RankedLinearScanArrays
from earshot.indexes.ranked_contract import RankedIndex
from earshot.kernels.scoring import ScoringArrays
from earshot.model.arrays import ClauseArrays, Int64s


class LinearScan(Index):
    """No structure at all: the yardstick that every other index has to beat."""

    name = "linear_scan"
    arrays_type = LinearScanArrays

    @classmethod
    def _build_arrays(
        cls, clauses: ClauseArrays, frequencies: Int64s, parameters: Any, n_threads: int
    ) -> LinearScanArrays:
        return LinearScanArrays()


class RankedLinearScan(RankedIndex):
    """Every clause is scored against every message."""

    name = "linear_scan"
    arrays_type = RankedLinearScanArrays

    @classmethod
    def _build_arrays(
        cls, clauses: ClauseArrays, scoring: ScoringArrays, parameters: Any, n_threads: int
    ) -> RankedLinearScanArrays:
        return RankedLinearScanArrays(scoring, np.zeros(1, np.int64))
