"""Safe regions: where a client need not report its position.

Within its safe region, whatever a subscriber holds at one position it holds at all of them. So a
message that ends changes the same for all, and only a message that arrives can make it unsafe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from earshot.model.arrays import BOX, CIRCLE, EVERYWHERE, Int32s, Int64s, LivingMessages, numbers_of
from earshot.model.regions import Circle, Everywhere, Point, Rectangle, RegionOrPoint
from earshot.semantics.moving.kernels.arrays import Messages, Regions, Scratch, Tables
from earshot.semantics.moving.kernels.events import mark_unsafe

_FARTHEST = 4.0
"""A safe region reaches so many times as far as the subscription's own region, or less."""
_N_HALVINGS = 16
_SHARE = 1.0 - 1e-6
_LEAST = 1e-9
"""Shares that rounding cannot reach: of a reach, and of a coordinate."""


class Watched(NamedTuple):
    """A client that stays silent: around which position, and how far."""

    x: float
    y: float
    reach: float


class Safety:
    """The safe regions that were given out and still hold."""

    def __init__(self) -> None:
        self._watched: dict[int, Watched] = {}
        self._outdated: list[int] = []

    def give(
        self, regions: Regions, slot: int, is_lonlat: bool, is_safe: Callable[..., bool]
    ) -> RegionOrPoint:
        """Return where a subscription need not report; ``is_safe`` tries a position and a reach."""
        kind, frame = int(regions.kinds[slot]), regions.frames[slot].tolist()
        if kind == EVERYWHERE:
            return Everywhere()
        x, y = _position(regions, slot, is_lonlat)
        if kind not in (BOX, CIRCLE):
            return Point(x, y)  # every move of a polygon has to be told
        size = frame[2] if kind == CIRCLE else max(frame[:2])
        reach = _longest(_FARTHEST * size, lambda each: is_safe(x, y, each)) * _SHARE
        if is_lonlat and kind == BOX:
            reach = min(reach, 90.0 - abs(y), 90.0)
        if not np.isfinite(reach) or reach <= _LEAST * max(abs(x), abs(y), size):
            return Point(x, y)
        self._watched[slot] = Watched(x, y, reach)
        if kind == CIRCLE:
            return Circle(x, y, reach)
        west, east = x - reach, x + reach
        if is_lonlat:
            west, east = west + 360 * (west < -180), east - 360 * (east > 180)
        return Rectangle(west, y - reach, east, y + reach)

    def forget(self, slots: Int32s) -> None:
        """Note that subscriptions moved or ended: their safe regions are of no account any more."""
        if self._watched or self._outdated:
            gone = set(slots.tolist())
            for slot in gone & self._watched.keys():
                del self._watched[slot]
            self._outdated = [slot for slot in self._outdated if slot not in gone]

    def arrive(self, tables: Tables, scratch: Scratch, given: LivingMessages) -> None:
        """Find the safe regions that messages make unsafe."""
        if not self._watched:
            return
        slots = np.fromiter(self._watched, np.int32)
        places = np.array(list(self._watched.values()))
        # A hair more than was given out.
        reaches = np.ascontiguousarray(places[:, 2]) / _SHARE
        is_unsafe = np.zeros(len(slots), np.bool_)
        arriving = tables._replace(messages=_table_of(tables.messages, given))
        mark_unsafe(
            arriving, scratch, slots, np.ascontiguousarray(places[:, :2]), reaches, is_unsafe
        )
        for slot in slots[is_unsafe].tolist():
            del self._watched[slot]
            self._outdated.append(slot)

    def take_outdated(self) -> Int32s:
        """Return the slots whose safe regions do not hold any more, and forget that."""
        slots = np.array(sorted(self._outdated), np.int32)
        self._outdated = []
        return slots

    def renumber(self, kept: Int32s) -> None:
        """Follow slots to other numbers: slot i was ``kept[i]``."""
        most = max([-1, *self._watched, *self._outdated]) + 1
        numbers = numbers_of(kept, most).tolist()
        self._watched = {numbers[slot]: each for slot, each in self._watched.items()}
        self._outdated = [numbers[slot] for slot in self._outdated]


def _longest(most: float, is_safe: Callable[[float], bool]) -> float:
    """Return a reach that is safe, about the longest; 0 if none is found."""
    if is_safe(most):
        return most
    safe, unsafe = 0.0, most
    for _ in range(_N_HALVINGS):
        middle = (safe + unsafe) / 2
        if is_safe(middle):
            safe = middle
        else:
            unsafe = middle
    return safe


def _position(regions: Regions, slot: int, is_lonlat: bool) -> tuple[float, float]:
    """Return where a subscription is, but for rounding."""
    kind, frame = int(regions.kinds[slot]), regions.frames[slot].tolist()
    if kind == CIRCLE:
        return frame[0], frame[1]
    box = regions.boxes[slot].tolist()
    if kind != BOX:
        return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    x, y = box[0] + frame[0], box[1] + frame[1]
    if is_lonlat and 2 * frame[0] >= 360.0:
        x = 0.0
    return (x - 360.0 if is_lonlat and x > 180.0 else x), y


def _table_of(messages: Messages, given: LivingMessages) -> Messages:
    """Return messages that arrive as a table."""
    lengths: Int64s = np.diff(given.token_offsets)
    every_word: Any = np.full(len(lengths), ~np.uint64(0), np.uint64)
    return messages._replace(
        boxes=given.boxes,
        words=every_word,
        token_starts=np.ascontiguousarray(given.token_offsets[:-1]),
        n_tokens=lengths.astype(np.int32),
        tokens=given.tokens,
    )
