"""Copying parts of arrays within kernels."""

from __future__ import annotations

from earshot.kernels.jit import inlined_kernel


@inlined_kernel
def copy_part(source, start, stop, target, at):
    """Copy ``source[start:stop]`` to ``target`` from ``at`` on; the target must have room.

    Numba assigns slices, too. But the first assignment takes 2 s to compile, most of it for what
    an error would say of shapes that differ.
    """
    for i in range(stop - start):
        target[at + i] = source[start + i]
