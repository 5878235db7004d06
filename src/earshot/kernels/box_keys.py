"""Boxes as 64-bit keys that are compared sixteen at a time.

A coordinate is quantised to 15 bits by a monotone map (``Quantizer``: cell boundaries that hold
about equally many region edges). A box becomes one ``uint64`` of four 16-bit lanes

    bits  0-14  q(min_x)            bits 16-30  q(min_y)
    bits 32-46  TOP - q(max_x)      bits 48-62  TOP - q(max_y)

and a message's box the *limit* with the lanes turned round: ``q(max_x), q(max_y), TOP - q(min_x),
TOP - q(min_y)``. Then

* a clause can touch the message only if every lane of its key is <= the limit's lane;
* it surely does if every lane is smaller (``strict_limit``); only where two lanes are equal must
  the exact coordinates be compared, because the map keeps order but not distance;
* the key of a union of boxes is the lane-wise minimum of their keys, so a tree over keys is made
  of keys again, and one test serves all its levels;
* ``DEAD_KEY`` is larger than any limit in every lane: a removed clause stops matching by one write.

The top bit of each lane is 0 in a key and 1 in a limit, so ``limit - key`` subtracts four lanes
without borrows, and the top bits of the difference say which lanes are <=.

Finite coordinates map to 1 … TOP-1, minus infinity to 0 and plus infinity to TOP, so a box without
bounds is never uncertain.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from earshot.kernels.jit import inlined_kernel, kernel, lean_kernel
from earshot.model.arrays import Float64s

TOP = 0x7FFE
BLOCK = 16
"""Keys that one test compares; also the fan-out of trees over keys."""
MAX_CELL_BOUNDS = TOP - 2
DEAD_KEY = np.uint64(0x7FFF_7FFF_7FFF_7FFF)
_HIGH_BITS = np.uint64(0x8000_8000_8000_8000)
_LANE_ONES = np.uint64(0x0001_0001_0001_0001)
_S15, _S16, _S32, _S48 = np.uint64(15), np.uint64(16), np.uint64(32), np.uint64(48)


class Quantizer(NamedTuple):
    """Cell boundaries of both axes, ascending; a value's cell is the number of bounds <= it."""

    x_bounds: Float64s  # (<= MAX_CELL_BOUNDS,)
    y_bounds: Float64s  # (<= MAX_CELL_BOUNDS,)


@inlined_kernel
def _n_not_above(bounds, low, length, value):
    """Return how many bounds are <= a value, where that is ``low`` or up to ``length`` more."""
    while length > 0:  # without unpredictable branches
        half = length >> 1
        ahead = bounds[low + half] <= value
        low = low + half + 1 if ahead else low
        length = length - half - 1 if ahead else half
    return low


@lean_kernel
def quantize(bounds, value):
    """Return the 15-bit cell of a coordinate; NaN must not get here."""
    if value == np.inf:
        return TOP
    if value == -np.inf:
        return 0
    return _n_not_above(bounds, 0, len(bounds), value) + 1


# ---- cells by equal steps ------------------------------------------------------------------------
# Bounds that hold equally many edges lie close where regions crowd together. Equal steps tell how
# many lie below each, so that mostly a few are left to compare.


@kernel
def fill_steps(bounds, steps, scales, axis):
    """Fill how many bounds lie below each step, of which there are one less than places for them.

    Steps are told by the same arithmetic as later on, so that rounding does no harm.

    Args:
        bounds: Bounds of cells on an axis, ascending.
        steps: (n_steps + 1,) bounds below each step; all of them at the end.
        scales: (4,) where the steps of each axis begin, and how many there are to a unit; 0 where
            there are none to speak of.
        axis: 0 or 1.
    """
    n, n_steps = len(bounds), len(steps) - 1
    first = bounds[0] if n > 0 else 0.0
    span = bounds[n - 1] - first if n > 0 else 0.0
    scale = n_steps / span if 0.0 < span < np.inf else 0.0
    scales[2 * axis], scales[2 * axis + 1] = first, scale if scale < np.inf else 0.0
    k = 0
    for step in range(n_steps):
        while k < n and _step(bounds[k], steps, first, scales[2 * axis + 1]) < step:
            k += 1
        steps[step] = k
    steps[n_steps] = n


@inlined_kernel
def _step(value, steps, first, scale):
    return np.int64(min(max((value - first) * scale, 0.0), len(steps) - 2.0))


@inlined_kernel
def finite_cell(bounds, steps, first, scale, value):
    """As :func:`quantize`, for finite values where there are steps."""
    step = _step(value, steps, first, scale)
    low = np.int64(steps[step])
    return _n_not_above(bounds, low, np.int64(steps[step + 1]) - low, value) + 1


@inlined_kernel
def cell_by_steps(bounds, steps, first, scale, value):
    """As :func:`quantize`, but faster."""
    if scale > 0.0 and abs(value) < np.inf:
        return finite_cell(bounds, steps, first, scale, value)
    return np.int64(quantize(bounds, value))


# ---- keys ----------------------------------------------------------------------------------------


@lean_kernel
def _pack(a, b, c, d):
    return np.uint64(a) | np.uint64(b) << _S16 | np.uint64(c) << _S32 | np.uint64(d) << _S48


@lean_kernel
def box_key(quantizer, min_x, min_y, max_x, max_y):
    """Return the key of a clause's box."""
    return _pack(
        quantize(quantizer.x_bounds, min_x),
        quantize(quantizer.y_bounds, min_y),
        TOP - quantize(quantizer.x_bounds, max_x),
        TOP - quantize(quantizer.y_bounds, max_y),
    )


@lean_kernel
def box_limit(quantizer, min_x, min_y, max_x, max_y):
    """Return the limit of a message's box, top bits set."""
    left = quantize(quantizer.x_bounds, min_x)
    bottom = quantize(quantizer.y_bounds, min_y)
    right = left if max_x == min_x else quantize(quantizer.x_bounds, max_x)
    top = bottom if max_y == min_y else quantize(quantizer.y_bounds, max_y)
    return _pack(right, top, TOP - left, TOP - bottom) | _HIGH_BITS


@lean_kernel
def build_keys(quantizer, boxes, start, keys):
    """Fill ``keys`` with those of the boxes from ``start`` on."""
    for k in range(len(keys)):
        box = boxes[start + k]
        keys[k] = box_key(quantizer, box[0], box[1], box[2], box[3])


@lean_kernel
def key_touches(key, limit):
    """Whether every lane of the key is <= the limit's."""
    return (limit - key) & _HIGH_BITS == _HIGH_BITS


@lean_kernel
def strict_limit(limit):
    """Return the limit that only keys smaller in every lane touch: those need no exact check."""
    return limit - _LANE_ONES


@lean_kernel
def union_key(a, b):
    """Return the key of the smallest box around both: the lesser one of each lane."""
    ahead = ((a | _HIGH_BITS) - b) & _HIGH_BITS  # the top bits of the lanes in which b is no more
    lanes = ahead | ahead - (ahead >> _S15)
    return a & ~lanes | b & lanes


@intrinsic
def touching_mask(typing_context: Any, keys: Any, position: Any, limit: Any) -> Any:
    """Return a 16-bit mask of the keys at ``position`` … ``position + 15`` that touch ``limit``.

    The keys array must be readable for 16 keys from ``position`` on; lanes past the caller's list
    are for the caller to mask out. Written as LLVM vectors because no loop that Numba compiles
    turns into compare-and-movemask; about 4 ns per block of 16.
    """
    signature = types.uint32(keys, types.int64, types.uint64)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array = context.make_array(sig.args[0])(context, builder, args[0])
        start = builder.gep(array.data, [args[1]])
        vector = ir.VectorType(ir.IntType(64), BLOCK)
        pointer = builder.bitcast(start, ir.PointerType(vector))
        loaded = builder.load(pointer)
        loaded.align = 8
        one = builder.insert_element(ir.Constant(vector, ir.Undefined), args[2], ir.IntType(32)(0))
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), BLOCK), [0] * BLOCK)
        limits = builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), lanes)
        high = ir.Constant(vector, [int(_HIGH_BITS)] * BLOCK)
        tops = builder.and_(builder.sub(limits, loaded), high)
        hits = builder.icmp_unsigned("==", tops, high)
        mask = builder.bitcast(hits, ir.IntType(BLOCK))
        return builder.zext(mask, ir.IntType(32))

    return signature, generate


@intrinsic
def trailing_zeros(typing_context: Any, mask: Any) -> Any:
    """Return the number of the lowest set bit of a 32-bit mask that is not 0."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        count = builder.cttz(args[0], ir.IntType(1)(1))
        return builder.zext(count, ir.IntType(64))

    return types.int64(types.uint32), generate
