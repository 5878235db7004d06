"""``keyword_first``: inverted lists find clauses whose keywords match, then regions are checked.

The keyword-first baseline of [KDD13] §2.2 and [TKDE15] §2.3. It has no spatial pruning: its
candidates are all clauses that the message's text satisfies, wherever they are.

Ranked, under the scores of [TKDE15] §6, the lists add up the weights of common tokens. Where a
subscription's threshold is at most alpha, no list leads to it: it is scored against every message.
"""

from __future__ import annotations

import numpy as np

from earshot.indexes.contract import BuildInput, Index
from earshot.indexes.keyword_first.kernels import (
    KeywordFirstArrays,
    KeywordFirstScratch,
    RankedKeywordFirstArrays,
    RankedKeywordFirstScratch,
    build_keyword_first,
    build_lists,
)
from earshot.indexes.ranked_contract import RankedIndex
from earshot.kernels.scoring import BOUND_SLACK


class KeywordFirst(Index):
    """Text first, place second; counters: lists read, clauses that satisfy the text."""

    name = "keyword_first"
    arrays_type = KeywordFirstArrays

    @classmethod
    def _build_arrays(cls, given: BuildInput) -> KeywordFirstArrays:
        clauses, n_tokens = given.clauses, len(given.known)
        return KeywordFirstArrays(
            *build_keyword_first(clauses.token_offsets, clauses.token_ids, n_tokens)
        )

    def _new_scratch(self) -> KeywordFirstScratch:
        return KeywordFirstScratch(
            np.zeros(self.n_tokens, np.uint8),
            np.zeros(1, np.int64),
            np.array(self.arrays.n_counted),
        )


class RankedKeywordFirst(RankedIndex):
    """Text first, place second, by weights; counters: lists read, clauses scored."""

    name = "keyword_first"
    arrays_type = RankedKeywordFirstArrays

    @classmethod
    def _build_arrays(cls, given: BuildInput) -> RankedKeywordFirstArrays:
        clauses, scoring = given.clauses, given.known
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
            np.zeros(1, np.int64),
            self._new_last_seen(),
            np.zeros(n, np.float64),
            np.empty(n, np.int32),
        )
