"""From the records of a file to the canonical columns.

GeoJSON, and the blocks of NDJSON with something unusual in them, come as Python dictionaries. The
first thing wrong with a row is noted, and the rest of the batch passes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from earshot.files.batches import FileBatch, finish_batch
from earshot.files.columns import (
    ID_MISSING,
    INT64,
    MIXED_IDS,
    TIME_EXPECTED,
    id_overflow,
    us_of_text,
)
from earshot.files.geometries import wkb_of_geojson, wkb_of_texts
from earshot.files.layout import Layout
from earshot.files.rejects import Problems, row_json
from earshot.model.arrays import Int64s
from earshot.model.schemas import COLUMN_TYPES, KEYWORDS, TIME, IdKind, id_type, is_number


def batch_of_records(
    layout: Layout, records: Sequence[Mapping[str, Any]], ids: IdKind, rows: Int64s
) -> FileBatch:
    """Convert records to the canonical batch; ``rows`` are their numbers."""
    problems: Problems = {}
    arrays = {}
    present = set[str]().union(*records)
    for field, all_names in layout.names.items():
        names = [name for name in all_names if name in present]
        if not names and field != "id":
            continue
        values: list[Any] = []
        id_converter = _record_string_id if ids == "string" else _record_integer_id
        convert = id_converter if field == "id" else _RECORD_CONVERTERS[COLUMN_TYPES[field]]
        for position, record in enumerate(records):
            found = map(record.get, names)
            value = next((each for each in found if each is not None), None)
            if value is not None:
                try:
                    value = convert(value)
                except ValueError as error:
                    problems.setdefault(position, (field, str(error)))
                    value = None
            elif field == "id":
                problems.setdefault(position, ("id", ID_MISSING))
            values.append(value)
        arrays[field] = _record_array(field, values, ids, problems)
    return finish_batch(
        layout, arrays, problems, ids, rows, raw=lambda position: row_json(records[position])
    )


def _record_array(field: str, values: list[Any], ids: IdKind, problems: Problems) -> pa.Array:
    wanted = COLUMN_TYPES.get(field, id_type(ids))
    if field != "id" and is_number(wanted):
        return pa.array(values, pa.float64())
    if wanted == TIME:
        return pa.array(values, pa.int64()).cast(TIME)
    if wanted == pa.binary():
        texts = [value if isinstance(value, str) else None for value in values]
        if texts.count(None) == len(texts):
            return pa.array(values, pa.binary())
        wkb = [value if isinstance(value, bytes) else None for value in values]
        return pc.coalesce(pa.array(wkb, pa.binary()), wkb_of_texts(texts, problems))
    return pa.array(values, wanted)


def _described(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _record_string_id(value: Any) -> str:
    if isinstance(value, str):
        return _record_text(value)
    if isinstance(value, int) and not isinstance(value, bool):
        raise ValueError(f"id {value} is an integer among strings; {MIXED_IDS}")
    raise ValueError(f"is {_described(value)}; expected an integer or a string")


def _record_integer_id(value: Any) -> int:
    if isinstance(value, str):
        raise ValueError(f"id {value[:80]!r} is a string among integers; {MIXED_IDS}")
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"is {_described(value)}; expected an integer or a string")
    if not INT64.min <= value <= INT64.max:
        raise ValueError(id_overflow(value))
    return value


def _record_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"is {_described(value)}; expected a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _record_boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"is {_described(value)}; expected true or false")
    return value


def _record_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"is {_described(value)}; expected a string")
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("is not valid UTF-8 (broken bytes or half a surrogate pair)") from None
    return value


def _record_time(value: Any) -> int | None:
    if not isinstance(value, str):
        raise ValueError(f"is {_described(value)}; {TIME_EXPECTED}")
    return us_of_text(value)


def _record_keywords(value: Any) -> list[str] | None:
    if isinstance(value, str):
        text = _record_text(value)
        return [keyword.strip() for keyword in text.split(",")] if text else None
    if not isinstance(value, list):
        raise ValueError(
            f"is {_described(value)}; expected a list of strings, or a string with commas between "
            f"keywords"
        )
    return [_record_text(keyword) for keyword in value]


def _record_geometry(value: Any) -> str | bytes:
    if isinstance(value, dict):
        return wkb_of_geojson(value) or json.dumps(value)
    if isinstance(value, str):
        return _record_text(value)
    raise ValueError(f"is {_described(value)}; expected a GeoJSON object, or WKT")


_RECORD_CONVERTERS: dict[pa.DataType, Callable[[Any], Any]] = {
    pa.string(): _record_text,
    pa.float64(): _record_number,
    pa.int64(): _record_number,  # made whole with those of columns
    pa.bool_(): _record_boolean,
    KEYWORDS: _record_keywords,
    TIME: _record_time,
    pa.binary(): _record_geometry,
}
