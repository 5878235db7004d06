"""What many small batches of changes leave behind: ``small_changes.py ROOT``.

Builds an index on Spark, takes in single changes (subscribe, move and unsubscribe in turn), each as
a batch of its own, and opens each shard in a fresh process. Prints JSON: how long the batches took
on the driver with the removal of old versions, how many deltas are left, and how long a process
took to open a shard with them. Limits: 50 ms for a batch, 0.5 s for a shard.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))
from spark.cluster_figures import make_data

N_FIRST, N_LAST = 100, 100
"""Batches at the beginning and at the end, whose times are compared."""
MOST_BATCH_S, MOST_OPEN_S = 0.05, 0.5


def change(number: int, n_subscriptions: int) -> dict[str, Any]:
    """Return a change: of three in turn one comes, one moves and one goes."""
    x, y = np.random.default_rng(number).uniform(0, 0.9, 2)
    region = {"min_x": x, "min_y": y, "max_x": x + 0.01, "max_y": y + 0.01}
    match number % 3:
        case 0:
            words = {"keywords": [f"w{number % 500}", f"new{number}"]}
            return {"op": "subscribe", "id": n_subscriptions + number, **words, **region}
        case 1:
            return {"op": "move", "id": number, **region}
        case _:
            return {"op": "unsubscribe", "id": number}


def take_in_all(index: Path, n_changes: int, n_subscriptions: int) -> dict[str, Any]:
    """Take in changes one at a time; return how long the batches took."""
    from earshot.files.layout import make_layout
    from earshot.files.records import batch_of_records
    from earshot.spark.intake import take_in
    from earshot.spark.store import IndexStore

    store, layout = IndexStore(index), make_layout("changes", None, "", "raise")
    spent_s, spent_cpu_s = [], []
    for number in range(n_changes):
        record = change(number, n_subscriptions)
        batch = batch_of_records(layout, [record], "integer", np.arange(1)).batch
        started, started_cpu = time.perf_counter(), time.process_time()
        took = take_in(store, pa.Table.from_batches([batch]), stream="changes", batch=number)
        store.clean()
        spent_s.append(time.perf_counter() - started)
        spent_cpu_s.append(time.process_time() - started_cpu)
        assert not took.rejects, took.rejects
    return {
        "deltas": len(took.version.deltas),
        "changes": took.version.n_changes,
        "versions": len(store.version_numbers()),
        "first_batches_s": float(np.median(spent_s[1:N_FIRST])),
        "last_batches_s": float(np.median(spent_s[-N_LAST:])),
        "slowest_of_last_s": max(spent_s[-N_LAST:]),
        "last_batches_cpu_s": float(np.median(spent_cpu_s[-N_LAST:])),
        "mean_cpu_s": float(np.mean(spent_cpu_s)),
    }


def open_all(index: Path) -> list[dict[str, float]]:
    """Open the shards of an index in a fresh process, whose kernels are compiled, each once."""
    command = [sys.executable, __file__, str(index), "--role", "open"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    opened: list[dict[str, float]] = json.loads(done.stdout)
    return opened


def open_here(index: Path) -> None:
    from earshot.spark.shards import open_shard, warm_up_machine
    from earshot.spark.store import IndexStore

    store = IndexStore(index)
    version = store.latest()
    warm_up_machine(store.settings.semantics, store.settings.structure)
    told = []
    for shard in range(version.base.n_shards):
        started, started_cpu = time.perf_counter(), time.process_time()
        open_shard(store.folder.uri, version, shard)
        spent = time.perf_counter() - started, time.process_time() - started_cpu
        told.append(dict(zip(("open_s", "open_cpu_s"), spent, strict=True)))
    print(json.dumps(told))


def measure(root: Path, n_shards: int | None, n_changes: int, n_subscriptions: int) -> Any:
    from earshot.spark import build, local_session

    session = local_session("local[2]", extra={"spark.driver.memory": "2g"})
    index = root / f"index-{n_shards}"
    build(
        session.read.parquet(str(root / "subscriptions")), index,
        placement="replicated" if n_shards is None else "sharded", n_shards=n_shards,
        space="planar", unique_ids=True,
    )  # fmt: skip
    session.stop()
    without = open_all(index)
    facts = take_in_all(index, n_changes, n_subscriptions)
    opened = open_all(index)
    facts["open_without_changes_s"] = max(each["open_s"] for each in without)
    facts |= {name: max(each[name] for each in opened) for name in ("open_s", "open_cpu_s")}
    facts["is_kept"] = facts["last_batches_s"] <= MOST_BATCH_S and facts["open_s"] <= MOST_OPEN_S
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--n-subscriptions", type=int, default=1_000_000)
    parser.add_argument("--n-changes", type=int, default=1_000)
    parser.add_argument("--n-shards", type=int, default=4)
    parser.add_argument("--role", choices=["open"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    root = given.root.absolute()
    if given.role == "open":
        return open_here(root)
    make_data(root, given.n_subscriptions, 1)
    facts: dict[str, Any] = {"n_subscriptions": given.n_subscriptions, "load": os.getloadavg()[0]}
    for name, n_shards in (("replicated", None), ("sharded", given.n_shards)):
        facts[name] = measure(root, n_shards, given.n_changes, given.n_subscriptions)
        print(json.dumps({name: facts[name]}), file=sys.stderr, flush=True)
    print(json.dumps(facts, indent=1))
    return None


if __name__ == "__main__":
    main()
