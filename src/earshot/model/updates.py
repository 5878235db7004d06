"""What comes out: changes of subscribers' results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from earshot.model.subscriptions import Id

Sign: TypeAlias = Literal["+", "-"]


@dataclass(frozen=True, slots=True)
class Update:
    """A message now belongs to a subscription's results (``+``), or no longer does (``-``).

    Attributes:
        sign: Whether the message comes or goes.
        message_id: Which message.
        subscription_id: Whose results.
        score: How well it matches, where the semantics ranks.
        reason: Why, in one word; ``match`` when a message was published and matched.
    """

    sign: Sign
    message_id: Id
    subscription_id: Id
    score: float | None = None
    reason: str = "match"
