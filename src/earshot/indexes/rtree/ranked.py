"""``rt_tree``, ``rt_plus_tree``, ``rt_plus_plus_tree`` and ``ir_tree``, ranked.

The trees of :mod:`earshot.indexes.rtree.index` with bounds on scores in their nodes ([TKDE15] §6);
:mod:`earshot.indexes.rtree.kernels.ranked` says how each of them prunes. They take changes in
place. What is removed leaves the bounds above it as they are, which are then wider than they need
be, but right; splits and merges renew those of the nodes they touch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.answers import Matches, run_scored_kernel
from earshot.indexes.kernels.blocks import SIGNATURE_WORDS
from earshot.indexes.ranked_contract import RankedIndex, RankedParameters
from earshot.indexes.rtree.index import (
    ChangingTree,
    OrderedRtreeParameters,
    RtreeParameters,
    build_tree,
    check_number,
    filled_tree,
)
from earshot.indexes.rtree.kernels.nodes import (
    LEVELS,
    MOST_ENTRIES,
    PREFIXES,
    ROOT,
    RtreeArrays,
)
from earshot.indexes.rtree.kernels.ranked import (
    N_BOUNDS,
    RankedRtScratch,
    fill_prefixes,
    match_ranked_rtree,
    renew_bounds,
)
from earshot.indexes.rtree.kernels.token_orders import TokenOrderArrays
from earshot.indexes.rtree.token_orders import TokenOrder
from earshot.kernels.growing import GrowingArray
from earshot.kernels.scoring import ScoringArrays, build_scoring
from earshot.model.arrays import ClauseArrays, Float64s, Int32s, Int64s, MessageArrays


@dataclass(frozen=True)
class RankedRtreeParameters(RankedParameters, RtreeParameters):
    """Options of a ranked tree without an order of tokens."""

    def __post_init__(self) -> None:
        RankedParameters.__post_init__(self)
        RtreeParameters.__post_init__(self)


@dataclass(frozen=True)
class RankedOrderedRtreeParameters(RankedParameters, OrderedRtreeParameters):
    """Options of a ranked tree that puts each clause's tokens in an order.

    Attributes:
        token_order: By default the one of falling weight, which needs the fewest tokens.
    """

    token_order: TokenOrder = "idf"

    def __post_init__(self) -> None:
        RankedParameters.__post_init__(self)
        OrderedRtreeParameters.__post_init__(self)


class RankedRtreeArrays(NamedTuple):
    """A tree, the order of its tokens, and what bounds the scores below each node."""

    scoring: ScoringArrays
    tree: RtreeArrays
    order: TokenOrderArrays
    bounds: Float64s  # (n_nodes, N_BOUNDS)


class RankedRtree(ChangingTree, RankedIndex):
    """A tree that ranks; subclasses name the kind of their tables."""

    parameters_type: ClassVar[type[RankedParameters]] = RankedRtreeParameters
    arrays_type = RankedRtreeArrays

    # Scoring arrays with room to grow, field by field; made when the first clauses are appended.
    _growing_scoring: dict[str, GrowingArray] | None = None

    @classmethod
    def _build_arrays(
        cls, clauses: ClauseArrays, scoring: ScoringArrays, parameters: Any, n_threads: int
    ) -> RankedRtreeArrays:
        built = build_tree(cls.kind, clauses, _frequencies(scoring.weights), parameters)
        if cls.kind == PREFIXES:
            fill_prefixes(built.tree, scoring, clauses, 0, len(clauses.subscriptions))
        tree = filled_tree(built.tree, clauses)
        bounds = np.zeros((len(tree.counts), N_BOUNDS))
        renew_bounds(tree, bounds, scoring, clauses)
        return RankedRtreeArrays(scoring, tree, built.order, bounds)

    def _take_in(self, clauses: ClauseArrays) -> None:
        check_number(self.kind, len(self.clauses.subscriptions) + len(clauses.subscriptions))
        self._append_scoring(clauses)
        super()._take_in(clauses)
        self._renew_bounds()

    def _bury(self, slots: Int32s) -> None:
        super()._bury(slots)
        self._renew_bounds()

    def _renew_bounds(self) -> None:
        tree, bounds = self.arrays.tree, self.arrays.bounds
        if len(bounds) < len(tree.counts):
            longer = np.zeros((len(tree.counts), N_BOUNDS))
            longer[: len(bounds)] = bounds
            bounds = longer
            self.arrays = self.arrays._replace(bounds=bounds)
        renew_bounds(tree, bounds, self.arrays.scoring, self.clauses)

    def _choose_posted(self, first: int, stop: int) -> None:
        if self.kind == PREFIXES:
            fill_prefixes(self.arrays.tree, self.arrays.scoring, self.clauses, first, stop)

    def _append_scoring(self, clauses: ClauseArrays) -> None:
        """Extend the scoring arrays by clauses that are about to be appended."""
        scoring = self.arrays.scoring
        weights = scoring.weights
        largest = int(np.maximum(clauses.token_ids, ~clauses.token_ids).max(initial=-1))
        if largest >= len(weights):
            longer = np.full(largest + 1 + largest // 4, self.later_weight)
            longer[: len(weights)] = weights
            weights = longer
        new = build_scoring(
            clauses, weights, self.later_weight, self.parameters.alpha,
            self.parameters.threshold, self.n_base_slots,
        )  # fmt: skip
        if self._growing_scoring is None:
            self._growing_scoring = {
                field: GrowingArray(getattr(scoring, field)) for field in _CLAUSE_FIELDS
            }
        growing = self._growing_scoring
        n_before, n_slots = len(self.clauses.subscriptions), self.n_base_slots
        for field in ("totals", "areas", "cuts", "is_compound"):
            growing[field].append(getattr(new, field))
        had_pieces, has_pieces = len(growing["piece_starts"]) > 0, len(new.piece_starts) > 0
        if has_pieces and not had_pieces:
            # All slots had one clause so far; those of an index are not always in their order.
            rows = np.empty(n_slots, np.int32)
            rows[self.clauses.subscriptions] = np.arange(n_before, dtype=np.int32)
            growing["piece_starts"].append(np.arange(n_slots + 1))
            growing["piece_rows"].append(rows)
        if has_pieces or had_pieces:
            starts, rows = new.piece_starts, new.piece_rows
            if not has_pieces:
                rows = np.arange(len(clauses.subscriptions), dtype=np.int32)
                starts = np.arange(len(rows) + 1)
            growing["piece_starts"].append(starts[1:] + n_before)
            shifted = np.where(rows >= 0, rows + n_before, rows - n_before)
            growing["piece_rows"].append(shifted.astype(np.int32))
        scoring = scoring._replace(
            weights=weights, **{field: growing[field].view for field in _CLAUSE_FIELDS}
        )
        self.arrays = self.arrays._replace(scoring=scoring)

    def _new_scratch(self) -> RankedRtScratch:
        tree = self.arrays.tree
        n_levels = int(tree.levels[tree.facts[ROOT]]) + 2
        n_clauses = len(self.clauses.subscriptions) if self.kind == LEVELS else 0
        n_nodes = len(tree.counts) if self.kind == LEVELS else 0
        return RankedRtScratch(
            np.zeros(self.n_tokens + self.n_tokens // 8, np.uint8),
            _zeros(self.n_base_slots if self.has_repeats else 0, np.int64),
            np.zeros(1, np.int64),
            np.zeros(SIGNATURE_WORDS, np.uint64),
            np.empty(n_levels * self.parameters.max_entries, np.int32),
            _zeros(n_clauses, np.uint32),
            _zeros(n_nodes, np.uint32),
            np.zeros(MOST_ENTRIES + 1),
        )

    def _fits(self, scratch: RankedRtScratch) -> bool:
        tree = self.arrays.tree
        n_levels = int(tree.levels[tree.facts[ROOT]]) + 1
        fits = (
            len(scratch.marks) >= self.n_tokens
            and len(scratch.stack) >= n_levels * self.parameters.max_entries
            and len(scratch.last_seen) >= (self.n_base_slots if self.has_repeats else 0)
        )
        if self.kind == LEVELS:
            fits &= len(scratch.found) >= len(self.clauses.subscriptions)
            fits &= len(scratch.wanted) >= len(tree.counts)
        return fits

    def _match_rows(
        self, messages: MessageArrays, start: int, stop: int, scratch: RankedRtScratch
    ) -> Matches:
        arrays = self.arrays
        head = (arrays.scoring, arrays.tree, arrays.bounds, self.clauses, self.space == "lonlat")
        return run_scored_kernel(match_ranked_rtree, head, messages, start, stop, scratch)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_growing_scoring": None}


_CLAUSE_FIELDS = ("totals", "areas", "cuts", "is_compound", "piece_starts", "piece_rows")


def _frequencies(weights: Float64s) -> Int64s:
    """Return numbers that are to each other as the frequencies that idf weights came from."""
    lightest = float(weights.min(initial=np.inf))
    return np.rint(1e12 * np.exp(lightest - weights)).astype(np.int64)


def _zeros(n: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return zeros, some more than asked for, so that growth does not need new ones each time."""
    return np.zeros(n + n // 8, dtype)
