"""Samples of subscriptions and messages, and the work that they are expected to be.

Work is told in *candidates*: subscriptions that messages examine in the default index, where lists
are examined in blocks of sixteen neighbours.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from earshot.indexes.block_trie.kernels.build import fill_codes
from earshot.indexes.quantizing import quantizer_of
from earshot.kernels.box_keys import BLOCK, build_keys
from earshot.model.arrays import (
    ClauseArrays,
    Float64s,
    Int32s,
    Int64s,
    MessageArrays,
    gather_ranges,
    offsets_of,
    take_clauses,
    take_messages,
)
from earshot.placement.kernels import count_hits
from earshot.placement.plan import boxes_around, filed_tokens, slot_keys

LIST_SPLIT_ABOVE, LIST_MIN_CHILD = 64, 16
"""When a list is split by the next token; the defaults of ``block_trie``."""
BYTES_PER_SUBSCRIPTION, BYTES_PER_CLAUSE, BYTES_PER_TOKEN = 40, 60, 8
"""What is saved, about: ids; boxes, keys and their order; words."""
WEIGHING_MESSAGES = 3_000
"""Messages that tell how busy a shard is; more are thinned."""


class SampleArrays(NamedTuple):
    """Sampled subscriptions; tokens are numbers of filed tokens."""

    keys: Float64s  # (n_slots, N_KEYS)
    tokens: Int32s  # (n_slots,)
    clause_starts: Int64s  # (n_slots + 1,) clauses of slot i are [i]:[i+1]
    clause_tokens: Int32s  # (n_clauses,)
    boxes: Float64s  # (n_clauses, 4)


class SampleLists(NamedTuple):
    """The lists that the default index would have over sampled clauses, as far as loads need them.

    A block holds as many sampled clauses as stand for a block of the index, but at least one.
    """

    group_tokens: Int32s  # (n_groups,) ascending; groups are the lists of a token
    next_tokens: Int32s  # (n_groups,) token that a message must also carry, or negative
    group_starts: Int64s  # (n_groups + 1,) blocks of each group
    block_starts: Int64s  # (n_blocks + 1,) entries of each block
    block_boxes: Float64s  # (n_blocks, 4)
    root_starts: Int64s  # (n_root_blocks + 1,) entries of each block of the root list
    root_boxes: Float64s  # (n_root_blocks, 4)
    upper_boxes: Float64s  # around BLOCK blocks of the root list each


class Samples:
    """What a plan is cut from.

    Args:
        clauses: Sampled subscriptions, in slots 0, 1, …
        messages: Sampled messages, with tokens of the same vocabulary.
        frequencies: How often each token of the vocabulary occurs in messages.
        n_subscriptions: How many subscriptions the sample stands for.
    """

    def __init__(
        self,
        clauses: ClauseArrays,
        messages: MessageArrays,
        frequencies: Int64s,
        n_subscriptions: int,
    ) -> None:
        filed, next_tokens = filed_tokens(clauses, frequencies)
        keys, tokens = slot_keys(clauses, filed, len(frequencies))
        self.vocabulary = np.unique(filed)  # the token of each number
        # The last one stands for all tokens beyond the frequencies.
        numbers = np.full(max(len(frequencies), 1) + 1, -1, np.int32)
        numbers[self.vocabulary] = np.arange(len(self.vocabulary))
        order = np.argsort(clauses.subscriptions, kind="stable")
        counts = np.bincount(clauses.subscriptions, minlength=len(tokens))
        self.arrays = SampleArrays(
            keys,
            numbers[tokens],
            offsets_of(counts),
            numbers[filed[order]],
            np.ascontiguousarray(clauses.boxes[order]),
        )
        lengths = np.diff(clauses.token_offsets)
        n_tokens = np.bincount(clauses.subscriptions, lengths, minlength=len(tokens))
        # Bytes that a subscription is expected to take.
        sizes = BYTES_PER_SUBSCRIPTION + BYTES_PER_CLAUSE * counts + BYTES_PER_TOKEN * n_tokens
        self.sizes = sizes.astype(np.float64)
        self.messages = _known_tokens(messages, numbers)
        # What one sampled subscription stands for.
        self.scale = n_subscriptions / len(tokens) if len(tokens) else 1.0
        # A next token that no clause is filed under has no number; its lists stay whole.
        self.next_tokens = np.where(next_tokens >= 0, numbers[next_tokens], -2)[order]
        self.codes = _spatial_codes(self.arrays.boxes)
        self.n_message_tokens = np.diff(messages.token_offsets)
        self.numbers = np.full(len(self.vocabulary), -1, np.int32)
        self.marks = np.zeros(len(self.vocabulary), np.uint8)

    def candidates(self, slots: Int64s, messages: Int64s) -> Float64s:
        """Return how many candidates each of a shard's slots gives, for some of the messages."""
        offsets, clauses = gather_ranges(self.arrays.clause_starts, slots)
        lists, entries, root_entries = _sample_lists(
            self.arrays.clause_tokens[clauses],
            self.next_tokens[clauses],
            self.codes[clauses],
            self.arrays.boxes[clauses],
            self.scale,
        )
        list_hits = np.zeros(len(lists.block_boxes), np.int64)
        root_hits = np.zeros(len(lists.root_boxes), np.int64)
        # One layout, however many are taken, so that the kernel is compiled once.
        step = max(1, -(-len(messages) // WEIGHING_MESSAGES))
        weighed = np.ascontiguousarray(messages[::step])
        count_hits(
            lists, self.messages, weighed, self.n_message_tokens,
            _clauses_per_block(self.scale) * self.scale / BLOCK, self.numbers, self.marks,
            list_hits, root_hits,
        )  # fmt: skip
        hits = np.zeros(len(clauses))
        hits[entries] += np.repeat(list_hits, np.diff(lists.block_starts))
        hits[root_entries] += np.repeat(root_hits, np.diff(lists.root_starts))
        sums: Float64s = np.append(0.0, np.cumsum(hits))
        weight = len(messages) / max(len(weighed), 1)
        candidates: Float64s = self.scale * weight * (sums[offsets[1:]] - sums[offsets[:-1]])
        return candidates


def thinned_clauses(clauses: ClauseArrays, most: int) -> ClauseArrays:
    """Return the clauses of every nth slot, renumbered from 0, so that at most so many are left."""
    step = -(-(int(clauses.subscriptions.max(initial=-1)) + 1) // most)
    if step <= 1:
        return clauses
    kept = take_clauses(clauses, np.flatnonzero(clauses.subscriptions % step == 0))
    return kept._replace(subscriptions=kept.subscriptions // np.int32(step))


def thinned_messages(messages: MessageArrays, most: int) -> MessageArrays:
    """Return every nth message, so that at most so many are left."""
    step = -(-len(messages.boxes) // most)
    return (
        messages if step <= 1 else take_messages(messages, np.arange(0, len(messages.boxes), step))
    )


def _known_tokens(messages: MessageArrays, numbers: Int32s) -> MessageArrays:
    """Return messages with the numbers of their tokens, without tokens that have none."""
    ids = numbers[np.minimum(messages.token_ids, len(numbers) - 1)]
    known = ids >= 0
    sums = np.append(0, np.cumsum(known))
    return MessageArrays(
        sums[messages.token_offsets], ids[known], np.ascontiguousarray(messages.boxes)
    )


def _spatial_codes(boxes: Float64s) -> Int64s:
    """Return the order in which the default index keeps boxes."""
    n = len(boxes)
    keys, codes = np.empty(n, np.uint64), np.empty(n, np.int64)
    build_keys(quantizer_of(boxes, "planar"), boxes, 0, keys)
    fill_codes(keys, 0, codes)
    return codes


def _clauses_per_block(scale: float) -> int:
    """Return how many sampled clauses stand for a block of the index."""
    return max(1, round(BLOCK / scale))


def _sample_lists(
    tokens: Int32s, next_tokens: Int32s, codes: Int64s, boxes: Float64s, scale: float
) -> tuple[SampleLists, Int64s, Int64s]:
    """Arrange sampled clauses as the default index would arrange all that they stand for.

    Returns the lists, and the clauses in the order of the lists and of the root list.
    """
    n = len(tokens)
    per_block = _clauses_per_block(scale)
    # Open lists of more than LIST_SPLIT_ABOVE clauses are split by next token.
    is_open = next_tokens != -2
    pairs = tokens.astype(np.int64) << 32 | (next_tokens + 2)
    _, pair_numbers, pair_counts = np.unique(pairs, return_inverse=True, return_counts=True)
    _, numbers = np.unique(tokens, return_inverse=True)
    n_open = np.bincount(numbers, is_open)
    has_list = (
        (next_tokens >= 0)
        & (n_open[numbers] * scale > LIST_SPLIT_ABOVE)
        & (pair_counts[pair_numbers] * scale >= LIST_MIN_CHILD)
    )
    groups = np.where(has_list, next_tokens + 2, is_open)
    pairs = tokens.astype(np.int64) << 32 | groups
    entries = np.lexsort((codes, pairs))
    pairs = pairs[entries]
    firsts = np.flatnonzero(np.diff(pairs, prepend=-1))
    n_blocks = -(-np.diff(np.append(firsts, n)) // per_block)
    group_starts = offsets_of(n_blocks)
    within = np.arange(group_starts[-1]) - np.repeat(group_starts[:-1], n_blocks)
    block_starts = np.append(np.repeat(firsts, n_blocks) + within * per_block, n)
    root_entries = np.argsort(codes)
    root_starts = np.append(np.arange(0, n, per_block), n)
    root_boxes = boxes_around(boxes[root_entries], root_starts[:-1])
    lists = SampleLists(
        (pairs[firsts] >> 32).astype(np.int32),
        ((pairs[firsts] & 0xFFFFFFFF) - 2).astype(np.int32),
        group_starts,
        block_starts,
        boxes_around(boxes[entries], block_starts[:-1]),
        root_starts,
        root_boxes,
        boxes_around(root_boxes, np.arange(0, len(root_boxes), BLOCK)),
    )
    return lists, entries, root_entries
