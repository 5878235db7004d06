"""The data pipeline on Spark: prepare, build, match in batch and as a stream.

Functions take DataFrames and give DataFrames; none of them starts or keeps a session.
"""

from earshot.spark.build import build
from earshot.spark.connectors import DeltaSink, FileSink, KafkaSink, Stream
from earshot.spark.match import match
from earshot.spark.pipelines import match_stream
from earshot.spark.prepare import prepare
from earshot.spark.session import local_session

__all__ = [
    "DeltaSink",
    "FileSink",
    "KafkaSink",
    "Stream",
    "build",
    "local_session",
    "match",
    "match_stream",
    "prepare",
]
