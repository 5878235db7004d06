"""Ragged answer lists: dropping repeats and merging two lists per message."""

from __future__ import annotations

import numpy as np

from earshot.kernels.copying import copy_part
from earshot.kernels.jit import kernel


@kernel
def drop_repeats(offsets, slots, n_slots):
    """Keep the first occurrence of each slot within each message."""
    last_seen = np.full(n_slots, -1, np.int64)
    new_offsets = np.empty_like(offsets)
    kept = np.empty_like(slots)
    n = 0
    new_offsets[0] = 0
    for m in range(len(offsets) - 1):
        for i in range(offsets[m], offsets[m + 1]):
            slot = slots[i]
            if last_seen[slot] != m:
                last_seen[slot] = m
                kept[n] = slot
                n += 1
        new_offsets[m + 1] = n
    return new_offsets, kept[:n]


@kernel
def merge_answers(offsets_a, slots_a, offsets_b, slots_b):
    """Append the answers of ``b`` to those of ``a``, message by message."""
    offsets = offsets_a + offsets_b
    slots = np.empty(len(slots_a) + len(slots_b), slots_a.dtype)
    for m in range(len(offsets) - 1):
        n_a = offsets_a[m + 1] - offsets_a[m]
        middle = offsets[m] + n_a
        copy_part(slots_a, offsets_a[m], offsets_a[m + 1], slots, offsets[m])
        copy_part(slots_b, offsets_b[m], offsets_b[m + 1], slots, middle)
    return offsets, slots


@kernel
def keep_unexpired(offsets, slots, scores, expires_us, clocks_us):
    """Keep the answers whose subscription is live at its message's clock; scores may be empty."""
    new_offsets = np.empty_like(offsets)
    kept = np.empty_like(slots)
    kept_scores = np.empty_like(scores)
    has_scores = len(scores) > 0
    n = 0
    new_offsets[0] = 0
    for m in range(len(offsets) - 1):
        for i in range(offsets[m], offsets[m + 1]):
            if clocks_us[m] < expires_us[slots[i]]:
                kept[n] = slots[i]
                if has_scores:
                    kept_scores[n] = scores[i]
                n += 1
        new_offsets[m + 1] = n
    return new_offsets, kept[:n], kept_scores[:n]
