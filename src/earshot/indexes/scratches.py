"""Working memory of matching threads, kept from call to call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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
