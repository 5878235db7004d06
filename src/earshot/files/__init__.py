"""Reading and writing files: Parquet, GeoParquet, NDJSON, GeoJSON and CSV."""

from earshot.files.batches import FileBatch
from earshot.files.formats import StreamFormat, format_of, is_stream
from earshot.files.layout import PlaceKind
from earshot.files.reading import (
    ReadOptions,
    read_changes,
    read_messages,
    read_positions,
    read_rows,
    read_subscriptions,
)
from earshot.files.rejects import OnError, Reject, reject_table, rejects_of_batch
from earshot.files.updates import UpdateWriter
from earshot.files.writing import Draft, TableWriter, check_place, write_table

__all__ = [
    "Draft",
    "FileBatch",
    "OnError",
    "PlaceKind",
    "ReadOptions",
    "Reject",
    "StreamFormat",
    "TableWriter",
    "UpdateWriter",
    "check_place",
    "format_of",
    "is_stream",
    "read_changes",
    "read_messages",
    "read_positions",
    "read_rows",
    "read_subscriptions",
    "reject_table",
    "rejects_of_batch",
    "write_table",
]
