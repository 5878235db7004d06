"""Where deliveries and rejects of a stream go, batch by batch.

Spark may run a batch again after a crash, with the same rows and the same number. A sink that
replaces what it wrote under that number before makes the output exactly-once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from earshot.spark.folders import Folder
from earshot.spark.rows import check_choice

Sink: TypeAlias = Callable[[DataFrame, int], None]
"""Writes the rows of a batch, given its number; called again with the same after a crash."""

FileFormat = Literal["parquet", "ndjson"]
SPARK_FORMATS = {"parquet": "parquet", "ndjson": "json"}


def write_files(rows: DataFrame, location: str | Path, format: FileFormat) -> None:
    """Write a directory in place of what was there; it appears when it is complete, if local."""
    parent, _, name = Folder(location).uri.rpartition("/")
    folder = Folder(parent)
    # Names that begin with _ are invisible to Spark's readers, as are Arrow's.
    draft = f"_{name}" if folder.is_local else name
    try:
        rows.write.mode("overwrite").format(SPARK_FORMATS[format]).save(f"{parent}/{draft}")
        if draft != name:
            folder.rename(draft, name)
    except BaseException:
        if draft != name:
            folder.remove(draft)
        raise


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

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write a batch, in place of what it wrote before."""
        write_files(rows, f"{self.folder.uri}/batch={batch:08d}", self.format)


@dataclass(frozen=True)
class KafkaSink:
    """Writes each row as a JSON object to a Kafka topic; at least once.

    Spark's connector writes without Kafka's transactions, so a batch that runs again after a crash
    is written again. Each object names its ``batch``: together with ids it tells repeats.

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

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write a batch."""
        fields = F.struct(F.lit(batch).alias("batch"), *(F.col(name) for name in rows.columns))
        columns = [F.to_json(fields).alias("value")]
        if self.key is not None:
            columns.append(F.col(self.key).cast("string").alias("key"))
        rows.select(*columns).write.format("kafka").options(
            **{"kafka.bootstrap.servers": self.servers, "topic": self.topic, **self.options}
        ).save()
