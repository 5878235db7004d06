"""Top-k over a window: how many messages a subscription keeps, out of which, and how they score.

Each subscription has the best ``k`` messages of the window at any time. The score of a message is
``alpha * place + (1 - alpha) * text``: the nearer it is and the better its words fit, the higher.
docs/semantics/topk.md says exactly what the two parts are.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from earshot.errors import InvalidParameter, described
from earshot.model.arrays import EARTH_RADIUS_M, Space
from earshot.model.ranking import check_alpha, real_number

MAX_K = 10_000
"""The most messages that a subscription may ask for."""
MAX_WINDOW = 2**31 - 1
"""The most messages that a window may be set to hold."""
MAX_COORDINATE = 1e15
"""The largest coordinate of a plane: what structures sum up as 32-bit floats must stay finite."""
MIN_DISTANCE, MAX_DISTANCE = 1e-9, 1e15
"""Between these is the distance from which the place scores 0, for the same reason."""
MAX_DURATION = datetime.max - datetime.min
"""The longest window of time: all instants that there are."""


_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class TopK:
    """The window, and what holds for subscriptions that do not say otherwise.

    Attributes:
        window: The last so many messages, or those of the last so much time.
        k: Messages that a subscription gets, 1 to 10,000.
        alpha: Share of the place in the score, 0 to 1; the rest is the text's.
        max_distance: Distance from which the place scores 0: metres on lonlat (through the earth,
            by default its diameter), else the coordinates' unit, and required; 1e-9 to 1e15.
        lateness: In a window of time, how much older than the latest message one may be.
    """

    window: int | timedelta
    k: int = 20
    alpha: float = 0.5
    max_distance: float | None = None
    lateness: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "window", _checked_window(self.window))
        object.__setattr__(self, "k", check_k(self.k, "k"))
        object.__setattr__(self, "alpha", check_alpha(self.alpha, "alpha"))
        if self.max_distance is not None:
            distance = real_number(self.max_distance)
            if distance is None or not MIN_DISTANCE <= distance <= MAX_DISTANCE:
                raise InvalidParameter(
                    f"max_distance is {described(self.max_distance)}; expected a number from "
                    f"{MIN_DISTANCE:g} to {MAX_DISTANCE:g}, or None for the earth's diameter on "
                    f"lonlat"
                )
            object.__setattr__(self, "max_distance", distance)
        if not isinstance(self.lateness, timedelta) or not (
            timedelta(0) <= self.lateness <= MAX_DURATION
        ):
            raise InvalidParameter(
                f"lateness is {described(self.lateness)}; expected a timedelta of at least 0 "
                f"and at most {MAX_DURATION.days:,} days"
            )

    @property
    def duration_us(self) -> int:
        """Length of a window of time in microseconds; 0 for a window of so many messages."""
        return 0 if isinstance(self.window, int) else self.window // _MICROSECOND

    @property
    def lateness_us(self) -> int:
        """The lateness in microseconds."""
        return self.lateness // _MICROSECOND

    def distance_in(self, space: Space) -> float:
        """Return the distance from which the place scores 0; a plane needs one that is given."""
        if self.max_distance is not None:
            return self.max_distance
        if space == "planar":
            raise InvalidParameter(
                "max_distance is not given; a plane has no end, so say from which distance on the "
                "place scores 0"
            )
        return 2 * EARTH_RADIUS_M


def check_k(value: Any, where: str) -> int:
    """Return a number of messages as an int; refuse what is not one, naming ``where`` it stood."""
    k = _integer(value)
    if k is None or not 1 <= k <= MAX_K:
        raise InvalidParameter(
            f"{where} is {described(value)}; expected an integer from 1 to {MAX_K:,}"
        )
    return k


def _checked_window(value: Any) -> int | timedelta:
    if isinstance(value, timedelta):
        if timedelta(0) < value <= MAX_DURATION:
            return value
    else:
        n_messages = _integer(value)
        if n_messages is not None and 1 <= n_messages <= MAX_WINDOW:
            return n_messages
    raise InvalidParameter(
        f"window is {described(value)}; expected a number of messages from 1 to {MAX_WINDOW:,}, or "
        f"a timedelta greater than 0 and at most {MAX_DURATION.days:,} days"
    )


def _integer(value: Any) -> int | None:
    """Return an integer as an int, and ``None`` for anything else, bools included."""
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
