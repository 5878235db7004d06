"""A toy semantics and a toy structure: what a newcomer writes, by brute force and in a few lines.

Tests register them for a while, and let them go through everything that takes a semantics or a
structure by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pytest

from earshot.cli.semantics import SEMANTICS_OPTIONS, Option, SemanticsOptions
from earshot.encoding import Form
from earshot.indexes import STRUCTURES, Structure
from earshot.indexes.answers import Counters, Matches
from earshot.indexes.contract import BuildInput, Index
from earshot.kernels.verify import region_touches
from earshot.model.arrays import (
    EVERYWHERE_TOKEN,
    ClauseArrays,
    Int32s,
    Int64s,
    MessageArrays,
    Space,
)
from earshot.model.explanations import Explanation
from earshot.semantics import SEMANTICS
from earshot.semantics.contract import Changes, Matcher, Question
from earshot.storage import Contents, Saved

# ---- a semantics --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Anywhere:
    """A message reaches every subscription whose words it has, wherever both are.

    Attributes:
        spare: Words that it may lack.
    """

    spare: int = 0


class AnywhereArrays(NamedTuple):
    offsets: Int64s  # (n_slots + 1,) words of slot i are [i]:[i + 1]
    tokens: Int32s
    alive: Any  # (n_slots,) bools


class AnywhereMatcher(Matcher):
    """Compares every message with every subscription."""

    name = "anywhere"
    settings_type = Anywhere
    form: ClassVar[Form] = Form("matching anywhere", frozenset())

    def __init__(self, settings: Anywhere, space: Space, words: list[set[int] | None]) -> None:
        self.settings, self.space = settings, space
        self.words = words  # by slot, None once it has ended

    @classmethod
    def create(
        cls, settings: Any, *, structure: str | None, parameters: Any, space: Space, n_threads: int
    ) -> Self:
        return cls(settings, space, [])

    def contents(self) -> Contents:
        words = [sorted(each or ()) for each in self.words]
        arrays = AnywhereArrays(
            np.cumsum([0, *map(len, words)]),
            np.array([token for each in words for token in each], np.int32),
            np.array([each is not None for each in self.words], np.bool_),
        )
        facts = {"spare": self.settings.spare, "space": self.space}
        return Contents(facts, {"words": arrays})

    @classmethod
    def open(cls, saved: Saved, *, n_threads: int) -> Self:
        facts = saved.facts
        offsets, tokens, alive = saved.group("words", AnywhereArrays)
        words = np.split(tokens, offsets[1:-1]) if len(alive) else []
        return cls(
            Anywhere(facts["spare"]), facts["space"],
            [set(each.tolist()) if is_alive else None
             for each, is_alive in zip(words, alive, strict=True)],
        )  # fmt: skip

    def subscribe(self, asked: ClauseArrays) -> Changes:
        # A region across the antimeridian has two clauses, with the same words.
        slots, firsts = np.unique(asked.subscriptions, return_index=True)
        for clause in firsts.tolist():
            first, last = asked.token_offsets[clause : clause + 2]
            self.words.append(set(asked.token_ids[first:last].tolist()) - {EVERYWHERE_TOKEN})
        return self.no_changes(len(slots))

    def unsubscribe(self, slots: Int32s) -> None:
        for slot in slots.tolist():
            self.words[slot] = None

    def move(self, slots: Int32s, places: Any) -> Changes:
        return self.no_changes(len(slots))

    def publish(self, messages: MessageArrays) -> Changes:
        found: list[list[int]] = []
        for first, last in zip(messages.token_offsets, messages.token_offsets[1:], strict=False):
            said = set(messages.token_ids[first:last].tolist())
            found.append([slot for slot in range(len(self.words)) if self._reaches(said, slot)])
        slots = np.array([slot for each in found for slot in each], np.int32)
        counters = Counters(0, len(found) * len(self.words), len(slots))
        return Changes(np.cumsum([0, *map(len, found)]), slots, counters)

    def _reaches(self, said: set[int], slot: int) -> bool:
        words = self.words[slot]
        return words is not None and len(words - said) <= self.settings.spare

    def no_changes(self, n_rows: int) -> Changes:
        return Changes(np.zeros(n_rows + 1, np.int64), np.empty(0, np.int32), Counters(0, 0, 0))

    @property
    def n_subscriptions(self) -> int:
        return sum(each is not None for each in self.words)

    @property
    def structure(self) -> str:
        return "none"

    def explain(self, question: Question) -> Explanation:
        said = set(question.encoded.messages.token_ids.tolist())
        matched = self._reaches(said, question.slot) and not question.hindrances
        return Explanation(
            matched, question.message.id, question.subscription_id,
            (f"it may lack {self.settings.spare} words", *question.hindrances),
        )  # fmt: skip

    def facts(self) -> dict[str, Any]:
        return {"n_words": sum(len(each or ()) for each in self.words)}

    def memory(self) -> dict[str, int]:
        return {"subscriptions": 8 * sum(len(each or ()) for each in self.words)}

    @property
    def arrays(self) -> tuple[Any, ...]:
        return ()

    def rehearsal(self) -> None:
        return


class AnywhereOptions(SemanticsOptions):
    """``--anywhere``, and how many words a message may lack."""

    name, noun = "anywhere", "matching anywhere"
    chooser = Option("--anywhere", "match words alone")
    options = (Option("--spare", "words that a message may lack (default: 0)", int, "N"),)

    def settings(self, given: Mapping[str, Any], space: Any) -> Any:
        return Anywhere(**given)

    def structures(self) -> str:
        return "none"


# ---- a structure --------------------------------------------------------------------------------


class ToyArrays(NamedTuple):
    """None: everything is compared with everything."""


class ToyIndex(Index):
    """Compares every message with every clause, in plain Python."""

    name = "toy"
    arrays_type = ToyArrays

    @classmethod
    def _build_arrays(cls, given: BuildInput) -> ToyArrays:
        return ToyArrays()

    def _match_rows(self, *_: Any) -> Any:
        raise NotImplementedError("the chunk is matched as a whole, with what was inserted")

    def _match_chunk(self, messages: MessageArrays, start: int, stop: int) -> Matches:
        clauses, slots = self.snapshot().live_clauses()
        words = _words(clauses)
        found: list[list[int]] = []
        for row in range(start, stop):
            first, last = messages.token_offsets[row : row + 2]
            said = set(messages.token_ids[first:last].tolist())
            box, boxes = messages.boxes[row], clauses.boxes
            near = (boxes[:, :2] <= box[2:]).all(1) & (boxes[:, 2:] >= box[:2]).all(1)
            found.append(sorted({
                int(slots[clauses.subscriptions[clause]])
                for clause in np.flatnonzero(near).tolist()
                if words[clause][0] <= said
                and not words[clause][1] & said
                and region_touches(clauses, clause, self.space == "lonlat", *box)
            }))  # fmt: skip
        answers = np.array([slot for each in found for slot in each], np.int32)
        counters = Counters(0, len(words) * len(found), len(answers))
        return Matches(np.cumsum([0, *map(len, found)]), answers, counters)


def _words(clauses: ClauseArrays) -> list[tuple[set[int], set[int]]]:
    """Return the tokens that each clause requires, and those that it forbids."""
    tokens, offsets = clauses.token_ids.tolist(), clauses.token_offsets.tolist()
    return [
        (
            {token for token in tokens[first:last] if token >= 0},
            {~token for token in tokens[first:last] if token < 0},
        )
        for first, last in pairwise(offsets)
    ]


# ---- registering them ---------------------------------------------------------------------------


def register_semantics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engines and the command line know the toy semantics; a line each."""
    monkeypatch.setitem(SEMANTICS, AnywhereMatcher.name, AnywhereMatcher)
    monkeypatch.setitem(SEMANTICS_OPTIONS, AnywhereOptions.name, AnywhereOptions())


def register_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the registry know the toy structure; a line."""
    toy = Structure("toy", ToyIndex, None, "none", "none", "to show what it takes")
    monkeypatch.setitem(STRUCTURES, toy.name, toy)
