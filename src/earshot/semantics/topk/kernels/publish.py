"""The course of events: messages leave the window and arrive, subscriptions are filled.

A kernel stops where some array is full and says so; called again with more room it goes on where it
was. ``progress`` says where that is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from earshot.kernels.compiled import depends, implements
from earshot.kernels.jit import inlined_kernel, kernel, lean_kernel
from earshot.kernels.processor import prefetch, ticks
from earshot.kernels.resuming import DONE
from earshot.model.arrays import Float64s, Int32s, Int64s
from earshot.semantics.topk.kernels.arrays import (
    AFTER,
    ARRIVALS,
    BASE,
    EXPIRIES,
    FIRST_SEQUENCE,
    LATE_START,
    LATE_STOP,
    LENGTH,
    N_CHAINED,
    N_LIVE,
    N_ROWS,
    NEWEST_TIME,
    NEXT,
    NO_LIMIT,
    THRESHOLD_CHANGES,
    YOUNG,
    BufferArrays,
    Dispatch,
    Output,
    Rules,
    ScanArrays,
    SegmentArrays,
    State,
    Subscribers,
    Vectors,
    WindowArrays,
)
from earshot.semantics.topk.kernels.buffers import (
    NEEDS_OUTPUT,
    admit,
    chain,
    emit,
    expire,
    has_output,
    refill,
    release,
    start_of,
    take_over,
    unchain,
)
from earshot.semantics.topk.kernels.ciq import CiqArrays, disseminate_ciq, set_threshold_ciq
from earshot.semantics.topk.kernels.igpt import IgptArrays, disseminate_igpt, set_threshold_igpt
from earshot.semantics.topk.kernels.reach import ReachArrays, disseminate_reach, set_threshold_reach
from earshot.semantics.topk.kernels.scan import disseminate_scan, set_threshold_scan, verify
from earshot.semantics.topk.kernels.window import LOW, is_newer, row_of, signature_bit

NO_CLOCK = -(2**63)

SILENT = -1

FETCHED = 32
"""Entries of a buffer that are asked for ahead; most buffers have no more."""

MESSAGE, PHASE, CANDIDATE, N_CANDIDATES, N_PROGRESS = range(5)
EXPIRING, ARRIVING, ADMITTING = range(3)


# ---- structures by type --------------------------------------------------------------------------


def disseminate(component: Any, home: int, dispatch: Dispatch, n_found: int) -> int:
    """Find the subscriptions of a component that a message concerns; for kernels."""
    raise NotImplementedError


def set_threshold(component: Any, subscribers: Subscribers, slot: int) -> None:
    """Let a component follow the changed threshold of a slot; for kernels."""
    raise NotImplementedError


_KERNELS = {
    CiqArrays: (disseminate_ciq, set_threshold_ciq),
    IgptArrays: (disseminate_igpt, set_threshold_igpt),
    ReachArrays: (disseminate_reach, set_threshold_reach),
    ScanArrays: (disseminate_scan, set_threshold_scan),
}
for _arrays_type, _kernels in _KERNELS.items():
    depends(_arrays_type, *_kernels)


@implements(disseminate, _nrt=False)
def _disseminate(component, home, dispatch, n_found):
    if not isinstance(component, types.BaseNamedTuple):
        return None
    chosen = _KERNELS[component.instance_class][0]

    def implementation(component, home, dispatch, n_found):
        return chosen(component, home, dispatch, n_found)

    return implementation


@implements(set_threshold, _nrt=False)
def _set_threshold(component, subscribers, slot):
    if not isinstance(component, types.BaseNamedTuple):
        return None
    chosen = _KERNELS[component.instance_class][1]

    def implementation(component, subscribers, slot):
        chosen(component, subscribers, slot)

    return implementation


# ---- the window ----------------------------------------------------------------------------------


@inlined_kernel
def next_to_leave(window: WindowArrays) -> int:
    """Return the row of the message that leaves the window next, or -1 if it is empty."""
    facts = window.facts
    row = facts[NEXT]
    while row < facts[N_ROWS] and (window.is_live[row] == 0 or window.is_late[row] != 0):
        row += 1
    facts[NEXT] = row
    if row == facts[N_ROWS]:
        row = np.int64(-1)
    if facts[LATE_START] < facts[LATE_STOP]:
        late = row_of(window, window.late[facts[LATE_START]])
        if row < 0 or is_newer(window, row, late):
            return late
    return row


@inlined_kernel
def _enter(
    window: WindowArrays,
    segments: SegmentArrays,
    vectors: Vectors,
    counts: Any,
    places: Float64s,
    times: Int64s,
    message: int,
) -> int:
    """Add a message to the window and to the chains of its tokens; return its row."""
    facts = window.facts
    row = facts[N_ROWS]
    for axis in range(3):
        window.places[row, axis] = places[message, axis]
    time = times[message]
    window.times[row] = time
    window.is_live[row] = 1
    window.heads[row] = -1
    is_late = time < facts[NEWEST_TIME]
    window.is_late[row] = 1 if is_late else 0
    at = window.token_offsets[row]
    sequence = np.uint32((facts[FIRST_SEQUENCE] + row) & LOW)
    signature = np.uint64(0)
    for i in range(vectors.offsets[message], vectors.offsets[message + 1]):
        signature |= signature_bit(vectors.tokens[i])
    for i in range(vectors.offsets[message], vectors.offsets[message + 1]):
        token = vectors.tokens[i]
        window.tokens[at] = token
        window.weights[at] = vectors.weights[i]
        window.counts[at] = counts[i]
        at += 1
        posting = segments.facts[N_CHAINED]
        segments.chain_nexts[posting] = segments.chain_heads[token]
        segments.chain_messages[posting] = sequence
        segments.chain_weights[posting] = vectors.weights[i]
        segments.chain_signatures[posting] = signature
        segments.chain_heads[token] = posting
        segments.facts[N_CHAINED] = posting + 1
    window.token_offsets[row + 1] = at
    facts[N_ROWS] = row + 1
    facts[N_LIVE] += 1
    if is_late:
        at_late = facts[LATE_STOP]
        while at_late > facts[LATE_START] and is_newer(
            window, row_of(window, window.late[at_late - 1]), row
        ):
            window.late[at_late] = window.late[at_late - 1]
            at_late -= 1
        window.late[at_late] = sequence
        facts[LATE_STOP] += 1
    else:
        facts[NEWEST_TIME] = time
    return row


@lean_kernel
def _sort_found(slots: Int32s, scores: Float64s, n: int) -> None:
    """Sort slots, and their scores with them: by insertion where few, else by a heap."""
    if n <= 64:
        for i in range(1, n):
            slot, score = slots[i], scores[i]
            at = i
            while at > 0 and slots[at - 1] > slot:
                slots[at], scores[at] = slots[at - 1], scores[at - 1]
                at -= 1
            slots[at], scores[at] = slot, score
        return
    for i in range(n // 2 - 1, -1, -1):
        _sink(slots, scores, i, n)
    for last in range(n - 1, 0, -1):
        slots[0], slots[last] = slots[last], slots[0]
        scores[0], scores[last] = scores[last], scores[0]
        _sink(slots, scores, 0, last)


@inlined_kernel
def _sink(slots: Int32s, scores: Float64s, at: int, n: int) -> None:
    slot, score = slots[at], scores[at]
    while True:
        child = 2 * at + 1
        if child >= n:
            break
        if child + 1 < n and slots[child + 1] > slots[child]:
            child += 1
        if slots[child] <= slot:
            break
        slots[at], scores[at] = slots[child], scores[child]
        at = child
    slots[at], scores[at] = slot, score


@inlined_kernel
def _fetch(state: State, n: int) -> None:
    """Ask for the buffers of the ``n`` slots that were found: they lie anywhere in memory."""
    buffers = state.buffers
    for slot in state.found_slots[:n]:
        prefetch(buffers.runs, slot)
        prefetch(state.subscribers.ks, slot)
        prefetch(state.subscribers.thresholds, slot)
    for slot in state.found_slots[:n]:
        start = start_of(buffers, slot)
        for line in range(0, FETCHED, 8):
            prefetch(buffers.scores, start + line)
        for line in range(0, FETCHED, 16):
            prefetch(buffers.sequences, start + line)
        prefetch(buffers.dominated, start)


# ---- publishing ----------------------------------------------------------------------------------


@lean_kernel
def _follow(state: State, base: Any, young: Any, slot: int) -> None:
    """Tell the component that holds a slot of its new threshold."""
    state.counters[THRESHOLD_CHANGES] += 1
    home = state.subscribers.homes[slot]
    if home == BASE:
        set_threshold(base, state.subscribers, slot)
    elif home == YOUNG:
        set_threshold(young, state.subscribers, slot)


@lean_kernel
def expire_due(
    state: State, base: Any, young: Any, rules: Rules, clock: int, room: int, cause: int,
    output: Output,
) -> int:  # fmt: skip
    """Let the messages leave that are older than the window, or than it has room for."""
    window = state.window
    while True:
        row = next_to_leave(window)
        if row < 0:
            return DONE
        if rules.window != NO_LIMIT:
            if window.facts[N_LIVE] <= room:
                return DONE
        elif window.times[row] > clock - rules.duration:
            return DONE
        window.is_live[row] = 0  # searches no longer find it
        n = 0
        slot = window.heads[row]
        while slot >= 0:
            state.found_slots[n] = slot
            n += 1
            slot = state.buffers.runs[slot, AFTER]
        _sort_found(state.found_slots, state.found_scores, n)
        _fetch(state, n)
        for i in range(n):
            slot = state.found_slots[i]
            status, is_changed = expire(state, rules, slot, row, cause, output)
            if status != DONE:
                window.is_live[row] = 1  # it is the next to leave again
                return status
            if is_changed:
                _follow(state, base, young, slot)
        window.facts[N_LIVE] -= 1
        state.counters[EXPIRIES] += 1
        if window.is_late[row] != 0:
            window.facts[LATE_START] += 1


@lean_kernel
def publish(
    state: State,
    base: Any,
    young: Any,
    rules: Rules,
    vectors: Vectors,
    counts: Any,
    places: Float64s,
    times: Int64s,
    progress: Int64s,
    first_cause: int,
    final_clock: int,
    output: Output,
) -> int:
    """Publish messages from ``progress`` on, each after what leaves before it.

    And then let leave what does by ``final_clock``, unless that is NO_CLOCK.
    """
    window, subscribers, probe = state.window, state.subscribers, state.probe
    while progress[MESSAGE] < len(places):
        message = progress[MESSAGE]
        cause = first_cause + message
        if progress[PHASE] == EXPIRING:
            clock = max(window.facts[NEWEST_TIME], times[message])
            started = ticks()
            status = expire_due(state, base, young, rules, clock, rules.window - 1, cause, output)
            state.ticks[1] += ticks() - started
            if status != DONE:
                return status
            progress[PHASE] = ARRIVING
        started = ticks()
        if progress[PHASE] == ARRIVING:
            _enter(window, state.segments, vectors, counts, places, times, message)
            n_tokens = vectors.offsets[message + 1] - vectors.offsets[message]
            for axis in range(3):
                probe.place[axis] = places[message, axis]
            probe.length[0] = n_tokens
            for i in range(n_tokens):
                at = vectors.offsets[message] + i
                probe.tokens[i] = vectors.tokens[at]
                probe.weights[i] = vectors.weights[at]
                probe.weight_of[vectors.tokens[at]] = vectors.weights[at]
            dispatch = Dispatch(
                subscribers, probe, rules.max_distance, state.found_slots, state.found_scores,
                state.counters,
            )  # fmt: skip
            n = disseminate(base, BASE, dispatch, 0)
            n = disseminate(young, YOUNG, dispatch, n)
            for i in range(len(state.pending)):
                n = verify(dispatch, state.pending[i], n)
            for i in range(n_tokens):
                probe.weight_of[probe.tokens[i]] = 0.0
            _sort_found(state.found_slots, state.found_scores, n)
            state.counters[ARRIVALS] += 1
            progress[N_CANDIDATES] = n
            progress[CANDIDATE] = 0
            progress[PHASE] = ADMITTING
            _fetch(state, n)
        row = window.facts[N_ROWS] - 1
        while progress[CANDIDATE] < progress[N_CANDIDATES]:
            slot = state.found_slots[progress[CANDIDATE]]
            score = state.found_scores[progress[CANDIDATE]]
            status, is_changed = admit(state, rules, slot, row, score, cause, output)
            if status != DONE:
                return status
            if is_changed:
                _follow(state, base, young, slot)
            progress[CANDIDATE] += 1
        state.ticks[0] += ticks() - started
        progress[PHASE] = EXPIRING
        progress[MESSAGE] += 1
    if final_clock == NO_CLOCK:
        return DONE
    return expire_due(state, base, young, rules, final_clock, 0, first_cause, output)


# ---- subscriptions -------------------------------------------------------------------------------


@lean_kernel
def fill(state: State, rules: Rules, slots: Int32s, progress: Int64s) -> int:
    """Fill the empty buffers of slots from the window."""
    while progress[MESSAGE] < len(slots):
        status, _ = refill(state, rules, slots[progress[MESSAGE]])
        if status != DONE:
            return status
        progress[MESSAGE] += 1
    return DONE


@lean_kernel
def take_runs(buffers: BufferArrays, filled: BufferArrays, slots: Int32s, progress: Int64s) -> int:
    """Take over the entries of slots that were filled apart."""
    while progress[MESSAGE] < len(slots):
        status = take_over(buffers, filled, slots[progress[MESSAGE]])
        if status != DONE:
            return status
        progress[MESSAGE] += 1
    return DONE


@lean_kernel
def chain_filled(state: State, slots: Int32s, reason: int, progress: Int64s, output: Output) -> int:
    """Chain slots that were filled to their oldest messages; what they hold comes by ``reason``.

    Unless that is SILENT: then nothing is told.
    """
    buffers = state.buffers
    while progress[MESSAGE] < len(slots):
        slot = slots[progress[MESSAGE]]
        n = min(buffers.runs[slot, LENGTH], state.subscribers.ks[slot]) if reason != SILENT else 0
        if not has_output(output, n):
            return NEEDS_OUTPUT
        chain(state.window, buffers, slot)
        start = start_of(buffers, slot)
        for i in range(start, start + n):
            emit(output, state, progress[MESSAGE], 1, reason, slot, i)
        progress[MESSAGE] += 1
    return DONE


@lean_kernel
def empty(state: State, slots: Int32s) -> None:
    """Empty the buffers of slots."""
    for slot in slots:
        unchain(state.window, state.buffers, slot)
        release(state.buffers, slot)


@kernel
def read_results(
    state: State, slots: Int32s, sequences: Int64s, scores: Float64s, offsets: Int64s
) -> None:
    """Write the results of slots; offsets say how many each has."""
    buffers = state.buffers
    first_sequence = state.window.facts[FIRST_SEQUENCE]
    for i in range(len(slots)):
        start = start_of(buffers, slots[i])
        for j in range(offsets[i + 1] - offsets[i]):
            row = row_of(state.window, buffers.sequences[start + j])
            sequences[offsets[i] + j] = first_sequence + row
            scores[offsets[i] + j] = buffers.scores[start + j]


@lean_kernel
def unchain_all(state: State, slots: Int32s) -> None:
    """Take slots out of the chains of their oldest messages."""
    for slot in slots:
        unchain(state.window, state.buffers, slot)
