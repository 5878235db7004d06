"""The tree that R^t, R^t+, R^t++ and the IR-tree have in common: built, changed in place, packed.

:mod:`earshot.indexes.rtree.kernels.nodes` describes the tree. Unlike the other structures it takes
changes in place (:mod:`earshot.indexes.in_place`): inserted clauses find their leaf, removed ones
leave it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from earshot.errors import InvalidInput, InvalidParameter
from earshot.indexes.block_trie.kernels.build import fill_codes
from earshot.indexes.contract import BuildInput, Parameters
from earshot.indexes.in_place import (
    LEAST_PLACES,
    InPlaceIndex,
    is_short,
    is_worth_packing,
    more_places,
    packed_places,
)
from earshot.indexes.kernels.blocks import SIGNATURE_WORDS
from earshot.indexes.kernels.token_tables import (
    FIRST_LIST,
    LIST_END,
    LIST_GARBAGE,
    ROW_MASK,
    TABLE_END,
    TABLE_GARBAGE,
    TokenTables,
)
from earshot.indexes.quantizing import quantizer_of
from earshot.indexes.rtree.kernels.changes import (
    NEW_HEIGHT,
    condense,
    insert_clauses,
    remove_clauses,
)
from earshot.indexes.rtree.kernels.match import RtreeIndexArrays, RtScratch
from earshot.indexes.rtree.kernels.nodes import (
    FREE_NODE,
    KIND,
    LEVELS,
    MAX_ENTRIES,
    MIN_ENTRIES,
    MOST_ENTRIES,
    N_FACTS,
    N_NODES,
    PREFIXES,
    ROOT,
    SINGLE,
    RtreeArrays,
    fill_prints,
    fill_tables,
    pack_leaves,
    pack_level,
    pack_tables,
    requantize,
)
from earshot.indexes.rtree.kernels.token_orders import TokenOrderArrays, order_tokens
from earshot.indexes.rtree.token_orders import (
    TokenOrder,
    build_order,
    check_order,
    count_clauses,
    follow_quantizer,
)
from earshot.kernels.box_keys import BLOCK, DEAD_KEY, Quantizer, build_keys
from earshot.kernels.growing import resized, with_room
from earshot.kernels.resuming import DONE, run_until_done
from earshot.model.arrays import ClauseArrays, Int32s, Int64s

FULL_SHARE = 0.9
"""How full nodes are built, so that not every insertion splits one."""

MOST_LIST_PLACES = 1 << 30
"""Where a list starts has so many bits in a value of a table."""

_SPARE_NODES = 64
_LEAST_QUANTIZED = 256


def _check_whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidParameter(f"{name} is {value!r}; expected a whole number")


@dataclass(frozen=True)
class RtreeParameters(Parameters):
    """Options of a tree without an order of tokens.

    Attributes:
        min_entries: Fewest entries of a node other than the root, ``b`` in the papers.
        max_entries: Most entries of a node, ``B`` in the papers.
    """

    min_entries: int = 25
    max_entries: int = 50

    def __post_init__(self) -> None:
        for name in ("min_entries", "max_entries"):
            _check_whole(name, getattr(self, name))
        if not 4 <= self.max_entries <= MOST_ENTRIES:
            raise InvalidParameter(
                f"max_entries is {self.max_entries}; expected 4 to {MOST_ENTRIES}"
            )
        if not 2 <= self.min_entries <= self.max_entries // 2:
            raise InvalidParameter(
                f"min_entries is {self.min_entries}; expected 2 to {self.max_entries // 2}, half "
                f"of max_entries"
            )


@dataclass(frozen=True)
class OrderedRtreeParameters(RtreeParameters):
    """Options of a tree that puts each clause's tokens in an order.

    Attributes:
        token_order: ``random``, ``df``, ``idf`` or ``local``; see
            :data:`earshot.indexes.rtree.token_orders.TokenOrder`.
        n_cells: Cells of the grid of the order ``local``.
        seed: Seed of the order ``random``.
    """

    token_order: TokenOrder = "local"
    n_cells: int = 10_000
    seed: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_whole("seed", self.seed)
        check_order(self.token_order, self.n_cells)


class ChangingTree(InPlaceIndex):
    """A tree that changes in place; its arrays have a ``tree`` and an ``order`` among them."""

    kind: ClassVar[int]
    parameters: Any

    _n_quantized: int | None = None
    """Clauses that there were when the cells of the box keys were chosen."""

    def _check_number(self, n_clauses: int) -> None:
        check_number(self.kind, n_clauses)

    def _insert_rows(self, first: int, stop: int) -> None:
        self._n_quantized = first if self._n_quantized is None else self._n_quantized
        while first < stop:
            # Few at a time into a small tree: its box keys tell newcomers badly apart.
            last = min(stop, first + max(_LEAST_QUANTIZED, self._n_quantized))
            self._insert_some(first, last)
            if last - self._n_quantized >= max(_LEAST_QUANTIZED, self._n_quantized):
                self._requantize(last)
            first = last

    def _insert_some(self, first: int, stop: int) -> None:
        clauses = self.clauses
        keys = np.empty(stop - first, np.uint64)
        build_keys(self.arrays.tree.quantizer, clauses.boxes, first, keys)
        self._make_room_for_clauses(stop)
        if self.kind in (SINGLE, PREFIXES, LEVELS):
            tree, order = self.arrays.tree, self.arrays.order
            _fill_order(self.kind, order, clauses, keys, first, tree.ordered, stop)
            order = count_clauses(order, clauses, keys, first, stop, self.n_tokens)
            self.arrays = self.arrays._replace(order=order)
            self._choose_posted(first, stop)
            if self.kind == LEVELS:
                fill_prints(self.arrays.tree, clauses, first, stop)

        def insert() -> int:
            nonlocal first
            first, why = insert_clauses(self.arrays.tree, clauses, first, stop)
            return int(why)

        run_until_done(insert, self._make_way)

    def _choose_posted(self, first: int, stop: int) -> None:
        """Make what clauses post of their tokens in order, where that is not all of them."""

    def _remove_rows(self, rows: Int64s) -> None:
        rows = rows[self.arrays.tree.leaves[rows] >= 0]  # an insertion that failed leaves none
        done, node = 0, -1

        def remove() -> int:
            nonlocal done, node
            why = DONE
            if node >= 0:
                node, why = condense(self.arrays.tree, self.clauses, node)
            if why == DONE and done < len(rows):
                done, node, why = remove_clauses(self.arrays.tree, self.clauses, rows, done)
            return int(why)

        run_until_done(remove, self._make_way)

    def _make_room_for_clauses(self, n: int) -> None:
        tree = self.arrays.tree
        leaves, ordered = with_room(tree.leaves, n, -1), tree.ordered
        if self.kind == SINGLE:
            ordered = with_room(ordered, n)
        if self.kind in (PREFIXES, LEVELS):
            ordered = with_room(ordered, len(self.clauses.token_ids))
        prints = with_room(tree.prints, n) if self.kind == LEVELS else tree.prints
        tree = tree._replace(leaves=leaves, ordered=ordered, prints=prints)
        self.arrays = self.arrays._replace(tree=tree)

    def _make_way(self, why: int) -> None:
        """Do what a kernel stopped for."""
        tree = self.arrays.tree
        tree = _filled(tree, self.clauses) if why == NEW_HEIGHT else _with_room(tree)
        self.arrays = self.arrays._replace(tree=tree)

    def _requantize(self, n: int) -> None:
        """Choose the cells of the box keys anew, from all clauses."""
        boxes = self.clauses.boxes
        tree = self.arrays.tree._replace(quantizer=quantizer_of(boxes[:n], "lonlat"))
        requantize(tree, boxes)
        follow_quantizer(self.arrays.order, tree.quantizer)
        self.arrays = self.arrays._replace(tree=tree)
        self._n_quantized = n

    def _scratch_arrays(self) -> dict[str, tuple[int, npt.DTypeLike]]:
        tree = self.arrays.tree
        n_levels = int(tree.levels[tree.facts[ROOT]]) + 1
        return {
            "marks": (self.n_tokens, np.uint8),
            "serial": (1, np.int64),
            "stack": (n_levels * self.parameters.max_entries, np.int32),
            "signature": (SIGNATURE_WORDS, np.uint64),
        }


class RtreeIndex(ChangingTree):
    """A tree that matches; subclasses name the kind of their tables."""

    parameters_type = RtreeParameters
    arrays_type = RtreeIndexArrays
    scratch_type = RtScratch

    @classmethod
    def _build_arrays(cls, given: BuildInput) -> RtreeIndexArrays:
        arrays = build_tree(cls.kind, given.clauses, given.known, given.parameters)
        return arrays._replace(tree=filled_tree(arrays.tree, given.clauses))


def build_tree(
    kind: int, clauses: ClauseArrays, frequencies: Int64s, parameters: Any
) -> RtreeIndexArrays:
    """Pack clauses into a tree, with tables of a kind, and put their tokens in order."""
    n = len(clauses.subscriptions)
    check_number(kind, n)
    quantizer = quantizer_of(clauses.boxes, "lonlat")
    keys = np.empty(n, np.uint64)
    build_keys(quantizer, clauses.boxes, 0, keys)
    order, ordered = _put_in_order(kind, clauses, frequencies, parameters, quantizer, keys)
    codes = np.empty(n, np.int64)
    fill_codes(keys, 0, codes)
    rows = (np.sort(codes) & 0xFFFFFFFF).astype(np.int32)
    levels = _level_sizes(n, parameters.min_entries, parameters.max_entries)
    tree = _new_tree(kind, parameters, quantizer, sum(levels), n, ordered)
    pack_leaves(tree, rows, keys, levels[0])
    first_child, first_node = 0, levels[0]
    for n_nodes in levels[1:]:
        pack_level(tree, first_child, first_node, n_nodes)
        first_child, first_node = first_node, first_node + n_nodes
    tree.facts[ROOT] = first_node - 1
    tree.facts[N_NODES] = first_node
    if kind == LEVELS:
        fill_prints(tree, clauses, 0, n)
    return RtreeIndexArrays(tree, order)


def _put_in_order(
    kind: int,
    clauses: ClauseArrays,
    frequencies: Int64s,
    parameters: Any,
    quantizer: Quantizer,
    keys: npt.NDArray[np.uint64],
) -> tuple[TokenOrderArrays, Int32s]:
    """Return the order of tokens and what it makes of the clauses, if the kind has one."""
    is_ordered = kind in (SINGLE, PREFIXES, LEVELS)
    order = build_order(
        parameters.token_order if is_ordered else "random",
        parameters.n_cells if is_ordered else 1,
        parameters.seed if is_ordered else 0,
        clauses, quantizer, keys, frequencies,
    )  # fmt: skip
    if not is_ordered:
        return order, np.empty(0, np.int32)
    n = len(clauses.subscriptions)
    ordered = np.zeros(n if kind == SINGLE else len(clauses.token_ids), np.int32)
    _fill_order(kind, order, clauses, keys, 0, ordered)
    return order, ordered


def _fill_order(
    kind: int,
    order: TokenOrderArrays,
    clauses: ClauseArrays,
    keys: npt.NDArray[np.uint64],
    first: int,
    ordered: Int32s,
    stop: int | None = None,
) -> None:
    none = np.empty(0, np.int32)
    stop = len(clauses.subscriptions) if stop is None else stop
    pair = (none, ordered) if kind == SINGLE else (ordered, none)
    order_tokens(order, clauses, keys, first, stop, *pair)


def check_number(kind: int, n_clauses: int) -> None:
    """Refuse more clauses, removed ones included, than the entries of lists can tell apart."""
    if kind == LEVELS and n_clauses >= ROW_MASK:
        raise InvalidInput(
            f"{n_clauses:,} clauses, removed ones included; this tree takes fewer than "
            f"{ROW_MASK:,}, so rebuild it, or use another index or several shards"
        )


def _level_sizes(n: int, least: int, most: int) -> list[int]:
    """Return the number of nodes of each level, leaves first, that hold ``least`` to ``most``."""
    target = max(int(most * FULL_SHARE), least)
    sizes = [max(1, _n_nodes(n, least, most, target))]
    while sizes[-1] > 1:
        sizes.append(_n_nodes(sizes[-1], least, most, target))
    return sizes


def _n_nodes(n: int, least: int, most: int, target: int) -> int:
    return max(-(-n // most), min(-(-n // target), n // least))


def _new_tree(
    kind: int,
    parameters: RtreeParameters,
    quantizer: Quantizer,
    n_nodes: int,
    n_clauses: int,
    ordered: Int32s,
) -> RtreeArrays:
    facts = np.zeros(N_FACTS, np.int64)
    facts[FREE_NODE] = -1
    facts[KIND] = kind
    facts[MIN_ENTRIES], facts[MAX_ENTRIES] = parameters.min_entries, parameters.max_entries
    n_places = n_nodes * parameters.max_entries
    return RtreeArrays(
        quantizer=quantizer,
        facts=facts,
        counts=np.zeros(n_nodes, np.int32),
        levels=np.zeros(n_nodes, np.int32),
        parents=np.full(n_nodes, -1, np.int32),
        n_below=np.zeros(n_nodes, np.int32),
        prints=np.zeros(n_clauses if kind == LEVELS else 0, np.uint32),
        is_changed=np.zeros(n_nodes, np.uint8),
        keys=np.full(n_places + BLOCK, DEAD_KEY),
        entries=np.zeros(n_places, np.int32),
        leaves=np.zeros(n_clauses, np.int32),
        ordered=ordered,
        tables=TokenTables(
            starts=np.zeros(n_nodes, np.int64),
            sizes=np.zeros(n_nodes, np.int32),
            used=np.zeros(n_nodes, np.int32),
            tokens=np.empty(LEAST_PLACES, np.int32),
            values=np.empty(LEAST_PLACES, np.int64 if kind >= LEVELS else np.int32),
            lists=np.empty(LEAST_PLACES if kind == LEVELS else 0, np.int32),
            ends=np.zeros(4, np.int64),
        ),
    )


def filled_tree(tree: RtreeArrays, clauses: ClauseArrays) -> RtreeArrays:
    """Return a new tree with the tables of all its nodes, and no room to spare."""
    return _packed(_filled(tree, clauses), spare=0.0)


def _filled(tree: RtreeArrays, clauses: ClauseArrays) -> RtreeArrays:
    """Fill the tables of all nodes anew."""
    tree.tables.ends[:] = 0
    tree.tables.ends[LIST_END] = FIRST_LIST
    tree.tables.sizes[:] = 0
    tree.tables.used[:] = 0
    nodes = np.flatnonzero(tree.counts[: tree.facts[N_NODES]])
    nodes = nodes[np.argsort(tree.levels[nodes], kind="stable")]
    done = 0

    def fill() -> int:
        nonlocal done
        done = int(fill_tables(tree, clauses, nodes, done))
        return len(nodes) - done  # DONE after the last

    def make_room(_: int) -> None:
        nonlocal tree
        tree = _with_larger_tables(tree)

    run_until_done(fill, make_room)
    return tree


def _with_room(tree: RtreeArrays) -> RtreeArrays:
    """Return the tree with room for more: nodes, and whatever of its tables is short of it."""
    n_nodes = len(tree.counts)
    if tree.facts[N_NODES] + _SPARE_NODES > n_nodes:
        tree = _with_nodes(tree, n_nodes + n_nodes // 4 + 2 * _SPARE_NODES)
    return _with_larger_tables(tree)


def _with_larger_tables(tree: RtreeArrays) -> RtreeArrays:
    tables, ends = tree.tables, tree.tables.ends
    garbage, used = ends[TABLE_GARBAGE] + ends[LIST_GARBAGE], ends[TABLE_END] + ends[LIST_END]
    if is_worth_packing(garbage, used):
        return _packed(tree)
    n_places, n_list = len(tables.tokens), len(tables.lists)
    has_lists = tree.facts[KIND] == LEVELS
    table_is_short = is_short(n_places, ends[TABLE_END])
    list_is_short = has_lists and is_short(n_list, ends[LIST_END])
    # If neither is, what comes is large: both grow.
    if table_is_short or not list_is_short:
        n_places = more_places(n_places)
    if has_lists and (list_is_short or not table_is_short):
        n_list = more_places(n_list)
        if n_list >= MOST_LIST_PLACES:
            raise InvalidInput("the tree's lists are too long; use another index or several shards")
    return tree._replace(
        tables=tables._replace(
            tokens=resized(tables.tokens, n_places),
            values=resized(tables.values, n_places),
            lists=resized(tables.lists, n_list),
        )
    )


def _packed(tree: RtreeArrays, **spare: float) -> RtreeArrays:
    """Return the tree with tables free of garbage, and a share of their size to spare."""
    tables, ends = tree.tables, tree.tables.ends
    n_places = packed_places(ends[TABLE_END], ends[TABLE_GARBAGE], **spare)
    n_list = packed_places(ends[LIST_END], ends[LIST_GARBAGE], **spare)
    packed = tables._replace(
        tokens=np.empty(n_places, np.int32),
        values=np.empty(n_places, tables.values.dtype),
        lists=np.empty(n_list if tree.facts[KIND] == LEVELS else 0, np.int32),
    )
    pack_tables(tree, packed.tokens, packed.values, packed.lists)
    return tree._replace(tables=packed)


def _with_nodes(tree: RtreeArrays, n: int) -> RtreeArrays:
    stride = int(tree.facts[MAX_ENTRIES])
    names = ("counts", "levels", "parents", "n_below", "is_changed")
    by_node: dict[str, Any] = {name: resized(getattr(tree, name), n) for name in names}
    tables = {name: resized(getattr(tree.tables, name), n) for name in ("starts", "sizes", "used")}
    return tree._replace(
        **by_node,
        keys=resized(tree.keys, n * stride + BLOCK),
        entries=resized(tree.entries, n * stride),
        tables=tree.tables._replace(**tables),
    )
