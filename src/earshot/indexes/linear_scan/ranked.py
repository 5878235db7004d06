"""``linear_scan``, ranked: every clause is scored against every message."""

from __future__ import annotations

from typing import Any, NamedTuple

from earshot.indexes.answers import Matches, run_scored_kernel
from earshot.indexes.linear_scan.kernels.ranked import match_ranked_scan
from earshot.indexes.ranked_contract import RankedIndex
from earshot.kernels.scoring import RankedScratch, ScoringArrays
from earshot.model.arrays import ClauseArrays, MessageArrays


class RankedLinearScanArrays(NamedTuple):
    """A scan needs no arrays of its own."""

    scoring: ScoringArrays


class RankedLinearScan(RankedIndex):
    """No structure at all: the yardstick that every other ranked index has to beat."""

    name = "linear_scan"
    arrays_type = RankedLinearScanArrays

    @classmethod
    def _build_arrays(
        cls, clauses: ClauseArrays, scoring: ScoringArrays, parameters: Any, n_threads: int
    ) -> RankedLinearScanArrays:
        return RankedLinearScanArrays(scoring)

    def _match_rows(
        self, messages: MessageArrays, start: int, stop: int, scratch: RankedScratch
    ) -> Matches:
        head = (self.arrays.scoring, self.clauses, self.alive, 0, self.space == "lonlat")
        return run_scored_kernel(match_ranked_scan, head, messages, start, stop, scratch)
