"""The processor's clock, for kernels that tell how long their parts take."""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

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
