"""``earshot pipeline``: build, match and follow streams on Spark."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from earshot.cli.options import (
    FORMATS,
    CommandParser,
    add_building,
    add_columns,
    add_on_error,
    add_output,
    add_reading,
    check_rejects,
    column_names,
    file_options,
    refuse_building,
    spark_settings,
)
from earshot.cli.output import against, counted, rejected, sayer, show, show_facts
from earshot.cli.semantics import chosen_semantics
from earshot.errors import InvalidParameter, MissingExtra

if TYPE_CHECKING:
    from earshot.jobs import FileOptions
    from earshot.model.arrays import Space

FILES = f"{FORMATS} file, or a directory of such files"


def spark_commands() -> ModuleType:
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


# ---- the parser ----------------------------------------------------------------------------------


def add(commands: Any) -> None:
    parser = commands.add_parser("pipeline", help="build, match and follow streams on Spark")
    inner = parser.add_subparsers(metavar="COMMAND", required=True)

    with _command(
        inner, "run", run_pipeline, "run the pipeline that a file describes",
        "Match messages as they come, until Ctrl-C or SIGTERM. The next start continues there.",
    ) as run:  # fmt: skip
        run.add_argument("config", metavar="CONFIG", help="TOML file")
        run.add_argument("--once", action="store_true", help="match what is there now, then end")
        _add_spark(run, has_settings=False)

    with _command(inner, "build", run_build, "build an index for pipelines, on Spark") as build:
        build.add_argument("subscriptions", metavar="SUBSCRIPTIONS", help=FILES)
        build.add_argument("--out", required=True, metavar="INDEX",
                           help="directory; an index that is there gets a new "
                           "version")  # fmt: skip
        group = build.add_argument_group("placement")
        group.add_argument("--placement", choices=["auto", "replicated", "sharded"], default="auto",
                           help="the whole index on every machine, or cut into shards "
                           "(default: by size)")  # fmt: skip
        group.add_argument("--shards", type=int, metavar="N", help="number of shards")
        group.add_argument("--messages", metavar="SAMPLE",
                           help="messages like those to come, to cut shards by")  # fmt: skip
        _add_building(build)

    with _command(
        inner, "match", run_match, "match files of messages in batch, on Spark",
        "Write one row per match; or with --shape lists, message_id and subscription_ids of every "
        "message.",
    ) as match:  # fmt: skip
        match.add_argument("subscriptions", metavar="INDEX_OR_SUBSCRIPTIONS",
                           help=f"directory made by 'earshot pipeline build', or "
                           f"{FILES}")  # fmt: skip
        match.add_argument("messages", metavar="MESSAGES", help=FILES)
        match.add_argument("--out", required=True, metavar="DIR", help="directory to create")
        match.add_argument("--shape", choices=["rows", "lists"], default="rows",
                           help="one row per match (default), or per message")  # fmt: skip
        match.add_argument("--format", choices=["parquet", "ndjson"], default="parquet")
        _add_building(match, is_of_tables=True)

    with _command(
        inner, "changes", run_changes, "take changes of subscriptions into an index",
        "Apply files of changes to an index, as one new version. No running pipeline may change "
        "that index.",
    ) as changes:  # fmt: skip
        _add_index(changes)
        changes.add_argument("changes", metavar="CHANGES", help=FILES)
        add_on_error(changes)
        add_columns(changes, "change", "id=key")

    with _command(
        inner, "results", run_results, "write what the subscriptions of a pipeline hold now",
        "Write subscription_id, rank, message_id and score as of the last finished batch. For "
        "pipelines of top-k or moving subscribers; they may be running.",
    ) as results:  # fmt: skip
        results.add_argument("config", metavar="CONFIG", help="TOML file of the pipeline")
        results.add_argument("--out", required=True, metavar="DIR", help="directory to create")
        results.add_argument("--format", choices=["parquet", "ndjson"], default="parquet")

    with _command(
        inner, "pack", run_pack, "pack what executors need into an archive",
        "Write an archive with Earshot, its dependencies and compiled kernels, for --archives of "
        "spark-submit. Executors need the same Python version, but no packages.",
        compiles=False,
    ) as pack:  # fmt: skip
        pack.add_argument("out", metavar="ARCHIVE",
                          help="file to create, such as environment.tar.gz")  # fmt: skip
        pack.add_argument("--processor", metavar="KIND", action="append", default=[],
                          help="kind of processor to compile for, such as x86-64-v3; may be "
                          "repeated (default: those that this machine supports)")  # fmt: skip

    with _command(
        inner, "plan", run_plan, "say what a load needs: shards, memory, cores, network",
        "Build two small indexes of your own subscriptions, match your own messages with both, and "
        "extrapolate what they cost to a load. Runs without Spark.",
    ) as plan:  # fmt: skip
        plan.add_argument("subscriptions", metavar="SUBSCRIPTIONS", help=f"{FORMATS} file")
        plan.add_argument("messages", metavar="MESSAGES", help=f"{FORMATS} file")
        _add_load(plan)
        plan.add_argument("--space", choices=["lonlat", "planar"], default="lonlat",
                          help="degrees and metres, or any plane")  # fmt: skip

    with _command(
        inner, "release", run_release, "let go of what a pipeline holds that will not run again",
        "A pipeline holds the versions of an index that it may still ask for, even while it is "
        "stopped. Release a pipeline whose checkpoint is gone, so that they can be removed.",
        compiles=False,
    ) as release:  # fmt: skip
        _add_index(release)
        release.add_argument("pipeline", metavar="PIPELINE",
                             help="its name, as 'held' in 'earshot pipeline info' shows "
                             "it")  # fmt: skip

    with _command(
        inner, "info", run_info, "describe an index for pipelines", compiles=False
    ) as info:
        _add_index(info)


@contextmanager
def _command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], int | None],
    told: str,
    description: str | None = None,
    *,
    compiles: bool = True,
) -> Iterator[CommandParser]:
    """Yield the parser of a command, whose last options are about what is printed."""
    sentence = f"{told[0].upper()}{told[1:]}."
    parser: CommandParser = commands.add_parser(
        name, help=told, description=description or sentence
    )
    parser.set_defaults(run=run)
    if compiles:
        parser.set_defaults(compiles=True)
    yield parser
    add_output(parser)


def _add_index(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("index", metavar="INDEX", help="directory of the index")


def _add_load(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load")
    for flag, kind, told in (
        ("--n-subscriptions", int, "number of subscriptions"),
        ("--messages-per-s", float, "messages per second"),
    ):
        group.add_argument(flag, type=kind, required=True, metavar="N", help=told)
    group.add_argument("--shards-per-message", type=float, default=2.0, metavar="N",
                       help="shards that a message goes to, as 'earshot pipeline info' shows for a "
                       "sharded index (default: 2)")  # fmt: skip
    group = parser.add_argument_group("executors")
    for flag, default, metavar, told in (
        ("--cores", 4, "N", "cores of each"),
        ("--memory-gb", 16.0, "GB", "memory of each, outside the Java heap"),
        ("--network-gb-per-s", 1.25, "GB", "network of each"),
    ):
        group.add_argument(flag, type=type(default), default=default, metavar=metavar,
                           help=f"{told} (default: {default:g})")  # fmt: skip


def _add_building(parser: CommandParser, *, is_of_tables: bool = False) -> None:
    add_building(parser, is_on_spark=True, is_of_tables=is_of_tables)
    add_reading(parser, rejects="DIR")
    _add_spark(parser)


def _add_spark(parser: argparse.ArgumentParser, *, has_settings: bool = True) -> None:
    group = parser.add_argument_group("Spark")
    group.add_argument("--master", metavar="M",
                       help="where Spark runs (default: on all cores of this machine)")  # fmt: skip
    if has_settings:
        group.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE",
                           help="a Spark setting, such as spark.driver.memory=8g")  # fmt: skip


# ---- commands ------------------------------------------------------------------------------------


def run_pipeline(arguments: argparse.Namespace) -> int:
    spark = spark_commands()
    from earshot.spark.config import read_config

    facts, number = spark.run_pipeline(
        read_config(arguments.config),
        master=arguments.master,
        once=arguments.once,
        is_quiet=arguments.quiet,
        say=sayer(arguments),
    )
    show(arguments, facts, spark.summary_lines(facts))
    return 0 if number is None else 128 + int(number)


def run_build(arguments: argparse.Namespace) -> None:
    spark = spark_commands()
    files = file_options(arguments, "DIR")
    spark.check_new(files.rejects, "--rejects")
    if files.place is not None and arguments.messages is None:
        raise InvalidParameter("--place is for --messages SAMPLE, whose places it chooses")
    with spark.spark_session(arguments.master, spark_settings(arguments.setting)) as session:
        started = time.perf_counter()
        built = spark.build_index(
            session, _subscriptions_config(arguments, files), arguments.out,
            rejects=files.rejects, messages=arguments.messages,
            message_columns=files.message_columns, place=files.place,
        )  # fmt: skip
        elapsed_s = time.perf_counter() - started
    facts = {**spark.index_facts(arguments.out), "elapsed_s": round(elapsed_s, 3),
             "n_rejects": built.n_rejects}  # fmt: skip
    show(arguments, facts, [
        f"{counted(facts['n_subscriptions'], 'subscription')} in {arguments.out}, version "
        f"{facts['version']}, {facts['placement']} in {counted(facts['n_shards'], 'shard')}, "
        f"{elapsed_s:.1f} s",
        *rejected(built.n_rejects, files.rejects),
    ])  # fmt: skip


def run_match(arguments: argparse.Namespace) -> None:
    spark = spark_commands()
    files = file_options(arguments, "DIR")
    spark.check_new(arguments.out, "--out")
    spark.check_new(files.rejects, "--rejects")
    is_index = spark.is_index(arguments.subscriptions)
    if is_index:
        refuse_building(arguments)
    with spark.spark_session(arguments.master, spark_settings(arguments.setting)) as session:
        summary = spark.match_messages(
            session,
            arguments.subscriptions if is_index else _subscriptions_config(arguments, files),
            arguments.messages, arguments.out,
            shape=arguments.shape, file_format=arguments.format,
            columns=files.message_columns, on_error=files.on_error, rejects=files.rejects,
            place=files.place,
        )  # fmt: skip
    rate = summary.messages_per_s
    facts = {**asdict(summary), "messages_per_s": round(rate, 1), "out": arguments.out}
    show(arguments, facts, [
        f"{against(summary)}: {counted(summary.n_updates, 'match', 'matches')} in "
        f"{arguments.out}",
        f"{summary.match_s:.2f} s to match ({rate:,.0f} messages/s)",
        *rejected(summary.n_rejects, files.rejects),
    ])  # fmt: skip


def run_changes(arguments: argparse.Namespace) -> None:
    from earshot.jobs import RejectSink

    check_rejects(arguments)
    with RejectSink(arguments.rejects) as rejects:
        summary = spark_commands().change_files(
            arguments.index, arguments.changes,
            columns=column_names(arguments, "change"),
            on_error=arguments.on_error, rejects=rejects,
        )  # fmt: skip
    show(arguments, asdict(summary), [
        f"{counted(summary.n_changes, 'change')} taken into {arguments.index}: version "
        f"{summary.version} has {counted(summary.n_subscriptions, 'subscription')}",
        *rejected(summary.n_rejects, arguments.rejects),
    ])  # fmt: skip


def run_results(arguments: argparse.Namespace) -> None:
    spark = spark_commands()
    from earshot.spark.config import read_config

    spark.check_new(arguments.out, "--out")
    config = read_config(arguments.config)
    batch = spark.write_held_results(config, arguments.out, file_format=arguments.format)
    when = f"after batch {batch}" if batch >= 0 else "before any batch has finished"
    show(arguments, {"batch": batch, "out": arguments.out},
         [f"results {when} in {arguments.out}"])  # fmt: skip


def run_pack(arguments: argparse.Namespace) -> None:
    spark_commands()
    from earshot.spark.environment import pack_environment

    out = Path(arguments.out).absolute()
    started = time.perf_counter()
    n_kernels = pack_environment(out, arguments.processor, say=sayer(arguments))
    elapsed_s, n_bytes = time.perf_counter() - started, out.stat().st_size
    facts = {"archive": str(out), "n_kernels": n_kernels, "n_bytes": n_bytes,
             "elapsed_s": round(elapsed_s, 1)}  # fmt: skip
    told = f"{out}: {n_bytes / 1e6:,.0f} MB with {counted(n_kernels, 'kernel')}, {elapsed_s:.0f} s"
    show(arguments, facts, [told])


def run_plan(arguments: argparse.Namespace) -> None:
    from earshot.jobs.sizing import measure_costs
    from earshot.placement.sizing import Machine, sized

    trial = measure_costs(arguments.subscriptions, arguments.messages, space=arguments.space)
    machine = Machine(arguments.cores, arguments.memory_gb * 1e9, arguments.network_gb_per_s * 1e9)
    found = sized(
        trial.costs, machine, arguments.n_subscriptions, arguments.messages_per_s,
        shards_per_message=arguments.shards_per_message,
    )  # fmt: skip
    measured = [each._asdict() for each in (trial.small, trial.large)]
    show(arguments, {**asdict(found), "measured": measured}, [
        f"{counted(found.n_executors, 'executor')}, as {found.bound_by} asks for; the index is "
        f"{found.placement} in {counted(found.n_shards, 'shard')}",
        f"{found.index_bytes / 1e9:,.1f} GB of index, {found.shard_bytes / 1e9:,.1f} GB the "
        f"largest shard, {found.executor_bytes / 1e9:,.1f} GB on an executor",
        f"{found.cores:,.1f} cores busy; {found.message_bytes_per_s / 1e6:,.0f} MB/s of messages "
        f"to shards, {found.update_bytes_per_s / 1e6:,.0f} MB/s of updates to the sink",
        f"measured with {trial.small.n_subscriptions:,} and {trial.large.n_subscriptions:,} "
        f"subscriptions: {trial.small.message_s * 1e6:.1f} and {trial.large.message_s * 1e6:.1f} "
        f"us of CPU and {trial.small.updates:,.1f} and {trial.large.updates:,.1f} updates a "
        f"message",
    ])  # fmt: skip


def run_release(arguments: argparse.Namespace) -> None:
    gone = spark_commands().release_versions(arguments.index, arguments.pipeline)
    show(arguments, {"removed": gone}, [
        f"{arguments.index} is not held by {arguments.pipeline} any more; "
        f"{counted(len(gone), 'version')} removed"
    ])  # fmt: skip


def run_info(arguments: argparse.Namespace) -> None:
    show_facts(arguments, spark_commands().index_facts(arguments.index))


def _subscriptions_config(arguments: argparse.Namespace, files: FileOptions) -> Any:
    from earshot.spark.config import SubscriptionsConfig

    space: Space = arguments.space or "lonlat"
    semantics, given = chosen_semantics(arguments)
    if "weights" in given:
        raise InvalidParameter("--weights is not for pipelines, in which all words weigh the same")
    return SubscriptionsConfig(
        path=arguments.subscriptions,
        columns=files.subscription_columns,
        on_error=files.on_error,
        placement=getattr(arguments, "placement", "auto"),
        n_shards=getattr(arguments, "shards", None),
        space=space,
        language=arguments.language,
        stem=arguments.stem,
        stop_words=arguments.stop_words,
        structure=arguments.structure,
        semantics=semantics.checked_settings(given, space),
    )
