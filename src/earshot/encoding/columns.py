"""The columns of a batch, what is wrong with its rows, and the checks that all batches share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from earshot.errors import InvalidInput, InvalidRow, described
from earshot.model.arrays import Float64s, Int64s
from earshot.model.regions import Problem
from earshot.model.schemas import (
    COLUMN_TYPES,
    TIME,
    YEARS,
    id_kind,
    id_type,
    is_number,
    is_text,
    unknown_years,
)
from earshot.text import Analyzer, invalid_utf8

NEVER_US = int(np.iinfo(np.int64).max)
"""Expiry of a subscription that has none."""
NO_TIME_US = int(np.iinfo(np.int64).min)
"""Time of a message that has none."""

NOT_UTF8 = "is not valid UTF-8; CSV in another encoding is read with --encoding (encoding=)"

Bools = npt.NDArray[np.bool_]


class Columns:
    """The columns of a batch by name, and what is wrong with its rows."""

    def __init__(self, batch: pa.RecordBatch | pa.Table) -> None:
        if not isinstance(batch, pa.RecordBatch | pa.Table):
            raise InvalidInput(
                f"batch is {described(batch)}; expected a table of Arrow, as pa.table({{...}}) or "
                f"pa.Table.from_pylist([...]) makes one"
            )
        self.n: int = batch.num_rows
        self.problems = Problems(self.n)
        self._arrays: dict[str, pa.Array] = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name in COLUMN_TYPES or name == "id":
                array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
                self._arrays[name] = _canonical(name, array)
        if "id" not in self._arrays:
            raise InvalidInput(
                f"no column 'id' among {', '.join(batch.schema.names) or 'no columns'}"
            )
        self.ids = self._arrays["id"]

    def get(self, name: str) -> pa.Array | None:
        """Return a column, None when it is absent or all null."""
        array = self._arrays.get(name)
        return None if array is None or array.null_count == len(array) else array

    def floats(self, name: str) -> tuple[Float64s, Bools] | None:
        """Return the values of a column and where they are not null."""
        array = self.get(name)
        if array is None:
            return None
        return array.to_numpy(zero_copy_only=False), is_given(array)

    def times(self, name: str, default: int) -> Int64s:
        """Return the instants of a column, in microseconds since 1970."""
        array = self.get(name)
        if array is None:
            return np.full(self.n, default, np.int64)
        numbers = array.view(pa.int64()).fill_null(default)
        return np.array(numbers.to_numpy(zero_copy_only=False), np.int64)


def _canonical(name: str, array: pa.Array) -> pa.Array:
    """Return the column in its canonical type; wider and narrower ones of its kind are cast."""
    found = array.type
    expected = COLUMN_TYPES.get(name)
    if expected is None:  # ids have one of two types
        kind = "integer" if pa.types.is_null(found) else id_kind(found)
        if kind is None:
            raise InvalidInput(f"column 'id' is of type {found}; expected int64 or string")
        expected = id_type(kind)
    if found == expected:
        return array
    # Arrow would read numbers out of strings, and times without a zone as UTC.
    is_same_kind = is_text(found) == is_text(expected) or pa.types.is_dictionary(found)
    if name == "keywords" and not pa.types.is_null(found):
        is_same_kind = _is_list(found) and is_text(found.value_type)
    if expected == TIME and not pa.types.is_null(found):
        is_same_kind = pa.types.is_timestamp(found) and found.tz is not None
    if expected in (pa.int64(), pa.float64()) and name != "id":
        is_same_kind = is_number(found)  # Arrow would make numbers of true and of instants
    if expected == pa.bool_():
        is_same_kind = False  # nor is a number true or false
    try:
        if is_same_kind or pa.types.is_null(found):
            return array.cast(expected, safe=expected != TIME and expected != pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInput(f"column '{name}' cannot be read as {expected}: {error}") from None
    raise InvalidInput(f"column '{name}' is of type {found}; expected {expected}")


def _is_list(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_list(data_type) or pa.types.is_large_list(data_type))


def is_given(array: pa.Array) -> Bools:
    """Return which values are not null."""
    if array.null_count == 0:
        return np.ones(len(array), bool)
    given: Bools = array.is_valid().to_numpy(zero_copy_only=False)
    return given


class Problems:
    """The first thing wrong with each row."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.found: dict[int, tuple[str, str]] = {}

    def add(self, row: int, field: str, reason: str) -> None:
        """Note what is wrong with a row, unless something else was noted before."""
        self.found.setdefault(int(row), (field, reason))

    def add_found(self, rows: Int64s, found: Iterable[Problem]) -> None:
        """Note the problems that were found among some rows."""
        for at, field, reason in found:
            self.add(rows[at], field, reason)

    def mark(self, wrong: Bools, field: str, reason: str, values: Any = None) -> None:
        """Note the same for all wrong rows; ``{}`` stands for a row's value, where there are."""
        for row in np.flatnonzero(wrong).tolist():
            self.add(row, field, reason if values is None else reason.format(values[row]))

    def accepted(self) -> Bools | None:
        """Return which rows are good, None when all are."""
        if not self.found:
            return None
        accepted = np.ones(self.n, bool)
        accepted[list(self.found)] = False
        return accepted

    def errors(self, source: str, numbers: Int64s) -> list[InvalidRow]:
        """Return the problems in row order, under the numbers that rows have at their source."""
        return [
            InvalidRow(source, int(numbers[row]), field, reason)
            for row, (field, reason) in sorted(self.found.items())
        ]


def row_numbers(n: int, first_row: int, rows: Int64s | None) -> Int64s:
    """Return the number that each row has at its source."""
    if not isinstance(first_row, int):
        raise InvalidInput(f"first_row is {described(first_row)}; expected an integer")
    if rows is None:
        return np.arange(first_row, first_row + n)
    numbers = np.asarray(rows)
    if numbers.shape != (n,) or (n and numbers.dtype.kind not in "iu"):
        raise InvalidInput(f"rows is {described(rows)}; expected {n} integers, one for each row")
    return numbers


def text_of(array: pa.Array, row: int) -> str:
    """Return a text for a message, shortened; broken bytes are replaced."""
    value = array[row]
    if not value.is_valid:
        return ""
    text: str = value.as_buffer().to_pybytes()[:200].decode("utf-8", "replace")
    return text if len(text) <= 60 else f"{text[:60]}…"


# ---- groups of columns --------------------------------------------------------------------------


def column_group(
    columns: Columns, fields: Sequence[str], noun: str, unless: Bools | None = None
) -> tuple[Bools, Float64s]:
    """Return which rows have all of the columns, and the columns side by side.

    Rows that have some of them are refused, ``unless`` they mean something else.
    """
    found = [columns.floats(field) for field in fields]
    if not any(found):
        return np.zeros(columns.n, bool), np.empty((0, len(fields)), np.float64)
    nothing = np.full(columns.n, np.nan), np.zeros(columns.n, bool)
    values, given = zip(*(column or nothing for column in found), strict=True)
    present = np.stack(given)
    has_all: Bools = np.logical_and.reduce(present)
    reason = f"is missing; {noun} needs {', '.join(fields)}"
    has_some = np.logical_or.reduce(present) & ~has_all
    if unless is not None:
        has_some &= ~unless
    for row in np.flatnonzero(has_some).tolist():
        columns.problems.add(row, fields[int(present[:, row].argmin())], reason)
    return has_all, np.stack(values, axis=1)


def own_numbers(
    columns: Columns, name: str, are_good: Callable[[Float64s], Bools], expected: str
) -> Float64s:
    """Return the number that each row names, NaN where it names none; empty where no row does."""
    found = columns.floats(name)
    if found is None:
        return np.empty(0, np.float64)
    values, given = found
    wrong = given & ~are_good(values)  # NaN too
    columns.problems.mark(wrong, name, f"is {{}}; expected {expected}", values)
    return np.where(given, values, np.nan)


def chosen_rows(chosen: Bools, values: Float64s) -> tuple[Int64s, Float64s]:
    """Return the positions of the chosen rows and their values."""
    rows = np.flatnonzero(chosen)
    return rows, values if len(rows) == len(values) else values[rows]


# ---- checks -------------------------------------------------------------------------------------


def check_ids(columns: Columns) -> None:
    """Refuse rows without an id."""
    ids = columns.ids
    if ids.null_count:
        columns.problems.mark(~is_given(ids), "id", "is missing; every row needs an id")
    if pa.types.is_string(ids.type):
        check_utf8(columns, "id")


def check_times(columns: Columns, name: str) -> None:
    """Refuse instants that Python's datetime cannot hold."""
    times = columns.get(name)
    if times is not None:
        columns.problems.mark(unknown_years(times), name, YEARS)


def check_utf8(columns: Columns, name: str) -> None:
    """Refuse texts that are not valid UTF-8."""
    texts = columns.get(name)
    if texts is not None:
        columns.problems.mark(broken_texts(texts), name, NOT_UTF8)


def broken_texts(texts: pa.Array) -> Bools:
    """Return which texts are not valid UTF-8."""
    try:  # Arrow's check costs next to nothing but names one row only
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return invalid_utf8(texts)
    return np.zeros(len(texts), bool)


def long_texts(texts: pa.Array, analyzer: Analyzer) -> Bools:
    """Return which texts are too long to be analysed."""
    if texts.nbytes <= analyzer.max_text_bytes:
        return np.zeros(len(texts), bool)
    return analyzer.too_long(texts)


def without_texts(texts: pa.Array, dropped: Bools) -> pa.Array:
    """Return texts with nulls in place of those that are dropped."""
    if not dropped.any():
        return texts
    return pc.if_else(pa.array(dropped), pa.scalar(None, texts.type), texts)


def find_taken(columns: Columns, is_taken: Callable[[pa.Array], Bools] | None) -> list[int]:
    """Return the rows whose ids are in use; raises for ids of another kind than those."""
    if is_taken is None or not columns.n:
        return []
    rows: list[int] = np.flatnonzero(is_taken(columns.ids)).tolist()
    return rows


def refuse_taken(columns: Columns, rows: list[int]) -> None:
    """Refuse rows whose ids are in use, whatever else is wrong with them."""
    for row in rows:
        reason = f"id {columns.ids[row].as_py()!r} is already subscribed; unsubscribe it first"
        columns.problems.found[row] = ("id", reason)


def check_repeats(columns: Columns) -> None:
    """Refuse an id that an accepted row before has; runs last, so that such a row counts."""
    ids, problems = columns.ids, columns.problems
    if columns.n < 2:
        return
    if pa.types.is_int64(ids.type) and not ids.null_count:
        values = ids.to_numpy()
        if (values[1:] > values[:-1]).all():
            return
        values = np.sort(values)
        if (values[1:] > values[:-1]).all():
            return
    elif pc.count_distinct(ids, mode="only_valid").as_py() + ids.null_count == len(ids):
        return
    accepted = problems.accepted()
    rows = np.arange(columns.n) if accepted is None else np.flatnonzero(accepted)
    codes = ids.take(pa.array(rows)).dictionary_encode().indices.to_numpy()
    _, firsts, inverse = np.unique(codes, return_index=True, return_inverse=True)
    for position in np.flatnonzero(firsts[inverse] != np.arange(len(rows))).tolist():
        row, first = rows[position], rows[firsts[inverse[position]]]
        value, distance = ids[int(row)].as_py(), int(row - first)
        reason = f"id {value!r} was already used, {distance} row{'s' * (distance > 1)} before"
        problems.add(row, "id", reason)
