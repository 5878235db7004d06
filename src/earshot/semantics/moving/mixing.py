"""What the events of a batch told, when they were taken by kind and not one after the other."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.model.arrays import Int64s
from earshot.semantics.moving.dwelling import Told
from earshot.semantics.moving.kernels.arrays import EXPIRED, HIDDEN, MATCH, SILENT, Mix


class Due(NamedTuple):
    """Messages that end in a batch, in the order of their ends."""

    sequences: Int64s
    ends: Int64s


def unmixed(found: Told, changed: Told, mix: Mix, due: Due, flags: npt.NDArray[np.uint8]) -> Told:
    """Return all changes of a batch in order.

    Messages that arrive are numbered from 0 on, those that end and were there before go on from
    there.

    Args:
        found: Which slots held the message of each number at the start.
        changed: What moves changed, by place.
        mix: The events.
        due: What ends.
        flags: Of the slots.
    """
    n_came = len(mix.arrivals)
    numbers_of_due = np.where(
        due.sequences >= mix.first_sequence,
        due.sequences - mix.first_sequence,
        n_came + np.arange(len(due.sequences)),
    )
    by_sequence = np.argsort(due.sequences)
    numbers = _numbers(changed.sequences, mix, n_came, numbers_of_due[by_sequence])
    is_known = numbers >= 0
    pairs = found.rows.astype(np.int64) << 32 | found.slots
    toggles = (numbers << 32 | changed.slots)[is_known]
    # Who holds a message as it arrives: moves before that have changed it unseen.
    is_before = (
        changed.rows[is_known] < np.append(mix.arrivals, -1)[np.minimum(numbers[is_known], n_came)]
    )
    came = _odd(np.concatenate([pairs[found.rows < n_came], toggles[is_before]]))
    # And as it ends.
    ended_numbers = np.zeros(n_came + len(due.sequences), np.int64)
    ended_numbers[:] = -1
    ended_numbers[numbers_of_due] = np.arange(len(due.sequences))
    both = np.concatenate([pairs, toggles])
    positions = ended_numbers[both >> 32]
    is_ended = positions >= 0
    ended = _odd(positions[is_ended] << 32 | both[is_ended] & _SLOT)
    ended = ended[flags[ended & _SLOT] & SILENT == 0]
    is_told = changed.reasons != HIDDEN
    parts = (
        _told(ended, np.searchsorted(mix.clocks, due.ends), -1, EXPIRED, due.sequences, due.ends),
        _told(
            came, mix.arrivals, 1, MATCH, mix.first_sequence + np.arange(n_came),
            mix.clocks[mix.arrivals],
        ),
        Told._make(each[is_told] for each in changed),
    )  # fmt: skip
    columns: Any = zip(*parts, strict=True)
    whole = Told._make(map(np.concatenate, columns))
    order = np.argsort(whole.rows, kind="stable")
    return Told._make(each[order] for each in whole)


_SLOT = 0xFFFFFFFF


def _numbers(sequences: Int64s, mix: Mix, n_came: int, numbers_of_due: Int64s) -> Int64s:
    """Return the number of each message, -1 where it neither arrives nor ends."""
    numbers: Int64s = np.where(sequences >= mix.first_sequence, sequences - mix.first_sequence, -1)
    if len(mix.due_sequences):
        at = np.minimum(np.searchsorted(mix.due_sequences, sequences), len(mix.due_sequences) - 1)
        is_due = mix.due_sequences[at] == sequences
        numbers = np.where(is_due, numbers_of_due[at], numbers)
    return numbers


def _odd(keys: Int64s) -> Int64s:
    """Return the keys that occur an odd number of times, in their order."""
    keys = np.sort(keys)
    starts = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1))
    counts = np.diff(starts, append=len(keys))
    odd: Int64s = keys[starts[counts % 2 == 1]]
    return odd


def _told(
    keys: Int64s, rows: Int64s, sign: int, reason: int, sequences: Int64s, times: Int64s
) -> Told:
    """Return changes of the messages and slots of keys, given facts of the messages."""
    at, n = keys >> 32, len(keys)
    return Told(
        rows[at].astype(np.int32), np.full(n, sign, np.int8), np.full(n, reason, np.int8),
        (keys & _SLOT).astype(np.int32), sequences[at], times[at],
    )  # fmt: skip
