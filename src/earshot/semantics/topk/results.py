"""The results of slots, and how they differ from what they were."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from earshot.model.arrays import Float64s, Int32s, Int64s
from earshot.semantics.topk.kernels.arrays import Changes


class Results(NamedTuple):
    """The messages that some slots hold, best first."""

    offsets: Int64s  # (n + 1,)
    sequences: Int64s
    scores: Float64s

    def part(self, first: int, stop: int) -> Results:
        """Return the results of some of the slots."""
        offsets = self.offsets[first : stop + 1]
        held = slice(int(offsets[0]), int(offsets[-1]))
        return Results(offsets - offsets[0], self.sequences[held], self.scores[held])


def difference(slots: Int32s, before: Results, after: Results, reason: int) -> Changes:
    """Return the changes of slots' results, slot by slot, what goes before what comes."""
    parts = []
    for results, others, sign in ((before, after, -1), (after, before, 1)):
        rows = np.repeat(np.arange(len(slots), dtype=np.int32), np.diff(results.offsets))
        is_new = ~np.isin(
            _pairs(rows, results.sequences),
            _pairs(np.repeat(np.arange(len(slots)), np.diff(others.offsets)), others.sequences),
        )
        rows = rows[is_new]
        n = len(rows)
        parts.append(
            Changes(
                rows,
                np.full(n, sign, np.int8),
                np.full(n, reason, np.int8),
                slots[rows],
                results.sequences[is_new],
                results.scores[is_new],
            )
        )
    joined = concat_changes(parts)
    order = np.argsort(joined.rows, kind="stable")
    return Changes._make(array[order] for array in joined)


def concat_changes(parts: list[Changes]) -> Changes:
    """Return changes one after the other."""
    return Changes._make(np.concatenate(each) for each in zip(*parts, strict=True))


def _pairs(rows: Any, sequences: Int64s) -> Any:
    """Return rows and messages as numbers; a window is far smaller than 2 ** 32 messages."""
    return rows.astype(np.int64) << 32 | (sequences & 0xFFFFFFFF)
