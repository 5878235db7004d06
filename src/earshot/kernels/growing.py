"""Arrays with room to grow, and clauses and their scoring in such arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from earshot.kernels.scoring import ScoringArrays, build_scoring
from earshot.model.arrays import (
    ClauseArrays,
    Int32s,
    ShapeArrays,
    all_thresholds,
    box_clauses,
    concat_clauses,
    largest_token,
)

_HALVES = 1 << 20
"""Rows up to which an array grows by half; larger ones grow by a quarter."""
_MOVED_BYTES = 1 << 25
"""Bytes from which on an array is enlarged where it is: the system moves its pages, and nothing is
copied. So little at a time is enough, and there is never a second copy."""
_MOVED_SHARE = 16
_COLLECTED = 1 << 16
"""Clauses from which on parts that were collected are joined."""


def resized(array: npt.NDArray[Any], n: int, fill: Any = 0) -> npt.NDArray[Any]:
    """Return a copy with ``n`` rows, no fewer than there are; new ones filled, or not if None."""
    larger = np.empty((n, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    if fill is not None:
        larger[len(array) :] = fill
    return larger


def with_room(array: npt.NDArray[Any], n: int, fill: Any = 0) -> npt.NDArray[Any]:
    """Return the array if it has ``n`` rows or more, else a copy with those and some to spare.

    The spare rows make appending cost the same for each row, however many there are.
    """
    n_now = len(array)
    if n <= n_now:
        return array
    return resized(array, max(n, n_now + max(n_now // 4, min(n_now, _HALVES) // 2, 64)), fill)


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
        n = self._n  # first: another thread may be adding
        return self._rows[:n]

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Add rows at the end."""
        start = self._n
        self._make_room(start + len(rows))
        self._n += len(rows)
        self._rows[start : self._n] = rows

    def resize(self, n: int) -> None:
        """Grow to ``n`` rows, new ones filled, or give up those beyond."""
        self._make_room(n)
        if n > self._n:
            self._rows[self._n : n] = self._fill
        self._n = n

    def _make_room(self, n: int) -> None:
        n_now = len(self._rows)
        if n <= n_now:
            return
        if self._rows.nbytes >= _MOVED_BYTES and self._rows.flags.owndata:
            n_roomy = max(n, n_now + n_now // _MOVED_SHARE)
            try:
                self._rows.resize((n_roomy, *self._rows.shape[1:]))
            except ValueError:
                pass  # somebody has a view of it
            else:
                return
        self._rows = with_room(self._rows, n, fill=None)

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


class CollectedClauses:
    """Clauses that wait, in the order they came: few calls cost little, many leave no copy behind.

    Small parts are kept as they came until they are many, then join those before.
    """

    def __init__(self) -> None:
        self._joined: GrowingClauses | None = None
        self._small: list[ClauseArrays] = []
        self._n_small = 0

    @property
    def parts(self) -> list[ClauseArrays]:
        """All clauses, in a few parts; valid until the next are appended."""
        return [*([] if self._joined is None else [self._joined.view]), *self._small]

    def append(self, clauses: ClauseArrays) -> None:
        """Add clauses at the end."""
        self._small.append(clauses)
        self._n_small += len(clauses.subscriptions)
        if self._n_small >= _COLLECTED:
            self._join()

    def joined(self) -> ClauseArrays:
        """Return all clauses; valid until the next are appended. There must be some."""
        if self._small:
            self._join()
        assert self._joined is not None
        return self._joined.view

    def _join(self) -> None:
        clauses = concat_clauses(self._small)
        if self._joined is None:
            self._joined = GrowingClauses(clauses)
        else:
            self._joined.append(clauses)
        self._small, self._n_small = [], 0


class GrowingScoring:
    """Scoring arrays that the clauses of further slots can be appended to.

    Args:
        initial: Those of the first clauses.
        slots: The slots of these; later ones come in the order of their slots.
        threshold: Score that is delivered, unless the subscription names its own.
    """

    def __init__(self, initial: ScoringArrays, slots: Int32s, threshold: float) -> None:
        self._initial, self._slots, self._threshold = initial, slots, threshold
        self._n_slots = int(slots.max(initial=-1)) + 1
        self._weights = GrowingArray(initial.weights, fill=initial.later_weight[0])
        self._totals = GrowingArray(initial.totals)
        self._areas = GrowingArray(initial.areas)
        self._cuts = GrowingArray(initial.cuts)
        self._is_compound = GrowingArray(initial.is_compound)
        self._piece_starts = GrowingArray(initial.piece_starts)
        self._piece_rows = GrowingArray(initial.piece_rows)

    @property
    def n_tokens(self) -> int:
        """Tokens that have a weight of their own."""
        return len(self._weights)

    @property
    def n_slots(self) -> int:
        """Slots of the clauses, from 0 on."""
        return self._n_slots

    @property
    def view(self) -> ScoringArrays:
        """The arrays; valid until the next clause is appended."""
        return ScoringArrays(
            self._weights.view,
            self._initial.later_weight,
            self._totals.view,
            self._areas.view,
            self._cuts.view,
            self._initial.alpha,
            self._is_compound.view,
            self._piece_starts.view,
            self._piece_rows.view,
        )

    @property
    def nbytes(self) -> int:
        """Bytes allocated, room to grow included."""
        return sum(v.nbytes for v in self.__dict__.values() if isinstance(v, GrowingArray))

    def append(self, clauses: ClauseArrays) -> None:
        """Add the clauses of further slots, in the order of these; there must be some."""
        self._weights.resize(max(len(self._weights), largest_token(clauses) + 1))
        new = build_scoring(
            clauses, self._weights.view, float(self._initial.later_weight[0]),
            float(self._initial.alpha[0]), self._threshold, int(clauses.subscriptions[0]),
        )  # fmt: skip
        n_before, n_new = len(self._totals), len(new.totals)
        if len(new.piece_starts) and not len(self._piece_starts):
            # All slots had one clause so far; the first of them are not always in their order.
            rows = np.arange(n_before, dtype=np.int32)
            rows[self._slots] = np.arange(len(self._slots), dtype=np.int32)
            self._piece_starts.append(np.arange(n_before + 1))
            self._piece_rows.append(rows)
        if len(self._piece_starts):
            starts, rows = new.piece_starts, new.piece_rows
            if not len(starts):
                starts, rows = np.arange(n_new + 1), np.arange(n_new, dtype=np.int32)
            self._piece_starts.append(starts[1:] + n_before)
            self._piece_rows.append(np.where(rows >= 0, rows + n_before, rows - n_before))
        self._totals.append(new.totals)
        self._areas.append(new.areas)
        self._cuts.append(new.cuts)
        self._is_compound.append(new.is_compound)
        self._n_slots += int(clauses.subscriptions[-1] - clauses.subscriptions[0]) + 1
