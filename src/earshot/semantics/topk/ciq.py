"""``ciq``: textual bounds in cells that divide space for each subscription.

The rival that [PVLDB16] section 2.2 describes; ``kernels/ciq.py`` says how it is laid out. A
subscription is kept in 3 x levels + 1 cells of a plane, 7 x levels + 1 of a sphere, so it takes
many times the memory of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from earshot.errors import InvalidParameter
from earshot.model.arrays import Int32s
from earshot.semantics.topk.contract import Dissemination
from earshot.semantics.topk.kernels.arrays import Subscribers
from earshot.semantics.topk.kernels.ciq import (
    MAX_LEVELS,
    N_FRAME,
    SIDE,
    CiqArrays,
    count_lists,
    fill_codes,
    fill_member_lists,
    place_members,
)


@dataclass(frozen=True)
class Ciq(Dissemination):
    """Cells with inverted lists that are merged by subscription.

    Attributes:
        levels: How many times space is halved towards the place of a subscription.
    """

    name: ClassVar[str] = "ciq"

    levels: int = 3

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= MAX_LEVELS:
            raise InvalidParameter(f"levels is {self.levels}; give 1 to {MAX_LEVELS}")

    def build(self, subscribers: Subscribers, slots: Int32s, max_distance: float) -> CiqArrays:
        """Return a component of these slots; row i of it is ``slots[i]``."""
        n = len(slots)
        places = subscribers.places[slots]
        lows, extents = np.zeros(3), np.zeros(3)
        if n:
            lows = places.min(axis=0)
            extents = places.max(axis=0) - lows
        frame = np.zeros(N_FRAME)
        frame[:SIDE] = lows
        frame[SIDE] = extents.max()
        axes = np.flatnonzero(extents > 0).astype(np.int32)
        n_axes = len(axes)
        sizes = [0, *((1 << n_axes * level) for level in range(1, self.levels + 1))]
        levels = np.cumsum([0, *sizes], dtype=np.int64)
        n_cells = int(levels[-1])
        codes = np.empty(n, np.int32)
        fill_codes(places, frame, axes, self.levels, codes)
        offsets = np.zeros(n_cells + 1, np.int64)
        place_members(codes, n_axes, levels, offsets, np.empty(0, np.int32), True)
        offsets = np.cumsum(offsets)
        rows = np.empty(int(offsets[-1]), np.int32)
        place_members(codes, n_axes, levels, offsets, rows, False)
        n_entries, n_postings, most = count_lists(subscribers, slots, offsets, rows)
        component = CiqArrays(
            frame=frame,
            axes=axes,
            levels=levels,
            slots=slots.copy(),
            codes=codes,
            member_offsets=offsets,
            member_rows=rows,
            least_texts=np.zeros(len(rows), np.float32),
            entry_offsets=np.empty(n_cells + 1, np.int64),
            entry_tokens=np.empty(n_entries, np.int32),
            posting_offsets=np.empty(n_entries + 1, np.int64),
            posting_members=np.empty(n_postings, np.int32),
            posting_weights=np.empty(n_postings, np.float32),
            cursors=np.empty(most, np.int64),
            stops=np.empty(most, np.int64),
            weights=np.empty(most),
            heap=np.empty(most, np.int64),
        )
        fill_member_lists(component, subscribers)
        return component
