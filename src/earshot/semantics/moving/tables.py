"""The tables of subscriptions and of live messages, which grow and are given back."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.encoding import NO_TIME_US
from earshot.kernels.growing import GrowingArray, with_room
from earshot.model.arrays import (
    AnchoredRegions,
    Float64s,
    Int32s,
    Int64s,
    MovingArrays,
    gather_ranges,
    nbytes,
    numbers_of,
)
from earshot.semantics.moving.kernels.arrays import (
    CLOCK,
    LIVE,
    N_COUNTS,
    N_FREE,
    N_MESSAGE_FACTS,
    N_PROBES,
    N_ROWS,
    N_TOKENS_LIVE,
    N_TOKENS_USED,
    SILENT,
    SILENT_LATER,
    Messages,
    Output,
    Polygons,
    Query,
    Regions,
    Scratch,
    Subscribers,
)
from earshot.semantics.moving.kernels.regions import set_regions
from earshot.semantics.moving.kernels.words import count_clauses

_N_STACK = 4096


class SubscriberArrays(NamedTuple):
    """What is saved of subscriptions, by slot unless it says otherwise."""

    kinds: npt.NDArray[np.int8]
    frames: Float64s
    boxes: Float64s
    shape_rows: Int32s
    circles: Float64s  # of polygons
    ring_offsets: Int64s
    vertex_offsets: Int64s
    vertices: Float64s
    spans: Float64s
    middles: Float64s
    flags: npt.NDArray[np.uint8]
    words: npt.NDArray[np.uint64]
    probes: npt.NDArray[np.int16]
    clause_offsets: Int64s
    clause_slots: Int32s  # by alternative
    clause_words: npt.NDArray[np.uint64]
    token_offsets: Int64s
    token_ids: Int32s
    lasts: Int64s  # when each reported last
    dwells_us: Int64s
    cooldowns_us: Int64s


_BY_SLOT = (
    "kinds", "frames", "boxes", "shape_rows", "flags", "words", "probes", "lasts", "dwells_us",
    "cooldowns_us",
)  # fmt: skip
_OF_POLYGONS = ("circles", "ring_offsets", "vertex_offsets", "vertices", "spans", "middles")


def no_subscribers() -> SubscriberArrays:
    """Return arrays without slots."""
    none, numbers = np.empty(0), np.zeros(1, np.int64)
    return SubscriberArrays(
        np.empty(0, np.int8), np.empty((0, 4)), np.empty((0, 8)), np.empty(0, np.int32),
        np.empty((0, 3)), numbers, numbers, np.empty((0, 2)), np.empty((0, 4)), np.empty((0, 2)),
        none.astype(np.uint8), none.astype(np.uint64), np.empty((0, N_PROBES), np.int16), numbers,
        none.astype(np.int32),
        none.astype(np.uint64), numbers, none.astype(np.int32), none.astype(np.int64),
        none.astype(np.int64), none.astype(np.int64),
    )  # fmt: skip


class SubscriberTable:
    """Subscriptions by slot, with room to grow."""

    def __init__(self, arrays: SubscriberArrays, is_lonlat: bool) -> None:
        self._is_lonlat = is_lonlat
        columns: dict[str, npt.NDArray[Any]] = arrays._asdict()
        self._columns = {
            name: GrowingArray(np.array(array) if len(array) <= 1 else array)
            for name, array in columns.items()
        }
        self.n_live = int(np.count_nonzero(arrays.flags & LIVE))
        self.n_timed = int(np.count_nonzero(self._are_timed(arrays)))
        self.n_dead_polygons = 0  # about
        self._refresh()

    @staticmethod
    def _are_timed(arrays: SubscriberArrays) -> npt.NDArray[np.bool_]:
        is_live: npt.NDArray[np.bool_] = arrays.flags & LIVE != 0
        return is_live & ((arrays.dwells_us > 0) | (arrays.cooldowns_us > 0))

    def __len__(self) -> int:
        return len(self._columns["kinds"])

    @property
    def arrays(self) -> SubscriberArrays:
        """All arrays without spare room; valid until the next subscription."""
        return SubscriberArrays(*(each.view for each in self._columns.values()))

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(each.nbytes for each in self._columns.values())

    def _refresh(self) -> None:
        held = self.arrays
        self.lasts, self.dwells_us, self.cooldowns_us = held[-3:]
        self.view = Subscribers(
            Regions(held.kinds, held.frames, held.boxes, held.shape_rows),
            Polygons(*(getattr(held, name) for name in _OF_POLYGONS)),
            held.flags, held.words, held.probes, held.clause_offsets, held.clause_slots,
            held.clause_words, held.token_offsets, held.token_ids,
        )  # fmt: skip

    def append(self, asked: MovingArrays) -> None:
        """Give the next slots these subscriptions."""
        first, n = len(self), len(asked.dwells_us)
        columns = self._columns
        shape_rows = self.add_polygons(asked.regions)
        is_timed = (asked.dwells_us > 0) | (asked.cooldowns_us > 0)
        for name in ("kinds", "frames", "boxes", "shape_rows", "words", "probes"):
            columns[name].resize(first + n)
        silent = np.where(is_timed, SILENT_LATER, SILENT)
        columns["flags"].append((LIVE + silent * asked.is_silent).astype(np.uint8))
        columns["lasts"].append(np.full(n, NO_TIME_US, np.int64))
        columns["dwells_us"].append(asked.dwells_us)
        columns["cooldowns_us"].append(asked.cooldowns_us)
        n_clauses, n_tokens = len(columns["clause_slots"]), len(columns["token_ids"])
        columns["clause_offsets"].append(asked.clause_offsets[1:] + n_clauses)
        columns["token_offsets"].append(asked.token_offsets[1:] + n_tokens)
        columns["token_ids"].append(asked.token_ids)
        columns["clause_slots"].resize(n_clauses + len(asked.token_offsets) - 1)
        columns["clause_words"].resize(n_clauses + len(asked.token_offsets) - 1)
        self.n_live += n
        self.n_timed += int(np.count_nonzero(is_timed))
        self._refresh()
        regions = asked.regions
        set_regions(
            self.view.regions, self.view.polygons, self._is_lonlat, first, regions.kinds,
            regions.frames, shape_rows,
        )  # fmt: skip
        count_clauses(self.view, first, first + n)

    def add_polygons(self, regions: AnchoredRegions) -> Int32s:
        """Keep the polygons of regions; return the row of each region's."""
        columns, shapes = self._columns, regions.shapes
        n = len(columns["circles"])
        if len(shapes.circles):
            n_rings, n_vertices = len(columns["vertex_offsets"]) - 1, len(columns["vertices"])
            columns["circles"].append(shapes.circles)
            columns["ring_offsets"].append(shapes.ring_offsets[1:] + n_rings)
            columns["vertex_offsets"].append(shapes.vertex_offsets[1:] + n_vertices)
            columns["vertices"].append(shapes.vertices)
            columns["spans"].append(regions.spans)
            columns["middles"].append(middles_of(regions.spans))
            self._refresh()
        return np.where(regions.shape_rows >= 0, regions.shape_rows + np.int32(n), np.int32(-1))

    def end(self, slots: Int32s) -> None:
        """Note that subscriptions ended, after the structure has."""
        self.n_live -= len(slots)
        ended = (self.dwells_us[slots] != 0) | (self.cooldowns_us[slots] != 0)
        self.n_timed -= int(np.count_nonzero(ended))

    def kept(self) -> Int32s | None:
        """Return the live slots if most are dead, else None."""
        if len(self) <= max(64, 2 * self.n_live):
            return None
        return np.flatnonzero(self.view.flags & LIVE).astype(np.int32)

    def only(self, slots: Int32s) -> SubscriberTable:
        """Return a table of some slots, in that order, with the polygons that they use."""
        held = self.arrays
        clause_offsets, clauses = gather_ranges(held.clause_offsets, slots)
        token_offsets, positions = gather_ranges(held.token_offsets, clauses)
        kept = held._replace(
            clause_offsets=clause_offsets,
            token_offsets=token_offsets,
            token_ids=held.token_ids[positions],
            clause_words=held.clause_words[clauses],
            clause_slots=np.repeat(np.arange(len(slots), dtype=np.int32), np.diff(clause_offsets)),
            **{name: getattr(held, name)[slots] for name in _BY_SLOT},
        )
        used, numbers = np.unique(kept.shape_rows, return_inverse=True)
        shape_rows = numbers.astype(np.int32)
        if len(used) and used[0] < 0:
            used, shape_rows = used[1:], shape_rows - np.int32(1)
        ring_offsets, rings = gather_ranges(held.ring_offsets, used)
        vertex_offsets, vertices = gather_ranges(held.vertex_offsets, rings)
        kept = kept._replace(
            shape_rows=shape_rows,
            circles=held.circles[used],
            ring_offsets=ring_offsets,
            vertex_offsets=vertex_offsets,
            vertices=held.vertices[vertices],
            spans=held.spans[used],
            middles=held.middles[used],
        )
        return SubscriberTable(kept, self._is_lonlat)

    def with_tokens(self, tokens: Int32s) -> SubscriberTable:
        """Return a table whose tokens have other numbers: token i was ``tokens[i]``."""
        held = self.arrays
        old = held.token_ids
        numbers = numbers_of(tokens, int(np.maximum(old, ~old).max(initial=0)) + 1)
        new = numbers[np.maximum(old, ~old)]
        table = SubscriberTable(
            held._replace(token_ids=np.where(old < 0, ~new, new).astype(np.int32)), self._is_lonlat
        )
        count_clauses(table.view, 0, len(table))
        return table


def middles_of(spans: Float64s) -> Float64s:
    """Return the middles of boxes, which may cross 180 degrees."""
    min_x, min_y, max_x, max_y = spans.T
    xs = np.where(min_x <= max_x, min_x / 2 + max_x / 2, (min_x + max_x + 360.0) / 2)
    xs = np.where((min_x > max_x) & (xs > 180.0), xs - 360.0, xs)
    return np.stack([xs, min_y / 2 + max_y / 2], axis=1)


# ---- messages -----------------------------------------------------------------------------------

_BY_ROW = ("boxes", "words", "token_starts", "n_tokens", "sequences", "ends", "free", "heap")


def no_messages() -> Messages:
    """Return a table without rows."""
    facts = np.zeros(N_MESSAGE_FACTS, np.int64)
    facts[CLOCK] = NO_TIME_US
    return Messages(
        facts, np.empty((0, 4)), np.empty(0, np.uint64), np.empty(0, np.int64),
        np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32),
        np.zeros(1, np.int32), np.empty(0, np.int32), np.empty(0, np.int32),
    )  # fmt: skip


def with_rows(messages: Messages, n_tokens: int) -> Messages:
    """Return the table with room for a message of so many tokens, or for more."""
    facts = messages.facts
    if facts[N_FREE] == 0 and facts[N_ROWS] == len(messages.ends):
        n = len(messages.ends) + 64
        more: dict[str, Any] = {
            name: with_room(getattr(messages, name), n, -1 if name == "sequences" else 0)
            for name in _BY_ROW
        }
        messages = messages._replace(**more)
    if facts[N_TOKENS_USED] + n_tokens > len(messages.tokens):
        if facts[N_TOKENS_USED] > 2 * facts[N_TOKENS_LIVE]:
            messages = packed(messages)
        tokens = with_room(messages.tokens, int(facts[N_TOKENS_USED]) + n_tokens + 256, None)
        messages = messages._replace(tokens=tokens)
    return messages


def packed(messages: Messages) -> Messages:
    """Return the table without tokens of messages that have ended."""
    facts = messages.facts
    rows = live_rows(messages)
    starts, lengths = messages.token_starts[rows], messages.n_tokens[rows].astype(np.int64)
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    positions = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
    messages.token_starts[rows] = offsets[:-1]
    facts[N_TOKENS_USED] = offsets[-1]
    return messages._replace(tokens=messages.tokens[positions])


def live_rows(messages: Messages) -> Int64s:
    """Return the rows of live messages."""
    return np.flatnonzero(messages.sequences[: messages.facts[N_ROWS]] >= 0)


def with_token_counts(messages: Messages, n_tokens: int) -> Messages:
    """Return the table with a count for each of so many tokens."""
    return messages._replace(n_having=with_room(messages.n_having, n_tokens))


def without_rooms(messages: Messages) -> Messages:
    """Return the table with as many rows as there are messages, in the order of arrival."""
    rows = live_rows(messages)
    rows = rows[np.argsort(messages.sequences[rows])]
    numbers = numbers_of(rows.astype(np.int32), len(messages.ends))
    n = len(rows)
    heap = numbers[messages.heap[:n]]
    messages = packed(messages)
    facts = messages.facts
    facts[N_ROWS], facts[N_FREE] = n, 0
    kept = {name: getattr(messages, name)[rows] for name in _BY_ROW[:-2]}
    return messages._replace(**kept, free=np.zeros(n, np.int32), heap=heap)


# ---- working memory -----------------------------------------------------------------------------


def new_scratch(n: int, n_tokens: int) -> Scratch:
    """Return working memory for so many slots or rows, and tokens."""
    regions = Regions(
        np.zeros(2, np.int8), np.zeros((2, 4)), np.zeros((2, 8)), np.full(2, -1, np.int32)
    )
    return Scratch(
        Query(regions, np.zeros((2, 4))), np.zeros(n_tokens, np.uint8),
        np.zeros(N_COUNTS, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64),
        np.zeros(n, np.int32), np.zeros(_N_STACK, np.int64),
    )  # fmt: skip


def with_scratch(scratch: Scratch, n: int, n_tokens: int) -> Scratch:
    """Return working memory with more room; what was found last is still there."""
    return scratch._replace(
        marks=with_room(scratch.marks, n_tokens),
        found=with_room(scratch.found, n),
        entered=with_room(scratch.entered, n),
        stamps=with_room(scratch.stamps, n),
    )


def new_output(n: int) -> Output:
    """Return room for ``n`` changes."""
    return Output(
        np.zeros(1, np.int64), np.empty(n, np.int32), np.empty(n, np.int8), np.empty(n, np.int8),
        np.empty(n, np.int32), np.empty(n, np.int64), np.empty(n, np.int64),
    )  # fmt: skip


def larger_output(output: Output) -> Output:
    """Return the changes with more room."""
    n = 2 * len(output.rows)
    return Output(output.length, *(with_room(array, n, None) for array in output[1:]))


def bytes_of(*arrays: tuple[Any, ...]) -> int:
    """Return the bytes of several bundles of arrays."""
    return sum(nbytes(each) for each in arrays)
