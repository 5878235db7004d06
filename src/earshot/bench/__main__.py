"""``python -m earshot.bench``: run the benchmark, or report what was measured."""

from __future__ import annotations

import sys

from earshot.bench.commands import main

if __name__ == "__main__":
    sys.exit(main())
