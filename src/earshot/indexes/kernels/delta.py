"""Kernels of :mod:`earshot.indexes.delta`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.kernels.matching import appends_answers
from earshot.kernels.box_keys import (
    BLOCK,
    Quantizer,
    box_key,
    box_limit,
    touching_mask,
    trailing_zeros,
)
from earshot.kernels.jit import lean_kernel
from earshot.kernels.processor import prefetch
from earshot.kernels.verify import region_touches, tokens_match
from earshot.model.arrays import Int32s, Int64s


class DeltaArrays(NamedTuple):
    """Chains of blocks, one chain per token."""

    quantizer: Quantizer
    heads: Int32s  # (n_tokens,) newest block of each token's chain, -1 where there is none
    block_next: Int32s  # (n_blocks,) next older block of the chain, -1 at the end
    block_counts: Int32s  # (n_blocks,) keys in use, 1 to BLOCK
    keys: npt.NDArray[np.uint64]  # (n_blocks * BLOCK,) box keys, DEAD_KEY where unused or removed
    key_clauses: Int32s  # (n_blocks * BLOCK,) clause of each key
    key_tokens: Int32s  # (n_blocks * BLOCK,) the clause's second rarest token, -1 where it has one
    first_slot: Int64s  # (1,)


@lean_kernel
def insert_clauses(arrays, clauses, first_clause, n_blocks, frequencies, clause_positions):
    """Hang clauses ``first_clause`` and later into chains; return the number of blocks in use."""
    for c in range(first_clause, len(clauses.subscriptions)):
        rarest, second, fewest, few = -1, -1, np.int64(0), np.int64(0)
        for i in range(clauses.token_offsets[c], clauses.token_offsets[c + 1]):
            token = clauses.token_ids[i]
            if token < 0:
                break
            frequency = frequencies[token] if token < len(frequencies) else np.int64(0)
            if rarest < 0 or frequency < fewest:
                second, few = rarest, fewest
                rarest, fewest = token, frequency
            elif second < 0 or frequency < few:
                second, few = token, frequency
        block = arrays.heads[rarest]
        if block < 0 or arrays.block_counts[block] == BLOCK:
            arrays.block_next[n_blocks] = block
            arrays.block_counts[n_blocks] = 0
            block = n_blocks
            arrays.heads[rarest] = block
            n_blocks += 1
        position = block * BLOCK + arrays.block_counts[block]
        arrays.block_counts[block] += 1
        box = clauses.boxes[c]
        arrays.keys[position] = box_key(arrays.quantizer, box[0], box[1], box[2], box[3])
        arrays.key_clauses[position] = c
        arrays.key_tokens[position] = second
        clause_positions[c] = position
    return n_blocks


@appends_answers(DeltaArrays)
@lean_kernel
def append_delta_answers(view, tokens, box, scratch, answers, n_answers, work):
    """Append one message's answers among the delta."""
    arrays, clauses, is_lonlat = view.arrays, view.clauses, view.is_lonlat
    marks, last_seen, serial = scratch.marks, scratch.last_seen, scratch.serial[0]
    first_slot = arrays.first_slot[0]
    limit = box_limit(arrays.quantizer, box[0], box[1], box[2], box[3])
    for i in range(len(tokens)):
        token = tokens[i]
        block = np.int64(arrays.heads[token]) if token < len(arrays.heads) else np.int64(-1)
        n_used = np.int64(arrays.block_counts[block]) if block >= 0 else np.int64(0)
        while block >= 0:
            following = np.int64(arrays.block_next[block])
            if following >= 0:
                prefetch(arrays.keys, following * BLOCK)
                prefetch(arrays.keys, following * BLOCK + 8)
                prefetch(arrays.block_next, following)
            work[0] += 1
            work[1] += n_used
            n_used = np.int64(BLOCK)  # only the newest block of a chain may be part empty
            mask = touching_mask(arrays.keys, block * BLOCK, limit)
            while mask != 0:
                position = block * BLOCK + trailing_zeros(mask)
                mask &= mask - np.uint32(1)
                second = arrays.key_tokens[position]
                if second >= 0 and marks[second] == 0:
                    continue  # most are told here, without a look at the clause
                c = arrays.key_clauses[position]
                row = clauses.subscriptions[c] - first_slot
                if (
                    tokens_match(
                        clauses.token_ids,
                        clauses.token_offsets[c],
                        clauses.token_offsets[c + 1],
                        marks,
                    )
                    and region_touches(clauses, c, is_lonlat, box[0], box[1], box[2], box[3])
                    and last_seen[row] != serial
                ):
                    if n_answers == len(answers):
                        return -1
                    last_seen[row] = serial
                    answers[n_answers] = clauses.subscriptions[c]
                    n_answers += 1
            block = following
    return n_answers
