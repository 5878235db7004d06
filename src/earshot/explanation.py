"""Why a message is delivered to a subscription, or why not, in words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import numpy as np

from earshot.kernels.verify import region_touches
from earshot.model.arrays import EVERYWHERE_TOKEN, ClauseArrays, MessageArrays, Space
from earshot.model.messages import Message
from earshot.model.regions import Point
from earshot.model.subscriptions import Id
from earshot.text import Vocabulary


@dataclass(frozen=True)
class Explanation:
    """The outcome, and what each condition contributed to it."""

    matched: bool
    message_id: Id
    subscription_id: Id
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        verdict = "is delivered to" if self.matched else "is not delivered to"
        lines = [f"Message {self.message_id!r} {verdict} subscription {self.subscription_id!r}:"]
        return "\n".join([*lines, *(f"  - {reason}" for reason in self.reasons)])


def explain_match(
    message: Message,
    subscription_id: Id,
    *,
    clauses: ClauseArrays,
    messages: MessageArrays,
    vocabulary: Vocabulary,
    space: Space,
    expired_at: datetime | None,
) -> Explanation:
    """Explain one message against the clauses of one subscription.

    Args:
        message: The message.
        subscription_id: The subscription.
        clauses: All clauses of the subscription.
        messages: The message, encoded.
        vocabulary: Where both got their tokens.
        space: Coordinates and metric.
        expired_at: When the subscription expired, if it has.
    """
    present = set(messages.token_ids.tolist())
    # A region in several boxes repeats the tokens of its clause; a line per alternative is enough.
    alternatives: dict[tuple[int, ...], None] = {}
    for row in range(len(clauses.subscriptions)):
        first, last = clauses.token_offsets[row], clauses.token_offsets[row + 1]
        alternatives[tuple(clauses.token_ids[first:last].tolist())] = None
    reasons = []
    text_matches = False
    for number, tokens in enumerate(alternatives, 1):
        lead = f"alternative {number}: " if len(alternatives) > 1 else ""
        holds, words = _explain_tokens(tokens, present, vocabulary)
        text_matches |= holds
        reasons.append(f"{lead}{'✓' if holds else '✗'} {words}")
    touching = _touches(clauses, messages, space)
    place = message.place
    where = (
        f"point ({place.x}, {place.y})"
        if isinstance(place, Point)
        else f"box ({place.min_x}, {place.min_y}, {place.max_x}, {place.max_y})"
    )
    region = _describe_region(clauses, space)
    verb = "touches" if touching else "does not touch"
    reasons.append(f"{'✓' if touching else '✗'} the message's {where} {verb} {region}")
    if expired_at is not None:
        reasons.append(f"✗ the subscription expired at {expired_at.isoformat()}")
    matched = text_matches and touching and expired_at is None
    return Explanation(matched, message.id, subscription_id, tuple(reasons))


def _explain_tokens(
    tokens: tuple[int, ...], present: set[int], vocabulary: Vocabulary
) -> tuple[bool, str]:
    """Return whether one alternative's tokens match, and how that comes about."""
    required = [token for token in tokens if token >= 0 and token != EVERYWHERE_TOKEN]
    forbidden = [~token for token in tokens if token < 0]
    parts = []
    missing = [token for token in required if token not in present]
    found = [token for token in required if token in present]
    if not required and not forbidden:
        parts.append("it asks for no keyword")
    if found:
        parts.append(f"the text has {_quoted(found, vocabulary)}")
    if missing:
        parts.append(f"the text lacks {_quoted(missing, vocabulary)}")
    unwanted = [token for token in forbidden if token in present]
    absent = [token for token in forbidden if token not in present]
    if unwanted:
        parts.append(f"the text has {_quoted(unwanted, vocabulary)}, which it must not")
    if absent:
        parts.append(f"the text is free of {_quoted(absent, vocabulary)}")
    return not missing and not unwanted, ", ".join(parts)


def _quoted(tokens: list[int], vocabulary: Vocabulary) -> str:
    return ", ".join(f"'{word}'" for word in sorted(vocabulary.tokens(tokens)))


def _touches(clauses: ClauseArrays, messages: MessageArrays, space: Space) -> bool:
    min_x, min_y, max_x, max_y = messages.boxes[0].tolist()
    crosses = min_x > max_x
    pieces = [(min_x, 180.0), (-180.0, max_x)] if crosses else [(min_x, max_x)]
    return any(
        region_touches(clauses, row, space == "lonlat", west, min_y, east, max_y)
        for row in range(len(clauses.subscriptions))
        for west, east in pieces
    )


def _describe_region(clauses: ClauseArrays, space: Space) -> str:
    shape = int(clauses.shape_rows[0])
    if shape >= 0:
        x, y, radius = clauses.shapes.circles[shape].tolist()
        if radius >= 0:
            unit = " m" if space == "lonlat" else ""
            return f"the circle of radius {radius:g}{unit} around ({x}, {y})"
        ring = clauses.shapes.ring_offsets
        first, last = (int(clauses.shapes.vertex_offsets[ring[shape + k]]) for k in (0, 1))
        return f"the polygon of {last - first} vertices"
    boxes = np.unique(clauses.boxes, axis=0)
    if not np.isfinite(boxes).all():
        return "the region, which is everywhere"
    solid = [box for box in boxes.tolist() if box[0] < box[2] or len(boxes) == 1]
    return "the region " + " and ".join(
        f"({min_x}, {min_y}, {max_x}, {max_y})" for min_x, min_y, max_x, max_y in solid or boxes
    )
