"""Expiries, in lock-step with a list."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from earshot.engine.expiry import Expiry

times = st.integers(-5, 12)
# Times to add, a clock to advance to, or None to leave out every third slot and count anew.
steps = st.lists(st.one_of(st.lists(times, max_size=20), times, st.none()), max_size=25)


@given(steps)
@settings(deadline=None)
def test_expiries_are_a_sorted_list(steps: list[list[int] | int | None]) -> None:
    expiry = Expiry()
    waiting: list[tuple[int, int]] = []
    n_slots = 0
    for step in steps:
        if isinstance(step, list):
            slots = range(n_slots, n_slots + len(step))
            expiry.append(n_slots, np.array(step, np.int64))
            waiting += zip(step, slots, strict=True)
            n_slots += len(step)
        elif step is None:
            kept = [slot for slot in range(n_slots) if slot % 3]
            expiry.renumber(np.array(kept, np.int32))
            waiting = [(time, kept.index(slot)) for time, slot in waiting if slot % 3]
            n_slots = len(kept)
        else:
            due = sorted(slot for time, slot in waiting if time <= step)
            assert expiry.is_due(step) == bool(due)
            found = expiry.pop_until(step)
            assert found.dtype == np.int32
            assert sorted(found.tolist()) == due
            assert not expiry.is_due(step)
            waiting = [(time, slot) for time, slot in waiting if time > step]
    assert sorted(expiry.pop_until(100).tolist()) == sorted(slot for _, slot in waiting)
    assert not expiry.is_due(100)


def test_adding_one_at_a_time_stays_cheap() -> None:
    expiry = Expiry()
    for slot in range(5000):
        expiry.append(slot, np.array([5000 - slot], np.int64))
    # Each run is at most half as long as the one before.
    lengths = [len(run[0]) for run in expiry._runs]
    assert sum(lengths) == 5000
    assert all(2 * after <= before for before, after in pairwise(lengths))
    assert sorted(expiry.pop_until(3).tolist()) == [4997, 4998, 4999]
    assert sorted(expiry.pop_until(6).tolist()) == [4994, 4995, 4996]
