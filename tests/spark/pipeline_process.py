"""A pipeline in a process of its own, to be killed: ``pipeline_process.py ROOT SETTINGS``."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from earshot.spark import FileSink, Stream, local_session, match_stream
from earshot.spark.stream import Pipeline


def start(session: SparkSession, root: Path, *, available_now: bool = False) -> Pipeline:
    """Start the pipeline of a directory, or go on with it."""
    feed = root / "feed"
    return match_stream(
        Stream.of_files(session, feed / "messages", files_per_batch=1, ids="string"),
        root / "index",
        FileSink(root / "out"),
        root / "checkpoint",
        changes=Stream.of_files(session, feed / "changes", files_per_batch=1),
        rejects=FileSink(root / "rejects" / "messages"),
        change_rejects=FileSink(root / "rejects" / "changes"),
        available_now=available_now,
        merge_least=150,
        merge_share=0.01,
    )


if __name__ == "__main__":
    pipeline = start(local_session("local[2,4]", extra=json.loads(sys.argv[2])), Path(sys.argv[1]))
    while pipeline.is_active:
        time.sleep(0.1)
