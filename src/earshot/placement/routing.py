"""Units, which tell what shards hold, and the router that sends messages by them.

For each token that a clause of a piece is filed under, a *unit* has the box around those clauses. A
message goes to the shards with a unit of one of its tokens whose box it meets. (Pieces of one shard
may be far apart, and a box around all would draw the messages in between.) A clause matches
only messages that carry all its tokens and meet its box, so no match is lost, whatever the plan was
cut from and however many clauses a subscription has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from earshot.errors import InvalidInput
from earshot.indexes.answers import collect_answers
from earshot.model.arrays import ClauseArrays, Float64s, Int32s, Int64s, MessageArrays
from earshot.placement.kernels import route_messages
from earshot.placement.plan import boxes_around, filed_tokens


class UnitArrays(NamedTuple):
    """Which pieces hold clauses filed under which tokens, and where; sorted by token, piece."""

    tokens: Int32s  # (n_units,)
    pieces: Int32s  # (n_units,)
    boxes: Float64s  # (n_units, 4) around those clauses


def units_of(clauses: ClauseArrays, pieces: Int32s, frequencies: Int64s) -> UnitArrays:
    """Return the units of clauses whose slots were assigned to ``pieces``.

    ``frequencies`` must be those of the assignment.
    """
    filed = filed_tokens(clauses, frequencies)[0]
    return _joined(filed, pieces[clauses.subscriptions], clauses.boxes)


def merge_units(parts: Sequence[UnitArrays]) -> UnitArrays:
    """Return the units of all parts, with the boxes of equal token and piece joined."""
    if not parts:
        return _joined(np.empty(0, np.int32), np.empty(0, np.int32), np.empty((0, 4)))
    return _joined(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _joined(tokens: Int32s, pieces: Int32s, boxes: Float64s) -> UnitArrays:
    pairs = tokens.astype(np.int64) << 32 | pieces
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
    """Sends messages to the shards that can match them.

    Args:
        units: What is where.
        n_shards: Number of shards.
        piece_shards: The shard of each piece; by default each piece is one.
    """

    def __init__(
        self, units: UnitArrays, n_shards: int, piece_shards: Int32s | None = None
    ) -> None:
        if piece_shards is None:
            piece_shards = np.arange(n_shards, dtype=np.int32)
        outside = (units.pieces < 0) | (units.pieces >= len(piece_shards))
        if outside.any():
            raise InvalidInput(
                f"units of piece {units.pieces[outside][0]}; expected pieces 0 to "
                f"{len(piece_shards) - 1}"
            )
        self.units = units
        self._shards = piece_shards[units.pieces]
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
                self._starts, self._shards, units.boxes, messages, row, last_seen, answers, offsets
            )
            return next_row

        offsets, (shards,) = collect_answers(len(messages.boxes), run)
        return offsets, shards
