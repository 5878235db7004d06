"""``linear_scan``: every clause is checked against every message; the baseline and the fallback."""

from __future__ import annotations

import numpy as np

from earshot.indexes.contract import BuildInput, Index
from earshot.indexes.linear_scan.kernels import LinearScanArrays, RankedLinearScanArrays
from earshot.indexes.ranked_contract import RankedIndex


class LinearScan(Index):
    """No structure at all: the yardstick that every other index has to beat."""

    name = "linear_scan"
    arrays_type = LinearScanArrays

    @classmethod
    def _build_arrays(cls, given: BuildInput) -> LinearScanArrays:
        return LinearScanArrays()


class RankedLinearScan(RankedIndex):
    """Every clause is scored against every message."""

    name = "linear_scan"
    arrays_type = RankedLinearScanArrays

    @classmethod
    def _build_arrays(cls, given: BuildInput) -> RankedLinearScanArrays:
        return RankedLinearScanArrays(given.known, np.zeros(1, np.int64))
