"""The PT-Quadtree of [CIKM15] §4: a quadtree whose nodes know one token of each clause below them.

See :mod:`earshot.indexes.pt_quadtree.kernels.sets` for what nodes know,
:mod:`~earshot.indexes.pt_quadtree.kernels.changes` for building and changes, and
:mod:`~earshot.indexes.pt_quadtree.kernels.match` for matching and for what other structures may
use of it.

A structure that numbers clauses in an order of its own builds with :func:`build_pt_quadtree`,
giving ``numbers`` by clause and ``rows`` by number, which may leave numbers out. Before it inserts
clauses, it puts their numbers into both arrays; :func:`insert_rows` and :func:`remove_rows` are
what :class:`PtQuadtree` itself uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from earshot.errors import InvalidParameter
from earshot.indexes.contract import BuildInput, Parameters
from earshot.indexes.kernels.blocks import SIGNATURE_WORDS
from earshot.indexes.pt_quadtree.kernels.changes import (
    LEAVES,
    LIST_PLACES,
    MOST_COPIES_IN_ALL,
    MX_CIF,
    NODES,
    SET_PLACES,
    SETTLE,
    PtQuadtreeArrays,
    Queue,
    insert_clauses,
    remove_clauses,
    settle,
)
from earshot.indexes.pt_quadtree.kernels.match import FOUND, STACK, PtScratch
from earshot.indexes.pt_quadtree.kernels.pivots import GREEDY, RAREST
from earshot.indexes.quadtree.index import (
    QuadtreeIndex,
    check_number,
    check_whole,
    in_order,
    prepare_quadtree,
)
from earshot.indexes.quadtree.kernels.cells import BITS
from earshot.indexes.quadtree.kernels.nodes import N_NODES, N_POSTINGS, Quadtree
from earshot.indexes.quadtree.tables import (
    more_nodes,
    new_tables,
    packed,
    tables_with_nodes,
    with_more_places,
    with_nodes,
)
from earshot.kernels.growing import resized
from earshot.kernels.resuming import run_until_done
from earshot.model.arrays import ClauseArrays, Int32s, Int64s

Placement = Literal["leaves", "mx_cif"]
PivotalTokens = Literal["greedy", "rarest"]

_LEAST_INSERTED = 64
_MOST_ENTRIES = 2 * MOST_COPIES_IN_ALL
"""Entries per clause that insertions may bring about before the tree is built anew."""

_PLACEMENTS = {"leaves": LEAVES, "mx_cif": MX_CIF}
_PIVOTS = {"greedy": GREEDY, "rarest": RAREST}


@dataclass(frozen=True)
class PtQuadtreeParameters(Parameters):
    """Options of a PT-Quadtree.

    Attributes:
        placement: ``leaves``: a clause is in every leaf that it touches. ``mx_cif``: it is in the
            smallest node that holds its box.
        tau_num: Clauses at which a leaf is divided, τ_num in the paper.
        tau_area: Share of the whole area below which cells are not divided, τ_area in the paper;
            the smallest cells have 4^-20.
        most_copies: Entries that the quarters of a cell may have for each clause of it, where
            clauses are in leaves; a cell that would need more is not divided, nor one by which
            clauses would have more than 16 entries on average.
        pivotal_tokens: ``greedy``: the paper's hitting set. ``rarest``: the rarest token of each
            clause.
    """

    placement: Placement = "leaves"
    tau_num: int = 128
    tau_area: float = 0.0
    most_copies: float = 2.0
    pivotal_tokens: PivotalTokens = "greedy"

    def __post_init__(self) -> None:
        for name, allowed in (
            ("placement", get_args(Placement)),
            ("pivotal_tokens", get_args(PivotalTokens)),
        ):
            if getattr(self, name) not in allowed:
                raise InvalidParameter(
                    f"{name} is {getattr(self, name)!r}; expected one of {', '.join(allowed)}"
                )
        check_whole("tau_num", self.tau_num, 2, 1_000_000)
        check_number("tau_area", self.tau_area, 0, 1)
        check_number("most_copies", self.most_copies, 1, 4)

    @property
    def max_depth(self) -> int:
        """Depth of cells that are not divided."""
        depths = (depth for depth in range(BITS) if 0.25**depth < self.tau_area)
        return next(depths, BITS)


class PtQuadtree(QuadtreeIndex):
    """Pivotal tokens; counters: nodes visited, clauses in lists of the message's tokens."""

    name = "pt_quadtree"
    parameters_type = PtQuadtreeParameters
    arrays_type = PtQuadtreeArrays
    scratch_type = PtScratch
    parameters: PtQuadtreeParameters

    @classmethod
    def _build_arrays(cls, given: BuildInput) -> PtQuadtreeArrays:
        return build_pt_quadtree(given.clauses, given.known, given.parameters)

    def _insert_some(self, first: int, stop: int) -> None:
        while first < stop:
            self.arrays, first, has_too_many = insert_within_bounds(
                self.arrays, self.clauses, self.frequencies, first, stop
            )
            if has_too_many:
                self._build_anew(first, self.arrays.tree.frame)

    def _remove_rows(self, rows: Int64s) -> None:
        self.arrays = remove_rows(self.arrays, self.clauses, self.frequencies, rows)

    def _refill(self, tree: Quadtree, rows: Int32s) -> PtQuadtreeArrays:
        arrays = _new_arrays(tree, self.parameters)
        return _filled(arrays, self.clauses, self.frequencies, rows)

    def _scratch_arrays(self) -> dict[str, tuple[int, npt.DTypeLike]]:
        return scratch_arrays(self.n_tokens)


def scratch_arrays(n_tokens: int) -> dict[str, tuple[int, npt.DTypeLike]]:
    """Return the parts of the working memory of a PT-Quadtree."""
    return {
        "marks": (n_tokens, np.uint8),
        "serial": (1, np.int64),
        "signature": (SIGNATURE_WORDS, np.uint64),
        "stack": (STACK, np.int32),
        "descent": (2, np.int64),
        "found_nodes": (FOUND, np.int32),
        "found_values": (FOUND, np.int64),
    }


def build_pt_quadtree(
    clauses: ClauseArrays,
    frequencies: Int64s,
    parameters: PtQuadtreeParameters,
    numbers: Int32s | None = None,
    rows: Int32s | None = None,
    only: Int32s | None = None,
) -> PtQuadtreeArrays:
    """Return a PT-Quadtree over clauses.

    Args:
        clauses: What is to be found.
        frequencies: How often each token occurs.
        parameters: Options of the tree.
        numbers: Number of each clause, if not its row.
        rows: Clause of each number, -1 where there is none.
        only: Clauses to put in, ascending, if not all.
    """
    tree = prepare_quadtree(clauses, frequencies)
    if numbers is not None and rows is not None:
        tree = tree._replace(numbers=numbers, rows=rows)
    if only is None:
        only = np.arange(len(clauses.subscriptions), dtype=np.int32)
    return _filled(_new_arrays(tree, parameters), clauses, frequencies, only)


def _new_arrays(tree: Quadtree, parameters: PtQuadtreeParameters) -> PtQuadtreeArrays:
    n = len(tree.children)
    rules = (
        _PLACEMENTS[parameters.placement],
        parameters.tau_num,
        parameters.max_depth,
        parameters.most_copies,
        _PIVOTS[parameters.pivotal_tokens],
    )
    return PtQuadtreeArrays(
        tree=tree,
        rules=np.array(rules, np.float64),
        limits=np.full(n, parameters.tau_num, np.int32),
        n_leaves=np.ones(n, np.int32),
        copies=np.ones(n),
        sets=new_tables(np.uint8, n, has_lists=False),
    )


class _Changing:
    """Arrays under a change: kernels are called until they are done, and get room meanwhile."""

    def __init__(
        self, arrays: PtQuadtreeArrays, clauses: ClauseArrays, frequencies: Int64s, n: int = 1024
    ) -> None:
        self.arrays, self._clauses, self._frequencies = arrays, clauses, frequencies
        self.queue = Queue(
            np.zeros(64, np.int32),
            np.zeros(65, np.int64),
            np.zeros(4 * n, np.int32),
            np.zeros(1, np.int64),
        )
        self.work = np.zeros(STACK + 2, np.int64)

    def settle(self) -> None:
        """Settle what is in the queue."""
        run_until_done(
            lambda: int(settle(self.arrays, self._clauses, self._frequencies, self.queue)),
            self.make_room,
        )

    def make_room(self, short_of: int) -> None:
        """Make room for what a kernel is short of, or settle what it has left to do."""
        arrays, tree, queue = self.arrays, self.arrays.tree, self.queue
        n = int(tree.facts[N_NODES])
        if short_of == SETTLE:
            numbers = np.unique(queue.numbers[: queue.starts[1]])
            queue.numbers[: len(numbers)] = numbers
            queue.starts[1] = len(numbers)
            self.settle()
        elif short_of == NODES:
            n = more_nodes(tree)
            self.arrays = arrays._replace(
                tree=with_nodes(tree, n),
                limits=resized(arrays.limits, n),
                n_leaves=resized(arrays.n_leaves, n),
                copies=resized(arrays.copies, n),
                sets=tables_with_nodes(arrays.sets, n),
            )
        elif short_of == LIST_PLACES:
            tree = tree._replace(lists=with_more_places(tree.lists, n))
            self.arrays = arrays._replace(tree=tree)
        elif short_of == SET_PLACES:
            self.arrays = arrays._replace(sets=with_more_places(arrays.sets, n))
        else:
            self.queue = queue._replace(
                nodes=resized(queue.nodes, 2 * len(queue.nodes)),
                starts=resized(queue.starts, 2 * len(queue.starts)),
                numbers=resized(queue.numbers, 2 * len(queue.numbers)),
            )


def _filled(
    arrays: PtQuadtreeArrays, clauses: ClauseArrays, frequencies: Int64s, rows: Int32s
) -> PtQuadtreeArrays:
    """Settle clauses in a tree that holds nothing yet, and leave no room to spare."""
    changing = _Changing(arrays, clauses, frequencies, len(rows))
    queue = changing.queue
    queue.numbers[: len(rows)] = in_order(arrays.tree.numbers, rows)
    queue.starts[1], queue.ends[0] = len(rows), 1
    changing.settle()
    arrays, n = changing.arrays, int(changing.arrays.tree.facts[N_NODES])
    tree = arrays.tree._replace(lists=packed(arrays.tree.lists, n, spare=0.0))
    return arrays._replace(tree=tree, sets=packed(arrays.sets, n, spare=0.0))


def insert_rows(
    arrays: PtQuadtreeArrays, clauses: ClauseArrays, frequencies: Int64s, first: int, stop: int
) -> PtQuadtreeArrays:
    """Insert clauses ``first`` to ``stop``, whose prints are there already."""
    changing = _Changing(arrays, clauses, frequencies)

    def insert() -> int:
        nonlocal first
        first, short_of = insert_clauses(
            changing.arrays, clauses, frequencies, first, stop, changing.queue, changing.work
        )
        return int(short_of)

    run_until_done(insert, changing.make_room)
    return changing.arrays


def insert_within_bounds(
    arrays: PtQuadtreeArrays, clauses: ClauseArrays, frequencies: Int64s, first: int, stop: int
) -> tuple[PtQuadtreeArrays, int, bool]:
    """Insert clauses until all are in, or the tree has too many entries and is to be built anew.

    Regions that touch most leaves are copied to them; where many come, larger leaves are better.
    Returns the arrays, how far it got, and whether there are too many entries.
    """
    most = int(_MOST_ENTRIES * stop)
    while first < stop:
        n_free = most - int(arrays.tree.facts[N_POSTINGS])
        last = min(stop, first + max(_LEAST_INSERTED, n_free // int(arrays.n_leaves[0])))
        arrays = insert_rows(arrays, clauses, frequencies, first, last)
        first = last
        if arrays.tree.facts[N_POSTINGS] > most:
            return arrays, first, True
    return arrays, first, False


def remove_rows(
    arrays: PtQuadtreeArrays, clauses: ClauseArrays, frequencies: Int64s, rows: Int64s
) -> PtQuadtreeArrays:
    """Remove clauses; those that are not in the tree are passed over."""
    changing = _Changing(arrays, clauses, frequencies)
    done = 0

    def remove() -> int:
        nonlocal done
        done, short_of = remove_clauses(
            changing.arrays, clauses, rows, done, changing.queue, changing.work
        )
        return int(short_of)

    run_until_done(remove, changing.make_room)
    return changing.arrays
