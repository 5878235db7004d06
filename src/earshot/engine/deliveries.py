"""What publishing causes: the messages of a batch, each with the subscriptions that it reaches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import numpy as np
import pyarrow as pa

from earshot.engine.ids import IdTable
from earshot.errors import InvalidRow
from earshot.indexes.answers import Counters
from earshot.model.arrays import Float64s, Int32s, Int64s
from earshot.model.schemas import updates_schema
from earshot.model.updates import Update

TABLE_FIELDS = ("sign", "message_id", "subscription_id", "score", "reason")


@dataclass(frozen=True)
class Deliveries:
    """What publishing a batch caused: each accepted message with its subscriptions.

    Attributes:
        message_ids: Ids of the accepted messages.
        offsets: Subscriptions of message i are ``subscription_ids[offsets[i]:offsets[i + 1]]``.
        counters: Work that it took.
        rejects: Refused messages, when asked for.
        latest: Latest time of any accepted message, None where none has one.
        scores: Score of each delivery, where matching is ranked.
    """

    message_ids: pa.Array
    offsets: Int64s
    counters: Counters
    rejects: list[InvalidRow]
    latest: datetime | None
    scores: Float64s | None
    _slots: Int32s
    _ids: IdTable

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def event_ids(self) -> pa.Array:
        """Ids of the accepted messages."""
        return self.message_ids

    @cached_property
    def subscription_ids(self) -> pa.Array:
        """Ids of the subscriptions, all messages one after the other; looked up when asked for."""
        return self._ids.ids_of(self._slots)

    def updates(self) -> list[Update]:
        """Return one update per delivery."""
        subscription_ids = self.subscription_ids.to_pylist()
        scores = [None] * len(subscription_ids) if self.scores is None else self.scores.tolist()
        updates = []
        for row, message_id in enumerate(self.message_ids.to_pylist()):
            for k in range(self.offsets[row], self.offsets[row + 1]):
                updates.append(Update("+", message_id, subscription_ids[k], scores[k]))
        return updates

    def table(self, columns: Sequence[str] = TABLE_FIELDS) -> pa.Table:
        """Return one row per delivery, in the schema of updates."""
        n = len(self.subscription_ids)
        rows = np.repeat(np.arange(len(self.message_ids)), np.diff(self.offsets))
        message_ids = self.message_ids.take(pa.array(rows))
        schema = updates_schema(message_ids.type, self.subscription_ids.type, TABLE_FIELDS)
        return pa.table(
            [
                pa.repeat("+", n),
                message_ids,
                self.subscription_ids,
                pa.nulls(n, pa.float64()) if self.scores is None else pa.array(self.scores),
                pa.repeat("match", n),
            ],
            schema=schema,
        ).select(columns)
