"""Engines of every semantics to save, and what may happen to a saved one.

Run as a program, it tries many random damages, kills and full disks, and says what came of them; or
it measures a journal::

    python tests/saved_states.py --damages 5000 --kills 100 --full 20
    python tests/saved_states.py --journal-rates
"""

from __future__ import annotations

import argparse
import contextlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from earshot import (
    Circle,
    Engine,
    Message,
    Moving,
    Point,
    Ranking,
    Rectangle,
    Subscription,
    TopK,
)
from earshot.errors import SavedIndexError
from earshot.indexes import structures_of

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
WORDS = ("fire", "flood", "storm", "bus", "road", "école", "雨")
KINDS: dict[str, Callable[[], Engine]] = {
    **{f"boolean-{name}": partial(Engine, structure=name) for name in structures_of("boolean")},
    **{
        f"ranked-{name}": partial(Engine, Ranking(0.5, 0.3), structure=name)
        for name in structures_of("ranked")
    },
    "topk-count": partial(Engine, TopK(20, 3, 0.5, 1e5)),
    "topk-time": partial(Engine, TopK(timedelta(minutes=5), 2, 0.5, 1e5)),
    "moving": partial(Engine, Moving(timedelta(minutes=3))),
}


DEFAULTS = ["boolean-block_trie", "ranked-block_lists", "topk-count", "topk-time", "moving"]


def subscription(kind: str, number: int) -> Subscription:
    rng = random.Random(number)
    x, y = rng.uniform(-1, 1), rng.uniform(-1, 1)
    words = rng.sample(WORDS, rng.randint(1, 3))
    if kind.startswith("topk"):
        return Subscription(number, words, region=Point(x, y))
    region = Circle(x, y, 50_000) if rng.random() < 0.3 else Rectangle(x, y, x + 0.5, y + 0.5)
    return Subscription(number, words, region=region)


def message(number: int) -> Message:
    rng = random.Random(-number)
    place = Point(rng.uniform(-1, 1.5), rng.uniform(-1, 1.5))
    text = " ".join(rng.sample(WORDS, rng.randint(1, 5)))
    return Message(number, text, place=place, time=NOON + timedelta(seconds=number))


def filled(kind: str, n: int = 40, n_messages: int = 12) -> Engine:
    """Return an engine with subscriptions in its structure and beside it, some of them gone."""
    engine = KINDS[kind]()
    engine.subscribe(*(subscription(kind, number) for number in range(n)))
    engine.publish(message(0))
    engine.subscribe(*(subscription(kind, number) for number in range(n, n + n // 4)))
    engine.unsubscribe(1, n)
    for number in range(1, n_messages):
        engine.publish(message(number))
    return engine


def answers(engine: Engine) -> list[object]:
    """Return what an engine says to some messages, and of its results where it keeps some."""
    told: list[object] = [
        sorted(map(repr, engine.publish(message(number)))) for number in range(100, 104)
    ]
    if engine.matcher.keeps_results:
        told.append(engine.results_table().to_pydict())
    return told


def damage(directory: Path, rng: random.Random) -> str:
    """Change something in the files of a saved state at random; return what."""
    path = rng.choice(sorted(directory.iterdir()))
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    how = rng.choice(["bit", "word", "zeros", "shorter", "longer", "swapped", "missing"])
    if how == "bit":
        content[at] ^= 1 << rng.randrange(8)
    elif how == "word":
        content[at : at + 8] = rng.randbytes(len(content[at : at + 8]))
    elif how == "zeros":
        content[at : at + 4096] = bytes(len(content[at : at + 4096]))
    elif how == "shorter":
        del content[at:]
    elif how == "longer":
        content += rng.randbytes(rng.randint(1, 64))
    elif how == "swapped":
        other = rng.randrange(len(content))
        content[at], content[other] = content[other], content[at]
    path.write_bytes(content)
    if how == "missing":
        path.unlink()
    return f"{how} at {at} of {path.name}"


def outcome_of_damage(kind: str, saved: Path, expected: list[object], seed: int) -> str:
    """Damage a copy of a saved engine and open it: refused, or what it answers."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "saved"
        shutil.copytree(saved, copy)
        what = damage(copy, random.Random(seed))
        try:
            engine = Engine.open(copy)
        except SavedIndexError:
            return "refused"
        # Only what nobody reads may differ: the gaps between arrays.
        assert answers(engine) == expected, (kind, seed, what)
        return "not in any array"


SAVER = """
import sys
sys.path.insert(0, sys.argv[1])
from saved_states import filled, subscription
engine, number = filled(sys.argv[2], 2000), 10_000
print("ready", flush=True)
while True:
    engine.subscribe(subscription(sys.argv[2], number))
    number += 1
    engine.save(sys.argv[3])
"""


def outcome_of_kill(kind: str, directory: Path, seconds: float) -> int:
    """Kill a process that saves all the time; return how many subscriptions are saved then."""
    command = [sys.executable, "-c", SAVER, str(Path(__file__).parent), kind, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as saver:
        assert saver.stdout is not None
        assert saver.stdout.readline() == b"ready\n"
        time.sleep(seconds)
        saver.send_signal(signal.SIGKILL)
    return len(Engine.open(directory))


# ---- full disks ----------------------------------------------------------------------------------

Shortage = Callable[[int], contextlib.AbstractContextManager[None]]
"""Within it, what is written to a directory has room for so many bytes."""


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[Shortage]:
    """Mount a small file system on a directory, and yield how to fill it."""
    size = ["-o", "size=4m"]
    subprocess.run(["mount", "-t", "tmpfs", *size, "tmpfs", str(directory)], check=True)

    @contextlib.contextmanager
    def filled_up(n_bytes: int) -> Iterator[None]:
        filler = directory / "filler"
        filler.write_bytes(bytes(max(shutil.disk_usage(directory).free - n_bytes, 0)))
        yield
        filler.unlink()

    try:
        yield filled_up
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)  # engines may be open


@contextlib.contextmanager
def small_files(n_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes, as on a disk that has no more."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def check_reason(error: SavedIndexError, directory: Path) -> None:
    reasons = ("No space left on device", "File too large")
    assert str(directory) in str(error), error
    assert any(each in str(error) for each in reasons), error


def outcomes_of_full_disk(kind: str, parent: Path, shortage: Shortage, seed: int) -> list[str]:
    """Save, and write to a journal, where there is little room; what was there must stay."""
    rng, directory = random.Random(seed), parent / "saved"
    engine = filled(kind, 400)
    engine.save(directory)
    outcomes, expected = [], answers(Engine.open(directory))
    engine.subscribe(*(subscription(kind, number) for number in range(1000, 1100)))
    size = sum(path.stat().st_size for path in directory.iterdir())
    for share in (0.0, rng.uniform(0, 1), rng.uniform(1, 1.6)):
        with shortage(int(share * size)):
            try:
                engine.save(directory)
                expected = answers(Engine.open(directory))
                outcomes.append("saved")
            except SavedIndexError as error:
                check_reason(error, directory)
                outcomes.append("not saved")
            # Nothing is left of what was not saved, and the old state is whole.
            assert len(list(directory.iterdir())) == 2
            assert answers(Engine.open(directory, verify=True)) == expected
    with Engine.open(directory, journal=True) as journaled:
        journaled.subscribe(subscription(kind, 1999))
        n_done = len(journaled)
        with shortage(rng.randint(0, 50_000)):
            try:
                for number in range(2000, 3000):
                    journaled.subscribe(subscription(kind, number))
                    n_done += 1
                outcomes.append("all in the journal")
            except SavedIndexError as error:
                check_reason(error, directory)
                outcomes.append("not all in the journal")
            with contextlib.suppress(SavedIndexError):
                journaled.close()
        # The call that failed may be there as well: its record may be whole.
        assert len(Engine.open(directory, verify=True)) - n_done in (0, 1)
    with Engine.open(directory, journal=True) as again:
        again.subscribe(subscription(kind, 4000))
    assert 4000 in Engine.open(directory)
    shutil.rmtree(directory)
    return outcomes


def outcomes_of_full_disks(n: int, folder: Path, *, may_mount: bool) -> Counter[str]:
    outcomes = Counter[str]()
    with contextlib.ExitStack() as stack:
        shortage: Shortage = small_files
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            if may_mount:
                shortage = stack.enter_context(small_disk(folder))
        outcomes["on a small file system" if shortage is not small_files else "by a limit"] = n
        for number in range(n):
            kind = DEFAULTS[number % len(DEFAULTS)]  # how it is written is the same for all
            outcomes.update(outcomes_of_full_disk(kind, folder, shortage, number))
    return outcomes


# ---- the rate of a journal -----------------------------------------------------------------------


class Rate(NamedTuple):
    by_clock: float  # changes per second
    by_processor: float  # changes per second of processor time, however busy the machine is


def rate_of(n: int, work: Callable[[], object]) -> Rate:
    """Return how many changes per second some work makes."""
    clock, processor = time.perf_counter(), time.process_time()
    work()
    return Rate(n / (time.perf_counter() - clock), n / (time.process_time() - processor))


def table_of_subscriptions(n: int) -> pa.Table:
    """Return subscriptions of two keywords and a box each."""
    rng = np.random.default_rng(1)
    corners = rng.uniform(-80, 80, (n, 2))
    numbers = (rng.zipf(1.3, (n, 2)) % 100_000).tolist()
    return pa.table(
        {
            "id": np.arange(n),
            "keywords": [[f"w{each}" for each in pair] for pair in numbers],
            "min_x": corners[:, 0],
            "min_y": corners[:, 1],
            "max_x": corners[:, 0] + 0.1,
            "max_y": corners[:, 1] + 0.1,
        }
    )


def rates_of_journal(n: int, directory: Path) -> dict[str, Rate]:
    """Return how fast changes are taken, each batch on disk before the next, and replayed."""
    Engine().save(directory)
    table = table_of_subscriptions(n)
    batches = [table.slice(first, 1000) for first in range(0, n, 1000)]
    ids = [batch["id"].combine_chunks() for batch in batches]
    with Engine.open(directory, journal=True) as engine:
        rates = {"subscribed": rate_of(n, lambda: [*map(engine.subscribe_batch, batches)])}
        rates["replayed"] = rate_of(n, lambda: Engine.open(directory))
        ended = ids[: len(ids) // 4]
        n_ended = sum(map(len, ended))
        engine.warm_up()  # builds the structure, which the first to end would wait for
        rates["ended"] = rate_of(n_ended, lambda: [*map(engine.unsubscribe_batch, ended)])
    opened: list[Engine] = []
    mixed = "replayed, a fifth of them ends"
    rates[mixed] = rate_of(n + n_ended, lambda: opened.append(Engine.open(directory)))
    rates[f"{mixed}, and first use"] = rate_of(
        n + n_ended, lambda: Engine.open(directory).warm_up()
    )
    assert len(opened[0]) == n - n_ended
    return rates


def rate_of_short_lives(n: int, directory: Path) -> Rate:
    """Return how fast a journal is replayed in which nine of ten subscriptions soon end again."""
    Engine().save(directory)
    table = table_of_subscriptions(n)
    with Engine.open(directory, journal=timedelta(seconds=1)) as engine:
        for first in range(0, n, 1000):
            engine.subscribe_batch(table.slice(first, 1000))
            if first >= 5000:
                engine.unsubscribe_batch(pa.array(np.arange(first - 5000, first - 4100)))
        n_live = len(engine)
    opened: list[Engine] = []
    rate = rate_of(2 * n - n_live, lambda: opened.append(Engine.open(directory)))
    assert len(opened[0]) == n_live
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--damages", type=int, default=0)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--full", type=int, default=0, help="full disks")
    parser.add_argument("--no-mount", action="store_true", help="fill disks by a limit to files")
    parser.add_argument("--journal-rates", action="store_true")
    arguments = parser.parse_args()
    if arguments.journal_rates:
        with tempfile.TemporaryDirectory() as folder:
            rates_of_journal(20_000, Path(folder) / "first")  # which compiles
            rates = rates_of_journal(1_000_000, Path(folder) / "second")
            rates["replayed, short lives"] = rate_of_short_lives(1_000_000, Path(folder) / "third")
            for name, rate in rates.items():
                print(f"{name}: {rate.by_clock:,.0f}/s, {rate.by_processor:,.0f}/s of processor")
        return
    if arguments.full:
        with tempfile.TemporaryDirectory() as folder:
            may_mount = not arguments.no_mount
            found = outcomes_of_full_disks(arguments.full, Path(folder), may_mount=may_mount)
            print("full disks:", dict(found))
    if arguments.damages:
        print("damages:", dict(outcomes_of_damages(arguments.damages)))
    if arguments.kills:
        print("states after kills, all whole:", dict(outcomes_of_kills(arguments.kills)))


def outcomes_of_damages(n: int) -> Counter[str]:
    outcomes = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for number, kind in enumerate(KINDS):
            saved = Path(folder) / kind
            filled(kind).save(saved)
            expected = answers(Engine.open(saved))
            for seed in range(number, n, len(KINDS)):
                outcomes[outcome_of_damage(kind, saved, expected, seed)] += 1
    return outcomes


def outcomes_of_kills(n: int) -> Counter[str]:
    rng, killed = random.Random(1), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(n):
            kind = list(KINDS)[number % len(KINDS)]
            directory = Path(folder) / f"{kind}-killed"
            filled(kind, 2000).save(directory)
            found = outcome_of_kill(kind, directory, rng.uniform(0.0, 0.4))
            killed["old" if found == len(filled(kind, 2000)) else "new"] += 1
    return killed


if __name__ == "__main__":
    main()
