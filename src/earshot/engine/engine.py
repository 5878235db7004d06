"""The engine: events in, updates out.

Subscriptions come, go and move, messages are published, and every event gives the updates that it
causes. Changes take effect before the next message. Calls come one at a time or in batches, and
from any thread: the engine serialises them.

What a delivery means is the *semantics*, an argument of the engine. The engine owns what all
semantics share: ids, words, the clock, expiry, the lock, rejected rows, saving and opening. The
semantics is at work in a :class:`~earshot.semantics.contract.Matcher`.

**Time** is event time. The clock is the latest time that any event has carried; it never goes back.
A subscription with an expiry is live for messages that find the clock before it. When the clock
moves, subscriptions end first; then messages leave, where the semantics keeps them.

**Interrupted calls.** A call that is interrupted while it changes the engine (Ctrl-C, no memory
left) leaves it unusable, and later calls say so. One that only matches can be interrupted freely.
"""

from __future__ import annotations

from contextlib import nullcontext
from datetime import datetime
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from earshot import storage
from earshot.encoding import (
    NO_TIME_US,
    EncodedMessages,
    encode_messages,
    encode_moves,
    encode_subscriptions,
    row_numbers,
    take_encoded,
)
from earshot.engine import rehearsal
from earshot.engine.durable import Batch
from earshot.engine.guard import Guard
from earshot.engine.ids import Ids, IdTable, as_array
from earshot.engine.journal import Journal, Record
from earshot.engine.mixed_batches import MixedBatches
from earshot.engine.processing import Processing
from earshot.engine.questions import Questions
from earshot.engine.rebuilding import Background
from earshot.engine.rejects import OnError, by_name, by_row, check_on_error, unknown_rows
from earshot.engine.single_calls import SingleCalls
from earshot.engine.state import State, reports_of
from earshot.engine.updates import Updates
from earshot.errors import (
    DuplicateSubscription,
    InvalidInput,
    InvalidParameter,
    InvalidRow,
    LateRow,
    described,
    raise_first,
)
from earshot.model.arrays import Int32s, Int64s, Reports, Space, take_places
from earshot.model.batches import (
    check_kind,
    checked_id_array,
    id_array,
    message_batch,
    region_batch,
    subscription_batch,
    time_us,
)
from earshot.model.boolean import Boolean
from earshot.model.events import Move
from earshot.model.messages import Message
from earshot.model.ranking import WordCounts
from earshot.model.regions import RegionOrPoint as Region
from earshot.model.subscriptions import Id, Subscription, check_time, checked_id
from earshot.semantics import matcher_type
from earshot.semantics.contract import Changes, Kept, Rebuild
from earshot.text import Analyzer


class Engine(SingleCalls, Questions, MixedBatches, Processing):
    """Matches messages with subscriptions.

    Every call returns :class:`~earshot.engine.updates.Updates`. Batches are all or nothing: with
    ``on_error="raise"`` the first wrong row is raised before anything happens; with ``"reject"``
    the good rows are taken and the others are returned as ``rejects``.

    Args:
        semantics: What a delivery means: ``Ranking(...)``, ``TopK(...)``, ``Moving(...)``, or None
            for boolean matching.
        structure: Name of the index structure; by default the fastest for the semantics.
        parameters: Options of that structure.
        space: ``lonlat`` (degrees, radii in metres) or ``planar`` (any unit).
        analyzer: How text and keywords become tokens.
        n_threads: Threads that work on a batch.
        rebuild_in_background: Whether many changes start a rebuild of the index by themselves,
            and many words that nothing uses are forgotten.
    """

    def __init__(
        self,
        semantics: Any = None,
        *,
        structure: str | None = None,
        parameters: Any = None,
        space: Space = "lonlat",
        analyzer: Analyzer | None = None,
        n_threads: int = 1,
        rebuild_in_background: bool = True,
    ) -> None:
        if not isinstance(space, str) or space not in get_args(Space):
            raise InvalidParameter(f"space is {described(space)}; expected 'lonlat' or 'planar'")
        if not isinstance(structure, str | None):
            raise InvalidParameter(f"structure is {described(structure)}; expected a name")
        if not isinstance(analyzer, Analyzer | None):
            raise InvalidParameter(f"analyzer is {described(analyzer)}; expected an Analyzer")
        matcher = matcher_type(semantics).create(
            Boolean() if semantics is None else semantics,
            structure=structure,
            parameters=parameters,
            space=space,
            n_threads=n_threads,
        )
        self._start(State(matcher), analyzer or Analyzer(), rebuild_in_background)

    def _start(self, state: State, analyzer: Analyzer, rebuild_in_background: bool) -> None:
        self.analyzer = analyzer
        self.rebuild_in_background = rebuild_in_background
        self._state = state
        self._journal: Journal | None = None
        self._lock = Guard(on_leave=self._commit)
        self._background = Background()

    # ---- events, one at a time or a few -------------------------------------------------------

    def subscribe(self, *subscriptions: Subscription) -> Updates:
        """Add subscriptions, whose ids must be new; return their first results, if any."""
        check_kind(subscriptions, Subscription, "subscribe")
        with self._lock:
            updates = self._subscribe_one(*subscriptions) if len(subscriptions) == 1 else None
            if updates is not None:
                return updates
            ids = id_array([each.id for each in subscriptions])
            taken = self.contains_batch(ids)
            if taken.any():
                raise DuplicateSubscription(
                    f"subscription {ids[int(taken.argmax())].as_py()!r} exists already; "
                    f"unsubscribe it first or choose another id"
                )
            return self.subscribe_batch(subscription_batch(subscriptions))

    def unsubscribe(self, *ids: Id) -> Updates:
        """End subscriptions; their results go without updates."""
        updates = self._unsubscribe_one(*ids) if len(ids) == 1 else None
        if updates is not None:
            return updates
        with by_name():
            given = [checked_id(each, "subscription") for each in ids]
            return self.unsubscribe_batch(id_array(given))

    def move(self, subscription_id: Id, region: Region, time: datetime | None = None) -> Updates:
        """Let a subscription listen elsewhere; what else it asks for stays.

        Args:
            subscription_id: Whom.
            region: Where to. For a moving subscriber, a point is its position: its region follows.
            time: When it was there, for a moving subscriber. A position that is older than the last
                one is wrong.
        """
        event = Move(subscription_id, region, time)  # which checks them
        has_positions = self._state.matcher.form.moves_by_position
        if time is not None and not has_positions:
            raise InvalidInput(
                f"move {event.id!r}: a time is for moving subscribers, Engine(Moving(...)); "
                f"advance the clock instead"
            )
        updates = self._move_one(event)
        if updates is not None:
            return updates
        with by_name():
            batch = region_batch(
                [event.id], [event.region], [event.time], has_positions=has_positions
            )
            return self.move_batch(batch)

    def publish(self, *messages: Message) -> Updates:
        """Publish messages in this order."""
        check_kind(messages, Message, "publish")
        updates = self._publish_one(*messages) if len(messages) == 1 else None
        if updates is not None:
            return updates
        return self.publish_batch(message_batch(messages))

    def advance(self, time: datetime) -> Updates:
        """Set the clock to ``time`` if that is later; subscriptions may end, messages leave."""
        if time is None:
            raise InvalidInput("time is None; expected a datetime with a time zone")
        check_time(time, "time")
        with self._lock:
            with self._lock.change():
                updates = self._state.updates(self._advance(time_us(time)))
            self._settle()
            return updates

    def reweigh(self, *, forget: bool = False, counts: WordCounts | None = None) -> Updates:
        """Weigh words by how rare they are; for semantics that weigh words.

        A word that n of N have weighs ``ln((N + 1) / (n + 1)) + 1``, and so does one that comes
        later, with n = 0. N are the subscriptions there are now for ranked matching, the messages
        counted so far for top-k over a window: those that were published, and those of
        :meth:`learn`. Before the first call all words weigh 1. Nothing else changes a weight.

        Args:
            forget: Count messages from 0 again afterwards. For messages that were learned from and
                are published as well, so that they do not count twice in the next reweighing.
            counts: What counts instead of the subscriptions that are here, for an engine that has
                some of many; see :meth:`word_counts`. A journal does not record them.
        """
        with self._lock:
            matcher = self._state.matcher
            counts_messages = matcher.weighs_words_by == "messages"
            if forget and not counts_messages:
                raise InvalidInput(f"{matcher.form.noun} counts no messages to forget")
            if counts is not None and (counts_messages or self._journal is not None):
                raise InvalidInput(
                    "counts are for words that are weighed by subscriptions, in an engine without "
                    "a journal; leave them out"
                )
            # Else a structure is built beside the one in use: its failure leaves nothing half done.
            with self._lock.change() if counts_messages else nullcontext():
                updates = self._state.updates(self._state.reweigh(forget=forget, counts=counts))
            with self._lock.change():
                self._note(Record("reweigh", argument=forget))
            self._settle()
            return updates

    # ---- events in batches --------------------------------------------------------------------

    def subscribe_batch(
        self,
        batch: Batch,
        *,
        on_error: OnError = "raise",
        source: str = "",
        first_row: int = 0,
        rows: Int64s | None = None,
    ) -> Updates:
        """Add a batch of subscriptions.

        Args:
            batch: Columns of :data:`earshot.model.schemas.SUBSCRIPTIONS`.
            on_error: ``raise`` the first wrong row before anything happens, or ``reject``: take the
                good rows and return the others with their reasons.
            source: Where the rows came from, for errors.
            first_row: Number of the first row there.
            rows: Number of each row there, where they do not follow one another.
        """
        with self._lock:
            check_on_error(on_error)
            n_words = len(self._state.vocabulary)
            if isinstance(batch, Batch) and "id" in batch.schema.names:
                self._state.expect_ids(batch.schema.field("id").type)
            with self._lock.change(unless=Exception):  # the vocabulary grows; errors come before it
                encoded = encode_subscriptions(
                    batch, self.analyzer, self._state.vocabulary, self.space,
                    form=self._state.matcher.form, source=source, first_row=first_row, rows=rows,
                    is_taken=self._state.ids.contains,
                )  # fmt: skip
            if on_error == "raise":
                self._refuse(encoded.rejects, "subscribe", batch, n_words)
            with self._lock.change():
                changes = self._state.subscribe(encoded)
                self._note_batch("subscribe", batch, encoded.rejects)
                return self._state.updates(changes, encoded.ids, encoded.rejects)

    def unsubscribe_batch(
        self,
        ids: pa.Array,
        *,
        on_error: OnError = "raise",
        source: str = "",
        first_row: int = 0,
        rows: Int64s | None = None,
    ) -> Updates:
        """End subscriptions, as one after the other: one that is named again is gone by then.

        The arguments are as for :meth:`subscribe_batch`.
        """
        ids = checked_id_array(ids)
        with self._lock:
            check_on_error(on_error)
            self._tidy_up()
            known = np.flatnonzero(self.contains_batch(ids))
            slots, firsts = np.unique(
                self._state.ids.slots_of(ids.take(pa.array(known))), return_index=True
            )
            known = known[np.sort(firsts)]
            unknown = np.delete(np.arange(len(ids)), known)
            numbers = row_numbers(len(ids), first_row, rows)
            rejects = unknown_rows(ids, unknown, numbers, source)
            if on_error == "raise":
                raise_first(rejects)
            ended = ids.take(pa.array(known))
            return self._end(slots, ended, rejects)

    def move_batch(
        self,
        batch: Batch,
        *,
        on_error: OnError = "raise",
        source: str = "",
        first_row: int = 0,
        rows: Int64s | None = None,
    ) -> Updates:
        """Move subscriptions: ``id`` and region of each, in the columns of subscriptions.

        A subscription moves once in a batch: of several rows with its id the first good one counts,
        and the others are wrong. Moving subscribers report positions, ``x`` and ``y`` without a
        radius, and the ``time`` of each; they may do so several times, and rows count in their
        order. The other arguments are as for :meth:`subscribe_batch`.
        """
        with self._lock:
            check_on_error(on_error)
            self._settle()
            matcher = self._state.matcher
            encoded = encode_moves(
                batch, self.space, form=matcher.form, source=source, first_row=first_row, rows=rows
            )
            rejects, places = encoded.rejects, encoded.places
            chosen = np.arange(len(encoded.ids))
            slots = self._state.ids.known_slots(encoded.ids)
            if slots is None:
                known = self.contains_batch(encoded.ids)
                rejects = rejects + unknown_rows(
                    encoded.ids, np.flatnonzero(~known), encoded.rows, source
                )
                chosen = np.flatnonzero(known)
                slots = self._state.ids.slots_of(encoded.ids.take(pa.array(chosen)))
                places = take_places(places, chosen)
            wrong = list(matcher.refused_moves(slots, places))
            if wrong:
                rejects = rejects + [
                    InvalidRow(source, int(encoded.rows[chosen[at]]), field, reason)
                    for at, field, reason in wrong
                ]
                good = np.delete(np.arange(len(slots)), [at for at, _, _ in wrong])
                chosen, slots, places = chosen[good], slots[good], take_places(places, good)
            if matcher.form.moves_by_position:  # what is refused so far does not move the clock
                is_live, clocks_us = self._state.live_events(
                    self._state.expiry.of(slots), encoded.times[chosen]
                )
                if not is_live.all():
                    ended = chosen[~is_live]
                    rejects = rejects + unknown_rows(encoded.ids, ended, encoded.rows, source)
                    chosen, slots = chosen[is_live], slots[is_live]
                    places = take_places(places, np.flatnonzero(is_live))
                places = reports_of(places, encoded.times[chosen], clocks_us)
                late = list(matcher.late_reports(slots, places))
                if late:
                    rejects = rejects + [
                        LateRow(source, int(encoded.rows[chosen[at]]), "time", reason)
                        for at, reason in late
                    ]
                    good = np.delete(np.arange(len(slots)), [at for at, _ in late])
                    chosen, slots, places = chosen[good], slots[good], take_places(places, good)
            rejects = by_row(rejects)
            if on_error == "raise":
                raise_first(rejects)
            moved = encoded.ids.take(pa.array(chosen))
            with self._lock.change():
                changes = self._state.move(slots, moved, places)
                self._note_batch("move", batch, rejects)
                times_us = places.clocks if isinstance(places, Reports) else None
                updates = self._state.updates(changes, moved, rejects, times_us)
            if times_us is not None:
                self._settle()
            return updates

    def publish_batch(
        self,
        batch: Batch,
        *,
        on_error: OnError = "raise",
        source: str = "",
        first_row: int = 0,
        rows: Int64s | None = None,
    ) -> Updates:
        """Publish a batch of messages in their order.

        The columns are those of :data:`earshot.model.schemas.MESSAGES`, the other arguments as for
        :meth:`subscribe_batch`. A message that comes too late is wrong.
        """
        with self._lock:
            self._settle()
            state, matcher = self._state, self._state.matcher
            n_words = len(state.vocabulary)
            encoded = self._encode_messages(batch, on_error, source, first_row, rows)
            clocks_us = np.maximum.accumulate(np.maximum(encoded.times, state.clock_us))
            late = list(matcher.refused_messages(encoded, clocks_us))
            if late:
                rejects = [
                    LateRow(source, int(encoded.rows[at]), "time", reason) for at, reason in late
                ]
                encoded = encoded._replace(rejects=by_row(encoded.rejects, rejects))
            if on_error == "raise":
                self._refuse(encoded.rejects, "publish", batch, n_words)
            if late:
                kept = np.delete(np.arange(len(clocks_us)), [at for at, _ in late])
                encoded, clocks_us = take_encoded(encoded, kept), clocks_us[kept]
            if matcher.keeps_messages:
                try:
                    state.expect_message_ids(encoded.ids)
                except InvalidInput:
                    self._note_refused("publish", batch, n_words)
                    raise
                with self._lock.change():
                    changes = state.publish(encoded, clocks_us)
                    self._note_batch("publish", batch, encoded.rejects)
                    updates = state.updates(changes, encoded.ids, encoded.rejects, encoded.times)
                self._settle()
                return updates
            return self._match_published(encoded, clocks_us)

    def match_batch(
        self,
        batch: Batch,
        *,
        at: datetime | None = None,
        on_error: OnError = "raise",
        source: str = "",
        first_row: int = 0,
        rows: Int64s | None = None,
    ) -> Updates:
        """Match messages without publishing them: nothing changes, so their order is irrelevant.

        Each message finds the subscriptions that are live at the latest of the engine's clock,
        ``at`` and its own time. For semantics that keep no messages. The other arguments are as for
        :meth:`publish_batch`.
        """
        with self._lock:
            state = self._state
            if state.matcher.keeps_messages:
                raise InvalidInput(
                    f"{state.matcher.form.noun} depends on the messages before; publish them"
                )
            self._settle()  # before words get their tokens
            encoded = self._encode_messages(batch, on_error, source, first_row, rows)
            if on_error == "raise":
                raise_first(encoded.rejects)
            return self.match_encoded(encoded, at=at)

    def match_encoded(self, encoded: EncodedMessages, *, at: datetime | None = None) -> Updates:
        """Match as :meth:`match_batch` does what has the tokens of this engine's vocabulary.

        For those who analyse a message once and ask several engines. The vocabulary must be as it
        is now: the engine has not changed since, nor been rebuilt, in the background either.
        """
        check_time(at, "at")
        with self._lock:
            self._settle()
            state = self._state
            clock_us = max(state.clock_us, NO_TIME_US if at is None else time_us(at))
            changes = state.match(encoded, np.maximum(encoded.times, clock_us))
            return state.updates(changes, encoded.ids, encoded.rejects, encoded.times)

    def learn(
        self,
        batch: Batch,
        *,
        on_error: OnError = "raise",
        source: str = "",
        first_row: int = 0,
        rows: Int64s | None = None,
    ) -> Updates:
        """Count the words of messages for :meth:`reweigh` without publishing them.

        For semantics that weigh words by messages. The arguments are as for
        :meth:`publish_batch`.
        """
        with self._lock:
            state = self._state
            if state.matcher.weighs_words_by != "messages":
                raise InvalidInput(f"{state.matcher.form.noun} counts no words of messages")
            n_words = len(state.vocabulary)
            encoded = self._encode_messages(batch, on_error, source, first_row, rows)
            if on_error == "raise":
                self._refuse(encoded.rejects, "learn", batch, n_words)
            with self._lock.change():
                state.learn(encoded)
                self._note_batch("learn", batch, encoded.rejects)
            changes = state.matcher.no_changes(len(encoded.ids))
            return state.updates(changes, encoded.ids, encoded.rejects, encoded.times)

    # ---- upkeep -------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """Merge all changes into a new structure now, and give memory back that is not in use.

        Matching is faster afterwards. Where there are many words of which nothing uses most, those
        are forgotten; docs/semantics says what is in use.
        """
        with self._lock:
            self._settle()
            if self._state.matcher.keeps_messages:
                self._clear_up()
                return
            rebuild = self._state.matcher.rebuild(is_forced=True)
            if rebuild is None:
                return
            rebuild.build()
            self._take_over(rebuild, self._state.ids)

    def wait(self) -> None:
        """Wait for a rebuild in the background to end, and raise what went wrong in it."""
        self._background.wait()

    def warm_up(self, *, for_ascii: bool = False) -> None:
        """Do ahead of the first message what it would wait for.

        The structure is brought up to date, the pages of an opened one are mapped, and what events
        need is compiled.

        Args:
            for_ascii: Whether the first text beyond ASCII may wait, some 0.1 s, for the tables of
                all characters.
        """
        with self._lock:
            self._settle()
            state = self._state
            storage.bring_in((state.matcher.arrays, state.ids.arrays, state.vocabulary.arrays))
            other = state.matcher.rehearsal()
            if other is None:
                text = "warm up" if for_ascii else rehearsal.TEXT
                nowhere = message_batch([Message(0, text, place=rehearsal.HERE)])
                self.match_batch(nowhere).table()
                return
        engine = Engine.__new__(Engine)
        engine._start(State(other), self.analyzer, rebuild_in_background=False)
        rehearsal.rehearse(engine)

    # ---- inside -------------------------------------------------------------------------------

    def _advance(self, clock_us: int) -> Changes:
        if clock_us > self._state.clock_us:
            self._note(Record("advance", argument=clock_us))
        return self._state.advance(clock_us)

    def _end(self, slots: Int32s, ids: Ids, rejects: list[InvalidRow]) -> Updates:
        """End subscriptions."""
        state = self._state
        with self._lock.change():
            state.unsubscribe(slots)
            if self._journal is not None:
                self._note_batch("unsubscribe", pa.table({"id": as_array(ids)}), [])
        updates = state.updates(state.matcher.no_changes(len(ids)), ids, rejects)
        self._tidy_up()
        return updates

    def _match_published(self, encoded: EncodedMessages, clocks_us: Int64s) -> Updates:
        """Match messages that are not kept, each of which finds its own clock."""
        state = self._state
        changes = state.match(encoded, clocks_us)
        # Before the clock moves: then slots may be numbered anew.
        updates = state.updates(changes, encoded.ids, encoded.rejects, encoded.times)
        if len(clocks_us) and clocks_us[-1] > state.clock_us:
            with self._lock.change():
                self._advance(int(clocks_us[-1]))
        return updates

    def _encode_messages(
        self, batch: Batch, on_error: str, source: str, first_row: int, rows: Int64s | None
    ) -> EncodedMessages:
        check_on_error(on_error)
        form = self._state.matcher.form
        # Where the vocabulary grows; errors come before it.
        growing = self._lock.change(unless=Exception) if form.keeps_words else nullcontext()
        with growing:
            return encode_messages(
                batch, self.analyzer, self._state.vocabulary, self.space, form=form,
                source=source, first_row=first_row, rows=rows,
            )  # fmt: skip

    def _settle(self) -> None:
        """Let the matcher do what it put off; slots may get other numbers."""
        self._follow(self._state.matcher.drop_ended())
        self._follow(self._state.matcher.settle())
        self._keep_up()

    def _tidy_up(self) -> None:
        """Settle nothing, but give back what nothing uses; slots may get other numbers."""
        self._follow(self._state.matcher.drop_ended())
        self._keep_up()

    def _follow(self, kept: Kept | None) -> None:
        if kept is not None:
            with self._lock.change():
                self._state.renumber(kept)

    def _keep_up(self) -> None:
        """Start what makes matching faster and forgets words, where it is due."""
        if not self.rebuild_in_background:
            return
        if self._state.matcher.keeps_messages:
            if self._state.is_cluttered:
                self._clear_up()
        elif self._background.is_free:
            self._start_rebuild()

    def _clear_up(self) -> None:
        with self._lock.change():
            self._state.clear_up()
            self._note(Record("rebuild"))

    def _start_rebuild(self) -> None:
        rebuild = self._state.matcher.rebuild()
        if rebuild is None:
            return
        # Those of now: a rebuild in the foreground may renumber the others meanwhile.
        old_ids = self._state.ids

        self._background.start(rebuild, lambda: self._take_over(rebuild, old_ids))

    def _take_over(self, rebuild: Rebuild, old_ids: IdTable) -> None:
        ids = old_ids.renumbered(rebuild.old_slots)
        with self._lock, self._lock.change():
            self._state.take_over(rebuild, ids)
