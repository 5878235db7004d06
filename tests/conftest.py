"""Settings of the whole test run."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

# Kernels that the tests compile are kept in the checkout, not in the home directory.
os.environ.setdefault("XDG_CACHE_HOME", str(Path(__file__).resolve().parents[1] / ".cache"))
# Matplotlib wants a directory of its own, which it otherwise makes in the home directory.
os.environ.setdefault("MPLCONFIGDIR", tempfile.gettempdir())


@pytest.hookimpl(tryfirst=True)  # before groups are looked for
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep in one process what shares a Spark, or kernels that take long to compile."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group_of(item)))


def _group_of(item: pytest.Item) -> str:
    if item.path.parent.name == "spark":
        return "spark"
    if item.name.startswith("test_law["):  # of a structure under a semantics
        return item.name.partition(":")[0]
    return item.name if item.path.stem == "test_engine_machine" else item.path.stem
