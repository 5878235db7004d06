"""What comes out of top-k over a window: updates, results, and why a message is among the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from earshot.engine.deliveries import TABLE_FIELDS
from earshot.engine.explanation import Explanation
from earshot.engine.ids import IdTable, id_bytes
from earshot.errors import InvalidInput, InvalidRow
from earshot.model.arrays import CountedMessages, Float64s, Int32s, Int64s
from earshot.model.messages import Message
from earshot.model.regions import Point
from earshot.model.schemas import IdKind, id_kind, updates_schema
from earshot.model.subscriptions import Id
from earshot.model.updates import Update
from earshot.semantics.topk.kernels.arrays import REASONS, Changes
from earshot.semantics.topk.monitor import Counters
from earshot.text import Vocabulary

_SIGNS = pa.array(["-", "+"])
_REASONS = pa.array(REASONS)
_SHORT_RUN = 4096


@dataclass(frozen=True)
class Result:
    """One of the best messages of a subscription.

    Attributes:
        message_id: Which message.
        score: How well it matches.
    """

    message_id: Id
    score: float


@dataclass(frozen=True)
class TopkUpdates:
    """What a batch of events caused, in order.

    Attributes:
        message_ids: Message of each update.
        rejects: Refused rows, when asked for.
        counters: Work that it took.
        n_rows: Rows that were taken.
        n_late: Messages among the rejects that came too late.
    """

    message_ids: pa.Array
    rejects: list[InvalidRow]
    counters: Counters
    n_rows: int
    n_late: int
    _changes: Changes
    _ids: IdTable  # as they were: that of the engine goes on changing

    def __len__(self) -> int:
        return len(self._changes.signs)

    @cached_property
    def subscription_ids(self) -> pa.Array:
        """Subscription of each update; looked up when asked for."""
        return self._ids.ids_of(self._changes.slots)

    def table(self, columns: Sequence[str] = TABLE_FIELDS) -> pa.Table:
        """Return one row per update, in the schema of updates."""
        changes = self._changes
        return pa.table(
            [
                _SIGNS.take(pa.array(changes.signs > 0).cast(pa.int8())),
                self.message_ids,
                self.subscription_ids,
                pa.array(changes.scores),
                _REASONS.take(pa.array(changes.reasons)),
            ],
            schema=updates_schema(self.message_ids.type, self.subscription_ids.type, TABLE_FIELDS),
        ).select(columns)

    def updates(self) -> list[Update]:
        """Return the updates one by one."""
        columns = [column.to_pylist() for column in self.table().columns]
        return [Update(*values) for values in zip(*columns, strict=True)]


class WindowIdArrays(NamedTuple):
    """What is saved of the ids of a window."""

    data: npt.NDArray[np.uint8]  # bytes of all ids, in sequence; eight each for integers
    offsets: Int64s  # (n_ids + 1,) for strings, empty for integers


class WindowIds:
    """Ids of the messages of a window, by sequence number.

    Kept as runs of which each is at most half as long as the one before, so that adding is cheap on
    average, one at a time or many; short ones are always joined, so that there are few. Ids are all
    64-bit integers or all strings; the first decides.

    Args:
        kind: What the ids are, None where none has come yet.
        first: Sequence number of the first.
        arrays: The ids that are there already.
    """

    def __init__(
        self, kind: IdKind | None = None, first: int = 0, arrays: WindowIdArrays | None = None
    ) -> None:
        self.kind = kind
        self._runs: list[pa.Array] = []
        self._firsts: list[int] = []  # sequence number that each run begins with
        self._next = first
        if arrays is not None and kind == "integer":
            self.append(pa.array(arrays.data.view(np.int64)))
        elif arrays is not None and kind == "string":
            buffers = (pa.py_buffer(arrays.offsets), pa.py_buffer(arrays.data))
            self.append(pa.LargeStringArray.from_buffers(len(arrays.offsets) - 1, *buffers))

    @property
    def type(self) -> pa.DataType:
        """Arrow type of the ids."""
        return pa.large_string() if self.kind == "string" else pa.int64()

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(int(run.get_total_buffer_size()) for run in self._runs)

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
        first = self._next
        self._next += len(ids)
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
            parts.append(self._runs[number].take(pa.array(sequences[chosen] - firsts[number])))
            places[chosen] = np.arange(n, n + len(chosen))
            n += len(chosen)
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts).take(pa.array(places))

    def forget_before(self, sequence: int) -> None:
        """Drop the ids of messages before this one."""
        while self._runs and self._firsts[0] + len(self._runs[0]) <= sequence:
            del self._runs[0], self._firsts[0]
        if self._runs and self._firsts[0] < sequence:
            run = self._runs[0].slice(sequence - self._firsts[0])
            if 2 * run.offset > len(run) + run.offset:  # else most of what it holds is in use
                run = run.take(pa.array(np.arange(len(run))))
            self._runs[0], self._firsts[0] = run, sequence

    @property
    def first(self) -> int:
        """Sequence number of the first id that is there, or that will be."""
        return self._firsts[0] if self._firsts else self._next

    @property
    def arrays(self) -> WindowIdArrays:
        """The ids as arrays, to be saved."""
        return WindowIdArrays(*id_bytes(pa.concat_arrays([pa.array([], self.type), *self._runs])))


class Asking(NamedTuple):
    """What one subscription asks for."""

    tokens: Int32s
    place: Float64s  # (3,) Cartesian
    alpha: float
    k: int


def explain_entry(
    message: Message,
    subscription_id: Id,
    *,
    asking: Asking,
    messages: CountedMessages,
    vocabulary: Vocabulary,
    weights: Float64s,
    max_distance: float,
    unit: str,
    scores: Sequence[float],
    n_leaving: int | None,
    is_latest: bool,
    hindrances: Sequence[str],
) -> Explanation:
    """Explain what a message would score for a subscription, and whether it would be a result.

    Args:
        message: The message.
        subscription_id: The subscription.
        asking: What the subscription asks for.
        messages: The message, encoded.
        vocabulary: Where both got their tokens.
        weights: Weight of each token of the vocabulary.
        max_distance: Distance from which on the place scores 0.
        unit: Of distances, to be printed.
        scores: Scores of the subscription's results now, best first.
        n_leaving: How many of these leave the window before the message arrives; None: unknown.
        is_latest: Whether it is more recent than all of these.
        hindrances: Why the message could not enter whatever its score.
    """
    wanted = _unit_vector(asking.tokens, np.ones(len(asking.tokens)), weights)
    offered = _unit_vector(messages.tokens, messages.counts, weights)
    shared = [token for token in wanted if token in offered]
    words = dict(zip(wanted, vocabulary.tokens(list(wanted)), strict=True))
    distance = math.dist(asking.place, messages.places[0])
    place = max(0.0, 1.0 - distance / max_distance)
    text = sum(wanted[token] * offered[token] for token in shared)
    score = asking.alpha * place + (1.0 - asking.alpha) * text
    point = message.place
    assert isinstance(point, Point)  # the encoder takes nothing else

    parts = [
        f"the text has '{words[token]}' ({wanted[token]:.6g} * {offered[token]:.6g})"
        for token in shared
    ]
    lacking = sorted(word for token, word in words.items() if token not in offered)
    if lacking:
        parts.append(f"the text lacks {', '.join(map(repr, lacking))}")
    reasons = [
        f"place {place:.6g}: the message's point ({point.x}, {point.y}) is "
        f"{_rounded(distance)}{unit} away, of {_rounded(max_distance)}{unit}",
        f"{f'text {text:.6g}: ' if shared else '✗ '}{', '.join(parts)}",
    ]
    if shared:
        reasons.append(
            f"score {score:.6g} = {asking.alpha:.6g} * {place:.6g} + {1 - asking.alpha:.6g} * "
            f"{text:.6g}"
        )
    enters = False
    if shared:
        enters, outcome = _entry(score, scores, asking.k, n_leaving, is_latest)
        reasons.append(outcome)
    reasons += [f"✗ {each}" for each in hindrances]
    return Explanation(
        enters and not hindrances,
        message.id,
        subscription_id,
        tuple(reasons),
        score if shared else None,
    )


def _entry(
    score: float, scores: Sequence[float], k: int, n_leaving: int | None, is_latest: bool
) -> tuple[bool, str]:
    """Return whether a message is sure to enter, and why it does or not."""
    if len(scores) < k:  # so there is nothing in the window that could take a place
        return True, f"✓ {len(scores) - (n_leaving or 0)} of {k} places are taken"
    last = f"the last of the best {k}, which has {scores[-1]:.6g}"
    # All others of the window are worse than the last, so none of those that refill is better.
    if score > scores[-1] or (score == scores[-1] and is_latest):
        return True, f"✓ it reaches {last}"
    if n_leaving:
        return False, (
            f"✗ it is below {last}; one of these leaves before it arrives, and it enters only if "
            f"no better message of the window takes that place"
        )
    if n_leaving is None:
        return False, f"✗ it is below {last} now; what leaves with its time may make room"
    if score == scores[-1]:
        return False, f"✗ it is as good as {last}, and enters only if it is the more recent"
    return False, f"✗ it is below {last}"


def _unit_vector(tokens: Int32s, counts: npt.NDArray[Any], weights: Float64s) -> dict[int, float]:
    """Return the weights of tokens as a vector of length 1, rarest first, as a monitor has them."""
    order = np.lexsort((tokens, -weights[tokens]))
    products = counts[order].astype(np.float64) * weights[tokens[order]]
    norm = math.sqrt(sum((products * products).tolist()))
    units = (products / norm).astype(np.float32).astype(np.float64)
    return dict(zip(tokens[order].tolist(), units.tolist(), strict=True))


def _rounded(distance: float) -> str:
    return f"{distance:,.0f}" if distance >= 1000 else f"{distance:.6g}"
