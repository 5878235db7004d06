"""Why a message is delivered to a subscription, or why not, in words."""

from __future__ import annotations

import numpy as np

from earshot.kernels.scoring import build_scoring, clause_score, message_area, slot_score
from earshot.kernels.verify import region_touches
from earshot.model.arrays import (
    EVERYWHERE_TOKEN,
    ClauseArrays,
    Float64s,
    MessageArrays,
    Space,
    take_clauses,
)
from earshot.model.explanations import Explanation
from earshot.model.messages import Message
from earshot.model.ranking import LEAST_SCORE, SCORE_TOLERANCE, Ranking
from earshot.model.regions import Point
from earshot.semantics.contract import Question
from earshot.text import Vocabulary


def explain_match(
    question: Question, clauses: ClauseArrays, space: Space, is_touching: bool | None = None
) -> Explanation:
    """Explain one message against the clauses of one subscription.

    Args:
        question: The message and the subscription.
        clauses: All clauses of the subscription.
        space: Coordinates and metric.
        is_touching: Whether the place touches the region, where that is known.
    """
    messages, vocabulary = question.encoded.messages, question.vocabulary
    present = set(messages.token_ids.tolist())
    alternatives = _alternatives(clauses)
    reasons = []
    text_matches = False
    for number, tokens in enumerate(alternatives, 1):
        lead = f"alternative {number}: " if len(alternatives) > 1 else ""
        holds, words = _explain_tokens(tokens, present, vocabulary)
        text_matches |= holds
        reasons.append(f"{lead}{'✓' if holds else '✗'} {words}")
    touching = _touches(clauses, messages, space) if is_touching is None else is_touching
    where, region = _describe_place(question.message), _describe_region(clauses, space)
    verb = "touches" if touching else "does not touch"
    reasons.append(f"{'✓' if touching else '✗'} the message's {where} {verb} {region}")
    reasons += [f"✗ {each}" for each in question.hindrances]
    matched = text_matches and touching and not question.hindrances
    return Explanation(matched, question.message.id, question.subscription_id, tuple(reasons))


def explain_score(
    question: Question, clauses: ClauseArrays, space: Space, ranking: Ranking, weights: Float64s
) -> Explanation:
    """Explain the score of one message for one subscription: its place, its text, the threshold.

    Args:
        question: The message and the subscription.
        clauses: All clauses of the subscription.
        space: Coordinates and metric.
        ranking: What the engine asks for.
        weights: Weight of each token of the vocabulary.
    """
    messages, vocabulary = question.encoded.messages, question.vocabulary
    present = set(messages.token_ids.tolist())
    own = clauses.thresholds[:1]
    is_own = bool(len(own) and not np.isnan(own[0]))
    threshold = float(own[0]) if is_own else ranking.threshold
    alternatives = _alternatives(clauses)

    box, box_area = messages.boxes[0], message_area(messages.boxes[0])

    def score_of(rows: list[int], alpha: float, tokens: set[int]) -> tuple[float, bool]:
        """Return the score of one alternative as an index computes it, -1 if it is out.

        And whether its place is measured by area, not by touching alone.
        """
        alternative = take_clauses(clauses, np.array(rows, np.int64))
        alternative.subscriptions[:] = 0
        scoring = build_scoring(alternative, weights, 1.0, alpha, threshold)
        marks = np.zeros(len(weights), np.uint8)
        marks[list(tokens)] = 1
        score = slot_score if len(rows) > 1 else clause_score
        found = score(scoring, alternative, 0, marks, space == "lonlat", box, box_area)
        return float(found), box_area > 0.0 and scoring.areas[0] > 0.0

    # All alternatives have the same region; without any token no word rules one out.
    spatial, has_area = score_of(next(iter(alternatives.values())), 1.0, set())
    region = _describe_region(clauses, space)
    if not _touches(clauses, messages, space):
        verb = "does not touch"
    elif has_area:
        verb = f"covers {_number(spatial)} of"
        region = region if clauses.shape_rows[0] < 0 else f"the box around {region}"
    else:
        verb = "touches"
    reasons = [
        f"place {_number(spatial)}: the message's {_describe_place(question.message)} {verb} "
        f"{region}"
    ]
    best, best_textual, best_number = -1.0, 0.0, 0
    for number, (tokens, rows) in enumerate(alternatives.items(), 1):
        lead = f"alternative {number}: " if len(alternatives) > 1 else ""
        words = _explain_weights(tokens, present, vocabulary, weights)
        textual, _ = score_of(rows, 0.0, present)
        if textual < 0.0:
            reasons.append(f"{lead}✗ {words}")
            continue
        reasons.append(f"{lead}text {_number(textual)}: {words}")
        score, _ = score_of(rows, ranking.alpha, present)
        if score > best:
            best, best_textual, best_number = score, textual, number
    reaches = best >= max(threshold - SCORE_TOLERANCE, LEAST_SCORE)
    if best >= 0.0:
        alpha = ranking.alpha
        of = f"alternative {best_number}: " if len(alternatives) > 1 else ""
        # Enough digits to tell the two apart.
        digits = 6 if _number(best) != _number(threshold) else 12
        reasons.append(
            f"{'✓' if reaches else '✗'} {of}score {_number(best, digits)} = {_number(alpha)} * "
            f"{_number(spatial)} + {_number(1 - alpha)} * {_number(best_textual)} "
            f"{'reaches' if reaches else 'is below'} the "
            f"{'subscription' if is_own else 'engine'}'s threshold {_number(threshold, digits)}"
        )
    reasons += [f"✗ {each}" for each in question.hindrances]
    return Explanation(
        best >= 0.0 and reaches and not question.hindrances,
        question.message.id,
        question.subscription_id,
        tuple(reasons),
        best if best >= 0.0 else None,
    )


def _alternatives(clauses: ClauseArrays) -> dict[tuple[int, ...], list[int]]:
    """Return the rows of each alternative: a region in several boxes repeats its tokens."""
    rows_of: dict[tuple[int, ...], list[int]] = {}
    for row in range(len(clauses.subscriptions)):
        first, last = clauses.token_offsets[row], clauses.token_offsets[row + 1]
        rows_of.setdefault(tuple(clauses.token_ids[first:last].tolist()), []).append(row)
    return rows_of


def _describe_place(message: Message) -> str:
    place = message.place
    if isinstance(place, Point):
        return f"point ({place.x}, {place.y})"
    return f"box ({place.min_x}, {place.min_y}, {place.max_x}, {place.max_y})"


def _number(value: float, digits: int = 6) -> str:
    return f"{value:.{digits}g}"


def _explain_weights(
    tokens: tuple[int, ...], present: set[int], vocabulary: Vocabulary, weights: Float64s
) -> str:
    """Return which words of an alternative the text has and lacks, with what each weighs."""
    required = [token for token in tokens if token >= 0 and token != EVERYWHERE_TOKEN]
    unwanted = [~token for token in tokens if token < 0 and ~token in present]
    if unwanted:
        return f"the text has {_quoted(unwanted, vocabulary)}, which it must not"
    parts = []
    for verb, chosen in (
        ("has", [token for token in required if token in present]),
        ("lacks", [token for token in required if token not in present]),
    ):
        if chosen:
            words = sorted(zip(vocabulary.tokens(chosen), weights[chosen].tolist(), strict=True))
            listed = ", ".join(f"'{word}' (weight {_number(weight)})" for word, weight in words)
            parts.append(f"the text {verb} {listed}")
    return ", ".join(parts) or "it asks for no keyword"


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
