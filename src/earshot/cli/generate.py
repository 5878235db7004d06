"""``earshot generate``: a seeded workload of the papers as files."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from earshot.cli.options import add_output
from earshot.cli.output import show


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "generate",
        help="write a seeded workload of the papers to files",
        description="Write a seeded workload of the papers to files: subscriptions, messages and, "
        "for 'moving', positions. The same seed gives the same rows.",
    )
    parser.add_argument("workload", nargs="?", default="headline", metavar="WORKLOAD",
                        help="name of a workload, or 'list' (default: headline)")  # fmt: skip
    parser.add_argument(
        "--out", metavar="DIR", default=".", help="directory (default: the current one)"
    )
    parser.add_argument("--subscriptions", type=int, default=100_000, metavar="N",
                        help="how many (default: 100,000)")  # fmt: skip
    parser.add_argument("--messages", type=int, default=10_000, metavar="N",
                        help="how many (default: 10,000)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1)
    moving = parser.add_argument_group("movement on a road network, for 'moving'")
    for flag, kind, default, metavar, text in (
        ("--timestamps", int, 20, "N", "number of reports, 30 s apart (default: 20)"),
        ("--mobility", float, 0.4, "SHARE", "share that reports each time (default: 0.4)"),
        ("--velocity", float, 1.0, "V", "medium speed, in map sides per hour (default: 1)"),
        ("--arrivals", int, None, "N", "messages that arrive each time (default: as many as end)"),
        ("--life", float, 10.0, "N", "mean life of a message, in timestamps (default: 10)"),
        ("--area", float, 1e-4, "SHARE", "a region's share of the map's area (default: 0.0001)"),
    ):
        moving.add_argument(flag, type=kind, default=default, metavar=metavar, help=text)
    moving.add_argument(
        "--roads",
        nargs=2,
        metavar=("NODES", "EDGES"),
        help="Parquet files of a road network: node, lon, lat; from_node, to_node, highway "
        "(default: streets in a unit square)",
    )
    parser.add_argument("--format", default="parquet", choices=["parquet", "ndjson", "csv"])
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from earshot.workloads.synthetic import WORKLOADS, as_tables, find_workload

    if arguments.workload == "list":
        names = [*WORKLOADS, "moving"]
        show(arguments, {"workloads": names}, names)
        return
    if arguments.workload == "moving":
        _run_moving(arguments)
        return
    workload = find_workload(arguments.workload).scaled(
        arguments.subscriptions, arguments.messages, arguments.seed
    )
    tables = dict(zip(("subscriptions", "messages"), as_tables(workload), strict=True))
    folder = Path(arguments.out)
    written = _written(tables, folder, arguments.format)
    show(arguments, {**asdict(workload), "space": workload.space, **written}, [
        *(f"{tables[name].num_rows:,} {name} in {path}" for name, path in written.items()),
        f"match them with: earshot match {written['subscriptions']} {written['messages']} "
        f"--space {workload.space} --out {folder / 'matches.parquet'}",
    ])  # fmt: skip


def _run_moving(arguments: argparse.Namespace) -> None:
    from earshot.workloads.moving import Movement, generate, lattice, read_network

    movement = Movement(
        arguments.subscriptions, arguments.messages, arguments.timestamps,
        mobility=arguments.mobility, velocity=arguments.velocity, arrivals=arguments.arrivals,
        lifetime=arguments.life, area=arguments.area, seed=arguments.seed,
    )  # fmt: skip
    network = read_network(*arguments.roads) if arguments.roads else lattice(100, movement.seed)
    space = "lonlat" if arguments.roads else "planar"
    tables = generate(movement, network)._asdict()
    folder = Path(arguments.out)
    written = _written(tables, folder, arguments.format)
    facts = {name: value for name, value in asdict(movement).items() if name != "timestamp"}
    show(arguments, {**facts, "space": space, **written}, [
        *(f"{tables[name].num_rows:,} {name} in {path}" for name, path in written.items()),
        f"match them with: earshot match {written['subscriptions']} {written['messages']} "
        f"--moving --lifetime 10m --positions {written['positions']} --space {space} "
        f"--out {folder / 'updates.parquet'}",
    ])  # fmt: skip


def _written(tables: dict[str, Any], folder: Path, file_format: str) -> dict[str, str]:
    """Write tables to a directory; return their files by name."""
    from earshot.files import write_table

    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for name, table in tables.items():
        path = folder / f"{name}.{file_format}"
        write_table(path, table)
        written[name] = str(path)
    return written
