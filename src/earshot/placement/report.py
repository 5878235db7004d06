"""What the samples that a plan was cut from say of its shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from earshot.model.arrays import Float64s, Int64s

TAKE_COST = 300.0
"""Candidates that cost a shard about as much as taking up a message at all."""


@dataclass(frozen=True)
class PlanReport:
    """What a plan's samples say of its shards."""

    subscriptions: Float64s  # expected in each shard
    messages: Int64s  # sampled ones that go to each shard
    candidates: Float64s  # subscriptions that they are expected to examine there
    n_messages: int  # sampled ones
    cuts: dict[str, int]  # how many nodes cut by what

    @property
    def replication(self) -> float:
        """Mean number of shards that a message goes to."""
        return float(self.messages.sum() / max(self.n_messages, 1))

    @property
    def balance(self) -> float:
        """Work of the busiest shard, as a multiple of the mean; 1 is perfect."""
        return busiest_share(self.candidates + TAKE_COST * self.messages)

    def facts(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            "n_shards": len(self.subscriptions),
            "n_messages": self.n_messages,
            "shards_per_message": self.replication,
            "balance": self.balance,
            "balance_of_subscriptions": busiest_share(self.subscriptions),
            "balance_of_messages": busiest_share(self.messages),
            "balance_of_candidates": busiest_share(self.candidates),
            "cuts": self.cuts,
            "subscriptions": np.rint(self.subscriptions).astype(np.int64).tolist(),
            "messages": self.messages.tolist(),
            "candidates": np.rint(self.candidates).astype(np.int64).tolist(),
        }

    def lines(self) -> list[str]:
        """Return the report for people."""
        cuts = ", ".join(f"{n} by {name}" for name, n in self.cuts.items() if n)
        lines = [
            f"{len(self.subscriptions)} shards ({cuts or 'no cut'}); a message goes to "
            f"{self.replication:.2f} of them; the busiest has {self.balance:.2f} times the mean "
            f"work"
        ]
        n = max(self.n_messages, 1)
        for name, values in (
            ("subscriptions", self.subscriptions),
            ("% of messages", 100 * self.messages / n),
            ("candidates per message", self.candidates / n),
        ):
            lines.append(
                f"{name} per shard: {values.min():,.0f} to {values.max():,.0f}, "
                f"mean {values.mean():,.0f}"
            )
        return lines


def busiest_share(values: npt.NDArray[Any]) -> float:
    """Return the largest value as a multiple of the mean; 1 where all are 0."""
    total = float(values.sum())
    return float(values.max()) * len(values) / total if total > 0 else 1.0
