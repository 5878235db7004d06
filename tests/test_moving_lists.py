"""Lists of moving subscribers by their rarest word: sorted on the spot, and never wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from earshot import Engine, Moving
from earshot.kernels.box_keys import BLOCK, DEAD_KEY
from earshot.kernels.jit import kernel
from earshot.semantics.moving.kernels.lists import (
    FULL,
    LIST_ENTRIES,
    LIST_SORTED,
    TOP_SIZE,
)
from earshot.semantics.moving.kernels.vectors import union_of_block

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
RADIUS = 0.01
LANES = np.arange(0, 64, 16, dtype=np.uint64)


def lanes(keys: Any) -> Any:
    return (np.asarray(keys)[..., None] >> LANES) & np.uint64(0x7FFF)


def check_lists(engine: Engine) -> None:
    """Chunks but the last are full, entries know their places, sums hold their keys."""
    lists = engine.matcher._arrays
    n_entries = 0
    for token, head in enumerate(lists.list_heads.tolist()):
        n, chunk = 0, head
        while chunk >= 0:
            start, count = int(lists.chunk_starts[chunk]), int(lists.chunk_counts[chunk])
            chunk = int(lists.chunk_next[chunk])
            assert count == FULL or chunk < 0
            places = np.arange(start, start + count)
            clauses = lists.pool_rows[places]
            assert (lists.clause_places[clauses] == places).all()
            assert (lists.clause_tokens[clauses] == token).all()
            keys = lanes(lists.pool_keys[places])
            if count > BLOCK:
                assert (lanes(lists.pool_sums[places >> 4]) <= keys).all()
            if count > TOP_SIZE:
                assert (lanes(lists.pool_tops[places >> 8]) <= keys).all()
            n += count
        assert n == lists.list_lengths[token]
        n_entries += n
    assert n_entries == lists.list_facts[LIST_ENTRIES] == len(engine)


def test_lists_are_sorted_between_two_messages() -> None:
    """Subscribers that scatter make long lists loose; who holds a message stays the same.

    A list is sorted in the middle of a search, when blocks were opened in vain often enough.
    """
    random = np.random.default_rng(11)
    n = 6000
    engine = Engine(Moving(timedelta(seconds=3)), space="planar", rebuild_in_background=False)
    places = random.random((n, 2))
    # Four in five are in one list, of more than a full chunk; some ask for a second word.
    words = [["road", "fare"] if i % 40 == 0 else ["road"] if i % 5 else ["fare"] for i in range(n)]
    engine.subscribe_batch(pa.table({
        "id": np.arange(n), "keywords": words, "x": places[:, 0], "y": places[:, 1],
        "radius": np.full(n, RADIUS),
    }))  # fmt: skip
    is_live = np.ones(n, np.bool_)
    asks_road = np.array(["road" in each for each in words])
    n_found = n_sorted = 0
    for step in range(8):
        time = NOON + timedelta(seconds=step)
        moved = random.choice(np.flatnonzero(is_live), 3000, replace=False)
        places[moved] = random.random((3000, 2))
        engine.move_batch(pa.table({
            "id": moved, "x": places[moved, 0], "y": places[moved, 1], "time": [time] * 3000,
        }))  # fmt: skip
        said = random.random((300, 2))
        has_road = random.random(300) < 0.9
        before = int(engine.matcher._arrays.list_facts[LIST_SORTED])
        updates = engine.publish_batch(pa.table({
            "id": np.arange(300) + 300 * step,
            "keywords": [["road", "fare"] if each else ["fare"] for each in has_road],
            "x": said[:, 0], "y": said[:, 1], "time": [time] * 300,
        }))  # fmt: skip
        n_sorted += max(int(engine.matcher._arrays.list_facts[LIST_SORTED]) - before, 0)
        check_lists(engine)
        table = updates.table(["message_id", "subscription_id", "reason"]).to_pylist()
        found = [
            (row["message_id"], row["subscription_id"]) for row in table if row["reason"] == "match"
        ]
        expected = [
            (300 * step + i, int(slot))
            for i, (at, road) in enumerate(zip(said, has_road, strict=True))
            for slot in np.flatnonzero(
                (np.hypot(*(places - at).T) <= RADIUS) & is_live & (road | ~asks_road)
            )
        ]
        assert found == expected
        n_found += len(found)
        gone = random.choice(np.flatnonzero(is_live), 50, replace=False)
        is_live[gone] = False
        engine.unsubscribe_batch(pa.array(gone))
    assert n_found > 1000
    assert n_sorted > 4 * n


@kernel
def _unions(keys, found):  # type: ignore[no-untyped-def]
    for n in range(BLOCK + 1):
        found[n] = union_of_block(keys, 3, n)


def test_the_union_of_a_block_has_the_least_of_each_lane() -> None:
    random = np.random.default_rng(5)
    lanes = random.integers(0, 1 << 15, (3 + BLOCK, 4), np.uint64)
    shifts = np.arange(0, 64, 16, dtype=np.uint64)
    keys, found = (lanes << shifts).sum(axis=1, dtype=np.uint64), np.zeros(BLOCK + 1, np.uint64)
    _unions(keys, found)
    assert found[0] == DEAD_KEY
    for n in range(1, BLOCK + 1):
        least = lanes[3 : 3 + n].min(axis=0)
        assert found[n] == (least << shifts).sum(dtype=np.uint64)
