"""Whole jobs over files: what the command line runs, usable from Python as well."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pyarrow as pa

from earshot.engine.deliveries import TABLE_FIELDS
from earshot.engine.engine import Engine
from earshot.engine.explanation import Explanation
from earshot.engine.topk_engine import TopkEngine
from earshot.errors import InvalidFile, InvalidParameter, UnknownSubscription
from earshot.files import (
    Draft,
    FileBatch,
    OnError,
    Reject,
    TableWriter,
    UpdateWriter,
    format_of,
    read_messages,
    read_subscriptions,
    reject_table,
    rejects_of_batch,
)
from earshot.indexes.answers import Counters
from earshot.model.arrays import Space
from earshot.model.messages import Message
from earshot.model.ranking import Ranking
from earshot.model.regions import Point, Rectangle
from earshot.model.schemas import REJECTS, update_fields
from earshot.model.subscriptions import Id
from earshot.model.topk import TopK
from earshot.semantics.topk import find_method
from earshot.text import Analyzer

MESSAGE_BATCH_ROWS = 2048
"""Messages per batch: at hundreds of answers each, a few million answers are held at a time."""

_OF_SUBSCRIPTIONS = ("subscriptions", "structure", "buffers", "subscription_ids", "expiry")
_OF_MESSAGES = ("messages", "message_index", "message_ids")

Progress = Callable[[int], None]
"""Told how many rows were finished since the last call."""


@dataclass(frozen=True)
class Reading:
    """How files are read.

    Attributes:
        on_error: ``raise`` at the first bad row, or ``reject`` bad rows and go on.
        rejects: File for rejected rows; needed with ``reject``.
        subscription_columns: Names of columns by field, where they differ from the standard ones.
        message_columns: The same for messages.
    """

    on_error: OnError = "raise"
    rejects: str | Path | None = None
    subscription_columns: Mapping[str, str] = field(default_factory=dict)
    message_columns: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Summary:
    """What a matching job did."""

    n_subscriptions: int = 0
    n_messages: int = 0
    n_matches: int = 0
    n_rejects: int = 0
    load_s: float = 0.0
    match_s: float = 0.0
    counters: Counters = field(default_factory=lambda: Counters(0, 0, 0))


@dataclass
class TopkSummary:
    """What a job of top-k over a window did.

    Attributes:
        n_subscriptions: Subscriptions at the end.
        n_messages: Messages that were taken.
        n_in_window: Messages that are in the window at the end.
        n_buffered: Messages that are held for subscriptions at the end.
        n_updates: Changes of results.
        n_late: Messages that came too late; they are among the rejects.
        n_rejects: Rows that were refused.
        load_s: Time to open or load the subscriptions, and to weigh words.
        publish_s: Time to publish the messages and write the updates.
        counters: Work of publishing, by name.
        memory: Bytes by part.
    """

    n_subscriptions: int = 0
    n_messages: int = 0
    n_in_window: int = 0
    n_buffered: int = 0
    n_updates: int = 0
    n_late: int = 0
    n_rejects: int = 0
    load_s: float = 0.0
    publish_s: float = 0.0
    counters: dict[str, int] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)

    @property
    def subscription_bytes(self) -> float:
        """Bytes of memory per subscription, with what is held for it."""
        return _share(self.memory, _OF_SUBSCRIPTIONS, self.n_subscriptions)

    @property
    def message_bytes(self) -> float:
        """Bytes of memory per message of the window."""
        return _share(self.memory, _OF_MESSAGES, self.n_in_window)


class RejectSink(Draft):
    """Writes rejected rows to a file, or refuses them where there is none."""

    def __init__(self, path: str | Path | None) -> None:
        self.n_rows = 0
        self._writer = None if path is None else TableWriter(path, REJECTS)

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


def is_saved(path: str | Path) -> bool:
    """Whether the path is a directory, as saved engines are."""
    return Path(path).is_dir()


def load_engine(
    path: str | Path,
    *,
    reading: Reading,
    rejects: RejectSink,
    space: Space = "lonlat",
    analyzer: Analyzer | None = None,
    ranking: Ranking | None = None,
    index: str | None = None,
    n_threads: int = 1,
    progress: Progress | None = None,
) -> Engine:
    """Open a saved engine, or make one from a file of subscriptions.

    With a ranking, words are weighed by how many of the subscriptions ask for them.
    """
    if is_saved(path):
        if ranking is not None or index is not None:
            raise InvalidParameter(
                f"{path} is a saved engine, with an index and a semantics of its own; give neither "
                f"index nor ranking, or the file of its subscriptions"
            )
        engine = Engine.open(path, n_threads=n_threads)
        engine.warm_up()
        return engine
    engine = Engine(
        space=space, analyzer=analyzer, ranking=ranking, index=index, n_threads=n_threads
    )
    for part in read_subscriptions(
        path, columns=reading.subscription_columns, space=space, on_error=reading.on_error
    ):
        rejects.write(part.rejects)
        if reading.on_error == "raise":
            engine.subscribe_batch(part.batch, source=part.source, rows=part.rows)
        else:
            errors = engine.try_subscribe_batch(part.batch, source=part.source, rows=part.rows)
            rejects.write(rejects_of_batch(errors, part.batch, part.rows))
        if progress is not None:
            progress(part.batch.num_rows)
    if ranking is not None:
        engine.reweigh()
    engine.warm_up()
    return engine


def match_files(
    engine: Engine,
    messages: str | Path,
    out: str | Path,
    *,
    reading: Reading,
    rejects: RejectSink,
    progress: Progress | None = None,
) -> Summary:
    """Match a file of messages; write ``message_id, subscription_id`` of every match.

    And its ``score``, where matching is ranked.
    """
    summary = Summary(n_subscriptions=len(engine))
    started = time.perf_counter()
    counters = [0, 0, 0]
    fields = update_fields(has_scores=engine.ranking is not None, keeps_results=False)
    with UpdateWriter(out, None, engine.id_type, fields) as writer:
        for part in _message_parts(messages, engine, reading):
            rejects.write(part.rejects)
            found = engine.publish_batch(
                part.batch, on_error=reading.on_error, source=part.source, rows=part.rows
            )
            rejects.write(rejects_of_batch(found.rejects, part.batch, part.rows))
            writer.write(found)
            summary.n_messages += len(found.message_ids)
            summary.n_matches += len(found)
            counters = [a + b for a, b in zip(counters, found.counters, strict=True)]
            if progress is not None:
                progress(part.batch.num_rows)
    summary.match_s = time.perf_counter() - started
    summary.counters = Counters(*counters)
    summary.n_rejects = rejects.n_rows
    return summary


def read_topk(
    window: str,
    *,
    k: int | None = None,
    alpha: float | None = None,
    max_distance: str | None = None,
    lateness: str | None = None,
    space: Space = "lonlat",
) -> TopK:
    """Return the settings of top-k that texts describe; what is None has its default.

    Args:
        window: A number of messages, or a time: ``90s``, ``10m``, ``2h``, ``7d``.
        k: As in :class:`TopK`.
        alpha: As in :class:`TopK`.
        max_distance: ``500``, ``500m`` or ``50km``; on a plane a number.
        lateness: A time.
        space: What the coordinates are.
    """
    given = {
        "k": k,
        "alpha": alpha,
        "max_distance": None if max_distance is None else _distance(max_distance, space),
        "lateness": None if lateness is None else _duration(lateness, "lateness", "a time"),
    }
    return TopK(
        int(window)
        if re.fullmatch("[0-9]+", window)
        else _duration(window, "window", "a number of messages, or a time"),
        **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
    )


def _duration(text: str, name: str, expected: str) -> timedelta:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    if found is None:
        raise InvalidParameter(f"{name} is {text!r}; expected {expected} such as 30s, 10m, 2h, 7d")
    unit = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}[found[2]]
    try:
        return timedelta(**{unit: float(found[1])})
    except OverflowError:
        raise InvalidParameter(f"{name} is {text!r}, longer than any time can be") from None


def _distance(text: str, space: Space) -> float:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(m|km)?", text)
    if found is None or (found[2] and space == "planar"):
        expected = "a number" if space == "planar" else "metres, such as 500, 500m or 50km"
        raise InvalidParameter(f"max_distance is {text!r}; expected {expected}")
    return float(found[1]) * (1000.0 if found[2] == "km" else 1.0)


def load_topk_engine(
    path: str | Path,
    *,
    reading: Reading,
    rejects: RejectSink,
    topk: TopK | None = None,
    space: Space = "lonlat",
    analyzer: Analyzer | None = None,
    method: str | None = None,
    learn_from: str | Path | None = None,
    n_learned: int = 0,
    progress: Progress | None = None,
) -> TopkEngine:
    """Open a saved engine of top-k, or make one from a file of subscriptions.

    Args:
        path: A directory made by ``TopkEngine.save``, or a file.
        reading: How files are read.
        rejects: Where bad rows of subscriptions go.
        topk: The window and the defaults; needed for a file, and none beside a directory.
        space: Coordinates and metric, for a file.
        analyzer: The same.
        method: How messages find subscriptions and how results are refilled, as two names with
            a ``+`` between them, for a file.
        learn_from: File of messages whose words are counted, so that rare ones weigh more.
        n_learned: How many of its messages, from the first; 0: all words weigh the same.
        progress: Told how many subscriptions were read.
    """
    if is_saved(path):
        if topk is not None or method is not None:
            raise InvalidParameter(
                f"{path} is a saved engine, with a window and a method of its own; give neither, "
                f"or the file of its subscriptions"
            )
        engine = TopkEngine.open(path)
        engine.warm_up()
        return engine
    if topk is None:
        raise InvalidParameter(f"{path} is no saved engine, so a window is needed; give a TopK")
    find, refill = (None, None) if method is None else find_method(method)
    engine = TopkEngine(
        topk, space=space, analyzer=analyzer, dissemination=find, reevaluation=refill
    )
    if learn_from is not None and n_learned > 0:
        _learn(engine, learn_from, n_learned, reading)
    for part in read_subscriptions(
        path, columns=reading.subscription_columns, space=space, on_error=reading.on_error
    ):
        rejects.write(part.rejects)
        if reading.on_error == "raise":
            engine.subscribe_batch(part.batch, source=part.source, rows=part.rows)
        else:
            done = engine.try_subscribe_batch(part.batch, source=part.source, rows=part.rows)
            rejects.write(rejects_of_batch(done.rejects, part.batch, part.rows))
        if progress is not None:
            progress(part.batch.num_rows)
    engine.warm_up()
    return engine


def _learn(engine: TopkEngine, messages: str | Path, n_learned: int, reading: Reading) -> None:
    """Weigh words by the first messages of a file; what is wrong with rows is said later."""
    n_left = n_learned
    for part in _message_parts(messages, engine, reading):
        engine.learn(
            part.batch.slice(0, n_left),
            on_error=reading.on_error, source=part.source, rows=part.rows[:n_left],
        )  # fmt: skip
        n_left -= part.batch.num_rows
        if n_left <= 0:
            break
    engine.reweigh(forget=True)  # they are counted as they are published


def topk_files(
    engine: TopkEngine,
    messages: str | Path,
    out: str | Path,
    *,
    reading: Reading,
    rejects: RejectSink,
    results: str | Path | None = None,
    progress: Progress | None = None,
) -> TopkSummary:
    """Publish a file of messages; write every change of a result.

    Args:
        engine: Has the subscriptions.
        messages: File of messages, in their order.
        out: File of updates: ``sign, message_id, subscription_id, score, reason``.
        reading: How files are read.
        rejects: Where bad and late messages go.
        results: File of the results at the end: ``subscription_id, rank, message_id, score``.
        progress: Told how many messages were published.
    """
    if results is not None:
        format_of(results)  # an unknown one is refused before the work begins
    summary = TopkSummary()
    before = engine.counters
    started = time.perf_counter()
    with UpdateWriter(out, None, engine.id_type, TABLE_FIELDS) as writer:
        for part in _message_parts(messages, engine, reading):
            rejects.write(part.rejects)
            found = engine.publish_batch(
                part.batch, on_error=reading.on_error, source=part.source, rows=part.rows
            )
            rejects.write(rejects_of_batch(found.rejects, part.batch, part.rows))
            writer.write(found)  # type: ignore[arg-type]  # its table is all that is asked for
            summary.n_messages += found.n_rows
            summary.n_updates += len(found)
            summary.n_late += found.n_late
            if progress is not None:
                progress(part.batch.num_rows)
    if results is not None:
        table = engine.results_table()
        with TableWriter(results, table.schema) as results_writer:
            results_writer.write(table)
    summary.publish_s = time.perf_counter() - started
    summary.n_subscriptions, summary.n_in_window = len(engine), engine.n_messages
    summary.n_buffered, summary.memory = engine.n_buffered, engine.memory()
    after, names = engine.counters._asdict(), before._asdict()
    summary.counters = {name: after[name] - n for name, n in names.items()}
    summary.n_rejects = rejects.n_rows
    return summary


def _share(memory: dict[str, int], parts: tuple[str, ...], n: int) -> float:
    return sum(memory.get(part, 0) for part in parts) / max(n, 1)


def explain_file(
    engine: Engine, messages: str | Path, message_id: str, subscription_id: str, reading: Reading
) -> Explanation:
    """Explain one message of a file against one subscription; ids are given as text."""
    for part in _message_parts(messages, engine, reading):
        ids = [str(each) for each in part.batch.column("id").to_pylist()]
        if message_id in ids:
            message = _message_of(part.batch.slice(ids.index(message_id), 1))
            wanted: Id = subscription_id
            if engine.id_type == pa.int64():
                try:
                    wanted = int(subscription_id)
                except ValueError:
                    raise UnknownSubscription(
                        f"no subscription {subscription_id!r}; the ids are integers"
                    ) from None
            return engine.explain(message, wanted)
    raise InvalidFile(f"{messages} has no message with id {message_id!r}")


def _message_parts(
    messages: str | Path, engine: Engine | TopkEngine, reading: Reading
) -> Iterator[FileBatch]:
    return read_messages(
        messages,
        columns=reading.message_columns,
        space=engine.space,
        on_error=reading.on_error,
        batch_rows=MESSAGE_BATCH_ROWS,
    )


def _message_of(row: pa.RecordBatch) -> Message:
    values = {name: value for name, value in row.to_pylist()[0].items() if value is not None}
    place: Point | Rectangle
    if "x" in values:
        place = Point(values["x"], values["y"])
    else:
        place = Rectangle(*(values[name] for name in ("min_x", "min_y", "max_x", "max_y")))
    keywords = values.get("keywords")
    return Message(
        values["id"],
        values.get("text"),
        None if keywords is None else tuple(keywords),
        place=place,
        time=values.get("time"),
    )
