"""The quadtree of live messages: what its nodes say of what lies below holds after any changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from earshot import Engine, Message, Moving, Point, Rectangle, Subscription
from earshot.model.arrays import Space
from earshot.semantics.moving.kernels.quadtree import BLOCK

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def entries_of(tree: Any, node: int) -> list[int]:
    """Return the entries of a node's own blocks."""
    found: list[int] = []
    block, n = int(tree.node_blocks[node]), int(tree.node_sizes[node])
    in_block = (n - 1) % BLOCK + 1
    while block >= 0:
        found += range(block * BLOCK, block * BLOCK + in_block)
        block, in_block = int(tree.block_next[block]), BLOCK
    assert len(found) == n
    return found


def names_below(tree: Any, messages: Any, node: int) -> list[int]:
    """Check a node and all below; return the names of the entries there."""
    names = [int(tree.entry_rows[entry]) for entry in entries_of(tree, node)]
    first = int(tree.node_children[node])
    if first >= 0:
        for child in range(first, first + 4):
            names += names_below(tree, messages, child)
    assert len(names) == tree.node_counts[node]
    quad, shift = tree.quad_words[node >> 2], node & 3
    low_x, low_y, high_x, high_y = tree.node_boxes[node]
    for name in names:
        row = name if name >= 0 else ~name
        box = messages.boxes[row]
        is_split = box[0] > box[2]
        assert low_x <= (-180.0 if name < 0 else box[0])
        assert high_x >= (180.0 if is_split and name >= 0 else box[2])
        assert low_y <= box[1] <= box[3] <= high_y
        start = messages.token_starts[row]
        for token in messages.tokens[start : start + messages.n_tokens[row]]:
            place = (int(token) * 0x9E3779B97F4A7C15 % (1 << 64)) >> 54
            assert node == 0 or quad[place >> 1] >> ((place & 1) * 4 + shift) & 1
    return names


def check_tree(engine: Engine) -> None:
    """Counts, boxes and sets of words are of all that lies below, and all that lives is there."""
    matcher: Any = engine.matcher
    tree, messages = matcher._arrays, matcher._messages
    expected: list[int] = []
    for row in matcher.message_rows.tolist():
        expected += [row, ~row] if messages.boxes[row, 0] > messages.boxes[row, 2] else [row]
    assert sorted(names_below(tree, messages, 0)) == sorted(expected)


@pytest.mark.parametrize("space", ["planar", "lonlat"])
def test_nodes_say_what_lies_below(space: Space) -> None:
    """Leaves are cut and taken back, sets of words are found anew, as messages come and go."""
    random = np.random.default_rng(3)
    engine = Engine(Moving(10 * MINUTE), space=space)
    number = 0
    for minute in range(60):
        clock = NOON + minute * MINUTE
        engine.advance(clock)
        # Crowds come and go: with few messages, nodes take their leaves back.
        for _ in range(120 if minute % 20 < 10 else 4):
            x, y = random.normal(0, 20, 2) if number % 3 else random.random(2) * 160 - 80
            place: Any = Point(x, y)
            if number % 7 == 0:
                place = Rectangle(x, y, x + random.random() * 9, y + 0.5)
            if number % 50 == 0 and space == "lonlat":
                place = Rectangle(179, -10, -179, 10)
            words = " ".join(f"w{word}" for word in random.zipf(1.4, 5) % 2_000)
            end = clock + int(random.integers(1, 9)) * MINUTE
            engine.publish(Message(number, words, place=place, time=clock, end=end))
            number += 1
        if minute % 4 == 0:
            check_tree(engine)
    engine.advance(NOON + timedelta(days=1))
    check_tree(engine)
    assert engine.matcher.n_messages == 0


def test_nodes_above_leaves_that_lack_a_word_are_passed_over() -> None:
    """Who asks for the word of a single message opens few of the nodes that have only leaves."""
    engine = Engine(Moving(10 * MINUTE), space="planar")
    n, random = 4_000, np.random.default_rng(1)
    x, y = random.random((2, n))
    text = [f"word{number}" for number in range(n)]
    engine.publish_batch(
        pa.table({"id": range(n), "text": text, "x": x, "y": y, "time": [NOON] * n})
    )
    children = engine.matcher._arrays.node_children
    (cut,) = np.nonzero(children >= 0)
    is_low = (children[children[cut][:, None] + np.arange(4)] < 0).all(axis=1)
    n_low = int(is_low.sum())
    assert n_low > 40
    found = engine.subscribe(Subscription("one", ["word77"], region=Rectangle(0, 0, 1, 1)))
    assert [each.message_id for each in found] == [77]
    assert found.counters.nodes < len(cut) - n_low + n_low / 4
