"""The command line: ``earshot match``, ``index``, ``explain``, ``topk``, ``pipeline``, ….

The commands import what they need themselves, so that ``--help`` answers at once.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from earshot.errors import EarshotError, InvalidParameter, MissingExtra

if TYPE_CHECKING:
    from earshot.jobs import Progress, Reading
    from earshot.model.ranking import Ranking

FORMATS = "Parquet, GeoParquet, NDJSON, GeoJSON or CSV"
FILES = "file, or a directory of such files"
LEARNED_MESSAGES = 100_000


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code: 0, or 1 after an error, 130 after Ctrl-C.

    A pipeline that SIGTERM stopped gives 143.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["bench"]:  # its options are its own; argparse would claim those that come first
        arguments = argparse.Namespace(run=_bench, arguments=argv[1:])
    else:
        arguments = _parser().parse_args(argv)
    try:
        if getattr(arguments, "compiles", False) and not arguments.json and not arguments.quiet:
            _announce_compilation()
        return int(arguments.run(arguments) or 0)
    except (EarshotError, OSError) as error:
        print(f"earshot: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("earshot: stopped", file=sys.stderr)
        return 130


# ---- the parser ----------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="earshot",
        description="Location-aware publish/subscribe: subscribers register keywords and a place, "
        "and every message reaches exactly those it concerns.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    match = commands.add_parser(
        "match",
        help="match a file of messages against subscriptions",
        description="Write message_id, subscription_id of every match, and with --rank its score.",
    )
    _add_subscriptions(match, or_index=True)
    match.add_argument("messages", metavar="MESSAGES", help=f"{FORMATS} file")
    match.add_argument(
        "--out", required=True, metavar="MATCHES", help="Parquet, NDJSON or CSV file"
    )
    _add_ranking(match)
    _add_building(match)
    _add_reading(match)
    _add_output(match)
    match.set_defaults(run=_match, compiles=True)

    index = commands.add_parser("index", help="build an index once, or look at one")
    index_commands = index.add_subparsers(metavar="COMMAND", required=True)
    build = index_commands.add_parser("build", help="build an index from a file of subscriptions")
    _add_subscriptions(build, or_index=False)
    build.add_argument("--out", required=True, metavar="DIR", help="directory to create")
    _add_ranking(build)
    _add_building(build)
    _add_reading(build)
    _add_output(build)
    build.set_defaults(run=_index_build, compiles=True)
    info = index_commands.add_parser("info", help="describe a built index")
    info.add_argument("directory", metavar="DIR")
    _add_output(info)
    info.set_defaults(run=_index_info)

    explain = commands.add_parser(
        "explain", help="say why a message matches a subscription, or why not"
    )
    _add_subscriptions(explain, or_index=True)
    explain.add_argument("messages", metavar="MESSAGES", help=f"{FORMATS} file")
    explain.add_argument("--message", required=True, metavar="ID", help="id of the message")
    explain.add_argument("--subscription", required=True, metavar="ID", help="id to explain")
    _add_ranking(explain)
    _add_building(explain)
    _add_reading(explain)
    _add_output(explain)
    explain.set_defaults(run=_explain, compiles=True)

    _add_topk(commands.add_parser(
        "topk",
        help="keep the best messages of a window for every subscription",
        description="Write sign, message_id, subscription_id, score, reason of every change: a "
        "message is among the best k of a subscription (+), or no longer (-).",
    ))  # fmt: skip

    _add_pipeline(commands.add_parser(
        "pipeline", help="build, match and follow streams on Spark"
    ))  # fmt: skip

    generate = commands.add_parser(
        "generate", help="write a seeded workload of the papers to files"
    )
    generate.add_argument("workload", nargs="?", default="headline", metavar="WORKLOAD",
                          help="name of a workload, or 'list' (default: headline)")  # fmt: skip
    generate.add_argument("--out", metavar="DIR", default=".", help="directory (default: here)")
    generate.add_argument("--subscriptions", type=int, default=100_000, metavar="N")
    generate.add_argument("--messages", type=int, default=10_000, metavar="N")
    generate.add_argument("--seed", type=int, default=1)
    generate.add_argument("--format", default="parquet", choices=["parquet", "ndjson", "csv"])
    _add_output(generate)
    generate.set_defaults(run=_generate)

    bench = commands.add_parser("bench", help="measure the indexes against each other")
    bench.add_argument("arguments", nargs=argparse.REMAINDER,
                       help="'run --profile smoke' (default), 'report', or --help")  # fmt: skip
    bench.set_defaults(run=_bench)

    demo = commands.add_parser(
        "demo", help="stream real messages that come with the package through a pipeline"
    )
    demo.add_argument("--subscriptions", type=int, default=50_000, metavar="N")
    demo.add_argument("--seconds", type=float, default=15.0, metavar="S",
                      help="how long messages keep coming (default: 15)")  # fmt: skip
    demo.add_argument("--engine", action="store_true",
                      help="match them at once in this process, without Spark")  # fmt: skip
    _add_output(demo)
    demo.set_defaults(run=_demo, compiles=True)
    return parser


def _add_topk(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subscriptions", metavar="SUBSCRIPTIONS",
                        help=f"{FORMATS} file, or a directory made by --save, to go on "
                        f"from")  # fmt: skip
    parser.add_argument("messages", metavar="MESSAGES", help=f"{FORMATS} file, in order")
    parser.add_argument(
        "--out", required=True, metavar="UPDATES", help="Parquet, NDJSON or CSV file"
    )
    parser.add_argument("--results", metavar="FILE",
                        help="write the results at the end there as well")  # fmt: skip
    parser.add_argument("--save", metavar="DIR",
                        help="save everything at the end, to go on from")  # fmt: skip
    group = parser.add_argument_group("top-k")
    group.add_argument("--window", metavar="N|TIME",
                       help="the last N messages, or those of the last 90s, 10m, 2h or "
                       "7d")  # fmt: skip
    group.add_argument("--k", type=int, metavar="K",
                       help="messages that a subscription gets, where it names no number "
                       "(default: 20)")  # fmt: skip
    group.add_argument("--alpha", type=float, metavar="A",
                       help="share of the place in the score, 0 to 1, where a subscription names "
                       "none (default: 0.5)")  # fmt: skip
    group.add_argument("--max-distance", metavar="D",
                       help="where the place scores 0: 500m or 50km, on a plane a number (default: "
                       "the diameter of the earth)")  # fmt: skip
    group.add_argument("--lateness", metavar="TIME",
                       help="how much older than the latest a message may be, such as 30s "
                       "(default: 0s)")  # fmt: skip
    group.add_argument("--weights", type=int, metavar="N",
                       help="weigh words by the first N messages; 0: all the same (default: "
                       f"{LEARNED_MESSAGES:,})")  # fmt: skip
    group.add_argument("--method", metavar="FIND+REFILL",
                       help="how messages find subscriptions and results are refilled; of the "
                       "README's table (default: the first)")  # fmt: skip
    _add_text(parser, group)
    _add_reading(parser)
    _add_output(parser)
    parser.set_defaults(run=_topk, compiles=True)


def _add_pipeline(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    run = commands.add_parser(
        "run",
        help="run the pipeline that a file describes",
        description="Match messages as they come, until Ctrl-C or SIGTERM; the next start goes on "
        "there.",
    )
    run.add_argument("config", metavar="CONFIG", help="TOML file")
    run.add_argument("--once", action="store_true", help="take what is there now, and end")
    _add_spark(run, has_settings=False)
    _add_output(run)
    run.set_defaults(run=_pipeline_run, compiles=True)

    build = commands.add_parser("build", help="build an index for pipelines, on Spark")
    build.add_argument("subscriptions", metavar="SUBSCRIPTIONS", help=f"{FORMATS} {FILES}")
    build.add_argument("--out", required=True, metavar="INDEX",
                       help="directory; an index that is there gets a new version")  # fmt: skip
    _add_placement(build)
    _add_building(build, has_threads=False)
    _add_reading(build, rejects="DIR")
    _add_spark(build)
    _add_output(build)
    build.set_defaults(run=_pipeline_build, compiles=True)

    match = commands.add_parser(
        "match",
        help="match files of messages in batch, on Spark",
        description="Write sign, message_id, subscription_id, score, reason of every match; or "
        "with --shape lists, message_id and subscription_ids of every message.",
    )
    match.add_argument("subscriptions", metavar="INDEX_OR_SUBSCRIPTIONS",
                       help=f"directory made by 'earshot pipeline build', or {FORMATS} "
                       f"{FILES}")  # fmt: skip
    match.add_argument("messages", metavar="MESSAGES", help=f"{FORMATS} {FILES}")
    match.add_argument("--out", required=True, metavar="DIR", help="directory to create")
    match.add_argument("--shape", choices=["rows", "lists"], default="rows",
                       help="one row per match (default), or per message")  # fmt: skip
    match.add_argument("--format", choices=["parquet", "ndjson"], default="parquet")
    _add_building(match, has_threads=False)
    _add_reading(match, rejects="DIR")
    _add_spark(match)
    _add_output(match)
    match.set_defaults(run=_pipeline_match, compiles=True)

    changes = commands.add_parser(
        "changes",
        help="take changes of subscriptions into an index",
        description="Apply files of changes to an index that no running pipeline changes; that "
        "makes one new version.",
    )
    changes.add_argument("index", metavar="INDEX", help="directory of the index")
    changes.add_argument("changes", metavar="CHANGES", help=f"{FORMATS} {FILES}")
    _add_on_error(changes, "FILE")
    changes.add_argument("--change-column", action="append", default=[], metavar="FIELD=COLUMN",
                         help="name of a column in the changes, such as id=key")  # fmt: skip
    _add_output(changes)
    changes.set_defaults(run=_pipeline_changes, compiles=True)

    info = commands.add_parser("info", help="describe an index for pipelines")
    info.add_argument("index", metavar="INDEX", help="directory of the index")
    _add_output(info)
    info.set_defaults(run=_pipeline_info)


def _add_placement(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("placement")
    group.add_argument("--placement", choices=["auto", "replicated", "sharded"], default="auto",
                       help="the whole index on every machine, or cut into shards "
                       "(default: by size)")  # fmt: skip
    group.add_argument("--shards", type=int, metavar="N", help="number of shards")
    group.add_argument("--messages", metavar="SAMPLE",
                       help="messages like those that will come, by which shards are "
                       "cut")  # fmt: skip


def _add_spark(parser: argparse.ArgumentParser, *, has_settings: bool = True) -> None:
    group = parser.add_argument_group("Spark")
    group.add_argument("--master", metavar="M",
                       help="where Spark runs (default: on all cores of this machine)")  # fmt: skip
    if has_settings:
        group.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE",
                           help="a Spark setting, such as spark.driver.memory=8g")  # fmt: skip


def _add_subscriptions(parser: argparse.ArgumentParser, *, or_index: bool) -> None:
    extra = ", or a directory made by 'earshot index build'" if or_index else ""
    parser.add_argument("subscriptions", metavar="SUBSCRIPTIONS", help=f"{FORMATS} file{extra}")


def _add_ranking(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("ranking")
    group.add_argument("--rank", action="store_true",
                       help="score place and text, and take what reaches a threshold")  # fmt: skip
    group.add_argument("--alpha", type=float, metavar="A",
                       help="share of the place in the score, 0 to 1 (default: 0.5)")  # fmt: skip
    group.add_argument("--threshold", type=float, metavar="T",
                       help="score to reach, above 0, at most 1, where a subscription names none "
                       "(default: 0.6)")  # fmt: skip


def _add_building(parser: argparse.ArgumentParser, *, has_threads: bool = True) -> None:
    group = parser.add_argument_group("index")
    group.add_argument(
        "--index", metavar="NAME", help="structure; one of the README's tables (default: the first)"
    )
    if has_threads:
        group.add_argument(
            "--threads", type=int, default=1, metavar="N", help="threads (default: 1)"
        )
    _add_text(parser, group)


def _add_text(parser: argparse.ArgumentParser, group: argparse._ActionsContainer) -> None:
    group.add_argument("--space", choices=["lonlat", "planar"],
                       help="degrees and metres (default), or any plane")  # fmt: skip
    text = parser.add_argument_group("text")
    text.add_argument("--language", metavar="CODE", help="such as en; for --stem, --stop-words")
    text.add_argument("--stem", action="store_true", help="match word stems")
    text.add_argument("--stop-words", action="store_true", help="ignore the language's stop words")


def _add_reading(parser: argparse.ArgumentParser, *, rejects: str = "FILE") -> None:
    group = parser.add_argument_group("reading")
    _add_on_error(group, rejects)
    group.add_argument("--subscription-column", action="append", default=[], metavar="FIELD=COLUMN",
                       help="name of a column in the subscriptions, such as id=key")  # fmt: skip
    group.add_argument("--message-column", action="append", default=[], metavar="FIELD=COLUMN",
                       help="name of a column in the messages, such as x=lon")  # fmt: skip


def _add_on_error(parser: argparse._ActionsContainer, rejects: str) -> None:
    parser.add_argument("--on-error", choices=["raise", "reject"], default="raise",
                        help="stop at the first bad row (default), or set them aside")  # fmt: skip
    parser.add_argument("--rejects", metavar=rejects,
                        help="where rejected rows go, with their reasons")  # fmt: skip


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


# ---- commands ------------------------------------------------------------------------------------


def _match(arguments: argparse.Namespace) -> int:
    from earshot.jobs import RejectSink, match_files

    reading = _reading(arguments)
    with RejectSink(reading.rejects) as rejects:
        started = time.perf_counter()
        engine = _engine(arguments, reading, rejects)
        load_s = time.perf_counter() - started
        with _progress(arguments, "Matching messages") as progress:
            summary = match_files(
                engine, arguments.messages, arguments.out,
                reading=reading, rejects=rejects, progress=progress,
            )  # fmt: skip
    summary.load_s = load_s
    facts = {**asdict(summary), "counters": summary.counters._asdict(), "out": arguments.out}
    rate = summary.n_messages / max(summary.match_s, 1e-9)
    _show(arguments, {**facts, "messages_per_s": round(rate, 1)}, [
        f"{_against(summary)}: {_counted(summary.n_matches, 'match', 'matches')} in "
        f"{arguments.out}",
        f"{load_s:.2f} s to load, {summary.match_s:.2f} s to match ({rate:,.0f} messages/s)",
        *([_rejected(summary.n_rejects, reading)]
          if summary.n_rejects else []),
    ])  # fmt: skip
    return 0


def _index_build(arguments: argparse.Namespace) -> int:
    from earshot.jobs import RejectSink

    reading = _reading(arguments)
    with RejectSink(reading.rejects) as rejects:
        started = time.perf_counter()
        engine = _engine(arguments, reading, rejects)
        engine.save(arguments.out)
        elapsed_s = time.perf_counter() - started
    facts = {**_facts(engine), "out": arguments.out, "elapsed_s": round(elapsed_s, 3),
             "n_rejects": rejects.n_rows}  # fmt: skip
    subscriptions = _counted(facts["n_subscriptions"], "subscription")
    lines = [f"{subscriptions} in {arguments.out}, {elapsed_s:.1f} s"]
    if rejects.n_rows:
        lines.append(_rejected(rejects.n_rows, reading))
    _show(arguments, facts, lines)
    return 0


def _index_info(arguments: argparse.Namespace) -> int:
    from earshot.engine.engine import Engine

    started = time.perf_counter()
    engine = Engine.open(arguments.directory)
    facts = {**_facts(engine), "open_s": round(time.perf_counter() - started, 4)}
    _show(arguments, facts, _fact_lines(facts))
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    from earshot.jobs import RejectSink, explain_file

    reading = _reading(arguments)
    with RejectSink(reading.rejects) as rejects:
        engine = _engine(arguments, reading, rejects)
        explanation = explain_file(
            engine, arguments.messages, arguments.message, arguments.subscription, reading
        )
    _show(arguments, asdict(explanation), [str(explanation)])
    return 0


def _topk(arguments: argparse.Namespace) -> int:
    from earshot.jobs import RejectSink, topk_files

    reading = _reading(arguments)
    if arguments.save is not None and Path(arguments.save).exists():
        raise InvalidParameter(f"--save is {arguments.save}, which exists; name a new directory")
    with RejectSink(reading.rejects) as rejects:
        started = time.perf_counter()
        engine = _topk_engine(arguments, reading, rejects)
        load_s = time.perf_counter() - started
        with _progress(arguments, "Publishing messages") as progress:
            summary = topk_files(
                engine, arguments.messages, arguments.out, reading=reading, rejects=rejects,
                results=arguments.results, progress=progress,
            )  # fmt: skip
        if arguments.save is not None:
            engine.save(arguments.save)
    summary.load_s = load_s
    rate = summary.n_messages / max(summary.publish_s, 1e-9)
    _show(
        arguments,
        {
            **asdict(summary),
            "subscription_bytes": round(summary.subscription_bytes, 1),
            "message_bytes": round(summary.message_bytes, 1),
            "messages_per_s": round(rate, 1),
            "out": arguments.out,
        },
        _topk_lines(summary, rate, arguments, reading),
    )
    return 0


def _pipeline_run(arguments: argparse.Namespace) -> int:
    pipelines = _pipelines()
    from earshot.spark.config import read_config

    facts, number = pipelines.run_pipeline(
        read_config(arguments.config),
        master=arguments.master,
        once=arguments.once,
        is_quiet=arguments.quiet,
        say=_say(arguments),
    )
    _show(arguments, facts, pipelines.summary_lines(facts))
    return 0 if number is None else 128 + int(number)


def _pipeline_build(arguments: argparse.Namespace) -> int:
    pipelines = _pipelines()
    reading = _reading(arguments, "DIR")
    if reading.rejects is not None:
        pipelines.check_new(reading.rejects, "--rejects")
    with pipelines.spark_session(arguments.master, _settings(arguments)) as session:
        started = time.perf_counter()
        built = pipelines.build_index(
            session, _subscriptions_config(arguments, reading), arguments.out,
            rejects=reading.rejects, messages=arguments.messages,
            message_columns=reading.message_columns,
        )  # fmt: skip
        elapsed_s = time.perf_counter() - started
    facts = {**pipelines.index_facts(arguments.out), "elapsed_s": round(elapsed_s, 3),
             "n_rejects": built.n_rejects}  # fmt: skip
    _show(arguments, facts, [
        f"{_counted(facts['n_subscriptions'], 'subscription')} in {arguments.out}, version "
        f"{facts['version']}, {facts['placement']} in {_counted(facts['n_shards'], 'shard')}, "
        f"{elapsed_s:.1f} s",
        *([_rejected(built.n_rejects, reading)] if built.n_rejects else []),
    ])  # fmt: skip
    return 0


def _pipeline_match(arguments: argparse.Namespace) -> int:
    pipelines = _pipelines()
    reading = _reading(arguments, "DIR")
    pipelines.check_new(arguments.out, "--out")
    if reading.rejects is not None:
        pipelines.check_new(reading.rejects, "--rejects")
    is_index = pipelines.is_index(arguments.subscriptions)
    if is_index:
        _refuse_building(arguments)
    with pipelines.spark_session(arguments.master, _settings(arguments)) as session:
        summary = pipelines.match_files(
            session,
            arguments.subscriptions if is_index else _subscriptions_config(arguments, reading),
            arguments.messages, arguments.out,
            shape=arguments.shape, file_format=arguments.format,
            columns=reading.message_columns, on_error=reading.on_error, rejects=reading.rejects,
        )  # fmt: skip
    rate = summary.messages_per_s
    facts = {**asdict(summary), "messages_per_s": round(rate, 1), "out": arguments.out}
    _show(arguments, facts, [
        f"{_against(summary)}: {_counted(summary.n_updates, 'match', 'matches')} in "
        f"{arguments.out}",
        f"{summary.match_s:.2f} s to match ({rate:,.0f} messages/s)",
        *([_rejected(summary.n_rejects, reading)] if summary.n_rejects else []),
    ])  # fmt: skip
    return 0


def _pipeline_changes(arguments: argparse.Namespace) -> int:
    from earshot.jobs import RejectSink

    pipelines = _pipelines()
    _check_rejects(arguments, "FILE")
    with RejectSink(arguments.rejects) as rejects:
        summary = pipelines.change_files(
            arguments.index, arguments.changes,
            columns=_column_names(arguments.change_column, "--change-column"),
            on_error=arguments.on_error, rejects=rejects,
        )  # fmt: skip
    n_rejects = summary.n_rejects
    _show(arguments, asdict(summary), [
        f"{_counted(summary.n_changes, 'change')} taken into {arguments.index}: version "
        f"{summary.version} has {_counted(summary.n_subscriptions, 'subscription')}",
        *([f"{_counted(n_rejects, 'row')} rejected, see {arguments.rejects}"] if n_rejects else []),
    ])  # fmt: skip
    return 0


def _pipeline_info(arguments: argparse.Namespace) -> int:
    facts = _pipelines().index_facts(arguments.index)
    _show(arguments, facts, _fact_lines(facts))
    return 0


def _generate(arguments: argparse.Namespace) -> int:
    from earshot.files import write_table
    from earshot.workloads.synthetic import WORKLOADS, as_tables, find_workload

    if arguments.workload == "list":
        _show(arguments, {"workloads": list(WORKLOADS)}, list(WORKLOADS))
        return 0
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
    facts = {**asdict(workload), "space": workload.space, **written}
    _show(arguments, facts, [
        *(f"{tables[name].num_rows:,} {name} in {path}" for name, path in written.items()),
        f"match them with: earshot match {written['subscriptions']} {written['messages']} "
        f"--space {workload.space} --out {folder / 'matches.parquet'}",
    ])  # fmt: skip
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    from earshot.bench.commands import main as bench_main

    given = arguments.arguments
    is_command = given[:1] and given[0] in ("run", "report", "-h", "--help")
    return bench_main(given if is_command else ["run", *given])


def _demo(arguments: argparse.Namespace) -> int:
    from earshot.demo import run_demo, stream_demo

    if not arguments.seconds > 0:
        raise InvalidParameter(f"--seconds is {arguments.seconds}; expected more than 0")
    say, number = _say(arguments), None
    is_streamed = not arguments.engine
    if is_streamed:
        try:
            _pipelines()
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
    _show(arguments, facts, lines)
    return 0 if number is None else 128 + number


# ---- parts of commands ---------------------------------------------------------------------------


def _announce_compilation() -> None:
    from earshot.kernels.jit import is_first_use

    if is_first_use():
        print(
            "earshot: first use on this machine, compiling for about half a minute …",
            file=sys.stderr,
        )


def _say(arguments: argparse.Namespace) -> Callable[[str], None]:
    def say(line: str) -> None:
        if not arguments.quiet:
            print(f"earshot: {line}", file=sys.stderr, flush=True)

    return say


def _pipelines() -> ModuleType:
    """Return the commands of pipelines, or say what to install for them."""
    try:
        from earshot.spark import commands
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("pyspark", "py4j"):
            raise MissingExtra(
                "PySpark is not installed; run: pip install 'earshot[spark]'"
            ) from None
        raise
    return commands


def _subscriptions_config(arguments: argparse.Namespace, reading: Reading) -> Any:
    from earshot.indexes import default_structure
    from earshot.spark.config import SubscriptionsConfig

    return SubscriptionsConfig(
        path=arguments.subscriptions,
        columns=reading.subscription_columns,
        on_error=reading.on_error,
        placement=getattr(arguments, "placement", "auto"),
        n_shards=getattr(arguments, "shards", None),
        space=arguments.space or "lonlat",
        language=arguments.language,
        stem=arguments.stem,
        stop_words=arguments.stop_words,
        structure=arguments.index or default_structure("boolean"),
    )


def _settings(arguments: argparse.Namespace) -> dict[str, str]:
    settings = {}
    for pair in arguments.setting:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise InvalidParameter(f"--setting is {pair!r}; expected NAME=VALUE")
        settings[name] = value
    return settings


def _refuse_building(arguments: argparse.Namespace, noun: str = "built index") -> None:
    """Refuse options that only count when an index is built."""
    chosen = [
        f"--{name.replace('_', '-')}"
        for name in (
            "rank", "window", "k", "alpha", "max_distance", "lateness", "weights", "method",
            "threshold", "index", "space", "language", "stem", "stop_words",
        )
        if getattr(arguments, name, None) is not None and getattr(arguments, name) is not False
    ]  # fmt: skip
    if chosen:
        raise InvalidParameter(
            f"{', '.join(chosen)}: {arguments.subscriptions} is a {noun}, which has its own; "
            f"leave the option out or build another index"
        )


def _engine(arguments: argparse.Namespace, reading: Reading, rejects: Any) -> Any:
    from earshot.jobs import is_saved, load_engine
    from earshot.text import Analyzer

    if is_saved(arguments.subscriptions):
        _refuse_building(arguments)
    if arguments.threads < 1:
        raise InvalidParameter(f"--threads is {arguments.threads}; expected 1 or more")
    ranking = _ranking(arguments)
    with _progress(arguments, "Reading subscriptions") as progress:
        return load_engine(
            arguments.subscriptions,
            reading=reading,
            rejects=rejects,
            space=arguments.space or "lonlat",
            analyzer=Analyzer(arguments.language, arguments.stop_words, arguments.stem),
            ranking=ranking,
            index=arguments.index,
            n_threads=arguments.threads,
            progress=progress,
        )


def _topk_engine(arguments: argparse.Namespace, reading: Reading, rejects: Any) -> Any:
    from earshot.jobs import is_saved, load_topk_engine, read_topk
    from earshot.text import Analyzer

    n_learned = LEARNED_MESSAGES if arguments.weights is None else arguments.weights
    if n_learned < 0:
        raise InvalidParameter(f"--weights is {n_learned}; expected 0 or more")
    topk = None
    if is_saved(arguments.subscriptions):
        _refuse_building(arguments, "saved state")
    elif arguments.window is None:
        raise InvalidParameter(
            "--window is missing: say how many messages it holds, such as 100000, or how long they "
            "stay, such as 10m"
        )
    else:
        names = ("window", "k", "alpha", "max_distance", "lateness")
        given = {name: getattr(arguments, name) for name in names}
        topk = read_topk(**given, space=arguments.space or "lonlat")
    with _progress(arguments, "Reading subscriptions") as progress:
        return load_topk_engine(
            arguments.subscriptions,
            reading=reading,
            rejects=rejects,
            topk=topk,
            space=arguments.space or "lonlat",
            analyzer=Analyzer(arguments.language, arguments.stop_words, arguments.stem),
            method=arguments.method,
            learn_from=arguments.messages,
            n_learned=n_learned,
            progress=progress,
        )


def _topk_lines(
    summary: Any, rate: float, arguments: argparse.Namespace, reading: Reading
) -> list[str]:
    lines = [
        f"{_against(summary)}: {_counted(summary.n_updates, 'update')} in {arguments.out}",
        f"{summary.load_s:.2f} s to load, {summary.publish_s:.2f} s to publish "
        f"({rate:,.0f} messages/s)",
        f"{_counted(summary.counters['reevaluations'], 'result')} refilled by a search, "
        f"{summary.n_buffered / max(summary.n_subscriptions, 1):.1f} messages held for each",
        f"{summary.subscription_bytes:,.0f} bytes per subscription, "
        f"{summary.message_bytes:,.0f} bytes per message of {summary.n_in_window:,} in the window",
    ]
    if summary.n_late:
        lines.append(f"{_counted(summary.n_late, 'message')} came too late")
    if summary.n_rejects:
        lines.append(_rejected(summary.n_rejects, reading))
    return lines


def _ranking(arguments: argparse.Namespace) -> Ranking | None:
    from earshot.model.ranking import Ranking

    given = {
        name: getattr(arguments, name)
        for name in ("alpha", "threshold")
        if getattr(arguments, name) is not None
    }
    if not arguments.rank:
        for name in given:
            raise InvalidParameter(f"--{name} is for ranked matching; add --rank")
        return None
    return Ranking(**given)


def _check_rejects(arguments: argparse.Namespace, metavar: str) -> None:
    if arguments.on_error == "reject" and arguments.rejects is None:
        raise InvalidParameter(f"--on-error reject needs --rejects {metavar} for the rejected rows")
    if arguments.on_error == "raise" and arguments.rejects is not None:
        raise InvalidParameter("--rejects is for --on-error reject")


def _reading(arguments: argparse.Namespace, rejects: str = "FILE") -> Reading:
    from earshot.jobs import Reading

    _check_rejects(arguments, rejects)
    return Reading(
        on_error=arguments.on_error,
        rejects=arguments.rejects,
        subscription_columns=_column_names(arguments.subscription_column, "--subscription-column"),
        message_columns=_column_names(arguments.message_column, "--message-column"),
    )


def _rejected(n_rows: int, reading: Reading) -> str:
    return f"{_counted(n_rows, 'row')} rejected, see {reading.rejects}"


def _against(summary: Any) -> str:
    messages = _counted(summary.n_messages, "message")
    return f"{messages} against {_counted(summary.n_subscriptions, 'subscription')}"


def _counted(n: int, noun: str, plural: str = "") -> str:
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def _column_names(pairs: list[str], option: str) -> dict[str, str]:
    names = {}
    for pair in pairs:
        field, separator, column = pair.partition("=")
        if not separator or not field or not column:
            raise InvalidParameter(f"{option} is {pair!r}; expected FIELD=COLUMN, such as id=key")
        names[field] = column
    return names


def _facts(engine: Any) -> dict[str, Any]:
    index, ranking = engine.index, engine.ranking
    return {
        "semantics": index.semantics,
        **({} if ranking is None else asdict(ranking)),
        "index": index.name,
        "space": engine.space,
        "n_subscriptions": index.n_subscriptions,
        "n_clauses": len(index.clauses.subscriptions),
        "n_changes": index.n_changes,
        "n_tokens": len(engine.vocabulary) - 1,
        "index_bytes": index.nbytes,
        "subscription_bytes": index.stored_nbytes,
        "vocabulary_bytes": engine.vocabulary.nbytes,
        "ids": str(engine.id_type),
        "parameters": asdict(index.parameters),
        "analyzer": asdict(engine.analyzer),
    }


def _fact_lines(facts: dict[str, Any]) -> list[str]:
    return [
        f"{name}: {value:,}" if isinstance(value, int) else f"{name}: {value}"
        for name, value in facts.items()
    ]


def _show(arguments: argparse.Namespace, facts: dict[str, Any], lines: Sequence[str]) -> None:
    print(json.dumps(facts, default=str) if arguments.json else "\n".join(lines))


@contextmanager
def _progress(arguments: argparse.Namespace, label: str) -> Iterator[Progress | None]:
    """Show a progress bar on the terminal's error output, where there is one."""
    if arguments.quiet or arguments.json or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("{task.fields[rate]}"))  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None, rate="")
        started = time.perf_counter()

        def advance(n_rows: int) -> None:
            bar.advance(task, n_rows)
            done = bar.tasks[0].completed
            bar.update(task, rate=f"{done / (time.perf_counter() - started):,.0f} rows/s")

        yield advance


if __name__ == "__main__":
    sys.exit(main())
