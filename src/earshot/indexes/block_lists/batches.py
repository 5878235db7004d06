"""Matching a batch at a time, which shares the work of many messages.

A message by itself compares the records it touches, or its tokens' lists, with itself alone. In a
batch, neighbours walk the records in groups of 64, and each record is looked at once for all of
them (:mod:`~earshot.indexes.block_lists.kernels.groups`). That serves what a message finds by its
place. What it finds by its text alone, in sure and far lists, it still looks for by itself; so do
messages with an area, since a region gives each of them another score.

**Single messages.** :mod:`~earshot.indexes.block_lists.kernels.choosing` tells where groups cost
less; elsewhere messages are matched one by one, as
:mod:`~earshot.indexes.block_lists.kernels.match` does.

**Counters** mean the same as for single messages: each block is counted for each message that looks
at it, also if a group reads it once. A grouped message looks at records, where it may have chosen
near lists by itself.

**Order.** Slots of a message come in no particular order, which is another than that of a single
message; the same batch gives the same order again. Scores are the same, to the last bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from earshot.indexes.answers import Counters, Matches
from earshot.indexes.block_lists.kernels.choosing import is_small, plan_batch
from earshot.indexes.block_lists.kernels.groups import (
    LONG,
    LOT,
    SHORT_OF_CHECKED,
    SHORT_OF_CHECKS,
    SHORT_OF_FOUND,
    SHORT_OF_SENT,
    GroupsScratch,
    find_answers,
    place_answers,
)
from earshot.indexes.block_trie.kernels.arrays import N_CODES, N_EXACT_CODES, NO_CODE
from earshot.indexes.block_trie.kernels.vectors import GROUP
from earshot.indexes.chunks import (
    is_steady_batch,
    n_answers_expected,
    rows_of_chunk,
    with_room,
)
from earshot.indexes.kernels.matching import ScoredAnswers
from earshot.indexes.threads import Scratches
from earshot.kernels.box_keys import BLOCK
from earshot.kernels.steady import SteadyCalls
from earshot.model.arrays import MessageArrays

if TYPE_CHECKING:
    from earshot.indexes.block_lists.index import BlockLists

CHUNK = 1 << 14
"""Messages that are matched together, at most; groups become no smaller beyond."""
CHUNK_TOKENS = 1 << 19
"""Tokens of messages that are matched together, about: a bound for the answers kept aside."""
FIRST_ROOM = 1 << 17
"""Answers and records to verify that there is room for at first; what is not used is no memory."""

WAYS = ("single", "groups", "chosen")
"""Ways of matching a batch, by name."""

UInt8s = npt.NDArray[np.uint8]

_SHORT_OF = {
    SHORT_OF_FOUND: ("found_slots", "found_scores"),
    SHORT_OF_SENT: ("sent", "sent_to", "sent_scores"),
    SHORT_OF_CHECKS: ("checks", "check_senders"),
    SHORT_OF_CHECKED: ("checked",),
}


class Batches:
    """What an index needs to match batches; made at the first one, neither copied nor saved."""

    def __init__(self) -> None:
        self._scratches = Scratches()
        self._calls = SteadyCalls(), SteadyCalls(), SteadyCalls(), SteadyCalls()

    def plan(self, index: BlockLists, messages: MessageArrays, single: Any) -> UInt8s:
        """Return whether short messages go in groups, and long ones.

        Args:
            index: All that the messages are matched against.
            messages: All messages.
            single: Working memory of messages one by one.
        """
        are_grouped = np.zeros(2, np.uint8)
        n = len(messages.boxes)
        mean_tokens = len(messages.token_ids) / n
        has_short = mean_tokens < LONG / 4  # and hardly any long one
        if has_short and self._calls[3](is_small, index.arrays, index.arrays, n):
            return are_grouped
        scratch, view = self._take_scratch(index), index._view()
        most_together = min(CHUNK, max(int(CHUNK_TOKENS / max(mean_tokens, 1.0)), 1))
        given = (
            view, messages, most_together, scratch, single, np.zeros(2, np.int64), are_grouped,
        )  # fmt: skip
        if is_steady_batch(messages):
            self._calls[2](plan_batch, (*view, *scratch, *single), *given)
        else:
            plan_batch(*given)
        self._scratches.give_back(scratch)
        return are_grouped

    def match(
        self,
        index: BlockLists,
        messages: MessageArrays,
        start: int,
        stop: int,
        are_grouped: UInt8s,
        single: Any,
    ) -> Matches:
        """Match messages ``start`` to ``stop`` with all subscriptions but those in the delta.

        Args:
            index: All that the messages are matched against.
            messages: All messages.
            start: The first.
            stop: One beyond the last.
            are_grouped: Whether short messages go in groups, and long ones.
            single: Working memory of messages one by one.
        """
        scratch = self._take_scratch(index)
        view, n = index._view(), stop - start
        offsets = np.zeros(n + 1, np.int64)
        answers = ScoredAnswers(np.empty(0, np.int32), np.empty(0))
        work = np.zeros(2, np.int64)
        is_steady = is_steady_batch(messages)
        row = 0
        while row < n:
            n_rows = rows_of_chunk(messages, start + row, stop, CHUNK, CHUNK_TOKENS)
            given = (
                view, messages, start + row, n_rows, are_grouped, scratch, single,
                offsets[row : row + n_rows + 1], work,
            )  # fmt: skip
            n_grouped = (
                self._calls[0](find_answers, (*view, *scratch, *single), *given)
                if is_steady
                else find_answers(*given)
            )
            if n_grouped < 0:
                scratch = with_room(scratch, _SHORT_OF[n_grouped])
                continue
            first, row = row, row + n_rows
            if offsets[row] > len(answers.slots):
                n_expected = n_answers_expected(int(offsets[row]), row, n)
                answers = _with_place(answers, int(offsets[first]), n_expected)
            placed = (n_rows, n_grouped, scratch, offsets[first : row + 1], answers)
            self._calls[1](place_answers, (*scratch, *answers), *placed)
        self._scratches.give_back(scratch)
        slots, scores = answers.slots[: offsets[-1]], answers.scores[: offsets[-1]]
        return Matches(offsets, slots, Counters(int(work[0]), int(work[1]), len(slots)), scores)

    def _take_scratch(self, index: BlockLists) -> GroupsScratch:
        scratch: GroupsScratch = self._scratches.take(lambda _: True, lambda: _new_scratch(index))
        return scratch

    def __reduce__(self) -> Any:
        raise TypeError("batches are not copied")


def _with_place(answers: ScoredAnswers, n_before: int, n: int) -> ScoredAnswers:
    """Return room for ``n`` answers, with the first ``n_before`` of those that are there."""
    larger = ScoredAnswers(np.empty(n, np.int32), np.empty(n))
    larger.slots[:n_before] = answers.slots[:n_before]
    larger.scores[:n_before] = answers.scores[:n_before]
    return larger


def _new_scratch(index: BlockLists) -> GroupsScratch:
    n_frontier = 2 * (int(index.arrays.longest_list[0]) // BLOCK + 2 * BLOCK)
    senders, is_sent = np.zeros(N_CODES, np.uint64), np.zeros(N_CODES // 32, np.uint32)
    senders[NO_CODE] = ~np.uint64(0)  # it asks for nothing
    is_sent[NO_CODE >> 5] = 1 << (NO_CODE & 31)
    return GroupsScratch(
        limits=np.empty(CHUNK, np.uint64),
        codes=np.empty(CHUNK, np.uint64),
        other_codes=np.empty(CHUNK, np.uint64),
        counts=np.empty((1 << 11) + 1, np.int64),
        single_rows=np.empty(CHUNK, np.int32),
        group_rows=np.empty(CHUNK, np.int32),
        group_limits=np.empty(GROUP, np.uint64),
        frontier=np.empty(n_frontier, np.int32),
        block_senders=np.empty(n_frontier, np.uint64),
        senders=senders,
        is_sent=is_sent,
        owners=np.zeros(N_EXACT_CODES, np.int32),
        tallies=np.zeros(GROUP, np.uint8),
        cursors=np.empty(GROUP, np.int64),
        lot=np.empty(LOT, np.int32),
        lot_senders=np.empty(LOT, np.uint64),
        lot_sure=np.empty(LOT, np.uint64),
        sets=np.empty(GROUP, np.uint64),
        shares=np.empty(GROUP),
        sent=np.empty(FIRST_ROOM, np.int32),
        sent_to=np.empty(FIRST_ROOM, np.uint64),
        sent_scores=np.empty(FIRST_ROOM),
        group_ends=np.empty(CHUNK, np.int64),
        group_counts=np.empty(CHUNK, np.int64),
        checks=np.empty(FIRST_ROOM, np.int32),
        check_senders=np.empty(FIRST_ROOM, np.uint64),
        check_ends=np.empty(CHUNK, np.int64),
        checked=np.empty(FIRST_ROOM, np.int32),
        checked_offsets=np.empty(CHUNK + 2, np.int64),
        found_slots=np.empty(FIRST_ROOM, np.int32),
        found_scores=np.empty(FIRST_ROOM),
        run_starts=np.empty(CHUNK, np.int64),
        run_ends=np.empty(CHUNK, np.int64),
    )
