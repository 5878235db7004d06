"""The benchmark: every index and its rivals on the papers' workloads, answers checked.

``run`` measures and writes JSON lines, ``report`` turns those into tables and plots. The same two
commands are ``python -m earshot.bench run`` and ``python -m earshot.bench report``.
"""

from __future__ import annotations

from earshot.bench.reporting import report
from earshot.bench.running import run

__all__ = ["report", "run"]
