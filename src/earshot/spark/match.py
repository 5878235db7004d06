"""Matching a DataFrame of messages against an index, in batch or inside a streaming query."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar, get_args

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.pandas.types import from_arrow_schema

from earshot.errors import InvalidFile, InvalidParameter
from earshot.files import PlaceKind
from earshot.files.rejects import OnError, check_on_error
from earshot.model.batches import time_us
from earshot.model.schemas import UPDATE_FIELDS, IdKind, id_type, messages_schema
from earshot.semantics import matches_tables
from earshot.semantics.contract import Matcher
from earshot.spark.notes import NOTE
from earshot.spark.rows import (
    RowForm,
    RowReading,
    arrow_schema,
    check_choice,
    make_reading,
    needed_columns,
)
from earshot.spark.session import is_local
from earshot.spark.shards import SHARD
from earshot.spark.store import IndexStore, Version, latest_us
from earshot.spark.workers import (
    KEY,
    MatchTask,
    Shape,
    match_replicated,
    match_sharded,
    send_to_shards,
    sent_schema,
    with_key,
)

T = TypeVar("T")

_SETTLING_MS = 500
"""How long an executor works on becoming the home of a shard."""
_RESERVED = {*UPDATE_FIELDS, "subscription_ids", "scores"} - {"time"}
"""Columns that some output has; a message's own time may go along."""


def match(
    messages: DataFrame,
    index: str | Path,
    *,
    shape: Shape = "rows",
    version: int | None = None,
    at: datetime | None = None,
    form: RowForm = "columns",
    columns: Mapping[str, str] | None = None,
    ids: IdKind | None = None,
    carry: Sequence[str] = (),
    keep_unmatched: bool = False,
    on_error: OnError = "raise",
    place: PlaceKind | None = None,
) -> DataFrame:
    """Return who gets each message.

    Works on static and on streaming DataFrames, which then see one version of the index for as
    long as they run; :func:`earshot.spark.match_stream` follows changes. Can be called as
    ``messages.transform(match, index)``.

    *On the driver*: the facts of the index are read, nothing else. *In each task*: the index is
    memory-mapped (shared by all workers of a machine), the text of its Arrow batches is analysed
    and matched. With a sharded index, messages are first sent to the shards that can match them,
    which is a shuffle; and with ``lists``, the parts of each list come together in another one.

    Args:
        messages: One row per message, in any of the forms.
        index: Directory of the index.
        shape: ``rows``: columns ``message_id, subscription_id``, one row per update. ``lists``:
            columns ``message_id, subscription_ids``, one row per message; much faster where
            messages reach many. Where the semantics has scores, a column ``score`` or ``scores``
            follows.
        version: Which version of the index; by default the current one, as of this call.
        at: Subscriptions that end at or before this time are over, beside those that end at or
            before the message's own time.
        form: ``columns``, ``values`` (JSON in the column ``value``) or ``files`` (a file in each
            row, by its ``path``); see :mod:`earshot.spark.rows`.
        columns: Names of the columns by field, where they differ: ``{"x": "lon"}``.
        ids: Kind of the messages' ids, ``integer`` or ``string``; needed for values and files.
        carry: Columns of the messages that go along with each row of the output.
        keep_unmatched: Let ``lists`` have the messages that reach nobody, with an empty list.
        on_error: ``raise`` fails the job at the first bad row. ``reject`` leaves bad rows out;
            :func:`earshot.spark.prepare` tells which they are.
        place: Which place counts where a message has a ``point`` and a ``box``; ``box`` also reads
            a polygon as the box around it. By default such messages are refused.
    """
    check_on_error(on_error)
    task = match_task(
        messages,
        IndexStore(index),
        None if version is None else IndexStore(index).version(version),
        shape=shape,
        form=form,
        columns=columns,
        ids=ids,
        carry=carry,
        keep_unmatched=keep_unmatched,
        clock_us=None if at is None else time_us(at),
        stop_at_rejects=on_error == "raise",
        place=place,
    )
    return run_match(messages, task)


def match_task(
    messages: DataFrame,
    store: IndexStore,
    version: Version | None,
    *,
    shape: Shape,
    form: RowForm = "columns",
    columns: Mapping[str, str] | None = None,
    ids: IdKind | None = None,
    carry: Sequence[str] = (),
    keep_unmatched: bool = False,
    clock_us: int | None = None,
    stop_at_rejects: bool = True,
    has_notes: bool = False,
    place: PlaceKind | None = None,
) -> MatchTask:
    """Return what the workers have to know, after checking it against the DataFrame."""
    check_choice("shape", shape, get_args(Shape))
    if keep_unmatched and shape == "rows":
        raise InvalidParameter("keep_unmatched is for shape='lists'; a message that reaches nobody "
                               "has no row in 'rows'")  # fmt: skip
    settings = store.settings
    check_matches_tables(settings.matcher)
    schema = arrow_schema(messages)
    reading = make_reading(
        "messages", schema,
        form=form, ids=ids, columns=columns, space=settings.space, place=place,
    )  # fmt: skip
    version = store.latest() if version is None else version
    return MatchTask(
        store.folder.uri, version, settings, reading, shape, _carried(reading, schema, carry),
        keep_unmatched, has_notes, latest_us(clock_us, version.clock_us), stop_at_rejects,
    )  # fmt: skip


def check_matches_tables(matcher: type[Matcher]) -> None:
    """Refuse a semantics that tables of messages cannot be matched with."""
    if not matches_tables(matcher):
        raise InvalidParameter(
            f"{matcher.form.noun} depends on the messages before, and a table has no order; "
            f"follow a stream with match_stream or 'earshot pipeline run'"
        )


def run_match(messages: DataFrame, task: MatchTask, homes: DataFrame | None = None) -> DataFrame:
    """Return the output of the workers, with notes where they were asked for.

    Shards are matched where their homes are, if there are some; see :func:`shard_homes`.
    """
    needed = needed_columns(task.reading, arrow_schema(messages), task.carried.names)
    chosen = messages.select(*(messages[name] for name in needed))
    if task.version.base.placement == "replicated":
        return chosen.mapInArrow(partial(match_replicated, task), from_arrow_schema(task.schema))
    if messages.isStreaming and task.shape == "lists":
        raise InvalidParameter(
            "a streaming DataFrame cannot bring the lists of several shards together; use "
            "match_stream, or shape='rows'"
        )
    sent = chosen.mapInArrow(partial(send_to_shards, task), from_arrow_schema(sent_schema(task)))
    sent = sent.repartitionById(task.version.base.n_shards, F.col(SHARD))
    if homes is not None:
        sent = sent.join(homes.hint("shuffle_hash"), SHARD)
    found = sent.mapInArrow(partial(match_sharded, task), from_arrow_schema(with_key(task).schema))
    if task.shape == "rows":
        return found.drop(KEY)
    return _joined_lists(found, task)


def shard_homes(session: SparkSession, n_shards: int) -> DataFrame:
    """Return a table that keeps each shard's tasks on one executor, for as long as it is cached.

    Spark runs tasks where their data are, and the parts of a shuffle are everywhere. So messages on
    their way to shards are joined with this table, which has one row per shard, parts as the
    messages have, and an executor that keeps each part. When that executor is gone, another one
    makes the part again and keeps it.

    Making a part takes its task a while, in which the other executors get as many: in no time, the
    first one to be free would make most of them.
    """
    numbers = session.range(n_shards).select(F.col("id").cast("int").alias(SHARD))
    homes = numbers.repartitionById(n_shards, F.col(SHARD))
    if not is_local(str(session.sparkContext.master)):
        homes = homes.where(f"reflect('java.lang.Thread', 'sleep', {_SETTLING_MS}L) IS NOT NULL")
    homes.persist()
    homes.count()  # only what is there already has parts that Spark knows to be the messages'
    return homes


def run_at_shards(
    session: SparkSession, homes: DataFrame | None, work: Callable[[int], T], shards: Sequence[int]
) -> list[T]:
    """Return what a function says of each shard, called by a task where the shard has its home."""
    if homes is None:
        return session.sparkContext.parallelize(shards, len(shards)).map(work).collect()
    answers = homes.rdd.map(partial(_call_with_shard, work))
    return list(session.sparkContext.runJob(answers, list, partitions=list(shards)))


def _call_with_shard(work: Callable[[int], T], row: Row) -> T:
    return work(row[SHARD])


def _joined_lists(found: DataFrame, task: MatchTask) -> DataFrame:
    """Bring the parts of each message's lists together; notes stay as they are."""
    message_id, *lists = task.own.names
    columns = [F.first(name).alias(name) for name in (message_id, *task.carried.names)]
    # All lists of a group are collected in one order, so subscribers and scores stay together.
    columns += [F.flatten(F.collect_list(name)).alias(name) for name in lists]
    if not task.has_notes:
        joined = found.groupBy(KEY).agg(*columns)
    else:
        number = F.when(F.col(NOTE).isNotNull(), F.monotonically_increasing_id())
        joined = (
            found.withColumn("earshot_number", number)
            .groupBy(KEY, "earshot_number")
            .agg(*columns, F.first(NOTE).alias(NOTE))
        )
    return joined.select(*task.schema.names)


def _carried(reading: RowReading, schema: pa.Schema, carry: Sequence[str]) -> pa.Schema:
    """Return the fields of the columns that go along."""
    has = schema if reading.form == "columns" else messages_schema(id_type(reading.ids))
    for name in carry:
        if carry.count(name) > 1:
            raise InvalidParameter(f"carry names column '{name}' more than once")
        if name not in has.names:
            raise InvalidFile(
                f"carry names column '{name}'; the messages have {', '.join(has.names)} (columns "
                f"of types that Arrow lacks cannot be carried)"
            )
        if name in _RESERVED or name.startswith("earshot_"):
            raise InvalidParameter(
                f"carry names column '{name}', which the output has already; rename the column"
            )
    return pa.schema([has.field(name) for name in carry])
