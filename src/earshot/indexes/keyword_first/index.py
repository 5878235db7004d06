"""``keyword_first``: inverted lists find clauses whose keywords match, then regions are checked.

The keyword-first baseline of [KDD13] §2.2 and [TKDE15] §2.3. It has no spatial pruning: its
candidates are all clauses that the message's text satisfies, wherever they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from earshot.indexes.answers import Counters, run_kernel
from earshot.indexes.contract import Index
from earshot.indexes.keyword_first.kernels.boolean import (
    KeywordFirstArrays,
    KeywordFirstScratch,
    build_keyword_first,
    match_keyword_first,
)
from earshot.model.arrays import ClauseArrays, Int32s, Int64s, MessageArrays


class KeywordFirst(Index):
    """Text first, place second; counters: lists read, clauses that satisfy the text."""

    name = "keyword_first"
    arrays_type = KeywordFirstArrays

    @classmethod
    def _build_arrays(
        cls, clauses: ClauseArrays, frequencies: Int64s, parameters: Any, n_threads: int
    ) -> KeywordFirstArrays:
        return KeywordFirstArrays(
            *build_keyword_first(clauses.token_offsets, clauses.token_ids, len(frequencies))
        )

    def _new_scratch(self) -> KeywordFirstScratch:
        return KeywordFirstScratch(
            np.zeros(self.n_tokens, np.uint8), np.array(self.arrays.n_counted)
        )

    def _match_rows(
        self, messages: MessageArrays, start: int, stop: int, scratch: KeywordFirstScratch
    ) -> tuple[Int64s, Int32s, Counters]:
        head = (self.arrays, self.clauses, self.alive, self.space == "lonlat")
        return run_kernel(match_keyword_first, head, messages, start, stop, scratch)
