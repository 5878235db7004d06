"""Opened shards and routing tables of an index, kept in each process that uses them.

A Python worker of Spark is reused from task to task and from batch to batch, so what it has opened
is kept in tables of this module. (Spark sends functions of installed modules by name; with a
function from a notebook or a closure, every task would get tables of its own.) Everything opened is
memory-mapped: all workers of a machine share its pages, and only what deltas change is a worker's
own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from earshot import storage
from earshot.encoding import EncodedMessages, encode_messages, encode_subscriptions
from earshot.engine.changes import apply_changes
from earshot.engine.engine import Engine
from earshot.errors import SavedIndexError
from earshot.files import FileBatch
from earshot.kernels.jit import warm_once
from earshot.model.arrays import EVERYWHERE_TOKEN, Float64s, Int32s, Int64s
from earshot.model.batches import instant, message_batch
from earshot.model.messages import Message
from earshot.model.regions import Point, Rectangle
from earshot.model.subscriptions import Subscription
from earshot.placement.plan import ShardPlan
from earshot.placement.routing import Router, UnitArrays, merge_units, units_of
from earshot.spark.folders import machine_lock
from earshot.spark.store import IndexSettings, IndexStore, Version
from earshot.text import Vocabulary
from earshot.text.vocabulary import VocabularyArrays

SHARD = "earshot_shard"
"""Column with the number of a row's shard."""
ANY_SHARD = -1
"""Shard of a change that belongs to whichever shard has the subscription."""

_MOST_OPEN = 64


# ---- shards -------------------------------------------------------------------------------------


@dataclass
class _Opened:
    engine: Engine
    deltas: list[str]


_opened: dict[tuple[str, str, int], _Opened] = {}


def open_shard(index: str, version: Version, shard: int) -> Engine:
    """Return a shard of a version as an engine, which the caller must not change.

    What is open already is brought up to date where the version has more deltas, and opened anew
    where it has fewer: a batch that is tried again may ask for an earlier version.
    """
    warm_up_machine()
    key = (index, version.base.name, shard)
    opened = _opened.pop(key, None)
    if opened is None or opened.deltas != list(version.deltas[: len(opened.deltas)]):
        opened = _Opened(_open_base(index, version, shard), [])
    for name in version.deltas[len(opened.deltas) :]:
        _apply_delta(opened.engine, IndexStore(index), name, shard)
        opened.deltas.append(name)
    _opened[key] = opened  # used last, so at the end
    while len(_opened) > max(_MOST_OPEN, version.base.n_shards):
        _opened.pop(next(iter(_opened)))
    return opened.engine


def _open_base(index: str, version: Version, shard: int) -> Engine:
    # Versions go forward: bases of earlier ones are not needed any more.
    for key in [key for key in _opened if key[0] == index and key[1] < version.base.name]:
        del _opened[key]
    folder = IndexStore(index).base_folder(version.base)
    path = folder.local(f"shards/{version.base.shards[shard]}")
    return Engine.open(path, rebuild_in_background=False)


def _apply_delta(engine: Engine, store: IndexStore, name: str, shard: int) -> None:
    """Apply a delta to an engine that has all earlier ones of its version."""
    changes, clock_us = read_delta(store, name)
    numbers = changes.column(SHARD)
    mine = changes.filter(pc.or_(pc.equal(numbers, shard), pc.equal(numbers, ANY_SHARD)))
    operations = mine.column("op")
    for error in apply_changes(engine, mine):
        # What ends or moves names no shard: each shard applies what it has.
        if operations[error.row].as_py() == "subscribe":
            raise SavedIndexError(
                f"{store.delta_folder(name).path} does not fit its version: {error}; build the "
                f"index again"
            )
    if clock_us is not None:
        engine.advance(instant(clock_us))


def read_delta(store: IndexStore, name: str) -> tuple[pa.Table, int | None]:
    """Return the changes of a delta, each with its shard, and the clock after them."""
    folder = store.delta_folder(name)
    return (
        pq.read_table(folder.local("changes") / "changes.parquet"),
        folder.read_json("delta.json")["clock_us"],
    )


def keep_shards(index: str, version: Version, name: str) -> None:
    """Say that what this process has open of a version has a further delta already."""
    for key, opened in _opened.items():
        if key[:2] == (index, version.base.name):
            opened.deltas.append(name)


def close_shards(index: str) -> None:
    """Close what this process has open of an index."""
    for key in [key for key in _opened if key[0] == index]:
        del _opened[key]


@cache
def warm_up_machine() -> None:
    """Compile on this machine what workers need, in one process while the others wait."""
    with machine_lock("kernels"):
        warm_once(_use_kernels)


def _use_kernels() -> None:
    """Use each kernel that a worker uses, with arrays of the types that it gets."""
    place, elsewhere = Rectangle(0, 0, 1, 1), Rectangle(0, 0, 2, 2)
    messages = message_batch([Message(0, "wärm up", place=Point(0, 0))])
    for identity in (int, str):
        one, two = identity(1), identity(2)
        engine = Engine(rebuild_in_background=False)
        engine.subscribe(Subscription(one, ("warm",), region=place, expires=instant(1)))
        engine.match_batch(messages).table()
        engine.subscribe(Subscription(two, ("up",), region=place))
        engine.move(one, elsewhere)
        engine.unsubscribe(two)
        engine.match_batch(messages).table()


# ---- routing ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Territory:
    """How the subscriptions of a version are spread, by which they and messages find their shard.

    Attributes:
        plan: Where a subscription belongs.
        vocabulary: The plan's tokens, and those met since.
        frequencies: How often each of the plan's own tokens occurs.
        units: What each shard holds.
        settings: Those of the index.
    """

    plan: ShardPlan
    vocabulary: Vocabulary
    frequencies: Int64s
    units: UnitArrays
    settings: IndexSettings

    def save(self, directory: Path) -> None:
        """Write it to a new directory."""
        vocabulary = self.vocabulary.arrays._replace(frequencies=self.frequencies)
        groups = {"vocabulary": vocabulary, "units": self.units}
        storage.save(directory, {}, groups, inner={"plan": self.plan.save})

    @classmethod
    def open(cls, directory: Path, settings: IndexSettings) -> Self:
        """Open a saved one."""
        storage.read_facts(directory)
        vocabulary = Vocabulary.from_arrays(
            storage.open_group(directory, "vocabulary", VocabularyArrays)
        )
        units = storage.open_group(directory, "units", UnitArrays)
        plan = ShardPlan.open(directory / "plan")
        return cls(plan, vocabulary, vocabulary.frequencies, units, settings)

    @cached_property
    def router(self) -> Router:
        """Where messages go."""
        return Router(self.units, self.plan.n_shards)

    def route(self, rows: FileBatch) -> tuple[EncodedMessages, Int64s, Int32s]:
        """Return the accepted messages of a batch, and offsets and shards of each."""
        settings = self.settings
        encoded = encode_messages(
            rows.batch, settings.analyzer, self.vocabulary, settings.space,
            source=rows.source, rows=rows.rows,
        )  # fmt: skip
        return encoded, *self.router.route(encoded.messages)

    def assign(self, batch: pa.RecordBatch | pa.Table) -> tuple[Int32s, UnitArrays]:
        """Return the shard of each subscription of a canonical batch, and the units they make.

        A refused row has shard 0, which refuses it again and says why.
        """
        settings = self.settings
        encoded = encode_subscriptions(batch, settings.analyzer, self.vocabulary, settings.space)
        shards = np.zeros(batch.num_rows, np.int32)
        accepted = np.delete(np.arange(len(shards)), [error.row for error in encoded.rejects])
        assigned = self.plan.assign(encoded.clauses, self.frequencies)
        shards[accepted] = assigned
        return shards, units_of(encoded.clauses, assigned, self.frequencies)


def units_anywhere(boxes: Float64s, shards: Int32s) -> UnitArrays:
    """Return units that draw all messages in each box to a shard, whatever they say."""
    tokens = np.full(len(shards), EVERYWHERE_TOKEN, np.int32)
    return merge_units([UnitArrays(tokens, shards, boxes)])


_territories: dict[str, tuple[tuple[str, ...], Territory]] = {}


def open_territory(index: str, version: Version, settings: IndexSettings) -> Territory:
    """Return how the subscriptions of a version are spread, opening what is not open yet."""
    warm_up_machine()
    state = (version.base.name, *version.deltas)
    known, territory = _territories.get(index, ((), None))
    if territory is None or known != state[: len(known)]:
        folder = IndexStore(index).base_folder(version.base)
        territory = Territory.open(folder.local("territory"), settings)
        known = state[:1]
    if known != state:
        parts = [_units_of_delta(IndexStore(index), name) for name in state[len(known) :]]
        territory = replace(territory, units=merge_units([territory.units, *parts]))
    _territories[index] = (state, territory)
    return territory


def _units_of_delta(store: IndexStore, name: str) -> UnitArrays:
    return storage.open_group(store.delta_folder(name).local("units"), "units", UnitArrays)
