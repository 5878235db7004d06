"""Ids of the messages that an engine keeps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from earshot.engine.ids import id_bytes, strings_of
from earshot.errors import InvalidInput
from earshot.model.arrays import Int64s
from earshot.model.schemas import IdKind, id_kind

_SHORT_RUN = 4096


class MessageIdArrays(NamedTuple):
    """What is saved of the ids of messages."""

    data: npt.NDArray[np.uint8]  # bytes of all ids, in sequence; eight each for integers
    offsets: Int64s  # (n_ids + 1,) for strings, empty for integers
    sequences: Int64s  # (n_ids,) of each


class MessageIds:
    """Ids of the messages that are kept, by sequence number.

    Kept as runs of which each is at most half as long as the one before, so that adding is cheap on
    average, one at a time or many; short ones are always joined, so that there are few. Ids are all
    64-bit integers or all strings; the first decides. In front of the runs are the ids of messages
    that outlived most of their time, with the sequence number of each.

    Attributes:
        next: Sequence number of the next message.
    """

    def __init__(
        self, kind: IdKind | None = None, next_: int = 0, arrays: MessageIdArrays | None = None
    ) -> None:
        self.kind = kind
        self._runs: list[pa.Array] = []
        self._firsts: list[int] = []  # sequence number that each run begins with
        self.next = next_  # sequence number
        self._old: pa.Array = pa.nulls(0, self.type)
        self._old_sequences: Int64s = np.empty(0, np.int64)
        if arrays is not None and kind is not None:
            self._old_sequences = arrays.sequences
            if kind == "integer":
                self._old = pa.array(arrays.data.view(np.int64))
            else:
                self._old = strings_of(arrays.offsets, arrays.data)

    @property
    def type(self) -> pa.DataType:
        """Arrow type of the ids."""
        return pa.large_string() if self.kind == "string" else pa.int64()

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        held = (self._old, *self._runs)
        n_bytes = sum(int(run.get_total_buffer_size()) for run in held)
        return n_bytes + self._old_sequences.nbytes

    def __len__(self) -> int:
        return len(self._old) + sum(map(len, self._runs))

    def check_kind(self, ids: pa.Array) -> None:
        """Refuse ids of another kind than those that are there."""
        kind = id_kind(ids.type)
        if len(ids) and self.kind is not None and kind != self.kind:
            raise InvalidInput(
                f"these messages' ids are of kind {kind}, those before are of kind {self.kind}; "
                f"ids must be all integers or all strings"
            )

    def append(self, ids: pa.Array) -> None:
        """Give the next sequence numbers these ids."""
        if not len(ids):
            return
        self.check_kind(ids)
        if self.kind is None:
            self.kind = id_kind(ids.type)
            self._old = pa.nulls(0, self.type)
        first = self.next
        self.next += len(ids)
        # Large strings: the ids of a whole window may take more than 2 GiB.
        run = ids.cast(self.type)
        while self._runs and len(self._runs[-1]) < max(2 * len(run), _SHORT_RUN):
            run = pa.concat_arrays([self._runs.pop(), run])
            first = self._firsts.pop()
        self._runs.append(run)
        self._firsts.append(first)

    def ids_of(self, sequences: Int64s) -> pa.Array:
        """Return the ids of messages that have not been forgotten."""
        if not len(sequences):
            return pa.array([], self.type)
        firsts = np.array(self._firsts, np.int64)
        numbers = np.searchsorted(firsts, sequences, side="right") - 1
        parts, places = [], np.empty(len(sequences), np.int64)
        n = 0
        for number in np.unique(numbers).tolist():
            chosen = np.flatnonzero(numbers == number)
            if number < 0:
                run, at = self._old, np.searchsorted(self._old_sequences, sequences[chosen])
            else:
                run, at = self._runs[number], sequences[chosen] - firsts[number]
            parts.append(run.take(pa.array(at)))
            places[chosen] = np.arange(n, n + len(chosen))
            n += len(chosen)
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts).take(pa.array(places))

    def forget_before(self, sequence: int) -> None:
        """Drop the ids of messages before this one."""
        n_old = int(np.searchsorted(self._old_sequences, sequence))
        if n_old:
            self._old = _without_first(self._old, n_old)
            self._old_sequences = self._old_sequences[n_old:]
        while self._runs and self._firsts[0] + len(self._runs[0]) <= sequence:
            del self._runs[0], self._firsts[0]
        if self._runs and self._firsts[0] < sequence:
            self._runs[0] = _without_first(self._runs[0], sequence - self._firsts[0])
            self._firsts[0] = sequence

    def keep(self, sequences: Int64s) -> None:
        """Drop the ids of all messages but these, in their order."""
        self._old = self.ids_of(sequences)
        self._old_sequences = sequences
        self._runs, self._firsts = [], []

    @property
    def arrays(self) -> MessageIdArrays:
        """The ids as arrays, to be saved."""
        sequences = [
            np.arange(first, first + len(run))
            for first, run in zip(self._firsts, self._runs, strict=True)
        ]
        return MessageIdArrays(
            *id_bytes(pa.concat_arrays([self._old, *self._runs])),
            np.concatenate([self._old_sequences, *sequences]),
        )


def _without_first(ids: pa.Array, n: int) -> pa.Array:
    """Return all ids but the first ones."""
    left = ids.slice(n)
    if 2 * left.offset > len(left) + left.offset:  # else most of what it holds is in use
        left = left.take(pa.array(np.arange(len(left))))
    return left
