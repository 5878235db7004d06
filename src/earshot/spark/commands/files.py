"""Files as tables of Spark, and tables as files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from earshot.errors import InvalidFile, InvalidParameter
from earshot.files import format_of, read_rows
from earshot.model.arrays import Space
from earshot.model.schemas import Content, IdKind, id_kind
from earshot.spark.folders import Folder
from earshot.spark.sinks import SPARK_FORMATS, FileFormat

MOST_READ_TASKS = 1_000
"""Tasks that read files; each reads one or several."""


def files_in(location: str | Path) -> list[Path]:
    """Return a local file itself, or all files of a directory and those below it.

    Hidden ones are left out, as Spark does: those whose names begin with a dot or underscore.
    """
    path = Path(Folder(location).path)
    if not path.is_dir():
        if not path.is_file():
            raise InvalidFile(f"{path} is not a file or directory")
        return [path]
    found = [
        each
        for each in sorted(path.rglob("*"))
        if each.is_file()
        and not any(part.startswith((".", "_")) for part in each.relative_to(path).parts)
    ]
    if not found:
        raise InvalidFile(f"{path} has no files")
    return found


def file_rows(session: SparkSession, location: str | Path) -> DataFrame:
    """Return files as a table in the form ``files``; those of unknown formats are refused."""
    folder = Folder(location)
    if not folder.is_local:
        reader = session.read.format("binaryFile").option("recursiveFileLookup", "true")
        return reader.load(folder.uri)
    files = files_in(location)
    for file in files:
        format_of(file)
    rows = session.createDataFrame(pa.table({"path": [str(file) for file in files]}))
    return rows.repartition(min(len(files), MOST_READ_TASKS))


def ids_in(
    location: str | Path, content: Content, columns: Mapping[str, str], space: Space
) -> IdKind:
    """Return the kind of ids that files have, as the first ones look."""
    if not Folder(location).is_local:
        raise InvalidParameter(
            f"{location}: say whether ids are integers or strings; files that are not local are "
            f"not looked at beforehand"
        )
    for file in files_in(location):
        for part in read_rows(content, file, columns=columns, space=space, on_error="reject"):
            if part.batch.num_rows:
                return id_kind(part.batch.schema.field("id").type) or "string"
    return "string"


def write_files(rows: DataFrame, location: str | Path, file_format: FileFormat) -> None:
    """Write a directory of files; it appears when it is complete, where it is local."""
    folder = Folder(location)
    parent, _, name = folder.uri.rpartition("/")
    draft = f"_{name}-{uuid4().hex[:8]}" if folder.is_local else name
    try:
        rows.write.mode("error").format(SPARK_FORMATS[file_format]).save(f"{parent}/{draft}")
        if draft != name:
            Folder(parent).rename(draft, name)
    except BaseException:
        if draft != name:
            Folder(parent).remove(draft)
        raise


def check_new(location: str | Path | None, option: str) -> None:
    """Refuse a directory that has something in it, where one is given."""
    if location is not None and Folder(location).names():
        path = Folder(location).path
        raise InvalidParameter(
            f"{option} {path} is not empty; choose another directory or remove it"
        )
