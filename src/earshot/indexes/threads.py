"""Threads that match: those that work is shared among, and working memory kept from call to call.

To start and end threads takes a tenth of the time of a batch of 10,000 messages, so those of the
first call wait for the next one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

MOST_THREADS = 1024
"""Of all calls together; a thread is started only where none is free."""

_pool: ThreadPoolExecutor | None = None


def share(work: Callable[[T], R], parts: Iterable[T]) -> list[R]:
    """Return what ``work`` makes of each part; the first is done by this thread.

    Work must not share work in turn, which could wait for itself. An exception is raised when all
    parts have ended.
    """
    global _pool  # noqa: PLW0603
    if _pool is None:
        _pool = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="earshot")
    own, *others = parts
    given = [_pool.submit(work, part) for part in others]
    try:
        first = work(own)
    finally:
        wait(given)
    return [first, *(each.result() for each in given)]


def _forget() -> None:
    """Have new threads: those of the parent are not in a forked process."""
    global _pool  # noqa: PLW0603
    _pool = None


os.register_at_fork(after_in_child=_forget)


class Scratches:
    """Working memory that is lent to one thread at a time; copies and saved ones have none."""

    def __init__(self) -> None:
        self._free: list[Any] = []

    def take(self, fits: Callable[[Any], bool], new: Callable[[], Any]) -> Any:
        """Return what an earlier call gave back if it still fits, else new working memory."""
        try:
            scratch = self._free.pop()
        except IndexError:  # another thread may be faster, so one cannot ask first
            return new()
        return scratch if fits(scratch) else new()

    def give_back(self, scratch: Any) -> None:
        """Keep working memory for later; not after an exception, which may leave marks in it."""
        self._free.append(scratch)

    def __getstate__(self) -> dict[str, Any]:
        return {"_free": []}
