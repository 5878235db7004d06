"""Checks of saved structures: numbers that lead out of arrays are found before a kernel follows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from earshot import storage
from earshot.errors import SavedIndexError
from earshot.model.arrays import Int64s


@contextmanager
def checking(directory: str | Path | storage.Saved) -> Iterator[None]:
    """Say where a structure is saved that fails a check."""
    try:
        yield
    except SavedIndexError as error:
        where = storage.Saved.open(directory).where
        raise SavedIndexError(f"{where} contradicts itself: {error}; build it again") from error


def demand(name: str, *facts: Any) -> None:
    """Refuse a structure unless all of these are true, everywhere."""
    if not all(np.all(fact) for fact in facts):
        raise SavedIndexError(f"{name} lead out of the structure")


def members(owners: Int64s, lengths: Int64s) -> tuple[Int64s, Int64s]:
    """Return the owner and the number, from 0 on, of each member of some pieces."""
    firsts = np.cumsum(lengths) - lengths
    return np.repeat(owners, lengths), np.arange(lengths.sum()) - np.repeat(firsts, lengths)
