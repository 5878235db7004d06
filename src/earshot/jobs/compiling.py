"""Compiling ahead of the first use, for this machine or to be shipped with the package.

Kernels are compiled by being used. A rehearsal is a process that uses all that one semantics needs
with its defaults; several run side by side.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np

from earshot import storage
from earshot.encoding import encode_messages, encode_subscriptions
from earshot.engine.engine import Engine
from earshot.engine.ids import IdTable
from earshot.engine.rehearsal import HERE, rehearse
from earshot.errors import EarshotError, InvalidParameter
from earshot.jobs.loading import load_engine
from earshot.jobs.matching import match_files
from earshot.jobs.rows import MESSAGE_BATCH_ROWS, FileOptions, RejectSink
from earshot.kernels.compiled import SUFFIX, directory, levels_here, loaded
from earshot.model.batches import message_batch, subscription_batch
from earshot.model.messages import Message
from earshot.model.regions import Circle
from earshot.model.subscriptions import Subscription
from earshot.placement.cutting import cut_plan
from earshot.placement.routing import Router, UnitArrays, merge_units, units_of
from earshot.semantics import SEMANTICS
from earshot.text import Analyzer, Vocabulary
from earshot.text.vocabulary import VocabularyArrays

_FILES = {
    "points.csv": "id,keywords,x,y\n1,up,0,0\n2,wärm,1,1\n",
    "points.ndjson": '{"id": "a", "keywords": ["wärm", "up"], "x": 0, "y": 0}\n',
    "circles.csv": "id,keywords,x,y,radius\n1,up,0,0,9\n2,wärm,1,1,9\n",
    "circles.ndjson": '{"id": "a", "keywords": ["wärm", "up"], "x": 0, "y": 0, "radius": 9}\n',
    # As many as are matched together, which takes other kernels than a few.
    "messages.csv": "id,text,x,y,time\n"
    + "".join(f"m{n},wärm up,0,0,2026-01-01T00:00:00Z\n" for n in range(MESSAGE_BATCH_ROWS)),
    "messages.ndjson": '{"id": 1, "text": "warm up", "x": 0, "y": 0, '
    '"time": "2026-01-01T00:00:00Z"}\n',
}


def compile_ahead(
    into: Path | None = None,
    processors: Sequence[str] = (),
    *,
    say: Callable[[str], None] = lambda _: None,
) -> int:
    """Compile what the defaults of every semantics need; return the number of kernels.

    Args:
        into: A directory for them alone; by default they go to where this machine looks first.
        processors: Kinds of processors to compile for; by default that of this machine.
        say: Told what is done, a line at a time.
    """
    unknown = set(processors) - set(levels_here())
    if unknown:
        raise InvalidParameter(
            f"this machine cannot compile for {', '.join(sorted(unknown))}; expected some of "
            f"{', '.join(levels_here())}"
        )
    if into is not None:
        into.mkdir(parents=True, exist_ok=True)
        foreign = min((each.name for each in into.iterdir() if each.suffix != SUFFIX), default=None)
        if foreign is not None:
            raise InvalidParameter(
                f"{into} holds {foreign!r}, which is no kernel; name a directory for kernels alone"
            )
    used: set[str] = set()

    def work(processor: str | None, name: str) -> None:
        environment = dict(os.environ)
        if into is not None:
            environment["NUMBA_CACHE_DIR"] = str(into)
        if processor is not None:
            environment |= {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": ""}
        command = [sys.executable, "-m", "earshot.jobs.compiling", name]
        started = time.monotonic()
        for _ in range(2):  # to compile, then to see what is looked for
            run = subprocess.run(command, env=environment, capture_output=True, check=False)
            if run.returncode:
                raise EarshotError(f"compiling {name} matching failed: {run.stderr.decode()}")
        used.update(run.stdout.decode().split())
        seconds = time.monotonic() - started
        say(f"compiled {name} matching for {processor or 'this machine'} in {seconds:.0f} s")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        tasks = product(processors or (None,), reversed([*SEMANTICS]))  # what takes longest first
        list(pool.map(lambda task: work(*task), tasks))
    if not used:
        raise EarshotError(f"nothing could be kept in {into or directory()}; is there room?")
    if into is not None:
        for path in into.iterdir():
            if path.name not in used:  # it is compiled into others that are
                path.unlink()
    return len(used)


def use_kernels(name: str) -> None:
    """Use each kernel that a semantics needs with its defaults."""
    settings = SEMANTICS[name].example()
    for identity in (int, str):
        rehearse(Engine(settings, rebuild_in_background=False), identity)
    if name == "boolean":
        use_placement()
    subscriptions = "points" if SEMANTICS[name].form.is_point else "circles"
    options, suffixes = FileOptions(), ("csv", "ndjson")
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        for file, content in _FILES.items():
            (folder / file).write_text(content, "utf-8")
        for one, other in product(suffixes, suffixes):
            with RejectSink(None) as rejects:
                path = folder / f"{subscriptions}.{one}"
                engine = load_engine(path, settings, files=options, rejects=rejects)
                messages, out = folder / f"messages.{other}", folder / "updates.csv"
                match_files(engine, messages, out, files=options, rejects=rejects)


def use_placement() -> None:
    """Use the kernels that cut shards, and those by which workers send messages to them."""
    vocabulary, form = Vocabulary(), SEMANTICS["boolean"].form
    vocabulary.add(["up"])  # as the words of all subscriptions are, before shards are cut
    # Enough of them that there is something to cut, by place and by words.
    subscriptions = subscription_batch(
        [
            Subscription(n, (f"w{n % 7}", "up"), region=Circle(n % 10, n // 10, 1))
            for n in range(100)
        ]
    )
    asked = encode_subscriptions(subscriptions, Analyzer(), vocabulary, "lonlat", form=form).asked
    messages = message_batch([Message(n, f"w{n % 7} up", place=HERE) for n in range(10)])
    sent = encode_messages(messages, Analyzer(), vocabulary, "lonlat", form=form).messages
    frequencies = np.ones(len(vocabulary), np.int64)
    plan, _ = cut_plan(asked, sent, 2, frequencies=frequencies)
    units = units_of(asked, plan.pieces(asked, frequencies), frequencies)
    with tempfile.TemporaryDirectory() as directory:
        # What workers have opened cannot be written to, which is another type for kernels.
        path = Path(directory) / "saved"
        groups = {"vocabulary": vocabulary.arrays, "units": units}
        storage.save(path, storage.Contents({}, groups))
        saved = storage.Saved.open(path)
        opened = Vocabulary.from_arrays(saved.group("vocabulary", VocabularyArrays))
        sent = encode_messages(messages, Analyzer(), opened, "lonlat", form=form).messages
        merged = merge_units([saved.group("units", UnitArrays)])
        Router(merged, 2, plan.arrays.piece_shards).route(sent)


def use_words(name: str) -> None:
    """Use the kernels that read subscriptions and messages; those of the structure take longest.

    So they can be compiled side by side. Ids are strings: integers in sequence need no kernels.
    """
    form = SEMANTICS[name].form
    place = HERE if form.is_point else Circle(0, 0, 1)
    subscriptions = subscription_batch([Subscription("s", ("up", "warm"), region=place)])
    messages = message_batch([Message(1, "warm up", place=HERE)])
    vocabulary, ids = Vocabulary(), IdTable()
    asked = encode_subscriptions(
        subscriptions, Analyzer(), vocabulary, "lonlat", form=form, is_taken=ids.contains
    )
    encode_messages(messages, Analyzer(), vocabulary, "lonlat", form=form)
    ids.append(asked.ids)
    ids.contains(asked.ids)


if __name__ == "__main__":
    if sys.argv[2:] == ["words"]:
        use_words(sys.argv[1])
    else:
        use_kernels(sys.argv[1])
    print("\n".join(loaded))
