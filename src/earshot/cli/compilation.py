"""What a command says while kernels are compiled, which happens once on a machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def told(semantics: str) -> Iterator[None]:
    """Say on standard error what is compiled, and how long that took.

    Meanwhile another process compiles what the semantics needs later.
    """
    from earshot.kernels.compiled import Compilations, directory

    is_terminal = sys.stderr.isatty()
    helpers: list[subprocess.Popen[bytes]] = []

    def say(name: str, n_before: int) -> None:
        if n_before == 0:
            helpers.extend(_helpers(semantics))
            beside = f" in {1 + len(helpers)} processes" if helpers else ""
            place = f"{directory()}{beside}"
            print(f"earshot: compiling for this machine, into {place}", file=sys.stderr)
        if is_terminal:
            print(f"\r\x1b[K{n_before + 1} {name} …", end="", file=sys.stderr, flush=True)

    done = Compilations(say)
    try:
        with done.listening():
            yield
    finally:
        for helper in helpers:
            helper.terminate()
            helper.wait()
        if done.n_kernels:
            start = "\r\x1b[K" if is_terminal else ""
            what = f"compiled {done.n_kernels} kernels in {done.elapsed_s:.0f} s, for all runs"
            print(f"{start}earshot: {what}", file=sys.stderr)


def _helpers(semantics: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that compiles what comes after the structure, if there is a core for it."""
    if (os.cpu_count() or 1) > 1:
        command = [sys.executable, "-m", "earshot.jobs.compiling", semantics, "words"]
        yield subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
