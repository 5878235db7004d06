"""Cells of a quadtree, in whole numbers.

A frame maps coordinates to a grid of 2^BITS columns and rows, by a map that keeps order and sends
whatever lies outside to the border. Boxes that touch have grid boxes that touch. So everything
about cells is decided on the grid, and nothing is lost to rounding, nor beyond the frame.

A *cell* is a square of the grid, packed into one integer: column, row and depth. Cell 0 is the
whole grid; column and row count squares of the cell's depth.
"""

from __future__ import annotations

import numpy as np

from earshot.kernels.jit import inlined_kernel, lean_kernel

BITS = 20
"""Depth of the smallest cells."""

_LAST = np.int64((1 << BITS) - 1)
_ROW_MASK = np.int64((1 << 24) - 1)
_DEPTH_MASK = np.int64(255)


@lean_kernel
def _on_grid(value, quarter_of_start, scale):
    # Quarters, because the width of all that a float can hold is none.
    at = (value * 0.25 - quarter_of_start) * scale
    if at >= _LAST:
        return _LAST
    return np.int64(at) if at > 0.0 else np.int64(0)


@lean_kernel
def grid_box(frame, min_x, min_y, max_x, max_y):
    """Return first column, first row, last column and last row that a box touches."""
    return (
        _on_grid(min_x, frame[0], frame[2]),
        _on_grid(min_y, frame[1], frame[3]),
        _on_grid(max_x, frame[0], frame[2]),
        _on_grid(max_y, frame[1], frame[3]),
    )


@lean_kernel
def cell_depth(cell):
    """Return the depth of a cell, 0 for the whole grid."""
    return cell & _DEPTH_MASK


@lean_kernel
def cell_column(cell):
    """Return the column of a cell, among those of its depth."""
    return cell >> 32


@lean_kernel
def cell_row(cell):
    """Return the row of a cell, among those of its depth."""
    return cell >> 8 & _ROW_MASK


@lean_kernel
def pack_cell(depth, column, row):
    """Return the cell of a depth in a column and a row of that depth."""
    return np.int64(column << 32 | row << 8 | depth)


@lean_kernel
def child_cell(cell, i):
    """Return the i-th quarter of a cell: west and east of the south, then of the north."""
    column, row = 2 * cell_column(cell) + (i & 1), 2 * cell_row(cell) + (i >> 1)
    return pack_cell(cell_depth(cell) + 1, column, row)


@inlined_kernel
def quarters_touched(cell, on_grid):
    """Return a bit for each quarter of a cell that a grid box touches."""
    shift = BITS - 1 - cell_depth(cell)
    west, south = 2 * cell_column(cell), 2 * cell_row(cell)
    first_x, first_y = on_grid[0] >> shift, on_grid[1] >> shift
    last_x, last_y = on_grid[2] >> shift, on_grid[3] >> shift
    columns = (first_x <= west and last_x >= west) | (first_x <= west + 1 and last_x > west) << 1
    bits = np.int64(0)
    if first_y <= south and last_y >= south:
        bits |= columns
    if first_y <= south + 1 and last_y > south:
        bits |= columns << 2
    return bits


@inlined_kernel
def is_first_meeting(cell, one, other):
    """Whether the first square in which two grid boxes meet is in a cell; they must meet.

    That is so in one of any disjoint cells that cover one of the boxes: what is in several lists
    is reported there alone.
    """
    shift = BITS - cell_depth(cell)
    return max(one[0], other[0]) >> shift == cell_column(cell) and (
        max(one[1], other[1]) >> shift == cell_row(cell)
    )
