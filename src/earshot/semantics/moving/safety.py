"""Safe regions: where a client need not report its position.

Within its safe region, whatever a subscriber holds at one position it holds at all of them. So a
message that ends changes the same for all, and only a message that arrives can make it unsafe. It
finds whom by their impact regions, which lie in lists by rarest word as the subscriptions
themselves do.

Clients are *told* theirs. A structure may keep them for itself, too: then a report from within is
followed, and nothing is looked for.
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
    AnchoredRegions,
    Float64s,
    Int32s,
    Int64s,
    LivingMessages,
    Space,
    nbytes,
    numbers_of,
)
from earshot.semantics.moving.kernels import safe
from earshot.semantics.moving.kernels.arrays import (
    SAFE_POSITION,
    Messages,
    Regions,
    Scratch,
    Tables,
)
from earshot.semantics.moving.kernels.lists import LIST_BUILT, LIST_PUT
from earshot.semantics.moving.quad_lists import QuadLists
from earshot.semantics.moving.tables import no_messages

_SHARE = 1.0 - 1e-6
"""A client is told a hair less than is watched: rounding cannot reach that."""
_WORTH = 8.0
"""Moves like the last that a safe region must outlast to be kept: to find one takes some µs."""
_LONGEST_PAUSE = 63
"""Moves after which it is looked for again, where there was none before, and before that."""
_FEW = 128
"""Impact regions that came, up to which their lists are not made anew: sorted by other places."""
_LARGEST = np.finfo(np.float64).max
Kinds = npt.NDArray[np.int8]


class SafetyArrays(NamedTuple):
    """What is saved: who is watched, and who is to be told a new region."""

    slots: Int32s
    areas: Float64s  # (n, 3) place and reach
    is_told: npt.NDArray[np.bool_]  # whether the client knows it
    outdated: Int32s


class Areas(NamedTuple):
    """Safe regions, one a row."""

    kinds: Kinds  # EVERYWHERE, BOX, CIRCLE; the reach of a point is 0
    places: Float64s  # (n, 2) around which place
    reaches: Float64s  # how far


class Safety:
    """The safe regions that were given out and still hold."""

    def __init__(self, space: Space, saved: SafetyArrays | None = None) -> None:
        self._space: Space = space
        self._regions = Regions(
            np.empty(0, np.int8), np.empty((0, 4)), np.empty((0, 8)), np.empty(0, np.int32)
        )
        self._flags = np.empty(0, np.uint8)  # WATCHED or 0
        self._watched = np.empty((0, 3))  # around which place, and how far
        self._is_told = np.empty(0, np.bool_)  # whether the client knows it
        self._ways = np.empty((0, 2))  # where a slot went last, as far as anybody looked
        # Moves until a safe region is looked for, and how many there are after the next in vain.
        self._waits, self._pauses = np.empty(0, np.uint8), np.empty(0, np.uint8)
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
        return SafetyArrays(slots, self._watched[slots], self._is_told[slots], self._outdated)

    def give(self, structure: Any, tables: Tables, scratch: Scratch, slots: Int32s) -> Areas:
        """Return where subscriptions, each named once, need not report; they are watched then.

        One that is watched already, for a structure that keeps safe regions, is told that region.
        """
        self._begin(tables, scratch)
        is_known = (self._flags[slots] != 0) & ~self._is_told[slots]
        self.forget(slots[~is_known])
        self._measure(structure, tables, scratch, slots[~is_known], np.zeros(len(slots)))
        is_watched = self._flags[slots] != 0
        self._is_told[slots] = is_watched
        areas = self._watched[slots]
        kinds = tables.subscribers.regions.kinds[slots]
        told = np.where(is_watched, areas[:, 2] * _SHARE, 0.0)
        shapes = np.where((kinds == CIRCLE) | (kinds == EVERYWHERE), kinds, BOX).astype(np.int8)
        return Areas(shapes, areas[:, :2], told)

    def given(self, slots: Int32s) -> Float64s:
        """Return the safe regions that slots have just been given: place and reach of each."""
        areas: Float64s = self._watched[slots]
        areas[self._flags[slots] == 0, 2] = 0.0
        return areas

    def give_again(self, tables: Tables, scratch: Scratch, slots: Int32s, areas: Float64s) -> None:
        """Let slots have safe regions that were found before."""
        self._begin(tables, scratch)
        self.forget(slots)
        self._keep(tables, scratch, slots, areas)
        self._is_told[slots] = areas[:, 2] > 0

    def reported(
        self, tables: Tables, scratch: Scratch, slots: Int32s, regions: AnchoredRegions, keeps: bool
    ) -> Kinds:
        """Note that subscriptions report; return the kinds of their reports.

        Clients forget what they were told. Where safe regions are kept, those who stay within
        theirs are marked: :data:`SAFE_POSITION`.
        """
        if self._saved is not None and len(self._saved.slots):
            self._begin(tables, scratch)  # else each report would look through all of them
        if not keeps and not self._n_watched:
            self.forget(slots)
            return regions.kinds
        self._begin(tables, scratch)
        marked = np.empty_like(regions.kinds)
        safe.mark_reports(
            tables, self._flags, self._watched, self._ways, slots, regions.kinds, regions.frames,
            marked,
        )  # fmt: skip
        if not keeps:
            self.forget(slots)
            return regions.kinds
        self.forget(slots[marked != SAFE_POSITION])
        self._is_told[slots] = False
        return marked

    def renew(
        self, structure: Any, tables: Tables, scratch: Scratch, slots: Int32s, kinds: Kinds
    ) -> None:
        """Find safe regions for those who left theirs, if they last for some moves.

        Who had none is left alone for some moves, longer each time.
        """
        moved = np.unique(slots[kinds != SAFE_POSITION])
        is_due = self._waits[moved] == 0
        self._waits[moved[~is_due]] -= 1
        moved = moved[is_due]
        if len(moved):
            leasts = np.empty(len(moved))
            safe.way_lengths(tables, moved, self._ways, leasts)
            leasts = np.minimum(leasts, _LARGEST / _WORTH) * _WORTH
            self._measure(structure, tables, scratch, moved, leasts)
            pauses = np.minimum(2 * self._pauses[moved] + 1, _LONGEST_PAUSE)
            self._waits[moved] = self._pauses[moved] = pauses * (self._flags[moved] == 0)

    def forget(self, slots: Int32s) -> None:
        """Note that subscriptions moved or ended: their safe regions are of no account any more."""
        if self._saved is not None:
            is_left = ~np.isin(self._saved.slots, slots)
            watched, areas, is_told, outdated = self._saved
            self._saved = SafetyArrays(watched[is_left], areas[is_left], is_told[is_left], outdated)
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
        facts = self._impacts.list_facts
        is_new = facts[LIST_PUT] > max(_FEW, int(facts[LIST_BUILT]))
        if is_new or self._structure.is_due(self._impacts, self._tables):
            self._impacts = self._structure.build(self._tables, self._space, self._impacts)
        arriving = self._tables._replace(messages=_table_of(self._tables.messages, given))
        outdated = np.empty(self._n_watched, np.int32)
        n = safe.outdate_slots(self._impacts, arriving, tables, scratch, self._watched, outdated)
        self._n_watched -= n
        outdated = outdated[:n]
        self._outdated = np.concatenate([self._outdated, outdated[self._is_told[outdated]]])

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
            held = held._replace(slots=numbers[held.slots], outdated=numbers[held.outdated])
        return Safety(self._space, held)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        arrays = (
            *self._regions, self._flags, self._watched, self._is_told, self._ways,
            self._waits, self._pauses,
            *(self._impacts or ()),
        )  # fmt: skip
        return nbytes(arrays)

    # ---- inside -------------------------------------------------------------------------------

    def _begin(self, tables: Tables, scratch: Scratch) -> None:
        """Have room for all slots, and watch those that were saved."""
        self._follow(tables)
        if self._saved is not None:
            saved, self._saved = self._saved, None
            self._watch(tables, scratch, np.array(saved.slots), np.array(saved.areas))
            self._is_told[saved.slots] = saved.is_told

    def _follow(self, tables: Tables) -> None:
        """Let impact regions have the words of the subscriptions as they are now."""
        n = len(tables.subscribers.flags)
        kinds, frames, boxes, rows = self._regions
        self._regions = Regions(
            with_room(kinds, n), with_room(frames, n), with_room(boxes, n), with_room(rows, n)
        )
        self._flags, self._watched = with_room(self._flags, n), with_room(self._watched, n)
        self._is_told, self._ways = with_room(self._is_told, n), with_room(self._ways, n)
        self._waits, self._pauses = with_room(self._waits, n), with_room(self._pauses, n)
        self._tables = tables._replace(
            subscribers=tables.subscribers._replace(regions=self._regions, flags=self._flags),
            messages=no_messages()._replace(n_having=tables.messages.n_having),
        )
        if self._impacts is None:
            self._impacts = self._structure.build(self._tables, self._space)

    def _measure(
        self, structure: Any, tables: Tables, scratch: Scratch, slots: Int32s, leasts: Float64s
    ) -> None:
        """Find safe regions for slots that have none; those are watched that get one."""
        areas, order = np.empty((len(slots), 3)), np.empty(len(slots), np.int64)
        safe.measure_areas(structure, tables, scratch, slots, self._ways, leasts, areas, order)
        self._keep(tables, scratch, slots, areas)

    def _keep(self, tables: Tables, scratch: Scratch, slots: Int32s, areas: Float64s) -> None:
        self._watched[slots] = areas
        is_found = areas[:, 2] > 0
        self._is_told[slots] = False
        self._watch(tables, scratch, slots[is_found], areas[is_found])

    def _watch(self, tables: Tables, scratch: Scratch, slots: Int32s, areas: Float64s) -> None:
        def more_room(_: int) -> None:
            self._impacts = self._structure.with_room(self._impacts, self._tables)

        run_until_done(
            lambda: safe.watch_slots(
                self._impacts, self._tables, tables, scratch, slots, areas, self._watched
            ),
            more_room,
        )
        self._n_watched += len(slots)


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
