"""From the columns of a file to the canonical ones.

Parquet, CSV and well-formed NDJSON come as Arrow arrays. They are converted as a whole, and only an
array with a bad value is walked value by value. The first thing wrong with a row is noted, and the
rest of the batch passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from earshot.files.batches import FileBatch, decoded, finish_batch
from earshot.files.geometries import nulls_of, wkb_of_texts
from earshot.files.layout import Layout
from earshot.files.rejects import Problems, add_problems, row_json, row_values
from earshot.model.arrays import Int64s
from earshot.model.batches import time_us
from earshot.model.schemas import (
    COLUMN_TYPES,
    KEYWORDS,
    TIME,
    IdKind,
    id_type,
    is_number,
    is_text,
)

INT64 = np.iinfo(np.int64)
TIME_EXPECTED = "expected ISO 8601 with a zone, such as 2026-05-01T12:00:00Z"
MIXED_IDS = "ids must be all integers or all strings"
ID_MISSING = "is missing; every row needs an id"


def batch_of_columns(
    layout: Layout, columns: Mapping[str, pa.Array], ids: IdKind, rows: Int64s
) -> FileBatch:
    """Convert columns, by canonical field, to the canonical batch; ``rows`` are their numbers.

    Text is parsed where the field is not text.
    """
    problems: Problems = {}
    arrays = {}
    for field, given in columns.items():
        array, wanted = _plain(given), COLUMN_TYPES.get(field)
        if wanted is None:
            arrays[field] = _id_column(array, ids, problems)
        elif is_number(wanted):
            arrays[field] = _number_column(array, field, problems)
        elif wanted == TIME:
            arrays[field] = _time_column(array, field, problems)
        elif wanted == KEYWORDS:
            arrays[field] = _keyword_column(array)
        elif wanted == pa.bool_():
            arrays[field] = _boolean_column(array, field, problems)
        elif wanted == pa.binary() and is_text(array.type):
            arrays[field] = wkb_of_texts(decoded(array), problems)
        elif wanted == pa.binary():
            arrays[field] = array.cast(pa.binary())
        else:
            arrays[field] = array.cast(pa.string())

    def raw(position: int) -> str:
        batch = pa.RecordBatch.from_arrays(
            [_plain(each).slice(position, 1) for each in columns.values()],
            [layout.names[field][0] for field in columns],
        )
        return row_json(row_values(batch, 0))

    return finish_batch(layout, arrays, problems, ids, rows, raw=raw)


def _plain(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _id_column(given: pa.Array, ids: IdKind, problems: Problems) -> pa.Array:
    array = given
    add_problems(problems, nulls_of(array), "id", lambda _: ID_MISSING)
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), id_type(ids))
    if ids == "string":
        return array.cast(pa.string())
    if not is_text(array.type):
        if pa.types.is_uint64(array.type):
            is_large = pc.greater(array, pa.scalar(INT64.max, pa.uint64())).fill_null(False)
            add_problems(
                problems, is_large.to_numpy(zero_copy_only=False), "id",
                lambda at: id_overflow(given[at].as_py()),
            )  # fmt: skip
            array = pc.if_else(is_large, pa.scalar(None, array.type), array)
        return array.cast(pa.int64())
    # Arrow would read 0x10 as 16 and 007 as 7; an id that does not print as it was is none.
    odd = pc.match_substring_regex(array.view(pa.binary()), r"^(-?0.|-0$|[^-0-9]|-?.*[^-0-9])")
    if not pc.any(odd).as_py():
        try:
            return array.cast(pa.int64())
        except pa.ArrowInvalid:
            pass
    return _convert(array, pa.int64(), "id", _integer_id_of_text, problems)


def id_overflow(value: Any) -> str:
    """Say what is wrong with an id that is too large or too small."""
    return f"id {value} is outside the range of 64-bit integers; give ids as strings"


def _integer_id_of_text(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = None
    if value is None or str(value) != text:
        raise ValueError(f"id {text[:80]!r} is a string among integers; {MIXED_IDS}")
    if not INT64.min <= value <= INT64.max:
        raise ValueError(id_overflow(value))
    return value


def _number_column(array: pa.Array, field: str, problems: Problems) -> pa.Array:
    if not is_text(array.type):
        return array.cast(pa.float64(), safe=False)
    try:
        return array.cast(pa.float64())
    except pa.ArrowInvalid:
        return _convert(array, pa.float64(), field, _number_of_text, problems)


def _number_of_text(text: str) -> float | None:
    text = text.strip()
    if not text:
        return None
    try:
        if "_" not in text:
            return float(text)
    except ValueError:
        pass
    raise ValueError(f"is {text[:80]!r}; expected a number")


def _boolean_column(array: pa.Array, field: str, problems: Problems) -> pa.Array:
    if not is_text(array.type):
        return array.cast(pa.bool_())
    return _convert(array, pa.bool_(), field, _boolean_of_text, problems)


def _boolean_of_text(text: str) -> bool | None:
    text = text.strip().lower()
    if text in ("", "true", "false"):
        return None if not text else text == "true"
    raise ValueError(f"is {text[:80]!r}; expected true or false")


def _time_column(array: pa.Array, field: str, problems: Problems) -> pa.Array:
    if not is_text(array.type):
        return array.cast(TIME, safe=False)  # sub-microsecond digits are below our resolution
    try:
        return array.cast(TIME)
    except pa.ArrowInvalid:
        return _convert(array, pa.int64(), field, us_of_text, problems).cast(TIME)


def us_of_text(text: str) -> int | None:
    """Return the instant as microseconds since 1970, None for an empty text."""
    text = text.strip()
    if not text:
        return None
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"is {text[:80]!r}; {TIME_EXPECTED}") from None
    if value.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; {TIME_EXPECTED}")
    return time_us(value)


def _keyword_column(array: pa.Array) -> pa.Array:
    if not is_text(array.type):
        return array.cast(KEYWORDS)
    array = array.cast(pa.string())
    lists = pc.split_pattern(array, ",")
    values = pc.ascii_trim_whitespace(lists.values)
    # An empty text means no keywords; "a,,b" keeps its empty keyword, which is refused later.
    empty = pc.equal(pc.binary_length(array), 0)
    split = pa.ListArray.from_arrays(lists.offsets, values, KEYWORDS)
    if array.null_count == 0 and not pc.any(empty).as_py():
        return split
    return pc.if_else(pc.fill_null(empty, True), pa.scalar(None, KEYWORDS), split)


def _convert(
    array: pa.Array,
    data_type: pa.DataType,
    field: str,
    convert: Callable[[str], Any],
    problems: Problems,
) -> pa.Array:
    """Convert text value by value, noting those that cannot be."""
    values: list[Any] = []
    for position, text in enumerate(decoded(array)):
        try:
            values.append(None if text is None else convert(text))
        except ValueError as error:
            problems.setdefault(position, (field, str(error)))
            values.append(None)
    return pa.array(values, data_type)
