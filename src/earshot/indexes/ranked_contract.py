"""What every ranked index is: an index like any other, whose answers have scores.

A structure supplies how its arrays are built and how messages are scored against them. The first
field of its arrays is ``scoring`` (:class:`~earshot.kernels.scoring.ScoringArrays`): the weights of
the tokens and what else the score of a clause needs. Everything else is here, in one way for all.

**Weights** are fixed when an index is built, and kept by rebuilds, by saving and by opening. They
are given, or computed from the frequencies (:func:`~earshot.model.ranking.idf_weights`). Tokens
that come later, by inserting, have one weight, ``later_weight``. Nothing else changes a score.

**Messages** across the antimeridian come to ``_match_rows`` as they are, because their overlaps add
up; the functions of :mod:`earshot.kernels.scoring` know how.

**Changes.** Inserted clauses go to a :class:`~earshot.indexes.ranked_delta.RankedDelta`, which is a
smaller index of the same structure. A structure that can change in place overrides ``_take_in``
and ``_bury``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from earshot.errors import InvalidInput, InvalidParameter
from earshot.indexes.contract import Index, Parameters
from earshot.indexes.delta import Delta
from earshot.indexes.kernels.matching import SlotScratch
from earshot.indexes.ranked_delta import RankedDelta
from earshot.kernels.scoring import ScoringArrays, build_scoring
from earshot.model.arrays import ClauseArrays, Float64s, Int32s, Int64s
from earshot.model.ranking import Ranking, idf_weights


@dataclass(frozen=True)
class RankedParameters(Parameters):
    """Options of every ranked index; a structure that has more subclasses this.

    Attributes:
        alpha: Share of the place in the score, 0 to 1.
        threshold: Score that is delivered, unless the subscription names its own.
    """

    alpha: float = 0.5
    threshold: float = 0.6

    def __post_init__(self) -> None:
        ranking = self.ranking
        object.__setattr__(self, "alpha", ranking.alpha)
        object.__setattr__(self, "threshold", ranking.threshold)

    @property
    def ranking(self) -> Ranking:
        """The two options as what they are elsewhere; refuses values out of range."""
        return Ranking(self.alpha, self.threshold)


class RankedIndex(Index):
    """Base class of all ranked index structures."""

    semantics = "ranked"
    parameters_type = RankedParameters
    parameters: RankedParameters
    has_scores = True
    reports_once = True
    splits_crossing = False

    @classmethod
    def _know_tokens(
        cls,
        clauses: ClauseArrays,
        frequencies: Int64s,
        parameters: Any,
        weights: Float64s | None,
        later_weight: float | None,
    ) -> ScoringArrays:
        """Return what scoring needs; it is the first of the structure's arrays."""
        if weights is None:
            weights, later_weight = idf_weights(frequencies)
        weights, later_weight = _all_weights(weights, later_weight, len(frequencies))
        alpha, threshold = parameters.alpha, parameters.threshold
        return build_scoring(clauses, weights, later_weight, alpha, threshold)

    @classmethod
    def _check_clauses(cls, clauses: ClauseArrays) -> None:
        super()._check_clauses(clauses)
        _check_thresholds(clauses)

    def _build_options(self, tokens: Int32s | None) -> dict[str, Any]:
        weights, later = self.weights, self.later_weight
        if tokens is not None:
            weights = np.append(weights, later)[np.minimum(tokens, len(weights))]
        return {"weights": weights, "later_weight": later}

    def used_tokens(self, clauses: ClauseArrays, n_tokens: int) -> npt.NDArray[np.bool_]:
        """Return which tokens a rebuild of clauses must know: also those with their own weight."""
        weights = self.weights  # as they are now: insertions replace them
        is_used = super().used_tokens(clauses, max(n_tokens, len(weights)))
        is_used[: len(weights)] |= weights != self.later_weight
        return is_used

    def _new_scratch(self) -> Any:
        return SlotScratch(
            np.zeros(self.n_tokens, np.uint8), np.zeros(1, np.int64), self._new_last_seen()
        )

    def _new_last_seen(self) -> Int64s:
        """Return what :func:`~earshot.kernels.scoring.delivered_score` remembers slots in."""
        return np.zeros(self.n_base_slots if self.has_repeats else 0, np.int64)

    def _new_delta(self) -> Delta:
        return RankedDelta(
            type(self), self.parameters, self.space, self.n_base_slots, self.weights,
            self.later_weight,
        )  # fmt: skip

    @property
    def weights(self) -> Float64s:
        """Weights of the tokens that the index has room for; all that it knows are among them."""
        scoring: ScoringArrays = self.arrays.scoring
        return scoring.weights

    @property
    def later_weight(self) -> float:
        """Weight of tokens that came, or come, after the index was first built."""
        return float(self.arrays.scoring.later_weight[0])


def _all_weights(
    weights: Float64s, later_weight: float | None, n_tokens: int
) -> tuple[Float64s, float]:
    """Return checked weights for ``n_tokens`` tokens, and the weight of further ones."""
    given = np.ascontiguousarray(weights, np.float64)
    if given.ndim != 1 or not bool((np.isfinite(given) & (given > 0.0)).all()):
        raise InvalidParameter("weights must be one finite number greater than 0 for each token")
    later = float(given.max(initial=0.0)) or 1.0 if later_weight is None else float(later_weight)
    if not 0.0 < later < np.inf:
        raise InvalidParameter(f"later_weight is {later}; expected a finite number greater than 0")
    if len(given) == n_tokens:
        return given, later
    longer = np.full(n_tokens, later)
    longer[: len(given)] = given
    return longer, later


def _check_thresholds(clauses: ClauseArrays) -> None:
    """Reject thresholds out of range, and subscriptions with several of them."""
    thresholds, slots = clauses.thresholds, clauses.subscriptions
    if len(thresholds) == 0:
        return
    if len(thresholds) != len(slots):
        raise InvalidInput(f"{len(thresholds)} thresholds for {len(slots)} clauses")
    own = ~np.isnan(thresholds)
    wrong = own & ~((thresholds > 0.0) & (thresholds <= 1.0))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise InvalidInput(
            f"clause {row}: threshold is {thresholds[row]}; expected a number greater than 0 and "
            f"at most 1"
        )
    order = np.argsort(slots, kind="stable")
    same_slot = slots[order[1:]] == slots[order[:-1]]
    comparable = np.where(own, thresholds, 2.0)[order]  # NaN is not even equal to itself
    if (same_slot & (comparable[1:] != comparable[:-1])).any():
        raise InvalidInput("the clauses of one subscription have different thresholds")
