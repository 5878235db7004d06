"""Lists of box keys in blocks of sixteen, and what is above and beside them.

A list in spatial order has levels of *summary keys* above it, one per sixteen below: the key of the
smallest box around them. A message walks down from the top level, and only to blocks whose summary
touches it.

The *signature* of a message is a bit per token, several tokens to a bit, in so few words that they
stay in the first-level cache: most tokens that the message has not are told by it.
"""

from __future__ import annotations

import numpy as np

from earshot.kernels.box_keys import (
    BLOCK,
    DEAD_KEY,
    touching_mask,
    trailing_zeros,
    union_key,
)
from earshot.kernels.jit import inlined_kernel, kernel, lean_kernel
from earshot.kernels.processor import prefetch

AHEAD = 4
"""How many blocks ahead keys are prefetched."""
SIGNATURE_WORDS = 1024
"""8 KiB, which stay in the first-level cache; the marks of a large vocabulary do not."""


@kernel
def n_summary_keys(n):
    """Return how many summary keys a list of ``n`` entries has, all levels together."""
    total = 0
    while n > BLOCK:
        n = (n + BLOCK - 1) // BLOCK
        total += n
    return total


@kernel
def fill_summaries(keys, start, n, summary_keys, summary):
    """Fill the summary keys of one list, lowest level first."""
    if n <= BLOCK:
        return
    n_level = (n + BLOCK - 1) // BLOCK
    for b in range(n_level):
        union = DEAD_KEY
        for k in range(b * BLOCK, min(n, b * BLOCK + BLOCK)):
            union = union_key(union, keys[start + k])
        summary_keys[summary + b] = union
    below = summary
    while n_level > BLOCK:
        n_above = (n_level + BLOCK - 1) // BLOCK
        above = below + n_level
        for b in range(n_above):
            union = DEAD_KEY
            for k in range(b * BLOCK, min(n_level, b * BLOCK + BLOCK)):
                union = union_key(union, summary_keys[below + k])
            summary_keys[above + b] = union
        below, n_level = above, n_above


@lean_kernel
def low_bits(n):
    """Return a mask of the first ``n`` keys of a block."""
    return np.uint32(0xFFFF) if n >= BLOCK else (np.uint32(1) << np.uint32(n)) - np.uint32(1)


@lean_kernel
def sign_tokens(message_tokens, signature):
    """Set the bits of a message's tokens."""
    for i in range(len(message_tokens)):
        token = message_tokens[i]
        signature[(token >> 6) & (SIGNATURE_WORDS - 1)] |= np.uint64(1) << np.uint64(token & 63)


@lean_kernel
def unsign_tokens(message_tokens, signature):
    """Clear what ``sign_tokens`` set."""
    for i in range(len(message_tokens)):
        signature[(message_tokens[i] >> 6) & (SIGNATURE_WORDS - 1)] = np.uint64(0)


@lean_kernel
def has_token(token, signature, marks):
    """Whether the message has the token; most that it has not are told by the signature."""
    word = signature[(token >> 6) & (SIGNATURE_WORDS - 1)]
    return word >> np.uint64(token & 63) & np.uint64(1) != 0 and marks[token] != 0


@lean_kernel
def passes_print(print_, signature):
    """Whether the message may have the two tokens that a print was made of."""
    one, other = np.int64(print_ & np.uint32(0xFFFF)), np.int64(print_ >> np.uint32(16))
    return (
        signature[one >> 6] >> np.uint64(one & 63)
        & signature[other >> 6] >> np.uint64(other & 63)
        & np.uint64(1)
    ) != 0


@lean_kernel
def touching_blocks(n, summary_keys, summary, limit, frontier, most, work):
    """Write the blocks of a list that may touch ``limit`` to the frontier.

    A list of up to BLOCK entries is one block. A longer one is walked from its top summary, one
    level at a time. Returns where in the frontier the blocks stand, and how many they are; -1 as
    soon as a level has more than ``most``.
    """
    frontier[0] = 0
    if n <= BLOCK:
        return 0, 1
    n_level = (n + BLOCK - 1) // BLOCK
    level_start = np.int64(summary)
    depth = 1
    while n_level > BLOCK:
        level_start += n_level
        n_level = (n_level + BLOCK - 1) // BLOCK
        depth += 1
    here, there = 0, len(frontier) >> 1
    n_here = 1
    while depth > 0:
        n_there = 0
        for k in range(n_here):
            if k + AHEAD < n_here:
                ahead = level_start + np.int64(frontier[here + k + AHEAD]) * BLOCK
                prefetch(summary_keys, ahead)
                prefetch(summary_keys, ahead + 8)
            block = np.int64(frontier[here + k])
            mask = touching_mask(summary_keys, level_start + block * BLOCK, limit)
            mask &= low_bits(n_level - block * BLOCK)
            while mask != 0:
                frontier[there + n_there] = block * BLOCK + trailing_zeros(mask)
                n_there += 1
                mask &= mask - np.uint32(1)
            if n_there > most:
                work[0] += k + 1
                return 0, -1
        work[0] += n_here
        here, there = there, here
        n_here = n_there
        depth -= 1
        n_level = n
        for _ in range(depth):
            n_level = (n_level + BLOCK - 1) // BLOCK
        level_start -= n_level
    return here, n_here


@inlined_kernel
def touching_keys(keys, beside, start, n, blocks, k, limit, work):
    """Return where the k-th of some blocks of a list begins, and a mask of its keys that touch.

    Asks for the keys of a block to come, and for what stands beside them.
    """
    if k + AHEAD < len(blocks):
        ahead = start + np.int64(blocks[k + AHEAD]) * BLOCK
        prefetch(keys, ahead)
        prefetch(keys, ahead + 8)
        prefetch(beside, ahead)
        prefetch(beside, ahead + 15)
    offset = np.int64(blocks[k]) * BLOCK
    work[1] += min(BLOCK, n - offset)
    return start + offset, touching_mask(keys, start + offset, limit) & low_bits(n - offset)
