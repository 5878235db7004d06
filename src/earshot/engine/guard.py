"""One call at a time, none after one that was interrupted, and something to do after each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from earshot.errors import EarshotError


class Guard:
    """Lets one thread in at a time, and none after a change that was not completed.

    Args:
        on_leave: Called after each thread that leaves, when the next may be inside already.
    """

    def __init__(self, on_leave: Callable[[], None]) -> None:
        self._lock = threading.RLock()
        self._is_whole = True
        self._gave_up = False
        self._depth = 0  # calls within each other, of the thread inside
        self._on_leave = on_leave

    def __enter__(self) -> None:
        self._lock.acquire()
        # Within a change that this thread makes nobody enters.
        if not self._is_whole or self._gave_up:
            self._lock.release()
            raise EarshotError(
                "an earlier call was interrupted while it changed the engine, whose parts may "
                "disagree now; open the last saved state, or make a new engine"
            )
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        is_out = self._depth == 0
        self._lock.release()
        if is_out:
            self._on_leave()

    def give_up(self) -> None:
        """Let nobody in any more, whatever is completed."""
        self._gave_up = True

    @contextmanager
    def even_so(self) -> Iterator[None]:
        """Let a thread in whatever happened, and whoever gave up."""
        with self._lock:
            yield

    def change(self, unless: type[Exception] | tuple[()] = ()) -> _Change:
        """Note that parts of the engine disagree until this is left, for good by an exception.

        Args:
            unless: Exceptions that come before anything has changed.
        """
        return _Change(self, unless)


class _Change:
    """A change under way; a class, since a generator takes a microsecond more."""

    __slots__ = ("_guard", "_unless")

    def __init__(self, guard: Guard, unless: type[Exception] | tuple[()]) -> None:
        self._guard = guard
        self._unless = unless

    def __enter__(self) -> None:
        self._guard._is_whole = False

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, self._unless):
            self._guard._is_whole = True
