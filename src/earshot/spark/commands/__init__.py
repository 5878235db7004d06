"""What ``earshot pipeline …`` does: run a pipeline, and batch jobs over files."""

from earshot.spark.commands.batch import (
    build_index,
    change_files,
    check_new,
    index_facts,
    is_index,
    match_messages,
)
from earshot.spark.commands.run import run_pipeline, summary_lines
from earshot.spark.commands.session import spark_session

__all__ = [
    "build_index",
    "change_files",
    "check_new",
    "index_facts",
    "is_index",
    "match_messages",
    "run_pipeline",
    "spark_session",
    "summary_lines",
]
