"""Calls of the engine with a single message, subscription or id, without an Arrow batch in between.

Each does what a batch of one row would do, or nothing at all and returns None: then it takes that
batch, which says what is wrong, too.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from earshot.encoding import (
    EncodedMessages,
    encode_message,
    encode_position,
    encode_region,
    encode_subscription,
    is_usual_id,
)
from earshot.engine.guard import Guard
from earshot.engine.ids import Ids
from earshot.engine.journal import Journal
from earshot.engine.state import State, reports_of
from earshot.engine.updates import Updates
from earshot.errors import InvalidRow
from earshot.model.arrays import Int32s, Int64s
from earshot.model.batches import id_array
from earshot.model.events import Move
from earshot.model.messages import Message
from earshot.model.subscriptions import Subscription
from earshot.text import Analyzer

_NOTHING: AbstractContextManager[None] = nullcontext()


class SingleCalls:
    """The part of an engine that takes one thing at a time."""

    analyzer: Analyzer
    _state: State
    _lock: Guard
    _journal: Journal | None

    def _subscribe_one(self, subscription: Subscription) -> Updates | None:
        if self._journal is not None:  # which takes batches
            return None
        with self._lock:
            state = self._state
            with self._lock.change(unless=Exception):  # the words come in; errors come before
                encoded = encode_subscription(
                    subscription, self.analyzer, state.vocabulary, state.matcher.space,
                    state.matcher.form, takes=state.ids.takes,
                )  # fmt: skip
            if encoded is None:
                return None
            with self._lock.change():
                return state.updates(state.subscribe(encoded), encoded.ids)

    def _unsubscribe_one(self, subscription_id: Any) -> Updates | None:
        if not is_usual_id(subscription_id):
            return None
        with self._lock:
            self._tidy_up()
            slots = self._state.ids.known_slots((subscription_id,))
            return None if slots is None else self._end(slots, (subscription_id,), [])

    def _move_one(self, move: Move) -> Updates | None:
        if self._journal is not None or not is_usual_id(move.id):
            return None
        with self._lock:
            self._settle()
            state, matcher = self._state, self._state.matcher
            slots = state.ids.known_slots((move.id,))
            if slots is None:
                return None
            if matcher.form.moves_by_position:
                return self._report_one(slots, move)
            places = encode_region(move.region, matcher.space, matcher.form)
            if places is None or any(matcher.refused_moves(slots, places)):
                return None
            with self._lock.change():
                return state.updates(state.move(slots, (move.id,), places), (move.id,))

    def _report_one(self, slots: Int32s, move: Move) -> Updates | None:
        """Take the position of a moving subscriber."""
        state, matcher = self._state, self._state.matcher
        encoded = encode_position(move.region, move.time, matcher.space)
        if encoded is None or any(matcher.refused_moves(slots, encoded.places)):
            return None
        is_live, clocks_us = state.live_events(state.expiry.of(slots), encoded.times)
        if not is_live[0]:
            return None
        reports = reports_of(encoded.places, encoded.times, clocks_us)
        if any(matcher.late_reports(slots, reports)):
            return None
        with self._lock.change():
            changes = state.move(slots, (move.id,), reports)
            updates = state.updates(changes, (move.id,), None, clocks_us)
        self._settle()
        return updates

    def _publish_one(self, message: Message) -> Updates | None:
        with self._lock:
            self._settle()  # before words get their tokens
            state, matcher = self._state, self._state.matcher
            if matcher.keeps_messages and self._journal is not None:
                return None
            growing = self._lock.change(unless=Exception) if matcher.keeps_messages else _NOTHING
            with growing:
                encoded = encode_message(
                    message, self.analyzer, state.vocabulary, matcher.space, matcher.form
                )
            if encoded is None:
                return None
            clocks_us = np.maximum(encoded.times, state.clock_us)
            if not matcher.keeps_messages:
                return self._match_published(encoded, clocks_us)
            ids = id_array([message.id])
            if any(matcher.refused_messages(encoded, clocks_us)):
                return None
            state.expect_message_ids(ids)
            with self._lock.change():
                changes = state.publish(encoded._replace(ids=ids), clocks_us)
                updates = state.updates(changes, (message.id,), None, encoded.times)
            self._settle()
            return updates

    @abstractmethod
    def _settle(self) -> None:
        """Let the matcher do what it put off."""

    @abstractmethod
    def _tidy_up(self) -> None:
        """Settle nothing, but give back what nothing uses."""

    @abstractmethod
    def _end(self, slots: Int32s, ids: Ids, rejects: list[InvalidRow]) -> Updates:
        """End subscriptions."""

    @abstractmethod
    def _match_published(self, encoded: EncodedMessages, clocks_us: Int64s) -> Updates:
        """Match messages that are not kept, each of which finds its own clock."""
