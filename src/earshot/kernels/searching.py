"""Search in values that ascend."""

from __future__ import annotations

from earshot.kernels.jit import inlined_kernel


@inlined_kernel
def first_at_least(values, low, high, wanted):
    """Return the first position from ``low`` on with ``wanted`` or more, or ``high``."""
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low
