"""The queue of expiries, in lock-step with a list."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from earshot.engine.expiry import ExpiryQueue

times = st.integers(-5, 12)
# Times to add, a clock to advance to, or None to leave out every third slot and count anew.
steps = st.lists(st.one_of(st.lists(times, max_size=20), times, st.none()), max_size=25)


@given(steps)
@settings(deadline=None)
def test_a_queue_is_a_sorted_list(steps: list[list[int] | int | None]) -> None:
    queue = ExpiryQueue()
    waiting: list[tuple[int, int]] = []
    n_slots = 0
    for step in steps:
        if isinstance(step, list):
            slots = range(n_slots, n_slots + len(step))
            queue.push(np.array(step, np.int64), np.array(slots, np.int32))
            waiting += zip(step, slots, strict=True)
            n_slots += len(step)
        elif step is None:
            new_slots = np.array([slot - slot // 3 - 1 for slot in range(n_slots)], np.int32)
            new_slots[::3] = -1
            queue = queue.renumbered(new_slots)
            waiting = [(time, int(new_slots[slot])) for time, slot in waiting if slot % 3]
            n_slots -= len(new_slots[::3])
        else:
            due = sorted(slot for time, slot in waiting if time <= step)
            assert queue.is_due(step) == bool(due)
            found = queue.pop_until(step)
            assert found.dtype == np.int32
            assert sorted(found.tolist()) == due
            assert not queue.is_due(step)
            waiting = [(time, slot) for time, slot in waiting if time > step]
    assert sorted(queue.pop_until(100).tolist()) == sorted(slot for _, slot in waiting)
    assert not queue.is_due(100)


def test_adding_one_at_a_time_stays_cheap() -> None:
    queue = ExpiryQueue()
    for slot in range(5000):
        queue.push(np.array([5000 - slot], np.int64), np.array([slot], np.int32))
    # Each run is at most half as long as the one before.
    lengths = [len(run[0]) for run in queue._runs]
    assert sum(lengths) == 5000
    assert all(2 * after <= before for before, after in pairwise(lengths))
    assert sorted(queue.pop_until(3).tolist()) == [4997, 4998, 4999]
    assert sorted(queue.pop_until(6).tolist()) == [4994, 4995, 4996]
