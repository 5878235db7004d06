"""The Arrow schemas of everything that crosses a border, in one place.

Every reader delivers these columns and every encoder and writer takes them, whatever the file
looked like. Ids are either all 64-bit integers or all strings; the functions here build a schema
for the one or the other. Times are instants in UTC, to the microsecond.

A subscription row gives its region in at most one way: a box (``min_x … max_y``), a circle
(``x, y, radius``) or a ``geometry`` (WKB); for top-k over a window it is a point, ``x, y`` with a
radius of 0 or none. A message row gives its place as a point (``x, y``) or a box. Columns that a
source does not have are null.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from earshot.errors import InvalidParameter

IdKind = Literal["integer", "string"]
Operation = Literal["subscribe", "unsubscribe", "move"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)

BOX_FIELDS = ("min_x", "min_y", "max_x", "max_y")
CIRCLE_FIELDS = ("x", "y", "radius")
POINT_FIELDS = ("x", "y")

TIME = pa.timestamp("us", "UTC")
KEYWORDS = pa.list_(pa.string())
YEARS = "is outside the years 1 to 9999"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_US = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_LAST_US = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


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
    outside = pc.or_(pc.less(us, _FIRST_US), pc.greater(us, _LAST_US))
    found: npt.NDArray[np.bool_] = outside.fill_null(False).to_numpy(zero_copy_only=False)
    return found


def subscriptions_schema(ids: pa.DataType) -> pa.Schema:
    """Return the schema of subscriptions with ids of the given type."""
    return pa.schema(
        [
            ("id", ids),
            ("keywords", KEYWORDS),
            ("expression", pa.string()),
            *((name, pa.float64()) for name in BOX_FIELDS),
            *((name, pa.float64()) for name in CIRCLE_FIELDS),
            ("geometry", pa.binary()),
            ("expires", TIME),
            ("threshold", pa.float64()),
            ("k", pa.int64()),
            ("alpha", pa.float64()),
        ]
    )


def changes_schema(ids: pa.DataType) -> pa.Schema:
    """Return the schema of changes: what happens to a subscription, which one, and when.

    ``subscribe`` takes all columns of a subscription, ``move`` its id and region, ``unsubscribe``
    its id.
    """
    return pa.schema([("op", pa.string()), *subscriptions_schema(ids), ("time", TIME)])


def messages_schema(ids: pa.DataType) -> pa.Schema:
    """Return the schema of messages with ids of the given type."""
    return pa.schema(
        [
            ("id", ids),
            ("text", pa.string()),
            ("keywords", KEYWORDS),
            *((name, pa.float64()) for name in POINT_FIELDS),
            *((name, pa.float64()) for name in BOX_FIELDS),
            ("time", TIME),
        ]
    )


def matches_schema(
    message_ids: pa.DataType, subscription_ids: pa.DataType, *, has_scores: bool = False
) -> pa.Schema:
    """Return the schema of matches: one row for each delivery of a message to a subscription.

    ``has_scores`` adds the ``score``, for ranked matching.
    """
    scores = [("score", pa.float64())] if has_scores else []
    return pa.schema([("message_id", message_ids), ("subscription_id", subscription_ids), *scores])


def updates_schema(message_ids: pa.DataType, subscription_ids: pa.DataType) -> pa.Schema:
    """Return the schema of updates; ``sign`` is ``+`` or ``-``, ``score`` is null where none is."""
    return pa.schema(
        [
            ("sign", pa.string()),
            ("message_id", message_ids),
            ("subscription_id", subscription_ids),
            ("score", pa.float64()),
            ("reason", pa.string()),
        ]
    )


COLUMN_TYPES = {
    "op": pa.string(),
    "keywords": KEYWORDS,
    "expression": pa.string(),
    "text": pa.string(),
    "geometry": pa.binary(),
    "expires": TIME,
    "time": TIME,
    "k": pa.int64(),
    **dict.fromkeys((*BOX_FIELDS, *CIRCLE_FIELDS, "threshold", "alpha"), pa.float64()),
}
"""Type of each canonical column but the id."""

SUBSCRIPTIONS = subscriptions_schema(pa.int64())
MESSAGES = messages_schema(pa.int64())
MATCHES = matches_schema(pa.int64(), pa.int64())
UPDATES = updates_schema(pa.int64(), pa.int64())
REJECTS = pa.schema(
    [
        ("source", pa.string()),
        ("row", pa.int64()),
        ("field", pa.string()),
        ("reason", pa.string()),
        ("raw", pa.string()),
    ]
)
"""Rows that were refused; ``raw`` is the refused row as JSON, long strings shortened."""
