"""Batches of changes of any size, taken in part by part.

Changes are decided on the driver, which must not hold a backlog at once. A task that reads many
rows writes them beside and hands over only where they are. If any task does, Spark sorts the batch,
and the driver reads it back in parts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from earshot.spark.folders import Folder
from earshot.spark.notes import NOTE, batch_of_notes, without_notes

SPOOLED = "spooled"
"""What a note begins with that names a directory with the rows of a task."""


@dataclass(frozen=True)
class Spool:
    """Where tasks write rows that are too many to be handed over."""

    location: str  # URI of a directory
    most: int  # rows that a task hands over

    def passed(
        self,
        schema: pa.Schema,
        task: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]],
        batches: Iterable[pa.RecordBatch],
    ) -> Iterator[pa.RecordBatch]:
        """Yield what a task makes of its batches, or a note on where that is."""
        kept: list[pa.RecordBatch] = []
        n_rows, rest = 0, iter(task(batches))
        for batch in rest:
            kept.append(batch)
            n_rows += batch.num_rows
            if n_rows > self.most:
                break
        else:
            yield from kept
            return
        folder, name = Folder(self.location), uuid4().hex
        with folder.draft() as draft:
            (draft / "rows").mkdir()
            with pq.ParquetWriter(draft / "rows" / "rows.parquet", schema) as writer:
                while kept:
                    writer.write_batch(kept.pop(0))
                for batch in rest:
                    writer.write_batch(batch)
            folder.put(name, draft / "rows")
        yield batch_of_notes(schema, pa.array([json.dumps({SPOOLED: name})]))


def split_spooled(noted: pa.Table) -> tuple[pa.Table, list[str]]:
    """Return rows and notes without those that name directories, and these directories."""
    notes = noted.column(NOTE).to_pylist()
    told = [None if note is None else json.loads(note).get(SPOOLED) for note in notes]
    names = [name for name in told if name is not None]
    return noted.filter(pa.array([name is None for name in told])) if names else noted, names


class Backlog:
    """Rows that tasks wrote beside, and others, as one batch.

    Args:
        session: What sorts them.
        spool: Where the rows are.
        names: Directories of the tasks that wrote.
        others: Rows and notes of the tasks that did not.
    """

    def __init__(
        self, session: SparkSession, spool: Spool, names: list[str], others: pa.Table
    ) -> None:
        self._folder, self._most = Folder(spool.location), spool.most
        self._schema = others.drop_columns([NOTE]).schema
        spooled = session.read.parquet(*(f"{self._folder.uri}/{name}" for name in names))
        self.noted: DataFrame = spooled
        if others.num_rows:
            handed = session.createDataFrame(others.combine_chunks(), spooled.schema)
            self.noted = spooled.unionByName(handed)

    def notes(self) -> pa.ChunkedArray:
        """Return the notes on rejects."""
        return self.noted.select(NOTE).where(F.col(NOTE).isNotNull()).toArrow().column(NOTE)

    def parts(self, keys: list[str]) -> Iterator[pa.Table]:
        """Yield the rows by time where all have one, and by the given columns, some at a time."""
        rows = without_notes(self.noted)
        if rows.where(F.col("time").isNull()).isEmpty():
            keys = ["time", *keys]
        sorted_name = uuid4().hex
        rows.orderBy(*keys).write.parquet(f"{self._folder.uri}/{sorted_name}")
        directory = self._folder.local(sorted_name)
        for path in sorted(directory.glob("*.parquet")):
            # Spark's times in Parquet are of an old kind, without a zone, in UTC.
            with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
                for batch in file.iter_batches(self._most):
                    yield pa.Table.from_batches([batch]).cast(self._schema)
