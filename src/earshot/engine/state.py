"""The parts of an engine, and how they change together.

The matcher knows slots, the tables of ids know which subscription or message is meant, expiry knows
when slots end, and the clock what time it is. Every method here leaves them in agreement, or is
interrupted; the engine locks, checks what comes in, and says so where that happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import pyarrow as pa

from earshot import storage
from earshot.encoding import NO_TIME_US, EncodedMessages, EncodedSubscriptions, encode_messages
from earshot.encoding.columns import Bools
from earshot.engine.expiry import Expiry, ExpiryArrays
from earshot.engine.ids import IdArrays, Ids, IdTable
from earshot.engine.message_ids import MessageIdArrays, MessageIds
from earshot.engine.updates import Updates
from earshot.errors import InvalidRow, SavedIndexError, raise_first
from earshot.kernels.answers import keep_unexpired
from earshot.model.arrays import (
    EVERYWHERE_TOKEN,
    AnchoredRegions,
    Int32s,
    Int64s,
    Order,
    Reports,
    take_messages,
    take_places,
)
from earshot.model.batches import id_array, instant, message_batch
from earshot.model.explanations import Explanation
from earshot.model.messages import Message
from earshot.model.ranking import WordCounts
from earshot.model.schemas import id_kind
from earshot.model.subscriptions import Id
from earshot.semantics import SEMANTICS
from earshot.semantics.contract import (
    FORGET_LEAST,
    Changes,
    Kept,
    Matcher,
    Question,
    Rebuild,
    chosen_changes,
    joined_changes,
    kept_tokens,
)
from earshot.text import Analyzer, TokenLists, Vocabulary
from earshot.text.vocabulary import VocabularyArrays

_IDS_LEAST = 8192
"""Ids of messages that are kept, whether these are gone or not."""
_NO_SCORES = np.empty(0, np.float64)


def reports_of(regions: AnchoredRegions, times_us: Int64s, clocks_us: Int64s) -> Reports:
    """Return reports in which those without a time have that of the clock they find."""
    return Reports(regions, np.where(times_us == NO_TIME_US, clocks_us, times_us), clocks_us)


class State:
    """What an engine knows."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher  # the semantics at work
        # Counts the subscriptions that ask for each word or, where the semantics keeps messages,
        # the messages that have it.
        self.vocabulary = Vocabulary()
        self.ids = IdTable()  # subscriptions by slot, and slots by subscription
        self.message_ids = MessageIds()  # those that the semantics keeps, by sequence
        self.expiry = Expiry()
        self.clock_us = NO_TIME_US  # latest time of any event
        self.has_learned = False  # whether words were counted by learning, and not weighed since
        self._n_words_enough = FORGET_LEAST

    # ---- events -------------------------------------------------------------------------------

    def subscribe(self, encoded: EncodedSubscriptions) -> Changes:
        """Add subscriptions in the next slots."""
        first, matcher = len(self.ids), self.matcher
        self.ids.append(encoded.ids)
        changes = matcher.subscribe(encoded.asked)
        if not matcher.keeps_messages:
            tokens = encoded.asked.token_ids
            self._count_words(tokens[tokens > EVERYWHERE_TOKEN])
        self.expiry.append(first, encoded.expires)
        if self.expiry.is_due(self.clock_us):
            # Those that ended before they came get no results.
            is_live = encoded.expires[changes.slots - first] > self.clock_us
            changes = chosen_changes(changes, is_live)
            self._end_expired(self.clock_us)
        return changes

    def unsubscribe(self, slots: Int32s) -> None:
        """End subscriptions; the caller settles when nothing names their slots any more."""
        self.matcher.unsubscribe(slots)
        self.ids.forget(slots)
        self.expiry.forget(slots)

    def live_events(self, ends_us: Int64s, times_us: Int64s) -> tuple[Bools, Int64s]:
        """Return which events find their subscription live, and the clock that each of them finds.

        The others do not move the clock.

        Args:
            ends_us: When the subscription of each ends.
            times_us: When each happens.
        """
        clocks_us = np.maximum.accumulate(np.maximum(times_us, self.clock_us))
        is_live = ends_us > clocks_us
        if is_live.all():
            return is_live, clocks_us
        clock_us = self.clock_us
        for row, (time_us, end_us) in enumerate(
            zip(times_us.tolist(), ends_us.tolist(), strict=True)
        ):
            is_live[row] = end_us > max(time_us, clock_us)
            if is_live[row]:
                clock_us = max(time_us, clock_us)
            clocks_us[row] = clock_us
        return is_live, clocks_us[is_live]

    def move(self, slots: Int32s, ids: Ids, places: Any) -> Changes:
        """Let subscriptions be elsewhere."""
        if isinstance(places, Reports):
            parts = [
                self.matcher.move(slots[part], take_places(places, part))
                for part in self._spans(places.clocks)
            ]
            return joined_changes(parts) if parts else self.matcher.no_changes(0)
        changes = self.matcher.move(slots, places)
        if self.matcher.moves_to_new_slots:
            ends_us, first = self.expiry.of(slots), len(self.ids)
            self.ids.forget(slots)
            self.expiry.forget(slots)
            self.ids.append(ids)
            self.expiry.append(first, ends_us)
        return changes

    def match(self, encoded: EncodedMessages, clocks_us: Int64s) -> Changes:
        """Match each message as of its own clock, with a semantics that keeps none."""
        found = self.matcher.publish(encoded.messages)
        ends_us = self.expiry.times_us
        if ends_us is None or not len(clocks_us):
            return found
        scores = _NO_SCORES if found.scores is None else found.scores
        offsets, slots, kept_scores = keep_unexpired(
            found.offsets, found.slots, scores, ends_us, clocks_us
        )
        counters = found.counters
        if "answers" in counters._fields:
            counters = counters._replace(answers=len(slots))
        return found._replace(
            offsets=offsets,
            slots=slots,
            counters=counters,
            scores=None if found.scores is None else kept_scores,
        )

    def publish(self, encoded: EncodedMessages, clocks_us: Int64s) -> Changes:
        """Publish messages that are kept, each of which finds its own clock."""
        matcher, n = self.matcher, len(encoded.ids)
        messages = matcher.timed(encoded.messages, clocks_us)
        parts = []
        for span in self._spans(clocks_us):
            part = messages if len(span) == n else take_messages(messages, span)
            parts.append(matcher.publish(part))
            self.message_ids.append(encoded.ids.slice(int(span[0]), len(span)))
        self.count_messages(encoded)
        return joined_changes(parts) if parts else matcher.no_changes(0)

    def take(
        self, slots: Int32s, places: Reports, encoded: EncodedMessages, order: Order
    ) -> Changes:
        """Let subscriptions move and messages be published, in one order."""
        matcher = self.matcher
        messages = matcher.timed(encoded.messages, order.clocks[order.arrivals])
        parts = []
        for span in self._spans(order.clocks):
            first, stop = int(span[0]), int(span[-1]) + 1
            moves, arrivals = (
                np.arange(*np.searchsorted(each, (first, stop)))
                for each in (order.moves, order.arrivals)
            )
            of_span = Order(
                order.clocks[span], order.moves[moves] - first, order.arrivals[arrivals] - first
            )
            parts.append(
                matcher.take(
                    slots[moves], take_places(places, moves), take_messages(messages, arrivals),
                    of_span,
                )
            )  # fmt: skip
            if len(arrivals):
                self.message_ids.append(encoded.ids.slice(int(arrivals[0]), len(arrivals)))
        self.count_messages(encoded)
        return joined_changes(parts) if parts else matcher.no_changes(0)

    def _spans(self, clocks_us: Int64s) -> Iterator[Int64s]:
        """Yield the rows up to each that finds another subscription at its end, and end that."""
        n, start = len(clocks_us), 0
        while start < n:
            self._end_expired(int(clocks_us[start]))
            next_us = self.expiry.next_us
            stop = n if next_us is None else int(np.searchsorted(clocks_us, next_us))
            yield np.arange(start, stop)
            self.clock_us = int(clocks_us[stop - 1])
            start = stop

    def advance(self, clock_us: int) -> Changes:
        """Let time pass: subscriptions end, then messages leave."""
        if clock_us <= self.clock_us:
            return self.matcher.no_changes(1)
        self._end_expired(clock_us)
        changes = self.matcher.advance(clock_us)
        self.clock_us = clock_us
        return changes

    def reweigh(self, *, forget: bool, counts: WordCounts | None = None) -> Changes:
        """Weigh words anew, by counts where some are given; ``forget`` them afterwards."""
        frequencies = None
        if self.matcher.weighs_words_by != "subscriptions":
            frequencies = self.vocabulary.frequencies
        elif counts is not None:
            tokens = self.vocabulary.add(counts.words)
            frequencies = np.zeros(len(self.vocabulary), np.int64)
            frequencies[tokens] = counts.counts
            frequencies[EVERYWHERE_TOKEN] = counts.n_subscriptions
        changes = self.matcher.reweigh(len(self.vocabulary), frequencies)
        self.has_learned = False
        if forget:
            words = self.vocabulary.arrays
            nothing = np.zeros_like(words.frequencies)
            self.vocabulary = Vocabulary.from_arrays(words._replace(frequencies=nothing))
        return changes

    def word_counts(self, clock_us: int) -> WordCounts:
        """Return how many subscriptions that live at a clock ask for each word."""
        frequencies = self.matcher.frequencies(
            len(self.vocabulary), lambda slots: self.expiry.of(slots) > clock_us
        )
        n, frequencies[EVERYWHERE_TOKEN] = int(frequencies[EVERYWHERE_TOKEN]), 0
        tokens = np.flatnonzero(frequencies)
        return WordCounts(n, self.vocabulary.tokens(tokens), frequencies[tokens])

    def learn(self, encoded: EncodedMessages) -> None:
        """Count the words of messages, which are kept until they are weighed."""
        self.has_learned = True
        self.count_messages(encoded)

    def count_messages(self, encoded: EncodedMessages) -> None:
        """Count the words of messages; the token that every message has counts the messages."""
        tokens = encoded.messages.tokens
        everywhere = np.full(len(encoded.ids), EVERYWHERE_TOKEN, np.int32)
        self._count_words(np.concatenate([tokens[tokens > EVERYWHERE_TOKEN], everywhere]))

    def updates(
        self,
        changes: Changes,
        event_ids: Ids = (),
        rejects: list[InvalidRow] | None = None,
        times_us: Int64s | None = None,
    ) -> Updates:
        """Give changes their ids, before messages that are gone are forgotten.

        Args:
            changes: What happened.
            event_ids: Ids of the rows that caused it.
            rejects: Rows that were refused.
            times_us: Times of the rows, for a publication; else the clock is that of all.
        """
        message_ids: Ids | None = None
        if changes.sequences is not None:
            message_ids = self.message_ids.ids_of(changes.sequences)
            self._forget_messages()
        elif times_us is None:  # only a publication has messages of its own
            message_ids = ()
        if times_us is None:
            times_us = np.full(len(changes.offsets) - 1, self.clock_us, np.int64)
        return Updates(
            event_ids, rejects or [], changes, self.ids, self.matcher.reasons, times_us, message_ids
        )

    def _forget_messages(self) -> None:
        """Forget the ids of messages that are gone, where they are all or most of those before."""
        self.message_ids.forget_before(self.matcher.first_sequence)
        if len(self.message_ids) > max(_IDS_LEAST, 2 * self.matcher.n_messages):
            sequences = self.matcher.sequences()
            if sequences is not None:
                self.message_ids.keep(sequences)

    def _end_expired(self, clock_us: int) -> None:
        if self.expiry.is_due(clock_us):
            self.unsubscribe(self.expiry.pop_until(clock_us))

    def _count_words(self, tokens: Int32s) -> None:
        self.vocabulary.add_documents(TokenLists(np.array([0, len(tokens)], np.int64), tokens))

    # ---- ids ----------------------------------------------------------------------------------

    def expect_ids(self, id_type: pa.DataType) -> None:
        """Make ready for subscriptions' ids: where there is none they may be of either kind."""
        kind = id_kind(id_type)
        if None in (kind, self.ids.kind) or kind == self.ids.kind:
            return
        if self.matcher.n_subscriptions == 0:
            self.ids = IdTable.without_ids(kind, len(self.ids))

    def expect_message_ids(self, ids: pa.Array) -> None:
        """Make ready for messages' ids, in the same way; refuse those of another kind."""
        if len(ids) and self.matcher.n_messages == 0:
            self.message_ids = MessageIds(None, self.message_ids.next)
        self.message_ids.check_kind(ids)

    # ---- questions ----------------------------------------------------------------------------

    def results_table(self, ids: pa.Array | None) -> pa.Table:
        """Return the results of subscriptions, of all for None, with the rank of each."""
        slots = self.ids.live_slots() if ids is None else self.ids.slots_of(ids)
        found = self.matcher.results(slots)
        counts = np.diff(found.offsets)
        ranks = np.arange(len(found.sequences)) - np.repeat(found.offsets[:-1], counts) + 1
        return pa.table(
            {
                "subscription_id": self.ids.ids_of(np.repeat(slots, counts)),
                "rank": pa.array(ranks.astype(np.int32)),
                "message_id": self.message_ids.ids_of(found.sequences),
                "score": pa.nulls(len(ranks), pa.float64())
                if found.scores is None
                else pa.array(found.scores),
            }
        )

    def explain(self, message: Message, subscription_id: Id, analyzer: Analyzer) -> Explanation:
        """Say in words why a message would be delivered now, or why not."""
        matcher = self.matcher
        slots = self.ids.slots_of(id_array([subscription_id]))
        # A copy may grow: words that nobody has named yet can count in a message's length.
        vocabulary = self.vocabulary.copy() if matcher.form.keeps_words else self.vocabulary
        encoded = encode_messages(
            message_batch([message]), analyzer, vocabulary, matcher.space, form=matcher.form
        )
        raise_first(encoded.rejects)
        clocks_us = np.maximum(encoded.times, self.clock_us)
        clock_us, ends_us = int(clocks_us[0]), int(self.expiry.of(slots)[0])
        hindrances = [
            f"the message's time {reason}"
            for _, reason in matcher.refused_messages(encoded, clocks_us)
        ]
        if ends_us <= clock_us:
            hindrances.append(f"the subscription expired at {instant(ends_us).isoformat()}")
        question = Question(
            message, subscription_id, int(slots[0]), encoded, vocabulary, clock_us,
            clock_us != self.clock_us, hindrances,
        )  # fmt: skip
        return matcher.explain(question)

    # ---- slots --------------------------------------------------------------------------------

    def renumber(self, kept: Kept, ids: IdTable | None = None) -> None:
        """Follow the matcher to other numbers; ``ids`` are those of the slots, if known already."""
        self.ids = self.ids.renumbered(kept.slots) if ids is None else ids
        self.expiry.renumber(kept.slots)
        if kept.tokens is not None:
            self.vocabulary = self.vocabulary.only(kept.tokens)

    def take_over(self, rebuild: Rebuild, ids: IdTable) -> None:
        """Use what was rebuilt, unless it is out of date; ``ids`` are those of its slots."""
        since = self.matcher.take_over(rebuild)
        if since is None:
            return
        removed, kept = since
        if ids.kind == self.ids.kind:
            ids.forget(removed)
        else:  # all that were in the rebuild have ended, and others came
            ids = IdTable.without_ids(self.ids.kind, len(ids))
        ids.append(self.ids.ids_of(kept.slots[len(rebuild.old_slots) :]))
        self.renumber(kept, ids)

    def clear_up(self) -> None:
        """Give back what is not in use, for a matcher that keeps messages.

        Words that are left keep their order, and so every sum its bits. One that comes back is new:
        its number is the next, and it has been counted 0 times.
        """
        tokens = self._kept_words()
        self.matcher.clear_up(tokens)
        if tokens is not None:
            self.vocabulary = self.vocabulary.only(tokens)

    @property
    def is_cluttered(self) -> bool:
        """Whether there are many words, and most are not in use."""
        return len(self.vocabulary) > self._n_words_enough and self._kept_words() is not None

    def _kept_words(self) -> Int32s | None:
        if self.has_learned:  # the next reweighing needs all of them
            return None
        is_used = self.matcher.used_tokens(len(self.vocabulary))
        # To look takes as long as there are words of subscriptions and messages.
        self._n_words_enough = max(FORGET_LEAST, 3 * int(np.count_nonzero(is_used)))
        return kept_tokens(is_used)

    # ---- saving -------------------------------------------------------------------------------

    def contents(self, facts: dict[str, Any]) -> storage.Contents:
        """Return what is to be saved: everything, with what else there is to remember."""
        own = {
            "engine": self.matcher.name,
            "id_kind": self.ids.kind,
            "message_id_kind": self.message_ids.kind,
            "next_message": self.message_ids.next,
            "clock_us": self.clock_us,
            "has_learned": self.has_learned,
        }
        groups = {
            "vocabulary": self.vocabulary.arrays,
            "ids": self.ids.arrays,
            "expiry": self.expiry.arrays,
            "message_ids": self.message_ids.arrays,
        }
        inner = {"matcher": self.matcher.contents()}
        return storage.Contents(own | facts, groups, inner)

    @classmethod
    def open(cls, saved: storage.Saved, *, n_threads: int) -> tuple[Self, dict[str, Any]]:
        """Open what was saved by memory-mapping its arrays; return it with all facts."""
        facts = saved.facts
        semantics = SEMANTICS.get(facts.get("engine", ""))
        if semantics is None:
            raise SavedIndexError(
                f"{saved.where} does not hold an engine of {', '.join(SEMANTICS)}; make it with "
                f"'save'"
            )
        self = cls(semantics.open(saved.inner("matcher"), n_threads=n_threads))
        self.vocabulary = Vocabulary.from_arrays(saved.group("vocabulary", VocabularyArrays))
        self.ids = IdTable(facts["id_kind"], saved.group("ids", IdArrays))
        self.message_ids = MessageIds(
            facts["message_id_kind"],
            facts["next_message"],
            saved.group("message_ids", MessageIdArrays),
        )
        self.expiry = Expiry(saved.group("expiry", ExpiryArrays))
        self.clock_us = facts["clock_us"]
        self.has_learned = facts["has_learned"]
        return self, facts
