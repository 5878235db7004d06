"""Removal from :mod:`earshot.indexes.block_trie.index`, which describes the structure.

A clause stands twice: in the list of a node, and in the root list. Both are in spatial order, so
that a few clauses are found by searching. Where many are removed, a table of all places is cheaper.
"""

from __future__ import annotations

import numpy as np

from earshot.indexes.block_trie.kernels.arrays import (
    FIRST_CHILD,
    IS_NODE,
    KIND,
    N_CHILDREN,
    NO_ROOT,
    NODE_COLUMNS,
    ROOT_COLUMNS,
    WHERE,
    plain_row,
)
from earshot.indexes.block_trie.kernels.build import order_mask, spatial_code
from earshot.indexes.block_trie.kernels.lists import any_clause, lists_of
from earshot.kernels.box_keys import DEAD_KEY, box_key
from earshot.kernels.jit import kernel

_SEARCH_STEPS = 64
"""What finding a clause costs, in entries that could be looked at instead."""


@kernel
def clause_positions(arrays, subscriptions):
    """Return where each clause stands in a node's list, and where in the root list.

    Complete lists name slots. Of a slot with several clauses, each entry is given to any of those
    that stand in no open list: they are always removed together.
    """
    n_clauses = len(subscriptions)
    positions = np.full((n_clauses, 2), -1, np.int32)
    for k in range(n_clauses, 2 * n_clauses):
        positions[plain_row(arrays.entry_rows[k]), 1] = k
    for is_complete in (False, True):
        _enter_positions(arrays, subscriptions, is_complete, positions)
    return positions


@kernel
def _enter_positions(arrays, subscriptions, is_complete, positions):
    """Enter where clauses stand in open lists or, once these are entered, in complete ones."""
    n_nodes = len(arrays.nodes) // NODE_COLUMNS
    for number in range(n_nodes + len(arrays.roots) // ROOT_COLUMNS):
        at = (number - n_nodes) * ROOT_COLUMNS
        if number >= n_nodes and (
            arrays.roots[at + WHERE] == NO_ROOT or arrays.roots[at + KIND] == IS_NODE
        ):
            continue
        start, n_complete, n_open = lists_of(arrays, number)
        middle = start + n_complete
        first, end = (start, middle) if is_complete else (middle, middle + n_open)
        for k in range(first, end):
            c = _clause_at(arrays, k, is_complete)
            while positions[c, 0] >= 0 and c > 0 and subscriptions[c - 1] == subscriptions[c]:
                c -= 1
            positions[c, 0] = k


@kernel
def _clause_at(arrays, entry, is_complete):
    """Return the clause of an entry; of a slot with several in a complete list, the last one."""
    row = arrays.entry_rows[entry]
    return np.int64(any_clause(arrays, row)) if is_complete else plain_row(row)


@kernel
def _code_at(arrays, boxes, entry, is_complete):
    """Return the spatial code by which an entry has its place, dead or not."""
    key = arrays.keys[entry]
    if key == DEAD_KEY:
        box = boxes[_clause_at(arrays, entry, is_complete)]
        key = box_key(arrays.quantizer, box[0], box[1], box[2], box[3])
    return spatial_code(key)


@kernel
def _first_of_code(arrays, boxes, start, stop, is_complete, code):
    """Return the first entry of a node's list whose spatial code is no less than ``code``."""
    mask = order_mask(stop - start)
    while start < stop:
        middle = (start + stop) >> 1
        if _code_at(arrays, boxes, middle, is_complete) & mask < code & mask:
            start = middle + 1
        else:
            stop = middle
    return start


@kernel
def _find_ordered(arrays, boxes, start, stop, is_complete, code, mask, c):
    """Return where a clause stands in a list in which those of equal codes ascend, or -1.

    ``mask`` has the bits of codes that the list is in order of.
    """
    end, code = stop, code & mask
    while start < stop:
        middle = (start + stop) >> 1
        found = _code_at(arrays, boxes, middle, is_complete) & mask
        if found < code or (found == code and _clause_at(arrays, middle, is_complete) < c):
            start = middle + 1
        else:
            stop = middle
    return start if start < end and _clause_at(arrays, start, is_complete) == c else np.int64(-1)


@kernel
def _rarest_beyond(clauses, frequencies, c, before):
    """Return the required token that comes after ``before`` in order of rising frequency, or -1.

    ``before`` is -1 for the first.
    """
    best = np.int64(-1)
    for i in range(clauses.token_offsets[c], clauses.token_offsets[c + 1]):
        token = np.int64(clauses.token_ids[i])
        if token < 0:
            break
        rank = frequencies[token]
        if before >= 0 and (
            rank < frequencies[before] or (rank == frequencies[before] and token <= before)
        ):
            continue
        if best < 0 or rank < frequencies[best] or (rank == frequencies[best] and token < best):
            best = token
    return best


@kernel
def _child_of(arrays, nodes, node, token):
    """Return the child of a node for a token, or -1; children are in the order of tokens."""
    first, last = nodes[node, FIRST_CHILD], nodes[node, FIRST_CHILD] + nodes[node, N_CHILDREN]
    for child in range(first, last):
        if arrays.node_tokens[child] == token:
            return np.int64(child)
    return np.int64(-1)


@kernel
def _is_plain(clauses, c):
    """Whether a clause has required tokens and a box, no more."""
    return clauses.shape_rows[c] < 0 and clauses.token_ids[clauses.token_offsets[c + 1] - 1] >= 0


@kernel
def bury_clauses(arrays, clauses, frequencies, rows, most_steps):
    """Overwrite the keys of clauses in both of their places; return the steps that it took.

    At ``most_steps`` it stops, with some of them done.
    """
    nodes = arrays.nodes.reshape((-1, NODE_COLUMNS))
    n, boxes = len(clauses.subscriptions), clauses.boxes
    n_steps = np.int64(0)
    for i in range(len(rows)):
        if n_steps >= most_steps:
            break
        c = np.int64(rows[i])
        box = boxes[c]
        code = spatial_code(box_key(arrays.quantizer, box[0], box[1], box[2], box[3]))
        token = _rarest_beyond(clauses, frequencies, c, -1)
        is_node = arrays.roots[token * ROOT_COLUMNS + KIND] == IS_NODE
        where = np.int64(arrays.roots[token * ROOT_COLUMNS + WHERE])
        number = where if is_node else len(nodes) + token
        while True:
            token = _rarest_beyond(clauses, frequencies, c, token)
            child = np.int64(-1)
            if token >= 0 and is_node:
                child = _child_of(arrays, nodes, number, token)
                n_steps += nodes[number, N_CHILDREN]
            if child < 0:
                break
            number = child
        start, n_complete, n_open = lists_of(arrays, number)
        middle, stop = start + n_complete, start + n_complete + n_open
        entry = np.int64(-1)
        if token < 0 and _is_plain(clauses, c):
            last = np.int64(any_clause(arrays, clauses.subscriptions[c]))
            entry = _find_ordered(
                arrays, boxes, start, middle, True, code, order_mask(n_complete), last
            )
            # Clauses that say the same stand one after the other.
            while (
                entry >= 0
                and arrays.keys[entry] == DEAD_KEY
                and entry + 1 < middle
                and _clause_at(arrays, entry + 1, True) == last
            ):
                entry += 1
        if entry < 0:
            entry = _first_of_code(arrays, boxes, middle, stop, False, code)
            while entry < stop and plain_row(arrays.entry_rows[entry]) != c:
                entry += 1
                n_steps += 1
            if entry == stop:  # never, unless the arrays are not what was built
                return np.int64(most_steps)
        arrays.keys[entry] = DEAD_KEY
        entry = _find_ordered(arrays, boxes, n, 2 * n, False, code, np.int64(-1), c)
        arrays.keys[entry] = DEAD_KEY
        n_steps += _SEARCH_STEPS
    return n_steps
