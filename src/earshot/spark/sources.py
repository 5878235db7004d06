"""Streams of messages and changes: directories of files, and Kafka topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from earshot.model.schemas import IdKind
from earshot.spark.folders import Folder
from earshot.spark.rows import RowForm

FILE_SCHEMA = "path string, modificationTime timestamp, length long, content binary"


@dataclass(frozen=True)
class Stream:
    """A stream of rows and how they are read.

    Attributes:
        rows: A streaming DataFrame.
        form: How its rows come; see :mod:`earshot.spark.rows`.
        columns: Names of its columns by field, where they differ.
        ids: Kind of ids; needed for values and files. Changes have the ids of the index.
    """

    rows: DataFrame
    form: RowForm = "columns"
    columns: Mapping[str, str] = field(default_factory=dict)
    ids: IdKind | None = None

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
    ) -> Stream:
        """Return the files of a directory as a stream.

        Files are taken as they appear, each once, and must appear whole: write them elsewhere on
        the same disk and move them in. Any format that Earshot reads will do. Workers read the
        files themselves where the directory is local or mounted; else Spark hands them the content.
        A file that is removed before it was read stops the stream, as its rows would be lost.

        Args:
            session: Where the stream runs.
            location: Directory, as a path or URI.
            pattern: Such as ``*.ndjson``; other files are left alone.
            files_per_batch: Most files in a micro-batch.
            columns: Names of columns by field, where they differ.
            ids: Kind of the messages' ids.
        """
        folder = Folder(location)
        reader = session.readStream.format("binaryFile").schema(FILE_SCHEMA)
        if pattern is not None:
            reader = reader.option("pathGlobFilter", pattern)
        if files_per_batch is not None:
            reader = reader.option("maxFilesPerTrigger", files_per_batch)
        files = reader.load(folder.uri)
        if folder.is_local:  # bytes that nobody asks for are not read
            files = files.drop("content")
        return cls(files, "files", columns or {}, ids)

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
        """
        given = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": start}
        if records_per_batch is not None:
            given["maxOffsetsPerTrigger"] = str(records_per_batch)
        records = session.readStream.format("kafka").options(**{**given, **(options or {})}).load()
        return cls(records, "values", columns or {}, ids)
