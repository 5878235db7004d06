"""The engine of top-k over a window: events in, changes of every subscription's best messages out.

A subscription has words and a place, and wants the k best messages of the window: the last so many,
or those of the last so many minutes. Each event returns what it changed: a message enters a result
(``+``) or leaves it (``-``). docs/semantics.md says what the best are, and in which order changes
come.

**Time** is event time. The clock is the latest time that any event has carried; it never goes back.
In a window of time, messages leave when it has moved on, and a message that is older than the clock
by more than the lateness allows is refused. When the clock moves, subscriptions end first, then
messages leave.

**Weights.** All words weigh the same until :meth:`TopkEngine.reweigh`, which weighs them by how few
of the messages counted so far have them: those that were published, and those of
:meth:`TopkEngine.learn`.

Calls may come from any thread: the engine serialises them. One that is interrupted while it changes
the engine (Ctrl-C, no memory left) leaves it unusable: later calls say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from earshot import storage
from earshot.encoding import NEVER_US, NO_TIME_US
from earshot.encoding.topk import (
    EncodedTopkMessages,
    EncodedTopkSubscriptions,
    accepted_rows,
    encode_points,
    encode_topk_messages,
    encode_topk_subscriptions,
    late_rows,
    take_messages,
)
from earshot.engine.expiry import ExpiryArrays, ExpiryQueue
from earshot.engine.explanation import Explanation
from earshot.engine.guard import Guard
from earshot.engine.ids import IdArrays, IdTable, unknown_row
from earshot.engine.topk_updates import (
    Asking,
    Result,
    TopkUpdates,
    WindowIdArrays,
    WindowIds,
    explain_entry,
)
from earshot.errors import (
    DuplicateSubscription,
    EarshotError,
    InvalidInput,
    InvalidParameter,
    InvalidRow,
    SavedIndexError,
    UnknownSubscription,
    raise_first,
)
from earshot.kernels.growing import GrowingArray
from earshot.model.arrays import (
    EVERYWHERE_TOKEN,
    CountedMessages,
    Float64s,
    Int32s,
    Int64s,
    Space,
)
from earshot.model.batches import id_array, instant, message_batch, subscription_batch, time_us
from earshot.model.events import Event, Move, Publish, Subscribe, Unsubscribe
from earshot.model.messages import Message
from earshot.model.ranking import idf_weights
from earshot.model.regions import Point, RegionOrPoint
from earshot.model.schemas import id_kind
from earshot.model.subscriptions import Id, Subscription, check_time
from earshot.model.topk import TopK
from earshot.model.updates import Update
from earshot.semantics.topk.contract import Dissemination
from earshot.semantics.topk.kernels.arrays import Changes
from earshot.semantics.topk.monitor import PENDING_MOST, Counters, Monitor
from earshot.semantics.topk.reevaluation import Reevaluation
from earshot.text import Analyzer, TokenLists, Vocabulary
from earshot.text.vocabulary import VocabularyArrays

Batch: TypeAlias = pa.RecordBatch | pa.Table


class TopkEngine:
    """Keeps the best messages of a window for every subscription.

    Args:
        topk: The window, and what a subscription gets that does not say otherwise.
        space: ``lonlat`` (degrees, distances in metres through the earth) or ``planar``.
        analyzer: How text and keywords become tokens.
        dissemination: How messages find subscriptions, by name or with parameters.
        reevaluation: How results are kept full as messages leave, by name or with parameters.
        n_threads: Threads that search the window where many subscriptions are new.
    """

    def __init__(
        self,
        topk: TopK,
        *,
        space: Space = "lonlat",
        analyzer: Analyzer | None = None,
        dissemination: str | Dissemination | None = None,
        reevaluation: str | Reevaluation | None = None,
        n_threads: int = 1,
    ) -> None:
        if not isinstance(topk, TopK):
            raise InvalidParameter(f"topk is {topk!r}; expected TopK(window, k, alpha)")
        if space not in ("lonlat", "planar"):
            raise InvalidParameter(f"space is {space!r}; expected 'lonlat' or 'planar'")
        window = topk.window if isinstance(topk.window, int) else None
        monitor = Monitor(
            window=window,
            duration_us=topk.duration_us if window is None else None,
            max_distance=topk.distance_in(space),
            dissemination=dissemination,
            reevaluation=reevaluation,
            n_threads=n_threads,
        )
        self._start(topk, space, analyzer or Analyzer(), monitor, Vocabulary(), IdTable())

    def _start(
        self,
        topk: TopK,
        space: Space,
        analyzer: Analyzer,
        monitor: Monitor,
        vocabulary: Vocabulary,
        ids: IdTable,
    ) -> None:
        self.topk = topk
        self.space: Space = space
        self.analyzer = analyzer
        self._monitor = monitor
        self._vocabulary = vocabulary
        self._ids = ids
        self._slot_ids: IdTable | None = None  # the same, for those who read later
        self._message_ids = WindowIds()
        self._lock = Guard()
        self._clock_us = NO_TIME_US
        self._has_time = not isinstance(topk.window, int)
        self._duration_us = topk.duration_us
        self._lateness_us = topk.lateness_us
        self._expires: GrowingArray | None = None  # expiry of each slot, once any has one
        self._expiry_queue = ExpiryQueue()
        self._has_ended = False  # whether a subscription has, since slots were last looked through

    # ---- events, one at a time or a few -------------------------------------------------------

    def subscribe(self, *subscriptions: Subscription) -> list[Update]:
        """Add subscriptions, whose ids must be new; return their first results."""
        if not subscriptions:
            return []
        with self._lock:
            ids = id_array([each.id for each in subscriptions])
            taken = self._ids.contains(ids)
            if taken.any():
                raise DuplicateSubscription(
                    f"subscription {ids[int(taken.argmax())].as_py()!r} exists already; "
                    f"unsubscribe it first or choose another id"
                )
            return self.subscribe_batch(subscription_batch(subscriptions)).updates()

    def unsubscribe(self, *ids: Id) -> None:
        """End subscriptions; their results go without updates."""
        if ids:
            self.unsubscribe_batch(id_array(ids))

    def move(self, subscription_id: Id, place: RegionOrPoint) -> list[Update]:
        """Let a subscription listen at another point; words, k, alpha and expiry stay."""
        moved = Subscription(subscription_id, ("x",), region=place)
        with self._lock:
            return self.move_batch(subscription_batch([moved])).updates()

    def publish(self, *messages: Message) -> list[Update]:
        """Publish messages in this order; return the updates they cause."""
        with self._lock:
            return self.publish_batch(message_batch(messages)).updates()

    def process(
        self,
        events: Iterable[Event],
        *,
        on_reject: Callable[[Event, EarshotError], object] | None = None,
    ) -> Iterator[Update]:
        """Take events in order; yield the updates of each before the next one is taken.

        Every event is worked on by itself; :meth:`publish_batch` is much faster for many messages.

        Args:
            events: What happens.
            on_reject: Called with each event that is refused, a late message for instance, and
                with the reason; then the next one is taken. By default the reason is raised.
        """
        for event in events:
            if not isinstance(event, Publish | Subscribe | Unsubscribe | Move):
                raise InvalidInput(
                    f"{event!r} is not an event; expected Subscribe, Unsubscribe, Move or Publish"
                )
            if not isinstance(event, Publish):
                yield from self._advance_to(event.time)
            try:
                updates = self._take_event(event)
            except (InvalidInput, UnknownSubscription) as error:
                if on_reject is None:
                    raise
                on_reject(event, error)
            else:
                yield from updates

    def advance(self, time: datetime) -> list[Update]:
        """Set the clock to ``time`` if that is later; subscriptions may end, messages may leave."""
        check_time(time, "time")
        return self._advance_to(time)

    def reweigh(self, *, forget: bool = False) -> list[Update]:
        """Weigh words by how rare they are among the messages counted so far.

        A word that n of N messages have weighs ``ln((N + 1) / (n + 1)) + 1``, and so does one that
        comes later, with n = 0. Results are ranked anew. Nothing else changes a weight.

        Args:
            forget: Count from 0 again afterwards. For messages that were learned from and are
                published as well, so that they do not count twice in the next reweighing.
        """
        with self._lock:
            return self.reweigh_batch(forget=forget).updates()

    # ---- events in batches --------------------------------------------------------------------

    def subscribe_batch(
        self, batch: Batch, *, source: str = "", first_row: int = 0, rows: Int64s | None = None
    ) -> TopkUpdates:
        """Add a batch of subscriptions; all or, if any row is wrong, none.

        Args:
            batch: Columns of :data:`earshot.model.schemas.SUBSCRIPTIONS`.
            source: Where the rows came from, for errors.
            first_row: Number of the first row there.
            rows: Number of each row there, where they do not follow one another.
        """
        with self._lock:
            encoded = self._encode(batch, source, first_row, rows)
            raise_first(encoded.rejects)
            with self._lock.change():
                return self._add(encoded)

    def try_subscribe_batch(
        self, batch: Batch, *, source: str = "", first_row: int = 0, rows: Int64s | None = None
    ) -> TopkUpdates:
        """Add the good rows of a batch of subscriptions; the others are the ``rejects``."""
        with self._lock:
            encoded = self._encode(batch, source, first_row, rows)
            with self._lock.change():
                return self._add(encoded)

    def unsubscribe_batch(self, ids: pa.Array) -> None:
        """End all these subscriptions or, if any is unknown, none."""
        with self._lock:
            slots = self._ids.slots_of(ids)
            if len(np.unique(slots)) < len(slots):
                raise InvalidInput("the same subscription is named more than once in a batch")
            self._end(slots)

    def try_unsubscribe_batch(self, ids: pa.Array) -> list[InvalidRow]:
        """End those of the subscriptions that there are; return the others, each as a row.

        As one after the other: one that is named again is not there any more.
        """
        with self._lock:
            known = self.contains_batch(ids)
            slots, firsts = np.unique(
                self._ids.slots_of(ids.filter(pa.array(known))), return_index=True
            )
            ends = np.zeros(len(ids), bool)
            ends[np.flatnonzero(known)[firsts]] = True
            self._end(slots)
            return [unknown_row(ids, row, row) for row in np.flatnonzero(~ends).tolist()]

    def move_batch(self, batch: Batch) -> TopkUpdates:
        """Move subscriptions, all or none: ``id``, ``x`` and ``y`` of each, an id at most once."""
        with self._lock:
            encoded = encode_points(batch, self.space)
            raise_first(encoded.rejects)
            slots = self._ids.slots_of(encoded.ids)
            return self._move(slots, encoded.places, [])

    def try_move_batch(self, batch: Batch) -> TopkUpdates:
        """Move what can be moved; the ``rejects`` say what is wrong with the other rows.

        One subscription moves once in a batch: of several rows with its id the first good one
        counts, and the others are rejects.
        """
        with self._lock:
            encoded = encode_points(batch, self.space)
            rows = accepted_rows(batch.num_rows, encoded.rejects, 0, None)
            known = self.contains_batch(encoded.ids)
            unknown = [
                unknown_row(encoded.ids, at, int(rows[at]))
                for at in np.flatnonzero(~known).tolist()
            ]
            slots = self._ids.slots_of(encoded.ids.filter(pa.array(known)))
            return self._move(slots, encoded.places[known], _by_row(encoded.rejects + unknown))

    def publish_batch(
        self,
        batch: Batch,
        *,
        on_error: str = "raise",
        source: str = "",
        first_row: int = 0,
        rows: Int64s | None = None,
    ) -> TopkUpdates:
        """Publish a batch of messages in their order.

        Args:
            batch: Columns of :data:`earshot.model.schemas.MESSAGES`.
            on_error: ``raise`` the first wrong or late row before anything is published, or
                ``reject``: publish the good rows and return the others with their reasons.
            source: Where the rows came from, for errors.
            first_row: Number of the first row there.
            rows: Number of each row there, where they do not follow one another.
        """
        with self._lock:
            encoded = self._encode_messages(batch, on_error, source, first_row, rows)
            numbers = accepted_rows(batch.num_rows, encoded.rejects, first_row, rows)
            ids, messages = encoded.ids, encoded.messages
            clocks_us = np.maximum.accumulate(np.maximum(messages.times, self._clock_us))
            late = self._late_rows(messages.times, clocks_us, numbers, source)
            rejects = _by_row([*encoded.rejects, *late])
            if on_error == "raise":
                raise_first(rejects)
            self._message_ids.check_kind(ids)
            if self._has_time:
                # What has no time happens at the clock.
                times = np.where(messages.times == NO_TIME_US, clocks_us, messages.times)
                messages = messages._replace(times=times)
            if late:
                kept = np.flatnonzero(~np.isin(numbers, [each.row for each in late]))
                ids, messages = ids.take(pa.array(kept)), take_messages(messages, kept)
                clocks_us = clocks_us[kept]
            with self._lock.change():
                return self._publish(ids, messages, clocks_us, rejects, len(late))

    def advance_batch(self, time: datetime) -> TopkUpdates:
        """As :meth:`advance`, with the updates as a table."""
        check_time(time, "time")
        with self._lock:
            return self._advance(time_us(time))

    def reweigh_batch(self, *, forget: bool = False) -> TopkUpdates:
        """As :meth:`reweigh`, with the updates as a table."""
        with self._lock, self._lock.change():
            before = self._monitor.counters
            changes = self._monitor.reweigh(*idf_weights(self._vocabulary.frequencies))
            if forget:
                words = self._vocabulary.arrays
                nothing = np.zeros_like(words.frequencies)
                self._vocabulary = Vocabulary.from_arrays(words._replace(frequencies=nothing))
            return self._updates(changes, before)

    def learn(
        self,
        batch: Batch,
        *,
        on_error: str = "raise",
        source: str = "",
        first_row: int = 0,
        rows: Int64s | None = None,
    ) -> list[InvalidRow]:
        """Count the words of messages for :meth:`reweigh` without publishing them.

        The arguments are as for :meth:`publish_batch`; returns the rows that were not counted.
        """
        with self._lock:
            encoded = self._encode_messages(batch, on_error, source, first_row, rows)
            if on_error == "raise":
                raise_first(encoded.rejects)
            with self._lock.change():
                self._count(encoded.messages)
            return encoded.rejects

    # ---- questions ----------------------------------------------------------------------------

    def results(self, subscription_id: Id) -> list[Result]:
        """Return the best messages of a subscription, best first."""
        table = self.results_table(id_array([subscription_id]))
        pairs = zip(table["message_id"].to_pylist(), table["score"].to_pylist(), strict=True)
        return [Result(message_id, score) for message_id, score in pairs]

    def results_table(self, ids: pa.Array | None = None) -> pa.Table:
        """Return the results of subscriptions: subscription_id, rank (from 1), message_id, score.

        Args:
            ids: Which subscriptions, in this order; by default all, in the order they came.
        """
        with self._lock:
            table = self._ids.arrays.table
            slots = np.sort(table[table >= 0]) if ids is None else self._ids.slots_of(ids)
            found = self._monitor.results(slots)
            counts = np.diff(found.offsets)
            ranks = np.arange(len(found.sequences)) - np.repeat(found.offsets[:-1], counts) + 1
            return pa.table(
                {
                    "subscription_id": self._ids.ids_of(np.repeat(slots, counts)),
                    "rank": pa.array(ranks.astype(np.int32)),
                    "message_id": self._message_ids.ids_of(found.sequences),
                    "score": pa.array(found.scores),
                }
            )

    @property
    def vocabulary(self) -> Vocabulary:
        """All words that any subscription or message has named, and how many messages did."""
        return self._vocabulary

    @property
    def id_type(self) -> pa.DataType:
        """Arrow type of the subscriptions' ids."""
        return pa.int64() if self._ids.kind == "integer" else pa.large_string()

    @property
    def message_id_type(self) -> pa.DataType:
        """Arrow type of the messages' ids."""
        return self._message_ids.type

    @property
    def time(self) -> datetime | None:
        """The clock: the latest event time seen, if any."""
        return None if self._clock_us == NO_TIME_US else instant(self._clock_us)

    @property
    def n_messages(self) -> int:
        """Messages in the window."""
        with self._lock:
            return self._monitor.n_messages

    @property
    def n_buffered(self) -> int:
        """Messages that are held for subscriptions, those beyond the best k included."""
        with self._lock:
            return self._monitor.n_buffered

    @property
    def counters(self) -> Counters:
        """Work that was done so far."""
        with self._lock:
            return self._monitor.counters

    def __len__(self) -> int:
        with self._lock:
            return self._monitor.n_subscriptions

    def __contains__(self, subscription_id: object) -> bool:
        if not isinstance(subscription_id, int | str) or isinstance(subscription_id, bool):
            return False
        try:
            ids = id_array([subscription_id])
        except InvalidInput:  # no id can be that
            return False
        with self._lock:
            return bool(self.contains_batch(ids)[0])

    def contains_batch(self, ids: pa.Array) -> npt.NDArray[np.bool_]:
        """Return which of the ids belong to a subscription; none do that are of another kind."""
        with self._lock:
            if self._ids.kind != id_kind(ids.type):
                return np.zeros(len(ids), bool)
            return self._ids.contains(ids)

    @property
    def next_expiry(self) -> datetime | None:
        """When the next subscription ends by itself, if any does."""
        with self._lock:
            next_us = self._expiry_queue.next_us
            return None if next_us is None else instant(next_us)

    def memory(self) -> dict[str, int]:
        """Return the bytes of memory by part."""
        with self._lock:
            return {
                **self._monitor.memory(),
                "vocabulary": self._vocabulary.nbytes,
                "subscription_ids": self._ids.nbytes,
                "message_ids": self._message_ids.nbytes,
                "expiry": 0 if self._expires is None else self._expires.nbytes,
            }

    def explain(self, message: Message, subscription_id: Id) -> Explanation:
        """Say in words what a message would score for a subscription, and whether it would enter.

        That is, whether it is sure to be among the best if it were published now. Where that
        depends on what else is in the window, because messages leave before it arrives, it is not,
        and the last reason says so. In a window of time it is compared with the results as they
        are now. Nothing changes.
        """
        with self._lock:
            slots = self._ids.slots_of(id_array([subscription_id]))
            # A copy may grow: words that nobody has named yet count in a message's length too.
            vocabulary = self._vocabulary.copy()
            encoded = encode_topk_messages(
                message_batch([message]), self.analyzer, vocabulary, self.space
            )
            raise_first(encoded.rejects)
            times = encoded.messages.times
            clocks_us = np.maximum(times, self._clock_us)
            late = self._late_rows(times, clocks_us, np.zeros(1, np.int64), "")
            expires = NEVER_US if self._expires is None else int(self._expires.view[slots[0]])
            hindrances = [f"the message's time {each.reason}" for each in late]
            if expires <= int(clocks_us[0]):
                hindrances.append(f"the subscription ends at {instant(expires).isoformat()}")
            monitor, slot = self._monitor, int(slots[0])
            found = monitor.results(slots)
            n_leaving: int | None = None
            if not self._has_time:
                is_full = monitor.n_messages == self.topk.window
                oldest = monitor.next_sequence - monitor.n_messages
                n_leaving = int((found.sequences == oldest).sum()) if is_full else 0
            elif clocks_us[0] == self._clock_us:
                n_leaving = 0
            asking = monitor.subscribers
            first, last = asking.token_offsets[slot : slot + 2]
            return explain_entry(
                message,
                subscription_id,
                asking=Asking(
                    asking.tokens[first:last],
                    asking.places[slot],
                    float(asking.alphas[slot]),
                    int(asking.ks[slot]),
                ),
                messages=encoded.messages,
                vocabulary=vocabulary,
                weights=monitor.word_weights(len(vocabulary)),
                max_distance=self.topk.distance_in(self.space),
                unit=" m" if self.space == "lonlat" else "",
                scores=found.scores.tolist(),
                n_leaving=n_leaving,
                is_latest=not self._has_time or int(times[0]) in (NO_TIME_US, int(clocks_us[0])),
                hindrances=hindrances,
            )

    # ---- saving -------------------------------------------------------------------------------

    def save(self, directory: str | Path) -> None:
        """Write everything to a new directory, the messages of the window included."""
        with self._lock:
            topk = self.topk
            facts = {
                "engine": "topk",
                "window": None if self._has_time else topk.window,
                "duration_us": self._duration_us,
                "k": topk.k,
                "alpha": topk.alpha,
                "max_distance": topk.max_distance,
                "lateness_us": self._lateness_us,
                "space": self.space,
                "analyzer": asdict(self.analyzer),
                "id_kind": self._ids.kind,
                "message_id_kind": self._message_ids.kind,
                "first_message": self._message_ids.first,
                "clock_us": self._clock_us,
            }
            expires = np.empty(0, np.int64) if self._expires is None else self._expires.view
            groups = {
                "vocabulary": self._vocabulary.arrays,
                "ids": self._ids.arrays,
                "expiry": ExpiryArrays(expires),
                "message_ids": self._message_ids.arrays,
            }
            storage.save(directory, facts, groups, inner={"monitor": self._monitor.save})

    @classmethod
    def open(cls, directory: str | Path, *, n_threads: int = 1) -> Self:
        """Open a saved engine; it goes on where that one was, and changes stay in this process."""
        facts = storage.read_facts(directory)
        semantics = facts.get("engine")
        if semantics in ("boolean", "ranked"):
            raise SavedIndexError(
                f"{directory} holds an engine of {semantics} matching; open it with Engine.open"
            )
        if semantics != "topk":
            raise SavedIndexError(f"{directory} does not hold an engine; make it with 'save'")
        window = facts["window"]
        topk = TopK(
            timedelta(microseconds=facts["duration_us"]) if window is None else window,
            facts["k"],
            facts["alpha"],
            facts["max_distance"],
            timedelta(microseconds=facts["lateness_us"]),
        )
        self = cls.__new__(cls)
        self._start(
            topk,
            facts["space"],
            Analyzer(**facts["analyzer"]),
            Monitor.open(Path(directory) / "monitor", n_threads=n_threads),
            Vocabulary.from_arrays(storage.open_group(directory, "vocabulary", VocabularyArrays)),
            IdTable(facts["id_kind"], storage.open_group(directory, "ids", IdArrays)),
        )
        self._message_ids = WindowIds(
            facts["message_id_kind"],
            facts["first_message"],
            storage.open_group(directory, "message_ids", WindowIdArrays),
        )
        self._clock_us = facts["clock_us"]
        expires = storage.open_group(directory, "expiry", ExpiryArrays).expires
        if len(expires):
            self._expires = GrowingArray(expires, fill=NEVER_US)
            self._queue_expiries(np.arange(len(expires), dtype=np.int32))
        return self

    def warm_up(self) -> None:
        """Do ahead of the first message what it would wait for.

        The pages of an opened engine are mapped, and what events need is compiled.
        """
        with self._lock:
            storage.bring_in((self._ids.arrays, self._vocabulary.arrays))
            other = TopkEngine(
                replace(self.topk, window=timedelta(seconds=1) if self._has_time else 1),
                space=self.space,
                analyzer=self.analyzer,
                dissemination=self._monitor.dissemination,
                reevaluation=self._monitor.reevaluation,
            )
        # Not ASCII, so that the tables of other characters are there as well.
        start, here = datetime(2000, 1, 1, tzinfo=UTC), Point(0, 0)
        other.subscribe(Subscription("a", ("wärm", "up"), region=here))
        for second in range(3):
            time = start + timedelta(seconds=second)
            other.publish(Message("m", "wärm up", place=here, time=time))
        other.move("a", here)
        other.reweigh()
        other.results("a")
        # As many as it takes to number the slots anew once they are gone.
        names = [str(n) for n in range(PENDING_MOST + 1)]
        other.subscribe(*(Subscription(name, ("up",), region=here) for name in names))
        other.unsubscribe(*names)
        other.advance(start + timedelta(days=1))
        other.unsubscribe("a")

    # ---- inside -------------------------------------------------------------------------------

    def _take_event(self, event: Event) -> list[Update]:
        match event:
            case Publish(message):
                return self.publish(message)
            case Subscribe(subscription):
                return self.subscribe(subscription)
            case Move(subscription_id, place):
                return self.move(subscription_id, place)
            case Unsubscribe(subscription_id):
                self.unsubscribe(subscription_id)
        return []

    def _encode(
        self, batch: Batch, source: str, first_row: int, rows: Int64s | None
    ) -> EncodedTopkSubscriptions:
        with self._lock.change(unless=Exception):  # the vocabulary grows; errors come before it
            return encode_topk_subscriptions(
                batch, self.analyzer, self._vocabulary, self.space,
                source=source, first_row=first_row, rows=rows, is_taken=self._ids.contains,
            )  # fmt: skip

    def _encode_messages(
        self, batch: Batch, on_error: str, source: str, first_row: int, rows: Int64s | None
    ) -> EncodedTopkMessages:
        if on_error not in ("raise", "reject"):
            raise InvalidParameter(f"on_error is {on_error!r}; expected 'raise' or 'reject'")
        with self._lock.change(unless=Exception):
            return encode_topk_messages(
                batch, self.analyzer, self._vocabulary, self.space,
                source=source, first_row=first_row, rows=rows,
            )  # fmt: skip

    def _add(self, encoded: EncodedTopkSubscriptions) -> TopkUpdates:
        first_slot, n = len(self._ids), len(encoded.ids)
        before = self._monitor.counters
        self._ids.append(encoded.ids)
        changes = self._monitor.subscribe(
            encoded.places,
            encoded.token_offsets,
            encoded.tokens,
            np.where(np.isnan(encoded.alphas), self.topk.alpha, encoded.alphas),
            np.where(encoded.ks == 0, self.topk.k, encoded.ks).astype(np.int32),
        )
        has_expiry = bool((encoded.expires != NEVER_US).any())
        if has_expiry and self._expires is None:
            self._expires = GrowingArray(np.empty(0, np.int64), fill=NEVER_US)
        if self._expires is not None:
            self._expires.resize(first_slot)
            self._expires.append(encoded.expires)
        if has_expiry:
            self._queue_expiries(np.arange(first_slot, first_slot + n, dtype=np.int32))
            # Those that ended before they came get no results.
            is_live = encoded.expires[changes.slots - first_slot] > self._clock_us
            columns: list[npt.NDArray[Any]] = [column[is_live] for column in changes]
            changes = Changes(*columns)
            self._end_subscriptions(self._clock_us)
        return self._updates(changes, before, encoded.rejects, n)

    def _move(self, slots: Int32s, places: Float64s, rejects: list[InvalidRow]) -> TopkUpdates:
        with self._lock.change():
            before = self._monitor.counters
            return self._updates(self._monitor.move(slots, places), before, rejects, len(slots))

    def _end(self, slots: Int32s) -> None:
        with self._lock.change():
            self._remove(slots)
            self._compact()

    def _remove(self, slots: Int32s) -> None:
        """End subscriptions; the caller compacts when nothing names their slots any more."""
        self._has_ended |= len(slots) > 0
        self._monitor.unsubscribe(slots)
        self._ids.forget(slots)
        if self._expires is not None:
            self._expires.view[slots] = NEVER_US  # what is queued for them is void

    def _publish(
        self,
        ids: pa.Array,
        messages: CountedMessages,
        clocks_us: Int64s,
        rejects: list[InvalidRow],
        n_late: int,
    ) -> TopkUpdates:
        """Publish messages, each of which finds the clock at its own of ``clocks_us``."""
        before, n = self._monitor.counters, len(ids)
        parts = [_no_changes()]
        start = 0
        while start < n:
            self._end_subscriptions(int(clocks_us[start]))
            # Up to the first message that finds another subscription at its end.
            next_us = self._expiry_queue.next_us
            stop = n if next_us is None else int(np.searchsorted(clocks_us, next_us))
            changes = self._monitor.publish(take_messages(messages, np.arange(start, stop)))
            parts.append(changes._replace(rows=changes.rows + np.int32(start)))
            self._message_ids.append(ids.slice(start, stop - start))
            self._clock_us = int(clocks_us[stop - 1])
            start = stop
        self._count(messages)
        columns: list[npt.NDArray[Any]] = [
            np.concatenate(each) for each in zip(*parts, strict=True)
        ]
        return self._updates(Changes(*columns), before, rejects, n, n_late)

    def _late_rows(
        self, times: Int64s, clocks_us: Int64s, numbers: Int64s, source: str
    ) -> list[InvalidRow]:
        """Return what is wrong with the messages that cannot be taken at their clocks."""
        if not self._has_time:
            return []
        return late_rows(
            times, clocks_us, numbers, source,
            duration_us=self._duration_us, lateness_us=self._lateness_us,
        )  # fmt: skip

    def _count(self, messages: CountedMessages) -> None:
        """Count the words of messages; the token that every message has counts the messages."""
        everywhere = np.full(len(messages.times), EVERYWHERE_TOKEN, np.int32)
        tokens = np.concatenate([messages.tokens, everywhere])
        self._vocabulary.add_documents(TokenLists(np.array([0, len(tokens)]), tokens))

    def _advance_to(self, time: datetime | None) -> list[Update]:
        if time is None:
            return []
        with self._lock:
            return self._advance(time_us(time)).updates()

    def _advance(self, clock_us: int) -> TopkUpdates:
        with self._lock.change():
            before, changes = self._monitor.counters, _no_changes()
            if clock_us > self._clock_us:
                self._end_subscriptions(clock_us)
                if self._has_time:
                    changes = self._monitor.advance(clock_us)
                self._clock_us = clock_us
            return self._updates(changes, before)

    def _updates(
        self,
        changes: Changes,
        before: Counters,
        rejects: Sequence[InvalidRow] = (),
        n_rows: int = 0,
        n_late: int = 0,
    ) -> TopkUpdates:
        """Give changes their ids, before the slots and messages that are gone are forgotten."""
        if self._slot_ids is None or len(self._slot_ids) < len(self._ids):
            self._slot_ids = IdTable(self._ids.kind, self._ids.arrays)
        updates = TopkUpdates(
            self._message_ids.ids_of(changes.sequences),
            list(rejects),
            Counters(*(np.array(self._monitor.counters) - before).tolist()),
            n_rows,
            n_late,
            changes,
            self._slot_ids,
        )
        self._message_ids.forget_before(self._monitor.first_sequence)
        self._compact()
        return updates

    def _end_subscriptions(self, clock_us: int) -> None:
        if self._expires is None or not self._expiry_queue.is_due(clock_us):
            return
        slots = self._expiry_queue.pop_until(clock_us)
        self._remove(slots[self._expires.view[slots] <= clock_us])

    def _queue_expiries(self, slots: Int32s) -> None:
        assert self._expires is not None
        times_us = self._expires.view[slots]
        ends = times_us != NEVER_US
        self._expiry_queue.push(times_us[ends], slots[ends])

    def _compact(self) -> None:
        """Number the slots anew where many are dead."""
        if not self._has_ended:  # to look for dead ones takes as long as there are slots
            return
        self._has_ended = False
        old_slots = self._monitor.compacted()
        if old_slots is None:
            return
        n_slots = len(self._ids)
        self._ids, self._slot_ids = self._ids.renumbered(old_slots), None
        if self._expires is not None:
            renamed = np.full(n_slots, -1, np.int32)
            renamed[old_slots] = np.arange(len(old_slots), dtype=np.int32)
            self._expires = GrowingArray(self._expires.view[old_slots], fill=NEVER_US)
            self._expiry_queue = self._expiry_queue.renumbered(renamed)


def _no_changes() -> Changes:
    return Changes(
        np.empty(0, np.int32), np.empty(0, np.int8), np.empty(0, np.int8),
        np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.float64),
    )  # fmt: skip


def _by_row(errors: Iterable[InvalidRow]) -> list[InvalidRow]:
    return sorted(errors, key=lambda error: error.row)
