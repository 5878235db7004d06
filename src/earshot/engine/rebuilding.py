"""Rebuilding the structure in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable

from earshot.semantics.contract import Rebuild


class Background:
    """At most one rebuild at a time, in a thread of its own."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_free(self) -> bool:
        """Whether no rebuild is under way."""
        return self._thread is None

    def start(self, rebuild: Rebuild, finish: Callable[[], None]) -> None:
        """Build, then call ``finish``."""

        def run() -> None:
            try:
                rebuild.build()
                finish()
            except BaseException as error:
                self._error = error
                raise
            finally:
                self._thread = None

        self._thread = threading.Thread(target=run, name="earshot-rebuild", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for a rebuild to end, and raise what went wrong in it."""
        thread = self._thread
        if thread is not None:
            thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
