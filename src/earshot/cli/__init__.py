"""The command line: one module per command, and what they share.

Commands import what they need themselves, so that ``--help`` answers at once.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress

from earshot.cli import bench, compilation, compile, demo, explain, generate, index, match, pipeline
from earshot.cli.options import CommandParser
from earshot.errors import EarshotError, InvalidParameter

COMMANDS = (match, index, explain, pipeline, compile, generate, bench, demo)
"""Each adds itself to the parser."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code.

    0, 1 after an error, 2 for a wrong option, 130 after Ctrl-C, 141 where nobody reads the output
    any more, 143 for a pipeline that SIGTERM stopped.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["bench"]:  # its options are its own; argparse would claim those that come first
        arguments = argparse.Namespace(run=bench.run, arguments=argv[1:])
    else:
        arguments = _parser().parse_args(argv)
    try:
        is_silent = not getattr(arguments, "compiles", False) or arguments.json or arguments.quiet
        # Where subscriptions are a saved state, that has the semantics; most are boolean.
        semantics = "topk" if getattr(arguments, "top_k", None) else "boolean"
        with nullcontext() if is_silent else compilation.told(semantics):
            code = int(arguments.run(arguments) or 0)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        with suppress(OSError, ValueError):  # so that Python does not try again when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (EarshotError, OSError) as error:
        print(f"earshot: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidParameter) else 1
    except KeyboardInterrupt:
        print("earshot: stopped", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="earshot",
        description="Location-aware publish/subscribe: subscribers register keywords and a place, "
        "and every message reaches exactly those it concerns.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    return parser
