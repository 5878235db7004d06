"""Compiled kernels on disk, each in a file named after all that it depends on.

Numba's own cache goes by the path of a source file and the time of its last change. It misses
changes in other files, and cannot be moved. Here the name of a file is a digest of the kernel's
byte code and constants, of everything that it calls, of the types of its arguments with the fields
of NamedTuples, of its form (:mod:`earshot.kernels.inner`), of the processor, and of the versions at
work. So a changed comment recompiles
nothing, a changed constant whatever uses it, and a file is right wherever it lies: kernels can come
with the package, compiled for some kinds of processors (``SHIPPED``).

Files are put in place whole and never changed: processes that compile at the same time do each
other no harm. What one of them compiles, the others wait for (:mod:`earshot.kernels.turns`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import platform
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import llvmlite
import llvmlite.binding
import numba
import numpy as np
import xxhash
from numba.core import caching, config, event, serialize, sigutils, types
from numba.core.dispatcher import Dispatcher
from numba.extending import _Intrinsic, overload

from earshot.kernels.inner import Kernel, rebuilt
from earshot.kernels.loading import load
from earshot.kernels.turns import end_turn, take_turn

SHIPPED = Path(__file__).parent / "shipped"
"""Kernels that come with the package, where somebody has compiled them for it."""

_V3 = ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
LEVELS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "x86-64-v4": (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
        "x86-64-v3": _V3,
    },
    "aarch64": {"generic": ()},
    "arm64": {"generic": ()},
}
"""Kinds of processors that kernels are shipped for, best first, and what such a one must have."""

SUFFIX = ".kernel"
_DIGEST_BYTES = 16
_UNREADABLE = (OSError, EOFError, pickle.UnpicklingError, ImportError, AttributeError)
_VERSIONS = (sys.version_info[:2], numba.__version__, llvmlite.__version__)

loaded: list[str] = []
"""The files that this process has found so far."""

# What an overloaded function is implemented by, and the kernels that are chosen by a type.
_implementations: dict[Any, list[Any]] = {}


def implements(function: Callable[..., Any], **options: Any) -> Callable[[Any], Any]:
    """Choose a function's implementation by types, as :func:`numba.extending.overload` does."""

    def register(choose: Any) -> Any:
        depends(function, choose, repr(options))
        return overload(function, jit_options=options)(choose)

    return register


def depends(what: Any, *needed: Any) -> None:
    """Say what a kernel needs that calls a function, or that has to do with a type.

    Args:
        what: The function, or the type.
        needed: Kernels and functions that are called then, and texts that tell how.
    """
    _implementations.setdefault(what, []).extend(needed)


class CompiledKernels(caching._Cache):  # type: ignore[misc]  # Numba has no types
    """The compiled forms of one kernel, for Numba to find and to keep."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._turns: list[str] = []

    @property
    def cache_path(self) -> str:
        """Where new ones are kept."""
        return str(directory())

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return the form for a signature, if this machine has it.

        If not, it is this process's turn to compile it, until :meth:`end_turns`.
        """
        processor = target.codegen().magic_tuple()
        own = directory() / self._name(signature, processor)
        shipped = (folder / self._name(signature, kind) for folder, kind in _shipped_for(processor))
        for path in (own, *shipped):
            found = self._load(path, target)
            if found is not None:
                return found
        turn = _hash(str(own))
        self._turns.append(turn)
        take_turn(turn)
        return self._load(own, target)  # another may have compiled it meanwhile

    def end_turns(self) -> None:
        """Let other processes go on that need what this one was about to compile."""
        while self._turns:
            end_turn(self._turns.pop())

    def _load(self, path: Path, target: Any) -> Any:
        with contextlib.suppress(*_UNREADABLE):
            content = path.read_bytes()
            if content[:_DIGEST_BYTES] == _digest_of(content[_DIGEST_BYTES:]):
                parts = pickle.loads(memoryview(content)[_DIGEST_BYTES:])
                found = rebuilt(target, *parts) if self._kernel.is_inner else load(target, *parts)
                loaded.append(path.name)
                return found
        return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep a form, unless its code is good for this process only."""
        if compiled.lifted or compiled.library.has_dynamic_globals:
            return
        name = self._name(signature, compiled.codegen.magic_tuple())
        # A machine without a place to write compiles again and again.
        with contextlib.suppress(OSError):
            directory().mkdir(parents=True, exist_ok=True)
            content = serialize.dumps(compiled._reduce())
            draft = directory() / f"{secrets.token_hex(8)}{SUFFIX}"
            try:
                draft.write_bytes(_digest_of(content) + content)
                draft.replace(directory() / name)
            except BaseException:
                draft.unlink(missing_ok=True)
                raise

    def enable(self) -> None:
        """Nothing to do: it always is."""

    def disable(self) -> None:
        """Nothing to do: the same."""

    def flush(self) -> None:
        """Nothing to do: what is out of date has another name."""

    def _name(self, signature: Any, processor: tuple[str, str, str]) -> str:
        arguments, _ = sigutils.normalize_signature(signature)
        classes: set[type] = set()
        told = [_type_name(each, classes) for each in arguments]
        also = [kernel for each in classes for kernel in _implementations.get(each, ())]
        form = "inner" if self._kernel.is_inner else "full"
        parts = (_VERSIONS, _settings(), processor, form, told, digest((self._kernel, *also)))
        return f"{self._kernel.py_func.__name__}-{_hash(parts)}{SUFFIX}"


def _settings() -> list[str]:
    """Return how Numba is told to compile everything."""
    names = ("BOUNDSCHECK", "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "DEBUGINFO_DEFAULT")
    return [str(getattr(config, name)) for name in names]


def _digest_of(content: bytes) -> bytes:
    return xxhash.xxh3_128_digest(content)


def directory() -> Path:
    """Return where compiled kernels are kept: ``NUMBA_CACHE_DIR``, or the user's cache."""
    return Path(config.CACHE_DIR or _default_directory())


@cache
def _default_directory() -> Path:
    try:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # a user without a home directory, as in some containers
        # One of the user's own: what is in it is run.
        root = Path(tempfile.gettempdir()) / f"earshot-{os.getuid()}"
        root.mkdir(mode=0o700, exist_ok=True)
        if root.stat().st_uid != os.getuid():
            root = Path(tempfile.mkdtemp(prefix="earshot-"))
    return Path(root) / "earshot" / "kernels"


@cache
def _shipped_for(processor: tuple[str, str, str]) -> tuple[tuple[Path, Any], ...]:
    """Return where shipped kernels are that run on this machine, best first, and their kinds."""
    triple, name, _ = processor
    if not SHIPPED.is_dir() or name != llvmlite.binding.get_host_cpu_name():
        return ()
    return tuple((SHIPPED, (triple, level, "")) for level in levels_here())


def levels_here() -> list[str]:
    """Return the kinds of processors that this machine can stand in for, best first."""
    features = llvmlite.binding.get_host_cpu_features()
    levels = LEVELS.get(platform.machine(), {}).items()
    return [level for level, needed in levels if all(features.get(each) for each in needed)]


# ---- telling -------------------------------------------------------------------------------------


class Compilations(event.Listener):  # type: ignore[misc]  # Numba has no types
    """Counts what is compiled while it listens, and how long that takes.

    Args:
        say: Told the name of each kernel when its turn comes, and how many there were before.
    """

    def __init__(self, say: Callable[[str, int], None]) -> None:
        self.n_kernels = 0
        self.elapsed_s = 0.0
        self._say = say
        self._depth = 0  # of kernels that are compiled for others
        self._began_s = 0.0

    def on_start(self, started: Any) -> None:
        """Note that a kernel is compiled."""
        if self._depth == 0:
            self._began_s = time.monotonic()
        self._say(started.data["dispatcher"].py_func.__name__, self.n_kernels)
        self._depth += 1
        self.n_kernels += 1

    def on_end(self, ended: Any) -> None:
        """Note that it is done."""
        self._depth -= 1
        if self._depth == 0:
            self.elapsed_s += time.monotonic() - self._began_s

    def listening(self) -> contextlib.AbstractContextManager[Any]:
        """Listen until this is left."""
        watch: contextlib.AbstractContextManager[Any] = event.install_listener(
            "numba:compile", self
        )
        return watch


# ---- what a kernel depends on --------------------------------------------------------------------


def digest(roots: Iterable[Any]) -> str:
    """Return the same text for as long as what ``roots`` call, and use, is the same."""
    return _hash(sorted(_told(each) for each in _reached(roots)))


def _reached(roots: Iterable[Any]) -> Iterator[Any]:
    """Yield functions and all that they need, kernels for one, each once."""
    waiting, seen = list(roots), set()
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += _needs(each)[1]


def _told(each: Any) -> str:
    return _needs(each)[0]


_needed: dict[int, tuple[str, list[Any], Any]] = {}


def _needs(each: Any) -> tuple[str, list[Any]]:
    """Return what there is to tell of a function by itself, and what else it needs."""
    if isinstance(each, str):
        return each, []
    if id(each) not in _needed:
        options = getattr(each, "targetoptions", None)
        function = getattr(each, "py_func", None) or getattr(each, "_defn", each)
        needed = list(_implementations.get(each, ()))
        values: list[tuple[str, str]] = []
        for name, value in sorted(_globals_of(function).items()):
            if _is_ours(value):
                needed.append(value)
            values.append((name, _value_name(value)))
        code = _code(function.__code__, function.__doc__)
        told = (function.__name__, code, repr(function.__defaults__), values, repr(options))
        # With what it is of, whose id is no other's as long as it is kept.
        _needed[id(each)] = _hash(told), needed, each
    return _needed[id(each)][:2]


def _is_ours(value: Any) -> bool:
    """Whether something is a function of this package, in any of the forms that kernels call."""
    if isinstance(value, _Intrinsic):
        value = value._defn
    is_function = isinstance(value, FunctionType | Dispatcher)
    return is_function and not value.__module__.startswith(("numba.", "numpy."))


def _globals_of(function: Any) -> dict[str, Any]:
    """Return what the names in a function mean outside of it, in modules that it names too."""
    found = {}
    names = set(_names(function.__code__))
    for name in names & function.__globals__.keys():
        value = found[name] = function.__globals__[name]
        if isinstance(value, ModuleType) and value.__name__.startswith("earshot."):
            found |= {f"{name}.{each}": vars(value)[each] for each in names & vars(value).keys()}
    cells = function.__closure__ or ()
    names_of_cells = function.__code__.co_freevars
    found |= {name: cell.cell_contents for name, cell in zip(names_of_cells, cells, strict=True)}
    return found


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _code(code: CodeType, docstring: str | None = None) -> Any:
    """Return all of a function's code but its docstring and where it stands."""
    constants = code.co_consts
    if docstring is not None and constants[:1] == (docstring,):
        constants = (None, *constants[1:])
    told = [_code(each) if isinstance(each, CodeType) else repr(each) for each in constants]
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return code.co_code, code.co_names, arguments, code.co_exceptiontable, told


def _value_name(value: Any) -> str:
    """Return what compiled code knows of a value outside of it."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{_hash(value.tobytes())}"
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}{getattr(value, '_fields', '')}"
    if isinstance(value, tuple):
        return repr([_value_name(each) for each in value])
    if isinstance(value, bool | int | float | str | bytes | np.generic | None):
        return repr(value)
    # A function tells of itself; a module is known by its version; a registry by its types.
    return f"{type(value).__name__} {getattr(value, '__name__', '')}"


def _type_name(kind: Any, classes: set[type]) -> Any:
    """Return what a type is to compiled code, and collect the NamedTuples in it."""
    if isinstance(kind, types.BaseNamedTuple):  # type: ignore[attr-defined]  # Numba has no types
        classes.add(kind.instance_class)
        parts = [_type_name(each, classes) for each in kind.types]
        return _value_name(kind.instance_class), parts
    return str(kind)


def _hash(told: Any) -> str:
    content = told if isinstance(told, bytes) else repr(told).encode()
    return hashlib.sha256(content).hexdigest()[:32]
