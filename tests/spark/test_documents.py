"""docs/spark.md mentions what there is."""

from __future__ import annotations

from pathlib import Path

import pytest

import earshot.spark

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "spark.md"


@pytest.mark.parametrize("name", earshot.spark.__all__)
def test_every_function_is_mentioned(name: str) -> None:
    is_type = name[0].isupper()
    assert is_type or f"`{name}`" in DOCUMENT.read_text(encoding="utf-8")
