"""Work that is shared among threads which stay."""

from __future__ import annotations

import os
import threading
import time

import pytest

from earshot.indexes import threads
from earshot.indexes.threads import share


def test_parts_are_done_in_order_by_threads_that_stay() -> None:
    threads._forget()  # those that other tests have started

    def work(part: int) -> tuple[int, str]:
        time.sleep(0.001)
        return part, threading.current_thread().name

    done = [share(work, range(3)) for _ in range(20)]
    assert all([part for part, _ in each] == [0, 1, 2] for each in done)
    assert {each[0][1] for each in done} == {threading.current_thread().name}
    # Two, or some more where one was not yet free again.
    assert 2 <= len({name for each in done for _, name in each[1:]}) <= 8


@pytest.mark.parametrize("failing", [0, 2])
def test_an_exception_waits_for_the_other_parts(failing: int) -> None:
    ended = []

    def work(part: int) -> None:
        if part == failing:
            raise ZeroDivisionError
        time.sleep(0.02)
        ended.append(part)

    with pytest.raises(ZeroDivisionError):
        share(work, range(3))
    assert sorted(ended) == sorted({0, 1, 2} - {failing})


@pytest.mark.filterwarnings("ignore:This process")  # forks while it has threads
def test_a_forked_process_has_threads_of_its_own() -> None:
    assert share(abs, [-1, -2]) == [1, 2]
    child = os.fork()
    if child == 0:
        threading.Timer(10, os._exit, [1]).start()  # a part that nobody does would wait for ever
        os._exit(0 if share(abs, [-1, -2]) == [1, 2] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
