"""The plan: which shard each subscription belongs to.

A plan is a binary tree over subscriptions. Each node cuts in two by one property of the first
clause of a subscription: the centre of its box in x or y, the size of its box, the token that it is
filed under (its rarest known one), or, where nothing else tells subscriptions apart, a hash of what
it says. A leaf is a *piece*, so every subscription is in exactly one. A shard is one piece, or
several, where work and bytes lie in different places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from earshot.model.arrays import ClauseArrays, Float64s, Int32s, Int64s
from earshot.placement.kernels import N_KEYS, assign_slots, file_clauses, key_slots
from earshot.storage import Contents, Saved

Int8s = npt.NDArray[np.int8]


class PlanArrays(NamedTuple):
    """A plan's tree; node 0 is the root."""

    kinds: Int32s  # (n_nodes,) CUT_… or LEAF
    # Smaller keys go left. For CUT_TOKEN: the share of tokens that goes left of those not listed.
    thresholds: Float64s  # (n_nodes,)
    children: Int32s  # (n_nodes, 2) left and right node; of a leaf, its piece twice
    token_starts: Int64s  # (n_nodes + 1,) tokens listed for node i are [i]:[i+1]; CUT_TOKEN only
    tokens: Int32s  # ascending within a node
    token_sides: Int8s  # LEFT or RIGHT
    piece_shards: Int32s  # (n_pieces,) the shard of each piece


@dataclass(frozen=True)
class ShardPlan:
    """Which shard each subscription belongs to."""

    n_shards: int
    arrays: PlanArrays

    def assign(self, clauses: ClauseArrays, frequencies: Int64s) -> Int32s:
        """Return the shard of each slot from 0 on; -1 for a slot that has no clause."""
        return self.shards_of(self.pieces(clauses, frequencies))

    def shards_of(self, pieces: Int32s) -> Int32s:
        """Return the shard of each piece; -1 for -1."""
        return np.append(self.arrays.piece_shards, np.int32(-1))[pieces]

    def pieces(self, clauses: ClauseArrays, frequencies: Int64s) -> Int32s:
        """Return the piece of each slot from 0 on; -1 for a slot that has no clause.

        Any subscriptions can be assigned, not only sampled ones. Tokens beyond the frequencies are
        ignored. The same frequencies give the same piece at any time.
        """
        filed = filed_tokens(clauses, frequencies)[0]
        keys, tokens = slot_keys(clauses, filed, len(frequencies))
        pieces = np.empty(len(tokens), np.int32)
        assign_slots(self.arrays, keys, tokens, pieces)
        return pieces

    @property
    def first_pieces(self) -> Int32s:
        """The first piece of each shard, for what belongs to the shard as a whole."""
        first = np.unique(self.arrays.piece_shards, return_index=True)[1]
        return first.astype(np.int32)

    def contents(self) -> Contents:
        """Return what is to be saved."""
        return Contents({"n_shards": self.n_shards}, {"arrays": self.arrays})

    @classmethod
    def open(cls, saved: Saved) -> Self:
        """Open a saved plan."""
        return cls(saved.facts["n_shards"], saved.group("arrays", PlanArrays))


# ---- what a plan looks at -----------------------------------------------------------------------


def filed_tokens(clauses: ClauseArrays, frequencies: Int64s) -> tuple[Int32s, Int32s]:
    """Return the token that each clause is filed under, and the next rarest one or -1."""
    n = len(clauses.subscriptions)
    tokens, next_tokens = np.empty(n, np.int32), np.empty(n, np.int32)
    file_clauses(clauses, frequencies, tokens, next_tokens)
    return tokens, next_tokens


def slot_keys(clauses: ClauseArrays, filed: Int32s, n_known: int) -> tuple[Float64s, Int32s]:
    """Return what a plan looks at: keys (n_slots, N_KEYS), and the token of each slot."""
    n_slots = int(clauses.subscriptions.max(initial=-1)) + 1
    keys = np.zeros((n_slots, N_KEYS))
    tokens = np.empty(n_slots, np.int32)
    key_slots(clauses, filed, n_known, clauses.boxes.view(np.uint64), keys, tokens)
    return keys, tokens


def boxes_around(boxes: Float64s, starts: Int64s) -> Float64s:
    """Return the box around each run of boxes, none of which is empty."""
    around = np.empty((len(starts), 4))
    if len(starts):
        np.minimum.reduceat(boxes[:, :2], starts, axis=0, out=around[:, :2])
        np.maximum.reduceat(boxes[:, 2:], starts, axis=0, out=around[:, 2:])
    return around
