"""``spatial_first``: a packed R-tree finds clauses whose boxes touch, then keywords are checked.

The spatial-first baseline of [KDD13] §2.2 and [TKDE15] §2.3. It has no textual pruning: its
candidates are all clauses whose box touches the message's, whatever they ask for.

Ranked, under the scores of [TKDE15] §6, these are scored. Where text alone can reach a
subscription's threshold, no tree leads to it: it is scored against every message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from earshot.errors import InvalidParameter
from earshot.indexes.contract import BuildInput, Index, Parameters
from earshot.indexes.ranked_contract import RankedIndex, RankedParameters
from earshot.indexes.spatial_first.kernels import (
    RankedSpatialFirstArrays,
    SpatialFirstArrays,
    SpatialFirstScratch,
    build_spatial_first,
    curve_keys,
    rank_cells,
)
from earshot.kernels.scoring import BOUND_SLACK
from earshot.model.arrays import Float64s, Int64s

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


@dataclass(frozen=True)
class RankedSpatialFirstParameters(RankedParameters, SpatialFirstParameters):
    """Options of :class:`RankedSpatialFirst`."""

    def __post_init__(self) -> None:
        RankedParameters.__post_init__(self)
        SpatialFirstParameters.__post_init__(self)


class _PackedTree(Index):
    """What both forms share."""

    parameters: SpatialFirstParameters

    def _new_scratch(self) -> SpatialFirstScratch:
        # Visiting a node takes it off the stack and puts its children on it.
        size = len(self.arrays.level_offsets) * self.parameters.fan_out
        n_remembered = self.n_base_slots if self.has_scores and self.has_repeats else 0
        return SpatialFirstScratch(
            np.zeros(self.n_tokens, np.uint8),
            np.zeros(1, np.int64),
            np.zeros(n_remembered, np.int64),
            np.empty(size, np.int64),
            np.empty(size, np.int64),
        )


class SpatialFirst(_PackedTree):
    """Place first, text second; counters: nodes visited, clauses whose box touches."""

    name = "spatial_first"
    parameters_type = SpatialFirstParameters
    arrays_type = SpatialFirstArrays

    @classmethod
    def _build_arrays(cls, given: BuildInput) -> SpatialFirstArrays:
        clauses, frequencies, fan_out = given.clauses, given.known, given.parameters.fan_out
        levels = _level_offsets_of(len(clauses.subscriptions), fan_out)
        built = build_spatial_first(
            clauses, frequencies, _curve_order(clauses.boxes), fan_out, levels
        )
        return SpatialFirstArrays(np.array([fan_out]), levels, *built)


class RankedSpatialFirst(_PackedTree, RankedIndex):
    """Place first, text second, by scores; counters: nodes visited, clauses scored."""

    name = "spatial_first"
    parameters_type: ClassVar[type[RankedParameters]] = RankedSpatialFirstParameters
    arrays_type = RankedSpatialFirstArrays
    parameters: RankedSpatialFirstParameters

    @classmethod
    def _build_arrays(cls, given: BuildInput) -> RankedSpatialFirstArrays:
        clauses, scoring, fan_out = given.clauses, given.known, given.parameters.fan_out
        is_placeless = 1.0 - scoring.alpha[0] >= scoring.cuts - BOUND_SLACK
        placed = np.flatnonzero(~is_placeless)
        levels = _level_offsets_of(len(placed), fan_out)
        order = placed[_curve_order(clauses.boxes[placed])]
        none = np.zeros(len(scoring.weights), np.int64)
        boxes, entry_clauses, _ = build_spatial_first(clauses, none, order, fan_out, levels)
        placeless = np.flatnonzero(is_placeless).astype(np.int32)
        return RankedSpatialFirstArrays(
            scoring, np.array([fan_out]), levels, boxes, entry_clauses, placeless
        )


def _level_offsets_of(n_clauses: int, fan_out: int) -> Int64s:
    """Return where each level begins; a tree that is not empty has a root above its entries."""
    sizes = [n_clauses]
    while sizes[-1] > 1 or (len(sizes) == 1 and n_clauses > 0):
        sizes.append(-(-sizes[-1] // fan_out))
    return np.cumsum([0, *sizes], dtype=np.int64)


def _curve_order(boxes: Float64s) -> Int64s:
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
