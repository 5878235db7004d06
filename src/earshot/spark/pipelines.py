"""Starting a pipeline over an index of any semantics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from earshot.errors import InvalidParameter
from earshot.model.schemas import Content
from earshot.spark.connectors import FileSink, Sink, Stream
from earshot.spark.folders import Folder
from earshot.spark.match import match_task
from earshot.spark.rows import arrow_schema, make_reading
from earshot.spark.state import SNAPSHOT_EVERY
from earshot.spark.stateful import StatefulPipeline
from earshot.spark.store import IndexStore
from earshot.spark.stream import MERGE_LEAST, MERGE_SHARE, MatchingPipeline, Pipeline, Status
from earshot.spark.workers import Shape


def match_stream(
    messages: Stream,
    index: str | Path,
    sink: Sink,
    checkpoint: str | Path,
    *,
    changes: Stream | None = None,
    positions: Stream | None = None,
    rejects: Sink | None = None,
    change_rejects: Sink | None = None,
    position_rejects: Sink | None = None,
    shape: Shape = "rows",
    carry: Sequence[str] = (),
    keep_unmatched: bool = False,
    interval: str | None = None,
    available_now: bool = False,
    merge_share: float = MERGE_SHARE,
    merge_least: int = MERGE_LEAST,
    snapshot_every: int = SNAPSHOT_EVERY,
    results: FileSink | None = None,
    results_every: int = 1,
    on_batch: Callable[[Status], None] | None = None,
) -> Pipeline:
    """Start matching a stream of messages; subscriptions may change while it runs.

    *On the driver*: which version of the index each batch sees; changes, batch by batch, which have
    to fit its memory. *In each task*: reading, analysing and matching messages, as for
    :func:`earshot.spark.match`.

    Args:
        messages: The messages.
        index: Directory of the index, made by :func:`earshot.spark.build`.
        sink: Takes the updates of each batch; see :mod:`earshot.spark.connectors`.
        checkpoint: Directory in which the pipeline remembers where it is. A pipeline that is
            started again with the same one goes on there.
        changes: Subscriptions that come, go and move, if they do.
        positions: Where moving subscribers are, for an index of them.
        rejects: Takes the messages that were refused; without it they are only counted.
        change_rejects: The same for changes.
        position_rejects: The same for positions.
        shape: ``rows`` or ``lists``; see :func:`earshot.spark.match`.
        carry: Columns of the messages that go along.
        keep_unmatched: Let ``lists`` have the messages that reach nobody.
        interval: How often a batch begins, such as ``1 second``; by default when the last one is
            done.
        available_now: Take what is there now, changes first, and end.
        merge_share: Deltas are merged when the changes in them are this share of the subscriptions,
        merge_least: and at least so many.
        snapshot_every: Where messages depend on those before: batches after which the state of a
            shard is saved. A shard that lost its state applies at most so many again.
        results: Takes what all subscriptions hold after a batch, where the semantics keeps results:
            a directory for each batch, with the columns of :meth:`Engine.results_table`.
        results_every: After how many batches results are written.
        on_batch: Called on the driver after each batch.

    Returns:
        The running pipeline.
    """
    _check_sinks(
        sink=sink,
        rejects=rejects or sink,
        change_rejects=change_rejects or sink,
        position_rejects=position_rejects or sink,
    )
    if not merge_share > 0:
        raise InvalidParameter(f"merge_share is {merge_share}; expected more than 0")
    if interval is not None and available_now:
        raise InvalidParameter("interval and available_now exclude each other; give one")
    for stream in (messages, changes, positions):
        if stream is not None and not stream.rows.isStreaming:
            raise InvalidParameter("a table is not a stream: read it with readStream, or use match")
    for name, number in (("snapshot_every", snapshot_every), ("results_every", results_every)):
        if number < 1:
            raise InvalidParameter(f"{name} is {number}; expected 1 or more")
    store = IndexStore(index)
    settings = store.settings
    noun = settings.form.noun
    pipeline: Pipeline
    if positions is not None and not settings.form.moves_by_position:
        raise InvalidParameter(f"{noun} takes no positions; build the index with Moving(...)")
    if results is not None and not settings.matcher.keeps_results:
        raise InvalidParameter(f"{noun} keeps no results; leave results out")
    if settings.keeps_messages:
        if shape != "rows" or carry or keep_unmatched:
            raise InvalidParameter(
                f"shape='lists', carry and keep_unmatched are not for {noun}, whose updates come "
                f"for other messages, too; leave them out, and join updates with messages by id"
            )
        streams: dict[Content, Stream | None] = {
            "messages": messages, "changes": changes, "positions": positions
        }  # fmt: skip
        given = {content: each for content, each in streams.items() if each is not None}
        pipeline = StatefulPipeline(
            messages.rows.sparkSession, store, Folder(checkpoint), sink,
            {"messages": rejects, "changes": change_rejects, "positions": position_rejects},
            on_batch, {content: each.rows for content, each in given.items()},
            {
                content: make_reading(
                    content, arrow_schema(each.rows), form=each.form, columns=each.columns,
                    ids=each.ids if content == "messages" else settings.ids, space=settings.space,
                    place=each.place,
                )
                for content, each in given.items()
            },
            snapshot_every, results, results_every,
        )  # fmt: skip
        for content, each in given.items():
            pipeline.watch_files(content, each.unread)
        pipeline.start(interval, available_now)
        return pipeline
    task = match_task(
        messages.rows, store, None,
        shape=shape, form=messages.form, columns=messages.columns, ids=messages.ids, carry=carry,
        keep_unmatched=keep_unmatched, stop_at_rejects=False, has_notes=True, place=messages.place,
    )  # fmt: skip
    change_reading = None
    if changes is not None:
        change_reading = make_reading(
            "changes", arrow_schema(changes.rows),
            form=changes.form, ids=settings.ids, columns=changes.columns, space=settings.space,
        )  # fmt: skip
    pipeline = MatchingPipeline(
        messages.rows.sparkSession, store, Folder(checkpoint), sink,
        {"messages": rejects, "changes": change_rejects}, on_batch, messages.rows, task,
        None if changes is None else changes.rows, change_reading, merge_share, merge_least,
    )  # fmt: skip
    pipeline.watch_files("messages", messages.unread)
    pipeline.watch_files("changes", None if changes is None else changes.unread)
    pipeline.start(interval, available_now)
    return pipeline


def _check_sinks(**sinks: object) -> None:
    for name, sink in sinks.items():
        if not callable(sink):
            raise InvalidParameter(
                f"{name} is {sink!r}; expected FileSink(...), KafkaSink(...), DeltaSink(...), or a "
                f"function of a DataFrame and the number of a batch"
            )
