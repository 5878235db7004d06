"""Settings of the whole test run."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# Kernels that the tests compile are kept in the checkout, not in the home directory.
os.environ.setdefault("XDG_CACHE_HOME", str(Path(__file__).resolve().parents[1] / ".cache"))
# Matplotlib wants a directory of its own, which it otherwise makes in the home directory.
os.environ.setdefault("MPLCONFIGDIR", tempfile.gettempdir())


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Keeps in one process what shares a Spark, or kernels that take long to compile."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, name = nodeid.partition("::")
        if file.startswith("tests/spark/"):
            return "tests/spark"
        if name.startswith("test_law["):  # of a structure under a semantics
            return name.partition(":")[0]
        return nodeid if file == "tests/test_engine_machine.py" else file


@pytest.hookimpl(optionalhook=True)  # also where everything runs in one process
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """Say which tests go to which process."""
    return Scheduling(config, log)
