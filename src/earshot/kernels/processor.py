"""What only the processor can do: read its clock, and fetch memory ahead of its use."""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

HAS_TICKS = platform.machine() in ("x86_64", "AMD64")
"""Whether programs may read the clock; elsewhere it says 0 always."""


@intrinsic
def ticks(typing_context: Any) -> Any:
    """Return the ticks of the clock; about 20 cycles of work."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if not HAS_TICKS:
            return ir.Constant(ir.IntType(64), 0)
        kind = ir.FunctionType(ir.IntType(64), [])
        read = builder.module.declare_intrinsic("llvm.readcyclecounter", (), kind)
        return builder.call(read, [])

    return types.int64(), generate


@intrinsic
def prefetch(typing_context: Any, array: Any, row: Any) -> Any:
    """Ask for the cache line in which a row of an array begins, to be read soon; unchecked.

    Where rows lie anywhere in memory, waiting for one after the other is what takes the time.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        view = make_array(kind)(context, builder, arguments[0])
        at = context.cast(builder, arguments[1], signature.args[1], types.intp)
        byte = ir.IntType(8).as_pointer()
        if kind.ndim == 1 and kind.layout == "C":
            address = builder.bitcast(builder.gep(view.data, [at]), byte)
        else:
            first_stride = cgutils.unpack_tuple(builder, view.strides)[0]
            address = builder.gep(builder.bitcast(view.data, byte), [builder.mul(at, first_stride)])
        number = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte, number, number, number]),
            "llvm.prefetch.p0",
        )
        # To be read, kept in all caches, as data.
        builder.call(function, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, row), generate
