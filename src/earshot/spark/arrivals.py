"""The rows of a batch, from the tasks that read them to the driver that puts them in order.

A task writes what it has read to a file in the checkpoint and hands over only the file's name: rows
that go through Java on their way are converted twice, which takes longer than to read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from earshot.model.schemas import Content
from earshot.spark.folders import Folder
from earshot.spark.rows import Batches
from earshot.spark.shards import SHARD, shards_of

KIND, FILE = "kind", "file"
ARRIVED = pa.schema([(KIND, pa.string()), (FILE, pa.string())])
"""What a task hands over: the kind of its events, and the directory that holds them."""
_ROWS = "rows.arrow"


@dataclass(frozen=True)
class Arrivals:
    """Where tasks put the rows that they read."""

    location: str  # URI of a directory
    n_shards: int

    @property
    def _folder(self) -> Folder:
        return Folder(self.location)

    def clear(self) -> None:
        """Remove what is there, also of tasks that failed."""
        for name in self._folder.names():
            self._folder.remove(name)
            (self._folder / name).forget()

    def write(
        self,
        kind: Content,
        schema: pa.Schema,
        read: Callable[[Iterable[pa.RecordBatch]], Batches],
        batches: Iterable[pa.RecordBatch],
    ) -> Batches:
        """Write what a task reads, if anything, with the shard of each row; yield where it is."""
        parts = [part for part in read(batches) if part.num_rows]
        if not parts:
            return
        table = pa.Table.from_batches(parts, schema)
        if kind != "messages":  # which every shard takes
            table = table.append_column(SHARD, shards_of(table.column("id"), self.n_shards))
        folder, name = self._folder, uuid4().hex
        with folder.draft() as draft:
            (draft / "new").mkdir()
            write_arrow(draft / "new" / _ROWS, table)
            folder.put(name, draft / "new")
        yield pa.RecordBatch.from_pydict({KIND: [kind], FILE: [name]}, schema=ARRIVED)

    def read(self, arrived: pa.Table, kind: Content) -> pa.Table | None:
        """Return the rows of a kind that tasks have handed over, None where there are none."""
        rows = sorted(arrived.to_pylist(), key=lambda row: str(row[FILE]))
        directories = [self._folder.local(row[FILE]) for row in rows if row[KIND] == kind]
        tables = [read_arrow(directory / _ROWS) for directory in directories]
        return pa.concat_tables(tables) if tables else None


def write_arrow(path: Path, table: pa.Table) -> None:
    """Write a table to a file that :func:`read_arrow` maps."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table)


def read_arrow(path: Path) -> pa.Table:
    """Return a table of a file, memory-mapped."""
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()
