"""``block_trie``, the default index: a trie of rarest-first tokens over lists of box keys.

**Structure.** The required tokens of each clause are put in order of rising frequency. The trie's
first level has one node per rarest token; the clauses of a node stand in two lists:

* *complete*: their tokens are exactly the node's path, and their region is a box. A message that
  reaches the node and touches the box is an answer. Where a subscription has several clauses, the
  entry says so, and repeats are dropped when all answers of the message are known.
* *open*: something is left to verify: more tokens (the next one stands beside the entry, so most
  entries are dropped without touching the clause), forbidden tokens, a circle or polygon.

Where an open list is long, clauses that share their next token in sufficient number move to a child
node. Each list is in Hilbert order, a long one within classes of similar size, and stored as 64-bit
box keys (:mod:`earshot.kernels.box_keys`), sixteen of which are compared at once; above a list of
more than sixteen stand levels of summary keys, one per sixteen below. Those of both lists of a node
stand together, and mostly are compared at once. Above the trie, the *root list* holds all clauses
once more in spatial order, each with codes of its rarest tokens.

Most tokens lead to few entries. Their lists have no node, but a record of eight bytes by token:
where they start, how long they are and, of up to two open entries, some bits of the next tokens.

**Matching.** A message's box becomes one 64-bit limit. A histogram of the root list tells how many
of its blocks touch the message; where they cost less than following the tokens, the root list is
walked: every touching entry whose codes the message has is verified. Else each token opens its
lists, children whose token the message has follow, and long lists are walked from their top
summaries. All lists are asked for before the first is read. Exact coordinates are read only where a
quantised comparison is a tie.

**Batches** share this work among their messages; see :mod:`earshot.indexes.block_trie.batches`.

**Compared with the papers.** Rarest token first is KDD13's idf order and VLDBJ15's k-node without
its cuts; the trie's deeper levels are what R^t++ spreads over tree levels; the lists' summaries are
a packed R-tree as in KDD13's spatial-first method, per list instead of for all. Choosing between
text and space per message is CIKM15's idea; here a histogram and the mean length of lists tell what
either costs. Space is never cut into cells.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.errors import InvalidInput, InvalidParameter
from earshot.indexes.answers import Matches, merge_matches
from earshot.indexes.block_trie.costs import empty_tables, fill_tables
from earshot.indexes.block_trie.kernels.arrays import (
    CODE_COLUMNS,
    N_CODES,
    NO_CODE,
    ROOT_COLUMNS,
    BlockTrieArrays,
    BlockTrieScratch,
)
from earshot.indexes.block_trie.kernels.build import (
    build_nodes,
    build_roots,
    fill_codes,
    fill_lists,
    fill_root_list,
    find_kinds,
    place_summaries,
    sort_tokens_by_frequency,
)
from earshot.indexes.block_trie.kernels.burying import bury_clauses, clause_positions
from earshot.indexes.block_trie.kernels.lists import MESSAGE_WORDS
from earshot.indexes.block_trie.kernels.match import HITS, PENDING
from earshot.indexes.contract import BuildInput, Index, Parameters
from earshot.indexes.kernels.blocks import fill_summaries, n_summary_keys
from earshot.indexes.kernels.matching import View
from earshot.indexes.quantizing import quantizer_of
from earshot.kernels.box_keys import BLOCK, DEAD_KEY, Quantizer, build_keys
from earshot.model.arrays import Int32s, Int64s, MessageArrays

if TYPE_CHECKING:
    from earshot.indexes.block_trie.batches import Batches

CACHE_LINE = 64

MOST_CLAUSES = (2**31 - 1 - BLOCK) // 2
"""Each stands in two lists, whose entries have 32-bit numbers."""

SEARCHED_SHARE = 4
"""Share of all entries that a table of places takes as long as: one in so many is looked at."""

SMALL_BATCH = 32
"""Messages below which a batch is matched message by message; from there on, where each message
looks at little."""


@dataclass(frozen=True)
class BlockTrieParameters(Parameters):
    """When an open list is split.

    Attributes:
        split_above: Open lists of more entries are split by next token.
        min_child: Entries that must share a next token to get a node of their own.
    """

    split_above: int = 64
    min_child: int = 16

    def __post_init__(self) -> None:
        for name in ("split_above", "min_child"):
            if getattr(self, name) < 1:
                raise InvalidParameter(f"{name} is {getattr(self, name)}; expected 1 or more")


class ShortTokens(NamedTuple):
    """What is saved of the tokens; their frequencies in half of the room."""

    frequencies: Int32s  # (n_tokens,)


class BlockTrie(Index):
    """Trie of rarest-first tokens over lists of box keys."""

    name = "block_trie"
    parameters_type = BlockTrieParameters
    arrays_type = BlockTrieArrays
    tokens_type = ShortTokens
    reports_once = True
    matches_delta = True

    way: str = "chosen"
    """How batches are matched: one of ``WAYS`` of :mod:`earshot.indexes.block_trie.batches`, or
    ``single`` for message by message. The answers are the same."""

    _batches: Batches | None = None
    _empty_delta: View | None = None
    _clause_positions: Int32s | None = None
    """Where each clause stands in a node's list and in the root list."""
    _n_steps: int = 0
    """Steps that were taken to search for clauses without it."""

    @classmethod
    def _keep_frequencies(cls, frequencies: Int64s) -> Int32s:
        # They put tokens in order, no more.
        return np.minimum(frequencies, np.iinfo(np.int32).max).astype(np.int32)

    @classmethod
    def _build_arrays(cls, given: BuildInput) -> BlockTrieArrays:
        clauses, counts, parameters, n_threads, _ = given
        frequencies = cls._keep_frequencies(counts)  # clauses are searched for by these
        n = len(clauses.subscriptions)
        if n > MOST_CLAUSES:
            raise InvalidInput(
                f"{n:,} clauses are more than the {MOST_CLAUSES:,} that block_trie can number; "
                f"split the subscriptions into several engines"
            )
        sorted_tokens = np.empty(len(clauses.token_ids), np.int32)
        n_required = np.empty(n, np.int32)
        sort_tokens_by_frequency(clauses, frequencies, sorted_tokens, n_required)
        n_slots = int(clauses.subscriptions.max(initial=-1)) + 1
        kinds = np.empty(n, np.uint8)
        in_order = find_kinds(clauses, n_required, n_slots, kinds)
        # What is needed for building alone lies where arrays are filled later, so that there is
        # little beside them: the order of the lists among the rows of entries, codes among keys.
        entry_rows = np.zeros(2 * n + BLOCK, np.int32)
        order = entry_rows[:n]
        root_starts = build_roots(clauses.token_offsets, sorted_tokens, len(frequencies), order)
        roots, node_tokens, nodes, depths = build_nodes(
            order, root_starts, clauses.token_offsets, sorted_tokens, n_required, kinds,
            parameters.split_above, parameters.min_child,
        )  # fmt: skip
        n_summaries, longest = place_summaries(nodes)
        n_blocks = (n + BLOCK - 1) // BLOCK
        slot_clauses = np.empty(0 if in_order else n_slots, np.int32)
        if not in_order:
            slot_clauses[clauses.subscriptions] = np.arange(n, dtype=np.int32)
        arrays = BlockTrieArrays(
            quantizer=quantizer_of(clauses.boxes, "planar"),
            costs=empty_tables(n),
            roots=roots,
            node_tokens=node_tokens,
            nodes=_at_cache_line(nodes.reshape(-1)),
            keys=np.full(2 * n + BLOCK, DEAD_KEY),
            entry_rows=entry_rows,
            entry_tokens=np.full(n + BLOCK, -1, np.int32),
            root_codes=np.full(n_blocks * BLOCK * CODE_COLUMNS, NO_CODE, np.uint16),
            root_checks=np.zeros(n_blocks, np.uint16),
            summary_keys=np.full(n_summaries + n_summary_keys(n) + BLOCK, DEAD_KEY),
            slot_clauses=slot_clauses,
            longest_list=np.array([longest], np.int64),
            root_summary=np.array([n_summaries], np.int64),
        )
        clause_keys = np.empty(n, np.uint64)
        codes = arrays.keys[n : 2 * n].view(np.int64)
        tokens = (clauses.token_offsets, sorted_tokens, n_required, kinds)

        def fill_keys(start: int, stop: int) -> None:
            build_keys(arrays.quantizer, clauses.boxes, start, clause_keys[start:stop])
            fill_codes(clause_keys, start, codes[start:stop])

        def fill_nodes(start: int, stop: int) -> None:
            fill_lists(
                arrays, depths, order, codes, clause_keys, *tokens,
                clauses.subscriptions, start, stop,
            )  # fmt: skip

        def fill_blocks(start: int, stop: int) -> None:
            first, last = start * BLOCK, min(stop * BLOCK, n)
            fill_root_list(arrays, codes, clause_keys, *tokens, first, last)

        with ThreadPoolExecutor(n_threads) as pool:
            list(pool.map(fill_keys, *_cut(n, n_threads)))
            n_numbers = len(nodes) + len(roots) // ROOT_COLUMNS
            list(pool.map(fill_nodes, *_cut(n_numbers, 16 * n_threads)))
            codes.sort()
            list(pool.map(fill_blocks, *_cut(n_blocks, n_threads)))
        fill_summaries(arrays.keys, n, n, arrays.summary_keys, n_summaries)
        fill_tables(arrays, clauses.boxes, frequencies)
        return arrays

    @property
    def n_numbers(self) -> int:
        """Number of nodes and tokens."""
        return len(self.arrays.node_tokens) + len(self.arrays.roots) // ROOT_COLUMNS

    def _quantizer(self) -> Quantizer:
        quantizer: Quantizer = self.arrays.quantizer
        return quantizer

    def _new_scratch(self) -> BlockTrieScratch:
        longest = max(int(self.arrays.longest_list[0]), len(self.clauses.subscriptions))
        n_frontier = 2 * (longest // BLOCK + 2 * BLOCK)
        n_delta_tokens, n_delta_slots = self._delta_sizes()
        return BlockTrieScratch(
            np.zeros(max(self.n_tokens, n_delta_tokens + n_delta_tokens // 8), np.uint8),
            np.zeros(N_CODES // 32, np.uint32),
            np.zeros(MESSAGE_WORDS, np.uint32),
            np.zeros(MESSAGE_WORDS, np.uint32),
            np.empty(PENDING, np.int32),
            np.empty(n_frontier, np.int32),
            np.empty(self.n_numbers + 1, np.int32),
            np.empty(n_frontier + HITS, np.int32),
            np.empty(n_frontier + HITS, np.int32),
            np.empty(n_frontier + HITS, np.int32),
            np.zeros(self.n_base_slots // 64 + 1 if self.has_repeats else 0, np.uint64),
            np.zeros(2 * n_delta_slots, np.int64),
            np.zeros(1, np.int64),
        )

    def _match_rows(self, messages: MessageArrays, start: int, stop: int, scratch: Any) -> Matches:
        # All messages decide, whatever this thread's part is: then counters do not depend on it.
        n = len(messages.boxes)
        if self.way == "single" or (n < SMALL_BATCH and self.way == "chosen"):
            return super()._match_rows(messages, start, stop, scratch)
        if self._batches is None:
            # Not at the top: a command that matches two rows need not load it.
            from earshot.indexes.block_trie.batches import Batches  # noqa: PLC0415

            self._batches = Batches()
        paths = self._batches.paths(self, messages)
        if paths is None:
            return super()._match_rows(messages, start, stop, scratch)
        found = self._batches.match(self, messages, start, stop, paths)
        if self.delta is None:
            return found
        return merge_matches(found, self.delta.match_rows(messages, start, stop))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_batches": None}

    def _fits(self, scratch: BlockTrieScratch) -> bool:
        n_delta_tokens, n_delta_slots = self._delta_sizes()
        return len(scratch.marks) >= n_delta_tokens and (
            len(scratch.delta_last_seen) >= n_delta_slots
        )

    def _delta_sizes(self) -> tuple[int, int]:
        return (0, 0) if self.delta is None else (self.delta.n_tokens, self.delta.n_slots)

    def _view(self) -> View:
        if self.delta is None and self._empty_delta is None:
            self._empty_delta = self._new_delta().view()
        delta = self._empty_delta if self.delta is None else self.delta.view()
        return super()._view()._replace(delta=delta)

    def _bury(self, slots: Int32s) -> None:
        """Overwrite the keys of the slots' clauses, so that no test finds them any more.

        The first ones are searched for. A table of all places is made when that has taken as long.
        """
        rows = self.base_rows(slots)
        if self._clause_positions is None:
            n_clauses = len(self.clauses.subscriptions)
            most_steps = n_clauses // SEARCHED_SHARE - self._n_steps
            self._n_steps += bury_clauses(
                self.arrays, self.clauses, self.frequencies, rows, most_steps
            )
            if self._n_steps < n_clauses // SEARCHED_SHARE:
                return
            self._clause_positions = clause_positions(self.arrays, self.clauses.subscriptions)
        self.arrays.keys[self._clause_positions[rows]] = DEAD_KEY

    def base_rows(self, slots: Int32s) -> npt.NDArray[Any]:
        """Return the rows of the base clauses that belong to the slots."""
        return slots if len(self.arrays.slot_clauses) == 0 else super().base_rows(slots)

    @property
    def nbytes(self) -> int:
        """Bytes of the structure; removal adds where each clause stands, at its first use."""
        positions = self._clause_positions
        return super().nbytes + (0 if positions is None else int(positions.nbytes))


def _at_cache_line(array: Int32s) -> Int32s:
    """Return a copy that begins at a cache line, so that no node straddles two."""
    room = np.empty(array.nbytes + CACHE_LINE, np.uint8)
    start = -room.ctypes.data % CACHE_LINE
    copy: Int32s = room[start : start + array.nbytes].view(array.dtype)
    copy[:] = array
    return copy


def _cut(n: int, n_parts: int) -> tuple[list[int], list[int]]:
    """Return starts and stops of about equal parts of ``n`` things."""
    cuts = np.linspace(0, n, n_parts + 1).astype(int).tolist()
    return cuts[:-1], cuts[1:]
