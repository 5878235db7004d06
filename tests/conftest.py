"""Settings of the whole test run."""

from __future__ import annotations

import os
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).resolve().parents[1]

# Kernels that the tests compile are kept in the checkout, not in the home directory.
os.environ.setdefault("XDG_CACHE_HOME", str(ROOT / ".cache"))
# Matplotlib wants a directory of its own, which it otherwise makes in the home directory.
os.environ.setdefault("MPLCONFIGDIR", tempfile.gettempdir())

SPARK, BESIDE_SPARK, TOPK = "spark", "beside spark", "topk"
WITHOUT_SESSION = {
    f"tests/spark/test_{name}.py"
    for name in ("cluster", "config", "documents", "intake", "java", "preflight", "rows", "store")
}
"""Tests of Spark that need no session, or start one in another process."""
OF_ALL_STRUCTURES = {
    f"tests/test_{name}.py" for name in ("index_laws", "engine_laws", "engine_machine")
}


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Keeps in one process what shares a Spark, or kernels that take long to compile.

    Spark comes first, since it takes longest; its tests compile the defaults of every semantics.
    The other process begins with kernels of its own: for the same ones it would have to wait. Then
    it takes the tests of Spark that need no session. The structures come next, each family of the
    same kernels in one piece. Tests of all structures at once follow when their kernels have been
    compiled.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, _, name = nodeid.partition("::")
        test, _, subject = name.partition("[")
        if file.startswith("tests/spark/"):
            return BESIDE_SPARK if file in WITHOUT_SESSION else SPARK
        if test == "test_snippets_run":
            return SPARK if _mentions_spark(ROOT / subject.rstrip("]")) else file
        words = {Path(file).stem.removeprefix("test_")}
        if file in OF_ALL_STRUCTURES:
            words |= set(re.split(r"[/\-]", subject.partition(":")[0].rstrip("]")))
        if TOPK in words or Path(file).stem.startswith("test_topk_"):
            return TOPK
        return min((_families()[word] for word in words & _families().keys()), default=file)

    def _assign_work_unit(self, node: Any) -> None:
        self.workqueue.move_to_end(min(self.workqueue, key=_turn), last=False)
        super()._assign_work_unit(node)


def _turn(scope: str) -> int:
    """Return when a scope has its turn: the lowest first, equal ones as they come."""
    ranks = {SPARK: 0, "rtree": 1, TOPK: 2, BESIDE_SPARK: 3}
    return ranks.get(scope, 4 if scope in _families() else 5 + (scope in OF_ALL_STRUCTURES))


@cache
def _families() -> dict[str, str]:
    """Return the folder of each structure, by its name and by that of the folder."""
    from earshot.indexes import STRUCTURES

    forms = {name: str(each.boolean or each.ranked) for name, each in STRUCTURES.items()}
    folders = {name: form.split(".")[2] for name, form in forms.items()}
    return folders | {folder: folder for folder in folders.values()}


@cache
def _mentions_spark(document: Path) -> bool:
    return "earshot.spark" in document.read_text(encoding="utf-8")


@pytest.hookimpl(optionalhook=True)  # also where everything runs in one process
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """Say which tests go to which process."""
    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a second session, which would take longer to start than most tests."""
    for item in items:
        file = item.nodeid.partition("::")[0]
        if file in WITHOUT_SESSION and "spark" in getattr(item, "fixturenames", ()):
            raise pytest.UsageError(f"{item.nodeid} needs a session: take it to another file")
