"""Checks of a saved quadtree, before a kernel follows its numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from earshot.indexes.consistency import demand, members
from earshot.indexes.kernels.token_tables import EMPTY, LIST_END, TABLE_END
from earshot.indexes.quadtree.kernels.cells import BITS
from earshot.indexes.quadtree.kernels.nodes import N_FACTS, N_NODES, NO_CHILDREN, Quadtree

_SINGLE = 1 << 62
_HALF = (1 << 32) - 1


def check_quadtree(tree: Quadtree, n_clauses: int) -> None:
    """Refuse a quadtree over clauses whose numbers are their rows, if any leads out of it."""
    demand("facts", len(tree.facts) == N_FACTS, len(tree.frame) == 4)
    n = int(tree.facts[N_NODES])
    lists = tree.lists
    of_nodes: tuple[Any, ...] = (tree.cells, tree.children, tree.parents, tree.counts)
    by_node = (*of_nodes, lists.starts, lists.sizes, lists.used)
    demand("nodes", 0 <= n <= min(len(each) for each in by_node), len(tree.prints) >= n_clauses)
    cells, children = tree.cells[:n], tree.children[:n].astype(np.int64)
    inner = np.flatnonzero(children != NO_CHILDREN)
    firsts = children[inner]
    demand("children", firsts >= 0, firsts + 4 <= n)
    depths = cells & 255
    demand("cells", depths <= BITS, cells >= 0)
    for i in range(4):
        demand("parents", tree.parents[firsts + i] == inner)
        demand("cells", depths[firsts + i] == depths[inner] + 1)  # so that no path comes back
    _check_lists(lists, n, n_clauses)


def _check_lists(lists: Any, n_nodes: int, n_clauses: int) -> None:
    sizes, used = lists.sizes[:n_nodes].astype(np.int64), lists.used[:n_nodes]
    starts = lists.starts[:n_nodes]
    has = sizes > 0
    n_places, n_entries = min(len(lists.tokens), len(lists.values)), len(lists.lists)
    demand("ends", len(lists.ends) == 4)
    demand("ends", 0 <= lists.ends[TABLE_END] <= n_places, 0 <= lists.ends[LIST_END] <= n_entries)
    demand("sizes", sizes >= 0, starts[has] >= 0, starts[has] + sizes[has] <= n_places)
    owners, places = members(np.flatnonzero(has), sizes[has])
    places += starts[owners]
    is_taken = lists.tokens[places] != EMPTY
    n_taken = np.bincount(owners[is_taken], minlength=n_nodes)
    # A search ends at a free place.
    demand("used", n_taken == used, used[has] < sizes[has])
    values = lists.values[places[is_taken]].astype(np.int64)
    is_single = values & _SINGLE != 0
    singles, several = values[is_single] & _HALF, values[~is_single]
    demand("values", several >= 0, (several >> 32) + (several & _HALF) <= n_entries)
    owners, entries = members(several >> 32, several & _HALF)
    numbers = lists.lists[owners + entries]
    demand("lists", singles < n_clauses, numbers >= 0, numbers < n_clauses)
