"""The monitor: keeps the best messages of a window for every subscription, over flat arrays.

Subscriptions are slots, messages sequence numbers. Every call returns the changes of results that
it caused, in the order that docs/semantics/topk.md defines; they do not depend on how messages find
subscriptions or on how buffers are filled.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import asdict
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from earshot.errors import InvalidParameter, check_threads
from earshot.indexes.threads import share
from earshot.kernels.growing import with_room
from earshot.kernels.resuming import run_until_done
from earshot.model.arrays import (
    EVERYWHERE_TOKEN,
    CountedMessages,
    Float64s,
    Int32s,
    Int64s,
    gather_ranges,
    nbytes,
    numbers_of,
)
from earshot.semantics.topk import (
    DISSEMINATIONS,
    REEVALUATIONS,
    find_dissemination,
    find_reevaluation,
)
from earshot.semantics.topk.contract import Dissemination
from earshot.semantics.topk.kernels import publish as topk_publish
from earshot.semantics.topk.kernels.arrays import (
    BASE,
    COUNTERS,
    LENGTH,
    MOVE,
    N_BUFFERED,
    NO_HOME,
    NO_LIMIT,
    REASONS,
    REWEIGH,
    SUBSCRIBE,
    YOUNG,
    BufferArrays,
    Changes,
    Probe,
    Rules,
    SegmentArrays,
    State,
    Subscribers,
    Vectors,
    WindowArrays,
)
from earshot.semantics.topk.kernels.buffers import NEEDS_ENTRIES, NEEDS_MORE, NEEDS_OUTPUT
from earshot.semantics.topk.kernels.publish import (
    N_PROGRESS,
    NO_CLOCK,
    SILENT,
)
from earshot.semantics.topk.kernels.scoring import unit_vectors
from earshot.semantics.topk.reevaluation import Reevaluation
from earshot.semantics.topk.results import Results, concat_changes, difference
from earshot.semantics.topk.room import (
    BY_SLOT,
    first_subscribers,
    larger_output,
    new_output,
    new_scratch,
    no_buffers,
    no_subscribers,
    packed_size,
    scratch_like,
    with_entries,
    with_slots,
    with_subscribers,
    without_entries,
)
from earshot.semantics.topk.window import Window
from earshot.storage import Contents, Saved

__all__ = ["REASONS", "Counters", "Monitor", "Results"]

PENDING_MOST = 1024
"""Subscriptions that are scored one by one before they are indexed."""

YOUNG_SHARE = 8
"""The young component is merged into the base when it holds one of so many there."""

LEAST_OUTPUT = 1 << 14

LEAST_SHARED = 1 << 10
"""Subscriptions from which on threads share in filling them."""

MESSAGES_PER_SEARCH = 32
"""One search over few segments saves as much as it costs to merge so many messages into them."""

LEAST_DISTANCE, MOST_DISTANCE = 1e-9, 1e15
"""Structures hold places in single precision, whose squares must neither vanish nor overflow."""

LEAST_SPARE = 4096
"""Entries that packed buffers may grow by, at least; else by a fifth."""

SLOTS_AT_ONCE = 1 << 16
"""Slots whose results are compared at a time, before and after a change of all."""


Counters = NamedTuple("Counters", [(name, int) for name in COUNTERS])  # type: ignore[misc]
"""Work done so far.

``arrivals``, ``expiries``: messages. ``cells``, ``groups``, ``postings``: parts of the structure
that were looked at, the last being subscriptions under a word. ``candidates``: subscriptions scored
exactly. ``admitted``, ``evicted``: entries of buffers. ``visits``: buffers looked at because a
message left. ``reevaluations``: buffers that had run dry. ``searches`` of the window, for these and
for new subscriptions, and in them ``search_blocks``, ``search_postings``, ``search_candidates``.
``threshold_changes``: as often a structure had to follow a threshold.
"""


class Monitor:
    """The results of subscriptions over a window.

    Args:
        window: Messages of the window; or
        duration_us: how long a message stays in it, in microseconds.
        max_distance: Distance at which a place counts nothing.
        dissemination: How messages find subscriptions, by name or with parameters.
        reevaluation: How buffers are filled, by name or with parameters.
        n_threads: Threads that search the window where many subscriptions are new.
    """

    def __init__(
        self,
        *,
        window: int | None = None,
        duration_us: int | None = None,
        max_distance: float,
        dissemination: str | Dissemination | None = None,
        reevaluation: str | Reevaluation | None = None,
        n_threads: int = 1,
    ) -> None:
        check_threads(n_threads)
        if (window is None) == (duration_us is None):
            raise InvalidParameter("expected one of window and duration_us")
        if (window if window is not None else duration_us or 0) < 1:
            raise InvalidParameter(f"window is {window or duration_us}; expected 1 or more")
        if not LEAST_DISTANCE <= max_distance <= MOST_DISTANCE:
            raise InvalidParameter(
                f"max_distance is {max_distance}; expected {LEAST_DISTANCE:g} to {MOST_DISTANCE:g}"
            )
        self.dissemination = find_dissemination(dissemination)
        self.reevaluation = find_reevaluation(reevaluation)
        self.n_threads = n_threads
        self._window = window
        self._duration_us = duration_us
        self._max_distance = float(max_distance)
        self._weights, self._later_weight = np.ones(1), 1.0
        self._messages = Window()
        self._subscribers = no_subscribers()
        self._buffers = no_buffers()
        self._n_slots = 0
        self._is_alive: Any = np.empty(0, np.bool_)
        self._pending: Int32s = np.empty(0, np.int32)
        self._counters = np.zeros(len(COUNTERS), np.int64)
        self._start()

    def _start(self) -> None:
        policy = self.reevaluation.policy()
        self._rules = Rules(
            NO_LIMIT if self._window is None else self._window,
            NO_LIMIT if self._duration_us is None else self._duration_us,
            self._max_distance,
            policy,
        )
        self._n_words = 1
        self._probe = Probe(
            np.zeros(3), np.empty(16, np.int32), np.empty(16, np.float32), np.zeros(1, np.int64),
            np.zeros(1, np.float32),
        )  # fmt: skip
        self._scratch = new_scratch(256, 1024, 16, 1)
        self._found_slots = np.empty(0, np.int32)
        self._found_scores = np.empty(0, np.float64)
        self._output = new_output(LEAST_OUTPUT)
        self._ticks = np.zeros(2, np.int64)
        self._index_all()

    # ---- questions ----------------------------------------------------------------------------

    @property
    def n_slots(self) -> int:
        """Slots handed out so far."""
        return self._n_slots

    @property
    def n_subscriptions(self) -> int:
        """Subscriptions there are."""
        return int(self._is_alive[: self._n_slots].sum())

    @property
    def subscribers(self) -> Subscribers:
        """What the slots ask for; the arrays have room to grow."""
        return self._subscribers

    def word_weights(self, n_words: int) -> Float64s:
        """Return the weights of the first words, by token."""
        weights = np.full(n_words, self._later_weight)
        known = self._weights[:n_words]
        weights[: len(known)] = known
        return weights

    @property
    def n_messages(self) -> int:
        """Messages in the window."""
        return self._messages.n_live

    @property
    def next_sequence(self) -> int:
        """Sequence of the next message."""
        return self._messages.first_sequence + self._messages.n_rows

    @property
    def first_sequence(self) -> int:
        """Sequence before which no message is in the window."""
        return self._messages.first_sequence

    @property
    def counters(self) -> Counters:
        """Work done so far."""
        return Counters(*self._counters.tolist())

    @property
    def n_buffered(self) -> int:
        """Entries in all buffers."""
        return int(self._buffers.facts[N_BUFFERED])

    @property
    def ticks(self) -> tuple[int, int]:
        """Ticks of the processor's clock that arrivals and expiries took; 0 where it is hidden."""
        arrival, expiry = self._ticks.tolist()
        return arrival, expiry

    def restructure(self, dissemination: str | Dissemination) -> None:
        """Let messages find subscriptions in another way from now on."""
        self.dissemination = find_dissemination(dissemination)
        self._index_all()

    def memory(self) -> dict[str, int]:
        """Return bytes by part, room to grow included."""
        return {
            "subscriptions": nbytes(self._subscribers) + self._is_alive.nbytes,
            "structure": nbytes(self._base) + nbytes(self._young) + self._pending.nbytes,
            "buffers": nbytes(self._buffers),
            "messages": self._messages.nbytes,
            "message_index": nbytes(self._messages.segments),
            "working": nbytes(self._probe)
            + nbytes(self._scratch)
            + nbytes(self._output)
            + self._found_slots.nbytes
            + self._found_scores.nbytes
            + self._weights.nbytes,
        }

    def results(self, slots: Int32s) -> Results:
        """Return what the slots hold now."""
        slots = np.ascontiguousarray(slots, np.int32)
        lengths = np.minimum(self._buffers.runs[slots, LENGTH], self._subscribers.ks[slots])
        offsets = np.zeros(len(slots) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        sequences = np.empty(offsets[-1], np.int64)
        scores = np.empty(offsets[-1], np.float64)
        topk_publish.read_results(self._state(), slots, sequences, scores, offsets)
        return Results(offsets, sequences, scores)

    # ---- events -------------------------------------------------------------------------------

    def subscribe(
        self,
        places: Float64s,
        token_offsets: Int64s,
        tokens: Int32s,
        alphas: Float64s,
        ks: Int32s,
    ) -> Changes:
        """Add subscriptions in the next slots, and fill them from the window."""
        self._begin()
        n, first = len(places), self._n_slots
        token_offsets = np.asarray(token_offsets, np.int64)
        vectors = self._vectors(token_offsets, tokens, np.ones(len(tokens), np.uint16))[0]
        stop = first + n
        self._subscribers = with_subscribers(self._subscribers, first, places, alphas, ks, vectors)
        self._buffers = with_slots(self._buffers, stop)
        self._is_alive = with_room(self._is_alive, stop, False)
        self._is_alive[first:stop] = True
        self._n_slots = stop
        slots = np.arange(first, stop, dtype=np.int32)
        changes = self._fill(slots, SUBSCRIBE)
        self._add_pending(slots)
        return changes

    def unsubscribe(self, slots: Int32s) -> None:
        """End subscriptions."""
        slots = np.ascontiguousarray(slots, np.int32)
        topk_publish.empty(self._state(), slots)
        self._leave_home(slots)
        self._is_alive[slots] = False

    def move(self, slots: Int32s, places: Float64s) -> Changes:
        """Let subscriptions, each named once, be somewhere else."""
        self._begin()
        slots = np.ascontiguousarray(slots, np.int32)
        before = self.results(slots)
        topk_publish.empty(self._state(), slots)
        self._subscribers.places[slots] = places
        self._leave_home(slots)
        self._fill(slots, SILENT)
        self._add_pending(slots)
        return self._difference(slots, before, MOVE)

    def publish(self, messages: CountedMessages) -> Changes:
        """Let messages arrive, each after what leaves the window before it."""
        self._begin()
        n = len(messages.places)
        vectors, counts = self._vectors(messages.token_offsets, messages.tokens, messages.counts)
        times = messages.times if self._window is None else np.zeros(n, np.int64)
        longest = int(np.diff(vectors.offsets).max(initial=0))
        self._probe = self._probe._replace(
            tokens=with_room(self._probe.tokens, longest),
            weights=with_room(self._probe.weights, longest),
        )
        first = 0
        while first < n:
            stop = min(n, first + max(self._messages.segment_room(), 1))
            n_tokens = int(vectors.offsets[stop] - vectors.offsets[first])
            self._messages.reserve(stop - first, n_tokens, self._n_words)
            part = vectors._replace(offsets=vectors.offsets[first : stop + 1])
            rows = slice(first, stop)
            self._publish(part, counts, messages.places[rows], times[rows], first)
            first = stop
            if self._messages.segment_room() <= 0:
                self._messages.close_segment()
        return self._take_output()

    def _publish(
        self,
        vectors: Vectors,
        counts: Any,
        places: Float64s,
        times: Int64s,
        first_row: int,
        final_clock: int = NO_CLOCK,
    ) -> None:
        progress = np.zeros(N_PROGRESS, np.int64)
        run_until_done(
            lambda: topk_publish.publish(
                self._state(), self._base, self._young, self._rules, vectors, counts, places,
                times, progress, first_row, final_clock, self._output,
            ),
            self._pack_or_make_room,
        )  # fmt: skip

    def advance(self, clock_us: int) -> Changes:
        """Let the messages leave that a clock leaves behind; only in a window by time."""
        self._begin()
        if self._window is None:
            none = Vectors(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
            self._publish(
                none, np.empty(0, np.uint16), np.empty((0, 3)), np.empty(0, np.int64), 0, clock_us
            )
        return self._take_output()

    def reweigh(self, weights: Float64s, later_weight: float) -> Changes:
        """Give words other weights, by token, and score everything anew."""
        self._begin()
        self._weights = np.array(weights, np.float64)
        self._later_weight = float(later_weight)
        alive = np.flatnonzero(self._is_alive[: self._n_slots]).astype(np.int32)
        before = self.results(alive)
        topk_publish.empty(self._state(), alive)
        self._messages.reweigh(self._weights, self._later_weight)
        subscribers = self._subscribers
        n_tokens = int(subscribers.token_offsets[self._n_slots])
        offsets = subscribers.token_offsets[: self._n_slots + 1]
        vectors, _ = self._vectors(
            offsets, subscribers.tokens[:n_tokens], np.ones(n_tokens, np.uint16)
        )
        subscribers.tokens[:n_tokens] = vectors.tokens
        subscribers.weights[:n_tokens] = vectors.weights
        self._fill(alive, SILENT)
        self._index_all()
        changes = self._difference(alive, before, REWEIGH)
        return changes._replace(rows=np.zeros_like(changes.rows))

    # ---- slots --------------------------------------------------------------------------------

    def compacted(self) -> Int32s | None:
        """Number the slots anew if most are dead; return the old slot of each new one."""
        alive = np.flatnonzero(self._is_alive[: self._n_slots]).astype(np.int32)
        if self._n_slots - len(alive) <= max(PENDING_MOST, len(alive)):
            return None
        topk_publish.unchain_all(self._state(), alive)
        old = self._subscribers
        offsets, positions = gather_ranges(old.token_offsets, alive)
        self._subscribers = Subscribers(
            old.places[alive], old.alphas[alive], old.ks[alive], offsets, old.tokens[positions],
            old.weights[positions], old.thresholds[alive], np.zeros(len(alive), np.int8),
            np.zeros(len(alive), np.int32),
        )  # fmt: skip
        by_slot = {name: getattr(self._buffers, name)[alive] for name in BY_SLOT}
        self._buffers = self._buffers._replace(**by_slot)
        self._is_alive = np.ones(len(alive), np.bool_)
        self._n_slots = len(alive)
        self._pack(0)
        self._chain(np.arange(len(alive), dtype=np.int32), SILENT)
        self._index_all()
        return alive

    def used_tokens(self, n_tokens: int) -> npt.NDArray[np.bool_]:
        """Return which tokens subscriptions or messages have, or that have their own weight."""
        is_used = np.zeros(n_tokens, np.bool_)
        is_used[: len(self._weights)] = self._weights != self._later_weight
        is_used[EVERYWHERE_TOKEN] = True
        is_used[self._messages.live_tokens()] = True
        n, asking = self._n_slots, self._subscribers
        is_asked = np.repeat(self._is_alive[:n], np.diff(asking.token_offsets[: n + 1]))
        is_used[asking.tokens[: len(is_asked)][is_asked]] = True
        return is_used

    def clear_up(self, tokens: Int32s | None) -> None:
        """Pack the buffers; token i was ``tokens[i]``, ascending, and the others are forgotten."""
        self._pack(0)
        if tokens is None:
            return
        # Those of what has ended or left may be gone; nobody asks what they were.
        numbers = np.maximum(numbers_of(tokens, self._n_words), 0)
        self._weights = self._weights[tokens[tokens < len(self._weights)]]
        self._messages.renumber(numbers, len(tokens))
        asked = self._subscribers.tokens[: self._subscribers.token_offsets[self._n_slots]]
        asked[:] = numbers[asked]
        self._n_words = len(tokens)
        self._probe = self._probe._replace(weight_of=np.zeros(self._n_words, np.float32))
        self._scratch = self._scratch._replace(positions=np.zeros(self._n_words, np.int32))
        self._index_all()

    def _pack(self, spare: int) -> None:
        """Give every buffer a run that is just large enough; leave room for ``spare`` entries."""
        old = self._buffers
        alive = np.flatnonzero(self._is_alive[: self._n_slots]).astype(np.int32)
        self._buffers = without_entries(old, packed_size(old.runs[alive, LENGTH]) + spare)
        self._take_entries(alive, old)

    def _leave_home(self, slots: Int32s) -> None:
        self._subscribers.homes[slots] = NO_HOME
        if len(self._pending):
            self._pending = self._pending[~np.isin(self._pending, slots)]

    def _add_pending(self, slots: Int32s) -> None:
        self._pending = np.concatenate([self._pending, slots])
        if len(self._pending) <= PENDING_MOST:
            return
        homes = self._subscribers.homes[: self._n_slots]
        n_base = int((homes == BASE).sum())
        young = np.flatnonzero(homes == YOUNG).astype(np.int32)
        if YOUNG_SHARE * (len(young) + len(self._pending)) > n_base:
            self._index_all()
        else:
            self._young = self._component(np.concatenate([young, self._pending]), YOUNG)
            self._pending = np.empty(0, np.int32)

    def _index_all(self) -> None:
        alive = np.flatnonzero(self._is_alive[: self._n_slots]).astype(np.int32)
        self._subscribers.homes[: self._n_slots] = NO_HOME
        self._base = self._component(alive, BASE)
        self._young = self._component(np.empty(0, np.int32), YOUNG)
        self._pending = np.empty(0, np.int32)

    def _component(self, slots: Int32s, home: int) -> tuple[Any, ...]:
        component = self.dissemination.build(self._subscribers, slots, self._max_distance)
        self._subscribers.homes[slots] = home
        self._subscribers.rows[slots] = np.arange(len(slots))
        return component

    # ---- inside -------------------------------------------------------------------------------

    def _vectors(self, offsets: Int64s, tokens: Int32s, counts: Any) -> tuple[Vectors, Any]:
        """Return rows of tokens as vectors of length 1, and the counts in their order."""
        start = int(offsets[0])
        tokens = np.ascontiguousarray(tokens[start : offsets[-1]], np.int32)
        counts = np.ascontiguousarray(counts[start : offsets[-1]], np.uint16)
        offsets = np.asarray(offsets, np.int64) - start
        self._n_words = max(self._n_words, int(tokens.max(initial=0)) + 1)
        if self._n_words > len(self._probe.weight_of):
            self._probe = self._probe._replace(
                weight_of=with_room(self._probe.weight_of, self._n_words)
            )
            self._scratch = self._scratch._replace(
                positions=with_room(self._scratch.positions, self._n_words)
            )
        vectors = Vectors(offsets, np.empty_like(tokens), np.empty(len(tokens), np.float32))
        ordered = np.empty_like(counts)
        unit_vectors(
            offsets, tokens, counts, self._weights, self._later_weight, vectors.tokens,
            vectors.weights, ordered,
        )  # fmt: skip
        return vectors, ordered

    def _state(self) -> State:
        if len(self._found_slots) < len(self._subscribers.ks):
            self._found_slots = np.empty(len(self._subscribers.ks), np.int32)
            self._found_scores = np.empty(len(self._subscribers.ks), np.float64)
        return State(
            self._messages.arrays,
            self._messages.segments,
            self._subscribers,
            self._buffers,
            self._probe,
            self._scratch,
            self._found_slots,
            self._found_scores,
            self._pending,
            self._counters,
            self._ticks,
        )

    def _fill(self, slots: Int32s, reason: int) -> Changes:
        most = int(self._subscribers.ks[slots].max(initial=1))
        if most > len(self._scratch.newest):
            self._scratch = self._scratch._replace(newest=np.empty(most, np.int64))
        self._messages.reserve(0, 0, self._n_words)
        if len(slots) * MESSAGES_PER_SEARCH > self.n_messages:
            self._messages.merge_segments()
        if self.n_threads == 1 or len(slots) < LEAST_SHARED:
            self._search(slots)
        else:
            parts = np.array_split(slots, self.n_threads)
            for part, filled in zip(parts, share(self._searched, parts), strict=True):
                self._take_runs(part, filled)
        self._chain(slots, reason)
        return self._take_output()

    def _search(self, slots: Int32s) -> None:
        """Fill the empty buffers of slots."""
        progress = np.zeros(N_PROGRESS, np.int64)
        self._run(lambda: topk_publish.fill(self._state(), self._rules, slots, progress))

    def _searched(self, slots: Int32s) -> Monitor:
        """Return a copy in which slots are filled, with entries and working memory of its own."""
        part = copy(self)
        part._buffers = without_entries(self._buffers)
        part._scratch = scratch_like(self._scratch)
        part._counters = np.zeros_like(self._counters)
        part._search(slots)
        return part

    def _take_runs(self, slots: Int32s, part: Monitor) -> None:
        """Take over the entries of slots from a copy in which they were filled."""
        self._take_entries(slots, part._buffers)
        self._counters += part._counters

    def _take_entries(self, slots: Int32s, filled: BufferArrays) -> None:
        progress = np.zeros(N_PROGRESS, np.int64)
        self._run(lambda: topk_publish.take_runs(self._buffers, filled, slots, progress))

    def _chain(self, slots: Int32s, reason: int) -> None:
        progress = np.zeros(N_PROGRESS, np.int64)
        self._run(
            lambda: topk_publish.chain_filled(self._state(), slots, reason, progress, self._output)
        )

    def _run(self, kernel: Callable[[], int]) -> None:
        run_until_done(kernel, self._make_room)

    def _make_room(self, status: int) -> None:
        if status == NEEDS_OUTPUT:
            self._output = larger_output(self._output)
        elif status == NEEDS_ENTRIES:
            self._buffers = with_entries(self._buffers)
        else:
            assert status == NEEDS_MORE
            self._scratch = scratch_like(self._scratch, times=2)

    def _pack_or_make_room(self, status: int) -> None:
        """Make room; for entries, which are all those of slots, by packing them.

        Else runs stay as large as their buffers ever were, and twice as much is held as is used.
        """
        if status == NEEDS_ENTRIES:
            self._pack(len(self._buffers.scores) // 5 + LEAST_SPARE)
        else:
            self._make_room(status)

    def _begin(self) -> None:
        """Forget what a call wrote that was interrupted."""
        self._output.length[0] = 0

    def _take_output(self) -> Changes:
        output = self._output
        n = int(output.length[0])
        taken = Changes._make(array[:n].copy() for array in output[1:])
        output.length[0] = 0
        if len(output.rows) > 1 << 20:
            self._output = new_output(LEAST_OUTPUT)
        return taken

    def _difference(self, slots: Int32s, before: Results, reason: int) -> Changes:
        """Return the changes from what slots held before to what they hold now."""
        parts = []
        for first in range(0, max(len(slots), 1), SLOTS_AT_ONCE):
            some = slots[first : first + SLOTS_AT_ONCE]
            then = before.part(first, first + len(some))
            part = difference(some, then, self.results(some), reason)
            parts.append(part._replace(rows=part.rows + np.int32(first)))
        return concat_changes(parts)

    # ---- saving -------------------------------------------------------------------------------

    def contents(self) -> Contents:
        """Return what is to be saved: everything."""
        n = self._n_slots
        facts = {
            "monitor": 1,
            "window": self._window,
            "duration_us": self._duration_us,
            "max_distance": self._max_distance,
            "dissemination": [self.dissemination.name, _plain(asdict(self.dissemination))],
            "reevaluation": [self.reevaluation.name, asdict(self.reevaluation)],
            "later_weight": self._later_weight,
        }
        groups: dict[str, tuple[Any, ...]] = {
            "messages": self._messages.arrays,
            "segments": self._messages.segments,
            "subscribers": first_subscribers(self._subscribers, n),
            "buffers": self._buffers,
            "rest": _Rest(self._is_alive[:n], self._weights, self._counters),
        }
        return Contents(facts, groups)

    @classmethod
    def open(cls, saved: Saved, *, n_threads: int = 1) -> Self:
        """Open a saved monitor by memory-mapping its arrays; changes stay in this process."""
        check_threads(n_threads)
        facts = saved.facts
        self = cls.__new__(cls)
        self.n_threads = n_threads
        name, parameters = facts["dissemination"]
        self.dissemination = DISSEMINATIONS[name](**parameters)
        name, parameters = facts["reevaluation"]
        self.reevaluation = REEVALUATIONS[name](**parameters)
        self._window = facts["window"]
        self._duration_us = facts["duration_us"]
        self._max_distance = facts["max_distance"]
        self._later_weight = facts["later_weight"]
        self._messages = Window.from_arrays(
            saved.group("messages", WindowArrays),
            saved.group("segments", SegmentArrays),
        )
        self._subscribers = saved.group("subscribers", Subscribers)
        self._buffers = saved.group("buffers", BufferArrays)
        rest = saved.group("rest", _Rest)
        self._is_alive, self._weights, self._counters = rest
        self._n_slots = len(self._is_alive)
        self._start()
        self._n_words = max(
            len(self._messages.segments.chain_heads),
            int(self._subscribers.tokens.max(initial=0)) + 1,
        )
        self._probe = self._probe._replace(weight_of=np.zeros(self._n_words, np.float32))
        most = int(self._subscribers.ks.max(initial=1))
        self._scratch = self._scratch._replace(
            newest=np.empty(max(most, 16), np.int64), positions=np.zeros(self._n_words, np.int32)
        )
        return self


class _Rest(NamedTuple):
    is_alive: npt.NDArray[np.bool_]
    weights: Float64s
    counters: Int64s


def _plain(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return parameters as JSON takes them."""
    return {
        name: sorted(value) if isinstance(value, frozenset) else value
        for name, value in parameters.items()
    }
