"""Shards by the ids of subscriptions, for semantics that keep messages.

Every shard sees all messages; a subscription, and so all that happens to it, belongs to the shard
that its id is hashed to. Scores are sums in the order in which words are numbered, so every shard
numbers the words of all subscriptions, in one order, before those of its own are subscribed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.pandas.types import from_arrow_schema

from earshot.encoding import encode_subscriptions
from earshot.engine.engine import Engine
from earshot.errors import InvalidRow, SavedIndexError
from earshot.model.schemas import id_type, subscriptions_schema
from earshot.spark.folders import Folder
from earshot.spark.notes import rejects_in, without_notes
from earshot.spark.prepare import ROW, SOURCE
from earshot.spark.rows import Batches
from earshot.spark.shards import SHARD, shards_of, warm_up_machine
from earshot.spark.store import Base, IndexSettings, IndexStore, new_shard_name

BUILT_SHARD = pa.schema(
    [
        ("shard", pa.int32()),
        ("directory", pa.string()),
        ("n_subscriptions", pa.int64()),
        ("n_bytes", pa.int64()),
    ]
)
"""What a building task returns."""


def number_words(engine: Engine, subscriptions: pa.Table | pa.RecordBatch) -> None:
    """Let an engine number the words of subscriptions before any are subscribed.

    Those of other shards, too: where words weigh the same, scores are sums in this order.
    """
    matcher = engine.matcher
    if matcher.has_scores and subscriptions.num_rows:
        words = (engine.analyzer, engine.vocabulary, engine.space)
        encode_subscriptions(subscriptions, *words, form=matcher.form)


def build_hashed(
    noted: DataFrame,
    store: IndexStore,
    settings: IndexSettings,
    *,
    n_shards: int,
    stop_at_rejects: bool,
) -> tuple[Base, DataFrame]:
    """Build all shards from canonical rows, which were checked, with their origin and notes.

    Returns the base, and the rejects. *On the driver*: nothing but the facts. *In each task*: rows
    are sorted by their origin and written; then one task per shard reads all of them, and builds
    the shard from its own.
    """
    warm_up_machine(settings.semantics, settings.structure)
    session = noted.sparkSession
    folder = store.new_base()
    noted.write.parquet(f"{folder.uri}/noted")
    noted = session.read.parquet(f"{folder.uri}/noted")
    rejects = rejects_in(noted)
    if stop_at_rejects:
        for reject in rejects.limit(1).toArrow().to_pylist():
            raise InvalidRow(reject["source"], reject["row"], reject["field"], reject["reason"])
    rows = without_notes(noted)
    rows.orderBy(SOURCE, ROW).drop(SOURCE, ROW).write.parquet(f"{folder.uri}/rows")
    numbers = session.createDataFrame(pa.table({SHARD: pa.array(range(n_shards), pa.int32())}))
    about = (
        numbers.repartitionById(n_shards, F.col(SHARD))
        .mapInArrow(
            partial(_build_task, HashedTask(folder.uri, settings, n_shards)),
            from_arrow_schema(BUILT_SHARD),
        )
        .toArrow()
        .sort_by("shard")
    )
    base = Base(
        folder.uri.rpartition("/")[2],
        "hashed",
        tuple(about["n_subscriptions"].to_pylist()),
        tuple(about["n_bytes"].to_pylist()),
        tuple(about["directory"].to_pylist()),
    )
    return base, rejects


@dataclass(frozen=True)
class HashedTask:
    """What a worker has to know to build."""

    base: str  # URI of the base's directory
    settings: IndexSettings
    n_shards: int


def _build_task(task: HashedTask, batches: Iterable[pa.RecordBatch]) -> Batches:
    for batch in batches:
        for shard in batch.column(SHARD).to_pylist():
            yield _build_shard(task, shard)


def _build_shard(task: HashedTask, shard: int) -> pa.RecordBatch:
    folder, settings = Folder(task.base), task.settings
    warm_up_machine(settings.semantics, settings.structure)
    engine = settings.engine()
    schema = subscriptions_schema(id_type(settings.ids))
    for rows in _rows_in_order(folder):
        canonical = pa.table(rows).select(schema.names).cast(schema)
        number_words(engine, canonical)
        is_own = shards_of(canonical.column("id"), task.n_shards).to_numpy() == shard
        own = canonical.take(pa.array(np.flatnonzero(is_own)))
        errors = engine.subscribe_batch(own, on_error="reject").rejects
        if errors:  # what was checked is good, unless other code wrote it
            raise SavedIndexError(f"{folder.path}: {errors[0]}; build the index again")
    name = new_shard_name(shard)
    with folder.draft() as draft:
        engine.save(draft / "engine")
        n_bytes = sum(path.stat().st_size for path in (draft / "engine").iterdir())
        folder.put(f"shards/{name}", draft / "engine")
    values = {"shard": shard, "directory": name, "n_subscriptions": len(engine), "n_bytes": n_bytes}
    return pa.RecordBatch.from_pylist([values], schema=BUILT_SHARD)


def _rows_in_order(folder: Folder) -> Iterator[pa.RecordBatch]:
    """Yield the subscriptions of a base in the order of their origin."""
    directory = folder.local("rows")
    for path in sorted(directory.glob("part-*.parquet")):
        yield from ds.dataset(path, format="parquet").to_batches()


def default_n_shards(session: SparkSession) -> int:
    """Return the number of shards that a pipeline works on at once."""
    return max(1, session.sparkContext.defaultParallelism)
