"""``earshot generate``: a seeded workload of the papers as files."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from earshot.cli.options import add_output
from earshot.cli.output import show


def add(commands: Any) -> None:
    parser = commands.add_parser("generate", help="write a seeded workload of the papers to files")
    parser.add_argument("workload", nargs="?", default="headline", metavar="WORKLOAD",
                        help="name of a workload, or 'list' (default: headline)")  # fmt: skip
    parser.add_argument("--out", metavar="DIR", default=".", help="directory (default: here)")
    parser.add_argument("--subscriptions", type=int, default=100_000, metavar="N")
    parser.add_argument("--messages", type=int, default=10_000, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--format", default="parquet", choices=["parquet", "ndjson", "csv"])
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from earshot.files import write_table
    from earshot.workloads.synthetic import WORKLOADS, as_tables, find_workload

    if arguments.workload == "list":
        show(arguments, {"workloads": list(WORKLOADS)}, list(WORKLOADS))
        return
    workload = find_workload(arguments.workload).scaled(
        arguments.subscriptions, arguments.messages, arguments.seed
    )
    tables = dict(zip(("subscriptions", "messages"), as_tables(workload), strict=True))
    folder = Path(arguments.out)
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for name, table in tables.items():
        path = folder / f"{name}.{arguments.format}"
        write_table(path, table)
        written[name] = str(path)
    show(arguments, {**asdict(workload), "space": workload.space, **written}, [
        *(f"{tables[name].num_rows:,} {name} in {path}" for name, path in written.items()),
        f"match them with: earshot match {written['subscriptions']} {written['messages']} "
        f"--space {workload.space} --out {folder / 'matches.parquet'}",
    ])  # fmt: skip
