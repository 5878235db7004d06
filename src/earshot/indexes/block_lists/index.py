"""``block_lists``, the default ranked index: lists of box keys for the tokens that can decide.

**Records.** Each clause is stored as a *record*: its required tokens, heaviest first, with their
shares of the clause's weight, and its box. Records are in spatial order, so what a message touches
lies close together. There are three groups:

* *always*: the threshold is so small that any message reaches it;
* *bare*: the threshold is at most alpha, so touching may be enough, without any common token;
* *other*: a common token is needed.

**Lists.** A clause stands in the *far* list of a token if it can qualify by text alone with this
token as its heaviest in the message: PRE'(s) of [TKDE15] section 6.2. One of the group *other* also
stands in the *near* lists of the tokens that can qualify it together with its place: PRE(s). Near
lists are in spatial order, as 64-bit box keys (:mod:`earshot.kernels.box_keys`) with summary keys
above. Beside an entry stand

* the clause's next token, where the clause cannot qualify without it (given that the list's token
  is its heaviest in the message); far lists are sorted by it;
* in near lists, the area that a range message must have to cover enough of the region.

Where a far list's token and the next one are all that a clause asks for, it stands in a *sure* list
instead, with its slot: most messages are far from it, and it is delivered without a look at it.

**Matching.** A message walks the bare records that touch it, and its tokens' lists; or, in place of
the near lists, the other records that touch it, where these are few or its tokens many. A record is
verified in the list of its heaviest token in the message, hence once. Those that the text alone
qualifies are delivered from far lists, all others from the rest. Exact coordinates are read where
the message has an area, or a quantised comparison is a tie.

**Batches** share this work among their messages; see :mod:`earshot.indexes.block_lists.batches`.

**Compared with the paper.** PRE and PRE' are as in [TKDE15], with strict bounds. Its nodes are
replaced by one spatially ordered list per token, and its two prefixes by two lists with a bound of
their own each, because most entries that a far message can reach are told by their next token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from earshot.indexes.answers import Matches
from earshot.indexes.block_lists.kernels.build import (
    fill_all_summaries,
    fill_group_needed,
    fill_postings,
    fill_records,
    place_summaries,
    sort_by_other_token,
)
from earshot.indexes.block_lists.kernels.match import (
    ALWAYS,
    BARE,
    CLAUSE,
    CODE_COLUMNS,
    DEAD,
    HEAD_COLUMNS,
    N_FLAGS,
    OTHER,
    PENDING,
    SLOT,
    BlockListsArrays,
    BlockListsScratch,
)
from earshot.indexes.block_trie.kernels.arrays import NO_CODE
from earshot.indexes.block_trie.kernels.build import fill_codes
from earshot.indexes.contract import BuildInput
from earshot.indexes.kernels.blocks import SIGNATURE_WORDS
from earshot.indexes.quantizing import quantizer_of
from earshot.indexes.ranked_contract import RankedIndex
from earshot.kernels.box_keys import BLOCK, DEAD_KEY, build_keys
from earshot.kernels.scoring import BOUND_SLACK, ScoringArrays
from earshot.model.arrays import Int32s, Int64s, MessageArrays

if TYPE_CHECKING:
    from earshot.indexes.block_lists.batches import Batches

SMALL_BATCH, SMALL_LONG_BATCH = 64, 32
"""Short and long messages below which a batch is matched one by one: a group, or half of one."""
LONG_TOKENS = 32
"""Tokens of a message, on average, from which on messages of a batch are long."""


class BlockLists(RankedIndex):
    """Near and far lists of tokens; counters: blocks and far lists read, entries compared."""

    name = "block_lists"
    arrays_type = BlockListsArrays

    way: str = "chosen"
    """How batches are matched; one of WAYS in :mod:`~earshot.indexes.block_lists.batches`."""

    _batches: Batches | None = None
    _positions: Int32s | None = None
    """Record of each clause, and its entry in a sure list or -1; made for the first removal."""

    @classmethod
    def _build_arrays(cls, given: BuildInput) -> BlockListsArrays:
        clauses, scoring = given.clauses, given.known
        n, n_tokens = len(clauses.subscriptions), len(scoring.weights)
        quantizer = quantizer_of(clauses.boxes, "planar")
        clause_keys = np.empty(n, np.uint64)
        build_keys(quantizer, clauses.boxes, 0, clause_keys)
        order, group_starts = _spatial_order(scoring, clause_keys)
        heads, record_boxes = np.empty((n, HEAD_COLUMNS), np.int32), np.empty((n, 4))
        record_data = np.empty(2 * int((clauses.token_ids >= 0).sum()))
        fill_records(clauses, scoring, order, heads, record_boxes, record_data)
        cuts = scoring.cuts[order]
        # Pieces may overlap, and then cover more of their region than the message has.
        areas = np.where(scoring.is_compound[order] != 0, 0.0, scoring.areas[order])
        is_uniform = len(clauses.thresholds) == 0 and n > 0
        arrays = BlockListsArrays(
            scoring=scoring,
            quantizer=quantizer,
            group_starts=group_starts,
            record_heads=heads.reshape(-1),
            record_cuts=cuts[:1].copy() if is_uniform else cuts,
            record_boxes=record_boxes,
            record_data=record_data,
            record_keys=np.append(clause_keys[order], np.full(BLOCK, DEAD_KEY)),
            record_summaries=np.empty(3, np.int64),
            record_codes=_record_codes(n - int(group_starts[OTHER])),
            group_needed=np.empty(3, np.float64),
            **_lists(0, np.zeros((3, n_tokens), np.int64)),
        )
        counts = np.zeros((3, n_tokens), np.int64)
        fill_group_needed(group_starts, cuts, areas, scoring.alpha[0], arrays.group_needed)
        fill_postings(arrays, cuts, areas, *counts, True)
        arrays = arrays._replace(**_lists(BLOCK, counts))
        n_summaries, longest = place_summaries(
            group_starts, arrays.near_offsets, arrays.record_summaries, arrays.near_summaries
        )
        arrays = arrays._replace(
            summary_keys=np.full(n_summaries + BLOCK, DEAD_KEY),
            longest_list=np.array([longest], np.int64),
        )
        ends = (arrays.near_offsets, arrays.sure_offsets, arrays.far_offsets)
        fill_postings(arrays, cuts, areas, *(each[:-1].copy() for each in ends), False)
        sort_by_other_token(arrays.sure_offsets, arrays.sure_records, arrays.sure_tokens)
        sort_by_other_token(arrays.far_offsets, arrays.far_records, arrays.far_tokens)
        arrays.sure_keys[: len(arrays.sure_records)] = arrays.record_keys[arrays.sure_records]
        arrays.sure_slots[:] = heads[arrays.sure_records, SLOT]
        arrays.far_keys[:] = arrays.record_keys[arrays.far_records]
        fill_all_summaries(arrays)
        return arrays

    def _new_scratch(self) -> BlockListsScratch:
        longest = int(self.arrays.longest_list[0])
        return BlockListsScratch(
            np.zeros(self.n_tokens, np.uint8),
            np.zeros(1, np.int64),
            self._new_last_seen(),
            np.zeros(SIGNATURE_WORDS, np.uint64),
            np.empty(PENDING, np.int32),
            np.empty(PENDING, np.uint8),
            np.empty(PENDING, np.int32),
            np.empty(4, np.int64),
            np.empty(2 * (longest // BLOCK + 2 * BLOCK), np.int32),
            np.zeros(1, np.int64),
        )

    def _match_rows(self, messages: MessageArrays, start: int, stop: int, scratch: Any) -> Matches:
        # All messages decide, whatever this thread's part is: then counters do not depend on it.
        n = len(messages.boxes)
        small = SMALL_BATCH if len(messages.token_ids) < LONG_TOKENS * n else SMALL_LONG_BATCH
        if self.way == "single" or (n < small and self.way == "chosen"):
            return super()._match_rows(messages, start, stop, scratch)
        # Not at the top: a command that matches two rows need not load it.
        from earshot.indexes.block_lists.batches import Batches  # noqa: PLC0415

        if self._batches is None:
            self._batches = Batches()
        are_grouped = np.ones(2, np.uint8)
        if self.way == "chosen":
            are_grouped = self._batches.plan(self, messages, scratch)
            if not are_grouped.any():
                return super()._match_rows(messages, start, stop, scratch)
        return self._batches.match(self, messages, start, stop, are_grouped, scratch)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_batches": None}

    def _bury(self, slots: Int32s) -> None:
        """Flag the records of the slots' clauses, and take them out of the sure lists."""
        if self._positions is None:
            n = len(self.clauses.subscriptions)
            self._positions = np.full((n, 2), -1, np.int32)
            records = np.arange(n, dtype=np.int32)
            self._positions[self._heads[:, CLAUSE], 0] = records
            sure = self._heads[self.arrays.sure_records, CLAUSE]
            self._positions[sure, 1] = np.arange(len(sure), dtype=np.int32)
        records, entries = self._positions[self.base_rows(slots)].T
        self._heads[records, N_FLAGS] |= DEAD
        self.arrays.record_keys[records] = DEAD_KEY
        self.arrays.sure_slots[entries[entries >= 0]] = -1

    @property
    def _heads(self) -> Int32s:
        heads: Int32s = self.arrays.record_heads.reshape(-1, HEAD_COLUMNS)
        return heads

    @property
    def nbytes(self) -> int:
        """Bytes of the structure; removal adds where each clause stands, at its first use."""
        positions = self._positions
        return super().nbytes + (0 if positions is None else int(positions.nbytes))


def _lists(padding: int, counts: Int64s) -> dict[str, Any]:
    """Return room for near, sure and far lists of the given lengths, and for what is above them."""
    near, sure, far = (np.append(0, np.cumsum(each)).astype(np.int64) for each in counts)
    n_near, n_sure, n_far = (int(offsets[-1]) for offsets in (near, sure, far))
    return {
        "near_offsets": near,
        "near_summaries": np.empty(counts.shape[1], np.int64),
        "near_keys": np.full(n_near + padding, DEAD_KEY),
        "near_records": np.empty(n_near, np.int32),
        "near_tokens": np.empty(n_near, np.int32),
        "near_needed": np.empty(n_near, np.float32),
        "near_least": np.full(counts.shape[1], np.inf, np.float32),
        "sure_offsets": sure,
        "sure_keys": np.full(n_sure + padding, DEAD_KEY),
        "sure_records": np.empty(n_sure, np.int32),
        "sure_slots": np.empty(n_sure, np.int32),
        "sure_tokens": np.empty(n_sure, np.int32),
        "far_offsets": far,
        "far_keys": np.empty(n_far, np.uint64),
        "far_records": np.empty(n_far, np.int32),
        "far_tokens": np.empty(n_far, np.int32),
        "summary_keys": np.empty(0, np.uint64),
        "longest_list": np.zeros(1, np.int64),
    }


def _record_codes(n: int) -> npt.NDArray[np.uint16]:
    """Return room for the codes of the tokens that can decide, which are none so far."""
    return np.full((n + BLOCK - 1) // BLOCK * BLOCK * CODE_COLUMNS, NO_CODE, np.uint16)


def _spatial_order(scoring: ScoringArrays, clause_keys: Any) -> tuple[Int32s, Int64s]:
    """Return the clauses group by group, each in spatial order, and where the groups begin."""
    least = scoring.cuts - BOUND_SLACK
    groups = np.where(least <= 0.0, ALWAYS, np.where(scoring.alpha[0] >= least, BARE, OTHER))
    codes = np.empty(len(clause_keys), np.int64)
    fill_codes(clause_keys, 0, codes)
    parts = [np.sort(codes[groups == group]) for group in (ALWAYS, BARE, OTHER)]
    starts = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
    return (np.concatenate(parts) & 0xFFFFFFFF).astype(np.int32), starts
