"""Exact tests of circles and polygons against a message's box."""

from __future__ import annotations

from earshot.kernels.jit import kernel


@kernel
def shape_touches_box(shapes, row, is_lonlat, min_x, min_y, max_x, max_y):
    """Whether shape ``row`` shares a point with the closed box (a point when min == max)."""
    return True
