"""Messages of the window: their rows, which of two is newer or better, and heaps of them."""

from __future__ import annotations

import numpy as np

from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.model.arrays import Float64s, Int64s
from earshot.semantics.topk.kernels.arrays import FIRST_SEQUENCE, WindowArrays

LOW = np.int64(0xFFFFFFFF)


@inlined_kernel
def row_of(window: WindowArrays, sequence: int) -> int:
    """Return the row of a message by the low 32 bits of its sequence."""
    return (np.int64(sequence) - window.facts[FIRST_SEQUENCE]) & LOW


@inlined_kernel
def is_newer(window: WindowArrays, row: int, other: int) -> bool:
    """Whether a message leaves the window after another one."""
    time, other_time = window.times[row], window.times[other]
    return time > other_time or (time == other_time and row > other)


@inlined_kernel
def is_better(window: WindowArrays, score: float, row: int, other_score: float, other: int) -> bool:
    """Whether a message comes before another one in a result."""
    return score > other_score or (score == other_score and is_newer(window, row, other))


@inlined_kernel
def push(
    window: WindowArrays, scores: Float64s, rows: Int64s, n: int, score: float, row: int
) -> None:
    """Add a message to a heap of ``n``, the worst at the top."""
    at = n
    while at > 0:
        parent = (at - 1) >> 1
        if not is_better(window, scores[parent], rows[parent], score, row):
            break
        scores[at], rows[at] = scores[parent], rows[parent]
        at = parent
    scores[at], rows[at] = score, row


@inlined_kernel
def replace_worst(
    window: WindowArrays, scores: Float64s, rows: Int64s, n: int, score: float, row: int
) -> None:
    """Put a message at the top of a heap in place of the worst, and let it sink."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= n:
            break
        if child + 1 < n and is_better(
            window, scores[child], rows[child], scores[child + 1], rows[child + 1]
        ):
            child += 1
        if not is_better(window, score, row, scores[child], rows[child]):
            break
        scores[at], rows[at] = scores[child], rows[child]
        at = child
    scores[at], rows[at] = score, row


@lean_kernel
def sort_heap(window: WindowArrays, scores: Float64s, rows: Int64s, n: int) -> None:
    """Turn a heap into a list, best first."""
    for last in range(n - 1, 0, -1):
        score, row = scores[last], rows[last]
        worst_score, worst_row = scores[0], rows[0]
        replace_worst(window, scores, rows, last, score, row)
        scores[last], rows[last] = worst_score, worst_row


@inlined_kernel
def signature_bit(token: int) -> np.uint64:
    """Return the bit that stands for a token in signatures."""
    return np.uint64(1) << (np.uint64(token) * np.uint64(0xD6E8FEB86659FD93) >> np.uint64(58))
