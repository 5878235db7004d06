"""Why a message would be given to a moving subscriber now, or why not, in words."""

from __future__ import annotations

from datetime import timedelta

import numpy as np

from earshot.model.arrays import (
    BOX,
    CIRCLE,
    POLYGON,
    ClauseArrays,
    MessageArrays,
    ShapeArrays,
    Space,
    no_shapes,
)
from earshot.model.explanations import Explanation
from earshot.semantics.contract import Question
from earshot.semantics.index_explanation import explain_match
from earshot.semantics.moving.kernels.regions import holds
from earshot.semantics.moving.tables import SubscriberArrays, SubscriberTable


def explain_holding(question: Question, table: SubscriberTable, space: Space) -> Explanation:
    """Explain one message against one subscription where it is now."""
    slot, held = question.slot, table.arrays
    living = question.encoded.messages
    messages = MessageArrays(living.token_offsets, living.tokens, living.boxes)
    subscribers = table.view
    is_touching = bool(
        holds(
            subscribers.regions, slot, space == "lonlat", subscribers.polygons,
            *living.boxes[0].tolist(),
        )
    )  # fmt: skip
    dwell_us = int(table.dwells_us[slot])
    hindrances = list(question.hindrances)
    if dwell_us:
        dwell = timedelta(microseconds=dwell_us)
        hindrances.append(f"it must match for {dwell} before it is given")
    clauses = _clauses_of(held, slot)
    asked = question._replace(
        encoded=question.encoded._replace(messages=messages), hindrances=hindrances
    )
    return explain_match(asked, clauses, space, is_touching)


def _clauses_of(held: SubscriberArrays, slot: int) -> ClauseArrays:
    """Return the alternatives of a subscription at its region, to be described."""
    first, stop = held.clause_offsets[slot : slot + 2]
    offsets = held.token_offsets[first : stop + 1]
    boxes = held.boxes[slot].reshape(2, 4)
    boxes = boxes[boxes[:, 0] <= boxes[:, 2]]
    shapes, shape_row = no_shapes(), -1
    kind = int(held.kinds[slot])
    if kind == CIRCLE:
        shapes, shape_row = shapes._replace(circles=held.frames[slot : slot + 1, :3].copy()), 0
    elif kind == POLYGON:
        shape_row = int(held.shape_rows[slot])
        shapes = ShapeArrays(held.circles, held.ring_offsets, held.vertex_offsets, held.vertices)
    n_boxes = 1 if kind != BOX else len(boxes)
    n_clauses = int(stop - first)
    lengths = np.repeat(np.diff(offsets), n_boxes)
    token_offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = [
        held.token_ids[offsets[clause] : offsets[clause + 1]]
        for clause in range(n_clauses)
        for _ in range(n_boxes)
    ]
    return ClauseArrays(
        np.zeros(n_clauses * n_boxes, np.int32),
        token_offsets.astype(np.int64),
        np.concatenate(tokens),
        np.tile(boxes[:n_boxes], (n_clauses, 1)),
        np.full(n_clauses * n_boxes, shape_row, np.int32),
        shapes,
    )
