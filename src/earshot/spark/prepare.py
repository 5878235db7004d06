"""Preparing tables: the user's columns to ours, bad rows aside, and what the rows are like.

All of it runs as Spark jobs over Arrow batches, so a table may be larger than memory.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, get_args

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.pandas.types import from_arrow_schema

from earshot.encoding import encode_messages, encode_moves, encode_subscriptions
from earshot.engine.changes import waves
from earshot.errors import InvalidRow
from earshot.files import PlaceKind, Reject
from earshot.files.rejects import row_json, row_values
from earshot.model.arrays import Space
from earshot.model.schemas import (
    BOX_FIELDS,
    Content,
    IdKind,
    id_type,
    schema_of,
)
from earshot.semantics import matcher_type
from earshot.spark.arrivals import ARRIVED, Arrivals
from earshot.spark.backlog import Spool
from earshot.spark.notes import (
    NOTE,
    Note,
    batch_of_notes,
    notes_on,
    reject_notes,
    rejects_in,
    without_notes,
)
from earshot.spark.rows import (
    Batches,
    Part,
    RowCheck,
    RowForm,
    RowReading,
    arrow_schema,
    check_choice,
    make_reading,
    needed_columns,
)
from earshot.spark.shards import spare_collections
from earshot.text import Analyzer, TokenLists, Vocabulary

SOURCE, ROW = "earshot_source", "earshot_row"
"""Columns that tell where a row is from: a file or a partition, and the row's number there."""

MOST_COUNTED_TOKENS = 1 << 20
"""Tokens that a task counts before it hands its counts on."""


@dataclass(frozen=True)
class Prepared:
    """A table in canonical columns.

    Both are computed from the table when they are used; ``rows.cache()`` where both are.
    """

    rows: DataFrame  # the good rows, in the columns of :mod:`earshot.model.schemas`
    rejects: DataFrame  # the bad ones, with source, row, field, reason and the row itself as JSON


class Bounds(NamedTuple):
    """The smallest box around all places of a table; None where there is none."""

    min_x: float | None
    min_y: float | None
    max_x: float | None
    max_y: float | None


def prepare(
    table: DataFrame,
    content: Content,
    *,
    form: RowForm = "columns",
    columns: Mapping[str, str] | None = None,
    ids: IdKind | None = None,
    semantics: Any = None,
    space: Space = "lonlat",
    analyzer: Analyzer | None = None,
    place: PlaceKind | None = None,
) -> Prepared:
    """Bring a table of subscriptions, messages or changes into canonical columns.

    *On the driver*: the columns are looked up. *In each task*: every row is converted, its text is
    analysed and its place checked, as the engine does it, so what is good here is good there.

    Args:
        table: Rows in any of the forms of :mod:`earshot.spark.rows`.
        content: ``subscriptions``, ``messages`` or ``changes``.
        form: How the rows come.
        columns: Names of the columns by field, where they differ: ``{"x": "lon"}``.
        ids: ``integer`` or ``string``; needed for values and files.
        semantics: What the rows are for, as for :class:`~earshot.engine.engine.Engine`.
        space: ``lonlat`` or ``planar``.
        analyzer: How text and keywords become tokens.
        place: Which place counts where a message has a ``point`` and a ``box``; ``box`` also reads
            a polygon as the box around it. By default such messages are refused.
    """
    check_choice("content", content, get_args(Content))
    reading = make_reading(
        content, arrow_schema(table),
        form=form, ids=ids, columns=columns, space=space, place=place,
    )  # fmt: skip
    check = RowCheck(analyzer or Analyzer(), matcher_type(semantics).form)
    checked = canonical_rows(table, reading, check)
    return Prepared(without_notes(checked), rejects_in(checked))


def canonical_rows(
    table: DataFrame,
    reading: RowReading,
    check: RowCheck | None,
    *,
    with_origin: bool = False,
    with_arrivals: bool = False,
    spool: Spool | None = None,
) -> DataFrame:
    """Return canonical rows and notes on rejects; if asked, also on when rows arrived.

    Without a check, the engine may still refuse some. With their origin, rows have the columns
    :data:`SOURCE` and :data:`ROW`, which tell where each is from. Tasks with many rows write them
    to the spool, if there is one.
    """
    needed = needed_columns(reading, arrow_schema(table))
    task = partial(_read_task, reading, check, with_origin, with_arrivals)
    schema = _noted(reading, with_origin)
    return table.select(*(table[name] for name in needed)).mapInArrow(
        task if spool is None else partial(spool.passed, schema, task),
        from_arrow_schema(schema),
    )


def arrived_rows(
    table: DataFrame, reading: RowReading, check: RowCheck, arrivals: Arrivals
) -> DataFrame:
    """Return where tasks put canonical rows with their origin, and notes as above."""
    needed = needed_columns(reading, arrow_schema(table))
    schema = _noted(reading, with_origin=True)
    read = partial(_read_task, reading, check, True, True)
    return table.select(*(table[name] for name in needed)).mapInArrow(
        partial(arrivals.write, reading.content, schema, read), from_arrow_schema(ARRIVED)
    )


def _noted(reading: RowReading, with_origin: bool) -> pa.Schema:
    origin = [(SOURCE, pa.string()), (ROW, pa.int64())] if with_origin else []
    rows = schema_of(reading.content, id_type(reading.ids))
    return pa.schema([*rows, *origin, (NOTE, pa.string())])


def _read_task(
    reading: RowReading,
    check: RowCheck | None,
    with_origin: bool,
    with_arrivals: bool,
    batches: Iterable[pa.RecordBatch],
) -> Batches:
    if not gc.get_freeze_count():
        spare_collections()
    schema = _noted(reading, with_origin)
    for part in reading.parts(batches):
        rows = part.rows
        errors = [] if check is None else _problems(reading, check, part)
        rejects, kept = part.judged(errors)
        good = rows.batch.take(pa.array(kept)) if errors else rows.batch
        origin = [pa.repeat(rows.source, len(kept)), pa.array(rows.rows[kept])]
        columns = [*good.columns, *(origin if with_origin else ())]
        yield pa.RecordBatch.from_arrays(
            [*columns, pa.nulls(len(kept), pa.string())], schema=schema
        )
        if with_arrivals:
            yield batch_of_notes(schema, notes_on(rejects, Note(arrived_us=part.arrived_us)))
        elif rejects:
            yield batch_of_notes(schema, reject_notes(rejects))


def located_rejects(errors: Sequence[InvalidRow], rows: pa.RecordBatch | pa.Table) -> list[Reject]:
    """Return refused rows with where they are from, as :data:`SOURCE` and :data:`ROW` tell.

    Errors name rows by their position; a row without these two columns is from nowhere.
    """
    rejects = []
    for error in errors:
        row = pa.table(rows.slice(error.row, 1)).combine_chunks().to_batches()[0]
        values = row_values(row, 0)
        source, number = values.get(SOURCE, ""), values.get(ROW, -1)
        own = {name: each for name, each in values.items() if not name.startswith("earshot_")}
        rejects.append(Reject(source, number, error.field, error.reason, row_json(own)))
    return rejects


def _problems(reading: RowReading, check: RowCheck, part: Part) -> list[InvalidRow]:
    """Return what the engine would refuse, whatever it holds."""
    batch, numbers, source = part.rows.batch, part.rows.rows, part.rows.source
    words = (check.analyzer, Vocabulary(), reading.space)
    located: dict[str, Any] = {"form": check.form, "source": source}
    if reading.content == "messages":
        return encode_messages(batch, *words, **located, rows=numbers).rejects
    if reading.content == "subscriptions":
        return encode_subscriptions(batch, *words, **located, rows=numbers).rejects
    if reading.content == "positions":
        return encode_moves(batch, reading.space, **located, rows=numbers).rejects
    operations = batch.column("op").to_numpy(zero_copy_only=False)
    errors: list[InvalidRow] = []
    for rows in waves(pa.Table.from_batches([batch])):  # an id may come again
        new, moved = (rows[operations[rows] == name] for name in ("subscribe", "move"))
        subscribed = batch.take(pa.array(new))
        errors += encode_subscriptions(subscribed, *words, **located, rows=numbers[new]).rejects
        places = batch.take(pa.array(moved))
        errors += encode_moves(places, reading.space, **located, rows=numbers[moved]).rejects
    return sorted(errors, key=lambda error: error.row)


# ---- what the rows are like ---------------------------------------------------------------------


def token_frequencies(rows: DataFrame, analyzer: Analyzer | None = None) -> DataFrame:
    """Return ``token, documents``: in how many canonical rows each token occurs.

    *In each task*: the rows are analysed, and counted by token; only counts are shuffled.

    Args:
        rows: Canonical messages (their text and keywords) or subscriptions (their keywords, also
            those of expressions, forbidden ones included).
        analyzer: How they become tokens.
    """
    schema = arrow_schema(rows)
    is_message = "text" in schema.names
    task = partial(_count_task, analyzer or Analyzer(), is_message)
    wanted = ("text", "keywords") if is_message else ("keywords", "expression")
    counted = rows.select(*(name for name in wanted if name in schema.names)).mapInArrow(
        task, "token string, documents long"
    )
    return counted.groupBy("token").agg(F.sum("documents").alias("documents"))


def _count_task(analyzer: Analyzer, is_message: bool, batches: Iterable[pa.RecordBatch]) -> Batches:
    vocabulary = Vocabulary()
    for batch in batches:
        vocabulary.add_documents(_token_lists(batch, analyzer, vocabulary, is_message))
        if len(vocabulary) > MOST_COUNTED_TOKENS:
            yield _counts(vocabulary)
            vocabulary = Vocabulary()
    yield _counts(vocabulary)


def _token_lists(
    batch: pa.RecordBatch, analyzer: Analyzer, vocabulary: Vocabulary, is_message: bool
) -> TokenLists:
    """Return the tokens of each row, every id and place being allowed."""
    n = batch.num_rows
    zeros = pa.array(np.zeros(n))
    anywhere = dict.fromkeys(("x", "y") if is_message else BOX_FIELDS, zeros)
    words = {name: batch.column(name) for name in batch.schema.names}
    placed = pa.table({**words, "id": pa.array(np.arange(n)), **anywhere})
    if not is_message:
        clauses = encode_subscriptions(placed, analyzer, vocabulary, "planar").asked
        tokens = clauses.token_ids
        # Forbidden ones, which are negative, as well.
        return TokenLists(clauses.token_offsets, np.where(tokens < 0, ~tokens, tokens))
    texts = placed.column("text").combine_chunks() if "text" in placed.schema.names else None
    if texts is not None:  # so that the vocabulary has them
        analyzer.analyze(texts.fill_null(""), vocabulary, grow=True)
    if "keywords" in placed.schema.names:
        words = placed.column("keywords").combine_chunks().flatten()
        analyzer.analyze(words.fill_null(""), vocabulary, grow=True)
    messages = encode_messages(placed, analyzer, vocabulary, "planar").messages
    return TokenLists(messages.token_offsets, messages.token_ids)


def _counts(vocabulary: Vocabulary) -> pa.RecordBatch:
    known = np.flatnonzero(vocabulary.frequencies[1:]) + 1  # token 0 is every message's
    return pa.RecordBatch.from_arrays(
        [
            pa.array(vocabulary.tokens(known), pa.string()),
            pa.array(vocabulary.frequencies[known], pa.int64()),
        ],
        names=["token", "documents"],
    )


def bounds(rows: DataFrame) -> Bounds:
    """Return the smallest box around the points, boxes and centres of canonical rows.

    *On the driver*: only the result. *In each task*: Spark's own minimum and maximum.
    """
    has = set(rows.columns)
    if {"min_x", "max_x"} <= has:  # a box that crosses the antimeridian reaches both its sides
        crosses = F.col("min_x") > F.col("max_x")
        rows = rows.withColumns(
            {
                "min_x": F.when(crosses, -180.0).otherwise(F.col("min_x")),
                "max_x": F.when(crosses, 180.0).otherwise(F.col("max_x")),
            }
        )
    sides = []
    for side in Bounds._fields:
        total, _, axis = side.partition("_")
        extreme = {"min": "least", "max": "greatest"}[total]
        names = [name for name in (side, axis) if name in has]
        sides.append(f"{total}({extreme}({', '.join([*names, 'NULL'])})) AS {side}")
    found = rows.selectExpr(*sides).collect()[0]
    return Bounds(*(None if value is None else float(value) for value in found))


def sample(rows: DataFrame, n: int, *, n_rows: int | None = None, seed: int = 1) -> pa.Table:
    """Return about ``n`` rows, drawn evenly, on the driver.

    Args:
        rows: Any table.
        n: How many.
        n_rows: How many there are, if known; else they are counted.
        seed: Of the draw.
    """
    n_rows = rows.count() if n_rows is None else n_rows
    if n < n_rows:
        rows = rows.sample(fraction=min(1.0, 1.05 * n / n_rows), seed=seed).limit(n)
    return rows.toArrow()
