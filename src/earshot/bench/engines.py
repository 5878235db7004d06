"""The benchmark's door to engines, and to the methods and the monitor of top-k."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from earshot.encoding import encode_messages
from earshot.engine.engine import Engine
from earshot.files import read_messages
from earshot.indexes.contract import Index
from earshot.jobs import MESSAGE_BATCH_ROWS
from earshot.model.arrays import Int64s, MessageArrays
from earshot.semantics.topk import (
    DISSEMINATIONS,
    find_dissemination,
    find_reevaluation,
)
from earshot.semantics.topk.contract import Dissemination, Scan
from earshot.semantics.topk.igpt import ALL_RULES, Igpt
from earshot.semantics.topk.monitor import Monitor
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


class FoundIds(NamedTuple):
    """Pairs of users' ids, of integers."""

    messages: Int64s
    subscriptions: Int64s


def match_file(engine: Engine, messages: Path) -> Iterator[pa.Array]:
    """Match a file, batch by batch; yield the ids of the subscriptions of each."""
    for part in read_messages(messages, space=engine.space):
        yield engine.match_batch(part.batch).subscription_ids


def ids_of_file(engine: Engine, messages: Path) -> Iterator[FoundIds]:
    """Match a file, batch by batch; yield the pairs of each."""
    for part in read_messages(messages, space=engine.space):
        found = engine.match_batch(part.batch)
        yield FoundIds(found.message_ids.to_numpy(), found.subscription_ids.to_numpy())


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


def new_monitor(method: Method, max_distance: float, **window: int) -> Monitor:
    """Return a monitor with nothing in it, and without a structure."""
    return Monitor(
        **window,
        max_distance=max_distance,
        dissemination=Scan(),
        reevaluation=method.reevaluation,
        n_threads=os.cpu_count() or 1,
    )
