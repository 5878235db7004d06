"""The exact test of one clause against one message, shared by all indexes.

``marks`` is a byte per token: 1 while the current message carries it, else 0. Tokens at or beyond
its end belong to no clause of the index and are skipped when marking.
"""

from __future__ import annotations

from earshot.kernels.jit import lean_kernel
from earshot.kernels.shapes import shape_touches_box


@lean_kernel
def mark_tokens(token_ids, start, stop, marks, value):
    """Set the marks of a message's tokens to ``value`` (1 before matching, 0 after)."""
    for i in range(start, stop):
        token = token_ids[i]
        if token < len(marks):
            marks[token] = value


@lean_kernel
def tokens_match(token_ids, start, stop, marks):
    """Whether all required tokens are marked and no forbidden one is.

    A forbidden token beyond the marks cannot be in the message as far as this index knows, but a
    required one cannot lie there: the marks cover every token of the index's clauses.
    """
    for i in range(start, stop):
        token = token_ids[i]
        if token >= 0:
            if marks[token] == 0:
                return False
        elif marks[~token] != 0:
            return False
    return True


@lean_kernel
def box_touches(boxes, row, min_x, min_y, max_x, max_y):
    """Whether a clause's closed box and the message's closed box share a point."""
    return (
        boxes[row, 0] <= max_x
        and boxes[row, 1] <= max_y
        and boxes[row, 2] >= min_x
        and boxes[row, 3] >= min_y
    )


@lean_kernel
def region_touches(clauses, row, is_lonlat, min_x, min_y, max_x, max_y):
    """Whether a clause's region, box or shape, shares a point with the message's box."""
    if not box_touches(clauses.boxes, row, min_x, min_y, max_x, max_y):
        return False
    shape = clauses.shape_rows[row]
    if shape < 0:
        return True
    return shape_touches_box(clauses.shapes, shape, is_lonlat, min_x, min_y, max_x, max_y)
