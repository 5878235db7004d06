"""The command ``earshot`` in a process of its own, which starts as fast as it can."""

from __future__ import annotations

import gc
import sys

from earshot.cli import main

WITHOUT_PANDAS = ("match", "index", "explain", "generate")
"""Commands that have no use for pandas."""


def run() -> int:
    """Run the command line."""
    gc.set_threshold(200_000)  # by default it takes a sixth of the start, and finds nothing
    if sys.argv[1:2] and sys.argv[1] in WITHOUT_PANDAS:
        _pass_over_pandas()
    code = main()
    gc.freeze()  # else it looks once more at all that goes now: 0.35 s
    return code


class _NoPandas:
    """Finds that pandas is not there."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _pass_over_pandas() -> None:
    """Let Arrow find no pandas, which it would import with its first array: that takes 0.3 s."""
    import pyarrow as pa

    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([])  # it looks once
    finally:
        sys.meta_path.remove(_NoPandas)
