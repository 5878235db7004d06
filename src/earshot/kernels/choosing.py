"""Functions that stand for a kernel which the type of their first argument chooses.

Numba's own way (:func:`numba.extending.overload`) compiles one more function in between, of which
nothing is left but the time it took: a sixth of what a structure of moving subscribers needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from numba.core import types
from numba.core.typing.templates import AbstractTemplate, infer, infer_global

from earshot.kernels.compiled import depends


def chooses(function: Callable[..., Any], kernels: Mapping[type, Any]) -> None:
    """Let kernels that call a function call the one that is chosen for its first argument.

    What is chosen for a type is told by :func:`~earshot.kernels.compiled.depends`, of that type.

    Args:
        function: What they call; nobody else does.
        kernels: The kernel for each class of NamedTuples.
    """

    class Template(AbstractTemplate):  # type: ignore[misc]  # Numba has no types
        key = function

        def generic(self, args: Any, kws: Any) -> Any:
            if not isinstance(args[0], types.BaseNamedTuple):  # type: ignore[attr-defined]
                return None
            kernel = kernels[args[0].instance_class]
            template, _, args, kws = kernel.get_call_template(args, kws)
            return template(self.context).apply(args, kws)

        def get_impl_key(self, sig: Any) -> Any:
            return kernels[sig.args[0].instance_class].get_overload(sig.args)

    depends(function, "chosen by the type of the first argument")
    infer(Template)
    infer_global(function, types.Function(Template))
