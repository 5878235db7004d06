"""``earshot demo``: real messages that come with the package, through a pipeline."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from earshot.cli.options import add_output
from earshot.cli.output import sayer, show
from earshot.cli.pipeline import spark_commands
from earshot.errors import InvalidParameter, MissingExtra


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="stream real messages that come with the package through a pipeline",
        description="Stream real messages that come with the package through a pipeline on Spark, "
        "while subscriptions change.",
    )
    parser.add_argument("--subscriptions", type=int, default=50_000, metavar="N",
                        help="how many (default: 50,000)")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=15.0, metavar="S",
                        help="how long messages keep coming (default: 15)")  # fmt: skip
    parser.add_argument("--engine", action="store_true",
                        help="match in this process, without Spark")  # fmt: skip
    parser.add_argument("--moving", nargs="?", const="earshot-demo.svg", metavar="PICTURE",
                        help="instead, let taxis drive past fares, and draw where they went "
                        "(default: earshot-demo.svg)")  # fmt: skip
    add_output(parser)
    parser.set_defaults(run=run, compiles=True)


def run(arguments: argparse.Namespace) -> int:
    from earshot.demo import run_demo, stream_demo

    if not arguments.seconds > 0:
        raise InvalidParameter(f"--seconds is {arguments.seconds}; expected more than 0")
    if arguments.moving is not None:
        from earshot.moving_demo import run_moving_demo

        picture = Path(arguments.moving)
        if picture.suffix != ".svg":
            raise InvalidParameter(f"--moving is {arguments.moving}; expected a file *.svg")
        if not picture.absolute().parent.is_dir():
            raise InvalidParameter(f"--moving is {arguments.moving}; there is no such directory")
        show(arguments, *run_moving_demo(picture))
        return 0
    say, number = sayer(arguments), None
    is_streamed = not arguments.engine
    if is_streamed:
        try:
            spark_commands()
            from earshot.spark.java import find_java

            find_java()
        except (MissingExtra, InvalidParameter) as error:
            say(f"the engine alone, without Spark: {error}")
            is_streamed = False
    if is_streamed:
        facts, lines, number = stream_demo(
            arguments.subscriptions, arguments.seconds, is_quiet=arguments.quiet, say=say
        )
    else:
        facts, lines = run_demo(arguments.subscriptions)
    show(arguments, facts, lines)
    return 0 if number is None else 128 + number
