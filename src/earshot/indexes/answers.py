"""Answers of an index, and the one way in which they leave a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from earshot.indexes.chunks import is_steady_batch
from earshot.indexes.kernels.matching import ScoredAnswers, View, match_messages
from earshot.kernels.answers import merge_answers
from earshot.kernels.growing import resized
from earshot.kernels.resuming import run_until_done
from earshot.kernels.steady import SteadyCalls
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


AnswerKernel = Callable[[int, Any, Int64s], int]
"""``(row, answers, offsets) -> next row``.

Matches messages from ``row`` on: appends their slots to ``answers`` from ``offsets[row]`` and sets
``offsets[row + 1]``. When ``answers`` is full it gives the current message up, with its work
counters as they were before it, and returns its row. Rows and offsets count from 0 within the
chunk. ``answers`` are slots, or :class:`ScoredAnswers` where there are scores.
"""


def collect_answers(
    n_messages: int, kernel: AnswerKernel, *, has_scores: bool = False
) -> tuple[Int64s, list[npt.NDArray[Any]]]:
    """Run ``kernel`` over all rows, with an answer buffer that grows as needed.

    The one way in which answers of unknown number leave a kernel.

    Returns:
        Offsets by message, and the answers: slots, and scores if there are any.
    """
    offsets = np.zeros(n_messages + 1, np.int64)
    n = max(1024, 32 * n_messages)
    buffers: list[npt.NDArray[Any]] = [np.empty(n, np.int32)]
    if has_scores:
        buffers.append(np.empty(n, np.float64))
    row = 0

    def match() -> int:
        nonlocal row
        row = kernel(row, ScoredAnswers(*buffers) if has_scores else buffers[0], offsets)
        return row - n_messages  # DONE after the last

    def grow(_: int) -> None:
        # What the messages so far say of the others, but no leap: they may be exceptions.
        n = len(buffers[0])
        expected = min(int(offsets[row] * 1.1 * n_messages / max(row, 1)), 8 * n)
        buffers[:] = [resized(each, max(2 * n, expected), fill=None) for each in buffers]

    run_until_done(match, grow)
    return offsets, [each[: offsets[-1]] for each in buffers]


def match_rows(
    view: View,
    messages: MessageArrays,
    start: int,
    stop: int,
    scratch: Any,
    has_scores: bool,
    calls: SteadyCalls,
) -> Matches:
    """Match messages ``start`` to ``stop`` with the kernel of a structure.

    Args:
        view: What they are matched against.
        messages: All messages.
        start: The first.
        stop: One beyond the last.
        scratch: Working memory of this thread, always of the same type.
        has_scores: Whether answers have scores.
        calls: Those of this structure before.
    """
    work = np.zeros(2, np.int64)
    is_steady = is_steady_batch(messages)

    def match(row: int, answers: Any, offsets: Int64s) -> int:
        given = (view, messages, start, stop, row, scratch, answers, offsets, work)
        n: int = calls(match_messages, view, *given) if is_steady else match_messages(*given)
        return n

    offsets, answers = collect_answers(stop - start, match, has_scores=has_scores)
    counters = Counters(int(work[0]), int(work[1]), len(answers[0]))
    return Matches(offsets, answers[0], counters, answers[1] if has_scores else None)


def concat_matches(parts: list[Matches]) -> Matches:
    """Return the answers of consecutive chunks of messages as one."""
    ends = np.cumsum([0] + [len(part.subscriptions) for part in parts])
    offsets = [parts[0].offsets[:1]]
    offsets += [part.offsets[1:] + end for part, end in zip(parts, ends[:-1], strict=True)]
    scores = [part.scores for part in parts if part.scores is not None]
    return Matches(
        np.concatenate(offsets),
        np.concatenate([p.subscriptions for p in parts]),
        _sum_counters(parts),
        np.concatenate(scores) if scores else None,
    )


def merge_matches(a: Matches, b: Matches) -> Matches:
    """Return the answers of ``b`` behind those of ``a``, message by message."""
    offsets, slots = merge_answers(a.offsets, a.subscriptions, b.offsets, b.subscriptions)
    scores = None
    if a.scores is not None and b.scores is not None:
        _, scores = merge_answers(a.offsets, a.scores, b.offsets, b.scores)
    return Matches(offsets, slots, _sum_counters([a, b]), scores)


def _sum_counters(parts: list[Matches]) -> Counters:
    return Counters(*(sum(each) for each in zip(*(p.counters for p in parts), strict=True)))
