"""Orders of a clause's tokens, for trees that put the first ones to the top ([TKDE15] §4.2).

A clause's required tokens are sorted by a *rank* that is low for the tokens that should come first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.rtree.kernels.nodes import key_centre, required_stop
from earshot.kernels.copying import copy_part
from earshot.kernels.jit import kernel, lean_kernel
from earshot.model.arrays import Float64s, Int32s, Int64s

RANDOM, DF, IDF, LOCAL = range(4)

PRIOR = 4.0
"""How much a token's share in all cells counts against its share in the clause's own (local)."""

NO_PAIR = np.int64(-1)
_MIX = np.uint64(0x9E3779B97F4A7C15)


class TokenOrderArrays(NamedTuple):
    """What the ranks of tokens are taken from; what an order does not use is empty."""

    ranks: Float64s  # (n_tokens,) of every token, whatever the clause (df, idf)
    shares: npt.NDArray[np.float32]  # (n_tokens,) of all occurrences (local)
    cell_totals: Int32s  # (side * side,) occurrences of tokens in each cell (local)
    pairs: Int64s  # (n_places,) cell and token of each place of a hash table (local)
    pair_counts: Int32s  # (n_places,) occurrences of the token in the cell, at least 2
    facts: Int64s  # (6,) see below


# Places of ``facts``: which order, cells of the grid per side, seed, pairs in the table, and how
# many cells box keys tell apart on each axis.
ORDER, SIDE, SEED, N_PAIRS, X_CELLS, Y_CELLS = range(6)


@lean_kernel
def _mixed(value):
    mixed = np.uint64(value) * _MIX
    mixed ^= mixed >> np.uint64(29)
    mixed *= _MIX
    return mixed ^ (mixed >> np.uint64(32))


@lean_kernel
def _pair(cell, token):
    return (np.int64(cell) << 32) | np.int64(token)


@lean_kernel
def _place_of(pairs, pair):
    """Return the place of a pair, or ``~place`` of the free one where it would go."""
    place = np.int64(_mixed(pair) % np.uint64(len(pairs)))
    while True:
        if pairs[place] == pair:
            return place
        if pairs[place] == NO_PAIR:
            return ~place
        place += 1
        if place == len(pairs):
            place = np.int64(0)


@lean_kernel
def cell_of(key, facts):
    """Return the cell of the grid in which the centre of a box key lies."""
    side = facts[SIDE]
    column = key_centre(key, 0) * side // (2 * facts[X_CELLS])
    row = key_centre(key, 1) * side // (2 * facts[Y_CELLS])
    return min(row, side - 1) * side + min(column, side - 1)


@lean_kernel
def _rank(order, token, c, cell):
    kind = order.facts[ORDER]
    if kind == RANDOM:
        seeded = (np.int64(c) << 32) ^ np.int64(token) ^ (order.facts[SEED] << 16)
        return np.float64(_mixed(seeded) >> np.uint64(11))
    if kind == IDF:
        return order.ranks[token] if token < len(order.ranks) else 0.0
    if kind == DF:
        return order.ranks[token] if token < len(order.ranks) else np.inf
    share = order.shares[token] if token < len(order.shares) else 0.0
    place = _place_of(order.pairs, _pair(cell, token))
    # Occurrences in other clauses of the cell; few of them say less than the share in all cells.
    count = np.float64(order.pair_counts[place] - 1) if place >= 0 else 0.0
    return count + PRIOR * share * np.float64(order.cell_totals[cell])


@kernel
def order_tokens(order, clauses, keys, first, stop, ordered, representatives):
    """Put the required tokens of clauses ``first`` to ``stop`` in order.

    ``ordered`` takes all of them at the clause's own offset, or ``representatives`` the first one
    of each clause; the other is empty. ``keys`` are the clauses' box keys from ``first`` on.
    """
    longest = 0
    for c in range(first, stop):
        longest = max(longest, clauses.token_offsets[c + 1] - clauses.token_offsets[c])
    ranks = np.empty(longest, np.float64)
    sorted_tokens = np.empty(longest, np.int32)
    for c in range(first, stop):
        start, end = clauses.token_offsets[c], required_stop(clauses, c)
        cell = cell_of(keys[c - first], order.facts) if order.facts[ORDER] == LOCAL else np.int64(0)
        for i in range(end - start):
            token = clauses.token_ids[start + i]
            rank = _rank(order, token, c, cell)
            j = i
            while j > 0 and (
                ranks[j - 1] > rank or (ranks[j - 1] == rank and sorted_tokens[j - 1] > token)
            ):
                ranks[j], sorted_tokens[j] = ranks[j - 1], sorted_tokens[j - 1]
                j -= 1
            ranks[j], sorted_tokens[j] = rank, token
        if len(representatives) > 0:
            representatives[c] = sorted_tokens[0]
        else:
            copy_part(sorted_tokens, 0, end - start, ordered, start)


@kernel
def count_pairs(clauses, keys, facts, n_places):
    """Count the tokens of each cell; return the pairs that occur twice, and the cells' totals."""
    pairs = np.full(n_places, NO_PAIR, np.int64)
    counts = np.zeros(n_places, np.int32)
    totals = np.zeros(facts[SIDE] * facts[SIDE], np.int32)
    n_twice = 0
    for c in range(len(keys)):
        cell = cell_of(keys[c], facts)
        for i in range(clauses.token_offsets[c], required_stop(clauses, c)):
            totals[cell] += 1
            pair = _pair(cell, clauses.token_ids[i])
            place = _place_of(pairs, pair)
            if place < 0:
                place = ~place
                pairs[place] = pair
            counts[place] += 1
            if counts[place] == 2:
                n_twice += 1
    kept = np.full(n_twice + n_twice // 2 + 16, NO_PAIR, np.int64)
    kept_counts = np.zeros(len(kept), np.int32)
    for place in range(n_places):
        if counts[place] >= 2:
            at = ~_place_of(kept, pairs[place])
            kept[at] = pairs[place]
            kept_counts[at] = counts[place]
    return kept, kept_counts, totals, n_twice


@kernel
def grown_pairs(pairs, counts):
    """Return a table of pairs twice as large."""
    larger = np.full(2 * len(pairs), NO_PAIR, np.int64)
    larger_counts = np.zeros(len(larger), np.int32)
    for place in range(len(pairs)):
        if pairs[place] != NO_PAIR:
            at = ~_place_of(larger, pairs[place])
            larger[at] = pairs[place]
            larger_counts[at] = counts[place]
    return larger, larger_counts


@kernel
def add_tokens(order, clauses, first, stop):
    """Count the tokens of new clauses in the ranks by frequency, which must reach so far."""
    for c in range(first, stop):
        for i in range(clauses.token_offsets[c], required_stop(clauses, c)):
            order.ranks[clauses.token_ids[i]] += 1.0


@kernel
def add_pairs(order, clauses, keys, first, stop):
    """Count the tokens of new clauses in their cells; there must be room for all of them."""
    for c in range(first, stop):
        cell = cell_of(keys[c - first], order.facts)
        for i in range(clauses.token_offsets[c], required_stop(clauses, c)):
            order.cell_totals[cell] += 1
            pair = _pair(cell, clauses.token_ids[i])
            place = _place_of(order.pairs, pair)
            if place < 0:
                place = ~place
                order.pairs[place] = pair
                order.facts[N_PAIRS] += 1
            order.pair_counts[place] += 1


@kernel
def greedy_ranks(clauses, n_tokens):
    """Return the round in which each token is picked by the greedy algorithm of [TKDE15] §4.2.

    A round picks the token that most of the clauses left over have, and takes those clauses away.
    Tokens that are never picked come after all others, frequent ones first.
    """
    n = len(clauses.subscriptions)
    counts = np.zeros(n_tokens, np.int64)
    for c in range(n):
        for i in range(clauses.token_offsets[c], required_stop(clauses, c)):
            counts[clauses.token_ids[i]] += 1
    starts = np.zeros(n_tokens + 1, np.int64)
    for t in range(n_tokens):
        starts[t + 1] = starts[t] + counts[t]
    holders = np.empty(starts[n_tokens], np.int32)
    ends = starts[:-1].copy()
    for c in range(n):
        for i in range(clauses.token_offsets[c], required_stop(clauses, c)):
            t = clauses.token_ids[i]
            holders[ends[t]] = c
            ends[t] += 1
    # Tokens in buckets by their count, as chains; a token sinks when its bucket's turn comes and it
    # has lost clauses since.
    left = counts.copy()
    heads = np.full(counts.max() + 1 if n_tokens > 0 else 1, -1, np.int64)
    following = np.full(n_tokens, -1, np.int64)
    for t in range(n_tokens - 1, -1, -1):
        following[t] = heads[counts[t]]
        heads[counts[t]] = t
    ranks = np.full(n_tokens, np.inf)
    is_taken = np.zeros(n, np.uint8)
    n_rounds = 0
    for count in range(len(heads) - 1, 0, -1):
        while heads[count] >= 0:
            t = heads[count]
            heads[count] = following[t]
            if left[t] < count:
                following[t] = heads[left[t]]
                heads[left[t]] = t
                continue
            ranks[t] = n_rounds
            n_rounds += 1
            for k in range(starts[t], starts[t + 1]):
                c = holders[k]
                if is_taken[c] == 0:
                    is_taken[c] = 1
                    for i in range(clauses.token_offsets[c], required_stop(clauses, c)):
                        left[clauses.token_ids[i]] -= 1
    most = counts.max() if n_tokens > 0 else 0
    for t in range(n_tokens):
        if ranks[t] == np.inf:
            ranks[t] = n_rounds + most - counts[t]
    return ranks
