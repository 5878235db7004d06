"""Comparisons of many numbers at once, which no loop compiles to."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from earshot.kernels.box_keys import BLOCK, DEAD_KEY
from earshot.kernels.jit import inlined_kernel

_FIRSTS = np.uint32(0x1111)


def _sixteen(context: Any, builder: Any, array_type: Any, array: Any, start: Any) -> Any:
    """Return sixteen numbers of an array as a vector."""
    data = context.make_array(array_type)(context, builder, array).data
    vector = ir.VectorType(data.type.pointee, BLOCK)
    loaded = builder.load(builder.bitcast(builder.gep(data, [start]), ir.PointerType(vector)))
    loaded.align = 8
    return loaded


def _repeated(builder: Any, values: list[Any]) -> Any:
    """Return a vector of sixteen numbers in which some take turns."""
    few: Any = ir.Constant(ir.VectorType(values[0].type, len(values)), ir.Undefined)
    for k, value in enumerate(values):
        few = builder.insert_element(few, value, ir.IntType(32)(k))
    turns = [k % len(values) for k in range(BLOCK)]
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), BLOCK), turns)
    return builder.shuffle_vector(few, ir.Constant(few.type, ir.Undefined), lanes)


def _mask(builder: Any, hits: Any) -> Any:
    return builder.zext(builder.bitcast(hits, ir.IntType(BLOCK)), ir.IntType(32))


@intrinsic
def having_mask(typing_context: Any, words: Any, position: Any, wanted: Any) -> Any:
    """Return a 16-bit mask of the words at ``position`` and behind that have all bits wanted."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        held = _sixteen(context, builder, sig.args[0], args[0], args[1])
        bits = _repeated(builder, [args[2]])
        return _mask(builder, builder.icmp_unsigned("==", builder.and_(held, bits), bits))

    return types.uint32(words, types.int64, types.uint64), generate


@intrinsic
def union_of_block(typing_context: Any, keys: Any, position: Any, n: Any) -> Any:
    """Return the key of the box around the first ``n`` of the 16 keys from ``position`` on."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        held = _sixteen(context, builder, sig.args[0], args[0], args[1])
        numbers = ir.Constant(held.type, list(range(BLOCK)))
        is_first = builder.icmp_signed("<", numbers, _repeated(builder, [args[2]]))
        dead = ir.Constant(held.type, [int(DEAD_KEY)] * BLOCK)
        least = builder.select(is_first, held, dead)
        n_lanes = 4 * BLOCK
        least = builder.bitcast(least, ir.VectorType(ir.IntType(16), n_lanes))
        while n_lanes > 4:
            n_lanes //= 2
            low, high = (
                builder.shuffle_vector(
                    least, ir.Constant(least.type, ir.Undefined),
                    ir.Constant(
                        ir.VectorType(ir.IntType(32), n_lanes), list(range(start, start + n_lanes))
                    ),
                )
                for start in (0, n_lanes)
            )  # fmt: skip
            least = builder.select(builder.icmp_unsigned("<", low, high), low, high)
        return builder.bitcast(least, ir.IntType(64))

    return types.uint64(keys, types.int64, types.int64), generate


@intrinsic
def _between_mask(typing_context: Any, boxes: Any, row: Any, lows: Any, highs: Any) -> Any:
    """Return a mask of the 16 coordinates of four boxes that lie between those of two others."""
    bounds = types.UniTuple(types.float64, 4)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        start = builder.mul(args[1], ir.IntType(64)(4))
        held = _sixteen(context, builder, sig.args[0], args[0], start)
        low, high = (
            _repeated(builder, [builder.extract_value(each, k) for k in range(4)])
            for each in args[2:]
        )
        is_above, is_below = (
            builder.fcmp_ordered(">=", held, low),
            builder.fcmp_ordered("<=", held, high),
        )
        return _mask(builder, builder.and_(is_above, is_below))

    return types.uint32(boxes, types.int64, bounds, bounds), generate


@inlined_kernel
def _of_all_four(mask):
    """Return the boxes of which all four coordinates are marked, each by its first bit."""
    mask &= mask >> np.uint32(1)
    return mask & mask >> np.uint32(2) & _FIRSTS


@inlined_kernel
def open_mask(boxes, first, hull, within):
    """Return which of four boxes touch one box and do not lie within another.

    Args:
        boxes: Boxes as rows.
        first: The first of the four.
        hull: A box that is to be touched.
        within: A box, which may be empty.

    Returns:
        Bit 4 k for box k.
    """
    touched = _between_mask(
        boxes, first, (-np.inf, -np.inf, hull[0], hull[1]), (hull[2], hull[3], np.inf, np.inf)
    )
    inside = _between_mask(
        boxes, first, (within[0], within[1], -np.inf, -np.inf),
        (np.inf, np.inf, within[2], within[3]),
    )  # fmt: skip
    return _of_all_four(touched) & ~_of_all_four(inside)
