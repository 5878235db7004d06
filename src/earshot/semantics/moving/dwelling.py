"""Subscriptions for which time decides what is told: dwell and cooldown.

Kernels answer with every message that comes to match, or no longer does. For most subscriptions
that is what is told. Here it is held back until a message has matched for long enough, and was away
for long enough. Only subscriptions that ask for that take time and memory for it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.encoding import NEVER_US, NO_TIME_US
from earshot.model.arrays import Int32s, Int64s, numbers_of
from earshot.semantics.moving.kernels.arrays import DWELLED, ENTERED, EXPIRED, SILENT_LATER
from earshot.semantics.moving.tables import SubscriberTable

Int8s = npt.NDArray[np.int8]


class Told(NamedTuple):
    """Changes in order."""

    rows: Int32s
    signs: Int8s
    reasons: Int8s
    slots: Int32s
    sequences: Int64s
    times: Int64s


class DwellingArrays(NamedTuple):
    """What is saved: pairs of a subscription and a message, sorted."""

    slots: Int32s
    sequences: Int64s
    dues: Int64s  # when it is to be given, NEVER_US where it does not match, or is given
    lefts: Int64s  # when it left, NO_TIME_US where it has not, or that is of no account any more
    is_given: npt.NDArray[np.uint8]


@dataclass(slots=True)
class _Pair:
    due_us: int = NEVER_US
    left_us: int = NO_TIME_US
    is_given: bool = False


class Dwelling:
    """Pairs of subscriptions and messages that match, or did so not long ago."""

    def __init__(self, arrays: DwellingArrays | None = None) -> None:
        self._pairs: dict[int, dict[int, _Pair]] = {}  # by slot and sequence
        self._dues: list[tuple[int, int, int]] = []  # due, sequence, slot: a heap
        self._n_enough = 1024
        if arrays is not None:
            columns: list[Any] = list(arrays)
            for slot, sequence, due_us, left_us, is_given in zip(
                *map(_listed, columns), strict=True
            ):
                pair = _Pair(due_us, left_us, bool(is_given))
                self._pairs.setdefault(slot, {})[sequence] = pair
        self._sort_dues()

    @property
    def arrays(self) -> DwellingArrays:
        """What is saved."""
        rows = [
            (slot, sequence, pair.due_us, pair.left_us, pair.is_given)
            for slot, pairs in sorted(self._pairs.items())
            for sequence, pair in sorted(pairs.items())
        ]
        slots, sequences, dues, lefts, are_given = zip(*rows, strict=True) if rows else ([],) * 5
        return DwellingArrays(
            np.array(slots, np.int32), np.array(sequences, np.int64), np.array(dues, np.int64),
            np.array(lefts, np.int64), np.array(are_given, np.uint8),
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """About the bytes of memory."""
        n_pairs = sum(map(len, self._pairs.values()))
        return 200 * n_pairs + 100 * len(self._dues)

    @property
    def next_us(self) -> int | None:
        """When the next message may be given, if one waits for that."""
        return self._dues[0][0] if self._dues else None

    def given_to(self, slot: int) -> list[int]:
        """Return the messages that a subscription has been given and still holds."""
        pairs = self._pairs.get(slot, {})
        return sorted(sequence for sequence, pair in pairs.items() if pair.is_given)

    def end(self, slots: Int32s) -> None:
        """Forget subscriptions."""
        for slot in slots.tolist():
            self._pairs.pop(slot, None)

    def renumber(self, kept: Int32s) -> None:
        """Follow slots to other numbers: slot i was ``kept[i]``."""
        numbers = numbers_of(kept, max(self._pairs, default=-1) + 1).tolist()
        self._pairs = {
            numbers[slot]: pairs for slot, pairs in self._pairs.items() if numbers[slot] >= 0
        }
        self._sort_dues()

    def told(self, found: Told, clocks_us: Int64s, table: SubscriberTable) -> Told:
        """Return what is told of what was found, and what is due by the clocks of the rows."""
        is_timed = (table.dwells_us[found.slots] > 0) | (table.cooldowns_us[found.slots] > 0)
        is_kept = ~is_timed
        given: list[tuple[int, ...]] = []  # row, sign, reason, slot, sequence, time
        chosen = np.flatnonzero(is_timed)
        changes = zip(*(_listed(each[chosen]) for each in found), strict=True)
        for at, (_, sign, reason, slot, sequence, time_us) in zip(
            chosen.tolist(), changes, strict=True
        ):
            # At one instant messages end first, then others have dwelled, then all else happens.
            until_us = time_us - 1 if reason == EXPIRED else time_us
            self._give_due(until_us, clocks_us, table, given)
            if sign > 0:
                is_kept[at] = self._comes(slot, sequence, time_us, table)
            else:
                is_kept[at] = self._goes(slot, sequence, time_us, reason, table)
        if len(clocks_us):
            self._give_due(int(clocks_us[-1]), clocks_us, table, given)
            self._clean(int(clocks_us[-1]), table)
        if not given and is_kept.all():
            return found
        kept = Told._make(each[is_kept] for each in found)
        if not given:
            return kept
        held: list[Any] = list(kept)
        both = Told._make(
            np.concatenate([column, np.array(values, column.dtype)])
            for column, values in zip(held, zip(*given, strict=True), strict=True)
        )
        phases = np.where(both.reasons == EXPIRED, 0, 2)
        phases[len(kept.rows) :] = 1
        order = np.lexsort((np.arange(len(phases)), phases, both.times, both.rows))
        return Told._make(each[order] for each in both)

    def _comes(self, slot: int, sequence: int, time_us: int, table: SubscriberTable) -> bool:
        """Note that a message comes to match; return whether it is given at once."""
        pair = self._pairs.setdefault(slot, {}).setdefault(sequence, _Pair())
        due_us = time_us + int(table.dwells_us[slot])
        if pair.left_us != NO_TIME_US:
            due_us = max(due_us, pair.left_us + int(table.cooldowns_us[slot]))
        if due_us <= time_us:
            pair.is_given = True
            return True
        pair.due_us = due_us
        heapq.heappush(self._dues, (due_us, sequence, slot))
        return False

    def _goes(
        self, slot: int, sequence: int, time_us: int, reason: int, table: SubscriberTable
    ) -> bool:
        """Note that a message no longer matches; return whether somebody is told."""
        pairs = self._pairs[slot]
        pair = pairs[sequence]
        was_given = pair.is_given
        pair.is_given, pair.due_us = False, NEVER_US
        if was_given:
            pair.left_us = time_us
        is_over = pair.left_us == NO_TIME_US or table.cooldowns_us[slot] == 0
        if reason == EXPIRED or is_over:
            del pairs[sequence]
        return was_given and not table.view.flags[slot] & SILENT_LATER

    def _give_due(
        self,
        until_us: int,
        clocks_us: Int64s,
        table: SubscriberTable,
        given: list[tuple[int, ...]],
    ) -> None:
        """Give what is due at or before an instant."""
        while self._dues and self._dues[0][0] <= until_us:
            due_us, sequence, slot = heapq.heappop(self._dues)
            pair = self._pairs.get(slot, {}).get(sequence)
            if pair is None or pair.due_us != due_us:
                continue  # it went meanwhile
            pair.due_us, pair.is_given = NEVER_US, True
            row = int(np.searchsorted(clocks_us, due_us))
            reason = DWELLED if table.dwells_us[slot] > 0 else ENTERED
            given.append((row, 1, reason, slot, sequence, due_us))

    def _clean(self, clock_us: int, table: SubscriberTable) -> None:
        """Forget when messages left where that is of no account any more."""
        if sum(map(len, self._pairs.values())) <= self._n_enough:
            return
        for slot, pairs in self._pairs.items():
            cooldown_us = int(table.cooldowns_us[slot])
            for sequence in [
                sequence
                for sequence, pair in pairs.items()
                if not pair.is_given
                and pair.due_us == NEVER_US
                and pair.left_us + cooldown_us <= clock_us
            ]:
                del pairs[sequence]
        self._n_enough = max(1024, 2 * sum(map(len, self._pairs.values())))

    def _sort_dues(self) -> None:
        self._dues = sorted(
            (pair.due_us, sequence, slot)
            for slot, pairs in self._pairs.items()
            for sequence, pair in pairs.items()
            if pair.due_us != NEVER_US
        )


def _listed(array: npt.NDArray[Any]) -> list[int]:
    numbers: list[int] = array.tolist()
    return numbers
