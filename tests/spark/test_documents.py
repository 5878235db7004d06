"""The tables of docs/spark.md say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import earshot.spark
from earshot.spark.config import keys
from earshot.spark.session import SETTINGS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "spark.md"


def keys_table() -> str:
    lines = ["| table | key | value | default | meaning |", "| --- " * 5 + "|"]
    for key in keys():
        only = f" (with `{key.only_for}`)" if key.only_for else ""
        table = f"`[{key.table}]`" if key.table else ""
        kind = key.type.replace("|", "\\|")
        lines.append(f"| {table} | `{key.name}` | {kind} | {key.default} | {key.meaning}{only} |")
    return "\n".join(lines)


def settings_table() -> str:
    lines = ["| setting | value | why |", "| --- " * 3 + "|"]
    for name, setting in SETTINGS.items():
        local = " *(local)*" if setting.local else ""
        lines.append(f"| `{name}` | `{setting.value}` | {setting.reason}{local} |")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("name", "table"), [("keys", keys_table()), ("settings", settings_table())]
)
def test_tables_are_current(name: str, table: str) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    found = re.search(rf"<!-- {name}: begin -->\n(.*)<!-- {name}: end -->", text, re.S)
    assert found is not None
    assert found.group(1) == table + "\n", f"replace it by:\n{table}"


@pytest.mark.parametrize("name", earshot.spark.__all__)
def test_every_function_is_mentioned(name: str) -> None:
    is_type = name[0].isupper()
    assert is_type or f"`{name}`" in DOCUMENT.read_text(encoding="utf-8")
