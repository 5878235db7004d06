"""Messages of a file in, updates in a file out."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from earshot.engine.engine import Engine
from earshot.engine.updates import Updates
from earshot.errors import InvalidParameter, LateRow
from earshot.files import UpdateWriter, check_place, rejects_of_batch, write_table
from earshot.jobs.merging import Merged, merged_by_time
from earshot.jobs.rows import FileOptions, Progress, RejectSink, message_parts, position_parts
from earshot.model.schemas import update_fields


@dataclass
class Summary:
    """What a matching job did."""

    n_subscriptions: int = 0  # subscriptions that the first message found
    n_messages: int = 0  # messages that were taken
    n_positions: int = 0  # positions that were taken
    n_updates: int = 0  # updates that were written
    n_late: int = 0  # messages and positions that came too late; they are among the rejects
    n_rejects: int = 0  # rows that were refused
    load_s: float = 0.0  # time to open or load the subscriptions, and to weigh words
    match_s: float = 0.0  # time to match the messages and write the updates
    counters: dict[str, int] = field(default_factory=dict)  # work of matching, by name
    memory: dict[str, int] = field(default_factory=dict)  # bytes at the end, by part
    engine: dict[str, Any] = field(default_factory=dict)  # its facts at the end

    @property
    def messages_per_s(self) -> float:
        """Messages matched in a second."""
        return self.n_messages / max(self.match_s, 1e-9)


def match_files(
    engine: Engine,
    messages: str | Path,
    out: str | Path,
    *,
    files: FileOptions,
    rejects: RejectSink,
    positions: str | Path | None = None,
    results: str | Path | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Publish a file of messages; write the updates that they cause.

    Args:
        engine: Has the subscriptions.
        messages: File of messages, in their order; ``-`` is standard input, of which every message
            is published as soon as it comes.
        out: File of updates, with the columns of :func:`earshot.model.schemas.update_fields`; or
            ``-``, standard output, to which the updates of a batch go at once.
        files: How files are read.
        rejects: Where bad and late messages go.
        positions: File of the positions of moving subscribers, in the order of their times. Both
            files are merged by time; at the same time, subscribers move first.
        results: File of the results at the end: ``subscription_id, rank, message_id, score``. For
            semantics that keep results.
        progress: Told how many messages were published.
    """
    matcher = engine.matcher
    if positions is not None and not matcher.form.moves_by_position:
        raise InvalidParameter(
            f"{matcher.form.noun} takes no positions from {positions}; use Engine(Moving(...)), on "
            f"the command line --moving"
        )
    if results is not None:
        if not matcher.keeps_results:
            raise InvalidParameter(
                f"{matcher.form.noun} keeps no results to write to {results}; leave that file out"
            )
        check_place(results)  # an unknown one is refused before the work begins
    summary = Summary(len(engine), counters=matcher.no_changes(0).counters._asdict())
    started = time.perf_counter()
    fields = update_fields(matcher.has_scores, matcher.keeps_results)
    with UpdateWriter(out, None, engine.id_type, fields, files.out_format) as writer:
        parts: Iterable[Merged] = (
            Merged(part, None, np.zeros(len(part.batch), np.bool_))
            for part in message_parts(messages, engine, files)
        )
        if positions is not None:
            moves = position_parts(positions, engine, files)
            parts = merged_by_time(message_parts(messages, engine, files), moves)
        for merged in parts:
            given = [part for part in merged[:2] if part is not None]
            for part in given:
                rejects.write(part.rejects)
            found = _taken(engine, merged, files)
            for part in given:
                of_part = [each for each in found.rejects if each.source == part.source]
                rejects.write(rejects_of_batch(of_part, part.batch, part.rows))
            writer.write(found)
            n_positions = int(np.count_nonzero(merged.is_move))
            if merged.positions is not None:
                source = merged.positions.source
                n_positions -= sum(each.source == source for each in found.rejects)
                summary.n_positions += n_positions
            summary.n_messages += found.n_rows - n_positions
            summary.n_updates += len(found)
            summary.n_late += sum(isinstance(each, LateRow) for each in found.rejects)
            for name, n in found.counters._asdict().items():
                summary.counters[name] += n
            if progress is not None and merged.messages is not None:
                progress(merged.messages.batch.num_rows)
    if results is not None:
        write_table(results, engine.results_table(), stream_format=files.out_format)
    summary.match_s = time.perf_counter() - started
    summary.n_rejects = rejects.n_rows
    summary.memory, summary.engine = engine.memory(), engine.facts()
    return summary


def _taken(engine: Engine, merged: Merged, files: FileOptions) -> Updates:
    """Let events happen."""
    said, moved, is_move = merged
    if said is not None and moved is not None:
        return engine.take_batch(
            said.batch, moved.batch, is_move=is_move, on_error=files.on_error,
            sources=(said.source, moved.source), rows=(said.rows, moved.rows),
        )  # fmt: skip
    take, part = (engine.publish_batch, said) if moved is None else (engine.move_batch, moved)
    assert part is not None
    return take(part.batch, on_error=files.on_error, source=part.source, rows=part.rows)
