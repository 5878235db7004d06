"""Settings of matching for moving subscribers: how long messages live."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from earshot.errors import InvalidParameter, described
from earshot.model.topk import MAX_DURATION

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Moving:
    """Every subscription holds the live messages that match where it is now.

    Attributes:
        lifetime: How long a message lives that names no end of its own.
    """

    lifetime: timedelta

    def __post_init__(self) -> None:
        check_duration(self.lifetime, "lifetime")

    @property
    def lifetime_us(self) -> int:
        """The lifetime in microseconds."""
        return self.lifetime // _MICROSECOND


def check_duration(value: Any, where: str) -> timedelta:
    """Return a duration; refuse what is none, naming ``where`` it stood."""
    if not isinstance(value, timedelta) or not timedelta(0) < value <= MAX_DURATION:
        told = value if isinstance(value, timedelta) else described(value)
        raise InvalidParameter(
            f"{where} is {told}; expected a timedelta greater than 0 and at most "
            f"{MAX_DURATION.days:,} days"
        )
    return value
