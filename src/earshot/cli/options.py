"""Options that several commands share, and what is read from them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from earshot.cli.output import progress_bar, sayer
from earshot.cli.semantics import (
    Option,
    add_semantics,
    all_options,
    chosen_semantics,
    given_options,
    options_named,
    semantics_for,
    structures_text,
)
from earshot.errors import InvalidParameter

if TYPE_CHECKING:
    from earshot.engine.engine import Engine
    from earshot.jobs import FileOptions, RejectSink

FORMATS = "Parquet, GeoParquet, NDJSON, GeoJSON or CSV"


class CommandParser(argparse.ArgumentParser):
    """A parser whose help lists the semantics that run there, and ends with their structures."""

    semantics: dict[Option, argparse.Action] | None = None
    is_of_tables = False

    def format_help(self) -> str:
        """Return the help; the semantics are looked up only now, since that takes a second."""
        if self.semantics is None:
            return super().format_help()
        listed = semantics_for(is_of_tables=self.is_of_tables)
        for option, action in self.semantics.items():
            if not any(option in each.all_options for each in listed):
                action.help = argparse.SUPPRESS  # still taken, to say why it is refused
        return f"{super().format_help()}\n{structures_text(listed)}"


# ---- adding options ------------------------------------------------------------------------------


def add_engine(parser: CommandParser) -> None:
    """Add everything about how an engine is made from files, and what is printed."""
    add_building(parser)
    group = add_reading(parser)
    group.add_argument("--format", choices=["ndjson", "csv", "geojson"],
                       help="format of - (default: ndjson); with geojson, updates are "
                       "NDJSON")  # fmt: skip
    group.add_argument("--delimiter", metavar="C",
                       help="character between values of CSV, or tab (default: ,)")  # fmt: skip
    group.add_argument("--encoding", metavar="NAME",
                       help="encoding of CSV, such as latin-1 (default: utf-8)")  # fmt: skip
    add_output(parser)


def add_building(
    parser: CommandParser, *, is_on_spark: bool = False, is_of_tables: bool = False
) -> None:
    """Add what an engine is for, how it is built, and how it takes text."""
    parser.semantics, parser.is_of_tables = add_semantics(parser), is_of_tables
    group = parser.add_argument_group("structure")
    group.add_argument("--structure", metavar="NAME", help="index structure; see below")
    group.add_argument("--space", choices=["lonlat", "planar"],
                       help="degrees and metres (default), or any plane")  # fmt: skip
    if not is_on_spark:
        group.add_argument(
            "--threads", type=int, default=1, metavar="N", help="number of threads (default: 1)"
        )
    text = parser.add_argument_group("text")
    text.add_argument(
        "--language", metavar="CODE", help="language, such as en, for --stem and --stop-words"
    )
    text.add_argument("--stem", action="store_true", help="match word stems")
    text.add_argument("--stop-words", action="store_true", help="ignore the language's stop words")


def add_reading(
    parser: argparse.ArgumentParser, *, rejects: str = "FILE"
) -> argparse._ArgumentGroup:
    """Add how files of subscriptions and messages are read."""
    group = parser.add_argument_group("reading")
    add_on_error(group, rejects)
    add_columns(group, "subscription", "id=key")
    add_columns(group, "message", "x=lon")
    group.add_argument("--place", choices=["point", "box"],
                       help="which place counts if a message has both; box also takes the box "
                       "around a polygon")  # fmt: skip
    return group


def add_columns(parser: argparse._ActionsContainer, row: str, example: str) -> None:
    """Add how the columns of a kind of rows are called."""
    parser.add_argument(f"--{row}-column", action="append", default=[], metavar="FIELD=COLUMN",
                        help=f"name of a column in the {row}s, such as {example}")  # fmt: skip


def add_on_error(parser: argparse._ActionsContainer, rejects: str = "FILE") -> None:
    """Add what is done with bad rows."""
    parser.add_argument("--on-error", choices=["raise", "reject"], default="raise",
                        help="stop at the first wrong row (default), or set such rows "
                        "aside")  # fmt: skip
    parser.add_argument("--rejects", metavar=rejects,
                        help="where rejected rows go, with their reasons")  # fmt: skip


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add what is printed."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")


# ---- reading them --------------------------------------------------------------------------------


def file_options(arguments: argparse.Namespace, rejects: str = "FILE") -> FileOptions:
    """Return how files are read; ``rejects`` is what the place of rejected rows is called."""
    from earshot.jobs import FileOptions

    check_rejects(arguments, rejects)
    return FileOptions(
        on_error=arguments.on_error,
        rejects=arguments.rejects,
        subscription_columns=column_names(arguments, "subscription"),
        message_columns=column_names(arguments, "message"),
        position_columns=column_names(arguments, "position"),
        place=arguments.place,
    )


def local_files(
    arguments: argparse.Namespace,
    inputs: Sequence[str],
    outputs: Sequence[str] = (),
    directories: Sequence[str] = (),
) -> FileOptions:
    """Return how files and streams of this machine are read; check what can be checked at once.

    Args:
        arguments: What was given.
        inputs: Names of the positional arguments, and flags, of files that are read.
        outputs: Flags of files that are written; ``--rejects`` is one in any case.
        directories: Flags of directories that are written.
    """
    from earshot.files import check_place, format_of, is_stream
    from earshot.files.csv import Dialect

    outputs = (*outputs, "--rejects")
    files = file_options(arguments)
    refuse_clashes(arguments, inputs, (*outputs, *directories))
    refuse_within(arguments, outputs, directories)
    sources = [each for each in map(partial(_given, arguments), inputs) if each is not None]
    targets = [each for each in map(partial(_given, arguments), outputs) if each is not None]
    if arguments.format is not None:
        if not any(map(is_stream, (*sources, *targets))):
            raise InvalidParameter("--format is for -; the names of files say theirs")
        files = replace(files, stream_format=arguments.format)
    for flag, name in (("--delimiter", "delimiter"), ("--encoding", "encoding")):
        value = getattr(arguments, name)
        if value is None:
            continue
        if not any(
            format_of(each, files.stream_format) == "csv"
            for each in sources
            if is_stream(each) or not Path(each).is_dir()
        ):
            raise InvalidParameter(f"{flag} is for CSV, and nothing that is read is CSV")
        value = "\t" if name == "delimiter" and value in ("tab", "\\t") else value
        changed: dict[str, Any] = {name: value}
        files = replace(files, **changed)
    with options_named({"delimiter": "--delimiter", "encoding": "--encoding"}):
        Dialect(files.delimiter, files.encoding).check()
    for each in targets:
        check_place(each)
    return files


def check_rejects(arguments: argparse.Namespace, metavar: str = "FILE") -> None:
    """Refuse a place for rejected rows without such rows, and the other way round."""
    if arguments.on_error == "reject" and arguments.rejects is None:
        raise InvalidParameter(f"--on-error reject needs --rejects {metavar} for the rejected rows")
    if arguments.on_error == "raise" and arguments.rejects is not None:
        raise InvalidParameter("--rejects is for --on-error reject")


def refuse_clashes(
    arguments: argparse.Namespace, inputs: Sequence[str], outputs: Sequence[str]
) -> None:
    """Refuse an output that is an input too, or another output: one would destroy the other.

    Args:
        arguments: What was given.
        inputs: Names of the positional arguments, and flags, of files that are read.
        outputs: Flags of files and directories that are written.
    """
    taken: dict[object, str] = {}
    for name in (*inputs, *outputs):
        given = _given(arguments, name)
        if given is None:
            continue
        # Standard input and standard output are two things, and each is there once.
        is_standard = given == "-"
        place = ("-", name in outputs) if is_standard else Path(given).resolve()
        if place in taken and (name in outputs or is_standard):
            raise InvalidParameter(
                f"{name} is {given}, and so is {taken[place]}; name another place for {name}"
            )
        taken[place] = name


def refuse_within(
    arguments: argparse.Namespace, names: Sequence[str], directories: Sequence[str]
) -> None:
    """Refuse a file within a directory that is replaced as a whole at the end."""
    for flag, name in product(directories, names):
        directory, given = _given(arguments, flag), _given(arguments, name)
        if directory is None or given is None or given == "-":
            continue
        if Path(directory).resolve() in Path(given).resolve().parents:
            raise InvalidParameter(
                f"{name} is {given}, within {flag} {directory}, which is replaced as a whole; name "
                f"another place for {name}"
            )


def _given(arguments: argparse.Namespace, name: str) -> str | None:
    """Return the value of a positional argument or flag by its name, None where there is none."""
    given: str | None = getattr(arguments, name.removeprefix("--").lower(), None)
    return given


def column_names(arguments: argparse.Namespace, row: str) -> dict[str, str]:
    """Return the names of the columns of a kind of rows, by field."""
    pairs = getattr(arguments, f"{row}_column", [])
    return dict(_pair(text, f"--{row}-column", "FIELD=COLUMN, such as id=key") for text in pairs)


def spark_settings(pairs: list[str]) -> dict[str, str]:
    """Return settings of Spark by name; a value may be empty."""
    return dict(_pair(text, "--setting", "NAME=VALUE", may_be_empty=True) for text in pairs)


def _pair(text: str, option: str, expected: str, may_be_empty: bool = False) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name or not (value or may_be_empty):
        raise InvalidParameter(f"{option} is {text!r}; expected {expected}")
    return name, value


def refuse_building(arguments: argparse.Namespace) -> None:
    """Refuse options that only count when an index is built."""
    given = given_options(arguments)
    flags = [option.flag for option in all_options() if option.name in given]
    for name in ("structure", "space", "language", "stem", "stop_words"):
        if getattr(arguments, name) not in (None, False):
            flags.append(f"--{name.replace('_', '-')}")
    if flags:
        raise InvalidParameter(
            f"{', '.join(flags)}: {arguments.subscriptions} is a built index, which has its own; "
            f"leave the option out or build another index"
        )


def load(
    arguments: argparse.Namespace, files: FileOptions, rejects: RejectSink, *, learns: bool = True
) -> Engine:
    """Return the engine that the arguments ask for, with its subscriptions.

    It ``learns`` how words weigh from messages that can be read for that.
    """
    from earshot.jobs import is_saved, load_engine
    from earshot.text import Analyzer

    if arguments.threads < 1:
        raise InvalidParameter(f"--threads is {arguments.threads}; expected 1 or more")
    options: dict[str, Any] = {}
    if is_saved(arguments.subscriptions):
        refuse_building(arguments)
    else:
        space = arguments.space or "lonlat"
        semantics, given = chosen_semantics(arguments)
        n_learned = semantics.n_learned(given)
        if n_learned and not learns:
            advice = "'earshot index build --messages SAMPLE' weighs words by others"
            if "weights" in given:
                raise InvalidParameter(f"--weights: a stream cannot be read twice; {advice}")
            sayer(arguments)(f"all words weigh the same, since a stream comes once; {advice}")
            n_learned = 0
        for flag, is_given in (("--stem", arguments.stem), ("--stop-words", arguments.stop_words)):
            if is_given and arguments.language is None:
                raise InvalidParameter(f"{flag} needs a language, such as --language en")
        options = {
            "n_learned": n_learned,
            "semantics": semantics.checked_settings(given, space),
            "structure": arguments.structure,
            "space": space,
            "analyzer": Analyzer(arguments.language, arguments.stop_words, arguments.stem),
            "learn_from": arguments.messages,
        }
    with progress_bar(arguments, "Reading subscriptions") as progress:
        return load_engine(
            arguments.subscriptions, files=files, rejects=rejects,
            n_threads=arguments.threads, progress=progress, **options,
        )  # fmt: skip
