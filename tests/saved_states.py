"""Engines of every semantics to save, and what may happen to a saved one.

Run as a program, it tries many random damages and kills, and says what came of them::

    python tests/saved_states.py --damages 5000 --kills 100
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from earshot import (
    Circle,
    Engine,
    Message,
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
}


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--damages", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=100)
    arguments = parser.parse_args()
    outcomes = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for number, kind in enumerate(KINDS):
            saved = Path(folder) / kind
            filled(kind).save(saved)
            expected = answers(Engine.open(saved))
            for seed in range(number, arguments.damages, len(KINDS)):
                outcomes[outcome_of_damage(kind, saved, expected, seed)] += 1
        print("damages:", dict(outcomes))
        rng, killed = random.Random(1), Counter[str]()
        for number in range(arguments.kills):
            kind = list(KINDS)[number % len(KINDS)]
            directory = Path(folder) / f"{kind}-killed"
            filled(kind, 2000).save(directory)
            n = outcome_of_kill(kind, directory, rng.uniform(0.0, 0.4))
            killed["old" if n == len(filled(kind, 2000)) else "new"] += 1
        print("states after kills, all whole:", dict(killed))


if __name__ == "__main__":
    main()
