"""How Numba is used: every kernel of the package is compiled by one of these decorators."""

from __future__ import annotations

from typing import Any

import numba

kernel: Any = numba.njit(cache=True, nogil=True)
"""Compiled on first use and kept on disk; runs without the interpreter lock."""

lean_kernel: Any = numba.njit(cache=True, nogil=True, _nrt=False)
"""A kernel that allocates nothing; for all that runs per message.

Without Numba's run time, arrays are not reference-counted. With it, each call from kernel to kernel
counts every array of its NamedTuples up and down by atomic instructions: about 80 for each list of
the default index, which made matching nearly 3 times slower.
"""
