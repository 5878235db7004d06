"""What happens: subscriptions come, go and move; messages are published."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from earshot.errors import InvalidInput, described
from earshot.model.messages import Message
from earshot.model.regions import RegionOrPoint
from earshot.model.subscriptions import Id, Subscription, check_region, check_time, checked_id


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A subscription begins."""

    subscription: Subscription
    time: datetime | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.subscription, Subscription):
            raise InvalidInput(f"subscribe: {described(self.subscription)} is not a Subscription")
        check_time(self.time, f"subscribe {self.subscription.id!r}: time")


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """A subscription ends."""

    id: Id
    time: datetime | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", checked_id(self.id, "subscription"))
        check_time(self.time, f"unsubscribe {self.id!r}: time")


@dataclass(frozen=True, slots=True)
class Move:
    """A subscription listens somewhere else from now on."""

    id: Id
    region: RegionOrPoint
    time: datetime | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", checked_id(self.id, "subscription"))
        check_region(self.region, f"move {self.id!r}")
        check_time(self.time, f"move {self.id!r}: time")


@dataclass(frozen=True, slots=True)
class Publish:
    """A message is published, at the message's own time."""

    message: Message

    def __post_init__(self) -> None:
        if not isinstance(self.message, Message):
            raise InvalidInput(f"publish: {described(self.message)} is not a Message")

    @property
    def time(self) -> datetime | None:
        """When it happened."""
        return self.message.time


Event: TypeAlias = Subscribe | Unsubscribe | Move | Publish
