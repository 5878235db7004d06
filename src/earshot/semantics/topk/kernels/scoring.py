"""Scores of messages for subscriptions, in one place so that every path gives the same bits."""

from __future__ import annotations

import numpy as np

from earshot.kernels.jit import inlined_kernel, kernel
from earshot.model.arrays import Float64s, Int32s, Int64s
from earshot.semantics.topk.kernels.arrays import Float32s, Subscribers, UInt16s

LONG = 32
"""Tokens from which a row is sorted by a faster algorithm than insertion."""


@inlined_kernel
def distance(x: float, y: float, z: float, other_x: float, other_y: float, other_z: float) -> float:
    """Return the length of the straight line between two places."""
    dx = x - other_x
    dy = y - other_y
    dz = z - other_z
    return np.sqrt(dx * dx + dy * dy + dz * dz)


@inlined_kernel
def nearness(distance: float, max_distance: float) -> float:
    """Return the spatial part of a score: 1 at the place itself, 0 from the maximum on."""
    return max(0.0, 1.0 - distance / max_distance)


@inlined_kernel
def combine(alpha: float, near: float, text: float) -> float:
    """Return the score of its two parts."""
    return alpha * near + (1.0 - alpha) * text


@inlined_kernel
def text_score(subscribers: Subscribers, slot: int, weight_of: Float32s) -> float:
    """Return the cosine of a subscription and the message whose weights are in ``weight_of``.

    It is 0 exactly where they share no word: weights are greater than 0.
    """
    text = 0.0
    for at in range(subscribers.token_offsets[slot], subscribers.token_offsets[slot + 1]):
        weight = weight_of[subscribers.tokens[at]]
        if weight > 0.0:
            text += np.float64(subscribers.weights[at]) * np.float64(weight)
    return text


@inlined_kernel
def place_score(
    subscribers: Subscribers, slot: int, x: float, y: float, z: float, max_distance: float
) -> float:
    """Return how near a subscription's place is."""
    places = subscribers.places
    apart = distance(places[slot, 0], places[slot, 1], places[slot, 2], x, y, z)
    return nearness(apart, max_distance)


@kernel
def unit_vectors(
    offsets: Int64s,
    tokens: Int32s,
    counts: UInt16s,
    weights: Float64s,
    later_weight: float,
    out_tokens: Int32s,
    out_weights: Float32s,
    out_counts: UInt16s,
) -> None:
    """Sort the tokens of each row rarest first and weigh them to a vector of length 1."""
    longest = 0
    for row in range(len(offsets) - 1):
        longest = max(longest, offsets[row + 1] - offsets[row])
    idf = np.empty(longest, np.float64)
    for row in range(len(offsets) - 1):
        first, n = offsets[row], offsets[row + 1] - offsets[row]
        if n > LONG:
            _sort_long(tokens, counts, weights, later_weight, first, n, out_tokens, out_counts)
            for i in range(n):
                idf[i] = _weight(weights, later_weight, out_tokens[first + i])
        else:
            for i in range(n):
                token = tokens[first + i]
                weight = _weight(weights, later_weight, token)
                at = i
                while at > 0 and (
                    idf[at - 1] < weight
                    or (idf[at - 1] == weight and out_tokens[first + at - 1] > token)
                ):
                    idf[at] = idf[at - 1]
                    out_tokens[first + at] = out_tokens[first + at - 1]
                    out_counts[first + at] = out_counts[first + at - 1]
                    at -= 1
                idf[at] = weight
                out_tokens[first + at] = token
                out_counts[first + at] = counts[first + i]
        square = 0.0
        for i in range(n):
            value = idf[i] * out_counts[first + i]
            square += value * value
        norm = np.sqrt(square)
        for i in range(n):
            out_weights[first + i] = np.float32(idf[i] * out_counts[first + i] / norm)


@kernel
def _weight(weights: Float64s, later_weight: float, token: int) -> float:
    return weights[token] if token < len(weights) else later_weight


@kernel
def _sort_long(
    tokens: Int32s,
    counts: UInt16s,
    weights: Float64s,
    later_weight: float,
    first: int,
    n: int,
    out_tokens: Int32s,
    out_counts: UInt16s,
) -> None:
    by_id = np.argsort(tokens[first : first + n])
    keys = np.empty(n, np.float64)
    for i in range(n):
        keys[i] = -_weight(weights, later_weight, tokens[first + by_id[i]])
    by_weight = np.argsort(keys, kind="mergesort")
    for i in range(n):
        source = first + by_id[by_weight[i]]
        out_tokens[first + i] = tokens[source]
        out_counts[first + i] = counts[source]
