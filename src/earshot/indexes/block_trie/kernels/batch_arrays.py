"""Arrays of matching a batch at a time; :mod:`earshot.indexes.block_trie.batches` describes it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.block_trie.kernels.vectors import GROUP, SIGNATURE_BITS
from earshot.model.arrays import Int32s, Int64s

Bits = npt.NDArray[np.uint64]

SIGNATURE_WORDS = SIGNATURE_BITS // 32

PAIRS_NOTED = 8
"""Pairs of a node and a message whose touching blocks are known at a time; a power of 2."""

BLOCKS_QUEUED = 32
"""Blocks of open lists of which half wait for their keys, at least; a power of 2."""

NO_SLOT = -(1 << 31)
"""In place of a slot, or of its complement."""

# What a batch kernel returns that is short of room.
SHORT_OF_FOUND, SHORT_OF_PENDING, SHORT_OF_SENT = -1, -2, -3


class BatchScratch(NamedTuple):
    """Working memory of one thread, for up to ``len(limits)`` messages at a time."""

    limits: Bits  # (n,)
    paths: npt.NDArray[np.uint8]  # (n,) TRIE, ROOT or NOWHERE
    codes: Bits  # (n,) Hilbert codes of those of ROOT, their rows in the low half
    other_codes: Bits  # (n,)
    counts: Int64s  # of digits, for sorting
    signatures: npt.NDArray[np.uint32]  # (n * SIGNATURE_WORDS,) by low bits of the tokens
    high_signatures: npt.NDArray[np.uint32]  # the same by high bits
    short_masks: npt.NDArray[np.uint32]  # (2 * PAIRS_NOTED,) touching blocks of short lists
    # Blocks of open lists whose keys are on their way, the k-th at k modulo BLOCKS_QUEUED.
    queue: Int32s  # (BLOCKS_QUEUED,) where a block begins
    queue_rows: Int32s  # its message
    queue_masks: npt.NDArray[np.uint32]  # entries whose token the message may have
    stack: Int32s  # nodes still to visit
    frontier: Int32s  # two halves, each for the blocks of one level of the longest list
    # Pairs of a node and a message that reaches it.
    pairs: Bits  # the node in the high half, the pair's number in the low one
    other_pairs: Bits
    pair_rows: Int32s  # message of each pair
    pair_offsets: Int64s  # (n + 1,) pairs of message i are [i]:[i + 1]
    run_starts: Int32s  # (n_pairs,) answers of a pair in ``found``
    run_ends: Int32s
    found: Int32s  # slots, pair by pair
    # Entries that are still to be verified, and what becomes of them.
    pending: Int32s
    pending_rows: Int32s  # message of each
    pending_slots: Int32s  # slot, complemented where it has several clauses, or NO_SLOT
    extras: Int32s  # these slots, message by message
    extra_offsets: Int64s  # (n + 2,)
    # (n_slots,) 0 between messages and groups; empty without repeats. A word per slot for a group,
    # a bit per slot for a message.
    seen: Bits
    # Groups of messages that walk the root list together.
    senders: Bits  # (N_CODES,) messages of the group that may have the tokens of a code
    is_sent: npt.NDArray[np.uint32]  # (N_CODES / 32,) a bit per code that some have
    owners: Int32s  # (N_CODES / 2,) token that each shared code stands for, or SEVERAL
    group_limits: Bits  # (GROUP,)
    tallies: npt.NDArray[np.uint8]  # (GROUP,)
    block_senders: Bits  # as long as the frontier: messages that each block may touch
    checks: Int32s  # entries to be verified for a group
    check_senders: Bits  # messages that they may match, and of them
    check_ties: Bits  # those that exact coordinates decide about
    sent: Int32s  # slots that some of a group get
    sent_to: Bits  # which
    group_ends: Int64s  # (n,) where the slots of each group end
    group_rows: Int32s  # (n,) rows of grouped messages, group by group
    group_counts: Int64s  # (n + 1,) answers of each message by row
    cursors: Int64s  # (GROUP,)


def sizes_of(chunk: int) -> dict[str, tuple[int, type]]:
    """Return length and type of the arrays that depend on the number of messages alone."""
    return {
        "limits": (chunk, np.uint64),
        "paths": (chunk, np.uint8),
        "codes": (chunk, np.uint64),
        "other_codes": (chunk, np.uint64),
        "counts": ((1 << 11) + 1, np.int64),
        "signatures": (chunk * SIGNATURE_WORDS, np.uint32),
        "high_signatures": (chunk * SIGNATURE_WORDS, np.uint32),
        "short_masks": (2 * PAIRS_NOTED, np.uint32),
        "queue": (BLOCKS_QUEUED, np.int32),
        "queue_rows": (BLOCKS_QUEUED, np.int32),
        "queue_masks": (BLOCKS_QUEUED, np.uint32),
        "pair_offsets": (chunk + 1, np.int64),
        "extra_offsets": (chunk + 2, np.int64),
        "group_limits": (GROUP, np.uint64),
        "tallies": (GROUP, np.uint8),
        "group_ends": (chunk, np.int64),
        "group_rows": (chunk, np.int32),
        "group_counts": (chunk + 1, np.int64),
        "cursors": (GROUP, np.int64),
    }
