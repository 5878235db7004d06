"""Batch jobs over files: build an index, match, take in changes, and say what an index is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, Observation, SparkSession

from earshot.errors import InvalidFile, InvalidParameter
from earshot.files import OnError, format_of, read_changes, read_rows
from earshot.model.arrays import Space
from earshot.model.batches import instant
from earshot.model.schemas import Content, IdKind, changes_schema, id_kind, id_type
from earshot.spark.build import Built, build
from earshot.spark.config import SubscriptionsConfig
from earshot.spark.folders import Folder
from earshot.spark.intake import in_order, take_in
from earshot.spark.match import match_task, run_match
from earshot.spark.notes import note_of_sums, note_sums, rejects_in, without_notes
from earshot.spark.prepare import ROW, SOURCE, canonical_rows, prepare
from earshot.spark.sinks import SPARK_FORMATS, FileFormat, Sink
from earshot.spark.store import IndexStore
from earshot.spark.workers import Shape
from earshot.text import Analyzer

if TYPE_CHECKING:
    from earshot.jobs import RejectSink


MOST_READ_TASKS = 1_000
"""Tasks that read files; each reads one or several."""


def is_index(location: str | Path) -> bool:
    """Whether a directory holds an index for pipelines."""
    return IndexStore(location).exists


def build_index(
    session: SparkSession,
    subscriptions: SubscriptionsConfig,
    index: str | Path,
    *,
    rejects: str | Path | Sink | None,
    messages: str | None = None,
    message_columns: Mapping[str, str] | None = None,
) -> Built:
    """Build an index from files; shards are cut by messages like those that will come.

    Refused rows go to a directory, or to a sink together with the number of the version.
    """
    given = subscriptions
    ids = given.ids or ids_in(given.path, "subscriptions", given.columns, given.space)
    analyzer = Analyzer(given.language, given.stop_words, given.stem)
    expected = None
    if messages is not None:
        expected = prepare(
            file_rows(session, messages), "messages",
            form="files", columns=message_columns, semantics=given.semantics, space=given.space,
            analyzer=analyzer, ids=ids_in(messages, "messages", message_columns or {}, given.space),
        ).rows  # fmt: skip
    built = build(
        file_rows(session, given.path), index,
        placement=given.placement, n_shards=given.n_shards, messages=expected,
        form="files", columns=given.columns, ids=ids, semantics=given.semantics,
        space=given.space, analyzer=analyzer, structure=given.structure, on_error=given.on_error,
    )  # fmt: skip
    if built.n_rejects and callable(rejects):
        rejects(built.rejects, built.version.number)
    elif built.n_rejects and rejects is not None:
        write_files(built.rejects, f"{rejects}/subscriptions", "ndjson")
    return built


@dataclass(frozen=True)
class MatchSummary:
    """What a batch job did."""

    n_subscriptions: int
    version: int
    n_messages: int
    n_updates: int
    n_rejects: int
    match_s: float

    @property
    def messages_per_s(self) -> float:
        """Messages per second, Spark's own work included."""
        return self.n_messages / max(self.match_s, 1e-9)


def match_messages(
    session: SparkSession,
    subscriptions: str | Path | SubscriptionsConfig,
    messages: str | Path,
    out: str | Path,
    *,
    shape: Shape = "rows",
    file_format: FileFormat = "parquet",
    columns: Mapping[str, str] | None = None,
    on_error: OnError = "raise",
    rejects: str | Path | None = None,
) -> MatchSummary:
    """Match files of messages against subscriptions, and write a directory with the updates.

    Subscriptions are the directory of an index, or files to build one from that is removed again.
    Columns are those of the messages. Rejected rows go to a directory of their own.
    """
    n_rejects = 0
    with ExitStack() as stack:
        if isinstance(subscriptions, SubscriptionsConfig):
            # Beside the output, which all machines reach.
            folder = Folder(out)
            parent, _, name = folder.uri.rpartition("/")
            draft = f"_{name}-index-{uuid4().hex[:8]}"
            stack.callback(Folder(parent).remove, draft)
            index = f"{parent}/{draft}"
            n_rejects = build_index(session, subscriptions, index, rejects=rejects).n_rejects
        else:
            index = str(subscriptions)
        store = IndexStore(index)
        version = store.latest()
        rows = file_rows(session, messages)
        task = match_task(
            rows, store, version,
            shape=shape, form="files", columns=columns,
            ids=ids_in(messages, "messages", columns or {}, store.settings.space),
            stop_at_rejects=on_error == "raise", has_notes=True,
        )  # fmt: skip
        started = time.perf_counter()
        did = Observation()
        found = run_match(rows, task).observe(did, *note_sums())
        write_files(without_notes(found), out, file_format)
        note = note_of_sums(did.get)
        match_s = time.perf_counter() - started
        if note.rejects and rejects is not None:
            # Read again rather than kept: there are few, or the job is not worth much.
            refused = rejects_in(canonical_rows(rows, task.reading, task.settings.row_check))
            write_files(refused, f"{rejects}/messages", "ndjson")
    return MatchSummary(
        version.n_subscriptions, version.number, note.messages, note.updates,
        note.rejects + n_rejects, match_s,
    )  # fmt: skip


@dataclass(frozen=True)
class ChangesSummary:
    """What became of files of changes."""

    n_changes: int
    n_rejects: int
    version: int
    n_subscriptions: int


def change_files(
    index: str | Path,
    changes: str | Path,
    *,
    columns: Mapping[str, str],
    on_error: OnError,
    rejects: RejectSink,
) -> ChangesSummary:
    """Take a file or directory of changes into an index, as one version; runs without Spark.

    Files are taken by name and rows in their order, or all by time where all have one. With
    ``raise``, the first bad row leaves the index as it was.
    """
    store = IndexStore(index)
    settings = store.settings
    parts = [changes_schema(id_type(settings.ids)).empty_table()]
    for file in files_in(changes):
        for part in read_changes(
            file, columns=columns, space=settings.space, ids=settings.ids, on_error=on_error
        ):
            rejects.write(part.rejects)
            rows = pa.Table.from_batches([part.batch])
            rows = rows.append_column(SOURCE, pa.repeat(part.source, rows.num_rows))
            parts.append(rows.append_column(ROW, pa.array(part.rows)))
    table = in_order(pa.concat_tables(parts, promote_options="default"), by_origin=False)
    took = take_in(store, table, on_rejects=rejects.write)
    store.clean()
    n_changes, version = table.num_rows - len(took.rejects), took.version
    return ChangesSummary(n_changes, rejects.n_rows, version.number, version.n_subscriptions)


def index_facts(index: str | Path) -> dict[str, Any]:
    """Return what there is to know about an index."""
    store = IndexStore(index)
    settings = store.settings
    version = store.latest()
    base = version.base
    return {
        "index": store.folder.path,
        **settings.facts(),
        "semantics": settings.matcher.name,
        **asdict(settings.semantics),
        "versions": store.version_numbers(),
        "version": version.number,
        "n_subscriptions": version.n_subscriptions,
        "placement": base.placement,
        "n_shards": base.n_shards,
        "shard_subscriptions": list(base.n_subscriptions),
        "shard_bytes": list(base.n_bytes),
        "n_deltas": len(version.deltas),
        "n_changes": version.n_changes,
        "clock": None if version.clock_us is None else instant(version.clock_us).isoformat(),
        "report": base.report,
    }


# ---- files --------------------------------------------------------------------------------------


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
