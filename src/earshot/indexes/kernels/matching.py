"""Matching a batch against any structure: one loop over the messages for all of them.

A structure has a kernel that appends the answers of one message::

    append(view, tokens, box, scratch, answers, n_answers, work) -> new number of answers, or -1

``tokens`` and ``box`` are the message's. Answers are written from ``n_answers`` on; -1 says that
there was no room for all of them. Which kernel it is, the type of ``view.arrays`` decides.
``work`` has nodes and candidates, to be added to. ``scratch`` has ``marks``, a byte per token, and
``serial``, which is another number for each message. The tokens are marked before the call and
unmarked after it, in ``signature`` too where the scratch has one, unless the kernel wants to do
that itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from earshot.indexes.kernels.blocks import sign_tokens, unsign_tokens
from earshot.kernels.compiled import depends, implements
from earshot.kernels.jit import lean_kernel
from earshot.kernels.verify import mark_tokens
from earshot.model.arrays import ClauseArrays, Float64s, Int32s, Int64s


class View(NamedTuple):
    """All that a structure's kernel matches against."""

    arrays: Any  # the structure's own
    clauses: ClauseArrays
    alive: npt.NDArray[np.uint8]  # (n_slots,)
    is_lonlat: bool
    delta: Any = ()  # view of the delta, for a structure that matches it too


class Scratch(NamedTuple):
    """Working memory of one thread; what a structure needs more, it adds in a type of its own."""

    marks: npt.NDArray[np.uint8]  # (n_tokens,) 1 for tokens of the current message
    serial: Int64s  # (1,) number of messages matched with this scratch so far


class SlotScratch(NamedTuple):
    """Working memory of a thread that reports, or scores, a slot with several clauses once."""

    marks: npt.NDArray[np.uint8]  # (>= n_tokens,)
    serial: Int64s  # (1,)
    last_seen: Int64s  # (>= n_slots,) serial of the message that each slot was last seen for


class ScoredAnswers(NamedTuple):
    """The answer buffer of kernels that rank; that of the others are the slots alone."""

    slots: Int32s
    scores: Float64s  # as long as the slots


_KERNELS: dict[type, tuple[Any, bool]] = {}


def appends_answers(arrays_type: type, *, marks_tokens: bool = True) -> Callable[[Any], Any]:
    """Register a kernel as the one that appends the answers of a structure with these arrays.

    Args:
        arrays_type: Type of the structure's arrays.
        marks_tokens: Whether tokens are marked for the kernel; else it does so itself.
    """

    def register(kernel: Any) -> Any:
        _KERNELS[arrays_type] = kernel, marks_tokens
        depends(arrays_type, kernel, f"marks tokens: {marks_tokens}")
        return kernel

    return register


def append_answers(
    view: View, tokens: Int32s, box: Float64s, scratch: Any, answers: Any, n_answers: int,
    work: Int64s,
) -> int:  # fmt: skip
    """Append the answers of one message with the structure's kernel; for kernels."""
    raise NotImplementedError


# Compiled into the loop: a call that passes all arrays costs a short message a tenth of its time.
@implements(append_answers, _nrt=False, forceinline=True)
def _append_answers(view, tokens, box, scratch, answers, n_answers, work):
    if not isinstance(view, types.BaseNamedTuple):
        return None
    chosen, marks_tokens = _KERNELS[view.types[0].instance_class]

    def with_marks(view, tokens, box, scratch, answers, n_answers, work):
        mark_tokens(tokens, 0, len(tokens), scratch.marks, 1)
        n = chosen(view, tokens, box, scratch, answers, n_answers, work)
        mark_tokens(tokens, 0, len(tokens), scratch.marks, 0)
        return n

    def with_signature(view, tokens, box, scratch, answers, n_answers, work):
        mark_tokens(tokens, 0, len(tokens), scratch.marks, 1)
        sign_tokens(tokens, scratch.signature)
        n = chosen(view, tokens, box, scratch, answers, n_answers, work)
        unsign_tokens(tokens, scratch.signature)
        mark_tokens(tokens, 0, len(tokens), scratch.marks, 0)
        return n

    if not marks_tokens:
        # As it is: a kernel in between would only pass everything on.
        return chosen.py_func
    return with_signature if "signature" in scratch.fields else with_marks


@lean_kernel
def match_messages(view, messages, start, stop, row, scratch, answers, offsets, work):
    """Match messages ``start + row`` to ``stop``; see ``collect_answers`` for the protocol."""
    n_answers = offsets[row]
    for m in range(start + row, stop):
        tokens = messages.token_ids[messages.token_offsets[m] : messages.token_offsets[m + 1]]
        n_nodes, n_candidates = work[0], work[1]
        scratch.serial[0] += 1
        n_found = append_answers(view, tokens, messages.boxes[m], scratch, answers, n_answers, work)
        if n_found < 0:
            work[0], work[1] = n_nodes, n_candidates
            return m - start
        n_answers = n_found
        offsets[m - start + 1] = n_answers
    return stop - start
