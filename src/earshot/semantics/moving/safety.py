"""Safe regions: where a client need not report its position.

Within its safe region, whatever a subscriber holds at one position it holds at all of them. So a
message that ends changes the same for all, and only a message that arrives can make it unsafe. It
finds whom by their impact regions, which lie in lists by rarest word as the subscriptions
themselves do.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.kernels.growing import with_room
from earshot.kernels.resuming import run_until_done
from earshot.model.arrays import (
    BOX,
    CIRCLE,
    EVERYWHERE,
    Float64s,
    Int32s,
    Int64s,
    LivingMessages,
    Space,
    numbers_of,
)
from earshot.semantics.moving.kernels import safe
from earshot.semantics.moving.kernels.arrays import Messages, Regions, Scratch, Tables
from earshot.semantics.moving.quad_lists import QuadLists
from earshot.semantics.moving.tables import no_messages

FARTHEST = 32.0
"""A safe region reaches so many times as far as the subscription's own region, or less."""
_SHARE = 1.0 - 1e-6
_LEAST = 1e-9
"""Shares that rounding cannot reach: of a reach, and of a coordinate."""


class SafetyArrays(NamedTuple):
    """What is saved: who is watched, and who is to be told a new region."""

    slots: Int32s
    places: Float64s  # (n, 3) position and reach
    outdated: Int32s


class Areas(NamedTuple):
    """Safe regions, one a row."""

    kinds: npt.NDArray[np.int8]  # EVERYWHERE, BOX, CIRCLE; the reach of a point is 0
    places: Float64s  # (n, 2) around which position
    reaches: Float64s  # how far


class Safety:
    """The safe regions that were given out and still hold."""

    def __init__(self, space: Space, saved: SafetyArrays | None = None) -> None:
        self._space: Space = space
        self._regions = Regions(
            np.empty(0, np.int8), np.empty((0, 4)), np.empty((0, 8)), np.empty(0, np.int32)
        )
        self._flags = np.empty(0, np.uint8)  # 1 where a slot is watched
        self._watched = np.empty((0, 3))  # around which position, and how far
        self._n_watched = 0
        self._outdated = np.empty(0, np.int32)
        self._structure = QuadLists()
        self._impacts: Any = None
        self._saved = saved  # until it is known what the slots ask for
        if saved is not None:
            self._outdated = np.array(saved.outdated)

    @property
    def arrays(self) -> SafetyArrays:
        """What is saved."""
        if self._saved is not None:
            return self._saved._replace(outdated=self._outdated)
        slots = np.flatnonzero(self._flags).astype(np.int32)
        return SafetyArrays(slots, self._watched[slots], self._outdated)

    def give(self, structure: Any, tables: Tables, scratch: Scratch, slots: Int32s) -> Areas:
        """Return where subscriptions, each named once, need not report; they are watched then."""
        self._begin(tables, scratch)
        self.forget(slots)
        regions, is_lonlat = tables.subscribers.regions, self._space == "lonlat"
        kinds = regions.kinds[slots]
        places, sizes = _positions(tables, slots, is_lonlat), _sizes(tables, slots)
        mosts = FARTHEST * sizes
        if is_lonlat:
            # Neither over a pole nor around the world.
            mosts = np.where(
                kinds == CIRCLE, mosts, np.minimum(mosts, np.maximum(90 - abs(places[:, 1]), 0))
            )
        mosts[kinds == EVERYWHERE] = 0.0
        reaches = np.zeros(len(slots))
        safe.measure_reaches(structure, tables, scratch, slots, places, sizes, mosts, reaches)
        largest = np.maximum(np.abs(places).max(axis=1, initial=0.0), sizes)
        is_watched = np.isfinite(reaches) & (reaches > _LEAST * largest)
        self._watch(tables, scratch, slots[is_watched], places[is_watched], reaches[is_watched])
        told = np.where(is_watched, reaches * _SHARE, 0.0)  # a hair less than is watched
        shapes = np.where((kinds == CIRCLE) | (kinds == EVERYWHERE), kinds, BOX).astype(np.int8)
        return Areas(shapes, places, told)

    def forget(self, slots: Int32s) -> None:
        """Note that subscriptions moved or ended: their safe regions are of no account any more."""
        if self._saved is not None:
            is_left = ~np.isin(self._saved.slots, slots)
            self._saved = self._saved._replace(
                slots=self._saved.slots[is_left], places=self._saved.places[is_left]
            )
        elif self._n_watched:
            self._n_watched -= safe.forget_slots(
                self._impacts, self._tables, slots[slots < len(self._flags)]
            )
        if len(self._outdated):
            self._outdated = self._outdated[~np.isin(self._outdated, slots)]

    def arrive(self, tables: Tables, scratch: Scratch, given: LivingMessages) -> None:
        """Find the safe regions that messages make unsafe."""
        if self._saved is not None and len(self._saved.slots):
            self._begin(tables, scratch)
        if not self._n_watched:
            return
        self._follow(tables)
        if self._structure.is_due(self._impacts, self._tables):
            self._impacts = self._structure.build(self._tables, self._space, self._impacts)
        arriving = self._tables._replace(messages=_table_of(self._tables.messages, given))
        outdated = np.empty(self._n_watched, np.int32)
        n = safe.outdate_slots(self._impacts, arriving, tables, scratch, self._watched, outdated)
        self._n_watched -= n
        self._outdated = np.concatenate([self._outdated, outdated[:n]])

    def take_outdated(self) -> Int32s:
        """Return the slots whose safe regions do not hold any more, and forget that."""
        slots = np.sort(self._outdated)
        self._outdated = np.empty(0, np.int32)
        return slots

    def renewed(self, kept: Int32s | None = None) -> Safety:
        """Return the same for other tokens, or other slots: slot i was ``kept[i]``."""
        held = self.arrays
        if kept is not None:
            most = int(max(held.slots.max(initial=-1), held.outdated.max(initial=-1))) + 1
            numbers = numbers_of(kept, most)
            held = SafetyArrays(numbers[held.slots], held.places, numbers[held.outdated])
        return Safety(self._space, held)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        arrays = (*self._regions, self._flags, self._watched, *(self._impacts or ()))
        return sum(int(each.nbytes) for each in arrays)

    # ---- inside -------------------------------------------------------------------------------

    def _begin(self, tables: Tables, scratch: Scratch) -> None:
        """Have room for all slots, and watch those that were saved."""
        self._follow(tables)
        if self._saved is not None:
            saved, self._saved = self._saved, None
            places = np.ascontiguousarray(saved.places[:, :2])
            reaches = np.ascontiguousarray(saved.places[:, 2])
            self._watch(tables, scratch, np.array(saved.slots), places, reaches)

    def _follow(self, tables: Tables) -> None:
        """Let impact regions have the words of the subscriptions as they are now."""
        n = len(tables.subscribers.flags)
        kinds, frames, boxes, rows = self._regions
        self._regions = Regions(
            with_room(kinds, n), with_room(frames, n), with_room(boxes, n), with_room(rows, n)
        )
        self._flags, self._watched = with_room(self._flags, n), with_room(self._watched, n)
        self._tables = tables._replace(
            subscribers=tables.subscribers._replace(regions=self._regions, flags=self._flags),
            messages=no_messages()._replace(n_having=tables.messages.n_having),
        )
        if self._impacts is None:
            self._impacts = self._structure.build(self._tables, self._space)

    def _watch(
        self, tables: Tables, scratch: Scratch, slots: Int32s, places: Float64s, reaches: Float64s
    ) -> None:
        def more_room(_: int) -> None:
            self._impacts = self._structure.with_room(self._impacts, self._tables)

        run_until_done(
            lambda: safe.watch_slots(
                self._impacts, self._tables, tables, scratch, slots, places, reaches, self._watched
            ),
            more_room,
        )
        self._n_watched += len(slots)


def _sizes(tables: Tables, slots: Int32s) -> Float64s:
    """Return how far each region reaches from its position, about."""
    regions, spans = tables.subscribers.regions, tables.subscribers.polygons.spans
    frames, kinds = regions.frames[slots], regions.kinds[slots]
    sizes: Float64s = np.where(kinds == CIRCLE, frames[:, 2], frames[:, :2].max(axis=1, initial=0))
    shapes = regions.shape_rows[slots]
    has_shape = shapes >= 0
    if has_shape.any():
        chosen = spans[shapes[has_shape]]
        widths = chosen[:, 2] - chosen[:, 0]
        widths = np.where(widths < 0, widths + 360.0, widths)
        sizes[has_shape] = np.maximum(widths, chosen[:, 3] - chosen[:, 1]) / 2
    return sizes


def _positions(tables: Tables, slots: Int32s, is_lonlat: bool) -> Float64s:
    """Return where subscriptions are, but for rounding."""
    regions, polygons = tables.subscribers.regions, tables.subscribers.polygons
    kinds, frames, boxes = regions.kinds[slots], regions.frames[slots], regions.boxes[slots]
    places = frames[:, :2].copy()
    is_box = kinds == BOX
    places[is_box] = boxes[is_box, :2] + frames[is_box, :2]
    shapes = regions.shape_rows[slots]
    has_shape = shapes >= 0
    places[has_shape] += polygons.middles[shapes[has_shape]]
    places[kinds == EVERYWHERE] = 0.0
    if is_lonlat:
        xs = np.where(is_box & (2 * frames[:, 0] >= 360.0), 0.0, places[:, 0])
        xs = np.where(xs > 180.0, xs - 360.0, xs)
        places[:, 0] = np.where(xs < -180.0, xs + 360.0, xs)
    return places


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
