"""Rows that were refused, and why."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from earshot.errors import InvalidParameter, InvalidRow, described
from earshot.model.schemas import REJECTS

OnError = Literal["raise", "reject"]
"""``raise`` stops at the first bad row; ``reject`` sets it aside with its reason and goes on."""

Problems = dict[int, tuple[str, str]]
"""First thing wrong with each bad row of a batch: position -> (field, reason)."""

MAX_RAW_CHARACTERS = 1_000
"""Longer strings of a refused row are kept shortened, with a note of their length."""


class Reject(NamedTuple):
    """One refused row, as in :data:`earshot.model.schemas.REJECTS`."""

    source: str
    row: int
    field: str
    reason: str
    raw: str

    def error(self) -> InvalidRow:
        """Return the exception that says the same."""
        return InvalidRow(self.source, self.row, self.field, self.reason)


def add_problems(
    problems: Problems, is_wrong: npt.NDArray[np.bool_], field: str, reason: Callable[[int], str]
) -> None:
    """Note the reason for each row that is wrong, unless something else is noted already."""
    for position in np.flatnonzero(is_wrong).tolist():
        problems.setdefault(position, (field, reason(position)))


def check_on_error(on_error: str) -> None:
    """Raise InvalidParameter unless the value is one that readers know."""
    if on_error not in ("raise", "reject"):
        raise InvalidParameter(f"on_error is {described(on_error)}; expected 'raise' or 'reject'")


def reject_table(rejects: Sequence[Reject]) -> pa.Table:
    """Return the rejects as a table."""
    columns = list(zip(*rejects, strict=True)) or [()] * len(REJECTS)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, REJECTS, strict=True)],
        schema=REJECTS,
    )


def rejects_of_batch(
    errors: Sequence[InvalidRow], batch: pa.RecordBatch, rows: npt.NDArray[np.int64]
) -> list[Reject]:
    """Return the errors that encoding a batch gave, each with its row as JSON.

    ``rows`` are the numbers in the source of the rows of the batch, ascending.
    """
    rejects = []
    for error in errors:
        position = int(np.searchsorted(rows, error.row))
        raw = row_json(row_values(batch, position))
        rejects.append(Reject(error.source, error.row, error.field, error.reason, raw))
    return rejects


def row_values(batch: pa.RecordBatch, position: int) -> dict[str, Any]:
    """Return the values of one row that are not null, broken UTF-8 spelt with backslashes."""
    values = {name: _value(batch.column(name)[position]) for name in batch.schema.names}
    return {name: value for name, value in values.items() if value is not None}


def row_json(values: Mapping[str, Any]) -> str:
    """Return a row as JSON, long strings shortened."""
    return json.dumps(_shortened(values), ensure_ascii=False, default=str)


def shortened(text: str) -> str:
    """Return the text, or its beginning and a note of its length."""
    if len(text) <= MAX_RAW_CHARACTERS:
        return text
    return f"{text[:MAX_RAW_CHARACTERS]}… ({len(text)} characters)"


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        if isinstance(scalar, pa.ListScalar):
            return [_value(each) for each in scalar.values]
        return scalar.as_buffer().to_pybytes().decode("utf-8", "backslashreplace")
    except (OverflowError, ValueError):  # a time in a year that Python does not know
        return str(scalar.cast(pa.string()))


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        # Lone surrogates cannot be written to any file.
        return shortened(value).encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, bytes):
        return shortened(value.hex())
    if isinstance(value, Mapping):
        return {str(_shortened(key)): _shortened(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shortened(each) for each in value]
    return value
