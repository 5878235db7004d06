"""``linear_scan``: every clause is checked against every message; the baseline and the fallback."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from earshot.indexes.answers import Counters, collect_answers
from earshot.indexes.contract import Index
from earshot.kernels.linear_scan import match_linear_scan
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
        work = np.zeros(2, np.int64)

        def kernel(row: int, answers: Int32s, offsets: Int64s) -> int:
            next_row: int = match_linear_scan(
                self.clauses, self.alive, self.space == "lonlat", messages,
                start, stop, row, scratch, answers, offsets, work,
            )  # fmt: skip
            return next_row

        offsets, answers = collect_answers(stop - start, kernel)
        return offsets, answers, Counters(int(work[0]), int(work[1]), len(answers))
