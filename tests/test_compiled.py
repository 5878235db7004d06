from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from earshot.kernels import compiled

CALLEE = '''
from typing import NamedTuple
import numpy as np
from earshot.kernels.jit import lean_kernel

FACTOR = 3
TABLE = np.array([1, 2])

class Pair(NamedTuple):
    first: np.ndarray
    second: np.ndarray

@lean_kernel
def scaled(value):
    """Return it scaled."""
    return value * FACTOR + TABLE[0]
'''
CALLER = '''
from callee import Pair, scaled
from earshot.kernels.jit import kernel

@kernel
def total(pair):
    """Add up."""
    return scaled(pair.first[0]) - pair.second[0]
'''
USE = """
import sys
import numpy as np
from numba.core import event
from callee import Pair
from caller import total
from earshot.kernels import compiled

with event.install_recorder("numba:compile") as recorder:
    print(total(Pair(np.array([5]), np.array([1]))))
print(len([each for _, each in recorder.buffer if each.is_start]))
"""


def written(folder: Path) -> Path:
    folder.mkdir()
    (folder / "callee.py").write_text(CALLEE)
    (folder / "caller.py").write_text(CALLER)
    return folder


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return written(tmp_path / "sources")


@pytest.fixture(scope="module")
def kept_by_all(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels of the sources as they are; to be copied."""
    folder = tmp_path_factory.mktemp("kept")
    run(USE, written(folder / "sources"), folder / "kept")
    return folder / "kept"


def run(code: str, folder: Path, cache: Path, **environment: str) -> list[str]:
    """Return the lines that a program prints, with kernels kept in a directory."""
    paths = os.pathsep.join([str(folder), str(Path(compiled.__file__).parents[2])])
    settings = {"PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(cache)} | environment
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | settings, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return done.stdout.split()


def change(folder: Path, name: str, old: str, new: str) -> None:
    source = (folder / name).read_text()
    assert old in source
    (folder / name).write_text(source.replace(old, new))


def test_a_kernel_is_compiled_once(sources: Path, tmp_path: Path) -> None:
    assert run(USE, sources, tmp_path / "kept") == ["15", "2"]
    assert run(USE, sources, tmp_path / "kept") == ["15", "0"]
    elsewhere = sources.rename(tmp_path / "elsewhere")
    assert run(USE, elsewhere, tmp_path / "kept") == ["15", "0"]


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("callee.py", "Return it scaled.", "Scale.", ["15", "0"]),
        ("caller.py", '    """Add up."""\n', '    """Sum."""\n\n    # Adds up.\n', ["15", "0"]),
        ("callee.py", "FACTOR = 3", "FACTOR = 4", ["20", "2"]),
        ("callee.py", "[1, 2]", "[2, 2]", ["16", "2"]),
        ("callee.py", "value * FACTOR", "value - FACTOR", ["2", "2"]),
        ("callee.py", "@lean_kernel", "@lean_kernel  # the same", ["15", "0"]),
        ("caller.py", "- pair", "+ pair", ["17", "1"]),
        (
            "callee.py",
            "    first: np.ndarray\n    second: np.ndarray",
            "    second: np.ndarray\n    first: np.ndarray",
            ["-1", "1"],
        ),
    ],
)
def test_what_a_kernel_depends_on_compiles_it_again(
    name: str, old: str, new: str, expected: list[str], sources: Path, tmp_path: Path,
    kept_by_all: Path,
) -> None:  # fmt: skip
    shutil.copytree(kept_by_all, tmp_path / "kept")
    change(sources, name, old, new)
    assert run(USE, sources, tmp_path / "kept") == expected


def test_a_damaged_file_is_compiled_again(sources: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    run(USE, sources, kept)
    for path in kept.iterdir():
        path.write_bytes(path.read_bytes()[:100])
    assert run(USE, sources, kept) == ["15", "2"]


def test_processes_wait_for_what_another_compiles(sources: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda _: run(USE, sources, tmp_path / "kept"), range(3)))
    assert sorted(found) == [["15", "0"], ["15", "0"], ["15", "2"]]


def test_a_place_that_cannot_be_written_is_done_without(sources: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert run(USE, sources, tmp_path / "file") == ["15", "2"]


def test_a_kernel_for_others_is_compiled_in_full_when_python_calls_it(
    sources: Path, tmp_path: Path
) -> None:
    more = "print(scaled(np.int64(2)), total(Pair(np.array([6]), np.array([1]))))"
    use = USE.replace("print(len", f"    {more}\nprint(len")
    use = use.replace("import Pair", "import Pair, scaled")
    assert run(use, sources, tmp_path / "kept") == ["15", "7", "18", "3"]
    assert run(use, sources, tmp_path / "kept") == ["15", "7", "18", "0"]


def test_integers_of_any_width_are_one_kernel(sources: Path, tmp_path: Path) -> None:
    change(sources, "caller.py", "- pair.second[0]", "- scaled(2) - scaled(np.int32(1))")
    change(sources, "caller.py", "from callee", "import numpy as np\nfrom callee")
    assert run(USE, sources, tmp_path / "kept") == ["5", "2"]


@pytest.mark.skipif(not compiled.levels_here(), reason="no kernels are shipped for such a machine")
def test_kernels_that_are_shipped_need_no_compiling(sources: Path, tmp_path: Path) -> None:
    level = {"NUMBA_CPU_NAME": compiled.levels_here()[-1], "NUMBA_CPU_FEATURES": ""}
    shipped = tmp_path / "shipped"
    assert run(USE, sources, shipped, **level) == ["15", "2"]
    use = f"from earshot.kernels import compiled; from pathlib import Path\n{USE}".replace(
        "with event", f"compiled.SHIPPED = Path({str(shipped)!r})\nwith event"
    )
    assert run(use, sources, tmp_path / "own") == ["15", "0"]
    assert run(USE, sources, tmp_path / "own") == ["15", "2"]


DIGESTS = """
import importlib, pkgutil
import earshot
from earshot.kernels import compiled

for module in pkgutil.walk_packages(earshot.__path__, "earshot."):
    if ".kernels" in module.name:
        names = vars(importlib.import_module(module.name))
        for name, each in sorted(names.items()):
            if isinstance(each, compiled.Dispatcher):
                print(f"{module.name}.{name}={compiled.digest([each])}")
"""


def test_every_process_finds_what_another_has_compiled(tmp_path: Path) -> None:
    first, second = (run(DIGESTS, tmp_path, tmp_path, PYTHONHASHSEED=seed) for seed in "12")
    assert len(first) > 300
    assert first == second


LOAD_THEN_COMPILE = """
import sys
import numpy as np
from earshot.kernels import compiled
from earshot.kernels.jit import kernel
from callee import Pair, scaled
from caller import total

print(total(Pair(np.array([5]), np.array([1]))))
print("numba.np.arraymath" in sys.modules)  # which is for compiling

@kernel
def twice(pair):
    return np.full(2, total(pair) + scaled(pair.first[0]))

print(twice(Pair(np.array([5]), np.array([1]))).sum())
print(*sorted(each.partition("-")[0] for each in compiled.loaded))
"""


def test_what_was_loaded_can_be_compiled_into_another(sources: Path, tmp_path: Path) -> None:
    assert run(USE, sources, tmp_path / "kept") == ["15", "2"]
    found = run(LOAD_THEN_COMPILE, sources, tmp_path / "kept")
    assert found == ["15", "False", "62", "scaled", "total"]


def test_what_kernels_use_can_be_told_apart() -> None:
    """A value of another kind would be known by its type alone."""
    import dis
    import importlib
    import pkgutil
    from types import FunctionType, ModuleType

    import numpy as np
    from numba.core.dispatcher import Dispatcher
    from numba.extending import _Intrinsic

    import earshot

    known: Any = (
        bool | int | float | str | bytes | np.generic | np.ndarray | type | ModuleType
        | FunctionType | Dispatcher | _Intrinsic
    )  # fmt: skip
    for module in pkgutil.walk_packages(earshot.__path__, "earshot."):
        if ".kernels" not in module.name:
            continue
        for each in vars(importlib.import_module(module.name)).values():
            if not isinstance(each, Dispatcher):
                continue
            scope = each.py_func.__globals__
            for step in dis.get_instructions(each.py_func):
                if step.opname == "LOAD_GLOBAL" and step.argval in scope:
                    value = scope[step.argval]
                    values = value if isinstance(value, tuple) else (value,)
                    assert all(isinstance(part, known) for part in values), (each, step.argval)
