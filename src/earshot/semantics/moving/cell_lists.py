"""The rivals of the AP+-Tree: SS-Index, KK-Index, IQ+ and RQ+, lists by cell and word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from earshot.indexes.iq_tree.kernels.changes import new_choice
from earshot.indexes.iq_tree.kernels.cost import N_HITS, count_hits
from earshot.indexes.quadtree.index import check_number, check_whole
from earshot.indexes.quadtree.tables import frame_of
from earshot.kernels.growing import resized, with_room
from earshot.model.arrays import Float64s, Int64s, Space
from earshot.semantics.moving.contract import Structure
from earshot.semantics.moving.kernels.arrays import LIVE, N_LIVE, N_ROWS, Tables
from earshot.semantics.moving.kernels.cell_lists import (
    MOST_ENTRIES,
    N_CELL_FACTS,
    N_PUT,
    N_SEEN,
    N_SEEN_BEFORE,
    CellListsArrays,
    fill_rows,
    fill_slots,
)
from earshot.semantics.moving.kernels.hashed_lists import (
    BLOCK,
    FREE_BLOCK,
    FREE_LIST,
    N_BLOCKS,
    N_FREE_BLOCKS,
    N_HASH_FACTS,
    N_HELD,
    HashedLists,
    WordLists,
    fill_places,
)
from earshot.semantics.moving.kernels.lists import choose_tokens
from earshot.semantics.moving.tables import live_rows

LEAST = 4096
"""Subscriptions, or messages, up to which nothing is built anew."""
CELLS_OF_KEYS = 2000
"""Cells of box keys on each axis: few, as each move looks for its own."""
_MORE_MESSAGES = 8
"""So many times as many messages as were seen by then say more about which words are rare."""
_MOST_SAMPLED = 20_000


@dataclass(frozen=True)
class CellLists(Structure):
    """Lists by cell and word: what the four rivals have in common."""

    arrays_type = CellListsArrays
    is_by_word: ClassVar[bool]
    """Whether the lists of a word form a group, else those of a cell do."""

    def _levels(self) -> Int64s:
        """Return the columns of each level of cells."""
        raise NotImplementedError

    def _costs(self) -> tuple[float, int] | None:
        """Return cost of an entry and depth of the smallest cells, if a cost model chooses them."""
        return None

    def build(
        self, tables: Tables, space: Space, held: CellListsArrays | None = None
    ) -> CellListsArrays:
        """Return arrays with every live subscription and message."""
        arrays = self._empty(tables)
        if held is not None:
            arrays.facts[N_SEEN] = arrays.facts[N_SEEN_BEFORE] = held.facts[N_SEEN]
        slot, n = 0, len(tables.subscribers.flags)
        while (slot := fill_slots(arrays, tables, slot)) < n:
            arrays = self.with_room(arrays, tables)
        arrays.facts[N_PUT] = 0
        return self._with_messages(arrays, tables)

    def messages_alone(self, tables: Tables) -> CellListsArrays:
        """Return arrays with every live message, and the key of every subscription."""
        arrays, subscribers = self._empty(tables), tables.subscribers
        clauses = np.arange(len(arrays.clause_tokens), dtype=np.int32)
        choose_tokens(arrays, subscribers, tables.messages, clauses, arrays.clause_tokens)
        return self._with_messages(arrays, tables)

    def _with_messages(self, arrays: CellListsArrays, tables: Tables) -> CellListsArrays:
        row = 0
        while (row := fill_rows(arrays, tables, row)) < tables.messages.facts[N_ROWS]:
            arrays = self.with_room(arrays, tables)
        return arrays

    def _empty(self, tables: Tables) -> CellListsArrays:
        """Return arrays without entries."""
        subscribers, messages = tables.subscribers, tables.messages
        rows = live_rows(messages)
        live = np.flatnonzero(subscribers.flags & LIVE)
        boxes = np.concatenate([subscribers.regions.boxes[live, :4], messages.boxes[rows]])
        frame, costs = frame_of(boxes), self._costs()
        columns = self._levels()
        firsts = np.concatenate([[0], np.cumsum(columns**2)])
        n_tokens = len(messages.n_having)
        n_groups = n_tokens + 1 if self.is_by_word else int(firsts[-1]) + 1
        hits = np.zeros(0 if costs is None else N_HITS)
        if costs is not None:
            count_hits(frame, _sampled(messages.boxes[rows]), hits)
        return CellListsArrays(
            np.zeros(N_CELL_FACTS, np.int64),
            np.array([self.is_by_word, costs is not None, *(costs or (0.0, 0))], np.float64),
            frame, columns, firsts[:-1],
            messages.n_having / max(1, int(messages.facts[N_LIVE])), hits,
            np.zeros(n_tokens, np.int32),
            np.zeros(len(subscribers.clause_slots), np.int32),
            np.zeros((len(subscribers.flags), 4), np.int32),
            np.zeros(len(messages.ends), np.int32),
            _no_lists(n_groups), _no_lists(n_groups),
            np.zeros(MOST_ENTRIES, np.int64), np.zeros(MOST_ENTRIES, np.int64), new_choice(),
        )  # fmt: skip

    def with_room(self, arrays: CellListsArrays, tables: Tables) -> CellListsArrays:
        """Return arrays with more room wherever there is little left."""
        subscribers, n_tokens = tables.subscribers, len(tables.messages.n_having)
        n_groups = n_tokens + 1 if self.is_by_word else 0
        least = arrays.shares[arrays.shares > 0].min(initial=1.0) if len(arrays.shares) else 1.0
        return arrays._replace(
            shares=with_room(arrays.shares, n_tokens, least),
            list_lengths=with_room(arrays.list_lengths, n_tokens),
            clause_tokens=with_room(arrays.clause_tokens, len(subscribers.clause_slots)),
            slot_grids=with_room(arrays.slot_grids, len(subscribers.flags)),
            row_entries=with_room(arrays.row_entries, len(tables.messages.ends)),
            subscriptions=_larger(arrays.subscriptions, n_groups),
            messages=_larger(arrays.messages, n_groups),
        )

    def is_due(self, arrays: CellListsArrays, tables: Tables) -> bool:
        """Whether many have come since all was built, or more is known of words and places."""
        facts = arrays.facts
        n_clauses = int(arrays.list_lengths.sum())
        if facts[N_PUT] > max(LEAST, n_clauses):
            return True
        return knows_more(n_clauses, int(facts[N_SEEN]), int(facts[N_SEEN_BEFORE]))


@dataclass(frozen=True)
class _GridLists(CellLists):
    """Lists by cell of a grid and word.

    Attributes:
        n_columns: Columns of the grid, and rows.
    """

    n_columns: int = 40

    def __post_init__(self) -> None:
        check_whole("n_columns", self.n_columns, 1, 1000)

    def _levels(self) -> Int64s:
        return np.array([self.n_columns], np.int64)


@dataclass(frozen=True)
class SsIndex(_GridLists):
    """A grid of subscriptions and messages, lists by word in each cell; a rival in the paper."""

    name = "ss_index"
    is_by_word = False


@dataclass(frozen=True)
class KkIndex(_GridLists):
    """Lists of subscriptions and messages by word, each with a grid; a rival in the paper."""

    name = "kk_index"
    is_by_word = True


@dataclass(frozen=True)
class _TreeLists(CellLists):
    """Lists by cell of a quadtree and word.

    Attributes:
        posting_cost: Cost of an entry of a list, in verifications per message.
        max_depth: Depth of the smallest cells.
    """

    posting_cost: float = 1e-4
    max_depth: int = 8

    def __post_init__(self) -> None:
        check_number("posting_cost", self.posting_cost, 1e-12, 1e6)
        check_whole("max_depth", self.max_depth, 1, 10)

    def _levels(self) -> Int64s:
        return np.left_shift(1, np.arange(self.max_depth + 1, dtype=np.int64))

    def _costs(self) -> tuple[float, int]:
        return self.posting_cost, self.max_depth


@dataclass(frozen=True)
class IqPlus(_TreeLists):
    """The cells of the IQ-Tree, each with lists by word; a rival in the paper."""

    name = "iq_plus"
    is_by_word = False


@dataclass(frozen=True)
class RqPlus(_TreeLists):
    """The RQ-Tree, which has the IQ-Tree's cells for each word; a rival in the paper."""

    name = "rq_plus"
    is_by_word = True


def knows_more(n_clauses: int, n_seen: int, n_before: int) -> bool:
    """Whether messages have told so much more of words and places that all is worth building anew.

    Args:
        n_clauses: Alternatives that there are.
        n_seen: Messages so far.
        n_before: Messages by the time when all was built.
    """
    return n_clauses > LEAST and n_seen > max(LEAST, _MORE_MESSAGES * n_before)


def _sampled(boxes: Float64s) -> Float64s:
    """Return boxes of some messages, none across the antimeridian."""
    boxes = boxes[:: len(boxes) // _MOST_SAMPLED + 1]
    return np.ascontiguousarray(boxes[boxes[:, 0] <= boxes[:, 2]])


def _no_lists(n_groups: int) -> HashedLists:
    nothing = np.zeros(0, np.int32)
    none = HashedLists(
        no_list_facts(), np.zeros((0, 2), np.int64), np.zeros((0, 2), np.int64),
        np.zeros(0, np.int64), nothing, nothing, np.full(n_groups, -1, np.int32),
        np.zeros(n_groups, np.int32), nothing, np.zeros(0, np.int64), np.zeros(BLOCK, np.int64),
    )  # fmt: skip
    return _larger(none, n_groups)


def no_list_facts() -> Int64s:
    """Return the facts of lists in blocks that have no entry."""
    facts = np.zeros(N_HASH_FACTS, np.int64)
    facts[FREE_LIST] = facts[FREE_BLOCK] = -1
    return facts


def no_words() -> WordLists:
    """Return lists of words without messages."""
    return WordLists(
        no_list_facts(), np.zeros((0, 2), np.int64), np.zeros(0, np.int32), np.zeros(0, np.int64),
        np.zeros(BLOCK, np.int64),
    )  # fmt: skip


def with_blocks(lists: Any, n_more: int) -> Any:
    """Return lists with room for so many more blocks."""
    facts, n_now = lists.list_facts, len(lists.block_next)
    wanted = int(facts[N_BLOCKS] - facts[N_FREE_BLOCKS]) + n_more
    if wanted <= n_now:
        return lists
    n = max(wanted, n_now * 3 // 2)
    return lists._replace(
        block_next=resized(lists.block_next, n),
        block_entries=resized(lists.block_entries, n * BLOCK),
    )


def _larger(hashed: HashedLists, n_groups: int) -> HashedLists:
    """Return the lists with room for as many entries as anything may have."""
    n_lists, n_held = int(hashed.list_facts[N_HELD]) + MOST_ENTRIES, len(hashed.list_keys)
    more: dict[str, Any] = {
        "group_heads": with_room(hashed.group_heads, n_groups, -1),
        "group_sizes": with_room(hashed.group_sizes, n_groups),
    }
    if n_lists > n_held:
        n = max(n_lists, n_held + n_held // 2)
        more["list_keys"] = resized(hashed.list_keys, n, -1)
        for name in ("lists", "list_next", "list_before"):
            more[name] = resized(getattr(hashed, name), n)
    larger: HashedLists = with_blocks(hashed._replace(**more), MOST_ENTRIES)
    if 2 * n_lists > len(hashed.places):
        n = 1 << (2 * n_lists - 1).bit_length()
        larger = larger._replace(places=np.full((n, 2), -1, np.int64))
        fill_places(larger)
    return larger
