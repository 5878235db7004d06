"""Rows in blocks, each with a random generator of its own, so that any piece is always the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from earshot.errors import InvalidParameter

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


def named(name: str, workloads: Mapping[str, T]) -> T:
    """Return the workload of that name."""
    if name not in workloads:
        known = ", ".join(workloads)
        raise InvalidParameter(f"no workload '{name}'; expected one of {known}")
    return workloads[name]
