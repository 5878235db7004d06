"""``lfilter``, LFilter of [CIKM15]: MBRTrie and PT-Quadtree at once, and cost models that choose.

:mod:`earshot.indexes.lfilter.kernels.match` describes how a message is matched,
:mod:`earshot.indexes.lfilter.kernels.costs` how it is decided. The number of a clause is its row,
in the trie's ranges as in the quadtree's lists.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Self, get_args

import numpy as np

from earshot.errors import InvalidParameter
from earshot.indexes.contract import BuildInput
from earshot.indexes.lfilter.kernels.costs import CAND_SIDE, N_SUMS, Costs, fill_costs
from earshot.indexes.lfilter.kernels.match import (
    FRAMES,
    N_CHOICES,
    LFilterArrays,
    LFilterScratch,
    Tops,
)
from earshot.indexes.mbr_trie.index import (
    PathOrderedIndex,
    Probing,
    build_trie,
    check_probing,
    insert_rows,
    label_tokens,
    remove_rows,
    trie_scratch_arrays,
)
from earshot.indexes.mbr_trie.kernels.match import MbrTrieScratch
from earshot.indexes.mbr_trie.kernels.nodes import MbrTrieArrays
from earshot.indexes.pt_quadtree import index as pt_quadtree
from earshot.indexes.pt_quadtree.index import PtQuadtreeParameters, build_pt_quadtree
from earshot.indexes.pt_quadtree.kernels.match import PtScratch
from earshot.indexes.quadtree.kernels.nodes import fill_prints
from earshot.kernels.growing import with_room
from earshot.model.arrays import ClauseArrays, Int32s, Int64s

FilterStep = Literal["trie", "quadtree", "cost"]
"""What finds candidates: the MBRTrie, the PT-Quadtree, or whichever is cheaper for the message."""

Verification = Literal["pruned", "direct", "cost"]
"""What happens to the quadtree's lists: they are cut by the ranges of the trie all the way down,
verified as they are, or whichever is cheaper for a list at a node."""


@dataclass(frozen=True)
class LFilterParameters(PtQuadtreeParameters):
    """Options of LFilter, and those of its two parts.

    Attributes:
        filter_step: ``trie``, ``quadtree`` or ``cost``; see :data:`FilterStep`.
        verification: ``pruned``, ``direct`` or ``cost``; see :data:`Verification`.
        probing: How the children of a trie's node are found.
    """

    filter_step: FilterStep = "cost"
    verification: Verification = "cost"
    probing: Probing = "cost"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probing(self.probing)
        for name, allowed in (
            ("filter_step", get_args(FilterStep)),
            ("verification", get_args(Verification)),
        ):
            if getattr(self, name) not in allowed:
                raise InvalidParameter(
                    f"{name} is {getattr(self, name)!r}; expected one of {', '.join(allowed)}"
                )

    @property
    def rules(self) -> Int64s:
        """The choices as the kernels know them."""
        ways = get_args(FilterStep).index(self.filter_step)
        return np.array([ways, get_args(Verification).index(self.verification)], np.int64)


class LFilter(PathOrderedIndex):
    """LFilter; counters: nodes of both structures visited, clauses verified."""

    name = "lfilter"
    parameters_type = LFilterParameters
    arrays_type = LFilterArrays
    parameters: LFilterParameters
    counted = (
        "trie", "quadtree",  # messages
        "lists_pruned", "lists_verified",
        "nodes_pruned", "nodes_verified",  # parts of lists at nodes of the trie
    )  # fmt: skip

    @property
    def trie(self) -> MbrTrieArrays:
        """The trie."""
        trie: MbrTrieArrays = self.arrays.trie
        return trie

    @classmethod
    def _build_arrays(cls, given: BuildInput) -> LFilterArrays:
        clauses, frequencies = given.clauses, given.known
        n = len(clauses.subscriptions)
        return _build(clauses, n, label_tokens(frequencies), frequencies, given.parameters)

    def _built(self, n_live: int, tokens: Int32s) -> LFilterArrays:
        return _build(self.clauses, n_live, tokens, self.frequencies, self.parameters)

    def forced(self, **chosen: Any) -> Self:
        """Return an index over the same arrays that chooses otherwise; change neither of the two.

        Args:
            chosen: ``filter_step`` and ``verification``, as in the parameters.
        """
        parameters = replace(self.parameters, **chosen)
        arrays = self.arrays._replace(costs=self.arrays.costs._replace(rules=parameters.rules))
        return type(self)(
            parameters, self.space, self.clauses, arrays, self.frequencies, self.alive
        )

    def _insert_some(self, trie: MbrTrieArrays, first: int, stop: int) -> None:
        clauses, tree = self.clauses, self.arrays.quadtree.tree
        prints = with_room(tree.prints, stop)
        fill_prints(prints, clauses.token_offsets, clauses.token_ids, self.frequencies, first, stop)
        quadtree, _, has_too_many = pt_quadtree.insert_within_bounds(
            self.arrays.quadtree._replace(tree=tree._replace(prints=prints)),
            clauses, self.frequencies, first, stop,
        )  # fmt: skip
        if has_too_many:
            self._renew(trie.tokens, stop)
            return
        trie = insert_rows(trie, clauses, first, stop)
        self.arrays = self.arrays._replace(trie=trie, quadtree=quadtree)

    def _remove_rows(self, rows: Int64s) -> None:
        remove_rows(self.arrays.trie, self.clauses, rows)
        quadtree = pt_quadtree.remove_rows(
            self.arrays.quadtree, self.clauses, self.frequencies, rows
        )
        self.arrays = self.arrays._replace(quadtree=quadtree)

    def _scratch_arrays(self) -> dict[str, Any]:
        trie = self.arrays.trie
        tops = {name: (len(trie.tokens), np.int32) for name in Tops._fields}
        return {
            "trie": trie_scratch_arrays(trie),
            "quadtree": pt_quadtree.scratch_arrays(self.n_tokens),
            "tops": tops,
        }

    def _new_scratch(self) -> LFilterScratch:
        parts = {
            name: {each: np.zeros(n + n // 8, kind) for each, (n, kind) in arrays.items()}
            for name, arrays in self._scratch_arrays().items()
        }
        return LFilterScratch(
            np.zeros(1, np.int64),
            MbrTrieScratch(**parts["trie"]),
            PtScratch(**parts["quadtree"]),
            Tops(**parts["tops"]),
            np.zeros((FRAMES, 5), np.int64),
            np.zeros(N_CHOICES, np.int64),
        )

    def _fits(self, scratch: LFilterScratch) -> bool:
        return all(
            len(getattr(getattr(scratch, name), each)) >= n
            for name, arrays in self._scratch_arrays().items()
            for each, (n, _) in arrays.items()
        )


def _build(
    clauses: ClauseArrays,
    n_live: int,
    tokens: Int32s,
    frequencies: Int64s,
    parameters: LFilterParameters,
) -> LFilterArrays:
    """Build both structures of the first clauses, which are in order."""
    trie = build_trie(clauses, n_live, tokens, parameters.probing)
    rows = np.arange(n_live, dtype=np.int32)
    quadtree = build_pt_quadtree(clauses, frequencies, parameters, only=rows)
    costs = Costs(parameters.rules, np.zeros((4, N_SUMS)), np.zeros((CAND_SIDE + 1, CAND_SIDE + 1)))
    fill_costs(
        trie.tokens, trie.nodes, quadtree.tree, quadtree.sets.used, frequencies, costs.expected,
        costs.leaves,
    )  # fmt: skip
    return LFilterArrays(trie, quadtree, costs)
