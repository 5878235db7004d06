"""User ids of subscriptions, by slot, and slots by id.

Ids are all 64-bit integers or all strings; the first batch decides, and the first one after all
subscriptions have ended. They come back unchanged.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from earshot.engine.kernels import FREE, GONE, enter_ids, find_ids, gather_integers
from earshot.errors import DuplicateSubscription, InvalidInput, UnknownSubscription
from earshot.kernels.growing import GrowingArray
from earshot.model.arrays import Int32s, Int64s, gather_ranges
from earshot.model.batches import id_array
from earshot.model.schemas import IdKind, id_kind
from earshot.model.subscriptions import Id

Bytes = npt.NDArray[np.uint8]
Ids: TypeAlias = Any
"""An Arrow array of ids, or a tuple of a few that every table can hold."""


class IdArrays(NamedTuple):
    """What is saved of a table of ids."""

    data: Bytes  # bytes of all ids, slot by slot; eight each for integers
    offsets: Int64s  # (n_slots + 1,) for strings, empty for integers
    table: Int32s  # (2**k,) hash table; see earshot.engine.kernels


class IdTable:
    """Ids of all slots ever handed out, and the live slot of each id."""

    def __init__(self, kind: IdKind | None = None, arrays: IdArrays | None = None) -> None:
        self.kind = kind
        arrays = arrays or _ended(kind, 0)
        self._data = GrowingArray(arrays.data)
        self._offsets = GrowingArray(arrays.offsets)
        self._table = arrays.table
        # Number of ids when they were last looked at, and the first where they were in sequence.
        self._sequence: tuple[int, int | None] = -1, None
        # Places of the table that are taken, removed ids included; they are never freed.
        self._n_taken = len(self)

    @classmethod
    def without_ids(cls, kind: IdKind | None, n_slots: int) -> IdTable:
        """Return a table in which so many slots have ended; what their ids were is forgotten."""
        return cls(kind, _ended(kind, n_slots))

    def __len__(self) -> int:
        return len(self._data) // 8 if self.kind == "integer" else max(len(self._offsets) - 1, 0)

    @property
    def arrays(self) -> IdArrays:
        """The arrays without spare room: views, to be saved before the table changes."""
        return IdArrays(self._data.view, self._offsets.view, self._table)

    @property
    def nbytes(self) -> int:
        """Bytes of memory, including the room to grow."""
        return self._data.nbytes + self._offsets.nbytes + int(self._table.nbytes)

    def append(self, ids: Ids) -> None:
        """Give the next slots these ids, which must not be in use; all or none go in."""
        if len(ids) == 0:
            return
        kind = kind_of(ids)
        if self.kind is None:
            self.kind = kind
            if kind == "integer":
                self._offsets = GrowingArray(np.empty(0, np.int64))
        self._check_kind(kind)
        first, n_bytes = len(self), len(self._data)
        data, offsets = id_bytes(ids)
        self._data.append(data)
        if len(offsets):
            self._offsets.append(offsets[1:] + n_bytes)
        slots = np.arange(first, first + len(ids), dtype=np.int32)
        if 3 * (self._n_taken + len(ids)) > 2 * len(self._table):
            self._rehash(len(ids))
        n_entered = enter_ids(self._table, self._data.view, self._offsets.view, slots)
        self._n_taken += n_entered
        if n_entered < len(ids):
            self.forget(slots[:n_entered])
            self._data.resize(n_bytes)
            if len(offsets):
                self._offsets.resize(first + 1)
            # The places of the ids that were taken back: no slot accounts for them any more.
            self._rehash(0)
            duplicate = plain_id(ids[int(n_entered)])
            raise DuplicateSubscription(
                f"subscription {duplicate!r} exists already; unsubscribe it first or choose "
                f"another id"
            )

    def known_slots(self, ids: Ids) -> Int32s | None:
        """Return the live slots of ids, None where one of them is unknown."""
        if kind_of(ids) != self.kind:
            return None
        places = self._places(ids)
        return None if (places < 0).any() else self._table[places]

    def slots_of(self, ids: Ids) -> Int32s:
        """Return the live slots of ids; unknown ones raise."""
        places = np.full(len(ids), -1, np.int64)
        if kind_of(ids) == self.kind:
            places = self._places(ids)
        if (places < 0).any():
            unknown = plain_id(ids[int(np.flatnonzero(places < 0)[0])])
            raise UnknownSubscription(f"no subscription {unknown!r}")
        return self._table[places]

    def contains(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Return which of the ids are in use."""
        found: npt.NDArray[np.bool_] = self._places(ids) >= 0
        return found

    def takes(self, ids: Ids) -> bool:
        """Whether a few ids are of the right kind, and none is in use."""
        if self.kind is None:
            return True
        return kind_of(ids) == self.kind and max(self._places(ids).tolist()) < 0

    def forget(self, slots: Int32s) -> None:
        """Free the ids of slots for new subscriptions; the slots keep their ids."""
        if self.kind == "integer":
            data = self._data.view.view(np.int64)[slots].view(np.uint8)
            offsets = np.empty(0, np.int64)
        else:
            offsets, positions = gather_ranges(self._offsets.view, slots)
            data = self._data.view[positions]
        places = np.empty(len(slots), np.int64)
        find_ids(self._table, self._data.view, self._offsets.view, data, offsets, places)
        self._table[places[places >= 0]] = GONE

    def ids_of(self, slots: Int32s) -> pa.Array:
        """Return the ids of slots."""
        if self.kind == "integer":
            first = self._first_of_sequence(len(slots))
            if first is not None:
                return pa.array(slots + np.int64(first))
            values = np.empty(len(slots), np.int64)
            gather_integers(self._data.view.view(np.int64), slots, values)
            return pa.array(values)
        return strings_of(self._offsets.view, self._data.view).take(pa.array(slots))

    def plain_ids_of(self, slots: Int32s) -> list[Id]:
        """Return the ids of slots as Python knows them."""
        if self.kind == "integer":
            values: list[Id] = self._data.view.view(np.int64)[slots].tolist()
            return values
        strings: list[Id] = self.ids_of(slots).to_pylist()
        return strings

    def renumbered(self, old_slots: Int32s) -> IdTable:
        """Return a table in which slot i has the id of ``old_slots[i]``, all of them live."""
        renumbered = IdTable(self.kind)
        renumbered.append(self.ids_of(old_slots))
        return renumbered

    def _first_of_sequence(self, n_wanted: int) -> int | None:
        """Return the id of slot 0 where each slot's id is one more than the one before.

        Row numbers are the most common ids, and need no look-up. Whether these are some is found
        out when so many ids are wanted that it pays.
        """
        n, first = self._sequence  # at once: another thread may be looking or adding
        if n != len(self) and 8 * n_wanted > len(self):
            values = self._data.view.view(np.int64)
            in_sequence = len(values) > 0 and bool((np.diff(values) == 1).all())
            n, first = self._sequence = len(values), int(values[0]) if in_sequence else None
        return first if n == len(self) else None

    def _places(self, ids: Ids) -> Int64s:
        if self.kind is None:
            return np.full(len(ids), -1, np.int64)
        self._check_kind(kind_of(ids))
        data, offsets = id_bytes(ids)
        places = np.empty(len(ids), np.int64)
        find_ids(self._table, self._data.view, self._offsets.view, data, offsets, places)
        return places

    def _rehash(self, n: int) -> None:
        """Make the table anew, without removed ids and with room for ``n`` more."""
        live = np.sort(self._table[self._table >= 0])
        size = 1 << int(2 * (len(live) + n)).bit_length()
        self._table = np.full(max(size, 64), FREE, np.int32)
        self._n_taken = int(enter_ids(self._table, self._data.view, self._offsets.view, live))

    def _check_kind(self, kind: IdKind | None) -> None:
        if kind != self.kind:
            raise InvalidInput(
                f"these ids are of kind {kind or 'other'}, the subscriptions' are of kind "
                f"{self.kind}; ids must be all integers or all strings"
            )


def _ended(kind: IdKind | None, n_slots: int) -> IdArrays:
    # The kernels know integers by their lack of offsets.
    is_integer = kind == "integer"
    data = np.zeros(8 * n_slots if is_integer else 0, np.uint8)
    offsets = np.zeros(0 if is_integer else n_slots + 1, np.int64)
    return IdArrays(data, offsets, np.full(64, FREE, np.int32))


def kind_of(ids: Ids) -> IdKind | None:
    """Return whether ids are integers or strings, None for anything else."""
    if isinstance(ids, tuple):
        return "string" if ids and isinstance(ids[0], str) else "integer"
    return id_kind(ids.type)


def as_array(ids: Ids) -> pa.Array:
    """Return ids as an Arrow array."""
    return id_array(ids) if isinstance(ids, tuple) else ids


def plain_id(value: Any) -> Id:
    """Return an id, which may be Arrow's, as Python knows it."""
    plain: Id = value if isinstance(value, int | str) else value.as_py()
    return plain


def id_bytes(ids: Ids) -> tuple[Bytes, Int64s]:
    """Return the bytes of ids and, for strings, where each begins."""
    if isinstance(ids, tuple):
        if kind_of(ids) == "integer":
            return np.array(ids, np.int64).view(np.uint8), np.empty(0, np.int64)
        encoded = [each.encode() for each in ids]
        ends = np.array([0, *accumulate(map(len, encoded))], np.int64)
        return np.frombuffer(bytearray().join(encoded), np.uint8), ends
    if ids.null_count:
        raise InvalidInput("an id is null; every subscription has one")
    if id_kind(ids.type) == "integer":
        try:
            values = ids.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise InvalidInput(f"an id does not fit 64 bits with sign: {error}") from error
        return np.array(values.to_numpy()).view(np.uint8), np.empty(0, np.int64)
    strings = pc.cast(ids, pa.large_string())
    _, offsets, data = strings.buffers()
    bounds = np.frombuffer(offsets, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    content: Any = b"" if data is None else data
    first, last = int(bounds[0]), int(bounds[-1])
    # Copied, because kernels are compiled for arrays that may be written.
    return np.array(np.frombuffer(content, np.uint8)[first:last]), bounds - first


def strings_of(offsets: Int64s, data: Bytes) -> pa.Array:
    """Return the strings that lie one after the other in bytes."""
    buffers = (pa.py_buffer(offsets), pa.py_buffer(data))
    return pa.LargeStringArray.from_buffers(len(offsets) - 1, *buffers)
