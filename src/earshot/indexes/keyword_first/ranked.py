"""``keyword_first``, ranked: inverted lists add up the weights of common tokens, then place counts.

The keyword-first baseline of [TKDE15] section 2.3 under the scores of section 6. It has no spatial
pruning. Where a subscription's threshold is at most alpha, no list leads to it: it is scored
against every message.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from earshot.indexes.answers import Matches, run_scored_kernel
from earshot.indexes.keyword_first.kernels.ranked import (
    RankedKeywordFirstArrays,
    RankedKeywordFirstScratch,
    build_lists,
    match_ranked_keyword_first,
)
from earshot.indexes.ranked_contract import RankedIndex
from earshot.kernels.scoring import BOUND_SLACK, ScoringArrays
from earshot.model.arrays import ClauseArrays, MessageArrays


class RankedKeywordFirst(RankedIndex):
    """Text first, place second; counters: lists read, clauses scored."""

    name = "keyword_first"
    arrays_type = RankedKeywordFirstArrays

    @classmethod
    def _build_arrays(
        cls, clauses: ClauseArrays, scoring: ScoringArrays, parameters: Any, n_threads: int
    ) -> RankedKeywordFirstArrays:
        is_wordless = scoring.alpha[0] >= scoring.cuts - BOUND_SLACK
        list_offsets, entries = build_lists(
            clauses.token_offsets, clauses.token_ids, ~is_wordless, len(scoring.weights)
        )
        wordless = np.flatnonzero(is_wordless).astype(np.int32)
        return RankedKeywordFirstArrays(scoring, list_offsets, entries, wordless)

    def _new_scratch(self) -> RankedKeywordFirstScratch:
        n = len(self.clauses.subscriptions)
        return RankedKeywordFirstScratch(
            np.zeros(self.n_tokens, np.uint8),
            self._new_last_seen(),
            np.zeros(1, np.int64),
            np.zeros(n, np.float64),
            np.empty(n, np.int32),
        )

    def _match_rows(
        self, messages: MessageArrays, start: int, stop: int, scratch: RankedKeywordFirstScratch
    ) -> Matches:
        head = (self.arrays, self.clauses, self.alive, self.space == "lonlat")
        return run_scored_kernel(match_ranked_keyword_first, head, messages, start, stop, scratch)
