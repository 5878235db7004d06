"""How rows come out of files, and where those go that are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from earshot.engine.engine import Engine
from earshot.files import (
    Draft,
    FileBatch,
    OnError,
    PlaceKind,
    ReadOptions,
    Reject,
    StreamFormat,
    TableWriter,
    read_messages,
    read_positions,
    reject_table,
)
from earshot.model.arrays import Space
from earshot.model.schemas import REJECTS, id_kind

MESSAGE_BATCH_ROWS = 8192
"""Messages per batch: at hundreds of answers each, some million answers are held at a time."""

Progress = Callable[[int], None]
"""Told how many rows were finished since the last call."""


@dataclass(frozen=True)
class FileOptions:
    """How files are read."""

    on_error: OnError = "raise"
    rejects: str | Path | None = None  # file for rejected rows; needed with "reject"
    # Names of columns by field, where they differ.
    subscription_columns: Mapping[str, str] = field(default_factory=dict)
    message_columns: Mapping[str, str] = field(default_factory=dict)
    position_columns: Mapping[str, str] = field(default_factory=dict)
    place: PlaceKind | None = None  # which place of a message counts where it has several
    delimiter: str = ","  # of CSV
    encoding: str = "utf-8"  # of CSV
    stream_format: StreamFormat | None = None  # of streams; by default as their names say

    @property
    def out_format(self) -> StreamFormat | None:
        """Format of streams that are written; updates cannot be GeoJSON."""
        return "ndjson" if self.stream_format == "geojson" else self.stream_format

    def reading(self, columns: Mapping[str, str], space: Space) -> ReadOptions:
        """Return the options of a reader."""
        return {
            "columns": columns, "space": space, "on_error": self.on_error, "place": self.place,
            "delimiter": self.delimiter, "encoding": self.encoding,
            "stream_format": self.stream_format,
        }  # fmt: skip


class RejectSink(Draft):
    """Writes rejected rows to a file, or refuses them where there is none."""

    def __init__(self, path: str | Path | None, stream_format: StreamFormat | None = None) -> None:
        self.n_rows = 0
        self._writer = (
            None if path is None else TableWriter(path, REJECTS, stream_format=stream_format)
        )

    def write(self, rejects: list[Reject]) -> None:
        """Add rows."""
        if rejects and self._writer is None:
            raise rejects[0].error()
        if rejects and self._writer is not None:
            self._writer.write(reject_table(rejects))
            self.n_rows += len(rejects)

    def close(self) -> None:
        """Complete the file."""
        if self._writer is not None:
            self._writer.close()

    def discard(self) -> None:
        """Remove what was written."""
        if self._writer is not None:
            self._writer.discard()


def position_parts(path: str | Path, engine: Engine, files: FileOptions) -> Iterator[FileBatch]:
    """Read the positions of a file in batches, with ids of the kind that subscriptions have."""
    options = files.reading(files.position_columns, engine.space)
    if len(engine):
        options["ids"] = id_kind(engine.id_type)
    return read_positions(path, **options)


def message_parts(path: str | Path, engine: Engine, files: FileOptions) -> Iterator[FileBatch]:
    """Read the messages of a file in batches."""
    options = files.reading(files.message_columns, engine.space)
    options["batch_rows"] = MESSAGE_BATCH_ROWS
    return read_messages(path, **options)
