"""The AP+-Tree: its lists after every change, its cost model, and what it passes over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from earshot import Circle, Engine, Message, Moving, Point, Rectangle, Subscription
from earshot.bench.moving import reports_of
from earshot.errors import InvalidParameter
from earshot.indexes.ap_tree.building import motion_of
from earshot.indexes.ap_tree.kernels import nodes
from earshot.indexes.ap_tree.kernels.motion import next_rebuild
from earshot.model.arrays import Space
from earshot.semantics.moving.ap_plus.kernels import arrays as ap
from earshot.semantics.moving.ap_plus.kernels.arrays import LIST_BLOCK, ApPlusCore
from earshot.semantics.moving.ap_plus.structure import ApPlusK, ApPlusS, ApPlusTree
from earshot.semantics.moving.kernels.arrays import LIVE, Tables
from test_moving import NOON, SECOND, World, rows_of

STRUCTURES = [
    ApPlusTree(fanout=6, max_list=4, max_copies=7, max_divergence=0.02),
    ApPlusK(fanout=6, max_list=4, n_columns=7),
    ApPlusS(fanout=6, max_list=4, n_columns=7),
]


def kept_by(core: ApPlusCore, node: int) -> set[tuple[int, int]]:
    """Return row and age of the entries of an m-list."""
    lists = core.lists
    size, block = int(lists.node_sizes[node]), int(lists.node_blocks[node])
    found, in_block = [], (size - 1) % LIST_BLOCK + 1
    while block >= 0:
        entries = slice(block * LIST_BLOCK, block * LIST_BLOCK + in_block)
        found += list(zip(lists.entry_rows[entries], lists.entry_ages[entries], strict=True))
        block, in_block = int(lists.block_next[block]), LIST_BLOCK
    assert len(found) == size
    return {(int(row), int(age)) for row, age in found}


def cells_on_ways(core: ApPlusCore, nodes_of: list[int], box: Any) -> list[tuple[int, ...]]:
    """Return the cells that a box touches in every s-node above some l-nodes, () for the dummy."""
    tree = core.tree
    found: list[tuple[int, ...]] = []
    above = {int(tree.parents[node]) for node in nodes_of}
    while above - {-1}:
        node = max(above)
        above = above - {node} | {int(tree.parents[node])}
        if tree.kinds[node] != nodes.SPACE:
            continue
        n_columns, n_rows = int(tree.sizes[node]) & 0xFFFF, int(tree.sizes[node]) >> 16
        first = int(tree.extras[node])
        xs = tree.edges[first : first + n_columns + 1]
        ys = tree.edges[first + n_columns + 1 : first + n_columns + n_rows + 2]
        if box[0] <= xs[0] and box[1] <= ys[0] and box[2] >= xs[-1] and box[3] >= ys[-1]:
            found.append(())
        else:
            sides = zip((xs, ys, xs, ys), box, strict=True)
            found.append(tuple(int(np.sum(edges[1:-1] <= at)) for edges, at in sides))
    return found


def check_nodes(core: ApPlusCore, clause: int, lists: list[int]) -> None:
    """Demand that the l-nodes that are remembered are all, and stay so within the bounds."""
    places = core.places
    known = [each for each in places.nodes[clause].tolist() if each >= 0]
    if places.nodes[clause, 0] < 0:
        return
    assert sorted(known) == sorted(lists)
    box, bounds = places.boxes[clause], places.bounds[clause].astype(float)
    random = np.random.default_rng(clause)
    for _ in range(4):
        other = box + random.uniform(-8, 8, 4) * (random.random(4) < 0.7)
        other = np.minimum(np.maximum(other, bounds[:4]), np.nextafter(bounds[4:], -np.inf))
        if other[0] <= other[2] and other[1] <= other[3]:
            assert cells_on_ways(core, lists, other) == cells_on_ways(core, lists, box)


def check_tree(core: ApPlusCore, tables: Tables, has_messages: bool) -> None:
    """Demand that all alternatives are where they must be, and that no message is missing."""
    tree, subscribers, messages = core.tree, tables.subscribers, tables.messages
    n = int(tree.facts[nodes.N_NODES])
    lists_of: dict[int, list[int]] = {}
    for node in range(n):
        kind, size = tree.kinds[node], int(tree.sizes[node])
        assert has_messages or core.lists.node_sizes[node] == 0
        if kind == nodes.FREE:
            assert core.lists.node_sizes[node] == 0
        elif kind == nodes.LIST:
            start = int(tree.starts[node])
            for clause in tree.rows[start : start + int(tree.n_below[node])].tolist():
                lists_of.setdefault(clause, []).append(node)
        else:
            start, n_children = int(tree.starts[node]), size + 1
            if kind == nodes.SPACE:
                n_children = (size & 0xFFFF) * (size >> 16) + 1
            else:
                first = int(tree.extras[node])
                firsts, lasts = (each[first : first + size] for each in (tree.firsts, tree.lasts))
                assert (firsts <= lasts).all()
                assert (lasts[:-1] < firsts[1:]).all()
            for position, child in enumerate(tree.children[start : start + n_children].tolist()):
                if child >= 0:
                    assert tree.parents[child] == node
                    assert tree.positions[child] == position
    is_live = subscribers.flags[subscribers.clause_slots] & LIVE != 0
    inside = np.flatnonzero(core.places.states[: len(is_live)] == ap.INSIDE)
    assert inside.tolist() == np.flatnonzero(is_live).tolist()
    kept = {node: kept_by(core, node) for node in range(n) if core.lists.node_sizes[node]}
    living = []
    for row in np.flatnonzero(messages.sequences >= 0).tolist():
        start = int(messages.token_starts[row])
        tokens = messages.tokens[start : start + int(messages.n_tokens[row])].tolist()
        entry = (row, int(messages.sequences[row]))
        living.append((entry, set(tokens), messages.boxes[row].tolist()))
    for clause in inside.tolist():
        found: set[tuple[int, int]] = set()
        check_nodes(core, clause, lists_of[clause])
        for node in lists_of.pop(clause):
            at = node
            while at >= 0:
                found |= kept.get(at, set())
                at = int(tree.parents[at])
        if not has_messages:
            continue
        first, stop = subscribers.token_offsets[clause : clause + 2]
        asked = {each for each in subscribers.token_ids[first:stop].tolist() if each >= 0}
        low_x, low_y, high_x, high_y = core.places.boxes[clause].tolist()
        for entry, tokens, (min_x, min_y, max_x, max_y) in living:
            is_near = low_y <= max_y and high_y >= min_y
            is_near &= min_x > max_x or (low_x <= max_x and high_x >= min_x)
            if is_near and asked <= tokens:
                assert entry in found
    for clause in lists_of:
        assert core.places.states[clause] == ap.GONE


@pytest.mark.parametrize("is_dear", [True, False], ids=["moves cost", "moves are free"])
@pytest.mark.parametrize("space", ["lonlat", "planar"])
@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda each: each.name)
def test_no_message_is_missing_after_any_change(
    structure: ApPlusTree, space: Space, is_dear: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[VLDBJ15] section 4.2.5: a subscription's messages are in the m-lists of its l-nodes.

    Nodes are split, collapsed and built anew, cuts and dummies come late, messages end. Where moves
    cost nothing, space is divided wherever that helps messages.
    """
    if not is_dear:
        at_rest = motion_of(structure.fanout, 0.0, np.empty((0, 2), np.float32))
        monkeypatch.setattr(ApPlusTree, "_motion", lambda *_: at_rest)
    monkeypatch.setattr("earshot.semantics.moving.cell_lists.LEAST", 60)
    world = World(space, 5)
    engine, plain = (
        Engine(Moving(4 * SECOND), structure=name, parameters=parameters, space=space)
        for name, parameters in ((None, structure), ("scan", None))
    )
    live, n_updates, facts = list(range(100)), 0, np.zeros(3, np.int64)
    n_spaces = n_home = 0
    roots: set[int] = set()
    first = world.subscriptions(0, 100)

    def compare(call: Any) -> None:
        nonlocal n_updates, facts, n_spaces, n_home
        found = rows_of(call(engine))
        assert found == rows_of(call(plain))
        n_updates += len(found)
        core = engine.matcher._arrays.core
        check_tree(core, engine.matcher._tables, structure.name == "ap_plus_tree")
        built = core.tree.facts[[nodes.N_SPLITS, nodes.N_COLLAPSES, nodes.N_REBUILDS]]
        facts = np.maximum(facts, built)
        roots.add(int(core.facts[ap.FIRST_SEQUENCE]))
        n_spaces = max(n_spaces, int(np.sum(core.tree.kinds == nodes.SPACE)))
        n_home = max(n_home, int(np.sum(core.places.nodes[:, 0] >= 0)))

    compare(lambda each: each.subscribe(*first))
    for step in range(10):
        messages = world.messages(90 if step < 8 else 3)
        compare(lambda each, batch=messages: each.publish_batch(batch))
        positions = world.positions(world.random.choice(live, 80))
        compare(lambda each, batch=positions: each.move_batch(batch))
        gone = world.random.choice(live, 12, replace=False).tolist()
        live = [each for each in live if each not in gone]
        compare(lambda each, ids=gone: each.unsubscribe_batch(pa.array(ids)))
        new = world.subscriptions(1000 + 100 * step, 25)
        live += [int(each.id) for each in new]
        compare(lambda each, made=new: each.subscribe(*made))
    assert n_updates > 300
    assert facts.sum() > 0 or len(roots) > 3  # all was built anew now and then
    assert n_home > 50
    assert is_dear or n_spaces > 0


def test_what_lies_within_both_regions_is_passed_over() -> None:
    """[VLDBJ15] Algorithm 6, case 1; the others are compared (Fig. 8)."""
    random = np.random.default_rng(3)
    engine = Engine(Moving(60 * SECOND), parameters=ApPlusTree(fanout=25), space="planar")
    small = [
        Subscription(i, ["road"], region=Circle(x, y, 0.01))
        for i, (x, y) in enumerate(random.random((400, 2)).tolist())
    ]
    engine.subscribe(*small, Subscription(999, ["road"], region=Rectangle(0.1, 0.1, 0.9, 0.9)))
    for i, (x, y) in enumerate(random.random((400, 2)).tolist()):
        engine.publish(Message(i, "road", place=Point(x, y), time=NOON))
    engine.rebuild()
    moved = engine.move(999, Point(0.52, 0.5), NOON)
    assert 0 < len(moved) <= moved.counters.candidates < 100


def test_the_time_to_the_next_rebuild_follows_velocity() -> None:
    """[VLDBJ15] Algorithm 8."""
    random = np.random.default_rng(1)
    places, n = random.random((500, 2)) * [0.5, 1.0], 500
    boxes, rows = np.hstack([places, places]), np.arange(n, dtype=np.int32)
    structure = ApPlusTree()
    tree = structure.build(Engine(Moving(SECOND)).matcher._tables, "planar").core.tree
    region = np.array([0.0, 0.0, 1.0, 1.0])

    def after(velocity: float) -> int:
        ways = np.tile(np.array([[velocity, 0.0]], np.float32), (n, 1))
        motion = motion_of(200, 1.0, ways)
        return int(next_rebuild(tree, boxes, rows, motion, region, 4, 4))

    assert after(0.0) == 32  # never, as far as one looks ahead
    assert after(0.3) == 1
    assert 1 < after(0.02) <= after(0.01) <= 32


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ApPlusTree(fanout=1), "fanout is 1; expected a whole number"),
        (lambda: ApPlusTree(max_copies=0), "max_copies is 0; expected a whole number from 1"),
        (lambda: ApPlusK(n_columns=0), "n_columns is 0; expected a whole number from 1"),
    ],
)
def test_parameters_out_of_range_are_refused(make: Any, said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        make()


def test_a_move_within_a_safe_region_costs_no_search() -> None:
    """A message that may come to match ends that, and so does a report from farther away."""
    engine = Engine(Moving(9 * SECOND), space="planar", structure="ap_plus_tree_safe")
    engine.subscribe(Subscription(1, ["tea"], region=Circle(0, 0, 1)))
    engine.publish(Message(1, "tea", place=Point(9, 0), time=NOON))

    def n_visited(x: float) -> int:
        changes = engine.matcher.move(np.zeros(1, np.int32), reports_of(np.array([[x, 0.0]]), 0))
        assert len(changes.slots) == 0
        return int(changes.counters[0])

    assert [n_visited(x) > 0 for x in (0.5, 1, 2, 0)] == [True, False, False, False]
    engine.publish(Message(2, "coffee", place=Point(1, 2), time=NOON))
    assert n_visited(0.5) == 0
    engine.publish(Message(3, "tea", place=Point(1, 2), time=NOON))
    assert n_visited(0.6) > 0
    assert engine.outdated_safe_regions() == []  # no client was told any
    assert n_visited(-20) > 0
    given = engine.safe_region(1)
    assert isinstance(given, Circle)
    assert n_visited(-20) == 0
    engine.publish(Message(4, "tea", place=Point(-21, 3), time=NOON))
    assert engine.outdated_safe_regions() == []  # it has reported since
    smaller = engine.safe_region(1)
    assert isinstance(smaller, Circle)
    assert smaller.radius < given.radius
