"""Whole jobs over files: what the command line runs, usable from Python as well."""

from earshot.jobs.explaining import explain_file
from earshot.jobs.loading import is_saved, load_engine
from earshot.jobs.matching import Summary, match_files
from earshot.jobs.rows import MESSAGE_BATCH_ROWS, FileOptions, Progress, RejectSink

__all__ = [
    "MESSAGE_BATCH_ROWS",
    "FileOptions",
    "Progress",
    "RejectSink",
    "Summary",
    "explain_file",
    "is_saved",
    "load_engine",
    "match_files",
]
