"""What the quadtrees have in common as indexes: prints, frames that follow the clauses, room."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from earshot.errors import InvalidInput, InvalidParameter
from earshot.indexes.in_place import InPlaceIndex
from earshot.indexes.quadtree.kernels.nodes import Quadtree, fill_prints
from earshot.indexes.quadtree.tables import frame_of, new_quadtree
from earshot.kernels.growing import with_room
from earshot.model.arrays import ClauseArrays, Float64s, Int32s, Int64s

_LEAST_FRAMED = 256
_WIDER = 1.25
"""How much wider all clauses may be than the frame before it is chosen anew."""
_MOST_CLAUSES = 1 << 31


def check_whole(name: str, value: object, least: int, most: int) -> None:
    """Refuse what is not a whole number in a range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidParameter(
            f"{name} is {value!r}; expected a whole number from {least:,} to {most:,}"
        )


def check_number(name: str, value: object, least: float, most: float) -> None:
    """Refuse what is not a number in a range."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:  # type: ignore[operator]
        raise InvalidParameter(f"{name} is {value!r}; expected {least:g} to {most:g}")


def prepare_quadtree(clauses: ClauseArrays, frequencies: Int64s) -> Quadtree:
    """Return a quadtree that holds nothing yet, with the frame and the prints of clauses."""
    n = len(clauses.subscriptions)
    prints = np.zeros(n, np.uint32)
    fill_prints(prints, clauses.token_offsets, clauses.token_ids, frequencies, 0, n)
    return new_quadtree(frame_of(clauses.boxes), prints)


class QuadtreeIndex(InPlaceIndex):
    """A quadtree that changes in place; its arrays have a ``tree`` among them."""

    _n_framed: int | None = None
    """Clauses that there were when the frame was chosen."""

    @abstractmethod
    def _insert_some(self, first: int, stop: int) -> None:
        """Let clauses find their places in a tree that has their prints."""

    @abstractmethod
    def _refill(self, tree: Quadtree, rows: Int32s) -> Any:
        """Return arrays with these clauses in a tree that holds nothing yet."""

    def _check_number(self, n_clauses: int) -> None:
        if n_clauses >= _MOST_CLAUSES:
            raise InvalidInput(
                f"{n_clauses:,} clauses, removed ones included; this structure takes fewer than "
                f"{_MOST_CLAUSES:,}, so rebuild it or use several shards"
            )

    def _insert_rows(self, first: int, stop: int) -> None:
        tree = self.arrays.tree
        prints = with_room(tree.prints, stop)
        clauses = self.clauses
        fill_prints(prints, clauses.token_offsets, clauses.token_ids, self.frequencies, first, stop)
        self.arrays = self.arrays._replace(tree=tree._replace(prints=prints))
        self._n_framed = first if self._n_framed is None else self._n_framed
        while first < stop:
            # Few at a time into a small tree: its frame may not be that of the newcomers.
            last = min(stop, first + max(_LEAST_FRAMED, self._n_framed))
            self._insert_some(first, last)
            if last - self._n_framed >= max(_LEAST_FRAMED, self._n_framed):
                self._reframe(last)
            first = last

    def _reframe(self, n: int) -> None:
        """Build the tree anew, from the first ``n`` clauses, if it is outdated."""
        self._n_framed = n
        frame = frame_of(self.clauses.boxes[:n])
        if self._is_outdated(frame):
            self._build_anew(n, frame)

    def _build_anew(self, n: int, frame: Float64s) -> None:
        """Build the tree anew, from those of the first ``n`` clauses that are live."""
        tree: Quadtree = self.arrays.tree
        empty = new_quadtree(frame, tree.prints)._replace(rows=tree.rows, numbers=tree.numbers)
        rows = np.flatnonzero(self.alive[self.clauses.subscriptions[:n]]).astype(np.int32)
        self.arrays = self._refill(empty, rows)

    def _is_outdated(self, frame: Float64s) -> bool:
        """Whether the tree is to be built anew, with the frame that clauses would have now."""
        return bool((frame[2:] * _WIDER < self.arrays.tree.frame[2:]).any())


def in_order(numbers: Int32s, rows: Int32s) -> Int32s:
    """Return the numbers of clauses, ascending; without numbers, they are the rows."""
    return np.sort(numbers[rows]) if len(numbers) else rows
