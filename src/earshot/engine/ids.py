"""User ids of subscriptions, by slot, and slots by id.

Ids are all 64-bit integers or all strings; the first batch decides, and the first one after all
subscriptions have ended. They come back unchanged.

Integers that ascend from the first slot on need no hash table, and those in sequence no memory at
all (:mod:`earshot.engine.ascending_ids`). All others are in the table, and so are those that come
after them.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from earshot.engine.ascending_ids import AscendingIds
from earshot.engine.kernels import FREE, GONE, enter_ids, find_ids, gather_ids
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

    # Of the first slots, where their ids ascend; see earshot.engine.ascending_ids.
    bounds: Int64s
    values: Int64s
    gone: Bytes
    # Of the others, the rows of the table.
    data: Bytes  # bytes of all ids, row by row; eight each for integers
    offsets: Int64s  # (n_rows + 1,) for strings, empty for integers
    table: Int32s  # (2**k,) hash table; see earshot.engine.kernels


class IdTable:
    """Ids of all slots ever handed out, and the live slot of each id."""

    def __init__(self, kind: IdKind | None = None, arrays: IdArrays | None = None) -> None:
        self.kind = kind
        arrays = arrays or _ended(kind, 0)
        self._ascending = AscendingIds(arrays.bounds, arrays.values, arrays.gone)
        self._data = GrowingArray(arrays.data)
        self._offsets = GrowingArray(arrays.offsets)
        self._table = arrays.table
        # Places of the table that are taken, removed ids included; they are never freed.
        self._n_taken = self._n_rows

    @classmethod
    def without_ids(cls, kind: IdKind | None, n_slots: int) -> IdTable:
        """Return a table in which so many slots have ended; what their ids were is forgotten."""
        return cls(kind, _ended(kind, n_slots))

    def __len__(self) -> int:
        return len(self._ascending) + self._n_rows

    @property
    def _n_rows(self) -> int:
        return len(self._data) // 8 if self.kind == "integer" else max(len(self._offsets) - 1, 0)

    @property
    def arrays(self) -> IdArrays:
        """The arrays without spare room: views, to be saved before the table changes."""
        first = self._ascending
        return IdArrays(
            first.bounds, first.values, first.gone,
            self._data.view, self._offsets.view, self._table,
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of memory, including the room to grow."""
        hashed = self._data.nbytes + self._offsets.nbytes + int(self._table.nbytes)
        return self._ascending.nbytes + hashed

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
        data, offsets = id_bytes(ids)
        if kind == "integer":
            integers = data.view(np.int64)
            if self._n_rows == 0 and self._ascending.extend(integers):
                return
            is_taken = self._ascending.find(integers) >= 0
            if is_taken.any():
                raise _duplicate(ids[int(is_taken.argmax())])
        first, n_bytes = self._n_rows, len(self._data)
        self._data.append(data)
        if len(offsets):
            self._offsets.append(offsets[1:] + n_bytes)
        rows = np.arange(first, first + len(ids), dtype=np.int32)
        if 3 * (self._n_taken + len(ids)) > 2 * len(self._table):
            self._rehash(len(ids))
        n_entered = enter_ids(self._table, self._data.view, self._offsets.view, rows)
        self._n_taken += n_entered
        if n_entered < len(ids):
            self._forget_rows(rows[:n_entered])
            self._data.resize(n_bytes)
            if len(offsets):
                self._offsets.resize(first + 1)
            # The places of the ids that were taken back: no slot accounts for them any more.
            self._rehash(0)
            raise _duplicate(ids[int(n_entered)])

    def known_slots(self, ids: Ids) -> Int32s | None:
        """Return the live slots of ids, None where one of them is unknown."""
        if kind_of(ids) != self.kind:
            return None
        slots = self._find(ids)
        return None if (slots < 0).any() else slots.astype(np.int32)

    def slots_of(self, ids: Ids) -> Int32s:
        """Return the live slots of ids; unknown ones raise."""
        slots = np.full(len(ids), -1, np.int64)
        if kind_of(ids) == self.kind:
            slots = self._find(ids)
        if (slots < 0).any():
            unknown = plain_id(ids[int(np.flatnonzero(slots < 0)[0])])
            raise UnknownSubscription(f"no subscription {unknown!r}")
        return slots.astype(np.int32)

    def slots_or_none(self, ids: Ids) -> Int64s:
        """Return the live slots of ids, -1 for those that are unknown."""
        return self._find(ids)

    def contains(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Return which of the ids are in use."""
        found: npt.NDArray[np.bool_] = self._find(ids) >= 0
        return found

    def takes(self, ids: Ids) -> bool:
        """Whether a few ids are of the right kind, and none is in use."""
        if self.kind is None:
            return True
        return kind_of(ids) == self.kind and max(self._find(ids).tolist()) < 0

    def live_slots(self) -> Int32s:
        """Return the slots whose ids are in use, ascending."""
        rows = np.sort(self._table[self._table >= 0])
        n = len(self._ascending)
        return np.concatenate([self._ascending.live_slots(), rows + np.int32(n)])

    def forget(self, slots: Int32s) -> None:
        """Free the ids of slots for new subscriptions; the slots keep their ids."""
        n = len(self._ascending)
        if n == 0:
            self._forget_rows(slots)
            return
        is_ascending = slots < n
        if is_ascending.any():
            self._ascending.free(slots[is_ascending])
        if not is_ascending.all():
            self._forget_rows(slots[~is_ascending] - np.int32(n))

    def _forget_rows(self, rows: Int32s) -> None:
        if self.kind == "integer":
            data = self._data.view.view(np.int64)[rows].view(np.uint8)
            offsets = np.empty(0, np.int64)
        else:
            offsets, positions = gather_ranges(self._offsets.view, rows)
            data = self._data.view[positions]
        places, _ = self._places(data, offsets, len(rows))
        self._table[places[places >= 0]] = GONE

    def ids_of(self, slots: Int32s) -> pa.Array:
        """Return the ids of slots."""
        if self.kind == "integer":
            return pa.array(self._integers_of(slots))
        return strings_of(self._offsets.view, self._data.view).take(pa.array(slots))

    def plain_ids_of(self, slots: Int32s) -> list[Id]:
        """Return the ids of slots as Python knows them."""
        if self.kind == "integer":
            integers: list[Id] = self._integers_of(slots).tolist()
            return integers
        strings: list[Id] = self.ids_of(slots).to_pylist()
        return strings

    def _integers_of(self, slots: Int32s) -> Int64s:
        # Rows first: another thread may be adding, and those that ascend are never fewer later.
        rows, (first, n) = self._data.view.view(np.int64), self._ascending.bounds
        values = self._ascending.values
        if len(rows) == 0 and len(values) == 0:
            sequence: Int64s = slots + first
            return sequence
        integers = np.empty(len(slots), np.int64)
        gather_ids(first, n, values, rows, slots, integers)
        return integers

    def renumbered(self, old_slots: Int32s) -> IdTable:
        """Return a table in which slot i has the id of ``old_slots[i]``, all of them live."""
        renumbered = IdTable(self.kind)
        renumbered.append(self.ids_of(old_slots))
        return renumbered

    def _find(self, ids: Ids) -> Int64s:
        """Return the slots of ids, -1 where one is not in use."""
        if self.kind is None:
            return np.full(len(ids), -1, np.int64)
        self._check_kind(kind_of(ids))
        data, offsets = id_bytes(ids)
        n = len(self._ascending)
        slots = self._ascending.find(data.view(np.int64)) if n else None
        if slots is not None and (self._n_rows == 0 or (len(ids) == 1 and slots[0] >= 0)):
            return slots
        _, rows = self._places(data, offsets, len(ids))
        if slots is None:
            return rows
        if len(ids) == 1:  # without arithmetic on arrays, which would take longer than the search
            return rows if rows[0] < 0 else np.array([n + int(rows[0])])
        rows[rows >= 0] += n
        return np.maximum(slots, rows)

    def _places(self, data: Bytes, offsets: Int64s, n: int) -> tuple[Int64s, Int64s]:
        """Return where ``n`` ids stand in the table, and their rows; -1 where one does not."""
        places, rows = np.empty(n, np.int64), np.empty(n, np.int64)
        find_ids(self._table, self._data.view, self._offsets.view, data, offsets, places, rows)
        return places, rows

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


def _duplicate(subscription_id: Any) -> DuplicateSubscription:
    return DuplicateSubscription(
        f"subscription {plain_id(subscription_id)!r} exists already; unsubscribe it first or "
        f"choose another id"
    )


def _ended(kind: IdKind | None, n_slots: int) -> IdArrays:
    # The kernels know integers by their lack of offsets.
    is_integer = kind == "integer"
    data = np.zeros(8 * n_slots if is_integer else 0, np.uint8)
    offsets = np.zeros(0 if is_integer else n_slots + 1, np.int64)
    first = AscendingIds.none()
    table = np.full(64, FREE, np.int32)
    return IdArrays(first.bounds, first.values, first.gone, data, offsets, table)


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
