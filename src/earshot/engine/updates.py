"""What a call of the engine caused: updates, rejected rows and the work that it took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from earshot.encoding import NO_TIME_US
from earshot.engine.ids import Ids, IdTable, as_array
from earshot.errors import InvalidRow
from earshot.model.arrays import Float64s, Int64s
from earshot.model.batches import instant
from earshot.model.schemas import TIME, UPDATE_FIELDS, updates_schema
from earshot.model.subscriptions import Id
from earshot.model.updates import Update
from earshot.semantics.contract import Changes


@dataclass(frozen=True)
class Updates:
    """The updates of a batch of events, in order; iterating gives them one by one.

    Ids and columns are looked up when they are asked for.

    Attributes:
        rejects: Rows that were refused, when ``on_error="reject"`` asked for them.
    """

    _event_ids: Ids
    rejects: list[InvalidRow]
    _changes: Changes
    _ids: IdTable
    _reasons: Sequence[str]
    _times_us: Int64s  # of each event row; NO_TIME_US where there is none
    _message_ids: Ids | None  # of each update; None: the event's own

    def __len__(self) -> int:
        return len(self._changes.slots)

    def __iter__(self) -> Iterator[Update]:
        changes, n = self._changes, len(self)
        slots = changes.slots
        subscription_ids = self._ids.plain_ids_of(slots)
        rows = self._event_rows.tolist()
        signs = (
            repeat("+", n)
            if changes.signs is None
            else ("+" if sign > 0 else "-" for sign in changes.signs.tolist())
        )
        scores = repeat(None, n) if changes.scores is None else changes.scores.tolist()
        reasons = (
            repeat(self._reasons[0], n)
            if changes.reasons is None
            else (self._reasons[reason] for reason in changes.reasons.tolist())
        )
        times = [None if us == NO_TIME_US else instant(us) for us in self._times_us.tolist()]
        columns = (
            self._plain_message_ids(rows), subscription_ids, signs, scores, reasons,
            (times[row] for row in rows),
        )  # fmt: skip
        return (Update(*values) for values in zip(*columns, strict=True))

    def _plain_message_ids(self, rows: list[int]) -> Sequence[Id]:
        ids = self._event_ids if self._message_ids is None else self._message_ids
        plain: Sequence[Id] = ids if isinstance(ids, tuple) else ids.to_pylist()
        return plain if self._message_ids is not None else [plain[row] for row in rows]

    @cached_property
    def event_ids(self) -> pa.Array:
        """Ids of the rows that were taken.

        Messages of a publication, subscriptions of a change; nulls where both came together, none
        where only the clock moved.
        """
        return as_array(self._event_ids)

    @property
    def n_rows(self) -> int:
        """Rows that were taken."""
        return len(self._event_ids)

    @property
    def counters(self) -> Any:
        """Work that it took, as named numbers that do not depend on any clock."""
        return self._changes.counters

    @property
    def offsets(self) -> Int64s:
        """Where the updates of each event begin: those of row i are ``[i]:[i + 1]``."""
        return self._changes.offsets

    @property
    def scores(self) -> Float64s | None:
        """Score of each update, None where the semantics has none."""
        return self._changes.scores

    @property
    def latest(self) -> datetime | None:
        """Latest time of any row that was taken, None where none has one."""
        latest_us = int(self._times_us.max(initial=NO_TIME_US))
        return None if latest_us == NO_TIME_US else instant(latest_us)

    @cached_property
    def message_ids(self) -> pa.Array:
        """Message of each update."""
        if self._message_ids is not None:
            return as_array(self._message_ids)
        return self.event_ids.take(pa.array(self._event_rows))

    @cached_property
    def subscription_ids(self) -> pa.Array:
        """Subscription of each update."""
        return self._ids.ids_of(self._changes.slots)

    def table(self, columns: Sequence[str] = UPDATE_FIELDS) -> pa.Table:
        """Return one row per update, with these columns of the schema of updates."""
        schema = updates_schema(self.message_ids.type, self.subscription_ids.type, columns)
        return pa.table([self._column(name) for name in columns], schema=schema)

    @cached_property
    def _event_rows(self) -> Int64s:
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def _column(self, name: str) -> pa.Array:
        changes, n = self._changes, len(self)
        match name:
            case "message_id":
                return self.message_ids
            case "subscription_id":
                return self.subscription_ids
            case "sign":
                if changes.signs is None:
                    return pa.repeat("+", n)
                return pa.array(["-", "+"]).take(pa.array(changes.signs > 0).cast(pa.int8()))
            case "score":
                if changes.scores is None:
                    return pa.nulls(n, pa.float64())
                return pa.array(changes.scores)
            case "reason":
                if changes.reasons is None:
                    return pa.repeat(self._reasons[0], n)
                return pa.array(self._reasons).take(pa.array(changes.reasons))
            case _:
                times_us = self._times_us[self._event_rows]
                return pa.array(times_us, mask=times_us == NO_TIME_US).cast(TIME)
