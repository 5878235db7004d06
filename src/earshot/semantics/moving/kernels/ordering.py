"""Sorting numbers in place, moves by place, and the heap of messages by their ends."""

from __future__ import annotations

import numpy as np

from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.semantics.moving.kernels.arrays import N_LIVE

_FEW = 24
_CELLS = 32767.0
_INDEX = 0xFFFFFFFF


@lean_kernel
def sort_numbers(values, n, stack):
    """Sort the first ``n`` values; the stack has room for two numbers per halving."""
    top = 0
    stack[0], stack[1] = 0, n
    top = 2
    while top > 0:
        top -= 2
        low, high = stack[top], stack[top + 1]
        while high - low > _FEW:
            first, middle, last = values[low], values[(low + high) >> 1], values[high - 1]
            pivot = max(min(first, middle), min(max(first, middle), last))
            i, j = low, high - 1
            while i <= j:
                while values[i] < pivot:
                    i += 1
                while values[j] > pivot:
                    j -= 1
                if i <= j:
                    values[i], values[j] = values[j], values[i]
                    i += 1
                    j -= 1
            # The longer part waits, so the stack stays short.
            if j + 1 - low > high - i:
                stack[top], stack[top + 1] = low, j + 1
                low = i
            else:
                stack[top], stack[top + 1] = i, high
                high = j + 1
            top += 2
        for i in range(low + 1, high):
            value = values[i]
            j = i
            while j > low and values[j - 1] > value:
                values[j] = values[j - 1]
                j -= 1
            values[j] = value


@inlined_kernel
def _spread(value):
    """Put a zero between the bits of a number of 15 bits."""
    value = (value | value << 8) & 0x00FF00FF
    value = (value | value << 4) & 0x0F0F0F0F
    value = (value | value << 2) & 0x33333333
    return (value | value << 1) & 0x55555555


@inlined_kernel
def on_curve(x, y):
    """Return where a cell is on a curve through space; each number has 15 bits."""
    return _spread(x) | _spread(y) << 1


@inlined_kernel
def _cell(value, low, scale):
    """Return the cell of a coordinate; 0 for what has none."""
    cell = (value - low) * scale
    return np.int64(cell) if cell >= 0.0 and cell <= _CELLS else np.int64(0)


@lean_kernel
def order_by_place(boxes, slots, order, stack):
    """Let ``order`` be the positions in ``slots``, those of slots near each other together.

    Those of one slot stay in their order.
    """
    n = len(slots)
    low_x = low_y = np.inf
    high_x = high_y = -np.inf
    for i in range(n):
        x, y = boxes[slots[i], 0], boxes[slots[i], 1]
        if abs(x) < np.inf and abs(y) < np.inf:
            low_x, high_x = min(low_x, x), max(high_x, x)
            low_y, high_y = min(low_y, y), max(high_y, y)
    scale_x = _CELLS / (high_x - low_x) if high_x > low_x else 0.0
    scale_y = _CELLS / (high_y - low_y) if high_y > low_y else 0.0
    for i in range(n):
        x = _cell(boxes[slots[i], 0], low_x, scale_x)
        y = _cell(boxes[slots[i], 1], low_y, scale_y)
        order[i] = on_curve(x, y) << 32 | i
    sort_numbers(order, n, stack)
    for i in range(n):
        order[i] &= _INDEX


@inlined_kernel
def ends_before(messages, row, other):
    """Whether a message ends before another; of equal ends, the one that came first does."""
    end, other_end = messages.ends[row], messages.ends[other]
    if end != other_end:
        return end < other_end
    return messages.sequences[row] < messages.sequences[other]


@lean_kernel
def push_end(messages, row):
    """Put a message into the heap, of which it is one more."""
    heap = messages.heap
    at = messages.facts[N_LIVE]
    messages.facts[N_LIVE] = at + 1
    while at > 0:
        parent = (at - 1) >> 1
        if not ends_before(messages, row, heap[parent]):
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = row


@lean_kernel
def pop_end(messages):
    """Take the message out of the heap that ends first."""
    heap = messages.heap
    n = messages.facts[N_LIVE] - 1
    messages.facts[N_LIVE] = n
    row = heap[n]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= n:
            break
        if child + 1 < n and ends_before(messages, heap[child + 1], heap[child]):
            child += 1
        if not ends_before(messages, heap[child], row):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = row
