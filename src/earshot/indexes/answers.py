"""Answers of an index, and the one way in which they leave a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.kernels.answers import merge_answers
from earshot.model.arrays import Float64s, Int32s, Int64s, MessageArrays


class Counters(NamedTuple):
    """Work done for a batch of messages; independent of any clock."""

    nodes: int  # inner nodes, lists or blocks looked at
    candidates: int  # clauses whose own box or tokens were examined
    answers: int  # matches reported


class Matches(NamedTuple):
    """Subscriptions that each message of a batch is delivered to, as a ragged array."""

    offsets: Int64s  # (n_messages + 1,) answers of message i are [i]:[i+1]
    subscriptions: Int32s  # slots, each at most once per message, in no particular order
    counters: Counters
    scores: Float64s | None = None  # (n_answers,) of each answer, where the semantics ranks


class ScoredAnswers(NamedTuple):
    """The answer buffer of kernels that rank."""

    slots: Int32s
    scores: Float64s  # as long as the slots


AnswerKernel = Callable[[int, Int32s, Int64s], int]
"""``(row, answers, offsets) -> next row``.

Matches messages from ``row`` on: appends their slots to ``answers`` from ``offsets[row]`` and sets
``offsets[row + 1]``. When ``answers`` is full it gives the current message up, with its work
counters as they were before it, and returns its row.
Rows and offsets count from 0 within the chunk.
"""


def collect_answers(n_messages: int, kernel: AnswerKernel) -> tuple[Int64s, Int32s]:
    """Run ``kernel`` over all rows, with an answer buffer that grows as needed.

    The one way in which answers of unknown number leave a kernel.
    """
    offsets = np.zeros(n_messages + 1, np.int64)
    answers = np.empty(max(1024, 32 * n_messages), np.int32)
    row = 0
    while (row := kernel(row, answers, offsets)) < n_messages:
        answers = _grown(answers, offsets[row], row, n_messages)
    return offsets, answers[: offsets[-1]]


def collect_scored_answers(
    n_messages: int, kernel: Callable[[int, ScoredAnswers, Int64s], int]
) -> tuple[Int64s, ScoredAnswers]:
    """Do as :func:`collect_answers` for a kernel that also writes each answer's score."""
    offsets = np.zeros(n_messages + 1, np.int64)
    n = max(1024, 32 * n_messages)
    answers = ScoredAnswers(np.empty(n, np.int32), np.empty(n, np.float64))
    row = 0
    while (row := kernel(row, answers, offsets)) < n_messages:
        used = offsets[row]
        slots, scores = answers
        answers = ScoredAnswers(
            _grown(slots, used, row, n_messages), _grown(scores, used, row, n_messages)
        )
    n = int(offsets[-1])
    return offsets, ScoredAnswers(answers.slots[:n], answers.scores[:n])


def _grown(
    answers: npt.NDArray[Any], used: np.int64, row: int, n_messages: int
) -> npt.NDArray[Any]:
    """Return a larger buffer with the answers of the messages before ``row``."""
    # What the messages so far say of the others, but no leap: they may be exceptions.
    expected = min(int(used * 1.1 * n_messages / max(row, 1)), 8 * len(answers))
    larger = np.empty(max(2 * len(answers), expected), answers.dtype)
    larger[:used] = answers[:used]
    return larger


def run_kernel(
    kernel: Callable[..., int],
    head: tuple[Any, ...],
    messages: MessageArrays,
    start: int,
    stop: int,
    scratch: Any,
) -> tuple[Int64s, Int32s, Counters]:
    """Match messages ``start`` to ``stop`` with a kernel; return offsets, slots and counters.

    Args:
        kernel: Takes ``(*head, messages, start, stop, row, scratch, answers, offsets, work)`` and
            follows the protocol of :data:`AnswerKernel`; adds nodes and candidates to ``work``.
        head: What the kernel matches against.
        messages: The batch.
        start: First message.
        stop: One past the last message.
        scratch: Working memory of the thread.
    """
    work = np.zeros(2, np.int64)

    def run(row: int, answers: Int32s, offsets: Int64s) -> int:
        return kernel(*head, messages, start, stop, row, scratch, answers, offsets, work)

    offsets, answers = collect_answers(stop - start, run)
    return offsets, answers, Counters(int(work[0]), int(work[1]), len(answers))


def run_scored_kernel(
    kernel: Callable[..., int],
    head: tuple[Any, ...],
    messages: MessageArrays,
    start: int,
    stop: int,
    scratch: Any,
) -> Matches:
    """Do as :func:`run_kernel` with a kernel whose ``answers`` are :class:`ScoredAnswers`."""
    work = np.zeros(2, np.int64)

    def run(row: int, answers: ScoredAnswers, offsets: Int64s) -> int:
        return kernel(*head, messages, start, stop, row, scratch, answers, offsets, work)

    offsets, answers = collect_scored_answers(stop - start, run)
    counters = Counters(int(work[0]), int(work[1]), len(answers.slots))
    return Matches(offsets, answers.slots, counters, answers.scores)


def concat_matches(parts: list[Matches]) -> Matches:
    """Return the answers of consecutive chunks of messages as one."""
    ends = np.cumsum([0] + [len(part.subscriptions) for part in parts])
    offsets = [parts[0].offsets[:1]]
    offsets += [part.offsets[1:] + end for part, end in zip(parts, ends[:-1], strict=True)]
    counters = Counters(*(sum(each) for each in zip(*(p.counters for p in parts), strict=True)))
    scores = [part.scores for part in parts if part.scores is not None]
    return Matches(
        np.concatenate(offsets),
        np.concatenate([p.subscriptions for p in parts]),
        counters,
        np.concatenate(scores) if scores else None,
    )


def merge_matches(a: Matches, b: Matches) -> Matches:
    """Return the scored answers of ``b`` behind those of ``a``, message by message."""
    offsets, slots = merge_answers(a.offsets, a.subscriptions, b.offsets, b.subscriptions)
    _, scores = merge_answers(a.offsets, a.scores, b.offsets, b.scores)
    added = (one + other for one, other in zip(a.counters, b.counters, strict=True))
    return Matches(offsets, slots, Counters(*added), scores)
