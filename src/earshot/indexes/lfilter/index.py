"""``lfilter``, LFilter of [CIKM15]: MBRTrie and PT-Quadtree at once, and cost models that choose.

:mod:`earshot.indexes.lfilter.kernels.match` describes how a message is matched,
:mod:`earshot.indexes.lfilter.kernels.costs` how it is decided. Clauses are stored in the order of
the trie, so that the number of a clause is its row, in the trie's ranges as in the quadtree's
lists. Later ones are appended, and get the next numbers. When the trie is built anew, so is the
quadtree, and clauses are put in order again.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal, get_args

import numpy as np

from earshot.errors import InvalidParameter
from earshot.indexes.answers import Matches
from earshot.indexes.contract import BuildInput
from earshot.indexes.in_place import InPlaceIndex
from earshot.indexes.lfilter.kernels.costs import N_SUMS, Costs, fill_costs
from earshot.indexes.lfilter.kernels.match import (
    FRAMES,
    N_CHOICES,
    LFilterArrays,
    LFilterScratch,
    Tops,
)
from earshot.indexes.mbr_trie.index import (
    PROBINGS,
    Probing,
    build_trie,
    check_probing,
    in_path_order,
    insert_rows,
    is_worn,
    label_tokens,
    remove_rows,
    trie_scratch_arrays,
    with_tokens_up_to,
)
from earshot.indexes.mbr_trie.kernels.match import MbrTrieScratch
from earshot.indexes.mbr_trie.kernels.nodes import N_ENTRIES
from earshot.indexes.pt_quadtree import index as pt_quadtree
from earshot.indexes.pt_quadtree.index import PtQuadtreeParameters, build_pt_quadtree
from earshot.indexes.pt_quadtree.kernels.match import PtScratch
from earshot.indexes.quadtree.kernels.nodes import fill_prints
from earshot.kernels.growing import with_room
from earshot.model.arrays import ClauseArrays, Int32s, Int64s, take_clauses

FilterStep = Literal["trie", "quadtree", "cost"]
"""What finds candidates: the MBRTrie, the PT-Quadtree, or whichever is cheaper for the message."""

Verification = Literal["pruned", "direct", "cost"]
"""What happens to the quadtree's lists: they are cut by the ranges of the trie all the way down,
verified as they are, or whichever is cheaper for a list at a node."""

CHOICES = (
    "trie", "quadtree", "lists_pruned", "lists_verified", "nodes_pruned", "nodes_verified",
)  # fmt: skip
"""What is counted of the choices made, in the order of the kernel."""


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


class LFilter(InPlaceIndex):
    """LFilter; counters: nodes of both structures visited, clauses verified."""

    name = "lfilter"
    parameters_type = LFilterParameters
    arrays_type = LFilterArrays
    parameters: LFilterParameters

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.choices: dict[str, int] = dict.fromkeys(CHOICES, 0)
        """How often each way was taken in all matching so far: messages by the trie or by the
        quadtree; lists, and parts of them at nodes of the trie, that were pruned or verified."""
        self._counting = Lock()

    @classmethod
    def _arrange(cls, clauses: ClauseArrays, known: Int64s) -> ClauseArrays:
        rows = np.arange(len(clauses.subscriptions), dtype=np.int32)
        return take_clauses(clauses, in_path_order(clauses, rows, label_tokens(known)))

    @classmethod
    def _build_arrays(cls, given: BuildInput) -> LFilterArrays:
        clauses, frequencies = given.clauses, given.known
        n = len(clauses.subscriptions)
        return _build(clauses, n, label_tokens(frequencies), frequencies, given.parameters)

    def _match_rows(self, messages: Any, start: int, stop: int, scratch: Any) -> Matches:
        found = super()._match_rows(messages, start, stop, scratch)
        with self._counting:
            for name, n in zip(CHOICES, scratch.choices.tolist(), strict=True):
                self.choices[name] += n
        scratch.choices[:] = 0
        return found

    def _insert_rows(self, first: int, stop: int) -> None:
        arrays = self.arrays
        trie = with_tokens_up_to(arrays.trie, self.n_tokens)
        # If an insertion failed before, its rows have no numbers.
        if is_worn(trie, stop - first) or trie.facts[N_ENTRIES] != first:
            self._renew(trie.tokens, stop)
            return
        tree = arrays.quadtree.tree
        prints = with_room(tree.prints, stop)
        clauses = self.clauses
        fill_prints(prints, clauses.token_offsets, clauses.token_ids, self.frequencies, first, stop)
        quadtree = arrays.quadtree._replace(tree=tree._replace(prints=prints))
        self.arrays = arrays._replace(
            trie=insert_rows(trie, self.clauses, first, stop),
            quadtree=pt_quadtree.insert_rows(quadtree, self.clauses, self.frequencies, first, stop),
        )

    def _renew(self, tokens: Int32s, n: int) -> None:
        """Put all clauses in order again, those of dead slots last, and build both structures."""
        is_live = self.alive[self.clauses.subscriptions[:n]] != 0
        live, dead = (np.flatnonzero(each).astype(np.int32) for each in (is_live, ~is_live))
        order = in_path_order(self.clauses, live, tokens)
        self.clauses = take_clauses(self.clauses, np.concatenate([order, dead]))
        self._growing = self._rows_by_slot = None
        self.arrays = _build(self.clauses, len(live), tokens, self.frequencies, self.parameters)

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

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in super().__getstate__().items() if name != "_counting"
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._counting = Lock()


def _build(
    clauses: ClauseArrays,
    n_live: int,
    tokens: Int32s,
    frequencies: Int64s,
    parameters: LFilterParameters,
) -> LFilterArrays:
    """Build both structures of the first clauses, which are in order."""
    rows = np.arange(n_live, dtype=np.int32)
    n = len(clauses.subscriptions)
    trie = build_trie(clauses, rows, tokens, PROBINGS.index(parameters.probing), n)
    quadtree = build_pt_quadtree(clauses, frequencies, parameters, only=rows)
    costs = Costs(parameters.rules, np.empty((2, N_SUMS)), np.empty(3))
    fill_costs(trie, quadtree, frequencies, costs)
    return LFilterArrays(trie, quadtree, costs)
