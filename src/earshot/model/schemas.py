"""The columns of everything that crosses a border, and the Arrow schemas made of them.

:data:`FIELDS` is the one table of columns: names, types, meanings, and the other names that a file
may have for them. Schemas, readers, encoders, writers and the tables of docs/files.md follow from
it. Every reader delivers these columns and every encoder and writer takes them, whatever the file
looked like. Ids are either all 64-bit integers or all strings; the functions here build a schema
for the one or the other. Times are instants in UTC, to the microsecond.

A subscription row gives its region in at most one way: a box (``min_x … max_y``), a circle
(``x, y, radius``) or a ``geometry`` (WKB); for top-k over a window it is a point, ``x, y`` with a
radius of 0 or none. A message row gives its place as a point (``x, y``) or a box. Columns that a
source does not have are null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from earshot.errors import InvalidParameter

IdKind = Literal["integer", "string"]
Content = Literal["subscriptions", "messages", "changes", "positions"]
"""What comes in."""
Relation: TypeAlias = Content | Literal["updates", "rejects"]
"""What comes in, and what goes out."""
Operation = Literal["subscribe", "unsubscribe", "move", "reweigh"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)

BOX_FIELDS = ("min_x", "min_y", "max_x", "max_y")
CIRCLE_FIELDS = ("x", "y", "radius")
POINT_FIELDS = ("x", "y")
WHICH_PLACE = "say which counts, with --place point or --place box (place= in Python)"
"""What to do with messages that have several places."""

TIME = pa.timestamp("us", "UTC")
KEYWORDS = pa.list_(pa.string())
LACKS_PLACE = "is missing; a position needs x and y"
YEARS = "is outside the years 1 to 9999"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_US = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
LAST_US = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


# ---- the columns --------------------------------------------------------------------------------


class Field(NamedTuple):
    """A column."""

    name: str
    type: pa.DataType | None  # None for ids, which are all integers or all strings
    of: Mapping[Relation, str]  # what it means in each of the relations that have it
    aliases: tuple[str, ...] = ()  # names under which a file may have it instead
    only_in_files: tuple[Relation, ...] = ()  # where readers turn it into other columns


def _both(subscription: str, message: str) -> dict[Relation, str]:
    return {"subscriptions": subscription, "changes": subscription, "messages": message}


def _asked(meaning: str) -> dict[Relation, str]:
    return {"subscriptions": meaning, "changes": meaning}


_BOX = _both("region: a box", "place: a box")
_CIRCLE = _both("region: a circle", "place: a point")
_POSITION: dict[Relation, str] = {"positions": "required: where it is"}

FIELDS = (
    Field(
        "op",
        pa.string(),
        {"changes": f"required: one of {', '.join(f'`{name}`' for name in OPERATIONS)}"},
    ),
    Field(
        "id",
        None,
        _both("required, unique", "required; need not be unique")
        | {"positions": "required: whose position; need not be unique"},
    ),
    Field("text", pa.string(), {"messages": "free text"}),
    Field(
        "keywords",
        KEYWORDS,
        _both("all must be in the message", "the keywords instead of a text; may be empty"),
    ),
    Field("expression", pa.string(), _asked("a boolean expression instead of keywords")),
    Field("x", pa.float64(), _CIRCLE | _POSITION, ("lon", "lng", "longitude")),
    Field("y", pa.float64(), _CIRCLE | _POSITION, ("lat", "latitude")),
    Field("radius", pa.float64(), _asked(_CIRCLE["subscriptions"]), ("radius_m",)),
    Field("min_x", pa.float64(), _BOX, ("min_lon", "min_longitude")),
    Field("min_y", pa.float64(), _BOX, ("min_lat", "min_latitude")),
    Field("max_x", pa.float64(), _BOX, ("max_lon", "max_longitude")),
    Field("max_y", pa.float64(), _BOX, ("max_lat", "max_latitude")),
    Field(
        "geometry",
        pa.binary(),
        _both(
            "region: a polygon or multipolygon; or a point, with a `radius` beside it",
            "place: a point, or an axis-parallel rectangle (files only)",
        ),
        only_in_files=("messages",),
    ),
    Field("expires", TIME, _asked("when it ends by itself")),
    Field(
        "threshold",
        pa.float64(),
        _asked(
            "score to reach, greater than 0 and at most 1, in place of the engine's; refused "
            "unless matching is ranked"
        ),
    ),
    Field(
        "k",
        pa.int64(),
        _asked(
            "messages that it gets, 1 to 10,000, in place of the engine's; refused unless matching "
            "is top-k over a window"
        ),
    ),
    Field(
        "alpha",
        pa.float64(),
        _asked(
            "share of the place in the score, 0 to 1, in place of the engine's; refused unless "
            "matching is top-k over a window"
        ),
    ),
    Field(
        "dwell",
        pa.float64(),
        _asked(
            "seconds that a message must match before it is given; refused unless subscribers move"
        ),
    ),
    Field(
        "cooldown",
        pa.float64(),
        _asked(
            "seconds in which a message that left is not given again; refused unless subscribers "
            "move"
        ),
    ),
    Field(
        "leaving",
        pa.bool_(),
        _asked("whether updates tell what leaves, too; refused unless subscribers move"),
    ),
    Field("message_id", None, {"updates": "which message"}),
    Field("subscription_id", None, {"updates": "whose results"}),
    Field(
        "sign",
        pa.string(),
        {"updates": "`+` where the message comes into the results, `-` where it goes"},
    ),
    Field("score", pa.float64(), {"updates": "how well the message matches"}),
    Field("source", pa.string(), {"rejects": "the file"}),
    Field(
        "row",
        pa.int64(),
        {"rejects": "number of the row, from 0; the header and blank lines do not count"},
    ),
    Field(
        "field",
        pa.string(),
        {"rejects": "the column, by its name here; empty where the row as a whole is wrong"},
    ),
    Field(
        "reason",
        pa.string(),
        {
            "updates": "why, in one word; `match` where a message was published and matched",
            "rejects": "what was wrong and what was expected",
        },
    ),
    Field(
        "raw",
        pa.string(),
        {
            "rejects": "the row as JSON (or as it stood, where it could not be read); strings of "
            "more than 1,000 characters are shortened"
        },
    ),
    Field(
        "time",
        TIME,
        {
            "messages": "when it was published",
            "changes": "when it happens",
            "positions": "when it was there",
            "updates": "time of the message where one was published, of the engine's clock "
            "otherwise; null where there is none",
        },
    ),
    Field(
        "end",
        TIME,
        {"messages": "when it ends, in place of the lifetime; refused unless subscribers move"},
    ),
)
"""All columns. Each relation has its own in this order."""

COLUMN_TYPES: dict[str, pa.DataType] = {
    field.name: field.type
    for field in FIELDS
    if field.type is not None and not set(get_args(Content)).isdisjoint(field.of)
}
"""Type of each column of what comes in, but the id."""

TYPES_IN_WORDS: dict[pa.DataType | None, str] = {
    None: "integers or strings",
    pa.string(): "strings",
    pa.float64(): "numbers",
    pa.int64(): "integers",
    pa.bool_(): "true or false",
    KEYWORDS: "lists of strings, or strings with commas between keywords",
    TIME: "timestamps with a time zone, or ISO 8601 strings with one",
    pa.binary(): "WKB bytes, or WKT or GeoJSON strings",
}
"""What a file may have in a column of each type."""


def fields_of(relation: Relation, *, in_files: bool = False) -> tuple[Field, ...]:
    """Return the columns of a relation; ``in_files`` adds those that only its files have."""
    return tuple(
        field
        for field in FIELDS
        if relation in field.of and (in_files or relation not in field.only_in_files)
    )


# ---- schemas ------------------------------------------------------------------------------------


def schema_of(content: Content, ids: pa.DataType) -> pa.Schema:
    """Return the schema of what comes in, with ids of the given type."""
    return pa.schema([(field.name, field.type or ids) for field in fields_of(content)])


subscriptions_schema = partial(schema_of, "subscriptions")
messages_schema = partial(schema_of, "messages")
changes_schema = partial(schema_of, "changes")
"""What happens to a subscription: ``subscribe`` takes all its columns, ``move`` its id and region,
``unsubscribe`` its id."""

UPDATE_FIELDS = tuple(field.name for field in fields_of("updates"))


def update_fields(has_scores: bool, keeps_results: bool) -> tuple[str, ...]:
    """Return the columns of updates that a writer writes.

    Args:
        has_scores: Whether the semantics has scores; one without has no ``score``.
        keeps_results: Whether it keeps results; in one that does not, each update is its message,
            delivered once, so there is no ``sign``, ``reason`` and ``time``.
    """
    absent = set() if has_scores else {"score"}
    if not keeps_results:
        absent |= {"sign", "reason", "time"}
    return tuple(name for name in UPDATE_FIELDS if name not in absent)


def updates_schema(
    message_ids: pa.DataType,
    subscription_ids: pa.DataType,
    fields: Sequence[str] = UPDATE_FIELDS,
) -> pa.Schema:
    """Return the schema of updates, or of some of their columns."""
    types = {field.name: field.type for field in fields_of("updates")}
    types |= {"message_id": message_ids, "subscription_id": subscription_ids}
    return pa.schema([(name, types[name]) for name in fields])


SUBSCRIPTIONS = subscriptions_schema(pa.int64())
MESSAGES = messages_schema(pa.int64())
REJECTS = pa.schema([(field.name, field.type) for field in fields_of("rejects")])
"""Rows that were refused; ``raw`` is the refused row as JSON, long strings shortened."""


# ---- types --------------------------------------------------------------------------------------


def id_type(kind: IdKind) -> pa.DataType:
    """Return the Arrow type of ids of the given kind."""
    if kind == "integer":
        return pa.int64()
    if kind == "string":
        return pa.string()
    raise InvalidParameter(f"ids of kind {kind!r}; expected 'integer' or 'string'")


def id_kind(data_type: pa.DataType) -> IdKind | None:
    """Return which kind of ids a column of this type holds, None when it cannot hold ids."""
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
    if pa.types.is_integer(data_type):
        return "integer"
    if is_text(data_type):
        return "string"
    return None


def is_text(data_type: pa.DataType) -> bool:
    """Whether the type is one of Arrow's string types."""
    return bool(
        pa.types.is_string(data_type)
        or pa.types.is_large_string(data_type)
        or pa.types.is_string_view(data_type)
    )


def is_number(data_type: pa.DataType) -> bool:
    """Whether the type is one of Arrow's types of numbers; booleans are none."""
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
    return bool(
        pa.types.is_integer(data_type)
        or pa.types.is_floating(data_type)
        or pa.types.is_decimal(data_type)
    )


def unknown_years(times: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which instants are outside the years 1 to 9999.

    Arrow, Parquet and Spark can tell hundreds of thousands of years, Python's datetime cannot.
    """
    us = times.cast(TIME).cast(pa.int64())
    outside = pc.or_(pc.less(us, FIRST_US), pc.greater(us, LAST_US))
    found: npt.NDArray[np.bool_] = outside.fill_null(False).to_numpy(zero_copy_only=False)
    return found
