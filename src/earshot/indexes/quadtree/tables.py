"""Room for a quadtree: its frame, its nodes, and the tables that belong to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from earshot.errors import InvalidInput
from earshot.indexes.in_place import (
    LEAST_PLACES,
    is_short,
    is_worth_packing,
    more_places,
    packed_places,
)
from earshot.indexes.kernels.token_tables import (
    FIRST_LIST,
    LIST_END,
    LIST_GARBAGE,
    TABLE_END,
    TABLE_GARBAGE,
    TokenTables,
)
from earshot.indexes.quadtree.kernels.cells import BITS
from earshot.indexes.quadtree.kernels.nodes import (
    FREE_NODES,
    N_FACTS,
    N_NODES,
    NO_CHILDREN,
    Quadtree,
    pack_tables,
)
from earshot.kernels.growing import resized
from earshot.model.arrays import Float64s

MOST_LIST_PLACES = 1 << 30
"""Where a list starts has so many bits in a value of a table."""

_STRETCHED = 16.0
"""How much wider than most of them all edges may be before those far out go to the border."""
_LARGEST_SCALE = 1e300


def frame_of(boxes: Float64s) -> Float64s:
    """Return the frame of the smallest region that holds the boxes, but not infinite sides.

    Where few edges lie so far out that the others would share a few cells, the frame leaves them
    out.
    """
    frame = np.zeros(4)
    for axis in range(2):
        edges = boxes[:, [axis, axis + 2]].ravel() * 0.25
        edges = edges[np.isfinite(edges)]
        if len(edges) == 0:
            edges = np.array([0.0, 1.0])
        low, high = edges.min(), edges.max()
        most = np.quantile(edges[:: len(edges) // 100_000 + 1], [0.01, 0.99], method="nearest")
        if (high - low) / _STRETCHED > most[1] - most[0] > 0.0:
            low, high = most
        frame[axis] = low
        width = max(high - low, (1 << BITS) / _LARGEST_SCALE)
        frame[axis + 2] = (1 << BITS) / width
    return frame


def new_tables(values: npt.DTypeLike, n_nodes: int, *, has_lists: bool) -> TokenTables:
    """Return tables of nodes that have none yet."""
    ends = np.zeros(4, np.int64)
    ends[LIST_END] = FIRST_LIST
    return TokenTables(
        starts=np.zeros(n_nodes, np.int64),
        sizes=np.zeros(n_nodes, np.int32),
        used=np.zeros(n_nodes, np.int32),
        tokens=np.empty(LEAST_PLACES, np.int32),
        values=np.empty(LEAST_PLACES, values),
        lists=np.empty(LEAST_PLACES if has_lists else 0, np.int32),
        ends=ends,
    )


def new_quadtree(frame: Float64s, prints: npt.NDArray[np.uint32], n_nodes: int = 1) -> Quadtree:
    """Return a quadtree of one leaf, with room for some nodes."""
    facts = np.zeros(N_FACTS, np.int64)
    facts[N_NODES], facts[FREE_NODES] = 1, -1
    none = np.empty(0, np.int32)
    return Quadtree(
        frame=frame,
        facts=facts,
        cells=np.zeros(n_nodes, np.int64),
        children=np.full(n_nodes, NO_CHILDREN, np.int32),
        parents=np.full(n_nodes, -1, np.int32),
        counts=np.zeros(n_nodes, np.int32),
        lists=new_tables(np.int64, n_nodes, has_lists=True),
        rows=none,
        numbers=none,
        prints=prints,
    )


def with_nodes(tree: Quadtree, n: int) -> Quadtree:
    """Return the tree with room for ``n`` nodes."""
    names = ("cells", "children", "parents", "counts")
    by_node: dict[str, Any] = {name: resized(getattr(tree, name), n) for name in names}
    return tree._replace(**by_node, lists=tables_with_nodes(tree.lists, n))


def tables_with_nodes(tables: TokenTables, n: int) -> TokenTables:
    """Return the tables with room for ``n`` nodes."""
    names = ("starts", "sizes", "used")
    return tables._replace(**{name: resized(getattr(tables, name), n) for name in names})


def more_nodes(tree: Quadtree) -> int:
    """Return how many nodes a tree that is short of them should have room for."""
    n = len(tree.children)
    return n + n // 4 + 64


def with_more_places(tables: TokenTables, n_nodes: int) -> TokenTables:
    """Return the tables with room for more, packed if much of them is garbage."""
    ends = tables.ends
    garbage, used = ends[TABLE_GARBAGE] + ends[LIST_GARBAGE], ends[TABLE_END] + ends[LIST_END]
    if is_worth_packing(garbage, used):
        return packed(tables, n_nodes)
    n_places, n_list = len(tables.tokens), len(tables.lists)
    table_is_short = is_short(n_places, ends[TABLE_END])
    list_is_short = n_list > 0 and is_short(n_list, ends[LIST_END])
    # If neither is, what comes is large: both grow.
    if table_is_short or not list_is_short:
        n_places = more_places(n_places)
    if n_list > 0 and (list_is_short or not table_is_short):
        n_list = checked_list_places(more_places(n_list))
    return tables._replace(
        tokens=resized(tables.tokens, n_places),
        values=resized(tables.values, n_places),
        lists=resized(tables.lists, n_list),
    )


def checked_list_places(n: int) -> int:
    """Refuse more places of lists than can be told apart."""
    if n >= MOST_LIST_PLACES:
        raise InvalidInput(
            f"the lists need {n:,} places; this structure has fewer than {MOST_LIST_PLACES:,}, so "
            f"use another structure or several shards"
        )
    return n


def packed(tables: TokenTables, n_nodes: int, **spare: float) -> TokenTables:
    """Return the tables free of garbage, with a share of their size to spare."""
    ends = tables.ends
    n_places = packed_places(ends[TABLE_END], ends[TABLE_GARBAGE], **spare)
    n_list = packed_places(ends[LIST_END], ends[LIST_GARBAGE], **spare)
    fresh = tables._replace(
        tokens=np.empty(n_places, np.int32),
        values=np.empty(n_places, tables.values.dtype),
        lists=np.empty(n_list if len(tables.lists) else 0, np.int32),
    )
    pack_tables(tables, n_nodes, fresh.tokens, fresh.values, fresh.lists)
    return fresh
