"""What a command says while kernels are compiled, which happens once on a machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def told() -> Iterator[None]:
    """Say on standard error what is compiled, and how long that took."""
    from earshot.kernels.compiled import Compilations, directory

    is_terminal = sys.stderr.isatty()

    def say(name: str, n_before: int) -> None:
        if n_before == 0:
            print(f"earshot: compiling for this machine, into {directory()}", file=sys.stderr)
        if is_terminal:
            print(f"\r\x1b[K{n_before + 1} {name} …", end="", file=sys.stderr, flush=True)

    done = Compilations(say)
    try:
        with done.listening():
            yield
    finally:
        if done.n_kernels:
            start = "\r\x1b[K" if is_terminal else ""
            what = f"compiled {done.n_kernels} kernels in {done.elapsed_s:.0f} s, for all runs"
            print(f"{start}earshot: {what}", file=sys.stderr)
