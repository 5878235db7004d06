"""``earshot explain``: why a message reaches a subscription, or why not."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from earshot.cli.match import add_inputs
from earshot.cli.options import add_engine, load, local_files
from earshot.cli.output import rejected, show


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "explain",
        help="say why a message matches a subscription, or why not",
        description="Say why a message matches a subscription, or why not.",
    )
    add_inputs(parser)
    parser.add_argument("--message", required=True, metavar="ID", help="id of the message")
    parser.add_argument(
        "--subscription", required=True, metavar="ID", help="id of the subscription"
    )
    add_engine(parser)
    parser.set_defaults(run=run, compiles=True)


def run(arguments: argparse.Namespace) -> None:
    from earshot.files import is_stream
    from earshot.jobs import RejectSink, explain_file

    files = local_files(arguments, ["SUBSCRIPTIONS", "MESSAGES"])
    with RejectSink(files.rejects, files.out_format) as rejects:
        engine = load(arguments, files, rejects, learns=not is_stream(arguments.messages))
        explanation = explain_file(
            engine, arguments.messages, arguments.message, arguments.subscription, files, rejects
        )
    lines = [str(explanation), *rejected(rejects.n_rows, files.rejects)]
    show(arguments, asdict(explanation), lines)
