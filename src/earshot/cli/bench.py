"""``earshot bench``: measure the indexes against each other."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: Any) -> None:
    parser = commands.add_parser("bench", help="measure the indexes against each other")
    parser.add_argument("arguments", nargs=argparse.REMAINDER,
                        help="'run --profile smoke' (default), 'report', or --help")  # fmt: skip
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from earshot.bench.commands import main as bench_main

    given = arguments.arguments
    is_command = given[:1] and given[0] in ("run", "report", "-h", "--help")
    return bench_main(given if is_command else ["run", *given])
