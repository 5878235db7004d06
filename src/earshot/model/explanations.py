"""Why a message is delivered to a subscription, or why not."""

from __future__ import annotations

from dataclasses import dataclass

from earshot.model.subscriptions import Id


@dataclass(frozen=True)
class Explanation:
    """The outcome, and what each condition contributed to it.

    Attributes:
        matched: Whether the message is delivered.
        message_id: Which message.
        subscription_id: To whom, or not.
        reasons: What led to it, one line each.
        score: How well it matches, where the semantics ranks; None where a word rules it out.
    """

    matched: bool
    message_id: Id
    subscription_id: Id
    reasons: tuple[str, ...]
    score: float | None = None

    def __str__(self) -> str:
        verdict = "is delivered to" if self.matched else "is not delivered to"
        lines = [f"Message {self.message_id!r} {verdict} subscription {self.subscription_id!r}:"]
        return "\n".join([*lines, *(f"  - {reason}" for reason in self.reasons)])
