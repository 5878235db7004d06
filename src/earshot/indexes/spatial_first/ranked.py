"""``spatial_first``, ranked: a packed R-tree finds clauses whose boxes touch, then they are scored.

The spatial-first baseline of [TKDE15] section 2.3 under the scores of section 6. It has no textual
pruning. Where text alone can reach a subscription's threshold, no tree leads to it: it is scored
against every message.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from earshot.errors import InvalidParameter
from earshot.indexes.answers import Matches, run_scored_kernel
from earshot.indexes.ranked_contract import RankedIndex, RankedParameters
from earshot.indexes.spatial_first.index import FAN_OUTS, curve_order, level_offsets_of
from earshot.indexes.spatial_first.kernels.boolean import build_spatial_first
from earshot.indexes.spatial_first.kernels.ranked import (
    RankedSpatialFirstArrays,
    RankedSpatialFirstScratch,
    match_ranked_spatial_first,
)
from earshot.kernels.scoring import BOUND_SLACK, ScoringArrays
from earshot.model.arrays import ClauseArrays, MessageArrays


@dataclass(frozen=True)
class RankedSpatialFirstParameters(RankedParameters):
    """Options of :class:`RankedSpatialFirst`.

    Attributes:
        fan_out: Children of a node of the R-tree.
    """

    fan_out: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = FAN_OUTS
        if not low <= self.fan_out <= high:
            raise InvalidParameter(f"fan_out is {self.fan_out}; expected {low} to {high}")


class RankedSpatialFirst(RankedIndex):
    """Place first, text second; counters: nodes visited, clauses scored."""

    name = "spatial_first"
    parameters_type = RankedSpatialFirstParameters
    arrays_type = RankedSpatialFirstArrays
    parameters: RankedSpatialFirstParameters

    @classmethod
    def _build_arrays(
        cls,
        clauses: ClauseArrays,
        scoring: ScoringArrays,
        parameters: RankedSpatialFirstParameters,
        n_threads: int,
    ) -> RankedSpatialFirstArrays:
        is_placeless = 1.0 - scoring.alpha[0] >= scoring.cuts - BOUND_SLACK
        placed = np.flatnonzero(~is_placeless)
        levels = level_offsets_of(len(placed), parameters.fan_out)
        order = placed[curve_order(clauses.boxes[placed])]
        boxes, entry_clauses, _ = build_spatial_first(
            clauses.boxes, clauses.token_offsets, clauses.token_ids,
            np.zeros(len(scoring.weights), np.int64), order, parameters.fan_out, levels,
        )  # fmt: skip
        placeless = np.flatnonzero(is_placeless).astype(np.int32)
        return RankedSpatialFirstArrays(scoring, levels, boxes, entry_clauses, placeless)

    def _new_scratch(self) -> RankedSpatialFirstScratch:
        # Visiting a node takes it off the stack and puts its children on it.
        size = len(self.arrays.level_offsets) * self.parameters.fan_out
        return RankedSpatialFirstScratch(
            np.zeros(self.n_tokens, np.uint8),
            self._new_last_seen(),
            np.zeros(1, np.int64),
            np.empty(size, np.int64),
            np.empty(size, np.int64),
            np.empty(len(self.arrays.entry_clauses), np.int32),
        )

    def _match_rows(
        self, messages: MessageArrays, start: int, stop: int, scratch: RankedSpatialFirstScratch
    ) -> Matches:
        head = (
            self.arrays,
            self.parameters.fan_out,
            self.clauses,
            self.alive,
            self.space == "lonlat",
        )
        return run_scored_kernel(match_ranked_spatial_first, head, messages, start, stop, scratch)
