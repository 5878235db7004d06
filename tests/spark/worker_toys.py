"""A structure and a semantics that only the tests know, registered when this module is imported.

Workers of Spark import it when they unpickle what is defined here; what a test registers by itself
stays in the test's own process.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from earshot.encoding import Form
from earshot.indexes import STRUCTURES, Structure
from earshot.indexes.answers import Counters
from earshot.indexes.contract import Parameters
from earshot.indexes.linear_scan.index import LinearScan
from earshot.model.arrays import ClauseArrays, Int32s, MessageArrays, RegionArrays, Space
from earshot.model.explanations import Explanation
from earshot.semantics import SEMANTICS
from earshot.semantics.contract import Changes, Matcher, Question
from earshot.storage import Contents, Saved


@dataclass(frozen=True)
class ToyParameters(Parameters):
    """Options of the toy structure."""

    colour: str = "red"


class ToyScan(LinearScan):
    """A scan under another name."""

    name = "toy_scan"
    parameters_type = ToyParameters


@dataclass(frozen=True)
class Loud:
    """Everybody hears everything, wherever it is and whatever it says."""

    loudness: float = 1.0


class LoudArrays(NamedTuple):
    is_live: Any  # (n_slots,) bool


class Megaphone(Matcher):
    """A semantics without an index."""

    name = "megaphone"
    settings_type = Loud
    form = Form("a megaphone", frozenset())
    has_scores = True
    structure = "ears"

    def __init__(self, settings: Loud, space: Space, is_live: Any) -> None:
        self.settings, self.space, self._is_live = settings, space, is_live

    @classmethod
    def create(
        cls, settings: Loud, *, structure: str | None, parameters: Any, space: Space, n_threads: int
    ) -> Self:
        return cls(settings, space, np.zeros(0, bool))

    def contents(self) -> Contents:
        facts = {**asdict(self.settings), "space": self.space}
        return Contents(facts, {"live": LoudArrays(self._is_live)})

    @classmethod
    def open(cls, saved: Saved, *, n_threads: int) -> Self:
        facts = saved.facts
        (is_live,) = saved.group("live", LoudArrays)
        return cls(Loud(facts["loudness"]), facts["space"], is_live)

    def subscribe(self, asked: ClauseArrays) -> Changes:
        n = int(asked.subscriptions.max(initial=-1)) + 1
        self._is_live = np.append(self._is_live, np.ones(n, bool))
        return self.no_changes(n)

    def unsubscribe(self, slots: Int32s) -> None:
        self._is_live[slots] = False

    def move(self, slots: Int32s, places: RegionArrays) -> Changes:
        return self.no_changes(len(slots))

    def publish(self, messages: MessageArrays) -> Changes:
        ears, n = np.flatnonzero(self._is_live).astype(np.int32), len(messages.boxes)
        slots = np.tile(ears, n)
        offsets = np.arange(n + 1) * len(ears)
        scores = np.full(len(slots), self.settings.loudness)
        return Changes(offsets, slots, Counters(0, len(slots), len(slots)), scores)

    def no_changes(self, n_rows: int) -> Changes:
        zeros = np.zeros(n_rows + 1, np.int64)
        return Changes(zeros, np.empty(0, np.int32), Counters(0, 0, 0), np.empty(0))

    @property
    def n_subscriptions(self) -> int:
        return int(self._is_live.sum())

    def explain(self, question: Question) -> Explanation:
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        return {}

    def memory(self) -> dict[str, int]:
        return {"ears": self._is_live.nbytes}

    @property
    def arrays(self) -> tuple[Any, ...]:
        return (self._is_live,)

    def rehearsal(self) -> None:
        return


TOY_STRUCTURE = Structure("toy_scan", ToyScan, None, "a toy", "none", "in tests")


def register() -> None:
    """Let them be found by their names."""
    STRUCTURES[ToyScan.name], SEMANTICS[Megaphone.name] = TOY_STRUCTURE, Megaphone


def forget() -> None:
    """Let them not be found any more."""
    del STRUCTURES[ToyScan.name], SEMANTICS[Megaphone.name]


register()
