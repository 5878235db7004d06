"""Our own dissemination: lists by word, in blocks of subscriptions that reach as far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from earshot.model.arrays import Int32s
from earshot.semantics.topk.contract import Dissemination
from earshot.semantics.topk.kernels.arrays import Subscribers
from earshot.semantics.topk.kernels.reach import ReachArrays, build_reach


@dataclass(frozen=True)
class Reach(Dissemination):
    """Blocks of subscriptions, each with a ball around all places that they reach."""

    name: ClassVar[str] = "reach"

    def build(self, subscribers: Subscribers, slots: Int32s, max_distance: float) -> ReachArrays:
        """Return a component of these slots; row i of it is ``slots[i]``."""
        component: ReachArrays = build_reach(
            subscribers, np.ascontiguousarray(slots, np.int32), max_distance
        )
        return component
