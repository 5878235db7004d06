"""How Numba is used: every kernel of the package is compiled by one of these decorators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.core import config

from earshot.kernels.compiled import CompiledKernels
from earshot.kernels.inner import Kernel


def _decorator(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    def decorate(function: Callable[..., Any]) -> Any:
        # No way in for C, which nobody takes: a tenth of the time to compile.
        if config.DISABLE_JIT:
            return function
        said = {"nopython": True, "nogil": True, "no_cfunc_wrapper": True, **options}
        kernel = Kernel(function, targetoptions=said)
        kernel._cache = CompiledKernels(kernel)
        return kernel

    return decorate


# Inlining is said of every kernel: one that does not say so takes it over from whichever kernel
# happens to compile it first, and so do those that it calls.
kernel = _decorator(forceinline=False)
"""Compiled on first use and kept on disk; runs without the interpreter lock."""

lean_kernel = _decorator(_nrt=False, forceinline=False)
"""A kernel that allocates nothing; for all that runs per message.

Without Numba's run time, arrays are not reference-counted. With it, each call from kernel to kernel
counts every array of its NamedTuples up and down by atomic instructions: about 80 for each list of
the default index, which made matching nearly 3 times slower.
"""

inlined_kernel = _decorator(_nrt=False, forceinline=True)
"""A lean kernel that is compiled into its callers; for what runs per posting, and for small things.

A NamedTuple is passed by its parts, about seven words for each of its arrays. A call with three of
them takes longer than the work that most such functions do.
"""
