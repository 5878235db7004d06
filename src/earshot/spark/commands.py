"""What ``earshot pipeline …`` does: batch jobs over files, and running the pipeline of a file."""

from __future__ import annotations

import json
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, Observation, SparkSession

from earshot.errors import InvalidFile, InvalidParameter
from earshot.files import OnError, PlaceKind, format_of, read_changes, read_rows
from earshot.model.arrays import Space
from earshot.model.batches import instant
from earshot.model.schemas import Content, IdKind, changes_schema, id_kind, id_type
from earshot.semantics import matcher_type
from earshot.spark.build import Built, build
from earshot.spark.config import ChangesConfig, MessagesConfig, PipelineConfig, SubscriptionsConfig
from earshot.spark.connectors import FileFormat, FileSink, KafkaSink, Sink, Stream, write_files
from earshot.spark.folders import Folder
from earshot.spark.intake import in_order, take_in
from earshot.spark.kafka import check_servers, connector_jars
from earshot.spark.match import check_matches_tables, match_task, run_match
from earshot.spark.notes import note_of_sums, note_sums, rejects_in, without_notes
from earshot.spark.pipelines import match_stream
from earshot.spark.preflight import check_executors
from earshot.spark.prepare import ROW, SOURCE, canonical_rows
from earshot.spark.session import SPARK_IS_GONE, Signals, spark_session
from earshot.spark.stateful import write_results_of
from earshot.spark.store import IndexSettings, IndexStore
from earshot.spark.stream import Pipeline
from earshot.spark.unread import is_beside_data, is_passed_over
from earshot.spark.view import View, view_for
from earshot.spark.workers import Shape
from earshot.text import Analyzer

if TYPE_CHECKING:
    from earshot.jobs import RejectSink

Say = Callable[[str], None]
"""Told what is going on, in sentences."""

POLL_S = 0.1
"""How often a running pipeline is looked at."""
PATIENCE_S = 3600.0
"""How long a stop waits for the batch that is going on; a second signal ends the wait."""
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
    place: PlaceKind | None = None,
) -> Built:
    """Build an index from files; shards are cut by messages like those that will come.

    Refused rows go to a directory, or to a sink together with the number of the version.
    """
    given = subscriptions
    ids = given.ids or ids_in(given.path, "subscriptions", given.columns, given.space)
    analyzer = Analyzer(given.language, given.stop_words, given.stem)
    sample: dict[str, Any] = {}
    if messages is not None:
        sample = {
            "messages": file_rows(session, messages),
            "message_form": "files",
            "message_columns": message_columns,
            "message_ids": ids_in(messages, "messages", message_columns or {}, given.space, place),
            "place": place,
        }
    built = build(
        file_rows(session, given.path), index,
        placement=given.placement, n_shards=given.n_shards,
        form="files", columns=given.columns, ids=ids, semantics=given.semantics,
        space=given.space, analyzer=analyzer, structure=given.structure, on_error=given.on_error,
        **sample,
    )  # fmt: skip
    if not built.n_rejects or rejects is None:
        return built
    if isinstance(rejects, str | Path):
        write_files(built.rejects, Folder(rejects), "subscriptions", "ndjson")
        if built.message_rejects is not None:
            write_files(built.message_rejects, Folder(rejects), "messages", "ndjson")
    else:
        rejects(built.rejects, built.version.number)
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
    place: PlaceKind | None = None,
) -> MatchSummary:
    """Match files of messages against subscriptions, and write a directory with the updates.

    Subscriptions are the directory of an index, or files to build one from that is removed again.
    Columns and place are those of the messages. Rejected rows go to a directory of their own.
    """
    n_rejects = 0
    if isinstance(subscriptions, SubscriptionsConfig):
        check_matches_tables(matcher_type(subscriptions.semantics))
    parent, _, name = Folder(out).uri.rpartition("/")
    beside, mark = Folder(parent), f"-{uuid4().hex[:8]}"
    with ExitStack() as stack:
        if isinstance(subscriptions, SubscriptionsConfig):
            # Beside the output, which all machines reach.
            draft = f"_{name}-index{mark}"
            stack.callback(beside.remove, draft)
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
            ids=ids_in(messages, "messages", columns or {}, store.settings.space, place),
            stop_at_rejects=on_error == "raise", has_notes=True, place=place,
        )  # fmt: skip
        started = time.perf_counter()
        did = Observation()
        found = run_match(rows, task).observe(did, *note_sums())
        write_files(without_notes(found), beside, name, file_format, mark=mark)
        note = note_of_sums(did.get)
        match_s = time.perf_counter() - started
        if note.rejects and rejects is not None:
            # Read again rather than kept: there are few, or the job is not worth much.
            refused = rejects_in(canonical_rows(rows, task.reading, task.settings.row_check))
            write_files(refused, Folder(rejects), "messages", "ndjson")
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
    with store.lease("'earshot pipeline changes'"):
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
        **settings.facts()["semantics"][settings.matcher.name],
        "versions": store.version_numbers(),
        "held": store.readers(),
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


def release_versions(index: str | Path, pipeline: str) -> list[int]:
    """Let go of what a pipeline holds that will not run again; return the versions that are gone.

    Runs without Spark.
    """
    store = IndexStore(index)
    held = store.readers()
    if pipeline not in held:
        raise InvalidParameter(
            f"{store.folder.path} is not held by {pipeline!r}; it is by "
            f"{', '.join(map(repr, held)) or 'nobody'} (see 'earshot pipeline info')"
        )
    with store.lease("'earshot pipeline release'"):
        store.release(pipeline)
        return store.clean()


def write_held_results(config: PipelineConfig, out: str | Path, *, file_format: FileFormat) -> int:
    """Write what the subscriptions of a pipeline hold, as of its last finished batch.

    One file per shard, in a new directory. The pipeline may be running: nothing of it is touched.
    Runs without Spark. Returns the number of the batch.
    """
    return write_results_of(config.index, config.checkpoint, Folder(out), file_format)


# ---- files --------------------------------------------------------------------------------------


def files_in(location: str | Path) -> list[Path]:
    """Return a local file itself, or all files of a directory and those below it.

    Names that begin with a dot are hidden, and so is what Spark leaves beside data.
    """
    path = Path(Folder(location).path)
    if not path.is_dir():
        if not path.is_file():
            raise InvalidFile(f"{path} is not a file or directory")
        return [path]
    found = [path / name for name, _, _ in Folder(path).files() if not is_beside_data(name)]
    if not found:
        raise InvalidFile(f"{path} has no files")
    return found


def file_rows(session: SparkSession, location: str | Path) -> DataFrame:
    """Return files as a table in the form ``files``; those of unknown formats are refused."""
    folder = Folder(location)
    if not folder.is_local:
        for name, _, _ in folder.files():
            if is_passed_over(name) and not is_beside_data(name):
                raise InvalidFile(
                    f"{folder.uri}/{name} has a name that begins with _, so Spark passes it over; "
                    f"write it under another name, or move it elsewhere"
                )
        reader = session.read.format("binaryFile").option("recursiveFileLookup", "true")
        return reader.load(folder.uri)
    files = files_in(location)
    for file in files:
        format_of(file)
    rows = session.createDataFrame(pa.table({"path": [str(file) for file in files]}))
    return rows.repartition(min(len(files), MOST_READ_TASKS))


def ids_in(
    location: str | Path,
    content: Content,
    columns: Mapping[str, str],
    space: Space,
    place: PlaceKind | None = None,
) -> IdKind:
    """Return the kind of ids that files have, as the first ones look."""
    if not Folder(location).is_local:
        raise InvalidParameter(
            f"{location}: say whether ids are integers or strings; files that are not local are "
            f"not looked at beforehand"
        )
    for file in files_in(location):
        for part in read_rows(
            content, file, columns=columns, space=space, on_error="reject", place=place
        ):
            if part.batch.num_rows:
                return id_kind(part.batch.schema.field("id").type) or "string"
    return "string"


def check_new(location: str | Path | None, option: str) -> None:
    """Refuse a directory that has something in it, where one is given."""
    if location is not None and Folder(location).names():
        path = Folder(location).path
        raise InvalidParameter(
            f"{option} {path} is not empty; choose another directory or remove it"
        )


# ---- running the pipeline of a file --------------------------------------------------------------


def print_rows(rows: DataFrame, batch: int) -> None:
    """Print each row of a batch as a JSON object; a sink for looking, not for many."""
    lines = [json.dumps({"batch": batch, **row}, default=str) for row in rows.toArrow().to_pylist()]
    if lines:
        print("\n".join(lines), flush=True)


def course_of(pipeline: Pipeline, elapsed_s: float) -> dict[str, Any]:
    """Return totals and rates of a pipeline; rates are means over the time in which batches ran."""
    status = pipeline.status()
    busy_s = max(status.busy_s, 1e-9)
    durations_s = pipeline.durations_s
    return {
        "batches": status.batches,
        "messages": status.messages,
        "updates": status.updates,
        "rejects": status.rejects,
        "changes": status.changes,
        "positions": status.positions,
        "merges": status.merges,
        "elapsed_s": round(elapsed_s, 3),
        "busy_s": round(status.busy_s, 3),
        "messages_per_s": round(status.messages / busy_s, 1),
        "updates_per_s": round(status.updates / busy_s, 1),
        "batch_s": round(statistics.median(durations_s), 4) if durations_s else None,
        "first_version": status.first_version or None,
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

    It is stopped as well when ``is_enough``, which is asked now and then, says so. Returns the
    number of the signal that stopped it, None if none did.

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
    with suppress(*SPARK_IS_GONE):
        pipeline.stop(PATIENCE_S)


def run_pipeline(
    config: PipelineConfig,
    *,
    master: str | None = None,
    once: bool = False,
    is_quiet: bool = False,
    say: Say = lambda line: None,
) -> tuple[dict[str, Any], int | None]:
    """Run a pipeline until it ends or a signal stops it; with ``once``, take what is there and end.

    Spark runs at the master, by default ``spark.master`` of the file, else on this machine. Returns
    totals and rates, and the signal that stopped it, if one did.
    """
    settings = dict(config.spark)
    for source in config.sources:
        if source.source == "kafka":
            check_servers(source.servers)
    if config.uses_kafka and not {"spark.jars", "spark.jars.packages"} & settings.keys():
        settings["spark.jars"] = ",".join(map(str, connector_jars()))
    with spark_session(master, settings) as session:
        check_executors(session)  # before anything is compiled here for them
        _ensure_index(session, config, say)
        started = time.monotonic()
        pipeline = start_pipeline(session, config, once=once)
        view = view_for(is_quiet=is_quiet, prints_output=config.sink.kind == "console")
        number = watch(pipeline, view)
        facts = course_of(pipeline, time.monotonic() - started)
        _stop(pipeline)  # a merge that is still going on
    return {**facts, "signal": None if number is None else signal.Signals(number).name}, number


def _ensure_index(session: SparkSession, config: PipelineConfig, say: Say) -> None:
    store = IndexStore(config.index)
    if store.exists and store.version_numbers():
        version, name = store.latest(), store.settings.matcher.name
        if config.semantics not in (None, name):
            raise InvalidFile(
                f'{config.file}: semantics is "{config.semantics}", and {store.folder.path} '
                f"holds a {name} index; leave it out, or choose another directory"
            )
        for option, value, built in _said(config, store.settings):
            if value != built:
                raise InvalidFile(
                    f"{config.file}: {option} is {value}, and {store.folder.path} was built with "
                    f"{built}; say the same, or choose another directory"
                )
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


def _said(config: PipelineConfig, settings: IndexSettings) -> Iterator[tuple[str, Any, Any]]:
    """Yield what a file says of an index: an option, its value, and that of the index."""
    for option, value in config.options.items():
        yield option, value, getattr(settings.semantics, option)
    given = config.subscriptions
    if given is None:
        return
    yield "space in [subscriptions]", given.space, settings.space
    analyzer = Analyzer(given.language, given.stop_words, given.stem)
    for option in ("language", "stem", "stop_words"):
        value, built = getattr(analyzer, option), getattr(settings.analyzer, option)
        yield f"{option} in [subscriptions]", value, built
    for option in ("ids", "structure"):
        value, built = getattr(given, option), getattr(settings, option)
        if value is not None and built is not None:
            yield f"{option} in [subscriptions]", value, built


def start_pipeline(session: SparkSession, config: PipelineConfig, *, once: bool) -> Pipeline:
    """Start the pipeline of a config, whose index is there."""
    once = once or config.trigger.once
    changes = None if config.changes is None else _stream(session, config.changes)
    results = config.results
    return match_stream(
        _stream(session, config.messages), config.index, _sink(config), config.checkpoint,
        changes=changes,
        positions=None if config.positions is None else _stream(session, config.positions),
        rejects=_reject_sink(config, "messages"),
        change_rejects=_reject_sink(config, "changes"),
        position_rejects=_reject_sink(config, "positions"),
        shape=config.sink.shape,
        carry=config.sink.carry,
        keep_unmatched=config.sink.keep_unmatched,
        interval=None if once else config.trigger.interval,
        available_now=once,
        merge_share=config.merge.share,
        merge_least=config.merge.least,
        snapshot_every=config.snapshots.every,
        results=None if results is None else FileSink(results.path, results.format),
        results_every=1 if results is None else results.every,
    )  # fmt: skip


def _stream(session: SparkSession, source: ChangesConfig) -> Stream:
    ids, place = (source.ids, source.place) if isinstance(source, MessagesConfig) else (None, None)
    if source.source == "kafka":
        return Stream.of_kafka(
            session, source.servers, source.topic, start=source.start,
            records_per_batch=source.records_per_batch, options=source.options,
            columns=source.columns, ids=ids, place=place,
        )  # fmt: skip
    folder = Folder(source.path)
    if folder.is_local:
        # Spark refuses to watch a directory that is not there; files may come later.
        Path(folder.path).mkdir(parents=True, exist_ok=True)
    return Stream.of_files(
        session, source.path, pattern=source.pattern, files_per_batch=source.files_per_batch,
        columns=source.columns, ids=ids, place=place,
    )  # fmt: skip


def _sink(config: PipelineConfig) -> Sink:
    sink = config.sink
    if sink.kind == "kafka":
        return KafkaSink(sink.servers, sink.topic, options=sink.options)
    if sink.kind == "files":
        return FileSink(sink.path, sink.format)
    return print_rows


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
