"""The messages of a window and the index over them, as arrays with room to grow."""

from __future__ import annotations

from typing import Any

import numpy as np

from earshot.kernels.growing import with_room
from earshot.model.arrays import Float64s, Int32s, nbytes
from earshot.semantics.topk.kernels.arrays import (
    FIRST_SEGMENT,
    FIRST_SEQUENCE,
    LATE_START,
    LATE_STOP,
    N_CHAINED,
    N_FACTS,
    N_LIVE,
    N_ROWS,
    N_SEGMENT_FACTS,
    NEWEST_TIME,
    NEXT,
    STOP_SEGMENT,
    SegmentArrays,
    WindowArrays,
)
from earshot.semantics.topk.kernels.scoring import unit_vectors
from earshot.semantics.topk.kernels.segments import build_segment
from earshot.semantics.topk.room import empty_of

LEAST_SEGMENT, MOST_SEGMENT = 256, 1 << 16
SEGMENTS_OF_WINDOW = 16
"""The large ones of the window."""

SMALL_SEGMENTS = 16
"""As many small ones are merged into a large one, so that few messages are in chains."""

FEW_SEGMENTS = 4
"""Of the whole window, where much is searched for at once. With one, most that a search looks at
would soon be out of the window."""

NO_TIME = np.iinfo(np.int64).min


class Window:
    """The messages of a window."""

    def __init__(self) -> None:
        facts = np.zeros(N_FACTS, np.int64)
        facts[NEWEST_TIME] = NO_TIME
        places, offsets = np.empty((0, 3)), np.zeros(1, np.int64)
        self.arrays = empty_of(WindowArrays, facts=facts, places=places, token_offsets=offsets)
        self.segments = _no_segments(0)

    @classmethod
    def from_arrays(cls, arrays: WindowArrays, segments: SegmentArrays) -> Window:
        """Return a window over saved arrays."""
        self = cls.__new__(cls)
        self.arrays, self.segments = arrays, segments
        return self

    @property
    def n_rows(self) -> int:
        """Rows in use, those of messages that have left included."""
        return int(self.arrays.facts[N_ROWS])

    @property
    def n_live(self) -> int:
        """Messages in the window."""
        return int(self.arrays.facts[N_LIVE])

    @property
    def first_sequence(self) -> int:
        """Sequence of the first row."""
        return int(self.arrays.facts[FIRST_SEQUENCE])

    @property
    def nbytes(self) -> int:
        """Bytes of the messages, room to grow included."""
        return nbytes(self.arrays)

    # ---- room -----------------------------------------------------------------------------------

    def reserve(self, n_messages: int, n_tokens: int, n_words: int) -> None:
        """Make room for more messages and tokens, and for token ids below ``n_words``."""
        arrays, segments = self.arrays, self.segments
        n_rows = self.n_rows
        used = int(arrays.token_offsets[n_rows])
        # One more offset than rows, so these are full first.
        is_full = n_rows + n_messages >= len(arrays.token_offsets)
        if is_full or used + n_tokens > len(arrays.tokens):
            self._forget_expired()
            arrays = self.arrays
            n_rows = self.n_rows
            used = int(arrays.token_offsets[n_rows])
            rows, tokens = n_rows + n_messages, used + n_tokens
            # Room for a quarter more at least: rows are forgotten only when it is used up, and
            # that takes as long as there are rows.
            if rows + rows // 4 >= len(arrays.token_offsets):
                rows *= 2
            if tokens + tokens // 4 > len(arrays.tokens):
                tokens *= 2
            self.arrays = arrays._replace(
                places=with_room(arrays.places, rows),
                times=with_room(arrays.times, rows),
                is_live=with_room(arrays.is_live, rows),
                is_late=with_room(arrays.is_late, rows),
                token_offsets=with_room(arrays.token_offsets, rows + 1),
                heads=with_room(arrays.heads, rows, -1),
                tokens=with_room(arrays.tokens, tokens),
                weights=with_room(arrays.weights, tokens),
                counts=with_room(arrays.counts, tokens),
            )
        self._reserve_late(n_messages)
        n_chained = int(segments.facts[N_CHAINED]) + n_tokens
        self.segments = segments._replace(
            chain_heads=with_room(segments.chain_heads, n_words, -1),
            chain_nexts=with_room(segments.chain_nexts, n_chained),
            chain_messages=with_room(segments.chain_messages, n_chained),
            chain_weights=with_room(segments.chain_weights, n_chained),
            chain_signatures=with_room(segments.chain_signatures, n_chained),
        )

    def _reserve_late(self, n: int) -> None:
        arrays = self.arrays
        facts = arrays.facts
        start, stop = int(facts[LATE_START]), int(facts[LATE_STOP])
        if stop + n > len(arrays.late):
            kept = arrays.late[start:stop].copy()
            late = np.empty(2 * (len(kept) + n), np.uint32)
            late[: len(kept)] = kept
            self.arrays = arrays._replace(late=late)
            facts[LATE_START], facts[LATE_STOP] = 0, len(kept)

    def _forget_expired(self) -> None:
        """Move what may be in the window to the start of the arrays."""
        arrays = self.arrays
        facts = arrays.facts
        n_rows, first = self.n_rows, self._first_live_row()
        if first == 0:
            return
        kept = n_rows - first
        by_row: tuple[Any, ...] = (
            arrays.places,
            arrays.times,
            arrays.is_live,
            arrays.is_late,
            arrays.heads,
        )
        for array in by_row:
            array[:kept] = array[first:n_rows].copy()
        token_first, token_stop = (int(arrays.token_offsets[row]) for row in (first, n_rows))
        for array in (arrays.tokens, arrays.weights, arrays.counts):
            array[: token_stop - token_first] = array[token_first:token_stop].copy()
        arrays.token_offsets[: kept + 1] = (
            arrays.token_offsets[first : n_rows + 1].copy() - token_first
        )
        facts[FIRST_SEQUENCE] += first
        facts[N_ROWS] = kept
        facts[NEXT] = max(int(facts[NEXT]) - first, 0)

    # ---- the index ------------------------------------------------------------------------------

    @property
    def n_chained(self) -> int:
        """Messages that came since the last segment was closed."""
        segments = self.segments
        stop = int(segments.facts[STOP_SEGMENT])
        return self.first_sequence + self.n_rows - int(segments.first_sequences[stop])

    @property
    def _segment_size(self) -> int:
        """Messages of a large segment."""
        return min(max(self.n_live // SEGMENTS_OF_WINDOW, LEAST_SEGMENT), MOST_SEGMENT)

    def segment_room(self) -> int:
        """Return how many more messages the chains should take."""
        return max(self._segment_size // SMALL_SEGMENTS, LEAST_SEGMENT) - self.n_chained

    def close_segment(self) -> None:
        """Make a segment of the messages in the chains, and a large one of many small ones."""
        segments = self.segments
        stop = int(segments.facts[STOP_SEGMENT])
        first_row = int(segments.first_sequences[stop]) - self.first_sequence
        if first_row < 0:  # some of them are forgotten already, and which tokens they had
            first_row = 0
            segments.chain_heads[:] = -1
        else:
            chained = self.arrays.tokens[
                self.arrays.token_offsets[first_row] : self.arrays.token_offsets[self.n_rows]
            ]
            segments.chain_heads[chained] = -1
        segments.facts[N_CHAINED] = 0
        self._append_segment(first_row, self.n_rows)
        self._merge_small()

    def _merge_small(self) -> None:
        """Put the newest segments into one when together they are as large as one should be."""
        facts, starts = self.segments.facts, self.segments.first_sequences
        stop = int(facts[STOP_SEGMENT])
        size = self._segment_size
        first = stop
        while first > facts[FIRST_SEGMENT] and starts[first] - starts[first - 1] < size:
            first -= 1
        if stop - first > 1 and starts[stop] - starts[first] >= size:
            first_row = max(int(starts[first]) - self.first_sequence, 0)
            facts[STOP_SEGMENT] = first
            self._append_segment(first_row, self.n_rows)

    def merge_segments(self) -> None:
        """Put all segments into few, if there are many; messages in chains stay there."""
        facts, starts = self.segments.facts, self.segments.first_sequences
        stop = int(facts[STOP_SEGMENT])
        if stop - int(facts[FIRST_SEGMENT]) > 2 * FEW_SEGMENTS:
            stop_row = int(starts[stop]) - self.first_sequence
            self._index(min(self._first_live_row(), stop_row), stop_row)

    def _index(self, first_row: int, stop_row: int) -> None:
        """Have few segments with these messages, and no others."""
        self.segments.facts[[FIRST_SEGMENT, STOP_SEGMENT]] = 0
        self.segments.first_sequences[0] = self.first_sequence + first_row
        size = max(-(-(stop_row - first_row) // FEW_SEGMENTS), LEAST_SEGMENT)
        for row in range(first_row, stop_row, size):
            self._append_segment(row, min(row + size, stop_row))

    def _first_live_row(self) -> int:
        live = self.arrays.is_live[: self.n_rows].view(np.bool_)  # so that the first ends it
        return int(live.argmax()) if live.any() else self.n_rows

    def _append_segment(self, first_row: int, stop_row: int) -> None:
        self._forget_segments()
        new = build_segment(self.arrays, first_row, stop_row)
        segments = self.segments
        at = int(segments.facts[STOP_SEGMENT])
        used: dict[str, int] = {}
        for kind, names in _KINDS.items():
            outer = at if kind in _BY_SEGMENT else used["entry"]
            used[kind] = int(getattr(segments, f"{kind}_offsets")[outer])
            n = used[kind] + len(getattr(new, names[0]))
            room = {name: with_room(getattr(segments, name), n) for name in names}
            for name, array in room.items():
                array[used[kind] : n] = getattr(new, name)
            segments = segments._replace(**room)
        first_entry, n_entries = used["entry"], len(new.tokens)
        offsets = {}
        for kind in ("posting", "block", "group"):
            name = f"{kind}_offsets"
            offsets[name] = with_room(getattr(segments, name), first_entry + n_entries + 1)
            offsets[name][first_entry : first_entry + n_entries + 1] = (
                getattr(new, name) + used[kind]
            )
        self.segments = segments = segments._replace(
            first_sequences=with_room(segments.first_sequences, at + 2),
            entry_offsets=with_room(segments.entry_offsets, at + 2),
            bucket_offsets=with_room(segments.bucket_offsets, at + 2),
            frames=with_room(segments.frames, at + 1),
            **offsets,
        )
        segments.first_sequences[at] = self.first_sequence + first_row
        segments.first_sequences[at + 1] = self.first_sequence + stop_row
        segments.entry_offsets[at + 1] = first_entry + n_entries
        segments.bucket_offsets[at + 1] = used["bucket"] + len(new.buckets)
        segments.frames[at] = new.frame
        segments.facts[STOP_SEGMENT] = at + 1

    def _forget_segments(self) -> None:
        """Drop the segments of which no message is in the window."""
        segments = self.segments
        facts = segments.facts
        first, stop = int(facts[FIRST_SEGMENT]), int(facts[STOP_SEGMENT])
        oldest = self.first_sequence + self._first_live_row()
        while first < stop and int(segments.first_sequences[first + 1]) <= oldest:
            first += 1
        starts = segments.first_sequences
        if first < stop and starts[first] - starts[0] <= starts[stop] - starts[first]:
            facts[FIRST_SEGMENT] = first
            return
        # More messages are gone than are left: move the rest to the start.
        ranges = {"segment": slice(first, stop)}
        for kind, names in _KINDS.items():
            offsets = getattr(segments, f"{kind}_offsets")
            outer = ranges["segment" if kind in _BY_SEGMENT else "entry"]
            ranges[kind] = slice(int(offsets[outer.start]), int(offsets[outer.stop]))
            for name in names:
                array = getattr(segments, name)
                moved = array[ranges[kind]].copy()
                array[: len(moved)] = moved
        for kind in _KINDS:
            offsets = getattr(segments, f"{kind}_offsets")
            outer = ranges["segment" if kind in _BY_SEGMENT else "entry"]
            moved = offsets[outer.start : outer.stop + 1].copy()
            offsets[: len(moved)] = moved - moved[0]
        moved = segments.first_sequences[first : stop + 1].copy()
        segments.first_sequences[: len(moved)] = moved
        segments.frames[: stop - first] = segments.frames[first:stop].copy()
        facts[FIRST_SEGMENT], facts[STOP_SEGMENT] = 0, stop - first

    def live_tokens(self) -> Int32s:
        """Return the tokens of the messages in the window."""
        arrays, n = self.arrays, self.n_rows
        is_live = np.repeat(arrays.is_live[:n] != 0, np.diff(arrays.token_offsets[: n + 1]))
        tokens: Int32s = arrays.tokens[: len(is_live)][is_live]
        return tokens

    def renumber(self, numbers: Int32s, n_words: int) -> None:
        """Give token i the number ``numbers[i]``, below ``n_words``; their order is the same."""
        self._forget_expired()
        tokens = self.arrays.tokens[: self.arrays.token_offsets[self.n_rows]]
        tokens[:] = numbers[tokens]
        self._index_all(n_words)

    def reweigh(self, weights: Float64s, later_weight: float) -> None:
        """Weigh all words anew and index the messages again."""
        self._forget_expired()
        arrays, n_rows = self.arrays, self.n_rows
        n_tokens = int(arrays.token_offsets[n_rows])
        unit_vectors(
            arrays.token_offsets[: n_rows + 1],
            arrays.tokens[:n_tokens].copy(),
            arrays.counts[:n_tokens].copy(),
            weights,
            later_weight,
            arrays.tokens,
            arrays.weights,
            arrays.counts,
        )
        self._index_all(len(self.segments.chain_heads))

    def _index_all(self, n_words: int) -> None:
        self.segments = _no_segments(n_words)
        self._index(0, self.n_rows)


_KINDS = {
    "entry": ("tokens", "largest"),
    "bucket": ("buckets",),
    "posting": ("messages", "weights", "signatures", "cells"),
    "block": ("block_spheres", "block_largest"),
    "group": ("group_spheres", "group_largest"),
}
"""The arrays of segments that are as long as the entries, the buckets, and so on."""

_BY_SEGMENT = ("entry", "bucket")
"""The kinds that have an offset per segment; the others have one per entry."""


def _no_segments(n_words: int) -> SegmentArrays:
    by_segment = ("first_sequences", "entry_offsets", "bucket_offsets")
    by_entry = ("posting_offsets", "block_offsets", "group_offsets")
    spheres = ("block_spheres", "group_spheres")
    return empty_of(
        SegmentArrays,
        facts=np.zeros(N_SEGMENT_FACTS, np.int64),
        frames=np.empty((0, 7)),
        chain_heads=np.full(n_words, -1, np.int32),
        **{name: np.zeros(SEGMENTS_OF_WINDOW, np.int64) for name in by_segment},
        **{name: np.zeros(1, np.int64) for name in by_entry},
        **{name: np.empty((0, 4), np.float32) for name in spheres},
    )
