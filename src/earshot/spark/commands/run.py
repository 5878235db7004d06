"""Running the pipeline that a file describes."""

from __future__ import annotations

import json
import signal
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from earshot.errors import InvalidFile
from earshot.model.schemas import Content
from earshot.spark.commands.batch import build_index
from earshot.spark.commands.session import SPARK_IS_GONE, Signals, spark_session
from earshot.spark.config import ChangesConfig, MessagesConfig, PipelineConfig
from earshot.spark.folders import Folder
from earshot.spark.kafka import connector_jars
from earshot.spark.sinks import FileSink, KafkaSink, Sink
from earshot.spark.sources import Stream
from earshot.spark.store import IndexStore
from earshot.spark.stream import Pipeline, Status, match_stream
from earshot.spark.view import View, view_for

Say = Callable[[str], None]
"""Told what is going on, in sentences."""

POLL_S = 0.1
"""How often a running pipeline is looked at."""
PATIENCE_S = 3600.0
"""How long a stop waits for the batch that is going on; a second signal ends the wait."""
KEPT_DURATIONS = 10_000
"""Batches over which the median duration is taken."""


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
        version, name = store.latest(), store.settings.matcher.name
        if config.semantics not in (None, name):
            raise InvalidFile(
                f'{config.file}: semantics is "{config.semantics}", and {store.folder.path} '
                f"holds a {name} index; leave it out, or choose another directory"
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


def start_pipeline(
    session: SparkSession,
    config: PipelineConfig,
    *,
    once: bool = False,
    on_batch: Callable[[Status], None] | None = None,
) -> Pipeline:
    """Start the pipeline of a config, whose index is there."""
    once = once or config.trigger.once
    changes = None if config.changes is None else _stream(session, config.changes)
    return match_stream(
        _stream(session, config.messages), config.index, _sink(config), config.checkpoint,
        changes=changes,
        rejects=_reject_sink(config, "messages"),
        change_rejects=_reject_sink(config, "changes"),
        shape=config.sink.shape,
        carry=config.sink.carry,
        keep_unmatched=config.sink.keep_unmatched,
        interval=None if once else config.trigger.interval,
        available_now=once,
        merge_share=config.merge.share,
        merge_least=config.merge.least,
        on_batch=on_batch,
    )  # fmt: skip


def _stream(session: SparkSession, source: MessagesConfig | ChangesConfig) -> Stream:
    ids = source.ids if isinstance(source, MessagesConfig) else None
    if source.source == "kafka":
        return Stream.of_kafka(
            session, source.servers, source.topic, start=source.start,
            records_per_batch=source.records_per_batch, options=source.options,
            columns=source.columns, ids=ids,
        )  # fmt: skip
    folder = Folder(source.path)
    if folder.is_local:
        # Spark refuses to watch a directory that is not there; files may come later.
        Path(folder.path).mkdir(parents=True, exist_ok=True)
    return Stream.of_files(
        session, source.path, pattern=source.pattern, files_per_batch=source.files_per_batch,
        columns=source.columns, ids=ids,
    )  # fmt: skip


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
