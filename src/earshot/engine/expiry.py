"""Which subscriptions end when."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from earshot.model.arrays import Int32s, Int64s


class ExpiryArrays(NamedTuple):
    """What is saved of expiries."""

    expires: Int64s  # (n_slots,) in microseconds; empty where no subscription ends


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
