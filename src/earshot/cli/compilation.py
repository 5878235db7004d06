"""What a command says while kernels are compiled, which happens once on a machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def told() -> Iterator[None]:
    """Say on standard error what is compiled, and how long that took."""
    from numba.core import event

    from earshot.kernels.compiled import directory

    class Teller(event.Listener):  # type: ignore[misc]  # Numba has no types
        depth = n_kernels = 0  # one within another; so far
        began = seconds = 0.0

        def on_start(self, started: Any) -> None:
            if self.n_kernels == 0:
                print(f"earshot: compiling for this machine, into {directory()}", file=sys.stderr)
            if self.depth == 0:
                self.began = time.monotonic()
            self.depth += 1
            self.n_kernels += 1
            if sys.stderr.isatty():
                name = started.data["dispatcher"].py_func.__name__
                print(f"\r\x1b[K{self.n_kernels} {name} …", end="", file=sys.stderr, flush=True)

        def on_end(self, ended: Any) -> None:
            self.depth -= 1
            if self.depth == 0:
                self.seconds += time.monotonic() - self.began

    with event.install_listener("numba:compile", Teller()) as teller:
        try:
            yield
        finally:
            if teller.n_kernels:
                start = "\r\x1b[K" if sys.stderr.isatty() else ""
                done = (
                    f"compiled {teller.n_kernels} kernels in {teller.seconds:.0f} s, for all runs"
                )
                print(f"{start}earshot: {done}", file=sys.stderr)
