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
    """When the subscription in each slot ends; takes no memory until the first one does."""

    def __init__(self, arrays: ExpiryArrays | None = None) -> None:
        self._times: GrowingArray | None = None
        self._queue = ExpiryQueue()
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
        return self._queue.next_us

    def is_due(self, clock_us: int) -> bool:
        """Whether a subscription ends at or before ``clock_us``."""
        return self._queue.is_due(clock_us)

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
        self._queue.push(times_us[ends], (first_slot + ends).astype(np.int32))

    def forget(self, slots: Int32s) -> None:
        """Note that slots ended; what is queued for them is void."""
        if self._times is not None:
            self._times.view[slots] = NEVER_US

    def pop_until(self, clock_us: int) -> Int32s:
        """Return the slots that end at or before ``clock_us`` and have not ended yet."""
        slots = self._queue.pop_until(clock_us)
        return slots if self._times is None else slots[self._times.view[slots] <= clock_us]

    def renumber(self, kept: Int32s) -> None:
        """Give slot i the end of slot ``kept[i]``."""
        if self._times is None:
            return
        renamed = np.full(len(self._times), -1, np.int32)
        renamed[kept] = np.arange(len(kept), dtype=np.int32)
        self._times = GrowingArray(self._times.view[kept], fill=NEVER_US)
        self._queue = self._queue.renumbered(renamed)


class ExpiryQueue:
    """Slots in order of their expiry.

    Kept as sorted runs of which each is at most half as long as the one before, so that adding is
    cheap on average, one at a time or many.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[Int64s, Int32s]] = []

    def push(self, times_us: Int64s, slots: Int32s) -> None:
        """Add slots that expire at the given times."""
        while self._runs and len(self._runs[-1][0]) < 2 * len(times_us):
            more_times, more_slots = self._runs.pop()
            times_us = np.concatenate([more_times, times_us])
            slots = np.concatenate([more_slots, slots])
        if len(times_us):
            order = np.argsort(times_us, kind="stable")
            self._runs.append((times_us[order], slots[order]))

    @property
    def next_us(self) -> int | None:
        """When the first slot expires, None where no slot does."""
        return min((int(times_us[0]) for times_us, _ in self._runs), default=None)

    def is_due(self, clock_us: int) -> bool:
        """Whether any slot expires at or before ``clock_us``."""
        next_us = self.next_us
        return next_us is not None and next_us <= clock_us

    def renumbered(self, new_slots: Int32s) -> ExpiryQueue:
        """Return the queue with slot i called ``new_slots[i]``; those below 0 are left out."""
        queue = ExpiryQueue()
        for times_us, slots in self._runs:
            renamed = new_slots[slots]
            kept = renamed >= 0
            if kept.any():
                queue._runs.append((times_us[kept], renamed[kept]))
        return queue

    def pop_until(self, clock_us: int) -> Int32s:
        """Take out and return the slots that expire at or before ``clock_us``."""
        taken = [np.empty(0, np.int32)]
        for i, (times_us, slots) in enumerate(self._runs):
            n = int(np.searchsorted(times_us, clock_us, side="right"))
            if n:
                taken.append(slots[:n])
                self._runs[i] = (times_us[n:], slots[n:])
        if len(taken) > 1:
            self._runs = [run for run in self._runs if len(run[0])]
        return np.concatenate(taken)
