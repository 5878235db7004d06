"""Engines from files of subscriptions, and from directories that were saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from earshot.engine.engine import Engine
from earshot.errors import InvalidParameter
from earshot.files import read_subscriptions, rejects_of_batch
from earshot.jobs.rows import FileOptions, Progress, RejectSink, message_parts
from earshot.model.arrays import Space
from earshot.text import Analyzer


def is_saved(path: str | Path) -> bool:
    """Whether the path is a directory, as saved engines are."""
    return Path(path).is_dir()


def load_engine(
    path: str | Path,
    semantics: Any = None,
    *,
    files: FileOptions,
    rejects: RejectSink,
    structure: str | None = None,
    space: Space = "lonlat",
    analyzer: Analyzer | None = None,
    n_threads: int = 1,
    learn_from: str | Path | None = None,
    n_learned: int = 0,
    progress: Progress | None = None,
) -> Engine:
    """Open a saved engine, or make one from a file of subscriptions.

    Words are weighed where the semantics does that: by how many of the subscriptions ask for them,
    or by how many messages of a file have them.

    Args:
        path: A directory made by ``Engine.save``, or a file.
        semantics: As for :class:`Engine`, for a file; a directory has its own.
        files: How files are read.
        rejects: Where bad rows of subscriptions go.
        structure: As for :class:`Engine`, for a file, like those below.
        space: Coordinates and metric.
        analyzer: How text becomes tokens.
        n_threads: Threads that work on a batch, for a directory too.
        learn_from: File of messages to weigh words by, for semantics that keep messages.
        n_learned: How many of its messages, from the first; 0: all words weigh the same.
        progress: Told how many subscriptions were read.
    """
    if is_saved(path):
        if semantics is not None or structure is not None:
            raise InvalidParameter(
                f"{path} is a saved engine, with a semantics and a structure of its own; give "
                f"neither, or the file of its subscriptions"
            )
        engine = Engine.open(path, n_threads=n_threads)
        engine.warm_up(for_ascii=True)
        return engine
    engine = Engine(
        semantics, structure=structure, space=space, analyzer=analyzer, n_threads=n_threads
    )
    weighs_by = engine.matcher.weighs_words_by
    if weighs_by == "messages" and learn_from is not None and n_learned > 0:
        _learn(engine, learn_from, n_learned, files)
    for part in read_subscriptions(path, **files.reading(files.subscription_columns, space)):
        rejects.write(part.rejects)
        done = engine.subscribe_batch(
            part.batch, on_error=files.on_error, source=part.source, rows=part.rows
        )
        rejects.write(rejects_of_batch(done.rejects, part.batch, part.rows))
        if progress is not None:
            progress(part.batch.num_rows)
    if weighs_by == "subscriptions":
        engine.reweigh()
    engine.warm_up(for_ascii=True)
    return engine


def _learn(engine: Engine, messages: str | Path, n_learned: int, files: FileOptions) -> None:
    """Weigh words by the first messages of a file; what is wrong with rows is said later."""
    n_left = n_learned
    for part in message_parts(messages, engine, files):
        engine.learn(
            part.batch.slice(0, n_left),
            on_error=files.on_error, source=part.source, rows=part.rows[:n_left],
        )  # fmt: skip
        n_left -= part.batch.num_rows
        if n_left <= 0:
            break
    engine.reweigh(forget=True)  # they are counted as they are published
