"""Saved arrays: a directory with ``facts.json`` and one ``.npy`` file per array.

Layout: ``facts.json`` holds the format version, the caller's facts and the names of the groups;
``<group>/<field>.npy`` holds one array of a NamedTuple, ``<group>/<field>/…`` a nested one.
Directories are written under a temporary name and renamed when complete, so a directory that has
its final name is whole. Arrays are opened copy-on-write: processes share one copy of the pages, and
a change stays in the process that made it.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import shutil
import tempfile
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from earshot.errors import SavedIndexError

FORMAT = "earshot-arrays"
_MADV_POPULATE_READ = 22  # Linux 5.14; Python has no name for it yet
VERSION = 4

Group = TypeVar("Group", bound=tuple[Any, ...])


def save(
    directory: str | Path,
    facts: dict[str, Any],
    groups: dict[str, tuple[Any, ...]],
    inner: dict[str, Callable[[Path], None]] | None = None,
) -> None:
    """Write facts and groups of arrays to a new directory.

    Args:
        directory: Must not exist, or be empty.
        facts: What is not an array.
        groups: NamedTuples of arrays by name.
        inner: Functions that save something of their own to a directory inside, by name.
    """
    target = Path(directory)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise SavedIndexError(f"{target} exists and is not an empty directory; choose another name")
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".draft", dir=target.parent))
    draft.chmod(0o755)
    try:
        for name, arrays in groups.items():
            _save_group(draft / name, arrays)
        for name, save_inner in (inner or {}).items():
            save_inner(draft / name)
        header = {"format": FORMAT, "version": VERSION, "groups": sorted(groups), **facts}
        (draft / "facts.json").write_text(json.dumps(header, indent=1), encoding="utf-8")
        try:
            draft.rename(target)  # replaces an empty directory
        except OSError as error:
            raise SavedIndexError(f"{target} appeared while it was being written") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def read_facts(directory: str | Path) -> dict[str, Any]:
    """Return the facts of a saved directory, after checking its format and version."""
    path = Path(directory) / "facts.json"
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SavedIndexError(f"{directory} is not a saved index: {path.name}: {error}") from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise SavedIndexError(f"{directory} is not a saved index: no '{FORMAT}' in {path.name}")
    if facts.get("version") != VERSION:
        raise SavedIndexError(
            f"{directory} has format version {facts.get('version')}, this Earshot reads {VERSION}; "
            f"build the index again"
        )
    return facts


def open_group(directory: str | Path, name: str, group_type: type[Group]) -> Group:
    """Memory-map one group of arrays as the given NamedTuple type."""
    return _open_group(Path(directory) / name, group_type)


def bring_in(arrays: tuple[Any, ...]) -> None:
    """Map the pages of opened arrays now, all at once, instead of one by one as they are touched.

    A hint: where the system does not take it, the pages come when they are needed.
    """
    for array in arrays:
        if isinstance(array, tuple):
            bring_in(array)
            continue
        owner = array
        while owner is not None and not isinstance(owner, mmap.mmap):
            owner = getattr(owner, "base", None)
        if owner is not None:
            with contextlib.suppress(OSError, ValueError):
                owner.madvise(_MADV_POPULATE_READ)


def _save_group(path: Path, arrays: tuple[Any, ...]) -> None:
    path.mkdir()
    for field, value in zip(arrays._fields, arrays, strict=True):  # type: ignore[attr-defined]
        if isinstance(value, tuple):
            _save_group(path / field, value)
        else:
            np.save(path / f"{field}.npy", value)


def _open_group(path: Path, group_type: type[Group]) -> Group:
    hints = typing.get_type_hints(group_type)
    values: list[Any] = []
    for field in group_type._fields:  # type: ignore[attr-defined]
        if (path / field).is_dir():
            values.append(_open_group(path / field, hints[field]))
            continue
        file = path / f"{field}.npy"
        try:
            # An empty array cannot be mapped. Copy-on-write keeps the arrays writable, which is
            # also the type that kernels are compiled for.
            mapped = np.load(file, mmap_mode="c")
            values.append(np.array(mapped) if mapped.size == 0 else mapped.view(np.ndarray))
        except (OSError, ValueError, EOFError) as error:
            raise SavedIndexError(f"{file} cannot be opened: {error}") from error
    return group_type(*values)
