"""The file that describes a pipeline: what it reads, where updates go, how Spark runs it.

The dataclasses below are the table of all keys: name, type, default and meaning of each stand in
one place. Reading, checking and the table in the documents follow from them.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from pathlib import Path
from posixpath import normpath
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from earshot.errors import InvalidFile, InvalidParameter
from earshot.files import PlaceKind
from earshot.files.rejects import OnError
from earshot.indexes import SEMANTICS as INDEXED
from earshot.indexes import structures_of
from earshot.model.amounts import read_distance, read_duration, read_window
from earshot.model.arrays import Space
from earshot.model.ranking import Ranking
from earshot.model.schemas import IdKind
from earshot.model.topk import TopK
from earshot.semantics import SEMANTICS
from earshot.spark.build import PlacementChoice
from earshot.spark.connectors import FileFormat
from earshot.spark.folders import at_home, check_location, is_local_file, is_uri
from earshot.spark.state import SNAPSHOT_EVERY
from earshot.spark.stream import MERGE_LEAST, MERGE_SHARE
from earshot.spark.workers import Shape

_NAMES = ", ".join(f'`"{name}"`' for name in SEMANTICS)
_INTERVAL = re.compile(r"\d+ (millisecond|second|minute|hour|day)s?")


class Amount(str):
    """A number, or a number and a unit."""


class Facts(NamedTuple):
    """What there is to know about a key."""

    meaning: str
    default: Any = None
    is_required: bool = False
    is_location: bool = False  # a path or URI; a relative path starts at the file's directory
    is_settings: bool = False  # whose names have dots, which TOML takes as tables unless quoted
    only_for: tuple[str, ...] = ()  # values of the table's first key with which it applies
    least: int | None = None  # the smallest number


def _key(meaning: str, default: Any = None, **facts: Any) -> Any:
    """Return a field with the facts of its key."""
    only_for = facts.pop("only_for", None) or ()
    only_for = (only_for,) if isinstance(only_for, str) else only_for
    metadata = {"facts": Facts(meaning, default, only_for=only_for, **facts)}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def _option(meaning: str, only_for: str | tuple[str, ...], default: Any = None) -> Any:
    """Return an option of a semantics, None where the file leaves it to the semantics."""
    told = _key(meaning, default, is_required=default is None, only_for=only_for)
    return field(default=None, metadata=told.metadata)


def _location_key(meaning: str, only_for: str | None = None) -> Any:
    return _key(meaning, "", is_required=True, is_location=True, only_for=only_for)


def _kafka_key(meaning: str) -> Any:
    return _key(meaning, "", is_required=True, only_for="kafka")


_CONNECTOR = "further options of Spark's Kafka connector"


@dataclass(frozen=True)
class SubscriptionsConfig:
    """The table ``[subscriptions]``: what the index is built from."""

    path: str = _location_key("file or directory of files")
    columns: Mapping[str, str] = _key("names of columns by field, where they differ", {})
    ids: IdKind | None = _key("kind of ids; by default that of the first rows")
    on_error: OnError = _key("stop at a bad row, or set it aside", "raise")
    placement: PlacementChoice = _key(
        "whether every machine has the whole index or it is cut into shards", "auto"
    )
    n_shards: int | None = _key("number of shards; by default by size", least=1)
    space: Space = _key("degrees and metres, or any plane", "lonlat")
    language: str | None = _key("such as `en`; for `stem` and `stop_words`")
    stem: bool = _key("match word stems", False)
    stop_words: bool = _key("ignore the language's stop words", False)
    structure: str | None = _key("index structure; by default the fastest for the semantics")
    semantics: Any = None
    """What a delivery means; in a file it stands at the top."""


@dataclass(frozen=True)
class ChangesConfig:
    """The table ``[changes]``: subscriptions that come, go and move while the pipeline runs.

    ``[positions]``, where moving subscribers are, has the same keys.
    """

    source: Literal["files", "kafka"] = _key("where rows come from", is_required=True)
    path: str = _location_key("directory into which files are moved", "files")
    pattern: str | None = _key("such as `*.ndjson`; leave other files alone", only_for="files")
    files_per_batch: int | None = _key("most files in a batch", only_for="files", least=1)
    servers: str = _kafka_key("`host:port` of some brokers, with commas between")
    topic: str = _kafka_key("the topic")
    start: Literal["earliest", "latest"] = _key(
        "where the very first start begins", "earliest", only_for="kafka"
    )
    records_per_batch: int | None = _key("most records in a batch", only_for="kafka", least=1)
    options: Mapping[str, str] = _key(_CONNECTOR, {}, is_settings=True, only_for="kafka")
    columns: Mapping[str, str] = _key("names of columns by field, where they differ", {})


@dataclass(frozen=True)
class MessagesConfig(ChangesConfig):
    """The table ``[messages]``, which has the keys of ``[changes]`` and two more."""

    ids: IdKind = _key("kind of the messages' ids", "string")
    place: PlaceKind | None = _key(
        "which place of a message counts where it has both, also the box around a polygon; by "
        "default such messages are refused"
    )


@dataclass(frozen=True)
class SinkConfig:
    """The table ``[sink]``: where updates go."""

    kind: Literal["files", "kafka", "console"] = _key(
        "files (exactly once), Kafka (at least once), or lines of JSON on the standard output",
        is_required=True,
    )
    path: str = _location_key("directory, with one below it for each batch", "files")
    format: FileFormat = _key("format of the files", "parquet", only_for="files")
    servers: str = _kafka_key("`host:port` of some brokers, with commas between")
    topic: str = _kafka_key("the topic")
    options: Mapping[str, str] = _key(_CONNECTOR, {}, is_settings=True, only_for="kafka")
    shape: Shape = _key("one row per update, or one per message with all its subscribers", "rows")
    carry: tuple[str, ...] = _key("columns of the messages that go along", ())
    keep_unmatched: bool = _key("let `lists` have messages that reach nobody", False)


@dataclass(frozen=True)
class RejectsConfig:
    """The table ``[rejects]``: where refused rows go; without it they are only counted."""

    path: str = _location_key("directory, with `messages`, `changes` and `subscriptions` below it")
    format: FileFormat = _key("format of the files", "ndjson")


@dataclass(frozen=True)
class TriggerConfig:
    """The table ``[trigger]``: when batches begin."""

    interval: str | None = _key("such as `1 second`; by default when the last batch is done")
    once: bool = _key("take what is there now, changes first, and end", False)


@dataclass(frozen=True)
class MergeConfig:
    """The table ``[merge]``: when changes are merged into a new base."""

    share: float = _key(
        "merge changes when they reach this share of the subscriptions,", MERGE_SHARE
    )
    least: int = _key("and at least this number", MERGE_LEAST, least=1)


@dataclass(frozen=True)
class SnapshotsConfig:
    """The table ``[snapshots]``: when the states of shards are saved."""

    every: int = _key(
        "batches between a shard's snapshots; a shard that lost its state replays at most "
        "this many",
        SNAPSHOT_EVERY, least=1,
    )  # fmt: skip


@dataclass(frozen=True)
class ResultsConfig:
    """The table ``[results]``: what subscriptions hold after a batch."""

    path: str = _location_key("directory, with one below it for each batch")
    format: FileFormat = _key("format of the files", "parquet")
    every: int = _key("batches between two writes", 1, least=1)


@dataclass(frozen=True)
class PipelineConfig:
    """A pipeline."""

    file: Path  # the file that describes it
    semantics: str | None = _key(
        f"what a delivery means, one of {_NAMES}; by default that of the index, boolean for a new "
        f"one"
    )
    alpha: float | None = _option(
        "share of the place in the score, 0 to 1", ("ranked", "topk"), Ranking().alpha
    )
    threshold: float | None = _option(
        "score that is delivered, unless a subscription names its own", "ranked",
        Ranking().threshold,
    )  # fmt: skip
    window: Amount | None = _option(
        'the last so many messages, such as `100000`, or those of a time, such as `"10m"`', "topk"
    )
    k: int | None = _option(
        "messages that a subscription gets, unless it names its own number", "topk", 20
    )
    max_distance: Amount | None = _key(
        'where the place scores 0, such as `"50km"`, on a plane a number; by default the diameter '
        "of the earth",
        only_for="topk",
    )
    lateness: str | None = _option(
        "how much older than the latest a message may be in a window of time", "topk", "0s"
    )
    lifetime: str | None = _option(
        'how long a message lives that names no end, such as `"10m"`', "moving"
    )
    index: str = _location_key("directory of the index")
    checkpoint: str = _location_key("directory in which the pipeline remembers where it is")
    subscriptions: SubscriptionsConfig | None = _key(
        "what the index is built from, if it does not exist"
    )
    messages: MessagesConfig = _key("messages to match", is_required=True)
    changes: ChangesConfig | None = _key("changes of the subscriptions")
    positions: ChangesConfig | None = _key("where subscribers are", only_for="moving")
    sink: SinkConfig = _key("where updates go", is_required=True)
    results: ResultsConfig | None = _key(
        "what subscriptions hold after a batch", only_for=("topk", "moving")
    )
    rejects: RejectsConfig | None = _key("where refused rows go; else they are only counted")
    trigger: TriggerConfig = _key("when batches begin", TriggerConfig())
    merge: MergeConfig = _key("when changes are merged into a new base", MergeConfig())
    snapshots: SnapshotsConfig = _key(
        "when the states of shards are saved", SnapshotsConfig(), only_for=("topk", "moving")
    )
    spark: Mapping[str, str] = _key(
        'any Spark setting, such as `"spark.driver.memory" = "8g"`', {}, is_settings=True
    )

    @property
    def sources(self) -> list[ChangesConfig]:
        """The tables of rows that come."""
        found = (self.messages, self.changes, self.positions)
        return [each for each in found if each is not None]

    @property
    def uses_kafka(self) -> bool:
        """Whether any part needs Spark's Kafka connector."""
        return "kafka" in (self.sink.kind, *(each.source for each in self.sources))

    @property
    def settings(self) -> Any:
        """The settings of the semantics, None where the file names none."""
        if self.semantics is None:
            return None
        return SEMANTICS[self.semantics].settings_type(**self.options)

    @property
    def options(self) -> dict[str, Any]:
        """The options of the semantics that the file gives."""
        given = {name: getattr(self, name) for name in _OPTIONS}
        options = {name: value for name, value in given.items() if value is not None}
        space = "lonlat" if self.subscriptions is None else self.subscriptions.space
        read: dict[str, Callable[[str], Any]] = {
            "window": read_window,
            "max_distance": partial(read_distance, space=space),
            "lateness": read_duration,
            "lifetime": partial(read_duration, name="lifetime"),
        }
        return {
            name: read[name](value) if name in read else value for name, value in options.items()
        }


_OPTIONS = ("alpha", "threshold", "window", "k", "max_distance", "lateness", "lifetime")
"""Keys at the top that are options of a semantics."""


# ---- reading ------------------------------------------------------------------------------------


def read_config(path: str | Path) -> PipelineConfig:
    """Read and check a file.

    Raises:
        InvalidFile: It cannot be read, or something in it is wrong; says what and what is right.
    """
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidFile(f"{path}: is not TOML: {error}") from error
    try:
        config: PipelineConfig = _table(PipelineConfig, content, "", path)
        _check(config)
    except (_Wrong, InvalidParameter) as wrong:
        raise InvalidFile(f"{path}: {wrong}") from None
    if config.subscriptions is None:
        return config
    subscriptions = dataclasses.replace(config.subscriptions, semantics=config.settings)
    return dataclasses.replace(config, subscriptions=subscriptions)


class _Wrong(Exception):
    """What is wrong with a file, without its name."""


def _check(config: PipelineConfig) -> None:
    """Check what takes more than one key."""
    trigger, sink, subscriptions = config.trigger, config.sink, config.subscriptions
    if trigger.interval is not None:
        if trigger.once:
            raise _Wrong("interval and once in [trigger] exclude each other; give one")
        if not _INTERVAL.fullmatch(trigger.interval):
            raise _Wrong(
                f"interval in [trigger] is {as_toml(trigger.interval)}; expected a number and a "
                f'unit, such as "500 milliseconds", "1 second" or "5 minutes"'
            )
    _check_directories(config)
    if sink.keep_unmatched and sink.shape != "lists":
        raise _Wrong('keep_unmatched in [sink] is for shape = "lists"')
    if not config.merge.share > 0:
        raise _Wrong(f"share in [merge] is {config.merge.share}; expected more than 0")
    semantics = config.semantics or "boolean"
    if semantics not in SEMANTICS:
        raise _Wrong(f"semantics is {as_toml(semantics)}{_one_of(semantics, list(SEMANTICS))}")
    settings = config.settings  # which says what is wrong with them
    if SEMANTICS[semantics].keeps_messages:
        if sink.shape != "rows" or sink.carry:
            raise _Wrong(f"shape and carry in [sink] are not for semantics = {as_toml(semantics)}")
        if subscriptions is not None and isinstance(settings, TopK):
            settings.distance_in(subscriptions.space)  # which says what is missing on a plane
    if subscriptions is None:
        return
    structure = subscriptions.structure
    if structure is not None and semantics in INDEXED:
        known = list(structures_of(semantics))
        if structure not in known:
            raise _Wrong(
                f"structure in [subscriptions] is {as_toml(structure)}{_one_of(structure, known)}"
            )
    if subscriptions.placement == "replicated" and subscriptions.n_shards not in (None, 1):
        raise _Wrong('n_shards in [subscriptions] is for placement = "sharded" or "auto"')


def _check_directories(config: PipelineConfig) -> None:
    """Refuse a file, and a directory in which another one would be taken for data."""
    names = ("messages", "changes", "positions", "sink", "results", "rejects")
    tables = {f"path in [{name}]": getattr(config, name) for name in names}
    places = {label: table.path for label, table in tables.items() if table and table.path}
    places |= {"index": config.index, "checkpoint": config.checkpoint}
    for label, place in places.items():
        if is_local_file(place):
            raise _Wrong(f"{label} is {as_toml(place)}, which is a file; choose a directory")
    for label, other in permutations(places, 2):
        if label not in tables or getattr(tables[label], "pattern", None) is not None:
            continue  # by a pattern, files of several kinds are told apart
        if f"{_plain(places[other])}/".startswith(f"{_plain(places[label])}/"):
            raise _Wrong(
                f"{label} is {as_toml(places[label])}, and {other} is {as_toml(places[other])}; "
                f"choose directories that are not in each other"
            )


def _plain(location: str) -> str:
    return normpath(location.removeprefix("file:")).lstrip("/")


def _table(kind: Any, content: Mapping[str, Any], table: str, file: Path) -> Any:
    """Return a table of the file as the dataclass of its kind."""
    known = keys_of(kind)
    first = next(iter(known))
    where = f" in [{table}]" if table else ""
    for name in content:
        if name not in known:
            what = f"table [{name}]" if isinstance(content[name], dict) and not table else name
            raise _Wrong(f"unknown key {what}{where}{_one_of(name, list(known))}")
    values: dict[str, Any] = {}
    for name, (facts, hint) in known.items():
        is_table = dataclasses.is_dataclass(hint)
        label = f"table [{name}]" if is_table else f"{name}{where}"
        applies = not facts.only_for or values.get(first) in facts.only_for
        if name in content and not applies:
            given = f", and {first} is {as_toml(values[first])}" if first in values else ""
            choices = " or ".join(map(as_toml, facts.only_for))
            raise _Wrong(f"{label} is for {first} = {choices}{given}; leave it out")
        if name not in content:
            if facts.is_required and applies:
                choices = f"; expected {type_name(hint)}" if get_origin(hint) is Literal else ""
                raise _Wrong(f"{label} is missing: {facts.meaning}{choices}")
            continue
        value = content[name]
        if (is_table or facts.is_settings) and not isinstance(value, dict):
            full = f"{table}.{name}".lstrip(".")
            raise _Wrong(f"{name}{where} is {as_toml(value)}; expected a table [{full}]")
        if is_table:
            values[name] = _table(hint, value, name, file)
        elif facts.is_settings:
            values[name] = dict(_settings(value, ""))
        else:
            values[name] = _value(hint, value, label)
            if facts.least is not None and values[name] < facts.least:
                raise _Wrong(f"{label} is {value}; expected {facts.least} or more")
            if facts.is_location:
                values[name] = _location(values[name], label, file)
    return kind(file=file, **values) if kind is PipelineConfig else kind(**values)


def _value(hint: Any, value: Any, label: str) -> Any:
    """Return a value of the given type, or say what was expected."""
    origin = get_origin(hint)
    if origin is Literal:
        choices = get_args(hint)
        if value in choices and isinstance(value, str):
            return value
        raise _Wrong(f"{label} is {as_toml(value)}{_one_of(value, list(choices))}")
    if origin is tuple and isinstance(value, list) and all(isinstance(x, str) for x in value):
        return tuple(value)
    is_strings = isinstance(value, dict) and all(isinstance(x, str) for x in value.values())
    if (origin is Mapping and is_strings) or type(value) is hint:
        return value
    if hint is float and type(value) in (int, float):
        return float(value)
    if hint is Amount and type(value) in (int, float, str):
        return Amount(value)
    raise _Wrong(f"{label} is {as_toml(value)}; expected {type_name(hint)}")


def _settings(content: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    """Yield settings with dots in their names, which TOML takes as tables unless quoted."""
    for name, value in content.items():
        full = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _settings(value, f"{full}.")
        elif isinstance(value, str | int | float):
            yield full, str(value).lower() if isinstance(value, bool) else str(value)
        else:
            raise _Wrong(f"{full} is {as_toml(value)}; expected a string, number or boolean")


def _location(value: str, label: str, file: Path) -> str:
    if not value:
        raise _Wrong(f"{label} is empty; expected a path or URI")
    if is_uri(value):
        try:
            check_location(value)
        except InvalidParameter as error:
            raise _Wrong(f"{label}: {error}") from None
        return value
    return str(file.absolute().parent / at_home(value))


# ---- words --------------------------------------------------------------------------------------


def keys_of(kind: Any) -> dict[str, tuple[Facts, Any]]:
    """Return facts and type of each key of a table, None left out of the types."""
    hints = get_type_hints(kind)
    return {
        each.name: (each.metadata["facts"], _without_none(hints[each.name]))
        for each in dataclasses.fields(kind)
        if each.metadata
    }


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, UnionType):
        return next(each for each in get_args(hint) if each is not NoneType)
    return hint


_TYPE_NAMES = {
    str: "a string", Amount: "a number or a string", int: "an integer", float: "a number",
    bool: "true or false", tuple: "a list of strings", Mapping: "a table of strings",
}  # fmt: skip


def type_name(hint: Any) -> str:
    """Return what values a type takes, in words."""
    if get_origin(hint) is Literal:
        return " or ".join(as_toml(each) for each in get_args(hint))
    return _TYPE_NAMES[get_origin(hint) or hint]


def _one_of(value: object, known: list[str]) -> str:
    """Return what would have been right, for the end of a sentence."""
    close = difflib.get_close_matches(str(value), known, 1)
    hint = f"; did you mean {close[0]}?" if close else ";"
    return f"{hint} expected one of {', '.join(known)}" if len(known) > 1 else (
        f"{hint} the only one is {known[0]}"
    )  # fmt: skip


def as_toml(value: Any) -> str:
    """Return a value as it would stand in the file."""
    if value is None or value in ((), {}):
        return ""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{name} = {as_toml(each)}' for name, each in value.items())} }}"
    return json.dumps(value, ensure_ascii=False, default=str)  # which is TOML as well
