"""How the subscriptions of an index are spread over shards, by which messages find them.

A message is analysed once, where it is routed: with the *shared* vocabulary of the territory, which
has every word that a subscription of any shard has named. Shards get its tokens, not its text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from earshot import storage
from earshot.encoding import EncodedMessages, encode_messages, encode_subscriptions
from earshot.files import FileBatch
from earshot.model.arrays import (
    EVERYWHERE_TOKEN,
    ClauseArrays,
    Float64s,
    Int32s,
    Int64s,
    all_thresholds,
)
from earshot.model.ranking import SCORE_TOLERANCE, Ranking
from earshot.placement.plan import ShardPlan
from earshot.placement.routing import Router, UnitArrays, merge_units, units_of
from earshot.spark.shards import warm_up_machine
from earshot.spark.store import Delta, IndexSettings, IndexStore, Version
from earshot.text import Vocabulary
from earshot.text.vocabulary import VocabularyArrays

_ANYWHERE = (-np.inf, -np.inf, np.inf, np.inf)


@dataclass(frozen=True)
class Territory:
    """How the subscriptions of a version are spread."""

    plan: ShardPlan  # where a subscription belongs
    vocabulary: Vocabulary  # the words of all subscriptions, shared by all shards
    # How often each of the words that the plan was cut by occurs; they come first.
    frequencies: Int64s
    parts: tuple[UnitArrays, ...]  # what each shard holds: units of the base and of each delta
    settings: IndexSettings

    def save(self, directory: Path) -> None:
        """Write it to a new directory."""
        vocabulary = self.vocabulary.arrays._replace(frequencies=self.frequencies)
        groups = {"vocabulary": vocabulary, "units": merge_units(self.parts)}
        storage.save(directory, storage.Contents({}, groups, {"plan": self.plan.contents()}))

    @classmethod
    def open(cls, directory: Path, settings: IndexSettings) -> Self:
        """Open a saved one."""
        saved = storage.Saved.open(directory)
        vocabulary = Vocabulary.from_arrays(saved.group("vocabulary", VocabularyArrays))
        units = saved.group("units", UnitArrays)
        plan = ShardPlan.open(saved.inner("plan"))
        return cls(plan, vocabulary, vocabulary.frequencies, (units,), settings)

    @cached_property
    def router(self) -> Router:
        """Where messages go."""
        piece_shards = self.plan.arrays.piece_shards
        return Router(merge_units(self.parts), self.plan.n_shards, piece_shards)

    def route(self, rows: FileBatch) -> tuple[EncodedMessages, Int64s, Int32s]:
        """Return the accepted messages of a batch, and offsets and shards of each."""
        settings = self.settings
        encoded = encode_messages(
            rows.batch, settings.analyzer, self.vocabulary, settings.space,
            form=settings.form, source=rows.source, rows=rows.rows,
        )  # fmt: skip
        return encoded, *self.router.route(encoded.messages)

    def assign(self, batch: pa.RecordBatch | pa.Table) -> tuple[Int32s, UnitArrays]:
        """Return the shard of each subscription of a canonical batch, and the units they make.

        Their words are added to the vocabulary. A refused row has shard 0, which refuses it again
        and says why.
        """
        settings = self.settings
        encoded = encode_subscriptions(
            batch, settings.analyzer, self.vocabulary, settings.space, form=settings.form
        )
        clauses = encoded.asked
        shards = np.zeros(batch.num_rows, np.int32)
        accepted = np.delete(np.arange(len(shards)), [error.row for error in encoded.rejects])
        pieces = self.plan.pieces(clauses, self.frequencies)
        shards[accepted] = self.plan.shards_of(pieces)
        return shards, self._reach(clauses, pieces)

    def units_in(self, shard: int, batch: pa.Table) -> UnitArrays:
        """Return the units that subscriptions make which a shard has, wherever they belong.

        Their words are added to the vocabulary.
        """
        settings = self.settings
        clauses = encode_subscriptions(
            batch, settings.analyzer, self.vocabulary, settings.space, form=settings.form
        ).asked
        pieces = self.plan.pieces(clauses, self.frequencies)
        is_away = self.plan.shards_of(pieces) != shard
        pieces[is_away] = self.plan.first_pieces[shard]
        return self._reach(clauses, pieces)

    def _reach(self, clauses: ClauseArrays, pieces: Int32s) -> UnitArrays:
        reach = REACHES.get(self.settings.matcher.name, reach_of_any)
        return reach(clauses, pieces, self.frequencies, self.settings.semantics)


# ---- reach --------------------------------------------------------------------------------------


def _reach_of_boolean(
    clauses: ClauseArrays, pieces: Int32s, frequencies: Int64s, _: Any
) -> UnitArrays:
    """All words are needed, so the rarest one draws messages, inside the box."""
    return units_of(clauses, pieces, frequencies)


def _reach_of_ranked(
    clauses: ClauseArrays, pieces: Int32s, _: Int64s, ranking: Ranking
) -> UnitArrays:
    """Any word can be enough, inside the box; place or text alone can where they score enough."""
    own = all_thresholds(clauses)
    cuts = np.where(np.isnan(own), ranking.threshold, own) - 2 * SCORE_TOLERANCE
    boxes = np.where((1 - ranking.alpha >= cuts)[:, None], _ANYWHERE, clauses.boxes)
    needs_no_word = np.flatnonzero(ranking.alpha >= cuts)
    rows = np.repeat(np.arange(len(cuts)), np.diff(clauses.token_offsets))
    is_drawing = (clauses.token_ids >= 0) & (ranking.alpha < cuts)[rows]
    rows = np.concatenate([rows[is_drawing], needs_no_word])
    everywhere = np.full(len(needs_no_word), EVERYWHERE_TOKEN, np.int32)
    tokens = np.concatenate([clauses.token_ids[is_drawing], everywhere])
    return merge_units([UnitArrays(tokens, pieces[clauses.subscriptions[rows]], boxes[rows])])


def reach_of_any(clauses: ClauseArrays, pieces: Int32s, _: Int64s, __: Any) -> UnitArrays:
    """Every message may be for every subscription."""
    boxes = np.tile(_ANYWHERE, (len(clauses.subscriptions), 1))
    return units_anywhere(boxes, pieces[clauses.subscriptions])


REACHES: dict[str, Callable[[ClauseArrays, Int32s, Int64s, Any], UnitArrays]] = {
    "boolean": _reach_of_boolean,
    "ranked": _reach_of_ranked,
}
"""Which messages the clauses of each piece draw, by semantics; for any other, all of them."""


def units_anywhere(boxes: Float64s, pieces: Int32s) -> UnitArrays:
    """Return units that draw all messages in each box to a piece, whatever they say."""
    tokens = np.full(len(pieces), EVERYWHERE_TOKEN, np.int32)
    return merge_units([UnitArrays(tokens, pieces, boxes)])


# ---- opened -------------------------------------------------------------------------------------


_territories: dict[str, tuple[str, int, Territory]] = {}
"""What is open of each index: the name of the base, the last step, and the territory."""


def open_territory(index: str, version: Version, settings: IndexSettings) -> Territory:
    """Return how the subscriptions of a version are spread, opening what is not open yet.

    Every process gives the same tokens to the same words: those of the base, then those of each
    delta in order. Words and units that are there already change nothing.
    """
    warm_up_machine(settings.semantics, settings.structure)
    store = IndexStore(index)
    base, step, territory = _territories.get(index, ("", 0, None))
    if territory is None or base != version.base.name or step > version.step:
        folder = store.base_folder(version.base)
        territory, step = Territory.open(folder.local("territory"), settings), 0
    parts = list(territory.parts)
    for delta in version.deltas:
        if delta.last <= step:
            continue
        units, words = read_units(store, delta)
        parts.append(units)
        if words:
            territory.vocabulary.add(words)
    if len(parts) > len(territory.parts):
        # What changes brought is small beside the base, and stays in one part.
        territory = replace(territory, parts=(parts[0], merge_units(parts[1:])))
    _territories[index] = version.base.name, version.step, territory
    return territory


def renewed_territory(store: IndexStore, version: Version) -> Territory:
    """Return the territory of a version's base as its deltas leave it, without their units.

    Their words are among those that the plan goes by from now on.
    """
    territory = Territory.open(store.base_folder(version.base).local("territory"), store.settings)
    vocabulary = territory.vocabulary
    for delta in version.deltas:
        vocabulary.add(read_units(store, delta)[1])
    return replace(territory, frequencies=vocabulary.frequencies)


def read_units(store: IndexStore, delta: Delta) -> tuple[UnitArrays, list[str]]:
    """Return what a delta adds to what shards hold, and to the words that they share."""
    folder = store.delta_folder(delta.name)
    words: list[str] = folder.read_json("delta.json")["words"]
    return storage.Saved.open(folder.local("units")).group("units", UnitArrays), words
