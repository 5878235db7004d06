"""``earshot index``: build an index once, look at one, or check that it is whole."""

from __future__ import annotations

import argparse
import time
from typing import Any

from earshot.cli.options import FORMATS, add_engine, add_output, load, local_files
from earshot.cli.output import counted, rejected, show, show_facts
from earshot.cli.semantics import chosen_semantics
from earshot.errors import InvalidParameter


def add(commands: Any) -> None:
    parser = commands.add_parser("index", help="build an index once, or look at one")
    index_commands = parser.add_subparsers(metavar="COMMAND", required=True)

    build = index_commands.add_parser(
        "build",
        help="build an index from a file of subscriptions",
        description="Build an index from a file of subscriptions, for any semantics. It may stand "
        "in place of the subscriptions in other commands.",
    )
    build.add_argument("subscriptions", metavar="SUBSCRIPTIONS", help=f"{FORMATS} file")
    build.add_argument(
        "--out",
        required=True,
        metavar="DIR",
        help="directory to create; a saved index there is replaced",
    )
    build.add_argument("--messages", metavar="SAMPLE",
                       help="with --top-k, messages like those to come, to weigh words "
                       "by")  # fmt: skip
    add_engine(build)
    build.set_defaults(run=run_build, compiles=True)

    info = index_commands.add_parser(
        "info",
        help="describe a built index",
        description="Print the settings and sizes of a built index.",
    )
    info.add_argument("directory", metavar="DIR", help="directory of the index")
    add_output(info)
    info.set_defaults(run=run_info)

    verify = index_commands.add_parser(
        "verify",
        help="compare a built index with its checksums",
        description="Compare every array of a built index with its checksum.",
    )
    verify.add_argument("directory", metavar="DIR", help="directory of the index")
    add_output(verify)
    verify.set_defaults(run=run_verify)


def run_build(arguments: argparse.Namespace) -> None:
    from earshot.jobs import RejectSink
    from earshot.storage import check_replaceable

    files = local_files(arguments, ["SUBSCRIPTIONS", "--messages"], directories=["--out"])
    check_replaceable(arguments.out)  # before anything takes time
    semantics, given = chosen_semantics(arguments)
    if arguments.messages is not None and not semantics.n_learned(given):
        raise InvalidParameter("--messages is for semantics that weigh words by them, as --top-k")
    if arguments.weights is not None and arguments.messages is None:
        raise InvalidParameter("--weights needs --messages SAMPLE, in which words are counted")
    with RejectSink(files.rejects, files.out_format) as rejects:
        started = time.perf_counter()
        engine = load(arguments, files, rejects)
        engine.save(arguments.out)
        elapsed_s = time.perf_counter() - started
    facts = {**engine.facts(), "out": arguments.out, "elapsed_s": round(elapsed_s, 3),
             "n_rejects": rejects.n_rows}  # fmt: skip
    subscriptions = counted(facts["n_subscriptions"], "subscription")
    show(arguments, facts, [
        f"{subscriptions} in {arguments.out}, {elapsed_s:.1f} s",
        *rejected(rejects.n_rows, files.rejects),
    ])  # fmt: skip


def run_info(arguments: argparse.Namespace) -> None:
    from earshot.engine.engine import Engine
    from earshot.storage import Saved

    started = time.perf_counter()
    engine = Engine.open(arguments.directory)
    open_s = round(time.perf_counter() - started, 4)
    by_array = Saved.open(arguments.directory).array_bytes
    facts = {**engine.facts(), "open_s": open_s, "n_bytes": sum(by_array.values())}
    if arguments.json:
        show_facts(arguments, {**facts, "memory": engine.memory(), "array_bytes": by_array})
        return
    show_facts(arguments, facts)
    n = max(len(engine), 1)
    print("\nbytes by part, of all and of one subscription:")
    for name, n_bytes in engine.memory().items():
        print(_bytes_line(name, n_bytes, n))
    print("\nbytes by array, of all and of one subscription:")
    for name, n_bytes in sorted(by_array.items(), key=lambda item: -item[1]):
        if n_bytes >= _TOLD_SHARE * facts["n_bytes"]:
            print(_bytes_line(name, n_bytes, n))


_TOLD_SHARE = 0.001
"""Share of all bytes from which on an array is listed."""


def _bytes_line(name: str, n_bytes: int, n: int) -> str:
    return f"{n_bytes:>16,} {n_bytes / n:>8.1f}  {name}"


def run_verify(arguments: argparse.Namespace) -> None:
    from earshot.storage import Saved

    started = time.perf_counter()
    saved = Saved.open(arguments.directory, verify=True)
    elapsed_s = time.perf_counter() - started
    facts = {"directory": arguments.directory, "n_arrays": saved.n_arrays,
             "n_bytes": saved.n_bytes, "elapsed_s": round(elapsed_s, 3)}  # fmt: skip
    show(arguments, facts, [
        f"{arguments.directory} is whole: {counted(saved.n_arrays, 'array')}, "
        f"{saved.n_bytes:,} bytes, {elapsed_s:.2f} s",
    ])  # fmt: skip
