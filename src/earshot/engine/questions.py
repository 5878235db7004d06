"""What an engine can be asked; no answer changes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from earshot.encoding import NO_TIME_US
from earshot.engine.durable import Durable
from earshot.engine.ids import kind_of
from earshot.engine.journal import Record
from earshot.errors import InvalidInput, described
from earshot.model.arrays import Space
from earshot.model.batches import check_kind, checked_id_array, id_array, instant, time_us
from earshot.model.explanations import Explanation
from earshot.model.messages import Message
from earshot.model.ranking import WordCounts
from earshot.model.regions import RegionOrPoint
from earshot.model.subscriptions import Id, checked_id
from earshot.model.updates import Result
from earshot.text import Vocabulary


class Questions(Durable):
    """The part of an engine that answers questions."""

    @property
    def semantics(self) -> Any:
        """What a delivery means: the settings that the engine was made with."""
        return self._state.matcher.settings

    @property
    def structure(self) -> str:
        """Name of the index structure."""
        return self._state.matcher.structure

    @property
    def space(self) -> Space:
        """Coordinates and metric."""
        return self._state.matcher.space

    @property
    def matcher(self) -> Any:
        """The semantics at work (a :class:`~earshot.semantics.contract.Matcher`), settled."""
        with self._lock:
            self._settle()
            return self._state.matcher

    @property
    def vocabulary(self) -> Vocabulary:
        """The words that subscriptions name, and messages where the semantics keeps them.

        And some that nothing uses any more. What they are numbered is good until the next change.
        """
        with self._lock:
            self._settle()
            return self._state.vocabulary

    def word_counts(self, at: datetime | None = None) -> WordCounts:
        """Return how many subscriptions ask for each word, for :meth:`reweigh` of several engines.

        For semantics that weigh words by subscriptions. Those count that live at the later of the
        engine's clock and ``at``.
        """
        with self._lock:
            self._settle()
            clock_us = self._state.clock_us
            return self._state.word_counts(clock_us if at is None else max(clock_us, time_us(at)))

    @property
    def id_type(self) -> pa.DataType:
        """Arrow type of the subscriptions' ids."""
        return pa.int64() if self._state.ids.kind == "integer" else pa.large_string()

    @property
    def message_id_type(self) -> pa.DataType:
        """Arrow type of the ids of the messages that are kept."""
        return self._state.message_ids.type

    @property
    def time(self) -> datetime | None:
        """The clock: the latest event time seen, if any."""
        return None if self._state.clock_us == NO_TIME_US else instant(self._state.clock_us)

    @property
    def n_messages(self) -> int:
        """Messages that are kept: those of the window."""
        with self._lock:
            return self._state.matcher.n_messages

    @property
    def next_expiry(self) -> datetime | None:
        """When the next subscription ends by itself, if any does."""
        with self._lock:
            next_us = self._state.expiry.next_us
            return None if next_us is None else instant(next_us)

    @property
    def next_due_us(self) -> int | None:
        """When something next happens by itself, in microseconds since 1970, if anything does.

        A subscription or a message ends, or a message has dwelled.
        """
        with self._lock:
            state = self._state
            instants = (state.expiry.next_us, state.matcher.next_due_us)
            return min((us for us in instants if us is not None), default=None)

    def __len__(self) -> int:
        with self._lock:
            return self._state.matcher.n_subscriptions

    def __contains__(self, subscription_id: object) -> bool:
        if not isinstance(subscription_id, int | str) or isinstance(subscription_id, bool):
            return False
        try:
            ids = id_array([subscription_id])
        except InvalidInput:  # no id can be that
            return False
        return bool(self.contains_batch(ids)[0])

    def contains_batch(self, ids: pa.Array) -> npt.NDArray[np.bool_]:
        """Return which of the ids belong to a subscription; none do that are of another kind."""
        ids = checked_id_array(ids)
        with self._lock:
            if self._state.ids.kind != kind_of(ids):
                return np.zeros(len(ids), bool)
            return self._state.ids.contains(ids)

    def results(self, subscription_id: Id) -> list[Result]:
        """Return the messages that a subscription holds, best first."""
        table = self.results_table(id_array([checked_id(subscription_id, "subscription")]))
        pairs = zip(table["message_id"].to_pylist(), table["score"].to_pylist(), strict=True)
        return [Result(message_id, score) for message_id, score in pairs]

    def results_table(self, ids: pa.Array | None = None) -> pa.Table:
        """Return the results of subscriptions: subscription_id, rank (from 1), message_id, score.

        For semantics that keep results.

        Args:
            ids: Which subscriptions, in this order; by default all, in the order they came.
        """
        with self._lock:
            if not self._state.matcher.keeps_results:
                raise InvalidInput(
                    f"{self._state.matcher.form.noun} keeps no results: a message is delivered "
                    f"once, when it is published"
                )
            return self._state.results_table(None if ids is None else checked_id_array(ids))

    def safe_region(self, subscription_id: Id) -> RegionOrPoint:
        """Return where a moving subscriber need not report its position.

        Wherever it is within that region, it holds what it holds now, less what ends. A message
        that arrives may change that: :meth:`outdated_safe_regions` names whose region no longer
        holds. A report ends it as well. A region without extent, a point, says that every move has
        to be reported. Saved engines and journals know the regions that were given out.
        """
        return self.safe_regions([checked_id(subscription_id, "subscription")])[0]

    def safe_regions(self, ids: Sequence[Id]) -> list[RegionOrPoint]:
        """Return the safe region of each of these subscriptions, of which none is named twice."""
        if isinstance(ids, str) or not isinstance(ids, Iterable):
            raise InvalidInput(f"ids is {described(ids)}; expected a list of ids")
        with self._lock:
            self._settle()
            given = id_array([checked_id(each, "subscription") for each in ids])
            slots = self._state.ids.slots_of(given)
            if len(np.unique(slots)) < len(slots):
                raise InvalidInput("a subscription is named twice; name each once")
            with self._lock.change(unless=InvalidInput):
                matcher = self._state.matcher
                found = matcher.safe_regions(slots)
                if self._journal is not None and len(slots):
                    # As they are: they depend on where a client was heading, too.
                    x, y, reach = matcher.given_areas(slots).T
                    rows = pa.table({"id": given, "x": x, "y": y, "reach": reach})
                    self._note(Record("give_safe_regions", rows))
                return found

    def _give_again(self, given: pa.Table) -> None:
        """Let subscriptions have the safe regions that a journal has noted; for those who replay.

        Args:
            given: Columns ``id``, ``x``, ``y``, ``reach``.
        """
        with self._lock:
            self._settle()
            slots = self._state.ids.slots_of(given["id"].combine_chunks())
            areas = np.stack([given[name].to_numpy() for name in ("x", "y", "reach")], axis=1)
            with self._lock.change():
                self._state.matcher.give_again(slots, areas)

    def outdated_safe_regions(self) -> list[Id]:
        """Return whose safe regions no longer hold, since the last call; tell them a new one.

        A client that is not within its new region reports its position.
        """
        with self._lock:
            with self._lock.change(unless=InvalidInput):
                slots = self._state.matcher.outdated_safe_regions()
                if len(slots):
                    self._note(Record("name_outdated"))
            found: list[Id] = self._state.ids.ids_of(slots).to_pylist()
            return found

    def explain(self, message: Message, subscription_id: Id) -> Explanation:
        """Say in words why a message would be delivered to a subscription now, or why not."""
        check_kind([message], Message, "explain")
        with self._lock:
            self._settle()
            wanted = checked_id(subscription_id, "subscription")
            return self._state.explain(message, wanted, self.analyzer)

    def memory(self) -> dict[str, int]:
        """Return the bytes of memory by part."""
        with self._lock:
            self._settle()
            return {
                **self._state.matcher.memory(),
                "vocabulary": self._state.vocabulary.nbytes,
                "subscription_ids": self._state.ids.nbytes,
                "message_ids": self._state.message_ids.nbytes,
                "expiry": self._state.expiry.nbytes,
            }

    def facts(self) -> dict[str, Any]:
        """Return what there is to know of the engine, by name."""
        with self._lock:
            self._settle()
            return {
                "semantics": self._state.matcher.name,
                **asdict(self.semantics),
                "structure": self.structure,
                "space": self.space,
                "n_subscriptions": len(self),
                **self._state.matcher.facts(),
                "n_tokens": len(self._state.vocabulary) - 1,
                "vocabulary_bytes": self._state.vocabulary.nbytes,
                "ids": str(self.id_type),
                "analyzer": asdict(self.analyzer),
            }
