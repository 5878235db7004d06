"""What a plan looks at in subscriptions: the token of each clause, and the keys of each slot."""

from __future__ import annotations

import numpy as np

from earshot.model.arrays import ClauseArrays, Float64s, Int32s, Int64s
from earshot.placement.kernels import N_KEYS, file_clauses, key_slots


def filed_tokens(clauses: ClauseArrays, frequencies: Int64s) -> tuple[Int32s, Int32s]:
    """Return the token that each clause is filed under, and the next rarest one or -1."""
    n = len(clauses.subscriptions)
    tokens, next_tokens = np.empty(n, np.int32), np.empty(n, np.int32)
    file_clauses(clauses, frequencies, tokens, next_tokens)
    return tokens, next_tokens


def slot_keys(clauses: ClauseArrays, filed: Int32s, n_known: int) -> tuple[Float64s, Int32s]:
    """Return what a plan looks at: keys (n_slots, N_KEYS), and the token of each slot."""
    n_slots = int(clauses.subscriptions.max(initial=-1)) + 1
    keys = np.zeros((n_slots, N_KEYS))
    tokens = np.empty(n_slots, np.int32)
    key_slots(clauses, filed, n_known, clauses.boxes.view(np.uint64), keys, tokens)
    return keys, tokens


def boxes_around(boxes: Float64s, starts: Int64s) -> Float64s:
    """Return the box around each run of boxes, none of which is empty."""
    around = np.empty((len(starts), 4))
    if len(starts):
        np.minimum.reduceat(boxes[:, :2], starts, axis=0, out=around[:, :2])
        np.maximum.reduceat(boxes[:, 2:], starts, axis=0, out=around[:, 2:])
    return around
