"""``igpt``: inverted lists in the cells of a quadtree, in groups of alike subscriptions.

The structure of [PVLDB16] section 5; :mod:`earshot.semantics.topk.kernels.igpt` says how it is laid
out and where it differs from the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from earshot.errors import InvalidParameter
from earshot.model.arrays import Int32s, Int64s
from earshot.semantics.topk.contract import Dissemination
from earshot.semantics.topk.kernels.arrays import Float32s, Subscribers
from earshot.semantics.topk.kernels.curves import curve_keys
from earshot.semantics.topk.kernels.igpt import (
    MAX_BANDS,
    MAX_CELLS,
    N_COLUMNS,
    N_IGPT_FACTS,
    RULE_BITS,
    RULES,
    IgptArrays,
)
from earshot.semantics.topk.kernels.igpt_build import (
    codes_of,
    count_groups,
    fill_cells,
    fill_lists,
    fill_rows,
    find_leaves,
    largest_token,
)

ALL_RULES = frozenset(RULES)


@dataclass(frozen=True)
class Igpt(Dissemination):
    """Quadtree cells with inverted lists, and the rules by which they are pruned.

    Attributes:
        cell_capacity: A cell with more subscriptions is split.
        n_groups: Groups of subscriptions with about the same alpha in each list, at most; their
            bounds are quantiles over the component.
        rules: What is used to leave subscriptions out, of :data:`ALL_RULES`. The answers are the
            same whatever is left away.

            * ``"cells"``: a whole cell, if the message is too far from it (Lemma 6);
            * ``"groups"``: a whole group, by the weights of the rest of the message (Theorem 3);
            * ``"early"``: the rest of a group, whose thresholds ascend (Theorem 4);
            * ``"prefix"``: a subscription whose rarest shared token comes so late that the tokens
              from there on cannot weigh enough (Lemma 3);
            * ``"max_weight"``: in this, the largest weight that is left in the message takes the
              place of 1 (Theorem 1);
            * ``"unseen"``: the same with what the token at hand adds (Theorem 2);
            * ``"outer"``: bounds of the place by the distance from message to cell (else 1);
            * ``"inner"``: and by that from the subscription to the nearest side of its cell.
    """

    name: ClassVar[str] = "igpt"

    cell_capacity: int = 1000
    n_groups: int = 10
    rules: frozenset[str] = ALL_RULES

    def __post_init__(self) -> None:
        if self.cell_capacity < 1:
            raise InvalidParameter(
                f"cell_capacity is {self.cell_capacity}; a cell has room for at least 1"
            )
        if not 1 <= self.n_groups < MAX_BANDS:
            raise InvalidParameter(f"n_groups is {self.n_groups}; give 1 to {MAX_BANDS - 1}")
        unknown = sorted(set(self.rules) - ALL_RULES)
        if unknown:
            raise InvalidParameter(
                f"unknown rules {', '.join(unknown)}; choose from {', '.join(RULES)}"
            )

    def build(self, subscribers: Subscribers, slots: Int32s, max_distance: float) -> IgptArrays:
        """Return a component of these slots; row i of it is ``slots[i]``."""
        n = len(slots)
        places = subscribers.places[slots]
        curve = curve_keys(places)
        order = np.argsort(curve)
        cell_offsets, levels = find_leaves(curve[order], self.cell_capacity)
        n_cells = len(levels)
        if n_cells > MAX_CELLS:
            raise InvalidParameter(
                f"cell_capacity {self.cell_capacity} makes {n_cells} cells; at most {MAX_CELLS} "
                "can be had, so give a larger one"
            )
        boxes, row_cells = np.empty((n_cells, 6)), np.empty(n, np.int64)
        inner = np.empty(n, np.float32)
        fill_cells(places, curve, order, cell_offsets, levels, boxes, row_cells, inner)
        keys, stars = np.empty(n, np.float32), np.empty(n, np.float32)
        needs = np.empty(n, np.float32)
        fill_rows(subscribers, slots, keys, stars, needs)
        row_codes = np.empty(n, np.int32)
        order = np.argsort(codes_of(row_cells, self._bands(stars), keys, row_codes))
        largest, n_postings = largest_token(subscribers, slots)
        posting_offsets = np.zeros(largest + 2, np.int64)
        group_offsets = np.zeros(largest + 2, np.int32)
        n_tokens = count_groups(
            subscribers, slots, order, row_codes, posting_offsets, group_offsets
        )
        n_groups = int(group_offsets[-1])
        component = IgptArrays(
            facts=np.zeros(N_IGPT_FACTS, np.int64),
            slots=slots.copy(),
            row_codes=row_codes,
            needs=needs,
            cell_offsets=cell_offsets,
            cell_rows=order.astype(np.int32),
            cell_boxes=boxes,
            cell_needs=np.empty(n_cells),
            group_offsets=group_offsets,
            group_codes=np.empty(n_groups, np.int32),
            group_starts=np.empty(n_groups + 1, np.int32),
            group_heads=np.empty((n_groups, 3), np.float32),
            postings=np.empty((n_postings, N_COLUMNS), np.float32),
            posting_rows=np.empty(n_postings, np.int32),
            row_stamps=np.zeros(n, np.uint32),
            cell_stamps=np.zeros(n_cells, np.uint32),
            cell_nears=np.zeros(n_cells),
            cell_shrinks=np.zeros(n_cells),
            candidates=np.zeros(n, np.int32),
            places=np.zeros(n_tokens, np.int32),
            sums=np.zeros(n_tokens + 1),
            maxima=np.zeros(n_tokens + 1),
            lengths=np.zeros(n_tokens + 1),
        )
        component.facts[RULE_BITS] = sum(1 << RULES.index(rule) for rule in self.rules)
        fill_lists(component, subscribers, order, posting_offsets, keys, stars, inner)
        return component

    def _bands(self, stars: Float32s) -> Int64s:
        """Return the band of each row: quantiles of alpha*."""
        if len(stars) == 0 or self.n_groups == 1:
            return np.zeros(len(stars), np.int64)
        shares = np.arange(1, self.n_groups) / self.n_groups
        bounds = np.unique(np.quantile(stars, shares))
        return np.searchsorted(bounds, stars, side="right").astype(np.int64)
