"""Places in the order of a space-filling curve, and keys in the order of their size."""

from __future__ import annotations

from typing import Any

import numpy as np

from earshot.kernels.jit import inlined_kernel, kernel
from earshot.model.arrays import Float64s, Int64s


@inlined_kernel
def _spread(value: int) -> int:
    """Put two zeros between the bits of a number of up to 21 bits."""
    value &= 0x1FFFFF
    value = (value | value << 32) & 0x1F00000000FFFF
    value = (value | value << 16) & 0x1F0000FF0000FF
    value = (value | value << 8) & 0x100F00F00F00F00F
    value = (value | value << 4) & 0x10C30C30C30C30C3
    return (value | value << 2) & 0x1249249249249249


@kernel
def curve_keys(places: Float64s) -> Int64s:
    """Return the positions of places on a space-filling curve through their bounding cube."""
    n = len(places)
    keys = np.zeros(n, np.int64)
    if n == 0:
        return keys
    low = np.empty(3)
    side = 0.0
    for axis in range(3):
        low[axis] = places[:, axis].min()
        side = max(side, places[:, axis].max() - low[axis])
    scale = 2097151.0 / side if side > 0.0 else 0.0
    for i in range(n):
        for axis in range(3):
            cell = np.int64((places[i, axis] - low[axis]) * scale)
            keys[i] |= _spread(cell) << axis
    return keys


@kernel
def stable_order(keys: Any) -> Int64s:
    """Return the order of keys that are not negative, equal ones as they come."""
    n = len(keys)
    order = np.arange(n)
    other = np.empty(n, np.int64)
    most = keys.max() if n else 0
    shift = 0
    while most >> shift:
        counts = np.zeros(2049, np.int64)
        for i in range(n):
            counts[(keys[i] >> shift & 2047) + 1] += 1
        for digit in range(2048):
            counts[digit + 1] += counts[digit]
        for i in range(n):
            digit = keys[order[i]] >> shift & 2047
            other[counts[digit]] = order[i]
            counts[digit] += 1
        order, other = other, order
        shift += 11
    return order
