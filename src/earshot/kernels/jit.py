"""How Numba is used: every kernel of the package is compiled by one of these decorators."""

from __future__ import annotations

from typing import Any

import numba

kernel: Any = numba.njit(cache=True, nogil=True)
"""Compiled on first use and kept on disk; runs without the interpreter lock."""

inline: Any = numba.njit(cache=True, nogil=True, inline="always")
"""A small function that is expanded into the kernels that call it."""
