"""NDJSON: one JSON object (or GeoJSON feature) per line.

The file is cut into blocks of whole lines. Arrow reads a block that looks like the first one; a
block with anything unusual in it (another type, a broken line, a geometry object) is read line by
line, so that one bad line costs only itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import shapely
from pyarrow import json as arrow_json

from earshot.errors import InvalidFile, InvalidInput
from earshot.files.batches import FileBatch, only_reject
from earshot.files.columns import batch_of_columns
from earshot.files.formats import is_stream, iso_times, open_bytes
from earshot.files.geometries import shapes_of
from earshot.files.layout import Layout, check_columns, present_fields
from earshot.files.records import batch_of_records
from earshot.files.rejects import Reject, shortened
from earshot.model.arrays import Int64s
from earshot.model.schemas import COLUMN_TYPES, KEYWORDS, IdKind, id_type, is_number

BLOCK_BYTES = 1 << 23
MAX_LINE_BYTES = 1 << 26
"""A longer line is refused without being read."""

# Arrow reads such pieces of a block in parallel; a longer line sends its block the slow way.
_ARROW_BLOCK_BYTES = 1 << 20
_N_PEEKED = 100


def read_ndjson(path: str, layout: Layout, ids: IdKind | None) -> Iterator[FileBatch]:
    """Yield the rows of an NDJSON file; see :func:`earshot.files.reading.read_rows`."""
    next_row = 0
    shape: _Shape | None = None
    is_live = is_stream(path)  # the first lines may be few, and there may be none
    for block, is_too_long in _blocks(path, layout.source):
        if is_too_long:
            reason = f"the line is longer than {MAX_LINE_BYTES} bytes"
            kind = ids or (shape.ids if shape else "integer")
            yield only_reject(
                layout, kind, Reject(layout.source, next_row, "", reason, _raw(block))
            )
            next_row += 1
            continue
        if shape is None or not shape.is_sure:
            shape = _peek(block, layout, ids, is_lenient=is_live and layout.on_error == "reject")
        columns = shape.columns_of(block)
        if columns is not None:
            n = len(columns["id"])
            rows = np.arange(next_row, next_row + n, dtype=np.int64)
            yield batch_of_columns(layout, columns, shape.ids, rows)
        else:
            lines = [line for line in block.split(b"\n") if line.strip()]
            n = len(lines)
            yield _batch_of_texts(enumerate(lines, next_row), "line", layout, shape.ids)
        next_row += n
    if shape is None and not is_live:
        raise InvalidFile(f"{layout.source} is empty; expected one JSON object per line")


def batch_of_values(values: pa.Array, layout: Layout, ids: IdKind, rows: Int64s) -> FileBatch:
    """Convert JSON objects that come one in each value, as from a message queue.

    Values are texts or bytes, null where the queue had none. Nothing wrong with them raises,
    whatever the layout says.
    """
    texts = values.cast(pa.binary())
    block = pc.binary_join(
        pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts), b"\n"
    )[0]
    layout = layout._replace(on_error="reject")
    # A null among them makes the whole null. One with several lines, or none, is not one line.
    is_lines = len(texts) > 0 and block.is_valid
    if is_lines:
        lengths = pc.min(pc.binary_length(texts)).as_py()
        is_lines = lengths > 0 and not pc.any(pc.match_substring(texts, "\n")).as_py()
    if is_lines:
        try:
            columns = _peek(block.as_py(), layout, ids).columns_of(block.as_py())
        except InvalidFile:  # the first ones lack something: each is judged by itself
            columns = None
        if columns is not None and len(columns["id"]) == len(texts):
            return batch_of_columns(layout, columns, ids, rows)
    numbered = zip(rows.tolist(), texts.to_pylist(), strict=True)
    return _batch_of_texts(numbered, "value", layout, ids)


def flatten_feature(record: dict[str, Any]) -> dict[str, Any]:
    """Return a GeoJSON feature as one flat record, any other record as it is."""
    if record.get("type") != "Feature":
        return record
    properties = record.get("properties")
    flat = dict(properties) if isinstance(properties, dict) else {}
    if record.get("id") is not None:
        flat["id"] = record["id"]
    if record.get("geometry") is not None:
        flat["geometry"] = record["geometry"]
    return flat


def _blocks(path: str, name: str) -> Iterator[tuple[bytes, bool]]:
    """Yield blocks of whole lines; a line that is too long comes alone, cut short and marked."""
    with open_bytes(path) as stream:
        pending: list[bytes] = []
        n_pending = 0
        is_skipping = False
        is_first = True
        while True:
            try:
                data: bytes = stream.read(BLOCK_BYTES)
            except (OSError, pa.ArrowException) as error:
                raise InvalidFile(f"{name} cannot be read: {error}") from error
            if not data:
                break
            if is_first:
                data, is_first = data.removeprefix(b"\xef\xbb\xbf"), False
            cut = data.rfind(b"\n") + 1
            if is_skipping:
                end = data.find(b"\n") + 1
                if end == 0:
                    continue
                is_skipping = False
                data, cut = data[end:], cut - end
            if cut == 0:
                pending.append(data)
                n_pending += len(data)
                if n_pending > MAX_LINE_BYTES:
                    yield pending[0][:4096], True
                    pending, n_pending, is_skipping = [], 0, True
                continue
            block = b"".join([*pending, data[:cut]])
            if not block.isspace():
                yield block, False
            pending, n_pending = [data[cut:]], len(data) - cut
        rest = b"".join(pending)
        if rest.strip():
            yield rest, False


class _Shape(NamedTuple):
    """What the first lines look like."""

    ids: IdKind
    schema: pa.Schema | None  # to hand to Arrow; None: to be read line by line
    layout: Layout
    is_sure: bool = True  # else the next lines are looked at as well

    def columns_of(self, block: bytes) -> dict[str, pa.Array] | None:
        """Return the block's columns, None when it has to be read line by line."""
        if self.schema is None:
            return None
        try:
            table = arrow_json.read_json(
                pa.BufferReader(block),
                read_options=arrow_json.ReadOptions(block_size=_ARROW_BLOCK_BYTES),
                parse_options=arrow_json.ParseOptions(
                    explicit_schema=self.schema, unexpected_field_behavior="ignore"
                ),
            )
        except (OSError, pa.ArrowException):
            return None
        n_lines = block.count(b"\n") + (not block.endswith(b"\n"))
        if len(table) != n_lines:  # blank lines, or several objects on one
            return None
        columns = {}
        for field, names in self.layout.names.items():
            found = [
                column for column in map(table.column, names) if column.null_count < len(column)
            ]
            if found:
                column = found[0] if len(found) == 1 else pc.coalesce(*found)
                columns[field] = column.combine_chunks()
            elif field == "id":
                columns[field] = table.column(names[0]).combine_chunks()
        return columns


def _peek(block: bytes, layout: Layout, ids: IdKind | None, *, is_lenient: bool = False) -> _Shape:
    """Decide from the first lines what the file holds; lenient, lines are judged one by one."""
    records = []
    is_feature = False
    for line in block.split(b"\n", _N_PEEKED)[:_N_PEEKED]:
        record = _record_of(line)
        if isinstance(record, dict):
            is_feature |= record.get("type") == "Feature"
            records.append(flatten_feature(record))
    found = ids or kind_of_ids(records, layout)
    kind: IdKind = found or "integer"
    present = {key for record in records for key in record}
    try:
        if not records and layout.on_error == "reject":
            raise InvalidFile(
                f"{layout.source}: none of the first lines is a JSON object; expected one per line"
            )
        if records:
            check_columns(layout, present_fields(layout, present), present)
    except InvalidFile:
        if not is_lenient:
            raise
        return _Shape(kind, None, layout, is_sure=False)
    samples = {
        field: next(
            (record[n] for record in records for n in names if record.get(n) is not None), 0
        )
        for field, names in layout.names.items()
    }
    if not records or is_feature or isinstance(samples.get("geometry"), dict):
        return _Shape(kind, None, layout, found is not None)
    # Times and geometries come as texts, integers as numbers: converting the column checks them.
    numbers = [name for name, each in COLUMN_TYPES.items() if is_number(each)]
    booleans = [name for name, each in COLUMN_TYPES.items() if each == pa.bool_()]
    types = {"id": id_type(kind), **dict.fromkeys(numbers, pa.float64())}
    types |= dict.fromkeys(booleans, pa.bool_())
    if not isinstance(samples.get("keywords"), str):
        types["keywords"] = KEYWORDS
    schema = pa.schema(
        [
            (name, types.get(field, pa.string()))
            for field, names in layout.names.items()
            for name in names
        ]
    )
    is_readable = len(set(schema.names)) == len(schema)
    return _Shape(kind, schema if is_readable else None, layout, found is not None)


def kind_of_ids(records: Iterable[dict[str, Any]], layout: Layout) -> IdKind | None:
    """Return the kind that the first id has, None where there is no id."""
    ids = (record.get(name) for record in records for name in layout.names["id"])
    first = next((each for each in ids if each is not None), None)
    if first is None:
        return None
    return "string" if isinstance(first, str) else "integer"


def _record_of(line: bytes | None) -> Any:
    """Return what a text says, or what is wrong with it."""
    if line is None:
        return ValueError("there is no value")
    try:
        return json.loads(line.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        return error


def kind_of_json(value: Any) -> str:
    """Return what JSON calls a value that is no object, with its article."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case list():
            return "an array"
    return "a number"


def _batch_of_texts(
    numbered: Iterable[tuple[int, bytes | None]], noun: str, layout: Layout, ids: IdKind
) -> FileBatch:
    """Convert texts with their row numbers one by one; those that are no objects are refused."""
    records: dict[int, dict[str, Any]] = {}
    rejects = []
    for row, text in numbered:
        record = _record_of(text)
        if isinstance(record, dict):
            records[row] = flatten_feature(record)
            continue
        reason = f"the {noun} is {kind_of_json(record)}; expected an object"
        if isinstance(record, Exception):
            reason = f"the {noun} is not valid JSON: {record}"
        rejects.append(Reject(layout.source, row, "", reason, _raw(text or b"")))
    rows = np.array(list(records), np.int64)
    result = batch_of_records(layout, list(records.values()), ids, rows)
    return result.with_rejects(rejects, layout.on_error)


def _raw(text: bytes) -> str:
    return shortened(text.decode("utf-8", "backslashreplace"))


class NdjsonSink:
    """Writes tables to a file."""

    def __init__(self, target: Any, schema: pa.Schema, compression: str | None) -> None:
        self._stream = pa.output_stream(target, compression=compression)

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        for batch in table.combine_chunks().to_batches(max_chunksize=1 << 16):
            lines = pc.binary_join_element_wise(json_objects(json_fields(batch)), "\n", "")
            self._stream.write(lines.buffers()[2])

    def close(self) -> None:
        """Complete the file."""
        self._stream.close()


def json_fields(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns as texts of JSON values."""
    return {
        name: _json_values(column, name)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }


def json_objects(fields: dict[str, pa.Array]) -> pa.Array:
    """Return JSON objects of columns of JSON values; nulls are left out."""
    if not any(values.null_count for values in fields.values()):
        pieces: list[Any] = []
        for name, values in fields.items():
            pieces += [f"{',' if pieces else '{'}{json.dumps(name)}:", values]
        return pc.binary_join_element_wise(*pieces, "}", "")
    members = [
        pc.binary_join_element_wise(f"{json.dumps(name)}:", values, "")
        for name, values in fields.items()
    ]
    inner = pc.binary_join_element_wise(*members, ",", null_handling="skip")
    return pc.binary_join_element_wise("{", inner, "}", "")


def _json_values(array: pa.Array, name: str) -> pa.Array:
    """Return each value as JSON text."""
    data_type = array.type
    if pa.types.is_dictionary(data_type):
        return _json_values(array.dictionary, name).take(array.indices)
    if pa.types.is_integer(data_type):
        return array.cast(pa.string())
    if pa.types.is_floating(data_type):
        if not pc.all(pc.is_finite(array), min_count=0).as_py():
            raise InvalidInput(f"column '{name}' holds NaN or infinity, which JSON cannot express")
        return array.cast(pa.string())
    if pa.types.is_timestamp(data_type):
        return _quoted(iso_times(array))
    if pa.types.is_binary(data_type):
        return pa.array(shapely.to_geojson(shapes_of(array)), pa.string())
    if pa.types.is_list(data_type):
        # A slice of a longer array: Arrow wants its offsets to begin at 0.
        offsets = array.offsets.to_numpy()
        values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
        lists = pa.ListArray.from_arrays(
            pa.array(offsets - offsets[0]), _json_values(values, name), mask=array.is_null()
        )
        return pc.binary_join_element_wise("[", pc.binary_join(lists, ","), "]", "")
    return _quoted(array.cast(pa.string()))


def _quoted(array: pa.Array) -> pa.Array:
    if _has_special(array):
        texts = array.to_pylist()
        quoted = (None if text is None else json.dumps(text, ensure_ascii=False) for text in texts)
        return pa.array(quoted, pa.string())
    return pc.binary_join_element_wise('"', array, '"', "")


def _has_special(texts: pa.Array) -> bool:
    """Whether a text has characters that JSON wants escaped.

    All bytes are looked at together: a regular expression takes ten times as long.
    """
    _, ends, data = texts.buffers()
    if not len(texts) or data is None:
        return False
    first, last = np.frombuffer(ends, np.int32)[[texts.offset, texts.offset + len(texts)]]
    found = np.frombuffer(data, np.uint8)[first:last]
    return bool(((found < 0x20) | (found == ord('"')) | (found == ord("\\"))).any())
