"""Saved state: a directory with ``facts.json`` and one file of arrays.

``facts.json`` says what was saved, which file has the arrays, where in it each array is, and the
checksum of each, of the facts too. All is checked when a directory is opened, before anything is
answered from it; arrays that this process has compared before need not be compared again. They are
mapped copy-on-write: processes share one copy of the pages, and a change stays in the process that
made it.

Saving to a directory that holds a state already replaces that. The arrays go to a file with a new
name, and are on disk before ``facts.json`` is put in the place of the old one: whatever happens,
the old state is there or the new one. Whoever has the old arrays mapped keeps them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import mmap
import os
import re
import secrets
import typing
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from earshot.errors import InvalidInput, SavedIndexError, described

FORMAT = "earshot-arrays"
VERSION = 9
FACTS = "facts.json"
_DRAFT = "facts.json.draft"
_JOURNAL_LOCK = "journal.lock"
_OURS = re.compile(r"arrays-[0-9a-f]{16}\.bin|journal-[0-9a-f]{16}\.log")
_ALIGNMENT = 64  # of arrays, to a cache line
_MADV_POPULATE_READ = 22  # Linux 5.14; Python has no name for it yet
N_TRIES = 20  # to open a state that is replaced all the time

Group = TypeVar("Group", bound=tuple[Any, ...])


class Contents(NamedTuple):
    """What is saved of something."""

    facts: dict[str, Any]  # what is not an array; JSON can tell it
    groups: dict[str, tuple[Any, ...]]  # NamedTuples of arrays, or of such, by name
    inner: Mapping[str, Contents] = MappingProxyType({})  # of its parts


# ---- saving -------------------------------------------------------------------------------------


def save(directory: str | Path, contents: Contents, *, has_journal: bool = False) -> str:
    """Write contents to a directory, in the place of what was saved there before.

    Args:
        directory: Must be missing, empty, or hold a saved state; what it is in must exist.
        contents: What to write.
        has_journal: Whether the caller keeps the journal there, if somebody does.

    Returns:
        The name of the saved state.
    """
    target = Path(directory)
    is_new = not target.exists()
    try:
        if is_new:
            target.mkdir(exist_ok=True)
        with _locked(target):
            if not has_journal and (target / _JOURNAL_LOCK).exists():
                _try_lock(target).close()  # nobody else gets it before this save is done
            try:
                state = _replace(target, contents)
            finally:
                _clean(target)
        if is_new:
            sync(target.parent)
        return state
    except OSError as error:
        if isinstance(error, SavedIndexError):
            raise
        reason = f"{error.strerror or error}"
        if isinstance(error, FileNotFoundError) and not target.parent.exists():
            reason = f"there is no directory {target.parent}"
        raise SavedIndexError(f"{target} cannot be written: {reason}") from error
    finally:
        if is_new and target.is_dir() and not any(target.iterdir()):
            target.rmdir()


def _replace(target: Path, contents: Contents) -> str:
    """Write contents beside what is there, then let them take its place."""
    check_replaceable(target)
    state = secrets.token_hex(8)
    name = _file_of(state)
    arrays = list(_flat(contents))
    with (target / name).open("xb") as file:
        places = [(path, _write_array(file, array)) for path, array in arrays]
        _flush(file)
    header = {
        "format": FORMAT,
        "version": VERSION,
        "state": state,
        "size": (target / name).stat().st_size,
        "arrays": dict(places),
        "facts": _all_facts(contents),
    }
    whole = header | {"checksum": _checksum_of_facts(header)}
    # Without escapes, of which several say the same: what is damaged reads differently.
    text = json.dumps(whole, indent=1, ensure_ascii=False)
    with (target / _DRAFT).open("w", encoding="utf-8") as draft:
        draft.write(text)
        _flush(draft)
    sync(target)
    (target / _DRAFT).replace(target / FACTS)
    sync(target)
    return state


def checked_path(directory: str | Path) -> Path:
    """Return a path, refusing what can be none."""
    try:
        if b"\0" not in os.fsencode(directory):
            return Path(directory)
    except (TypeError, UnicodeEncodeError):
        pass
    raise InvalidInput(f"directory is {described(directory)}; expected a path")


def check_replaceable(directory: str | Path) -> None:
    """Refuse a place that holds anything else than what was saved there before."""
    target = Path(directory)
    if not target.exists():
        return
    foreign = target.name
    if target.is_dir():
        facts, names = target / FACTS, [path.name for path in target.iterdir()]
        if not facts.exists() or FORMAT.encode() in facts.read_bytes():
            names = [name for name in names if not _is_ours(name)]
        foreign = min(names, default="")
    if foreign:
        raise SavedIndexError(
            f"{target} exists and is neither empty nor a saved state: {foreign!r} is something "
            f"else; choose another name"
        )


def _is_ours(name: str) -> bool:
    return name in (FACTS, _DRAFT, _JOURNAL_LOCK) or _OURS.fullmatch(name) is not None


def _file_of(state: str) -> str:
    return f"arrays-{state}.bin"


def journal_path(directory: Path, state: str) -> Path:
    """Return where the journal is of what happened after a state was saved."""
    return directory / f"journal-{state}.log"


def lock_journal(directory: Path) -> typing.IO[bytes]:
    """Return the right to keep the journal of a directory, and to save there, until it is closed.

    Whoever saves there is waited for; of those who come later nobody can.
    """
    _read_header(directory)
    try:
        with _locked(directory):
            return _try_lock(directory)
    except OSError as error:
        if isinstance(error, SavedIndexError):
            raise
        raise SavedIndexError(
            f"{directory} cannot have a journal: {error.strerror or error}"
        ) from error


def current_state(directory: Path) -> str | None:
    """Return the name of the state that is saved in a directory, if one is."""
    try:
        state: str = _read_header(directory)["state"]
    except SavedIndexError:
        return None
    return state


def _try_lock(directory: Path) -> typing.IO[bytes]:
    lock = (directory / _JOURNAL_LOCK).open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise SavedIndexError(
            f"{directory} is in use by an engine that keeps a journal there; close that one first"
        ) from error
    return lock


def _clean(target: Path) -> None:
    """Remove what no facts speak of: replaced arrays, and the remains of interrupted saves."""
    used = {FACTS, _JOURNAL_LOCK}
    try:
        state = _read_header(target)["state"]
        used |= {_file_of(state), journal_path(target, state).name}
    except SavedIndexError:
        if (target / FACTS).exists():  # nobody knows what it speaks of
            return
    for path in target.iterdir():
        if _is_ours(path.name) and path.name not in used:
            path.unlink()


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Let one save at a time into a directory; the others wait."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _flush(file: typing.IO[Any]) -> None:
    """Have a file on disk before anything else happens."""
    file.flush()
    os.fsync(file.fileno())


def sync(directory: Path) -> None:
    """Have the names in a directory on disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_array(file: typing.BinaryIO, array: npt.NDArray[Any]) -> dict[str, Any]:
    """Append an array; return what and where it is."""
    values = np.ascontiguousarray(array)
    file.write(bytes(-file.tell() % _ALIGNMENT))
    offset = file.tell()
    data = _bytes_of(values)
    file.write(data)
    return {
        "dtype": values.dtype.str,
        "shape": list(array.shape),
        "offset": offset,
        "checksum": xxhash.xxh3_64_hexdigest(data),
    }


def _bytes_of(array: npt.NDArray[Any]) -> Any:
    return array.reshape(-1).view(np.uint8)


def _flat(contents: Contents, prefix: str = "") -> Iterator[tuple[str, npt.NDArray[Any]]]:
    for name, group in contents.groups.items():
        yield from _flat_group(group, f"{prefix}{name}/")
    for name, part in contents.inner.items():
        yield from _flat(part, f"{prefix}{name}/")


def _flat_group(group: Any, prefix: str) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    for field, value in zip(group._fields, group, strict=True):
        if isinstance(value, tuple):
            yield from _flat_group(value, f"{prefix}{field}/")
        else:
            yield f"{prefix}{field}", value


def _all_facts(contents: Contents) -> dict[str, Any]:
    inner = {name: _all_facts(part) for name, part in contents.inner.items()}
    return {"own": contents.facts, "groups": sorted(contents.groups), "inner": inner}


def _checksum_of_facts(header: dict[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(header, sort_keys=True).encode())


# ---- opening ------------------------------------------------------------------------------------


class Saved:
    """A saved state, or a part of one.

    Attributes:
        facts: What was saved that is not an array.
        where: The directory and the part, for messages.
        state: Name of the saved state.
    """

    def __init__(
        self, where: str, state: str, facts: dict[str, Any], arrays: dict[str, Any]
    ) -> None:
        self.where = where
        self.state = state
        self.facts: dict[str, Any] = facts["own"]
        self._facts = facts
        self._arrays = arrays

    @classmethod
    def open(cls, directory: str | Path | Saved, *, verify: bool = False) -> Self:
        """Check a directory and map its arrays; what is open already comes back as it is.

        Args:
            directory: Where a state was saved.
            verify: Whether to compare the arrays with their checksums even if this process has
                compared the same file before.
        """
        if isinstance(directory, Saved):
            return typing.cast(Self, directory)
        for _ in range(N_TRIES):
            header = _read_header(Path(directory))
            path = Path(directory) / _file_of(header["state"])
            try:
                with understood(directory):
                    arrays = _map_arrays(path, header, verify=verify)
                    return cls(str(directory), header["state"], header["facts"], arrays)
            except FileNotFoundError:
                continue  # another save has just taken its place
        raise SavedIndexError(f"{path} is missing")

    @property
    def n_arrays(self) -> int:
        """Number of arrays."""
        return len(self._arrays)

    @property
    def n_bytes(self) -> int:
        """Bytes of the arrays."""
        return sum(self.array_bytes.values())

    @property
    def array_bytes(self) -> dict[str, int]:
        """Bytes of each array, by its part and name."""
        return {name: int(array.nbytes) for name, array in self._arrays.items()}

    def has(self, name: str) -> bool:
        """Whether there is a group of that name."""
        return name in self._facts["groups"]

    def group(self, name: str, group_type: type[Group]) -> Group:
        """Return one group of arrays as the given NamedTuple type, which says what they hold."""
        return self._group(name + "/", group_type)

    def inner(self, name: str) -> Saved:
        """Return a part that was saved by itself."""
        if name not in self._facts["inner"]:
            raise SavedIndexError(f"{self.where} has no part {name!r}; it is another kind of state")
        arrays = {
            path.removeprefix(name + "/"): array
            for path, array in self._arrays.items()
            if path.startswith(name + "/")
        }
        return Saved(f"{self.where}/{name}", self.state, self._facts["inner"][name], arrays)

    def _group(self, prefix: str, group_type: type[Group]) -> Group:
        hints = typing.get_type_hints(group_type)
        values: list[Any] = []
        for field in group_type._fields:  # type: ignore[attr-defined]
            path, hint = prefix + field, hints[field]
            if path in self._arrays:
                array = self._arrays[path]
                wanted = _dtype_of(hint)
                if wanted is not None and array.dtype != wanted:
                    raise SavedIndexError(
                        f"{self.where} has {array.dtype} in array {path!r}, not {wanted}; save it "
                        f"again"
                    )
                values.append(array)
            elif hasattr(hint, "_fields"):
                values.append(self._group(path + "/", hint))
            else:
                raise SavedIndexError(f"{self.where} has no array {path!r}; save it again")
        return group_type(*values)


def _dtype_of(hint: Any) -> np.dtype[Any] | None:
    """Return the type of elements that ``ndarray[shape, dtype[int64]]`` names, if it names one.

    Kernels are compiled for these.
    """
    match typing.get_args(hint):
        case (_, kind) if (named := typing.get_args(kind)) and named[0] is not Any:
            found: np.dtype[Any] = np.dtype(named[0])
            return found
    return None


def _read_header(directory: Path) -> dict[str, Any]:
    """Return ``facts.json`` after checking that it is ours, of this version, and whole."""
    try:
        header = json.loads((directory / FACTS).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise SavedIndexError(f"{directory} is not a saved index: {FACTS}: {error}") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise SavedIndexError(f"{directory} is not a saved index: no '{FORMAT}' in {FACTS}")
    if header.get("version") != VERSION:
        raise SavedIndexError(
            f"{directory} has format version {header.get('version')}, this Earshot reads "
            f"{VERSION}; build the index again"
        )
    if header.pop("checksum", None) != _checksum_of_facts(header):
        raise SavedIndexError(f"{directory / FACTS} is damaged: {_RESTORE}")
    with understood(directory):
        for name, kind in (("state", str), ("size", int), ("arrays", dict), ("facts", dict)):
            if not isinstance(header[name], kind):
                raise TypeError(f"{name} in {FACTS} is {header[name]!r}")
    return header


_RESTORE = "it is not what was saved; restore it from a copy, or build it again"


@contextlib.contextmanager
def understood(where: str | Path) -> Iterator[None]:
    """Refuse a state that is whole and yet not what this version saves."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise SavedIndexError(
            f"{where} is not as this Earshot saves it: {type(error).__name__}: {error}; build the "
            f"index again"
        ) from error


def _map_arrays(path: Path, header: dict[str, Any], *, verify: bool) -> dict[str, npt.NDArray[Any]]:
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            size = found.st_size
            if size != header["size"]:
                raise SavedIndexError(f"{path} has {size} bytes, not {header['size']}: {_RESTORE}")
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if size else b""
    except FileNotFoundError:
        raise
    except OSError as error:
        if isinstance(error, SavedIndexError):
            raise
        raise SavedIndexError(f"{path} cannot be opened: {error.strerror or error}") from error
    arrays = {name: _array_at(whole, place) for name, place in header["arrays"].items()}
    file_id = found.st_dev, found.st_ino
    content = size, found.st_mtime_ns, found.st_ctime_ns, header["state"]
    if verify or _compared.get(file_id) != content:
        _verify(path, arrays, header["arrays"])
        _compared[file_id] = content
    return arrays


_compared: dict[tuple[int, int], tuple[int, int, int, str]] = {}
"""Files, and how they were when this process compared them with their checksums."""


def _array_at(whole: Any, place: dict[str, Any]) -> npt.NDArray[Any]:
    """Return the array at a place; one that is not within the file raises."""
    dtype, shape, offset = np.dtype(place["dtype"]), place["shape"], place["offset"]
    if dtype.kind not in "biuf" or min(shape, default=0) < 0 or offset < 0:
        raise ValueError(f"there cannot be {shape} of {dtype} at byte {offset}")
    n = math.prod(shape)
    return np.frombuffer(whole, dtype, n, offset).reshape(shape) if n else np.empty(shape, dtype)


def _verify(path: Path, arrays: dict[str, npt.NDArray[Any]], places: dict[str, Any]) -> None:
    """Compare arrays with their checksums; reading is faster by two threads than by one."""

    def is_whole(name: str) -> bool:
        found = xxhash.xxh3_64_hexdigest(_bytes_of(arrays[name]))
        return bool(found == places[name]["checksum"])

    large = [name for name in arrays if arrays[name].nbytes > 1 << 20]
    small = [name for name in arrays if arrays[name].nbytes <= 1 << 20]
    damaged = [name for name in small if not is_whole(name)]
    if large:
        with ThreadPoolExecutor(2) as pool:
            whole = pool.map(is_whole, large)
            damaged += [name for name, good in zip(large, whole, strict=True) if not good]
    if damaged:
        raise SavedIndexError(f"{path} is damaged in array {damaged[0]!r}: {_RESTORE}")


def bring_in(arrays: tuple[Any, ...]) -> None:
    """Map the pages of opened arrays now, all at once, instead of one by one as they are touched.

    A hint: where the system does not take it, the pages come when they are needed.
    """
    owners = {id(owner): owner for owner in _owners(arrays)}
    for owner in owners.values():
        with contextlib.suppress(OSError, ValueError):
            owner.madvise(_MADV_POPULATE_READ)


def _owners(arrays: tuple[Any, ...]) -> Iterator[mmap.mmap]:
    """Yield the memory that arrays are mapped from, if they are."""
    for array in arrays:
        if isinstance(array, tuple):
            yield from _owners(array)
            continue
        owner = array
        while owner is not None and not isinstance(owner, mmap.mmap):
            owner = getattr(owner, "obj" if isinstance(owner, memoryview) else "base", None)
        if owner is not None:
            yield owner
