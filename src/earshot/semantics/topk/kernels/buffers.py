"""The buffers of results: entries come, are displaced, expire, and run dry.

A buffer holds entries best first, and its first k are the result. It knows every message of the
window down to a threshold: by ``k-skyband`` those that fewer than k newer messages are at least as
good as, since the others can never be in a result again; by ``kmax`` all of them.
"""

from __future__ import annotations

import numpy as np

from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.kernels.resuming import DONE
from earshot.model.arrays import Int64s
from earshot.semantics.topk.kernels.arrays import (
    ADMITTED,
    AFTER,
    BEFORE,
    CAPACITY,
    CSKYBAND,
    DISPLACED,
    EVICTED,
    EXPIRED,
    FIRST_SEQUENCE,
    IS_CHAINED,
    KMAX,
    LATE_START,
    LATE_STOP,
    LENGTH,
    MATCH,
    N_BUFFERED,
    N_ENTRIES,
    N_ROWS,
    NOTHING_LOST,
    OLDEST,
    QUAD,
    REEVALUATIONS,
    REFILL,
    SIZE,
    START,
    VISITS,
    BufferArrays,
    Output,
    Policy,
    Rules,
    SearchScratch,
    State,
    Subscribers,
    WindowArrays,
)
from earshot.semantics.topk.kernels.search import TOO_MANY, Searching, search
from earshot.semantics.topk.kernels.window import (
    LOW,
    is_better,
    is_newer,
    push,
    row_of,
    sort_heap,
)

NEEDS_OUTPUT, NEEDS_ENTRIES, NEEDS_MORE = 1, 2, 3
"""What there must be more room of before a kernel that is not done is called again."""

FIXED_WORK = 2000.0
"""Work of a re-evaluation beside the steps of its search: a structure follows the threshold."""

# ---- room ----------------------------------------------------------------------------------------


@inlined_kernel
def class_of(n: int) -> int:
    """Return the smallest size class with room for ``n`` entries."""
    size, number = 8, 0
    while size < n:
        # 8, 12, 16, 24, 32, 48, …
        size += size // 2 if number % 2 == 0 else size // 3
        number += 1
    return number


@inlined_kernel
def size_of(number: int) -> int:
    """Return the entries of a size class."""
    size = 8 << (number >> 1)
    return size + size // 2 if number & 1 else size


@inlined_kernel
def has_room(buffers: BufferArrays, n: int) -> bool:
    """Whether a run for ``n`` entries can be had."""
    number = class_of(n)
    return buffers.free[number] >= 0 or (
        buffers.facts[N_ENTRIES] + size_of(number) <= len(buffers.scores)
    )


@inlined_kernel
def _take_run(buffers: BufferArrays, number: int) -> int:
    start = buffers.free[number]
    if start >= 0:
        buffers.free[number] = np.int64(buffers.scores[start])
        return start
    start = buffers.facts[N_ENTRIES]
    buffers.facts[N_ENTRIES] += size_of(number)
    return start


@inlined_kernel
def release(buffers: BufferArrays, slot: int) -> None:
    """Give a slot's run of entries back."""
    capacity = buffers.runs[slot, CAPACITY]
    if capacity > 0:
        number = class_of(capacity)
        start = start_of(buffers, slot)
        buffers.scores[start] = np.float64(buffers.free[number])
        buffers.free[number] = start
        buffers.facts[N_BUFFERED] -= buffers.runs[slot, LENGTH]
        buffers.runs[slot, CAPACITY] = 0
        buffers.runs[slot, LENGTH] = 0


@inlined_kernel
def reserve(buffers: BufferArrays, slot: int, n: int) -> None:
    """Give a slot room for ``n`` entries, which :func:`has_room` has said there is."""
    if n <= buffers.runs[slot, CAPACITY]:
        return
    number = class_of(n)
    start = _take_run(buffers, number)
    length, old = buffers.runs[slot, LENGTH], start_of(buffers, slot)
    _copy_entries(buffers, start, buffers, old, length)
    release(buffers, slot)
    buffers.runs[slot, START] = start // QUAD
    buffers.runs[slot, CAPACITY] = size_of(number)
    buffers.runs[slot, LENGTH] = length
    buffers.facts[N_BUFFERED] += length


@inlined_kernel
def take_over(buffers: BufferArrays, filled: BufferArrays, slot: int) -> int:
    """Take over the entries of a slot that was filled apart; return how it ended.

    Both have the same ``runs``, which tell where the entries are in ``filled`` before, and where
    they are in ``buffers`` afterwards.
    """
    length, old = np.int64(filled.runs[slot, LENGTH]), start_of(filled, slot)
    if length > 0 and not has_room(buffers, length):
        return NEEDS_ENTRIES
    buffers.runs[slot, LENGTH] = 0
    buffers.runs[slot, CAPACITY] = 0
    reserve(buffers, slot, length)
    _copy_entries(buffers, start_of(buffers, slot), filled, old, length)
    buffers.runs[slot, LENGTH] = length
    buffers.facts[N_BUFFERED] += length
    return DONE


@inlined_kernel
def _copy_entries(
    buffers: BufferArrays, start: int, source: BufferArrays, old: int, n: int
) -> None:
    for i in range(n):
        buffers.scores[start + i] = source.scores[old + i]
        buffers.sequences[start + i] = source.sequences[old + i]
        buffers.dominated[start + i] = source.dominated[old + i]


@inlined_kernel
def start_of(buffers: BufferArrays, slot: int) -> int:
    """Return the first entry of a slot."""
    return np.int64(buffers.runs[slot, START]) * QUAD  # type: ignore[return-value]


# ---- chains to the oldest message ----------------------------------------------------------------


@inlined_kernel
def unchain(window: WindowArrays, buffers: BufferArrays, slot: int) -> None:
    """Take a slot out of the chain of its oldest message."""
    if not buffers.runs[slot, IS_CHAINED]:
        return
    before, after = buffers.runs[slot, BEFORE], buffers.runs[slot, AFTER]
    if before >= 0:
        buffers.runs[before, AFTER] = after
    else:
        window.heads[row_of(window, buffers.runs[slot, OLDEST])] = after
    if after >= 0:
        buffers.runs[after, BEFORE] = before
    buffers.runs[slot, IS_CHAINED] = 0


@inlined_kernel
def chain(window: WindowArrays, buffers: BufferArrays, slot: int) -> None:
    """Chain a slot to the oldest message of its buffer, if it has any."""
    unchain(window, buffers, slot)
    start, length = start_of(buffers, slot), buffers.runs[slot, LENGTH]
    if length == 0:
        return
    oldest = row_of(window, buffers.sequences[start])
    # Without late messages rows are in the order of time, which need not be looked up.
    has_late = window.facts[LATE_START] < window.facts[LATE_STOP]
    for i in range(start + 1, start + length):
        row = row_of(window, buffers.sequences[i])
        if row < oldest if not has_late else is_newer(window, oldest, row):
            oldest = row
    _chain_to(window, buffers, slot, oldest)


@inlined_kernel
def _chain_to(window: WindowArrays, buffers: BufferArrays, slot: int, row: int) -> None:
    head = window.heads[row]
    buffers.runs[slot, AFTER] = head
    buffers.runs[slot, BEFORE] = -1
    if head >= 0:
        buffers.runs[head, BEFORE] = slot
    window.heads[row] = slot
    buffers.runs[slot, OLDEST] = np.int32(window.facts[FIRST_SEQUENCE] + row)
    buffers.runs[slot, IS_CHAINED] = 1


# ---- output --------------------------------------------------------------------------------------


@inlined_kernel
def has_output(output: Output, n: int) -> bool:
    """Whether ``n`` more changes can be written."""
    return output.length[0] + n <= len(output.rows)


@inlined_kernel
def emit(
    output: Output, state: State, cause: int, sign: int, reason: int, slot: int, entry: int
) -> None:
    """Write a change that an entry of a slot's buffer tells of."""
    buffers = state.buffers
    _emit(output, state, cause, sign, reason, slot, buffers.sequences[entry], buffers.scores[entry])


@inlined_kernel
def _emit(
    output: Output, state: State, cause: int, sign: int, reason: int, slot: int, sequence: int,
    score: float,
) -> None:  # fmt: skip
    """Write a change; the message is given by the low bits of its sequence."""
    at = output.length[0]
    output.rows[at] = cause
    output.signs[at] = sign
    output.reasons[at] = reason
    output.slots[at] = slot
    output.sequences[at] = state.window.facts[FIRST_SEQUENCE] + row_of(state.window, sequence)
    output.scores[at] = score
    output.length[0] = at + 1


# ---- how large a buffer should be ----------------------------------------------------------------


@lean_kernel
def best_size(k: int, cost: float) -> int:
    """Return how many messages a buffer should know of after a search.

    The cost model of [PVLDB16] section 6.2: with A messages known, of which a skyband keeps
    k (1 + ln(A / k)), a message touches the buffer in proportion to A, and it runs dry after a
    random walk from A down to k - 1 under a barrier at 2 A. ``cost`` is that of a search in touched
    entries. The sum is convex in A.
    """
    low, high = float(k), 64.0 * k
    for _ in range(40):
        if high - low < 1.0:
            break
        one = low + (high - low) / 3.0
        two = high - (high - low) / 3.0
        if _expected_cost(one, k, cost) <= _expected_cost(two, k, cost):
            high = two
        else:
            low = one
    return int(np.ceil(0.5 * (low + high)))


@inlined_kernel
def _expected_cost(known: float, k: float, cost: float) -> float:
    kept = k * (1.0 + np.log(known / k))
    steps = (known - k + 1.0) * (3.0 * known - k + 2.0)
    return known * kept + cost * known / steps


@inlined_kernel
def kept_of(known: int, k: int) -> int:
    """Return how many of so many messages a skyband is expected to keep."""
    return int(np.ceil(k * (1.0 + np.log(known / k))))


@inlined_kernel
def _known_by_model(buffers: BufferArrays, policy: Policy, slot: int, k: int) -> int:
    if buffers.runs[slot, SIZE] == 0:
        cost = np.float64(buffers.costs[slot])
        if cost == 0.0:
            cost = np.float64(policy.typical_cost)
        buffers.runs[slot, SIZE] = best_size(k, (cost + FIXED_WORK) * policy.search_weight)
    return np.int64(buffers.runs[slot, SIZE])  # type: ignore[return-value]


@inlined_kernel
def _most_of(policy: Policy, k: int) -> int:
    """Return the most entries of a buffer by kmax."""
    return max(k, int(np.ceil(policy.factor * k)))


@inlined_kernel
def _raise_threshold(
    subscribers: Subscribers, buffers: BufferArrays, policy: Policy, slot: int, counters: Int64s
) -> bool:
    """Forget the worst entries of a skyband that has outgrown its size; say whether it had.

    What is left is the skyband down to a higher threshold.
    """
    k = np.int64(subscribers.ks[slot])
    start, length = start_of(buffers, slot), np.int64(buffers.runs[slot, LENGTH])
    if length <= 2 * k:
        return False
    if policy.kind == CSKYBAND:
        # The barrier of the random walk is at twice the size. A little more than it is let by, so
        # that structures need not follow a new threshold all the time.
        known = 2 * _known_by_model(buffers, policy, slot, k)
        kept = kept_of(known, k)
        if length <= kept + k // 4 + 2:
            return False
    else:
        bar = policy.factor * buffers.scores[start + k - 1]
        kept = k
        while kept < length and buffers.scores[start + kept] >= bar:
            kept += 1
        if length <= 2 * kept:
            return False
    counters[EVICTED] += length - kept
    buffers.facts[N_BUFFERED] -= length - kept
    buffers.runs[slot, LENGTH] = kept
    subscribers.thresholds[slot] = buffers.scores[start + kept - 1]
    buffers.boundaries[slot] = buffers.sequences[start + kept - 1]
    buffers.has_boundary[slot] = 1
    return True


# ---- arrival -------------------------------------------------------------------------------------


@inlined_kernel
def admit(
    state: State, rules: Rules, slot: int, row: int, score: float, cause: int, output: Output
) -> tuple[int, bool]:
    """Take an arrived message into a slot's buffer, if it reaches the threshold.

    Return how it ended and whether the threshold changed.
    """
    window, subscribers, buffers = state.window, state.subscribers, state.buffers
    policy, counters = rules.policy, state.counters
    length = np.int64(buffers.runs[slot, LENGTH])
    if not has_output(output, 2):
        return NEEDS_OUTPUT, False
    if length + 1 > buffers.runs[slot, CAPACITY] and not has_room(buffers, length + 1):
        return NEEDS_ENTRIES, False
    threshold = subscribers.thresholds[slot]
    if score < threshold:
        return DONE, False
    is_late = window.is_late[row] != 0
    k = np.int64(subscribers.ks[slot])
    scores, sequences, dominated = buffers.scores, buffers.sequences, buffers.dominated
    start = start_of(buffers, slot)
    # Position: behind all that are better.
    position = length
    if is_late:
        while position > 0 and is_better(
            window, score, row, scores[start + position - 1],
            row_of(window, sequences[start + position - 1]),
        ):  # fmt: skip
            position -= 1
        if score == threshold and _is_below_boundary(window, buffers, slot, row):
            return DONE, False
    else:
        while position > 0 and scores[start + position - 1] <= score:
            position -= 1
    is_complete = threshold == NOTHING_LOST
    own = 0
    if policy.kind == KMAX:
        if position == length and not is_complete:
            return DONE, False
    elif is_late:
        for i in range(start, start + position):
            if is_newer(window, row_of(window, sequences[i]), row):
                own += 1
        if own >= k:
            return DONE, False
    counters[ADMITTED] += 1
    reserve(buffers, slot, length + 1)
    start = start_of(buffers, slot)
    displaced_sequence, displaced_score = np.uint32(0), 0.0
    if length >= k:
        displaced_sequence = sequences[start + k - 1]
        displaced_score = scores[start + k - 1]
    # The entries behind it: those that it dominates k-fold with others go.
    stop = length
    if policy.kind != KMAX:
        stop = position
        for i in range(position, length):
            count = dominated[start + i]
            if not is_late or is_newer(window, row, row_of(window, sequences[start + i])):
                count += np.uint16(1)
            if count >= k:
                continue
            scores[start + stop] = scores[start + i]
            sequences[start + stop] = sequences[start + i]
            dominated[start + stop] = count
            stop += 1
        counters[EVICTED] += length - stop
    for i in range(stop, position, -1):
        scores[start + i] = scores[start + i - 1]
        sequences[start + i] = sequences[start + i - 1]
        dominated[start + i] = dominated[start + i - 1]
    sequence = np.uint32((window.facts[FIRST_SEQUENCE] + row) & LOW)
    scores[start + position] = score
    sequences[start + position] = sequence
    dominated[start + position] = own
    new_length = stop + 1
    is_changed = False
    if policy.kind == KMAX:
        most = _most_of(policy, k)
        if new_length > most:
            new_length = most
            counters[EVICTED] += 1
            if is_complete:
                subscribers.thresholds[slot] = scores[start + most - 1]
                is_changed = True
    buffers.runs[slot, LENGTH] = new_length
    buffers.facts[N_BUFFERED] += new_length - length
    if policy.kind != KMAX:
        is_changed = _raise_threshold(subscribers, buffers, policy, slot, counters)
    if not buffers.runs[slot, IS_CHAINED] or (
        is_late and is_newer(window, row_of(window, buffers.runs[slot, OLDEST]), row)
    ):
        unchain(window, buffers, slot)
        _chain_to(window, buffers, slot, row)
    if position < k:
        if length >= k:
            _emit(output, state, cause, -1, DISPLACED, slot, displaced_sequence, displaced_score)
        _emit(output, state, cause, 1, MATCH, slot, sequence, score)
    return DONE, is_changed


@inlined_kernel
def _is_below_boundary(window: WindowArrays, buffers: BufferArrays, slot: int, row: int) -> bool:
    """Whether a message with just the threshold's score is older than where the threshold is.

    Then others like it may have been left out. If the one at the boundary has left the window, so
    have all of these.
    """
    boundary = row_of(window, buffers.boundaries[slot])
    return (
        buffers.has_boundary[slot] != 0
        and boundary < window.facts[N_ROWS]
        and window.is_live[boundary] != 0
        and is_newer(window, boundary, row)
    )


# ---- expiry --------------------------------------------------------------------------------------


@inlined_kernel
def expire(
    state: State, rules: Rules, slot: int, row: int, cause: int, output: Output
) -> tuple[int, bool]:
    """Take an expired message, which is no longer live, out of a slot's buffer.

    The buffer is filled again where it is needed. Return how it ended and whether the threshold
    changed; where there was no room nothing was done.
    """
    window, subscribers, buffers = state.window, state.subscribers, state.buffers
    counters = state.counters
    k = np.int64(subscribers.ks[slot])
    if not has_output(output, k + 2):
        return NEEDS_OUTPUT, False
    scores, sequences = buffers.scores, buffers.sequences
    start, length = start_of(buffers, slot), np.int64(buffers.runs[slot, LENGTH])
    sequence = np.uint32((window.facts[FIRST_SEQUENCE] + row) & LOW)
    position = 0
    while position < length and sequences[start + position] != sequence:
        position += 1
    if position == length:
        counters[VISITS] += 1
        chain(window, buffers, slot)
        return DONE, False
    score = scores[start + position]
    is_changed = False
    n_before = length - 1
    n_found = length - 1
    if length - 1 < k and subscribers.thresholds[slot] != NOTHING_LOST:
        # The whole step is done only once there is room for all of it.
        status, n_found = refill(state, rules, slot)
        if status != DONE:
            return status, False
        counters[REEVALUATIONS] += 1
        is_changed = True
        start = start_of(buffers, slot)
    else:
        for i in range(start + position, start + length - 1):
            scores[i] = scores[i + 1]
            sequences[i] = sequences[i + 1]
            buffers.dominated[i] = buffers.dominated[i + 1]
        buffers.runs[slot, LENGTH] = length - 1
        buffers.facts[N_BUFFERED] -= 1
    counters[VISITS] += 1
    chain(window, buffers, slot)
    if position < k:
        _emit(output, state, cause, -1, EXPIRED, slot, sequence, score)
        first, stop = (
            (min(n_before, k), min(n_found, k)) if is_changed else (k - 1, min(n_before, k))
        )
        for i in range(first, stop):
            emit(output, state, cause, 1, REFILL, slot, start + i)
    return DONE, is_changed


# ---- filling -------------------------------------------------------------------------------------


@lean_kernel
def refill(state: State, rules: Rules, slot: int) -> tuple[int, int]:
    """Fill a buffer from the window and set its threshold; return how it ended and its length.

    Its chain is left as it was. Where there is no room nothing is changed.
    """
    window, subscribers, buffers = state.window, state.subscribers, state.buffers
    scratch, policy = state.scratch, rules.policy
    k = np.int64(subscribers.ks[slot])
    limit, factor = k, 1.0
    if policy.kind == KMAX:
        limit = _most_of(policy, k)
    elif policy.kind == CSKYBAND:
        limit = _known_by_model(buffers, policy, slot, k)
    else:
        factor = policy.factor
    if limit > len(scratch.scores):
        return NEEDS_MORE, 0
    on = Searching(window, state.segments, subscribers, scratch, state.counters)
    n, n_more, cost = search(on, slot, rules.max_distance, limit, factor)
    if n_more == TOO_MANY:
        return NEEDS_MORE, 0
    is_all = n < limit
    threshold, boundary = NOTHING_LOST, np.int64(-1)
    if not is_all:
        threshold, boundary = scratch.scores[n - 1], scratch.rows[n - 1]
        if factor < 1.0:
            # Every message that scores as much is known, so there is no boundary among equals.
            threshold, boundary = factor * threshold, np.int64(-1)
            n = _merge_more(window, scratch, n, n_more, threshold)
            if n == TOO_MANY:
                return NEEDS_MORE, 0
    kept = n if policy.kind == KMAX else _skyband(window, scratch, n, k)
    if kept > buffers.runs[slot, CAPACITY] and not has_room(buffers, kept):
        return NEEDS_ENTRIES, 0
    buffers.facts[N_BUFFERED] -= buffers.runs[slot, LENGTH]
    buffers.runs[slot, LENGTH] = 0
    reserve(buffers, slot, kept)
    buffers.runs[slot, LENGTH] = kept
    buffers.facts[N_BUFFERED] += kept
    start = start_of(buffers, slot)
    first_sequence = window.facts[FIRST_SEQUENCE]
    for i in range(kept):
        at = scratch.order[i] if policy.kind != KMAX else i
        buffers.scores[start + i] = scratch.scores[at]
        buffers.sequences[start + i] = np.uint32((first_sequence + scratch.rows[at]) & LOW)
        buffers.dominated[start + i] = (
            np.uint16(scratch.counts[at]) if policy.kind != KMAX else np.uint16(0)
        )
    subscribers.thresholds[slot] = threshold
    buffers.has_boundary[slot] = 1 if boundary >= 0 else 0
    buffers.boundaries[slot] = np.uint32((first_sequence + boundary) & LOW)
    buffers.costs[slot] = np.float32(max(cost, 1.0))
    buffers.runs[slot, SIZE] = 0  # to be told anew by this cost
    return DONE, kept


@lean_kernel
def _merge_more(
    window: WindowArrays, scratch: SearchScratch, n: int, n_more: int, threshold: float
) -> int:
    """Append the others that reach the threshold to the best, sorted; return how many there are."""
    kept = 0
    for i in range(n_more):
        if scratch.more_scores[i] >= threshold:
            scratch.more_scores[kept] = scratch.more_scores[i]
            scratch.more_rows[kept] = scratch.more_rows[i]
            kept += 1
    if n + kept > len(scratch.scores):
        return TOO_MANY
    scores, rows = scratch.scores[n:], scratch.rows[n:]
    for i in range(kept):
        push(window, scores, rows, i, scratch.more_scores[i], scratch.more_rows[i])
    sort_heap(window, scores, rows, kept)
    return n + kept


@lean_kernel
def _skyband(window: WindowArrays, scratch: SearchScratch, n: int, k: int) -> int:
    """Choose among ``n`` sorted messages those that fewer than k before them are newer than.

    Their positions go to ``scratch.order``, and by position how many to ``scratch.counts``; return
    how many are chosen.
    """
    newest, n_newest, kept = scratch.newest, 0, 0  # the k newest so far, newest first
    for i in range(n):
        row = scratch.rows[i]
        count = n_newest
        while count > 0 and is_newer(window, row, newest[count - 1]):
            count -= 1
        if count >= k:
            continue
        scratch.counts[i] = count
        scratch.order[kept] = i
        kept += 1
        last = n_newest if n_newest < k else k - 1
        for at in range(last, count, -1):
            newest[at] = newest[at - 1]
        newest[count] = row
        n_newest = min(n_newest + 1, k)
    return kept
