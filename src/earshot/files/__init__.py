"""Reading and writing files: Parquet, GeoParquet, NDJSON, GeoJSON and CSV."""

from earshot.files.batches import FileBatch
from earshot.files.formats import format_of
from earshot.files.reading import read_changes, read_messages, read_rows, read_subscriptions
from earshot.files.rejects import OnError, Reject, reject_table, rejects_of_batch
from earshot.files.updates import UpdateWriter
from earshot.files.writing import Draft, TableWriter, write_table

__all__ = [
    "Draft",
    "FileBatch",
    "OnError",
    "Reject",
    "TableWriter",
    "UpdateWriter",
    "format_of",
    "read_changes",
    "read_messages",
    "read_rows",
    "read_subscriptions",
    "reject_table",
    "rejects_of_batch",
    "write_table",
]
