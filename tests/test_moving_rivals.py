"""The rivals of the AP+-Tree: lists by cell and word, checked entry by entry after changes."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from earshot import Engine, Moving
from earshot.errors import InvalidParameter
from earshot.indexes.quadtree.kernels.cells import BITS, grid_box
from earshot.model.arrays import Space
from earshot.semantics.moving.cell_lists import CellLists, IqPlus, KkIndex, RqPlus, SsIndex
from earshot.semantics.moving.kernels.arrays import LIVE, Tables
from earshot.semantics.moving.kernels.cell_lists import (
    IS_BY_WORD,
    IS_TREE,
    N_DEAD,
    WIDE,
    CellListsArrays,
)
from earshot.semantics.moving.kernels.hashed_lists import (
    BLOCK,
    N_BLOCKS,
    N_ENTRIES,
    N_FREE_BLOCKS,
    N_HELD,
    HashedLists,
    find_list,
)
from test_moving import SECOND, World, rows_of

STRUCTURES: list[CellLists] = [
    SsIndex(n_columns=7),
    KkIndex(n_columns=90),
    IqPlus(posting_cost=1e-3, max_depth=6),
    RqPlus(posting_cost=1e-4, max_depth=8),
]


def names_by_key(hashed: HashedLists) -> dict[int, list[int]]:
    """Return all entries by the key of their list; hash, chains and blocks must be sound."""
    facts = hashed.list_facts
    found: dict[int, list[int]] = {}
    n_blocks = 0
    for number in np.flatnonzero(hashed.list_keys >= 0).tolist():
        key = int(hashed.list_keys[number])
        assert find_list(hashed, key) == number
        first, size = hashed.lists[number].tolist()
        assert size > 0
        entries, block, in_block = [first], first, (size - 1) % BLOCK + 1
        if size > 1:
            entries = []
            while block >= 0:
                entries += hashed.block_entries[block * BLOCK : block * BLOCK + in_block].tolist()
                block, in_block = int(hashed.block_next[block]), BLOCK
                n_blocks += 1
        assert len(entries) == size
        found[key] = entries
    assert facts[N_HELD] == len(found) == np.count_nonzero(hashed.places[:, 0] >= 0)
    assert facts[N_ENTRIES] == sum(map(len, found.values()))
    assert facts[N_BLOCKS] - facts[N_FREE_BLOCKS] == n_blocks
    groups = defaultdict(set)
    for key in found:
        groups[key >> 32].add(key)
    for group, size in enumerate(hashed.group_sizes.tolist()):
        chained, number = set(), int(hashed.group_heads[group])
        while number >= 0:
            chained.add(int(hashed.list_keys[number]))
            number = int(hashed.list_next[number])
        assert chained == groups[group]
        assert size == len(chained)
    return found


def check_structure(arrays: CellListsArrays, tables: Tables) -> tuple[int, int]:
    """Demand that all entries are where they must be; return the wide ones of each kind."""
    subscribers, messages = tables.subscribers, tables.messages
    is_by_word, is_tree = (arrays.rules[[IS_BY_WORD, IS_TREE]] != 0).tolist()
    low = (1 << 32) - 1

    def parts(key: int) -> tuple[int, int]:
        """Return cell and token of a list."""
        return (key & low, (key >> 32) - 1) if is_by_word else ((key >> 32) - 1, key & low)

    def squares(cell: int) -> set[tuple[int, int]]:
        """Return the columns and rows of the finest level in a cell."""
        level = int(np.searchsorted(arrays.level_firsts, cell, side="right")) - 1
        n = int(arrays.level_columns[level])
        row, column = divmod(cell - int(arrays.level_firsts[level]), n)
        times = int(arrays.level_columns[-1]) // n
        return {(column * times + x, row * times + y) for x in range(times) for y in range(times)}

    def touched(box: Any) -> set[tuple[int, int]]:
        """Return the columns and rows of the finest level that a box touches."""
        min_x, min_y, max_x, max_y = box
        n = int(arrays.level_columns[-1])
        first_x, first_y, last_x, last_y = (
            each * n >> BITS for each in grid_box(arrays.frame, min_x, min_y, max_x, max_y)
        )
        columns, rows = range(first_x, last_x + 1), range(first_y, last_y + 1)
        return {(x, y) for x in columns for y in rows}

    by_key = names_by_key(arrays.subscriptions)
    by_clause = defaultdict(list)
    wide_clauses = {entry & low for entry in by_key.pop(int(WIDE), [])}
    for key, entries in by_key.items():
        for entry in entries:
            by_clause[entry & low].append(parts(key))
    live = np.flatnonzero(subscribers.flags & LIVE).tolist()
    for slot in live:
        box = subscribers.regions.boxes[slot].tolist()
        if box[4] <= box[6]:
            box[0], box[2] = -np.inf, np.inf
        first, stop = subscribers.clause_offsets[slot : slot + 2].tolist()
        for clause in range(first, stop):
            if clause in wide_clauses:
                assert clause not in by_clause
                continue
            cells = [cell for cell, _ in by_clause[clause]]
            assert {token for _, token in by_clause[clause]} == {int(arrays.clause_tokens[clause])}
            covered = [squares(cell) for cell in cells]
            union = set().union(*covered)
            assert sum(map(len, covered)) == len(union)
            assert touched(box[:4]) <= union
            assert is_tree or touched(box[:4]) == union
            del by_clause[clause]
    assert not by_clause  # nothing is left of those that have ended
    held = {key: set(entries) for key, entries in names_by_key(arrays.messages).items()}
    wide_rows = held.pop(int(WIDE), set())
    asked = defaultdict(list)
    for key in by_key:
        asked[parts(key)[1]].append((key, squares(parts(key)[0])))
    n_alive = 0
    for row in np.flatnonzero(messages.sequences >= 0).tolist():
        entry = int(messages.sequences[row]) << 32 | row
        n_alive += int(arrays.row_entries[row])
        if entry in wide_rows:
            continue
        box = messages.boxes[row].tolist()
        if box[0] > box[2]:
            box[0], box[2] = -np.inf, np.inf
        on_grid = touched(box)
        start = int(messages.token_starts[row])
        for token in messages.tokens[start : start + int(messages.n_tokens[row])].tolist():
            for key, within in asked[token]:
                assert (entry in held.get(key, ())) == bool(on_grid & within)
    assert arrays.messages.list_facts[N_ENTRIES] - arrays.facts[N_DEAD] == n_alive
    return len(wide_clauses), len(wide_rows)


@pytest.mark.parametrize("space", ["lonlat", "planar"])
@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda each: each.name)
def test_every_entry_is_where_it_must_be(
    structure: CellLists, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("earshot.semantics.moving.cell_lists.LEAST", 150)
    world = World(space, 7)
    engine, plain = (
        Engine(Moving(4 * SECOND), structure=name, parameters=parameters, space=space)
        for name, parameters in ((None, structure), ("scan", None))
    )
    live: list[int] = list(range(100))
    first = world.subscriptions(0, 100)
    n_updates, n_wide, is_swept, n_dead = 0, np.zeros(2, np.int64), False, 0

    def compare(call: Any) -> None:
        nonlocal n_updates, n_wide, is_swept, n_dead
        found = rows_of(call(engine))
        assert found == rows_of(call(plain))
        n_updates += len(found)
        matcher = engine.matcher
        n_wide += check_structure(matcher._arrays, matcher._tables)
        is_swept |= matcher._arrays.facts[N_DEAD] < n_dead
        n_dead = int(matcher._arrays.facts[N_DEAD])

    compare(lambda each: each.subscribe(*first))
    for step in range(8):
        messages = world.messages(120 if step < 6 else 3)
        compare(lambda each, batch=messages: each.publish_batch(batch))
        positions = world.positions(world.random.choice(live, 60))
        compare(lambda each, batch=positions: each.move_batch(batch))
        gone = world.random.choice(live, 12, replace=False).tolist()
        live = [each for each in live if each not in gone]
        compare(lambda each, ids=gone: each.unsubscribe_batch(pa.array(ids)))
        new = world.subscriptions(1000 + 100 * step, 20)
        live += [int(each.id) for each in new]
        compare(lambda each, made=new: each.subscribe(*made))
    assert n_updates > 500
    assert is_swept
    if structure.name == "kk_index":  # whose grid is so fine that large regions have many cells
        assert (n_wide > 0).all()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SsIndex(n_columns=0), "n_columns is 0; expected a whole number from 1 to 1,000"),
        (lambda: KkIndex(n_columns=1.5), "n_columns is 1.5; expected a whole number"),  # type: ignore[arg-type]
        (lambda: IqPlus(posting_cost=0), "posting_cost is 0; expected 1e-12 to"),
        (lambda: RqPlus(max_depth=11), "max_depth is 11; expected a whole number from 1 to 10"),
    ],
)
def test_parameters_out_of_range_are_refused(make: Any, said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        make()
