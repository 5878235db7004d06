"""``python -m earshot`` is the command ``earshot``."""

import sys

from earshot.cli import main

WITHOUT_PANDAS = ("match", "index", "explain", "generate")
"""Commands that have no use for pandas, wherever they lead."""


def run() -> int:
    """Run the command line in a process of its own."""
    if sys.argv[1:2] and sys.argv[1] in WITHOUT_PANDAS:
        _pass_over_pandas()
    return main()


def _pass_over_pandas() -> None:
    """Let Arrow find no pandas, which it would import with its first array: that takes 0.3 s."""
    import pyarrow as pa

    class Absent:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            if name == "pandas":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Absent)
    try:
        pa.array([])  # Arrow looks once
    finally:
        sys.meta_path.remove(Absent)


if __name__ == "__main__":
    sys.exit(run())
