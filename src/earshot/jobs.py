"""Whole jobs over files: what the command line runs, usable from Python as well."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa

from earshot.deliveries import Deliveries
from earshot.engine import Engine
from earshot.errors import InvalidFile, InvalidParameter, UnknownSubscription
from earshot.explanation import Explanation
from earshot.files import (
    Draft,
    FileBatch,
    MatchWriter,
    OnError,
    Reject,
    TableWriter,
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
from earshot.model.schemas import REJECTS
from earshot.model.subscriptions import Id
from earshot.text import Analyzer

MESSAGE_BATCH_ROWS = 2048
"""Messages per batch: at hundreds of answers each, a few million answers are held at a time."""

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
    format_of(out)  # an unknown one is refused before the work begins
    summary = Summary(n_subscriptions=len(engine))
    started = time.perf_counter()
    counters = [0, 0, 0]
    has_scores = engine.ranking is not None
    writer: MatchWriter | None = None
    try:
        for part in _message_parts(messages, engine, reading):
            rejects.write(part.rejects)
            found = engine.publish_batch(
                part.batch, on_error=reading.on_error, source=part.source, rows=part.rows
            )
            rejects.write(rejects_of_batch(found.rejects, part.batch, part.rows))
            if writer is None:
                writer = MatchWriter(
                    out, found.message_ids.type, engine.id_type, has_scores=has_scores
                )
            ids = partial(_subscription_ids, found)
            writer.write(found.message_ids, found.offsets, ids, found.scores)
            summary.n_messages += len(found.message_ids)
            summary.n_matches += int(found.offsets[-1])
            counters = [a + b for a, b in zip(counters, found.counters, strict=True)]
            if progress is not None:
                progress(part.batch.num_rows)
        if writer is None:
            writer = MatchWriter(out, pa.int64(), engine.id_type, has_scores=has_scores)
        writer.close()
    except BaseException:
        if writer is not None:
            writer.discard()
        raise
    summary.match_s = time.perf_counter() - started
    summary.counters = Counters(*counters)
    summary.n_rejects = rejects.n_rows
    return summary


def _subscription_ids(deliveries: Deliveries) -> pa.Array:
    return deliveries.subscription_ids


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


def _message_parts(messages: str | Path, engine: Engine, reading: Reading) -> Iterator[FileBatch]:
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
