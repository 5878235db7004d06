"""An index in versions, in a directory that driver and workers share.

::

    index.json              what holds for all versions: space, analyzer, structure, kind of ids
    versions/00000007.json  one version: a base and the deltas on top of it, in order
    bases/00000003-5f…/     shards/ (a saved engine each), registers/ (their ids, for the driver),
                            rows/ (the subscriptions themselves, in Parquet), territory/ (how shards
                            were cut; only where there are some)
    deltas/00000006-c0…/    delta.json, changes/changes.parquet, units/ (what they add to shards;
                            only where there are some)
    readers/NAME.json       the oldest version that a running pipeline may still ask for
    lease.json              which process may write, while one does

Everything but ``readers`` and the lease is written once and never changed, so whoever knows a
version's number sees the same subscriptions today and tomorrow. A version exists when its file
does. The newest one is current. There is one writer at a time, which holds the lease: the driver
that builds, or that takes in changes. It numbers its version after the one that it saw when it
began, and a number is given once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from earshot.encoding import Form
from earshot.engine.engine import Engine
from earshot.errors import InUse, SavedIndexError
from earshot.indexes import index_type
from earshot.model.arrays import Space
from earshot.model.boolean import Boolean
from earshot.model.schemas import IdKind
from earshot.semantics import SEMANTICS, matcher_type
from earshot.semantics.contract import Matcher
from earshot.spark.folders import Folder
from earshot.spark.leases import Lease
from earshot.spark.rows import RowCheck
from earshot.text import Analyzer

Placement = Literal["replicated", "sharded", "hashed"]
"""All in one shard; cut by place and keywords; cut by id, for semantics that keep messages."""

FORMAT = "earshot-spark-index"
FORMAT_VERSION = 6

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class IndexSettings:
    """What holds for all versions of an index."""

    ids: IdKind  # of the subscriptions
    semantics: Any = field(default_factory=Boolean)
    space: Space = "lonlat"
    analyzer: Analyzer = field(default_factory=Analyzer)
    structure: str | None = None  # None: the default of the semantics
    parameters: Any = None  # of that structure; None: its defaults

    @property
    def matcher(self) -> type[Matcher]:
        """The semantics at work."""
        return matcher_type(self.semantics)

    @property
    def keeps_messages(self) -> bool:
        """Whether messages depend on those before, so that shards have a state."""
        return self.matcher.keeps_messages

    @property
    def form(self) -> Form:
        """What the semantics takes of subscriptions and messages."""
        return self.matcher.form

    @property
    def row_check(self) -> RowCheck:
        """What it takes to see which rows would be refused."""
        return RowCheck(self.analyzer, self.form)

    def engine(self) -> Engine:
        """Return an engine without subscriptions."""
        return Engine(
            self.semantics,
            structure=self.structure,
            parameters=self.parameters,
            space=self.space,
            analyzer=self.analyzer,
            rebuild_in_background=False,
        )

    def facts(self) -> dict[str, Any]:
        """Return them for JSON."""
        options = {name: _plain(value) for name, value in asdict(self.semantics).items()}
        return {**asdict(self), "semantics": {self.matcher.name: options}}

    @classmethod
    def of_facts(cls, facts: dict[str, Any]) -> IndexSettings:
        """Read them back."""
        ((name, options),) = facts["semantics"].items()
        parameters = facts["parameters"]
        if parameters is not None:
            parameters = index_type(facts["structure"], name).parameters_type(**parameters)
        read = {
            "semantics": SEMANTICS[name].settings_type(
                **{option: _restored(value) for option, value in options.items()}
            ),
            "analyzer": Analyzer(**facts["analyzer"]),
            "parameters": parameters,
        }
        return cls(**{**facts, **read})


def _plain(value: Any) -> Any:
    """Return an option as JSON takes it."""
    return {"us": value // _MICROSECOND} if isinstance(value, timedelta) else value


def _restored(value: Any) -> Any:
    return value["us"] * _MICROSECOND if isinstance(value, dict) else value


@dataclass(frozen=True)
class Base:
    """A complete build."""

    name: str  # directory under ``bases``
    placement: Placement  # whether all subscriptions are in one shard
    n_subscriptions: tuple[int, ...]  # of each shard
    n_bytes: tuple[int, ...]  # of each shard's saved engine
    shards: tuple[str, ...]  # name of each shard's directory
    report: dict[str, Any] = field(default_factory=dict)  # what the cost model expects of shards
    n_merged: int = 0  # changes that were merged since its shards were cut
    cut_balance: float | None = None  # its balance then; None: these are the shards that were cut

    @property
    def n_shards(self) -> int:
        """Number of shards."""
        return len(self.n_subscriptions)

    @property
    def balance(self) -> float:
        """Bytes of the largest shard over the mean."""
        return max(self.n_bytes) * self.n_shards / max(sum(self.n_bytes), 1)


class Delta(NamedTuple):
    """Changes on top of a base, in steps: each batch of changes that was taken in is one.

    When many small deltas have come together, one that holds the steps of all takes their place.
    """

    name: str  # directory under ``deltas``
    first: int  # its first step; those of a base are 1, 2, …
    last: int
    n_changes: int

    @property
    def n_steps(self) -> int:
        """Number of steps."""
        return self.last - self.first + 1


@dataclass(frozen=True)
class Version:
    """The subscriptions at one moment."""

    number: int  # later ones are greater
    base: Base  # the build that it rests on
    deltas: tuple[Delta, ...] = ()  # on top of it, oldest first
    n_subscriptions: int = 0  # expired ones included until they are merged
    clock_us: int | None = None  # when it was made, since 1970; None before any time
    taken_in: dict[str, int] = field(default_factory=dict)  # last batch of each stream of changes

    @property
    def step(self) -> int:
        """The last step of changes that it has on top of its base, 0 for none."""
        return self.deltas[-1].last if self.deltas else 0

    @property
    def n_changes(self) -> int:
        """Changes on top of the base."""
        return sum(delta.n_changes for delta in self.deltas)


def new_shard_name(shard: int) -> str:
    """Return a name for what a task writes of a shard, other than that of an earlier try."""
    return f"{shard:04d}-{uuid4().hex[:8]}"


def latest_us(*clocks_us: int | None) -> int | None:
    """Return the latest of some clocks, None where none has been set."""
    return max((each for each in clocks_us if each is not None), default=None)


class IndexStore:
    """The directory of an index."""

    def __init__(self, location: str | Path) -> None:
        self.folder = Folder(location)
        self._lease: Lease | None = None
        self._used: dict[int, tuple[str, set[str]]] = {}  # by version: names of base and deltas
        self._kept: list[int] = []  # versions that this process reads, beside cleaning
        self._cleaning = threading.Lock()

    # ---- reading ------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether an index was begun here."""
        return self.folder.exists("index.json")

    @property
    def settings(self) -> IndexSettings:
        """What holds for all versions."""
        return IndexSettings.of_facts(self._facts()["settings"])

    @property
    def identity(self) -> str:
        """What tells this index from any other, wherever it lies."""
        identity: str = self._facts()["identity"]
        return identity

    def _facts(self) -> dict[str, Any]:
        try:
            facts: dict[str, Any] = self.folder.read_json("index.json")
        except FileNotFoundError:
            raise SavedIndexError(
                f"{self.folder.path} holds no index for Spark; make one with "
                f"earshot.spark.build or 'earshot pipeline build'"
            ) from None
        except ValueError as error:
            raise SavedIndexError(f"{self.folder.path}/index.json: {error}") from error
        if facts.get("format") != FORMAT or facts.get("version") != FORMAT_VERSION:
            raise SavedIndexError(
                f"{self.folder.path} has format {facts.get('format')} {facts.get('version')}; this "
                f"Earshot reads {FORMAT} {FORMAT_VERSION}: build the index again"
            )
        return facts

    def version_numbers(self) -> list[int]:
        """Return the numbers of all versions that are there, ascending."""
        return sorted(int(name.removesuffix(".json")) for name in self._versions.names())

    def latest(self) -> Version:
        """Return the current version."""
        numbers = self.version_numbers()
        if not numbers:
            raise SavedIndexError(
                f"{self.folder.path} has no complete version; build the index (again)"
            )
        return self.version(numbers[-1])

    def version(self, number: int) -> Version:
        """Return one version."""
        try:
            facts = self._versions.read_json(f"{number:08d}.json")
        except FileNotFoundError:
            found = ", ".join(map(str, self.version_numbers())) or "none"
            raise SavedIndexError(
                f"{self.folder.path} has no version {number}; there are: {found}"
            ) from None
        base = facts.pop("base")
        for name in ("n_subscriptions", "n_bytes", "shards"):
            base[name] = tuple(base[name])
        deltas = tuple(Delta(*each) for each in facts["deltas"])
        return Version(**{**facts, "base": Base(**base), "deltas": deltas})

    # ---- writing ------------------------------------------------------------------------------

    def begin(self, settings: IndexSettings) -> None:
        """Write what holds for all versions; an index that is there must have the same.

        One of which no version was ever completed does not count.
        """
        if self.exists and self.version_numbers():
            if self.settings != settings:
                raise SavedIndexError(
                    f"{self.folder.path} holds an index with other settings ({self.settings}); "
                    f"choose another directory or remove it"
                )
            return
        facts = {"format": FORMAT, "version": FORMAT_VERSION, "identity": uuid4().hex}
        self.folder.write_json("index.json", {**facts, "settings": settings.facts()})

    def lease(self, purpose: str) -> Lease:
        """Return the right to write versions, which one process has at a time."""
        self._lease = Lease(self.folder, purpose)
        return self._lease

    def publish(self, version: Version) -> None:
        """Make a version current.

        Its number is that of the version before, as the writer saw it when it began, and one more.

        Raises:
            InUse: Another writer has the lease, or has published that number meanwhile; the index
                stays as it is.
        """
        if self._lease is not None:
            self._lease.check()
        try:
            self._versions.create_json(f"{version.number:08d}.json", asdict(version))
        except FileExistsError:
            raise InUse(
                f"{self.folder.path} got version {version.number} from another process meanwhile, "
                f"so this one is given up; stop one of the two, and start the other again"
            ) from None

    def next_name(self, kind: Literal["bases", "deltas"]) -> str:
        """Return a name that no base or delta has, abandoned ones included.

        Nor will one of another index that is made here later have it: workers and machines keep
        what they have opened or fetched under that name.
        """
        found = [name.partition("-")[0] for name in (self.folder / kind).names()]
        number = max((int(name) for name in found if name.isdigit()), default=0) + 1
        return f"{number:08d}-{uuid4().hex[:8]}"

    def new_base(self) -> Folder:
        """Return the directory of a base to be written; those that were given up are removed."""
        self.remove_abandoned()
        return self.base_folder(self.next_name("bases"))

    def base_folder(self, base: Base | str) -> Folder:
        """Return the directory of a base."""
        return self.folder / "bases" / (base if isinstance(base, str) else base.name)

    def delta_folder(self, name: str) -> Folder:
        """Return the directory of a delta."""
        return self.folder / "deltas" / name

    # ---- who reads what, and what nobody reads any more ---------------------------------------

    def hold(self, reader: str, number: int) -> None:
        """Say that a reader may ask for this version and later ones."""
        (self.folder / "readers").write_json(f"{reader}.json", {"oldest": number})

    def is_held(self, reader: str) -> bool:
        """Whether a reader holds any version."""
        return (self.folder / "readers").exists(f"{reader}.json")

    def readers(self) -> dict[str, int]:
        """Return who holds versions, and the oldest version of each."""
        folder, held = self.folder / "readers", {}
        for name in folder.names():
            with suppress(FileNotFoundError):  # released meanwhile
                held[name.removesuffix(".json")] = int(folder.read_json(name)["oldest"])
        return held

    def release(self, reader: str) -> None:
        """Say that a reader will ask for nothing any more."""
        (self.folder / "readers").remove(f"{reader}.json")

    @contextmanager
    def keeping_latest(self) -> Iterator[Version]:
        """Yield the current version; the ``with`` block finds all of it, also while this cleans."""
        with self._cleaning:
            version = self.latest()
            self._kept.append(version.number)
        try:
            yield version
        finally:
            self._kept.remove(version.number)

    def clean(self, *, keep: int = 2) -> list[int]:
        """Remove the versions that nobody holds, and bases and deltas that no version names.

        The newest ``keep`` versions stay in any case. Returns the numbers of those that are gone.
        """
        with self._cleaning:
            numbers = self.version_numbers()
            oldest = min([*self.readers().values(), *numbers[-keep:]], default=0)
            kept = [each for each in numbers if each >= oldest or each in self._kept]
            gone = sorted(set(numbers) - set(kept))
            for number in gone:
                self._versions.remove(f"{number:08d}.json")
            used_bases, used_deltas = self._names_used_by(kept)
            for kind, used in (("bases", used_bases), ("deltas", used_deltas)):
                newest = max(used, default="")
                # Later ones than any in use are still being written.
                self._remove_unused(kind, used, until=newest)
            return gone

    def remove_abandoned(self) -> None:
        """Remove all bases that no version names: of a build or a merge that was given up.

        For the writer of versions, while it writes no base.
        """
        if self._lease is not None:
            self._lease.check()
        with self._cleaning:
            used, _ = self._names_used_by(self.version_numbers())
            self._remove_unused("bases", used)

    def _remove_unused(self, kind: str, used: set[str], until: str | None = None) -> None:
        folder = self.folder / kind
        for name in folder.names():
            if name not in used and (until is None or name < until):
                folder.remove(name)
                (folder / name).forget()

    def _names_used_by(self, numbers: list[int]) -> tuple[set[str], set[str]]:
        """Return the bases and the deltas of all versions that there are, which are numbered."""
        # A version never changes, so each is read once: many may be held while changes come.
        for number in set(numbers) - self._used.keys():
            version = self.version(number)
            self._used[number] = version.base.name, {delta.name for delta in version.deltas}
        self._used = {number: self._used[number] for number in numbers}
        used = self._used.values()
        return {base for base, _ in used}, set[str]().union(*(deltas for _, deltas in used))

    @property
    def _versions(self) -> Folder:
        return self.folder / "versions"
