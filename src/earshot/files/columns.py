"""From the columns or records of a file to the canonical columns.

Two ways lead here. *Columns* are Arrow arrays as Parquet, CSV and well-formed NDJSON give them;
they are converted as a whole, and only an array with a bad value is walked value by value.
*Records* are Python dictionaries, as GeoJSON and the NDJSON blocks with something unusual in them
give them. Both note the first thing wrong with a row and let the rest of the batch pass.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import shapely

from earshot.errors import InvalidFile, InvalidInput, InvalidParameter
from earshot.files.rejects import OnError, Reject, row_json, row_values
from earshot.model.arrays import Int64s
from earshot.model.regions import Point, Rectangle, parse_geometry
from earshot.model.schemas import (
    BOX_FIELDS,
    CIRCLE_FIELDS,
    COLUMN_TYPES,
    KEYWORDS,
    OPERATIONS,
    POINT_FIELDS,
    TIME,
    TYPES_IN_WORDS,
    YEARS,
    Content,
    IdKind,
    fields_of,
    id_kind,
    id_type,
    is_number,
    is_text,
    schema_of,
    unknown_years,
)

Problems = dict[int, tuple[str, str]]
"""First thing wrong with each bad row of a batch: position -> (field, reason)."""

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_WHOLE_LIMIT = 2.0**62  # no integer of a file comes near it, infinity is beyond
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
TIME_EXPECTED = "expected ISO 8601 with a zone, such as 2026-05-01T12:00:00Z"
MIXED_IDS = "ids must be all integers or all strings"


class FileBatch(NamedTuple):
    """Rows of a file in canonical columns, without those that were refused."""

    batch: pa.RecordBatch
    rows: Int64s  # row number in the file of each row of the batch, ascending
    rejects: list[Reject]
    source: str


class Layout(NamedTuple):
    """What a file is read as, and under which names its columns may appear."""

    content: Content
    names: dict[str, tuple[str, ...]]  # canonical field -> names in the file, best first
    source: str
    on_error: OnError


# ---- which column is which ----------------------------------------------------------------------


def make_layout(
    content: Content, columns: Mapping[str, str] | None, source: str, on_error: OnError
) -> Layout:
    """Return the layout for a file whose columns may be renamed by ``{canonical: in the file}``."""
    columns = columns or {}
    names = {
        field.name: (columns[field.name],)
        if field.name in columns
        else (field.name, *field.aliases)
        for field in fields_of(content, in_files=True)
    }
    unknown = sorted(set(columns) - set(names))
    if unknown:
        raise InvalidParameter(
            f"columns maps unknown field '{unknown[0]}'; the fields of {content} are "
            f"{', '.join(names)}"
        )
    return Layout(content, names, source, on_error)


def choose_columns(layout: Layout, present: Collection[str]) -> dict[str, str]:
    """Return the column of the file that holds each canonical field, of those there are."""
    chosen = {}
    for field, names in layout.names.items():
        found = [name for name in names if name in present]
        if not found:
            continue
        if found[0] != names[0] and len(found) > 1:
            raise InvalidFile(
                f"{layout.source}: columns {_quoted(found)} could each be '{field}'; choose one "
                f"with columns={{'{field}': '{found[0]}'}}"
            )
        chosen[field] = found[0]
    check_columns(layout, chosen, present)
    return chosen


def check_columns(layout: Layout, chosen: Collection[str], present: Collection[str]) -> None:
    """Raise InvalidFile when the fields found cannot make up a subscription or message."""

    def lacking(expected: str) -> InvalidFile:
        return InvalidFile(
            f"{layout.source}: no {expected}; its columns are {_quoted(sorted(present))}, "
            f"expected for {layout.content}: {', '.join(layout.names)}; rename with "
            f"columns={{field: column}}"
        )

    for field in ("id", "op"):
        if field in layout.names and field not in chosen:
            raise lacking(f"column '{layout.names[field][0]}'")
    groups: list[tuple[str, ...]] = [BOX_FIELDS, POINT_FIELDS]
    if layout.content != "messages" and not ("radius" in chosen and "geometry" in chosen):
        groups[1] = CIRCLE_FIELDS
    complete = "geometry" in chosen
    for group in groups:
        missing = [field for field in group if field not in chosen]
        if not missing:
            complete = True
        elif len(missing) < len(group) and not (
            layout.content != "messages" and group == CIRCLE_FIELDS and missing == ["radius"]
        ):
            raise lacking(f"column '{missing[0]}' beside '{_first_of(group, chosen)}'")
    if layout.content == "messages":
        if not {"text", "keywords"} & set(chosen):
            raise lacking("column 'text' or 'keywords'")
        if not complete:
            raise lacking(
                "place (columns 'x' and 'y', or 'min_x', 'min_y', 'max_x', 'max_y', or 'geometry')"
            )
    elif (
        layout.content == "subscriptions"
        and not complete
        and not {"keywords", "expression"} & set(chosen)
    ):
        raise lacking("column 'keywords' or 'expression' and no region column")


def _first_of(group: Sequence[str], chosen: Collection[str]) -> str:
    return next(field for field in group if field in chosen)


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


def check_column_type(layout: Layout, field: str, column: str, data_type: pa.DataType) -> None:
    """Raise InvalidFile when a typed column cannot hold the field."""
    value_type = data_type.value_type if pa.types.is_dictionary(data_type) else data_type
    wanted = COLUMN_TYPES.get(field)
    if pa.types.is_null(value_type):
        return
    if wanted is None:
        good = id_kind(data_type) is not None
    elif is_number(wanted):
        good = is_number(value_type)
    elif wanted == TIME:
        good = is_text(value_type) or (
            pa.types.is_timestamp(value_type) and value_type.tz is not None
        )
    elif wanted == KEYWORDS:
        items = value_type.value_type if _is_list(value_type) else value_type
        good = is_text(items) or (pa.types.is_dictionary(items) and is_text(items.value_type))
    else:
        good = is_text(value_type) or (wanted == pa.binary() and _is_binary(value_type))
    if not good:
        raise InvalidFile(
            f"{layout.source}: column '{column}' is of type {data_type}; "
            f"expected {TYPES_IN_WORDS[wanted]}"
        )


def _is_list(data_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(data_type)
        or pa.types.is_large_list(data_type)
        or pa.types.is_fixed_size_list(data_type)
    )


def _is_binary(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type))


# ---- columns ------------------------------------------------------------------------------------


def batch_of_columns(
    layout: Layout, columns: Mapping[str, pa.Array], ids: IdKind, rows: Int64s
) -> FileBatch:
    """Convert the columns of a file to the canonical batch.

    Args:
        layout: What the file is read as.
        columns: Arrays by canonical field; text is parsed where the field is not text.
        ids: Kind of ids of the file.
        rows: Row number of each row.
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
        elif wanted == pa.binary():
            arrays[field] = _geometry_column(array, problems)
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


def _id_column(array: pa.Array, ids: IdKind, problems: Problems) -> pa.Array:
    for position in np.flatnonzero(_nulls(array)):
        problems.setdefault(int(position), ("id", "is missing; every row needs an id"))
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), id_type(ids))
    if ids == "string":
        return array.cast(pa.string())
    if not is_text(array.type):
        if pa.types.is_uint64(array.type):
            array = _without(
                array,
                pc.greater(array, pa.scalar(_INT64_MAX, pa.uint64())),
                "id",
                _id_overflow,
                problems,
            )
        return array.cast(pa.int64())
    # Arrow would read 0x10 as 16 and 007 as 7; an id that does not print as it was is none.
    odd = pc.match_substring_regex(array.view(pa.binary()), r"^(-?0.|-0$|[^-0-9]|-?.*[^-0-9])")
    if not pc.any(odd).as_py():
        try:
            return array.cast(pa.int64())
        except pa.ArrowInvalid:
            pass
    return _convert(array, pa.int64(), "id", _integer_id_of_text, problems)


def _id_overflow(value: Any) -> str:
    return f"id {value} is outside the range of 64-bit integers; give ids as strings"


def _integer_id_of_text(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = None
    if value is None or str(value) != text:
        raise ValueError(f"id {text[:80]!r} is a string among integers; {MIXED_IDS}")
    if not _INT64_MIN <= value <= _INT64_MAX:
        raise ValueError(_id_overflow(value))
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


def _time_column(array: pa.Array, field: str, problems: Problems) -> pa.Array:
    if not is_text(array.type):
        return array.cast(TIME, safe=False)  # sub-microsecond digits are below our resolution
    try:
        return array.cast(TIME)
    except pa.ArrowInvalid:
        return _convert(array, pa.int64(), field, time_us, problems).cast(TIME)


def time_us(text: str) -> int | None:
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
    return (value - _EPOCH) // _MICROSECOND


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


def _geometry_column(array: pa.Array, problems: Problems) -> pa.Array:
    """Return WKB; text is WKT, or GeoJSON where it begins with a brace."""
    if pa.types.is_null(array.type):
        return array.cast(pa.binary())
    if not is_text(array.type):
        return array.cast(pa.binary())
    texts = _decoded(array)
    shapes = np.full(len(texts), None, object)
    is_json = np.array([text is not None and text.lstrip()[:1] == "{" for text in texts], bool)
    given = np.array([text is not None and text.strip() != "" for text in texts], bool)
    values = np.array(texts, object)
    if is_json.any():
        shapes[is_json] = shapely.from_geojson(values[is_json], on_invalid="ignore")
    is_wkt = given & ~is_json
    if is_wkt.any():
        shapes[is_wkt] = shapely.from_wkt(values[is_wkt], on_invalid="ignore")
    for position in np.flatnonzero(given & shapely.is_missing(shapes)):
        reason = _geometry_reason(texts[position], bool(is_json[position]))
        problems.setdefault(int(position), ("geometry", reason))
    return pa.array(shapely.to_wkb(shapes), pa.binary())


def _geometry_reason(text: str, is_json: bool) -> str:
    try:
        (shapely.from_geojson if is_json else shapely.from_wkt)(text)
    except (shapely.errors.GEOSException, ValueError) as error:
        detail = str(error).strip()
    else:
        detail = "cannot be read"
    kind = "GeoJSON" if is_json else "WKT"
    return f"{text[:80]!r} is not a geometry in {kind}: {detail}"


# ---- records ------------------------------------------------------------------------------------


def batch_of_records(
    layout: Layout, records: Sequence[Mapping[str, Any]], ids: IdKind, rows: Int64s
) -> FileBatch:
    """Convert records to the canonical batch; the arguments are as for columns."""
    problems: Problems = {}
    arrays = {}
    present = set[str]().union(*records)
    for field, all_names in layout.names.items():
        names = [name for name in all_names if name in present]
        if not names and field != "id":
            continue
        values: list[Any] = []
        convert = _record_converter(field, ids)
        for position, record in enumerate(records):
            value = None
            for name in names:
                value = record.get(name)
                if value is not None:
                    break
            if value is not None:
                try:
                    value = convert(value)
                except ValueError as error:
                    problems.setdefault(position, (field, str(error)))
                    value = None
            elif field == "id":
                problems.setdefault(position, ("id", "is missing; every row needs an id"))
            values.append(value)
        arrays[field] = _record_array(field, values, ids, problems)

    def raw(position: int) -> str:
        return row_json(records[position])

    return finish_batch(layout, arrays, problems, ids, rows, raw=raw)


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
        of_texts = _geometry_column(pa.array(texts, pa.string()), problems)
        return pc.coalesce(pa.array(wkb, pa.binary()), of_texts)
    return pa.array(values, wanted)


def _record_converter(field: str, ids: IdKind) -> Callable[[Any], Any]:
    wanted = COLUMN_TYPES.get(field)
    if wanted is None:
        return _record_string_id if ids == "string" else _record_integer_id
    return _RECORD_CONVERTERS[wanted]


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
    if not _INT64_MIN <= value <= _INT64_MAX:
        raise ValueError(_id_overflow(value))
    return value


def _record_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"is {_described(value)}; expected a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


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
    return time_us(value)


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
        return _wkb_of_geojson(value) or json.dumps(value)
    if isinstance(value, str):
        return _record_text(value)
    raise ValueError(f"is {_described(value)}; expected a GeoJSON object, or WKT")


_RECORD_CONVERTERS: dict[pa.DataType, Callable[[Any], Any]] = {
    pa.string(): _record_text,
    pa.float64(): _record_number,
    pa.int64(): _record_number,  # made whole with those of columns
    KEYWORDS: _record_keywords,
    TIME: _record_time,
    pa.binary(): _record_geometry,
}


def _wkb_of_geojson(value: dict[str, Any]) -> bytes | None:
    """Return the WKB of a plain point or polygon; None leaves all else to the full reader.

    Half of the time of reading GeoJSON went into writing geometries as text again for that one.
    """
    kind, coordinates = value.get("type"), value.get("coordinates")
    try:
        if kind == "Point":
            x, y = coordinates  # type: ignore[misc]  # this is the check
            return _POINT_HEAD + _packed((x, y))
        if kind == "Polygon":
            parts = [_POLYGON_HEAD, struct.pack("<I", len(coordinates))]  # type: ignore[arg-type]
            for ring in coordinates:  # type: ignore[union-attr]
                if len(ring) < 4 or ring[0] != ring[-1]:
                    return None
                parts.append(struct.pack("<I", len(ring)))
                parts.append(_packed([side for x, y in ring for side in (x, y)]))
            return b"".join(parts) if len(parts) > 2 else None
    except (TypeError, ValueError, struct.error):
        pass
    return None


def _packed(values: Sequence[Any]) -> bytes:
    if not _NUMBER_TYPES.issuperset(map(type, values)):
        raise TypeError
    return struct.pack(f"<{len(values)}d", *values)


_POINT_HEAD = struct.pack("<BI", 1, 1)
_POLYGON_HEAD = struct.pack("<BI", 1, 3)
_NUMBER_TYPES = frozenset((int, float))


# ---- both ---------------------------------------------------------------------------------------


def finish_batch(
    layout: Layout,
    arrays: dict[str, pa.Array],
    problems: Problems,
    ids: IdKind,
    rows: Int64s,
    *,
    raw: Callable[[int], str],
) -> FileBatch:
    """Settle geometries, set refused rows aside and put the columns in canonical order."""
    n = len(rows)
    for field in sorted(arrays):
        if COLUMN_TYPES.get(field) == TIME:
            _check_times(arrays[field], field, problems)
        elif COLUMN_TYPES.get(field) == pa.int64():
            arrays[field] = _whole(arrays[field], field, problems)
    if layout.content == "changes":
        _check_operations(arrays.get("op"), problems, n)
    if "geometry" in arrays and layout.content == "messages":
        _place_of_geometry(arrays, problems, n)
    elif "geometry" in arrays and "radius" in arrays:
        _circle_of_geometry(arrays, problems, n)
    schema = schema_of(layout.content, id_type(ids))
    columns = [
        arrays[field.name] if field.name in arrays else pa.nulls(n, field.type) for field in schema
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    if not problems:
        return FileBatch(batch, rows, [], layout.source)
    rejects = [
        Reject(layout.source, int(rows[position]), field, reason, raw(position))
        for position, (field, reason) in sorted(problems.items())
    ]
    if layout.on_error == "raise":
        raise rejects[0].error()
    keep = np.ones(n, bool)
    keep[list(problems)] = False
    return FileBatch(batch.filter(pa.array(keep)), rows[keep], rejects, layout.source)


def _check_operations(operations: pa.Array | None, problems: Problems, n: int) -> None:
    if operations is None:
        operations = pa.nulls(n, pa.string())
    known = pc.is_in(operations, pa.array(OPERATIONS))
    for position in np.flatnonzero(~known.to_numpy(zero_copy_only=False)).tolist():
        found = _decoded(operations.slice(position, 1))[0]
        what = "is missing" if found is None else f"is {found[:80]!r}"
        problems.setdefault(position, ("op", f"{what}; expected {', '.join(OPERATIONS)}"))


def _check_times(times: pa.Array, field: str, problems: Problems) -> None:
    for position in np.flatnonzero(unknown_years(times)).tolist():
        problems.setdefault(position, (field, YEARS))


def _whole(numbers: pa.Array, field: str, problems: Problems) -> pa.Array:
    """Return numbers as integers, refusing those that are none."""
    values = _floats(numbers, len(numbers))
    is_whole = (np.trunc(values) == values) & (np.abs(values) < _WHOLE_LIMIT)  # NaN is none
    wrong = ~_nulls(numbers) & ~is_whole
    for position in np.flatnonzero(wrong).tolist():
        problems.setdefault(position, (field, f"is {values[position]}; expected an integer"))
    return pc.if_else(pa.array(wrong), pa.scalar(None, pa.float64()), numbers).cast(pa.int64())


def _place_of_geometry(arrays: dict[str, pa.Array], problems: Problems, n: int) -> None:
    """Turn the geometries of messages into points and boxes."""
    geometry = arrays.pop("geometry")
    given = ~_nulls(geometry)
    if not given.any():
        return
    shapes = shapely.from_wkb(geometry.to_numpy(zero_copy_only=False), on_invalid="ignore")
    columns = {field: _floats(arrays.get(field), n) for field in (*POINT_FIELDS, *BOX_FIELDS)}
    placed = np.zeros(n, bool)
    for column in columns.values():
        placed |= ~np.isnan(column)
    points = given & (shapely.get_type_id(shapes) == 0) & ~shapely.is_empty(shapes) & ~placed
    columns["x"][points] = shapely.get_x(shapes[points])
    columns["y"][points] = shapely.get_y(shapes[points])
    for position in np.flatnonzero(given & ~points):
        if placed[position]:
            reason = "is given beside another place; give one"
            problems.setdefault(int(position), ("geometry", reason))
            continue
        try:
            place = parse_geometry(geometry[int(position)].as_py())
        except InvalidInput as error:
            problems.setdefault(int(position), ("geometry", str(error)))
            continue
        if isinstance(place, Point):
            columns["x"][position], columns["y"][position] = place.x, place.y
        elif isinstance(place, Rectangle):
            for field in BOX_FIELDS:
                columns[field][position] = getattr(place, field)
        else:
            reason = "a message's place is a point or an axis-parallel rectangle, not a polygon"
            problems.setdefault(int(position), ("geometry", reason))
    # A field that was given as NaN stays NaN for the encoder to refuse; only nulls were filled.
    for field, column in columns.items():
        was_null = _nulls(arrays[field]) if field in arrays else np.ones(n, bool)
        arrays[field] = pa.array(column, mask=was_null & np.isnan(column))


def _circle_of_geometry(arrays: dict[str, pa.Array], problems: Problems, n: int) -> None:
    """A point geometry with a radius is a circle."""
    geometry = arrays["geometry"]
    given = ~_nulls(geometry) & ~_nulls(arrays["radius"])
    if not given.any():
        return
    values = geometry.to_numpy(zero_copy_only=False)
    shapes = np.full(n, None, object)
    shapes[given] = shapely.from_wkb(values[given], on_invalid="ignore")
    points = given & (shapely.get_type_id(shapes) == 0) & ~shapely.is_empty(shapes)
    for field in POINT_FIELDS:
        points &= _nulls(arrays[field]) if field in arrays else True
    for field, get in (("x", shapely.get_x), ("y", shapely.get_y)):
        column = _floats(arrays.get(field), n)
        column[points] = get(shapes[points])
        was_null = _nulls(arrays[field]) if field in arrays else np.ones(n, bool)
        arrays[field] = pa.array(column, mask=was_null & ~points)
    arrays["geometry"] = pc.if_else(pa.array(points), pa.scalar(None, pa.binary()), geometry)


def _convert(
    array: pa.Array,
    data_type: pa.DataType,
    field: str,
    convert: Callable[[str], Any],
    problems: Problems,
) -> pa.Array:
    """Convert text value by value, noting those that cannot be."""
    values: list[Any] = []
    for position, text in enumerate(_decoded(array)):
        try:
            values.append(None if text is None else convert(text))
        except ValueError as error:
            problems.setdefault(position, (field, str(error)))
            values.append(None)
    return pa.array(values, data_type)


def _without(
    array: pa.Array, bad: pa.Array, field: str, reason: Callable[[Any], str], problems: Problems
) -> pa.Array:
    for position in np.flatnonzero(pc.fill_null(bad, False).to_numpy(zero_copy_only=False)):
        value = array[int(position)].as_py()
        problems.setdefault(int(position), (field, reason(value)))
    return pc.if_else(bad, pa.scalar(None, array.type), array)


def _decoded(array: pa.Array) -> list[Any]:
    """Return the texts as Python strings; broken UTF-8 is spelt with backslashes."""
    binary = array.cast(pa.string()).view(pa.binary())
    return [
        None if value is None else value.decode("utf-8", "backslashreplace")
        for value in binary.to_pylist()
    ]


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_]:
    if array.null_count == 0:
        return np.zeros(len(array), bool)
    nulls: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _floats(array: pa.Array | None, n: int) -> npt.NDArray[np.float64]:
    if array is None:
        return np.full(n, np.nan)
    return np.array(array.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)
