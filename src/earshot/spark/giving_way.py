"""Work in a task that leaves the processor to all other work of the machine.

While changes are merged, batches of messages are matched on the same cores. The system lets a
thread lower its own priority and never raise it again, and Spark uses a Python worker for one task
after another. So the work is done by a thread of its own, which ends with the task: nothing is
started that could outlive a task or a worker, and the worker's next task has the usual priority.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pyarrow as pa

from earshot.spark.rows import Batches

LOWEST_PRIORITY = 19


def giving_way(
    task: Callable[[Iterable[pa.RecordBatch]], Batches], batches: Iterable[pa.RecordBatch]
) -> Batches:
    """Yield what a task yields; it works at the lowest priority.

    Outside Linux, where threads have no priorities of their own, it works as usual.
    """
    end: Any = object()
    _start_arrow_threads()
    with ThreadPoolExecutor(1, "giving-way", _lower_priority) as thread:
        found = task(batches)
        while (batch := thread.submit(next, found, end).result()) is not end:
            yield batch


def _lower_priority() -> None:
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)


def _start_arrow_threads() -> None:
    """Let Arrow start its threads now, which keep the priority of whoever needs them first."""
    pa.table({"key": [0]}).group_by("key").aggregate([])
