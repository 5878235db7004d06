"""Who is subscribed, as the driver knows it: enough to judge changes, without opening shards.

Whether a change is accepted depends on the row itself and on whether its id is in use at that time
(and, if it moves, on whether it has keywords); what other subscriptions ask for does not matter. So
each shard has, beside it, a *register*: its ids, when they end, and which have no keywords. The
driver maps the registers and looks up only the ids that changes name. These it keeps in a small
engine, in which they stand for the subscriptions of all shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from earshot import storage
from earshot.encoding import NEVER_US, NO_TIME_US, encode_moves
from earshot.engine.changes import apply_changes
from earshot.engine.engine import Engine
from earshot.engine.expiry import ExpiryArrays
from earshot.engine.ids import IdArrays, IdTable
from earshot.engine.rejects import OnError
from earshot.engine.updates import Updates
from earshot.errors import SavedIndexError
from earshot.kernels.growing import GrowingArray
from earshot.model.arrays import Int32s, Int64s
from earshot.model.batches import instant, time_us
from earshot.model.schemas import BOX_FIELDS, TIME, id_type
from earshot.placement.routing import UnitArrays, merge_units
from earshot.spark.prepare import ROW
from earshot.spark.shards import SHARD, changes_since
from earshot.spark.store import IndexSettings, IndexStore, Version
from earshot.spark.territory import Territory, open_territory, units_anywhere
from earshot.storage import Contents, Saved

NOBODY = -1
"""Shard of an id that no shard has."""


STUB_REGION = (0.0, 0.0, 1.0, 1.0)
STUB_KEYWORD = "stub"


class FewArrays(NamedTuple):
    """What only some subscriptions of a shard have."""

    ends: Int64s  # when those end that do, ascending, in microseconds
    bound: Int32s  # slots, ascending, that must have a region, as they have no keywords


class Found(NamedTuple):
    """Which of some ids a shard has."""

    rows: Int64s
    ends: Int64s  # of each of these, in microseconds
    is_bound: npt.NDArray[np.bool_]  # whether it must have a region


class Register:
    """The ids of a shard."""

    def __init__(self, saved: Saved) -> None:
        self._ids = IdTable(saved.facts["id_kind"], saved.group("ids", IdArrays))
        self._expires = saved.group("expiry", ExpiryArrays).expires
        self._few = saved.group("few", FewArrays)
        self._n_subscriptions: int = saved.facts["n_subscriptions"]

    def find(self, ids: pa.Array) -> Found:
        """Return which of the ids the shard has."""
        all_slots = self._ids.slots_or_none(ids)
        rows = np.flatnonzero(all_slots >= 0)
        slots, bound = all_slots[rows], self._few.bound
        ends = np.full(len(rows), NEVER_US, np.int64)
        if len(self._expires):
            ends = self._expires[slots]
        at = np.minimum(np.searchsorted(bound, slots), max(len(bound) - 1, 0))
        return Found(rows, ends, bound[at] == slots if len(bound) else np.zeros(len(rows), bool))

    def n_live(self, clock_us: int) -> int:
        """Return how many subscriptions of the base have not ended at a time."""
        return self._n_subscriptions - int(np.searchsorted(self._few.ends, clock_us, side="right"))


def save_register(engine: Engine, state: Path, directory: Path) -> None:
    """Write the register of an engine that was saved at ``state``."""
    saved, matcher = Saved.open(state), engine.matcher
    ids, expiry = saved.group("ids", IdArrays), saved.group("expiry", ExpiryArrays)
    slots = IdTable(saved.facts["id_kind"], ids).live_slots()
    everywhere = encode_moves(
        pa.table({"id": pa.array(slots.astype(np.int64))}), engine.space, form=matcher.form
    ).places
    bound = [at for at, _, _ in matcher.refused_moves(slots, everywhere)]
    few = FewArrays(np.sort(expiry.expires[expiry.expires != NEVER_US]), slots[bound])
    facts = {"id_kind": saved.facts["id_kind"], "n_subscriptions": len(slots)}
    groups = {"ids": ids, "expiry": expiry, "few": few}
    storage.save(directory, Contents(facts, groups))


class Roster:
    """All subscriptions of a version as one engine to which changes can be applied.

    Attributes:
        step: The last step of changes that it has.
        assigned: Rows that were subscribed, and the shard that each went to.
    """

    def __init__(self, store: IndexStore, version: Version) -> None:
        settings, base = store.settings, version.base
        folder = store.base_folder(base)
        self._settings: IndexSettings = settings
        self.base = base.name
        self.step = 0
        self._registers = [
            Register(Saved.open(folder.local(f"registers/{name}"))) for name in base.shards
        ]
        self._engine = settings.engine()
        self._known = IdTable(settings.ids)  # ids that were looked up
        self._owners = GrowingArray(np.empty(0, np.int32))  # their shards
        self._moved_ends = GrowingArray(np.empty(0, np.int64))  # ends that registers have of them
        self._territory: Territory | None = None
        self.follow(store, version)

    def __len__(self) -> int:
        clock_us = NO_TIME_US if self.time is None else time_us(self.time)
        n_live = sum(register.n_live(clock_us) for register in self._registers)
        n_known = int((self._moved_ends.view > clock_us).sum())
        return n_live - n_known + len(self._engine)

    # ---- following versions -------------------------------------------------------------------

    def follow(self, store: IndexStore, version: Version) -> None:
        """Take in what a version has beyond this one, and begin a batch of changes."""
        if version.base.placement == "sharded":
            known = open_territory(store.folder.uri, version, self._settings)
            self._n_words = len(known.vocabulary)
            # To which words can be added, without a change of what is open.
            self._territory = Territory(
                known.plan, known.vocabulary.copy(), known.frequencies, known.parts, known.settings
            )
        self._all_units = [merge_units([])]
        self.assigned: list[tuple[Int64s, Int32s]] = []
        if version.step > self.step:
            changes, clock_us = changes_since(store, version, self.step)
            ids = changes.column("id").combine_chunks()
            self.look_up(ids)
            errors = apply_changes(self._engine, changes, reweigh=lambda _: self.reweigh())
            if errors:
                raise SavedIndexError(
                    f"{store.folder.path}: the changes of version {version.number} do not fit its "
                    f"base: {errors[0]}; build the index again"
                )
            # Rows ascend, so of several the last one stays.
            is_new = pc.equal(changes.column("op"), "subscribe").to_numpy()
            shards = changes.column(SHARD).to_numpy()[is_new]
            self._assign(ids.filter(pa.array(is_new)), shards)
            if clock_us is not None:
                self.advance(instant(clock_us))
            self.step = version.step
        if version.clock_us is not None:
            self.advance(instant(version.clock_us))

    def look_up(self, ids: pa.Array) -> None:
        """Find out about ids, before they are changed at the present clock or later."""
        ids = pc.unique(ids)
        ids = ids.filter(pa.array(~self._known.contains(ids)))
        clock_us = NO_TIME_US if self.time is None else time_us(self.time)
        owners = np.full(len(ids), NOBODY, np.int32)
        all_ends = np.full(len(ids), NO_TIME_US, np.int64)
        is_bound = np.zeros(len(ids), bool)
        for shard, register in enumerate(self._registers):
            found = register.find(ids)
            is_live = found.ends > clock_us
            rows = found.rows[is_live]
            owners[rows], all_ends[rows] = shard, found.ends[is_live]
            is_bound[rows] = found.is_bound[is_live]
        self._known.append(ids)
        self._owners.append(owners)
        live = np.flatnonzero(owners != NOBODY)
        if not len(live):
            return
        ends = all_ends[live]
        self._moved_ends.append(ends)
        n_keywords = np.append(0, np.cumsum(~is_bound[live])).astype(np.int32)
        keywords = pa.repeat(STUB_KEYWORD, int(n_keywords[-1]))
        stubs = {
            "id": ids.take(pa.array(live)).cast(id_type(self._settings.ids)),
            "keywords": pa.ListArray.from_arrays(pa.array(n_keywords), keywords),
            "expires": pa.array(ends, mask=ends == NEVER_US).cast(TIME),
            **dict(zip(BOX_FIELDS, np.tile(STUB_REGION, (len(live), 1)).T, strict=True)),
        }
        self._engine.subscribe_batch(pa.table(stubs))

    def _assign(self, ids: pa.Array, shards: Int32s) -> None:
        if len(ids):
            self._owners.view[self._known.slots_of(ids)] = shards

    # ---- what changes add ---------------------------------------------------------------------

    @property
    def is_cut(self) -> bool:
        """Whether there is a territory, which tells where messages go."""
        return self._territory is not None

    @property
    def units(self) -> UnitArrays:
        """What the changes add to what each shard holds."""
        return merge_units(self._all_units)

    @property
    def words(self) -> list[str]:
        """What the changes add to the words that all shards share."""
        if self._territory is None:
            return []
        vocabulary = self._territory.vocabulary
        return vocabulary.tokens(np.arange(self._n_words, len(vocabulary)))

    # ---- as an engine -------------------------------------------------------------------------

    @property
    def time(self) -> datetime | None:
        """The clock."""
        return self._engine.time

    @property
    def next_expiry(self) -> datetime | None:
        """When the next subscription ends by itself, of those that were looked up."""
        return self._engine.next_expiry

    def advance(self, time: datetime) -> None:
        """Set the clock."""
        self._engine.advance(time)

    def reweigh(self) -> None:
        """Refuse to weigh words where they have no weights; else shards do it."""
        if self._settings.matcher.weighs_words_by is None:
            self._engine.reweigh()

    def subscribe_batch(self, batch: pa.Table, *, on_error: OnError) -> Updates:
        """Add the good rows of a batch."""
        answer = self._engine.subscribe_batch(batch, on_error=on_error)
        shards = np.zeros(batch.num_rows, np.int32)
        if self._territory is not None:
            shards, units = self._territory.assign(batch)
            self._all_units.append(units)
        self.assigned.append((batch.column(ROW).to_numpy(), shards))
        accepted = _without(batch.num_rows, [error.row for error in answer.rejects])
        ids = batch.column("id").combine_chunks()
        self._assign(ids.take(pa.array(accepted)), shards[accepted])
        return answer

    def unsubscribe_batch(self, ids: pa.Array, *, on_error: OnError) -> Updates:
        """End subscriptions."""
        return self._engine.unsubscribe_batch(ids, on_error=on_error)

    def move_batch(self, batch: pa.Table, *, on_error: OnError) -> Updates:
        """Move subscriptions.

        A subscription stays in its shard, to which the messages of its new region now go as well.
        """
        if self._territory is not None:
            numbers = self._known.slots_of(batch.column("id").combine_chunks())
            owners = np.maximum(self._owners.view[numbers], 0)  # an unknown one is refused below
            moves = encode_moves(batch, self._settings.space, form=self._settings.form)
            box_shards = np.repeat(owners[moves.rows], np.diff(moves.places.offsets))
            pieces = self._territory.plan.first_pieces[box_shards]
            self._all_units.append(units_anywhere(moves.places.boxes, pieces))
        return self._engine.move_batch(batch, on_error=on_error)


def _without(n: int, refused: Sequence[int]) -> Int64s:
    return np.delete(np.arange(n), refused)


_rosters: dict[str, Roster] = {}
"""What is known of each index."""


def open_roster(store: IndexStore, version: Version) -> Roster:
    """Return who is subscribed in a version, bringing what is known up to date."""
    index = store.folder.uri
    roster = _rosters.pop(index, None)  # away with it if what follows fails
    if roster is None or roster.base != version.base.name or roster.step > version.step:
        roster = Roster(store, version)
    else:
        roster.follow(store, version)
    _rosters[index] = roster
    return roster


def close_roster(index: str) -> None:
    """Forget what is known of an index, as when a change was applied but not written."""
    _rosters.pop(index, None)
