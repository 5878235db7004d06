"""Loading compiled kernels without what Numba needs to compile: a start is 0.15 s shorter.

Numba prepares all its types and functions before it loads the first kernel, and reads with each
kernel the code that others are compiled with. A process that only loads kernels needs neither. One
that compiles as well gets both then.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
from numba.core import codegen, compiler
from numba.core.runtime import rtsys


def load(
    target: Any,
    serialized: tuple[str, str, tuple[bytes, bytes]],
    about: Any,
    environment: Any,
    signature: Any,
    objectmode: bool,
    lifted: Any,
    annotation: str,
    reload_init: Any,
    environments: Any,
) -> Any:
    """Return what was compiled, as ``CompileResult._rebuild`` does from the same arguments."""
    rtsys.initialize(target)  # what kernels that allocate call
    for prepare in reload_init:
        prepare()
    library = _LoadedLibrary(target.codegen(), serialized)
    # Numba knows by this that it may be asked for.
    library.codegen._engine._defined_symbols.add(about.llvm_cpython_wrapper_name)
    entry_point = target.get_executable(library, about, environment)
    for each in environments:
        library.codegen.set_env(each.env_name, each)
    return compiler.compile_result(
        target_context=target, typing_context=target.typing_context, library=library,
        environment=environment, entry_point=entry_point, fndesc=about, type_annotation=annotation,
        signature=signature, objectmode=objectmode, lifted=lifted, reload_init=reload_init,
        referenced_envs=environments,
    )  # fmt: skip


class _LoadedLibrary(codegen.JITCodeLibrary):  # type: ignore[misc]  # Numba has no types
    """Machine code, and what others are compiled with that call it: read when one is."""

    def __init__(self, generator: Any, serialized: tuple[str, str, tuple[bytes, bytes]]) -> None:
        name, _, (code, self._bitcode) = serialized
        self._shared_module: Any = None
        super().__init__(generator, name)
        self.enable_object_caching()
        self._set_compiled_object(code)
        self._finalize_final_module()

    def _get_module_for_linking(self) -> Any:
        if self._shared_module is None:
            self._shared_module = llvmlite.binding.parse_bitcode(self._bitcode)
        return self._shared_module
