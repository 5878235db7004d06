"""``earshot match``: a file of messages against subscriptions, for every semantics."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import Any

from earshot.cli.options import FORMATS, add_columns, add_engine, load, local_files
from earshot.cli.output import against, counted, progress_bar, rejected, show
from earshot.cli.semantics import SEMANTICS_OPTIONS


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "match",
        help="match a file of messages against subscriptions",
        description="Write message_id and subscription_id of every match. --rank adds the score. "
        "--top-k writes every change of results: a message enters the best of a subscription (+) "
        "or leaves them (-). --moving writes which live messages begin (+) and cease (-) to match "
        "where a subscriber is. With - for a file, messages come from standard input, each matched "
        "as it comes, and updates go to standard output.",
    )
    add_inputs(parser)
    parser.add_argument(
        "--out", required=True, metavar="UPDATES", help="Parquet, NDJSON or CSV file, or -"
    )
    parser.add_argument(
        "--positions", metavar="POSITIONS",
        help=f"with --moving, {FORMATS} file with id, x, y and time, in order of time",
    )  # fmt: skip
    add_columns(parser, "position", "id=vehicle")
    parser.add_argument(
        "--results", metavar="FILE",
        help="with --top-k or --moving, file for the results at the end",
    )  # fmt: skip
    parser.add_argument("--save", metavar="DIR",
                        help="save the engine there at the end, to continue from")  # fmt: skip
    add_engine(parser)
    parser.set_defaults(run=run, compiles=True)


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the two files."""
    parser.add_argument(
        "subscriptions", metavar="SUBSCRIPTIONS",
        help=f"{FORMATS} file, or a directory made by 'earshot index build' or --save",
    )  # fmt: skip
    parser.add_argument("messages", metavar="MESSAGES", help=f"{FORMATS} file, in order, or -")


def run(arguments: argparse.Namespace) -> None:
    from earshot.files import is_stream
    from earshot.jobs import RejectSink, match_files
    from earshot.storage import check_replaceable

    # Before anything takes time.
    files = local_files(
        arguments, ["SUBSCRIPTIONS", "MESSAGES", "--positions"], ["--out", "--results"], ["--save"]
    )
    if arguments.save is not None:
        check_replaceable(arguments.save)
    with RejectSink(files.rejects, files.out_format) as rejects:
        started = time.perf_counter()
        engine = load(arguments, files, rejects, learns=not is_stream(arguments.messages))
        load_s = time.perf_counter() - started
        with progress_bar(arguments, "Matching messages") as progress:
            summary = match_files(
                engine, arguments.messages, arguments.out, files=files, rejects=rejects,
                positions=arguments.positions, results=arguments.results, progress=progress,
            )  # fmt: skip
        if arguments.save is not None:
            engine.save(arguments.save)
    summary.load_s = load_s
    rate = summary.messages_per_s
    matcher = engine.matcher
    nouns = ("update", "updates") if matcher.keeps_results else ("match", "matches")
    late = "row" if arguments.positions else "message"
    facts = {**asdict(summary), "messages_per_s": round(rate, 1), "out": arguments.out}
    show(arguments, facts, [
        f"{against(summary)}: {counted(summary.n_updates, *nouns)} in {arguments.out}",
        f"{load_s:.2f} s to load, {summary.match_s:.2f} s to match ({rate:,.0f} messages/s)",
        *SEMANTICS_OPTIONS[matcher.name].lines(summary),
        *([f"{counted(summary.n_late, late)} came too late"] if summary.n_late else []),
        *rejected(summary.n_rejects, files.rejects),
    ])  # fmt: skip
