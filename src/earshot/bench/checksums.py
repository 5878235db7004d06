"""Order-independent checksums of answers, and the comparison between competitors.

The checksum of a set of answers is the sum, modulo 2**64, of a mixed 64-bit hash of each
``(message, slot)``. Sums over the first 8, 32, 128, … messages are kept apart, so that a competitor
that only had time for few messages is still compared with the others on those.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.errors import EarshotError
from earshot.indexes.answers import Matches
from earshot.model.arrays import Int32s, Int64s

PREFIXES = (8, 32, 128, 512, 2_048, 8_192, 32_768)
"""Numbers of messages after which checksums are compared."""


class AnswersDiffer(EarshotError):
    """Two competitors gave different answers to the same messages."""


class Pairs(NamedTuple):
    """Answers as pairs, in any order."""

    messages: Int64s | Int32s  # (n_answers,) row of the message within the batch
    slots: Int32s  # (n_answers,)


def prefix_lengths(n_messages: int) -> list[int]:
    """Return the lengths at which a run over ``n_messages`` is compared, the last being all."""
    return [length for length in PREFIXES if length < n_messages] + [n_messages]


def as_pairs(answers: Matches | Pairs) -> Pairs:
    """Return answers as pairs."""
    if isinstance(answers, Pairs):
        return answers
    lengths = np.diff(answers.offsets)
    return Pairs(np.repeat(np.arange(len(lengths)), lengths), answers.subscriptions)


def checksum(answers: Matches | Pairs, first_message: int = 0) -> int:
    """Return the checksum of answers to a batch that begins at message ``first_message``."""
    pairs = as_pairs(answers)
    keys = (pairs.messages.astype(np.uint64) + np.uint64(first_message)) << np.uint64(32)
    return int(_mixed(keys | pairs.slots.astype(np.uint64)).sum(dtype=np.uint64))


def shown(value: int) -> str:
    """Return a checksum as results have it."""
    return f"{value:016x}"


def _mixed(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Spread each key over 64 bits (the finaliser of splitmix64)."""
    keys = keys + np.uint64(0x9E3779B97F4A7C15)
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))


class Digest:
    """A checksum of changes, which depends on their order."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)

    def add(self, arrays: Iterable[npt.NDArray[Any]]) -> None:
        """Take more changes."""
        for array in arrays:
            self._hash.update(np.ascontiguousarray(array).data)

    @property
    def value(self) -> int:
        """The checksum of all changes so far."""
        return int.from_bytes(self._hash.digest(), "big")


def check_agreement(case: str, checksums: dict[str, dict[int, int]]) -> None:
    """Raise :class:`AnswersDiffer` unless all competitors agree on every prefix they share.

    ``checksums`` are those of each competitor, by number of messages.
    """
    lengths = sorted({length for sums in checksums.values() for length in sums})
    for length in lengths:
        sums = {name: sums[length] for name, sums in checksums.items() if length in sums}
        if len(set(sums.values())) > 1:
            told = ", ".join(f"{name} {shown(value)}" for name, value in sums.items())
            raise AnswersDiffer(
                f"workload '{case}': answers to the first {length} messages differ: {told}; "
                f"a competitor is wrong, nothing of this workload is reported"
            )
