"""One call at a time, and none after one that was interrupted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from earshot.errors import EarshotError


class Guard:
    """Lets one thread in at a time, and none after a change that was not completed."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_whole = True

    def __enter__(self) -> None:
        self._lock.acquire()
        # Within a change that this thread makes nobody enters.
        if not self._is_whole:
            self._lock.release()
            raise EarshotError(
                "an earlier call was interrupted while it changed the engine, whose parts may "
                "disagree now; open the last saved state, or make a new engine"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @contextmanager
    def change(self, unless: type[Exception] | tuple[()] = ()) -> Iterator[None]:
        """Note that parts of the engine disagree until this is left, for good by an exception.

        Args:
            unless: Exceptions that come before anything has changed.
        """
        self._is_whole = False
        try:
            yield
        except unless:
            self._is_whole = True
            raise
        self._is_whole = True
