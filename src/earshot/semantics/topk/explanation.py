"""What a message would score for a subscription, and whether it would be among the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.model.arrays import Float64s, Int32s
from earshot.model.explanations import Explanation
from earshot.model.regions import Point
from earshot.semantics.contract import Question


class Asking(NamedTuple):
    """What one subscription asks for."""

    tokens: Int32s
    place: Float64s  # (3,) Cartesian
    alpha: float
    k: int


def explain_entry(
    question: Question,
    *,
    asking: Asking,
    weights: Float64s,
    max_distance: float,
    unit: str,
    scores: Sequence[float],
    n_leaving: int | None,
    is_latest: bool,
) -> Explanation:
    """Explain what a message would score for a subscription, and whether it would be a result.

    Args:
        question: The message and the subscription.
        asking: What the subscription asks for.
        weights: Weight of each token of the vocabulary.
        max_distance: Distance from which on the place scores 0.
        unit: Of distances, to be printed.
        scores: Scores of the subscription's results now, best first.
        n_leaving: How many of these leave the window before the message arrives; None: unknown.
        is_latest: Whether it is more recent than all of these.
    """
    message, messages = question.message, question.encoded.messages
    vocabulary, hindrances = question.vocabulary, question.hindrances
    wanted = _unit_vector(asking.tokens, np.ones(len(asking.tokens)), weights)
    offered = _unit_vector(messages.tokens, messages.counts, weights)
    shared = [token for token in wanted if token in offered]
    words = dict(zip(wanted, vocabulary.tokens(list(wanted)), strict=True))
    distance = math.dist(asking.place, messages.places[0])
    place = max(0.0, 1.0 - distance / max_distance)
    text = sum(wanted[token] * offered[token] for token in shared)
    score = asking.alpha * place + (1.0 - asking.alpha) * text
    point = message.place
    assert isinstance(point, Point)  # the encoder takes nothing else

    parts = [
        f"the text has '{words[token]}' ({wanted[token]:.6g} * {offered[token]:.6g})"
        for token in shared
    ]
    lacking = sorted(word for token, word in words.items() if token not in offered)
    if lacking:
        parts.append(f"the text lacks {', '.join(map(repr, lacking))}")
    reasons = [
        f"place {place:.6g}: the message's point ({point.x}, {point.y}) is "
        f"{_rounded(distance)}{unit} away, of {_rounded(max_distance)}{unit}",
        f"{f'text {text:.6g}: ' if shared else '✗ '}{', '.join(parts)}",
    ]
    if shared:
        reasons.append(
            f"score {score:.6g} = {asking.alpha:.6g} * {place:.6g} + {1 - asking.alpha:.6g} * "
            f"{text:.6g}"
        )
    enters = False
    if shared:
        enters, outcome = _entry(score, scores, asking.k, n_leaving, is_latest)
        reasons.append(outcome)
    reasons += [f"✗ {each}" for each in hindrances]
    return Explanation(
        enters and not hindrances,
        message.id,
        question.subscription_id,
        tuple(reasons),
        score if shared else None,
    )


def _entry(
    score: float, scores: Sequence[float], k: int, n_leaving: int | None, is_latest: bool
) -> tuple[bool, str]:
    """Return whether a message is sure to enter, and why it does or not."""
    if len(scores) < k:  # so there is nothing in the window that could take a place
        return True, f"✓ {len(scores) - (n_leaving or 0)} of {k} places are taken"
    last = f"the last of the best {k}, which has {scores[-1]:.6g}"
    # All others of the window are worse than the last, so none of those that refill is better.
    if score > scores[-1] or (score == scores[-1] and is_latest):
        return True, f"✓ it reaches {last}"
    if n_leaving:
        return False, (
            f"✗ it is below {last}; one of these leaves before it arrives, and it enters only if "
            f"no better message of the window takes that place"
        )
    if n_leaving is None:
        return False, f"✗ it is below {last} now; what leaves with its time may make room"
    if score == scores[-1]:
        return False, f"✗ it is as good as {last}, and enters only if it is the more recent"
    return False, f"✗ it is below {last}"


def _unit_vector(tokens: Int32s, counts: npt.NDArray[Any], weights: Float64s) -> dict[int, float]:
    """Return the weights of tokens as a vector of length 1, rarest first, as a monitor has them."""
    order = np.lexsort((tokens, -weights[tokens]))
    products = counts[order].astype(np.float64) * weights[tokens[order]]
    norm = math.sqrt(sum((products * products).tolist()))
    units = (products / norm).astype(np.float32).astype(np.float64)
    return dict(zip(tokens[order].tolist(), units.tolist(), strict=True))


def _rounded(distance: float) -> str:
    return f"{distance:,.0f}" if distance >= 1000 else f"{distance:.6g}"
