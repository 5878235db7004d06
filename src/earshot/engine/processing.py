"""Events of all kinds, one after the other, taken in batches where they are known beforehand."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from earshot.encoding.columns import Bools
from earshot.engine.durable import Batch
from earshot.engine.state import State
from earshot.engine.updates import Updates
from earshot.errors import EarshotError, InvalidInput, UnknownSubscription, described
from earshot.model.batches import id_array, message_batch, region_batch, subscription_batch
from earshot.model.events import Event, Move, Publish, Subscribe, Unsubscribe
from earshot.model.messages import Message
from earshot.model.regions import RegionOrPoint as Region
from earshot.model.subscriptions import Id, Subscription
from earshot.model.updates import Update

_RUN_MOST = 4096
_RUN_LEAST = 8
"""Events of a run; fewer are faster one by one."""


class Processing:
    """The part of an engine that takes events."""

    _state: State

    def process(
        self,
        events: Iterable[Event],
        *,
        on_reject: Callable[[Event, EarshotError], object] | None = None,
    ) -> Iterator[Update]:
        """Take events in order; yield the updates that each of them causes.

        Events of a list or a tuple are taken in runs of like ones, of up to 4,096: several times as
        fast, with the same updates. They come once the run is taken. Events of any other iterable
        are taken one by one, and the updates of each are yielded before the next one is asked for.

        Args:
            events: What happens.
            on_reject: Called with each event that is refused, a late message for instance, and
                with the reason; then the next one is taken. By default the reason is raised.
        """
        if not isinstance(events, Iterable):
            raise InvalidInput(f"events is {described(events)}; expected a list of events")
        if not isinstance(events, list | tuple):
            for event in events:
                yield from self._take_one(event, on_reject)
            return
        start = 0
        while start < len(events):
            run = self._run_from(events, start)
            start += len(run)
            first = run[0]
            if len(run) >= _RUN_LEAST:
                if not self._tells_times(first) and first.time is not None:
                    yield from self.advance(first.time)
                updates = self._take_run(run)
                if updates is not None:
                    yield from updates
                    continue
            for event in run:
                yield from self._take_one(event, on_reject)

    def _take_one(
        self, event: Event, on_reject: Callable[[Event, EarshotError], object] | None
    ) -> Iterator[Update]:
        if not isinstance(event, Event):
            raise InvalidInput(
                f"{described(event)} is not an event; expected Subscribe, Unsubscribe, Move or "
                f"Publish"
            )
        if not isinstance(event, Publish) and event.time is not None:
            yield from self.advance(event.time)
        try:
            match event:
                case Publish(message):
                    updates = self.publish(message)
                case Subscribe(subscription):
                    updates = self.subscribe(subscription)
                case Move(subscription_id, region, time):
                    updates = self.move(
                        subscription_id, region, time=time if self._has_positions else None
                    )
                case Unsubscribe(subscription_id):
                    updates = self.unsubscribe(subscription_id)
        except (InvalidInput, UnknownSubscription) as error:
            if on_reject is None:
                raise
            on_reject(event, error)
        else:
            yield from updates

    def _run_from(self, events: Sequence[Event], start: int) -> Sequence[Any]:
        """Return the events from one on that a batch can take.

        Messages tell their own times, and so do positions. All else happens at the clock: a run of
        that has one time. A subscription that listens elsewhere does so once in a batch.
        """
        first = events[start]
        if not isinstance(first, Event):
            return events[start : start + 1]
        tells_times = self._tells_times(first)
        is_mixed = tells_times and self._has_positions
        kinds = (Publish, Move) if is_mixed else (type(first),)
        moved: set[Id] = set()
        stop = start
        for event in islice(events, start, start + _RUN_MOST):
            if not isinstance(event, kinds) or not (tells_times or event.time == first.time):
                break
            if isinstance(event, Move) and not tells_times:
                if event.id in moved:
                    break
                moved.add(event.id)
            stop += 1
        return events[start : max(stop, start + 1)]

    def _take_run(self, run: Sequence[Any]) -> Updates | None:
        """Take a run as a batch; None where that refuses one of them, and has done nothing."""
        try:
            return self._batch_of(run)
        except EarshotError:
            return None

    def _tells_times(self, event: Event) -> bool:
        """Whether batches of such events move the clock from one to the next."""
        return isinstance(event, Publish) or (self._has_positions and isinstance(event, Move))

    @property
    def _has_positions(self) -> bool:
        return self._state.matcher.form.moves_by_position

    def _batch_of(self, run: Sequence[Any]) -> Updates:
        match run[0]:
            case Subscribe():
                return self.subscribe_batch(subscription_batch([each.subscription for each in run]))
            case Unsubscribe():
                return self.unsubscribe_batch(id_array([each.id for each in run]))
        moves = [each for each in run if isinstance(each, Move)]
        messages = message_batch([each.message for each in run if isinstance(each, Publish)])
        if not moves:
            return self.publish_batch(messages)
        positions = region_batch(
            [each.id for each in moves],
            [each.region for each in moves],
            [each.time for each in moves] if self._has_positions else (),
            has_positions=self._has_positions,
        )
        if len(moves) == len(run):
            return self.move_batch(positions)
        is_move = np.array([isinstance(each, Move) for each in run])
        return self.take_batch(messages, positions, is_move=is_move)

    # ---- calls of the engine ------------------------------------------------------------------

    @abstractmethod
    def advance(self, time: datetime) -> Updates: ...  # noqa: D102 - as Engine's

    @abstractmethod
    def publish(self, *messages: Message) -> Updates: ...  # noqa: D102

    @abstractmethod
    def subscribe(self, *subscriptions: Subscription) -> Updates: ...  # noqa: D102

    @abstractmethod
    def unsubscribe(self, *ids: Id) -> Updates: ...  # noqa: D102

    @abstractmethod
    def move(  # noqa: D102
        self, subscription_id: Id, region: Region, time: datetime | None = None
    ) -> Updates: ...

    @abstractmethod
    def publish_batch(self, batch: Batch) -> Updates: ...  # noqa: D102

    @abstractmethod
    def subscribe_batch(self, batch: Batch) -> Updates: ...  # noqa: D102

    @abstractmethod
    def unsubscribe_batch(self, ids: pa.Array) -> Updates: ...  # noqa: D102

    @abstractmethod
    def move_batch(self, batch: Batch) -> Updates: ...  # noqa: D102

    @abstractmethod
    def take_batch(  # noqa: D102
        self, messages: Batch, moves: Batch, *, is_move: Bools | None = None
    ) -> Updates: ...
