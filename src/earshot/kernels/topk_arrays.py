"""The arrays that top-k over a window works on.

A subscription is a *slot*, a message a *sequence* number (its arrival). Words of both are sorted
rarest first, by weight and then by token id, and carry the weights of a vector of length 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.model.arrays import Float64s, Int32s, Int64s

Float32s = npt.NDArray[np.float32]
UInt32s = npt.NDArray[np.uint32]
Int8s = npt.NDArray[np.int8]


class TopkMessages(NamedTuple):
    """Messages as they come, one row each."""

    token_offsets: Int64s  # (n + 1,) tokens of message i are [i]:[i+1]
    tokens: Int32s  # distinct within a message, in any order
    counts: npt.NDArray[np.uint16]  # occurrences of each token, at least 1
    places: Float64s  # (n, 3) Cartesian
    times: Int64s  # (n,) in microseconds


class Vectors(NamedTuple):
    """Sparse vectors of length 1, one row each."""

    offsets: Int64s  # (n + 1,)
    tokens: Int32s  # rarest first
    weights: Float32s


class Subscribers(NamedTuple):
    """What every structure knows of the subscriptions, by slot."""

    places: Float64s  # (n, 3) Cartesian
    alphas: Float64s  # share of the place in the score
    ks: Int32s  # messages wanted
    token_offsets: Int64s  # (n + 1,)
    tokens: Int32s  # rarest first
    weights: Float32s
    thresholds: Float64s  # score that a message must reach to be noticed; NOTHING_LOST: any
    homes: Int8s  # the component that holds it: NO_HOME, BASE or YOUNG
    rows: Int32s  # its row in that component


class Changes(NamedTuple):
    """Changes of results, in order."""

    rows: Int32s  # which row of the batch caused it
    signs: Int8s  # +1 comes, -1 goes
    reasons: Int8s  # a position in REASONS
    slots: Int32s
    sequences: Int64s
    scores: Float64s


NO_HOME, BASE, YOUNG = 0, 1, 2

NOTHING_LOST = -1.0
"""Threshold of a subscription whose buffer knows of every relevant message of the window."""

REASONS = ("match", "refill", "subscribe", "move", "reweigh", "displaced", "expired")
