"""The shape of the package: imports flow downwards, and every dependency stays in its room."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import earshot

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "earshot"
MODULES = sorted(PACKAGE.rglob("*.py"))

LAYERS = [
    {"errors", "registry"},
    {"model", "storage"},
    {"kernels", "files", "workloads"},
    {"text"},
    {"encoding"},
    {"indexes"},
    {"semantics", "placement"},
    {"engine"},
    {"checks", "jobs"},
    {"spark", "service"},
    {"bench", "demo", "moving_demo"},
    {"cli"},
    {"__init__", "__main__"},
]
"""Rooms from the ground up: one may import itself and what is in the layers below its own."""

LEVELS = {room: level for level, layer in enumerate(LAYERS) for room in layer}

ROOMS_OF = {
    "pyspark": {"spark", "bench"},
    "py4j": {"spark"},
    "fastapi": {"service"},
    "starlette": {"service"},
    "uvicorn": {"service"},
    "httpx": {"service"},
    "duckdb": {"bench"},
    "matplotlib": {"bench"},
    "Stemmer": {"text"},
    "stopwordsiso": {"text"},
    "shapely": {"model", "files", "encoding"},
    "rich": {"cli", "bench", "spark"},
    "argparse": {"cli", "bench"},
    "hypothesis": set(),
    "pytest": set(),
}
"""The only rooms that may import a package."""

OPTIONAL = ["duckdb", "matplotlib", "Stemmer", "stopwordsiso"]
MAX_LINES = 700


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def modules() -> list[Any]:
    """Return all modules as parameters of a test."""
    return [pytest.param(path, id=name_of(path)) for path in MODULES]


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and full name of each module that a file imports, at its top or inside."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: imports are absolute"
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


@pytest.mark.parametrize("path", modules())
def test_imports_flow_downwards(path: Path) -> None:
    room = room_of(path)
    assert room in LEVELS, f"{room} is not in LAYERS; say where it belongs"
    wrong = []
    for line, imported in imports_of(path):
        parts = imported.split(".")
        if parts[0] != "earshot":
            continue
        target = parts[1] if parts[1] in LEVELS else "__init__"
        if target != room and LEVELS[target] >= LEVELS[room]:
            wrong.append(f"{name_of(path)}:{line} imports {imported} from above")
    assert not wrong


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_dependencies_stay_in_their_rooms(path: Path) -> None:
    for line, imported in imports_of(path):
        if imported.split(".")[0] in ("numba", "llvmlite"):
            assert is_kernel_file(path), f"{name_of(path)}:{line} imports {imported}"
        rooms = ROOMS_OF.get(imported.split(".")[0])
        assert rooms is None or room_of(path) in rooms, (
            f"{name_of(path)}:{line} imports {imported}, which belongs to {sorted(rooms)}"
        )


ORACLES = sorted((PACKAGE / "checks").glob("*oracle*.py"))


@pytest.mark.parametrize("path", ORACLES, ids=name_of)
def test_oracles_share_no_code_with_what_they_judge(path: Path) -> None:
    """Of Earshot they import each other, and the model's data types: no function, no constant."""
    oracles = {f"earshot.checks.{oracle.stem}" for oracle in ORACLES}
    for line, imported in imports_of(path):
        module, _, name = imported.rpartition(".")
        if not imported.startswith("earshot") or module in oracles:
            continue
        is_type = name[0].isupper() and not name.isupper()
        # The reserved token is part of what the arrays mean.
        is_allowed = module.startswith("earshot.model.") and (is_type or name == "EVERYWHERE_TOKEN")
        assert is_allowed, f"{name_of(path)}:{line} imports {imported}"


def test_only_one_module_decides_how_numba_compiles() -> None:
    nodes = [
        (path, node)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    ]
    named = [(path, node) for path, node in nodes if isinstance(node, ast.Attribute | ast.Name)]
    called = [(path, node.func) for path, node in nodes if isinstance(node, ast.Call)]
    deciding = [
        name_of(path)
        for places, names in ((named, ("njit", "jit")), (called, ("Kernel", "CPUDispatcher")))
        for path, node in places
        if (getattr(node, "attr", None) or getattr(node, "id", None)) in names
    ]
    assert set(deciding) == {"kernels/jit.py"}


@pytest.mark.parametrize("path", modules())
def test_modules_stay_readable(path: Path) -> None:
    n_lines = len(path.read_text(encoding="utf-8").splitlines())
    assert n_lines <= MAX_LINES, f"{name_of(path)} has {n_lines} lines; split it by what it is for"
    assert path.stem not in ("utils", "util", "common", "helpers", "core", "misc")


def is_kernel_file(path: Path) -> bool:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return "kernels" in parts


def test_kernels_stand_in_rooms_of_their_name() -> None:
    for path in MODULES:
        if any(imported == "earshot.kernels.jit.kernel" for _, imported in imports_of(path)):
            assert is_kernel_file(path), name_of(path)


def test_every_index_has_a_folder() -> None:
    from earshot.indexes import structures_of
    from earshot.indexes.rtree.index import RtreeIndex

    for name, index in structures_of("boolean").items():
        assert index.name == name
        folder = "rtree" if issubclass(index, RtreeIndex) else name
        assert (PACKAGE / "indexes" / folder / "index.py").is_file()


def test_every_ranked_index_begins_with_its_scoring() -> None:
    from earshot.indexes import structures_of

    for name, index in structures_of("ranked").items():
        assert index.name == name
        assert index.arrays_type._fields[0] == "scoring"  # type: ignore[attr-defined]


def test_all_is_true_and_sorted() -> None:
    assert list(earshot.__all__) == sorted(set(earshot.__all__))
    for name in earshot.__all__:
        assert hasattr(earshot, name), name
    imported = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
    }
    public = {name for name in imported if not name.startswith("_")}
    assert public | {"__version__"} >= set(earshot.__all__)
    star: dict[str, object] = {}
    exec("from earshot import *", star)
    assert set(earshot.__all__) <= set(star)


def test_the_version_is_that_of_the_project() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == earshot.__version__


def test_the_library_works_without_optional_packages() -> None:
    code = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
sys.path[:0] = {sys.path!r}
import earshot, earshot.cli, earshot.jobs, earshot.demo, earshot.checks.laws
from earshot.errors import MissingExtra
engine = earshot.Engine()
engine.subscribe(earshot.Subscription(1, ("fire",)))
assert engine.publish(earshot.Message(1, "Fire!", place=earshot.Point(0, 0)))
for options in ({{"stem": True}}, {{"stop_words": True}}):
    try:
        earshot.Analyzer("en", **options).tokens("running")
    except MissingExtra as error:
        assert "language" in str(error), error
    else:
        raise AssertionError(options)
assert not set({OPTIONAL!r}) & sys.modules.keys()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_start_imports_only_what_is_used() -> None:
    """By modules, since a clock would depend on the machine; most of those are Numba's."""
    code = f"""
import sys
sys.path[:0] = {sys.path!r}
import earshot
assert len([name for name in sys.modules if name.startswith("earshot")]) == 1
assert not {{"numpy", "numba", "pyarrow", "shapely"}} & sys.modules.keys()
engine = earshot.Engine()
engine.subscribe(earshot.Subscription(1, ("fire",)))
assert list(engine.publish(earshot.Message(1, "Fire!", place=earshot.Point(0, 0))))
unused = ("pandas", "rich", "pyarrow.dataset", "pyarrow.parquet", "earshot.semantics.topk",
          "earshot.indexes.rtree", "earshot.indexes.block_lists", "earshot.files", "earshot.cli")
assert not set(unused) & sys.modules.keys(), set(unused) & sys.modules.keys()
assert len([name for name in sys.modules if name.startswith("earshot")]) < 110
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_command_that_compiles_nothing_loads_nothing_to_compile_with(tmp_path: Path) -> None:
    row = '{"id": 1, "keywords": ["fire"], "min_x": 0, "min_y": 0, "max_x": 1, "max_y": 1}\n'
    (tmp_path / "rows.ndjson").write_text(row)
    arguments = ["earshot", "match", "rows.ndjson", "rows.ndjson", "--out", "out.ndjson"]
    code = f"""
import gc, sys
sys.path[:0] = {sys.path!r}
from earshot.cli.process import run
sys.argv = {arguments!r}
assert run() == 0
assert gc.get_freeze_count() > 0  # nothing is looked through at the end
print(*sys.modules)
"""
    for _ in range(2):  # the first may have to compile
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
        )
    unused = {"pandas", "pyarrow.parquet", "numba.typed.typeddict", "numba.np.npyimpl"}
    assert not unused & set(done.stdout.split())
