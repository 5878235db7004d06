"""The canonical batch of some rows of a file, and the first thing wrong with each bad one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from earshot.files.geometries import (
    floats_of,
    keep_place,
    nulls_of,
    settle_circles,
    settle_geometries,
)
from earshot.files.layout import Layout
from earshot.files.rejects import OnError, Problems, Reject, add_problems
from earshot.model.arrays import Int64s
from earshot.model.schemas import (
    COLUMN_TYPES,
    LACKS_PLACE,
    OPERATIONS,
    POINT_FIELDS,
    TIME,
    YEARS,
    IdKind,
    id_type,
    schema_of,
    unknown_years,
)

_WHOLE_LIMIT = 2.0**62  # no integer of a file comes near it, infinity is beyond


class FileBatch(NamedTuple):
    """Rows of a file in canonical columns, without those that were refused."""

    batch: pa.RecordBatch
    rows: Int64s  # row number in the file of each row of the batch, ascending
    rejects: list[Reject]
    source: str

    def with_rejects(self, rejects: Sequence[Reject], on_error: OnError) -> FileBatch:
        """Add rows that were refused before they came here; raise the first of all if so wanted."""
        every = sorted([*rejects, *self.rejects], key=lambda reject: reject.row)
        if every and on_error == "raise":
            raise every[0].error()
        return self._replace(rejects=every)


def only_reject(layout: Layout, ids: IdKind, reject: Reject) -> FileBatch:
    """Return no rows, and what was refused; raise it if so wanted."""
    nothing = pa.RecordBatch.from_pylist([], schema_of(layout.content, id_type(ids)))
    empty = FileBatch(nothing, np.empty(0, np.int64), [], reject.source)
    return empty.with_rejects([reject], layout.on_error)


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
            add_problems(problems, unknown_years(arrays[field]), field, lambda _: YEARS)
        elif COLUMN_TYPES.get(field) == pa.int64():
            arrays[field] = _whole(arrays[field], field, problems)
    if layout.content == "changes":
        _check_operations(arrays.get("op", pa.nulls(n, pa.string())), problems)
    if layout.content == "positions":
        for field in POINT_FIELDS:
            lacks = nulls_of(arrays[field]) if field in arrays else np.ones(n, bool)
            add_problems(problems, lacks, field, lambda _: LACKS_PLACE)
    if layout.content == "messages":
        if "geometry" in arrays:
            settle_geometries(arrays, problems, n, layout)
        if layout.place is not None:
            keep_place(arrays, n, layout.place)
    elif "geometry" in arrays and "radius" in arrays:
        settle_circles(arrays, problems, n)
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


def _check_operations(operations: pa.Array, problems: Problems) -> None:
    def reason(position: int) -> str:
        found = decoded(operations.slice(position, 1))[0]
        what = "is missing" if found is None else f"is {found[:80]!r}"
        return f"{what}; expected {', '.join(OPERATIONS)}"

    known = pc.is_in(operations, pa.array(OPERATIONS))
    add_problems(problems, ~known.to_numpy(zero_copy_only=False), "op", reason)


def _whole(numbers: pa.Array, field: str, problems: Problems) -> pa.Array:
    """Return numbers as integers, refusing those that are none."""
    values = floats_of(numbers, len(numbers))
    is_whole = (np.trunc(values) == values) & (np.abs(values) < _WHOLE_LIMIT)  # NaN is none
    wrong = ~nulls_of(numbers) & ~is_whole
    add_problems(problems, wrong, field, lambda at: f"is {values[at]}; expected an integer")
    return pc.if_else(pa.array(wrong), pa.scalar(None, pa.float64()), numbers).cast(pa.int64())


def decoded(array: pa.Array) -> list[Any]:
    """Return the texts as Python strings; broken UTF-8 is spelt with backslashes."""
    binary = array.cast(pa.string()).view(pa.binary())
    return [
        None if value is None else value.decode("utf-8", "backslashreplace")
        for value in binary.to_pylist()
    ]
