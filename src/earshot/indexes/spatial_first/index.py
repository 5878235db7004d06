"""``spatial_first``: a packed R-tree finds clauses whose boxes touch, then keywords are checked.

The spatial-first baseline of [KDD13] §2.2 and [TKDE15] §2.3. It has no textual pruning: its
candidates are all clauses whose box touches the message's, whatever they ask for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from earshot.errors import InvalidParameter
from earshot.indexes.answers import Counters, run_kernel
from earshot.indexes.contract import Index, Parameters
from earshot.indexes.spatial_first.kernels.boolean import (
    SpatialFirstArrays,
    SpatialFirstScratch,
    build_spatial_first,
    curve_keys,
    match_spatial_first,
    rank_cells,
)
from earshot.model.arrays import ClauseArrays, Float64s, Int32s, Int64s, MessageArrays

FAN_OUTS = (2, 1024)


@dataclass(frozen=True)
class SpatialFirstParameters(Parameters):
    """Options of :class:`SpatialFirst`.

    Attributes:
        fan_out: Children of a node of the R-tree.
    """

    fan_out: int = 16

    def __post_init__(self) -> None:
        low, high = FAN_OUTS
        if not low <= self.fan_out <= high:
            raise InvalidParameter(f"fan_out is {self.fan_out}; expected {low} to {high}")


class SpatialFirst(Index):
    """Place first, text second; counters: nodes visited, clauses whose box touches."""

    name = "spatial_first"
    parameters_type = SpatialFirstParameters
    arrays_type = SpatialFirstArrays
    parameters: SpatialFirstParameters

    @classmethod
    def _build_arrays(
        cls,
        clauses: ClauseArrays,
        frequencies: Int64s,
        parameters: SpatialFirstParameters,
        n_threads: int,
    ) -> SpatialFirstArrays:
        levels = level_offsets_of(len(clauses.subscriptions), parameters.fan_out)
        order = curve_order(clauses.boxes)
        built = build_spatial_first(
            clauses.boxes, clauses.token_offsets, clauses.token_ids, frequencies,
            order, parameters.fan_out, levels,
        )  # fmt: skip
        return SpatialFirstArrays(levels, *built)

    def _new_scratch(self) -> SpatialFirstScratch:
        # Visiting a node takes it off the stack and puts its children on it.
        size = len(self.arrays.level_offsets) * self.parameters.fan_out
        return SpatialFirstScratch(
            np.zeros(self.n_tokens, np.uint8), np.empty(size, np.int64), np.empty(size, np.int64)
        )

    def _match_rows(
        self, messages: MessageArrays, start: int, stop: int, scratch: SpatialFirstScratch
    ) -> tuple[Int64s, Int32s, Counters]:
        head = (
            self.arrays,
            self.parameters.fan_out,
            self.clauses,
            self.alive,
            self.space == "lonlat",
        )
        return run_kernel(match_spatial_first, head, messages, start, stop, scratch)


def level_offsets_of(n_clauses: int, fan_out: int) -> Int64s:
    """Return where each level begins; a tree that is not empty has a root above its entries."""
    sizes = [n_clauses]
    while sizes[-1] > 1 or (len(sizes) == 1 and n_clauses > 0):
        sizes.append(-(-sizes[-1] // fan_out))
    return np.cumsum([0, *sizes], dtype=np.int64)


def curve_order(boxes: Float64s) -> Int64s:
    """Return the rows of ``boxes`` in Hilbert order of their centres' ranks."""
    cells = []
    for axis in (0, 1):
        low, high = boxes[:, axis], boxes[:, axis + 2]
        # A side without bounds has no centre: its bounded end stands for it, or 0 if it has none.
        low = np.where(np.isfinite(low), low, np.where(np.isfinite(high), high, 0.0))
        high = np.where(np.isfinite(high), high, low)
        centres = low / 2 + high / 2  # halves, because the sum of two large values overflows
        cells.append(np.zeros(len(boxes), np.int64))
        rank_cells(centres, np.argsort(centres), cells[-1])
    return np.argsort(curve_keys(boxes, *cells), kind="stable")
