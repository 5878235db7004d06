"""What chooses a semantics on the command line, and the options of each.

A new semantics is a class here and a line in :data:`SEMANTICS_OPTIONS`; ``earshot match``,
``index build`` and ``explain`` take it from there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from earshot.cli.output import counted
from earshot.errors import InvalidParameter
from earshot.model.amounts import read_distance, read_duration, read_window

if TYPE_CHECKING:
    from earshot.jobs import Summary

LEARNED_MESSAGES = 100_000
"""Messages by which top-k weighs words."""

_PARTS_OF_SUBSCRIPTIONS = (
    "subscriptions", "structure", "buffers", "subscription_ids", "expiry",
)  # fmt: skip
_PARTS_OF_MESSAGES = ("messages", "message_index", "message_ids")


class Option(NamedTuple):
    """An option that is None where it is not given; a flag where it has no type."""

    flag: str
    help: str
    type: Callable[[str], Any] | None = None
    metavar: str | None = None

    @property
    def name(self) -> str:
        """Name among the parsed arguments."""
        return self.flag.lstrip("-").replace("-", "_")

    def add(self, parser: argparse._ActionsContainer) -> argparse.Action:
        """Add it to a parser."""
        if self.type is None:
            return parser.add_argument(self.flag, help=self.help, action="store_true", default=None)
        return parser.add_argument(self.flag, help=self.help, type=self.type, metavar=self.metavar)


class SemanticsOptions:
    """The options of one semantics.

    Options that several semantics share are the same object in each.
    """

    name: ClassVar[str]
    noun: ClassVar[str]
    """What it is called in the help."""
    chooser: ClassVar[Option | None] = None
    """What chooses it; None: it is chosen where no other is."""
    options: ClassVar[tuple[Option, ...]] = ()

    def settings(self, given: Mapping[str, Any], space: Any) -> Any:
        """Return what the engine takes, from the options that were given, by name."""
        raise NotImplementedError

    def checked_settings(self, given: Mapping[str, Any], space: Any) -> Any:
        """Return the settings; what is wrong with them is said of the options."""
        flags = {option.name: option.flag for option in self.all_options}
        if self.chooser is not None and self.chooser.metavar is not None:
            flags[self.chooser.metavar.lower()] = self.chooser.flag
        with options_named(flags):
            return self.settings(given, space)

    @property
    def all_options(self) -> tuple[Option, ...]:
        """What chooses it, and its options."""
        return self.options if self.chooser is None else (self.chooser, *self.options)

    def structures(self) -> str:
        """Name the structures, the default first; those of the registry that have a form for it."""
        from earshot.indexes import structures_of

        return ", ".join(structures_of(self.name))

    def n_learned(self, given: Mapping[str, Any]) -> int:
        """Return by how many messages words are weighed, where messages are counted."""
        return 0

    def lines(self, summary: Summary) -> list[str]:
        """Return what else there is to say about a job."""
        return []


ALPHA = Option("--alpha", "share of the place in the score, 0 to 1 (default: 0.5)", float, "A")
THRESHOLD = Option("--threshold", "score to reach, above 0 and at most 1, unless a subscription "
                   "names its own (default: 0.6)", float, "T")  # fmt: skip
WINDOW = Option("--window", "the last N messages, or those of a time such as 90s, 10m, 2h or 7d",
                str, "N|TIME")  # fmt: skip
MAX_DISTANCE = Option("--max-distance", "distance at which the place scores 0, such as 500m or "
                      "50km; on a plane, a number (default: the diameter of the earth)",
                      str, "D")  # fmt: skip
LATENESS = Option("--lateness", "how much older than the clock a message may be in a window of "
                  "time, such as 30s (default: 0s)", str, "TIME")  # fmt: skip
LIFETIME = Option("--lifetime", "how long a message lives if it names no end, such as 90s, 10m, "
                  "2h or 7d", str, "TIME")  # fmt: skip
WEIGHTS = Option("--weights", "weigh words by the first N messages; with 0, all words weigh the "
                 f"same (default: {LEARNED_MESSAGES:,})", int, "N")  # fmt: skip


class BooleanOptions(SemanticsOptions):
    """Every message that meets the condition; no options."""

    name, noun = "boolean", "boolean matching"

    def settings(self, given: Mapping[str, Any], space: Any) -> Any:
        """Return None, which chooses it."""
        return None


class RankedOptions(SemanticsOptions):
    """Every message that scores enough."""

    name, noun = "ranked", "ranked matching"
    chooser = Option(
        "--rank", "score messages by place and text, and deliver those that reach a threshold"
    )
    options = (ALPHA, THRESHOLD)

    def settings(self, given: Mapping[str, Any], space: Any) -> Any:
        """Return how messages are scored."""
        from earshot.model.ranking import Ranking

        return Ranking(**given)


class TopkOptions(SemanticsOptions):
    """The best messages of a window."""

    name, noun = "topk", "top-k over a window"
    chooser = Option("--top-k", "keep the best K messages of a window for every subscription, "
                     "unless it names its own number; also takes --alpha", int, "K")  # fmt: skip
    options = (WINDOW, ALPHA, MAX_DISTANCE, LATENESS, WEIGHTS)

    def settings(self, given: Mapping[str, Any], space: Any) -> Any:
        """Return the window and its defaults."""
        from earshot.model.topk import TopK

        if "window" not in given:
            raise InvalidParameter(
                "--window is missing: say how many messages it holds, such as 100000, or how long "
                "they stay, such as 10m"
            )
        settings = {name: value for name, value in given.items() if name != "weights"}
        settings["k"] = settings.pop("top_k")
        settings["window"] = read_window(given["window"])
        if "max_distance" in given:
            settings["max_distance"] = read_distance(given["max_distance"], space)
        if "lateness" in given:
            settings["lateness"] = read_duration(given["lateness"])
        chosen = TopK(**settings)
        chosen.distance_in(space)  # which says what is missing on a plane
        return chosen

    def structures(self) -> str:
        """Name how messages find subscriptions, and how results are kept full."""
        from earshot.semantics.topk import DISSEMINATIONS, REEVALUATIONS

        return f"{' or '.join(DISSEMINATIONS)}, with +{' or +'.join(REEVALUATIONS)}"

    def n_learned(self, given: Mapping[str, Any]) -> int:
        """Return the option ``--weights``."""
        n_learned: int = given.get("weights", LEARNED_MESSAGES)
        if n_learned < 0:
            raise InvalidParameter(f"--weights is {n_learned}; expected 0 or more")
        return n_learned

    def lines(self, summary: Summary) -> list[str]:
        """Return how results are kept, and the memory that takes."""
        n_kept = summary.engine["n_messages"]
        n_subscriptions = max(summary.engine["n_subscriptions"], 1)
        of_messages = sum(summary.memory[part] for part in _PARTS_OF_MESSAGES)
        of_subscriptions = sum(summary.memory[part] for part in _PARTS_OF_SUBSCRIPTIONS)
        return [
            f"{counted(summary.counters['reevaluations'], 'result')} refilled by a search, "
            f"{summary.engine['n_buffered'] / n_subscriptions:.1f} messages held for each",
            f"{of_subscriptions / n_subscriptions:,.0f} bytes per subscription, "
            f"{of_messages / max(n_kept, 1):,.0f} bytes per message of {n_kept:,} in the window",
        ]


class MovingOptions(SemanticsOptions):
    """The live messages where a subscriber is."""

    name, noun = "moving", "moving subscribers"
    chooser = Option("--moving", "keep, for every subscription, the live messages that match where "
                     "it is now")  # fmt: skip
    options = (LIFETIME,)

    def settings(self, given: Mapping[str, Any], space: Any) -> Any:
        """Return how long messages live."""
        from earshot.model.moving import Moving

        if "lifetime" not in given:
            raise InvalidParameter(
                "--lifetime is missing: say how long a message lives that names no end, such as 10m"
            )
        return Moving(read_duration(given["lifetime"], "lifetime"))

    def structures(self) -> str:
        """Name how messages and subscribers find each other."""
        from earshot.semantics.moving import STRUCTURES

        return ", ".join(STRUCTURES)

    def lines(self, summary: Summary) -> list[str]:
        """Return how many moved, and the memory that takes."""
        n_live = summary.engine["n_messages"]
        parts = summary.memory
        n_bytes = parts["subscriptions"] + parts["messages"] + parts["structure"]
        return [
            f"{counted(summary.n_positions, 'position')}, {counted(n_live, 'live message')} at "
            f"the end, {n_bytes / 1e6:,.1f} MB",
        ]


SEMANTICS_OPTIONS: dict[str, SemanticsOptions] = {
    each.name: each for each in (BooleanOptions(), RankedOptions(), TopkOptions(), MovingOptions())
}
"""The options of every semantics, by its name; the first is chosen where no other is."""


def all_options() -> list[Option]:
    """Return the options of all semantics, each once."""
    every = (option for each in SEMANTICS_OPTIONS.values() for option in each.all_options)
    return list(dict.fromkeys(every))


def add_semantics(parser: argparse.ArgumentParser) -> dict[Option, argparse.Action]:
    """Add the options of every semantics to a command, and return them."""
    added: dict[Option, argparse.Action] = {}
    for each in SEMANTICS_OPTIONS.values():
        group = parser.add_argument_group(each.noun)
        for option in each.all_options:
            if option not in added:
                added[option] = option.add(group)
    return added


def given_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of any semantics that were given, by name."""
    values = {option.name: getattr(arguments, option.name, None) for option in all_options()}
    return {name: value for name, value in values.items() if value is not None}


def chosen_semantics(arguments: argparse.Namespace) -> tuple[SemanticsOptions, dict[str, Any]]:
    """Return the semantics that the arguments choose, and its options that were given, by name."""
    given = given_options(arguments)
    semantics = list(SEMANTICS_OPTIONS.values())
    named = [each for each in semantics if each.chooser and each.chooser.name in given]
    if len(named) > 1:
        flags = " and ".join(each.chooser.flag for each in named if each.chooser)
        raise InvalidParameter(f"{flags} choose different semantics; give one of them")
    chosen = named[0] if named else semantics[0]
    for option in all_options():
        if option.name in given and option not in chosen.all_options:
            flags = " or ".join(
                each.chooser.flag for each in semantics if each.chooser and option in each.options
            )
            raise InvalidParameter(f"{option.flag} is only for {flags}")
    if chosen.chooser is not None and chosen.chooser.type is None:
        del given[chosen.chooser.name]  # a flag says nothing else
    return chosen, given


def semantics_for(*, is_of_tables: bool) -> list[SemanticsOptions]:
    """Return every semantics, or those that match tables of messages, which have no order."""
    from earshot.semantics import SEMANTICS, matches_tables

    return [
        each
        for name, each in SEMANTICS_OPTIONS.items()
        if not is_of_tables or matches_tables(SEMANTICS[name])
    ]


def structures_text(listed: Sequence[SemanticsOptions]) -> str:
    """Name the structures of the semantics that a help text lists."""
    lines = [
        f"  {each.chooser.flag if each.chooser else each.noun}: {each.structures()}\n"
        for each in listed
    ]
    return "".join(["structures, the default first:\n", *lines])


@contextmanager
def options_named(flags: Mapping[str, str]) -> Iterator[None]:
    """Let what is wrong with a parameter, with whose name it begins, be said of its option."""
    try:
        yield
    except InvalidParameter as error:
        name, space, rest = str(error).partition(" ")
        rest = rest.replace("a timedelta", "a time")
        raise InvalidParameter(f"{flags.get(name, name)}{space}{rest}") from None
