"""Sorting numbers in place, and the heap of messages by their ends."""

from __future__ import annotations

from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.semantics.moving.kernels.arrays import N_LIVE

_FEW = 24


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
