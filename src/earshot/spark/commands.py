"""What ``earshot pipeline …`` does: run a pipeline, and batch jobs over files."""

from __future__ import annotations

import json
import logging
import re
import signal
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import DataFrame, Observation, SparkSession

from earshot.errors import EarshotError, InvalidFile, InvalidParameter, InvalidRow
from earshot.files import (
    OnError,
    format_of,
    read_changes,
    read_messages,
    read_subscriptions,
    rejects_of_batch,
)
from earshot.jobs import RejectSink
from earshot.model.arrays import Space
from earshot.model.batches import instant
from earshot.model.schemas import Content, IdKind, changes_schema, id_kind, id_type
from earshot.spark.build import Built, build
from earshot.spark.config import (
    ChangesConfig,
    MessagesConfig,
    PipelineConfig,
    SubscriptionsConfig,
)
from earshot.spark.failures import plain_failure
from earshot.spark.folders import Folder
from earshot.spark.intake import take_in
from earshot.spark.kafka import connector_jars
from earshot.spark.match import finished, match_task, run_match
from earshot.spark.notes import note_of_sums, note_sums, rejects_in
from earshot.spark.output import Shape
from earshot.spark.prepare import prepare, read_rows
from earshot.spark.session import LOCAL_MASTER, local_session
from earshot.spark.sinks import SPARK_FORMATS, FileFormat, FileSink, KafkaSink, Sink
from earshot.spark.sources import file_stream, kafka_stream
from earshot.spark.store import IndexStore
from earshot.spark.stream import (
    Pipeline,
    Status,
    Stream,
    match_stream,
)
from earshot.spark.view import View, view_for
from earshot.text import Analyzer

Say = Callable[[str], None]
"""Told what is going on, in sentences."""

POLL_S = 0.1
"""How often a running pipeline is looked at."""
PATIENCE_S = 3600.0
"""How long a stop waits for the batch that is going on; a second signal ends the wait."""
KEPT_DURATIONS = 10_000
"""Batches over which the median duration is taken."""
MOST_READ_TASKS = 1_000
"""Tasks that read files; each reads one or several."""
FAILURE_CHARACTERS = 500
"""Most that is told of what went wrong in Spark."""
_CAUSE = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+: .+)$", re.MULTILINE)
_ERROR = re.compile(r"^(?:: )?(?:[\w$]+\.)*([\w$]*(?:Error|Exception): .+)$", re.MULTILINE)

_READERS = {
    "subscriptions": read_subscriptions,
    "messages": read_messages,
    "changes": read_changes,
}


# ---- Spark --------------------------------------------------------------------------------------


class Signals:
    """Catches SIGINT and SIGTERM meanwhile, in place of PySpark's handler, which cancels jobs."""

    def __init__(self) -> None:
        self.caught: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # others cannot
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._catch)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def obey(self) -> None:
        """End this process as the first signal would have, if there was one."""
        if self.caught and self.caught[0] == signal.SIGINT:
            raise KeyboardInterrupt
        if self.caught:
            sys.exit(128 + self.caught[0])

    def _catch(self, number: int, _: FrameType | None) -> None:
        self.caught.append(number)


@contextmanager
def spark_session(
    master: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Yield a session, the running one if there is one; stop it only if it was started here."""
    settings = dict(settings or {})
    given = settings.pop("spark.master", LOCAL_MASTER)
    try:
        SparkSession.active()
        is_running = True
    except PySparkRuntimeError:  # which says that there is none
        is_running = False
    # A JVM whose Python goes while it starts would stay, so a signal has to wait for it.
    with Signals() as signals, plain_words():
        session = local_session(master or given, extra=settings)
    noise = logging.getLogger()
    noise.addFilter(_is_no_interruption)
    try:
        signals.obey()
        with plain_words():
            yield session
    finally:
        if not is_running:
            # A JVM that a signal ended cannot be stopped any more.
            with _suppressed():
                session.stop()
        noise.removeFilter(_is_no_interruption)


def _is_no_interruption(record: logging.LogRecord) -> bool:
    """Leave out Py4J's account of Ctrl-C, which is told in a word elsewhere."""
    return "while sending command" not in record.getMessage()


@contextmanager
def plain_words() -> Iterator[None]:
    """Tell in one sentence what went wrong in Spark."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        plain = plain_failure(error)
        if plain is not None:
            raise plain from None
        raise EarshotError(f"Spark failed: {_reason(str(error))}") from error


def _reason(account: str) -> str:
    """Return the line of a long account that says most: the first cause, else the first error."""
    causes = _CAUSE.findall(account)
    errors = _ERROR.findall(account)
    lines = [line.strip() for line in account.splitlines() if line.strip()]
    chosen = (causes[-1:] or errors[:1] or lines[:1] or ["it does not say why"])[0]
    return str(chosen)[:FAILURE_CHARACTERS]


@contextmanager
def _suppressed() -> Iterator[None]:
    with suppress(PySparkException, Py4JError, OSError):
        yield


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
        for part in _READERS[content](file, columns=columns, space=space, on_error="reject"):
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


def is_index(location: str | Path) -> bool:
    """Whether a directory holds an index for pipelines."""
    return IndexStore(location).exists


def check_new(location: str | Path, option: str) -> None:
    """Refuse a directory that has something in it."""
    folder = Folder(location)
    if folder.names():
        raise InvalidParameter(
            f"{option} {folder.path} is not empty; choose another directory or remove it"
        )


# ---- build --------------------------------------------------------------------------------------


def build_index(
    session: SparkSession,
    subscriptions: SubscriptionsConfig,
    index: str | Path,
    *,
    rejects: str | Path | Sink | None = None,
    messages: str | None = None,
    message_columns: Mapping[str, str] | None = None,
) -> Built:
    """Build an index from files.

    Args:
        session: Runs the build.
        subscriptions: The files, and how they are read.
        index: Directory of the index.
        rejects: Directory for refused rows, or what takes them and the number of the version.
        messages: Files with messages like those that will come, by which shards are cut.
        message_columns: Names of their columns by field, where they differ.
    """
    given = subscriptions
    ids = given.ids or ids_in(given.path, "subscriptions", given.columns, given.space)
    analyzer = Analyzer(given.language, given.stop_words, given.stem)
    expected = None
    if messages is not None:
        expected = prepare(
            file_rows(session, messages), "messages",
            form="files", columns=message_columns, space=given.space, analyzer=analyzer,
            ids=ids_in(messages, "messages", message_columns or {}, given.space),
        ).rows  # fmt: skip
    built = build(
        file_rows(session, given.path), index,
        placement=given.placement, n_shards=given.n_shards, messages=expected,
        form="files", columns=given.columns, ids=ids, space=given.space, analyzer=analyzer,
        structure=given.structure, on_error=given.on_error,
    )  # fmt: skip
    if built.n_rejects and callable(rejects):
        rejects(built.rejects, built.version.number)
    elif built.n_rejects and rejects is not None:
        write_files(built.rejects, f"{rejects}/subscriptions", "ndjson")
    return built


# ---- match --------------------------------------------------------------------------------------


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


def match_files(
    session: SparkSession,
    subscriptions: str | Path | SubscriptionsConfig,
    messages: str | Path,
    out: str | Path,
    *,
    shape: Shape = "rows",
    file_format: FileFormat = "parquet",
    columns: Mapping[str, str] | None = None,
    ids: IdKind | None = None,
    on_error: OnError = "raise",
    rejects: str | Path | None = None,
) -> MatchSummary:
    """Match files of messages against subscriptions, and write files with the updates.

    Args:
        session: Runs the job.
        subscriptions: Directory of an index, or files to build one from that is removed again.
        messages: A file, or a directory of files.
        out: Directory to make.
        shape: ``rows`` or ``lists``.
        file_format: Format of what is written.
        columns: Names of the messages' columns by field, where they differ.
        ids: Kind of the messages' ids; by default as the first ones look.
        on_error: ``raise`` at the first bad row, or ``reject`` bad rows and match the others.
        rejects: Directory for these.
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
        summary = _match_files(
            session, index, messages, out, shape, file_format, dict(columns or {}), ids,
            on_error, rejects,
        )  # fmt: skip
    return replace(summary, n_rejects=summary.n_rejects + n_rejects)


def _match_files(
    session: SparkSession,
    index: str,
    messages: str | Path,
    out: str | Path,
    shape: Shape,
    file_format: FileFormat,
    columns: dict[str, str],
    ids: IdKind | None,
    on_error: OnError,
    rejects: str | Path | None,
) -> MatchSummary:
    store = IndexStore(index)
    version = store.latest()
    rows = file_rows(session, messages)
    task = match_task(
        rows, store, version,
        shape=shape, form="files", columns=columns,
        ids=ids or ids_in(messages, "messages", columns, store.settings.space),
        stop_at_rejects=on_error == "raise", has_notes=True,
    )  # fmt: skip
    started = time.perf_counter()
    did = Observation()
    found = run_match(rows, task).observe(did, *note_sums())
    write_files(finished(found, task.output), out, file_format)
    note = note_of_sums(did.get)
    match_s = time.perf_counter() - started
    if note.rejects and rejects is not None:
        # Read again rather than kept: there are few, or the job is not worth much.
        refused = rejects_in(read_rows(rows, task.reading, task.settings.analyzer))
        write_files(refused, f"{rejects}/messages", "ndjson")
    return MatchSummary(
        version.n_subscriptions, version.number, note.messages, note.updates, note.rejects, match_s
    )


# ---- changes and info ---------------------------------------------------------------------------


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
    columns: Mapping[str, str] | None = None,
    on_error: OnError = "raise",
    rejects: RejectSink,
) -> ChangesSummary:
    """Take files of changes into an index, as one version; runs without Spark.

    Files are taken by name and rows in their order, or all by time where all have one.

    Args:
        index: Directory of the index.
        changes: A file, or a directory of files.
        columns: Names of their columns by field, where they differ.
        on_error: ``raise`` at the first bad row and leave the index as it was, or ``reject``.
        rejects: Takes refused rows.
    """
    store = IndexStore(index)
    settings = store.settings
    schema = changes_schema(id_type(settings.ids))
    parts, sources, numbers = [schema.empty_table()], [], [np.empty(0, np.int64)]
    for file in files_in(changes):
        for part in read_changes(
            file, columns=columns, space=settings.space, ids=settings.ids, on_error=on_error
        ):
            rejects.write(part.rejects)
            parts.append(pa.Table.from_batches([part.batch]))
            sources += [part.source] * part.batch.num_rows
            numbers.append(part.rows)
    table, rows = pa.concat_tables(parts).combine_chunks(), np.concatenate(numbers)
    order = np.arange(table.num_rows)
    if table.num_rows and table.column("time").null_count == 0:
        order = np.argsort(table.column("time").cast(pa.int64()).to_numpy(), kind="stable")
        table = table.take(pa.array(order)).combine_chunks()

    def write_rejects(errors: list[InvalidRow]) -> None:
        for error in errors:
            at = int(order[error.row])
            located = InvalidRow(sources[at], int(rows[at]), error.field, error.reason)
            batch = table.slice(error.row, 1).combine_chunks().to_batches()[0]
            rejects.write(rejects_of_batch([located], batch, np.array([located.row])))

    took = take_in(store, table, on_rejects=write_rejects)
    store.clean()
    version = took.version
    return ChangesSummary(
        table.num_rows - len(took.rejects),
        rejects.n_rows,
        version.number,
        version.n_subscriptions,
    )


def index_facts(index: str | Path) -> dict[str, Any]:
    """Return what there is to know about an index."""
    store = IndexStore(index)
    settings = store.settings
    version = store.latest()
    base = version.base
    return {
        "index": store.folder.path,
        **settings.facts(),
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


# ---- run ----------------------------------------------------------------------------------------


class ConsoleSink:
    """Prints each row as a JSON object; for looking, not for many."""

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Print a batch."""
        table = rows.toArrow()
        lines = [json.dumps({"batch": batch, **row}, default=str) for row in table.to_pylist()]
        if lines:
            print("\n".join(lines), flush=True)


@dataclass
class Course:
    """What a pipeline did, batch by batch; give its :meth:`add` to the pipeline."""

    n_batches: int = 0
    busy_s: float = 0.0
    durations_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_DURATIONS))
    first_version: int | None = None

    def add(self, status: Status) -> None:
        """Note that a batch is done."""
        self.n_batches += 1
        self.busy_s += status.batch_s
        self.durations_s.append(status.batch_s)
        if self.first_version is None:
            self.first_version = status.version

    def facts(self, status: Status, elapsed_s: float) -> dict[str, Any]:
        """Return totals and rates; rates are means over the time in which batches ran."""
        busy_s = max(self.busy_s, 1e-9)
        return {
            "batches": self.n_batches,
            "messages": status.messages,
            "updates": status.updates,
            "rejects": status.rejects,
            "changes": status.changes,
            "merges": status.merges,
            "elapsed_s": round(elapsed_s, 3),
            "busy_s": round(self.busy_s, 3),
            "messages_per_s": round(status.messages / busy_s, 1),
            "updates_per_s": round(status.updates / busy_s, 1),
            "batch_s": round(statistics.median(self.durations_s), 4) if self.durations_s else None,
            "first_version": self.first_version,
            "version": status.version or None,
            "n_subscriptions": status.n_subscriptions,
            "merge_error": status.merge_error,
        }


class StoppedAtOnce(KeyboardInterrupt):
    """A second signal came while the pipeline was stopping."""


def watch(
    pipeline: Pipeline, view: View, *, is_enough: Callable[[], bool] = lambda: False
) -> int | None:
    """Show a pipeline until it ends; stop it after its current batch when a signal comes.

    Args:
        pipeline: A running one.
        view: Where to show it.
        is_enough: Asked now and then whether to stop it.

    Returns:
        The number of the signal that stopped it, None if none did.

    Raises:
        StoppedAtOnce: A second signal came before that batch was done.
    """
    stopping: threading.Thread | None = None
    with Signals() as signals, view:
        while stopping is None or stopping.is_alive():
            if stopping is None:
                try:
                    if not pipeline.is_active:
                        break
                except Exception:
                    # A signal to the whole group ends the JVM as well, if it is SIGTERM.
                    time.sleep(POLL_S)
                    if not signals.caught:
                        raise
                    break
                if signals.caught or is_enough():
                    stopping = threading.Thread(target=_stop, args=(pipeline,), daemon=True)
                    stopping.start()
            elif len(signals.caught) > 1:
                raise StoppedAtOnce
            view.show(pipeline.status(), is_stopping=bool(signals.caught))
            time.sleep(POLL_S)
        return signals.caught[0] if signals.caught else None


def _stop(pipeline: Pipeline) -> None:
    with _suppressed():
        pipeline.stop(PATIENCE_S)


def run_pipeline(
    config: PipelineConfig,
    *,
    master: str | None = None,
    once: bool = False,
    is_quiet: bool = False,
    say: Say = lambda line: None,
) -> tuple[dict[str, Any], int | None]:
    """Run a pipeline until it ends or a signal stops it.

    Args:
        config: The pipeline.
        master: Where Spark runs; by default ``spark.master`` of the file, else this machine.
        once: Take what is there now and end, whatever the file says.
        is_quiet: Show nothing while it runs.
        say: Told what happens before the first batch.

    Returns:
        Totals and rates, and the signal that stopped it, if one did.
    """
    settings = dict(config.spark)
    if config.uses_kafka and not {"spark.jars", "spark.jars.packages"} & settings.keys():
        settings["spark.jars"] = ",".join(map(str, connector_jars()))
    with spark_session(master, settings) as session:
        _ensure_index(session, config, say)
        course = Course()
        started = time.monotonic()
        pipeline = start_pipeline(session, config, once=once, on_batch=course.add)
        view = view_for(is_quiet=is_quiet, prints_output=config.sink.kind == "console")
        number = watch(pipeline, view)
        facts = course.facts(pipeline.status(), time.monotonic() - started)
    return {**facts, "signal": None if number is None else signal.Signals(number).name}, number


def _ensure_index(session: SparkSession, config: PipelineConfig, say: Say) -> None:
    store = IndexStore(config.index)
    if store.exists and store.version_numbers():
        version = store.latest()
        say(f"using version {version.number} of {store.folder.path}: "
            f"{version.n_subscriptions:,} subscriptions")  # fmt: skip
        return
    if config.subscriptions is None:
        raise InvalidFile(
            f"{config.file}: {store.folder.path} holds no index, and there is no table "
            f"[subscriptions] to build one from; add it or run 'earshot pipeline build'"
        )
    say(f"building {store.folder.path} from {config.subscriptions.path} …")
    rejects = _reject_sink(config, "subscriptions")
    built = build_index(session, config.subscriptions, config.index, rejects=rejects)
    refused = f", {built.n_rejects:,} rows refused" if built.n_rejects else ""
    say(f"built {built.version.n_subscriptions:,} subscriptions{refused}")


def start_pipeline(
    session: SparkSession,
    config: PipelineConfig,
    *,
    once: bool = False,
    on_batch: Callable[[Status], None] | None = None,
) -> Pipeline:
    """Start the pipeline of a config, whose index is there."""
    trigger = config.trigger
    once = once or trigger.once
    changes = None
    if config.changes is not None:
        changes = _stream(session, config.changes)
    return match_stream(
        _stream(session, config.messages), config.index, _sink(config), config.checkpoint,
        changes=changes,
        rejects=_reject_sink(config, "messages"),
        change_rejects=_reject_sink(config, "changes"),
        shape=config.sink.shape,
        carry=config.sink.carry,
        keep_unmatched=config.sink.keep_unmatched,
        interval=None if once else trigger.interval,
        available_now=once,
        merge_share=config.merge.share,
        merge_least=config.merge.least,
        on_batch=on_batch,
    )  # fmt: skip


def _stream(session: SparkSession, source: MessagesConfig | ChangesConfig) -> Stream:
    ids = source.ids if isinstance(source, MessagesConfig) else None
    if source.source == "kafka":
        records = kafka_stream(
            session, source.servers, source.topic, start=source.start,
            records_per_batch=source.records_per_batch, options=source.options,
        )  # fmt: skip
        return Stream(records, "values", source.columns, ids)
    folder = Folder(source.path)
    if folder.is_local:
        # Spark refuses to watch a directory that is not there; files may come later.
        Path(folder.path).mkdir(parents=True, exist_ok=True)
    files = file_stream(
        session, source.path, pattern=source.pattern, files_per_batch=source.files_per_batch
    )
    return Stream(files, "files", source.columns, ids)


def _sink(config: PipelineConfig) -> Sink:
    sink = config.sink
    if sink.kind == "kafka":
        return KafkaSink(sink.servers, sink.topic, options=sink.options)
    if sink.kind == "files":
        return FileSink(sink.path, sink.format)
    return ConsoleSink()


def _reject_sink(config: PipelineConfig, content: Content) -> Sink | None:
    rejects = config.rejects
    return None if rejects is None else FileSink(f"{rejects.path}/{content}", rejects.format)


def summary_lines(facts: Mapping[str, Any]) -> list[str]:
    """Return what a pipeline did, for a person."""
    if not facts["batches"]:
        return [f"no messages came in {facts['elapsed_s']:,.1f} s; {facts['changes']:,} changes"]
    stopped = f", stopped by {facts['signal']}" if facts.get("signal") else ""

    def counted(name: str, one: str) -> str:
        n = facts[name]
        return f"{n:,} {one if n == 1 else name}"

    return [
        f"{counted('messages', 'message')}, {counted('updates', 'update')} in "
        f"{counted('batches', 'batch')} over {facts['elapsed_s']:,.1f} s{stopped}",
        f"{facts['messages_per_s']:,.0f} messages/s and {facts['updates_per_s']:,.0f} updates/s "
        f"while busy, {facts['batch_s'] * 1000:,.0f} ms per batch (median)",
        f"index versions {facts['first_version']} to {facts['version']}, "
        f"{facts['n_subscriptions']:,} subscriptions; {counted('changes', 'change')}, "
        f"{counted('merges', 'merge')}, {counted('rejects', 'reject')}",
        *([f"the last merge failed: {facts['merge_error']}"] if facts["merge_error"] else []),
    ]
