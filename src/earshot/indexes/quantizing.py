"""Choosing the cells into which box keys quantise coordinates."""

from __future__ import annotations

import numpy as np

from earshot.kernels.box_keys import MAX_CELL_BOUNDS, Quantizer
from earshot.model.arrays import Float64s, Space

_SAMPLE = 1_000_000
_EMPTY_CELLS = 4096


def quantizer_of(boxes: Float64s, space: Space, most: int = MAX_CELL_BOUNDS) -> Quantizer:
    """Return cells that hold about equally many edges of the boxes on each axis, or fewer cells.

    Equal shares keep uncertain comparisons rare where regions crowd together, which equal widths
    would not. Without any box, longitude/latitude gets equal widths and planar space one cell.
    """
    step = max(1, len(boxes) // _SAMPLE)
    sample = boxes[::step]
    x_bounds = _bounds(np.concatenate([sample[:, 0], sample[:, 2]]), most)
    y_bounds = _bounds(np.concatenate([sample[:, 1], sample[:, 3]]), most)
    if len(boxes) == 0 and space == "lonlat":
        x_bounds = np.linspace(-180.0, 180.0, _EMPTY_CELLS)
        y_bounds = np.linspace(-90.0, 90.0, _EMPTY_CELLS)
    return Quantizer(x_bounds, y_bounds)


def _bounds(edges: Float64s, most: int) -> Float64s:
    edges = np.sort(edges[np.isfinite(edges)])
    if len(edges) > most:
        edges = edges[np.linspace(0, len(edges) - 1, most).astype(np.int64)]
    return np.unique(edges)
