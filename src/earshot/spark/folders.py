"""Directories that driver and workers share: on this machine, a mounted disk or an object store.

Small files are written whole or not at all. What has to be memory-mapped is used where it is when
the directory is local or mounted, and otherwise fetched once per machine into the user's cache
directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Self
from urllib.parse import urlencode, urlsplit

import pyarrow as pa
from pyarrow import fs

from earshot.errors import InvalidFile, InvalidParameter
from earshot.spark.hadoop import create_file
from earshot.spark.java import cache_directory, create_whole, write_whole

SCHEMES = ("s3", "s3a", "gs", "abfs", "abfss", "hdfs", "viewfs")
"""File systems that both Arrow and Hadoop know."""
REFUSED = {
    "dbfs": "dbfs: is known to Spark alone; give the path where it is mounted, /dbfs/...",
    "wasb": "wasb: is known to Spark alone; give the same place as abfs:",
    "wasbs": "wasbs: is known to Spark alone; give the same place as abfss:",
    "oss": "oss: is known to Spark alone; give a mounted path, or an s3: endpoint",
    "http": "http: cannot be written to; copy the files first",
    "https": "https: cannot be written to; copy the files first",
}
"""File systems that cannot be used, and what can be instead."""
_EXPECTED = (
    f"give a path or a URI that begins with file:, {', '.join(f'{scheme}:' for scheme in SCHEMES)}"
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


class Folder:
    """A directory by its path or URI; it need not exist yet.

    Args:
        location: A path (taken as local or mounted, also where Spark's default is another file
            system), or a URI: ``file:``, ``s3:``, ``s3a:``, ``gs:``, ``abfs:``, ``abfss:``,
            ``hdfs:``, ``viewfs:``. What follows ``file:`` is the path as it is, as for Spark:
            ``%20`` is no space. ``dbfs:`` is refused; Databricks mounts it at ``/dbfs``.
    """

    def __init__(self, location: str | Path) -> None:
        text = str(location)
        self._files: fs.FileSystem
        check_location(text)
        if not is_uri(text) or text.startswith("file:"):
            self._files, self._path = fs.LocalFileSystem(), _local_path(text)
            text = f"file://{self._path}"
        else:
            try:
                self._files, self._path = fs.FileSystem.from_uri(_arrow_uri(text))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
                raise InvalidParameter(
                    f"{location} cannot be reached: {error}; {_EXPECTED}"
                ) from error
        self.uri = text.rstrip("/")
        """As Spark takes it."""

    def __truediv__(self, name: str) -> Folder:
        return Folder(f"{self.uri}/{name}")

    def __repr__(self) -> str:
        return f"Folder({self.uri!r})"

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        return (type(self), (self.uri,))

    @property
    def is_local(self) -> bool:
        """Whether files can be opened by path on every machine."""
        return isinstance(self._files, fs.LocalFileSystem)

    @property
    def path(self) -> str:
        """How messages to people name it."""
        return self._path if self.is_local else self.uri

    # ---- names --------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names in the directory, sorted; none where it does not exist."""
        selector = fs.FileSelector(self._path, allow_not_found=True)
        found = (entry.base_name for entry in self._files.get_file_info(selector))
        return sorted(name for name in found if not name.startswith("."))

    def files(self) -> list[tuple[str, int, int]]:
        """Return the files in the directory and those below it, hidden ones left out.

        Of each its path in the directory, bytes, and last change in microseconds.
        """
        selector = fs.FileSelector(self._path, allow_not_found=True, recursive=True)
        root = len(self._path.rstrip("/")) + 1
        found = (
            (entry.path[root:], entry.size or 0, (entry.mtime_ns or 0) // 1000)
            for entry in self._files.get_file_info(selector)
            if entry.type == fs.FileType.File
        )
        return sorted(each for each in found if "/." not in f"/{each[0]}")

    def exists(self, name: str = "") -> bool:
        """Whether there is a file or directory of this name."""
        info = self._files.get_file_info(self._of(name))
        return bool(info.type != fs.FileType.NotFound)

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with all that is in it; fine if it is gone already."""
        info = self._files.get_file_info(self._of(name))
        with contextlib.suppress(FileNotFoundError):
            if info.type == fs.FileType.Directory:
                self._files.delete_dir(self._of(name))
            elif info.type == fs.FileType.File:
                self._files.delete_file(self._of(name))

    def rename(self, name: str, new: str) -> None:
        """Give something another name, in place of what has that name."""
        self.remove(new)
        self._files.move(self._of(name), self._of(new))

    # ---- contents -----------------------------------------------------------------------------

    def read_text(self, name: str) -> str:
        """Return the content of a file."""
        with self._files.open_input_stream(self._of(name)) as stream:
            text: str = stream.read().decode()
            return text

    def read_json(self, name: str) -> Any:
        """Return the content of a JSON file.

        Raises:
            InvalidFile: It is damaged.
        """
        try:
            return json.loads(self.read_text(name))
        except ValueError as error:
            raise InvalidFile(f"{self.path}/{name} is damaged: {error}") from None

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file, whole or not at all."""
        data = json.dumps(value, indent=1).encode()
        if not self.is_local:  # an object appears when it is complete
            with self._files.open_output_stream(self._of(name)) as stream:
                stream.write(data)
            return
        write_whole(Path(self._of(name)), data)

    def create_json(self, name: str, value: Any) -> None:
        """Write a JSON file that must not be there yet: of several writers, one succeeds.

        Where the folder is not local, that is done by the Hadoop of the running Spark.

        Raises:
            FileExistsError: It is there.
        """
        data = json.dumps(value, indent=1).encode()
        if self.is_local:
            create_whole(Path(self._of(name)), data)
        else:
            create_file(f"{self.uri}/{name}", data)

    def add(self, name: str, write: Callable[[Path], object]) -> None:
        """Make a directory of what ``write`` puts at the path that it is given."""
        with self.draft() as draft:
            write(draft / "new")
            self.put(name, draft / "new")

    def put(self, name: str, source: Path) -> None:
        """Move a finished local directory here under a name that is not in use."""
        if self.is_local:
            target = Path(self._of(name))
            target.parent.mkdir(parents=True, exist_ok=True)
            source.rename(target)
            return
        fs.copy_files(str(source), self._of(name), destination_filesystem=self._files)
        shutil.rmtree(source)

    def put_file(self, name: str, source: Path) -> None:
        """Move a finished local file here, in place of what has that name."""
        if self.is_local:
            source.replace(self._of(name))
            return
        with source.open("rb") as file, self._files.open_output_stream(self._of(name)) as stream:
            shutil.copyfileobj(file, stream)
        source.unlink()

    @contextlib.contextmanager
    def draft(self) -> Iterator[Path]:
        """Yield a new local directory, from which :meth:`put` is a rename where that can be."""
        parent = None
        if self.is_local:
            Path(self._path).mkdir(parents=True, exist_ok=True)
            parent = self._path
        made = Path(tempfile.mkdtemp(prefix=".draft-", dir=parent))
        made.chmod(0o755)
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def local(self, name: str) -> Path:
        """Return a local directory with the content, to be memory-mapped; it is never changed.

        Fetched once per machine where the folder is not local. What was fetched of folders beside
        this one that are gone is removed then.
        """
        if self.is_local:
            return Path(self._of(name))
        target = self._cache / name
        if target.exists():
            return target
        with machine_lock(f"fetch-{self._cache.parent.name}"):
            if not target.exists():
                self._fetch(name, target)
        return target

    def _fetch(self, name: str, target: Path) -> None:
        beside = self._cache.parent
        beside.mkdir(parents=True, exist_ok=True)
        # One process at a time fetches here, so other drafts are remains of one that was killed.
        there = set(Folder(self.uri.rpartition("/")[0]).names())
        for path in list(beside.iterdir()):
            if path.name not in there:
                shutil.rmtree(path, ignore_errors=True)
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=beside))
        fs.copy_files(self._of(name), str(draft), source_filesystem=self._files)
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.rename(target)

    @property
    def _cache(self) -> Path:
        """Where this machine keeps what it fetched; folders beside each other are so there."""
        parent, _, own_name = self.uri.rpartition("/")
        digest = hashlib.sha256(parent.encode()).hexdigest()[:16]
        return cache_directory() / "indexes" / digest / own_name

    def forget(self) -> None:
        """Remove what this machine fetched of the folder, if anything."""
        if not self.is_local:
            shutil.rmtree(self._cache, ignore_errors=True)

    def _of(self, name: str) -> str:
        return f"{self._path}/{name}" if name else self._path


def _arrow_uri(location: str) -> str:
    """Return a URI as Arrow spells it.

    Arrow has no settings of Hadoop's, so an endpoint and a region of ``s3:`` are taken from the
    environment, as by other tools.
    """
    scheme, _, rest = location.partition("://")
    if scheme not in ("s3", "s3a"):
        return location
    given = {
        "endpoint_override": os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL"),
        "region": os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
    }
    known = {name: value for name, value in given.items() if value and f"{name}=" not in rest}
    if "endpoint_override" in known:
        where = urlsplit(known["endpoint_override"])
        known |= {"scheme": where.scheme, "endpoint_override": where.netloc}
    separator = "&" if "?" in rest else "?"
    return f"s3://{rest}{separator if known else ''}{urlencode(known)}"


def is_uri(location: str) -> bool:
    """Whether a location is no path: what it begins with names a kind of file system."""
    return location.startswith("file:") or _SCHEME.match(location) is not None


def check_location(location: str) -> None:
    """Refuse a file system that is not known, or cannot be used, by its name."""
    scheme = location.partition(":")[0]
    if not is_uri(location) or scheme == "file":
        return
    if scheme in REFUSED:
        raise InvalidParameter(f"{location}: {REFUSED[scheme]}")
    if scheme not in SCHEMES:
        raise InvalidParameter(f"{location} cannot be reached: {scheme}: is not known; {_EXPECTED}")
    if "://" not in location:
        raise InvalidParameter(f"{location}: two slashes come after {scheme}:, {scheme}://...")


def is_local_file(location: str) -> bool:
    """Whether a location is a file of this machine."""
    is_local = not is_uri(location) or location.startswith("file:")
    return is_local and Path(_local_path(location)).is_file()


def at_home(path: str) -> Path:
    """Return a path with ``~`` replaced, unless it names nobody's home."""
    with contextlib.suppress(RuntimeError):
        return Path(path).expanduser()
    return Path(path)


def _local_path(location: str) -> str:
    """Return the absolute path that a path or a ``file:`` URI means."""
    if location.startswith("file:"):
        path = location.removeprefix("file:")
        if path.startswith("//"):
            path = f"/{path[2:].partition('/')[2]}"  # a host between the slashes is this one
        return path.rstrip("/") or "/"
    return str(at_home(location).absolute())


@contextlib.contextmanager
def machine_lock(name: str) -> Iterator[None]:
    """Let one process of this machine and user through at a time."""
    with _lock_file(name) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def first_of_machine(name: str) -> Iterator[None]:
    """Let one process of this machine and user through first, then all that came meanwhile."""
    with _lock_file(name) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


def _lock_file(name: str) -> IO[str]:
    path = cache_directory() / "locks" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("w")
