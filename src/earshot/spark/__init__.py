"""The data pipeline on Spark: prepare, build, match in batch and as a stream.

Functions take DataFrames and give DataFrames; none of them starts or keeps a session.
"""

from earshot.spark.build import Built, build
from earshot.spark.match import match
from earshot.spark.prepare import Bounds, Prepared, bounds, prepare, sample, token_frequencies
from earshot.spark.session import local_session
from earshot.spark.sinks import FileSink, KafkaSink
from earshot.spark.sources import file_stream, kafka_stream
from earshot.spark.store import IndexStore, Version
from earshot.spark.stream import BatchLog, Pipeline, Status, Stream, match_stream

__all__ = [
    "BatchLog",
    "Bounds",
    "Built",
    "FileSink",
    "IndexStore",
    "KafkaSink",
    "Pipeline",
    "Prepared",
    "Status",
    "Stream",
    "Version",
    "bounds",
    "build",
    "file_stream",
    "kafka_stream",
    "local_session",
    "match",
    "match_stream",
    "prepare",
    "sample",
    "token_frequencies",
]
