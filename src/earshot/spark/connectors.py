"""Where messages and changes come from, and where updates and rejects go: files, and Kafka.

Spark may run a batch again after a crash, with the same rows and the same number. A sink that
replaces what it wrote under that number before makes the output exactly-once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from earshot.files import PlaceKind
from earshot.model.schemas import IdKind
from earshot.spark.folders import Folder
from earshot.spark.owners import Owner, claim_sink
from earshot.spark.rows import RowForm, check_choice
from earshot.spark.unread import UnreadFiles

Sink: TypeAlias = Callable[[DataFrame, int], None]
"""Writes the rows of a batch, given its number; called again with the same after a crash."""

FileFormat = Literal["parquet", "ndjson"]
SPARK_FORMATS = {"parquet": "parquet", "ndjson": "json"}
OLDEST_FILE = "36500d"
"""Files older than this, compared with the newest one, are passed over; Spark's own is a week."""
FILE_SCHEMA = "path string, modificationTime timestamp, length long, content binary"


@dataclass(frozen=True)
class Stream:
    """A stream of rows and how they are read.

    Attributes:
        rows: A streaming DataFrame.
        form: How its rows come; see :mod:`earshot.spark.rows`.
        columns: Names of its columns by field, where they differ.
        ids: Kind of ids; needed for values and files. Changes have the ids of the index.
        unread: What Spark will not read of a directory.
        place: Which place counts where a message has a point and a box; by default it is refused.
    """

    rows: DataFrame
    form: RowForm = "columns"
    columns: Mapping[str, str] = field(default_factory=dict)
    ids: IdKind | None = None
    unread: UnreadFiles | None = None
    place: PlaceKind | None = None

    @classmethod
    def of_files(
        cls,
        session: SparkSession,
        location: str | Path,
        *,
        pattern: str | None = None,
        files_per_batch: int | None = None,
        columns: Mapping[str, str] | None = None,
        ids: IdKind | None = None,
        place: PlaceKind | None = None,
    ) -> Stream:
        """Return the files of a directory and those below it as a stream.

        Files are taken as they appear, each once, and must appear whole: write them elsewhere on
        the same disk and move them in. Any format that Earshot reads will do. Workers read the
        files themselves where the directory is local or mounted; else Spark hands them the content.
        However old a file is, it is taken. One whose name begins with ``_``, or that is written
        again under its old name, is not: it is told among the rejects.
        A file that is removed before it was read stops the stream, as its rows would be lost.

        Args:
            session: Where the stream runs.
            location: Directory, as a path or URI.
            pattern: Such as ``*.ndjson``; other files are left alone.
            files_per_batch: Most files in a micro-batch.
            columns: Names of columns by field, where they differ.
            ids: Kind of the messages' ids.
            place: Which place of a message counts, ``point`` or ``box``.
        """
        folder = Folder(location)
        reader = session.readStream.format("binaryFile").schema(FILE_SCHEMA)
        reader = reader.option("maxFileAge", OLDEST_FILE).option("recursiveFileLookup", "true")
        if pattern is not None:
            reader = reader.option("pathGlobFilter", pattern)
        if files_per_batch is not None:
            reader = reader.option("maxFilesPerTrigger", files_per_batch)
        files = reader.load(folder.uri)
        if folder.is_local:  # bytes that nobody asks for are not read
            files = files.drop("content")
        return cls(files, "files", columns or {}, ids, UnreadFiles(folder, pattern), place)

    @classmethod
    def of_kafka(
        cls,
        session: SparkSession,
        servers: str,
        topic: str,
        *,
        start: str = "earliest",
        records_per_batch: int | None = None,
        options: Mapping[str, str] | None = None,
        columns: Mapping[str, str] | None = None,
        ids: IdKind | None = None,
        place: PlaceKind | None = None,
    ) -> Stream:
        """Return a Kafka topic as a stream of JSON objects.

        Needs Spark's Kafka connector; see :func:`earshot.spark.kafka.connector_jars`.

        Args:
            session: Where the stream runs.
            servers: ``host:port`` of some brokers, with commas between.
            topic: The topic.
            start: ``earliest`` or ``latest``, for the first start only: later ones go on where the
                checkpoint is.
            records_per_batch: Most records in a micro-batch.
            options: Further options of Spark's connector, such as ``kafka.security.protocol``.
            columns: Names of fields in the objects, where they differ.
            ids: Kind of the messages' ids.
            place: Which place of a message counts, ``point`` or ``box``.
        """
        given = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": start}
        if records_per_batch is not None:
            given["maxOffsetsPerTrigger"] = str(records_per_batch)
        records = session.readStream.format("kafka").options(**{**given, **(options or {})}).load()
        return cls(records, "values", columns or {}, ids, place=place)


# ---- sinks --------------------------------------------------------------------------------------


def owned(sink: Sink | None, owner: Owner, purpose: str) -> Sink | None:
    """Return a sink as the pipeline's own; a function of the user's stays as it is."""
    claim = getattr(sink, "owned_by", None)
    return sink if claim is None else claim(owner._replace(purpose=purpose))


def write_files(
    rows: DataFrame, folder: Folder, name: str, format: FileFormat, *, mark: str = ""
) -> None:
    """Write a directory in place of what was there; see :func:`drafted`."""
    with drafted(folder, name, mark) as draft:
        rows.write.mode("overwrite").format(SPARK_FORMATS[format]).save(draft)


@contextmanager
def drafted(folder: Folder, name: str, mark: str = "") -> Iterator[str]:
    """Yield the URI of a directory to write; it appears when it is complete, if local.

    It takes the place of what was there. The mark tells its draft from what else may be in a folder
    that is not ours.
    """
    # Names that begin with _ are invisible to Spark's readers, as are Arrow's.
    draft = f"_{name}{mark}" if folder.is_local else name
    folder.remove(draft)
    try:
        yield f"{folder.uri}/{draft}"
        if draft != name:
            folder.rename(draft, name)
    except BaseException:
        if draft != name:
            folder.remove(draft)
        raise


def batch_directory(batch: int) -> str:
    """Return the name of the directory of a batch."""
    return f"batch={batch:08d}"


class FileSink:
    """Writes each batch to a directory ``batch=NUMBER`` of its own; exactly once.

    A directory appears when it is complete, and a batch that runs again replaces its own, so
    ``spark.read.parquet(location)`` sees every update of all finished batches once. (An object
    store has no renaming: there a directory fills while its batch is being written.)

    Args:
        location: Directory, as a path or URI.
        format: ``parquet`` or ``ndjson``.
    """

    def __init__(self, location: str | Path, format: FileFormat = "parquet") -> None:
        check_choice("format", format, SPARK_FORMATS)
        self.folder = Folder(location)
        self.format = format

    def owned_by(self, owner: Owner) -> Self:
        """Claim the directory for a pipeline, or raise InUse if another one owns it."""
        claim_sink(self.folder, owner._replace(form=f"{owner.form} {self.format}".strip()))
        return self

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write a batch, in place of what it wrote before."""
        write_files(rows, self.folder, batch_directory(batch), self.format)

    def add(self, rows: DataFrame, batch: int) -> None:
        """Add rows to those of a batch."""
        location = f"{self.folder.uri}/{batch_directory(batch)}"
        rows.write.mode("append").format(SPARK_FORMATS[self.format]).save(location)

    def remove(self, batch: int) -> None:
        """Remove the rows of a batch, if there are any."""
        self.folder.remove(batch_directory(batch))


@dataclass(frozen=True)
class KafkaSink:
    """Writes each row as a JSON object to a Kafka topic; at least once.

    Spark's connector writes without Kafka's transactions, so a batch that runs again after a crash
    is written again. Each object begins with ``pipeline``, ``batch`` and ``sequence``, which are
    the same whenever a row is written: a consumer drops what it has seen.

    Attributes:
        servers: ``host:port`` of some brokers, with commas between.
        topic: The topic.
        key: Column that becomes the record's key, by which Kafka chooses the partition.
        options: Further options of Spark's connector, such as ``kafka.security.protocol``.
    """

    servers: str
    topic: str
    key: str | None = "message_id"
    options: Mapping[str, str] = field(default_factory=dict)
    pipeline: str = ""  # name of the pipeline, which it gives itself

    def owned_by(self, owner: Owner) -> Self:
        """Return the sink of a pipeline, whose name is in all that it writes."""
        return replace(self, pipeline=owner.pipeline)

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write a batch."""
        with numbered(rows) as (all_rows, sequence):
            origin = {"pipeline": F.lit(self.pipeline), "batch": F.lit(batch), "sequence": sequence}
            named = [column.alias(name) for name, column in origin.items()]
            columns = [F.to_json(F.struct(*named, *rows.columns)).alias("value")]
            if self.key is not None:
                columns.append(F.col(self.key).cast("string").alias("key"))
            all_rows.select(*columns).write.format("kafka").options(
                **{"kafka.bootstrap.servers": self.servers, "topic": self.topic, **self.options}
            ).save()


_ROW_BITS = 33
"""Bits of Spark's increasing ids that number the rows of a partition."""


@contextmanager
def numbered(rows: DataFrame) -> Iterator[tuple[DataFrame, Column]]:
    """Yield the rows and a column that numbers them, the same way whenever the rows are the same.

    Rows are sorted by their first column, then by all that they say, so only rows that are alike in
    everything can change places.
    """
    ordered = rows.orderBy(rows.columns[0], F.to_json(F.struct(*rows.columns))).persist()
    try:
        counts = ordered.groupBy(F.spark_partition_id().alias("part")).count().collect()
        ends = dict(accumulate_counts(sorted((row["part"], row["count"]) for row in counts)))
        first = F.lit(0).cast("long")
        if ends:
            starts = F.create_map(
                *(F.lit(each).cast("long") for pair in ends.items() for each in pair)
            )
            first = starts[F.spark_partition_id().cast("long")]
        row = F.monotonically_increasing_id().bitwiseAND(F.lit((1 << _ROW_BITS) - 1))
        yield ordered, first + row
    finally:
        ordered.unpersist()


def accumulate_counts(counts: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield each part with the number of rows before it."""
    total = 0
    for part, count in counts:
        yield part, total
        total += count


class DeltaSink:
    """Appends each batch to a Delta table, under the pipeline's name and the batch's number.

    Delta Lake writes down the last number of each name (``txnAppId``, ``txnVersion``) and leaves
    out what it has: exactly once. The jars of Delta Lake have to be in the session.

    Args:
        location: Directory of the table, as a path or URI.
        options: Further options of Delta's writer.
    """

    def __init__(self, location: str | Path, options: Mapping[str, str] | None = None) -> None:
        self.folder = Folder(location)
        self._options = dict(options or {})

    def owned_by(self, owner: Owner) -> DeltaSink:
        """Return the sink of a pipeline, by whose name Delta Lake knows its batches."""
        options = {**self._options, "txnAppId": f"earshot-{owner.pipeline}-{owner.purpose}"}
        return DeltaSink(self.folder.uri, options)

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Append a batch, unless the table has it."""
        options = {"mergeSchema": "true", **self._options, "txnVersion": str(batch)}
        named = rows.withColumn("batch", F.lit(batch))
        named.write.format("delta").mode("append").options(**options).save(self.folder.uri)
