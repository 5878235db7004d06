"""Opened shards of an index, kept in each process that uses them.

A Python worker of Spark is reused from task to task and from batch to batch, so what it has opened
is kept in a table of this module. (Spark sends functions of installed modules by name; with a
function from a notebook or a closure, every task would get a table of its own.) Everything opened
is memory-mapped: all workers of a machine share its pages, and only what deltas change is a
worker's own. A shard that a worker has not served for a while is closed: it is served elsewhere.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext

from earshot.engine.changes import apply_changes
from earshot.engine.engine import Engine
from earshot.engine.rehearsal import rehearse
from earshot.errors import SavedIndexError
from earshot.model.arrays import Int32s, Int64s
from earshot.model.batches import instant
from earshot.model.ranking import WordCounts
from earshot.spark.folders import first_of_machine
from earshot.spark.store import Delta, IndexStore, Version
from earshot.text import Vocabulary

SHARD = "earshot_shard"
"""Column with the number of a row's shard."""
ANY_SHARD = -1
"""Shard of a change that belongs to whichever shard has the subscription."""
STEP = "earshot_step"
"""Column with the step of a change."""
COUNTS = "earshot_counts"
"""Column with the counts by which a reweighing weighs words, as :func:`write_counts` has them."""
N_SUBSCRIPTIONS = "n_subscriptions"

IDLE_TURNS = 4
"""A shard is closed when each of those that are open could have been served so often since."""
_UNASKED, _UNKNOWN = -2, -1

T = TypeVar("T")


@dataclass
class Shard:
    """An opened shard."""

    engine: Engine
    step: int = 0  # the last step of changes that was applied to its base
    turn: int = 0  # when it was last served
    _own_tokens: Int32s = field(default_factory=lambda: np.empty(0, np.int32))

    def own_tokens(
        self, shared: Vocabulary, offsets: Int64s, tokens: Int32s
    ) -> tuple[Int64s, Int32s]:
        """Return lists of tokens of a shared vocabulary as lists of the shard's own.

        Those that no subscription of the shard has named are left out. A token is looked up once.
        """
        own = self._own_tokens
        if len(own) < len(shared):
            own = np.full(len(shared), _UNASKED, np.int32)
            own[: len(self._own_tokens)] = self._own_tokens
            self._own_tokens = own
        unasked = np.unique(tokens[own[tokens] == _UNASKED])
        if len(unasked):
            own[unasked] = self.engine.vocabulary.ids_of(shared.tokens(unasked))
        found = own[tokens]
        is_known = found != _UNKNOWN
        return np.append(0, np.cumsum(is_known))[offsets], found[is_known]

    def has_steps(self, last: int) -> None:
        """Note that the engine has further steps, whose words have to be looked up."""
        self.step = last
        self._own_tokens = self._own_tokens[:0]


class AtShards(Protocol):
    """Calls a function of a shard's number for each of some shards, where they are."""

    def __call__(self, work: Callable[[int], T], shards: Sequence[int], /) -> list[T]:
        """Return what it says of each."""
        ...


def at_shards_here(work: Callable[[int], T], shards: Sequence[int]) -> list[T]:
    """Call a function for each of some shards in this process."""
    return [work(shard) for shard in shards]


_opened: dict[tuple[str, str, int], Shard] = {}


def open_shard(index: str, version: Version, shard: int) -> Shard:
    """Return a shard of a version, which the caller must not change.

    What is open already is brought up to date where the version has more steps, and opened anew
    where it has fewer: a batch that is tried again may ask for an earlier version.
    """
    key = (index, version.base.name, shard)
    opened = _opened.pop(key, None)
    if opened is None or opened.step > version.step:
        opened = Shard(_open_base(index, version, shard))
    if opened.step < version.step:
        _apply_deltas(opened.engine, IndexStore(index), version, shard, opened.step)
        opened.has_steps(version.step)
    # A turn is a run of batches for one shard.
    opened.turn = max((each.turn for each in _opened.values()), default=opened.turn - 1) + 1
    _opened[key] = opened
    oldest = opened.turn - IDLE_TURNS * len(_opened)
    for idle in [key for key, each in _opened.items() if each.turn < oldest]:
        del _opened[idle]
    return opened


def _open_base(index: str, version: Version, shard: int) -> Engine:
    # Versions go forward: bases of earlier ones are not needed any more.
    for key in [key for key in _opened if key[0] == index and key[1] < version.base.name]:
        del _opened[key]
    store = IndexStore(index)
    settings = store.settings
    warm_up_machine(settings.semantics, settings.structure)
    path = store.base_folder(version.base).local(f"shards/{version.base.shards[shard]}")
    return Engine.open(path, rebuild_in_background=False)


def _apply_deltas(
    engine: Engine, store: IndexStore, version: Version, shard: int, step: int
) -> None:
    """Apply the steps after the given one to an engine that has all earlier ones."""
    changes, clock_us = changes_since(store, version, step)
    numbers = changes.column(SHARD)
    mine = changes.filter(pc.or_(pc.equal(numbers, shard), pc.equal(numbers, ANY_SHARD)))
    operations, counts = mine.column("op"), mine.column(COUNTS)
    for error in apply_changes(
        engine, mine, reweigh=lambda row: engine.reweigh(counts=read_counts(counts[row].as_py()))
    ):
        # What ends or moves names no shard: each shard applies what it has.
        if operations[error.row].as_py() == "subscribe":
            raise SavedIndexError(
                f"{store.folder.path}: the changes of version {version.number} do not fit its "
                f"base: {error}; build the index again"
            )
    if clock_us is not None:
        engine.advance(instant(clock_us))


def open_apart(index: str, version: Version, shard: int) -> Engine:
    """Return a shard of a version which nobody else uses, however it is open."""
    engine = _open_base(index, version, shard)
    if version.step:
        _apply_deltas(engine, IndexStore(index), version, shard, 0)
    return engine


def counted_words(index: str, version: Version, clock_us: int | None, shard: int) -> WordCounts:
    """Return how many subscriptions of a shard ask for each word."""
    # Not what is open: the version may never be published, and its steps be numbered again.
    engine = open_apart(index, version, shard)
    return engine.word_counts(None if clock_us is None else instant(clock_us))


def write_counts(counts: WordCounts) -> bytes:
    """Return counts as bytes, for a row of a delta."""
    table = pa.table({"word": pa.array(counts.words, pa.string()), "n": counts.counts})
    table = table.replace_schema_metadata({N_SUBSCRIPTIONS: str(counts.n_subscriptions)})
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return bytes(out.getvalue())


def read_counts(data: bytes) -> WordCounts:
    """Return the counts of a row."""
    table = pa.ipc.open_stream(data).read_all()
    n = int(table.schema.metadata[N_SUBSCRIPTIONS.encode()])
    return WordCounts(n, table["word"].to_pylist(), table["n"].to_numpy())


def changes_since(store: IndexStore, version: Version, step: int) -> tuple[pa.Table, int | None]:
    """Return the changes of a version after a step, each with its shard, and the clock after them.

    There must be some. A delta may begin before that step and end after it.
    """
    read = [read_delta(store, delta) for delta in version.deltas if delta.last > step]
    changes = pa.concat_tables([table for table, _ in read])
    return changes.filter(pc.greater(changes.column(STEP), step)), read[-1][1]


def read_delta(store: IndexStore, delta: Delta) -> tuple[pa.Table, int | None]:
    """Return the changes of a delta, each with its shard and step, and the clock after them."""
    folder = store.delta_folder(delta.name)
    return (
        pq.read_table(folder.local("changes") / "changes.parquet"),
        folder.read_json("delta.json")["clock_us"],
    )


def close_shards(index: str) -> None:
    """Close what this process has open of an index."""
    for key in [key for key in _opened if key[0] == index]:
        del _opened[key]


@cache
def warm_up_machine(semantics: Any = None, structure: str | None = None) -> None:
    """Compile on this machine what workers need, in one process while the others wait."""
    with first_of_machine("kernels"):
        for identity in (int, str):
            empty = Engine(semantics, structure=structure, rebuild_in_background=False)
            rehearse(empty, identity)
    spare_collections()


def spare_collections() -> None:
    """Let Python's garbage collector pass over what a worker of Spark has loaded by now.

    Spark collects after every task, and looks at some 180,000 objects of modules and kernels each
    time, which takes 75 ms of processor time. Not where shards are open: those that are given up
    later are to be collected. Other processes are not ours, and stay as they are.
    """
    if TaskContext.get() is not None and not _opened:
        gc.collect()
        gc.freeze()


# ---- shards by the ids of subscriptions ----------------------------------------------------------

_POWER = np.uint64(0x9E3779B97F4A7C15)
_MIXING = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def shards_of(ids: pa.Array | pa.ChunkedArray, n_shards: int) -> pa.Array:
    """Return the shard of each id: a hash, the same on every machine."""
    if isinstance(ids, pa.ChunkedArray):
        ids = ids.combine_chunks()
    if pa.types.is_integer(ids.type):
        hashes = ids.cast(pa.int64()).fill_null(0).to_numpy().view(np.uint64).copy()
    else:
        hashes = _sums_of_bytes(ids.cast(pa.large_string()).fill_null(""))
    for shift, factor in zip((30, 27), _MIXING, strict=True):  # finalizer of SplitMix64
        hashes = (hashes ^ (hashes >> np.uint64(shift))) * factor
    hashes ^= hashes >> np.uint64(31)
    return pa.array((hashes % np.uint64(n_shards)).astype(np.int32))


def _sums_of_bytes(strings: pa.Array) -> npt.NDArray[np.uint64]:
    """Return a polynomial in the bytes of each string, modulo 2**64."""
    _, ends, data = strings.buffers()
    offsets = np.frombuffer(ends, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    lengths = np.diff(offsets)
    values = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]].astype(np.uint64) + np.uint64(
        1
    )
    powers = np.cumprod(np.full(max(int(lengths.max(initial=0)), 1), _POWER))
    starts = offsets[:-1] - offsets[0]
    values *= powers[np.arange(len(values)) - np.repeat(starts, lengths)]
    sums = np.zeros(len(strings), np.uint64)
    some = np.flatnonzero(lengths)  # reduceat has no empty sums
    if len(some):
        sums[some] = np.add.reduceat(values, starts[some])
    return sums
