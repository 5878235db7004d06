"""Building an index from a table of subscriptions, on the executors.

Each shard is built by one task from the rows that are sent to it, and written to the directory of
the index by that task. The rows themselves are kept beside it, so that changes can be merged and
shards be cut anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.pandas.types import from_arrow_schema

from earshot import storage
from earshot.encoding import encode_messages, encode_subscriptions
from earshot.engine.engine import Engine
from earshot.errors import InvalidParameter, InvalidRow
from earshot.files import PlaceKind, Reject
from earshot.files.rejects import OnError, check_on_error
from earshot.model.arrays import EVERYWHERE_TOKEN, ClauseArrays, MessageArrays, Space
from earshot.model.boolean import Boolean
from earshot.model.schemas import IdKind, id_type, subscriptions_schema
from earshot.placement.cutting import cut_plan
from earshot.placement.routing import UnitArrays, merge_units
from earshot.spark.folders import Folder
from earshot.spark.hashed import build_hashed, default_n_shards
from earshot.spark.notes import (
    NOTE,
    batch_of_notes,
    plain_failures,
    reject_notes,
    rejects_in,
    rejects_of_notes,
    split_notes,
    without_notes,
)
from earshot.spark.preflight import check_executors
from earshot.spark.prepare import (
    ROW,
    SOURCE,
    canonical_rows,
    located_rejects,
    sample,
    token_frequencies,
)
from earshot.spark.roster import save_register
from earshot.spark.rows import Batches, RowForm, arrow_schema, check_choice, make_reading
from earshot.spark.shards import COUNTS, SHARD, read_counts, warm_up_machine
from earshot.spark.store import Base, IndexSettings, IndexStore, Version, new_shard_name
from earshot.spark.territory import Territory
from earshot.text import Analyzer, Vocabulary

PlacementChoice = Literal["auto", "replicated", "sharded"]

BYTES_PER_SUBSCRIPTION = 150
"""What a subscription with a few keywords takes in a saved engine, its id included."""
REPLICATED_BYTES = 8 << 30
"""Largest index of which ``auto`` lets every machine map the whole."""
SHARD_BYTES = 2 << 30
"""Size of the shards that ``auto`` cuts."""
SAMPLED_SUBSCRIPTIONS, SAMPLED_MESSAGES = 200_000, 20_000
"""How much shards are cut from."""

BUILT_SHARD = pa.schema(
    [
        ("shard", pa.int32()),
        ("directory", pa.string()),
        ("n_subscriptions", pa.int64()),
        ("n_bytes", pa.int64()),
        (NOTE, pa.string()),
    ]
)
"""What a building task returns: a row for its shard, and notes on rejects."""


@dataclass(frozen=True)
class Built:
    """What a build made."""

    version: Version
    n_rejects: int  # rows that were refused, of subscriptions and messages
    rejects: DataFrame  # subscriptions that were refused, with their reasons
    message_rejects: DataFrame | None = None  # the same of messages, if there are any to cut by


def build(
    subscriptions: DataFrame,
    index: str | Path,
    *,
    placement: PlacementChoice = "auto",
    n_shards: int | None = None,
    messages: DataFrame | None = None,
    form: RowForm = "columns",
    columns: Mapping[str, str] | None = None,
    message_form: RowForm = "columns",
    message_columns: Mapping[str, str] | None = None,
    message_ids: IdKind | None = None,
    ids: IdKind | None = None,
    semantics: Any = None,
    space: Space = "lonlat",
    analyzer: Analyzer | None = None,
    structure: str | None = None,
    parameters: Any = None,
    on_error: OnError = "raise",
    unique_ids: bool = False,
    place: PlaceKind | None = None,
) -> Built:
    """Build a new version of an index from a table of subscriptions.

    *On the driver*: samples and counts of tokens, if shards are cut; the facts of the version. *In
    each task*: rows are converted and analysed; then one task per shard builds it and writes it.

    Args:
        subscriptions: One row per subscription.
        index: Directory that driver and workers reach: a local or mounted path, or a URI. An index
            that is there gets a new version, with these subscriptions instead of all earlier ones.
        placement: ``replicated``: one shard, which every machine maps whole. ``sharded``: cut by
            place and keywords. ``auto``: replicated up to 8 GiB (about 55 million subscriptions).
        n_shards: Number of shards; by default so many that each has about 2 GiB.
        messages: Messages as they will come; a sample of them decides how shards are cut. Without
            them, messages are taken to look like the subscriptions.
        form: How the rows of the subscriptions come; see :mod:`earshot.spark.rows`.
        columns: Names of their columns by field, where they differ.
        message_form: How the rows of the messages come.
        message_columns: Names of their columns.
        message_ids: Kind of their ids; needed for values and files.
        ids: Kind of the subscriptions' ids; needed for values and files.
        semantics: What a delivery means: ``Ranking(...)``, ``TopK(...)``, ``Moving(...)``, or None
            for boolean matching. Where messages depend on those before, shards are cut by the ids
            of subscriptions, by default one for each core.
        space: ``lonlat`` or ``planar``.
        analyzer: How text and keywords become tokens.
        structure: Name of the index structure; by default the fastest for the semantics.
        parameters: Options of that structure.
        on_error: ``raise`` at the first bad row of subscriptions or messages, or ``reject`` bad
            rows and build of the others.
        unique_ids: Say that no two rows have the same id, which saves a shuffle to make sure.
            Otherwise rows that share an id are all refused: a table has no first one.
        place: Which place counts where one of the messages has a ``point`` and a ``box``.
    """
    check_on_error(on_error)
    check_choice("placement", placement, get_args(PlacementChoice))
    if n_shards is not None and n_shards < 1:
        raise InvalidParameter(f"n_shards is {n_shards}; expected 1 or more")
    if placement == "replicated" and n_shards not in (None, 1):
        raise InvalidParameter(
            f"n_shards is {n_shards}, but a replicated index has one; leave it out, or choose "
            f"placement='sharded'"
        )
    reading = make_reading(
        "subscriptions", arrow_schema(subscriptions),
        form=form, ids=ids, columns=columns, space=space,
    )  # fmt: skip
    settings = IndexSettings(
        reading.ids, Boolean() if semantics is None else semantics, space, analyzer or Analyzer(),
        structure, parameters,
    )  # fmt: skip
    settings = replace(settings, structure=settings.engine().structure)
    if settings.keeps_messages and (placement == "replicated" or parameters is not None):
        given = "parameters" if parameters is not None else "placement='replicated'"
        raise InvalidParameter(
            f"{given} is not for {settings.form.noun}, whose shards are cut by the ids of "
            f"subscriptions; leave it out (n_shards=1 makes one shard)"
        )
    sampled, message_rejects, n_message_rejects = None, None, 0
    if messages is not None:
        message_reading = make_reading(
            "messages", arrow_schema(messages), form=message_form, ids=message_ids,
            columns=message_columns, space=space, place=place,
        )  # fmt: skip
        with plain_failures():
            noted = canonical_rows(messages, message_reading, settings.row_check)
            message_rejects = rejects_in(noted)
            n_message_rejects = message_rejects.count()
            if n_message_rejects and on_error == "raise":
                first = message_rejects.orderBy("source", "row").limit(1).toArrow().to_pylist()[0]
                raise Reject(**first).error()
            sampled = sample(without_notes(noted), SAMPLED_MESSAGES)
    check_executors(subscriptions.sparkSession)
    store = IndexStore(index)
    with store.lease("a build"):
        store.begin(settings)
        before = store.latest() if store.version_numbers() else None
        check = settings.row_check if settings.keeps_messages else None
        rows = canonical_rows(subscriptions, reading, check, with_origin=True)
        if settings.keeps_messages:
            with plain_failures():
                base, rejects = build_hashed(
                    rows if unique_ids else _without_shared_ids(rows, on_error == "raise"),
                    store, settings,
                    n_shards=n_shards or default_n_shards(rows.sparkSession),
                    stop_at_rejects=on_error == "raise",
                )  # fmt: skip
        else:
            base, rejects = build_base(
                rows, store, settings,
                placement=placement, n_shards=n_shards, messages=sampled,
                stop_at_rejects=on_error == "raise", unique_ids=unique_ids,
            )  # fmt: skip
        version = Version(
            1 if before is None else before.number + 1,
            base,
            n_subscriptions=sum(base.n_subscriptions),
            # Changes of a batch that Spark runs again belong to the subscriptions of before.
            taken_in={} if before is None else before.taken_in,
        )
        store.publish(version)
        store.clean()
    n_rejects = rejects.count() if on_error == "reject" else 0
    return Built(version, n_rejects + n_message_rejects, rejects, message_rejects)


def build_base(
    noted: DataFrame,
    store: IndexStore,
    settings: IndexSettings,
    *,
    placement: PlacementChoice,
    n_shards: int | None,
    messages: pa.Table | None,
    stop_at_rejects: bool,
    unique_ids: bool,
    n_tasks: int | None = None,
    counts: bytes | None = None,
) -> tuple[Base, DataFrame]:
    """Build all shards from canonical rows and notes; return the base, and the rejects.

    With ``n_tasks``, no more tasks than that run at a time. With ``counts``, words are weighed by
    them.
    """
    warm_up_machine(settings.semantics, settings.structure)
    folder = store.new_base()
    with plain_failures():
        if n_tasks is not None:
            noted = noted.coalesce(n_tasks)
        if not unique_ids:
            noted = _without_shared_ids(noted, stop_at_rejects)
        rows = without_notes(noted)
        n_rows = 0 if placement == "replicated" else rows.count()
        n_shards = _number_of_shards(placement, n_shards, n_rows)
        report: dict[str, Any] = {}
        plan = None
        if n_shards is not None:
            plan, report = _cut(rows, settings, n_shards, n_rows, messages)
            folder.add("plan", plan.save)
            if messages is not None:
                add_sample(folder, messages)
        if counts is not None:
            add_counts(folder, counts)
        task = BuildTask(folder.uri, settings, n_shards, stop_at_rejects)
        if n_shards is None:
            sent = noted.repartition(1)
        else:
            sent_schema = pa.schema([(SHARD, pa.int32()), *arrow_schema(noted)])
            sent = noted.mapInArrow(partial(_assign_task, task), from_arrow_schema(sent_schema))
            sent = sent.repartitionById(n_shards, F.col(SHARD))
            if n_tasks is not None:
                sent = sent.coalesce(n_tasks)
        built = sent.mapInArrow(partial(_build_task, task), from_arrow_schema(BUILT_SHARD))
        # Written, not collected: there may be many rejects. The job runs once, whoever reads them.
        built.write.mode("overwrite").parquet(f"{folder.uri}/built")
        built = noted.sparkSession.read.parquet(f"{folder.uri}/built")
        about = built.where(F.col(NOTE).isNull()).toArrow().to_pylist()
    shards = {row["shard"]: row for row in about}
    # Where nothing was sent to a shard, no task has built it.
    chosen = [
        shards.get(shard) or _build_shard(task, shard, [])[0].to_pylist()[0]
        for shard in range(n_shards or 1)
    ]
    names = tuple(each["directory"] for each in chosen)
    if plan is not None:
        units = [
            storage.Saved.open(folder.local(f"units/{name}")).group("units", UnitArrays)
            for name in names
        ]
        folder.add("territory", replace(plan, parts=tuple(units)).save)
    base = Base(
        folder.uri.rpartition("/")[2],
        "replicated" if plan is None else "sharded",
        tuple(each["n_subscriptions"] for each in chosen),
        tuple(each["n_bytes"] for each in chosen),
        names,
        report,
    )
    return base, rejects_in(built)


def _number_of_shards(placement: PlacementChoice, n_shards: int | None, n_rows: int) -> int | None:
    """Return the number of shards, None for an index that is not cut."""
    n_bytes = n_rows * BYTES_PER_SUBSCRIPTION
    if placement == "replicated":
        return None
    if placement == "auto" and n_shards is None and n_bytes <= REPLICATED_BYTES:
        return None
    return n_shards or max(2, -(-n_bytes // SHARD_BYTES))


def _without_shared_ids(noted: DataFrame, stop_at_rejects: bool) -> DataFrame:
    """Turn rows that share their id into rejects; they come with where they are from."""
    shared = (
        noted.where(F.col(NOTE).isNull() & F.col("id").isNotNull())
        .groupBy("id")
        .agg(F.count(F.lit(1)).alias("earshot_n"), F.min(F.struct(SOURCE, ROW)).alias("first"))
        .where("earshot_n > 1")
    ).toArrow()  # fmt: skip
    if not shared.num_rows:
        return noted
    if stop_at_rejects:
        one = shared.sort_by("id").slice(0, 1).to_pylist()[0]
        reason = _shared_reason(one["id"], one["earshot_n"])
        raise InvalidRow(one["first"][SOURCE], one["first"][ROW], "id", reason)
    known = F.broadcast(noted.sparkSession.createDataFrame(shared.drop_columns(["first"])))
    joined = noted.join(known, "id", "left").select(*noted.columns, "earshot_n")
    return joined.mapInArrow(partial(_refuse_shared_task, arrow_schema(noted)), noted.schema)


def _shared_reason(value: object, n: int) -> str:
    return f"id {value!r} is that of {n} rows; a table has no first one, so none is taken"


def _refuse_shared_task(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Batches:
    for batch in batches:
        counts = batch.column("earshot_n").fill_null(1).to_numpy(zero_copy_only=False)
        rows = batch.select(schema.names)
        yield rows.filter(pa.array(counts == 1)).cast(schema)
        errors = [
            InvalidRow("", at, "id", _shared_reason(rows.column("id")[at].as_py(), int(counts[at])))
            for at in np.flatnonzero(counts > 1).tolist()
        ]
        rejects = located_rejects(errors, rows)
        if rejects:
            yield batch_of_notes(schema, reject_notes(rejects))


# ---- cutting ------------------------------------------------------------------------------------


def _cut(
    rows: DataFrame,
    settings: IndexSettings,
    n_shards: int,
    n_rows: int,
    messages: pa.Table | None,
) -> tuple[Territory, dict[str, Any]]:
    """Cut shards from samples; return the plan, without what the shards hold, and its report."""
    analyzer, space = settings.analyzer, settings.space
    counted = token_frequencies(rows, analyzer).toArrow().sort_by("token")
    vocabulary = Vocabulary()
    known = vocabulary.add(counted.column("token").to_pylist())
    subscriptions = encode_subscriptions(
        sample(rows, SAMPLED_SUBSCRIPTIONS, n_rows=n_rows), analyzer, vocabulary, space,
        form=settings.form,
    )  # fmt: skip
    if messages is None:
        sampled = _messages_like(subscriptions.asked)
    else:
        sampled = encode_messages(messages, analyzer, vocabulary, space).messages
    # Rare in messages, and among equals rare in subscriptions.
    in_messages = np.bincount(sampled.token_ids, minlength=len(vocabulary))
    frequencies = in_messages.astype(np.int64) << 32
    frequencies[known] += counted.column("documents").to_numpy()
    plan, report = cut_plan(
        subscriptions.asked,
        sampled,
        n_shards,
        frequencies=frequencies,
        n_subscriptions=max(n_rows, len(subscriptions.ids)),
    )
    return Territory(plan, vocabulary, frequencies, (), settings), report.facts()


def _messages_like(clauses: ClauseArrays) -> MessageArrays:
    """Return a message for each clause: its required words, in the middle of its box."""
    tokens = np.maximum(clauses.token_ids, EVERYWHERE_TOKEN)  # forbidden ones are negative
    rows = np.arange(len(clauses.subscriptions))
    lengths = np.diff(clauses.token_offsets)
    offsets = clauses.token_offsets + np.arange(len(clauses.token_offsets))
    token_ids = np.zeros(int(offsets[-1]), np.int32)  # the first of each is everywhere
    token_ids[np.arange(len(tokens)) + np.repeat(rows + 1, lengths)] = tokens
    with np.errstate(invalid="ignore"):  # the middle of everywhere is 0
        centres = np.nan_to_num((clauses.boxes[:, :2] + clauses.boxes[:, 2:]) / 2)
    return MessageArrays(offsets, token_ids, np.concatenate([centres, centres], axis=1))


def add_sample(folder: Folder, messages: pa.Table) -> None:
    """Keep the messages that a base's shards were cut by."""

    def write(directory: Path) -> None:
        directory.mkdir()
        pq.write_table(messages, directory / "messages.parquet")

    folder.add("sample", write)


def sampled_messages(store: IndexStore, base: Base) -> pa.Table | None:
    """Return the messages that a base's shards were cut by, None where there were none."""
    folder = store.base_folder(base)
    if not folder.exists("sample"):
        return None
    return pq.read_table(folder.local("sample") / "messages.parquet")


# ---- tasks --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BuildTask:
    """What a worker has to know to build."""

    base: str  # URI of the base's directory
    settings: IndexSettings
    n_shards: int | None  # number of shards, None for an index that is not cut
    stop_at_rejects: bool  # whether a bad row fails the task

    def plan(self) -> Territory | None:
        """Return how shards are cut."""
        if self.n_shards is None:
            return None
        return Territory.open(Folder(self.base).local("plan"), self.settings)


def add_counts(folder: Folder, counts: bytes) -> None:
    """Keep the counts by which the words of a base are weighed."""

    def write(directory: Path) -> None:
        directory.mkdir()
        (directory / COUNTS).write_bytes(counts)

    folder.add(COUNTS, write)


def base_counts(folder: Folder) -> bytes | None:
    """Return the counts by which the words of a base are weighed, None where all weigh the same."""
    return (folder.local(COUNTS) / COUNTS).read_bytes() if folder.exists(COUNTS) else None


def _assign_task(task: BuildTask, batches: Iterable[pa.RecordBatch]) -> Batches:
    """Yield the rows, each with the number of its shard; notes go to the first."""
    warm_up_machine(task.settings.semantics, task.settings.structure)
    plan = task.plan()
    assert plan is not None
    for batch in batches:
        shards = np.zeros(batch.num_rows, np.int32)
        is_row = batch.column(NOTE).is_null().to_numpy(zero_copy_only=False)
        shards[is_row] = plan.assign(batch.filter(pa.array(is_row)))[0]
        yield pa.RecordBatch.from_arrays(
            [pa.array(shards), *batch.columns], names=[SHARD, *batch.schema.names]
        )


def _build_task(task: BuildTask, batches: Iterable[pa.RecordBatch]) -> Batches:
    """Build the shards whose rows these are, one after the other, and tell about them."""
    if task.n_shards is None:
        yield from _build_shard(task, 0, batches)
        return
    for shard, parts in groupby(_runs(batches), key=itemgetter(0)):
        yield from _build_shard(task, shard, (rows for _, rows in parts))


def _runs(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each shard, which lie together."""
    for batch in batches:
        shards = batch.column(SHARD).to_numpy()
        starts = np.flatnonzero(np.append(True, shards[1:] != shards[:-1])[: len(shards)])
        for start, stop in pairwise([*starts.tolist(), len(shards)]):
            yield int(shards[start]), batch.slice(start, stop - start)


def _build_shard(
    task: BuildTask, shard: int, batches: Iterable[pa.RecordBatch]
) -> list[pa.RecordBatch]:
    """Build and write one shard; return a row about it, and notes on its rejects."""
    settings, folder = task.settings, Folder(task.base)
    warm_up_machine(settings.semantics, settings.structure)
    name = new_shard_name(shard)
    engine = settings.engine()
    schema = subscriptions_schema(id_type(settings.ids))
    plan = task.plan()
    units = [merge_units([])]
    notes = [pa.array([], pa.string())]
    with folder.draft() as draft:
        (draft / "rows").mkdir()
        with pq.ParquetWriter(draft / "rows" / "rows.parquet", schema) as writer:
            for batch in batches:
                located, more_notes = split_notes(batch)
                rows = located.select(schema.names).cast(schema)
                errors = engine.subscribe_batch(rows, on_error="reject").rejects
                rejects = located_rejects(errors, located)
                if task.stop_at_rejects and (rejects or len(more_notes)):
                    raise [*rejects_of_notes(more_notes[:1]), *rejects][0].error()
                if errors:
                    refused = [error.row for error in errors]
                    rows = rows.take(pa.array(np.delete(np.arange(rows.num_rows), refused)))
                notes += [more_notes, reject_notes(rejects)]
                writer.write_batch(rows)
                if plan is not None:
                    units.append(plan.assign(rows)[1])
        n_subscriptions = len(engine)
        counts = base_counts(folder)
        if counts is not None:
            engine.reweigh(counts=read_counts(counts))
        if plan is not None:
            storage.save(draft / "units", storage.Contents({}, {"units": merge_units(units)}))
            folder.put(f"units/{name}", draft / "units")
        n_bytes = put_shard(folder, name, engine, draft)
    about = pa.RecordBatch.from_pylist(
        [{"shard": shard, "directory": name, "n_subscriptions": n_subscriptions,
          "n_bytes": n_bytes, NOTE: None}],
        schema=BUILT_SHARD,
    )  # fmt: skip
    all_notes = pa.concat_arrays(notes)
    return [about, batch_of_notes(BUILT_SHARD, all_notes)] if len(all_notes) else [about]


def put_shard(folder: Folder, name: str, engine: Engine, draft: Path) -> int:
    """Write a shard to the directory of a base; return the bytes of its engine.

    Its rows are at ``rows`` in the draft, which is used for the rest as well.
    """
    engine.save(draft / "engine")
    n_bytes = sum(path.stat().st_size for path in (draft / "engine").iterdir())
    save_register(engine, draft / "engine", draft / "register")
    for kind, made in (("registers", "register"), ("rows", "rows"), ("shards", "engine")):
        folder.put(f"{kind}/{name}", draft / made)
    return n_bytes
