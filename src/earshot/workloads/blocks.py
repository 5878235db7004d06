"""Rows in blocks, each with a random generator of its own, so that any piece is always the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from earshot.errors import InvalidParameter
from earshot.model.arrays import Float64s, Int64s
from earshot.model.schemas import BOX_FIELDS

T = TypeVar("T")


class Block(NamedTuple):
    """A block of rows, of which some are wanted."""

    random: np.random.Generator
    first: int  # its first row
    wanted: slice  # rows of the block


def blocks_of(seed: int, stream: int, block_rows: int, start: int, stop: int) -> Iterator[Block]:
    """Yield the blocks of rows ``start:stop`` of one of the streams of a seed."""
    if not 0 <= start <= stop:
        raise InvalidParameter(f"rows {start}:{stop} asked for; expected 0 <= start <= stop")
    for block in range(start // block_rows, -(-stop // block_rows)):
        first = block * block_rows
        wanted = slice(max(start - first, 0), min(stop - first, block_rows))
        yield Block(np.random.default_rng([seed, stream, block]), first, wanted)


def joined(parts: list[npt.NDArray[Any]], dtype: type) -> npt.NDArray[Any]:
    """Return the parts one after the other."""
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def check_rules(name: str, rules: Mapping[str, bool]) -> None:
    """Say which rules a workload breaks."""
    broken = [rule for rule, holds in rules.items() if not holds]
    if broken:
        raise InvalidParameter(f"workload '{name}': expected {'; '.join(broken)}")


def named(kind: str, name: str, known: Mapping[str, T]) -> T:
    """Return what has that name; an error tells the names that are known."""
    if name not in known:
        raise InvalidParameter(f"no {kind} '{name}'; expected one of {', '.join(known)}")
    return known[name]


def some_of_each(
    random: np.random.Generator, offsets: Int64s, words: npt.NDArray[Any], wanted: Int64s
) -> npt.NDArray[Any]:
    """Return ``wanted[i]`` words of each row i, or all it has, drawn without putting back."""
    lengths = np.diff(offsets)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    shuffled = words[np.lexsort((random.random(len(words)), rows))]
    ranks = np.arange(len(words)) - np.repeat(offsets[:-1], lengths)
    return shuffled[ranks < wanted[rows]]


def log_uniform(random: np.random.Generator, low: float, high: float, n: int) -> Float64s:
    """Draw numbers whose orders of magnitude are equally likely."""
    return np.exp(random.uniform(np.log(low), np.log(high), n))


def sides_of(boxes: Float64s) -> dict[str, pa.Array]:
    """Return boxes as the columns that tables have."""
    return {side: pa.array(boxes[:, i].copy()) for i, side in enumerate(BOX_FIELDS)}
