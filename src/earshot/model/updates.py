"""What comes out: changes of subscribers' results."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from earshot.model.subscriptions import Id

Sign: TypeAlias = Literal["+", "-"]


@dataclass(frozen=True, slots=True)
class Update:
    """A message now belongs to a subscription's results (``+``), or no longer does (``-``).

    Attributes:
        message_id: Which message.
        subscription_id: Whose results.
        sign: Whether the message comes or goes.
        score: How well it matches, where the semantics ranks.
        reason: Why, in one word; ``match`` when a message was published and matched.
        time: The message's time for a publication, the engine's clock for any other event; None
            where there is none.
    """

    message_id: Id
    subscription_id: Id
    sign: Sign = "+"
    score: float | None = None
    reason: str = "match"
    time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A message that a subscription holds.

    Attributes:
        message_id: Which message.
        score: How well it matches, where the semantics ranks.
    """

    message_id: Id
    score: float | None = None
