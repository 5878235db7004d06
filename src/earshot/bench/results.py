"""Rows of results: where they are, which of them count, and how tables show them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from earshot.errors import InvalidFile

Row = dict[str, Any]
"""One line of the results; see ``bench/README.md`` for the fields."""

RESULTS = Path("bench") / "results"

KIND = ("suite", "workload", "competitor", "n_subscriptions", "n_threads", "changes_per_call",
        "batch_size", "n_shards", "token_order", "probing", "message_tokens", "alpha", "threshold",
        "window", "k", "n_keywords", "keywords_from", "fanout", "max_list", "region_area",
        "max_divergence", "built_share", "n_live", "mobility", "velocity", "arrivals",
        "instructions")  # fmt: skip
"""Fields that tell rows of one profile apart; of equal ones the newest counts."""


def basics(
    workload: str, competitor: str, n_subscriptions: int, n_messages: int, n_threads: int = 1
) -> Row:
    """Return what every row tells."""
    return {
        "workload": workload,
        "competitor": competitor,
        "n_subscriptions": n_subscriptions,
        "n_messages": n_messages,
        "n_threads": n_threads,
    }


def value_of(row: Row, field: str | Callable[[Row], Any]) -> Any:
    """Return a field, or what is made of some.

    ``a.b`` is field b of the group a; ``None`` where there is none.
    """
    if not isinstance(field, str):
        return field(row)
    value: Any = row
    for part in field.split("."):
        value = None if value is None else value.get(part)
    return value


def key_of(row: Row, fields: Iterable[str]) -> tuple[Any, ...]:
    """Return the values of some fields."""
    return tuple(value_of(row, field) for field in fields)


def merged_rows(folder: Path) -> dict[str, list[Row]]:
    """Return the newest row of each kind, by profile; each row gains the ``file`` it is from."""
    found = [(path.name, row) for path in folder.glob("*.jsonl") for row in read_rows(path)]
    found.sort(key=lambda each: (each[1]["run"]["started"], each[0]))
    merged: dict[str, dict[tuple[Any, ...], Row]] = {}
    for name, row in found:
        of_profile = merged.setdefault(row["run"]["profile"], {})
        kind = key_of(row, KIND)
        of_profile.pop(kind, None)  # so that the rows of the newest run stay together
        of_profile[kind] = {**row, "file": name}
    if not merged:
        raise InvalidFile(f"{folder} holds no results (*.jsonl); run the benchmark first")
    return {profile: list(merged[profile].values()) for profile in sorted(merged)}


def read_rows(path: Path) -> list[Row]:
    """Read the rows of one run."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise InvalidFile(f"{path}, line {number + 1} is not JSON: {error}") from error
    return rows


def newest_first(rows: Iterable[Row]) -> list[Row]:
    """Return rows by the start of their runs."""
    return sorted(rows, key=lambda row: str(row["run"]["started"]), reverse=True)


def lead(row: Row) -> float | None:
    """Return how many times faster the default index is than this row, on the same messages."""
    default: float | None = row.get("default_messages_per_s")
    return None if default is None else default / row["messages_per_s"]


def shared_costs(row: Row, other: Row, *, same_answers: bool = True) -> tuple[Row, Row] | None:
    """Return the costs of two rows on the most messages that both have seen.

    With ``same_answers`` only messages count to which both gave the same answers.
    """
    for length in sorted(row["prefixes"].keys() & other["prefixes"].keys(), key=int, reverse=True):
        sums = {each.get("checksums", {}).get(length) for each in (row, other)}
        if not same_answers or len(sums) == 1:
            return row["prefixes"][length], other["prefixes"][length]
    return None


# ---- tables --------------------------------------------------------------------------------------


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
