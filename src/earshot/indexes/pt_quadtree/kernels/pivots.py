"""The choice of pivotal tokens: one required token of each clause of a node.

[CIKM15] §4.1. A small set of tokens that hits every clause prunes well and takes little room. The
smallest is NP-hard to find; the paper's greedy method takes the token of most clauses, drops these,
and goes on with the rest. Where each token that is left hits one clause, any will do; the rarest is
taken, which few messages have. Its letters: ``df`` is ``counts``, the pivotal-token set is what
:func:`choose_pivots` returns, each token once.
"""

from __future__ import annotations

import numpy as np

from earshot.indexes.block_trie.kernels.build import sort_codes
from earshot.indexes.quadtree.kernels.nodes import n_required, rarest_token
from earshot.kernels.jit import kernel

# How pivotal tokens are chosen.
GREEDY, RAREST = 0, 1


@kernel
def choose_pivots(token_offsets, token_ids, rows, how, frequencies):
    """Return a required token of each clause with its place in ``rows``, ascending.

    Both are packed into one integer, the token above.
    """
    chosen = np.empty(len(rows), np.int64)
    if how == RAREST:
        for j in range(len(rows)):
            token = rarest_token(token_offsets, token_ids, rows[j], frequencies)
            chosen[j] = np.int64(token) << 32 | j
    else:
        _hit(token_offsets, token_ids, rows, chosen)
        for j in range(len(rows)):
            if chosen[j] < 0:
                token = rarest_token(token_offsets, token_ids, rows[j], frequencies)
                chosen[j] = np.int64(token) << 32 | j
    sort_codes(chosen, len(rows))
    return chosen


@kernel
def _hit(token_offsets, token_ids, rows, chosen):
    """Choose the token that hits each clause first, taken greedily.

    Tokens wait in a bucket by the number of clauses they would hit. A token whose number has
    fallen since moves down when its turn comes, so all takes time in the number of tokens. What no
    two clauses share is left at -1: any token of such a clause hits it alone.
    """
    n = len(rows)
    starts = np.zeros(n + 1, np.int64)
    for j in range(n):
        starts[j + 1] = starts[j] + n_required(token_offsets, token_ids, rows[j])
    postings = np.empty(starts[n], np.int64)
    for j in range(n):
        first = token_offsets[rows[j]]
        for k in range(starts[j + 1] - starts[j]):
            postings[starts[j] + k] = np.int64(token_ids[first + k]) << 32 | j
    sort_codes(postings, len(postings))
    # Tokens 0, 1, … of this set; those of clause j are locals_[starts[j]:starts[j + 1]].
    heads = np.empty(starts[n] + 1, np.int64)
    locals_ = np.empty(starts[n], np.int64)
    filled = np.empty(n, np.int64)
    for j in range(n):
        filled[j] = starts[j]
    n_local = 0
    for i in range(len(postings)):
        if i == 0 or postings[i] >> 32 != postings[i - 1] >> 32:
            heads[n_local] = i
            n_local += 1
        j = postings[i] & 0xFFFFFFFF
        locals_[filled[j]] = n_local - 1
        filled[j] += 1
    heads[n_local] = len(postings)
    counts = np.empty(n_local, np.int64)
    buckets = np.full(n + 1, -1, np.int64)
    following = np.empty(n_local, np.int64)
    for t in range(n_local - 1, -1, -1):
        counts[t] = heads[t + 1] - heads[t]
        following[t] = buckets[counts[t]]
        buckets[counts[t]] = t
    for j in range(n):
        chosen[j] = -1
    for count in range(n, 1, -1):
        while buckets[count] >= 0:
            t = buckets[count]
            buckets[count] = following[t]
            if counts[t] < count:
                following[t] = buckets[counts[t]]
                buckets[counts[t]] = t
                continue
            for i in range(heads[t], heads[t + 1]):
                j = postings[i] & 0xFFFFFFFF
                if chosen[j] < 0:
                    chosen[j] = postings[i]
                    for k in range(starts[j], starts[j + 1]):
                        counts[locals_[k]] -= 1
