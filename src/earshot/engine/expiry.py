"""Which subscriptions end when."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from earshot.encoding import NEVER_US
from earshot.kernels.growing import GrowingArray
from earshot.model.arrays import Int32s, Int64s


class ExpiryArrays(NamedTuple):
    """What is saved of expiries."""

    expires: Int64s  # (n_slots,) in microseconds; empty where no subscription ends


class Expiry:
    """When the subscription in each slot ends; takes no memory until the first one does.

    Slots that end are kept as sorted runs of which each is at most half as long as the one before,
    so that adding is cheap on average, one at a time or many.
    """

    def __init__(self, arrays: ExpiryArrays | None = None) -> None:
        self._times: GrowingArray | None = None
        self._runs: list[tuple[Int64s, Int32s]] = []  # ends and slots, by their ends
        if arrays is not None and len(arrays.expires):
            self.append(0, arrays.expires)

    @property
    def arrays(self) -> ExpiryArrays:
        """What is saved."""
        return ExpiryArrays(np.empty(0, np.int64) if self._times is None else self._times.view)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return 0 if self._times is None else self._times.nbytes

    @property
    def times_us(self) -> Int64s | None:
        """End of each slot, NEVER_US for those that have none; None where no slot has one."""
        return None if self._times is None else self._times.view

    @property
    def next_us(self) -> int | None:
        """When the next subscription ends, None where none does."""
        return min((int(times_us[0]) for times_us, _ in self._runs), default=None)

    def is_due(self, clock_us: int) -> bool:
        """Whether a subscription ends at or before ``clock_us``."""
        next_us = self.next_us
        return next_us is not None and next_us <= clock_us

    def of(self, slots: Int32s) -> Int64s:
        """Return when slots end."""
        if self._times is None:
            return np.full(len(slots), NEVER_US, np.int64)
        return self._times.view[slots]

    def append(self, first_slot: int, times_us: Int64s) -> None:
        """Note when the next slots end, the first of which is given."""
        ends = np.flatnonzero(times_us != NEVER_US)
        if self._times is None and not len(ends):
            return
        if self._times is None:
            self._times = GrowingArray(np.empty(0, np.int64), fill=NEVER_US)
        self._times.resize(first_slot)
        self._times.append(times_us)
        times_us, slots = times_us[ends], (first_slot + ends).astype(np.int32)
        while self._runs and len(self._runs[-1][0]) < 2 * len(slots):
            more_times_us, more_slots = self._runs.pop()
            times_us = np.concatenate([more_times_us, times_us])
            slots = np.concatenate([more_slots, slots])
        if len(slots):
            order = np.argsort(times_us, kind="stable")
            self._runs.append((times_us[order], slots[order]))

    def forget(self, slots: Int32s) -> None:
        """Note that slots ended; what is queued for them is void."""
        if self._times is not None:
            self._times.view[slots] = NEVER_US

    def pop_until(self, clock_us: int) -> Int32s:
        """Take out the slots that end at or before ``clock_us``; return those still to end."""
        if self._times is None:
            return np.empty(0, np.int32)
        due, left = [np.empty(0, np.int32)], []
        for times_us, slots in self._runs:
            n = int(np.searchsorted(times_us, clock_us, side="right"))
            due.append(slots[:n])
            if n < len(slots):
                left.append((times_us[n:], slots[n:]))
        self._runs = left
        found = np.concatenate(due)
        return found[self._times.view[found] <= clock_us]

    def renumber(self, kept: Int32s) -> None:
        """Give slot i the end of slot ``kept[i]``."""
        if self._times is None:
            return
        renamed = np.full(len(self._times), -1, np.int32)
        renamed[kept] = np.arange(len(kept), dtype=np.int32)
        self._times = GrowingArray(self._times.view[kept], fill=NEVER_US)
        runs = [(times_us, renamed[slots]) for times_us, slots in self._runs]
        self._runs = [
            (times_us[slots >= 0], slots[slots >= 0])
            for times_us, slots in runs
            if (slots >= 0).any()
        ]
