"""How Numba is used: every kernel of the package is compiled by one of these decorators.

Compiled code is kept on disk, under ``NUMBA_CACHE_DIR`` if that is set, else in the user's cache
directory. Numba notices when a kernel's own file changes but not when one that it calls does, so
each state of the kernels' sources has a directory of its own: the files with kernels, and
whatever of the package they import.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core import config

_IMPORT = re.compile(rb"^from (earshot[\w.]*) import ", re.MULTILINE)
_DECORATES = re.compile(rb"^from earshot\.kernels\.jit import .*kernel", re.MULTILINE)


def kernel_sources() -> list[Path]:
    """Return the files that compiled code depends on."""
    package = Path(__file__).parents[1]
    imports, paths, needed = {}, {}, set()
    for path in package.rglob("*.py"):
        module = ".".join(("earshot", *path.relative_to(package).with_suffix("").parts))
        source = path.read_bytes()
        imports[module] = {found.decode() for found in _IMPORT.findall(source)}
        paths[module] = path
        if _DECORATES.search(source):
            needed.add(module)
    reached = {__name__}
    while needed:
        reached |= needed
        needed = {each for module in needed for each in imports[module]} & paths.keys() - reached
    return sorted(paths[module] for module in reached)


@cache
def _cache_directory() -> str:
    digest = hashlib.sha256()
    for path in kernel_sources():
        digest.update(path.read_bytes())
    try:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # a user without a home directory, as in some containers
        root = tempfile.gettempdir()
    return str(Path(root) / "earshot" / f"kernels-{digest.hexdigest()[:16]}")


def _directory() -> Path:
    return Path(config.CACHE_DIR or _cache_directory())


def is_first_use() -> bool:
    """Whether no kernel of this version was compiled on this machine yet."""
    return not _directory().exists()


def warm_once(name: str, use_kernels: Callable[[], None]) -> None:
    """Call a function that uses kernels, unless one of that name was on this machine before.

    Processes that compile the same kernels at the same time can break each other's files on disk,
    so the caller lets one through at a time.
    """
    done = _directory() / f"warm-{name}"
    if not done.exists():
        use_kernels()
        done.parent.mkdir(parents=True, exist_ok=True)
        done.touch()


def _decorator(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    def decorate(function: Callable[..., Any]) -> Any:
        # Numba picks the directory when it decorates; other users of Numba keep theirs.
        chosen = config.CACHE_DIR
        config.CACHE_DIR = chosen or _cache_directory()
        try:
            return numba.njit(cache=True, nogil=True, **options)(function)
        finally:
            config.CACHE_DIR = chosen

    return decorate


# Inlining is said of every kernel: one that does not say so takes it over from whichever kernel
# happens to compile it first, and so do those that it calls.
kernel = _decorator(forceinline=False)
"""Compiled on first use and kept on disk; runs without the interpreter lock."""

lean_kernel = _decorator(_nrt=False, forceinline=False)
"""A kernel that allocates nothing; for all that runs per message.

Without Numba's run time, arrays are not reference-counted. With it, each call from kernel to kernel
counts every array of its NamedTuples up and down by atomic instructions: about 80 for each list of
the default index, which made matching nearly 3 times slower.
"""

inlined_kernel = _decorator(_nrt=False, forceinline=True)
"""A lean kernel that is compiled into its callers; for what runs per posting, and for small things.

A NamedTuple is passed by its parts, about seven words for each of its arrays. A call with three of
them takes longer than the work that most such functions do.
"""
