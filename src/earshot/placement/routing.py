"""Which shard each subscription belongs to, and which shards a message goes to.

A *plan* is a binary tree over subscriptions. Each node cuts in two by one property of the first
clause of a subscription: the centre of its box in x or y, the size of its box, the token that it is
filed under (its rarest known one), or, where nothing else tells subscriptions apart, a hash of what
it says. A leaf is a shard, so every subscription is in exactly one.

For each token that a clause of a shard is filed under, a *unit* has the box around those clauses. A
message goes to the shards with a unit of one of its tokens whose box it meets. A clause matches
only messages that carry all its tokens and meet its box, so no match is lost, whatever the plan was
cut from and however many clauses a subscription has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from earshot.errors import InvalidInput
from earshot.indexes.answers import collect_answers
from earshot.model.arrays import ClauseArrays, Float64s, Int32s, Int64s, MessageArrays
from earshot.placement.kernels import N_KEYS, assign_slots, file_clauses, key_slots, route_messages
from earshot.storage import Contents, Saved

Int8s = npt.NDArray[np.int8]


class PlanArrays(NamedTuple):
    """A plan's tree; node 0 is the root."""

    kinds: Int32s  # (n_nodes,) CUT_… or LEAF
    # Smaller keys go left. For CUT_TOKEN: the share of tokens that goes left of those not listed.
    thresholds: Float64s  # (n_nodes,)
    children: Int32s  # (n_nodes, 2) left and right node; of a leaf, its shard twice
    token_starts: Int64s  # (n_nodes + 1,) tokens listed for node i are [i]:[i+1]; CUT_TOKEN only
    tokens: Int32s  # ascending within a node
    token_sides: Int8s  # LEFT or RIGHT


@dataclass(frozen=True)
class ShardPlan:
    """Which shard each subscription belongs to."""

    n_shards: int
    arrays: PlanArrays

    def assign(self, clauses: ClauseArrays, frequencies: Int64s) -> Int32s:
        """Return the shard of each slot from 0 on; -1 for a slot that has no clause.

        Any subscriptions can be assigned, not only sampled ones. Tokens beyond the frequencies are
        ignored. The same frequencies give the same shard at any time.
        """
        filed = filed_tokens(clauses, frequencies)[0]
        keys, tokens = slot_keys(clauses, filed, len(frequencies))
        shards = np.empty(len(tokens), np.int32)
        assign_slots(self.arrays, keys, tokens, shards)
        return shards

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


# ---- messages -----------------------------------------------------------------------------------


class UnitArrays(NamedTuple):
    """Which shards hold clauses filed under which tokens, and where; sorted by token, shard."""

    tokens: Int32s  # (n_units,)
    shards: Int32s  # (n_units,)
    boxes: Float64s  # (n_units, 4) around those clauses


def units_of(clauses: ClauseArrays, shards: Int32s, frequencies: Int64s) -> UnitArrays:
    """Return the units of clauses whose slots were assigned to ``shards``.

    ``frequencies`` must be those of the assignment.
    """
    filed = filed_tokens(clauses, frequencies)[0]
    return _joined(filed, shards[clauses.subscriptions], clauses.boxes)


def merge_units(parts: Sequence[UnitArrays]) -> UnitArrays:
    """Return the units of all parts, with the boxes of equal token and shard joined."""
    if not parts:
        return _joined(np.empty(0, np.int32), np.empty(0, np.int32), np.empty((0, 4)))
    return _joined(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _joined(tokens: Int32s, shards: Int32s, boxes: Float64s) -> UnitArrays:
    pairs = tokens.astype(np.int64) << 32 | shards
    order = np.argsort(pairs, kind="stable")
    pairs = pairs[order]
    starts = np.flatnonzero(np.diff(pairs, prepend=-1))
    pairs = pairs[starts]
    return UnitArrays(
        (pairs >> 32).astype(np.int32),
        (pairs & 0xFFFFFFFF).astype(np.int32),
        boxes_around(boxes[order], starts),
    )


class Router:
    """Sends messages to the shards that can match them."""

    def __init__(self, units: UnitArrays, n_shards: int) -> None:
        outside = (units.shards < 0) | (units.shards >= n_shards)
        if outside.any():
            raise InvalidInput(
                f"units of shard {units.shards[outside][0]}; expected shards 0 to {n_shards - 1}"
            )
        self.units = units
        self.n_shards = n_shards
        self._starts = np.searchsorted(
            units.tokens, np.arange(int(units.tokens.max(initial=-1)) + 2)
        ).astype(np.int64)

    def route(self, messages: MessageArrays) -> tuple[Int64s, Int32s]:
        """Return offsets and the shards of each message, each once and ascending.

        A message box with ``min_x > max_x`` is taken to cross the antimeridian.
        """
        last_seen = np.full(self.n_shards, -1, np.int64)
        units = self.units

        def run(row: int, answers: Int32s, offsets: Int64s) -> int:
            next_row: int = route_messages(
                self._starts, units.shards, units.boxes, messages, row, last_seen, answers, offsets
            )
            return next_row

        offsets, (shards,) = collect_answers(len(messages.boxes), run)
        return offsets, shards
