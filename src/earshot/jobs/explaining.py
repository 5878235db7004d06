"""Why a message of a file reaches a subscription, or why not."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from earshot.engine.engine import Engine
from earshot.errors import InvalidFile, UnknownSubscription
from earshot.files import rejects_of_batch
from earshot.jobs.rows import FileOptions, RejectSink, message_parts
from earshot.model.explanations import Explanation
from earshot.model.messages import Message
from earshot.model.regions import Point, Rectangle
from earshot.model.schemas import BOX_FIELDS
from earshot.model.subscriptions import Id


def explain_file(
    engine: Engine,
    messages: str | Path,
    message_id: str,
    subscription_id: str,
    files: FileOptions,
    rejects: RejectSink,
) -> Explanation:
    """Explain one message of a file against one subscription; ids are given as text.

    Where the semantics keeps messages, those before it in the file are published first, so that it
    finds the results that it would find in a job over the file. Bad messages before it go to the
    ``rejects``; one that is bad itself cannot be explained.
    """
    wanted = _subscription_id(engine, subscription_id)
    for part in message_parts(messages, engine, files):
        rejects.write(part.rejects)
        ids = [str(each) for each in part.batch.column("id").to_pylist()]
        at = ids.index(message_id) if message_id in ids else len(ids)
        keeps_messages = engine.matcher.keeps_messages
        if keeps_messages or files.on_error == "reject":
            before = part.batch.slice(0, at)
            # Where nothing is kept, only to see which are bad.
            take = engine.publish_batch if keeps_messages else engine.match_batch
            found = take(before, on_error=files.on_error, source=part.source, rows=part.rows[:at])
            rejects.write(rejects_of_batch(found.rejects, before, part.rows[:at]))
        if at < len(ids):
            return engine.explain(_message_of(part.batch.slice(at, 1)), wanted)
    raise InvalidFile(f"{messages} has no message with id {message_id!r}")


def _subscription_id(engine: Engine, text: str) -> Id:
    if engine.id_type != pa.int64():
        return text
    try:
        return int(text)
    except ValueError:
        raise UnknownSubscription(f"no subscription {text!r}; the ids are integers") from None


def _message_of(row: pa.RecordBatch) -> Message:
    values = {name: value for name, value in row.to_pylist()[0].items() if value is not None}
    place: Point | Rectangle
    if "x" in values:
        place = Point(values["x"], values["y"])
    else:
        place = Rectangle(*(values[name] for name in BOX_FIELDS))
    keywords = values.get("keywords")
    return Message(
        values["id"],
        values.get("text"),
        None if keywords is None else tuple(keywords),
        place=place,
        time=values.get("time"),
    )
