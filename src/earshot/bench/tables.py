"""Rows as Markdown tables, by columns that are data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from earshot.bench.results import Row, value_of


class Column(NamedTuple):
    """A field of the rows under its heading."""

    title: str
    field: str | Callable[[Row], Any]
    digits: int | None = 0  # behind the point; None for three digits in all
    scale: float = 1.0

    def show(self, row: Row) -> str:
        """Return the cell of a row; empty where the row has no such field."""
        value = value_of(row, self.field)
        if value is None or isinstance(value, str):
            return value or ""
        if self.digits is None:
            return three_digits(value)
        return f"{value * self.scale:,.{self.digits}f}"


def three_digits(value: float | None) -> str:
    """Return a figure with three digits, or all of those before the point."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(rows: Iterable[Row], columns: Sequence[Column]) -> str:
    """Return one line per row; columns without any value are left out."""
    return markdown([each.title for each in columns], [[c.show(row) for c in columns]
                                                       for row in rows])  # fmt: skip


def markdown(
    head: Sequence[str], body: Sequence[Sequence[str]], *, all_columns: bool = False
) -> str:
    """Return cells as a Markdown table; columns without any cell are left out."""
    kept = [i for i in range(len(head)) if all_columns or any(line[i] for line in body)]
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line[i] for i in kept)} |" for line in lines)
