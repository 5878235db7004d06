"""Times, distances and windows as people write them: ``10m``, ``50km``, ``100000``."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from earshot.errors import InvalidParameter


def read_window(text: str) -> int | timedelta:
    """Return a number of messages, or a time."""
    if re.fullmatch("[0-9]+", text):
        return int(text)
    return read_duration(text, "window", "a number of messages, or a time")


def read_duration(text: str, name: str = "lateness", expected: str = "a time") -> timedelta:
    """Return a time such as ``90s``, ``10m``, ``2h`` or ``7d``."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    if found is None:
        raise InvalidParameter(f"{name} is {text!r}; expected {expected} such as 30s, 10m, 2h, 7d")
    unit = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}[found[2]]
    try:
        duration = timedelta(**{unit: float(found[1])})
    except OverflowError:
        duration = timedelta.max
    if duration > datetime.max - datetime.min:
        raise InvalidParameter(f"{name} is {text!r}, longer than any time can be")
    return duration


def read_distance(text: str, space: str) -> float:
    """Return a distance such as ``500``, ``500m`` or ``50km``; on a plane a number."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(m|km)?", text)
    if found is None or (found[2] and space == "planar"):
        expected = "a number" if space == "planar" else "metres, such as 500, 500m or 50km"
        raise InvalidParameter(f"max_distance is {text!r}; expected {expected}")
    return float(found[1]) * (1000.0 if found[2] == "km" else 1.0)
