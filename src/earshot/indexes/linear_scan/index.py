"""``linear_scan``: every clause is checked against every message; the baseline and the fallback."""

from __future__ import annotations

from typing import Any, NamedTuple

from earshot.indexes.answers import Counters, run_kernel
from earshot.indexes.contract import Index
from earshot.indexes.linear_scan.kernels.boolean import match_linear_scan
from earshot.model.arrays import ClauseArrays, Int32s, Int64s, MessageArrays


class LinearScanArrays(NamedTuple):
    """A scan needs no arrays of its own."""


class LinearScan(Index):
    """No structure at all: the yardstick that every other index has to beat."""

    name = "linear_scan"
    arrays_type = LinearScanArrays

    @classmethod
    def _build_arrays(
        cls, clauses: ClauseArrays, frequencies: Int64s, parameters: Any, n_threads: int
    ) -> LinearScanArrays:
        return LinearScanArrays()

    def _match_rows(
        self, messages: MessageArrays, start: int, stop: int, scratch: Any
    ) -> tuple[Int64s, Int32s, Counters]:
        head = (self.clauses, self.alive, self.space == "lonlat")
        return run_kernel(match_linear_scan, head, messages, start, stop, scratch)
