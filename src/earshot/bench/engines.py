"""The benchmark's door to engines, and to the methods of top-k."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from earshot.encoding import encode_messages
from earshot.engine.engine import Engine
from earshot.engine.updates import Updates
from earshot.files import read_messages
from earshot.indexes.contract import Index
from earshot.jobs import MESSAGE_BATCH_ROWS
from earshot.model.arrays import MessageArrays
from earshot.semantics.topk import DISSEMINATIONS, find_dissemination, find_reevaluation
from earshot.semantics.topk.contract import Dissemination, Scan
from earshot.semantics.topk.igpt import ALL_RULES, Igpt
from earshot.semantics.topk.reevaluation import Kmax, Reevaluation, Skyband

# ---- engines -------------------------------------------------------------------------------------


def open_engine(directory: Path, n_threads: int = 1) -> Engine:
    """Open a saved engine; nothing is compiled or read in later."""
    engine = Engine.open(directory, n_threads=n_threads)
    engine.warm_up()
    return engine


def settled_index(engine: Engine) -> Index:
    """Return the index of an engine, new subscriptions taken in."""
    index: Index = engine.matcher.index
    return index


def encoded_batches(engine: Engine, messages: Path) -> list[MessageArrays]:
    """Return the messages of a file as the command line cuts and encodes them."""
    parts = read_messages(messages, space=engine.space, batch_rows=MESSAGE_BATCH_ROWS)
    return [encode_messages(part.batch, engine.analyzer, engine.vocabulary, engine.space).messages
            for part in parts]  # fmt: skip


def match_files(engine: Engine, paths: Iterable[Path]) -> Iterator[Updates]:
    """Match files, batch by batch."""
    for path in paths:
        for part in read_messages(path, space=engine.space):
            yield engine.match_batch(part.batch)


# ---- top-k ---------------------------------------------------------------------------------------

GROUP_RULES = ("cells", "groups", "early")
"""Rules of [PVLDB16] section 5.3, for many subscriptions at once; IPT has none of them."""


class Method(NamedTuple):
    """How messages find subscriptions, and how results are kept full."""

    dissemination: Dissemination
    reevaluation: Reevaluation

    @property
    def label(self) -> str:
        """Name in reports."""
        return f"{part_label(self.dissemination)}+{part_label(self.reevaluation)}"

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of both, as JSON takes them."""
        both = asdict(self.dissemination) | asdict(self.reevaluation)
        return {name: sorted(value) if isinstance(value, frozenset) else value
                for name, value in both.items()}  # fmt: skip


def part_label(part: Dissemination | Reevaluation) -> str:
    """Return the name of one half of a method, with the parameters that are not the default's."""
    default = asdict(type(part)())
    changed = {name: value for name, value in asdict(part).items() if value != default[name]}
    if isinstance(part, Igpt) and changed.pop("rules", None) is not None:
        is_individual = part.rules == ALL_RULES - set(GROUP_RULES)
        left_out = " ".join(f"-{rule}" for rule in sorted(ALL_RULES - part.rules))
        changed["rules"] = "individual" if is_individual else left_out
    # A factor is what these two are about, so it is told even where it is the default's.
    if isinstance(part, Kmax | Skyband):
        changed["factor"] = part.factor
    shown = ", ".join(f"{name}={value}" for name, value in changed.items())
    return f"{part.name}({shown})" if shown else part.name


def default_method() -> Method:
    """Return the method that an engine has when nothing is said."""
    return Method(find_dissemination(None), find_reevaluation(None))


def disseminations() -> list[Dissemination]:
    """Return every registered way in which messages find subscriptions, the default first."""
    return [each() for each in DISSEMINATIONS.values() if each is not Scan]
