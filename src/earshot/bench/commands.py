"""The benchmark's command line, also behind ``earshot bench``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from earshot.bench.competitors import competitor_names
from earshot.bench.profiles import PROFILES
from earshot.bench.reporting import PAGE, report
from earshot.bench.results import RESULTS
from earshot.bench.running import run
from earshot.bench.suites import SUITES
from earshot.errors import EarshotError
from earshot.workloads.synthetic import WORKLOADS


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark's command line; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m earshot.bench", description=__doc__)
    commands = parser.add_subparsers(dest="bench_command", required=True)
    runner = commands.add_parser("run", help="measure, and write a new file of results")
    runner.add_argument("--profile", choices=list(PROFILES), default="smoke")
    runner.add_argument("--suites", nargs="+", choices=list(SUITES), metavar="SUITE")
    runner.add_argument(
        "--competitors", nargs="+", choices=competitor_names(), metavar="NAME",
        help=f"who takes part; all by default: {', '.join(competitor_names())}",
    )  # fmt: skip
    runner.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), metavar="NAME")
    runner.add_argument("--n-subscriptions", type=int, metavar="N")
    runner.add_argument("--n-messages", type=int, metavar="N")
    runner.add_argument(
        "--budget-s", type=float, metavar="S",
        help="seconds that a structure for moving subscribers may take at each point",
    )  # fmt: skip
    runner.add_argument("--seed", type=int, default=1)
    runner.add_argument("--results", type=Path, default=RESULTS, metavar="DIRECTORY")
    runner.add_argument("--data", type=Path, metavar="DIRECTORY", help="real datasets")
    reporter = commands.add_parser("report", help="tables and plots of the newest results")
    reporter.add_argument("--results", type=Path, default=RESULTS, metavar="DIRECTORY")
    reporter.add_argument(
        "--page", type=Path, metavar="FILE",
        help=f"file for the headline and the targets; {PAGE} where --results is not given",
    )  # fmt: skip
    options = vars(parser.parse_args(argv))
    try:
        if options.pop("bench_command") == "run":
            run(**options)
        else:
            # Results from elsewhere are not what the documents tell of.
            default = PAGE if options["results"] == RESULTS else None
            print(report(options["results"], page=options["page"] or default))
    except EarshotError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
