"""Settings of the whole test run."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

# Kernels that the tests compile are kept in the checkout, not in the home directory.
os.environ.setdefault("XDG_CACHE_HOME", str(Path(__file__).resolve().parents[1] / ".cache"))
# Matplotlib wants a directory of its own, which it otherwise makes in the home directory.
os.environ.setdefault("MPLCONFIGDIR", tempfile.gettempdir())
