"""Ranking by a threshold: how much place and text count, and what a message must score.

The score of a message for a subscription is ``alpha * spatial + (1 - alpha) * textual``, each part
between 0 and 1 ([TKDE15] section 6, eq. 3, with psi for the score); it is delivered when the score
reaches the threshold. docs/semantics/ranked.md says exactly what the two parts are.
"""

from __future__ import annotations

import math
import numbers
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from earshot.errors import InvalidParameter, described
from earshot.model.arrays import EVERYWHERE_TOKEN, Float64s, Int64s

SCORE_TOLERANCE = 1e-9
"""A score this much below the threshold still reaches it: rounding never loses an equal score."""

_WEIGHT_STEPS = 65536.0

LEAST_SCORE = 2.2250738585072014e-308
"""A score of 0 reaches no threshold, however low."""


@dataclass(frozen=True)
class Ranking:
    """How messages are scored, and what they must score.

    Attributes:
        alpha: Share of the place in the score, 0 to 1; the rest is the text's.
        threshold: Score that is delivered, greater than 0 and at most 1, unless the subscription
            names its own.
    """

    alpha: float = 0.5
    threshold: float = 0.6

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", check_alpha(self.alpha, "alpha"))
        object.__setattr__(self, "threshold", check_threshold(self.threshold, "threshold"))


def check_alpha(value: Any, where: str) -> float:
    """Return a share of the place as a float; refuse what is not one, naming ``where`` it stood."""
    alpha = real_number(value)
    if alpha is None or not 0.0 <= alpha <= 1.0:
        raise InvalidParameter(f"{where} is {described(value)}; expected a number from 0 to 1")
    return alpha


def check_threshold(value: Any, where: str) -> float:
    """Return a threshold as a float; refuse what is not one, naming ``where`` it stood."""
    threshold = real_number(value)
    if threshold is None or not 0.0 < threshold <= 1.0:
        raise InvalidParameter(
            f"{where} is {described(value)}; expected a number greater than 0 and at most 1"
        )
    return threshold


def real_number(value: Any) -> float | None:
    """Return a finite real number as a float, and ``None`` for anything else, bools included."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


class WordCounts(NamedTuple):
    """How many subscriptions there are, and how many of them ask for each word."""

    n_subscriptions: int
    words: list[str]
    counts: Int64s

    @classmethod
    def total(cls, parts: Iterable[WordCounts]) -> WordCounts:
        """Return those of several engines, each of which has subscriptions of its own."""
        n, sums = 0, Counter[str]()
        for part in parts:
            n += part.n_subscriptions
            sums.update(dict(zip(part.words, part.counts.tolist(), strict=True)))
        words = sorted(sums)
        return cls(n, words, np.array([sums[word] for word in words], np.int64))


def idf_weights(frequencies: Int64s) -> tuple[Float64s, float]:
    """Return each token's weight by its frequency, and the weight of tokens that come later.

    ``ln((N + 1) / (df + 1)) + 1``, so the most frequent token weighs 1 and none less. N is the
    largest frequency, at least 1: where frequencies are counted in messages that is their number,
    because every message carries ``EVERYWHERE_TOKEN``. A token that comes later has df = 0.

    Weights are rounded to a multiple of 2^-16. So sums of them are exact in whichever order they
    are added, and a score has the same bits wherever it is computed.
    """
    n = max(int(frequencies.max(initial=1)), 1)
    weights = np.log((n + 1.0) / (frequencies + 1.0)) + 1.0
    weights[EVERYWHERE_TOKEN : EVERYWHERE_TOKEN + 1] = 1.0
    later = math.log(n + 1.0) + 1.0
    return np.rint(weights * _WEIGHT_STEPS) / _WEIGHT_STEPS, round(
        later * _WEIGHT_STEPS
    ) / _WEIGHT_STEPS
