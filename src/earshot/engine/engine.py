"""The engine: events in, updates out.

Subscriptions come, go and move, messages are published, and each publication gives the updates that
it causes. Changes take effect before the next message. Calls come one at a time or in batches, and
from any thread: the engine serialises them.

**Time** is event time. The engine's clock is the latest time that any event has carried; it never
goes back. A subscription with an expiry is live for messages that find the clock before it.

**Growth.** A large first load is built as one index; later changes go to the index's delta, or into
the index itself where that is a tree. When the delta has grown to a share of the index, a new one
is built in the background and takes over.

**Ranked.** An engine with a :class:`~earshot.model.ranking.Ranking` scores messages and delivers
those that reach a threshold. All words weigh the same until :meth:`Engine.reweigh`, so that when an
index is built changes no score.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from earshot import storage
from earshot.encoding import (
    NEVER_US,
    NO_TIME_US,
    EncodedMessages,
    EncodedRegions,
    EncodedSubscriptions,
    encode_messages,
    encode_regions,
    encode_subscriptions,
)
from earshot.engine.deliveries import Deliveries
from earshot.engine.expiry import ExpiryArrays, ExpiryQueue
from earshot.engine.explanation import Explanation, explain_match, explain_score
from earshot.engine.ids import IdArrays, IdTable, unknown_row
from earshot.errors import (
    DuplicateSubscription,
    InvalidInput,
    InvalidParameter,
    InvalidRow,
    SavedIndexError,
    check_threads,
    raise_first,
)
from earshot.indexes import default_structure, index_type, open_index
from earshot.indexes.answers import Matches
from earshot.indexes.contract import Index, Parameters, Snapshot
from earshot.indexes.ranked_contract import RankedIndex, RankedParameters
from earshot.kernels.answers import keep_unexpired
from earshot.kernels.growing import GrowingArray
from earshot.model.arrays import (
    EVERYWHERE_TOKEN,
    ClauseArrays,
    Int32s,
    Int64s,
    Space,
    box_clauses,
    concat_clauses,
    gather_ranges,
)
from earshot.model.batches import id_array, instant, message_batch, subscription_batch, time_us
from earshot.model.events import Event, Move, Publish, Subscribe, Unsubscribe
from earshot.model.messages import Message
from earshot.model.ranking import Ranking, idf_weights
from earshot.model.regions import Point
from earshot.model.regions import RegionOrPoint as Region
from earshot.model.schemas import id_kind
from earshot.model.subscriptions import Id, Subscription, check_time
from earshot.model.updates import Update
from earshot.text import Analyzer, TokenLists, Vocabulary
from earshot.text.vocabulary import VocabularyArrays

Batch: TypeAlias = pa.RecordBatch | pa.Table

REBUILD_SHARE = 0.05
"""Share of an index's subscriptions that may change before it is rebuilt in the background."""
REBUILD_LEAST = 20_000
"""Changes that never cause a rebuild in the background, however small the index."""
REBUILD_SMALL = 1_000
"""Changes from which a small index is rebuilt on the spot when they outnumber what it was built of.

Its box keys were made for those few, and tell the newcomers' boxes badly apart."""
_NO_SCORES = np.empty(0, np.float64)
_UNBOUNDED = "has no keywords, so without a region every message would match; give a region"


class Engine:
    """Matches messages with subscriptions.

    A message goes to every subscription whose condition and region it meets; or, with a ranking, to
    every subscription for which it scores enough.

    Args:
        space: ``lonlat`` (degrees, radii in metres) or ``planar`` (any unit).
        analyzer: How text and keywords become tokens.
        ranking: How messages are scored, and what they must score; without it nothing is.
        index: Name of the index structure; by default the fastest for the semantics.
        parameters: Options of that structure; ``alpha`` and ``threshold`` are those of the ranking.
        n_threads: Threads that match a batch, and that build the index.
        rebuild_in_background: Whether many changes start a rebuild of the index by themselves.
    """

    def __init__(
        self,
        *,
        space: Space = "lonlat",
        analyzer: Analyzer | None = None,
        ranking: Ranking | None = None,
        index: str | None = None,
        parameters: Parameters | None = None,
        n_threads: int = 1,
        rebuild_in_background: bool = True,
    ) -> None:
        check_threads(n_threads)
        self.rebuild_in_background = rebuild_in_background
        self._index: Index
        if ranking is None:
            kind = index_type(index or default_structure("boolean"))
            self._index = kind.build(_nothing(), space=space, parameters=parameters)
        else:
            self._index = _empty_ranked_index(ranking, index, parameters, space)
        self._start(analyzer or Analyzer(), Vocabulary(), IdTable(), n_threads)

    def _start(
        self, analyzer: Analyzer, vocabulary: Vocabulary, ids: IdTable, n_threads: int
    ) -> None:
        self.analyzer = analyzer
        self.n_threads = n_threads
        self._vocabulary = vocabulary
        self._ids = ids
        self._lock = threading.RLock()
        self._clock_us = NO_TIME_US
        # Clauses that were subscribed since the last use of the index.
        self._pending: list[ClauseArrays] = []
        self._n_pending = 0
        self._expires: GrowingArray | None = None  # expiry of each slot, once any has one
        self._expiry_queue = ExpiryQueue()
        self._rebuild: threading.Thread | None = None
        self._rebuild_error: BaseException | None = None
        self._n_changes_at_failure = 0  # when a rebuild failed; the next waits for twice as many

    # ---- events, one at a time or a few -------------------------------------------------------

    def subscribe(self, *subscriptions: Subscription) -> None:
        """Add subscriptions; their ids must be new."""
        if not subscriptions:
            return
        with self._lock:
            ids = id_array([each.id for each in subscriptions])
            taken = self._ids.contains(ids)
            if taken.any():
                raise DuplicateSubscription(
                    f"subscription {ids[int(taken.argmax())].as_py()!r} exists already; "
                    f"unsubscribe it first or choose another id"
                )
            self.subscribe_batch(subscription_batch(subscriptions))

    def unsubscribe(self, *ids: Id) -> None:
        """End subscriptions."""
        if ids:
            self.unsubscribe_batch(id_array(ids))

    def move(self, subscription_id: Id, region: Region) -> None:
        """Let a subscription listen elsewhere; keywords, expiry and threshold stay."""
        self.move_batch(subscription_batch([Subscription(subscription_id, ("x",), region=region)]))

    def publish(self, *messages: Message) -> list[Update]:
        """Publish messages in this order; return the updates they cause."""
        return self.publish_batch(message_batch(messages)).updates()

    def process(self, events: Iterable[Event]) -> Iterator[Update]:
        """Take events in order; yield the updates of each before the next one is taken.

        Every event is worked on by itself; :meth:`publish_batch` is much faster for many messages.
        """
        for event in events:
            match event:
                case Publish(message):
                    yield from self.publish(message)
                case Subscribe(subscription):
                    self._advance_to(event.time)
                    self.subscribe(subscription)
                case Unsubscribe(subscription_id):
                    self._advance_to(event.time)
                    self.unsubscribe(subscription_id)
                case Move(subscription_id, region):
                    self._advance_to(event.time)
                    self.move(subscription_id, region)
                case _:
                    raise InvalidInput(
                        f"{event!r} is not an event; expected Subscribe, Unsubscribe, Move or "
                        f"Publish"
                    )

    def advance(self, time: datetime) -> None:
        """Set the clock to ``time`` if that is later; subscriptions may expire."""
        check_time(time, "time")
        self._advance_to(time)

    # ---- events in batches --------------------------------------------------------------------

    def subscribe_batch(
        self, batch: Batch, *, source: str = "", first_row: int = 0, rows: Int64s | None = None
    ) -> None:
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
            self._add(encoded)

    def try_subscribe_batch(
        self, batch: Batch, *, source: str = "", first_row: int = 0, rows: Int64s | None = None
    ) -> list[InvalidRow]:
        """Add the good rows of a batch of subscriptions; return what is wrong with the others."""
        with self._lock:
            encoded = self._encode(batch, source, first_row, rows)
            self._add(encoded)
            return encoded.rejects

    def unsubscribe_batch(self, ids: pa.Array) -> None:
        """End all these subscriptions or, if any is unknown, none."""
        with self._lock:
            self._remove(self._slots_of(ids))

    def try_unsubscribe_batch(self, ids: pa.Array) -> list[InvalidRow]:
        """End those of the subscriptions that there are; return the others, each as a row."""
        with self._lock:
            known = self.contains_batch(ids)
            self._remove(self._slots_of(ids.filter(pa.array(known))))
            return [unknown_row(ids, row, row) for row in np.flatnonzero(~known).tolist()]

    def move_batch(self, batch: Batch) -> None:
        """Move subscriptions: ``id`` and region of each, in the columns of subscriptions."""
        with self._lock:
            encoded = encode_regions(batch, self.space)
            raise_first(encoded.rejects)
            slots = self._slots_of(encoded.ids)
            new = _moved_clauses(self._settled_index(), slots, encoded, first_slot=len(self._ids))
            unbounded = _unbounded_rows(new, first_slot=len(self._ids))
            if len(unbounded):
                raise InvalidInput(
                    f"subscription {encoded.ids[int(unbounded[0])].as_py()!r} {_UNBOUNDED}"
                )
            self._replace(slots, encoded.ids, new)

    def try_move_batch(self, batch: Batch) -> list[InvalidRow]:
        """Move what can be moved; return what is wrong with the other rows."""
        with self._lock:
            encoded = encode_regions(batch, self.space)
            errors = list(encoded.rejects)
            rows = np.delete(np.arange(batch.num_rows), [error.row for error in errors])
            known = self.contains_batch(encoded.ids)
            if not known.all():
                errors += [
                    unknown_row(encoded.ids, at, int(rows[at]))
                    for at in np.flatnonzero(~known).tolist()
                ]
                rows = rows[known]
                encoded = encode_regions(batch.take(pa.array(rows)), self.space)
            slots = self._slots_of(encoded.ids)
            new = _moved_clauses(self._settled_index(), slots, encoded, first_slot=len(self._ids))
            unbounded = _unbounded_rows(new, first_slot=len(self._ids))
            if len(unbounded):
                errors += [InvalidRow("", int(rows[at]), "id", _UNBOUNDED) for at in unbounded]
                self.move_batch(batch.take(pa.array(np.delete(rows, unbounded))))
            else:
                self._replace(slots, encoded.ids, new)
            return sorted(errors, key=lambda error: error.row)

    def publish_batch(
        self,
        batch: Batch,
        *,
        on_error: str = "raise",
        source: str = "",
        first_row: int = 0,
        rows: Int64s | None = None,
    ) -> Deliveries:
        """Publish a batch of messages in their order.

        Args:
            batch: Columns of :data:`earshot.model.schemas.MESSAGES`.
            on_error: ``raise`` the first wrong row before anything is published, or ``reject``:
                publish the good rows and return the others with their reasons.
            source: Where the rows came from, for errors.
            first_row: Number of the first row there.
            rows: Number of each row there, where they do not follow one another.
        """
        with self._lock:
            encoded = self._encode_messages(batch, on_error, source, first_row, rows)
            clocks_us = np.maximum.accumulate(np.maximum(encoded.times, self._clock_us))
            # Taken before the clock moves: then a rebuild may number the slots anew, and they mean
            # what they do in this table of ids.
            deliveries = self._deliveries(encoded, clocks_us)
            if len(clocks_us):
                self._advance(int(clocks_us[-1]))
        return deliveries

    def match_batch(
        self,
        batch: Batch,
        *,
        at: datetime | None = None,
        on_error: str = "raise",
        source: str = "",
        first_row: int = 0,
        rows: Int64s | None = None,
    ) -> Deliveries:
        """Match messages without publishing them: nothing changes, so their order is irrelevant.

        Each message finds the subscriptions that are live at the latest of the engine's clock,
        ``at`` and its own time. The other arguments are as for :meth:`publish_batch`.
        """
        with self._lock:
            encoded = self._encode_messages(batch, on_error, source, first_row, rows)
            clock_us = max(self._clock_us, NO_TIME_US if at is None else time_us(at))
            return self._deliveries(encoded, np.maximum(encoded.times, clock_us))

    # ---- questions ----------------------------------------------------------------------------

    @property
    def space(self) -> Space:
        """Coordinates and metric."""
        return self._index.space

    @property
    def ranking(self) -> Ranking | None:
        """How messages are scored, and what they must score; None where matching is boolean."""
        index = self._index
        return index.parameters.ranking if isinstance(index, RankedIndex) else None

    @property
    def index(self) -> Index:
        """The index with everything that was subscribed so far."""
        with self._lock:
            return self._settled_index()

    @property
    def vocabulary(self) -> Vocabulary:
        """All tokens that any subscription has named."""
        return self._vocabulary

    @property
    def id_type(self) -> pa.DataType:
        """Arrow type of the subscriptions' ids."""
        return pa.int64() if self._ids.kind == "integer" else pa.large_string()

    @property
    def time(self) -> datetime | None:
        """The clock: the latest event time seen, if any."""
        if self._clock_us == NO_TIME_US:
            return None
        return instant(self._clock_us)

    def __len__(self) -> int:
        with self._lock:
            return self._settled_index().n_subscriptions

    def __contains__(self, subscription_id: object) -> bool:
        if not isinstance(subscription_id, int | str) or isinstance(subscription_id, bool):
            return False
        try:
            ids = id_array([subscription_id])
        except InvalidInput:  # no id can be that
            return False
        with self._lock:
            return self._ids.kind == id_kind(ids.type) and bool(self._ids.contains(ids)[0])

    def contains_batch(self, ids: pa.Array) -> npt.NDArray[np.bool_]:
        """Return which of the ids belong to a subscription."""
        with self._lock:
            return self._ids.contains(ids)

    @property
    def next_expiry(self) -> datetime | None:
        """When the next subscription ends by itself, if any does."""
        with self._lock:
            self._settled_index()
            next_us = self._expiry_queue.next_us
            return None if next_us is None else instant(next_us)

    def explain(self, message: Message, subscription_id: Id) -> Explanation:
        """Say in words why a message would be delivered to a subscription now, or why not."""
        with self._lock:
            slots = self._slots_of(id_array([subscription_id]))
            encoded = encode_messages(
                message_batch([message]), self.analyzer, self._vocabulary, self.space
            )
            raise_first(encoded.rejects)
            clock = max(self._clock_us, int(encoded.times[0]))
            expires = NEVER_US if self._expires is None else int(self._expires.view[slots[0]])
            expired_at = instant(expires) if expires <= clock else None
            index = self._settled_index()
            clauses = index.clauses_of(slots)
            if not isinstance(index, RankedIndex):
                return explain_match(
                    message, subscription_id, clauses=clauses, messages=encoded.messages,
                    vocabulary=self._vocabulary, space=self.space, expired_at=expired_at,
                )  # fmt: skip
            weights = np.full(len(self._vocabulary), index.later_weight)
            n_weighed = min(len(weights), len(index.weights))  # a tree has some to spare
            weights[:n_weighed] = index.weights[:n_weighed]
            return explain_score(
                message, subscription_id, clauses=clauses, messages=encoded.messages,
                vocabulary=self._vocabulary, space=self.space, expired_at=expired_at,
                ranking=index.parameters.ranking, weights=weights,
            )  # fmt: skip

    # ---- saving -------------------------------------------------------------------------------

    def save(self, directory: str | Path) -> None:
        """Write everything to a new directory."""
        with self._lock:
            index = self._settled_index()  # first: it may renumber the slots
            ranking = self.ranking
            facts = {
                "engine": index.semantics,
                **({} if ranking is None else asdict(ranking)),
                "analyzer": asdict(self.analyzer),
                "id_kind": self._ids.kind,
                "clock_us": self._clock_us,
            }
            expires = np.empty(0, np.int64) if self._expires is None else self._expires.view
            groups = {
                "vocabulary": self._vocabulary.arrays,
                "ids": self._ids.arrays,
                "expiry": ExpiryArrays(expires),
            }
            storage.save(directory, facts, groups, inner={"index": index.save})

    @classmethod
    def open(
        cls, directory: str | Path, *, n_threads: int = 1, rebuild_in_background: bool = True
    ) -> Self:
        """Open a saved engine by memory-mapping its arrays; changes stay in this process."""
        facts = storage.read_facts(directory)
        semantics = facts.get("engine")
        if semantics == "topk":
            raise SavedIndexError(
                f"{directory} holds an engine of top-k over a window; open it with TopkEngine.open"
            )
        if semantics not in ("boolean", "ranked"):
            raise SavedIndexError(f"{directory} does not hold an engine; rebuild it with 'save'")
        self = cls.__new__(cls)
        self.rebuild_in_background = rebuild_in_background
        self._index = open_index(Path(directory) / "index")
        self._start(
            Analyzer(**facts["analyzer"]),
            Vocabulary.from_arrays(storage.open_group(directory, "vocabulary", VocabularyArrays)),
            IdTable(facts["id_kind"], storage.open_group(directory, "ids", IdArrays)),
            n_threads,
        )
        self._clock_us = facts["clock_us"]
        expires = storage.open_group(directory, "expiry", ExpiryArrays).expires
        if len(expires):
            self._expires = GrowingArray(expires, fill=NEVER_US)
            self._queue_expiries(np.arange(len(expires), dtype=np.int32))
        return self

    def rebuild(self) -> None:
        """Merge all changes into a new index now; matching is faster afterwards."""
        with self._lock:
            index = self._settled_index()
            if index.n_changes:
                snapshot = index.snapshot()
                new, old_slots = index.rebuilt(snapshot, n_threads=self.n_threads)
                self._take_over(snapshot, new, old_slots, self._ids.renumbered(old_slots))

    def reweigh(self) -> None:
        """Weigh words by how rare they are among the subscriptions there are now; ranked only.

        A word that n of N subscriptions ask for weighs ``ln((N + 1) / (n + 1)) + 1``, and so does
        one that comes later, with n = 0. Before the first call all weigh 1. Nothing else changes a
        score.
        """
        with self._lock:
            index = self._index
            if not isinstance(index, RankedIndex):
                raise InvalidInput(
                    "reweigh is for ranked matching, where words have weights; make the engine "
                    "with Engine(ranking=...)"
                )
            if index.n_slots == 0:
                # Nothing is built so far: what is pending will be, with these weights.
                pending = concat_clauses([_nothing(), *self._pending])
                self._index = self._weighed(_nothing(), pending)
                self._settled_index()
                return
            snapshot = self._settled_index().snapshot()
            clauses, old_slots = snapshot.live_clauses()
            new = self._weighed(clauses, clauses)
            self._take_over(snapshot, new, old_slots, self._ids.renumbered(old_slots))

    def warm_up(self) -> None:
        """Do ahead of the first message what it would wait for.

        The index is brought up to date, the pages of an opened one are mapped, and what matching
        needs is compiled.
        """
        with self._lock:
            index = self._settled_index()
            storage.bring_in((index.arrays, self._ids.arrays))
            # Not ASCII, so that the tables of other characters are there as well.
            nowhere = message_batch([Message(0, "wärm up", place=Point(0, 0))])
            encoded = encode_messages(nowhere, self.analyzer, self._vocabulary, self.space)
            self._ids.ids_of(index.match(encoded.messages).subscriptions)

    def wait(self) -> None:
        """Wait for a rebuild in the background to end, and raise what went wrong in it."""
        thread = self._rebuild
        if thread is not None:
            thread.join()
        if self._rebuild_error is not None:
            error, self._rebuild_error = self._rebuild_error, None
            raise error

    # ---- inside -------------------------------------------------------------------------------

    def _encode(
        self, batch: Batch, source: str, first_row: int, rows: Int64s | None
    ) -> EncodedSubscriptions:
        return encode_subscriptions(
            batch, self.analyzer, self._vocabulary, self.space,
            source=source, first_row=first_row, rows=rows, first_slot=len(self._ids),
            is_taken=self._ids.contains, is_ranked=isinstance(self._index, RankedIndex),
        )  # fmt: skip

    def _add(self, encoded: EncodedSubscriptions) -> None:
        tokens = encoded.clauses.token_ids
        self._vocabulary.add_documents(_one_document(tokens[tokens > EVERYWHERE_TOKEN]))
        has_expiry = bool((encoded.expires != NEVER_US).any())
        self._append(encoded.ids, encoded.clauses, encoded.expires if has_expiry else None)
        self._advance(self._clock_us)  # some may have expired before they came

    def _append(self, ids: pa.Array, clauses: ClauseArrays, expires: Int64s | None) -> None:
        """Hand out the next slots, which the clauses name."""
        first_slot = len(self._ids)
        self._ids.append(ids)
        self._pending.append(clauses)
        self._n_pending += len(ids)
        if expires is not None and self._expires is None:
            self._expires = GrowingArray(np.empty(0, np.int64), fill=NEVER_US)
            self._expires.resize(first_slot)
        if self._expires is not None:
            self._expires.resize(len(self._ids))
        if self._expires is not None and expires is not None:
            self._expires.view[first_slot:] = expires
            self._queue_expiries(np.arange(first_slot, len(self._ids), dtype=np.int32))

    def _remove(self, slots: Int32s) -> None:
        if len(np.unique(slots)) < len(slots):
            raise InvalidInput("the same subscription is named more than once in a batch")
        self._settled_index().remove(slots)
        self._ids.forget(slots)
        self._start_rebuild_if_due()

    def _slots_of(self, ids: pa.Array) -> Int32s:
        """Return the slots of live subscriptions, with everything pending in the index.

        Settling comes first because it may rebuild the index, which renumbers the slots.
        """
        self._settled_index()
        return self._ids.slots_of(ids)

    def _encode_messages(
        self, batch: Batch, on_error: str, source: str, first_row: int, rows: Int64s | None
    ) -> EncodedMessages:
        if on_error not in ("raise", "reject"):
            raise InvalidParameter(f"on_error is {on_error!r}; expected 'raise' or 'reject'")
        encoded = encode_messages(
            batch, self.analyzer, self._vocabulary, self.space,
            source=source, first_row=first_row, rows=rows,
        )  # fmt: skip
        if on_error == "raise":
            raise_first(encoded.rejects)
        return encoded

    def _deliveries(self, encoded: EncodedMessages, clocks_us: Int64s) -> Deliveries:
        """Match each message as of its own clock."""
        found = self._settled_index().match(encoded.messages, n_threads=self.n_threads)
        if self._expires is not None and len(clocks_us):
            scores = _NO_SCORES if found.scores is None else found.scores
            offsets, slots, kept_scores = keep_unexpired(
                found.offsets, found.subscriptions, scores, self._expires.view, clocks_us
            )
            found = Matches(
                offsets,
                slots,
                found.counters._replace(answers=len(slots)),
                None if found.scores is None else kept_scores,
            )
        latest_us = int(encoded.times.max(initial=NO_TIME_US))
        return Deliveries(
            encoded.ids,
            found.offsets,
            found.counters,
            encoded.rejects,
            None if latest_us == NO_TIME_US else instant(latest_us),
            found.scores,
            found.subscriptions,
            self._ids,
        )

    def _replace(self, slots: Int32s, ids: pa.Array, clauses: ClauseArrays) -> None:
        """Put other clauses in the place of subscriptions; ids and expiry stay."""
        expires = None if self._expires is None else self._expires.view[slots]
        self._remove(slots)
        self._append(ids, clauses, expires)

    def _advance_to(self, time: datetime | None) -> None:
        if time is not None:
            with self._lock:
                self._advance(time_us(time))

    def _advance(self, clock_us: int) -> None:
        self._clock_us = max(self._clock_us, clock_us)
        if not self._expiry_queue.is_due(self._clock_us):
            return
        index = self._settled_index()  # before the slots are taken: it may renumber them
        expired = self._expiry_queue.pop_until(self._clock_us)
        self._remove(expired[index.is_alive(expired)])

    def _queue_expiries(self, slots: Int32s) -> None:
        assert self._expires is not None
        times_us = self._expires.view[slots]
        ends = times_us != NEVER_US
        self._expiry_queue.push(times_us[ends], slots[ends])

    def _settled_index(self) -> Index:
        """Return the index with all pending clauses in it."""
        n_pending, index = self._n_pending, self._index
        if not n_pending:
            return index
        if index.n_slots == 0:
            # As a rebuild of what is pending, so that it is built as the index was.
            pending = Snapshot(self._pending, np.ones(n_pending, np.bool_))
            self._index, _ = index.rebuilt(pending, n_threads=self.n_threads)
            self._pending, self._n_pending = [], 0
            return self._index
        self._insert_pending(index)
        is_small = index.n_slots < REBUILD_LEAST and index.n_changes > REBUILD_SMALL
        if (is_small or n_pending > REBUILD_LEAST) and index.n_changes > index.n_base_slots:
            # More than what is there already: a delta would be slower than building now.
            self.rebuild()
        else:
            self._start_rebuild_if_due()
        return self._index

    def _weighed(self, clauses: ClauseArrays, asking: ClauseArrays) -> RankedIndex:
        """Return an index of clauses, with words weighed by how many others ask for them."""
        index = self._index
        assert isinstance(index, RankedIndex)
        counts = _subscriptions_by_token(asking, len(self._vocabulary))
        weights, later_weight = idf_weights(counts)
        return type(index).build(
            clauses,
            space=self.space,
            parameters=index.parameters,
            n_threads=self.n_threads,
            weights=weights,
            later_weight=later_weight,
        )

    def _insert_pending(self, index: Index) -> None:
        index.insert(concat_clauses(self._pending))
        # Only now: what failed to go in is tried again.
        self._pending, self._n_pending = [], 0

    def _start_rebuild_if_due(self) -> None:
        index = self._index
        due = max(
            REBUILD_LEAST, int(REBUILD_SHARE * index.n_base_slots), 2 * self._n_changes_at_failure
        )
        if index.n_changes < due or self._rebuild is not None or not self.rebuild_in_background:
            return
        snapshot, old_ids = index.snapshot(), self._ids

        def run() -> None:
            try:
                new, old_slots = index.rebuilt(snapshot)
                # Not self._ids: a rebuild in the foreground may have renumbered those already.
                ids = old_ids.renumbered(old_slots)
                with self._lock:
                    if self._index is index:  # else a rebuild in the foreground came first
                        self._take_over(snapshot, new, old_slots, ids)
            except BaseException as error:
                self._rebuild_error = error
                self._n_changes_at_failure = index.n_changes
                raise
            finally:
                self._rebuild = None

        self._rebuild = threading.Thread(target=run, name="earshot-rebuild", daemon=True)
        self._rebuild.start()

    def _take_over(self, snapshot: Snapshot, new: Index, old_slots: Int32s, ids: IdTable) -> None:
        """Bring a rebuilt index up to date with what changed since its snapshot, and use it."""
        old = self._index
        if self._n_pending:
            # Not by settling, which could rebuild the index that is being replaced here.
            self._insert_pending(old)
        removed = np.flatnonzero(~old.is_alive(old_slots)).astype(np.int32)
        since = np.arange(len(snapshot.alive), old.n_slots, dtype=np.int32)
        added = since[old.is_alive(since)]
        new.remove(removed)
        ids.forget(removed)
        if len(added):
            clauses = old.clauses_of(added)
            new_slots = np.searchsorted(added, clauses.subscriptions) + len(old_slots)
            new.insert(clauses._replace(subscriptions=new_slots.astype(np.int32)))
            ids.append(self._ids.ids_of(added))
        self._index, self._ids = new, ids
        self._n_changes_at_failure = 0
        if self._expires is not None:
            kept = np.concatenate([old_slots, added])
            renamed = np.full(old.n_slots, -1, np.int32)
            renamed[kept] = np.arange(len(kept), dtype=np.int32)
            self._expires = GrowingArray(self._expires.view[kept], fill=NEVER_US)
            self._expiry_queue = self._expiry_queue.renumbered(renamed)


def _nothing() -> ClauseArrays:
    return box_clauses([0], [], np.empty((0, 4)))


def _empty_ranked_index(
    ranking: Ranking, index: str | None, parameters: Parameters | None, space: Space
) -> RankedIndex:
    """Return an index in which all words weigh 1, those that come later too."""
    if not isinstance(ranking, Ranking):
        raise InvalidParameter(f"ranking is {ranking!r}; expected Ranking(alpha, threshold)")
    kind = index_type(index or default_structure("ranked"), "ranked")
    given = kind.parameters_type() if parameters is None else parameters
    if isinstance(given, RankedParameters):  # else the index says what it expects
        given = replace(given, alpha=ranking.alpha, threshold=ranking.threshold)
    return kind.build(
        _nothing(), space=space, parameters=given, weights=np.ones(1), later_weight=1.0
    )


def _subscriptions_by_token(clauses: ClauseArrays, n_tokens: int) -> Int64s:
    """Return how many subscriptions ask for each token; all do for the first."""
    is_required = clauses.token_ids >= 0
    tokens = clauses.token_ids[is_required]
    n_slots = int(clauses.subscriptions.max(initial=-1)) + 1
    if len(clauses.subscriptions) > n_slots:  # alternatives may ask for the same
        slots = np.repeat(clauses.subscriptions, np.diff(clauses.token_offsets))[is_required]
        tokens = np.unique(slots.astype(np.int64) * n_tokens + tokens) % n_tokens
    counts = np.bincount(tokens, minlength=n_tokens).astype(np.int64)
    counts[EVERYWHERE_TOKEN] = n_slots
    return counts


def _one_document(token_ids: Int32s) -> TokenLists:
    return TokenLists(np.array([0, len(token_ids)], np.int64), token_ids)


def _unbounded_rows(clauses: ClauseArrays, first_slot: int) -> Int64s:
    """Return which subscriptions ask for no keyword and listen everywhere, counted from 0."""
    starts = clauses.token_offsets[:-1]
    wordless = (np.diff(clauses.token_offsets) == 1) & (
        clauses.token_ids[starts] == EVERYWHERE_TOKEN
    )
    everything = wordless & np.isinf(clauses.boxes[:, 0])
    rows: Int64s = np.unique(clauses.subscriptions[everything]).astype(np.int64) - first_slot
    return rows


def _moved_clauses(
    index: Index, slots: Int32s, regions: EncodedRegions, first_slot: int
) -> ClauseArrays:
    """Return the clauses of ``slots`` with new regions and new slots, in the order of ``slots``."""
    old = index.clauses_of(slots)
    order = np.argsort(slots, kind="stable")
    owners = order[np.searchsorted(slots[order], old.subscriptions)]
    # A region in several boxes repeats its tokens; take each list of tokens of a slot once.
    tokens_of: dict[tuple[int, bytes], int] = {}
    for row, owner in enumerate(owners.tolist()):
        first, last = old.token_offsets[row], old.token_offsets[row + 1]
        tokens_of.setdefault((owner, old.token_ids[first:last].tobytes()), row)
    found = sorted((owner, row) for (owner, _), row in tokens_of.items())
    pairs = np.array(found, np.int64).reshape(-1, 2)
    box_rows, boxes = gather_ranges(regions.offsets, pairs[:, 0])
    n_boxes = np.diff(box_rows)
    token_rows = np.repeat(pairs[:, 1], n_boxes)
    token_offsets, positions = gather_ranges(old.token_offsets, token_rows)
    return ClauseArrays(
        (np.repeat(pairs[:, 0], n_boxes) + first_slot).astype(np.int32),
        token_offsets,
        old.token_ids[positions],
        regions.boxes[boxes],
        regions.shape_rows[boxes],
        regions.shapes,
        old.thresholds[token_rows] if len(old.thresholds) else old.thresholds,
    )
