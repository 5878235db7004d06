"""The vocabulary: tokens, their ids and in how many documents they occur.

Ids are handed out in the order in which tokens are added and never change; :meth:`Vocabulary.only`
makes another vocabulary, in which tokens that are left keep their order. Id 0 is
:data:`~earshot.model.arrays.EVERYWHERE_TOKEN`; its token is the empty string, which no text holds.

A vocabulary is a NamedTuple of arrays: it is saved by writing and opened by mapping them, without
rebuilding anything. Adding tokens or counting documents never writes to arrays that came from
elsewhere (a file, a copy); they are copied into larger buffers first.

It is not locked: any number of threads may look up, but who adds must be alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from earshot.errors import InvalidInput
from earshot.kernels.steady import SteadyCalls
from earshot.model.arrays import Int32s, Int64s, gather_ranges, nbytes
from earshot.text.kernels import hash_table, utf8

MAX_TOKENS = 2**31 - 1


class TokenLists(NamedTuple):
    """Distinct token ids of each text of a batch, in order of first occurrence."""

    offsets: Int64s  # (n_texts + 1,) ids of text i are [i]:[i+1]
    ids: Int32s


class TokenCounts(NamedTuple):
    """Distinct token ids of each text of a batch, and how often each occurs in it."""

    offsets: Int64s  # (n_texts + 1,) ids of text i are [i]:[i+1]
    ids: Int32s  # in order of first occurrence
    counts: npt.NDArray[np.uint16]  # (n_ids,) at least 1
    overfull: Int64s  # texts with a token that occurs more often than 65,535 times, its count here


class VocabularyArrays(NamedTuple):
    """A vocabulary as arrays; :mod:`earshot.text.kernels.hash_table` describes the slots."""

    token_bytes: npt.NDArray[np.uint8]  # UTF-8 of all tokens, one after the other
    token_offsets: Int64s  # (n_tokens + 1,) bytes of token t are [t]:[t+1]
    slots: npt.NDArray[np.uint64]  # (2**k, 2) hash table of the tokens
    frequencies: Int64s  # (n_tokens,) documents that hold the token


class Vocabulary:
    """A growing set of tokens with ids and document frequencies."""

    def __init__(self) -> None:
        self._buffers = VocabularyArrays(
            np.empty(1024, np.uint8),
            np.zeros(65, np.int64),
            np.zeros((128, 2), np.uint64),
            np.zeros(64, np.int64),
        )
        self._n_tokens = 1
        self._owns_tokens = True
        self._owns_frequencies = True
        self.caches: dict[Any, list[Any]] = {}
        """What analyzers remember about this vocabulary; neither copied nor pickled."""
        self.calls = SteadyCalls()  # of kernels with the buffers

    # ---- reading ----------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._n_tokens

    def __repr__(self) -> str:
        return f"<Vocabulary of {self._n_tokens - 1:,} tokens, {self.nbytes:,} bytes>"

    def ids_of(self, tokens: Sequence[str]) -> Int32s:
        """Return the ids of tokens, -1 for unknown ones."""
        data, spans = _joined(tokens)
        ids = np.empty(len(tokens), np.int32)
        hash_table.find_tokens(data, spans, False, self._buffers, self._n_tokens, ids)
        # The kernel says 0 for unknown tokens; the empty token is the only one that is there.
        ids[(ids == 0) & (spans & np.uint64(0xFFFFFFFF) > 0)] = -1
        return ids

    def tokens(self, ids: npt.ArrayLike) -> list[str]:
        """Return the tokens with these ids."""
        wanted = np.asarray(ids, np.int64)
        bad = (wanted < 0) | (wanted >= self._n_tokens)
        if bad.any():
            raise InvalidInput(
                f"token id {wanted[bad][0]} is unknown; ids run from 0 to {self._n_tokens - 1}"
            )
        arrays = self.arrays
        strings = pa.LargeStringArray.from_buffers(
            self._n_tokens, pa.py_buffer(arrays.token_offsets), pa.py_buffer(arrays.token_bytes)
        )
        found: list[str] = strings.take(pa.array(wanted)).to_pylist()
        return found

    @property
    def frequencies(self) -> Int64s:
        """How many documents hold each token, as counted by :meth:`add_documents`."""
        return self._buffers.frequencies[: self._n_tokens]

    @property
    def arrays(self) -> VocabularyArrays:
        """The arrays without spare room: views, to be saved before the vocabulary changes."""
        n_tokens, buffers = self._n_tokens, self._buffers
        return VocabularyArrays(
            buffers.token_bytes[: buffers.token_offsets[n_tokens]],
            buffers.token_offsets[: n_tokens + 1],
            buffers.slots,
            buffers.frequencies[:n_tokens],
        )

    @property
    def nbytes(self) -> int:
        """Bytes of memory, including the room to grow."""
        return nbytes(self._buffers)

    # ---- growing ----------------------------------------------------------------------------

    def add(self, tokens: Sequence[str]) -> Int32s:
        """Add the tokens that are unknown, as they are; return the ids of all."""
        if not all(tokens):
            raise InvalidInput(
                f"token {list(tokens).index('')} is empty; the empty token has id 0 already"
            )
        data, spans = _joined(tokens)
        self._reserve(len(tokens), len(data))
        ids = np.empty(len(tokens), np.int32)
        self._n_tokens = int(
            hash_table.find_tokens(data, spans, True, self._buffers, self._n_tokens, ids)
        )
        return ids

    def add_documents(self, documents: TokenLists) -> None:
        """Count the documents that hold each token; tokens are distinct within each document."""
        ids = np.ascontiguousarray(documents.ids, np.int32)
        if len(ids) and ids.view(np.uint32).max() >= self._n_tokens:  # those below 0 too
            raise InvalidInput(
                f"token ids run from {ids.min()} to {ids.max()}; this vocabulary has "
                f"0 to {self._n_tokens - 1}"
            )
        if not self._owns_frequencies:
            self._buffers = self._buffers._replace(frequencies=self._buffers.frequencies.copy())
            self._owns_frequencies = True
        hash_table.count_documents(ids, self._buffers.frequencies)

    def _reserve(self, n_tokens: int, n_bytes: int) -> None:
        """Make room for so many more tokens, at least doubling what is too small."""
        held = self._buffers
        tokens_needed = self._n_tokens + n_tokens
        bytes_used = int(held.token_offsets[self._n_tokens])
        if tokens_needed > MAX_TOKENS:
            raise InvalidInput(
                f"the vocabulary would exceed {MAX_TOKENS:,} tokens; split the subscriptions"
            )
        is_own, slots = self._owns_tokens, held.slots
        if 2 * tokens_needed > len(slots):
            # At most half full: a probe then looks at 1.5 slots if it finds, 2.5 if it does not.
            slots = np.zeros((1 << (2 * tokens_needed - 1).bit_length(), 2), np.uint64)
            hash_table.copy_slots(held.slots, slots)
        elif not is_own:
            slots = slots.copy()
        self._buffers = VocabularyArrays(
            _with_room(held.token_bytes, bytes_used, bytes_used + n_bytes, is_own),
            _with_room(held.token_offsets, self._n_tokens + 1, tokens_needed + 1, is_own),
            slots,
            _with_room(held.frequencies, self._n_tokens, tokens_needed, self._owns_frequencies),
        )
        self._owns_tokens = self._owns_frequencies = True

    # ---- copies -----------------------------------------------------------------------------

    @classmethod
    def from_arrays(cls, arrays: VocabularyArrays) -> Self:
        """Return a vocabulary over saved arrays, which it never writes to."""
        # Kernels are compiled for arrays that may be written.
        token_bytes, token_offsets, slots, frequencies = map(_writable, arrays)
        n_tokens = len(frequencies)
        n_slots = len(slots)
        if (
            len(token_offsets) != n_tokens + 1
            or n_tokens < 1
            or token_offsets[0] != 0
            or token_offsets[-1] != len(token_bytes)
            or slots.shape != (n_slots, 2)
            or n_slots & (n_slots - 1)
            or n_slots < 2 * n_tokens
        ):
            raise InvalidInput(
                f"vocabulary arrays disagree: {n_tokens} frequencies, {len(token_offsets)} token "
                f"offsets (expected {n_tokens + 1}) that end at {token_offsets[-1:].tolist()} "
                f"(expected {len(token_bytes)}), slots {slots.shape} (expected a power of two of "
                f"at least {2 * n_tokens} rows of 2)"
            )
        self = cls.__new__(cls)
        self._buffers = VocabularyArrays(token_bytes, token_offsets, slots, frequencies)
        self._n_tokens = n_tokens
        self._owns_tokens = False
        self._owns_frequencies = False
        self.caches = {}
        self.calls = SteadyCalls()
        return self

    def copy(self) -> Self:
        """Return a copy; the arrays are shared until either of the two changes."""
        copied = self.from_arrays(self.arrays)
        self._owns_tokens = False
        self._owns_frequencies = False
        return copied

    def only(self, ids: Int32s) -> Vocabulary:
        """Return a vocabulary of some tokens, token 0 first: token i was ``ids[i]``."""
        arrays = self.arrays
        offsets, positions = gather_ranges(arrays.token_offsets, ids)
        data = np.zeros(len(positions) + utf8.PADDING_BYTES, np.uint8)
        data[: len(positions)] = arrays.token_bytes[positions]
        starts = offsets.astype(np.uint64)
        spans = starts[1:-1] << np.uint64(32) | np.diff(starts[1:])
        chosen = Vocabulary()
        chosen._reserve(len(spans), len(positions))
        found = np.empty(len(spans), np.int32)
        chosen._n_tokens = int(hash_table.find_tokens(data, spans, True, chosen._buffers, 1, found))
        chosen._buffers.frequencies[: len(ids)] = arrays.frequencies[ids]
        return chosen

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self).from_arrays, (self.arrays,))


def _with_room(array: Any, n_used: int, n_needed: int, is_own: bool) -> Any:
    """Return the array if it has room and may be written to, else a copy of what is in use."""
    if n_needed <= len(array):
        return array if is_own else array.copy()
    larger = np.zeros(max(n_needed, 2 * n_used), array.dtype)
    larger[:n_used] = array[:n_used]
    return larger


def _writable(array: Any) -> Any:
    flags = array.flags
    return array if flags.writeable and flags.c_contiguous else np.array(array, order="C")


def _joined(tokens: Sequence[str]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64]]:
    """Return tokens as bytes with the padding that kernels want, and their spans."""
    strings = pa.array(tokens, pa.large_string())
    if len(strings) == 0:
        return np.zeros(utf8.PADDING_BYTES, np.uint8), np.zeros(0, np.uint64)
    _, offset_buffer, data_buffer = strings.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64, len(strings) + 1).astype(np.uint64)
    if offsets[-1] >= 1 << 32:
        raise InvalidInput(f"tokens of {offsets[-1]:,} bytes at once; expected less than 4 GiB")
    spans = offsets[:-1] << np.uint64(32) | (offsets[1:] - offsets[:-1])
    data = np.zeros(int(offsets[-1]) + utf8.PADDING_BYTES, np.uint8)
    data[: offsets[-1]] = np.frombuffer(data_buffer, np.uint8, int(offsets[-1]))
    return data, spans
