"""Writes the generated parts of the documents; run it after a change of what they come from.

A part stands between ``<!-- name:begin -->`` and ``<!-- name:end -->``. A test compares the
documents with what this script would write.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import groupby
from pathlib import Path

from earshot.model.schemas import TYPES_IN_WORDS, Field, Relation, fields_of

DOCS = Path(__file__).resolve().parent


def columns_table(relation: Relation) -> str:
    """Return the columns of a relation, those of one meaning in one row.

    Changes have the columns of subscriptions as well, which are not repeated.
    """
    fields = [
        field
        for field in fields_of(relation, in_files=True)
        if relation != "changes" or "subscriptions" not in field.of
    ]
    rows = [
        [_names(group), _aliases(group), TYPES_IN_WORDS[group[0].type], group[0].of[relation]]
        for group in _groups(fields, relation)
    ]
    header = ["column", "also found as", "type", "meaning"]
    if not any(row[1] for row in rows):
        header, rows = [header[i] for i in (0, 2, 3)], [[row[0], *row[2:]] for row in rows]
    return "\n".join(_line(row) for row in (header, ["---"] * len(header), *rows))


def _groups(fields: list[Field], relation: Relation) -> list[list[Field]]:
    return [list(group) for _, group in groupby(fields, lambda f: (f.type, f.of[relation]))]


def _names(fields: list[Field]) -> str:
    return ", ".join(f"`{field.name}`" for field in fields)


def _aliases(fields: list[Field]) -> str:
    return "; ".join(", ".join(f"`{name}`" for name in field.aliases) for field in fields).strip(
        "; "
    )


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


PARTS: dict[str, Callable[[], str]] = {
    f"columns of {relation}": partial(columns_table, relation)
    for relation in ("subscriptions", "messages", "changes", "updates", "rejects")
}


def generated(document: str) -> str:
    """Return a document with its generated parts as they should be."""

    def part(found: re.Match[str]) -> str:
        return f"{found[1]}\n{PARTS[found[2]]()}\n{found[3]}"

    return re.sub(r"(<!-- ([\w ]+):begin -->)\n.*?\n(<!-- \2:end -->)", part, document, flags=re.S)


def main() -> None:
    """Write all documents anew."""
    for path in sorted(DOCS.glob("*.md")):
        path.write_text(generated(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
