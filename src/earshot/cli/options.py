"""Options that several commands share, and what is read from them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from earshot.cli.output import progress_bar
from earshot.cli.semantics import (
    add_semantics,
    all_options,
    chosen_semantics,
    given_options,
    structures_text,
)
from earshot.errors import InvalidParameter

if TYPE_CHECKING:
    from earshot.engine.engine import Engine
    from earshot.jobs import FileOptions, RejectSink

FORMATS = "Parquet, GeoParquet, NDJSON, GeoJSON or CSV"


class CommandParser(argparse.ArgumentParser):
    """A parser whose help ends with the structures, where it has an option to name one."""

    names_structures = False

    def format_help(self) -> str:
        """Return the help; the structures are looked up only now, since that takes a second."""
        text = super().format_help()
        return f"{text}\n{structures_text()}" if self.names_structures else text


# ---- adding options ------------------------------------------------------------------------------


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add everything about how an engine is made from files, and what is printed."""
    add_semantics(parser)
    add_building(parser)
    add_reading(parser)
    add_output(parser)


def add_building(parser: argparse.ArgumentParser, *, has_threads: bool = True) -> None:
    """Add how an engine is built, and how it takes text."""
    group = parser.add_argument_group("structure")
    group.add_argument("--structure", metavar="NAME", help="index structure; see below")
    group.add_argument("--space", choices=["lonlat", "planar"],
                       help="degrees and metres (default), or any plane")  # fmt: skip
    if has_threads:
        group.add_argument(
            "--threads", type=int, default=1, metavar="N", help="threads (default: 1)"
        )
    text = parser.add_argument_group("text")
    text.add_argument("--language", metavar="CODE", help="such as en; for --stem, --stop-words")
    text.add_argument("--stem", action="store_true", help="match word stems")
    text.add_argument("--stop-words", action="store_true", help="ignore the language's stop words")
    if isinstance(parser, CommandParser):
        parser.names_structures = True


def add_reading(parser: argparse.ArgumentParser, *, rejects: str = "FILE") -> None:
    """Add how files of subscriptions and messages are read."""
    group = parser.add_argument_group("reading")
    add_on_error(group, rejects)
    group.add_argument("--subscription-column", action="append", default=[], metavar="FIELD=COLUMN",
                       help="name of a column in the subscriptions, such as id=key")  # fmt: skip
    group.add_argument("--message-column", action="append", default=[], metavar="FIELD=COLUMN",
                       help="name of a column in the messages, such as x=lon")  # fmt: skip


def add_on_error(parser: argparse._ActionsContainer, rejects: str = "FILE") -> None:
    """Add what is done with bad rows."""
    parser.add_argument("--on-error", choices=["raise", "reject"], default="raise",
                        help="stop at the first bad row (default), or set them aside")  # fmt: skip
    parser.add_argument("--rejects", metavar=rejects,
                        help="where rejected rows go, with their reasons")  # fmt: skip


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add what is printed."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


# ---- reading them --------------------------------------------------------------------------------


def file_options(arguments: argparse.Namespace, rejects: str = "FILE") -> FileOptions:
    """Return how files are read; ``rejects`` is what the place of rejected rows is called."""
    from earshot.jobs import FileOptions

    check_rejects(arguments, rejects)
    return FileOptions(
        on_error=arguments.on_error,
        rejects=arguments.rejects,
        subscription_columns=column_names(arguments.subscription_column, "--subscription-column"),
        message_columns=column_names(arguments.message_column, "--message-column"),
    )


def check_rejects(arguments: argparse.Namespace, metavar: str = "FILE") -> None:
    """Refuse a place for rejected rows without such rows, and the other way round."""
    if arguments.on_error == "reject" and arguments.rejects is None:
        raise InvalidParameter(f"--on-error reject needs --rejects {metavar} for the rejected rows")
    if arguments.on_error == "raise" and arguments.rejects is not None:
        raise InvalidParameter("--rejects is for --on-error reject")


def column_names(pairs: list[str], option: str) -> dict[str, str]:
    """Return the names of columns by field."""
    return dict(_pair(text, option, "FIELD=COLUMN, such as id=key") for text in pairs)


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


def load(arguments: argparse.Namespace, files: FileOptions, rejects: RejectSink) -> Engine:
    """Return the engine that the arguments ask for, with its subscriptions."""
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
        options = {
            "n_learned": semantics.n_learned(given),
            "semantics": semantics.settings(given, space),
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
