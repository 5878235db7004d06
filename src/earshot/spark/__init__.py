"""The data pipeline on Spark: prepare, build, match in batch and as a stream.

Functions take DataFrames and give DataFrames; none of them starts or keeps a session.
"""

from earshot.spark.build import Built, build
from earshot.spark.match import match
from earshot.spark.prepare import Bounds, Prepared, bounds, prepare, sample, token_frequencies
from earshot.spark.session import local_session
from earshot.spark.store import IndexStore, Version

__all__ = [
    "Bounds",
    "Built",
    "IndexStore",
    "Prepared",
    "Version",
    "bounds",
    "build",
    "local_session",
    "match",
    "prepare",
    "sample",
    "token_frequencies",
]
