"""What is wrong with the rows of a batch: one error policy for every call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeAlias, get_args

import pyarrow as pa

from earshot.errors import (
    InvalidParameter,
    InvalidRow,
    UnknownRow,
    UnknownSubscription,
    described,
)
from earshot.model.arrays import Int64s

OnError: TypeAlias = Literal["raise", "reject"]


def check_on_error(on_error: str) -> None:
    """Refuse what is no policy."""
    if on_error not in get_args(OnError):
        raise InvalidParameter(f"on_error is {described(on_error)}; expected 'raise' or 'reject'")


def unknown_rows(ids: pa.Array, at: Int64s, numbers: Int64s, source: str) -> list[InvalidRow]:
    """Return that some rows name ids that nobody has subscribed.

    Args:
        ids: Ids of all rows.
        at: Which of them are unknown.
        numbers: Number of each row at its source.
        source: Where the rows came from.
    """
    return [
        UnknownRow(source, int(numbers[row]), "id", f"no subscription {ids[row].as_py()!r}")
        for row in at.tolist()
    ]


def by_row(*rejects: Sequence[InvalidRow]) -> list[InvalidRow]:
    """Return rejects in the order of their rows."""
    return sorted((each for part in rejects for each in part), key=lambda each: each.row)


@contextmanager
def by_name() -> Iterator[None]:
    """Raise an unknown id as such, where the caller named it and has no rows."""
    try:
        yield
    except UnknownRow as error:
        raise UnknownSubscription(error.reason) from None
