"""Arrays with room to grow, and clauses in such arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from earshot.model.arrays import ClauseArrays, ShapeArrays, all_thresholds, box_clauses

_DOUBLING = 1 << 20
"""Rows up to which an array doubles; larger ones grow by a quarter."""


class GrowingArray:
    """A NumPy array whose first axis grows, at amortised constant cost per row."""

    def __init__(self, initial: npt.NDArray[Any], fill: Any = 0) -> None:
        self._rows = initial
        self._fill = fill
        self._n = len(initial)

    def __len__(self) -> int:
        return self._n

    @property
    def view(self) -> npt.NDArray[Any]:
        """The rows in use; valid until the next growth."""
        return self._rows[: self._n]

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Add rows at the end."""
        start = self._n
        self.resize(start + len(rows))
        self._rows[start : self._n] = rows

    def resize(self, n: int) -> None:
        """Grow to ``n`` rows, new ones filled."""
        if n > len(self._rows):
            room = len(self._rows) + max(len(self._rows) // 4, min(len(self._rows), _DOUBLING), 64)
            larger = np.empty((max(n, room), *self._rows.shape[1:]), self.dtype)
            larger[: self._n] = self._rows[: self._n]
            self._rows = larger
        if n > self._n:
            self._rows[self._n : n] = self._fill
        self._n = n

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self._rows.dtype

    @property
    def nbytes(self) -> int:
        """Bytes allocated, room to grow included."""
        return int(self._rows.nbytes)


class GrowingClauses:
    """Clauses that more can be appended to, at amortised constant cost each.

    Args:
        initial: The first ones; their arrays are used until something is appended.
    """

    def __init__(self, initial: ClauseArrays | None = None) -> None:
        if initial is None:
            initial = box_clauses([0], [], np.empty((0, 4)))
        shapes = initial.shapes
        self._subscriptions = GrowingArray(initial.subscriptions)
        self._token_offsets = GrowingArray(initial.token_offsets)
        self._token_ids = GrowingArray(initial.token_ids)
        self._boxes = GrowingArray(initial.boxes)
        self._shape_rows = GrowingArray(initial.shape_rows)
        self._circles = GrowingArray(shapes.circles)
        self._ring_offsets = GrowingArray(shapes.ring_offsets)
        self._vertex_offsets = GrowingArray(shapes.vertex_offsets)
        self._vertices = GrowingArray(shapes.vertices)
        # Stays empty until some subscription names a threshold.
        self._thresholds = GrowingArray(initial.thresholds, fill=np.nan)

    def __len__(self) -> int:
        return len(self._subscriptions)

    @property
    def view(self) -> ClauseArrays:
        """All clauses; valid until the next one is appended."""
        shapes = ShapeArrays(
            self._circles.view,
            self._ring_offsets.view,
            self._vertex_offsets.view,
            self._vertices.view,
        )
        return ClauseArrays(
            self._subscriptions.view,
            self._token_offsets.view,
            self._token_ids.view,
            self._boxes.view,
            self._shape_rows.view,
            shapes,
            self._thresholds.view,
        )

    @property
    def nbytes(self) -> int:
        """Bytes allocated, room to grow included."""
        return sum(int(array.nbytes) for array in self.__dict__.values())

    def append(self, clauses: ClauseArrays) -> None:
        """Add clauses at the end."""
        n_before = len(self)
        shapes = clauses.shapes
        if len(clauses.thresholds) or len(self._thresholds):
            self._thresholds.resize(n_before)
            self._thresholds.append(all_thresholds(clauses))
        moved = clauses.shape_rows + np.int32(len(self._circles))
        self._shape_rows.append(np.where(clauses.shape_rows >= 0, moved, np.int32(-1)))
        self._subscriptions.append(clauses.subscriptions)
        self._token_offsets.append(
            clauses.token_offsets[1:] - clauses.token_offsets[0] + len(self._token_ids)
        )
        first, last = clauses.token_offsets[0], clauses.token_offsets[-1]
        self._token_ids.append(clauses.token_ids[first:last])
        self._boxes.append(clauses.boxes)
        self._circles.append(shapes.circles)
        n_rings = len(self._vertex_offsets) - 1
        self._ring_offsets.append(shapes.ring_offsets[1:] + n_rings)
        self._vertex_offsets.append(shapes.vertex_offsets[1:] + len(self._vertices))
        self._vertices.append(shapes.vertices)
