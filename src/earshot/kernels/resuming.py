"""The one way in which a kernel that runs out of room goes on.

A kernel cannot grow its arrays. It stops where it is, at a point from which it can go on, and
returns what it is short of; the caller makes room and calls it again.
"""

from __future__ import annotations

from collections.abc import Callable

DONE = 0
"""What a kernel returns that is short of nothing; its other answers are up to it."""


def run_until_done(kernel: Callable[[], int], make_room: Callable[[int], None]) -> None:
    """Call a kernel until it is done, and between the calls make room for what it is short of."""
    while (short_of := kernel()) != DONE:
        make_room(short_of)
