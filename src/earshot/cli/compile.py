"""``earshot compile``: what the first use of a command would wait for."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from earshot.cli.options import add_output
from earshot.cli.output import counted, show
from earshot.errors import InvalidParameter


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "compile",
        help="compile ahead what the first use would wait for",
        description="Compile the kernels that matching needs with default settings, under all "
        "semantics, ahead of their first use. For machine images and for packagers.",
    )
    parser.add_argument("--into", metavar="DIR",
                        help="directory for the kernels (default: where this user's "
                        "commands find them)")  # fmt: skip
    parser.add_argument("--processor", metavar="KIND", action="append", default=[],
                        help="kind of processor to compile for, such as x86-64-v3, instead of this "
                        "one; may be repeated; 'all' stands for those that this machine "
                        "supports")  # fmt: skip
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from earshot.jobs.compiling import compile_ahead
    from earshot.kernels.compiled import directory, levels_here

    def say(line: str) -> None:
        if not arguments.json and not arguments.quiet:
            print(f"earshot: {line}", file=sys.stderr)

    into = None if arguments.into is None else Path(arguments.into).resolve()
    processors = [
        level
        for each in arguments.processor
        for level in (levels_here() if each == "all" else [each])
    ]
    if arguments.processor and not processors:
        raise InvalidParameter("there is no kind of processors that this machine could stand for")
    started = time.perf_counter()
    n_kernels = compile_ahead(into, processors, say=say)
    elapsed_s = time.perf_counter() - started
    place = str(into or directory())
    facts = {"n_kernels": n_kernels, "into": place, "elapsed_s": round(elapsed_s, 1)}
    show(arguments, facts, [f"{counted(n_kernels, 'kernel')} in {place}, {elapsed_s:.0f} s"])
