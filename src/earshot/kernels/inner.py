"""Kernels that other kernels call: compiled into their callers, and not for Python.

Numba gives every kernel a way in from Python and machine code of its own. A kernel that is only
called by others needs neither: they take over its LLVM code. Without both, a third of the time to
compile is saved. A kernel that Python calls later is then compiled once more, in full.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
from numba.core import compiler, sigutils, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import _FunctionCompiler  # type: ignore[attr-defined]  # the same
from numba.core.registry import CPUDispatcher


class Kernel(CPUDispatcher):  # type: ignore[misc]  # Numba has no types
    """A kernel in two forms for each signature: in full, and for other kernels alone.

    What is inner is known under Numba's compiler lock only.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.is_inner = False  # what is compiled, or looked for, at present
        self._outgrown: list[Any] = []
        given: Any = vars(self)["_compiler"]
        self._compiler = _Compiler(
            self, given.py_func, given.targetdescr, given.targetoptions, given.locals,
            given.pipeline_class,
        )  # fmt: skip

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Prepare for a call by another kernel, whatever the widths of its integers."""
        with global_compiler_lock:
            before, self.is_inner = self.is_inner, True
            try:
                wide = {name: _widened(each) for name, each in kws.items()}
                return super().get_call_template(tuple(map(_widened, args)), wide)
            finally:
                self.is_inner = before

    def compile(self, sig: Any) -> Any:
        """Return the way into the form for a signature; an inner one has none."""
        with global_compiler_lock:
            args, _ = sigutils.normalize_signature(sig)
            existing = self.overloads.get(tuple(args))
            if existing is not None and isinstance(existing.library, InnerLibrary):
                if self.is_inner:
                    return existing.entry_point
                # Kept for those that it is compiled into.
                self._outgrown.append(self.overloads.pop(tuple(args)))
            try:
                return super().compile(sig)
            finally:
                self._cache.end_turns()

    def add_overload(self, cres: Any) -> None:
        """Take a form in; an inner one cannot be found by calls from Python."""
        if isinstance(cres.library, InnerLibrary):
            self.overloads[tuple(cres.signature.args)] = cres
        else:
            super().add_overload(cres)


def _widened(kind: Any) -> Any:
    """Return the type that a kernel takes an argument of this type as.

    Without this, constants and integers of 32 bits have each kernel compiled for them anew.
    """
    kind = getattr(kind, "literal_type", kind)
    is_narrow = kind in (types.int8, types.int16, types.int32)
    return types.int64 if is_narrow else kind


class _Compiler(_FunctionCompiler):  # type: ignore[misc]  # the same
    """Compiles a kernel in the form that is wanted."""

    def __init__(self, kernel: Kernel, *args: Any) -> None:
        super().__init__(*args)
        self._kernel = kernel

    def _customize_flags(self, flags: Any) -> Any:
        if self._kernel.is_inner:
            flags.no_cpython_wrapper = flags.no_compile = True
        return flags

    def _compile_core(self, args: Any, return_type: Any) -> Any:
        if not self._kernel.is_inner:
            compiled = super()._compile_core(args, return_type)
            for each in compiled._find_referenced_environments():  # those of inner kernels, too
                compiled.codegen.set_env(each.env_name, each)
            return compiled
        context = self.targetdescr.target_context
        flags = compiler.Flags()
        self.targetdescr.options.parse_as_flags(flags, self.targetoptions)
        compiled = compiler.compile_extra(
            self.targetdescr.typing_context, context, self.py_func, args=args,
            return_type=return_type, flags=self._customize_flags(flags), locals=self.locals,
            library=InnerLibrary(context.codegen(), self.py_func.__qualname__),
            pipeline_class=self.pipeline_class,
        )  # fmt: skip
        compiled.library.finalize()
        compiled = compiled._replace(entry_point=NoWayIn())
        context.insert_user_function(compiled.entry_point, compiled.fndesc, [compiled.library])
        return compiled


class NoWayIn:
    """Stands for an inner kernel where Numba looks kernels up by their way in."""


class InnerLibrary(JITCodeLibrary):  # type: ignore[misc]  # the same
    """Code to be linked into that of callers, which is never run from here."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def serialize_using_object_code(self) -> tuple[str, bytes]:
        """Return all that :meth:`loaded` needs: there is no machine code."""
        return self.name, self._get_module_for_linking().as_bitcode()

    @classmethod
    def loaded(cls, codegen: Any, kept: tuple[str, bytes]) -> InnerLibrary:
        """Return a library as it was."""
        name, code = kept
        self = cls(codegen, name)
        self._final_module = self._shared_module = llvmlite.binding.parse_bitcode(code)
        self._finalize_final_module()
        return self


def rebuilt(context: Any, library: tuple[str, bytes], *parts: Any) -> Any:
    """Return an inner kernel from what Numba and :class:`InnerLibrary` kept of it."""
    fndesc, environment, signature, objectmode, lifted, annotation, reload, environments = parts
    for initialize in reload:
        initialize()
    return compiler.compile_result(
        target_context=context, typing_context=context.typing_context,
        library=InnerLibrary.loaded(context.codegen(), library), environment=environment,
        entry_point=NoWayIn(), fndesc=fndesc, type_annotation=annotation, signature=signature,
        objectmode=objectmode, lifted=lifted, reload_init=reload,
        referenced_envs=environments,
    )  # fmt: skip
