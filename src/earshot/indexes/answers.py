"""Answers of an index, and the one way in which they leave a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

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
        used = offsets[row]
        # What the messages so far say of the others, but no leap: they may be exceptions.
        expected = min(int(used * 1.1 * n_messages / max(row, 1)), 8 * len(answers))
        larger = np.empty(max(2 * len(answers), expected), np.int32)
        larger[:used] = answers[:used]
        answers = larger
    return offsets, answers[: offsets[-1]]


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


def concat_matches(parts: list[Matches]) -> Matches:
    """Return the answers of consecutive chunks of messages as one."""
    ends = np.cumsum([0] + [len(part.subscriptions) for part in parts])
    offsets = [parts[0].offsets[:1]]
    offsets += [part.offsets[1:] + end for part, end in zip(parts, ends[:-1], strict=True)]
    counters = Counters(*(sum(each) for each in zip(*(p.counters for p in parts), strict=True)))
    return Matches(
        np.concatenate(offsets), np.concatenate([p.subscriptions for p in parts]), counters
    )
