"""The default: subscriptions in lists by their rarest word, live messages in a quadtree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from earshot.indexes.quantizing import quantizer_of
from earshot.kernels.box_keys import Quantizer, fill_steps
from earshot.kernels.growing import with_room
from earshot.model.arrays import Float64s, Int32s, Space
from earshot.semantics.moving.cell_lists import CELLS_OF_KEYS, no_words, with_blocks
from earshot.semantics.moving.contract import Structure
from earshot.semantics.moving.kernels.arrays import LIVE, N_ROWS, Tables
from earshot.semantics.moving.kernels.hashed_lists import NOT_KEPT
from earshot.semantics.moving.kernels.lists import (
    FULL,
    FULL_CLASS,
    LEAST_CLASS,
    LIST_BUILT,
    LIST_CHUNKS,
    LIST_ENTRIES,
    LIST_FREE_CHUNK,
    LIST_LONGEST,
    LIST_POOL,
    LIST_PUT,
    LIST_SEEN,
    LIST_SEEN_BEFORE,
    LIST_SORTED,
    N_LIST_FACTS,
    N_NOTED,
    TOP_SIZE,
    choose_tokens,
    fill_lists,
    find_keys,
    largest_room,
    sorting_room,
)
from earshot.semantics.moving.kernels.quad_lists import QuadListsArrays, list_messages
from earshot.semantics.moving.kernels.quadtree import (
    BLOCK,
    HALF_PLACES,
    N_TREE_FACTS,
    SPARE_BLOCKS,
    SPARE_QUADS,
    TREE_ASKED,
    TREE_BLOCKS,
    TREE_FREE_BLOCK,
    TREE_FREE_QUAD,
    TREE_HAS_WORDS,
    TREE_QUADS,
    TREE_WANTED,
    MessageTree,
    clear_node,
    fill_tree,
)

_LEAST = 4096
"""Changes, or messages, up to which nothing is sorted anew."""
_SORTED_MOST = 12
"""Times that the mean entry may be sorted with its list before all is built anew, with other cells
of keys: that takes 1.2 µs an entry, sorting lists 0.15."""
_SPARE_WORD_BLOCKS = 4096
_MORE_CLAUSES, _FEW_CLAUSES = 1.25, 64
"""Alternatives, of those there were and beyond, up to which words that came get no lists: to fill
them, all messages are looked through."""
_MORE_MESSAGES = 8
"""So many times as many messages as were seen by then say more about which words are rare."""

_BY_TOKEN = {
    "list_heads": -1, "list_tails": -1, "list_lengths": 0, "list_vain": 0, "list_loosened": 0,
}  # fmt: skip
_BY_CHUNK = ("chunk_starts", "chunk_counts", "chunk_classes", "chunk_next", "chunk_before")
_BY_NODE = (
    "node_boxes", "node_splits", "node_children", "node_counts", "node_blocks", "node_sizes",
    "node_limits", "node_stale",
)  # fmt: skip


@dataclass(frozen=True)
class QuadLists(Structure):
    """Lists of subscriptions by their rarest word, and a quadtree of messages."""

    name = "quad_lists"
    arrays_type = QuadListsArrays

    def build(
        self, tables: Tables, space: Space, held: QuadListsArrays | None = None
    ) -> QuadListsArrays:
        """Return arrays with all live subscriptions; their messages are those held, or all."""
        tree = _no_messages() if held is None else _tree_of(held)
        arrays = _built_lists(tables, space, tree, 0 if held is None else held.list_facts)
        row = 0 if held is None else int(tables.messages.facts[N_ROWS])
        while (row := fill_tree(arrays, tables.messages, row)) < tables.messages.facts[N_ROWS]:
            arrays = self.with_room(arrays, tables)
        return arrays

    def with_room(self, arrays: QuadListsArrays, tables: Tables) -> QuadListsArrays:
        """Return arrays with more room wherever there is little left."""
        facts, tree = arrays.list_facts, arrays.tree_facts
        n_tokens, n_clauses = len(tables.messages.n_having), len(tables.subscribers.clause_slots)
        most = int(np.diff(tables.subscribers.clause_offsets).max(initial=1))
        n_pool = int(facts[LIST_POOL]) + most * largest_room(facts) + 65 * TOP_SIZE
        n_chunks = int(facts[LIST_CHUNKS]) + most + 64
        more: dict[str, Any] = {
            name: with_room(getattr(arrays, name), n_tokens, fill)
            for name, fill in _BY_TOKEN.items()
        }
        more |= {name: with_room(getattr(arrays, name), n_chunks) for name in _BY_CHUNK}
        if n_pool > len(arrays.pool_rows):
            n_pool = _rounded(n_pool + len(arrays.pool_rows) // 4)
        n_sorting = sorting_room(int(facts[LIST_LONGEST]) + most)
        if n_sorting > len(arrays.sort_room):
            more["sort_room"] = np.zeros(n_sorting + n_sorting // 4 + 64, np.int64)
        more |= _pool_of(arrays, max(n_pool, len(arrays.pool_rows)))
        more |= {
            name: with_room(getattr(arrays, name), n_clauses, -1)
            for name in ("clause_tokens", "clause_places")
        }
        more |= larger_tree(arrays)
        if tree[TREE_HAS_WORDS]:
            lists = with_room(arrays.words.lists, n_tokens, NOT_KEPT)
            more["words"] = with_blocks(arrays.words._replace(lists=lists), _SPARE_WORD_BLOCKS)
        return arrays._replace(**more)

    def with_words(self, arrays: QuadListsArrays, tables: Tables) -> QuadListsArrays:
        """Return arrays with lists of the messages that have words which anybody asks for."""
        facts, n_clauses = arrays.tree_facts, len(tables.subscribers.clause_slots)
        most = _MORE_CLAUSES * facts[TREE_ASKED] + _FEW_CLAUSES
        # Where there are fewer, those that ended are gone, and others may have come.
        if facts[TREE_HAS_WORDS] and facts[TREE_ASKED] <= n_clauses <= most:
            return arrays
        facts[TREE_HAS_WORDS], facts[TREE_ASKED] = 1, n_clauses
        words, tokens = no_words(), tables.subscribers.token_ids
        words = words._replace(lists=np.full((len(tables.messages.n_having), 2), NOT_KEPT))
        words.lists[tokens[tokens >= 0], 1] = 0
        arrays = arrays._replace(words=words)
        messages, row = tables.messages, 0
        arrays = self.with_room(arrays, tables)
        while (row := list_messages(arrays, tables, row)) < messages.facts[N_ROWS]:
            n_wanted = max(_SPARE_WORD_BLOCKS, int(messages.n_tokens[row]))
            arrays = arrays._replace(words=with_blocks(arrays.words, n_wanted))
        return arrays

    def is_due(self, arrays: QuadListsArrays, tables: Tables) -> bool:
        """Whether many have moved or come since all was sorted, or more is known of words."""
        facts = arrays.list_facts
        is_loose = facts[LIST_SORTED] > max(_LEAST, _SORTED_MOST * int(facts[LIST_ENTRIES]))
        # The cells of keys are made for what was there.
        if is_loose or facts[LIST_PUT] > max(_LEAST, int(facts[LIST_BUILT])):
            return True
        seen, before = int(facts[LIST_SEEN]), int(facts[LIST_SEEN_BEFORE])
        return facts[LIST_ENTRIES] > _LEAST and seen > max(_LEAST, _MORE_MESSAGES * before)


def _rounded(n_pool: int) -> int:
    return -(-n_pool // TOP_SIZE) * TOP_SIZE


def _pool_of(arrays: QuadListsArrays, n: int) -> dict[str, Any]:
    """Return the arrays of the pool with ``n`` entries; sums have sixteen more for comparing."""
    sizes = {
        "pool_keys": n, "pool_words": n, "pool_rows": n, "pool_sums": n // 16 + 16,
        "pool_tops": n // TOP_SIZE + 16,
    }  # fmt: skip
    found: dict[str, Any] = {}
    for name, size in sizes.items():
        held = getattr(arrays, name)
        found[name] = held
        if len(held) < size:
            found[name] = np.zeros(size, held.dtype)
            found[name][: len(held)] = held
    return found


def empty_tree() -> MessageTree:
    """Return a tree without messages."""
    n_nodes, n_blocks = 4 * (SPARE_QUADS + 8), 4 * SPARE_BLOCKS
    tree = MessageTree(
        np.zeros(N_TREE_FACTS, np.int64), np.zeros((n_nodes, 4)), np.zeros((n_nodes, 2)),
        np.zeros(n_nodes, np.int32), np.zeros(n_nodes, np.int32), np.zeros(n_nodes, np.int32),
        np.zeros(n_nodes, np.int32), np.zeros(n_nodes, np.int32),
        np.zeros((n_nodes // 4, HALF_PLACES), np.uint8), np.zeros(n_nodes, np.int32),
        np.zeros(n_blocks, np.int32),
        np.zeros(n_blocks * BLOCK, np.uint64), np.zeros(n_blocks * BLOCK, np.int32),
        np.zeros((n_blocks * BLOCK, 4), np.float32), np.zeros((2, 64)), np.zeros(256, np.int64),
    )  # fmt: skip
    facts = tree.tree_facts
    facts[TREE_QUADS], facts[TREE_FREE_QUAD], facts[TREE_FREE_BLOCK] = 1, -1, -1
    clear_node(tree, 0)
    return tree


def larger_tree(tree: Any) -> dict[str, Any]:
    """Return the arrays of a tree that need more room, with more."""
    facts = tree.tree_facts
    n_quads = int(facts[TREE_QUADS]) + 64
    n_blocks = int(facts[TREE_BLOCKS] + facts[TREE_WANTED]) + 4 * SPARE_BLOCKS
    facts[TREE_WANTED] = 0
    more: dict[str, Any] = {name: with_room(getattr(tree, name), 4 * n_quads) for name in _BY_NODE}
    more["quad_words"] = with_room(tree.quad_words, len(more["node_counts"]) // 4)
    if n_blocks > len(tree.block_next):
        n_blocks += len(tree.block_next) // 4
        more["block_next"] = with_room(tree.block_next, n_blocks)
        n_blocks = len(more["block_next"])
        for name in ("entry_words", "entry_rows", "entry_boxes"):
            held = getattr(tree, name)
            grown = np.zeros((n_blocks * BLOCK, *held.shape[1:]), held.dtype)
            grown[: len(held)] = held
            more[name] = grown
    return more


def _no_messages() -> dict[str, Any]:
    return empty_tree()._asdict() | {"words": no_words()}


def _tree_of(held: QuadListsArrays) -> dict[str, Any]:
    return {name: getattr(held, name) for name in (*MessageTree._fields, "words")}


def _steps_of(quantizer: Quantizer) -> tuple[Int32s, Int32s, Float64s]:
    """Return how many bounds of cells lie below equal steps on each axis, and their scales."""
    steps, scales = np.zeros((2, CELLS_OF_KEYS + 1), np.int32), np.zeros(4)
    for axis, bounds in enumerate(quantizer):
        fill_steps(bounds, steps[axis], scales, axis)
    return steps[0], steps[1], scales


def _built_lists(
    tables: Tables, space: Space, tree: dict[str, Any], before: Any
) -> QuadListsArrays:
    """Return arrays with all live subscriptions in lists, beside a tree."""
    subscribers, messages = tables.subscribers, tables.messages
    is_live = subscribers.flags[subscribers.clause_slots] & LIVE != 0
    clauses = np.flatnonzero(is_live).astype(np.int32)
    live = np.flatnonzero(subscribers.flags & LIVE)
    quantizer = quantizer_of(subscribers.regions.boxes[live, :4], space, CELLS_OF_KEYS)
    x_steps, y_steps, scales = _steps_of(quantizer)
    n_tokens = len(messages.n_having)
    required = subscribers.token_ids[subscribers.token_ids >= 0]
    frequencies = np.bincount(required, minlength=n_tokens).astype(np.int32)
    nothing = np.zeros(0, np.int32)
    facts = np.zeros(N_LIST_FACTS, np.int64)
    arrays = QuadListsArrays(
        facts, np.full(FULL_CLASS + 1, -1, np.int64),
        np.full(n_tokens, -1, np.int32), np.full(n_tokens, -1, np.int32), frequencies,
        np.zeros(n_tokens, np.int32), np.zeros(n_tokens, np.int32),
        nothing, nothing, nothing.astype(np.int8), nothing, nothing,
        nothing.astype(np.uint64), nothing.astype(np.uint64), nothing, nothing.astype(np.uint64),
        nothing.astype(np.uint64),
        np.full(len(is_live), -1, np.int32), np.full(len(is_live), -1, np.int32),
        np.zeros(64, np.int64), np.zeros(N_NOTED + 1, np.int64), *quantizer,
        x_steps, y_steps, scales, **tree,
    )  # fmt: skip
    tokens, keys = np.empty(len(clauses), np.int32), np.empty(len(clauses), np.uint64)
    curve = np.empty(len(clauses), np.int64)
    choose_tokens(arrays, subscribers, messages, clauses, tokens)
    find_keys(arrays, subscribers, clauses, keys, curve)
    order = np.argsort(tokens.astype(np.int64) << 30 | curve, kind="stable")
    sizes = np.bincount(tokens, minlength=1)
    lasts = sizes % FULL  # in the last chunk of a list, unless that is full
    classes = np.ceil(np.log2(np.maximum(lasts, 1 << LEAST_CLASS))).astype(np.int64)
    in_lasts = int(((1 << classes) * (lasts > 0)).sum())
    n_pool = int((sizes - lasts).sum()) + in_lasts + (FULL_CLASS + 66) * TOP_SIZE
    n_chunks = int(np.count_nonzero(lasts) + (sizes // FULL).sum()) + 64
    arrays.list_lengths[:] = 0
    facts[LIST_FREE_CHUNK] = -1
    by_chunk: dict[str, Any] = {
        name: np.zeros(n_chunks, getattr(arrays, name).dtype) for name in _BY_CHUNK
    }
    arrays = arrays._replace(
        **by_chunk,
        **_pool_of(arrays, _rounded(n_pool)),
        sort_room=np.zeros(sorting_room(int(sizes.max(initial=0))) + 64, np.int64),
    )
    fill_lists(arrays, subscribers, clauses, tokens, keys, order)
    facts[LIST_BUILT], facts[LIST_PUT], facts[LIST_SORTED] = len(clauses), 0, 0
    if not np.isscalar(before):
        facts[LIST_SEEN] = facts[LIST_SEEN_BEFORE] = before[LIST_SEEN]
    return arrays
