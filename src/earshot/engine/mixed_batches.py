"""Batches of messages and positions, as one sequence of events."""

from __future__ import annotations

from abc import abstractmethod
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from earshot.encoding import (
    NEVER_US,
    NO_TIME_US,
    EncodedMessages,
    encode_moves,
    row_numbers,
    take_encoded,
)
from earshot.encoding.columns import Bools
from earshot.engine.durable import Batch, Durable
from earshot.engine.rejects import OnError, by_row, check_on_error, unknown_rows
from earshot.engine.state import reports_of
from earshot.engine.updates import Updates
from earshot.errors import InvalidInput, InvalidRow, LateRow, described
from earshot.model.arrays import Int64s, Order, take_places
from earshot.model.schemas import TIME


def order_by_time(message_times: pa.Array, move_times: pa.Array) -> Bools:
    """Return which events are moves when both are merged by time; at one time, moves come first.

    A row without a time stands where the row before it does. Each batch keeps its own order.
    """
    clocks = np.concatenate([clocks_of(move_times), clocks_of(message_times)])
    is_move: Bools = np.argsort(clocks, kind="stable") < len(move_times)
    return is_move


def clocks_of(times: pa.Array) -> Int64s:
    """Return the latest time up to each row."""
    instants = times.cast(TIME, safe=False)  # of any unit
    us = instants.cast(pa.int64()).fill_null(NO_TIME_US).to_numpy()
    clocks: Int64s = np.maximum.accumulate(us) if len(us) else us
    return clocks


class MixedBatches(Durable):
    """The part of an engine that takes messages and positions together."""

    def take_batch(
        self,
        messages: Batch,
        moves: Batch,
        *,
        is_move: Bools | None = None,
        on_error: OnError = "raise",
        sources: tuple[str, str] = ("", ""),
        rows: tuple[Int64s | None, Int64s | None] = (None, None),
    ) -> Updates:
        """Publish messages and take positions of moving subscribers, as one sequence of events.

        This is as fast as a batch of either kind, however often one follows the other. Updates are
        those of the events one after the other.

        Args:
            messages: As for :meth:`publish_batch`.
            moves: As for :meth:`move_batch`.
            is_move: Of each event, in order, whether it is the next move, else the next message.
                By default both are merged by ``time``; at one time, moves come first.
            on_error: As for :meth:`subscribe_batch`.
            sources: Where messages and moves came from, for errors.
            rows: Number of each row there, of messages and of moves.
        """
        state, matcher = self._state, self._state.matcher
        if not matcher.form.moves_by_position:
            raise InvalidInput(
                f"{matcher.form.noun} takes no positions; use Engine(Moving(...)), or publish and "
                f"move by themselves"
            )
        with self._lock:
            check_on_error(on_error)
            self._settle()
            n_words = len(state.vocabulary)
            said = self._encode_messages(messages, on_error, sources[0], 0, rows[0])
            moved = encode_moves(
                moves, matcher.space, form=matcher.form, source=sources[1], first_row=0,
                rows=rows[1],
            )  # fmt: skip
            order = _checked(is_move, messages, moves)
            said_at = np.flatnonzero(~order)[_taken(said.rows, len(messages), rows[0])]
            moved_at = np.flatnonzero(order)[_taken(moved.rows, len(moves), rows[1])]
            # Moves of nobody are no events at all, nor are those that cannot be.
            known = np.flatnonzero(self.contains_batch(moved.ids))
            unknown = np.delete(np.arange(len(moved.ids)), known)
            refused = moved.rejects + unknown_rows(moved.ids, unknown, moved.rows, sources[1])
            slots, places = state.ids.slots_of(moved.ids.take(pa.array(known))), moved.places
            places = take_places(places, known)
            wrong = list(matcher.refused_moves(slots, places))
            if wrong:
                refused += [
                    InvalidRow(sources[1], int(moved.rows[known[at]]), field, reason)
                    for at, field, reason in wrong
                ]
                allowed = np.delete(np.arange(len(slots)), [at for at, _, _ in wrong])
                known, slots, places = known[allowed], slots[allowed], take_places(places, allowed)
            moved_at, times = moved_at[known], moved.times[known]
            numbers = moved.rows[known]
            # Nor are those of subscriptions that have ended by then.
            events = np.argsort(np.concatenate([moved_at, said_at]), kind="stable")
            ends_us = np.concatenate([state.expiry.of(slots), np.full(len(said_at), NEVER_US)])
            is_live, clocks_us = state.live_events(
                ends_us[events], np.concatenate([times, said.times])[events]
            )
            of_event = events[is_live]
            clocks = np.full(len(events), NO_TIME_US)
            clocks[of_event] = clocks_us
            n = len(slots)
            if not is_live.all():
                ended = np.sort(events[~is_live])
                refused += unknown_rows(moved.ids, known[ended], moved.rows, sources[1])
                live = np.delete(np.arange(n), ended)
            else:
                live = np.arange(n)
            reports = reports_of(take_places(places, live), times[live], clocks[:n][live])
            late_moves = list(matcher.late_reports(slots[live], reports))
            refused += [
                LateRow(sources[1], int(numbers[live[at]]), "time", reason)
                for at, reason in late_moves
            ]
            late = list(matcher.refused_messages(said, clocks[n:]))
            late_rows = [
                LateRow(sources[0], int(said.rows[at]), "time", reason) for at, reason in late
            ]
            rejects = by_row(said.rejects, late_rows) + by_row(refused)
            if on_error == "raise":
                self._refuse(rejects, "publish", messages, n_words)
            good = np.delete(live, [at for at, _ in late_moves])
            kept = np.delete(np.arange(len(said_at)), [at for at, _ in late])
            said = take_encoded(said, kept)
            state.expect_message_ids(said.ids)
            chosen = np.concatenate([good, n + kept])
            in_order = np.argsort(np.concatenate([moved_at, said_at])[chosen], kind="stable")
            places_of = np.empty(len(chosen), np.int64)
            places_of[in_order] = np.arange(len(chosen))
            mix = Order(clocks[chosen][in_order], places_of[: len(good)], places_of[len(good) :])
            with self._lock.change():
                reports = reports_of(take_places(places, good), times[good], clocks[good])
                changes = state.take(slots[good], reports, said, mix)
                self._note_runs(messages, moves, order, rejects)
                told = mix.clocks.copy()
                told[mix.arrivals] = said.times
                updates = state.updates(changes, pa.nulls(len(chosen)), rejects, told)
            self._settle()
            return updates

    def _note_runs(
        self, messages: Batch, moves: Batch, is_move: Bools, rejects: list[InvalidRow]
    ) -> None:
        if self._journal is None:
            return
        starts = np.flatnonzero(np.diff(is_move, prepend=~is_move[:1])).tolist()
        at = {True: 0, False: 0}
        for start, stop in pairwise([*starts, len(is_move)]):
            kind = bool(is_move[start])
            batch = moves if kind else messages
            part = batch.slice(at[kind], stop - start)
            self._note_batch("move" if kind else "publish", part, rejects)
            at[kind] += stop - start

    @abstractmethod
    def _settle(self) -> None:
        """Let the matcher do what it put off."""

    @abstractmethod
    def contains_batch(self, ids: pa.Array) -> Bools:
        """Return which of the ids belong to a subscription."""

    @abstractmethod
    def _encode_messages(
        self, batch: Batch, on_error: str, source: str, first_row: int, rows: Int64s | None
    ) -> EncodedMessages:
        """Encode messages."""


def _checked(is_move: Any, messages: Batch, moves: Batch) -> Bools:
    """Return which events are moves; refuse what does not fit the batches."""
    if is_move is None:
        times = [
            each.column("time") if "time" in each.schema.names else pa.nulls(len(each), pa.int64())
            for each in (messages, moves)
        ]
        return order_by_time(*times)
    n, n_moves = len(messages) + len(moves), len(moves)
    if (
        not isinstance(is_move, np.ndarray)
        or is_move.dtype != np.bool_
        or is_move.shape != (n,)
        or np.count_nonzero(is_move) != n_moves
    ):
        raise InvalidInput(
            f"is_move is {described(is_move)}; expected a NumPy array of {n} booleans, of which "
            f"{n_moves} are true: one for each row of the two batches"
        )
    return is_move


def _taken(numbers: Int64s, n: int, rows: Int64s | None) -> Int64s:
    """Return which rows of a batch were encoded, given their numbers."""
    found: Int64s = np.searchsorted(row_numbers(n, 0, rows), numbers)
    return found
