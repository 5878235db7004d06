"""Matching a batch at a time, which shares the work of many messages.

A message by itself spends most of its time waiting for memory. In a batch there are two better
ways:

* **Through the trie, node by node** (:mod:`~earshot.indexes.block_trie.kernels.node_major`), for
  short messages. All pairs of a node and a message that reaches it are sorted by node.
* **Down the root list in groups** (:mod:`~earshot.indexes.block_trie.kernels.root_groups`), for
  long ones. 64 neighbours share one walk; a set of messages is a word.

:mod:`~earshot.indexes.block_trie.kernels.choosing` chooses. Single messages, and batches that are
small for what they look at, are matched message by message, as
:mod:`~earshot.indexes.block_trie.kernels.match` does.

**Counters** mean the same as for single messages: each block is counted for each message that looks
at it, also if a group reads it once. They differ in two ways. A batch may choose another way for a
message. And short lists of a node have their summaries read one after the other, not at once.

**Order.** Slots of a message come in no particular order, which is another than that of a single
message; the same batch gives the same order again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from earshot.indexes.answers import Counters, Matches
from earshot.indexes.block_trie.kernels.arrays import (
    N_CODES,
    N_EXACT_CODES,
    NO_CODE,
)
from earshot.indexes.block_trie.kernels.batch import find_answers, place_answers
from earshot.indexes.block_trie.kernels.batch_arrays import (
    SHORT_OF_FOUND,
    SHORT_OF_PENDING,
    SHORT_OF_SENT,
    BatchScratch,
    sizes_of,
)
from earshot.indexes.block_trie.kernels.choosing import (
    LONG,
    ROOT,
    TRIE,
    fill_least_batches,
    plan_batch,
)
from earshot.indexes.chunks import (
    is_steady_batch,
    n_answers_expected,
    rows_of_chunk,
    with_room,
)
from earshot.indexes.threads import Scratches
from earshot.kernels.box_keys import BLOCK
from earshot.kernels.steady import SteadyCalls
from earshot.model.arrays import MessageArrays

if TYPE_CHECKING:
    from earshot.indexes.block_trie.index import BlockTrie

CHUNK = 1 << 14
"""Messages that are matched together, at most; lists are shared by no more messages beyond."""
CHUNK_TOKENS = 1 << 19
"""Tokens of messages that are matched together, about: a bound for the answers kept aside."""
PAIRS_PER_MESSAGE = 24
CHECKS = 1 << 12
FIRST_ROOM = 1 << 17
"""Pending entries and slots sent that there is room for at first, and a 16th of slots found: more
than most batches need. What is not used is no memory yet."""

N_SAMPLED_MESSAGES = 64
SAMPLED_BATCH = 256
"""Messages from which on a sample of them decides. Below, short ones are taken to lie where clauses
do: the sample would take a tenth of their time."""

UInt8s = npt.NDArray[np.uint8]

WAYS = {"trie": TRIE, "groups": ROOT}
"""Ways of matching a batch by name, besides the chosen one: the path of all messages."""

_THROUGH_TRIE: UInt8s = np.full(2, TRIE, np.uint8)

_SHORT_OF = {
    SHORT_OF_FOUND: ("found",),
    SHORT_OF_PENDING: ("pending", "pending_rows", "pending_slots", "extras"),
    SHORT_OF_SENT: ("sent", "sent_to"),
}


class Batches:
    """What an index needs to match batches; made at the first one, neither copied nor saved."""

    def __init__(self) -> None:
        self._scratches = Scratches()
        self._calls = SteadyCalls(), SteadyCalls(), SteadyCalls()
        self._least_batches: list[int] | None = None  # see ``fill_least_batches``

    def paths(self, index: BlockTrie, messages: MessageArrays) -> UInt8s | None:
        """Return the paths of short and of long messages, or None where one by one costs less."""
        if index.way != "chosen":
            return np.full(2, WAYS[index.way], np.uint8)
        n_all, n_tokens = max(len(messages.boxes), 1), len(messages.token_ids)
        if n_all < SAMPLED_BATCH and n_tokens <= LONG * n_all:
            if self._least_batches is None:
                least = np.empty(LONG + 1, np.int64)
                fill_least_batches(index.arrays.costs, SAMPLED_BATCH, least)
                self._least_batches = least.tolist()
            return _THROUGH_TRIE if n_all >= self._least_batches[n_tokens // n_all] else None
        paths = np.zeros(2, np.uint8)
        n_batch = min(n_all, CHUNK, max(CHUNK_TOKENS * n_all // max(n_tokens, 1), 1))
        given = (
            index.arrays, messages, len(index.clauses.subscriptions), n_batch,
            min((n_all + 1) // 2, N_SAMPLED_MESSAGES), paths,
        )  # fmt: skip
        is_singly: bool = (
            self._calls[2](plan_batch, index.arrays, *given)
            if is_steady_batch(messages)
            else plan_batch(*given)
        )
        return None if is_singly else paths

    def match(
        self,
        index: BlockTrie,
        messages: MessageArrays,
        start: int,
        stop: int,
        paths: UInt8s,
    ) -> Matches:
        """Match messages ``start`` to ``stop`` with all subscriptions but those in the delta.

        Args:
            index: All that the messages are matched against.
            messages: All messages.
            start: The first.
            stop: One beyond the last.
            paths: The path of short messages, and of long ones.
        """
        scratch = self._scratches.take(lambda _: True, lambda: _new_scratch(index))
        view, n = index._view(), stop - start
        offsets = np.zeros(n + 1, np.int64)
        answers = np.empty(0, np.int32)
        work = np.zeros(2, np.int64)
        is_steady = is_steady_batch(messages)
        row = 0
        while row < n:
            n_rows = rows_of_chunk(messages, start + row, stop, CHUNK, CHUNK_TOKENS)
            given = (
                view, messages, start + row, n_rows, paths, scratch,
                offsets[row : row + n_rows + 1], work,
            )  # fmt: skip
            n_done, n_grouped = (
                self._calls[0](find_answers, (*view, *scratch), *given)
                if is_steady
                else find_answers(*given)
            )
            if n_done < 0:
                scratch = with_room(scratch, _SHORT_OF[n_done])
                continue
            answers = _with_place(
                answers, int(offsets[row]), int(offsets[row + n_done]), row, n_done, n
            )
            placed = (n_done, n_grouped, scratch, offsets[row : row + n_done + 1], answers)
            self._calls[1](place_answers, scratch, *placed)
            row += n_done
        self._scratches.give_back(scratch)
        answers = answers[: offsets[-1]]
        return Matches(offsets, answers, Counters(int(work[0]), int(work[1]), len(answers)))

    def __reduce__(self) -> Any:
        raise TypeError("batches are not copied")


def _with_place(
    answers: npt.NDArray[np.int32], n_before: int, n: int, row: int, n_done: int, n_rows: int
) -> npt.NDArray[np.int32]:
    """Return the answers with room for ``n``, and 16 more."""
    if n + BLOCK <= len(answers):
        return answers
    larger = np.empty(n_answers_expected(n, row + n_done, n_rows) + BLOCK, np.int32)
    larger[:n_before] = answers[:n_before]
    return larger


def _new_scratch(index: BlockTrie) -> BatchScratch:
    n_numbers = index.n_numbers
    longest = max(int(index.arrays.longest_list[0]), len(index.clauses.subscriptions))
    n_frontier = 2 * (longest // BLOCK + 2 * BLOCK)
    n_pairs = n_numbers + 1 + CHUNK * PAIRS_PER_MESSAGE
    of_chunk: dict[str, Any] = {
        name: np.zeros(size, dtype) for name, (size, dtype) in sizes_of(CHUNK).items()
    }
    senders, is_sent = np.zeros(N_CODES, np.uint64), np.zeros(N_CODES // 32, np.uint32)
    senders[NO_CODE] = ~np.uint64(0)  # it asks for nothing
    is_sent[NO_CODE >> 5] = 1 << (NO_CODE & 31)
    return BatchScratch(
        **of_chunk,
        stack=np.empty(n_numbers + 1, np.int32),
        frontier=np.empty(n_frontier, np.int32),
        pairs=np.empty(n_pairs, np.uint64),
        other_pairs=np.empty(n_pairs, np.uint64),
        pair_rows=np.empty(n_pairs, np.int32),
        run_starts=np.empty(n_pairs, np.int32),
        run_ends=np.empty(n_pairs, np.int32),
        found=np.empty(16 * FIRST_ROOM, np.int32),
        pending=np.empty(FIRST_ROOM, np.int32),
        pending_rows=np.empty(FIRST_ROOM, np.int32),
        pending_slots=np.empty(FIRST_ROOM, np.int32),
        extras=np.empty(FIRST_ROOM, np.int32),
        seen=np.zeros(index.n_base_slots if index.has_repeats else 0, np.uint64),
        senders=senders,
        is_sent=is_sent,
        owners=np.zeros(N_EXACT_CODES, np.int32),
        block_senders=np.empty(n_frontier, np.uint64),
        checks=np.empty(CHECKS, np.int32),
        check_senders=np.empty(CHECKS, np.uint64),
        check_ties=np.empty(CHECKS, np.uint64),
        sent=np.empty(FIRST_ROOM, np.int32),
        sent_to=np.empty(FIRST_ROOM, np.uint64),
    )
