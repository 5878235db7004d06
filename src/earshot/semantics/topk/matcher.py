"""Top-k over a window as a semantics of the engine.

A subscription has words and a point, and holds the k best messages of the window: the last so many,
or those of the last so many minutes. Each event answers with what it changed: a message enters a
result (``+``) or leaves it (``-``). docs/semantics/topk.md says what the best are, and in which
order changes come.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from earshot.encoding import NO_TIME_US, EncodedMessages, Form
from earshot.model.arrays import CountedMessages, Float64s, Int32s, Int64s, PointArrays, Space
from earshot.model.batches import instant
from earshot.model.explanations import Explanation
from earshot.model.ranking import idf_weights
from earshot.model.topk import TopK
from earshot.semantics.contract import (
    Changes,
    Kept,
    Matcher,
    Question,
    Results,
    changes_by_row,
)
from earshot.semantics.topk import find_dissemination, find_reevaluation
from earshot.semantics.topk.contract import Dissemination
from earshot.semantics.topk.explanation import Asking, explain_entry
from earshot.semantics.topk.kernels.arrays import REASONS
from earshot.semantics.topk.kernels.arrays import Changes as MonitorChanges
from earshot.semantics.topk.monitor import Counters, Monitor
from earshot.semantics.topk.reevaluation import Reevaluation
from earshot.storage import Contents, Saved


@dataclass(frozen=True)
class TopkParameters:
    """Options of how results are kept.

    Attributes:
        dissemination: How messages find subscriptions; by default what the structure's name says.
        reevaluation: How results are kept full as messages leave; the same.
    """

    dissemination: Dissemination | None = None
    reevaluation: Reevaluation | None = None


class TopkMatcher(Matcher):
    """Keeps the best messages of a window for every subscription."""

    name = "topk"
    settings_type = TopK
    form: ClassVar[Form] = Form(
        "top-k over a window", frozenset({"k", "alpha"}), is_point=True, keeps_words=True
    )
    has_scores = True
    weighs_words_by = "messages"
    keeps_messages = True
    keeps_results = True
    reasons = REASONS

    def __init__(self, settings: TopK, space: Space, monitor: Monitor) -> None:
        self.settings = settings
        self.space = space
        self.monitor = monitor
        self._has_time = not isinstance(settings.window, int)
        self._has_ended = False  # whether a subscription has, since slots were last looked through

    # ---- life cycle ---------------------------------------------------------------------------

    @classmethod
    def example(cls) -> TopK:
        """Return settings to try the semantics with."""
        return TopK(window=10)

    @classmethod
    def create(
        cls,
        settings: TopK,
        *,
        structure: str | None,
        parameters: TopkParameters | None,
        space: Space,
        n_threads: int,
    ) -> Self:
        """Return a matcher with an empty window.

        ``structure`` names how messages find subscriptions and, after a plus, how results are kept
        full: ``igpt``, ``reach+kmax``.
        """
        find, _, refill = (structure or "").partition("+")
        given = parameters or TopkParameters()
        window = settings.window if isinstance(settings.window, int) else None
        monitor = Monitor(
            window=window,
            duration_us=settings.duration_us if window is None else None,
            max_distance=settings.distance_in(space),
            dissemination=given.dissemination or find_dissemination(find or None),
            reevaluation=given.reevaluation or find_reevaluation(refill or None),
            n_threads=n_threads,
        )
        return cls(settings, space, monitor)

    def contents(self) -> Contents:
        """Return what is to be saved: settings, and the monitor with the window's messages."""
        topk = self.settings
        facts = {
            "window": None if self._has_time else topk.window,
            "duration_us": topk.duration_us,
            "k": topk.k,
            "alpha": topk.alpha,
            "max_distance": topk.max_distance,
            "lateness_us": topk.lateness_us,
            "space": self.space,
        }
        return Contents(facts, {}, {"monitor": self.monitor.contents()})

    @classmethod
    def open(cls, saved: Saved, *, n_threads: int) -> Self:
        """Open what was saved; it goes on where that one was."""
        facts = saved.facts
        window = facts["window"]
        settings = TopK(
            timedelta(microseconds=facts["duration_us"]) if window is None else window,
            facts["k"],
            facts["alpha"],
            facts["max_distance"],
            timedelta(microseconds=facts["lateness_us"]),
        )
        monitor = Monitor.open(saved.inner("monitor"), n_threads=n_threads)
        return cls(settings, facts["space"], monitor)

    def rehearsal(self) -> TopkMatcher:
        """Return a matcher with the smallest window."""
        window = timedelta(seconds=1) if self._has_time else 1
        return TopkMatcher.create(
            replace(self.settings, window=window),
            structure=None,
            parameters=TopkParameters(self.monitor.dissemination, self.monitor.reevaluation),
            space=self.space,
            n_threads=1,
        )

    # ---- events -------------------------------------------------------------------------------

    def subscribe(self, asked: PointArrays) -> Changes:
        """Give the next slots these subscriptions, and fill them from the window."""
        before = self.monitor.counters
        changes = self.monitor.subscribe(
            asked.places,
            asked.token_offsets,
            asked.tokens,
            np.where(np.isnan(asked.alphas), self.settings.alpha, asked.alphas),
            np.where(asked.ks == 0, self.settings.k, asked.ks).astype(np.int32),
        )
        return self._changes(changes, len(asked.places), before)

    def unsubscribe(self, slots: Int32s) -> None:
        """End subscriptions; their results go without changes."""
        self._has_ended |= len(slots) > 0
        self.monitor.unsubscribe(slots)

    def move(self, slots: Int32s, places: Float64s) -> Changes:
        """Let subscriptions be at other points."""
        before = self.monitor.counters
        return self._changes(self.monitor.move(slots, places), len(slots), before)

    def publish(self, messages: CountedMessages) -> Changes:
        """Let messages arrive, each after what leaves the window before it."""
        before = self.monitor.counters
        return self._changes(self.monitor.publish(messages), len(messages.times), before)

    def timed(self, messages: CountedMessages, clocks_us: Int64s) -> CountedMessages:
        """Return messages in which those without a time have that of the clock they find."""
        if not self._has_time:
            return messages
        times = np.where(messages.times == NO_TIME_US, clocks_us, messages.times)
        return messages._replace(times=times)

    def refused_messages(
        self, encoded: EncodedMessages, clocks_us: Int64s
    ) -> Iterator[tuple[int, str]]:
        """Yield the messages that are too late for a window of time, or have no time for it."""
        if not self._has_time:
            return
        times, duration_us = encoded.times, self.settings.duration_us
        lateness_us = self.settings.lateness_us
        has_clock = clocks_us != NO_TIME_US
        clocks = np.where(has_clock, clocks_us, 0)
        happened = np.where(times == NO_TIME_US, clocks, times)
        is_late = happened < clocks - lateness_us
        is_over = happened <= clocks - duration_us
        for row in np.flatnonzero(is_late | is_over | ~has_clock).tolist():
            if not has_clock[row]:
                yield row, "is missing, and no event before had one; a window of time needs it"
                continue
            clock = int(clocks[row])
            time, at = (instant(int(each)).isoformat() for each in (happened[row], clock))
            if is_late[row]:
                bound = instant(clock - lateness_us).isoformat()
                yield (
                    row,
                    f"{time} is before {bound}: the clock is at {at}, and a message may be late by "
                    f"{timedelta(microseconds=lateness_us)}; allow more lateness or sort the "
                    f"messages",
                )
            else:
                bound = instant(clock - duration_us).isoformat()
                yield row, f"{time} is not after {bound}, where the window of {at} begins"

    def advance(self, clock_us: int) -> Changes:
        """Let the messages leave that a window of time leaves behind."""
        if not self._has_time:
            return self.no_changes(1)
        before = self.monitor.counters
        return self._changes(self.monitor.advance(clock_us), 1, before)

    def reweigh(self, n_tokens: int, frequencies: Int64s | None) -> Changes:
        """Weigh words by how rare they are among the messages counted, and rank results anew."""
        before = self.monitor.counters
        assert frequencies is not None  # the engine counts messages
        return self._changes(self.monitor.reweigh(*idf_weights(frequencies)), 1, before)

    def _changes(self, changes: MonitorChanges, n_rows: int, before: Counters) -> Changes:
        counters = Counters(*(np.array(self.monitor.counters) - before).tolist())
        return Changes(
            changes_by_row(changes.rows, n_rows),
            changes.slots,
            counters,
            changes.scores,
            changes.signs,
            changes.reasons,
            changes.sequences,
        )

    def no_changes(self, n_rows: int) -> Changes:
        """Return that so many event rows changed nothing."""
        nothing, counters = np.empty(0, np.int8), Counters(*[0] * len(Counters._fields))
        return Changes(
            np.zeros(n_rows + 1, np.int64), np.empty(0, np.int32), counters, np.empty(0),
            nothing, nothing, np.empty(0, np.int64),
        )  # fmt: skip

    # ---- slots --------------------------------------------------------------------------------

    @property
    def n_subscriptions(self) -> int:
        """Live subscriptions."""
        return self.monitor.n_subscriptions

    def settle(self) -> Kept | None:
        """Number the slots anew where many are dead."""
        if not self._has_ended:  # to look for dead ones takes as long as there are slots
            return None
        self._has_ended = False
        kept = self.monitor.compacted()
        return None if kept is None else Kept(kept)

    def used_tokens(self, n_tokens: int) -> npt.NDArray[np.bool_]:
        """Return which tokens the subscriptions and the window have, or have their own weight."""
        return self.monitor.used_tokens(n_tokens)

    def clear_up(self, tokens: Int32s | None) -> None:
        """Pack the buffers, and forget all tokens but these."""
        self.monitor.clear_up(tokens)

    # ---- questions ----------------------------------------------------------------------------

    @property
    def structure(self) -> str:
        """How messages find subscriptions and results are kept full, by name."""
        return f"{self.monitor.dissemination.name}+{self.monitor.reevaluation.name}"

    @property
    def first_sequence(self) -> int:
        """Sequence before which no message is in the window."""
        return self.monitor.first_sequence

    @property
    def n_messages(self) -> int:
        """Messages in the window."""
        return self.monitor.n_messages

    def results(self, slots: Int32s) -> Results:
        """Return the best messages of the slots."""
        return Results(*self.monitor.results(slots))

    def explain(self, question: Question) -> Explanation:
        """Say in words what a message would score, and whether it would enter.

        That is, whether it is sure to be among the best if it were published now. Where that
        depends on what else is in the window, because messages leave before it arrives, it is not,
        and the last reason says so. In a window of time it is compared with the results as they
        are now.
        """
        monitor, slot = self.monitor, question.slot
        found = monitor.results(np.array([slot], np.int32))
        n_leaving: int | None = None
        if not self._has_time:
            is_full = monitor.n_messages == self.settings.window
            oldest = monitor.next_sequence - monitor.n_messages
            n_leaving = int((found.sequences == oldest).sum()) if is_full else 0
        elif not question.is_clock_moved:
            n_leaving = 0
        asking = monitor.subscribers
        first, last = asking.token_offsets[slot : slot + 2]
        time_us = int(question.encoded.times[0])
        return explain_entry(
            question,
            asking=Asking(
                asking.tokens[first:last],
                asking.places[slot],
                float(asking.alphas[slot]),
                int(asking.ks[slot]),
            ),
            weights=monitor.word_weights(len(question.vocabulary)),
            max_distance=self.settings.distance_in(self.space),
            unit=" m" if self.space == "lonlat" else "",
            scores=found.scores.tolist(),
            n_leaving=n_leaving,
            is_latest=not self._has_time or time_us in (NO_TIME_US, question.clock_us),
        )

    def facts(self) -> dict[str, Any]:
        """Return what there is to know of the window."""
        return {"n_messages": self.n_messages, "n_buffered": self.monitor.n_buffered}

    def memory(self) -> dict[str, int]:
        """Return the bytes of memory by part."""
        return self.monitor.memory()

    @property
    def arrays(self) -> tuple[Any, ...]:
        """None: publishing touches few of them."""
        return ()
