"""Settings of the whole test run."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def _kernel_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src" / "earshot" / "kernels").glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


# Numba's cache does not notice when a kernel that another one calls has changed, so each state of
# the kernels gets a cache of its own. Must be set before Numba is imported.
os.environ.setdefault("NUMBA_CACHE_DIR", str(ROOT / ".numba_cache" / _kernel_digest()))
