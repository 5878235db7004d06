"""``rt_tree``, ``rt_plus_tree``, ``rt_plus_plus_tree`` and ``ir_tree``, ranked.

The trees of :mod:`earshot.indexes.rtree.index` with bounds on scores in their nodes ([TKDE15] §6);
:mod:`earshot.indexes.rtree.kernels.ranked` says how each of them prunes. They take changes in
place. What is removed leaves the bounds above it as they are, which are then wider than they need
be, but right; splits and merges renew those of the nodes they touch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from earshot.indexes.contract import BuildInput
from earshot.indexes.in_place import RankedInPlaceIndex
from earshot.indexes.ranked_contract import RankedParameters
from earshot.indexes.rtree.index import (
    ChangingTree,
    OrderedRtreeParameters,
    RtreeParameters,
    build_tree,
    filled_tree,
)
from earshot.indexes.rtree.kernels.nodes import (
    LEVELS,
    MOST_ENTRIES,
    PREFIXES,
)
from earshot.indexes.rtree.kernels.ranked import (
    N_BOUNDS,
    RankedRtreeArrays,
    RankedRtScratch,
    fill_prefixes,
    renew_bounds,
)
from earshot.indexes.rtree.token_orders import TokenOrder
from earshot.kernels.growing import with_room
from earshot.model.arrays import Float64s, Int64s


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


class RankedRtree(ChangingTree, RankedInPlaceIndex):
    """A tree that ranks; subclasses name the kind of their tables."""

    parameters_type: ClassVar[type[RankedParameters]] = RankedRtreeParameters
    arrays_type = RankedRtreeArrays
    scratch_type = RankedRtScratch

    @classmethod
    def _build_arrays(cls, given: BuildInput) -> RankedRtreeArrays:
        clauses, scoring = given.clauses, given.known
        built = build_tree(cls.kind, clauses, _frequencies(scoring.weights), given.parameters)
        if cls.kind == PREFIXES:
            fill_prefixes(built.tree, scoring, clauses, 0, len(clauses.subscriptions))
        tree = filled_tree(built.tree, clauses)
        bounds = np.zeros((len(tree.counts), N_BOUNDS))
        renew_bounds(tree, bounds, scoring, clauses)
        return RankedRtreeArrays(scoring, tree, built.order, bounds)

    def _insert_rows(self, first: int, stop: int) -> None:
        super()._insert_rows(first, stop)
        self._renew_bounds()

    def _remove_rows(self, rows: Int64s) -> None:
        super()._remove_rows(rows)
        self._renew_bounds()

    def _renew_bounds(self) -> None:
        tree = self.arrays.tree
        bounds = with_room(self.arrays.bounds, len(tree.counts))
        self.arrays = self.arrays._replace(bounds=bounds)
        renew_bounds(tree, bounds, self.arrays.scoring, self.clauses)

    def _choose_posted(self, first: int, stop: int) -> None:
        if self.kind == PREFIXES:
            fill_prefixes(self.arrays.tree, self.arrays.scoring, self.clauses, first, stop)

    def _scratch_arrays(self) -> dict[str, tuple[int, npt.DTypeLike]]:
        has_levels = self.kind == LEVELS
        n_clauses, n_nodes = len(self.clauses.subscriptions), len(self.arrays.tree.counts)
        return {
            **super()._scratch_arrays(),
            "last_seen": (self.n_base_slots if self.has_repeats else 0, np.int64),
            "found": (n_clauses if has_levels else 0, np.uint32),
            "wanted": (n_nodes if has_levels else 0, np.uint32),
            "sums": (MOST_ENTRIES + 1, np.float64),
        }


def _frequencies(weights: Float64s) -> Int64s:
    """Return numbers that are to each other as the frequencies that idf weights came from."""
    lightest = float(weights.min(initial=np.inf))
    return np.rint(1e12 * np.exp(lightest - weights)).astype(np.int64)
